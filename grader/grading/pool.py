"""Forked processes of ours that answer JSON requests side by side, each request taken by the first that is free."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from grader.core.faults import Fault
from grader.sandbox import wire
from grader.sandbox.accelerators import CPU, Platform
from grader.sandbox.process import ConfinementReport, Process, Zygote

__all__ = ["NEWS", "Fault", "Pool", "Zygote", "answer"]

NEWS = "news"  # the one key of a frame that comes before a reply


class Pool:
    """`jobs` processes that run `entry` on `count` devices of a platform; a context manager that ends them and
    everything they started. The last `patient` of them, and what they start, work only while the others do not need
    the processors.

    Left by an exception, Ctrl-C for one, it ends them at once; else they may finish what they do at their end.
    """

    def __init__(
        self, entry: str, opening: dict[str, Any], jobs: int, modules: Iterable[str] = (),
        platform: Platform = CPU, count: int = 1, patient: int = 0,
    ) -> None:  # fmt: skip
        self.entry, self.opening, self.jobs, self.modules = entry, opening, jobs, sorted(modules)
        self._start = partial(Zygote.start, self.modules, platform, count)
        self._lock = threading.Lock()
        self._patient = range(jobs - patient, jobs)
        self._processes: list[Process | None] = [None] * jobs
        self._closed = False

    def __enter__(self) -> Pool:
        self._zygote = self._start()
        try:
            self._processes = [self._fork(place) for place in range(self.jobs)]
        except BaseException:
            self._zygote.stop(1)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._closed = True
        left = [process for process in self._processes if process is not None]
        if kind is None:
            for process in left:
                process.finish()
        self._zygote.stop(5 if kind is None else 1)
        for process in left:
            process.kill()

    @property
    def confined(self) -> ConfinementReport:
        """How what learners wrote is confined."""
        return self._zygote.confined

    def _fork(self, place: int) -> Process:
        """A process of ours for this place; where what it is forked from has ended, that is started anew."""
        with self._lock:
            if self._closed:
                raise Fault("crashed", "grading was stopped")
            try:
                process = self._zygote.fork(self.entry, control=True, patient=place in self._patient)
            except ConnectionError:
                self._zygote.stop(0)
                self._zygote = self._start()
                process = self._zygote.fork(self.entry, control=True, patient=place in self._patient)
        wire.send(process.stream, json.dumps(self.opening).encode())
        return process

    @property
    def pids(self) -> list[int]:
        """The processes that answer now."""
        return [process.pid for process in self._processes if process is not None]

    def map(
        self,
        requests: list[dict[str, Any]],
        on_reply: Callable[[int, Any], None] = lambda i, reply: None,
        on_news: Callable[[int, Any], None] = lambda i, news: None,
    ) -> list[Any]:
        """The replies in the order of `requests`; `on_reply` is called in the caller's thread, with each when it comes,
        and `on_news` with what comes before it.

        A process that ends without a reply leaves a `Fault` there, and another takes its place.
        """
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, bool, Any]] = queue.SimpleQueue()
        for i in range(len(requests)):
            todo.put(i)

        def ask(place: int, i: int) -> None:
            reply = self.ask(place, requests[i], lambda news: done.put((i, False, news)))
            done.put((i, True, reply))

        def work(place: int) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    ask(place, todo.get_nowait())

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
        """The reply of the process at this place. Whatever goes wrong is a Fault: map waits for one reply to each."""
        try:
            process = self._processes[place] = self._processes[place] or self._fork(place)
            wire.send(process.stream, json.dumps(request).encode())
            while True:
                reply = json.loads(wire.receive(process.stream))
                if not isinstance(reply, dict) or set(reply) != {NEWS}:
                    return reply
                on_news(reply[NEWS])
        except Exception as problem:
            lost, self._processes[place] = self._processes[place], None
            if lost is not None:
                lost.kill()
            return problem if isinstance(problem, Fault) else Fault("crashed", f"{type(problem).__name__}: {problem}")


def answer(stream: Any, handle: Callable[[dict[str, Any]], Any]) -> None:
    """The other side: reply to each JSON request with `handle(request)` until the stream closes."""
    while True:
        try:
            request = json.loads(wire.receive(stream))
        except Fault:
            return
        reply = handle(request)
        if reply is not None:
            wire.send(stream, json.dumps(reply).encode())
