"""Results kept from one run to the next: what was graded before, and has not changed, is not graded again."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import platform
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

import grader
from grader.course import Course
from grader.exam import whole
from grader.exam.record import VERSION, Result

DECIDING = ("program", "checks", "course", "sandbox", "exam")  # rooms of ours that a verdict depends on
MAX_BYTES = 16 << 20


def edition() -> str:
    """What every verdict depends on besides course and notebook: our code, Python, and each package that is installed.

    A learner's cell may import any of them.
    """
    package = Path(grader.__file__).parent
    code = [path.read_bytes() for room in DECIDING for path in sorted((package / room).glob("*.py"))]
    # Not sys.path: a program that grades, such as nbgrader, has folders of its own there.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    packages = sorted(found.name for place in places for found in Path(place).glob("*.dist-info"))
    around = json.dumps([VERSION, sys.version, platform.machine(), *packages])
    return hashlib.sha256(b"\0".join([*code, around.encode()])).hexdigest()


class Ledger:
    """The results kept under `build/graded/` of a course: one file for each learner and lesson, of its last grading.

    Each carries a seal made with all that decided it. A file that is damaged, of another edition of the notebook, the
    lesson or the grader, or that somebody else wrote, does not match its seal and is as if it were not there.
    """

    def __init__(self, course: Course, secret: str, edition: str) -> None:
        self.course, self.secret, self.edition = course, secret, edition
        self._lessons: dict[str, str] = {}

    def find(self, learner: str, lesson: str, notebook: bytes) -> Result | None:
        """The result kept for this notebook, if there is one."""
        path = self._path(learner, lesson)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                kept = json.loads(path.read_bytes())
                if hmac.compare_digest(kept["seal"], self._seal(learner, lesson, notebook, kept["result"])):
                    return Result.from_json(kept["result"])
        return None

    def keep(self, result: Result, notebook: bytes) -> None:
        """Keep a result, unless the grader or the course was at fault: that may be mended in the meantime.

        Timeouts are kept: they count seconds of computing, and of standing in line for a processor only where the
        machine gave a process less than a fortieth of a core.
        """
        if result.problem is not None or any(check.status == "error" for check in result.checks):
            return
        told = result.to_json()
        kept = {"seal": self._seal(result.learner, result.lesson, notebook, told), "result": told}
        # A full disk costs the next run time, and this one nothing. So does a second run at once, which writes the same
        # file: what is not whole does not match its seal.
        with contextlib.suppress(OSError):
            whole.write(self._path(result.learner, result.lesson), json.dumps(kept), alone=True)

    def _path(self, learner: str, lesson: str) -> Path:
        name = hashlib.sha256(json.dumps(learner).encode()).hexdigest()[:32]
        return self.course.root / "build" / "graded" / lesson / f"{name}.json"

    def _seal(self, learner: str, lesson: str, notebook: bytes, told: Any) -> str:
        decided = [self.edition, self.secret, self._lesson(lesson), learner, hashlib.sha256(notebook).hexdigest()]
        return hmac.digest(json.dumps(decided).encode(), json.dumps(told, sort_keys=True).encode(), "sha256").hex()

    def _lesson(self, lesson: str) -> str:
        """All of a lesson that a verdict depends on."""
        if lesson not in self._lessons:
            text = self.course.lesson(lesson)
            self._lessons[lesson] = "\n".join([text.setup, *(repr(exercise) for exercise in text.exercises)])
        return self._lessons[lesson]
