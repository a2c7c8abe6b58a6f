"""Draws LHS @ RHS on a 4 x 2 mesh twice: partitioned along the axes that stay, and along the axis that is summed."""

from style import DEVICES, EDGE, PLAIN, QUIET, RESULT, WRONG, arrow, card, cells, save, words

axes = card(17.4, 11.5)
SIZE = 0.5
MARK = 5  # the device that the picture follows: row 2, column 1 of the mesh


def table(x: float, y: float, rows: int, columns: int, held: set[tuple[int, int]]) -> None:
    """A matrix of blocks. Those that device 5 does not store stay pale."""
    fills = [[DEVICES[MARK] if (r, c) in held else PLAIN for c in range(columns)] for r in range(rows)]
    cells(axes, x, y, rows, columns, fills, size=SIZE)


words(axes, 0.5, 0.7, "Partitioned along axes that stay in the result", size=13, align="left", bold=True)
words(axes, 0.5, 1.2, "device 5 is in row 2 and column 1 of the mesh", size=9.5, align="left", colour=QUIET)
top = 2.6
words(axes, 1.9, top - 0.45, 'lhs  P("a", None)', size=10.5, code=True)
table(0.9, top, 4, 4, {(2, c) for c in range(4)})
words(axes, 3.65, top + 1, "@", size=15, code=True)
words(axes, 5.4, top - 0.45, 'rhs  P(None, "b")', size=10.5, code=True)
table(4.9, top, 4, 2, {(r, 1) for r in range(4)})
words(axes, 6.65, top + 1, "=", size=15, code=True)
words(axes, 8.1, top - 0.45, 'P("a", "b")', size=10.5, code=True)
table(7.5, top, 4, 2, {(2, 1)})
words(axes, 9.7, top + 0.45, "Device 5 stores all rows and all", size=10.5, align="left")
words(axes, 9.7, top + 0.9, "columns that it needs to compute", size=10.5, align="left")
words(axes, 9.7, top + 1.35, "its shard of the result.", size=10.5, align="left")
words(axes, 9.7, top + 1.8, "No communication.", size=10.5, align="left", bold=True)
for x, text in ((1.9, "its rows"), (5.4, "its columns"), (8.0, "its shard")):
    words(axes, x, top + 2.35, text, size=9, colour=QUIET)

axes.plot([0.5, 16.9], [5.6, 5.6], color=EDGE, linewidth=1)
words(axes, 0.5, 6.2, "Partitioned along the axis that is summed", size=13, align="left", bold=True)
top = 7.5
words(axes, 1.9, top - 0.45, 'lhs  P(None, "a")', size=10.5, code=True)
table(0.9, top, 4, 4, {(r, 2) for r in range(4)})
words(axes, 3.65, top + 1, "@", size=15, code=True)
words(axes, 5.4, top - 0.45, 'rhs  P("a", None)', size=10.5, code=True)
table(4.9, top, 4, 2, {(2, c) for c in range(2)})
words(axes, 6.65, top + 1, "=", size=15, code=True)
for place, device in enumerate((1, 3, 5, 7)):
    x = 7.3 + place * 1.65
    cells(axes, x, top, 4, 2, DEVICES[device] if device == MARK else PLAIN, size=SIZE)
    if place < 3:
        words(axes, x + 1.32, top + 1, "+", size=14, code=True)
    words(axes, x + 0.5, top + 2.35, f"of {device - 1}, {device}", size=9, colour=QUIET)
words(axes, 9.9, top - 0.45, "tables of full size, each with a part of every sum", size=10)
words(axes, 1.9, top + 2.35, "its columns", size=9, colour=QUIET)
words(axes, 5.4, top + 2.35, "its rows", size=9, colour=QUIET)
arrow(axes, (13.75, top + 1), (15.35, top + 1), colour=WRONG)
words(axes, 14.5, top + 0.62, "all-reduce", size=9.5, bold=True)
cells(axes, 15.5, top, 4, 2, RESULT, size=SIZE)
words(axes, 16.0, top - 0.45, "P()", size=10.5, code=True)
words(axes, 16.0, top + 2.35, "on all", size=9, colour=QUIET)
last = "The parts of each sum are on different devices, so the compiler inserts an all-reduce."
words(axes, 0.5, 10.8, last, size=10.5, align="left")

save(axes, __file__)
