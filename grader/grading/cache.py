"""Caches under a course's `build/`, and fingerprints of all that a verdict depends on."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import platform
import secrets
import site
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grader.core import files
from grader.core.layout import PACKAGE, VERDICT_PACKAGES
from grader.core.notebook import Unreadable, read_submission
from grader.core.own_files import NO_FILES, OwnFiles
from grader.core.result import VERSION, Result
from grader.course import Course, Exercise, Lesson

MAX_BYTES = 16 << 20
KEY_BYTES = 32
NAMED = ("jax", "jaxlib", "flax", "optax", "numpy")  # packages whose versions are told by name
Outline = tuple[str, ...]
Parts = dict[str, Any]  # short digests by name, enough to tell later which of them has changed


def digest(what: Any) -> str:
    """Returns a digest of anything that JSON can express; short, as thousands are stored."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def file_name(learner: str) -> str:
    """Returns the name of a file about this learner, whatever the learner's name contains; every run gets the same."""
    return hashlib.sha256(json.dumps(learner).encode()).hexdigest()[:32]


def environment_fingerprint(devices: str = "cpu") -> dict[str, str]:
    """Returns everything besides course and notebook: our code, Python, each installed package (a learner's cell may
    import any), and the devices that a run grades on (`grader.sandbox.accelerators.Hardware.edition`)."""
    # Not sys.path: a program that grades, such as nbgrader, has folders of its own there.
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    packages = sorted(found.name for place in places for found in Path(place).glob("*.dist-info"))
    files = [path for name in VERDICT_PACKAGES for path in sorted((PACKAGE / name).iterdir())]
    code = [path.read_bytes() for path in files if path.suffix in (".py", ".toml", ".json")]
    return {
        "the grader": digest([VERSION, hashlib.sha256(b"\0".join(code)).hexdigest()]),
        "Python": f"{platform.python_version()} {digest([sys.version, platform.machine()])[:6]}",
        **{name: version(name) for name in NAMED},
        "the installed packages": digest(packages),
        "devices": devices,
    }


def compiler_fingerprint(devices: str = "cpu") -> str:
    """Returns what compiled code depends on: JAX, the devices, and the processor's model and features where known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    except OSError:
        processor = [platform.processor()]
    return digest([version("jax"), version("jaxlib"), platform.machine(), processor, devices])


def lesson_fingerprint(lesson: Lesson) -> str:
    """Returns a digest of all of a lesson that a verdict depends on."""
    return digest([lesson.setup, *map(repr, lesson.exercises), *_data_digests(lesson), lesson.own_files_bytes])


def _data_digests(lesson: Lesson) -> list[str]:
    return [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(lesson.data.items())]


def _exercise_parts(exercise: Exercise, lesson: Lesson) -> Parts:
    prose = [cell.source for cell in lesson.cells if cell.id == exercise.id and cell.kind in ("task", "why")]
    known = [(variant.source, variant.because) for variant in (*exercise.right, *exercise.wrong)]
    return {
        "the task's text": digest(prose),
        "the course's answer": digest([exercise.stub, exercise.reference, exercise.timeout]),
        "the known right and wrong answers": digest(known),
        "checks": {check.id: digest([check.title, check.source, check.observed]) for check in exercise.checks},
    }


class ResultCache:
    """Results under `build/graded/` of a course: one file for each learner and lesson, of its last grading.

    Each has a seal, by a key that lies beside them: a file that is damaged or somebody else's is ignored. A result of
    another notebook, lesson or grader is never a grade again; it still tells what the grade was.
    """

    def __init__(self, course: Course, secret: str, environment: Any) -> None:
        """`environment` is the `environment_fingerprint` of the grader."""
        self.course, self.secret, self.environment = course, secret, environment
        self._lessons: dict[str, Parts] = {}

    def find(self, learner: str, lesson: str, notebook: bytes, own: OwnFiles = NO_FILES) -> Result | None:
        """Returns the result of this notebook and the files beside it, unless anything that decides it has changed."""
        if (earlier := self.earlier(learner, lesson)) is None:
            return None
        result, parts = earlier
        file = {**parts["notebook"], "file": hashlib.sha256(notebook).hexdigest(), "own files": own.digest}
        return result if parts == {**self._around(lesson), "notebook": file} else None

    def earlier(self, learner: str, lesson: str) -> tuple[Result, Parts] | None:
        """Returns the last result of this learner and lesson, and the parts of what decided it then."""
        path = self._path(learner, lesson)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if path.is_file() and path.stat().st_size <= MAX_BYTES:
                content = json.loads(path.read_bytes())
                if hmac.compare_digest(content.pop("seal"), self._seal(learner, lesson, content)):
                    return Result.from_json(content["result"]), content["parts"]
        return None

    def keep(self, result: Result, notebook: bytes, own: OwnFiles = NO_FILES) -> None:
        """Store a result, unless the grader or the course was at fault: that may be fixed in the meantime. Timeouts are
        stored: they count seconds of computing, and of waiting only where a process got less than a fortieth of a core.
        """
        if result.problem is not None or result.grader_failed:
            return
        content = {"result": result.to_json(), "parts": self.parts(result.lesson, notebook, own)}
        # A full disk costs the next run time, and this one nothing. So does a second run at once, which writes the same
        # file: what is not whole does not match its seal.
        with contextlib.suppress(OSError):
            sealed = {"seal": self._seal(result.learner, result.lesson, content), **content}
            files.write(self._path(result.learner, result.lesson), json.dumps(sealed), alone=True)

    def parts(self, lesson: str, notebook: bytes, own: OwnFiles = NO_FILES) -> Parts:
        """Returns all that decides about a notebook now, part by part."""
        file = hashlib.sha256(notebook).hexdigest()
        found: Parts = {"answers": {}, "others": "", "file": file, "own files": own.digest}
        with contextlib.suppress(Unreadable):
            cells = read_submission(notebook, "", lesson).cells
            ids = [exercise.id for exercise in self.course.lesson(lesson).exercises]
            found["answers"] = {one: digest([cell.source for cell in cells if cell.grade_id == one]) for one in ids}
            found["others"] = digest([(cell.grade_id, cell.source) for cell in cells if cell.grade_id not in ids])
        return {**self._around(lesson), "notebook": found}

    def _around(self, lesson: str) -> Parts:
        if lesson not in self._lessons:
            text = self.course.lesson(lesson)
            exercises = {one.id: _exercise_parts(one, text) for one in text.exercises}
            setup = digest([text.setup, *_data_digests(text)])
            self._lessons[lesson] = {"all": lesson_fingerprint(text), "setup": setup, "exercises": exercises}
        secret = hmac.digest(self._own_key, self.secret.encode(), "sha256").hex()[:24]
        return {"around": self.environment, "secret": secret, "course": self._lessons[lesson]}

    def _path(self, learner: str, lesson: str) -> Path:
        return self.course.home / "build" / "graded" / lesson / f"{file_name(learner)}.json"

    def _seal(self, learner: str, lesson: str, content: Any) -> str:
        text = json.dumps([learner, lesson, content], sort_keys=True)
        return hmac.digest(self._own_key, text.encode(), "sha256").hex()

    @cached_property
    def _own_key(self) -> bytes:
        """The key of this cache, made when first needed. Not the course's secret: that may change, and earlier results
        still have to tell what the grade was."""
        path = self.course.home / "build" / "graded" / ".key"
        new = secrets.token_hex(KEY_BYTES)
        for _ in range(2):
            with contextlib.suppress(OSError, ValueError):
                key = bytes.fromhex(path.read_text(encoding="ascii"))
                if len(key) == KEY_BYTES:
                    return key
                path.unlink()  # cut short: with an empty key, anyone could seal results
            with contextlib.suppress(OSError):
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
        environment = environment_fingerprint(devices)
        self.edition = digest([environment, lesson_fingerprint(lesson)])
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
