# %% [markdown]
# # 19 · Exercises: shard_map
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX counts its devices only once, so if the setup fails, restart the kernel and run it first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise.
#
# All meshes have Explicit axes. The setup sets no mesh. **Each check enters its own mesh with `jax.set_mesh`**, so your code can use a bare `P` and omit `mesh=`. Call `jax.shard_map` inside your function. If you decorate a function with it instead, JAX 0.10.2 keeps the mesh of its first call, and the checks use several meshes. Types are written as JAX prints them, so `float32[n@data,d]` is an array of shape (n, d) whose first axis is partitioned along `data`. Some exercises ask for **the code of one device**. The check calls such a function inside its own `jax.shard_map`, and one of its arguments is the name of a mesh axis.
#
# The checks count the **elements** that a collective returns on one device, because a compiler may merge several collectives into one operation. In a loop, they count each iteration.

# %% setup
from grader.checks import ask, compare, devices, inputs, program, require

devices.start(8)  # before JAX is first used

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# Accelerators round the factors of a product to fewer bits unless told otherwise; here every product keeps all of them.
jax.config.update("jax_default_matmul_precision", "highest")


def grid(*sizes, names=("x", "y")):
    """A mesh with Explicit axes, such as grid(4, 2) or grid(8, names=("data",))."""
    return devices.mesh(sizes, names, explicit=True)


def place(mesh, array, *entries):
    """The NumPy array (or key array) on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


def entries_of(array):
    """The entries of the spec of an array or ShapeDtypeStruct, one for each axis. None if it has no such spec."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    found = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in sharding.spec]
    return (*found, *[None] * (array.ndim - len(found)))


def in_types(shape, entries):
    """Text such as float32[8@data,4] for a shape and the entries of a spec."""
    written = [
        f"{size}@({','.join(entry)})" if isinstance(entry, tuple) else f"{size}@{entry}" if entry else f"{size}"
        for size, entry in zip(shape, entries or [None] * len(shape), strict=True)
    ]
    return f"float32[{','.join(written)}]"


def received(made, *kinds):
    """The elements that the collectives of these kinds (all kinds if none is given) return on one device in one call of
    a program. None if a loop runs an unknown number of times."""
    found = [one for one in made.collectives if not kinds or one.kind in kinds]
    return None if any(one.times is None for one in found) else sum(one.elements * one.times for one in found)


def line_loss_sum(params, x, y, weights):
    """Weighted SUM of the squared errors of a line: {"w": (1,)}, x (B, 1), y (B,), weights (B,) -> ()"""
    return jnp.sum(weights * (x @ params["w"] - y) ** 2)


def network_loss_sum(params, x, y, weights):
    """Weighted SUM of squared errors: {"w1": (d, h), "w2": (h,)}, x (B, d), y (B,), weights (B,) -> ()"""
    return jnp.sum(weights * (jnp.tanh(x @ params["w1"]) @ params["w2"] - y) ** 2)


def mean_loss(params, x, y):
    """Mean squared error of a network: {"w1": (d, h), "w2": (h,)}, x (B, d), y (B,) -> ()"""
    return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] - y) ** 2)


def network(rng, width, hidden):
    """Parameters of the network as NumPy float32, from a NumPy generator."""
    draw = lambda *shape: (rng.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)
    return {"w1": draw(width, hidden), "w2": draw(hidden)}


def by_hand(params, x, y, weights):
    """The weighted loss of the network and its gradients in NumPy, as a reference for the checks."""
    w1, w2 = (params[name].astype(np.float64) for name in ("w1", "w2"))
    hidden = np.tanh(x @ w1)
    wrong = hidden @ w2 - y
    back = 2 * weights * wrong
    gradients = {"w1": x.T @ (back[:, None] * w2 * (1 - hidden**2)), "w2": hidden.T @ back}
    return np.float32(np.sum(weights * wrong**2)), {name: g.astype(np.float32) for name, g in gradients.items()}


# %% [markdown] task="shardmap-psum-matmul" stars=1 minutes=10 skills="16_sharding,17_explicit_sharding"
# ## A product of blocks
# **Goal.** Multiply two matrices whose summed axis is partitioned. Each device multiplies its blocks, and the devices add their partial sums. Two lines are missing.
#
# **Signature.** `psum_matmul(a, b)` takes `a`, a `float32[m@x,k@y]`, and `b`, a `float32[k@y,n]`. It returns `a @ b` with the type `float32[m@x,n]`. The checks use meshes of several sizes with the axes `x` and `y`.
#
# **Example.** For `a` of ones with shape (8, 16) and `b` of ones with shape (16, 4) on a mesh of four by two devices, each entry of the result is 16. Each device multiplies a block (2, 8) by a block (8, 4).
#
# **Judged.** The values and the type. The compiled program has exactly one collective, an all-reduce of the shard of the result. **Not judged.** The speed, and how you write it.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which mesh axis partitions the summed axis `k`? Which devices have partial sums of the same entries?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.lax.psum(value, name)` adds the values of all devices along one mesh axis. Afterwards, the value varies along the other axis only.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Add over `"y"`. The result still differs along `"x"`, where each device has other rows, so `out_specs` names `"x"` for the first axis and no name for the second.
#
# </details>


# %% answer="shardmap-psum-matmul"
def psum_matmul(a, b):
    """a float32[m@x,k@y], b float32[k@y,n] -> a @ b float32[m@x,n]."""

    def on_one_device(a, b):
        partial_sums = a @ b
        ### BEGIN SOLUTION
        return jax.lax.psum(partial_sums, "y")
        ### END SOLUTION

    in_specs = P("x", "y"), P("y", None)
    ### BEGIN SOLUTION
    out_specs = P("x", None)
    ### END SOLUTION
    return jax.shard_map(on_one_device, in_specs=in_specs, out_specs=out_specs)(a, b)


# %% check="shardmap-psum-matmul" name="example" points=1
"""The example, and the type of the result."""
mesh = grid(4, 2)
with jax.set_mesh(mesh):
    a, b = place(mesh, np.ones((8, 16), np.float32), "x", "y"), place(mesh, np.ones((16, 4), np.float32), "y")
    result = ask(psum_matmul, a, b)
compare(result, np.full((8, 4), 16, np.float32), label="the product")
got = in_types((8, 4), entries_of(result))
require(got == "float32[8@x,4]", f"The result has the type {got}; expected float32[8@x,4].")
numbers = inputs.rng().normal(size=(4, 8)).astype(np.float32)
with jax.set_mesh(grid(2, 4)):
    result = ask(psum_matmul, place(grid(2, 4), numbers, "x", "y"), place(grid(2, 4), numbers.T, "y"))
compare(result, numbers @ numbers.T, label="another product, on two by four devices")

# %% hidden="shardmap-psum-matmul" name="program" points=2
"""Right for new shapes and meshes, with one all-reduce of the shard of the result."""
rng = inputs.rng()
for along_x, along_y in ((4, 2), (2, 4), (2, 3)):
    m, k, n = along_x * int(rng.integers(2, 5)), along_y * int(rng.integers(2, 6)), int(rng.integers(3, 8))
    one, other = (rng.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    mesh = grid(along_x, along_y)
    with jax.set_mesh(mesh):
        a, b = place(mesh, one, "x", "y"), place(mesh, other, "y")
        made = program(psum_matmul, a, b)
        compare(made.run(a, b), one @ other, label="the product")
    require(entries_of(made.outputs) == ("x", None), "The result is not partitioned by its rows along x alone.")
    require(
        [one.kind for one in made.collectives] == ["all-reduce"],
        "The program should have exactly one collective, an all-reduce.",
    )
    require(
        made.elements("all-reduce") == m // along_x * n,
        "The all-reduce does not return as many elements on each device as its shard of the result has.",
    )

# %% [markdown] why="shardmap-psum-matmul"
# The local product is right for the block of `a` and the block of `b`, but it contains only a part of each sum. `psum` over `y` completes the sums, and its result is equal on all devices along `y`. Therefore JAX accepts `out_specs` without `y`. **Next:** Which collective and which `out_specs` would leave each device with half of the columns of its rows?


# %% wrong="shardmap-psum-matmul" because="Returns the partial sums without adding them. The value still varies along `y`, so JAX rejects the `out_specs`."
def psum_matmul(a, b):
    return jax.shard_map(jnp.matmul, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(a, b)


# %% wrong="shardmap-psum-matmul" because="Disables the check instead of adding the partial sums. The result is that of the devices at position 0 along `y`."
def psum_matmul(a, b):
    specs = P("x", "y"), P("y", None)
    return jax.shard_map(jnp.matmul, in_specs=specs, out_specs=P("x", None), check_vma=False)(a, b)


# %% wrong="shardmap-psum-matmul" because="Adds over `x`, where the devices have other rows. The partial sums along `y` are not added."
def psum_matmul(a, b):
    add = lambda a, b: jax.lax.psum(a @ b, "x")
    return jax.shard_map(add, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y"))(a, b)


# %% wrong="shardmap-psum-matmul" because="Adds over both mesh axes, so the rows of different devices are added to each other."
def psum_matmul(a, b):
    add = lambda a, b: jax.lax.psum(a @ b, ("x", "y"))
    return jax.shard_map(add, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(a, b)


# %% wrong="shardmap-psum-matmul" because="Averages the partial sums instead of adding them."
def psum_matmul(a, b):
    add = lambda a, b: jax.lax.pmean(a @ b, "y")
    return jax.shard_map(add, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(a, b)


# %% wrong="shardmap-psum-matmul" because="Concatenates the partial sums of the devices along `y` instead of adding them."
def psum_matmul(a, b):
    return jax.shard_map(jnp.matmul, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y"))(a, b)


# %% wrong="shardmap-psum-matmul" because="Concatenates equal results. After the sum over `y` they do not vary along `y`, so `out_specs` should not name it."
def psum_matmul(a, b):
    add = lambda a, b: jax.lax.psum(a @ b, "y")
    return jax.shard_map(add, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y"))(a, b)


# %% wrong="shardmap-psum-matmul" because="Adds the blocks before it multiplies. A product of sums is not the sum of the products."
def psum_matmul(a, b):
    add = lambda a, b: jax.lax.psum(a, "y") @ jax.lax.psum(b, "y")
    return jax.shard_map(add, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(a, b)


# %% wrong="shardmap-psum-matmul" because="Gathers the blocks of both matrices and multiplies whole rows by whole columns, so each device does the work of several."
def psum_matmul(a, b):
    def multiply(a, b):
        a = jax.lax.all_gather(a, "y", axis=1, tiled=True, to="invarying")
        return a @ jax.lax.all_gather(b, "y", axis=0, tiled=True, to="invarying")

    return jax.shard_map(multiply, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(a, b)


# %% wrong="shardmap-psum-matmul" because="Replicates the result along `x` too, so each device stores all rows."
def psum_matmul(a, b):
    def multiply(a, b):
        return jax.lax.all_gather(jax.lax.psum(a @ b, "y"), "x", tiled=True, to="invarying")

    return jax.shard_map(multiply, in_specs=(P("x", "y"), P("y", None)), out_specs=P())(a, b)


# %% wrong="shardmap-psum-matmul" because="Decorates the function with `jax.shard_map`, which keeps the mesh of the first call in JAX 0.10.2."
@jax.shard_map(in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))
def psum_matmul(a, b):
    return jax.lax.psum(a @ b, "y")


# %% right="shardmap-psum-matmul"
def psum_matmul(a, b):
    multiply = lambda a, b: jax.lax.psum(jnp.einsum("mk,kn->mn", a, b), "y")
    return jax.shard_map(multiply, out_specs=P("x"))(a, b)


# %% right="shardmap-psum-matmul"
def psum_matmul(a, b):
    return jnp.matmul(a, b, out_sharding=P("x", None))


# %% right="shardmap-psum-matmul"
def psum_matmul(a, b):
    def multiply(a, b):
        return jax.lax.axis_size("y") * jax.lax.pmean(jnp.dot(a, b), "y")

    specs = P("x", "y"), P("y")
    return jax.jit(jax.shard_map(multiply, in_specs=specs, out_specs=P("x"), check_vma=False))(a, b)


# %% [markdown] task="shardmap-fsdp-layer" stars=2 minutes=15 skills="shardmap-psum-matmul,dp-fsdp,04_grad"
# ## A layer whose weights are stored in shards
# **Goal.** Write a layer with FSDP by hand. Each device stores a shard of the parameters, gathers them while it uses them, and receives only its shard of their gradients.
#
# **Signature.** `fsdp_layer(w, b, x)` takes `w`, a `float32[d@data,h]`, `b`, a `float32[h@data]`, and a batch `x`, a `float32[B@data,d]`. It returns `tanh(x @ w + b)` with the type `float32[B@data,h]`. The checks use meshes of several sizes with the axis `data`.
#
# **Example.** On eight devices, with `w` of zeros of shape (16, 8), `b` = [0, 1, …, 7] and any batch of 16 examples, each row of the result is `tanh([0, 1, …, 7])`. Each device stores a shard (2, 8) of `w`, one entry of `b` and two examples.
#
# **Judged.** The values, the gradients with respect to all three arguments, and their types. The program of the layer has all-gathers of d · h + h elements and no other communication. The program of the gradients has **reduce-scatters** of (d · h + h) / N elements on N devices, gathers the parameters at most twice, and has no other communication. **Not judged.** The number of operations, and the scratch memory.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does a device need in order to compute all outputs of its own examples? What does it already have?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.lax.all_gather(shard, name, tiled=True)` concatenates the shards of all devices along axis 0. You do not write the reduce-scatter. It is the transpose of the all-gather, and `jax.grad` inserts it.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Inside the function of `jax.shard_map`, gather `w` and `b`, and compute `jnp.tanh(x @ w + b)` for the local examples. All three arguments and the result have the spec `P("data")`. Leave `to=` of `all_gather` at its default.
#
# </details>


# %% answer="shardmap-fsdp-layer"
def fsdp_layer(w, b, x):
    """w float32[d@data,h], b float32[h@data], x float32[B@data,d] -> tanh(x @ w + b) float32[B@data,h]."""
    ### BEGIN SOLUTION

    def on_one_device(w, b, x):
        w, b = (jax.lax.all_gather(shard, "data", tiled=True) for shard in (w, b))
        return jnp.tanh(x @ w + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)
    ### END SOLUTION


# %% check="shardmap-fsdp-layer" name="example" points=1
"""The example, and the communication of the layer."""
mesh = grid(8, names=("data",))
arrays = np.zeros((16, 8), np.float32), np.arange(8, dtype=np.float32), np.ones((16, 16), np.float32)
placed = [place(mesh, array, "data") for array in arrays]
drawn = inputs.rng().normal(size=(16, 8)).astype(np.float32) / 4
with jax.set_mesh(mesh):
    made = program(fsdp_layer, *placed)
    compare(made.run(*placed), np.tile(np.tanh(arrays[1]), (16, 1)), label="the result")
    result = made.run(place(mesh, drawn, "data"), *placed[1:])
    compare(result, np.tanh(arrays[2] @ drawn + arrays[1]), label="the result for other weights")
got = in_types((16, 8), entries_of(made.outputs))
require(got == "float32[16@data,8]", f"The result has the type {got}; expected float32[16@data,8].")
found = [(one.kind, one.elements) for one in made.collectives]
require(
    received(made) == received(made, "all-gather") == 136,
    f"The collectives of the layer are {found}; expected all-gathers of 128 + 8 = 136 elements.",
)

# %% hidden="shardmap-fsdp-layer" name="layer" points=1
"""Right for new shapes and meshes. The layer gathers its parameters and communicates nothing else."""
rng = inputs.rng()
for size in (8, 4, 6):
    d, h, batch = (size * int(rng.integers(1, 4)) for _ in range(3))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((d, h), (h,), (batch, d))]
    arrays[0] /= np.float32(math.sqrt(d))
    mesh = grid(size, names=("data",))
    with jax.set_mesh(mesh):
        w, b, x = (place(mesh, array, "data") for array in arrays)
        made = program(fsdp_layer, w, b, x)
        compare(made.run(w, b, x), np.tanh(arrays[2] @ arrays[0] + arrays[1]), label="the result")
    require(entries_of(made.outputs) == ("data", None), "The result is not partitioned by examples along data.")
    require(
        received(made, "all-gather") == d * h + h,
        "The all-gathers do not return as many elements on each device as the parameters have.",
    )
    require(received(made) == d * h + h, "The program has other collectives than all-gathers.")

# %% hidden="shardmap-fsdp-layer" name="gradient" points=2
"""The gradients are right, have the types of the arguments, and are reduce-scattered."""


def probe_gradients(w, b, x, cotangent):
    return jax.vjp(fsdp_layer, w, b, x)[1](cotangent)


rng = inputs.rng()
for size in (8, 4):
    d, h, batch = (size * int(rng.integers(1, 4)) for _ in range(3))
    shapes = (d, h), (h,), (batch, d), (batch, h)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays[0] /= np.float32(math.sqrt(d))
    weights, bias, examples, cotangent = (array.astype(np.float64) for array in arrays)
    back = cotangent * (1 - np.tanh(examples @ weights + bias) ** 2)
    wanted = tuple(g.astype(np.float32) for g in (examples.T @ back, back.sum(0), back @ weights.T))
    mesh = grid(size, names=("data",))
    with jax.set_mesh(mesh):
        placed = [place(mesh, array, "data") for array in arrays]
        made = program(probe_gradients, *placed)
        compare(made.run(*placed), wanted, label="the gradients with respect to w, b and x")
    for name, gradient in zip(("w", "b", "x"), made.outputs, strict=True):
        require(entries_of(gradient)[0] == "data", f"The gradient with respect to {name} is not partitioned as {name}.")
    count = d * h + h
    require(
        made.elements("all-reduce") == 0,
        "The gradient's program has an all-reduce, which gives every device the gradient of all parameters.",
    )
    require(
        received(made, "reduce-scatter") == count // size,
        "The reduce-scatters of the gradient's program do not return one shard of the gradients on each device.",
    )
    require(
        received(made, "all-gather") <= 2 * count and received(made) <= 2 * count + count // size,
        "The gradient's program communicates more than the parameters twice and one shard of their gradients.",
    )

# %% [markdown] why="shardmap-fsdp-layer"
# In the forward pass, each device receives the shards of all others. The backward pass runs this in reverse. Each device computes the gradient of all weights for its own examples, and the reduce-scatter adds these gradients and leaves each device with its own shard. **Next:** The gathered weights are residuals of the backward pass. How would you gather them again instead of storing them, and which collectives does the gradient's program have then?


# %% wrong="shardmap-fsdp-layer" because="Stacks the shards along a new axis, because `all_gather` concatenates only with `tiled=True`."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        w, b = (jax.lax.all_gather(shard, "data") for shard in (w, b))
        return jnp.tanh(x @ w + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Marks the gathered weights as equal on all devices. Their gradients are then reduced on every device, with an all-reduce."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        w, b = (jax.lax.all_gather(shard, "data", tiled=True, to="invarying") for shard in (w, b))
        return jnp.tanh(x @ w + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Replicates the weights before `shard_map`. The gradient of a replicated argument is an all-reduce of all of it."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        return jnp.tanh(x @ w + b)

    specs = P(), P(), P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(
        jax.reshard(w, P()), jax.reshard(b, P()), x
    )


# %% wrong="shardmap-fsdp-layer" because="Leaves the collectives to the compiler. On a CPU it all-reduces the gradient of all weights on every device."
def fsdp_layer(w, b, x):
    return jnp.tanh(x @ jax.reshard(w, P()) + jax.reshard(b, P()))


# %% wrong="shardmap-fsdp-layer" because="Gathers the batch too, so every device computes all examples."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        count = len(x)
        w, b, x = (jax.lax.all_gather(shard, "data", tiled=True) for shard in (w, b, x))
        result = jnp.tanh(x @ w + b)
        return jax.lax.dynamic_slice_in_dim(result, jax.lax.axis_index("data") * count, count)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Multiplies by the shard of `w` only and adds the results of devices that have other examples."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        mine = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("data") * len(w), len(w), axis=1)
        b = jax.lax.all_gather(b, "data", tiled=True)
        return jnp.tanh(jax.lax.psum(mine @ w, "data") + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Gathers `w` but not `b`, so the shapes do not match."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        return jnp.tanh(x @ jax.lax.all_gather(w, "data", tiled=True) + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Concatenates the shards along the second axis, but `w` is partitioned along the first."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        w = jax.lax.all_gather(w, "data", axis=1, tiled=True)
        return jnp.tanh(x @ w + jax.lax.all_gather(b, "data", tiled=True))

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Builds the whole weights with `psum`. An all-reduce communicates twice as much as an all-gather."
def fsdp_layer(w, b, x):
    def whole(shard):
        place, size = jax.lax.axis_index("data"), jax.lax.axis_size("data")
        zeros = jnp.zeros((size * len(shard), *shard.shape[1:]))
        return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(zeros, shard, place * len(shard), 0), "data")

    def on_one_device(w, b, x):
        return jnp.tanh(x @ whole(w) + whole(b))

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Promises with `out_specs=P()` that all devices have equal results, but each has other examples."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        w, b = (jax.lax.all_gather(shard, "data", tiled=True) for shard in (w, b))
        return jnp.tanh(x @ w + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P())(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Stops the gradient at the gathered weights, so the parameters are never trained."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        w, b = (jax.lax.stop_gradient(jax.lax.all_gather(shard, "data", tiled=True)) for shard in (w, b))
        return jnp.tanh(x @ w + b)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% right="shardmap-fsdp-layer"
def fsdp_layer(w, b, x):
    def layer(w, b, x):
        whole = jax.lax.all_gather(w, "data").reshape(-1, w.shape[1])
        return jnp.tanh(x @ whole + jax.lax.all_gather(b, "data").ravel())

    return jax.shard_map(layer, mesh=jax.sharding.get_abstract_mesh(), out_specs=P("data", None))(w, b, x)


# %% right="shardmap-fsdp-layer"
def fsdp_layer(w, b, x):
    @jax.checkpoint
    def on_one_device(w, b, x):
        gather = functools.partial(jax.lax.all_gather, axis_name="data", axis=0, tiled=True)
        return jnp.tanh(jnp.dot(x, gather(w)) + gather(b)[None])

    specs = P("data", None), P("data"), P("data", None)
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data", None), check_vma=False)(w, b, x)


# %% right="shardmap-fsdp-layer"
@jax.custom_vjp
def _gathered(shard):
    return jax.lax.all_gather(shard, "data", tiled=True)


_gathered.defvjp(
    lambda shard: (_gathered(shard), None),
    lambda _, g: (jax.lax.psum_scatter(g, "data", tiled=True),),
)


def fsdp_layer(w, b, x):
    layer = lambda w, b, x: jnp.tanh(x @ _gathered(w) + _gathered(b))
    return jax.jit(jax.shard_map(layer, in_specs=(P("data"),) * 3, out_specs=P("data")))(w, b, x)
