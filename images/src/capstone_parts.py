"""Draws the parts of the capstone's training run, with the lessons that teach them."""

from style import EDGE, MAPPED, PLAIN, QUIET, RESULT, SHARED, arrow, box, card, save, words

axes = card(16.4, 9.0)

words(axes, 0.6, 0.7, "The parts of a training run", size=13, align="left", bold=True)
words(axes, 15.8, 0.7, "small numbers: lessons", size=9, align="right", colour=QUIET)


def part(left: float, top: float, width: float, name: str, lines: list[str], lessons: str, fill: str) -> None:
    """A box with the name of a part, notes below it and the lessons that teach it."""
    box(axes, left, top, width, 0.8, name, fill=fill, size=10.5)
    for place, line in enumerate(lines):
        words(axes, left + width / 2, top + 1.12 + 0.4 * place, line, size=9)
    words(axes, left + width / 2, top - 0.2, lessons, size=8, colour=QUIET)


part(0.6, 1.9, 2.4, "text", ["10 books for training", "2 books held out"], "", PLAIN)
part(4.2, 1.9, 2.4, "tokens", ["byte-pair encoding"], "25", PLAIN)
part(7.8, 1.9, 2.8, "batch_at(step)", ["a function of", "the step only"], "07  24", SHARED)
arrow(axes, (3.02, 2.3), (4.16, 2.3))
arrow(axes, (6.62, 2.3), (7.76, 2.3))
arrow(axes, (9.2, 3.75), (9.2, 4.6))

axes.plot([0.6, 15.8, 15.8, 0.6, 0.6], [4.65, 4.65, 7.15, 7.15, 4.65], color=EDGE, linewidth=1.2)
words(axes, 0.8, 4.95, "one step", size=9.5, align="left", bold=True)
part(1.0, 5.55, 3.6, "model", ["scan, remat, bfloat16"], "08  15  25", MAPPED)
part(5.6, 5.55, 3.6, "gradients", ["of micro-batches, added"], "09  18", MAPPED)
part(10.2, 5.55, 2.2, "clip", ["the global norm"], "09", MAPPED)
part(13.4, 5.55, 2.1, "Adam", ["with a schedule"], "09", MAPPED)
arrow(axes, (4.62, 5.95), (5.56, 5.95))
arrow(axes, (9.22, 5.95), (10.16, 5.95))
arrow(axes, (12.42, 5.95), (13.36, 5.95))

part(12.4, 1.9, 3.1, "state + step", ["a checkpoint,", "from which the run resumes"], "24", RESULT)
arrow(axes, (14.6, 4.6), (14.6, 3.75))
arrow(axes, (13.2, 3.75), (13.2, 4.6))
arrow(axes, (12.36, 2.3), (10.64, 2.3), dashed=True)
words(axes, 11.5, 2.02, "step", size=9, colour=QUIET)

box(axes, 1.0, 7.75, 4.6, 0.8, "one device: the run", fill=SHARED, size=10)
box(axes, 7.0, 7.75, 8.5, 0.8, "4 x 2 devices: the program, its bytes and collectives", fill=SHARED, size=9.5)
words(axes, 11.25, 7.5, "18  20", size=8, colour=QUIET)
arrow(axes, (3.3, 7.2), (3.3, 7.7))
arrow(axes, (11.25, 7.15), (11.25, 7.32))
save(axes, __file__)
