"""Uses `_`, `__`, `Out`, `In`, `_i` and numbered results, as one does who explores."""
# %% before="affine"
3
# %% before="affine"
_ - 2
# %% before="affine"
__ + _, Out[max(Out)], _i.strip(), len(In)
# %% before="affine"
40 + 1;
# %% before="affine"
slope, offset = _[0] - 1, _[1]
number = len(In) - 1
name = f"_{max(Out)}"
globals()[name][2], In[-2], _ii.strip()
# %% answer="affine"
assert _ == ("_ - 2", "40 + 1;", "__ + _, Out[max(Out)], _i.strip(), len(In)"), _


def affine(x):
    return slope * x + offset
# %% after="tally"
# One cell was run since the last of mine but two: the check of the exercise before.
assert len(In) - 1 > number + 2, (len(In), number)
"kept"
# %% answer="keep"
assert _ == Out[max(Out)] == "kept"


def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
