"""Files that a learner submits beside the notebook. They are read where the course allows them (`own_files_mb`).

They may come from anyone: no link is followed, and names, depth, number and size are bounded.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.core.points import phrase
from grader.core.text import legible

MAX_FILES, MAX_DEPTH, MAX_PATH = 100, 4, 200  # of one notebook; parts of a path, and characters of it
MAX_NAME_BYTES = 250  # of a part of a path: file systems take 255, and a file that is being written has a longer name
MAX_LISTED = 1_000  # entries of a folder that are looked at
MAX_REMARKS = 5
NOT_OWN = ("timestamp.txt",)  # when it was submitted, as nbgrader and `grader collect` write it
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class OwnFiles:
    """Contents by path, relative to the notebook. `remarks` tell the author which files were left out, and why."""

    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    remarks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of all paths and contents; "" without files."""
        if not self.contents:
            return ""
        parts = [(name, hashlib.sha256(content).hexdigest()) for name, content in sorted(self.contents.items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads, for another process."""
        contents = {name: base64.b64encode(content).decode() for name, content in self.contents.items()}
        return {"contents": contents, "remarks": list(self.remarks)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> OwnFiles:
        """Returns what another process of the grader's told with `to_json`."""
        contents = {name: base64.b64decode(content) for name, content in told["contents"].items()}
        return cls(contents, tuple(told["remarks"]))


NO_FILES = OwnFiles()
# A bucket or a zip may contain `a` and `a/b`, and a folder takes only one of them.
NO_ROOM = (FileExistsError, IsADirectoryError, NotADirectoryError)


def can_be_own(name: str) -> bool:
    """Returns whether a path relative to the notebook can be a file of the learner's: no notebook, and not hidden."""
    parts = name.split("/")
    hidden = any(part.startswith(".") or part in ("", "__pycache__") for part in parts)
    long = len(name) > 10 * MAX_PATH or any(len(part.encode(errors="replace")) > MAX_NAME_BYTES for part in parts)
    return not hidden and not long and name not in NOT_OWN and not name.lower().endswith(".ipynb")


def read(folder: Path, most: int, course_files: Mapping[str, bytes]) -> OwnFiles:
    """Returns the files in `folder`, which also contains the notebook, and below it.

    Args:
        folder: the notebook's folder; what cannot be opened counts as empty.
        most: bytes of all files together. With 0, nothing is read.
        course_files: what the course ships beside this notebook, which comes before a learner's file of the same path.
    """
    found, remarks, room = dict[str, bytes](), list[str](), most
    taken = {part for name in course_files for part in _with_parents(name)}
    for name, file in _files(folder) if most else ():
        if name in course_files:
            if _content(file, len(course_files[name])) != course_files[name]:
                remarks.append(f"{name} is a file of the course, so its version was used instead of yours.")
            continue
        if name in taken or any(part in course_files for part in _with_parents(name)):
            reason = "a file or folder of the course has this name"
        elif len(name) > MAX_PATH or name.count("/") >= MAX_DEPTH or not name.isprintable():
            reason = f"its path has more than {MAX_PATH} characters or {MAX_DEPTH} parts, or unprintable characters"
        elif len(found) == MAX_FILES:
            reason = f"more than {MAX_FILES} files are beside the notebook"
        elif not stat.S_ISREG(file.about.st_mode):
            reason = "it is a link or not a regular file"
        elif file.about.st_size > room:
            reason = f"the files beside the notebook have more than {most / 1e6:g} MB"
        elif (content := _content(file, room)) is None:
            reason = "it cannot be read"
        else:
            found[name] = content
            room -= len(content)
            continue
        shown = legible(name, 100).replace("\n", " ")
        remarks.append(f"{shown} was not used: {reason}.")
    if len(remarks) > MAX_REMARKS:
        more = len(remarks) - MAX_REMARKS
        remarks[MAX_REMARKS:] = [f"The same is true of {phrase(more, 'more file')}."]
    return OwnFiles(found, tuple(remarks))


def newest(folder: Path) -> tuple[int, int]:
    """Returns when the last of these files was written, in ns since the epoch, and the bytes of all; 0, 0 for none."""
    found = [file.about for _, file in _files(folder)]
    return max((one.st_mtime_ns for one in found), default=0), sum(one.st_size for one in found)


@dataclass(frozen=True)
class _File:
    """A directory entry: its name in the folder that is open as `folder`, and what `os.lstat` says about it."""

    name: str
    folder: int
    about: os.stat_result


def _files(folder: Path) -> Iterator[tuple[str, _File]]:
    """Files and links below a folder by their paths, in order. Folders are opened one below the other, so that none
    can become a link meanwhile."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, FOLDER)
        try:
            yield from _below(opened, "")
        finally:
            os.close(opened)


def _below(folder: int, path: str) -> Iterator[tuple[str, _File]]:
    with os.scandir(folder) as listed:
        names = sorted(entry.name for entry in itertools.islice(listed, MAX_LISTED))
    for name in names:
        below = f"{path}{name}"
        if not can_be_own(below):
            continue
        with contextlib.suppress(OSError):
            about = os.lstat(name, dir_fd=folder)
            if not stat.S_ISDIR(about.st_mode):
                yield below, _File(name, folder, about)
            elif below.count("/") < MAX_DEPTH:
                inner = os.open(name, FOLDER, dir_fd=folder)
                try:
                    yield from _below(inner, f"{below}/")
                finally:
                    os.close(inner)


def _content(file: _File, most: int) -> bytes | None:
    """The bytes of a regular file that has at most so many; None for any other."""
    with contextlib.suppress(OSError), open(os.open(file.name, FILE, dir_fd=file.folder), "rb") as stream:
        about = os.fstat(stream.fileno())
        if stat.S_ISREG(about.st_mode) and about.st_size <= most:
            content = stream.read(most + 1)
            return content if len(content) <= most else None
    return None


def _with_parents(name: str) -> list[str]:
    """A path and those of its folders."""
    return ["/".join(name.split("/")[: i + 1]) for i in range(name.count("/") + 1)]
