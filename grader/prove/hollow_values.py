"""Hollow values (NaN, infinite, 0 or empty) in place of what an answer returns, to test that checks reject them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from grader.checks.verbs import PROGRAM, replace_values
from grader.program.codec import is_array, is_key


@contextlib.contextmanager
def hollow_values(kind: str) -> Iterator[list[None]]:
    """Within it, checks get hollow values of this kind, one of `KINDS`. Yields a list with an item for each value that
    was changed, which the caller may clear."""
    changed: list[None] = []

    def change(subject: str, value: Any) -> Any:
        # A check may run a program for one of its results alone, so none of them is left out.
        made = value if kind == "empty" and subject == PROGRAM else _map(value, KINDS[kind])
        changed.extend([None] * (repr(made) != repr(value)))
        return made

    replace_values(change)
    try:
        yield changed
    finally:
        replace_values(None)


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(item, change) for item in value))
    if isinstance(value, tuple | list) and change is not _empty:
        return type(value)(_map(item, change) for item in value)
    if isinstance(value, dict) and change is not _empty:
        return {key: _map(item, change) for key, item in value.items()}
    return change(value)


def _filled(number: float) -> Callable[[Any], Any]:
    """Every float is this number."""

    def change(value: Any) -> Any:
        if isinstance(value, float) and not is_array(value):
            return number
        if not is_array(value) or is_key(value) or not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        return (np if isinstance(value, np.ndarray | np.generic) else jnp).full_like(value, number)

    return change


def _empty(value: Any) -> Any:
    """A container, a text or an array without anything in it."""
    if isinstance(value, tuple | list | dict | str):
        return type(value)()
    return np.zeros(0, value.dtype) if is_array(value) and not is_key(value) else value


KINDS: dict[str, Callable[[Any], Any]] = {
    "nan": _filled(np.nan),
    "inf": _filled(np.inf),
    "zero": _filled(0.0),
    "empty": _empty,
}
WORDS = {
    "nan": "every float is NaN",
    "inf": "every float is infinite",
    "zero": "every float is 0",
    "empty": "everything is empty",
}
