"""Has line ends of Windows, spaces behind every line, and a byte order mark's character."""
# %% notebook
for cell in notebook["cells"]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "code":
        cell["source"] = "  \r\n".join(source.split("\n")) + "\r\n"
