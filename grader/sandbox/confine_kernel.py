"""Calls of Linux that Python has no name for, and forks into new process namespaces."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

PATIENCE = 19  # the most there is
LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)

NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS, NEW_MOUNTS = 0x08000000, 0x04000000, 0x00020000
NOSUID, NODEV, NOEXEC, READ_ONLY, BIND, RECURSIVE, PRIVATE = 0x2, 0x4, 0x8, 0x1, 0x1000, 0x4000, 0x40000
DETACH = 2  # for umount2: what still has files open there keeps them
# For prctl. END_WITH_PARENT takes the signal; a change of user takes this back. DUMPABLE: whether other
# processes of the same user may look into this one's memory and trace it. ADOPT_ORPHANS: become the parent of every
# descendant whose own parent ends. NO_NEW_PRIVILEGES: no program that it runs gains a privilege, whoever owns it.
END_WITH_PARENT, DUMPABLE, NAME, ADOPT_ORPHANS, NO_NEW_PRIVILEGES = 1, 4, 15, 36, 38


def call(name: str, *args: int | str | bytes | None, failing: str = "") -> int:
    """Call a function of libc; returns its result. Raises OSError that names `failing`, else the function."""
    encoded = [ctypes.c_long(a) if isinstance(a, int) else os.fsencode(a) if isinstance(a, str) else a for a in args]
    result: int = getattr(_libc, name)(*encoded)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), failing or name)
    return result


def prctl(option: int, value: int | str = 1) -> None:
    """Set an option of this process; elsewhere than on Linux there is none."""
    if LINUX:
        call("prctl", option, value, 0, 0, 0)


def set_name(name: str) -> None:
    """Give this process the name that `top` and `ps -e` list; Linux keeps 15 characters of it."""
    prctl(NAME, name)


def end_with_parent(parent: int) -> None:
    """Have this process end when its parent, the process with this id, ends; end it now if that has happened already.

    In a process namespace of its own it sees no parent, and cannot tell.
    """
    prctl(END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() not in (parent, 0):
        os._exit(1)


def give_way() -> None:
    """Let this process and what it starts have a processor only where nobody else wants one."""
    os.nice(PATIENCE)
    with contextlib.suppress(OSError):  # where Linux shares its processors out among sessions, a session's share counts
        Path("/proc/self/autogroup").write_text(str(PATIENCE))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount `source`, a file system of this kind or, with BIND, a path, on `target`."""
    call("mount", source, target, kind, flags, options, failing=f"mount of {source} on {target}")


def mount_attributes(target: str, *, on: int = 0, off: int = 0, recursive: bool = False) -> None:
    """Turn attributes (READ_ONLY, NOSUID) of a mount, or of all below it too, on and off. Linux 5.12 or newer."""
    attributes = struct.pack("QQQQ", on, off, 0, 0)
    flags, here, number = 0x8000 if recursive else 0, -100, 442  # AT_RECURSIVE, AT_FDCWD
    call("syscall", number, here, target, flags, attributes, len(attributes), failing="mount_setattr")


def loopback_up() -> None:
    """Switch on the network of this process with itself, which a new network namespace begins without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def drop_capabilities() -> None:
    """Give up every privilege of root's that this process holds."""
    call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))


def fork(namespaces: str, child: Callable[[], None]) -> int:
    """Fork a process that calls `child` and ends; returns its process id. Raises OSError for what is refused.

    `namespaces` states who makes a process namespace for it: "root", "user" for one without privileges, "" for nobody.
    """
    return {"": _fork, "root": _fork_as_root, "user": _fork_as_user}[namespaces](child)


def _fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(0)
    return pid


def _fork_as_root(child: Callable[[], None]) -> int:
    """This process stays where it is: after `unshare` only its children begin elsewhere, and that is taken back."""
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        call("setns", ours, NEW_PID)  # may it, later?
        call("unshare", NEW_PID)
        try:
            return _fork(child)
        finally:
            call("setns", ours, NEW_PID)
    finally:
        os.close(ours)


def _fork_as_user(child: Callable[[], None]) -> int:
    """The right to make a process namespace comes with a new user namespace, from which there is no way back.

    So one process stands between, which is gone when this returns.
    """
    told, tell = os.pipe()
    wait, go = os.pipe()

    def between() -> None:
        """Make the namespaces, fork into them, tell the number or what was refused, and end."""
        os.close(told)
        os.close(go)
        try:
            prctl(DUMPABLE, 1)  # else the two maps are root's
            user, group = os.geteuid(), os.getegid()
            call("unshare", NEW_USER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
            call("unshare", NEW_PID)
            pid = os.fork()
        except OSError as problem:
            os.write(tell, f"{problem.errno} {problem.filename or 'fork'}".encode())
            return
        if pid:
            os.write(tell, str(pid).encode())
            return
        os.close(tell)
        # Only once the process between is gone is the zygote this one's parent, with which it has to end.
        going = os.read(wait, 1)
        os.close(wait)
        if going:
            child()

    pid = _fork(between)
    os.close(tell)
    os.close(wait)
    with contextlib.suppress(ChildProcessError):  # nothing to wait for where the kernel reaps children
        os.waitpid(pid, 0)
    with open(told) as said, open(go, "w") as going:
        number, _, refused = said.read().partition(" ")
        if refused or not number:
            raise OSError(int(number or 0), os.strerror(int(number or 0)), refused or "fork")
        going.write("!")
    return int(number)
