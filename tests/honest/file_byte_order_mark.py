"""A byte order mark before the JSON."""
# %% notebook
path.parent.mkdir(parents=True, exist_ok=True)
path.write_bytes(b"\xef\xbb\xbf" + json.dumps(notebook).encode())
