"""The queue of saved notebooks that the board's machine grades, and the watcher of folders that they are read from.

A notebook waits in the board's database, so that a board that was killed grades it after its restart. A newer version
replaces one that still waits. Learners' code runs in confined processes alone, as for `grader grade`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import glob
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from grader.board.event_log import EventLog
from grader.core.board_client import PROOF
from grader.core.faults import UnconfinedError
from grader.core.layout import EXAMINER
from grader.core.notebook import Unreadable, read_bytes
from grader.core.result import CheckResult, Result
from grader.course import Course
from grader.grading.batch import UNCONFINED, Entry, as_result, cores, imports, private_folders, secret
from grader.grading.pool import Pool
from grader.learning.progress import NotebookState
from grader.learning.watch import NO_FILE, file_stamp
from grader.sandbox.confine import LEVELS

READY = "Ready to grade saved notebooks."  # printed once a worker waits
LOOK_S = 2.0  # between two looks at the watched folders
MAX_NOTEBOOK = 1 << 20  # bytes of the code cells of a notebook
MAX_WAITING = 64 << 20  # bytes of all notebooks that wait
LONGEST_PROOF = 100  # bytes
RECENT = 100  # notebooks whose waiting times are shown

Place = tuple[int, str]  # a learner's id and a lesson


class QueueFull(Exception):
    """Too many notebooks wait."""


class JudgeQueue:
    """Examiners that grade one notebook after another. All methods are called in the event loop's thread.

    Args:
        course: the course.
        lessons: the lessons of the workshop.
        log: the database, where notebooks wait.
        jobs: examiners side by side; None for one per core.
    """

    def __init__(self, course: Course, lessons: list[str], log: EventLog, jobs: int | None = None) -> None:
        self.course, self.lessons, self.log = course, lessons, log
        self.jobs = cores(jobs, 64)
        self.on_result: Callable[[int, list[CheckResult]], None] = lambda learner, checks: None
        # Since when each waits, the first one first.
        self.waiting: dict[Place, float] = dict.fromkeys(log.notebooks(), time.time())
        self.sizes: dict[Place, int] = {place: len(log.notebook(place)) for place in self.waiting}
        self.busy: set[Place] = set()
        self.seconds: deque[float] = deque(maxlen=RECENT)  # from the arrival of a notebook to its result
        self._states: dict[Place, NotebookState] = {}
        self._threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="judge")
        self._arrived = asyncio.Condition()

    async def run(self, on_started: Callable[[], None] = lambda: None) -> None:
        """Grades until it is cancelled. Raises UnconfinedError where learners' code could not be confined."""
        opening = {"home": str(self.course.home), "secret": secret(self.course)}
        private = private_folders(self.course, ())
        pool = Pool(EXAMINER, opening, self.jobs, imports(self.course, self.lessons), hidden=private)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, pool.__enter__)
        try:
            if pool.confined.level == LEVELS[-1]:
                raise UnconfinedError(UNCONFINED)
            on_started()
            await asyncio.gather(*(self._grade(pool, place) for place in range(self.jobs)))
        finally:
            pool.__exit__(KeyboardInterrupt, None, None)
            self._threads.shutdown(wait=False, cancel_futures=True)

    def put(self, learner: int, lesson: str, content: bytes) -> None:
        """Stores a notebook to be graded. Raises Unreadable and QueueFull."""
        place = (learner, lesson)
        if len(content) > MAX_NOTEBOOK:
            raise Unreadable(f"The code cells of a notebook have at most {MAX_NOTEBOOK:,} bytes.")
        if sum(self.sizes.values()) - self.sizes.get(place, 0) + len(content) > MAX_WAITING:
            raise QueueFull("Too many notebooks wait")
        self.log.put_notebook(place, content)
        self.sizes[place] = len(content)
        self.waiting.setdefault(place, time.time())
        asyncio.get_running_loop().create_task(self._wake())

    def remove(self, learner: int) -> None:
        """Forgets a learner's notebooks. The result of one that is being graded is still passed on."""
        for place in [place for place in self.sizes if place[0] == learner]:
            self.waiting.pop(place, None)
            self._states.pop(place, None)
            if place not in self.busy:
                del self.sizes[place]

    async def _wake(self) -> None:
        async with self._arrived:
            self._arrived.notify()

    def _next(self) -> Place | None:
        return next((place for place in self.waiting if place not in self.busy), None)

    async def _grade(self, pool: Pool, worker: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._arrived:
                while (place := self._next()) is None:
                    await self._arrived.wait()
                since = self.waiting.pop(place)
                self.busy.add(place)
            content = self.log.notebook(place)
            checks = await loop.run_in_executor(self._threads, self._checks, pool, worker, place, content)
            self.busy.discard(place)
            if place not in self.waiting:
                self.log.remove_notebook(place)
                del self.sizes[place]
            else:
                await self._wake()
            self.seconds.append(time.time() - since)
            self.on_result(place[0], checks)

    def _checks(self, pool: Pool, worker: int, place: Place, content: bytes) -> list[CheckResult]:
        """The results of the exercises that have changed since the last version, or of none if it cannot be graded."""
        learner, lesson = place
        state = self._states.setdefault(place, NotebookState(self.course.lesson(lesson)))
        try:
            state.take(content)
        except Unreadable:
            return []
        todo = list(state.todo)
        request: dict[str, Any] = {"learner": f"learner-{learner}", "lesson": lesson}
        request |= {"notebook": base64.b64encode(content).decode(), "only": todo[0] if len(todo) == 1 else None}
        if not todo:
            return []
        entry = Entry(Path(f"{lesson}.ipynb"), request["learner"], lesson)
        result: Result = as_result(entry, pool.ask(worker, request))
        if result.problem is not None or result.grader_failed:
            return []
        found = []
        for exercise in todo:
            checks = [check for check in result.checks if check.exercise == exercise]
            state.file(exercise, state.key(exercise), checks)
            found += checks
        return found


class WatchedNotebook(NamedTuple):
    """A notebook in a watched folder: the name that the folder's path gives its learner, the lesson and the content,
    and what is known of the folder: its inode among others, and a proof of which learner it belongs to."""

    name: str
    lesson: str
    content: bytes
    folder: os.stat_result
    proof: bytes


class FolderWatcher:
    """Reads the notebooks of folders that match a pattern, such as `/home/*/course`, when they have changed.

    A learner's name is what the wildcards stand for. Folders that appear later are watched too.
    """

    def __init__(self, patterns: list[str], lessons: list[str], changed: Callable[[WatchedNotebook], None]) -> None:
        self.patterns, self.lessons, self.changed = patterns, lessons, changed
        self._stamps: dict[Path, tuple[tuple[int, int, int], ...]] = {}

    async def run(self) -> None:
        """Looks again every `LOOK_S` seconds until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            for saved in await loop.run_in_executor(None, self._look):
                self.changed(saved)
            await asyncio.sleep(LOOK_S)

    def _look(self) -> list[WatchedNotebook]:
        found = []
        for pattern in self.patterns:
            for folder in map(Path, sorted(glob.glob(pattern))):
                proof = folder / PROOF
                for lesson in self.lessons:
                    for path in (folder / "work" / lesson / f"{lesson}.ipynb", folder / lesson / f"{lesson}.ipynb"):
                        stamps = file_stamp(path), file_stamp(proof)
                        if stamps[0] == NO_FILE or stamps == self._stamps.get(path):
                            continue
                        self._stamps[path] = stamps
                        with contextlib.suppress(Unreadable, OSError):  # perhaps being written: its stamp changes again
                            folders = len(path.relative_to(folder).parts)  # with the folder itself
                            about = folder_name(pattern, folder), lesson, read_bytes(path, folders)
                            found.append(WatchedNotebook(*about, folder.stat(), _first_bytes(proof)))
        return found


def _first_bytes(path: Path) -> bytes:
    """What a small regular file contains; b"" for any other."""
    with contextlib.suppress(OSError), open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
        return stream.read(LONGEST_PROOF) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else b""
    return b""


def folder_name(pattern: str, folder: Path) -> str:
    """Returns the parts of a folder's path that wildcards of the pattern stand for, else its last part."""
    pairs = zip(Path(pattern).parts, folder.parts, strict=False)
    return "/".join(part for wanted, part in pairs if glob.has_magic(wanted)) or folder.absolute().name
