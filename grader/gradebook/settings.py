"""What nbgrader has to be told so that a course of ours is a course of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbgrader.preprocessors import Execute


def configure(config: Any, root: Path) -> None:
    """Fill in nbgrader's configuration for the course in `root`; what is set afterwards holds.

    Source notebooks come from `grader build`, release notebooks are the ones under `exercises/`, and learners' code is
    run by our examiner instead of in the kernel that nbgrader would start.
    """
    from grader.gradebook.examine import Examine

    config.CourseDirectory.root = str(root)
    config.CourseDirectory.source_directory = "build/source"
    config.CourseDirectory.release_directory = "exercises"
    config.CourseDirectory.submitted_directory = "submitted"
    config.CourseDirectory.autograded_directory = "build/autograded"
    config.CourseDirectory.feedback_directory = "build/feedback"
    config.CourseDirectory.solution_directory = "build/solution"
    # A check cell that a learner deleted is put back, else its grade would wait for a person for ever.
    config.OverwriteCells.add_missing_cells = True
    config.Autograde.autograde_preprocessors = [Examine if step is Execute else step for step in _steps()]


def _steps() -> list[type]:
    from nbgrader.converters import Autograde

    return list(Autograde.autograde_preprocessors.default_args[0])
