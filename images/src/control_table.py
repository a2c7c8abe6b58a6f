"""Draws the table of loops and branches: what each may depend on, what programs contain, which transformations work."""

from matplotlib.patches import Rectangle
from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, card, save, words

YES, NO = ("yes", RESULT), ("no", WRONG)
COLUMNS = (0.5, 4.6, 8.2, 12.1, 13.6, 15.1, 19.5)
HEADS = ("", "may depend on", "in the program", "jvp", "grad", "under vmap")
ROWS = (
    (
        PLAIN,
        "if  for  while",
        "what is known\nduring tracing",
        "the branch taken;\nthe body n times",
        YES,
        YES,
        "unchanged",
    ),
    (MAPPED, "where", "values, entry\nby entry", "both sides,\nboth computed", YES, ("NaN?", SHARED), "unchanged"),
    (
        MAPPED,
        "cond  switch",
        "one value",
        "all branches,\none runs",
        YES,
        YES,
        "mapped condition: all\nrun, then a selection",
    ),
    (RESULT, "scan", "a known length", "the body once", YES, YES, "one loop for all"),
    (RESULT, "fori_loop", "known bounds", "is a scan", YES, YES, "one loop for all"),
    (SHARED, "fori_loop", "traced bounds", "is a while_loop", YES, NO, "mapped bounds: runs\nuntil the last is done"),
    (
        SHARED,
        "while_loop",
        "values, tested before\neach iteration",
        "condition and\nbody once",
        YES,
        NO,
        "runs until the last\nis done",
    ),
)
STEP, FIRST = 1.15, 1.5

axes = card(20, FIRST + STEP * len(ROWS) + 0.9)
for x, end, head in zip(COLUMNS, COLUMNS[1:], HEADS, strict=False):
    middle = head in ("jvp", "grad")
    words(
        axes,
        (x + end) / 2 if middle else x + 0.15,
        0.95,
        head,
        size=11,
        align="center" if middle else "left",
        bold=True,
    )
for number, (colour, name, depends, becomes, forward, reverse, mapped) in enumerate(ROWS):
    top = FIRST + STEP * number
    if number:
        axes.plot([0.5, 19.5], [top, top], color=EDGE, linewidth=1, zorder=1)
    axes.add_patch(
        Rectangle((0.5, top + 0.12), 3.8, STEP - 0.24, facecolor=colour, edgecolor=INK, linewidth=0.8, zorder=2)
    )
    words(axes, 2.4, top + STEP / 2, name, size=11, code=True)
    words(axes, COLUMNS[1] + 0.15, top + STEP / 2, depends, size=10, align="left")
    words(axes, COLUMNS[2] + 0.15, top + STEP / 2, becomes, size=10, align="left")
    for x, (word, fill) in ((COLUMNS[3], forward), (COLUMNS[4], reverse)):
        axes.add_patch(
            Rectangle((x + 0.2, top + 0.28), 1.1, STEP - 0.56, facecolor=fill, edgecolor=INK, linewidth=0.6, zorder=2)
        )
        words(axes, x + 0.75, top + STEP / 2, word, size=10)
    words(axes, COLUMNS[5] + 0.15, top + STEP / 2, mapped, size=10, align="left")
bottom = FIRST + STEP * len(ROWS)
legend = (
    "grey: runs during tracing     blue: branches     green: known number of iterations     yellow: depends on values"
)
words(axes, 10, bottom + 0.4, legend, size=9.5, colour=QUIET)
save(axes, __file__)
