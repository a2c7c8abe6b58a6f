"""Draws the grid of all pairs as a vmap within a vmap: the inner one fills a row, the outer one stacks the rows."""

from matplotlib.patches import Rectangle
from style import INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, card, cells, save, words

axes = card(15, 7.6)
words(
    axes,
    7.5,
    0.6,
    "jax.vmap(jax.vmap(l1, in_axes=(None, 0)), in_axes=(0, None))(xs, ys)",
    size=12,
    code=True,
    bold=True,
)

size, gap = 0.62, 0.1
left, top, n, m = 3.6, 3.1, 4, 5
step = size + gap

# ys lie above the grid, one column of the grid each; xs to its left, one row each.
cells(axes, left, 1.75, 1, m, MAPPED, size=size, column_gap=gap, words=[[f"y{j}" for j in range(m)]])
words(axes, left - 0.2, 2.06, "ys (5, d)", size=10, align="right", code=True)
cells(
    axes,
    2.1,
    top,
    n,
    1,
    [[SHARED], [MAPPED], [MAPPED], [MAPPED]],
    size=size,
    row_gap=gap,
    words=[[f"x{i}"] for i in range(n)],
)
words(axes, 1.85, top + 1.5 * step + size / 2, "xs (4, d)", size=10, align="right", code=True)
fill = [[PLAIN if i != 0 else RESULT for _ in range(m)] for i in range(n)]
cells(
    axes,
    left,
    top,
    n,
    m,
    fill,
    size=size,
    row_gap=gap,
    column_gap=gap,
    words=[[f"{i},{j}" for j in range(m)] for i in range(n)],
)
axes.add_patch(
    Rectangle(
        (left - 0.08, top - 0.08), m * step + 0.06, size + 0.16, fill=False, edgecolor=INK, linewidth=2.2, zorder=5
    )
)
for j in range(m):
    arrow(axes, (left + j * step + size / 2, 2.42), (left + j * step + size / 2, top - 0.12), colour=QUIET)
arrow(axes, (2.1 + size + 0.05, top + size / 2), (left - 0.14, top + size / 2))
arrow(axes, (left + m * step + 0.25, top), (left + m * step + 0.25, top + n * step - gap), colour=INK)
words(axes, left + m * step / 2, top + n * step + 0.3, "distances (4, 5)    [i, j] = l1(x_i, y_j)", size=10, code=True)

x = left + m * step + 0.75
words(axes, x, 1.85, "inner vmap   in_axes=(None, 0)", size=11, align="left", code=True, bold=True)
words(
    axes,
    x,
    2.5,
    "shares x and maps over the rows of ys:\none x with all ys gives one row (5,)",
    size=10,
    align="left",
    colour=QUIET,
)
words(axes, x, 3.65, "outer vmap   in_axes=(0, None)", size=11, align="left", code=True, bold=True)
words(
    axes,
    x,
    4.3,
    "maps over the rows of xs and shares ys:\nthe rows are stacked into (4, 5)",
    size=10,
    align="left",
    colour=QUIET,
)
words(axes, x, 5.4, "The outermost vmap creates the first axis.", size=10, align="left", bold=True)

words(
    axes,
    7.5,
    6.95,
    "l1 is written for two vectors of shape (d,) and is traced once. The program has no loop.",
    size=10,
    colour=QUIET,
)
save(axes, __file__)
