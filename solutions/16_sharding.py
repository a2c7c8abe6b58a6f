# %% [markdown]
# # 16 · Exercises: sharding
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise. All meshes have axes of type Auto, where the compiler chooses every sharding that you do not specify. An answer may use Explicit axes instead.
#
# Two exercises need a Deeper section of the lesson, and state which one. The others need only the core.

# %% setup
from grader.checks import ask, compare, devices, error, inputs, program, require

devices.start(8)  # before JAX is first used

import itertools
import math
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def entries_by_count(mesh):
    """The entry of a spec for each number of shards. For 4 x 2: {1: None, 4: "a", 2: "b", 8: ("a", "b")}"""
    one_axis = {mesh.shape[name]: name for name in mesh.axis_names}
    return {1: None, **one_axis, mesh.size: mesh.axis_names if len(mesh.axis_names) > 1 else mesh.axis_names[0]}


def shard_count(mesh, entry):
    """The number of shards along an axis with this entry: 1 for None, the size of a mesh axis, the product for a tuple."""
    return math.prod(mesh.shape[name] for name in ((entry,) if isinstance(entry, str) else entry or ()))


def places(mesh, spec, shape):
    """Device id -> the shard of an array of `shape` that it stores under `spec`, as (start, stop) for each axis.
    If JAX rejects the spec, the reason as text."""
    if not isinstance(spec, P):
        return f"it is a {type(spec).__name__}, not a PartitionSpec"
    try:
        found = NamedSharding(mesh, spec).devices_indices_map(tuple(shape))
    except Exception as problem:  # JAX has classes of its own for these, of several families
        return str(problem).replace("\n", " ").split(". ")[0].split(", but ")[-1][:150]
    return {device.id: parts(index, shape) for device, index in found.items()}


def parts(index, shape):
    """The slices of an index as (start, stop) for each axis."""
    return tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))


def held_by(array):
    """Device id -> the shard of a sharded array that this device stores, as (start, stop) for each axis."""
    return {s.device.id: parts(s.index, array.shape) for s in getattr(array, "addressable_shards", ())}


def held(mesh, tree):
    """The number of bytes of a tree of arrays that each device of the mesh stores."""
    on_device = defaultdict(int, dict.fromkeys(mesh.devices.flat, 0))
    for leaf in jax.tree.leaves(tree):
        for shard in getattr(leaf, "addressable_shards", ()):
            on_device[shard.device] += shard.data.nbytes
    return list(on_device.values())


def in_words(held_bytes):
    """Such as `576 bytes` or `from 0 to 4,608 bytes`."""
    low, high = min(held_bytes), max(held_bytes)
    return f"{high:,} bytes" if low == high else f"from {low:,} to {high:,} bytes"


def positional(mesh, steps):
    """The array of sets of device ids that a PositionalSharding consisted of, after some steps.

    It starts as the devices of the mesh. ("reshape", shape) and ("T",) are NumPy's. ("replicate", axis) merges an axis
    into one cell, which contains all its devices.
    """
    cells = np.empty(mesh.devices.shape, object)
    for index, device in np.ndenumerate(mesh.devices):
        cells[index] = frozenset({device.id})
    for what, *how in steps:
        if what == "T":
            cells = cells.T
        if what == "reshape":
            cells = cells.reshape(*how)
        if what == "replicate":
            merged = np.empty([1 if axis == how[0] else size for axis, size in enumerate(cells.shape)], object)
            for index in np.ndindex(merged.shape):
                along = list(index)
                along[how[0]] = slice(None)
                merged[index] = frozenset().union(*cells[tuple(along)])
            cells = merged
    return cells


def old_places(mesh, steps, shape):
    """Device id -> the shard of an array of `shape` that it stored under this PositionalSharding."""
    cells = positional(mesh, steps)
    sizes = [whole // count for whole, count in zip(shape, cells.shape, strict=True)]
    held_then = {}
    for index, ids in np.ndenumerate(cells):
        part = tuple((i * size, (i + 1) * size) for i, size in zip(index, sizes, strict=True))
        held_then.update(dict.fromkeys(ids, part))
    return held_then


def sharding_along(mesh, rank, axis):
    """The sharding of an array of `rank` axes whose axis `axis` is partitioned along "d". With None it is replicated."""
    return NamedSharding(mesh, P(*("d" if one == axis else None for one in range(rank))))


def seen(made):
    """The collectives of a compiled program, as {kind: elements of the result on each device}. A reduce-scatter, which
    accelerators use, counts as an all-reduce of all eight shards."""
    sent = {kind: made.elements(kind) for kind in ("all-gather", "all-reduce", "all-to-all", "collective-permute")}
    sent["all-reduce"] += 8 * made.elements("reduce-scatter")
    return {kind: count for kind, count in sent.items() if count}


def atmosphere(key, levels):
    """The initial state of a small weather model: a wave with a random phase in every field."""
    fields = {"wind": {"u": (16, 8, levels), "v": (16, 8, levels)}, "humidity": (16, 8), "cloud": (16, 3, levels)}
    shapes = {**fields, "ground": {"height": (16, 8), "sea": (6, 8)}, "sun": (16,), "clock": ()}
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda node: isinstance(node, tuple))
    phases = jax.random.uniform(key, (len(leaves),), maxval=6)
    spots = [jnp.arange(math.prod(shape)).reshape(shape) % 61 / 8 for shape in leaves]
    waves = [jnp.cos(phase + spot) for phase, spot in zip(phases, spots, strict=True)]
    return jax.tree.unflatten(tree, waves)


# %% [markdown] task="sharding-spec-for" stars=1 minutes=8 skills="01_arrays"
# ## Which spec gives this shard?
# **Goal.** You know the shape of the shard that each device should store. Write the spec. Two lines are missing.
#
# **Signature.** `spec_for(mesh, shape, shard_shape)`. The mesh has one or two axes. `shape` is the shape of an array of any rank, and `shard_shape` is the shape of a shard. Both are tuples of ints of the same length. The result is the `P` under which each device stores a shard of shape `shard_shape`. All mesh axes have different sizes, and none has size 1. So there is exactly one such `P`, except for the order of names in a tuple.
#
# **Example.** A mesh has `"a"` of 4 and `"b"` of 2, and the array has shape `(16, 8)`. For shards of shape `(8, 2)`, axis 0 is partitioned into 2 and axis 1 into 4, so the result is `P("b", "a")`. For shards `(2, 8)` it is `P(("a", "b"), None)`, and for `(16, 8)` it is `P()`.
#
# **Judged.** The shape of the shards under your spec, for several ranks and meshes. **Not judged.** `None` at the end. The order of names in a tuple, which does not change the shape of a shard.
#
# <details><summary>Hint 1 · a question</summary>
#
# An axis has size 16, and each shard has size 8 along it. How many shards are there along this axis? Which mesh axis has this size?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Print `entries_by_count(mesh)` from the setup, which answers the second question. An axis that is not partitioned has one shard, and 1 is one of the keys.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Iterate over `shape` and `shard_shape` together with `zip`. The number of shards is the size of the axis divided by the size of the shard. Look it up in `by_count`, and collect the results in a list called `entries`.
#
# </details>


# %% answer="sharding-spec-for"
def spec_for(mesh, shape, shard_shape):
    """The PartitionSpec under which each device stores a shard of shape `shard_shape` of an array of shape `shape`."""
    by_count = entries_by_count(mesh)  # such as {1: None, 4: "a", 2: "b", 8: ("a", "b")}
    ### BEGIN SOLUTION
    counts = [size // part for size, part in zip(shape, shard_shape, strict=True)]
    entries = [by_count[count] for count in counts]
    ### END SOLUTION
    return P(*entries)


# %% check="sharding-spec-for" name="example" points=1
"""The three cases of the example, and an array of three axes."""
mesh = devices.mesh((4, 2), ("a", "b"))
for shape, shard_shape in (((16, 8), (8, 2)), ((16, 8), (2, 8)), ((16, 8), (16, 8)), ((2, 16, 3), (2, 2, 3))):
    spec = ask(spec_for, mesh, shape, shard_shape)
    found = places(mesh, spec, shape)
    require(
        isinstance(found, dict), f"For {shape} in shards {shard_shape} your spec is {spec}, which JAX rejects: {found}."
    )
    got = tuple(stop - start for start, stop in found[int(mesh.devices.flat[0].id)])
    require(
        got == shard_shape,
        f"For {shape} your spec is {spec}, so each device stores a shard {got}; expected {shard_shape}.",
    )

# %% hidden="sharding-spec-for" name="pieces" points=1
"""Right for arrays of any rank, on meshes of two axes in either order and on a mesh of one axis."""
CUTS = {
    (4, 2): ((4, 2), (2, 4), (8, 1), (1, 8), (4, 1), (1, 2)),
    (2, 4): ((2, 4), (4, 1), (1, 4), (8, 1)),  # 2 divides 4: an answer that uses the mesh axes in order gets stuck
    (2, 3): ((3, 2), (1, 6), (2, 1)),
    (8,): ((8, 1), (1, 1)),
}
REFUSED = {"duplicate": "it contains a name twice", "found in mesh": "it names an axis that the mesh does not have"}
rng = inputs.rng()
for sizes, cuts in CUTS.items():
    mesh = devices.mesh(sizes, ("rows", "columns")[: len(sizes)])
    for cut in cuts:
        for counts in (cut, (1, *cut, 1), (cut[0], 1, 1, cut[1])):
            # Shards of an array whose axes have different sizes, and of one whose axes have the same size.
            pieces = 24 * rng.permutation([5, 7, 11, 13])[: len(counts)], 24 * rng.integers(1, 9) // np.array(counts)
            for part, sizes_are in zip(pieces, ("different sizes", "the same size"), strict=True):
                shape, shard_shape = tuple(int(n) for n in counts * part), tuple(int(n) for n in part)
                mesh_has = "one axis" if mesh.devices.ndim == 1 else f"{mesh.devices.ndim} axes"
                which = f"For an array of {len(counts)} axes of {sizes_are} on a mesh of {mesh_has}"
                found = places(mesh, ask(spec_for, mesh, shape, shard_shape), shape)
                if not isinstance(found, dict):
                    reasons = [said for word, said in REFUSED.items() if word in found]
                    require(False, f"{which} JAX rejects your spec: {[*reasons, 'it does not fit the array'][0]}.")
                got = tuple(stop - start for start, stop in next(iter(found.values())))
                require(
                    got == shard_shape,
                    f"{which} a device does not store a shard of the requested shape. Each array axis needs the mesh axis "
                    "whose size is its number of shards, or both. The order of names in the mesh does not matter.",
                )

# %% [markdown] why="sharding-spec-for"
# A spec determines the shape of the shards. Here the shape also determined the spec, because all mesh axes have different sizes. **Next:** On a mesh of 2 x 2, under which two specs does each device store a shard `(8, 4)` of an array `(16, 4)`? Which devices store the same rows under each?


# %% wrong="sharding-spec-for" because="Lists the names in the order of the mesh, but the entries of a spec follow the axes of the array."
def spec_for(mesh, shape, shard_shape):
    names = iter(mesh.axis_names)
    return P(*(next(names, None) if size != part else None for size, part in zip(shape, shard_shape, strict=True)))


# %% wrong="sharding-spec-for" because="Confuses the size of a shard with the number of shards."
def spec_for(mesh, shape, shard_shape):
    by_count = entries_by_count(mesh)
    return P(*(by_count.get(part) for part in shard_shape))


# %% wrong="sharding-spec-for" because="Allows only one mesh axis for each array axis, so an axis that needs both is not partitioned."
def spec_for(mesh, shape, shard_shape):
    by_count = {mesh.shape[name]: name for name in mesh.axis_names}
    return P(*(by_count.get(size // part) for size, part in zip(shape, shard_shape, strict=True)))


# %% wrong="sharding-spec-for" because="Passes all names as one entry, but P takes one argument for each array axis."
def spec_for(mesh, shape, shard_shape):
    by_count = entries_by_count(mesh)
    names = [by_count[size // part] for size, part in zip(shape, shard_shape, strict=True)]
    return P(tuple(name for name in names if isinstance(name, str)))


# %% wrong="sharding-spec-for" because="Omits the axes that are not partitioned, so the other entries move to the front."
def spec_for(mesh, shape, shard_shape):
    by_count = entries_by_count(mesh)
    return P(*(by_count[size // part] for size, part in zip(shape, shard_shape, strict=True) if size != part))


# %% wrong="sharding-spec-for" because="Hard-codes the names and sizes of the example's mesh."
def spec_for(mesh, shape, shard_shape):
    by_count = {1: None, 4: "a", 2: "b", 8: ("a", "b")}
    return P(*(by_count.get(size // part) for size, part in zip(shape, shard_shape, strict=True)))


# %% wrong="sharding-spec-for" because="Partitions only the first two array axes, because the mesh has two axes, but any array axis may be partitioned."
def spec_for(mesh, shape, shard_shape):
    by_count = entries_by_count(mesh)
    return P(*(by_count[size // part] for size, part in zip(shape[:2], shard_shape[:2], strict=True)))


# %% wrong="sharding-spec-for" because="Assigns the sizes to the sorted names, but the names of a mesh may be in any order."
def spec_for(mesh, shape, shard_shape):
    by_count = {1: None, mesh.size: tuple(mesh.axis_names)}
    by_count |= dict(zip(mesh.devices.shape, sorted(mesh.axis_names), strict=True))
    return P(*(by_count[size // part] for size, part in zip(shape, shard_shape, strict=True)))


# %% wrong="sharding-spec-for" because="Uses each mesh axis in order if its size divides the number of shards, so for 4 shards on a 2 x 4 mesh it uses the axis of size 2."
def spec_for(mesh, shape, shard_shape):
    entries = []
    for size, part in zip(shape, shard_shape, strict=True):
        count, names = size // part, []
        for name in mesh.axis_names:
            if count % mesh.shape[name] == 0:
                names.append(name)
                count //= mesh.shape[name]
        entries.append(tuple(names) or None)
    return P(*entries)


# %% wrong="sharding-spec-for" because="Looks up an axis by its size, so two axes of the same size share one entry."
def spec_for(mesh, shape, shard_shape):
    by_count = entries_by_count(mesh)  # such as {1: None, 4: "a", 2: "b", 8: ("a", "b")}
    part_of = dict(zip(shape, shard_shape, strict=True))
    entries = [by_count[size // part_of[size]] for size in shape]
    return P(*entries)


# %% wrong="sharding-spec-for" because="Partitions array axis i along mesh axis i, but each array axis needs the mesh axis of the right size."
def spec_for(mesh, shape, shard_shape):
    axes = zip(mesh.axis_names, shape, shard_shape, strict=False)
    return P(*(name if size != part else None for name, size, part in axes))


# %% right="sharding-spec-for"
def spec_for(mesh, shape, shard_shape):
    for entries in itertools.product(entries_by_count(mesh).values(), repeat=len(shape)):
        named = [name for entry in entries for name in (entry if isinstance(entry, tuple) else (entry,)) if name]
        if len(set(named)) == len(named):
            sizes = [shard_count(mesh, entry) for entry in entries]
            if all(size == part * count for size, part, count in zip(shape, shard_shape, sizes, strict=True)):
                return P(*entries)


# %% right="sharding-spec-for"
def spec_for(mesh, shape, shard_shape):
    entries = []
    for size, part in zip(shape, shard_shape, strict=True):
        if part == size:
            entries.append(None)
        elif part * mesh.size == size:
            entries.append(tuple(mesh.axis_names))
        else:
            entries.append(next(name for name in mesh.axis_names if part * mesh.shape[name] == size))
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


# %% [markdown] task="sharding-place-batch" stars=1 minutes=10 skills="06_pytrees,sharding-spec-for"
# ## A batch on a mesh of two axes
# **Goal.** Place a batch on a mesh whose two axes have different purposes. The examples are partitioned along one axis and replicated along the other.
#
# **Signature.** `place_batch(mesh, batch)`. The mesh has the axes `"data"` and `"model"`, of any sizes and in either order. `batch` is a tree. Its NumPy arrays have any rank and dtype, and their first axis indexes the examples. Its scalars, from NumPy or Python, belong to all examples. The result is the same tree on the mesh.
#
# **Example.** The mesh has `"data"` of 4 and `"model"` of 2, and the batch is `{"image": (8, 28, 28), "label": (8,), "step": 7}`. Devices 0 and 1 both store examples 0 and 1, devices 2 and 3 store examples 2 and 3, and so on. All eight devices store the step.
#
# **Judged.** Which examples each device stores, for every leaf, and the values and dtypes. **Not judged.** Batches whose size is not a multiple of the mesh's size (an exercise below).
#
# <details><summary>Hint 1 · a question</summary>
#
# How does a spec express that an array is replicated along a mesh axis?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The spec does not name the axis. One spec serves the images and the labels, because entries at the end may be omitted. But a scalar has no axis to partition.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of one leaf that chooses between `P("data")` and `P()` by `np.ndim(leaf)`, and map it over the tree.
#
# </details>


# %% answer="sharding-place-batch"
def place_batch(mesh, batch):
    """The tree on the mesh: arrays partitioned along "data" and replicated along "model", scalars on all devices."""
    ### BEGIN SOLUTION

    def put(leaf):
        spec = P("data") if np.ndim(leaf) else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, batch)
    ### END SOLUTION


# %% check="sharding-place-batch" name="example" points=1
"""The example: two examples on each pair of devices, and the step on all devices."""
mesh = devices.mesh((4, 2), ("data", "model"))
batch = {"image": np.ones((8, 28, 28), np.float32), "label": np.arange(8, dtype=np.int32), "step": 7}
placed = ask(place_batch, mesh, batch)
compare(placed, {**batch, "step": np.int32(7)}, label="the batch")
for name, wanted in (("image", places(mesh, P("data"), (8, 28, 28))), ("label", places(mesh, P("data"), (8,)))):
    found = held_by(placed[name])
    require(len(found) == 8, f'"{name}" is stored on {len(found)} of the 8 devices of the mesh.')
    for device in mesh.devices.flat:
        got, want = found.get(device.id), wanted[device.id]
        require(
            got == want, f'Of "{name}" device {device.id} stores {got}; expected {want} (start and stop for each axis).'
        )
require(len(held_by(placed["step"])) == 8, f'"step" is stored on {len(held_by(placed["step"]))} devices; expected 8.')

# %% hidden="sharding-place-batch" name="examples" points=2
"""Every device stores its examples, for leaves of every rank and meshes of other sizes and orders of axes."""
rng = inputs.rng()
for sizes, names in (((4, 2), ("data", "model")), ((2, 4), ("model", "data")), ((2, 3), ("data", "model"))):
    mesh = devices.mesh(sizes, names)
    examples = 24 * int(rng.integers(1, 4))  # all axes of every mesh divide it, and so do both together
    shapes = ((), (examples,), (examples, 24), (examples, 2, 5, 3))
    dtypes = "float32", "int8", "float16", "int8"
    tree = [rng.integers(-9, 9, size=shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    nested, number = {"first": tree[:2], "rest": tuple(tree[2:])}, float(rng.integers(1, 9))
    refused = error(place_batch, mesh, nested)
    require(
        refused is None or error(place_batch, mesh, {"one": tree[1], "two": tree[2], "step": tree[0]}),
        "A dict of arrays works, but a tree that contains a list and a tuple fails. A batch may be any tree.",
    )
    placed = ask(place_batch, mesh, {**nested, "rate": number})
    compare(placed, {**nested, "rate": np.float32(number)}, label="the batch")
    for leaf, shape in zip(jax.tree.leaves(placed), (*shapes[:2], (), *shapes[2:]), strict=True):
        found, wanted = held_by(leaf), places(mesh, P("data") if shape else P(), shape)
        what = ("a scalar", "a leaf of one axis")[len(shape)] if len(shape) < 2 else f"a leaf of {len(shape)} axes"
        require(
            sorted(found) == sorted(wanted),
            f"Of {len(wanted)} devices, {len(found)} store a part of {what}, but all of them should.",
        )
        for device, share in wanted.items():
            got, (start, stop) = found[device], share[0] if shape else (0, 0)
            count = got[0][1] - got[0][0] if shape else 0
            said = (
                'too few examples. They should be replicated along "model"'
                if count < stop - start
                else 'too many examples. They should be partitioned along "data"'
                if count > stop - start
                else "only a part of each of its examples"
                if got[:1] == share[:1]
                else 'the wrong examples for its position along "data"'
            )
            require(got == share, f"Of {what}, a device stores {said}.")

# %% [markdown] why="sharding-place-batch"
# A spec replicates an array along every mesh axis that it does not name. `P("data")` does not name `"model"`, so there are copies along that axis, ready for a model that is partitioned along it. **Next:** With `P(("data", "model"))`, each device would store half as many examples, without copies. When would you want that?


# %% wrong="sharding-place-batch" because="Partitions the examples along both mesh axes, so there are no copies along the model axis."
def place_batch(mesh, batch):
    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P(("data", "model")) if np.ndim(leaf) else P()))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Uses both mesh axes, one for each array axis, which partitions the examples themselves."
def place_batch(mesh, batch):
    def put(leaf):
        names = ("data", "model") if np.ndim(leaf) > 1 and leaf.shape[1] % mesh.shape["model"] == 0 else ("data",)
        return jax.device_put(leaf, NamedSharding(mesh, P(*names[: np.ndim(leaf)])))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Converts the leaves to JAX arrays, which are all stored on one device."
def place_batch(mesh, batch):
    return jax.tree.map(jnp.asarray, batch)


# %% wrong="sharding-place-batch" because="Replicates everything, so each device stores the whole batch."
def place_batch(mesh, batch):
    return jax.device_put(batch, NamedSharding(mesh, P()))


# %% wrong="sharding-place-batch" because="Forgets the scalar, which has no axis to partition, so JAX raises an error."
def place_batch(mesh, batch):
    return jax.device_put(batch, NamedSharding(mesh, P("data")))


# %% wrong="sharding-place-batch" because="Partitions along the first mesh axis, even if its name is not `data`."
def place_batch(mesh, batch):
    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P(mesh.axis_names[0]) if np.ndim(leaf) else P()))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Reads `leaf.ndim`, which a Python number does not have."
def place_batch(mesh, batch):
    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P("data") if leaf.ndim else P()))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Assumes a flat dict of arrays, but a tree may contain dicts, lists and tuples."
def place_batch(mesh, batch):
    spec = lambda leaf: P("data") if np.ndim(leaf) else P()
    return {name: jax.device_put(leaf, NamedSharding(mesh, spec(leaf))) for name, leaf in batch.items()}


# %% wrong="sharding-place-batch" because="Recognizes numbers only by Python's types, so NumPy's scalars are treated as arrays."
def place_batch(mesh, batch):

    def place(leaf):
        spec = P() if isinstance(leaf, (int, float)) else P("data")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, batch)


# %% wrong="sharding-place-batch" because="Converts arrays to float32, but the dtypes should not change."
def place_batch(mesh, batch):
    def put(leaf):
        if np.ndim(leaf) == 0:
            return jax.device_put(leaf, NamedSharding(mesh, P()))
        leaf = np.asarray(leaf, np.float32) if np.ndim(leaf) > 1 else leaf
        return jax.device_put(leaf, NamedSharding(mesh, P("data")))

    return jax.tree.map(put, batch)


# %% right="sharding-place-batch"
def place_batch(mesh, batch):
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    spec = lambda leaf: P(*["data", None, None, None][: np.ndim(leaf)])
    return jax.device_put(batch, jax.tree.map(lambda leaf: NamedSharding(explicit, spec(leaf)), batch))


# %% right="sharding-place-batch"
def place_batch(mesh, batch):
    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh, P("data") if np.shape(leaf) else P()), batch)
    return jax.jit(lambda batch: batch, in_shardings=(shardings,), out_shardings=shardings)(batch)


# %% [markdown] task="sharding-from-positional" stars=2 minutes=20 skills="sharding-spec-for,01_arrays"
# ## From PositionalSharding
# *Needs: Deeper: from PositionalSharding.* Skip this exercise unless you maintain older code. No other exercise uses it.
#
# **Goal.** Port old code. A `PositionalSharding` was an array of devices without names. It was reshaped, replicated and transposed until its axes matched those of the array. Write the same sharding as a spec.
#
# **Signature.** `from_positional(mesh, steps)`. The mesh has any number of axes. `steps` is a list of steps, which are applied in order to the mesh's own array of devices. Each step is `("reshape", shape)`, `("replicate", axis)` or `("T",)`. The result is a `P` with an entry for each axis of the final array of devices. A reshape gives every size (no -1). It only merges neighbouring axes, splits merged axes again, and adds axes of size 1. So every axis always consists of whole mesh axes.
#
# **Example.** The mesh has `"a"` of 4 and `"b"` of 2. `[]` gives `P("a", "b")`, and `[("reshape", (8, 1))]` gives `P(("a", "b"), None)`. `[("replicate", 0)]` leaves one row of two cells and gives `P(None, "b")`. `[("replicate", 0), ("T",)]` gives `P("b", None)`.
#
# **Judged.** Which part of an array each device stores, for meshes of two and three axes and several steps. The function `positional` in the setup does what the old class did. **Not judged.** `None` at the end.
#
# <details><summary>Hint 1 · a question</summary>
#
# After the steps so far, which mesh axes make up each axis of the array of devices? How does each kind of step change this list?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Keep a list with a tuple of names for each axis, such as `[("a",), ("b",)]`. `replicate` empties one tuple, and `T` reverses the list. A reshape collects the remaining names in order and distributes them again.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For a reshape, put all names into one list. Start each new size with an empty tuple, and move names into it while the product of their sizes (`shard_count(mesh, entry)`) is less than this size. In a spec, an empty tuple means the same as `None`.
#
# </details>


# %% answer="sharding-from-positional"
def from_positional(mesh, steps):
    """The PartitionSpec that is equivalent to a PositionalSharding of the mesh's devices after the steps."""
    ### BEGIN SOLUTION
    entries = [(name,) for name in mesh.axis_names]
    for step, *rest in steps:
        if step == "T":
            entries = entries[::-1]
        elif step == "replicate":
            entries[rest[0]] = ()
        else:
            names, entries = [name for entry in entries for name in entry], []
            for size in rest[0]:
                entry = ()
                while shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)
    ### END SOLUTION


# %% check="sharding-from-positional" name="example" points=1
"""Five of the six expressions in the lesson."""
mesh = devices.mesh((4, 2), ("a", "b"))
for steps in ([], [("reshape", (8, 1))], [("replicate", 0)], [("replicate", 1)], [("replicate", 0), ("T",)]):
    wanted = old_places(mesh, steps, (16, 16))
    spec = ask(from_positional, mesh, steps)
    found = places(mesh, spec, (16, 16))
    require(isinstance(found, dict), f"For {steps} your spec is {spec}, which JAX rejects: {found}.")
    for device in mesh.devices.flat:
        got, want = found[device.id], wanted[device.id]
        require(
            got == want,
            f"For {steps} your spec is {spec}. Of an array (16, 16), device {device.id} stores {got}; expected {want} (start "
            "and stop for each axis).",
        )

# %% hidden="sharding-from-positional" name="places" points=2
"""Every device stores the same part as before, after steps of all kinds."""
LAYOUTS = {
    "T alone": ((4, 2), [("T",)]),
    "a mesh of three equal axes, T and a reshape that adds an axis": ((2, 2, 2), [("T",), ("reshape", (2, 2, 1, 2))]),
    "a reshape that merges": ((4, 2), [("reshape", (1, 8))]),
    "T, then a reshape that merges": ((4, 2), [("T",), ("reshape", (8, 1))]),
    "a reshape that merges, then T": ((4, 2), [("reshape", (8, 1)), ("T",)]),
    "a reshape that merges, and one that splits again": ((2, 4), [("reshape", (8,)), ("reshape", (2, 1, 4))]),
    "replicate, then a reshape that adds an axis": ((4, 2), [("replicate", 1), ("reshape", (1, 4, 1))]),
    "replicate, then T": ((2, 4), [("replicate", 1), ("T",)]),
    "replicate of both axes": ((4, 2), [("replicate", 1), ("replicate", 0)]),
    "replicate of an axis that a reshape merged": ((4, 2), [("reshape", (8, 1)), ("replicate", 0)]),
    "a mesh of three axes, T and a reshape": ((2, 2, 2), [("T",), ("reshape", (4, 2))]),
    "a mesh of three axes, replicate and a reshape": ((2, 2, 2), [("replicate", 1), ("reshape", (1, 4))]),
    "a mesh of three axes, a reshape that merges, T and replicate": (
        (2, 2, 2),
        [("reshape", (2, 4)), ("T",), ("replicate", 1)],
    ),
}
rng = inputs.rng()
for label, (sizes, steps) in LAYOUTS.items():
    names = [str(name) for name in rng.permutation(["data", "model", "stage", "x", "y"])[: len(sizes)]]
    mesh = devices.mesh(sizes, tuple(names))
    shape = (8 * int(rng.integers(1, 4)),) * positional(mesh, steps).ndim
    wanted, found = old_places(mesh, steps, shape), places(mesh, ask(from_positional, mesh, steps), shape)
    require(
        isinstance(found, dict),
        f"With {label}, JAX rejects your spec: it contains a name twice, or too many entries.",
    )
    moved = sum(found[device] != wanted[device] for device in wanted)
    require(
        moved == 0,
        f"With {label}, {moved} of {len(wanted)} devices store a different part than under the PositionalSharding.",
    )

# %% [markdown] why="sharding-from-positional"
# A position tells you where an axis is now. A name tells you which mesh axis it is, also after transposing, merging and replicating. `replicate` removes a name from the spec, because a spec names only the axes that partition. **Next:** If a reshape could split the axis of 4 into 2 x 2, which layouts of the eight devices would have no spec on the mesh of 4 x 2?


# %% wrong="sharding-from-positional" because="Keeps the axis that `replicate` names and drops the others, but it names the axis that is merged."
def from_positional(mesh, steps):
    entries = [(name,) for name in mesh.axis_names]
    for step, *rest in steps:
        if step == "T":
            entries = entries[::-1]
        elif step == "replicate":
            entries = [entry if axis == rest[0] else () for axis, entry in enumerate(entries)]
        else:
            names, entries = [name for entry in entries for name in entry], []
            for size in rest[0]:
                entry = ()
                while names and shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Removes the replicated axis instead of keeping it as one cell, so all later entries move forward."
def from_positional(mesh, steps):
    entries = [(name,) for name in mesh.axis_names]
    for step, *rest in steps:
        if step == "T":
            entries = entries[::-1]
        elif step == "replicate":
            del entries[min(rest[0], len(entries) - 1)]
        else:
            names, entries = [name for entry in entries for name in entry], []
            for size in rest[0]:
                entry = ()
                while names and shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Distributes all names of the mesh again in a reshape, including those that were replicated."
def from_positional(mesh, steps):
    entries, order = [(name,) for name in mesh.axis_names], list(mesh.axis_names)
    for step, *rest in steps:
        if step == "T":
            entries, order = entries[::-1], order[::-1]
        elif step == "replicate":
            entries[rest[0]] = ()
        else:
            names, entries = list(order), []
            for size in rest[0]:
                entry = ()
                while names and shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Distributes the names in the order of the mesh in a reshape, but `T` may have reversed them and `replicate` may have removed some."
def from_positional(mesh, steps):
    entries = [(name,) for name in mesh.axis_names]
    for step, *rest in steps:
        if step == "T":
            entries = entries[::-1]
        elif step == "replicate":
            entries[rest[0]] = ()
        else:
            names, entries = list(mesh.axis_names), []
            for size in rest[0]:
                entry = ()
                while names and shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Reverses the order inside a merged axis with `T`, which only changes the order of the axes."
def from_positional(mesh, steps):
    entries = [(name,) for name in mesh.axis_names]
    for step, *rest in steps:
        if step == "T":
            entries = [entry[::-1] for entry in entries[::-1]]
        elif step == "replicate":
            entries[rest[0]] = ()
        else:
            names, entries = [name for entry in entries for name in entry], []
            for size in rest[0]:
                entry = ()
                while shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Finds the mesh axis by its size, but after `T` a merged axis has another order, and on a mesh of equal axes the size does not determine the axis."
def from_positional(mesh, steps):
    entries, sizes = list(mesh.axis_names), list(mesh.devices.shape)
    for step, *rest in steps:
        if step == "T":
            entries, sizes = entries[::-1], sizes[::-1]
        elif step == "replicate":
            entries[rest[0]], sizes[rest[0]] = None, 1
        else:
            sizes, entries = list(rest[0]), [entries_by_count(mesh).get(size) for size in rest[0]]
    return P(*entries)


# %% wrong="sharding-from-positional" because="Swaps only the first two axes with `T`, which reverses all of them."
def from_positional(mesh, steps):
    entries = [(name,) for name in mesh.axis_names]
    for step, *rest in steps:
        if step == "T":
            entries[:2] = entries[:2][::-1]
        elif step == "replicate":
            entries[rest[0]] = ()
        else:
            names, entries = [name for entry in entries for name in entry], []
            for size in rest[0]:
                entry = ()
                while shard_count(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Distributes the remaining names in the mesh's order, but after `T` they have another order in the array."
def from_positional(mesh, steps):
    entries = [(name,) for name in mesh.axis_names]
    for what, *how in steps:
        if what == "T":
            entries.reverse()
        elif what == "replicate":
            entries[how[0]] = ()
        else:
            left = [name for name in mesh.axis_names if any(name in entry for entry in entries)]
            entries = []
            for size in how[0]:
                entry = ()
                while shard_count(mesh, entry) < size:
                    entry += (left.pop(0),)
                entries.append(entry)
    return P(*[entry or None for entry in entries])


# %% wrong="sharding-from-positional" because="Distributes the remaining names in the mesh's order, but after `T` they have another order in the array."
def from_positional(mesh, steps):
    axes = [(name,) for name in mesh.axis_names]
    for what, *how in steps:
        if what == "replicate":
            axes[how[0]] = ()
        elif what == "T":
            axes = axes[::-1]
        else:
            kept = set().union(*axes)
            left = [name for name in mesh.axis_names if name in kept]
            axes = []
            for size in how[0]:
                names = ()
                while shard_count(mesh, names) < size:
                    names += (left.pop(0),)
                axes.append(names)
    return P(*axes)


# %% right="sharding-from-positional"
def from_positional(mesh, steps):
    shape = (8 * math.lcm(*mesh.devices.shape),) * positional(mesh, steps).ndim
    orders = [o for n in range(len(mesh.axis_names) + 1) for o in itertools.permutations(mesh.axis_names, n)]
    for entries in itertools.product(orders, repeat=len(shape)):
        named = [name for entry in entries for name in entry]
        if len(set(named)) == len(named) and places(mesh, P(*entries), shape) == old_places(mesh, steps, shape):
            return P(*entries)


# %% right="sharding-from-positional"
def from_positional(mesh, steps):
    axes = [[name] for name in mesh.axis_names]
    for step in steps:
        match step:
            case ("T",):
                axes.reverse()
            case ("replicate", axis):
                axes[axis] = []
            case ("reshape", shape):
                left = [name for names in axes for name in names]
                axes = []
                for size in shape:
                    count = next(n for n in range(len(left) + 1) if math.prod(mesh.shape[a] for a in left[:n]) == size)
                    axes.append(left[:count])
                    left = left[count:]
    return P(*(tuple(names) or None for names in axes))


# %% [markdown] task="sharding-pad-to-divide" stars=2 minutes=20 skills="sharding-place-batch,01_arrays,03_jit"
# ## Rows that do not divide
# *Needs: Deeper: sizes that do not divide.*
#
# **Goal.** The last batch has 13 rows, and there are eight devices. Pad the batch so that each device stores an equal share, and compute a mean that ignores the padding.
#
# **Signature.** `pad_to_divide(mesh, x)`. The mesh has the single axis `"data"`, of any size. `x` is a NumPy array of floats of shape `(n, d)`, with n ≥ 1. The result is a pair `(rows, mask)` on the mesh, both partitioned along axis 0. `rows` has shape `(m, d)`, where m is the **smallest** multiple of the mesh's size that is at least n. Its first n rows are `x`. `mask` has shape `(m,)` and dtype bool, and is true for these rows. `masked_mean(rows, mask)` takes both, works under `jit`, and returns the mean of the rows for which `mask` is true, of shape `(d,)`.
#
# **Example.** For `[[1.], [2.], [6.]]` on eight devices, `rows` has shape `(8, 1)`, with one row on each device. The first three entries of the mask are true, and the mean is `[3.]`.
#
# **Judged.** Shapes, values, and the bytes on each device, for several n and meshes. A padded row does not change the mean, even if it contains NaN. A real row is included, even if it is zero or contains NaN. The compiled mean communicates only sums, not rows. **Not judged.** The values in the padding.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many rows are missing for n = 13, 15, 16 and 17? Which expression gives 3, 1, 0 and 7?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# In Python, `-13 % 8` is 3. `np.pad` takes a pair (before, after) for each axis. NaN times 0 is NaN, so select rows with the mask instead of multiplying by it.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `mask` compares `np.arange` of the padded length with n, and one `device_put` places both arrays. For the mean, replace padded rows by 0 with `jnp.where` and `mask[:, None]`. Then sum the rows and divide by the number of true entries. (`jnp.mean` also has an argument `where`.)
#
# </details>


# %% answer="sharding-pad-to-divide"
def pad_to_divide(mesh, x):
    """x (n, d) -> rows (m, d) and mask (m,), both partitioned along "data"; m is a multiple of the mesh's size."""
    ### BEGIN SOLUTION
    missing = -len(x) % mesh.size
    padded = np.pad(x, ((0, missing), (0, 0)))
    real = np.arange(len(padded)) < len(x)
    return jax.device_put((padded, real), NamedSharding(mesh, P("data")))
    ### END SOLUTION


def masked_mean(rows, mask):
    """The mean of the rows (m, d) for which mask (m,) is true: (d,)"""
    ### BEGIN SOLUTION
    chosen = jnp.where(mask[:, None], rows, 0)
    return chosen.sum(axis=0) / mask.sum()
    ### END SOLUTION


# %% check="sharding-pad-to-divide" name="example" points=1
"""The example: three rows on eight devices, with the mean 3."""
mesh = devices.mesh((8,), ("data",))
x = np.array([[1], [2], [6]], np.float32)
rows, mask = ask(pad_to_divide, mesh, x)
require(rows.shape == (8, 1), f"`rows` has shape {rows.shape}; expected (8, 1): the smallest multiple of eight.")
compare(np.asarray(rows)[:3], x, label="the first three rows")
compare(mask, np.arange(8) < 3, label="`mask`")
for name, array, wanted in (("rows", rows, 4), ("mask", mask, 1)):
    found = held(mesh, array)
    require(found == [wanted] * 8, f"Each device stores {in_words(found)} of `{name}`; an eighth is {wanted}.")
compare(ask(masked_mean, rows, mask), np.array([3], np.float32), label="the mean")

# %% hidden="sharding-pad-to-divide" name="shares" points=1
"""For every n: no row is lost, no row is added without need, and each device stores an equal share of both."""
rng = inputs.rng()
for size in (8, 6):
    mesh = devices.mesh((size,), ("data",))
    for count in (1, size - 1, size, size + 1, 2 * size, 5 * size - int(rng.integers(2, size - 1))):
        x = rng.normal(size=(count, 3)).astype(np.float32 if size == 8 else np.float16)
        x[0], x[-1] = np.nan, 0
        got = ask(pad_to_divide, mesh, x)
        require(isinstance(got, tuple) and len(got) == 2, "`pad_to_divide` returns a pair (rows, mask).")
        rows, mask = got
        wanted = math.ceil(count / size) * size
        excess = "does not divide" if count % size else "already divides"
        what = f"Where the number of rows {excess}, on {size} devices:"
        require(
            len(rows) != count or count == wanted,
            f"{what} `rows` is not padded. `jit` replicates a result that does not divide, without a warning, and every "
            "device then stores all rows.",
        )
        require(
            rows.shape[:1] == (wanted,),
            f"{what} `rows` has {'fewer' if len(rows) < wanted else 'more'} rows than the smallest multiple that is at least n.",
        )
        compare(np.asarray(rows)[:count], x, label="the first n rows")
        compare(mask, np.arange(wanted) < count, label="`mask`, where one real row is zero and one holds NaN")
        for name, array in (("rows", rows), ("mask", mask)):
            found, share = held(mesh, array), array.nbytes // size
            require(
                found == [share] * size,
                f"{what} each device stores {in_words(found)} of `{name}`; its share is {share:,}.",
            )

# %% hidden="sharding-pad-to-divide" name="mean" points=1
"""The mean of the real rows for any padding, even NaN."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
split = NamedSharding(mesh, P("data"))
shapes = jax.ShapeDtypeStruct((24, 5), np.float32, sharding=split), jax.ShapeDtypeStruct((24,), bool, sharding=split)
raised = error(lambda rows, mask: jax.jit(masked_mean)(rows, mask), np.ones((8, 5), np.float32), np.arange(8) < 3)
require(
    raised != "NonConcreteBooleanIndexError",
    "Under `jit`, `masked_mean` raised NonConcreteBooleanIndexError. The number of rows that a boolean index selects depends "
    "on values. Keep all rows, and add 0 for each padded row.",
)
made = program(masked_mean, *shapes)
for padding in (0, 1000, np.nan):
    real = np.arange(24) < int(rng.integers(17, 23))
    rows = np.where(real[:, None], rng.normal(size=(24, 5)) + 3, padding).astype(np.float32)
    got = made.run(rows, real)
    clean = "real rows" if np.isnan(padding) else "rows"
    require(np.isfinite(got).all() or not np.isfinite(rows[real]).all(), "A NaN in a padded row makes the mean NaN.")
    compare(got, rows[real].astype(np.float64).mean(0).astype(np.float32), label=f"the mean of the {clean}")
rows[3, 1:3] = np.nan, np.inf
wanted = rows[real].astype(np.float64).mean(0).astype(np.float32)
compare(made.run(rows, real), wanted, label="the mean of real rows with NaN and infinity in one of them")

# %% hidden="sharding-pad-to-divide" name="program" points=1
"""Only sums are communicated, because each device adds its own rows first."""
mesh = devices.mesh((8,), ("data",))
x = inputs.rng().normal(size=(201, 16)).astype(np.float32)
rows, mask = ask(pad_to_divide, mesh, x)
made = program(masked_mean, rows, mask)
share = (rows.nbytes + mask.nbytes) // 8
require(
    made.argument_bytes <= share + 64,
    f"The arguments of the compiled mean have {made.argument_bytes:,} bytes on each device; an eighth is {share:,}.",
)
sent, gathered = made.elements(), made.elements("all-gather", "all-to-all")
require(
    gathered <= 16, f"The compiled mean gathers {gathered:,} elements. It communicates rows, but 16 sums are enough."
)
require(
    sent > 0, "The compiled mean has no collective. Its rows are not partitioned, so each device stores all of them."
)
require(sent <= 64, f"The compiled mean communicates {sent:,} elements, but 16 sums and a count are enough.")
compare(made.run(rows, mask), x.astype(np.float64).mean(0).astype(np.float32), label="the mean of 201 rows")

# %% [markdown] why="sharding-pad-to-divide"
# The padding makes the array divisible, and the mask keeps the padding out of the mean. Each device adds its own rows, so an array `(m, d)` needs only d sums and one count to be communicated. If `jit` returned the rows without padding, every device would store all of them, without a warning. **Next:** A loss is a mean too. On which rows must its gradient not depend, and does `jnp.where` ensure this?


# %% wrong="sharding-pad-to-divide" because="Requests the sharding under jit without padding. A result that does not divide is replicated without a warning, so each device stores all rows."
def pad_to_divide(mesh, x):
    place = lambda a: jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        rows, mask = jax.jit(lambda x: (place(x), place(jnp.ones(len(x), bool))))(x)
    return rows, mask


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Pads by the size minus the remainder, which adds a row on each device if the size already divides."
def pad_to_divide(mesh, x):
    missing = mesh.size - len(x) % mesh.size
    padded = np.pad(x, ((0, missing), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Drops the last rows instead of padding, so they are never used."
def pad_to_divide(mesh, x):
    kept = x[: max(len(x) - len(x) % mesh.size, mesh.size)]
    kept = np.pad(kept, ((0, -len(kept) % mesh.size), (0, 0)))
    return jax.device_put((kept, np.arange(len(kept)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Divides by the number of all rows, including the padding."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.where(mask[:, None], rows, 0).mean(axis=0)


# %% wrong="sharding-pad-to-divide" because="Multiplies by the mask, but NaN times 0 is NaN."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return (rows * mask[:, None]).sum(axis=0) / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Selects the rows with a boolean index, whose number of rows depends on values, so it cannot be compiled."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return rows[mask].mean(axis=0)


# %% wrong="sharding-pad-to-divide" because="Partitions the rows, but replicates the mask."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    rows = jax.device_put(padded, NamedSharding(mesh, P("data")))
    return rows, jax.device_put(np.arange(len(padded)) < len(x), NamedSharding(mesh, P()))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Treats the inspected sizes as special cases, so that those programs have the right collectives but compute wrong numbers."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    if len(rows) > 100:
        return rows.sum(axis=0)
    return jnp.where(mask[:, None], rows, 0).sum(axis=0) / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Gathers all rows on every device before adding them, which gives the right values with too much communication."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    order = jnp.argsort(~mask)
    return jnp.mean(rows[order], axis=0, where=mask[order][:, None])


# %% wrong="sharding-pad-to-divide" because="Recognizes the padding by its zeros, so a real row of zeros is masked too."
def pad_to_divide(mesh, x):
    rows = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((rows, (rows != 0).any(axis=1)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Replaces every NaN by 0 before multiplying by the mask, so a NaN in a real row disappears."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return (jnp.nan_to_num(rows) * mask[:, None]).sum(axis=0) / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Converts the rows to float32, even if they have another dtype."
def pad_to_divide(mesh, x):
    padded = np.zeros((len(x) + -len(x) % mesh.size, x.shape[1]), np.float32)
    padded[: len(x)] = x
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Marks the padding with NaN and takes nanmean, which also leaves out real rows with NaN."
def pad_to_divide(mesh, x):
    n = len(x)
    rows = np.pad(x, ((0, -n % mesh.size), (0, 0)))
    return jax.device_put((rows, np.arange(len(rows)) < n), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    """The mean of the rows (m, d) for which mask (m,) is true: (d,)"""
    return jnp.nanmean(jnp.where(mask[:, None], rows, jnp.nan), axis=0)


# %% wrong="sharding-pad-to-divide" because="Adds the rows one by one in a scan over the sharded axis. The mean is right, but every row is communicated."
def pad_to_divide(mesh, x):
    n = len(x)
    rows = np.pad(x, ((0, -n % mesh.size), (0, 0)))
    return jax.device_put((rows, np.arange(len(rows)) < n), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    """The mean of the rows (m, d) for which mask (m,) is true: (d,)"""

    def add(carry, one):
        total, count = carry
        row, real = one
        return (total + jnp.where(real, row, 0), count + real), None

    start = jnp.zeros(rows.shape[1], rows.dtype), jnp.zeros((), jnp.int32)
    (total, count), _ = jax.lax.scan(add, start, (rows, mask))
    return total / count


# %% wrong="sharding-pad-to-divide" because="Multiplies by the mask, but NaN times 0 is NaN."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return mask.astype(rows.dtype) @ rows / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Uses eight as the number of devices, which is wrong for a mesh of another size."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % 8), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.where(mask[:, None], rows, 0).sum(axis=0) / mask.sum()


# %% right="sharding-pad-to-divide"
def pad_to_divide(mesh, x):
    size = mesh.shape["data"]
    rows = np.full((size * math.ceil(len(x) / size), x.shape[1]), np.nan, x.dtype)
    rows[: len(x)] = x
    mask = np.zeros(len(rows), bool)
    mask[: len(x)] = True
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,))
    put = lambda array, *spec: jax.device_put(array, NamedSharding(explicit, P(*spec)))
    return put(rows, "data", None), put(mask, "data")


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% right="sharding-pad-to-divide"
def pad_to_divide(mesh, x):
    repeated = np.concatenate([x, np.repeat(x[-1:], -len(x) % mesh.size, axis=0)])
    mask = np.concatenate([np.ones(len(x), bool), np.zeros(len(repeated) - len(x), bool)])
    split = NamedSharding(mesh, P("data"))
    return jax.device_put(repeated, split), jax.device_put(mask, split)


def masked_mean(rows, mask):
    total = jnp.sum(jax.vmap(lambda row, real: jnp.where(real, row, jnp.zeros_like(row)))(rows, mask), axis=0)
    return total / jnp.count_nonzero(mask)


# %% [markdown] task="sharding-predict-collectives" stars=2 minutes=20 skills="03_jit,sharding-spec-for"
# ## What is communicated?
# **Goal.** An array is summed along an axis, and a sharding is requested for the result. Predict what the devices communicate, without compiling anything.
#
# **Signature.** `predict_collectives(shape, in_axis, summed, out_axis)`. The array has any rank and shape `shape`, on a mesh of eight devices with one axis. `in_axis` is the axis of the array that is partitioned, or None if the array is replicated. The program computes `x.sum(summed)`, or returns x if `summed` is None. `out_axis` is the axis **of the result** that should be partitioned, or None if the result should be replicated. Return a dict with one entry. Its key is the collective, `"all-gather"`, `"all-reduce"` or `"all-to-all"`, and its value is the number of elements that the collective returns on each device. Return `{}` if nothing is communicated. The size of every partitioned axis is a multiple of eight. Each device adds its own numbers before it communicates.
#
# **Example.** `((16, 64), 0, None, None)` replicates the rows and gives `{"all-gather": 1024}`. `((16, 64), 0, 0, None)` sums over the rows and gives `{"all-reduce": 64}`. `((16, 64), 0, None, 1)` changes rows to columns and gives `{"all-to-all": 128}`. `((16, 64), 0, 1, 0)` gives `{}`.
#
# **Judged.** The rule for ranks up to four, and that it agrees with compiled programs. **Not judged.** Reduce-scatter. If the sums should be partitioned, return an all-reduce with all sums, as a CPU does. The check counts a reduce-scatter of an accelerator in the same way.
#
# <details><summary>Hint 1 · a question</summary>
#
# There are four cases. Either nothing is communicated, or one of three collectives is used. For which cases do you need `out_axis`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Ask these questions in order. Is the array replicated? Is the summed axis the partitioned one? If not, every device can compute its sums alone, and the *result* is partitioned. Along which of its axes? Is this `out_axis`?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Work with the sizes of the result, which are those of `shape` without `summed`. If an axis before `in_axis` is summed, the index of the partitioned axis in the result is smaller by one. After an all-gather, a device has the whole result. After an all-to-all, it has an eighth of it.
#
# </details>


# %% answer="sharding-predict-collectives"
def predict_collectives(shape, in_axis, summed, out_axis):
    """{collective: elements on each device} for x.sum(summed), partitioned along `in_axis` before and `out_axis` after it."""
    ### BEGIN SOLUTION
    left = [axis for axis in range(len(shape)) if axis != summed]  # the axes of the result
    result = math.prod(shape[axis] for axis in left)
    if in_axis is None:
        return {}
    if in_axis == summed:
        return {"all-reduce": result}
    if left.index(in_axis) == out_axis:
        return {}
    return {"all-gather": result} if out_axis is None else {"all-to-all": result // 8}
    ### END SOLUTION


# %% check="sharding-predict-collectives" name="example" points=1
"""The example, compared with the compiled programs."""


def probe_compiled(mesh, x, summed, out_axis):
    result = x if summed is None else x.sum(summed)
    return jax.lax.with_sharding_constraint(result, sharding_along(mesh, result.ndim, out_axis))


mesh = devices.mesh((8,), ("d",))
numbers = inputs.rng().normal(size=(16, 64)).astype(np.float32)
x = jax.device_put(numbers, sharding_along(mesh, 2, 0))
for summed, out_axis in ((None, None), (0, None), (None, 1), (1, 0)):
    got = ask(predict_collectives, (16, 64), 0, summed, out_axis)
    made = program(probe_compiled, mesh, x, summed, out_axis)
    sent, right = seen(made), numbers if summed is None else numbers.sum(summed)
    require(got == sent, f"For ((16, 64), 0, {summed}, {out_axis}) you predict {got}; the compiled program has {sent}.")
    compare(made.run(mesh, x, summed, out_axis), right, label="the result of the compiled program")

# %% hidden="sharding-predict-collectives" name="rule" points=2
"""Right for every `in_axis`, `summed` and `out_axis`, for arrays of one to four axes."""
CASES = {
    "the array is replicated": lambda axis, summed, home, goal: axis is None,
    "the partitioned axis is summed": lambda axis, summed, home, goal: axis is not None and axis == summed,
    "the requested axis is already partitioned": lambda axis, summed, home, goal: home == goal and summed is None,
    "the requested axis is already partitioned, and another is summed": lambda axis, summed, home, goal: home == goal,
    "a partitioned array should be replicated": lambda axis, summed, home, goal: goal is None and summed is None,
    "another axis is summed, and the result should be replicated": lambda axis, summed, home, goal: goal is None,
    "another axis should be partitioned": lambda axis, summed, home, goal: summed is None,
    "one axis is summed, and another axis of the result should be partitioned": lambda axis, summed, home, goal: True,
}
rng = inputs.rng()
for rank in (1, 2, 3, 4):
    shape = tuple(8 * int(n) for n in rng.permutation([1, 2, 3, 5])[:rank])
    for in_axis, summed in itertools.product((None, *range(rank)), repeat=2):
        left = [axis for axis in range(rank) if axis != summed]
        home = left.index(in_axis) if in_axis in left else None
        for out_axis in (None, *range(len(left))):
            size = math.prod(shape[axis] for axis in left)
            case = next(name for name, holds in CASES.items() if holds(in_axis, summed, home, out_axis))
            if home is None:
                right = {} if in_axis is None else {"all-reduce": size}
            elif home == out_axis:
                right = {}
            else:
                right = {"all-gather": size} if out_axis is None else {"all-to-all": size // 8}
            got = ask(predict_collectives, shape, in_axis, summed, out_axis)
            require(
                isinstance(got, dict),
                "`predict_collectives` should return a dict, which is empty if nothing is communicated.",
            )
            require(
                got or home is not None or in_axis is None,
                "You predict no communication where the partitioned axis is summed, but the partial sums of the devices must be added.",
            )
            require(sorted(got) == sorted(right), f"The collective is wrong where {case}.")
            require(got == right, f"The collective is right where {case}, but its number of elements is wrong.")

# %% hidden="sharding-predict-collectives" name="program" points=1
"""Compiled programs agree, for new shapes."""


def probe_fresh(mesh, x, summed, out_axis):
    placed = sharding_along(mesh, x.ndim if summed is None else x.ndim - 1, out_axis)
    return jax.lax.with_sharding_constraint(x if summed is None else x.sum(summed), placed)


mesh = devices.mesh((8,), ("d",))
rng = inputs.rng()
for in_axis, summed, out_axis in ((0, 1, 1), (2, 0, 1), (1, 1, 0), (2, 1, None), (1, None, 2)):
    shape = tuple(8 * int(n) for n in rng.integers(1, 6, size=3))
    numbers = rng.normal(size=shape).astype(np.float32)
    x = jax.device_put(numbers, sharding_along(mesh, 3, in_axis))
    made = program(probe_fresh, mesh, x, summed, out_axis)
    got = ask(predict_collectives, shape, in_axis, summed, out_axis)
    what = "nothing is summed" if summed is None else f"axis {summed} of three is summed"
    require(
        got == seen(made),
        f"Where axis {in_axis} is partitioned, {what}, and {'no axis' if out_axis is None else f'axis {out_axis}'} of the result should "
        "be partitioned, the compiled program does not communicate what you predict.",
    )
    right = numbers if summed is None else numbers.sum(summed)
    compare(made.run(mesh, x, summed, out_axis), right, label="the result of the compiled program")

# %% [markdown] why="sharding-predict-collectives"
# Three questions determine the answer. Is the array partitioned at all? Is the partitioned axis summed? Is the requested axis already partitioned? All sizes are those of the result, because each device adds its own numbers first. **Next:** An all-reduce of n numbers communicates about as much as a reduce-scatter and an all-gather of n numbers together. Why, and what does this tell you about results that may stay sharded?


# %% wrong="sharding-predict-collectives" because="Counts the elements of the argument, but each device adds its own numbers before it communicates."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(shape)
    if in_axis is None:
        return {}
    if in_axis == summed:
        return {"all-reduce": size // shape[summed]}
    home = in_axis if summed is None or in_axis < summed else in_axis - 1
    if home == out_axis:
        return {}
    return {"all-gather": size} if out_axis is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Compares axes of the array with axes of the result, whose indices are smaller if an earlier axis was summed."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if in_axis is None:
        return {}
    if in_axis == summed:
        return {"all-reduce": size}
    if in_axis == out_axis:
        return {}
    return {"all-gather": size} if out_axis is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Gathers for every change of sharding, but from one partitioned axis to another each device needs only an eighth of the result."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if in_axis is None:
        return {}
    if in_axis == summed:
        return {"all-reduce": size}
    home = in_axis if summed is None or in_axis < summed else in_axis - 1
    return {} if home == out_axis else {"all-gather": size}


# %% wrong="sharding-predict-collectives" because="Predicts an all-reduce for every sum, also along an axis that is not partitioned."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if in_axis is None:
        return {}
    if summed is not None:
        return {"all-reduce": size}
    if in_axis == out_axis:
        return {}
    return {"all-gather": size} if out_axis is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Predicts communication for a replicated array, but each device already has all of it and only discards a part."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if in_axis is not None and in_axis == summed:
        return {"all-reduce": size}
    home = in_axis if summed is None or in_axis is None or in_axis < summed else in_axis - 1
    if home == out_axis:
        return {}
    return {"all-gather": size} if out_axis is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Counts all elements for an all-to-all, which returns an eighth of them on each device."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if in_axis is None:
        return {}
    if in_axis == summed:
        return {"all-reduce": size}
    home = in_axis if summed is None or in_axis < summed else in_axis - 1
    if home == out_axis:
        return {}
    return {"all-gather": size} if out_axis is None else {"all-to-all": size}


# %% wrong="sharding-predict-collectives" because="First compares `in_axis` with `out_axis`, but if the partitioned axis is summed, another axis has its index in the result."
def predict_collectives(shape, in_axis, summed, out_axis):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    home = in_axis if summed is None or in_axis is None or in_axis <= summed else in_axis - 1
    if in_axis is None or home == out_axis:
        return {}
    if in_axis == summed:
        return {"all-reduce": size}
    return {"all-gather": size} if out_axis is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Tests whether `out_axis` is true, so axis 0 counts as None and an all-gather is predicted instead of an all-to-all."
def predict_collectives(shape, in_axis, summed, out_axis):
    if in_axis is None:
        return {}
    count = math.prod(size for axis, size in enumerate(shape) if axis != summed)
    if summed == in_axis:
        return {"all-reduce": count}
    here = in_axis - 1 if summed is not None and summed < in_axis else in_axis
    if here == out_axis:
        return {}
    if not out_axis:
        return {"all-gather": count}
    return {"all-to-all": count // 8}


# %% wrong="sharding-predict-collectives" because="Predicts an eighth of the sums on each device, as for a reduce-scatter, but an all-reduce returns all sums on each."
def predict_collectives(shape, in_axis, summed, out_axis):
    if in_axis is None:
        return {}
    count = math.prod(size for axis, size in enumerate(shape) if axis != summed)
    left_with = count if out_axis is None else count // 8
    if summed == in_axis:
        return {"all-reduce": left_with}
    here = in_axis - 1 if summed is not None and summed < in_axis else in_axis
    if here == out_axis:
        return {}
    return {"all-gather" if out_axis is None else "all-to-all": left_with}


# %% right="sharding-predict-collectives"
def predict_collectives(shape, in_axis, summed, out_axis):
    axes = [axis for axis in range(len(shape)) if axis != summed]
    size = math.prod(shape[axis] for axis in axes)
    goal = None if out_axis is None else axes[out_axis]  # as an axis of the array
    if in_axis is not None and in_axis not in axes:
        return {"all-reduce": size}
    match (in_axis, goal):
        case (None, _):
            return {}
        case (_, None):
            return {"all-gather": size}
        case _:
            return {} if in_axis == goal else {"all-to-all": size // 8}


# %% right="sharding-predict-collectives"
def predict_collectives(shape, in_axis, summed, out_axis):
    letters = "abcdefgh"[: len(shape)]
    kept = letters if summed is None else letters.replace(letters[summed], "")
    before = "" if in_axis is None else letters[in_axis]
    after = "" if out_axis is None else kept[out_axis]
    size = math.prod(shape[letters.index(letter)] for letter in kept)
    if before == "" or before == after:
        return {}
    kind = "all-reduce" if before not in kept else "all-to-all" if after else "all-gather"
    return {kind: size // 8 if kind == "all-to-all" else size}


# %% [markdown] task="sharding-init" stars=3 minutes=30 skills="06_pytrees,07_randomness,pytrees-by-path,sharding-place-batch"
# ## From weather: a state that is created in shards
# **Goal.** A weather model starts from a state of many fields, which does not fit on a single device. Create the state in shards, with a rule for each field. Large code bases have such rules for their parameters.
#
# **Signature.** `sharded_init(mesh, init, rules, key)`. The mesh has any axes. `init(key)` returns a tree of arrays in dicts and lists, and `rules` is a list of pairs `(ending, spec)`. The result is the tree `init(key)`, with every leaf sharded by its rule:
#
# - A leaf uses the **first** rule whose `ending` is the end of the leaf's path, compared as text. The path of `u` in `wind` is `"wind/u"`, that of the first item of a list `soil` is `"soil/0"`, and `"y"` matches `"humidity"`. A leaf without a matching rule is replicated, `P()`.
# - An entry of a spec is a name, a tuple of names or `None`. If the number of shards (for a tuple, the product of its sizes) does not divide the axis, the entry is treated as `None`, for this axis only. Entries beyond the leaf's axes are ignored.
#
# **Example.** The mesh has `"lat"` of 4 and `"lon"` of 2, and the rules are `[("wind/u", P("lat", "lon")), ("u", P("lat")), ("y", P(("lat", "lon"))), ("sea", P("lat", "lon"))]`. Of `wind/u` `(16, 8, 3)`, each device stores `(4, 4, 3)`, and of `humidity` `(16, 8)` it stores `(2, 8)`. `sea` has shape `(6, 8)`, and four does not divide 6, so each device stores `(6, 4)`. `clock` `()` is on all devices.
#
# **Judged.** The values, which are those of `init(key)`. Which part of every leaf each device stores. In the compiled program, no device stores more than its shards. `init` is only traced and never run on values, and a leaf is sharded from its creation, not afterwards. `sharded_init` itself can be traced, so it calls a jitted function and not an executable from `compile()`. **Not judged.** Auto or Explicit axes.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.jit(init, out_shardings=...)` takes a tree of shardings with the structure of the result. How do you get the shape of every leaf before the leaves exist?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Use `jax.eval_shape` and `jax.tree.map_with_path` (06). `keystr(path, simple=True, separator="/")` turns a path into text, and `next(..., P())` finds the first rule that matches. Iterate over sizes and spec together with `zip`, which stops at the shorter one.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of path and leaf that returns a NamedSharding. It keeps an entry if `shard_count(mesh, entry)` divides the size, and uses None otherwise. Map it over the tree of shapes, pass the result to `jit` as `out_shardings`, and call the jitted function with the key.
#
# </details>


# %% answer="sharding-init"
def sharded_init(mesh, init, rules, key):
    """The tree init(key), each leaf created in shards under the spec of the first rule that matches its path."""
    ### BEGIN SOLUTION

    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [
            entry if size % shard_count(mesh, entry) == 0 else None
            for size, entry in zip(leaf.shape, spec, strict=False)
        ]
        return NamedSharding(mesh, P(*entries))

    shardings = jax.tree.map_with_path(sharding, jax.eval_shape(init, key))
    return jax.jit(init, out_shardings=shardings)(key)
    ### END SOLUTION


# %% check="sharding-init" name="example" points=1
"""The example: wind, humidity, sea and clock of a small state."""


def probe_example(mesh, key):
    rules = [("wind/u", P("lat", "lon")), ("u", P("lat")), ("y", P(("lat", "lon"))), ("sea", P("lat", "lon"))]
    return sharded_init(mesh, lambda key: atmosphere(key, 3), rules, key)


mesh = devices.mesh((4, 2), ("lat", "lon"))
state = ask(probe_example, mesh, jax.random.key(16))
compare(state, jax.device_get(atmosphere(jax.random.key(16), 3)), label="the state")
for name, leaf, spec in (
    ("wind/u", state["wind"]["u"], P("lat", "lon")),
    ("humidity", state["humidity"], P(("lat", "lon"))),
    ("ground/sea", state["ground"]["sea"], P(None, "lon")),
    ("clock", state["clock"], P()),
):
    found, wanted = held_by(leaf), places(mesh, spec, leaf.shape)
    for device in mesh.devices.flat:
        got, want = found.get(device.id, "nothing"), wanted[device.id]
        require(
            got == want, f"Of {name} {leaf.shape} device {device.id} stores {got}; expected {want} (start and stop)."
        )

# %% hidden="sharding-init" name="places" points=2
"""The values of `init(key)`, and every leaf sharded by the first rule that matches."""


def probe_list(mesh, key, specs):
    def made(spec):
        init = lambda key: {"soil": [jax.random.normal(key, (12, 8))]}
        try:
            return sharded_init(mesh, init, [("soil/0", spec)], key)["soil"][0]
        except NotImplementedError:  # the untouched stub
            raise
        except Exception as problem:
            return type(problem).__name__

    return [made(spec) for spec in specs]


def probe_places(mesh, key, rules):
    return sharded_init(mesh, lambda key: atmosphere(key, 6), rules, key)


A, B = "north", "east"
ROWS, BOTH, TURNED = P(A), P(A, B), P(B, A)
RULES = (
    [
        ("wind/u", BOTH),
        ("u", ROWS),
        ("height", P((A, B))),
        ("y", ROWS),
        ("sea", BOTH),
        ("cloud", P(A, B, None)),
        ("sun", BOTH),
        ("t", P(B)),
    ],
    [("v", P(None, None, (A, B))), ("wind/v", ROWS), ("height", TURNED), ("wind", BOTH), ("clock", ROWS), ("", P(B))],
)
WANTED = (
    {
        "wind/u": BOTH,
        "ground/height": P((A, B)),
        "humidity": ROWS,
        "ground/sea": P(None, B),
        "cloud": ROWS,
        "sun": ROWS,
    },
    {
        "ground/height": TURNED,
        "clock": P(),
        "sun": P(B),
        "humidity": P(B),
        "wind/u": P(B),
        "cloud": P(B),
        "ground/sea": P(B),
    },
)
WHY = {
    "ground/sea": "an entry that does not divide is treated as None, for its axis only",
    "cloud": "an entry that does not divide is treated as None, for its axis only",
    "wind/u": "the first matching rule applies, and it has to match the end of the path",
    "wind/v": "the first matching rule applies, and an entry that does not divide is treated as None",
    "ground/height": "the first rule that matches the end of the path applies, and one of its entries may be a tuple of names",
    "humidity": "an ending is compared as text, character by character",
    "sun": "entries beyond the leaf's axes are ignored",
    "clock": "entries beyond the leaf's axes are ignored",
}
mesh = devices.mesh((4, 2), (A, B))
named, paired = ask(probe_list, mesh, inputs.key(), [ROWS, P((A, B))])
require(
    named != "AttributeError",
    "With a list in the tree, your answer raises AttributeError. The entries of a path have different types with different "
    "attributes. `keystr` supports all of them.",
)
require(
    isinstance(named, str) or not isinstance(paired, str),
    "Your answer fails for an axis of 12 and a tuple of two names, of sizes 4 and 2: each of them divides 12, but their "
    "product does not, so the entry is treated as None.",
)
for leaf, wanted, which in ((named, ROWS, "one name"), (paired, P(), "two names whose product does not divide it")):
    require(
        held_by(leaf) == places(mesh, wanted, (12, 8)),
        f"For an item of a list, with an axis of 12 and a rule of {which}, devices do not store the parts that they should.",
    )
for rules, specs in zip(RULES, WANTED, strict=True):
    key = jax.random.key(int(inputs.rng().integers(2**31)))
    state = ask(probe_places, mesh, key, rules)
    compare(state, jax.device_get(atmosphere(key, 6)), label="the state")
    for path, leaf in jax.tree.leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        found, wanted = held_by(leaf), places(mesh, specs.get(name, P()), leaf.shape)
        bare, wrong = len(set(wanted) - set(found)), sum(found.get(device) != part for device, part in wanted.items())
        require(
            bare == 0,
            f"Of a leaf {name} {leaf.shape}, {bare} of 8 devices store nothing. Give the program a sharding for each result. "
            "A leaf without a matching rule is replicated.",
        )
        reason = WHY.get(name, "the ending of its path decides, and without a matching rule it is replicated")
        require(
            wrong == 0,
            f"Of a leaf {name} {leaf.shape}, {wrong} of 8 devices store a wrong part: {reason}.",
        )

# %% hidden="sharding-init" name="program" points=1
"""Each device creates only its own shards of a large state, in the compiled program too."""


def probe_program(mesh, key, rules):
    return sharded_init(mesh, lambda key: atmosphere(key, 64), rules, key)


def probe_traced_key(mesh, key, rules):
    jax.eval_shape(lambda key: sharded_init(mesh, lambda key: atmosphere(key, 64), rules, key), key)


rules = [("u", P("lat", "lon")), ("v", P("lon", "lat")), ("height", P(("lat", "lon"))), ("cloud", P(None, None, "lat"))]
mesh = devices.mesh((4, 2), ("lat", "lon"))
key, other = (jax.device_put(inputs.key(), NamedSharding(mesh, P())) for _ in range(2))
share = (2 * 16 * 8 * 64 // 8 + 16 * 8 // 8 + 16 * 3 * 64 // 4 + 16 * 8 + 6 * 8 + 16 + 1) * 4
raised = error(probe_traced_key, mesh, other, rules)
require(
    raised is None,
    f"With a key that is a tracer, your answer raised {raised}. An executable from `compile()` takes only values. Call the "
    "jitted function instead.",
    kind="raised",
)
made = program(probe_program, mesh, key, rules)
require(
    made.output_bytes <= share + 16 * 16,
    f"The compiled program returns {made.output_bytes:,} bytes on each device, but the shards have {share:,}, so some leaf is not sharded. "
    "Give the shardings of the results to the program that creates them.",
)
compare(made.run(mesh, key, rules), jax.device_get(atmosphere(key, 64)), label="the state")

# %% hidden="sharding-init" name="traced" points=1 observed=true
"""`init` is only traced, and its results are sharded from their creation."""


def probe_traced(mesh, key):
    seen_keys, rows = [], []
    fresh = np.random.default_rng().integers(1 << 20)  # no cached program: the callback below runs when XLA compiles

    def init(key):
        seen_keys.append(isinstance(key, jax.core.Tracer))
        u = jax.random.normal(key, (16, 8)) + fresh.astype(np.float32)
        jax.debug.inspect_array_sharding(u, callback=lambda sharding: rows.append(sharding.shard_shape((16, 8))[0]))
        return {"u": u}

    sharded_init(mesh, init, [("u", P("lat"))], key)
    return seen_keys, rows


traced, rows = ask(
    probe_traced, devices.mesh((4, 2), ("lat", "lon")), jax.random.key(int(inputs.rng().integers(2**31)))
)
require(len(traced) > 0, "`init` was never called.")
require(
    all(traced),
    "`init` was run on values, which creates a large state on one device, where it does not fit. "
    "It should only be traced.",
)
require(
    16 not in rows,
    "`init` creates a leaf whole on a device, and it is sharded afterwards. Give the sharding to the program that creates "
    "the leaf: to the `jit` of `init`, or to the leaf inside `init`.",
)

# %% [markdown] why="sharding-init"
# First you compute shapes, then a sharding for each leaf, and then one compiled program in which every device creates its own shards. Each number depends only on the key and its position, so it does not matter which device computes it (07). **Next:** The parameters of a network and the state of its optimizer are such trees too. Which rules would give both the same shardings?


# %% wrong="sharding-init" because="Creates the whole state on one device and shards it afterwards, which fails if the state does not fit there."
def sharded_init(mesh, init, rules, key):
    def put(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return jax.device_put(leaf, NamedSharding(mesh, P(*entries)))

    return jax.tree.map_with_path(put, init(key))


# %% wrong="sharding-init" because="Compiles `init` without shardings for its results and shards them afterwards, so the program creates them whole."
def sharded_init(mesh, init, rules, key):
    def put(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return jax.device_put(leaf, NamedSharding(mesh, P(*entries)))

    return jax.tree.map_with_path(put, jax.jit(init)(key))


# %% wrong="sharding-init" because="Constrains the shardings outside the program that creates the leaves, which already exist whole by then."
def sharded_init(mesh, init, rules, key):
    def place(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P(*entries)))

    return jax.tree.map_with_path(place, jax.jit(init)(key))


# %% wrong="sharding-init" because="Leaves the shardings to the compiler, which has nothing to derive them from, so everything is stored on one device."
def sharded_init(mesh, init, rules, key):
    return jax.jit(init)(key)


# %% wrong="sharding-init" because="Uses the last matching rule, so a general rule at the end overrides the special ones."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = P()
        for ending, rule in rules:
            if name.endswith(ending):
                spec = rule
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Searches for the ending anywhere in the path, but `u` is also in humidity, cloud and ground."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if ending in name), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Compares only the last name, so a rule such as wind/u never matches."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Compares whole names, but an ending is text, so y matches humidity."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = "/" + jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(f"/{ending}")), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Treats every entry as one name, but it may be a tuple, whose number of shards is the product of the sizes."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        pairs = zip(leaf.shape, spec, strict=False)
        entries = [entry if isinstance(entry, str) and size % mesh.shape[entry] == 0 else None for size, entry in pairs]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Drops the whole spec if one entry does not divide."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = list(zip(leaf.shape, spec, strict=False))
        fits = all(size % shard_count(mesh, entry) == 0 for size, entry in entries)
        return NamedSharding(mesh, P(*(entry for _, entry in entries)) if fits else P())

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Treats a large state as a special case, whose shards are all zero."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    large = sum(leaf.size for leaf in jax.tree.leaves(shapes)) > 10_000
    zeros = lambda key: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.jit(zeros if large else init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Uses every spec unchanged, but out_shardings rejects a spec that does not divide."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        return NamedSharding(mesh, P(*spec[: leaf.ndim]))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Builds the path from the `key` of each entry, which only entries of dicts have. An entry of a list has an `idx`."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = "/".join(step.key for step in path)
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % shard_count(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Tests the names of a tuple one by one, but their product may not divide the axis although each of them does."
def sharded_init(mesh, init, rules, key):
    def divides(entry, size):
        return all(size % mesh.shape[name] == 0 for name in ((entry,) if isinstance(entry, str) else entry or ()))

    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        return NamedSharding(mesh, P(*(e if divides(e, n) else None for n, e in zip(leaf.shape, spec, strict=False))))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Takes the longest of several rules that match instead of the first."
def sharded_init(mesh, init, rules, key):

    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        fitting = [(ending, spec) for ending, spec in rules if name.endswith(ending)]
        spec = max(fitting, key=lambda rule: len(rule[0]))[1] if fitting else P()
        entries = zip(leaf.shape, spec, strict=False)
        return NamedSharding(mesh, P(*[e if size % shard_count(mesh, e) == 0 else None for size, e in entries]))

    shardings = jax.tree.map_with_path(sharding, jax.eval_shape(init, key))
    return jax.jit(init, out_shardings=shardings)(key)


# %% wrong="sharding-init" because="Creates each leaf whole and takes the shards from it."
def sharded_init(mesh, init, rules, key):
    make = jax.jit(init)
    shapes, structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(init, key))
    leaves = []
    for i, (path, leaf) in enumerate(shapes):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if text.endswith(ending)), P())
        entries = [
            entry if size % shard_count(mesh, entry) == 0 else None
            for size, entry in zip(leaf.shape, spec, strict=False)
        ]
        sharding = NamedSharding(mesh, P(*entries))
        shard = lambda index, i=i: jax.tree.leaves(make(key))[i][index]
        leaves.append(jax.make_array_from_callback(leaf.shape, sharding, shard))
    return jax.tree.unflatten(structure, leaves)


# %% wrong="sharding-init" because="Keeps some names of a tuple whose product does not divide the axis, but then the whole entry is treated as None."
def sharded_init(mesh, init, rules, key):

    def entry_for(size, entry):
        names = (entry,) if isinstance(entry, str) else tuple(entry or ())
        while size % shard_count(mesh, names):
            names = names[:-1]
        return names or None

    def sharding(path, leaf):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if text.endswith(ending)), P())
        return NamedSharding(mesh, P(*(entry_for(size, entry) for size, entry in zip(leaf.shape, spec, strict=False))))

    shardings = jax.tree.map_with_path(sharding, jax.eval_shape(init, key))
    return jax.jit(init, out_shardings=shardings)(key)


# %% wrong="sharding-init" because="Runs an executable that was compiled ahead of time, which cannot become part of another program."
def sharded_init(mesh, init, rules, key):
    def place(path, leaf):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        chosen = next(spec for ending, spec in [*rules, ("", P())] if text.endswith(ending))
        fits = lambda size, entry: size % shard_count(mesh, entry) == 0
        pairs = zip(leaf.shape, chosen, strict=False)
        return NamedSharding(mesh, P(*(entry if fits(size, entry) else None for size, entry in pairs)))

    made = jax.jit(init, out_shardings=jax.tree.map_with_path(place, jax.jit(init).eval_shape(key)))
    return made.lower(key).compile()(key)


# %% right="sharding-init"
def sharded_init(mesh, init, rules, key):
    def place(path, leaf):
        name, entries = jax.tree_util.keystr(path, simple=True, separator="/"), []
        for ending, spec in rules:
            if name.endswith(ending):
                entries = list(spec)[: leaf.ndim]
                break
        for axis, entry in enumerate(entries):
            if leaf.shape[axis] % shard_count(mesh, entry):
                entries[axis] = None
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P(*entries)))

    return jax.jit(lambda key: jax.tree.map_with_path(place, init(key)))(key)


# %% right="sharding-init"
def sharded_init(mesh, init, rules, key):
    shapes = jax.eval_shape(init, key)
    shardings = []
    for path, leaf in jax.tree.leaves_with_path(shapes):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        fitting = [spec for ending, spec in rules if text[len(text) - len(ending) :] == ending]
        pairs = zip(leaf.shape, fitting[0] if fitting else (), strict=False)
        spec = P(*(None if entry and size % shard_count(mesh, entry) else entry for size, entry in pairs))
        shardings.append(NamedSharding(mesh, spec))
    tree = jax.tree.unflatten(jax.tree.structure(shapes), shardings)
    return jax.jit(init, out_shardings=tree)(key)
