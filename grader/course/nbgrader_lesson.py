"""What the grader can judge of an imported text: its exercises, and each check that is left to do by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.core import symbols
from grader.course import assertions, exercises, rules_evidence
from grader.course.assertions import Left
from grader.course.exercises import GRADING, Check, Exercise, Lesson, Task
from grader.course.nbgrader_source import ImportedText
from grader.course.percent import Cell
from grader.course.problems import Files, Findings

MAGIC_LINE = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
MEND = "Put it into the grader's words: docs/importing.md says how"


@dataclass(frozen=True)
class GradableParts:
    """Setup and exercises as they are graded, and what keeps a check, by its cell's line, from being judged."""

    setup: str
    exercises: tuple[Exercise, ...]
    left: dict[int, Left]


def lesson(adopted: ImportedText, title: str, text_path: Path | None) -> Lesson:
    """The lesson as it is graded; CourseError names every check that is left to do by hand."""
    findings = Findings(adopted.shown)
    judged, opening = read(adopted), _opening(adopted.cells)
    for cell in adopted.cells:
        if cell.line in judged.left:
            left = judged.left[cell.line]
            findings.add(cell.first + left.line - 1, f"the grader cannot judge `{cell.id}`: {left.reason}", MEND)
        elif cell.kind == "check":
            rules_evidence.check(cell, (), findings)
        elif cell.id == GRADING and cell.form == "code" and GRADING not in {one.id for one in judged.exercises}:
            message = f"`{cell.id}` would not run when it is graded: the grader keeps the name for a cell of its own"
            findings.add(cell.line, message, "Rename it")
        elif cell.form == "code" and (cell.id or "").split("-")[0] == "setup" and cell not in opening:
            message = f"`{cell.id}` would not run when it is graded: the grader keeps such names for what stands first"
            findings.add(cell.line, message, "Move it before the first answer, or rename it")
    findings.stop()
    return Lesson(
        id=adopted.id,
        title=title,
        path=adopted.path,
        files=Files((adopted.shown,)),
        text_path=text_path,
        setup=judged.setup,
        setup_names=symbols.cell_names(judged.setup).binds,
        exercises=judged.exercises,
        cells=adopted.cells,
        tasks=tuple(_by_hand(cell) for cell in adopted.cells if cell.kind in ("manual", "task")),
    )


def read(adopted: ImportedText) -> GradableParts:
    """The exercises: each answer with the checks that ask for it, and for no answer after it."""
    setup = _setup(adopted.cells)
    bound = symbols.cell_names(setup).binds
    answers: dict[str, Cell] = {}
    kinds: dict[str, str] = {}
    owners: dict[str, str] = {}
    checks: dict[str, list[Check]] = {}
    left: dict[int, Left] = {}
    for cell in adopted.cells:
        if cell.kind == "answer" and cell.id is not None and symbols.syntax_error(cell.source) is None:
            answers[cell.id] = cell
            kinds |= _kinds(cell.source)
            owners |= dict.fromkeys(_kinds(cell.source), cell.id)
        elif cell.kind == "check" and cell.id is not None:
            source = assertions.read(cell.source, kinds, bound)
            if isinstance(source, Left):
                left[cell.line] = source
                continue
            asked = {owners[name] for name in kinds if name in symbols.cell_names(source).free}
            owner = max(asked, key=list(answers).index)
            checks.setdefault(owner, []).append(_check(cell, owner, source))
    made = tuple(_exercise(cell, checks[name]) for name, cell in answers.items() if name in checks)
    return GradableParts(setup, made, left)


def _opening(cells: Sequence[Cell]) -> list[Cell]:
    """The code that stands before the first answer: it runs on both sides."""
    answers = (cell.line for cell in cells if cell.kind in ("answer", "check", "manual"))
    begin = next(answers, cells[-1].line + 1 if cells else 0)
    return [cell for cell in cells if cell.form == "code" and cell.line < begin]


def _setup(cells: Sequence[Cell]) -> str:
    """The opening, with the words that checks are read in. Magics mean nothing on the grader's side."""
    sources = [MAGIC_LINE.sub(r"\1pass", cell.source) for cell in _opening(cells) if not cell.source.startswith("%%")]
    whole = [source for source in sources if symbols.syntax_error(source) is None]
    return "\n\n".join([*whole, "from grader.checks import ask"])


def _kinds(answer: str) -> dict[str, str]:
    """What each name is that an answer binds: a function, a class or a value."""
    found = dict.fromkeys(symbols.defined(answer), "value")
    for node in ast.parse(answer).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = "class"
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = "function"
    return found


def _by_hand(cell: Cell) -> Task:
    assert cell.id is not None
    return Task(cell.id, cell.id, 1, 0, (), cell.attributes["points"], cell.source, cell.line)


def _check(cell: Cell, exercise: str, source: str) -> Check:
    """A cell of which a part is hidden is judged as a hidden check: its messages tell no input."""
    assert cell.id is not None
    opening = ast.get_docstring(ast.parse(cell.source)) or ""
    seen = not cell.source.lstrip().startswith("#") and opening.strip()
    return Check(
        id=cell.id,
        exercise=exercise,
        name=cell.id,
        title=opening.strip().splitlines()[0] if seen else cell.id,
        source=source,
        points=cell.attributes["points"],
        hidden="BEGIN HIDDEN TESTS" in cell.source,
        observed=cell.attributes.get("observed", False),
        line=cell.line,
        first=cell.first,
    )


def _exercise(cell: Cell, checks: Sequence[Check]) -> Exercise:
    assert cell.id is not None
    whole = "BEGIN SOLUTION" in cell.source
    return Exercise(
        id=cell.id,
        title=cell.id,
        stars=1,
        minutes=0,
        skills=(),
        names=symbols.defined(cell.source),
        # Without markers nbgrader takes out the whole cell.
        stub=exercises.stub(cell.source) if whole else "\n".join(exercises.STUB_LINES),
        reference=cell.source,  # its markers are comments, and may stand behind code
        checks=tuple(checks),
        wrong=(),
        right=(),
        why="",
        timeout=None,
        line=cell.line,
    )
