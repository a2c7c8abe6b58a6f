"""Misconceptions: that of a known wrong answer is named when it alone fails just like a learner's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from grader.core.result import CheckResult
from grader.course import Exercise
from grader.grading.cache import Outline, ReferenceNote

Rehearse = Callable[[Exercise, str, str], Iterator[CheckResult]]
NEVER = frozenset({"raised", "timeout", "crashed", "broken", "memory", "flooded", "malformed"})
ANY_SEED = "any seed"


def name(
    exercise: Exercise, results: list[CheckResult], seed: str, note: ReferenceNote, rehearse: Rehearse
) -> list[CheckResult]:
    """`results` with the misconception on its failed checks, when exactly one wrong answer has the same record.

    Exceptions and NaNs never match alone: many different mistakes raise the same TypeError. What kind of thing a
    wrong answer fails does not depend on the seed, so only those alike are run again under this learner's.
    """
    failed = [result for result in results if result.status == "failed"]
    if all(result.kind in NEVER or (result.kind == "values" and "nan" in result.first) for result in failed):
        return results

    def run(index: int) -> Iterator[CheckResult]:
        return rehearse(exercise, exercise.wrong[index].source, seed)

    wanted = [signature(result) for result in results]
    alike = [i for i in range(len(exercise.wrong)) if _alike(exercise, i, results, note, rehearse)]
    same = [i for i in alike if all(signature(one) == other for one, other in zip(run(i), wanted, strict=False))]
    if len(same) != 1:
        return results
    because = exercise.wrong[same[0]].because
    return [replace(result, misconception=because) if result.status == "failed" else result for result in results]


def _alike(exercise: Exercise, index: int, results: list[CheckResult], note: ReferenceNote, rehearse: Rehearse) -> bool:
    """Whether a wrong answer fails the same checks in the same way, under any seed.

    Each is run no further than to its first difference, and how far it was run is noted for the next learner; not so
    a fault, which may be a busy machine's.
    """
    known = note.outlines.setdefault(str(index), [])
    wanted = [outline(result) for result in results]
    if known != wanted[: len(known)]:
        return False
    if len(known) == len(wanted):
        return True
    for i, result in enumerate(rehearse(exercise, exercise.wrong[index].source, ANY_SEED)):
        if i == len(known) and result.status not in ("timeout", "crashed"):
            known.append(outline(result))
        if outline(result) != wanted[i]:
            return False
    return True


def outline(result: CheckResult) -> Outline:
    """What kind of failure this is, whatever the inputs: check, status, kind, and place."""
    return result.id, result.status, result.kind, result.where


def signature(result: CheckResult) -> tuple[str, ...]:
    """The whole of what a failure is recognised by: check, status, kind, place, and the first difference."""
    return *outline(result), result.first
