"""Reader of program text, StableHLO and optimized HLO: collectives, loops, operations, sizes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

import numpy as np

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BITS = {"pred": 8, "bf16": 16, "tf32": 32}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+)[^\n]*\{\n(.*?)^\}", re.M | re.S)
_FUSION = re.compile(r" fusion\(.*?, kind=\w+,.*? calls=%?([\w.\-]+)")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?(%?[\w.\-]+) = (.+?) (" + "|".join(KINDS) + r")(-start)?\(", re.M)
_CALLED = re.compile(r"(?:to_apply|calls|body|condition|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)")
_TYPE = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_OPERATION = re.compile(r'^\s*(?:%\S+ = )?"?(?:stablehlo|chlo|sdy)\.(?!(?:constant|return|mesh)\b)\w', re.M)
_LOOP = re.compile(r'^\s*(?:%\S+ = )?"?stablehlo\.while\b', re.M)
_SYMBOL = r'(@(?:[\w.$\-]+|"(?:[^"\\]|\\.)*"))\('
_FUNCTION = re.compile(rf"^\s*func\.func (?:\w+ )?{_SYMBOL}", re.M)
_CALL = re.compile(rf"^\s*(?:%\S+ = )?(?:func\.)?call {_SYMBOL}", re.M)
_ENTRY = re.compile(r"^HloModule .*\bentry_computation_layout=\{\((.*?)\)->(.*?)\}(?:$|, \w+=)", re.M)
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}")
_TRIPS = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d+)"\}')  # in a string of a scope's name, quotes are escaped
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TENSOR = re.compile(r"tensor<((?:[0-9]+x)*)[a-zA-Z]")


@dataclass(frozen=True)
class Collective:
    """One collective operation of the compiled program.

    Attributes:
        kind: one of `KINDS`.
        elements, bytes: size of its result on one device; a merged operation counts all its parts.
        group_size: number of devices that take part together; None for a permute.
        in_loop: whether a while loop repeats it.
        times: how often a call of the program runs it; None in a loop whose number of iterations the program does not
            state.
    """

    kind: str
    elements: int
    bytes: int
    group_size: int | None
    in_loop: bool
    times: int | None = 1


Groups = tuple[tuple[int, ...], ...]


def collectives(text: str, devices: int) -> tuple[Collective, ...]:
    """Returns the collectives in optimized HLO `text` of a program over `devices` devices, in order of appearance."""
    return tuple(one for one, _ in collectives_and_groups(text, devices))


def collectives_and_groups(text: str, devices: int) -> tuple[tuple[Collective, Groups], ...]:
    """Returns what `collectives` does, each with the groups of devices that take part together.

    A device is its position in the mesh, counted row by row. The groups of a permute are its pairs of a sender and a
    receiver. They are empty where the text states them in a form that is not read.
    """
    # What stands in quotes is left out: the name of a scope may be anything, such as an instruction. On a TPU one
    # collective may stand in each of the operations that it runs beside, and a reduce-scatter is written as an
    # all-reduce of which each device slices its part.
    text = _STRING.sub('""', _TRIPS.sub(r"known_trip_count=\1", text))
    bodies = {match[1]: match[2] for match in _COMPUTATION.finditer(text)}
    repeated = [name for body in bodies.values() for name in re.findall(r"\b(?:body|condition)=%?([\w.\-]+)", body)]
    looped, times = _reached(bodies, repeated), _times(bodies)
    fused, channels = set(_FUSION.findall(text)), set()
    found = []
    for name, body in bodies.items():
        for line in body.splitlines():
            match = _INSTRUCTION.match(line)
            if not match:
                continue
            own, result, kind, start = match.groups()
            channel = re.search(r"channel_id=\d+", line)
            if name in fused and channel:
                if channel[0] in channels:
                    continue
                channels.add(channel[0])
                cut = re.search(rf"^\s*ROOT \S+ = (.+?) dynamic-slice\({re.escape(own)}[,)]", body, re.M)
                if kind == "all-reduce" and cut:
                    kind, result = "reduce-scatter", cut[1]
            types = [one for one in _TYPE.findall(result) if one[0] != "token"]
            if start and len(types) > 1 and kind != "all-reduce":
                if len(types) > 2 and types[-2:] == [("u32", "")] * 2:
                    types = types[:-2]  # a permute's own context
                types = types[len(types) // 2 :]  # an asynchronous start returns operands, then results
            elements, size = sum(_count(dims) for _, dims in types), sum(map(_bytes, types))
            group, often = _group_size(line, kind, devices), times.get(name) if name in looped else 1
            one = Collective(kind, elements, size, group, name in looped, often)
            found.append((one, _groups(line, kind, devices)))
    return tuple(found)


@dataclass(frozen=True)
class Sizes:
    """Bytes on one device of a compiled program's arguments, of its results, and of the donated arguments whose memory
    results reuse. They count entries: a TPU stores arrays in tiles, and its own figures count whole tiles."""

    arguments: int
    outputs: int
    aliased: int


def sizes(text: str) -> Sizes | None:
    """Returns the sizes that the first line of optimized HLO `text` states, unused arguments left out; else None."""
    head = _STRING.sub('""', text.partition("\n")[0])
    layout = _ENTRY.search(head)
    if layout is None:
        return None
    taken, returned = (_TYPE.findall(part) for part in layout.groups())
    shared = head.partition("input_output_alias=")[2].partition("entry_computation_layout=")[0]
    aliased = [taken[int(place)] for place in _ALIAS.findall(shared)]
    return Sizes(*(sum(map(_bytes, types)) for types in (taken, returned, aliased)))


def _bytes(kind: tuple[str, str]) -> int:
    dtype, dims = kind
    digits = re.search(r"\d+", dtype)
    bits = BITS.get(dtype) or (int(digits[0]) if digits else 32)
    return 0 if dtype == "token" else _count(dims) * bits // 8


def _count(dims: str, separator: str = ",") -> int:
    return math.prod(int(size) for size in dims.split(separator) if size)


def _reached(bodies: dict[str, str], start: list[str]) -> set[str]:
    seen, todo = set[str](), list(start)
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            todo += re.findall(r"[\w.\-]+", " ".join(_CALLED.findall(bodies.get(name, ""))))
    return seen


def _times(bodies: dict[str, str]) -> dict[str, int | None]:
    """How often each computation of a while loop runs, nested loops multiplied; None where a count is not stated."""
    around: dict[str, tuple[str, int | None]] = {}  # for each computation: what calls it, and how often each time
    for caller, text in bodies.items():
        for line in text.splitlines():
            loop, stated = re.search(r"\bbody=%?([\w.\-]+)", line), re.search(r"known_trip_count=(\d+)", line)
            for name in re.findall(r"[\w.\-]+", " ".join(_CALLED.findall(line))):
                count = 1 if not loop else int(stated[1]) if stated and name == loop[1] else None
                around[name] = (caller, count)

    def total(name: str) -> int | None:
        product: int | None = 1
        for _ in bodies:  # they call each other no deeper than this
            if name not in around or product is None:
                break
            name, count = around[name]
            product = None if count is None else product * count
        return product

    return {name: total(name) for name in bodies}


def _group_size(line: str, kind: str, devices: int) -> int | None:
    # `replica_groups` is printed as `{{0,1},{2,3}}`, as `[4,2]<=[8]`, as axes of a mesh of the compiler's own
    # (`mesh['axis_0'=1,'axis_1'=4,'axis_2'=2] {'axis_1'}`), or empty for all devices together.
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


def _iota(sizes: list[int], order: str | None) -> np.ndarray:
    """The numbers from 0 on in an array of these sizes, whose axes are then reordered."""
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose([int(axis) for axis in order.split(",")]) if order else ids


def _groups(line: str, kind: str, devices: int) -> Groups:
    listed = "source_target_pairs" if kind == "collective-permute" else "replica_groups"
    if pairs := re.search(rf"{listed}=\{{(\{{[\d,{{}}]+\}})\}}", line):
        return tuple(tuple(map(int, part.split(","))) for part in re.findall(r"[\d,]*\d", pairs[1].replace("},", "} ")))
    if of_mesh := re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? \{([^}]*)\}", line
    ):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", of_mesh[1]))
        inside = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", of_mesh[4])]
        shape = [int(size) for size in sizes.values()]
        ids = _iota([int(size) for size in of_mesh[2].split(",")] if of_mesh[2] else shape, of_mesh[3]).reshape(shape)
        ids = np.moveaxis(ids, inside, range(-len(inside), 0))
        return tuple(map(tuple, ids.reshape(-1, math.prod(ids.shape[-len(inside) :])).tolist()))
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        ids = _iota([int(size) for size in iota[3].split(",")], iota[4])
        return tuple(map(tuple, ids.reshape(int(iota[1]), int(iota[2])).tolist()))
    return (tuple(range(devices)),) if "replica_groups={}" in line else ()


def loops(module: str) -> int:
    """Counts the while loops in StableHLO text (`scan`, `fori_loop` and `while_loop` each lower to one), with every
    call written out."""
    return _written_out(module, _LOOP)


def operations(module: str) -> int:
    """Counts the StableHLO operations in a module's text, but no constants: its size before optimization.

    Calls are written out: a function that `jit` has compiled once and that is called n times counts n times.
    """
    # An exported program has equal constants once: a number that comes from a size may equal another at one size alone.
    # An operation begins its line; the attributes of shardings and dimensions are named like operations, and do not.
    return _written_out(module, _OPERATION)


def _written_out(module: str, counted: re.Pattern[str]) -> int:
    """How often the pattern occurs in the module's main function and, for each call, in the function that it calls."""
    starts = [*_FUNCTION.finditer(module)]
    ends = [one.start() for one in starts[1:]] + [len(module)]
    texts = {one[1]: module[one.end() : end] for one, end in zip(starts, ends, strict=True)}

    @cache
    def total(name: str) -> int:
        return len(counted.findall(texts[name])) + sum(map(total, _CALL.findall(texts[name])))

    return total("@main")


def largest(module: str) -> int:
    """Returns the number of elements of the largest tensor in StableHLO text, arguments and results included."""
    return max((_count(dims, "x") for dims in _TENSOR.findall(module)), default=0)
