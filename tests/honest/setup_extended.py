"""Adds to the setup cell: imports, helpers, a name of the setup's with another value, a magic."""
# note: Your code cell 1 is a changed setup. The setup of the course was run, and then what yours adds or changes.
# %% notebook
for cell in notebook["cells"]:
    if cell["metadata"].get("nbgrader", {}).get("grade_id") == "setup":
        cell["source"] = "%matplotlib inline\nimport functools\n" + "".join(cell["source"]) + """

import operator as op


def total(numbers):
    return functools.reduce(op.add, numbers, 0)


start_from = Point(1, 2)
"""
# %% answer="tally"
def tally(counts, start):
    assert isinstance(start_from, Point)
    return start + total(counts.values())
