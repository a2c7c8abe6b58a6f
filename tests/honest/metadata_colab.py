"""Comes from Colab: metadata, forms, and magics that only Colab has."""
# %% answer="tally"
#@title Tally { display-mode: "form" }
debug = False #@param {type:"boolean"}
def tally(counts, start):
    return start + sum(counts.values())
# %% before="tally"
%load_ext google.colab.data_table
try:
    from google.colab import drive
    drive.mount('/content/drive')
except ImportError:
    pass
# %% notebook
notebook["metadata"].update(colab={"provenance": [], "collapsed_sections": ["a"], "toc_visible": True}, accelerator="GPU", widgets={"application/vnd.jupyter.widget-state+json": {"x": {"model_module": "y"}}})
for i, c in enumerate(notebook["cells"]):
    c["metadata"].update(id=f"abc{i}", outputId="z", colab={"base_uri": "https://localhost:8080/", "height": 34})
    if c["cell_type"]=="code": c["execution_count"]=i
notebook["nbformat_minor"]=0
