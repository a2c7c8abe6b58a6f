"""course.toml's due dates, extensions and late policy in nbgrader: its database then contains the same penalties."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.plugins import LateSubmissionPlugin
from traitlets import Unicode

from grader.course import Course
from grader.course.deadlines import Deadlines


class CourseLatePolicy(LateSubmissionPlugin):
    """nbgrader's plugin for late submissions, with the policy in `[late]` of course.toml."""

    root = Unicode(help="The folder of the course.").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float:
        """Returns the points that a submission loses."""
        return Course(Path(self.root)).deadlines.policy.penalty(score, total_seconds_late)


def store_due_date(book: Gradebook, deadlines: Deadlines, lesson: str) -> None:
    """Stores the due date of a lesson, where course.toml contains one. Other due dates stay as they are."""
    due = deadlines.due.get(lesson)
    if due is not None:
        book.find_assignment(lesson).duedate = due.replace(tzinfo=None)
        book.db.commit()


def store_extension(book: Gradebook, deadlines: Deadlines, learner: str, lesson: str) -> None:
    """Stores a learner's extension, or removes it, where course.toml contains the due date of the lesson."""
    if lesson in deadlines.due:
        book.find_submission(lesson, learner).extension = extension(deadlines, learner, lesson)
        book.db.commit()


def extension(deadlines: Deadlines, learner: str, lesson: str) -> timedelta | None:
    """Returns how much later than for others a lesson is due for a learner; None without an extension."""
    due, own = deadlines.due.get(lesson), deadlines.due_for(learner, lesson)
    return own - due if due is not None and own is not None and own != due else None
