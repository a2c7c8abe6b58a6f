"""Draws the two modes: tangents computed with the values, and a backward pass over the values that were stored."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, cells, save, words

axes = card(16, 13.4)
SIZE = 0.62
VALUES = (3.3, 6.7, 10.1, 13.5)  # where x, a, b and y stand
NAMES = ("x", "a", "b", "y")
RULES = ("sin", "exp", "tanh")


def value_row(y: float) -> None:
    """The forward pass: x, three operations, y."""
    for x, name in zip(VALUES, NAMES, strict=True):
        cells(axes, x, y, 1, 1, MAPPED, size=SIZE)
        words(axes, x + SIZE / 2, y + SIZE / 2, name, size=11)
    for x, rule in zip(VALUES, RULES, strict=False):
        box(axes, x + 1.3, y - 0.05, 1.4, SIZE + 0.1, rule)
        arrow(axes, (x + SIZE, y + SIZE / 2), (x + 1.25, y + SIZE / 2))
        arrow(axes, (x + 2.75, y + SIZE / 2), (x + 3.35, y + SIZE / 2))


def derivative_cells(y: float, fills: list[str], texts: list[str]) -> None:
    for x, fill, text in zip(VALUES, fills, texts, strict=True):
        cells(axes, x, y, 1, 1, fill, size=SIZE)
        words(axes, x + SIZE / 2, y + SIZE / 2, text, size=11)


words(axes, 0.6, 0.7, "Forward: jax.jvp", size=13, align="left", bold=True)
words(axes, 4.9, 0.72, "values and tangents are computed together", size=10.5, align="left", colour=QUIET)
value_row(1.4)
words(axes, 2.9, 1.71, "values", size=10, align="right", bold=True)
derivative_cells(2.75, [RESULT] * 4, ["1", "ȧ", "ḃ", "ẏ"])
words(axes, 2.9, 3.06, "tangents", size=10, align="right", bold=True)
for x in VALUES[:3]:
    box(axes, x + 1.3, 2.7, 1.4, SIZE + 0.1, "· rule", fill=PLAIN, size=9)
    arrow(axes, (x + SIZE, 3.06), (x + 1.25, 3.06))
    arrow(axes, (x + 2.75, 3.06), (x + 3.35, 3.06))
    arrow(axes, (x + 2.0, 2.15), (x + 2.0, 2.65), dashed=True)

axes.plot([0.6, 15.4], [4.0, 4.0], color=EDGE, linewidth=1)
words(axes, 0.6, 4.6, "Reverse: jax.vjp, jax.grad", size=13, align="left", bold=True)
words(axes, 6.6, 4.62, "values first, then the backward pass", size=10.5, align="left", colour=QUIET)
value_row(5.3)
words(axes, 2.9, 5.61, "1  values", size=10, align="right", bold=True)
for x in VALUES[:3]:
    cells(axes, x + 1.69, 6.6, 1, 1, SHARED, size=SIZE)
    arrow(axes, (x + 2.0, 6.05), (x + 2.0, 6.55), dashed=True)
    arrow(axes, (x + 2.0, 7.22), (x + 2.0, 7.75), dashed=True)
words(axes, 2.9, 6.91, "stored", size=10, align="right", bold=True)
derivative_cells(7.85, [RESULT] * 4, ["x̄", "ā", "b̄", "1"])
words(axes, 2.9, 8.16, "2  derivatives of y", size=10, align="right", bold=True)
for x in VALUES[:3]:
    box(axes, x + 1.3, 7.8, 1.4, SIZE + 0.1, "· rule", fill=PLAIN, size=9)
    arrow(axes, (x + 3.4, 8.16), (x + 2.75, 8.16))
    arrow(axes, (x + 1.25, 8.16), (x + SIZE + 0.05, 8.16))

axes.plot([0.6, 15.4], [9.1, 9.1], color=EDGE, linewidth=1)
words(axes, 0.6, 9.65, "The Jacobian", size=13, align="left", bold=True)
words(axes, 0.6, 10.15, "a row for each output,", size=10, align="left", colour=QUIET)
words(axes, 0.6, 10.5, "a column for each input", size=10, align="left", colour=QUIET)
small = 0.36
cells(axes, 4.3, 9.6, 8, 3, [[PLAIN, RESULT, PLAIN]] * 8, size=small)
words(axes, 5.65, 10.1, "one JVP: a column", size=10, align="left", bold=True)
words(axes, 5.65, 10.6, "few inputs, many outputs", size=10, align="left", colour=QUIET)
words(axes, 5.65, 11.05, "jax.jacfwd", size=10, align="left", code=True)
cells(axes, 10.3, 9.6, 3, 8, [[PLAIN] * 8, [RESULT] * 8, [PLAIN] * 8], size=small)
words(axes, 10.3, 11.0, "one VJP: a row", size=10, align="left", bold=True)
words(axes, 10.3, 11.4, "many inputs, few outputs", size=10, align="left", colour=QUIET)
words(axes, 13.6, 11.4, "jax.jacrev", size=10, align="left", code=True)
cells(axes, 10.3, 11.85, 1, 8, RESULT, size=small)
words(axes, 10.3, 12.6, "a loss has one row", size=10, align="left", colour=QUIET)
words(axes, 13.6, 12.6, "jax.grad", size=10, align="left", code=True)

save(axes, __file__)
