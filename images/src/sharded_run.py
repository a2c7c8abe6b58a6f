"""Trains one network on one device and on eight, and draws README's picture of both: pieces, bytes, losses.

Everything in it is measured while it is drawn: pieces and their devices are read off the arrays, bytes off the pieces.
"""

import itertools
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from sklearn.datasets import load_digits
from style import DEVICES, INK, MAPPED, MONO, PLAIN, QUIET, RESULT, card, save, words

sys.path.insert(0, str(Path(__file__).parents[2]))
from grader.checks import devices

SIZES, BATCH, EPOCHS = (64, 256, 256, 10), 256, 20
COLOURS = {"one device": PLAIN, "data parallel": MAPPED, "FSDP": RESULT}
OPTIMIZER = optax.adam(1e-3)


def start() -> list[dict[str, jax.Array]]:
    """The layers of the network, whole, on the first device."""
    keys = jax.random.split(jax.random.key(0), len(SIZES) - 1)
    shapes = zip(keys, itertools.pairwise(SIZES), strict=True)
    return [{"w": jax.random.normal(k, s) * math.sqrt(2 / s[0]), "b": jnp.zeros(s[1])} for k, s in shapes]


def scores(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


@jax.jit
def step(params, state, x, y):  # type: ignore[no-untyped-def]
    loss = lambda params: optax.softmax_cross_entropy_with_integer_labels(scores(params, x), y).mean()
    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def stored(*trees: object) -> float:
    """kB that the first device holds."""
    shards = [shard for leaf in jax.tree.leaves(trees) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == FIRST) / 1000


def layout(axes: Axes, x: float, y: float, leaf: jax.Array, scale: float) -> None:
    """An array to scale, cut as it is cut, each piece in the colour of its device; grey where all hold it."""
    rows, columns = leaf.shape if leaf.ndim == 2 else (10, leaf.shape[0])
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        slices = index if leaf.ndim == 2 else (slice(None), *index)
        (top, bottom), (left, right) = (one.indices(n)[:2] for one, n in zip(slices, (rows, columns), strict=True))
        colour = PLAIN if leaf.sharding.is_fully_replicated else DEVICES[device.id]
        place = (x + left * scale, y + top * scale)
        size = ((right - left) * scale, (bottom - top) * scale)
        axes.add_patch(Rectangle(place, *size, facecolor=colour, edgecolor=INK, linewidth=0.5, zorder=2))


devices.start(8)
mesh = devices.mesh((8,), ("data",))
FIRST = mesh.devices[0]
jax.config.update("jax_default_device", FIRST)
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
spread = lambda leaf: split if leaf.ndim and leaf.shape[0] % 8 == 0 else whole
digits = load_digits()
order = np.random.default_rng(18).permutation(1797)
images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int32)

params = start()
both = params, OPTIMIZER.init(params)
starts = {
    "one device": (*jax.device_put(both, FIRST), FIRST),
    "data parallel": (*jax.device_put(both, whole), split),
    "FSDP": (*jax.device_put(both, jax.tree.map(spread, both)), split),
}
losses: dict[str, list[jax.Array]] = {}
kilobytes: dict[str, float] = {}
for name, (p, s, place) in starts.items():
    kilobytes[name], losses[name] = stored(p, s), []
    for begin in EPOCHS * list(range(0, 1536, BATCH)):
        batch = jax.device_put((images[begin : begin + BATCH], labels[begin : begin + BATCH]), place)
        p, s, value = step(p, s, *batch)
        losses[name].append(value)
    right = np.mean(np.argmax(scores(jax.device_get(p), images[1536:]), axis=1) == labels[1536:])

axes = card(17.4, 7.2)
words(axes, 0.6, 0.75, "One network, cut over eight devices", size=12, align="left", bold=True)
SCALE = 0.0098
places = {"w": ((0.7, 2.15), (0.7, 3.55), (4.3, 3.55)), "b": ((0.7, 2.9), (0.7, 6.2), (4.3, 6.2))}
for number, layer in enumerate(starts["FSDP"][0]):
    for name, leaf in layer.items():
        x, y = places[name][number]
        layout(axes, x, y, leaf, SCALE)
words(axes, 0.7, 1.85, "w 64 x 256, b 256", size=8.5, align="left", code=True, colour=QUIET)
words(axes, 0.7, 3.3, "w 256 x 256, b 256", size=8.5, align="left", code=True, colour=QUIET)
words(axes, 4.0, 3.3, "w 256 x 10, b 10", size=8.5, align="left", code=True, colour=QUIET)
for device in range(8):
    axes.add_patch(Rectangle((0.7 + 0.62 * device, 1.12), 0.3, 0.3, facecolor=DEVICES[device], edgecolor=INK, lw=0.6))
    words(axes, 1.13 + 0.62 * device, 1.28, str(device), size=8.5, code=True)
words(axes, 0.7, 6.7, "grey: ten biases, which eight does not divide, on all", size=8.5, align="left", colour=QUIET)


def chart(left: float, width: float, title: str) -> Axes:
    """Axes for a plot on the card, without a box."""
    words(axes, left, 0.75, title, size=12, align="left", bold=True)
    (all_wide, _), (all_high, _) = axes.get_xlim()[::-1], axes.get_ylim()
    inner = axes.figure.add_axes((left / all_wide, 1 - 5.9 / all_high, width / all_wide, 4.6 / all_high))
    inner.spines[["top", "right"]].set_visible(False)
    inner.patch.set_alpha(0)
    inner.tick_params(labelsize=8.5, colors=INK)
    return inner


bars = chart(7.4, 3.5, "kB on each device")
bars.bar(list(kilobytes), list(kilobytes.values()), color=[*COLOURS.values()], edgecolor=INK, linewidth=0.8, width=0.6)
for number, kb in enumerate(kilobytes.values()):
    bars.text(number, kb + 18, f"{kb:,.0f}", ha="center", fontsize=9.5, color=INK, family=MONO)
bars.set_xticks(range(3), ["one\ndevice", "data\nparallel", "FSDP"])
bars.set_yticks([])
bars.spines["left"].set_visible(False)
words(axes, 7.4, 6.75, "parameters and Adam's state", size=8.5, align="left", colour=QUIET)

curve = chart(12.2, 4.6, "The same losses")
for (name, found), width in zip(losses.items(), (7.5, 4.0, 1.2), strict=True):
    colour = {"one device": "#c9c4b8", "FSDP": INK}.get(name, COLOURS[name])
    curve.plot(np.array(found), color=colour, linewidth=width, label=name, solid_capstyle="round")
curve.set(yscale="log")
curve.set_xlabel("step", fontsize=8.5)
curve.legend(fontsize=8.5, frameon=False)
gap = max(np.abs(np.array(losses[name]) - np.array(losses["one device"])).max() for name in losses)
said = f"largest gap {gap:.0e}; {right:.1%} of unseen digits right"
words(axes, 12.2, 6.75, said, size=8.5, align="left", colour=QUIET)
save(axes, __file__)
