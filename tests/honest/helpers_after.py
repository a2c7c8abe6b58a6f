"""Defines what an answer needs after it, as one may in a notebook."""
# %% answer="tally"
def tally(counts, start):
    return start + total(counts)
# %% after="tally"
def total(counts):
    return sum(counts.values())
