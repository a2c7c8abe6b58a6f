"""Draws the stages of log2 from Python to jaxpr, StableHLO and optimized HLO, each with its text."""

from style import PLAIN, QUIET, RESULT, arrow, box, card, save, words

axes = card(16, 12.9)
LEFT, TEXT, RIGHT = 0.6, 3.5, 12.1
stages = [
    ("Python", "runs once", PLAIN, ("def log2(x):", "    return jnp.log(x) / jnp.log(2.0)"), ""),
    (
        "jaxpr",
        "JAX's language",
        PLAIN,
        (
            "{ lambda ; a:f32[]. let",
            "    b:f32[] = log a",
            "    c:f32[] = log 2.0:f32[]",
            "    d:f32[] = div b c",
            "  in (d,) }",
        ),
        "jax.make_jaxpr(log2)(8.0)",
    ),
    (
        "StableHLO",
        "for other tools too",
        PLAIN,
        (
            "%0   = stablehlo.log %arg0",
            "%cst = stablehlo.constant 2.0",
            "%1   = stablehlo.log %cst",
            "%2   = stablehlo.divide %0, %1",
        ),
        "lowered = jax.jit(log2)\\\n    .lower(8.0)\nlowered.as_text()",
    ),
    (
        "HLO",
        "optimized by XLA",
        RESULT,
        (
            "fused_computation {",
            "  log      = log(x)",
            "  constant = constant(1.44269502)",
            "  multiply = multiply(log, constant)",
            "}",
        ),
        "lowered.compile()\\\n    .as_text()",
    ),
]
steps = ("trace: with a tracer for x", "lower: translate each equation", "compile: XLA simplifies and fuses")
y = 0.6
for i, (name, what, fill, text, how) in enumerate(stages):
    height = 0.5 + 0.42 * len(text)
    middle = y + height / 2
    words(axes, LEFT, middle - 0.22, name, size=13, align="left", bold=True)
    words(axes, LEFT, middle + 0.28, what, size=9.5, align="left", colour=QUIET)
    box(axes, TEXT, y, 8.2, height, "", fill=fill)
    words(axes, TEXT + 0.3, middle, "\n".join(text), size=10.5, align="left", code=True)
    words(axes, RIGHT, middle, how, size=9, align="left", code=True)
    y += height
    if i < len(steps):
        arrow(axes, (TEXT + 1.5, y + 0.05), (TEXT + 1.5, y + 0.7))
        words(axes, TEXT + 1.8, y + 0.38, steps[i], size=10, align="left")
        y += 0.75
arrow(axes, (TEXT + 1.5, y + 0.05), (TEXT + 1.5, y + 0.6))
words(axes, TEXT + 1.8, y + 0.33, "machine code for this CPU, GPU or TPU", size=10, align="left")

save(axes, __file__)
