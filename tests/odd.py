"""A class in which everybody handed in something else: tampered with, unreadable, missing, or with links in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]
Cell = dict[str, Any]


def told(cell: Cell) -> dict[str, Any]:
    """nbgrader's part of a cell's metadata."""
    metadata: dict[str, Any] = cell["metadata"].get("nbgrader", {})
    return metadata


def checks_deleted(notebook: Notebook) -> None:
    notebook["cells"] = [cell for cell in notebook["cells"] if not told(cell).get("grade")]


def all_deleted(notebook: Notebook) -> None:
    notebook["cells"] = [cell for cell in notebook["cells"] if not told(cell)]


def all_twice(notebook: Notebook) -> None:
    notebook["cells"] = [json.loads(json.dumps(cell)) for cell in notebook["cells"] for _ in range(2)]


def tampered(notebook: Notebook) -> None:
    """A check of another name, one that is worth more, says so and passes, and a task for a hundred points."""
    checks = [cell for cell in notebook["cells"] if told(cell).get("grade")]
    told(checks[0])["grade_id"] += "-mine"
    told(checks[1])["points"] = 100
    checks[1]["source"] = ["100.0"]
    for cell in notebook["cells"]:
        if told(cell).get("task"):
            told(cell)["points"] = 100


def other_kinds(notebook: Notebook) -> None:
    """The checks are prose, and the task is code."""
    for cell in notebook["cells"]:
        if told(cell).get("grade"):
            cell["cell_type"] = "markdown"
            del cell["outputs"], cell["execution_count"]
        elif told(cell).get("task"):
            cell |= {"cell_type": "code", "outputs": [], "execution_count": None}


def odd_metadata(notebook: Notebook) -> None:
    """Of nbgrader's past and of its future, each of which ends a whole run of it, and of nobody's; half a character."""
    for place, cell in enumerate(notebook["cells"]):
        if told(cell).get("grade"):
            told(cell)["schema_version"] = (1, 9)[place % 2]
        elif told(cell):
            cell["metadata"]["nbgrader"] = {**told(cell), "grade": "yes", "points": "many", "extra": [place]}
        else:
            cell["source"] = "see \ud800 ![](attachment:a.png)"
            cell["attachments"] = {"a.png": {"image/png": "iVBORw0KGgo="}}
    notebook["metadata"] = {"kernelspec": {"name": "none", "display_name": 3}}
    notebook["nbformat_minor"] = 99


EDITED: dict[str, Callable[[Notebook], None]] = {
    edit.__name__: edit for edit in (checks_deleted, all_deleted, all_twice, tampered, other_kinds, odd_metadata)
}


def no_notebook(place: Path) -> None:
    (place.parent / "notes.txt").write_text("I could not open it.")


def a_folder(place: Path) -> None:
    place.mkdir()


def too_large(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(22 << 20)


def no_json(place: Path) -> None:
    place.write_bytes(b"\x89PNG\r\n\x00\xff")


def old_format(place: Path) -> None:
    place.write_text(json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": []}]}))


def a_link(place: Path) -> None:
    place.symlink_to(place.parents[2] / "all_right" / place.parent.name / place.name)


def a_linked_folder(place: Path) -> None:
    place.parent.rmdir()
    place.parent.symlink_to(place.parents[2] / "all_right" / place.parent.name)


# What is handed in instead of a notebook, and what its author is told.
UNREADABLE: dict[Callable[[Path], None], str] = {
    no_notebook: "There is no 01_by_hand.ipynb in the submitted folder.",
    a_folder: "It is a link or not a regular file.",
    too_large: "The notebook has 23 MB, but at most 21 MB are read.",
    no_json: "The file is not a notebook: it is not JSON.",
    old_format: "The file is JSON but not a notebook of format 4.",
    a_link: "It is a link or not a regular file.",
    a_linked_folder: "It is a link or not a regular file.",
}
