"""Writes text that is hard to read: brackets in brackets, a number of a million digits, an expression without end."""
# tally: failed, failed
# affine: failed, failed
# keep: failed, failed, failed
# %% notebook
answers = {"guard-affine": "x = " + "(" * 90_000, "guard-tally": "x = " + "9" * 190_000,
           "guard-keep": "x = " + "-" * 190_000 + "1"}
for cell in notebook["cells"]:
    name = cell["metadata"].get("nbgrader", {}).get("grade_id")
    cell["source"] = answers.get(name, cell["source"])
