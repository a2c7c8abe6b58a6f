"""Draws two ways to stop at a NaN: after the update with NaN is stored, and before."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, WRONG, arrow, box, card, save, words

axes = card(16, 9.6)


def lane(top: float, right: bool) -> None:
    """Five steps: fine, fine, the bad batch, and two that are skipped; what the loop carries stands below each."""
    words(axes, 0.6, top + 0.45, "batch", size=10.5, align="left", colour=QUIET)
    words(axes, 0.6, top + 2.35, "params", size=10.5, align="left", colour=QUIET)
    kept = ["p1", "p2", "p2" if right else "NaN", "p2" if right else "NaN", "p2" if right else "NaN"]
    for i in range(5):
        x = 4.6 + 2.1 * i
        bad = i == 2
        box(axes, x, top, 1.5, 0.85, "NaN" if bad else f"{i + 1}", fill=WRONG if bad else (MAPPED if i < 2 else PLAIN))
        arrow(axes, (x + 0.75, top + 0.9), (x + 0.75, top + 1.85), dashed=i > 2, colour=QUIET if i > 2 else "#1d2430")
        if i > 2:
            words(axes, x + 0.9, top + 1.35, "skipped", size=9, align="left", colour=QUIET)
        elif bad:
            words(axes, x + 0.9, top + 1.2, "new: NaN", size=9, align="left")
            words(axes, x + 0.9, top + 1.52, "rejected" if right else "stored", size=9, align="left", bold=True)
        fill = WRONG if kept[i] == "NaN" else RESULT
        box(axes, x, top + 1.93, 1.5, 0.85, kept[i], fill=fill)
        arrow(axes, (x - 0.57, top + 2.35), (x - 0.05, top + 2.35))
    box(axes, 2.55, top + 1.93, 1.45, 0.85, "p0", fill=RESULT)
    words(axes, 15.15, top + 2.52, "p2" if right else "NaN", size=11, bold=True, code=True)
    words(axes, 15.15, top + 2.15, "returned", size=9, colour=QUIET)


words(axes, 0.6, 0.7, "Stops after the step", size=13, align="left", bold=True)
words(axes, 6.4, 0.72, "done = isnan(value)", size=10.5, align="left", code=True)
lane(1.4, right=False)
axes.plot([0.6, 15.4], [4.75, 4.75], color=EDGE, linewidth=1)
words(axes, 0.6, 5.35, "Decides before it stores", size=13, align="left", bold=True)
words(axes, 6.4, 5.37, "rejects the update if value or a new parameter is not finite", size=10.5, align="left")
lane(6.05, right=True)
save(axes, __file__)
