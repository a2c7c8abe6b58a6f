"""Build notebooks from authored cells: a lesson's exercises as nbgrader's source notebook, its text, its answers."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any
from urllib.parse import quote

from grader.core.notebook import Notebook, NotebookCell
from grader.core.points import phrase, total
from grader.course import reader
from grader.course.exercises import GRADING, INSTALL, Check, Exercise, Lesson, Task
from grader.course.nbgrader_lesson import ROLES, ImportedText
from grader.course.percent import Cell
from grader.course.rules import LABELS
from grader.course.tree import REPOSITORY, Course

KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# A magic is authored as a comment, so that the script stays Python: `# %timeit f(x)`, and `# %%time` for a cell.
MAGIC = re.compile(r"^(\s*)# (%{1,2}[A-Za-z])", re.MULTILINE)
# Authors write the labels on lines of their own; Markdown would run them into one paragraph.
LABEL = re.compile(rf"(?<=[^\n])\n(?=\*\*({'|'.join(LABELS)})\b)")
# JupyterLab folds the code of the cell that shows a prediction's buttons; without this package the lesson runs on.
RUN_ON = "raises-exception"  # Run All goes on after an exception in the cell
BUTTONS = {"jupyter": {"source_hidden": True}, "tags": [RUN_ON]}
# Folded in JupyterLab, where it does nothing, and left out of the site.
FOLDED = {"jupyter": {"source_hidden": True}, "tags": ["cloud"]}
INSTALLATION = """\
# If the package of this course is missing, as on Colab and Kaggle, install it. Otherwise this cell does nothing.
try:
    from grader.learning import cloud
except ModuleNotFoundError:
    import site, subprocess, sys
    subprocess.run([sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "{package}"], check=True)
    site.addsitedir(site.getusersitepackages())
    from grader.learning import cloud
    cloud.install()
cloud.start("{notebook}")"""
OPEN = "open"  # the id of the cell with links to services
LONGEST_CELL_ID = 64
YOUR_ANSWER = "*Write your answer here, and in more cells below if you like.*"
COMMENT_WIDTH = 79  # what a cell shows beside JupyterLab's file browser
GOAL = re.compile(r"^\*\*Goal\.\*\*.*?(?=\n\n|\n\*\*|\Z)", re.MULTILINE | re.DOTALL)
ANSWERS = """\
# {number} · Solutions: {title}
This notebook contains the course's solutions with the public checks of the exercises, alternative solutions, and \
wrong answers with explanations. Run it from the top. `grader solution` replaces it, and keeps a copy of a changed one.

Try the exercises first. You remember solutions that you found better than solutions that you read."""
CLOSING = """\
## Check your answers

Run the check cells as often as you like. Then save the notebook (Ctrl+S) and run the last cell, which {how}. In a \
terminal (File > New > Terminal), this command does the same:

```
{command}
```

{what} There are {points} in all{more}."""


def exercise_notebook(lesson: Lesson, course: Course, alone: bool = False) -> Notebook:
    """Returns nbgrader's source notebook; one that goes out `alone`, without hidden checks, runs the public ones."""
    cells: list[NotebookCell] = []
    taken: set[str] = set()
    by_id = {exercise.id: exercise for exercise in lesson.exercises}
    tasks = {task.id: task for task in lesson.tasks}
    checks = {check.line: check for exercise in lesson.exercises for check in exercise.checks}
    for cell in lesson.cells:
        if cell.id is None:
            source = cell.source if cells else _opening(cell.source, lesson, course)
            cells.append(_graded("markdown" if cell.prose else "code", source, _free(cell.kind, taken), locked=True))
            if len(cells) == 1:
                path = f"exercises/{lesson.id}/{lesson.id}.ipynb"
                cells += [_graded("markdown", links, OPEN, locked=True) for links in _links(course, path)]
                for source in _installation(course, f"exercises/{lesson.id}"):
                    cells.append(_graded("code", source, INSTALL, locked=True))
                    cells[-1]["metadata"] |= FOLDED
            continue
        if cell.id in tasks:
            # nbgrader's task cell, and a cell of the learner's own to begin with
            task = tasks[cell.id]
            flags = {"task": True, "locked": True, "points": _integral(task.points)}
            cells.append(_graded("markdown", _task(task.source, task, course), task.id, **flags))
            cells.append(_cell("markdown", YOUR_ANSWER, _cell_id(f"{task.id}-answer")))
            continue
        exercise = by_id[cell.id]
        if cell.kind == "task":
            cells.append(_graded("markdown", _task(cell.source, exercise, course), f"{exercise.id}-task", locked=True))
        elif cell.kind == "answer":
            cells.append(_graded("code", cell.source, exercise.id, solution=True))
        elif cell.line in checks:
            cells.append(_check(checks[cell.line], lesson, alone))
            if checks[cell.line] == exercise.checks[-1]:
                why = _fold("After it passes: why it works", exercise.why)
                cells.append(_graded("markdown", why, f"{exercise.id}-why", locked=True))
    cells.append(_graded("markdown", _closing(lesson, alone), "closing", locked=True))
    what = "runs all checks on what was saved last" if alone else "grades what was saved last, hidden checks too"
    source = f"# Save first (Ctrl+S): this {what}.\nfrom grader.learning import grade\n\ngrade()"
    cells.append(_graded("code", source, GRADING, RUN_ON, locked=True))
    return _notebook(cells, {"lesson": lesson.id, "holds": "exercises"})


def lesson_notebook(lesson_id: str, cells: Iterable[Cell], course: Course) -> Notebook:
    """Returns the lesson's own notebook, without outputs."""
    built: list[NotebookCell] = []
    taken: set[str] = set()
    for cell in cells:
        if cell.kind == "predict":
            asked = reader.prediction(cell)
            metadata: dict[str, Any] = {"jaxercise": {"prediction": asked.metadata}}
            built.append(_cell("markdown", asked.markdown, _free(f"predict-{cell.id}", taken), metadata))
            built.append(_cell("code", asked.code, _free(f"choose-{cell.id}", taken), BUTTONS))
            continue
        source = cell.source if cell.prose else MAGIC.sub(r"\1\2", cell.source)
        name = _free(f"{cell.kind}-{_hash(source)}", taken)
        metadata = {"tags": list(cell.attributes["tags"])} if "tags" in cell.attributes else {}
        built.append(_cell("markdown" if cell.prose else "code", source, name, metadata))
        if len(built) == 1:
            path = f"notebooks/{lesson_id}.ipynb"
            built += [_cell("markdown", links, OPEN) for links in _links(course, path)]
            built += [_cell("code", one, INSTALL, FOLDED) for one in _installation(course, f"notebooks/{lesson_id}")]
    return _notebook(built, {"lesson": lesson_id, "holds": "lesson"})


def imported_notebook(imported: ImportedText) -> Notebook:
    """Returns nbgrader's source notebook of an imported text: the cells that were imported, in their roles."""
    built: list[NotebookCell] = []
    taken = {_cell_id(cell.id) for cell in imported.cells if cell.id is not None}
    for cell in imported.cells:
        given = cell.attributes
        if cell.id is not None:
            points = {"points": given["points"]} if "points" in given else {}
            made = _graded(cell.form, cell.source, cell.id, **dict.fromkeys(ROLES[cell.kind], True), **points)
        else:
            made = _cell(cell.form, cell.source, _free(f"{cell.form}-{_hash(cell.source)}", taken))
        made["metadata"] |= json.loads(given.get("metadata", "{}"))
        if "tags" in given:
            made["metadata"]["tags"] = list(given["tags"])
        if "attachments" in given:
            made["attachments"] = imported.attachments[given["attachments"]]
        built.append(made)
    ours = {"lesson": imported.id, "holds": "imported exercises"}
    return {**_notebook(built, {}), "metadata": {**imported.metadata, "jaxercise": ours}}


def answers_notebook(lesson: Lesson) -> Notebook:
    """Returns the answers of `lesson`, in the order of its exercises; a code cell for each right one runs as it is."""
    cells = [("markdown", ANSWERS.format(number=lesson.id[:2], title=lesson.title)), ("code", lesson.setup)]
    tasks = {cell.id: cell.source for cell in lesson.cells if cell.kind == "task"}
    for exercise in lesson.exercises:
        goal = GOAL.search(tasks.get(exercise.id, ""))
        cells += [
            ("markdown", f"## {exercise.title}\n\n{goal[0] if goal else ''}".rstrip()),
            ("code", exercise.reference),
            *(("code", check.source) for check in exercise.checks if not check.hidden),
            ("markdown", f"**Why it works.** {exercise.why}"),
        ]
        for variant in exercise.right:
            cells += [("markdown", "**Another way.**"), ("code", variant.source)]
        if exercise.wrong:
            shown = (f"```python\n{one.source}\n```\n\n{_fold('The mistake', one.because)}" for one in exercise.wrong)
            wrong = "\n\n".join(["**Wrong.** Look for the mistake before you read it.", *shown])
            cells.append(("markdown", wrong))
    built = [_cell(kind, source, f"answers-{number}") for number, (kind, source) in enumerate(cells)]
    return _notebook(built, {"holds": "answers", "lesson": lesson.id})


def _installation(course: Course, notebook: str) -> list[str]:
    """The cell that installs the course's package, if the course names one."""
    return [INSTALLATION.format(package=course.package, notebook=notebook)] if course.package else []


def _links(course: Course, path: str) -> list[str]:
    """A line of links that open a notebook on services, if the course states its address."""
    match = REPOSITORY.fullmatch(course.repository or "")
    if match is None:
        return []
    name, branch = match[1], match[2] or "main"
    file = f"{name}/blob/{branch}/{path}"
    opened = {
        "Colab": f"https://colab.research.google.com/github/{file}",
        "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
        "Binder": f"https://mybinder.org/v2/gh/{name}/{quote(branch, safe='')}?labpath={quote(path, safe='')}",
    }
    return [f"Open this notebook in {' · '.join(f'[{place}]({link})' for place, link in opened.items())}"]


def _free(stem: str, taken: set[str]) -> str:
    """A cell id that no cell before has."""
    names = (_cell_id(f"{stem}-{number}" if number > 1 else stem) for number in count(1))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _cell_id(name: str) -> str:
    """A notebook format's cell id: at most 64 characters."""
    return name if len(name) <= LONGEST_CELL_ID else f"{name[: LONGEST_CELL_ID - 9]}-{_hash(name)}"


def _notebook(cells: list[NotebookCell], ours: Mapping[str, str]) -> Notebook:
    return {"cells": cells, "metadata": {**KERNEL, "jaxercise": dict(ours)}, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, source: str, cell_id: str, metadata: Mapping[str, Any] | None = None) -> NotebookCell:
    cell: NotebookCell = {"cell_type": kind, "id": cell_id, "metadata": dict(metadata or {}), "source": source}
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


def _graded(kind: str, source: str, grade_id: str, *tags: str, **flags: Any) -> NotebookCell:
    nbgrader = {"schema_version": 3, "grade": False, "locked": False, "solution": False, "task": False}
    metadata = {"nbgrader": {**nbgrader, "grade_id": grade_id, **flags}}
    return _cell(kind, source, _cell_id(grade_id), metadata | ({"tags": [*tags]} if tags else {}))


def _check(check: Check, lesson: Lesson, alone: bool) -> NotebookCell:
    source = check.source
    if check.hidden:
        title = f"Hidden check, {phrase(check.points)}: {check.title}"
        comment = textwrap.wrap(title, COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ")
        how = "." if alone else f": grader check {lesson.id}"
        comment.append(f"# It runs when the notebook is graded{how}")
        source = "\n".join([*comment, "### BEGIN HIDDEN TESTS", check.source, "### END HIDDEN TESTS"])
    tags = () if check.hidden else (RUN_ON,)
    return _graded("code", source, check.id, *tags, grade=True, locked=True, points=_integral(check.points))


def _integral(points: float) -> float:
    """Whole points as an integer, as nbgrader writes them."""
    return int(points) if float(points).is_integer() else points


def _below_heading(source: str, line: str) -> str:
    head, _, rest = source.partition("\n")
    return "\n\n".join(piece for piece in (head, line, rest.strip("\n")) if piece)


def _fold(summary: str, text: str | None) -> str:
    # Without the blank lines some renderers show the text inside as it is, asterisks and all.
    return f"<details><summary>{summary}</summary>\n\n{text or ''}\n\n</details>"


def _opening(source: str, lesson: Lesson, course: Course) -> str:
    minutes = sum(one.minutes for one in lesson.exercises) + sum(one.minutes for one in lesson.tasks)
    part = course.planned(lesson.id).part
    counts = f"{phrase(len(lesson.exercises), 'exercise')}, {phrase(lesson.points)}{_points_by_hand(lesson)}"
    line = f"*The exercises of lesson {_lesson_link(lesson.id, course)} ({part}): {counts}, about {minutes} minutes.*"
    return _below_heading(source, line)


def _points_by_hand(lesson: Lesson) -> str:
    """A clause about the points that a person gives, if there are any."""
    points = total(task.points for task in lesson.tasks)
    return f", and {phrase(points)} that a person gives" if points else ""


def _task(source: str, exercise: Exercise | Task, course: Course) -> str:
    lessons = sorted((skill for skill in exercise.skills if skill in course.ids), key=course.ids.index)
    others = [_exercise_link(skill, exercise.id, course) for skill in exercise.skills if skill not in course.ids]
    uses = ", ".join([*(_lesson_link(lesson, course) for lesson in lessons), *others])
    stars = "★" * exercise.stars + "☆" * (3 - exercise.stars)
    by = " · graded by a person" if isinstance(exercise, Task) else ""
    line = f"{stars} · about {exercise.minutes} minutes · {phrase(exercise.points)}{by} · uses {uses}"
    return _below_heading(LABEL.sub("\n\n", source), line)


def _lesson_link(lesson_id: str, course: Course) -> str:
    return f"[{lesson_id}](../../notebooks/{lesson_id}.ipynb)" if lesson_id in course.text_ids else lesson_id


def _exercise_link(used: str, by: str, course: Course) -> str:
    """Returns the title of an exercise that another one uses, with a link unless both are in one notebook."""
    lesson_id = next((one for one in course.lesson_ids if used in course.exercise_ids(one)), None)
    if lesson_id is None:  # an overlay can leave the exercise out
        return f"`{used}`"
    title = course.exercise_title(used, lesson_id)
    if by in course.exercise_ids(lesson_id):
        return f"*{title}*"
    return f"[{title}](../{lesson_id}/{lesson_id}.ipynb) ({lesson_id[:2]})"


def _closing(lesson: Lesson, alone: bool) -> str:
    hidden = phrase(sum(check.hidden for one in lesson.exercises for check in one.checks), "hidden one")
    if alone:
        how, command = "runs the notebook from the top in a fresh kernel", f"python -m grader.checks {lesson.id}"
        what = f"The result of this run counts. The {hidden} run when the notebook is graded."
    else:
        how, command = f"runs all checks, including the {hidden}", f"grader check {lesson.id}"
        what = "It prints the points of each exercise and what is missing."
    points, more = phrase(lesson.points), _points_by_hand(lesson)
    return CLOSING.format(how=how, command=command, what=what, points=points, more=more)
