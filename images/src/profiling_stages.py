"""Draws the stages from a Python function to a run, what each shows, and where an executable is stored."""

from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, save, words

axes = card(16, 8.6)

words(axes, 0.6, 0.7, "From a function to a run", size=13, align="left", bold=True)
axes.plot([0.6, 12.35], [1.5, 1.5], color=RESULT, linewidth=4, solid_capstyle="butt")
words(axes, 6.4, 1.22, "shapes and dtypes are enough", size=9.5)
axes.plot([12.65, 15.4], [1.5, 1.5], color=SHARED, linewidth=4, solid_capstyle="butt")
words(axes, 14.0, 1.22, "needs data", size=9.5)

stages = [
    (0.6, "f", "Python function", PLAIN, []),
    (3.6, "traced", "jaxpr", MAPPED, ["jax.make_jaxpr", "jax.eval_shape"]),
    (6.6, "lowered", "StableHLO", MAPPED, ["as_text()", "cost_analysis()", "not optimized yet"]),
    (9.6, "compiled", "optimized HLO", MAPPED, ["as_text(): op_name", "cost_analysis()", "memory_analysis()"]),
    (12.9, "a run", "on the device", SHARED, ["the trace: time", "memory profile"]),
]
for left, name, what, fill, asked in stages:
    box(axes, left, 2.35, 2.3, 0.95, name, fill=fill, size=11)
    words(axes, left + 1.15, 3.65, what, size=9.5, colour=QUIET)
    for place, text in enumerate(asked):
        prose = text[0] == "n" or text.startswith(("the ", "memory p"))
        words(axes, left + 1.15, 4.3 + 0.42 * place, text, size=9 if prose else 8.6, code=not prose)
names = ["trace", "lower", "compile", "call"]
for place, name in enumerate(names):
    start, end = stages[place][0] + 2.32, stages[place + 1][0] - 0.04
    arrow(axes, (start, 2.82), (end, 2.82))
    words(axes, (start + end) / 2, 2.1, name, size=9.5, bold=True)

axes.plot([0.6, 15.4], [5.75, 5.75], color=EDGE, linewidth=1)
words(axes, 0.6, 6.3, "Where the executable is stored", size=11, align="left", bold=True)
kept = [
    ("jax.jit", "in this process; compiles again for a new shape"),
    ("your compiled object", "in your variable; rejects other shapes"),
    ("the persistent cache", "in a folder; found by later processes"),
]
for place, (name, where) in enumerate(kept):
    y = 6.85 + 0.5 * place
    words(axes, 0.9, y, name, size=9.5, align="left", code=name.startswith("jax."), colour=INK)
    words(axes, 5.6, y, where, size=9.5, align="left", colour=QUIET)
save(axes, __file__)
