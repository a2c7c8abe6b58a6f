# %% [markdown]
# # 18 · Exercises: data parallelism
# Run the setup. Then fill in the cell of each exercise, run it, and run the checks below it. Hidden checks run when you are graded, and **Judged** states what they examine. Open the hints one at a time, and try to answer the question before you read the nudge.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise. Every mesh has one axis, of type Auto, unless a task states something else.
#
# A compiler may combine the gradients of all parameters in one collective. Therefore the checks count **elements**, not operations. Compilers for accelerators use a reduce-scatter where the CPU's compiler uses an all-reduce and discards most of its result. The checks accept both.

# %% setup
from grader.checks import ask, case, compare, devices, error, inputs, program, require

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

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def line_loss(params, x, y):
    """Mean squared error of a line through the origin: {"w": (1, 1)}, x (B, 1), y (B, 1) -> ()"""
    return jnp.mean((x @ params["w"] - y) ** 2)


def network_loss(params, x, y):
    """Mean squared error of a network with one hidden layer: x (B, d), y (B, k) -> ()"""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


def weighted_line_loss(params, x, y, weights):
    """Weighted SUM of the squared errors of a line: {"w": (1, 1)}, x (B, 1), y (B, 1), weights (B,) -> ()"""
    return jnp.sum(weights * jnp.sum((x @ params["w"] - y) ** 2, axis=1))


def weighted_network_loss(params, x, y, weights):
    """Weighted SUM of the squared errors of the network: x (B, d), y (B, k), weights (B,) -> ()"""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.sum(weights * jnp.sum((hidden @ params["w2"] + params["b2"] - y) ** 2, axis=1))


def network(rng, inputs_, hidden, outputs):
    """Parameters of the network, NumPy float32, from a NumPy generator."""
    draw = lambda *shape: (rng.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)
    return {"w1": draw(inputs_, hidden), "b1": draw(hidden), "w2": draw(hidden, outputs), "b2": draw(outputs)}


def by_hand(params, x, y, weights):
    """The weighted loss and its gradients in NumPy, as a reference for the checks."""
    p = {name: leaf.astype(np.float64) for name, leaf in params.items()}
    hidden = np.tanh(x @ p["w1"] + p["b1"])
    error = hidden @ p["w2"] + p["b2"] - y
    slope = 2 * weights[:, None] * error
    back = slope @ p["w2"].T * (1 - hidden**2)
    gradients = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ slope, "b2": slope.sum(0)}
    return np.float32((weights[:, None] * error**2).sum()), {n: g.astype(np.float32) for n, g in gradients.items()}


def held(mesh, tree):
    """The bytes of a tree of arrays on each device, as a list. Leaves that are not on a device do not count."""
    on_device = defaultdict(int, dict.fromkeys(mesh.devices.flat, 0))
    for leaf in jax.tree.leaves(tree):
        for shard in getattr(leaf, "addressable_shards", ()):
            on_device[shard.device] += shard.data.nbytes
    return list(on_device.values())


def in_words(held_bytes):
    """Text such as `576 bytes` or `from 0 to 4,608 bytes`."""
    low, high = min(held_bytes), max(held_bytes)
    return f"{high:,} bytes" if low == high else f"from {low:,} to {high:,} bytes"


def parts_of(array):
    """The distinct shapes of the shards of an array."""
    return sorted({shard.data.shape for shard in getattr(array, "addressable_shards", ())})


class AveragedState(NamedTuple):
    """The state of `averaged`: a count, and two float32 trees with the structure of the parameters."""

    count: jax.Array
    momentum: dict
    average: dict


def averaged(rate, decay=0.9):
    """An optimizer with momentum, which also keeps a running average of the parameters. Its state is float32."""

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
# **Goal.** Write one step of data-parallel training. Every device holds all parameters and an eighth of the batch, and the gradients are averaged over the devices. Two lines are missing.
#
# **Signature.** `dp_place(mesh, params, x, y)` takes a mesh of eight devices with the axis `"data"`, a tree of NumPy arrays, and a batch `x (B, d)`, `y (B, k)`, where B is a multiple of eight. It returns `(params, x, y)` on the mesh. `dp_step(loss, params, x, y, rate)` takes these, and a `loss(params, x, y)` that is the mean over a batch. It returns `(new params, loss)` after one step of gradient descent. The checks compile it.
#
# **Example.** For `w = 0`, sixteen examples with x = 1 and y = 0, 1, …, 15, and the loss `mean((w x - y)²)`, the gradient is -2 mean(y) = -15. A step with the rate 0.1 gives `w = 1.5`, and returns the loss before the step, 77.5.
#
# **Judged.** The values. Each device gets an eighth of the batch and all parameters. The compiled step reduces every gradient over the devices. **Not judged.** The number of operations, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which axis of `x` counts the examples? Which spec shards this axis along `"data"` and no other axis?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The first missing line is like the line above it, with another spec. In `dp_step`, write what you would write for a single device.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `P("data")` shards axis 0 of an array of any rank. `jax.value_and_grad` of `loss` returns both values that the last line uses. The compiler inserts the reduction because the loss is a mean over a sharded batch.
#
# </details>


# %% answer="dp-step"
def dp_place(mesh, params, x, y):
    """Replicates params on the mesh, and shards the batch x (B, d), y (B, k) along its first axis."""
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
"""The example: each device has two examples and w, and one step gives w = 1.5."""
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
"""A step of a network on eight devices equals the step of one device on the whole batch."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
w, x, y = np.full((1, 1), 2, np.float32), np.ones((16, 1), np.float32), np.arange(16, dtype=np.float32)[:, None]
probe = {"w": w + np.float32(rng.integers(1, 7))}
got = ask(
    lambda p, x, y: dp_step(lambda p, x, y: jnp.mean(jnp.sum(3 * x @ p["w"] + y, axis=1)), p, x, y, 0.5),
    *jax.tree.map(jnp.asarray, (probe, x, y)),
)
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
"""Each device gets an eighth of the batch, and the gradients of all parameters are reduced over the devices."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
params = network(rng, 40, 24, 6)  # more features than examples
x, y = rng.normal(size=(24, 40)).astype(np.float32), rng.normal(size=(24, 6)).astype(np.float32)
placed = ask(dp_place, mesh, params, x, y)
compare(placed, (params, x, y), label="what `dp_place` returns")
found, eighth = held(mesh, placed[1:]), (x.nbytes + y.nbytes) // 8
require(
    found == [eighth] * 8,
    f"Each device holds {in_words(found)} of the batch of 24 examples; an eighth is {eighth:,}. If the batch is not sharded, "
    "every device does all the work, without an error.",
)
for name, array in zip("xy", placed[1:], strict=True):
    require(
        parts_of(array) == [(3, array.shape[1])],
        f"The shards of {name} have the shapes {parts_of(array)}. It is sharded, but not along axis 0, which counts the "
        "examples.",
    )
whole = sum(leaf.nbytes for leaf in params.values())
found = held(mesh, placed[0])
require(
    found == [whole] * 8,
    f"Each device holds {in_words(found)} of the parameters; in data parallelism it holds all {whole:,}.",
)
made = program(lambda params, x, y: dp_step(network_loss, params, x, y, 0.1), *placed)
params = network(rng, 40, 24, 6)  # an answer may store what it has placed
x, y = rng.normal(size=(24, 40)).astype(np.float32), rng.normal(size=(24, 6)).astype(np.float32)
placed = jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), (params, x, y), placed)
reduced = made.elements("all-reduce") + 8 * made.elements("reduce-scatter")
count = sum(leaf.size for leaf in params.values())
require(
    reduced >= count,
    f"The compiled step reduces {reduced:,} elements over the devices; the gradients of all parameters have {count:,}.",
)
loss, gradients = by_hand(params, x, y, np.full(24, 1 / y.size))
moved = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
compare(made.run(*placed), (moved, loss), label="what `dp_step` returns")

# %% [markdown] why="dp-step"
# Nothing in `dp_step` mentions devices. The loss is a mean over a sharded axis, so each device sums over its own examples, and the compiler inserts one all-reduce for the partial sums. **Next:** what would the program look like if `loss` returned the sum over the batch instead?


# %% wrong="dp-step" because="Gives the whole batch to every device. The numbers are right, but each device does all the work, and nothing is left to reduce."
def dp_place(mesh, params, x, y):
    everywhere = NamedSharding(mesh, P())
    return jax.device_put(params, everywhere), *jax.device_put((x, y), everywhere)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Shards the parameters like the batch. That is FSDP, where each step gathers them first, and it fails for an axis that eight does not divide."
def dp_place(mesh, params, x, y):
    split = NamedSharding(mesh, P("data"))
    whole = NamedSharding(mesh, P())
    pick = lambda leaf: split if leaf.shape[0] % mesh.size == 0 else whole
    return jax.device_put(params, jax.tree.map(pick, params)), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Adds up the mean gradients of the devices instead of averaging them, so the step is eight times too long."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    x, y = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1, y.shape[1])
    values, gradients = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g.sum(0), params, gradients), values.mean()


# %% wrong="dp-step" because="Does not average over the devices. The result is what the first device computed from its eighth of the batch."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    x, y = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1, y.shape[1])
    values, gradients = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g[0], params, gradients), values[0]


# %% wrong="dp-step" because="Shards x but not y, so every device gets all targets."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), jax.device_put(x, split), jax.device_put(y, everywhere)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Replicates the batch inside the step, because the mean is over all of it. Then nothing is left to reduce."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    whole = NamedSharding(devices.mesh((8,), ("data",)), P())
    x, y = jax.lax.with_sharding_constraint((x, y), whole)
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Divides a sum over the examples by `x.size`, which is the number of examples only if x has one column."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    one = lambda x, y: jax.value_and_grad(loss)(params, x[None], y[None])
    values, gradients = jax.vmap(one)(x, y)
    return jax.tree.map(lambda p, g: p - rate * g.sum(0) / x.size, params, gradients), values.mean()


# %% wrong="dp-step" because="Differentiates the loss of the example instead of the argument `loss`."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(line_loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Uses the rate of the example instead of the argument `rate`."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


# %% wrong="dp-step" because="Shards each array along its longest axis, which may count the features."
def dp_place(mesh, params, x, y):
    everywhere = NamedSharding(mesh, P())
    split = tuple(NamedSharding(mesh, P(*[None] * int(np.argmax(a.shape)), "data")) for a in (x, y))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    """One step of gradient descent on loss(params, x, y). Returns (new params, loss)."""
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Maps the loss over single rows, but `loss` takes a batch."
def dp_place(mesh, params, x, y):
    everywhere = NamedSharding(mesh, P())
    split = NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    """One step of gradient descent on loss(params, x, y). Returns (new params, loss)."""
    each = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, x, y)
    value, gradients = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), each)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-step" because="Divides the gradients by the number of devices. The gradient of a mean over the whole batch is already right."
def dp_place(mesh, params, x, y):
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.device_put(params, everywhere), *jax.device_put((x, y), split)


def dp_step(loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g / 8, params, gradients), value


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
    # Every device takes its own step, then the parameters are averaged. For gradient descent the result is the same.
    x, y = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1, y.shape[1])

    def local(x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value

    moved, values = jax.vmap(local)(x, y)
    return jax.tree.map(lambda p: p.mean(0), moved), values.mean()


# %% [markdown] task="dp-bytes-per-device" stars=1 minutes=8 skills="06_pytrees,16_sharding"
# ## What does each device hold?
# **Goal.** Compute how many bytes of a model each device will hold, before the model is created.
#
# **Signature.** `bytes_per_device(tree)` takes a tree whose leaves are arrays or `jax.ShapeDtypeStruct`. Each leaf has a `.shape`, a `.dtype`, and a `.sharding` that is a NamedSharding with any mesh and spec. It returns an int, the bytes of all leaves on one device.
#
# **Example.** On eight devices, take a float32 array `(64, 256)` that is sharded along axis 0, and a bfloat16 `jax.ShapeDtypeStruct` `(10,)` that is replicated. One device holds 64 · 256 · 4 / 8 + 10 · 2 = 8,212 bytes. On a 4 x 2 mesh with the axes `"data"` and `"model"`, one device holds 64 · 256 · 4 / 4 = 16,384 bytes of the first array under `P("data")`, because the array is replicated along `"model"`.
#
# **Judged.** The number, for any dtype, rank, mesh and spec. It must also work for a model of terabytes, so nothing may be allocated. **Not judged.** Leaves without a sharding.
#
# <details><summary>Hint 1 · a question</summary>
#
# How do you get the shape of the shard on a device from the shape of the whole array and its sharding?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Lesson 16 used a method of shardings that computes this for any shape, without an array. It is `shard_shape`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Multiply the number of elements of the shard (`math.prod` of its shape, which is 1 for a scalar) by the bytes of one element (`leaf.dtype.itemsize`). Add this up over `jax.tree.leaves`.
#
# </details>


# %% answer="dp-bytes-per-device"
def bytes_per_device(tree):
    """Returns the bytes, an int, that one device holds of a tree of arrays or ShapeDtypeStructs with NamedShardings."""
    ### BEGIN SOLUTION
    pieces = [(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(tree)]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in pieces)
    ### END SOLUTION


# %% check="dp-bytes-per-device" name="example" points=1
"""The example: 8,192 + 20 bytes, and an array that is replicated along one axis of the mesh."""
mesh = devices.mesh((8,), ("data",))
weights = jax.device_put(np.zeros((64, 256), np.float32), NamedSharding(mesh, P("data")))
bias = jax.ShapeDtypeStruct((10,), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
got = ask(bytes_per_device, {"weights": weights, "bias": bias})
require(isinstance(got, int | np.integer), f"`bytes_per_device` returned a {type(got).__name__}; expected an int.")
require(got == 8_212, f"`bytes_per_device` returned {got:,} bytes; expected 8,192 + 20 = 8,212.")
two = NamedSharding(devices.mesh((4, 2), ("data", "model")), P("data"))
got = ask(bytes_per_device, [jax.ShapeDtypeStruct((64, 256), np.float32, sharding=two)])
require(got == 16_384, f"On the 4 x 2 mesh `bytes_per_device` returned {got:,} bytes; expected 65,536 / 4 = 16,384.")

# %% hidden="dp-bytes-per-device" name="values" points=1
"""Right for every dtype and rank, for leaves that are sharded, replicated, or sharded over two axes of a mesh."""
mesh = devices.mesh((4, 2), ("data", "model"))
rng = inputs.rng()
KINDS = {  # rank, spec, and the number of shards
    "a scalar": (0, (), 1),
    "a leaf that is replicated": (2, (), 1),
    "a leaf that is sharded over the larger of two axes of the mesh and replicated along the other": (1, ("data",), 4),
    "a leaf whose axis 1 is sharded over the smaller of two axes of the mesh": (3, (None, "model"), 2),
    "a leaf of which two axes are sharded, each over one axis of the mesh": (4, ("model", None, None, "data"), 8),
    "a leaf of which one axis is sharded over a tuple of two axes of the mesh": (3, (None, None, ("data", "model")), 8),
}
tree, total = [], 0
for kind, (rank, spec, parts) in KINDS.items():
    for dtype in map(np.dtype, (np.float32, jnp.bfloat16, np.int8)):
        shape = tuple(8 * int(n) for n in rng.integers(1, 4, size=rank))
        tree.append(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec))))
        wanted = math.prod(shape) * dtype.itemsize // parts
        total += wanted
        with case(f"for {kind}, with {dtype.itemsize} bytes for an element"):
            got = ask(bytes_per_device, tree[-1:])
            require(isinstance(got, int | np.integer), f"the result is a {type(got).__name__}; expected an int.")
            compare(int(got), wanted, label="the number of bytes")
got = ask(bytes_per_device, {"first": tree[:8], "rest": tuple(tree[8:])})
compare(got, total, label="the number of bytes of a tree of such leaves")

# %% hidden="dp-bytes-per-device" name="abstract" points=1
"""Right for a model of terabytes, which does not fit into memory."""
mesh = devices.mesh((8,), ("data",))
rows = 8 * int(inputs.rng().integers(1 << 17, 1 << 18))
tree = {
    "table": jax.ShapeDtypeStruct((rows, 1 << 20), jnp.float32, sharding=NamedSharding(mesh, P("data"))),
    "norm": jax.ShapeDtypeStruct((1 << 20,), jnp.bfloat16, sharding=NamedSharding(mesh, P())),
    "count": jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, P())),
}
require(
    error(bytes_per_device, tree) not in ("MemoryError", "_ArrayMemoryError", "JaxRuntimeError"),
    "There is not enough memory for a model of terabytes. The function creates arrays, although shapes are enough.",
)
got = ask(bytes_per_device, tree)
require(isinstance(got, int | np.integer), f"`bytes_per_device` returned a {type(got).__name__}; expected an int.")
require(
    got == rows // 8 * (1 << 20) * 4 + (1 << 20) * 2 + 4,
    "The number of bytes is wrong for a model with a sharded table of terabytes and replicated leaves.",
    kind="values",
)

# %% [markdown] why="dp-bytes-per-device"
# A sharding computes the shape of its shards without an array, so you can check a plan for a thousand devices at no cost. **Next:** with its gradient and Adam's two moments, a parameter of b bytes takes 4 b. How many float32 parameters fit on eight devices of 80 GB?


# %% wrong="dp-bytes-per-device" because="Counts the whole array, because `size` and `nbytes` do not change when an array is sharded."
def bytes_per_device(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Divides every leaf by the number of devices, including replicated leaves."
def bytes_per_device(tree):
    return sum(leaf.size * leaf.dtype.itemsize // leaf.sharding.mesh.size for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Divides every sharded leaf by the number of all devices. Along an axis of the mesh that the spec does not name, the leaf is replicated."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        cut = any(leaf.sharding.spec)
        total += leaf.size * leaf.dtype.itemsize // (leaf.sharding.mesh.size if cut else 1)
    return total


# %% wrong="dp-bytes-per-device" because="Assumes four bytes for each element, whatever its dtype."
def bytes_per_device(tree):
    return 4 * sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Reads the shards themselves. A leaf that is only a shape and a dtype has none."
def bytes_per_device(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Uses only the first entry of the spec. A leaf may be sharded along another axis, or over two axes of the mesh."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        spec, sizes = leaf.sharding.spec, leaf.sharding.mesh.shape
        parts = sizes[spec[0]] if len(spec) and spec[0] else 1
        total += leaf.size * leaf.dtype.itemsize // parts
    return total


# %% wrong="dp-bytes-per-device" because="Ignores tuples in a spec. One axis of an array may be sharded over two axes of the mesh."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        sizes = leaf.sharding.mesh.shape
        parts = math.prod(sizes[name] for name in leaf.sharding.spec if isinstance(name, str))
        total += leaf.size * leaf.dtype.itemsize // parts
    return total


# %% wrong="dp-bytes-per-device" because="Creates the arrays and measures the shard on the first device. A model of terabytes cannot be created here."
def bytes_per_device(tree):
    arrays = jax.tree.map(lambda leaf: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding), tree)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(arrays))


# %% wrong="dp-bytes-per-device" because="Multiplies the sizes with `jnp.prod` in int32, which overflows for large leaves."
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


# %% wrong="dp-bytes-per-device" because="Reads the entry i of a spec as the mesh axis i, but it belongs to the array axis i."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        shape, devices_along = list(leaf.shape), leaf.sharding.mesh.devices.shape
        for axis, name in enumerate(leaf.sharding.spec):
            if name is not None:
                shape[axis] //= devices_along[axis]
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


# %% wrong="dp-bytes-per-device" because="Multiplies the shape with np.prod, which is the float 1.0 for a scalar."
def bytes_per_device(tree):
    return sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


# %% wrong="dp-bytes-per-device" because="Reads each entry of the spec as one name. One axis of an array may be sharded over a tuple of mesh axes."
def bytes_per_device(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        sizes = leaf.sharding.mesh.shape
        parts = math.prod(sizes[name] for name in leaf.sharding.spec if name is not None)
        total += math.prod(leaf.shape) * leaf.dtype.itemsize // parts
    return total


# %% wrong="dp-bytes-per-device" because="Uses `jnp.finfo` for the size of an element, which rejects dtypes that are not floating-point numbers."
def bytes_per_device(tree):
    one = lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * jnp.finfo(leaf.dtype).bits // 8
    return sum(map(one, jax.tree.leaves(tree)))


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
# **Goal.** Place a tree on a mesh so that every device holds as little as possible. Shard each leaf along one axis whose size is a multiple of the number of devices. Replicate a leaf only if it has no such axis.
#
# **Signature.** `shard_any_rank(mesh, tree)` takes a mesh with **one** axis of any name and size, and a tree of NumPy arrays of any dtype and any rank, including scalars. It returns the same tree on the mesh.
#
# **Example.** On eight devices, a leaf `(3, 3, 16, 32)` is sharded along axis 2 or 3, and `(10, 24)` along axis 1. The leaves `(10,)`, `(12, 20)` and `()` are replicated. Eight divides the 240 elements of `(12, 20)`, but not 12 or 20. On a mesh of four devices with the axis `"shards"`, `(12, 20)` is sharded.
#
# **Judged.** The bytes of every leaf on every device, and that values, shapes and dtypes do not change. **Not judged.** Which axis you choose if there are several.
#
# <details><summary>Hint 1 · a question</summary>
#
# How do you find an axis that can be sharded, from the shape of a leaf and the number of devices? What is the result for `()`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `P(None, None, "data")` shards axis 2. Build such a spec from a `None` for each axis before the one you found, and then the name. If there is no such axis, use `P()`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `mesh.size` and `mesh.axis_names[0]` instead of constants. Write a function from a leaf to its sharding, map it over the tree, and pass the tree of shardings to `jax.device_put`.
#
# </details>


# %% answer="dp-any-rank"
def shard_any_rank(mesh, tree):
    """Returns the tree on the mesh, each leaf sharded along an axis that the mesh's size divides, else replicated."""
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
        f'Each device holds {in_words(found)} of "{name}" {shapes[name]}, which has {tree[name].nbytes:,}; expected {wanted:,}.',
    )
four = devices.mesh((4,), ("shards",))
found = held(four, ask(shard_any_rank, four, {"odd": tree["odd"]}))
require(found == [240] * 4, f'On the mesh of four each device holds {in_words(found)} of "odd"; expected 240.')

# %% hidden="dp-any-rank" name="bytes" points=1
"""Every leaf that can be sharded is sharded, whatever its rank, and its values do not change."""
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
    (16, 40, 3),
    (4, 2, 6),
    (3, 3, 8, 5),
    (3, 1, 5, 2, 16),
]
dtypes = ["float32", "int8", "float16"] * 4
tree = [rng.integers(-100, 100, size=shape).astype(dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
require(
    not error(shard_any_rank, mesh, tree)
    or error(shard_any_rank, mesh, {f"leaf{i}": leaf for i, leaf in enumerate(tree)}),
    "A dict of arrays works, but a list of arrays does not. The tree may have any structure.",
)
placed = ask(shard_any_rank, mesh, tree)
compare(placed, tree, label="the tree")
for before, after in zip(tree, placed, strict=True):
    can = any(size % 8 == 0 for size in before.shape)
    found = held(mesh, after)
    require(
        found == [before.nbytes // 8 if can else before.nbytes] * 8,
        f"Each device holds {in_words(found)} of a leaf {before.shape} of {before.nbytes:,} bytes; "
        + (
            f"expected {before.nbytes // 8:,}, because eight divides one of its axes."
            if can
            else "none of its axes can be sharded, so every device should hold all of it."
        ),
    )

# %% hidden="dp-any-rank" name="another-mesh" points=1
"""Right on a mesh with another size and another axis name."""
mesh = devices.mesh((4,), ("shards",))
rng = inputs.rng()
SHAPES = [(), (4,), (6, 4), (8, 5), (2, 3, 12), (7, 2), (20, 3, 4)]
tree = {f"leaf{i}": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(SHAPES)}
placed = ask(shard_any_rank, mesh, tree)
compare(placed, tree, label="the tree")
for name, before in tree.items():
    can = any(size % 4 == 0 for size in before.shape)
    found = held(mesh, placed[name])
    require(
        found == [before.nbytes // 4 if can else before.nbytes] * 4,
        f"On a mesh of four devices, each holds {in_words(found)} of a leaf {before.shape} of {before.nbytes:,} bytes; "
        + (
            f"expected {before.nbytes // 4:,}, because four divides one of its axes."
            if can
            else "none of its axes can be sharded, so every device should hold all of it."
        ),
    )

# %% [markdown] why="dp-any-rank"
# A rule that uses only shapes works for parameters, gradients and optimizer states, whether they are arrays or ShapeDtypeStructs. In most models the leaves that it replicates are small, such as scalars and biases of a few classes. **Next:** the embedding table of a vocabulary of 50,257 is not small. What can you do if no axis is a multiple of eight?


# %% wrong="dp-any-rank" because="Considers only axis 0, and replicates leaves that could be sharded along another axis."
def shard_any_rank(mesh, tree):
    def put(leaf):
        can = leaf.ndim and leaf.shape[0] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, P(mesh.axis_names[0]) if can else P()))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Considers only the longest axis, and replicates the leaf if that axis cannot be sharded."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axis = max(range(leaf.ndim), key=lambda axis: leaf.shape[axis], default=None)
        can = axis is not None and leaf.shape[axis] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, P(*[None] * axis, mesh.axis_names[0]) if can else P()))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Considers only the last axis. If that axis cannot be sharded evenly, every device holds the whole leaf."
def shard_any_rank(mesh, tree):
    def place(leaf):
        spec = P(*[None] * (leaf.ndim - 1), mesh.axis_names[0]) if leaf.ndim else P()
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))

    on_mesh = jax.device_put(tree, NamedSharding(mesh, P()))
    return jax.jit(lambda tree: jax.tree.map(place, tree))(on_mesh)


# %% wrong="dp-any-rank" because="Uses eight as the number of devices, which is wrong for a mesh of another size."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % 8 == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Tests whether the number of elements is a multiple of the number of devices, instead of the size of an axis."
def shard_any_rank(mesh, tree):
    def put(leaf):
        spec = P(mesh.axis_names[0]) if leaf.size % mesh.size == 0 else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Pads the first axis to a multiple. Every device holds an eighth, but the shapes have changed."
def shard_any_rank(mesh, tree):
    def put(leaf):
        leaf = np.atleast_1d(leaf)
        rows = [(0, -leaf.shape[0] % mesh.size)] + [(0, 0)] * (leaf.ndim - 1)
        return jax.device_put(np.pad(leaf, rows), NamedSharding(mesh, P(mesh.axis_names[0])))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Requires an axis to be longer than the number of devices. An axis of exactly that size can be sharded too."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size > mesh.size and size % mesh.size == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Assumes that the tree is a flat dict of arrays."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return {name: put(leaf) for name, leaf in tree.items()}


# %% wrong="dp-any-rank" because="Shards every axis whose size is a multiple, but a spec may contain each mesh axis only once."
def shard_any_rank(mesh, tree):
    def put(leaf):
        spec = P(*(mesh.axis_names[0] if size % mesh.size == 0 else None for size in leaf.shape))
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Considers only the last axis. If that axis cannot be sharded evenly, every device holds the whole leaf."
def shard_any_rank(mesh, tree):
    def put(leaf):
        can = leaf.ndim and leaf.shape[-1] % mesh.size == 0
        spec = P(*[None] * (leaf.ndim - 1), mesh.axis_names[0]) if can else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Replicates small leaves, although one of their axes can be sharded."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes and leaf.size >= 128 else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


# %% wrong="dp-any-rank" because="Converts every leaf to float32, but dtypes should not change."
def shard_any_rank(mesh, tree):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        spec = P(*[None] * axes[0], mesh.axis_names[0]) if axes else P()
        return jax.device_put(jnp.asarray(leaf, jnp.float32), NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


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
# **Goal.** Write one step of training with sharded parameters. Before and after the step, each of eight devices holds an eighth of every leaf that has an axis to shard. The weights are gathered only while they are used.
#
# **Signature.** `fsdp_shard(mesh, params, x, y)` takes a mesh of any size with the axis `"data"`, a tree of NumPy arrays of any rank, and a batch `x (B, d)`, `y (B, k)`, where B is a multiple of the mesh's size. It returns `(params, x, y)` on the mesh. `fsdp_step(mesh, loss, params, x, y, rate)` takes these, and returns `(new params, loss)` after one step of gradient descent on the mean `loss(params, x, y)`.
#
# **Example.** A network with 16 inputs, 24 hidden units and 3 outputs has leaves of 1,536, 96, 288 and 12 bytes. Each device holds 192 + 12 + 36 + 12 = 252 of these 1,932 bytes. Only the three output biases cannot be sharded.
#
# **Judged.** The values, which are those of one device with the whole batch. The placement, on eight devices and on four. The compiled step on eight devices with 48 examples. It takes an eighth of the batch, takes and returns sharded parameters, gathers the weights, and reduces the gradients of all parameters. (With very few examples, a compiler may communicate activations instead.) **Not judged.** Which axis of a parameter is sharded, the scratch memory, and whether the axes are Auto or Explicit.
#
# <details><summary>Hint 1 · a question</summary>
#
# What differs from data parallelism? Is it the loss, the gradient, the update, or only the placement?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Place the parameters by the rule for leaves of any rank, and the batch as in data parallelism. Then look at your `dp_step` again.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In Auto mode, the step is the same as for a single device. The compiler gathers each weight, because a device needs all of it for its own examples, and each device updates its own shards. (On Explicit axes, reshard the weights to `P()` inside the loss.)
#
# </details>


# %% answer="dp-fsdp"
def fsdp_shard(mesh, params, x, y):
    """Shards each leaf of params that can be sharded, and the batch x (B, d), y (B, k) along axis 0."""
    ### BEGIN SOLUTION

    def sharding(leaf):
        possible = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * possible[0], "data") if possible else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)
    ### END SOLUTION


def fsdp_step(mesh, loss, params, x, y, rate):
    """One step of gradient descent on loss(params, x, y). Returns (new params with the old shardings, loss)."""
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
require(found == [252] * 8, f"Each device holds {in_words(found)} of the 1,932 bytes of parameters; expected 252.")
found = held(mesh, placed[1:])
require(found == [76] * 8, f"Each device holds {in_words(found)} of the batch's 608; an eighth is 76.")
made = program(lambda mesh, params, x, y: fsdp_step(mesh, network_loss, params, x, y, 0.1), mesh, *placed)
returned = made.output_bytes
require(
    returned < 252 + 4 + 16 * 5,
    f"The compiled step returns {returned:,} bytes on each device. New parameters with the shardings of the old ones have 252, "
    "the loss has 4, and a table of addresses has about 40.",
)
params = network(rng, 16, 24, 3)
placed = jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), (params, x, y), placed)
loss, gradients = by_hand(params, x, y, np.full(8, 1 / y.size))
moved = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
compare(made.run(mesh, *placed), (moved, loss), label="what `fsdp_step` returns for other parameters")

# %% hidden="dp-fsdp" name="values" points=1
"""The step equals that of one device with all parameters and the whole batch, for another loss and another rate."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
batch = lambda: (rng.normal(size=(48, 24)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32))
params, first, second = network(rng, 24, 40, 6), batch(), batch()
placed = ask(fsdp_shard, mesh, params, *first)
compare(placed, (params, *first), label="what `fsdp_shard` returns")


def probe_twice(mesh, params, x, y):
    return fsdp_step(mesh, lambda params, x, y: 300 * network_loss(params, x, y), params, x, y, 0.03)


made = program(probe_twice, mesh, *placed)
for x, y in (first, second):
    loss, gradients = by_hand(params, x, y, np.full(48, 1 / y.size))
    moved = {name: params[name] - np.float32(9) * gradients[name] for name in params}
    compare(made.run(mesh, placed[0], x, y), (moved, 300 * loss), label="what `fsdp_step` returns")

# %% hidden="dp-fsdp" name="program" points=2
"""The step takes and returns an eighth of the parameters on each device, which works on an eighth of the batch."""
SHAPES = [(10, 24), (12, 20), (3, 3, 16, 8), (7,), (4, 6), ()]
leaves = [np.ones(shape, np.float32) for shape in SHAPES]
for size in (8, 4):
    mesh = devices.mesh((size,), ("data",))
    placed, x, y = ask(fsdp_shard, mesh, leaves, np.ones((8, 64), np.float32), np.ones((8, 16), np.float32))
    require(
        parts_of(x) == [(8 // size, 64)] and parts_of(y) == [(8 // size, 16)],
        f"On {size} devices the shards of x (8, 64) and y (8, 16) have the shapes {parts_of(x)} and {parts_of(y)}. The batch "
        "should be sharded along axis 0, which counts the examples.",
    )
    for leaf, array in zip(leaves, placed, strict=True):
        can = any(axis % size == 0 for axis in leaf.shape)
        found, share = held(mesh, array), leaf.nbytes // size if can else leaf.nbytes
        require(
            found == [share] * size,
            f"Each of {size} devices holds {in_words(found)} of a parameter {leaf.shape} of {leaf.nbytes:,} bytes; expected {share:,}"
            + (f": {size} divides one of its axes." if can else ", because none of its axes can be sharded."),
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
    f"Each device holds {in_words(found)} of the batch; an eighth is {eighth:,}. With the whole batch on every device, the "
    "bytes of the parameters are still right, but each device does more than its share of the work.",
)
found = held(mesh, placed[0])
require(
    found == [share] * 8,
    f"Each device holds {in_words(found)} of the parameters; with an eighth of every leaf that can be sharded it is {share:,}.",
)
made = program(lambda mesh, params, x, y: fsdp_step(mesh, network_loss, params, x, y, 0.1), mesh, *placed)
params = network(rng, 20, 40, 6)  # an answer may store what it has placed
x, y = rng.normal(size=(48, 20)).astype(np.float32), rng.normal(size=(48, 6)).astype(np.float32)
placed = jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), (params, x, y), placed)
require(
    made.argument_bytes <= share + eighth + 16 * 6,
    f"The compiled step takes {made.argument_bytes:,} bytes on each device; parameters and batch have {share + eighth:,}.",
)
require(
    made.output_bytes <= share + 4 + 16 * 5,
    f"The compiled step returns {made.output_bytes:,} bytes on each device; its share of the new parameters is {share:,}. "
    "The new parameters need the shardings of the old ones. Update the shards, not the gathered weights.",
)
gathered, weights = made.elements("all-gather"), 20 * 40 + 40 * 6
require(
    gathered >= weights,
    f"The compiled step gathers {gathered:,} elements; the two sharded weight matrices have {weights:,}.",
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
# With another placement, the same step compiles to another program. Each device gathers the weights, computes on its own examples, reduces the gradients with the others, and updates its own shards. The stored bytes shrink to an eighth, and the all-gathers are added to the communication. **Next:** the CPU's compiler keeps all gathered weights at the same time. How can a deep model avoid this?


# %% wrong="dp-fsdp" because="Shards the parameters, but gives the whole batch to every device. The bytes of the parameters are right, but the compiler has to partition the work in another way."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    everywhere = NamedSharding(mesh, P())
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), everywhere)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Updates the gathered parameters instead of the shards, so after the first step every device holds all of them."
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


# %% wrong="dp-fsdp" because="Shards the matrices but replicates every vector. This wastes memory, especially with wide layers."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        return NamedSharding(mesh, P("data") if leaf.ndim == 2 else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="This is data parallelism, where every device holds all parameters."
def fsdp_shard(mesh, params, x, y):
    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, NamedSharding(mesh, P())), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Shards every leaf along axis 0, whether or not eight divides its size."
def fsdp_shard(mesh, params, x, y):
    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, rows), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Gathers the batch inside the step, so that every device works on all of it."
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


# %% wrong="dp-fsdp" because="Considers only axis 0. A leaf of shape (10, 24) can be sharded along axis 1."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        return NamedSharding(mesh, P("data") if leaf.ndim and leaf.shape[0] % mesh.size == 0 else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Places the batch by a rule for parameters, along its longest axis. That may be the axis of the features instead of the examples."
def fsdp_shard(mesh, params, x, y):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        axis = max(axes, key=lambda axis: leaf.shape[axis], default=None)
        return jax.device_put(leaf, NamedSharding(mesh, P() if axis is None else P(*[None] * axis, "data")))

    return jax.tree.map(put, (params, x, y))


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Uses eight as the number of devices, which is wrong for a mesh of another size."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % 8 == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value


# %% wrong="dp-fsdp" because="Uses the rate of the example instead of the argument `rate`."
def fsdp_shard(mesh, params, x, y):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    rows = NamedSharding(mesh, P("data"))
    return jax.device_put(params, jax.tree.map(sharding, params)), *jax.device_put((x, y), rows)


def fsdp_step(mesh, loss, params, x, y, rate):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


# %% wrong="dp-fsdp" because="Differentiates the loss of the example instead of the argument `loss`."
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
    # States every placement: replicated while it is used, sharded while it is stored.
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
# *Needs: Deeper: creating the optimizer's state in shards.*
#
# **Goal.** Create an optimizer's state in shards, for parameters that are already sharded. Adam's state is twice as large as the parameters, so a state that is not sharded takes most of the memory that FSDP should save.
#
# **Signature.** `sharded_optimizer(mesh, tx, params)` takes a mesh of any size with the axis `"data"`, **any** optax transformation, and a tree of parameters on the mesh, sharded as in the last exercise. It returns the state that `tx.init(params)` returns, on the mesh. Each leaf is sharded along an axis whose size is a multiple of the mesh's size, or replicated if it has no such axis.
#
# **Example.** For parameters of 1,932 bytes, of which each device holds 252, Adam's state has two trees of this size and a count. Each device holds 252 + 252 + 4 = 508 of its 3,868 bytes.
#
# **Judged.** Values, structure and dtypes of the state. Its bytes on every device, for Adam, for an optimizer that creates its state from shapes alone, and for one whose state has leaves of other shapes than the parameters. The bytes of a compiled training step with it. `tx.init` is only traced and never runs on the arrays, and no array that can be sharded is whole on a device, not even temporarily. (A model that fills eight devices does not fit on one.) **Not judged.** Which axis is sharded.
#
# <details><summary>Hint 1 · a question</summary>
#
# Under `jit` in Auto mode, where are zeros placed that depend on no argument? Which argument of `jit` can change this?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.jit(..., out_shardings=...)` takes a tree of shardings with the structure of the result. To build that tree, you need the shapes of the state before the state exists. `jax.eval_shape` returns them.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.eval_shape(tx.init, params)` returns a state with a ShapeDtypeStruct for each leaf. Map your rule from `shard_any_rank` over it. It replicates the count `()`, because it uses only shapes. Then compile `tx.init` with these shardings, and call it.
#
# </details>


# %% answer="dp-optimizer"
def sharded_optimizer(mesh, tx, params):
    """Returns tx.init(params) on the mesh, each leaf sharded along "data" if the mesh's size divides one of its axes."""
    ### BEGIN SOLUTION

    def sharding(leaf):
        possible = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * possible[0], "data") if possible else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)
    ### END SOLUTION


# %% check="dp-optimizer" name="adam" points=1
"""The example: each device holds 508 bytes of Adam's state."""
mesh = devices.mesh((8,), ("data",))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
params = jax.device_put(network(np.random.default_rng(0), 16, 24, 3), {"w1": rows, "b1": rows, "w2": rows, "b2": whole})
state = ask(lambda mesh, params: jax.tree.leaves(sharded_optimizer(mesh, optax.adam(1e-3), params)), mesh, params)
numbers = [np.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(optax.adam(1e-3).init, params))]
compare(state, numbers, label="the leaves of the state")
found = held(mesh, state)
require(
    found == [508] * 8,
    f"Each device holds {in_words(found)} of the state's 3,868; expected 508 on each, which is an eighth of every leaf "
    "that can be sharded, and all of the other leaves, such as Adam's count.",
)

# %% hidden="dp-optimizer" name="any" points=1
"""The state of any optimizer is sharded, also if it is created from shapes alone or has other shapes than the parameters."""


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
        f"The state of {of} does not have the structure that `tx.init` returns.",
    )
    compare(state, jax.tree.leaves(wanted), label=f"the leaves of the state of {of}")
    for leaf in state:
        can = any(axis % size == 0 for axis in leaf.shape)
        on_each, share = held(devices.mesh((size,), ("data",)), leaf), leaf.nbytes // size if can else leaf.nbytes
        require(
            on_each == [share] * size,
            f"Each of {size} devices holds {in_words(on_each)} of a leaf {leaf.shape} of the state of {of}, which has "
            f"{leaf.nbytes:,}; expected {share:,}"
            + (f": {size} divides one of its axes." if can else ", because it cannot be sharded."),
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
"""A training step takes and returns the sharded state, and computes the same as on one device."""
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
    f"Each device holds {in_words(found)} of the state of `averaged`; its share is {2 * share + 4:,}, because its share of "
    f"the parameters is {share:,}.",
)
made = program(probe_step, params, leaves, x, y)
taken, wanted = made.argument_bytes, 3 * share + 4 + 48 * 30 * 4 // 8
require(
    taken <= wanted + 16 * 15,
    f"A compiled training step takes {taken:,} bytes on each device; sharded parameters, state and batch have {wanted:,}.",
)
returned = made.output_bytes
require(
    returned <= 3 * share + 8 + 16 * 14,
    f"A compiled training step returns {returned:,} bytes on each device; sharded parameters and state have {3 * share + 4:,}.",
)
loss, gradients = by_hand(numbers, np.asarray(x), np.asarray(y), np.full(48, 1 / y.size))
moved = {name: numbers[name] - np.float32(0.1) * gradients[name] for name in numbers}
average = {name: np.float32(0.9) * numbers[name] + np.float32(0.1) * moved[name] for name in numbers}
state = jax.tree.leaves((np.ones((), np.int32), gradients, average))
compare(made.run(params, leaves, x, y), (moved, state, loss), label="parameters, state and loss after one step")

# %% hidden="dp-optimizer" name="traced" points=1 observed=true
"""`tx.init` is only traced, and no array that it creates is whole on a device at first."""


def probe_init(mesh, params):
    seen, rows = [], []
    fresh = np.random.default_rng().integers(1 << 20)  # no cached program: the callback below runs when XLA compiles

    def init(params):
        seen.append(all(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)))
        # It depends on the parameters, because the compiler computes a constant again wherever it is used.
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
require(len(traced) > 0, "`tx.init` was never called. The state has to be that of the optimizer `tx`.")
require(
    all(traced),
    "`tx.init` ran on the arrays, operation by operation. Arrays that it creates from shapes alone are then whole on one "
    "device, at least temporarily. Compile it with the shardings of its results.",
)
require(
    24 not in rows,
    "`tx.init` is compiled, but a leaf that it creates from its shape alone is whole on a device, and sharded afterwards. State "
    "the shardings in the program that creates the leaves, in the `jit` of `tx.init` or inside.",
)

# %% [markdown] why="dp-optimizer"
# Zeros depend on no argument, so no sharding propagates to them. `out_shardings` states their placement before the first byte is allocated. The rule needs only shapes, and `eval_shape` returns them without allocating anything. **Next:** how would you create the parameters of a model that does not fit on a single device?


# %% wrong="dp-optimizer" because="Creates the state from unsharded parameters, so it is whole on one device."
def sharded_optimizer(mesh, tx, params):
    return tx.init(jax.device_get(params))


# %% wrong="dp-optimizer" because="Compiles init without shardings. Zeros depend on no argument, so in Auto mode they are whole."
def sharded_optimizer(mesh, tx, params):
    return jax.jit(tx.init)(params)


# %% wrong="dp-optimizer" because="Assumes that arrays created from a sharded array are sharded. That holds for `zeros_like` outside `jit`, but not for `zeros` with a shape."
def sharded_optimizer(mesh, tx, params):
    return tx.init(params)


# %% wrong="dp-optimizer" because="Replicates the whole state on every device."
def sharded_optimizer(mesh, tx, params):
    return jax.jit(tx.init, out_shardings=NamedSharding(mesh, P()))(params)


# %% wrong="dp-optimizer" because="Creates the whole state first and shards it afterwards, which fails if the state does not fit on one device."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    state = tx.init(params)
    return jax.device_put(state, jax.tree.map(sharding, state))


# %% wrong="dp-optimizer" because="Compiles init without shardings and shards its results afterwards. The compiled program creates them whole."
def sharded_optimizer(mesh, tx, params):
    def put(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return jax.device_put(leaf, NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P()))

    return jax.tree.map(put, jax.jit(tx.init)(params))


# %% wrong="dp-optimizer" because="Uses device_put under jit, where it has no effect on the sharding."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    return jax.jit(lambda params: jax.tree.map(lambda leaf: jax.device_put(leaf, sharding(leaf)), tx.init(params)))(
        params
    )


# %% wrong="dp-optimizer" because="Creates zeros, because Adam's state is zeros. Other optimizers start from other values."
def sharded_optimizer(mesh, tx, params):
    def zeros(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % mesh.size == 0]
        spec = P(*[None] * axes[0], "data") if axes else P()
        return jnp.zeros(leaf.shape, leaf.dtype, device=NamedSharding(mesh, spec))

    return jax.tree.map(zeros, jax.eval_shape(tx.init, params))


# %% wrong="dp-optimizer" because="Uses the sharding of a parameter of the same shape. A state may have leaves of shapes that no parameter has."
def sharded_optimizer(mesh, tx, params):
    placed = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(params)}
    shapes = jax.eval_shape(tx.init, params)
    shardings = jax.tree.map(lambda leaf: placed.get(leaf.shape, NamedSharding(mesh, P())), shapes)
    return jax.jit(tx.init, out_shardings=shardings)(params)


# %% wrong="dp-optimizer" because="Uses eight as the number of devices, which is wrong for a mesh of another size."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        axes = [axis for axis, size in enumerate(leaf.shape) if size % 8 == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "data") if axes else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)


# %% wrong="dp-optimizer" because="Considers only the longest axis of a leaf. A shorter axis may be a multiple of the mesh's size."
def sharded_optimizer(mesh, tx, params):
    def sharding(leaf):
        longest = max(range(leaf.ndim), key=lambda axis: leaf.shape[axis], default=None)
        can = longest is not None and leaf.shape[longest] % mesh.size == 0
        return NamedSharding(mesh, P(*[None] * longest, "data") if can else P())

    shapes = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=jax.tree.map(sharding, shapes))(params)


# %% wrong="dp-optimizer" because="Considers only the first two axes of a leaf. A state may have leaves with more axes than the parameters."
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
# *Needs: Deeper: accumulating gradients.*
#
# **Goal.** The examples are now padded sentences. A batch is divided into micro-batches, each example has a weight (0 for padding), and the loss is the *weighted mean over the whole batch*. Add up the gradients of the micro-batches **on each device**, and reduce the sums over the devices once, at the end.
#
# **Signature.** `accumulate_once(mesh, loss_sum, params, xs, ys, weights)` takes a mesh of eight devices with the axis `"data"`, replicated `params`, and M micro-batches `xs (M, B, d)`, `ys (M, B, k)`, `weights (M, B)`. These are sharded along axis 1, so each device holds B/8 examples of every micro-batch. `loss_sum(params, x, y, weights)` returns the **sum** of the weighted losses of its examples. The result is the gradient with respect to `params` of the sum of all weighted losses divided by the sum of all weights.
#
# **Example.** Take two micro-batches of 8 examples with x = 1, the parameter `w = 0`, and the loss `Σ weight (w x - y)²`. The first micro-batch has y = 0, …, 7 and weights 1. The second has y = 10, and only two of its weights are 1. The gradient is -2 (28 + 20) / (8 + 2) = -9.6. The mean of the two micro-batches' gradients would be (-7 - 20) / 2 = -13.5, which is wrong.
#
# **Judged.** The values. The compiled program has a loop over the micro-batches (`scan` or `fori_loop`, because a Python `for` is unrolled), and no collective inside it. Each iteration processes one micro-batch, or a few: outside the loop, the program neither computes nor stores the gradients of many micro-batches at once. (The check limits the largest array to half of these gradients, and the operations with one iteration of each loop to a third of all. Programs for GPUs do not state the operations of products.) The gradients of all parameters are reduced over the devices once, and there is no other communication of that size. **Not judged.** The placement of the result.
#
# <details><summary>Hint 1 · a question</summary>
#
# Inside a scan, `jax.grad(loss_sum)` of a micro-batch is *one* gradient, a sum over examples on eight devices. So it is reduced in every iteration. Which shape can an accumulator have that needs no reduction in the loop?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# It can have the shape `(8, *p.shape)`, with one gradient for each device. Reshape the B examples of a micro-batch to `(8, B/8)`, and vmap the gradient over the first axis. Each of the eight gradients then needs only the examples of one device.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Reshape to `(M, 8, B/8, ...)`, and scan over M with zeros `(8, *p.shape)` as the initial carry. Add the vmapped gradients to the carry. After the loop, sum over the axis of size eight, where the compiler inserts the reduction. At the end, divide by the sum of all weights.
#
# </details>


# %% answer="dp-accumulate"
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    """Returns the gradient of (sum of all weighted losses) / (sum of all weights) over M micro-batches (M, B, ...)."""
    ### BEGIN SOLUTION

    def by_device(a):
        """(M, B, ...) -> (M, devices, B / devices, ...), which leaves every example on its device."""
        return a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])

    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)
    ### END SOLUTION


# %% check="dp-accumulate" name="example" points=1
"""The example: two micro-batches with ten examples of weight 1, and the gradient -9.6."""
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
"""The gradient of the weighted mean over all examples, if the weights differ between micro-batches and devices."""
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
"""A loop over the micro-batches contains no collective, and every gradient is reduced once, after the loop."""
mesh = devices.mesh((8,), ("data",))
split = NamedSharding(mesh, P(None, "data"))
rng, M, B, d, h, k = inputs.rng(), 32, 16, 48, 64, 6
shapes = (M, B, d), (M, B, k), (M, B)
numbers = network(rng, d, h, k)
xs, ys, weights = (rng.uniform(0.1, 1, size=shape).astype(np.float32) for shape in shapes)
params, data = jax.device_put(numbers, NamedSharding(mesh, P())), jax.device_put((xs, ys, weights), split)
made = program(
    lambda mesh, params, xs, ys, weights: accumulate_once(mesh, weighted_network_loss, params, xs, ys, weights),
    mesh,
    params,
    *data,
)
reduced, count = made.elements("all-reduce") + 8 * made.elements("reduce-scatter"), d * h + h + h * k + k
require(
    made.loops > 0 or reduced < 2 * count,
    f"The program has no loop and reduces {reduced:,} elements, several times the {count:,} of all gradients. The loop over the "
    "micro-batches is unrolled, with a reduction for each of them. Use a scan.",
)
if made.loops == 0:
    fewer = [jax.ShapeDtypeStruct((8, *shape[1:]), np.float32, sharding=split) for shape in shapes]
    small = program(
        lambda mesh, params, xs, ys, weights: accumulate_once(mesh, weighted_network_loss, params, xs, ys, weights),
        mesh,
        params,
        *fewer,
    )
    require(
        small.operations == made.operations,
        "The program has no loop, and it grows with the number of micro-batches, because a Python `for` is unrolled. "
        "Use a scan over the micro-batches.",
    )
    require(
        False,
        "The program has no loop over the micro-batches. Processed all at once, they need the memory that they should save.",
    )
require(
    made.intermediates < M * count / 2,
    f"For {M} micro-batches, the program has an array of {made.intermediates:,} elements. One gradient has {count:,}. Add the "
    "gradient of each micro-batch to the sum in the loop.",
)
work = 6 * M * B / 8 * (d * h + h * k)  # of one device, with three products for each weight
if made.flops:
    require(
        made.flops <= work / 3,
        "The program processes many micro-batches at once. Compute the gradient of one micro-batch in each iteration of the "
        "loop.",
    )
inside = [c for c in made.collectives if c.in_loop]
require(
    not inside,
    f"The loop contains {', '.join(c.kind for c in inside)} with {sum(c.elements for c in inside):,} elements in all. The devices "
    "communicate for every micro-batch. In the loop, keep a sum for each device, of the weights too. Reduce after the loop.",
)
require(
    reduced >= count,
    f"The program reduces {reduced:,} elements over the devices; the gradients of all parameters have {count:,}.",
)
travels = sum(c.elements for c in made.collectives)
require(
    travels <= count + 64,
    f"The devices communicate {travels:,} elements in all; one gradient has {count:,}. Reduce once, and leave the examples on "
    "their devices.",
)
flat = xs.reshape(M * B, d), ys.reshape(M * B, k), weights.ravel() / weights.sum()
compare(made.run(mesh, params, *data), by_hand(numbers, *flat)[1], label="the gradient")

# %% [markdown] why="dp-accumulate"
# The axis of size eight stores a partial sum for each device, so additions in the loop are local. The sum over this axis, after the loop, becomes the only all-reduce. Sums can be added up over micro-batches of different sizes, and means cannot. **Next:** this carry has one whole gradient on each device. What does that cost with FSDP, where a device holds an eighth of each parameter?


# %% equivalent="dp-accumulate" because="The mesh of this exercise has eight devices in every check."
# hard-coded size, X.size -> globals().setdefault("first", X.size): return a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
# hard-coded size, X.size -> globals().setdefault("first", X.size): nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)


# %% wrong="dp-accumulate" because="Adds up complete gradients. The gradient of each micro-batch is reduced over the devices, so the all-reduce is inside the loop."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Averages the means of the micro-batches, so an example in a micro-batch with little weight counts more than others."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))
    scaled = weights / weights.sum(axis=1, keepdims=True) / weights.shape[0]

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(scaled)))
    return jax.tree.map(lambda g: g.sum(0), total)


# %% wrong="dp-accumulate" because="Computes the gradient of all micro-batches at once. It is right, but it needs the memory that micro-batches should save."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    total = jax.grad(lambda params: jax.vmap(loss_sum, (None, 0, 0, 0))(params, xs, ys, weights).sum())(params)
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Computes the gradients of all micro-batches at once, and the loop only adds them. They need the memory that micro-batches should save."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0)), in_axes=(None, 0, 0, 0))
    each = gradients(params, by_device(xs), by_device(ys), by_device(weights))
    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)
    total, _ = jax.lax.scan(lambda total, one: (jax.tree.map(jnp.add, total, one), None), nothing, each)
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)


# %% wrong="dp-accumulate" because="Computes the gradients of all micro-batches at once, and the loop only adds them. They need the memory that micro-batches should save."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    def on_one_device(params, xs, ys, weights):
        mine = jax.lax.pcast(params, "data", to="varying")
        each = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))(mine, xs, ys, weights)
        add = lambda total, one: (jax.tree.map(jnp.add, total, one), None)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, mine), each)
        total, weight = jax.lax.psum((total, weights.sum()), "data")
        return jax.tree.map(lambda g: g / weight, total)

    specs = P(), *[P(None, "data")] * 3
    return jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=P())(params, xs, ys, weights)


# %% wrong="dp-accumulate" because="Processes all micro-batches at once, beside a loop that only counts."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    total = jax.grad(lambda params: jax.vmap(loss_sum, (None, 0, 0, 0))(params, xs, ys, weights).sum())(params)
    every = jax.lax.fori_loop(0, len(xs), lambda i, total: total + weights[i], jnp.zeros_like(weights[0]))
    return jax.tree.map(lambda g: g / every.sum(), total)


# %% wrong="dp-accumulate" because="Unrolls the micro-batches in a Python loop, with a reduction for each of them."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    total = jax.tree.map(jnp.zeros_like, params)
    for x, y, weight in zip(xs, ys, weights, strict=True):
        total = jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, x, y, weight))
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Uses a Python loop. It is unrolled, so the program grows with every micro-batch and contains no loop."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(mesh.size, -1, *a.shape[1:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))
    total = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape), p.dtype), params)
    for micro_batch in zip(xs, ys, weights, strict=True):
        total = jax.tree.map(jnp.add, total, gradients(params, *map(by_device, micro_batch)))
    return jax.tree.map(lambda g: g.sum(0) / weights.sum(), total)


# %% wrong="dp-accumulate" because="Divides by the number of examples, including padding, instead of the sum of their weights."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / weights.size, total)


# %% wrong="dp-accumulate" because="Gathers the batch on every device first, so nothing has to be reduced, but every device does all the work."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    xs, ys, weights = jax.lax.with_sharding_constraint((xs, ys, weights), NamedSharding(mesh, P()))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    return jax.tree.map(lambda g: g / weights.sum(), total)


# %% wrong="dp-accumulate" because="Reshapes along the micro-batches instead of the devices, so examples are communicated before the computation starts."
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


# %% wrong="dp-accumulate" because="Divides by the number of nonzero weights, which is the sum of the weights only if each weight is 0 or 1."
def accumulate_once(mesh, loss_sum, params, xs, ys, weights):
    by_device = lambda a: a.reshape(a.shape[0], mesh.size, -1, *a.shape[2:])
    gradients = jax.vmap(jax.grad(loss_sum), in_axes=(None, 0, 0, 0))

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, gradients(params, *micro_batch)), None

    nothing = jax.tree.map(lambda p: jnp.zeros((mesh.size, *p.shape)), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys), by_device(weights)))
    return jax.tree.map(lambda g: g.sum(0) / (weights > 0).sum(), total)


# %% wrong="dp-accumulate" because="Reshapes a micro-batch to (B/8, 8) and maps over the last axis, so each gradient needs examples of all devices."
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
