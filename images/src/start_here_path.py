"""Draws the way from a Python function to a chip: traced once, lowered, compiled, and run without Python."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, box, card, save, words

axes = card(17.4, 6.6)
steps = [
    ("Python", "def loss(p, x, y):\n  h = tanh(p @ x)\n  ...", PLAIN, "yours"),
    ("jaxpr", "a:f32[256]\nb = tanh a\nc = dot b d", MAPPED, "typed, pure,\none operation a line"),
    ("StableHLO", "%1 = tanh %0\n%2 = dot %1, %d", SHARED, "portable: any\ncompiler reads it"),
    ("HLO", "fusion(p0, p1)\nall-reduce(...)", WRONG, "merged, laid out,\ncut for N devices"),
    ("machine code", "CPU   GPU   TPU", RESULT, "runs again and again"),
]
verbs = ("trace", "lower", "compile", "load")
width, gap = 2.75, 0.62
for i, (name, inside, fill, below) in enumerate(steps):
    left = 0.6 + i * (width + gap)
    words(axes, left + width / 2, 0.75, name, size=12, bold=True)
    box(axes, left, 1.6, width, 1.7, inside, fill=fill, size=8.5)
    words(axes, left + width / 2, 3.95, below, size=9.5, colour=QUIET)
    if i < len(verbs):
        arrow(axes, (left + width + 0.04, 2.45), (left + width + gap - 0.04, 2.45))
        words(axes, left + width + gap / 2, 1.2, verbs[i], size=10, bold=True)

middle = 0.6 + 1 * (width + gap) + width / 2
arrow(axes, (middle - 0.5, 4.55), (middle + 0.5, 4.55), bend=0.9)
words(axes, middle, 5.35, "grad and vmap rewrite it", size=9.5)

axes.plot([0.6, 3.9], [5.95, 5.95], color=EDGE, linewidth=5, solid_capstyle="butt")
axes.plot([3.97, 13.4], [5.95, 5.95], color=SHARED, linewidth=5, solid_capstyle="butt")
axes.plot([13.47, 16.8], [5.95, 5.95], color=RESULT, linewidth=5, solid_capstyle="butt")
words(axes, 2.25, 6.25, "Python runs, once", size=9, colour=QUIET)
words(axes, 8.7, 6.25, "once for each combination of shapes and dtypes", size=9, colour=QUIET)
words(axes, 15.1, 6.25, "every call", size=9, colour=QUIET)
save(axes, __file__)
