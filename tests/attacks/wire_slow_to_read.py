"""Sends thousands of tiny arrays, each of a shape of its own: whoever compiles something for each takes minutes."""
# with: stream, lie
# keep: failed, failed|crashed, failed
# %% answer="keep"
def doubled(tree):
    lie(["list", [["array", "jax", "int8", [i, 0], True, None, i] for i in range(3_000)]], [0] * 3_000)
