"""Tidies up after itself: deletes what it no longer needs, imports of the setup among it."""
# %% after="tally"
del np, counted
# %% answer="keep"
def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
