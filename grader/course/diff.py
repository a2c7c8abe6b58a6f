"""Compare a learner's copy of a notebook with the course's newer one, exercise by exercise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from grader.core import notebook as notebooks
from grader.core.notebook import Notebook, NotebookCell, Unreadable, checksum, is_answer, nbgrader, read_complete, text
from grader.course import workspace
from grader.course.tree import Course

STARS = re.compile(r"^[★☆]+ · .*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SETUP = "setup"  # first word of the names of all setup cells; no exercise has this name


@dataclass(frozen=True)
class CourseDiff:
    """What the course has changed since a copy was made.

    `changed` has for each exercise its parts that differ (task, answer cell, checks), none for SETUP. `added` are
    exercises that the copy does not have, `gone` those that only the copy has. `words` is whether anything else
    differs: prose, what follows an exercise, the whole of a lesson. `problem` is why the copy cannot be read.
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
        """What changed in the exercises, in one line."""
        parts = [f"{name} ({', '.join(what)})" if what else name for name, what in self.changed.items()]
        lists = (("changed", parts), ("not in your copy", self.added), ("no longer in the course", self.gone))
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in lists if names)


def diff_all(course: Course, lessons: Iterable[str] | None = None) -> list[CourseDiff]:
    """Returns the diffs of copies that are out of date or cannot be read, of these lessons (None: of all)."""
    copies = [copy for one in (course.ids if lessons is None else lessons) for copy in workspace.planned(course, one)]
    return [found for copy in copies if (found := diff_copy(copy)) is not None]


def diff_copy(copy: workspace.Copy) -> CourseDiff | None:
    """Returns what the course has changed since `copy` was made; None if that is nothing, or there is no copy.

    A link was made by the learner, so it is not compared.
    """
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
    changed: dict[str, list[str]] = {}
    words = False
    for name in [*now, *(name for name in then if name not in now)]:
        both = name in then and name in now
        if both and _checksum(then[name]) == _checksum(now[name]):
            continue
        exercise, part = owner(name, [*there, *begun]), _part(name, now.get(name) or then[name])
        if part == SETUP:
            changed[SETUP] = []
        elif part == "task" and both and _question(then[name]) == _question(now[name]):
            words = True
        elif part is not None and (exercise is None or (exercise in begun and exercise in there)):
            parts = changed.setdefault(exercise or name, [])
            parts += [part] if part not in parts else []
        else:
            words = True
    added, gone = ([name for name in one if name not in other] for one, other in ((there, begun), (begun, there)))
    frozen = {name: tuple(parts) for name, parts in changed.items()}
    return CourseDiff(copy, frozen, tuple(added), tuple(gone), words)


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
