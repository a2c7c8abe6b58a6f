"""Dummy programs: programs with the facts that a check inspects and with wrong results, to see that the check fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grader.checks.verbs import Program, set_program_class, watch_questions
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

    A dummy returns the right results for arguments that its process was asked before it exported the program, and for
    what the program returned for these: an answer that was called with them can put the results into the program.

    Args:
        wrong: which programs become dummies, by the order in which the check compiles them.
        known: arguments for which dummies return the right results nevertheless.
    """

    def __init__(self, wrong: range = range(0), known: frozenset[bytes] = frozenset()) -> None:
        self.wrong, self.known = wrong, known
        self.uses: list[ProgramUse] = []
        self.questions: list[tuple[Any, ...]] = []

    def take_uses(self) -> list[ProgramUse]:
        """Returns what the check that ended did with its programs, and goes on to the next check."""
        used, self.uses = self.uses, []
        self.questions.clear()
        return used

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Within it, programs that checks compile are watched."""
        watch = self

        class WatchedProgram(Program):
            def __init__(self, *fields: Any) -> None:
                super().__init__(*fields)
                object.__setattr__(self, "_is_dummy", len(watch.uses) in watch.wrong)
                object.__setattr__(self, "_use", ProgramUse(_line_of_check()))
                object.__setattr__(self, "_told", _values(watch.questions))
                watch.uses.append(self._use)

            def __getattribute__(self, name: str) -> Any:
                if not name.startswith("_") and name != "run":
                    self._use.inspected = True
                return super().__getattribute__(name)

            def run(self, *data: Any) -> Any:
                results, arguments = super().run(*data), encode(parameters(data)[0])
                self._use.arguments.add(arguments)
                told = _values(data) <= self._told
                if told:
                    self._told.update(_values(results))
                wrong = self._is_dummy and not told and arguments not in watch.known
                return jax.tree.map(falsified, results) if wrong else results

        before = set_program_class(WatchedProgram)
        watch_questions(self.questions)
        try:
            yield
        finally:
            set_program_class(before)
            watch_questions(None)


def _values(data: Any) -> set[bytes]:
    """The arrays in a tree that have values, without their places."""
    arrays = [leaf for leaf in parameters(data)[0] if not isinstance(leaf, jax.ShapeDtypeStruct)]
    return {encode(jax.random.key_data(one) if is_key(one) else np.asarray(one)) for one in arrays}


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
