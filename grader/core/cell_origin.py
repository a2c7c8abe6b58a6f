"""Origin of a learner's cells: which of the course's cells each came from, and whether its text is still the original.

A copy contains this itself: nbgrader's metadata hold a checksum of each cell's text as it was released, and cells
without such metadata get a mark of ours when they are copied. Both survive JupyterLab, and an older Jupyter, which
drops the ids of cells.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from grader.core.notebook import NotebookCell, checksum, nbgrader, part, text

BUILT_ID = re.compile(r"(?:text|predict|choose)-.+|(?:code|markdown|raw)-(?P<hash>[0-9a-f]{8})(?:-\d+)?")


@dataclass(frozen=True)
class CellOrigin:
    """The course's name of a cell, and the checksum of its text when it was released (None where nothing states it)."""

    name: str
    checksum: str | None


def origin_of(cell: NotebookCell) -> CellOrigin | None:
    """Returns which of the course's cells this is; None for a cell of the learner's own."""
    said = nbgrader(cell)
    if isinstance(said.get("grade_id"), str):
        found = said.get("checksum")
        return CellOrigin(said["grade_id"], found if isinstance(found, str) else None)
    mark = part(part(cell["metadata"], "jaxercise"), "given")
    if isinstance(mark.get("cell"), str) and isinstance(mark.get("sum"), str):
        return CellOrigin(mark["cell"], mark["sum"])
    return _by_id(cell)


def _by_id(cell: NotebookCell) -> CellOrigin | None:
    """The same for a copy that was made before cells were marked: the ids that the builder gives tell it.

    Most contain a hash of the text that was built. Links in lesson prose were changed since, so its text is trusted.
    """
    found = BUILT_ID.fullmatch(cell["id"]) if isinstance(cell.get("id"), str) else None
    if found is None:
        return None
    told = found["hash"] is None or hashlib.sha256(text(cell).encode(errors="replace")).hexdigest()[:8] == found["hash"]
    return CellOrigin(cell["id"], checksum(cell) if told else None)


def by_name(cells: Iterable[NotebookCell]) -> dict[str, NotebookCell]:
    """Returns the course's cells by name; of pieces that share a name, the first."""
    found: dict[str, NotebookCell] = {}
    for cell in cells:
        origin = origin_of(cell)
        if origin is not None:
            found.setdefault(origin.name, cell)
    return found


def is_unchanged(cell: NotebookCell) -> bool:
    """Returns whether a cell of the course's still has the text that it was released with."""
    origin = origin_of(cell)
    return origin is not None and origin.checksum == checksum(cell)


def sign(cell: NotebookCell) -> None:
    """Notes in a cell of the course's what its text is now: its checksum, or a mark where nbgrader has no metadata."""
    said = nbgrader(cell)
    if not said:
        mark = {"cell": cell["id"], "sum": checksum(cell)}
        cell["metadata"]["jaxercise"] = part(cell["metadata"], "jaxercise") | {"given": mark}
    elif "checksum" in said:
        said["checksum"] = checksum(cell)
