"""Draws a product whose summed axis is partitioned over two devices, and three shardings of its result."""

from style import DEVICES, EDGE, QUIET, RESULT, WRONG, arrow, card, cells, save, words

axes = card(17.4, 9.6)
SIZE = 0.42
BLUE, YELLOW = DEVICES[0], DEVICES[1]

words(axes, 0.5, 0.7, "The summed axis is partitioned along “data”", size=13, align="left", bold=True)
words(axes, 0.5, 1.2, "device 0 is blue, device 1 is yellow", size=9.5, align="left", colour=QUIET)

TOP = 3.3
words(axes, 1.35, TOP - 0.35, "a", size=11, code=True)
words(axes, 0.5, TOP + 2.1, 'P(None, "data")', size=8.5, code=True, align="left")
cells(axes, 0.5, TOP, 4, 4, [[BLUE, BLUE, YELLOW, YELLOW]] * 4, size=SIZE)
words(axes, 2.6, TOP + 0.85, "@", size=14, code=True)
words(axes, 3.95, TOP - 0.35, "b", size=11, code=True)
words(axes, 3.1, TOP + 2.1, 'P("data", None)', size=8.5, code=True, align="left")
cells(axes, 3.1, TOP, 4, 4, [[BLUE] * 4, [BLUE] * 4, [YELLOW] * 4, [YELLOW] * 4], size=SIZE)

words(axes, 7.5, 2.05, "partial sums", size=10.5, bold=True)
cells(axes, 6.65, 2.4, 4, 4, BLUE, size=SIZE)
words(axes, 7.5, 4.32, "+", size=14, code=True)
cells(axes, 6.65, 4.6, 4, 4, YELLOW, size=SIZE)
words(axes, 7.5, 6.6, "each device has a part", size=9, colour=QUIET)
words(axes, 7.5, 6.95, "of every sum", size=9, colour=QUIET)
arrow(axes, (5.0, TOP + 0.85), (6.45, 3.3))
arrow(axes, (5.0, TOP + 0.85), (6.45, 5.4))


def result(y: float, spec: str, collective: str, note: str, colour: str) -> None:
    """An arrow from the partial sums to a row with the spec, what is communicated, and a note."""
    arrow(axes, (8.6, 4.3), (10.0, y + 0.45), colour=colour)
    words(axes, 10.15, y - 0.32, spec, size=10, code=True, align="left")
    words(axes, 13.45, y + 0.25, collective, size=10.5, bold=True, align="left")
    words(axes, 13.45, y + 0.72, note, size=9.5, align="left", colour=QUIET)


result(1.9, "out_sharding=P()", "all-reduce", "both devices have all sums", WRONG)
cells(axes, 10.15, 1.9, 4, 4, RESULT, size=0.26)
cells(axes, 11.6, 1.9, 4, 4, RESULT, size=0.26)
result(4.3, 'out_sharding=P("data")', "reduce-scatter", "each has half of the rows", WRONG)
cells(axes, 10.15, 4.3, 2, 4, RESULT, size=0.26)
cells(axes, 11.6, 4.82, 2, 4, RESULT, size=0.26)
result(6.7, 'out_sharding=P(unreduced={"data"})', "no communication", "the sums are added later", QUIET)
cells(axes, 10.15, 6.7, 4, 4, BLUE, size=0.26)
words(axes, 11.4, 7.22, "+", size=12, code=True)
cells(axes, 11.6, 6.7, 4, 4, YELLOW, size=0.26)

axes.plot([0.5, 16.9], [8.35, 8.35], color=EDGE, linewidth=1)
last = "In Auto mode, the compiler chooses. In Explicit mode, you choose, and a @ b without out_sharding is an error."
words(axes, 0.5, 8.85, last, size=10.5, align="left")

save(axes, __file__)
