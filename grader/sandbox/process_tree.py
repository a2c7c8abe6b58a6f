"""Processor time and memory that a process and everything that it started use together."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = os.path.isdir("/proc/self/task")


class ProcessTree:
    """A process with its descendants. To make one costs little: the descendants are looked for when one asks."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS if _PROC else 0.0
        self._before = {pid: _times(pid)[0]}
        self._stood: dict[str, int] | None = None

    def members(self) -> list[int]:
        """Process ids; none when all have ended."""
        found, todo = [], [self.pid]
        for pid in todo:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    todo += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
                found.append(pid)
        return found

    def seconds(self) -> float:
        """Processor time since this was made: of those that are there, and of those that they have waited for."""
        used = 0.0
        for pid in self.members() if _PROC else [self.pid]:
            now, started = _times(pid)
            before = self._before.setdefault(pid, now if started < self._began else 0.0)
            used += max(0.0, now - before)
        return used

    def stood(self) -> float:
        """Seconds since the first call that a thread of the first process stood in line for a processor: that one
        which stood longest. 0 where the system does not tell."""
        now: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                fields = _read(f"/proc/{self.pid}/task/{thread}/schedstat").split()
                now[thread] = int(fields[1]) if fields else 0
        if self._stood is None:
            self._stood = now
        return max((stood - self._stood.get(thread, 0) for thread, stood in now.items()), default=0) / 1e9

    def memory(self, enough: int) -> int:
        """Resident bytes. What forks share is counted for each of them, unless that makes more than `enough`: then
        once, which takes longer to find out. 0 where there is no /proc."""
        members = self.members() if _PROC else []
        counted = sum(_resident(pid) for pid in members)
        return counted if counted <= enough else sum(_share(pid) for pid in members)


def _read(path: str) -> str:
    """The whole of a small file; empty when it cannot be read, as when its process has just ended."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read(1 << 16).decode(errors="replace")
    return ""


def _times(pid: int) -> tuple[float, float]:
    """Seconds of processor time, children that were waited for among them, and when it started, in ticks."""
    if _PROC:
        # The name, in brackets, may hold anything. After it, the times are fields 11 to 14, the start is field 19.
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (sum(map(int, fields[11:15])) / _TICKS, float(fields[19])) if fields else (0.0, 0.0)
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system, 0.0
    return 0.0, 0.0


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _share(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return _resident(pid)
