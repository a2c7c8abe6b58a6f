"""Verbs of a learner's desk: see the answers, begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.app import app, fail, open_course, out
from grader.course import Course

LessonArgument = Annotated[str, typer.Argument(metavar="NN_topic", help="The lesson.")]


@app.command()
def solution(lesson: LessonArgument) -> None:
    """Lay the lesson's answers beside your notebook, as one to read and run: the course's own, other ways, mistakes."""
    from grader.course import work

    course = open_course(lesson)
    path, kept = work.answers(course, lesson)
    _say(course, "The answers are", path, kept)


@app.command()
def reset(lesson: LessonArgument) -> None:
    """Begin a lesson's exercises anew; what you have is kept aside."""
    from grader.course import work

    course = open_course(lesson)
    try:
        path, kept = work.renew(course, lesson)
    except work.NothingBuilt as problem:
        raise fail(str(problem)) from None
    _say(course, "A fresh notebook is", path, kept)


def _say(course: Course, what: str, path: Path, kept: Path | None) -> None:
    aside = f" What was there is kept as {course.shown(kept)}." if kept else ""
    out.print(f"{what} in {course.shown(path)}.{aside}", markup=False, soft_wrap=True)
