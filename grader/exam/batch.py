"""Many submissions at once: find them, hand each to a free examiner, collect the results in order."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course import Course
from grader.exam.ledger import Ledger
from grader.exam.pool import Confined, Pool
from grader.exam.record import Result
from grader.exam.submission import Unreadable, content
from grader.sandbox.wire import Fault

LOCAL_SECRET = "public"
NEVER_PRELOAD = frozenset({"torch", "torchvision", "tensorflow"})  # importing them starts threads


@dataclass(frozen=True)
class Entry:
    """One notebook to grade."""

    path: Path
    learner: str
    lesson: str


class NothingToGrade(Exception):
    """No submission where one was looked for; the text says what was expected there."""


def find(folder: Path, course: Course, lesson: str | None = None) -> list[Entry]:
    """The notebooks `<learner>/<lesson>/<lesson>.ipynb` under `folder`, by learner and lesson.

    A lesson's folder without its notebook is an entry too: grading then says what is missing.
    """
    entries = [
        Entry(place / f"{place.name}.ipynb", place.parent.name, place.name)
        for place in sorted(folder.glob("*/*"))
        if place.name in course.lesson_ids and lesson in (None, place.name) and place.is_dir()
    ]
    if not entries:
        which = lesson or "one of " + ", ".join(course.lesson_ids)
        raise NothingToGrade(
            f"No submission in {folder}: expected <learner>/<lesson>/<lesson>.ipynb, where <lesson> is {which}."
        )
    return entries


def secret(course: Course) -> str:
    """What the seeds of hidden inputs are made from: the file `.secret` beside course.toml, if there is one."""
    path = course.root / ".secret"
    return path.read_text().strip() if path.exists() else LOCAL_SECRET


def graded_before(course: Course, entries: Iterable[Entry], edition: str) -> dict[Entry, Result]:
    """The results that earlier runs kept of notebooks that have not changed since."""
    ledger, found = Ledger(course, secret(course), edition), {}
    for entry in entries:
        with contextlib.suppress(Unreadable):
            result = ledger.find(entry.learner, entry.lesson, content(entry.path))
            if result is not None:
                found[entry] = result
    return found


def grade(
    course: Course,
    entries: Iterable[Entry],
    jobs: int | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
    edition: str | None = None,
    accept: Callable[[Confined], None] = lambda confined: None,
) -> list[Result]:
    """Grade `entries` with `jobs` examiners side by side (one for each core by default); results in their order.

    `accept` is told how learners' processes are confined before the first is started, and may raise.
    With the grader's `edition` (see `grader.exam.ledger`) each result is kept for later runs as soon as it is there.
    """
    todo = list(entries)
    if not todo:
        return []
    opening = {"root": str(course.root), "secret": secret(course), "edition": edition}
    modules = imports(course, {entry.lesson for entry in todo})
    requests = [{"path": str(e.path.absolute()), "learner": e.learner, "lesson": e.lesson} for e in todo]

    def result(i: int, reply: Any) -> Result:
        if isinstance(reply, Fault):
            return Result(todo[i].learner, todo[i].lesson, problem=f"The grader itself failed: {reply.message}.")
        return Result.from_json(reply)

    with Pool("grader.exam.desk:serve", opening, cores(jobs, len(todo)), modules) as pool:
        accept(pool.confined)
        replies = pool.map(requests, lambda i, reply: on_result(result(i, reply)))
    return [result(i, reply) for i, reply in enumerate(replies)]


def cores(jobs: int | None, most: int) -> int:
    """How many processes to run side by side: as asked, else one for each core; never more than there is work."""
    return max(1, min(jobs or os.cpu_count() or 1, most))


def imports(course: Course, lessons: Iterable[str]) -> set[str]:
    """Modules that the lessons' setups import: the zygote has them ready for every fork."""
    return set().union(*(_imports(course.lesson(lesson).setup) for lesson in lessons))


def _imports(setup: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(setup)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.partition(".")[0] not in NEVER_PRELOAD}
