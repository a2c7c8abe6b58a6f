"""Draws a picture of a trained run: it runs lesson 11's own cells and draws the variables that they bind.

Losses, accuracies, channels and mistakes are those of that run; nothing is written down here.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from style import INK, MAPPED, QUIET, RESULT, card, save, words

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
# Cells that time loaders, which the picture does not show.
SKIPPED = ("get_context", "slow_disk", "step_ms", "draws)) for _", "by_jax")


def run_lesson() -> dict[str, Any]:
    """The names that the lesson's cells have bound when all have run."""
    cells = (ROOT / "notebooks" / "11_mnist.py").read_text(encoding="utf-8").split("# %%")
    names: dict[str, Any] = {}
    for cell in cells:
        head, _, source = cell.partition("\n")
        if "[markdown]" not in head and not any(word in source for word in SKIPPED):
            exec(compile(source, "lesson 11", "exec"), names)
    return names


os.environ.setdefault("JAXERCISE_DIGITS", "embedded")  # the same digits for whoever draws it anew
ran = run_lesson()
axes = card(17.4, 6.4)


def inset(left: float, top: float, width: float, height: float) -> Axes:
    """Axes for a plot or an image on the card, in its units."""
    (all_wide, _), (all_high, _) = axes.get_xlim()[::-1], axes.get_ylim()
    place = (left / all_wide, 1 - (top + height) / all_high, width / all_wide, height / all_high)
    inner: Axes = axes.figure.add_axes(place)
    inner.patch.set_alpha(0)
    return inner


def picture(left: float, top: float, size: float, pixels: np.ndarray, colours: str) -> None:
    inner = inset(left, top, size, size)
    inner.imshow(pixels, cmap=colours, interpolation="nearest")
    inner.set(xticks=[], yticks=[])


steps = ran["STEPS"]
words(axes, 0.6, 0.75, f"{steps} steps", size=12, align="left", bold=True)
curve = inset(1.25, 1.25, 5.6, 3.7)
curve.spines[["top", "right"]].set_visible(False)
curve.tick_params(labelsize=8.5, colors=INK)
for name, colour, label in (("train", MAPPED, "training digits, moved"), ("test", INK, "test digits")):
    accuracies = [100 * recorded["accuracy"] for recorded in ran["history"][name]]
    curve.plot(range(20, steps + 1, 20), accuracies, "o-", color=colour, markersize=4, label=label)
curve.set(ylim=(40, 102), xlabel="step")
curve.set_ylabel("accuracy (%)", fontsize=9)
curve.legend(fontsize=8.5, frameon=False, loc="lower right")
said = f"{np.mean(ran['predicted'] == ran['labels']):.1%} of {len(ran['labels'])} digits that it was not trained on"
words(axes, 0.7, 5.95, said, size=9, align="left", colour=QUIET)

words(axes, 7.6, 0.75, "What its layers compute", size=12, align="left", bold=True)
digit = ran["some_images"][ran["eight"], ..., 0]
for row, (name, maps) in enumerate(ran["outputs"].items()):
    top = 1.3 + 1.5 * row
    words(axes, 7.6, top - 0.07, name, size=8.5, align="left", code=True, colour=QUIET)
    picture(7.6, top + 0.13, 1.05, digit, "gray_r")
    for k in range(3):
        picture(8.85 + 1.15 * k, top + 0.13, 1.05, np.asarray(maps[0][..., k]), "viridis")
words(axes, 7.6, 5.95, "three channels of each, for one 8", size=9, align="left", colour=QUIET)

words(axes, 13.0, 0.75, "What is hard to read", size=12, align="left", bold=True)
for k, i in enumerate(ran["hardest"][:3]):
    top = 1.3 + 1.5 * k
    picture(13.0, top, 1.3, ran["images"][i, ..., 0], "gray_r")
    words(axes, 14.6, top + 0.65, f"{ran['labels'][i]} as {ran['predicted'][i]}", size=10, align="left")
count = int(np.sum(ran["predicted"] != ran["labels"]))
words(axes, 13.0, 5.95, f"{count} mistakes in {len(ran['labels'])}", size=9, align="left", colour=QUIET)
axes.plot([7.2, 7.2], [0.6, 6.0], color=RESULT, linewidth=1, linestyle="-")
axes.plot([12.6, 12.6], [0.6, 6.0], color=RESULT, linewidth=1, linestyle="-")
save(axes, __file__)
