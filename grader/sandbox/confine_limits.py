"""How much a confined process may use."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

import psutil

_CORES = os.cpu_count() or 1
_MIB, _GIB = 1 << 20, 1 << 30

# What JAX needs grows with the cores: XLA starts some threads for each, and each thread reserves addresses.
PROCESSES = 128 + 8 * _CORES  # with threads
ADDRESSES = 8 * _GIB + 256 * _MIB * _CORES
DATA = 3 * _GIB + 16 * _MIB * _CORES
FILE = 64 * _MIB
SCRATCH = 256 * _MIB
OPEN_FILES = 256
CPU_S = 3600  # each question has its own; this ends what nobody asks any more
ACCELERATED_MEMORY = 16 * _GIB  # the same beside an accelerator: its libraries alone take some
MEMORY = 4 * _GIB  # of a process and all that it started; watched from outside, where the others are the kernel's


def own_processes() -> int:
    """Processes and threads that run as this user now."""
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                count += process.num_threads()
    return count


def impose(others: int, accelerated: bool = False) -> None:
    """Limit this process and what it starts, for ever. `others`: processes that count for the same user; they are
    other workers too, so there is room for those.

    A driver of accelerators reserves addresses for all memory that there is, and opens a file for each thing that it
    does: with one, addresses are not limited, and private memory and files are limited further up."""
    wanted = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: CPU_S, resource.RLIMIT_FSIZE: FILE}
    wanted |= {resource.RLIMIT_NOFILE: OPEN_FILES * (8 if accelerated else 1)}
    if sys.platform == "linux":  # macOS counts the whole shared cache as addresses, and has no limit of data
        if accelerated:
            wanted |= {resource.RLIMIT_DATA: DATA + ACCELERATED_MEMORY}
        else:
            wanted |= {resource.RLIMIT_AS: ADDRESSES, resource.RLIMIT_DATA: DATA}
        wanted |= {resource.RLIMIT_NPROC: PROCESSES if not others else others + 32 * PROCESSES}
    for name, limit in wanted.items():
        hard = resource.getrlimit(name)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(name, (limit, limit))


def first_to_go() -> None:
    """When the machine's memory runs out, the kernel ends such a process before any other."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
