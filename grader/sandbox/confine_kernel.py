"""The calls of Linux that Python has no name for; each raises OSError that names the call."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

PATIENCE = 19  # the most there is
LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)

NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS, NEW_MOUNTS = 0x08000000, 0x04000000, 0x00020000

NOSUID, NODEV, NOEXEC, READ_ONLY, BIND, RECURSIVE, PRIVATE = 0x2, 0x4, 0x8, 0x1, 0x1000, 0x4000, 0x40000

_END_WITH_PARENT, _DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38
_SET_FLAGS, _UP = 0x8914, 0x1  # of a network interface
_CAPABILITIES_V3, _SET_MOUNT_ATTRIBUTES = 0x20080522, 442


def _checked(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def syscall(name: str, number: int, *args: object) -> int:
    """A system call that libc has no function for."""
    return _checked(name, _libc.syscall(ctypes.c_long(number), *args))


def give_way() -> None:
    """Let this process and what it starts have a processor only where nobody else wants one."""
    os.nice(PATIENCE)
    with contextlib.suppress(OSError):  # where Linux shares its processors out among sessions, a session's share counts
        Path("/proc/self/autogroup").write_text(str(PATIENCE))


def unshare(namespaces: int) -> None:
    """Leave these namespaces for new ones; a new process namespace begins with the next child."""
    _checked("unshare", _libc.unshare(namespaces))


def return_to(namespace: int, kind: int) -> None:
    """Have children begin in the namespace of this kind that the open file `namespace` stands for."""
    _checked("setns", _libc.setns(namespace, kind))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount `source`, a file system of this kind or, with BIND, a path, on `target`."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    result = _libc.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options))
    _checked(f"mount of {source} on {target}", result)


def unmount(target: str) -> None:
    """Take a mount and all below it away; what still has files open there keeps them."""
    _checked("umount", _libc.umount2(os.fsencode(target), 2))


def pivot_root(new: str, old: str) -> None:
    """Make `new`, a mount, the root, and move the root of before to `old` below it."""
    _checked("pivot_root", _libc.pivot_root(os.fsencode(new), os.fsencode(old)))


def loopback_up() -> None:
    """Switch on the network of this process with itself, which a new network namespace begins without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def mount_attributes(target: str, *, on: int = 0, off: int = 0, recursive: bool = False) -> None:
    """Turn attributes (READ_ONLY, NOSUID) of a mount, or of all below it too, on and off. Linux 5.12 or newer."""
    attributes = struct.pack("QQQQ", on, off, 0, 0)
    flags = 0x8000 if recursive else 0
    here = ctypes.c_int(-100)  # AT_FDCWD
    size = ctypes.c_size_t(len(attributes))
    syscall("mount_setattr", _SET_MOUNT_ATTRIBUTES, here, os.fsencode(target), flags, attributes, size)


def _prctl(name: str, option: int, value: int) -> None:
    _checked(name, _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def end_with_parent() -> None:
    """Have this process killed when its parent ends. A change of user takes this back."""
    _prctl("end with parent", _END_WITH_PARENT, 9)


def dumpable(yes: bool) -> None:
    """Whether other processes of the same user may look into this one's memory and trace it."""
    _prctl("dumpable", _DUMPABLE, int(yes))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl("adopt orphans", _SUBREAPER, 1)


def no_new_privileges() -> None:
    """No program that this process runs gains a privilege, whoever owns it."""
    _prctl("no_new_privs", _NO_NEW_PRIVILEGES, 1)


def drop_capabilities() -> None:
    """Give up every privilege of root's that this process holds."""
    header, none = struct.pack("Ii", _CAPABILITIES_V3, 0), struct.pack("6I", *[0] * 6)
    _checked("capset", _libc.capset(header, none))
