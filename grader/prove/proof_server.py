"""A forked process that puts one exercise to the test at a time, in a warm worker of the course's own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.core.result import CheckResult
from grader.course import Course, Exercise
from grader.grading import misconceptions
from grader.grading.cache import ReferenceNote
from grader.grading.examiner import Examiner
from grader.grading.executors import CompileCache
from grader.grading.misconceptions import outline, signature
from grader.grading.pool import answer
from grader.prove.mutants import mutants
from grader.sandbox.process import Zygote

SEEDS = 3
RANDOM_SEEDS = 25


class ProofServer:
    """The lessons of one course, and the tests that each exercise has to stand."""

    def __init__(self, zygote: Zygote, root: str) -> None:
        self.zygote, self.course = zygote, Course(Path(root))
        self.examiners: dict[str, Examiner] = {}
        CompileCache.of_our_own(self.course.root / "build", "examiners").begin()

    def case(self, lesson: str, exercise: str) -> _Case:
        """An exercise and the examiner of its lesson."""
        if lesson not in self.examiners:
            build = self.course.root / "build"
            self.examiners[lesson] = Examiner(self.course.lesson(lesson), self.zygote, "proof", build)
        return _Case(self.examiners[lesson], next(e for e in self.course.lesson(lesson).exercises if e.id == exercise))

    def judge(self, lesson: str, exercise: str, source: str) -> dict[str, Any]:
        """The status of each check for one answer."""
        return {result.id: result.status for result in self.case(lesson, exercise).results(source)}

    def rehearse(self, lesson: str, exercise: str) -> dict[str, Any]:
        """The stub and each wrong answer with what a learner reads of them, as JSON (`grader.prove.preview`)."""
        return {"answers": self.case(lesson, exercise).shown()}

    def test(self, lesson: str, exercise: str, mutate: bool) -> dict[str, Any]:
        """Put one exercise to the test; a row of the proof as JSON."""
        began = time.monotonic()
        case = self.case(lesson, exercise)
        case.right()
        case.untouched()
        case.wrong()
        case.keep()
        survivors, made = case.mutants() if mutate else ([], 0)
        return {
            "lesson": lesson,
            "exercise": exercise,
            "points": case.exercise.points,
            "right": len(case.exercise.right),
            "wrong": len(case.exercise.wrong),
            "caught": case.caught,
            "mutants": made,
            "survivors": survivors,
            "problems": case.problems,
            "named": case.named,
            "seconds": round(time.monotonic() - began, 2),
        }


class _Case:
    def __init__(self, examiner: Examiner, exercise: Exercise) -> None:
        self.examiner, self.exercise = examiner, exercise
        self.problems: list[str] = []
        self.caught = self.named = 0
        self.note, self.where = examiner.note(exercise), examiner.lesson.where

    def results(self, source: str, seed: str = "0") -> list[CheckResult]:
        return list(self.examiner.rehearse(self.exercise, source, seed))

    def right(self) -> None:
        """The reference on several seeds, on many where it is random, and each other right answer."""
        text = "\n".join(check.source for check in self.exercise.checks)
        seeds = RANDOM_SEEDS if "inputs.key" in text else SEEDS
        answers = [("the reference", self.exercise.reference, seeds)]
        answers += [(f"the right answer on {self.where(v.line)}", v.source, 1) for v in self.exercise.right]
        for label, source, count in answers:
            for seed in range(count):
                missed = _missed(self.results(source, str(seed)))
                if missed:
                    self.problems.append(f"{label} fails {missed[0].id} (seed {seed}): {missed[0].message}")
                    break

    def untouched(self) -> None:
        """The stub as it is given out must not pass any check."""
        passed = [result.id for result in self.results(self.exercise.stub) if result.status != "not attempted"]
        if passed:
            self.problems.append(f"the untouched stub does not end as not attempted in {', '.join(passed)}")

    def wrong(self) -> None:
        """Each wrong answer must fail a hidden check; how many would be named by their misconception is counted."""
        signatures = []
        for i, variant in enumerate(self.exercise.wrong):
            results = self.results(variant.source)
            if not any(result.status in ("timeout", "crashed") for result in results):
                self.note.outlines[str(i)] = [outline(result) for result in results]
            missed = _missed(results)
            signatures.append([signature(result) for result in results])
            if any(result.hidden for result in missed):
                self.caught += 1
            else:
                self.problems.append(
                    f"the wrong answer on {self.where(variant.line)} fails no hidden check ({variant.because})"
                )
            broken = [result for result in results if result.status == "error"]
            self.problems += [
                f"{r.id} is at fault with the wrong answer on {self.where(variant.line)}: {r.message}" for r in broken
            ]
        self.named = sum(signatures.count(one) == 1 for one in signatures)

    def shown(self) -> list[dict[str, Any]]:
        """The stub, then each wrong answer: its results with the misconception named where a learner's would be."""
        results = {variant.source: self.results(variant.source) for variant in self.exercise.wrong}

        def again(exercise: Exercise, source: str, seed: str) -> Iterator[CheckResult]:
            return iter(results[source])

        answers = [("", self.exercise.line, self.results(self.exercise.stub))]
        for variant in self.exercise.wrong:
            named = misconceptions.name(self.exercise, results[variant.source], "0", ReferenceNote(), again)
            answers.append((variant.because or "", variant.line, named))
        return [
            {"because": because, "where": self.where(line), "checks": [check.to_json() for check in checks]}
            for because, line, checks in answers
        ]

    def keep(self) -> None:
        """Write down what the course's own answers do: grading then knows their programs from the start."""
        self.examiner.keep(self.exercise)

    def mutants(self) -> tuple[list[str], int]:
        """Mutants that pass every check, and how many there were."""
        made = mutants(self.exercise.reference)
        survivors = [
            f"line {mutant.line}: {mutant.kind}, {mutant.what}"
            for mutant in made
            if not _missed(self.results(mutant.source))
        ]
        return survivors, len(made)


def _missed(results: list[CheckResult]) -> list[CheckResult]:
    return [result for result in results if result.status != "passed"]


def serve(stream: socket.socket, control: socket.socket) -> None:
    """Open the course that the first request names, then test exercises until the stream closes."""
    benches: list[ProofServer] = []

    def handle(request: dict[str, Any]) -> dict[str, Any] | None:
        if "root" in request:
            benches.append(ProofServer(Zygote(control), request["root"]))
            return None
        if request.pop("rehearse", False):
            return benches[0].rehearse(**request)
        return benches[0].judge(**request) if "source" in request else benches[0].test(**request)

    answer(stream, handle)
    for examiner in benches[0].examiners.values() if benches else ():
        examiner.close()
