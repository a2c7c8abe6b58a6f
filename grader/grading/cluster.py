"""Grading on the workers of a Dask cluster: check each worker before it gets work, and use each result once.

`grader.grading.dispatch` decides which worker gets what, and `grader.grading.cluster_worker` runs in the workers. A
batch is pinned to one worker, since the scheduler would give it to any worker, also one that has not been checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib.util
import queue
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from grader.core.faults import Fault, UnconfinedError
from grader.core.notebook import Unreadable, read_bytes
from grader.core.own_files import OwnFiles
from grader.core.result import Result, grader_fault, unreadable
from grader.course import Course
from grader.grading import cluster_worker
from grader.grading.batch import Entry, as_result, own_files, private_folders, secret
from grader.grading.cache import Parts, ResultCache
from grader.grading.dispatch import MOST, Batch, Dispatcher, batches, notebook_size
from grader.sandbox.confine import LEVELS
from grader.sandbox.process import ConfinementReport

if TYPE_CHECKING:
    from distributed import Client, Future

LOCAL = re.compile(r"local:([1-9][0-9]{0,3})")
ADDRESS = re.compile(r"(tcp|tls|ws|wss)://\S+:\d+")
CONNECT_S = 10.0  # for the scheduler to answer
WORKERS_S = 120.0  # for the first worker to appear and to be checked, while nothing else happens
LOOK_S = 1.0  # between two looks at which workers there are
AHEAD = 1  # batches that a worker has beside those that it grades, so that it does not wait for the next


class ClusterError(Exception):
    """The cluster cannot be used; the text says what happened and what to do."""


@dataclass
class ClusterWorker:
    """A worker of the cluster: how many batches it grades at once, its confinement once it has been checked, and why it
    gets no work, once that is known."""

    threads: int
    confined: ConfinementReport | None = None
    refused: str = ""


def check_address(address: str | None) -> None:
    """Raises ClusterError for text that is no address of a cluster, and where Dask is not installed."""
    if address is None:
        return
    if not LOCAL.fullmatch(address) and not ADDRESS.fullmatch(address):
        text = f"{address!r} is no address of a cluster"
        raise ClusterError(
            f"{text}. Pass a scheduler, as in tls://host:8786, or local:4 for 4 workers on this machine."
        )
    if importlib.util.find_spec("distributed") is None:
        raise ClusterError("--on requires Dask, which is not installed. Run: pip install 'jaxercise[cluster]'")


@contextlib.contextmanager
def connect(address: str, course: Course) -> Iterator[Client]:
    """Connects to the scheduler at `address`, or starts N workers here for `local:N`. Raises ClusterError."""
    check_address(address)
    import dask
    from distributed import Client, LocalCluster, Security

    local = LOCAL.fullmatch(address)
    cluster_worker.silence_dask()
    # A notebook may be larger than what Dask warns about, and a worker that is stopped is not waited for.
    settings = {
        "distributed.admin.large-graph-warning-threshold": "1GB",
        "distributed.comm.timeouts.connect": CONNECT_S,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        try:
            if local is not None:
                # Encrypted, with certificates of its own: otherwise every user of this machine could run code in it.
                cluster = LocalCluster(
                    n_workers=int(local[1]), threads_per_worker=1, memory_limit=0, dashboard_address=None,
                    host="127.0.0.1", protocol="tls", security=Security.temporary(), preload=cluster_worker.__name__,
                    env={cluster_worker.COURSE: str(course.home)},
                )  # fmt: skip
                stack.enter_context(_closing(cluster, 5))
                client = Client(cluster, set_as_default=False, timeout=CONNECT_S)
            else:
                client = Client(address, set_as_default=False, timeout=CONNECT_S)
        except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as problem:
            reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            raise ClusterError(f"The scheduler {address} cannot be reached: {reason}") from None
        stack.enter_context(_closing(client, 2))
        try:
            yield client
        finally:
            if local is None and client.status == "running":
                with contextlib.suppress(Exception):  # workers that are lost have nothing to release
                    client.run(cluster_worker.release, on_error="ignore")


@contextlib.contextmanager
def _closing(what: Any, seconds: float) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # it may be gone, and there is nothing left to do with it
            what.close(timeout=seconds)


@dataclass
class ClusterRun:
    """One run of `grade_on`: its workers, and the tasks that they have."""

    client: Client
    course: Course
    edition: Parts
    lessons: list[str]
    hidden: list[str]
    levels: tuple[str, ...]
    on_refused: Callable[[str, str], None]
    workers: dict[str, ClusterWorker] = field(default_factory=dict)
    tasks: dict[Future, tuple[str, Batch | None, str]] = field(default_factory=dict)  # worker, batch or None, nonce
    ended: queue.SimpleQueue[Future] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.key = secret(self.course)
        self.wanted = cluster_worker.fingerprint(self.course, self.lessons) | {"around": self.edition}

    def submit(self, worker: str, batch: Batch | None, task: Callable[..., Any], *arguments: Any) -> None:
        """Have a worker, and no other, run a task; the future is put in `ended` when it ends in any way."""
        nonce = secrets.token_hex(16)
        request = {"wanted": self.wanted, "hidden": self.hidden, "levels": self.levels, "nonce": nonce}
        where = {"workers": [worker], "allow_other_workers": False, "pure": False, "key": f"grader-{nonce}"}
        future = self._asked(lambda: self.client.submit(task, request, *arguments, **where))
        self.tasks[future] = worker, batch, nonce
        future.add_done_callback(self.ended.put)

    def look(self) -> list[str]:
        """Start the checks of workers that are new; returns those that are lost since the last look."""
        there: Mapping[str, int] = self._asked(self.client.nthreads)
        for address in there.keys() - self.workers.keys():
            self.workers[address] = ClusterWorker(there[address])
            self.submit(address, None, cluster_worker.identify)
        lost = [address for address in self.workers if address not in there]
        for address in lost:
            del self.workers[address]
        for future, (worker, _, _) in list(self.tasks.items()):
            if worker in lost:
                del self.tasks[future]
                self._asked(future.cancel)
        return lost

    def _asked(self, question: Callable[[], Any]) -> Any:
        """What the scheduler replies."""
        try:
            if self.client.status != "running":
                raise OSError(f"the connection is {self.client.status}")
            return question()
        except (OSError, TimeoutError, RuntimeError, ValueError) as problem:
            raise ClusterError(f"The scheduler was lost ({problem or type(problem).__name__}).") from None

    def take(self, future: Future) -> tuple[str, Batch | None, list[Any] | None] | None:
        """Returns worker, batch and replies of a task that has ended; None for replies that are missing or not proved,
        and None for a task that was given up. Why a worker gets no work is noted in it."""
        if (task := self.tasks.pop(future, None)) is None:
            return None
        address, batch, nonce = task
        worker = self.workers.get(address)
        reply: Any = None
        reason = ""
        if future.status == "finished":
            with contextlib.suppress(Exception, asyncio.CancelledError):  # its worker may have ended since
                reply = future.result(timeout=CONNECT_S)
        elif future.status == "error":
            reason = f"failed ({_one_line(future.exception())})"
        future.release()
        if isinstance(reply, dict) and "refused" in reply:
            reason = str(reply["refused"])
        elif isinstance(reply, dict):
            content = reply.get("results") if batch is not None else {"confinement": reply.get("confinement")}
            if not hmac.compare_digest(str(reply.get("seal")), cluster_worker.seal(self.key, nonce, content)):
                reason = "has another secret"
            elif batch is not None:
                return address, batch, reply["results"]
            elif worker is not None:
                worker.confined = ConfinementReport(**reply["confinement"])
                if worker.confined.level not in self.levels:
                    reason = f"confines submissions only at the level {worker.confined.level}"
        if reason and worker is not None:
            worker.refused = reason
            self.on_refused(address, reason)
        return address, batch, None

    def ready(self) -> Iterator[str]:
        """Workers that have been checked and have room for a batch, as long as they have it."""
        busy: dict[str, int] = {}
        for holder, batch, _ in self.tasks.values():
            busy[holder] = busy.get(holder, 0) + (batch is not None)
        for depth in range(max((one.threads for one in self.workers.values()), default=0) + AHEAD):
            for address, worker in self.workers.items():
                room = worker.confined is not None and not worker.refused and depth < worker.threads + AHEAD
                if room and busy.get(address, 0) <= depth:
                    yield address


def _one_line(problem: BaseException | None) -> str:
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0][:200]}" if text else type(problem).__name__


def grade_on(
    client: Client,
    course: Course,
    entries: Iterable[Entry],
    on_result: Callable[[Entry, Result], None] = lambda entry, result: None,
    *,
    edition: Parts,
    allow_unsandboxed: bool = False,
    on_confined: Callable[[ConfinementReport], None] = lambda confined: None,
    on_refused: Callable[[str, str], None] = lambda worker, reason: None,
    before: Mapping[Entry, Result] = MappingProxyType({}),
    most: int = MOST,
) -> list[Result]:
    """Grades `entries` on the workers of `client` and returns their results in the same order.

    Results are cached on this machine as soon as they exist, so a run that lost its scheduler resumes from there.

    Args:
        client, course, entries, on_result, edition, before: as for `grader.grading.batch.grade`.
        allow_unsandboxed: whether workers get work where only resource limits confine learners' code.
        on_confined: called with the confinement of each level below the best that a worker has, once.
        on_refused: called with the address of a worker that gets no work, and a clause that says why.
        most: notebooks of a batch.

    Raises:
        UnconfinedError: only limits would confine learners' code on all workers, and `allow_unsandboxed` is False.
        ClusterError: the scheduler was lost, or no worker may grade.
    """
    entries, done = list(entries), dict[Entry, Result]()

    def note(entry: Entry, result: Result) -> None:
        done[entry] = result
        on_result(entry, result)

    for entry, result in before.items():
        if result.confinement in ("none", LEVELS[0]):
            note(entry, result)
    todo = [entry for entry in entries if entry not in done]
    if not todo:
        return [done[entry] for entry in entries]
    levels = LEVELS if allow_unsandboxed else LEVELS[:-1]
    hidden, lessons = sorted(private_folders(course, entries)), sorted({entry.lesson for entry in todo})
    run = ClusterRun(client, course, edition, lessons, hidden, levels, on_refused)
    cache, work = ResultCache(course, run.key, edition), Dispatcher([])
    sent: dict[Batch, list[tuple[Entry, bytes, OwnFiles]]] = {}
    told: set[str] = set()
    began = looked = 0.0

    def start() -> None:
        """Begin to assign batches, once a worker has been checked: its level decides which cached results hold."""
        best = next(one.confined.level for one in run.workers.values() if one.confined and not one.refused)
        as_good = LEVELS[: LEVELS.index(best) + 1]
        for entry in todo:
            if entry in before and before[entry].confinement in as_good:
                note(entry, before[entry])
        size = lambda entry: notebook_size(entry) + course.own_files_bytes(entry.lesson)
        work.waiting.extend(batches([e for e in todo if e not in done], most, size))

    def assign(address: str) -> bool:
        batch = work.take(address)
        if batch is None:
            return False
        if batch not in sent:
            sent[batch] = []
            for entry in (one for one in batch.entries if one not in done):
                try:
                    content = read_bytes(entry.path)
                    sent[batch].append((entry, content, own_files(course.lesson(entry.lesson), entry.path)))
                except Unreadable as problem:
                    note(entry, unreadable(entry.learner, entry.lesson, course.lesson(entry.lesson).points, problem))
        notebooks = [(entry.learner, entry.lesson, content, own.to_json()) for entry, content, own in sent[batch]]
        run.submit(address, batch, cluster_worker.grade_batch, notebooks)
        return True

    def end(batch: Batch, replies: list[Any]) -> None:
        for (entry, content, own), reply in zip(sent.pop(batch), replies, strict=True):
            failed = isinstance(reply, dict) and "fault" in reply and "checks" not in reply
            result = as_result(entry, Fault("crashed", reply["fault"]) if failed else reply)
            cache.keep(result, content, own)
            note(entry, result)

    started, began = False, time.monotonic()
    try:
        while not started or not work.finished:
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                for address in run.look():
                    for batch in work.lose(address):
                        for entry, *_ in sent.pop(batch):
                            reason = "each of several workers was lost while it graded this notebook"
                            note(entry, grader_fault(entry.learner, entry.lesson, reason))
                for batch in [one for one in sent if one.done]:  # it was split
                    del sent[batch]
            useful = [one for one in run.workers.values() if one.confined is not None and not one.refused]
            for confined in (one.confined for one in useful if one.confined is not None):
                if confined.level not in told:
                    told.add(confined.level)
                    on_confined(confined)
            if useful and not started:
                started = True
                start()
            if started:
                for address in run.ready():
                    if not assign(address):
                        break
            if useful:
                began = time.monotonic()
            elif time.monotonic() - began > WORKERS_S or (run.workers and all(w.refused for w in run.workers.values())):
                raise _no_workers(run)
            with contextlib.suppress(queue.Empty):
                future = run.ended.get(timeout=LOOK_S / 4)
                while True:
                    ended = run.take(future)
                    if ended is not None and (of := ended[1]) is not None:
                        address, _, replies = ended
                        if replies is None or len(replies) != len(sent.get(of, replies)):
                            work.give_back(address, of)
                        elif work.finish(address, of):
                            end(of, replies)
                    future = run.ended.get_nowait()
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be lost
            client.cancel(list(run.tasks))
    return [done[entry] for entry in entries]


def _no_workers(run: ClusterRun) -> Exception:
    """Why nothing can be graded."""
    refused = {address: one.refused for address, one in run.workers.items() if one.refused}
    if refused and all(one.confined is not None and one.confined.level == LEVELS[-1] for one in run.workers.values()):
        return UnconfinedError("All workers confine learners' code by resource limits alone.")
    if refused:
        address, reason = next(iter(refused.items()))
        text = f"No worker may grade. {len(refused)} were refused; for example, {address} {reason}."
        return ClusterError(f"{text} Give all workers the same course, secret and packages as this machine.")
    return ClusterError(
        f"The cluster had no worker for {WORKERS_S:.0f} s. Start workers, and run the same command again."
    )
