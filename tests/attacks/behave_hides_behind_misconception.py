"""Gives just what a known wrong answer gives: its misconception is named, and no points come of it."""
# tally: failed, failed
# misconception tally: Forgets where to start.
# %% answer="tally"
def tally(counts, start):
    return sum(counts.values()) + 0 * start
