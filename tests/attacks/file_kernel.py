"""Names a kernel whose command line is its own, and metadata that a server may act on."""
# tally: passed, passed
# %% answer="tally"
def tally(counts, start):
    return start + sum(counts.values())
# %% notebook
notebook["metadata"]["kernelspec"] = {"name": "../../evil", "argv": ["touch", "@OUTSIDE@/jaxercise-attack"]}
notebook["metadata"]["jupytext"] = {"text_representation": {"extension": "../../../jaxercise-attack"}}
notebook["metadata"]["language_info"] = {"name": "bash", "file_extension": ".sh"}
notebook["cells"][0]["attachments"] = {"../../jaxercise-attack": {"text/plain": "x"}}
