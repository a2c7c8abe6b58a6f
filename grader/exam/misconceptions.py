"""Which known wrong answer fails just like a learner's: its misconception is named only when exactly one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grader.course import Exercise
from grader.exam.record import CheckResult

Rehearse = Callable[[Exercise, str, str], list[CheckResult]]
Signature = tuple[tuple[str, str, str, str], ...]
NEVER = frozenset({"raised", "timeout", "crashed", "flooded", "malformed"})


class Misconceptions:
    """Puts the course's own wrong answers through the checks that a learner's answer failed."""

    def __init__(self, rehearse: Rehearse) -> None:
        self.rehearse = rehearse
        self._first: dict[tuple[str, int], Signature] = {}

    def name(self, exercise: Exercise, results: list[CheckResult], seed: str) -> list[CheckResult]:
        """`results` with the misconception on its failed checks, when exactly one wrong answer has the same record.

        Exceptions never match alone: many different mistakes raise the same TypeError. A wrong answer's record under
        another seed is kept from submission to submission, so that only the likely ones are run again under this one.
        """
        signature = _signature(results)
        failed = [result for result in results if result.status == "failed"]
        if not failed or all(result.kind in NEVER or "not finite" in result.message for result in failed):
            return results
        likely = [i for i in range(len(exercise.wrong)) if self._remembered(exercise, i) == signature]
        same = [i for i in likely if self._judge(exercise, i, seed) == signature]
        if len(same) != 1:
            return results
        because = exercise.wrong[same[0]].because
        return [replace(result, misconception=because) if result.status == "failed" else result for result in results]

    def _remembered(self, exercise: Exercise, index: int) -> Signature:
        key = (exercise.id, index)
        if key not in self._first:
            self._first[key] = self._judge(exercise, index, "a wrong answer of the course")
        return self._first[key]

    def _judge(self, exercise: Exercise, index: int, seed: str) -> Signature:
        return _signature(self.rehearse(exercise, exercise.wrong[index].source, seed))


def _signature(results: list[CheckResult]) -> Signature:
    return tuple((result.id, result.status, result.kind, result.where) for result in results)
