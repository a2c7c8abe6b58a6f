"""Draws a registered class, whose data fields become leaves and whose static fields become part of the treedef."""

from style import MAPPED, PLAIN, QUIET, SHARED, arrow, box, card, cells, save, words

axes = card(16, 8.0)

words(axes, 2.75, 0.7, "an object of a class", size=11, bold=True)
words(axes, 2.75, 1.2, "@register_dataclass", size=9.5, code=True, colour=QUIET)
box(axes, 0.7, 1.6, 4.1, 4.6, "", fill=PLAIN)
words(axes, 2.75, 2.05, "Dense", size=12, code=True, bold=True)
cells(axes, 1.1, 2.5, 2, 3, MAPPED)
words(axes, 2.6, 2.92, "w  data", size=10, align="left", code=True)
cells(axes, 1.1, 3.75, 1, 2, MAPPED)
words(axes, 2.6, 3.97, "b  data", size=10, align="left", code=True)
box(axes, 1.0, 4.8, 1.45, 0.6, '"tanh"', fill=SHARED, size=9.5)
words(axes, 2.6, 5.1, "activation\nstatic", size=10, align="left", code=True)

arrow(axes, (4.9, 3.1), (6.3, 2.6))
arrow(axes, (4.9, 5.1), (6.3, 5.6))

words(axes, 8.1, 1.2, "leaves", size=11, bold=True)
cells(axes, 6.6, 2.0, 2, 3, MAPPED)
cells(axes, 8.5, 2.2, 1, 2, MAPPED)
words(axes, 8.1, 3.35, "may change at each step", size=9, colour=QUIET)
words(axes, 8.1, 4.6, "treedef", size=11, bold=True)
box(axes, 6.5, 5.1, 3.3, 0.95, "Dense['tanh'](*, *)", fill=SHARED, size=9.5)
words(axes, 8.1, 6.5, "compared, not computed with", size=9, colour=QUIET)

arrow(axes, (9.9, 2.45), (11.1, 2.45))
arrow(axes, (9.9, 5.58), (11.1, 5.58))

box(axes, 11.2, 1.35, 4.1, 2.2, "", fill=PLAIN)
words(axes, 13.25, 1.75, "arguments of the program", size=10, bold=True)
words(axes, 13.25, 2.65, "tracers under jit,\ngradients from grad,\na batch axis from vmap", size=10)
box(axes, 11.2, 4.5, 4.1, 2.2, "", fill=SHARED)
words(axes, 13.25, 4.9, "the cache key of jit", size=10, bold=True)
words(axes, 13.25, 5.8, "Python reads it during tracing.\nEach value has\nits own program.", size=10)

words(
    axes, 8, 7.45, "Other weights use the same program.  Another activation requires another trace.", size=10, bold=True
)
save(axes, __file__)
