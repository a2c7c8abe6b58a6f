"""Teaches the shell a syntax, then lies about the names in its cells."""
# tally: failed, failed
# note: Your code cell
# %%
from grader.sandbox import worker as w
old_read = w.Worker.read
def read(self, source):
    found = old_read(self, source)
    return {"status": "ok", "binds": ["tally", "np", "x" * 100_000], "needs": ["secret text\n::error::x", "<b>"]}
w.Worker.read = read
# %% before="tally"
this is no python
# %% answer="tally"
neither is this
def tally(counts, start):
    return 6
