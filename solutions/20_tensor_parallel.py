# %% [markdown]
# # 20 · Exercises: tensor parallelism
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise.
#
# The meshes have Auto axes in the first exercise and Explicit axes in all others. In the others, **each check enters its own mesh with `jax.set_mesh`**, so your code can use a bare `P` and omit `mesh=`. Types are written as JAX prints them. For example, `float32[B@data,d]` is an array of shape (B, d) whose first axis is partitioned along `data`. D and M are the numbers of devices along `data` and `model`, and d is the width of a token. The checks use meshes of several sizes. Your function receives whole arrays and may call `jax.shard_map`. Call it inside your function, because in JAX 0.10.2 a function decorated with it keeps the mesh of its first call and raises an error on another mesh.
#
# The checks count the **elements** that a collective returns on one device, because a compiler may merge several collectives into one operation. A collective in a loop counts once for each iteration, if the compiled program states the number of iterations.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, program, require
from grader.checks.devices import entries_of, in_types

devices.start(8)  # before JAX is first used

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def grid(*sizes, names=("data", "model")):
    """A mesh with Explicit axes, such as grid(4, 2) or grid(8, names=("model",))."""
    return devices.mesh(sizes, names, explicit=True)


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


def draw(rng, *shape):
    """Normal float32 numbers, divided by the square root of the first size."""
    return (rng.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)


def four_layers(params, x):
    """A network of four layers: {"W1": (d, h1), "b1": (h1,), ..., "W4": (h3, k), "b4": (k,)}, x (B, d) -> (B, k)"""
    for i in (1, 2, 3):
        x = jax.nn.relu(x @ params[f"W{i}"] + params[f"b{i}"])
    return x @ params["W4"] + params["b4"]


def rms_norm(scale, x):
    """Divides each token by its root mean square: scale (d,), x (..., d) -> (..., d)"""
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


block_entries = {"outer": (), "w1": (None, "model"), "b1": ("model",), "inner": ("model",), "w2": ("model",), "b2": ()}


def block_shapes(d, f):
    """The shapes of a block's parameters."""
    return {"outer": (d,), "w1": (d, f), "b1": (f,), "inner": (f,), "w2": (f, d), "b2": (d,)}


def block_on_one(params, x):
    """A residual block with two norms on one device: x (B, d) -> (B, d)"""
    units = rms_norm(params["outer"], x) @ params["w1"] + params["b1"]
    return x + rms_norm(params["inner"], jax.nn.relu(units)) @ params["w2"] + params["b2"]


def faulty_block(params, x):
    """What `block_on_one` computes, with tensor parallelism and three faults: x float32[B@data,d] -> float32[B@data,d]"""

    def local(params, x):
        units = rms_norm(params["outer"], x) @ params["w1"] + params["b1"]
        normal = rms_norm(params["inner"], jax.nn.relu(units))
        return jax.lax.psum(x + normal @ params["w2"] + params["b2"], "model")

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(local, in_specs=specs, out_specs=P("data"), check_vma=False)(params, x)


# %% [markdown] task="tp-layout" stars=1 minutes=8 skills="16_sharding,18_data_parallel"
# ## The layout of four layers
# **Goal.** Place a network of four layers and a batch on a mesh that combines data parallelism and tensor parallelism. The two middle layers are large, so each device stores only a part of their weights. Two lines are missing. One completes `specs`. The other defines `examples`, the spec of `x`.
#
# **Signature.** `layout_w1_w4(mesh, params, x)` takes a mesh with the Auto axes `data` and `model` in any order, a dict of NumPy arrays, and a batch `x` (B, d). It returns `(params, x)` on the mesh. `four_layers` in the setup uses them. The arrays have these shapes.
#
# | layer | weight | bias |
# |---|---|---|
# | 1 | `"W1"` (d, h1) | `"b1"` (h1,) |
# | 2 | `"W2"` (h1, h2) | `"b2"` (h2,) |
# | 3 | `"W3"` (h2, h3) | `"b3"` (h3,) |
# | 4 | `"W4"` (h3, k) | `"b4"` (k,) |
#
# **Example.** On a mesh of four by two devices, with a batch of 8 examples and layers of 6 units, each device stores a shard (6, 3) of `W2` and two examples.
#
# **Judged.** The values. With M devices along `model`, each device stores 1/M of the entries of `W2`, `b2` and `W3`. `W2` is partitioned by columns, and all other parameters are replicated. The batch is partitioned along `data` and replicated along `model`. The compiled program of `four_layers` then has a single all-reduce. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# The columns of `W2` are partitioned. Each column belongs to one hidden unit. Which axes of `b2` and `W3` have an entry for each of these hidden units?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# After the third product, each device has partial sums. After the all-reduce of these sums, all devices along `model` have the same values. So how should `b3` be stored?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The axis of hidden units of layer 2 occurs in three arrays. Partition it along `model` in all three. The first axis of `x` has one entry for each example.
#
# </details>


# %% answer="tp-layout"
def layout_w1_w4(mesh, params, x):
    """Places a dict of parameters W1, b1, ..., W4, b4 and a batch x (B, d) on the mesh. Returns (params, x)."""
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model")}
    ### BEGIN SOLUTION
    specs |= {"b2": P("model"), "W3": P("model", None)}
    examples = P("data", None)
    ### END SOLUTION
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, examples)


# %% check="tp-layout" name="example" points=1
"""The example: the shards of each parameter and of the batch."""
mesh = devices.mesh((4, 2), ("data", "model"))
params = {f"{kind}{i}": np.full((6, 6) if kind == "W" else 6, i, np.float32) for i in (1, 2, 3, 4) for kind in "Wb"}
x = np.arange(48, dtype=np.float32).reshape(8, 6)
placed = ask(layout_w1_w4, mesh, params, x)
compare(placed, (params, x), label="what `layout_w1_w4` returns")
for name, array in (*placed[0].items(), ("x", placed[1])):
    wanted = {"W2": (6, 3), "b2": (3,), "W3": (3, 6), "x": (2, 6)}.get(name, array.shape)
    found = sorted({shard.data.shape for shard in array.addressable_shards})
    require(found == [wanted], f"Each device stores a shard {found[0]} of {name}; expected {wanted}.")

# %% hidden="tp-layout" name="program" points=2
"""The layouts and the single all-reduce on other meshes, for layers of different sizes."""
rng = inputs.rng()
for axes in ({"data": 2, "model": 4}, {"model": 3, "data": 2}):
    mesh, along_data = devices.mesh(tuple(axes.values()), tuple(axes)), axes["data"]
    d, h1, h2, h3, k = (12 * size for size in rng.permutation(5) + 1)
    sizes = {"W1": (d, h1), "W2": (h1, h2), "W3": (h2, h3), "W4": (h3, k)}
    params = {name: draw(rng, *shape) for name, shape in sizes.items()}
    params |= {f"b{i}": rng.normal(size=sizes[f"W{i}"][1]).astype(np.float32) for i in (1, 2, 3, 4)}
    x = rng.normal(size=(24 * int(rng.integers(1, 3)), d)).astype(np.float32)
    placed = ask(layout_w1_w4, mesh, params, x)
    compare(placed, (params, x), label="what `layout_w1_w4` returns")
    layouts = {"W2": (None, "model"), "b2": ("model",), "W3": ("model", None), "x": ("data", None)}
    for name, array in (*placed[0].items(), ("x", placed[1])):
        wanted = layouts.get(name, (None,) * array.ndim)
        parts = NamedSharding(mesh, P(*wanted)).devices_indices_map(array.shape)
        require(
            isinstance(array.sharding, NamedSharding) and array.sharding.devices_indices_map(array.shape) == parts,
            f"A device does not store the part of {name} that the task states.",
        )
    made = program(lambda params, x: four_layers(params, x), *placed)
    # An answer may store what it has placed, so the program runs on other values.
    params, x = jax.tree.map(lambda value: rng.permuted(value).astype(np.float32), (params, x))
    placed = jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), (params, x), placed)
    exact = x.astype(np.float64)
    for i in (1, 2, 3, 4):
        exact = exact @ params[f"W{i}"] + params[f"b{i}"]
        exact = np.maximum(exact, 0) if i < 4 else exact
    compare(made.run(*placed), exact.astype(np.float32), label="the network's result")
    require(
        [one.kind for one in made.collectives] == ["all-reduce"],
        "The program of `four_layers` should have exactly one collective, an all-reduce.",
    )
    require(
        made.elements("all-reduce") == len(x) // along_data * h3,
        "The all-reduce does not return as many elements as the shard of the third layer's result has.",
    )

# %% [markdown] why="tp-layout"
# The second layer leaves its hidden units partitioned, and the third layer sums over these units. So both large layers together need only one all-reduce. The code of `four_layers` contains nothing about devices. **Next:** The gradient has two more all-reduces. Which arrays do they add, and along which mesh axes?


# %% wrong="tp-layout" because="Partitions the columns of `W3` too. The hidden units have to be gathered before the third product, and its result once more."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P(None, "model")}
    specs["b3"] = P("model")
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P("data", None))


# %% wrong="tp-layout" because="Replicates `b2`, although its entries belong to the partitioned columns of `W2`."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "W3": P("model", None)}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P("data", None))


# %% wrong="tp-layout" because="Partitions `b3` like `b2`, but the result of the third layer is not partitioned along `model`."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P("model", None)}
    specs["b3"] = P("model")
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P("data", None))


# %% wrong="tp-layout" because="Partitions the batch along both mesh axes. Along `model`, all devices need the same examples."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P("model", None)}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    params = {name: on_mesh(array, specs[name]) for name, array in params.items()}
    return params, on_mesh(x, P(("data", "model"), None))


# %% wrong="tp-layout" because="Replicates the batch, so the devices along `data` all do the same work."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P("model", None)}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P())


# %% wrong="tp-layout" because="Partitions the features of the batch instead of the examples."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P("model", None)}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P(None, "data"))


# %% wrong="tp-layout" because="Exchanges rows and columns. The second layer then has a sum over partitioned units, and the third needs another."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P("model", None), "W3": P(None, "model"), "b3": P("model")}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P("data", None))


# %% wrong="tp-layout" because="Partitions `W3` along `data`, so that different devices along `model` store the same rows."
def layout_w1_w4(mesh, params, x):
    specs = dict.fromkeys(params, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P("data", None)}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P("data", None))


# %% wrong="tp-layout" because="Partitions `W1` and `W4` as well, so each layer communicates."
def layout_w1_w4(mesh, params, x):
    columns, rows = P(None, "model"), P("model", None)
    specs = {"W1": columns, "W2": columns, "W3": rows, "W4": rows, "b1": P("model"), "b2": P("model")}
    specs |= {"b3": P(), "b4": P()}
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, P("data", None))


# %% wrong="tp-layout" because="Replicates all parameters, which is data parallelism. Each device stores the whole network."
def layout_w1_w4(mesh, params, x):
    whole = NamedSharding(mesh, P())
    return jax.device_put(params, whole), jax.device_put(x, NamedSharding(mesh, P("data", None)))


# %% wrong="tp-layout" because="Takes the first mesh axis as `data` and the second as `model`, but axes have names, and may be in another order."
def layout_w1_w4(mesh, params, x):
    data, model = mesh.axis_names
    specs = dict.fromkeys(params, P()) | {"W2": P(None, model), "b2": P(model), "W3": P(model, None)}
    examples = P(data)
    on_mesh = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return {name: on_mesh(array, specs[name]) for name, array in params.items()}, on_mesh(x, examples)


# %% right="tp-layout"
def layout_w1_w4(mesh, params, x):
    specs = {name: P() for name in params}
    specs.update(W2=P(None, "model"), b2=P("model"), W3=P("model"))
    shardings = jax.tree.map(functools.partial(NamedSharding, mesh), (specs, P("data")))
    return jax.device_put((params, x), shardings)


# %% right="tp-layout"
def layout_w1_w4(mesh, params, x):
    def sharding(name):
        entries = {"W2": (None, "model"), "b2": ("model",), "W3": ("model", None)}.get(name, ())
        return NamedSharding(mesh, P(*entries))

    shardings = {name: sharding(name) for name in params}, NamedSharding(mesh, P("data"))
    return jax.jit(lambda *arrays: arrays, out_shardings=shardings)(params, x)


# %% [markdown] task="tp-gated-mlp" stars=2 minutes=20 skills="tp-layout,explicit-mlp,shardmap-psum-matmul"
# ## A gated MLP
# **Goal.** Write the MLP of most current language models with tensor parallelism. Its first two products have the same input, and one of them gates the other. The forward pass needs one all-reduce. The gradient with respect to the input needs one more.
#
# **Signature.** `gated_mlp(params, x)` takes a dict with `"gate"` and `"up"`, each a `float32[d,f@model]`, and `"down"`, a `float32[f@model,d]`, and a batch `x`, a `float32[B@data,d]`. It returns `(silu(x @ gate) * (x @ up)) @ down` with the type `float32[B@data,d]`. `jax.nn.silu` is the activation.
#
# **Example.** Let d = 2 and f = 4. All entries of `gate` are 20, and all entries of `x`, `up` and `down` are 1. Then `silu(40)` is almost 40, and each entry of the result is 4 · 40 · 2 = 320. On a mesh of four by two devices with 8 examples, a shard of the result has 4 elements. One such shard is all-reduced in each pass, so the collectives of the gradient with respect to `x` together return at most 8 elements.
#
# **Judged.** The values and the type. The table lists the collectives and the total number of elements that they return on each device.
#
# | program | collectives | elements |
# |---|---|---|
# | `gated_mlp` | exactly one all-reduce | a shard of the result |
# | the gradients with respect to the parameters and `x` | only all-reduces or reduce-scatters | at most two shards of the result and a shard of each parameter |
#
# One of the two shards is needed for the forward pass. So the gradient of `x` is all-reduced **once**, not once for each product. **Not judged.** The number of operations.
#
# <details><summary>Hint 1 · a question</summary>
#
# In the backward pass, `gate` and `up` each contribute to the gradient of `x`. On each device, both contributions are partial sums. Can you add them before they are communicated?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Inside `jax.shard_map`, JAX casts `x` to a value that varies along `model`, once for each product. The transpose of each cast is a `psum`. Cast `x` only once, or compute both products as a single product.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Either cast `x` with `jax.lax.pcast(..., "model", to="varying")` before both products, and write `jax.lax.psum(..., "model")` after the last one. Or stack both matrices, use one `jnp.einsum`, and give the last product an `out_sharding`.
#
# </details>


# %% answer="tp-gated-mlp" timeout=20
def gated_mlp(params, x):
    """(silu(x @ gate) * (x @ up)) @ down for x float32[B@data,d]; the result has the type of x."""
    ### BEGIN SOLUTION

    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")  # once, so that its transpose is a single psum
        hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
        return jax.lax.psum(hidden @ params["down"], "model")

    columns, rows = P(None, "model"), P("model", None)
    specs = {"gate": columns, "up": columns, "down": rows}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)
    ### END SOLUTION


# %% check="tp-gated-mlp" name="example" points=1
"""The example, the type of the result, and the collectives of the gradient with respect to x."""


def probe_gradient_of_x(params, x):
    return jax.grad(lambda x: jnp.sum(gated_mlp(params, x) ** 2))(x)


mesh = grid(4, 2)
params = {
    "gate": np.full((2, 4), 20, np.float32),
    "up": np.ones((2, 4), np.float32),
    "down": np.ones((4, 2), np.float32),
}
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *(("model",) if name == "down" else (None, "model"))) for name, w in params.items()}
    x = place(mesh, np.ones((8, 2), np.float32), "data")
    result = ask(gated_mlp, placed, x)
compare(result, np.full((8, 2), 320, np.float32), label="the result")
got = in_types((8, 2), entries_of(result))
require(got == "float32[8@data,2]", f"The result has the type {got}; expected float32[8@data,2].")
rng = inputs.rng()
params, numbers = {"gate": draw(rng, 2, 4), "up": draw(rng, 2, 4), "down": draw(rng, 4, 2)}, draw(rng, 8, 2)
on_one = lambda x: jnp.sum(((jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]) ** 2)
wanted = np.asarray(jax.grad(on_one)(jnp.asarray(numbers)))
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *(("model",) if name == "down" else (None, "model"))) for name, w in params.items()}
    x = place(mesh, numbers, "data")
    made = program(probe_gradient_of_x, placed, x)
    gradient = made.run(placed, x)
compare(gradient, wanted, label="the gradient with respect to x", rtol=1e-4, atol=1e-6)
require(
    made.elements() <= 8,
    f"The collectives of the gradient with respect to x return {made.elements()} elements; expected at most 8. "
    "Add the contributions of both products to this gradient before they are all-reduced.",
)

# %% hidden="tp-gated-mlp" name="program" points=2
"""Right for new shapes and meshes, with one all-reduce of the shard of the result."""
rng = inputs.rng()
for along_data, along_model in ((4, 2), (2, 4), (2, 3)):
    mesh, batch = grid(along_data, along_model), along_data * int(rng.integers(2, 5))
    d, f = int(rng.integers(4, 8)), along_model * int(rng.integers(3, 7))
    params = {"gate": draw(rng, d, f), "up": draw(rng, d, f), "down": draw(rng, f, d)}
    numbers = rng.normal(size=(batch, d)).astype(np.float32)
    with jax.set_mesh(mesh):
        placed = {n: place(mesh, w, *(("model",) if n == "down" else (None, "model"))) for n, w in params.items()}
        x = place(mesh, numbers, "data")
        made = program(gated_mlp, placed, x)
        result = made.run(placed, x)
    exact = {name: w.astype(np.float64) for name, w in params.items()}
    gate = numbers @ exact["gate"]
    wanted = (gate / (1 + np.exp(-gate)) * (numbers @ exact["up"])) @ exact["down"]
    compare(result, wanted.astype(np.float32), label="the result")
    require(entries_of(made.outputs) == ("data", None), "The type of the result is not that of the batch.")
    require(made.count("all-gather") == 0, "The program has an all-gather. A single all-reduce suffices.")
    require(
        [one.kind for one in made.collectives] == ["all-reduce"],
        "The program should have exactly one collective, an all-reduce.",
    )
    require(
        made.elements("all-reduce") == batch // along_data * d,
        "The all-reduce does not return as many elements on each device as its shard of the result has.",
    )

# %% hidden="tp-gated-mlp" name="gradient" points=2
"""The gradients, and one all-reduce of the gradient of x."""


def probe_gradient(params, x):
    return jax.grad(lambda params, x: jnp.sum(gated_mlp(params, x) ** 2), argnums=(0, 1))(params, x)


rng, along_data, along_model = inputs.rng(), 2, 4
mesh, batch, d, f = grid(along_data, along_model), 2 * int(rng.integers(8, 12)), int(rng.integers(5, 8)), 12
params = {"gate": draw(rng, d, f), "up": draw(rng, d, f), "down": draw(rng, f, d)}
numbers = rng.normal(size=(batch, d)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = {n: place(mesh, w, *(("model",) if n == "down" else (None, "model"))) for n, w in params.items()}
    x = place(mesh, numbers, "data")
    made = program(probe_gradient, placed, x)
    gradients = made.run(placed, x)
exact = {name: w.astype(np.float64) for name, w in params.items()}
gate, up = numbers @ exact["gate"], numbers @ exact["up"]
sigmoid = 1 / (1 + np.exp(-gate))
hidden = gate * sigmoid * up
outer = 2 * hidden @ exact["down"]
inner = outer @ exact["down"].T
for_up, for_gate = inner * gate * sigmoid, inner * up * sigmoid * (1 + gate * (1 - sigmoid))
wanted = {"gate": numbers.T @ for_gate, "up": numbers.T @ for_up, "down": hidden.T @ outer}
wanted = wanted, for_gate @ exact["gate"].T + for_up @ exact["up"].T
compare(gradients, jax.tree.map(np.float32, wanted), label="the gradients")
require(
    made.elements() == made.elements("all-reduce", "reduce-scatter"),
    "The program of the gradients has collectives other than all-reduces.",
)
require(
    made.elements() <= 2 * batch // along_data * d + 3 * d * f // along_model,
    "The all-reduces return more elements than two shards of x and one of each parameter have. "
    "Add the contributions of both products to the gradient of x before they are all-reduced.",
)

# %% [markdown] why="tp-gated-mlp"
# Two products with the same input contribute two partial sums to the gradient of this input. If each device adds its partial sums first, the all-reduce along `model` in the backward pass is half as large. Attention has three such products, for queries, keys and values. **Next:** Write the same function in Auto mode. How many elements does the program of its gradient all-reduce, and why?


# %% wrong="tp-gated-mlp" because="Uses two products with the same input, and the gradient of x is all-reduced for each of them."
def gated_mlp(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
        return jax.lax.psum(hidden @ params["down"], "model")

    columns, rows = P(None, "model"), P("model", None)
    specs = {"gate": columns, "up": columns, "down": rows}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)


# %% wrong="tp-gated-mlp" because="Uses two products with the same input, and the gradient of x is all-reduced for each of them."
def gated_mlp(params, x):
    hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
    return jnp.matmul(hidden, params["down"], out_sharding=P("data", None))


# %% wrong="tp-gated-mlp" because="Does not state how the last product is partitioned, and a sum over partitioned units is ambiguous."
def gated_mlp(params, x):
    return (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


# %% wrong="tp-gated-mlp" because="Adds the hidden units over the devices before the last product. The units of different devices are different units."
def gated_mlp(params, x):
    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")
        hidden = jax.lax.psum(jax.nn.silu(x @ params["gate"]) * (x @ params["up"]), "model")
        return jax.lax.psum(hidden @ params["down"], "model")

    columns, rows = P(None, "model"), P("model", None)
    specs = {"gate": columns, "up": columns, "down": rows}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)


# %% wrong="tp-gated-mlp" because="Averages the partial sums instead of adding them."
def gated_mlp(params, x):
    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")
        hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
        return jax.lax.pmean(hidden @ params["down"], "model")

    columns, rows = P(None, "model"), P("model", None)
    specs = {"gate": columns, "up": columns, "down": rows}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)


# %% wrong="tp-gated-mlp" because="Gathers parameters, as FSDP does, and computes whole products on each device."
def gated_mlp(params, x):
    hidden = jax.reshard(jax.nn.silu(x @ params["gate"]) * (x @ params["up"]), P("data", None))
    return hidden @ jax.reshard(params["down"], P())


# %% wrong="tp-gated-mlp" because="Gathers parameters, as FSDP does, and computes whole products on each device."
def gated_mlp(params, x):
    gate, up, down = (jax.reshard(params[name], P()) for name in ("gate", "up", "down"))
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


# %% wrong="tp-gated-mlp" because="Applies the activation to `up` instead of `gate`."
def gated_mlp(params, x):
    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")
        hidden = (x @ params["gate"]) * jax.nn.silu(x @ params["up"])
        return jax.lax.psum(hidden @ params["down"], "model")

    columns, rows = P(None, "model"), P("model", None)
    specs = {"gate": columns, "up": columns, "down": rows}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)


# %% wrong="tp-gated-mlp" because="Concatenates the whole matrices. A shard of the result contains columns of one matrix only, and not of both."
def gated_mlp(params, x):
    def on_one_device(both, down, x):
        gate, up = jnp.split(x @ both, 2, axis=1)
        return jax.lax.psum((jax.nn.silu(gate) * up) @ down, "model")

    both = jnp.concatenate([params["gate"], params["up"]], axis=1)
    specs = P(None, "model"), P("model", None), P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(both, params["down"], x)


# %% wrong="tp-gated-mlp" because="Adds over `data` as well, so the results of different examples are added to each other."
def gated_mlp(params, x):
    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")
        hidden = jax.nn.silu(x @ params["gate"]) * (x @ params["up"])
        return jax.lax.pcast(jax.lax.psum(hidden @ params["down"], ("data", "model")), "data", to="varying")

    columns, rows = P(None, "model"), P("model", None)
    specs = {"gate": columns, "up": columns, "down": rows}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)


# %% right="tp-gated-mlp"
def gated_mlp(params, x):
    gate, up = jnp.einsum("bd,gdf->gbf", x, jnp.stack([params["gate"], params["up"]]))
    return jnp.matmul(jax.nn.silu(gate) * up, params["down"], out_sharding=P("data", None))


# %% right="tp-gated-mlp"
def gated_mlp(params, x):
    def on_one_device(params, x):
        both = x @ jnp.concatenate([params["gate"], params["up"]], axis=1)  # one product on each device
        gate, up = jnp.split(both, 2, axis=1)
        return jax.lax.psum(jax.nn.silu(gate) * up @ params["down"], "model")

    return jax.jit(jax.shard_map(on_one_device, out_specs=P("data", None)))(params, x)


# %% [markdown] task="tp-repair-block" stars=2 minutes=20 skills="tp-gated-mlp,shardmap-gradient-inside"
# ## A block with three faults
# **Goal.** `faulty_block` in the setup is the MLP of a transformer block with a residual connection and two norms, written for tensor parallelism. If `model` has one device, its results are right. With several, two faults make the results wrong, and a third makes the program of the gradients communicate more than it needs to. Find the three faults and write the block without them.
#
# **Signature.** `repaired_block(params, x)` takes a dict with `"outer"`, a `float32[d]`, `"w1"`, a `float32[d,f@model]`, `"b1"` and `"inner"`, each a `float32[f@model]`, `"w2"`, a `float32[f@model,d]`, and `"b2"`, a `float32[d]`. `x` is a `float32[B@data,d]`. With `rms_norm` from the setup, it returns `x + rms_norm(inner, relu(rms_norm(outer, x) @ w1 + b1)) @ w2 + b2` with the type of `x`.
#
# **Example.** Let d = 2, f = 4, `b1` and `b2` be 0, and all other entries be 1. Each entry of the hidden layer is 2 and its norm makes it 1, so each entry of the result is 1 + 4 = 5. On a mesh of four by two devices, `faulty_block` returns 6.
#
# **Judged.** The values, the gradients with respect to all parameters and `x`, and the type. In the table, one shard of `x` has B / D · d elements.
#
# | program | collectives | elements |
# |---|---|---|
# | `repaired_block` | all-reduces | at most one shard of `x`, and B / D more |
# | the gradients of a nonlinear loss with respect to the parameters and `x`, forward pass included | all-reduces or reduce-scatters | at most two shards of `x`, 2 · B / D more, and one shard of every parameter, added up |
#
# **Not judged.** How much of `faulty_block` you keep.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which terms inside the `psum` are partial sums, and which are equal on all devices along `model`? Over which entries does each norm take its mean on one device?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The inner norm needs the mean over all f entries of a token, but a device has f / M of them. One number for each token is enough. For the third fault, compare the all-reduces of the compiled gradient with and without `check_vma=False`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Without types (`check_vma=False`), JAX does not know that the result of a `psum` is equal on all devices, so the backward pass adds its gradient over the devices once more (lesson 19, *Deeper: without the check*). Delete that argument, add `x` and `b2` after the `psum`, and take `jax.lax.pmean(..., "model")` of the mean of the squares.
#
# </details>


# %% answer="tp-repair-block" timeout=20
def repaired_block(params, x):
    """x + rms_norm(inner, relu(rms_norm(outer, x) @ w1 + b1)) @ w2 + b2 for x float32[B@data,d], with the type of x."""
    ### BEGIN SOLUTION

    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {"outer": P(), "w1": P(None, "model"), "b1": P("model"), "inner": P("model"), "w2": P("model"), "b2": P()}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)
    ### END SOLUTION


# %% check="tp-repair-block" name="example" points=1
"""The example, other numbers, and the type of the result."""
mesh = grid(4, 2)
ones = {name: np.ones(shape, np.float32) for name, shape in block_shapes(2, 4).items()}
ones |= {"b1": np.zeros(4, np.float32), "b2": np.zeros(2, np.float32)}
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *block_entries[name]) for name, w in ones.items()}
    result = ask(repaired_block, placed, place(mesh, np.ones((8, 2), np.float32), "data"))
compare(result, np.full((8, 2), 5, np.float32), label="the result of the example", rtol=1e-4)
got = in_types((8, 2), entries_of(result))
require(got == "float32[8@data,2]", f"The result has the type {got}; expected float32[8@data,2].")
rng = inputs.rng()
params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in block_shapes(6, 8).items()}
x = rng.normal(size=(8, 6)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *block_entries[name]) for name, w in params.items()}
    result = ask(repaired_block, placed, place(mesh, x, "data"))
compare(result, np.asarray(block_on_one(params, x)), label="the result for other numbers", rtol=1e-4, atol=1e-4)

# %% hidden="tp-repair-block" name="program" points=2
"""Right for new shapes and meshes, with one all-reduce of the result and one number for each token."""
rng = inputs.rng()
for along_data, along_model in ((4, 2), (2, 4), (2, 3)):
    mesh, batch = grid(along_data, along_model), along_data * int(rng.integers(2, 5))
    d, f = int(rng.integers(4, 8)), along_model * int(rng.integers(3, 7))
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in block_shapes(d, f).items()}
    numbers = rng.normal(size=(batch, d)).astype(np.float32)
    numbers[0], params["b1"] = 0, -np.abs(params["b1"])  # the hidden layer of one token is all zeros
    with jax.set_mesh(mesh):
        placed = {name: place(mesh, w, *block_entries[name]) for name, w in params.items()}
        x = place(mesh, numbers, "data")
        made = program(repaired_block, placed, x)
        result = made.run(placed, x)
    right = np.asarray(block_on_one(params, numbers))
    several = right + (along_model - 1) * (numbers + params["b2"])
    biased = right + (along_model - 1) * params["b2"]
    if getattr(result, "shape", None) == right.shape:
        for fault, words in ((several, "`x` and `b2` are"), (biased, "`b2` is")):
            again = np.allclose(result, fault, rtol=1e-3, atol=1e-3)
            require(not again, f"In the result, {words} added several times, once for each device along `model`.")
    compare(result, right, label=f"the result on {along_data} by {along_model} devices", rtol=1e-4, atol=1e-4)
    require(entries_of(made.outputs) == ("data", None), "The type of the result is not that of `x`.")
    require(made.elements() == made.elements("all-reduce"), "The program has collectives other than all-reduces.")
    require(
        made.elements() <= batch // along_data * (d + 1),
        "The collectives return more than a shard of the result and one number for each of its tokens.",
    )

# %% hidden="tp-repair-block" name="gradient" points=2
"""The gradients, with an all-reduce for each pass through the block and each parameter."""


def probe_gradient(params, x):
    return jax.grad(lambda params, x: jnp.sum(jnp.sin(repaired_block(params, x))), argnums=(0, 1))(params, x)


rng, (along_data, along_model) = inputs.rng(), (2, 4)
mesh, batch, d, f = grid(along_data, along_model), 2 * int(rng.integers(20, 30)), int(rng.integers(6, 9)), 8
params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in block_shapes(d, f).items()}
numbers = rng.normal(size=(batch, d)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *block_entries[name]) for name, w in params.items()}
    x = place(mesh, numbers, "data")
    made = program(probe_gradient, placed, x)
    gradients = made.run(placed, x)
on_one = lambda params, x: jnp.sum(jnp.sin(block_on_one(params, x)))
wanted = jax.tree.map(np.asarray, jax.grad(on_one, argnums=(0, 1))(params, numbers))
compare(gradients, wanted, label="the gradients", rtol=1e-3, atol=1e-4)
shards = sum(w.size // (1 if name in ("outer", "b2") else along_model) for name, w in params.items())
require(
    made.elements() == made.elements("all-reduce", "reduce-scatter"),
    "The program of the gradients has collectives other than all-reduces and reduce-scatters.",
)
sent, most, again = made.elements(), batch // along_data * (2 * d + 2) + shards, batch // along_data * d
question = (
    "Does one of them add a gradient that all devices along `model` already have?"
    if sent - most >= again
    else "Is a value cast several times, or a mean computed again?"
)
require(
    sent <= most,
    f"The collectives of the gradients return {sent:g} elements on a device; the table allows {most}. {question}",
)

# %% [markdown] why="tp-repair-block"
# Each fault stands for a common one. Terms that are equal on all devices belong after the `psum`, or are counted M times. A statistic over a partitioned axis, such as the mean of a norm, needs a collective, and code that only takes a local mean still runs. And `check_vma=False` switches off the types that tell JAX which values are already equal, so its gradients communicate more. **Next:** How could a norm for each of M groups of the hidden layer avoid the collective, and what would change in the model?


# %% wrong="tp-repair-block" because="Keeps `check_vma=False`, so the gradient of the result is added over the devices once more."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"), check_vma=False)(params, x)


# %% wrong="tp-repair-block" because="Keeps the local mean in the inner norm."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        normal = rms_norm(params["inner"], hidden)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Adds `x` and `b2` before the `psum`, so the result contains both M times."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return jax.lax.psum(x + normal @ params["w2"] + params["b2"], "model")

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Adds `b2` before the `psum`, so the result contains it M times."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"] + params["b2"], "model")

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Divides `x` and `b2` by M before the `psum`. The values are right, but the gradients of both are added over the devices again."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        count = jax.lax.axis_size("model")
        return jax.lax.psum(normal @ params["w2"] + (x + params["b2"]) / count, "model")

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Adds the means of the devices instead of averaging them."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.psum(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Averages the root mean squares of the devices. The root of a mean is not the mean of the roots."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        root = jnp.sqrt(jnp.mean(hidden**2, axis=-1, keepdims=True) + 1e-6)
        normal = params["inner"] * hidden / jax.lax.pmean(root, "model")
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Gathers the whole hidden layer for the mean, which sends f numbers for each token instead of one."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        whole = jax.lax.all_gather(hidden, "model", axis=1, tiled=True)
        square = jnp.mean(whole**2, axis=-1, keepdims=True)
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Adds the squares of all hidden units over the devices before it takes the mean, f / M numbers for each token."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jnp.mean(jax.lax.pmean(hidden**2, "model"), axis=-1, keepdims=True)
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Takes the mean over the tokens of all devices along `data` too."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), ("data", "model"))
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Computes the block on replicated parameters, which sends all weights to each device."
def repaired_block(params, x):
    whole = {name: jax.sharding.reshard(w, P()) for name, w in params.items()}
    return block_on_one(whole, x)


# %% wrong="tp-repair-block" because="Returns the block without the residual connection."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        square = jax.lax.pmean(jnp.mean(hidden**2, axis=-1, keepdims=True), "model")
        normal = params["inner"] * hidden * jax.lax.rsqrt(square + 1e-6)
        return jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% wrong="tp-repair-block" because="Leaves out the inner norm, which removes its fault and the norm."
def repaired_block(params, x):
    def on_one_device(params, x):
        hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
        normal = params["inner"] * hidden
        return x + jax.lax.psum(normal @ params["w2"], "model") + params["b2"]

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% right="tp-repair-block"
def repaired_block(params, x):
    hidden = jax.nn.relu(rms_norm(params["outer"], x) @ params["w1"] + params["b1"])
    normal = rms_norm(params["inner"], hidden)
    return x + jnp.matmul(normal, params["w2"], out_sharding=P("data", None)) + params["b2"]


# %% right="tp-repair-block"
def repaired_block(params, x):
    width = params["inner"].shape[0]

    def on_one_device(params, x):
        entering = jax.lax.pcast(rms_norm(params["outer"], x), "model", to="varying")
        hidden = jnp.maximum(entering @ params["w1"] + params["b1"], 0)
        squares = jax.lax.psum(jnp.einsum("bf,bf->b", hidden, hidden), "model")
        leaving = (hidden / jnp.sqrt(squares / width + 1e-6)[:, None] * params["inner"]) @ params["w2"]
        return jax.lax.psum(leaving, "model")

    specs = {name: P(*entries) for name, entries in block_entries.items()}, P("data")
    return x + params["b2"] + jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(params, x)


# %% [markdown] task="tp-sharded-heads" stars=2 minutes=20 skills="tp-gated-mlp"
# ## Attention heads on several devices
# **Goal.** Partition attention by heads. Several query heads share one key head and one value head, as in most current language models. This is called *grouped-query attention*.
#
# **Signature.** `sharded_heads(params, x)` takes a dict and tokens, and returns a result of the type of `x`. There are H query heads, G key heads and G value heads, each of width k. H is a multiple of G and of M. Either M divides G, or M is a multiple of G and the weights of keys and values are replicated.
#
# | argument | type |
# |---|---|
# | `params["q"]` | `float32[d,H@model,k]` |
# | `params["k"]`, `params["v"]` | `float32[d,G@model,k]`, or `float32[d,G,k]` if G is smaller than M |
# | `params["o"]` | `float32[H@model,k,d]` |
# | `x` | `float32[B@data,T,d]` |
#
# Query head h uses key and value head h // (H // G). Each head computes
#
# 1. the scores `queries @ keys.T / sqrt(k)` of shape (T, T), without a mask,
# 2. the output `softmax(scores) @ values` of shape (T, k), with the softmax over the keys,
# 3. and the product of this output and `o[h]`, of shape (T, d).
#
# The result is the sum of these products over all H heads.
#
# **Example.** Let all entries of `"v"` and `"o"` be 1, and let `x` be `[1, 2, 3, 1, 1]` at all T positions. Then all values of a head are equal, and each of their k entries is 1 + 2 + 3 + 1 + 1 = 8. The softmax averages equal values, so the output of the head has the same entries. With H = 4 and k = 3, each entry of the result is 4 · 3 · 8 = 96.
#
# **Judged.** The values and the type. The compiled program has exactly one collective, an all-reduce that returns as many elements as a shard of the result has. **Not judged.** The gradient, and how you compute the softmax.
#
# <details><summary>Hint 1 · a question</summary>
#
# A device has H / M query heads. If M divides G, does it have the key head of each of them? If G is smaller than M, how many key heads do its query heads use?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Each head is computed on one device. Only the sum over the heads needs other devices. Inside `jax.shard_map`, write attention for the local heads. If G is smaller than M, all query heads of a device use the same key head, and M / G devices next to each other use the same one.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jnp.repeat(keys, H // G, axis=...)` gives each query head its key head. If M divides G, the local ratio of heads is the same as the global one. For G smaller than M, first repeat each replicated weight M / G times along its head axis and partition the result with `jax.reshard`, which communicates nothing. End with `jax.lax.psum(jnp.einsum("bthk,hkd->btd", ...), "model")`.
#
# </details>


# %% answer="tp-sharded-heads" timeout=20
def sharded_heads(params, x):
    """Grouped-query attention for x float32[B@data,T,d], with heads partitioned along model; the type of x."""
    ### BEGIN SOLUTION
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)
    ### END SOLUTION


# %% check="tp-sharded-heads" name="example" points=1
"""The example, the type of the result, and heads with different keys and values."""


def probe_heads(params, x):
    return jax.jit(lambda *arrays: sharded_heads(*arrays))(params, x)


def in_numpy(params, x):
    q, keys, values = (np.einsum("btd,dhk->bhtk", x, params[name]) for name in "qkv")
    result, each = np.zeros_like(x), q.shape[1] // keys.shape[1]
    for h in range(q.shape[1]):
        powers = np.exp(q[:, h] @ keys[:, h // each].transpose(0, 2, 1) / math.sqrt(q.shape[3]))
        result += powers / powers.sum(2, keepdims=True) @ values[:, h // each] @ params["o"][h]
    return result


mesh, rng = grid(4, 2), inputs.rng()
H, G, k, d = 4, 2, 3, 5
params = {"q": draw(rng, d, H, k), "k": draw(rng, d, G, k), "v": np.ones((d, G, k)), "o": np.ones((H, k, d))}
numbers = np.repeat(rng.integers(1, 4, size=(4, 1, d)), 3, axis=1).astype(np.float32)
with jax.set_mesh(mesh):
    layout = lambda name: ("model",) if name == "o" else (None, "model")
    placed = {name: place(mesh, w.astype(np.float32), *layout(name)) for name, w in params.items()}
    result = ask(probe_heads, placed, place(mesh, numbers, "data"))
compare(result, np.repeat(H * k * numbers.sum(2, keepdims=True), d, axis=2), label="the result")
got = in_types((4, 3, d), entries_of(result))
require(got == "float32[4@data,3,5]", f"The result has the type {got}; expected float32[4@data,3,5].")
params = {"q": draw(rng, d, 8, k), "k": draw(rng, d, 4, k), "v": draw(rng, d, 4, k), "o": draw(rng, 8, k, d)}
mesh, numbers = grid(2, 2), rng.normal(size=(4, 3, d)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *layout(name)) for name, w in params.items()}
    result = ask(probe_heads, placed, place(mesh, numbers, "data"))
compare(result, in_numpy(params, numbers), label="the result of eight query heads and four key heads")
params = {"q": draw(rng, d, 4, k), "k": draw(rng, d, 1, k), "v": draw(rng, d, 1, k), "o": draw(rng, 4, k, d)}
with jax.set_mesh(mesh):
    entries = {"q": (None, "model"), "k": (), "v": (), "o": ("model",)}
    placed = {name: place(mesh, w, *entries[name]) for name, w in params.items()}
    result = ask(probe_heads, placed, place(mesh, numbers, "data"))
compare(result, in_numpy(params, numbers), label="the result of four query heads and one key head on two devices")

# %% hidden="tp-sharded-heads" name="program" points=3
"""Right for other numbers of heads and other meshes, with one all-reduce of the shard of the result."""
rng = inputs.rng()
for along_data, along_model, groups, each, words in (
    (4, 2, 2, 3, "with three query heads for each key head"),
    (2, 3, 6, 2, "with two key heads on each device"),
    (1, 4, 4, 1, "with as many key heads as query heads"),
    (2, 4, 2, 6, "with one key head for two of four devices"),
    (1, 6, 1, 6, "with a single key head"),
):
    mesh, H, B = grid(along_data, along_model), groups * each, along_data * int(rng.integers(1, 3))
    T, k, d = (int(size) for size in rng.permutation([3, 4, 5, 6, 7])[:3])
    params = {"q": draw(rng, d, H, k), "k": draw(rng, d, groups, k), "v": draw(rng, d, groups, k)}
    params["o"] = draw(rng, H, k, d)
    numbers = 2 * rng.normal(size=(B, T, d)).astype(np.float32)
    with case(words):
        with jax.set_mesh(mesh):
            entries = {"q": (None, "model"), "o": ("model",)}
            entries |= dict.fromkeys("kv", () if groups < along_model else (None, "model"))
            placed = {name: place(mesh, w, *entries[name]) for name, w in params.items()}
            x = place(mesh, numbers, "data")
            made = program(sharded_heads, placed, x)
            result = made.run(placed, x)
        q, keys, values = (np.einsum("btd,dhk->bhtk", numbers.astype(np.float64), params[name]) for name in "qkv")
        wanted = np.zeros((B, T, d))
        for h in range(H):
            scores = q[:, h] @ keys[:, h // each].transpose(0, 2, 1) / math.sqrt(k)
            weights = np.exp(scores - scores.max(2, keepdims=True))
            weights /= weights.sum(2, keepdims=True)
            wanted += weights @ values[:, h // each] @ params["o"][h]
        compare(result, wanted.astype(np.float32), label="the result")
        require(entries_of(made.outputs) == ("data", None, None), "the type of the result is not that of the tokens.")
        require(
            [one.kind for one in made.collectives] == ["all-reduce"],
            "the program should have exactly one collective, an all-reduce.",
        )
        require(
            made.elements("all-reduce") == B // along_data * T * d,
            "the all-reduce does not return as many elements on each device as its shard of the result has.",
        )

# %% [markdown] why="tp-sharded-heads"
# Heads are independent until the output product adds them, so they correspond to the hidden units of an MLP. The products for queries, keys and values are partitioned by columns, and the output product by rows. If there are fewer key heads than devices, several devices compute the same keys and values. **Next:** In the backward pass, the gradients of these copies have to be added. Which collective does JAX insert for them, and along which devices?


# %% wrong="tp-sharded-heads" because="Repeats the key heads as a whole instead of each one, so query head h uses key head h % G."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.tile(array, (1, 1, q.shape[2] // array.shape[2], 1)) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Uses the first key and value head of each device for all of its query heads."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        scores = jnp.einsum("bthk,bsk->bhts", q, k[:, :, 0]) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bsk->bthk", jax.nn.softmax(scores, axis=-1), v[:, :, 0])
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Does not add the contributions of the devices. Each has those of its own heads only."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jnp.einsum("bthk,hkd->btd", heads, params["o"])

    return jax.shard_map(on_one_device, out_specs=P("data"), check_vma=False)(params, x)


# %% wrong="tp-sharded-heads" because="Averages the contributions of the devices instead of adding them."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.pmean(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Computes the softmax over the queries instead of the keys."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-2), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Scales the scores by the size of a token instead of the size of a head."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(x.shape[2])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Leaves out the scale of the scores."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k)
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Adds the heads of a device after the all-reduce, which then communicates the result of every head."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->bthd", heads, params["o"]), "model").sum(axis=2)

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Gathers the heads of all devices before the output product, and the output matrix too."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        heads = jax.lax.all_gather(heads, "model", axis=2, tiled=True, to="invarying")
        output = jax.lax.all_gather(params["o"], "model", tiled=True, to="invarying")
        return jnp.einsum("bthk,hkd->btd", heads, output)

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Gathers the keys and values of all heads on each device, although each device has those that its query heads need."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        ratio, mine = q.shape[2] // k.shape[2], jax.lax.axis_index("model") * q.shape[2] + jnp.arange(q.shape[2])
        k, v = (jax.lax.all_gather(array, "model", axis=2, tiled=True)[:, :, mine // ratio] for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Adds the scores of the heads of all devices, but each head has its own softmax."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jax.lax.psum(jnp.einsum("bthk,bshk->bhts", q, k), "model") / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Treats replicated key heads as if they were partitioned, so each device uses the first of them."
def sharded_heads(params, x):
    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, max(1, q.shape[2] // array.shape[2]), axis=2)[:, :, : q.shape[2]] for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% wrong="tp-sharded-heads" because="Copies the key heads as a whole instead of each one, so neighbouring devices get different key heads."
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.tile(params[name], (1, M // G, 1)) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
        k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[3])
        heads = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
        return jax.lax.psum(jnp.einsum("bthk,hkd->btd", heads, params["o"]), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% right="tp-sharded-heads"
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}

    def on_one_device(params, x):
        queries, keys, values = (jnp.tensordot(x, params[name], 1) for name in ("q", "k", "v"))
        heads = jax.nn.dot_product_attention(queries, keys, values)  # also handles groups of query heads
        return jax.lax.psum(jnp.tensordot(heads, params["o"], 2), "model")

    specs = {"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "o": P("model")}
    return jax.shard_map(on_one_device, in_specs=(specs, P("data")), out_specs=P("data"))(params, x)


# %% right="tp-sharded-heads"
def sharded_heads(params, x):
    M, G = jax.sharding.get_abstract_mesh().shape["model"], params["k"].shape[1]
    if G < M:  # a copy of its key and value head for each device
        copies = {name: jnp.repeat(params[name], M // G, axis=1) for name in "kv"}
        params = params | {name: jax.reshard(copy, P(None, "model")) for name, copy in copies.items()}
    (d, H, k), G = params["q"].shape, params["k"].shape[1]
    grouped = P(None, "model", None, None)
    wq = params["q"].reshape(d, G, H // G, k, out_sharding=grouped)
    wo = params["o"].reshape(G, H // G, k, d, out_sharding=P("model"))
    q = jnp.einsum("btd,dgrk->btgrk", x, wq)
    keys, values = (jnp.einsum("btd,dgk->btgk", x, params[name]) for name in "kv")
    weights = jax.nn.softmax(jnp.einsum("btgrk,bsgk->bgrts", q, keys) / k**0.5, axis=-1)
    heads = jnp.einsum("bgrts,bsgk->btgrk", weights, values)
    return jnp.einsum("btgrk,grkd->btd", heads, wo, out_sharding=P("data"))


# %% right="tp-sharded-heads"
def sharded_heads(params, x):
    groups, each = params["k"].shape[1], params["q"].shape[1] // params["k"].shape[1]

    def on_one_device(params, x):
        place, own = jax.lax.axis_index("model"), params["q"].shape[1]
        first = 0 if params["k"].shape[1] == groups else place * params["k"].shape[1]
        of_query = (place * own + jnp.arange(own)) // each - first  # the local key head of each local query head
        wk, wv = params["k"][:, of_query], params["v"][:, of_query]

        def one_head(wq, wk, wv, wo):
            scores = jnp.einsum("btk,bsk->bts", x @ wq, x @ wk) / math.sqrt(wq.shape[1])
            return jax.nn.softmax(scores) @ (x @ wv) @ wo

        heads = jax.vmap(one_head, in_axes=(1, 1, 1, 0))(params["q"], wk, wv, params["o"])
        return jax.lax.psum(heads.sum(0), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


# %% [markdown] task="tp-sequence-norm" stars=2 minutes=20 skills="tp-gated-mlp,tp-sharded-heads,shardmap-fsdp-layer"
# ## Sequence parallelism
# **Goal.** Write an MLP with a norm and a residual connection. Outside the MLP, the tokens are partitioned along `model` by their position in the sequence. So each device stores and normalizes only its own tokens.
#
# **Signature.** `sequence_parallel(norm, params, x)` returns `x + tanh(norm(scale, x) @ w1) @ w2` with the type of `x`. `norm(scale, x)` is a function that treats each token alone, such as `rms_norm` in the setup.
#
# | argument | type |
# |---|---|
# | `params["scale"]` | `float32[d]` |
# | `params["w1"]` | `float32[d,f@model]` |
# | `params["w2"]` | `float32[f@model,d]` |
# | `x` | `float32[B@data,T@model,d]` |
#
# **Example.** If `w2` is all zeros, the result is `x`. On a mesh of four by two devices, with x of shape (4, 6, 5), each device stores a shard (1, 3, 5), and `norm` is applied to it.
#
# **Judged.** The values, the type, and the gradients with respect to the parameters and `x`. `norm` is applied to the tokens that a device stores, (B / D, T / M, d), and to no others. The compiled program of the forward pass has exactly two collectives.
#
# - An all-gather of the tokens returns B / D · T · d elements.
# - A **reduce-scatter** to the stored tokens returns B / D · T / M · d elements.
#
# Use `jax.shard_map` for the products, because on CPUs, Auto and Explicit code is compiled to an all-reduce (see *Deeper: collectives on TPUs and GPUs*). The compiler for TPUs may replace a small reduce-scatter with an all-reduce, so on TPUs the checks accept an all-reduce of the size of the gathered tokens. **Not judged.** The collectives of the gradient.
#
# <details><summary>Hint 1 · a question</summary>
#
# Each device has some columns of `w1`. Which tokens does it multiply by these columns? For which tokens does it return the sums of the second product?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.lax.all_gather` and `jax.lax.psum_scatter` both take `tiled=True`, and an argument for the axis. The position in the sequence is axis 1.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Apply `norm` to the shard first, then `jax.lax.all_gather(..., "model", axis=1, tiled=True)`. At the end, use `jax.lax.psum_scatter(..., "model", scatter_dimension=1, tiled=True)`, and add the shard of `x`.
#
# </details>


# %% answer="tp-sequence-norm" timeout=20
def sequence_parallel(norm, params, x):
    """x + tanh(norm(scale, x) @ w1) @ w2 for x float32[B@data,T@model,d]; the result has the type of x."""
    ### BEGIN SOLUTION

    def on_one_device(params, x):
        tokens = jax.lax.all_gather(norm(params["scale"], x), "model", axis=1, tiled=True)
        partial_sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return x + jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)
    ### END SOLUTION


# %% check="tp-sequence-norm" name="example" points=1
"""The example, the same tokens with other parameters, and the type."""


def probe_rms(params, x):
    return sequence_parallel(rms_norm, params, x)


def with_rms(params, x):
    p, x = {name: w.astype(np.float64) for name, w in params.items()}, x.astype(np.float64)
    normal = p["scale"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return (x + np.tanh(normal @ p["w1"]) @ p["w2"]).astype(np.float32)


mesh, rng = grid(4, 2), inputs.rng()
specs = {"scale": (), "w1": (None, "model"), "w2": ("model",)}
params = {"scale": np.ones(5, np.float32), "w1": draw(rng, 5, 8), "w2": np.zeros((8, 5), np.float32)}
numbers = rng.normal(size=(4, 6, 5)).astype(np.float32)
with jax.set_mesh(mesh):
    for w2, label in ((params["w2"], "the result"), (draw(rng, 8, 5), "the result with other parameters")):
        params["w2"] = w2
        placed = {name: place(mesh, w, *specs[name]) for name, w in params.items()}
        result = ask(probe_rms, placed, place(mesh, numbers, "data", "model"))
        compare(result, with_rms(params, numbers), label=label)
got = in_types((4, 6, 5), entries_of(result))
require(got == "float32[4@data,6@model,5]", f"The result has the type {got}; expected float32[4@data,6@model,5].")

# %% hidden="tp-sequence-norm" name="program" points=2
"""Right for new shapes and meshes, with one all-gather and one reduce-scatter."""


def probe_scaled(params, x):
    return sequence_parallel(lambda scale, x: scale * x / (1 + jnp.abs(x)), params, x)


rng = inputs.rng()
specs = {"scale": (), "w1": (None, "model"), "w2": ("model",)}
for along_data, along_model in ((4, 2), (2, 4), (2, 3)):
    mesh, B, T = (
        grid(along_data, along_model),
        along_data * int(rng.integers(1, 4)),
        along_model * int(rng.integers(2, 5)),
    )
    d, f = int(rng.integers(3, 8)), along_model * int(rng.integers(3, 6))
    params = {"scale": rng.uniform(0.5, 2, size=d).astype(np.float32), "w1": draw(rng, d, f), "w2": draw(rng, f, d)}
    numbers = rng.normal(size=(B, T, d)).astype(np.float32)
    with jax.set_mesh(mesh):
        placed = {name: place(mesh, w, *specs[name]) for name, w in params.items()}
        x = place(mesh, numbers, "data", "model")
        made = program(probe_scaled, placed, x)
        result = made.run(placed, x)
    normal = params["scale"] * (numbers / (1 + np.abs(numbers.astype(np.float64))))
    wanted = numbers + np.tanh(normal @ params["w1"]) @ params["w2"]
    compare(result, wanted.astype(np.float32), label="the result")
    require(entries_of(made.outputs) == ("data", "model", None), "The type of the result is not that of the tokens.")
    on_tpu = jax.default_backend() == "tpu"
    scattered = made.elements("reduce-scatter") + (made.elements("all-reduce") // along_model if on_tpu else 0)
    require(scattered > 0, "The program has no reduce-scatter.")
    require(made.count("all-gather") > 0, "The program has no all-gather.")
    require(
        made.elements() == made.elements("all-gather", "reduce-scatter", *["all-reduce"] * on_tpu),
        "The program has collectives other than all-gathers and reduce-scatters.",
    )
    require(
        made.elements("all-gather") == B // along_data * T * d,
        "The all-gathers do not return as many elements on each device as the tokens of its examples have.",
    )
    require(
        scattered == B // along_data * T // along_model * d,
        "The reduce-scatters do not return as many elements on each device as its shard of the tokens has.",
    )

# %% hidden="tp-sequence-norm" name="gradient" points=1
"""The gradients with respect to the parameters and the tokens."""


def probe_gradient(params, x, weights):
    norm = lambda scale, x: scale * x
    whole = lambda params, x: jnp.sum(weights * sequence_parallel(norm, params, x))
    return jax.grad(whole, argnums=(0, 1))(params, x)


rng, mesh = inputs.rng(), grid(2, 3)
B, T, d, f = 4, 3 * int(rng.integers(2, 4)), int(rng.integers(3, 6)), 6
specs = {"scale": (), "w1": (None, "model"), "w2": ("model",)}
params = {"scale": rng.uniform(0.5, 2, size=d).astype(np.float32), "w1": draw(rng, d, f), "w2": draw(rng, f, d)}
numbers, weights = (rng.normal(size=(B, T, d)).astype(np.float32) for _ in range(2))
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *specs[name]) for name, w in params.items()}
    got = ask(probe_gradient, placed, *(place(mesh, array, "data", "model") for array in (numbers, weights)))
p = {name: w.astype(np.float64) for name, w in params.items()}
hidden = np.tanh(p["scale"] * numbers @ p["w1"])
inner = weights @ p["w2"].T * (1 - hidden**2)
outer = inner @ p["w1"].T
over = lambda one, other: np.einsum("btd,btf->df", one, other)
wanted = {"scale": (outer * numbers).sum((0, 1)), "w1": over(p["scale"] * numbers, inner), "w2": over(hidden, weights)}
compare(got, jax.tree.map(np.float32, (wanted, weights + outer * p["scale"])), label="the gradients")

# %% hidden="tp-sequence-norm" name="norm" points=1 observed=true
"""The norm is applied to the tokens that a device stores."""


def probe_shapes(params, x):
    shapes = []

    def norm(scale, x):
        entries = (*jax.typeof(x).sharding.spec, None, None, None)  # None inside of shard_map, where x is a shard
        shapes.append([size // {"data": 2, "model": 4}.get(entries[i], 1) for i, size in enumerate(x.shape)])
        return scale * x

    result = sequence_parallel(norm, params, x)
    return shapes, result


rng, mesh = inputs.rng(), grid(2, 4)
specs = {"scale": (), "w1": (None, "model"), "w2": ("model",)}
params = {"scale": rng.uniform(0.5, 2, size=5).astype(np.float32), "w1": draw(rng, 5, 8), "w2": draw(rng, 8, 5)}
numbers = rng.normal(size=(6, 12, 5)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = {name: place(mesh, w, *specs[name]) for name, w in params.items()}
    shapes, result = ask(probe_shapes, placed, place(mesh, numbers, "data", "model"))
compare(result, numbers + np.tanh(params["scale"] * numbers @ params["w1"]) @ params["w2"], label="the result")
require(len(shapes) > 0, "Your answer does not call `norm`.")
require(
    all(tuple(shape) == (3, 3, 5) for shape in shapes),
    "`norm` is applied to more tokens than the device stores. Apply it before you gather.",
)

# %% [markdown] why="tp-sequence-norm"
# An all-gather and a reduce-scatter together send as much as the all-reduce that they replace. The advantage is that the norm and the residual connection need only 1/M of the memory and of the operations on each device. The scale of a norm is replicated but is multiplied by local tokens only, so its gradient is also summed along `model`. JAX inserts this sum, which hand-written code often forgets. **Next:** A dropout mask after the MLP is also applied to shards. Which random keys would you use, so that tokens on different devices get different masks?


# %% wrong="tp-sequence-norm" because="Gathers the tokens before the norm, so each device normalizes all of them."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        tokens = norm(params["scale"], jax.lax.all_gather(x, "model", axis=1, tiled=True))
        partial_sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return x + jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Adds all partial sums with `psum` and then takes its own tokens, which sends twice as much as a reduce-scatter."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        tokens = jax.lax.all_gather(norm(params["scale"], x), "model", axis=1, tiled=True)
        total = jax.lax.psum(jnp.tanh(tokens @ params["w1"]) @ params["w2"], "model")
        first = jax.lax.axis_index("model") * x.shape[1]
        return x + jax.lax.dynamic_slice_in_dim(total, first, x.shape[1], axis=1)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Leaves the last product to the compiler in Explicit mode, which compiles it to an all-reduce for CPUs."
def sequence_parallel(norm, params, x):
    tokens = jax.reshard(norm(params["scale"], x), P("data"))
    hidden = jnp.tanh(tokens @ params["w1"])
    return x + jnp.matmul(hidden, params["w2"], out_sharding=P("data", "model"))


# %% wrong="tp-sequence-norm" because="Does not gather the tokens. Each device multiplies its tokens by its columns only, and the sums mix different tokens."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        partial_sums = jnp.tanh(norm(params["scale"], x) @ params["w1"]) @ params["w2"]
        return x + jax.lax.psum(partial_sums, "model")

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Adds the residual before the partial sums are added, so it is counted once for each device along `model`."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        tokens = jax.lax.all_gather(norm(params["scale"], x), "model", axis=1, tiled=True)
        whole = jax.lax.all_gather(x, "model", axis=1, tiled=True)
        partial_sums = whole + jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Leaves out the residual connection."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        tokens = jax.lax.all_gather(norm(params["scale"], x), "model", axis=1, tiled=True)
        partial_sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Adds the normalized tokens instead of the tokens themselves."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        normal = norm(params["scale"], x)
        tokens = jax.lax.all_gather(normal, "model", axis=1, tiled=True)
        partial_sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return normal + jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Uses `rms_norm` of the example instead of the argument `norm`."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        tokens = jax.lax.all_gather(rms_norm(params["scale"], x), "model", axis=1, tiled=True)
        partial_sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return x + jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Stops the gradient at the norm, so the gradients of the scale and of the tokens are wrong."
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        normal = jax.lax.stop_gradient(norm(params["scale"], x))
        tokens = jax.lax.all_gather(normal, "model", axis=1, tiled=True)
        partial_sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return x + jax.lax.psum_scatter(partial_sums, "model", scatter_dimension=1, tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% wrong="tp-sequence-norm" because="Gathers the matrices instead of the tokens, as FSDP does. Each device then multiplies by whole matrices."
def sequence_parallel(norm, params, x):
    w1, w2 = (jax.reshard(params[name], P()) for name in ("w1", "w2"))
    return x + jnp.tanh(norm(params["scale"], x) @ w1) @ w2


# %% right="tp-sequence-norm"
def sequence_parallel(norm, params, x):
    normal = norm(params["scale"], x)  # in Explicit mode, on the shards of x

    def mlp(normal, w1, w2):
        tokens = jax.lax.all_gather(normal, "model", axis=1, tiled=True)
        sums = jnp.einsum("btf,fd->btd", jnp.tanh(jnp.einsum("btd,df->btf", tokens, w1)), w2)
        return jax.lax.psum_scatter(sums, "model", scatter_dimension=1, tiled=True)

    specs = P("data", "model", None), P(None, "model"), P("model", None)
    return x + jax.shard_map(mlp, in_specs=specs, out_specs=specs[0])(normal, params["w1"], params["w2"])


# %% right="tp-sequence-norm"
def sequence_parallel(norm, params, x):
    @jax.jit
    @functools.partial(jax.shard_map, out_specs=P("data", "model", None))
    def block(scale, w1, w2, x):
        gathered = jax.lax.all_gather(norm(scale, x), "model", axis=1)  # (B, M, T / M, d)
        sums = jnp.tanh(gathered @ w1) @ w2
        return x + jax.lax.psum_scatter(sums, "model", scatter_dimension=1)

    return block(params["scale"], params["w1"], params["w2"], x)


# %% right="tp-sequence-norm"
def sequence_parallel(norm, params, x):
    def on_one_device(params, x):
        # The MLP treats each token alone, so the order of the gathered tokens does not matter.
        tokens = jax.lax.all_gather(norm(params["scale"], x), "model", tiled=True)
        sums = jnp.tanh(tokens @ params["w1"]) @ params["w2"]
        return x + jax.lax.psum_scatter(sums, "model", tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("data", "model"))(params, x)


# %% [markdown] task="tp-most-devices" stars=2 minutes=15 skills="tp-gated-mlp,tp-sharded-heads"
# ## How many devices are useful?
# **Goal.** We call tensor parallelism useful while no layer communicates longer than it computes. Find the largest useful number of devices for a transformer with any sizes, on any accelerator.
#
# **Signature.** `most_devices(d, f, heads, kv_heads, peak, bandwidth)` returns an int: the largest M for which the forward pass of **neither** layer sends longer than it computes. All sizes are ints, and `heads` and `kv_heads` are powers of two. `peak` is in floating-point operations per second of one device, `bandwidth` in bytes per second that one device sends, on a ring. M is a power of two that divides `heads` and `f`.
#
# - **MLP.** Two products, of width `d` and with `f` hidden units.
# - **Attention.** A head has `d / heads` numbers for each token. The products with the weights of the queries and with the last weight have `heads` heads, and those with the weights of keys and of values have `kv_heads` heads. If M is larger than `kv_heads`, a device computes one key head and one value head. Everything else in attention is ignored.
# - After each of the two layers, the devices all-reduce d numbers of 2 bytes for each token.
#
# **Example.** With d = 8192, f = 28,672, 64 heads and 64 key/value heads, a peak of 989e12 and a bandwidth of 450e9, the limits of the lesson are 14.0 for the MLP and 8.5 for attention, so the result is 8. With 8 key/value heads, the second limit is 5.2 and the result is 4.
#
# **Judged.** The number, for many sizes and accelerators. It is 1 if two devices send too long already. **Not judged.** The number of tokens does not occur, because both times are proportional to it.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many operations does one device perform for one token in each layer, and how many bytes does it send in a ring all-reduce of d numbers?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A product of a token with a weight `(a, b)` takes 2 a b operations. Compare the two times for each M that is allowed, instead of solving for M, because the key and value heads are no longer divided for large M.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With heads of size s, the four products of attention take 2 d s operations for each head that a device has. It has heads / M of the first and the last, and the larger of kv_heads / M and 1 of the other two.
#
# </details>


# %% answer="tp-most-devices"
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    """The largest number of devices for which no layer of a block sends longer than it computes, as an int."""
    ### BEGIN SOLUTION
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best
    ### END SOLUTION


# %% check="tp-most-devices" name="example" points=1
"""The example, with 64 and with 8 key/value heads."""
got = [ask(most_devices, 8192, 28_672, 64, kv_heads, 989e12, 450e9) for kv_heads in (64, 8)]
compare(got, [8, 4], label="[the result with 64 key/value heads, with 8]")

# %% hidden="tp-most-devices" name="values" points=2
"""The right number for many sizes and accelerators."""


def limit(d, f, heads, kv_heads, peak, bandwidth):
    """The number, and how close the closest comparison of two times is."""
    found, margin = 1, 1.0
    for m in (2**i for i in range(1, 12)):
        if heads % m or f % m:
            continue
        mlp, attention = 4 * d * f / m, 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        ratio = 4 * (m - 1) / m * d / bandwidth * peak / min(mlp, attention)
        found, margin = m if ratio <= 1 else found, min(margin, abs(ratio - 1))
    return found, margin


rng, cases = inputs.rng(), []
while len(cases) < 24:
    heads, size = 2 ** int(rng.integers(3, 8)), 2 ** int(rng.integers(6, 9))
    kv_heads = heads // 2 ** int(rng.integers(0, 4))
    f = int(rng.integers(1, 60)) * 2 ** int(rng.integers(0, 11))
    sizes = heads * size, f, heads, kv_heads, float(rng.uniform(100e12, 2000e12)), float(10 ** rng.uniform(10, 12.5))
    found, margin = limit(*sizes)
    if margin > 0.05:
        cases.append((sizes, found))
fixed = (
    ((8192, 28_672, 64, 8, 459e12, 200e9), "if the attention layer limits"),
    ((8192, 2048, 64, 64, 989e12, 450e9), "if the MLP limits"),
    ((8192, 4096, 64, 64, 459e12, 160e9), "if two devices send for 0.7 times as long as the MLP computes"),
    ((8192, 28_676, 64, 64, 459e12, 2000e9), "if f is divisible by 4 but not by 8"),
    ((8192, 28_672, 64, 64, 989e12, 5e9), "if two devices send too long"),
    ((16_384, 65_536, 64, 2, 197e12, 700e9), "if there are more devices than key/value heads"),
)
for sizes, words in fixed:
    with case(words):
        compare(ask(most_devices, *sizes), limit(*sizes)[0], label="the result")
for sizes, found in cases:
    d, f, heads, kv_heads, *_ = sizes
    with case(f"for d = {d:,}, f = {f:,}, {heads} heads and {kv_heads} key/value heads"):
        compare(ask(most_devices, *sizes), found, label="the result")

# %% [markdown] why="tp-most-devices"
# Most models are limited by attention, because its weights are smaller than those of the MLP, but both layers all-reduce as many numbers. Fewer key and value heads make it worse: a device computes less, and sends as much. In the backward pass, a device computes twice as much. **Next:** How does the number change if sequence parallelism, an overlap of both times, or 8 bits instead of 16 are used?


# %% equivalent="tp-most-devices" because="Two times that are exactly equal do not occur, and rounding would decide about them."
# moved bound, X <= Y -> X < Y: if sent / bandwidth <= min(mlp, attention) / peak:


# %% wrong="tp-most-devices" because="Counts the elements of an all-reduce instead of their bytes."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Uses the formula of an all-gather, which sends half as much as an all-reduce."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Lets each device send the whole all-reduce twice, without the factor (M - 1) / M."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Considers the MLP only."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= mlp / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Considers attention only."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= attention / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Adds both layers, so a slow layer is hidden by a fast one."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if 2 * sent / bandwidth <= (mlp + attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Divides the key and value heads by any number of devices, although each device computes at least one."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + kv_heads / m)
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Replicates the key and value heads always."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + kv_heads)
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Ignores that there may be fewer key and value heads than query heads."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (2 * heads / m)
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Counts one operation for each element of a weight, instead of a multiplication and an addition."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 2 * d * f / m
        attention = 2 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Counts one product of the MLP."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 2 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Does not require that M divides f."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Allows no more devices than key and value heads."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    best = 1
    for m in (2**i for i in range(heads.bit_length())):
        if kv_heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            best = max(best, m)
    return best


# %% wrong="tp-most-devices" because="Returns the real limit of the formulas, rounded down, which need not be a power of two."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    mlp = 1 + f * bandwidth / peak
    attention = 1 + (d + d // heads * kv_heads) * bandwidth / peak
    return max(1, min(heads, int(mlp), int(attention)))


# %% wrong="tp-most-devices" because="Raises an error if two devices send too long."
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    found = []
    for m in (2**i for i in range(heads.bit_length())):
        if heads % m or f % m:
            continue
        mlp = 4 * d * f / m
        attention = 4 * d * (d // heads) * (heads / m + max(kv_heads / m, 1))
        sent = 2 * (m - 1) / m * d * 2
        if sent / bandwidth <= min(mlp, attention) / peak:
            found.append(m)
    return max(m for m in found if m > 1)


# %% right="tp-most-devices"
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    def is_useful(m):
        per_head = 2 * d * d / heads
        own_heads, own_kv = heads // m, max(1, kv_heads // m)
        operations = min(2 * 2 * d * f / m, 2 * per_head * own_heads + 2 * per_head * own_kv)
        seconds = 4 * d * (m - 1) / (m * bandwidth)
        return seconds * peak <= operations

    allowed = [m for m in range(1, heads + 1) if math.gcd(heads, f) % m == 0]
    return max(m for m in allowed if is_useful(m))


# %% right="tp-most-devices"
def most_devices(d, f, heads, kv_heads, peak, bandwidth):
    m = np.array([1 << i for i in range(heads.bit_length()) if (heads | f) & ((1 << i) - 1) == 0])
    send = 4 * d * (1 - 1 / m) / bandwidth
    size = d / heads
    compute = np.minimum(f / m, size * heads / m + size * np.maximum(kv_heads / m, 1)) * 4 * d / peak
    return int(m[send <= compute].max())


# %% [markdown] task="tp-ring-matmul" stars=3 minutes=30 skills="tp-gated-mlp,shardmap-ring-all-reduce"
# ## Reduce-scatter during a product
# *Needs: Deeper: overlap communication and computation.*
#
# **Goal.** Multiply two matrices whose summed axis is partitioned, and return a result whose rows are partitioned. Instead of a reduce-scatter, pass partial sums from device to device. A device can then multiply while it receives the next sum.
#
# **Signature.** `ring_matmul(x, w)` takes `x`, a `float32[m,k@model]`, and `w`, a `float32[k@model,n]`. It returns `x @ w` with the type `float32[m@model,n]`. M divides m.
#
# **Example.** On four devices, with `x` of ones with shape (8, 12) and `w` of ones with shape (12, 5), each entry of the result is 12. Each device has 3 of the 12 addends of each entry. It returns 2 of the 8 rows.
#
# **Judged.** The values and the type. All collectives are permutes. In one call, they return at most M · (m / M) · n = m · n elements on each device. Each product that a device computes has at most m / M rows, so that it can run while the sums of another block are sent. **Not judged.** The gradient, the speed, and whether you use a loop.
#
# <details><summary>Hint 1 · a question</summary>
#
# Consider the sum for one block of rows. It needs an addend from each device, and must end on the device that returns this block. If the sum moves to the next device in each step, on which device does it start?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The sum starts on the device after the one that returns it. So device i starts with block i - 1. In step s, it receives the sum of block i - 1 - s, and adds its own product for this block.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With `blocks = x.reshape(M, m // M, -1)` inside `jax.shard_map`, start with `blocks[(i - 1) % M] @ w`. In the steps 1 to M - 1, compute `jax.lax.ppermute(total, "model", to_next) + blocks[(i - 1 - step) % M] @ w`.
#
# </details>


# %% answer="tp-ring-matmul" timeout=20
def ring_matmul(x, w):
    """x float32[m,k@model], w float32[k@model,n] -> x @ w float32[m@model,n], with permutes only."""
    ### BEGIN SOLUTION

    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        to_next = [(i, (i + 1) % n) for i in range(n)]

        def step(number, total):
            own = blocks[(me - 1 - number) % n] @ w  # does not depend on what arrives in this step
            return jax.lax.ppermute(total, "model", to_next) + own

        return jax.lax.fori_loop(1, n, step, blocks[(me - 1) % n] @ w)

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)
    ### END SOLUTION


# %% check="tp-ring-matmul" name="example" points=1
"""The example, a product of other numbers, and the type."""
mesh = grid(4, names=("model",))
with jax.set_mesh(mesh):
    x, w = place(mesh, np.ones((8, 12), np.float32), None, "model"), place(mesh, np.ones((12, 5), np.float32), "model")
    result = ask(ring_matmul, x, w)
    compare(result, np.full((8, 5), 12, np.float32), label="the product")
    got = in_types((8, 5), entries_of(result))
    require(got == "float32[8@model,5]", f"The result has the type {got}; expected float32[8@model,5].")
    numbers = np.arange(96, dtype=np.float32).reshape(8, 12) % 11
    result = ask(ring_matmul, place(mesh, numbers, None, "model"), w)
compare(result, np.repeat(numbers.sum(1)[:, None], 5, axis=1), label="the product of other numbers")

# %% hidden="tp-ring-matmul" name="program" points=3
"""Right for new shapes and meshes, with permutes of blocks only."""
rng = inputs.rng()
for sizes, names, words in (
    ((8,), ("model",), "on eight devices"),
    ((3,), ("model",), "on three devices"),
    ((2, 4), ("data", "model"), "if another mesh axis replicates the matrices"),
):
    mesh, devices_in_ring = grid(*sizes, names=names), sizes[-1]
    m, k = (devices_in_ring * int(rng.integers(2, 5)) for _ in range(2))
    n = int(rng.integers(3, 8))
    one, other = (rng.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    with case(words):
        with jax.set_mesh(mesh):
            x, w = place(mesh, one, None, "model"), place(mesh, other, "model")
            made = program(ring_matmul, x, w)
            compare(made.run(x, w), one @ other, label="the product")
        require(entries_of(made.outputs) == ("model", None), "the result is not partitioned by its rows along model.")
        require(
            all(one.kind == "collective-permute" for one in made.collectives),
            "the program has collectives other than permutes.",
        )
        require(
            made.elements() <= m * n + 2 * (m // devices_in_ring) * n,
            "the permutes return more elements on each device than the whole product has. Send one block in each step.",
        )
        require(
            made.elements() <= m * n,
            "the permutes return one or two blocks more on each device than the whole product has. Take fewer steps.",
        )

# %% hidden="tp-ring-matmul" name="blocks" points=1 observed=true
"""Each product on a device has the rows of one block."""


def probe_products(x, w):
    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            if str(equation.primitive) == "dot_general":
                yield equation.outvars[0].aval.size
            for inner in jaxprs_in_params(equation.params):
                yield from sizes(inner)

    return max(sizes(jax.make_jaxpr(ring_matmul)(x, w).jaxpr), default=0)


rng = inputs.rng()
mesh, n = grid(4, names=("model",)), int(rng.integers(3, 8))
one, other = (rng.normal(size=shape).astype(np.float32) for shape in ((12, 8), (8, n)))
with jax.set_mesh(mesh):
    x, w = place(mesh, one, None, "model"), place(mesh, other, "model")
    largest = ask(probe_products, x, w)
    compare(ask(ring_matmul, x, w), one @ other, label="the product")
require(
    isinstance(largest, int) and largest <= 12 // 4 * n,
    "A product on a device has more rows than one block. Multiply one block of rows in each step.",
)

# %% [markdown] why="tp-ring-matmul"
# This is the second product of an MLP with sequence parallelism. A device can compute its product for a block while the sum of another block is communicated, and it never needs the partial sums of all blocks at once. The lesson applies the same method to the first product, which needs gathered rows. **Next:** Your ring uses each link in one direction only. How would you use both directions, and how many steps would that take?


# %% wrong="tp-ring-matmul" because="Lets the compiler complete the sums, with an all-reduce or a reduce-scatter."
def ring_matmul(x, w):
    return jnp.matmul(x, w, out_sharding=P("model", None))


# %% wrong="tp-ring-matmul" because="Uses `psum_scatter` after the whole product, so no device can send before it has multiplied everything."
def ring_matmul(x, w):
    def on_one_device(x, w):
        return jax.lax.psum_scatter(x @ w, "model", tiled=True)

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Multiplies all rows first and then passes the sums on. Communication cannot overlap with the product."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = (x @ w).reshape(n, -1, w.shape[1])
        to_next = [(i, (i + 1) % n) for i in range(n)]
        step = lambda number, total: jax.lax.ppermute(total, "model", to_next) + blocks[(me - 1 - number) % n]
        return jax.lax.fori_loop(1, n, step, blocks[(me - 1) % n])

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Starts with the device's own block, so each sum ends one device too early."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        to_next = [(i, (i + 1) % n) for i in range(n)]
        step = lambda number, total: jax.lax.ppermute(total, "model", to_next) + blocks[(me - number) % n] @ w
        return jax.lax.fori_loop(1, n, step, blocks[me] @ w)

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Takes one step too many, so an addend is counted twice and the sums end on other devices."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        to_next = [(i, (i + 1) % n) for i in range(n)]
        step = lambda number, total: jax.lax.ppermute(total, "model", to_next) + blocks[(me - 1 - number) % n] @ w
        return jax.lax.fori_loop(1, n + 1, step, blocks[(me - 1) % n] @ w)

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Sends the sums to the previous device, but chooses the blocks for the other direction."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        to_previous = [(i, (i - 1) % n) for i in range(n)]
        step = lambda number, total: jax.lax.ppermute(total, "model", to_previous) + blocks[(me - 1 - number) % n] @ w
        return jax.lax.fori_loop(1, n, step, blocks[(me - 1) % n] @ w)

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Passes the matrix w around instead of the sums. Each device then needs all columns of its rows of x, which it does not have."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        total = blocks[me] @ w
        for _ in range(n - 1):
            w = jax.lax.ppermute(w, "model", [(i, (i + 1) % n) for i in range(n)])
            total += blocks[me] @ w
        return total

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Uses eight as the number of devices."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = 8, jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        to_next = [(i, (i + 1) % n) for i in range(n)]
        step = lambda number, total: jax.lax.ppermute(total, "model", to_next) + blocks[(me - 1 - number) % n] @ w
        return jax.lax.fori_loop(1, n, step, blocks[(me - 1) % n] @ w)

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% wrong="tp-ring-matmul" because="Passes all partial sums around the ring, so each step sends as much as the whole product."
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, -1, x.shape[1])
        own = jnp.concatenate([block @ w for block in blocks])
        moving, total = own, own
        for _ in range(n - 1):
            moving = jax.lax.ppermute(moving, "model", [(i, (i + 1) % n) for i in range(n)])
            total = total + moving
        return total.reshape(n, -1, w.shape[1])[me]

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% right="tp-ring-matmul"
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        rows = x.shape[0] // n
        product = lambda b: jax.lax.dynamic_slice_in_dim(x, b % n * rows, rows) @ w
        total = product(me + 1)
        for step in range(1, n):  # towards the previous device
            total = jax.lax.ppermute(total, "model", [(i, (i - 1) % n) for i in range(n)])
            total += product(me + 1 + step)
        return total

    return jax.shard_map(on_one_device, in_specs=(P(None, "model"), P("model")), out_specs=P("model"))(x, w)


# %% right="tp-ring-matmul"
def ring_matmul(x, w):
    def on_one_device(x, w):
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = jnp.stack(jnp.split(x, n))

        def add(total, number):
            moved = jax.lax.ppermute(total, "model", [(i, (i + 1) % n) for i in range(n)])
            return moved + jnp.einsum("rk,kc->rc", jnp.take(blocks, (me - 1 - number) % n, axis=0), w), None

        start = 0 * (blocks[0] @ w)  # varying, as the carry is
        return jax.lax.scan(add, start, jnp.arange(n))[0]

    return jax.jit(jax.shard_map(on_one_device, out_specs=P("model", None)))(x, w)


# %% right="tp-ring-matmul"
def ring_matmul(x, w):
    def on_one_device(x, w):
        # Direct exchanges: in step s, each device sends its addends to the device s positions further.
        n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
        blocks = x.reshape(n, x.shape[0] // n, -1)
        total = blocks[me] @ w
        for s in range(1, n):
            own = jnp.dot(blocks[(me + s) % n], w)
            total += jax.lax.ppermute(own, "model", [(i, (i + s) % n) for i in range(n)])
        return total

    return jax.shard_map(on_one_device, out_specs=P("model"))(x, w)


# %% [markdown] task="tp-vocab-loss" stars=2 minutes=20 skills="tp-sequence-norm,explicit-resolve-ambiguity,04_grad"
# ## A loss over a partitioned vocabulary
# *Needs: Deeper: the embedding and the loss over a partitioned vocabulary.*
#
# **Goal.** Compute the loss of a language model whose vocabulary is partitioned. The scores (logits) of all words are often the largest array of a training step, so no device should gather these scores.
#
# **Signature.** `vocab_loss(table, h, targets, vocab)` returns the mean loss of B examples as a replicated float32 scalar.
#
# | argument | type | meaning |
# |---|---|---|
# | `table` | `float32[V@model,d]` | a row for each word, then V - `vocab` padding rows |
# | `h` | `float32[B@data,d]` | a hidden vector for each example |
# | `targets` | `int32[B@data]` | the index of the target word for each example |
# | `vocab` | a Python int | the number of words |
#
# The scores are `h @ table.T`. The loss of an example is the cross-entropy `log(sum(exp(scores))) - scores[target]`, where the sum is over the `vocab` words. The table is padded so that M divides V. Its padding rows contain arbitrary finite numbers and must not change the loss.
#
# **Example.** With `h` of zeros, all scores are 0. If `vocab` is 5 and V is 6, the loss is log(5) = 1.609. For another example, let `table` be `[[0], [1], [9], [9]]`, let `vocab` be 2, and let all entries of `h` and `targets` be 1. The scores of the two words are 0 and 1, so the loss is log(1 + e) - 1 = 0.313.
#
# **Judged.** The values, also for scores of several thousand or far below zero, and the gradients with respect to `table` and `h`. For each of its B / D examples, a device may exchange a few numbers, but no row of scores. The collectives of a program together return at most this number of elements.
#
# | program | elements |
# |---|---|
# | the loss | 2 · M · B / D + 4 |
# | the gradients | a shard of `table`, a shard of `h`, and 4 · M · B / D + 8 |
#
# **Not judged.** The mode in which you write the function.
#
# <details><summary>Hint 1 · a question</summary>
#
# Each device has the scores of its own words for its examples. Which three numbers for each example would the devices have to exchange?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The first word of device i along `model` has the index i · V / M. From the indices of its words, each device can find the target and the padding rows. The largest score must be the same on all devices along `model`, and it needs no gradient.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Replace the scores of padding rows by -inf before everything else. Then use `jax.lax.pmax(jax.lax.stop_gradient(scores).max(1), "model")`, a `psum` of the sums of `exp(scores - largest)`, and a `psum` of the scores where the index of the word equals the target. At the end, use `pmean` over `"data"`.
#
# </details>


# %% answer="tp-vocab-loss" timeout=20
def vocab_loss(table, h, targets, vocab):
    """table float32[V@model,d], h float32[B@data,d], targets int32[B@data], vocab int -> the mean cross-entropy ()."""
    ### BEGIN SOLUTION

    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)
    ### END SOLUTION


# %% check="tp-vocab-loss" name="example" points=1
"""The first example, and losses with different and with large scores."""
mesh = grid(4, 2)
table = np.arange(12, dtype=np.float32).reshape(6, 2) / 4
targets = np.array([0, 1, 2, 3, 4, 0, 2, 4], np.int32)
with jax.set_mesh(mesh):
    for size, label in (
        (0, "the loss of equal scores"),
        (1, "the loss of other scores"),
        (1000, "the loss of large scores"),
    ):
        h = np.full((8, 2), size, np.float32)
        scores = (h @ table.T)[:, :5].astype(np.float64)
        scores -= scores.max(1, keepdims=True)  # the loss stays the same, and exp does not overflow
        wanted = np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(8), targets])
        placed = place(mesh, table, "model"), place(mesh, h, "data"), place(mesh, targets, "data")
        result = ask(vocab_loss, *placed, 5)
        compare(result, np.float32(wanted), label=label)
require(entries_of(result) == (), "The result is not replicated.")

# %% hidden="tp-vocab-loss" name="program" points=3
"""Right for other meshes, vocabularies and large scores, without gathering scores."""


def probe_loss_and_gradient(table, h, targets, vocab):
    return jax.grad(lambda table, h: vocab_loss(table, h, targets, vocab), argnums=(0, 1))(table, h)


rng = inputs.rng()
for along_data, along_model, unused, factor, words in (
    (2, 4, 3, 1, "with padding rows on the last device"),
    (2, 3, 11, 1, "with a device that has padding rows only"),
    (4, 2, 3, 50, "with scores of several thousand"),
    (2, 2, 0, 1000, "with scores far below zero"),
):
    mesh, B, d = grid(along_data, along_model), along_data * int(rng.integers(2, 5)), int(rng.integers(3, 7))
    V = along_model * 10
    vocab = V - unused
    table, h = rng.normal(size=(V, d)).astype(np.float32), (factor * rng.normal(size=(B, d))).astype(np.float32)
    far = words == "with scores far below zero"
    if factor > 1:  # integers, so that float32 scores are exact
        table, h = (
            rng.integers(-2, 3, (V, d)).astype(np.float32),
            factor * rng.integers(-2, 3, (B, d)).astype(np.float32),
        )
    if factor == 50:  # the probability of one word is 1, and those of all others are 0, however sums are rounded
        table[:, 1], h[:, 1] = rng.permutation(V) + 1, 50 * factor * (-1) ** np.arange(B)
    if far:
        table[:, 0], h[:, 0] = 1, -40 * factor
    table[vocab:] *= 3
    targets = rng.integers(vocab, size=B).astype(np.int32)
    targets[:2] = 0, vocab - 1
    scores = h.astype(np.float64) @ table[:vocab].T
    largest = scores.max(1, keepdims=True)
    loss = np.mean(np.log(np.exp(scores - largest).sum(1)) + largest[:, 0] - scores[np.arange(B), targets])
    back = np.exp(scores - largest) / np.exp(scores - largest).sum(1, keepdims=True)
    back[np.arange(B), targets] -= 1
    rows = np.zeros((V, d))
    rows[:vocab] = back.T @ h / B
    with case(words), jax.set_mesh(mesh):
        placed = place(mesh, table, "model"), place(mesh, h, "data"), place(mesh, targets, "data")
        made = program(vocab_loss, *placed, vocab)
        compare(made.run(*placed, vocab), np.float32(loss), label="the loss")
        require(entries_of(made.outputs) == (), "the result is not replicated.")
        numbers = along_model * B // along_data
        require(
            made.elements() <= 2 * numbers + 4,
            "the collectives return more than a few numbers for each example. Exchange sums instead of scores.",
        )
        if far:  # many scores are equal, and their probabilities lose digits at this size
            continue
        made = program(probe_loss_and_gradient, *placed, vocab)
        wanted = rows.astype(np.float32), (back @ table[:vocab] / B).astype(np.float32)
        compare(made.run(*placed, vocab), wanted, label="the gradients")
        require(
            made.elements() <= V // along_model * d + B // along_data * d + 4 * numbers + 8,
            "the collectives of the gradients return more than shards of the gradients and a few numbers for each example.",
        )

# %% [markdown] why="tp-vocab-loss"
# A softmax over a partitioned axis needs only the maximum and the sum over the devices. So the devices exchange a few numbers for each example instead of a whole row of scores. Attention over a partitioned sequence uses the same method. **Next:** With 128,000 words and 4,096 tokens on 8 devices along `model`, how many scores would each device receive in an all-gather? How many numbers does it reduce instead?


# %% equivalent="tp-vocab-loss" because="Programs for CPUs compute the product of a bool and a number as a selection, so -inf times False is 0."
# product for where, where(X, Y, 0) -> X * Y: right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")


# %% wrong="tp-vocab-loss" because="Uses the largest score of each device. The devices then add exponentials with different offsets."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -1e30)
        largest = jax.lax.stop_gradient(scores).max(axis=1)
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        largest = jax.lax.pmax(largest, "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Does not subtract the largest score, so the exponentials overflow."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
        total = jax.lax.psum(jnp.exp(scores).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Includes the padding rows in the largest score, so the exponentials of all words may underflow to 0."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = h @ table.T
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        powers = jnp.where(words < vocab, jnp.exp(scores - largest[:, None]), 0)
        total = jax.lax.psum(powers.sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Counts the padding rows of the table as words."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = h @ table.T
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Compares positions in the shard with `vocab` and the targets, instead of the numbers of the words."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Looks up the target with `take_along_axis` on each device. An index outside of the shard reads another word's score."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        local = jnp.clip(targets - words[0], 0, len(table) - 1)
        right = jax.lax.psum(jnp.take_along_axis(h @ table.T, local[:, None], axis=1)[:, 0], "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Gathers the scores of all words on each device."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        scores = jax.lax.all_gather(h @ table.T, "model", axis=1, tiled=True)[:, :vocab]
        right = jnp.take_along_axis(scores, targets[:, None], axis=1)[:, 0]
        return jax.lax.pmean(jnp.mean(jax.nn.logsumexp(scores, axis=1) - right), ("data", "model"))

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Gathers the whole table on each device, as FSDP does, and computes all scores there."
def vocab_loss(table, h, targets, vocab):
    scores = h @ jax.reshard(table, P())[:vocab].T
    right = jnp.sum(jnp.where(jnp.arange(vocab) == targets[:, None], scores, 0), axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)


# %% wrong="tp-vocab-loss" because="Takes the gradient through `pmax`, for which JAX has no rule."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
        largest = jax.lax.pmax(scores.max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Adds the mean losses of the devices along `data` instead of averaging them."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.psum(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Averages the cross-entropies of the devices' own words, but the sum of exponentials is over all words."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -1e30)
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jax.nn.logsumexp(scores, axis=1) - right), ("data", "model"))

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Replaces the scores of padding rows by 0, which still adds exp(0) to the sum."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, 0)
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(axis=1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(axis=1), "model")
        right = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(axis=1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - right), "data")

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% wrong="tp-vocab-loss" because="Gives padding rows the score -1000, but the scores of words may be lower."
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        words = jax.lax.axis_index("model") * len(table) + jnp.arange(len(table))
        scores = jnp.where(words < vocab, h @ table.T, -1000.0)
        largest = jax.lax.pmax(jax.lax.stop_gradient(scores).max(1), "model")
        total = jax.lax.psum(jnp.exp(scores - largest[:, None]).sum(1), "model")
        own = jax.lax.psum(jnp.where(words == targets[:, None], scores, 0).sum(1), "model")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + largest - own), "data")

    return jax.shard_map(on_one_device, in_specs=(P("model"), P("data"), P("data")), out_specs=P())(table, h, targets)


# %% right="tp-vocab-loss"
def vocab_loss(table, h, targets, vocab):
    words = jnp.arange(table.shape[0])
    scores = jnp.where(words < vocab, h @ table.T, -jnp.inf)
    right = jnp.sum(jnp.where(words == targets[:, None], scores, 0), axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)


# %% right="tp-vocab-loss"
def vocab_loss(table, h, targets, vocab):
    def on_one_device(table, h, targets):
        first = jax.lax.axis_index("model") * len(table)
        scores = jnp.where(first + jnp.arange(len(table)) < vocab, h @ table.T, -1e30)
        sums = jax.lax.all_gather(jax.nn.logsumexp(scores, axis=1), "model", to="varying")
        inside = (targets >= first) & (targets < first + len(table))
        picked = jnp.take_along_axis(scores, jnp.clip(targets - first, 0, len(table) - 1)[:, None], axis=1)[:, 0]
        right = jax.lax.psum(jnp.where(inside, picked, 0), "model")
        loss = jnp.mean(jax.nn.logsumexp(sums, axis=0) - right)
        return jax.lax.pmean(loss, ("data", "model"))

    return jax.shard_map(on_one_device, out_specs=P())(table, h, targets)


# %% right="tp-vocab-loss"
def vocab_loss(table, h, targets, vocab):
    words = jnp.arange(table.shape[0])
    logits = jnp.where(words < vocab, jnp.einsum("bd,vd->bv", h, table), -1e30)
    hot = words[None, :] == targets[:, None]
    return -jnp.mean(jnp.where(hot, jax.nn.log_softmax(logits, axis=1), 0).sum(axis=1))
