"""Whether the gradebook knows a lesson as it is now: its graded cells, and what each is worth."""

from __future__ import annotations

from nbgrader.api import Assignment, GradeCell, Notebook, TaskCell
from sqlalchemy import Connection, select
from sqlalchemy.orm import Session

from grader.course import Course


def outdated(course: Course, lesson: str, database: Connection | Session) -> str | None:
    """What to do about a lesson that has changed since nbgrader released it, in a sentence; None when it has not.

    A lesson that was never released is nbgrader's to complain of. Raises CourseError and SQLAlchemyError.
    """
    then = _known(lesson, database)
    if lesson not in course.lesson_ids or not then:
        return None
    text = course.lesson(lesson)
    now = {check.id: check.points for exercise in text.exercises for check in exercise.checks}
    now |= {task.id: task.points for task in text.tasks}
    if now == then:
        return None
    names = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    return (
        f"{lesson} has changed since it was released ({', '.join(names)}), and the gradebook does not know it so. "
        f"Run: nbgrader generate_assignment {lesson}"
    )


def _known(lesson: str, database: Connection | Session) -> dict[str, float]:
    """What each graded cell and each task is worth, as it was released."""
    found: dict[str, float] = {}
    for kind in (GradeCell, TaskCell):
        query = select(kind.name, kind.max_score).join(Notebook, kind.notebook_id == Notebook.id)
        query = query.join(Assignment, Notebook.assignment_id == Assignment.id).where(Assignment.name == lesson)
        found |= {str(name): float(points) for name, points in database.execute(query)}
    return found
