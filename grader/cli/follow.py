"""`grader grade --follow`: grade what arrives in a queue, until the command is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grader.cli.console import err, fail, warn
from grader.core import files
from grader.core.own_files import newest
from grader.core.points import phrase
from grader.core.result import Result, document
from grader.core.text import legible
from grader.course import Course
from grader.grading import batch
from grader.grading.batch import Engine, Entry
from grader.grading.cache import Parts
from grader.grading.queue_metrics import QueueMetrics
from grader.lms import object_store
from grader.lms.object_store import StoreError, SubmissionStore

POLL_S = 2.0  # between two looks into the queue
SETTLED_S = 2.0  # a file that was written later than this may still be written
ROUND = 500  # notebooks that are graded at once, the oldest first, before the queue is looked at again
RETRY_S = 60.0  # until a notebook is graded again at which the grader itself failed

Version = tuple[int, int]


@dataclass
class Follower:
    """A queue, and what of it has been graded.

    Attributes:
        course, lesson: what is graded; a lesson of None stands for all.
        queue: the folder, or the object store that is copied to one.
        results: folder or URL that gets `<learner>/<lesson>.json` for each notebook, or None.
        force: whether cached results are ignored.
    """

    course: Course
    queue: Path | SubmissionStore
    lesson: str | None
    results: str | None
    edition: Parts
    force: bool = False
    metrics: QueueMetrics = field(default_factory=QueueMetrics)
    _graded: dict[Entry, Version] = field(default_factory=dict)
    _retry: dict[Entry, float] = field(default_factory=dict)
    _unwritten: dict[Entry, Result] = field(default_factory=dict)

    def waiting(self) -> dict[Entry, Version]:
        """Returns notebooks that are new or have changed since they were graded, the oldest first."""
        folder = self.queue
        if isinstance(folder, SubmissionStore):
            folder.fetch(self.lesson)
            folder = folder.folder
        try:
            entries = batch.find(folder, self.course, self.lesson)
        except batch.NothingToGrade:
            entries = []
        now, found = time.time(), dict[Entry, Version]()
        for entry in entries:
            version = _version(entry.path, own_files=self.course.own_files_bytes(entry.lesson) > 0)
            settled = isinstance(self.queue, SubmissionStore) or now - version[0] / 1e9 > SETTLED_S
            if settled and version != self._graded.get(entry) and now >= self._retry.get(entry, 0.0):
                found[entry] = version
        return dict(sorted(found.items(), key=lambda one: one[1]))

    def round(self, engine: Engine, on_result: Callable[[], None] = lambda: None) -> int:
        """Grades what waits, at most `ROUND` notebooks; returns how many it were."""
        for entry, result in list(self._unwritten.items()):
            self._write(entry, result)
        waiting = self.waiting()
        self.metrics.waiting = len(waiting)
        self.metrics.oldest = min((version[0] for version in waiting.values()), default=0) / 1e9
        todo = list(waiting)[:ROUND]
        if not todo:
            return 0
        before = {} if self.force else batch.graded_before(self.course, todo, self.edition)

        def add(entry: Entry, result: Result) -> None:
            if result is before.get(entry):
                self.metrics.waiting -= 1  # graded before this command was started
            else:
                self.metrics.add(result)
            if result.grader_failed:
                self._retry[entry] = time.time() + RETRY_S
            else:
                self._graded[entry] = waiting[entry]
                self._write(entry, result)
            on_result()

        # By lesson, since an examiner opens one lesson at a time.
        engine(sorted(todo, key=lambda entry: entry.lesson), add, before)
        return len(todo)

    def _write(self, entry: Entry, result: Result) -> None:
        """Writes a result; what cannot be written now is written in a later round."""
        self._unwritten.pop(entry, None)
        if self.results is None:
            return
        text, name = document([result]), f"{entry.learner}/{entry.lesson}.json"
        try:
            if object_store.is_url(self.results):
                object_store.write(f"{self.results.rstrip('/')}/{name}", text)
            else:
                files.write(Path(self.results) / name, text, mode=0o644)
        except (OSError, StoreError) as problem:
            self._unwritten[entry] = result
            self.metrics.failures.append(f"{name} cannot be written: {problem}")

    def follow(self, engine: Engine) -> None:
        """Grades what arrives, and shows one screen, or in a pipe a line for each round; ends by an exception only."""
        with Live(
            console=err, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as live:
            shown = 0.0

            def show(least: float = 0.5) -> None:
                nonlocal shown
                if err.is_interactive and time.monotonic() - shown > least:
                    shown = time.monotonic()
                    live.update(screen(self.metrics), refresh=True)

            while True:
                count = 0
                try:
                    count = self.round(engine, show)
                except StoreError as problem:  # a network fails now and then
                    self.metrics.failures.append(str(problem))
                    if not err.is_interactive:
                        warn(str(problem))
                if count and not err.is_interactive:
                    rate = f"{self.metrics.per_minute:.0f} per minute"
                    warn(f"Done: {phrase(count, 'notebook')}. Graded so far: {self.metrics.counts['graded']}, {rate}.")
                show(0.0)
                if count < ROUND:
                    time.sleep(POLL_S)


def _version(path: Path, own_files: bool) -> Version:
    """When a file was written, and its size; of a missing one, that of its folder. With `own_files`, the files beside
    it count too."""
    when, size = newest(path.parent) if own_files else (0, 0)
    for one in (path, path.parent):
        try:
            about = os.lstat(one)
            return max(about.st_mtime_ns, when), about.st_size + size if one == path else -1
        except OSError:
            continue
    return 0, -1


def screen(metrics: QueueMetrics) -> Group:
    """Returns what is shown while a queue is followed."""
    table = Table("graded", "unreadable", "failed", "waiting", "oldest waits", "per minute", caption="Ctrl-C stops.")
    counts = (str(metrics.counts[kind]) for kind in ("graded", "unreadable", "failed"))
    table.add_row(*counts, str(metrics.waiting), f"{metrics.oldest_s:.0f} s", f"{metrics.per_minute:.1f}")
    return Group(table, *(Text(legible(one)[:300]) for one in metrics.failures))


def publish(metrics: QueueMetrics, port: int | None) -> None:
    """Starts the server of metrics, if a port was given, or ends the command with a message."""
    if port is None:
        return
    try:
        metrics.serve(port)
    except ImportError:
        raise fail("--metrics requires prometheus_client. Run: pip install 'jaxercise[cluster]'") from None
    except (OSError, OverflowError) as problem:
        raise fail(f"The metrics cannot be published on port {port}: {problem}. Choose another port.") from None
    warn(f"Metrics: http://127.0.0.1:{port}/metrics")
