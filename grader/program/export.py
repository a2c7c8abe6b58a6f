"""Export of a function at its arguments' shapes: a program in bytes, its result's tree, its donations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
from jax._src import config, debugging  # one has no public context manager, the other no public primitives

from grader.program.codec import DICTS, Classes, Slot, abstract, is_array, is_own_tuple
from grader.program.payload import Unsendable


class CallsPython(Exception):
    """A function calls back into Python while it runs."""


@dataclass(frozen=True)
class Exported:
    """A program in bytes.

    Attributes:
        blob: what `jax.export` serialized.
        parameters: its abstract arrays in order.
        donated: positions among `parameters` that the function donates.
        results: the result's tree, with a `Slot` for each array and closed-over data elsewhere.
    """

    blob: bytes
    parameters: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...]
    results: Any


def parameters(args: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Returns the array leaves of `args`, and a function that returns `args` with other leaves in their places."""
    leaves, tree = jax.tree.flatten(args, is_leaf=lambda leaf: leaf is None)
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]

    def rebuild(arrays: list[Any]) -> Any:
        filled = dict(enumerate(leaves)) | dict(zip(places, arrays, strict=True))
        return jax.tree.unflatten(tree, filled.values())

    return [leaves[place] for place in places], rebuild


def export(function: Callable[..., Any], args: tuple[Any, ...], classes: Classes | None = None) -> Exported:
    """Traces and exports `function(*args)` over the flat array leaves of `args`; other leaves are closed over.

    The ambient mesh and the arguments' NamedShardings are part of the program; `jax.debug` calls are left out.

    Args:
        function: a Python function or a transformed one, `jax.jit` included.
        args: trees whose array leaves give shape, dtype and sharding of the parameters; their values are not used.
        classes: named tuple classes that a result may be, by name.

    Raises:
        Unsendable: a part of the result is neither an array nor data.
        CallsPython: the program calls Python while it runs.
        Exception: whatever the function raises while it is traced.
    """
    arrays, rebuild = parameters(args)
    shapes = tuple(abstract(array) for array in arrays)
    seen: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        results: list[Any] = []
        seen.append(_skeleton(function(*rebuild(list(leaves))), results, classes or {}))
        return results

    # Without source locations, the same program has the same bytes.
    with _silent_prints(), config.traceback_in_locations_limit(0):
        jitted = jax.jit(flat)
        donated = _donated(jitted.trace(*shapes).jaxpr)
        if donated:
            jitted = jax.jit(flat, donate_argnums=donated)
        blob = _bytes(jitted, shapes)
        if blob is None:
            # An inner jit that ran before may hold a trace with prints in it: forget those traces and try once more.
            jax.clear_caches()
            blob = _bytes(jax.jit(lambda *leaves: flat(*leaves), donate_argnums=donated), shapes)
    if blob is None:
        raise CallsPython("it calls Python while it runs (pure_callback, io_callback), so it cannot run without Python")
    return Exported(blob, shapes, donated, seen[-1])


def _bytes(jitted: Any, shapes: tuple[Any, ...]) -> bytes | None:
    """The exported program; None where it calls Python or has another effect, which no bytes can contain."""
    try:
        return bytes(jax.export.export(jitted)(*shapes).serialize())
    except NotImplementedError as problem:
        if "host_callbacks" not in str(problem) and "effect" not in str(problem).lower():
            raise
        return None


def _donated(jaxpr: Any) -> tuple[int, ...]:
    """Positions of the parameters that an inner `jit` donates: an outer jit alone would forget them."""
    places = {var: i for i, var in enumerate(jaxpr.jaxpr.invars)}
    donated = {
        places[var]
        for equation in jaxpr.jaxpr.eqns
        for var, flag in zip(equation.invars, equation.params.get("donated_invars", ()), strict=False)
        if flag and type(var).__name__ == "Var" and var in places
    }
    return tuple(sorted(donated))


@contextlib.contextmanager
def _silent_prints() -> Iterator[None]:
    """A print is no reason to refuse a program: the debug primitives are bound to nothing meanwhile."""
    primitives = [debugging.debug_callback_p, debugging.debug_print_p, debugging.inspect_sharding_p]
    dropped: list[Any] = []

    def nothing(*args: Any, **params: Any) -> list[Any]:
        dropped.append(params)
        return []

    for primitive in primitives:
        primitive.bind = nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        for primitive in primitives:
            del primitive.bind
        if dropped:
            jax.clear_caches()  # else an inner jit keeps the trace without prints, and never prints again


def _skeleton(value: Any, results: list[Any], classes: Classes) -> Any:
    kind = type(value)
    if is_array(value) and not isinstance(value, jax.ShapeDtypeStruct):
        results.append(value)
        return Slot(len(results) - 1)
    if kind in (tuple, list):
        return kind(_skeleton(item, results, classes) for item in value)
    if kind in DICTS:
        return {key: _skeleton(item, results, classes) for key, item in value.items()}
    if isinstance(value, tuple) and kind in classes.values():
        return kind(*(_skeleton(item, results, classes) for item in value))
    if is_own_tuple(value):
        return tuple(_skeleton(item, results, classes) for item in value)
    if kind not in (type(None), bool, int, float, complex, str, type(...)):
        raise Unsendable(kind.__name__)
    return value


def slots(skeleton: Any) -> list[int]:
    """Returns the indices of all slots of a tree that `fill` takes, in its order."""
    if isinstance(skeleton, Slot):
        return [skeleton.index]
    inner = skeleton.values() if isinstance(skeleton, dict) else skeleton if isinstance(skeleton, tuple | list) else ()
    return [index for item in inner for index in slots(item)]


def fill(skeleton: Any, arrays: Any) -> Any:
    """Returns the tree `skeleton` with each `Slot` replaced by its array in `arrays`."""
    if isinstance(skeleton, Slot):
        return arrays[skeleton.index]
    if isinstance(skeleton, tuple) and hasattr(skeleton, "_fields"):
        return type(skeleton)(*(fill(item, arrays) for item in skeleton))
    if isinstance(skeleton, tuple | list):
        return type(skeleton)(fill(item, arrays) for item in skeleton)
    if isinstance(skeleton, dict):
        return {key: fill(item, arrays) for key, item in skeleton.items()}
    return skeleton
