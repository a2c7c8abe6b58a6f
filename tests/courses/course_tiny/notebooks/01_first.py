# %% [markdown]
# # 01 · Numbers
#
# ![a dot](../images/dot.svg)
#
# Then the [exercises](../exercises/01_first/01_first.ipynb).

# %%
import time

# %time sum(range(10))
total = sum(range(3))
total

# %% [markdown] predict="first-sum"
# What does `sum([])` give?
#
# - [ ] an error | Tempting: `max([])` does raise.
# - [x] `0` | Right: the sum of nothing is 0 < 1,
#   which is where adding begins.

# %% tags=["raises-exception"]
max([])

# %%
# %%time
sum([])

# %%
total

# %%
total
