"""Answers in a timed cell."""
# %% answer="tally"
%%time
def tally(counts, start):
    return start + sum(counts.values())
# %% answer="affine"
%%time
def affine(x):
    return SCALE * x + 1
