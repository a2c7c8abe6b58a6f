"""Has an answer cell split in two, and one that stands there twice."""
# %% notebook
for i, cell in reversed(list(enumerate(notebook["cells"]))):
    name = cell["metadata"].get("nbgrader", {}).get("grade_id")
    if name == "guard-tally":
        cell["source"] = "def tally(counts, start):\n    more = sum(counts.values())"
        notebook["cells"].insert(i + 1, {**cell, "id": "second", "source": "    return start + more"})
    if name == "guard-keep":
        notebook["cells"].insert(i + 1, {**cell, "id": "third"})
