# %% [markdown]
# # 19 · Exercises: shard_map
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise.
#
# All meshes have Explicit axes. The setup sets no mesh. **Each check enters its own mesh with `jax.set_mesh`**, so your code can use a bare `P` and omit `mesh=`. Call `jax.shard_map` inside your function. If you decorate a function with it instead, JAX 0.10.2 keeps the mesh of its first call, and the checks use several meshes. Types are written as JAX prints them, so `float32[n@data,d]` is an array of shape (n, d) whose first axis is partitioned along `data`. Some exercises ask for **per-device code**. The check calls such a function inside its own `jax.shard_map`, and one of its arguments is the name of a mesh axis.
#
# The checks count the **elements** that collectives return on one device, not the operations, because a compiler may merge several collectives into one. In a loop, they count each iteration. A loop whose number of iterations the compiler does not know counts as infinite.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, program, require
from grader.checks.devices import entries_of, in_types

devices.start(8)  # before JAX is first used

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def grid(*sizes, names=("x", "y")):
    """A mesh with Explicit axes, such as grid(4, 2) or grid(8, names=("data",))."""
    return devices.mesh(sizes, names, explicit=True)


def place(mesh, array, *entries):
    """The NumPy array (or key array) on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


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


def ring_elements(made):
    """Elements that one device sends in one call of the program `made`, by the ring formulas of the lesson."""
    total = 0
    for one in made.collectives:
        n, times = one.group_size or 1, math.inf if one.times is None else one.times
        factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1, "collective-permute": 1}
        total += times * one.elements * factors.get(one.kind, (n - 1) / n)
    return total


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
# Add over `"y"`. The result still differs along `"x"`, where the devices have different rows, so `out_specs` names `"x"` for the first axis and no name for the second.
#
# </details>


# %% answer="shardmap-psum-matmul" timeout=20
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
for along_x, along_y, n in (
    (4, 2, 2 * int(rng.integers(2, 4))),  # the devices along y divide n
    (2, 4, int(rng.integers(3, 8))),
    (2, 3, int(rng.integers(3, 8))),
):
    m, k = along_x * int(rng.integers(2, 5)), along_y * int(rng.integers(2, 6))
    one, other = (rng.normal(size=shape).astype(np.float32) for shape in ((m, k), (k, n)))
    mesh = grid(along_x, along_y)
    with jax.set_mesh(mesh):
        a, b = place(mesh, one, "x", "y"), place(mesh, other, "y")
        made = program(psum_matmul, a, b)
        got, wanted = made.run(a, b), one @ other
        copies = got.shape == (m, along_y * n) and np.allclose(got, np.tile(wanted, along_y), atol=1e-4)
        require(not copies, "The result contains the product several times, once for each device along y.")
        compare(got, wanted, label=f"the product on {along_x} by {along_y} devices")
    require(entries_of(made.outputs) == ("x", None), "The result is not partitioned by its rows along x alone.")
    kinds = sorted(one.kind for one in made.collectives)
    require(
        kinds == ["all-reduce"],
        f"The collectives of the program are {kinds}. It should have exactly one, an all-reduce.",
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


# %% wrong="shardmap-psum-matmul" because="Adds over `x`, where the devices have different rows. The partial sums along `y` are not added."
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


# %% wrong="shardmap-psum-matmul" because="Builds the sum from a reduce-scatter and an all-gather. These are two collectives, and the reduce-scatter needs a size that the devices divide."
def psum_matmul(a, b):
    def multiply(a, b):
        mine = jax.lax.psum_scatter(a @ b, "y", scatter_dimension=1, tiled=True)
        return jax.lax.all_gather(mine, "y", axis=1, tiled=True, to="invarying")

    return jax.shard_map(multiply, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(a, b)


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


# %% [markdown] task="shardmap-which-collective" stars=2 minutes=20 skills="shardmap-psum-matmul"
# ## Which collective?
# **Goal.** In training on many devices, a device has some numbers and needs others. Choose the collectives for seven such cases, so that no device sends more than the limit of the check.
#
# **Signature.** All functions are per-device code. `mine` is a float32 array that differs from device to device, and `axis` is the name of a mesh axis of n devices, at least two. The mesh may have other axes. Where a result is divided into n parts, d or c is a multiple of n. In `share_of_both`, n is the number of devices along `second`.
#
# | function | the device has | the device needs |
# |---|---|---|
# | `own_share(mine, axis)` | a gradient `(d,)` | its part `(d / n,)` of the sum of all gradients: device 0 needs the first part, and so on |
# | `whole_weights(mine, axis)` | a shard `(d,)` of the weights | all shards in the order of the devices, `(n · d,)` |
# | `own_columns(mine, axis)` | rows `(r, c)` of a table, in the order of the devices | a block of columns of the whole table, `(n · r, c / n)`: device 0 needs the first block, and so on |
# | `row_before(mine, axis)` | a row `(d,)` | the row of the device before it, and zeros on device 0 |
# | `row_of_first(mine, axis)` | a row `(d,)` | the row of device 0 |
# | `best_score(mine, axis)` | scores `(d,)` | the largest of all scores, `()`, and the first device that has it, an int32 `()` |
# | `share_of_both(mine, first, second)` | a gradient `(d,)`. It differs along two mesh axes, `first` and `second` | the sum over both axes is divided into parts as in `own_share`, and the position along `second` selects the part that a device needs |
#
# **Example.** Two devices have `[1, 2]` and `[7, 4]`. `own_share` returns `[8]` on device 0 and `[6]` on device 1, and `whole_weights` returns `[1, 2, 7, 4]`. `row_before` returns `[0, 0]` on device 0 and `[1, 2]` on device 1. `row_of_first` returns `[1, 2]`, and `best_score` returns 7 and 1. If the rows of a table are `[[1, 2]]` and `[[7, 4]]`, `own_columns` returns `[[1], [7]]` on device 0 and `[[2], [4]]` on device 1.
#
# **Judged.** The values on each device. The elements that a device sends, computed from the compiled program with the ring formulas of the lesson. If they are too many, the check reports them and the limit. For `best_score`, the limit is two numbers to each of the other devices. On TPUs, the compiler may replace a small reduce-scatter with an all-reduce, which is accepted there. **Not judged.** Whether the types of the results vary.
#
# <details><summary>Hint 1 · a question</summary>
#
# In which cases does the device need a sum or a maximum? In the others, from which devices come the numbers that it needs?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Reduce on the device before you communicate, and communicate in the order that makes the arrays small first. On a device that is not a receiver, `ppermute` returns zeros. For `row_of_first`, which rows would make a sum over all devices equal to the row of device 0?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In `own_columns`, the table is split along axis 1 and concatenated along axis 0. In `row_of_first`, all devices but one add zeros. In `best_score`, a device whose own maximum is smaller than that of all devices can name a position that is too large, so that a minimum finds the first. In `share_of_both`, the sum along `first` is of 1/n of the gradient if it comes last.
#
# </details>


# %% answer="shardmap-which-collective" timeout=20
def own_share(mine, axis):
    """Code of one device: (d,) -> its part (d / n,) of the sum over all devices."""
    ### BEGIN SOLUTION
    return jax.lax.psum_scatter(mine, axis, tiled=True)
    ### END SOLUTION


def whole_weights(mine, axis):
    """Code of one device: its shard (d,) -> all shards in order (n * d,)."""
    ### BEGIN SOLUTION
    return jax.lax.all_gather(mine, axis, tiled=True)
    ### END SOLUTION


def own_columns(mine, axis):
    """Code of one device: its rows (r, c) of a table -> its columns (n * r, c / n) of the whole table."""
    ### BEGIN SOLUTION
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)
    ### END SOLUTION


def row_before(mine, axis):
    """Code of one device: (d,) -> the row (d,) of the device before it, and zeros on device 0."""
    ### BEGIN SOLUTION
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])
    ### END SOLUTION


def row_of_first(mine, axis):
    """Code of one device: (d,) -> the row (d,) of device 0."""
    ### BEGIN SOLUTION
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)
    ### END SOLUTION


def best_score(mine, axis):
    """Code of one device: scores (d,) -> the largest score of all devices () and the first device that has it, int32 ()."""
    ### BEGIN SOLUTION
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)
    ### END SOLUTION


def share_of_both(mine, first, second):
    """Code of one device: (d,) -> the part (d / n,) of the sum over both axes that its position along `second` selects."""
    ### BEGIN SOLUTION
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)
    ### END SOLUTION


# %% check="shardmap-which-collective" name="example" points=1
"""The example, on two devices, and a sum over a mesh of two by two."""


def probe_example(vectors, table):
    def on_one_device(vector, rows):
        best, device = best_score(vector[0], "x")
        return {
            "own_share": own_share(vector[0], "x")[None],
            "whole_weights": whole_weights(vector[0], "x")[None],
            "own_columns": own_columns(rows[0], "x")[None],
            "row_before": row_before(vector[0], "x")[None],
            "row_of_first": row_of_first(vector[0], "x")[None],
            "best_score": (best[None], device[None]),
        }

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(vectors, table)


def probe_grid(gradients):
    on_one_device = lambda part: share_of_both(part[0, 0], "x", "y")[None, None]
    return jax.shard_map(on_one_device, in_specs=P("x", "y"), out_specs=P("x", "y"))(gradients)


vectors, mesh = np.array([[1, 2], [7, 4]], np.float32), grid(2, names=("x",))
with jax.set_mesh(mesh):
    found = ask(probe_example, place(mesh, vectors, "x"), place(mesh, vectors[:, None], "x"))
wanted = {
    "own_share": [[8], [6]],
    "whole_weights": [[1, 2, 7, 4], [1, 2, 7, 4]],
    "own_columns": [[[1], [7]], [[2], [4]]],
    "row_before": [[0, 0], [1, 2]],
    "row_of_first": [[1, 2], [1, 2]],
}
wanted = {name: np.array(rows, np.float32) for name, rows in wanted.items()}
wanted["best_score"] = np.array([7, 7], np.float32), np.array([1, 1], np.int32)
compare(found, wanted, label="the results")
gradients, mesh = np.arange(8, dtype=np.float32).reshape(2, 2, 2), grid(2, 2)
with jax.set_mesh(mesh):
    found = ask(probe_grid, place(mesh, gradients, "x", "y"))
compare(found, np.array([[[12], [16]]] * 2, np.float32), label="the results of `share_of_both`")

# %% hidden="shardmap-which-collective" name="sums" points=2
"""Sums and the best score: right on each device, and no device sends more than it has to."""


def probe_share(parts, axis):
    on_one_device = lambda part: own_share(part[0], axis)[None]
    return jax.shard_map(on_one_device, in_specs=P(axis), out_specs=P(axis))(parts)


def probe_best(parts, axis):
    def on_one_device(part):
        best, place = best_score(part[0], axis)
        return best[None], place[None]

    return jax.shard_map(on_one_device, in_specs=P(axis), out_specs=P(axis))(parts)


def probe_both(parts, first, second):
    on_one_device = lambda part: share_of_both(part[0, 0], first, second)[None, None]
    return jax.shard_map(on_one_device, in_specs=P("x", "y"), out_specs=P("x", "y"))(parts)


rng, spare = inputs.rng(), 2 if jax.default_backend() == "tpu" else 1
for sizes, axis in (((4, 2), "x"), ((2, 3), "y")):
    mesh, n = grid(*sizes), sizes["xy".index(axis)]
    d = n * int(rng.integers(2, 5))
    numbers = rng.normal(size=(n, d)).astype(np.float32) - 3  # the largest score is negative too
    leaders = rng.permutation(np.arange(1, n))[:2]
    numbers[leaders, rng.integers(d, size=2)] = numbers.max() + 0.25  # two devices have the largest score
    right = np.full(n, numbers.max()), np.full(n, leaders.min(), np.int32)
    with jax.set_mesh(mesh):
        parts = place(mesh, numbers, axis)
        shares, best = program(probe_share, parts, axis), program(probe_best, parts, axis)
        compare(shares.run(parts, axis), numbers.sum(0).reshape(n, -1), label=f"the results of `own_share`, n = {n}")
        compare(best.run(parts, axis), right, label=f"the results of `best_score`, n = {n}")
    for which, made, most in (("own_share", shares, spare * (n - 1) / n * d), ("best_score", best, 2 * (n - 1))):
        sent = ring_elements(made)
        require(
            sent <= most + 0.01,
            f"In `{which}`, a device sends {sent:g} elements; {most:g} are enough (n = {n}, d = {d}).",
        )
for sizes, first, second in (((4, 2), "x", "y"), ((3, 2), "y", "x")):
    mesh, (n1, n) = grid(*sizes), (sizes["xy".index(name)] for name in (first, second))
    d = n * int(rng.choice([5, 7]))  # the number of devices along `first` does not divide d / n
    numbers = rng.normal(size=(*sizes, d)).astype(np.float32)
    shares = numbers.sum((0, 1)).reshape(n, -1)
    right = np.broadcast_to(shares if second == "y" else shares[:, None], (*sizes, d // n))
    with jax.set_mesh(mesh):
        parts = place(mesh, numbers, "x", "y")
        made = program(probe_both, parts, first, second)
        words = f"the results of `share_of_both` on {sizes[0]} by {sizes[1]} devices"
        compare(made.run(parts, first, second), np.ascontiguousarray(right), label=words)
    sent, most = ring_elements(made), spare * (n - 1) / n * d + 2 * (n1 - 1) / n1 * d / n
    require(
        sent <= most + 0.01,
        f"In `share_of_both`, a device sends {sent:g} elements; {most:g} are enough ({n1} devices along `first`, {n} along "
        f"`second`, d = {d}).",
    )

# %% hidden="shardmap-which-collective" name="moves" points=2
"""Parts that move from device to device: right on each device, and no device sends more than it has to."""


def probe_moves(which, parts, axis):
    function = {
        "whole_weights": whole_weights,
        "own_columns": own_columns,
        "row_before": row_before,
        "row_of_first": row_of_first,
    }[which]
    return jax.shard_map(lambda part: function(part[0], axis)[None], in_specs=P(axis), out_specs=P(axis))(parts)


rng = inputs.rng()
for sizes, axis in (((4, 2), "x"), ((2, 3), "y")):
    mesh, n = grid(*sizes), sizes["xy".index(axis)]
    d, r = n * int(rng.integers(2, 5)), n + int(rng.integers(1, 3))  # n does not divide r
    rows = rng.normal(size=(n, d)).astype(np.float32)
    table = rng.normal(size=(n, r, d)).astype(np.float32)
    columns = table.reshape(n * r, n, d // n).swapaxes(0, 1)
    wanted = {
        "whole_weights": (rows, np.tile(rows.ravel(), (n, 1)), (n - 1) * d),
        "own_columns": (table, columns, (n - 1) / n * r * d),
        "row_before": (rows, np.concatenate([np.zeros((1, d), np.float32), rows[:-1]]), d),
        "row_of_first": (rows, np.tile(rows[0], (n, 1)), 2 * (n - 1) / n * d),
    }
    for which, (numbers, right, most) in wanted.items():
        with jax.set_mesh(mesh):
            parts = place(mesh, numbers, axis)
            made = program(probe_moves, which, parts, axis)
            compare(made.run(which, parts, axis), right, label=f"the results of `{which}`, n = {n}")
        sent = ring_elements(made)
        require(
            sent <= most + 0.01,
            f"In `{which}`, a device sends {sent:g} elements; {most:g} are enough (n = {n}, and {numbers[0].size} elements on "
            "each device).",
        )

# %% [markdown] why="shardmap-which-collective"
# The question "what does this device have, and what does it need?" leads to the collective. Partial sums need a reduction: `psum` if all devices need the sum, and `psum_scatter` if each needs its own part. Complete numbers only move: from all devices to all (`all_gather`), from each device a different block to each of the others (`all_to_all`), or from one device to one other (`ppermute`). One to all is a broadcast: a masked `psum` sends up to twice as much as necessary, and `jax.lax.pbroadcast` is the collective for it where the platform supports it (CPUs do not). With two axes, the order matters, because a reduce-scatter makes everything after it smaller. Training on several nodes uses this: it scatters within the fast node, and adds between the slow nodes. **Next:** How would you complete the all-reduce over both axes after `share_of_both`?


# %% equivalent="shardmap-which-collective" because="The rows are finite, so their product with False is 0."
# product for where, where(X, Y, 0) -> X * Y: return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


# %% equivalent="shardmap-which-collective" because="A product with a comparison selects one of two whole numbers too."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))


# %% wrong="shardmap-which-collective" because="Adds whole gradients and takes its own part afterwards, which sends twice as much as a reduce-scatter."
def own_share(mine, axis):
    part = mine.shape[0] // jax.lax.axis_size(axis)
    total = jax.lax.psum(mine, axis)
    return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index(axis) * part, part)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Scatters the wrong axis, so a device receives every n-th entry of the sum instead of a part without gaps."
def own_share(mine, axis):
    parts = mine.reshape(-1, jax.lax.axis_size(axis))
    return jax.lax.psum_scatter(parts, axis, scatter_dimension=1)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Stacks the shards along a new axis instead of concatenating them."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Writes its shard into zeros and adds them, which sends twice as much as an all-gather."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    n, place = jax.lax.axis_size(axis), jax.lax.axis_index(axis) * mine.shape[0]
    empty = jnp.zeros(n * mine.shape[0], mine.dtype)
    return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(empty, mine, place, 0), axis)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Gathers the whole table and takes its columns, so each device receives n times as much as it needs."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    width = mine.shape[1] // jax.lax.axis_size(axis)
    table = jax.lax.all_gather(mine, axis, tiled=True)
    return jax.lax.dynamic_slice_in_dim(table, jax.lax.axis_index(axis) * width, width, axis=1)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Swaps the two axes, so rows are split and columns are concatenated."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=0, concat_axis=1, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Closes the ring, so device 0 receives the row of the last device."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    n = jax.lax.axis_size(axis)
    return jax.lax.ppermute(mine, axis, [(i, (i + 1) % n) for i in range(n)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Sends each row to the device before it, so a device receives the row after its own."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i + 1, i) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Gathers the rows of all devices to keep one of them."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.all_gather(mine, axis)[0]


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Gathers all scores, although the largest score of each device is enough."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    scores = jax.lax.all_gather(mine, axis)
    return scores.max(), jnp.argmax(scores.max(1)).astype(jnp.int32)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Adds the positions of all devices that have the largest score, but several may have it."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    return best, jax.lax.psum(jnp.where(own == best, jax.lax.axis_index(axis), 0), axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Returns the last device that has the largest score."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    return best, jax.lax.pmax(jnp.where(own == best, jax.lax.axis_index(axis), -1), axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Takes the largest of the sums over the devices."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    total = jax.lax.psum(mine, axis)
    return total.max(), jax.lax.pmin(jnp.int32(jax.lax.axis_index(axis)), axis)


def share_of_both(mine, first, second):
    return jax.lax.psum(jax.lax.psum_scatter(mine, second, tiled=True), first)


# %% wrong="shardmap-which-collective" because="Adds whole gradients along `first` before it scatters, so the whole gradient is communicated along both axes."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum_scatter(jax.lax.psum(mine, first), second, tiled=True)


# %% wrong="shardmap-which-collective" because="Scatters the sum over both axes at once, so devices with the same position along `second` get different parts."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum_scatter(mine, (first, second), tiled=True)


# %% wrong="shardmap-which-collective" because="Adds along `second` only."
def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis, tiled=True)


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine, axis, split_axis=1, concat_axis=0, tiled=True)


def row_before(mine, axis):
    return jax.lax.ppermute(mine, axis, [(i, i + 1) for i in range(jax.lax.axis_size(axis) - 1)])


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, mine, 0), axis)


def best_score(mine, axis):
    own = mine.max()
    best = jax.lax.pmax(own, axis)
    place = jnp.where(own == best, jax.lax.axis_index(axis), jax.lax.axis_size(axis))
    return best, jax.lax.pmin(place, axis)


def share_of_both(mine, first, second):
    return jax.lax.psum_scatter(mine, second, tiled=True)


# %% right="shardmap-which-collective"
def own_share(mine, axis):
    parts = mine.reshape(jax.lax.axis_size(axis), -1)
    return jax.lax.psum_scatter(parts, axis)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine, axis).ravel()


def own_columns(mine, axis):
    blocks = jnp.stack(jnp.split(mine, jax.lax.axis_size(axis), axis=1))
    return jax.lax.all_to_all(blocks, axis, 0, 0).reshape(-1, blocks.shape[2])


def row_before(mine, axis):
    n = jax.lax.axis_size(axis)
    arrived = jax.lax.ppermute(mine, axis, [(i, (i + 1) % n) for i in range(n)])
    return arrived * (jax.lax.axis_index(axis) > 0)


def row_of_first(mine, axis):
    return jax.lax.psum(mine * (jax.lax.axis_index(axis) == 0), axis)


def best_score(mine, axis):
    best = jax.lax.all_gather(jnp.max(mine), axis)
    return jnp.max(best), jnp.argmax(best)


def share_of_both(mine, first, second):
    own = own_share(mine, second)
    return jax.lax.pmean(own, first) * jax.lax.axis_size(first)


# %% right="shardmap-which-collective"
class Exchange:
    """The communication of one device along an axis."""

    def __init__(self, axis):
        self.axis, self.n, self.place = axis, jax.lax.axis_size(axis), jax.lax.axis_index(axis)

    def shift(self, value):
        return jax.lax.pshuffle(value, self.axis, [self.n - 1, *range(self.n - 1)])


def own_share(mine, axis):
    return jax.lax.psum_scatter(mine, axis_name=axis, scatter_dimension=0, tiled=True)


def whole_weights(mine, axis):
    return jax.lax.all_gather(mine[:, None], axis, tiled=True)[:, 0]


def own_columns(mine, axis):
    return jax.lax.all_to_all(mine.T, axis, 0, 1, tiled=True).T


def row_before(mine, axis):
    me = Exchange(axis)
    return jnp.where(me.place == 0, 0, me.shift(mine))


def row_of_first(mine, axis):
    return jax.lax.psum(jnp.where(Exchange(axis).place == 0, mine, jnp.zeros_like(mine)), axis)


def best_score(mine, axis):
    me, own = Exchange(axis), -jnp.min(-mine)
    best = jax.lax.pmax(own, axis)
    return best, me.n - 1 - jax.lax.pmax(jax.lax.select(own == best, me.n - 1 - me.place, -1), axis)


def share_of_both(mine, first, second):
    parts = mine.reshape(jax.lax.axis_size(second), -1)
    return jax.lax.psum((jax.lax.psum_scatter(parts, second),), first)[0]


# %% [markdown] task="shardmap-fsdp-layer" stars=2 minutes=15 skills="shardmap-psum-matmul,dp-fsdp,04_grad"
# ## A layer whose weights are stored in shards
# **Goal.** Write a layer with FSDP by hand. Each device stores a shard of the parameters, gathers all of them for use, and receives only its shard of their gradients.
#
# **Signature.** `fsdp_layer(w, b, x)` takes `w`, a `float32[d@data,h]`, `b`, a `float32[h@data]`, and a batch `x`, a `float32[B@data,d]`. It returns `tanh(x @ w + b)` with the type `float32[B@data,h]`. The checks use meshes of several sizes with the axis `data`.
#
# **Example.** On eight devices, with `w` of zeros of shape (16, 8), `b` = [0, 1, …, 7] and any batch of 16 examples, each row of the result is `tanh([0, 1, …, 7])`. Each device stores a shard (2, 8) of `w`, one entry of `b` and two examples.
#
# **Judged.** The values, the gradients with respect to all three arguments, and their types. The program of the layer has all-gathers of d · h + h elements and no other communication. The program of the gradients has **reduce-scatters** of (d · h + h) / N elements on N devices, gathers the parameters at most twice, and has no other communication. (In both programs, a compiler may use an all-reduce for `b`, which is small. The checks allow one such all-reduce of h elements.) **Not judged.** The number of operations, and the scratch memory.
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
# Which parameters are shards? Gather each of them inside the function of `jax.shard_map`, and leave `to=` of `all_gather` at its default. The batch stays where it is.
#
# </details>


# %% answer="shardmap-fsdp-layer" timeout=20
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
    made.elements() == 136 and made.elements("all-gather") >= 128,
    f"The collectives of the layer are {found}; expected all-gathers of 128 + 8 = 136 elements.",
)

# %% hidden="shardmap-fsdp-layer" name="layer" points=1
"""Right for new shapes and meshes. The layer gathers its parameters and communicates nothing else."""
rng = inputs.rng()
for size in (8, 4):
    d, h, batch = (size * int(rng.integers(2, 4)) for _ in range(3))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((d, h), (h,), (batch, d))]
    arrays[0] /= np.float32(math.sqrt(d))
    mesh = grid(size, names=("data",))
    with jax.set_mesh(mesh):
        w, b, x = (place(mesh, array, "data") for array in arrays)
        made = program(fsdp_layer, w, b, x)
        compare(made.run(w, b, x), np.tanh(arrays[2] @ arrays[0] + arrays[1]), label="the result")
    require(entries_of(made.outputs) == ("data", None), "The result is not partitioned by examples along data.")
    require(
        made.elements("all-gather") >= d * h,
        "The all-gathers return fewer elements on each device than the parameters have.",
    )
    require(made.elements() == d * h + h, "The program communicates more or less than the parameters.")

# %% hidden="shardmap-fsdp-layer" name="gradient" points=2
"""The gradients are right, have the types of the arguments, and are reduce-scattered."""


def probe_gradients(w, b, x, cotangent):
    return jax.vjp(fsdp_layer, w, b, x)[1](cotangent)


rng = inputs.rng()
for size in (8, 4):
    d, h = (128 * int(rng.integers(1, 3)) for _ in range(2))  # smaller ones are all-reduced on TPUs
    batch = size * int(rng.integers(2, 4))
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
        require(
            entries_of(gradient)[0] == "data", f"The gradient with respect to {name} is not partitioned like {name}."
        )
    count = d * h + h
    require(
        made.elements("all-reduce") <= 2 * h,
        "The gradient's program has an all-reduce, which gives every device the gradient of all parameters.",
    )
    require(
        d * h // size <= made.elements("reduce-scatter") <= count // size,
        "The reduce-scatters of the gradient's program do not return one shard of the gradients on each device.",
    )
    require(
        made.elements("all-gather") <= 2 * count and made.elements() <= 2 * count + count // size + h,
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


# %% wrong="shardmap-fsdp-layer" because="Replicates the weights with `jax.reshard`. The gradient of a replicated array is an all-reduce of all of it."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        return jnp.tanh(x @ w + b)

    specs = P(), P(), P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(
        jax.reshard(w, P()), jax.reshard(b, P()), x
    )


# %% wrong="shardmap-fsdp-layer" because="Replicates the weights with `jax.reshard`. The gradient of a replicated array is an all-reduce of all of it."
def fsdp_layer(w, b, x):
    w, b = jax.reshard(w, P()), jax.reshard(b, P())
    return jnp.tanh(x @ w + b)


# %% wrong="shardmap-fsdp-layer" because="Gathers the batch too, so every device computes all examples."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        count = len(x)
        w, b, x = (jax.lax.all_gather(shard, "data", tiled=True) for shard in (w, b, x))
        result = jnp.tanh(x @ w + b)
        return jax.lax.dynamic_slice_in_dim(result, jax.lax.axis_index("data") * count, count)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(w, b, x)


# %% wrong="shardmap-fsdp-layer" because="Multiplies by the shard of `w` only and adds the results of devices that have different examples."
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


# %% wrong="shardmap-fsdp-layer" because="Promises with `out_specs=P()` that all devices have equal results, but each device has different examples."
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


# %% wrong="shardmap-fsdp-layer" because="Gathers the weights for each example, so their gradients are reduce-scattered once for each example."
def fsdp_layer(w, b, x):
    def on_one_device(w, b, x):
        def one(row):
            whole, bias = (jax.lax.all_gather(shard, "data", tiled=True) for shard in (w, b))
            return jnp.tanh(row @ whole + bias)

        return jax.lax.map(one, x)

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


# %% [markdown] task="shardmap-batch-norm" stars=2 minutes=20 skills="shardmap-psum-matmul,04_grad"
# ## Batch normalisation over all devices
# **Goal.** Normalise each channel by the mean and the variance of the **whole** batch, while each device has only its own examples.
#
# **Signature.** `global_batch_norm(x, scale, shift, axis)` is per-device code. `x` is the shard of a batch, with shape (B, …, C) and two or more axes, `scale` and `shift` have the shape (C,), and all are float32. `axis` is the name of the mesh axis that partitions the batch, or a tuple of such names. All devices have the same number of examples. The function returns `(normalised, mean, variance)`. Mean and variance, both (C,), are computed over the whole batch and all axes except the last, and do not vary along `axis`. The first result is `(x - mean) / sqrt(variance + 1e-5) * scale + shift`.
#
# **Example.** On two devices with the axis `"data"`, the first device has x = [[0], [2]] and the second x = [[4], [6]]. The mean is 3 and the variance 5. With `scale` 1 and `shift` 0, the first device returns about [[-1.342], [-0.447]].
#
# **Judged.** The values, also if the mean is large or the values hardly differ, and the gradient of any function of the first result with respect to `x`, computed outside of `jax.shard_map`. Other mesh axes may partition the channels, and `axis` does not contain these. In the compiled program of the function itself, the all-reduces return at most 2 · C + 4 elements on each device, where C counts the channels of its shard, and there is no other communication. **Not judged.** The number of all-reduces.
#
# <details><summary>Hint 1 · a question</summary>
#
# The mean of eight local means is the mean of the whole batch. Is the mean of eight local variances its variance? Try it with the example.
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The variance is the mean of the squared differences from a mean. From which mean, that of the device or that of the whole batch? `jax.lax.pmean` also accepts a tuple of names.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A local mean over `tuple(range(x.ndim - 1))`, followed by `pmean`, is a mean of the whole batch. You need two of these, one after the other.
#
# </details>


# %% answer="shardmap-batch-norm" timeout=20
def global_batch_norm(x, scale, shift, axis):
    """x (B, ..., C), scale (C,), shift (C,) of one device -> (normalised, mean, variance) of the whole batch."""
    ### BEGIN SOLUTION

    def average(values):
        return jax.lax.pmean(jnp.mean(values, axis=tuple(range(x.ndim - 1))), axis)

    mean = average(x)
    variance = average((x - mean) ** 2)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance
    ### END SOLUTION


# %% check="shardmap-batch-norm" name="example" points=1
"""The example on two devices, and a batch of images on eight."""


def probe_norm(x, scale, shift):
    on_one_device = lambda *arrays: global_batch_norm(*arrays, "data")
    specs = P("data"), P(), P()
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=specs))(x, scale, shift)


mesh = grid(2, names=("data",))
with jax.set_mesh(mesh):
    x = place(mesh, np.array([[0], [2], [4], [6]], np.float32), "data")
    result = ask(probe_norm, x, np.ones(1, np.float32), np.zeros(1, np.float32))
exact = np.array([[-3], [-1], [1], [3]], np.float32) / np.float32(math.sqrt(5.00001))
wanted = exact, np.array([3], np.float32), np.array([5], np.float32)
compare(result, wanted, label="normalised, mean and variance")
mesh, images = grid(8, names=("data",)), inputs.rng().normal(size=(16, 3, 5, 2)).astype(np.float32)
with jax.set_mesh(mesh):
    x = place(mesh, images, "data")
    result = ask(probe_norm, x, np.ones(2, np.float32), np.zeros(2, np.float32))
compare(result[1:], (images.mean((0, 1, 2)), images.var((0, 1, 2))), label="mean and variance of a batch of images")

# %% hidden="shardmap-batch-norm" name="values" points=1
"""Right for other ranks, meshes and axis names, and for channels that are partitioned too."""


def probe_rows(x, scale, shift, axis):
    on_one_device = lambda *arrays: global_batch_norm(*arrays, axis)
    specs = P(axis), P(), P()
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=specs))(x, scale, shift)


def probe_channels(x, scale, shift):
    on_one_device = lambda *arrays: global_batch_norm(*arrays, "examples")
    specs = P("examples", None, "channels"), P("channels"), P("channels")
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=specs))(x, scale, shift)


rng = inputs.rng()
draw = lambda *shape: (2 * rng.normal(size=shape) + rng.normal(size=shape[-1])).astype(np.float32)


def wanted(x, scale, shift):
    flat = x.astype(np.float64).reshape(-1, x.shape[-1])
    normalised = (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-5) * scale + shift
    return normalised.astype(np.float32), flat.mean(0).astype(np.float32), flat.var(0).astype(np.float32)


for mesh, axis, words in (
    (grid(4, names=("rows",)), "rows", "on four devices"),
    (grid(2, 3), "y", "if a second mesh axis replicates the batch"),
    (grid(2, 4), ("x", "y"), "if two mesh axes partition the batch"),
):
    arrays = draw(24, 5), draw(5), draw(5)
    with case(words), jax.set_mesh(mesh):
        result = ask(probe_rows, place(mesh, arrays[0], axis), *arrays[1:], axis)
        compare(result, wanted(*arrays), label="normalised, mean and variance")
mesh, arrays = grid(4, names=("rows",)), ((0.01 * rng.normal(size=(24, 5))).astype(np.float32), draw(5), draw(5))
with case("if the values hardly differ"), jax.set_mesh(mesh):
    result = ask(probe_rows, place(mesh, arrays[0], "rows"), *arrays[1:], "rows")
    compare(result, wanted(*arrays), label="normalised, mean and variance")
mesh = grid(4, 2, names=("examples", "channels"))
arrays = draw(8, 3, 6), draw(6), draw(6)
with case("if the channels are partitioned too"), jax.set_mesh(mesh):
    placed = place(mesh, arrays[0], "examples", None, "channels"), *(place(mesh, a, "channels") for a in arrays[1:])
    compare(ask(probe_channels, *placed), wanted(*arrays), label="normalised, mean and variance")

# %% hidden="shardmap-batch-norm" name="program" points=2
"""The program sums two numbers for each channel over the devices, and the gradient with respect to x is right."""


def probe_both(x, scale, shift):
    on_one_device = lambda *arrays: global_batch_norm(*arrays, "batch")
    specs = P("batch"), P(), P()
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=specs))(x, scale, shift)


def probe_gradient(x, scale, shift, cotangent):
    first = lambda *arrays: global_batch_norm(*arrays, "batch")[0]
    mapped = jax.jit(jax.shard_map(first, in_specs=(P("batch"), P(), P()), out_specs=P("batch")))
    return jax.vjp(lambda x: mapped(x, scale, shift), x)[1](cotangent)[0]


rng = inputs.rng()
mesh, channels = grid(8, names=("batch",)), int(rng.integers(5, 9))
x, cotangent = rng.normal(size=(2, 16, 3, channels)).astype(np.float32) + np.float32(0.5)
scale, shift = rng.uniform(1, 2, size=(2, channels)).astype(np.float32)
with jax.set_mesh(mesh):
    placed = place(mesh, x, "batch")
    made = program(probe_both, placed, scale, shift)
    mean, variance = x.mean((0, 1)), x.var((0, 1))
    normal = (x - mean) / np.sqrt(variance + 1e-5)
    compare(made.run(placed, scale, shift), (normal * scale + shift, mean, variance), label="the three results")
    gradient = ask(probe_gradient, placed, scale, shift, place(mesh, cotangent, "batch"))
means = cotangent.mean((0, 1)) + normal * (cotangent * normal).mean((0, 1))
compare(gradient, scale / np.sqrt(variance + 1e-5) * (cotangent - means), label="the gradient with respect to x")
require(
    made.elements() == made.elements("all-reduce", "reduce-scatter"),
    "The program has collectives other than all-reduces. The examples should stay on their devices.",
)
require(
    made.elements() <= 2 * channels + 4,
    "The all-reduces return more elements on each device than mean and variance have.",
)

# %% [markdown] why="shardmap-batch-norm"
# The mean of the local means is the global mean if all shards have the same size. The mean of the local variances is not the global variance, which also depends on how the local means differ. In Auto and Explicit mode, `jnp.mean` and `jnp.var` over a partitioned axis use the whole batch. In per-device code, they use the local shard only. After a migration, a missing `pmean` is therefore a common mistake. **Next:** Two all-reduces in sequence wait twice for the network. How can a single one suffice, and what does this cost in precision if the mean is large?


# %% wrong="shardmap-batch-norm" because="Normalises by the mean and the variance of the examples of one device."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean, variance = jnp.mean(x, axis=axes), jnp.var(x, axis=axes)
    normalised = (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift
    return normalised, jax.lax.pmean(mean, axis), jax.lax.pmean(variance, axis)


# %% wrong="shardmap-batch-norm" because="Averages the local variances, which leaves out how the local means differ."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean = jax.lax.pmean(jnp.mean(x, axis=axes), axis)
    variance = jax.lax.pmean(jnp.var(x, axis=axes), axis)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Adds the means of the devices instead of averaging them."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean = jax.lax.psum(jnp.mean(x, axis=axes), axis)
    variance = jax.lax.psum(jnp.mean((x - mean) ** 2, axis=axes), axis)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Averages over the first axis only, but images have more axes before the channels."
def global_batch_norm(x, scale, shift, axis):
    mean = jax.lax.pmean(jnp.mean(x, axis=0), axis)
    variance = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=0), axis)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Uses the axis name of the example instead of the argument `axis`."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean = jax.lax.pmean(jnp.mean(x, axis=axes), "data")
    variance = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=axes), "data")
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Gathers the whole batch on every device."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    batch = jax.lax.all_gather(x, axis, tiled=True, to="invarying")
    mean, variance = jnp.mean(batch, axis=axes), jnp.var(batch, axis=axes)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Adds the 1e-5 to the standard deviation instead of the variance."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean = jax.lax.pmean(jnp.mean(x, axis=axes), axis)
    variance = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=axes), axis)
    return (x - mean) / (jnp.sqrt(variance) + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Divides the sum over all devices by the number of local examples."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    count = math.prod(x.shape[:-1])
    mean = jax.lax.psum(jnp.sum(x, axis=axes), axis) / count
    variance = jax.lax.psum(jnp.sum((x - mean) ** 2, axis=axes), axis) / count
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Treats mean and variance as constants, so the gradient with respect to x is wrong."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean = jax.lax.stop_gradient(jax.lax.pmean(jnp.mean(x, axis=axes), axis))
    variance = jax.lax.stop_gradient(jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=axes), axis))
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Divides by the number of examples minus one, which gives an unbiased estimate and not the variance of the batch."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    count = math.prod(x.shape[:-1]) * jax.lax.axis_size(axis)
    mean = jax.lax.psum(jnp.sum(x, axis=axes), axis) / count
    variance = jax.lax.psum(jnp.sum((x - mean) ** 2, axis=axes), axis) / (count - 1)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Computes mean and variance of the shards in the code of one device, but returns them as if they were equal on all devices."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean, variance = jnp.mean(x, axis=axes), jnp.var(x, axis=axes)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Reduces the examples over the devices before it averages them, so the devices communicate whole shards."
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    mean = jnp.mean(jax.lax.pmean(x, axis), axis=axes)
    variance = jnp.mean(jax.lax.pmean((x - mean) ** 2, axis), axis=axes)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% wrong="shardmap-batch-norm" because="Averages over the axes of a table or of images only, but a batch may have any number of axes."
def global_batch_norm(x, scale, shift, axis):
    axes = (0, 1, 2) if x.ndim == 4 else 0
    mean = jax.lax.pmean(jnp.mean(x, axis=axes), axis)
    variance = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=axes), axis)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% right="shardmap-batch-norm"
def global_batch_norm(x, scale, shift, axis):
    flat = x.reshape(-1, x.shape[-1])
    mean, square = jax.lax.pmean((flat.mean(0), (flat**2).mean(0)), axis)
    variance = square - mean**2
    return scale * (x - mean) * jax.lax.rsqrt(variance + 1e-5) + shift, mean, variance


# %% right="shardmap-batch-norm"
def global_batch_norm(x, scale, shift, axis):
    count = jax.lax.psum(math.prod(x.shape[:-1]), axis)
    total = lambda values: jax.lax.psum(jnp.einsum("...c->c", values), axis)
    mean = total(x) / count
    variance = total((x - mean) ** 2) / count
    return (x - mean) * (scale / jnp.sqrt(variance + 1e-5)) + shift, mean, variance


# %% right="shardmap-batch-norm"
def global_batch_norm(x, scale, shift, axis):
    axes = tuple(range(x.ndim - 1))
    local_mean, local_variance = jnp.mean(x, axis=axes), jnp.var(x, axis=axes)
    mean = jax.lax.pmean(local_mean, axis)
    variance = jax.lax.pmean(local_variance + (local_mean - mean) ** 2, axis)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift, mean, variance


# %% [markdown] task="shardmap-gradient-inside" stars=3 minutes=30 skills="dp-accumulate,08_control_flow,shardmap-batch-norm"
# ## A gradient inside
# **Goal.** Add the gradients of several micro-batches on each device, and reduce the sum over the devices once. Compute the gradient inside per-device code, where gradients that are N times too large on N devices are a common mistake.
#
# **Signature.** `gradient_inside(loss_sum, params, xs, ys, weights, axis)` is per-device code. `params` is a tree of float32 arrays that do not vary along `axis`. `xs (M, B, d)`, `ys (M, B)` and `weights (M, B)` are the device's examples of M micro-batches. `loss_sum(params, x, y, weights)` returns the **sum** of the weighted losses of the examples of one micro-batch. `axis` is the name of the mesh axis that partitions the examples. The result is a tree like `params` and does not vary along `axis`. It is the gradient of the sum of all weighted losses divided by the sum of all weights, over all micro-batches and devices.
#
# **Example.** Take one micro-batch on two devices, the parameter `w = [0]`, and the loss `Σ weight (w x - y)²` with x = 1 everywhere. The first device has y = [1, 3] with weights [1, 1], and the second y = [5, 9] with weights [1, 0]. The gradient is -2 (1 + 3 + 5) / 3 = -6.
#
# **Judged.** The values. The compiled program has a loop over the micro-batches (`scan` or `fori_loop`), and no collective inside it. Each iteration processes one micro-batch, or a few: outside the loop, the program neither computes nor stores the gradients of many micro-batches at once. (The check limits the largest array to half of these gradients, and the operations with one iteration of each loop to a third of all. Programs for GPUs do not state the operations of products.) After the loop, the all-reduces return at most as many elements as the gradients have, plus 4, and there is no other communication. The mesh may have another axis, along which everything is replicated. **Not judged.** The number of all-reduces.
#
# <details><summary>Hint 1 · a question</summary>
#
# Where does JAX insert a `psum` if you call `jax.grad(loss_sum)(params, ...)` in the loop? Which property of `params` is the reason?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Cast the parameters once, before the loop, with `jax.lax.pcast(params, axis, to="varying")`. Then `jax.grad` returns the gradient of this device alone. The initial sum in the carry must be varying too.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.tree.map(jnp.zeros_like, varying)` is varying, as its argument is. After the scan, apply `jax.lax.psum` to the tree and to `weights.sum()`, and divide.
#
# </details>


# %% answer="shardmap-gradient-inside" timeout=20
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    """Code of one device: the gradient of (sum of all weighted losses) / (sum of all weights) over M micro-batches."""
    ### BEGIN SOLUTION
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)
    ### END SOLUTION


# %% check="shardmap-gradient-inside" name="example" points=1
"""The example on two devices, and two micro-batches on eight."""


def probe_line(params, xs, ys, weights):
    on_one_device = lambda *arrays: gradient_inside(line_loss_sum, *arrays, "data")
    parts = P(None, "data")
    specs = P(), parts, parts, parts
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys, weights)


params, rng = {"w": np.zeros(1, np.float32)}, inputs.rng()
two, eight = grid(2, names=("data",)), grid(8, names=("data",))
for mesh, ys, weights, wanted in (
    (two, [[1, 3, 5, 9]], [[1, 1, 1, 0]], -6),
    (eight, np.arange(32).reshape(2, 16), np.ones((2, 16)), -31),
):
    data = np.ones((*np.shape(ys), 1)), np.array(ys), np.array(weights)
    with jax.set_mesh(mesh):
        placed = [place(mesh, array.astype(np.float32), None, "data") for array in data]
        result = ask(probe_line, params, *placed)
    compare(result, {"w": np.array([wanted], np.float32)}, label="the gradient")

# %% hidden="shardmap-gradient-inside" name="values" points=1
"""Right for a network, if the weights differ between micro-batches and devices, on other meshes."""


def probe_values(params, xs, ys, weights, axis):
    on_one_device = lambda *arrays: gradient_inside(network_loss_sum, *arrays, axis)
    parts = P(None, axis)
    specs = P(), parts, parts, parts
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys, weights)


rng = inputs.rng()
for mesh, axis, words in (
    (grid(4, names=("rows",)), "rows", "on four devices"),
    (grid(2, 3), "x", "if another mesh axis replicates everything"),
):
    micro_batches, width = int(rng.integers(2, 6)), int(rng.integers(3, 7))
    xs = rng.normal(size=(micro_batches, 8, width)).astype(np.float32)
    ys = rng.normal(size=(micro_batches, 8)).astype(np.float32)
    weights = rng.uniform(size=(micro_batches, 8)) * (rng.uniform(size=(micro_batches, 8)) < 0.6)
    weights = (weights * rng.uniform(0.1, 4, size=(micro_batches, 1)) + 0.01).astype(np.float32)
    params = network(rng, width, 5)
    with case(words), jax.set_mesh(mesh):
        placed = [place(mesh, array, None, axis) for array in (xs, ys, weights)]
        got = ask(probe_values, params, *placed, axis)
        flat = xs.reshape(-1, width), ys.ravel(), weights.ravel() / weights.sum()
        compare(got, by_hand(params, *flat)[1], label="the gradient")

# %% hidden="shardmap-gradient-inside" name="program" points=3
"""A loop over the micro-batches contains no collective, and every gradient is reduced once, after the loop."""


def probe_program(params, xs, ys, weights):
    on_one_device = lambda *arrays: gradient_inside(network_loss_sum, *arrays, "batch")
    specs = P(), *[P(None, "batch")] * 3
    return jax.jit(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys, weights)


rng, mesh = inputs.rng(), grid(4, 2, names=("batch", "model"))
M, B, d, h = 24, 8, 24, 32
params = network(rng, d, h)
xs, ys, weights = (rng.uniform(0.1, 1, size=shape).astype(np.float32) for shape in ((M, B, d), (M, B), (M, B)))
with case("with the axes batch and model"), jax.set_mesh(mesh):
    placed = [place(mesh, array, None, "batch") for array in (xs, ys, weights)]
    made = program(probe_program, params, *placed)
    flat = xs.reshape(M * B, d), ys.ravel(), weights.ravel() / weights.sum()
    compare(made.run(params, *placed), by_hand(params, *flat)[1], label="the gradient")
require(made.loops > 0, "The program has no loop over the micro-batches. Use a scan.")
require(
    not any(one.in_loop for one in made.collectives),
    "The loop contains a collective. The devices communicate for every micro-batch. Cast the parameters before the loop.",
)
require(
    made.elements() == made.elements("all-reduce", "reduce-scatter"),
    "The program has collectives other than all-reduces.",
)
require(
    made.elements() <= d * h + h + 4,
    "The all-reduces return more elements than the gradients have. Reduce each gradient once.",
)
require(
    made.intermediates < M * (d * h + h) / 2,
    f"For {M} micro-batches, the program has an array of {made.intermediates:,} elements. One gradient has {d * h + h:,}. Add "
    "the gradient of each micro-batch to the sum in the loop.",
)
work = 6 * M * B / 4 * (d * h + h)  # of one device, with three products for each weight
if made.flops:
    require(
        made.flops <= work / 3,
        "The program processes many micro-batches at once. Compute the gradient of one micro-batch in each iteration of the "
        "loop.",
    )

# %% [markdown] why="shardmap-gradient-inside"
# The gradient with respect to a value that does not vary is reduced at once, in every iteration. After the cast, you choose where the reduction happens. Lesson 18 used an additional axis of size eight for this. *Unreduced* types are a third way (the Deeper section on gradients that are not reduced yet). **Next:** With FSDP, the parameters are shards. Where do you gather them, and which collective replaces the `psum`?


# %% equivalent="shardmap-gradient-inside" because="Both numbers of the quotient are then divided by the number of devices."
# swapped function, psum -> pmean: total, count = jax.lax.psum((total, weights.sum()), axis)


# %% wrong="shardmap-gradient-inside" because="Takes the gradient of parameters that do not vary, so JAX inserts a `psum` in every iteration of the loop."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    count = jax.lax.psum(weights.sum(), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Adds the gradients over the devices a second time. JAX has already added them, so the result is N times too large on N devices."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(params, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Averages over the devices after the cast, but the gradients of the devices have to be added."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    count = jax.lax.psum(weights.sum(), axis)
    return jax.tree.map(lambda leaf: jax.lax.pmean(leaf, axis) / count, total)


# %% wrong="shardmap-gradient-inside" because="Divides by the weights of each device first, so an example on a device with little weight counts more."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    return jax.tree.map(lambda leaf: jax.lax.pmean(leaf / weights.sum(), axis), total)


# %% wrong="shardmap-gradient-inside" because="Averages the gradients of the micro-batches, which gives each micro-batch the same weight."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)
    counts = jax.lax.psum(weights.sum(1), axis)

    def add(total, micro_batch):
        *arrays, count = micro_batch
        return jax.tree.map(lambda t, g: t + g / count, total, jax.grad(loss_sum)(varying, *arrays)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights, counts))
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, axis) / len(xs), total)


# %% wrong="shardmap-gradient-inside" because="Starts the loop with zeros that do not vary, but the carry becomes varying in the first iteration."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Does not reduce the gradients, so each device returns that of its own examples."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    return jax.tree.map(lambda leaf: leaf / jax.lax.psum(weights.sum(), axis), total)


# %% wrong="shardmap-gradient-inside" because="Processes all micro-batches at once, which needs the memory that micro-batches should save."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)
    total = jax.grad(loss_sum)(varying, xs.reshape(-1, xs.shape[-1]), ys.ravel(), weights.ravel())
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Computes the gradients of all micro-batches at once, and the loop only adds them. They need the memory that micro-batches should save."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)
    each = jax.vmap(jax.grad(loss_sum), (None, 0, 0, 0))(varying, xs, ys, weights)
    add = lambda total, one: (jax.tree.map(jnp.add, total, one), None)
    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), each)
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Processes all micro-batches at once, beside a loop that only counts."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)
    total = jax.grad(loss_sum)(varying, xs.reshape(-1, xs.shape[-1]), ys.ravel(), weights.ravel())
    count, _ = jax.lax.scan(lambda count, some: (count + some.sum(), None), 0 * weights[0, 0], weights)
    total, count = jax.lax.psum((total, count), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Unrolls the micro-batches in a Python loop, so the program grows with their number."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)
    total = jax.tree.map(jnp.zeros_like, varying)
    for micro_batch in zip(xs, ys, weights, strict=True):
        total = jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch))
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Reduces the sum of the weights in every iteration of the loop."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(carry, micro_batch):
        total, count = carry
        total = jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch))
        return (total, count + jax.lax.psum(micro_batch[2].sum(), axis)), None

    start = jax.tree.map(jnp.zeros_like, varying), jnp.zeros(())
    (total, count), _ = jax.lax.scan(add, start, (xs, ys, weights))
    return jax.tree.map(lambda leaf: leaf / count, jax.lax.psum(total, axis))


# %% wrong="shardmap-gradient-inside" because="Casts the parameters, but reduces the gradients in every iteration of the loop."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        gradient = jax.lax.psum(jax.grad(loss_sum)(varying, *micro_batch), axis)
        return jax.tree.map(jnp.add, total, gradient), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys, weights))
    count = jax.lax.psum(weights.sum(), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Divides by the number of examples instead of the sum of their weights."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    count = weights.size * jax.lax.axis_size(axis)
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, axis) / count, total)


# %% wrong="shardmap-gradient-inside" because="Differentiates the loss of the example instead of the argument `loss_sum`."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(line_loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    total, count = jax.lax.psum((total, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Uses the axis name of the example instead of the argument `axis`."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "data", to="varying"), params)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(varying, *micro_batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, varying), (xs, ys, weights))
    total, count = jax.lax.psum((total, weights.sum()), "data")
    return jax.tree.map(lambda leaf: leaf / count, total)


# %% wrong="shardmap-gradient-inside" because="Reduces the gradient of each micro-batch instead of their sum, after the loop."
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="varying"), params)
    each = jax.lax.map(lambda micro_batch: jax.grad(loss_sum)(varying, *micro_batch), (xs, ys, weights))
    each, count = jax.lax.psum((each, weights.sum()), axis)
    return jax.tree.map(lambda leaf: leaf.sum(0) / count, each)


# %% right="shardmap-gradient-inside"
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    def local_loss(params):
        varying = jax.lax.pcast(params, axis, to="varying")  # its transpose is the only psum of the gradients
        step = lambda total, micro_batch: (total + loss_sum(varying, *micro_batch), None)
        return jax.lax.scan(step, 0 * weights[0, 0], (xs, ys, weights))[0] / jax.lax.psum(weights.sum(), axis)

    return jax.grad(local_loss)(params)


# %% right="shardmap-gradient-inside"
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    varying = jax.lax.pcast(params, axis, to="varying")
    count = jax.lax.psum(jnp.sum(weights), axis)

    def add(i, total):
        gradient = jax.grad(lambda p: loss_sum(p, xs[i], ys[i], weights[i] / count))(varying)
        return jax.tree.map(lambda one, other: one + other, total, gradient)

    zeros = jax.tree.map(lambda p: jax.lax.pcast(jnp.zeros(p.shape, p.dtype), axis, to="varying"), params)
    return jax.lax.psum(jax.lax.fori_loop(0, xs.shape[0], add, zeros), axis)


# %% right="shardmap-gradient-inside"
def gradient_inside(loss_sum, params, xs, ys, weights, axis):
    reduced = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, axis, to="reduced"), params)
    zeros = jax.tree.map(
        lambda leaf: jax.lax.pcast(jnp.zeros_like(leaf) + 0 * weights[0, 0], axis, to="unreduced"), params
    )

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss_sum)(reduced, *micro_batch)), None

    total, _ = jax.lax.scan(add, zeros, (xs, ys, weights))
    count = jax.lax.psum(weights.sum(), axis)
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, axis) / count, total)


# %% [markdown] task="shardmap-from-pmap" stars=2 minutes=20 skills="shardmap-gradient-inside,dp-step,07_randomness"
# ## A training step from older code
# *Needs: Deeper: from pmap to shard_map.*
#
# **Goal.** Use `jax.shard_map` to rewrite a training step that was written with `pmap`.
#
# ```python
# @functools.partial(jax.pmap, axis_name="i")  # every argument and result has a leading axis of devices
# def step(params, x, y, key):
#     noise = 0.1 * jax.random.normal(key, x.shape)
#     value, grads = jax.value_and_grad(mean_loss)(params, x + noise, y)
#     value, grads = jax.lax.pmean((value, grads), "i")
#     new = jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, params, grads)
#     return new, value
# ```
#
# **Signature.** `new_step(params, x, y, keys)` takes a tree `params` of replicated float32 arrays, a batch `x`, a `float32[B@i,d]`, with `y`, a `float32[B@i]`, and `keys`, a key array of shape (N,) partitioned along `i`, with one key for each of the N devices. `params`, `x` and `y` have no leading axis of devices. Only `keys` has one. The result is `(new params, loss)`, both replicated. `mean_loss` is in the setup. The checks use meshes of several sizes with the axis `i`.
#
# **Example.** On two devices with two examples each, `step` receives `x` with shape (2, 2, d) and `new_step` receives it with shape (4, d). The new parameters and the loss are the same.
#
# **Judged.** The values, which are those of `step` with the same keys. In particular, each device draws the noise for its own examples from its own key. The results are replicated. The all-reduces of the compiled program return at most as many elements as the gradients have, plus 4, and there is no other communication. **Not judged.** The number of operations, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# `pmap` removes the axis of devices from each argument. `shard_map` does not. Which shape does `keys` have on one device?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# With the old body, the gradients are N times too large, because `params` does not vary. The core of the lesson shows two ways to correct this.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `keys[0]`. Take `jax.value_and_grad` of a function that returns `jax.lax.pmean(mean_loss(params, noisy, y), "i")`. The specs of the arguments are `P()`, `P("i")`, `P("i")` and `P("i")`.
#
# </details>


# %% answer="shardmap-from-pmap" timeout=20
def new_step(params, x, y, keys):
    """params replicated, x float32[B@i,d], y float32[B@i], keys key[N@i] -> (new params, loss), replicated."""
    ### BEGIN SOLUTION

    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        whole_loss = lambda params: jax.lax.pmean(mean_loss(params, noisy, y), "i")
        loss, gradients = jax.value_and_grad(whole_loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)
    ### END SOLUTION


# %% check="shardmap-from-pmap" name="example" points=1
"""The same new parameters and loss as the older step, on two devices."""


def probe_step(params, x, y, keys):
    return jax.jit(new_step)(params, x, y, keys)


rng = inputs.rng()
params, mesh = network(rng, 3, 4), grid(2, names=("i",))
x, y = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
keys = jax.random.split(jax.random.key(7), 2)
noise = np.concatenate([jax.random.normal(key, (2, 3)) for key in keys])
loss, gradients = by_hand(params, x + np.float32(0.1) * noise, y, np.full(4, 0.25))
new = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
with jax.set_mesh(mesh):
    placed = [place(mesh, array, "i") for array in (x, y, keys)]
    result = ask(probe_step, place(mesh, params), *placed)
compare(result, (new, loss), label="new parameters and loss")

# %% hidden="shardmap-from-pmap" name="step" points=2
"""The same results as the older step on other meshes, and each gradient is reduced once."""
rng = inputs.rng()
for size, least in ((8, 2), (3, 4)):
    width, hidden, each = (int(rng.integers(least, least + 2)) for _ in range(3))
    params, mesh = network(rng, width, hidden), grid(size, names=("i",))
    x = rng.normal(size=(size * each, width)).astype(np.float32)
    y = rng.normal(size=size * each).astype(np.float32)
    keys = jax.random.split(jax.random.key(int(rng.integers(1 << 20))), size)
    noise = np.concatenate([jax.random.normal(key, (each, width)) for key in keys])
    loss, gradients = by_hand(params, x + np.float32(0.1) * noise, y, np.full(len(y), 1 / len(y)))
    moved = {name: params[name] - np.float32(0.1) * gradients[name] for name in params}
    with jax.set_mesh(mesh):
        arguments = [place(mesh, params), *(place(mesh, array, "i") for array in (x, y, keys))]
        made = program(new_step, *arguments)
        compare(made.run(*arguments), (moved, loss), label=f"new parameters and loss on {size} devices")
    require(
        all(not any(entries_of(leaf) or [None]) for leaf in jax.tree.leaves(made.outputs)),
        "A result is not replicated.",
    )
    require(
        made.elements() == made.elements("all-reduce", "reduce-scatter"),
        "The program has collectives other than all-reduces. The examples should stay on their devices.",
    )
    require(
        made.elements() <= width * hidden + hidden + 4,
        "The all-reduces return more elements than the gradients have. Reduce each gradient once.",
    )

# %% [markdown] why="shardmap-from-pmap"
# Three things change in a migration. The axis of devices disappears from the data, a key array of size one remains on each device, and the gradient with respect to a replicated argument is already a sum. If you forget the third change, the results are wrong and JAX reports no error. **Next:** A `jit` of code for whole arrays needs no `pmean` at all. What would this step look like, and how would you draw the noise there?


# %% equivalent="shardmap-from-pmap" because="The keys of one device have one entry, and JAX clamps the index 1 to 0."
# off by one, 0 -> 1: noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)


# %% wrong="shardmap-from-pmap" because="Keeps the `pmean` of the gradients, which are already added over the devices. The step is N times too large on N devices."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(mean_loss)(params, noisy, y)
        loss, gradients = jax.lax.pmean((loss, gradients), "i")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Uses all keys of the shard as one key, but they are an array of shape (1,)."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, key):
        noisy = x + 0.1 * jax.random.normal(key, x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Removes the first axis of the shards as `pmap` does, but it now counts the examples of the device."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        x, y = x[0][None], y[0][None]
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Draws the noise of all examples from the first key, so it is not that of the older step."
def new_step(params, x, y, keys):
    noise = jax.random.normal(jax.reshard(keys, P())[0], x.shape, out_sharding=P("i"))

    def on_one_device(params, noisy, y):
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x + 0.1 * noise, y)


# %% wrong="shardmap-from-pmap" because="Derives another key on each device, although each device already has its own."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        key = jax.random.fold_in(keys[0], jax.lax.axis_index("i"))
        noisy = x + 0.1 * jax.random.normal(key, x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Disables the check and reduces only the loss, so each device updates the parameters with the gradients of its own examples."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    mapped = jax.shard_map(on_one_device, in_specs=specs, out_specs=P(), check_vma=False)
    return mapped(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Averages the gradients again after the gradient of the averaged loss. The values are right, but each gradient is reduced twice."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        gradients = jax.lax.pmean(gradients, "i")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Adds the losses of the devices instead of averaging them."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.psum(mean_loss(p, noisy, y), "i"))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Returns a copy of the results for each device, as `pmap` does."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return jax.tree.map(lambda leaf: leaf[None], (new, loss))

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P("i"))(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Divides the gradients by a fixed number, which is wrong for another number of devices."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(mean_loss)(params, noisy, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g / 8, params, gradients), jax.lax.pmean(loss, "i")

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Divides the gradients by a fixed number, which is wrong for another number of devices."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        loss, gradients = jax.value_and_grad(mean_loss)(params, noisy, y)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradients), jax.lax.pmean(loss, "i")

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% wrong="shardmap-from-pmap" because="Decorates the function with `jax.shard_map`, which keeps the mesh of the first call in JAX 0.10.2."
@functools.partial(jax.shard_map, in_specs=(P(), P("i"), P("i"), P("i")), out_specs=P())
def new_step(params, x, y, keys):
    noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
    loss, gradients = jax.value_and_grad(lambda p: jax.lax.pmean(mean_loss(p, noisy, y), "i"))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


# %% wrong="shardmap-from-pmap" because="Gathers the whole batch on every device, which then computes the loss of all examples."
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        noisy, y = (jax.lax.all_gather(shard, "i", tiled=True, to="invarying") for shard in (noisy, y))
        loss, gradients = jax.value_and_grad(mean_loss)(params, noisy, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% right="shardmap-from-pmap"
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys.reshape(()), x.shape)
        varying = jax.tree.map(lambda p: jax.lax.pcast(p, "i", to="varying"), params)
        loss, gradients = jax.lax.pmean(jax.value_and_grad(mean_loss)(varying, noisy, y), "i")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return jax.shard_map(on_one_device, out_specs=(P(), P()))(params, x, y, keys)


# %% right="shardmap-from-pmap"
def new_step(params, x, y, keys):
    @functools.partial(jax.shard_map, out_specs=P(), check_vma=False)
    def on_each(params, x, y, key):
        noisy = x + 0.1 * jax.random.normal(key[0], x.shape)
        loss, gradients = jax.value_and_grad(mean_loss)(params, noisy, y)
        loss, gradients = jax.lax.pmean((loss, gradients), "i")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return jax.jit(on_each)(params, x, y, keys)


# %% right="shardmap-from-pmap"
def new_step(params, x, y, keys):
    def on_one_device(params, x, y, keys):
        noisy = x + 0.1 * jax.random.normal(keys[0], x.shape)
        value, gradients = jax.value_and_grad(mean_loss)(params, noisy, y)  # the gradients are sums over the devices
        rate = 0.1 / jax.lax.axis_size("i")
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), jax.lax.pmean(value, "i")

    specs = P(), P("i"), P("i"), P("i")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, x, y, keys)


# %% [markdown] task="shardmap-ring-all-reduce" stars=3 minutes=30 skills="shardmap-psum-matmul,08_control_flow"
# ## A ring all-reduce
# *Needs: Deeper: a reduce-scatter from permutes.*
#
# **Goal.** Write an all-reduce that uses only permutes, and sends no more elements than the ring algorithm of the lesson.
#
# **Signature.** `ring_all_reduce(x, axis)` is per-device code. `x` is a float32 array of any rank that varies along the mesh axis `axis`, and its size is a multiple of the number N of devices along this axis. The function returns the sum of the arrays of these devices, with the shape of `x`. The result may vary along `axis`, so the check uses `out_specs=P("d")` and receives N equal copies. JAX checks the types, so the carry of a loop has to vary from the start.
#
# **Example.** On two devices with [1, 2] and [10, 20], both return [11, 22].
#
# **Judged.** The values. All collectives of the compiled program are permutes. In one call, they return at most 2 (N - 1) · S / N elements on each device, where S is the size of `x`. The checks use several N, and meshes with a second axis. **Not judged.** The direction of the ring, the number of permutes, and rounding.
#
# <details><summary>Hint 1 · a question</summary>
#
# If each device passes on whole arrays N - 1 times, how many elements does it receive? How does the figure of the lesson avoid this?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Divide `x` into N blocks. First run the reduce-scatter of the lesson, after which device d has the complete sum of block d. Then pass on the complete blocks N - 1 times.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In step s of the second phase, device d receives block d - s (modulo N) from the device before it, stores it in an array of N blocks, and passes on the same block in the next step.
#
# </details>


# %% answer="shardmap-ring-all-reduce" timeout=20
def ring_all_reduce(x, axis):
    """Code of one device: the sum of the arrays x of all devices along `axis`, with permutes only."""
    ### BEGIN SOLUTION
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    receive = functools.partial(jax.lax.ppermute, axis_name=axis, perm=[(i, (i + 1) % n) for i in range(n)])
    blocks = x.reshape(n, -1)

    def add(step, total):
        return receive(total) + blocks[(me - 1 - step) % n]

    def store(step, state):
        block, sums = receive(state[0]), state[1]
        return block, sums.at[(me - step) % n].set(block)

    mine = jax.lax.fori_loop(1, n, add, blocks[(me - 1) % n])
    sums = jax.lax.fori_loop(1, n, store, (mine, blocks.at[me].set(mine)))[1]
    return sums.reshape(x.shape)
    ### END SOLUTION


# %% check="shardmap-ring-all-reduce" name="example" points=1
"""The example on two devices, and a table on eight."""


def probe_copies(x):
    on_one_device = lambda x: ring_all_reduce(x, "d")
    return jax.jit(jax.shard_map(on_one_device, in_specs=P("d"), out_specs=P("d")))(x)


mesh = grid(2, names=("d",))
with jax.set_mesh(mesh):
    result = ask(probe_copies, place(mesh, np.array([1, 2, 10, 20], np.float32), "d"))
compare(result, np.array([11, 22, 11, 22], np.float32), label="the results of both devices")
mesh, table = grid(8, names=("d",)), inputs.rng().normal(size=(16, 12)).astype(np.float32)
with jax.set_mesh(mesh):
    result = ask(probe_copies, place(mesh, table, "d"))
compare(result, np.tile(table.reshape(8, 2, 12).sum(0), (8, 1)), label="the results of eight devices")

# %% hidden="shardmap-ring-all-reduce" name="values" points=1
"""Right for other shapes, numbers of devices and axis names."""


def probe_sum(x, axis, spec):
    on_one_device = lambda x: ring_all_reduce(x, axis)
    return jax.jit(jax.shard_map(on_one_device, in_specs=spec, out_specs=spec))(x)


rng = inputs.rng()
for n, shape, words in (
    (6, (12, 5), "on six devices"),
    (4, (4,), "for one entry per device"),
    (4, (6, 2), "if the rows cannot be divided by the devices"),
    (3, (2, 3, 4), "on three"),
):
    mesh, arrays = grid(n, names=("line",)), rng.normal(size=(n, *shape)).astype(np.float32)
    with case(words), jax.set_mesh(mesh):
        x = place(mesh, arrays.reshape(-1, *shape[1:]), "line")
        got = ask(probe_sum, x, "line", P("line"))
        compare(got, np.concatenate([arrays.sum(0)] * n), label="the results of all devices")
mesh, arrays = grid(2, 4), rng.normal(size=(2, 4, 8)).astype(np.float32)
with case("along one of two mesh axes"), jax.set_mesh(mesh):
    got = ask(probe_sum, place(mesh, arrays.reshape(2, 32), "x", "y"), "y", P("x", "y"))
    compare(got, np.tile(arrays.sum(1), (1, 4)), label="the results of all devices")

# %% hidden="shardmap-ring-all-reduce" name="program" points=3
"""The program has permutes only, and each device receives at most 2 (N - 1) / N of the elements."""


def probe_program(x):
    on_one_device = lambda x: ring_all_reduce(x, "ring")
    return jax.shard_map(on_one_device, in_specs=P("ring"), out_specs=P("ring"))(x)


rng = inputs.rng()
for n in (8, 6, 2):
    mesh, size = grid(n, names=("ring",)), n * (2 * int(rng.integers(1, 5)) + 1)
    arrays = rng.normal(size=(n, size)).astype(np.float32)
    with jax.set_mesh(mesh):
        x = place(mesh, arrays.ravel(), "ring")
        made = program(probe_program, x)
        compare(made.run(x), np.tile(arrays.sum(0), n), label="the results of all devices")
    kinds = {one.kind for one in made.collectives}
    require(
        kinds == {"collective-permute"},
        f"The collectives of the program are {sorted(kinds)}. It should have permutes only.",
    )
    block, limit = size // n, 2 * (n - 1) * size // n
    require(
        made.elements() <= limit + 2 * block,
        "Each device receives much more than 2 (N - 1) / N times the elements of its array. Send one block in each step.",
    )
    require(
        made.elements() <= limit,
        "Each device receives one or two blocks more than 2 (N - 1). Each phase has N - 1 steps.",
    )

# %% [markdown] why="shardmap-ring-all-reduce"
# Each block moves around the ring twice, first as a growing sum and then as a finished one. In every step, all devices send at the same time, and each link carries only one block. Therefore the time for a large array hardly depends on the number of devices. For a small array, the latency of the 2 (N - 1) steps dominates. **Next:** Links usually work in both directions. How would you use both, and what changes in the number of elements that a device receives?


# %% wrong="shardmap-ring-all-reduce" because="Passes whole arrays around the ring, so each device receives N - 1 times the array."
def ring_all_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]

    def step(_, state):
        moving = jax.lax.ppermute(state[0], axis, pairs)
        return moving, state[1] + moving

    return jax.lax.fori_loop(0, n - 1, step, (x, x))[1]


# %% wrong="shardmap-ring-all-reduce" because="Passes whole arrays around the ring, in a loop whose number of iterations the compiler does not know."
def ring_all_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]

    def step(state):
        moving = jax.lax.ppermute(state[1], axis, pairs)
        return state[0] + 1, moving, state[2] + moving

    steps = jnp.where(jnp.isfinite(x).any(), n - 1, 0)
    return jax.lax.while_loop(lambda state: state[0] < steps, step, (0, x, x))[2]


# %% wrong="shardmap-ring-all-reduce" because="Uses the built-in all-reduce instead of permutes."
def ring_all_reduce(x, axis):
    return jax.lax.psum(x, axis)


# %% wrong="shardmap-ring-all-reduce" because="Uses the built-in reduce-scatter and all-gather instead of permutes."
def ring_all_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    mine = jax.lax.psum_scatter(x.reshape(n, -1), axis)
    return jax.lax.all_gather(mine, axis).reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Stops after the reduce-scatter. Each device has the sum of one block only."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    return blocks.at[me].set(total).reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Takes one step too many in each phase, so each block moves past its device."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n + 1):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n + 1):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % n].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Adds the finished blocks to the local ones in the second phase instead of replacing them."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % n].add(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Stores the blocks that arrive as if they moved in the other direction."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me + step) % n].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Uses eight as the number of devices."
def ring_all_reduce(x, axis):
    me, pairs = jax.lax.axis_index(axis), [(i, (i + 1) % 8) for i in range(8)]
    blocks = x.reshape(8, -1)
    total = blocks[(me - 1) % 8]
    for step in range(1, 8):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % 8]
    sums = blocks.at[me].set(total)
    for step in range(1, 8):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % 8].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Does not close the ring. The first device receives zeros."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, i + 1) for i in range(n - 1)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % n].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Moves all blocks in every step, although only one of them changes."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = jnp.zeros_like(blocks).at[me].set(total)
    moving = sums
    for _ in range(1, n):
        moving = jax.lax.ppermute(moving, axis, pairs)
        sums = sums + moving
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Sends the finished blocks once more after the last one has been stored. Each phase has N - 1 steps."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = jax.lax.fori_loop(
        1, n, lambda s, total: jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - s) % n], blocks[(me - 1) % n]
    )

    def store(step, state):
        sums, total = state
        return sums.at[(me - step) % n].set(total), jax.lax.ppermute(total, axis, pairs)

    return jax.lax.fori_loop(0, n, store, (jnp.zeros_like(blocks), total))[0].reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Divides the first axis of `x` into blocks, but only its size is a multiple of the number of devices."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, len(x) // n, *x.shape[1:])
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % n].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Flattens the result, but it should have the shape of `x`."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % n].set(total)
    return sums.ravel()


# %% wrong="shardmap-ring-all-reduce" because="Gathers the finished blocks with the built-in all-gather instead of permutes."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    return jax.lax.all_gather(total, axis).reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Uses the number of all devices of the mesh instead of those along `axis`."
def ring_all_reduce(x, axis):
    n, me = jax.sharding.get_abstract_mesh().size, jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[me].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me - step) % n].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Starts the second phase with the wrong block. After the reduce-scatter, device d has the sum of block d."
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    blocks = x.reshape(n, -1)
    total = blocks[(me - 1) % n]
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs) + blocks[(me - 1 - step) % n]
    sums = blocks.at[(me + 1) % n].set(total)
    for step in range(1, n):
        total = jax.lax.ppermute(total, axis, pairs)
        sums = sums.at[(me + 1 - step) % n].set(total)
    return sums.reshape(x.shape)


# %% wrong="shardmap-ring-all-reduce" because="Exchanges whole arrays with devices 1, 2, 4, ... positions away. Each device receives too much, and their number has to be a power of two."
def ring_all_reduce(x, axis):
    n, distance = jax.lax.axis_size(axis), 1
    while distance < n:
        x = x + jax.lax.ppermute(x, axis, [(i, i ^ distance) for i in range(n)])
        distance *= 2
    return x


# %% right="shardmap-ring-all-reduce"
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    blocks = x.reshape(n, -1)
    down = [(i, (i - 1) % n) for i in range(n)]
    for step in range(1, n):
        got = jax.lax.ppermute(blocks[(me + step) % n], axis, down)
        blocks = blocks.at[(me + step + 1) % n].add(got)
    for step in range(n - 1):
        got = jax.lax.ppermute(blocks[(me + step) % n], axis, down)
        blocks = blocks.at[(me + step + 1) % n].set(got)
    return blocks.reshape(x.shape)


# %% right="shardmap-ring-all-reduce"
def ring_all_reduce(x, axis):
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    blocks = jnp.split(x.ravel(), n)
    stacked = jnp.stack(blocks)
    # Direct exchanges: in step s, each device sends one block to the device s positions further.
    mine = stacked[me]
    for s in range(1, n):
        mine = mine + jax.lax.ppermute(stacked[(me + s) % n], axis, [(i, (i + s) % n) for i in range(n)])
    parts = stacked.at[me].set(mine)
    for s in range(1, n):
        parts = parts.at[(me - s) % n].set(jax.lax.ppermute(mine, axis, [(i, (i + s) % n) for i in range(n)]))
    return parts.reshape(x.shape)


# %% right="shardmap-ring-all-reduce"
def ring_all_reduce(x, axis):
    n = jax.lax.axis_size(axis)
    me = jax.lax.axis_index(axis)
    pairs = [(i, (i + 1) % n) for i in range(n)]

    def add(blocks, s):
        moved = jax.lax.ppermute(jnp.take(blocks, (me - s) % n, axis=0), axis, pairs)
        return blocks.at[(me - s - 1) % n].add(moved), None

    def share(blocks, s):
        moved = jax.lax.ppermute(jnp.take(blocks, (me + 1 - s) % n, axis=0), axis, pairs)
        return blocks.at[(me - s) % n].set(moved), None

    blocks, _ = jax.lax.scan(add, x.reshape(n, -1), jnp.arange(n - 1))
    return jax.lax.scan(share, blocks, jnp.arange(n - 1))[0].reshape(x.shape)


# %% [markdown] task="shardmap-halo-exchange" stars=2 minutes=20 skills="shardmap-psum-matmul,08_control_flow"
# ## Heat on a plate
# *Needs: Deeper: a reduce-scatter from permutes.*
#
# **Goal.** Simulate how heat spreads on a plate that is too large for one device. In every step, each device needs one row from each neighbour. These rows are called its *halo*.
#
# **Signature.** `diffuse(plate, steps)` takes `plate`, a `float32[R@x,C]`, and a Python int `steps`, which may be 0. In one step, the new value of each cell is `old + 0.1 * (up + down + left + right - 4 * old)`, with the old values of its four neighbours. Outside the plate, all values are 0. The result has the type of `plate`. The checks use meshes of several sizes with the axis `x`.
#
# **Example.** A plate of shape (8, 3) is 0 except for 10 in the cell (3, 1). After one step, it has 6 in this cell and 1 in the cells (2, 1), (4, 1), (3, 0) and (3, 2). On eight devices, each device has one row. On four devices with two rows each, a plate with 10 in the cell (0, 0) has 6 in this cell and 1 in the cells (1, 0) and (0, 1) after one step.
#
# **Judged.** The values and the type. All collectives of the compiled program are permutes. In one call, they return at most 2 · C · `steps` elements on each device. **Not judged.** Whether you use a loop, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which row does a device need from the device before it, and which row from the one after it? Which devices have only one neighbour?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.lax.ppermute` returns zeros on a device that is not a receiver in any pair. So the two ends of the plate need no special case if the pairs do not form a ring.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Send `plate[-1:]` with the pairs `(i, i + 1)` and `plate[:1]` with the pairs `(i + 1, i)`, for i from 0 to n - 2. What arrives belongs above and below the shard. A frame of zeros on the left and right then makes all four neighbours slices.
#
# </details>


# %% answer="shardmap-halo-exchange" timeout=20
def diffuse(plate, steps):
    """plate float32[R@x,C] -> the plate after `steps` steps of heat diffusion, with the same type."""
    ### BEGIN SOLUTION

    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(n - 1)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)
    ### END SOLUTION


# %% check="shardmap-halo-exchange" name="example" points=1
"""Both plates of the example, and the type."""
start, wanted = np.zeros((2, 8, 3), np.float32)
start[3, 1], wanted[3, 1] = 10, 6
wanted[2, 1] = wanted[4, 1] = wanted[3, 0] = wanted[3, 2] = 1
mesh = grid(8, names=("x",))
with jax.set_mesh(mesh):
    result = ask(diffuse, place(mesh, start, "x"), 1)
compare(result, wanted, label="the plate after one step")
got = in_types((8, 3), entries_of(result))
require(got == "float32[8@x,3]", f"The result has the type {got}; expected float32[8@x,3].")
corner, wanted = np.zeros((2, 8, 3), np.float32)
corner[0, 0], wanted[0, 0] = 10, 6
wanted[1, 0] = wanted[0, 1] = 1
mesh = grid(4, names=("x",))
with jax.set_mesh(mesh):
    result = ask(diffuse, place(mesh, corner, "x"), 1)
compare(result, wanted, label="the plate with two rows on each device")

# %% hidden="shardmap-halo-exchange" name="program" points=2
"""Right for several steps on other plates and meshes, with permutes of single rows only."""


def by_slices(plate, steps):
    for _ in range(steps):
        p = np.pad(plate, 1)
        plate = plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)
    return plate.astype(np.float32)


rng = inputs.rng()
for sizes, names, rows, words in (
    ((6,), ("x",), 1, "with one row on each device"),
    ((4,), ("x",), 3, "on four devices"),
    ((3, 2), ("x", "y"), 2, "if another mesh axis replicates the plate"),
):
    mesh, steps = grid(*sizes, names=names), int(rng.integers(2, 6))
    start = rng.uniform(size=(sizes[0] * rows, int(rng.integers(4, 9)))).astype(np.float32)
    with case(words):
        with jax.set_mesh(mesh):
            plate = place(mesh, start, "x")
            made = program(diffuse, plate, steps)
            compare(made.run(plate, steps), by_slices(start.astype(np.float64), steps), label="the plate")
        require(entries_of(made.outputs) == ("x", None), "the result does not have the type of the plate.")
        require(
            all(one.kind == "collective-permute" for one in made.collectives),
            "the program has collectives other than permutes.",
        )
        require(
            made.elements() <= 2 * start.shape[1] * steps,
            "the permutes return more than two rows on each device in each step.",
        )
with case("if steps is 0"), jax.set_mesh(mesh):
    compare(ask(diffuse, plate, 0), start, label="the plate")

# %% [markdown] why="shardmap-halo-exchange"
# Each device sends two rows per step, however many rows it has. So communication takes a smaller share of the time as the plate grows. Convolutions and filters on partitioned images work in the same way. **Next:** If a device receives k rows from each neighbour at once, it can take k steps without communication. What does it compute twice, and when is this worth it?


# %% wrong="shardmap-halo-exchange" because="Closes the ring, so the last row of the plate heats the first."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i, (i + 1) % n) for i in range(n)])
            below = jax.lax.ppermute(plate[:1], "x", [((i + 1) % n, i) for i in range(n)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Assumes zeros around each shard, so no heat crosses from device to device."
def diffuse(plate, steps):
    def on_one_device(plate):
        def step(_, plate):
            p = jnp.pad(plate, 1)
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Exchanges the halo once before the loop, but the rows of the neighbours change in every step."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")
        above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(n - 1)])
        below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(n - 1)])

        def step(_, plate):
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Sends each halo in the wrong direction."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i + 1, i) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[:1], "x", [(i, i + 1) for i in range(n - 1)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Sends the first row where the last one is needed. Nothing changes if each device has one row."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[:1], "x", [(i, i + 1) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[-1:], "x", [(i + 1, i) for i in range(n - 1)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Gathers rows of all devices in every step, but each device needs only rows of its two neighbours."
def diffuse(plate, steps):
    def on_one_device(plate):
        count = len(plate)

        def step(_, plate):
            whole = jnp.pad(jax.lax.all_gather(plate, "x", tiled=True), 1)
            p = jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index("x") * count, count + 2)
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Sends whole shards, although the neighbours need one row only."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate, "x", [(i, i + 1) for i in range(n - 1)])[-1:]
            below = jax.lax.ppermute(plate, "x", [(i + 1, i) for i in range(n - 1)])[:1]
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Rolls the columns, so heat that leaves the plate on the right returns on the left."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(n - 1)])
            p = jnp.concatenate([above, plate, below])
            sides = jnp.roll(plate, 1, axis=1) + jnp.roll(plate, -1, axis=1)
            return plate + 0.1 * (p[:-2] + p[2:] + sides - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Uses eight as the number of devices."
def diffuse(plate, steps):
    def on_one_device(plate):
        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(7)])
            below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(7)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Takes one step, whatever `steps` is."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")
        above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(n - 1)])
        below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(n - 1)])
        p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
        return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Takes the first step before the loop, so it takes one step even if `steps` is 0."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(n - 1)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)))
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(1, steps, step, step(0, plate))

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% wrong="shardmap-halo-exchange" because="Repeats the cells at the left and right border, but all values outside of the plate are 0."
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")

        def step(_, plate):
            above = jax.lax.ppermute(plate[-1:], "x", [(i, i + 1) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[:1], "x", [(i + 1, i) for i in range(n - 1)])
            p = jnp.pad(jnp.concatenate([above, plate, below]), ((0, 0), (1, 1)), mode="edge")
            return plate + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * plate)

        return jax.lax.fori_loop(0, steps, step, plate)

    return jax.shard_map(on_one_device, in_specs=P("x"), out_specs=P("x"))(plate)


# %% right="shardmap-halo-exchange"
def diffuse(plate, steps):
    def on_one_device(plate):
        n = jax.lax.axis_size("x")
        for _ in range(steps):
            above = jax.lax.ppermute(plate[-1], "x", [(i, i + 1) for i in range(n - 1)])
            below = jax.lax.ppermute(plate[0], "x", [(i + 1, i) for i in range(n - 1)])
            up = jnp.vstack([above[None], plate[:-1]])
            down = jnp.vstack([plate[1:], below[None]])
            left = jnp.pad(plate[:, :-1], ((0, 0), (1, 0)))
            right = jnp.pad(plate[:, 1:], ((0, 0), (0, 1)))
            plate = 0.6 * plate + 0.1 * (up + down + left + right)
        return plate

    return jax.shard_map(on_one_device, out_specs=P("x", None))(plate)


# %% right="shardmap-halo-exchange"
def diffuse(plate, steps):
    def one_step(plate, _):
        n, me = jax.lax.axis_size("x"), jax.lax.axis_index("x")
        ring = [(i, (i + 1) % n) for i in range(n)]
        above = jnp.where(me > 0, jax.lax.ppermute(plate[-1:], "x", ring), 0)
        below = jnp.where(me < n - 1, jax.lax.ppermute(plate[:1], "x", [(b, a) for a, b in ring]), 0)
        rows = jnp.concatenate([above, plate, below])
        kernel = jnp.array([[0, 0.1, 0], [0.1, 0.6, 0.1], [0, 0.1, 0]])
        return jax.scipy.signal.convolve(rows, kernel, mode="same")[1:-1], None

    local = lambda plate: jax.lax.scan(one_step, plate, length=steps)[0]
    return jax.jit(jax.shard_map(local, in_specs=P("x"), out_specs=P("x")))(plate)
