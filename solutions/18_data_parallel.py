# %% [markdown]
# # 18 · Exercises: data parallel
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# The setup asks for eight devices, which JAX counts once: if it complains, restart the kernel and run it first. On a machine with eight accelerators or more the same cells use those; elsewhere the eight are parts of your CPU. Every mesh here has one axis, of type Auto, unless a task says otherwise.
#
# "Merged" collectives: the compiler may send all gradients in one operation, so the checks count **elements**, not operations. Where one machine reduces and scatters (accelerators) and another reduces and cuts (CPU), both are right.

# %% setup
from grader.checks import ask, compare, devices, error, inputs, program, require

devices.start(8)  # before JAX is first used

import math
from collections import defaultdict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Accelerators round the factors of a product to fewer bits unless told otherwise; here every product keeps all of them.
jax.config.update("jax_default_matmul_precision", "highest")


def line_loss(params, x, y):
    """Mean squared error of a line through the origin: {"w": (1, 1)}, x (B, 1), y (B, 1) -> ()"""
    return jnp.mean((x @ params["w"] - y) ** 2)


def network_loss(params, x, y):
    """Mean squared error of a network with one hidden layer: x (B, d), y (B, k) -> ()"""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


def weighted_line_loss(params, x, y, weights):
    """Squared errors of a line, weighted and ADDED UP: {"w": (1, 1)}, x (B, 1), y (B, 1), weights (B,) -> ()"""
    return jnp.sum(weights * jnp.sum((x @ params["w"] - y) ** 2, axis=1))


def weighted_network_loss(params, x, y, weights):
    """Squared errors of the network, weighted and ADDED UP: x (B, d), y (B, k), weights (B,) -> ()"""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.sum(weights * jnp.sum((hidden @ params["w2"] + params["b2"] - y) ** 2, axis=1))


def network(rng, inputs_, hidden, outputs):
    """Parameters of the network, NumPy float32, from a NumPy generator."""
    draw = lambda *shape: (rng.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)
    return {"w1": draw(inputs_, hidden), "b1": draw(hidden), "w2": draw(hidden, outputs), "b2": draw(outputs)}


def by_hand(params, x, y, weights):
    """The weighted loss and its gradients in plain NumPy, on no device at all: what the checks compare with."""
    p = {name: leaf.astype(np.float64) for name, leaf in params.items()}
    hidden = np.tanh(x @ p["w1"] + p["b1"])
    error = hidden @ p["w2"] + p["b2"] - y
    slope = 2 * weights[:, None] * error
    back = slope @ p["w2"].T * (1 - hidden**2)
    gradients = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ slope, "b2": slope.sum(0)}
    return np.float32((weights[:, None] * error**2).sum()), {n: g.astype(np.float32) for n, g in gradients.items()}


def held(mesh, tree):
    """The bytes that each device holds of a tree of arrays, device by device; none of what is not on a device."""
    on_device = defaultdict(int, dict.fromkeys(mesh.devices.flat, 0))
    for leaf in jax.tree.leaves(tree):
        for shard in getattr(leaf, "addressable_shards", ()):
            on_device[shard.device] += shard.data.nbytes
    return list(on_device.values())


def in_words(held_bytes):
    """Such as `576 bytes` or `from 0 to 4,608 bytes`."""
    low, high = min(held_bytes), max(held_bytes)
    return f"{high:,} bytes" if low == high else f"from {low:,} to {high:,} bytes"


def parts_of(array):
    """The shapes of the parts of a placed array that lie on devices, each once."""
    return sorted({shard.data.shape for shard in getattr(array, "addressable_shards", ())})


class AveragedState(NamedTuple):
    """What `averaged` remembers: a count, and two trees of float32 like the parameters."""

    count: jax.Array
    momentum: dict
    average: dict


def averaged(rate, decay=0.9):
    """An optimizer with momentum, which also keeps a running average of the parameters, all in float32."""

    def init(params):
        momentum = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        average = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        return AveragedState(jnp.zeros([], jnp.int32), momentum, average)

    def update(gradients, state, params):
        momentum = jax.tree.map(lambda m, g: decay * m + g.astype(m.dtype), state.momentum, gradients)
        updates = jax.tree.map(lambda m, p: (-rate * m).astype(p.dtype), momentum, params)
        moved = jax.tree.map(lambda a, p, u: decay * a + (1 - decay) * (p + u), state.average, params, updates)
        return updates, AveragedState(state.count + 1, momentum, moved)

    return optax.GradientTransformation(init, update)


def train_step(tx, params, state, x, y):
    """One step of the optimizer `tx` on network_loss. Returns (new params, new state, loss)."""
    loss, gradients = jax.value_and_grad(network_loss)(params, x, y)
    updates, state = tx.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


# %% [markdown] task="dp-step" stars=1 minutes=10 skills="04_grad,06_pytrees,16_sharding"
# ## One step on eight devices
# **Goal.** Train data-parallel: every device holds all parameters and an eighth of the batch, and their gradients are averaged. Two lines are missing.
#
# **Signature.** `dp_place(mesh, params, x, y)`: a mesh of eight devices with the axis `"data"`, a tree of NumPy arrays, a batch `x (B, d)` and `y (B, k)`, where eight divides B. Returns the three on the mesh. `dp_step(loss, params, x, y, rate)`: takes them; `loss(params, x, y)` is the mean over a batch. Returns `(new params, loss)` after one step of gradient descent. The checks compile it.
#
# **Example.** For `w = 0`, sixteen examples with x = 1, y = 0, 1, …, 15 and the loss `mean((w x - y)²)`, the gradient is -2 mean(y) = -15; a step of rate 0.1 gives `w = 1.5`, and the loss was 77.5.
#
# **Judged.** Values; that each device is given an eighth of the batch and all parameters; that the compiled step reduces every gradient over the devices. **Not judged.** How many operations that takes, and speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which axis of `x` counts the examples? What is the spec that cuts that axis along `"data"`, and leaves the others alone?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The first line is the one above it with another spec. In `dp_step`, nothing needs to speak of devices: write the line as you would for one.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `P("data")` cuts axis 0 of an array of any rank. `jax.value_and_grad` of `loss` gives both things that the last line uses; the mean over a batch that is split is what makes the compiler reduce.
#
# </details>


# %% answer="dp-step"
def dp_place(mesh, params, x, y):
    """All of params on every device of the mesh; the batch x (B, d), y (B, k) split among them."""
    everywhere = NamedSharding(mesh, P())
    ### BEGIN SOLUTION
    split = NamedSharding(mesh, P("data"))
    ### END SOLUTION
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    """One step of gradient descent on loss(params, x, y). Returns (new params, loss)."""
    ### BEGIN SOLUTION
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    ### END SOLUTION
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% check="dp-step" name="example" points=1
"""The example: two examples a device, w on all of them, and one step makes it 1.5."""
mesh = devices.mesh((8,), ("data",))
params = {"w": np.zeros((1, 1), np.float32)}
x, y = np.ones((16, 1), np.float32), np.arange(16, dtype=np.float32)[:, None]
placed = ask(dp_place, mesh, params, x, y)
compare(placed, (params, x, y), label="what `dp_place` returns")
for name, array in (("x", placed[1]), ("y", placed[2])):
    found = held(mesh, array)
    require(found == [8] * 8, f"Each device holds {in_words(found)} of {name}; an eighth of its 64 bytes is 8.")
found = held(mesh, placed[0])
require(found == [4] * 8, f'Each device holds {in_words(found)} of "w"; all of it is 4 bytes.')
made = program(lambda params, x, y: dp_step(line_loss, params, x, y, 0.1), *placed)
compare(made.run(*placed), ({"w": np.array([[1.5]], np.float32)}, np.float32(77.5)), label="what `dp_step` returns")

# %% hidden="dp-step" name="values" points=1
"""A network's step on eight devices is the step of one device on the whole batch."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
w, x, y = np.full((1, 1), 2, np.float32), np.ones((16, 1), np.float32), np.arange(16, dtype=np.float32)[:, None]
probe = {"w": w + np.float32(rng.integers(1, 9))}
got = ask(lambda p, x, y: dp_step(lambda p, x, y: jnp.mean(3 * p["w"] * x + y), p, x, y, 0.5), probe, x, y)
wanted = {"w": probe["w"] - np.float32(1.5)}, np.float32(3 * probe["w"][0, 0] + 7.5)
compare(got, wanted, label="what `dp_step` returns for another loss")
batch = lambda: (rng.normal(size=(48, 24)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32))
params, first, second = network(rng, 24, 40, 6), batch(), batch()
placed = ask(dp_place, mesh, params, *first)
compare(placed, (params, *first), label="what `dp_place` returns")
made = program(lambda params, x, y: dp_step(network_loss, params, x, y, 0.03), *placed)
for x, y in (first, second):
    loss, gradients = by_hand(params, x, y, np.full(48, 1 / y.size))
    moved = {name: params[name] - np.float32(0.03) * gradients[name] for name in params}
    compare(made.run(placed[0], x, y), (moved, loss), label="what `dp_step` returns")

# %% hidden="dp-step" name="program" points=2
"""Each device is given an eighth of the batch, and the gradients of all parameters are reduced over the devices."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
params = network(rng, 24, 40, 6)
x, y = rng.normal(size=(48, 24)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32)
placed = ask(dp_place, mesh, params, x, y)
compare(placed, (params, x, y), label="what `dp_place` returns")
found, eighth = held(mesh, placed[1:]), (x.nbytes + y.nbytes) // 8
require(
    found == [eighth] * 8,
    f"Each device holds {in_words(found)} of the batch of 48 examples; an eighth is {eighth:,}. A batch that is not split "
    "makes every device do all the work, and no error says so.",
)
for name, array in zip("xy", placed[1:], strict=True):
    require(
        parts_of(array) == [(6, array.shape[1])],
        f"The parts of {name} on the devices have shapes {parts_of(array)}: it is cut, but not along axis 0, which counts the "
        "examples.",
    )
whole = sum(leaf.nbytes for leaf in params.values())
found = held(mesh, placed[0])
require(
    found == [whole] * 8,
    f"Each device holds {in_words(found)} of the parameters; in plain data parallelism it holds all {whole:,}.",
)
made = program(lambda params, x, y: dp_step(network_loss, params, x, y, 0.1), *placed)
reduced = made.elements("all-reduce") + 8 * made.elements("reduce-scatter")
count = sum(leaf.size for leaf in params.values())
require(
    reduced >= count,
    f"The compiled step reduces {reduced:,} elements over the devices; the gradients of all parameters have {count:,}.",
)
loss, gradients = by_hand(params, x, y, np.full(48, 1 / y.size))
moved = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
compare(made.run(*placed), (moved, loss), label="what `dp_step` returns")

# %% [markdown] why="dp-step"
# Nothing in `dp_step` speaks of devices. The mean runs over an axis that is split, so the compiler lets every device sum its own examples and puts one all-reduce where the sums meet. **Next:** what would the program look like if `loss` returned the sum over the batch instead?


# %% wrong="dp-step" because="Gives every device the whole batch: the numbers are right, each device does all the work, and nothing is left to reduce."
def dp_place(mesh, params, x, y):
    everywhere = NamedSharding(mesh, P())
    return jax.device_put(params, everywhere), *jax.device_put((x, y), everywhere)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Splits the parameters like the batch: that is FSDP, where each step gathers them first; and where 8 does not divide an axis it is an error."
def dp_place(mesh, params, x, y):
    split = NamedSharding(mesh, P("data"))
    whole = NamedSharding(mesh, P())
    pick = lambda leaf: split if leaf.shape[0] % mesh.size == 0 else whole
    return jax.device_put(params, jax.tree.map(pick, params)), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Adds the devices' mean gradients up instead of averaging them: the step is eight times too long."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    x, y = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1, y.shape[1])
    values, gradients = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g.sum(0), params, gradients), values.mean()


# %% wrong="dp-step" because="Forgets to average: every device goes its own way, and what comes back is what the first device did with its eighth."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    x, y = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1, y.shape[1])
    values, gradients = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g[0], params, gradients), values[0]


# %% wrong="dp-step" because="Splits x but forgets y: the targets are sent to every device in full."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), jax.device_put(x, split), jax.device_put(y, everywhere)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Spreads the whole batch again within the step, as the mean is over all of it: nothing is left to reduce."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    whole = NamedSharding(devices.mesh((8,), ("data",)), P())
    x, y = jax.lax.with_sharding_constraint((x, y), whole)
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Divides a sum over the examples by `x.size`: that is the number of examples only where x has one column."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    one = lambda x, y: jax.value_and_grad(loss)(params, x[None], y[None])
    values, gradients = jax.vmap(one)(x, y)
    return jax.tree.map(lambda p, g: p - rate * g.sum(0) / x.size, params, gradients), values.mean()


# %% wrong="dp-step" because="Differentiates the loss of the example instead of the one that is handed over."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(line_loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Writes the rate of the example down."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


# %% right="dp-step"
def dp_place(mesh, params, x, y):
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,))
    put = lambda tree, *spec: jax.device_put(tree, NamedSharding(explicit, P(*spec)))
    return put(params), put(x, "data", None), put(y, "data", None)


def dp_step(loss, params, x, y, rate):
    gradients = jax.grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), loss(params, x, y)


# %% right="dp-step"
def dp_place(mesh, params, x, y):
    shardings = (NamedSharding(mesh, P()), NamedSharding(mesh, P("data", None)), NamedSharding(mesh, P("data", None)))
    return jax.device_put((params, x, y), shardings)


def dp_step(loss, params, x, y, rate):
    # Every device takes its own step, then the parameters are averaged: for plain gradient descent the same.
    x, y = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1, y.shape[1])

    def local(x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value

    moved, values = jax.vmap(local)(x, y)
    return jax.tree.map(lambda p: p.mean(0), moved), values.mean()


# %% [markdown] task="dp-bytes-per-device" stars=1 minutes=8 skills="06_pytrees,16_sharding"
# ## What does each device hold?
# **Goal.** Before a model is built, say how many bytes each device will hold of it.
#
# **Signature.** `bytes_per_device(tree)`: a tree whose leaves are arrays or `jax.ShapeDtypeStruct`, each with a `.shape`, a `.dtype` and a `.sharding` that is a NamedSharding, of any mesh and spec. Returns an int: the bytes of all leaves that one device holds.
#
# **Example.** On eight devices, a float32 array `(64, 256)` split along axis 0, and a `jax.ShapeDtypeStruct` of bfloat16 `(10,)` that every device holds: 64 · 256 · 4 / 8 + 10 · 2 = 8,212. On a mesh of 4 x 2 whose axes are `"data"` and `"model"`, the first under `P("data")`: 64 · 256 · 4 / 4 = 16,384, as the devices along `"model"` hold copies.
#
# **Judged.** The number, for any dtype, rank, mesh and spec, also for a model of terabytes: nothing may be allocated. **Not judged.** Leaves without a sharding.
#
# <details><summary>Hint 1 · a question</summary>
#
# How would you get the shape of the piece that a device holds, from the shape of the whole and its sharding?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Lesson 16 used a method of a sharding which answers that for any shape, and needs no array: `shard_shape`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The product of the piece's sizes (`math.prod`; it is 1 for a scalar) times the bytes of one element (`leaf.dtype.itemsize`), added up over `jax.tree.leaves`.
#
# </details>


# %% answer="dp-bytes-per-device"
def bytes_per_device(tree):
    """The bytes that one device holds of a tree of arrays or ShapeDtypeStructs, all with a NamedSharding: an int."""
    ### BEGIN SOLUTION
    pieces = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in pieces)
    ### END SOLUTION


# %% check="dp-bytes-per-device" name="example" points=1
"""The example: 8,192 bytes of the one, all 20 bytes of the other; and copies along an axis that is not named."""
mesh = devices.mesh((8,), ("data",))
weights = jax.device_put(np.zeros((64, 256), np.float32), NamedSharding(mesh, P("data")))
bias = jax.ShapeDtypeStruct((10,), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
got = ask(bytes_per_device, {"weights": weights, "bias": bias})
require(isinstance(got, int | np.integer), f"`bytes_per_device` returned a {type(got).__name__}; wanted an int.")
require(got == 8_212, f"`bytes_per_device` says {got:,} bytes; wanted 8,192 + 20 = 8,212.")
two = NamedSharding(devices.mesh((4, 2), ("data", "model")), P("data"))
got = ask(bytes_per_device, [jax.ShapeDtypeStruct((64, 256), np.float32, sharding=two)])
require(got == 16_384, f"On the mesh of 4 x 2 `bytes_per_device` says {got:,} bytes; wanted 65,536 / 4 = 16,384.")

# %% hidden="dp-bytes-per-device" name="values" points=1
"""Right for every dtype and rank, for leaves that are split, replicated, or split over two axes of a mesh."""
mesh = devices.mesh((4, 2), ("data", "model"))
rng = inputs.rng()
KINDS = {  # rank, spec, and into how many pieces it cuts
    "a scalar": (0, (), 1),
    "a leaf that every device holds": (2, (), 1),
    "a leaf that the larger of two axes of the mesh cuts, so that there are copies along the other": (1, ("data",), 4),
    "a leaf whose axis 1 is cut by the smaller of two axes of the mesh": (3, (None, "model"), 2),
    "a leaf of which each of two axes is cut by one of the mesh": (4, ("model", None, None, "data"), 8),
    "a leaf of which one axis is cut by a tuple of two axes of the mesh": (3, (None, None, ("data", "model")), 8),
}
tree, total = [], 0
for kind, (rank, spec, parts) in KINDS.items():
    for dtype in map(np.dtype, (np.float32, jnp.bfloat16, np.int8)):
        shape = tuple(8 * int(n) for n in rng.integers(1, 4, size=rank))
        tree.append(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec))))
        wanted = math.prod(shape) * dtype.itemsize // parts
        total += wanted
        got = ask(bytes_per_device, tree[-1:])
        require(
            isinstance(got, int | np.integer), f"`bytes_per_device` returned a {type(got).__name__}; wanted an int."
        )
        compare(int(got), wanted, label=f"the number of bytes of {kind} ({dtype.itemsize} for an element)")
got = ask(bytes_per_device, {"first": tree[:8], "rest": tuple(tree[8:])})
compare(got, total, label="the number of bytes of a tree of such leaves")

# %% hidden="dp-bytes-per-device" name="abstract" points=1
"""Right for a model of terabytes, which no memory here would hold."""
mesh = devices.mesh((8,), ("data",))
rows = 8 * int(inputs.rng().integers(1 << 17, 1 << 18))
tree = {
    "table": jax.ShapeDtypeStruct((rows, 1 << 20), jnp.float32, sharding=NamedSharding(mesh, P("data"))),
    "norm": jax.ShapeDtypeStruct((1 << 20,), jnp.bfloat16, sharding=NamedSharding(mesh, P())),
    "count": jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, P())),
}
require(
    error(bytes_per_device, tree) not in ("MemoryError", "_ArrayMemoryError", "JaxRuntimeError"),
    "Memory ran out for a model of terabytes: arrays are made where shapes are enough.",
)
got = ask(bytes_per_device, tree)
require(isinstance(got, int | np.integer), f"`bytes_per_device` returned a {type(got).__name__}; wanted an int.")
require(
    got == rows // 8 * (1 << 20) * 4 + (1 << 20) * 2 + 4,
    "The number of bytes is not right for a table of terabytes that is split, beside leaves that are not.",
    kind="values",
)

# %% [markdown] why="dp-bytes-per-device"
# A sharding knows the shape of its pieces without any array, so a plan for a thousand devices costs nothing to check. **Next:** a parameter of b bytes takes 4 b with its gradient and Adam's two moments. From how many parameters on would eight devices of 80 GB not hold your model in float32?


# %% wrong="dp-bytes-per-device" because="Counts the whole array: `size` and `nbytes` do not change when an array is split."
def bytes_per_device(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Divides everything by the number of devices: a leaf that every device holds is not divided."
def bytes_per_device(tree):
    return sum(leaf.size * leaf.dtype.itemsize // leaf.sharding.mesh.size for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Divides what is cut by the number of all devices: along an axis of the mesh that no entry names lie copies."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        cut = any(leaf.sharding.spec)
        total += leaf.size * leaf.dtype.itemsize // (leaf.sharding.mesh.size if cut else 1)
    return total


# %% wrong="dp-bytes-per-device" because="Takes four bytes for an element, whatever its dtype."
def bytes_per_device(tree):
    return 4 * sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Looks at the pieces themselves: an array that does not exist yet has none."
def bytes_per_device(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Divides by the first axis of the spec only: a leaf may be split along another axis, or over two axes of the mesh."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        spec, sizes = leaf.sharding.spec, leaf.sharding.mesh.shape
        parts = sizes[spec[0]] if len(spec) and spec[0] else 1
        total += leaf.size * leaf.dtype.itemsize // parts
    return total


# %% wrong="dp-bytes-per-device" because="Passes over the tuples of a spec: an axis may be cut by two axes of the mesh at once."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        sizes = leaf.sharding.mesh.shape
        parts = math.prod(sizes[name] for name in leaf.sharding.spec if isinstance(name, str))
        total += leaf.size * leaf.dtype.itemsize // parts
    return total


# %% wrong="dp-bytes-per-device" because="Makes the arrays and looks at what the first device got: a model of terabytes cannot be made."
def bytes_per_device(tree):
    arrays = jax.tree.map(lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), tree)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(arrays))


# %% wrong="dp-bytes-per-device" because="Multiplies the sizes with jnp.prod, in int32: that overflows for large leaves."
def bytes_per_device(tree):
    pieces = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree)]
    return sum(int(jnp.prod(jnp.array(shape, int))) * dtype.itemsize for shape, dtype in pieces)


# %% wrong="dp-bytes-per-device" because="Counts only the first mesh axis of a tuple in a spec: an axis sharded over both comes out too large."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        pieces = 1
        for entry in leaf.sharding.spec:
            if entry is not None:
                name = entry if isinstance(entry, str) else entry[0]
                pieces *= leaf.sharding.mesh.shape[name]
        total += leaf.size * leaf.dtype.itemsize // pieces
    return total


# %% right="dp-bytes-per-device"
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        parts = 1
        for names in leaf.sharding.spec:
            for name in (names,) if isinstance(names, str) else names or ():
                parts *= leaf.sharding.mesh.shape[name]
        total += leaf.size // parts * leaf.dtype.itemsize
    return total


# %% right="dp-bytes-per-device"
def bytes_per_device(tree):
    def of(leaf):
        indices = next(iter(leaf.sharding.devices_indices_map(leaf.shape).values()))
        sizes = [len(range(*index.indices(n))) for index, n in zip(indices, leaf.shape, strict=True)]
        return math.prod(sizes) * leaf.dtype.itemsize

    return jax.tree.reduce(lambda total, leaf: total + of(leaf), tree, 0)


# %% [markdown] task="dp-any-rank" stars=2 minutes=15 skills="dp-bytes-per-device,06_pytrees,16_sharding"
# ## Leaves of any rank
# **Goal.** Spread a tree over a mesh so that every device holds as little as possible: each leaf cut along one axis which the number of devices divides, and whole only where there is none.
#
# **Signature.** `shard_any_rank(mesh, tree)`: a mesh with **one** axis, of any name and size; a tree of NumPy arrays of any rank, scalars too, and any dtype. Returns the same tree on the mesh.
#
# **Example.** On eight devices a leaf `(3, 3, 16, 32)` is cut along axis 2 or 3 and each device holds an eighth; `(10, 24)` is cut along axis 1; `(10,)`, `(12, 20)` and `()` lie whole on each: eight divides 240 elements, and neither axis. On a mesh of four whose axis is called `"shards"`, `(12, 20)` is cut.
#
# **Judged.** The bytes of every leaf on every device; values, shapes and dtypes, which stay as they are. **Not judged.** Which axis you take where several would do.
#
# <details><summary>Hint 1 · a question</summary>
#
# Given only a leaf's shape and a number of devices: how do you find an axis that can be cut? What does your way say for `()`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `P(None, None, "data")` cuts axis 2. Build it: a `None` for each axis before the one you found, then the name. Where there is no such axis, `P()`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `mesh.size` and `mesh.axis_names[0]` are what you must not guess. Write a function from a leaf to its sharding, map it over the tree, and hand the tree of shardings to `jax.device_put`.
#
# </details>


# %% answer="dp-any-rank"
def shard_any_rank(mesh, tree):
    """The tree of NumPy arrays on the mesh, each leaf cut along an axis that the mesh's size divides, else whole."""
    ### BEGIN SOLUTION
    (name,) = mesh.axis_names

    def sharding(leaf):
        possible = [axis for axis, size in enumerate(np.shape(leaf)) if size % mesh.size == 0]
        spec = P(*[None] * possible[-1], name) if possible else P()
        return NamedSharding(mesh, spec)

    return jax.device_put(tree, jax.tree.map(sharding, tree))
    ### END SOLUTION


# %% check="dp-any-rank" name="example" points=1
"""The example: five leaves on eight devices, and one on four."""
mesh = devices.mesh((8,), ("data",))
shapes = {"kernel": (3, 3, 16, 32), "table": (10, 24), "bias": (10,), "odd": (12, 20), "scale": ()}
tree = {name: np.arange(math.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()}
placed = ask(shard_any_rank, mesh, tree)
compare(placed, tree, label="the tree")
for name, wanted in (("kernel", 2304), ("table", 120), ("bias", 40), ("odd", 960), ("scale", 4)):
    found = held(mesh, placed[name])
    require(
        found == [wanted] * 8,
        f'Of "{name}" {shapes[name]}, {tree[name].nbytes:,} bytes, each device holds {in_words(found)}; wanted {wanted:,}.',
    )
four = devices.mesh((4,), ("shards",))
found = held(four, ask(shard_any_rank, four, {"odd": tree["odd"]}))
require(found == [240] * 4, f'On the mesh of four each device holds {in_words(found)} of "odd"; wanted 240.')

# %% hidden="dp-any-rank" name="bytes" points=1
"""Every leaf that can be cut is cut, whatever its rank, and its values stay."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
SHAPES = [
    (),
    (5,),
    (16,),
    (3, 7),
    (8, 3),
    (3, 8),
    (12, 20),
    (5, 3, 24),
    (2, 40, 3),
    (4, 2, 6),
    (3, 3, 8, 5),
    (3, 1, 5, 2, 16),
]
dtypes = ["float32", "int8", "float16"] * 4
tree = [rng.integers(-100, 100, size=shape).astype(dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
require(
    not error(shard_any_rank, mesh, tree) or error(shard_any_rank, mesh, {"one": tree[4], "two": tree[5]}),
    "A dict of arrays is placed, and a list of arrays is not: any tree may be given.",
)
placed = ask(shard_any_rank, mesh, tree)
compare(placed, tree, label="the tree")
for before, after in zip(tree, placed, strict=True):
    can = any(size % 8 == 0 for size in before.shape)
    found = held(mesh, after)
    require(
        found == [before.nbytes // 8 if can else before.nbytes] * 8,
        f"Of a leaf {before.shape} of {before.nbytes:,} bytes each device holds {in_words(found)}; "
        + (
            f"wanted {before.nbytes // 8:,}: eight divides one of its axes."
            if can
            else "none of its axes can be cut, so every device should hold all of it."
        ),
    )

# %% hidden="dp-any-rank" name="another-mesh" points=1
"""Right on a mesh of another size, with another name."""
mesh = devices.mesh((4,), ("shards",))
rng = inputs.rng()
SHAPES = [(), (4,), (6, 4), (8, 5), (2, 3, 12), (7, 2), (20, 3, 1)]
tree = {f"leaf{i}": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(SHAPES)}
placed = ask(shard_any_rank, mesh, tree)
compare(placed, tree, label="the tree")
for name, before in tree.items():
    can = any(size % 4 == 0 for size in before.shape)
    found = held(mesh, placed[name])
    require(
        found == [before.nbytes // 4 if can else before.nbytes] * 4,
        f"On a mesh of four devices, of a leaf {before.shape} of {before.nbytes:,} bytes, each device holds {in_words(found)}; "
        + (
            f"wanted {before.nbytes // 4:,}: four divides one of its axes."
            if can
            else "none of its axes can be cut, so every device should hold all of it."
        ),
    )

# %% [markdown] why="dp-any-rank"
# A rule that looks at shapes only serves parameters, gradients and optimizer states alike, arrays and abstract ones. What it leaves whole is small in most models: odd axes are those of classes and scalars. **Next:** a vocabulary of 50,257 is odd too, and its table is not small. What do people do about it?


# %% wrong="dp-any-rank" because="Looks at axis 0 only: what could be cut along another axis stays whole."
def shard_any_rank(mesh, tree):
    def put(leaf):
        can = leaf.ndim and leaf.shape[0] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, P(mesh.axis_names[0]) if can else P()))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Takes the longest axis, whether it can be cut or not, and gives up when it cannot."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axis = max(range(leaf.ndim), key=lambda axis: leaf.shape[axis], default=None)
        can = axis is not None and leaf.shape[axis] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, P(*[None] * axis, mesh.axis_names[0]) if can else P()))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Asks for the last axis by a constraint under jit: where it cannot be cut, Auto mode says nothing and leaves the leaf whole."
def shard_any_rank(mesh, tree):
    def place(leaf):
        spec = P(*[None] * (leaf.ndim - 1), mesh.axis_names[0]) if leaf.ndim else P()
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

    on_mesh = jax.device_put(tree, NamedSharding(mesh, P()))
    return jax.jit(lambda tree: jax.tree.map(place, tree))(on_mesh)


# %% wrong="dp-any-rank" because="Writes eight for the number of devices: right until the mesh has another size."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % 8 == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Asks whether the number of elements divides, not whether an axis does."
def shard_any_rank(mesh, tree):
    def put(leaf):
        spec = P(mesh.axis_names[0]) if leaf.size % mesh.size == 0 else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Pads the first axis until it divides: every device holds an eighth, but the shapes are others."
def shard_any_rank(mesh, tree):
    def put(leaf):
        leaf = np.atleast_1d(leaf)
        rows = [(0, -leaf.shape[0] % mesh.size)] + [(0, 0)] * (leaf.ndim - 1)
        return jax.device_put(np.pad(leaf, rows), NamedSharding(mesh, P(mesh.axis_names[0])))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Wants an axis to be longer than the number of devices: one of just that size can be cut, too."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size > mesh.size and size % mesh.size == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Takes the tree for a flat dict of arrays."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return {name: put(leaf) for name, leaf in tree.items()}


# %% right="dp-any-rank"
def shard_any_rank(mesh, tree):
    def put(leaf):
        for axis in range(np.ndim(leaf)):
            if leaf.shape[axis] % mesh.size == 0:
                spec = [None] * leaf.ndim
                spec[axis] = mesh.axis_names[0]
                return jax.device_put(leaf, NamedSharding(mesh, P(*spec)))
        return jax.device_put(leaf, NamedSharding(mesh, P()))

    return jax.tree.map(put, tree)


# %% right="dp-any-rank"
def shard_any_rank(mesh, tree):
    def spec(leaf):
        fits = [size if size % mesh.size == 0 else 0 for size in leaf.shape]
        best = fits.index(max(fits)) if any(fits) else None
        return P(*(mesh.axis_names[0] if axis == best else None for axis in range(leaf.ndim)))

    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh, spec(leaf)), tree)
    return jax.jit(lambda tree: tree, out_shardings=shardings)(tree)


# %% [markdown] task="dp-fsdp" stars=2 minutes=20 skills="dp-step,dp-any-rank"
# ## Fully sharded
# **Goal.** Train with the parameters spread over the devices: each of eight devices holds an eighth of every leaf that can be cut along some axis, before the step and after it, and the weights are put together only to be used.
#
# **Signature.** `fsdp_shard(mesh, params, x, y)`: a mesh with the axis `"data"`, of any size, a tree of NumPy arrays of any rank, a batch `x (B, d)`, `y (B, k)`, where the mesh's size divides B. Returns the three on the mesh. `fsdp_step(mesh, loss, params, x, y, rate)`: takes them, and returns `(new params, loss)` after one step of gradient descent on the mean `loss(params, x, y)`.
#
# **Example.** A network of 16 inputs, 24 hidden units and 3 outputs has leaves of 1,536, 96, 288 and 12 bytes. Each device holds 192 + 12 + 36 + 12 = 252 of these 1,932 bytes: only the three output biases cannot be cut.
#
# **Judged.** Values: the step is that of one device with the whole batch. Placement, on eight devices and on four. Of the compiled step, on eight devices and with 48 examples (with very few, a compiler may send activations instead): bytes of parameters per device, given and returned; an eighth of the batch; that the weights are gathered and the gradients of all parameters reduced. **Not judged.** Which axis of a parameter is cut, scratch memory, Auto or Explicit axes.
#
# <details><summary>Hint 1 · a question</summary>
#
# What differs from data parallelism: the loss, the gradient, the update, or only where things lie?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Place the parameters by the rule for leaves of any rank, and the batch as in data parallelism. Then look at your `dp_step` once more.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In Auto mode the step is the one of a single device: the compiler sees that a device needs a whole weight for its own examples, and gathers it; the update happens piece by piece. (Under Explicit axes you say it: reshard the weights to `P()` inside the loss.)
#
# </details>


# %% answer="dp-fsdp"
def fsdp_shard(mesh, params, x, y):
    """params on the mesh with each leaf cut where it can be; the batch x (B, d), y (B, k) split along axis 0."""
    ### BEGIN SOLUTION

    def sharding(leaf):
        possible = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * possible[0], "data") if possible else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)
    ### END SOLUTION


def fsdp_step(mesh, loss, params, x, y, rate):
    """One step of gradient descent on loss(params, x, y). Returns (new params, placed as the old ones; loss)."""
    ### BEGIN SOLUTION
    error, slopes = jax.value_and_grad(loss)(params, x, y)
    moved = jax.tree.map(lambda leaf, slope: leaf - rate * slope, params, slopes)
    return moved, error
    ### END SOLUTION


# %% check="dp-fsdp" name="example" points=1
"""The example: 252 bytes of parameters on each device, before the step and after it."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
params = network(rng, 16, 24, 3)
x, y = rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32)
given = params, x, y
placed = ask(fsdp_shard, mesh, *given)
compare(placed, given, label="what `fsdp_shard` returns")
found = held(mesh, placed[0])
require(found == [252] * 8, f"Each device holds {in_words(found)} of the 1,932 bytes of parameters; wanted 252.")
found = held(mesh, placed[1:])
require(found == [76] * 8, f"Each device holds {in_words(found)} of the batch's 608; an eighth is 76.")
made = program(lambda mesh, params, x, y: fsdp_step(mesh, network_loss, params, x, y, 0.1), mesh, *placed)
returned = made.output_bytes
require(
    returned < 252 + 4 + 16 * 5,
    f"The compiled step returns {returned:,} bytes on each device: new parameters that are cut as they went in have 252, "
    "the loss has 4, and a table of addresses some 40 more.",
)
loss, gradients = by_hand(params, x, y, np.full(8, 1 / y.size))
moved = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
compare(made.run(mesh, *placed), (moved, loss), label="what `fsdp_step` returns")

# %% hidden="dp-fsdp" name="values" points=1
"""The step is that of one device with all parameters and the whole batch, for another loss and rate than the example's."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
batch = lambda: (rng.normal(size=(48, 24)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32))
params, first, second = network(rng, 24, 40, 6), batch(), batch()
placed = ask(fsdp_shard, mesh, params, *first)
compare(placed, (params, *first), label="what `fsdp_shard` returns")


def probe_twice(mesh, params, x, y):
    return fsdp_step(mesh, lambda params, x, y: 2 * network_loss(params, x, y), params, x, y, 0.03)


made = program(probe_twice, mesh, *placed)
for x, y in (first, second):
    loss, gradients = by_hand(params, x, y, np.full(48, 1 / y.size))
    moved = {name: params[name] - np.float32(0.06) * gradients[name] for name in params}
    compare(made.run(mesh, placed[0], x, y), (moved, 2 * loss), label="what `fsdp_step` returns")

# %% hidden="dp-fsdp" name="program" points=2
"""Each device is given and gives back an eighth of the parameters, and works on an eighth of the batch."""
SHAPES = [(10, 24), (12, 20), (3, 3, 16, 8), (7,), (4, 6), ()]
leaves = [np.ones(shape, np.float32) for shape in SHAPES]
for size in (8, 4):
    mesh = devices.mesh((size,), ("data",))
    placed, x, y = ask(fsdp_shard, mesh, leaves, np.ones((8, 64), np.float32), np.ones((8, 16), np.float32))
    require(
        parts_of(x) == [(8 // size, 64)] and parts_of(y) == [(8 // size, 16)],
        f"On {size} devices the parts of x (8, 64) and y (8, 16) have shapes {parts_of(x)} and {parts_of(y)}: the batch is to be "
        "cut along axis 0, which counts the examples.",
    )
    for leaf, array in zip(leaves, placed, strict=True):
        can = any(axis % size == 0 for axis in leaf.shape)
        found, share = held(mesh, array), leaf.nbytes // size if can else leaf.nbytes
        require(
            found == [share] * size,
            f"Of a parameter {leaf.shape} of {leaf.nbytes:,} bytes each of {size} devices holds {in_words(found)}; wanted {share:,}"
            + (f": {size} divides one of its axes." if can else ", as none of its axes can be cut."),
        )
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
params = network(rng, 20, 40, 6)  # the first weights cannot be cut along axis 0
x, y = rng.normal(size=(48, 20)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32)
placed = ask(fsdp_shard, mesh, params, x, y)
compare(placed, (params, x, y), label="what `fsdp_shard` returns")
share, eighth = (20 * 40 + 40 + 40 * 6) * 4 // 8 + 6 * 4, (x.nbytes + y.nbytes) // 8
found = held(mesh, placed[1:])
require(
    found == [eighth] * 8,
    f"Each device holds {in_words(found)} of the batch; an eighth is {eighth:,}. With the whole batch on every device the "
    "parameters' bytes would still look right, and each device would do more than its share of the work.",
)
found = held(mesh, placed[0])
require(
    found == [share] * 8,
    f"Each device holds {in_words(found)} of the parameters; an eighth of what can be cut is {share:,}.",
)
made = program(lambda mesh, params, x, y: fsdp_step(mesh, network_loss, params, x, y, 0.1), mesh, *placed)
require(
    made.argument_bytes <= share + eighth + 16 * 6,
    f"The compiled step takes {made.argument_bytes:,} bytes on each device; parameters and batch are {share + eighth:,}.",
)
require(
    made.output_bytes <= share + 4 + 16 * 5,
    f"The compiled step returns {made.output_bytes:,} bytes on each device; its share of the new parameters is {share:,}. "
    "They have to come back cut as they went in: update the pieces, not what was gathered.",
)
gathered, weights = made.elements("all-gather"), 20 * 40 + 40 * 6
require(
    gathered >= weights,
    f"The compiled step gathers {gathered:,} elements; the two weight matrices that are cut have {weights:,}.",
)
reduced, count = made.elements("all-reduce") + 8 * made.elements("reduce-scatter"), sum(p.size for p in params.values())
require(
    reduced >= count,
    f"The compiled step reduces {reduced:,} elements over the devices; the gradients of all parameters have {count:,}.",
)
loss, gradients = by_hand(params, x, y, np.full(48, 1 / y.size))
moved = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
compare(made.run(mesh, *placed), (moved, loss), label="what `fsdp_step` returns")

# %% [markdown] why="dp-fsdp"
# The same step, placed differently, is another program: gather the weights, compute on your own examples, reduce the gradients, update your own piece. What is stored shrinks to an eighth, what travels grows by the gathers. **Next:** this compiler gathered every weight at once, as scratch. How would you keep a deep model from doing that?


# %% wrong="dp-fsdp" because="Splits the parameters and gives every device the whole batch: the bytes look right, and the compiler splits the work some other way."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    everywhere = NamedSharding(mesh, P())
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), everywhere)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Gathers the parameters, and updates what was gathered: from the first step on every device holds all of them."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    params = jax.lax.with_sharding_constraint(params, NamedSharding(mesh, P()))
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    moved = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
    return jax.lax.with_sharding_constraint(moved, NamedSharding(mesh, P())), value


# %% wrong="dp-fsdp" because="Cuts the matrices and leaves every vector whole: here that is a small loss, with wide layers it is not."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        return NamedSharding(mesh, P("data") if leaf.ndim == 2 else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Plain data parallelism: every device holds all parameters."
def fsdp_shard(mesh, params, x, y):
    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, NamedSharding(mesh, P())), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Cuts every leaf along axis 0, whether eight divides it or not."
def fsdp_shard(mesh, params, x, y):
    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, rows), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Gathers the batch inside the step: it arrives in eighths, and then every device works on all of it."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    x, y = jax.lax.with_sharding_constraint((x, y), NamedSharding(mesh, P()))
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Cuts axis 0 where it divides, and nothing else: (10, 24) could be cut along axis 1."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        return NamedSharding(mesh, P("data") if leaf.ndim and leaf.shape[0] % mesh.size == 0 else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Places the batch by the rule for parameters, along its longest axis: the features may be cut instead of the examples."
def fsdp_shard(mesh, params, x, y):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        axis = max(axes, key=lambda axis: leaf.shape[axis], default=None)
        return jax.device_put(leaf, NamedSharding(mesh, P() if axis is None else P(*[None] * axis, "data")))

    return jax.tree.map(put, (params, x, y))


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Writes eight for the number of devices: right until the mesh has another size."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % 8 == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Writes the rate of the example down."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


# %% wrong="dp-fsdp" because="Differentiates the loss of the example instead of the one that is handed over."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(network_loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Asks for new parameters cut along axis 0, whatever axis the old ones are cut along: a leaf whose first axis does not divide comes back whole."
def _by_shape(mesh, leaf):
    for axis, size in enumerate(leaf.shape):
        if size % mesh.size == 0:
            return NamedSharding(mesh, P(*[None] * axis, "data"))
    return NamedSharding(mesh, P())


def fsdp_shard(mesh, params, x, y):
    shardings = jax.tree.map(lambda leaf: _by_shape(mesh, leaf), params)
    return jax.device_put(params, shardings), *jax.device_put((x, y), NamedSharding(mesh, P("data")))


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    new = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
    cut, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    return jax.tree.map(lambda p: jax.lax.with_sharding_constraint(p, cut if p.ndim else whole), new), value


# %% right="dp-fsdp"
def fsdp_shard(mesh, params, x, y):
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,))

    def spec(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return P(*("data" if axes and axis == axes[-1] else None for axis in range(leaf.ndim)))

    shardings = jax.tree.map(lambda leaf: NamedSharding(explicit, spec(leaf)), params)
    rows = NamedSharding(explicit, P("data", None))
    return jax.device_put(params, shardings), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    whole = NamedSharding(Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,)), P())

    def gathered_loss(params):
        return loss(jax.tree.map(lambda p: jax.reshard(p, whole), params), x, y)

    value, gradients = jax.value_and_grad(gathered_loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% right="dp-fsdp"
def fsdp_sharding(mesh, leaf):
    axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
    axis = max(axes, key=lambda axis: leaf.shape[axis], default=None)
    return NamedSharding(mesh, P() if axis is None else P(*[None] * axis, "data"))


def fsdp_shard(mesh, params, x, y):
    shardings = jax.tree.map(lambda leaf: fsdp_sharding(mesh, leaf), params)
    return jax.device_put((params, x, y), (shardings, NamedSharding(mesh, P("data")), NamedSharding(mesh, P("data"))))


def fsdp_step(mesh, loss, params, x, y, rate):
    # Says every placement out loud: whole while it is used, in pieces when it is stored.
    pieces = jax.tree.map(lambda leaf: fsdp_sharding(mesh, leaf), params)
    whole = lambda params: jax.lax.with_sharding_constraint(params, NamedSharding(mesh, P()))
    value, gradients = jax.value_and_grad(lambda params: loss(whole(params), x, y))(params)
    gradients = jax.lax.with_sharding_constraint(gradients, pieces)
    moved = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
    return jax.lax.with_sharding_constraint(moved, pieces), value


# %% right="dp-fsdp"
def fsdp_spec(mesh, leaf):
    axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
    return P(*[None] * axes[0], "data") if axes else P()


def fsdp_shard(mesh, params, x, y):
    put = lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec))
    return jax.tree.map(lambda leaf: put(leaf, fsdp_spec(mesh, leaf)), params), put(x, P("data")), put(y, P("data"))


def fsdp_step(mesh, loss, params, x, y, rate):
    specs = jax.tree.map(lambda leaf: fsdp_spec(mesh, leaf), params)

    def whole(piece, spec):
        return jax.lax.all_gather(piece, "data", axis=len(spec) - 1, tiled=True) if len(spec) else piece

    def on_one_device(params, x, y):
        def mean_loss(params):
            return jax.lax.pmean(loss(jax.tree.map(whole, params, specs), x, y), "data")

        value, gradients = jax.value_and_grad(mean_loss)(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value

    rows = P("data")
    mapped = jax.shard_map(on_one_device, mesh=mesh, in_specs=(specs, rows, rows), out_specs=(specs, P()))
    return mapped(params, x, y)


# %% [markdown] task="dp-optimizer" stars=3 minutes=25 skills="dp-any-rank,dp-fsdp,09_training,03_jit"
# ## The optimizer's share
# **Goal.** Start an optimizer's state for parameters that are already spread, with every leaf of the state spread too. Adam's state is twice the parameters: left whole, it undoes what FSDP saved.
#
# **Signature.** `sharded_optimizer(mesh, tx, params)`: a mesh with the axis `"data"`, of any size; **any** optax transformation, not only Adam; a tree of parameters on the mesh, cut as in the last exercise. Returns the state that `tx.init(params)` gives, on the mesh, each leaf cut along an axis that the mesh's size divides where there is one, whole where there is none.
#
# **Example.** With Adam and parameters of 1,932 bytes, of which each device holds 252, the state has two such trees and a count: each device holds 252 + 252 + 4 = 508 of its 3,868 bytes.
#
# **Judged.** The state's values, structure and dtypes; its bytes on every device, for Adam, for an optimizer that makes its state from shapes alone and for one whose state has leaves of other shapes than the parameters; the bytes of a compiled training step with it; that `tx.init` is only ever traced, never run on the arrays themselves, and that what it makes is in pieces from the first, not cut later (a model that fills eight devices does not fit on one, not even for a moment). **Not judged.** Which axis is cut.
#
# <details><summary>Hint 1 · a question</summary>
#
# Under `jit`, in Auto mode, where do arrays of zeros go that depend on no argument? Who could say where they should?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.jit(..., out_shardings=...)` takes a tree of shardings like the result. To make that tree you need the state's shapes before there is a state: `jax.eval_shape`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.eval_shape(tx.init, params)` is a state with a ShapeDtypeStruct for each leaf. Map your rule of `shard_any_rank` over it: it looks at shapes only, so the count `()` comes out whole by itself. Then compile `tx.init` with these, and call it.
#
# </details>


# %% answer="dp-optimizer"
def sharded_optimizer(mesh, tx, params):
    """The state tx.init(params) for params on the mesh, each leaf cut along "data" where the mesh's size divides."""
    ### BEGIN SOLUTION

    def sharding(leaf):
        possible = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * possible[0], "data") if possible else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)
    ### END SOLUTION


# %% check="dp-optimizer" name="adam" points=1
"""The example: Adam's state, 508 bytes on each device."""
mesh = devices.mesh((8,), ("data",))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
params = jax.device_put(network(np.random.default_rng(0), 16, 24, 3), {"w1": rows, "b1": rows, "w2": rows, "b2": whole})
state = ask(lambda mesh, params: jax.tree.leaves(sharded_optimizer(mesh, optax.adam(1e-3), params)), mesh, params)
numbers = [np.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(optax.adam(1e-3).init, params))]
compare(state, numbers, label="the leaves of the state")
found = held(mesh, state)
require(
    found == [508] * 8,
    f"Each device holds {in_words(found)} of the state's 3,868; wanted 508 on each: an eighth of every leaf "
    "that can be cut, and all of what cannot, such as Adam's count.",
)

# %% hidden="dp-optimizer" name="any" points=1
"""The state of any optimizer is spread: one that is made from shapes alone, and one with other shapes than the parameters."""


def probe_averaged(mesh, params):
    state = sharded_optimizer(mesh, averaged(0.1), params)
    return str(jax.tree.structure(state)), jax.tree.leaves(state)


def probe_memory(mesh, params):
    state = sharded_optimizer(mesh, optax.scale_by_lbfgs(memory_size=3), params)
    return str(jax.tree.structure(state)), jax.tree.leaves(state)


def judge_state(size, of, found, wanted):
    """Values and dtypes of a state's leaves, and its bytes on each of `size` devices."""
    structure, state = found
    require(
        structure == str(jax.tree.structure(wanted)),
        f"The state of {of} has another structure than `tx.init` gives it.",
    )
    compare(state, jax.tree.leaves(wanted), label=f"the leaves of the state of {of}")
    for leaf in state:
        can = any(axis % size == 0 for axis in leaf.shape)
        on_each, share = held(devices.mesh((size,), ("data",)), leaf), leaf.nbytes // size if can else leaf.nbytes
        require(
            on_each == [share] * size,
            f"Of a leaf {leaf.shape} of the state of {of}, {leaf.nbytes:,} bytes, each of {size} devices holds "
            f"{in_words(on_each)}; wanted {share:,}"
            + (f": {size} divides one of its axes." if can else ", as it cannot be cut."),
        )


mesh = devices.mesh((8,), ("data",))
rows, columns, whole = (NamedSharding(mesh, spec) for spec in (P("data"), P(None, "data"), P()))
numbers = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), network(inputs.rng(), 20, 40, 6))
params = jax.device_put(numbers, {"w1": columns, "b1": rows, "w2": rows, "b2": whole})
zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), numbers)
average = jax.tree.map(lambda leaf: leaf.astype(np.float32), numbers)
wanted = AveragedState(np.zeros((), np.int32), zeros, average)
judge_state(8, "`averaged`", ask(probe_averaged, mesh, params), wanted)

mesh = devices.mesh((4,), ("data",))
rows, columns, whole = (NamedSharding(mesh, spec) for spec in (P("data"), P(None, "data"), P()))
numbers = network(inputs.rng(), 12, 18, 4)
params = jax.device_put(numbers, {"w1": rows, "b1": whole, "w2": columns, "b2": rows})
wanted = jax.device_get(optax.scale_by_lbfgs(memory_size=3).init(numbers))
judge_state(4, "L-BFGS", ask(probe_memory, mesh, params), wanted)

# %% hidden="dp-optimizer" name="step" points=2
"""A training step takes and returns its share of the state, and does what it does on one device."""
mesh = devices.mesh((8,), ("data",))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())


def probe_state(mesh, params):
    return jax.tree.leaves(sharded_optimizer(mesh, averaged(0.1), params))


def probe_step(params, leaves, x, y):
    tx = averaged(0.1)
    state = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(tx.init, params)), leaves)
    params, state, loss = train_step(tx, params, state, x, y)
    return params, jax.tree.leaves(state), loss


rng = inputs.rng()
numbers = network(rng, 24, 40, 6)
params = jax.device_put(numbers, {"w1": rows, "b1": rows, "w2": rows, "b2": whole})
x, y = jax.device_put((rng.normal(size=(48, 24)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32)), rows)
leaves = ask(probe_state, mesh, params)
require(len(leaves) == 9, f"The state of `averaged` has 9 leaves for this network; yours has {len(leaves)}.")
share = (24 * 40 + 40 + 40 * 6) * 4 // 8 + 6 * 4
found = held(mesh, leaves)
require(
    found == [2 * share + 4] * 8,
    f"Each device holds {in_words(found)} of the state of `averaged`; its share is {2 * share + 4:,}, as the parameters' is "
    f"{share:,}.",
)
made = program(probe_step, params, leaves, x, y)
taken, wanted = made.argument_bytes, 3 * share + 4 + 48 * 30 * 4 // 8
require(
    taken <= wanted + 16 * 15,
    f"A compiled training step takes {taken:,} bytes on each device; parameters, state and batch, each in pieces, are {wanted:,}.",
)
returned = made.output_bytes
require(
    returned <= 3 * share + 8 + 16 * 14,
    f"A compiled training step returns {returned:,} bytes on each device; parameters and state in pieces are {3 * share + 4:,}.",
)
loss, gradients = by_hand(numbers, np.asarray(x), np.asarray(y), np.full(48, 1 / y.size))
moved = {name: numbers[name] - np.float32(0.1) * gradients[name] for name in numbers}
average = {name: np.float32(0.9) * numbers[name] + np.float32(0.1) * moved[name] for name in numbers}
state = jax.tree.leaves((np.ones((), np.int32), gradients, average))
compare(made.run(params, leaves, x, y), (moved, state, loss), label="parameters, state and loss after one step")

# %% hidden="dp-optimizer" name="traced" points=1 observed=true
"""`tx.init` is only ever traced, and nothing that it makes is whole on a device first."""


def probe_init(mesh, params):
    seen, rows = [], []
    fresh = np.random.default_rng().integers(1 << 20)  # no cached program: the callback below runs when XLA compiles

    def init(params):
        seen.append(all(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)))
        # Some number of the parameters is in it: a constant alone, the compiler makes anew wherever it is used.
        means = jax.tree.map(
            lambda p: p.mean() + fresh.astype(p.dtype) + jnp.arange(p.size, dtype=p.dtype).reshape(p.shape), params
        )
        note = lambda sharding: rows.append(sharding.shard_shape((24,))[0])
        jax.debug.inspect_array_sharding(means["b1"], callback=note)
        return means

    sharded_optimizer(mesh, optax.GradientTransformation(init, averaged(0.1).update), params)
    return seen, rows


mesh = devices.mesh((8,), ("data",))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
params = jax.device_put(network(inputs.rng(), 16, 24, 3), {"w1": rows, "b1": rows, "w2": rows, "b2": whole})
traced, rows = ask(probe_init, mesh, params)
require(len(traced) > 0, "`tx.init` was never called: the state has to be that of the optimizer that is given.")
require(
    all(traced),
    "`tx.init` was run on the arrays themselves, operation by operation. What it makes from shapes alone then lies whole on "
    "one device, for a moment or for good: compile it, with the shardings of its results.",
)
require(
    24 not in rows,
    "`tx.init` is compiled, and a leaf that it makes from its shape alone is whole on a device, and cut afterwards. Say the "
    "shardings of its results to the program that makes them: to the `jit` of `tx.init`, or inside.",
)

# %% [markdown] why="dp-optimizer"
# Zeros depend on nothing, so no sharding propagates to them: someone has to say where they go, and `out_shardings` says it before the first byte is allocated. The rule needs only shapes, and those `eval_shape` gives for nothing. **Next:** the parameters themselves are born the same way. How would you start a model that fits on no single device?


# %% wrong="dp-optimizer" because="Makes the state from parameters that lie on one device, before anything is spread."
def sharded_optimizer(mesh, tx, params):
    return tx.init(jax.device_get(params))


# %% wrong="dp-optimizer" because="Compiles init and leaves the placing to the compiler: zeros depend on no argument, so in Auto mode they end up whole."
def sharded_optimizer(mesh, tx, params):
    return jax.jit(tx.init)(params)


# %% wrong="dp-optimizer" because="Trusts that what is made from a spread array is spread: true for zeros_like run by itself, not for zeros of a shape."
def sharded_optimizer(mesh, tx, params):
    return tx.init(params)


# %% wrong="dp-optimizer" because="Puts the whole state on every device."
def sharded_optimizer(mesh, tx, params):
    return jax.jit(tx.init, out_shardings=NamedSharding(mesh, P()))(params)


# %% wrong="dp-optimizer" because="Makes the whole state first and spreads it afterwards: what does not fit on one device never gets that far."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    state = tx.init(params)
    return jax.device_put(state, jax.tree.map(sharding, state))


# %% wrong="dp-optimizer" because="Compiles init and spreads what comes out of it: nothing told that program where its results lie, so it makes them whole."
def sharded_optimizer(mesh, tx, params):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return jax.device_put(leaf, NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P()))

    return jax.tree.map(put, jax.jit(tx.init)(params))


# %% wrong="dp-optimizer" because="Places the leaves by device_put under jit, where it places nothing."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    return jax.jit(lambda params: jax.tree.map(lambda leaf: jax.device_put(leaf, sharding(leaf)), tx.init(params)))(
        params
    )


# %% wrong="dp-optimizer" because="Makes zeros of the state's shapes, as Adam's state is zeros: other optimizers start from something else."
def sharded_optimizer(mesh, tx, params):
    def zeros(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        spec = P(*[None] * axes[0], "data") if axes else P()
        return jnp.zeros(leaf.shape, leaf.dtype, device=NamedSharding(mesh, spec))

    return jax.tree.map(zeros, jax.eval_shape(tx.init, params))


# %% wrong="dp-optimizer" because="Places a leaf as the parameter of its shape, else whole: a state may have leaves of shapes that no parameter has."
def sharded_optimizer(mesh, tx, params):
    placed = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(params)}
    shapes = jax.eval_shape(tx.init, params)
    shardings = jax.tree.map(lambda leaf: placed.get(leaf.shape, NamedSharding(mesh, P())), shapes)
    return jax.jit(tx.init, out_shardings=shardings)(params)


# %% wrong="dp-optimizer" because="Writes eight for the number of devices: right until the mesh has another size."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % 8 == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)


# %% wrong="dp-optimizer" because="Looks at the longest axis of a leaf only: where that does not divide, a shorter one may."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        longest = max(range(leaf.ndim), key=lambda axis: leaf.shape[axis], default=None)
        can = longest is not None and leaf.shape[longest] % mesh.size == 0
        return NamedSharding(mesh, P(*[None] * longest, "data") if can else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)


# %% wrong="dp-optimizer" because="Looks at the first two axes of a leaf only: a state may have leaves of more axes than the parameters."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape[:2]) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)


# %% right="dp-optimizer"
def sharded_optimizer(mesh, tx, params):
    @jax.jit
    def init(params):
        def place(leaf):
            axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
            return jax.lax.with_sharding_constraint(
                leaf, NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())
            )

        return jax.tree.map(place, tx.init(params))

    return init(params)


# %% right="dp-optimizer"
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        fits = [size if size % mesh.size == 0 else 0 for size in leaf.shape]
        best = fits.index(max(fits)) if any(fits) else -1
        return NamedSharding(mesh, P(*("data" if axis == best else None for axis in range(leaf.ndim))))

    init = jax.jit(tx.init)
    shardings = jax.tree.map(sharding, init.eval_shape(params))
    return jax.jit(tx.init, out_shardings=shardings).lower(params).compile()(params)


# %% [markdown] task="dp-accumulate" stars=3 minutes=30 skills="dp-step,05_vmap,08_control_flow"
# ## Accumulate, then reduce once
# **Goal.** A new setting: padded sentences. A batch comes as micro-batches, each example has a weight (0 for padding), and the loss is the *weighted mean over the whole batch*. Add up gradients over the micro-batches **on each device**, and reduce them over the devices once, at the end.
#
# **Signature.** `accumulate_once(mesh, loss_sum, params, xs, ys, weights)`: a mesh of eight devices with the axis `"data"`; `params` on every device; `xs (M, B, d)`, `ys (M, B, k)`, `weights (M, B)` are M micro-batches, of which each device holds B/8 examples (axis 1 is split). `loss_sum(params, x, y, weights)` gives the **sum** of the weighted losses of the examples it is given. Returns the gradient, by `params`, of the sum of all weighted losses divided by the sum of all weights.
#
# **Example.** Two micro-batches of 8 with x = 1, for `w = 0` and the loss `Σ weight (w x - y)²`: in the first y = 0, …, 7 with weights 1; in the second y = 10, and only two examples count. The gradient is -2 (28 + 20) / (8 + 2) = -9.6, not the mean (-7 - 20) / 2 of the two micro-batches' gradients.
#
# **Judged.** Values; that a loop of the compiled program (`scan`, `fori_loop`; a Python `for` is unrolled and leaves none) runs over the micro-batches, and no collective is in it; that over the devices the gradients of all parameters are reduced, once, and nothing of that size besides. **Not judged.** Where the result lies.
#
# <details><summary>Hint 1 · a question</summary>
#
# Inside a scan, `jax.grad(loss_sum)` of a micro-batch is *one* gradient: a sum over examples on eight devices, so it must be reduced at once. What shape would an accumulator have that needs no reducing in the loop?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Eight gradients side by side, one for each device: shape `(8, *p.shape)`. Cut the B examples of a micro-batch into `(8, B/8)`, and vmap the gradient over that axis: each of the eight runs needs the examples of one device only.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Reshape to `(M, 8, B/8, ...)`, scan over M with zeros `(8, *p.shape)` as the carry, add the vmapped gradients to it, and after the loop sum over the axis of eight: there the compiler reduces. Divide by the sum of all weights last of all.
#
# </details>


# %% answer="dp-accumulate"
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    """The gradient of (sum of all weighted losses) / (sum of all weights) over M micro-batches (M, B, ...)."""
    ### BEGIN SOLUTION

    def by_device(a):
        """(M, B, ...) -> (M, devices, B / devices, ...): as the examples lie already, so nothing moves."""
        return a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])

    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)
    ### END SOLUTION


# %% check="dp-accumulate" name="example" points=1
"""The example: two micro-batches with ten examples that count, gradient -9.6."""
mesh = devices.mesh((8,), ("data",))
ys = np.stack([np.arange(8), np.full(8, 10)]).astype(np.float32)[:, :, None]
weights = np.stack([np.ones(8), np.arange(8) < 2]).astype(np.float32)
data = jax.device_put((np.ones((2, 8, 1), np.float32), ys, weights), NamedSharding(mesh, P(None, "data")))
params = jax.device_put({"w": np.zeros((1, 1), np.float32)}, NamedSharding(mesh, P()))
made = program(
    lambda mesh, params, xs, ys, weights: accumulate_once(mesh, weighted_line_loss, params, xs, ys, weights),
    mesh,
    params,
    *data,
)
compare(made.run(mesh, params, *data), {"w": np.array([[-9.6]], np.float32)}, label="the gradient")

# %% hidden="dp-accumulate" name="values" points=1
"""The gradient of the weighted mean over everything, when micro-batches and devices have unlike weights."""
mesh = devices.mesh((8,), ("data",))
split = NamedSharding(mesh, P(None, "data"))


def draw():
    rng = inputs.rng()
    weights = rng.uniform(size=(5, 16)) * (rng.uniform(size=(5, 16)) < rng.uniform(0.2, 1, size=(5, 1)))
    data = rng.normal(size=(5, 16, 12)), rng.normal(size=(5, 16, 6)), weights + 0.01
    return tuple(array.astype(np.float32) for array in data)


numbers = network(inputs.rng(), 12, 24, 6)
params, data = jax.device_put(numbers, NamedSharding(mesh, P())), jax.device_put(draw(), split)
made = program(
    lambda mesh, params, xs, ys, weights: accumulate_once(mesh, weighted_network_loss, params, xs, ys, weights),
    mesh,
    params,
    *data,
)
for _ in range(2):
    xs, ys, weights = draw()
    flat = xs.reshape(80, 12), ys.reshape(80, 6), weights.reshape(80) / weights.sum()
    compare(made.run(mesh, params, xs, ys, weights), by_hand(numbers, *flat)[1], label="the gradient")

# %% hidden="dp-accumulate" name="program" points=2
"""A loop over the micro-batches without a collective in it; every gradient is reduced once, after it."""
mesh = devices.mesh((8,), ("data",))
split = NamedSharding(mesh, P(None, "data"))
rng, shapes = inputs.rng(), ((5, 16, 12), (5, 16, 6), (5, 16))
numbers = network(rng, 12, 24, 6)
xs, ys, weights = (rng.uniform(0.1, 1, size=shape).astype(np.float32) for shape in shapes)
params, data = jax.device_put(numbers, NamedSharding(mesh, P())), jax.device_put((xs, ys, weights), split)
made = program(
    lambda mesh, params, xs, ys, weights: accumulate_once(mesh, weighted_network_loss, params, xs, ys, weights),
    mesh,
    params,
    *data,
)
reduced, count = made.elements("all-reduce") + 8 * made.elements("reduce-scatter"), 12 * 24 + 24 + 24 * 6 + 6
require(
    made.loops > 0 or reduced < 2 * count,
    f"The program has no loop and reduces {reduced:,} elements, several times the {count:,} of all gradients: the micro-batches "
    "are written out one by one, each with a reduction. Let a scan run over them.",
)
if made.loops == 0:
    longer = [jax.ShapeDtypeStruct((10, *shape[1:]), np.float32, sharding=split) for shape in shapes]
    grown = program(
        lambda mesh, params, xs, ys, weights: accumulate_once(mesh, weighted_network_loss, params, xs, ys, weights),
        mesh,
        params,
        *longer,
    )
    require(
        grown.operations == made.operations,
        "The program has no loop, and it grows with the number of micro-batches: a Python `for` is unrolled, and leaves no "
        "loop in the program. Let a scan run over the micro-batches.",
    )
    require(
        False,
        "The program has no loop over the micro-batches. Taken all at once they need the memory that they are there to save.",
    )
inside = [c for c in made.collectives if c.in_loop]
require(
    not inside,
    f"In the loop the program has {', '.join(c.kind for c in inside)}, elements in all: {sum(c.elements for c in inside):,}. The "
    "devices talk in every micro-batch. Keep a sum for each device in the loop, of the weights too, and reduce after it.",
)
require(
    reduced >= count,
    f"The program reduces {reduced:,} elements over the devices; the gradients of all parameters have {count:,}.",
)
travels = sum(c.elements for c in made.collectives)
require(
    travels <= count + 64,
    f"What travels between the devices has {travels:,} elements in all; one gradient has {count:,}. Reduce once, and leave "
    "the examples where they lie.",
)
flat = xs.reshape(80, 12), ys.reshape(80, 6), weights.reshape(80) / weights.sum()
compare(made.run(mesh, params, *data), by_hand(numbers, *flat)[1], label="the gradient")

# %% [markdown] why="dp-accumulate"
# A sum over devices that is not taken yet is an axis of eight: as long as it is an axis, adding is local, and the one sum over it is the one all-reduce. Sums also add up over unlike micro-batches, where means do not. **Next:** this carry has eight gradients in all, one a device. With FSDP, where a device holds an eighth of each parameter, what does that cost?


# %% equivalent="dp-accumulate" because="The mesh of this exercise has eight devices, in every check."
# hard-coded size, X.size -> globals().setdefault("first", X.size): return a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
# hard-coded size, X.size -> globals().setdefault("first", X.size): nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)


# %% wrong="dp-accumulate" because="Adds up finished gradients: each micro-batch's is reduced over the devices, so the all-reduce is in the loop."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Averages the means of the micro-batches: an example in a short micro-batch then counts more than one in a long one."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))
    scaled = weights / weights.sum(axis=1, keepdims=True) / weights.shape[0]

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(scaled)))
    return jax.tree.map(lambda g: g.sum(0), total)


# %% wrong="dp-accumulate" because="Takes the gradient of everything at once: right, in the memory that micro-batches were to save."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    total = jax.grad(lambda params: jax.vmap(loss_sum, (None, 0, 0, 0))(params, xs, ys, weights).sum())(params)
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Writes the micro-batches out in a Python loop, with a reduction for each of them."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    total = jax.tree.map(jnp.zeros_like, params)
    for x, y, weight in zip(xs, ys, weights, strict=True):
        total = jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, x, y, weight))
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Writes the micro-batches out in a Python loop: it is unrolled, so the program grows with every micro-batch and has no loop."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(mesh.size, -1, *a.shape[1:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))
    total = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)
    for micro_batch in zip(xs, ys, weights, strict=True):
        total = jax.tree.map(jnp.add, total, gradients(params, *map(by_device, micro_batch)))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)


# %% wrong="dp-accumulate" because="Divides by the number of examples, padding included, instead of by the sum of their weights."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / weights.size, total)


# %% wrong="dp-accumulate" because="Gathers the batch to every device first: then nothing needs reducing, and every device does all the work."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    xs, ys, weights = jax.lax.with_sharding_constraint((xs, ys, weights), NamedSharding(mesh, P()))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Cuts along the micro-batches instead of the devices: examples are sent around before anything is computed."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    flat = lambda a: a.reshape(mesh.size, a.shape[0], -1, *a.shape[2:])
    per_device = lambda a: jax.lax.with_sharding_constraint(
        flat(a).swapaxes(0, 1), NamedSharding(mesh, P(None, "data"))
    )
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (per_device(xs), per_device(ys), per_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)


# %% wrong="dp-accumulate" because="Divides by how many examples count: that is the sum of the weights only where each of them is 0 or 1."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / (weights > 0).sum(), total)


# %% wrong="dp-accumulate" because="Cuts a micro-batch into (B/8, 8) and maps over the last axis: each run has examples of all devices."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], -1, mesh.size, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 1, 1, 1))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)


# %% right="dp-accumulate"
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    everywhere, split = P(), P(None, "data")

    def on_one_device(params, xs, ys, weights):
        mine = jax.tree.map(lambda p: jax.lax.pcast(p, "data", to="varying"), params)

        def add(total, micro_batch):
            return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(mine, *micro_batch)), None

        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, mine), (xs, ys, weights))
        total, weight = jax.lax.psum((total, weights.sum()), "data")
        return jax.tree.map(lambda g: g / weight, total)

    mapped = jax.shard_map(on_one_device, mesh=mesh, in_specs=(everywhere, split, split, split), out_specs=everywhere)
    return mapped(params, xs, ys, weights)


# %% right="dp-accumulate"
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    constrain = lambda a, *spec: jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P(*spec)))
    by_device = lambda a: constrain(a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:]), None, "data")
    copies = jax.tree.map(lambda p: constrain(jnp.broadcast_to(p, (mesh.size, *p.shape)), "data"), params)
    data = (by_device(xs), by_device(ys), by_device(weights))

    def add(i, total):
        micro_batch = jax.tree.map(lambda a: a[i], data)
        return jax.tree.map(jnp.add, total, jax.vmap(jax.grad(loss_sum))(copies, *micro_batch))

    total = jax.lax.fori_loop(0, xs.shape[0], add, jax.tree.map(jnp.zeros_like, copies))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)
