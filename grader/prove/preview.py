"""What a learner reads of each check, beside the wrong answer that makes it fail, before anything is released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.course import Course
from grader.exam.batch import imports
from grader.exam.places import cores
from grader.exam.pool import Fault, Pool
from grader.exam.rehearsed import Answer, Rehearsed


def preview(
    course: Course, lesson: str, jobs: int | None = None, on_exercise: Callable[[Rehearsed], None] = lambda one: None
) -> list[Rehearsed]:
    """Rehearse each exercise of a lesson, side by side. Raises CourseError for text that breaks a rule.

    `on_exercise` is called with each in the lesson's order, as soon as it and those before it are done.
    """
    names = [exercise.id for exercise in course.lesson(lesson).exercises]
    requests = [{"lesson": lesson, "exercise": name, "rehearse": True} for name in names]
    waiting: dict[int, Rehearsed] = {}
    done: list[Rehearsed] = []

    def take(i: int, reply: Any) -> None:
        waiting[i] = _rehearsed(names[i], reply)
        while len(done) in waiting:
            done.append(waiting.pop(len(done)))
            on_exercise(done[-1])

    opening, modules = {"root": str(course.root)}, imports(course, [lesson])
    with Pool("grader.prove.bench:serve", opening, cores(jobs, len(requests)), modules) as pool:
        pool.map(requests, take)
    return done


def _rehearsed(exercise: str, reply: Any) -> Rehearsed:
    if isinstance(reply, Fault):
        return Rehearsed(exercise, Answer("", "", ()), problem=f"The rehearsal itself ended: {reply.message}.")
    stub, *wrong = (Answer.from_json(one) for one in reply["answers"])
    return Rehearsed(exercise, stub, tuple(wrong))
