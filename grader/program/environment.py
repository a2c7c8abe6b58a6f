"""Environment of an answer: CPU devices, and setup names, JAX configuration and mesh as the setup left them."""

from __future__ import annotations

import contextlib
import dis
import os
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

import jax

# What contexts such as `jax.disable_jit()` set, which has no public name. Where a newer JAX keeps it elsewhere, a
# context that an answer leaves open stays open.
try:
    from jax._src.config import config_states
except ImportError:
    config_states = {}

# A device that has reached a collective holds its thread until the others have come. XLA starts one thread for each
# device, and parts of a matrix product wait in line for the same ones: training loops that do not wait for results
# locked up in most runs on two busy cores (jaxlib 0.10.2, which ends the process after 40 s), with 10 threads for
# 8 devices too; with 16, 24 or 64 in none of 200 loops. tests/test_program_cpu_devices.py locks up without this.
THREADS = 3
THREADS_IN_ALL = "PJRT_NPROC"  # XLA's own name, read when the CPU backend is made
_MISSING = object()


def simulate(devices: int) -> None:
    """Has JAX simulate this number of CPU devices, with threads enough that they cannot wait for each other for ever.

    Raises:
        RuntimeError: JAX has made its CPU backend, so counted its devices, before.
    """
    os.environ.setdefault(THREADS_IN_ALL, str(max(os.cpu_count() or 1, THREADS * devices)))
    jax.config.update("jax_num_cpu_devices", devices)


class CellEnvironment:
    """The state after the setup, and which cell changed what since.

    Before the checks of an exercise, setup names that an answer rebound are restored, and so are the configuration and
    the mesh, except for what the exercise's own cell changed: that may be part of the answer.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._names: dict[str, Any] = {}
        self._state: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        self._contexts: dict[str, Any] = {}  # what contexts such as `jax.disable_jit()` have set, by key of the state
        # What the cell that bound a name set last: by key of the state, then by that name.
        self._set: dict[str, dict[str, Any]] = {}

    def after_setup(self, bound: Iterable[str]) -> None:
        """Stores the state now, and the values of the names in `bound`, as what is restored later."""
        self._names |= {name: self.namespace[name] for name in bound if name in self.namespace}
        self._state = self._now = _state()
        self._contexts = {key: state.get_local() for key, state in config_states.items()}
        self._set = {}

    def after_cell(self, bound: Iterable[str], source: str = "") -> None:
        """Notes what the cell that just ran, identified by the names that it binds, set.

        That is what changed, and what its text names: two answers may both turn the same thing on.
        """
        now, names = _state(), list(bound)
        for key, value in now.items():
            setters = self._set.setdefault(key, {})
            spelling = "set_mesh" if key == "mesh" else key
            if _differ(value, self._now.get(key, _MISSING)) or (
                spelling in source and _differ(value, self._state.get(key, _MISSING))
            ):
                setters |= dict.fromkeys(names, value)
            else:
                for name in names:
                    setters.pop(name, None)
        self._now = now

    def before_checks(self, answers: Iterable[str]) -> list[str]:
        """Restores what an exercise with these answer names must not see; returns the setup names restored, without
        those that had only been defined again as they were."""
        rebound = [name for name, value in self._names.items() if self.namespace.get(name, _MISSING) is not value]
        changed = [name for name in rebound if not _same_text(self.namespace.get(name), self._names[name])]
        for name in rebound:
            self.namespace[name] = self._names[name]
        if not self._state:
            return changed
        own = frozenset(answers)
        for key, value in _state().items():
            setters = self._set.get(key, {})
            wanted = next((setters[name] for name in reversed(setters) if name in own), self._state.get(key, value))
            if key == "mesh" and _differ(value, wanted):
                jax.set_mesh(wanted)
            elif _differ(value, wanted):
                # What cannot be changed once devices exist cannot have changed since the setup either.
                with contextlib.suppress(RuntimeError):
                    jax.config.update(key, wanted)
                if _differ(jax.config.values[key], wanted) and key in self._contexts:  # a context was left open
                    config_states[key].set_local(self._contexts[key])
        self._now = _state()
        return changed


CALLING = frozenset({"PUSH_NULL", "PRECALL", "CALL", "CALL_FUNCTION", "CALL_METHOD", "CACHE", "RESUME"})


def _same_text(one: Any, other: Any) -> bool:
    """Whether two functions, or two classes, come from the same text."""
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return _instructions(one.__code__) == _instructions(other.__code__)
    if isinstance(one, type) and isinstance(other, type):
        own, others = ({k: v for k, v in vars(c).items() if isinstance(v, FunctionType)} for c in (one, other))
        same = one.__name__ == other.__name__ and one.__bases__ == other.__bases__ and own.keys() == others.keys()
        return same and all(_same_text(own[name], others[name]) for name in own)
    return False


def _instructions(code: CodeType) -> list[Any]:
    """What a function does. A call of an attribute is compiled in two ways, by where its module was imported."""
    found: list[Any] = []
    for one in dis.get_instructions(code):
        if isinstance(one.argval, CodeType):
            found.append(_instructions(one.argval))
        elif one.opname not in CALLING:
            jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
            found.append((one.opname.replace("LOAD_METHOD", "LOAD_ATTR"), None if jumps else repr(one.argval)))
    return found


def _differ(one: Any, other: Any) -> bool:
    return one is not other and one != other


def _state() -> dict[str, Any]:
    return {**jax.config.values, "mesh": jax.sharding.get_mesh()}
