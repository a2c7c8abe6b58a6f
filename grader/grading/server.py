"""Server of a forked examiner process: opens a course, then grades one notebook after another on request."""

from __future__ import annotations

import base64
import json
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from grader.core.faults import Fault, GraderFault, ZygoteEnded
from grader.core.notebook import Unreadable, read_bytes, read_submission
from grader.core.own_files import NO_FILES, OwnFiles
from grader.core.result import CheckResult, Result, grader_fault, unreadable
from grader.course import Course
from grader.grading.batch import own_files
from grader.grading.cache import Parts, ResultCache, lesson_fingerprint
from grader.grading.examiner import Examiner
from grader.grading.executors import CompileCache
from grader.grading.pool import NEWS
from grader.program.endpoints import begin
from grader.sandbox import wire
from grader.sandbox.accelerators import ON_CPUS, Hardware, Platform
from grader.sandbox.process import Zygote


class ExaminerServer:
    """The lessons of one course that this process has opened."""

    def __init__(
        self, zygote: Zygote, home: str, secret: str, edition: Parts | None = None,
        machine: dict[str, Any] | None = None, notes: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Open the course in `home`.

        `edition` is the `environment_fingerprint` of the grader, without which no results are cached; `machine` the
        devices that this process grades on, as JSON; `notes` state for lessons why these are not those asked for.
        """
        self.zygote, self.secret, self.notes = zygote, secret, notes or {}
        self.machine = Hardware(**machine | {"platform": Platform(**machine["platform"])}) if machine else ON_CPUS
        self.course = Course(Path(home))
        self.build = self.course.home / "build"
        self.cache = ResultCache(self.course, secret, edition) if edition else None
        self.examiners: dict[str, Examiner] = {}
        begin(**CompileCache.of_our_own(self.build, "examiners", self.machine).terms)

    def examiner(self, lesson: str) -> Examiner:
        """The examiner of a lesson, made when first needed."""
        if lesson not in self.examiners:
            text = self.course.lesson(lesson)
            self.examiners[lesson] = Examiner(text, self.zygote, self.secret, self.build, self.machine)
        return self.examiners[lesson]

    def grade(
        self, learner: str, lesson: str, path: str = "", only: str | None = None, *,
        notebook: str | None = None, beside: dict[str, Any] | None = None, text: str | None = None, **options: Any,
    ) -> Result:  # fmt: skip
        """Grade one notebook, or with `only` one exercise of it; what cannot be graded is a result with a problem.

        That of a whole notebook is cached, if results are cached. Where another machine has read the notebook, it is
        `notebook` as base64, with the learner's own files `beside` it as JSON, and `text` is the `lesson_fingerprint`
        that it has to be graded with. `options` are those of `Examiner.grade`.
        """
        began = time.monotonic()
        if text is not None and lesson_fingerprint(self.course.lesson(lesson)) != text:
            raise GraderFault(f"{lesson} was changed on this machine during the run")
        try:
            content = read_bytes(Path(path)) if notebook is None else base64.b64decode(notebook)
            own = OwnFiles.from_json(beside) if beside else NO_FILES
            if notebook is None:
                own = own_files(self.course.lesson(lesson), Path(path))
            submission = read_submission(content, learner, lesson, own)
        except Unreadable as problem:
            return unreadable(learner, lesson, self.course.lesson(lesson).points, problem, time.monotonic() - began)
        graded = self.examiner(lesson).grade(submission, only, **options)
        notes = (self.notes[lesson], *graded.notes) if lesson in self.notes else graded.notes
        result = replace(graded, platform=self.machine.platform.name, notes=notes)
        if self.cache is not None and only is None:
            self.cache.keep(result, content, own)
        return result

    def prepare(self, learner: str, lesson: str, exercise: str) -> Result:
        """Find out what there is to know of an exercise's own answers, before a learner waits for it."""
        examiner = self.examiner(lesson)
        examiner.note(examiner.lesson.exercise(exercise))
        return Result(learner, lesson)


def answer(
    stream: socket.socket, control: socket.socket, reply: Callable[[ExaminerServer, dict[str, Any]], object]
) -> None:
    """Open the course as the first request says, then answer with `reply(server, request)` until the stream closes."""
    server: ExaminerServer | None = None
    while True:
        try:
            request = json.loads(wire.receive(stream))
        except Fault:
            break
        if server is None:
            server = ExaminerServer(Zygote(control), **request)
        else:
            try:
                told = reply(server, request)
            except ZygoteEnded:  # nothing can be started any more: whoever asks will ask another examiner
                return
            wire.send(stream, json.dumps(told).encode())
    for examiner in server.examiners.values() if server else ():
        examiner.close()


def serve(stream: socket.socket, control: socket.socket) -> None:
    """Grade on request. One that asks for `news` gets those of each exercise before its reply."""

    def tell(results: list[CheckResult]) -> None:
        wire.send(stream, json.dumps({NEWS: [result.to_json() for result in results]}).encode())

    def reply(server: ExaminerServer, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request.pop(NEWS, False):
                request["judged"] = tell
            prepares = request.pop("do", "grade") == "prepare"
            return (server.prepare(**request) if prepares else server.grade(**request)).to_json()
        except Exception as problem:  # our own fault: say so, and go on with the next notebook
            traceback.print_exc(file=sys.stderr)
            return grader_fault(request["learner"], request["lesson"], f"{type(problem).__name__}: {problem}").to_json()

    answer(stream, control, reply)
