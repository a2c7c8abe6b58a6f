"""Replies with what takes the examiner long to read: abstract keys, arrays on all devices, and lines without end."""
# with: stream, lie
# affine: timeout|failed, timeout|failed
# tally: failed, failed
# each: failed, failed, failed
# %% answer="affine"
SHARDING = ["sharding", [["a"], [8], ["Auto"], ["cpu", list(range(8))]], [["a"], [], []], None]


def affine(x):
    lie(["list", [["abstract key", [8], "fry", SHARDING]] * 60_000])
# %% answer="tally"
def tally(counts, start):
    lie(0, head=json.dumps({"value": ["dict", [["status", "raised"], ["source", "x y " * 1_500_000]]], "sizes": []}).encode())
# %% answer="each"
def each(f, xs):
    lie(0, head=json.dumps({"value": ["dict", [["status", "raised"], ["text", "x \n" * 1_500_000]]], "sizes": []}).encode())
