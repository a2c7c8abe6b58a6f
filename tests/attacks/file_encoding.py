"""Is encoded as no notebook is: halves of characters, and a mark at the start."""
# problem: not JSON
# %% notebook
path.write_bytes(b"\xef\xbb\xbf" + json.dumps(notebook).encode() + b"\xff\xfe\xed\xa0\x80")
