"""Forked processes of ours that answer JSON requests side by side, each request taken by the first that is free."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from grader.sandbox import wire
from grader.sandbox.process import Process, Zygote
from grader.sandbox.wire import Fault

__all__ = ["Fault", "Pool", "Zygote", "answer"]


class Pool:
    """`jobs` processes that run `entry`; a context manager that ends them and everything they started."""

    def __init__(self, entry: str, opening: dict[str, Any], jobs: int, modules: Iterable[str] = ()) -> None:
        self.entry, self.opening, self.jobs, self.modules = entry, opening, jobs, sorted(modules)
        self._lock = threading.Lock()
        self._processes: list[Process] = []

    def __enter__(self) -> Pool:
        with ExitStack() as stack:
            self._zygote = Zygote.start(self.modules)
            stack.callback(self._zygote.stop)
            stack.callback(self._finish)
            for _ in range(self.jobs):
                self._processes.append(self._fork())
            self._stack = stack.pop_all()
        return self

    def _fork(self) -> Process:
        with self._lock:
            process = self._zygote.fork(self.entry, control=True)
        wire.send(process.stream, json.dumps(self.opening).encode())
        return process

    @property
    def pids(self) -> list[int]:
        """The processes that answer now."""
        return [process.pid for process in self._processes]

    def _finish(self) -> None:
        for process in self._processes:
            process.finish()

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def map(
        self, requests: list[dict[str, Any]], on_reply: Callable[[int, Any], None] = lambda i, reply: None
    ) -> list[Any]:
        """The replies in the order of `requests`; a process that ends without one leaves a `wire.Fault` there, and
        another takes its place."""
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(len(requests)):
            todo.put(i)
        replies: dict[int, Any] = {}
        lock = threading.Lock()

        def work(place: int) -> None:
            while True:
                try:
                    i = todo.get_nowait()
                except queue.Empty:
                    return
                reply = _ask(self._processes[place], requests[i])
                with lock:
                    replies[i] = reply
                    on_reply(i, reply)
                if isinstance(reply, Fault):
                    self._processes[place].kill()
                    self._processes[place] = self._fork()

        threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [replies[i] for i in range(len(requests))]


def _ask(process: Process, request: dict[str, Any]) -> Any:
    try:
        wire.send(process.stream, json.dumps(request).encode())
        return json.loads(wire.receive(process.stream))
    except Fault as fault:
        return fault


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
