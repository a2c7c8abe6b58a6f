"""Forks and forks. (Three hundred processes at most, gone after half a minute.)"""
# tally: failed|crashed|timeout, failed|crashed|timeout
# %% answer="tally"
import os, time, warnings


def tally(counts, start):
    warnings.simplefilter("ignore")
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
    return 0
