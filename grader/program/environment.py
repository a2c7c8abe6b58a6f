"""What lies around an answer (setup names, JAX's configuration, the global mesh), kept as the setup left it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import jax

_MISSING = object()


class CellEnvironment:
    """Remembers the state after the setup, and which cell changed what since.

    Before the checks of an exercise, a setup name that any answer rebound is put back, and so are the configuration
    and the mesh, except for what the exercise's own cell changed: it may be part of the answer.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._names: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        self._set: dict[str, dict[str, Any]] = {}  # what the cell that bound a name set last: by key, then by name

    def after_setup(self, bound: Iterable[str]) -> None:
        """Take the state now, and what the names in `bound` hold, as the one to go back to."""
        self._names |= {name: self.namespace[name] for name in bound if name in self.namespace}
        self._state = self._now = _state()
        self._set = {}

    def after_cell(self, bound: Iterable[str], source: str = "") -> None:
        """Note what the cell that just ran, known by the names it binds, set.

        That is what changed, and what its text names: two answers may both turn the same thing on.
        """
        now, names = _state(), list(bound)
        for key, value in now.items():
            changed = _differ(value, self._now.get(key, _MISSING))
            said = self._set.setdefault(key, {})
            if changed or (_spelling(key) in source and _differ(value, self._state.get(key, _MISSING))):
                said |= dict.fromkeys(names, value)
            else:
                for name in names:
                    said.pop(name, None)
        self._now = now

    def before_checks(self, answers: Iterable[str]) -> list[str]:
        """Put back what an exercise with these answer names must not see; returns the setup names put back."""
        rebound = [name for name, value in self._names.items() if self.namespace.get(name, _MISSING) is not value]
        for name in rebound:
            self.namespace[name] = self._names[name]
        if not self._state:
            return rebound
        own = frozenset(answers)
        for key, value in _state().items():
            mine = [setting for name, setting in self._set.get(key, {}).items() if name in own]
            wanted = mine[-1] if mine else self._state[key]
            if _differ(value, wanted):
                _put(key, wanted)
        self._now = _state()
        return rebound


def _differ(one: Any, other: Any) -> bool:
    return one is not other and one != other


def _spelling(key: str) -> str:
    return "set_mesh" if key == "mesh" else key


def _state() -> dict[str, Any]:
    return {**jax.config.values, "mesh": jax.sharding.get_mesh()}


def _put(key: str, value: Any) -> None:
    if key == "mesh":
        jax.set_mesh(value)
        return
    # What cannot be changed once devices exist cannot have changed since the setup either.
    with contextlib.suppress(RuntimeError):
        jax.config.update(key, value)
