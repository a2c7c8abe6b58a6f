"""Draws what a trace shows of one turn of a training loop."""

from matplotlib.patches import Rectangle
from style import INK, MAPPED, PLAIN, QUIET, SHARED, WRONG, arrow, card, save, words

axes = card(16, 5.2)


def bar(left: float, top: float, width: float, text: str, fill: str, height: float = 0.62, size: float = 9.5) -> None:
    """An event of the trace: from when to when, and its name."""
    axes.add_patch(Rectangle((left, top), width, height, facecolor=fill, edgecolor=INK, linewidth=0.9, zorder=2))
    words(axes, left + width / 2, top + height / 2, text, size=size, code=True)


def row(top: float, name: str) -> None:
    """The name of a row of the trace viewer."""
    words(axes, 0.6, top + 0.31, name, size=10, align="left", colour=QUIET)


words(axes, 0.6, 0.7, "One turn, as the trace viewer shows it", size=13, align="left", bold=True)
row(1.35, "python")
bar(3.0, 1.35, 12.2, "train 0", PLAIN)
bar(3.0, 1.97, 2.6, "load", SHARED)
bar(5.6, 1.97, 0.75, "call", MAPPED)
bar(6.35, 1.97, 8.6, "look", WRONG)
row(3.35, "device")
bar(6.1, 3.35, 6.9, "fusion.3", MAPPED)
for left, width in ((13.0, 0.9), (13.9, 0.35), (14.25, 0.5)):
    bar(left, 3.35, width, "", MAPPED)
arrow(axes, (5.95, 2.62), (6.12, 3.3))
words(axes, 4.45, 3.66, "idle", size=10, colour=QUIET)
words(axes, 10.6, 2.97, "look only waits for this", size=9.5, colour=QUIET)
words(axes, 6.1, 4.5, "Which line of mine is that?", size=10, align="left", bold=True)
save(axes, __file__)
