"""Lets go of huge pages of which one page stays in a pipe, so that all of it stays and is in no process's memory."""
# tally: failed, failed
# says tally-example: the pipe took nothing
# %% answer="tally"
import ctypes, mmap, os


class Piece(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def tally(counts, start):
    libc, (_, end) = ctypes.CDLL(None, use_errno=True), os.pipe()
    memory = mmap.mmap(-1, 4 << 20)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[:] = b"x" * len(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    taken = libc.vmsplice(end, ctypes.byref(Piece(address, 4096)), 1, 0)
    raise ValueError(f"the pipe took {taken if taken > 0 else 'nothing'}")
