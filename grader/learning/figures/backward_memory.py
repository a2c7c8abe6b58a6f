"""Memory of a backward pass: the arrays that a gradient stores after each equation, with or without recomputation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Literal

from grader.learning.figures.drawing import FONT, MARGIN, Drawing
from grader.learning.figures.figure import Figure
from grader.learning.plots import COLOURS

MOST_EQUATIONS = 600
MOST_FUNCTIONS = 6
LOOPS = ("scan", "while")
WIDTH, HEIGHT = 620, 200  # pixels of the static picture
Loss = Callable[..., jax.Array]


@dataclass(eq=False)
class Value:
    """An array of the program.

    Attributes:
        label: the primitive that computes it, and its type.
        size: in bytes.
        start, end: the equations that compute it and use it last; `start` is -1 for arguments and constants.
        residual: whether the forward pass stores it for the backward pass.
    """

    label: str
    size: int
    start: int = -1
    end: int = -1
    residual: bool = False


@dataclass
class Equation:
    """One operation, after calls such as those of `jax.jit` and `jax.checkpoint` were replaced by their bodies."""

    name: str
    reads: list[Value]
    results: list[Value]
    forward: bool
    effects: bool


def backward_memory(losses: Loss | Mapping[str, Loss], *args: Any) -> Figure:
    """Shows which arrays are stored after each equation of a gradient, and which of them are residuals.

    The equations run in the order of the jaxpr, and each result is counted as an array. A compiler may reorder and fuse
    equations, so its temporary memory differs.

    Args:
        losses: a function that returns a scalar, or a dict from names to such functions, for example with and without
            `jax.checkpoint`. A loop in `jax.lax` counts as a single equation, so use a Python loop over the layers.
        args: their arguments. The gradient is taken with respect to the first one.

    Raises:
        TypeError: a loss is not callable or does not return a scalar.
        ValueError: there are too many functions or equations.
    """
    named = dict(losses) if isinstance(losses, Mapping) else {getattr(losses, "__name__", "loss"): losses}
    if not 0 < len(named) <= MOST_FUNCTIONS:
        raise ValueError(f"This figure compares 1 to {MOST_FUNCTIONS} functions, not {len(named)}.")
    for name, loss in named.items():
        if not callable(loss):
            raise TypeError(f"The loss {name!r} is a {type(loss).__name__}. Pass a function that returns a scalar.")
    programs = {name: program_of_gradient(name, loss, args) for name, loss in named.items()}
    data: dict[str, Any] = {"title": "The memory of a backward pass", "programs": programs}
    alt = "Bytes stored after each equation of a gradient, in addition to its arguments. " + " ".join(
        f"{name}: at most {one['peak']:,} bytes, of which residuals at the end of the forward pass {one['stored']:,}."
        for name, one in programs.items()
    )
    return Figure("backward_memory.js", data, alt, _picture(programs))


def program_of_gradient(name: str, loss: Loss, args: tuple[Any, ...]) -> dict[str, Any]:
    """The equations of the gradient and the arrays that they store."""
    equations = equations_of_gradient(name, loss, args)
    if len(equations) > MOST_EQUATIONS:
        raise ValueError(
            f"The gradient of {name} has {len(equations)} equations. Use fewer layers; at most {MOST_EQUATIONS}."
        )
    values = list({id(one): one for equation in equations for one in equation.results}.values())
    live = [sum(one.size for one in values if one.start <= at <= one.end) for at in range(len(equations))]
    forward = sum(equation.forward for equation in equations)
    return {
        "equations": [equation.name for equation in equations],
        "forward": forward,
        "values": [[one.label, one.size, one.start, one.end, one.residual] for one in values],
        "live": live,
        "peak": max(live, default=0),
        "stored": sum(one.size for one in values if one.residual),
        "loops": sum(equation.name in LOOPS for equation in equations),
    }


def equations_of_gradient(name: str, loss: Loss, args: tuple[Any, ...]) -> list[Equation]:
    """The equations of the forward and the backward pass of `jax.grad(loss)(*args)` that its result needs."""
    out = jax.eval_shape(loss, *args)
    if getattr(out, "shape", None) != ():
        raise TypeError(f"The loss {name!r} returns {out}. A gradient needs a scalar.")
    first, rest = args[0], args[1:]

    def forward(first: Any, *rest: Any) -> Any:
        return jax.vjp(lambda first: loss(first, *rest), first)

    ahead, (value, stored) = jax.make_jaxpr(forward, return_shape=True)(first, *rest)
    back = jax.make_jaxpr(lambda stored, seed: stored(seed))(stored, value)
    equations: list[Equation] = []
    arguments = [_value("argument", variable) for variable in ahead.jaxpr.invars]
    _, *residuals = _inline(ahead.jaxpr, _constants(ahead), arguments, equations, True)
    seed = _value("seed", back.jaxpr.invars[-1])
    gradient = _inline(back.jaxpr, _constants(back), [*residuals, seed], equations, False)
    return _scheduled(equations, residuals, gradient)


def _value(label: str, variable: Any) -> Value:
    aval = variable.aval
    size = int(getattr(aval, "size", 0)) * getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return Value(f"{label} {aval.str_short()}", size)


def _constants(closed: Any) -> list[Value]:
    return [_value("constant", variable) for variable in closed.jaxpr.constvars]


def _inline(
    jaxpr: Any, constants: list[Value], inputs: list[Value], equations: list[Equation], forward: bool
) -> list[Value]:
    """Appends the equations of a jaxpr, with those of the functions that it calls; returns its results."""
    known: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def read(atom: Any) -> Value:
        return _value("constant", atom) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        reads = [read(atom) for atom in equation.invars]
        name = str(equation.primitive)
        body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if body is None or name in LOOPS:
            results = [_value(name, variable) for variable in equation.outvars]
            equations.append(Equation(name, reads, results, forward, bool(equation.effects)))
        else:
            inner = getattr(body, "jaxpr", body)
            held = _constants(body) if hasattr(body, "consts") else []
            results = _inline(inner, held, reads, equations, forward)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _scheduled(equations: list[Equation], residuals: list[Value], gradient: list[Value]) -> list[Equation]:
    """Leaves out what the result does not need, and notes when each array is computed and used last."""
    needed, kept = {id(one) for one in gradient}, []
    for equation in reversed(equations):
        if equation.effects or any(id(one) in needed for one in equation.results):
            needed |= {id(one) for one in equation.reads}
            kept.append(equation)
    kept.reverse()
    for at, equation in enumerate(kept):
        for one in equation.results:
            one.start, one.end = at, at
        for one in equation.reads:
            one.end = at
    last = len(kept) - 1
    forward = sum(equation.forward for equation in kept)
    for one in gradient:
        one.end = last
    for one in residuals:
        one.residual = one.start >= 0 and one.end >= forward
    return kept


def residual_counts(program: dict[str, Any]) -> Counter[str]:
    """How many residuals of each kind the forward pass stores, by their labels."""
    return Counter(label for label, _, _, _, residual in program["values"] if residual)


def _picture(programs: dict[str, dict[str, Any]]) -> str:
    """A curve of the stored bytes for each function."""
    drawing = Drawing()
    top = max(one["peak"] for one in programs.values()) or 1
    longest = max(len(one["live"]) for one in programs.values())
    drawing.text(MARGIN, MARGIN + FONT, f"stored bytes after each equation, at most {top:,}")
    for number, (name, one) in enumerate(programs.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [
            (MARGIN + WIDTH * at / longest, 3 * MARGIN + HEIGHT * (1 - live / top))
            for at, live in enumerate(one["live"])
        ]
        drawing.path(points, colour, ("", "8 4", "3 3", "10 3 2 3", "1 3", "12 6")[number])
        drawing.text(
            MARGIN + 20, 4 * MARGIN + HEIGHT + 1.6 * FONT * (number + 1), f"{name}: at most {one['peak']:,} bytes"
        )
        y = 4 * MARGIN + HEIGHT + 1.6 * FONT * (number + 1) - FONT / 3
        drawing.path(
            [(MARGIN - 10, y), (MARGIN + 14, y)], colour, ("", "8 4", "3 3", "10 3 2 3", "1 3", "12 6")[number]
        )
    return drawing.svg()
