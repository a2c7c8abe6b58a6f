"""Has copied check cells, with their ids and without: before the answer, and between the answer and its helper."""
# note: The check guard-tally-example occurs 3 times in the notebook. The last one counts.
# %% answer="tally"
def tally(counts, start):
    return start + total(counts)
# %% notebook
cells = notebook["cells"]
names = [cell["metadata"].get("nbgrader", {}).get("grade_id", "") for cell in cells]
place, check = names.index("guard-tally"), cells[names.index("guard-tally-example")]
other = cells[names.index("guard-affine-example")]
helper = {"cell_type": "code", "id": "mine", "metadata": {}, "source": "def total(counts):\n    return sum(counts.values())",
          "outputs": [], "execution_count": None}
cells[place : place + 1] = [
    {**check, "id": "copy-1"},
    cells[place],
    {**check, "id": "copy-2"},
    {**other, "id": "copy-3"},
    {**check, "id": "copy-4", "metadata": {}},
    helper,
]
