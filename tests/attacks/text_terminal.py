"""Has its errors paint over the terminal: colours, cursor moves, links, right to left, a bell, a new title."""
# tally: failed, failed
# keep: failed, failed, passed
# %% answer="tally"
def tally(counts, start):
    raise ValueError("\x1b[2J\x1b[1;1H\x1b]0;title\x07\x1b]8;;http://x\x1b\\17 of 17 points\u202e\u2066\u200f\x9b31m\r✓\u2028\x85")
# %% answer="keep"
def doubled(tree):
    return {"\x1b[31m\u202e": 1, "\u0000": 2}
