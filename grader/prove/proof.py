"""The proof of a course: every exercise put to the test; and the preview of what a failed check tells learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from grader.core.faults import Fault
from grader.core.layout import PROOF
from grader.core.points import number, phrase, total
from grader.core.result import CheckResult
from grader.course import Course
from grader.grading.batch import cores, imports
from grader.grading.pool import Pool
from grader.prove.mutants import mutants as made_of

SEEDS = 20


@dataclass(frozen=True)
class Survivor:
    """A mutant that passes every check: its label, where its line is in the lesson's text, that line, and the changed
    one."""

    label: str
    where: str
    line: str
    changed: str


@dataclass(frozen=True)
class ExerciseProof:
    """How one exercise stood its test: a row of the table.

    `right`, `wrong` and `mutants` count those that were run beside the reference. Of the wrong answers `caught` fail a
    hidden check, `named` have their own misconception named, and `tied` fail as another one does. Of the mutants
    `equivalent` are listed as such, and `survivors` are the others that pass every check. `verdicts` are statuses by
    check id, with the inputs of seed 0: of the stub (not in a brief proof), the reference, each right and each wrong
    answer.
    """

    lesson: str
    exercise: str
    points: float
    right: int
    wrong: int
    caught: int
    named: int
    tied: int
    mutants: int
    equivalent: int
    survivors: list[Survivor]
    problems: list[str]
    verdicts: list[dict[str, str]]
    seconds: float


@dataclass(frozen=True)
class Proof:
    """A row for each exercise, and what does not hold, a sentence each."""

    rows: tuple[ExerciseProof, ...]
    problems: tuple[str, ...]


def prove(
    course: Course,
    lessons: Sequence[str],
    only: str | None = None,
    mutants: bool = True,
    jobs: int | None = None,
    brief: bool = False,
    seeds: int = SEEDS,
    suggest: bool = False,
) -> Proof:
    """Puts `lessons` to the test, exercises side by side in `jobs` processes, or one a core. Raises CourseError.

    With `only`, the id of an exercise, the others are left out. Every right answer, wrong answer and surviving mutant
    is run on `seeds` draws of the inputs, and the reference on at least 3 (25 where a check draws keys). A `brief`
    proof runs only the reference, on one draw, and two wrong answers of each exercise. With `suggest` it is the
    reference and mutants.
    """
    from grader.course import build

    stale = [path for path in build.stale(course, lessons) if path.stem in lessons]
    fix = "run `make build` and commit it" if course.base is None else "run `grader build`"
    problems = [f"{course.shown(path)} is stale: {fix}." for path in stale]
    exercises = [(lesson, exercise.id) for lesson in lessons for exercise in course.lesson(lesson).exercises]
    exercises = [(lesson, exercise) for lesson, exercise in exercises if only in (None, exercise)]
    options = {"do": "prove", "mutate": mutants, "brief": brief, "seeds": seeds, "suggest": suggest}
    requests = [{**options, "lesson": lesson, "exercise": exercise} for lesson, exercise in exercises]
    with _pool(course, lessons, cores(jobs, len(requests))) as pool:
        replies = pool.map(requests)
    rows = []
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, Fault):
            problems.append(f"{request['exercise']}: the process that tested it failed: {reply.message}.")
            continue
        rows.append(ExerciseProof(**reply | {"survivors": [Survivor(**one) for one in reply["survivors"]]}))
        problems += [f"{request['exercise']}: {problem}" for problem in reply["problems"]]
        survivors = [] if suggest else rows[-1].survivors
        passes = "the mutant on {} passes every check. Catch it, or list it as equivalent with the reason."
        problems += [f"{request['exercise']}: {passes.format(one.where)}" for one in survivors]
    return Proof(tuple(rows), tuple(problems))


def _pool(course: Course, lessons: Sequence[str], jobs: int) -> Pool:
    return Pool(PROOF, {"home": str(course.home), "secret": "proof"}, jobs, imports(course, lessons))


def show(proof: Proof, console: Console) -> None:
    """Prints the table, the mutants that survived, and what does not hold."""
    names = ("right", "wrong", "caught", "named", "tied", "mutants", "time")
    columns = (Column(name, justify="right", no_wrap=True, min_width=6 if name == "time" else None) for name in names)
    table = Table(Column("exercise", no_wrap=True), *columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for row in proof.rows:
        possible = row.mutants - row.equivalent
        counts = map(str, (row.right, row.wrong, row.caught, row.named, row.tied))
        killed = f"{possible - len(row.survivors)}/{possible}"
        table.add_row(row.exercise, *counts, killed, f"{row.seconds:.0f} s")
    console.print(table)
    for row in proof.rows:
        for one in row.survivors:  # a label is copied, so it is on one line
            console.print(f"survived: {row.exercise}, {one.where}: {one.label}", markup=False, soft_wrap=True)
    _show_problems(proof, console)


def show_times(course: Course, lessons: Sequence[str], only: str | None, console: Console) -> list[str]:
    """Prints the milliseconds of each check of the solutions, with the number and the milliseconds of each kind of
    request; returns what failed, a sentence each.

    One exercise after another is measured, in processes as a learner's answer gets.
    """
    exercises = [(lesson, exercise.id) for lesson in lessons for exercise in course.lesson(lesson).exercises]
    requests = [{"do": "times", "lesson": one, "exercise": name} for one, name in exercises if only in (None, name)]
    problems: list[str] = []
    columns = [
        Column(name, justify="right", no_wrap=True) for name in ("ms", "calls", "exports", "loads", "runs", "rest")
    ]
    table = Table(Column("check", no_wrap=True), *columns, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    with _pool(course, lessons, 1) as pool:
        replies = pool.map(requests)
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, Fault):
            problems.append(f"{request['exercise']}: the process that timed it failed: {reply.message}.")
            continue
        table.add_row(request["exercise"], _ms(sum(one["seconds"] for one in reply)), style="bold")
        for one in reply:
            asked = [one["requests"].get(kind, (0, 0.0)) for kind in ("call", "export", "load", "run")]
            shown = [f"{count} · {_ms(seconds)}" if count else "" for count, seconds in asked]
            rest = one["seconds"] - sum(seconds for _, seconds in asked)
            table.add_row(
                f"  {one['name'].removeprefix(request['exercise'] + '-')}", _ms(one["seconds"]), *shown, _ms(rest)
            )
    console.print(table)
    for problem in problems:
        console.print(f"✗ {problem}", markup=False, style="red")
    return problems


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f}"


def show_totals(course: Course, console: Console) -> None:
    """Prints what each lesson contains, and the sums: exercises, points, checks, answers with a known verdict, and
    mutants of the solutions. Runs nothing."""
    names = ("exercises", "points", "checks", "hidden", "right", "wrong", "mutants")
    columns = (Column(name, justify="right") for name in names)
    table = Table(
        Column("lesson", no_wrap=True),
        *columns,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_footer=True,
    )
    sums = [0.0] * len(names)
    for lesson in map(course.lesson, course.lesson_ids):
        checks = [check for exercise in lesson.exercises for check in exercise.checks]
        row = (
            len(lesson.exercises),
            lesson.points,
            len(checks),
            sum(check.hidden for check in checks),
            sum(1 + len(exercise.right) for exercise in lesson.exercises),  # with the solution
            sum(len(exercise.wrong) for exercise in lesson.exercises),
            sum(len(made_of(exercise.reference)) for exercise in lesson.exercises),
        )
        sums = [total((before, new)) for before, new in zip(sums, row, strict=True)]
        table.add_row(lesson.id, *map(number, row))
    table.columns[0].footer = phrase(len(course.lesson_ids), "lesson")
    for column, value in zip(table.columns[1:], sums, strict=True):
        column.footer = number(value)
    console.print(table)


def _show_problems(proof: Proof, console: Console) -> None:
    for problem in proof.problems:
        console.print(f"✗ {problem}", markup=False, style="red")
    console.print(f"{phrase(len(proof.problems), 'problem')} found." if proof.problems else "No problems found.")


def show_suggestions(proof: Proof, console: Console) -> None:
    """Prints the variants of each reference that pass every check, and the cell that lists them as equivalent."""
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    for row in proof.rows:
        say(f"{row.exercise}: {len(row.survivors)} of {row.mutants - row.equivalent} variants pass every check.")
        for one in row.survivors:
            say(f"  {one.where}: {one.label.partition(': ')[0]}")
            say(f"    - {one.line}", style="red")
            say(f"    + {one.changed}", style="green")
        if row.survivors:
            say("  Catch them with a check, or list those that are right answers, with the reason:")
            say(f'# %% equivalent="{row.exercise}" because=""')
            for one in row.survivors:
                say(f"# {one.label}")
    _show_problems(proof, console)


@dataclass(frozen=True)
class AnswerReport:
    """One answer of the course's own: its misconception, where it stands in the text, and how each check ended."""

    because: str
    where: str
    checks: tuple[CheckResult, ...]

    @property
    def missed(self) -> list[CheckResult]:
        """The checks that it did not pass: what its learner reads."""
        return [check for check in self.checks if check.status != "passed"]


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise: its stub as it is released, then each wrong answer; `problem` says why it could not be run."""

    exercise: str
    stub: AnswerReport
    wrong: tuple[AnswerReport, ...] = ()
    problem: str | None = None

    @property
    def points(self) -> float:
        return total(check.max_points for check in self.stub.checks)

    @property
    def remarks(self) -> list[str]:
        """What may be a weakness of the checks or of their messages; a sentence each."""
        found = []
        kind = lambda check: "hidden check" if check.hidden else "public check"
        name = lambda check: f"{kind(check)} {check.id.removeprefix(self.exercise + '-')}"
        for answer in self.wrong:
            if not answer.missed:
                found.append(f"No check fails the wrong answer on {answer.where}.")
            elif len(answer.missed) == 1 and len(answer.checks) > 1:
                found.append(f"Only the {name(answer.missed[0])} fails the wrong answer on {answer.where}.")
            for check in answer.missed:
                if check.status == "error":
                    found.append(f"The {name(check)} is itself at fault with the wrong answer on {answer.where}.")
        for check in self.stub.checks:
            failures = [one for answer in self.wrong for one in answer.missed if one.id == check.id]
            messages = {one.message.strip() for one in failures}
            if not failures:
                found.append(f"No wrong answer fails the {name(check)}, so its message was never tested.")
            elif "" in messages:
                found.append(f"The {name(check)} has no message except its title when it fails.")
            elif check.hidden and len(messages) == 1 and len(failures) > 1:
                found.append(f"The {name(check)} has one message for all {len(failures)} wrong answers that fail it.")
        return found


def preview(
    course: Course,
    lesson: str,
    jobs: int | None = None,
    on_exercise: Callable[[ExerciseReport], None] = lambda one: None,
) -> list[ExerciseReport]:
    """Runs the stub and the wrong answers of a lesson's exercises, side by side in `jobs` processes, or one a core.
    Calls `on_exercise` with each report in the lesson's order, as soon as it can. Raises CourseError."""
    names = [exercise.id for exercise in course.lesson(lesson).exercises]
    requests = [{"do": "preview", "lesson": lesson, "exercise": name} for name in names]
    waiting: dict[int, ExerciseReport] = {}
    done: list[ExerciseReport] = []

    def take(i: int, reply: Any) -> None:
        waiting[i] = _report(names[i], reply)
        while len(done) in waiting:
            done.append(waiting.pop(len(done)))
            on_exercise(done[-1])

    with _pool(course, [lesson], cores(jobs, len(requests))) as pool:
        pool.map(requests, take)
    return done


def _report(exercise: str, reply: Any) -> ExerciseReport:
    if isinstance(reply, Fault):
        problem = f"The process that ran its wrong answers failed: {reply.message}."
        return ExerciseReport(exercise, AnswerReport("", "", ()), problem=problem)
    checks = lambda one: tuple(map(CheckResult.from_json, one["checks"]))
    stub, *wrong = (AnswerReport(one["because"], one["where"], checks(one)) for one in reply)
    return ExerciseReport(exercise, stub, tuple(wrong))
