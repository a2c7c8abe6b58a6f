"""The screen of `grader watch`, and the lines in its place where there is no terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.text import Text

from grader.core.points import number, total
from grader.core.result import MARKS, CheckResult, Result, perhaps
from grader.core.text import from_markdown, legible
from grader.course import Exercise
from grader.learning.watch import ANSWER, SURE, GradeRequest, Watch

MESSAGE_LINES = 4  # of what a check says, its title not counted; `grader check` shows it all
ROWS = 3  # of exercises, where there is no room for all
BAR, SHORTEST_BAR = 24, 8
TITLE = 60  # columns of an exercise's sign, number and title
KEYS: tuple[tuple[str, str], ...] = (("h", "hint"), ("n", "next"), ("s", "solution"), ("q", "quit"))
TO_DO = ("○", "dim")


def screen(watch: Watch, console: Console, busy: bool = False) -> RenderableType:
    """Returns the screen for a terminal of this size, never more lines than it has."""
    width, height = console.size
    foot = [Text("─" * width, "dim"), *_foot(watch, console, width, busy)]
    room = max(0, height - 1 - len(foot))
    middle = _answer(watch, console, width) if watch.page == ANSWER else _lesson(watch, console, width, room)
    if len(middle) > room:
        middle = [*middle[: room - 1], Text("... (a taller window shows more)", "dim")]
    head = Text.assemble((watch.current, "bold"), f" · {watch.lesson.title} · {lesson_points(watch)}")
    lines = [head, *middle, *(Text() for _ in range(room - len(middle))), *foot][:height]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _lesson(watch: Watch, console: Console, width: int, room: int) -> list[Text]:
    """The exercises, all of them where there is room, and of the one at hand its verdict and the last hint at least."""
    rows = [_row(watch, place, one, width) for place, one in enumerate(watch.lesson.exercises, start=1)]
    verdict, hints = _verdict(watch, console, width), () if watch.done(watch.at_hand) else watch.hints
    folds = [[Text(hint.title, "bold"), *_rendered(hint.text, console, width, 6)] for hint in hints]
    room -= 2 + min(len(rows), ROWS)
    while len(folds) > 1 and len(verdict) + sum(map(len, folds)) > room:
        folds = folds[1:]
    asked = [line for fold in folds for line in fold]
    if asked and len(verdict) + len(asked) > room:
        verdict = [*verdict[: max(1, room - len(asked) - 1)], Text("  ...", "dim")]
    most = max(ROWS, room + ROWS - len(verdict) - len(asked))
    begin = max(0, min(watch.lesson.exercises.index(watch.at_hand) - most // 2, len(rows) - most))
    return [Text(), *rows[begin : begin + most], Text("─" * width, "dim"), *verdict, *asked]


def lesson_points(watch: Watch) -> str:
    """Returns the points of the current lesson, such as "3 of 9 points"."""
    earned = total(watch.earned(one) for one in watch.lesson.exercises)
    return f"{number(earned)} of {number(watch.lesson.points)} points"


def verdict_lines(watch: Watch, request: GradeRequest, result: Result) -> str:
    """Returns the verdict on one exercise, with a few lines about what fails."""
    exercise = watch.course.lesson(request.lesson).exercise(request.exercise)
    if request.do == "name":
        return f"  {exercise.title}. {said}" if (said := perhaps(result.checks)) else ""
    points = f"{number(result.score)} of {number(result.max_score)} points"
    lines = [f"{mark_of(watch, exercise)[0]} {request.lesson} · {exercise.title}: {points}"]
    missed = next((check for check in result.checks if check.status != "passed"), None)
    if missed is not None:
        lines.append(f"  {MARKS[missed.status][0]} {missed.title}{' (hidden)' if missed.hidden else ''}")
        message = legible(missed.message).strip().split("\n") if missed.message else []
        lines += [f"    {line}" for line in message[:MESSAGE_LINES]]
    return "\n".join(lines)


def lesson_line(watch: Watch) -> str:
    return f"{watch.current}: {lesson_points(watch)}. {next_step(watch)}"


def _row(watch: Watch, place: int, exercise: Exercise, width: int) -> Text:
    sign, style = ("▸ ", "bold") if exercise.id == watch.at_hand.id else ("  ", "")
    earned = "–" if watch.grader_failed(exercise) else number(watch.earned(exercise))
    row = Text.assemble(sign, mark_of(watch, exercise), f" {place} ", (exercise.title, style))
    row.truncate(min(TITLE, width - 12), overflow="ellipsis", pad=True)
    again = " ..." if exercise.id in watch.notebook.todo else ""
    return row.append(f"{earned}/{number(exercise.points)}".rjust(7)).append(again, "dim")


def mark_of(watch: Watch, exercise: Exercise) -> tuple[str, str]:
    """Returns the mark of an exercise, which is clear without colour, and its colour."""
    missed = [check for check in watch.notebook.checks(exercise.id) if check.points < check.max_points]
    if watch.grader_failed(exercise):
        return MARKS["error"]
    if watch.done(exercise):
        return MARKS["passed"]
    return (MARKS[missed[0].status][0], "red") if missed and missed[0].status != "not attempted" else TO_DO


def _verdict(watch: Watch, console: Console, width: int) -> list[Text]:
    exercise, notebook = watch.at_hand, watch.notebook
    checks = notebook.checks(exercise.id)
    missed = [check for check in checks if check.status != "passed"]
    if watch.grader_failed(exercise):
        lines = [Text("Not graded: the grader is at fault, not your answer.")]
    elif missed:
        lines = _missed(missed, console, width)
    elif checks:
        lines = [Text.assemble(MARKS["passed"], " All checks pass."), *_rendered(exercise.why, console, width, 3)]
    elif exercise.id in notebook.todo:
        lines = [Text("Not graded yet.")]
    elif not notebook.read:
        lines = [Text(f"There is no {watch.course.shown(watch.path(watch.current))} yet. Run `grader lab`.")]
    else:
        lines = [Text("Not started: the answer cell is unchanged.")]
    return [Text(exercise.title, "bold"), *lines]


def _missed(missed: list[CheckResult], console: Console, width: int) -> list[Text]:
    """The first check that an exercise misses, a few lines of its message, and its misconception."""
    mark, _ = MARKS[missed[0].status]
    hidden = " (hidden)" if missed[0].hidden else ""
    title = from_markdown(missed[0].title)
    lines = [Text.assemble((mark, "red" if mark == "✗" else ""), " ", *title, hidden)]
    lines += _wrapped(missed[0].message, console, width, MESSAGE_LINES)
    lines += _rendered(perhaps(missed), console, width, 3)
    others = len(missed) - 1
    if others:
        lines.append(Text(f"{others} more check{' does' if others == 1 else 's do'} not pass yet.", "dim"))
    return lines


def _rendered(text: str, console: Console, width: int, most: int) -> list[Text]:
    """Markdown of the course's in at most so many indented lines."""
    return _wrapped(Text.assemble(*from_markdown(text.strip())), console, width, most)


def _wrapped(text: str | Text, console: Console, width: int, most: int) -> list[Text]:
    """Text in at most so many indented lines."""
    lines = list((Text(legible(text).strip()) if isinstance(text, str) else text).wrap(console, width - 3))
    if len(lines) > most:
        lines = lines[:most]
        lines[-1].truncate(width - 7)
        lines[-1].append(" ...")
    for line in lines:
        line.pad_left(2)
    return lines


def _answer(watch: Watch, console: Console, width: int) -> list[Text]:
    exercise = watch.at_hand
    lines = [Text(f"  {line}") for line in exercise.reference.strip("\n").split("\n")]
    head = [Text(), Text(f"A solution of {exercise.title}", "bold"), Text()]
    return [*head, *lines, Text(), *_rendered(exercise.why, console, width, 4)]


def _foot(watch: Watch, console: Console, width: int, busy: bool) -> list[Text]:
    text, style, keys = watch.message or next_step(watch), "", KEYS
    if watch.page == SURE:
        text, style = f'Show a solution of "{watch.at_hand.title}"? Press y, or any other key to go back.', "bold"
        keys = (("y", "show"), ("any other key", "back"))
    elif watch.page == ANSWER:
        text = f"`grader solution {watch.current}` writes all solutions and alternatives to a notebook."
        keys = (("any key", "back"),)
    line, when = Text("   ").join(Text.assemble((key, "bold"), f" {what}") for key, what in keys), _when(watch, busy)
    for said in (when, when.partition(",")[0]):  # all of it, or as much as there is room for
        if line.cell_len + len(said) + 3 <= width:
            line.append(f"   {said}", "dim")
            break
    return [*Text(text, style).wrap(console, width)[:2], _course(watch, width), line]


def next_step(watch: Watch) -> str:
    exercise = watch.at_hand
    own = watch.course.shown(watch.path(watch.current))
    if not watch.done(exercise):
        verb = "fix" if watch.notebook.tried(exercise) else "answer"
        return f'Next: {verb} "{exercise.title}" in {own}, and save.'
    if watch.following is None:
        return "All exercises are done."
    lesson, step = watch.following
    where = "" if lesson.lesson == watch.current else f", in {watch.course.shown(watch.path(lesson.lesson))}"
    return f'Next: "{step.exercise.title}"{where} (n).'


def _course(watch: Watch, width: int) -> Text:
    earned, points = (total(getattr(one, what) for one in watch.lessons) for what in ("earned", "points"))
    done = sum(lesson.next is None for lesson in watch.lessons)
    text = f" {number(earned)} of {number(points)} points, {done} of {len(watch.lessons)} lessons done"
    bar = max(SHORTEST_BAR, min(BAR, width - len("Course ") - len(text)))
    full = max(round(bar * earned / points), 1) if earned else 0
    return Text.assemble("Course ", ("█" * full, "green"), ("░" * (bar - full), "dim"), text)


def _when(watch: Watch, busy: bool) -> str:
    """When the notebook was saved, and how long the verdict took."""
    if watch.notebook.todo and busy:
        return "grading ..."
    if watch.saved_at is None:
        return ""
    took = f", graded in {watch.took:.1f} s" if watch.took is not None else ""
    return f"saved {time.strftime('%H:%M:%S', time.localtime(watch.saved_at))}{took}"
