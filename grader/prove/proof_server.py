"""A forked process that puts one exercise to the test at a time, in a warm worker of the course's own answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from grader.core.result import CheckResult
from grader.course import Check, Exercise
from grader.course.exercises import Variant
from grader.grading.cache import ReferenceNote
from grader.grading.examiner import Examiner, name_misconception, outline, signature
from grader.grading.server import ExaminerServer, answer
from grader.prove.dummy_programs import ProgramUse, ProgramWatch
from grader.prove.mutants import mutants
from grader.prove.proof import ExerciseProof

SEEDS, RANDOM_SEEDS = 3, 25
BRIEF_WRONG = 2
RETURNS_WRONG = (
    "returns wrong results. In the same check, run it on values drawn from `inputs`, and compare its results with a "
    "reference."
)


class _Trial:
    def __init__(self, examiner: Examiner, exercise: Exercise) -> None:
        self.examiner, self.exercise = examiner, exercise
        self.problems: list[str] = []
        self.note, self.where = examiner.note(exercise), examiner.lesson.where

    def results(self, source: str, seed: int = 0, reuse: bool = False) -> list[CheckResult]:
        # Two seeds trace an answer anew, so that one which traces differently each time shows; further ones take the
        # second one's programs: the same cells ran in the same state.
        return list(self.examiner.rehearse(self.exercise, source, str(seed), reuse=reuse or seed > 1))

    def prove(self, mutate: bool, brief: bool) -> ExerciseProof:
        began = time.monotonic()
        right, wrong = self.exercise.right, self.exercise.wrong
        seeds = RANDOM_SEEDS if any("inputs.key" in check.source for check in self.exercise.checks) else SEEDS
        if brief:
            right, wrong, seeds = (), wrong[:BRIEF_WRONG], 1
        accepted = [self.right("the reference", self.exercise.reference, seeds)]
        accepted += [self.right(f"the right answer on {self.where(v.line)}", v.source, 1) for v in right]
        untouched = [] if brief else [self.untouched()]
        if not brief and any("program(" in check.source for check in self.exercise.checks):
            self.dummies()
        rejected = [self.wrong(i, variant) for i, variant in enumerate(wrong)]
        self.examiner.keep(self.exercise)  # grading then knows what the course's own answers do from the start
        made = mutants(self.exercise.reference) if mutate and not brief else []
        rehearse = self.examiner.rehearse  # ends at the first check that a mutant fails
        survives = lambda source: all(one.status == "passed" for one in rehearse(self.exercise, source, "0"))
        survivors = [f"line {one.line}: {one.kind}, {one.what}" for one in made if survives(one.source)]
        signatures = [[signature(result) for result in results] for results in rejected]
        return ExerciseProof(
            lesson=self.examiner.lesson.id,
            exercise=self.exercise.id,
            points=self.exercise.points,
            right=len(right),
            wrong=len(wrong),
            caught=sum(map(_caught, rejected)),
            named=sum(signatures.count(one) == 1 for one in signatures),
            mutants=len(made),
            survivors=survivors,
            problems=self.problems,
            verdicts=[{one.id: one.status for one in results} for results in untouched + accepted + rejected],
            seconds=round(time.monotonic() - began, 2),
        )

    def right(self, label: str, source: str, seeds: int) -> list[CheckResult]:
        """The results of an answer that must pass every check, on the first of the seeds."""
        first: list[CheckResult] = []
        for seed in range(seeds):
            results = self.results(source, seed, reuse=seeds == 1)
            first = first or results
            missed = next((result for result in results if result.status != "passed"), None)
            if missed is not None:
                self.problems.append(f"{label} fails {missed.id} (seed {seed}): {missed.message}")
                break
        return first

    def untouched(self) -> list[CheckResult]:
        """The results of the stub as it is released, which must not pass any check."""
        results = self.results(self.exercise.stub)
        passed = [result.id for result in results if result.status != "not attempted"]
        if passed:
            self.problems.append(f"the untouched stub does not end as not attempted in {', '.join(passed)}")
        return results

    def dummies(self) -> None:
        """Requires that every check fails when one of its programs, or all of them, return wrong results.

        Arguments that are the same on two seeds could be known, and their results written down: these stay right.
        """
        honest = [used for _, used in self.watched("0", ProgramWatch())]
        known = frozenset(arguments for used in honest for use in used for arguments in use.arguments)
        most, lesson = max(map(len, honest), default=0), self.examiner.lesson.id
        found: dict[str, None] = {}  # in order, each once
        for wrong in (*(range(i, i + 1) for i in range(most)), range(most)):
            for check, used in self.watched("1", ProgramWatch(wrong, known)):
                for use in used[wrong.start : wrong.stop]:
                    if not use.value_only:
                        where = self.where(check.line + use.line)
                        found[f"{check.id} in {lesson} passes although its program on {where} {RETURNS_WRONG}"] = None
        self.problems += found

    def watched(self, seed: str, watch: ProgramWatch) -> Iterator[tuple[Check, list[ProgramUse]]]:
        """The checks that the reference passes while `watch` is on, each with what it did with its programs."""
        with watch.on():
            results = self.examiner.rehearse(self.exercise, self.exercise.reference, seed, reuse=True)
            for check, result in zip(self.exercise.checks, results, strict=True):
                used, watch.uses = watch.uses, []
                if result.status == "passed":
                    yield check, used

    def wrong(self, index: int, variant: Variant) -> list[CheckResult]:
        """The results of a wrong answer, which must fail a hidden check; how it fails is noted for grading."""
        results, where = self.results(variant.source), self.where(variant.line)
        if not any(result.status in ("timeout", "crashed") for result in results):
            self.note.outlines[str(index)] = [outline(result) for result in results]
        if not _caught(results):
            self.problems.append(f"the wrong answer on {where} fails no hidden check ({variant.because})")
        broken = [result for result in results if result.status == "error"]
        self.problems += [f"{one.id} is at fault with the wrong answer on {where}: {one.message}" for one in broken]
        return results

    def preview(self) -> list[dict[str, Any]]:
        """The stub, then each wrong answer: its results with the misconception named where a learner's would be."""
        results = {variant.source: self.results(variant.source) for variant in self.exercise.wrong}
        again = lambda exercise, source, seed: iter(results[source])
        answers = [("", self.exercise.line, self.results(self.exercise.stub))]
        for variant in self.exercise.wrong:
            source, note = variant.source, ReferenceNote()
            named = name_misconception(self.exercise, results[source], "0", note, again, source)
            answers.append((variant.because or "", variant.line, named))
        told = lambda checks: [check.to_json() for check in checks]
        return [{"because": why, "where": self.where(line), "checks": told(checks)} for why, line, checks in answers]


def _caught(results: list[CheckResult]) -> bool:
    return any(result.hidden and result.status != "passed" for result in results)


def serve(stream: socket.socket, control: socket.socket) -> None:
    """Answer requests of `grader.prove.proof`: test an exercise, or rehearse its wrong answers."""

    def reply(server: ExaminerServer, request: dict[str, Any]) -> object:
        examiner = server.examiner(request.pop("lesson"))
        trial = _Trial(examiner, examiner.lesson.exercise(request.pop("exercise")))
        return trial.preview() if request.pop("do") == "preview" else asdict(trial.prove(**request))

    answer(stream, control, reply)
