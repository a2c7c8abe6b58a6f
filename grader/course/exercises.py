"""A lesson's exercises as data: what the rest of the grader reads of an authored file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grader.core import symbols
from grader.core.points import total
from grader.course.percent import Cell, Files

BEGIN_SOLUTION = "### BEGIN SOLUTION"
END_SOLUTION = "### END SOLUTION"
INSTALL = "install"  # the id of the cell that installs the package on a platform without it
GRADING = "grade"  # the last cell's id, which grades the notebook; an exercise's has two words
# nbgrader's own words for what it takes out; it looks for the short forms of the markers anywhere in a line.
STUB_LINES = ("# YOUR CODE HERE", "raise NotImplementedError()")
SOLUTION = re.compile(r"^([ \t]*).*BEGIN SOLUTION.*\n((?:.*\n)*?).*END SOLUTION.*$", re.MULTILINE)


@dataclass(frozen=True)
class Check:
    """One check cell. `line` is that of its `# %%`."""

    id: str
    exercise: str
    title: str
    source: str
    points: float
    hidden: bool
    observed: bool
    line: int

    @classmethod
    def of(cls, cell: Cell, check_id: str, exercise: str, title: str) -> Check:
        """Returns the check in a cell. One with a part that nbgrader hides is hidden: its messages contain no input."""
        hidden = cell.kind == "hidden" or "BEGIN HIDDEN TESTS" in cell.source
        points, observed = cell.attributes["points"], cell.attributes.get("observed", False)
        return cls(check_id, exercise, title, cell.source, points, hidden, observed, cell.line)


@dataclass(frozen=True)
class Variant:
    """Another whole answer: a wrong one with the misconception behind it, or a right one."""

    source: str
    because: str | None
    line: int


@dataclass(frozen=True)
class Equivalent:
    """Mutants of the reference that are right, by their labels (`grader.prove.mutants`), and the reason."""

    labels: tuple[str, ...]
    because: str
    line: int


@dataclass(frozen=True)
class Exercise:
    """One exercise. `stub` is the learner's answer cell, byte for byte; `reference` the same with the solution in it.
    `names` are those that the stub binds at top level, and that checks use. A `timeout` of None is the grader's own."""

    id: str
    title: str
    names: tuple[str, ...]
    stub: str
    reference: str
    checks: tuple[Check, ...]
    line: int
    stars: int = 1
    minutes: int = 0
    skills: tuple[str, ...] = ()
    wrong: tuple[Variant, ...] = ()
    right: tuple[Variant, ...] = ()
    equivalent: tuple[Equivalent, ...] = field(default=(), repr=False)  # no verdict depends on it
    why: str = ""
    timeout: float | None = None

    @property
    def points(self) -> float:
        return total(check.points for check in self.checks)


@dataclass(frozen=True)
class Task:
    """A task that a person grades. `source` may contain a mark scheme, which learners do not see."""

    id: str
    title: str
    points: float
    source: str
    line: int
    stars: int = 1
    minutes: int = 0
    skills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """A lesson's exercises. In an overlay the text may be in two `files`, of which `path` is the first; lines are
    counted on from one to the next (see `where`). `setup` is the source of all setup cells, `setup_names` every name
    it binds at top level. `tasks` are what a person grades beside the exercises. `data` are files by their paths beside
    the notebook, and `own_files_bytes` what a learner's own files there may have."""

    id: str
    title: str
    path: Path
    setup: str
    setup_names: frozenset[str]
    exercises: tuple[Exercise, ...]
    cells: tuple[Cell, ...] = field(repr=False)
    files: Files = field(repr=False)
    tasks: tuple[Task, ...] = ()
    data: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    own_files_bytes: int = 0

    def where(self, line: int) -> str:
        """Returns a line of the text as a reader finds it: with its file if there is more than one."""
        path, number = self.files.place(line)
        return f"line {number}" if len(self.files.paths) == 1 else f"line {number} of {path}"

    @property
    def points(self) -> float:
        """What the grader gives: the points of the exercises, without those of tasks."""
        return total(exercise.points for exercise in self.exercises)

    @property
    def devices(self) -> int:
        """The most devices that the setup starts with `devices.start` (8 where it gives no number), else 1."""
        numbers = [1]
        for node in ast.walk(ast.parse(self.setup)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "devices.start":
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                number = given[0].value if given and isinstance(given[0], ast.Constant) else None
                numbers.append(number if isinstance(number, int) else 8)
        return max(numbers)

    def exercise(self, exercise_id: str) -> Exercise:
        """Returns the exercise of that id. Raises KeyError if the lesson has none."""
        return {exercise.id: exercise for exercise in self.exercises}[exercise_id]

    def matching(self, typed: str) -> list[Exercise]:
        """Returns the exercises with this title or id, or if there are none, with this in their title or id."""
        wanted = typed.casefold()
        names = [(one, (one.id, one.title.replace("`", "").casefold())) for one in self.exercises]
        exact = [one for one, texts in names if wanted.replace("`", "") in texts]
        return exact or [one for one, texts in names if any(wanted in text for text in texts)]


@dataclass
class Parts:
    """The cells that name one exercise, before anything else is known about them."""

    id: str
    cells: list[Cell]

    def of(self, *kinds: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.kind in kinds]

    @property
    def checks(self) -> list[Cell]:
        return self.of("check", "hidden")

    @property
    def by_hand(self) -> bool:
        """Whether this is a task that a person grades."""
        return any("points" in cell.attributes for cell in self.of("task"))


def parts(cells: Iterable[Cell]) -> list[Parts]:
    """Returns the cells by exercise, in order of first mention."""
    found: dict[str, Parts] = {}
    for cell in cells:
        if cell.id is not None:
            found.setdefault(cell.id, Parts(cell.id, [])).cells.append(cell)
    return list(found.values())


def stub(answer: str) -> str:
    """Returns what nbgrader's ClearSolutions leaves of an answer cell."""
    return SOLUTION.sub(lambda found: "\n".join(found[1] + line for line in STUB_LINES), answer)


def reference(answer: str) -> str:
    """Returns an answer cell with its solution and without the marker lines."""
    return "\n".join(line for line in answer.split("\n") if not is_marker(line))


def is_marker(line: str) -> bool:
    """Returns whether a line of an answer cell begins or ends its solution."""
    return "BEGIN SOLUTION" in line or "END SOLUTION" in line


def solution(answer: str) -> list[str]:
    """Returns the lines between the markers."""
    return [line for found in SOLUTION.finditer(answer) for line in found[2].splitlines()]


def title_of_check(source: str) -> str | None:
    """Returns the one-line docstring of a check cell, or None."""
    docstring = ast.get_docstring(ast.parse(source))
    return docstring if docstring and "\n" not in docstring.strip() else None


def labels(equivalent: str) -> tuple[str, ...]:
    """Returns the mutants that an `equivalent` cell lists, a comment each."""
    return tuple(line.removeprefix("#").strip() for line in equivalent.split("\n") if line.strip("# "))


def title_of_task(source: str) -> str | None:
    match = re.search(r"^##? +(.+?) *$", source, re.MULTILINE)
    return match[1] if match else None


def skills(task: Cell) -> tuple[str, ...]:
    return tuple(skill.strip() for skill in task.attributes.get("skills", "").split(",") if skill.strip())


def exercise(of: Parts) -> Exercise:
    """Returns the exercise that these cells make; they follow every rule."""
    [task], [answer], [why] = of.of("task"), of.of("answer"), of.of("why")
    return Exercise(
        id=of.id,
        title=title_of_task(task.source) or of.id,
        stars=task.attributes["stars"],
        minutes=task.attributes["minutes"],
        skills=skills(task),
        names=symbols.defined(stub(answer.source)),
        stub=stub(answer.source),
        reference=reference(answer.source),
        checks=tuple(
            Check.of(cell, f"{of.id}-{cell.attributes['name']}", of.id, title_of_check(cell.source) or "")
            for cell in of.checks
        ),
        wrong=tuple(Variant(cell.source, cell.attributes["because"], cell.line) for cell in of.of("wrong")),
        right=tuple(Variant(cell.source, None, cell.line) for cell in of.of("right")),
        equivalent=tuple(
            Equivalent(labels(cell.source), cell.attributes["because"], cell.line) for cell in of.of("equivalent")
        ),
        why=why.source,
        timeout=answer.attributes.get("timeout"),
        line=task.line,
    )


def task(of: Parts) -> Task:
    """Returns the task for a person that this cell makes; it follows every rule."""
    [cell] = of.cells
    given = cell.attributes
    title = title_of_task(cell.source) or of.id
    return Task(of.id, title, given["points"], cell.source, cell.line, given["stars"], given["minutes"], skills(cell))
