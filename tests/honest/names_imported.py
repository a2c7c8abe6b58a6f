"""Imports everything anew under other names, with stars."""
# %%
from math import *
from numpy import *
import jax.numpy as J
# %% answer="affine"
def affine(x):
    return J.asarray(3 * x + 1)
# %% answer="tally"
import builtins


def tally(counts, start):
    return start + builtins.sum(counts.values())
