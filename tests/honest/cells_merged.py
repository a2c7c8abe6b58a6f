"""Has the answers of two exercises in one cell."""
# %% answer="affine"
def affine(x):
    return 3 * x + 1


def tally(counts, start):
    return start + sum(counts.values())
# %% answer="tally"
# Stands above.
pass
