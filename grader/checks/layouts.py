"""Where an array lies: which device holds which part of it, drawn as a grid and told in a line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from types import FrameType
from typing import Any

import jax
from jax.sharding import NamedSharding

from grader.checks.evaluate import NotEvaluable, evaluate
from grader.checks.failure import FailedComparison, Side
from grader.checks.outcomes import WIDTH
from grader.core.text import legible

Piece = tuple[int, int] | None
Part = tuple[tuple[int, int], ...]  # (start, stop) for each axis
MOST_PIECES = 8  # of an axis that is drawn
# No colour: it is the text's, in any theme, and JupyterLab lets it stand in a notebook that it does not trust.
BORDER = "border: 1px solid; padding: 2px 8px; text-align: center"
HEAD = "padding: 2px 8px; text-align: center; font-weight: normal; opacity: 0.8"


@dataclass(frozen=True)
class Layout:
    """A name for it, and the part that each device holds, by the device's id."""

    title: str
    parts: dict[int, Part]

    def axes(self) -> list[int]:
        """The axes that are cut."""
        ranks = range(min(len(part) for part in self.parts.values()))
        return [axis for axis in ranks if len(self.pieces(axis)) > 1]

    def pieces(self, axis: int) -> list[tuple[int, int]]:
        """The different parts of one axis, in order."""
        return sorted({part[axis] for part in self.parts.values()})

    def grid(self) -> tuple[list[Piece], list[Piece], list[list[str]]]:
        """The pieces down and across, and for each pair the devices that hold it. With one cut axis, only axis 0 goes
        down; what is not cut has one piece, which is all of it."""
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


def layouts(compared: FailedComparison | None) -> list[Layout]:
    """Those that a comparison is about, found before wanted: at most one of each side."""
    if compared is None:
        return []
    sides = (("got", compared.found), ("wanted", compared.wanted))
    found = [layout for title, side in sides if (layout := _first(title, side, compared.frame)) is not None]
    return [layout for layout in found if _drawable(layout)]


def _first(title: str, side: Side, frame: FrameType) -> Layout | None:
    for value in _values(side, frame):
        parts = _parts(value)
        if parts is not None:
            return Layout(title, parts)
    return None


def _values(side: Side, frame: FrameType) -> Iterator[Any]:
    """The values in one side of a comparison, from the whole to its pieces."""
    for node in ast.walk(side.origin):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            try:
                yield evaluate(node, frame)
            except NotEvaluable:
                continue


def _parts(value: Any) -> dict[int, Part] | None:
    """By device: of an array on several devices, or of a dict that says just that."""
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


def _drawable(layout: Layout) -> bool:
    cut = layout.axes()
    same_rank = len({len(part) for part in layout.parts.values()}) == 1
    return same_rank and len(cut) <= 2 and all(len(layout.pieces(axis)) <= MOST_PIECES for axis in cut)


def html(drawn: list[Layout]) -> str:
    """The grids beside each other; a cell has the ids of the devices that hold this part."""
    cells = "".join(
        f'<td style="padding: 4px 24px 4px 0; text-align: left; vertical-align: top">{escape(layout.title)}: '
        f"{escape(_words(layout))}{_grid(layout)}</td>"
        for layout in drawn
    )
    said = "<div>In each cell: the devices that hold this part.</div>"
    return f'<table style="margin: 0"><tbody><tr>{cells}</tr></tbody></table>{said}'


def _grid(layout: Layout) -> str:
    rows, columns, holders = layout.grid()
    lines = [] if columns == [None] else [_row("", [_span(piece) for piece in columns], HEAD)]
    lines += [_row(_span(piece), cells, BORDER) for piece, cells in zip(rows, holders, strict=True)]
    return f'<table style="border-collapse: collapse; margin: 4px 0"><tbody>{"".join(lines)}</tbody></table>'


def _row(head: str, cells: list[str], style: str) -> str:
    body = "".join(f'<td style="{style}">{escape(cell)}</td>' for cell in cells)
    return f'<tr style="background: none"><td style="{HEAD}">{escape(head)}</td>{body}</tr>'


def _span(piece: Piece) -> str:
    return "" if piece is None else f"{piece[0]}:{piece[1]}"


def _words(layout: Layout) -> str:
    cut = [f"axis {axis} in {len(layout.pieces(axis))}" for axis in layout.axes()]
    return " and ".join(cut) if cut else f"all of it on each of {len(layout.parts)} devices"


def plain(drawn: list[Layout]) -> list[str]:
    """A line for each: the devices of the parts, `|` between those of the axis across, `/` between those down."""
    return [
        legible(f"  {layout.title}: {_words(layout)}; devices {_line(layout.grid()[2])}", WIDTH - 4) for layout in drawn
    ]


def _line(holders: list[list[str]]) -> str:
    return " / ".join(" | ".join(row) for row in holders)
