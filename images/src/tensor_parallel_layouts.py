"""Draws an MLP on two devices, with tensor parallelism and with sequence parallelism."""

from matplotlib.patches import Rectangle
from style import DEVICES, INK, PAPER, QUIET, RESULT, WRONG, arrow, card, save, words

FIRST, SECOND = DEVICES[:2]
axes = card(16.6, 11.6)


def array(x: float, y: float, width: float, height: float, name: str, fills: list[str], rows: bool = False) -> None:
    """A matrix in one or two parts, side by side or, with `rows`, one above the other."""
    for number, fill in enumerate(fills):
        share = number / len(fills)
        corner = (x, y + share * height) if rows else (x + share * width, y)
        size = (width, height / len(fills)) if rows else (width / len(fills), height)
        axes.add_patch(Rectangle(corner, *size, facecolor=fill, edgecolor=INK, linewidth=1.0, zorder=2))
    words(axes, x + width / 2, y - 0.28, name, size=8.5, code=True)


def collective(x: float, y: float, name: str) -> None:
    """An arrow with the name of a collective."""
    arrow(axes, (x, y), (x + 1.35, y), colour=WRONG)
    words(axes, x + 0.67, y - 0.3, name, size=8.5, bold=True)


def device(y: float, number: int, fill: str) -> None:
    axes.add_patch(Rectangle((0.45, y), 0.34, 0.34, facecolor=fill, edgecolor=INK, linewidth=0.8))
    words(axes, 0.95, y + 0.18, f"device {number}", size=9, align="left")


def row(y: float, number: int, sequence: bool) -> None:
    """What one device has: its tokens, its columns, its hidden units, its rows, its sums, its result."""
    fill = (FIRST, SECOND)[number]
    mine = lambda whole: [fill if i == number else PAPER for i in (0, 1)] if sequence else [whole] * 2
    parts = [fill if i == number else PAPER for i in (0, 1)]
    device(y + 0.75, number, fill)
    array(2.6, y, 1.2, 1.8, "x", mine(RESULT), rows=True)
    if sequence:
        collective(3.95, y + 0.9, "all-gather")
        array(5.45, y, 1.2, 1.8, "all tokens", [RESULT] * 2, rows=True)
    words(axes, 6.95 if sequence else 4.6, y + 0.9, "@", size=10, code=True)
    left = 7.25 if sequence else 5.0
    array(left, y + 0.3, 1.7, 1.2, "w1 by columns", parts)
    arrow(axes, (left + 1.85, y + 0.9), (left + 2.3, y + 0.9))
    array(left + 2.45, y, 1.7, 1.8, "hidden", parts)
    words(axes, left + 4.4, y + 0.9, "@", size=10, code=True)
    array(left + 4.65, y + 0.05, 1.2, 1.7, "w2 by rows", parts, rows=True)
    end = left + 6.0
    collective(end, y + 0.9, "reduce-scatter" if sequence else "all-reduce")
    array(end + 1.5, y, 1.2, 1.8, "result", mine(RESULT), rows=True)


words(axes, 0.45, 0.6, "Tensor parallelism", size=12, align="left", bold=True)
row(1.5, 0, sequence=False)
row(4.0, 1, sequence=False)
words(axes, 0.45, 6.25, "Tensor and sequence parallelism", size=12, align="left", bold=True)
row(7.0, 0, sequence=True)
row(9.3, 1, sequence=True)
words(axes, 12.9, 0.6, "green: the same on both devices; white: not stored here", size=8.5, colour=QUIET)
save(axes, __file__)
