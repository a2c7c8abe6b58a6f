"""The verbs of the `grader` command."""

from __future__ import annotations

from grader.cli import course, grading
from grader.cli.app import app, err
from grader.course import CourseError

__all__ = ["course", "grading", "main"]


def main() -> None:
    """Run the command; what is wrong with the course is told in its own words."""
    try:
        app()
    except CourseError as problem:
        err.print(str(problem), markup=False, soft_wrap=True)
        raise SystemExit(2) from None
