"""Is the very file that lies in the course as its released notebook, twice in the file system."""
# bystander: not attempted, not attempted
# %% notebook
import os

os.link("@COURSE@/exercises/01_guarded/01_guarded.ipynb", path)
