"""Inspection of programs in lessons: errors, times, operations, communication and memory, printed or returned.

    from grader.learning.inspection import print_error, time_ms
    print_error(lambda: jax.grad(jnp.sin)(3))
    one, other = time_ms(lambda: f(x), lambda: g(x))

Lessons import these functions, so that their own cells show one idea each.
"""

from __future__ import annotations

import re
import statistics
import textwrap
import time
from collections.abc import Callable
from typing import Any, overload

import jax

from grader.program.hlo import collectives

WIDTH = 110  # columns: what a notebook's output shows without a scroll bar
_SHARDING = re.compile(r"NamedSharding\(mesh=.*?, spec=(P\w*\(.*?\)), memory_kind=\w+\)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CELL = re.compile(r"(?:line )?[^\s:]*ipykernel_\d+[^\s:]*?\.py:(\d+)(?::\d+)?")  # another path in every run


def print_error(call: Callable[[], Any], length: int = 300) -> None:
    """Runs `call()`, which should fail, and prints its exception: the class and the start of the message.

    Args:
        call: takes no arguments.
        length: the most characters to print, after white space is collapsed, colours are removed, each `NamedSharding`
            is shortened to its spec, and each path of a cell to its line.
    """
    try:
        call()
    except Exception as problem:
        text = " ".join(_COLOUR.sub("", f"{type(problem).__name__}: {problem}").split())
        text = _CELL.sub(r"line \1 of the cell", text)
        text = textwrap.shorten(_SHARDING.sub(r"\1", text), length, placeholder=" ...")
        print(textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))
    else:
        print("No error.")


@overload
def time_ms(call: Callable[[], Any], /, *, repeats: int = 9) -> float: ...
@overload
def time_ms(*calls: Callable[[], Any], repeats: int = 9) -> list[float]: ...
def time_ms(*calls: Callable[[], Any], repeats: int = 9) -> float | list[float]:
    """Measures how long each call takes until its result is ready, without its first call, which may compile.

    Args:
        calls: functions of no arguments. They are called in turn, so that a busy moment of the machine meets them all.
        repeats: number of measurements of each call.

    Returns:
        The median in milliseconds: a float for one call, a list for several.
    """
    for call in calls:
        jax.block_until_ready(call())
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, own in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            own.append(time.perf_counter() - start)
    medians = [1e3 * statistics.median(own) for own in seconds]
    return medians[0] if len(calls) == 1 else medians


def primitives(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns the names of the primitives in the jaxpr of `function(*args)`, in order.

    The body of a loop, a branch or a jitted function is inside one primitive and is not listed.
    """
    return [str(equation.primitive) for equation in jax.make_jaxpr(function)(*args).eqns]


def flops(function: Callable[..., Any], *args: Any) -> float:
    """Returns the floating-point operations of the compiled `function(*args)`, as XLA's cost analysis counts them.

    Args:
        function: is compiled with `jax.jit`, unless it is jitted already.
        args: its arguments; `jax.ShapeDtypeStruct` serves as well as an array, because nothing runs.
    """
    lower = function.lower if hasattr(function, "lower") else jax.jit(function).lower
    return float((lower(*args).compile().cost_analysis() or {}).get("flops", 0.0))


def print_collectives(compiled: Any) -> None:
    """Prints a line for each collective operation of a compiled program: its kind, the number of elements of its result
    on one device, and whether it is inside a loop.

    Args:
        compiled: what `jax.jit(function).lower(*args).compile()` returns.
    """
    found = collectives(compiled.as_text(), devices=1)  # the number of devices is for group sizes, not printed here
    for one in found:
        print(f"{one.kind:18s} {one.elements:>11,} elements{'  inside a loop' if one.in_loop else ''}")
    if not found:
        print("No collectives.")


def bytes_on_device(tree: Any, device: jax.Device | None = None) -> int:
    """Returns the bytes of a tree's arrays that are stored on one device.

    Args:
        tree: a pytree; leaves that are no JAX arrays do not count.
        device: the default is the device with the lowest id among those that store a part of the tree.
    """
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    shards = [shard for array in arrays for shard in array.addressable_shards]
    if device is None:
        device = min((shard.device for shard in shards), key=lambda one: one.id, default=None)
    return sum(shard.data.nbytes for shard in shards if shard.device == device)
