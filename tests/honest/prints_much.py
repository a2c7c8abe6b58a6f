"""Prints ten million characters while it runs and a long table after every cell."""
# %% answer="tally"
def tally(counts, start):
    print("x" * 10_000_000)
    return start + sum(counts.values())


for i in range(3_000):
    print(i, "*" * 80)
