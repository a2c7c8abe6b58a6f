"""HTML pages without scripts: a class with its points and misconceptions, and a lesson's preview for instructors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from grader.core.points import number, phrase, total
from grader.core.result import MARKS, CheckResult, Result, perhaps
from grader.core.text import inert_markup, legible
from grader.prove.proof import ExerciseReport
from grader.reports.final_grades import statement
from grader.reports.similar import Pair
from grader.reports.terminal import AUTOMATIC_ONLY, by_exercise, by_lesson, grade_lines, graded, stub_messages

PER_PAGE, MOST_ON_ONE_PAGE = 250, 1_000  # notebooks
NO_PAGES: dict[str, Any] = {"pages": {}, "anchors": {}, "per_page": PER_PAGE}
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
        self.missing = sum(result.final.status == "missing" for result in results)
        exercises: dict[str, list[CheckResult]] = {}
        learners: Counter[str] = Counter()
        for result in self.graded:
            for name, checks in by_exercise(result.checks):
                exercises.setdefault(name, []).extend(checks)
            learners.update({f"{c.exercise}: {c.misconception}": 1 for c in result.checks if c.misconception})
        sums = lambda checks: (total(c.points for c in checks), total(c.max_points for c in checks))
        self.exercises = [Bar(name, *sums(checks)) for name, checks in exercises.items()]
        self.misconceptions = [Bar(name, count, len(self.graded)) for name, count in learners.most_common()]


def dumps(results: Sequence[Result], people: Sequence[str] = ()) -> str:
    """Returns the page of a class; learners' text is escaped, and bounded as in every report. `people` are sentences
    about missing and late learners."""
    return _page(
        "class.html.jinja",
        statement=statement(results, AUTOMATIC_ONLY),
        people=people,
        lessons=[LessonResults(*lesson) for lesson in by_lesson(results)],
        **NO_PAGES,
    )


def dump_pages(results: Sequence[Result], index: str, people: Sequence[str] = ()) -> dict[str, str]:
    """Returns the pages of a large class by file name. `index` is the name of the first one, which lists every learner
    with the score and a link. The others contain up to `PER_PAGE` notebooks each."""
    told = statement(results, AUTOMATIC_ONLY)
    stem = index.removesuffix(".html")
    lessons = [LessonResults(*lesson) for lesson in by_lesson(results)]
    links: dict[tuple[str, str], str] = {}
    pages: dict[str, str] = {}
    for lesson in lessons:
        parts = [lesson.results[at : at + PER_PAGE] for at in range(0, len(lesson.results), PER_PAGE)]
        names = [f"{stem}-{lesson.id}-{place}.html" for place in range(1, len(parts) + 1)]
        for place, (name, part) in enumerate(zip(names, parts, strict=True)):
            anchors = {(one.learner, one.lesson): f"n{at}" for at, one in enumerate(part, 1)}
            links |= {key: f"{quote(name)}#{anchor}" for key, anchor in anchors.items()}
            around = {"Previous page": place - 1, "Next page": place + 1}
            pages[name] = _page(
                "class_part.html.jinja", statement=told, place=place + 1, last=len(parts),
                lesson={"id": lesson.id, "results": part}, index=quote(index), anchors=anchors,
                beside=[(label, quote(names[at])) for label, at in around.items() if 0 <= at < len(names)],
            )  # fmt: skip
    shown = {**NO_PAGES, "pages": links}
    return {index: _page("class.html.jinja", statement=told, people=people, lessons=lessons, **shown), **pages}


def _score(result: Result) -> str:
    grade = result.final
    if grade.status == "missing":
        return "missing"
    if result.problem is not None and grade.source == "results":
        return "not graded"
    if grade.score is None:
        return "no score"
    late = ", late" if grade.status == "late" else ""
    return f"{number(grade.score)} of {number(grade.max_score)}{late}"


def preview(lesson: str, exercises: Sequence[ExerciseReport]) -> str:
    """Returns the page of a lesson before its release: each wrong answer with what its learner reads."""
    return _page("preview.html.jinja", lesson=lesson, exercises=exercises)


def similar(lessons: Sequence[tuple[str, int, Sequence[Pair]]]) -> str:
    """Returns the page of pairs with shared code: for each lesson its id, the number of submissions and the pairs."""
    return _page("similar.html.jinja", lessons=lessons, most=MOST_PAIRS)


def workshop(
    day: date, exercises: Sequence[dict[str, Any]], predictions: Sequence[dict[str, Any]], learners: int, judges: bool,
    table: Sequence[Sequence[object]],
) -> str:  # fmt: skip
    """Returns the page of a workshop that is over, as `grader.board` counts its exercises and predictions."""
    return _page(
        "workshop.html.jinja", day=day, exercises=exercises, predictions=predictions, learners=learners, judges=judges,
        table=table,
    )  # fmt: skip


def _page(template: str, **content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("grader.reports", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "legible": legible, "number": number, "phrase": phrase, "by_exercise": by_exercise,
        "perhaps": perhaps, "stub_messages": stub_messages,
        "score": _score, "grade_lines": grade_lines, "mark": lambda check: MARKS[check.status][0],
    }  # fmt: skip
    return inert_markup(environment.get_template(template).render(**content))
