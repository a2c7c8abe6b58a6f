"""Has merged two answer cells into one, so that one of the ids is gone, and the other's cell with its check."""
# note: The answer cell of guard-tally is missing from the notebook. The definition in code cell
# %% notebook
cells = notebook["cells"]
by_id = {cell["metadata"].get("nbgrader", {}).get("grade_id"): cell for cell in cells}
affine, tally = by_id["guard-affine"], by_id["guard-tally"]
affine["source"] = "".join(affine["source"]) + "\n\n\n" + "".join(tally["source"])
cells.remove(tally)
