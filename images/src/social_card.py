"""Draws docs/social_card.png, the repository's social card of 1280 x 640 pixels."""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch
from style import DEVICES, IMAGES, INK, MAPPED, PLAIN, QUIET, RESULT, arrow, box, card, words

WIDTH, HEIGHT = 20, 10  # of the card, in its units
PIXELS = 1280
CODE = "\n".join(line.ljust(24) for line in ("def loss(params, x, y):", "    h = tanh(params @ x)", "    ..."))
CHECKS = ("the gradients are all-reduced", "each device stores an eighth", "the function is compiled once")

axes = card(WIDTH, HEIGHT)
words(axes, 0.9, 1.75, "Jaxercise", size=50, bold=True, align="left")
words(axes, 0.95, 3.25, "Learn JAX in notebooks, from arrays to training on many devices", size=19.5, align="left")

box(axes, 0.95, 4.5, 5.6, 2.5, CODE, fill=PLAIN, size=13.5)
words(axes, 3.75, 7.5, "your function", size=14, colour=QUIET)
arrow(axes, (6.65, 5.75), (8.05, 5.75))
words(axes, 7.35, 5.3, "jit", size=14, bold=True)
box(axes, 8.15, 4.5, 4.1, 2.5, "fusion(p0, p1)\nall-reduce(...)", fill=MAPPED, size=13.5)
words(axes, 10.2, 7.5, "the compiled program", size=14, colour=QUIET)
arrow(axes, (12.35, 5.75), (13.75, 5.75))
words(axes, 13.05, 5.3, "run", size=14, bold=True)
for device, colour in enumerate(DEVICES):
    row, column = divmod(device, 4)
    x, y = 13.9 + column * 1.32, 4.5 + row * 1.32
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, y), 1.18, 1.18, boxstyle=shape, facecolor=colour, edgecolor=INK, zorder=2))
    words(axes, x + 0.59, y + 0.6, str(device), size=14)
words(axes, 16.47, 7.5, "eight devices", size=14, colour=QUIET)

for place, check in enumerate(CHECKS):
    x = 0.95 + place * 6.2
    axes.add_patch(
        FancyBboxPatch((x, 8.35), 0.62, 0.62, boxstyle="round,pad=0", facecolor=RESULT, edgecolor=INK, zorder=2)
    )
    words(axes, x + 0.31, 8.67, "✓", size=15, bold=True)
    words(axes, x + 0.85, 8.67, check, size=14, align="left")

axes.figure.savefig(
    IMAGES.parent / "docs" / "social_card.png", dpi=PIXELS / (0.62 * WIDTH), metadata={"Software": None}
)
plt.close(axes.figure)
