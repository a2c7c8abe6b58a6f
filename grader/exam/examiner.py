"""Grades one submission of one lesson: plans its cells, has them run elsewhere, and judges each exercise."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from grader.course import Exercise, Lesson
from grader.exam.checking import CheckRoom, record
from grader.exam.isolated import Isolated
from grader.exam.misconceptions import Misconceptions
from grader.exam.plan import Judge, plan
from grader.exam.record import CheckResult, Result, legible, total
from grader.exam.sitting import Sitting
from grader.exam.submission import Submission
from grader.program.sides import namedtuples
from grader.sandbox.process import Zygote
from grader.sandbox.wire import Fault


class Examiner:
    """What one lesson's submissions have in common. Not for two threads: devices and mesh are process-wide."""

    def __init__(self, lesson: Lesson, zygote: Zygote, secret: str, notes: Path | None = None) -> None:
        self.lesson, self.zygote, self.secret = lesson, zygote, secret
        self.room = CheckRoom(lesson)
        self.classes = namedtuples({name: self.room.setup.get(name) for name in lesson.setup_names})
        self.misconceptions = Misconceptions(lesson, self.rehearse, notes)
        self._own: Isolated | None = None

    def isolated(self) -> Isolated:
        """A worker and an executor of its own, started when first needed."""
        return Isolated(self.zygote, self.lesson.setup, self.classes)

    def grade(self, submission: Submission) -> Result:
        """The result of one submission; faults in it end as records, never as exceptions."""
        began = time.monotonic()
        steps = plan(submission, self.lesson)
        seed = "/".join((self.secret, self.lesson.id, submission.learner, submission.fingerprint))
        sitting = Sitting(self.room, self.isolated(), seed)
        results: list[CheckResult] = []
        try:
            for step in steps.steps:
                if isinstance(step, Judge):
                    results += self.misconceptions.name(step.exercise, list(sitting.judge(step)), seed)
                else:
                    sitting.run(step.source, step.label, step.exercise)
        finally:
            sitting.isolated.drop()
        order = {check.id: i for i, check in enumerate(c for e in self.lesson.exercises for c in e.checks)}
        return Result(
            learner=submission.learner,
            lesson=self.lesson.id,
            checks=tuple(sorted(results, key=lambda result: order[result.id])),
            max_score=total(result.max_points for result in results),
            duration_s=time.monotonic() - began,
            notes=tuple(legible(note) for note in (*steps.notes, *sitting.notes)),
        )

    def rehearse(self, exercise: Exercise, source: str, seed: str) -> Iterator[CheckResult]:
        """Results of an answer of the course's own, one by one, in processes that only ever run such answers."""
        if self._own is None:
            self._own = self.isolated()
        sitting, done = Sitting(self.room, self._own, seed), 0
        try:
            self._own.fresh()
            for earlier in self._needed(exercise, source):
                sitting.run(earlier.reference, earlier.id, earlier.id)
            sitting.run(source, exercise.id, exercise.id)
            for result in sitting.judge(Judge(exercise)):
                done += 1
                yield result
        except Fault as fault:
            self._own.drop()
            yield from (record(check, "crashed", fault.message, kind=fault.kind) for check in exercise.checks[done:])

    def _needed(self, exercise: Exercise, source: str) -> list[Exercise]:
        """Earlier exercises whose answers this one's cells speak of."""
        words = set(re.findall(r"\w+", "\n".join((source, *(check.source for check in exercise.checks)))))
        earlier = self.lesson.exercises[: self.lesson.exercises.index(exercise)]
        return [other for other in earlier if words & set(other.names)]

    def close(self) -> None:
        """End the processes kept for the course's own answers, and keep what they found out for the next run."""
        self.misconceptions.keep()
        if self._own is not None:
            self._own.drop()
