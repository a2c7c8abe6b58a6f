"""Our results into nbgrader's database, by nbgrader's own hand: it finds each notebook graded already."""

from __future__ import annotations

import contextlib
import glob
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jsonschema import Draft4Validator
from nbgrader.api import Assignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.nbgraderformat import common
from sqlalchemy import select
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets.config import Config
from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

from grader.core.result import Result
from grader.course import Course
from grader.grading.batch import Entry
from grader.lms.gradebook_marks import StoredMarks
from grader.lms.nbgrader_autograde import Autograde
from grader.lms.nbgrader_database import Database, NoGradebook
from grader.lms.nbgrader_execute import ExecuteByExaminer, ExecuteWithResult, texts_handed_out
from grader.lms.release_check import outdated

__all__ = ["CourseGradebook", "NoGradebook", "Progress"]

CONFIG = "nbgrader_config.py"


@dataclass
class Progress:
    """Of storing: the notebooks whose grades were there already, those stored now, and those that nbgrader refused."""

    before: list[Entry] = field(default_factory=list)
    now: list[Entry] = field(default_factory=list)
    refused: list[Entry] = field(default_factory=list)


class CourseGradebook:
    """The database of the course in `course.root`, as its nbgrader_config.py names it. Raises `NoGradebook`."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.config = _config(course.root)
        self.directory = CourseDirectory(config=self.config)
        self.database = Database(self.directory.db_url, course.root / "build")
        self._texts: dict[str, dict[str, str]] = {}

    def check(self, submitted: Path, lessons: Iterable[str]) -> None:
        """Whether grades of what lies in `submitted` can be stored. Raises `NoGradebook` before anything is graded."""
        wanted = Path(self.directory.format_path(self.directory.submitted_directory, "", "")).resolve()
        if submitted.resolve() != wanted:
            raise NoGradebook(f"nbgrader grades what lies in {wanted}. Grade that folder, or leave --gradebook out.")
        known: set[str] = set()
        if self.database.there():
            try:
                with self.database.reading() as connection:
                    known = set(connection.execute(select(Assignment.name)).scalars())
            except SQLAlchemyError as problem:
                raise self.database.unusable(problem) from None
        missing = [lesson for lesson in lessons if lesson not in known]
        if missing:
            are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
            commands = " && ".join(f"nbgrader generate_assignment {lesson}" for lesson in missing)
            raise NoGradebook(f"{', '.join(missing)} {are} not in the gradebook yet. Release {them} first: {commands}")
        try:
            with self.database.reading() as connection:
                old = [outdated(self.course, lesson, connection) for lesson in lessons]
        except SQLAlchemyError as problem:
            raise self.database.unusable(problem) from None
        for reason in filter(None, old):
            raise NoGradebook(reason)

    def store(
        self,
        results: Mapping[Entry, Result],
        waiting: Callable[[], None] = lambda: None,
        on_stored: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Have nbgrader store the grades of graded notebooks that it does not hold yet; one grader at a time.

        Each learner's are stored whole or not at all, so that this can end at any moment. `waiting` is called when
        another grader is at it. Raises `NoGradebook`.
        """
        progress = Progress()
        marks = StoredMarks(
            self.course, f"{version('nbgrader')}\n{(self.course.root / CONFIG).read_text(encoding='utf-8')}"
        )
        with self.database.alone(waiting), _quickly():
            self.database.prepare()
            for one, there in self._todo(results, marks):
                if there:
                    progress.before.append(one)
                    continue
                (progress.now if self._stored(one, results[one], marks) else progress.refused).append(one)
                on_stored(progress)
        return progress

    def _todo(self, results: Mapping[Entry, Result], marks: StoredMarks) -> Iterator[tuple[Entry, bool]]:
        """Each notebook, and whether its grades are there."""
        for lesson in dict.fromkeys(entry.lesson for entry in results):
            mine = {entry: result for entry, result in results.items() if entry.lesson == lesson}
            try:
                with self.database.reading() as connection:
                    same = marks.same(mine, connection)
            except SQLAlchemyError as problem:
                raise self.database.unusable(problem) from None
            for entry in mine:
                yield entry, entry in same and self._autograded(entry).is_file()

    def _stored(self, entry: Entry, result: Result, marks: StoredMarks) -> bool:
        """Store one learner's grades of one lesson; whether nbgrader did."""
        try:
            marks.forget(entry)
            with self.database.whole(self.directory.course_id) as session:
                self._autograde(entry, result)
                session.flush()
            with self.database.reading() as connection:
                marks.note(entry, result, connection)
        except SQLAlchemyError as problem:
            raise self.database.unusable(problem) from None
        except NbGraderException as problem:
            if isinstance(problem.__context__, SQLAlchemyError):
                raise self.database.unusable(problem.__context__) from None
            return False
        except OSError as problem:
            where = problem.filename or self.course.root / "build"
            raise NoGradebook(f"{where} cannot be written: {problem.strerror}. No more grades are stored.") from None
        return self._autograded(entry).is_file()

    def _autograde(self, entry: Entry, result: Result) -> None:
        """Run nbgrader's grading of one notebook with our verdict in the place of its execution."""
        step = Autograde(coursedir=self.directory, config=self.config)
        step.log.setLevel(logging.CRITICAL)
        step.force = True
        known = ExecuteWithResult(result, self.course, self._handed_out(entry.lesson), parent=step)
        step.autograde_preprocessors = [
            known if one is ExecuteByExaminer else one for one in step.autograde_preprocessors
        ]
        self.directory.assignment_id, self.directory.student_id = entry.lesson, glob.escape(entry.learner)
        step.start()

    def _handed_out(self, lesson: str) -> dict[str, str]:
        if lesson not in self._texts:
            self._texts[lesson] = texts_handed_out(self.course, lesson)
        return self._texts[lesson]

    def _autograded(self, entry: Entry) -> Path:
        folder = self.directory.format_path(self.directory.autograded_directory, entry.learner, entry.lesson)
        return Path(folder) / f"{entry.lesson}.ipynb"


@contextlib.contextmanager
def _quickly() -> Iterator[None]:
    """nbgrader's grading without what half of its time goes to: holding its schema of a cell's metadata against the
    schema of schemas, once for each cell. Nor does SQLAlchemy tell of what is nbgrader's habit."""

    def validate(instance: Any, schema: Any) -> None:
        Draft4Validator(schema).validate(instance)

    before, common.jsonschema = common.jsonschema, SimpleNamespace(validate=validate)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)
            yield
    finally:
        common.jsonschema = before


def _config(root: Path) -> Config:
    try:
        return PyFileConfigLoader(CONFIG, path=str(root)).load_config()
    except ConfigFileNotFound:
        raise NoGradebook(f"There is no {CONFIG} in {root}, so there is no gradebook to store grades in.") from None
