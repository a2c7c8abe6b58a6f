"""The verbs of the `grader` command."""

from __future__ import annotations

import os

from grader.cli import author, carry, check, course_commands, distribute, grade, learner, watch_command
from grader.cli.app import app, err, fail
from grader.course import CourseError

__all__ = ["author", "carry", "check", "course_commands", "distribute", "grade", "learner", "main", "watch_command"]


def main() -> None:
    """Run the command; what is wrong with the course, or with a file, is told in a sentence."""
    try:
        app()
    except CourseError as problem:
        err.print(str(problem), markup=False, soft_wrap=True)
        raise SystemExit(2) from None
    except OSError as problem:
        # A file of the course that may not be read or written, a full disk: nothing of ours has a bug there.
        if not isinstance(problem.filename, str | bytes | os.PathLike):
            raise
        raise SystemExit(fail(f"{os.fsdecode(problem.filename)}: {problem.strerror}.").exit_code) from None
