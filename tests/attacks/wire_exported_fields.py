"""Replies to an export with fields of other kinds."""
# affine: failed, failed
# mean: failed, failed
# with: stream
# %% answer="affine"
def affine(x):
    say(encode({"status": "ok", "value": {"blob": "text", "parameters": None, "donated": "x", "results": 1}}))
    os._exit(0)
# %% answer="mean"
def mean(x, mesh):
    say(encode({"status": "ok", "value": {"blob": np.zeros(10, np.uint8), "parameters": (), "donated": tuple(range(200000)), "results": None}}))
    os._exit(0)
