"""Calls itself until the stack is full, with no limit set."""
# affine: failed, failed
# tally: crashed|timeout, crashed|timeout
# %% answer="affine"
def affine(x):
    return affine(x) + 1
# %% answer="tally"
import ctypes, sys


def tally(counts, start):
    sys.setrecursionlimit(1 << 30)
    nested = []
    for _ in range(1_000_000):
        nested = [nested]
    repr_of = ctypes.pythonapi.PyObject_Repr
    repr_of.argtypes, repr_of.restype = [ctypes.py_object], ctypes.py_object
    return len(repr_of(nested))
