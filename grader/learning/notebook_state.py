"""The state of one lesson's notebook in `grader watch`: what each exercise earned, and which are still to be judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grader.core.notebook import Submission, read_submission
from grader.core.points import total
from grader.core.result import CheckResult
from grader.course import Exercise, Lesson
from grader.grading import fingerprint
from grader.grading.plan import JudgeExercise, plan


@dataclass(frozen=True)
class ExerciseText:
    """Digests of what decides one exercise: all cells that run before its checks (`key`), and its answer alone."""

    key: str
    answer: str
    untouched: bool


def texts(submission: Submission, lesson: Lesson) -> dict[str, ExerciseText]:
    """Returns the texts by exercise, in the order of the notebook.

    The seed of hidden inputs is left out: other inputs are no reason to judge an unchanged answer again.
    """
    found: dict[str, ExerciseText] = {}
    ran: list[object] = [fingerprint.lesson_fingerprint(lesson)]
    answers: dict[str, list[str]] = {}
    for step in plan(submission, lesson)[0]:
        if isinstance(step, JudgeExercise):
            own = fingerprint.digest(answers.get(step.exercise.id, []))
            found[step.exercise.id] = ExerciseText(fingerprint.digest(ran), own, step.untouched)
            continue
        ran.append([step.label, step.source])
        if step.exercise is not None:
            answers.setdefault(step.exercise, []).append(step.source)
    return found


class NotebookState:
    """One lesson's notebook: `take` reads a saved one, `file` stores the results of its checks.

    Attributes:
        todo: exercises to judge, those that the last save changed first.
        edited: exercises that the last save changed.
    """

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.content = b""
        self.todo: list[str] = []
        self.edited: list[str] = []
        self._texts: dict[str, ExerciseText] = {}
        self._judged: dict[str, tuple[str, tuple[CheckResult, ...]]] = {}

    def take(self, content: bytes) -> None:
        """Reads what was saved. Raises `Unreadable` and keeps what was read before."""
        before, new = self._texts, texts(read_submission(content, "", self.lesson.id), self.lesson)
        changed = [name for name, text in new.items() if name not in before or before[name].answer != text.answer]
        self.content, self._texts = content, new
        stale = [name for name in new if not new[name].untouched and self._is_stale(name)]
        self.todo = [*(name for name in changed if name in stale), *(name for name in stale if name not in changed)]
        self.edited = changed if before else []

    def _is_stale(self, name: str) -> bool:
        return name not in self._judged or self._judged[name][0] != self._texts[name].key

    def key(self, exercise: str) -> str:
        """Returns a digest of the text that decides about an exercise now."""
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
        """Returns the points of the exercise's last results."""
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
        """Whether a notebook was read at all."""
        return bool(self._texts)
