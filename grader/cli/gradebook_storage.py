"""The part of `grader grade` that stores grades in nbgrader's database: what it says before, meanwhile and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grader.cli.app import err, fail, notebooks, out
from grader.course import Course

if TYPE_CHECKING:
    from grader.core.result import Result
    from grader.grading.batch import Entry
    from grader.lms.gradebook import CourseGradebook


def open_gradebook(course: Course, submitted: Path, lessons: list[str]) -> CourseGradebook:
    """The gradebook, looked at before anything is graded."""
    from grader.lms.gradebook import CourseGradebook
    from grader.lms.nbgrader_database import NoGradebook

    try:
        book = CourseGradebook(course)
        book.check(submitted, lessons)
    except NoGradebook as problem:
        raise fail(str(problem)) from None
    return book


def store(book: CourseGradebook, results: dict[Entry, Result]) -> list[Entry]:
    """Store the grades that the gradebook does not hold yet, and say so; those that it does not take."""
    from grader.grading.pool import Stopped, interruptible
    from grader.lms.gradebook import Progress
    from grader.lms.nbgrader_database import NoGradebook

    seen = Progress()

    def tell(progress: Progress) -> None:
        nonlocal seen
        seen = progress
        done = len(progress.before) + len(progress.now) + len(progress.refused)
        status.update(f"Stored the grades of {done} of {notebooks(len(results))} ...")

    def waiting() -> None:
        err.print("Another grader is storing grades in this gradebook. Waiting until it is done.", soft_wrap=True)

    try:
        with interruptible(), err.status("Storing grades ...") as status:
            seen = book.store(results, waiting, tell)
    except NoGradebook as problem:
        raise fail(str(problem), 1) from None
    except Stopped as stopped:
        held = len(seen.before) + len(seen.now)
        text = f"Stopped. Everything is graded, and the gradebook has the grades of {held} of {notebooks(len(results))}"
        raise fail(f"{text}; the same command goes on from there.", stopped.status) from None
    out.print(f"Stored in the gradebook: {len(seen.now)}. There before, and not changed: {len(seen.before)}.")
    return seen.refused
