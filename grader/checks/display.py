"""What stands under a check in a notebook: the tick and the why, or what helps beside the error, and the next hint."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable
from html import escape
from typing import Any

from grader.checks import facts, facts_read, layouts, shapes
from grader.checks.cell_state import RunningCheck
from grader.checks.compare import require
from grader.checks.failure import FailedComparison, failed_comparison
from grader.checks.hints import ExerciseContext, NotebookOnDisk
from grader.checks.outcomes import LINES, CheckFailed, Ended
from grader.core.symbols import CellNames
from grader.core.text import legible

# JupyterLab's own green, which its themes choose to be read; then VS Code's; then one for white paper.
GREEN = "var(--jp-success-color0, var(--vscode-testing-iconPassed, #1a7f37))"
Answer = frozenset[str]  # the texts of the cells that an answer is made of


class VerdictDisplay:
    """Shows how checks ended, and remembers what a kernel's learner has tried, to know the next hint."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.saved = NotebookOnDisk(namespace)
        self._cells: dict[str, tuple[str, frozenset[str]]] = {}  # by name bound: the cell's text, the names it needs
        self._tried: dict[str, list[Answer]] = {}  # by exercise: the different answers that failed, in order
        self._passed: dict[str, tuple[Answer, set[str]]] = {}  # by exercise: an answer and the checks that it passes

    def answered(self, names: CellNames, source: str) -> None:
        """A cell of the learner's ran."""
        self._cells.update(dict.fromkeys(names.binds, (source, names.needs)))

    def passed(self, check: RunningCheck) -> None:
        """The tick; with the last of an exercise's checks, why the answer works."""
        text = f"✓ {check.title}"
        _display(text, html=f'<div style="color: {GREEN}" role="status">{escape(text)}</div>')
        with contextlib.suppress(Exception):  # whatever a notebook's file holds, the tick is what counts
            self._why(check)

    def failed(self, check: RunningCheck, problem: BaseException | None) -> None:
        """Beside the error: the rest of a long message, then the next hint."""
        if check.hidden or not isinstance(problem, Ended):
            return
        with contextlib.suppress(Exception):  # the error stands; a fault of what stands below must not hide it
            _whole(problem, check.title)
        if isinstance(problem, CheckFailed):
            with contextlib.suppress(Exception):
                _beside(problem)
            with contextlib.suppress(Exception):
                self._hint(check)

    def _why(self, check: RunningCheck) -> None:
        place = None if check.hidden else self.saved.exercise(check.source, check.cell_id)
        if place is None:
            return
        exercise, check_id = place
        answer = self._answer(exercise.needs)
        before, passed = self._passed.get(exercise.id, (answer, set()))
        passed = {check_id} | (passed if before == answer else set())
        self._passed[exercise.id] = answer, passed
        if exercise.why and passed >= exercise.checks:
            title = f"Why it works{', once the hidden checks pass too' if exercise.hidden else ''}"
            _display("Why it works stands below the checks.", markdown=_fold(title, exercise.why))

    def _hint(self, check: RunningCheck) -> None:
        place = self.saved.exercise(check.source, check.cell_id)
        if place is None or not place[0].hints:
            return
        exercise = place[0]
        tried, answer = self._tried.setdefault(exercise.id, []), self._answer(exercise.needs)
        if answer not in tried:
            tried.append(answer)
        plain, markdown = hints(exercise, len(tried))
        _display(plain, markdown=markdown)

    def _answer(self, needs: Iterable[str]) -> Answer:
        """The texts of the learner's cells behind these names, and behind the names that those need."""
        todo, seen, texts = set(needs), set[str](), set[str]()
        while todo:
            seen.add(name := todo.pop())
            text, further = self._cells.get(name, ("", frozenset()))
            texts.add(text)
            todo |= further - seen
        return frozenset(texts)


def hints(exercise: ExerciseContext, count: int) -> tuple[str, str]:
    """The hint of this number, or the last one there is, with the earlier ones below it: plain text, and Markdown."""
    newest, *earlier = reversed(exercise.hints[:count])
    title, said = newest
    below = "".join(f"\n\n**{title}**\n\n{said}" for title, said in earlier)
    return f"{title.partition(' · ')[0]} is in the task above.", _fold(title, said + below)


def _fold(title: str, markdown: str) -> str:
    # Without the blank lines some renderers show the text inside as it stands, asterisks and all.
    return f"<details><summary>{title}</summary>\n\n{markdown}\n\n</details>"


def _beside(problem: CheckFailed) -> None:
    """What was found and wanted, where it helps beside the message: facts of programs, shapes, layouts."""
    read = facts_read.facts()
    compared = failed_comparison(problem, require.__code__)
    pair = problem.shapes or _shapes(compared)
    drawn = layouts.layouts(compared)
    table = facts.rows(compared, read, problem.message)
    html, plain = [], []
    if table:
        html, plain = [facts.html(table)], facts.plain(table)
    if pair:
        html, plain = [*html, shapes.html(*pair)], [*plain, *shapes.plain(*pair)]
    if drawn:
        html, plain = [*html, layouts.html(drawn)], [*plain, *layouts.plain(drawn)]
    if html:
        _display("\n".join(plain[:LINES]), html="".join(html))


def _shapes(compared: FailedComparison | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Where a shape was compared by name."""
    if compared is None or not (
        isinstance(compared.found.origin, ast.Attribute) and compared.found.origin.attr == "shape"
    ):
        return None
    pair = compared.found.value, compared.wanted.value
    sizes = all(type(shape) is tuple and all(type(size) is int for size in shape) for shape in pair)
    return pair if sizes else None


def _whole(problem: Ended, title: str) -> None:
    """Below an error that shows the first lines of a long message: all of it, folded."""
    *_, left_out = problem.glance(title)
    if not left_out:
        return
    name, text, of = "The whole message", f"{problem.message}\n{problem.advice}", ""
    if problem.details:  # of our own words before them nothing is left out
        name, text, of = "The error in full", problem.details, ".details"
    text = escape(legible(text.strip()))
    html = f'<pre style="white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere">{text}</pre>'
    plain = f"{name}: import sys; print(sys.last_value{of})"
    _display(plain, html=f"<details><summary>{name}</summary>{html}</details>")


def _display(plain: str, html: str = "", markdown: str = "") -> None:
    from IPython.display import display

    said = {"text/plain": plain, "text/html": html, "text/markdown": markdown}
    display({kind: text for kind, text in said.items() if text}, raw=True)
