"""The background of `grader watch`: a thread that notices saved notebooks, and examiners that judge their exercises."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.core.faults import Fault
from grader.core.layout import EXAMINER
from grader.core.result import Result, grader_fault
from grader.course import Course, workspace
from grader.grading.batch import imports, secret
from grader.grading.pool import Pool

LEARNER = "you"  # as in `grader check`, so that both draw the same inputs
# The file system wakes us; what it does not report (a network drive, too many watchers, a folder made after we began to
# listen) is found by a look every so often.
LOOK_S = 2.0
# An editor's save is several events: they are grouped for so long, or until it is quiet for so long.
GROUP_MS, QUIET_MS = 200, 50


class NotebookWatcher:
    """A context manager that calls `tell(lesson)`, in its own thread, for each notebook that was saved or is gone.

    It counts from when it was made: to lose no save, make it before the notebooks are read.
    """

    def __init__(self, course: Course, tell: Callable[[str], None]) -> None:
        self.folder = course.root / "work"
        self.tell = tell
        self._over, self._thread = threading.Event(), threading.Thread(target=self._follow, daemon=True)
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self.reopen(course)

    def reopen(self, course: Course) -> None:
        """Watches the notebooks of this course from now on."""
        self._paths = {lesson: workspace.exercises_copy(course, lesson) for lesson in course.lesson_ids}
        self._stamps = {lesson: file_stamp(path) for lesson, path in self._paths.items()} | self._stamps

    def __enter__(self) -> NotebookWatcher:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # Waited for: Python ends a thread that is inside watchfiles by ending the whole process, with a core dump.
        self._over.set()
        self._thread.join(LOOK_S)

    def _follow(self) -> None:
        from watchfiles import watch

        while not self._over.is_set():
            inode = file_stamp(self.folder)[2]
            try:
                for _ in watch(
                    self.folder, watch_filter=None, debounce=GROUP_MS, step=QUIET_MS, stop_event=self._over,
                    rust_timeout=int(LOOK_S * 1000), yield_on_timeout=True, raise_interrupt=False,
                ):  # fmt: skip
                    self._look()
                    if file_stamp(self.folder)[2] != inode:
                        break  # made again: the file system reports about the old one
            except (OSError, RuntimeError):  # there is no work/ yet, or no more can be watched
                self._look()
                self._over.wait(LOOK_S / 2)

    def _look(self) -> None:
        for lesson, path in self._paths.items():
            stamp = file_stamp(path)
            if stamp != self._stamps[lesson]:
                self._stamps[lesson] = stamp
                self.tell(lesson)


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Returns modification time, size and inode, of which every kind of save changes one; zeros without a file."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True)
class GradeRequest:
    """One request about an exercise, by its id and the lesson's."""

    do: str  # "grade", "name" (grade it and name its misconception), or "prepare" (for grading it)
    lesson: str
    exercise: str
    key: str = ""  # `NotebookState.key` of the text to judge


class ExaminerClient:
    """A context manager that keeps two examiners open: one for verdicts, one for what may take longer.

    Replies arrive in its own threads: `tell(request, result)`.
    """

    def __init__(self, course: Course, tell: Callable[[GradeRequest, Result], None]) -> None:
        self.course, self.tell = course, tell
        self._requests: list[GradeRequest | None] = [None, None]
        self._pool: Pool | None = None

    def __enter__(self) -> ExaminerClient:
        self._folder = tempfile.TemporaryDirectory(prefix="grader-watch-", ignore_cleanup_errors=True)
        try:
            self.reopen(self.course)
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()
        self._folder.cleanup()

    def _close(self) -> None:
        """Ends the examiners and all that they started, whatever they are doing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(KeyboardInterrupt, None, None)

    def reopen(self, course: Course) -> None:
        """Starts new examiners, for a course that has changed."""
        self._close()
        self.course, self._requests = course, [None, None]
        opening = {"root": str(course.root), "secret": secret(course)}
        pool = Pool(EXAMINER, opening, len(self._requests), imports(course, course.lesson_ids), patient=1)
        self._pool = pool.__enter__()

    def busy(self, place: int) -> bool:
        """Whether the examiner for verdicts (0), or the other one (1), is at work."""
        return self._requests[place] is not None

    def ask(self, request: GradeRequest, content: bytes) -> None:
        """Sends a request to its examiner, which must be free; `content` is the notebook as it was read."""
        place = 0 if request.do == "grade" else 1
        assert self._pool is not None
        assert not self.busy(place)
        self._requests[place] = request
        message: dict[str, Any] = {"learner": LEARNER, "lesson": request.lesson}
        if request.do == "prepare":
            message |= {"do": "prepare", "exercise": request.exercise}
        else:
            # A copy: the learner's own may be saved again, renamed or deleted meanwhile.
            copy = Path(self._folder.name) / request.do / request.lesson / f"{request.lesson}.ipynb"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            message |= {"path": str(copy), "only": request.exercise, "named": request.do == "name"}
        threading.Thread(target=self._exchange, args=(self._pool, place, request, message), daemon=True).start()

    def _exchange(self, pool: Pool, place: int, request: GradeRequest, message: dict[str, Any]) -> None:
        reply = pool.ask(place, message)
        if pool is self._pool:  # else it was closed meanwhile
            self._requests[place] = None
            if isinstance(reply, Fault):
                self.tell(request, grader_fault(LEARNER, request.lesson, reply.message))
            else:
                self.tell(request, Result.from_json(reply))
