"""Progress in the course as the learner's file has it (`course_map`), and in a notebook that is being watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from grader.core.notebook import Submission, read_submission
from grader.core.points import is_full, total
from grader.core.result import CheckResult, Result
from grader.core.symbols import notebook_cell_names
from grader.course import Course, Exercise, Lesson
from grader.grading.cache import digest, lesson_fingerprint
from grader.grading.plan import JudgeExercise, plan
from grader.learning.course_map import GRADED, change_state, read_state


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
    """Stores what a notebook earned for each exercise, unless an earlier attempt earned more. Returns what
    `lesson_progress` reads: all lessons' progress; None where nothing was graded."""
    if result.problem is not None:
        return None
    with change_state(GRADED, course.home) as graded:
        before, best = _best(graded.get(result.lesson)), {}
        for exercise in course.lesson(result.lesson).exercises:
            earned = total(check.points for check in result.checks if check.exercise == exercise.id)
            best[exercise.id] = [max(earned, min(before.get(exercise.id, 0.0), exercise.points)), exercise.points]
        graded[result.lesson] = best
    return graded


def lesson_progress(course: Course, graded: Mapping[str, Any] | None = None) -> list[LessonProgress]:
    """Returns the progress of all lessons with exercises, from `graded` (of `note`) or the file. Raises CourseError."""
    graded = read_state(GRADED, course.home) if graded is None else graded
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
        return {name: max(0.0, float(earned)) for name, (earned, _) in graded.items()}  # 0 for what is no number (NaN)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return {}


class ExerciseText(NamedTuple):
    """Digests of what decides one exercise: all cells that run before its checks (`key`), and its answer alone."""

    key: str
    answer: str
    untouched: bool


def _texts(submission: Submission, lesson: Lesson) -> dict[str, ExerciseText]:
    """By exercise, in the order of the notebook."""
    found: dict[str, ExerciseText] = {}
    # Without the seed of hidden inputs: other inputs are no reason to judge an unchanged answer again.
    ran: list[object] = [lesson_fingerprint(lesson)]
    answers: dict[str, list[str]] = {}
    for step in plan(submission, lesson, lambda source: notebook_cell_names(source).binds)[0]:
        if isinstance(step, JudgeExercise):
            own = digest(answers.get(step.exercise.id, []))
            found[step.exercise.id] = ExerciseText(digest(ran), own, step.untouched)
            continue
        ran.append([step.label, step.source])
        for name in step.answers:
            answers.setdefault(name, []).append(step.source)
    return found


class NotebookState:
    """One lesson's notebook in `grader watch`: `take` reads a saved one, `file` stores the results of its checks."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.content = b""
        self.todo: list[str] = []  # exercises to judge, those that the last save changed first
        self.edited: list[str] = []  # exercises that the last save changed
        self._texts: dict[str, ExerciseText] = {}
        self._judged: dict[str, tuple[str, tuple[CheckResult, ...]]] = {}  # the key of the judged text, its results

    def take(self, content: bytes) -> None:
        """Reads what was saved. Raises `Unreadable` and keeps what was read before."""
        before, new = self._texts, _texts(read_submission(content, "", self.lesson.id), self.lesson)
        changed = [name for name, text in new.items() if name not in before or before[name].answer != text.answer]
        self.content, self._texts = content, new
        judged = {name: key for name, (key, _) in self._judged.items()}
        stale = [name for name, text in new.items() if not text.untouched and judged.get(name) != text.key]
        self.todo = sorted(stale, key=lambda name: name not in changed)
        self.edited = changed if before else []

    def key(self, exercise: str) -> str:
        return self._texts[exercise].key

    def file(self, exercise: str, key: str, checks: Iterable[CheckResult]) -> bool:
        """Stores the results of an exercise with the text of that key; returns whether that is still its text."""
        if exercise not in self._texts or self._texts[exercise].key != key:
            return False
        self._judged[exercise] = key, tuple(checks)
        self.give_up(exercise)
        return True

    def give_up(self, exercise: str) -> None:
        """Leaves an exercise unjudged until the next save."""
        self.todo = [name for name in self.todo if name != exercise]

    def checks(self, exercise: str) -> tuple[CheckResult, ...]:
        """Returns the last results of an exercise, with this text or an earlier one; none for an untouched stub."""
        text = self._texts.get(exercise)
        return () if text is not None and text.untouched else self._judged.get(exercise, ("", ()))[1]

    def earned(self, exercise: str) -> float:
        return total(check.points for check in self.checks(exercise))

    def tried(self, exercise: Exercise) -> bool:
        """Returns whether an answer of the learner's own was judged."""
        return any(check.status != "not attempted" for check in self.checks(exercise.id))

    @property
    def worked_on(self) -> bool:
        """Whether the notebook differs from the released one."""
        return any(not text.untouched for text in self._texts.values())

    @property
    def read(self) -> bool:
        return bool(self._texts)
