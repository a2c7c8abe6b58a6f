"""Stacks a thousand accents on a letter, which paint over the lines above and below: over a neighbour's points."""
# tally: failed, failed
# says tally-example: \u0336\u0336
# %% answer="tally"
def tally(counts, start):
    raise ValueError("0" + "\u0336" * 900 + "a" + "\u030d\u0489" * 450)
