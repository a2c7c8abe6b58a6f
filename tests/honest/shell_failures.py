"""Has cells of its own that end badly in every way a notebook knows, and goes on."""
# %%
kept = 3
raise SystemExit
# %%
import sys

sys.exit(1)
# %%
%%bash
exit 3
# %%
%%time
later = 1
1 / 0
# %%
%run nothing_of_that_name.py
# %%
def unfinished(
# %%
print("unclosed
# %%
async def never():
    raise ValueError("asynchronous")


await never()
# %%
%timeit -n 1 -r 1 1 / 0
# %%
raise KeyboardInterrupt
# %% answer="tally"
def tally(counts, start):
    return kept - 3 + later - 1 + start + sum(counts.values())
