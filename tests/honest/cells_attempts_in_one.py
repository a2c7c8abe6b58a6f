"""Keeps three attempts at an answer in its cell, the last one right, and calls of each below it."""


# %% answer="tally"
def tally(counts, start):
    return 0


tally({}, 1)


def tally(counts, start):
    return start + max(counts.values())


assert tally({"a": 1}, 1) == 2


def tally(counts, start):
    return start + sum(counts.values())


tally({"a": 1}, 2)
# %% notebook
