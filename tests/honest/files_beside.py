"""Tries a module and a data file that lie beside the notebook of its author, and defines all that it needs itself."""
# note: raised ModuleNotFoundError on line 1 (the grader has only the notebook, the course's files and its packages).
# note: raised FileNotFoundError on line 1 (the grader has only the notebook, the course's files and its packages).
# %%
import my_helpers_of_last_year
# %%
rows = open("measurements.csv").read().splitlines()
# %%
%%writefile own_affine.py
def affine(x):
    return 3 * x + 1
# %% answer="affine"
from own_affine import affine
