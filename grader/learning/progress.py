"""Progress in the course, as `grader check` and `grader watch` saw it, from the learner's file of `learning.state`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grader.core.points import is_full, total
from grader.core.result import Result
from grader.course import Course, Exercise
from grader.learning import state
from grader.learning.course_map import GRADED


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise, and the most points that were ever earned for it."""

    exercise: Exercise
    earned: float

    @property
    def done(self) -> bool:
        return is_full(self.earned, self.exercise.points)


@dataclass(frozen=True)
class LessonProgress:
    """The exercises of one lesson, in their order."""

    lesson: str
    title: str
    steps: tuple[ExerciseProgress, ...]

    @property
    def earned(self) -> float:
        return total(step.earned for step in self.steps)

    @property
    def points(self) -> float:
        return total(step.exercise.points for step in self.steps)

    @property
    def next(self) -> ExerciseProgress | None:
        """The first exercise that lacks points."""
        return next((step for step in self.steps if not step.done), None)


def note(course: Course, result: Result) -> dict[str, Any] | None:
    """Stores what a notebook earned for each exercise, unless an earlier attempt earned more.

    Returns what `lesson_progress` reads: all lessons' progress; None where nothing was graded.
    """
    if result.problem is not None:
        return None
    with state.change(GRADED, course.root) as graded:
        before, best = _best(graded.get(result.lesson)), {}
        for exercise in course.lesson(result.lesson).exercises:
            earned = total(check.points for check in result.checks if check.exercise == exercise.id)
            best[exercise.id] = [max(earned, min(before.get(exercise.id, 0.0), exercise.points)), exercise.points]
        graded[result.lesson] = best
    return graded


def lesson_progress(course: Course, graded: Mapping[str, Any] | None = None) -> list[LessonProgress]:
    """Returns the progress of every lesson with exercises, from `graded` (of `note`) or else the file.

    Raises CourseError where a text of the course breaks a rule.
    """
    graded = state.read(GRADED, course.root) if graded is None else graded
    found = []
    for name in course.lesson_ids:
        lesson, best = course.lesson(name), _best(graded.get(name))
        # An exercise may give other points than when they were earned.
        steps = tuple(ExerciseProgress(one, min(one.points, best.get(one.id, 0.0))) for one in lesson.exercises)
        found.append(LessonProgress(name, lesson.title, steps))
    return found


def _best(graded: Any) -> dict[str, float]:
    """Points earned by exercise; none where the file was edited into something else."""
    try:
        return {name: float(earned) for name, (earned, _) in graded.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
