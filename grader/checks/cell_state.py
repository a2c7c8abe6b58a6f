"""State of this kernel's check cells: the check that runs, the program facts that it has read, the cells that ran."""

from __future__ import annotations

import ast
import os
import time
from dataclasses import dataclass
from typing import Any

from grader.core.vocabulary import REACHING

HIDDEN = "### BEGIN HIDDEN TESTS"  # nbgrader's mark; only whoever wrote the course has a cell with it
MAX_RUNS = 1_000  # that are remembered


def check_title(source: str) -> str | None:
    """Returns the first line of the docstring if `source` is a check cell, which calls a verb; else None."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # magics, half-typed cells
        return None
    title = ast.get_docstring(tree)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return title.splitlines()[0] if title and called & REACHING else None


@dataclass(frozen=True)
class RunningCheck:
    """A check cell that runs: its title, its text, its id where the front end gives it; without a title it is none."""

    title: str
    source: str = ""
    cell_id: str | None = None

    @property
    def hidden(self) -> bool:
        """Whether it is shown as it would be in grading, with nothing beside it."""
        return HIDDEN in self.source or "NBGRADER_EXECUTION" in os.environ


@dataclass(frozen=True)
class CellRun:
    """A cell's text when it ran, its id where the front end gives it, and when, in seconds since the epoch."""

    cell_id: str | None
    source: str
    when: float


_check = RunningCheck("")
_runs: list[CellRun] = []
_facts: list[tuple[Any, str]] = []


def begin(check: RunningCheck) -> None:
    """Records that this cell begins to run now; it is a check if it has a title."""
    global _check
    _check = check
    _runs.append(CellRun(check.cell_id, check.source, time.time()))
    del _runs[:-MAX_RUNS]


def current() -> RunningCheck:
    """Returns the check cell that runs now; one without a title outside a notebook, and in any other cell."""
    return _check


def runs_since(when: float) -> list[CellRun]:
    """Returns the runs after that time, the latest first; of one cell, only the last run."""
    found: list[CellRun] = []
    for run in reversed(_runs):
        if run.when <= when:
            break
        if run.cell_id is None or run.cell_id not in {later.cell_id for later in found}:
            found.append(run)
    return found


def add_fact(program: Any, fact: str) -> None:
    """Records that the check read this fact of this program, or its collectives of this kind."""
    if not any(program is other and fact == name for other, name in _facts):
        _facts.append((program, fact))


def clear_facts() -> None:
    """Forgets the facts read until now: they have been judged, and a failure from here on is not about them."""
    _facts.clear()


def facts_read() -> list[tuple[Any, str]]:
    """Returns the programs and facts that a failure now is about, in the order in which they were first read."""
    return list(_facts)
