"""Results kept from one run to the next: what was graded before, and has not changed, is not graded again."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grader.core import files
from grader.core.notebook import Unreadable, read_submission
from grader.core.result import Result
from grader.course import Course
from grader.grading import fingerprint

MAX_BYTES = 16 << 20


def edition(devices: str = "cpu") -> str:
    """What every verdict depends on besides course and notebook, as one digest. `devices` are those that the run
    grades on (`grader.sandbox.accelerators.Found.edition`)."""
    return fingerprint.digest(fingerprint.environment_fingerprint(devices))


@dataclass(frozen=True)
class CachedResult:
    """A result of an earlier run, and what decided it: `key` in short, for equality; `parts` to tell what changed."""

    result: Result
    key: fingerprint.Parts
    parts: fingerprint.Parts


class ResultCache:
    """The results kept under `build/graded/` of a course: one file for each learner and lesson, of its last grading.

    Each carries a seal, made with a key that lies beside them: a file that is damaged, or that somebody else wrote, is
    as if it were not there. One that was decided by another edition of the notebook, the lesson or the grader is never
    a grade again; it still tells what the grade was.
    """

    def __init__(self, course: Course, secret: str, edition: str, devices: str = "cpu") -> None:
        self.course, self.secret, self.edition, self.devices = course, secret, edition, devices
        self._lessons: dict[str, tuple[str, fingerprint.Parts]] = {}

    def find(self, learner: str, lesson: str, notebook: bytes) -> Result | None:
        """The result kept for this notebook, if there is one."""
        kept = self.earlier(learner, lesson)
        return kept.result if kept is not None and kept.key == self._deciding(lesson, notebook) else None

    def earlier(self, learner: str, lesson: str) -> CachedResult | None:
        """What was kept last of this learner and lesson, whatever has changed since."""
        path = self._path(learner, lesson)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                kept = json.loads(path.read_bytes())
                told = {name: kept[name] for name in ("result", "key", "parts")}
                if hmac.compare_digest(kept["seal"], self._seal(learner, lesson, told)):
                    return CachedResult(Result.from_json(kept["result"]), kept["key"], kept["parts"])
        return None

    def keep(self, result: Result, notebook: bytes) -> None:
        """Keep a result, unless the grader or the course was at fault: that may be mended in the meantime.

        Timeouts are kept: they count seconds of computing, and of standing in line for a processor only where the
        machine gave a process less than a fortieth of a core.
        """
        if result.problem is not None or result.grader_failed:
            return
        key, parts = self._deciding(result.lesson, notebook), self.parts(result.lesson, notebook)
        told = {"result": result.to_json(), "key": key, "parts": parts}
        # A full disk costs the next run time, and this one nothing. So does a second run at once, which writes the same
        # file: what is not whole does not match its seal.
        with contextlib.suppress(OSError):
            kept = {"seal": self._seal(result.learner, result.lesson, told), **told}
            files.write(self._path(result.learner, result.lesson), json.dumps(kept), alone=True)

    def parts(self, lesson: str, notebook: bytes) -> fingerprint.Parts:
        """All that decides about a notebook now, part by part."""
        cells: fingerprint.Parts = {"answers": {}, "others": ""}
        with contextlib.suppress(Unreadable):
            cells = fingerprint.notebook(read_submission(notebook, "", lesson), self.course.lesson(lesson))
        secret = hmac.digest(self._own_key, self.secret.encode(), "sha256").hex()[:24]
        return {"around": self._around, "secret": secret, "course": self._lesson(lesson)[1], "notebook": cells}

    def _path(self, learner: str, lesson: str) -> Path:
        return self.course.root / "build" / "graded" / lesson / f"{fingerprint.file_name(learner)}.json"

    def _seal(self, learner: str, lesson: str, told: Any) -> str:
        text = json.dumps([learner, lesson, told], sort_keys=True)
        return hmac.digest(self._own_key, text.encode(), "sha256").hex()

    def _deciding(self, lesson: str, notebook: bytes) -> fingerprint.Parts:
        secret = hmac.digest(self._own_key, self.secret.encode(), "sha256").hex()
        text = hashlib.sha256(notebook).hexdigest()
        return {"edition": self.edition, "secret": secret, "lesson": self._lesson(lesson)[0], "notebook": text}

    def _lesson(self, lesson: str) -> tuple[str, fingerprint.Parts]:
        if lesson not in self._lessons:
            text = self.course.lesson(lesson)
            self._lessons[lesson] = fingerprint.digest(fingerprint.text(text)), fingerprint.course(text)
        return self._lessons[lesson]

    @cached_property
    def _around(self) -> fingerprint.Parts:
        return fingerprint.environment_fingerprint(self.devices)

    @cached_property
    def _own_key(self) -> bytes:
        """The key of this ledger, made when first needed. Not the course's secret: that may change, and what was kept
        before shall still tell what it was."""
        path = self.course.root / "build" / "graded" / ".key"
        with contextlib.suppress(OSError, ValueError):
            return bytes.fromhex(path.read_text(encoding="ascii"))
        new = secrets.token_hex(32)
        part = path.with_name(f".key.{os.getpid()}.part")
        with contextlib.suppress(OSError):
            files.write(part, new)
            try:
                os.link(part, path)  # several examiners begin at once, and one key is the first
            finally:
                part.unlink()
        with contextlib.suppress(OSError, ValueError):
            return bytes.fromhex(path.read_text(encoding="ascii"))
        return bytes.fromhex(new)
