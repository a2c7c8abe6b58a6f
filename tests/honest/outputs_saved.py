"""Has saved outputs of several megabytes: images, HTML, errors, widgets."""
# %% notebook
big = "iVBORw0KGgo" * 100_000
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        cell["execution_count"] = 7
        cell["outputs"] = [
            {"output_type": "display_data", "data": {"image/png": big[:200_000], "text/html": "<b>b</b>"}, "metadata": {}},
            {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mred"]},
            {"output_type": "stream", "name": "stderr", "text": ["warning\n"] * 50},
        ]
notebook["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2}}
