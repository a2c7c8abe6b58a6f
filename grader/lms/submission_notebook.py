"""What a learner handed in, made into a notebook that nbgrader can take: no file is so odd that a batch stops at it.

nbgrader trusts the metadata in a notebook: which cell is a check, and what it is worth. Here the course's cells are
known by their ids and get the course's own metadata, once each; a check or a task that was deleted stands where the
course has it; every other cell is the learner's own. What is no notebook becomes the course's, with nothing done in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter

from grader.core.notebook import Unreadable, grade_id, read_bytes, read_submission
from grader.course import Course
from grader.course.build import exercises_path

Cell = dict[str, Any]


class SubmissionExporter(NotebookExporter):
    """Reads submissions for `nbgrader autograde`; what it has written itself, it reads as it is."""

    def from_filename(self, filename: str, resources: Any = None, **options: Any) -> Any:
        """The notebook after nbgrader's steps, and what they noted."""
        converter: Any = self.parent
        if not converter._sanitizing:
            return super().from_filename(filename, resources, **options)
        course, lesson = Course.find(Path(converter.coursedir.root)), resources["nbgrader"]["assignment"]
        try:
            notebook = taken(course, lesson, read_bytes(Path(filename)))
        except Unreadable as problem:  # the examiner says so too, at every check
            self.log.warning("%s gets no points: %s", filename, problem)
            notebook = handed_out(course, lesson)
            notebook.cells = [cell for cell in notebook.cells if grade_id(cell)]
        return self.from_notebook_node(notebook, resources, **options)


def handed_out(course: Course, lesson: str) -> nbformat.NotebookNode:
    """The lesson's exercises as learners have them."""
    return nbformat.reads(exercises_path(course, lesson).read_text(encoding="utf-8"), as_version=4)


def taken(course: Course, lesson: str, handed_in: bytes) -> nbformat.NotebookNode:
    """The notebook that was handed in for `lesson`. Raises `Unreadable`."""
    read_submission(handed_in, "", lesson)
    whole = handed_out(course, lesson)
    return nbformat.from_dict({**whole, "cells": _merged(whole["cells"], json.loads(handed_in)["cells"])})


def _merged(ours: list[Cell], theirs: list[Any]) -> list[Cell]:
    """The learner's cells in their order, those of the course's among them as the course has them."""
    named = {grade_id(cell): cell for cell in ours if grade_id(cell)}
    cells = [cell for cell in theirs if isinstance(cell, dict) and cell.get("cell_type") in ("code", "markdown", "raw")]
    last = {grade_id(cell): place for place, cell in enumerate(cells)}
    found: dict[str, int] = {}
    merged: list[Cell] = []
    for place, cell in enumerate(cells):
        name = grade_id(cell)
        if name is not None and name in named and last[name] == place:
            found[name] = len(merged)
            merged.append({**named[name], "source": _source(cell)})
        else:
            merged.append(_own(cell, place))
    for after, cell in reversed(list(_missing(ours, found))):
        merged.insert(after, cell)
    return merged


def _missing(ours: list[Cell], found: dict[str, int]) -> Iterator[tuple[int, Cell]]:
    """Each graded cell that the learner's notebook lacks, and the place in it that it belongs to."""
    after = 0
    for cell in ours:
        name, told = grade_id(cell), cell["metadata"].get("nbgrader", {})
        if name in found:
            after = max(after, found[name] + 1)
        elif told.get("grade") or told.get("task"):
            yield after, cell


def _own(cell: Cell, place: int) -> Cell:
    own = {"cell_type": cell["cell_type"], "id": f"own-{place}", "metadata": {}, "source": _source(cell)}
    if cell["cell_type"] == "code":
        return own | {"execution_count": None, "outputs": []}
    pictures = cell.get("attachments")
    return own | {"attachments": pictures} if _are_pictures(pictures) else own


def _are_pictures(attachments: Any) -> bool:
    return isinstance(attachments, dict) and all(
        isinstance(kinds, dict) and all(isinstance(data, str) and data.isascii() for data in kinds.values())
        for kinds in attachments.values()
    )


def _source(cell: Cell) -> str:
    """The cell's text; halves of characters, which no file can hold, become question marks."""
    source = cell.get("source", "")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    return source.encode("utf-8", "replace").decode() if isinstance(source, str) else ""
