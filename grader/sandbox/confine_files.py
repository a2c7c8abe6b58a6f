"""Files that a confined process sees, and the root file system that is made of them."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from grader.core.layout import LEARNER_ALIASES, LEARNER_PACKAGES, PACKAGE
from grader.sandbox import confine_kernel as kernel
from grader.sandbox.confine_restrictions import SCRATCH

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


def visible() -> tuple[str, ...]:
    """System, interpreter and packages: paths to show read-only, none below another."""
    paths = {Path(name) for name in SYSTEM}
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        paths |= {path for name in OF_A_PREFIX for path in Path(prefix).glob(name)}
    packages = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    packages |= {site.getusersitepackages()} & set(sys.path)
    paths |= {Path(name) for name in packages}
    paths |= {PACKAGE / name for name in OF_OURS}
    shown = [part for path in outermost(str(path) for path in paths) for part in without(path, HIDDEN)]
    return tuple(sorted(shown, key=os.path.islink))


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are there and lie below no other."""
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if os.path.lexists(path)}):
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return tuple(kept)


def without(path: str, hidden: str) -> list[str]:
    """`path`, or where `hidden` is there and lies below it, all that lies beside that."""
    if path == hidden:
        return []
    if not hidden.startswith(f"{path}/") or not os.path.lexists(hidden):
        return [path]
    return [part for name in sorted(os.listdir(path)) for part in without(f"{path}/{name}", hidden)]


def make_root(readable: Sequence[str], writable: Sequence[str], user: int, devices: Sequence[str] = ()) -> None:
    """Exchange this process's root for one with these paths, a home in memory and its own processes; go to that home.

    Needs new namespaces of mounts and processes, and the right to mount. `devices` are device files besides those that
    every process has; their driver writes to /proc, too.
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
    _make_etc(user)
    _make_dev(devices)
    os.mkdir("/proc")
    # Within a user namespace this takes another that is in sight: the old root's.
    kernel.mount("proc", "/proc", "proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
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


def _make_etc(user: int) -> None:
    os.makedirs("/etc", exist_ok=True)
    Path("/etc/passwd").write_text(f"learner:x:{user}:{user}::{HOME}:/bin/sh\n")
    Path("/etc/group").write_text(f"learner:x:{user}:\n")
    Path("/etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    Path("/etc/hosts").write_text("127.0.0.1 localhost\n")


def _make_dev(more: Sequence[str]) -> None:
    os.mkdir("/dev")
    for path in (*(f"/dev/{name}" for name in DEVICES), *more):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "x").close()
        kernel.mount(_OLD + path, path, None, kernel.BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/dev/{name}")
    os.symlink(HOME, "/dev/shm")
