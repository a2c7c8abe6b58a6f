"""Drawings as HTML and as text: two shapes beside each other, and which device holds which part of an array."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import jax
from jax.sharding import NamedSharding

from grader.checks.failure import FailedComparison
from grader.checks.outcomes import WIDTH
from grader.core.text import legible

Shape = Sequence[int]
Piece = tuple[int, int] | None
Part = tuple[tuple[int, int], ...]  # (start, stop) for each axis
MAX_CELLS = 8  # of an axis that is drawn cell by cell, or piece by piece
# No colour: it is the text's, in any theme, and JupyterLab keeps these styles in a notebook that it does not trust.
CELL = "border: 1px solid; text-align: center; padding: "
HEAD = "padding: 2px 8px; text-align: center; font-weight: normal; opacity: 0.8"


def table(rows: str, head: str = "") -> str:
    """Returns a table of these rows, which are HTML."""
    inside = f"{head and f'<thead>{head}</thead>'}<tbody>{rows}</tbody>"
    return f'<table style="border-collapse: collapse; margin: 4px 0">{inside}</table>'


def _row(cells: Iterable[tuple[str, str]]) -> str:
    """A row of cells, each a style and HTML, without the stripes of a front end's theme."""
    inside = "".join(f'<td style="{style}">{text}</td>' for style, text in cells)
    return f'<tr style="background: none">{inside}</tr>'


def _beside(drawings: Iterable[str], below: str) -> str:
    style = "padding: 4px 24px 4px 0; text-align: left; vertical-align: top"
    cells = "".join(f'<td style="{style}">{drawing}</td>' for drawing in drawings)
    return f'<table style="margin: 0"><tbody><tr>{cells}</tr></tbody></table>' + (below and f"<div>{below}</div>")


def shapes_html(got: Shape, wanted: Shape) -> str:
    """Returns pictures of the last two axes of both, other axes as factors, and the difference in words."""
    pairs = (("got", got), ("wanted", wanted))
    drawings = [f"{name} <code>{tuple(shape)}</code>{_shape_html(shape)}" for name, shape in pairs]
    return _beside(drawings, difference(got, wanted))


def shapes_text(got: Shape, wanted: Shape) -> list[str]:
    """Returns the difference in words, else the shapes."""
    return [f"  {difference(got, wanted) or f'got {tuple(got)}; wanted {tuple(wanted)}'}"]


def difference(got: Shape, wanted: Shape) -> str:
    """Returns such as "Axis 1, of size 3, is missing."; "" where no sentence says more than the shapes."""
    one, other = tuple(got), tuple(wanted)
    if len(one) == len(other):
        if sorted(one) == sorted(other):
            return "The same sizes in another order."
        differing = [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
        return "; ".join(f"axis {i} has {one[i]}, wanted {other[i]}" for i in differing[:3]).capitalize() + "."
    if len(one) + 1 == len(other):
        return _without(other, one, "is missing")
    if len(one) == len(other) + 1:
        return _without(one, other, "is one too many")
    return "As many numbers in other axes." if math.prod(one) == math.prod(other) else ""


def _without(longer: tuple[int, ...], shorter: tuple[int, ...], what: str) -> str:
    axes = [i for i in range(len(longer)) if longer[:i] + longer[i + 1 :] == shorter]
    if not axes:
        return ""
    size = longer[axes[0]]
    return f"Axis {axes[0]}, of size {size}, {what}." if len(axes) == 1 else f"An axis of size {size} {what}."


def _shape_html(shape: Shape) -> str:
    """A grid of cells where it is small, else a box with its sizes."""
    *leading, rows, columns = (1, 1, *shape) if len(shape) < 2 else shape
    if not shape:
        return '<div style="margin: 4px 0">one number</div>'
    if 0 < rows <= MAX_CELLS and 0 < columns <= MAX_CELLS:
        body = _row([(f"{CELL}0; width: 14px; height: 14px", "&nbsp;")] * columns) * rows
    else:
        # Pixels: more for a longer axis, never too many.
        height, width = (round(min(26 + 10 * math.log2(max(size, 1)), 120)) for size in (rows, columns))
        sizes = f"{rows} × {columns}" if len(shape) > 1 else str(columns)
        body = _row([(f"{CELL}0; width: {width}px; height: {height}px", sizes)])
    factors = " × ".join(map(str, leading)) if len(shape) > 2 else ""
    return (factors and f"<div>{factors} ×</div>") + table(body)


@dataclass(frozen=True)
class Layout:
    """The part of an array that each device holds, by the device's id, under a title."""

    title: str
    parts: dict[int, Part]

    def axes(self) -> list[int]:
        """Returns the axes that are partitioned."""
        ranks = range(min(len(part) for part in self.parts.values()))
        return [axis for axis in ranks if len(self.pieces(axis)) > 1]

    def pieces(self, axis: int) -> list[tuple[int, int]]:
        """Returns the different parts of one axis, in order."""
        return sorted({part[axis] for part in self.parts.values()})

    def grid(self) -> tuple[list[Piece], list[Piece], list[list[str]]]:
        """Returns the pieces down and across, and for each pair the ids of the devices that hold it.

        With one partitioned axis, only axis 0 goes down; an axis that is not partitioned has one piece, None.
        """
        cut = self.axes()
        down, across = (cut[0] if len(cut) == 2 or cut == [0] else None), (cut[-1] if cut and cut != [0] else None)
        rows: list[Piece] = [None] if down is None else [*self.pieces(down)]
        columns: list[Piece] = [None] if across is None else [*self.pieces(across)]
        return rows, columns, [[self._holders({down: row, across: column}) for column in columns] for row in rows]

    def _holders(self, at: dict[int | None, Piece]) -> str:
        """The devices whose parts these are: `0 1`, or `0–7`."""
        found = sorted(
            device
            for device, part in self.parts.items()
            if all(axis is None or part[axis] == piece for axis, piece in at.items())
        )
        if len(found) > 3 and found == list(range(found[0], found[-1] + 1)):
            return f"{found[0]}–{found[-1]}"
        return " ".join(map(str, found)) or "none"

    def words(self) -> str:
        """Returns how the array is partitioned, such as "axis 0 in 2"."""
        cut = [f"axis {axis} in {len(self.pieces(axis))}" for axis in self.axes()]
        return " and ".join(cut) if cut else f"all of it on each of {len(self.parts)} devices"


def layouts(compared: FailedComparison | None) -> list[Layout]:
    """Returns the layouts that a comparison is about and that can be drawn: at most one of each side, found first."""
    if compared is None:
        return []
    layouts = []
    for title, side in (("got", compared.found), ("wanted", compared.wanted)):
        values = (value for _, value in compared.evaluator.find_expressions(side.origin))
        parts = next((parts for value in values if (parts := _parts(value)) is not None), None)
        if parts is not None and len({len(part) for part in parts.values()}) == 1:
            layout = Layout(title, parts)
            cut = layout.axes()
            if len(cut) <= 2 and all(len(layout.pieces(axis)) <= MAX_CELLS for axis in cut):
                layouts.append(layout)
    return layouts


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


def layouts_html(layouts: list[Layout]) -> str:
    """Returns grids beside each other; a cell contains the ids of the devices that hold this part."""
    drawings = [f"{layout.title}: {layout.words()}{_layout_html(layout)}" for layout in layouts]
    return _beside(drawings, "In each cell: the devices that hold this part.")


def _layout_html(layout: Layout) -> str:
    rows, columns, holders = layout.grid()
    head = [] if columns == [None] else [_row([(HEAD, ""), *((HEAD, _span(piece)) for piece in columns)])]
    body = [
        _row([(HEAD, _span(piece)), *((f"{CELL}2px 8px", escape(cell)) for cell in cells)])
        for piece, cells in zip(rows, holders, strict=True)
    ]
    return table("".join(head + body))


def _span(piece: Piece) -> str:
    return "" if piece is None else f"{piece[0]}:{piece[1]}"


def layouts_text(layouts: list[Layout]) -> list[str]:
    """Returns a line for each: the devices, with `|` between the parts across and `/` between those down."""
    return [
        legible(
            f"  {layout.title}: {layout.words()}; devices {' / '.join(map(' | '.join, layout.grid()[2]))}", WIDTH - 4
        )
        for layout in layouts
    ]
