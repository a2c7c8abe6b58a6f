"""Works with arrays of a few hundred megabytes on its way to small results."""
# %% answer="tally"
def tally(counts, start):
    large = np.zeros((100, 1_000_000), "f")
    return start + sum(counts.values()) + int(large[0].sum())
