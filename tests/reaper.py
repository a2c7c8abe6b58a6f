"""Runs a command, then writes down which processes it left behind, however often they forked. Linux only.

`python reaper.py REPORT COMMAND ...`: what loses its parent becomes a child of this process, so that none gets away.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0  # the kernel takes a moment to end what was killed


def left() -> list[list[str]]:
    """The command lines of what is still there, the dead aside."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append([str(process.pid), *process.cmdline()])
        except psutil.NoSuchProcess:
            continue
    return found


def main() -> int:
    """Run the command; its exit status."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
    status = subprocess.run(sys.argv[2:], check=False).returncode
    end = time.monotonic() + GRACE_S
    while (behind := left()) and time.monotonic() < end:
        time.sleep(0.1)
    Path(sys.argv[1]).write_text(json.dumps(behind))
    for words in behind:
        psutil.Process(int(words[0])).kill()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
