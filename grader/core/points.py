"""Points: the one place that adds, rounds, compares and formats them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

DIGITS = 6  # after the decimal point: 0.1 + 0.2 + 0.3 is 0.6


def total(points: Iterable[float]) -> float:
    """Returns the sum, rounded to `DIGITS` and independent of the order of `points`."""
    return round(math.fsum(points), DIGITS)


def mean(points: Collection[float]) -> float:
    """Returns the mean of at least one score, rounded to two digits after the decimal point."""
    return round(total(points) / len(points), 2)


def is_full(earned: float, possible: float) -> bool:
    """Returns whether `earned` reaches `possible`, both rounded as `total` rounds."""
    return total([earned]) >= total([possible])


def number(points: float, digits: int = DIGITS) -> str:
    """Formats points, rounded to `digits` after the decimal point, without a needless `.0`: `3`, `2.5`."""
    return f"{round(total([points]), digits):.10g}"


def phrase(count: float, noun: str = "point") -> str:
    """Formats points, or other things that are counted, with their noun: `1 point`, `2.5 points`, `3 notebooks`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"
