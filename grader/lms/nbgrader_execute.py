"""nbgrader's Execute step, replaced: our examiner judges the notebook, and each grade cell is told how its check ended.

What runs a learner's code is confined, and the hidden cells are nowhere near it. The rest of `nbgrader autograde`
(its database, late penalties, manual grading, feedback) goes on from the outputs as it always does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution, is_task
from traitlets import Bool

from grader.core.faults import UnconfinedError
from grader.core.notebook import grade_id
from grader.core.result import CheckResult, Result
from grader.course import Course
from grader.grading import batch
from grader.grading.fingerprint import environment_fingerprint
from grader.lms.feedback_page import write_down
from grader.lms.submission_notebook import handed_out

Resources = dict[str, Any]


TO_ALLOW = "To grade notebooks that you trust, set c.ExecuteByExaminer.allow_unsandboxed = True in nbgrader_config.py."


class NotGraded(Exception):
    """The grader or the course was at fault: no verdict on the learner, so nothing may be stored."""


class ExecuteByExaminer(NbGraderPreprocessor):
    """Fills in the outputs of grade cells from our examiner's verdict on the notebook as it was handed in."""

    allow_unsandboxed = Bool(False, help="Run learners' code even where limits alone confine it.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Resources) -> tuple[NotebookNode, Resources]:
        """Judge the submission that nbgrader is at. Raises `NotGraded`."""
        told = resources["nbgrader"]
        result = self.examined(told["student"], told["assignment"], told["notebook"])
        checks = {check.id: check for check in result.checks}
        texts = self.texts_handed_out(told["assignment"])
        for cell in nb.cells:
            if cell.cell_type != "code":
                continue
            cell.outputs, cell.execution_count = [], None
            name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            if is_grade(cell) and not is_solution(cell):  # an answer with points of its own is for a person
                if result.problem is None and name not in checks:
                    # To nbgrader a cell without output has passed.
                    raise NotGraded(f"{name} is no check of the course. Release it: nbgrader generate_assignment")
                cell.outputs = _outputs(checks.get(name), result.problem)
                # nbgrader has put the check's own text there, and feedback pages would show it.
                cell.source = texts.get(name, "")
        if any(is_task(cell) for cell in nb.cells):
            _leave_to_a_person(resources, readable=result.problem is None)
        write_down(nb, self.course().lesson(told["assignment"]), result)
        return nb, resources

    def course(self) -> Course:
        """The course whose directory nbgrader works in."""
        return Course.find(Path(CourseDirectory(parent=self).root))

    def texts_handed_out(self, lesson: str) -> dict[str, str]:
        """The text of each cell of the course's as learners have it, by its id."""
        return texts_handed_out(self.course(), lesson)

    def examined(self, learner: str, lesson: str, notebook: str) -> Result:
        """Our verdict on what `learner` handed in, from an earlier run where nothing has changed since.

        When one learner's has to be graded, everybody's is, side by side: nbgrader asks for one after the other.
        """
        directory = CourseDirectory(parent=self)
        course = Course.find(Path(directory.root))
        folder = Path(directory.format_path(directory.submitted_directory, learner, lesson))
        entry = batch.Entry(folder / f"{notebook}.ipynb", learner, lesson)
        version = environment_fingerprint()
        before = batch.graded_before(course, [entry], version)
        if entry in before:
            return _sound(before[entry])
        entries = [entry]
        if directory.student_id == "*":
            entries += [other for other in batch.find(folder.parents[1], course, lesson) if other.learner != learner]
        before = batch.graded_before(course, entries, version)
        self.log.info("Grading %d notebooks of %s", len(entries) - len(before), lesson)
        try:
            return _sound(
                batch.grade(course, entries, before=before, edition=version, allow_unsandboxed=self.allow_unsandboxed)[
                    0
                ]
            )
        except UnconfinedError as problem:
            raise NotGraded(f"Nothing was graded. {problem} {TO_ALLOW}") from None


def texts_handed_out(course: Course, lesson: str) -> dict[str, str]:
    """The text of each cell of the course's as learners have it, by its id."""
    return {grade_id(cell) or "": cell["source"] for cell in handed_out(course, lesson)["cells"]}


class ExecuteWithResult(ExecuteByExaminer):
    """The same step with the verdict in hand, for one submission."""

    def __init__(self, result: Result, course: Course, texts: dict[str, str], **settings: Any) -> None:
        super().__init__(**settings)
        self._result, self._course, self._texts = result, course, texts

    def course(self) -> Course:
        return self._course

    def examined(self, learner: str, lesson: str, notebook: str) -> Result:
        return _sound(self._result)

    def texts_handed_out(self, lesson: str) -> dict[str, str]:
        return self._texts


def _leave_to_a_person(resources: Resources, readable: bool) -> None:
    """Tasks wait for a person, but for those in what cannot be read: there is nothing to wait for.

    nbgrader says the same of them when a notebook is missing, and never takes it back. What a person gave stays.
    """
    told = resources["nbgrader"]
    with Gradebook(told["db_url"]) as book:
        notebook = book.find_submission_notebook(told["notebook"], told["assignment"], told["student"])
        tasks = {task.id for task in book.find_notebook(told["notebook"], told["assignment"]).task_cells}
        for grade in notebook.grades:
            if grade.cell_id in tasks and grade.manual_score is None:
                grade.auto_score, grade.needs_manual_grade = (None, True) if readable else (0, False)
        book.db.commit()


def _sound(result: Result) -> Result:
    if result.grader_failed:
        raise NotGraded(result.fault_text)
    return result


def _outputs(check: CheckResult | None, problem: str | None) -> list[NotebookNode]:
    """No output means full points to nbgrader, an error none."""
    if check is None:
        return [_error("not graded", problem or "")]
    if check.status == "passed":
        return []
    perhaps = [f"Perhaps: {check.misconception}"] if check.misconception else []
    return [_error(check.status, "\n".join([check.message or check.status, *perhaps]))]


def _error(status: str, text: str) -> NotebookNode:
    return new_output("error", ename=status, evalue=text, traceback=[text])
