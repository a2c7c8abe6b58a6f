"""`nbgrader autograde` on a course of ours: our examiner judges, and an odd submission costs no other learner anything.

The rest (its database, late penalties, manual grading, feedback) goes on from the outputs of grade cells as always.

nbgrader trusts the metadata in a notebook: which cell is a check, and what it is worth. So it gets a merged notebook,
in which the course's cells are recognised by their ids and get the course's own metadata, once each. A deleted check or
task is put back in its place. Every other cell is the learner's own. The course's untouched notebook replaces a file
that is no notebook.
"""

from __future__ import annotations

import glob
import itertools
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from nbconvert.exporters import Exporter, NotebookExporter
from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_output
from nbgrader import converters
from nbgrader.api import Gradebook
from nbgrader.converters.base import BaseConverter, NbGraderException
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution, is_task, parse_utc
from traitlets import Bool, Type

from grader.core import notebook as notebooks
from grader.core.faults import GraderFault, UnconfinedError
from grader.core.notebook import Notebook, NotebookCell, Unreadable, grade_id, text
from grader.core.result import CheckResult, Result
from grader.course import Course, CourseError
from grader.course.build import exercises_path
from grader.course.deadlines import BadTable
from grader.grading import batch
from grader.grading.cache import environment_fingerprint
from grader.lms.feedback_page import write_down
from grader.lms.late_policy import store_due_date, store_extension
from grader.lms.nbgrader_database import outdated

Resources = dict[str, Any]

MAX_DATE = 100  # characters
MAX_FILES, MAX_DEPTH, MAX_PATH = 5_000, 50, 1_000  # of what lies beside a notebook; the last in bytes
TO_ALLOW = "To grade notebooks that you trust, set c.ExecuteByExaminer.allow_unsandboxed = True in nbgrader_config.py."


class NotGraded(GraderFault):
    """The grader or the course was at fault: no verdict on the learner, so nothing may be stored."""


class SubmissionExporter(NotebookExporter):
    """Reads submissions for `nbgrader autograde`; what it has written itself, it reads as it is."""

    def from_filename(self, filename: str, resources: Any = None, **options: Any) -> Any:
        converter: Any = self.parent
        if not converter._sanitizing:
            return super().from_filename(filename, resources, **options)
        lesson = resources["nbgrader"]["assignment"]
        course_notebook = released(converter.examiner.course, lesson)
        try:
            content = notebooks.read_bytes(Path(filename))
            notebooks.read_submission(content, "", lesson)  # refuses what the examiner refuses
            merged = _merged(course_notebook["cells"], notebooks.cells(notebooks.parse(content)))
        except Unreadable as problem:  # the examiner says so too, at every check
            self.log.warning("%r gets no points: %s", str(filename), problem)
            merged = [cell for cell in course_notebook["cells"] if grade_id(cell)]
        notebook = {**course_notebook, "cells": [{**cell, "source": text(cell)} for cell in merged]}
        return self.from_notebook_node(from_dict(notebook), resources, **options)


def released(course: Course, lesson: str) -> Notebook:
    """Returns the lesson's exercises as learners have them."""
    return notebooks.parse(exercises_path(course, lesson).read_bytes())


def _merged(ours: list[NotebookCell], theirs: list[NotebookCell]) -> list[NotebookCell]:
    """The learner's cells in their order, those of the course among them as the course has them."""
    named = {grade_id(cell): cell for cell in ours if grade_id(cell)}
    submitted = [cell for cell in theirs if cell.get("cell_type") in notebooks.KINDS]
    last = {name: place for place, cell in enumerate(submitted) if (name := grade_id(cell)) in named}
    merged = []
    for place, cell in enumerate(submitted):
        name, source = grade_id(cell), text(cell).encode("utf-8", "replace").decode()  # halves of characters become ?
        merged.append({**named[name], "source": source} if last.get(name) == place else _own(cell, place, source))
    missing, after = [], 0
    for cell in ours:
        name = grade_id(cell)
        if name in last:
            after = max(after, last[name] + 1)
        elif notebooks.nbgrader(cell).get("grade") or notebooks.nbgrader(cell).get("task"):
            missing.append((after, cell))
    for after, cell in reversed(missing):
        merged.insert(after, cell)
    return merged


def _own(cell: NotebookCell, place: int, source: str) -> NotebookCell:
    own = {"cell_type": cell["cell_type"], "id": f"own-{place}", "metadata": {}, "source": source}
    if cell["cell_type"] == "code":
        return own | {"execution_count": None, "outputs": []}
    pictures = cell.get("attachments")
    valid = isinstance(pictures, dict) and all(
        isinstance(kinds, dict) and all(isinstance(data, str) and data.isascii() for data in kinds.values())
        for kinds in pictures.values()
    )
    return own | {"attachments": pictures} if valid else own


class PlainFiles(BaseConverter):
    """Copies only plain files, and a bounded number of them: a link would bring what it leads to, into what its author
    gets as feedback, and files that consist of holes would fill the disk."""

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        source, to = Path(self._format_source(assignment_id, student_id)), self._format_dest(assignment_id, student_id)
        linked = source.is_symlink() or source.parent.is_symlink()
        room = self.coursedir.max_dir_size * 1000
        for path in () if linked else self._beside(source):
            plain = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
            size = path.stat().st_size if plain else 0
            if not plain or size > min(room, self.coursedir.max_file_size * 1000):
                self.log.warning("Not copied, because it is a link, unreadable, or too large: %r", str(path))
                continue
            room -= size
            place = Path(to, path.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            shutil.copy(path, place)

    def _beside(self, source: Path) -> Iterator[Path]:
        """Files and links as nbgrader's `find_all_files` finds them, by name, up to a number and a depth. Its time
        grows with the square of their number, and it needs a level of Python's stack for each folder in another."""
        ignored, folders, found = [*self.coursedir.ignore, "*.ipynb"], [(source, 0)], 0
        while folders:
            folder, depth = folders.pop()
            with os.scandir(folder) as listed:
                inside = sorted(itertools.islice(listed, MAX_FILES), key=lambda one: one.name)
            found += len(inside)
            for one in inside:
                long = len(os.fsencode(one.path)) > len(os.fsencode(source)) + MAX_PATH
                if long or any(fnmatch(one.name, pattern) for pattern in ignored):
                    continue
                if not one.is_dir(follow_symlinks=False):
                    yield Path(one.path)
                elif depth < MAX_DEPTH and os.access(one.path, os.R_OK | os.X_OK):
                    folders.append((Path(one.path), depth + 1))
            if found >= MAX_FILES:
                self.log.warning("Only some files are copied, because there are %d or more in %r", found, str(source))
                return


class Autograde(converters.Autograde, PlainFiles):
    """nbgrader's converter for every submission of a lesson. `PlainFiles` is between it and its base."""

    exporter_class = Type(SubmissionExporter, klass=Exporter).tag(config=True)

    def start(self) -> None:
        """Grades the submissions. Raises NbGraderException, at once where the gradebook has another lesson."""
        if self.parent is not None:  # a command or Formgrader; `grader grade` has looked before it graded
            try:
                with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
                    course = Course.find(Path(self.coursedir.root))
                    _ = course.deadlines  # stored with the grades
                    old = outdated(course, self.coursedir.assignment_id, book.db)
            except (CourseError, BadTable) as problem:
                old = str(problem)
            if old is not None:
                self.log.error(old)
                raise NbGraderException(old)
        self.coursedir.get_existing_timestamp = self._timestamp
        steps = converters.Autograde.autograde_preprocessors.get(self)
        self.autograde_preprocessors = [self.examiner if step is ExecuteByExaminer else step for step in steps]
        super().start()

    @cached_property
    def examiner(self) -> ExecuteByExaminer:
        return ExecuteByExaminer(parent=self)

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        """Begins with the verdict: where the grader fails, nbgrader's database gets nothing that counts as a zero."""
        if self.examiner in self.autograde_preprocessors:
            self.examiner.examined(student_id, assignment_id)
        deadlines = self.examiner.course.deadlines
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
            store_due_date(book, deadlines, assignment_id)
        super().init_assignment(assignment_id, student_id)
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as book:
            store_extension(book, deadlines, student_id, assignment_id)

    def init_notebooks(self) -> None:
        """Takes every submitted folder, and in it the one notebook that a lesson has, there or not."""
        lesson = self.coursedir.assignment_id
        folders = glob.glob(self._format_source(lesson, self.coursedir.student_id))
        self.assignments = {}
        for folder in filter(os.path.isdir, folders):
            if "\n" in folder:  # nbgrader's pattern for folders does not match it, which would end the run
                self.log.error("Not graded, because its name has several lines: %r", folder)
            else:
                self.assignments[folder] = [os.path.join(folder, f"{lesson}.ipynb")]
        if not self.assignments or self.coursedir.notebook_id not in ("*", lesson):
            super().init_notebooks()

    def _timestamp(self, folder: str) -> Any:
        """The time of submission; None, as where nothing states it, for what is no date."""
        path = Path(folder, "timestamp.txt")
        if path.is_symlink() or not path.is_file():
            return None
        try:
            with path.open(encoding="utf-8") as file:
                return parse_utc(file.read(MAX_DATE).strip())
        except (ValueError, TypeError, OverflowError, OSError):
            self.log.warning("%r contains no date, so the time of submission is unknown.", str(path))
            return None


class ExecuteByExaminer(NbGraderPreprocessor):
    """nbgrader's Execute step, replaced: fills in the outputs of grade cells from our verdict on the submission.
    `results` are verdicts by learner and lesson; what is missing is graded when it is asked for."""

    allow_unsandboxed = Bool(False, help="Run learners' code even if only limits confine it.").tag(config=True)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.results: dict[tuple[str, str], Result] = {}

    @cached_property
    def course(self) -> Course:
        return Course.find(Path(self.parent.coursedir.root))

    def preprocess(self, nb: NotebookNode, resources: Resources) -> tuple[NotebookNode, Resources]:
        """Judges the submission that nbgrader is at. Raises NotGraded."""
        told = resources["nbgrader"]
        lesson = told["assignment"]
        result = self.examined(told["student"], lesson)
        checks = {check.id: check for check in result.checks}
        texts = {grade_id(cell) or "": text(cell) for cell in released(self.course, lesson)["cells"]}
        for cell in nb.cells:
            if cell.cell_type != "code":
                continue
            cell.outputs, cell.execution_count = [], None
            name = grade_id(cell) or ""
            if is_grade(cell) and not is_solution(cell):  # an answer with points of its own is for a person
                if result.problem is None and name not in checks:
                    # To nbgrader a cell without output has passed.
                    raise NotGraded(
                        f"{name} is not a check of the course. Release it again: nbgrader generate_assignment"
                    )
                cell.outputs = _outputs(checks.get(name), result.problem)
                # nbgrader has put the check's own text there, and feedback pages would show it.
                cell.source = texts.get(name, "")
        if any(is_task(cell) for cell in nb.cells):
            _leave_to_a_person(resources, readable=result.problem is None)
        write_down(nb, self.course.lesson(lesson), result)
        return nb, resources

    def examined(self, learner: str, lesson: str) -> Result:
        """Returns our verdict on the submission of `learner`. Raises NotGraded where the grader failed."""
        if (learner, lesson) not in self.results:
            self._grade(learner, lesson)
        result = self.results[learner, lesson]
        if result.grader_failed:
            raise NotGraded(result.fault_text)
        return result

    def _grade(self, learner: str, lesson: str) -> None:
        """Grades all notebooks side by side, as nbgrader asks for one after the other; cached results count."""
        directory = self.parent.coursedir
        folder = Path(directory.format_path(directory.submitted_directory, learner, lesson))
        entries, version = [batch.Entry(folder / f"{lesson}.ipynb", learner, lesson)], environment_fingerprint()
        if directory.student_id == "*":
            every = batch.find(folder.parents[1], self.course, lesson)
            entries += [other for other in every if other.learner != learner]
        before = batch.graded_before(self.course, entries, version)
        if len(before) < len(entries):
            self.log.info("Grading %d notebooks of %s", len(entries) - len(before), lesson)
        allowed = self.allow_unsandboxed
        try:
            results = batch.grade(self.course, entries, before=before, edition=version, allow_unsandboxed=allowed)
        except UnconfinedError as problem:
            raise NotGraded(f"Nothing was graded. {problem} {TO_ALLOW}") from None
        self.results |= {(one.learner, lesson): result for one, result in zip(entries, results, strict=True)}


def _leave_to_a_person(resources: Resources, readable: bool) -> None:
    """Tasks wait for a person, but for those in what cannot be read. What a person gave stays.
    nbgrader marks them as done too when a notebook is missing, and never takes it back."""
    told = resources["nbgrader"]
    with Gradebook(told["db_url"]) as book:
        notebook = book.find_submission_notebook(told["notebook"], told["assignment"], told["student"])
        tasks = {task.id for task in book.find_notebook(told["notebook"], told["assignment"]).task_cells}
        for grade in notebook.grades:
            if grade.cell_id in tasks and grade.manual_score is None:
                grade.auto_score, grade.needs_manual_grade = (None, True) if readable else (0, False)
        book.db.commit()


def _outputs(check: CheckResult | None, problem: str | None) -> list[NotebookNode]:
    """No output means full points to nbgrader, an error none."""
    status, message = "not graded", problem or ""
    if check is not None:
        if check.status in ("passed", "skipped"):
            return []
        status, message = check.status, f"{check.message or check.status}\n{check.perhaps}".rstrip()
    return [new_output("error", ename=status, evalue=message, traceback=[message])]
