"""HTML pages without scripts: a class with its points and misconceptions, and a lesson's preview for instructors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from grader.core.points import number, phrase, total
from grader.core.result import CheckResult, Result
from grader.core.text import MARKS, legible
from grader.prove.proof import ExerciseReport
from grader.reports.terminal import by_exercise, by_lesson, misconception, stub_messages


@dataclass(frozen=True)
class Bar:
    """One bar of a chart: how much of `most` was reached; both count over the whole class."""

    name: str
    got: float
    most: float

    @property
    def percent(self) -> float:
        return round(100 * self.got / self.most, 1) if self.most else 0.0


@dataclass(frozen=True)
class LessonResults:
    """The results of one lesson, and statistics of those that could be graded."""

    id: str
    results: list[Result]

    @property
    def graded(self) -> list[Result]:
        """The results with a verdict."""
        return [result for result in self.results if result.problem is None and not result.grader_failed]

    @property
    def exercises(self) -> list[Bar]:
        """Points earned and possible of each exercise, in the course's order."""
        found: dict[str, list[CheckResult]] = {}
        for check in (check for result in self.graded for check in result.checks):
            found.setdefault(check.exercise, []).append(check)
        return [Bar(name, total(c.points for c in of), total(c.max_points for c in of)) for name, of in found.items()]

    @property
    def misconceptions(self) -> list[Bar]:
        """Each misconception and how many learners have it, the most frequent first."""
        found: Counter[tuple[str, str]] = Counter()
        for result in self.graded:
            found.update({(c.exercise, c.misconception): 1 for c in result.checks if c.misconception})
        return [Bar(f"{name}: {said}", count, len(self.graded)) for (name, said), count in found.most_common()]


def dumps(results: Sequence[Result]) -> str:
    """Returns the page of a class; learners' text is escaped, and bounded as in every report."""
    return _page("class.html.jinja", lessons=[LessonResults(*lesson) for lesson in by_lesson(results)])


def preview(lesson: str, exercises: Sequence[ExerciseReport]) -> str:
    """Returns the page of a lesson before its release: each wrong answer with what its learner reads."""
    return _page("preview.html.jinja", lesson=lesson, exercises=exercises)


def _page(template: str, **content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("grader.reports", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "legible": legible, "number": number, "phrase": phrase, "by_exercise": by_exercise,
        "misconception": misconception, "stub_messages": stub_messages, "mark": lambda check: MARKS[check.status][0],
    }  # fmt: skip
    return environment.get_template(template).render(**content)
