"""Draws gradient accumulation: an all-reduce in every iteration of the loop, against one after it."""

from matplotlib.patches import FancyBboxPatch
from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, WRONG, arrow, card, cells, save, words

axes = card(17, 9.1)
N, SIZE, GAP = 8, 0.4, 0.1
TOP = 2.35
HEIGHT = N * (SIZE + GAP) - GAP


def micro_batch(x: float, number: int) -> None:
    """The gradients that eight devices compute of one micro-batch."""
    cells(axes, x, TOP, N, 1, MAPPED, size=SIZE, row_gap=GAP, words=[[f"g{number}"]] * N)


def all_reduce(x: float) -> None:
    """A bar over all devices: they have to wait for each other here."""
    axes.add_patch(
        FancyBboxPatch(
            (x, TOP - 0.12),
            0.42,
            HEIGHT + 0.24,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor=WRONG,
            edgecolor=INK,
            linewidth=1,
            zorder=2,
        )
    )
    words(axes, x + 0.21, TOP + HEIGHT / 2, "all-reduce", size=9.5, bold=True, turn=90)


def totals(x: float, fill: str, text: str) -> None:
    """What every device holds of the sum."""
    cells(axes, x, TOP, N, 1, fill, size=SIZE, row_gap=GAP, words=[[text]] * N)


words(axes, 4.75, 0.65, "reduced in the loop", size=13, bold=True)
words(axes, 4.75, 1.2, "the carry is one sum: p.shape", size=10, code=True, colour=QUIET)
words(axes, 13.0, 0.65, "reduced once", size=13, bold=True)
words(axes, 13.0, 1.2, "the carry is a sum on each device: (8, *p.shape)", size=10, code=True, colour=QUIET)

for device in range(N):
    y = TOP + device * (SIZE + GAP) + SIZE / 2
    words(axes, 0.95, y, f"device {device}", size=9, colour=QUIET)

for number in range(1, 5):
    x = 1.75 + (number - 1) * 1.55
    micro_batch(x, number)
    all_reduce(x + 0.62)
    if number < 4:
        arrow(axes, (x + 1.1, TOP + HEIGHT / 2), (x + 1.48, TOP + HEIGHT / 2))
    words(axes, x + 0.2, TOP - 0.4, f"{number}", size=10, colour=QUIET)
words(axes, 1.5, TOP - 0.4, "iteration", size=9, colour=QUIET, align="right")
arrow(axes, (7.5, TOP + HEIGHT / 2), (7.9, TOP + HEIGHT / 2))
totals(8.0, RESULT, "Σ")

axes.plot([8.95, 8.95], [0.5, 7.6], color=EDGE, linewidth=1)

for number in range(1, 5):
    x = 10.0 + (number - 1) * 1.0
    micro_batch(x, number)
    words(axes, x + 0.2, TOP - 0.4, f"{number}", size=10, colour=QUIET)
    if number < 4:
        for device in range(N):
            y = TOP + device * (SIZE + GAP) + SIZE / 2
            words(axes, x + 0.7, y, "+", size=11, bold=True)
words(axes, 9.9, TOP - 0.4, "iteration", size=9, colour=QUIET, align="right")
for device in range(N):
    y = TOP + device * (SIZE + GAP) + SIZE / 2
    arrow(axes, (13.5, y), (13.85, y))
totals(13.9, PLAIN, "Σ")
all_reduce(14.6)
arrow(axes, (15.1, TOP + HEIGHT / 2), (15.55, TOP + HEIGHT / 2))
totals(15.65, RESULT, "Σ")
words(axes, 14.1, TOP - 0.4, "own", size=9, colour=QUIET)
words(axes, 15.85, TOP - 0.4, "of all", size=9, colour=QUIET)
words(axes, 8.2, TOP - 0.4, "of all", size=9, colour=QUIET)

words(axes, 4.75, 7.1, "four all-reduces: four times,\nall devices wait for the slowest", size=10.5)
words(axes, 13.0, 7.1, "one all-reduce:\nno device waits inside the loop", size=10.5)
words(
    axes,
    8.5,
    8.4,
    "g2 on device 3 is the gradient of device 3's examples of micro-batch 2. Sums may be taken in any order:\n"
    "first over micro-batches on each device, then once over devices.",
    size=9.5,
    colour=QUIET,
)
save(axes, __file__)
