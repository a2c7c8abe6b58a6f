"""A grader that is kept open: one request at a time to an examiner of its own, opened anew for another course."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course import Course
from grader.exam.batch import imports, secret
from grader.exam.pool import Fault, Pool
from grader.exam.record import Result

LEARNER = "you"  # as `grader check` has it: its inputs are the same


@dataclass(frozen=True)
class Ask:
    """One request: `do` is grade, settle or prepare (`grader.exam.desk`); `key` is of the text that it is about."""

    do: str
    lesson: str
    exercise: str
    key: str = ""


class Warm:
    """A context manager. Replies come in a thread of its own: `told(ask, result)`."""

    def __init__(self, course: Course, told: Callable[[Ask, Result], None]) -> None:
        self.course, self.told = course, told
        self.busy: Ask | None = None
        self._pool: Pool | None = None

    def __enter__(self) -> Warm:
        self._folder = tempfile.TemporaryDirectory(prefix="grader-watch-", ignore_cleanup_errors=True)
        try:
            self._open()
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def _open(self) -> None:
        opening = {"root": str(self.course.root), "secret": secret(self.course)}
        pool = Pool("grader.exam.desk:serve", opening, 1, imports(self.course, self.course.lesson_ids))
        self._pool = pool.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._close()
        self._folder.cleanup()

    def _close(self) -> None:
        """End the examiner and all that it started, whatever it is at: nobody waits for it any more."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(KeyboardInterrupt, None, None)

    def again(self, course: Course) -> None:
        """Open it anew, for a course that has changed."""
        self._close()
        self.course, self.busy = course, None
        self._open()

    def ask(self, ask: Ask, content: bytes = b"") -> None:
        """Send a request; `content` is the notebook to grade, as it was when it was read."""
        assert self.busy is None
        assert self._pool is not None
        self.busy = ask
        request = {"do": ask.do, "learner": LEARNER, "lesson": ask.lesson}
        if ask.do == "grade":
            # A copy: the learner's own may be saved again, renamed or deleted meanwhile.
            copy = Path(self._folder.name) / ask.lesson / f"{ask.lesson}.ipynb"
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(content)
            request |= {"path": str(copy), "only": ask.exercise}
        else:
            request["exercise"] = ask.exercise
        threading.Thread(target=self._exchange, args=(self._pool, ask, request), daemon=True).start()

    def _exchange(self, pool: Pool, ask: Ask, request: dict[str, Any]) -> None:
        [reply] = pool.map([request])
        if pool is not self._pool:  # closed meanwhile
            return
        self.busy = None
        if isinstance(reply, Fault):
            text = f"The grader itself failed: {reply.message}."
            self.told(ask, Result(LEARNER, ask.lesson, problem=text))
        else:
            self.told(ask, Result.from_json(reply))
