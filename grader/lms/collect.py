"""Collection of learners' notebooks from the repositories in a list, into `<learner>/<lesson>/<lesson>.ipynb`.

Beside each notebook is nbgrader's `timestamp.txt`: when a collection first saw this notebook, which is the only date
that a learner cannot set. `collected.json` records for each learner which commit the notebooks are from.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grader.core import files
from grader.core.text import legible
from grader.course.deadlines import BadTable, read_rows
from grader.course.tree import MAX_DATA_BYTES
from grader.lms.git import FetchedRepository, FetchLimits, FileRefused, GitFailed, Repository

RECORD = "collected.json"
PLACES = ("work/{0}/{0}.ipynb", "exercises/{0}/{0}.ipynb", "{0}/{0}.ipynb", "{0}.ipynb")
LEARNER = re.compile(r"\w[\w.@-]{0,99}")
BRANCH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/-]{0,199}")
_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]*"
_USER = r"\w[\w.+:%~-]*@"
# What may be fetched from elsewhere. Not http: anybody on the way could change it.
REMOTE = re.compile(rf"(https|ssh|git)://({_USER})?{_HOST}(:\d+)?/[^\s-]\S*|({_USER[:-1]}@){_HOST}:[^\s-]\S*")
ALLOWED = "https://, ssh://, git://, user@host:path, or a folder on this machine"
MAX_LIST_BYTES = 4 << 20
COLUMNS = ("learner", "url", "branch")


class BadList(Exception):
    """The list of repositories cannot be used; the text names the lines and what is wrong in them."""


def read_list(path: Path) -> list[Repository]:
    """Reads a CSV of learner, url or folder, and branch. Raises BadList, or OSError for a file that cannot be read."""
    if path.stat().st_size > MAX_LIST_BYTES:
        raise BadList(f"{path} is larger than {MAX_LIST_BYTES >> 20} MB, so it is not a list of repositories.")
    try:
        rows = read_rows(path)
    except BadTable as problem:
        raise BadList(str(problem)) from None
    columns = list(COLUMNS)
    if rows and {"learner", "url"} <= set(head := [cell.strip().lower() for cell in rows[0][1]]):
        columns, rows = head, rows[1:]
    repositories, problems = [], []
    lines: dict[str, int] = {}  # by the folder's name: two that differ in case alone are one on some machines
    for number, row in rows:
        cells = {name: cell.strip() for name, cell in zip(columns, row, strict=False)}
        one = Repository(*(cells.get(name, "") for name in COLUMNS))
        fault, line = _problem(one), lines.setdefault(one.learner.casefold(), number)
        if fault or line != number:
            fault = fault or f"`{one.learner}` is already in line {line}"
            problems.append(f"{path.name} line {number}: {fault}.")
        elif not REMOTE.fullmatch(one.url):
            one = replace(one, url=os.path.abspath(path.parent / one.url))  # links in it stay: they may be refused
        repositories.append(one)
    if problems:
        more = f" And {len(problems) - 5} more." if len(problems) > 5 else ""
        raise BadList(legible(" ".join(problems[:5]) + more))
    if not repositories:
        raise BadList(f"{path} lists no repository. Each line is learner,url or learner,url,branch.")
    return repositories


def _problem(one: Repository) -> str:
    if not LEARNER.fullmatch(one.learner) or ".." in one.learner:
        return f"`{one.learner[:50]}` cannot be a learner's folder. Use letters and digits, and . _ - @ after the first"
    if not one.url or one.url.startswith("-") or not one.url.isprintable():
        return f"`{one.url[:80]}` is not the address of a repository, which is {ALLOWED}"
    if not REMOTE.fullmatch(one.url) and ("://" in one.url or "::" in one.url or "@" in one.url.split("/")[0]):
        return f"`{one.url[:80]}` may not be fetched. Use {ALLOWED}"
    named = BRANCH.fullmatch(one.branch) and ".." not in one.branch and not one.branch.endswith((".lock", "/"))
    return "" if not one.branch or named else f"`{one.branch[:50]}` is not the name of a branch"


@dataclass(frozen=True)
class CollectedNotebook:
    """One notebook: where it was, its id in git, when it was first seen. `state` is new, changed or unchanged.

    `beside` are the ids of the learner's own files beside it, by path, where the lesson allows them.
    """

    path: str
    blob: str
    seen: str
    state: str
    beside: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectedRepository:
    """What became of one repository. `refused` are sentences about notebooks; `problem` says why nothing was read."""

    learner: str
    source: str
    branch: str = ""
    commit: str = ""
    committed: str = ""
    notebooks: dict[str, CollectedNotebook] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    problem: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.problem or self.refused)


class Collection:
    """The folder `to`, and what an earlier collection noted in it. Raises OSError where it cannot be written.

    `own_files` says for lessons how many bytes of files of their own learners may submit beside the notebook.
    """

    def __init__(
        self, to: Path, lessons: Iterable[str], limits: FetchLimits, own_files: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self.to, self.lessons, self.limits, self.stop = to, list(lessons), limits, threading.Event()
        self.own_files = {lesson: most for lesson, most in own_files.items() if most and lesson in self.lessons}
        self._asked = [*self.lessons, *(f"{lesson}/" for lesson in self.own_files)]
        to.mkdir(parents=True, exist_ok=True)
        self.record: dict[str, Any] = {}
        # What an earlier collection noted and cannot be read counts for nothing, and is collected again.
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
            found = json.loads((to / RECORD).read_text(encoding="utf-8"))
            self.record = dict(found["learners"]) if found["version"] == 1 else {}
        self._write()

    def collect(
        self, repositories: list[Repository], jobs: int, on_done: Callable[[CollectedRepository], None] = lambda _: None
    ) -> list[CollectedRepository]:
        """Reads all repositories, `jobs` at a time, and returns results in their order; each is recorded when done."""
        pool = ThreadPoolExecutor(jobs)
        try:
            waiting = [pool.submit(self._one, repository) for repository in repositories]
            for future in as_completed(waiting):
                result = future.result()
                if not result.problem:
                    self._note(result)
                on_done(result)
        finally:
            self.stop.set()
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in waiting]

    def _one(self, repository: Repository) -> CollectedRepository:
        """One repository; a fault of its costs the others nothing."""
        try:
            with tempfile.TemporaryDirectory(prefix="collect-", ignore_cleanup_errors=True) as folder:
                fetched = FetchedRepository(repository, Path(folder), self.limits, self.stop)
                before = self._before(repository)
                return before if before and fetched.tip() == before.commit else self._read(repository, fetched)
        except Exception as problem:
            ours = "" if isinstance(problem, GitFailed | OSError) else f"{type(problem).__name__}: "
            text = legible(f"{ours}{problem}", 300).replace(repository.url, repository.shown)
            return CollectedRepository(repository.learner, repository.shown, repository.branch, problem=text)

    def _read(self, repository: Repository, fetched: FetchedRepository) -> CollectedRepository:
        about = (repository.learner, repository.shown, repository.branch, *fetched.fetch())
        notebooks, refused = {}, []
        for lesson in self.lessons:
            try:
                if found := fetched.read([place.format(lesson) for place in PLACES]):
                    most = self.own_files.get(lesson, 0)
                    inside = most > 0 and found[0].endswith(f"{lesson}/{lesson}.ipynb")
                    # With room for copies of the course's files, which do not count later
                    beside = fetched.read_beside(found[0], most + MAX_DATA_BYTES) if inside else {}
                    notebooks[lesson] = self._write_submission(repository.learner, lesson, *found, beside)
            except FileRefused as problem:
                refused.append(str(problem))
        return CollectedRepository(*about, notebooks, tuple(refused))

    def _write_submission(
        self, learner: str, lesson: str, path: str, blob: str, content: bytes,
        beside: dict[str, tuple[str, bytes | None]],
    ) -> CollectedNotebook:  # fmt: skip
        last = self.record.get(learner, {}).get("notebooks", {}).get(lesson)
        folder = self.to / learner / lesson
        notebook = folder / f"{lesson}.ipynb"
        ids, before = {name: one for name, (one, _) in beside.items()}, (last or {}).get("beside", {})
        same = last is not None and (last["blob"], before) == (blob, ids)
        seen = last["seen"] if same else f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        if same and all(one.is_file() for one in (notebook, *(folder / name for name in ids))):
            return CollectedNotebook(path, blob, seen, "unchanged", ids)
        try:
            for name in before.keys() - ids.keys():
                (folder / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # not empty
                    for above in Path(name).parents[:-1]:
                        (folder / above).rmdir()
            for name, (_, own) in beside.items():
                if own is None:
                    files.write_hollow(folder / name, self.own_files[lesson] + 1)
                else:
                    files.write(folder / name, own, mode=0o644, alone=True)
            files.write(notebook, content, mode=0o644, alone=True)
        except OSError:
            with contextlib.suppress(OSError):  # an empty folder would be graded as a notebook that is missing
                folder.rmdir()
            raise
        files.write(folder / "timestamp.txt", f"{seen}\n", mode=0o644, alone=True)
        return CollectedNotebook(path, blob, seen, "new" if same or last is None else "changed", ids)

    def _before(self, repository: Repository) -> CollectedRepository | None:
        """What an earlier collection has of this repository, if nothing more is asked for and it is still there."""
        last = self.record.get(repository.learner)
        if last is None or (last["source"], last["branch"]) != (repository.shown, repository.branch):
            return None
        if last["refused"] or not set(self._asked) <= set(last["asked"]):
            return None
        wanted = {lesson: one for lesson, one in last["notebooks"].items() if lesson in self.lessons}
        if not all((self.to / repository.learner / lesson / f"{lesson}.ipynb").is_file() for lesson in wanted):
            return None
        notebooks = {lesson: CollectedNotebook(**{**one, "state": "unchanged"}) for lesson, one in wanted.items()}
        about = {name: last[name] for name in ("learner", "source", "branch", "commit", "committed")}
        return CollectedRepository(**about, notebooks=notebooks)

    def _note(self, result: CollectedRepository) -> None:
        last, now = self.record.get(result.learner, {}), asdict(result)
        asked = {*self._asked, *(last.get("asked", []) if last.get("commit") == result.commit else [])}
        notebooks = {**last.get("notebooks", {}), **now["notebooks"]}
        self.record[result.learner] = {**now, "notebooks": notebooks, "asked": sorted(asked)}
        self._write()

    def _write(self) -> None:
        text = json.dumps({"version": 1, "learners": self.record}, indent=1, ensure_ascii=False)
        files.write(self.to / RECORD, f"{text}\n", mode=0o644)
