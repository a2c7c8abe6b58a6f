"""Fills the disk. (Two gigabytes at most.)"""
# tally: failed|timeout, failed|timeout
# says tally-example: the disk was full | did not finish
# %% answer="tally"
import os


def tally(counts, start):
    for i in range(200):
        try:
            with open(f"file{i}", "wb") as stream:
                stream.write(bytes(10 << 20))
        except OSError:
            raise ValueError("the disk was full") from None
    return 0
