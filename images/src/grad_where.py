"""Draws how NaN arises on the side of a where that is not selected, and how a second where avoids it."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, WRONG, arrow, box, card, cells, save, words

axes = card(16, 11.6)
SIZE = 0.75


def lane(top: float, guarded: bool) -> None:
    """The forward pass above, the backward pass below it. The safe value 0 is an input of the where."""
    bad = PLAIN if guarded else WRONG
    middle, back = top + 0.95, top + 2.95
    words(axes, 0.6, middle + SIZE / 2, "forward", size=11, align="left", bold=True)
    words(axes, 0.6, back + SIZE / 2, "backward", size=11, align="left", bold=True)
    cells(axes, 2.4, middle, 1, 1, MAPPED, size=SIZE, words=[["0"]])
    words(axes, 2.77, middle - 0.25, "x", size=10, code=True)
    if guarded:
        box(axes, 4.0, middle - 0.03, 1.9, 0.8, "where → 1", fill=RESULT, size=9.5)
        arrow(axes, (3.2, middle + SIZE / 2), (3.95, middle + SIZE / 2))
        arrow(axes, (5.95, middle + SIZE / 2), (6.85, middle + SIZE / 2))
        words(axes, 6.4, middle + 0.1, "1", size=10, colour=QUIET)
    else:
        arrow(axes, (3.2, middle + SIZE / 2), (6.85, middle + SIZE / 2))
        words(axes, 5.0, middle + 0.1, "0", size=10, colour=QUIET)
    box(axes, 6.9, middle - 0.03, 1.3, 0.8, "log", fill=bad)
    arrow(axes, (8.25, middle + SIZE / 2), (10.35, middle + SIZE / 2), dashed=True)
    words(axes, 9.3, middle + 0.1, "0, not selected" if guarded else "−inf, not selected", size=9.5, colour=QUIET)
    box(axes, 10.4, middle - 0.03, 1.6, 0.8, "where", fill=RESULT)
    words(axes, 10.8, top + 0.15, "selected", size=9.5, align="right", colour=QUIET)
    cells(axes, 11.0, top - 0.05, 1, 1, MAPPED, size=0.4, words=[["0"]])
    arrow(axes, (11.2, top + 0.38), (11.2, middle - 0.06))
    arrow(axes, (12.05, middle + SIZE / 2), (13.0, middle + SIZE / 2))
    cells(axes, 13.1, middle, 1, 1, RESULT, size=SIZE, words=[["0"]])
    words(axes, 14.05, middle + SIZE / 2, "right", size=10, align="left")

    cells(axes, 13.1, back, 1, 1, RESULT, size=SIZE, words=[["1"]])
    words(axes, 14.05, back + SIZE / 2, "start: 1", size=10, align="left")
    arrow(axes, (13.0, back + SIZE / 2), (12.05, back + SIZE / 2))
    box(axes, 10.4, back - 0.03, 1.6, 0.8, "where", fill=RESULT)
    arrow(axes, (11.2, back - 0.06), (11.2, back - 0.5))
    words(axes, 11.4, back - 0.35, "1, to the selected side", size=9.5, align="left", colour=QUIET)
    arrow(axes, (10.35, back + SIZE / 2), (8.25, back + SIZE / 2))
    words(axes, 9.3, back + 0.1, "0, to log", size=10, colour=QUIET)
    box(axes, 6.9, back - 0.03, 1.3, 0.8, "· 1/1" if guarded else "· 1/0", fill=bad)
    if guarded:
        arrow(axes, (6.85, back + SIZE / 2), (5.95, back + SIZE / 2))
        words(axes, 6.4, back + 0.1, "0", size=10, colour=QUIET)
        box(axes, 4.0, back - 0.03, 1.9, 0.8, "where", fill=RESULT, size=9.5)
        arrow(axes, (3.95, back + SIZE / 2), (3.2, back + SIZE / 2))
    else:
        arrow(axes, (6.85, back + SIZE / 2), (3.2, back + SIZE / 2), colour="#b5502a")
        words(axes, 5.0, back + 0.1, "0 · inf = NaN", size=10, bold=True)
    cells(axes, 2.4, back, 1, 1, RESULT if guarded else WRONG, size=SIZE, words=[["0" if guarded else "NaN"]])


words(axes, 0.6, 0.7, "One where, after the operation", size=13, align="left", bold=True)
words(axes, 6.9, 0.72, "jnp.where(x > 0, jnp.log(x), 0)", size=10.5, align="left", code=True)
lane(1.5, guarded=False)
axes.plot([0.6, 15.4], [5.9, 5.9], color=EDGE, linewidth=1)
words(axes, 0.6, 6.5, "A second where before it", size=13, align="left", bold=True)
words(axes, 5.3, 6.52, "jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), 0)", size=10.5, align="left", code=True)
lane(7.3, guarded=True)
save(axes, __file__)
