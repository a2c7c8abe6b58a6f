"""Has copied and pasted answer cells, ids and all: a first attempt above, and one that is kept below the checks."""
# note: The answer of guard-tally is in 2 cells. All were run, in order.
# %% notebook
cells = notebook["cells"]
names = [cell["metadata"].get("nbgrader", {}).get("grade_id", "") for cell in cells]
tally, keep = cells[names.index("guard-tally")], cells[names.index("guard-keep")]
last = max(i for i, name in enumerate(names) if name.startswith("guard-keep-"))
old = {**keep, "id": "old", "source": "def doubled(tree):\n    return 'an attempt that I keep for later'"}
cells.insert(last + 1, old)
first = {**tally, "id": "first", "source": "%%time\ndef tally(counts, start):\n    return start + len(counts)"}
cells.insert(names.index("guard-tally"), first)
