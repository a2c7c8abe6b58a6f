"""One notebook while it is graded: which cells ran, which failed, and what each exercise's checks gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grader.core.result import CheckResult
from grader.course import Check, Exercise
from grader.grading.plan import JudgeExercise
from grader.grading.runner import CheckRunner, record
from grader.grading.worker_pair import ANSWER_S, CELL_S, CellOutcome, WorkerPair


class GradingSession:
    """Runs cells and judges exercises in one isolated pair of processes; `seed` names the inputs of its checks."""

    def __init__(self, room: CheckRunner, isolated: WorkerPair, seed: str) -> None:
        self.room, self.isolated, self.seed = room, isolated, seed
        self.notes: list[str] = []
        self.failed: list[CellOutcome] = []
        self.bound: set[str] = set()
        self.answers: dict[str, list[CellOutcome]] = {}

    def run(self, source: str, label: str, exercise: str | None) -> None:
        """Run one cell; a cell that fails blocks nothing by itself."""
        seconds = (self.room.lesson.exercise(exercise).timeout or ANSWER_S) if exercise else CELL_S
        ran = self.isolated.run(source, label, seconds)
        self.bound |= ran.bound
        if ran.problem is not None:
            self.failed.append(ran)
            if exercise is None:
                self.notes.append(f"Your {label} {ran.short}.")
        if exercise is not None:
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
        restored = [name for name in self.isolated.prepare(exercise.names) if name in self.room.lesson.setup_names]
        if restored:
            self.notes.append(f"Put back before the checks of {exercise.id}: {', '.join(restored)} (set by the setup).")
        yield from judge(exercise, self.isolated, self.room, self.seed)

    def pass_by(self, step: JudgeExercise) -> None:
        """Leave an exercise unjudged, and what comes after it as its checks would have left it."""
        if self._unjudged(step) is None:
            self.isolated.prepare(step.exercise.names)

    def _unjudged(self, step: JudgeExercise) -> tuple[str, str, bool] | None:
        """Status and message of an exercise that is not put through its checks, and whether that message quotes the
        learner's process; None when it is put through them."""
        exercise, names = step.exercise, step.exercise.names
        if step.missing:
            return "not attempted", "The answer cell is missing from your notebook.", False
        if step.untouched:
            return "not attempted", f"Not attempted yet: `{names[0]}` is as it was given out.", False
        runs = self.answers.get(exercise.id, [])
        fault = next((ran for ran in runs if ran.fault), None)
        if fault is not None:
            return "timeout" if fault.fault == "timeout" else "crashed", f"Your answer cell {fault.problem}.", False
        cause = self._cause(runs)
        if cause is not None:
            missing, ran = cause
            message = f"Your answer needs `{missing}`, which {_label(ran)} would define; that cell {ran.short}."
            return "blocked", message, True
        broken = next((ran for ran in runs if ran.problem), None)
        # A name that an earlier exercise's answer has too does not count, when the cell that should bind it failed.
        bound = set().union(*(ran.bound for ran in runs)) if broken else self.bound
        if bound & set(names):
            return None
        if broken is not None:
            status = "not attempted" if broken.stub else "failed"
            return status, f"Your answer cell {broken.problem}\nSo `{names[0]}` is not defined.", not broken.stub
        return "failed", f"`{names[0]}` is not defined: keep the name that the exercise gives.", False

    def _cause(self, runs: list[CellOutcome]) -> tuple[str, CellOutcome] | None:
        """A name that the answer needs and the failed cell that would have bound it."""
        for name in sorted(set().union(*(ran.needs for ran in runs)) - self.bound):
            for ran in self.failed:
                if name in ran.binds and ran not in runs:
                    return name, ran
        return None


def _label(ran: CellOutcome) -> str:
    return f"your {ran.label}" if ran.label.startswith("cell ") else f"the answer of {ran.label}"


def judge(exercise: Exercise, isolated: WorkerPair, room: CheckRunner, seed: str) -> Iterator[CheckResult]:
    """Run an exercise's checks in order; after one ran out of time the rest are not waited for."""
    late: Check | None = None
    for check in exercise.checks:
        if late is not None:
            message = f"Not run: the check before it ({late.title}) already ran out of time."
            yield record(check, "timeout", message, kind="timeout")
            continue
        result = room.run(check, exercise, isolated, seed)
        if result.status == "timeout":
            late = check
        if check.hidden:
            isolated.confided = True
        elif result.status == "failed" and isolated.confided and isolated.may_tell:
            result = _retold(result, check, exercise, isolated, room, seed)
        yield result


def _retold(
    result: CheckResult, check: Check, exercise: Exercise, isolated: WorkerPair, room: CheckRunner, seed: str
) -> CheckResult:
    """A public check's failure in the words of a process that no hidden check has asked anything.

    The answer may have kept what one asked, and quote it where a public check shows what was raised or returned.
    """
    clean = isolated.again()
    try:
        second = room.run(check, exercise, clean, seed)
    finally:
        clean.drop()
    if (second.status, second.kind, second.where) == (result.status, result.kind, result.where):
        return replace(result, message=second.message)
    return replace(result, message="It failed, but not in the same way when the same was asked of it alone.")
