"""State of this kernel's check cells: the check that runs, the program facts that it has read, the cells that ran."""

from __future__ import annotations

import ast
import os
import time
from dataclasses import dataclass, field
from typing import Any

from grader.core.symbols import REACHING

HIDDEN = "### BEGIN HIDDEN TESTS"  # nbgrader's mark; only whoever wrote the course has a cell with it
MAX_RUNS = 1_000  # that are remembered


def check_title(source: str) -> str:
    """Returns the first line of the docstring if `source` is a check cell, which calls a verb; else ""."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # magics, half-typed cells
        return ""
    title = ast.get_docstring(tree)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return title.splitlines()[0] if title and called & REACHING else ""


@dataclass(frozen=True)
class CellRun:
    """A cell that runs or ran, with the text that it had then."""

    source: str = ""
    cell_id: str | None = None  # where the front end gives it
    title: str = ""  # of a check
    when: float = field(default_factory=time.time)  # seconds since the epoch

    @property
    def hidden(self) -> bool:
        """Whether it is shown as it would be in grading, with nothing beside it."""
        return HIDDEN in self.source or "NBGRADER_EXECUTION" in os.environ


# The programs and facts (or kinds of collectives) that were read and not judged yet: a failure now is about them.
facts_read: list[tuple[Any, str]] = []
_runs: list[CellRun] = []


def begin(run: CellRun) -> None:
    """Records that this cell begins to run now."""
    _runs.append(run)
    del _runs[:-MAX_RUNS]


def current() -> CellRun:
    """Returns the cell that runs now; outside a notebook one that is no check."""
    return _runs[-1] if _runs else CellRun()


def runs_since(when: float) -> list[CellRun]:
    """Returns the runs after that time, the latest first; of one cell, only the last run."""
    found: list[CellRun] = []
    for run in reversed(_runs):
        if run.when <= when:
            break
        if run.cell_id is None or run.cell_id not in {later.cell_id for later in found}:
            found.append(run)
    return found
