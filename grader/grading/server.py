"""A forked examiner process: opens a course, then grades one notebook after another on request."""

from __future__ import annotations

import json
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader.core.notebook import Unreadable, read_bytes, read_submission
from grader.core.result import CheckResult, Result, grader_fault
from grader.course import Course
from grader.grading.cache import ResultCache
from grader.grading.compile_cache import CompileCache
from grader.grading.examiner import Examiner, no_op
from grader.grading.pool import NEWS, answer
from grader.sandbox import wire
from grader.sandbox.accelerators import ON_CPUS, Hardware
from grader.sandbox.process import Zygote


class ExaminerServer:
    """The lessons of one course that this process has opened.

    `asked` are the devices that the run was to grade on, `machine` those that this process does, as JSON; `notes` say
    of lessons why the two differ.
    """

    def __init__(
        self, zygote: Zygote, root: str, secret: str, edition: str | None = None, asked: str = "cpu",
        machine: dict[str, Any] | None = None, notes: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.zygote, self.secret = zygote, secret
        self.machine = Hardware.from_json(machine) if machine else ON_CPUS
        self.notes = notes or {}
        self.course = Course(Path(root))
        self.ledger = ResultCache(self.course, secret, edition, asked) if edition else None
        self.examiners: dict[str, Examiner] = {}
        CompileCache.of_our_own(self.course.root / "build", "examiners", self.machine).begin()

    def examiner(self, lesson: str) -> Examiner:
        """The examiner of a lesson, made when first needed."""
        if lesson not in self.examiners:
            build = self.course.root / "build"
            self.examiners[lesson] = Examiner(self.course.lesson(lesson), self.zygote, self.secret, build, self.machine)
        return self.examiners[lesson]

    def grade(
        self,
        path: str,
        learner: str,
        lesson: str,
        only: str | None = None,
        named: bool = True,
        judged: Callable[[list[CheckResult]], None] = no_op,
    ) -> Result:
        """Grade one notebook, or one exercise of it; what cannot be graded is a result with a problem.

        That of a whole notebook is kept, if results are kept. `judged` is told the results of each exercise as soon as
        they are there.
        """
        began = time.monotonic()
        try:
            notebook = read_bytes(Path(path))
            submission = read_submission(notebook, learner, lesson)
        except Unreadable as problem:
            points = self.course.lesson(lesson).points
            return Result(
                learner,
                lesson,
                max_score=points,
                duration_s=time.monotonic() - began,
                problem=str(problem),
                fault="submission",
            )
        graded = self.examiner(lesson).grade(submission, only, named, judged)
        result = replace(graded, platform=self.machine.platform.name)
        if lesson in self.notes:
            result = replace(result, notes=(self.notes[lesson], *result.notes))
        if self.ledger is not None and only is None:
            self.ledger.keep(result, notebook)
        return result

    def prepare(self, learner: str, lesson: str, exercise: str) -> Result:
        """Find out what there is to know of an exercise's own answer, before anybody waits for it."""
        examiner = self.examiner(lesson)
        examiner.note(examiner.lesson.exercise(exercise))
        return Result(learner, lesson)

    def do(self, do: str = "grade", **what: Any) -> Result:
        """One request: to grade or to prepare."""
        return self.prepare(**what) if do == "prepare" else self.grade(**what)


def serve(stream: socket.socket, control: socket.socket) -> None:
    """Open the course that the first request names, then grade until the stream closes.

    A request that asks for `news` gets those of each exercise before its reply.
    """
    desks: list[ExaminerServer] = []

    def tell(results: list[CheckResult]) -> None:
        wire.send(stream, json.dumps({NEWS: [result.to_json() for result in results]}).encode())

    def handle(request: dict[str, Any]) -> dict[str, Any] | None:
        if "root" in request:
            desks.append(ExaminerServer(Zygote(control), **request))
            return None
        try:
            if request.pop(NEWS, False):
                request["judged"] = tell
            return desks[0].do(**request).to_json()
        except Exception as problem:  # our own fault: say so, and go on with the next notebook
            traceback.print_exc(file=sys.stderr)
            return grader_fault(request["learner"], request["lesson"], f"{type(problem).__name__}: {problem}").to_json()

    answer(stream, handle)
    for examiner in desks[0].examiners.values() if desks else ():
        examiner.close()
