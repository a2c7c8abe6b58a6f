"""A lesson's answers as a notebook: the course's own, other right ones, and wrong ones with what is wrong in them."""

from __future__ import annotations

import re
from typing import Any

from grader.core.notebook import Notebook
from grader.course.exercises import Exercise, Lesson
from grader.course.notebook_builder import KERNEL

GOAL = re.compile(r"^\*\*Goal\.\*\*.*?(?=\n\n|\n\*\*|\Z)", re.MULTILINE | re.DOTALL)
OPENING = """\
# {number} · Answers: {title}
The course's own answers, each with the checks that stand in the exercises, other ways to write it, and wrong answers \
with what is wrong in them. Run it from the top: what you see pass is what your notebook is asked too. When \
you ask for it again it is made anew, and one that you have written in is kept aside.

Try first. An answer that you have looked for is remembered; one that you have only read is not."""


def notebook(lesson: Lesson) -> Notebook:
    """The answers of `lesson`, in the order of its exercises; a code cell for each right one runs as it stands."""
    cells = [_prose(OPENING.format(number=lesson.id[:2], title=lesson.title)), _code(lesson.setup)]
    for exercise in lesson.exercises:
        cells += _answers(exercise, lesson)
    for number, cell in enumerate(cells):
        cell["id"] = f"answers-{number}"
    metadata = {**KERNEL, "jaxercise": {"holds": "answers", "lesson": lesson.id}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _answers(exercise: Exercise, lesson: Lesson) -> list[dict[str, Any]]:
    task = next(cell.source for cell in lesson.cells if cell.kind == "task" and cell.id == exercise.id)
    goal = GOAL.search(task)
    cells = [
        _prose(f"## {exercise.title}\n\n{goal[0] if goal else ''}".rstrip()),
        _code(exercise.reference),
        *(_code(check.source) for check in exercise.checks if not check.hidden),
        _prose(f"**Why it works.** {exercise.why}"),
    ]
    for variant in exercise.right:
        cells += [_prose("**Another way.**"), _code(variant.source)]
    mistakes = [_folded(variant.because or "", variant.source) for variant in exercise.wrong]
    if mistakes:
        cells.append(_prose("\n\n".join(["**Wrong.** Look for the mistake before you read it.", *mistakes])))
    return cells


def _prose(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def _code(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}


def _folded(because: str, source: str) -> str:
    return f"```python\n{source}\n```\n\n<details><summary>The mistake</summary>\n\n{because}\n\n</details>"
