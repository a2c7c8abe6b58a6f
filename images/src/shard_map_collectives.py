"""Draws five collectives on eight devices, with the contents of each device after each step of a ring."""

from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from typing import Any

from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from style import DEVICES, EDGE, INK, PAPER, QUIET, arrow, card, save, words

N, SIZE, GAP = 8, 0.165, 0.36
WIDTH = N * SIZE
SUM = "#5a6270"  # of all devices, unlike the colour of any of them
axes = card(16.6, 13.3)


def table(x: float, y: float, fills: list[list[str]], marks: list[list[str]], new: set[tuple[int, int]]) -> None:
    """One column for each device; `new` are the blocks that have arrived in this step."""

    def draw(boxes: list[tuple[int, int, int]], **style: Any) -> None:
        """Draws (device, first block, number of blocks) as one path, which keeps the file small."""
        rectangle = Path.unit_rectangle()
        moved = [Affine2D().scale(SIZE, SIZE * n).translate(x + d * SIZE, y + b * SIZE) for d, b, n in boxes]
        path = Path.make_compound_path(*(one.transform_path(rectangle) for one in moved))
        axes.add_patch(PathPatch(path, **{"linewidth": 0, **style}))

    runs = defaultdict(list)
    for device, column in enumerate(fills):
        block = 0
        for fill, run in groupby(column):
            length = len(list(run))
            runs[fill].append((device, block, length))
            block += length
    for fill in sorted(runs.keys() - {PAPER}):
        draw(runs[fill], facecolor=fill, zorder=2)
    lines = [[(i, 0), (i, N)] for i in range(N + 1)] + [[(0, i), (N, i)] for i in range(N + 1)]
    grid = Path.make_compound_path(*(Path([(x + SIZE * u, y + SIZE * v) for u, v in line]) for line in lines))
    axes.add_patch(PathPatch(grid, facecolor="none", edgecolor=EDGE, linewidth=0.5, zorder=2.5))
    if new:
        draw([(*place, 1) for place in sorted(new)], facecolor="none", edgecolor=INK, linewidth=1.4, zorder=3)
    for device, block in sorted(new):
        if marks[device][block]:
            colour = "white" if fills[device][block] == SUM else INK
            place = x + (device + 0.5) * SIZE, y + (block + 0.52) * SIZE
            words(axes, *place, marks[device][block], size=5.2, colour=colour)


def gathered(step: int) -> tuple[list[list[str]], list[list[str]], set[tuple[int, int]]]:
    """Device i has the blocks i, i - 1, ..., i - step."""
    has = [[(d - b) % N <= step for b in range(N)] for d in range(N)]
    fills = [[DEVICES[b] if has[d][b] else PAPER for b in range(N)] for d in range(N)]
    return fills, [[""] * N] * N, {(d, (d - step) % N) for d in range(N)} if step else set()


def scattered(step: int) -> tuple[list[list[str]], list[list[str]], set[tuple[int, int]]]:
    """The sum of block b starts at device b + 1 and ends, after seven steps, at device b. Numbers count addends."""
    addends = [[1] * N for _ in range(N)]
    for done in range(1, step + 1):
        for device in range(N):
            addends[device][(device - 1 - done) % N] = done + 1
    left = [[(d, b) for b in range(N) if (d - 1 - b) % N >= step or addends[d][b] == N] for d in range(N)]
    kept = {place for row in left for place in row}
    fills = [
        [SUM if addends[d][b] == N else DEVICES[d] if (d, b) in kept else PAPER for b in range(N)] for d in range(N)
    ]
    marks = [[str(addends[d][b]) if (d, b) in kept else "" for b in range(N)] for d in range(N)]
    return fills, marks, {(d, (d - 1 - step) % N) for d in range(N)} if step else set()


def exchanged(step: int) -> tuple[list[list[str]], list[list[str]], set[tuple[int, int]]]:
    """At the start, what the devices send. Then what they receive, from up to `step` positions before them."""
    fills = [
        [(DEVICES[b] if (d - b) % N <= step else PAPER) if step else DEVICES[d] for b in range(N)] for d in range(N)
    ]
    return fills, [[""] * N] * N, {(d, (d - step) % N) for d in range(N)} if step else set()


def moved(step: int) -> tuple[list[list[str]], list[list[str]], set[tuple[int, int]]]:
    fills = [[DEVICES[(d - step) % N] if b == d else PAPER for b in range(N)] for d in range(N)]
    return fills, [[""] * N] * N, {(d, d) for d in range(N)} if step else set()


def line(y: float, name: str, code: str, told: list[str], draw: Callable[[int], Any], steps: range) -> None:
    words(axes, 0.4, y + 0.05, name, size=11.5, align="left", bold=True)
    words(axes, 0.4, y + 0.42, code, size=8.5, align="left", code=True)
    for number, sentence in enumerate(told):
        words(axes, 0.4, y + 0.82 + 0.3 * number, sentence, size=8, align="left", colour=QUIET)
    for step in steps:
        x = 3.55 + step * (WIDTH + GAP - 0.1)
        table(x, y, *draw(step))
        words(axes, x + WIDTH / 2, y - 0.2, "start" if step == 0 else f"step {step}", size=7.5, colour=QUIET)


PASSES_ON = ["Each device passes on the", "block that it received last."]
ADDS = ["Each device adds its own", "addend and passes on the sum.", "Numbers count the addends."]
EXCHANGES = [
    "In step s, each device sends one",
    "block to the device s positions",
    "further. After the start, only",
    "received blocks are drawn.",
]
line(0.8, "all-gather", "all_gather", PASSES_ON, gathered, range(N))
line(3.1, "reduce-scatter", "psum_scatter", ADDS, scattered, range(N))
line(7.7, "all-to-all", "all_to_all", EXCHANGES, exchanged, range(N))
line(10.0, "permute", "ppermute", ["Each device sends to", "one other device."], moved, range(2))

y = 5.4
words(axes, 0.4, y + 0.05, "all-reduce", size=11.5, align="left", bold=True)
words(axes, 0.4, y + 0.42, "psum", size=8.5, align="left", code=True)
words(axes, 0.4, y + 0.82, "A reduce-scatter, followed", size=8, align="left", colour=QUIET)
words(axes, 0.4, y + 1.12, "by an all-gather of the sums.", size=8, align="left", colour=QUIET)
everything = [[SUM] * N] * N, [[""] * N] * N, set()
places = (3.55, 3.55 + 3.5 * (WIDTH + GAP - 0.1), 3.55 + 7 * (WIDTH + GAP - 0.1))
for x, name, what in zip(places, ("start", "step 7", "step 14"), (scattered(0), scattered(7), everything), strict=True):
    table(x, y, *what)
    words(axes, x + WIDTH / 2, y - 0.2, name, size=7.5, colour=QUIET)
for left, right, told in ((0, 1, "seven steps of reduce-scatter"), (1, 2, "seven steps of all-gather")):
    arrow(axes, (places[left] + WIDTH + 0.15, y + WIDTH / 2), (places[right] - 0.15, y + WIDTH / 2), colour=INK)
    words(axes, (places[left] + WIDTH + places[right]) / 2, y + WIDTH / 2 - 0.25, told, size=8)

LEGEND = (
    "Each table shows what the eight devices have. A column is a device, and a row is an eighth of an array.",
    "A colour stands for the device that a block comes from or, in a reduce-scatter, that holds the partial sum. "
    "Complete sums are dark grey.",
    "A dark border marks the blocks that arrive in this step.",
)
for number, sentence in enumerate(LEGEND):
    words(axes, 0.4, 12.0 + 0.4 * number, sentence, size=9, align="left")

save(axes, __file__)
