"""The kinds of events of a workshop: who may send which, and what each must contain."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from grader.board.shared_answers import answer_words
from grader.board.workshop import BoardExercise, Workshop
from grader.core.text import legible
from grader.course import reader

MAX_HINT = 500  # characters of a hint that the instructor types
MAX_CODE = 4_000  # characters of an answer that a learner shares
OUTCOMES = ("passed", "failed")  # of a check cell that counts; an untouched stub is not reported


class BadEvent(ValueError):
    """An event does not have the documented form; the text says what is wrong with it."""


def checked_event(workshop: Workshop, content: object, sender: str = "learner") -> dict[str, Any]:
    """Returns an event with its known fields alone. Raises BadEvent for any other form, size or name, and for an event
    that this `sender` ("learner", "instructor" or "judge") may not send."""
    if not isinstance(content, dict):
        raise BadEvent("an event is an object")
    kind = content.get("kind")
    validate = KINDS[sender].get(kind) if isinstance(kind, str) else None
    if validate is None:
        raise BadEvent("unknown kind of event")
    return {"kind": kind, **validate(workshop, content)}


def _valid_check(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    check, outcome = content.get("check"), content.get("outcome")
    if not _is_one_of(check, workshop.of_check):
        raise BadEvent("no such check in this workshop")
    if not _is_one_of(outcome, OUTCOMES):
        raise BadEvent("unknown outcome")
    return {"check": check, "outcome": outcome}


def _valid_graded(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    exercise = _known(workshop, content.get("exercise"))
    points, misconception = content.get("points"), content.get("misconception")
    if isinstance(points, bool) or not isinstance(points, int | float) or not 0 <= points <= exercise.points:
        raise BadEvent("points are a number between 0 and the points of the exercise")
    if misconception is not None and not _is_one_of(misconception, exercise.misconceptions):
        raise BadEvent("no such misconception")
    return {"exercise": exercise.id, "points": points, "misconception": misconception}


def _valid_prediction(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    prediction, choice = content.get("prediction"), content.get("choice")
    if not _is_one_of(prediction, workshop.predictions):
        raise BadEvent("no such prediction in this workshop")
    if not _is_one_of(choice, tuple(reader.LETTERS[: len(workshop.predictions[str(prediction)].choices)])):
        raise BadEvent("no such choice")
    return {"prediction": prediction, "choice": choice}


def _valid_shared(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    exercise, code = _known(workshop, content.get("exercise")), content.get("code")
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CODE:
        raise BadEvent(f"an answer that is shared has 1 to {MAX_CODE} characters")
    if answer_words(code, exercise.known) == answer_words(exercise.stub, exercise.known):
        raise BadEvent("this cell contains no answer yet. Write one and save it first")
    return {"exercise": exercise.id, "code": legible(code)}


def _valid_help(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(content.get("wanted"), bool):
        raise BadEvent("help is wanted or not")
    return {"wanted": content["wanted"]}


def _valid_left(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    return {}


def _valid_folder(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    return {"replaced": bool(content.get("replaced"))}


def _valid_open(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    exercise = content.get("exercise")
    return {"exercise": None if exercise is None else _known(workshop, exercise).id}


def _valid_timer(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    ends = content.get("ends")
    if ends is not None and (isinstance(ends, bool) or not isinstance(ends, int | float) or not 0 < ends < 1e11):
        raise BadEvent("a timer ends at a time in seconds since the epoch")
    return {"ends": ends}


def _valid_hint(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    text = content.get("text")
    if not isinstance(text, str) or len(text) > MAX_HINT:
        raise BadEvent(f"a hint is a text of at most {MAX_HINT} characters")
    return {"text": text}


def _valid_hide(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(content.get("hidden"), bool):
        raise BadEvent("predictions are hidden or not")
    return {"hidden": content["hidden"]}


def _valid_break(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(content.get("paused"), bool):
        raise BadEvent("there is a break or not")
    return {"paused": content["paused"]}


def _valid_show(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    exercise, group = content.get("exercise"), content.get("group")
    if exercise is None:
        return {"exercise": None, "group": None}
    if not isinstance(group, str) or len(group) > 16:
        raise BadEvent("a group of answers has an id")
    return {"exercise": _known(workshop, exercise).id, "group": group}


def _valid_helped(workshop: Workshop, content: dict[str, Any]) -> dict[str, Any]:
    return {"learner": known_learner(workshop, content)}


def known_learner(workshop: Workshop, content: dict[str, Any]) -> int:
    """Returns the learner whom an action of the instructor names. Raises BadEvent if the workshop has none."""
    learner = content.get("learner")
    if isinstance(learner, bool) or not isinstance(learner, int) or learner not in workshop.participants:
        raise BadEvent("no such learner")
    return learner


def _known(workshop: Workshop, exercise: object) -> BoardExercise:
    if not isinstance(exercise, str) or exercise not in workshop.exercises:
        raise BadEvent("no such exercise in this workshop")
    return workshop.exercises[exercise]


def _is_one_of(value: object, texts: Container[str]) -> bool:
    return isinstance(value, str) and value in texts


# By who may send them: the kinds of events, and what validates each.
KINDS = {
    "learner": {
        "check": _valid_check,
        "graded": _valid_graded,
        "prediction": _valid_prediction,
        "help": _valid_help,
        "left": _valid_left,
        "shared": _valid_shared,
    },
    "instructor": {
        "open": _valid_open,
        "timer": _valid_timer,
        "hint": _valid_hint,
        "helped": _valid_helped,
        "hide": _valid_hide,
        "break": _valid_break,
        "show": _valid_show,
    },
    "judge": {"judged": _valid_graded, "folder": _valid_folder},
}
