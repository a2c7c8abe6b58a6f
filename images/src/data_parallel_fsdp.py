"""Draws data parallelism beside FSDP: what each of eight devices holds, and what one of them communicates in a step."""

from matplotlib.patches import Rectangle
from style import DEVICES, EDGE, INK, MAPPED, PAPER, QUIET, RESULT, SHARED, WRONG, arrow, card, cells, save, words

MOMENTS = DEVICES[4]
N, WIDE, THIN, GAP = 8, 0.52, 0.17, 0.2
STEP = WIDE + GAP
LEFT, RIGHT = 3.9, 11.0  # where the eight devices of each half begin

axes = card(17.4, 13.1)


def holdings(x: float, y: float, fill: str, cut: bool, columns: int = 1) -> None:
    """Eight devices, each a stack of the eight shards of a tree: all of them, or its own alone."""
    for device in range(N):
        kept = [[fill if not cut or piece == device else PAPER] * columns for piece in range(N)]
        for piece in range(N):
            for column in range(columns):
                stack(
                    x + device * STEP + column * WIDE / columns, y + piece * THIN, WIDE / columns, kept[piece][column]
                )


def stack(x: float, y: float, width: float, fill: str) -> None:
    empty = fill == PAPER
    axes.add_patch(
        Rectangle(
            (x, y),
            width,
            THIN,
            facecolor=fill,
            edgecolor=EDGE if empty else INK,
            linewidth=0.5,
            zorder=1 if empty else 2,
        )
    )


def strip(x: float, y: float, fill: str, only: int | None = None) -> None:
    """The eight shards on device 2, in a row; with `only`, the one shard that it has."""
    for piece in range(N):
        colour = fill if only is None or piece == only else PAPER
        cells(axes, x + piece * 0.27, y, 1, 1, colour, size=0.27)


for x, title in ((LEFT, "Data parallel"), (RIGHT, "Fully sharded: FSDP")):
    words(axes, x + 3.9 * STEP - 0.05, 0.65, title, size=14, bold=True)
    for device in range(N):
        words(axes, x + device * STEP + WIDE / 2, 1.35, f"{device}", size=10, colour=QUIET)
        cells(axes, x + device * STEP + 0.05, 1.7, 1, 1, MAPPED, size=0.42, words=[[f"b{device}"]])
    words(axes, x - 0.25, 1.35, "device", size=9, align="right", colour=QUIET)

rows = [
    (1.91, "batch", "an eighth of the examples"),
    (3.3, "parameters", "eight shards of an array"),
    (5.1, "gradients", "of the same size"),
    (6.9, "Adam's moments", "two of the same size"),
]
for y, name, remark in rows:
    words(axes, 0.45, y - 0.17, name, size=11, align="left", bold=True)
    words(axes, 0.45, y + 0.22, remark, size=9, align="left", colour=QUIET)
for x, cut in ((LEFT, False), (RIGHT, True)):
    holdings(x, 2.6, SHARED, cut)
    holdings(x, 4.4, RESULT, cut)
    holdings(x, 6.2, MOMENTS, cut, columns=2)
words(axes, LEFT + 3.9 * STEP - 0.05, 7.95, "4 times the parameters on every device", size=11, bold=True)
words(axes, RIGHT + 3.9 * STEP - 0.05, 7.95, "an eighth of that on every device", size=11, bold=True)

axes.plot([0.5, 16.9], [8.4, 8.4], color=EDGE, linewidth=1)
words(axes, 0.45, 8.85, "One step on device 2", size=12, align="left", bold=True)

MINE = "#b9e0cc"  # its own gradient, before anything is reduced
for y, name in ((9.75, "forward"), (11.05, "backward"), (12.35, "update")):
    words(axes, 0.45, y, name, size=11, align="left", bold=True)


def travel(x: float, y: float, before: tuple[str, int | None], after: tuple[str, int | None], what: str) -> None:
    """What device 2 has before and after a collective, whose name stands at the arrow."""
    strip(x - 0.3, y - 0.14, *before)
    strip(x + 3.75, y - 0.14, *after)
    arrow(axes, (x + 1.98, y), (x + 3.65, y), colour=WRONG)
    words(axes, x + 2.8, y - 0.3, what, size=9.5, bold=True)


strip(LEFT - 0.3, 9.61, SHARED)
words(axes, LEFT + 2.05, 9.75, "has all weights: no communication", size=10, align="left")
travel(RIGHT, 9.75, (SHARED, 2), (SHARED, None), "all-gather")
words(axes, RIGHT + 2.75, 10.2, "weights of one layer, discarded after use", size=9, colour=QUIET)

travel(LEFT, 11.05, (MINE, None), (RESULT, None), "all-reduce")
words(axes, LEFT + 2.75, 11.5, "its own gradient becomes the mean of all eight", size=9, colour=QUIET)
travel(RIGHT, 11.05, (MINE, None), (RESULT, 2), "reduce-scatter")
words(axes, RIGHT + 2.75, 11.5, "its eighth of the mean (weights are gathered again)", size=9, colour=QUIET)

strip(LEFT - 0.3, 12.21, SHARED)
words(axes, LEFT + 2.05, 12.35, "updates everything, like every device", size=10, align="left")
strip(RIGHT - 0.3, 12.21, SHARED, 2)
words(axes, RIGHT + 2.05, 12.35, "updates its own eighth", size=10, align="left")

save(axes, __file__)
