"""Is nested a million levels deep."""
# problem: nested too deeply
# %% notebook
path.write_bytes(b'{"cells":' + b"[" * 1_000_000)
