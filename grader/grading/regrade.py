"""Changes by a regrade: whose points differ from the last grading, at which checks, and what has changed since."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grader.core.notebook import Unreadable, read_bytes
from grader.core.points import number
from grader.core.result import CheckResult, Result
from grader.course import Course
from grader.grading.batch import Entry, own_files, secret
from grader.grading.cache import Parts, ResultCache

CHANCE = "nothing (a timeout, or an answer that differs from run to run)"


@dataclass(frozen=True)
class CheckChange:
    """A check that gives other points than last time, or others at most. None stands for a check that is not there.

    `since` says what has changed since then, the nearest first: each could be the reason, and nothing else can.
    """

    id: str
    exercise: str
    points_before: float | None
    points: float | None
    status_before: str | None
    status: str | None
    since: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One learner's lesson whose points have changed; without checks where it could not be graded now."""

    before: Result
    now: Result
    checks: tuple[CheckChange, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the documented fields (`docs/results.md`)."""
        checks = [{**asdict(check), "since": list(check.since)} for check in self.checks]
        return {"score_before": self.before.score, "max_score_before": self.before.max_score, "checks": checks}


class PreviousGrades:
    """The results of the last grading of these notebooks, taken before the next one replaces them."""

    def __init__(self, course: Course, entries: Iterable[Entry], edition: Parts) -> None:
        """`edition` is the `environment_fingerprint` of the grader."""
        self._course, self._cache = course, ResultCache(course, secret(course), edition)
        self._earlier = {entry: self._cache.earlier(entry.learner, entry.lesson) for entry in entries}

    def changes(self, results: Mapping[Entry, Result]) -> tuple[list[Change], int]:
        """Returns the notebooks with other points than last time, and how many are graded for the first time."""
        known = {entry: earlier for entry in results if (earlier := self._earlier[entry]) is not None}
        changed: list[Change] = []
        for entry, (before, then) in known.items():
            result, checks = results[entry], []
            if _points(before) == _points(result):
                continue
            if result.problem is None:
                with contextlib.suppress(Unreadable):  # replaced or removed since it was graded
                    own = own_files(self._course.lesson(entry.lesson), entry.path)
                    now = self._cache.parts(entry.lesson, read_bytes(entry.path), own)
                    checks = list(_checks(before, then, result, now))
            changed.append(Change(before, result, tuple(checks)))
        return changed, len(results) - len(known)


def _points(result: Result) -> list[tuple[str, float, float]]:
    return sorted((check.id, check.points, check.max_points) for check in result.checks)


def _checks(before: Result, then: Parts, result: Result, parts: Parts) -> Iterator[CheckChange]:
    """The checks that differ in points, in the course's order; those that are gone at the end."""
    gone = {check.id: check for check in before.checks}
    pairs: list[tuple[CheckResult | None, CheckResult]] = [(gone.pop(new.id, None), new) for new in result.checks]
    for old, new in (*pairs, *((check, None) for check in gone.values())):
        if old and new and (old.points, old.max_points) == (new.points, new.max_points):
            continue
        one = new or old
        assert one is not None
        since = list(_reasons(one, old, new, then, parts))
        if before.confinement != result.confinement:
            since.append(f"the confinement (from {before.confinement} to {result.confinement})")
        points = old.points if old else None, new.points if new else None
        statuses = old.status if old else None, new.status if new else None
        yield CheckChange(one.id, one.exercise, *points, *statuses, tuple(since) or (CHANCE,))


def _reasons(
    check: CheckResult, before: CheckResult | None, now: CheckResult | None, then: Parts, parts: Parts
) -> Iterator[str]:
    """What has changed about the check itself, then around it: its exercise, the lesson, the notebook, the grader."""
    old, new = (of["course"]["exercises"].get(check.exercise, {}) for of in (then, parts))
    if before is None or now is None:
        yield "the check is new" if before is None else "the check was removed"
    else:
        if before.max_points != now.max_points:
            yield f"the check's points (from {number(before.max_points)} to {number(now.max_points)})"
        if old.get("checks", {}).get(check.id) != new.get("checks", {}).get(check.id):
            yield "the check's text"
        if before.hidden != now.hidden:
            yield "the check is now hidden" if now.hidden else "the check is now public"
    yield from (part for part in new if part != "checks" and part in old and old[part] != new[part])
    if then["course"]["setup"] != parts["course"]["setup"]:
        yield "the lesson's setup"
    # An exercise that was not there last time has no digest to compare.
    answers, answers_now = then["notebook"]["answers"], parts["notebook"]["answers"]
    changed = {name for name in answers.keys() & answers_now.keys() if answers[name] != answers_now[name]}
    if check.exercise in changed:
        yield "the answer in the notebook"
    if changed - {check.exercise} or then["notebook"]["others"] != parts["notebook"]["others"]:
        yield "other cells of the notebook, which determine the inputs of hidden checks"
    elif not changed and then["notebook"]["file"] != parts["notebook"]["file"]:
        yield "the notebook file apart from its code cells, which determines the inputs of hidden checks"
    if then["notebook"].get("own files", "") != parts["notebook"]["own files"]:
        yield "the files beside the notebook"
    if then["secret"] != parts["secret"]:
        yield "the course's secret, which determines the inputs of hidden checks"
    for name, version in parts["around"].items():
        was = then["around"].get(name, version)  # what was not noted then is not known to have changed
        if was != version:
            yield name if name.startswith("the ") else f"{name} (from {was} to {version})"
