"""Sends heads that lie about the buffers behind them: one array in two places, sizes without end, shapes beyond."""
# with: stream, lie
# tally: failed, failed
# keep: failed, failed|crashed, failed
# says tally-example: The reply could not be read: no such buffer
# %% answer="tally"
def tally(counts, start):
    array = ["array", "numpy", "float32", [1], False, None, 0]
    lie(["list", [array] * 1_000], [4], b"1234") if start == 3 else lie(array, [1 << 60])
# %% answer="keep"
def doubled(tree):
    lie(["array", "jax", "float32", [1 << 40, 0], False, None, 0], [0])
