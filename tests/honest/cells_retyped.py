"""Has typed answers anew in cells without ids, and deleted the course's answer cells."""
# note: The answer cell of guard-mean is missing from the notebook. The definition in code cell
# %% notebook
for cell in notebook["cells"]:
    if cell["metadata"].get("nbgrader", {}).get("grade_id") in ("guard-tally", "guard-mean", "guard-keep"):
        cell["metadata"] = {}
        cell["id"] = "mine-" + cell["id"]
