"""Which known wrong answer fails just like a learner's: its misconception is named only when exactly one does."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax

from grader.checks import asking
from grader.course import Exercise, Lesson
from grader.exam.record import CheckResult

Rehearse = Callable[[Exercise, str, str], Iterator[CheckResult]]
Outline = tuple[str, ...]
NEVER = frozenset({"raised", "timeout", "crashed", "flooded", "malformed"})


class Misconceptions:
    """Puts the course's own wrong answers through the checks that a learner's answer failed."""

    def __init__(self, lesson: Lesson, rehearse: Rehearse, notes: Path | None = None) -> None:
        self.rehearse, self.notes, self.edition = rehearse, notes, _edition(lesson)
        self._known = self._noted()

    def _noted(self) -> dict[str, list[Outline]]:
        """What earlier runs of this edition, or examiners beside this one, have written down."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(self.notes.read_text()) if self.notes else {}
            if found["edition"] == self.edition:
                return {name: [tuple(one) for one in outlines] for name, outlines in found["known"].items()}
        return {}

    def keep(self) -> None:
        """Write what is known to `notes`, whole or not at all: the next run of this edition starts from it."""
        if self.notes is None or not self._known:
            return
        for name, outlines in self._noted().items():
            if len(outlines) > len(self._known.get(name, [])):
                self._known[name] = outlines
        with contextlib.suppress(OSError):
            self.notes.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.notes.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps({"edition": self.edition, "known": self._known}))
            temporary.replace(self.notes)

    def name(self, exercise: Exercise, results: list[CheckResult], seed: str) -> list[CheckResult]:
        """`results` with the misconception on its failed checks, when exactly one wrong answer has the same record.

        Exceptions and NaNs never match alone: many different mistakes raise the same TypeError. What kind of thing a
        wrong answer fails does not depend on the seed, so only those alike are run again under this learner's.
        """
        failed = [result for result in results if result.status == "failed"]
        if not failed or all(result.kind in NEVER or _nan(result) for result in failed):
            return results
        alike = [i for i in range(len(exercise.wrong)) if self._alike(exercise, i, results)]
        same = [i for i in alike if self._same(exercise, i, results, seed)]
        if len(same) != 1:
            return results
        because = exercise.wrong[same[0]].because
        return [replace(result, misconception=because) if result.status == "failed" else result for result in results]

    def _alike(self, exercise: Exercise, index: int, results: list[CheckResult]) -> bool:
        """Whether a wrong answer fails the same checks in the same way, under any seed.

        Each is run no further than to its first difference, and how far it was run is remembered for the next learner.
        """
        known = self._known.setdefault(f"{exercise.id}/{index}", [])
        wanted = [_outline(result) for result in results]
        if known != wanted[: len(known)]:
            return False
        if len(known) == len(wanted):
            return True
        for i, result in enumerate(self.rehearse(exercise, exercise.wrong[index].source, "any seed")):
            if i >= len(known):
                known.append(_outline(result))
            if known[i] != wanted[i]:
                return False
        return True

    def _same(self, exercise: Exercise, index: int, results: list[CheckResult], seed: str) -> bool:
        again = self.rehearse(exercise, exercise.wrong[index].source, seed)
        return all(signature(one) == signature(other) for one, other in zip(again, results, strict=False))


def _edition(lesson: Lesson) -> str:
    """What the outlines depend on: the lesson's text, the checks' vocabulary, and JAX."""
    text = [jax.__version__, lesson.setup, *(repr(exercise) for exercise in lesson.exercises)]
    text += [path.read_text() for path in sorted(Path(asking.__file__).parent.glob("*.py"))]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _nan(result: CheckResult) -> bool:
    return result.kind == "values" and "nan" in result.first


def _outline(result: CheckResult) -> Outline:
    return result.id, result.status, result.kind, result.where


def signature(result: CheckResult) -> tuple[str, ...]:
    """The whole of what a failure is recognised by: check, status, kind, place, and the first difference."""
    return *_outline(result), result.first
