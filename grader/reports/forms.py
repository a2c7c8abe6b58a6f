"""The forms of results by name; docs/reports.md shows each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grader.core.result import Result, document
from grader.reports import github, gradescope_report, html, junit, tables


class NotOne(Exception):
    """A form for one notebook was requested for several, or for none."""


def _single(render: Callable[[Result], str]) -> Callable[[Sequence[Result]], str]:
    def render_one(results: Sequence[Result]) -> str:
        if (n := len(results)) != 1:
            raise NotOne(f"This form is for one notebook, and there are {n}. Name one with --learner and --lesson.")
        return render(results[0])

    return render_one


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
