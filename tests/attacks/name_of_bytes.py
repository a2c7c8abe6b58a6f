"""Has a name that is no text in any encoding."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
import os

learner = os.fsdecode(b"\xff\xfe-\xed\xa0\x80")
