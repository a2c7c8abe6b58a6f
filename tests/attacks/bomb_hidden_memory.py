"""Keeps memory where no count of a process's own shows it: files in memory, System V segments, message queues."""
# tally: failed, failed
# says tally-example: kept nothing
# %% answer="tally"
import ctypes, os


def tally(counts, start):
    kept, libc = [], ctypes.CDLL(None, use_errno=True)
    try:
        number = os.memfd_create("jaxercise-attack")
        os.posix_fallocate(number, 0, 32 << 20)
        kept.append("memfd")
    except OSError:
        pass
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, 32 << 20, 0o1600)
    if segment >= 0:
        kept.append("segment")
        libc.shmctl(segment, 0, None)  # where nothing stops this, it goes with the process
    if libc.msgget(0, 0o1600) >= 0:
        kept.append("queue")
    raise ValueError(f"kept {kept or 'nothing'}")
