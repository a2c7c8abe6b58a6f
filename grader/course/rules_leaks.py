"""Nothing that a learner sees may hold a solution or a hidden check.

A text is a leak when a line of it that says something stands word for word where the learner looks. Lines that any
answer could have are no leak, and a visible check may open with the same two lines as a hidden one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from grader.course import exercises
from grader.course.exercises import BEGIN_SCHEME, END_SCHEME
from grader.course.percent import Cell
from grader.course.problems import Findings

SHORTEST = 20  # characters; `return x + y` is no secret
LONGEST_SHARED = 2  # lines in a row that a visible and a hidden check may share
# nbgrader cuts at these words wherever they stand, and runs what follows AUTOTEST.
NBGRADER_WORDS = ("BEGIN HIDDEN TESTS", "END HIDDEN TESTS", "BEGIN MARK SCHEME", "END MARK SCHEME", "AUTOTEST")


def check(cells: Collection[Cell], findings: Findings) -> None:
    for cell in cells:
        _words(cell, findings)
    solutions = _solution_lines(cells)
    hidden = [(cell.id, telling(cell.source.split("\n")[1:])) for cell in cells if cell.kind == "hidden"]
    for cell in cells:
        if cell.prose:
            _prose(cell, solutions, "the solution", findings)
            for owner, lines in hidden:
                _prose(cell, dict.fromkeys(lines, owner), "a hidden check", findings)
        elif cell.kind in ("check", "setup", "answer"):
            _code(cell, solutions, hidden, findings)


def _words(cell: Cell, findings: Findings) -> None:
    by_hand = cell.kind == "task" and "points" in cell.attributes
    for number, line in enumerate(cell.source.split("\n"), cell.first):
        for word in NBGRADER_WORDS:
            if word in line and not (line in (BEGIN_SCHEME, END_SCHEME) and by_hand):
                findings.add(number, f"`{word}` is written by hand", 'Put hidden text into a `# %% hidden="..."` cell')
        if cell.kind != "answer" and ("BEGIN SOLUTION" in line or "END SOLUTION" in line):
            findings.add(number, "a SOLUTION marker outside an answer cell", "Take the marker out")


def telling(lines: Iterable[str]) -> list[str]:
    """The lines that say something, stripped; comments and imports say nothing about an answer."""
    stripped = [line.strip().removeprefix("return ") for line in lines]
    return [line for line in stripped if len(line) >= SHORTEST and not line.startswith(("#", "import ", "from "))]


def _solution_lines(cells: Iterable[Cell]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for cell in cells:
        if cell.kind == "answer":
            shown = set(telling(exercises.stub(cell.source).split("\n")))
            found.update({line: cell.id for line in telling(exercises.solution(cell.source)) if line not in shown})
    return found


def _prose(cell: Cell, secrets: dict[str, str | None], what: str, findings: Findings) -> None:
    for number, line in enumerate(cell.source.split("\n"), cell.first):
        for secret, owner in secrets.items():
            if secret in line:
                findings.add(number, f"the text shows {what} of `{owner}`: `{secret}`", "Say it in other words")


def _code(
    cell: Cell, solutions: dict[str, str | None], hidden: Iterable[tuple[str | None, list[str]]], findings: Findings
) -> None:
    seen = exercises.stub(cell.source) if cell.kind == "answer" else cell.source
    shown = {line.strip().removeprefix("return ") for line in seen.split("\n")}
    for secret, owner in solutions.items():
        if secret in shown:
            line = _line_of(cell, secret)
            findings.add(line, f"the cell shows the solution of `{owner}`: `{secret}`", "Write it another way")
    for owner, lines in hidden:
        for start in range(len(lines) - LONGEST_SHARED):
            run = lines[start : start + LONGEST_SHARED + 1]
            if shown.issuperset(run):
                line = _line_of(cell, run[0])
                message = f"the cell shows {len(run)} lines of a hidden check of `{owner}`, from `{run[0]}` on"
                findings.add(line, message, "Let the hidden check differ, or move what they share to setup")
                break


def _line_of(cell: Cell, text: str) -> int:
    lines = cell.source.split("\n")
    return next(number for number, line in enumerate(lines, cell.first) if text in line)
