"""Draws the steps from a Python function to machine code: trace, lower, compile, load."""

from style import MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, box, card, save, words

axes = card(17.4, 5.5)
steps = [
    ("Python", "def loss(p, x, y):\n  h = tanh(p @ x)\n  ...", PLAIN, "your function and\nits transformations"),
    ("jaxpr", "a:f32[256]\nb = tanh a\nc = dot b d", MAPPED, "typed primitives,\none in each line"),
    ("StableHLO", "%1 = tanh %0\n%2 = dot %1, %d", SHARED, "portable input\nof a compiler"),
    ("HLO", "fusion(p0, p1)\nall-reduce(...)", WRONG, "optimized, partitioned\nover the devices"),
    ("machine code", "CPU   GPU   TPU", RESULT, "runs without Python"),
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

for left, right, colour, text in (
    (0.6, 13.4, SHARED, "once for each combination of shapes and dtypes"),
    (13.47, 16.83, RESULT, "in every call"),
):
    axes.plot([left, right], [4.75, 4.75], color=colour, linewidth=5, solid_capstyle="butt")
    words(axes, (left + right) / 2, 5.07, text, size=9.5, colour=QUIET)
save(axes, __file__)
