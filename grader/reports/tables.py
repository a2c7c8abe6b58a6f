"""Results as CSV: the columns that nbgrader exports, and those that Canvas' gradebook imports."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from grader.core.points import number
from grader.core.result import Result
from grader.core.text import legible

NBGRADER = (
    "assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email",
    "raw_score", "late_submission_penalty", "score", "max_score",
)  # fmt: skip
CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def nbgrader(results: Sequence[Result]) -> str:
    """Returns a row for each notebook, as `nbgrader export` writes it; what only its database contains is left empty.

    A notebook at which the grader failed has no score either, so that an import changes no grade.
    """
    rows = []
    for result in results:
        scores = ("", "", "") if result.grader_failed else (result.score, 0.0, result.score)
        rows.append((result.lesson, "", "", result.learner, "", "", "", *scores, result.max_score))
    return _csv([NBGRADER, *rows])


def canvas(results: Sequence[Result]) -> str:
    """Returns a row for each learner and a column for each lesson, below the row of possible points.

    Learners are matched by login. A notebook without a verdict leaves its cell empty, which changes no grade.
    """
    lessons = {result.lesson: max(r.max_score for r in results if r.lesson == result.lesson) for result in results}
    given = {(r.learner, r.lesson): r.score for r in results if r.problem is None and not r.grader_failed}
    learners = dict.fromkeys(result.learner for result in results)
    possible = ("    Points Possible", "", "", "", "", *lessons.values())
    rows = [(name, "", "", name, "", *(given.get((name, lesson), "") for lesson in lessons)) for name in learners]
    return _csv([(*CANVAS, *lessons), possible, *rows])


def _csv(rows: Iterable[Iterable[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _cell(value: object) -> str:
    """Formats a number, or text so that no spreadsheet takes it for a formula."""
    if isinstance(value, int | float):
        return number(value)
    text = legible(str(value)).replace("\n", " ")
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
