"""The state of a workshop, computed from its events alone: outcomes, pace, who is stuck, what was sent."""

from __future__ import annotations

import builtins
import statistics
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from grader.board.shared_answers import SharedAnswer, shared_answer, without_comments
from grader.core.points import is_full
from grader.course import Course, reader

STUCK_FACTOR = 2.0  # times the median time between two steps forward
STUCK_AT_LEAST_S = 300.0
MAX_GAPS = 5_000
ANONYMOUS_FROM = 3  # people who have shared a wrong answer to an exercise before any of these answers is shown
MOST_GROUPS = 6  # of the shared answers to one exercise
MAX_QUESTION = 600  # characters of a prediction's question
OPEN, TRYING, PASSING, DONE = "open", "trying", "passing", "done"  # of an exercise, in this order


@dataclass(frozen=True)
class BoardExercise:
    """A column of the board."""

    id: str
    title: str
    lesson: str
    points: float
    public: frozenset[str]  # ids of its public checks
    misconceptions: frozenset[str]
    minutes: int = 0  # that the course plans for it
    reference: str = ""  # the course's answer
    stub: str = ""  # the answer cell before anyone has answered
    known: frozenset[str] = frozenset()  # names that the course or Python defines, and the learner does not choose


@dataclass(frozen=True)
class BoardPrediction:
    """A question of the workshop's lessons. The choices have the letters from A on; `right` is one of these letters."""

    id: str
    lesson: str
    question: str
    choices: tuple[str, ...]
    right: str


@dataclass
class Attempt:
    """What one learner has reached in one exercise. Times are those of `Workshop.clock`."""

    status: str = OPEN
    earned: float = 0.0
    passed: set[str] = field(default_factory=set)  # public checks
    failures: int = 0
    began: float = 0.0
    ended: float = 0.0  # when all points were reached
    judged: bool = False  # by the board's machine


@dataclass
class Participant:
    """A learner of the workshop: when they joined, in seconds since the epoch, and last stepped forward, by
    `Workshop.clock`. The learner of a watched folder is `replaced` while one who has joined from there is shown."""

    id: int
    name: str
    joined: float
    progressed: float
    attempts: dict[str, Attempt] = field(default_factory=dict)
    wants_help: bool = False
    left: bool = False
    replaced: bool = False
    reported: bool = False  # anything but leaving


class Workshop:
    """Takes validated events in their order. Points are as learners' machines report them, or where `judges`, only as
    the board's own machine has graded saved notebooks."""

    def __init__(
        self, exercises: list[BoardExercise], predictions: list[BoardPrediction] | None = None, judges: bool = False
    ) -> None:
        self.exercises = {one.id: one for one in exercises}
        self.predictions = {one.id: one for one in predictions or ()}
        self.judges = judges
        self.participants: dict[int, Participant] = {}
        self.changed: set[int] = set()  # participants since the last `take_changes`
        self.opened: str | None = None  # the exercise that is open for everyone
        self.timer: float | None = None  # when it ends
        self._breaks, self._break_began = (
            0.0,
            float("inf"),
        )  # seconds of breaks that are over; when the current one began
        self.hint = ""
        self.hides_predictions = True  # on the projector, until everyone has answered
        self.groups_changed = False  # since the last `take_groups`
        self.of_check = {check: one.id for one in exercises for check in one.public}
        # Seconds between two steps forward of one learner. Only the latest: a learner can report any number of them.
        self._gaps: deque[float] = deque(maxlen=MAX_GAPS)
        self._misconceptions: dict[str, dict[str, set[int]]] = {one.id: {} for one in exercises}  # learners with each
        self._choices: dict[str, dict[int, str]] = {}  # letters by learner, of each prediction
        self._shared: dict[str, dict[int, SharedAnswer]] = {one.id: {} for one in exercises}
        self._on_display: tuple[str, str] | None = None  # exercise and group on the projector

    @classmethod
    def of(cls, course: Course, lessons: list[str], judges: bool = False) -> Workshop:
        """Returns the workshop of these lessons before anything has happened. Raises CourseError."""
        found = []
        for lesson in (course.lesson(name) for name in lessons):
            known = frozenset(
                {*lesson.setup_names, *dir(builtins), *(name for e in lesson.exercises for name in e.names)}
            )
            for one in lesson.exercises:
                public = frozenset(check.id for check in one.checks if not check.hidden)
                because = frozenset(wrong.because for wrong in one.wrong if wrong.because)
                about = (one.id, one.title, lesson.id, one.points, public, because)
                texts = without_comments(one.reference), one.stub
                found.append(BoardExercise(*about, one.minutes, *texts, known))
        return cls(found, [one for name in lessons for one in _predictions(course, name)], judges)

    def join(self, learner: int, name: str, at: float) -> None:
        self.participants[learner] = Participant(learner, name, at, self.clock(at))
        self.changed.add(learner)

    def remove(self, learner: int) -> None:
        """Removes a learner with everything that they have reported. Their pace still counts until a restart."""
        del self.participants[learner]
        for choices in self._choices.values():
            choices.pop(learner, None)
        for shared in self._shared.values():
            shared.pop(learner, None)
        for by_text in self._misconceptions.values():
            for learners in by_text.values():
                learners.discard(learner)
        self.groups_changed = True
        self.changed.add(learner)

    def last_silent(self, before: float) -> int | None:
        """Returns the learner who joined last of those who joined before a time and have reported nothing, if any. A
        flood of false learners mostly comes after the class."""
        silent = [one for one in self.participants.values() if one.joined < before and not one.reported]
        return max(silent, key=lambda one: one.joined).id if silent else None

    def apply(self, at: float, learner: int | None, content: dict[str, Any]) -> None:
        """Applies an event that `checked_event` has returned."""
        if learner is None:
            self._instruct(at, content)
            return
        participant, at = self.participants[learner], self.clock(at)
        participant.reported = participant.reported or content["kind"] not in ("left", "folder")
        if content["kind"] not in ("judged", "folder"):  # a notebook can be graded after its learner has left
            participant.left = content["kind"] == "left"
        self.changed.add(learner)
        match content["kind"]:
            case "check":
                self._check_cell(participant, at, content["check"], content["outcome"])
            case "graded" if self.judges:
                self._attempt(participant, content["exercise"], at)
            case "graded" | "judged":
                self._graded(participant, at, content)
            case "prediction":
                self._choices.setdefault(content["prediction"], {})[learner] = content["choice"]
            case "shared":
                self._share(participant, at, content)
            case "folder":
                participant.replaced = content["replaced"]
            case "help":
                participant.wants_help = content["wanted"]

    @property
    def paused(self) -> bool:
        """Whether there is a break."""
        return self._break_began < float("inf")

    def clock(self, at: float) -> float:
        """Returns a time in seconds since the epoch without the breaks before it, in which this clock stands still."""
        return min(at, self._break_began) - self._breaks

    def _instruct(self, at: float, content: dict[str, Any]) -> None:
        match content["kind"]:
            case "break" if content["paused"] and not self.paused:
                self._break_began = at
            case "break" if self.paused and not content["paused"]:
                self._breaks += at - self._break_began
                self._break_began = float("inf")
            case "open":
                self.opened = content["exercise"]
            case "timer":
                self.timer = content["ends"]
            case "hint":
                self.hint = content["text"]
            case "hide":
                self.hides_predictions = content["hidden"]
            case "show":
                self._on_display = None if content["exercise"] is None else (content["exercise"], content["group"])
            case "helped":
                if content["learner"] in self.participants:
                    self.participants[content["learner"]].wants_help = False
                    self.changed.add(content["learner"])

    def _attempt(self, participant: Participant, exercise: str, at: float) -> Attempt:
        return participant.attempts.setdefault(exercise, Attempt(status=TRYING, began=at))

    def _check_cell(self, participant: Participant, at: float, check: str, outcome: str) -> None:
        exercise = self.exercises[self.of_check[check]]
        attempt = self._attempt(participant, exercise.id, at)
        if outcome == "passed" and check not in attempt.passed:
            attempt.passed.add(check)
            self._progress(participant, at)
        elif outcome == "failed":
            attempt.passed.discard(check)
            attempt.failures += 1
        if attempt.status != DONE:
            attempt.status = PASSING if attempt.passed == exercise.public else TRYING

    def _graded(self, participant: Participant, at: float, content: dict[str, Any]) -> None:
        exercise = self.exercises[content["exercise"]]
        attempt = self._attempt(participant, exercise.id, at)
        full = is_full(content["points"], exercise.points)
        attempt.judged = attempt.judged or content["kind"] == "judged"
        if content["points"] > attempt.earned:
            self._progress(participant, at)
        attempt.earned = max(attempt.earned, content["points"])
        if full and attempt.status != DONE:
            attempt.status, attempt.ended = DONE, at
        elif not full:
            attempt.failures += 1
            attempt.status = attempt.status if attempt.status in (PASSING, DONE) else TRYING
        if content["misconception"]:
            self._misconceptions[exercise.id].setdefault(content["misconception"], set()).add(participant.id)

    def _share(self, participant: Participant, at: float, content: dict[str, Any]) -> None:
        exercise = self.exercises[content["exercise"]]
        wrong = self._attempt(participant, exercise.id, at).status != DONE
        answer = shared_answer(content["code"], exercise.known, wrong)
        self._shared[exercise.id][participant.id] = answer
        self.groups_changed = True

    def _progress(self, participant: Participant, at: float) -> None:
        self._gaps.append(max(0.0, at - participant.progressed))
        participant.progressed, participant.wants_help = at, False

    @property
    def median_gap(self) -> float:
        """The median of the seconds between two steps forward of a learner; 0 before the first step."""
        return statistics.median(self._gaps) if self._gaps else 0.0

    @property
    def stuck_after(self) -> float:
        """Seconds without a step forward after which a learner counts as stuck."""
        return max(STUCK_AT_LEAST_S, STUCK_FACTOR * self.median_gap)

    def row(self, learner: int) -> dict[str, Any]:
        """Returns one learner's row for the instructor."""
        one = self.participants[learner]
        done = all(one.attempts.get(name, Attempt()).status == DONE for name in self.exercises)
        cells = {
            name: {"status": attempt.status, "earned": attempt.earned, "failures": attempt.failures}
            for name, attempt in one.attempts.items()
        }
        row = {"id": one.id, "name": one.name, "progressed": one.progressed, "done": done, "left": one.left}
        row["replaced"] = one.replaced
        return {**row, "help": one.wants_help and not one.left, "cells": cells}

    @property
    def present(self) -> list[Participant]:
        """The learners who have not left."""
        return [one for one in self.participants.values() if not (one.left or one.replaced)]

    @property
    def began(self) -> float | None:
        """When the first learner joined."""
        return min((one.joined for one in self.participants.values()), default=None)

    def outline(self) -> dict[str, Any]:
        """Returns what never changes during the workshop."""
        exercises = [
            {"id": one.id, "title": one.title, "lesson": one.lesson, "points": one.points, "planned": one.minutes}
            for one in self.exercises.values()
        ]
        predictions = [
            {"id": one.id, "lesson": one.lesson, "question": one.question, "choices": one.choices}
            for one in self.predictions.values()
        ]
        return {"exercises": exercises, "predictions": predictions, "judges": self.judges}

    def summary(self, instructor: bool) -> dict[str, Any]:
        """Returns counts of everyone, without any name. The projector gets neither the tallies that are hidden nor the
        misconceptions of fewer than `ANONYMOUS_FROM` people."""
        return {
            "learners": len(self.present),
            "median_gap": self.median_gap,
            "stuck_after": self.stuck_after,
            "open": self.opened,
            "timer": self.timer,
            "paused": self.paused,
            "hint": self.hint,
            "hides_predictions": self.hides_predictions,
            "exercises": [self._column(one, instructor) for one in self.exercises.values()],
            "predictions": [self._tally(one, instructor) for one in self.predictions if one in self._choices],
            "display": self._display(),
        }

    def _column(self, exercise: BoardExercise, instructor: bool) -> dict[str, Any]:
        attempts = [a for p in self.present if (a := p.attempts.get(exercise.id)) is not None]
        minutes = [(a.ended - a.began) / 60 for a in attempts if a.status == DONE]
        least = 1 if instructor else ANONYMOUS_FROM
        found = self._misconceptions[exercise.id].items()
        named = Counter({text: len(who) for text, who in found if len(who) >= least})
        return {
            "id": exercise.id,
            "counts": Counter(attempt.status for attempt in attempts),
            "minutes": round(statistics.median(minutes), 1) if minutes else None,
            "misconceptions": named.most_common(5),
        }

    def _tally(self, prediction: str, instructor: bool) -> dict[str, Any]:
        choices = self._choices[prediction]
        complete = all(one.id in choices for one in self.present)
        visible = instructor or complete or not self.hides_predictions
        return {
            "id": prediction,
            "answered": len(choices),
            "counts": Counter(choices.values()) if visible else None,
            "right": self.predictions[prediction].right if instructor or complete else None,
        }

    def groups(self) -> dict[str, list[dict[str, Any]]]:
        """Returns, for each exercise to which at least `ANONYMOUS_FROM` people have shared a wrong answer, the groups
        of equal answers without names, the largest first."""
        found = {}
        for exercise, shared in self._shared.items():
            wrong = [one for one in shared.values() if one.wrong]
            if len(wrong) >= ANONYMOUS_FROM:
                first = {one.group: one.code for one in reversed(wrong)}
                counts = Counter(one.group for one in wrong).most_common(MOST_GROUPS)
                found[exercise] = [{"group": group, "count": n, "code": first[group]} for group, n in counts]
        return found

    def take_groups(self) -> dict[str, list[dict[str, Any]]] | None:
        """Returns the groups if they changed since the last call, else None."""
        changed, self.groups_changed = self.groups_changed, False
        return self.groups() if changed else None

    def _display(self) -> dict[str, Any] | None:
        """The group of wrong answers that the instructor has put on the projector, and the correct answer."""
        if self._on_display is None:
            return None
        exercise, group = self._on_display
        for one in self.groups().get(exercise, ()):
            if one["group"] == group:
                return {"exercise": exercise, **one, "reference": self.exercises[exercise].reference}
        return None

    def table(self) -> list[tuple[object, ...]]:
        """Returns what an export contains: a heading, and a row for each exercise that a learner has begun, or one for
        a learner who has begun none."""
        rows: list[tuple[object, ...]] = [
            ("learner", "lesson", "exercise", "status", "points", "of", "failed", "minutes")
        ]
        for participant in (one for one in self.participants.values() if not one.replaced):
            for name, one in participant.attempts.items():
                exercise = self.exercises[name]
                minutes = round((one.ended - one.began) / 60, 1) if one.status == DONE else ""
                about = (participant.name, exercise.lesson, name, one.status)
                rows.append((*about, one.earned, exercise.points, one.failures, minutes))
            if not participant.attempts:
                rows.append((participant.name, "", "", OPEN, "", "", "", ""))
        return rows

    def news(self, learner: int) -> dict[str, Any]:
        """Returns what a learner may see: what the instructor sends to everyone, and their own judged points."""
        title = self.exercises[self.opened].title if self.opened else ""
        attempts = self.participants[learner].attempts if self.judges else {}
        judged = [
            [self.exercises[name].title, one.earned, self.exercises[name].points]
            for name, one in attempts.items()
            if one.judged
        ]
        return {"open": self.opened, "title": title, "timer": self.timer, "hint": self.hint, "judged": judged}

    def take_changes(self) -> list[dict[str, Any]]:
        """Returns the rows that changed since the last call. That of a removed learner has only an id and `removed`."""
        changed, self.changed = self.changed, set()
        known = self.participants
        return [self.row(one) if one in known else {"id": one, "removed": True} for one in sorted(changed)]


def _predictions(course: Course, lesson: str) -> list[BoardPrediction]:
    """The predictions of a lesson's own text, if it has one. Raises CourseError."""
    found = []
    for cell in course.text(lesson) if lesson in course.text_ids else ():
        if cell.kind == "predict":
            one = reader.prediction(cell)
            right = next(letter for letter, choice in zip(reader.LETTERS, one.choices, strict=False) if choice.right)
            choices = tuple(choice.text for choice in one.choices)
            found.append(BoardPrediction(one.id, lesson, one.question[:MAX_QUESTION], choices, right))
    return found
