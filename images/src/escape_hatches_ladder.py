"""The ladder of control: five rungs from jnp to the FFI, and the callbacks to Python on the host."""

from style import EDGE, INK, MAPPED, MONO, PLAIN, QUIET, RESULT, SHARED, WRONG, card, save

RUNGS = (
    ("FFI", "ffi_call", "C++ or CUDA", "passes buffers", WRONG),
    ("Pallas", "pallas_call", "a kernel and its blocks", "traces the kernel", SHARED),
    ("shard_map", "shard_map", "collectives", "compiles local operations", SHARED),
    ("shardings", "P, reshard", "where arrays are stored", "inserts communication", MAPPED),
    ("jnp", "jit", "mathematics", "chooses kernels and fuses", RESULT),
)
axes = card(16, 8.6)
text = lambda x, y, words, **how: axes.text(x, y, words, color=how.pop("color", INK), va="center", **how)
for x, words in ((4.1, "in code"), (6.9, "you write"), (10.5, "JAX and XLA do")):
    text(x, 0.75, words, fontsize=10, color=QUIET, ha="center")
for side in (0.75, 12.1):
    axes.plot([side, side], [1.2, 7.9], color=INK, linewidth=4, solid_capstyle="round", zorder=1)
for number, (name, call, you, they, fill) in enumerate(RUNGS):
    y = 1.75 + 1.35 * number
    axes.fill([0.75, 12.1, 12.1, 0.75], [y - 0.45, y - 0.45, y + 0.45, y + 0.45], color=fill, zorder=2)
    text(1.1, y, name, fontsize=12, fontweight="bold", zorder=3)
    text(4.1, y, call, fontsize=9.5, family=MONO, ha="center", zorder=3)
    text(7.1, y, you, fontsize=10, ha="center", zorder=3)
    text(10.45, y, they, fontsize=10, ha="center", zorder=3)
    if number >= 2:  # programs that XLA compiles, but not kernels and not C++
        arrow = {"arrowstyle": "-|>", "color": QUIET, "linewidth": 1.4}
        axes.annotate("", (13.0, y), (12.2, y), arrowprops=arrow, zorder=3)
axes.fill([13.1, 15.5, 15.5, 13.1], [3.9, 3.9, 7.9, 7.9], facecolor=PLAIN, edgecolor=EDGE, linewidth=1.5, zorder=1)
text(14.3, 5.1, "Python\non the host", fontsize=11, fontweight="bold", ha="center")
text(14.3, 6.7, "debug.callback\npure_callback\nio_callback", fontsize=8, family=MONO, ha="center")
axes.annotate("", (0.4, 1.4), (0.4, 7.7), arrowprops={"arrowstyle": "-|>", "color": QUIET, "linewidth": 1.4})
text(0.3, 8.2, "more control upwards", fontsize=9, color=QUIET)
save(axes, __file__)
