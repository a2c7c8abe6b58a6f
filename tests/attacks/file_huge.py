"""Is a file of a terabyte that takes no room on the disk."""
# problem: at most 21 MB are read
# %% notebook
with path.open("wb") as stream:
    stream.truncate(1 << 40)
