"""A lesson's exercises as data: what the rest of the grader is given of an authored file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grader.core import symbols
from grader.course.percent import Cell
from grader.course.problems import Files

BEGIN_SOLUTION = "### BEGIN SOLUTION"
END_SOLUTION = "### END SOLUTION"
GRADING = "grade"  # the last cell's id, which grades the notebook; an exercise's has two words
BEGIN_SCHEME = "### BEGIN MARK SCHEME"
END_SCHEME = "### END MARK SCHEME"
# nbgrader's own words for what it takes out; it looks for the short forms anywhere in a line.
STUB_LINES = ("# YOUR CODE HERE", "raise NotImplementedError()")


@dataclass(frozen=True)
class Check:
    """One check cell. `line` is that of its `# %%` line; `first` that of line 1 of `source`."""

    id: str
    exercise: str
    name: str
    title: str
    source: str
    points: float
    hidden: bool
    observed: bool
    line: int
    first: int


@dataclass(frozen=True)
class Variant:
    """Another whole answer: a wrong one with the misconception behind it, or a right one."""

    source: str
    because: str | None
    line: int


@dataclass(frozen=True)
class Exercise:
    """One exercise. `stub` is the learner's answer cell, byte for byte; `reference` the same with the solution in it.

    `names` are what the stub binds at top level by def, class or assignment: the names that checks ask for.
    `timeout` is in seconds, None for the grader's own.
    """

    id: str
    title: str
    stars: int
    minutes: int
    skills: tuple[str, ...]
    names: tuple[str, ...]
    stub: str
    reference: str
    checks: tuple[Check, ...]
    wrong: tuple[Variant, ...]
    right: tuple[Variant, ...]
    why: str
    timeout: float | None
    line: int

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)


@dataclass(frozen=True)
class Task:
    """A task that a person grades: it has points of its own, and nothing that the grader could judge.

    `source` may hold a mark scheme between nbgrader's own markers, which learners do not see.
    """

    id: str
    title: str
    stars: int
    minutes: int
    skills: tuple[str, ...]
    points: float
    source: str
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson's exercises. `path` is their authored file; `text_path` the lesson's own script where there is one.

    In an overlay the text may stand in two `files`: lines are counted on from one to the next (see `where`), and `path`
    is the first. `setup` is the source of all setup cells, in order; `setup_names` every name it binds at top level.
    `points` are those of the exercises: what the grader gives. `tasks` are what a person grades beside them.
    """

    id: str
    title: str
    path: Path
    text_path: Path | None
    setup: str
    setup_names: frozenset[str]
    exercises: tuple[Exercise, ...]
    cells: tuple[Cell, ...] = field(repr=False)
    files: Files = field(repr=False)
    tasks: tuple[Task, ...] = ()

    def where(self, line: int) -> str:
        """A line of the text as a reader finds it: with its file where there is more than one."""
        path, number = self.files.place(line)
        return f"line {number}" if len(self.files.paths) == 1 else f"line {number} of {path}"

    @property
    def points(self) -> float:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def devices(self) -> int:
        """How many devices the lesson needs: what its setup asks `devices.start` for, else 1."""
        return _devices(self.setup)

    def exercise(self, exercise_id: str) -> Exercise:
        """The exercise of that id; KeyError when the lesson has none."""
        for exercise in self.exercises:
            if exercise.id == exercise_id:
                return exercise
        raise KeyError(exercise_id)


@dataclass
class Parts:
    """The cells that name one exercise, before anything is known of them."""

    id: str
    cells: list[Cell]

    def of(self, *kinds: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.kind in kinds]

    def one(self, kind: str) -> Cell | None:
        return next(iter(self.of(kind)), None)

    @property
    def checks(self) -> list[Cell]:
        return self.of("check", "hidden")

    @property
    def by_hand(self) -> bool:
        """Whether this is a task that a person grades."""
        return any("points" in cell.attributes for cell in self.of("task"))


def parts(cells: Iterable[Cell]) -> list[Parts]:
    """The cells by exercise, in order of first mention."""
    found: dict[str, Parts] = {}
    for cell in cells:
        if cell.id is not None:
            found.setdefault(cell.id, Parts(cell.id, [])).cells.append(cell)
    return list(found.values())


def stub(answer: str) -> str:
    """What nbgrader's ClearSolutions leaves of an answer cell."""
    kept: list[str] = []
    inside = False
    for line in answer.split("\n"):
        if "BEGIN SOLUTION" in line:
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            kept.extend(indent + replacement for replacement in STUB_LINES)
        elif "END SOLUTION" in line:
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def reference(answer: str) -> str:
    """An answer cell with its solution and without the marker lines."""
    return "\n".join(line for line in answer.split("\n") if "BEGIN SOLUTION" not in line and "END SOLUTION" not in line)


def solution(answer: str) -> list[str]:
    """The lines between the markers."""
    kept, inside = [], False
    for line in answer.split("\n"):
        if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
            inside = "BEGIN SOLUTION" in line
        elif inside:
            kept.append(line)
    return kept


def title_of_check(source: str) -> str | None:
    """The one-line docstring that a check cell opens with, or None."""
    docstring = ast.get_docstring(ast.parse(source))
    return docstring if docstring and "\n" not in docstring.strip() else None


def title_of_task(source: str) -> str | None:
    match = re.search(r"^##? +(.+?) *$", source, re.MULTILINE)
    return match[1] if match else None


def exercise(of: Parts) -> Exercise:
    """The exercise that these cells make; they keep every rule."""
    task, answer, why = of.one("task"), of.one("answer"), of.one("why")
    assert task is not None
    assert answer is not None
    assert why is not None
    return Exercise(
        id=of.id,
        title=title_of_task(task.source) or of.id,
        stars=task.attributes["stars"],
        minutes=task.attributes["minutes"],
        skills=skills(task),
        names=symbols.defined(stub(answer.source)),
        stub=stub(answer.source),
        reference=reference(answer.source),
        checks=tuple(_check(of.id, cell) for cell in of.checks),
        wrong=tuple(Variant(cell.source, cell.attributes["because"], cell.line) for cell in of.of("wrong")),
        right=tuple(Variant(cell.source, None, cell.line) for cell in of.of("right")),
        why=why.source,
        timeout=answer.attributes.get("timeout"),
        line=task.line,
    )


def task(of: Parts) -> Task:
    """The task by hand that these cells make; they keep every rule."""
    [cell] = of.cells
    return Task(
        id=of.id,
        title=title_of_task(cell.source) or of.id,
        stars=cell.attributes["stars"],
        minutes=cell.attributes["minutes"],
        skills=skills(cell),
        points=cell.attributes["points"],
        source=cell.source,
        line=cell.line,
    )


def skills(task: Cell) -> tuple[str, ...]:
    return tuple(skill.strip() for skill in task.attributes.get("skills", "").split(",") if skill.strip())


def _check(exercise_id: str, cell: Cell) -> Check:
    name = cell.attributes["name"]
    return Check(
        id=f"{exercise_id}-{name}",
        exercise=exercise_id,
        name=name,
        title=title_of_check(cell.source) or "",
        source=cell.source,
        points=cell.attributes["points"],
        hidden=cell.kind == "hidden",
        observed=cell.attributes.get("observed", False),
        line=cell.line,
        first=cell.first,
    )


def _devices(setup: str) -> int:
    """The most devices that a setup asks `devices.start` for, 8 where it gives no number; 1 where it never asks."""
    asked = [1]
    for node in ast.walk(ast.parse(setup)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "devices.start":
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            number = given[0].value if given and isinstance(given[0], ast.Constant) else None
            asked.append(number if isinstance(number, int) else 8)
    return max(asked)
