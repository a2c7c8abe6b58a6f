"""Has an answer cell split in two at a blank line, both with its id, and an answer cell that stands there twice."""
# %% notebook
for i, cell in reversed(list(enumerate(notebook["cells"]))):
    name = cell["metadata"].get("nbgrader", {}).get("grade_id")
    if name == "guard-tally":
        cell["source"] = "def total(counts):\n    return sum(counts.values())"
        second = "%%time\ndef tally(counts, start):\n    return start + total(counts)"
        notebook["cells"].insert(i + 1, {**cell, "id": "second", "source": second})
    if name == "guard-keep":
        notebook["cells"].insert(i + 1, {**cell, "id": "third"})
