"""Forks into new namespaces, of which the child is the first process."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable

from grader.sandbox import confine_kernel as kernel

_NAMESPACES = kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_MOUNTS


def fork(namespaces: str, child: Callable[[], None]) -> int:
    """Fork a process that calls `child` and ends; returns its process id. Raises OSError for what is refused.

    `namespaces` says who makes new ones for it: "root", "user" for one without privileges, "" for nobody. A process
    namespace begins with the next fork, so one process stands between; it is gone when this returns.
    """
    if not namespaces:
        pid = os.fork()
        if pid == 0:
            _end_after(child)
        return pid
    told, tell = os.pipe()
    wait, go = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(told)
        os.close(go)
        _end_after(lambda: _between(namespaces, child, tell, wait))
    os.close(tell)
    os.close(wait)
    with contextlib.suppress(ChildProcessError):  # nothing to wait for where the kernel reaps children
        os.waitpid(between, 0)
    with open(told) as said, open(go, "w") as going:
        number, _, refused = said.read().partition(" ")
        if refused or not number:
            raise OSError(int(number or 0), os.strerror(int(number or 0)), refused or "fork")
        going.write("!")
    return int(number)


def _between(namespaces: str, child: Callable[[], None], tell: int, wait: int) -> None:
    """Make the namespaces, fork into them, tell the number or what was refused, and end."""
    try:
        if namespaces == "user":
            _unshare_user()
        kernel.unshare(_NAMESPACES)
        pid = os.fork()
    except OSError as problem:
        os.write(tell, f"{problem.errno} {problem.filename or 'fork'}".encode())
        return
    if pid:
        os.write(tell, str(pid).encode())
        return
    os.close(tell)
    # Only once the process between is gone is the zygote this one's parent, with which it shall end.
    going = os.read(wait, 1)
    os.close(wait)
    if going:
        child()


def _unshare_user() -> None:
    kernel.dumpable(True)  # else the two maps are root's
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _end_after(child: Callable[[], None]) -> None:
    try:
        child()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(0)
