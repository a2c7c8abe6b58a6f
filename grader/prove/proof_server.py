"""A forked process that puts one exercise to the test at a time, in a warm worker of the course's own answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from grader.checks import inputs
from grader.core.result import CheckResult
from grader.course import Check, Exercise
from grader.course.exercises import Variant, is_marker
from grader.grading.cache import ReferenceNote
from grader.grading.examiner import Examiner, name_misconception, outline, signature
from grader.grading.server import ExaminerServer, answer
from grader.prove.dummy_programs import ProgramUse, ProgramWatch
from grader.prove.hollow_values import WORDS, hollow_values
from grader.prove.mutants import Mutant, mutants
from grader.prove.proof import ExerciseProof, Survivor
from grader.prove.request_times import measure

BRIEF_WRONG = 2
# The reference meets at least so many draws, more where a check draws keys: what it draws itself is random as well.
LEAST_DRAWS, LEAST_KEY_DRAWS = 3, 25
RETURNS_WRONG = (
    "returns wrong results. In the same check, run it on values drawn from `inputs`, and compare its results with a "
    "reference."
)
JUDGE = "Compare the values with a reference, or require that they are there and finite."
Results = list[CheckResult]


class _Trial:
    def __init__(self, examiner: Examiner, exercise: Exercise) -> None:
        self.examiner, self.exercise = examiner, exercise
        self.problems: list[str] = []
        self.note, self.where = examiner.note(exercise, run=False), examiner.lesson.where

    def results(self, source: str, seed: int = 0, reuse: bool = False) -> Results:
        return list(self.examiner.rehearse(self.exercise, source, str(seed), reuse=reuse))

    def draws(self, source: str, seeds: int, anew: int = 1) -> Iterator[Results]:
        """The results of an answer with the inputs of each seed.

        The first `anew` trace it again, so that one which traces differently each time shows. All others reuse the
        programs of earlier ones where `rehearse` can, and run only the checks that have drawn anything: the rest cannot
        end otherwise.
        """
        first: Results = []
        drawing: list[Check] = []
        for seed in range(min(seeds, anew)):
            first, drawing = [], []
            results = self.examiner.rehearse(self.exercise, source, str(seed), reuse=seeds == 1)
            for check, result in zip(self.exercise.checks, results, strict=True):
                first.append(result)
                drawing += [check] * (inputs.drawn() > 0)
            yield first
        exercise = replace(self.exercise, checks=tuple(drawing))
        for seed in range(anew, seeds):
            news = self.examiner.rehearse(exercise, source, str(seed), reuse=True) if drawing else ()
            latest = {result.id: result for result in news}
            yield [latest.get(result.id, result) for result in first]

    def prove(self, mutate: bool, brief: bool, seeds: int, suggest: bool) -> dict[str, Any]:
        began = time.monotonic()
        right, wrong = self.exercise.right, self.exercise.wrong
        if brief:
            right, wrong, seeds = (), wrong[:BRIEF_WRONG], 1
        if suggest:
            right, wrong = (), ()
        draws_keys = any("inputs.key" in check.source for check in self.exercise.checks)
        least = 1 if brief or suggest else LEAST_KEY_DRAWS if draws_keys else LEAST_DRAWS
        accepted = [self.right("the reference", self.exercise.reference, max(seeds, least))]
        self.note.read = True
        accepted += [self.right(f"the right answer on {self.where(v.line)}", v.source, seeds) for v in right]
        untouched = [] if brief or suggest else [self.untouched()]
        if not brief and not suggest and any("program(" in check.source for check in self.exercise.checks):
            self.dummies()
        if not brief and not suggest:
            self.hollow()
        rejected = [self.wrong(i, variant, seeds) for i, variant in enumerate(wrong)]
        named = self.named(wrong, rejected)
        self.examiner.keep(self.exercise)  # grading then knows what the course's own answers do from the start
        made = mutants(self.exercise.reference) if mutate and not brief else []
        survivors = [mutant for mutant in made if self.survives(mutant, seeds)]
        listed = self.equivalent(made, survivors) if made else set()
        signatures = [[signature(result) for result in results[0]] for results in rejected]
        return asdict(
            ExerciseProof(
                lesson=self.examiner.lesson.id,
                exercise=self.exercise.id,
                points=self.exercise.points,
                right=len(right),
                wrong=len(wrong),
                caught=sum(_caught(results[0]) for results in rejected),
                named=named,
                tied=sum(signatures.count(one) > 1 for one in signatures),
                mutants=len(made),
                equivalent=len(listed),
                survivors=[self.survivor(mutant) for mutant in survivors if mutant.label not in listed],
                problems=self.problems,
                verdicts=[
                    {one.id: one.status for one in results}
                    for results in (*untouched, *accepted, *(one[0] for one in rejected))
                ],
                seconds=round(time.monotonic() - began, 2),
            )
        )

    def right(self, label: str, source: str, seeds: int) -> Results:
        """The results of an answer that must pass every check, on the first of the seeds."""
        first: Results = []
        for seed, results in enumerate(self.draws(source, seeds, anew=2)):
            first = first or results
            missed = next((result for result in results if result.status != "passed"), None)
            if missed is not None:
                self.problems.append(f"{label} fails {missed.id} (seed {seed}): {missed.message}")
                break
        return first

    def survives(self, mutant: Mutant, seeds: int) -> bool:
        """Whether a mutant passes every check. One that does so under some seeds only is a problem of the checks."""
        passes = lambda results: all(one.status == "passed" for one in results)  # ends at the first that it fails
        if not passes(self.examiner.rehearse(self.exercise, mutant.source, "0")):
            return False
        for seed, results in enumerate(self.draws(mutant.source, seeds)):
            if not passes(results):
                [missed, *_] = (result.id for result in results if result.status != "passed")
                text = f"passes every check with seed 0 and fails {missed} with seed {seed}"
                self.problems.append(f"the mutant on {self.at(mutant)} {text}: {mutant.label}")
                return False
        return True

    def at(self, mutant: Mutant) -> str:
        """Where the changed line is in the lesson's text."""
        [answer] = (cell for cell in self.examiner.lesson.cells if (cell.kind, cell.id) == ("answer", self.exercise.id))
        text = answer.source.split("\n")
        kept = [number for number, line in enumerate(text, answer.first) if not is_marker(line)]
        return self.where(kept[mutant.line - 1])

    def survivor(self, mutant: Mutant) -> Survivor:
        line = self.exercise.reference.split("\n")[mutant.line - 1].strip()
        return Survivor(mutant.label, self.at(mutant), line, mutant.changed)

    def equivalent(self, made: list[Mutant], survivors: list[Mutant]) -> set[str]:
        """The labels that the text lists as equivalent; each must be that of a mutant that passes every check."""
        labels = {label: cell.line for cell in self.exercise.equivalent for label in cell.labels}
        surviving = {mutant.label for mutant in survivors}
        for label, line in labels.items():
            if label not in surviving:
                state = "fails a check" if label in {mutant.label for mutant in made} else "does not exist"
                text = f"a mutant that is listed as equivalent on {self.where(line)} {state}"
                self.problems.append(f"{text}: {label}")
        return surviving & set(labels)

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

    def hollow(self) -> None:
        """Requires that every hidden check that is not observed fails when all that the answer returns is hollow."""
        found: dict[str, str] = {}  # by check: one kind is enough
        for kind, words in WORDS.items():
            with hollow_values(kind) as changed:
                results = self.examiner.rehearse(self.exercise, self.exercise.reference, "1", reuse=True)
                for check, result in zip(self.exercise.checks, results, strict=True):
                    if result.status == "passed" and check.hidden and not check.observed and changed:
                        passes = f"{check.id} in {self.examiner.lesson.id} passes although {words}"
                        found.setdefault(check.id, f"{passes} in all that the answer returns. {JUDGE}")
                    changed.clear()
        self.problems += found.values()

    def watched(self, seed: str, watch: ProgramWatch) -> Iterator[tuple[Check, list[ProgramUse]]]:
        """The checks that the reference passes while `watch` is on, each with what it did with its programs."""
        with watch.on():
            results = self.examiner.rehearse(self.exercise, self.exercise.reference, seed, reuse=True)
            for check, result in zip(self.exercise.checks, results, strict=True):
                used = watch.take_uses()
                if result.status == "passed":
                    yield check, used

    def wrong(self, index: int, variant: Variant, seeds: int) -> list[Results]:
        """The results of a wrong answer on each seed, which must fail a hidden check and give the same points on all.
        How it fails is noted for grading."""
        drawn, where = list(self.draws(variant.source, seeds)), self.where(variant.line)
        first = drawn[0]
        if not any(result.status in ("timeout", "crashed") for result in first):
            self.note.outlines[str(index)] = [outline(result) for result in first]
        if not _caught(first):
            self.problems.append(f"the wrong answer on {where} fails no hidden check ({variant.because})")
        broken = {result.id: result for results in drawn for result in results if result.status == "error"}.values()
        self.problems += [f"{one.id} is at fault with the wrong answer on {where}: {one.message}" for one in broken]
        for check, ends in zip(self.exercise.checks, zip(*drawn, strict=True), strict=True):
            self.changes(f"the wrong answer on {where} gives {check.id} other points", [one.points for one in ends])
        return drawn

    def named(self, wrong: Sequence[Variant], rejected: list[list[Results]]) -> int:
        """How many wrong answers have their own misconception named; the same one, or none, must be on every seed."""
        known = {variant.source: results for variant, results in zip(wrong, rejected, strict=True)}
        exercise, count = replace(self.exercise, wrong=tuple(wrong)), 0
        for variant, drawn in zip(wrong, rejected, strict=True):
            names = []
            for seed, results in enumerate(drawn):
                at = lambda exercise, source, seed: iter(known[source][int(seed) if seed.isdecimal() else 0])
                # By the record alone: the code of a learner's answer may resemble no other.
                told = name_misconception(exercise, results, str(seed), ReferenceNote(), at)
                names.append(next((one.misconception for one in told if one.misconception), None))
            self.changes(f"the wrong answer on {self.where(variant.line)} has another misconception named", names)
            count += names[0] == variant.because
        return count

    def changes(self, what: str, by_seed: Sequence[object]) -> None:
        """Adds a problem where anything differs between seeds, with those under which it is not the most common."""
        common = max(by_seed, key=by_seed.count)
        others = [f"{seed} ({one})" for seed, one in enumerate(by_seed) if one != common]
        if others:
            seeds = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
            self.problems.append(f"{what} with seed {seeds} than with most ({common})")

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
    """Answer requests of `grader.prove.proof`: test an exercise, time it, or rehearse its wrong answers."""

    def reply(server: ExaminerServer, request: dict[str, Any]) -> object:
        examiner = server.examiner(request.pop("lesson"))
        exercise = examiner.lesson.exercise(request.pop("exercise"))
        if request["do"] == "times":
            return list(map(asdict, measure(examiner, exercise)))
        trial = _Trial(examiner, exercise)
        return trial.preview() if request.pop("do") == "preview" else trial.prove(**request)

    answer(stream, control, reply)
