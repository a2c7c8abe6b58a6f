"""Draws three ways to run a training loop, not to scale: as it was, mended, and looking later."""

from matplotlib.patches import Polygon, Rectangle
from style import INK, MAPPED, PAPER, QUIET, RESULT, SHARED, WRONG, card, save, words

axes = card(16, 6.6)

words(axes, 0.6, 0.7, "Three ways to run the loop", size=13, align="left", bold=True)
words(
    axes,
    15.6,
    0.7,
    "not to scale: the bars with a gap are far longer than all others",
    size=9,
    align="right",
    colour=QUIET,
)


def lane(top: float, name: str, note: str, events: list[tuple[float, float, str]]) -> None:
    """Python's row and the device's below it; an event is begin, length and kind."""
    words(axes, 0.6, top + 0.2, name, size=10, align="left", bold=True)
    words(axes, 0.6, top + 0.66, note, size=9, align="left", colour=QUIET)
    fills = {"load": SHARED, "look": WRONG, "work": MAPPED}
    for begin, length, kind in events:
        below = kind == "work"
        axes.add_patch(
            Rectangle(
                (4.4 + begin, top + (0.48 if below else 0)),
                length,
                0.4,
                facecolor=fills[kind],
                edgecolor=INK,
                linewidth=0.8,
                zorder=2,
            )
        )


slow, quick, wait = 4.2, 0.55, 1.0
turns: list[tuple[float, float, str]] = []
for i in range(2):
    at = i * (wait + slow)
    turns += [(at, wait, "load"), (at + wait, slow, "look"), (at + wait, slow, "work")]
lane(1.55, "as it was", "two turns", turns)
for end in (wait + slow, 2 * (wait + slow)):
    left = 4.4 + end - slow / 2
    edges = [[(left + shift - 0.06, 2.5), (left + shift + 0.06, 1.48)] for shift in (0, 0.24)]
    axes.add_patch(Polygon([*edges[0], *edges[1][::-1]], facecolor=PAPER, zorder=3))  # the gap
    for edge in edges:
        axes.plot(*zip(*edge, strict=True), color=INK, linewidth=1, zorder=4)
turns = []
for i in range(6):
    at = i * (wait + quick)
    turns += [(at, wait, "load"), (at + wait, quick, "look"), (at + wait, quick, "work")]
lane(3.05, "mended", "six turns: idle while it loads", turns)
turns = []
for i in range(6):
    turns += [(i * wait, wait, "load"), ((i + 1) * wait, quick, "work")]
lane(4.55, "look later", "six turns: works meanwhile", [*turns, (6 * wait, quick, "look")])
for place, (fill, name) in enumerate(((SHARED, "load"), (WRONG, "look: Python waits"), (MAPPED, "the device works"))):
    left = 4.4 + 3.4 * place
    axes.add_patch(Rectangle((left, 5.85), 0.4, 0.3, facecolor=fill, edgecolor=INK, linewidth=0.8, zorder=2))
    words(axes, left + 0.6, 6.0, name, size=9.5, align="left")
axes.plot([4.4, 4.4], [1.35, 5.55], color=RESULT, linewidth=1.5)
save(axes, __file__)
