"""What a learner reads of each check, beside the wrong answer that makes it fail, before anything is released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.core.faults import Fault
from grader.core.layout import PROOF
from grader.course import Course
from grader.grading.batch import cores, imports
from grader.grading.pool import Pool
from grader.prove.answer_report import AnswerReport, ExerciseReport


def preview(
    course: Course,
    lesson: str,
    jobs: int | None = None,
    on_exercise: Callable[[ExerciseReport], None] = lambda one: None,
) -> list[ExerciseReport]:
    """Rehearse each exercise of a lesson, side by side. Raises CourseError for text that breaks a rule.

    `on_exercise` is called with each in the lesson's order, as soon as it and those before it are done.
    """
    names = [exercise.id for exercise in course.lesson(lesson).exercises]
    requests = [{"lesson": lesson, "exercise": name, "rehearse": True} for name in names]
    waiting: dict[int, ExerciseReport] = {}
    done: list[ExerciseReport] = []

    def take(i: int, reply: Any) -> None:
        waiting[i] = _rehearsed(names[i], reply)
        while len(done) in waiting:
            done.append(waiting.pop(len(done)))
            on_exercise(done[-1])

    opening, modules = {"root": str(course.root)}, imports(course, [lesson])
    with Pool(PROOF, opening, cores(jobs, len(requests)), modules) as pool:
        pool.map(requests, take)
    return done


def _rehearsed(exercise: str, reply: Any) -> ExerciseReport:
    if isinstance(reply, Fault):
        return ExerciseReport(
            exercise, AnswerReport("", "", ()), problem=f"The rehearsal itself ended: {reply.message}."
        )
    stub, *wrong = (AnswerReport.from_json(one) for one in reply["answers"])
    return ExerciseReport(exercise, stub, tuple(wrong))
