"""Has a name that a spreadsheet computes, a workflow obeys and a table breaks at."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
learner = '=HYPERLINK("http:x","y")\n::set-env name=A::b\n| | ```]]>'
