"""Draws two processes that combine their local rows into one global array, and a sum over all devices."""

from matplotlib.patches import Rectangle
from style import DEVICES, EDGE, INK, PAPER, QUIET, RESULT, arrow, card, save, words

axes = card(16.4, 9.2)
LEFT, TOP, SIZE = 1.2, 3.9, 0.62


def block(x: float, y: float, text: str, fill: str) -> None:
    """One number in a cell."""
    axes.add_patch(Rectangle((x, y), SIZE, SIZE, facecolor=fill, edgecolor=INK, linewidth=1.0, zorder=2))
    words(axes, x + SIZE / 2, y + SIZE / 2, text, size=9, code=True)


for process in (0, 1):
    x = 0.5 + 7.8 * process
    axes.add_patch(Rectangle((x, 0.9), 7.5, 7.4, facecolor="none", edgecolor=EDGE, linewidth=1.6))
    words(axes, x + 0.2, 0.55, f"process {process}", size=11, align="left", bold=True)
    words(axes, x + 0.3, 1.3, "loads its rows from its own files", size=9, align="left", colour=QUIET)
    for number in range(4):
        block(x + 2.5 + number * SIZE, 1.6, str(4 * process + number), PAPER)
    arrow(axes, (x + 3.75, 2.35), (x + 3.75, 3.25))
    words(axes, x + 3.75, 3.5, "a shard on each of its devices", size=9, colour=QUIET)
    for number in range(4):
        device = 4 * process + number
        place = x + 0.8 + 1.65 * number
        block(place, TOP, str(device), DEVICES[device])
        words(axes, place + SIZE / 2, TOP + SIZE + 0.25, f"device {device}", size=8)
        block(place, 6.75, "28", RESULT)
    words(axes, x + 3.75, 7.75, "the sum, on every device", size=9, colour=QUIET)

axes.add_patch(Rectangle((4.7, 4.92), 7.0, 0.42, facecolor=PAPER, edgecolor="none", zorder=1.5))
words(axes, 8.2, 5.13, 'one global array of shape (8,), with the spec P("d")', size=9.5, bold=True)
arrow(axes, (4.3, 5.4), (4.3, 6.5))
arrow(axes, (12.1, 5.4), (12.1, 6.5))
arrow(axes, (7.2, 6.0), (9.2, 6.0))
arrow(axes, (9.2, 6.0), (7.2, 6.0))
words(axes, 8.2, 5.7, "all-reduce", size=9, bold=True)
words(
    axes,
    8.2,
    8.75,
    "A process can read its own shards. The sum has the spec P(), so both processes can read it.",
    size=9,
)
save(axes, __file__)
