"""What a run found out about the course's own answers, kept under build/ for the next: an exercise, a file."""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.core import files
from grader.course import Exercise, Lesson
from grader.grading import fingerprint

Outline = tuple[str, ...]


@dataclass
class ReferenceNote:
    """Of one exercise: programs of its own answers, as they are handed to an executor; and how each wrong answer fails
    (by its place), as far as it was run. `read` once the reference has been run."""

    read: bool = False
    programs: set[bytes] = field(default_factory=set)
    outlines: dict[str, list[Outline]] = field(default_factory=dict)

    @property
    def extent(self) -> tuple[int, ...]:
        """How much is known; a note only grows."""
        return self.read, len(self.programs), sum(map(len, self.outlines.values()))

    def take(self, other: ReferenceNote) -> None:
        """Add what another examiner found out."""
        self.read |= other.read
        self.programs |= other.programs
        for name, outline in other.outlines.items():
            if len(outline) > len(self.outlines.get(name, [])):
                self.outlines[name] = outline


class ReferenceCache:
    """The notes on one lesson; they belong to one edition, and are forgotten with it."""

    def __init__(self, lesson: Lesson, folder: Path | None, devices: str = "cpu") -> None:
        self.folder, self.edition = folder, edition(lesson, devices)
        self._written: dict[str, tuple[int, ...]] = {}

    def of(self, exercise: Exercise) -> ReferenceNote:
        """What is written down about an exercise. Anything unreadable counts for nothing."""
        if self.folder is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                found = json.loads(self._path(exercise).read_text())
                if found["edition"] == self.edition:
                    return _note(found)
        return ReferenceNote()

    def write(self, exercise: Exercise, note: ReferenceNote) -> bool:
        """Write a note that has grown, with what others wrote meanwhile, whole or not at all; whether it had."""
        if self.folder is None or self._written.get(exercise.id) == note.extent:
            return False
        note.take(self.of(exercise))
        self._written[exercise.id] = note.extent
        content = {
            "edition": self.edition,
            "read": note.read,
            "programs": sorted(base64.b64encode(payload).decode() for payload in note.programs),
            "outlines": note.outlines,
        }
        with contextlib.suppress(OSError):
            files.write(self._path(exercise), json.dumps(content))
        return True

    def _path(self, exercise: Exercise) -> Path:
        assert self.folder is not None
        return self.folder / f"{exercise.id}.json"


def _note(found: dict[str, Any]) -> ReferenceNote:
    programs = {base64.b64decode(text) for text in found["programs"]}
    outlines = {name: [tuple(one) for one in outline] for name, outline in found["outlines"].items()}
    return ReferenceNote(bool(found["read"]), programs, outlines)


def edition(lesson: Lesson, devices: str = "cpu") -> str:
    """What results depend on besides a notebook: the lesson's text, the vocabulary of its checks, the versions, and
    the devices where they are no CPUs."""
    more = [] if devices == "cpu" else [devices]
    return fingerprint.digest(
        [fingerprint.versions(), fingerprint.text(lesson), fingerprint.code(("core", "checks", "program")), *more]
    )
