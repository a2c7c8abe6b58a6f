"""What of the course is done, as `grader check` saw it: kept in the learner's small file, which may be deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grader.core.result import Result
from grader.course import Course, Exercise
from grader.learning import state
from grader.learning.course_map import GRADED


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise: the points that it gives, and the most that were ever earned."""

    exercise: Exercise
    earned: float

    @property
    def done(self) -> bool:
        return self.earned >= self.exercise.points


@dataclass(frozen=True)
class LessonProgress:
    """One lesson's exercises, in their order."""

    lesson: str
    title: str
    steps: tuple[ExerciseProgress, ...]

    @property
    def earned(self) -> float:
        return sum(step.earned for step in self.steps)

    @property
    def points(self) -> float:
        return sum(step.exercise.points for step in self.steps)

    @property
    def next(self) -> ExerciseProgress | None:
        """The first exercise that lacks points."""
        return next((step for step in self.steps if not step.done), None)


def note(course: Course, result: Result) -> None:
    """Keep what a notebook earned by exercise, unless an earlier try earned more."""
    if result.problem is not None:
        return
    before, best = _kept(course, result.lesson), {}
    for exercise in course.lesson(result.lesson).exercises:
        earned = sum(check.points for check in result.checks if check.exercise == exercise.id)
        best[exercise.id] = [max(earned, min(before.get(exercise.id, 0.0), exercise.points)), exercise.points]
    state.add(GRADED, result.lesson, best, course.root)


def lesson_progress(course: Course) -> list[LessonProgress]:
    """Every lesson that has exercises. Raises CourseError for text that breaks a rule."""
    found = []
    for name in course.lesson_ids:
        lesson, best = course.lesson(name), _kept(course, name)
        # What an exercise is worth may have changed since.
        steps = tuple(ExerciseProgress(one, min(one.points, best.get(one.id, 0.0))) for one in lesson.exercises)
        found.append(LessonProgress(name, lesson.title, steps))
    return found


def _kept(course: Course, lesson: str) -> Mapping[str, float]:
    """What was earned by exercise; whoever edits the file by hand deceives nobody else."""
    found: Any = state.read(GRADED, course.root).get(lesson)
    try:
        return {name: float(earned) for name, (earned, _) in found.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
