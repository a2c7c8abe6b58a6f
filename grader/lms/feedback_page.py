"""The page that a learner gets back: points by exercise, each check with its message, their code, what a person said.

`nbgrader generate_feedback` makes it, from the autograded notebook, in which `Examine` has written the verdict down,
and from the points and comments in nbgrader's database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from nbconvert.exporters import Exporter
from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades
from nbgrader.utils import is_grade, is_locked, is_solution, is_task

from grader.core.points import number, total
from grader.core.result import Result
from grader.core.text import MARKS, legible
from grader.course import Lesson
from grader.course.exercises import Check
from grader.lms import safe_html

VERDICT = "jaxercise_verdict"
GRADE = "jaxercise_grade"
MOST_OF_OWN = 300_000  # characters of cells of a learner's own; what is judged is always shown
NO_RESPONSE = "No response."  # nbgrader's own comment on an answer that is as it was given out; its checks say so too
OTHERS = ""  # the section of what stands before the first exercise and after the last


def write_down(nb: NotebookNode, lesson: Lesson, result: Result) -> None:
    """Put the verdict into the notebook; whatever a learner wrote there is gone."""
    parts = sorted((part.line, part.id, part.title) for kind in (lesson.exercises, lesson.tasks) for part in kind)
    told = result.to_json()
    nb.metadata[VERDICT] = {
        "title": lesson.title,
        "exercises": [[name, title] for _, name, title in parts],
        "checks": told["checks"] or [_not_graded(check) for one in lesson.exercises for check in one.checks],
        "notes": told["notes"],
        "problem": told["problem"],
    }


def _not_graded(check: Check) -> dict[str, Any]:
    same = {name: getattr(check, name) for name in ("id", "exercise", "title", "hidden")}
    return {**same, "status": "not graded", "message": "", "misconception": None}


class GetGradesAndHands(GetGrades):
    """nbgrader's step that fetches points and comments, and which points are a person's or wait for one."""

    def _get_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        super()._get_score(cell, resources)
        names = (cell.metadata.nbgrader.grade_id, self.notebook_id, self.assignment_id, self.student_id)
        grade = self.gradebook.find_grade(*names)
        by_hand = grade.manual_score is not None or bool(grade.extra_credit)
        waiting = grade.auto_score is None and grade.manual_score is None
        cell.metadata[GRADE] = {"by_hand": by_hand, "waiting": waiting}


class FeedbackPage(Exporter):
    """nbconvert's way of asking for the page."""

    file_extension = ".html"
    output_mimetype = "text/html"

    def from_notebook_node(self, nb: NotebookNode, resources: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        """The page, and what nbconvert passes on."""
        nb, resources = super().from_notebook_node(nb, resources, **options)
        return page(nb, resources["nbgrader"]), resources


@dataclass(frozen=True)
class Part:
    """One piece of an exercise's section. `kind` is check, task, code or prose; what does not apply is empty.

    `html` is safe: `safe_html` made it. `own` is a cell that the course does not have.
    """

    kind: str
    html: str = ""
    own: bool = False
    title: str = ""
    status: str = ""
    hidden: bool = False
    message: str = ""
    graded: bool = False
    points: float = 0.0
    most: float = 0.0
    by_hand: bool = False
    waiting: bool = False
    comment: str = ""

    @property
    def mark(self) -> str:
        """The sign that the terminal shows too; points of a person's count for more than a check's verdict."""
        if self.by_hand and self.points >= self.most:
            return MARKS["passed"][0]
        return MARKS[self.status][0] if self.status in MARKS else ""


@dataclass
class Section:
    """An exercise, or what stands outside of all."""

    id: str
    title: str
    parts: list[Part] = field(default_factory=list)
    misconception: str = ""

    @property
    def graded(self) -> list[Part]:
        """Those that give points."""
        return [part for part in self.parts if part.graded]

    @property
    def points(self) -> float:
        """What was earned here."""
        return total(part.points for part in self.graded)

    @property
    def most(self) -> float:
        """What could be."""
        return total(part.most for part in self.graded)


def page(nb: NotebookNode, told: Mapping[str, Any]) -> str:
    """The page for an autograded notebook with its points in it. `told` is what nbgrader knows of the submission:
    assignment, student, score (after what lateness cost), max_score, late_penalty."""
    verdict = nb.metadata.get(VERDICT, {})
    if verdict.get("problem"):  # the page then says why, and shows points alone
        nb.cells = [cell for cell in nb.cells if "nbgrader" in cell.metadata]
    sections, left_out = _sections(nb, verdict)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"legible": legible, "number": lambda points: number(round(float(points), 2))}
    template = files(__package__).joinpath("feedback.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        told=told,
        title=verdict.get("title", ""),
        problem=verdict.get("problem"),
        notes=verdict.get("notes", []),
        sections=[section for section in sections if section.parts],
        exercises=[section for section in sections if section.graded],
        waiting=total(part.most for section in sections for part in section.graded if part.waiting),
        left_out=left_out,
        colours=safe_html.colours(),
    )


def _sections(nb: NotebookNode, verdict: Mapping[str, Any]) -> tuple[list[Section], int]:
    """The notebook's cells by exercise, and how many of a learner's own were left out for their length."""
    sections = {name: Section(name, title) for name, title in verdict.get("exercises", [])}
    sections[OTHERS] = Section(OTHERS, "Outside of the exercises")
    checks = {check["id"]: check for check in verdict.get("checks", [])}
    room, left_out = MOST_OF_OWN, 0
    here = OTHERS
    for cell in nb.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id is not None:
            here = _exercise(grade_id, cell, checks, sections, here)
            check = checks.get(grade_id, {})
            sections[here].misconception = sections[here].misconception or check.get("misconception") or ""
            sections[here].parts += _graded(cell, check)
        elif cell.source.strip():
            room -= len(cell.source)
            left_out += room < 0
            sections[here].parts += [_written(cell, own=True)] if room >= 0 else []
    for section in sections.values():
        section.parts = list(_said_once(section.parts))
    return [*(section for name, section in sections.items() if name != OTHERS), sections[OTHERS]], left_out


def _exercise(
    grade_id: str, cell: NotebookNode, checks: Mapping[str, Any], sections: dict[str, Section], here: str
) -> str:
    """The section that a cell of the course's belongs to."""
    if grade_id in checks:
        return str(checks[grade_id]["exercise"])
    for ending in ("", "-task", "-why"):
        if grade_id.removesuffix(ending) in sections:
            return grade_id.removesuffix(ending)
    if is_solution(cell):  # graded before verdicts were written down, or no exercise of ours
        return sections.setdefault(grade_id, Section(grade_id, grade_id)).id
    return here if is_grade(cell) or is_task(cell) else OTHERS


def _graded(cell: NotebookNode, check: Mapping[str, Any]) -> list[Part]:
    """What a cell of the course's shows: a check, or what a learner wrote into it. Prose and setup are left out."""
    nbgrader, hands = cell.metadata.nbgrader, cell.metadata.get(GRADE, {})
    comment = nbgrader.get("comment") or ""
    told: dict[str, Any] = {"comment": safe_html.markdown(comment) if comment not in ("", NO_RESPONSE) else ""}
    if is_grade(cell) or is_task(cell):
        told |= {
            "graded": True,
            "points": float(nbgrader.get("score") or 0),
            "most": float(nbgrader.get("points") or 0),
        }
        told |= {"by_hand": hands.get("by_hand", False), "waiting": hands.get("waiting", False)}
    if is_task(cell):  # what answers it stands in the cells below
        return [Part("task", **told)]
    if is_solution(cell):
        return [_written(cell, **told)]
    if is_grade(cell):
        return [Part("check", **_verdict(cell, check), **told)]
    return [] if is_locked(cell) else [_written(cell, own=True)]


def _verdict(cell: NotebookNode, check: Mapping[str, Any]) -> dict[str, Any]:
    """How a check ended; where no verdict is written down, what the cell's output says of it."""
    if check:
        return {name: check[name] for name in ("title", "status", "hidden", "message")}
    error = next((output for output in cell.get("outputs", []) if output.output_type == "error"), None)
    status, message = (error.ename, error.evalue) if error else ("passed", "")
    return {"title": cell.metadata.nbgrader.grade_id, "status": status, "message": message}


def _written(cell: NotebookNode, **told: Any) -> Part:
    """What a learner wrote, or a person is to look at."""
    if cell.cell_type == "code":
        return Part("code", safe_html.code(cell.source), **told)
    if cell.cell_type == "markdown":
        return Part("prose", safe_html.markdown(cell.source, cell.get("attachments")), **told)
    return Part("prose", safe_html.plain(legible(cell.source)), **told)


def _said_once(parts: list[Part]) -> Iterator[Part]:
    """A message that stands above already is not told again: one fault fails several checks."""
    said: set[str] = set()
    for part in parts:
        again = part.message in said
        said |= {part.message} if part.message else set()
        yield Part(**{**vars(part), "message": "The same as above."}) if again else part
