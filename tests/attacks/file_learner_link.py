"""Is a learner's folder that is a link to a neighbour's: the neighbour's points under another name."""
# problem: It is a link
# %% notebook
import os

path.parent.rmdir()
path.parents[1].rmdir()
path.parents[1].symlink_to(path.parents[2] / "aa-neighbour")
