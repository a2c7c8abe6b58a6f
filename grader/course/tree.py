"""The course as a tree of files: which lessons there are, in which order, and what each one holds."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from grader.course import nbgrader_lesson, nbgrader_source, reader
from grader.course.exercises import Lesson
from grader.course.nbgrader_source import ImportedText
from grader.course.outline import FILE, Outline, Planned, read_outline
from grader.course.percent import Cell
from grader.course.problems import CourseError, Problem

__all__ = ["FILE", "Course", "Planned"]


class Course:
    """A course below `root`. Files are read when they are asked for, once; CourseError says what is wrong in them.

    In an overlay `base` is the course that it extends: its text is read there, and everything is built here.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root).resolve()
        told = read_outline(self.root)
        self.base = _below(told.extends) if told.extends is not None else None
        self._told: Outline = told if self.base is None else told.upon(self.base._told)
        self.name = self._told.name
        self._lessons: dict[str, Lesson] = {}
        self._adopted: dict[str, ImportedText | None] = {}
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

    @cached_property
    def outline(self) -> tuple[Planned, ...]:
        """The lessons that the course offers, in order."""
        return tuple(one for one in self._told.lessons if self._told.chosen is None or one.id in self._told.chosen)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all lessons that the course offers, in order."""
        return tuple(planned.id for planned in self.outline)

    @cached_property
    def lesson_ids(self) -> tuple[str, ...]:
        """The lessons whose exercises are written (`solutions/<id>.py`), in order."""
        return tuple(i for i in self.ids if self.sources(i))

    @cached_property
    def text_ids(self) -> tuple[str, ...]:
        """The lessons whose own text is written (`notebooks/<id>.py`), in order."""
        return tuple(i for i in self.ids if self.script(i).is_file())

    def solutions(self, lesson_id: str) -> Path:
        return self.root / "solutions" / f"{lesson_id}.py"

    def sources(self, lesson_id: str) -> tuple[Path, ...]:
        """The files that hold a lesson's exercises: the one below in an overlay, then its own."""
        below = self.base.sources(lesson_id) if self.base is not None else ()
        own = self.solutions(lesson_id)
        return (*below, own) if own.is_file() else below

    def script(self, lesson_id: str) -> Path:
        """The lesson's own text. An overlay's stands in for that of the course below."""
        own = self.root / "notebooks" / f"{lesson_id}.py"
        return own if self.base is None or own.is_file() else self.base.script(lesson_id)

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
            if lesson_id not in self.lesson_ids:
                known = ", ".join(self.lesson_ids) or "none"
                message = f"lesson `{lesson_id}` has no exercises yet"
                path = self.shown(self.solutions(lesson_id))
                raise CourseError([Problem(path, 1, message, f"Lessons with exercises: {known}")])
            script = self.script(lesson_id) if lesson_id in self.text_ids else None
            imported = self.adopted(lesson_id)
            if imported is not None:
                self._lessons[lesson_id] = nbgrader_lesson.lesson(imported, planned.title, script)
                return self._lessons[lesson_id]
            others = {e for one in self._all_ids if one != lesson_id for e in self.exercise_ids(one)}
            self._lessons[lesson_id] = reader.lesson(
                {self.shown(path): path for path in self.sources(lesson_id)},
                lesson_id,
                planned.title,
                script,
                lambda skill, before: self._taught(skill, lesson_id, before),
                others,
                self._told.without,
            )
        return self._lessons[lesson_id]

    def adopted(self, lesson_id: str) -> ImportedText | None:
        """The text of a lesson whose exercises were imported from nbgrader; None for one that was written here."""
        if lesson_id not in self._adopted:
            paths = self.sources(lesson_id)
            imported = [path for path in paths if nbgrader_source.is_adopted(path)]
            if imported and len(paths) > 1:
                message = "an imported text takes no cells of an overlay, and adds none to a lesson"
                raise CourseError([Problem(self.shown(paths[-1]), 1, message, "Give it a lesson of its own")])
            self._adopted[lesson_id] = nbgrader_source.read(paths[0], self.shown(paths[0])) if imported else None
        return self._adopted[lesson_id]

    def text(self, lesson_id: str) -> tuple[Cell, ...]:
        """The cells of a lesson's own script, read and held against every rule."""
        if lesson_id not in self._texts:
            path = self.script(lesson_id)
            self._texts[lesson_id] = reader.lesson_text(path, self.shown(path), lesson_id)
        return self._texts[lesson_id]

    def shown(self, path: Path) -> str:
        """The path as messages and links write it: seen from the course, with forward slashes."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def exercise_ids(self, lesson_id: str) -> tuple[str, ...]:
        """The ids of a lesson's exercises, without reading it closely."""
        below = self.base.exercise_ids(lesson_id) if self.base is not None else ()
        own = self.solutions(lesson_id)
        written = reader.answer_ids(own) if own.is_file() else ()
        return (*(one for one in below if one not in self._told.without), *written)

    @property
    def _all_ids(self) -> tuple[str, ...]:
        """Lessons that an overlay does not offer, too: what they teach counts as taught."""
        return tuple(planned.id for planned in self._told.lessons)

    def _taught(self, skill: str, lesson_id: str, before: Collection[str]) -> str | None:
        """What is wrong with a skill that an exercise of this lesson uses after the exercises `before` it, or None."""
        every = self._all_ids
        place = every.index(lesson_id)
        if skill in every:
            return None if every.index(skill) <= place else "is taught in a later lesson"
        if skill in before or skill in self._told.without:
            return None
        for other in every:
            if skill in self.exercise_ids(other):
                earlier = every.index(other) < place
                return None if earlier else f"is an exercise of {other}, which comes no earlier"
        return "is no lesson of course.toml and no exercise"

    def _refuse_strays(self) -> None:
        """A file that course.toml does not list would never be built, and nobody would notice."""
        problems = [
            Problem(self.shown(path), 1, f"{FILE} lists no lesson `{path.stem}`", "Add it there, or rename the file")
            for folder in ("solutions", "notebooks")
            for path in sorted((self.root / folder).glob("*.py"))
            if path.stem not in self._all_ids
        ]
        if self.base is not None:
            below = {one for lesson_id in self.base.ids for one in self.base.exercise_ids(lesson_id)}
            problems += [
                Problem(FILE, 1, f"`without` names `{one}`, which is no exercise of the course below", "Correct the id")
                for one in sorted(self._told.without - below)
            ]
        if problems:
            raise CourseError(problems)


def _below(root: Path) -> Course:
    """The course that an overlay extends; what is wrong in it is told with where it lies."""
    try:
        if read_outline(root).extends is not None:
            message = "this is an overlay, and an overlay extends no other"
            raise CourseError([Problem(FILE, 1, message, "Extend the course that it extends")])
        return Course(root)
    except CourseError as error:
        raise CourseError(replace(problem, path=str(root / problem.path)) for problem in error.problems) from None
