"""Draws the layouts of a linear layer, a convolution and flattened features in PyTorch and in Flax."""

from style import MAPPED, QUIET, RESULT, SHARED, arrow, box, card, cells, save, words

SIZE = 0.8
axes = card(17.6, 11.6)
for x, name in ((3.4, "PyTorch"), (13.1, "Flax and Keras")):
    words(axes, x, 0.6, name, size=12, bold=True)

# A linear layer with three inputs and two outputs: a colour for each output.
words(axes, 0.5, 1.35, "linear layer", size=10.5, bold=True, align="left")
entry = lambda o, i: f"{'ab'[o]}{i}"
rows = [[entry(o, i) for i in range(3)] for o in range(2)]
cells(axes, 2.2, 1.9, 2, 3, [[MAPPED] * 3, [SHARED] * 3], size=SIZE, words=rows)
words(axes, 3.4, 3.85, "weight (out, in)", size=9, code=True, colour=QUIET)
columns = [[entry(o, i) for o in range(2)] for i in range(3)]
cells(axes, 12.3, 1.5, 3, 2, [[MAPPED, SHARED]] * 3, size=SIZE, words=columns)
words(axes, 13.1, 4.25, "kernel (in, out)", size=9, code=True, colour=QUIET)
arrow(axes, (5.3, 2.7), (11.6, 2.7))
words(axes, 8.45, 2.35, "transpose", size=9.5)
words(axes, 8.45, 3.1, "x @ weight.T  =  x @ kernel", size=9, code=True, colour=QUIET)

# A convolution: the order of four axes.
words(axes, 0.5, 4.95, "convolution", size=10.5, bold=True, align="left")
WIDE, HIGH = 1.45, 0.62
theirs, ours = ("out", "in", "height", "width"), ("height", "width", "in", "out")
fills = dict(zip(theirs, (MAPPED, SHARED, RESULT, RESULT), strict=True))
for k in range(4):
    box(axes, 0.5 + k * WIDE, 5.35, WIDE - 0.12, HIGH, theirs[k], fills[theirs[k]], size=8.5)
    box(axes, 10.3 + k * WIDE, 5.35, WIDE - 0.12, HIGH, ours[k], fills[ours[k]], size=8.5)
arrow(axes, (6.5, 5.66), (10.0, 5.66))
words(axes, 8.25, 5.3, "new order of axes", size=9.5)

# Flattened features: two channels of two by two pixels.
words(axes, 0.5, 6.95, "flattened features", size=10.5, bold=True, align="left")
words(axes, 8.75, 7.05, "two channels of 2 x 2 pixels", size=9.5)
for channel, fill in enumerate((MAPPED, SHARED)):
    numbers = [[str(4 * channel + 2 * i + j) for j in range(2)] for i in range(2)]
    cells(axes, 6.9 + channel * 2.0, 7.4, 2, 2, fill, size=SIZE, words=numbers)
by_channel = list(range(8))
by_pixel = [4 * channel + pixel for pixel in range(4) for channel in range(2)]
for x, order, label in ((0.5, by_channel, "channel by channel"), (10.3, by_pixel, "pixel by pixel")):
    fill = [[MAPPED if number < 4 else SHARED for number in order]]
    cells(axes, x, 9.75, 1, 8, fill, size=SIZE, words=[[str(number) for number in order]])
    words(axes, x + 4 * SIZE, 10.95, label, size=9.5)
arrow(axes, (6.7, 8.3), (3.8, 9.6))
arrow(axes, (10.7, 8.3), (13.4, 9.6))
save(axes, __file__)
