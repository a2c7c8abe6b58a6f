"""Two shapes drawn small beside each other, got and wanted, and in words what is between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = Sequence[int]
MOST_CELLS = 8  # of an axis that is drawn cell by cell
# No colour: it is the text's, in any theme, and JupyterLab lets it stand in a notebook that it does not trust.
BORDER = "border: 1px solid; padding: 0; text-align: center"


def html(got: Shape, wanted: Shape) -> str:
    """Both as pictures of their last two axes, the others as factors before them, and the difference in words."""
    cells = "".join(
        f'<td style="padding: 4px 24px 4px 0; text-align: left; vertical-align: top">{name} <code>{tuple(shape)}</code>'
        f"{_drawn(shape)}</td>"
        for name, shape in (("got", got), ("wanted", wanted))
    )
    said = difference(got, wanted)
    return f'<table style="margin: 0"><tbody><tr>{cells}</tr></tbody></table>' + (f"<div>{said}</div>" if said else "")


def plain(got: Shape, wanted: Shape) -> list[str]:
    """The difference in words, else the shapes."""
    return [f"  {difference(got, wanted) or f'got {tuple(got)}; wanted {tuple(wanted)}'}"]


def difference(got: Shape, wanted: Shape) -> str:
    """Such as "Axis 1 of size 3 is missing."; nothing where no sentence says it better than the shapes."""
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
    places = [i for i in range(len(longer)) if longer[:i] + longer[i + 1 :] == shorter]
    if not places:
        return ""
    size = longer[places[0]]
    return f"Axis {places[0]}, of size {size}, {what}." if len(places) == 1 else f"An axis of size {size} {what}."


def _drawn(shape: Shape) -> str:
    """A grid of cells where it is small, else a box with its sizes."""
    *leading, rows, columns = (1, 1, *shape) if len(shape) < 2 else shape
    before = " × ".join(str(size) for size in leading if len(shape) > 2)
    if not shape:
        return '<div style="margin: 4px 0">one number</div>'
    if 0 < rows <= MOST_CELLS and 0 < columns <= MOST_CELLS:
        cell = f'<td style="{BORDER}; width: 14px; height: 14px">&nbsp;</td>'
        body = f'<tr style="background: none">{cell * columns}</tr>' * rows
    else:
        size = f"width: {_extent(columns)}px; height: {_extent(rows)}px"
        sizes = f"{rows} × {columns}" if len(shape) > 1 else str(columns)
        body = f'<tr style="background: none"><td style="{BORDER}; {size}">{sizes}</td></tr>'
    grid = f'<table style="border-collapse: collapse; margin: 4px 0"><tbody>{body}</tbody></table>'
    return f"<div>{before} ×</div>{grid}" if before else grid


def _extent(size: int) -> int:
    """Pixels for an axis: more for a longer one, never too many."""
    return round(min(26 + 10 * math.log2(max(size, 1)), 120))
