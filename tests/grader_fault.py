"""Faults of the grader itself on tests/courses/small: a check that raises before it asks, and an examiner that dies."""

from __future__ import annotations

from typing import NamedTuple

LESSON = "01_small"
FIRST_LINE = 'x = inputs.rng().normal(size=7).astype("f")\n'


class GraderFault(NamedTuple):
    """Code for the beginning of a hidden check, and what the grader says of it to whoever runs it."""

    code: str
    said: str


FAULTS = {
    "a check raises": GraderFault("raise LookupError('no such table')\n", "LookupError"),
    "the examiner dies": GraderFault("import os\nos._exit(3)\n", "The grader itself failed: "),
}


def broken(text: str, fault: str) -> str:
    """The solutions of the lesson with this fault in the last hidden check."""
    assert text.count(FIRST_LINE) == 1
    return text.replace(FIRST_LINE, FAULTS[fault].code + FIRST_LINE)
