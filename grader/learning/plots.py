"""Plots of lessons: one style, and words for learners who do not see the picture.

    from grader.learning import plots
    _, axes = plots.subplots(height=2.6)
    axes.plot(losses, label="loss")
    plots.show(f"The loss falls from {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps.")

    plots.show_shardings({"the batch": x, "the weights": w})  # which device stores which part

Lines differ in colour and in dashes, areas in colour and in hatching. The background is opaque and light, as in the
course's other pictures (images/src/style.py), so that a plot reads the same in JupyterLab's light and dark theme.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

# Okabe and Ito's colours, which colour-blind readers can tell apart (https://jfly.uni-koeln.de/color/), darker first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
# For areas that dark words stand beside: fill and hatching.
FILLS = (("#f0c75e", ""), ("#7fcba4", "//"), ("#c9a3dc", ".."))
# A device has the same colour as in the drawn pictures (images/src/style.py), and its number stands on it.
DEVICES = ("#7db8e8", "#f0c75e", "#7fcba4", "#e8875f", "#c9a3dc", "#a8d5e8", "#d6cf6b", "#e3b0c4")
PAPER, INK, QUIET = "#fbfaf7", "#1d2430", "#5a6270"
WIDTH, HEIGHT = 7.0, 2.8  # inches: as wide as a narrow window's cell
DOTS = 144  # for each inch; shown at SHOWN for each inch, so it is sharp on a fine screen
SHOWN = 96
STYLE = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("axes.labelcolor", "axes.titlecolor", "text.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlesize": 10,
    "font.size": 9.5,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.8,
}


def subplots(rows: int = 1, columns: int = 1, *, width: float = WIDTH, height: float = HEIGHT, **options: Any) -> Any:
    """Calls `matplotlib.pyplot.subplots` in the course's style; sizes in inches. Returns the figure and its axes."""
    import matplotlib.pyplot as plt
    from matplotlib.rcsetup import cycler

    plt.style.use({**STYLE, "axes.prop_cycle": cycler(color=COLOURS, linestyle=DASHES)})
    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)


def show(alt: str) -> None:
    """Shows the figure that was drawn last, then closes it. `alt` tells what there is to see, with numbers of this run;
    notebook pages, PDF and plain terminals contain it too."""
    import matplotlib.pyplot as plt
    from IPython.display import display

    figure, drawn = plt.gcf(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS, bbox_inches="tight")
    plt.close(figure)
    words, picture = " ".join(alt.split()), base64.b64encode(drawn.getvalue()).decode()
    width = int.from_bytes(drawn.getvalue()[16:20], "big") * SHOWN // DOTS  # a PNG states its width there
    # JupyterLab has no place for words beside image/png, so there it is HTML; nbconvert reads them from the metadata.
    page = f'<img alt="{escape(words)}" width="{width}" src="data:image/png;base64,{picture}">'
    data = {"text/html": page, "image/png": picture, "text/plain": words}
    display(data, metadata={"image/png": {"alt": words, "width": width}}, raw=True)


class Layout(NamedTuple):
    """A partition of an array over devices.

    Attributes:
        title: name of the array, or its spec.
        spec: the partition spec as text; empty where the sharding has none.
        shape, shard_shape: of the whole array and of the part that one device stores.
        holders: for each shard, (start, stop) along each axis, the ids of the devices that store it.
    """

    title: str
    spec: str
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    holders: dict[tuple[tuple[int, int], ...], list[int]]

    @property
    def copies(self) -> int:
        """The number of devices that store each shard."""
        return len(next(iter(self.holders.values())))

    @property
    def subtitle(self) -> str:
        """The spec, unless the title states it."""
        return "" if self.spec in self.title else self.spec


def show_shardings(arrays: Mapping[str, Any] | Sequence[Any], alt: str = "") -> None:
    """Shows in one figure which device stores which part of each array.

    A shard that is stored on one device has the colour of this device. A replicated shard contains the numbers of all
    devices that store it.

    Args:
        arrays: a dict from titles to arrays, or a sequence of arrays, whose titles are their specs. Each is a JAX array
            or a `jax.ShapeDtypeStruct` with a sharding, or a pair (sharding, shape), and has at most two axes.
        alt: a description of the figure. The spec, the shard shape and the devices of each array are appended to it.

    Raises:
        ValueError: an array has more than two axes.
    """
    pairs = arrays.items() if isinstance(arrays, Mapping) else (("", array) for array in arrays)
    layouts = [_layout(title, array) for title, array in pairs]
    down = math.ceil(len(layouts) / 4)
    across = math.ceil(len(layouts) / down)
    width = WIDTH / max(across, 2) - 0.4  # inches of one array; beside it are the numbers of its rows
    heights = [max(_height(one, width) for one in layouts[row * across :][:across]) for row in range(down)]
    size = {"width": WIDTH if across > 1 else WIDTH / 2, "height": sum(heights) + 0.95 * down - 0.15}
    figure, grid = subplots(down, across, **size, squeeze=False, height_ratios=[one + 0.4 for one in heights])
    figure.get_layout_engine().set(hspace=0.1)
    for axes in grid.flat[len(layouts) :]:
        axes.axis("off")
    for axes, layout in zip(grid.flat, layouts, strict=False):
        _draw(axes, layout, width)
    show(" ".join([alt, *map(_description, layouts)]))


def _layout(title: str, array: Any) -> Layout:
    sharding, shape = array if isinstance(array, tuple) else (array.sharding, array.shape)
    shape = tuple(shape)
    if len(shape) > 2:
        raise ValueError(f"This figure draws arrays of at most two axes; the shape here is {shape}. Pass a slice.")
    holders = defaultdict(list)
    for device, index in sharding.devices_indices_map(shape).items():
        part = tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
        holders[part].append(device.id)
    spec = str(getattr(sharding, "spec", "")).replace(",)", ")")
    return Layout(title or spec, spec, shape, tuple(sharding.shard_shape(shape)), dict(holders))


def _height(layout: Layout, width: float) -> float:
    """The height in inches of an array drawn `width` inches wide, roughly to scale."""
    if len(layout.shape) < 2:
        return 0.5
    rows, columns = layout.shape
    readable = 0.18 * len({part[0] for part in layout.holders})  # a line of text in each shard
    return max(width * min(max(rows / max(columns, 1), 0.4), 1.2), readable)


def _draw(axes: Any, layout: Layout, width: float) -> None:
    from matplotlib.patches import Rectangle

    rows, columns = (1, 1, *layout.shape)[-2:]
    height = _height(layout, width)
    for part, devices in layout.holders.items():
        (top, bottom), (left, right) = ((0, 1), (0, 1), *part)[-2:]
        fill = DEVICES[devices[0] % len(DEVICES)] if len(devices) == 1 else PAPER
        box = Rectangle((left, top), right - left, bottom - top, facecolor=fill, edgecolor=INK, linewidth=1.2)
        axes.add_patch(box)
        across = _copies_across(len(devices), width * (right - left) / columns, height * (bottom - top) / rows)
        down = len(devices) // across
        for place, device in enumerate(devices):
            row, column = divmod(place, across)
            x, y = left + (column + 0.5) * (right - left) / across, top + (row + 0.5) * (bottom - top) / down
            disc = {"boxstyle": "circle,pad=0.25", "linewidth": 0, "facecolor": DEVICES[device % len(DEVICES)]}
            axes.text(x, y, str(device), ha="center", va="center", bbox=disc if len(devices) > 1 else None)
    axes.set(xlim=(0, columns), ylim=(rows, 0), anchor="N")
    axes.set_box_aspect(height / width)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    axes.set_xticks(_cuts(layout, -1, 0.08 + 0.09 * len(str(columns)), width) if layout.shape else [])
    axes.set_yticks(_cuts(layout, 0, 0.15, height) if len(layout.shape) == 2 else [])
    axes.set_title(textwrap.fill(layout.title, round(12 * width)), fontweight="bold")
    axes.set_xlabel("\n".join(filter(None, [layout.subtitle, _caption(layout)])), fontsize=8.5)


def _copies_across(count: int, width: float, height: float) -> int:
    """How many of `count` copies stand beside each other in a shard of this size: those above each other are as many,
    and all have about as much room to the side as above."""
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    return min(divisors, key=lambda across: abs(math.log(count * width / (across**2 * height))))


def _caption(layout: Layout) -> str:
    if len(layout.holders) == 1:
        return f"not partitioned, {layout.copies} copies" if layout.copies > 1 else "on one device"
    return f"shards {layout.shard_shape}" + (f", {layout.copies} copies" if layout.copies > 1 else "")


def _cuts(layout: Layout, axis: int, number: float, room: float) -> list[int]:
    """The ends of the shards along an axis, or some of them where a number needs more inches than there are."""
    cuts = sorted({end for part in layout.holders for end in part[axis]})
    step = math.ceil((len(cuts) - 1) * number / room)
    return cuts[:: max(step, 1)]


def _description(layout: Layout) -> str:
    name = ", ".join(filter(None, [layout.title, layout.subtitle, f"shape {layout.shape}"]))
    on = f"on {layout.copies} devices" if layout.copies > 1 else "on one device"
    rows = defaultdict(list)
    for part, devices in sorted(layout.holders.items()):
        rows[part[:-1]].append(" ".join(map(str, sorted(devices))))
    stored = " / ".join(" | ".join(row) for row in rows.values())
    if len(layout.holders) == 1:
        return f"{name}: not partitioned, {on}, {stored}."
    order = "Devices row by row" if len(layout.shape) == 2 else "Devices in order"
    return f"{name}: {len(layout.holders)} shards of shape {layout.shard_shape}, each {on}. {order}: {stored}."
