"""Gives cells ids that are no text, that stand twice, or that belong to the course's own cells."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
odd = [7, None, ["guard-tally"], {"a": 1}, "", "setup", "setup-2", "guard-tally-example", "../guard", "\x00", "\ud800"]
for grade_id in odd:
    said = {"grade_id": grade_id, "grade": True, "points": "many", "locked": None}
    notebook["cells"].insert(4, {"cell_type": "code", "source": "import os; os._exit(0)" if isinstance(grade_id, str) and grade_id.startswith(("setup", "guard")) else "1", "metadata": {"nbgrader": said}})
notebook["cells"] += [{"cell_type": "code", "metadata": None, "source": []}, {"cell_type": ["code"]}, {}]
path.write_text(json.dumps(notebook))
