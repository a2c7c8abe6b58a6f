"""Output under a check in a notebook: the tick and why the answer works, or what helps beside the error, and a hint.

Hints and explanations come from the notebook file that the kernel belongs to, as it was saved last.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from html import escape
from typing import Any, NamedTuple

from grader.checks import drawings
from grader.checks.compare import require
from grader.checks.failure import failed_comparison
from grader.checks.outcomes import LINES, CellRun, CheckFailed, Ended
from grader.checks.verbs import facts_read
from grader.core import notebook
from grader.core.layout import session_notebook
from grader.core.notebook import Hint, NotebookCell, Unreadable, hints, is_check, is_public_check, text
from grader.core.symbols import CellNames, notebook_cell_names
from grader.core.text import legible

# JupyterLab's own green, which its themes choose for legibility; then VS Code's; then one for white paper.
GREEN = "var(--jp-success-color0, var(--vscode-testing-iconPassed, #1a7f37))"
WHY = re.compile(r"<details>\s*<summary>[^<]*</summary>(.*?)</details>", re.DOTALL)
MAX_TEXT = 20_000  # characters of a task
Answer = frozenset[str]  # the texts of the cells that an answer is made of


class ExerciseContext(NamedTuple):
    """One exercise of a saved notebook, and the check in it that was looked for."""

    id: str
    check: str  # id
    hints: tuple[Hint, ...]
    why: str  # Markdown that explains why the answer works
    checks: frozenset[str]  # ids of the public ones
    needs: frozenset[str]  # names that these checks need
    hidden: bool  # whether there are hidden checks too


def _grade_id(cell: NotebookCell) -> str:
    return notebook.grade_id(cell) or ""


def _context(cells: list[NotebookCell], place: int) -> ExerciseContext:
    """From the task above the check at `place` to the next task."""
    starts = [i for i, cell in enumerate(cells) if _grade_id(cell).endswith("-task")]
    first = max((i for i in starts if i < place), default=place)
    own = cells[first : min((i for i in starts if i > place), default=len(cells))]
    why = next((text(cell) for cell in own if _grade_id(cell).endswith("-why")), "")
    checks = [cell for cell in own if is_public_check(cell)]
    return ExerciseContext(
        _grade_id(own[0]).removesuffix("-task"),
        _grade_id(cells[place]),
        hints(text(own[0])[:MAX_TEXT]) if first != place else (),
        next((content.strip() for content in WHY.findall(why[:MAX_TEXT])), ""),
        frozenset(map(_grade_id, checks)),
        frozenset().union(*(notebook_cell_names(text(cell)).needs for cell in checks)),
        any(is_check(cell) and not is_public_check(cell) for cell in own),
    )


class VerdictDisplay:
    """Shows how checks ended, and remembers what a kernel's learner has tried, to choose the next hint."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._saved: list[NotebookCell] = []  # as the notebook's file was when it could be read last
        self._cells: dict[str, tuple[str, frozenset[str]]] = {}  # by name bound: the cell's text, the names it needs
        self._tried: dict[str, list[Answer]] = {}  # by exercise: the different answers that failed, in order
        self._passed: dict[str, tuple[Answer, set[str]]] = {}  # by exercise: an answer and the checks that it passes

    def answered(self, names: CellNames, source: str) -> None:
        """Notes that a cell of the learner's ran."""
        self._cells.update(dict.fromkeys(names.binds, (source, names.needs)))

    def passed(self, check: CellRun) -> None:
        """Shows the tick; with the last of an exercise's checks, why the answer works."""
        tick = f"✓ {check.title}"
        _display(tick, html=f'<div style="color: {GREEN}" role="status">{escape(tick)}</div>')
        with contextlib.suppress(Exception):  # whatever a notebook's file contains, the tick is what counts
            self._why(check)

    def failed(self, check: CellRun, problem: BaseException | None) -> None:
        """Shows beside the error the rest of a long message, drawings and facts, then the next hint."""
        if check.hidden or not isinstance(problem, Ended):
            return
        with contextlib.suppress(Exception):  # the error stands; a fault in what stands below must not hide it
            _whole(problem, check.title)
        if isinstance(problem, CheckFailed):
            with contextlib.suppress(Exception):
                _beside(problem)
            with contextlib.suppress(Exception):
                self._hint(check)

    def _exercise(self, check: CellRun) -> ExerciseContext | None:
        """The exercise of a check, found by the cell's id where the front end gives it, else by its text."""
        path = session_notebook(self.namespace)
        if path is not None and not path.is_file():  # a notebook that was renamed is in the same folder
            others = list(path.parent.glob("*.ipynb"))
            path = others[0] if len(others) == 1 else path
        with contextlib.suppress(OSError, Unreadable):  # gone, or half written
            if path is not None and path.stat().st_size <= notebook.MAX_BYTES:
                self._saved = notebook.cells(notebook.parse(path.read_bytes()))
        cells = self._saved
        same_id = [i for i, cell in enumerate(cells) if check.cell_id and cell.get("id") == check.cell_id]
        same_text = [i for i, cell in enumerate(cells) if text(cell).strip() == check.source.strip()]
        places = [i for i in (*same_id, *same_text) if is_public_check(cells[i])]
        return _context(cells, places[0]) if places else None

    def _why(self, check: CellRun) -> None:
        exercise = None if check.hidden else self._exercise(check)
        if exercise is None:
            return
        answer = self._answer(exercise.needs)
        before, passed = self._passed.get(exercise.id, (answer, set()))
        passed = {exercise.check} | (passed if before == answer else set())
        self._passed[exercise.id] = answer, passed
        if exercise.why and passed >= exercise.checks:
            title = f"Why it works{', once the hidden checks pass too' if exercise.hidden else ''}"
            _display("The explanation is below the checks.", markdown=_fold(title, exercise.why))

    def _hint(self, check: CellRun) -> None:
        """The hint for each new answer that fails, or the last one there is, with the earlier ones below it."""
        exercise = self._exercise(check)
        if exercise is None or not exercise.hints:
            return
        tried, answer = self._tried.setdefault(exercise.id, []), self._answer(exercise.needs)
        if answer not in tried:
            tried.append(answer)
        newest, *earlier = reversed(exercise.hints[: len(tried)])
        below = "".join(f"\n\n**{hint.title}**\n\n{hint.text}" for hint in earlier)
        plain = f"{newest.title.partition(' · ')[0]} is in the task above."
        _display(plain, markdown=_fold(newest.title, newest.text + below))

    def _answer(self, needs: Iterable[str]) -> Answer:
        """The texts of the learner's cells behind these names, and behind the names that those need."""
        todo, seen, texts = set(needs), set[str](), set[str]()
        while todo:
            seen.add(name := todo.pop())
            source, further = self._cells.get(name, ("", frozenset()))
            texts.add(source)
            todo |= further - seen
        return frozenset(texts)


def _fold(title: str, markdown: str) -> str:
    # Without the blank lines some renderers show the text inside as it stands, asterisks and all.
    return f"<details><summary>{title}</summary>\n\n{markdown}\n\n</details>"


def _beside(problem: CheckFailed) -> None:
    """What was found and wanted, where it helps beside the message: facts of programs, shapes, layouts."""
    read = list(facts_read)  # before the comparison reads them again
    compared = failed_comparison(problem, require.__code__)
    pair = problem.shapes or drawings.compared_shapes(compared)
    shapes = drawings.shapes(*pair) if pair else None
    drawn = [
        one for one in (drawings.facts(compared, read, problem.message), shapes, drawings.layouts(compared)) if one
    ]
    if drawn:
        plain = [line for _, lines in drawn for line in lines]
        _display("\n".join(plain[:LINES]), html="".join(html for html, _ in drawn))


def _whole(problem: Ended, title: str) -> None:
    """Below an error that shows the first lines of a long message: all of it, folded."""
    *_, left_out = problem.glance(title)
    if not left_out:
        return
    name, whole, attribute = "Full message", f"{problem.message}\n{problem.advice}", ""
    if problem.details:  # of our own words before them nothing is left out
        name, whole, attribute = "Full error message", problem.details, ".details"
    style = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere"
    html = f'<pre style="{style}">{escape(legible(whole.strip()))}</pre>'
    plain = f"{name}: import sys; print(sys.last_value{attribute})"
    _display(plain, html=f"<details><summary>{name}</summary>{html}</details>")


def _display(plain: str, html: str = "", markdown: str = "") -> None:
    from IPython.display import display

    forms = {"text/plain": plain, "text/html": html, "text/markdown": markdown}
    display({kind: content for kind, content in forms.items() if content}, raw=True)
