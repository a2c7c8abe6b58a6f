"""Draws how two devices with four tokens each send them to two experts and back, with a capacity of two."""

from style import DEVICES, PAPER, QUIET, WRONG, arrow, card, cells, save, words

SIZE = 0.62
TOKENS = (("10", "20", "30", "40"), ("50", "60", "70", "80"))
CHOICES = ((1, 0, 1, 1), (0, 0, 1, 0))
CAPACITY = 2
EXPERTS = (lambda number: -number, lambda number: 100 * number)

# buffers[device][expert]: the tokens at the places of an expert, "" for an empty place
buffers = [
    [([t for t, e in zip(own, chosen, strict=True) if e == expert] + [""] * CAPACITY)[:CAPACITY] for expert in (0, 1)]
    for own, chosen in zip(TOKENS, CHOICES, strict=True)
]
results = [
    [[str(EXPERTS[expert](int(text))) if text else "" for text in buffers[device][expert]] for expert in (0, 1)]
    for device in (0, 1)
]
axes = card(18.4, 6.9)


def rows(x: float, y: float, title: str, names: list[str], parts: list[list[str]], experts: list[int]) -> None:
    """Two rows of places, in the colour of their experts. Empty places are white."""
    words(axes, x + SIZE, y - 0.9, title, size=9, bold=True)
    for number, (name, texts, expert) in enumerate(zip(names, parts, experts, strict=True)):
        top = y + (number - 1) * (SIZE + 0.14) + 0.07
        fills = [[DEVICES[expert] if text else PAPER for text in texts]]
        cells(axes, x, top, 1, CAPACITY, fills, size=SIZE, words=[texts])
        words(axes, x + CAPACITY * SIZE + 0.12, top + SIZE / 2, name, size=7.5, align="left", colour=QUIET)


words(
    axes,
    0.45,
    0.5,
    "Tokens on their way to two experts and back, with a capacity of 2",
    size=12,
    align="left",
    bold=True,
)
for device, y in ((0, 2.4), (1, 5.2)):
    words(axes, 0.45, y, f"device {device}", size=9.5, align="left", bold=True)
    words(axes, 0.45, y + 0.42, f"expert {device}: " + ("· (-1)", "· 100")[device], size=8, align="left", colour=QUIET)
    words(axes, 2.55, y - 1.42, "tokens", size=9, bold=True)
    words(axes, 17.33, y - 1.42, "result", size=9, bold=True)
    back = dict(
        zip([t for row in buffers[device] for t in row], [r for row in results[device] for r in row], strict=False)
    )
    for number, (text, expert) in enumerate(zip(TOKENS[device], CHOICES[device], strict=True)):
        sent, top = any(text in row for row in buffers[device]), y + (number - 2) * 0.56
        cells(axes, 2.24, top, 1, 1, [[DEVICES[expert]]], size=0.54, words=[[text]])
        if not sent:
            words(axes, 2.92, top + 0.27, "dropped", size=7.5, align="left", colour=WRONG)
        cells(
            axes,
            17.05,
            top,
            1,
            1,
            [[DEVICES[expert] if sent else PAPER]],
            size=0.7 * 0.8,
            words=[[back.get(text, "0") if sent else "0"]],
        )
    own, other = ["for expert 0", "for expert 1"], ["from device 0", "from device 1"]
    arrow(axes, (3.0, y - 0.35), (3.95, y - 0.35))
    words(axes, 3.45, y - 0.65, "dispatch", size=7.5)
    rows(4.1, y, "buffer", own, buffers[device], [0, 1])
    rows(8.2, y, f"at expert {device}", other, [buffers[d][device] for d in (0, 1)], [device] * 2)
    rows(11.7, y, "results", ["for device 0", "for device 1"], [results[d][device] for d in (0, 1)], [device] * 2)
    words(axes, 11.2, y, "→", size=11)
    arrow(axes, (15.9, y - 0.35), (16.8, y - 0.35))
    words(axes, 16.3, y - 0.65, "combine", size=7.5)
for x, name in ((7.2, "all-to-all"), (15.0, "all-to-all")):
    arrow(axes, (x - 0.35, 2.95), (x + 0.45, 4.65), colour=WRONG)
    arrow(axes, (x - 0.35, 4.65), (x + 0.45, 2.95), colour=WRONG)
    words(axes, x + 0.05, 2.7, name, size=8.5, bold=True)
words(axes, 17.95, 0.5, "colour: the expert; white: empty", size=8.5, align="right", colour=QUIET)
save(axes, __file__)
