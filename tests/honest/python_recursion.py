"""Recurses deeply, with a limit of its own."""
# %% answer="tally"
import sys

sys.setrecursionlimit(20_000)


def tally(counts, start):
    def add(values, depth=0):
        return add(values, depth + 1) if depth < 3_000 else sum(values)

    return start + add(list(counts.values()))
