"""The board's database: learners and their events in SQLite, so that a board that was killed resumes where it was."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DATABASE = "workshop.sqlite3"  # its name, in build/board/
LOCK = "workshop.lock"  # beside it, held by the one process that uses the database
SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS learners (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, learner INTEGER REFERENCES learners (id), content TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS notebooks (
    learner INTEGER REFERENCES learners (id), lesson TEXT, content BLOB NOT NULL, PRIMARY KEY (learner, lesson)
);
"""


class WorkshopInUse(Exception):
    """Another process has the workshop's database open."""


class Event(NamedTuple):
    """Something that happened: when (seconds since the epoch), to which learner (None: the instructor), and what."""

    at: float
    learner: int | None
    content: dict[str, Any]


class EventLog:
    """One workshop's database. A write is on disk when the method returns, unless the machine itself stops.

    Args:
        path: the database, which is created if it does not exist.
        alone: whether this is the workshop's board, of which there is one; others only read.

    Raises:
        WorkshopInUse: another board, which would not see these events, has it open.
    """

    def __init__(self, path: Path, alone: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = path.with_name(LOCK).open("w") if alone else None
        if self._lock is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise WorkshopInUse from None
        path.touch(mode=0o600)
        self.path = path
        self._database = sqlite3.connect(path, isolation_level=None)
        # With a write-ahead log, a killed process loses nothing that was committed, also without a flush per commit.
        self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + SCHEMA)

    def setting(self, name: str, default: str) -> str:
        """Returns a stored text; stores and returns `default` where there is none."""
        self._database.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, default))
        return str(self._database.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()[0])

    def replace_setting(self, name: str, value: str) -> None:
        """Stores a text instead of an older one."""
        self._database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def add_learner(self, name: str, token: str) -> int:
        """Returns the new learner's id. `token` is a digest. Raises sqlite3.IntegrityError if the name is taken."""
        added = self._database.execute("INSERT INTO learners (name, token) VALUES (?, ?)", (name, token)).lastrowid
        assert added is not None
        return added

    def learners(self) -> list[tuple[int, str, str]]:
        """Returns id, name and the token's digest of every learner, in the order in which they joined."""
        return self._database.execute("SELECT id, name, token FROM learners ORDER BY id").fetchall()

    def remove_learner(self, learner: int) -> None:
        """Removes a learner, their events and their notebooks. A new learner does not get the same id."""
        self._database.execute("BEGIN")
        for table, column in (("events", "learner"), ("notebooks", "learner"), ("learners", "id")):
            self._database.execute(f"DELETE FROM {table} WHERE {column} = ?", (learner,))
        self._database.execute("COMMIT")

    def add(self, events: list[Event]) -> None:
        """Stores all of `events` or, if the process is killed, none."""
        rows = [(event.at, event.learner, json.dumps(event.content)) for event in events]
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO events (at, learner, content) VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")

    def events(self) -> Iterator[Event]:
        """Yields every event, the oldest first."""
        for at, learner, content in self._database.execute("SELECT at, learner, content FROM events ORDER BY id"):
            yield Event(at, learner, json.loads(content))

    def put_notebook(self, place: tuple[int, str], content: bytes) -> None:
        """Stores the notebook of a learner and a lesson until it is graded. It replaces an older one."""
        self._database.execute("INSERT OR REPLACE INTO notebooks VALUES (?, ?, ?)", (*place, content))

    def notebooks(self) -> list[tuple[int, str]]:
        """Returns the learner and the lesson of each notebook that is not yet graded, the oldest first."""
        return self._database.execute("SELECT learner, lesson FROM notebooks ORDER BY rowid").fetchall()

    def notebook(self, place: tuple[int, str]) -> bytes:
        """Returns a notebook that is not yet graded."""
        query = "SELECT content FROM notebooks WHERE learner = ? AND lesson = ?"
        return bytes(self._database.execute(query, place).fetchone()[0])

    def remove_notebook(self, place: tuple[int, str]) -> None:
        """Removes a notebook that has been graded."""
        self._database.execute("DELETE FROM notebooks WHERE learner = ? AND lesson = ?", place)

    def close(self, delete: bool = False) -> None:
        """Closes the database; with `delete`, removes its files."""
        self._database.close()
        for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm", LOCK) if delete else ():
            self.path.with_name(name).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
