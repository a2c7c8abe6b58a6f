"""The check cell of a notebook that runs now."""

from __future__ import annotations

import os
from dataclasses import dataclass

HIDDEN = "### BEGIN HIDDEN TESTS"  # nbgrader's mark; only who wrote the course has a cell with it


@dataclass(frozen=True)
class RunningCheck:
    """A check cell that runs: its title, its text, its id where the front end tells it."""

    title: str
    source: str = ""
    cell_id: str | None = None

    @property
    def hidden(self) -> bool:
        """Whether it is shown as it would be in grading, with nothing beside it."""
        return HIDDEN in self.source or "NBGRADER_EXECUTION" in os.environ


NONE = RunningCheck("")
_check = NONE


def begin(check: RunningCheck) -> None:
    """From now on this one runs; one without a title is none."""
    global _check
    _check = check


def current() -> RunningCheck:
    """The check cell that runs now; one without a title outside a notebook, and in any other cell."""
    return _check
