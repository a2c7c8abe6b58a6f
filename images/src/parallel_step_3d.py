"""Draws README's picture of 3D parallelism: the collectives of one training step on 2 x 2 x 2 devices.

The step is compiled while the picture is drawn. Kinds, elements, groups and order are read from the compiled program,
and the losses and parameters of the step are compared with those of one device.
"""

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from matplotlib.patches import Circle, Rectangle
from style import DEVICES, INK, MAPPED, PLAIN, QUIET, RESULT, SHARED, card, save, words

sys.path.insert(0, str(Path(__file__).parents[2]))
from grader.checks import devices
from grader.learning.inspection import axes_of_groups
from grader.program.hlo import collectives_and_groups

BATCH, TOKENS, WIDTH, HEADS, SIZE, HIDDEN = 8, 16, 32, 4, 8, 128
COLOURS = {("data",): RESULT, ("fsdp",): MAPPED, ("model",): SHARED, ("data", "fsdp"): PLAIN}
# The axis of each weight that `fsdp` partitions, to be gathered. Heads and hidden units are partitioned along `model`.
GATHERED = {"qkv": 1, "o": 2, "up": 0, "down": 1}
SPECS = {
    "qkv": P(None, "fsdp", "model"),
    "o": P("model", None, "fsdp"),
    "up": P("fsdp", "model"),
    "down": P("model", "fsdp"),
}


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def block(params: dict[str, jax.Array], x: jax.Array, add=lambda x: x, cast=lambda x: x) -> jax.Array:  # type: ignore[no-untyped-def]
    """A transformer block. `add` completes sums over heads and hidden units, and `cast` precedes the products."""
    q, k, v = jnp.einsum("btd,ndhk->nbthk", cast(norm(x)), params["qkv"])
    heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + add(jnp.einsum("bthk,hkw->btw", heads, params["o"]))
    return x + add(jax.nn.gelu(cast(norm(x)) @ params["up"]) @ params["down"])


def loss(params, x, y):  # type: ignore[no-untyped-def]
    return jnp.mean((block(params, x) - y) ** 2)


def local_loss(params, x, y):  # type: ignore[no-untyped-def]
    """The loss in the code of one device: its examples, its shards of the weights."""
    whole = {n: jax.lax.all_gather(w, "fsdp", axis=GATHERED[n], tiled=True) for n, w in params.items()}
    add, cast = (lambda x: jax.lax.psum(x, "model")), (lambda x: jax.lax.pcast(x, "model", to="varying"))
    return jax.lax.pmean(jnp.mean((block(whole, x, add, cast) - y) ** 2), ("data", "fsdp"))


def step(loss):  # type: ignore[no-untyped-def]
    def updated(params, x, y):  # type: ignore[no-untyped-def]
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return {name: params[name] - 0.1 * gradient for name, gradient in gradients.items()}, value

    return jax.jit(updated)


devices.start(8)
jax.config.update("jax_default_matmul_precision", "highest")
mesh = devices.mesh((2, 2, 2), ("data", "fsdp", "model"), explicit=True)
rng = np.random.default_rng(20)
shapes = {"qkv": (3, WIDTH, HEADS, SIZE), "o": (HEADS, SIZE, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
params = {n: (rng.normal(size=s) / math.sqrt(WIDTH)).astype(np.float32) for n, s in shapes.items()}
x, y = rng.normal(size=(2, BATCH, TOKENS, WIDTH)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = {n: jax.device_put(w, SPECS[n]) for n, w in params.items()}
    batch = [jax.device_put(array, P(("data", "fsdp"))) for array in (x, y)]
    compiled = step(jax.shard_map(local_loss, out_specs=P())).lower(placed, *batch).compile()
    result = compiled(placed, *batch)
expected = step(loss)(params, x, y)
gap = max(np.abs(np.asarray(a) - b).max() for a, b in zip(*map(jax.tree.leaves, (result, expected)), strict=True))
assert gap < 1e-5, gap
text = compiled.as_text() or ""
assert "is_scheduled=true" in text.partition("\n")[0]  # so operations appear in the order of execution
found = collectives_and_groups(text, mesh.size)
stored, whole = (
    sum(leaf.nbytes for leaf in tree)
    for tree in ([w.addressable_shards[0].data for w in placed.values()], params.values())
)

LEFT, TOP, STEP, ROW = 3.3, 2.75, 14.1 / len(found), 0.56
axes = card(18, 9.2)
words(
    axes, 0.5, 0.65, "One training step of a transformer block on 2 x 2 x 2 devices", size=12.5, align="left", bold=True
)
for number, coordinates in enumerate(np.ndindex(*mesh.devices.shape)):
    y_of = TOP + number * ROW
    axes.add_patch(Rectangle((0.5, y_of - 0.2), 0.4, 0.4, facecolor=DEVICES[number], edgecolor=INK, linewidth=0.8))
    words(axes, 0.7, y_of, str(number), size=9)
    words(axes, 1.1, y_of, " ".join(map(str, coordinates)), size=9, align="left", code=True, colour=QUIET)
words(axes, 1.1, TOP - 0.5, "data fsdp model", size=7.5, align="left", code=True, colour=QUIET)
for column, (one, groups) in enumerate(found):
    along = axes_of_groups(groups, mesh)
    middle = LEFT + (column + 0.5) * STEP
    for place, group in enumerate(groups):
        at = middle + (place - (len(groups) - 1) / 2) * min(0.17, 0.6 * STEP / max(len(groups), 1))
        rows = [TOP + device * ROW for device in group]
        axes.plot([at, at], [min(rows), max(rows)], color=INK, linewidth=1.1, zorder=2)
        for y_of in rows:
            axes.add_patch(Circle((at, y_of), 0.085, facecolor=COLOURS[along], edgecolor=INK, linewidth=0.8, zorder=3))
    words(axes, middle, TOP - 0.85, one.kind, size=7.5, bold=True, turn=38)
    words(axes, middle, TOP + 7 * ROW + 0.5, f"{one.elements:,}", size=8, code=True)
words(axes, 0.5, TOP + 7 * ROW + 0.5, "elements on a device", size=8.5, align="left", colour=QUIET)
axes.annotate(
    "",
    (LEFT + 14.1, TOP + 7 * ROW + 0.95),
    (LEFT, TOP + 7 * ROW + 0.95),
    arrowprops={"arrowstyle": "-|>", "color": QUIET},
)
words(axes, LEFT + 0.1, TOP + 7 * ROW + 1.2, "order of execution", size=8.5, align="left", colour=QUIET)
MEANINGS = {
    ("fsdp",): "along fsdp: weights are gathered, and gradients reduce-scattered",
    ("model",): "along model: sums over heads and hidden units",
    ("data",): "along data: gradients of the replicas",
    ("data", "fsdp"): "along data and fsdp: the loss",
}
for number, (along, meaning) in enumerate(MEANINGS.items()):
    left, down = (0.7, 9.6)[number % 2], 8.25 + 0.42 * (number // 2)
    axes.add_patch(Circle((left, down), 0.12, facecolor=COLOURS[along], edgecolor=INK, linewidth=0.8))
    words(axes, left + 0.3, down, meaning, size=9, align="left")
words(
    axes,
    17.5,
    0.65,
    f"{stored / 1000:.1f} of {whole / 1000:.1f} kB of weights on each device",
    size=9,
    align="right",
    colour=QUIET,
)
save(axes, __file__)
print(
    *(f"{one.kind} of {one.elements} along {' and '.join(axes_of_groups(groups, mesh))}" for one, groups in found),
    sep="; ",
)
print(f"largest difference from one device: {gap:.1e}")
