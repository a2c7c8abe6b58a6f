"""Caches under a course's `build/`: results of notebooks, and what is known of the course's own answers."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grader.core import files
from grader.core.notebook import Unreadable, read_submission
from grader.core.result import Result
from grader.course import Course, Exercise, Lesson
from grader.grading import fingerprint

MAX_BYTES = 16 << 20
Outline = tuple[str, ...]


class ResultCache:
    """Results under `build/graded/` of a course: one file for each learner and lesson, of its last grading.

    Each has a seal, by a key that lies beside them: a file that is damaged or somebody else's is ignored. A result of
    another notebook, lesson or grader is never a grade again; it still tells what the grade was.
    """

    def __init__(self, course: Course, secret: str, environment: Any) -> None:
        """`environment` is the `environment_fingerprint` of the grader."""
        self.course, self.secret, self.environment = course, secret, environment
        self._lessons: dict[str, fingerprint.Parts] = {}

    def find(self, learner: str, lesson: str, notebook: bytes) -> Result | None:
        """Returns the result of this notebook, unless anything that decides it has changed."""
        if (earlier := self.earlier(learner, lesson)) is None:
            return None
        result, parts = earlier
        file = {**parts["notebook"], "file": hashlib.sha256(notebook).hexdigest()}
        return result if parts == {**self._around(lesson), "notebook": file} else None

    def earlier(self, learner: str, lesson: str) -> tuple[Result, fingerprint.Parts] | None:
        """Returns the last result of this learner and lesson, and the parts of what decided it then."""
        path = self._path(learner, lesson)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                content = json.loads(path.read_bytes())
                if hmac.compare_digest(content.pop("seal"), self._seal(learner, lesson, content)):
                    return Result.from_json(content["result"]), content["parts"]
        return None

    def keep(self, result: Result, notebook: bytes) -> None:
        """Store a result, unless the grader or the course was at fault: that may be fixed in the meantime. Timeouts are
        stored: they count seconds of computing, and of waiting only where a process got less than a fortieth of a core.
        """
        if result.problem is not None or result.grader_failed:
            return
        content = {"result": result.to_json(), "parts": self.parts(result.lesson, notebook)}
        # A full disk costs the next run time, and this one nothing. So does a second run at once, which writes the same
        # file: what is not whole does not match its seal.
        with contextlib.suppress(OSError):
            sealed = {"seal": self._seal(result.learner, result.lesson, content), **content}
            files.write(self._path(result.learner, result.lesson), json.dumps(sealed), alone=True)

    def parts(self, lesson: str, notebook: bytes) -> fingerprint.Parts:
        """Returns all that decides about a notebook now, part by part."""
        cells: fingerprint.Parts = {"answers": {}, "others": ""}
        with contextlib.suppress(Unreadable):
            cells = fingerprint.notebook_parts(read_submission(notebook, "", lesson), self.course.lesson(lesson))
        return {**self._around(lesson), "notebook": {**cells, "file": hashlib.sha256(notebook).hexdigest()}}

    def _around(self, lesson: str) -> fingerprint.Parts:
        if lesson not in self._lessons:
            self._lessons[lesson] = fingerprint.lesson_parts(self.course.lesson(lesson))
        secret = hmac.digest(self._own_key, self.secret.encode(), "sha256").hex()[:24]
        return {"around": self.environment, "secret": secret, "course": self._lessons[lesson]}

    def _path(self, learner: str, lesson: str) -> Path:
        return self.course.root / "build" / "graded" / lesson / f"{fingerprint.file_name(learner)}.json"

    def _seal(self, learner: str, lesson: str, content: Any) -> str:
        text = json.dumps([learner, lesson, content], sort_keys=True)
        return hmac.digest(self._own_key, text.encode(), "sha256").hex()

    @cached_property
    def _own_key(self) -> bytes:
        """The key of this cache, made when first needed. Not the course's secret: that may change, and earlier results
        still have to tell what the grade was."""
        path = self.course.root / "build" / "graded" / ".key"
        new = secrets.token_hex(32)
        for attempt in ("read", "write", "read"):
            with contextlib.suppress(OSError, ValueError):
                if attempt == "read":
                    return bytes.fromhex(path.read_text(encoding="ascii"))
                part = path.with_name(f".key.{os.getpid()}.part")
                files.write(part, new)
                try:
                    os.link(part, path)  # several examiners begin at once, and one key is the first
                finally:
                    part.unlink()
        return bytes.fromhex(new)


@dataclass
class ReferenceNote:
    """What is known of one exercise's own answers; it only grows. `read` once the reference has been run.

    `programs` of these answers are as they are handed to an executor; `outlines` are how each wrong answer fails (by
    its place), as far as it was run.
    """

    read: bool = False
    programs: set[bytes] = field(default_factory=set)
    outlines: dict[str, list[Outline]] = field(default_factory=dict)

    @property
    def extent(self) -> tuple[int, ...]:
        """How much is known."""
        return self.read, len(self.programs), sum(map(len, self.outlines.values()))

    def take(self, other: ReferenceNote) -> None:
        """Add what another examiner found out."""
        self.read |= other.read
        self.programs |= other.programs
        for name, outline in other.outlines.items():
            if len(outline) > len(self.outlines.get(name, [])):
                self.outlines[name] = outline


class ReferenceCache:
    """The notes on one lesson's own answers, a file for each exercise; without a folder nothing is stored."""

    def __init__(self, lesson: Lesson, folder: Path | None, devices: str = "cpu") -> None:
        self.folder = folder
        environment = fingerprint.environment_fingerprint(devices)
        self.edition = fingerprint.digest([environment, fingerprint.lesson_fingerprint(lesson)])
        self._written: dict[str, tuple[int, ...]] = {}

    def of(self, exercise: Exercise) -> ReferenceNote:
        """Returns what is stored about an exercise; an unreadable or outdated file counts for nothing."""
        if self.folder is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                found = json.loads((self.folder / f"{exercise.id}.json").read_text())
                if found["edition"] == self.edition:
                    programs = {base64.b64decode(text) for text in found["programs"]}
                    outlines = {name: [tuple(one) for one in outline] for name, outline in found["outlines"].items()}
                    return ReferenceNote(bool(found["read"]), programs, outlines)
        return ReferenceNote()

    def write(self, exercise: Exercise, note: ReferenceNote) -> bool:
        """Store a note that has grown, with what others stored meanwhile; returns whether it had grown."""
        if self.folder is None or self._written.get(exercise.id) == note.extent:
            return False
        note.take(self.of(exercise))
        self._written[exercise.id] = note.extent
        programs = sorted(base64.b64encode(payload).decode() for payload in note.programs)
        content = {"edition": self.edition, "read": note.read, "programs": programs, "outlines": note.outlines}
        with contextlib.suppress(OSError):
            files.write(self.folder / f"{exercise.id}.json", json.dumps(content))
        return True
