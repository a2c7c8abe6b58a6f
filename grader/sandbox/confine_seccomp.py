"""Seccomp: the calls of the kernel that no exercise needs and an attack might are refused."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

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
NUMBERS = {
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
_NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_SIBLING = 0x8000  # a child of the zygote's, not of the one that makes it
_END_WITH_PARENT, _SUBREAPER = 1, 36
_WHOM_TO_SIGNAL = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}  # when a file is ready: any process, any signal
_LOW_HALF = 0xFFFFFFFF
_NEEDED = {1, 2, 10, 16}  # kinds of sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_BEYOND = 17


def available() -> bool:
    """Whether libseccomp is there."""
    try:
        import pyseccomp  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        return False
    return True


def load(among_others: bool, signals_are_scoped: bool, accelerated: bool = False) -> None:
    """Refuse from here on, for ever, in this thread and what it starts. Needs `no_new_privileges`.

    `among_others`: the process has no process namespace of its own. `signals_are_scoped`: Landlock sees to it that it
    reaches only itself and its children; else it may signal itself alone. `accelerated`: a driver needs files in
    memory, and sockets where the network is this process's own. Raises OSError where libseccomp is not there.
    """
    if not available():
        raise FileNotFoundError(errno.ENOENT, "not installed", "libseccomp")
    import pyseccomp as sc

    rules, refuse = sc.SyscallFilter(sc.ALLOW), sc.ERRNO(errno.EPERM)

    def call(name: str, action: int = refuse, *conditions: Any) -> None:
        number = NUMBERS.get(name) or sc.resolve_syscall(sc.Arch.NATIVE, name)
        rules.add_rule(action, number, *conditions)

    for name in REFUSED:
        call(name)
    # glibc falls back to `clone`, whose flags a filter can see; and to files where there is no memfd.
    for name in ("clone3", "memfd_secret", *(() if accelerated else ("memfd_create",))):
        call(name, sc.ERRNO(errno.ENOSYS))
    for flag in (*_NEW_NAMESPACES, _SIBLING):
        call("clone", refuse, sc.Arg(0, sc.MASKED_EQ, flag, flag))
    call("prctl", refuse, sc.Arg(0, sc.MASKED_EQ, _LOW_HALF, _END_WITH_PARENT))
    call("prctl", refuse, sc.Arg(0, sc.MASKED_EQ, _LOW_HALF, _SUBREAPER))
    if not among_others and accelerated:
        for family in set(range(_BEYOND)) - _NEEDED:
            call("socket", refuse, sc.Arg(0, sc.EQ, family))
        call("socket", refuse, sc.Arg(0, sc.GE, _BEYOND))
    elif not among_others:
        call("socket", refuse, sc.Arg(0, sc.NE, socket.AF_UNIX))
    else:
        _among_others(call, sc, refuse, signals_are_scoped)
    rules.load()


def _among_others(call: Any, sc: Any, refuse: int, signals_are_scoped: bool) -> None:
    for name in REFUSED_AMONG_OTHERS:
        call(name)
    for name in WITHOUT_EFFECT_AMONG_OTHERS:
        call(name, sc.ERRNO(0))
    # A datagram socket can be sent to by name; a connected pair of streams cannot. Raw is another word for it.
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        call("socketpair", refuse, sc.Arg(1, sc.MASKED_EQ, 0xF, kind))
    for name in ("prlimit64", "sched_setaffinity"):
        call(name, refuse, sc.Arg(0, sc.NE, 0))
    if not signals_are_scoped:
        for name in ("kill", "tgkill"):
            call(name, refuse, sc.Arg(0, sc.NE, os.getpid()))
        for name, commands in _WHOM_TO_SIGNAL.items():
            for command in commands:
                call(name, refuse, sc.Arg(1, sc.MASKED_EQ, _LOW_HALF, command))
