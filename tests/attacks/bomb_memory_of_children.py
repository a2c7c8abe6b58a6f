"""Has eight children take a gigabyte each, so that none of them is beyond a limit of its own."""
# tally: failed|crashed|timeout, failed|crashed|timeout
# %% answer="tally"
import os, time, warnings


def tally(counts, start):
    warnings.simplefilter("ignore")
    for _ in range(8):
        if os.fork() == 0:
            kept = bytearray(b"x") * (1 << 30)
            time.sleep(30)
            os._exit(0)
    time.sleep(2)
    return 0
