"""Draws a mesh of 4 x 2 devices and six ways to lay an array of two axes out on it."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from style import DEVICES, INK, QUIET, arrow, card, cells, save, words

ROWS, COLUMNS = 4, 2
SIDE = 3.2  # of the drawn array
NUMBERS = [[row * COLUMNS + column for column in range(COLUMNS)] for row in range(ROWS)]

axes = card(17.6, 11.0)


def block(axes: Axes, x: float, y: float, width: float, height: float, holders: list[int]) -> None:
    """One piece of an array, striped in the colours of all devices that hold it, with their numbers."""
    stripe = width / len(holders)
    for place, device in enumerate(holders):
        axes.add_patch(Rectangle((x + place * stripe, y), stripe, height, facecolor=DEVICES[device], zorder=2))
        words(axes, x + (place + 0.5) * stripe, y + height / 2, str(device), size=10, code=True)
    axes.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=INK, linewidth=1.1, zorder=3))


def layout(x: float, y: float, spec: str, remark: str, pieces: list[list[list[int]]]) -> None:
    """An array as a grid of pieces, each with the devices that hold it, under its spec."""
    words(axes, x + SIDE / 2, y - 0.4, spec, size=12, code=True, bold=True)
    height, width = SIDE / len(pieces), SIDE / len(pieces[0])
    for r, row in enumerate(pieces):
        for c, holders in enumerate(row):
            block(axes, x + c * width, y + r * height, width, height, holders)
    words(axes, x + SIDE / 2, y + SIDE + 0.35, remark, size=9, colour=QUIET)


words(axes, 2.35, 0.75, "The mesh", size=13, bold=True)
fills = [[DEVICES[number] for number in row] for row in NUMBERS]
labels = [[str(number) for number in row] for row in NUMBERS]
cells(axes, 1.55, 2.3, ROWS, COLUMNS, fills, size=0.8, words=labels)
words(axes, 2.35, 1.6, 'axis "b", 2', size=10, code=True)
arrow(axes, (1.6, 2.05), (3.1, 2.05))
words(axes, 0.75, 3.9, 'axis "a", 4', size=10, code=True, turn=90)
arrow(axes, (1.25, 2.35), (1.25, 5.45))
words(axes, 2.35, 6.1, "eight devices,", size=9.5, colour=QUIET)
words(axes, 2.35, 6.5, "each a number and a colour", size=9.5, colour=QUIET)
words(axes, 2.35, 7.7, "An entry of the spec says\nwhich axes of the mesh\ncut that axis of the array.", size=9.5)
copies = "An axis of the mesh that\nno entry names: copies. All in\none box have the whole box."
words(axes, 2.35, 9.35, copies, size=9.5)

by_b = [[row[column] for row in NUMBERS] for column in range(COLUMNS)]
lefts, tops = (5.2, 9.4, 13.6), (1.7, 6.8)
layout(lefts[0], tops[0], 'P("a", "b")', "4 x 2 pieces, no copies", [[[n] for n in row] for row in NUMBERS])
layout(lefts[1], tops[0], 'P("b", "a")', "2 x 4 pieces, no copies", [[[row[c]] for row in NUMBERS] for c in range(2)])
layout(lefts[2], tops[0], 'P(("a", "b"), None)', "8 x 1 pieces, no copies", [[[n]] for row in NUMBERS for n in row])
layout(lefts[0], tops[1], 'P("a", None)', "4 pieces, 2 copies of each", [[row] for row in NUMBERS])
layout(lefts[1], tops[1], 'P(None, "b")', "2 pieces, 4 copies of each", [by_b])
layout(lefts[2], tops[1], "P()", "1 piece, 8 copies", [[[n for row in NUMBERS for n in row]]])

save(axes, __file__)
