"""Axis mover: which elements of the arguments and of the result belong to which example under `jax.vmap`."""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grader.learning.figures.drawing import FONT, MARGIN, Drawing
from grader.learning.figures.figure import Figure
from grader.learning.plots import DEVICES, PAPER

MOST_ELEMENTS = 64
MOST_ARGUMENTS = 3
CELL = 30  # pixels, in the static picture
Axis = int | None
Axes = Axis | Sequence[Axis]


def axis_mover(function: Callable[..., Any], *args: Any, in_axes: Axes = 0, out_axes: int = 0) -> Figure:
    """Shows what each example receives and returns under `jax.vmap(function, in_axes, out_axes)`, for every choice.

    The positions of the elements are passed through `jax.vmap`, so the figure shows where its results come from.

    Args:
        function: takes one example and returns one array of at most one axis.
        args: up to three arrays with one or two axes and at most 64 entries each, with the examples.
        in_axes: the choice to start with, as for `jax.vmap`: a number or None for all arguments, or one for each.
        out_axes: the position of the mapped axis in the result to start with.

    Raises:
        TypeError: `function` is not callable.
        ValueError: an argument, or `in_axes` or `out_axes`, does not fit the figure.
    """
    if not callable(function):
        raise TypeError(
            f"Pass the function itself and its arguments, not its result of type {type(function).__name__}."
        )
    arrays = [_array(number, one) for number, one in enumerate(args)]
    if not 0 < len(arrays) <= MOST_ARGUMENTS:
        raise ValueError(f"This figure draws one to {MOST_ARGUMENTS} arguments, not {len(arrays)}.")
    given: list[Any] = list(in_axes) if isinstance(in_axes, (list, tuple)) else [in_axes] * len(arrays)
    if len(given) != len(arrays):
        raise ValueError(f"in_axes has {len(given)} entries for {len(arrays)} arguments. Pass one for each of them.")
    start = [_axis(f"in_axes[{i}]", one, array.ndim) for i, (one, array) in enumerate(zip(given, arrays, strict=True))]
    options = [[*range(array.ndim), None] for array in arrays]
    cases = _cases(function, arrays, list(itertools.product(*options)))
    first = cases[_key(start)]
    names = _names(function, len(arrays))
    out = _axis("out_axes", out_axes, len(first["outs"]) or 1)
    data: dict[str, Any] = {
        "title": f"vmap of {getattr(function, '__name__', 'a function')}: which element goes to which example?",
        "arguments": [{"name": name, "shape": a.shape} for name, a in zip(names, arrays, strict=True)],
        "start": {"in": start, "out": out},
        "cases": cases,
        "colours": DEVICES,
    }
    return Figure("axis_mover.js", data, _description(data, first), _picture(data, first))


def _array(number: int, value: Any) -> np.ndarray:
    """The positions of the elements of an argument, after its shape was checked."""
    if not hasattr(value, "shape"):
        raise ValueError(
            f"Argument {number} is a {type(value).__name__}. This figure draws arrays; bind the rest first."
        )
    if not 1 <= len(value.shape) <= 2 or math.prod(value.shape) > MOST_ELEMENTS:
        raise ValueError(
            f"Argument {number} has shape {tuple(value.shape)}. This figure draws arrays of one or two axes and at "
            f"most {MOST_ELEMENTS} entries. Pass a slice."
        )
    return np.asarray(value)


def _axis(name: str, axis: Axis, ndim: int) -> Axis:
    if axis is None and name != "out_axes":
        return None
    if not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ValueError(f"{name} is {axis!r}. It can be a number from {-ndim} to {ndim - 1}{_or_none(name)}.")
    return axis % ndim


def _or_none(name: str) -> str:
    return "" if name == "out_axes" else " or None"


def _names(function: Callable[..., Any], count: int) -> list[str]:
    try:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument {i}" for i in range(count)]


def _key(axes: Sequence[Axis]) -> str:
    return ",".join(map(str, axes))


def _cases(function: Callable[..., Any], arrays: list[np.ndarray], choices: list[Sequence[Axis]]) -> dict[str, Any]:
    """What vmap does with each choice of `in_axes`: the owner of each element, by the results of vmap, or its error."""
    results = {_key(axes): _result(function, arrays, axes) for axes in choices}
    positions = [np.arange(array.size).reshape(array.shape) for array in arrays]
    drawn = [axes for axes in choices if not isinstance(results[_key(axes)], str)]
    shapes = {_key(axes): results[_key(axes)].shape for axes in drawn}
    # one program for all choices, which compiles faster
    moved = jax.jit(lambda: {_key(axes): _moved(shapes[_key(axes)], positions, axes) for axes in drawn})()
    found: dict[str, Any] = {}
    for axes in choices:
        key = _key(axes)
        if key not in shapes:
            found[key] = {"note": results[key], "outs": []}
            continue
        received, outs = moved[key]
        found[key] = {
            "count": shapes[key][0],
            "owners": [
                _owners(a, np.asarray(part), axis) for a, part, axis in zip(arrays, received, axes, strict=True)
            ],
            "shapes": [part.shape[1:] for part in received],
            "result": shapes[key][1:],
            "outs": [{"shape": out.shape, "owners": np.asarray(out).ravel().tolist()} for out in outs],
        }
    return found


def _result(function: Callable[..., Any], arrays: list[np.ndarray], axes: Sequence[Axis]) -> Any:
    """The shape of the result, or why there is none to draw."""
    try:
        result = jax.eval_shape(jax.vmap(function, in_axes=tuple(axes)), *arrays)
    except Exception as problem:
        text = f"{type(problem).__name__}: {str(problem).split(chr(10) * 2)[0]}"
        return f"vmap raises {textwrap.shorten(text, 260, placeholder=' …')}"
    if not hasattr(result, "shape"):
        raise ValueError("The function returns a container. This figure draws one array as the result.")
    if len(result.shape) > 2:
        return f"The result has the shape {result.shape}. This figure draws at most two axes."
    return result


def _moved(shape: tuple[int, ...], positions: list[np.ndarray], axes: Sequence[Axis]) -> Any:
    """The positions that each example receives, and for each `out_axes` the examples that the result comes from."""
    received = jax.vmap(lambda *parts: parts, in_axes=tuple(axes))(*positions)
    outs = [jax.vmap(lambda i: jnp.full(shape[1:], i), out_axes=out)(jnp.arange(shape[0])) for out in range(len(shape))]
    return received, outs


def _owners(array: np.ndarray, received: np.ndarray, axis: Axis) -> list[int | None]:
    """For each element of an argument the example that received it; None if all did."""
    owners: list[int | None] = [None] * array.size
    if axis is not None:
        for example, part in enumerate(received):
            for position in part.ravel():
                owners[int(position)] = example
    return owners


def _description(data: dict[str, Any], case: dict[str, Any]) -> str:
    axes = ", ".join(
        f"{one['name']} of shape {tuple(one['shape'])} along {axis}"
        for one, axis in zip(data["arguments"], data["start"]["in"], strict=True)
    )
    if "note" in case:
        return f"{data['title']} in_axes: {axes}. {case['note']}"
    out = data["start"]["out"]
    return (
        f"{data['title']} in_axes: {axes}. {case['count']} examples. One example receives the shapes "
        f"{', '.join(str(tuple(shape)) for shape in case['shapes'])} and returns the shape {tuple(case['result'])}. "
        f"With out_axes {out}, the result has the shape {tuple(case['outs'][out]['shape'])}."
    )


def _picture(data: dict[str, Any], case: dict[str, Any]) -> str:
    """The arguments and the result; the number in an element is that of its example."""
    drawing, x = Drawing(), float(MARGIN)
    if "note" in case:
        drawing.text(MARGIN, MARGIN + FONT, case["note"])
        return drawing.svg()
    out = data["start"]["out"]
    tables = [
        (f"{one['name']}, in_axes {axis}", one["shape"], owners)
        for one, axis, owners in zip(data["arguments"], data["start"]["in"], case["owners"], strict=True)
    ]
    for title, shape, owners in [*tables, (f"result, out_axes {out}", *case["outs"][out].values())]:
        columns = shape[-1]
        drawing.text(x, MARGIN + FONT, title)
        for position, owner in enumerate(owners):
            row, column = divmod(position, columns)
            fill = PAPER if owner is None else DEVICES[owner % len(DEVICES)]
            label = "*" if owner is None else str(owner)
            drawing.box(x + column * CELL, 2 * MARGIN + FONT + row * CELL, CELL, CELL, fill, label)
        x = drawing.width + 2 * MARGIN
    return drawing.svg()
