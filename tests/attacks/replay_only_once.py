"""Has a cell that ends the process each time it is run again, and answers that make it run again."""
# tally: crashed, crashed
# keep: passed, passed, passed
# %% answer="tally"
import os


def tally(counts, start):
    os._exit(0)
# %% before="keep"
import os

if os.path.exists("ran") or len(os.listdir("..")) < 0:
    os._exit(0)
open("ran", "w").close()
# %% answer="keep"
def doubled(tree):
    return {name: value * 2 for name, value in tree.items()}
