"""Limits of time and memory for what a check itself computes, as a reply may have shapes that make it endless."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from grader.core.faults import Fault
from grader.grading import executors, worker_pair
from grader.sandbox import process, wire

SECONDS, MEMORY = 60.0, 3 << 30  # of processor time, and of memory besides what this process has already
AGAIN_S = 0.1
# An exception in the middle of an exchange would leave half a reply, which the next question would read.
EXCHANGING = frozenset(module.__name__ for module in (wire, process, executors, worker_pair))


@contextlib.contextmanager
def limited(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Within it, more than `memory` bytes raise MemoryError, and more than `seconds` of processor time Fault."""

    def expired(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_globals.get("__name__") in EXCHANGING:
                signal.setitimer(signal.ITIMER_PROF, AGAIN_S)
                return
            frame = frame.f_back
        raise Fault("flooded", f"judging it takes more than {seconds:g} s of processor time")

    ours = threading.current_thread() is threading.main_thread()  # signals are handled there alone
    before, used = resource.getrlimit(resource.RLIMIT_DATA), _private()
    if ours:
        handler = signal.signal(signal.SIGPROF, expired)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        if used and (before[0] == resource.RLIM_INFINITY or used + memory < before[0]):
            resource.setrlimit(resource.RLIMIT_DATA, (used + memory, before[1]))
        yield
    finally:
        if ours:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _private() -> int:
    """The bytes of this process that count towards that limit; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0
