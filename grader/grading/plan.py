"""Plan of a submission: the order in which its cells run, and the exercise that each belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from grader.core.notebook import Submission, SubmittedCell
from grader.course import Exercise, Lesson
from grader.course.exercises import GRADING


@dataclass(frozen=True)
class RunCell:
    """Run this text; `exercise` is the id of the exercise it answers, None for a cell of the learner's own."""

    source: str
    label: str
    exercise: str | None = None


@dataclass(frozen=True)
class JudgeExercise:
    """Now run the checks of this exercise; `untouched` when its answer is as it was given out, or missing."""

    exercise: Exercise
    untouched: bool = False
    missing: bool = False


def plan(submission: Submission, lesson: Lesson) -> tuple[list[RunCell | JudgeExercise], list[str]]:
    """Returns steps in order, and sentences about the notebook that its author should read.

    Every cell that is not the course's runs, in notebook order; an exercise is judged when its answer has run. Cells of
    the learner's own right after an answer run before its checks, as in the notebook. Cells that carry one exercise's
    id are pieces of one answer: a piece that is still the untouched stub is dropped when another is not, and
    neighbouring pieces are joined.
    """
    exercises = {exercise.id: exercise for exercise in lesson.exercises}
    checks = {check.id for exercise in lesson.exercises for check in exercise.checks}
    pieces, notes = _pieces(submission, exercises)
    steps: list[RunCell | JudgeExercise] = []
    waiting: list[str] = []  # one exercise at most: its answer has run
    previous: str | None = None

    def judge_waiting() -> None:
        for name in waiting:
            untouched = all(_is_stub(cell, exercises[name]) for cell in pieces[name])
            steps.append(JudgeExercise(exercises[name], untouched))
        waiting.clear()

    for cell in submission.cells:
        name = cell.grade_id or ""
        if name not in exercises:
            previous = None
            if name in checks or name == GRADING or name.split("-")[0] == "setup":
                judge_waiting()
            else:
                steps.append(RunCell(cell.source, f"code cell {cell.number}"))
        elif cell in pieces[name]:
            if waiting != [name]:
                judge_waiting()
            if previous == name and isinstance(last := steps[-1], RunCell):
                steps[-1] = RunCell(f"{last.source}\n{cell.source}", name, name)
            else:
                steps.append(RunCell(cell.source, name, name))
            previous = name
            if cell is pieces[name][-1]:
                waiting.append(name)
    judge_waiting()
    for exercise in lesson.exercises:
        if not pieces[exercise.id]:
            notes.append(f"The answer cell of {exercise.id} is missing from the notebook.")
            steps.append(JudgeExercise(exercise, untouched=True, missing=True))
    there = {cell.grade_id for cell in submission.cells}
    gone = sorted(checks - there)
    if gone and there & (checks | set(exercises)):
        notes.append(f"Check cells are missing from the notebook ({', '.join(gone)}); the course's own were used.")
    return steps, notes


def _pieces(submission: Submission, exercises: dict[str, Exercise]) -> tuple[dict[str, list[SubmittedCell]], list[str]]:
    pieces = {name: [cell for cell in submission.cells if cell.grade_id == name] for name in exercises}
    notes = []
    for name, cells in pieces.items():
        worked = [cell for cell in cells if not _is_stub(cell, exercises[name])]
        if len(cells) > 1:
            pieces[name] = worked or cells[:1]
            if len(worked) > 1:
                notes.append(f"The answer of {name} stands in {len(worked)} cells; all of them were run, in order.")
    return pieces, notes


def _is_stub(cell: SubmittedCell, exercise: Exercise) -> bool:
    return cell.source.strip() == exercise.stub.strip()
