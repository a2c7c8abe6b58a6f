"""The text of a lesson that was imported from nbgrader: each of its cells is one of the imported notebook.

Only nbgrader's own rules apply to such a text. `nbgrader_import` writes it, `notebook_builder` builds it, and
`assertions` finds which of its checks can be graded here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course import percent
from grader.course.percent import Cell
from grader.course.problems import Findings

HEADER = "# %% [raw] imported="
GRADE_ID = re.compile(r"[A-Za-z0-9_\-]+")
# What nbgrader's metadata say of each role, beside false.
ROLES = {
    "locked": ("locked",),
    "answer": ("solution",),
    "check": ("grade", "locked"),
    "manual": ("grade", "solution"),
    "task": ("task", "locked"),
}
# nbgrader takes out what stands between these words, and stops where it finds them in a cell of another role.
REGIONS = {
    "SOLUTION": ("answer", "manual"),
    "HIDDEN TESTS": ("check", "manual"),
    "MARK SCHEME": ("task",),
}


@dataclass(frozen=True)
class ImportedText:
    """The cells, without the first, which holds the notebook's own metadata; attachments of cells by their names."""

    id: str
    path: Path
    shown: str
    cells: tuple[Cell, ...]
    metadata: dict[str, Any]
    attachments: dict[str, Any]


def is_adopted(path: Path) -> bool:
    """Whether the file says in its first line that it was imported."""
    with path.open(encoding="utf-8") as file:
        return file.readline().startswith(HEADER)


def attachments_path(path: Path) -> Path:
    """Where the pictures lie that the text's cells hold."""
    return path.with_suffix(".attachments.json")


def read(path: Path, shown: str) -> ImportedText:
    """The imported text in `path`; CourseError with all that is wrong in it."""
    findings, beside = Findings(shown), attachments_path(path)
    attachments = _object(beside.read_text(encoding="utf-8"), beside.name, findings) if beside.is_file() else {}
    findings.stop()
    return parse(path.read_text(encoding="utf-8"), attachments, path, shown)


def parse(source: str, attachments: dict[str, Any], path: Path, shown: str) -> ImportedText:
    """The imported text `source`, which lies in `path` or will; CourseError with all that is wrong in it."""
    findings = Findings(shown)
    all_cells = percent.read(source, percent.ADOPTED, findings)
    metadata = _object(all_cells[0].source if all_cells else "", "the first cell", findings)
    cells = all_cells[1:]
    seen: set[str] = set()
    for cell in cells:
        if cell.id is not None:
            _id(cell, seen, findings)
        _role(cell, findings)
        _regions(cell, findings)
        _kept(cell, attachments, findings)
    findings.stop()
    return ImportedText(path.stem, path, shown, tuple(cells), metadata, attachments)


def _object(source: str, what: str, findings: Findings) -> dict[str, Any]:
    try:
        found = json.loads(source)
    except json.JSONDecodeError as error:
        found = error.msg
    if isinstance(found, dict):
        return found
    findings.add(1, f"{what} holds no JSON object", "Mend it, or import the notebook again")
    return {}


def _id(cell: Cell, seen: set[str], findings: Findings) -> None:
    assert cell.id is not None
    if not GRADE_ID.fullmatch(cell.id):
        findings.add(cell.line, f"`{cell.id}` is no legal grade id", "Use letters, digits, `_` and `-`")
    if cell.id in seen:
        findings.add(cell.line, f"`{cell.id}` is taken: a duplicate id", "Give each graded cell an id of its own")
    seen.add(cell.id)


def _role(cell: Cell, findings: Findings) -> None:
    if cell.kind == "imported":
        findings.add(cell.line, "a second `imported` cell", "Keep the first alone")
    if (cell.kind == "task" and cell.form != "markdown") or (cell.kind in ("answer", "check") and cell.form != "code"):
        findings.add(cell.line, f"a `{cell.kind}` cell is {cell.form}", "nbgrader takes no such cell")
    points = cell.attributes.get("points")
    if "points" in percent.ADOPTED[cell.kind] and (points is None or not (math.isfinite(points) and points >= 0)):
        findings.add(cell.line, f"the points of `{cell.id}` are missing or negative", "Write `points=1`")


def _regions(cell: Cell, findings: Findings) -> None:
    for words, roles in REGIONS.items():
        opened = None
        for number, line in enumerate(cell.source.split("\n"), cell.first):
            if f"BEGIN {words}" in line:
                if cell.kind not in roles:
                    what = "a plain" if cell.kind == "cell" else f"a `{cell.kind}`"
                    findings.add(number, f"`BEGIN {words}` in {what} cell", f"It belongs in one of: {', '.join(roles)}")
                if opened is not None:
                    findings.add(number, f"`BEGIN {words}` inside another", f"Close the first with `### END {words}`")
                opened = number
            elif f"END {words}" in line:
                opened = None
        if opened is not None:
            findings.add(opened, f"`BEGIN {words}` without its end", f"Close it with `### END {words}`")


def _kept(cell: Cell, attachments: Collection[str], findings: Findings) -> None:
    name, extra = cell.attributes.get("attachments"), cell.attributes.get("metadata")
    if name is not None and name not in attachments:
        findings.add(cell.line, f"there are no attachments `{name}` beside the text", "Import the notebook again")
    if extra is not None:
        _object(extra, f"`metadata` of the cell in line {cell.line}", findings)
