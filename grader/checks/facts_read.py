"""Which facts of programs a check has read since its last judgement: what a failure of the next one is about."""

from __future__ import annotations

from typing import Any

_read: list[tuple[Any, str]] = []


def read(program: Any, fact: str) -> None:
    """The check read this fact of this program; that of a kind of collective is called as the kind."""
    _read.append((program, fact))


def judged() -> None:
    """What was read until now has been judged: it holds."""
    _read.clear()


def facts() -> list[tuple[Any, str]]:
    """Programs and facts, in the order in which they were first read."""
    kept: list[tuple[Any, str]] = []
    for one in _read:
        if not any(one[0] is other[0] and one[1] == other[1] for other in kept):
            kept.append(one)
    return kept
