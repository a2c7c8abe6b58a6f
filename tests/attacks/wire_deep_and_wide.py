"""Sends lists in lists without end, and a million of small things."""
# with: stream, lie
# tally: failed, failed
# keep: failed|timeout, failed|timeout, failed|timeout
# %% answer="tally"
def tally(counts, start):
    lie(None, head=b'{"sizes":[],"value":' + b"[" * 100_000)
# %% answer="keep"
def doubled(tree):
    lie(["list", [["list", []]] * 500_000])
