"""Draws bucketing: inputs of any length are padded to one of two sizes, and a mask marks the input."""

from style import MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, box, card, cells, save, words

axes = card(16, 10.4)
words(axes, 8, 0.62, "five lengths, two buckets, two programs", size=13, bold=True)

size = 0.42
lengths = [3, 2, 4, 6, 7]
tops = [2.0, 2.85, 3.7, 5.35, 6.2]
words(axes, 0.6, 1.45, "input", size=11, align="left", bold=True)
words(axes, 5.75, 1.45, "padded with NumPy", size=11, align="left", bold=True)
words(axes, 10.35, 1.45, "program", size=11, align="left", bold=True)

for length, top in zip(lengths, tops, strict=True):
    bucket = 4 if length <= 4 else 8
    cells(axes, 0.6, top, 1, length, MAPPED, size=size)
    words(axes, 4.15, top + size / 2, f"n = {length}", size=10, align="left", code=True)
    arrow(axes, (5.05, top + size / 2), (5.65, top + size / 2))
    fill = [[MAPPED] * length + [PLAIN] * (bucket - length)]
    cells(axes, 5.75, top, 1, bucket, fill, size=size, words=[[""] * length + ["0"] * (bucket - length)])

for top, height, bucket in ((2.0, 2.12, 4), (5.35, 1.27, 8)):
    edge = 5.75 + bucket * size + 0.12
    axes.plot([edge, edge], [top, top + height], color=QUIET, linewidth=1.3)
    arrow(axes, (edge, top + height / 2), (10.25, top + height / 2))
    box(axes, 10.35, top + height / 2 - 0.5, 2.3, 1.0, f"float32[{bucket}], n", fill=SHARED)
    words(axes, 12.85, top + height / 2 - 0.2, "compiled once", size=10, align="left", bold=True)
    words(axes, 12.85, top + height / 2 + 0.2, f"for every n up to {bucket}", size=10, align="left", colour=QUIET)

# Below: the mask.
axes.plot([0.6, 15.4], [7.35, 7.35], color="#c9c4b8", linewidth=1)
words(axes, 0.6, 7.85, "inside the program for 8, with n = 6", size=11, align="left", bold=True)
rows = [
    ("f(x)", [MAPPED] * 6 + [WRONG] * 2, ["f"] * 6 + ["?"] * 2),
    ("mask = jnp.arange(8) < n", [RESULT] * 6 + [PLAIN] * 2, ["T"] * 6 + ["F"] * 2),
    ("jnp.where(mask, f(x), 0)", [MAPPED] * 6 + [PLAIN] * 2, ["f"] * 6 + ["0"] * 2),
]
for i, (code, fill, texts) in enumerate(rows):
    y = 8.15 + 0.68 * i
    words(axes, 0.6, y + size / 2, code, size=10, align="left", code=True)
    cells(axes, 5.75, y, 1, 8, [fill], size=size, words=[texts])
words(axes, 9.5, 8.36, "f of the padding may be anything, even NaN", size=10, align="left")
words(axes, 9.5, 9.04, "n is traced, so a new n is not a new key", size=10, align="left")
words(axes, 9.5, 9.72, "where selects, because NaN times 0 is NaN", size=10, align="left")

save(axes, __file__)
