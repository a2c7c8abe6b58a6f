"""Results as text for a terminal: a class, what one learner missed, what a regrade changed, a lesson's preview."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from grader.core.points import mean, number, phrase, total
from grader.core.result import MARKS, CheckResult, Result, perhaps
from grader.core.text import from_markdown, legible
from grader.grading.regrade import Change
from grader.prove.proof import AnswerReport, ExerciseReport

# What the first line of a report states, or where it has no room for that, the command on stderr.
AUTOMATIC_ONLY = (
    "Automatic points only. Points that a person gives are in nbgrader's gradebook, and are added where the course has "
    "one (`--gradebook`)."
)


def name(learner: str) -> str:
    """Returns a learner's name on one line; a folder's name may contain anything."""
    return legible(learner).replace("\n", "\\n")


def by_lesson(results: Iterable[Result]) -> list[tuple[str, list[Result]]]:
    """Returns the results of each lesson, in the order of their names."""
    ordered = sorted(results, key=lambda result: result.lesson)
    return [(lesson, list(group)) for lesson, group in groupby(ordered, key=lambda result: result.lesson)]


def graded(results: Iterable[Result]) -> list[Result]:
    """Returns the results that are a verdict on the learner."""
    return [result for result in results if result.problem is None and not result.grader_failed]


def grade_lines(result: Result) -> list[str]:
    """Returns what a final grade adds to the automatic points: parts, lateness, comments. Nothing without a grade."""
    grade = result.grade
    if grade is None:
        return []
    lines = []
    if (grade.manual or grade.extra_credit) and grade.raw_score is not None:
        automatic = number(total([grade.raw_score, -grade.manual, -grade.extra_credit]))
        given = f"{number(grade.manual)} from a person, {number(grade.extra_credit)} extra credit"
        lines.append(f"Points: {automatic} automatic, {given}.")
    if grade.status == "late":
        lines.append(f"Late by {_duration(grade.late_s)}. Penalty: {phrase(grade.penalty)}.")
    if grade.extended:
        lines.append(f"Extended to {grade.due[:16].replace('T', ' ')} UTC.")
    if grade.waiting:
        lines.append(f"A person still has to grade {phrase(grade.waiting, 'cell')}.")
    return [*lines, *(f"Comment on {cell}: {legible(text)}" for cell, text in grade.comments)]


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    days, hours, left = minutes // 1440, minutes // 60 % 24, minutes % 60
    parts = [f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (left, "min")) if count]
    return " ".join(parts[:2])


def by_exercise(checks: Iterable[CheckResult]) -> list[tuple[str, list[CheckResult]]]:
    """Returns the checks of each exercise, in the order of `checks`."""
    return [(exercise, list(group)) for exercise, group in groupby(checks, key=lambda check: check.exercise)]


def points(checks: Sequence[CheckResult]) -> tuple[str, str]:
    """Returns the points earned, "–" where a check or the grader is at fault, and possible."""
    fault = any(check.status == "error" for check in checks)
    earned = "–" if fault else number(total(check.points for check in checks))
    return earned, number(total(check.max_points for check in checks))


def _marked(status: str, text: str) -> Text:
    mark, colour = MARKS[status]
    return Text(f"{mark} {text}" if text else mark, colour)


def markdown(text: str, style: str = "") -> Text:
    """Returns a text of the course with its Markdown rendered; one of a learner's stays as it is."""
    return Text.assemble(*from_markdown(text), style=style)


def _indent(columns: int, text: str | RenderableType, style: str = "") -> Padding:
    return Padding(Text(text, style) if isinstance(text, str) else text, (0, 0, 0, columns), expand=False)


def _perhaps(checks: Iterable[CheckResult]) -> list[RenderableType]:
    return [_indent(4, markdown(said, "cyan"))] if (said := perhaps(checks)) else []


def show(results: Sequence[Result], console: Console) -> None:
    """Prints the whole report: a table for each lesson, then each learner who lost points or could not be graded."""
    tables(results, console)
    for result in results:
        if not result.full:
            console.print(learner(result))
            console.print()


def tables(results: Sequence[Result], console: Console) -> None:
    for _, lesson in by_lesson(results):
        table = class_table(lesson)
        if Measurement.get(console, console.options.update_width(10_000), table).maximum > console.width:
            table = class_table(lesson, brief=True)
        console.print(table)
        legend = [Text.assemble((f"{i} ", "dim"), name) for i, name in enumerate(_exercises(lesson), start=1)]
        console.print(Columns(legend, padding=(0, 2)))
        console.print()


def class_table(results: Sequence[Result], brief: bool = False) -> Table:
    """Returns a row for each learner and a numbered column for each exercise of one lesson; `brief` shows no points."""
    exercises = _exercises(results)
    columns = [Column("learner", overflow="fold"), Column("score", justify="right", no_wrap=True)]
    columns += [Column(str(place), justify="center", no_wrap=True) for place, _ in enumerate(exercises, start=1)]
    table = Table(*columns, title=results[0].lesson, title_justify="left", title_style="bold", pad_edge=False)
    for result in results:
        checks = dict(by_exercise(result.checks))
        score = Text("not graded", "magenta")
        if result.problem is None:
            score = Text(f"{number(result.score)}/{number(result.max_score)}")
        table.add_row(Text(name(result.learner)), score, *(_cell(checks.get(one, []), brief) for one in exercises))
    return table


def _exercises(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(check.exercise for result in results for check in result.checks))


def _cell(checks: Sequence[CheckResult], brief: bool) -> Text:
    if not checks:
        return Text("")
    missed = [check.status for check in checks if check.points < check.max_points]
    status = "error" if "error" in missed else next(iter(missed), "passed")
    return _marked(status, "" if brief else "/".join(points(checks)))


def exercise(checks: Sequence[CheckResult]) -> Text:
    return _cell(checks, brief=True).append(f" {checks[0].exercise}  {' of '.join(points(checks))}")


def learner(result: Result, titles: Mapping[str, str] | None = None) -> RenderableType:
    """Returns what one notebook earned: each check that gave less than its points, with its message.

    With `titles` (by exercise) it is the learner's own report: exercises have these titles, and after what failed
    come, in a line each, the exercises that were not attempted and those with all points.
    """
    head = Text.assemble((name(result.learner), "bold"), f"  {result.lesson}  ")
    if result.problem is not None:
        return Group(head.append("not graded", "magenta"), _indent(2, legible(result.problem)))
    head.append(f"{number(result.score)} of {number(result.max_score)} points", "bold")
    if result.grader_failed:
        head.append(", no final score: the grader is at fault at each !", "magenta")
    lines: list[RenderableType] = [head, *(_indent(2, note, "yellow") for note in result.notes)]
    untouched: list[str] = []
    passed: list[str] = []
    folds: list[RenderableType] = []
    between = [] if titles is None else [Text()]
    for exercise, checks in by_exercise(result.checks):
        title = (titles or {}).get(exercise, "")
        if all(check.status == "not attempted" for check in checks):
            untouched.append(title or exercise)
        elif any(check.status != "passed" for check in checks):
            lines += [*between, _indent(2, _missed(exercise, title, checks))]
        else:
            passed.append(f"{title or exercise} ({points(checks)[0]})")
    if untouched:
        whole = len(untouched) == len(_exercises([result])) and (titles is None or len(untouched) > 1)
        which = "every exercise" if whole else ", ".join(untouched)
        folds.append(_indent(2, _fold("not attempted", f"Not attempted: {which}")))
    if passed and titles is not None:
        folds.append(_indent(2, _fold("passed", f"Full points: {', '.join(passed)}")))
    return Group(*lines, *(between if folds else []), *folds)


def _fold(status: str, text: str) -> Text:
    """A line in which several exercises or checks are folded."""
    return Text.assemble(_marked(status, ""), " ", *from_markdown(text), style=MARKS[status][1])


def _missed(exercise: str, title: str, checks: list[CheckResult]) -> RenderableType:
    head = markdown(title or exercise, "bold").append(f"  {' of '.join(points(checks))} points", "not bold")
    lines: list[RenderableType] = [head.append(f"  ({exercise})", "not bold dim") if title else head]
    messages = {check.message for check in checks if check.message}
    nothing_ran = not any(set(check.evidence) - {"observed"} for check in checks)
    if nothing_ran and len({check.status for check in checks}) == len(messages) == 1:
        return Group(*lines, _indent(2, _marked(checks[0].status, messages.pop())), *_perhaps(checks))
    missed = [check for check in checks if check.status != "passed"]
    for (status, message), alike in groupby(missed, key=lambda check: (check.status, check.message)):
        lines += [_indent(2, _check_title(check, status)) for check in alike]
        lines += [_indent(4, message)] if message else []
    lines += _perhaps(checks)
    if others := len(checks) - len(missed):
        lines.append(_indent(2, _fold("passed", f"{phrase(others, 'other check')} passed")))
    return Group(*lines)


def _check_title(check: CheckResult, status: str) -> Table:
    """The mark of a check and its title, whose further lines begin below the first."""
    line = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1, 0, 0))
    line.add_row(_marked(status, ""), markdown(check.title).append(" (hidden)" if check.hidden else ""))
    return line


def regrade(changes: Sequence[Change], new: int, notebooks: int, console: Console) -> None:
    """Prints each notebook whose points changed, check by check; then counts, of which `new` had no grade before."""
    lines = []
    for change in changes:
        before, now = (f"{number(of.score)} of {number(of.max_score)}" for of in (change.before, change.now))
        why = "" if change.now.problem is None else f", because it cannot be graded: {legible(change.now.problem)}"
        lines.append(f"{name(change.now.learner)}  {change.now.lesson}  {before} points before, {now} now{why}")
        for check in change.checks:
            grades = (check.points_before, check.status_before), (check.points, check.status)
            before, now = ("none" if points is None else f"{number(points)} ({status})" for points, status in grades)
            lines.append(f"  {check.id}: {before} before, {now} now. Changed since: {'; '.join(check.since)}.")
    first = f"; {new} graded for the first time" if new else ""
    same = notebooks - len(changes) - new
    lines.append(f"Since the last grading: {len(changes)} with changed points, {same} with the same points{first}.")
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def preview(report: ExerciseReport) -> RenderableType:
    """Returns one exercise before its release: each wrong answer with what its learner reads."""
    if report.problem is not None:
        return Group(Text(report.exercise, "bold"), _indent(2, report.problem, "magenta"))
    lines: list[RenderableType] = [Text.assemble((report.exercise, "bold"), f"  {phrase(report.points)}")]
    lines += [_indent(2, f"○ As released: {said}", "yellow") for said in stub_messages(report)]
    lines += [_indent(2, _answer(answer)) for answer in report.wrong]
    lines += [_indent(2, f"! {remark}", "magenta") for remark in report.remarks]
    return Group(*lines, Text(""))


def stub_messages(report: ExerciseReport) -> list[str]:
    """Returns what the checks say about the stub, each sentence once."""
    return list(dict.fromkeys(check.message or check.status for check in report.stub.checks))


def _answer(answer: AnswerReport) -> RenderableType:
    lines: list[RenderableType] = [markdown(answer.because, "bold").append(f"  {answer.where}", "not bold dim")]
    for check in answer.missed:
        worth = f"  {phrase(check.max_points)}{', hidden' if check.hidden else ''}"
        title = Text.assemble(_marked(check.status, ""), " ", markdown(check.title), (worth, "dim"))
        lines.append(_indent(2, title))
        lines += [_indent(4, check.message)] if check.message else []
    lines += [] if answer.missed else [_indent(2, "Full points, because it fails no check.", "red")]
    return Group(*lines, *_perhaps(answer.checks))


def summary(results: Sequence[Result], seconds: Mapping[str, float]) -> Table:
    """Returns a row for each lesson: the mean score of its graded notebooks, and the `seconds` that grading it took."""
    headings = ("notebooks", "mean score", "full points", "not graded", "seconds")
    columns = (Column(heading, justify="right") for heading in headings)
    table = Table("lesson", *columns, title="summary", title_justify="left", title_style="bold", pad_edge=False)
    for lesson, found in by_lesson(results):
        judged = graded(found)
        failed, score = len(found) - len(judged), "–"
        if judged:
            score = f"{number(mean([one.score for one in judged]))} of {number(max(one.max_score for one in judged))}"
        counts = str(sum(one.full for one in judged)), Text(str(failed), "magenta" if failed else "")
        table.add_row(lesson, str(len(found)), score, *counts, f"{seconds.get(lesson, 0.0):.1f}")
    return table
