"""Loads autoreload and edits a module it wrote."""
# %%
%load_ext autoreload
%autoreload 2
# %%
%%writefile helper_mod.py
def add(a, b):
    return a + b
# %%
import helper_mod
# %%
from pathlib import Path
Path("helper_mod.py").write_text("def add(a, b):\n    return b + a\n")
# %% answer="tally"
def tally(counts, start):
    total = start
    for v in counts.values():
        total = helper_mod.add(total, v)
    return total
