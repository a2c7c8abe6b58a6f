"""A pool of forked processes that answer JSON requests side by side, and signals that stop it in good order."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from grader.core.faults import Fault
from grader.sandbox import wire
from grader.sandbox.accelerators import CPU, Platform
from grader.sandbox.process import ConfinementReport, Process, Zygote

NEWS = "news"  # the one key of a frame that comes before a reply
ATTEMPTS = 4  # processes of ours that take a request: one may be ended from outside, which says nothing of the request
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A person, or the machine, asked the command to stop. No fault: nothing that deals with faults may take it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGINT and SIGTERM raise `Stopped`, once; after that the command goes to its end undisturbed.

    One that is ignored, as in a shell's background, stays so. For the main thread of a command that then ends.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    heard = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, stop) for one in heard}
    yield
    for one in heard:
        signal.signal(one, before[one])


class Pool:
    """Processes of ours that take requests; a context manager that ends them and everything they started.

    Left by an exception, Ctrl-C for one, it ends them at once; else they may finish what they do at their end.
    """

    def __init__(
        self, entry: str, opening: dict[str, Any], jobs: int, modules: Iterable[str] = (),
        platform: Platform = CPU, count: int = 1, patient: int = 0, hidden: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Describe the pool; entering it starts the processes.

        Args:
            entry: entry point of each process (`grader.core.layout`).
            opening: the first request to each, which gets no reply.
            jobs: how many processes.
            modules: what the zygote imports before it forks them.
            platform, count: what they run on, and how many devices of it have to work together.
            hidden: folders that learners' processes do not see, besides all that they never see.
            patient: how many of them, the last ones, work only while the others do not need the processors.
        """
        self.entry, self.opening, self.jobs = entry, opening, jobs
        self._start = partial(Zygote.start, sorted(modules), platform, count, sorted({opening["home"], *hidden}))
        self._lock = threading.Lock()
        self._first_patient = jobs - patient
        self.processes: list[Process | None] = [None] * jobs
        self._closed = False
        self._refused: Fault | None = None  # why no zygote starts here, once that is known
        self._zygote: Zygote | None = None
        self.confined: ConfinementReport

    def __enter__(self) -> Pool:
        try:
            self.processes = [self._fork(place) for place in range(self.jobs)]
        except BaseException:
            self._stop_zygote(1)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._closed = True
        left = list(filter(None, self.processes))
        if kind is None:
            for process in left:
                process.finish()
        self._stop_zygote(5 if kind is None else 1)
        for process in left:
            process.kill()

    def _stop_zygote(self, seconds: float) -> None:
        if self._zygote is not None:
            self._zygote.stop(seconds)
        self._zygote = None

    def _fork(self, place: int) -> Process:
        """A process for this place; where the zygote has ended, another is started."""
        with self._lock:
            if self._closed:
                raise Fault("crashed", "grading was stopped")
            if self._refused is not None:
                raise self._refused
            for attempt in range(ATTEMPTS):
                try:
                    self._zygote = self._zygote or self._start()
                    self.confined = self._zygote.confined  # how what learners wrote is confined
                    patient = place >= self._first_patient
                    process = self._zygote.fork(self.entry, control=True, patient=patient)
                    wire.send(process.stream, json.dumps(self.opening).encode())
                    return process
                except (OSError, Fault) as problem:  # it was ended from outside, perhaps while it started
                    self._stop_zygote(0)
                    if isinstance(problem, Fault) and problem.kind == "refused":
                        self._refused = problem
                    if self._refused is not None or attempt == ATTEMPTS - 1:
                        raise
        raise AssertionError

    def map(
        self,
        requests: list[dict[str, Any]],
        on_reply: Callable[[int, Any], None] = lambda i, reply: None,
        on_news: Callable[[int, Any], None] = lambda i, news: None,
    ) -> list[Any]:
        """Returns the replies in the order of `requests`; each request is taken by the first process that is free.

        `on_reply` is called in the caller's thread with each reply when it comes, `on_news` with what comes before it.
        A process that ends without a reply is replaced, and the request asked again; after some attempts there is a
        `Fault` in the place of its reply.
        """
        todo = iter(range(len(requests)))  # shared: each thread takes the next number, in one step of Python's
        done: queue.SimpleQueue[tuple[int, bool, Any]] = queue.SimpleQueue()

        def work(place: int) -> None:
            for i in todo:
                reply = self.ask(place, requests[i], lambda news, i=i: done.put((i, False, news)))  # type: ignore[misc]
                done.put((i, True, reply))

        for place in range(self.jobs):
            threading.Thread(target=work, args=(place,), daemon=True).start()
        replies: dict[int, Any] = {}
        while len(replies) < len(requests):
            i, last, said = done.get()
            if last:
                replies[i] = said
            (on_reply if last else on_news)(i, said)
        return [replies[i] for i in range(len(requests))]

    def ask(self, place: int, request: dict[str, Any], on_news: Callable[[Any], None] = lambda news: None) -> Any:
        """Returns the reply of the process at this place; where it ends without one, that of another in its place.

        Any problem is a `Fault`, since `map` waits for a reply.
        """
        for attempt in range(ATTEMPTS):
            try:
                process = self.processes[place] = self.processes[place] or self._fork(place)
                wire.send(process.stream, json.dumps(request).encode())
                while True:
                    reply = json.loads(wire.receive(process.stream))
                    if not isinstance(reply, dict) or set(reply) != {NEWS}:
                        return reply
                    on_news(reply[NEWS])
            except Exception as problem:
                lost, self.processes[place] = self.processes[place], None
                if lost is not None:
                    lost.kill()
                fault = (
                    problem if isinstance(problem, Fault) else Fault("crashed", f"{type(problem).__name__}: {problem}")
                )
                if self._closed or self._refused is not None or attempt == ATTEMPTS - 1:
                    return fault
        raise AssertionError
