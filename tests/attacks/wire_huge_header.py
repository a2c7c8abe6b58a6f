"""Announces a reply of a terabyte."""
# with: stream
# tally: failed, failed
# says tally-example: Your answer returned too much: the reply has more than 268,435,456 bytes.
# %% answer="tally"
def tally(counts, start):
    stream().sendall(struct.pack("<Q", 1 << 40))
