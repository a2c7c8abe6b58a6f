"""Keeps its work in helper cells before the answer."""
# %%
import functools, math, operator
# %% before="tally"
def total(numbers):
    return functools.reduce(operator.add, numbers, 0)
# %% answer="tally"
def tally(counts, start):
    return start + total(counts.values())
# %% before="affine"
SLOPE, OFFSET = 3, 1
# %% answer="affine"
def affine(x):
    return SLOPE * x + OFFSET
