"""Draws the compiled programs of three counters: with an attribute, with a carry, and with a Ref."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, box, card, save, words

axes = card(17.4, 7.4)
for x in (5.8, 11.6):
    axes.plot([x, x], [0.5, 6.9], color=EDGE, linewidth=1)

PANELS = (
    (0.5, "an attribute", "self.n += 1"),
    (6.3, "a carry", "return n + 1, n + 1"),
    (12.1, "a Ref", "ref[...] += 1"),
)
for left, title, code in PANELS:
    words(axes, left, 0.75, title, size=11.5, align="left", bold=True)
    words(axes, left, 1.25, code, size=10, align="left", code=True)
    box(axes, left + 1.0, 3.0, 2.6, 1.15, "compiled\nprogram", fill=PLAIN)

# The attribute: nothing enters, a constant leaves.
words(axes, 2.8, 2.25, "no input", size=9.5, colour=QUIET)
arrow(axes, (2.8, 4.15), (2.8, 4.85))
box(axes, 1.9, 4.9, 1.8, 0.7, "1, always", fill=WRONG)
words(axes, 0.5, 6.25, "The attribute is in Python.", size=9.5, align="left")
words(axes, 0.5, 6.65, "Tracing changed it once.", size=9.5, align="left")

# The carry: n enters, a new array leaves.
box(axes, 7.7, 1.75, 1.8, 0.65, "n", fill=MAPPED)
arrow(axes, (8.6, 2.4), (8.6, 2.95))
arrow(axes, (8.2, 4.15), (7.6, 4.85))
arrow(axes, (9.0, 4.15), (9.9, 4.85))
box(axes, 6.5, 4.9, 2.1, 0.7, "new n", fill=RESULT)
box(axes, 9.1, 4.9, 1.8, 0.7, "result", fill=RESULT)
words(axes, 6.3, 6.25, "The caller stores the new n", size=9.5, align="left")
words(axes, 6.3, 6.65, "and passes it to the next call.", size=9.5, align="left")

# The Ref: read and overwritten in place.
box(axes, 13.2, 1.75, 2.4, 0.65, "memory of ref", fill=SHARED)
arrow(axes, (14.0, 2.4), (14.0, 2.95))
arrow(axes, (14.9, 3.0), (14.9, 2.45))
words(axes, 13.85, 2.7, "read", size=9, align="right", colour=QUIET)
words(axes, 15.05, 2.7, "overwrite", size=9, align="left", colour=QUIET)
arrow(axes, (14.4, 4.15), (14.4, 4.85))
box(axes, 13.5, 4.9, 1.8, 0.7, "result", fill=RESULT)
words(axes, 12.1, 6.25, "The Ref is a hidden input.", size=9.5, align="left")
words(axes, 12.1, 6.65, "Each call changes its memory.", size=9.5, align="left")

save(axes, __file__)
