"""Announces a reply of a terabyte."""
# with: stream
# tally: failed, failed
# says tally-example: Your answer returned too much: the reply has 1,099,511,627,776 bytes; 268,435,456 are allowed.
# %% answer="tally"
def tally(counts, start):
    stream().sendall(struct.pack("<Q", 1 << 40))
