"""Formgrader's page of a submission, with the code of hidden checks and the rubric items of tasks.

Only the person who grades may see this code. The page is rendered for each request, and the code is never written to a
notebook or a feedback page.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbgrader.utils import is_grade, is_task
from traitlets import Unicode

from grader.core.notebook import grade_id
from grader.course import Course, CourseError, rubric

TEMPLATES = Path(__file__).with_name("formgrader_page")


class FormgraderPage(Preprocessor):
    """A step of nbconvert's. It acts only on a submission that Formgrader shows, never on feedback."""

    root = Unicode(help="The folder of the course.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        resources["rubric"] = {}
        for name in ("student", "last_name", "first_name"):  # Formgrader's templates do not escape them
            if resources.get(name):
                resources[name] = html.escape(resources[name])
        if "submission_id" not in resources:
            return nb, resources
        hidden = self._hidden(resources["assignment_id"])
        for cell in nb.cells:
            name = grade_id(cell) or ""
            if is_task(cell):
                items = rubric.items(cell.source)
                resources["rubric"] |= {name: [[item.name, item.points] for item in items]} if items else {}
            elif is_grade(cell) and name in hidden:
                # An imported check contains its public part too.
                whole = "BEGIN HIDDEN TESTS" in hidden[name]
                cell.source = hidden[name] if whole else f"{cell.source}\n\n{hidden[name]}"
        return nb, resources

    def _hidden(self, lesson_id: str) -> dict[str, str]:
        """The source of each hidden check of a lesson; of none, if the course's text has an error."""
        try:
            lesson = Course(Path(self.root)).lesson(lesson_id)  # read each time: its text may change meanwhile
        except (CourseError, OSError) as problem:
            self.log.warning("Hidden checks are not shown: %s", problem)
            return {}
        return {check.id: check.source for one in lesson.exercises for check in one.checks if check.hidden}
