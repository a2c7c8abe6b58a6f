"""Verbs about the course and the machine: build, prove, open it in JupyterLab, ask what is wrong with the set-up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from grader.cli.app import JobsOption, app, fail, open_course, out
from grader.course import Course, CourseError


@app.command("doctor")
def examine_machine() -> None:
    """Say what is right and wrong with this machine and its set-up, with the command that mends each fault.

    ✓ is fine, ! costs you something, ✗ stands in the way; with a ✗ it ends with 1.
    """
    from grader.core.text import legible
    from grader.doctor.diagnosis import examine

    try:
        root = open_course().root
    except CourseError:  # also one whose text is broken: `grader build` says how
        root = None
    grades = []
    for finding in examine(root):
        grades.append(finding.grade)
        for line in finding.lines():
            out.print(legible(line), markup=False, soft_wrap=True)
    stops = grades.count("stops")
    if stops:
        raise fail("1 thing stands in the way (✗)." if stops == 1 else f"{stops} things stand in the way (✗).", 1)


@app.command()
def build(
    lessons: Annotated[list[str] | None, typer.Argument(metavar="[NN_topic]...", help="Only these lessons.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; end with 1 when a notebook is stale.")] = False,
) -> None:
    """Build the notebooks from the authored text."""
    from grader.course import build as builder

    course = open_course()
    if check:
        stale = builder.stale(course)
        if stale:
            mend = "run `make build` and commit" if course.base is None else "run `grader build`"
            paths = ", ".join(str(path) for path in stale)
            raise fail(f"Stale, {mend}: {paths}", 1)
        out.print("Every built notebook is up to date.")
        return
    for path in builder.build(course, lessons or None):
        out.print(str(path), markup=False, soft_wrap=True)


@app.command()
def prove(
    lessons: Annotated[list[str] | None, typer.Argument(metavar="[NN_topic]...", help="Only these lessons.")] = None,
    mutants: Annotated[bool, typer.Option(help="Also put machine-made wrong answers to the test.")] = True,
    jobs: JobsOption = None,
) -> None:
    """Prove the course: right answers pass, wrong ones fail, mutants are killed, nothing built is stale."""
    from grader.prove import proof as proofs

    course = open_course()
    for lesson in lessons or ():
        open_course(lesson)
    proof = proofs.prove(course, tuple(lessons or course.lesson_ids), mutants=mutants, jobs=jobs)
    proofs.show(proof, out)
    if not proof.holds:
        raise typer.Exit(1)


@app.command()
def lab(
    options: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of JupyterLab.")] = None,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open JupyterLab after laying out the copies.")
    ] = True,
) -> None:
    """Lay out your copies under work/, adding what is new and never overwriting, then open JupyterLab.

    What stands after `--` goes to JupyterLab, as in `grader lab -- --no-browser`.
    """
    from grader.cli.carry import tell_aged
    from grader.course import workspace

    course = open_course()
    added = workspace.copies(course)
    out.print(f"work/: {len(added)} new, nothing overwritten." if added else "work/: nothing new, nothing overwritten.")
    tell_aged(course)
    if open_browser:
        ours = ["--ServerApp.root_dir=work", f"--LabApp.default_url=/lab/tree/{workspace.first(course)}"]
        _jupyterlab(course, "learner", [*ours, *(options or ())])


@app.command()
def instructor(
    options: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of JupyterLab.")] = None,
) -> None:
    """Open JupyterLab on the whole course, with nbgrader's Formgrader and Assignment List (menu Nbgrader).

    What stands after `--` goes to JupyterLab, as in `grader instructor -- --no-browser`.
    """
    course = open_course()
    if not (course.root / "nbgrader_config.py").is_file():
        raise fail(f"There is no nbgrader_config.py in {course.root}. Copy the one of this project there.")
    (course.root / "work").mkdir(exist_ok=True)  # the Assignment List fetches to it, and wants it to be there
    _jupyterlab(course, "instructor", options or [])


def _jupyterlab(course: Course, role: str, options: list[str]) -> NoReturn:
    """Become JupyterLab at the top of the course. Which of nbgrader's panels there are is up to who opens it."""
    from grader.course import workspace

    # Looked at before anybody's own settings, which stay as they are; nbgrader looks for its own there too.
    own = [workspace.JUPYTER / role, *([course.root] if role == "instructor" else [])]
    folders = [*map(str, own), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, folders))
    # So that `grader` is found in the terminals of that JupyterLab, and alembic by nbgrader.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.chdir(course.root)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options])
