"""Commands for authors: begin an exercise, import a notebook, build, prove, and preview what learners will read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option

from grader.cli.app import (
    App,
    JobsOption,
    LessonArgument,
    LessonsArgument,
    app,
    course_folder,
    open_course,
    refuse_unknown,
)
from grader.cli.console import echo, err, fail, out, refuse_unwritable, refusing, refusing_files, write
from grader.core.layout import COURSE_FILE
from grader.core.points import number, phrase
from grader.core.text import legible
from grader.course import Course, nbgrader_lesson, scaffold
from grader.course import build as builder
from grader.prove import proof as proofs
from grader.reports import terminal

new = App(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(new, name="new", help="Create an exercise.")


@new.command("exercise")
def new_exercise(
    exercise: Annotated[str, Argument(metavar="ID", help="Id of the exercise, such as vmap-pairwise.")],
    lesson: Annotated[str, Option("--lesson", metavar="NN_topic", help="The lesson to add it to.")],
    to: Annotated[
        Path | None, Option("--to", metavar="DIR", help="Your own folder, which is created if it is missing.")
    ] = None,
) -> None:
    """Write the skeleton of an exercise to your own folder.

    Your folder is DIR, or else the current folder. It extends the course and is outside of it, because the course is
    public (docs/overlay.md). To add an exercise to the course itself, run this in the course with `--to .`.
    """
    with refusing(scaffold.ScaffoldError):
        course = _own_folder(to, exercise, lesson)
        path, line = scaffold.add_exercise(course, exercise, lesson)
    echo(f"{path}:{line}: the skeleton of {exercise}.")
    echo(f"Replace each FILL IN. `grader --course {course.root} build` lists what is missing.")


def _own_folder(to: Path | None, exercise: str, lesson: str) -> Course:
    """Returns the course in `to`, made where there is none; without `to` the overlay that is acted on."""
    if to is not None and (to / COURSE_FILE).is_file():
        return Course(to)
    course = open_course()
    if to is not None:
        scaffold.refuse_illegal(course, exercise, lesson)  # before the folder is made
        made = scaffold.make_overlay(to, course)
        echo(f"Created {to.resolve()}, an overlay over {course.root}: {', '.join(made)}.")
        return Course(to)
    if course.base is None:
        fix = "Choose one with --to, such as --to ../my-class. It is created if it does not exist."
        text = f"The course in {course.root} is not your own folder. {fix} (--to . writes into this course.)"
        raise scaffold.ScaffoldError(text)
    return course


@app.command("import")
def import_notebook(
    notebook: Annotated[Path, Argument(metavar="NOTEBOOK.ipynb", help="An nbgrader source notebook.")],
    lesson: Annotated[
        str | None, Option("--lesson", metavar="NN_topic", help="The lesson to write. [default: the next one]")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the existing text of the lesson.")] = False,
) -> None:
    """Convert an nbgrader notebook to authored text.

    `grader build` creates the same notebook from the text (docs/importing.md).
    """
    from grader.course import nbgrader_import

    with refusing(nbgrader_import.ImportRefused):
        place = nbgrader_import.import_target(course_folder(), notebook, lesson, force)
        with refusing_files(place.path):
            imported = nbgrader_import.import_notebook(notebook, place.lesson)
            notes = place.write(imported)
    left, cells = _show_cells(imported.lesson), f"{len(imported.lesson.cells)} cells"
    echo(f"{place.path}: {cells}. nbgrader releases them in the same way as those of {notebook.name}.")
    for sentence in (*notes, *imported.notes):
        echo(sentence)
    checks = "1 check is" if left == 1 else f"{left} checks are"
    todo = f". {checks} left to convert before `grader grade` can grade {place.lesson} (docs/importing.md)."
    done = f", and `grader prove {place.lesson}` tests whether your own answers pass."
    echo(f"`grader build {place.lesson}` builds the notebooks{todo if left else done}")


def _show_cells(lesson: nbgrader_lesson.ImportedText) -> int:
    """Prints what became of each of nbgrader's cells; returns how many checks are left to do by hand."""
    uses = {"manual": "a person grades it", "task": "a person grades it", "check": "runs it unchanged"}
    left = nbgrader_lesson.gradable_parts(lesson).ungradable
    table = Table("line", "cell", "id", "points", "grading")
    table.columns[2].overflow = "fold"
    for cell in lesson.cells:
        if cell.id is None:
            continue
        use = uses.get(cell.kind, "")
        if part := left.get(cell.line):
            use = f"to do, line {cell.first + part.line - 1}: {part.reason}"
        points = number(cell.attributes["points"]) if "points" in cell.attributes else ""
        table.add_row(str(cell.line), cell.kind, cell.id, points, Text(legible(use)))
    out.print(table)
    return len(left)


@app.command()
def build(
    lessons: LessonsArgument = None,
    check: Annotated[bool, Option("--check", help="Write nothing. Exit with 1 if a notebook is stale.")] = False,
) -> None:
    """Build the notebooks from the authored text.

    The text is in notebooks/NN_topic.py and solutions/NN_topic.py.
    """
    course = open_course()
    if course.home != course.root:
        fix = "To change it, clone its repository. `grader new exercise --to DIR` adds exercises of your own."
        raise fail(f"{course.home} uses the installed course, whose notebooks are built. {fix}")
    refuse_unknown(lessons or (), course)
    if not check:
        for path in builder.build(course, lessons or None):
            echo(str(path))
        return
    if stale := builder.stale(course):
        fix = "run `make build` and commit" if course.base is None else "run `grader build`"
        raise fail(f"Stale notebooks, {fix}: {', '.join(map(str, stale))}", 1)
    echo("Every built notebook is up to date.")


@app.command()
def prove(
    lessons: LessonsArgument = None,
    exercise: Annotated[str | None, Option("--exercise", metavar="ID", help="Only this exercise.")] = None,
    mutants: Annotated[bool, Option(help="Also test generated wrong answers (mutants).")] = True,
    seeds: Annotated[int, Option(min=1, metavar="N", help="Number of draws of the inputs for each answer.")] = 20,
    suggest: Annotated[bool, Option("--suggest", help="Only list mutants that pass all checks.")] = False,
    times: Annotated[bool, Option("--times", help="Only measure how long each check of the solutions takes.")] = False,
    jobs: JobsOption = None,
) -> None:
    """Test the checks of each exercise.

    Right answers must pass. Wrong answers, and mutants (copies of the solution with one mistake), must fail on every
    draw of the inputs. Built notebooks must be up to date. Exits with 1 if any of this does not hold.
    """
    course = open_course(*(lessons or ()))
    ids = tuple(lessons or course.lesson_ids)
    if exercise is not None and not any(
        one.id == exercise for lesson in ids for one in course.lesson(lesson).exercises
    ):
        raise fail(f"There is no exercise {exercise} in {', '.join(ids)}.")
    if times:
        if proofs.show_times(course, ids, exercise, out):
            raise Exit(1)
        return
    proof = proofs.prove(course, ids, exercise, mutants=mutants, jobs=jobs, seeds=seeds, suggest=suggest)
    (proofs.show_suggestions if suggest else proofs.show)(proof, out)
    if proof.problems:
        raise Exit(1)


@app.command()
def totals() -> None:
    """Count exercises, points, checks, answers and mutants.

    `right` and `wrong` are the answers that authors have written with their verdicts, and `mutants` are made from the
    solutions. `grader prove` runs them all.
    """
    proofs.show_totals(open_course(), out)


@app.command()
def preview(
    lesson: LessonArgument,
    html: Annotated[Path | None, Option("--html", metavar="FILE", help="Write a page to FILE instead.")] = None,
    jobs: JobsOption = None,
) -> None:
    """Show the messages that learners get for wrong answers.

    Lines with ! point to possible weaknesses of the checks. The output contains the messages of hidden checks and the
    misconceptions, so do not share it with learners.
    """
    from grader.reports import html as pages

    course = open_course(lesson)
    refuse_unwritable("The page", html)
    if html is None:
        seen = proofs.preview(course, lesson, jobs, lambda one: out.print(terminal.preview(one)))
    else:
        with err.status(f"Grading the wrong answers of {lesson} ..."):
            seen = proofs.preview(course, lesson, jobs)
        write(html, pages.preview(lesson, seen))
        echo(f"{html}: the messages of {phrase(len(seen), 'exercise')}. Do not share this page with learners.")
    if any(one.problem is not None for one in seen):
        raise Exit(1)
