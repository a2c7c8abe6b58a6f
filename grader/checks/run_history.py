"""What was run in this notebook's kernel, so that it can be told from what was saved."""

from __future__ import annotations

import time
from dataclasses import dataclass

MOST = 1_000  # runs that are remembered


@dataclass(frozen=True)
class CellRun:
    """A cell's text when it was run; its id where the front end tells it; seconds since the epoch."""

    cell_id: str | None
    source: str
    when: float


_runs: list[CellRun] = []


def note(cell_id: str | None, source: str) -> None:
    """Remember that this text begins to run now."""
    _runs.append(CellRun(cell_id, source, time.time()))
    del _runs[:-MOST]


def since(when: float) -> list[CellRun]:
    """What was run after that time, the last first; of one cell, only the last run."""
    found: list[CellRun] = []
    for run in reversed(_runs):
        if run.when <= when:
            break
        if run.cell_id is None or run.cell_id not in {later.cell_id for later in found}:
            found.append(run)
    return found
