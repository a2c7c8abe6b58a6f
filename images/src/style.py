"""The one visual language of the course's pictures: a light card, one palette, cells, arrows and words.

A picture is a script beside this file that draws on a card and saves it:

    from style import MAPPED, card, cells, save
    axes = card(8, 4)
    cells(axes, 1, 1, rows=2, columns=3, fill=MAPPED)
    save(axes, __file__)

The card is opaque and light, so that a picture reads the same on a light and on a dark page. Every colour carries
one meaning in all pictures, and never the meaning alone: what a colour says, a word or a shape beside it says too.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

# Paul Tol's and Okabe and Ito's colour-blind-safe hues, lightened where dark words stand on them.
PAPER, EDGE = "#fbfaf7", "#c9c4b8"
INK, QUIET = "#1d2430", "#5a6270"
MAPPED = "#7db8e8"  # one example of many: what a transformation runs along
SHARED = "#f0c75e"  # one copy that everybody uses
RESULT = "#7fcba4"  # what comes out
WRONG = "#e8875f"  # what goes wrong, or what is moved at a cost
PLAIN = "#e6e3dc"  # there, but not what the picture is about
DEVICES = ("#7db8e8", "#f0c75e", "#7fcba4", "#e8875f", "#c9a3dc", "#a8d5e8", "#d6cf6b", "#e3b0c4")

MONO = "DejaVu Sans Mono"
IMAGES = Path(__file__).resolve().parent.parent

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "svg.hashsalt": "jaxercise",  # the same script gives the same bytes
        "svg.fonttype": "path",  # the same letters on every machine
    }
)


def card(width: float, height: float) -> Axes:
    """An empty card of `width` x `height` units (a unit is 0.62 inch, y grows downwards) with a rounded border."""
    figure = plt.figure(figsize=(0.62 * width, 0.62 * height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    axes.add_patch(
        FancyBboxPatch(
            (0.08, 0.08),
            width - 0.16,
            height - 0.16,
            boxstyle="round,pad=0,rounding_size=0.25",
            facecolor=PAPER,
            edgecolor=EDGE,
            linewidth=1.2,
            zorder=0,
        )
    )
    return axes


def cells(
    axes: Axes,
    x: float,
    y: float,
    rows: int,
    columns: int,
    fill: str | Sequence[Sequence[str]],
    size: float = 0.42,
    words: Sequence[Sequence[str]] | None = None,
    row_gap: float = 0.0,
    column_gap: float = 0.0,
) -> tuple[float, float]:
    """An array drawn as cells from the upper left corner (x, y); gives back the lower right corner.

    `fill` is one colour or one for each cell; `words` are written into the cells; gaps pull rows or columns apart.
    """
    for r in range(rows):
        for c in range(columns):
            left, top = x + c * (size + column_gap), y + r * (size + row_gap)
            colour = fill if isinstance(fill, str) else fill[r][c]
            axes.add_patch(Rectangle((left, top), size, size, facecolor=colour, edgecolor=INK, linewidth=0.8, zorder=2))
            if words is not None:
                axes.text(left + size / 2, top + size / 2, words[r][c], ha="center", va="center", fontsize=8, color=INK)
    return x + columns * size + (columns - 1) * column_gap, y + rows * size + (rows - 1) * row_gap


def words(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    size: float = 10,
    align: str = "center",
    code: bool = False,
    bold: bool = False,
    colour: str = INK,
    turn: float = 0,
) -> None:
    """Words around (x, y); `code` sets them in a fixed-width face."""
    axes.text(
        x,
        y,
        text,
        ha=align,
        va="center",
        fontsize=size,
        color=colour,
        rotation=turn,
        linespacing=1.45,
        family=MONO if code else "DejaVu Sans",
        weight="bold" if bold else "normal",
        zorder=4,
    )


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, fill: str = PLAIN, size: float = 10
) -> None:
    """A rounded box with code in its middle: a function, a device, a step."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=fill,
            edgecolor=INK,
            linewidth=1.0,
            zorder=2,
        )
    )
    words(axes, x + width / 2, y + height / 2, text, size=size, code=True)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str = INK,
    bend: float = 0.0,
    dashed: bool = False,
) -> None:
    """An arrow from start to end; `bend` curves it."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11,
            linewidth=1.3,
            color=colour,
            shrinkA=0,
            shrinkB=0,
            connectionstyle=f"arc3,rad={bend}",
            linestyle=(0, (4, 3)) if dashed else "solid",
            zorder=3,
        )
    )


def save(axes: Axes, script: str) -> Path:
    """Writes `images/<name of the script>.svg`: the same bytes each time, as it holds no date."""
    path = IMAGES / f"{Path(script).stem}.svg"
    axes.figure.savefig(path, metadata={"Date": None}, transparent=True)
    plt.close(axes.figure)
    return path
