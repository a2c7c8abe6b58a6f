"""Draws a pipeline of four stages with six micro-batches: the forward passes, then the backward passes."""

from matplotlib.patches import Rectangle
from style import DEVICES, EDGE, INK, PAPER, QUIET, arrow, card, save, words

STAGES, COUNT, SIZE = 4, 6, 0.72
TICKS = COUNT + STAGES - 1
LEFT = 3.3
axes = card(15.0, 10.6)


def schedule(top: float, name: str, told: list[str], backward: bool) -> None:
    """One pass: a row for each stage, a column for each time step, and a micro-batch in each cell."""
    words(axes, 0.45, top - 0.55, name, size=12.5, align="left", bold=True)
    for number, sentence in enumerate(told):
        words(axes, LEFT + TICKS * SIZE + 0.5, top + 0.4 + 0.42 * number, sentence, size=9.5, align="left")
    for stage in range(STAGES):
        y = top + stage * (SIZE + 0.12)
        words(axes, 0.45, y + SIZE / 2, f"device {stage}: stage {stage}", size=10, align="left")
        for tick in range(TICKS):
            micro_batch = tick - (STAGES - 1 - stage if backward else stage)
            busy = 0 <= micro_batch < COUNT
            micro_batch = COUNT - 1 - micro_batch if backward else micro_batch
            place = (LEFT + tick * SIZE, y)
            fill = DEVICES[micro_batch % len(DEVICES)] if busy else PAPER
            style = {"facecolor": fill, "edgecolor": INK if busy else EDGE, "linewidth": 0.9, "zorder": 2}
            axes.add_patch(Rectangle(place, SIZE, SIZE, linestyle="-" if busy else ":", **style))
            text = str(micro_batch) if busy else "idle"
            words(
                axes, place[0] + SIZE / 2, y + SIZE / 2, text, size=10 if busy else 6.5, colour=INK if busy else QUIET
            )
    for stage in range(STAGES - 1):
        below, above = top + (stage + 1) * (SIZE + 0.12) + 0.12, top + stage * (SIZE + 0.12) + SIZE - 0.12
        if backward:
            tick = STAGES - 1 - stage
            arrow(axes, (LEFT + tick * SIZE - 0.12, below), (LEFT + tick * SIZE + 0.12, above))
        else:
            arrow(axes, (LEFT + (stage + 1) * SIZE - 0.12, above), (LEFT + (stage + 1) * SIZE + 0.12, below))


FORWARD = [
    "A number is a micro-batch.",
    "After each time step, a permute",
    "sends the activations of every",
    "micro-batch to the next stage.",
    "A device is idle before its first",
    "micro-batch and after its last.",
]
BACKWARD = [
    "The gradients move back, from",
    "the last stage to the first.",
    "JAX runs a scan in reverse, so",
    "the last micro-batch comes first.",
]
schedule(1.6, "forward passes", FORWARD, backward=False)
schedule(6.3, "backward passes", BACKWARD, backward=True)
words(
    axes,
    LEFT,
    10.05,
    f"time: {TICKS} steps for {COUNT} micro-batches and {STAGES} stages, in each direction",
    size=9.5,
    align="left",
    colour=QUIET,
)
save(axes, __file__)
