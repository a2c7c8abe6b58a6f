"""Draws how dtypes are promoted: to the nearest dtype on the right that both operands lead to."""

from style import DEVICES, PLAIN, QUIET, arrow, box, card, save, words

axes = card(17, 7.9)
words(axes, 8.5, 0.6, "Two operands are promoted to the nearest dtype that both lead to", size=12.5, bold=True)

W, H, WEAK = 1.55, 0.7, DEVICES[4]
PLACES = {
    "bool": (0.6, 3.55, PLAIN),
    "1": (2.75, 3.55, WEAK),
    "uint8": (4.9, 2.2, PLAIN),
    "int8": (4.9, 4.9, PLAIN),
    "int16": (7.0, 3.55, PLAIN),
    "int32": (9.1, 3.55, PLAIN),
    "1.0": (11.2, 3.55, WEAK),
    "bfloat16": (13.0, 2.2, PLAIN),
    "float16": (13.0, 4.9, PLAIN),
    "float32": (15.0, 3.55, PLAIN),
}
for name, (x, y, fill) in PLACES.items():
    box(axes, x, y, W, H, name, fill=fill, size=10.5)


def lead(start: str, end: str) -> None:
    """An arrow from one dtype to the next."""
    (x0, y0, _), (x1, y1, _) = PLACES[start], PLACES[end]
    if y0 == y1:
        arrow(axes, (x0 + W, y0 + H / 2), (x1 - 0.03, y1 + H / 2))
    else:
        near, far = (0, H) if y0 > y1 else (H, 0)
        arrow(axes, (x0 + W * 0.75, y0 + near), (x1 + W * 0.25, y1 + far))


for start, end in (
    ("bool", "1"),
    ("1", "uint8"),
    ("1", "int8"),
    ("uint8", "int16"),
    ("int8", "int16"),
    ("int16", "int32"),
    ("int32", "1.0"),
    ("1.0", "bfloat16"),
    ("1.0", "float16"),
    ("bfloat16", "float32"),
    ("float16", "float32"),
):
    lead(start, end)

words(axes, 2.75 + W / 2, 4.55, "Python's int", size=9, colour=QUIET)
words(axes, 11.2 + W / 2, 4.55, "Python's float", size=9, colour=QUIET)
words(axes, 1.4, 1.65, "booleans", size=10)
words(axes, 7.0 + W / 2, 1.65, "integers", size=10)
words(axes, 14.5, 1.65, "floats", size=10)

for y, code, said in (
    (6.2, "int8 + 100", "Python's int leads to int8, so int8"),
    (6.75, "int32 + bfloat16", "int32 leads to bfloat16, so bfloat16"),
    (7.3, "int8 * 2.5", "both lead to Python's float, which has no number of bits, so the default, float32"),
):
    words(axes, 2.0, y, code, size=10, align="left", code=True)
    words(axes, 5.4, y, said, size=10, align="left")

save(axes, __file__)
