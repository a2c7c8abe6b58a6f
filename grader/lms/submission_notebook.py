"""A learner's notebook made into one that nbgrader can take, however odd the file is, so that no batch stops at it.

nbgrader trusts the metadata in a notebook: which cell is a check, and what it is worth. Here the course's cells are
recognised by their ids and get the course's own metadata, once each. A check or a task that was deleted is put back in
its place. Every other cell is the learner's own. What is no notebook becomes the course's, with nothing done in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode, from_dict

from grader.core.notebook import (
    KINDS,
    Notebook,
    NotebookCell,
    Unreadable,
    cells,
    grade_id,
    nbgrader,
    parse,
    read_bytes,
    read_submission,
    text,
)
from grader.course import Course
from grader.course.build import exercises_path


class SubmissionExporter(NotebookExporter):
    """Reads submissions for `nbgrader autograde`; what it has written itself, it reads as it is."""

    def from_filename(self, filename: str, resources: Any = None, **options: Any) -> Any:
        """Returns the notebook after nbgrader's steps, and what they noted."""
        converter: Any = self.parent
        if not converter._sanitizing:
            return super().from_filename(filename, resources, **options)
        lesson = resources["nbgrader"]["assignment"]
        course_notebook = released(converter.examiner.course, lesson)
        try:
            content = read_bytes(Path(filename))
            read_submission(content, "", lesson)  # refuses what the examiner refuses
            merged = _merged(course_notebook["cells"], cells(parse(content)))
        except Unreadable as problem:  # the examiner says so too, at every check
            self.log.warning("%s gets no points: %s", filename, problem)
            merged = [cell for cell in course_notebook["cells"] if grade_id(cell)]
        return self.from_notebook_node(_node({**course_notebook, "cells": merged}), resources, **options)


def released(course: Course, lesson: str) -> Notebook:
    """Returns the lesson's exercises as learners have them."""
    return parse(exercises_path(course, lesson).read_bytes())


def _node(notebook: Notebook) -> NotebookNode:
    joined = [{**cell, "source": text(cell)} for cell in notebook["cells"]]
    return from_dict({**notebook, "cells": joined})


def _merged(ours: list[NotebookCell], theirs: list[NotebookCell]) -> list[NotebookCell]:
    """The learner's cells in their order, those of the course among them as the course has them."""
    named = {grade_id(cell): cell for cell in ours if grade_id(cell)}
    submitted = [cell for cell in theirs if cell.get("cell_type") in KINDS]
    last = {grade_id(cell): place for place, cell in enumerate(submitted)}
    found: dict[str, int] = {}
    merged: list[NotebookCell] = []
    for place, cell in enumerate(submitted):
        name = grade_id(cell)
        if name is not None and name in named and last[name] == place:
            found[name] = len(merged)
            merged.append({**named[name], "source": _source(cell)})
        else:
            merged.append(_own(cell, place))
    for after, cell in reversed(list(_missing(ours, found))):
        merged.insert(after, cell)
    return merged


def _missing(ours: list[NotebookCell], found: dict[str, int]) -> Iterator[tuple[int, NotebookCell]]:
    """Each graded cell that the learner's notebook lacks, and the place in it that it belongs to."""
    after = 0
    for cell in ours:
        name = grade_id(cell)
        if name in found:
            after = max(after, found[name] + 1)
        elif nbgrader(cell).get("grade") or nbgrader(cell).get("task"):
            yield after, cell


def _own(cell: NotebookCell, place: int) -> NotebookCell:
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


def _source(cell: NotebookCell) -> str:
    """The cell's text; halves of characters, which no file can hold, become question marks."""
    return text(cell).encode("utf-8", "replace").decode()
