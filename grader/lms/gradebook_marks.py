"""What the database holds already: which grades need not be stored again, because nothing about them has changed."""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from pathlib import Path
from typing import Any

from nbgrader.api import (
    Assignment,
    Comment,
    Grade,
    GradeCell,
    Notebook,
    SourceCell,
    SubmittedAssignment,
    SubmittedNotebook,
    TaskCell,
)
from sqlalchemy import Connection, Select, select
from sqlalchemy.orm import Session

from grader.core import files
from grader.core.result import Result
from grader.course import Course
from grader.course.build import exercises_path
from grader.grading import fingerprint
from grader.grading.batch import Entry


class StoredMarks:
    """Marks under `build/stored/` of a course, one for each learner and lesson.

    A mark is a digest of all that nbgrader made a learner's rows from, and of the rows: who restores a backup, deletes
    a submission or moves a deadline gets new ones. What a person gave by hand in Formgrader is no part of it.
    """

    def __init__(self, course: Course, around: str) -> None:
        """`around` is all that decides beside course, submission and result: nbgrader's version and configuration."""
        self.course, self.around = course, around

    def same(self, entries: dict[Entry, Result], connection: Connection) -> set[Entry]:
        """Those of one lesson whose grades are stored as they would be now."""
        if not entries:
            return set()
        lesson = next(iter(entries)).lesson
        asked, rows = self._asked(lesson, connection), _rows(lesson, connection)
        return {e for e, result in entries.items() if self._read(e) == _mark(asked, e, result, rows.get(e.learner))}

    def forget(self, entry: Entry) -> None:
        """Before its rows and files are made anew."""
        with contextlib.suppress(FileNotFoundError):
            self._path(entry).unlink()

    def note(self, entry: Entry, result: Result, session: Session | Connection) -> None:
        """Its rows and files are there. A full disk costs the next run time, and this one nothing."""
        rows = _rows(entry.lesson, session, entry.learner)
        with contextlib.suppress(OSError):
            mark = _mark(self._asked(entry.lesson, session), entry, result, rows.get(entry.learner))
            files.write(self._path(entry), mark, alone=True)

    def _read(self, entry: Entry) -> str | None:
        try:
            return self._path(entry).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def _path(self, entry: Entry) -> Path:
        return self.course.root / "build" / "stored" / entry.lesson / fingerprint.file_name(entry.learner)

    def _asked(self, lesson: str, session: Session | Connection) -> str:
        """What stands for everybody: the assignment as it is in the database, and the notebook that was handed out."""
        cells = [
            select(Assignment.name, Assignment.duedate).where(Assignment.name == lesson),
            *(
                select(*columns).join(Notebook, columns[0].class_.notebook_id == Notebook.id)
                .join(Assignment, Notebook.assignment_id == Assignment.id).where(Assignment.name == lesson)
                .order_by(columns[0])
                for columns in (
                    (SourceCell.name, SourceCell.checksum, SourceCell.cell_type, SourceCell.locked),
                    (GradeCell.name, GradeCell.id, GradeCell.max_score),
                    (TaskCell.name, TaskCell.id, TaskCell.max_score),
                )
            ),
        ]  # fmt: skip
        try:
            handed_out = exercises_path(self.course, lesson).read_bytes()
        except OSError:
            handed_out = b""
        of = self.course.lesson(lesson)
        text = [of.title, fingerprint.lesson_fingerprint(of), repr(of.tasks)]
        told = [[list(map(str, row)) for row in session.execute(query)] for query in cells]
        return fingerprint.digest([self.around, text, hashlib.sha256(handed_out).hexdigest(), told])


def _rows(lesson: str, session: Session | Connection, learner: str | None = None) -> dict[str, Any]:
    """What nbgrader's own grading writes of each learner (or one), by learner."""

    def of(*columns: Any) -> Select[Any]:
        query = select(SubmittedAssignment.student_id, *columns).select_from(SubmittedAssignment)
        query = query.join(Assignment, SubmittedAssignment.assignment_id == Assignment.id)
        query = query.join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        query = query.where(Assignment.name == lesson)
        return query if learner is None else query.where(SubmittedAssignment.student_id == learner)

    notebook = (SubmittedNotebook.id, SubmittedAssignment.timestamp, SubmittedAssignment.extension)
    found: dict[str, Any] = defaultdict(list)
    for query in (
        of(*notebook, SubmittedNotebook.late_submission_penalty),
        of(Grade.cell_id, Grade.auto_score).join(Grade, Grade.notebook_id == SubmittedNotebook.id),
        of(Comment.cell_id, Comment.auto_comment).join(Comment, Comment.notebook_id == SubmittedNotebook.id),
    ):
        for student, *row in session.execute(query):
            found[student].append(list(map(str, row)))
    return {student: sorted(rows) for student, rows in found.items()}


def _mark(asked: str, entry: Entry, result: Result, rows: Any) -> str:
    told = {**result.to_json(), "duration_s": 0, "confinement": ""}
    return fingerprint.digest([asked, told, _handed_in(entry), rows])


def _handed_in(entry: Entry) -> list[Any]:
    """What lies in the folder that was handed in; files that are only copied, by size and time."""
    found: list[Any] = []
    for path in sorted(entry.path.parent.rglob("*")):
        with contextlib.suppress(OSError):
            about = path.lstat()
            content = ""
            if path.is_file() and not path.is_symlink() and path.name in (entry.path.name, "timestamp.txt"):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            name = str(path.relative_to(entry.path.parent))
            found.append([name, content or [about.st_mode, about.st_size, about.st_mtime_ns]])
    return found
