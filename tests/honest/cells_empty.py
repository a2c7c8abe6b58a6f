"""Empty cells everywhere, raw cells too."""
# %% notebook
cells = []
for c in notebook["cells"]:
    cells += [{"cell_type": "code", "source": "", "metadata": {}, "outputs": [], "execution_count": None}, {"cell_type": "raw", "source": "raw", "metadata": {}}, c]
notebook["cells"] = cells
