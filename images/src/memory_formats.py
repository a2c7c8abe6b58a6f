"""Draws the bits of six floating-point formats: sign, exponent, mantissa."""

from style import MAPPED, PLAIN, QUIET, SHARED, card, cells, save, words

SIZE = 0.33
FORMATS = (  # name, bits of the exponent and of the mantissa, where the format is used
    ("float32", 8, 23, "the default of JAX"),
    ("TF32", 8, 10, "in products on NVIDIA GPUs"),
    ("bfloat16", 8, 7, "the range of float32"),
    ("float16", 5, 10, "more digits, less range"),
    ("float8_e5m2", 5, 2, "gradients"),
    ("float8_e4m3fn", 4, 3, "weights and activations"),
)

axes = card(16, 8.2)
for x, fill, text in ((3.9, PLAIN, "sign"), (6.0, MAPPED, "exponent: range"), (10.0, SHARED, "mantissa: precision")):
    cells(axes, x, 0.5, 1, 1, fill, size=SIZE)
    words(axes, x + 0.5, 0.5 + SIZE / 2, text, size=10, align="left")
for row, (name, exponent, mantissa, use) in enumerate(FORMATS):
    y = 1.5 + 1.05 * row
    words(axes, 3.6, y + SIZE / 2, name, size=10.5, align="right", code=True, bold=True)
    fills = [PLAIN] + [MAPPED] * exponent + [SHARED] * mantissa
    right, _ = cells(axes, 3.9, y, 1, len(fills), [fills], size=SIZE)
    bits = f"1 + {exponent} + {mantissa}"
    if name == "float32":
        words(axes, 3.9, y + 0.62, f"{bits}   {use}", size=9.5, align="left", colour=QUIET)
    else:
        words(axes, right + 0.3, y + SIZE / 2, f"{bits}   {use}", size=9.5, align="left", colour=QUIET)

save(axes, __file__)
