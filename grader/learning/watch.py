"""What `grader watch` knows and does next: it is told of saves, replies and keys, and holds what is to be shown."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.core.notebook import Hint, Unreadable, hints, read_bytes
from grader.core.result import Result
from grader.course import Course, CourseError, Exercise, Lesson, workspace
from grader.learning import progress
from grader.learning.client import GradeRequest
from grader.learning.notebook_state import NotebookState
from grader.learning.progress import ExerciseProgress, LessonProgress

# An editor may write a file in pieces, or delete it and write it anew. What cannot be read is spoken of after so long.
DOUBT_S = 3.0
TRIES = 2  # of a request that the grader failed at
LESSON, SURE, ANSWER = "lesson", "sure", "answer"  # what is shown


@dataclass(frozen=True)
class Timing:
    """When the notebook was saved (by the clock), and how long its first verdict took, in seconds, once it is there."""

    saved: float
    seen: float
    took: float | None = None


class Watch:
    """State alone: it starts no process and no thread, and prints nothing."""

    def __init__(self, course: Course) -> None:
        self.says = ""
        self.warning = ""  # of a course whose text cannot be read any more
        self.page = LESSON
        self.timing: Timing | None = None
        self._shown_hints: dict[str, int] = {}
        self._open(course)

    def _open(self, course: Course) -> None:
        """Raises CourseError for a text that breaks a rule."""
        changed, ways = stamp(course), progress.lesson_progress(course)
        self.course, self._stamp, self.ways = course, changed, ways
        self._standings = {name: NotebookState(course.lesson(name)) for name in course.lesson_ids}
        self._chosen: str | None = None
        self._edited: list[str] = []
        self._doubt: tuple[float, str] | None = None
        self._to_name: dict[str, str] = {}
        self._prepared: set[str] = set()
        self._failures: dict[str, int] = {}
        self.current = self._first()

    def _first(self) -> str:
        """The lesson that was worked on last; before anything was, the first that lacks points."""
        saved = {name: self.path(name).stat().st_mtime for name in self._standings if self.path(name).is_file()}
        for name in sorted(saved, key=saved.__getitem__):
            self._read(self._standings[name])
        worked_on = [name for name in sorted(saved, key=saved.__getitem__) if self._standings[name].worked_on]
        return worked_on[-1] if worked_on else next((way.lesson for way in self.ways if way.next), self.ways[0].lesson)

    def _read(self, standing: NotebookState) -> None:
        with contextlib.suppress(Unreadable):
            standing.take(read_bytes(self.path(standing.lesson.id)))

    def path(self, lesson: str) -> Path:
        """The learner's own notebook of a lesson."""
        return workspace.exercises_copy(self.course, lesson)

    @property
    def standing(self) -> NotebookState:
        """The notebook that is shown."""
        return self._standings[self.current]

    @property
    def lesson(self) -> Lesson:
        return self.standing.lesson

    @property
    def at_hand(self) -> Exercise:
        """The exercise that is worked on: chosen by a key, else one that the last save changed, else any; of those one
        that lacks points."""
        if self._chosen is not None:
            return self.lesson.exercise(self._chosen)
        worked_on = [one for one in self.lesson.exercises if one.id in self._edited] or self.lesson.exercises
        return next((one for one in worked_on if self.earned(one) < one.points), worked_on[0])

    def earned(self, exercise: Exercise) -> float:
        """As the notebook stands; before it was judged, the best that is remembered."""
        standing = self.standing
        if not standing.read or (exercise.id in standing.todo and not standing.checks(exercise.id)):
            return self.best(exercise)
        return standing.earned(exercise.id)

    def best(self, exercise: Exercise) -> float:
        """The most that was ever earned."""
        steps = (step for way in self.ways for step in way.steps)
        return next((step.earned for step in steps if step.exercise.id == exercise.id), 0.0)

    @property
    def following(self) -> tuple[LessonProgress, ExerciseProgress] | None:
        """What comes after the exercise at hand: the next that lacks points, and at the end the first one."""
        places = [(way, step) for way in self.ways for step in way.steps]
        here = next(i for i, (_, step) in enumerate(places) if step.exercise.id == self.at_hand.id)
        return next(((way, step) for way, step in (*places[here + 1 :], *places[:here]) if not step.done), None)

    @property
    def hints(self) -> tuple[Hint, ...]:
        """Those of the exercise at hand that were asked for."""
        return _task_hints(self.lesson, self.at_hand.id)[: self._shown_hints.get(self.at_hand.id, 0)]

    # What is told.

    def saved(self, lesson: str) -> None:
        """A notebook is another than before, or is gone."""
        standing, path = self._standings.get(lesson), self.path(lesson)
        if standing is None:
            return
        began, shown = time.monotonic(), self.course.shown(path)
        try:
            standing.take(read_bytes(path))
            moment = path.stat().st_mtime
        except (Unreadable, OSError):
            gone = f"There is no {shown} now. `make lab` lays out a fresh copy; an older one may be in work/earlier/."
            half = f"{shown} cannot be read as a notebook just now. Save it again, and it is judged."
            self._doubt = began + DOUBT_S, half if path.is_file() else gone
            return
        self._doubt, self.says, self.page = None, self.warning, LESSON
        if lesson != self.current:
            self.current, self._chosen, self._edited, self._to_name = lesson, None, [], {}
        if standing.edited:
            self._chosen, self._edited = None, standing.edited
        self._failures.clear()
        self.timing = Timing(moment, began)

    def doubted(self) -> float | None:
        """Says what cannot be read once it has been so for a while; seconds until then, None when there is no doubt."""
        if self._doubt is None:
            return None
        moment, text = self._doubt
        left = moment - time.monotonic()
        if left > 0:
            return left
        self.says, self._doubt = text, None
        return None

    def next_ask(self) -> GradeRequest | None:
        """What to have judged now."""
        todo = self.standing.todo
        return GradeRequest("grade", self.current, todo[0], self.standing.key(todo[0])) if todo else None

    def next_look(self) -> GradeRequest | None:
        """What to find out beside it, once everything is judged: the thought behind a failure, else what comes next."""
        if self.standing.todo:
            return None
        exercise = self.at_hand.id
        while self._to_name:
            name = exercise if exercise in self._to_name else next(iter(self._to_name))
            key = self._to_name.pop(name)
            if self.standing.key(name) == key:
                return GradeRequest("name", self.current, name, key)
        if exercise not in self._prepared and self.earned(self.at_hand) < self.at_hand.points:
            self._prepared.add(exercise)
            return GradeRequest("prepare", self.current, exercise)
        return None

    def told(self, ask: GradeRequest, result: Result) -> bool:
        """The grader's reply; whether the exercise's checks are known now, or known better."""
        standing = self._standings.get(ask.lesson)
        if standing is None or ask.do == "prepare":
            return False
        if result.problem is not None:
            self._failures[ask.exercise] = self._failures.get(ask.exercise, 0) + 1
            if ask.do == "grade" and self._failures[ask.exercise] >= TRIES:
                standing.give_up(ask.exercise)
                self.says = f"{result.problem} Save the notebook to try again."
            return False
        if not result.checks or not standing.file(ask.exercise, ask.key, result.checks):
            return False
        if ask.do == "grade":
            self._keep(ask, result)
        return True

    def _keep(self, ask: GradeRequest, result: Result) -> None:
        progress.note(self.course, result)
        self.ways = progress.lesson_progress(self.course)
        if self.timing is not None and self.timing.took is None:
            took = time.monotonic() - self.timing.seen
            self.timing = Timing(self.timing.saved, self.timing.seen, took)
        if any(check.status == "failed" for check in result.checks):
            self._to_name[ask.exercise] = ask.key

    def course_changed(self) -> bool:
        """Whether the course's text is another than the one that was opened."""
        return stamp(self.course) != self._stamp

    def reopened(self) -> Course | None:
        """Reads the course anew; None, and a sentence, while its text breaks a rule."""
        current = self.current
        try:
            self._open(Course(self.course.root))
        except (CourseError, OSError) as problem:
            first = str(problem).splitlines()[0]
            self.warning = f"The course's text was changed and breaks a rule, so it is judged as before. {first}"
            return None
        self.warning = ""
        if current in self._standings:
            self.current = current
        return self.course

    # Keys.

    def key(self, key: str) -> bool:
        """Do what a key asks for; False to end."""
        if self.page == ANSWER:
            self.page = LESSON
            return key != "q"
        if self.page == SURE:
            self.page = ANSWER if key in ("y", "Y") else LESSON
            return True
        if key == "h":
            self._hint()
        elif key == "n":
            self._next()
        elif key == "s":
            self._solution()
        return key != "q"

    def _hint(self) -> None:
        exercise = self.at_hand
        there, shown = len(_task_hints(self.lesson, exercise.id)), self._shown_hints.get(exercise.id, 0)
        self.says = "" if shown < there else f'"{exercise.title}" has no {"more " if there else ""}hints.'
        self._shown_hints[exercise.id] = min(there, shown + 1)

    def _next(self) -> None:
        self.says = ""
        if self.following is None:
            self.says = "Everything is done."
            return
        way, step = self.following
        if way.lesson != self.current:
            self.current, self._to_name, self.timing = way.lesson, {}, None
        self._chosen = step.exercise.id

    def _solution(self) -> None:
        exercise = self.at_hand
        if self.standing.tried(exercise) or self.best(exercise):
            self.says, self.page = "", SURE
        else:
            self.says = f'First a try of your own: answer "{exercise.title}" and save it. Then s shows an answer.'


def _task_hints(lesson: Lesson, exercise: str) -> tuple[Hint, ...]:
    tasks = [cell.source for cell in lesson.cells if cell.id == exercise and cell.kind == "task"]
    return tuple(hint for task in tasks for hint in hints(task))


def stamp(course: Course) -> tuple[object, ...]:
    """What is another when a text of the course is."""
    return tuple(_changed(path) for path in _files(course))


def _files(course: Course) -> Iterator[Path]:
    for one in (course, course.base):
        if one is not None:
            yield one.root / "course.toml"
    for lesson in course.ids:
        yield from (*course.sources(lesson), course.solutions(lesson), course.script(lesson))


def _changed(path: Path) -> tuple[str, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_mtime_ns, found.st_size
