"""Draws random numbers, sets seeds and reads the clock, which no result depends on."""
# %%
import random, time

random.seed(0)
np.random.seed(0)
# %% answer="tally"
def tally(counts, start):
    random.shuffle(order := list(counts))
    time.sleep(0.01)
    return start + sum(counts[name] for name in order)
