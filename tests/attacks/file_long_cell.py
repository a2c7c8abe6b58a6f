"""Has a cell of a million characters."""
# problem: at most 200,000 are read
# %% notebook
notebook["cells"][3]["source"] = "x" * 1_000_000
