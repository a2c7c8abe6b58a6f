"""Lies in a folder that is a link to a neighbour's."""
# problem: It is a link
# %% notebook
path.parent.rmdir()
path.parent.symlink_to(path.parents[2] / "aa-neighbour" / path.parent.name)
