"""Draws a grid of two by three steps with the blocks that each step uses, and the copies while a step is computed."""

from matplotlib.patches import Rectangle
from style import INK, MAPPED, PAPER, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, card, save, words

BLOCK, NOW = 0.95, 4  # the size of a block on the card, and the step that is highlighted
axes = card(17.2, 10.6)


def block(x: float, y: float, text: str, fill: str, chosen: bool, width: float = BLOCK, height: float = BLOCK) -> None:
    line = {"edgecolor": WRONG, "linewidth": 2.6, "zorder": 3} if chosen else {"edgecolor": INK, "linewidth": 0.8}
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, **{"zorder": 2, **line}))
    words(axes, x + width / 2, y + height / 2, text, size=9, bold=chosen)


def matrix(x: float, y: float, title: str, index_map: str, fill: str) -> None:
    words(axes, x + 1.5 * BLOCK, y - 0.75, title, bold=True)
    words(axes, x + 1.5 * BLOCK, y - 0.32, index_map, size=9, code=True, colour=QUIET)
    for i in range(2):
        for j in range(3):
            step = 3 * i + j
            block(x + j * BLOCK, y + i * BLOCK, f"{step}", fill, step == NOW)


words(axes, 0.6, 0.62, "The blocks of each step", size=12, align="left", bold=True)
words(axes, 0.6, 1.1, "numbers: steps of the grid (2, 3); outlined: step 4, i = 1 and j = 1", 9.5, "left", colour=QUIET)
TOP = 2.6
matrix(0.9, TOP, "x", "(i, j)", MAPPED)
words(axes, 6.5, TOP - 0.75, "row", bold=True)
words(axes, 6.5, TOP - 0.32, "(0, j)", size=9, code=True, colour=QUIET)
for j in range(3):
    block(6.5 + (j - 1.5) * BLOCK, TOP + BLOCK / 2, f"{j} and {j + 3}", SHARED, j == NOW % 3)
matrix(13.2, TOP, "result", "(i, j)", RESULT)
words(axes, 4.38, TOP + BLOCK, "+", size=15)
arrow(axes, (8.2, TOP + BLOCK), (9.0, TOP + BLOCK))
axes.add_patch(Rectangle((9.1, TOP + 0.32), 2.9, 1.26, facecolor=PAPER, edgecolor=INK, linewidth=1.0, zorder=2))
words(axes, 10.55, TOP + 0.72, "kernel", bold=True)
words(axes, 10.55, TOP + 1.18, "x_ref, row_ref, out_ref", size=7.6, code=True)
arrow(axes, (12.1, TOP + BLOCK), (13.0, TOP + BLOCK))

LEFT, STEP, LINE = 4.6, 1.42, 0.74
words(axes, 0.6, 5.75, "The pipeline of a TPU", size=12, align="left", bold=True)
words(axes, 0.6, 6.23, "time runs to the right; numbers are steps", 9.5, "left", colour=QUIET)
for place, (name, late, fill) in enumerate(
    (
        ("copy in: slow to fast memory", 0, MAPPED),
        ("compute in fast memory", 1, PLAIN),
        ("copy out: fast to slow memory", 2, RESULT),
    )
):
    y = 6.8 + place * (LINE + 0.2)
    words(axes, LEFT - 0.15, y + LINE / 2, name, size=8.6, align="right")
    for step in range(6):
        block(LEFT + (step + late) * STEP, y, f"{step}", fill, step == NOW, STEP, LINE)
x = LEFT + (NOW + 1) * STEP
for edge in (x, x + STEP):
    axes.plot([edge, edge], [6.65, 9.75], color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
words(
    axes, x + STEP / 2, 10.0, "while step 4 is computed, the blocks of step 5 arrive and the result of step 3 leaves", 9
)
save(axes, __file__)
