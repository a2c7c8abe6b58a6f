"""Limits of a payload, and the errors for a value that is not data and for bytes that are not a payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PayloadLimits:
    """Upper bounds for one payload."""

    depth: int = 64  # of containers in one another
    values: int = 200_000
    arrays: int = 10_000
    axes: int = 64  # of one array
    bits: int = 256  # of an int
    head: int = 8 << 20  # bytes
    buffers: int = 512 << 20  # bytes of all arrays together; a replicated one counts once for each device


LIMITS = PayloadLimits()


class Unsendable(Exception):
    """A value that is not data.

    Attributes:
        name: what a reader would call it, such as a class.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Malformed(Exception):
    """Bytes that are not a payload of ours, or one beyond the limits."""


def natural(numbers: Any) -> tuple[int, ...]:
    """Returns a list of natural numbers as a tuple. Raises `Malformed` for anything else."""
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise Malformed("not a list of natural numbers")
    return tuple(numbers)


def few(items: Any) -> Any:
    """Returns a list with an item for each axis of an array or a mesh. Raises `Malformed` for a long one."""
    if not isinstance(items, list) or len(items) > LIMITS.axes:
        raise Malformed("not a list, or more axes than there can be")
    return items


def strings(names: Any) -> tuple[str, ...]:
    """Returns a short list of strings as a tuple. Raises `Malformed` for anything else."""
    if not all(type(name) is str for name in few(names)):
        raise Malformed("not a list of strings")
    return tuple(names)
