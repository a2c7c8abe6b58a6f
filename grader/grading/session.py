"""A grading session of one notebook: its cells run, and each exercise's checks judge what they left behind."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from grader.checks import inputs, native
from grader.checks.compare import cases_of, stumbled
from grader.checks.outcomes import CheckBroken, CheckFailed, NotAttempted, NotData, Skipped
from grader.checks.verbs import AnswerName, ProbeSource, overhear, set_backend, take_evidence
from grader.core.faults import Fault
from grader.core.own_files import NO_ROOM, OwnFiles
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
# What a check got from an answer, and has to pass on to it
TOO_LARGE_TO_PASS_ON = (
    "Your answer returned something that is too large, or of a kind that cannot be used as an argument."
)


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
        folder = _new_folder()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _write_readable(folder, self.lesson.data)
        # Compiled here from the course's own text. A worker loads it and needs no compiler.
        for source in folder.rglob("*.cc"):
            native.build(source, source.parent)
        return str(folder)

    @contextlib.contextmanager
    def data_with(self, own: OwnFiles) -> Iterator[str]:
        """Yields the folder of the lesson's files; with a learner's own files, one that contains these too. What the
        course has under a name comes first."""
        if not own.contents:
            yield self.data
            return
        folder = _new_folder()
        try:
            if self.data:
                shutil.copytree(self.data, folder, dirs_exist_ok=True)
            for name, content in own.contents.items():
                with contextlib.suppress(*NO_ROOM):  # a file compiled from the course's own may have this name
                    if not (folder / name).exists():
                        _write_readable(folder, {name: content})
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, check: Check, exercise: Exercise, isolated: WorkerPair, seed: str) -> CheckResult:
        """Run one check against an answer that is elsewhere; every way in which it can end becomes a record."""
        if check.id not in self._compiled:
            tree = split(check.source, self.answers)
            text = guard(tree) if check.hidden else tree
            self._compiled[check.id] = compile(text, f"<check {check.id}>", "exec", dont_inherit=True)
        names = dict(self.setup) | {name: AnswerName(name) for name in self.answers} | {"Probe": ProbeSource}
        before, asked, isolated.first = set_backend(isolated), isolated.asked, not check.hidden
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
            if isinstance(broken, NotData) and isolated.asked > asked:
                return record(check, "failed", TOO_LARGE_TO_PASS_ON, kind="flooded")
            if check.hidden and isinstance(broken, NotData):  # its text may quote numbers of the inputs
                print(f"{check.id} is at fault: {broken}.", file=sys.stderr)
                return record(check, "error", "The check itself is at fault.")
            return record(check, "error", f"The check itself is at fault: {broken}.")
        except Exception as problem:
            return _surprise(check, problem, shown, judged=isolated.asked > asked)
        finally:
            overhear(None)
            set_backend(before)
            self.outside.before_checks(())


def _new_folder() -> Path:
    """A folder in that of this process, which is removed when the process has ended."""
    folder = Path(tempfile.mkdtemp())
    if folder.parent == Path.cwd():
        folder.parent.chmod(0o711)  # a worker may be another user
    return folder


def _write_readable(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files for processes of any user to read."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o444)
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        place.chmod(0o755)


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


@dataclass(frozen=True)
class Judgement:
    """Results of an exercise's public checks, and where its hidden ones run (None: `results` are those of all)."""

    exercise: Exercise
    results: tuple[CheckResult, ...]
    place: int | None = None


def _without_running(exercise: Exercise, status: str, message: str, quotes: bool) -> Iterator[CheckResult]:
    """Records of checks that do not run. What a learner's process says is told by the public ones alone."""
    for check in exercise.checks:
        yield record(check, status, "" if quotes and check.hidden else message)


class GradingSession:
    """Runs cells and judges exercises in one isolated pair of processes; `seed` determines the inputs of its checks.

    All public checks of a notebook run before its first hidden one, and the hidden ones in a process that runs the
    cells again. A process that a hidden check has asked something could tell of it in what it raises, by its load, and
    by what the kernel counts for the whole machine, such as open files and inodes.
    """

    def __init__(self, runner: CheckRunner, isolated: WorkerPair, seed: str) -> None:
        self.runner, self.isolated, self.seed = runner, isolated, seed
        self.notes: list[str] = []
        self.if_failed: dict[str, str] = {}  # notes that count only where this exercise failed
        self.failed: list[CellOutcome] = []
        self.bound: set[str] = set()
        self.answers: dict[str, list[CellOutcome]] = {}
        self.written: set[str] = set()  # names that the texts of the cells bind, whatever their process says later
        self.undefined: dict[str, list[str]] = {}  # exercises whose answers need a name that no text has bound

    def run(self, step: RunCell) -> None:
        """Run one cell; a cell that fails blocks nothing by itself."""
        limits = [self.runner.lesson.exercise(name).timeout or ANSWER_S for name in step.answers]
        seconds = sum(limits) if limits and step.label in step.answers else CELL_S
        ran = self.isolated.run_cell(step.source, step.label, seconds, step.passed, step.setup)
        self.bound |= ran.bound
        self.written |= ran.binds
        where = f"the answer of {step.label}" if step.label in step.answers else f"your {step.label}"
        for name in sorted(ran.binds & self.undefined.keys()):
            for exercise in self.undefined.pop(name):
                note = (
                    f"The answer of {exercise} needs `{name}`, which {where} defines below the checks. In a notebook "
                    "that runs from top to bottom it comes too late. Move that cell above them."
                )
                self.notes.append(note)
                self.if_failed[note] = exercise
        if ran.problem is not None:
            self.failed.append(ran)
            note = f"Your {step.label} {ran.short}."
            if not step.answers and not ran.stub and note not in self.notes:
                self.notes.append(note)
        for exercise in step.answers:
            self.answers.setdefault(exercise, []).append(ran)

    def judge(self, step: JudgeExercise) -> Iterator[CheckResult]:
        """Run all checks of an exercise one by one, in the process that ran its cells: for the course's own answers."""
        verdict = self._unjudged(step)
        if verdict is not None:
            yield from _without_running(step.exercise, *verdict)
            return
        self.isolated.prepare(step.exercise.names)
        yield from self._run(step.exercise, step.exercise.checks)

    def judge_public(self, step: JudgeExercise) -> Judgement:
        """Run an exercise's public checks, or say why there is nothing to check."""
        exercise, verdict = step.exercise, self._unjudged(step)
        if verdict is not None:
            return Judgement(exercise, tuple(_without_running(exercise, *verdict)))
        # Each name once, in an order of ours: the process may tell a text by names and their order.
        restored = sorted(self.runner.lesson.setup_names & set(self.isolated.prepare(exercise.names)))
        if restored:
            found = ", ".join(restored)
            self.notes.append(
                f"Restored before the checks of {exercise.id}: {found} (set by the setup). From there on, your "
                "cells and answers use these values too. Use other names for your own values."
            )
        needs = set().union(*(ran.needs for ran in self.answers.get(exercise.id, [])))
        for name in needs - self.written - set(self.runner.lesson.setup_names):
            self.undefined.setdefault(name, []).append(exercise.id)
        public = [check for check in exercise.checks if not check.hidden]
        results = tuple(self._run(exercise, public))
        place = self.isolated.place
        hidden = [check for check in exercise.checks if check.hidden]
        late = next((check for check, found in zip(public, results, strict=True) if found.status == "timeout"), None)
        if hidden and late is None:
            return Judgement(exercise, results, place)
        return Judgement(exercise, (*results, *self._run(exercise, hidden, late)))

    def judge_hidden(self, judged: Judgement) -> list[CheckResult]:
        """Results of all checks of an exercise, of which the hidden ones run now; for exercises in order."""
        exercise, found = judged.exercise, {result.id: result for result in judged.results}
        if judged.place is not None:
            self.isolated.advance(judged.place)
            hidden = [check for check in exercise.checks if check.hidden]
            found |= {result.id: result for result in self._run(exercise, hidden)}
        return [found[check.id] for check in exercise.checks]

    def _run(self, exercise: Exercise, checks: Iterable[Check], late: Check | None = None) -> Iterator[CheckResult]:
        """Run checks one by one. After one ran out of time, `late`, the rest are not waited for.

        Where a process ended, a check runs once more: that may not have been the answer's doing.
        """
        for check in checks:
            if late is not None:
                message = f"Not run, because the check before it ({late.title}) ran out of time."
                yield record(check, "timeout", message, kind="timeout")
                continue
            for _ in range(ATTEMPTS):
                result = self.runner.run(check, exercise, self.isolated, self.seed)
                if result.kind not in ("crashed", "broken"):
                    break
            late = check if result.status == "timeout" else None
            yield result

    def pass_by(self, step: JudgeExercise) -> None:
        """Leave an exercise unjudged, and what comes after it as its checks would have left it."""
        if self._unjudged(step) is None:
            self.isolated.prepare(step.exercise.names)

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
        missed = set().union(*(ran.needs for ran in runs)) - self.bound
        lost = {name for ran in self.failed if ran not in runs for name in ran.binds}  # they would have bound these
        for missing in sorted(missed & lost):
            for ran in self.failed:
                if missing in ran.binds and ran not in runs:
                    answers = {one.id for one in self.runner.lesson.exercises}
                    label = f"the answer of {ran.label}" if ran.label in answers else f"your {ran.label}"
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
