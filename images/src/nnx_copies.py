"""Draws what jit does with a module: a copy is put together inside, and only what is returned gets out."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, WRONG, arrow, box, card, save, words

axes = card(16, 9.4)


def lane(top: float, returned: bool) -> None:
    """Outside on the left, the traced program in the middle, what comes back on the right."""
    box(axes, 0.7, top + 0.9, 2.3, 1.0, "model", fill=MAPPED)
    words(axes, 1.85, top + 2.25, "outside", size=9.5, colour=QUIET)
    box(axes, 4.6, top, 7.0, 2.75, "", fill=PLAIN)
    words(axes, 4.85, top + 0.32, "inside jit, while it is traced", size=9.5, align="left", colour=QUIET)
    box(axes, 5.0, top + 0.9, 2.3, 1.0, "a copy", fill=MAPPED)
    box(axes, 8.9, top + 0.9, 2.3, 1.0, "updated", fill=RESULT)
    arrow(axes, (3.05, top + 1.4), (4.95, top + 1.4))
    words(axes, 3.8, top + 1.08, "leaves", size=9.5, colour=QUIET)
    arrow(axes, (7.35, top + 1.4), (8.85, top + 1.4))
    words(axes, 8.1, top + 2.25, "optimizer.update", size=9.5, code=True)
    if returned:
        arrow(axes, (11.25, top + 1.4), (12.85, top + 1.4))
        words(axes, 12.25, top + 1.08, "leaves", size=9.5, colour=QUIET)
        box(axes, 12.9, top + 0.9, 2.4, 1.0, "new model", fill=RESULT, size=9.5)
        words(axes, 14.1, top + 2.25, "trained", size=10, bold=True)
    else:
        axes.plot([11.3, 12.0], [top + 1.4, top + 1.4], color=QUIET, linewidth=1.3, linestyle=(0, (4, 3)))
        words(axes, 12.2, top + 1.4, "✕", size=14, bold=True)
        box(axes, 12.9, top + 0.9, 2.4, 1.0, "model", fill=WRONG, size=10)
        words(axes, 14.1, top + 2.25, "as it was before", size=10, bold=True)


words(axes, 0.6, 0.7, "Only the loss is returned", size=13, align="left", bold=True)
words(axes, 7.3, 0.72, "return value", size=10.5, align="left", code=True)
lane(1.3, returned=False)
axes.plot([0.6, 15.4], [4.6, 4.6], color=EDGE, linewidth=1)
words(axes, 0.6, 5.2, "What was updated is returned", size=13, align="left", bold=True)
words(axes, 7.3, 5.22, "return model, optimizer, value", size=10.5, align="left", code=True)
lane(5.85, returned=True)
save(axes, __file__)
