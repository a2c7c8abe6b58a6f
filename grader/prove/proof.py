"""The proof of a course: every exercise put to the test, every built notebook compared with its text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.core.faults import Fault
from grader.core.layout import PROOF
from grader.core.points import number
from grader.course import Course
from grader.grading.batch import imports
from grader.grading.device_plan import cores
from grader.grading.pool import Pool

if TYPE_CHECKING:
    from rich.console import Console

KILLED = 0.95  # share of a lesson's mutants that its checks have to catch


@dataclass(frozen=True)
class ExerciseProof:
    """How one exercise stood its test: a row of the table.

    Attributes:
        lesson, exercise: their ids.
        points: points that the exercise gives.
        right, wrong: number of right answers beside the reference, and of wrong answers, that were run.
        caught: wrong answers that fail a hidden check.
        named: wrong answers whose failure equals no other's, so that their misconception can be named.
        mutants: number of mutants.
        survivors: mutants that pass every check, a phrase each.
        problems: what does not hold, a sentence each.
        verdicts: status by check id of the stub (not in a brief proof), the reference, each right and each wrong
            answer, in this order, with the inputs of seed 0.
        seconds: seconds on the clock.
    """

    lesson: str
    exercise: str
    points: float
    right: int
    wrong: int
    caught: int
    named: int
    mutants: int
    survivors: tuple[str, ...]
    problems: tuple[str, ...]
    verdicts: tuple[dict[str, str], ...]
    seconds: float

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ExerciseProof:
        """Reads what `dataclasses.asdict` made and JSON carried."""
        fields: dict[str, Any] = {name: tuple(it) if isinstance(it, list) else it for name, it in data.items()}
        return cls(**fields)


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
    course: Course, lessons: Iterable[str], mutants: bool = True, jobs: int | None = None, brief: bool = False
) -> Proof:
    """Puts `lessons` to the test, exercises side by side.

    Args:
        course: the course.
        lessons: ids of lessons with exercises.
        mutants: whether machine-made wrong answers are tried too.
        jobs: processes side by side; one for each core by default.
        brief: run only the reference, on one seed, and two wrong answers of each exercise, and no mutants.

    Raises:
        CourseError: the text breaks a rule.
    """
    from grader.course import build

    lessons = tuple(lessons)
    stale = [path for path in build.stale(course) if path.stem in lessons]
    mend = "run `make build` and commit it" if course.base is None else "run `grader build`"
    problems = [f"{course.shown(path)} is stale: {mend}." for path in stale]
    requests = [
        {"do": "prove", "lesson": lesson, "exercise": exercise.id, "mutate": mutants, "brief": brief}
        for lesson in lessons
        for exercise in course.lesson(lesson).exercises
    ]
    opening, modules = {"root": str(course.root)}, imports(course, lessons)
    with Pool(PROOF, opening, cores(jobs, len(requests)), modules) as pool:
        replies = pool.map(requests)
    rows = []
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, Fault):
            problems.append(f"{request['exercise']}: the test itself ended: {reply.message}.")
            continue
        row = ExerciseProof.from_json(reply)
        rows.append(row)
        problems += [f"{row.exercise}: {problem}" for problem in row.problems]
    return Proof(tuple(rows), (*problems, *_surviving(rows)))


def _surviving(rows: list[ExerciseProof]) -> list[str]:
    """A sentence for each lesson whose checks let too many mutants through."""
    problems = []
    for lesson in dict.fromkeys(row.lesson for row in rows):
        made = sum(row.mutants for row in rows if row.lesson == lesson)
        killed = made - sum(len(row.survivors) for row in rows if row.lesson == lesson)
        if made and killed / made < KILLED:
            problems.append(f"{lesson}: {killed} of {made} mutants killed; at least {KILLED:.0%} are wanted.")
    return problems


def show(proof: Proof, console: Console) -> None:
    """Prints the table, the mutants that survived, and what does not hold."""
    from rich.table import Table

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
