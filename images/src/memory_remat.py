"""Draws the memory of a network with four layers over time: with all residuals stored, and with jax.checkpoint."""

from style import INK, MAPPED, QUIET, SHARED, WRONG, arrow, card, cells, save, words

axes = card(16, 14.4)
SIZE = 0.36
LEFT, WIDTH = 3.0, 1.5  # where the first step stands, and how far apart the steps are


def timeline(base: float, steps: list[str], stacks: list[list[str]]) -> None:
    """A stack of cells for each step, from the line at height `base` upwards."""
    for place, (step, stack) in enumerate(zip(steps, stacks, strict=True)):
        x = LEFT + WIDTH * place
        for height, fill in enumerate(stack):
            cells(axes, x, base - SIZE * (height + 1), 1, 1, fill, size=SIZE)
        words(axes, x + SIZE / 2, base + 0.35, step, size=10)
    axes.plot([LEFT - 0.3, LEFT + WIDTH * 7 + 0.7], [base, base], color=INK, linewidth=1)
    middle = LEFT + WIDTH * 3.5 + SIZE / 2
    axes.plot([middle, middle], [base - 4.1, base + 0.6], color=QUIET, linewidth=1, linestyle=(0, (3, 3)))
    words(axes, LEFT + WIDTH * 1.5 + SIZE / 2, base + 0.85, "forward pass", size=10, colour=QUIET)
    words(axes, LEFT + WIDTH * 5.5 + SIZE / 2, base + 0.85, "backward pass", size=10, colour=QUIET)
    words(axes, 1.3, base - 1.0, "stored\nin each step", size=10, colour=QUIET)
    words(axes, 1.3, base + 0.35, "layer", size=10, colour=QUIET)


layers = [1, 2, 3, 4]
steps = [f"{n}" for n in (*layers, *layers[::-1])]
words(axes, 0.6, 0.7, "Without jax.checkpoint", size=13, align="left", bold=True)
one = [MAPPED, SHARED, SHARED]
timeline(5.7, steps, [one * n for n in (*layers, *layers[::-1])])
words(
    axes, 6.3, 0.72, "all residuals of all layers at the end of the forward pass", size=10.5, align="left", colour=QUIET
)

words(axes, 0.6, 7.4, "With jax.checkpoint for each layer", size=13, align="left", bold=True)
timeline(11.6, steps, [[MAPPED] * n for n in layers] + [[MAPPED] * n + [WRONG] * 2 for n in layers[::-1]])
words(axes, 8.7, 7.42, "each layer is computed again", size=10.5, align="left", colour=QUIET)
for place in range(4, 8):
    x = LEFT + WIDTH * place
    height = 8 - place
    arrow(axes, (x - 0.5, 11.6 - SIZE * (height + 1)), (x - 0.04, 11.6 - SIZE * (height + 1)), colour=QUIET)

for x, fill, text in (
    (1.0, MAPPED, "input of a layer"),
    (5.2, SHARED, "other residuals"),
    (9.4, WRONG, "recomputed residuals"),
):
    cells(axes, x, 13.2, 1, 1, fill, size=SIZE)
    words(axes, x + 0.6, 13.2 + SIZE / 2, text, size=10, align="left")

save(axes, __file__)
