"""Verbs for who writes exercises: begin one, take over a notebook, see what learners will read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grader.cli.app import JobsOption, app, course_folder, err, fail, open_course, out, writable
from grader.core import files
from grader.course import Course

if TYPE_CHECKING:
    from grader.course.nbgrader_source import ImportedText

HANDS = {"manual": "a person grades it", "task": "a person grades it"}

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
        course = _own_folder(to, lambda below: new_exercise.legal(below, exercise, lesson))
        path, line = new_exercise.add(course, exercise, lesson)
    except new_overlay.ScaffoldError as problem:
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
    from grader.prove.preview import preview as rehearse
    from grader.reports import html as pages
    from grader.reports import terminal

    course = open_course(lesson)
    if html is not None and not writable(html):
        raise fail(f"The page cannot be written to {html}. Name a file in a folder that can be written to.")
    if html is None:
        seen = rehearse(course, lesson, jobs, lambda one: out.print(terminal.preview(one)))
    else:
        with err.status(f"Rehearsing {lesson} ..."):
            seen = rehearse(course, lesson, jobs)
        try:
            files.write(html, pages.preview(lesson, seen), mode=0o644)
        except OSError as problem:
            raise fail(f"{html} cannot be written: {problem.strerror}.") from None
    if any(one.problem is not None for one in seen):
        raise typer.Exit(1)


def _own_folder(to: Path | None, check: Callable[[Course], None]) -> Course:
    """The course in `to`, made where there is none; without `to` the overlay that is acted on.

    `check` may refuse what is to go into a folder, by the course below it, before that is made.
    """
    from grader.course import new_overlay
    from grader.course.outline import FILE

    if to is not None and (to / FILE).is_file():
        return Course(to)
    course = open_course()
    if to is not None:
        check(course)
        made = new_overlay.make(to, course)
        out.print(
            f"Made {to.resolve()}, an overlay over {course.root}: {', '.join(made)}.", markup=False, soft_wrap=True
        )
        return Course(to)
    if course.base is None:
        raise new_overlay.ScaffoldError(
            f"The course in {course.root} is not your own folder. Name one with --to, such as --to ../my-class: "
            "it is made if it is not there. (--to . writes into this course.)"
        )
    return course


@app.command("import")
def take_over(
    notebook: Annotated[Path, typer.Argument(metavar="NOTEBOOK.ipynb", help="A source notebook of nbgrader's.")],
    lesson: Annotated[
        str | None, typer.Option("--lesson", metavar="NN_topic", help="Which lesson it becomes; else the next one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the text that the lesson has.")] = False,
) -> None:
    """Make a text of an nbgrader source notebook; built again it is the same notebook (docs/importing.md)."""
    from grader.course import nbgrader_import, nbgrader_place

    try:
        place = nbgrader_place.place(course_folder(), notebook, lesson, force)
        taken = nbgrader_import.take(notebook, place.lesson)
        said = place.write(taken)
    except nbgrader_import.ImportRefused as refusal:
        raise fail(str(refusal)) from None
    except OSError as problem:
        raise fail(f"{place.path} cannot be written: {problem.strerror}.") from None
    todo = _table(taken.lesson)
    released = f"{len(taken.lesson.cells)} cells. nbgrader releases them as it releases those of {notebook.name}."
    for sentence in (f"{place.path}: {released}", *said, *taken.notes, *_next(place.lesson, todo)):
        out.print(sentence, markup=False, soft_wrap=True)


def _table(lesson: ImportedText) -> int:
    """Show what became of each of nbgrader's cells; returns how many checks are left to do by hand."""
    from rich.table import Table
    from rich.text import Text

    from grader.core.text import legible
    from grader.course import nbgrader_lesson

    left = nbgrader_lesson.read(lesson).left
    table = Table("line", "cell", "id", "points", "what the grader does with it")
    table.columns[2].overflow = "fold"
    for cell in lesson.cells:
        if cell.id is None:
            continue
        if cell.line in left:
            reason = left[cell.line]
            does = f"to do, line {cell.first + reason.line - 1}: {reason.reason}"
        else:
            does = HANDS.get(cell.kind, "judges it as it stands" if cell.kind == "check" else "")
        points = f"{cell.attributes['points']:g}" if "points" in cell.attributes else ""
        table.add_row(str(cell.line), cell.kind, cell.id, points, Text(legible(does)))
    out.print(table)
    return len(left)


def _next(lesson: str, todo: int) -> list[str]:
    build = f"`grader build {lesson}` makes the notebooks"
    if not todo:
        return [f"{build}, and `grader prove {lesson}` says whether your own answers pass."]
    checks = "1 check is" if todo == 1 else f"{todo} checks are"
    return [f"{build}. {checks} left to put into words before `grader grade` can judge {lesson}: docs/importing.md."]
