"""Answers the exercises in another order than the course has them."""
# %% notebook
cells = notebook["cells"]
ids = [cell["metadata"].get("nbgrader", {}).get("grade_id", "") for cell in cells]
keep = [cell for cell, name in zip(cells, ids) if name.startswith("guard-keep")]
rest = [cell for cell, name in zip(cells, ids) if not name.startswith("guard-keep")]
notebook["cells"] = rest[:2] + keep + rest[2:]
