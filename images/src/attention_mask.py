"""Draws the scores of four queries and four keys, and a causal mask before and after the softmax."""

import numpy as np
from style import INK, MAPPED, PAPER, QUIET, RESULT, SHARED, WRONG, arrow, card, cells, save, words

SIZE, LEFT, STEP = 0.86, 1.5, 5.35
SCORES = np.array([[0.9, 0.2, 1.7, 0.4], [0.3, 1.2, 0.1, 2.1], [1.0, 0.5, 1.4, 1.9], [0.2, 1.6, 0.7, 1.1]])
LATER = np.triu_indices(4, 1)
axes = card(17.6, 12.7)


def share(rows: np.ndarray) -> np.ndarray:
    """Each row as shares of its total, in proportion to the exponentials of its numbers."""
    grown = np.exp(rows)
    return grown / np.sum(grown, axis=1, keepdims=True)


def table(place: int, y: float, title: str, code: str, numbers: np.ndarray, fill: str, masked: str = "") -> None:
    """A table of numbers at one of three places. Later keys have another colour if `masked` is their text."""
    x = LEFT + place * STEP
    colours = [[fill] * 4 for _ in range(4)]
    texts = [[f"{number:.2f}" if fill != SHARED else f"{number:.1f}" for number in row] for row in numbers]
    for i, j in zip(*LATER, strict=True):
        if masked:
            colours[i][j], texts[i][j] = PAPER, masked
    cells(axes, x, y, 4, 4, colours, size=SIZE, words=texts)
    words(axes, x + 2 * SIZE, y - 0.95, title, size=10.5, bold=True)
    words(axes, x + 2 * SIZE, y - 0.5, code, size=8.5, code=True, colour=QUIET)
    for i in range(4):
        words(axes, x + (i + 0.5) * SIZE, y + 4 * SIZE + 0.25, f"k{i}", size=8, code=True, colour=QUIET)
        words(axes, x - 0.3, y + (i + 0.5) * SIZE, f"q{i}", size=8, code=True, colour=QUIET)


def totals(y: float, numbers: np.ndarray, colour: str) -> None:
    x = LEFT + 2 * STEP + 4 * SIZE
    words(axes, x + 0.75, y - 0.5, "sum", size=8.5, colour=QUIET)
    for i, total in enumerate(numbers.sum(axis=1)):
        words(axes, x + 0.75, y + (i + 0.5) * SIZE, f"{total:.2f}", size=9.5, bold=True, colour=colour)


def step(place: int, y: float, name: str) -> None:
    x = LEFT + place * STEP + 4 * SIZE
    arrow(axes, (x + 0.2, y + 2 * SIZE), (x + STEP - 4 * SIZE - 0.65, y + 2 * SIZE))
    words(axes, x + (STEP - 4 * SIZE - 0.45) / 2, y + 2 * SIZE - 0.3, name, size=8.5)


top, bottom = 2.5, 8.6
after = share(SCORES)
after[LATER] = 0
before = share(np.where(np.tri(4) > 0, SCORES, -np.inf))
words(axes, 0.5, 0.75, "Right: mask, then softmax", size=12, align="left", bold=True)
table(0, top, "scores", "q @ k.T / sqrt(d)", SCORES, SHARED)
step(0, top, "mask")
table(1, top, "masked scores", "later keys: -inf", SCORES, SHARED, "-inf")
step(1, top, "softmax")
table(2, top, "weights", "rows add up to 1", before, RESULT, "0")
totals(top, before, INK)

words(axes, 0.5, 6.95, "Wrong: softmax, then mask", size=12, align="left", bold=True)
table(0, bottom, "scores", "q @ k.T / sqrt(d)", SCORES, SHARED)
step(0, bottom, "softmax")
table(1, bottom, "weights of all keys", "contain later scores", share(SCORES), MAPPED)
step(1, bottom, "mask")
table(2, bottom, "what is left", "rows add up to less", after, WRONG, "0")
totals(bottom, after, INK)
save(axes, __file__)
