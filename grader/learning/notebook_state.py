"""How one lesson's notebook stands as it was saved last: what each exercise got, and which are still to be judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grader.core.notebook import Submission, read_submission
from grader.core.points import total
from grader.core.result import CheckResult
from grader.course import Exercise, Lesson
from grader.grading import fingerprint
from grader.grading.plan import JudgeExercise, plan

# Statuses of an exercise that was put to its checks as it stands; what else ends it is for the next save to mend.
OPEN, TO_JUDGE, JUDGED = "open", "to judge", "judged"


@dataclass(frozen=True)
class ExerciseText:
    """What of a notebook decides about one exercise: all that runs before its checks, and its answer alone."""

    before: str
    answer: str
    untouched: bool
    missing: bool


def texts(submission: Submission, lesson: Lesson) -> dict[str, ExerciseText]:
    """By exercise, in the order in which the notebook has them.

    The seed of hidden inputs is left out: other inputs are no reason to judge an answer again that has not changed,
    and neither has anything before it.
    """
    found: dict[str, ExerciseText] = {}
    ran: list[object] = [fingerprint.lesson_fingerprint(lesson)]
    answers: dict[str, list[str]] = {}
    for step in plan(submission, lesson).steps:
        if isinstance(step, JudgeExercise):
            own = fingerprint.digest(answers.get(step.exercise.id, []))
            found[step.exercise.id] = ExerciseText(fingerprint.digest(ran), own, step.untouched, step.missing)
            continue
        ran.append([step.label, step.source])
        if step.exercise is not None:
            answers.setdefault(step.exercise, []).append(step.source)
    return found


class NotebookState:
    """One lesson's notebook; `take` a saved one, `file` what its checks gave."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.content = b""
        self.todo: list[str] = []  # exercises to judge, the one that was worked on first
        self.edited: list[str] = []  # those that the last save changed
        self._texts: dict[str, ExerciseText] = {}
        self._judged: dict[str, tuple[str, tuple[CheckResult, ...]]] = {}

    def take(self, content: bytes) -> None:
        """Read what was saved. Raises `Unreadable` and keeps what was read before."""
        new = texts(read_submission(content, "", self.lesson.id), self.lesson)
        changed = [name for name, text in new.items() if self._is_new(name, text)]
        first = not self._texts
        self.content, self._texts = content, new
        stale = [name for name in new if not new[name].untouched and self._stale(name)]
        self.todo = [*(name for name in changed if name in stale), *(name for name in stale if name not in changed)]
        self.edited = [] if first else changed

    def _is_new(self, name: str, text: ExerciseText) -> bool:
        return name not in self._texts or self._texts[name].answer != text.answer

    def _stale(self, name: str) -> bool:
        return name not in self._judged or self._judged[name][0] != self._texts[name].before

    def key(self, exercise: str) -> str:
        """Of the text that decides about an exercise now."""
        return self._texts[exercise].before

    def file(self, exercise: str, key: str, checks: Iterable[CheckResult]) -> bool:
        """Take note of what an exercise got with the text of that key; whether that is its text still."""
        if exercise not in self._texts or self._texts[exercise].before != key:
            return False
        self._judged[exercise] = key, tuple(checks)
        self.todo = [name for name in self.todo if name != exercise]
        return True

    def give_up(self, exercise: str) -> None:
        """Leave an exercise unjudged until the next save."""
        self.todo = [name for name in self.todo if name != exercise]

    def checks(self, exercise: str) -> tuple[CheckResult, ...]:
        """What its checks gave last, with this text or an earlier one; nothing for a stub as it was given out."""
        text = self._texts.get(exercise)
        if text is not None and text.untouched:
            return ()
        return self._judged.get(exercise, ("", ()))[1]

    def state(self, exercise: str) -> str:
        """Whether it is judged as it stands."""
        if exercise in self.todo:
            return TO_JUDGE
        return JUDGED if self.checks(exercise) and not self._stale(exercise) else OPEN

    def earned(self, exercise: str) -> float:
        """Points of its checks."""
        return total(check.points for check in self.checks(exercise))

    def tried(self, exercise: Exercise) -> bool:
        """Whether an answer of the learner's own was put to its checks."""
        return any(check.status != "not attempted" for check in self.checks(exercise.id))

    @property
    def worked_on(self) -> bool:
        """Whether there is anything in it that is not as it was given out."""
        return any(not text.untouched for text in self._texts.values())

    @property
    def read(self) -> bool:
        """Whether a notebook was read at all."""
        return bool(self._texts)
