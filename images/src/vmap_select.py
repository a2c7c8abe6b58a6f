"""Draws a cond under vmap: one example takes one branch, a batch takes both and selects."""

from style import DEVICES, MAPPED, PLAIN, QUIET, RESULT, arrow, box, card, cells, save, words

OTHER = DEVICES[4]
axes = card(15, 6.3)

words(axes, 3.4, 0.65, "one example: cond", size=12, bold=True)
cells(axes, 0.8, 2.75, 1, 1, MAPPED, size=0.55, words=[["x"]])
box(axes, 2.0, 2.6, 1.5, 0.85, "x > 0 ?")
arrow(axes, (1.4, 3.03), (1.95, 3.03))
box(axes, 4.2, 1.55, 1.4, 0.85, "then(x)", fill=RESULT)
box(axes, 4.2, 3.65, 1.4, 0.85, "else(x)", fill=PLAIN)
arrow(axes, (3.5, 2.85), (4.15, 2.05))
words(axes, 3.5, 2.2, "yes", size=10, colour=QUIET)
arrow(axes, (3.5, 3.2), (4.15, 4.0), colour=QUIET, dashed=True)
words(axes, 3.5, 3.85, "no", size=10, colour=QUIET)
words(axes, 3.4, 5.3, "only the branch that is taken runs", size=10)

axes.plot([6.6, 6.6], [0.5, 5.8], color="#c9c4b8", linewidth=1)

words(axes, 10.8, 0.65, "a batch, under vmap: select", size=12, bold=True)
batch = ["+", "−", "+", "+"]
cells(axes, 7.2, 2.15, 4, 1, MAPPED, words=[[b] for b in batch])
words(axes, 7.41, 1.85, "xs", size=10, code=True)
box(axes, 8.6, 1.3, 1.6, 0.85, "then(xs)", fill=RESULT)
box(axes, 8.6, 3.85, 1.6, 0.85, "else(xs)", fill=OTHER)
arrow(axes, (7.68, 2.6), (8.55, 1.75))
arrow(axes, (7.68, 3.4), (8.55, 4.25))
cells(axes, 10.6, 1.0, 4, 1, RESULT, size=0.36, words=[["t"]] * 4)
cells(axes, 10.6, 3.55, 4, 1, OTHER, size=0.36, words=[["e"]] * 4)
arrow(axes, (10.2, 1.72), (10.55, 1.72))
arrow(axes, (10.2, 4.27), (10.55, 4.27))
box(axes, 11.7, 2.55, 1.5, 0.9, "select")
arrow(axes, (11.0, 1.72), (12.1, 2.5))
arrow(axes, (11.0, 4.27), (12.1, 3.5))
arrow(axes, (7.68, 3.0), (11.65, 3.0), dashed=True)
words(axes, 9.2, 2.75, "xs > 0", size=9, code=True, colour=QUIET)
cells(axes, 13.8, 2.15, 4, 1, [[RESULT], [OTHER], [RESULT], [RESULT]], words=[["t"], ["e"], ["t"], ["t"]])
arrow(axes, (13.2, 3.0), (13.75, 3.0))
words(axes, 10.8, 5.3, "both branches run for every example,", size=10)
words(axes, 10.8, 5.7, "and one of the two results is discarded", size=10)

save(axes, __file__)
