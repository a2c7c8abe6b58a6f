"""The result of grading one submission: frozen, versioned, written and read as JSON, and how its texts are shown.

`result.schema.json` beside this module is the contract that docs/results.md explains; every surface that emits results
as JSON writes them with `document`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from grader.core.final_grade import Grade
from grader.core.points import is_full, total

VERSION = 1
SCHEMA = Path(__file__).with_name("result.schema.json")
# Each status with its mark, which alone says enough, and its colour.
MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "error": ("!", "magenta"),
    "timeout": ("✗", "red"),
    "crashed": ("✗", "red"),
    "blocked": ("↑", "yellow"),
    "not attempted": ("○", "yellow"),
    "skipped": ("–", "yellow"),
}
STATUSES = tuple(MARKS)
FaultSide = Literal["submission", "grader"]


@dataclass(frozen=True)
class CheckResult:
    """How one check ended.

    Attributes:
        id, exercise, title: as the course names them.
        status: one of `STATUSES`; "error" means that the check or the grader is at fault.
        points, max_points: points earned and possible.
        message: what the learner reads; "" when the check passed.
        misconception: the misconception that a known wrong answer suggests, else None.
        clue: what in the result suggests it, a sentence; "" without a misconception.
        evidence: what the verdict rests on: "value" (a result came back as data), "program" (an exported program was
            loaded and inspected or run), "observed" (only the learner's process could report it).
        hidden: whether the learner's notebook lacks the check's text.
        kind, where, first: the first difference or property found. Misconceptions are recognised by them; they stay
            with the examiner and are not written as JSON.
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
    clue: str = ""
    kind: str = ""
    where: str = ""
    first: str = ""

    @property
    def perhaps(self) -> str:
        """The misconception as the possibility that every report shows, with its clue; "" where none is named."""
        return possibility(self.misconception, self.clue)

    def to_json(self) -> dict[str, Any]:
        """Returns the documented fields (docs/results.md)."""
        data = asdict(self)
        del data["kind"], data["where"], data["first"]
        return {**data, "evidence": list(self.evidence)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckResult:
        """Reads what `to_json` wrote. Raises ValueError for a status or points that it does not write."""
        points, most = _number(data["points"]), _number(data["max_points"])
        if data["status"] not in STATUSES or points > most:
            raise ValueError(f"{data['status']} with {points} of {most} points")
        return cls(**{**data, "evidence": tuple(data["evidence"])})


def _number(value: object) -> float:
    """Points. Raises ValueError for anything but a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no number of points")
    return value


def possibility(misconception: str | None, clue: str = "") -> str:
    """Returns the one sentence that shows a misconception, which is never certain; "" where there is none."""
    return f"Perhaps: {misconception} {clue}".rstrip() if misconception else ""


def perhaps(checks: Iterable[CheckResult]) -> str:
    """Returns the possible misconception of an exercise's checks, which have at most one; "" where none is named."""
    return next((check.perhaps for check in checks if check.perhaps), "")


@dataclass(frozen=True)
class Result:
    """How one learner's notebook of one lesson was graded.

    Attributes:
        learner, lesson: the folders that the notebook lay in.
        checks: one result for each check, in the course's order; empty where `problem` is set.
        max_score: points that the lesson gives.
        confinement: level of confinement of the learner's processes (`grader.sandbox.confine.LEVELS`), or "none".
        duration_s: seconds on the clock.
        notes: sentences about the notebook as a whole.
        problem: why nothing could be graded, else None.
        fault: whose fault `problem` is: "submission" (it earns no points) or "grader" (it is no verdict); else None.
        platform: "cpu", or the name of the accelerator that the answers ran on, such as "cuda".
        submitted: when the notebook was submitted, in ISO 8601 and UTC; None if that is unknown.
        grade: the final grade, where a report has determined it; else None.
    """

    learner: str
    lesson: str
    checks: tuple[CheckResult, ...] = ()
    max_score: float = 0.0
    confinement: str = "none"
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()
    problem: str | None = None
    fault: FaultSide | None = None
    platform: str = "cpu"
    submitted: str | None = None
    grade: Grade | None = None

    def __post_init__(self) -> None:
        if (self.problem is None) != (self.fault is None):
            raise ValueError(f"a problem states whose fault it is: {self.problem!r}, {self.fault!r}")

    @property
    def score(self) -> float:
        return total(check.points for check in self.checks)

    @property
    def final(self) -> Grade:
        """The final grade; where none has been determined, the automatic points."""
        score = None if self.grader_failed else self.score
        return self.grade or Grade(score, self.max_score, submitted=self.submitted or "")

    @property
    def full(self) -> bool:
        """Whether the notebook was graded and earned every point."""
        return self.problem is None and is_full(self.score, self.max_score)

    @property
    def grader_failed(self) -> bool:
        """Whether the grader or a check is at fault: then the score is no verdict, and no export may contain it."""
        return self.fault == "grader" or any(check.status == "error" for check in self.checks)

    @property
    def fault_text(self) -> str:
        """What went wrong where the grader failed, for whoever runs it; "" elsewhere."""
        if self.fault == "grader":
            return self.problem or ""
        return next((f"{check.id}: {check.message}" for check in self.checks if check.status == "error"), "")

    def to_json(self) -> dict[str, Any]:
        """Returns the documented fields (docs/results.md)."""
        names = ("learner", "lesson", "score", "max_score", "confinement", "platform", "duration_s", "notes", "problem")
        data = {name: getattr(self, name) for name in (*names, "fault")}
        data |= {"duration_s": round(self.duration_s, 3), "notes": list(self.notes)}
        data |= {"submitted": self.submitted} if self.submitted else {}
        data |= {"grade": self.grade.to_json()} if self.grade else {}
        return {**data, "checks": [check.to_json() for check in self.checks]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Reads what `to_json` wrote, in this version of the grader or an earlier one."""
        names = ("learner", "lesson", "max_score", "confinement", "duration_s", "problem")
        problem = data["problem"]
        _number(data["max_score"])
        return cls(
            **{name: data[name] for name in names},
            platform=data.get("platform") or "cpu",
            submitted=data.get("submitted"),
            grade=Grade.from_json(data["grade"]) if data.get("grade") else None,
            fault=data.get("fault", "submission" if problem else None),
            notes=tuple(data["notes"]),
            checks=tuple(CheckResult.from_json(check) for check in data["checks"]),
        )


def grader_fault(learner: str, lesson: str, reason: str) -> Result:
    """Returns the result of a notebook at which the grader itself failed."""
    return Result(learner, lesson, problem=f"The grader itself failed: {reason.rstrip('.')}.", fault="grader")


def unreadable(learner: str, lesson: str, points: float, problem: Exception, seconds: float = 0.0) -> Result:
    """Returns the result of a file that is not a notebook that can be graded (`grader.core.notebook.Unreadable`)."""
    return Result(learner, lesson, (), points, duration_s=seconds, problem=str(problem), fault="submission")


class NoResults(Exception):
    """A file does not contain results as `document` writes them; the text says what is wrong."""


def document(
    results: Sequence[Result], changes: Mapping[tuple[str, str], Any] | None = None, written: str | None = None
) -> str:
    """Returns the JSON document of `results`, in their order, with what a regrade changed by learner and lesson, and
    when it was `written` (ISO 8601, UTC)."""
    told = [result.to_json() for result in results]
    if changes is not None:
        told = [{**one, "changes": changes.get((one["learner"], one["lesson"]))} for one in told]
    return to_text({"version": VERSION, **({"written": written} if written else {}), "results": told})


def to_text(content: Mapping[str, Any]) -> str:
    """Returns JSON that a CI log may show: `##[` in it would be a command to some."""
    return json.dumps(content, indent=2).replace("##", "#\\u0023") + "\n"


def read_document(path: Path) -> list[Result]:
    """Reads the results in a JSON document. Raises `NoResults`."""
    return read_dated(path)[1]


def read_dated(path: Path) -> tuple[str, list[Result]]:
    """Reads a JSON document: when it was written (ISO 8601, UTC), and its results. Where it does not contain this date,
    as in earlier versions of the grader, it is that of the file. Raises `NoResults`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != VERSION:
            raise NoResults(f"{path} has version {found['version']}, but this grader reads version {VERSION}.")
        written = found.get("written") or datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
        return str(datetime.fromisoformat(written)), [Result.from_json(one) for one in found["results"]]
    except OSError as problem:
        raise NoResults(f"{path} cannot be read: {problem.strerror}.") from None
    except json.JSONDecodeError as problem:
        where = f" line {problem.lineno} is not JSON ({problem.msg}), so it" if problem.doc.strip() else ""
        text = f"{path}{where} contains no results. Pass the file that `grader grade DIR --json FILE` wrote."
        raise NoResults(text) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        text = f"{path} contains no results. Pass the file that `grader grade DIR --json FILE` wrote."
        raise NoResults(text) from None
