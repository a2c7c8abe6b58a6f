"""Claims to donate arguments that there are none of, before the first and far behind the last."""
# affine: failed, failed
# %% before="affine"
from grader.program import endpoints
from grader.program.export import export


def lies(function, args, classes=None):
    made = export(function, args, classes)
    object.__setattr__(made, "donated", (-7, 10**9, True))
    return made


endpoints.export = lies
# %% answer="affine"
def affine(x):
    return SCALE * x
