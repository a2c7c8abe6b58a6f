"""Writes modules and scripts with `%%writefile`, imports them, runs them, and has them loaded again."""
# %% before="tally"
%%writefile adding.py
def total(counts):
    return sum(counts.values())
# %% before="tally"
%%writefile -a adding.py

STEPS = 1
# %% before="tally"
%load_ext autoreload
%autoreload 2
import adding
from adding import total
# %% before="tally"
%%file run_me.py
import sys

slope = 3
if __name__ == "__main__":
    offset = len(sys.argv) - 1
# %% before="tally"
%run run_me.py one
# %% answer="tally"
def tally(counts, start):
    return start + total(counts) * adding.STEPS
# %% answer="affine"
from pathlib import Path

Path("late.py").write_text("def line(x, slope, offset):\n    return slope * x + offset\n")
import late


def affine(x):
    return late.line(x, 3, 1)
# %% answer="keep"
assert (slope, offset) == (3, 1)


def doubled(tree):
    return {name: value * (slope - offset) for name, value in tree.items()}
