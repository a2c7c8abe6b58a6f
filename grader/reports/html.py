"""HTML pages without scripts: a class with its points and misconceptions, and a lesson's preview for instructors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from grader.core.points import number, phrase, total
from grader.core.result import MARKS, CheckResult, Result, perhaps
from grader.core.text import inert_markup, legible
from grader.prove.proof import ExerciseReport
from grader.reports.similar import Pair
from grader.reports.terminal import AUTOMATIC_ONLY, by_exercise, by_lesson, graded, stub_messages

MOST_PAIRS = 100  # of a lesson, on the page of shared code


@dataclass(frozen=True)
class Bar:
    """One bar of a chart: how much of `most` was reached; both count over the whole class."""

    name: str
    got: float
    most: float

    @property
    def percent(self) -> float:
        return round(100 * self.got / self.most, 1) if self.most else 0.0


class LessonResults:
    """The results of one lesson. Bars count those with a verdict: the points of each exercise, in the course's order,
    and how many learners have each misconception, the most frequent first."""

    def __init__(self, lesson: str, results: list[Result]) -> None:
        self.id, self.results, self.graded = lesson, results, graded(results)
        exercises: dict[str, list[CheckResult]] = {}
        learners: Counter[str] = Counter()
        for result in self.graded:
            for name, checks in by_exercise(result.checks):
                exercises.setdefault(name, []).extend(checks)
            learners.update({f"{c.exercise}: {c.misconception}": 1 for c in result.checks if c.misconception})
        sums = lambda checks: (total(c.points for c in checks), total(c.max_points for c in checks))
        self.exercises = [Bar(name, *sums(checks)) for name, checks in exercises.items()]
        self.misconceptions = [Bar(name, count, len(self.graded)) for name, count in learners.most_common()]


def dumps(results: Sequence[Result]) -> str:
    """Returns the page of a class; learners' text is escaped, and bounded as in every report."""
    return _page(
        "class.html.jinja",
        automatic_only=AUTOMATIC_ONLY,
        lessons=[LessonResults(*lesson) for lesson in by_lesson(results)],
    )


def preview(lesson: str, exercises: Sequence[ExerciseReport]) -> str:
    """Returns the page of a lesson before its release: each wrong answer with what its learner reads."""
    return _page("preview.html.jinja", lesson=lesson, exercises=exercises)


def similar(lessons: Sequence[tuple[str, int, Sequence[Pair]]]) -> str:
    """Returns the page of pairs with shared code: for each lesson its id, the number of submissions and the pairs."""
    return _page("similar.html.jinja", lessons=lessons, most=MOST_PAIRS)


def _page(template: str, **content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("grader.reports", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "legible": legible, "number": number, "phrase": phrase, "by_exercise": by_exercise,
        "perhaps": perhaps, "stub_messages": stub_messages, "mark": lambda check: MARKS[check.status][0],
    }  # fmt: skip
    return inert_markup(environment.get_template(template).render(**content))
