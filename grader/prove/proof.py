"""The proof of a course: every exercise put to the test, every built notebook compared with its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from grader.core.faults import Fault
from grader.core.layout import PROOF
from grader.core.points import number
from grader.course import Course
from grader.grading.batch import cores, imports
from grader.grading.pool import Pool

KILLED = 0.95  # share of a lesson's mutants that its checks have to catch


@dataclass(frozen=True)
class ExerciseProof:
    """How one exercise stood its test: a row of the table.

    Attributes:
        right, wrong, mutants: how many of them were run, beside the reference.
        caught: wrong answers that fail a hidden check.
        named: wrong answers whose failure equals no other's, so that their misconception can be named.
        survivors: mutants that pass every check, a phrase each.
        problems: what does not hold, a sentence each.
        verdicts: status by check id of the stub (not in a brief proof), the reference, each right and each wrong
            answer, in this order, with the inputs of seed 0.
        seconds: time on the clock.
    """

    lesson: str
    exercise: str
    points: float
    right: int
    wrong: int
    caught: int
    named: int
    mutants: int
    survivors: list[str]
    problems: list[str]
    verdicts: list[dict[str, str]]
    seconds: float


@dataclass(frozen=True)
class Proof:
    """A row for each exercise, and what does not hold, a sentence each."""

    rows: tuple[ExerciseProof, ...]
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def prove(
    course: Course, lessons: Sequence[str], mutants: bool = True, jobs: int | None = None, brief: bool = False
) -> Proof:
    """Puts `lessons` to the test, exercises side by side in `jobs` processes, or one a core.

    A `brief` proof runs only the reference, on one seed, and two wrong answers of each exercise. Raises CourseError for
    text that breaks a rule.
    """
    from grader.course import build

    stale = [path for path in build.stale(course, lessons) if path.stem in lessons]
    mend = "run `make build` and commit it" if course.base is None else "run `grader build`"
    problems = [f"{course.shown(path)} is stale: {mend}." for path in stale]
    requests = [
        {"do": "prove", "lesson": lesson, "exercise": exercise.id, "mutate": mutants, "brief": brief}
        for lesson in lessons
        for exercise in course.lesson(lesson).exercises
    ]
    opening, modules = {"root": str(course.root), "secret": "proof"}, imports(course, lessons)
    with Pool(PROOF, opening, cores(jobs, len(requests)), modules) as pool:
        replies = pool.map(requests)
    rows = []
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, Fault):
            problems.append(f"{request['exercise']}: the test itself ended: {reply.message}.")
            continue
        rows.append(ExerciseProof(**reply))
        problems += [f"{request['exercise']}: {problem}" for problem in reply["problems"]]
    for lesson in lessons:
        made = sum(row.mutants for row in rows if row.lesson == lesson)
        killed = made - sum(len(row.survivors) for row in rows if row.lesson == lesson)
        if made and killed / made < KILLED:
            problems.append(f"{lesson}: {killed} of {made} mutants killed; at least {KILLED:.0%} are wanted.")
    return Proof(tuple(rows), tuple(problems))


def show(proof: Proof, console: Console) -> None:
    """Prints the table, the mutants that survived, and what does not hold."""
    table = Table(pad_edge=False)
    table.add_column("exercise", no_wrap=True)
    for name in ("points", "right", "wrong caught", "told apart", "mutants killed", "time"):
        table.add_column(name, justify="right")
    for row in proof.rows:
        killed = f"{row.mutants - len(row.survivors)}/{row.mutants}"
        caught, named = f"{row.caught}/{row.wrong}", f"{row.named}/{row.wrong}"
        table.add_row(row.exercise, number(row.points), str(row.right), caught, named, killed, f"{row.seconds:.1f} s")
    console.print(table)
    for row in proof.rows:
        for survivor in row.survivors:
            console.print(f"survived: {row.exercise}, {survivor}", markup=False)
    for problem in proof.problems:
        console.print(f"✗ {problem}", markup=False, style="red")
    console.print("The course holds." if proof.holds else f"{len(proof.problems)} things do not hold.")
