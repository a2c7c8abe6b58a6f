"""Draws what nnx.split makes of a model: its graphdef, and a State for each filter; nnx.merge goes back."""

from style import MAPPED, PLAIN, RESULT, SHARED, arrow, box, card, cells, save, words

axes = card(16, 7.6)

words(axes, 3.4, 0.7, "a model", size=12, bold=True)
box(axes, 0.7, 1.1, 5.4, 5.2, "", fill=PLAIN)
words(axes, 1.0, 1.55, "Counted", size=12, code=True, bold=True, align="left")
box(axes, 1.1, 2.0, 4.6, 3.1, "", fill="white")
words(axes, 1.4, 2.4, "network", size=10.5, code=True, align="left")
cells(axes, 1.4, 2.75, 1, 3, MAPPED)
words(axes, 2.95, 2.96, "stem.bias", size=10, code=True, align="left")
cells(axes, 1.4, 3.4, 2, 3, MAPPED)
words(axes, 2.95, 3.82, "head.kernel", size=10, code=True, align="left")
box(axes, 1.35, 4.4, 1.3, 0.5, "3", fill=SHARED, size=9.5)
words(axes, 2.95, 4.65, "head.out_features", size=10, code=True, align="left")
cells(axes, 1.4, 5.45, 1, 1, RESULT)
words(axes, 2.95, 5.66, "seen", size=10, code=True, align="left")

words(axes, 7.45, 3.1, "nnx.split", size=10.5, code=True, bold=True)
arrow(axes, (6.3, 3.5), (8.6, 3.5))
arrow(axes, (8.6, 4.4), (6.3, 4.4))
words(axes, 7.45, 4.8, "nnx.merge", size=10.5, code=True, bold=True)

rows = (
    ("the structure", "graphdef", "classes, paths and\nstatic attributes, no array", SHARED),
    ("nnx.Param", "params", "kernels and biases,\nwhich have gradients", MAPPED),
    ("...", "rest", "the counter,\nan integer", RESULT),
)
for i, (chosen, name, said, fill) in enumerate(rows):
    top = 1.1 + 1.75 * i
    words(axes, 8.9, top + 0.22, chosen, size=10, align="left", code=i > 0, bold=i == 0)
    box(axes, 8.9, top + 0.48, 2.6, 0.9, name, fill=fill, size=10.5)
    words(axes, 11.8, top + 0.93, said, size=10, align="left")

words(axes, 8, 6.95, "No array is copied: both sides hold the same Variables.", size=10.5, bold=True)
save(axes, __file__)
