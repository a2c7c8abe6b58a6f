"""The whole proof of a course: every exercise to the test, every built notebook fresh, every lesson run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grader.core.faults import Fault
from grader.core.layout import PROOF
from grader.course import Course
from grader.grading.batch import cores, imports
from grader.grading.pool import Pool

KILLED = 0.95


@dataclass(frozen=True)
class Proof:
    """Rows of the table (see `grader.prove.proof_server`), and what does not hold, each as one sentence."""

    rows: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against the course."""
        return not self.problems


def prove(course: Course, lessons: tuple[str, ...], mutants: bool = True, jobs: int | None = None) -> Proof:
    """Put `lessons` to the test, exercises side by side. Raises CourseError for text that breaks a rule."""
    from grader.course import build

    stale = [path for path in build.stale(course) if path.stem in lessons]
    mend = "run `make build` and commit it" if course.base is None else "run `grader build`"
    problems = [f"{course.shown(path)} is stale: {mend}." for path in stale]
    requests = [
        {"lesson": lesson, "exercise": exercise.id, "mutate": mutants}
        for lesson in lessons
        for exercise in course.lesson(lesson).exercises
    ]
    opening, modules = {"root": str(course.root)}, imports(course, lessons)
    with Pool(PROOF, opening, cores(jobs, len(requests)), modules) as pool:
        replies = pool.map(requests)
    rows = []
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, Fault):
            problems.append(f"{request['exercise']}: the test itself ended: {reply.message}.")
            continue
        rows.append(reply)
        problems += [f"{request['exercise']}: {problem}" for problem in reply["problems"]]
    problems += _mutation(rows)
    return Proof(tuple(rows), tuple(problems))


def _mutation(rows: list[dict[str, Any]]) -> list[str]:
    problems = []
    for lesson in dict.fromkeys(row["lesson"] for row in rows):
        mine = [row for row in rows if row["lesson"] == lesson]
        made, alive = sum(row["mutants"] for row in mine), sum(len(row["survivors"]) for row in mine)
        if made and 1 - alive / made < KILLED:
            problems.append(f"{lesson}: {made - alive} of {made} mutants killed; at least {KILLED:.0%} are wanted.")
    return problems
