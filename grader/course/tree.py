"""The course as a tree of files: the lessons that course.toml lists, in order, and what each one contains."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.core.layout import COURSE_FILE, PAGES, course_above, course_source
from grader.course import nbgrader_lesson, reader
from grader.course.exercises import Lesson
from grader.course.nbgrader_lesson import ImportedText
from grader.course.percent import Cell, CourseError, Findings, Problem

if TYPE_CHECKING:
    from grader.course.deadlines import Deadlines

LESSON_ID = re.compile(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*")
MAX_DATA_FILES, MAX_DATA_BYTES = 100, 20 << 20  # of one lesson
DATA_PATH = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*){0,3}", re.ASCII)
REPOSITORY = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:/tree/([\w./-]+))?")
PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*|(?:git\+)?https://[\w./@#&=~:%+-]+")  # what pip installs, without options
MAX_OWN_FILES_MB = 20  # that a lesson may allow
OVERLAY_KEYS = (
    *("extends", "name", "lessons", "without", "lesson", "repository", "package", "deadlines", "late"),
    "own_files_mb",
)


@dataclass(frozen=True)
class Planned:
    """One lesson of course.toml, built or not. Where it is `edited`, `grader.course.rules_style` applies to it."""

    id: str
    title: str
    part: str
    edited: bool = False


class Course:
    """A course below `root`. Files are read when they are needed, once; CourseError lists what is wrong in them.
    In an overlay `base` is the course that it extends: its text is read there, and everything is built here. Learners'
    copies and all that is cached are written to `home`. This is `root`, unless `root` is the installed course."""

    def __init__(self, home: Path) -> None:
        self.home = Path(home).resolve()
        self.root = _source(self.home)
        content = _read_outline(self.root)
        self.base = _course_below((self.root / content["extends"]).resolve()) if "extends" in content else None
        self.name: str = content.get("name") or (self.base.name if self.base is not None else "")
        # Settings of the notebooks: where they are on GitHub, and what pip installs where the package is missing
        self.repository: str | None = content.get("repository")
        self.package: str | None = content.get("package") or (self.base.package if self.base is not None else None)
        self._chosen: list[str] | None = content.get("lessons") if self.base is not None else None
        self._without = frozenset[str](content.get("without", ()) if self.base is not None else ())
        self._own = tuple(
            Planned(one["id"], one["title"], one["part"], one.get("edited", False)) for one in content.get("lesson", ())
        )
        below = self.base._own_files_mb if self.base is not None else {}
        self._own_files_mb: dict[str, float] = {**below, **content.get("own_files_mb", {})}
        self._dates: dict[str, Any] = {name: content[name] for name in ("deadlines", "late") if name in content}
        self._lessons: dict[str, Lesson] = {}
        self._adopted: dict[str, ImportedText | None] = {}
        self._texts: dict[str, tuple[Cell, ...]] = {}
        self._refuse_strays()

    @classmethod
    def find(cls, start: Path | None = None) -> Course:
        """Returns the course that `start` (or the current directory) is in."""
        begin = Path(start or Path.cwd()).resolve()
        root = course_above(begin)
        if root is None:
            fix = "Change to the folder of a course, pass --course DIR, or create a folder with `grader lab`"
            raise CourseError([Problem(str(begin), 0, f"no {COURSE_FILE} in this folder or in one above it", fix)])
        return cls(root)

    @cached_property
    def outline(self) -> tuple[Planned, ...]:
        """The lessons that the course offers, in order of their numbers."""
        below = self.base.outline if self.base is not None else ()
        lessons = sorted((*below, *self._own), key=lambda planned: planned.id)
        return tuple(one for one in lessons if self._chosen is None or one.id in self._chosen)

    @cached_property
    def deadlines(self) -> Deadlines:
        """Due dates and the late policy of this course; not those of the course that an overlay extends. Raises
        CourseError and BadTable."""
        from grader.course import deadlines  # brings time zones, which only instructors' commands need

        return deadlines.read(self.root, self._dates, self.ids)

    @property
    def ids(self) -> tuple[str, ...]:
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
        """Returns the files with a lesson's exercises: the one below in an overlay, then its own."""
        below = self.base.sources(lesson_id) if self.base is not None else ()
        own = self.solutions(lesson_id)
        return (*below, own) if own.is_file() else below

    def script(self, lesson_id: str) -> Path:
        """Returns the lesson's own text. An overlay's replaces that of the course below."""
        own = self.root / "notebooks" / f"{lesson_id}.py"
        return own if self.base is None or own.is_file() else self.base.script(lesson_id)

    def planned(self, lesson_id: str) -> Planned:
        """Returns the entry of course.toml. Raises CourseError, which lists the ids there are."""
        found = next((planned for planned in self.outline if planned.id == lesson_id), None)
        if found is None:
            fix = f"The lessons are {', '.join(self.ids)}"
            raise CourseError([Problem(COURSE_FILE, 1, f"there is no lesson `{lesson_id}`", fix)])
        return found

    def lesson(self, lesson_id: str) -> Lesson:
        """Returns the exercises of a lesson, which follow every rule. Raises CourseError."""
        title = self.planned(lesson_id).title
        if lesson_id not in self.lesson_ids:
            message = f"lesson `{lesson_id}` has no exercises yet"
            fix = f"Lessons with exercises: {', '.join(self.lesson_ids) or 'none'}"
            raise CourseError([Problem(self.shown(self.solutions(lesson_id)), 1, message, fix)])
        if lesson_id not in self._lessons:
            imported = self.adopted(lesson_id)
            texts = {self.shown(path): path for path in self.sources(lesson_id)}
            rule = lambda skill, before: self._skill_problem(skill, lesson_id, before)
            taken = {e for one in self._all_ids if one != lesson_id for e in self.exercise_ids(one)}
            lesson = (
                nbgrader_lesson.lesson(imported, title)
                if imported is not None
                else reader.lesson(texts, lesson_id, title, rule, taken, self._without)
            )
            own_files_bytes = self.own_files_bytes(lesson_id)
            self._lessons[lesson_id] = replace(lesson, data=self.data(lesson_id), own_files_bytes=own_files_bytes)
        return self._lessons[lesson_id]

    def data(self, lesson_id: str) -> dict[str, bytes]:
        """Returns the files that lie beside a lesson's notebook, by path: those in `solutions/<id>/`.

        One of an overlay replaces that of the course below. Raises CourseError.
        """
        folder = self.solutions(lesson_id).with_suffix("")
        findings, found, size = Findings(self.shown(folder)), {}, 0
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if re.search(r"(^|/)(\.|__pycache__)", name) or (path.is_dir() and not path.is_symlink()):
                continue
            if path.is_symlink() or not path.is_file():
                findings.add(1, f"`{name}` is a link or no file", "Put the file itself there")
            elif not is_data_path(name):
                fix = "Use letters, digits and . _ - in at most 4 parts, and no notebook or page (html, svg, xml)"
                findings.add(1, f"`{name}` cannot be released beside a notebook", fix)
            else:
                size += path.stat().st_size
                if size <= MAX_DATA_BYTES:
                    found[name] = path.read_bytes()
        if len(found) > MAX_DATA_FILES or size > MAX_DATA_BYTES:
            message = f"a lesson's files are at most {MAX_DATA_FILES}, and {MAX_DATA_BYTES >> 20} MB in all"
            findings.add(1, message, "Ship less, or draw the data in the setup")
        findings.stop()
        return {**(self.base.data(lesson_id) if self.base is not None else {}), **found}

    def own_files_bytes(self, lesson_id: str) -> int:
        """Returns how many bytes of files of their own learners may submit beside this lesson's notebook."""
        return int(self._own_files_mb.get(lesson_id, 0) * 1e6)

    def adopted(self, lesson_id: str) -> ImportedText | None:
        """Returns the text of a lesson whose exercises were imported from nbgrader; None for any other lesson."""
        if lesson_id not in self._adopted:
            paths = self.sources(lesson_id)
            imported = any(nbgrader_lesson.is_imported(path) for path in paths)
            if imported and len(paths) > 1:
                message = "an imported text takes no cells of an overlay, and adds none to a lesson"
                raise CourseError([Problem(self.shown(paths[-1]), 1, message, "Give it a lesson of its own")])
            self._adopted[lesson_id] = nbgrader_lesson.read(paths[0], self.shown(paths[0])) if imported else None
        return self._adopted[lesson_id]

    def text(self, lesson_id: str) -> tuple[Cell, ...]:
        """Returns the cells of a lesson's own script, which follow every rule. Raises CourseError."""
        if lesson_id not in self._texts:
            path = self.script(lesson_id)
            self._texts[lesson_id] = reader.script(path, self.shown(path), lesson_id)
        return self._texts[lesson_id]

    def shown(self, path: Path) -> str:
        """Returns the path as messages and links write it: relative to the course, with forward slashes."""
        return Path(os.path.relpath(path, self.home)).as_posix()

    def exercise_ids(self, lesson_id: str) -> tuple[str, ...]:
        """Returns the ids of a lesson's exercises, without parsing its text."""
        below = self.base.exercise_ids(lesson_id) if self.base is not None else ()
        own = self.solutions(lesson_id)
        written = reader.ANSWER_LINE.findall(own.read_text(encoding="utf-8")) if own.is_file() else ()
        return (*(one for one in below if one not in self._without), *written)

    def exercise_title(self, exercise_id: str, lesson_id: str) -> str:
        """Returns the heading of an exercise's task, without parsing the lesson's text; its id if there is none."""
        heading = re.compile(
            rf'^# %% \[markdown\] task="{re.escape(exercise_id)}".*\n(?:#?\s*\n)*#? ?##? +(.+?) *$', re.M
        )
        found = [heading.search(path.read_text(encoding="utf-8")) for path in self.sources(lesson_id)]
        return next((match[1] for match in found if match), exercise_id)

    @cached_property
    def _all_ids(self) -> tuple[str, ...]:
        """Includes lessons that an overlay does not offer: what they teach counts as taught."""
        below = self.base.ids if self.base is not None else ()
        return tuple(sorted((*below, *(planned.id for planned in self._own))))

    def _skill_problem(self, skill: str, lesson_id: str, before: Collection[str]) -> str | None:
        """What is wrong with a skill that an exercise of this lesson uses after the exercises `before` it, or None."""
        every = self._all_ids
        until = every[: every.index(lesson_id)]
        if skill in (*until, lesson_id, *before, *self._without):
            return None
        if skill in every:
            return "is taught in a later lesson"
        owner = next((one for one in every if skill in self.exercise_ids(one)), None)
        if owner is None:
            return "is no lesson of course.toml and no exercise"
        return None if owner in until else f"is an exercise of {owner}, which comes no earlier"

    def _refuse_strays(self) -> None:
        """Raises CourseError for ids that lead nowhere, and for files that course.toml does not list: nobody would
        notice that those are never built."""
        findings = Findings(COURSE_FILE)
        if self.base is not None:
            taken = {one[:2]: one for one in self.base.ids}
            for planned in self._own:
                if planned.id[:2] in taken:
                    message = f"lesson `{planned.id}` has the number of `{taken[planned.id[:2]]}` of the course below"
                    findings.add(1, message, "Give it a number that is free")
            for lesson_id in sorted({*(self._chosen or ())} - {*self._all_ids}):
                fix = f"The lessons are {', '.join(self._all_ids)}"
                findings.add(1, f"`lessons` names `{lesson_id}`, which is no lesson", fix)
            below = {one for lesson_id in self.base.ids for one in self.base.exercise_ids(lesson_id)}
            for one in self._without - below:
                message = f"`without` names `{one}`, which is no exercise of the course below"
                findings.add(1, message, "Correct the id")
        for lesson_id in sorted({*self._own_files_mb} - {*self._all_ids}):
            fix = f"The lessons are {', '.join(self._all_ids)}"
            findings.add(1, f"`own_files_mb` names `{lesson_id}`, which is no lesson", fix)
        for pattern in ("solutions/*.py", "notebooks/*.py", "solutions/*/"):
            for path in self.root.glob(pattern):
                if path.stem not in (*self._all_ids, "__pycache__") and not path.name.startswith("."):
                    message, fix = f"{COURSE_FILE} lists no lesson `{path.stem}`", "Add it there, or rename the file"
                    findings.problems.append(Problem(self.shown(path), 1, message, fix))
        findings.stop()


def is_data_path(name: str) -> bool:
    """Returns whether a file of this path can be released beside a notebook."""
    return bool(DATA_PATH.fullmatch(name)) and not any(Path(name.lower()).match(one) for one in (*PAGES, "*.ipynb"))


def _course_below(root: Path) -> Course:
    """The course that an overlay extends; its problems are reported with its folder."""
    try:
        if "extends" in _read_outline(root):
            message = "this is an overlay, and an overlay extends no other"
            raise CourseError([Problem(COURSE_FILE, 1, message, "Extend the course that it extends")])
        return Course(root)
    except CourseError as error:
        raise CourseError(replace(problem, path=str(root / problem.path)) for problem in error.problems) from None


def _source(home: Path) -> Path:
    """The folder that a course is read from; a course.toml that cannot be read is reported with its line later."""
    try:
        return course_source(home)
    except ValueError:
        return home


def _read_outline(root: Path) -> dict[str, Any]:
    """The content of course.toml, checked; "extends" is in that of an overlay."""
    source = (root / COURSE_FILE).read_text(encoding="utf-8")
    findings = Findings(COURSE_FILE)
    try:
        content = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        problem = Problem(COURSE_FILE, int(line[1]) if line else 1, f"not TOML: {error}", "Correct the line")
        raise CourseError([problem]) from None
    overlay, lessons = "extends" in content, content.get("lesson", [])
    if not isinstance(content.get("name", "" if overlay else None), str):
        findings.add(1, "the course has no name", 'Add `name = "..."` at the top')
    for key, pattern, example in (
        ("repository", REPOSITORY, "https://github.com/OWNER/NAME, or .../tree/BRANCH"),
        ("package", PACKAGE, "a name on the package index, or git+https://..."),
    ):
        if key in content and not (isinstance(content[key], str) and pattern.fullmatch(content[key])):
            findings.add(1, f"`{key}` cannot be used in notebooks", f"Write {example}")
    for number, entry in enumerate(lessons):
        _check_lesson(entry, [str(one.get("id")) for one in lessons[:number]], source, findings)
    own_files = content.get("own_files_mb", {})
    is_size = lambda size: type(size) in (int, float) and 0 <= size <= MAX_OWN_FILES_MB
    if not isinstance(own_files, dict) or not all(map(is_size, own_files.values())):
        message = f"`own_files_mb` gives each lesson a number of MB, from 0 to {MAX_OWN_FILES_MB}"
        findings.add(1, message, "Write `own_files_mb = { 05_vmap = 5 }`")
    if overlay:
        _check_overlay(root, content, source, findings)
    elif not lessons:
        findings.add(1, "the course lists no lesson", "Add `[[lesson]]` with id, title and part")
    findings.stop()
    return content


def _check_overlay(root: Path, content: dict[str, Any], source: str, findings: Findings) -> None:
    line = lambda key: next((n for n, text in enumerate(source.split("\n"), 1) if text.lstrip().startswith(key)), 1)
    for key in content:
        if key not in OVERLAY_KEYS:
            findings.add(line(key), f"an overlay has no `{key}`", f"It takes {', '.join(OVERLAY_KEYS)}")
    for key in ("lessons", "without"):
        value = content.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            findings.add(line(key), f"`{key}` is no list of ids", f'Write `{key} = ["...", "..."]`')
    extends = content["extends"]
    if not isinstance(extends, str) or not (root / extends / COURSE_FILE).is_file():
        fix = f"Let it lead to the folder that holds the other course's {COURSE_FILE}, from here or from /"
        findings.add(line("extends"), f"there is no course in `{extends}`, which `extends` names", fix)


def _check_lesson(entry: dict[str, Any], before: list[str], source: str, findings: Findings) -> None:
    lesson_id = entry.get("id")
    line = max((n for n, text in enumerate(source.split("\n"), 1) if f'"{lesson_id}"' in text), default=1)
    if not isinstance(lesson_id, str) or not LESSON_ID.fullmatch(lesson_id):
        findings.add(line, f"`{lesson_id}` is no legal id for a lesson", "Write it as `05_vmap`")
    elif lesson_id in before:
        findings.add(line, f"`{lesson_id}` is listed twice: a duplicate id", "Keep one")
    elif before and lesson_id[:2] <= before[-1][:2]:
        findings.add(line, f"`{lesson_id}` stands after `{before[-1]}`", "List lessons by number, each number once")
    for key in ("title", "part"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            findings.add(line, f"lesson `{lesson_id}` has no {key}", f'Add `{key} = "..."`')
    if not isinstance(entry.get("edited", False), bool):
        findings.add(line, f"`edited` of lesson `{lesson_id}` is not true or false", "Write `edited = true`")
