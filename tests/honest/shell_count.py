"""Refers to a result by the number of its cell, in which the course's own cells count."""
# %% notebook
mine = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
cells = notebook["cells"]
names = [cell["metadata"].get("nbgrader", {}).get("grade_id", "") for cell in cells]
place = names.index("guard-tally")
number = sum(cell["cell_type"] == "code" and bool("".join(cell["source"]).strip()) for cell in cells[:place]) + 1
cells[place]["source"] = f"""factor = Out[{number}] - 40


def tally(counts, start):
    return start + factor * sum(counts.values())
"""
cells.insert(place, {**mine, "id": "mine-1", "source": "41"})
