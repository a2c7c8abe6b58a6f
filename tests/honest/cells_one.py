"""Has all code in the setup's cell, after cells were merged."""
# note: The answer cell of guard-tally is missing from the notebook. The definition in code cell 1 was graded instead.
# %% notebook
code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
code[0]["source"] = "\n\n\n".join("".join(cell["source"]) for cell in code)
notebook["cells"] = [code[0]]
