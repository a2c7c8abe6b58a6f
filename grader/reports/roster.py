"""Rosters: the learners of a class, from a CSV file or from the gradebook."""

from __future__ import annotations

from pathlib import Path

from grader.core.final_grade import Person
from grader.course.deadlines import read_table, refuse

# Columns by the field of `Person`: ours, those of `nbgrader db student import`, and those of Canvas' gradebook.
COLUMNS = {
    "learner": ("learner", "sis login id", "student_id", "login", "id"),
    "first_name": ("first_name",),
    "last_name": ("last_name",),
    "email": ("email",),
    "name": ("student", "name"),
    "sis_id": ("sis user id",),
    "section": ("section",),
}


def read_roster(path: Path) -> dict[str, Person]:
    """Reads a CSV file with a column for the learner's folder, and optional columns for names and Canvas' numbers.

    The gradebook that Canvas exports is such a file. Raises BadTable.
    """
    people: dict[str, Person] = {}
    lines: dict[str, int] = {}
    problems = []
    rows = read_table(path, ())
    if not rows:
        return {}  # a first line alone, as `grader personal-data` leaves it
    head = set(rows[0][1])
    used = {name: next((one for one in names if one in head), "") for name, names in COLUMNS.items()}
    if not used["learner"]:
        refuse(path, ["line 1: there is no column `learner` with the names of the learners' folders"])
    # In Canvas' file and in nbgrader's, "id" and "lms_user_id" are the number that Canvas gives a learner.
    number = "lms_user_id" if "lms_user_id" in head else "id" if used["learner"] != "id" else ""
    for line, row in rows:
        learner = row[used["learner"]]
        if row.get("student", "").strip() in ("Points Possible", "Student, Test"):
            continue  # rows of Canvas
        if not learner or "/" in learner:
            problems.append(f"line {line}: `{learner[:50]}` cannot be a learner's folder")
        elif learner in lines:
            problems.append(f"line {line}: `{learner[:50]}` is already in line {lines[learner]}")
        else:
            lines[learner] = line
            about = {name: row.get(column, "") for name, column in used.items() if column}
            people[learner] = Person(**about, id=row.get(number, ""))
    refuse(path, problems)
    return people
