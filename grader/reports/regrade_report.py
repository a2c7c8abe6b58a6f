"""What a regrade changed, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from grader.core.points import number
from grader.core.text import legible
from grader.grading.regrade import Change, CheckChange
from grader.reports.terminal import name


def show(changes: Sequence[Change], new: int, of: int, console: Console) -> None:
    """Each notebook with other points than last time, check by check; then how many there are of each kind."""
    for change in changes:
        score = f"{number(change.score_before)} of {number(change.max_score_before)} points before, "
        score += f"{number(change.score)} of {number(change.max_score)} now"
        now = score if change.problem is None else f"{score}, as it cannot be graded: {legible(change.problem)}"
        console.print(f"{name(change.learner)}  {change.lesson}  {now}", markup=False, soft_wrap=True)
        for check in change.checks:
            console.print(f"  {_line(check)}", markup=False, soft_wrap=True)
    same = of - len(changes) - new
    first = f"; {new} graded for the first time" if new else ""
    text = f"Since the last grading: {len(changes)} with other points, {same} with the same{first}."
    console.print(text, markup=False, soft_wrap=True)


def _line(check: CheckChange) -> str:
    before, now = _given(check.points_before, check.status_before), _given(check.points, check.status)
    return f"{check.id}: {before} before, {now} now. Changed since: {'; '.join(check.since)}."


def _given(points: float | None, status: str | None) -> str:
    return "none" if points is None else f"{number(points)} ({status})"
