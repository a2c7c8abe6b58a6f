"""Exports a call of a target that nobody registered."""
# with: forge
# affine: passed, failed
# %% answer="affine"
forge(calls("nowhere", "api_version = 2 : i32"))


def affine(x):
    return 3 * x + 1
