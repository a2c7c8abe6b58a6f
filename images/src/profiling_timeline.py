"""Draws what a trace shows of a training loop: one turn taken apart, then three ways to run it, to one scale."""

from matplotlib.patches import Rectangle
from style import EDGE, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, card, save, words

axes = card(16, 11.4)


def bar(left: float, top: float, width: float, text: str, fill: str, height: float = 0.62, size: float = 9.5) -> None:
    """An event of the trace: from when to when, and its name."""
    axes.add_patch(Rectangle((left, top), width, height, facecolor=fill, edgecolor=INK, linewidth=0.9, zorder=2))
    words(axes, left + width / 2, top + height / 2, text, size=size, code=True)


def row(top: float, name: str) -> None:
    """The name of a row of the trace viewer."""
    words(axes, 0.6, top + 0.31, name, size=10, align="left", colour=QUIET)


words(axes, 0.6, 0.7, "One turn, as the trace viewer shows it", size=13, align="left", bold=True)
row(1.35, "python")
bar(3.0, 1.35, 12.2, "train 0", PLAIN)
bar(3.0, 1.97, 2.6, "load", SHARED)
bar(5.6, 1.97, 0.75, "call", MAPPED)
bar(6.35, 1.97, 8.6, "look", WRONG)
row(3.35, "device")
bar(6.1, 3.35, 6.9, "fusion.3", MAPPED)
for left, width in ((13.0, 0.9), (13.9, 0.35), (14.25, 0.5)):
    bar(left, 3.35, width, "", MAPPED)
arrow(axes, (5.95, 2.62), (6.12, 3.3))
words(axes, 4.45, 3.66, "idle", size=10, colour=QUIET)
words(axes, 10.6, 2.97, "look only waits for this", size=9.5, colour=QUIET)
words(axes, 3.0, 4.5, "Which line of mine is fusion.3?", size=10, align="left", bold=True)
words(axes, 7.9, 4.5, 'op_name="jit(step)/transpose(jvp(distances))/reduce_sum"', size=8.6, align="left", code=True)
axes.plot([0.6, 15.4], [5.15, 5.15], color=EDGE, linewidth=1)

words(axes, 0.6, 5.7, "Three ways, to one scale", size=13, align="left", bold=True)


def lane(top: float, name: str, note: str, events: list[tuple[float, float, str]]) -> None:
    """Python's row and the device's below it; an event is begin, length and kind."""
    words(axes, 0.6, top + 0.2, name, size=10, align="left", bold=True)
    words(axes, 0.6, top + 0.66, note, size=9, align="left", colour=QUIET)
    fills = {"load": SHARED, "look": WRONG, "work": MAPPED}
    for begin, length, kind in events:
        below = kind == "work"
        axes.add_patch(
            Rectangle(
                (4.4 + begin, top + (0.48 if below else 0)),
                length,
                0.4,
                facecolor=fills[kind],
                edgecolor=INK,
                linewidth=0.8,
                zorder=2,
            )
        )


slow, quick, wait = 4.2, 0.55, 1.0
turns: list[tuple[float, float, str]] = []
for i in range(2):
    at = i * (wait + slow)
    turns += [(at, wait, "load"), (at + wait, slow, "look"), (at + wait, slow, "work")]
lane(6.5, "as it was", "two turns", turns)
turns = []
for i in range(6):
    at = i * (wait + quick)
    turns += [(at, wait, "load"), (at + wait, quick, "look"), (at + wait, quick, "work")]
lane(8.0, "mended", "six turns: idle while it loads", turns)
turns = []
for i in range(6):
    turns += [(i * wait, wait, "load"), ((i + 1) * wait, quick, "work")]
lane(9.5, "look later", "six turns: works meanwhile", [*turns, (6 * wait, quick, "look")])
for place, (fill, name) in enumerate(((SHARED, "load"), (WRONG, "look: Python waits"), (MAPPED, "the device works"))):
    left = 4.4 + 3.4 * place
    axes.add_patch(Rectangle((left, 10.62), 0.4, 0.3, facecolor=fill, edgecolor=INK, linewidth=0.8, zorder=2))
    words(axes, left + 0.6, 10.77, name, size=9.5, align="left")
axes.plot([4.4, 4.4], [6.3, 10.4], color=RESULT, linewidth=1.5)
save(axes, __file__)
