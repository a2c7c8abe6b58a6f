"""What course.toml says: the lessons in their order, and, in an overlay, which course it extends."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader.course.problems import Findings

FILE = "course.toml"
LESSON_ID = re.compile(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*")
OVERLAY_KEYS = ("extends", "name", "lessons", "without", "lesson")


@dataclass(frozen=True)
class Planned:
    """One lesson of course.toml, built or not."""

    id: str
    title: str
    part: str


@dataclass(frozen=True)
class Outline:
    """A course.toml, read. Of an overlay: `extends` is the folder of the course below it, `chosen` the lessons that
    it offers (None for all), `without` the exercises of the course below that it leaves out."""

    name: str
    lessons: tuple[Planned, ...]
    extends: Path | None = None
    chosen: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def upon(self, base: Outline) -> Outline:
        """This overlay's outline with the lessons of the course that it extends, in order of their numbers.

        CourseError where a number is taken twice or a lesson is chosen that is in neither.
        """
        findings = Findings(FILE)
        taken = {planned.id[:2]: planned.id for planned in base.lessons}
        for planned in self.lessons:
            if planned.id[:2] in taken:
                message = f"lesson `{planned.id}` has the number of `{taken[planned.id[:2]]}` of the course below"
                findings.add(1, message, "Give it a number that is free")
        lessons = tuple(sorted((*base.lessons, *self.lessons), key=lambda planned: planned.id))
        known = [planned.id for planned in lessons]
        for lesson_id in sorted((self.chosen or set()) - set(known)):
            findings.add(1, f"`lessons` names `{lesson_id}`, which is no lesson", f"The lessons are {', '.join(known)}")
        findings.stop()
        return replace(self, name=self.name or base.name, lessons=lessons)


def read_outline(root: Path) -> Outline:
    """The course.toml in `root`. CourseError with all that is wrong in it."""
    source = (root / FILE).read_text(encoding="utf-8")
    findings = Findings(FILE)
    try:
        content = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        findings.add(int(line[1]) if line else 1, f"not TOML: {error}", "Mend the line")
        content = {}
    findings.stop()
    overlay = "extends" in content
    if not isinstance(content.get("name", "" if overlay else None), str):
        findings.add(1, "the course has no name", 'Add `name = "..."` at the top')
    found: list[Planned] = []
    for entry in content.get("lesson", []):
        found.append(_planned(entry, [p.id for p in found], source, findings))
    if not found and not overlay:
        findings.add(1, "the course lists no lesson", "Add `[[lesson]]` with id, title and part")
    outline = _overlay(root, content, source, findings) if overlay else Outline("", ())
    findings.stop()
    return replace(outline, name=content.get("name", ""), lessons=tuple(found))


def _overlay(root: Path, content: dict[str, Any], source: str, findings: Findings) -> Outline:
    for key in content:
        if key not in OVERLAY_KEYS:
            findings.add(_line(source, key), f"an overlay has no `{key}`", f"It takes {', '.join(OVERLAY_KEYS)}")
    lists: dict[str, frozenset[str] | None] = {}
    for key in ("lessons", "without"):
        value = content.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            findings.add(_line(source, key), f"`{key}` is no list of ids", f'Write `{key} = ["...", "..."]`')
        lists[key] = None if value is None else frozenset(one for one in value if isinstance(one, str))
    extends = content["extends"]
    if not isinstance(extends, str) or not (root / extends / FILE).is_file():
        mend = f"Let it lead to the folder that holds the other course's {FILE}, from here or from /"
        findings.add(_line(source, "extends"), f"there is no course in `{extends}`, which `extends` names", mend)
        extends = ""
    return Outline("", (), (root / extends).resolve(), lists["lessons"], lists["without"] or frozenset())


def _line(source: str, key: str) -> int:
    lines = [n for n, line in enumerate(source.split("\n"), 1) if line.lstrip().startswith(key)]
    return lines[0] if lines else 1


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
