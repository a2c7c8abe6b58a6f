"""What a learner's own notebooks remember from one day to the next: one small file, which can be deleted safely."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from grader.core.layout import course_above

NAME = ".jaxercise.json"
VERSION = 1


def path(here: Path | None = None) -> Path:
    """Under work/ of the course that `here` lies in, a notebook's folder if not said; beside it where there is none."""
    here = here or Path.cwd()
    root = course_above(here)
    return root / "work" / NAME if root is not None else here / NAME


def read(part: str, here: Path | None = None) -> dict[str, Any]:
    """One part of what is kept; empty where there is nothing, or nothing that this version can read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        kept = json.loads(path(here).read_text(encoding="utf-8"))
        if isinstance(kept, dict) and kept.get("version") == VERSION and isinstance(kept.get(part), dict):
            return dict(kept[part])
    return {}


def add(part: str, name: str, value: Any, here: Path | None = None) -> None:
    """Keep one thing more. A file that cannot be written costs the memory of it, nothing else."""
    with contextlib.suppress(OSError):
        target = path(here)
        kept: dict[str, Any] = {}
        with contextlib.suppress(ValueError, RecursionError, FileNotFoundError):
            kept = json.loads(target.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or kept.get("version") != VERSION:
            kept = {"version": VERSION}
        kept[part] = {**(kept.get(part) or {}), name: value}
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two notebooks may write at once: each writes a whole file, and the last one holds.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=NAME, delete=False) as draft:
            draft.write(json.dumps(kept, ensure_ascii=False, indent=1) + "\n")
        os.replace(draft.name, target)
