"""What the text of a compiled program says: collectives, loops, operations, the largest value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BITS = {"pred": 8, "bf16": 16, "tf32": 32}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+)[^\n]*\{\n(.*?)^\}", re.M | re.S)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (.+?) (" + "|".join(KINDS) + r")(-start)?\(", re.M)
_CALLED = re.compile(r"(?:to_apply|calls|body|condition|\w+_computations?)=\{?%?([\w.\-, %]+)")
_TYPE = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_OPERATION = re.compile(
    r'^\s*(?:%\S+ = )?(?:"?(?:stablehlo|chlo|sdy)\.(?!(?:return|mesh)\b)\w|(?:func\.)?call @)', re.M
)
_LOOP = re.compile(r'^\s*(?:%\S+ = )?"?stablehlo\.while\b', re.M)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TENSOR = re.compile(r"tensor<((?:[0-9]+x)*)[a-zA-Z]")


@dataclass(frozen=True)
class Collective:
    """One collective operation of the compiled program.

    `elements` and `bytes` count its result on one device (a merged operation counts all its parts); `group_size` is
    how many devices take part together, None for a permute; `in_loop` whether a while loop runs it again and again.
    """

    kind: str
    elements: int
    bytes: int
    group_size: int | None
    in_loop: bool


def collectives(text: str, devices: int) -> tuple[Collective, ...]:
    """The collectives in optimized HLO `text` of a program over `devices` devices, in order of appearance.

    What stands in quotes is left out: the name of a scope may be anything, such as an instruction.
    """
    text = _STRING.sub('""', text)
    bodies = {match[1]: match[2] for match in _COMPUTATION.finditer(text)}
    repeated = [name for body in bodies.values() for name in re.findall(r"\b(?:body|condition)=%?([\w.\-]+)", body)]
    looped = _reached(bodies, repeated)
    found = []
    for name, body in bodies.items():
        for line in body.splitlines():
            match = _INSTRUCTION.match(line)
            if not match:
                continue
            result, kind, start = match.groups()
            types = [one for one in _TYPE.findall(result) if one[0] != "token"]
            if start and len(types) > 1 and kind != "all-reduce":
                if len(types) > 2 and types[-2:] == [("u32", "")] * 2:
                    types = types[:-2]  # a permute's own context
                types = types[len(types) // 2 :]  # an asynchronous start returns operands, then results
            elements = [math.prod(int(n) for n in dims.split(",") if n) for _, dims in types]
            size = sum(count * _bits(dtype) // 8 for count, (dtype, _) in zip(elements, types, strict=True))
            found.append(Collective(kind, sum(elements), size, _group_size(line, kind, devices), name in looped))
    return tuple(found)


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return BITS.get(dtype) or (int(digits[0]) if digits else 32)


def _reached(bodies: dict[str, str], start: list[str]) -> set[str]:
    seen, todo = set(), list(start)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for group in _CALLED.findall(bodies.get(name, "")):
            todo += [other.strip().lstrip("%") for other in group.split(",")]
    return seen


def _group_size(line: str, kind: str, devices: int) -> int | None:
    """`replica_groups` is printed as `{{0,1},{2,3}}`, as `[4,2]<=[8]`, as axes of a mesh of the compiler's own
    (`mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1'}`), or empty for all devices together."""
    if kind == "collective-permute":
        return None
    of_mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\S+)? \{([^}]*)\}", line)
    if of_mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", of_mesh[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", of_mesh[2]))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if iota:
        return int(iota[1])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    return len(listed[1].split(",")) if listed else devices


def loops(module: str) -> int:
    """Number of while loops in StableHLO text (`scan`, `fori_loop` and `while_loop` each lower to one)."""
    return len(_LOOP.findall(module))


def operations(module: str) -> int:
    """Number of StableHLO operations and calls in the module's text: its size before XLA optimizes it.

    An operation begins its line; the attributes of shardings and dimensions are named like operations, and do not.
    """
    return len(_OPERATION.findall(module))


def largest(module: str) -> int:
    """Elements of the largest tensor that the StableHLO text names, arguments and results included."""
    return max((math.prod(int(n) for n in dims.split("x") if n) for dims in _TENSOR.findall(module)), default=0)
