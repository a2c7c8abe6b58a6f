"""Sends an array that says it lies on all devices at once: eight times the memory on the side that reads it."""
# with: stream, lie
# keep: failed, failed, failed
# says keep-example: more bytes on all devices together than the limit
# %% answer="keep"
def doubled(tree):
    mesh = ["d"], [8], ["Auto"], ["cpu", list(range(8))]
    where = ["sharding", mesh, [[], [], []], None]
    lie(["array", "jax", "float32", [20 << 20], False, where, 0], [80 << 20], bytes(80 << 20))
