"""Final grades: a learner's points in a lesson after a person's points and the late penalty, and who the learner is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from grader.core.points import total

GradeSource = Literal["gradebook", "results"]
SubmissionStatus = Literal["submitted", "late", "missing"]


@dataclass(frozen=True)
class Person:
    """A learner of the roster. `learner` is the name of the folder; `name`, `id`, `sis_id` and `section` are those of
    Canvas, and empty where the roster does not contain them."""

    learner: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    name: str = ""
    id: str = ""
    sis_id: str = ""
    section: str = ""


@dataclass(frozen=True)
class Grade:
    """The final grade of one learner in one lesson.

    Attributes:
        raw_score: points before the late penalty; None where the grader failed, so that there is no verdict.
        penalty: points that the late policy takes away.
        max_score: points that the lesson gives, tasks that a person grades included if `source` is "gradebook".
        source: "gradebook" (with a person's points), or "results" (automatic points only).
        status: "submitted", "late" (after the due date and the grace period) or "missing".
        due: when this lesson was due for this learner, in ISO 8601 and UTC; "" if unknown. `lesson_due` is the due date
            of everyone.
        submitted: when it was submitted, likewise.
        late_s: seconds after `due`, 0 if not late.
        extended: whether `due` is an extension for this learner.
        manual: what a person's points changed, and extra credit.
        waiting: cells that a person has not graded yet.
        comments: a person's comments, each with the id of its cell.
        person: the entry of the roster.
    """

    raw_score: float | None
    max_score: float
    penalty: float = 0.0
    source: GradeSource = "results"
    status: SubmissionStatus = "submitted"
    due: str = ""
    lesson_due: str = ""
    submitted: str = ""
    late_s: float = 0.0
    extended: bool = False
    manual: float = 0.0
    extra_credit: float = 0.0
    waiting: int = 0
    comments: tuple[tuple[str, str], ...] = ()
    person: Person | None = None

    @property
    def score(self) -> float | None:
        """The points that count."""
        return None if self.raw_score is None else max(0.0, total([self.raw_score, -self.penalty]))

    def to_json(self) -> dict[str, Any]:
        """Returns the documented fields (docs/results.md); the roster stays out of them."""
        data = {"score": self.score, **asdict(self), "comments": [list(one) for one in self.comments]}
        del data["person"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Grade:
        """Reads what `to_json` wrote."""
        given = {name: value for name, value in data.items() if name != "score"}
        return cls(**{**given, "comments": tuple((str(cell), str(text)) for cell, text in data["comments"])})
