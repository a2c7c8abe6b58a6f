"""The result of grading one submission: frozen, versioned, and made by the examiner alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from grader.program.legible import legible as legible

VERSION = 1
STATUSES = ("passed", "failed", "error", "timeout", "crashed", "blocked", "not attempted", "skipped")


def total(points: Iterable[float]) -> float:
    """The sum, the same in any order: 0.1 + 0.2 + 0.3 are 0.6."""
    return round(math.fsum(points), 6)


@dataclass(frozen=True)
class CheckResult:
    """How one check ended.

    `evidence` lists what the verdict rests on: "value" (a result came back as data), "program" (an exported program
    was loaded and inspected or run), "observed" (only the learner's process could say). `kind`, `where` and `first` are
    the first difference or property found; they are what a misconception is recognised by, and stay with the examiner.
    """

    id: str
    exercise: str
    title: str
    status: str
    points: float
    max_points: float
    message: str = ""
    misconception: str | None = None
    evidence: tuple[str, ...] = ()
    hidden: bool = False
    kind: str = ""
    where: str = ""
    first: str = ""

    def to_json(self) -> dict[str, Any]:
        """The documented fields (`docs/results.md`)."""
        data = asdict(self)
        del data["kind"], data["where"], data["first"]
        return {**data, "evidence": list(self.evidence)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CheckResult:
        """Read what `to_json` wrote."""
        return cls(**{**data, "evidence": tuple(data["evidence"])})


@dataclass(frozen=True)
class Result:
    """How one learner's notebook of one lesson was graded.

    `problem` says why it could not be graded at all, in which case there are no checks; `notes` are sentences about
    the notebook as a whole (a cell that is there twice, one that is missing). `platform` is what it ran on: "cpu", or
    an accelerator's name, such as "cuda".
    """

    learner: str
    lesson: str
    checks: tuple[CheckResult, ...] = ()
    max_score: float = 0.0
    confinement: str = "none"
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()
    problem: str | None = None
    platform: str = "cpu"
    version: int = field(default=VERSION)

    @property
    def score(self) -> float:
        """Points of all checks together."""
        return total(check.points for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The documented fields (`docs/results.md`)."""
        return {
            "learner": self.learner,
            "lesson": self.lesson,
            "score": self.score,
            "max_score": self.max_score,
            "confinement": self.confinement,
            "platform": self.platform,
            "duration_s": round(self.duration_s, 3),
            "notes": list(self.notes),
            "problem": self.problem,
            "checks": [check.to_json() for check in self.checks],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """Read what `to_json` wrote."""
        checks = tuple(CheckResult.from_json(check) for check in data["checks"])
        kept = {name: data[name] for name in ("learner", "lesson", "max_score", "confinement", "duration_s", "problem")}
        return cls(**kept, platform=data.get("platform", "cpu"), notes=tuple(data["notes"]), checks=checks)
