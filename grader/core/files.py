"""Atomic files: complete or absent, whenever the process that writes them ends."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: str | bytes, mode: int = 0o600, alone: bool = False) -> None:
    """Writes text (as UTF-8) or bytes to a temporary file beside `path`, flushes it to disk and renames it to `path`.

    Makes the folders above it. `mode` is the permissions of a new file. `alone` states that only one process at a time
    writes this file: its temporary file then has a fixed name, so that the next process overwrites the remains of a
    killed one. Raises OSError, and leaves `path` as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part" if alone else f"{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
