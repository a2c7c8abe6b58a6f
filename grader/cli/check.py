"""The verb for one's own notebook: grade it as it is saved now."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grader.cli.app import PlatformOption, app, err, fail, open_course, out, perhaps, writable
from grader.cli.grade import machine_for, say_by_hand
from grader.core import files
from grader.course import Course

if TYPE_CHECKING:
    from grader.core.result import CheckResult, Result
    from grader.grading.batch import Entry
    from grader.sandbox.accelerators import Hardware


@app.command()
def check(
    notebook: Annotated[
        Path,
        typer.Argument(
            metavar="NOTEBOOK", help="Your notebook, or a lesson's id: 05_vmap is work/05_vmap/05_vmap.ipynb."
        ),
    ],
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the result here too, and each exercise to stderr at once."),
    ] = None,
    platform: PlatformOption = "cpu",
) -> None:
    """Grade your own notebook as it is saved now. Ends with 1 when points are missing."""
    from grader.cli.carry import changed_since
    from grader.core import result as results_json
    from grader.course import workspace
    from grader.learning import progress
    from grader.reports import terminal

    course = open_course()
    path = _my_notebook(course, notebook)
    if json is not None and not writable(json):
        raise fail(f"The result cannot be written to {json}. Name a file in a folder that can be written to.")
    saved = datetime.fromtimestamp(path.stat().st_mtime)
    result = _check(course, path, json is not None, machine_for(platform))
    if json is not None:
        files.write(json, results_json.document([result]), mode=0o644)
    whys = {exercise.id: exercise.why for exercise in course.lesson(path.stem).exercises}
    out.print(terminal.learner(result, whys))
    progress.note(course, result)
    out.print(
        f"Judged: {path}, as saved on {saved:%Y-%m-%d at %H:%M:%S}. Changes that you have not saved do not count.",
        markup=False,
    )
    say_by_hand(course, {path.stem})
    if path.resolve() == workspace.exercises_copy(course, path.stem) and (said := changed_since(course, path.stem)):
        out.print(said, markup=False, soft_wrap=True)
    if not result.full:
        raise typer.Exit(1)


def _check(course: Course, path: Path, by_line: bool, machine: Hardware) -> Result:
    """One's own notebook graded, with a word about each exercise meanwhile: `by_line`, or beside a turning sign."""
    from grader.grading.batch import Entry
    from grader.grading.batch import grade as grade_all
    from grader.grading.pool import Stopped, interruptible
    from grader.reports import terminal

    done, most = 0, len(course.lesson(path.stem).exercises)
    try:
        with interruptible(), err.status(f"Grading {path.stem} ...") as status:

            def tell(entry: Entry, results: list[CheckResult]) -> None:
                nonlocal done
                done += 1
                if by_line:
                    err.print(terminal.exercise(results), soft_wrap=True)
                status.update(f"Judged {done} of {most} exercises ...")

            entry = Entry(path.resolve(), "you", path.stem)
            [result] = grade_all(course, [entry], 1, allow_unsandboxed=True, machine=machine, on_judged=tell)
    except Stopped as stopped:
        raise fail("Stopped. Nothing was judged.", stopped.status) from None
    return result


def _my_notebook(course: Course, asked: Path) -> Path:
    """The notebook that is meant: a path from here or from the top of the course, or a lesson's id."""
    from grader.course import workspace

    if str(asked) in course.lesson_ids:
        asked = workspace.exercises_copy(course, str(asked))
        if not asked.is_file():
            raise fail(f"There is no {asked} yet. Run `make lab`: it lays out your copies.")
    path = next((path for path in (asked, course.root / asked) if path.is_file()), None)
    if path is None:
        raise fail(f"There is no notebook {asked}. {perhaps(course, str(asked))}")
    if path.stem not in course.lesson_ids:
        meant = [one for one in course.lesson_ids if path.stem.startswith(one)]  # JupyterLab's 05_vmap-Copy1
        raise fail(
            f"{path.name} is no lesson's exercises. Name it as its lesson: {', '.join(meant or course.lesson_ids)}."
        )
    return path
