"""The forms that results can be given, by name: one record, many renderings (docs/reports.md shows each)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grader.core.result import Result, document
from grader.reports import github, gradescope_report, html, junit, tables


class NotOne(Exception):
    """A form for a single notebook was asked of several, or of none."""


def _single(render: Callable[[Result], str]) -> Callable[[Sequence[Result]], str]:
    def rendered(results: Sequence[Result]) -> str:
        if len(results) != 1:
            there = len(results)
            raise NotOne(f"This form is for one notebook, and there are {there}. Name one with --learner and --lesson.")
        return render(results[0])

    return rendered


FORMS: dict[str, Callable[[Sequence[Result]], str]] = {
    "json": document,
    "junit": junit.dumps,
    "html": html.dumps,
    "csv": tables.nbgrader,
    "canvas": tables.canvas,
    "github-summary": github.summary,
    "github-annotations": github.log_commands,
    "github-classroom": _single(github.classroom),
    "gradescope": _single(gradescope_report.dumps),
}
