"""Which known wrong answer fails just like a learner's: its misconception is named only when exactly one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grader.course import Exercise
from grader.exam.record import CheckResult

Rehearse = Callable[[Exercise, str, str], list[CheckResult]]
Outline = tuple[str, str, str, str]
NEVER = frozenset({"raised", "timeout", "crashed", "flooded", "malformed"})


class Misconceptions:
    """Puts the course's own wrong answers through the checks that a learner's answer failed."""

    def __init__(self, rehearse: Rehearse) -> None:
        self.rehearse = rehearse
        self._first: dict[tuple[str, int], list[Outline]] = {}

    def name(self, exercise: Exercise, results: list[CheckResult], seed: str) -> list[CheckResult]:
        """`results` with the misconception on its failed checks, when exactly one wrong answer has the same record.

        Exceptions and NaNs never match alone: many different mistakes raise the same TypeError. What kind of thing a
        wrong answer fails does not depend on the seed, so only those alike are run again under this learner's.
        """
        failed = [result for result in results if result.status == "failed"]
        if not failed or all(result.kind in NEVER or "nan" in result.first for result in failed):
            return results
        outline = [_outline(result) for result in results]
        alike = [i for i in range(len(exercise.wrong)) if self._remembered(exercise, i) == outline]
        wanted = [signature(result) for result in results]
        same = [i for i in alike if [signature(r) for r in self._judge(exercise, i, seed)] == wanted]
        if len(same) != 1:
            return results
        because = exercise.wrong[same[0]].because
        return [replace(result, misconception=because) if result.status == "failed" else result for result in results]

    def _remembered(self, exercise: Exercise, index: int) -> list[Outline]:
        key = (exercise.id, index)
        if key not in self._first:
            self._first[key] = [_outline(result) for result in self._judge(exercise, index, "any seed")]
        return self._first[key]

    def _judge(self, exercise: Exercise, index: int, seed: str) -> list[CheckResult]:
        return self.rehearse(exercise, exercise.wrong[index].source, seed)


def _outline(result: CheckResult) -> Outline:
    return result.id, result.status, result.kind, result.where


def signature(result: CheckResult) -> tuple[str, ...]:
    """The whole of what a failure is recognised by: check, status, kind, place, and the first difference."""
    return *_outline(result), result.first
