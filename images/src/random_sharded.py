"""Draws how devices fill one random array together: number i depends on the key and i, and on no state."""

from style import DEVICES, EDGE, PLAIN, QUIET, SHARED, WRONG, arrow, box, card, cells, save, words

axes = card(16, 9.6)
words(axes, 0.5, 0.65, "a function of the key and the index", size=12, align="left", bold=True)
box(axes, 6.9, 0.5, 2.2, 0.75, "key", fill=SHARED)
words(axes, 9.4, 0.87, "8 bytes, replicated", size=9.5, align="left", colour=QUIET)
lefts = [0.7 + 3.75 * i for i in range(4)]
for i, left in enumerate(lefts):
    arrow(axes, (8.0, 1.25), (left + 1.65, 2.05))
    box(axes, left, 2.1, 3.3, 2.6, "", fill=PLAIN)
    words(axes, left + 1.65, 2.45, f"device {i}", size=10, bold=True)
    words(axes, left + 1.65, 2.98, f"f(key, {2 * i})  f(key, {2 * i + 1})", size=9, code=True)
    cells(axes, left + 0.95, 3.4, 1, 2, DEVICES[i], size=0.7, words=[[str(2 * i), str(2 * i + 1)]])
    words(axes, left + 1.65, 4.4, "draws its own part", size=9, colour=QUIET)
    arrow(axes, (left + 1.65, 4.7), (5.2 + 1.4 * i + 0.7, 5.25))
fills = [[DEVICES[i // 2] for i in range(8)]]
cells(axes, 5.2, 5.3, 1, 8, fills, size=0.7, words=[[str(i) for i in range(8)]])
words(axes, 5.0, 5.65, "the array that one device would draw", size=9.5, align="right", colour=QUIET)

axes.plot([0.6, 15.4], [6.5, 6.5], color=EDGE, linewidth=1)
words(axes, 0.5, 7.05, "a generator with a state", size=12, align="left", bold=True)
for i in range(8):
    x = 1.3 + 1.7 * i
    box(axes, x, 7.55, 1.15, 0.65, "state", fill=WRONG, size=8.5)
    if i:
        arrow(axes, (x - 0.55, 7.87), (x - 0.05, 7.87))
    arrow(axes, (x + 0.57, 8.2), (x + 0.57, 8.55))
    words(axes, x + 0.57, 8.75, str(i), size=10, code=True)
words(axes, 8, 9.2, "number 5 needs the state after number 4, so one device draws all", size=9.5, colour=QUIET)

save(axes, __file__)
