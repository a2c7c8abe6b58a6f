"""The state of `grader watch`: takes saves, replies and keys, and decides what to judge and what to show."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from grader.core.layout import COURSE_FILE
from grader.core.notebook import Hint, Unreadable, hints, read_bytes
from grader.core.points import is_full
from grader.core.result import Result, grader_fault
from grader.course import Course, CourseError, Exercise, Lesson, workspace
from grader.learning import progress
from grader.learning.progress import ExerciseProgress, LessonProgress, NotebookState

# An editor may write a file in parts, or delete it and write it again: an unreadable file is reported after so long.
DOUBT_S = 3.0
TRIES = 2  # of a request at which the grader failed
LESSON, SURE, ANSWER = "lesson", "sure", "answer"  # pages: `SURE` asks whether to show an answer


@dataclass(frozen=True)
class GradeRequest:
    """One request about an exercise, by its id and the lesson's."""

    do: str  # "grade", "name" (grade it and name its misconception), or "prepare" (for grading it)
    lesson: str
    exercise: str
    key: str = ""  # `NotebookState.key` of the text to judge


class Watch:
    """State alone: it starts no process and no thread, and prints nothing."""

    def __init__(self, course: Course) -> None:
        self.message = ""  # a sentence for the learner
        self.warning = ""  # the same about a course that can no longer be read
        self.page = LESSON
        self.saved_at: float | None = None  # when the current notebook was saved, in seconds since the epoch
        self.took: float | None = None  # seconds until the first verdict on it
        self._shown_hints: dict[str, int] = {}
        self._open(course)

    def _open(self, course: Course) -> None:
        """Raises CourseError for a text that breaks a rule."""
        changed, lessons = stamp(course), progress.lesson_progress(course)
        self.course, self._stamp, self.lessons = course, changed, lessons
        self._notebooks = {name: NotebookState(course.lesson(name)) for name in course.lesson_ids}
        self._chosen: str | None = None
        self._edited: list[str] = []
        self._doubt: tuple[float, str] | None = None
        self._to_name: dict[str, str] = {}
        self._prepared: set[str] = set()
        self._failures: dict[str, int] = {}
        self.current = self._first()

    def _first(self) -> str:
        """The lesson that was worked on last; before any was, the first that lacks points."""
        saved = {name: self.path(name).stat().st_mtime for name in self._notebooks if self.path(name).is_file()}
        worked_on = []
        for name in sorted(saved, key=saved.__getitem__):
            with contextlib.suppress(Unreadable):
                self._notebooks[name].take(read_bytes(self.path(name)))
            worked_on += [name] if self._notebooks[name].worked_on else []
        return worked_on[-1] if worked_on else next((one for one in self.lessons if one.next), self.lessons[0]).lesson

    def path(self, lesson: str) -> Path:
        return workspace.exercises_copy(self.course, lesson)

    @property
    def notebook(self) -> NotebookState:
        return self._notebooks[self.current]

    @property
    def lesson(self) -> Lesson:
        return self.notebook.lesson

    @property
    def at_hand(self) -> Exercise:
        """The exercise that is worked on: chosen by a key, else changed by the last save, else any; of those the first
        that lacks points."""
        if self._chosen is not None:
            return self.lesson.exercise(self._chosen)
        edited = [one for one in self.lesson.exercises if one.id in self._edited] or self.lesson.exercises
        return next((one for one in edited if not self.done(one)), edited[0])

    def earned(self, exercise: Exercise) -> float:
        """Returns the points of an exercise as the notebook is now; without a verdict on it, the best ever earned."""
        unjudged = exercise.id in self.notebook.todo and not self.notebook.checks(exercise.id)
        if not self.notebook.read or unjudged or self.grader_failed(exercise):
            return self.best(exercise)
        return self.notebook.earned(exercise.id)

    def grader_failed(self, exercise: Exercise) -> bool:
        """Returns whether the grader failed at an exercise and does not try again before the next save."""
        return self._failures.get(exercise.id, 0) >= TRIES

    def done(self, exercise: Exercise) -> bool:
        return is_full(self.earned(exercise), exercise.points)

    def best(self, exercise: Exercise) -> float:
        steps = (step for lesson in self.lessons for step in lesson.steps)
        return next((step.earned for step in steps if step.exercise.id == exercise.id), 0.0)

    @property
    def following(self) -> tuple[LessonProgress, ExerciseProgress] | None:
        """The next exercise after the one at hand that lacks points, from the end on the first one."""
        places = [(lesson, step) for lesson in self.lessons for step in lesson.steps]
        here = next(i for i, (_, step) in enumerate(places) if step.exercise.id == self.at_hand.id)
        return next(((lesson, step) for lesson, step in (*places[here + 1 :], *places[:here]) if not step.done), None)

    @property
    def hints(self) -> tuple[Hint, ...]:
        """The hints of the exercise at hand that were asked for."""
        return self._task_hints()[: self._shown_hints.get(self.at_hand.id, 0)]

    def _task_hints(self) -> tuple[Hint, ...]:
        tasks = [cell.source for cell in self.lesson.cells if cell.id == self.at_hand.id and cell.kind == "task"]
        return tuple(hint for task in tasks for hint in hints(task))

    def saved(self, lesson: str) -> None:
        """Takes a notebook that was saved, or is gone."""
        notebook, path = self._notebooks.get(lesson), self.path(lesson)
        if notebook is None:
            return
        began, shown = time.monotonic(), self.course.shown(path)
        try:
            notebook.take(read_bytes(path))
            moment = path.stat().st_mtime
        except (Unreadable, OSError):
            gone = f"{shown} no longer exists. `grader lab` creates a new copy. An older one may be in work/earlier/."
            half = f"{shown} cannot be read as a notebook. Save it again to grade it."
            self._doubt = began + DOUBT_S, half if path.is_file() else gone
            return
        self._doubt, self.message, self.page = None, self.warning, LESSON
        if lesson != self.current:
            self.current, self._chosen, self._edited, self._to_name = lesson, None, [], {}
        if notebook.edited:
            self._chosen, self._edited = None, notebook.edited
        self._failures.clear()
        self.saved_at, self._seen, self.took = moment, began, None

    def doubted(self) -> float | None:
        """Reports a file that has been unreadable for a while; returns the seconds until then, None without doubt."""
        if self._doubt is None:
            return None
        moment, text = self._doubt
        left = moment - time.monotonic()
        if left > 0:
            return left
        self.message, self._doubt = text, None
        return None

    def next_grading(self) -> GradeRequest | None:
        todo = self.notebook.todo
        return GradeRequest("grade", self.current, todo[0], self.notebook.key(todo[0])) if todo else None

    def next_background(self) -> GradeRequest | None:
        """Returns what to do once everything is judged: name a failure's misconception, else prepare what is next."""
        if self.notebook.todo:
            return None
        exercise = self.at_hand.id
        for name in sorted(self._to_name, key=lambda name: name != exercise):
            key = self._to_name.pop(name)
            if self.notebook.key(name) == key:
                return GradeRequest("name", self.current, name, key)
        if exercise not in self._prepared and not self.done(self.at_hand):
            self._prepared.add(exercise)
            return GradeRequest("prepare", self.current, exercise)
        return None

    def replied(self, request: GradeRequest, result: Result) -> bool:
        """Takes the grader's reply; returns whether it is a verdict on the notebook as it is now."""
        notebook = self._notebooks.get(request.lesson)
        if notebook is None or request.do == "prepare":
            return False
        if result.grader_failed and result.problem is None:
            result = grader_fault(result.learner, result.lesson, result.fault_text)
        if result.problem is not None:
            self._failures[request.exercise] = self._failures.get(request.exercise, 0) + 1
            if request.do == "grade" and self._failures[request.exercise] >= TRIES:
                notebook.give_up(request.exercise)
                self.message = f"{result.problem} Save the notebook to try again."
            return False
        if not result.checks or not notebook.file(request.exercise, request.key, result.checks):
            return False
        if request.do == "grade":
            self.lessons = progress.lesson_progress(self.course, progress.note(self.course, result))
            if self.saved_at is not None and self.took is None:
                self.took = time.monotonic() - self._seen
            if any(check.status == "failed" for check in result.checks):
                self._to_name[request.exercise] = request.key
        return True

    def reopened(self) -> Course | None:
        """Reads the course again if its text has changed; None if not, or, with a `warning`, if it breaks a rule."""
        if stamp(self.course) == self._stamp:
            return None
        current = self.current
        try:
            self._open(Course(self.course.home))
        except (CourseError, OSError) as problem:
            first = str(problem).splitlines()[0]
            self.warning = f"The course's text has changed and breaks a rule. The previous version is used. {first}"
            return None
        self.warning = ""
        if current in self._notebooks:
            self.current = current
        return self.course

    def key(self, key: str) -> bool:
        """Acts on a key; returns False where it ends the watch."""
        if self.page == SURE:
            self.page = ANSWER if key in ("y", "Y") else LESSON
            return True
        if self.page == ANSWER:
            self.page = LESSON
        elif key == "h":
            there, shown = len(self._task_hints()), self._shown_hints.get(self.at_hand.id, 0)
            self.message = "" if shown < there else f'"{self.at_hand.title}" has no {"more " if there else ""}hints.'
            self._shown_hints[self.at_hand.id] = min(there, shown + 1)
        elif key == "n" and (following := self.following):
            self.message, (lesson, step) = "", following
            if lesson.lesson != self.current:
                self.current, self._to_name, self.saved_at = lesson.lesson, {}, None
            self._chosen = step.exercise.id
        elif key == "n":
            self.message = "All exercises are done."
        elif key == "s" and (self.notebook.tried(self.at_hand) or self.best(self.at_hand)):
            self.message, self.page = "", SURE
        elif key == "s":
            self.message = f'Try it first: answer "{self.at_hand.title}" and save. Then s shows a solution.'
        return key != "q"


def stamp(course: Course) -> tuple[object, ...]:
    """Returns a value that changes with every text of the course."""
    paths = [one.root / COURSE_FILE for one in (course, course.base) if one is not None]
    for lesson in course.ids:
        paths += [*course.sources(lesson), course.solutions(lesson), course.script(lesson)]
    return tuple((str(path), file_stamp(path)) for path in paths)


NO_FILE = 0, 0, 0


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Returns modification time, size and inode, of which every kind of save changes one; `NO_FILE` without a file."""
    try:
        found = path.stat()
    except OSError:
        return NO_FILE
    return found.st_mtime_ns, found.st_size, found.st_ino
