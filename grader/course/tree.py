"""The course as a tree of files: which lessons there are, in which order, and what each one holds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grader.course import read
from grader.course.exercises import Lesson
from grader.course.problems import CourseError, Findings, Problem
from grader.course.text import Cell

FILE = "course.toml"
LESSON_ID = re.compile(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*")


@dataclass(frozen=True)
class Planned:
    """One lesson of course.toml, built or not."""

    id: str
    title: str
    part: str


class Course:
    """A course below `root`. Files are read when they are asked for, once; CourseError says what is wrong in them."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).resolve()
        self.name, self.outline = _outline(self.root / FILE)
        self._lessons: dict[str, Lesson] = {}
        self._texts: dict[str, tuple[Cell, ...]] = {}
        self._refuse_strays()

    @classmethod
    def find(cls, start: Path | None = None) -> Course:
        """The course that `start` (or the current directory) lies in."""
        begin = Path(start or Path.cwd()).resolve()
        for folder in (begin, *begin.parents):
            if (folder / FILE).is_file():
                return cls(folder)
        problem = Problem(str(begin), 1, f"no {FILE} here or above", "Go into a course, or name one with --course DIR")
        raise CourseError([problem])

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all lessons of course.toml, in order."""
        return tuple(planned.id for planned in self.outline)

    @cached_property
    def lesson_ids(self) -> tuple[str, ...]:
        """The lessons whose exercises are written (`solutions/<id>.py`), in order."""
        return tuple(i for i in self.ids if self.solutions(i).is_file())

    @cached_property
    def text_ids(self) -> tuple[str, ...]:
        """The lessons whose own text is written (`notebooks/<id>.py`), in order."""
        return tuple(i for i in self.ids if self.script(i).is_file())

    def solutions(self, lesson_id: str) -> Path:
        return self.root / "solutions" / f"{lesson_id}.py"

    def script(self, lesson_id: str) -> Path:
        return self.root / "notebooks" / f"{lesson_id}.py"

    def planned(self, lesson_id: str) -> Planned:
        """The entry of course.toml; CourseError names the ids there are."""
        for planned in self.outline:
            if planned.id == lesson_id:
                return planned
        problem = Problem(FILE, 1, f"there is no lesson `{lesson_id}`", f"The lessons are {', '.join(self.ids)}")
        raise CourseError([problem])

    def lesson(self, lesson_id: str) -> Lesson:
        """The exercises of a lesson, read and held against every rule."""
        if lesson_id not in self._lessons:
            planned = self.planned(lesson_id)
            path = self.solutions(lesson_id)
            if lesson_id not in self.lesson_ids:
                known = ", ".join(self.lesson_ids) or "none"
                message = f"lesson `{lesson_id}` has no exercises yet"
                raise CourseError([Problem(self.shown(path), 1, message, f"Lessons with exercises: {known}")])
            script = self.script(lesson_id) if lesson_id in self.text_ids else None
            others = {e for other in self.lesson_ids if other != lesson_id for e in self._exercise_ids(other)}
            self._lessons[lesson_id] = read.lesson(
                path,
                self.shown(path),
                lesson_id,
                planned.title,
                script,
                lambda skill, before: self._taught(skill, lesson_id, before),
                others,
            )
        return self._lessons[lesson_id]

    def text(self, lesson_id: str) -> tuple[Cell, ...]:
        """The cells of a lesson's own script, read and held against every rule."""
        if lesson_id not in self._texts:
            path = self.script(lesson_id)
            self._texts[lesson_id] = read.lesson_text(path, self.shown(path), lesson_id)
        return self._texts[lesson_id]

    def shown(self, path: Path) -> str:
        """The path as messages and links write it: relative to the course, with forward slashes."""
        return path.relative_to(self.root).as_posix()

    def _exercise_ids(self, lesson_id: str) -> tuple[str, ...]:
        return read.answer_ids(self.solutions(lesson_id))

    def _taught(self, skill: str, lesson_id: str, before: Collection[str]) -> str | None:
        """What is wrong with a skill that an exercise of this lesson uses after the exercises `before` it, or None."""
        place = self.ids.index(lesson_id)
        if skill in self.ids:
            return None if self.ids.index(skill) <= place else "is taught in a later lesson"
        if skill in before:
            return None
        for other in self.lesson_ids:
            if skill in self._exercise_ids(other):
                earlier = self.ids.index(other) < place
                return None if earlier else f"is an exercise of {other}, which comes no earlier"
        return "is no lesson of course.toml and no exercise"

    def _refuse_strays(self) -> None:
        """A file that course.toml does not list would never be built, and nobody would notice."""
        problems = [
            Problem(self.shown(path), 1, f"{FILE} lists no lesson `{path.stem}`", "Add it there, or rename the file")
            for folder in ("solutions", "notebooks")
            for path in sorted((self.root / folder).glob("*.py"))
            if path.stem not in self.ids
        ]
        if problems:
            raise CourseError(problems)


def _outline(path: Path) -> tuple[str, tuple[Planned, ...]]:
    source = path.read_text(encoding="utf-8")
    findings = Findings(FILE)
    try:
        content = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        findings.add(int(line[1]) if line else 1, f"not TOML: {error}", "Mend the line")
        content = {}
    findings.stop()
    if not isinstance(content.get("name"), str):
        findings.add(1, "the course has no name", 'Add `name = "..."` at the top')
    found: list[Planned] = []
    for entry in content.get("lesson", []):
        found.append(_planned(entry, [p.id for p in found], source, findings))
    if not found:
        findings.add(1, "the course lists no lesson", "Add `[[lesson]]` with id, title and part")
    findings.stop()
    return content["name"], tuple(found)


def _planned(entry: dict[str, Any], before: list[str], source: str, findings: Findings) -> Planned:
    lesson_id, title, part = (entry.get(key) for key in ("id", "title", "part"))
    lines = [n for n, line in enumerate(source.split("\n"), 1) if f'"{lesson_id}"' in line]
    line = lines[-1] if lines else 1
    if not isinstance(lesson_id, str) or not LESSON_ID.fullmatch(lesson_id):
        findings.add(line, f"`{lesson_id}` is no legal id for a lesson", "Write it as `05_vmap`")
    elif lesson_id in before:
        findings.add(line, f"`{lesson_id}` is listed twice: a duplicate id", "Keep one")
    elif before and lesson_id[:2] <= before[-1][:2]:
        findings.add(line, f"`{lesson_id}` stands after `{before[-1]}`", "List lessons by number, each number once")
    for key, value in (("title", title), ("part", part)):
        if not isinstance(value, str) or not value:
            findings.add(line, f"lesson `{lesson_id}` has no {key}", f'Add `{key} = "..."`')
    return Planned(str(lesson_id), str(title), str(part))
