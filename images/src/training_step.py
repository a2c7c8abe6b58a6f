"""Draws one training step as a pure function: its inputs, its results, and what the next step gets."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, save, words

axes = card(16, 8.2)
words(axes, 0.6, 0.7, "One step is a function", size=13, align="left", bold=True)
words(axes, 6.1, 0.72, "params, state, value = step(params, state, xs, ys)", size=10.5, align="left", code=True)

box(axes, 0.7, 1.9, 2.1, 0.9, "params", fill=MAPPED)
box(axes, 0.7, 3.5, 2.1, 0.9, "xs, ys", fill=PLAIN)
box(axes, 0.7, 5.1, 2.1, 0.9, "state", fill=SHARED)

box(axes, 4.0, 2.65, 3.3, 0.95, "value_and_grad(loss)", fill="white")
box(axes, 8.3, 4.55, 2.5, 0.95, "tx.update", fill="white")
box(axes, 11.2, 1.87, 2.6, 0.95, "apply_updates", fill="white", size=9.5)

box(axes, 14.2, 1.9, 1.3, 0.9, "params", fill=MAPPED, size=8.5)
box(axes, 14.2, 4.58, 1.3, 0.9, "state", fill=SHARED, size=8.5)
box(axes, 8.9, 2.75, 1.3, 0.75, "value", fill=RESULT, size=9)

arrow(axes, (2.85, 2.35), (11.15, 2.35))
arrow(axes, (2.85, 2.5), (3.95, 2.95))
arrow(axes, (2.85, 3.95), (3.95, 3.3))
arrow(axes, (7.35, 3.1), (8.85, 3.1))
arrow(axes, (6.2, 3.65), (8.25, 4.85))
words(axes, 6.1, 4.3, "gradient", size=10, align="left", colour=QUIET)
arrow(axes, (2.85, 5.4), (8.25, 5.15))
axes.plot(10.45, 2.35, "o", color="#1d2430", markersize=4)
arrow(axes, (10.45, 2.35), (10.45, 4.5))
arrow(axes, (10.72, 4.5), (12.2, 2.88))
words(axes, 11.65, 3.8, "updates", size=10, align="left", colour=QUIET)
arrow(axes, (10.85, 5.03), (14.15, 5.03))
arrow(axes, (13.85, 2.35), (14.15, 2.35))

axes.plot([14.85, 14.85], [5.55, 6.7], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
axes.plot([15.65, 15.65], [2.35, 7.1], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
axes.plot([15.5, 15.65], [2.35, 2.35], color=QUIET, linewidth=1.3)
axes.plot([14.85, 1.75], [6.7, 6.7], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
axes.plot([15.65, 0.35], [7.1, 7.1], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
axes.plot([0.35, 0.35], [7.1, 2.35], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
arrow(axes, (0.35, 2.35), (0.66, 2.35), colour=QUIET)
arrow(axes, (1.75, 6.7), (1.75, 6.06), colour=QUIET)
words(axes, 8.2, 7.55, "into the next step, under the same names; nothing else is stored", size=10.5, colour=QUIET)
axes.plot([0.6, 15.4], [1.25, 1.25], color=EDGE, linewidth=1)
save(axes, __file__)
