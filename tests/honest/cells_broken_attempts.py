"""Keeps broken attempts, as copies of the answer's cell, above and below the right one."""
# note: The answer of guard-tally is in 3 cells. All were run, in order.
# kernel fails: guard-tally-example, since its cell could be the answer's, run again after an edit that broke it
# kernel fails: guard-tally-values, for the same reason
# %% notebook
import copy

for place, source in ((0, "def tally(counts, start):\n    return sum(counts.values("), (2, "def tally(counts:")):
    [at] = [i for i, cell in enumerate(notebook["cells"]) if "return start + sum" in "".join(cell["source"])]
    attempt = copy.deepcopy(notebook["cells"][at])
    attempt.pop("id", None)
    attempt["source"] = source
    notebook["cells"].insert(at + (place > 0), attempt)
