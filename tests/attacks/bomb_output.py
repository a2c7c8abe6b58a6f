"""Prints without measure, on every way out there is, next to a right answer."""
# tally: passed, passed
# %% answer="tally"
import os, sys


def tally(counts, start):
    for _ in range(20):
        os.write(1, b"x" * 5_000_000)
        os.write(2, b"x" * 5_000_000)
        print("y" * 1_000_000, file=sys.stderr)
    return start + sum(counts.values())
