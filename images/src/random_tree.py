"""Draws a tree of keys in which each key has one job, and two ways to break that."""

from style import EDGE, MAPPED, QUIET, RESULT, SHARED, WRONG, arrow, box, card, save, words

axes = card(16, 8.6)
words(axes, 4.9, 0.65, "each key has one job", size=12, bold=True)
words(axes, 13.0, 0.65, "used twice", size=12, bold=True)
axes.plot([10.0, 10.0], [0.5, 8.1], color=EDGE, linewidth=1)

# Left: key -> split -> three children; the second is split again, and every leaf goes to one sampler.
box(axes, 3.9, 1.2, 2.0, 0.75, "key", fill=SHARED)
words(axes, 6.1, 1.57, "split: do not use it again", size=9, align="left", colour=QUIET)
children = [(0.7, "keys[0]"), (3.9, "keys[1]"), (7.1, "keys[2]")]
for x, name in children:
    arrow(axes, (4.9, 1.95), (x + 1.0, 3.05))
    box(axes, x, 3.1, 2.0, 0.75, name, fill=SHARED if name == "keys[1]" else MAPPED)
words(axes, 6.0, 4.2, "split again", size=9, align="left", colour=QUIET)
for x, name in ((2.6, "a"), (5.2, "b")):
    arrow(axes, (4.9, 3.85), (x + 1.0, 4.95))
    box(axes, x, 5.0, 2.0, 0.75, name, fill=MAPPED)
leaves = [(1.7, 3.85, "normal"), (3.6, 5.75, "uniform"), (6.2, 5.75, "bernoulli"), (8.1, 3.85, "choice")]
for (middle, top, name), x in zip(leaves, (0.3, 2.65, 5.0, 7.35), strict=True):
    arrow(axes, (middle, top), (x + 1.1, 6.75))
    box(axes, x, 6.8, 2.2, 0.75, name, fill=RESULT)
words(axes, 4.9, 7.95, "each sampler has its own key", size=9, colour=QUIET)

# Right: two mistakes.
box(axes, 12.0, 1.2, 2.0, 0.75, "key", fill=WRONG)
for x, name in ((10.6, "normal"), (13.3, "bernoulli")):
    arrow(axes, (13.0, 1.95), (x + 1.1, 2.7))
    box(axes, x, 2.75, 2.2, 0.75, name, fill=RESULT)
words(axes, 13.0, 3.9, "two samplers, one key:\nboth use the same bits", size=9, colour=QUIET)

box(axes, 12.0, 4.7, 2.0, 0.75, "key", fill=WRONG)
arrow(axes, (13.0, 5.45), (11.7, 6.75))
arrow(axes, (13.0, 5.45), (14.4, 6.15))
box(axes, 10.6, 6.8, 2.2, 0.75, "normal", fill=RESULT)
box(axes, 13.5, 6.2, 1.9, 0.6, "keys[0]", fill=MAPPED)
arrow(axes, (14.45, 6.8), (14.45, 7.1))
words(axes, 14.45, 7.3, "...", size=10)
words(axes, 13.0, 7.95, "one key is split and also used", size=9, colour=QUIET)

save(axes, __file__)
