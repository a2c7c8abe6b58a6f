"""Draws a transformer block: attention, then an MLP, each added to its input."""

from matplotlib.patches import Circle
from style import EDGE, INK, MAPPED, PLAIN, QUIET, SHARED, arrow, box, card, save, words

axes = card(19.4, 6.6)
LINE, HIGH = 3.3, 0.8  # the height of the main line, and of a box


def place(x: float, y: float, width: float, text: str, fill: str) -> None:
    box(axes, x, y - HIGH / 2, width, HIGH, text, fill, size=9)


def add(x: float) -> None:
    axes.add_patch(Circle((x, LINE), 0.28, facecolor="white", edgecolor=INK, linewidth=1.1, zorder=3))
    words(axes, x, LINE, "+", size=12, bold=True)


def group(left: float, right: float, name: str) -> None:
    axes.plot([left, left, right, right], [5.35, 5.5, 5.5, 5.35], color=EDGE, linewidth=1.6)
    words(axes, (left + right) / 2, 5.85, name, size=10, code=True, bold=True)


words(axes, 0.75, LINE, "x", size=12, code=True, bold=True)
words(axes, 0.75, LINE + 0.5, "(T, WIDTH)", size=7.5, code=True, colour=QUIET)
arrow(axes, (1.0, LINE), (1.75, LINE))
place(1.75, LINE, 1.75, "normalize", PLAIN)
for y, name in ((2.15, "q"), (LINE, "k"), (4.45, "v")):
    arrow(axes, (3.5, LINE), (4.2, y))
    place(4.2, y, 0.9, name, SHARED)
    if name == "v":
        arrow(axes, (5.1, y), (7.5, LINE + 0.3))
    else:
        arrow(axes, (5.1, y), (5.5, y))
        place(5.5, y, 1.35, "rotate", PLAIN)
        arrow(axes, (6.85, y), (7.5, LINE - (0.3 if name == "q" else 0)))
box(axes, 7.5, LINE - 0.75, 1.95, 1.5, "attention", MAPPED, size=9)
arrow(axes, (9.45, LINE), (10.0, LINE))
place(10.0, LINE, 0.9, "o", SHARED)
arrow(axes, (10.9, LINE), (11.42, LINE))
add(11.7)
arrow(axes, (11.98, LINE), (12.6, LINE))
place(12.6, LINE, 1.75, "normalize", PLAIN)
for x, name, width, fill in ((14.7, "up", 0.9, SHARED), (15.95, "silu", 0.9, PLAIN), (17.2, "down", 0.9, SHARED)):
    arrow(axes, (x - 0.35, LINE), (x, LINE))
    place(x, LINE, width, name, fill)
arrow(axes, (18.1, LINE), (18.35, LINE))
add(18.63)
for start, end in ((1.35, 11.7), (12.25, 18.63)):  # around attention, and around the MLP
    axes.plot([start, start, end], [LINE, 1.2, 1.2], color=INK, linewidth=1.3)
    arrow(axes, (end, 1.2), (end, LINE - 0.28))
    words(axes, (start + end) / 2, 0.85, "the input is added", size=9, colour=QUIET)
group(1.75, 6.85, "project")
group(10.0, 18.95, "finish")
words(axes, 8.45, 5.55, "the only step that\ncombines positions", size=8.5, colour=QUIET)
save(axes, __file__)
