"""Stock nbgrader commands on a course of ours, and what its database then holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import PYTHONPATH, ROOT

_SUBMITTED = """
    join submitted_notebook on submitted_notebook.id = {table}.notebook_id
    join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
    join assignment on assignment.id = submitted_assignment.assignment_id
    join student on student.id = submitted_assignment.student_id"""
_CELL = "join base_cell on base_cell.id = {table}.cell_id" + _SUBMITTED
QUERIES = {
    "grade": """select student.id, assignment.name, base_cell.name, grade.auto_score, grade.manual_score,
        grade.extra_credit, grade.needs_manual_grade from grade """
    + _CELL.format(table="grade"),
    "comment": """select student.id, assignment.name, base_cell.name, comment.auto_comment, comment.manual_comment
        from comment """
    + _CELL.format(table="comment"),
    "notebook": """select student.id, assignment.name, submitted_assignment.timestamp,
        submitted_notebook.late_submission_penalty from submitted_notebook
        join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
        join assignment on assignment.id = submitted_assignment.assignment_id
        join student on student.id = submitted_assignment.student_id""",
    "student": "select id, first_name, last_name, email from student",
}  # fmt: skip
Rows = dict[str, list[tuple[object, ...]]]


def nbgrader(course: Path, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """A stock command, run at the top of the course."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": PYTHONPATH, "JUPYTER_CONFIG_DIR": str(course / "none")}
    command = [sys.executable, "-m", "nbgrader", *words]
    told: dict[str, Any] = {"cwd": course, "env": variables, "capture_output": True, "text": True, "timeout": timeout}
    return subprocess.run(command, check=False, **told)


def rows(course: Path) -> Rows:
    """All that nbgrader's database says of submissions, but for the numbers that it gives its rows."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as opened, opened:
        return {name: sorted(opened.execute(query).fetchall(), key=repr) for name, query in QUERIES.items()}


def configured(built: Path, root: Path) -> Path:
    """A copy of a built course, at `root`, as an instructor has it: with nbgrader's configuration."""
    shutil.copytree(built, root)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    return root
