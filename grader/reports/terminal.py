"""Results as text for a terminal: a table of the class, then what each learner missed and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grader.core.points import mean, number
from grader.core.result import CheckResult, Result
from grader.core.text import MARKS, legible


def _indent(what: RenderableType, columns: int) -> Padding:
    return Padding(what, (0, 0, 0, columns), expand=False)


def name(learner: str) -> str:
    """A learner's name is that of a folder: it may hold anything."""
    return legible(learner).replace("\n", "\\n")


def class_table(results: Sequence[Result], brief: bool = False) -> Table:
    """One row for each learner, one numbered column for each exercise; all results are of one lesson.

    A `brief` table shows marks without points.
    """
    exercises = _exercises(results)
    table = Table(title=results[0].lesson, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("learner", overflow="fold")
    table.add_column("score", justify="right", no_wrap=True)
    for place in range(len(exercises)):
        table.add_column(str(place + 1), justify="center", no_wrap=True)
    for result in results:
        if result.problem is not None:
            table.add_row(Text(name(result.learner)), Text("–", "magenta"), *[""] * len(exercises))
            continue
        cells = [_cell([check for check in result.checks if check.exercise == name], brief) for name in exercises]
        table.add_row(Text(name(result.learner)), f"{number(result.score)}/{number(result.max_score)}", *cells)
    return table


def _exercises(results: Sequence[Result]) -> list[str]:
    names: dict[str, None] = {}
    for result in results:
        names |= dict.fromkeys(check.exercise for check in result.checks)
    return list(names)


def _cell(checks: list[CheckResult], brief: bool) -> Text:
    if not checks:
        return Text("")
    got, most = sum(c.points for c in checks), sum(c.max_points for c in checks)
    worst = "passed" if got == most else next(c.status for c in checks if c.points < c.max_points)
    mark, colour = MARKS[worst]
    return Text(mark if brief else f"{mark} {number(got)}/{number(most)}", colour)


def exercise(checks: Sequence[CheckResult]) -> Text:
    """One exercise in one line."""
    got, most = sum(c.points for c in checks), sum(c.max_points for c in checks)
    return _cell(list(checks), brief=True).append(f" {checks[0].exercise}  {number(got)} of {number(most)}")


def learner(result: Result, whys: dict[str, str] | None = None) -> RenderableType:
    """What one learner's notebook earned: every check that gave less than its points, with its message."""
    head = Text.assemble((name(result.learner), "bold"), f"  {result.lesson}  ")
    if result.problem is not None:
        return Group(head.append("not graded", "magenta"), _indent(Text(legible(result.problem)), 2))
    head.append(f"{number(result.score)} of {number(result.max_score)} points", "bold")
    lines: list[RenderableType] = [head]
    lines += [_indent(Text(note, "yellow"), 2) for note in result.notes]
    untouched: list[str] = []
    for exercise, group in groupby(result.checks, key=lambda check: check.exercise):
        checks = list(group)
        if whys is None and all(check.status == "not attempted" for check in checks):
            untouched.append(exercise)
            continue
        if all(check.status == "passed" for check in checks):
            if whys is not None:
                lines.append(_indent(_passed(exercise, checks, whys.get(exercise, "")), 2))
            continue
        lines.append(_indent(_missed(exercise, checks), 2))
    if untouched:
        mark, colour = MARKS["not attempted"]
        which = "every exercise" if len(untouched) == len(_exercises([result])) else ", ".join(untouched)
        lines.append(_indent(Text(f"{mark} Not attempted: {which}", colour), 2))
    return Group(*lines)


def _passed(exercise: str, checks: list[CheckResult], why: str) -> RenderableType:
    points = number(sum(check.points for check in checks))
    head = Text.assemble(("✓ ", "green"), (exercise, "green"), f"  {points} points")
    return Group(head, _indent(Text(why, "dim"), 4)) if why else head


def _missed(exercise: str, checks: list[CheckResult]) -> RenderableType:
    got, most = sum(c.points for c in checks), sum(c.max_points for c in checks)
    lines: list[RenderableType] = [Text.assemble((exercise, "bold"), f"  {number(got)} of {number(most)} points")]
    messages = {check.message for check in checks if check.message}
    if len({check.status for check in checks}) == len(messages) == 1:
        mark, colour = MARKS[checks[0].status]
        return Group(*lines, _indent(Text(f"{mark} {messages.pop()}", colour), 2))
    said: set[str] = set()
    for check in checks:
        mark, colour = MARKS[check.status]
        hidden = " (hidden)" if check.hidden else ""
        lines.append(_indent(Text(f"{mark} {check.title}{hidden}", colour), 2))
        if check.status != "passed" and check.message:
            again = check.message in said
            lines.append(_indent(Text("The same as above.", "dim") if again else Text(check.message), 4))
            said.add(check.message)
    misconception = next((check.misconception for check in checks if check.misconception), None)
    if misconception:
        lines.append(_indent(Text(f"Perhaps: {misconception}", "cyan"), 4))
    return Group(*lines)


def show(results: Sequence[Result], console: Console) -> None:
    """The whole report: a table for each lesson, then each learner who lost points or could not be graded."""
    tables(results, console)
    for result in results:
        if not result.full:
            console.print(learner(result))
            console.print()


def tables(results: Sequence[Result], console: Console) -> None:
    """A table for each lesson."""
    by_lesson = sorted(results, key=lambda result: result.lesson)
    for _, group in groupby(by_lesson, key=lambda result: result.lesson):
        lesson = list(group)
        table = class_table(lesson)
        if Measurement.get(console, console.options.update_width(10_000), table).maximum > console.width:
            table = class_table(lesson, brief=True)
        console.print(table)
        legend = [Text.assemble((f"{i} ", "dim"), name) for i, name in enumerate(_exercises(lesson), start=1)]
        console.print(Columns(legend, padding=(0, 2)))
        console.print()


def summary(results: Sequence[Result], seconds: Mapping[str, float]) -> Table:
    """Returns a table with one row for each lesson, in the order of its name; the mean is that of graded notebooks.

    Args:
        results: the results of all lessons.
        seconds: by lesson, the time that grading it took.
    """
    table = Table("lesson", title="summary", title_justify="left", title_style="bold", pad_edge=False)
    for heading in ("notebooks", "mean score", "full points", "not graded", "seconds"):
        table.add_column(heading, justify="right")
    by_lesson = sorted(results, key=lambda result: result.lesson)
    for lesson, group in groupby(by_lesson, key=lambda result: result.lesson):
        found = list(group)
        graded = [one for one in found if one.problem is None and not one.grader_failed]
        failed = len(found) - len(graded)
        score = "–"
        if graded:
            score = f"{number(mean([one.score for one in graded]))} of {number(max(one.max_score for one in graded))}"
        full = str(sum(one.full for one in graded))
        not_graded = Text(str(failed), "magenta" if failed else "")
        table.add_row(lesson, str(len(found)), score, full, not_graded, f"{seconds.get(lesson, 0.0):.1f}")
    return table
