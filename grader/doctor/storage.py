"""Where the course lies: room on the disk, whether work/ can be written to, and file systems that slow it down."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

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
    return Finding(
        "costs" if free >= NEEDED_GB else "stops", text, f"make -C {shlex.quote(str(root))} clean; pip cache purge"
    )


def work(root: Path) -> Finding:
    """Whether the learner's copies can be made and saved."""
    own = root / "work"
    if os.path.lexists(own) and not own.is_dir():
        text = f"{own} is not a folder: `grader lab` cannot lay out your copies."
        return Finding("stops", text, f"mv {shlex.quote(str(own))} {shlex.quote(f'{own}-aside')}")
    closed = next(_closed(own if own.is_dir() else root), None)
    if closed is not None:
        text = f"{closed} cannot be written to: what you do there cannot be saved. Another user, such as root, owns it."
        return Finding("stops", text, f'sudo chown -R "$(id -un)" {shlex.quote(str(own if own.is_dir() else root))}')
    return Finding("fine", f"Your copies: {own}, which can be written to.")


def _closed(top: Path) -> Iterator[Path]:
    """Folders and notebooks below `top` that this user may not write to, `top` first; not what lies deeper than work/
    goes, and of a course without work/ only itself."""
    found = [
        top,
        *(top.glob("*") if top.name == "work" else ()),
        *(top.glob("*/*.ipynb") if top.name == "work" else ()),
    ]
    return (path for path in found if not path.is_symlink() and not os.access(path, os.W_OK))


def file_system(root: Path, release: str = "", mounts: Iterable[tuple[str, str]] | None = None) -> Finding | None:
    """A note on where the checkout lies, or None. `mounts`: places and kinds of file system; this machine's, unless
    given, as is the kernel's `release`."""
    release = release or platform.release()
    if mounts is None:
        mounts = [(one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True)]
    above = [(len(Path(place).parts), kind) for place, kind in mounts if Path(place) in (root, *root.parents)]
    kind = max(above, default=(0, ""))[1]
    inside = "microsoft" in release.lower()
    distribution = shlex.quote(os.environ.get("WSL_DISTRO_NAME", "NAME"))
    if inside and "wsl2" not in release.lower() and "microsoft-standard" not in release:
        text = "This is WSL 1: slow, and it confines no learner's code. WSL 2 has neither fault. In Windows' terminal:"
        return Finding("costs", text, f"wsl --set-version {distribution} 2")
    if inside and kind in WINDOWS:
        text = f"{root} lies on Windows' own disk: every file takes many times as long, and saves are noticed late."
        return Finding(
            "costs", text, f"cp -r {shlex.quote(str(root))} ~/ && cd ~/{shlex.quote(root.name)} && make setup"
        )
    if kind in ELSEWHERE:
        text = f"{root} lies on another machine's disk ({kind}): starting is slow, saves are noticed late."
        return Finding("costs", text, f"cp -r {shlex.quote(str(root))} /a/folder/on/this/machine")
    return None
