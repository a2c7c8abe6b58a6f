"""Hides a second definition behind characters that normalize to the same name."""
# tally: passed, failed
# %% answer="tally"
def tally(counts, start):
    return 0
# %% after="tally"
def ｔａｌｌｙ(counts, start):
    return 6
