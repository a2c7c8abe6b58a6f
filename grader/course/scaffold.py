"""Write what authors begin with: the skeleton of an exercise, and an instructor's own folder, an overlay over a course.

The texts are in templates/; `FILL IN` marks what the author has to write.
"""

from __future__ import annotations

import json
import keyword
import os
import re
import secrets
from pathlib import Path
from typing import Any

from grader.core import files, symbols
from grader.core.layout import COURSE_FILE
from grader.course import percent, rules
from grader.course.percent import Findings
from grader.course.tree import Course

TEMPLATES = Path(__file__).parent / "templates"
# Names that the checks of the skeleton use: they import those that the lesson's setup does not bind.
PUBLIC = ("ask", "compare", "np")
HIDDEN = ("compare", "inputs", "program", "np")


class ScaffoldError(Exception):
    """Something was not written; the text is one or two sentences: why, and what to do."""


def add_exercise(course: Course, exercise: str, lesson: str) -> tuple[Path, int]:
    """Appends an exercise's skeleton to the course's own text of `lesson`; returns the file, and its first line there.
    Raises ScaffoldError for an illegal id or lesson, and for a file that cannot be written."""
    refuse_illegal(course, exercise, lesson)
    path = course.solutions(lesson)
    try:
        before = path.read_text(encoding="utf-8").rstrip("\n") + "\n\n\n" if path.is_file() else ""
        if not course.sources(lesson):
            before = _template("lesson.txt", number=lesson[:2], title=course.planned(lesson).title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(before + _skeleton(course, exercise, lesson), encoding="utf-8")
    except OSError as problem:
        raise ScaffoldError(f"{path} cannot be written: {problem.strerror}.") from None
    return path, before.count("\n") + 1


def refuse_illegal(course: Course, exercise: str, lesson: str) -> None:
    """Raises ScaffoldError for an id or a lesson that an exercise cannot have."""
    if lesson not in course.ids:
        known, outline = ", ".join(course.ids), course.root / COURSE_FILE
        raise ScaffoldError(f"There is no lesson {lesson}. Choose one of {known}, or add it to {outline}.")
    if not rules.ID.fullmatch(exercise) or exercise.split("-")[0] in rules.RESERVED_WORDS:
        text = f"{exercise} is not a valid id of an exercise. Use lowercase letters and hyphens, as in vmap-pairwise."
        raise ScaffoldError(text)
    owner = next((one for one in course.ids if exercise in course.exercise_ids(one)), None)
    if owner is not None:
        base = course.base
        below = base is not None and exercise in base.exercise_ids(owner)
        more = f" To add hidden checks to it, see docs/overlay.md of {base.root}." if below and base else ""
        raise ScaffoldError(f"{owner} already has an exercise {exercise}. Choose another id.{more}")


def _skeleton(course: Course, exercise: str, lesson: str) -> str:
    taken = _setup_names(course, lesson)
    name = exercise.partition("-")[2].replace("-", "_")
    if not name.isidentifier() or keyword.iskeyword(name) or name in taken | symbols.BUILTINS:
        name = exercise.replace("-", "_")
    imports = {one: f"from grader.checks import {one}\n" for one in (*PUBLIC, *HIDDEN)} | {"np": "import numpy as np\n"}
    public, hidden = ("".join(imports[n] for n in wanted if n not in taken) for wanted in (PUBLIC, HIDDEN))
    return _template("exercise.txt", id=exercise, lesson=lesson, name=name, public=public, hidden=hidden)


def _setup_names(course: Course, lesson: str) -> set[str]:
    """The names that the lesson's setup binds, as far as it can be read: the text may be half written."""
    written = [path.read_text(encoding="utf-8") for path in course.sources(lesson)]
    texts = written or [_template("lesson.txt", number="", title="")]
    cells = [cell for text in texts for cell in percent.read(text, percent.OVERLAY, Findings(lesson))]
    setup = [cell.source for cell in cells if cell.kind == "setup" and symbols.syntax_error(cell.source) is None]
    return {name for source in setup for name in symbols.cell_names(source).binds}


def make_overlay(folder: Path, base: Course) -> list[str]:
    """Makes `folder` an overlay over `base`, ready for nbgrader and git; returns the names of the files written.

    Existing files are kept. Raises ScaffoldError for a folder that cannot be one, before anything is written.
    """
    folder = folder.resolve()
    if folder.is_relative_to(base.root):
        text = f"{folder} is inside of {base.root}, so it would be published with that course. Choose a folder outside."
        raise ScaffoldError(text)
    if base.base is not None:
        raise ScaffoldError(f"{base.root} is an overlay itself. Run this in {base.base.root}, which it extends.")
    extends, name = Path(os.path.relpath(base.root, folder)).as_posix(), folder.name
    outline = _template("course.toml", extends=quoted(extends), name=quoted(name))
    course_id = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "class"
    try:
        (folder / "solutions").mkdir(parents=True, exist_ok=True)
        readme = _template("README.md", name=name, extends=extends)
        return [*write_secret(folder), *write_course(folder, outline, course_id, README=readme)]
    except OSError as problem:
        text = f"{folder} cannot be created: {problem.strerror}. Choose a writable folder."
        raise ScaffoldError(text) from None


def write_secret(folder: Path) -> list[str]:
    """Writes a `.secret` that nobody else can read, unless there is one; returns the names of the files written.

    Callers write it before course.toml, so that an interrupted run leaves no course without a secret.
    """
    try:
        opened = os.open(folder / ".secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return []
    with os.fdopen(opened, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return [".secret"]


def write_course(folder: Path, outline: str, course_id: str, **more: str) -> list[str]:
    """Writes the files that every course needs, unless they exist; returns the names of those written. Raises OSError.

    `outline` is its course.toml, `course_id` nbgrader's id of it, `more` the texts of Markdown files by their stems.
    """
    config = _template("nbgrader_config.txt", course_id=quoted(course_id))
    texts = {COURSE_FILE: outline, ".gitignore": _template("gitignore"), "nbgrader_config.py": config}
    texts |= {f"{name}.md": text for name, text in more.items()}
    missing = {name: text for name, text in texts.items() if not (folder / name).exists()}
    for name, text in missing.items():
        files.write(folder / name, text, mode=0o644)
    return list(missing)


def quoted(value: Any) -> str:
    """Returns a value as JSON writes it; TOML and Python write text in the same way."""
    return json.dumps(value, ensure_ascii=False)


def _template(file: str, /, **values: str) -> str:
    return (TEMPLATES / file).read_text(encoding="utf-8").format(**values)
