"""Runs a regular expression that takes as long as the universe has, holding the interpreter's lock."""
# tally: timeout, timeout
# %% answer="tally"
import re


def tally(counts, start):
    return re.match(r"(a|aa)+$", "a" * 90 + "b")
