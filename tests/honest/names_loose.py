"""Uses names of builtins for loose values, also those that the checks use."""
# %%
sum = 0
for i in range(4):
    sum += i
chr, enumerate, int, str = "c", 1, None, "abc"
# %% before="tally"
max = min = list = id = None
# %% answer="tally"
def tally(counts, start):
    for value in counts.values():
        start += value
    return start
