"""Verbs for who writes exercises: begin one, see what learners will read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from grader.cli.app import JobsOption, app, err, fail, open_course, out
from grader.course import Course

new = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Begin something new: an exercise.")
app.add_typer(new, name="new")


@new.callback()
def begin() -> None:
    """Begin something new: an exercise."""


@new.command("exercise")
def new_exercise(
    exercise: Annotated[str, typer.Argument(metavar="ID", help="Its id, such as vmap-pairwise.")],
    lesson: Annotated[str, typer.Option("--lesson", metavar="NN_topic", help="The lesson that it belongs to.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Your own folder; made if it is not there.")
    ] = None,
) -> None:
    """Write the skeleton of an exercise into your own folder, an overlay over this course (docs/overlay.md).

    The folder is the one that you are in, or DIR; outside of the course, since that is public.
    """
    from grader.course import new_exercise, new_overlay

    try:
        course = _own_folder(to)
        path, line = new_exercise.add(course, exercise, lesson)
    except new_overlay.NotMade as problem:
        raise fail(str(problem)) from None
    out.print(f"{path}:{line}: {exercise} begins here.", markup=False, soft_wrap=True)
    advice = f"Write what each FILL IN asks for; `grader --course {course.root} build` says what is left."
    out.print(advice, markup=False, soft_wrap=True)


@app.command()
def preview(
    lesson: Annotated[str, typer.Argument(metavar="NN_topic", help="The lesson.")],
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page here instead.")] = None,
    jobs: JobsOption = None,
) -> None:
    """Show what learners will read of each failed check, hidden ones too, beside the wrong answer that fails it.

    Lines with ! name what may be a weakness. For instructors: it shows hidden checks' titles and messages, and why
    answers are wrong.
    """
    from grader.exam import whole
    from grader.prove.preview import preview as rehearse
    from grader.reports import preview as report

    course = open_course(lesson)
    if html is not None and (html.is_dir() or (html.parent.exists() and not os.access(html.parent, os.W_OK))):
        raise fail(f"The page cannot be written to {html}. Name a file in a folder that can be written to.")
    if html is None:
        seen = rehearse(course, lesson, jobs, lambda one: out.print(report.text(one)))
    else:
        with err.status(f"Rehearsing {lesson} ..."):
            seen = rehearse(course, lesson, jobs)
        try:
            whole.write(html, report.dumps(lesson, seen), mode=0o644)
        except OSError as problem:
            raise fail(f"{html} cannot be written: {problem.strerror}.") from None
    if any(one.problem is not None for one in seen):
        raise typer.Exit(1)


def _own_folder(to: Path | None) -> Course:
    """The course in `to`, made where there is none; without `to` the overlay that is acted on."""
    from grader.course import new_overlay
    from grader.course.outline import FILE

    if to is not None and (to / FILE).is_file():
        return Course(to)
    course = open_course()
    if to is not None:
        made = new_overlay.make(to, course)
        out.print(
            f"Made {to.resolve()}, an overlay over {course.root}: {', '.join(made)}.", markup=False, soft_wrap=True
        )
        return Course(to)
    if course.base is None:
        raise new_overlay.NotMade(
            f"The course in {course.root} is not your own folder. Name one with --to, such as --to ../my-class: "
            "it is made if it is not there. (--to . writes into this course.)"
        )
    return course
