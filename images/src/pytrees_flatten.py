"""Draws a pytree with containers above and leaves in a row below, and flatten and unflatten next to it."""

from style import EDGE, MAPPED, PLAIN, QUIET, SHARED, arrow, box, card, cells, save, words

axes = card(16, 8.2)

words(axes, 4.2, 0.6, '{"w": 1, "b": 2, "a": (3, None)}', size=12, code=True, bold=True)
box(axes, 3.3, 1.2, 1.8, 0.75, "dict", fill=SHARED)
box(axes, 1.0, 3.3, 1.8, 0.75, "tuple", fill=SHARED)
words(axes, 5.3, 1.58, "keys are sorted", size=9, align="left", colour=QUIET)

LEAVES = 6.05
arrow(axes, (3.6, 1.97), (2.05, 3.25))
words(axes, 2.45, 2.5, '"a"', size=10, code=True)
arrow(axes, (4.2, 1.97), (4.2, LEAVES - 0.06))
words(axes, 4.6, 2.5, '"b"', size=10, code=True)
arrow(axes, (4.8, 1.97), (6.9, LEAVES - 0.06))
words(axes, 5.75, 2.5, '"w"', size=10, code=True)
arrow(axes, (1.6, 4.07), (1.3, LEAVES - 0.06))
words(axes, 1.15, 4.7, "[0]", size=10, code=True)
arrow(axes, (2.2, 4.07), (2.7, 4.85))
words(axes, 2.85, 4.4, "[1]", size=10, code=True)
box(axes, 2.0, 4.9, 1.6, 0.6, "None", fill=SHARED, size=9)
words(axes, 2.8, 5.72, "an empty container", size=8, colour=QUIET)

for x, leaf in ((1.0, "3"), (3.9, "2"), (6.6, "1")):
    cells(axes, x, LEAVES, 1, 1, MAPPED, size=0.6, words=[[leaf]])
words(axes, 4.1, 7.15, "leaves, in this order", size=10, bold=True)
words(axes, 4.1, 7.6, "every object that is not a container", size=9, colour=QUIET)

axes.plot([8.3, 8.3], [0.5, 7.7], color=EDGE, linewidth=1)

words(axes, 12.1, 0.6, "jax.tree.flatten(tree)", size=12, code=True, bold=True)
cells(axes, 9.2, 2.35, 1, 3, MAPPED, size=0.6, words=[["3", "2", "1"]])
words(axes, 10.1, 1.75, "leaves", size=11, bold=True)
words(axes, 10.1, 3.4, "a list", size=9, colour=QUIET)
box(axes, 11.6, 2.25, 3.9, 0.8, "{'a': (*, None),\n 'b': *, 'w': *}", fill=SHARED, size=9.5)
words(axes, 13.55, 1.75, "treedef", size=11, bold=True)
words(axes, 13.55, 3.4, "types, keys, lengths, None", size=9, colour=QUIET)

box(axes, 8.9, 4.35, 2.4, 0.75, "f(leaf)", fill=PLAIN)
arrow(axes, (10.1, 3.65), (10.1, 4.3))
words(axes, 11.5, 4.72, "computed, traced", size=9, align="left", colour=QUIET)
words(axes, 13.0, 5.85, "compared, part of\nthe cache key of jit", size=9, colour=QUIET)
arrow(axes, (10.1, 5.12), (11.4, 6.6))
arrow(axes, (15.1, 3.65), (14.3, 6.6), dashed=True)
words(axes, 12.1, 7.0, "jax.tree.unflatten(treedef, leaves)", size=11, code=True, bold=True)
words(axes, 12.1, 7.5, "both steps together: jax.tree.map, same structure", size=9, colour=QUIET)

save(axes, __file__)
