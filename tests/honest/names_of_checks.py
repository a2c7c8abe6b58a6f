"""Goes on with what a check cell bound: its result and its arrays."""
# %% before="keep"
shape = made.count("all-reduce"), type(made).__name__
# %% answer="keep"
assert shape == (1, "Program")


def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
