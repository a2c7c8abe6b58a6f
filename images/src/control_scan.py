"""Draws one scan: the carry from iteration to iteration, an input and an output of each."""

from style import MAPPED, QUIET, RESULT, SHARED, arrow, box, card, cells, save, words

axes = card(16, 7.6)
BODIES = (3.4, 6.6, 9.8)
TOP, MIDDLE, LOW = 1.2, 3.3, 5.7

words(axes, 0.5, TOP + 0.3, "inputs", size=11, align="left", bold=True)
words(axes, 0.5, MIDDLE + 0.5, "carry", size=11, align="left", bold=True)
words(axes, 0.5, LOW + 0.3, "outputs", size=11, align="left", bold=True)
cells(axes, 1.8, MIDDLE + 0.2, 1, 1, SHARED, size=0.6, words=[["c0"]])
arrow(axes, (2.45, MIDDLE + 0.5), (BODIES[0] - 0.05, MIDDLE + 0.5))
for number, x in enumerate(BODIES):
    cells(axes, x + 0.5, TOP, 1, 1, MAPPED, size=0.6, words=[[f"x{number}"]])
    arrow(axes, (x + 0.8, TOP + 0.65), (x + 0.8, MIDDLE - 0.05))
    box(axes, x, MIDDLE, 1.6, 1.0, "body")
    arrow(axes, (x + 0.8, MIDDLE + 1.05), (x + 0.8, LOW - 0.05))
    cells(axes, x + 0.5, LOW, 1, 1, RESULT, size=0.6, words=[[f"y{number}"]])
    last = number == len(BODIES) - 1
    arrow(axes, (x + 1.65, MIDDLE + 0.5), (x + (1.95 if last else 3.15), MIDDLE + 0.5))
    if not last:
        words(axes, x + 2.4, MIDDLE + 0.2, f"c{number + 1}", size=10, colour=QUIET)
cells(axes, 11.8, MIDDLE + 0.2, 1, 1, SHARED, size=0.6, words=[["c3"]])
words(axes, 12.7, TOP + 0.3, "xs, sliced along its\nleading axis", size=9.5, align="left", colour=QUIET)
words(axes, 12.7, MIDDLE + 0.5, "the last carry,\nreturned first", size=9.5, align="left", colour=QUIET)
words(axes, 12.7, LOW + 0.3, "ys, stacked along a\nnew leading axis", size=9.5, align="left", colour=QUIET)
words(axes, 8, 0.65, "c3, ys = jax.lax.scan(body, c0, xs)", size=11.5, code=True)
words(axes, 8, 6.95, "body(c, x) returns (c, y). The program contains it once.", size=10.5)
save(axes, __file__)
