"""Which known wrong answer fails just like a learner's: its misconception is named only when exactly one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from grader.course import Exercise
from grader.exam.record import CheckResult

Rehearse = Callable[[Exercise, str, str], Iterator[CheckResult]]
Outline = tuple[str, str, str, str]
NEVER = frozenset({"raised", "timeout", "crashed", "flooded", "malformed"})


class Misconceptions:
    """Puts the course's own wrong answers through the checks that a learner's answer failed."""

    def __init__(self, rehearse: Rehearse) -> None:
        self.rehearse = rehearse
        self._known: dict[tuple[str, int], list[Outline]] = {}

    def name(self, exercise: Exercise, results: list[CheckResult], seed: str) -> list[CheckResult]:
        """`results` with the misconception on its failed checks, when exactly one wrong answer has the same record.

        Exceptions and NaNs never match alone: many different mistakes raise the same TypeError. What kind of thing a
        wrong answer fails does not depend on the seed, so only those alike are run again under this learner's.
        """
        failed = [result for result in results if result.status == "failed"]
        if not failed or all(result.kind in NEVER or "nan" in result.first for result in failed):
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
        known = self._known.setdefault((exercise.id, index), [])
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


def _outline(result: CheckResult) -> Outline:
    return result.id, result.status, result.kind, result.where


def signature(result: CheckResult) -> tuple[str, ...]:
    """The whole of what a failure is recognised by: check, status, kind, place, and the first difference."""
    return *_outline(result), result.first
