"""Is a folder with the notebook's name."""
# problem: not a regular file
# %% notebook
path.mkdir()
