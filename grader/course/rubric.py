"""Rubric items: named parts of a task that a person grades, each with points.

The mark scheme lists the items (`- 2 points: Names the exponent.`). The comment of the person who grades contains the
points given for each of them (`- 1 of 2 points: Names the exponent.`), so they are stored with the comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BEGIN_SCHEME = "### BEGIN MARK SCHEME"
END_SCHEME = "### END MARK SCHEME"
ITEM = re.compile(r"- (\d{1,6}(?:\.\d{1,6})?) points?: *(\S.*)")
GIVEN = re.compile(r"- (\d{1,6}(?:\.\d{1,6})?) of (\d{1,6}(?:\.\d{1,6})?) points?: *(\S.*)")


@dataclass(frozen=True)
class RubricItem:
    """An item with its maximum points, and the points given for it; None before a person has graded it."""

    name: str
    points: float
    given: float | None = None


def scheme(source: str) -> list[str]:
    """Returns the lines between the markers of a task's mark scheme."""
    return source.partition(f"{BEGIN_SCHEME}\n")[2].partition(END_SCHEME)[0].splitlines()


def items(source: str) -> tuple[RubricItem, ...]:
    """Returns the items in the mark scheme of a task's source."""
    found = (ITEM.fullmatch(line.rstrip()) for line in scheme(source))
    return tuple(RubricItem(match[2], float(match[1])) for match in found if match)


def graded(comment: str) -> tuple[tuple[RubricItem, ...], str]:
    """Returns the items that a comment contains, and the rest of the comment."""
    lines = [(line, GIVEN.fullmatch(line.rstrip())) for line in comment.splitlines()]
    found = tuple(RubricItem(match[3], float(match[2]), float(match[1])) for _, match in lines if match)
    return found, "\n".join(line for line, match in lines if match is None).strip("\n")
