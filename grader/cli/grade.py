"""Verbs about results: grade a class, give results another form."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grader.cli.app import (
    JobsOption,
    LessonOption,
    PlatformOption,
    app,
    err,
    fail,
    notebooks,
    open_course,
    out,
    writable,
)
from grader.cli.gradebook_storage import open_gradebook, store
from grader.core import files
from grader.core.faults import UnconfinedError
from grader.course import Course

if TYPE_CHECKING:
    from grader.core.result import Result
    from grader.grading.batch import Entry
    from grader.grading.regrade import Change, PreviousGrades
    from grader.sandbox.accelerators import Hardware
    from grader.sandbox.process import ConfinementReport


@app.command()
def grade(
    submitted: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of <learner>/<lesson>/<lesson>.ipynb.")],
    lesson: LessonOption = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here too.")] = None,
    jobs: JobsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Grade again what was graded before.")] = False,
    allow_unsandboxed: Annotated[
        bool, typer.Option("--allow-unsandboxed", help="Grade even where notebooks can read your files.")
    ] = False,
    gradebook: Annotated[
        bool, typer.Option("--gradebook", help="Store the grades in nbgrader's database, as nbgrader autograde does.")
    ] = False,
    explain_changes: Annotated[
        bool, typer.Option("--explain-changes", help="Say whose points are others than last time, where, and why.")
    ] = False,
    platform: PlatformOption = "cpu",
) -> None:
    """Grade a class: a table, then what each learner missed and why. Ends with 1 when something could not be graded.

    What an earlier run has graded is not graded again, unless the notebook, the course or the grader has changed.
    """
    from grader.core import result as results_json
    from grader.grading.batch import NothingToGrade, find, graded_before, without_secret
    from grader.grading.batch import grade as grade_all
    from grader.grading.cache import edition
    from grader.grading.regrade import PreviousGrades
    from grader.grading.signals import Stopped, interruptible
    from grader.reports import terminal

    course = open_course(lesson)
    if not submitted.is_dir():
        raise fail(f"There is no folder {submitted}. Give the folder that holds <learner>/<lesson>/<lesson>.ipynb.")
    if json is not None and not writable(json):
        raise fail(f"The results cannot be written to {json}. Name a file in a folder that can be written to.")
    try:
        entries = find(submitted, course, lesson)
    except NothingToGrade as problem:
        raise fail(str(problem)) from None
    machine = machine_for(platform)
    if without_secret(course):
        err.print(without_secret(course), markup=False, soft_wrap=True)
    _say_left_out(submitted, course)
    book = open_gradebook(course, submitted, sorted({entry.lesson for entry in entries})) if gradebook else None
    began, ours = time.monotonic(), edition(machine.edition)
    last = PreviousGrades(course, entries, ours, machine.edition) if explain_changes else None
    before = {} if force else graded_before(course, entries, ours)
    done: dict[Entry, Result] = {}
    try:
        with interruptible(), err.status(f"Grading {notebooks(len(entries))} ...") as status:

            def tell(entry: Entry, result: Result) -> None:
                done[entry] = result
                status.update(f"Graded {len(done)} of {notebooks(len(entries))} ...")

            results = grade_all(
                course, entries, jobs, tell, allow_unsandboxed=allow_unsandboxed, on_confined=_warn_unconfined,
                edition=ours, before=before, machine=machine,
            )  # fmt: skip
    except UnconfinedError as problem:
        raise fail(f"Nothing is graded. {problem} If you trust every notebook, add --allow-unsandboxed.") from None
    except Stopped as stopped:
        terminal.tables([done[entry] for entry in entries if entry in done], out)
        _show(_changed(last, done), done)
        again = "the same command without --force" if force else "the same command"
        unwritten = "" if json is None else f" {json} is not written."
        unwritten += " Nothing was stored in the gradebook." if gradebook else ""
        text = f"Stopped. {len(done)} of {notebooks(len(entries))} are graded; {again} goes on from there.{unwritten}"
        raise fail(text, stopped.status) from None
    changed = _changed(last, done)
    told = {(one.learner, one.lesson): one.to_json() for one in changed[0]} if changed else None
    try:
        if json is not None:
            files.write(json, results_json.document(results, told), mode=0o644)
    except OSError as problem:
        text = f"The results cannot be written to {json}: {problem.strerror}. The same command tries again."
        raise fail(text) from None
    finally:
        terminal.show(results, out)
        _show(changed, done)
    unstored = [] if book is None else store(book, dict(zip(entries, results, strict=True)))
    kept = sum(result is before.get(entry) for entry, result in done.items())
    out.print(f"{notebooks(len(results))} in {time.monotonic() - began:.1f} s.{_kept(kept, len(results))}")
    say_by_hand(course, {entry.lesson for entry in entries})
    broken = [r for r in results if r.problem is not None or r.grader_failed]
    if broken:
        names = ", ".join(f"{terminal.name(result.learner)}/{result.lesson}" for result in broken)
        raise fail(f"Not graded, or not fully: {names}. The reasons stand above.", 1)
    if unstored:
        names = ", ".join(f"{terminal.name(entry.learner)}/{entry.lesson}" for entry in unstored)
        raise fail(f"Graded, but not in the gradebook: {names}. nbgrader autograde says why.", 1)


def machine_for(platform: str) -> Hardware:
    """The devices to grade on; says which where they are no CPUs."""
    from grader.sandbox import accelerators

    if platform not in accelerators.NAMES:
        raise fail(f"There is no platform {platform}. Platforms: {', '.join(accelerators.NAMES)}.")
    try:
        found = accelerators.look(platform)
    except accelerators.Absent as problem:
        raise fail(str(problem)) from None
    if not found.platform.is_cpu:
        err.print(f"Grading on {found}.", markup=False, soft_wrap=True)
    return found


def say_by_hand(course: Course, lessons: set[str]) -> None:
    """That there is more to give than what was judged, where there is."""
    for lesson in sorted(lessons):
        for task in course.lesson(lesson).tasks:
            text = f"{task.id} ({lesson}) is for a person to grade: its {task.points:g} points are not counted here."
            out.print(text, markup=False, soft_wrap=True)


def _changed(last: PreviousGrades | None, done: dict[Entry, Result]) -> tuple[list[Change], int] | None:
    """Which results differ from last time's and why, and how many had none; None where nobody asked."""
    if last is None:
        return None
    return last.changes({entry: done[entry] for entry in sorted(done, key=lambda entry: entry.path)})


def _show(changed: tuple[list[Change], int] | None, done: dict[Entry, Result]) -> None:
    from grader.reports import terminal

    if changed is not None:
        terminal.regrade(*changed, len(done), out)


def _say_left_out(submitted: Path, course: Course) -> None:
    """What nobody would miss otherwise: a folder whose name is that of a lesson but for a letter."""
    from grader.grading.batch import strays
    from grader.reports.terminal import name

    found = strays(submitted, course)
    if found:
        names = ", ".join(name(str(path)) for path in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        err.print(f"Left out, as no lesson is called so: {names}{more}.", markup=False, soft_wrap=True)


def _warn_unconfined(confined: ConfinementReport) -> None:
    """Say that learners' code could be confined better, where it could."""
    from grader.doctor.confinement import warning

    if text := warning(confined):
        err.print(text, markup=False, soft_wrap=True)


def _kept(before: int, of: int) -> str:
    """A sentence about those that were not graded again."""
    if not before:
        return ""
    which = "All" if before == of else f"{before} of them"
    return f" {which} were graded before and have not changed; --force grades them again."


@app.command()
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS.json", help="What `grader grade DIR --json` wrote.")],
    form: Annotated[str, typer.Option("--as", metavar="FORM", help="One of those that docs/reports.md lists.")],
    learner: Annotated[str | None, typer.Option("--learner", metavar="NAME", help="Only this learner.")] = None,
    lesson: LessonOption = None,
    to: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it here, not to the terminal.")
    ] = None,
) -> None:
    """Give results another form: JUnit, HTML, CSV, Canvas, Gradescope, GitHub."""
    import sys

    from grader.core import result as results_json
    from grader.reports.forms import FORMS, NotOne

    if form not in FORMS:
        raise fail(f"There is no form {form}. Forms: {', '.join(FORMS)}.")
    try:
        chosen = [
            r
            for r in results_json.read_document(results)
            if learner in (None, r.learner) and lesson in (None, r.lesson)
        ]
        text = FORMS[form](chosen)
    except (results_json.NoResults, NotOne) as problem:
        raise fail(str(problem)) from None
    if to is None:
        sys.stdout.write(text)
        return
    try:
        files.write(to, text, mode=0o644)
    except OSError as problem:
        raise fail(f"{to} cannot be written: {problem.strerror}.") from None
