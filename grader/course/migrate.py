"""Merge what a learner wrote into the newer notebook that the course has now.

The new notebook's cells keep their order. Into them go
    answers                 in place of the new answer cell; if that begins differently now, with a comment that shows
                            how. An exercise under another name is recognised by its stub
    pieces of an answer     the first as above, the others after the cell that they followed
    the learner's cells     after the cell that they followed, with their outputs and metadata
    lesson cells            as the learner has changed them; beside the course's own if that has changed too
    answers that are gone   under a heading after all exercises, with the learner's cells that followed them
A check, a task or a setup that the learner has changed is restored. Checks come without outputs, since they have to be
run again. The old notebook is kept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.core import notebook as notebooks
from grader.core.notebook import NotebookCell, checksum, is_answer, is_locked, part, read_complete, text
from grader.course import diff, workspace
from grader.course.tree import Course

NOTE = "The course has changed how this cell begins since you wrote what stands below. It begins now:"
INDENT = "#     "
HEADING = "## No longer in the course\n\nWhat you wrote for exercises that are gone. None of it is graded."
CLOSING = "closing"  # the cell below the exercises; the last cell has to stay the last
LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Migration:
    """The result of updating a learner's copy: how many answers and other cells were merged, and what to look at.

    `begin` names answers whose cell begins differently now, `ended` those no longer asked for, `restored` cells of the
    course's that the learner had changed. `told` is False if nothing in the old notebook states which cells are the
    course's: then nothing was merged. `kept` is where the old notebook is now.
    """

    copy: workspace.Copy
    kept: Path
    answers: int
    cells: int
    begin: tuple[str, ...]
    ended: tuple[str, ...]
    restored: tuple[str, ...]
    told: bool


def migrate(course: Course, copy: workspace.Copy) -> Migration:
    """Replaces a copy by the course's notebook with all that the learner wrote. Raises Unreadable and OSError."""
    own, new = read_complete(copy.own), copy.notebook()
    marked = bool(notebooks.cells_by_name(own["cells"]))
    merge = _Merge(own["cells"] if marked else [], new["cells"])
    # The learner's choices, such as that of a kernel, stay.
    chosen = {name: value for name, value in part(own, "metadata").items() if name != "jaxercise"}
    merged = {**new, "metadata": {**new["metadata"], **chosen}, "cells": merge.cells()}
    content = json.dumps(merged, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    kept = workspace.replace(course, copy.own, content.encode(errors="replace"))  # a file may hold halves of characters
    workspace.pictures(course)
    assert kept is not None, "it has just been read"
    lists = tuple(merge.begin), tuple(merge.ended), tuple(dict.fromkeys(merge.restored))
    return Migration(copy, kept, merge.answers, merge.own, *lists, marked)


class _Merge:
    """The learner's cells, added one by one in their order, and where each goes in the new notebook."""

    def __init__(self, own: list[NotebookCell], new: list[NotebookCell]) -> None:
        self.new, self.course = new, notebooks.cells_by_name(new)
        self.answers = self.own = 0
        self.begin: list[str] = []
        self.ended: list[str] = []
        self.restored: list[str] = []
        begun = {name: cell for name, cell in notebooks.cells_by_name(own).items() if name in diff.exercises(own)}
        missing = {name: cell for name, cell in begun.items() if name not in self.course}
        self.renamed = _renamed(missing, self.course)
        self.gone = [name for name in missing if name not in self.renamed]
        self.replaced: dict[str, NotebookCell] = {}
        self.top: list[NotebookCell] = []
        self.last: list[NotebookCell] = []
        self.after: dict[str, list[NotebookCell]] = {}
        self.place = self.top  # where the next cell of the learner's own goes
        for cell in own:
            origin = notebooks.origin_of(cell)
            if origin is None:
                self._keep(cell)
            else:
                self._add(cell, origin)

    def _add(self, cell: NotebookCell, origin: notebooks.CellOrigin) -> None:
        exercise = diff.owner(origin.name, self.renamed)
        name = self.renamed[exercise] + origin.name[len(exercise) :] if exercise is not None else origin.name
        if name not in self.course:
            self._add_gone(cell, origin.name)
            return
        if name not in self.after:  # another piece of a cell stays where it is
            self.place = self.after[name] = []
        ours = self.course[name]
        if notebooks.is_unchanged(cell) or text(cell) == text(ours):
            return
        if is_locked(cell):
            self.restored.append(name)
        elif is_answer(cell) and cell["cell_type"] == ours["cell_type"]:
            self._add_answer(name, cell, origin)
        elif name not in self.replaced and origin.checksum == checksum(ours):
            self.replaced[name] = _in_place_of(ours, cell, text(cell))
            self.own += 1
        else:
            self._keep(cell)

    def _add_answer(self, name: str, cell: NotebookCell, origin: notebooks.CellOrigin) -> None:
        ours, source = self.course[name], _without_note(text(cell))
        if name in self.replaced:
            self.place.append(_in_place_of(ours, cell, source) | {"id": cell.get("id")})
            return
        stub = text(ours)
        if origin.checksum is not None and checksum(cell, stub) != origin.checksum:
            self.begin.append(name)
            if source.lstrip().startswith("%%"):  # a cell magic must be first, and what is below it may be no Python
                self.place.append(_markdown(f"{NOTE}\n\n```python\n{stub}\n```"))
            else:
                comment = (f"{INDENT}{line}".rstrip() for line in stub.splitlines())
                source = "\n".join([f"# {NOTE}", *comment, "", source])
        self.replaced[name] = _in_place_of(ours, cell, source)
        self.answers += 1

    def _add_gone(self, cell: NotebookCell, name: str) -> None:
        """A cell that the course no longer has: what the learner wrote in it stays."""
        if diff.owner(name, self.gone) is not None:
            self.place = self.last
        if notebooks.is_unchanged(cell):
            return
        if is_locked(cell):
            self.restored.append(name)
            return
        if is_answer(cell) and name not in self.ended:
            self.ended.append(name)
        self._keep(cell)

    def _keep(self, cell: NotebookCell) -> None:
        """Puts it, as a cell of the learner's own, after the one that it followed."""
        metadata = {k: v for k, v in cell["metadata"].items() if k not in ("nbgrader", "deletable", "editable")}
        ours = metadata.get("jaxercise")
        if isinstance(ours, dict):
            metadata["jaxercise"] = {k: v for k, v in ours.items() if k != "given"}
        # An id that the course gave would mark the cell as the course's.
        cell_id = cell.get("id") if notebooks.origin_of(cell) is None else None
        self.place.append({**cell, "metadata": metadata, "id": cell_id})
        if is_answer(cell):
            self.answers += 1
        else:
            self.own += 1

    def cells(self) -> list[NotebookCell]:
        """All cells in their order, each with an id of its own."""
        taken = {cell["id"] for cell in self.new}
        last = [_complete(cell, taken) for cell in ([_markdown(HEADING), *self.last] if self.last else [])]
        found = [_complete(cell, taken) for cell in self.top]
        for cell in self.new:
            origin = notebooks.origin_of(cell)
            name = origin.name if origin is not None else ""
            if name == CLOSING:
                found, last = found + last, []
            found += [self.replaced.get(name, cell), *(_complete(one, taken) for one in self.after.get(name, []))]
        return found + last


def _renamed(gone: Mapping[str, NotebookCell], course: Mapping[str, NotebookCell]) -> dict[str, str]:
    """The new names of exercises whose stub the course has, to the letter, under another name."""
    found: dict[str, str] = {}
    for old, cell in gone.items():
        origin = notebooks.origin_of(cell)
        for name in diff.exercises(course.values()):
            if is_answer(cell) and origin is not None and origin.checksum == checksum(cell, text(course[name])):
                found.setdefault(old, name)
    return found


def _in_place_of(ours: NotebookCell, own: NotebookCell, source: str) -> NotebookCell:
    """The learner's text as the course's cell."""
    return {**own, "id": ours["id"], "metadata": {**own["metadata"], **ours["metadata"]}, "source": source}


def _complete(cell: NotebookCell, taken: set[str]) -> NotebookCell:
    """The cell with all that the format requires, which an older format did not; its id is unique."""
    name, count = cell.get("id"), 0
    while not isinstance(name, str) or not LEGAL_ID.fullmatch(name) or name in taken:
        count += 1
        name = f"own-{hashlib.sha256(text(cell).encode(errors='replace')).hexdigest()[:8]}-{count}"
    taken.add(name)
    cell = {**cell, "id": name}
    return {"execution_count": None, "outputs": [], **cell} if cell["cell_type"] == "code" else cell


def _markdown(source: str) -> NotebookCell:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def _without_note(source: str) -> str:
    """The learner's text without the comment of an earlier migration."""
    if not source.startswith(f"# {NOTE}"):
        return source
    lines = source.splitlines(keepends=True)[1:]
    while lines and (lines[0].startswith(INDENT) or lines[0].strip() == "#"):
        lines.pop(0)
    return "".join(lines).removeprefix("\n")
