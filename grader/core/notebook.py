"""Reading a submitted notebook under limits: anything may be in it, and nothing of it is run here."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A notebook and its cells as JSON contains them.
Notebook = dict[str, Any]
BuiltCell = dict[str, Any]

MAX_BYTES = 20 << 20
MAX_CELLS = 2_000
MAX_SOURCE = 200_000


class Unreadable(Exception):
    """A file that is not a notebook that can be graded; the text is one sentence for its author."""


@dataclass(frozen=True)
class SubmittedCell:
    """One code cell; `grade_id` is the course's id of the cell, None in a cell of the learner's own."""

    grade_id: str | None
    source: str
    position: int


@dataclass(frozen=True)
class Submission:
    """A learner's notebook of one lesson, reduced to its code cells."""

    learner: str
    lesson: str
    cells: tuple[SubmittedCell, ...]

    def seed(self, secret: str) -> str:
        """What the inputs of its checks are drawn from: known to nobody without the course's secret."""
        return "/".join((secret, self.lesson, self.learner, self.fingerprint))

    @property
    def fingerprint(self) -> str:
        """A hash of the cells: part of the seed, so that a resubmission meets fresh inputs."""
        text = json.dumps([[cell.grade_id, cell.source] for cell in self.cells])
        return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path, learner: str, lesson: str) -> Submission:
    """Read a notebook file. Raises `Unreadable` with one clear sentence."""
    return parse(content(path), learner, lesson)


def content(path: Path) -> bytes:
    """The bytes of a notebook file. Raises `Unreadable` for what is no file, cannot be read, or is too large."""
    try:
        if not os.path.lexists(path):
            raise Unreadable(f"There is no {path.name} in the folder that was handed in.")
        if any(one.is_symlink() for one in (path, *path.parents[:2])) or not path.is_file():
            raise Unreadable("It is a link or no file at all. Hand in the notebook file itself.")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise Unreadable(
                f"The notebook has {size / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:,.0f} MB are read. "
                "Clear its outputs (Edit > Clear Outputs of All Cells), save it and hand it in again."
            )
        return path.read_bytes()
    except OSError as problem:
        raise Unreadable(f"The file cannot be read: {problem.strerror}.") from None


def parse(text: bytes, learner: str, lesson: str) -> Submission:
    """The submission in these bytes. Raises `Unreadable` for what is no notebook that can be graded."""
    if not text.strip():
        raise Unreadable("The file is empty. Save the notebook again and hand it in.")
    try:
        notebook = json.loads(text)
    except RecursionError:
        raise Unreadable("The file is nested too deeply to be a notebook.") from None
    except ValueError:
        raise Unreadable("The file is not a notebook: it is not JSON. Hand in the .ipynb file itself.") from None
    return Submission(learner, lesson, tuple(_cells(notebook)))


def _cells(notebook: Any) -> list[SubmittedCell]:
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise Unreadable(
            "The file is JSON but not a notebook of format 4. Open it in JupyterLab, save it, hand it in again."
        )
    if len(notebook["cells"]) > MAX_CELLS:
        raise Unreadable(f"The notebook has {len(notebook['cells']):,} cells; at most {MAX_CELLS:,} are read.")
    found = []
    for position, cell in enumerate(notebook["cells"], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = _source(cell.get("source", ""), position)
        found.append(SubmittedCell(grade_id(cell), source, position))
    return found


def _source(source: Any, position: int) -> str:
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        raise Unreadable(f"Cell {position} holds no text. Save the notebook again and hand it in.")
    if len(source) > MAX_SOURCE:
        raise Unreadable(f"Cell {position} has {len(source):,} characters; at most {MAX_SOURCE:,} are read.")
    return source


def grade_id(cell: dict[str, Any]) -> str | None:
    """The course's id of a notebook's cell, None where it has none."""
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    return grade_id if isinstance(grade_id, str) else None
