"""Drawings beside a failure, as HTML and as text: a table of facts, two shapes, which device holds which part."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding

from grader.checks.failure import FailedComparison, Side
from grader.checks.outcomes import WIDTH
from grader.checks.verbs import Program
from grader.core.text import legible
from grader.program.hlo import KINDS

Drawing = tuple[str, list[str]]  # HTML, and lines of text
Shape = Sequence[int]
Piece = tuple[int, int] | None
Part = tuple[tuple[int, int], ...]  # (start, stop) for each axis
MAX_CELLS = 8  # of an axis that is drawn cell by cell, or piece by piece
MAX_ROWS = 8  # of facts
MAX_SHOWN = 100  # characters of a value
# No colour: it is the text's, in any theme, and JupyterLab keeps these styles in a notebook that it does not trust.
CELL = "border: 1px solid; text-align: center; padding: "
HEAD = "padding: 2px 8px; text-align: center; font-weight: normal; opacity: 0.8"
PLAIN_ROW = ' style="background: none"'  # without the stripes of a front end's theme
LABELS = {
    "devices": "devices",
    "loops": "loops",
    "operations": "operations",
    "intermediates": "elements of the largest array",
    "argument_bytes": "argument bytes per device",
    "output_bytes": "output bytes per device",
    "temp_bytes": "temporary bytes per device",
    "alias_bytes": "bytes of donated arguments reused",
    "flops": "flops per device",
}
ALWAYS = ("loops", "argument_bytes", "output_bytes", "temp_bytes")


def _table(rows: Iterable[str], head: str = "") -> str:
    inside = f"{head and f'<thead>{head}</thead>'}<tbody>{''.join(rows)}</tbody>"
    return f'<table style="border-collapse: collapse; margin: 4px 0">{inside}</table>'


def _row(cells: Iterable[tuple[str, str]], tag: str = "td", style: str = PLAIN_ROW) -> str:
    """A row of cells, each a style and HTML."""
    inside = "".join(f'<{tag} style="{of_cell}">{html}</{tag}>' for of_cell, html in cells)
    return f"<tr{style}>{inside}</tr>"


def _beside(drawings: Iterable[str], below: str) -> str:
    style = "padding: 4px 24px 4px 0; text-align: left; vertical-align: top"
    row = _row(((style, drawing) for drawing in drawings), style="")
    return f'<table style="margin: 0"><tbody>{row}</tbody></table>' + (below and f"<div>{below}</div>")


class FactRow(NamedTuple):
    """One line of the table of facts; `failed` marks the one that the check failed by."""

    label: str
    found: str
    wanted: str = ""
    failed: bool = False


def facts(compared: FailedComparison | None, read: list[tuple[Program, str]], message: str) -> Drawing | None:
    """Returns a table of what a check compared, unless its message states it, and of the program's facts that it read.

    The row that the check failed by is marked and bold; as text, as much of the rest as two lines hold.
    """
    rows = list(_fact_rows(compared, read, message))[:MAX_ROWS]
    if not rows:
        return None
    columns = 3 if any(row.wanted for row in rows) else 2
    styles = [f"text-align: {side}; padding: 2px 16px 2px 0" for side in ("left", "right", "right")[:columns]]
    names = ["in the program" if any(not row.failed for row in rows) else "", "found", "expected"]
    body, failed = [], list[str]()
    stated, rest = list[str](), list[str]()
    for row in rows:
        cells = map(_code, (f"✗ {row.label}" if row.failed else row.label, row.found, row.wanted))
        bold = "; font-weight: bold" if row.failed else ""
        body.append(_row(((f"{style}{bold}", cell) for style, cell in zip(styles, cells, strict=False)), style=""))
        if row.failed:
            failed = _lines(f"{row.label}: found {row.found}; expected {row.wanted}.")[:2]
        else:
            longer = [*stated, f"{row.label}: {row.found}"]
            lines = _lines(f"In the program: {'; '.join(longer)}.")
            stated, rest = (longer, lines) if len(lines) <= 2 else (stated, rest)
    return _table(body, _row(zip(styles, names, strict=False), "th", "")), failed + rest


def _fact_rows(compared: FailedComparison | None, read: list[tuple[Program, str]], message: str) -> Iterator[FactRow]:
    fact, shown = compared.found.fact if compared else None, None
    # A table would only repeat a message that names both values.
    if compared and compared.found.plain and compared.wanted.plain and (fact or not _stated(compared, message)):
        owner = _owner(compared.wanted) if compared.wanted.fact else ""
        wanted = f"{compared.relation}{_short(compared.wanted.value)}{owner and f', as in `{owner}`'}"
        yield FactRow(_label(compared), _short(compared.found.value), wanted, failed=True)
        shown = (fact[2] or fact[1]) if fact else None
    program = fact[0] if fact else read[0][0] if read else None
    if program is not None and read:
        about = [name for one, name in read if one is program]
        yield from (row for name, row in _overview(program, about) if name != shown or shown in KINDS)


def _label(compared: FailedComparison) -> str:
    if compared.found.fact is None:
        return f"`{ast.unparse(compared.found.node)}`"
    _, name, kind = compared.found.fact
    label = {"count": f"{kind} operations", "elements": f"elements of {kind}"}.get(name) or LABELS.get(name, name)
    owner = _owner(compared.found) if compared.wanted.fact else ""
    return f"{label} of `{owner}`" if owner else label


def _owner(side: Side) -> str:
    """The program's own name in the check: `many` of `many.operations`."""
    node = side.origin.func if isinstance(side.origin, ast.Call) else side.origin
    return node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""


def _stated(compared: FailedComparison, message: str) -> bool:
    for value in (compared.found.value, compared.wanted.value):
        alike = type(value) is list and value and all(one == value[0] for one in value)
        one = value[0] if alike else value
        if not any(text in message for text in (_short(one), str(one), f"{one!r}")):
            return False
    return True


def _overview(program: Program, about: list[str]) -> Iterator[tuple[str, FactRow]]:
    """What was asked about first, then what says most of a program."""
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in program.facts.collectives)]
    if program.facts.devices > 1 and not kinds:
        kinds = [""]
    first = [name for name in about if name in LABELS or name in kinds]
    if any(name in KINDS or name == "collectives" for name in about):
        first += kinds
    for name in dict.fromkeys([*first, *kinds, *ALWAYS]):
        if name in LABELS:
            known = getattr(program.facts, name)
            yield name, FactRow(LABELS[name], "not told" if known is None else _short(known))
        elif name:
            found = [one for one in program.facts.collectives if one.kind == name]
            looped = ", in a loop" if any(one.in_loop for one in found) else ""
            yield name, FactRow(name, f"{len(found)} ({sum(one.elements for one in found):,} elements{looped})")
        else:
            yield name, FactRow("collectives", "none")


def _short(given: Any) -> str:
    """A value in short: many equal items as `[64] * 8`."""
    if type(given) is int:
        return f"{given:,}"
    if type(given) in (list, tuple) and len(given) > 3 and all(one == given[0] for one in given):
        one = f"[{given[0]!r}]" if type(given) is list else f"({given[0]!r},)"
        return legible(f"{one} * {len(given)}", MAX_SHOWN)
    return legible(f"{given!r}", MAX_SHOWN)


def _code(text: str) -> str:
    """Escaped, with `code` as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def shapes(got: Shape, wanted: Shape) -> Drawing:
    """Returns pictures of the last two axes of both, other axes as factors, and the difference in words."""
    words = difference(got, wanted)
    pairs = (("got", got), ("expected", wanted))
    drawings = [f"{name} <code>{tuple(shape)}</code>{_shape_html(shape)}" for name, shape in pairs]
    return _beside(drawings, words), [f"  {words or f'got {tuple(got)}; expected {tuple(wanted)}'}"]


def compared_shapes(compared: FailedComparison | None) -> tuple[Shape, Shape] | None:
    """Returns both shapes where a shape was compared by name."""
    origin = compared.found.origin if compared else None
    if compared is None or not (isinstance(origin, ast.Attribute) and origin.attr == "shape"):
        return None
    pair = compared.found.value, compared.wanted.value
    return pair if all(type(shape) is tuple and all(type(size) is int for size in shape) for shape in pair) else None


def difference(got: Shape, wanted: Shape) -> str:
    """Returns such as "Axis 1, of size 3, is missing."; "" where no sentence says more than the shapes."""
    one, other = tuple(got), tuple(wanted)
    if len(one) == len(other):
        if sorted(one) == sorted(other):
            return "The same sizes in a different order."
        differing = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
        return "; ".join(f"axis {i} has {one[i]}, expected {other[i]}" for i in differing[:3]).capitalize() + "."
    if abs(len(one) - len(other)) > 1:
        return "The same number of entries in different axes." if math.prod(one) == math.prod(other) else ""
    shorter, longer = sorted((one, other), key=len)
    axes = [i for i in range(len(longer)) if longer[:i] + longer[i + 1 :] == shorter]
    if not axes:
        return ""
    what = "is missing" if longer == other else "is one too many"
    size = longer[axes[0]]
    return f"Axis {axes[0]}, of size {size}, {what}." if len(axes) == 1 else f"An axis of size {size} {what}."


def _shape_html(shape: Shape) -> str:
    """A grid of cells where it is small, else a box with its sizes."""
    *leading, rows, columns = (1, 1, *shape) if len(shape) < 2 else shape
    if not shape:
        return '<div style="margin: 4px 0">one number</div>'
    if 0 < rows <= MAX_CELLS and 0 < columns <= MAX_CELLS:
        body = [_row([(f"{CELL}0; width: 14px; height: 14px", "&nbsp;")] * columns)] * rows
    else:
        # Pixels: more for a longer axis, never too many.
        height, width = (round(min(26 + 10 * math.log2(max(size, 1)), 120)) for size in (rows, columns))
        sizes = f"{rows} × {columns}" if len(shape) > 1 else str(columns)
        body = [_row([(f"{CELL}0; width: {width}px; height: {height}px", sizes)])]
    factors = " × ".join(map(str, leading)) if len(shape) > 2 else ""
    return (factors and f"<div>{factors} ×</div>") + _table(body)


def layouts(compared: FailedComparison | None) -> Drawing | None:
    """Returns the layouts that a comparison is about and that can be drawn: at most one of each side, found first.

    As HTML they are grids of device ids; as text a line for each, `|` between parts across and `/` between those down.
    """
    if compared is None:
        return None
    html, text = list[str](), list[str]()
    for title, side in (("got", compared.found), ("expected", compared.wanted)):
        values = (value for _, value in compared.evaluator.find_expressions(side.origin))
        parts = next((parts for value in values if (parts := _parts(value)) is not None), {})
        if len({len(part) for part in parts.values()}) != 1:
            continue
        pieces = [sorted(set(own)) for own in zip(*parts.values(), strict=True)]
        cut = [axis for axis, own in enumerate(pieces) if len(own) > 1]
        if len(cut) > 2 or any(len(pieces[axis]) > MAX_CELLS for axis in cut):
            continue
        # With one partitioned axis, only axis 0 goes down; an axis that is not partitioned has one piece, None.
        down, across = (cut[0] if len(cut) == 2 or cut == [0] else None), (cut[-1] if cut and cut != [0] else None)
        rows: list[Piece] = [None] if down is None else [*pieces[down]]
        columns: list[Piece] = [None] if across is None else [*pieces[across]]
        holders = [[_holders(parts, {down: row, across: column}) for column in columns] for row in rows]
        how = " and ".join(f"axis {axis} in {len(pieces[axis])}" for axis in cut)
        words = f"{title}: {how or f'replicated on {len(parts)} devices'}"
        body = [] if columns == [None] else [_row([(HEAD, ""), *((HEAD, _span(piece)) for piece in columns)])]
        for piece, cells in zip(rows, holders, strict=True):
            body.append(_row([(HEAD, _span(piece)), *((f"{CELL}2px 8px", escape(cell)) for cell in cells)]))
        html.append(words + _table(body))
        text.append(legible(f"  {words}; devices {' / '.join(map(' | '.join, holders))}", WIDTH - 4))
    return (_beside(html, "Each cell lists the devices that store this shard."), text) if html else None


def _holders(parts: dict[int, Part], at: dict[int | None, Piece]) -> str:
    """The devices whose parts these are: `0 1`, or `0–7`."""
    found = sorted(
        device
        for device, part in parts.items()
        if all(axis is None or part[axis] == piece for axis, piece in at.items())
    )
    if len(found) > 3 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}–{found[-1]}"
    return " ".join(map(str, found)) or "none"


def _parts(value: Any) -> dict[int, Part] | None:
    """By device: of an array on several devices, or of a dict that states just that."""
    if isinstance(value, jax.Array) and isinstance(value.sharding, NamedSharding) and value.sharding.num_devices > 1:
        held: dict[Any, Any] = dict(value.sharding.devices_indices_map(value.shape))
        return {
            device.id: tuple(one.indices(size)[:2] for one, size in zip(index or (), value.shape, strict=True))
            for device, index in held.items()
        }
    if type(value) is dict and len(value) > 1 and all(type(d) is int and _is_part(p) for d, p in value.items()):
        return value
    return None


def _is_part(part: Any) -> bool:
    return type(part) is tuple and all(
        type(piece) is tuple and len(piece) == 2 and all(type(end) is int for end in piece) for piece in part
    )


def _span(piece: Piece) -> str:
    return "" if piece is None else f"{piece[0]}:{piece[1]}"
