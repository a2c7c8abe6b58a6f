"""Our results into nbgrader's database, by nbgrader's own hand: it finds each notebook graded already."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import Config
from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

from grader.course import Course
from grader.exam.batch import Entry

CONFIG = "nbgrader_config.py"


class NoGradebook(Exception):
    """Grades cannot be stored; the text is one sentence that says what to do."""


class Book:
    """The database of the course in `course.root`, as its nbgrader_config.py names it. Raises `NoGradebook`."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.config = _config(course.root)
        # nbgrader calls alembic by its name to make a database, and lies beside it.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.directory = CourseDirectory(config=self.config)

    def check(self, submitted: Path, lessons: Iterable[str]) -> None:
        """Whether grades of what lies in `submitted` can be stored. Raises `NoGradebook` before anything is graded."""
        wanted = Path(self.directory.format_path(self.directory.submitted_directory, "", "")).resolve()
        if submitted.resolve() != wanted:
            raise NoGradebook(f"nbgrader grades what lies in {wanted}. Grade that folder, or leave --gradebook out.")
        try:
            with Gradebook(self.directory.db_url, self.directory.course_id) as book:
                for lesson in lessons:
                    book.find_assignment(lesson)
        except MissingEntry:
            raise NoGradebook(
                f"{lesson} is not in the gradebook yet. Release it first: nbgrader generate_assignment {lesson}"
            ) from None
        except SQLAlchemyError as problem:
            raise NoGradebook(_unusable(self.directory.db_url, problem)) from None

    def store(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Have nbgrader store the grades of graded notebooks; yields those whose grades it did not store."""
        entries = list(entries)
        for lesson in dict.fromkeys(entry.lesson for entry in entries):
            step = Autograde(coursedir=self.directory, config=self.config)
            step.log.setLevel(logging.CRITICAL)
            step.force = True
            self.directory.assignment_id, self.directory.student_id = lesson, "*"
            try:
                step.start()
            except NbGraderException as problem:
                if isinstance(problem.__context__, SQLAlchemyError):
                    raise NoGradebook(_unusable(self.directory.db_url, problem.__context__)) from None
            for entry in entries:
                place = self.directory.format_path(self.directory.autograded_directory, entry.learner, lesson)
                if entry.lesson == lesson and not (Path(place) / f"{lesson}.ipynb").exists():
                    yield entry


def _config(root: Path) -> Config:
    try:
        return PyFileConfigLoader(CONFIG, path=str(root)).load_config()
    except ConfigFileNotFound:
        raise NoGradebook(f"There is no {CONFIG} in {root}, so there is no gradebook to store grades in.") from None


def _unusable(url: str, problem: SQLAlchemyError) -> str:
    reason = str(getattr(problem, "orig", problem)).splitlines()[0]
    if "locked" in reason:
        return f"The gradebook {url} is in use by another program. Run the same command again when it is done."
    upgrade = "If another version of nbgrader made it, back it up and run: nbgrader db upgrade"
    return f"The gradebook {url} cannot be used: {reason}. {upgrade}"
