"""What an exercise's own answers got from its checks, and what in that its author should look at again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from grader.core.points import total
from grader.core.result import CheckResult


@dataclass(frozen=True)
class AnswerReport:
    """One answer of the course's own: the thought behind it, where it stands, and how each check ended."""

    because: str
    where: str
    checks: tuple[CheckResult, ...]

    @property
    def missed(self) -> list[CheckResult]:
        """The checks that it did not pass: what its learner reads."""
        return [check for check in self.checks if check.status != "passed"]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AnswerReport:
        """Read one that a process of ours sent."""
        checks = tuple(CheckResult(**{**one, "evidence": tuple(one["evidence"])}) for one in data["checks"])
        return cls(data["because"], data["where"], checks)


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise: its stub as it is given out, then each wrong answer. `problem` where it could not be rehearsed."""

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
        return (*self._of_answers(), *self._of_checks())

    def _of_answers(self) -> Iterator[str]:
        for answer in self.wrong:
            if not answer.missed:
                yield f"No check fails the wrong answer on {answer.where}."
            elif len(answer.missed) == 1 and len(answer.checks) > 1:
                yield f"Only {_name(answer.missed[0])} fails the wrong answer on {answer.where}."
            for check in answer.missed:
                if check.status == "error":
                    yield f"{_begin(check)} is itself at fault with the wrong answer on {answer.where}."

    def _of_checks(self) -> Iterator[str]:
        for check in self.stub.checks:
            failures = [one for answer in self.wrong for one in answer.missed if one.id == check.id]
            said = {one.message.strip() for one in failures}
            if not failures:
                yield f"No wrong answer fails {_name(check)}, so nobody has seen what it says."
            elif "" in said:
                yield f"{_begin(check)} says nothing beyond its title where it fails."
            elif check.hidden and len(said) == 1 and len(failures) > 1:
                yield f"{_begin(check)} says the same to all {len(failures)} wrong answers that fail it."


def _name(check: CheckResult) -> str:
    return f"the {'hidden' if check.hidden else 'public'} check {check.id.removeprefix(check.exercise + '-')}"


def _begin(check: CheckResult) -> str:
    return "T" + _name(check)[1:]
