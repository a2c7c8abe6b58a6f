"""Uses names of the setup, of the checks and of builtins for things of its own."""
# %% before="tally"
x = rows = made = row = want = got = probe = canary = mesh = 7
compare = require = ask = program = inputs = None
# %% answer="tally"
def tally(counts, start):
    sum = start
    for list in counts.values():
        sum += list
    return sum
