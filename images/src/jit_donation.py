"""Draws donation: without it the new parameters need new memory, with it they overwrite the old ones."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, arrow, box, card, save, words

axes = card(16, 7.2)
axes.plot([8, 8], [0.5, 6.7], color=EDGE, linewidth=1)

WIDTH, STEP = 2.15, 2.35


def strip(x: float, y: float, when: str, buffers: list[tuple[str, str]]) -> None:
    """Device memory at one moment, a box for each buffer."""
    words(axes, x, y - 0.35, when, size=9.5, align="left", colour=QUIET)
    for i, (text, fill) in enumerate(buffers):
        box(axes, x + STEP * i, y, WIDTH, 0.85, text, fill=fill)


for left, call, title in (
    (0.6, "jax.jit(update)", "The result needs new memory."),
    (8.5, 'jax.jit(update, donate_argnames="params")', "The result reuses the memory of params."),
):
    words(axes, left, 0.75, call, size=11, align="left", code=True, bold=True)
    words(axes, left, 1.3, title, size=10.5, align="left")
    strip(left, 2.45, "device memory before the call", [("params", MAPPED), ("gradient", PLAIN)])

strip(0.6, 4.6, "after", [("params", MAPPED), ("gradient", PLAIN), ("new params", RESULT)])
strip(8.5, 4.6, "after", [("new params", RESULT), ("gradient", PLAIN)])

for left in (0.6, 8.5):
    arrow(axes, (left + STEP + WIDTH / 2, 3.4), (left + STEP + WIDTH / 2, 4.5), colour=QUIET, dashed=True)
arrow(axes, (0.6 + WIDTH / 2, 3.4), (0.6 + WIDTH / 2, 4.5), colour=QUIET, dashed=True)
words(axes, 1.85, 3.9, "kept", size=9, align="left", colour=QUIET)
words(axes, 4.2, 3.9, "kept", size=9, align="left", colour=QUIET)
words(axes, 12.1, 3.9, "kept", size=9, align="left", colour=QUIET)
arrow(axes, (6.38, 3.95), (6.38, 4.5))
words(axes, 6.38, 3.7, "new memory", size=9)
arrow(axes, (8.5 + WIDTH / 2, 3.4), (8.5 + WIDTH / 2, 4.5))
words(axes, 9.75, 3.75, "overwritten", size=9, align="left")
words(axes, 9.75, 4.08, "in place", size=9, align="left")

words(axes, 0.6, 6.0, "Three arrays. The old parameters stay in memory", size=10, align="left")
words(axes, 0.6, 6.4, "as long as a variable refers to them.", size=10, align="left")
words(axes, 8.5, 6.0, "Two arrays. The old array is deleted, even if", size=10, align="left")
words(axes, 8.5, 6.4, "a variable refers to it. Reading it is an error.", size=10, align="left")
words(axes, 13.3, 4.85, "old params:", size=10, align="left", code=True)
words(axes, 13.3, 5.2, "✗ deleted", size=10, align="left", bold=True, colour="#b4532a")

save(axes, __file__)
