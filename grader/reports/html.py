"""A class as one HTML page: points by exercise, misconceptions, each notebook. No script, nothing from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from grader.core.points import number
from grader.core.result import CheckResult, Result
from grader.core.text import MARKS, legible


@dataclass(frozen=True)
class Bar:
    """One line of the picture: how much of `most` was reached; both count over the whole class."""

    name: str
    got: float
    most: float

    @property
    def percent(self) -> float:
        """Of the full length."""
        return round(100 * self.got / self.most, 1) if self.most else 0.0


@dataclass(frozen=True)
class LessonResults:
    """The results of one lesson, and what they amount to."""

    id: str
    results: list[Result]

    @property
    def graded(self) -> list[Result]:
        """Those that could be graded."""
        return [result for result in self.results if result.problem is None and not result.grader_failed]

    @property
    def exercises(self) -> list[Bar]:
        """Points earned and possible of each exercise, in the course's order."""
        got: Counter[str] = Counter()
        most: Counter[str] = Counter()
        for check in (check for result in self.graded for check in result.checks):
            got[check.exercise] += check.points  # type: ignore[assignment]
            most[check.exercise] += check.max_points  # type: ignore[assignment]
        return [Bar(name, got[name], most[name]) for name in most]

    @property
    def misconceptions(self) -> list[Bar]:
        """Each misconception that was named, and to how many learners, the most frequent first."""
        found: Counter[tuple[str, str]] = Counter()
        for result in self.graded:
            found.update(list(dict.fromkeys((c.exercise, c.misconception) for c in result.checks if c.misconception)))
        return [Bar(f"{name}: {said}", count, len(self.graded)) for (name, said), count in found.most_common()]


def dumps(results: Sequence[Result]) -> str:
    """The page for `results`; text of learners' is escaped, and bounded as in every report."""
    ordered = sorted(results, key=lambda result: result.lesson)
    lessons = [LessonResults(name, list(group)) for name, group in groupby(ordered, key=lambda result: result.lesson)]
    return page("class.html.jinja", {"by_exercise": by_exercise}, lessons=lessons)


def page(template: str, filters: Mapping[str, Callable[..., Any]], **content: Any) -> str:
    """A page from one of the templates here: whatever stands in `content` is escaped."""
    environment = Environment(
        loader=PackageLoader("grader.reports", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"legible": legible, "number": number, "mark": mark, **filters}
    return environment.get_template(template).render(**content)


def mark(check: CheckResult) -> str:
    """The sign that the terminal shows too."""
    return MARKS[check.status][0]


def by_exercise(result: Result) -> list[tuple[str, list[CheckResult]]]:
    """A notebook's checks, exercise by exercise."""
    return [(name, list(group)) for name, group in groupby(result.checks, key=lambda check: check.exercise)]
