"""Draws how files become batches: Python, one example at a time up to collate_fn, then one program for a batch."""

from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, cells, save, words

axes = card(17, 8)
words(axes, 0.6, 0.7, "From a file to a program", size=13, align="left", bold=True)
axes.plot([0.6, 16.4], [1.2, 1.2], color=EDGE, linewidth=1)

words(axes, 5.4, 1.7, "Python, one example at a time", size=10.5, colour=QUIET)
words(axes, 13.9, 1.7, "one program, a batch at a time", size=10.5, colour=QUIET)
axes.plot([11.35, 11.35], [1.5, 7.4], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))

box(axes, 0.6, 2.7, 2.7, 1.0, "data_set[i]", fill="white")
cells(
    axes,
    0.85,
    4.25,
    4,
    4,
    [[PLAIN, INK, INK, PLAIN]] + [[PLAIN, PLAIN, INK, PLAIN]] * 2 + [[PLAIN, INK, INK, INK]],
    size=0.3,
)
words(axes, 2.35, 4.85, ", 2", size=11, align="left", code=True)
words(axes, 1.95, 6.0, "an image\nand its label", size=9.5, colour=QUIET)
arrow(axes, (1.95, 3.75), (1.95, 4.15))

box(axes, 4.3, 2.7, 2.6, 1.0, "DataLoader", fill=SHARED)
arrow(axes, (4.25, 3.0), (3.35, 3.0))
words(axes, 3.8, 2.7, "i", size=10, code=True)
arrow(axes, (3.35, 3.4), (4.25, 3.4))
words(axes, 5.6, 4.35, "draws an order,\nrequests 128,\npasses on a list", size=9.5, colour=QUIET)

box(axes, 7.9, 2.7, 2.5, 1.0, "collate_fn", fill="white")
arrow(axes, (6.95, 3.2), (7.85, 3.2))
for k in range(4):
    cells(axes, 7.95 + 0.13 * k, 4.55 - 0.13 * k, 1, 1, MAPPED, size=1.1)
words(axes, 9.75, 4.75, "(128,\n 28, 28, 1)", size=9, align="left", code=True)
cells(axes, 7.95, 6.0, 1, 4, MAPPED, size=0.36)
words(axes, 9.75, 6.2, "(128,)", size=9, align="left", code=True)
words(axes, 9.1, 6.95, "stacks into NumPy arrays", size=9.5, colour=QUIET)
arrow(axes, (9.0, 3.75), (9.0, 4.05))

box(axes, 12.3, 2.7, 3.2, 1.0, "step, compiled", fill=RESULT)
arrow(axes, (10.45, 3.2), (12.25, 3.2))
arrow(axes, (13.9, 3.75), (13.9, 4.5))
box(axes, 12.3, 4.55, 3.2, 0.9, "model, optimizer", fill=MAPPED)
axes.plot([15.55, 16.2, 16.2], [5.0, 5.0, 3.2], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
arrow(axes, (16.2, 3.2), (15.55, 3.2), colour=QUIET)
words(axes, 13.9, 6.2, "always the same shapes,\nso it is compiled once", size=9.5, colour=QUIET)
save(axes, __file__)
