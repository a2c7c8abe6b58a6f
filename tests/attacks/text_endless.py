"""Writes errors, notes and names without end."""
# tally: failed, failed
# keep: failed, failed, passed
# %% answer="tally"
def tally(counts, start):
    raise ValueError("word " * 10_000_000)
# %% answer="keep"
def doubled(tree):
    return {"k" * 1_000_000 + str(i): 1 for i in range(5)}
# %% notebook
for _ in range(300):
    notebook["cells"].insert(3, {"cell_type": "code", "source": "raise type('E' * 9_999, (Exception,), {})", "metadata": {}})
