"""Was saved by other tools: other metadata, tags, collapsed cells, an older minor format, a kernel of its own name."""
# %% notebook
notebook["nbformat_minor"] = 2
notebook["metadata"] = {"kernelspec": {"name": "my-env", "display_name": "My env", "language": "python"},
                        "colab": {"provenance": []}, "accelerator": "GPU", "vscode": {"interpreter": {"hash": "0"}}}
for cell in notebook["cells"]:
    cell.pop("id", None)
    cell["metadata"] |= {"tags": ["mine"], "collapsed": True, "editable": True, "deletable": False}
