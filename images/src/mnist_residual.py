"""Draws a residual block, and a network of blocks with the straight path from the first layer to the last."""

from matplotlib.patches import Circle
from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, save, words

axes = card(17, 8.6)
words(axes, 0.6, 0.7, "A block adds to its input", size=13, align="left", bold=True)
words(axes, 8.0, 0.72, "x + scale * relu(conv(x))", size=11, align="left", code=True)
axes.plot([0.6, 16.4], [1.2, 1.2], color=EDGE, linewidth=1)


def plus(x: float, y: float, size: float = 0.28) -> None:
    """The place where two paths are added."""
    axes.add_patch(Circle((x, y), size, facecolor=RESULT, edgecolor=INK, linewidth=1, zorder=3))
    words(axes, x, y, "+", size=12, bold=True)


words(axes, 1.3, 2.2, "x", size=12, code=True)
arrow(axes, (1.6, 2.2), (12.65, 2.2))
words(axes, 7.0, 1.85, "straight path: the input is added unchanged, and gradients flow back", size=10, colour=QUIET)
plus(12.95, 2.2)
arrow(axes, (13.25, 2.2), (15.2, 2.2))
axes.plot([2.6, 2.6], [2.2, 3.6], color=INK, linewidth=1.3)
arrow(axes, (2.6, 3.6), (3.75, 3.6))
box(axes, 3.8, 3.15, 3.0, 0.9, "conv 3 × 3", fill=SHARED)
arrow(axes, (6.85, 3.6), (8.15, 3.6))
box(axes, 8.2, 3.15, 2.2, 0.9, "relu", fill="white")
axes.plot([10.45, 12.95], [3.6, 3.6], color=INK, linewidth=1.3)
words(axes, 11.6, 3.9, "times 1 / depth", size=9.5, colour=QUIET)
arrow(axes, (12.95, 3.6), (12.95, 2.53))

axes.plot([0.6, 16.4], [4.6, 4.6], color=EDGE, linewidth=1)
words(axes, 0.6, 5.15, "A network of blocks", size=13, align="left", bold=True)
box(axes, 0.7, 5.95, 2.2, 1.0, "conv, stride 2", fill=MAPPED, size=8.5)
ways = [3.9, 6.3, 10.1]
arrow(axes, (2.95, 6.45), (12.55, 6.45))
for x in ways:
    box(axes, x - 0.25, 7.15, 1.4, 0.65, "block", fill=SHARED, size=8.5)
    axes.plot([x - 0.55, x - 0.55], [6.45, 7.47], color=INK, linewidth=1.1)
    arrow(axes, (x - 0.55, 7.47), (x - 0.28, 7.47))
    axes.plot([x + 1.18, x + 1.45], [7.47, 7.47], color=INK, linewidth=1.1)
    arrow(axes, (x + 1.45, 7.47), (x + 1.45, 6.72))
    plus(x + 1.45, 6.45, 0.22)
words(axes, 8.65, 7.45, "…", size=14)
words(axes, 7.8, 8.15, "depth blocks: 2 on a laptop, 32 on an accelerator", size=10, colour=QUIET)
box(axes, 12.6, 5.95, 2.1, 1.0, "two linear\nlayers", fill=PLAIN, size=8.5)
arrow(axes, (14.75, 6.45), (15.3, 6.45))
words(axes, 15.85, 6.45, "ten\nscores", size=9.5)
save(axes, __file__)
