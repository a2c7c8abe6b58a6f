"""The verbs of the `grader` command."""

from __future__ import annotations

import os
import sys
from shlex import quote

from grader.cli import author, grade, instructor, learner
from grader.cli.app import app
from grader.cli.console import err, fail
from grader.core.faults import Fault
from grader.core.text import LogStream
from grader.course import CourseError

__all__ = ["app", "author", "grade", "instructor", "learner", "main"]


INSTRUCTORS = {"alembic", "bleach", "jsonschema", "nbgrader", "sqlalchemy"}  # of the extra `instructor`


def main() -> None:
    """Run the command; a fault in the course, of a file, or at the start is reported in a sentence."""
    # nbformat imports jsonschema, which imports this package if it can, to check a format that no schema here uses. The
    # package parses a grammar while it is imported, which takes more than a second.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not stream.isatty():  # a log, and it may be a CI service's
            setattr(sys, name, LogStream(stream))
    try:
        app()
    except ModuleNotFoundError as problem:
        if str(problem.name).partition(".")[0] not in INSTRUCTORS:
            raise
        text = f"This command needs {problem.name}. Run: {quote(sys.executable)} -m pip install 'jaxercise[instructor]'"
        raise SystemExit(fail(text).exit_code) from None
    except CourseError as problem:
        err.print(str(problem), soft_wrap=True)
        raise SystemExit(2) from None
    except Fault as problem:
        text = f"The grader cannot start: {problem.message}. The cause is above. `grader doctor` checks the machine."
        raise SystemExit(fail(text).exit_code) from None
    except OSError as problem:
        # A file of the course that may not be read or written, or a full disk, is no bug of ours.
        if not isinstance(problem.filename, str | bytes | os.PathLike):
            raise
        raise SystemExit(fail(f"{os.fsdecode(problem.filename)}: {problem.strerror}.").exit_code) from None
