"""Files that are there whole or not at all, whenever the process that writes them ends."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: str | bytes, mode: int = 0o600, alone: bool = False) -> None:
    """Write `content` beside `path`, bring it to the disk, and put it in place. Raises OSError.

    Where one process at a time writes there (`alone`), what a killed one left beside it is written over by the next.
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
