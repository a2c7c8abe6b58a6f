"""Restrictions that a process puts on itself and its children for ever: resource limits, Landlock and seccomp."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Any

import psutil

from grader.sandbox import confine_kernel as kernel
from grader.sandbox.confine_kernel import call

_CORES = os.cpu_count() or 1
_MIB, _GIB = 1 << 20, 1 << 30

# What JAX needs grows with the cores: XLA starts some threads for each, and each thread reserves addresses.
# With threads. On two cores, a worker that has used Orbax has about 75, and each of its connected processes about 35.
PROCESSES = 256 + 8 * _CORES
ADDRESSES = 8 * _GIB + 256 * _MIB * _CORES
DATA = 3 * _GIB + 16 * _MIB * _CORES
FILE = 64 * _MIB
SCRATCH = 256 * _MIB
OPEN_FILES = 256
CPU_S = 3600  # each question has its own; this ends what nobody waits for any more
ACCELERATED_MEMORY = 16 * _GIB  # the same beside an accelerator: its libraries alone take some
OOM_SCORE = 700  # of 1000: whom the kernel ends first when memory runs out. The rest depends on what a submission uses
# What one TCP socket may hold in each direction. The kernel's own limit may be 32 MiB, and counts for no process.
TCP_BUFFER = 256 << 10
MEMORY = 4 * _GIB  # of a process and all that it started; watched from outside, where the others are the kernel's


def own_processes() -> int:
    """Processes and threads that run as this user now."""
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                count += process.num_threads()
    return count


def limit_resources(others: int, accelerated: bool = False) -> None:
    """Limit what this process and its children use. `others`: processes that count for the same user, other workers
    too, so there is room for them.

    A driver of accelerators reserves addresses for all memory that there is, and opens a file for each thing that it
    does: with one, addresses are not limited, and private memory and files are limited further up.
    """
    wanted = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: CPU_S, resource.RLIMIT_FSIZE: FILE}
    wanted |= {resource.RLIMIT_NOFILE: OPEN_FILES * (8 if accelerated else 1)}
    if sys.platform == "linux":  # macOS counts the whole shared cache as addresses, and has no limit of data
        wanted |= {resource.RLIMIT_DATA: DATA + (ACCELERATED_MEMORY if accelerated else 0)}
        wanted |= {} if accelerated else {resource.RLIMIT_AS: ADDRESSES}
        wanted |= {resource.RLIMIT_NPROC: others + 32 * PROCESSES if others else PROCESSES}
    for name, limit in wanted.items():
        hard = resource.getrlimit(name)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(name, (limit, limit))


def limit_buffers() -> None:
    """Limit what each TCP socket of this process's own network holds. Raises OSError where that is refused."""
    for name in ("tcp_rmem", "tcp_wmem"):
        with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
            file.write(f"4096 {TCP_BUFFER // 4} {TCP_BUFFER}")


# Landlock: of all files, only those listed can be opened; of all sockets and signals, only the process's own.

_CREATE, _ADD, _RESTRICT = 444, 445, 446
# Before this ABI (Linux 6.2) a file that may only be read can still be cut short.
LANDLOCK_ENOUGH = 3
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL


def landlock_abi() -> int:
    """The version of this kernel's Landlock; 0 where it has none, or has it switched off."""
    try:
        return call("syscall", _CREATE, None, 0, 1, failing="landlock")
    except OSError:
        return 0


def restrict_files(oldest: int, readable: Iterable[str], writable: Iterable[str], network: bool = False) -> None:
    """Allow to read and run what lies under `readable`, and everything under `writable`, by Landlock.

    Paths that are not there are passed over. `network` leaves sockets alone. For the calling thread and what it starts.
    Needs `no_new_privileges`. Raises OSError where the kernel has no Landlock, or one before the ABI `oldest`.
    """
    version = landlock_abi()
    if version < oldest:
        text = f"this kernel's is version {version}, {oldest} is needed" if version else "not in this kernel"
        raise OSError(errno.EOPNOTSUPP, text, "landlock")
    everything = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    ports, scopes = (3 if version >= 4 and not network else 0), (3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("QQQ", everything, ports, scopes)
    rules = call("syscall", _CREATE, attributes, size, 0, failing="landlock")
    for paths, rights in ((readable, _EXECUTE | _READ | _LIST), (writable, everything)):
        for path in paths:
            try:
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = rights & everything if os.path.isdir(path) else rights & everything & _OF_A_FILE
            call("syscall", _ADD, rules, 1, struct.pack("=Qi", allowed, handle), 0, failing="landlock rule")
            os.close(handle)
    call("syscall", _RESTRICT, rules, 0, failing="landlock")
    os.close(rules)


# Seccomp: calls of the kernel that no exercise needs and an attack might.

# Looking into other processes, new namespaces and mounts, doors of the kernel that had holes, memory that no limit
# counts (memfd, System V), and a session of its own: processors are shared out among sessions. Refused with EPERM.
REFUSED = """
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp get_robust_list
    mount umount2 pivot_root chroot setns unshare open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
    open_tree_attr init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff
    acct quotactl quotactl_fd open_by_handle_at name_to_handle_at personality syslog
    settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname vhangup
    mknod mknodat fanotify_init lookup_dcookie
    bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register
    shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
    move_pages migrate_pages modify_ldt setsid
""".split()
# Where processes of others can be seen: what acts on them beyond signals, and what leaves the group that is ended as a
# whole. Landlock does not cover these, nor sockets with a name.
REFUSED_AMONG_OTHERS = """
    setpgid setpriority ioprio_set sched_setscheduler sched_setparam sched_setattr
    pidfd_send_signal tkill rt_sigqueueinfo rt_tgsigqueueinfo
    socket connect bind listen accept accept4 setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
    setxattrat removexattrat file_setattr
""".split()
# Landlock does not cover these either. They do nothing and say that they did: tools call them on files of their own.
WITHOUT_EFFECT_AMONG_OTHERS = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat
""".split()
# Numbers of calls that older releases of libseccomp have no name for; they are the same on every architecture.
NUMBERS = {"process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447}
NUMBERS |= {"process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466}
NUMBERS |= {"open_tree_attr": 467, "file_setattr": 469}
_NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_SIBLING = 0x8000  # a child of the zygote's, not of the one that makes it
_WHOM_TO_SIGNAL = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}  # when a file is ready: any process, any signal
_LOW_HALF = 0xFFFFFFFF
_NEEDED = {1, 2, 10, 16}  # kinds of sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_BEYOND = 17
_OTHER_KINDS = (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_RDM, socket.SOCK_SEQPACKET, 6, 10)
_BARRIERS_FOR_ALL = (1, 2)  # MEMBARRIER_CMD_GLOBAL and ..._EXPEDITED
_AF_NETLINK, _SO_ZEROCOPY, _TCP_ULP = 16, 60, 31
NO_SECCOMP = (ImportError, RuntimeError, OSError)  # what its import raises where the library is not there


def refuse_calls(
    among_others: bool, signals_are_scoped: bool, accelerated: bool = False, loopback: bool = False
) -> None:
    """Refuse kernel calls from here on, in this thread and what it starts. Needs `no_new_privileges`.

    `among_others`: the process has no process namespace of its own. `signals_are_scoped`: Landlock sees to it that it
    reaches only itself and its children; else it may signal itself alone. `accelerated`: a driver needs files in
    memory, and sockets where the network is this process's own. `loopback`: it may use TCP in its own network.
    Raises OSError where libseccomp is not there.
    """
    try:
        import pyseccomp as sc
    except NO_SECCOMP:
        raise FileNotFoundError(errno.ENOENT, "not installed", "libseccomp") from None

    rules, refuse = sc.SyscallFilter(sc.ALLOW), sc.ERRNO(errno.EPERM)

    def rule(name: str, action: int = refuse, *conditions: Any) -> None:
        number = NUMBERS.get(name) or sc.resolve_syscall(sc.Arch.NATIVE, name)
        rules.add_rule(action, number, *conditions)

    for name in (*REFUSED, *(REFUSED_AMONG_OTHERS if among_others else ())):
        rule(name)
    # glibc falls back to `clone`, whose flags a filter can see; and to files where there is no memfd. A page in a pipe
    # keeps the whole huge page that it was a part of, when no process has that any more.
    for name in ("clone3", "memfd_secret", "vmsplice", *(() if accelerated else ("memfd_create",))):
        rule(name, sc.ERRNO(errno.ENOSYS))
    # They keep the whole machine waiting: for its disks, and for each processor.
    for name in ("sync", "syncfs"):
        rule(name, sc.ERRNO(0))
    for command in _BARRIERS_FOR_ALL:
        rule("membarrier", sc.ERRNO(errno.EINVAL), sc.Arg(0, sc.EQ, command))
    if not accelerated:  # what a socket holds is in no process's memory: it does nothing, and says that it did
        for option in (socket.SO_SNDBUF, *((socket.SO_RCVBUF,) if loopback else ())):
            rule("setsockopt", sc.ERRNO(0), *_option(sc, socket.SOL_SOCKET, option))
    for flag in (*_NEW_NAMESPACES, _SIBLING):
        rule("clone", refuse, sc.Arg(0, sc.MASKED_EQ, flag, flag))
    for option in (kernel.END_WITH_PARENT, kernel.ADOPT_ORPHANS):
        rule("prctl", refuse, sc.Arg(0, sc.MASKED_EQ, _LOW_HALF, option))
    if not among_others and accelerated:
        for family in set(range(_BEYOND)) - _NEEDED:
            rule("socket", refuse, sc.Arg(0, sc.EQ, family))
        rule("socket", refuse, sc.Arg(0, sc.GE, _BEYOND))
    elif not among_others and loopback:
        for family in set(range(_BEYOND)) - {socket.AF_UNIX, socket.AF_INET, _AF_NETLINK}:
            rule("socket", refuse, sc.Arg(0, sc.EQ, family))
        rule("socket", refuse, sc.Arg(0, sc.GE, _BEYOND))
        inet = sc.Arg(0, sc.EQ, socket.AF_INET)
        for kind in _OTHER_KINDS:  # only TCP
            rule("socket", refuse, inet, sc.Arg(1, sc.MASKED_EQ, 0xF, kind))
        for protocol in range(1, socket.IPPROTO_TCP):
            rule("socket", refuse, inet, sc.Arg(2, sc.EQ, protocol))
        rule("socket", refuse, inet, sc.Arg(2, sc.GT, socket.IPPROTO_TCP))
        # Gloo lists the interfaces (getifaddrs). Without capabilities this protocol, number 0, changes nothing.
        rule("socket", refuse, sc.Arg(0, sc.EQ, _AF_NETLINK), sc.Arg(2, sc.NE, 0))
        # Pages that a socket borrows, and protocols on top of TCP.
        rule("setsockopt", refuse, *_option(sc, socket.SOL_SOCKET, _SO_ZEROCOPY))
        rule("setsockopt", refuse, *_option(sc, socket.IPPROTO_TCP, _TCP_ULP))
    elif not among_others:
        rule("socket", refuse, sc.Arg(0, sc.NE, socket.AF_UNIX))
    else:
        for name in WITHOUT_EFFECT_AMONG_OTHERS:
            rule(name, sc.ERRNO(0))
        # A datagram socket can be sent to by name; a connected pair of streams cannot. Raw is another word for it.
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
            rule("socketpair", refuse, sc.Arg(1, sc.MASKED_EQ, 0xF, kind))
        for name in ("prlimit64", "sched_setaffinity"):
            rule(name, refuse, sc.Arg(0, sc.NE, 0))
        if not signals_are_scoped:
            for name in ("kill", "tgkill"):
                rule(name, refuse, sc.Arg(0, sc.NE, os.getpid()))
            for name, commands in _WHOM_TO_SIGNAL.items():
                for command in commands:
                    rule(name, refuse, sc.Arg(1, sc.MASKED_EQ, _LOW_HALF, command))
    rules.load()


def _option(sc: Any, level: int, name: int) -> list[Any]:
    """Conditions on an option of `setsockopt`. The kernel takes the low half of both numbers."""
    return [sc.Arg(place, sc.MASKED_EQ, _LOW_HALF, number) for place, number in ((1, level), (2, name))]
