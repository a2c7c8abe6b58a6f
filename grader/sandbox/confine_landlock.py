"""Landlock: of all files, only those listed can be opened; of all sockets and signals, only one's own."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from grader.sandbox.confine_kernel import syscall

_CREATE, _ADD, _RESTRICT = 444, 445, 446
# Before this ABI (Linux 6.2) a file that may only be read can still be cut short.
ENOUGH = 3
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL


def abi() -> int:
    """The version that this kernel speaks; 0 where it has no Landlock, or has it switched off."""
    try:
        return syscall("landlock", _CREATE, None, ctypes.c_size_t(0), 1)
    except OSError:
        return 0


def restrict(oldest: int, readable: Iterable[str], writable: Iterable[str], network: bool = False) -> None:
    """Allow to read and run what lies under `readable`, everything under `writable`; paths that are not there are
    passed over. `network` leaves sockets alone. For the calling thread and what it starts, for ever. Needs
    `no_new_privileges`. Raises OSError where the kernel has no Landlock, or one before the ABI `oldest`."""
    version = abi()
    if version < oldest:
        text = f"this kernel's is version {version}, {oldest} is needed" if version else "not in this kernel"
        raise OSError(errno.EOPNOTSUPP, text, "landlock")
    everything = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    ports, scopes = (3 if version >= 4 and not network else 0), (3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", everything, ports, scopes)
    rules = syscall("landlock", _CREATE, attributes, ctypes.c_size_t(size), 0)
    for paths, rights in ((readable, _EXECUTE | _READ | _LIST), (writable, everything)):
        for path in paths:
            try:
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights & everything if os.path.isdir(path) else rights & everything & _OF_A_FILE
            syscall("landlock rule", _ADD, rules, 1, struct.pack("=Qi", allowed, handle), 0)
            os.close(handle)
    syscall("landlock", _RESTRICT, rules, 0)
    os.close(rules)
