"""Lays out the learner's own copies under work/: adds what is new, and never touches what is there.

    work/lessons/05_vmap.ipynb      a copy of notebooks/05_vmap.ipynb, so that running it changes no committed file
    work/05_vmap/05_vmap.ipynb      a copy of exercises/05_vmap/05_vmap.ipynb, to fill in
    work/images/                    a copy of images/, brought up to date each time
    work/answers/05_vmap.ipynb      a lesson's answers, when asked for
    work/earlier/                   notebooks that were begun anew or carried over, with the time in their names

Everything that a copy links to lies under work/ too, so its links and pictures work whether JupyterLab was opened
there or at the top of the course. Three prefixes change on the way; pictures in lessons need no change.

One rule for all copies, of lessons too: laying out never writes over one. Where the course has a newer version, `aged`
says so, and `carried` brings over what the learner wrote, when the learner asks for it.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grader.core import cell_origin, files
from grader.core.notebook import Notebook, text
from grader.course import answers as answers_module
from grader.course import build
from grader.course.tree import Course

# Settings of JupyterLab for those who learn and those who teach: which of nbgrader's panels they have.
JUPYTER = Path(__file__).parent / "jupyter"
IN_EXERCISES = (("../../notebooks/", "../lessons/"), ("../../images/", "../images/"))
IN_LESSONS = (("../exercises/", "../"),)


class NothingBuilt(Exception):
    """A notebook that was to be copied is not there; the text says what makes it."""


@dataclass(frozen=True)
class Copy:
    """A built notebook, where the learner's own copy of it lies, and which links change between the two."""

    lesson: str
    built: Path
    own: Path
    changes: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """What is laid out. Raises OSError where nothing is built."""
        return json.dumps(self.notebook(), ensure_ascii=False, indent=1, sort_keys=True) + "\n"

    def notebook(self) -> Notebook:
        """The same, as data."""
        return _moved(json.loads(self.built.read_text(encoding="utf-8")), self.changes)


def planned(course: Course, lesson_id: str) -> tuple[Copy, Copy]:
    """What learners get copies of, built or not: the lesson itself, then its exercises."""
    return (
        Copy(lesson_id, build.lesson_path(course, lesson_id), lesson_copy(course, lesson_id), IN_LESSONS),
        Copy(lesson_id, build.exercises_path(course, lesson_id), exercises_copy(course, lesson_id), IN_EXERCISES),
    )


def copies(course: Course) -> list[Path]:
    """Adds a copy of every built notebook that the learner does not have yet; returns the notebooks that were added."""
    added = []
    for lesson_id in course.ids:
        for copy in planned(course, lesson_id):
            # A link that leads nowhere is the learner's too.
            if copy.built.is_file() and not os.path.lexists(copy.own):
                files.write(copy.own, copy.text(), mode=0o644, alone=True)
                added.append(copy.own)
    pictures(course)
    return added


def renew(course: Course, lesson_id: str) -> tuple[Path, Path | None]:
    """A fresh copy of a lesson's exercises, and where the learner's own is now, if there was one.

    Raises NothingBuilt where the course has no such notebook.
    """
    _, copy = planned(course, lesson_id)
    if not copy.built.is_file():
        raise NothingBuilt(f"There is no {course.shown(copy.built)} to copy. `grader build {lesson_id}` makes it.")
    kept = replace(course, copy.own, copy.text())
    pictures(course)
    return copy.own, kept


def answers(course: Course, lesson_id: str) -> tuple[Path, Path | None]:
    """The notebook of a lesson's answers, made anew where it is another now, and where an older one went."""
    own = course.root / "work" / "answers" / f"{lesson_id}.ipynb"
    made = answers_module.notebook(course.lesson(lesson_id))
    if own.is_file() and _same_cells(own, made):
        return own, None
    return own, replace(course, own, json.dumps(made, ensure_ascii=False, indent=1) + "\n")


def _same_cells(path: Path, made: Notebook) -> bool:
    """Whether it has been run at most; what cannot be read is another."""
    try:
        there = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [_text(cell) for cell in there] == [_text(cell) for cell in made["cells"]]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _text(cell: Any) -> tuple[str, str]:
    return cell["cell_type"], "".join(cell["source"])


def replace(course: Course, own: Path, content: str | bytes) -> Path | None:
    """Writes a learner's notebook anew; where what lay there is kept, if anything did."""
    kept = _aside(course, own)
    try:
        files.write(own, content, mode=0o644, alone=True)
    except BaseException:
        if kept is not None:  # a full disk shall not leave the learner without a notebook
            kept.rename(own)
        raise
    return kept


def _aside(course: Course, own: Path) -> Path | None:
    """Moves what lies there to work/earlier/, with the time in its name; where it is now."""
    if not os.path.lexists(own):
        return None
    now = datetime.now()  # as the learner's clock says
    name = own.stem if own.parent.name == own.stem else f"{own.parent.name}_{own.stem}"
    kept = course.root / "work" / "earlier" / f"{name}_{now:%Y-%m-%d_%H%M%S_%f}.ipynb"
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


def _moved(notebook: Notebook, changes: tuple[tuple[str, str], ...]) -> Notebook:
    """The notebook with the links of its prose leading to where the copy's neighbours lie, and every cell signed."""
    if notebook["metadata"]["jaxercise"]["holds"] == "imported exercises":
        changes = ()  # its links are its own, and its cells are to the letter
    for cell in notebook["cells"]:
        before = after = text(cell)
        if cell["cell_type"] == "markdown":
            for old, new in changes:
                after = after.replace(old, new)
        if after != before:
            cell["source"] = after.splitlines(keepends=True)
        # JupyterLab's Validate button refuses a locked cell whose checksum is not its text's.
        cell_origin.sign(cell)
    return notebook


def pictures(course: Course) -> None:
    """The pictures are the course's, not the learner's: an older one is replaced."""
    for picture in sorted((course.root / "images").glob("*")):
        own = course.root / "work" / "images" / picture.name
        if picture.is_file() and (not own.is_file() or own.read_bytes() != picture.read_bytes()):
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(picture, own)
