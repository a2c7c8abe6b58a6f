"""Ends its process while its cell runs, before and after it has bound its name."""
# affine: crashed, crashed
# tally: crashed, crashed
# %% answer="affine"
import os

os._exit(0)
# %% answer="tally"
import os


def tally(counts, start):
    return start + sum(counts.values())


os.abort()
