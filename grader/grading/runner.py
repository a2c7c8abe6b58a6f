"""One check cell on the trusted side: run our text against an answer that is elsewhere, and record how it ended."""

from __future__ import annotations

import sys
import traceback
from types import CodeType
from typing import Any

import numpy as np

from grader.checks import inputs, verbs
from grader.checks.outcomes import CheckBroken, CheckFailed, NotAttempted, Skipped, stumbled
from grader.checks.verbs import AnswerName, ProbeSource, overhear, set_backend, take_evidence
from grader.core.faults import Fault
from grader.core.result import CheckResult
from grader.core.text import legible
from grader.course import Check, Exercise, Lesson
from grader.course.probes import split
from grader.grading.message_guard import SHOWN, MessageGuard, constants, guard
from grader.grading.worker_pair import ANSWER_S, ProcessBackend, WorkerPair
from grader.program.environment import CellEnvironment

FAULTS = {
    "timeout": ("timeout", "Your answer did not finish: {}. Look for a loop that never ends."),
    "crashed": ("crashed", "Your answer ended the whole process it ran in, so nothing could be judged."),
    "broken": ("crashed", "Your answer's program ended the process that ran it, so nothing could be judged."),
    "memory": ("crashed", "Your answer was stopped: it {}."),
    "flooded": ("failed", "Your answer returned too much: {}."),
}


class CheckRunner:
    """A lesson's setup names and compiled check cells: trusted, made once, used for every submission.

    A process examines several lessons, so configuration and mesh are a lesson's only while a check of its runs.
    """

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.setup: dict[str, Any] = {"__name__": "__main__"}
        self.outside, self.within = CellEnvironment({}), CellEnvironment(self.setup)
        self.outside.after_setup(())
        exec(compile(lesson.setup, f"<setup {lesson.id}>", "exec", dont_inherit=True), self.setup)
        self.within.after_setup(())
        self.outside.before_checks(())
        for value in self.setup.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False  # a check that writes there would change what later submissions meet
        self.answers = {name for exercise in lesson.exercises for name in exercise.names}
        self._compiled: dict[str, CodeType] = {}
        self._words: dict[str, frozenset[str]] = {"": constants(lesson.setup)}

    def _code(self, check: Check) -> CodeType:
        if check.id not in self._compiled:
            tree = split(check.source, self.answers)
            self._words[check.id] = self._words[""] | constants(check.source)
            text = guard(tree) if check.hidden else tree
            self._compiled[check.id] = compile(text, f"<check {check.id}>", "exec", dont_inherit=True)
        return self._compiled[check.id]

    def run(self, check: Check, exercise: Exercise, isolated: WorkerPair, seed: str) -> CheckResult:
        """Run one check; every way in which it can end becomes a record."""
        code = self._code(check)
        names = dict(self.setup) | {name: AnswerName(name) for name in self.answers} | {"Probe": ProbeSource}
        before, asked = set_backend(ProcessBackend(isolated)), isolated.asked
        isolated.seconds = exercise.timeout or ANSWER_S
        take_evidence()
        if check.hidden:
            told: list[Any] = []
            names[SHOWN] = MessageGuard(self._words[check.id], told)
            overhear(told)
        inputs.begin(f"{seed}/{check.id}")
        self.within.before_checks(())
        try:
            exec(code, names)
            return record(check, "passed")
        except NotAttempted as ended:
            return record(check, "not attempted", ended.message)
        except CheckFailed as ended:
            if ended.kind == "malformed":
                isolated.drop()  # a process that lies is trusted with no other question
            message = ended.hidden_message if check.hidden else str(ended)
            return record(check, "failed", message, kind=ended.kind, where=ended.where, first=ended.first)
        except Skipped as ended:
            return record(check, "skipped", ended.message)
        except Fault as fault:
            isolated.drop()
            status, message = FAULTS[fault.kind]
            return record(check, status, message.format(fault.message), kind=fault.kind)
        except CheckBroken as broken:
            return record(check, "error", f"The check itself is at fault: {broken}.")
        except Exception as problem:
            return _surprise(check, problem, judged=isolated.asked > asked)
        finally:
            overhear(None)
            set_backend(before)
            self.outside.before_checks(())


def _surprise(check: Check, problem: Exception, judged: bool) -> CheckResult:
    """An assertion of the check's, or a result so odd that the check stumbled over it; else the check's own fault."""
    if judged or isinstance(problem, AssertionError):
        failed = stumbled(problem)
        message = failed.hidden_message if check.hidden else failed.message
        return record(check, "failed", message, kind=failed.kind, where=failed.where)
    # Whoever runs the grader reads it all; what goes into a result may be read by the learner.
    traceback.print_exception(problem, file=sys.stderr)
    kind = type(problem).__name__
    said = kind if check.hidden else f"{kind}: {problem}"
    return record(check, "error", f"The check itself is at fault: {said}.")


def record(
    check: Check, status: str, message: str = "", kind: str = "", where: str = "", first: str = ""
) -> CheckResult:
    """A record of how `check` ended."""
    evidence = {"observed"} if check.observed else set()
    return CheckResult(
        id=check.id,
        exercise=check.exercise,
        title=check.title,
        status=status,
        points=check.points if status == "passed" else 0.0,
        max_points=check.points,
        message=legible(message),
        evidence=tuple(sorted(evidence | verbs.take_evidence())),
        hidden=check.hidden,
        kind=kind,
        where=where,
        first=first,
    )
