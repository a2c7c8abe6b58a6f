"""Where an imported notebook goes: the course, the lesson in it, and the files that are written."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from grader.core import files as files_module
from grader.course import new_overlay
from grader.course.nbgrader_import import ImportedNotebook, ImportRefused
from grader.course.nbgrader_source import attachments_path
from grader.course.outline import FILE, LESSON_ID
from grader.course.tree import Course


@dataclass(frozen=True)
class ImportTarget:
    """The lesson that a notebook becomes. `entry` says that the course does not list it yet."""

    root: Path
    lesson: str
    new_course: bool
    entry: bool

    @property
    def path(self) -> Path:
        """The authored file."""
        return self.root / "solutions" / f"{self.lesson}.py"

    def write(self, taken: ImportedNotebook) -> list[str]:
        """Write the text and enter the lesson in course.toml, in an order that an interruption does no harm to;
        returns a sentence about each other file than the text."""
        said = []
        listing = self.root / FILE
        if self.new_course:
            files = {
                FILE: f"name = {_toml(self.root.name or 'Course')}\n",
                ".gitignore": new_overlay.IGNORED,
                "nbgrader_config.py": new_overlay.CONFIG.format(course_id=_toml(_slug(self.root.name))),
            }
            made = {name: text for name, text in files.items() if not (self.root / name).exists()}
            for name, text in made.items():
                files_module.write(self.root / name, text, mode=0o644)
            names = [*made, *([".secret"] if new_overlay.write_secret(self.root) else [])]
            said.append(f"There was no course here: {self.root} is one now ({', '.join(names)}).")
        if self.entry:
            entry = f'\n[[lesson]]\nid = "{self.lesson}"\ntitle = {_toml(taken.title)}\npart = "Imported"\n'
            files_module.write(listing, listing.read_text(encoding="utf-8").rstrip("\n") + "\n" + entry, mode=0o644)
            said.append(f"{FILE} lists it as {self.lesson}, its last lesson.")
        beside = attachments_path(self.path)
        if taken.lesson.attachments:
            text = json.dumps(taken.lesson.attachments, indent=1, ensure_ascii=False)
            files_module.write(beside, f"{text}\n", mode=0o644)
            said.append(f"{beside.name} beside the text holds the pictures of its cells.")
        else:
            beside.unlink(missing_ok=True)
        files_module.write(self.path, taken.text, mode=0o644)
        if self.lesson not in Course(self.root).ids:
            said.append(f"`lessons` in {FILE} does not name it yet: add it there, or it is not offered.")
        return said


def place(start: Path, notebook: Path, lesson: str | None, force: bool) -> ImportTarget:
    """Where `notebook` goes in the course that `start` lies in, or in a new one there. Raises NotTaken; CourseError
    for a course that cannot be read."""
    found = next((folder for folder in (start, *start.parents) if (folder / FILE).is_file()), None)
    course = Course(found) if found is not None else None
    listed = {*course.ids, *(course.base.ids if course.base is not None else ())} if course is not None else set()
    last = max((int(one[:2]) for one in listed), default=0)
    name = lesson or f"{last + 1:02}_{_slug(notebook.stem)}"
    if not LESSON_ID.fullmatch(name):
        raise ImportRefused(f"`{name}` is no legal id for a lesson. Name one with --lesson, as in --lesson 05_vmap.")
    if name not in listed and listed and int(name[:2]) <= last:
        raise ImportRefused(
            f"{FILE} lists lessons by number, up to {last:02}. Enter {name} there, or give a higher number."
        )
    here = ImportTarget(found or start, name, found is None, name not in listed)
    if course is not None and course.base is not None and name in course.base.ids:
        raise ImportRefused(f"{name} is a lesson of the course below. Give the notebook a lesson of its own.")
    if here.path.exists() and not force:
        raise ImportRefused(f"{here.path} is there already. Choose another --lesson, or replace it with --force.")
    return here


def _slug(stem: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", stem.lower())) or "notebook"


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML string
