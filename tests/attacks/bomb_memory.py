"""Takes memory until there is none. (Six gigabytes at most: where nothing stops it, the machine must live.)"""
# tally: failed|crashed|timeout, failed|crashed|timeout
# keep: passed, passed, passed
# %% answer="tally"
def tally(counts, start):
    kept = []
    while len(kept) < 6:
        kept.append(bytearray(b"x") * (1 << 30))
    return 0
# %% answer="keep"
def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
