"""`nbgrader autograde` as a class needs it: one odd submission costs nobody else anything, and none is lost.

nbgrader passes over a folder that lacks its notebook, copies what a link leads to, stops at a date that it cannot read,
and ends the whole run at metadata of another version. Everything else is nbgrader's own.
"""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path
from typing import Any

from nbconvert.exporters import Exporter
from nbgrader import converters
from nbgrader.api import Gradebook
from nbgrader.converters.base import BaseConverter, NbGraderException
from nbgrader.utils import find_all_files, parse_utc
from traitlets import Type

from grader.course import Course, CourseError
from grader.lms.release_check import outdated
from grader.lms.submission_notebook import SubmissionExporter

LONGEST_DATE = 100  # characters


class PlainFiles(BaseConverter):
    """Copies no more than plain files: a link would bring what it leads to, into what its author gets as feedback."""

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Copy what lies beside the notebook."""
        source, to = Path(self._format_source(assignment_id, student_id)), self._format_dest(assignment_id, student_id)
        linked = source.is_symlink() or source.parent.is_symlink()
        for path in map(Path, find_all_files(source, [*self.coursedir.ignore, "*.ipynb"])):
            plain = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
            if linked or not plain or path.stat().st_size > self.coursedir.max_file_size * 1000:
                self.log.warning("Not copied, as it is a link, cannot be read, or is too large: %s", path)
                continue
            place = Path(to, path.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            shutil.copy(path, place)


class Autograde(converters.Autograde, PlainFiles):
    """nbgrader's converter, with every submission of a lesson taken. `PlainFiles` stands between it and its base."""

    exporter_class = Type(SubmissionExporter, klass=Exporter).tag(config=True)

    def start(self) -> None:
        """Grade what was handed in. Raises `NbGraderException`, at once where the gradebook knows another lesson."""
        if self.parent is not None:  # a command or Formgrader; `grader grade` has looked before it graded
            old = self._outdated()
            if old is not None:
                self.log.error(old)
                raise NbGraderException(old)
        self.coursedir.get_existing_timestamp = self._timestamp
        super().start()

    def _outdated(self) -> str | None:
        try:
            with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
                return outdated(Course.find(Path(self.coursedir.root)), self.coursedir.assignment_id, book.db)
        except CourseError as problem:
            return str(problem)

    def init_notebooks(self) -> None:
        """Take every folder that was handed in, and in it the one notebook that a lesson has, there or not."""
        lesson = self.coursedir.assignment_id
        folders = glob.glob(self._format_source(lesson, self.coursedir.student_id))
        self.assignments = {}
        for folder in filter(os.path.isdir, folders):
            if "\n" in folder:  # nbgrader's pattern for folders does not match it, which would end the run
                self.log.error("Not graded, for its name has more than one line: %r", folder)
            else:
                self.assignments[folder] = [os.path.join(folder, f"{lesson}.ipynb")]
        if not self.assignments or self.coursedir.notebook_id not in ("*", lesson):
            super().init_notebooks()

    def _timestamp(self, folder: str) -> Any:
        """When it was handed in; None, as where nothing says so, for what is no date."""
        path = Path(folder, "timestamp.txt")
        if path.is_symlink() or not path.is_file():
            return None
        try:
            with path.open(encoding="utf-8") as file:
                return parse_utc(file.read(LONGEST_DATE).strip())
        except (ValueError, TypeError, OverflowError, OSError):
            self.log.warning("%s holds no date that can be read, so nothing says when it was handed in.", path)
            return None
