"""Draws what .at does: a new array beside the old one, and two updates of the same index."""

from style import INK, MAPPED, PLAIN, QUIET, RESULT, WRONG, arrow, card, cells, save, words

axes = card(15, 9.6)

# Upper half: an array is never changed.
words(axes, 7.5, 0.65, "y = x.at[2].set(99)", size=13, code=True, bold=True)
cells(axes, 1.6, 1.45, 1, 6, PLAIN, size=0.6, words=[["0", "1", "2", "3", "4", "5"]])
words(axes, 1.3, 1.75, "x", size=11, code=True)
words(axes, 3.4, 2.45, "unchanged", size=10, colour=QUIET)
arrow(axes, (5.5, 1.75), (8.9, 1.75))
words(axes, 7.2, 1.42, "a new array", size=10, bold=True)
new = [[PLAIN, PLAIN, RESULT, PLAIN, PLAIN, PLAIN]]
cells(axes, 9.5, 1.45, 1, 6, new, size=0.6, words=[["0", "1", "99", "3", "4", "5"]])
words(axes, 9.2, 1.75, "y", size=11, code=True)
words(axes, 11.3, 2.45, "differs at index 2", size=10, colour=QUIET)

axes.plot([0.6, 14.4], [3.1, 3.1], color="#c9c4b8", linewidth=1)

# Lower half: two amounts for one index.
words(axes, 7.5, 3.65, "shops = [1, 1, 4]    amounts = [5, 20, 3]", size=12, code=True, bold=True)
for x, title, verb, fill, got, text in (
    (0.95, ".at[shops].add(amounts)", "all updates are summed", RESULT, "25", "JAX: one scatter"),
    (
        8.15,
        ".at[shops].set(amounts)",
        "one of the updates is kept",
        WRONG,
        "20",
        "the same result as += in NumPy, from zeros",
    ),
):
    words(axes, x + 3.0, 4.35, title, size=11, code=True)
    cells(axes, x + 0.4, 4.8, 1, 1, MAPPED, size=0.6, words=[["5"]])
    cells(axes, x + 1.7, 4.8, 1, 1, MAPPED, size=0.6, words=[["20"]])
    cells(axes, x + 4.3, 4.8, 1, 1, MAPPED, size=0.6, words=[["3"]])
    filled = [[PLAIN, fill, PLAIN, PLAIN, RESULT, PLAIN]]
    cells(axes, x + 0.2, 6.9, 1, 6, filled, size=0.8, words=[["0", got, "0", "0", "3", "0"]])
    for place in range(6):
        words(axes, x + 0.6 + 0.8 * place, 7.95, str(place), size=8, colour=QUIET, code=True)
    lost = verb.startswith("one")
    arrow(axes, (x + 0.7, 5.4), (x + 1.25, 6.85), colour=QUIET if lost else INK, dashed=lost)
    arrow(axes, (x + 2.0, 5.4), (x + 1.55, 6.85))
    arrow(axes, (x + 4.6, 5.4), (x + 3.85, 6.85))
    words(axes, x + 3.0, 8.5, verb, size=10, bold=True)
    words(axes, x + 3.0, 8.95, text, size=9, colour=QUIET)

save(axes, __file__)
