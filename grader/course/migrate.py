"""Carries what a learner wrote over into the newer notebook that the course has become.

The new notebook's cells stand in its order. Into them go
    answers                 in place of the new answer cell; where that begins differently now, with a comment that says
                            how. An exercise that only has another name is the same
    pieces of an answer     the first so, the others after the cell that they followed
    cells of the learner's  after the cell that they followed, with all that they show and hold
    lesson cells            as the learner has changed them; beside the course's own, where that is another now
    answers that are gone   under a heading after all exercises, with the learner's cells that followed them
A check, a task or a setup that the learner has changed is the course's own again. Checks come without what they showed:
they are to be run anew. The old notebook is kept as it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core import cell_origin
from grader.core.notebook import Notebook, NotebookCell, checksum, is_answer, is_locked, read_complete, text
from grader.course import diff, workspace
from grader.course.tree import Course

NOTE = "The course has changed how this cell begins since you wrote what stands below. It begins now:"
INDENT = "#     "
HEADING = "## No longer in the course\n\nWhat you wrote for exercises that are gone. None of it is graded."
CLOSING = "closing"  # opens what stands below the exercises, whose last cell is to stay the last
LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Migration:
    """What became of a learner's copy: how many answers and other cells came along, and what to look at.

    `begin` names answers whose cell begins differently now, `ended` those no longer asked for, `restored`
    cells of the course's that the learner had changed. `told` is False where nothing in the old notebook says what was
    the course's in it: then nothing came along. `kept` is where the old notebook is now.
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
    """Lays the course's notebook out anew, with all that the learner wrote. Raises Unreadable and OSError."""
    own, new = read_complete(copy.own), copy.notebook()
    told = bool(cell_origin.by_name(own["cells"]))
    merge = _Merge(own["cells"] if told else [], new["cells"])
    made = {**new, "metadata": _metadata(own, new), "cells": merge.cells()}
    content = json.dumps(made, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    kept = workspace.replace(course, copy.own, content.encode(errors="replace"))  # a file may hold halves of characters
    workspace.pictures(course)
    assert kept is not None, "it has just been read"
    lists = tuple(merge.begin), tuple(merge.ended), tuple(merge.restored)
    return Migration(copy, kept, merge.answers, merge.own, *lists, told)


def _metadata(own: Notebook, new: Notebook) -> dict[str, Any]:
    """The learner's choices, such as that of a kernel, stay."""
    chosen = own.get("metadata")
    kept = {name: value for name, value in chosen.items() if name != "jaxercise"} if isinstance(chosen, dict) else {}
    return {**new["metadata"], **kept}


class _Merge:
    """The learner's cells, taken in one by one in their order, and where each goes in the new notebook."""

    def __init__(self, own: list[NotebookCell], new: list[NotebookCell]) -> None:
        self.new, self.course = new, cell_origin.by_name(new)
        self.answers = self.own = 0
        self.begin: list[str] = []
        self.ended: list[str] = []
        self.restored: list[str] = []
        begun = {name: cell for name, cell in cell_origin.by_name(own).items() if name in diff.exercises(own)}
        self.renamed = _renamed({name: cell for name, cell in begun.items() if name not in self.course}, self.course)
        self.gone = [name for name in begun if name not in self.course and name not in self.renamed]
        self.put: dict[str, NotebookCell] = {}
        self.top: list[NotebookCell] = []
        self.last: list[NotebookCell] = []
        self.after: dict[str, list[NotebookCell]] = {}
        self.place = self.top  # where a cell of the learner's own goes that comes next
        for cell in own:
            self._add(cell)

    def _add(self, cell: NotebookCell) -> None:
        said = cell_origin.origin_of(cell)
        if said is None:
            self._along(cell)
            return
        exercise = diff.owner(said.name, self.renamed)
        name = self.renamed[exercise] + said.name[len(exercise) :] if exercise is not None else said.name
        if name not in self.course:
            self._gone(cell, said)
            return
        if name not in self.after:  # another piece of a cell stays where it is
            self.place = self.after[name] = []
        ours = self.course[name]
        if cell_origin.is_unchanged(cell) or text(cell) == text(ours):
            return
        if is_locked(cell):
            self._restored(name)
        elif is_answer(cell) and cell["cell_type"] == ours["cell_type"]:
            self._answer(name, cell, said)
        elif name not in self.put and said.checksum == checksum(ours):
            self.put[name] = _in_place_of(ours, cell, text(cell))
            self.own += 1
        else:
            self._along(cell)

    def _answer(self, name: str, cell: NotebookCell, said: cell_origin.CellOrigin) -> None:
        ours, source = self.course[name], _without_note(text(cell))
        if name in self.put:
            self.place.append(_in_place_of(ours, cell, source) | {"id": cell.get("id")})
            return
        stub = text(ours)
        if said.checksum is not None and checksum(cell, stub) != said.checksum:
            self.begin.append(name)
            if source.lstrip().startswith("%%"):  # a cell magic stands first, and what is below it may be no Python
                self.place.append({"cell_type": "markdown", "metadata": {}, "source": f"{NOTE}\n\n{_fenced(stub)}"})
            else:
                source = "\n".join([f"# {NOTE}", *_commented(stub), "", source])
        self.put[name] = _in_place_of(ours, cell, source)
        self.answers += 1

    def _gone(self, cell: NotebookCell, said: cell_origin.CellOrigin) -> None:
        """A cell that the course no longer has: what the learner wrote in it stays."""
        if diff.owner(said.name, self.gone) is not None:
            self.place = self.last
        if cell_origin.is_unchanged(cell):
            return
        if is_locked(cell):
            self._restored(said.name)
            return
        if is_answer(cell) and said.name not in self.ended:
            self.ended.append(said.name)
        self._along(cell)

    def _restored(self, name: str) -> None:
        if name not in self.restored:
            self.restored.append(name)

    def _along(self, cell: NotebookCell) -> None:
        """Puts it, as a cell of the learner's own, after the one that it followed."""
        metadata = {k: v for k, v in cell["metadata"].items() if k not in ("nbgrader", "deletable", "editable")}
        ours = metadata.get("jaxercise")
        if isinstance(ours, dict):
            metadata["jaxercise"] = {k: v for k, v in ours.items() if k != "given"}
        # An id that the course gave would say that the cell is the course's.
        self.place.append(
            {**cell, "metadata": metadata, "id": cell.get("id") if cell_origin.origin_of(cell) is None else None}
        )
        if is_answer(cell):
            self.answers += 1
        else:
            self.own += 1

    def cells(self) -> list[NotebookCell]:
        """All cells in their order, each with an id of its own."""
        taken = {cell["id"] for cell in self.new}
        heading = [{"cell_type": "markdown", "metadata": {}, "source": HEADING}] if self.last else []
        last = [_whole(cell, taken) for cell in (*heading, *self.last)]
        found = [_whole(cell, taken) for cell in self.top]
        for cell in self.new:
            said = cell_origin.origin_of(cell)
            name = said.name if said is not None else ""
            if name == CLOSING:
                found, last = found + last, []
            found += [self.put.get(name, cell), *(_whole(one, taken) for one in self.after.get(name, []))]
        return found + last


def _renamed(gone: Mapping[str, NotebookCell], course: Mapping[str, NotebookCell]) -> dict[str, str]:
    """The new names of exercises that begin, under another name, with the very text that they were given out with."""
    found: dict[str, str] = {}
    for old, cell in gone.items():
        said = cell_origin.origin_of(cell)
        for name in diff.exercises(course.values()):
            stub = text(course[name])
            if is_answer(cell) and said is not None and said.checksum == checksum(cell, stub):
                found.setdefault(old, name)
    return found


def _in_place_of(ours: NotebookCell, own: NotebookCell, source: str) -> NotebookCell:
    """The learner's text as the course's cell."""
    return {**own, "id": ours["id"], "metadata": {**own["metadata"], **ours["metadata"]}, "source": source}


def _whole(cell: NotebookCell, taken: set[str]) -> NotebookCell:
    """The cell with all that the format asks for, which an older one did not; its id is nobody else's."""
    name, count = cell.get("id"), 0
    while not isinstance(name, str) or not LEGAL_ID.fullmatch(name) or name in taken:
        count += 1
        name = f"own-{hashlib.sha256(text(cell).encode(errors='replace')).hexdigest()[:8]}-{count}"
    taken.add(name)
    cell = {**cell, "id": name}
    return {"execution_count": None, "outputs": [], **cell} if cell["cell_type"] == "code" else cell


def _commented(stub: str) -> list[str]:
    return [f"{INDENT}{line}".rstrip() for line in stub.splitlines()]


def _fenced(stub: str) -> str:
    return f"```python\n{stub}\n```"


def _without_note(source: str) -> str:
    """The learner's text without the comment of an earlier time."""
    if not source.startswith(f"# {NOTE}"):
        return source
    lines = source.splitlines(keepends=True)[1:]
    while lines and (lines[0].startswith(INDENT) or lines[0].strip() == "#"):
        lines.pop(0)
    return "".join(lines).removeprefix("\n")
