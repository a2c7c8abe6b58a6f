"""Make the learner's own copies under work/: add what is new, and never change what is there.

    work/lessons/05_vmap.ipynb      a copy of notebooks/05_vmap.ipynb, so that running it changes no committed file
    work/05_vmap/05_vmap.ipynb      a copy of exercises/05_vmap/05_vmap.ipynb, to fill in
    work/05_vmap/data.csv           a copy of each file that the lesson ships beside its notebook
    work/images/                    a copy of images/, brought up to date each time
    work/docs/glossary.md           a copy of docs/glossary.md, brought up to date each time
    work/answers/05_vmap.ipynb      a lesson's answers, when asked for
    work/earlier/                   notebooks that were replaced, with the time in their names

Everything that a copy links to is under work/ too, so its links and pictures work wherever JupyterLab was opened. No
copy is ever overwritten: `migrate` finds those that are older than the course, and updates one on request.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grader.core import files
from grader.core.layout import COURSE_FILE, GLOSSARY, LEARNERS_COURSE
from grader.core.notebook import Notebook, Unreadable, read_complete, sign, text
from grader.course import build, notebook_builder
from grader.course.tree import Course

# Settings of JupyterLab for those who learn and those who teach: which of nbgrader's panels they have.
JUPYTER = Path(__file__).parent / "jupyter"
IN_EXERCISES = (("../../notebooks/", "../lessons/"), ("../../images/", "../images/"), ("../../docs/", "../docs/"))
IN_LESSONS = (("../exercises/", "../"),)
IN_GLOSSARY = (b"../notebooks/", b"../lessons/")


class NothingBuilt(Exception):
    """A notebook that was to be copied does not exist; the text names the command that builds it."""


@dataclass(frozen=True)
class Copy:
    """A built notebook, the learner's own copy of it, and the links that change between the two."""

    lesson: str
    built: Path
    own: Path
    changes: tuple[tuple[str, str], ...]

    def notebook(self) -> Notebook:
        """Returns the content of a new copy: its links changed, each cell signed. Raises OSError."""
        notebook: Notebook = json.loads(self.built.read_text(encoding="utf-8"))
        # An imported notebook's links are its own, and its cells are copied to the letter.
        imported = notebook["metadata"]["jaxercise"]["holds"] == "imported exercises"
        for cell in notebook["cells"]:
            before = after = text(cell)
            if cell["cell_type"] == "markdown" and not imported:
                for old, new in self.changes:
                    after = after.replace(old, new)
            if after != before:
                cell["source"] = after.splitlines(keepends=True)
            # JupyterLab's Validate button refuses a locked cell whose checksum is not its text's.
            sign(cell)
        return notebook


def create(folder: Path) -> bool:
    """Makes `folder` a learner's folder of the installed course, unless it has a course already; returns whether it
    was made. Raises OSError."""
    if (folder / COURSE_FILE).exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / COURSE_FILE, LEARNERS_COURSE, mode=0o644)
    return True


def planned(course: Course, lesson_id: str) -> tuple[Copy, Copy]:
    """Returns the copies of the lesson itself and of its exercises, built or not."""
    text, exercises = build.lesson_path(course, lesson_id), build.exercises_path(course, lesson_id)
    lesson = Copy(lesson_id, text, lesson_copy(course, lesson_id), IN_LESSONS)
    return lesson, Copy(lesson_id, exercises, exercises_copy(course, lesson_id), IN_EXERCISES)


def copies(course: Course) -> list[Path]:
    """Adds a copy of every built notebook that the learner does not have yet; returns the added paths."""
    added = []
    for lesson_id in course.ids:
        for copy in planned(course, lesson_id):
            # A link that leads nowhere is the learner's too.
            if copy.built.is_file() and not os.path.lexists(copy.own):
                _write(copy.own, copy.notebook())
                added.append(copy.own)
        data(course, lesson_id)
    linked(course)
    return added


def renew(course: Course, lesson_id: str) -> tuple[Path, Path | None]:
    """Replaces the copy of a lesson's exercises by a fresh one; returns it, and where an earlier one is now, if any."""
    _, copy = planned(course, lesson_id)
    if not copy.built.is_file():
        raise NothingBuilt(f"There is no {course.shown(copy.built)} to copy. `grader build {lesson_id}` creates it.")
    earlier = replace(course, copy.own, copy.notebook())
    data(course, lesson_id)
    linked(course)
    return copy.own, earlier


def answers(course: Course, lesson_id: str) -> tuple[Path, Path | None]:
    """Writes the notebook of a lesson's answers unless its cells are there; returns it and where an older one is."""
    own = course.home / "work" / "answers" / f"{lesson_id}.ipynb"
    if course.lesson(lesson_id).data:  # in a folder of its own with them
        own = own.parent / lesson_id / own.name
        _write_data(course, lesson_id, own.parent)
    notebook = notebook_builder.answers_notebook(course.lesson(lesson_id))
    try:
        cells = read_complete(own)["cells"]
    except (OSError, Unreadable):
        cells = []
    if [(cell["cell_type"], text(cell)) for cell in cells] == [(c["cell_type"], text(c)) for c in notebook["cells"]]:
        return own, None
    return own, replace(course, own, notebook)


def replace(course: Course, own: Path, content: Notebook | bytes) -> Path | None:
    """Writes a learner's file; moves what was there to work/earlier/ and returns its path, or None."""
    earlier = None
    if os.path.lexists(own):
        name = own.stem if own.parent.name == own.stem else f"{own.parent.name}_{own.stem}"
        now = datetime.now()  # in the learner's time zone
        earlier = course.home / "work" / "earlier" / f"{name}_{now:%Y-%m-%d_%H%M%S_%f}{own.suffix}"
        earlier.parent.mkdir(parents=True, exist_ok=True)
        own.rename(earlier)
    try:
        _write(own, content)
    except BaseException:
        if earlier is not None:  # a full disk must not leave the learner without a notebook
            earlier.rename(own)
        raise
    return earlier


def _write(path: Path, content: Notebook | bytes) -> None:
    if not isinstance(content, bytes):
        text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        content = text.encode(errors="replace")  # what a learner wrote may contain halves of characters
    files.write(path, content, mode=0o644, alone=True)


def first(course: Course) -> str:
    """Returns where a learner begins, relative to work/: the first lesson that has a copy, else the first exercises."""
    for copy in (lesson_copy, exercises_copy):
        for lesson_id in course.ids:
            if copy(course, lesson_id).is_file():
                return copy(course, lesson_id).relative_to(course.home / "work").as_posix()
    return ""


def lesson_copy(course: Course, lesson_id: str) -> Path:
    return course.home / "work" / "lessons" / f"{lesson_id}.ipynb"


def exercises_copy(course: Course, lesson_id: str) -> Path:
    return course.home / "work" / lesson_id / f"{lesson_id}.ipynb"


def data(course: Course, lesson_id: str) -> None:
    """Copies the files that a lesson ships beside its notebook; one that differs is kept in work/earlier/."""
    if exercises_copy(course, lesson_id).is_file():
        _write_data(course, lesson_id, exercises_copy(course, lesson_id).parent)


def _write_data(course: Course, lesson_id: str, folder: Path) -> None:
    for name, content in course.data(lesson_id).items():
        own = folder / name
        if not _contains(own, content):
            replace(course, own, content)


def linked(course: Course) -> None:
    """Copies the course's pictures and its glossary; an older copy is replaced, since they are not the learner's."""
    wanted = {f"images/{one.name}": one.read_bytes() for one in (course.root / "images").glob("*") if one.is_file()}
    if (course.root / GLOSSARY).is_file():
        wanted[GLOSSARY] = (course.root / GLOSSARY).read_bytes().replace(*IN_GLOSSARY)
    for name, content in wanted.items():
        own = course.home / "work" / name
        if not _contains(own, content):
            files.write(own, content, mode=0o644)


def _contains(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
