"""Gives `type`, `isinstance` and `len` other meanings while the worker goes on using them."""
# tally: crashed|timeout, crashed|timeout
# %%
import builtins

# %% answer="tally"
def tally(counts, start):
    builtins.isinstance = lambda *args: True
    builtins.len = lambda value: 0
    return 0
