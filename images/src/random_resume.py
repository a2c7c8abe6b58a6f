"""Draws a run that is resumed at step 3, with keys from a chain of splits and with keys from fold_in."""

from style import EDGE, INK, MAPPED, QUIET, RESULT, SHARED, WRONG, arrow, box, card, save, words

axes = card(16, 9.4)
xs = [3.0 + 2.15 * i for i in range(6)]

words(axes, 0.5, 0.7, "a chain of splits", size=12, align="left", bold=True)
words(axes, 0.5, 1.15, "each key is derived from the previous one", size=9.5, align="left", colour=QUIET)
box(axes, 0.5, 1.75, 1.4, 0.75, "key", fill=SHARED)
arrow(axes, (1.9, 2.12), (xs[0] - 0.05, 2.12))
for i, x in enumerate(xs):
    box(axes, x, 1.75, 1.5, 0.75, "chain", fill=SHARED if i < 3 else WRONG, size=9)
    if i:
        arrow(axes, (xs[i - 1] + 1.5, 2.12), (x - 0.05, 2.12))
    arrow(axes, (x + 0.75, 2.5), (x + 0.75, 3.15))
    box(axes, x, 3.2, 1.5, 0.75, f"step {i}", fill=RESULT if i < 3 else MAPPED, size=9.5)
words(axes, (xs[3] + xs[5]) / 2 + 0.75, 1.15, "needed: the last key of the chain,\nor all splits again", size=9.5)

words(axes, 0.5, 5.1, "fold_in", size=12, align="left", code=True, bold=True)
words(axes, 0.5, 5.55, "each key is derived from the first one", size=9.5, align="left", colour=QUIET)
box(axes, 6.9, 5.0, 3.6, 0.75, "key", fill=SHARED)
for i, x in enumerate(xs):
    arrow(axes, (8.7, 5.75), (x + 0.75, 6.95))
    box(axes, x, 7.0, 1.5, 0.75, f"step {i}", fill=RESULT if i < 3 else MAPPED, size=9.5)
    words(axes, x + 0.75, 8.05, f"fold_in {i}", size=8.5, code=True)
words(axes, 15.5, 5.35, "needed: the first\nkey and 3", size=9.5, align="right")

stop = xs[2] + 1.82
axes.plot([stop, stop], [1.4, 8.3], color=INK, linewidth=1.3, linestyle=(0, (4, 3)))
axes.plot([0.5, 15.5], [4.5, 4.5], color=EDGE, linewidth=1)
words(axes, stop, 8.75, "the run stops here, and is resumed at step 3", size=10, bold=True)

save(axes, __file__)
