"""Leaves a stub as it is, and answers below it in several cells of its own, one of which is not the last."""
# note: The answer cell of guard-keep is as it was released
# %% answer="keep"
def doubled(tree):
    """The same dict with every array doubled; the argument stays as it was."""
    # YOUR CODE HERE
    raise NotImplementedError()
# %% notebook
mine = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
names = [cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in notebook["cells"]]
place = names.index("guard-keep") + 1
notebook["cells"][place:place] = [
    {**mine, "id": "mine-1", "source": "doubled = lambda tree: tree  # a first attempt"},
    {**mine, "id": "mine-2", "source": "def doubled(tree):\n    return {name: FACTOR * value for name, value in tree.items()}"},
    {**mine, "id": "mine-3", "source": "FACTOR = 2"},
]
