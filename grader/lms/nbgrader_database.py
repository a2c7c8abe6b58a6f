"""nbgrader's database, shared: looked at before use, one grader at a time, a learner's grades whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
from alembic.script import ScriptDirectory
from nbgrader.api import Assignment, Gradebook, GradeCell, Notebook, TaskCell
from nbgrader.dbutil import ALEMBIC_DIR
from sqlalchemy import Connection, create_engine, event, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session

from grader.course import Course

WAIT_S = 30  # for another program to end what it is writing, where the address of the database does not say `timeout`
REMOTE = {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
# Columns by which nbgrader looks rows up, and which it makes no index for: SQLite makes one for each query then.
LOOKED_UP = (
    ("grade", "notebook_id"),
    ("comment", "notebook_id"),
    ("submitted_notebook", "assignment_id"),
    ("submitted_assignment", "student_id"),
)


class NoGradebook(Exception):
    """Grades cannot be stored; the text is one sentence that says what to do."""


class Database:
    """The database at `url`, as SQLAlchemy writes it. Methods raise NoGradebook; nothing changes before `prepare`.
    `spare` is the folder for the lock of a database that is not a file."""

    def __init__(self, url: str, spare: Path) -> None:
        try:
            self.url, address = url, make_url(url)
            address.get_dialect().import_dbapi()
        except (ArgumentError, ImportError) as problem:
            raise NoGradebook(
                f"The gradebook {url!r} cannot be used: {problem}. Set db_url to another gradebook."
            ) from None
        local = address.get_backend_name() == "sqlite" and address.database not in (None, "", ":memory:")
        self.file = Path(str(address.database)) if local else None
        self._lock = Path(f"{self.file}.lock") if self.file else spare / "gradebook.lock"
        waits = {"timeout": WAIT_S} if self.file and "timeout" not in address.query else {}
        self.engine = create_engine(url, connect_args=waits)
        if self.file:
            # sqlite3 would begin a transaction at its first write only: what was read before could be stale by then.
            event.listen(self.engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
            event.listen(self.engine, "begin", _begin)

    def there(self) -> bool:
        """Returns whether nbgrader has made this database yet. Raises NoGradebook where we cannot write to it."""
        if self.file is not None:
            if not self.file.exists():
                return False
            # SQLite writes beside its file too: a journal, and what its readers and its writer share.
            writable = os.access(self.file, os.R_OK | os.W_OK) and os.access(self.file.parent, os.W_OK)
            if not self.file.is_file() or not writable:
                fix = "The user who grades needs write access to this file and its folder."
                raise NoGradebook(f"The gradebook {self.file} cannot be written to, so no grades can be stored. {fix}")
        with self.reading() as connection:
            tables = inspect(connection).get_table_names()
            found = connection.execute(text("select version_num from alembic_version")).scalar() if tables else None
        newest, *older = [one.revision for one in ScriptDirectory(ALEMBIC_DIR).walk_revisions()]
        if tables and found in older:
            why = f"was created by an older nbgrader (its version is {found})"
            raise NoGradebook(f"The gradebook {self.url} {why}. Back it up, then run: nbgrader db upgrade")
        if tables and found != newest:
            why = (
                f"has a version that this nbgrader does not support ({str(found)[:40]!r}). A newer nbgrader created it"
            )
            raise NoGradebook(f"The gradebook {self.url} {why}. Install that one, or restore a backup.")
        return bool(tables)

    def unusable(self, problem: SQLAlchemyError) -> NoGradebook:
        """Returns the exception for a fault that the database reports."""
        reason = str(getattr(problem, "orig", problem)).splitlines()[0]
        if "no such table" in reason:
            return NoGradebook(f"{self.url} is not a gradebook, or a very old one ({reason}). Set db_url to another.")
        if "locked" in reason:
            fix = "Run the same command again when it has finished."
            return NoGradebook(f"The gradebook {self.url} is in use by another program. {fix}")
        return NoGradebook(f"The gradebook {self.url} cannot be used: {reason}. Set db_url to another.")

    @contextlib.contextmanager
    def alone(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Keeps other graders from storing anything within it; calls `waiting` when one does at the moment."""
        with contextlib.ExitStack() as stack:
            # Where a file system has no locks, those of the database itself are left.
            with contextlib.suppress(OSError):
                self._lock.parent.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(self._lock.open("a"))
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waiting()
                    fcntl.flock(lock, fcntl.LOCK_EX)
            if self.engine.dialect.name == "postgresql":
                stack.enter_context(self._alone_on_server(waiting))
            yield

    @contextlib.contextmanager
    def _alone_on_server(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Holds a lock in the PostgreSQL server: a lock file does not keep graders on other machines out. The server
        releases it when the connection ends, also that of a killed grader."""
        try:
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                key = {"key": int.from_bytes(b"grader", "big")}
                if not connection.execute(text("select pg_try_advisory_lock(:key)"), key).scalar():
                    waiting()
                    connection.execute(text("select pg_advisory_lock(:key)"), key)
                try:
                    yield
                finally:
                    connection.execute(text("select pg_advisory_unlock(:key)"), key)
        except SQLAlchemyError as problem:
            raise self.unusable(problem) from None

    def prepare(self) -> None:
        """Lets others read while one writes, and finds rows by index; both stay with the file."""
        if self.file is None:
            return
        if not _remote(self.file):
            # Another program that is at it keeps SQLite from changing this: then the next run will.
            with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(self.engine.raw_connection()) as raw:
                raw.cursor().execute("pragma journal_mode = wal")
        try:
            with self.engine.begin() as connection:
                for table, column in LOOKED_UP:
                    connection.execute(text(f"create index if not exists ix_{table}_{column} on {table} ({column})"))
        except SQLAlchemyError as problem:
            raise self.unusable(problem) from None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that does not prevent others from writing."""
        try:
            with self.engine.connect().execution_options(reading=True) as connection:
                yield connection
        except SQLAlchemyError as problem:
            raise self.unusable(problem) from None

    @contextlib.contextmanager
    def whole(self, course_id: str) -> Iterator[Session]:
        """Makes every `Gradebook` of nbgrader one session: at its end everything is stored, or nothing. nbgrader opens
        the database nine times for a notebook, by the name of the class and with no session: so that is patched."""
        session = _Held(self.engine)
        opens, closes = Gradebook.__init__, Gradebook.close

        def open_(book: Gradebook, db_url: str, course_id: str = "default_course", authenticator: Any = None) -> None:
            if db_url != self.url:
                opens(book, db_url, course_id, authenticator)
                return
            book.engine, book.db, book.course_id, book.authenticator = self.engine, session, course_id, authenticator
            book.check_course(course_id)

        def close(book: Gradebook) -> None:
            if book.db is not session:
                closes(book)

        Gradebook.__init__, Gradebook.close = open_, close
        try:
            Gradebook(self.url, course_id)
            yield session
            Session.commit(session)
        finally:
            Gradebook.__init__, Gradebook.close = opens, closes
            session.close()


class _Held(Session):
    """A session in which a commit is a step on the way; `Session.commit` of it is the real one."""

    def commit(self) -> None:
        self.flush()
        self.expire_all()


def outdated(course: Course, lesson: str, database: Connection | Session) -> str | None:
    """Returns what to do about a lesson whose graded cells or points have changed since its release, or None; one that
    was never released is nbgrader's to complain of. Raises CourseError and SQLAlchemyError."""
    then: dict[str, float] = {}
    for kind in (GradeCell, TaskCell):
        query = select(kind.name, kind.max_score).join(Notebook, kind.notebook_id == Notebook.id)
        query = query.join(Assignment, Notebook.assignment_id == Assignment.id).where(Assignment.name == lesson)
        then |= {str(name): float(points) for name, points in database.execute(query)}
    if lesson not in course.lesson_ids or not then:
        return None
    text = course.lesson(lesson)
    now = {check.id: check.points for exercise in text.exercises for check in exercise.checks}
    now |= {task.id: task.points for task in text.tasks}
    if now == then:
        return None
    names = ", ".join(sorted(name for name in {*now, *then} if now.get(name) != then.get(name)))
    why = f"{lesson} has changed since it was released ({names}), and the gradebook contains the earlier version."
    return f"{why} Run: nbgrader generate_assignment {lesson}"


def _begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get("reading")
    connection.exec_driver_sql("begin" if reads else "begin immediate")


def _remote(file: Path, mounts: Iterable[tuple[str, str]] = ()) -> bool:
    """Whether the file lies on a network's file system: SQLite's WAL needs memory that its users share."""
    mounts = mounts or [(one.mountpoint, one.fstype) for one in psutil.disk_partitions(all=True)]
    above = [(len(place), kind) for place, kind in mounts if Path(place) in file.resolve().parents]
    return max(above, default=(0, ""))[1] in REMOTE
