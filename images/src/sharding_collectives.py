"""Draws the five collectives on four devices: what each device holds before, and after."""

from style import DEVICES, EDGE, PAPER, QUIET, RESULT, WRONG, arrow, card, cells, save, words

N, SIZE = 4, 0.42
PIECES = DEVICES[:N]
axes = card(17.4, 15.0)


def device_row(x: float, y: float, fills: list[list[str]], labels: list[list[str]]) -> None:
    """Four devices side by side, each a column of the four pieces of an array: filled where it holds something."""
    for device in range(N):
        for piece in range(N):
            fill, label = fills[device][piece], labels[device][piece]
            cells(axes, x + device * 1.1, y + piece * SIZE, 1, 1, fill, size=SIZE, words=[[label]])
        words(axes, x + device * 1.1 + SIZE / 2, y + N * SIZE + 0.25, str(device), size=9, colour=QUIET)


def own(kind: str) -> tuple[list[list[str]], list[list[str]]]:
    """Device i holds piece i of it."""
    fills = [[(PIECES[p] if kind == "piece" else RESULT) if p == d else PAPER for p in range(N)] for d in range(N)]
    mark = "" if kind == "piece" else "Σ"
    labels = [[f"{mark}{'abcd'[p]}" if p == d else "" for p in range(N)] for d in range(N)]
    return fills, labels


def every(kind: str) -> tuple[list[list[str]], list[list[str]]]:
    """Each device holds all pieces: of the array, of its own partial sum, or of the whole sum."""
    if kind == "piece":
        return [[PIECES[p] for p in range(N)] for _ in range(N)], [["abcd"[p] for p in range(N)] for _ in range(N)]
    if kind == "partial":
        return [[PIECES[d]] * N for d in range(N)], [[f"{'abcd'[p]}{d}" for p in range(N)] for d in range(N)]
    return [[RESULT] * N for _ in range(N)], [[f"Σ{piece}" for piece in "abcd"]] * N


turned = [[PIECES[p] for p in range(N)] for _ in range(N)], [[f"{'abcd'[p]}{d}" for p in range(N)] for d in range(N)]
rows_of = [[PIECES[d]] * N for d in range(N)], [[f"{'abcd'[d]}{p}" for p in range(N)] for d in range(N)]
shifted = (
    [[PIECES[(d - 1) % N] if p == d else PAPER for p in range(N)] for d in range(N)],
    [["abcd"[(d - 1) % N] if p == d else "" for p in range(N)] for d in range(N)],
)

rows = [
    ("all-gather", "every device gets all shards", "a sharded array is replicated", own("piece"), every("piece")),
    ("all-reduce", "every device gets all sums", "a sum along a partitioned axis", every("partial"), every("sum")),
    (
        "reduce-scatter",
        "every device gets a shard of the sums",
        "such a sum, with a sharded result",
        every("partial"),
        own("sum"),
    ),
    ("all-to-all", "all devices exchange blocks", "another axis is partitioned", rows_of, turned),
    (
        "collective-permute",
        "every device sends to one neighbour",
        "a shift along the partitioned axis",
        own("piece"),
        shifted,
    ),
]
words(axes, 7.3, 0.6, "before, on devices 0 to 3", size=10, colour=QUIET)
words(axes, 14.1, 0.6, "after", size=10, colour=QUIET)
for number, (name, does, when, before, after) in enumerate(rows):
    y = 1.15 + number * 2.75
    if number:
        axes.plot([0.5, 16.9], [y - 0.35, y - 0.35], color=EDGE, linewidth=1)
    words(axes, 0.5, y + 0.3, name, size=12.5, align="left", bold=True)
    words(axes, 0.5, y + 0.85, does, size=10, align="left")
    words(axes, 0.5, y + 1.35, when, size=9.5, align="left", colour=QUIET)
    device_row(5.5, y, *before)
    arrow(axes, (9.9, y + 0.84), (12.0, y + 0.84), colour=WRONG)
    device_row(12.4, y, *after)

save(axes, __file__)
