"""Commands for learners: open JupyterLab, watch, see progress and solutions, reset, carry, examine the machine."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated, NoReturn

from rich.table import Column, Table
from rich.text import Text
from typer import Argument, Exit, Option

from grader.cli.app import (
    LessonArgument,
    LessonsArgument,
    PlatformOption,
    absence,
    app,
    course_folder,
    open_course,
    refuse_unknown,
    suggestion,
)
from grader.cli.console import echo, err, fail, out, refuse_unwritable, refusing, warn
from grader.cli.grade import list_manual_tasks, machine_for
from grader.core import board_client, files
from grader.core.layout import course_above
from grader.core.points import number, phrase, total
from grader.core.result import CheckResult, Result, document
from grader.course import Course, CourseError, Lesson, migrate, workspace
from grader.grading import batch
from grader.grading.pool import Stopped, interruptible
from grader.reports import terminal
from grader.sandbox.accelerators import Hardware

NOTEBOOK = "A notebook or a lesson id, such as 05_vmap for work/05_vmap/05_vmap.ipynb."
EXERCISE = "Only this exercise, by its id, its title, or a part of either."
JSON = "Also write the result to FILE, and each exercise to stderr as soon as it is graded."
FOLDER = "Your folder, which is created if it is missing. [default: the course of this folder, else jaxercise]"
JupyterLabOptions = Annotated[list[str] | None, Argument(metavar="-- OPTIONS", help="Options of JupyterLab.")]
DEFAULT_FOLDER = "jaxercise"
MARKS = {"done": ("✓", "green"), "begun": ("◐", "yellow"), "open": ("○", "dim")}
# Left alone, JupyterLab saves what it has open, and asks then: its red button would write the old notebook back.
RELOAD = "If it is open in JupyterLab, choose File > Reload Notebook from Disk (or Revert, if JupyterLab asks)."


@app.command()
def lab(
    options: JupyterLabOptions = None,
    open_browser: Annotated[bool, Option("--open/--no-open", help="Open JupyterLab after creating the copies.")] = True,
    folder: Annotated[Path | None, Option("--folder", metavar="DIR", help=FOLDER)] = None,
) -> None:
    """Open JupyterLab on your copies of the notebooks.

    Copies new notebooks to work/ first, and overwrites nothing there. Options after `--` are passed to JupyterLab, as
    in `grader lab -- --no-browser`.
    """
    if folder is None and course_above(course_folder()) is None:
        folder = course_folder() / DEFAULT_FOLDER
    if folder is not None and workspace.create(folder):
        echo(f"Created {folder}, your folder of the course.")
    course = open_course() if folder is None else Course(folder)
    added = workspace.copies(course)
    echo(f"work/: {phrase(len(added), 'new file')}, nothing overwritten.")
    _list_changes(course)
    if open_browser:
        ours = ["--ServerApp.root_dir=work", f"--LabApp.default_url=/lab/tree/{workspace.first(course)}"]
        become_jupyterlab(course, "learner", [*ours, *(options or ())])


def become_jupyterlab(course: Course, role: str, options: list[str]) -> NoReturn:
    """Replaces this process by JupyterLab at the top of the course, with nbgrader's panels for `role`."""
    # Read before a person's own settings, which stay as they are; nbgrader looks for its own there too.
    own = [workspace.JUPYTER / role, *([course.root] if role == "instructor" else [])]
    folders = [*map(str, own), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, folders))
    # So that `grader` is found in the terminals of that JupyterLab, and alembic by nbgrader.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(course.home)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options])


@app.command()
def watch() -> None:
    """Grade your notebooks each time you save them.

    Shows the exercises of the lesson, the messages of failed checks, hints, and the next exercise. Hidden checks are
    included. Press q to stop. If stdout is not a terminal, the output is plain lines.
    """
    from grader.learning import watch_terminal

    raise Exit(watch_terminal.run(open_course(), out))


@app.command()
def check(
    notebook: Annotated[Path, Argument(metavar="NOTEBOOK", help=NOTEBOOK)],
    exercise: Annotated[str | None, Option("--exercise", metavar="NAME", help=EXERCISE)] = None,
    json: Annotated[Path | None, Option("--json", metavar="FILE", help=JSON)] = None,
    platform: PlatformOption = "cpu",
) -> None:
    """Grade the saved version of your own notebook.

    Hidden checks are included. Failures are printed first. Exits with 1 if points are missing.
    """
    from grader.learning import progress

    course = open_course()
    path = _own_notebook(course, notebook)
    lesson = course.lesson(path.stem)
    only = None if exercise is None else find_exercise(lesson, exercise)
    refuse_unwritable("The result", json)
    saved = datetime.fromtimestamp(path.stat().st_mtime)
    result = _result(course, path, json is not None, machine_for(platform), only)
    if json is not None:
        files.write(json, document([result]), mode=0o644)
    out.print(terminal.learner(result, {one.id: one.title for one in lesson.exercises}))
    progress.note(course, result)
    board_client.report_result(result)
    with contextlib.suppress(OSError):
        board_client.reporter.send_notebook(path.stem, path.read_bytes())
    board_client.reporter.finish()
    for line in board_client.reporter.messages():
        echo(line)
    version = f"{path}, saved on {saved:%Y-%m-%d at %H:%M:%S}"
    if result.problem is None:
        echo(f"Graded: {version}. Unsaved changes do not count.")
    elif path.resolve() == workspace.exercises_copy(course, path.stem):
        echo(f"The file is {version}. `grader reset {path.stem}` keeps it and writes a new notebook.")
    else:
        echo(f"The file is {version}.")
    if only is None:
        list_manual_tasks(course, {path.stem})
    if path.resolve() == workspace.exercises_copy(course, path.stem):
        show_changes(course, path.stem)
    if not result.full:
        raise Exit(1)


def find_exercise(lesson: Lesson, typed: str) -> str:
    """Returns the id of the exercise that is meant by an id, a title or a part of one."""
    found = lesson.matching(typed)
    if len(found) == 1:
        return found[0].id
    problem = f"{len(found)} exercises match {typed}" if found else f"There is no exercise {typed}"
    names = "".join(f"\n  {one.id}  {one.title}" for one in found or lesson.exercises)
    raise fail(f"{problem}. Pass an id, a title, or a part of one:{names}")


def _result(course: Course, path: Path, by_line: bool, machine: Hardware, only: str | None) -> Result:
    """Grades the notebook, and meanwhile reports each exercise: in a line of its own, or in a status line."""
    done, most = count(1), 1 if only else len(course.lesson(path.stem).exercises)
    try:
        with interruptible(), err.status(f"Grading {path.stem} ...") as status:

            def show(entry: object, results: list[CheckResult]) -> None:
                if by_line:
                    err.print(terminal.exercise(results), soft_wrap=True)
                status.update(f"Graded {next(done)} of {phrase(most, 'exercise')} ...")

            entry = batch.Entry(path.resolve(), "you", path.stem)
            [result] = batch.grade(
                course, [entry], 1, allow_unsandboxed=True, machine=machine, on_judged=show, only=only
            )
    except Stopped as stopped:
        raise fail("Stopped. Nothing was graded.", stopped.status) from None
    return result


def _own_notebook(course: Course, typed: Path) -> Path:
    """Returns the notebook that is meant by a path, from here or from the top of the course, or by a lesson's id."""
    if str(typed) in course.lesson_ids:
        typed = workspace.exercises_copy(course, str(typed))
        if not typed.is_file():
            raise fail(f"There is no {typed} yet. `grader lab` creates your copies.")
    path = next((path for path in (typed, course.home / typed) if path.is_file()), None)
    if path is None:
        lesson = typed.name.removesuffix(".ipynb")
        raise fail(f"{absence(course, str(typed), 'notebook')} {suggestion(course, lesson)}")
    if path.stem not in course.lesson_ids:
        meant = [one for one in course.lesson_ids if path.stem.startswith(one)]  # JupyterLab's 05_vmap-Copy1
        names = ", ".join(meant or course.lesson_ids)
        raise fail(f"No lesson is called {path.name}. Rename the notebook after its lesson: {names}.")
    return path


@app.command()
def progress() -> None:
    """Show your best results and the next exercise.

    The results are those of `grader check`, `grader watch` and the last cell of a notebook.
    """
    from grader.learning.progress import lesson_progress

    course = open_course()
    found = lesson_progress(course)
    points = Column("points", justify="right", no_wrap=True)
    table = Table(Column("lesson", no_wrap=True), points, "exercises", pad_edge=False, box=None)
    for one in found:
        marks = Text()
        for step in one.steps:
            marks.append(*MARKS["done" if step.done else "begun" if step.earned else "open"]).append(" ")
        table.add_row(Text(one.lesson), f"{number(one.earned)}/{number(one.points)}", marks)
    out.print(table)
    earned, most = total(one.earned for one in found), total(one.points for one in found)
    echo(f"{number(earned)} of {number(most)} points. ✓ full points, ◐ some, ○ none yet.")
    show_changes(course)
    for one in found:
        if one.next:
            own = course.shown(workspace.exercises_copy(course, one.lesson))
            return echo(f"Next: {one.next.exercise.title}, in {own}.")
    echo("All exercises are done.")


@app.command()
def solution(lesson: LessonArgument) -> None:
    """Write a notebook with the solutions of a lesson.

    It also contains alternative solutions and common mistakes. Your own notebook is not changed.
    """
    course = open_course(lesson)
    _show_copy(course, "The solutions are in", *workspace.answers(course, lesson))


@app.command()
def reset(lesson: LessonArgument) -> None:
    """Start the exercises of a lesson again.

    Your notebook is moved to work/earlier/.
    """
    course = open_course(lesson)
    with refusing(workspace.NothingBuilt):
        path, earlier = workspace.renew(course, lesson)
    _show_copy(course, "The new notebook is", path, earlier)
    if earlier:
        echo(RELOAD)


def _show_copy(course: Course, what: str, path: Path, earlier: Path | None) -> None:
    aside = f" The old one is now {course.shown(earlier)}." if earlier else ""
    echo(f"{what} {course.shown(path)}.{aside}")


@app.command()
def carry(lessons: LessonsArgument = None) -> None:
    """Copy your answers into new versions of the notebooks.

    Cells that you added are copied too. The old notebooks are kept in work/earlier/.
    """
    course = open_course()
    refuse_unknown(lessons or (), course)
    found = migrate.diff_all(course, lessons or None)
    if not found:
        echo("Your copies are up to date. There is nothing to carry over.")
        return
    for one in found:
        if one.problem is None:
            _show_migration(course, one.copy, migrate.migrate(course, one.copy))
    unread = [_unread(course, one.copy, one.problem) for one in found if one.problem is not None]
    if len(found) > len(unread):
        echo(f"Run the checks again. {RELOAD}")
    if unread:
        raise fail("\n".join(unread), 1)


def _show_migration(course: Course, copy: workspace.Copy, done: migrate.Migration) -> None:
    parts = [phrase(n, what) for n, what in ((done.answers, "answer"), (done.cells, "cell")) if n]
    brought = (
        f"{' and '.join(parts)} of yours carried over" if parts else "replaced, because it contained nothing of yours"
    )
    if not done.told:
        brought = "replaced, because nothing in it marks which cells are yours"
    lines = [f"{course.shown(copy.own)}: {brought}. The old notebook is now {course.shown(done.earlier)}."]
    lines += [
        f"The answer cell of {name} begins differently now. A comment at your answer shows how." for name in done.begin
    ]
    if done.ended:
        lines.append(f"No longer in the course: {', '.join(done.ended)}. Your answers are below the exercises.")
    if done.restored:
        text = f"You had changed cells of the course: {', '.join(dict.fromkeys(done.restored))}. "
        lines.append(text + "They are restored. Your versions are in the old notebook.")
    echo("\n  ".join(lines))


def _unread(course: Course, copy: workspace.Copy, problem: str | None) -> str:
    return f"{course.shown(copy.own)} cannot be read: {problem}. Rename it, and `grader lab` creates a new copy."


def _list_changes(course: Course) -> None:
    """Lists the learner's copies that the course has newer notebooks for, if there are any."""
    found = migrate.diff_all(course)
    for one in (one for one in found if one.problem is not None):
        warn(_unread(course, one.copy, one.problem))
    lines = [f"{one.copy.lesson}  {one.summary}" for one in found if one.matters]
    only_words = sum(one.words and not one.matters for one in found)
    if only_words:  # a lesson's text, or what is shown after an exercise: no reason for alarm
        lines.append(f"only the text of {phrase(only_words, 'notebook')}")
    if lines:
        echo("The course has changed since you got your copies:")
        for line in lines:
            echo(f"  {line}")
        text = "`grader carry`, in a terminal of JupyterLab, copies everything that you wrote into the new notebooks."
        echo(f"{text} The old ones are kept.")


def show_changes(course: Course, lesson: str | None = None) -> None:
    """Prints which exercises have changed since the learner's copies were made, of a lesson or of all; else nothing."""
    found = [one for one in migrate.diff_all(course, [lesson] if lesson else None) if one.matters]
    if found:
        names = ", ".join(one.copy.lesson for one in found)
        copies = f"since you got your copy ({found[0].summary})" if lesson else f"{names} since you got your copies"
        command = f"grader carry {lesson}" if lesson else "grader carry"
        echo(f"The course has changed {copies}: `{command}` copies your answers into the new notebooks.")


@app.command("doctor")
def examine_machine() -> None:
    """Check this machine and the installation.

    Each problem comes with the command that fixes it. ✓ is fine, ! is a disadvantage, ✗ is an error. Exits with 1 if
    there is a ✗.
    """
    from grader.doctor.diagnosis import examine

    try:
        course = open_course()
    except CourseError:  # also one whose text is broken: `grader build` says how
        course = None
    stops = 0
    for finding in examine(course):
        stops += finding.grade == "stops"
        echo("\n".join(finding.lines()))
    if stops:
        raise fail("1 error was found (✗)." if stops == 1 else f"{stops} errors were found (✗).", 1)


@app.command()
def join(
    url: Annotated[str, Argument(metavar="URL", help="The board's address, which the instructor shows.")] = "",
    code: Annotated[str, Argument(metavar="CODE", help="The code of the workshop.")] = "",
    name: Annotated[str, Option("--name", metavar="NAME", help="Your name on the board. [default: a random one]")] = "",
    leave: Annotated[bool, Option("--leave", help="Leave the workshop.")] = False,
) -> None:
    """Join a workshop.

    Check cells, `grade()`, `grader check` and `grader watch` then report the exercise, the outcome and the time to the
    instructor's board. Code is sent only by `grader share`, or if the board states that it grades saved notebooks.
    """
    if leave:
        known = board_client.membership() is not None
        board_client.leave()
        echo("You have left the workshop. Nothing more is reported." if known else "You have not joined a workshop.")
        return
    if not url or not code:
        raise fail("Copy the command that the projector shows: grader join URL CODE.")
    from grader.learning.workshop_panel import joined_line

    with refusing(board_client.BoardError, OSError):
        joined = board_client.join(url, code, name)
    echo(joined_line(joined))
    echo("To ask for help: grader raise-hand. To leave: grader join --leave.")


@app.command("raise-hand")
def raise_hand(
    lower: Annotated[bool, Option("--lower", help="You no longer need help.")] = False,
) -> None:
    """Ask for help in a workshop."""
    with refusing(board_client.BoardError):
        news = board_client.tell([{"kind": "help", "wanted": not lower}])
    echo("Your request for help is withdrawn." if lower else "Your instructor can see that you ask for help.")
    for line in board_client.news_lines(news):
        echo(line)


@app.command()
def share(
    notebook: Annotated[Path, Argument(metavar="NOTEBOOK", help=NOTEBOOK)],
    exercise: Annotated[str, Argument(metavar="EXERCISE", help="The exercise: its id, its title, or a part of one.")],
) -> None:
    """Share your saved answer to an exercise with the workshop.

    The board shows wrong answers without names, once three people have shared one.
    """
    course = open_course()
    path = _own_notebook(course, notebook)
    found = find_exercise(course.lesson(path.stem), exercise)
    with refusing(board_client.BoardError):
        board_client.share(path, found)
    echo(f"Your saved answer to {found} was shared without your name.")
