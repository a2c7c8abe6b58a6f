"""Never ends while the answer's own cell runs."""
# tally: timeout, timeout
# says tally-example: Your answer cell did not end: stopped after
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())


while True:
    pass
