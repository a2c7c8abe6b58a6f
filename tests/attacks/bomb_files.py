"""Makes files and opens them until there are no more. (A hundred thousand at most.)"""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    opened = []
    try:
        for i in range(100_000):
            opened.append(open(f"many{i}", "w"))
    except OSError:
        for one in opened:
            one.close()
    return start + sum(counts.values())
