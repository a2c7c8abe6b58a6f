"""A grader that is kept open: an examiner for who waits, and one that gives way to it for what takes longer."""

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
from grader.course import Course
from grader.grading.batch import imports, secret
from grader.grading.pool import Pool

LEARNER = "you"  # as `grader check` has it: its inputs are the same


@dataclass(frozen=True)
class GradeRequest:
    """One request about an exercise: `grade` it, grade it and `name` its misconception, or `prepare` for it. `key` is
    of the text that it is about."""

    do: str
    lesson: str
    exercise: str
    key: str = ""

    @property
    def place(self) -> int:
        """Which examiner it is for: nobody who waits for a verdict waits for anything else."""
        return 0 if self.do == "grade" else 1


class ExaminerClient:
    """A context manager. Replies come in threads of its own: `told(ask, result)`."""

    def __init__(self, course: Course, told: Callable[[GradeRequest, Result], None]) -> None:
        self.course, self.told = course, told
        self._asked: list[GradeRequest | None] = [None, None]
        self._pool: Pool | None = None

    def __enter__(self) -> ExaminerClient:
        self._folder = tempfile.TemporaryDirectory(prefix="grader-watch-", ignore_cleanup_errors=True)
        try:
            self._open()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def _open(self) -> None:
        opening = {"root": str(self.course.root), "secret": secret(self.course)}
        modules = imports(self.course, self.course.lesson_ids)
        pool = Pool(EXAMINER, opening, len(self._asked), modules, patient=1)
        self._pool = pool.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._close()
        self._folder.cleanup()

    def _close(self) -> None:
        """End the examiners and all that they started, whatever they are at: nobody waits for it any more."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(KeyboardInterrupt, None, None)

    def again(self, course: Course) -> None:
        """Open it anew, for a course that has changed."""
        self._close()
        self.course, self._asked = course, [None, None]
        self._open()

    @property
    def judging(self) -> bool:
        """Whether a verdict is waited for."""
        return self._asked[0] is not None

    @property
    def looking(self) -> bool:
        """Whether the other examiner is busy."""
        return self._asked[1] is not None

    def ask(self, ask: GradeRequest, content: bytes) -> None:
        """Send a request to an examiner that is free; `content` is the notebook as it was when it was read."""
        assert self._pool is not None
        assert self._asked[ask.place] is None
        self._asked[ask.place] = ask
        request: dict[str, Any] = {"learner": LEARNER, "lesson": ask.lesson}
        if ask.do == "prepare":
            request |= {"do": "prepare", "exercise": ask.exercise}
        else:
            # A copy: the learner's own may be saved again, renamed or deleted meanwhile.
            copy = Path(self._folder.name) / ask.do / ask.lesson / f"{ask.lesson}.ipynb"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            request |= {"path": str(copy), "only": ask.exercise, "named": ask.do == "name"}
        threading.Thread(target=self._exchange, args=(self._pool, ask, request), daemon=True).start()

    def _exchange(self, pool: Pool, ask: GradeRequest, request: dict[str, Any]) -> None:
        reply = pool.ask(ask.place, request)
        if pool is not self._pool:  # closed meanwhile
            return
        self._asked[ask.place] = None
        if isinstance(reply, Fault):
            self.told(ask, grader_fault(LEARNER, ask.lesson, reply.message))
        else:
            self.told(ask, Result.from_json(reply))
