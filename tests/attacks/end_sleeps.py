"""Sleeps, which costs no computing."""
# tally: timeout, timeout
# %% answer="tally"
import time


def tally(counts, start):
    time.sleep(3_600)
