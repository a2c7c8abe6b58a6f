"""Has a name of another's, a sign that a spreadsheet computes, and letters that have no shape."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
learner = "\u3164\u2800\uff1dHYPERLINK(1)\ufe0f\u034f www.example.org me@example.org #1"
