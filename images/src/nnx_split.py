"""Draws what nnx.split makes of a model: its form, and a State for each kind of Variable; nnx.merge goes back."""

from style import DEVICES, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, cells, save, words

KEYS = DEVICES[4]
axes = card(16, 9.2)

words(axes, 3.4, 0.7, "a model", size=12, bold=True)
box(axes, 0.7, 1.1, 5.4, 6.5, "", fill=PLAIN)
words(axes, 1.0, 1.55, "Galaxy", size=12, code=True, bold=True, align="left")
box(axes, 1.1, 2.0, 4.6, 3.9, "", fill="white")
words(axes, 1.4, 2.4, "blocks[0]", size=10.5, code=True, align="left")
cells(axes, 1.4, 2.75, 2, 3, MAPPED)
words(axes, 2.95, 3.17, "linear.kernel", size=10, code=True, align="left")
cells(axes, 1.4, 3.85, 1, 3, RESULT)
words(axes, 2.95, 4.06, "norm.mean", size=10, code=True, align="left")
cells(axes, 1.4, 4.5, 1, 2, KEYS)
words(axes, 2.95, 4.71, "dropout.rngs", size=10, code=True, align="left")
box(axes, 1.35, 5.15, 1.3, 0.5, "0.2", fill=SHARED, size=9.5)
words(axes, 2.95, 5.4, "dropout.rate", size=10, code=True, align="left")
cells(axes, 1.4, 6.3, 2, 3, MAPPED)
words(axes, 2.95, 6.72, "head.kernel", size=10, code=True, align="left")

words(axes, 7.45, 3.5, "nnx.split", size=10.5, code=True, bold=True)
arrow(axes, (6.3, 3.9), (8.6, 3.9))
arrow(axes, (8.6, 5.2), (6.3, 5.2))
words(axes, 7.45, 5.6, "nnx.merge", size=10.5, code=True, bold=True)

rows = (
    ("the form", "graphdef", "classes, paths, settings;\nno array", SHARED),
    ("nnx.Param", "params", "trained: has slopes,\nan optimizer's memory", MAPPED),
    ("nnx.BatchStat", "statistics", "measured on the\nway forward", RESULT),
    ("...", "rest", "keys, and counters\n(integers)", KEYS),
)
for i, (chosen, name, said, fill) in enumerate(rows):
    top = 1.1 + 1.68 * i
    words(axes, 8.9, top + 0.22, chosen, size=10, align="left", code=chosen != "the form", bold=chosen == "the form")
    box(axes, 8.9, top + 0.48, 2.6, 0.9, name, fill=fill, size=10.5)
    words(axes, 11.8, top + 0.93, said, size=10, align="left")

words(axes, 8, 8.15, "No array is copied: both sides hold the same Variables.", size=10.5, bold=True)
words(axes, 8, 8.65, "Another form is another program; other arrays are the same program again.", size=10, colour=QUIET)
save(axes, __file__)
