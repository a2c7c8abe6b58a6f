"""Draws the ecosystem of JAX: libraries by purpose, and whether they are active, maintained or retired."""

from matplotlib.patches import FancyBboxPatch
from style import EDGE, INK, MAPPED, PAPER, QUIET, RESULT, SHARED, arrow, box, card, save, words

ACTIVE, KEPT, RETIRED = RESULT, MAPPED, PAPER
# Purpose, corner of the frame, and the libraries that are active, maintained, retired.
GROUPS = (
    ("models", 0.6, 1.4, ("Flax NNX", "Equinox", "Keras 3"), ("Haiku", "Linen"), ("Trax", "Objax", "Elegy")),
    ("optimization", 6.2, 1.4, ("Optax", "Optimistix"), (), ("JAXopt",)),
    ("data, checkpoints", 11.8, 1.4, ("Grain", "Orbax"), (), ()),
    ("reinforcement learning", 0.6, 7.2, ("Gymnax",), ("RLax", "Brax"), ("Coax",)),
    ("science", 6.2, 7.2, ("Diffrax", "Lineax", "JAX MD", "NumPyro", "BlackJAX"), (), ("Jraph",)),
    ("tests, types, clusters", 11.8, 7.2, ("Chex", "jaxtyping"), ("mpi4jax",), ()),
)
FRAME, MIDDLE = 5.0, 8.7

axes = card(17.4, 11.4)


def frame(x: float, y: float, width: float, height: float, fill: str, edge: str = INK, dashed: bool = False) -> None:
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "facecolor": fill, "edgecolor": edge, "linewidth": 0.9}
    axes.add_patch(FancyBboxPatch((x, y), width, height, linestyle=(0, (3, 2)) if dashed else "-", zorder=2, **style))


def library(x: float, y: float, name: str, state: str) -> None:
    frame(x, y, 1.5, 0.5, state, INK if state != RETIRED else QUIET, dashed=state == RETIRED)
    words(
        axes,
        x + 0.75,
        y + 0.25,
        f"{name} ·" if state == KEPT else name,
        size=9,
        colour=INK if state != RETIRED else QUIET,
    )


words(axes, MIDDLE, 0.7, "Libraries that use JAX, November 2026", size=13, bold=True)
box(axes, 6.7, 5.2, 4.0, 1.0, "JAX: arrays and\ntransformations", fill=SHARED, size=10)
for title, x, y, *names in GROUPS:
    libraries = [(name, state) for state, group in zip((ACTIVE, KEPT, RETIRED), names, strict=True) for name in group]
    height = max(2.2, 0.75 + 0.68 * -(-len(libraries) // 3))
    frame(x, y, FRAME, height, "none", EDGE)
    words(axes, x + 0.2, y + 0.35, title, size=10.5, bold=True, align="left")
    for i, (name, state) in enumerate(libraries):
        library(x + 0.16 + (i % 3) * 1.62, y + 0.65 + (i // 3) * 0.68, name, state)
    foot = x + FRAME / 2
    hub = MIDDLE + (foot - MIDDLE) * 0.3
    arrow(axes, (foot, y if y > 5 else y + height), (hub, 6.25 if y > 5 else 5.15), colour=QUIET)

for x, state, text in (
    (0.9, ACTIVE, "active"),
    (3.4, KEPT, "maintained, few new features (with a dot)"),
    (9.9, RETIRED, "retired, not for new projects (dashed)"),
):
    frame(x, 10.5, 0.5, 0.36, state, INK if state != RETIRED else QUIET, dashed=state == RETIRED)
    words(axes, x + 0.7, 10.69, text, size=9.5, align="left")
save(axes, __file__)
