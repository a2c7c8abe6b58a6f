"""Ends the notebook by what a shell offers: `exit`, the loop's end, hooks at the end, a cell that waits for ever."""
# tally: passed, passed
# keep: timeout, timeout, timeout
# %%
exit
# %%
quit()
# %%
import asyncio, atexit, os

atexit.register(os._exit, 0)
get_ipython().ask_exit()
# %%
asyncio.get_running_loop().stop()
# %% answer="tally"
def tally(counts, start):
    asyncio.get_running_loop().stop()
    return start + sum(counts.values())
# %% answer="keep"
def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}


await asyncio.Event().wait()
