"""Compare a learner's copy with the newer notebook that the course has now, and merge what the learner wrote into it.

The new notebook's cells keep their order. Into them go
    answers                 in place of the new answer cell; if that begins differently now, with a comment about it
    the learner's cells     after the cell that they followed, and so do further pieces of an answer
    lesson cells            as the learner has changed them; beside the course's own if that has changed too
    answers that are gone   under a heading after all exercises, with the learner's cells that followed them
An exercise under another name is recognised by its stub. A check, a task or a setup that the learner has changed is
restored. Checks come without outputs, since they have to be run again. The old notebook is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.core import notebook as notebooks
from grader.core.notebook import Notebook, NotebookCell, Unreadable, checksum, is_answer, nbgrader, read_complete, text
from grader.course import workspace
from grader.course.tree import Course

STARS = re.compile(r"^[★☆]+ · .*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SETUP = "setup"  # first word of the names of all setup cells; no exercise has this name
NOTE = "The beginning of this cell has changed in the course since you wrote your answer, which is below. It is now:"
INDENT = "#     "
HEADING = "## No longer in the course\n\nYour answers to exercises that were removed. They are not graded."
CLOSING = "closing"  # the cell below the exercises; the last cell has to stay the last
LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class CourseDiff:
    """What the course has changed since a copy was made.

    `changed` has for each exercise its parts that differ (task, answer cell, checks), none for SETUP. Exercises in
    `added` are not in the copy, those in `gone` only there. `words` is whether anything else differs, such as prose.
    """

    copy: workspace.Copy
    changed: Mapping[str, tuple[str, ...]]
    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    words: bool = False
    problem: str | None = None

    @property
    def matters(self) -> bool:
        """Whether anything changed that a learner has done or has to do."""
        return bool(self.changed or self.added or self.gone)

    @property
    def summary(self) -> str:
        parts = [f"{name} ({', '.join(what)})" if what else name for name, what in self.changed.items()]
        lists = (("changed", parts), ("not in your copy", self.added), ("no longer in the course", self.gone))
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in lists if names)


def diff_all(course: Course, lessons: Iterable[str] | None = None) -> list[CourseDiff]:
    """Returns the diffs of copies that are out of date or cannot be read, of these lessons (None: of all)."""
    copies = [copy for one in (course.ids if lessons is None else lessons) for copy in workspace.planned(course, one)]
    return [found for copy in copies if (found := diff_copy(copy)) is not None]


def diff_copy(copy: workspace.Copy) -> CourseDiff | None:
    """Returns what the course has changed since `copy` was made; None if that is nothing, or there is no copy."""
    # A link was made by the learner.
    if copy.own.is_symlink() or not copy.own.is_file() or not copy.built.is_file():
        return None
    try:
        own = read_complete(copy.own)
    except Unreadable as problem:
        return CourseDiff(copy, {}, problem=str(problem))
    found = diff_notebooks(copy, own, copy.notebook())
    return found if found.matters or found.words else None


def diff_notebooks(copy: workspace.Copy, own: Notebook, new: Notebook) -> CourseDiff:
    """Returns what differs between the course's notebook `new` and the one that `own` was made from."""
    then, now = notebooks.cells_by_name(own["cells"]), notebooks.cells_by_name(new["cells"])
    if not then:  # nothing in it states what it was made from: it is as old as its text
        texts = {text(cell) for cell in own["cells"]}
        return CourseDiff(copy, {}, words=any(text(cell) not in texts for cell in now.values()))
    begun, there = exercises(then.values()), exercises(now.values())
    changed: dict[str, tuple[str, ...]] = {}
    words = False
    for name in [*now, *(name for name in then if name not in now)]:
        both = name in then and name in now
        if both and _checksum(then[name]) == _checksum(now[name]):
            continue
        exercise, part = owner(name, [*there, *begun]), _part(name, now.get(name) or then[name])
        if part == SETUP:
            changed[SETUP] = ()
        elif part == "task" and both and _question(then[name]) == _question(now[name]):
            words = True
        elif part is not None and (exercise is None or (exercise in begun and exercise in there)):
            parts = changed.get(exercise or name, ())
            changed[exercise or name] = parts if part in parts else (*parts, part)
        else:
            words = True
    added, gone = ([name for name in one if name not in other] for one, other in ((there, begun), (begun, there)))
    return CourseDiff(copy, changed, tuple(added), tuple(gone), words)


def exercises(cells: Iterable[NotebookCell]) -> list[str]:
    """Returns the names of what is to be answered, each once: cells to fill in, and tasks that a person grades."""
    return list(notebooks.cells_by_name(cell for cell in cells if is_answer(cell) or nbgrader(cell).get("task")))


def owner(name: str, among: Collection[str]) -> str | None:
    """Returns the exercise that a cell of the course belongs to, by its name: vmap-axes for vmap-axes-values."""
    return max((one for one in among if name == one or name.startswith(f"{one}-")), key=len, default=None)


def _question(cell: NotebookCell) -> str:
    """A task without what a new lesson changes: its line of stars, minutes and lessons, and the targets of links."""
    return LINK.sub(r"\1", STARS.sub("", text(cell)))


def _checksum(cell: NotebookCell) -> str:
    origin = notebooks.origin_of(cell)
    return (origin.checksum if origin is not None else None) or checksum(cell)


def _part(name: str, cell: NotebookCell) -> str | None:
    """The part of its exercise that the cell is; None for what is read after it, and for prose."""
    flags = nbgrader(cell)
    if is_answer(cell):
        return "answer cell"
    if flags.get("task") or name.endswith("-task"):
        return "task"
    if flags.get("grade"):
        return "checks"
    return SETUP if cell["cell_type"] == "code" and name.split("-")[0] == SETUP else None


def migrate(course: Course, copy: workspace.Copy) -> Migration:
    """Replaces a copy by the course's notebook with all that the learner wrote. Raises Unreadable and OSError."""
    own, new = read_complete(copy.own), copy.notebook()
    done = Migration(own["cells"], new["cells"])
    # The learner's choices, such as that of a kernel, stay.
    chosen = {name: value for name, value in notebooks.part(own, "metadata").items() if name != "jaxercise"}
    merged = {**new, "metadata": {**new["metadata"], **chosen}, "cells": done.merged()}
    earlier = workspace.replace(course, copy.own, merged)
    assert earlier is not None, "it has just been read"
    done.earlier = earlier
    workspace.data(course, copy.lesson)
    workspace.linked(course)
    return done


class Migration:
    """The learner's cells, added one by one in their order, and where each goes in the new notebook.

    `answers` and `cells` count what was merged. `begin` names answers whose cell begins differently now, `ended` those
    that are no longer asked for, `restored` cells of the course's that the learner had changed. `told` is False if
    nothing in the old notebook, which is in `earlier` now, states which cells are the course's: nothing is merged then.
    """

    def __init__(self, own: list[NotebookCell], new: list[NotebookCell]) -> None:
        self.new, self.course = new, notebooks.cells_by_name(new)
        self.told = bool(notebooks.cells_by_name(own))
        self.earlier = Path()
        self.answers = self.cells = 0
        self.begin: list[str] = []
        self.ended: list[str] = []
        self.restored: list[str] = []
        begun = {name: cell for name, cell in notebooks.cells_by_name(own).items() if name in exercises(own)}
        missing = {name: cell for name, cell in begun.items() if name not in self.course}
        self.renamed = _renamed(missing, self.course)
        self.gone = [name for name in missing if name not in self.renamed]
        self.replaced: dict[str, NotebookCell] = {}
        self.top: list[NotebookCell] = []
        self.last: list[NotebookCell] = []
        self.after: dict[str, list[NotebookCell]] = {}
        self.place = self.top  # where the next cell of the learner's own goes
        for cell in own if self.told else ():
            origin = notebooks.origin_of(cell)
            if origin is None:
                self._keep(cell)
            else:
                self._add(cell, origin)

    def _add(self, cell: NotebookCell, origin: notebooks.CellOrigin) -> None:
        exercise = owner(origin.name, self.renamed)
        name = self.renamed[exercise] + origin.name[len(exercise) :] if exercise is not None else origin.name
        if name not in self.course:
            self._add_gone(cell, origin.name)
            return
        if name not in self.after:  # another piece of a cell stays where it is
            self.place = self.after[name] = []
        ours = self.course[name]
        if notebooks.is_unchanged(cell) or text(cell) == text(ours):
            return
        if notebooks.is_locked(cell):
            self.restored.append(name)
        elif is_answer(cell) and cell["cell_type"] == ours["cell_type"]:
            self._add_answer(name, cell, origin)
        elif name not in self.replaced and origin.checksum == checksum(ours):
            self.replaced[name] = _in_place_of(ours, cell, text(cell))
            self.cells += 1
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
        if owner(name, self.gone) is not None:
            self.place = self.last
        if notebooks.is_unchanged(cell):
            return
        if notebooks.is_locked(cell):
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
            self.cells += 1

    def merged(self) -> list[NotebookCell]:
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
        for name in exercises(course.values()):
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
