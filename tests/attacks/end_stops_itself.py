"""Stops its process: it uses no time at all, and never answers. (The first of a namespace cannot.)"""
# tally: timeout|failed, timeout|failed
# %% answer="tally"
import os, signal


def tally(counts, start):
    os.kill(os.getpid(), signal.SIGSTOP)
