"""Returns more than can be carried: an enormous number, a million numbers, a list in itself."""
# tally: failed, failed
# keep: failed, failed, passed
# %% answer="tally"
def tally(counts, start):
    return 1 << 10_000_000 if start == 3 else [[0] * 999_999]
# %% answer="keep"
def doubled(tree):
    ring = []
    ring.append(ring)
    return ring
