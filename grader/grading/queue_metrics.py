"""Measurements of a grader that follows a queue: throughput, failures and waiting notebooks, also for Prometheus."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from grader.core.result import Result

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

WINDOW_S = 300.0  # over which throughput is measured
FAILURES = 5  # that are listed


def outcome(result: Result) -> str:
    """Returns "graded", "unreadable" (a file that is no notebook) or "failed" (the grader is at fault)."""
    if result.grader_failed:
        return "failed"
    return "graded" if result.problem is None else "unreadable"


class QueueMetrics:
    """Counts since the start, by outcome; the notebooks that wait; and the last failures.

    `registry` holds the metrics that `serve` publishes; None until then.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.began = clock()
        self.counts = {"graded": 0, "unreadable": 0, "failed": 0}
        self.waiting, self.oldest = 0, 0.0  # notebooks, and since when the first of them waits (0 for none)
        self.failures: deque[str] = deque(maxlen=FAILURES)
        self._ended: deque[float] = deque()
        self.registry: CollectorRegistry | None = None

    def add(self, result: Result) -> None:
        """Count a result."""
        kind, now = outcome(result), self._clock()
        self.counts[kind] += 1
        self.waiting = max(0, self.waiting - 1)
        self._ended.append(now)
        self._forget(now)
        if kind != "graded":
            self.failures.append(f"{result.learner}/{result.lesson}: {result.fault_text or result.problem}")
        if self.registry is not None:
            self._results.labels(result.lesson, kind).inc()
            self._seconds.labels(result.lesson).observe(result.duration_s)

    def _forget(self, now: float) -> None:
        while self._ended and self._ended[0] < now - WINDOW_S:
            self._ended.popleft()

    @property
    def per_minute(self) -> float:
        """Notebooks per minute in the last five minutes, or since the start."""
        now = self._clock()
        self._forget(now)
        return 60 * len(self._ended) / max(1.0, min(WINDOW_S, now - self.began))

    @property
    def oldest_s(self) -> float:
        """Seconds that the first of the notebooks that wait has waited."""
        return self._clock() - self.oldest if self.oldest else 0.0

    def serve(self, port: int) -> None:
        """Publish the metrics at http://127.0.0.1:`port`/metrics, for programs on this machine. Raises OSError."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

        self.registry = CollectorRegistry()
        text = "Notebooks by outcome: graded, unreadable (no notebook), failed (the grader is at fault)"
        self._results = Counter("jaxercise_notebooks", text, ["lesson", "outcome"], registry=self.registry)
        limits = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)
        text = "Seconds on the clock to grade a notebook"
        self._seconds = Histogram("jaxercise_grading_seconds", text, ["lesson"], buckets=limits, registry=self.registry)
        for name, text, value in (
            ("jaxercise_notebooks_waiting", "Notebooks in the queue that are not graded yet", lambda: self.waiting),
            ("jaxercise_oldest_waiting_seconds", "Age of the oldest of them", lambda: self.oldest_s),
            ("jaxercise_notebooks_per_minute", "Throughput in the last five minutes", lambda: self.per_minute),
        ):
            Gauge(name, text, registry=self.registry).set_function(value)
        start_http_server(port, addr="127.0.0.1", registry=self.registry)
