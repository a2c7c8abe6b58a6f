"""Atomic files: complete or absent, whenever the process that writes them ends."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path


def write_hollow(path: Path, size: int) -> None:
    """Writes a file of `size` bytes that takes no space: in place of one that is refused for its size when it is read.
    Raises OSError."""
    write(path, b"", mode=0o644, alone=True)
    os.truncate(path, size)


def write(path: Path, content: str | bytes, mode: int = 0o600, alone: bool = False) -> None:
    """Writes text (as UTF-8) or bytes to a temporary file beside `path`, flushes it to disk and renames it to `path`.

    Makes the folders above it. `mode` is the permissions of a new file. `alone` states that only one process at a time
    writes this file: its temporary file then has a fixed name. Otherwise the name contains the process id. Either way
    the next process that writes the file replaces or removes what a killed one has left. Raises OSError, and leaves
    `path` as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part" if alone else f"{path.name}.{os.getpid()}.part")
    for left in [] if alone else path.parent.glob(f"{glob.escape(path.name)}.*.part"):
        pid = left.suffixes[-2].removeprefix(".")
        with contextlib.suppress(OSError, OverflowError):
            try:
                os.kill(int(pid) if pid.isdecimal() else 0, 0)  # sends nothing: is there such a process?
            except ProcessLookupError:
                left.unlink()
    if os.path.lexists(part) and (part.is_symlink() or not part.is_file()):
        part.unlink()  # somebody else's: a link would lead the text elsewhere, and a pipe waits for a reader
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
