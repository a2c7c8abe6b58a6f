"""Preview of a lesson: what learners read of each check beside the wrong answer that fails it, and weak spots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from grader.core.faults import Fault
from grader.core.layout import PROOF
from grader.core.points import total
from grader.core.result import CheckResult
from grader.course import Course
from grader.grading.batch import cores, imports
from grader.grading.pool import Pool


@dataclass(frozen=True)
class AnswerReport:
    """One answer of the course's own: its misconception, where it stands in the text, and how each check ended."""

    because: str
    where: str
    checks: tuple[CheckResult, ...]

    @property
    def missed(self) -> list[CheckResult]:
        """The checks that it did not pass: what its learner reads."""
        return [check for check in self.checks if check.status != "passed"]


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise: its stub as it is released, then each wrong answer; `problem` says why it could not be run."""

    exercise: str
    stub: AnswerReport
    wrong: tuple[AnswerReport, ...] = ()
    problem: str | None = None

    @property
    def points(self) -> float:
        """Those of all its checks."""
        return total(check.max_points for check in self.stub.checks)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What may be a weakness of the checks or of their messages; a sentence each."""
        return tuple(self._remarks())

    def _remarks(self) -> Iterator[str]:
        kind = lambda check: "hidden check" if check.hidden else "public check"
        name = lambda check: f"{kind(check)} {check.id.removeprefix(self.exercise + '-')}"
        for answer in self.wrong:
            if not answer.missed:
                yield f"No check fails the wrong answer on {answer.where}."
            elif len(answer.missed) == 1 and len(answer.checks) > 1:
                yield f"Only the {name(answer.missed[0])} fails the wrong answer on {answer.where}."
            for check in answer.missed:
                if check.status == "error":
                    yield f"The {name(check)} is itself at fault with the wrong answer on {answer.where}."
        for check in self.stub.checks:
            failures = [one for answer in self.wrong for one in answer.missed if one.id == check.id]
            messages = {one.message.strip() for one in failures}
            if not failures:
                yield f"No wrong answer fails the {name(check)}, so nobody has seen what it says."
            elif "" in messages:
                yield f"The {name(check)} says nothing beyond its title where it fails."
            elif check.hidden and len(messages) == 1 and len(failures) > 1:
                yield f"The {name(check)} says the same to all {len(failures)} wrong answers that fail it."


def preview(
    course: Course,
    lesson: str,
    jobs: int | None = None,
    on_exercise: Callable[[ExerciseReport], None] = lambda one: None,
) -> list[ExerciseReport]:
    """Runs the stub and the wrong answers of a lesson's exercises, side by side in `jobs` processes, or one a core.

    `on_exercise` is called with each report in the lesson's order, as soon as it and those before it are done. Raises
    CourseError for text that breaks a rule.
    """
    names = [exercise.id for exercise in course.lesson(lesson).exercises]
    requests = [{"do": "preview", "lesson": lesson, "exercise": name} for name in names]
    waiting: dict[int, ExerciseReport] = {}
    done: list[ExerciseReport] = []

    def take(i: int, reply: Any) -> None:
        waiting[i] = _report(names[i], reply)
        while len(done) in waiting:
            done.append(waiting.pop(len(done)))
            on_exercise(done[-1])

    opening, modules = {"root": str(course.root), "secret": "proof"}, imports(course, [lesson])
    with Pool(PROOF, opening, cores(jobs, len(requests)), modules) as pool:
        pool.map(requests, take)
    return done


def _report(exercise: str, reply: Any) -> ExerciseReport:
    if isinstance(reply, Fault):
        problem = f"The rehearsal itself ended: {reply.message}."
        return ExerciseReport(exercise, AnswerReport("", "", ()), problem=problem)
    stub, *wrong = (
        AnswerReport(one["because"], one["where"], tuple(map(CheckResult.from_json, one["checks"]))) for one in reply
    )
    return ExerciseReport(exercise, stub, tuple(wrong))
