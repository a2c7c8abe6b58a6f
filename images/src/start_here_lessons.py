"""Draws the lessons and what each requires: an arrow for each prerequisite that is not implied by another one.

The arrows are read from the sentence **Prerequisites.** at the beginning of each lesson, and the paths from the table
of the start page.
"""

import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, card, save, words

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# Where each lesson after part I stands: column and row.
PLACES = {
    "09": (2.0, 0),
    "13": (3.4, 0),
    "12": (4.6, 0),
    "16": (7.4, 0),
    "10": (0.35, 1),
    "14": (2.0, 1),
    "17": (6.4, 1),
    "11": (0.35, 2),
    "15": (2.0, 2),
    "18": (7.4, 2),
    "27": (0.35, 3),
    "25": (1.45, 3),
    "22": (2.55, 3),
    "28": (3.65, 3),
    "24": (4.8, 3),
    "19": (7.4, 3),
    "20": (5.9, 4),
    "21": (7.0, 4),
    "23": (8.1, 4),
    "26": (4.8, 5),
}
COLOURS = (MAPPED, SHARED, RESULT)
WIDTH, HEIGHT, STEP, LEFT, TOP = 1.62, 0.92, 1.72, 0.35, 3.55


def numbers(text: str) -> "set[str]":
    """The lessons that a sentence names, with those of a range such as `16 to 19`."""
    text = re.sub(r"\]\((\d\d)_[^)]*\)", r" \1 ", re.sub(r"\]\(\.\.[^)]*\)", "", text))
    ranges = re.findall(r"(\d\d) to (\d\d)", text)
    return {f"{i:02}" for first, last in ranges for i in range(int(first), int(last) + 1)} | {
        *re.findall(r"\b\d\d\b", text)
    }


def lessons() -> "tuple[dict[str, str], dict[str, set[str]]]":
    """The name of each lesson, and the lessons that it requires, by number."""
    names, requires = {}, {}
    for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py")):
        number, name = path.stem.split("_", 1)
        [line] = re.findall(r"(?m)^# \*\*Prerequisites\.\*\* (.*)$", path.read_text())
        names[number], requires[number] = name.replace("_", " ").replace("shard map", "shard_map"), numbers(line)
    return names, requires


def paths() -> "dict[str, set[str]]":
    """The lessons of each reading path."""
    rows = re.findall(r"(?m)^# \| (I [a-z ]+) \| (.*) \|$", (NOTEBOOKS / "00_start_here.py").read_text())
    return {title: numbers(row) for title, row in rows}


def reduced(requires: "dict[str, set[str]]") -> "list[tuple[str, str]]":
    """The pairs (before, after) from which all others follow."""
    after: dict[str, set[str]] = {}
    for number in sorted(requires):  # a lesson requires earlier ones only
        after[number] = requires[number].union(*(after[one] for one in requires[number]))
    return [
        (before, number)
        for number, direct in requires.items()
        for before in sorted(direct)
        if not any(before in after[other] for other in direct)
    ]


def letter(path: str) -> str:
    """The first letter of its first verb: `T` of "I train models"."""
    return path.split()[1][0].upper()


def corner(number: str) -> "tuple[float, float]":
    """The upper left corner of a lesson's box."""
    if number < "09":
        return LEFT + 0.1 + int(number) * 1.8, 1.75
    column, row = PLACES[number]
    return LEFT + 0.1 + column * 1.8, TOP + row * STEP


def edge(axes: Axes, before: str, after: str) -> None:
    """Draws the arrow between two lessons."""
    (x, y), (u, v) = corner(before), corner(after)
    start, end = (x + WIDTH / 2, y + HEIGHT), (u + WIDTH / 2, v)
    if after < "09":
        start, end = (x + WIDTH, y + HEIGHT / 2), (u, v + HEIGHT / 2)
    elif before < "09":
        start = (u + WIDTH / 2, 2.95)  # the frame of part I
    style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.0, "color": QUIET, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, zorder=1, **style))


def draw() -> None:
    """Writes the picture."""
    names, requires = lessons()
    chosen = paths()
    axes = card(17.4, 13.5)
    x = 0.5
    words(axes, x, 0.62, "An arrow leads from a lesson to those that build on it.", size=11, align="left", bold=True)
    words(axes, x, 1.15, "Paths:", size=10, align="left", bold=True)
    x += 1.3
    for (title, _), colour in zip(chosen.items(), COLOURS, strict=True):
        axes.add_patch(Rectangle((x, 1.03), 0.36, 0.24, facecolor=colour, edgecolor=INK, linewidth=0.7))
        words(axes, x + 0.5, 1.15, f"{letter(title)}  {title}", size=10, align="left")
        x += 3.6
    axes.add_patch(
        FancyBboxPatch(
            (LEFT, 1.6),
            16.7,
            1.35,
            boxstyle="round,pad=0,rounding_size=0.15",
            facecolor="none",
            edgecolor=EDGE,
            linewidth=1.2,
        )
    )
    for before, after in reduced(requires):
        edge(axes, before, after)
    for number, name in names.items():
        x, y = corner(number)
        style = {"boxstyle": "round,pad=0,rounding_size=0.12", "facecolor": PLAIN, "edgecolor": INK, "linewidth": 0.9}
        axes.add_patch(FancyBboxPatch((x, y), WIDTH, HEIGHT, zorder=2, **style))
        text = "\n& ".join(name.split(" and "))
        if "\n" not in text and len(text) > 12:
            text = text.replace(" ", "\n", 1)
        lines = text.count("\n") + 1
        words(axes, x + 0.1, y + 0.2, number, size=8.5, align="left", bold=True)
        words(axes, x + WIDTH / 2, y + (0.56 if lines == 1 else 0.6), text, size=8.5 if lines == 1 else 7.5)
        marks = [(title, colour) for (title, of), colour in zip(chosen.items(), COLOURS, strict=True) if number in of]
        for i, (title, colour) in enumerate(marks):
            left = x + WIDTH - 0.3 * (len(marks) - i) - 0.04
            axes.add_patch(
                Rectangle((left, y + 0.06), 0.27, 0.25, facecolor=colour, edgecolor=INK, linewidth=0.5, zorder=3)
            )
            words(axes, left + 0.135, y + 0.19, letter(title), size=6.5)
    save(axes, __file__)


if __name__ == "__main__":
    draw()
