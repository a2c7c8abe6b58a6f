"""Guard of hidden messages: a hidden check shows its own words and short facts, never text of a learner's process.

In a check's `f"It was traced {calls} times."`, `calls` may come from the learner's process and hold the inputs as a
text, so whatever stands in such a message is looked at before it is put in.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grader.checks.compare import describe_array
from grader.checks.verbs import exception_names
from grader.core.symbols import JUDGING

NOT_SHOWN = "(not shown)"
LARGEST = 10**12  # bytes of a large model have so many digits, and an input in full has more
LONGEST, MOST_STRINGS = 200, 1_000
# No name of Python's, so no check and no setup binds it.
SHOWN = "<shown>"


def guard(check: ast.Module) -> ast.Module:
    """Put `SHOWN` around everything in a check's messages that is not plain text; whoever runs the check binds `SHOWN`
    to a `MessageGuard`."""
    for node in ast.walk(check):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in JUDGING:
            position, keyword = JUDGING[node.func.id]
            if len(node.args) > position:
                node.args[position] = _guarded(node.args[position])
            for given in node.keywords:
                if given.arg == keyword:
                    given.value = _guarded(given.value)
    return ast.fix_missing_locations(check)


def _guarded(words: ast.expr) -> ast.expr:
    if isinstance(words, ast.Constant):
        return words
    if isinstance(words, ast.JoinedStr):
        words.values = [_guarded(value) for value in words.values]
        return words
    parts = {ast.FormattedValue: ("value",), ast.BinOp: ("left", "right"), ast.IfExp: ("body", "orelse")}
    for name in parts.get(type(words), ()):
        setattr(words, name, _guarded(getattr(words, name)))
    call = ast.Call(ast.Name(SHOWN, ast.Load()), [words], [])
    return words if type(words) in parts else ast.copy_location(call, words)


@functools.cache
def constants(source: str) -> frozenset[str]:
    """The texts that a piece of Python holds: words of the course's own."""
    nodes = ast.walk(ast.parse(source))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


class MessageGuard:
    """A value as a hidden check may show it. `known` are the course's own words, `told` what a learner's process said.

    Numbers lose digits beyond a count's, arrays become their shape, and text that holds another process' words is not
    shown. So one value carries no more than some forty bits of what a process would like to tell.
    """

    def __init__(self, known: frozenset[str], told: list[Any]) -> None:
        self.known, self.told = known, told

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | np.bool_):
            return value
        if isinstance(value, np.ndarray | jax.Array) and value.size != 1:
            return describe_array(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            value = value.item()
        if isinstance(value, float):
            return float(f"{value:.3g}")
        if isinstance(value, int):
            return value if abs(value) < LARGEST else NOT_SHOWN
        text = str(value)
        return value if len(text) <= LONGEST and not re.search(r"\d{13}", text) and self.own(text) else NOT_SHOWN

    def own(self, text: str) -> bool:
        """Whether nothing in `text` was written by a learner's process."""
        known = self.known | exception_names()
        return not any(i == MOST_STRINGS or (s in text and s not in known) for i, s in enumerate(_strings(self.told)))


def _strings(told: Any) -> Iterator[str]:
    """Every text in what a process replied."""
    if isinstance(told, str):
        yield from [told] if told else []
    elif isinstance(told, dict):
        yield from _strings([*told.keys(), *told.values()])
    elif isinstance(told, NamedSharding):
        yield from _strings([told.spec, told.mesh])
    elif isinstance(told, Mesh):
        yield from told.axis_names
    elif isinstance(told, tuple | list | PartitionSpec):
        for item in told:
            yield from _strings(item)
