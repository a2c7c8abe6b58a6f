"""Says what the course has changed since a learner's copy of a notebook was made, exercise by exercise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from grader.core import cell_origin
from grader.core.notebook import Notebook, NotebookCell, Unreadable, checksum, is_answer, nbgrader, read_complete, text
from grader.course import workspace
from grader.course.tree import Course

STARS = re.compile(r"^[★☆]+ · .*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SETUP = "setup"  # first word of the names of all setup cells; no exercise is called so


@dataclass(frozen=True)
class CourseDiff:
    """A copy, and what the course's notebook has become since it was made.

    `changed` names for each exercise which of its parts are others: task, answer cell, checks; under SETUP nothing more
    need be said. `added` are exercises that the copy has not, `gone` those that only the copy has. `words` says whether
    anything else differs: prose, what is told after an exercise, the whole of a lesson. `problem` is why the copy
    cannot be read; then nothing else is known.
    """

    copy: workspace.Copy
    changed: Mapping[str, tuple[str, ...]]
    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    words: bool = False
    problem: str | None = None

    @property
    def matters(self) -> bool:
        """Whether it touches what a learner has done or has to do."""
        return bool(self.changed or self.added or self.gone)

    @property
    def summary(self) -> str:
        """What has become of the exercises, in one line."""
        parts = [f"{name} ({', '.join(what)})" if what else name for name, what in self.changed.items()]
        said = (("changed", parts), ("not in your copy", self.added), ("no longer in the course", self.gone))
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in said if names)


def diff_all(course: Course, lessons: Iterable[str] | None = None) -> list[CourseDiff]:
    """The copies that the course has a newer notebook for, or that cannot be read; of these lessons, or of all."""
    copies = [copy for one in (course.ids if lessons is None else lessons) for copy in workspace.planned(course, one)]
    return [found for copy in copies if (found := diff_copy(copy)) is not None]


def diff_copy(copy: workspace.Copy) -> CourseDiff | None:
    """What the course has changed since `copy` was made; None where that is nothing, or where there is no copy.

    A link is an arrangement of the learner's, and none of ours.
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
    """What is other in the course's notebook `new` than it was in the one that `own` was made from."""
    then, now = cell_origin.by_name(own["cells"]), cell_origin.by_name(new["cells"])
    if not then:  # nothing in it says what it was made from: it is as old as its text
        texts = {text(cell) for cell in own["cells"]}
        return CourseDiff(copy, {}, words=any(text(cell) not in texts for cell in now.values()))
    begun, there = exercises(then.values()), exercises(now.values())
    changed: dict[str, list[str]] = {}
    words = False
    for name in [*now, *(name for name in then if name not in now)]:
        if name in then and name in now and _sum(then[name]) == _sum(now[name]):
            continue
        exercise, part = owner(name, [*there, *begun]), _part(name, now.get(name) or then[name])
        if part == SETUP:
            changed[SETUP] = []
        elif part == "task" and name in then and name in now and _asks(then[name]) == _asks(now[name]):
            words = True
        elif part is not None and (exercise is None or (exercise in begun and exercise in there)):
            parts = changed.setdefault(exercise or name, [])
            parts += [part] if part not in parts else []
        else:
            words = True
    return CourseDiff(
        copy,
        {name: tuple(parts) for name, parts in changed.items()},
        tuple(name for name in there if name not in begun),
        tuple(name for name in begun if name not in there),
        words,
    )


def exercises(cells: Iterable[NotebookCell]) -> list[str]:
    """The names of what is to be answered, each once: cells to fill in, and tasks that a person grades."""
    asked = [cell for cell in cells if is_answer(cell) or nbgrader(cell).get("task")]
    return list(cell_origin.by_name(asked))


def owner(name: str, among: Collection[str]) -> str | None:
    """The exercise that a cell of the course belongs to, as its name says: vmap-axes for vmap-axes-values."""
    fitting = [one for one in among if name == one or name.startswith(f"{one}-")]
    return max(fitting, key=len, default=None)


def _asks(cell: NotebookCell) -> str:
    """A task without what a new lesson changes: its line of stars, minutes and lessons, and where links lead."""
    return LINK.sub(r"\1", STARS.sub("", text(cell)))


def _sum(cell: NotebookCell) -> str:
    said = cell_origin.origin_of(cell)
    return (said.checksum if said is not None else None) or checksum(cell)


def _part(name: str, cell: NotebookCell) -> str | None:
    """What the cell is to its exercise; None for what is read after it, and for prose."""
    said = nbgrader(cell)
    if is_answer(cell):
        return "answer cell"
    if said.get("task") or name.endswith("-task"):
        return "task"
    if said.get("grade"):
        return "checks"
    return SETUP if cell["cell_type"] == "code" and name.split("-")[0] == SETUP else None
