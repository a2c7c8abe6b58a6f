"""A lesson's answers as a notebook: the course's own, other right ones, and wrong ones with what is wrong in them."""

from __future__ import annotations

import re

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from grader.course.exercises import Exercise, Lesson
from grader.course.notebooks import KERNEL

GOAL = re.compile(r"^\*\*Goal\.\*\*.*?(?=\n\n|\n\*\*|\Z)", re.MULTILINE | re.DOTALL)
OPENING = """\
# {number} · Answers: {title}
The course's own answers, each with the checks that stand in the exercises, other ways to write it, and wrong answers \
with what is wrong in them. Run it from the top: what you see pass is what your notebook is asked too. When \
you ask for it again it is made anew, and one that you have written in is kept aside.

Try first. An answer that you have looked for is remembered; one that you have only read is not."""


def notebook(lesson: Lesson) -> nbformat.NotebookNode:
    """The answers of `lesson`, in the order of its exercises; a code cell for each right one runs as it stands."""
    cells = [new_markdown_cell(OPENING.format(number=lesson.id[:2], title=lesson.title)), new_code_cell(lesson.setup)]
    for exercise in lesson.exercises:
        cells += _answers(exercise, lesson)
    made = new_notebook(cells=cells, metadata={**KERNEL, "jaxercise": {"holds": "answers", "lesson": lesson.id}})
    for number, cell in enumerate(made.cells):
        cell.id = f"answers-{number}"  # drawn ones would make two notebooks of the same answers differ
    return made


def _answers(exercise: Exercise, lesson: Lesson) -> list[nbformat.NotebookNode]:
    task = next(cell.source for cell in lesson.cells if cell.kind == "task" and cell.id == exercise.id)
    goal = GOAL.search(task)
    cells = [
        new_markdown_cell(f"## {exercise.title}\n\n{goal[0] if goal else ''}".rstrip()),
        new_code_cell(exercise.reference),
        *(new_code_cell(check.source) for check in exercise.checks if not check.hidden),
        new_markdown_cell(f"**Why it works.** {exercise.why}"),
    ]
    for variant in exercise.right:
        cells += [new_markdown_cell("**Another way.**"), new_code_cell(variant.source)]
    mistakes = [_folded(variant.because or "", variant.source) for variant in exercise.wrong]
    if mistakes:
        cells.append(new_markdown_cell("\n\n".join(["**Wrong.** Look for the mistake before you read it.", *mistakes])))
    return cells


def _folded(because: str, source: str) -> str:
    return f"```python\n{source}\n```\n\n<details><summary>The mistake</summary>\n\n{because}\n\n</details>"
