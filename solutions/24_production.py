# %% [markdown]
# # 24 · Exercises: production
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise.
#
# All meshes have Auto axes, and the setup sets no mesh. Checks write checkpoints to temporary folders. The last exercise starts further Python processes, which always use simulated CPU devices. They connect over the loopback address 127.0.0.1, so nothing leaves your machine.

# %% setup
from grader.checks import ask, case, compare, devices, error, inputs, processes, program, require

devices.start(8)  # before JAX is first used

import functools
import math
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def grid(*sizes, names=("data", "model")):
    """A mesh of devices with Auto axes, such as grid(4, 2) or grid(8, names=("data",))."""
    return devices.mesh(sizes, names)


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


# For symbolic-batch: two models. params {"w": (d, h), "b": (h,)}, x float32[b, d], mask bool[b].


def scores(params, x, mask):
    """A score for each example, and 0 where the mask is False: float32[b]."""
    return jnp.where(mask, jnp.tanh(x @ params["w"] + params["b"]).sum(axis=1), 0.0)


def mean_score(params, x, mask):
    """The mean score of the examples that the mask keeps: float32[]."""
    return scores(params, x, mask).sum() / jnp.maximum(mask.sum(), 1)


# For export-sharded: a layer, and its squared norms. x (n, d), w (d, h).


def layer(x, w):
    """float32[n, h]"""
    return jax.nn.relu(x @ w)


def norms(x, w):
    """float32[n]"""
    return jnp.sum((x @ w) ** 2, axis=1)


# Reloads an export in a new Python process that contains none of the functions above.
RELOAD = """
def reload(blob, x, w):
    exported = jax.export.deserialize(bytearray(blob))
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
    args = [jax.device_put(array, NamedSharding(mesh, P())) for array in (x, w)]
    return {"devices": exported.nr_devices, "result": jax.jit(exported.call)(*args)}
"""

# For resume-exactly: a small training run with dropout and a shuffled data set.
OPTIMIZER = optax.adam(0.05)
POINTS = np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3)


class Loader:
    """Endless batches of 4 rows. Each epoch has 2 batches, in an order of its own. `state` is all that it remembers."""

    def __init__(self, state=None):
        self.state = dict(state) if state is not None else {"epoch": 0, "batch": 0}

    def next_batch(self):
        """float32[4, 3]"""
        epoch, batch = int(self.state["epoch"]), int(self.state["batch"])
        order = np.random.default_rng(epoch).permutation(10)
        last = batch == 1
        self.state = {"epoch": epoch + last, "batch": 0 if last else batch + 1}
        return POINTS[order[4 * batch : 4 * batch + 4]]


def start(seed):
    """The state before the first step: (params, opt_state, key)."""
    key, subkey = jax.random.split(jax.random.key(seed))
    params = {"w1": jax.random.normal(subkey, (3, 8)), "w2": jnp.full((8,), 0.3)}
    return params, OPTIMIZER.init(params), key


@jax.jit
def update(params, opt_state, subkey, batch):
    """One training step: (params, opt_state, loss)."""

    def loss_of(params):
        hidden = jnp.tanh(batch @ params["w1"]) * jax.random.bernoulli(subkey, 0.7, (4, 8))
        return jnp.mean((hidden @ params["w2"] - batch.sum(axis=1)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def temporary_folder():
    """A folder that is removed after the `with` block, even if a checkpoint is still being written to it."""
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


class Stopped(Exception):
    """What `after_step` raises in the checks, in place of a crash."""


def stop_after(steps):
    """An `after_step` that raises Stopped after this number of steps; None for never."""

    def after_step(step):
        if step == steps:
            raise Stopped

    return after_step


# %% [markdown] task="production-local-rows" stars=1 minutes=10 skills="16_sharding"
# ## Which rows does this process load?
# **Goal.** Each process loads only the rows that its own devices store. Compute which rows these are. Two lines are missing.
#
# **Signature.** `local_rows(sharding, shape, ids)` takes a `NamedSharding`, the shape of a whole array (a tuple), and `ids`, the ids of the devices of one process. It returns `(start, stop)` as two ints. `start` is the first row of axis 0 that one of these devices stores, and `stop` is the last such row plus 1. Rows between them that only other devices store do not matter.
#
# **Example.** On `grid(4, 2)` with the spec `P("data", "model")` and the shape `(16, 6)`, each device stores 4 rows. Devices 4 to 7 store rows 8 to 15, so `local_rows(sharding, (16, 6), [4, 5, 6, 7])` is `(8, 16)`.
#
# **Judged.** The values for several meshes, for arrays with one to three axes, and for any set of devices. The specs partition axis 0 along one mesh axis, along two in any order, or not at all. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# `sharding.devices_indices_map(shape)` contains a tuple of slices for each device. What is `slices[0]` if axis 0 is not partitioned?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `slice(None).indices(16)` is `(0, 16, 1)`. The method `indices` replaces every `None`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compute `rows.indices(shape[0])` for each slice in `found`. The result is the smallest start and the largest stop.
#
# </details>


# %% answer="production-local-rows"
def local_rows(sharding, shape, ids):
    """A NamedSharding, the shape of the whole array, ids of devices -> (start, stop) of the rows that they store."""
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    ### BEGIN SOLUTION
    limits = [rows.indices(shape[0]) for rows in found]
    return min(limit[0] for limit in limits), max(limit[1] for limit in limits)
    ### END SOLUTION


# %% check="production-local-rows" name="example" points=1
"""The example, and an array that is not partitioned by rows."""
mesh = grid(4, 2)
rows = ask(local_rows, NamedSharding(mesh, P("data", "model")), (16, 6), [4, 5, 6, 7])
require(tuple(rows) == (8, 16), f"The rows of devices 4 to 7 are {rows}; expected (8, 16).")
rows = ask(local_rows, NamedSharding(mesh, P(None, "model")), (16, 6), [0, 1])
require(tuple(rows) == (0, 16), f"With P(None, 'model'), the rows of devices 0 and 1 are {rows}; expected (0, 16).")

# %% hidden="production-local-rows" name="values" points=3
"""Right for every mesh, spec, shape and set of devices."""
rng = inputs.rng()
for sizes, entry in (
    ((4, 2), "data"),
    ((2, 4), "model"),
    ((2, 4), ("data", "model")),
    ((4, 2), ("model", "data")),
    ((2, 3), "data"),
    ((4, 2), None),
):
    mesh = grid(*sizes)
    names = [] if entry is None else [entry] if isinstance(entry, str) else list(entry)
    blocks = math.prod(mesh.shape[name] for name in names)
    each = int(rng.integers(2, 6))
    # Where axis 0 is not partitioned, another axis is longer.
    shape = (blocks * each, *(12,) * int(rng.integers(entry is None, 3)))
    count = mesh.size // 2
    # Of devices 1 and 2, the later one may store the earlier rows.
    for ids, which in (
        ((1, 2), "devices 1 and 2"),
        (range(count), "the first half of the devices"),
        (range(count, mesh.size), "the second half of the devices"),
        ((0, mesh.size - 1), "the first and the last device"),
        ([int(rng.integers(mesh.size))], "a single device"),
        (rng.permutation(mesh.size)[:3], "three devices"),
    ):
        stored = []
        for one in ids:
            position = dict(zip(("data", "model"), np.unravel_index(int(one), sizes), strict=True))
            block = 0
            for name in names:
                block = block * mesh.shape[name] + int(position[name])
            stored += [block * each, (block + 1) * each]
        got = ask(local_rows, NamedSharding(mesh, P(entry)), shape, [int(one) for one in ids])
        with case(f"for P({entry!r}) on grid{sizes} and {which}"):
            require(isinstance(got, tuple | list) and len(got) == 2, "The result is not a pair of ints.")
            require(tuple(got) == (min(stored), max(stored)), "The rows are not those that these devices store.")

# %% [markdown] why="production-local-rows"
# A sharding states which part of an array each device stores, and a process is a set of devices. `jax.make_array_from_process_local_data` uses the same map to distribute the rows that a process has loaded. **Next:** What would a process load for a mesh in which its devices are not adjacent along `data`?


# %% wrong="production-local-rows" because="Divides the rows equally among all devices, in the order of their ids. A sharding may replicate rows, or order the devices in another way."
def local_rows(sharding, shape, ids):
    each = shape[0] // len(sharding.device_set)
    return min(ids) * each, (max(ids) + 1) * each


# %% wrong="production-local-rows" because="Divides the rows equally among all devices, in the order of their ids. A sharding may replicate rows, or order the devices in another way."
def local_rows(sharding, shape, ids):
    count = len(sharding.device_set)
    edges = np.linspace(0, shape[0], count + 1).astype(int)
    return int(edges[min(ids)]), int(edges[max(ids) + 1])


# %% wrong="production-local-rows" because="Expects numbers in every slice. `slice(None)` stands for all rows, and its start and stop are `None`."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    return min(rows.start for rows in found), max(rows.stop for rows in found)


# %% wrong="production-local-rows" because="Adds up the rows of the devices. Devices that store the same rows are counted several times."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    limits = [rows.indices(shape[0]) for rows in found]
    first = min(limit[0] for limit in limits)
    return first, first + sum(limit[1] - limit[0] for limit in limits)


# %% wrong="production-local-rows" because="Uses the rows of the first and of the last device. The order of the devices need not be that of the rows."
def local_rows(sharding, shape, ids):
    found = sharding.devices_indices_map(shape)
    limits = [slices[0].indices(shape[0]) for device, slices in found.items() if device.id in ids]
    return limits[0][0], limits[-1][1]


# %% wrong="production-local-rows" because="Returns the last row instead of the one after it."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    limits = [rows.indices(shape[0]) for rows in found]
    return min(limit[0] for limit in limits), max(limit[1] for limit in limits) - 1


# %% wrong="production-local-rows" because="Ignores which devices belong to the process, and returns the rows of all devices."
def local_rows(sharding, shape, ids):
    limits = [slices[0].indices(shape[0]) for slices in sharding.devices_indices_map(shape).values()]
    return min(limit[0] for limit in limits), max(limit[1] for limit in limits)


# %% wrong="production-local-rows" because="Looks at the last axis instead of the rows."
def local_rows(sharding, shape, ids):
    found = [slices[-1] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    limits = [part.indices(shape[-1]) for part in found]
    return min(limit[0] for limit in limits), max(limit[1] for limit in limits)


# %% wrong="production-local-rows" because="Returns the rows of one device of the process. The others may store further rows."
def local_rows(sharding, shape, ids):
    for device, slices in sharding.devices_indices_map(shape).items():
        if device.id in ids:
            return slices[0].indices(shape[0])[:2]


# %% wrong="production-local-rows" because="Expects adjacent rows: the first row plus the number of rows that are stored. The rows of a process may have a gap."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    starts = {rows.indices(shape[0])[0] for rows in found}
    return min(starts), min(starts) + len(starts) * sharding.shard_shape(shape)[0]


# %% wrong="production-local-rows" because="Limits the slice of all rows by the longest axis instead of axis 0."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    limits = [rows.indices(max(shape)) for rows in found]
    return min(limit[0] for limit in limits), max(limit[1] for limit in limits)


# %% wrong="production-local-rows" because="Expects adjacent rows: the first row plus the number of rows that are stored. The rows of a process may have a gap."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    blocks = {rows.indices(shape[0]) for rows in found}
    first = min(block[0] for block in blocks)
    return first, first + sum(stop - begin for begin, stop, _ in blocks)


# %% wrong="production-local-rows" because="Uses the rows of the first and of the last device. The order of the devices need not be that of the rows."
def local_rows(sharding, shape, ids):
    found = {device.id: slices[0] for device, slices in sharding.devices_indices_map(shape).items()}
    return found[min(ids)].indices(shape[0])[0], found[max(ids)].indices(shape[0])[1]


# %% wrong="production-local-rows" because="Expects that axis 0 is partitioned along `data` or not at all."
def local_rows(sharding, shape, ids):
    found = [slices[0] for device, slices in sharding.devices_indices_map(shape).items() if device.id in ids]
    each = shape[0] // sharding.mesh.shape["data"] if "data" in str(sharding.spec) else shape[0]
    starts = [rows.start or 0 for rows in found]
    return min(starts), max(starts) + each


# %% right="production-local-rows"
def local_rows(sharding, shape, ids):
    stored = np.zeros(shape[0], bool)
    for device, slices in sharding.devices_indices_map(tuple(shape)).items():
        if device.id in list(ids):
            stored[slices[0]] = True
    rows = np.flatnonzero(stored)
    return int(rows[0]), int(rows[-1]) + 1


# %% right="production-local-rows"
def local_rows(sharding, shape, ids):
    every = sharding.devices_indices_map(shape)
    own = [every[device][0] for device in every if device.id in set(ids)]
    return min(rows.start or 0 for rows in own), max(shape[0] if rows.stop is None else rows.stop for rows in own)


# %% [markdown] task="production-save-and-reshard" stars=2 minutes=15 skills="production-local-rows,06_pytrees"
# ## Save on one mesh, restore on another
# **Goal.** Save a state with Orbax. Restore it on another mesh, so that every leaf has a new sharding.
#
# **Signature.** `save(folder, state)` writes a checkpoint to `folder`, a string with an absolute path. The folder does not exist yet. `state` is a nested dict of arrays. `restore(folder, like, specs, mesh)` returns the state. `like` is a tree of the same structure with a `jax.ShapeDtypeStruct` for each leaf, and `specs` has a `P` for each leaf. The dicts in `like` and `specs` may have their keys in another order than the state.
#
# **Example.** A state `{"w": float32[8,4], "step": int32[]}` is saved while `w` is stored with `P("data")` on `grid(8, names=("data",))`. After `restore(folder, like, {"w": P("model", "data"), "step": P()}, grid(2, 4))`, each of eight devices stores a block (2, 2) of `w`.
#
# **Judged.** The values, the dtypes (float32, bfloat16, int32 and bool) and the shardings of all leaves, for several structures and meshes, also on fewer devices than before. As soon as `save` has returned, the checks also copy the folder and restore from the copy, so `save` must wait until the checkpoint is complete. `restore` fails with an exception if a stored array has another shape than `like`. **Not judged.** The format of the files, and whether Orbax writes them.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does Orbax need to know about each leaf, so that every device reads only its own part?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `ocp.StandardCheckpointer().restore(folder, target)` reads each leaf into the sharding of the `jax.ShapeDtypeStruct` in `target`. A `jax.ShapeDtypeStruct` takes `sharding=`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Build the target with `jax.tree.map` over `like` and `specs`. Each leaf becomes a `jax.ShapeDtypeStruct` with the shape and the dtype of `like`, and with a `NamedSharding` of `mesh` and its spec. In a `with` statement, a checkpointer waits at the end.
#
# </details>


# %% answer="production-save-and-reshard" timeout=30
def save(folder, state):
    """folder str, state tree of arrays. Returns when the checkpoint is complete."""
    ### BEGIN SOLUTION
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)
    ### END SOLUTION


def restore(folder, like, specs, mesh):
    """folder str, like tree of ShapeDtypeStruct, specs tree of P, a mesh -> the state, with these shardings."""
    ### BEGIN SOLUTION
    target = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)), like, specs
    )
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, target)
    ### END SOLUTION


# %% check="production-save-and-reshard" name="example" points=1
"""The example."""


def probe_save_restore(state, like, specs, mesh):
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "checkpoint")
        save(folder, state)
        restored = restore(folder, like, specs, mesh)
        return restored


w = np.arange(32, dtype=np.float32).reshape(8, 4)
state = {"w": place(grid(8, names=("data",)), w, "data"), "step": np.int32(3)}
like = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
specs = {"w": P("model", "data"), "step": P()}
got = ask(probe_save_restore, state, like, specs, grid(2, 4))
compare(got["w"], w, label="w")
compare(got["step"], np.int32(3), label="the step")
shard = got["w"].sharding.shard_shape((8, 4))
require(shard == (2, 2), f"Each device stores a block {shard} of w; expected (2, 2).")

# %% hidden="production-save-and-reshard" name="values" points=3
"""Values, dtypes and shardings of all leaves are right on other meshes."""


def probe_reshard(state, shapes, layout, other):
    def reverse(tree):
        return {name: reverse(tree[name]) for name in reversed(tree)} if isinstance(tree, dict) else tree

    shapes = reverse(shapes)
    with tempfile.TemporaryDirectory() as parent:
        place = str(Path(parent) / "saved")
        save(place, state)
        return restore(place, shapes, layout, other)


def probe_copy(state, shapes, layout, other):
    import contextlib
    import shutil

    with tempfile.TemporaryDirectory() as parent:
        saved, copied = Path(parent) / "first", Path(parent) / "second"
        saved.mkdir()
        save(str(saved / "saved"), state)
        with contextlib.suppress(OSError):  # of files that are being written, which restoring reveals
            shutil.copytree(saved, copied)
        written = sum(file.stat().st_size for file in copied.rglob("*") if file.is_file())
        return restore(str(copied / "saved"), shapes, layout, other), written


rng = inputs.rng()
eight = grid(8, names=("data",))
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
for mesh, deep in ((grid(4, 2), False), (grid(2, 2), True)):
    rows, columns = 8 * int(rng.integers(1, 4)), 4 * int(rng.integers(1, 4))
    values = {
        "kernel": draw(rows, columns),
        "bias": jnp.asarray(draw(columns), jnp.bfloat16),
        "mask": rng.random(columns) < 0.5,
        "step": np.int32(rng.integers(100)),
    }
    entries = {"kernel": P("model", "data"), "bias": P("data"), "mask": P(), "step": P()}
    if deep:
        values = {"model": {"one": values, "two": {"kernel": draw(columns, rows)}}}
        entries = {"model": {"one": entries, "two": {"kernel": P(None, ("data", "model"))}}}
    state = jax.tree.map(
        lambda leaf: place(eight, leaf, "data") if leaf.ndim == 2 and len(leaf) % 8 == 0 else leaf, values
    )
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), values)
    words = "for a nested state on fewer devices" if deep else "for a state on another mesh"
    with case(f"{words}, with the keys of `like` in another order"):
        got = ask(probe_reshard, state, like, entries, mesh)
        compare(got, values, label="the state")
        for leaf, spec in zip(jax.tree.leaves(got), jax.tree.leaves(entries), strict=True):
            wanted = NamedSharding(mesh, spec)
            same = isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
            axes = "a vector" if leaf.ndim == 1 else f"a leaf with {leaf.ndim} axes"
            require(same, f"{axes} does not have the sharding of its spec on the new mesh.")
    with case("for a copy of the folder as soon as save has returned"):
        got, written = ask(probe_copy, state, like, entries, mesh)
        compare(got, values, label="the state")
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(values))
        require(
            written >= size // 2,
            f"The state has {size:,} bytes, but the files in the folder have {written:,}. Write the arrays themselves.",
        )

# %% hidden="production-save-and-reshard" name="other-shape" points=1
"""A stored array of another shape is an error, and a state of the right shape is not."""


def probe_other_shape(state, shapes, layout, other):
    with tempfile.TemporaryDirectory() as parent:
        place = str(Path(parent) / "saved")
        save(place, state)
        return restore(place, shapes, layout, other)


mesh, specs = grid(2, 4), {"w": P("data", "model")}
state = {"w": place(mesh, inputs.rng().normal(size=(8, 8)).astype(np.float32), "data")}
compare(
    ask(probe_other_shape, state, {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}, specs, mesh),
    state,
    label="the state",
)
for shape, words in (
    ((4, 8), "for fewer rows than stored"),
    ((16, 8), "for more rows than stored"),
    ((16, 4), "for the stored number of values in another shape"),
):
    failure = error(probe_other_shape, state, {"w": jax.ShapeDtypeStruct(shape, jnp.float32)}, specs, mesh)
    with case(words):
        require(failure is not None, "a stored array of another shape than `like` is accepted.")

# %% [markdown] why="production-save-and-reshard"
# Orbax stores an array in chunks, from which any part can be read. The checkpoint also contains the old shardings, but the shardings of the target replace them. **Next:** What has to be in `like` if the checkpoint also contains the state of an Adam optimizer?


# %% wrong="production-save-and-reshard" because="Restores without a target. Orbax then uses the shardings that were saved, and not those of the new mesh."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder)


# %% wrong="production-save-and-reshard" because="The target states shapes and dtypes but no shardings, so the new mesh is not used."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, like)


# %% wrong="production-save-and-reshard" because="Replicates all leaves on the new mesh instead of using their specs."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    everywhere = NamedSharding(mesh, P())
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), like)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, target)


# %% wrong="production-save-and-reshard" because="Partitions axis 0 of all leaves along `data` instead of using their specs."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    def leaf_like(leaf):
        spec = P("data") if leaf.ndim else P()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, jax.tree.map(leaf_like, like))


# %% wrong="production-save-and-reshard" because="Restores all leaves as float32. The target also states the dtype."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    target = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=NamedSharding(mesh, spec)),
        like,
        specs,
    )
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, target)


# %% wrong="production-save-and-reshard" because="Converts the leaves to NumPy arrays, which have no sharding."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    with ocp.StandardCheckpointer() as checkpointer:
        return jax.tree.map(np.asarray, checkpointer.restore(folder, like))


# %% wrong="production-save-and-reshard" because="Writes the leaves with `np.savez`. NumPy has no bfloat16, so the dtype of such an array is lost."
def save(folder, state):
    np.savez(folder, *map(np.asarray, jax.tree.leaves(state)))


def restore(folder, like, specs, mesh):
    stored = np.load(f"{folder}.npz")
    leaves = [stored[f"arr_{i}"] for i in range(len(stored.files))]
    place_one = lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec))
    return jax.tree.map(place_one, jax.tree.unflatten(jax.tree.structure(like), leaves), specs)


# %% wrong="production-save-and-reshard" because="Turns off the comparison of shapes. Orbax then truncates or pads a stored array to the shape in the target."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    target = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)), like, specs
    )
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, target, strict=False)


# %% wrong="production-save-and-reshard" because="Does not wait until the checkpoint is complete. StandardCheckpointer writes in the background."
WRITER = ocp.StandardCheckpointer()


def save(folder, state):
    WRITER.save(folder, state)


def restore(folder, like, specs, mesh):
    WRITER.wait_until_finished()
    target = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)), like, specs
    )
    return WRITER.restore(folder, target)


# %% wrong="production-save-and-reshard" because="Does not use `like`, so a stored array of another shape is not noticed."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    with ocp.StandardCheckpointer() as checkpointer:
        stored = checkpointer.restore(folder)
    return jax.tree.map(lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec)), stored, specs)


# %% wrong="production-save-and-reshard" because="Reshapes a stored array to the shape of `like`, which accepts another shape with as many values."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    with ocp.StandardCheckpointer() as checkpointer:
        stored = checkpointer.restore(folder)
    shaped = lambda leaf, array: np.asarray(array).reshape(leaf.shape)
    place_one = lambda array, spec: jax.device_put(array, NamedSharding(mesh, spec))
    return jax.tree.map(place_one, jax.tree.map(shaped, like, stored), specs)


# %% wrong="production-save-and-reshard" because="Uses the specs of matrices only, and replicates vectors."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    def leaf_like(leaf, spec):
        sharding = NamedSharding(mesh, spec if len(leaf.shape) > 1 else P())
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, jax.tree.map(leaf_like, like, specs))


# %% wrong="production-save-and-reshard" because="Pairs leaves and specs in the order of the dicts. Dicts with the same keys may have another order."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    def pair(like, specs):
        if isinstance(like, dict):
            return {name: pair(one, spec) for (name, one), spec in zip(like.items(), specs.values(), strict=True)}
        return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=NamedSharding(mesh, specs))

    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, pair(like, specs))


# %% wrong="production-save-and-reshard" because="Expects an array under every name of the dict. A state may be nested."
def save(folder, state):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    target = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, specs[name]))
        for name, leaf in like.items()
    }
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, target)


# %% wrong="production-save-and-reshard" because="Keeps the state in the memory of the process and writes its number only, so another process cannot restore it."
KEPT = []


def save(folder, state):
    Path(folder).mkdir(parents=True)
    KEPT.append(jax.tree.map(np.asarray, state))
    (Path(folder) / "number").write_text(str(len(KEPT) - 1))


def restore(folder, like, specs, mesh):
    state = KEPT[int((Path(folder) / "number").read_text())]

    def put(leaf, like, spec):
        assert leaf.shape == like.shape
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, state, like, specs)


# %% right="production-save-and-reshard"
def save(folder, state):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(folder, state)


def restore(folder, like, specs, mesh):
    arguments = jax.tree.map(
        lambda leaf, spec: ocp.ArrayRestoreArgs(
            dtype=leaf.dtype, sharding=NamedSharding(mesh, spec), global_shape=leaf.shape, strict=True
        ),
        like,
        specs,
    )
    stored = ocp.PyTreeCheckpointer().restore(folder, item=like, restore_args=arguments)
    if jax.tree.map(lambda leaf: leaf.shape, stored) != jax.tree.map(lambda leaf: leaf.shape, like):
        raise ValueError("a stored array has another shape")
    return stored


# %% right="production-save-and-reshard"
def save(folder, state):
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(Path(folder), state)
    checkpointer.wait_until_finished()


def restore(folder, like, specs, mesh):
    shardings = jax.tree.map(lambda leaf, spec: NamedSharding(mesh, spec), like, specs)
    whole = ocp.StandardCheckpointer().restore(folder, like)
    return jax.device_put(whole, shardings)


# %% [markdown] task="production-symbolic-batch" stars=2 minutes=15 skills="06_pytrees,04_grad"
# ## One export for all batch sizes
# **Goal.** Export a model once. The exported program accepts any batch size, runs on three platforms, and can be differentiated.
#
# **Signature.** `export_any_batch(f, params)` takes a function `f(params, x, mask)` and its parameters `{"w": float32[d,h], "b": float32[h]}`. It returns the serialized export as `bytes` (or `bytearray`). The exported function has the same three arguments as `f`, with `x` a `float32[b,d]` and `mask` a `bool[b]`.
#
# **Example.** The setup contains `scores`. For `params` of ones with d = 2 and h = 1, `jax.export.deserialize(export_any_batch(scores, params)).call(params, x, mask)` with `x` of zeros of shape (3, 2) and a mask of True returns three times `tanh(1)`. The same bytes also work for `x` of shape (5, 2).
#
# **Judged.** The values of `scores` and `mean_score` for several batch sizes and widths, also with other parameters than at the export. The gradient with respect to the parameters. The platforms `cpu`, `cuda` and `tpu`. **Not judged.** The size of the export.
#
# <details><summary>Hint 1 · a question</summary>
#
# `x` and `mask` have the same number of examples. How does the program know that?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `b, = jax.export.symbolic_shape("b")` makes one symbolic dimension, which both shapes can contain. `serialize` has an argument `vjp_order`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Call `jax.export.export(jax.jit(f), platforms=(...))` with `params`, a `jax.ShapeDtypeStruct((b, d), jnp.float32)` and a `jax.ShapeDtypeStruct((b,), jnp.bool_)`, then `serialize(vjp_order=1)`.
#
# </details>


# %% answer="production-symbolic-batch" timeout=20
def export_any_batch(f, params):
    """f(params, x float32[b,d], mask bool[b]), params {"w": (d, h), "b": (h,)} -> bytes of the export."""
    ### BEGIN SOLUTION
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    exported = jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask)
    return exported.serialize(vjp_order=1)
    ### END SOLUTION


# %% check="production-symbolic-batch" name="example" points=1
"""The example, for two batch sizes."""


def probe_example(params, xs, masks):
    exported = jax.export.deserialize(bytearray(export_any_batch(scores, params)))
    return [exported.call(params, x, mask) for x, mask in zip(xs, masks, strict=True)]


ones = {"w": np.ones((2, 1), np.float32), "b": np.ones(1, np.float32)}
results = ask(probe_example, ones, [np.zeros((n, 2), np.float32) for n in (3, 5)], [np.ones(n, bool) for n in (3, 5)])
for n, result in zip((3, 5), results, strict=True):
    compare(result, np.full(n, np.tanh(1), np.float32), label=f"the result for {n} examples")

# %% hidden="production-symbolic-batch" name="values" points=2
"""The exported program is right for other batch sizes, widths and parameters, and for both models."""


def probe_scores(params, others, x, mask):
    exported = jax.export.deserialize(bytearray(export_any_batch(scores, params)))
    return exported.call(others, x, mask)


def probe_mean(params, others, x, mask):
    exported = jax.export.deserialize(bytearray(export_any_batch(mean_score, params)))
    return exported.call(others, x, mask)


rng = inputs.rng()
draw = lambda d, h: {"w": rng.normal(size=(d, h)).astype(np.float32), "b": rng.normal(size=h).astype(np.float32)}
for n in (1, int(rng.integers(4, 8)), int(rng.integers(2000, 3000))):
    d, h = int(rng.integers(2, 5)), int(rng.integers(5, 8))
    params, others = draw(d, h), draw(d, h)
    x, mask = rng.normal(size=(n, d)).astype(np.float32), rng.random(n) < 0.7
    each = np.where(mask, np.tanh(x @ others["w"] + others["b"]).sum(axis=1), 0).astype(np.float32)
    mean = np.float32(each.sum() / max(mask.sum(), 1))
    with case("for a batch of one example" if n == 1 else "for a batch of several examples"):
        compare(ask(probe_scores, params, others, x, mask), each, label="the scores")
        compare(ask(probe_mean, params, others, x, mask), mean, label="the mean score")

# %% hidden="production-symbolic-batch" name="gradient" points=1
"""The export contains its backward pass."""


def probe_gradient(params, x, mask):
    exported = jax.export.deserialize(bytearray(export_any_batch(mean_score, params)))
    return jax.grad(lambda params: exported.call(params, x, mask))(params)


rng = inputs.rng()
d, h, n = int(rng.integers(2, 5)), int(rng.integers(5, 8)), 7
params = {"w": rng.normal(size=(d, h)).astype(np.float32), "b": rng.normal(size=h).astype(np.float32)}
x, mask = rng.normal(size=(n, d)).astype(np.float32), np.arange(n) % 3 != 0
back = (1 - np.tanh(x @ params["w"] + params["b"]) ** 2) * mask[:, None] / mask.sum()
wanted = {"w": (x.T @ back).astype(np.float32), "b": back.sum(axis=0).astype(np.float32)}
compare(ask(probe_gradient, params, x, mask), wanted, label="the gradient")

# %% hidden="production-symbolic-batch" name="platforms" points=1 observed=true
"""The export runs on three platforms, and its batch size is a symbol."""


def probe_platforms(params):
    exported = jax.export.deserialize(bytearray(export_any_batch(scores, params)))
    return sorted(exported.platforms), [str(aval.shape[0]) for aval in exported.in_avals[-2:]]


width = int(inputs.rng().integers(2, 9))
platforms, sizes = ask(probe_platforms, {"w": np.ones((width, 3), np.float32), "b": np.ones(3, np.float32)})
require({"cpu", "cuda", "tpu"} <= set(platforms), "The export does not support the three platforms.")
require(sizes[0] == sizes[1] and not sizes[0].isdigit(), "The batch size of x and mask is not one symbol.")

# %% [markdown] why="production-symbolic-batch"
# JAX traced the function with a symbol in place of a number. Every step had to be valid for all values of the symbol, and it was the same symbol in both arguments. **Next:** Which line of a model that begins with `x.reshape(b // 2, 2, d)` would fail, and which symbolic shape would help?


# %% wrong="production-symbolic-batch" because="Exports for one batch size. The program rejects all others."
def export_any_batch(f, params):
    x = jax.ShapeDtypeStruct((3, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((3,), jnp.bool_)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Gives the two arguments different symbols, so JAX cannot broadcast their shapes."
def export_any_batch(f, params):
    a, b = jax.export.symbolic_shape("a, b")
    x = jax.ShapeDtypeStruct((a, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Calls `symbolic_shape` once for each argument. Each call makes a scope of its own, and equal names in two scopes are different symbols."
def export_any_batch(f, params):
    x = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("b"), params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.bool_)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Exports for the platform of this machine only."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    return jax.export.export(jax.jit(f))(params, x, jax.ShapeDtypeStruct((b,), jnp.bool_)).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Serializes without a backward pass. `vjp_order` is 0 by default."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize()


# %% wrong="production-symbolic-batch" because="The parameters become constants of the program, so later values have no effect."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    fixed = jax.jit(lambda _, x, mask: f(params, x, mask))
    return jax.export.export(fixed, platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Exports the mask as float32. Argument dtypes must match the export exactly."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.float32)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Requires an even batch size, which the task does not."
def export_any_batch(f, params):
    (half,) = jax.export.symbolic_shape("half")
    x = jax.ShapeDtypeStruct((2 * half, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((2 * half,), jnp.bool_)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Constrains the symbol to batches of at least two examples. A batch may have one."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b", constraints=["b >= 2"])
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Constrains the symbol to at most 64 examples. A batch may be larger."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b", constraints=["b <= 64"])
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    exported = jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(
        params, x, jax.ShapeDtypeStruct((b,), jnp.bool_)
    )
    return exported.serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Exports the model for one example with `vmap`. A model may combine the examples, such as `mean_score`."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    each = jax.vmap(lambda params, x, mask: f(params, x[None], mask[None]).reshape(()), (None, 0, 0))
    return jax.export.export(jax.jit(each), platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Gives the two arguments different symbols, and replaces the mask by one value for the whole batch."
def export_any_batch(f, params):
    a, b = jax.export.symbolic_shape("a, b")
    x = jax.ShapeDtypeStruct((a, params["w"].shape[0]), jnp.float32)
    mask = jax.ShapeDtypeStruct((b,), jnp.bool_)
    whole = jax.jit(lambda params, x, mask: f(params, x, jnp.full(len(x), mask.all())))
    return jax.export.export(whole, platforms=("cpu", "cuda", "tpu"))(params, x, mask).serialize(vjp_order=1)


# %% wrong="production-symbolic-batch" because="Serializes without a backward pass. `vjp_order` is 0 by default."
def export_any_batch(f, params):
    (b,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(
        params,
        jax.ShapeDtypeStruct((b, params["w"].shape[0]), jnp.float32),
        jax.ShapeDtypeStruct((b,), jnp.bool_),
    )
    return exported.serialize()


# %% right="production-symbolic-batch"
def export_any_batch(f, params):
    args = params, jnp.zeros((2, len(params["w"]))), jnp.zeros(2, bool)
    shapes = jax.export.symbolic_args_specs(args, (None, "batch, ...", "batch"))
    compiled = jax.jit(lambda params, x, mask: f(params, x, mask))
    exported = jax.export.export(compiled, platforms=["tpu", "cpu", "cuda"])(*shapes)
    return bytes(exported.serialize(vjp_order=2))


# %% right="production-symbolic-batch"
def export_any_batch(f, params):
    n, _ = shape = jax.export.symbolic_shape(f"n, {params['w'].shape[0]}")
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    arguments = like, jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct((n,), "bool")
    return jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "rocm", "tpu"))(*arguments).serialize(1)


# %% [markdown] task="production-export-sharded" stars=2 minutes=15 skills="production-symbolic-batch,16_sharding"
# ## Export a program for eight devices
# **Goal.** Export a function together with the layout of its arguments and its result, so that another process can run it without your code.
#
# **Signature.** `export_sharded(f, shapes, specs, out_spec, mesh)` takes a function `f(x, w)`, the two shapes, a `P` for each of the two arguments, and a `P` for the result. It returns the serialized export as `bytes` (or `bytearray`). The arguments are float32, and the mesh has Auto axes. Leave `platforms=` at its default, because the checks cannot read an export for several platforms.
#
# **Example.** The setup contains `layer`, which returns `relu(x @ w)`. `export_sharded(layer, [(16, 4), (4, 8)], [P("data"), P(None, "model")], P("data", "model"), grid(4, 2))` is a program for eight devices. A check reloads it in a new Python process, where `jax.export.deserialize` is the only source of the program.
#
# **Judged.** The values, the sharding of the result, the number of devices, and that **no device needs a whole argument that is partitioned**: in the program of one device, the arguments have the shapes of the shards. The checks use the functions `layer` and `norms`, and several shapes, specs and meshes. If the summed axis is partitioned, the program contains the all-reduce or reduce-scatter. **Not judged.** Which devices and axis names the loading process uses.
#
# <details><summary>Hint 1 · a question</summary>
#
# How can a `jax.ShapeDtypeStruct` state a layout, although it contains no values?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Use `sharding=NamedSharding(mesh, spec)` for each argument. `jax.jit` takes `out_shardings=` for the result.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compile with `jax.jit(f, out_shardings=NamedSharding(mesh, out_spec))`. Call `jax.export.export` of it with the two `jax.ShapeDtypeStruct`s, and return `.serialize()`.
#
# </details>


# %% answer="production-export-sharded" timeout=40
def export_sharded(f, shapes, specs, out_spec, mesh):
    """f(x, w), two shapes, two P, a P for the result, a mesh -> bytes of the export of f with this layout."""
    ### BEGIN SOLUTION
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    compiled = jax.jit(f, out_shardings=NamedSharding(mesh, out_spec))
    return jax.export.export(compiled)(*arguments).serialize()
    ### END SOLUTION


# %% check="production-export-sharded" name="example" points=1
"""The example, reloaded in a new process with none of your code."""


def probe_new_process(x, w, specs, out_spec, mesh):
    blob = export_sharded(layer, [x.shape, w.shape], specs, out_spec, mesh)
    return processes.run(RELOAD, [(bytes(blob), np.asarray(x), np.asarray(w))], devices=8)[0]


x, w = np.ones((16, 4), np.float32), np.arange(32, dtype=np.float32).reshape(4, 8) - 9
got = ask(probe_new_process, x, w, [P("data"), P(None, "model")], P("data", "model"), grid(4, 2))
require(int(got["devices"]) == 8, f"The export is for {got['devices']} device(s); expected 8.")
compare(got["result"], np.maximum(x @ w, 0), label="the result in the new process")

# %% hidden="production-export-sharded" name="program" points=3
"""The exported program has the right values, layout and communication for other shapes, specs and functions."""


def probe_layer(x, w, out_spec, mesh, specs):
    blob = export_sharded(layer, [x.shape, w.shape], specs, out_spec, mesh)
    return jax.jit(jax.export.deserialize(bytearray(blob)).call)(x, w)


def probe_norms(x, w, out_spec, mesh, specs):
    blob = export_sharded(norms, [x.shape, w.shape], specs, out_spec, mesh)
    return jax.jit(jax.export.deserialize(bytearray(blob)).call)(x, w)


rng = inputs.rng()
for mesh, kind, specs, out_spec, adds in (
    (grid(4, 2), "layer", [P("data"), P(None, "model")], P("data", "model"), False),
    (grid(2, 4), "layer", [P("data", "model"), P("model")], P("data"), True),
    (grid(4, 2), "norms", [P("model"), P(None, "data")], P("model"), True),
    (grid(2, 2), "layer", [P("data"), P(None, "model")], P("model", "data"), False),
):
    n, d, h = (8 * int(rng.integers(1, 4)) for _ in range(3))
    x, w = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(d, h)).astype(np.float32)
    data = place(mesh, x, *specs[0]), place(mesh, w, *specs[1]), out_spec, mesh, specs
    made = program(probe_layer, *data) if kind == "layer" else program(probe_norms, *data)
    wanted = np.maximum(x @ w, 0) if kind == "layer" else ((x @ w) ** 2).sum(axis=1)
    compare(made.run(*data), wanted.astype(np.float32), label="the result", atol=1e-3)
    same = made.outputs.sharding.is_equivalent_to(NamedSharding(mesh, out_spec), made.outputs.ndim)
    require(same, "The result does not have the sharding of out_spec.")
    sums = made.count("all-reduce") + made.count("reduce-scatter")
    require(sums > 0 or not adds, "The program does not add the partial sums of the devices.")

# %% hidden="production-export-sharded" name="layout" points=2
"""The export contains the layout of its arguments."""


def probe_layout(shapes, specs, out_spec, mesh):
    exported = jax.export.deserialize(bytearray(export_sharded(layer, shapes, specs, out_spec, mesh)))
    own = [sharding.shard_shape(shape) for sharding, shape in zip(exported.in_shardings_jax(mesh), shapes, strict=True)]
    return exported.nr_devices, own


rng = inputs.rng()
for mesh, specs, out_spec in (
    (grid(4, 2), [P("data"), P(None, "model")], P("data", "model")),
    (grid(2, 4), [P("data", "model"), P("model")], P("data")),
    (grid(2, 2), [P(("data", "model")), P()], P(("data", "model"))),
):
    shapes = [(8 * int(rng.integers(1, 4)), 16), (16, 8 * int(rng.integers(1, 4)))]
    count, own = ask(probe_layout, shapes, specs, out_spec, mesh)
    require(int(count) == mesh.size, "The export is not for all devices of the mesh.")
    wanted = [NamedSharding(mesh, spec).shard_shape(shape) for spec, shape in zip(specs, shapes, strict=True)]
    require(
        [tuple(shape) for shape in own] == wanted, "In the export, the arguments do not have the shards of their specs."
    )

# %% [markdown] why="production-export-sharded"
# The export contains the partitioned StableHLO program with the sharding of each argument and of the result. The number of devices is fixed, but not which devices. The loading process chooses its own mesh of this size. **Next:** Why can a program that was exported for eight devices not run on sixteen?


# %% wrong="production-export-sharded" because="Exports for one device. The shapes state no layout."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(f))(*arguments).serialize()


# %% wrong="production-export-sharded" because="States only the layout of the result, so the arguments have none of their own."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(f, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Replicates the arguments on all devices."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P())) for shape in shapes]
    return jax.export.export(jax.jit(f, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Leaves the layout of the result to the compiler."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.export.export(jax.jit(f))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Replicates the result instead of using `out_spec`."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.export.export(jax.jit(f, out_shardings=NamedSharding(mesh, P())))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Returns the export itself instead of its bytes."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.export.export(jax.jit(f, out_shardings=NamedSharding(mesh, out_spec)))(*arguments)


# %% wrong="production-export-sharded" because="Uses the spec of the first argument for both arguments."
def export_sharded(f, shapes, specs, out_spec, mesh):
    sharding = NamedSharding(mesh, specs[0])
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    return jax.export.export(jax.jit(f, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Constrains the arguments inside the function. The export then expects whole arguments on every device."
def export_sharded(f, shapes, specs, out_spec, mesh):
    def constrained(x, w):
        x, w = (jax.lax.with_sharding_constraint(a, NamedSharding(mesh, s)) for a, s in zip((x, w), specs, strict=True))
        return f(x, w)

    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(constrained, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Applies `f` to the shards alone with `shard_map`, so the partial sums of the devices are not added."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    mapped = jax.shard_map(f, mesh=mesh, in_specs=tuple(specs), out_specs=out_spec, check_vma=False)
    return jax.export.export(jax.jit(mapped, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Gathers the arguments before `f`, so the devices repeat the sum instead of adding partial sums."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    whole = lambda x, w: f(*jax.lax.with_sharding_constraint((x, w), NamedSharding(mesh, P())))
    return jax.export.export(jax.jit(whole, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% wrong="production-export-sharded" because="Replicates `w` at the entry, and partitions it inside the function."
def export_sharded(f, shapes, specs, out_spec, mesh):
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, (specs[0], P()), strict=True)
    ]
    inside = lambda x, w: f(x, jax.lax.with_sharding_constraint(w, NamedSharding(mesh, specs[1])))
    return jax.export.export(jax.jit(inside, out_shardings=NamedSharding(mesh, out_spec)))(*arguments).serialize()


# %% right="production-export-sharded"
def export_sharded(f, shapes, specs, out_spec, mesh):
    result = NamedSharding(mesh, out_spec)
    placed = [jax.device_put(jnp.zeros(s), NamedSharding(mesh, p)) for s, p in zip(shapes, specs, strict=True)]
    return jax.export.export(jax.jit(lambda x, w: jax.lax.with_sharding_constraint(f(x, w), result)))(
        *placed
    ).serialize()


# %% right="production-export-sharded"
def export_sharded(f, shapes, specs, out_spec, mesh):
    *own, result = (NamedSharding(mesh, spec) for spec in (*specs, out_spec))
    compiled = jax.jit(f, in_shardings=tuple(own), out_shardings=result)
    x, w = (jax.ShapeDtypeStruct(tuple(shape), "float32") for shape in shapes)
    return bytes(jax.export.export(compiled)(x, w).serialize())


# %% right="production-export-sharded"
def export_sharded(f, shapes, specs, out_spec, mesh):
    arrays = [
        jax.device_put(jnp.zeros(shape), NamedSharding(mesh, spec)) for shape, spec in zip(shapes, specs, strict=True)
    ]
    constrain = lambda *args: jax.lax.with_sharding_constraint(f(*args), NamedSharding(mesh, out_spec))
    compiled = jax.jit(constrain, out_shardings=NamedSharding(mesh, out_spec))
    return jax.export.export(compiled)(*arrays).serialize()


# %% [markdown] task="production-resume-exactly" stars=3 minutes=25 skills="production-save-and-reshard,07_randomness,09_training"
# ## A training loop that resumes exactly
# **Goal.** Write a training loop that can stop at any step. The next call resumes at the last checkpoint, and every loss is **bitwise equal** to that of a run that never stopped.
#
# **Signature.** `train(folder, seed, steps, save_every, after_step)` trains until `steps` steps have been performed in total, in this call and all earlier ones. It returns a dict `{step: loss}` of the steps that this call has performed. The first step has the number 1, and the losses are Python floats. `folder` is a string with an absolute path, and the folder may not exist yet. All calls with the same folder have the same `save_every`. A call that resumes continues with the parameters of the checkpoint, even if its `seed` differs.
#
# The setup contains the parts. `start(seed)` returns `(params, opt_state, key)`. For each step, in this order:
# 1. split `key` with `jax.random.split`: the first result is the next `key`, the second is `subkey`
# 2. call `update(params, opt_state, subkey, batch)` with the next batch of a `loader = Loader()`. It returns the next `params`, the next `opt_state` and the loss
# 3. call `after_step(step)`, which may raise an exception
# 4. save a checkpoint if the step is a multiple of `save_every`
#
# `loader.state` is a dict of two ints. `Loader(state)` is a loader that continues at this position.
#
# **Example.** `train(folder, 0, 7, 3, stop_after(5))` raises `Stopped` after step 5. Then `train(folder, 0, 7, 3, stop_after(None))` resumes at the checkpoint of step 3 and returns a dict with the keys 4, 5, 6 and 7.
#
# **Judged.** The losses of an uninterrupted run, and the steps and losses of a resumed one, bitwise. The checks use several seeds and intervals. They stop a run before the first checkpoint, directly before and after a checkpoint, and several times. A later call may have more steps.
#
# A checkpoint must be complete before the next step begins: the checks copy the folder during that step, and resume from the copy. If the last step was saved, a further call returns an empty dict. **Not judged.** The number of checkpoints that you keep.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which objects does step 5 read that step 4 has changed? All of them belong in the checkpoint.
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `ocp.CheckpointManager(folder)` has the methods `latest_step()`, `save(step, args=ocp.args.StandardSave(state))`, `restore(step, args=ocp.args.StandardRestore(target))` and `wait_until_finished()`. It can save keys, and Python ints.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Put everything in one dict, `{"params": ..., "opt_state": ..., "key": ..., "loader": loader.state}`. At the beginning, build it from `start(seed)` and `Loader()`. If there is a checkpoint, restore it with this dict as the target, and continue with the step after `latest_step()`.
#
# </details>


# %% answer="production-resume-exactly" timeout=40
def train(folder, seed, steps, save_every, after_step):
    """Train until `steps` steps have been performed in total; {number of the step: loss} for those of this call."""
    ### BEGIN SOLUTION
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, done = {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state["loader"] = loader.state
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses
    ### END SOLUTION


# %% check="production-resume-exactly" name="example" points=1
"""The example: the run resumes at step 4, with equal losses."""


def probe_example():
    with temporary_folder() as whole, temporary_folder() as stopped:
        uninterrupted = train(whole, 0, 7, 3, stop_after(None))
        try:
            train(stopped, 0, 7, 3, stop_after(5))
            raised = False
        except Stopped:
            raised = True
        return uninterrupted, raised, train(stopped, 0, 7, 3, stop_after(None))


uninterrupted, raised, resumed = ask(probe_example)
require(
    sorted(uninterrupted) == list(range(1, 8)),
    f"The first run returned the steps {sorted(uninterrupted)}; expected 1 to 7.",
)
require(raised, "An exception of after_step has to leave train.")
require(sorted(resumed) == [4, 5, 6, 7], f"The resumed run performed the steps {sorted(resumed)}; expected 4 to 7.")
for step, loss in resumed.items():
    require(
        loss == uninterrupted[step],
        f"The loss of step {step} is {loss!r} after resuming, but {uninterrupted[step]!r} without a stop.",
    )

# %% hidden="production-resume-exactly" name="uninterrupted" points=1
"""A run without a stop performs the given steps."""


def probe_whole(seed, steps):
    with temporary_folder() as folder:
        return train(str(Path(folder) / "new"), seed, steps, 4, stop_after(None))


seed = int(inputs.rng().integers(1, 1000))
got = ask(probe_whole, seed, 6)
weights, moments, chain = start(seed)
reader, wanted = Loader(), {}
for step in range(1, 7):
    chain, own = jax.random.split(chain)
    weights, moments, value = update(weights, moments, own, reader.next_batch())
    wanted[step] = float(value)
require(isinstance(got, dict) and sorted(got) == sorted(wanted), "The numbers of the steps are wrong.")
compare(
    np.array([got[n] for n in wanted], np.float32),
    np.array([*wanted.values()], np.float32),
    label="the losses",
    rtol=1e-3,
)

# %% hidden="production-resume-exactly" name="resumed" points=4
"""Every stop is resumed at the last checkpoint, with bitwise equal losses."""


def probe_stops(seed, steps, save_every, stops):
    with temporary_folder() as whole, temporary_folder() as stopped:
        found = [train(whole, seed, steps, save_every, stop_after(None))]
        for stop in stops:
            try:
                found.append(train(stopped, seed, steps, save_every, stop_after(stop)))
            except Stopped:
                found.append(None)
        return found


def probe_copies(seed, steps, save_every):
    import contextlib
    import shutil

    with temporary_folder() as parent:
        run, copies = str(Path(parent) / "run"), []

        def copy(step):
            if step > 1 and step % save_every == 1:  # the step after a checkpoint
                copies.append(str(Path(parent) / f"copy_{step}"))
                with contextlib.suppress(OSError):  # of files that are being written, which resuming reveals
                    shutil.copytree(run, copies[-1])

        whole = train(run, seed, steps, save_every, copy)
        return [whole, *(train(place, seed, steps, save_every, stop_after(None)) for place in copies)]


def probe_other_seed(seed, other, steps, save_every, stop):
    with temporary_folder() as whole, temporary_folder() as stopped:
        found = train(whole, seed, steps, save_every, stop_after(None))
        try:
            train(stopped, seed, steps, save_every, stop_after(stop))
        except Stopped:
            return found, train(stopped, other, steps, save_every, stop_after(None))
        return found, None


def losses_of(seed, steps, done=0, other=None):
    """The losses after step `done` of a run without a stop, computed here; if `other` is given, with the keys of that seed."""
    weights, moments, chain = start(seed)
    *_, replaced = start(seed if other is None else other)
    reader, losses = Loader(), []
    for n in range(steps):
        chain = replaced if n == done else chain
        chain, own = jax.random.split(chain)
        replaced, _ = jax.random.split(replaced)
        weights, moments, value = update(weights, moments, own, reader.next_batch())
        losses.append(float(value))
    return np.array(losses[done:], np.float32)


def probe_longer(seed, shorter, steps, save_every):
    with temporary_folder() as whole, temporary_folder() as continued:
        train(continued, seed, shorter, save_every, stop_after(None))
        return [train(place, seed, steps, save_every, stop_after(None)) for place in (whole, continued)]


rng = inputs.rng()
for steps, save_every, stops, words in (
    (9, 4, (5, None), "for a stop after the first checkpoint"),
    (8, 3, (2, None), "for a stop before the first checkpoint"),
    (9, 3, (6, None), "for a stop directly before a checkpoint"),
    (12, 2, (3, 4, 11, None), "for several stops, the last one after step 10"),
    (6, 3, (None, None), "for a further call after the last step"),
):
    seed = int(rng.integers(1, 1000))
    whole, *parts = ask(probe_stops, seed, steps, save_every, stops)
    saved = 0
    with case(words):
        require(
            sorted(whole) == list(range(1, steps + 1)), "The numbers of the steps of an uninterrupted run are wrong."
        )
        found = np.array([whole[n] for n in range(1, steps + 1)], np.float32)
        compare(found, losses_of(seed, steps), label="the losses of an uninterrupted run", rtol=1e-3)
        for stop, part in zip(stops, parts, strict=True):
            last = (stop - 1) // save_every * save_every if stop else 0
            if stop is not None:
                require(part is None, "An exception of after_step does not leave train.")
                saved = max(saved, last)
                continue
            require(
                sorted(part) == list(range(saved + 1, steps + 1)), "The run does not resume after the last checkpoint."
            )
            require(all(part[n] == whole[n] for n in part), "A loss after resuming is not bitwise equal.")
            saved = steps // save_every * save_every
seed, other = (int(number) for number in rng.permutation(1000)[:2])
whole, part = ask(probe_other_seed, seed, other, 8, 3, 5)
with case("for a call with another seed that resumes"):
    require(part is not None, "An exception of after_step does not leave train.")
    require(sorted(part) == [4, 5, 6, 7, 8], "The run does not resume after the last checkpoint.")
    found = np.array([part[n] for n in sorted(part)], np.float32)
    accepted = [losses_of(seed, 8, 3), losses_of(seed, 8, 3, other)]  # a key may also follow from the seed
    require(
        any(np.allclose(found, losses, rtol=1e-3) for losses in accepted),
        "The run does not continue with the parameters of the checkpoint.",
    )
whole, *parts = ask(probe_copies, int(rng.integers(1, 1000)), 7, 2)
with case("for a copy of the folder during the step after a checkpoint"):
    for saved, part in zip((2, 4, 6), parts, strict=True):
        require(sorted(part) == list(range(saved + 1, 8)), "The run does not resume after the last checkpoint.")
        require(all(part[n] == whole[n] for n in part), "A loss after resuming is not bitwise equal.")
shorter = int(rng.integers(4, 6))
whole, part = ask(probe_longer, int(rng.integers(1, 1000)), shorter, 8, 3)
with case("for a second call with more steps"):
    require(sorted(part) == [4, 5, 6, 7, 8], "The run does not resume after the last multiple of save_every.")
    require(all(part[n] == whole[n] for n in part), "A loss after resuming is not bitwise equal.")

# %% [markdown] why="production-resume-exactly"
# A step is a function of the parameters, the optimizer state, the key and the batch. If the checkpoint contains the first three and the position of the loader, the resumed run computes with exactly the same numbers. **Next:** How could you derive the key and the batch from the number of the step, so that the checkpoint needs neither?


# %% wrong="production-resume-exactly" because="Does not save the key. After resuming, dropout uses the masks of the first steps again."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state, losses, done = {"params": params, "opt_state": opt_state, "loader": Loader().state}, {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        params, opt_state = state["params"], state["opt_state"]
        for step in range(done + 1, steps + 1):
            key, own = jax.random.split(key)
            params, opt_state, loss = update(params, opt_state, own, loader.next_batch())
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state = {"params": params, "opt_state": opt_state, "loader": loader.state}
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Does not save the position of the loader. After resuming, the loader begins with the first batch again."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state, losses, done = (params, opt_state, key), {}, 0
    loader = Loader()
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        params, opt_state, key = state
        for step in range(done + 1, steps + 1):
            key, own = jax.random.split(key)
            params, opt_state, loss = update(params, opt_state, own, loader.next_batch())
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                manager.save(step, args=ocp.args.StandardSave((params, opt_state, key)))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Does not save the state of the optimizer. After resuming, Adam's moments and its count begin at zero."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state, losses, done = {"params": params, "key": key, "loader": Loader().state}, {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader, params, key = Loader(state["loader"]), state["params"], state["key"]
        for step in range(done + 1, steps + 1):
            key, own = jax.random.split(key)
            params, opt_state, loss = update(params, opt_state, own, loader.next_batch())
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state = {"params": params, "key": key, "loader": loader.state}
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Repeats the step of the checkpoint. The next step is the one after it."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, first = {}, 1
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            first = manager.latest_step()
            state = manager.restore(first, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(first, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0 and step not in manager.all_steps():
                state["loader"] = loader.state
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Performs `steps` further steps after resuming. `steps` is the total of all calls."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, done = {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, done + steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state["loader"] = loader.state
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Saves only once, at the end. A run that stops earlier begins again."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, done = {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
        if losses:
            state["loader"] = loader.state
            manager.save(steps, args=ocp.args.StandardSave(state))
    return losses


# %% wrong="production-resume-exactly" because="Never restores. Every call begins with step 1."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    loader, losses = Loader(), {}
    with ocp.CheckpointManager(folder) as manager:
        for step in range(1, steps + 1):
            key, own = jax.random.split(key)
            params, opt_state, loss = update(params, opt_state, own, loader.next_batch())
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0 and step not in manager.all_steps():
                manager.save(step, args=ocp.args.StandardSave((params, opt_state, key, loader.state)))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Saves before the update, so the checkpoint with the number of a step lacks this step."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, done = {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            before = dict(state, loader=loader.state)
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                manager.save(step, args=ocp.args.StandardSave(before))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Restarts the epoch. It saves the number of the epoch, but not the position within it."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "epoch": 0}
    losses, done = {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader({"epoch": state["epoch"], "batch": 0})
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state["epoch"] = loader.state["epoch"]
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Does not wait until the checkpoint is complete. Orbax writes in the background, also while the next step runs."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses = {}
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state["loader"] = loader.state
                manager.save(step, args=ocp.args.StandardSave(state))
    return losses


# %% wrong="production-resume-exactly" because="Also saves the last step, which need not be a multiple of `save_every`."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses = {}
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0 or step == steps:
                state["loader"] = loader.state
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Saves before it calls `after_step`, so the checkpoint also contains a step that `after_step` has interrupted."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses = {}
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            if step % save_every == 0:
                state["loader"] = loader.state
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
            after_step(step)
    return losses


# %% wrong="production-resume-exactly" because="Relies on `save_interval_steps`. A manager without checkpoints then also saves the first step."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, options = {}, ocp.CheckpointManagerOptions(save_interval_steps=save_every)
    with ocp.CheckpointManager(folder, options=options) as manager:
        done = manager.latest_step() or 0
        if done:
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        loader = Loader(state["loader"])
        for step in range(done + 1, steps + 1):
            state["key"], subkey = jax.random.split(state["key"])
            batch = loader.next_batch()
            state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
            losses[step] = float(loss)
            after_step(step)
            state["loader"] = loader.state
            manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Compares the names of the checkpoints as text, where 8 comes after 10."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    state = {"params": params, "opt_state": opt_state, "key": key, "loader": Loader().state}
    losses, checkpointer, done = {}, ocp.StandardCheckpointer(), 0
    names = [path.name for path in Path(folder).glob("*") if path.name.isdigit()]
    if names:
        done = int(max(names))
        state = checkpointer.restore(Path(folder) / str(done), state)
    loader = Loader(state["loader"])
    for step in range(done + 1, steps + 1):
        state["key"], subkey = jax.random.split(state["key"])
        batch = loader.next_batch()
        state["params"], state["opt_state"], loss = update(state["params"], state["opt_state"], subkey, batch)
        losses[step] = float(loss)
        after_step(step)
        if step % save_every == 0:
            state["loader"] = loader.state
            checkpointer.save(Path(folder) / str(step), state, force=True)
            checkpointer.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Does not save the position of the loader. After resuming, the loader begins with the first batch again."
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    loader, losses = Loader(), {}
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            target = {"params": params, "opt_state": opt_state, "key": key}
            saved = manager.restore(done, args=ocp.args.StandardRestore(target))
            params, opt_state, key = saved["params"], saved["opt_state"], saved["key"]
        for step in range(done + 1, steps + 1):
            key, subkey = jax.random.split(key)
            params, opt_state, loss = update(params, opt_state, subkey, loader.next_batch())
            losses[step] = float(loss)
            after_step(step)
            if step % save_every == 0:
                state = {"params": params, "opt_state": opt_state, "key": key}
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    return losses


# %% wrong="production-resume-exactly" because="Saves the number of the step only, and continues without training."
def train(folder, seed, steps, save_every, after_step):
    file = Path(folder) / "step.txt"
    done = int(file.read_text()) if file.exists() else 0
    losses = {}
    for step in range(done + 1, steps + 1):
        losses[step] = 0.0
        after_step(step)
        if step % save_every == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(step))
    return losses


# %% wrong="production-resume-exactly" because="Saves the number of the step only, and repeats all earlier steps without reporting them."
def train(folder, seed, steps, save_every, after_step):
    file = Path(folder) / "step.txt"
    done = int(file.read_text()) if file.exists() else 0
    params, opt_state, key = start(seed)
    loader, losses = Loader(), {}
    for step in range(1, steps + 1):
        key, subkey = jax.random.split(key)
        params, opt_state, loss = update(params, opt_state, subkey, loader.next_batch())
        if step <= done:
            continue
        losses[step] = float(loss)
        after_step(step)
        if step % save_every == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(step))
    return losses


# %% right="production-resume-exactly"
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    loader, losses, step = Loader(), {}, 0
    checkpointer = ocp.StandardCheckpointer()
    Path(folder).mkdir(parents=True, exist_ok=True)
    saved = [int(path.name) for path in Path(folder).iterdir() if path.name.isdigit()]
    if saved:
        step = max(saved)
        params, opt_state, key, state = checkpointer.restore(
            Path(folder) / str(step), (params, opt_state, key, loader.state)
        )
        loader = Loader(state)
    while step < steps:
        step += 1
        key, own = jax.random.split(key)
        params, opt_state, loss = update(params, opt_state, own, loader.next_batch())
        losses[step] = loss.item()
        after_step(step)
        if step % save_every == 0:
            checkpointer.save(Path(folder) / str(step), (params, opt_state, key, loader.state))
            checkpointer.wait_until_finished()
    return losses


# %% right="production-resume-exactly"
def train(folder, seed, steps, save_every, after_step):
    params, opt_state, key = start(seed)
    loader, losses = Loader(), {}
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
    manager = ocp.CheckpointManager(folder, options=options)
    done = manager.latest_step() or 0
    for _ in range(done):  # the key and the loader follow from the number of the step
        key, _ = jax.random.split(key)
        loader.next_batch()
    if done:
        params, opt_state = manager.restore(done, args=ocp.args.StandardRestore((params, opt_state)))
    for step in range(done + 1, steps + 1):
        key, own = jax.random.split(key)
        params, opt_state, loss = update(params, opt_state, own, loader.next_batch())
        losses[step] = float(loss)
        after_step(step)
        if step % save_every == 0:
            manager.save(step, args=ocp.args.StandardSave((params, opt_state)))
    manager.close()
    return losses


# %% [markdown] task="production-two-processes" stars=3 minutes=25 skills="production-local-rows,18_data_parallel"
# ## A mean over processes
# **Goal.** Each process has evaluated its own examples, and their number differs between the processes. Compute the mean over all examples in every process.
#
# **Signature.** `global_mean(rows)` is called in every process, with its own rows, a NumPy array `float32[n,d]`. The number `n` may be 0 in some processes, and `d` is the same in all. It returns the mean over the rows of all processes, a `float32[d]`, in every process. The processes are connected, so `jax.process_count()` and `jax.devices()` include all of them. Each process has several devices.
#
# The check starts new processes that contain **only the code of your answer cell** and these names: `functools`, `math`, `jax`, `jnp`, `np`, `AxisType`, `Mesh`, `NamedSharding` and `P`. Import everything else in the cell. In your notebook, `processes.run(global_mean, [(rows_0,), (rows_1,)], devices=2)` starts two processes with two devices each, and returns a list of their results.
#
# **Example.** The first process has the rows `[[1, 10]]`, and the second one has `[[4, 40], [7, 70]]`. Both return `[4, 40]`.
#
# **Judged.** The values in every process, for one and two processes, with one or several devices each. **Not judged.** How the processes communicate.
#
# If the machine that grades cannot connect two processes, the check about several processes is skipped and gives its points.
#
# <details><summary>Hint 1 · a question</summary>
#
# What must a process send, so that the others can compute the mean without its rows?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Send the sum and the number of rows, as one array of `d + 1` numbers. Its shape is the same in every process. `jax.make_array_from_process_local_data(sharding, local)` combines the arrays of all processes into one array.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use a `Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))` and `P("process")` for an array of shape `(processes, d + 1)`. Sum over axis 0 under `jax.jit` with `out_shardings=NamedSharding(mesh, P())`, so that every process has the whole result.
#
# </details>


# %% answer="production-two-processes" timeout=60
def global_mean(rows):
    """Called in every process, with its own rows float32[n,d] -> the mean over the rows of all processes, float32[d]."""
    ### BEGIN SOLUTION
    local = np.append(rows.sum(axis=0), len(rows)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), local[None])
    total = jax.jit(lambda parts: parts.sum(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)
    total = np.asarray(total)
    return total[:-1] / total[-1]
    ### END SOLUTION


# %% check="production-two-processes" name="example" points=2
"""The mean in a single process, and the example with two processes."""


def probe_alone(rows):
    return processes.run(global_mean, [(rows,)], devices=2)


def probe_two(first, second):
    return processes.run(global_mean, [(first,), (second,)], devices=2)


rows = np.float32([[1, 2], [4, -3], [0, 7], [2, 5], [8, 1]])
with case("a single process"):
    compare(np.asarray(ask(probe_alone, rows)[0]), np.float32([3, 2.4]), label="the mean")
processes.need_loopback()
results = ask(probe_two, np.float32([[1, 10]]), np.float32([[4, 40], [7, 70]]))
for process, result in enumerate(results):
    compare(np.asarray(result), np.float32([4, 40]), label=f"the mean in process {process}")

# %% hidden="production-two-processes" name="processes" points=4
"""Right in every process, for other rows, processes and devices."""


def probe_several(count, every):
    return processes.run(global_mean, [(rows,) for rows in every], devices=count)


rng = inputs.rng()
cases = [
    ("two processes with two devices each", 2, [2 * int(rng.integers(1, 3)) + 1, 2 * int(rng.integers(550, 600)) + 1]),
    ("a process with one device and no rows", 1, [0, int(rng.integers(2, 6))]),
]
if not processes.loopback():
    cases = [("a single process", 2, [4])]  # which needs none
for words, count, lengths in cases:
    width = int(rng.integers(2, 6))
    every = [rng.normal(size=(n, width)).astype(np.float32) + 2 * i for i, n in enumerate(lengths)]
    every[-1][0] = 0  # a row like any other
    with case(words):
        results = ask(probe_several, count, every)
        require(len(results) == len(every), "There is not one result for each process.")
        for result in results:
            compare(np.asarray(result), np.concatenate(every).mean(axis=0), label="the mean in a process")
processes.need_loopback()

# %% [markdown] why="production-two-processes"
# Every process contributes an array of the same shape, although its number of rows is its own. The sum over a partitioned axis is an all-reduce between the processes, and the replicated result is available in each of them. **Next:** How would you compute the median over all processes, and what would each process have to send?


# %% equivalent="production-two-processes" because="JAX makes float32 of the float64 that np.append returns."
# dropped cast, X.astype(Y) -> X: local = np.append(rows.sum(axis=0), len(rows)).astype(np.float32)


# %% equivalent="production-two-processes" because="Each process calls the function once, so its first size is its only one."
# hard-coded size, len(X) -> globals().setdefault("first", len(X)): local = np.append(rows.sum(axis=0), len(rows)).astype(np.float32)


# %% equivalent="production-two-processes" because="The mean over the processes divides both the sum and the number by the same."
# swapped function, sum -> mean: total = jax.jit(lambda parts: parts.sum(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)


# %% wrong="production-two-processes" because="Averages the means of the processes. A process with few rows then counts as much as one with many, and one without rows gives NaN."
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), rows.mean(axis=0)[None])
    return jax.jit(lambda parts: parts.mean(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)


# %% wrong="production-two-processes" because="Computes the mean of the process's own rows only. Nothing is communicated."
def global_mean(rows):
    return jnp.asarray(rows).mean(axis=0)


# %% wrong="production-two-processes" because="Divides by the number of its own rows instead of by that of all rows."
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), rows.sum(axis=0)[None])
    total = jax.jit(lambda parts: parts.sum(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)
    return np.asarray(total) / len(rows)


# %% wrong="production-two-processes" because="Returns the sum over all rows without dividing by their number."
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), rows.sum(axis=0)[None])
    return jax.jit(lambda parts: parts.sum(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)


# %% wrong="production-two-processes" because="Partitions the rows themselves over all devices. That requires numbers of rows that the devices divide, and that are equal in all processes."
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()), ("all",))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("all")), rows)
    return jax.jit(lambda parts: parts.mean(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)


# %% wrong="production-two-processes" because="Reads a global array that is partitioned over the processes. A process can read only the shards of its own devices."
def global_mean(rows):
    local = np.append(rows.sum(axis=0), len(rows)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), local[None])
    total = np.asarray(parts).sum(axis=0)
    return total[:-1] / total[-1]


# %% wrong="production-two-processes" because="Computes the mean of the process's own rows only. Nothing is communicated."
def global_mean(rows):
    local = np.append(rows.sum(axis=0), len(rows)).astype(np.float32)
    mesh = Mesh(np.array(jax.local_devices()), ("all",))
    whole = jax.device_put(local, NamedSharding(mesh, P()))
    return np.asarray(whole)[:-1] / np.asarray(whole)[-1]


# %% wrong="production-two-processes" because="Divides by the number of processes times the number of its own rows, as if all processes had equally many."
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), rows.sum(axis=0)[None])
    total = jax.jit(lambda parts: parts.sum(axis=0), out_shardings=NamedSharding(mesh, P()))(parts)
    return np.asarray(total) / (jax.process_count() * len(rows))


# %% wrong="production-two-processes" because="Weights the means of the processes by their numbers of rows. The mean of no rows is NaN, and 0 times NaN is NaN."
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("process", "local"))
    local = np.append(rows.mean(axis=0), len(rows)).astype(np.float32)
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("process")), local[None])
    weigh = lambda parts: (parts[:, :-1] * parts[:, -1:]).sum(axis=0) / parts[:, -1].sum()
    return jax.jit(weigh, out_shardings=NamedSharding(mesh, P()))(parts)


# %% right="production-two-processes"
def global_mean(rows):
    from jax.experimental import multihost_utils

    sums = multihost_utils.process_allgather(np.float32(rows.sum(axis=0)))
    counts = multihost_utils.process_allgather(np.float32(len(rows)))
    width = rows.shape[1]
    return np.asarray(sums).reshape(-1, width).sum(axis=0) / np.asarray(counts).sum()


# %% right="production-two-processes"
def global_mean(rows):
    local = np.append(rows.sum(axis=0), len(rows)).astype(np.float32)
    count = jax.local_device_count()
    mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(AxisType.Auto,))
    padded = np.zeros((count, len(local)), np.float32)
    padded[0] = local
    parts = jax.make_array_from_process_local_data(NamedSharding(mesh, P("all")), padded)
    add = jax.shard_map(lambda part: jax.lax.psum(part[0], "all"), mesh=mesh, in_specs=P("all"), out_specs=P())
    total = jax.jit(add)(parts).addressable_data(0)
    return total[:-1] / total[-1]


# %% right="production-two-processes"
def global_mean(rows):
    mesh = Mesh(np.array(jax.devices()), ("all",))
    own = jax.local_devices()
    shares = [rows[i :: len(own)] for i in range(len(own))]
    sums = [np.float32([[*share.sum(axis=0), len(share)]]) for share in shares]
    blocks = [jax.device_put(block, device) for block, device in zip(sums, own, strict=True)]
    shape = (jax.device_count(), rows.shape[1] + 1)
    table = jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, P("all")), blocks)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("all"), out_specs=P())
    def add(block):
        return jax.lax.psum(block.sum(axis=0), "all")

    total = np.asarray(jax.jit(add)(table))
    return total[:-1] / total[-1]
