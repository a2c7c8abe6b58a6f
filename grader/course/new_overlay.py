"""Makes an instructor's own folder: an overlay over a course, with a secret, ready for nbgrader and git."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

from grader.course.outline import FILE
from grader.course.tree import Course

OUTLINE = """\
# An overlay: text of your own over the course that it extends. What each line means: docs/overlay.md of that course.
extends = {extends}
name = {name}
# lessons = ["05_vmap"]          # offer these only; without the line, all
# without = ["vmap-pairwise"]    # leave these exercises of the course below out

# Lessons of your own, with numbers that the course below has not:
# [[lesson]]
# id = "40_project"
# title = "Project"
# part = "V. Ours"
"""

IGNORED = """\
# the secret, learners' data, and what is built
/.secret
/gradebook.db*
/submitted/
/build/
/work/
/exercises/
/notebooks/*.ipynb
.nbgrader.log
.ipynb_checkpoints/
"""

CONFIG = '''\
"""This folder is a course of nbgrader's: its commands, Formgrader and the Assignment List work in it."""

from pathlib import Path

from grader.lms.nbgrader_settings import configure

c = get_config()  # noqa: F821 (nbgrader defines it)
configure(c, Path(__file__).resolve().parent)
c.CourseDirectory.course_id = {course_id}
# Grades go to gradebook.db here. For another database, such as PostgreSQL:
# c.CourseDirectory.db_url = "postgresql://..."
'''

README = """\
# {name}

Exercises and hidden checks of our own over the course in `{extends}`. **Private:** whoever reads `solutions/` knows
every answer, and whoever has `.secret` can work out the inputs of the hidden checks.

    grader new exercise ID --lesson NN_topic    # the skeleton of an exercise, in solutions/
    grader build                                # notebooks, here; says what is still to write
    grader prove                                # right answers pass, wrong ones do not
    grader preview NN_topic                     # what learners will read
    grader grade submitted --gradebook          # after nbgrader generate_assignment NN_topic

Run them here. `.secret` is in no repository: keep a copy of it where you keep passwords, since without it a regrade
draws other inputs.
"""


class ScaffoldError(Exception):
    """Something was not written; the text is one or two sentences that say why, and what to do."""


def make(folder: Path, base: Course) -> list[str]:
    """Make `folder` an overlay over `base`; the names of the files that were written.

    Files that are there already are kept. NotMade for a place that cannot hold one, before anything is written.
    """
    folder = folder.resolve()
    if folder.is_relative_to(base.root):
        raise ScaffoldError(
            f"{folder} lies inside of {base.root}, and goes where that course goes. Name a folder elsewhere."
        )
    if base.base is not None:
        raise ScaffoldError(f"{base.root} is an overlay itself. Run this in {base.base.root}, which it extends.")
    extends = Path(os.path.relpath(base.root, folder)).as_posix()
    name = folder.name
    course_id = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "class"
    files = {
        FILE: OUTLINE.format(extends=_quoted(extends), name=_quoted(name)),
        ".gitignore": IGNORED,
        "nbgrader_config.py": CONFIG.format(course_id=_quoted(course_id)),
        "README.md": README.format(name=name, extends=extends),
    }
    made = []
    try:
        (folder / "solutions").mkdir(parents=True, exist_ok=True)
        if write_secret(folder):
            made.append(".secret")
        for path, text in files.items():
            if not (folder / path).exists():
                (folder / path).write_text(text, encoding="utf-8")
                made.append(path)
    except OSError as problem:
        raise ScaffoldError(
            f"{folder} cannot be made: {problem.strerror}. Name a folder that can be written to."
        ) from None
    return made


def write_secret(folder: Path) -> bool:
    """Write a new `.secret` that nobody else can read; whether there was none."""
    try:
        opened = os.open(folder / ".secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(opened, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return True


def _quoted(text: str) -> str:
    """As TOML and Python both write it."""
    return json.dumps(text, ensure_ascii=False)
