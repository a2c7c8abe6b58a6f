"""Is a folder with the notebook's name."""
# problem: no file at all
# %% notebook
path.mkdir()
