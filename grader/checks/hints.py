"""What the saved notebook says around a check: the hints of its exercise, and why the answer works."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core.symbols import cell_names

HINT = re.compile(r"<details>\s*<summary>(Hint\b[^<]*)</summary>(.*?)</details>", re.DOTALL)
WHY = re.compile(r"<details>\s*<summary>[^<]*</summary>(.*?)</details>", re.DOTALL)
MOST_BYTES = 20_000_000  # a notebook with more is not read while a learner waits for a check
MOST = 20_000  # characters of a task


@dataclass(frozen=True)
class ExerciseContext:
    """One exercise of a notebook: hints as (title, Markdown), Markdown of the why, the ids of the checks that are to be
    seen there, the names that these need, and whether there are hidden checks too."""

    id: str
    hints: tuple[tuple[str, str], ...]
    why: str
    checks: frozenset[str]
    needs: frozenset[str]
    hidden: bool


class NotebookOnDisk:
    """The notebook that a kernel belongs to, as it was saved last; read again only when its file has changed."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._stamp: tuple[str, int, int] | None = None
        self._cells: list[dict[str, Any]] = []

    def exercise(self, source: str, cell_id: str | None) -> tuple[ExerciseContext, str] | None:
        """The exercise of the check with this text, and the check's id; None where the notebook does not tell.

        The cell's id decides where the front end says it, its text elsewhere.
        """
        cells = self._read()
        same_id = [i for i, cell in enumerate(cells) if cell_id and cell.get("id") == cell_id]
        same_text = [i for i, cell in enumerate(cells) if _text(cell).strip() == source.strip()]
        places = [i for i in (*same_id, *same_text) if _check_id(cells[i])]
        return (_around(cells, places[0]), _check_id(cells[places[0]])) if places else None

    def _read(self) -> list[dict[str, Any]]:
        """The cells; where the file is gone or half written, those of the last time that it could be read."""
        try:
            path = self._path()
            if path is None:
                return []
            found = path.stat()
            stamp = str(path), found.st_mtime_ns, found.st_size
            if stamp != self._stamp and found.st_size <= MOST_BYTES:
                cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
                self._cells = [cell for cell in cells if isinstance(cell, dict)]
                self._stamp = stamp
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return self._cells

    def _path(self) -> Path | None:
        """As VS Code or Jupyter tells it to the kernel. A notebook that was renamed lies in the same folder."""
        told = self.namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
        if not isinstance(told, str) or not told.endswith(".ipynb"):
            return None
        path = Path(told)
        if path.is_file():
            return path
        others = sorted(path.parent.glob("*.ipynb"))
        return others[0] if len(others) == 1 else path


def _around(cells: list[dict[str, Any]], place: int) -> ExerciseContext:
    """From the task above the check at `place` to the next task."""
    starts = [i for i, cell in enumerate(cells) if _grade_id(cell).endswith("-task")]
    first = max((i for i in starts if i < place), default=place)
    last = min((i for i in starts if i > place), default=len(cells))
    task = _text(cells[first])[:MOST] if first != place else ""
    why = next((_text(cell) for cell in cells[first:last] if _grade_id(cell).endswith("-why")), "")
    checks = {name: _text(cell) for cell in cells[first:last] if (name := _check_id(cell))}
    return ExerciseContext(
        _grade_id(cells[first]).removesuffix("-task"),
        tuple((title.strip(), said.strip()) for title, said in HINT.findall(task)),
        _first(WHY.findall(why[:MOST])),
        frozenset(checks),
        frozenset().union(*(cell_names(text).needs for text in checks.values())),
        any(_is_check(cell) and not _check_id(cell) for cell in cells[first:last]),
    )


def _first(texts: Iterable[str]) -> str:
    return next((text.strip() for text in texts), "")


def _check_id(cell: dict[str, Any]) -> str:
    """A check's id; nothing for other cells, and for a hidden check, which is comments alone in this notebook."""
    if not _is_check(cell):
        return ""
    try:
        return _grade_id(cell) if ast.parse(_text(cell)).body else ""
    except (SyntaxError, ValueError):
        return ""


def _is_check(cell: dict[str, Any]) -> bool:
    said = _said(cell)
    return cell.get("cell_type") == "code" and said.get("grade") is True and said.get("solution") is not True


def _grade_id(cell: dict[str, Any]) -> str:
    said = _said(cell).get("grade_id")
    return said if isinstance(said, str) else ""


def _said(cell: dict[str, Any]) -> dict[str, Any]:
    """nbgrader's own words about a cell."""
    metadata = cell.get("metadata")
    said = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    return said if isinstance(said, dict) else {}


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source")
    return "".join(map(str, source)) if isinstance(source, list) else source if isinstance(source, str) else ""
