"""Times of an exercise's checks and of their requests, for the solution, in processes as a learner's answer gets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grader.course import Exercise
from grader.grading.examiner import ANY_SEED, Examiner
from grader.grading.plan import JudgeExercise
from grader.grading.session import GradingSession
from grader.grading.worker_pair import WorkerPair

START = "start and cells"
RUNS = 3  # of which the fastest counts


@dataclass
class CheckTimes:
    """The time of one check, or of the start of the processes and of the cells.

    Attributes:
        name: the id of the check, or `START`.
        seconds: on the clock, all requests included.
        requests: number and seconds of its requests, by kind: a call of the answer, the export of a program, loading it
            (the facts) and running it.
    """

    name: str
    seconds: float = 0.0
    requests: dict[str, tuple[int, float]] = field(default_factory=dict)


class TimedWorkerPair(WorkerPair):
    """A worker and an executor that add up the time of the requests to them in `now`."""

    now = CheckTimes(START)

    @contextlib.contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        number, seconds = self.now.requests.get(kind, (0, 0.0))
        self.now.requests[kind] = number + 1, seconds + time.perf_counter() - began

    def ask(self, question: Any, payload: bytes) -> bytes:
        with self._timed("call"):
            return super().ask(question, payload)

    def export(self, question: Any, payload: bytes) -> bytes:
        with self._timed("export"):
            return super().export(question, payload)

    def load(self, payload: bytes) -> bytes:
        with self._timed("load"):
            return super().load(payload)

    def run(self, program: str, payload: bytes) -> bytes:
        with self._timed("run"):
            return super().run(program, payload)


def measure(examiner: Examiner, exercise: Exercise) -> list[CheckTimes]:
    """Returns the times of the start and of each check, in order: the fastest of `RUNS` runs of the solution.

    The programs of the solution are known, as when a class is graded.
    """
    examiner.note(exercise)
    return min((_run(examiner, exercise) for _ in range(RUNS)), key=lambda run: sum(one.seconds for one in run))


def _run(examiner: Examiner, exercise: Exercise) -> list[CheckTimes]:
    pair = examiner.isolated(TimedWorkerPair)
    assert isinstance(pair, TimedWorkerPair)
    session, found, began = GradingSession(examiner.runner, pair, ANY_SEED), list[CheckTimes](), time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        pair.now.name, pair.now.seconds = name, time.perf_counter() - began
        found.append(pair.now)
        pair.now, began = CheckTimes(""), time.perf_counter()

    pair.now = CheckTimes("")
    try:
        for cell in examiner.cells(exercise, exercise.reference):
            session.run(cell)
        lap(START)
        for result in session.judge(JudgeExercise(exercise)):
            lap(result.id)
    finally:
        pair.drop()
    return found
