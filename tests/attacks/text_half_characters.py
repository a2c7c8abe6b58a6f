"""Raises text of half characters."""
# tally: failed, failed
# affine: failed, failed
# %% answer="tally"
def tally(counts, start):
    raise ValueError("\ud800\udfff half \x00 null")
# %% answer="affine"
def affine(x):
    raise type("E\ud800", (Exception,), {})("x")
