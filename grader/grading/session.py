"""A grading session of one notebook: its cells run, and each exercise's checks judge what they left behind."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from grader.checks import inputs, native
from grader.checks.compare import cases_of, stumbled
from grader.checks.outcomes import CheckBroken, CheckFailed, NotAttempted, Skipped
from grader.checks.verbs import AnswerName, ProbeSource, overhear, set_backend, take_evidence
from grader.core.faults import Fault
from grader.core.result import CheckResult
from grader.core.text import legible
from grader.course import Check, Exercise, Lesson
from grader.course.probes import split
from grader.grading.executors import ATTEMPTS
from grader.grading.judging_limits import limited
from grader.grading.message_guard import SHOWN, MessageGuard, guard
from grader.grading.plan import JudgeExercise, RunCell
from grader.grading.worker_pair import ANSWER_S, CELL_S, CellOutcome, WorkerPair
from grader.program.environment import CellEnvironment

FAULTS = {
    "timeout": ("timeout", "Your answer did not finish: {}. Look for an infinite loop."),
    "crashed": ("crashed", "Your answer ended the process in which it ran, so it could not be graded."),
    "broken": ("crashed", "The program of your answer ended the process in which it ran, so it could not be graded."),
    "memory": ("crashed", "Your answer was stopped: it {}."),
    "flooded": ("failed", "Your answer returned too much: {}."),
}
DID_NOT_REPEAT = "One of your cells failed, but in a different way when it was run again."
# Notes about cells that failed after a hidden check has asked something: which cells fail may spell what it asked.
MOST_FAILED, MORE_FAILED = 8, "More of your cells failed."


class CheckRunner:
    """A lesson's setup names and compiled check cells: trusted, made once, used for every submission.

    A process examines several lessons, so configuration and mesh are a lesson's only while a check of its runs.
    """

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.setup: dict[str, Any] = {"__name__": "__main__"}
        self.outside, self.within = CellEnvironment({}), CellEnvironment(self.setup)
        self.outside.after_setup(())
        self.data = self._write_data()
        with contextlib.chdir(self.data or "."):
            exec(compile(lesson.setup, f"<setup {lesson.id}>", "exec", dont_inherit=True), self.setup)
        self.within.after_setup(())
        self.outside.before_checks(())
        for value in self.setup.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False  # a check that writes there would change what later submissions meet
        self.answers = {name for exercise in lesson.exercises for name in exercise.names}
        self._compiled: dict[str, CodeType] = {}

    def _write_data(self) -> str:
        """Writes the lesson's files to a folder that every worker is shown; returns it, "" where there are none."""
        if not self.lesson.data:
            return ""
        folder = Path(tempfile.mkdtemp())  # in ours, which is removed when this process has ended
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        if folder.parent == Path.cwd():
            folder.parent.chmod(0o711)  # a worker may be another user
        for name, content in self.lesson.data.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o444)
        # Compiled here from the course's own text. A worker loads it and needs no compiler.
        for source in folder.rglob("*.cc"):
            native.build(source, source.parent)
        for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            place.chmod(0o755)
        return str(folder)

    def run(self, check: Check, exercise: Exercise, isolated: WorkerPair, seed: str) -> CheckResult:
        """Run one check against an answer that is elsewhere; every way in which it can end becomes a record."""
        if check.id not in self._compiled:
            tree = split(check.source, self.answers)
            text = guard(tree) if check.hidden else tree
            self._compiled[check.id] = compile(text, f"<check {check.id}>", "exec", dont_inherit=True)
        names = dict(self.setup) | {name: AnswerName(name) for name in self.answers} | {"Probe": ProbeSource}
        before, asked = set_backend(isolated), isolated.asked
        isolated.seconds = exercise.timeout or ANSWER_S
        take_evidence()
        told: list[Any] = []
        names[SHOWN] = shown = MessageGuard(f"{self.lesson.setup}\n{check.source}", told)
        if check.hidden:
            overhear(told)
        inputs.begin(f"{seed}/{check.id}")
        self.within.before_checks(())
        try:
            with contextlib.chdir(self.data or "."), limited():
                exec(self._compiled[check.id], names)
            return record(check, "passed")
        except NotAttempted as ended:
            return record(check, "not attempted", ended.message)
        except CheckFailed as ended:
            if ended.kind == "malformed":
                isolated.drop()  # a process that lies is trusted with no other question
            message = shown.failure(ended) if check.hidden else str(ended)
            return record(check, "failed", message, kind=ended.kind, where=ended.where, first=ended.first)
        except Skipped as ended:
            return record(check, "skipped", ended.message)
        except Fault as fault:
            isolated.drop()
            status, message = FAULTS[fault.kind]
            cases = "".join(f"\nThe case: {when}." for when in reversed(cases_of(fault)))
            return record(check, status, message.format(fault.message) + cases, kind=fault.kind)
        except CheckBroken as broken:
            return record(check, "error", f"The check itself is at fault: {broken}.")
        except Exception as problem:
            return _surprise(check, problem, shown, judged=isolated.asked > asked)
        finally:
            overhear(None)
            set_backend(before)
            self.outside.before_checks(())


def _surprise(check: Check, problem: Exception, shown: MessageGuard, judged: bool) -> CheckResult:
    """An assertion of the check's, or a result so odd that the check stumbled over it; else the check's own fault."""
    if judged or isinstance(problem, AssertionError):
        failed = stumbled(problem)
        message = shown.failure(failed) if check.hidden else failed.message
        return record(check, "failed", message, kind=failed.kind, where=failed.where)
    # Whoever runs the grader reads it all; what goes into a result may be read by the learner.
    traceback.print_exception(problem, file=sys.stderr)
    kind = type(problem).__name__
    said = kind if check.hidden else f"{kind}: {problem}"
    return record(check, "error", f"The check itself is at fault: {said}.")


def record(check: Check, status: str, message: str = "", **found: str) -> CheckResult:
    """A record of how `check` ended; `found` are `kind`, `where` and `first`."""
    evidence = take_evidence() | ({"observed"} if check.observed else set())
    return CheckResult(
        id=check.id,
        exercise=check.exercise,
        title=check.title,
        status=status,
        points=check.points if status in ("passed", "skipped") else 0.0,  # what a machine cannot judge costs nobody
        max_points=check.points,
        message=legible(message),
        evidence=tuple(sorted(evidence)),
        hidden=check.hidden,
        **found,
    )


class GradingSession:
    """Runs cells and judges exercises in one isolated pair of processes; `seed` determines the inputs of its checks."""

    def __init__(self, runner: CheckRunner, isolated: WorkerPair, seed: str) -> None:
        self.runner, self.isolated, self.seed = runner, isolated, seed
        self.notes: list[str] = []
        self.failed: list[CellOutcome] = []
        self.told = 0  # how many of them after a hidden check has asked something
        self.bound: set[str] = set()
        self.known: set[str] = set()  # those of them that no process can choose by what a hidden check asked
        self.answers: dict[str, list[CellOutcome]] = {}
        self.written: set[str] = set()  # names that the texts of the cells bind, whatever their process says later
        self.undefined: dict[str, str] = {}  # names that a failed answer needs and no text has bound, by exercise

    def run(self, step: RunCell) -> None:
        """Run one cell; a cell that fails blocks nothing by itself."""
        limits = [self.runner.lesson.exercise(name).timeout or ANSWER_S for name in step.answers]
        seconds = sum(limits) if limits and step.label in step.answers else CELL_S
        confided = self.isolated.confided
        ran = self.isolated.run_cell(step.source, step.label, seconds, step.passed, step.setup)
        self.bound |= ran.bound
        self.known |= ran.sure
        self.written |= ran.binds
        where = f"the answer of {step.label}" if step.label in step.answers else f"your {step.label}"
        for name in sorted(ran.binds & self.undefined.keys()):
            self.notes.append(
                f"The answer of {self.undefined.pop(name)} needs `{name}`, which {where} defines below the checks. In "
                "a notebook that runs from top to bottom it comes too late. Move that cell above them."
            )
        if ran.problem is not None:
            self.failed.append(ran)
            note = f"Your {step.label} {ran.short}." if ran.repeats else DID_NOT_REPEAT
            if not step.answers and not ran.stub:
                self.told += confided
                note = note if self.told <= MOST_FAILED else MORE_FAILED
                self.notes += [note] * (note not in self.notes)
        for exercise in step.answers:
            self.answers.setdefault(exercise, []).append(ran)

    def judge(self, step: JudgeExercise) -> Iterator[CheckResult]:
        """Run an exercise's checks one by one, or say why there is nothing to check."""
        exercise = step.exercise
        verdict = self._unjudged(step)
        if verdict is not None:
            status, message, quotes = verdict
            # What the cell raised is said once, by the public checks: it may tell what a hidden check asked before.
            yield from (record(c, status, "" if quotes and c.hidden else message) for c in exercise.checks)
            return
        # Each name once, in an order of ours: the process may tell a text by names and their order.
        restored = sorted(self.runner.lesson.setup_names & set(self.isolated.prepare(exercise.names)))
        if restored:
            found = ", ".join(restored)
            self.notes.append(
                f"Restored before the checks of {exercise.id}: {found} (set by the setup). From there on, your "
                "cells and answers use these values too. Use other names for your own values."
            )
        needs = set().union(*(ran.needs for ran in self.answers.get(exercise.id, [])))
        undefined = needs - self.written - set(self.runner.lesson.setup_names)
        late: Check | None = None
        for check in exercise.checks:
            if late is not None:  # after one ran out of time the rest are not waited for
                message = f"Not run, because the check before it ({late.title}) ran out of time."
                yield record(check, "timeout", message, kind="timeout")
                continue
            result = self._run(check, exercise, self.isolated)
            if result.status == "timeout":
                late = check
            if check.hidden:
                self.isolated.confided = self.isolated.known is not None  # answers of the course's own may know
            elif result.status == "failed" and self.isolated.confided:
                result = self._retell(result, check, exercise)
            if result.status == "failed":
                self.undefined |= dict.fromkeys(undefined, exercise.id)
            yield result

    def _run(self, check: Check, exercise: Exercise, isolated: WorkerPair) -> CheckResult:
        """Run a check, and where a process ended, once more: that may not have been the answer's doing."""
        for _ in range(ATTEMPTS):
            result = self.runner.run(check, exercise, isolated, self.seed)
            if result.kind not in ("crashed", "broken"):
                break
        return result

    def pass_by(self, step: JudgeExercise) -> None:
        """Leave an exercise unjudged, and what comes after it as its checks would have left it."""
        if self._unjudged(step) is None:
            self.isolated.prepare(step.exercise.names)

    def _retell(self, result: CheckResult, check: Check, exercise: Exercise) -> CheckResult:
        """A public check's failure in the words of a process that no hidden check has asked anything: the answer may
        have kept what one asked, and quote it in what it raises or returns."""
        with self.isolated.fresh_copy() as clean:
            second = self._run(check, exercise, clean)
            self.isolated.adopt(clean)
        if (second.status, second.kind, second.where) == (result.status, result.kind, result.where):
            return replace(result, message=second.message)
        return replace(result, message="It failed, but in a different way when it was run alone.")

    def _unjudged(self, step: JudgeExercise) -> tuple[str, str, bool] | None:
        """Status and message of an exercise that is not checked, and whether that message quotes the learner's process;
        None for one that is checked."""
        exercise, names = step.exercise, step.exercise.names
        if step.not_code:
            text = "The answer cell is not a code cell. Select it, press Esc and Y, and submit the notebook again."
            return "not attempted", text, False
        if step.missing:
            return "not attempted", "The answer cell is missing from your notebook.", False
        if step.untouched:
            return "not attempted", f"Not attempted yet: `{names[0]}` is unchanged.", False
        runs = self.answers.get(exercise.id, [])
        fault = next((ran for ran in runs if ran.fault), None)
        if fault is not None:
            return "timeout" if fault.fault == "timeout" else "crashed", f"Your answer cell {fault.problem}.", False
        missed = set().union(*(ran.needs for ran in runs)) - self.known
        lost = {name for ran in self.failed if ran not in runs for name in ran.binds}  # they would have bound these
        for missing in sorted(missed) if missed & lost - self.bound else ():
            for ran in self.failed:
                if missing in ran.binds and ran not in runs:
                    own = f"your {ran.label}" if ran.repeats else "one of your cells"
                    answers = {one.id for one in self.runner.lesson.exercises}
                    label = f"the answer of {ran.label}" if ran.label in answers else own
                    message = f"Your answer needs `{missing}`, which {label} would define. That cell {ran.short}."
                    return "blocked", message, True
        broken = next((ran for ran in runs if ran.problem), None)
        # A name that an earlier exercise's answer has too does not count, when the cell that should bind it failed.
        bound = set().union(*(ran.bound for ran in runs)) if broken else self.bound
        if bound & set(names):
            return None
        if broken is not None:
            status = "not attempted" if broken.stub else "failed"
            return status, f"Your answer cell {broken.problem}\nSo `{names[0]}` is not defined.", not broken.stub
        return "failed", f"`{names[0]}` is not defined. Keep the name that the task gives.", False
