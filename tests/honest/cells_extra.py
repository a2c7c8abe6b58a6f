"""Has cells of its own everywhere: experiments, notes, one that fails, one that is empty."""
# %%
experiment = jnp.arange(8.0).sum()
# %%

# %% before="tally"
1 / 0
# %% after="tally"
tally({"a": 1}, 1)
assert tally({"a": 1}, 1) == 2
# %% before="keep"
def unused(:
# %% after="bystander"
again("x")
# %% notebook
notebook["cells"].insert(2, {"cell_type": "raw", "source": "raw", "metadata": {}})
notebook["cells"].append({"cell_type": "markdown", "source": "# My notes\n\x1b[31m", "metadata": {}})
notebook["cells"].append({"cell_type": "code", "source": "", "metadata": {}, "outputs": [], "execution_count": None})
