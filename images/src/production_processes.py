"""Draws two processes that combine their local rows into one global array, and a sum over all devices."""

from matplotlib.patches import FancyBboxPatch, Rectangle
from style import DEVICES, EDGE, INK, PAPER, QUIET, RESULT, arrow, card, save, words

WIDTH, FRAME, GAP, TOP, SIZE = 18.0, 7.1, 2.8, 3.95, 0.62
MIDDLE = WIDTH / 2
axes = card(WIDTH, 9.2)


def block(x: float, y: float, text: str, fill: str) -> None:
    """One number in a cell."""
    axes.add_patch(Rectangle((x, y), SIZE, SIZE, facecolor=fill, edgecolor=INK, linewidth=1.0, zorder=2))
    words(axes, x + SIZE / 2, y + SIZE / 2, text, size=9, code=True)


for process in (0, 1):
    x = 0.5 + (FRAME + GAP) * process
    centre = x + FRAME / 2
    axes.add_patch(Rectangle((x, 0.9), FRAME, 7.4, facecolor="none", edgecolor=EDGE, linewidth=1.6))
    words(axes, x + 0.2, 0.55, f"process {process}", size=11, align="left", bold=True)
    words(axes, x + 0.3, 1.3, "loads its rows from its own files", size=9, align="left", colour=QUIET)
    for number in range(4):
        block(centre + (number - 2) * SIZE, 1.6, str(4 * process + number), PAPER)
    arrow(axes, (centre, 2.35), (centre, 3.0))
    words(axes, centre, 3.3, "a shard on each of its devices", size=9, colour=QUIET)
    for number in range(4):
        device = 4 * process + number
        place = centre + 1.6 * (number - 1.5) - SIZE / 2
        block(place, TOP, str(device), DEVICES[device])
        words(axes, place + SIZE / 2, TOP + SIZE + 0.3, f"device {device}", size=8)
        block(place, 6.75, "28", RESULT)
    arrow(axes, (centre, 5.4), (centre, 6.5))
    words(axes, centre, 7.75, "the sum, on every device", size=9, colour=QUIET)

# The array extends over both processes, so its outline is the only thing that crosses their frames.
axes.add_patch(
    FancyBboxPatch(
        (0.75, 3.65),
        WIDTH - 1.5,
        1.5,
        boxstyle="round,pad=0,rounding_size=0.2",
        facecolor="none",
        edgecolor=INK,
        linewidth=1.1,
        linestyle=(0, (4, 3)),
        zorder=3,
    )
)
words(axes, MIDDLE, TOP + 0.45, 'one global array\nof shape (8,),\nwith P("d")', size=9, bold=True)
words(axes, MIDDLE, 5.65, "all-reduce", size=9, bold=True)
arrow(axes, (MIDDLE, 5.95), (MIDDLE - GAP / 2 + 0.15, 5.95))
arrow(axes, (MIDDLE, 5.95), (MIDDLE + GAP / 2 - 0.15, 5.95))
words(
    axes,
    MIDDLE,
    8.75,
    "A process can read its own shards. The sum has the spec P(), so both processes can read it.",
    size=9,
)
save(axes, __file__)
