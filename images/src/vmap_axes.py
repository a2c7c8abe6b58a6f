"""Draws in_axes and out_axes: arguments that are mapped, arguments that are shared, and the axis of the results."""

from style import MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, cells, save, words

axes = card(16, 11.4)

# Upper half: one call of vmap, four examples.
words(axes, 8, 0.6, "jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)", size=13, code=True, bold=True)

lanes = [3.45, 4.15, 4.85, 5.55]
top, size = lanes[0] - 0.21, 0.42
cells(axes, 5.55, 1.5, 1, 3, SHARED)
cells(axes, 7.15, 1.5, 1, 1, SHARED)
words(axes, 5.3, 1.71, 'params  {"w": (3,), "b": ()}', size=10, align="right", code=True)
words(axes, 9.1, 1.5, "None: not mapped", size=10, align="left", bold=True)
words(axes, 9.1, 1.95, "all examples share one copy", size=10, align="left", colour=QUIET)
arrow(axes, (7.36, 1.98), (8.0, 2.68), dashed=True)

cells(axes, 1.75, top, 4, 3, MAPPED, row_gap=0.28, words=[[f"x{i}{j}" for j in range(3)] for i in range(4)])
cells(axes, 3.85, top, 4, 1, MAPPED, row_gap=0.28, words=[[f"y{i}"] for i in range(4)])
words(axes, 2.38, 2.85, "xs (4, 3)", size=10, code=True)
words(axes, 4.06, 2.85, "ys (4,)", size=10, code=True)
words(axes, 3.1, 6.3, "0: mapped along axis 0", size=10, bold=True)
words(axes, 3.1, 6.75, "example i is xs[i] and ys[i]", size=10, colour=QUIET)

box(axes, 6.6, 2.75, 3.6, 3.3, "", fill=PLAIN)
words(axes, 8.4, 3.75, "loss(params, x, y)", size=10.5, code=True, bold=True)
words(axes, 8.4, 4.75, "written for one example,\nwith x (3,) and y (),\nand traced once", size=10)
cells(axes, 11.4, top, 4, 1, RESULT, row_gap=0.28, words=[[f"l{i}"] for i in range(4)])
words(axes, 11.61, 2.85, "losses (4,)", size=10, code=True)
words(axes, 12.2, 4.3, "out_axes=0 (the default)", size=10, align="left", bold=True)
words(axes, 12.2, 4.75, "results are stacked", size=10, align="left", colour=QUIET)
words(axes, 12.2, 5.1, "along a new axis 0", size=10, align="left", colour=QUIET)
for y in lanes:
    arrow(axes, (4.55, y), (6.5, y))
    arrow(axes, (10.3, y), (11.3, y))

# Lower half: which slices an axis means.
axes.plot([0.6, 15.4], [7.35, 7.35], color="#c9c4b8", linewidth=1)
DARK = "#3f86c4"
DEEP = "#3f9e6c"
panels = [
    (0.95, "in_axes=0", [[MAPPED] * 4, [DARK] * 4, [MAPPED] * 4], "3 examples,\neach is a row (4,)"),
    (3.95, "in_axes=1", [[MAPPED, DARK, MAPPED, DARK]] * 3, "4 examples,\neach is a column (3,)"),
    (6.95, "in_axes=None", [[SHARED] * 4] * 3, "all examples share\nthe whole array (3, 4)"),
    (9.95, "out_axes=0", [[RESULT] * 4, [DEEP] * 4, [RESULT] * 4], "3 results of (4,)\nbecome the rows"),
    (12.95, "out_axes=1", [[RESULT, DEEP, RESULT, DEEP]] * 3, "4 results of (3,)\nbecome the columns"),
]
for x, title, fill, text in panels:
    words(axes, x + 1.05, 7.85, title, size=11, code=True, bold=True)
    cells(axes, x + 0.21, 8.3, 3, 4, fill)
    words(axes, x + 1.05, 10.2, text, size=9)
words(axes, 8, 11.0, "Light and dark alternate from one example to the next.", size=9, colour=QUIET)

save(axes, __file__)
