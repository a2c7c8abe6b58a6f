"""Has its source as lists of lines, one string, or one character a piece."""
# %% notebook
for i, cell in enumerate(notebook["cells"]):
    source = "".join(cell["source"])
    cell["source"] = [source, source.splitlines(keepends=True), list(source)][i % 3]
