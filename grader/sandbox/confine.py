"""Ladder of confinement: the best rung that this machine gives, how a process enters it, and what files it sees."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import site
import socket
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader.core.layout import LEARNER_ALIASES, LEARNER_PACKAGES, PACKAGE
from grader.sandbox import confine_kernel as kernel
from grader.sandbox import confine_restrictions as restrictions
from grader.sandbox.accelerators import CPU, Platform
from grader.sandbox.confine_restrictions import SCRATCH

# From the best to the least; `docs/confinement.md` says what each keeps out.
LEVELS = ("full", "namespaces", "landlock", "limits")
TRIAL_S = 60.0
_NAMESPACES = kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_MOUNTS  # that of processes: `kernel.fork`
# A user of its own for each process, as root can give it: numbers that no system hands out (first, how many), or where
# a container has fewer, ones that it hardly does.
_USERS = (range(1_900_000_000, 1_904_194_304), range(40_000, 60_000))
# Compilers are among it: a setup may build a library. Of /etc, only what running a program takes.
SYSTEM = """
    /usr /bin /sbin /lib /lib32 /lib64 /libx32 /nix/store /etc/alternatives /etc/ld.so.cache /etc/localtime
    /sys/devices/system/cpu /sys/devices/system/node
""".split()
# Where nbgrader keeps what others have handed in, unless it is told otherwise.
HIDDEN = "/usr/local/share/nbgrader"
# Of an interpreter's or an environment's folder; what else lies there may be a course.
OF_A_PREFIX = ("bin", "include", "lib", "lib64", "libexec", "share", "pyvenv.cfg", "*-linux-gnu")
# Of this package, what runs confined. Only a checkout needs the list: where the package is installed, its texts are no
# secret either.
OF_OURS = (*LEARNER_ALIASES, *LEARNER_PACKAGES, "sandbox")
DEVICES = ("null", "zero", "full", "random", "urandom")
PROCESSORS = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm")  # what XLA and glibc read of /proc
HOME = "/tmp"
_OLD = "/.old"


@dataclass(frozen=True)
class Confinement:
    """A rung of the ladder, and why the levels above it were refused."""

    level: str  # one of LEVELS
    namespaces: str  # "" for none, "root" where root makes them, "user" within a user namespace
    users: range | None  # numbers that processes get users of their own from; None where they stay who they are
    refused: dict[str, str]  # the reason for each level above
    same_user: str  # why a process on it is the same user as we are, "" where it is not, or that matters little
    visible: tuple[str, ...]  # paths that it sees
    others: int  # processes that count for its user
    accelerator: Platform  # files of one that it is let to
    loopback: bool = False  # whether a worker gets a network of its own, which ends at itself


def _rungs(at_most: str) -> Iterator[tuple[str, str, range | None]]:
    """Level, namespaces and users of all ways that are worth a try here, the best first."""
    users = (*_USERS, None) if kernel.LINUX and os.geteuid() == 0 else (None,)
    for level in LEVELS[LEVELS.index(at_most) :] if kernel.LINUX else LEVELS[-1:]:
        for numbers in users:
            namespaces = "user" if numbers is None else "root"
            yield level, namespaces if level in ("full", "namespaces") else "", numbers


def settle(
    at_most: str, trial: Callable[[], None], scratch: Path, accelerator: Platform = CPU, hidden: Iterable[str] = (),
    meanwhile: Callable[[], object] = lambda: None,
) -> Confinement | None:  # fmt: skip
    """Try each rung in a process of its own, and take the first on which `trial` runs to its end, if there is one.

    On none of them a process sees the folders in `hidden`, wherever they lie. `meanwhile` is called while each trial
    runs.
    """
    refused = dict.fromkeys(LEVELS[: LEVELS.index(at_most)], "not tried, because of a setting")
    if not kernel.LINUX:
        refused = dict.fromkeys(LEVELS[:-1], "it requires Linux")
    visible = _visible(accelerator, hidden)
    with contextlib.suppress(*restrictions.NO_SECCOMP):
        import pyseccomp  # noqa: F401  # once, before the forks
    for level, namespaces, users in _rungs(at_most):
        of_its_own = bool(users or namespaces)
        others = 0 if of_its_own else restrictions.own_processes()
        confinement = Confinement(level, namespaces, users, refused, "", visible, others, accelerator)
        reason: str | None = None
        # Where the kernel lets nobody limit what a network of its own holds, there is none.
        for loopback in (True, False) if namespaces and not accelerator.files else (False,):
            confinement = replace(confinement, loopback=loopback)
            reason = _try(confinement, trial, scratch, meanwhile)
            if reason is None:
                why = refused.pop(level, "only root can change that")
                return replace(confinement, same_user="" if of_its_own else why)
        refused[level] = reason or ""
    return None


def _try(
    confinement: Confinement, trial: Callable[[], None], scratch: Path, meanwhile: Callable[[], object]
) -> str | None:
    """Why `trial` does not run confined like this, or None when it does."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    read, write = os.pipe()

    def child() -> None:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 2)  # XLA says a lot when it ends
        try:
            enter(confinement, folder, network=True)
            for path in confinement.visible:
                os.stat(path)  # another user may not get to an interpreter that lies in somebody's home
            trial()
            text = "ok"
        except OSError as problem:
            text = f"{problem.filename or 'trial'}: {problem.strerror or problem}"
        except BaseException as problem:
            text = "".join(traceback.format_exception_only(problem)).strip()
        os.write(write, text.encode())
        signal.pause()

    try:
        pid = kernel.fork(confinement.namespaces, child)
    except OSError as problem:
        os.close(read)
        return f"{problem.filename}: {problem.strerror}"
    finally:
        os.close(write)
    try:
        meanwhile()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    said = os.read(read, 4096).decode() if select.select([read], [], [], TRIAL_S)[0] else "the trial does not end"
    os.close(read)
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return "a confined process cannot be ended"
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return None if said == "ok" else said or "the trial ended without a message"


def enter(
    confinement: Confinement,
    folder: Path,
    readable: Sequence[str] = (),
    writable: Sequence[str] = (),
    network: bool = False,
) -> None:
    """Confine this process for ever and go to its scratch folder: `folder` where it gets no root of its own.

    The process is single-threaded and just forked by `kernel.fork`. `readable` and `writable` are further folders that
    it sees; a process that writes to one of ours stays the user that it is. With `network`, it and what it starts can
    use TCP among themselves, where the confinement has `loopback`. Raises OSError for what is refused.
    """
    parent = os.getppid()
    network = network and confinement.loopback
    level, users, driver = confinement.level, confinement.users, confinement.accelerator.files
    with contextlib.suppress(OSError):  # when memory runs out, the kernel ends such a process before any other
        Path("/proc/self/oom_score_adj").write_text(str(restrictions.OOM_SCORE))
    user = None
    if users and not writable:
        # Outside, this process has another number than in a namespace of its own.
        user = users[int(os.readlink("/proc/self")) % len(users)]
    if confinement.namespaces:
        kernel.call("unshare", _NAMESPACES)
        socket.sethostname("sandbox")
        if driver:
            kernel.loopback_up()  # devices that compute together find each other over it, within one process too
        shown = (*confinement.visible, *readable)
        if network:
            kernel.loopback_up()
        _make_root(shown, writable, os.geteuid() if user is None else user, driver, network)
    else:
        os.chdir(folder)
        if user is not None:
            os.chown(folder, user, user)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if kernel.LINUX:
        kernel.drop_capabilities()
    kernel.end_with_parent(parent)  # once more, as a change of user took it back
    kernel.prctl(kernel.DUMPABLE, 0)
    kernel.prctl(kernel.NO_NEW_PRIVILEGES)
    restrictions.limit_resources(confinement.others, accelerated=bool(driver))
    landlock = level in ("full", "landlock")
    if landlock:
        devices = [*(f"/dev/{name}" for name in DEVICES), *driver]
        if driver:
            writable = [*writable, "/proc/self"]  # it names its threads there, and gives up where it cannot
        if confinement.namespaces:  # its network is its own
            restrictions.restrict_files(1, ["/"], [HOME, *writable, *devices], network=bool(driver) or network)
        else:
            seen = [*confinement.visible, *readable, "/proc/self", *PROCESSORS, *devices]
            own = [str(folder), "/dev/null", *writable, *driver]
            restrictions.restrict_files(restrictions.LANDLOCK_ENOUGH, seen, own)
    if level != "limits":
        if not confinement.namespaces:
            kernel.prctl(kernel.ADOPT_ORPHANS)
        scoped = landlock and restrictions.landlock_abi() >= 6
        restrictions.refuse_calls(not confinement.namespaces, scoped, bool(driver), network)


def _visible(accelerator: Platform, hidden: Iterable[str] = ()) -> tuple[str, ...]:
    """System, interpreter, packages, and what a driver reads: paths to show read-only, none below another. Of a folder
    in `hidden`, such as a course in /usr/src, only an interpreter and packages in it are among them."""
    paths = {Path(name) for name in SYSTEM}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        paths |= {path for name in OF_A_PREFIX for path in Path(prefix).glob(name)}
    packages = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    packages |= {site.getusersitepackages()} & set(sys.path)
    paths |= {Path(name) for name in packages}
    paths |= {PACKAGE / name for name in OF_OURS}
    names = [str(path) for path in paths]
    shown = [*_outermost(names)]
    hidden = [place for place in hidden if place not in shown]  # a notebook may lie in /usr itself
    within = tuple(f"{place}/" for place in hidden)
    for place in (HIDDEN, *hidden):
        shown = [part for path in shown for part in without(path, place)]
    shown += [path for path in names if f"{path}/".startswith(within)]
    return _outermost((*shown, *accelerator.shown))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are there and lie below no other."""
    there = sorted({os.path.normpath(path) for path in paths if os.path.lexists(path)})
    return tuple(path for path in there if not any(path.startswith(f"{other}/") for other in there))


def without(path: str, hidden: str) -> list[str]:
    """`path`, or where `hidden` is there and lies below it, all that lies beside that."""
    if path == hidden:
        return []
    if not hidden.startswith(f"{path}/") or not os.path.lexists(hidden):
        return [path]
    return [part for name in sorted(os.listdir(path)) for part in without(f"{path}/{name}", hidden)]


def _make_root(
    readable: Sequence[str], writable: Sequence[str], user: int, devices: Sequence[str] = (), network: bool = False
) -> None:
    """Exchange this process's root for one with these paths, a home in memory and its own processes; go to that home.

    Needs new namespaces of mounts and processes, and the right to mount. `devices` are device files besides those that
    every process has; their driver writes to /proc, too. With `network`, the buffers of the network are limited.
    """
    os.umask(0o022)
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    stage = "/usr"  # any folder that is there: it is hidden until the root is exchanged, and no longer
    kernel.mount("tmpfs", stage, "tmpfs", kernel.NOSUID, "size=1m,mode=755")
    os.mkdir(stage + _OLD)
    kernel.call("pivot_root", stage, stage + _OLD)
    os.chdir("/")
    os.mkdir(HOME)
    kernel.mount("tmpfs", HOME, "tmpfs", kernel.NOSUID | kernel.NODEV, f"size={SCRATCH},nr_inodes=20k,mode=1777")
    for path in (*readable, *writable):
        _show(path)
    os.makedirs("/etc", exist_ok=True)
    Path("/etc/passwd").write_text(f"learner:x:{user}:{user}::{HOME}:/bin/sh\n")
    Path("/etc/group").write_text(f"learner:x:{user}:\n")
    Path("/etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    Path("/etc/hosts").write_text("127.0.0.1 localhost sandbox\n")
    os.mkdir("/dev")
    for path in (*(f"/dev/{name}" for name in DEVICES), *devices):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "x").close()
        kernel.mount(_OLD + path, path, None, kernel.BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/dev/{name}")
    os.symlink(HOME, "/dev/shm")
    os.mkdir("/proc")
    # Within a user namespace this takes another that is in sight: the old root's.
    kernel.mount("proc", "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    if network:
        restrictions.limit_buffers()
    kernel.call("umount2", _OLD, kernel.DETACH)
    os.rmdir(_OLD)
    kernel.mount_attributes("/", on=kernel.READ_ONLY | kernel.NOSUID, recursive=True)
    for path in (HOME, *writable, *(["/proc"] if devices else [])):
        kernel.mount_attributes(path, off=kernel.READ_ONLY)
    os.chdir(HOME)


def _show(path: str) -> None:
    """Show a path of the old root at the same place. A link on the way stays a link, and what it leads to is shown."""
    place = ""
    for part in path.strip("/").split("/"):
        place = f"{place}/{part}"
        old = _OLD + place
        if os.path.islink(old):
            if not os.path.lexists(place):
                os.symlink(os.readlink(old), place)
            target = os.path.join(os.path.dirname(place), os.readlink(old))
            _show(os.path.normpath(target) + path[len(place) :])
            return
        if place != path and not os.path.isdir(place):
            os.mkdir(place)
    old = _OLD + path
    if not os.path.lexists(old) or (os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(old))):
        return  # it is shown already, as part of something larger
    if os.path.isdir(old):
        os.makedirs(path, exist_ok=True)
    else:
        open(path, "x").close()
    kernel.mount(old, path, None, kernel.BIND | kernel.RECURSIVE)
