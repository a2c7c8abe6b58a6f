"""Collects learners' notebooks from their repositories into `<learner>/<lesson>/<lesson>.ipynb`, some at a time.

Beside each notebook lies nbgrader's `timestamp.txt`: when this notebook was first seen by a collection, which is the
only date that a learner cannot set. `collected.json` says for each learner which commit the notebooks are from.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader.core import files
from grader.core.text import legible
from grader.lms.git_fetch import FetchedRepository, FetchLimits, FileRefused, GitProcesses, RepositoryError
from grader.lms.repositories import Repository

RECORD = "collected.json"
PLACES = ("work/{0}/{0}.ipynb", "exercises/{0}/{0}.ipynb", "{0}/{0}.ipynb", "{0}.ipynb")


@dataclass(frozen=True)
class CollectedNotebook:
    """One notebook: where it was, its id in git, when it was first seen. `state` is new, changed or unchanged."""

    path: str
    blob: str
    seen: str
    state: str


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
    """The folder `to`, and what an earlier collection noted in it. Raises OSError where it cannot be written."""

    def __init__(self, to: Path, lessons: Iterable[str], limits: FetchLimits) -> None:
        self.to, self.lessons, self.limits, self.children = to, list(lessons), limits, GitProcesses()
        to.mkdir(parents=True, exist_ok=True)
        self.record = _read(to / RECORD)
        self._write()

    def collect(
        self,
        repositories: list[Repository],
        jobs: int,
        on_done: Callable[[CollectedRepository], None] = lambda done: None,
    ) -> list[CollectedRepository]:
        """Read all repositories, `jobs` at a time; results in their order. Whatever stops it, what is done is noted."""
        done: dict[str, CollectedRepository] = {}
        pool = ThreadPoolExecutor(jobs)
        try:
            waiting = [pool.submit(self._one, repository) for repository in repositories]
            for future in as_completed(waiting):
                result = future.result()
                done[result.learner] = result
                if not result.problem:
                    self._note(result)
                on_done(result)
        finally:
            self.children.stop()
            pool.shutdown(cancel_futures=True)
        return [done[repository.learner] for repository in repositories]

    def _one(self, repository: Repository) -> CollectedRepository:
        """One repository; a fault of its costs the others nothing."""
        try:
            with tempfile.TemporaryDirectory(prefix="collect-", ignore_cleanup_errors=True) as folder:
                return self._read(repository, FetchedRepository(repository, Path(folder), self.limits, self.children))
        except Exception as problem:
            ours = "" if isinstance(problem, RepositoryError | OSError) else f"{type(problem).__name__}: "
            said = legible(f"{ours}{problem}", 300).replace(repository.url, repository.shown)
            return CollectedRepository(repository.learner, repository.shown, repository.branch, problem=said)

    def _read(self, repository: Repository, fetched: FetchedRepository) -> CollectedRepository:
        before = self._before(repository)
        if before is not None and fetched.tip() == before.commit:
            return before
        fetched.fetch()
        told = self.record.get(repository.learner, {}).get("notebooks", {})
        notebooks, refused = {}, []
        for lesson in self.lessons:
            found = fetched.find([place.format(lesson) for place in PLACES])
            if found is None:
                continue
            try:
                content = fetched.read(*found)
            except FileRefused as problem:
                refused.append(str(problem))
                continue
            notebooks[lesson] = self._take(repository.learner, lesson, found[0], found[2], content, told.get(lesson))
        source, branch = repository.shown, repository.branch
        commit, committed = fetched.commit, fetched.committed
        return CollectedRepository(repository.learner, source, branch, commit, committed, notebooks, tuple(refused))

    def _take(
        self, learner: str, lesson: str, path: str, blob: str, content: bytes, told: dict[str, str] | None
    ) -> CollectedNotebook:
        folder = self.to / learner / lesson
        notebook = folder / f"{lesson}.ipynb"
        same = told is not None and told["blob"] == blob
        seen = told["seen"] if told is not None and same else f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        if same and notebook.is_file():
            return CollectedNotebook(path, blob, seen, "unchanged")
        files.write(notebook, content, mode=0o644, alone=True)
        files.write(folder / "timestamp.txt", f"{seen}\n", mode=0o644, alone=True)
        return CollectedNotebook(path, blob, seen, "new" if same or told is None else "changed")

    def _before(self, repository: Repository) -> CollectedRepository | None:
        """What an earlier collection has of this repository, if nothing more is asked for and it is still there."""
        kept = self.record.get(repository.learner)
        if kept is None or (kept["source"], kept["branch"]) != (repository.shown, repository.branch):
            return None
        if kept["refused"] or not set(self.lessons) <= set(kept["asked"]):
            return None
        wanted = {lesson: one for lesson, one in kept["notebooks"].items() if lesson in self.lessons}
        if not all((self.to / repository.learner / lesson / f"{lesson}.ipynb").is_file() for lesson in wanted):
            return None
        notebooks = {lesson: CollectedNotebook(**{**one, "state": "unchanged"}) for lesson, one in wanted.items()}
        return CollectedRepository(
            repository.learner, kept["source"], kept["branch"], kept["commit"], kept["committed"], notebooks
        )

    def _note(self, result: CollectedRepository) -> None:
        told = self.record.get(result.learner, {})
        same = told.get("commit") == result.commit
        asked = {*self.lessons, *(told.get("asked", []) if same else [])}
        kept = {**told.get("notebooks", {}), **{lesson: asdict(one) for lesson, one in result.notebooks.items()}}
        self.record[result.learner] = {**asdict(result), "notebooks": kept, "asked": sorted(asked)}
        self._write()

    def _write(self) -> None:
        text = json.dumps({"version": 1, "learners": self.record}, indent=1, ensure_ascii=False)
        files.write(self.to / RECORD, f"{text}\n", mode=0o644)


def _read(path: Path) -> dict[str, Any]:
    """What an earlier collection noted; what cannot be read counts for nothing, and is collected again."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] == 1:
            return dict(found["learners"])
    return {}
