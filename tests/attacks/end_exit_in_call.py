"""Ends its process with status 0 when it is called, which a runner may take for success."""
# affine: crashed, passed
# tally: crashed, crashed
# keep: crashed, crashed, crashed
# %% answer="affine"
import os


def affine(x):
    return 3 * x + 1 if isinstance(x, jax.core.Tracer) else os._exit(0)
# %% answer="tally"
def tally(counts, start):
    os._exit(0)
# %% answer="keep"
import ctypes


def doubled(tree):
    ctypes.string_at(0)
