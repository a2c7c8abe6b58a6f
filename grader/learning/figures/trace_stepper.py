"""Trace stepper: each line of a function beside the equations that it adds to the jaxpr."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import re
import sys
import textwrap
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
from jax._src import core  # the number of equations recorded so far is not public

from grader.learning.figures.drawing import FONT, LETTER, MARGIN, Drawing
from grader.learning.figures.figure import Figure

MOST_STEPS = 200
LONGEST = 28  # letters of a Python value


def trace_stepper(function: Callable[..., Any], *args: Any, **static: Any) -> Figure:
    """Traces `function` and shows, line by line, which equations Python adds to the jaxpr.

    Args:
        function: is defined in a cell or a file, and may be jitted. Lines of the functions that it calls are shown only
            if they are defined inside it.
        args: its traced arguments: arrays, or containers of arrays.
        static: its keyword arguments, which stay Python values.

    Raises:
        TypeError: `function` is not callable.
        ValueError: its source is not available, or its loops run more than 200 lines.
    """
    if not callable(function):
        raise TypeError(
            f"Pass the function itself and its arguments, not its result of type {type(function).__name__}."
        )
    plain = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(plain)
    except (OSError, TypeError):
        raise ValueError("The source of this function is not available. Define it with `def` in a cell.") from None
    recorder = Recorder(plain.__code__, first, first + len(lines))
    jaxpr = recorder.trace(lambda *traced: plain(*traced, **static), args)
    inputs, equations, outputs = printed_parts(jaxpr.pretty_print(use_color=False), len(jaxpr.eqns))
    source = textwrap.dedent("".join(lines)).rstrip().splitlines()
    name = getattr(plain, "__name__", "function")
    data: dict[str, Any] = {
        "title": f"Tracing {name}: Python on the left, the program on the right",
        "name": name,
        "source": source,
        "inputs": inputs,
        "equations": equations,
        "outputs": outputs,
        "steps": recorder.steps(len(equations)),
    }
    added = [step for step in data["steps"] if step["new"]]
    alt = f"The trace of {name}. " + " ".join(
        f"Line {step['line'] + 1}, {source[step['line']].strip()}, adds {'; '.join(equations[i] for i in step['new'])}."
        for step in added
        if step["line"] is not None
    )
    return Figure("trace_stepper.js", data, alt, _picture(source, equations, added))


class Recorder:
    """The lines that Python runs while it traces a function, with the tracers, the output and the equations so far."""

    def __init__(self, code: Any, first: int, end: int) -> None:
        self._file, self._first, self._end = code.co_filename, first, end
        self._events: list[dict[str, Any]] = []
        self._printed = io.StringIO()
        self._trace: Any = None

    def trace(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Returns the closed jaxpr of `function(*args)`."""
        before = sys.gettrace()
        try:
            with contextlib.redirect_stdout(self._printed):
                sys.settrace(self._enter)
                return jax.make_jaxpr(function)(*args)
        finally:
            sys.settrace(before)

    def steps(self, equations: int) -> list[dict[str, Any]]:
        """For each line that ran: its place, the equations that it added, and variables and output after it."""
        last: dict[str, Any] = {"line": None, "count": equations, "printed": self._printed.getvalue(), "variables": []}
        events = [*self._events, last]
        found, outer = [], events[0]["variables"]
        found.append({"line": None, "new": [], "printed": "", "variables": outer})
        for now, after in itertools.pairwise(events):
            new = list(range(now["count"], min(after["count"], equations)))
            variables = after["variables"] or now["variables"]
            found.append({"line": now["line"], "new": new, "printed": after["printed"], "variables": variables})
        return found

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename != self._file or not self._first <= code.co_firstlineno < self._end:
            return None
        if self._trace is None:
            self._trace = core.trace_ctx.trace
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            if len(self._events) == MOST_STEPS:
                raise ValueError(
                    f"While tracing, Python runs more than {MOST_STEPS} lines of this function. Make its loops shorter."
                )
            self._events.append(
                {
                    "line": frame.f_lineno - self._first,
                    "count": len(self._trace.frame.tracing_eqns),
                    "printed": self._printed.getvalue(),
                    "variables": [[name, *described(value)] for name, value in frame.f_locals.items() if shown(value)],
                }
            )
        return self._line


def shown(value: Any) -> bool:
    """Whether a variable is listed: functions, classes and modules are not."""
    return not (callable(value) or inspect.ismodule(value))


def described(value: Any) -> tuple[str, str]:
    """A variable's type, if it is or contains a tracer or an array, else its value; and which of them it is."""
    leaves = jax.tree.leaves(value)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        types = jax.tree.map(lambda leaf: Name(jax.typeof(leaf)), value)
        return textwrap.shorten(str(types), 2 * LONGEST, placeholder=" …"), "traced"
    if any(hasattr(leaf, "dtype") and getattr(leaf, "ndim", 0) for leaf in leaves):
        types = jax.tree.map(lambda leaf: Name(jax.typeof(leaf)), value)
        return textwrap.shorten(str(types), 2 * LONGEST, placeholder=" …"), "constant"
    return textwrap.shorten(repr(value), LONGEST, placeholder=" …"), "Python value"


class Name:
    """A text that is printed without quotes."""

    def __init__(self, value: Any) -> None:
        self._text = str(value)

    def __repr__(self) -> str:
        return self._text


def printed_parts(jaxpr: str, count: int) -> tuple[str, list[str], str]:
    """A printed jaxpr in three parts: its first line, its equations in one line each, with long parameters shortened,
    and its last line."""
    if "\n" not in jaxpr:  # short enough for one line
        inputs, let, rest = jaxpr.partition(". let")
        equation, _, outputs = rest.rpartition("in ")
        return inputs + let, [equation.strip()] * count, f"  in {outputs}"
    start = list(re.finditer(r"^\{ lambda.*?\. let$", jaxpr, re.MULTILINE | re.DOTALL))[-1]
    body, _, outputs = jaxpr[start.end() :].rpartition("\n  in ")
    texts: list[str] = []
    for line in body.splitlines():
        if re.match(r"    [^\s\]]", line):
            texts.append(line.strip())
        elif line.strip():
            texts[-1] += "\n" + line
    assert len(texts) == count, "the printed jaxpr has another form than this module reads"
    return " ".join(start[0].split()), [_one_line(text) for text in texts], f"  in {outputs}"


def _one_line(text: str) -> str:
    head, *rest = text.splitlines()
    if not rest:
        return head
    if not head.endswith("["):
        return " ".join([head, *(line.strip() for line in rest)])
    close = next((index for index, line in enumerate(rest) if re.match(r"    \]", line)), len(rest) - 1)
    tail = " ".join(line.strip() for line in rest[close:])
    return f"{head}{rest[0].strip()}{' …' if close > 1 else ''}{tail}"


def _picture(source: list[str], equations: list[str], added: list[dict[str, Any]]) -> str:
    """The lines of the source on the left, and beside each the equations that it added."""
    drawing = Drawing()
    right = 2 * MARGIN + LETTER * (5 + max(map(len, source)))
    y = float(MARGIN + FONT)
    for number, line in enumerate(source):
        drawing.text(MARGIN, y, f"{number + 1:2d}  {line}")
        for index in (index for step in added if step["line"] == number for index in step["new"]):
            drawing.text(right, y, equations[index])
            y += 1.5 * FONT
        y = max(y, MARGIN + FONT)
        if not any(step["line"] == number for step in added):
            y += 1.5 * FONT
    return drawing.svg()
