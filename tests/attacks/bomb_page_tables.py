"""Maps much and reads a byte of each two megabytes, in many children."""
# tally: timeout|crashed, timeout|crashed
# %% answer="tally"
import mmap, os, time
def tally(counts, start):
    for _ in range(200):
        if os.fork() == 0:
            try:
                m = mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
                sum(m[i] for i in range(0, 3 << 30, 2 << 20))
                time.sleep(20)
            finally:
                os._exit(0)
    time.sleep(20)
    return 0
