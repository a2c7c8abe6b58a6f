"""Where the course lies: room on the disk, whether work/ can be written to, and file systems that slow it down."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import psutil

from grader.doctor.finding import Finding

WISHED_GB, NEEDED_GB = 1.0, 0.1  # compiled operations are kept below build/, and a notebook with pictures has megabytes
WINDOWS = {"9p", "drvfs", "v9fs", "virtiofs"}  # as WSL shows Windows' own disks
ELSEWHERE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afpfs", "webdav", "fuse.sshfs", "fuse.rclone"}


def disk(root: Path) -> Finding:
    """Room for copies, compiled operations and what the learner makes."""
    free = shutil.disk_usage(root).free / 1e9
    if free >= WISHED_GB:
        return Finding("fine", f"Disk: {free:,.0f} GB are free.")
    text = f"Only {free:.2f} GB are free on the disk of {root}: when it is full, notebooks cannot be saved."
    grade: Literal["costs", "stops"] = "costs" if free >= NEEDED_GB else "stops"
    return Finding(grade, text, f"make -C {shlex.quote(str(root))} clean; pip cache purge")


def work(root: Path) -> Finding:
    """Whether the learner's copies can be made and saved."""
    own = root / "work"
    top = own if own.is_dir() else root
    if os.path.lexists(own) and not own.is_dir():
        text = f"{own} is not a folder: `grader lab` cannot lay out your copies."
        return Finding("stops", text, f"mv {shlex.quote(str(own))} {shlex.quote(f'{own}-aside')}")
    closed = next(_closed(top), None)
    if closed is not None:
        text = f"{closed} cannot be written to: what you do there cannot be saved. Another user, such as root, owns it."
        return Finding("stops", text, f'sudo chown -R "$(id -un)" {shlex.quote(str(top))}')
    return Finding("fine", f"Your copies: {own}, which can be written to.")


def _closed(top: Path) -> Iterator[Path]:
    """Folders and notebooks that this user may not write to, `top` first: all of work/, else `top` alone."""
    below = [*top.glob("*"), *top.glob("*/*.ipynb")] if top.name == "work" else []
    return (path for path in [top, *below] if not path.is_symlink() and not os.access(path, os.W_OK))


def file_system(root: Path, release: str = "", mounts: Iterable[tuple[str, str]] | None = None) -> Finding | None:
    """Returns what is slow about where the course lies, or None.

    Args:
        root: the course's folder.
        release: the kernel's release; by default this machine's.
        mounts: places and kinds of file systems; by default this machine's.
    """
    release = release or platform.release()
    if mounts is None:
        mounts = [(one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True)]
    above = [(len(Path(place).parts), kind) for place, kind in mounts if Path(place) in (root, *root.parents)]
    kind = max(above, default=(0, ""))[1]
    inside = "microsoft" in release.lower()
    copy = f"cp -r {shlex.quote(str(root))}"
    distribution = shlex.quote(os.environ.get("WSL_DISTRO_NAME", "NAME"))
    if inside and "wsl2" not in release.lower() and "microsoft-standard" not in release:
        text = "This is WSL 1: slow, and it confines no learner's code. WSL 2 has neither fault. In Windows' terminal:"
        return Finding("costs", text, f"wsl --set-version {distribution} 2")
    if inside and kind in WINDOWS:
        text = f"{root} lies on Windows' own disk: every file takes many times as long, and saves are noticed late."
        return Finding("costs", text, f"{copy} ~/ && cd ~/{shlex.quote(root.name)} && make setup")
    if kind in ELSEWHERE:
        text = f"{root} lies on another machine's disk ({kind}): starting is slow, saves are noticed late."
        return Finding("costs", text, f"{copy} /a/folder/on/this/machine")
    return None
