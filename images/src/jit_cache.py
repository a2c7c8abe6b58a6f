"""Draws the cache of jit: the parts of a call that are in its key, and what a cache hit and a cache miss do."""

from style import INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, WRONG, arrow, box, card, cells, save, words

axes = card(16, 11.2)
words(axes, 8, 0.62, 'compiled = jax.jit(step, static_argnames="mode")', size=12, code=True)
words(axes, 8, 1.2, 'compiled(w, 0.1, mode="fast")', size=13, code=True, bold=True)

# Left: the parts of the call, in the key and not in it.
words(axes, 0.6, 2.0, "the call", size=11, align="left", bold=True)
words(axes, 3.55, 2.0, "not in the key", size=11, bold=True, colour=QUIET)
words(axes, 6.05, 2.0, "in the key", size=11, bold=True)
parts = [
    ("the function", "step, this object", None),
    ("the arguments", "(*, *, mode=…)", None),
    ("w", "float32[3]", "0.3  1.2  0.7"),
    ("0.1", "float32[], weak", "0.1"),
    ("mode", '"fast"', None),
]
for i, (name, key, value) in enumerate(parts):
    top = 2.35 + 0.72 * i
    words(axes, 0.6, top + 0.29, name, size=10, align="left", code=name in ("w", "0.1", "mode"))
    box(axes, 4.8, top, 2.5, 0.58, key, fill=MAPPED, size=9)
    if value:
        box(axes, 2.6, top, 1.9, 0.58, value, fill=PLAIN, size=9)
axes.plot([7.45, 7.6, 7.6, 7.45], [2.35, 2.35, 5.81, 5.81], color=INK, linewidth=1.3)
words(axes, 3.55, 5.53, "static: the value\nis in the key", size=9, colour=QUIET)

# Right: the cache, a hit and a miss.
box(axes, 8.55, 2.75, 2.1, 1.25, "key in the\ncache?", fill=SHARED)
arrow(axes, (7.6, 3.37), (8.5, 3.37))
box(axes, 12.3, 2.35, 3.1, 0.9, "stored program", fill=RESULT)
arrow(axes, (10.65, 3.1), (12.25, 2.8))
words(axes, 11.4, 2.6, "yes: hit", size=10, bold=True)
words(axes, 13.85, 3.52, "runs without Python", size=9, colour=QUIET)

for i, step in enumerate(("trace", "lower", "compile")):
    box(axes, 8.55 + 2.4 * i, 4.75, 2.05, 0.85, step, fill=WRONG)
    if i:
        arrow(axes, (8.2 + 2.4 * i, 5.17), (8.5 + 2.4 * i, 5.17))
arrow(axes, (9.58, 4.0), (9.58, 4.7))
words(axes, 9.8, 4.36, "no: miss", size=10, align="left", bold=True)
arrow(axes, (14.55, 4.7), (14.55, 3.8), dashed=True)
words(axes, 14.35, 4.28, "stored under the key", size=9, align="right", colour=QUIET)
words(axes, 9.58, 5.87, "Python runs step", size=9, colour=QUIET)
words(axes, 14.37, 5.87, "usually slowest", size=9, colour=QUIET)

# Below: five more calls.
axes.plot([0.6, 15.4], [6.45, 6.45], color="#c9c4b8", linewidth=1)
words(axes, 0.6, 6.95, "five more calls", size=11, align="left", bold=True)
words(axes, 8.55, 6.95, "what differs in the key", size=11, align="left", bold=True)
calls = [
    ('compiled(w + 1, 0.5, mode="fast")', "nothing: only values changed", True),
    ('compiled(w[:2], 0.1, mode="fast")', "shape: float32[2]", False),
    ('compiled(w, 1, mode="fast")', "dtype: int32[], weak", False),
    ('compiled(w, 0.1, mode="safe")', 'static value: "safe"', False),
    ('compiled(w, rate=0.1, mode="fast")', "arguments: rate passed by name", False),
]
for i, (call, why, hit) in enumerate(calls):
    y = 7.55 + 0.66 * i
    words(axes, 0.6, y, call, size=10, align="left", code=True)
    words(axes, 8.55, y, why, size=10, align="left")
    cells(axes, 14.1, y - 0.22, 1, 1, RESULT if hit else WRONG, size=0.44)
    words(axes, 14.75, y, "hit" if hit else "miss", size=10, align="left", bold=True)

save(axes, __file__)
