"""What a payload may hold, and the two errors that say it holds something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PayloadLimits:
    """What one payload may hold: nesting depth, number of values, of arrays among them and of the axes of each, bits
    of an int, bytes of the head, bytes of all arrays together (a replicated one counts once for each device)."""

    depth: int = 64
    values: int = 200_000
    arrays: int = 10_000
    axes: int = 64
    bits: int = 256
    head: int = 8 << 20
    buffers: int = 512 << 20


LIMITS = PayloadLimits()


class Unsendable(Exception):
    """A value that is not data; `name` is what a reader would call it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Malformed(Exception):
    """Bytes that are not a payload of ours, or one beyond the limits."""


def natural(numbers: Any) -> tuple[int, ...]:
    """A list of natural numbers, as a tuple. Raises `Malformed` for anything else."""
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise Malformed("not a list of natural numbers")
    return tuple(numbers)


def few(items: Any) -> Any:
    """A list that has an item for each axis of an array or of a mesh, never a long one. Raises `Malformed`."""
    if not isinstance(items, list) or len(items) > LIMITS.axes:
        raise Malformed("not a list, or more axes than there can be")
    return items


def strings(names: Any) -> tuple[str, ...]:
    """A short list of strings, as a tuple. Raises `Malformed` for anything else."""
    if not all(type(name) is str for name in few(names)):
        raise Malformed("not a list of strings")
    return tuple(names)
