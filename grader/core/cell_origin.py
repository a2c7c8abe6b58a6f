"""What of a learner's notebook the course gave out, and whether it still says what it said then.

A copy knows this itself: nbgrader's metadata hold a checksum of each cell's text as it was given out, and cells without
such metadata get a mark of ours when they are laid out. Both come along through JupyterLab, and through an older
Jupyter, which loses the cells' ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core.notebook import BuiltCell, Notebook

KINDS = ("code", "markdown", "raw")
BUILT_ID = re.compile(r"(?:text|predict|choose)-.+|(?:code|markdown|raw)-(?P<hash>[0-9a-f]{8})(?:-\d+)?")


class NotANotebook(Exception):
    """A file that is no notebook; the text is what is wrong, as a part of a sentence."""


@dataclass(frozen=True)
class CellOrigin:
    """The course's name of a cell, and the sum of the text that it was given out with, None where nothing says it."""

    name: str
    sum: str | None


def read(path: Path) -> Notebook:
    """A learner's notebook, each of its cells with a type, text and metadata. Raises Unreadable and OSError."""
    try:
        notebook = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise NotANotebook("it is not JSON") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise NotANotebook("it is no notebook of format 4")
    for number, cell in enumerate(notebook["cells"], 1):
        if not _is_cell(cell):
            raise NotANotebook(f"its cell {number} is none")
    return notebook


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict) or cell.get("cell_type") not in KINDS or not isinstance(cell.get("metadata"), dict):
        return False
    source = cell.get("source")
    return isinstance(source, str) or (isinstance(source, list) and all(isinstance(line, str) for line in source))


def text(cell: BuiltCell) -> str:
    """The text of a cell, which files keep as one string or as lines."""
    return "".join(cell["source"])


def origin_of(cell: BuiltCell) -> CellOrigin | None:
    """Which of the course's cells this is; None for a cell of the learner's own."""
    said = nbgrader(cell)
    if isinstance(said.get("grade_id"), str):
        found = said.get("checksum")
        return CellOrigin(said["grade_id"], found if isinstance(found, str) else None)
    mark = _part(cell["metadata"].get("jaxercise"), "given")
    if isinstance(mark.get("cell"), str) and isinstance(mark.get("sum"), str):
        return CellOrigin(mark["cell"], mark["sum"])
    return _by_id(cell)


def _by_id(cell: BuiltCell) -> CellOrigin | None:
    """The same for a copy that was laid out before cells were marked: the ids that the builder gives say it.

    Most hold a hash of the text that was built. Links in a lesson's prose were moved since, so its text is believed.
    """
    found = BUILT_ID.fullmatch(cell["id"]) if isinstance(cell.get("id"), str) else None
    if found is None:
        return None
    told = found["hash"] is None or hashlib.sha256(text(cell).encode(errors="replace")).hexdigest()[:8] == found["hash"]
    return CellOrigin(cell["id"], sum_of(cell) if told else None)


def by_name(cells: Iterable[BuiltCell]) -> dict[str, BuiltCell]:
    """The course's cells by their names; of pieces that share one, the first."""
    found: dict[str, BuiltCell] = {}
    for cell in cells:
        said = origin_of(cell)
        if said is not None:
            found.setdefault(said.name, cell)
    return found


def is_unchanged(cell: BuiltCell) -> bool:
    """Whether a cell of the course's says what it said when it was given out."""
    said = origin_of(cell)
    return said is not None and said.sum == sum_of(cell)


def is_answer(cell: BuiltCell) -> bool:
    return bool(nbgrader(cell).get("solution"))


def is_locked(cell: BuiltCell) -> bool:
    """Whether the text is the course's alone. As nbgrader has it: a solution never, what is graded always."""
    said = nbgrader(cell)
    return not is_answer(cell) and bool(said.get("grade") or said.get("locked"))


def nbgrader(cell: BuiltCell) -> dict[str, Any]:
    """nbgrader's metadata of a cell, empty where there are none."""
    return _part(cell["metadata"], "nbgrader")


def sum_of(cell: BuiltCell, source: str | None = None) -> str:
    """The sum of a cell, or of what it would be with the text `source`.

    It is nbgrader's own for a cell with nbgrader's metadata (`compute_checksum` in its utils.py): importing nbgrader
    for it would take longer than all copying.
    """
    said = nbgrader(cell)
    parts: list[Any] = [text(cell) if source is None else source, cell["cell_type"]]
    if said:
        parts += [said.get("grade", False), is_answer(cell), is_locked(cell), said.get("grade_id")]
        points = said.get("points")
        if said.get("grade") and isinstance(points, int | float):
            parts.append(float(points))
    return hashlib.md5("".join(map(str, parts)).encode(errors="replace"), usedforsecurity=False).hexdigest()


def sign(cell: BuiltCell) -> None:
    """Note in a cell of the course's what it says now: its checksum, or a mark where nbgrader has no metadata."""
    said = nbgrader(cell)
    if not said:
        mark = {"cell": cell["id"], "sum": sum_of(cell)}
        cell["metadata"]["jaxercise"] = _part(cell["metadata"], "jaxercise") | {"given": mark}
    elif "checksum" in said:
        said["checksum"] = sum_of(cell)


def _part(of: Any, name: str) -> dict[str, Any]:
    """A dictionary in what may be one."""
    found = of.get(name) if isinstance(of, Mapping) else None
    return found if isinstance(found, dict) else {}
