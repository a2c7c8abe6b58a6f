"""A forked examiner process: opens a course, then grades one notebook after another on request."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from grader.course import Course
from grader.exam.compiled import Compiled
from grader.exam.examiner import Examiner
from grader.exam.ledger import Ledger
from grader.exam.pool import answer
from grader.exam.record import Result
from grader.exam.submission import Unreadable, content, parse
from grader.sandbox.process import Zygote


class Desk:
    """The lessons of one course that this process has opened."""

    def __init__(self, zygote: Zygote, root: str, secret: str, edition: str | None = None) -> None:
        self.zygote, self.secret = zygote, secret
        self.course = Course(Path(root))
        self.ledger = Ledger(self.course, secret, edition) if edition else None
        self.examiners: dict[str, Examiner] = {}
        Compiled.of_our_own(self.course.root / "build", "examiners").begin()

    def examiner(self, lesson: str) -> Examiner:
        """The examiner of a lesson, made when first needed."""
        if lesson not in self.examiners:
            build = self.course.root / "build"
            self.examiners[lesson] = Examiner(self.course.lesson(lesson), self.zygote, self.secret, build)
        return self.examiners[lesson]

    def grade(self, path: str, learner: str, lesson: str) -> Result:
        """Grade one notebook, and keep its result if results are kept; what cannot be graded is one with a problem."""
        began = time.monotonic()
        try:
            notebook = content(Path(path))
            submission = parse(notebook, learner, lesson)
        except Unreadable as problem:
            points = self.course.lesson(lesson).points
            return Result(learner, lesson, max_score=points, duration_s=time.monotonic() - began, problem=str(problem))
        result = self.examiner(lesson).grade(submission)
        if self.ledger is not None:
            self.ledger.keep(result, notebook)
        return result


def serve(stream: socket.socket, control: socket.socket) -> None:
    """Open the course that the first request names, then grade until the stream closes."""
    desks: list[Desk] = []

    def handle(request: dict[str, Any]) -> dict[str, Any] | None:
        if "root" in request:
            desks.append(Desk(Zygote(control), **request))
            return None
        try:
            return desks[0].grade(**request).to_json()
        except Exception as problem:  # our own fault: say so, and go on with the next notebook
            traceback.print_exc(file=sys.stderr)
            text = f"The grader itself failed: {type(problem).__name__}: {problem}"
            return Result(request["learner"], request["lesson"], problem=text).to_json()

    answer(stream, handle)
    for examiner in desks[0].examiners.values() if desks else ():
        examiner.close()
