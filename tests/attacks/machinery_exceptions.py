"""Raises the grader's own exceptions, which skip a check or blame it."""
# affine: failed, failed
# tally: failed, failed
# each: failed, failed, failed
# %% answer="affine"
from grader.checks import outcomes


def affine(x):
    raise outcomes.Skipped("not on this machine")
# %% answer="tally"
def tally(counts, start):
    raise outcomes.CheckBroken("the check is at fault")
# %% answer="each"
def each(f, xs):
    from grader.core.faults import Fault

    raise Fault("refused", "nothing can be started")
