"""Dummy programs: programs with the facts that a check inspects and with wrong results, to see that the check fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grader.checks.verbs import Program, set_program_class
from grader.program.codec import encode, is_array, is_key
from grader.program.export import parameters


class ProgramUse:
    """What a check does with one of its programs; `line` is where in the check the program is compiled."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.inspected = False
        self.arguments: set[bytes] = set()  # that it is run on

    @property
    def value_only(self) -> bool:
        """Whether the program is run, and nothing else is read from it."""
        return bool(self.arguments) and not self.inspected


class ProgramWatch:
    """Watches the programs of one check at a time, and makes some of them dummies.

    Args:
        wrong: which programs become dummies, by the order in which the check compiles them.
        known: arguments for which dummies return the right results nevertheless.
    """

    def __init__(self, wrong: range = range(0), known: frozenset[bytes] = frozenset()) -> None:
        self.wrong, self.known = wrong, known
        self.uses: list[ProgramUse] = []

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Within it, programs that checks compile are watched."""
        watch = self

        class WatchedProgram(Program):
            def __init__(self, *fields: Any) -> None:
                super().__init__(*fields)
                object.__setattr__(self, "_is_dummy", len(watch.uses) in watch.wrong)
                object.__setattr__(self, "_use", ProgramUse(_line_of_check()))
                watch.uses.append(self._use)

            def __getattribute__(self, name: str) -> Any:
                if not name.startswith("_") and name != "run":
                    self._use.inspected = True
                return super().__getattribute__(name)

            def run(self, *data: Any) -> Any:
                results, arguments = super().run(*data), encode(parameters(data)[0])
                self._use.arguments.add(arguments)
                wrong = self._is_dummy and arguments not in watch.known
                return jax.tree.map(falsified, results) if wrong else results

        before = set_program_class(WatchedProgram)
        try:
            yield
        finally:
            set_program_class(before)


def _line_of_check() -> int:
    """The line of the check that is running."""
    frame = sys._getframe()
    while not frame.f_code.co_filename.startswith("<check "):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_lineno


def falsified(value: Any) -> Any:
    """An array of the same shape and dtype, no element of which equals that of `value`; other data as it is."""
    if not is_array(value):
        return value
    if is_key(value):
        return jax.random.wrap_key_data(~jax.random.key_data(value), impl=jax.random.key_impl(value))
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return ~value
    of = np if isinstance(value, np.ndarray | np.generic) else jnp
    finite = of.where(of.isfinite(value), value, 0)
    return of.where(abs(finite) < 1, finite + 2, finite / 2)
