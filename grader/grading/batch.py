"""Batches of submissions: find them, hand each to a free examiner on the right devices, collect the results."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grader.core.faults import Fault, UnconfinedError
from grader.core.layout import EXAMINER
from grader.core.notebook import Unreadable, read_bytes
from grader.core.own_files import OwnFiles
from grader.core.own_files import read as read_own_files
from grader.core.result import CheckResult, Result, grader_fault
from grader.course import Course, Lesson
from grader.grading.cache import Parts, ResultCache
from grader.grading.pool import NEWS, Pool
from grader.sandbox.accelerators import ON_CPUS, Hardware
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import ConfinementReport

LOCAL_SECRET = "public"
UNCONFINED = (
    "This machine confines learners' code by resource limits alone, so a submission could read your files and use the "
    "network. `grader doctor` explains how to get more."
)
NEVER_PRELOAD = frozenset({"torch", "torchvision", "tensorflow", "keras"})  # importing them starts threads
ON_AN_ACCELERATOR = 2  # examiners side by side: each has four processes, and each of these half a GB of the device


@dataclass(frozen=True)
class Entry:
    """One notebook to grade."""

    path: Path
    learner: str
    lesson: str


# Grades entries: it gets them, a callback for each result, and cached results.
Engine = Callable[[list[Entry], Callable[[Entry, Result], None], Mapping[Entry, Result]], object]


class NothingToGrade(Exception):
    """No submission where one was looked for; the text states what was expected there."""


def find(folder: Path, course: Course, lesson: str | None = None) -> list[Entry]:
    """Returns the notebooks `<learner>/<lesson>/<lesson>.ipynb` under `folder`, by learner and lesson.

    A lesson's folder without its notebook is an entry too: grading then says what is missing. Raises `NothingToGrade`.
    """
    entries = [
        Entry(place / f"{place.name}.ipynb", place.parent.name, place.name)
        for place in sorted(folder.glob("*/*"))
        if place.name in course.lesson_ids and lesson in (None, place.name) and place.is_dir()
    ]
    if not entries:
        which = lesson or "one of " + ", ".join(course.lesson_ids)
        above = any((folder / one).is_dir() for one in course.lesson_ids)
        hint = f" If {folder} is the folder of one learner, pass the folder that contains it." if above else ""
        raise NothingToGrade(
            f"No submission in {folder}. Expected: <learner>/<lesson>/<lesson>.ipynb, where <lesson> is {which}.{hint}"
        )
    return entries


def own_files(lesson: Lesson, path: Path) -> OwnFiles:
    """Returns the learner's own files beside a notebook, as far as the lesson allows them."""
    return read_own_files(path.parent, lesson.own_files_bytes, lesson.data)


def strays(folder: Path, course: Course) -> list[Path]:
    """Returns paths in `folder` of loose notebooks, and of what lies in place of a lesson's folder and is none."""
    loose = [path for path in folder.glob("*.ipynb") if path.is_file()]
    others = [p for p in folder.glob("*/*") if p.name not in course.lesson_ids or not p.is_dir()]
    return sorted(path.relative_to(folder) for path in (*loose, *others) if not path.name.startswith("."))


def secret(course: Course) -> str:
    """Returns what the seeds of hidden inputs are made from: the file `.secret` beside course.toml, if there is one."""
    path = course.home / ".secret"
    return path.read_text().strip() if path.exists() else LOCAL_SECRET


def without_secret(course: Course) -> str | None:
    """Returns a warning where an overlay has no secret, since learners can then work out hidden inputs."""
    if course.base is None or secret(course) not in ("", LOCAL_SECRET):
        return None
    return (
        f"There is no secret in {course.home / '.secret'}, so learners can compute the inputs of hidden checks. "
        "docs/overlay.md explains how to create one. Grades may change then."
    )


def graded_before(course: Course, entries: Iterable[Entry], edition: Parts) -> dict[Entry, Result]:
    """Returns cached results of notebooks that have not changed since; `edition` is as for `grade`."""
    cache, found = ResultCache(course, secret(course), edition), {}
    for entry in entries:
        with contextlib.suppress(Unreadable):
            content = read_bytes(entry.path)
            own = own_files(course.lesson(entry.lesson), entry.path)
            result = cache.find(entry.learner, entry.lesson, content, own)
            if result is not None:
                found[entry] = result
    return found


def grade(
    course: Course,
    entries: Iterable[Entry],
    jobs: int | None = None,
    on_result: Callable[[Entry, Result], None] = lambda entry, result: None,
    *,
    allow_unsandboxed: bool = False,
    on_confined: Callable[[ConfinementReport], None] = lambda confined: None,
    edition: Parts | None = None,
    before: Mapping[Entry, Result] = MappingProxyType({}),
    machine: Hardware = ON_CPUS,
    on_judged: Callable[[Entry, list[CheckResult]], None] | None = None,
    only: str | None = None,
) -> list[Result]:
    """Grades `entries` and returns their results in the same order.

    Args:
        course: the course that the notebooks belong to.
        entries: the notebooks.
        jobs: examiners side by side; by default one for each core, and two on an accelerator, whose memory they share.
        on_result: called with each result as soon as it exists.
        allow_unsandboxed: whether to grade where only resource limits confine learners' code.
        on_confined: called with the confinement of learners' processes before the first one starts; it may raise.
        edition: `environment_fingerprint` of the grader; with it, results are cached for later runs.
        before: cached results. Each is used unless this machine now confines better than when it was made.
        machine: devices to grade on. Lessons that need more devices than it has are graded on simulated CPU devices.
        on_judged: called with the results of each exercise while a notebook is graded.
        only: the id of the one exercise to grade; such results are not cached.

    Raises:
        UnconfinedError: only limits would confine learners' code, and `allow_unsandboxed` is False.
    """
    done: dict[Entry, Result] = {}

    def note(entry: Entry, result: Result) -> None:
        done[entry] = result
        on_result(entry, result)

    entries = list(entries)
    for entry, result in before.items():
        if result.confinement == LEVELS[0]:
            note(entry, result)
    lessons = sorted({entry.lesson for entry in entries if entry not in done})
    for group in device_groups(course, machine, lessons):
        here = [entry for entry in entries if entry not in done and entry.lesson in group.lessons]
        opening = {"home": str(course.home), "secret": secret(course), "edition": edition}
        opening |= {"machine": asdict(group.machine), "notes": group.notes}
        platform = group.machine.platform
        at_once = cores(jobs or (None if platform.is_cpu else ON_AN_ACCELERATOR), len(here))
        modules, private = imports(course, group.lessons), private_folders(course, here)
        with Pool(EXAMINER, opening, at_once, modules, platform, group.count, hidden=private) as pool:
            if pool.confined.level == LEVELS[-1] and not allow_unsandboxed:
                raise UnconfinedError(UNCONFINED)
            on_confined(pool.confined)
            as_good = LEVELS[: LEVELS.index(pool.confined.level) + 1]
            for entry in here:
                if entry in before and before[entry].confinement in as_good:
                    note(entry, before[entry])
            todo = [entry for entry in here if entry not in done]
            requests = [
                {"path": str(e.path.absolute()), "learner": e.learner, "lesson": e.lesson, "only": only}
                | {NEWS: on_judged is not None}
                for e in todo
            ]
            pool.map(
                requests,
                lambda i, reply, todo=todo: note(todo[i], as_result(todo[i], reply)),  # type: ignore[misc]
                lambda i, news, todo=todo: on_judged and on_judged(todo[i], list(map(CheckResult.from_json, news))),  # type: ignore[misc]
            )
    return [done[entry] for entry in entries]


def private_folders(course: Course, entries: Iterable[Entry]) -> set[str]:
    """Returns the folders that answers must not read: those of the course, of the course that it extends, and of the
    submissions."""
    courses = (course, *([course.base] if course.base is not None else []))
    submitted = (entry.path.absolute().parents[:3][-1] for entry in entries)
    return {os.path.realpath(place) for place in (*(one.root for one in courses), course.home, *submitted)}


def as_result(entry: Entry, reply: Any) -> Result:
    """Returns the result that an examiner replied with, or that of a fault."""
    try:
        if not isinstance(reply, Fault):
            return Result.from_json(reply)
        reason = reply.message
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        reason = f"its examiner's reply is no result ({type(problem).__name__}: {problem})"
    return grader_fault(entry.learner, entry.lesson, reason)


@dataclass(frozen=True)
class DeviceGroup:
    """Devices, the lessons graded on them, and the most devices that one of these needs; `notes` state for lessons why
    they are not graded on the devices that were asked for."""

    machine: Hardware
    lessons: tuple[str, ...]
    count: int = 1
    notes: dict[str, str] = field(default_factory=dict)


def device_groups(course: Course, machine: Hardware, lessons: Iterable[str]) -> list[DeviceGroup]:
    """Returns where each lesson is graded. By the whole lesson: its cells share a process, its devices and its mesh."""
    needed = {lesson: course.lesson(lesson).devices for lesson in lessons}
    if machine.platform.is_cpu:
        return [DeviceGroup(machine, tuple(needed))] if needed else []
    here = {lesson: count for lesson, count in needed.items() if count <= machine.count}
    missing = f"devices, but this machine has {machine}. It was graded on"
    beyond = {lesson: count for lesson, count in needed.items() if lesson not in here}
    notes = {one: f"{one} needs {count} {missing} {count} simulated CPU devices." for one, count in beyond.items()}
    found = [DeviceGroup(machine, tuple(here), max(here.values()))] if here else []
    return [*found, DeviceGroup(ON_CPUS, tuple(notes), notes=notes)] if notes else found


def cores(jobs: int | None, most: int) -> int:
    """Returns how many processes to run side by side: as asked, else one for each core; at most one for each task."""
    return max(1, min(jobs or os.cpu_count() or 1, most))


def imports(course: Course, lessons: Iterable[str]) -> set[str]:
    """Returns the modules that the lessons' setups import: the zygote has them ready for every fork."""
    found: set[str] = set()
    for node in (node for lesson in lessons for node in ast.walk(ast.parse(course.lesson(lesson).setup))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add("flax.nnx" if node.module == "flax" else node.module)
    return {name for name in found if name.partition(".")[0] not in NEVER_PRELOAD}
