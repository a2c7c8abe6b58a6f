"""Has a name that is an option of the command's."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
learner = "--force"
