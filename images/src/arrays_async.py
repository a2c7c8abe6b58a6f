"""Draws asynchronous dispatch: what a clock shows that is read at once, and one that is read after waiting."""

from style import DEVICES, PLAIN, QUIET, RESULT, arrow, box, card, save, words

axes = card(16, 9.4)
LEFT, STEP, WAITING = 3.2, 3.3, DEVICES[4]

for top, title in ((0.6, "the clock is read at once"), (5.0, "the clock is read after block_until_ready")):
    waits = top > 1
    words(axes, 8, top, title, size=12, bold=True)
    words(axes, 1.5, top + 1.0, "Python", size=11, bold=True)
    words(axes, 1.5, top + 2.35, "device", size=11, bold=True)
    for y in (top + 1.0, top + 2.35):
        axes.plot([LEFT - 0.5, 15.4], [y, y], color="#c9c4b8", linewidth=1, zorder=1)
    for i in range(3):
        box(axes, LEFT + 0.75 * i, top + 0.7, 0.65, 0.6, "call", fill=PLAIN, size=7.5)
        box(axes, LEFT + 0.35 + STEP * i, top + 2.0, STEP - 0.1, 0.7, f"product {i + 1}", fill=RESULT, size=10)
        arrow(axes, (LEFT + 0.32 + 0.75 * i, top + 1.3), (LEFT + 0.6 + STEP * i, top + 1.97), dashed=i > 0)
    end = LEFT + 0.35 + 3 * STEP if waits else LEFT + 2.25
    if waits:
        box(axes, LEFT + 2.3, top + 0.7, end - LEFT - 2.3, 0.6, "wait", fill=WAITING, size=10)
        arrow(axes, (end - 0.2, top + 1.97), (end - 0.05, top + 1.33))
    axes.plot([LEFT, LEFT], [top + 0.55, top + 3.55], color="#1d2430", linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    axes.plot([end, end], [top + 0.55, top + 3.55], color="#1d2430", linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate("", (LEFT, top + 3.3), (end, top + 3.3), arrowprops={"arrowstyle": "<->", "color": "#1d2430"})
    if waits:
        words(axes, (LEFT + end) / 2, top + 3.68, "measured: the time until the result is ready", size=10)
    else:
        words(axes, LEFT + 2.5, top + 3.3, "measured: the dispatch only", size=10, align="left")

words(axes, 14.6, 9.05, "time", size=9, colour=QUIET, align="right")
arrow(axes, (14.7, 9.05), (15.4, 9.05), colour=QUIET)

save(axes, __file__)
