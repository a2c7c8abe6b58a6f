"""Has more cells than anyone reads."""
# problem: at most 2,000 are read
# %% notebook
notebook["cells"] += [{"cell_type": "code", "source": "1", "metadata": {}}] * 5_000
