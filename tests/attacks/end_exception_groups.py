"""Raises exceptions without end: groups in groups, causes in circles, names of a million letters."""
# affine: failed, failed
# tally: failed, failed
# keep: failed, failed, failed
# %% answer="affine"
def affine(x):
    group = ValueError("end")
    for i in range(3_000):
        group = ExceptionGroup("group", [group])
    raise group
# %% answer="tally"
def tally(counts, start):
    one, other = ValueError("one" * 1_000_000), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one
# %% answer="keep"
def doubled(tree):
    raise type("E" * 1_000_000, (Exception,), {"__module__": "\x1b[31m", "__qualname__": "Q" * 999})("\x1b[2J")
