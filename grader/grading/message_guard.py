"""Guard of hidden messages: every one consists of words of the course and the grader, and of a few short numbers.

A learner's process knows what a hidden check asked, and may put that into whatever it replies: a name, an exception's
class, a shape, a count. So each value that a check puts into its message (`f"It was traced {calls} times."`) is looked
at before it is put in, and each whole message once more before it leaves: the rule does not depend on who wrote it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grader.checks.compare import describe_hidden
from grader.checks.outcomes import CheckFailed
from grader.checks.verbs import exception_names
from grader.core.layout import PACKAGE
from grader.core.symbols import JUDGING
from grader.program.codec import DTYPES, KEY_IMPLS, is_key

NOT_SHOWN = "(not shown)"
# A count below EXACT is shown as it is, and below OURS if the learner's process told no such number; a larger one by
# its first digit, from LARGEST on (a large model's bytes) none.
EXACT, OURS, LARGEST = 10**4, 10**6, 10**12
LONGEST, MOST_NUMBERS, MOST_STRINGS = 200, 4, 1_000  # of one value: characters, numbers in it, texts that were told
MOST_TOKENS = 16  # groups of digits in one message; one from EXACT on counts twice
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d{1,12}(e\d{0,2})?")
_TYPES = "NoneType|bool|int|float|complex|str|tuple|list|dict|set|range|map|zip|function|method|module|type|generator"
_TYPE = (
    rf"'(?:{_TYPES}|(?:jaxlib\._jax\.)?ArrayImpl|numpy\.ndarray|(?:DynamicJaxpr|Jit|JVP|Batch)Tracer|PartitionSpec)'"
)
# What Python says of types and lengths alone.
_PYTHONS = re.compile(
    rf"{_TYPE} object (?:is not (?:callable|iterable|subscriptable)|does not support item (?:assignment|deletion))"
    rf"|(?:object of type {_TYPE} has no len\(\)|argument of type {_TYPE} is not iterable)"
    rf"|unsupported operand type\(s\) for [-+*/%@&|^<>=]{{1,3}}(?: or pow\(\))?: {_TYPE} and {_TYPE}"
    rf"|cannot unpack non-iterable {_TYPE.replace(chr(39), '')} object"
    r"|(?:not enough|too many) values to unpack \(expected \d{1,4}(?:, got \d{1,4})?\)"
    r"|(?:list|tuple|string) index out of range|pop from empty list|(?:float )?division by zero"
)
_SIZES = r"\(?\d{1,4}(?:, \d{1,4}){0,3},?\)?"  # a number or a shape
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


@functools.cache
def _raised(source: str) -> tuple[re.Pattern[str], ...]:
    """What the functions in a piece of Python raise, with a number or a shape in the place of a value."""
    calls = (node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise))
    texts = [call.args[0] for call in calls if isinstance(call, ast.Call) and call.args]
    parts = [text.values if isinstance(text, ast.JoinedStr) else [text] for text in texts]
    return tuple(
        re.compile("".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else _SIZES for p in some))
        for some in parts
    )


@functools.cache
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


@functools.cache
def _words_of_ours() -> frozenset[str]:
    """Every word with which `grader.checks` makes messages, and the names of dtypes."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((PACKAGE / "checks").glob("*.*"))]
    return _words("\n".join(texts)) | _words(" ".join((*DTYPES, *KEY_IMPLS)))


class _Words(str):
    """Words in the place of a number, whatever format is asked for."""

    def __format__(self, spec: str) -> str:
        return str(self)

    __repr__ = str.__str__


def _magnitude(value: int) -> _Words:
    """A large number by its first digit, such as `over 40,000`."""
    if abs(value) >= LARGEST:
        return _Words(NOT_SHOWN)
    unit = 10 ** (len(str(abs(value))) - 1)
    return _Words(f"{'over' if value > 0 else 'below'} {int(value / unit) * unit:,}")


class MessageGuard:
    """Guards the messages of one hidden check. `source` is the course's text: the lesson's setup and the check.

    `told` is what the learner's process said. Of that a message contains no word, and numbers of so few digits, and so
    few of them, that they carry some hundred bits at most.
    """

    def __init__(self, source: str, told: list[Any]) -> None:
        self.source, self.told = source, told

    def __call__(self, value: Any) -> Any:
        """Returns the value where it may be shown, or what is shown in its place."""
        if value is None or isinstance(value, bool | np.bool_):
            return value
        if isinstance(value, np.ndarray | jax.Array) and value.size != 1:
            return describe_hidden(value)
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            value = value.item()
        if isinstance(value, float):
            return float(f"{value:.3g}")
        if isinstance(value, int):
            ours = abs(value) < EXACT or (abs(value) < OURS and not _told(value, self.told))
            return value if ours else _magnitude(value)
        if type(value) in (tuple, list):
            return type(value)(map(self, value)) if len(value) <= MOST_NUMBERS else _Words(NOT_SHOWN)
        if isinstance(value, str) and value in constants(self.source):
            return value
        text = str(value)
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        short = len(text) <= LONGEST and len(numbers) <= MOST_NUMBERS and max(numbers, default=0) < EXACT
        return value if short and self.own(text) else _Words(NOT_SHOWN)

    def own(self, text: str) -> bool:
        """Whether nothing in `text` was written by a learner's process."""
        known = constants(self.source) | exception_names()
        return not any(i == MOST_STRINGS or (s in text and s not in known) for i, s in enumerate(_strings(self.told)))

    def failure(self, failed: CheckFailed) -> str:
        """Returns the message of a failure. Of an exception it holds what the course's own functions or Python said, if
        no word of it is the learner's. The line that raised is not shown: the learner's process chooses it."""
        if failed.kind != "raised":
            # The place of what is no data is a name of the learner's.
            return self.message(failed.hidden_message, "" if failed.kind == "unsendable" else failed.where)
        said, shown = failed.raised, self.message(failed.hidden_message)
        if any(pattern.fullmatch(said) for pattern in (_PYTHONS, *_raised(self.source))):
            shown = f"{shown.rstrip('.')}: {said.rstrip('.')}."
        return shown

    def message(self, text: str, where: str = "") -> str:
        """Returns a message without words that are neither the course's nor the grader's, and with few numbers. `where`
        is a path in the result that the check wants, whose names it may have put together."""
        numbers = itertools.count()

        def own(word: str) -> bool:
            if _DIGITS.fullmatch(word):
                return max(next(numbers) for _ in range(1 + (len(word) >= len(str(EXACT))))) < MOST_TOKENS
            known = (_words_of_ours(), _words(self.source), _words(where))
            return any(word.lower() in words for words in known) or word in exception_names()

        return _WORD.sub(lambda word: word[0] if own(word[0]) else NOT_SHOWN, text)


def _told(number: int, told: Any) -> bool:
    """Whether this whole number is in what a process replied, the sizes of arrays among it."""
    if isinstance(told, dict):
        return any(_told(number, one) for pair in told.items() for one in pair)
    if isinstance(told, tuple | list):
        return any(_told(number, one) for one in told)
    if isinstance(told, np.ndarray | jax.Array | jax.ShapeDtypeStruct):
        values = isinstance(told, np.ndarray) or (isinstance(told, jax.Array) and not is_key(told))
        return number in (*told.shape, told.size) or (values and bool(np.any(np.asarray(told) == number)))
    return isinstance(told, int | float | np.generic) and bool(told == number)


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
