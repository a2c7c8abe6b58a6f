"""Grades one submission of one lesson: has its cells run elsewhere, judges each exercise, names misconceptions."""

from __future__ import annotations

import ast
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from grader.core.faults import Fault
from grader.core.notebook import Submission
from grader.core.points import total
from grader.core.result import CheckResult, Result
from grader.core.text import legible
from grader.course import Exercise, Lesson
from grader.course.probes import runs_probe
from grader.grading.cache import Outline, ReferenceCache, ReferenceNote
from grader.grading.executors import CompileCache, ExecutorPrograms, ReferencePrograms
from grader.grading.plan import JudgeExercise, RunCell, plan
from grader.grading.resemblance import Resemblance
from grader.grading.session import CheckRunner, GradingSession, Judgement, record
from grader.grading.worker_pair import (
    ANSWER_S,
    AVAILABLE_WITH_OWN_FILES,
    EXERCISE_MIN_PER_S,
    OWN_MIN,
    NotebookClock,
    WorkerPair,
)
from grader.program.endpoints import namedtuples
from grader.sandbox.accelerators import ON_CPUS, Hardware
from grader.sandbox.process import ACCELERATED_FACTOR, Zygote

Rehearse = Callable[[Exercise, str, str], Iterator[CheckResult]]
NEVER_ALONE = frozenset({"raised", "timeout", "crashed", "broken", "memory", "flooded", "malformed"})
ANY_SEED = "any seed"
# The least score of a resemblance, and how many times that of others it is: hundreds of answers that were written from
# the notebooks alone were given no false misconception with them.
SIMILAR, MUCH_MORE_SIMILAR = (0.25, 2), (0.4, 3)


def own_names(lesson: Lesson) -> set[str]:
    """Every name that a text of the lesson's binds, in whatever scope."""
    texts = [lesson.setup]
    for exercise in lesson.exercises:
        answers = (*exercise.right, *exercise.wrong)
        texts += [exercise.reference, *(answer.source for answer in answers), *(c.source for c in exercise.checks)]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


class Examiner:
    """Grades submissions of one lesson. Not for two threads: devices and mesh are process-wide.

    Under `build`, where it is given, lies what earlier runs found out about the course's own answers, and their
    compiled code, both for the `machine` whose devices all this runs on.
    """

    def __init__(
        self, lesson: Lesson, zygote: Zygote, secret: str, build: Path | None = None, machine: Hardware = ON_CPUS
    ) -> None:
        self.lesson, self.zygote, self.secret = lesson, zygote, secret
        self.runner = CheckRunner(lesson)
        self.classes = namedtuples({name: self.runner.setup.get(name) for name in lesson.setup_names})
        folder = build and build / "notes" / (lesson.id if machine.platform.is_cpu else f"{lesson.id} accelerated")
        self.notes = ReferenceCache(lesson, folder, machine.edition)
        self.compiled = CompileCache.of_our_own(build, lesson.id, machine) if build else CompileCache(machine=machine)
        self.known = ReferencePrograms(zygote, self.compiled)
        self._own = WorkerPair(lesson.setup, self.classes, self.known, data=self.runner.data)
        self.own_names = own_names(lesson)
        self._read: dict[str, ReferenceNote] = {}
        seconds = sum(exercise.timeout or ANSWER_S for exercise in lesson.exercises)
        factor = 1 if machine.platform.is_cpu else ACCELERATED_FACTOR
        self.minutes = math.ceil(factor * (OWN_MIN + EXERCISE_MIN_PER_S * seconds))  # on the clock, for all of it

    def isolated(self, kind: type[WorkerPair] = WorkerPair, data: str | None = None) -> WorkerPair:
        """A worker and an executor for a notebook, started when first needed. `data` is the folder of the lesson's
        files, where it contains a learner's too."""
        programs = ExecutorPrograms(self.zygote, self.compiled.for_learners)
        folder = self.runner.data if data is None else data
        pair = kind(self.lesson.setup, self.classes, programs, self.known, folder)
        if self.lesson.own_files_bytes:
            pair.available = AVAILABLE_WITH_OWN_FILES
        return pair

    def grade(
        self,
        submission: Submission,
        only: str | None = None,
        named: bool = True,
        judged: Callable[[list[CheckResult]], object] = lambda results: None,
    ) -> Result:
        """Grade one submission; faults in it end as records, never as exceptions.

        Args:
            submission: the notebook.
            only: the one exercise to check, after all that comes before it in the notebook; None for all of them.
            named: whether to name misconceptions, which takes answers of the course's own.
            judged: called with the results of each exercise as soon as they exist.
        """
        with self.runner.data_with(submission.own) as data:
            return self._grade(submission, self.isolated(data=data), only, named, judged)

    def _grade(
        self, submission: Submission, isolated: WorkerPair, only: str | None, named: bool,
        judged: Callable[[list[CheckResult]], object],
    ) -> Result:  # fmt: skip
        began = time.monotonic()
        seed = submission.seed(self.secret)
        session = GradingSession(self.runner, isolated, seed)
        session.isolated.clock = NotebookClock(self.minutes)
        found: list[tuple[Judgement, str]] = []  # with the text of the answer
        results: list[CheckResult] = []
        answers: dict[str, str] = {}  # by exercise
        try:
            steps, notes = plan(submission, self.lesson, session.isolated.binds)
            session.isolated.read(step.source for step in steps if isinstance(step, RunCell))
            for step in steps:
                if not isinstance(step, JudgeExercise):
                    session.run(step)
                    answers |= {name: f"{answers.get(name, '')}{step.source}\n" for name in step.answers}
                elif only not in (None, step.exercise.id):
                    session.pass_by(step)
                else:
                    if not step.untouched and (named or self.notes.of(step.exercise).read):
                        self.note(step.exercise)  # the programs of its own answers are known then
                    found.append((session.judge_public(step), answers.get(step.exercise.id, "")))
                    if only is not None:
                        break
            if only is None:  # else the process is where the checks are
                session.isolated.rewind()
                session.isolated.clock = NotebookClock(self.minutes)
            for judgement, source in found:
                news = session.judge_hidden(judgement)
                if named and any(result.status == "failed" for result in news):
                    news = self._name(judgement.exercise, news, seed, source)
                results += news
                judged(news)
        finally:
            session.isolated.drop()
        failed = {result.exercise for result in results if result.status == "failed"}
        notes += [note for note in session.notes if session.if_failed.get(note) in (None, *failed)]
        notes += submission.own.remarks
        order = {check.id: i for i, check in enumerate(c for e in self.lesson.exercises for c in e.checks)}
        return Result(
            learner=submission.learner,
            lesson=self.lesson.id,
            checks=tuple(sorted(results, key=lambda result: order[result.id])),
            max_score=total(result.max_points for result in results),
            confinement=self.zygote.confined.level,
            duration_s=time.monotonic() - began,
            notes=tuple(legible(note) for note in notes),
        )

    def _name(self, exercise: Exercise, results: list[CheckResult], seed: str, source: str) -> list[CheckResult]:
        """`results` with the misconception, where it is known."""
        note = self.note(exercise)
        note.take(self.notes.of(exercise))  # what another examiner found out meanwhile
        named = name_misconception(exercise, results, seed, note, partial(self.rehearse, reuse=True), source)
        self.keep(exercise)
        return named

    def note(self, exercise: Exercise, run: bool = True) -> ReferenceNote:
        """What is known of an exercise's own answers: from earlier runs, else by running the reference now, if it is to
        `run`: a proof runs it anyway."""
        if exercise.id not in self._read:
            note = self._read[exercise.id] = self.notes.of(exercise)
            self.known.news.clear()
            self.known.payloads |= note.programs
            if run and not note.read:
                list(self.rehearse(exercise, exercise.reference, ANY_SEED))
                note.read = True
                self.keep(exercise)
        return self._read[exercise.id]

    def keep(self, exercise: Exercise) -> None:
        """Write down what was found out about an exercise's own answers since the last time."""
        note = self._read[exercise.id]
        note.programs |= self.known.news
        self.known.news.clear()
        if self.notes.write(exercise, note):
            self.compiled.share(self.own_names)

    def rehearse(self, exercise: Exercise, source: str, seed: str, reuse: bool = False) -> Iterator[CheckResult]:
        """Results of an answer of the course's own, one by one, in processes that only ever run such answers.

        With `reuse`, programs that the same cells exported before are not traced again, except where a check runs
        a probe: that may count how often the answer is traced.
        """
        session, done = GradingSession(self.runner, self._own, seed), 0
        names = {name for other in self.lesson.exercises for name in other.names}
        try:
            self._own.fresh(reuse and not any(runs_probe(check.source, names) for check in exercise.checks))
            for cell in self.cells(exercise, source):
                session.run(cell)
            for result in session.judge(JudgeExercise(exercise)):
                done += 1
                yield result
        except Fault as fault:
            self._own.drop()
            yield from (record(check, "crashed", fault.message, kind=fault.kind) for check in exercise.checks[done:])

    def cells(self, exercise: Exercise, source: str) -> Iterator[RunCell]:
        """The cells to run for an answer of the course's own: it, after the earlier answers that its cells name."""
        words = set(re.findall(r"\w+", "\n".join((source, *(check.source for check in exercise.checks)))))
        for earlier in itertools.takewhile(lambda other: other.id != exercise.id, self.lesson.exercises):
            if words & set(earlier.names):
                yield RunCell(earlier.reference, earlier.id, (earlier.id,))
        yield RunCell(source, exercise.id, (exercise.id,))

    def close(self) -> None:
        """End the processes kept for the course's own answers."""
        self._own.drop()


def name_misconception(
    exercise: Exercise, results: list[CheckResult], seed: str, note: ReferenceNote, rehearse: Rehearse, source: str = ""
) -> list[CheckResult]:
    """`results` with the misconception of one wrong answer on its failed checks, where it is clear which one it is.

    That is the only one with the same record; of several, the one that `source`, the learner's answer, resembles by far
    the most. Exceptions and NaNs alone say little, as many mistakes raise the same TypeError: there `source` has to
    resemble the one with the same record more than any other.
    """
    failed = [result for result in results if result.status == "failed"]
    if not failed or not exercise.wrong:
        return results
    resemblance, because = Resemblance(exercise, source), [wrong.because for wrong in exercise.wrong]
    indices, scores = list(range(len(because))), resemblance.scores
    others = lambda index, among: [one for one in among if because[one] != because[index]]
    little = all(map(_says_little, failed))
    if little:
        indices = [one for one in indices if resemblance.clearly(one, others(one, indices), *SIMILAR)]
    same, equal = _with_same_record(exercise, results, seed, note, rehearse, indices)
    if not same:
        return results
    nearest = max(same, key=scores.__getitem__)
    if others(nearest, same):
        named = resemblance.clearly(nearest, others(nearest, same), *MUCH_MORE_SIMILAR)
    elif not equal:
        named = resemblance.clearly(nearest, (), *SIMILAR)
    else:
        named = little or not (all(map(_is_sentence, failed)) and resemblance.contradicts(nearest))
    if not named:
        return results
    line = resemblance.line(nearest)
    return [_marked(result, because[nearest], line) if result.status == "failed" else result for result in results]


def _marked(result: CheckResult, because: str | None, line: int) -> CheckResult:
    """A failed result with a misconception and what suggests it: this check, and a line of the answer if not 0."""
    where = f" (see line {line} of the answer)" if line else ""
    clue = f'It would explain why "{(result.title or result.id).rstrip(".")}" fails{where}.'
    return replace(result, misconception=because, clue=clue)


def _with_same_record(
    exercise: Exercise, results: list[CheckResult], seed: str, note: ReferenceNote, rehearse: Rehearse,
    indices: Iterable[int],
) -> tuple[list[int], bool]:  # fmt: skip
    """Which of these wrong answers have the same record under this seed, and True; else those with the same but for
    measured numbers, and False.

    What kind of thing a wrong answer fails does not depend on the seed, so only those alike are run under this one.
    """

    def run(index: int, seed: str) -> Iterator[CheckResult]:
        return rehearse(exercise, exercise.wrong[index].source, seed)

    def alike(index: int) -> bool:
        """Whether a wrong answer fails the same checks in the same way, under any seed.

        Each is run no further than to its first difference, and how far it was run is noted for the next learner; not
        so a fault, which may be a busy machine's.
        """
        known = note.outlines.setdefault(str(index), [])
        if known != outlines[: len(known)]:
            return False
        if len(known) == len(outlines):
            return True
        for i, result in enumerate(run(index, ANY_SEED)):
            if i == len(known) and result.status not in ("timeout", "crashed"):
                known.append(outline(result))
            if outline(result) != outlines[i]:
                return False
        return True

    def same(index: int) -> tuple[str, ...]:
        """The first differences of a wrong answer with the same record, or of one that differs in measured numbers."""
        found = []
        for one, result in zip(run(index, seed), results, strict=False):
            if _unmeasured(one) != _unmeasured(result):
                return ()
            found.append(one.first)
        return tuple(found)

    outlines, first = [outline(one) for one in results], tuple(result.first for result in results)
    found = {index: same(index) for index in indices if alike(index)}
    equal = [index for index, differences in found.items() if differences == first]
    return equal or [index for index, differences in found.items() if differences], bool(equal)


def _says_little(result: CheckResult) -> bool:
    """Whether a failure is an exception of the answer's own, or NaN: many different mistakes raise the same one."""
    return (result.kind in NEVER_ALONE and not result.first) or (result.kind == "values" and "nan" in result.first)


def _unmeasured(result: CheckResult) -> tuple[str, ...]:
    """A signature without the numbers in a check's sentence: two loops need not have as many operations."""
    sign = signature(result)
    return (*sign[:-1], re.sub(r"\d[\d,.]*", "", result.first)) if _is_sentence(result) else sign


def _is_sentence(result: CheckResult) -> bool:
    """Whether a failure is that of a `require`: many different mistakes lead to the same sentence."""
    return result.where == result.kind


def outline(result: CheckResult) -> Outline:
    """What kind of failure this is, whatever the inputs: check, status, kind, and place."""
    return result.id, result.status, result.kind, result.where


def signature(result: CheckResult) -> tuple[str, ...]:
    """The whole of what a failure is recognised by: check, status, kind, place, and the first difference."""
    return *outline(result), result.first
