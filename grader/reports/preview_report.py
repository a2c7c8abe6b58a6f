"""A lesson before its release: each wrong answer with what its learner reads, for a terminal or as one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from grader.core.points import number
from grader.core.result import CheckResult
from grader.core.text import MARKS
from grader.prove.preview import AnswerReport, ExerciseReport
from grader.reports import html


def text(seen: ExerciseReport) -> RenderableType:
    """One exercise, for a terminal."""
    if seen.problem is not None:
        return Group(Text(seen.exercise, "bold"), _indent(Text(seen.problem, "magenta"), 2))
    lines: list[RenderableType] = [Text.assemble((seen.exercise, "bold"), f"  {points(seen.points)}")]
    lines += [_indent(Text(f"○ As it is given out: {said}", "yellow"), 2) for said in stub_says(seen)]
    lines += [_indent(_answer(answer), 2) for answer in seen.wrong]
    lines += [_indent(Text(f"! {remark}", "magenta"), 2) for remark in seen.remarks]
    return Group(*lines, Text(""))


def stub_says(seen: ExerciseReport) -> list[str]:
    """What the checks say of an answer that nobody has touched, each sentence once."""
    return list(dict.fromkeys(check.message or check.status for check in seen.stub.checks))


def points(worth: float) -> str:
    """As a learner reads them."""
    return f"{number(worth)} point{'' if worth == 1 else 's'}"


def perhaps(answer: AnswerReport) -> str | None:
    """The misconception as its learner is told of it; None where another wrong answer fails in the same way."""
    return next((check.misconception for check in answer.checks if check.misconception), None)


def dumps(lesson: str, exercises: Sequence[ExerciseReport]) -> str:
    """The page of a lesson, with all that it needs in it."""
    filters: dict[str, Callable[..., Any]] = {"points": points, "perhaps": perhaps, "stub_says": stub_says}
    return html.page("preview.html.jinja", filters, lesson=lesson, exercises=exercises)


def _answer(answer: AnswerReport) -> RenderableType:
    lines: list[RenderableType] = [Text.assemble((answer.because, "bold"), (f"  {answer.where}", "dim"))]
    lines += [_indent(_check(check), 2) for check in answer.missed]
    if not answer.missed:
        lines.append(_indent(Text("Full points: no check fails it.", "red"), 2))
    named = perhaps(answer)
    if named:
        lines.append(_indent(Text(f"Perhaps: {named}", "cyan"), 4))
    return Group(*lines)


def _check(check: CheckResult) -> RenderableType:
    mark, colour = MARKS[check.status]
    hidden = ", hidden" if check.hidden else ""
    head = Text.assemble((f"{mark} {check.title}", colour), (f"  {points(check.max_points)}{hidden}", "dim"))
    return Group(head, _indent(Text(check.message), 2)) if check.message else head


def _indent(what: RenderableType, columns: int) -> Padding:
    return Padding(what, (0, 0, 0, columns), expand=False)
