"""Was run out of order, with huge execution counts, tags, collapsed and slideshow metadata, and hidden inputs."""

# %% notebook
for i, c in enumerate(notebook["cells"]):
    c["metadata"].update(
        tags=["hide-input", "exercise"],
        collapsed=True,
        slideshow={"slide_type": "skip"},
        jupyter={"source_hidden": True, "outputs_hidden": True},
        scrolled="auto",
        ExecuteTime={"end_time": "2026-01-01T00:00:00Z", "start_time": "x"},
        deletable=True,
        editable=True,
        heading_collapsed=True,
        pycharm={"name": "#%%\n"},
    )
    if c["cell_type"] == "code":
        c["execution_count"] = 10**6 - i
notebook["metadata"].update(
    toc={"base_numbering": 1},
    varInspector={"cols": {}},
    celltoolbar="Slideshow",
    hide_input=False,
    jupytext={"formats": "ipynb,py:percent"},
    interpreter={"hash": "x"},
    orig_nbformat=4,
)
