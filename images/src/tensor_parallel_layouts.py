"""Draws an MLP on two devices twice: with tensor parallelism, and with sequence parallelism as well."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from style import DEVICES, INK, PAPER, QUIET, RESULT, WRONG, arrow, card, save, words

SMALL, WIDE = 1.2, 1.7  # the width of an array over features, and over hidden units


def array(axes: Axes, x: float, y: float, size: tuple[float, float], name: str, fills: list[str], rows: bool) -> None:
    """An array in parts, one above the other with `rows`, side by side otherwise. `y` is its middle."""
    width, height = size
    for number, fill in enumerate(fills):
        share = number / len(fills)
        corner = (x, y + (share - 0.5) * height) if rows else (x + share * width, y - 0.5 * height)
        part = (width, height / len(fills)) if rows else (width / len(fills), height)
        axes.add_patch(Rectangle(corner, *part, facecolor=fill, edgecolor=INK, linewidth=1.0, zorder=2))
    words(axes, x + width / 2, y - height / 2 - 0.28, name, size=8.5, code=True)


def collective(axes: Axes, x: float, y: float, name: str) -> None:
    """An arrow with the name of a collective."""
    arrow(axes, (x, y), (x + 1.6, y), colour=WRONG)
    words(axes, x + 0.78, y - 0.3, name, size=8.5, bold=True)


def device(axes: Axes, y: float, number: int, sequence: bool) -> None:
    """What one device has, from its tokens to its result."""
    fill = DEVICES[number]
    parts = [fill if i == number else PAPER for i in (0, 1)]
    tokens = parts if sequence else [RESULT] * 2
    axes.add_patch(Rectangle((0.45, y - 0.17), 0.34, 0.34, facecolor=fill, edgecolor=INK, linewidth=0.8))
    words(axes, 0.95, y, f"device {number}", size=9, align="left")
    x = 2.5
    array(axes, x, y, (SMALL, 1.8), "x", tokens, rows=True)
    if sequence:
        collective(axes, x + 1.35, y, "all-gather")
        x += 3.1
        array(axes, x, y, (SMALL, 1.8), "all tokens", [RESULT] * 2, rows=True)
    words(axes, x + 1.5, y, "@", size=10, code=True)
    array(axes, x + 1.8, y, (WIDE, 1.2), "w1 by columns", parts, rows=False)
    arrow(axes, (x + 3.6, y), (x + 4.05, y))
    array(axes, x + 4.15, y, (WIDE, 1.8), "hidden", parts, rows=False)
    words(axes, x + 6.1, y, "@", size=10, code=True)
    array(axes, x + 6.35, y, (SMALL, WIDE), "w2 by rows", parts, rows=True)
    arrow(axes, (x + 7.65, y), (x + 8.1, y))
    array(axes, x + 8.2, y, (SMALL, 1.8), "partial sums", [fill] * 2, rows=True)
    collective(axes, x + 9.55, y, "reduce-scatter" if sequence else "all-reduce")
    array(axes, x + 11.3, y, (SMALL, 1.8), "result", tokens, rows=True)


for sequence, name in ((False, "tensor_parallel_layouts"), (True, "sequence_parallel_layouts")):
    width = 18.6 if sequence else 15.5
    axes = card(width, 6.2)
    title = "Tensor and sequence parallelism" if sequence else "Tensor parallelism"
    words(axes, 0.45, 0.5, title, size=12, align="left", bold=True)
    legend = "green: the same on both devices; white: not stored here"
    words(axes, width - 0.45, 0.5, legend, size=8.5, align="right", colour=QUIET)
    device(axes, 2.2, 0, sequence)
    device(axes, 4.8, 1, sequence)
    save(axes, name)
