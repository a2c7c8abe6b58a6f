"""Lays out the learner's own copies under work/: adds what is new, and never touches what is there.

    work/lessons/05_vmap.ipynb      a copy of notebooks/05_vmap.ipynb, so that running it changes no committed file
    work/05_vmap/05_vmap.ipynb      a copy of exercises/05_vmap/05_vmap.ipynb, to fill in
    work/images/                    a copy of images/, brought up to date each time
    work/answers/05_vmap.ipynb      a lesson's answers, when asked for
    work/earlier/                   notebooks that were begun anew, with the time in their names

Everything that a copy links to lies under work/ too, so its links and pictures work whether JupyterLab was opened
there or at the top of the course. Three prefixes change on the way; pictures in lessons need no change.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from grader.course import build, solved, whole
from grader.course.notebooks import Notebook
from grader.course.tree import Course

# Settings of JupyterLab for those who learn and those who teach: which of nbgrader's panels they have.
JUPYTER = Path(__file__).parent / "jupyter"
IN_EXERCISES = (("../../notebooks/", "../lessons/"), ("../../images/", "../images/"))
IN_LESSONS = (("../exercises/", "../"),)


class NothingBuilt(Exception):
    """A notebook that was to be copied is not there; the text says what makes it."""


def copies(course: Course) -> list[Path]:
    """Adds a copy of every built notebook that the learner does not have yet; returns the notebooks that were added."""
    added = []
    for lesson_id in course.ids:
        for built, own, changes in (
            (build.lesson_path(course, lesson_id), lesson_copy(course, lesson_id), IN_LESSONS),
            (build.exercises_path(course, lesson_id), exercises_copy(course, lesson_id), IN_EXERCISES),
        ):
            # A link that leads nowhere is the learner's too.
            if built.is_file() and not os.path.lexists(own):
                whole.write(own, _moved(built.read_text(encoding="utf-8"), changes), mode=0o644, alone=True)
                added.append(own)
    _images(course)
    return added


def renew(course: Course, lesson_id: str) -> tuple[Path, Path | None]:
    """A fresh copy of a lesson's exercises, and where the learner's own is now, if there was one.

    Raises NothingBuilt where the course has no such notebook.
    """
    built, own = build.exercises_path(course, lesson_id), exercises_copy(course, lesson_id)
    if not built.is_file():
        raise NothingBuilt(f"There is no {course.shown(built)} to copy. `grader build {lesson_id}` makes it.")
    kept = _aside(course, own)
    whole.write(own, _moved(built.read_text(encoding="utf-8"), IN_EXERCISES), mode=0o644, alone=True)
    _images(course)
    return own, kept


def answers(course: Course, lesson_id: str) -> tuple[Path, Path | None]:
    """The notebook of a lesson's answers, made anew where it is another now, and where an older one went."""
    own = course.root / "work" / "answers" / f"{lesson_id}.ipynb"
    made = solved.notebook(course.lesson(lesson_id))
    if own.is_file() and _same_cells(own, made):
        return own, None
    kept = _aside(course, own)
    whole.write(own, json.dumps(made, ensure_ascii=False, indent=1) + "\n", mode=0o644, alone=True)
    return own, kept


def _same_cells(path: Path, made: Notebook) -> bool:
    """Whether it has been run at most; what cannot be read is another."""
    try:
        there = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [_text(cell) for cell in there] == [_text(cell) for cell in made["cells"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _text(cell: Any) -> tuple[str, str]:
    return cell["cell_type"], "".join(cell["source"])


def _aside(course: Course, own: Path) -> Path | None:
    """Keeps what lies there under work/earlier/, with the time in its name; where it is now."""
    if not os.path.lexists(own):
        return None
    now = datetime.now()  # as the learner's clock says
    kept = course.root / "work" / "earlier" / f"{own.stem}_{now:%Y-%m-%d_%H%M%S_%f}.ipynb"
    kept.parent.mkdir(parents=True, exist_ok=True)
    own.rename(kept)
    return kept


def first(course: Course) -> str:
    """Where a learner begins, seen from work/: the first lesson that has a copy, else the first exercises."""
    for copy in (lesson_copy, exercises_copy):
        for lesson_id in course.ids:
            if copy(course, lesson_id).is_file():
                return copy(course, lesson_id).relative_to(course.root / "work").as_posix()
    return ""


def lesson_copy(course: Course, lesson_id: str) -> Path:
    return course.root / "work" / "lessons" / f"{lesson_id}.ipynb"


def exercises_copy(course: Course, lesson_id: str) -> Path:
    return course.root / "work" / lesson_id / f"{lesson_id}.ipynb"


def _moved(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    """The notebook with the links of its prose leading to where the copy's neighbours lie."""
    notebook = json.loads(text)
    if notebook["metadata"]["jaxercise"]["holds"] == "imported exercises":
        return text  # its links are its own, and its cells are to the letter
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            before = "".join(cell["source"])
            after = before
            for old, new in changes:
                after = after.replace(old, new)
            if after != before:
                cell["source"] = after.splitlines(keepends=True)
                _resign(cell, after)
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _resign(cell: dict[str, Any], source: str) -> None:
    """nbgrader's checksum anew: JupyterLab's Validate button refuses a locked cell whose checksum is not its text's.

    This is nbgrader's own sum for a locked cell that is neither graded nor a solution; importing nbgrader for it
    would take longer than all copying.
    """
    nbgrader = cell["metadata"].get("nbgrader")
    if nbgrader and "checksum" in nbgrader:
        summed = source + cell["cell_type"] + "False" + "False" + "True" + nbgrader["grade_id"]
        nbgrader["checksum"] = hashlib.md5(summed.encode(), usedforsecurity=False).hexdigest()


def _images(course: Course) -> None:
    """The pictures are the course's, not the learner's: an older one is replaced."""
    for picture in sorted((course.root / "images").glob("*")):
        own = course.root / "work" / "images" / picture.name
        if picture.is_file() and (not own.is_file() or own.read_bytes() != picture.read_bytes()):
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, own)
