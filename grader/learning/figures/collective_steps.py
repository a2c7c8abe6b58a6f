"""Collective steps: the shards of an array, and what the devices of a compiled program send to each other."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

from grader.learning.figures.drawing import FONT, MARGIN, Drawing
from grader.learning.figures.figure import Figure
from grader.learning.inspection import axes_of_groups
from grader.learning.plots import DEVICES, PAPER
from grader.program.hlo import Collective, Groups, collectives_and_groups

MOST_DEVICES = 8
MOST_PROGRAMS = 40
Operation = Callable[[jax.Array], jax.Array]
State = list[list[str]]  # for each device of a group what it holds of each block; "" for nothing


def collectives(
    operations: Operation | Mapping[str, Operation],
    shardings: NamedSharding | Sequence[NamedSharding],
    shape: Sequence[int] = (8, 8),
) -> Figure:
    """Shows what the devices communicate in each operation on a float32 array, for each sharding of this array.

    Every pair is compiled. The collectives, their groups and their bytes are those of the compiled programs. The steps
    are those of a ring (an all-to-all sends directly), whatever the hardware uses.

    Args:
        operations: a function of one array that returns one array, or a dict from names to such functions.
        shardings: the choices for the array, on meshes of at most eight devices.
        shape: of the array, at most two axes.

    Raises:
        TypeError: an operation is not callable, or a sharding is not a `NamedSharding`.
        ValueError: a sharding does not fit the shape, or there are too many devices or programs.
    """
    named = dict(operations) if isinstance(operations, Mapping) else {getattr(operations, "__name__", "f"): operations}
    offered = [shardings] if isinstance(shardings, Sharding) else list(shardings)
    for name, operation in named.items():
        if not callable(operation):
            raise TypeError(f"The operation {name!r} is a {type(operation).__name__}. Pass a function of one array.")
    for sharding in offered:
        if not isinstance(sharding, NamedSharding):
            raise TypeError(f"Pass shardings such as NamedSharding(mesh, P('x')), not a {type(sharding).__name__}.")
        if sharding.mesh.size > MOST_DEVICES:
            raise ValueError(f"This figure draws at most {MOST_DEVICES} devices; this mesh has {sharding.mesh.size}.")
    shape = tuple(shape)
    if len(shape) > 2:
        raise ValueError(f"This figure draws arrays of at most two axes; the shape here is {shape}.")
    if not 0 < len(named) * len(offered) <= MOST_PROGRAMS:
        raise ValueError(f"This figure compiles 1 to {MOST_PROGRAMS} programs, not {len(named) * len(offered)}.")
    programs = {
        f"{name}|{i}": program(operation, sharding, shape)
        for name, operation in named.items()
        for i, sharding in enumerate(offered)
    }
    data: dict[str, Any] = {
        "title": "What the devices send",
        "operations": list(named),
        "shardings": [{"mesh": _mesh_text(one), "spec": _spec_text(one)} for one in offered],
        "inputs": [layout(one, shape) for one in offered],
        "programs": programs,
        "colours": DEVICES,
    }
    first = next(iter(programs.values()))
    words = [f"{next(iter(named))} of an array {shape} with {data['shardings'][0]['spec']}: {_summary(first)}"]
    return Figure("collective_steps.js", data, " ".join([data["title"] + ".", *words]), _picture(data, first))


def program(operation: Operation, sharding: NamedSharding, shape: tuple[int, ...]) -> dict[str, Any]:
    """The collectives and the result of the compiled operation, or a note if it cannot be compiled."""
    argument = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    try:
        lowered = jax.jit(operation).lower(argument)
        compiled = lowered.compile()
    except Exception as problem:
        text = textwrap.shorten(f"{type(problem).__name__}: {problem}", 260, placeholder=" …")
        return {"note": f"This program cannot be compiled. {text}"}
    if not hasattr(lowered.out_info, "shape"):
        raise ValueError("An operation returns a container. This figure draws one array as the result.")
    found = collectives_and_groups(compiled.as_text() or "", sharding.mesh.size)
    return {
        "output": layout(compiled.output_shardings, lowered.out_info.shape),
        "spec": _spec_text(compiled.output_shardings),
        "collectives": [_collective(one, groups, sharding) for one, groups in found],
    }


def layout(sharding: Sharding, shape: tuple[int, ...]) -> dict[str, Any]:
    """Which devices store which block of an array: blocks row by row, with the number of blocks in a row."""
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    device: Any
    for device, index in sharding.devices_indices_map(shape).items():
        part = tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
        holders.setdefault(part, []).append(device.id)
    blocks = [sorted(devices) for _, devices in sorted(holders.items())]
    columns = len({part[-1] for part in holders}) if shape else 1
    return {"shape": shape, "shard": sharding.shard_shape(shape), "columns": columns, "blocks": blocks}


def _collective(one: Collective, groups: Groups, sharding: NamedSharding) -> dict[str, Any]:
    mesh: Any = sharding.mesh
    ids = [device.id for device in mesh.devices.flat]
    size = one.group_size or 2
    states, sent = ring(one.kind, size), sent_bytes(one)
    return {
        "kind": one.kind,
        "elements": one.elements,
        "bytes": one.bytes,
        "groups": [[ids[place] for place in group] for group in groups],
        "along": list(axes_of_groups(groups, mesh)),
        "loop": one.in_loop,
        "states": states,
        "sent": sent,
        "step_bytes": sent / max(len(states) - 1, 1),
    }


def sent_bytes(one: Collective) -> float:
    """The bytes that one device sends in a ring, from the bytes of the result on one device."""
    n = one.group_size or 1
    if one.kind in ("collective-permute", "collective-broadcast"):
        return one.bytes
    factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1}
    return factors.get(one.kind, (n - 1) / n) * one.bytes


def ring(kind: str, n: int) -> list[State]:
    """What each of n devices holds before the first and after each step of a collective.

    A block is written as the position of the device that it comes from, and a sum as the positions of its addends.
    """
    if kind == "all-gather":
        return _gathered([[str(b) if b == d else "" for b in range(n)] for d in range(n)], n)
    if kind in ("all-reduce", "reduce-scatter"):
        states = [[[str(d)] * n for d in range(n)]]
        for step in range(1, n):
            state = [list(column) for column in states[-1]]
            for d in range(n):
                block, to = (d - step) % n, (d + 1) % n
                state[to][block] = "+".join(sorted([*states[-1][d][block].split("+"), str(to)]))
                state[d][block] = ""
            states.append(state)
        return states if kind == "reduce-scatter" else states + _gathered(states[-1], n)[1:]
    if kind == "all-to-all":
        return [[[str(b) if (d - b) % n <= step else "" for b in range(n)] for d in range(n)] for step in range(n)]
    return [[["0"], [""]], [["0"], ["0"]]]  # one sender and one receiver


def _gathered(first: State, n: int) -> list[State]:
    """The states of a ring in which each device passes on the block that it received last."""
    states = [first]
    for step in range(1, n):
        state = [list(column) for column in states[-1]]
        for d in range(n):
            block = (d - step) % n
            state[d][block] = states[-1][(d - 1) % n][block]
        states.append(state)
    return states


def _mesh_text(sharding: NamedSharding) -> str:
    return ", ".join(f"{name}: {size}" for name, size in sharding.mesh.shape.items())


def _spec_text(sharding: Sharding) -> str:
    return str(getattr(sharding, "spec", "no spec")).replace("PartitionSpec", "P").replace(",)", ")")


def _summary(one: dict[str, Any]) -> str:
    if "note" in one:
        return str(one["note"])
    parts = [
        f"{c['kind']} of {c['elements']} elements ({c['bytes']} bytes) along {' and '.join(c['along']) or '?'}, for "
        f"which one device sends {c['sent']:g} bytes in {len(c['states']) - 1} steps"
        for c in one["collectives"]
    ]
    return f"{'; '.join(parts) or 'no collective'}. The result has the spec {one['spec']}."


def _picture(data: dict[str, Any], one: dict[str, Any]) -> str:
    """The shards of the array and of the result of the first program, with its collectives in words."""
    drawing, x = Drawing(), float(MARGIN)
    tables = {f"array, {data['shardings'][0]['spec']}": data["inputs"][0]}
    if "note" not in one:
        tables[f"result, {one['spec']}"] = one["output"]
    for title, table in tables.items():
        drawing.text(x, MARGIN + FONT, title)
        width = max(20 + 8 * max(len(" ".join(map(str, block))) for block in table["blocks"]), 34)
        for position, block in enumerate(table["blocks"]):
            row, column = divmod(position, table["columns"])
            fill = DEVICES[block[0] % len(DEVICES)] if len(block) == 1 else PAPER
            drawing.box(x + column * width, 2 * MARGIN + FONT + row * 30, width, 30, fill, " ".join(map(str, block)))
        x = drawing.width + 3 * MARGIN
    for line in textwrap.wrap(f"{data['operations'][0]}: {_summary(one)}", 80):
        drawing.text(MARGIN, drawing.height + 1.6 * FONT, line)
    return drawing.svg()
