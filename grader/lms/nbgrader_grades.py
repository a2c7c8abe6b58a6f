"""Final grades read from nbgrader's database: what `nbgrader export` writes, and a person's points and comments."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import Any

from nbgrader import api
from sqlalchemy import Connection, func, select

from grader.core.final_grade import Grade, Person
from grader.core.points import total
from grader.course.deadlines import iso, seconds_late
from grader.lms.nbgrader_database import Database, NoGradebook

Key = tuple[str, str]  # learner and lesson


@dataclass
class StoredGrades:
    """The grades in a gradebook. `grades` has one for each graded submission, by learner and lesson. `max_score` and
    `due` are by lesson, `students` by learner."""

    max_score: dict[str, float] = field(default_factory=dict)
    due: dict[str, str] = field(default_factory=dict)
    students: dict[str, Person] = field(default_factory=dict)
    grades: dict[Key, Grade] = field(default_factory=dict)


def read_grades(database: Database) -> StoredGrades:
    """Reads all grades with a fixed number of queries. Raises NoGradebook."""
    if not database.there():
        raise NoGradebook(f"There is no gradebook {database.url} yet. Store grades first: grader grade DIR --gradebook")
    with database.reading() as connection:
        return _read(connection)


def _read(connection: Connection) -> StoredGrades:
    stored = StoredGrades()
    lessons, due = {}, {}
    for key, name, date in connection.execute(select(api.Assignment.id, api.Assignment.name, api.Assignment.duedate)):
        lessons[key], due[name] = name, None if date is None else date.replace(tzinfo=UTC)
        stored.max_score[name], stored.due[name] = 0.0, iso(date)
    for cell in (api.GradeCell, api.TaskCell):
        query = select(api.Notebook.assignment_id, func.sum(cell.max_score)).join(
            cell, cell.notebook_id == api.Notebook.id
        )
        for key, points in connection.execute(query.group_by(api.Notebook.assignment_id)):
            stored.max_score[lessons[key]] = total([stored.max_score[lessons[key]], points or 0.0])
    student = api.Student
    columns = (student.id, student.first_name, student.last_name, student.email, student.lms_user_id)
    for name, *about in connection.execute(select(*columns).order_by(student.id)):
        first, last, email, lms = (str(one or "") for one in about)
        stored.students[name] = Person(name, first, last, email, id=lms)
    cells: dict[str, list[Any]] = defaultdict(list)
    grade = api.Grade
    for notebook, *row in connection.execute(
        select(grade.notebook_id, grade.auto_score, grade.manual_score, grade.extra_credit, grade.needs_manual_grade)
    ):
        cells[notebook].append(row)
    comments: dict[str, list[tuple[str, str]]] = defaultdict(list)
    comment = api.Comment
    query = select(comment.notebook_id, api.BaseCell.name, comment.manual_comment)
    query = query.join(api.BaseCell, api.BaseCell.id == comment.cell_id).order_by(api.BaseCell.name)
    for notebook, cell, text in connection.execute(query.where(comment.manual_comment.is_not(None))):
        if text.strip():
            comments[notebook].append((cell, text))
    notebooks: dict[str, list[Any]] = defaultdict(list)
    of = api.SubmittedNotebook
    for notebook, submission, penalty in connection.execute(
        select(of.id, of.assignment_id, of.late_submission_penalty)
    ):
        notebooks[submission].append((notebook, penalty))
    submitted = api.SubmittedAssignment
    columns = (submitted.id, submitted.assignment_id, submitted.student_id, submitted.timestamp, submitted.extension)
    for submission, key, learner, timestamp, extension in connection.execute(select(*columns)):
        lesson, mine = lessons[key], notebooks[submission]
        rows = [row for notebook, _ in mine for row in cells[notebook]]
        if not rows:
            continue  # an extension was granted, and nothing was graded: for nbgrader too, a score of 0
        date = due[lesson]
        date = date + (extension or timedelta()) if date is not None else None
        late_s = seconds_late(date, iso(timestamp))
        # As nbgrader's `Grade.score`: extra credit counts only beside other points.
        scored = [row for row in rows if row[0] is not None or row[1] is not None]
        extra = [row[2] or 0.0 for row in scored]
        stored.grades[learner, lesson] = Grade(
            total([*(row[0] if row[1] is None else row[1] for row in scored), *extra]),
            stored.max_score[lesson],
            penalty=total(penalty or 0.0 for _, penalty in mine),
            source="gradebook",
            status="late" if late_s else "submitted",
            due=iso(date),
            lesson_due=stored.due[lesson],
            submitted=iso(timestamp),
            late_s=late_s,
            extended=bool(extension),
            manual=total(row[1] - (row[0] or 0.0) for row in scored if row[1] is not None),
            extra_credit=total(extra),
            waiting=sum(bool(row[3]) for row in rows),
            comments=tuple(one for notebook, _ in mine for one in comments[notebook]),
            person=stored.students.get(learner),
        )
    return stored
