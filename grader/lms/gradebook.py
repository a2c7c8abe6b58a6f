"""Our results in nbgrader's database, written by nbgrader's own grading, which finds each notebook graded already."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import logging
import os
import stat
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jsonschema import Draft4Validator
from nbgrader import api
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.nbgraderformat import common
from sqlalchemy import Connection, Select, select
from sqlalchemy.exc import SAWarning, SQLAlchemyError
from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

from grader.core import files
from grader.core.notebook import MAX_BYTES
from grader.core.result import Result
from grader.course import Course
from grader.course.build import exercises_path
from grader.grading.batch import Entry
from grader.grading.cache import digest, file_name, lesson_fingerprint
from grader.lms.late_policy import extension
from grader.lms.nbgrader_autograde import Autograde
from grader.lms.nbgrader_database import Database, NoGradebook, outdated

CONFIG = "nbgrader_config.py"


@dataclass
class Progress:
    """Notebooks whose grades were there before, whose grades are stored now, and whose grades were refused."""

    before: list[Entry] = field(default_factory=list)
    now: list[Entry] = field(default_factory=list)
    refused: list[Entry] = field(default_factory=list)


class CourseGradebook:
    """The database of the course in `course.root`, as its nbgrader_config.py names it. Methods raise NoGradebook."""

    def __init__(self, course: Course) -> None:
        self.course = course
        try:
            self.config = PyFileConfigLoader(CONFIG, path=str(course.root)).load_config()
        except ConfigFileNotFound:
            text = f"There is no {CONFIG} in {course.root}, and therefore no gradebook."
            raise NoGradebook(text) from None
        self.directory = CourseDirectory(config=self.config)
        self.database = Database(self.directory.db_url, course.root / "build")

    def check(self, submitted: Path, lessons: Iterable[str]) -> None:
        """Raises NoGradebook where grades of what is in `submitted` could not be stored. Grades nothing."""
        wanted = Path(self.directory.format_path(self.directory.submitted_directory, "", "")).resolve()
        if submitted.resolve() != wanted:
            raise NoGradebook(f"nbgrader grades the folder {wanted}. Grade that folder, or omit --gradebook.")
        known: set[str] = set()
        if self.database.there():
            with self.database.reading() as connection:
                known = set(connection.execute(select(api.Assignment.name)).scalars())
        missing = [lesson for lesson in lessons if lesson not in known]
        if missing:
            are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
            commands = " && ".join(f"nbgrader generate_assignment {lesson}" for lesson in missing)
            raise NoGradebook(f"{', '.join(missing)} {are} not in the gradebook yet. Release {them} first: {commands}")
        with self.database.reading() as connection:
            reasons = [outdated(self.course, lesson, connection) for lesson in lessons]
        for reason in filter(None, reasons):
            raise NoGradebook(reason)

    def store(
        self,
        results: Mapping[Entry, Result],
        waiting: Callable[[], None] = lambda: None,
        on_stored: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Has nbgrader store the grades that it does not hold yet, each learner's whole or not at all. Where the grader
        failed, what the database has of that learner stays. `waiting` is called when another grader is storing grades
        at the moment, `on_stored` after each learner."""
        progress = Progress()
        with self.database.alone(waiting), _quickly():
            self.database.prepare()
            for lesson in dict.fromkeys(entry.lesson for entry in results):
                mine = {entry: result for entry, result in results.items() if entry.lesson == lesson}
                with self.database.reading() as connection:
                    shared, rows = self._shared(lesson, connection), _rows(lesson, connection)
                for entry, result in mine.items():
                    if self._unchanged(entry, result, shared, rows.get(entry.learner)):
                        progress.before.append(entry)
                    elif result.grader_failed or not self._stored(entry, result):
                        progress.refused.append(entry)
                    else:
                        progress.now.append(entry)
                    on_stored(progress)
        return progress

    def _stored(self, entry: Entry, result: Result) -> bool:
        """Stores one learner's grades of one lesson; whether nbgrader did."""
        try:
            self._mark_path(entry).unlink(missing_ok=True)
            with self.database.whole(self.directory.course_id) as session:
                step = Autograde(coursedir=self.directory, config=self.config)
                step.log.setLevel(logging.CRITICAL)
                step.force = True
                # Our verdict, in the place of nbgrader's execution.
                step.examiner.course, step.examiner.results = self.course, {(entry.learner, entry.lesson): result}
                self.directory.assignment_id, self.directory.student_id = entry.lesson, glob.escape(entry.learner)
                step.start()
                session.flush()
            with self.database.reading() as connection:
                rows = _rows(entry.lesson, connection, entry.learner).get(entry.learner)
                mark = self._mark(self._shared(entry.lesson, connection), entry, result, rows)
            with contextlib.suppress(OSError):  # a full disk costs the next run time, and this one nothing
                files.write(self._mark_path(entry), mark, alone=True)
        except SQLAlchemyError as problem:
            raise self.database.unusable(problem) from None
        except NbGraderException as problem:
            if isinstance(problem.__context__, SQLAlchemyError):
                raise self.database.unusable(problem.__context__) from None
            return False
        except OSError as problem:
            where = problem.filename or self.course.root / "build"
            raise NoGradebook(
                f"{where} cannot be written: {problem.strerror}. No further grades were stored."
            ) from None
        return self._autograded(entry).is_file()

    def _autograded(self, entry: Entry) -> Path:
        folder = self.directory.format_path(self.directory.autograded_directory, entry.learner, entry.lesson)
        return Path(folder) / f"{entry.lesson}.ipynb"

    # --- marks under build/stored/, by which grades that are stored already are recognised ---
    # A mark is a digest of all that nbgrader made a learner's rows from, and of the rows: a restored backup, a deleted
    # submission or a moved deadline makes it differ. What a person entered in Formgrader is not a part of it.

    def _unchanged(self, entry: Entry, result: Result, shared: str, rows: Any) -> bool:
        with contextlib.suppress(OSError, ValueError):
            mark = self._mark_path(entry).read_text(encoding="utf-8")
            return mark == self._mark(shared, entry, result, rows) and self._autograded(entry).is_file()
        return False

    def _mark(self, shared: str, entry: Entry, result: Result, rows: Any) -> str:
        told = {**result.to_json(), "duration_s": 0, "confinement": ""}
        late = extension(self.course.deadlines, entry.learner, entry.lesson)
        return digest([shared, told, _submitted_files(entry), rows, str(late)])

    def _mark_path(self, entry: Entry) -> Path:
        return self.course.root / "build" / "stored" / entry.lesson / file_name(entry.learner)

    def _shared(self, lesson: str, connection: Connection) -> str:
        """What holds for every learner: nbgrader, its configuration and record of the lesson, the released notebook."""
        assignment = select(api.Assignment.name, api.Assignment.duedate).where(api.Assignment.name == lesson)
        of_lesson = assignment.join(api.Notebook, api.Notebook.assignment_id == api.Assignment.id)
        queries: list[Select[Any]] = [assignment]
        for cell, *columns in (
            (api.SourceCell, api.SourceCell.checksum, api.SourceCell.cell_type, api.SourceCell.locked),
            (api.GradeCell, api.GradeCell.id, api.GradeCell.max_score),
            (api.TaskCell, api.TaskCell.id, api.TaskCell.max_score),
        ):
            query = of_lesson.join(cell, cell.notebook_id == api.Notebook.id)
            queries.append(query.with_only_columns(cell.name, *columns).order_by(cell.name))
        released = exercises_path(self.course, lesson)
        text = self.course.lesson(lesson)
        return digest(
            [
                version("nbgrader"),
                (self.course.root / CONFIG).read_text(encoding="utf-8"),
                [str(self.course.deadlines.due.get(lesson)), repr(self.course.deadlines.policy)],
                [text.title, lesson_fingerprint(text), repr(text.tasks)],
                hashlib.sha256(released.read_bytes() if released.is_file() else b"").hexdigest(),
                [[list(map(str, row)) for row in connection.execute(query)] for query in queries],
            ]
        )


def _rows(lesson: str, connection: Connection, learner: str | None = None) -> dict[str, Any]:
    """What nbgrader's own grading writes of each learner (or one), by learner."""
    submitted, notebook = api.SubmittedAssignment, api.SubmittedNotebook
    query = select(submitted.student_id).join(api.Assignment, submitted.assignment_id == api.Assignment.id)
    query = query.join(notebook, notebook.assignment_id == submitted.id).where(api.Assignment.name == lesson)
    if learner is not None:
        query = query.where(submitted.student_id == learner)
    found: dict[str, Any] = defaultdict(list)
    columns = (notebook.id, submitted.timestamp, submitted.extension, notebook.late_submission_penalty)
    queries: list[Select[Any]] = [query.add_columns(*columns)]
    for table, column in ((api.Grade, api.Grade.auto_score), (api.Comment, api.Comment.auto_comment)):
        joined = query.join(table, table.notebook_id == notebook.id)
        queries.append(joined.add_columns(table.cell_id, column))
    for student, *row in (row for one in queries for row in connection.execute(one)):
        found[student].append(list(map(str, row)))
    return {student: sorted(rows) for student, rows in found.items()}


def _submitted_files(entry: Entry) -> list[Any]:
    """The notebook and its date by content; by size and time what is only copied, or larger than anything that is read.

    The folder is a learner's: neither its depth nor the size of a file in it may end the run.
    """
    found, folders = list[Any](), [entry.path.parent]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as inside:
            for one in inside:
                about, path = one.stat(follow_symlinks=False), Path(one.path)
                content: Any = [about.st_mode, about.st_size, about.st_mtime_ns]
                if stat.S_ISDIR(about.st_mode):
                    folders.append(path)
                readable = stat.S_ISREG(about.st_mode) and about.st_size <= MAX_BYTES
                if readable and path.name in (entry.path.name, "timestamp.txt"):
                    with contextlib.suppress(OSError):
                        content = hashlib.sha256(path.read_bytes()).hexdigest()
                found.append([str(path.relative_to(entry.path.parent)), content])
    return sorted(found, key=lambda one: str(one[0]))


@contextlib.contextmanager
def _quickly() -> Iterator[None]:
    """Halves nbgrader's time: it validates its own schema again for each cell, through a module that no setting
    replaces, so the module is patched. SQLAlchemy's warnings about nbgrader's habits are left out."""
    validate = lambda instance, schema: Draft4Validator(schema).validate(instance)
    before, common.jsonschema = common.jsonschema, SimpleNamespace(validate=validate)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)
            yield
    finally:
        common.jsonschema = before
