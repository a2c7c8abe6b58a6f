"""nbformat_minor 0, and source as a list with single characters."""
# %% notebook
notebook["nbformat_minor"] = 0
for c in notebook["cells"]:
    c.pop("id", None)
    c["source"] = list("".join(c["source"]))
