"""Turns authored cells into notebooks: nbgrader's source notebook of a lesson's exercises, and a lesson to open."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from grader.core.notebook import Notebook, NotebookCell
from grader.course import prediction_cells
from grader.course.exercises import GRADING, Check, Exercise, Lesson, Task
from grader.course.nbgrader_source import ROLES, ImportedText
from grader.course.percent import Cell
from grader.course.rules_parts import LABELS
from grader.course.tree import Course

KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# A magic is authored as a comment, so that the script stays Python: `# %timeit f(x)`, and `# %%time` for a cell.
MAGIC = re.compile(r"^(\s*)# (%{1,2}[A-Za-z])", re.MULTILINE)
# Authors write the labels on lines of their own; Markdown would run them into one paragraph.
LABEL = re.compile(rf"(?<=[^\n])\n(?=\*\*({'|'.join(LABELS)})\b)")
# JupyterLab folds the code of the cell that shows a prediction's buttons; without this package the lesson runs on.
BUTTONS = {"jupyter": {"source_hidden": True}, "tags": ["raises-exception"]}
LONGEST_CELL_ID = 64
YOUR_ANSWER = "*Write your answer here, and in more cells below if you like.*"
COMMENT_WIDTH = 79  # what a cell shows beside JupyterLab's file browser


def exercise_notebook(lesson: Lesson, course: Course, alone: bool = False) -> Notebook:
    """nbgrader's source notebook: solutions between its markers, hidden checks between its markers.

    A notebook that goes out `alone`, without the hidden checks beside it, does not speak of grading it oneself.
    """
    cells: list[NotebookCell] = []
    counts = {"text": 0, "setup": 0}
    by_id = {exercise.id: exercise for exercise in lesson.exercises}
    by_hand = {task.id: task for task in lesson.tasks}
    checks = {check.line: check for exercise in lesson.exercises for check in exercise.checks}
    for cell in lesson.cells:
        exercise = by_id.get(cell.id or "")
        if cell.kind in counts:
            counts[cell.kind] += 1
            name = cell.kind if counts[cell.kind] == 1 else f"{cell.kind}-{counts[cell.kind]}"
            source = cell.source if cells else _opening(cell.source, lesson, course)
            cells.append(_prose(source, name) if cell.prose else _code(source, name, locked=True))
        elif cell.id in by_hand:
            cells += _by_hand(by_hand[cell.id], course)
        elif exercise is None:
            raise AssertionError(f"no rule let a {cell.kind} cell pass without an id")
        elif cell.kind == "task":
            cells.append(_prose(_task(cell.source, exercise, course), f"{exercise.id}-task"))
        elif cell.kind == "answer":
            cells.append(_code(cell.source, exercise.id, solution=True))
        elif cell.line in checks:
            cells.append(_check(checks[cell.line], lesson, alone))
            if checks[cell.line] == exercise.checks[-1]:
                cells.append(_prose(_why(exercise.why), f"{exercise.id}-why"))
    cells += [_prose(_closing(lesson, alone), "closing"), _grading(alone)]
    return _notebook(cells, {"lesson": lesson.id, "holds": "exercises"})


def lesson_notebook(lesson_id: str, cells: Iterable[Cell]) -> Notebook:
    """The lesson's own notebook, without outputs."""
    built: list[NotebookCell] = []
    taken: set[str] = set()
    for cell in cells:
        if cell.kind == "predict":
            asked = prediction_cells.read(cell)
            held = {"jaxercise": {"prediction": prediction_cells.held(asked)}}
            built.append(_cell("markdown", prediction_cells.markdown(asked), _free(f"predict-{cell.id}", taken), held))
            built.append(_cell("code", prediction_cells.asking(asked), _free(f"choose-{cell.id}", taken), BUTTONS))
            continue
        source = cell.source if cell.prose else MAGIC.sub(r"\1\2", cell.source)
        name = _free(f"{cell.kind}-{hashlib.sha256(source.encode()).hexdigest()[:8]}", taken)
        metadata = {"tags": list(cell.attributes["tags"])} if "tags" in cell.attributes else {}
        built.append(_cell("markdown" if cell.prose else "code", source, name, metadata))
    return _notebook(built, {"lesson": lesson_id, "holds": "lesson"})


def adopted_notebook(adopted: ImportedText) -> Notebook:
    """nbgrader's source notebook of an imported text: the cells that were imported, in their roles."""
    built: list[NotebookCell] = []
    taken = {_cell_id(cell.id) for cell in adopted.cells if cell.id is not None}
    for cell in adopted.cells:
        if cell.id is not None:
            said: dict[str, Any] = dict.fromkeys(ROLES[cell.kind], True)
            if "points" in cell.attributes:
                said["points"] = cell.attributes["points"]
            made = _graded(cell.form, cell.source, cell.id, **said)
        else:
            stem = f"{cell.form}-{hashlib.sha256(cell.source.encode()).hexdigest()[:8]}"
            made = _cell(cell.form, cell.source, _free(stem, taken), {})
        made["metadata"] |= json.loads(cell.attributes.get("metadata", "{}"))
        if "tags" in cell.attributes:
            made["metadata"]["tags"] = list(cell.attributes["tags"])
        if "attachments" in cell.attributes:
            made["attachments"] = adopted.attachments[cell.attributes["attachments"]]
        built.append(made)
    ours = {"lesson": adopted.id, "holds": "imported exercises"}
    return {**_notebook(built, {}), "metadata": {**adopted.metadata, "jaxercise": ours}}


def _free(stem: str, taken: set[str]) -> str:
    """A cell id that no cell before has."""
    name, count = _cell_id(stem), 1
    while name in taken:
        count += 1
        name = _cell_id(f"{stem}-{count}")
    taken.add(name)
    return name


def _notebook(cells: list[NotebookCell], ours: Mapping[str, str]) -> Notebook:
    return {"cells": cells, "metadata": {**KERNEL, "jaxercise": dict(ours)}, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, source: str, cell_id: str, metadata: Mapping[str, Any]) -> NotebookCell:
    cell: NotebookCell = {"cell_type": kind, "id": cell_id, "metadata": dict(metadata), "source": source}
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


def _graded(kind: str, source: str, grade_id: str, **said: Any) -> NotebookCell:
    nbgrader = {"schema_version": 3, "grade": False, "locked": False, "solution": False, "task": False}
    return _cell(kind, source, _cell_id(grade_id), {"nbgrader": {**nbgrader, "grade_id": grade_id, **said}})


def _by_hand(task: Task, course: Course) -> list[NotebookCell]:
    """nbgrader's task cell, and a cell of the learner's own to begin with."""
    said = _graded("markdown", _task(task.source, task, course), task.id, task=True, locked=True)
    said["metadata"]["nbgrader"]["points"] = _whole(task.points)
    return [said, _cell("markdown", YOUR_ANSWER, _cell_id(f"{task.id}-answer"), {})]


def _prose(source: str, grade_id: str) -> NotebookCell:
    return _graded("markdown", source, grade_id, locked=True)


def _code(source: str, grade_id: str, **said: Any) -> NotebookCell:
    return _graded("code", source, grade_id, **said)


def _cell_id(name: str) -> str:
    """A notebook format's cell id: at most 64 characters."""
    if len(name) <= LONGEST_CELL_ID:
        return name
    return f"{name[: LONGEST_CELL_ID - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _check(check: Check, lesson: Lesson, alone: bool) -> NotebookCell:
    source = check.source
    if check.hidden:
        title = f"Hidden check, {_points(check.points)}: {check.title}"
        said = [
            *textwrap.wrap(title, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# "),
            "# It runs when the notebook is graded" + ("." if alone else f": grader check {lesson.id}"),
        ]
        source = "\n".join([*said, "### BEGIN HIDDEN TESTS", check.source, "### END HIDDEN TESTS"])
    cell = _code(source, check.id, grade=True, locked=True, points=_whole(check.points))
    if not check.hidden:
        cell["metadata"]["tags"] = ["raises-exception"]  # so that Run All goes on to the other checks
    return cell


def _whole(points: float) -> float:
    return int(points) if float(points).is_integer() else points


def _points(points: float) -> str:
    return f"{points:g} point{'' if points == 1 else 's'}"


def _below_heading(source: str, line: str) -> str:
    head, _, rest = source.partition("\n")
    return "\n\n".join(piece for piece in (head, line, rest.strip("\n")) if piece)


def _opening(source: str, lesson: Lesson, course: Course) -> str:
    planned = course.planned(lesson.id)
    count = len(lesson.exercises)
    minutes = sum(exercise.minutes for exercise in lesson.exercises) + sum(task.minutes for task in lesson.tasks)
    line = (
        f"*The exercises of lesson {_lesson_link(lesson.id, course)} ({planned.part}): {count} "
        f"exercise{'' if count == 1 else 's'}, {_points(lesson.points)}{_a_person(lesson)}, about {minutes} minutes.*"
    )
    return _below_heading(source, line)


def _a_person(lesson: Lesson) -> str:
    """What is not for the grader to give, where there is such a thing."""
    points = sum(task.points for task in lesson.tasks)
    return f", and {_points(points)} that a person gives" if points else ""


def _task(source: str, exercise: Exercise | Task, course: Course) -> str:
    lessons = sorted((skill for skill in exercise.skills if skill in course.ids), key=course.ids.index)
    others = [f"`{skill}`" for skill in exercise.skills if skill not in course.ids]
    uses = ", ".join([*(_lesson_link(lesson, course) for lesson in lessons), *others])
    stars = "★" * exercise.stars + "☆" * (3 - exercise.stars)
    who = " · graded by a person" if isinstance(exercise, Task) else ""
    line = f"{stars} · about {exercise.minutes} minutes · {_points(exercise.points)}{who} · uses {uses}"
    return _below_heading(LABEL.sub("\n\n", source), line)


def _lesson_link(lesson_id: str, course: Course) -> str:
    return f"[{lesson_id}](../../notebooks/{lesson_id}.ipynb)" if lesson_id in course.text_ids else lesson_id


def _why(source: str) -> str:
    # Without the blank lines some renderers show the text inside as it stands, asterisks and all.
    return f"<details><summary>After it passes: why it works</summary>\n\n{source}\n\n</details>"


def _closing(lesson: Lesson, alone: bool) -> str:
    hidden = sum(check.hidden for exercise in lesson.exercises for check in exercise.checks)
    hidden_ones = f"{hidden} hidden one{'' if hidden == 1 else 's'}"
    how = "runs all of them from the top in a fresh kernel" if alone else f"runs all checks, the {hidden_ones} too"
    what = (
        f"That is what counts. The {hidden_ones} run when the notebook is graded."
        if alone
        else "It says what each exercise is worth and what is missing."
    )
    return "\n".join(
        [
            "## Check your answers",
            "",
            "Run the check cells above as often as you like; each says what is missing. "
            f"Then save the notebook (Ctrl+S) and run the last cell: it {how}. "
            "In a terminal (File > New > Terminal) the same is",
            "",
            "```",
            f"python -m grader.checks {lesson.id}" if alone else f"grader check {lesson.id}",
            "```",
            "",
            f"{what} {_points(lesson.points)} in all{_a_person(lesson)}.",
        ]
    )


def _grading(alone: bool) -> NotebookCell:
    """The last cell; without this package, or with an older one, Run All goes on past it."""
    what = "runs all checks on what was saved last" if alone else "grades what was saved last, hidden checks too"
    said = f"# Save first (Ctrl+S): this {what}.\nfrom grader.learning import grade\n\ngrade()"
    cell = _code(said, GRADING, locked=True)
    cell["metadata"]["tags"] = ["raises-exception"]
    return cell
