"""Draws the two stages of a traced function: what Python does once, and what the program contains that runs."""

from style import EDGE, QUIET, RESULT, WRONG, arrow, box, card, save, words

axes = card(16, 12.45)
SOURCE, PYTHON, PROGRAM = 0.6, 5.9, 11.1
words(axes, SOURCE, 0.7, "your function", size=12, align="left", bold=True)
words(axes, PYTHON, 0.7, "while tracing: Python", size=12, align="left", bold=True)
words(axes, PROGRAM, 0.7, "in the program", size=12, align="left", bold=True)
words(axes, PYTHON, 1.15, "once for each shape and dtype", size=9.5, align="left", colour=QUIET)
words(axes, PROGRAM, 1.15, "in every call, without Python", size=9.5, align="left", colour=QUIET)

lines = [
    ("def f(x):", "x is a tracer", ()),
    ('    print("here", x)', "prints the tracer", ()),
    ("    for _ in range(3):", "runs three iterations", ()),
    ("        x = jnp.sin(x)", "JAX records it, each time", ("b = sin a", "c = sin b", "d = sin c")),
    ("    if x.ndim == 1:", "decides by the shape", ()),
    ("        x = x.sum()", "JAX records it", ("e = reduce_sum d",)),
    ('    jax.debug.print("{}", x)', "JAX records it", ("debug_print e",)),
    ("    return x * np.sqrt(2.0)", "NumPy: 1.414. JAX records mul", ("f = mul e 1.414",)),
]
y = 1.55
for source, does, equations in lines:
    height = max(0.62, 0.46 * len(equations))
    middle = y + height / 2
    words(axes, SOURCE, middle, source, size=10.5, align="left", code=True)
    words(axes, PYTHON, middle, does, size=10.5, align="left")
    if equations:
        arrow(axes, (PROGRAM - 0.6, middle), (PROGRAM - 0.1, middle))
        box(axes, PROGRAM, y + 0.05, 4.3, height - 0.1, "\n".join(equations), fill=RESULT, size=9.5)
    y += height + 0.06

axes.plot([0.6, 15.4], [y + 0.25, y + 0.25], color=EDGE, linewidth=1)
y += 0.75
words(axes, SOURCE, y, "compiled = jax.jit(f), called three times", size=12, align="left", bold=True)
calls = [
    ("compiled(jnp.ones(3))", "float32[3], first call", True),
    ("compiled(jnp.zeros(3))", "float32[3], cached program", False),
    ("compiled(jnp.ones(4))", "float32[4], first call", True),
]
for i, (call, why, traced) in enumerate(calls):
    top = y + 0.45 + 0.88 * i
    words(axes, SOURCE, top + 0.31, call, size=10.5, align="left", code=True)
    if traced:
        box(axes, PYTHON, top, 2.6, 0.62, "trace", fill=WRONG)
        arrow(axes, (PYTHON + 2.6, top + 0.31), (PYTHON + 3.0, top + 0.31))
    else:
        axes.plot([PYTHON, PYTHON + 2.95], [top + 0.31] * 2, color=QUIET, linewidth=1, linestyle=(0, (2, 3)))
    box(axes, PYTHON + 3.05, top, 1.35, 0.62, "run", fill=RESULT)
    words(axes, PROGRAM, top + 0.31, why, size=10, align="left", colour=QUIET)

words(
    axes,
    SOURCE,
    y + 3.35,
    "trace: Python runs, with its side effects.  run: only the program runs.",
    size=10,
    align="left",
    colour=QUIET,
)

save(axes, __file__)
