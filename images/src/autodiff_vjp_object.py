"""Draws a VJP object between a forward and a backward program, and a queue of such objects in 1F1B order."""

from matplotlib.patches import FancyBboxPatch, Rectangle
from style import DEVICES, EDGE, INK, MAPPED, PAPER, PLAIN, QUIET, RESULT, SHARED, arrow, card, save, words

axes = card(17.0, 11.2)


def part(x: float, y: float, width: float, height: float, title: str, told: list[str], fill: str) -> None:
    """A box with a title in code and sentences below it."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=INK, linewidth=0.9, zorder=2))
    words(axes, x + 0.2, y + 0.36, title, size=9.5, align="left", code=True)
    for number, sentence in enumerate(told):
        words(axes, x + 0.2, y + 0.8 + 0.36 * number, sentence, size=8.5, align="left", colour=INK)


part(0.5, 2.0, 3.4, 2.4, "forward", ["compiled once", "", "takes params and x", "returns y and the object"], MAPPED)
axes.add_patch(
    FancyBboxPatch(
        (5.3, 0.75),
        6.4,
        4.9,
        boxstyle="round,pad=0,rounding_size=0.2",
        facecolor=PAPER,
        edgecolor=INK,
        linewidth=1.3,
        zorder=1,
    )
)
words(axes, 8.5, 1.15, "VJP object, a pytree", size=11.5, bold=True)
part(5.6, 1.5, 2.85, 1.95, "args_res", ["leaves: the arguments", "that are needed;", "NotNeeded() for others"], SHARED)
part(
    8.6,
    1.5,
    2.85,
    1.95,
    "opaque_residuals",
    ["leaves: what the forward", "pass has computed for", "the backward pass"],
    SHARED,
)
part(
    5.6,
    3.6,
    5.85,
    1.75,
    "tree structure",
    ["the linear jaxpr, which the backward pass", "transposes; a part of the key of the cache"],
    PLAIN,
)
part(13.1, 2.0, 3.4, 2.4, "backward", ["compiled once", "", "takes the object and the", "cotangent of y"], RESULT)
arrow(axes, (3.95, 3.2), (5.25, 3.2))
arrow(axes, (11.75, 3.2), (13.05, 3.2))
words(axes, 14.8, 4.85, "returns the cotangents", size=8.5)
words(axes, 14.8, 5.2, "of params and x", size=8.5)

words(axes, 0.5, 6.4, "Four micro-batches in 1F1B order, two forward passes ahead", size=11.5, align="left", bold=True)
ORDER = (("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("F", 3), ("B", 2), ("B", 3))
LEFT, STEP = 3.6, 1.6
words(axes, 0.5, 7.35, "pass", size=10, align="left")
words(axes, 0.5, 8.75, "objects that wait", size=10, align="left")
words(axes, 0.5, 9.15, "afterwards", size=10, align="left")
waiting: list[int] = []
for step, (kind, number) in enumerate(ORDER):
    x = LEFT + step * STEP
    fill = MAPPED if kind == "F" else RESULT
    axes.add_patch(Rectangle((x, 6.95), 1.25, 0.8, facecolor=fill, edgecolor=INK, linewidth=0.9, zorder=2))
    words(axes, x + 0.625, 7.35, f"{kind}{number}", size=11, bold=True)
    if kind == "F":
        waiting.append(number)
    else:
        waiting.remove(number)
    for place in range(2):
        busy = place < len(waiting)
        style = {"facecolor": DEVICES[waiting[place]] if busy else PAPER, "edgecolor": INK if busy else EDGE}
        corner = (x, 8.15 + 0.75 * place)
        axes.add_patch(Rectangle(corner, 1.25, 0.65, linestyle="-" if busy else ":", linewidth=0.9, zorder=2, **style))
        text = f"object {waiting[place]}" if busy else "free"
        words(axes, x + 0.625, corner[1] + 0.33, text, size=8, colour=INK if busy else QUIET)
words(
    axes,
    0.5,
    10.4,
    "A forward pass adds an object to the queue. A backward pass takes the oldest one, and its residuals are freed.",
    size=9.5,
    align="left",
)

save(axes, __file__)
