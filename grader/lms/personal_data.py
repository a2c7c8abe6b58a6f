"""Learners' data in a course folder: where it is, whose it is, and its removal.

A place is a file or folder of one learner, which is removed whole, or a file about several, of which only the learner's
part is removed: rows of a CSV file, entries of a JSON document, lines of a log. Other reports are removed whole.
"""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.board.event_log import DATABASE, EventLog
from grader.core import files
from grader.core.final_grade import Person
from grader.core.text import legible
from grader.course import Course
from grader.grading.cache import file_name
from grader.lms.collect import RECORD
from grader.lms.object_store import INDEX
from grader.reports.roster import read_roster

if TYPE_CHECKING:
    from grader.lms.nbgrader_database import Database

# Reports, lists and logs: by their names, as git ignores them, and JSON documents of any name by their content.
REPORTS = re.compile(
    r".*\.(?:csv|html|log)|(?:results|gradescope|similar).*\.json|junit.*\.xml|summary.*\.md"
    r"|(?:annotations|classroom).*\.txt|feedback.*\.zip"
)
RESULTS = (b'"results"', b'"learner"')
# Folders without reports: the text of a course and what is built from it, programs, a learner's own notebooks.
SKIPPED = {".git", ".venv", "__pycache__", "node_modules", "notebooks", "exercises", "solutions", "images", "work"}
BUILT = {"source", "compiled", "notes", "book", "solution"}  # under build/: they contain only the course's own code
FEEDBACK_TITLE = re.compile(rb"<title>[^<]* \xc2\xb7 ([^<]*)</title>")  # feedback.html.jinja
MAX_FILE = 256 << 20  # bytes of a file that is searched for names
ELSEWHERE = (
    "This command does not reach the LMS, git history, backups, copies on other machines and in learners' accounts, "
    "browsers and JupyterLab, or files outside of {}. Deleted files stay readable on the disk until it reuses their "
    "space."
)
STEPS = {"submitted": "submissions", "autograded": "autograded notebooks", "feedback": "feedback"}
DEFAULT_FOLDERS = {"submitted": "submitted", "autograded": "build/autograded", "feedback": "build/feedback"}
UNKNOWN = ""  # the learner of a cached result that cannot be read: it may be about anyone


@dataclass
class Place:
    """A file or folder with data of some learners. `shared` states that others' data may be in the same file."""

    kind: str
    path: Path
    learners: frozenset[str]
    shared: bool = False

    @cached_property
    def files(self) -> list[os.stat_result]:
        """The status of each file in this place. Links are not followed."""
        inside = self.path.rglob("*") if self.path.is_dir() and not self.path.is_symlink() else [self.path]
        found = [one.lstat() for one in inside if os.path.lexists(one)]
        return [one for one in found if not stat.S_ISDIR(one.st_mode)]


class PersonalData:
    """The data of a course's learners: in its folder, its gradebook and its exchange. Methods raise NoGradebook."""

    def __init__(self, course: Course) -> None:
        self.course, self.home = course, course.home
        self.folders = {step: self.home / folder for step, folder in DEFAULT_FOLDERS.items()}
        self.exchange = self.home / "exchange"
        self.database: Database | None = None
        if find_spec("nbgrader") and (course.root / "nbgrader_config.py").is_file():
            self._configure()
        deadlines = course.deadlines
        self.lists = [path for path in (deadlines.roster, deadlines.extension_list) if path]
        self.people = read_roster(deadlines.roster) if deadlines.roster else {}
        self.people |= {name: Person(name) for name, _ in deadlines.extensions if name not in self.people}
        self.students = self._students()

    def _configure(self) -> None:
        """Takes folders and database from nbgrader's configuration."""
        from nbgrader.exchange.default import Exchange

        from grader.lms.gradebook import CourseGradebook

        book = CourseGradebook(self.course)
        self.database, directory = book.database, book.directory
        for step in STEPS:
            folder = getattr(directory, f"{step}_directory")
            self.folders[step] = Path(directory.format_path(folder, "", "")).resolve()
        self.exchange = Path(Exchange(config=book.config).root, directory.course_id)

    def _students(self) -> dict[str, Person]:
        """Returns the learners in the gradebook."""
        if self.database is None or not self.database.there():
            return {}
        from nbgrader.api import Student
        from sqlalchemy import select

        with self.database.reading() as connection:
            rows = connection.execute(select(Student.id, Student.first_name, Student.last_name, Student.email))
            return {name: Person(name, *(str(one or "") for one in about)) for name, *about in rows}

    @cached_property
    def places(self) -> list[Place]:
        """Where data of learners is, except for the gradebook."""
        found = [Place(kind, path, frozenset([name])) for kind, path, name in self._own_places()]
        known = {name for place in found for name in place.learners} | self.people.keys() | self.students.keys()
        marks = {file_name(name): name for name in known}
        for path in sorted((self.home / "build" / "stored").glob("*/*")):
            found.append(Place("caches", path, frozenset([marks.get(path.name, UNKNOWN)])))
        if (board := self.home / "build" / "board" / DATABASE).is_file():
            with closing(EventLog(board, alone=False)) as log:
                found.append(Place("workshop", board.parent, frozenset(name for _, name, _ in log.learners())))
        owners = {one: name for name in known for one in self._identifiers(name)}
        for path in self._shared_files():
            if mentioned := _mentioned(path, owners):
                learners = frozenset(owners[one] for one in mentioned)
                found.append(Place("reports and lists", path, learners, shared=True))
        return found

    @property
    def learners(self) -> list[str]:
        """Everyone about whom there is data."""
        return sorted({name for place in self.places for name in place.learners} - {UNKNOWN} | self.students.keys())

    def of(self, learners: Collection[str]) -> list[Place]:
        """Returns the places with data of any of these learners."""
        return [place for place in self.places if not place.learners.isdisjoint({*learners, UNKNOWN})]

    def _identifiers(self, learner: str) -> set[str]:
        """Returns the names of a learner that occur in files: the folder's, the email address and the full name."""
        found = {learner}
        for one in (self.people.get(learner), self.students.get(learner)):
            if one is not None:
                found |= {one.email, one.name, *([f"{one.first_name} {one.last_name}"] if one.last_name else [])}
        return found - {""}

    def remove(self, learners: Collection[str]) -> list[str]:
        """Removes the data of these learners. Returns sentences about what is left: a file that cannot be removed, or
        that still contains a learner's name. Neither prevents the rest from being removed."""
        names, problems = set(learners), list[str]()
        everywhere = {one for name in names for one in self._identifiers(name)}
        if self.database is not None and (rows := names & self.students.keys()):
            self._remove_rows(self.database, rows)
        for place in self.of(names):
            try:
                rest = without(place.path, names) if place.shared else None
                if rest is not None:
                    files.write(place.path, rest, mode=stat.S_IMODE(place.path.stat().st_mode))
                elif place.path.is_dir() and not place.path.is_symlink():
                    shutil.rmtree(place.path)
                else:
                    place.path.unlink()
                    if place.path.parent.name in names and not any(place.path.parent.iterdir()):
                        place.path.parent.rmdir()  # of `grader grade --follow`
            except (OSError, csv.Error) as problem:
                where = legible(str(getattr(problem, "filename", None) or place.path))
                problems.append(f"{where} cannot be removed: {getattr(problem, 'strerror', problem)}.")
        for path in self._files({".git", ".venv", "__pycache__"}):
            parts = os.fsencode(path.relative_to(self.home))
            found = _mentioned(path, everywhere) | {one for one in everywhere if _has(parts, one.encode())}
            if found:
                who = ", ".join(sorted(map(legible, found))[:3])
                problems.append(f"{legible(str(path))} still contains {who}. Look at it, and remove it yourself.")
        return problems

    def _remove_rows(self, database: Database, learners: Collection[str]) -> None:
        """Removes learners from the gradebook, and also the rows that SQLite leaves in free pages and in its log."""
        from nbgrader import api
        from sqlalchemy import delete, select
        from sqlalchemy.exc import SQLAlchemyError

        from grader.lms.nbgrader_database import NoGradebook

        submitted, notebook = api.SubmittedAssignment, api.SubmittedNotebook
        try:
            with database.alone(lambda: None), database.engine.begin() as connection:
                for name in learners:
                    mine = select(submitted.id).where(submitted.student_id == name)
                    notebooks = select(notebook.id).where(notebook.assignment_id.in_(mine))
                    for table in (api.Grade, api.Comment):
                        connection.execute(delete(table).where(table.notebook_id.in_(notebooks)))
                    connection.execute(delete(notebook).where(notebook.assignment_id.in_(mine)))
                    connection.execute(delete(submitted).where(submitted.student_id == name))
                    connection.execute(delete(api.Student).where(api.Student.id == name))
            with closing(database.engine.raw_connection()) as raw:
                if raw.driver_connection is not None and database.file is None:
                    raw.driver_connection.autocommit = True  # psycopg's; that of SQLite is set when it is opened
                cursor = raw.cursor()
                cursor.execute("vacuum")
                if database.file is not None:
                    cursor.execute("pragma wal_checkpoint(truncate)")
        except SQLAlchemyError as problem:
            raise database.unusable(problem) from None
        except sqlite3.Error as problem:
            text = (
                f"The gradebook {database.url} cannot be compacted, so removed rows are still in its file: {problem}."
            )
            raise NoGradebook(f"{text} Close the programs that use it, and run the same command again.") from None

    def _own_places(self) -> Iterator[tuple[str, Path, str]]:
        """Yields kind, path and learner of each place that belongs to one learner."""
        for step, folder in self.folders.items():
            for path in _inside(folder):
                if (path.is_dir() or path.is_symlink()) and not path.name.startswith("."):
                    yield STEPS[step], path, path.name
        for store in _inside(self.home / "build" / "submissions"):
            yield from (("submissions", path, path.name) for path in _inside(store) if path.is_dir())
        for path in sorted((self.home / "build" / "graded").glob("*/*.json")):
            yield "caches", path, _cached_learner(path)
        submission = re.compile(rf"(.+)\+(?:{'|'.join(map(re.escape, self.course.lesson_ids))})\+")
        for path in _inside(self.exchange / "inbound"):
            if learner := submission.match(path.name):
                yield "exchange", path, learner[1]
        for path in _inside(self.exchange / "feedback"):
            if learner_of_page := FEEDBACK_TITLE.search(_content(path)):
                yield "exchange", path, html.unescape(learner_of_page[1].decode(errors="replace"))

    def _shared_files(self) -> list[Path]:
        """Returns files that may be about several learners: lists, reports, records of collections, logs."""
        build = self.home / "build"
        apart = [*self.folders.values(), self.exchange, build / "submissions", *(build / name for name in BUILT)]
        found = {self.folders["submitted"] / RECORD, *(build / "submissions").glob(f"*/{INDEX}"), *self.lists}
        for path in self._files(SKIPPED):
            report = REPORTS.fullmatch(path.name) or (
                path.suffix == ".json" and all(w in _content(path) for w in RESULTS)
            )
            if report and not any(path.is_relative_to(folder) for folder in apart):
                found.add(path)
        return sorted(path for path in found if path.is_file())

    def _files(self, skipped: Collection[str]) -> Iterator[Path]:
        """Yields the regular files of the course folder that git does not track, except in folders of these names."""
        tracked = set[Path]()
        with suppress(OSError):  # there is no git
            words = ["git", "-C", str(self.home), "ls-files", "-z", "--cached"]
            listed = subprocess.run(words, capture_output=True, check=False).stdout.split(b"\0")
            tracked = {self.home / os.fsdecode(name) for name in listed}
        for folder, below, inside in os.walk(self.home):
            below[:] = sorted(name for name in below if name not in skipped)
            for path in (Path(folder, name) for name in sorted(inside)):
                if path not in tracked and path.is_file() and not path.is_symlink():
                    yield path


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _content(path: Path) -> bytes:
    """Returns the bytes of a file; none of one that cannot be read or is larger than what is searched."""
    try:
        return path.read_bytes() if path.stat().st_size <= MAX_FILE else b""
    except OSError:
        return b""


def _cached_learner(path: Path) -> str:
    try:
        return str(json.loads(_content(path))["result"]["learner"])
    except (ValueError, KeyError, TypeError):
        return UNKNOWN


def _mentioned(path: Path, names: Iterable[str]) -> set[str]:
    """Returns which of these names a file contains as whole words: in its text, or as JSON or HTML write them."""
    content = _content(path)
    return {name for name in names if any(_has(content, one) for one in _spellings(name))}


def _spellings(name: str) -> set[bytes]:
    return {one.encode(errors="replace") for one in (name, json.dumps(name)[1:-1], html.escape(name))}


def _has(content: bytes, name: bytes) -> bool:
    return name in content and re.search(rb"(?<![\w.-])" + re.escape(name) + rb"(?![\w-])", content) is not None


def without(path: Path, learners: set[str]) -> bytes | None:
    """Returns the content of a shared file without the parts about these learners: rows, entries, lines. None where
    no result is left, or where a report has no such parts."""
    content = path.read_bytes()
    if path.suffix == ".log":
        mine = [one for name in learners for one in _spellings(name)]
        return b"".join(line for line in content.splitlines(True) if not any(_has(line, one) for one in mine))
    if path.suffix == ".json":
        try:
            left = _pruned(json.loads(content), learners)
        except ValueError:
            return None
        empty = isinstance(left, dict) and [] in (left.get("results"), left.get("pairs"))
        return None if empty else f"{json.dumps(left, indent=2)}\n".encode()
    if path.suffix == ".csv":
        lines = io.StringIO(content.decode("utf-8", "surrogateescape"), newline="").readlines()
        rows, kept, begin = csv.reader(lines), list[str](), 0
        for row in rows:
            if learners.isdisjoint(map(str.strip, row)):
                kept += lines[begin : rows.line_num]
            begin = rows.line_num
        return "".join(kept).encode("utf-8", "surrogateescape")
    return None


def _pruned(content: Any, learners: set[str]) -> Any:
    """Returns a JSON value without the entries whose key, `learner` or `learners` names one of these learners."""
    if isinstance(content, dict):
        return {key: _pruned(one, learners) for key, one in content.items() if key.partition("/")[0] not in learners}
    if isinstance(content, list):
        return [_pruned(one, learners) for one in content if not (isinstance(one, dict) and _about(one, learners))]
    return content


def _about(entry: dict[str, Any], learners: set[str]) -> bool:
    several = entry.get("learners")
    return entry.get("learner") in learners or (isinstance(several, list) and not learners.isdisjoint(several))
