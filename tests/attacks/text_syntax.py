"""Has a syntax error whose line is made of control characters."""
# tally: failed, failed
# %% notebook
for cell in notebook["cells"]:
    if cell["metadata"].get("nbgrader", {}).get("grade_id") == "guard-tally":
        cell["source"] = "def tally(:  # \x1b[2J\u202e \x07 \ud800 '''\x00"
path.write_text(json.dumps(notebook))
