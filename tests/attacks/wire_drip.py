"""Lets its reply drip, one byte at a time, so that the examiner never stops waiting."""
# with: stream
# tally: timeout, timeout
# %% answer="tally"
import time


def tally(counts, start):
    to = stream()
    to.sendall(struct.pack("<Q", 1 << 20))
    while True:
        to.sendall(b" ")
        time.sleep(0.02)
