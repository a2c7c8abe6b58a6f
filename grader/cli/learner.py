"""Verbs of a learner's desk: what is done, the answers, begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.app import app, fail, open_course, out
from grader.course import Course

LessonArgument = Annotated[str, typer.Argument(metavar="NN_topic", help="The lesson.")]


MARKS = {"done": ("✓", "green"), "begun": ("◐", "yellow"), "open": ("○", "dim")}


@app.command()
def progress() -> None:
    """Say what of the course is done and what comes next: by exercise, the best that `grader check` has seen."""
    from rich.table import Table
    from rich.text import Text

    from grader.cli.carry import changed_since
    from grader.core.points import number
    from grader.course import workspace
    from grader.learning.progress import lesson_progress

    course = open_course()
    found = lesson_progress(course)
    table = Table(pad_edge=False, box=None)
    table.add_column("lesson", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("exercises")
    for way in found:
        marks = Text()
        for step in way.steps:
            marks.append(*MARKS["done" if step.done else "begun" if step.earned else "open"]).append(" ")
        table.add_row(Text(way.lesson), f"{number(way.earned)}/{number(way.points)}", marks)
    out.print(table)
    earned, points = sum(way.earned for way in found), sum(way.points for way in found)
    out.print(f"{number(earned)} of {number(points)} points. ✓ full points, ◐ some, ○ none yet.")
    if said := changed_since(course):
        out.print(said, markup=False, soft_wrap=True)
    following = next((way for way in found if way.next), None)
    if following is None or following.next is None:
        out.print("Everything is done.")
        return
    own = course.shown(workspace.exercises_copy(course, following.lesson))
    out.print(f"Next: {following.next.exercise.title}, in {own}.", markup=False, soft_wrap=True)


@app.command()
def solution(lesson: LessonArgument) -> None:
    """Lay the lesson's answers beside your notebook, as one to read and run: the course's own, other ways, mistakes."""
    from grader.course import workspace

    course = open_course(lesson)
    path, kept = workspace.answers(course, lesson)
    _say(course, "The answers are", path, kept)


@app.command()
def reset(lesson: LessonArgument) -> None:
    """Begin a lesson's exercises anew; what you have is kept aside."""
    from grader.cli.carry import RELOAD
    from grader.course import workspace

    course = open_course(lesson)
    try:
        path, kept = workspace.renew(course, lesson)
    except workspace.NothingBuilt as problem:
        raise fail(str(problem)) from None
    _say(course, "A fresh notebook is", path, kept)
    if kept:
        out.print(RELOAD, soft_wrap=True)


def _say(course: Course, what: str, path: Path, kept: Path | None) -> None:
    aside = f" What was there is kept as {course.shown(kept)}." if kept else ""
    out.print(f"{what} in {course.shown(path)}.{aside}", markup=False, soft_wrap=True)
