"""Draws one step of flash attention: the blocks of q, k and v, the block of scores, and the arrays in fast memory."""

from matplotlib.patches import Rectangle
from style import EDGE, INK, MAPPED, PAPER, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, card, save, words

COUNT, SIZE, GAP = 4, 1.15, 0.3  # blocks along an axis, the size of a block on the card, the space between arrays
ROW, NOW = 1, 2  # the block of queries, and the block of keys of the step that is drawn
axes = card(17.6, 9.4)


def block(x: float, y: float, width: float, height: float, fill: str, text: str = "", now: bool = False) -> None:
    line = {"edgecolor": WRONG, "linewidth": 2.6, "zorder": 3} if now else {"edgecolor": INK, "linewidth": 0.8}
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, **{"zorder": 2, **line}))
    words(axes, x + width / 2, y + height / 2, text, size=8.6, bold=now)


words(axes, 0.6, 0.62, "Arrays in slow memory", size=12, align="left", bold=True)
words(axes, 0.6, 1.1, "outlined: the step with i = 1 and j = 2", 9.5, "left", colour=QUIET)
LEFT, TOP = 2.4, 3.4
for j in range(COUNT):
    block(LEFT + j * SIZE, TOP - GAP - 0.8, SIZE, 0.8, SHARED, f"j = {j}", j == NOW)
words(axes, LEFT + COUNT * SIZE / 2, TOP - GAP - 1.15, "k, v", bold=True, code=True)
for i in range(COUNT):
    y = TOP + i * SIZE
    block(LEFT - GAP - 0.9, y, 0.9, SIZE, MAPPED, f"i = {i}", i == ROW)
    block(LEFT + COUNT * SIZE + GAP, y, 0.9, SIZE, RESULT, f"i = {i}", i == ROW)
words(axes, LEFT - GAP - 0.45, TOP - 0.3, "q", bold=True, code=True)
words(axes, LEFT + COUNT * SIZE + GAP + 0.45, TOP - 0.3, "out", bold=True, code=True)
for i in range(COUNT):
    for j in range(COUNT):
        x, y, now = LEFT + j * SIZE, TOP + i * SIZE, (i, j) == (ROW, NOW)
        line = {"edgecolor": WRONG, "linewidth": 2.6, "zorder": 3} if now else {"edgecolor": EDGE, "zorder": 1}
        axes.add_patch(Rectangle((x, y), SIZE, SIZE, facecolor=PAPER, linestyle=(0, (3, 2)), **line))
        done = (i, j) < (ROW, NOW)
        words(axes, x + SIZE / 2, y + SIZE / 2, "now" if now else "done" if done else "", 8.6, colour=QUIET, bold=now)
words(axes, LEFT + COUNT * SIZE / 2, TOP + COUNT * SIZE + 0.45, "scores: never stored as a whole", size=9.5)

FAST = 9.6
axes.add_patch(Rectangle((FAST, 0.35), 7.65, 8.6, facecolor=PLAIN, edgecolor=INK, linewidth=1.0, zorder=1))
words(axes, FAST + 0.35, 0.85, "Fast memory in this step", size=12, align="left", bold=True)
words(axes, FAST + 0.35, 1.55, "blocks", 9.5, "left", colour=QUIET)
block(FAST + 0.35, 1.85, 0.9, SIZE, MAPPED, "q")
block(FAST + 1.65, 1.85, SIZE, 0.8, SHARED, "k")
block(FAST + 3.2, 1.85, SIZE, 0.8, SHARED, "v")
words(axes, FAST + 0.35, 3.65, "computed in this step", 9.5, "left", colour=QUIET)
block(FAST + 0.35, 3.95, SIZE, SIZE, PAPER, "scores", True)
words(axes, FAST + 1.85, 4.52, "q @ k.T / sqrt(d)", 9, "left", code=True)
words(axes, FAST + 0.35, 5.75, "scratch arrays, kept from j to j + 1", 9.5, "left", colour=QUIET)
block(FAST + 0.35, 6.05, 0.62, SIZE, PAPER, "top")
block(FAST + 1.32, 6.05, 0.62, SIZE, PAPER, "sum")
block(FAST + 2.29, 6.05, 0.9, SIZE, PAPER, "total")
for place, text in enumerate(("largest score", "of exp(score - top)", "of exp(score - top) * v")):
    words(axes, FAST + 3.4, 6.22 + 0.4 * place, f"{('top', 'sum', 'total')[place]}: {text}", 7.6, "left", code=True)
arrow(axes, (FAST + 1.0, 5.15), (FAST + 1.0, 5.5), QUIET)
words(axes, FAST + 0.35, 7.85, "after the last j", 9.5, "left", colour=QUIET)
words(axes, FAST + 0.35, 8.35, "out block i = total / sum", 9.5, "left", code=True)
save(axes, __file__)
