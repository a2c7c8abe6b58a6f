# %% [markdown]
# # 16 · Exercises: sharding
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# The setup asks for eight devices, which JAX counts once: if it complains, restart the kernel and run it first. On a machine with eight accelerators or more the same cells use those; elsewhere the eight are parts of your CPU. Every mesh here has axes of type Auto, in which the compiler fills in what nobody says (Explicit ones come in 17; an answer that makes them is as good).

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


def groups(mesh):
    """Which axes of the mesh make how many pieces. For 4 x 2: {1: None, 4: "a", 2: "b", 8: ("a", "b")}"""
    one_axis = {mesh.shape[name]: name for name in mesh.axis_names}
    return {1: None, **one_axis, mesh.size: mesh.axis_names if len(mesh.axis_names) > 1 else mesh.axis_names[0]}


def pieces_of(mesh, entry):
    """Into how many pieces one entry of a spec cuts: None into 1, an axis into its size, a tuple into the product."""
    return math.prod(mesh.shape[name] for name in ((entry,) if isinstance(entry, str) else entry or ()))


def places(mesh, spec, shape):
    """Device id -> the part of an array of `shape` that it holds under `spec`, as (start, stop) for each axis.
    Where there is no such layout, the reason as text."""
    if not isinstance(spec, P):
        return f"it is a {type(spec).__name__}, no PartitionSpec"
    try:
        found = NamedSharding(mesh, spec).devices_indices_map(tuple(shape))
    except Exception as problem:  # JAX has classes of its own for these, of several families
        return str(problem).replace("\n", " ").split(". ")[0].split(", but ")[-1][:150]
    return {device.id: parts(index, shape) for device, index in found.items()}


def parts(index, shape):
    """The slices of an index as (start, stop) for each axis."""
    return tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))


def held_by(array):
    """Device id -> the part of a placed array that this device holds, as (start, stop) for each axis."""
    return {s.device.id: parts(s.index, array.shape) for s in getattr(array, "addressable_shards", ())}


def held(mesh, tree):
    """The bytes that each device of the mesh holds of a tree of arrays; none of what is not on a device."""
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
    """What a PositionalSharding was: an array of sets of device ids, here after some steps.

    It begins as the mesh. ("reshape", shape) is NumPy's. ("replicate", axis) merges an axis into one cell, which all
    of its devices then share. ("T",) turns the array round, as NumPy's .T does.
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
    """Device id -> the part of an array of `shape` that it held under such a PositionalSharding."""
    cells = positional(mesh, steps)
    sizes = [whole // count for whole, count in zip(shape, cells.shape, strict=True)]
    held_then = {}
    for index, ids in np.ndenumerate(cells):
        part = tuple((i * size, (i + 1) * size) for i, size in zip(index, sizes, strict=True))
        held_then.update(dict.fromkeys(ids, part))
    return held_then


def cut_along(mesh, rank, axis):
    """The sharding that cuts one axis of an array of `rank` axes along the mesh's "d", or none."""
    return NamedSharding(mesh, P(*("d" if one == axis else None for one in range(rank))))


def seen(made):
    """What a compiled program sends, as {kind: numbers that each device is left with}. Where an accelerator reduces
    and scatters at once, the eight pieces count as the reduction that they are together."""
    sent = {kind: made.elements(kind) for kind in ("all-gather", "all-reduce", "all-to-all", "collective-permute")}
    sent["all-reduce"] += 8 * made.elements("reduce-scatter")
    return {kind: count for kind, count in sent.items() if count}


def atmosphere(key, levels):
    """The first state of a small weather model: in every field a wave, whose phase is drawn."""
    fields = {"wind": {"u": (16, 8, levels), "v": (16, 8, levels)}, "humidity": (16, 8), "cloud": (16, 3, levels)}
    shapes = {**fields, "ground": {"height": (16, 8), "sea": (6, 8)}, "sun": (16,), "clock": ()}
    leaves, tree = jax.tree.flatten(shapes, is_leaf=lambda node: isinstance(node, tuple))
    phases = jax.random.uniform(key, (len(leaves),), maxval=6)
    spots = [jnp.arange(math.prod(shape)).reshape(shape) % 61 / 8 for shape in leaves]
    waves = [jnp.cos(phase + spot) for phase, spot in zip(phases, spots, strict=True)]
    return jax.tree.unflatten(tree, waves)


# %% [markdown] task="sharding-spec-for" stars=1 minutes=8 skills="01_arrays"
# ## Which spec gives this piece?
# **Goal.** You know which piece each device should hold. Say it as a spec. Two lines are missing.
#
# **Signature.** `spec_for(mesh, shape, piece)`: a mesh of one or two axes; `shape` and `piece` are tuples of ints of the same length, of any rank. Returns the `P` under which each device holds a piece of that shape. All axes of the mesh have different sizes, none of them 1, so there is exactly one such `P`, but for the order of names in a tuple.
#
# **Example.** On a mesh with `"a"` of 4 and `"b"` of 2, an array `(16, 8)` and pieces `(8, 2)`: 2 pieces along axis 0 and 4 along axis 1, so `P("b", "a")`. For pieces `(2, 8)` it is `P(("a", "b"), None)`, and for `(16, 8)` it is `P()`.
#
# **Judged.** The shape of the piece under your spec, for several ranks and meshes. **Not judged.** Whether you write `None` for axes at the end that are not cut, and the order of names in a tuple: it changes who holds which piece, not the pieces.
#
# <details><summary>Hint 1 · a question</summary>
#
# Into how many pieces is an axis of 16 cut, if each piece has 8 of it? Which axis of the mesh makes that many?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `groups(mesh)` of the setup answers the second question: print it. An axis that is not cut has one piece, and 1 is among its keys.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Go through `shape` and `piece` side by side with `zip`. Size over size of the piece is the number of pieces; look that up in `by_count`, and collect what you find in a list called `entries`.
#
# </details>


# %% answer="sharding-spec-for"
def spec_for(mesh, shape, piece):
    """The PartitionSpec under which each device of the mesh holds a piece of that shape of an array of `shape`."""
    by_count = groups(mesh)  # such as {1: None, 4: "a", 2: "b", 8: ("a", "b")}
    ### BEGIN SOLUTION
    counts = [size // part for size, part in zip(shape, piece, strict=True)]
    entries = [by_count[count] for count in counts]
    ### END SOLUTION
    return P(*entries)


# %% check="sharding-spec-for" name="example" points=1
"""The three of the example, and one for an array of three axes."""
mesh = devices.mesh((4, 2), ("a", "b"))
for shape, piece in (((16, 8), (8, 2)), ((16, 8), (2, 8)), ((16, 8), (16, 8)), ((2, 16, 3), (2, 2, 3))):
    spec = ask(spec_for, mesh, shape, piece)
    found = places(mesh, spec, shape)
    require(isinstance(found, dict), f"For {shape} in pieces {piece} your spec is {spec}, which is refused: {found}.")
    got = tuple(stop - start for start, stop in found[int(mesh.devices.flat[0].id)])
    require(got == piece, f"For {shape} your spec is {spec}: each device holds {got}; wanted {piece}.")

# %% hidden="sharding-spec-for" name="pieces" points=1
"""Right for arrays of any rank, on meshes of two axes in either order and of one."""
CUTS = {
    (4, 2): ((4, 2), (2, 4), (8, 1), (1, 8), (4, 1), (1, 2)),
    (2, 4): ((2, 4), (4, 1), (1, 4), (8, 1)),  # 2 divides 4: who fills up in the mesh's order gets stuck
    (2, 3): ((3, 2), (1, 6), (2, 1)),
    (8,): ((8, 1), (1, 1)),
}
REFUSED = {"duplicate": "a name stands twice in it", "found in mesh": "it names an axis that the mesh does not have"}
rng = inputs.rng()
for sizes, cuts in CUTS.items():
    mesh = devices.mesh(sizes, ("rows", "columns")[: len(sizes)])
    for cut in cuts:
        for counts in (cut, (1, *cut, 1), (cut[0], 1, 1, cut[1])):
            part = 24 * rng.permutation([1, 2, 3, 5])[: len(counts)]  # whatever number of pieces: it divides
            shape, piece = tuple(int(n) for n in counts * part), tuple(int(n) for n in part)
            found = places(mesh, ask(spec_for, mesh, shape, piece), shape)
            if not isinstance(found, dict):
                reason = next((said for word, said in REFUSED.items() if word in found), "it does not fit the array")
                require(
                    False,
                    f"For an array of {len(counts)} axes on a mesh of {len(sizes)} axes JAX refuses your spec: {reason}.",
                )
            got = tuple(stop - start for start, stop in next(iter(found.values())))
            require(
                got == piece,
                f"For an array of {len(counts)} axes on a mesh of {len(sizes)} axes a device does not hold the piece that was "
                "asked for. Each axis of the array needs the axis of the mesh, or both, that makes as many pieces as it has; "
                "the order of names in the mesh does not matter.",
            )

# %% [markdown] why="sharding-spec-for"
# A spec says which axes of the mesh cut which axis of the array, and so it fixes the piece; here the piece fixed the spec, as all axes of the mesh have different sizes. **Next:** on a mesh of 2 x 2, under which two specs does each device hold `(8, 4)` of `(16, 4)`, and which devices hold the same rows under each?


# %% wrong="sharding-spec-for" because="Writes the mesh's names down in the mesh's order: an entry belongs to an axis of the array, in the array's order."
def spec_for(mesh, shape, piece):
    names = iter(mesh.axis_names)
    return P(*(next(names, None) if size != part else None for size, part in zip(shape, piece, strict=True)))


# %% wrong="sharding-spec-for" because="Takes the size of the piece for the number of pieces."
def spec_for(mesh, shape, piece):
    by_count = groups(mesh)
    return P(*(by_count.get(part) for part in piece))


# %% wrong="sharding-spec-for" because="Knows one axis of the mesh for each axis of the array: what is to be cut by both stays whole."
def spec_for(mesh, shape, piece):
    by_count = {mesh.shape[name]: name for name in mesh.axis_names}
    return P(*(by_count.get(size // part) for size, part in zip(shape, piece, strict=True)))


# %% wrong="sharding-spec-for" because="Hands the list over as one entry: P takes one argument for each axis."
def spec_for(mesh, shape, piece):
    by_count = groups(mesh)
    names = [by_count[size // part] for size, part in zip(shape, piece, strict=True)]
    return P(tuple(name for name in names if isinstance(name, str)))


# %% wrong="sharding-spec-for" because="Leaves out the axes that are not cut, so that the others move to the front."
def spec_for(mesh, shape, piece):
    by_count = groups(mesh)
    return P(*(by_count[size // part] for size, part in zip(shape, piece, strict=True) if size != part))


# %% wrong="sharding-spec-for" because="Writes the names and sizes of the example's mesh down: other meshes have others."
def spec_for(mesh, shape, piece):
    by_count = {1: None, 4: "a", 2: "b", 8: ("a", "b")}
    return P(*(by_count.get(size // part) for size, part in zip(shape, piece, strict=True)))


# %% wrong="sharding-spec-for" because="Cuts the first two axes of the array only, as the mesh has two: any axis of an array may be cut."
def spec_for(mesh, shape, piece):
    by_count = groups(mesh)
    return P(*(by_count[size // part] for size, part in zip(shape[:2], piece[:2], strict=True)))


# %% wrong="sharding-spec-for" because="Takes the sizes in the order of the sorted names: a mesh has its names in any order."
def spec_for(mesh, shape, piece):
    by_count = {1: None, mesh.size: tuple(mesh.axis_names)}
    by_count |= dict(zip(mesh.devices.shape, sorted(mesh.axis_names), strict=True))
    return P(*(by_count[size // part] for size, part in zip(shape, piece, strict=True)))


# %% wrong="sharding-spec-for" because="Takes the mesh's axes in order as long as their sizes divide the number of pieces: for 4 pieces on a 2 x 4 mesh the first axis is already one too many."
def spec_for(mesh, shape, piece):
    entries = []
    for size, part in zip(shape, piece, strict=True):
        count, names = size // part, []
        for name in mesh.axis_names:
            if count % mesh.shape[name] == 0:
                names.append(name)
                count //= mesh.shape[name]
        entries.append(tuple(names) or None)
    return P(*entries)


# %% right="sharding-spec-for"
def spec_for(mesh, shape, piece):
    for entries in itertools.product(groups(mesh).values(), repeat=len(shape)):
        named = [name for entry in entries for name in (entry if isinstance(entry, tuple) else (entry,)) if name]
        if len(set(named)) == len(named):
            sizes = [pieces_of(mesh, entry) for entry in entries]
            if all(size == part * count for size, part, count in zip(shape, piece, sizes, strict=True)):
                return P(*entries)


# %% right="sharding-spec-for"
def spec_for(mesh, shape, piece):
    entries = []
    for size, part in zip(shape, piece, strict=True):
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
# **Goal.** Hand a batch from a loader to a mesh on which two axes have two jobs: the examples are cut along one, and along the other each of them is there as a copy.
#
# **Signature.** `place_batch(mesh, batch)`: a mesh with the axes `"data"` and `"model"`, of any sizes and in either order; a tree of NumPy arrays of any rank and dtype, whose first axis counts the examples, and of numbers, NumPy's or Python's, that belong to all examples. Returns the tree on the mesh.
#
# **Example.** On a mesh with `"data"` of 4 and `"model"` of 2, of `{"image": (8, 28, 28), "label": (8,), "step": 7}` devices 0 and 1 both hold examples 0 and 1, devices 2 and 3 examples 2 and 3, and so on. All eight hold the step.
#
# **Judged.** Which examples lie on which device, for every leaf; values and dtypes. **Not judged.** Batches that do not divide (an exercise below).
#
# <details><summary>Hint 1 · a question</summary>
#
# What does a spec say about an axis of the mesh along which there shall be copies?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Nothing. One spec serves the images and the labels, as entries may be left out at the end. But it has one entry too many for a scalar.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of one leaf, with `np.ndim(leaf)` to choose between `P("data")` and `P()`, and map it over the tree.
#
# </details>


# %% answer="sharding-place-batch"
def place_batch(mesh, batch):
    """The tree on the mesh: axis 0 of every array cut along "data", copies along "model"; scalars on all devices."""
    ### BEGIN SOLUTION

    def put(leaf):
        spec = P("data") if np.ndim(leaf) else P()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, batch)
    ### END SOLUTION


# %% check="sharding-place-batch" name="example" points=1
"""The example: two examples on each pair of devices, and the step on all."""
mesh = devices.mesh((4, 2), ("data", "model"))
batch = {"image": np.ones((8, 28, 28), np.float32), "label": np.arange(8, dtype=np.int32), "step": 7}
placed = ask(place_batch, mesh, batch)
compare(placed, {**batch, "step": np.int32(7)}, label="the batch")
for name, wanted in (("image", places(mesh, P("data"), (8, 28, 28))), ("label", places(mesh, P("data"), (8,)))):
    found = held_by(placed[name])
    require(len(found) == 8, f'"{name}" lies on {len(found)} of the 8 devices of the mesh.')
    for device in mesh.devices.flat:
        got, want = found.get(device.id), wanted[device.id]
        require(
            got == want, f'Of "{name}" device {device.id} holds {got}; wanted {want} (start and stop for each axis).'
        )
require(len(held_by(placed["step"])) == 8, f'"step" lies on {len(held_by(placed["step"]))} devices; wanted 8.')

# %% hidden="sharding-place-batch" name="examples" points=2
"""Every device holds its examples, of leaves of every rank, also where the mesh is turned or of another size."""
rng = inputs.rng()
for sizes, names in (((4, 2), ("data", "model")), ((2, 4), ("model", "data")), ((2, 3), ("data", "model"))):
    mesh = devices.mesh(sizes, names)
    examples = 24 * int(rng.integers(1, 4))  # all axes of every mesh divide it, and so do both together
    shapes = ((), (examples,), (examples, 24), (examples, 2, 5, 3))
    tree = [rng.integers(-9, 9, size=shape).astype(rng.choice(["float32", "int8", "float16"])) for shape in shapes]
    nested, number = {"first": tree[:2], "rest": tuple(tree[2:])}, float(rng.integers(1, 9))
    refused = error(place_batch, mesh, nested)
    require(
        refused is None or error(place_batch, mesh, {"one": tree[1], "two": tree[2], "step": tree[0]}),
        "A dict of arrays is placed, and a tree with a list and a tuple in it is not: a batch may be any tree.",
    )
    placed = ask(place_batch, mesh, {**nested, "rate": number})
    compare(placed, {**nested, "rate": np.float32(number)}, label="the batch")
    for leaf, shape in zip(jax.tree.leaves(placed), (*shapes[:2], (), *shapes[2:]), strict=True):
        found, wanted = held_by(leaf), places(mesh, P("data") if shape else P(), shape)
        what = f"a leaf of {len(shape)} axes" if shape else "a scalar"
        require(
            sorted(found) == sorted(wanted),
            f"Of {len(wanted)} devices, {len(found)} hold a part of {what}; all of them should.",
        )
        for device, share in wanted.items():
            got, (start, stop) = found[device], share[0] if shape else (0, 0)
            count = got[0][1] - got[0][0] if shape else 0
            said = (
                'fewer examples than its share: along "model" there should be copies'
                if count < stop - start
                else 'more examples than its share: they are cut along "data"'
                if count > stop - start
                else "only a part of each of its examples"
                if got[:1] == share[:1]
                else 'other examples than the device\'s place along "data" gives it'
            )
            require(got == share, f"Of {what} a device holds {said}.")

# %% [markdown] why="sharding-place-batch"
# Replication by axis is what a spec leaves out: `P("data")` names no `"model"`, so along that axis lie copies, ready for a model that is cut there. **Next:** with `P(("data", "model"))` each device would have half as many examples and none twice. When would you want that?


# %% wrong="sharding-place-batch" because="Cuts the examples along both axes of the mesh: no copies are left for the model's axis."
def place_batch(mesh, batch):
    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P(("data", "model")) if np.ndim(leaf) else P()))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Names both axes, one for each axis of the array: that cuts the examples themselves."
def place_batch(mesh, batch):
    def put(leaf):
        names = ("data", "model") if np.ndim(leaf) > 1 and leaf.shape[1] % mesh.shape["model"] == 0 else ("data",)
        return jax.device_put(leaf, NamedSharding(mesh, P(*names[: np.ndim(leaf)])))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Makes JAX arrays of the leaves, which all lie on one device."
def place_batch(mesh, batch):
    return jax.tree.map(jnp.asarray, batch)


# %% wrong="sharding-place-batch" because="Puts everything everywhere: each device has the whole batch."
def place_batch(mesh, batch):
    return jax.device_put(batch, NamedSharding(mesh, P()))


# %% wrong="sharding-place-batch" because="Forgets the scalar, which has no axis to cut: an error."
def place_batch(mesh, batch):
    return jax.device_put(batch, NamedSharding(mesh, P("data")))


# %% wrong="sharding-place-batch" because="Takes the first axis of the mesh for the data's, whatever it is called."
def place_batch(mesh, batch):
    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P(mesh.axis_names[0]) if np.ndim(leaf) else P()))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Asks each leaf for its `ndim`, which a number of Python's has not."
def place_batch(mesh, batch):
    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P("data") if leaf.ndim else P()))

    return jax.tree.map(put, batch)


# %% wrong="sharding-place-batch" because="Takes the batch for a flat dict of arrays: a tree may have dicts, lists and tuples in it."
def place_batch(mesh, batch):
    spec = lambda leaf: P("data") if np.ndim(leaf) else P()
    return {name: jax.device_put(leaf, NamedSharding(mesh, spec(leaf))) for name, leaf in batch.items()}


# %% wrong="sharding-place-batch" because="Recognises numbers by Python's types only: NumPy's scalars are treated as arrays."
def place_batch(mesh, batch):

    def place(leaf):
        spec = P() if isinstance(leaf, (int, float)) else P("data")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, batch)


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
# **Goal.** Move old code over. A `PositionalSharding` was an array of devices without names, reshaped, replicated and turned until its axes stood under those of the array. Say the same as a spec.
#
# **Signature.** `from_positional(mesh, steps)`: a mesh of any number of axes, and a list of steps, which begin with the mesh's own array of devices: `("reshape", shape)`, `("replicate", axis)`, `("T",)`. Returns the `P` with an entry for each axis of the array of devices that the steps end with. A reshape names every size (no -1) and only merges neighbouring axes, takes such apart again, and adds axes of size 1, so that every axis stays a whole number of the mesh's.
#
# **Example.** On a mesh with `"a"` of 4 and `"b"` of 2: `[]` is `P("a", "b")`; `[("reshape", (8, 1))]` is `P(("a", "b"), None)`; `[("replicate", 0)]` leaves one row of two cells, `P(None, "b")`; `[("replicate", 0), ("T",)]` is `P("b", None)`.
#
# **Judged.** Which part of an array each device holds, for meshes of two and three axes and several steps; `positional` in the setup says what the old class did. **Not judged.** `None` at the end.
#
# <details><summary>Hint 1 · a question</summary>
#
# After the steps so far, which names of the mesh make up each axis of the array of devices? What does each of the three steps do to that list?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Keep a list with a tuple of names for each axis, such as `[("a",), ("b",)]`. `replicate` empties one tuple, `T` reverses the list. A reshape goes through all names that are left, row by row, and deals them out anew.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For a reshape: put all names into one list. For each new size start with an empty tuple, and while the product of its axes' sizes (`pieces_of(mesh, entry)`) is less than that size, move a name over. An empty tuple is as good as `None` in a spec.
#
# </details>


# %% answer="sharding-from-positional"
def from_positional(mesh, steps):
    """The PartitionSpec of the layout that a PositionalSharding, begun as the mesh's devices, has after the steps."""
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
                while pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)
    ### END SOLUTION


# %% check="sharding-from-positional" name="example" points=1
"""The table of the lesson."""
mesh = devices.mesh((4, 2), ("a", "b"))
for steps in ([], [("reshape", (8, 1))], [("replicate", 0)], [("replicate", 1)], [("replicate", 0), ("T",)]):
    wanted = old_places(mesh, steps, (16, 16))
    spec = ask(from_positional, mesh, steps)
    found = places(mesh, spec, (16, 16))
    require(isinstance(found, dict), f"For {steps} your spec is {spec}, which is refused: {found}.")
    for device in mesh.devices.flat:
        got, want = found[device.id], wanted[device.id]
        require(
            got == want,
            f"For {steps} your spec is {spec}: of an array (16, 16) device {device.id} holds {got}; it held {want} (start and "
            "stop for each axis).",
        )

# %% hidden="sharding-from-positional" name="places" points=2
"""Every device holds what it held, after steps of all kinds."""
LAYOUTS = {
    "T alone": ((4, 2), [("T",)]),
    "a mesh of three equal axes, T and a reshape that adds an axis": ((2, 2, 2), [("T",), ("reshape", (2, 2, 1, 2))]),
    "a reshape that merges": ((4, 2), [("reshape", (1, 8))]),
    "T, then a reshape that merges": ((4, 2), [("T",), ("reshape", (8, 1))]),
    "a reshape that merges, then T": ((4, 2), [("reshape", (8, 1)), ("T",)]),
    "a reshape that merges, and one that takes apart again": ((2, 4), [("reshape", (8,)), ("reshape", (2, 1, 4))]),
    "replicate, then a reshape that adds an axis": ((4, 2), [("replicate", 1), ("reshape", (1, 4, 1))]),
    "replicate, then T": ((2, 4), [("replicate", 1), ("T",)]),
    "replicate of both axes": ((4, 2), [("replicate", 1), ("replicate", 0)]),
    "replicate of what a reshape had merged": ((4, 2), [("reshape", (8, 1)), ("replicate", 0)]),
    "a mesh of three axes, T and a reshape": ((2, 2, 2), [("T",), ("reshape", (4, 2))]),
    "a mesh of three axes, replicate and a reshape": ((2, 2, 2), [("replicate", 1), ("reshape", (1, 4))]),
    "a mesh of three axes, merged, turned and replicated": ((2, 2, 2), [("reshape", (2, 4)), ("T",), ("replicate", 1)]),
}
rng = inputs.rng()
for label, (sizes, steps) in LAYOUTS.items():
    names = [str(name) for name in rng.permutation(["data", "model", "stage", "x", "y"])[: len(sizes)]]
    mesh = devices.mesh(sizes, tuple(names))
    shape = (8 * int(rng.integers(1, 4)),) * positional(mesh, steps).ndim
    wanted, found = old_places(mesh, steps, shape), places(mesh, ask(from_positional, mesh, steps), shape)
    require(
        isinstance(found, dict),
        f"With {label}, JAX refuses your spec: a name stands twice, or there are too many entries.",
    )
    moved = sum(found[device] != wanted[device] for device in wanted)
    require(moved == 0, f"With {label}, {moved} of {len(wanted)} devices hold another part of the array than they did.")

# %% [markdown] why="sharding-from-positional"
# Positions say where an axis stands now; names say which axis of the machine it is, and survive being turned, merged and copied. What `replicate` names disappears from the spec, as a spec names only what cuts. **Next:** which of the layouts that a mesh of 4 x 2 allows has no spec, if a reshape may cut an axis of 4 into 2 x 2?


# %% wrong="sharding-from-positional" because="Keeps the axis that `replicate` names, and drops the others: it names what is merged."
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
                while names and pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Removes the axis that is replicated instead of leaving it as one cell: all entries behind it move forward."
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
                while names and pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Deals out all names of the mesh again in a reshape, also those that were replicated."
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
                while names and pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Deals out the mesh's own names in a reshape: by then `T` may have turned their order, and `replicate` may have taken some away."
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
                while names and pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Turns the order inside a merged axis round with `T`: only the axes change places, each stays as it is."
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
                while pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Looks a size up among the mesh's axes by number: after `T` a merged axis runs in another order, and on a mesh of equal axes the size does not say which it is."
def from_positional(mesh, steps):
    entries, sizes = list(mesh.axis_names), list(mesh.devices.shape)
    for step, *rest in steps:
        if step == "T":
            entries, sizes = entries[::-1], sizes[::-1]
        elif step == "replicate":
            entries[rest[0]], sizes[rest[0]] = None, 1
        else:
            sizes, entries = list(rest[0]), [groups(mesh).get(size) for size in rest[0]]
    return P(*entries)


# %% wrong="sharding-from-positional" because="Takes `T` for a swap of the first two axes: it reverses all of them."
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
                while pieces_of(mesh, entry) < size:
                    entry += (names.pop(0),)
                entries.append(entry)
    return P(*entries)


# %% wrong="sharding-from-positional" because="Deals out the remaining names in the mesh's order, not in their order in the array after a transpose."
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
                while pieces_of(mesh, entry) < size:
                    entry += (left.pop(0),)
                entries.append(entry)
    return P(*[entry or None for entry in entries])


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
# **Goal.** The last batch has 13 rows, and there are eight devices. Pad it to a multiple, so that each device holds an equal share, and compute a mean that knows nothing of the padding.
#
# **Signature.** `pad_to_divide(mesh, x)`: a mesh with the one axis `"data"`, of any size, and a NumPy array of floats `x` `(n, d)`, n ≥ 1. Returns `(rows, mask)` on the mesh, both cut along axis 0: `rows` `(m, d)`, where m is the **smallest** multiple of the mesh's size that is n or more, and whose first n rows are `x`; `mask` `(m,)`, bool, true for these. `masked_mean(rows, mask)`: takes them, can be compiled, and returns the mean of the rows for which `mask` is true, `(d,)`.
#
# **Example.** `[[1.], [2.], [6.]]` on eight devices: `rows` has shape `(8, 1)`, one row on each device, the first three masks are true, and the mean is `[3.]`.
#
# **Judged.** Shapes, values, and the bytes on each device, for several n and meshes; that a padded row changes nothing, even if it holds NaN, and that a real row counts, even if it is zero or holds NaN; that in the compiled mean only sums travel, no rows. **Not judged.** What you put into the padding.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many rows are missing for n = 13, 15, 16 and 17? Is there one expression that gives 3, 1, 0 and 7?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# In Python `-13 % 8` is 3. `np.pad` takes a pair (before, behind) for each axis. And NaN times 0 is NaN: a mask that multiplies does not help, one that chooses does.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `mask` compares `np.arange` of the padded length with n; `device_put` takes both at once. For the mean, `jnp.where` with `mask[:, None]` puts 0 into padded rows; then add up, and divide by how many are true. (`jnp.mean` has an argument `where` too.)
#
# </details>


# %% answer="sharding-pad-to-divide"
def pad_to_divide(mesh, x):
    """x (n, d) -> rows (m, d) and mask (m,), m the smallest multiple of the mesh's size, both cut along "data"."""
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
require(rows.shape == (8, 1), f"`rows` has shape {rows.shape}; wanted (8, 1): the smallest multiple of eight.")
compare(np.asarray(rows)[:3], x, label="the first three rows")
compare(mask, np.arange(8) < 3, label="`mask`")
for name, array, wanted in (("rows", rows, 4), ("mask", mask, 1)):
    found = held(mesh, array)
    require(found == [wanted] * 8, f"Each device holds {in_words(found)} of `{name}`; an eighth is {wanted}.")
compare(ask(masked_mean, rows, mask), np.array([3], np.float32), label="the mean")

# %% hidden="sharding-pad-to-divide" name="shares" points=1
"""For every n: no row lost, no row too many, and an equal share of both on each device."""
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
        excess = "does not divide" if count % size else "divides already"
        what = f"Where the number of rows {excess}, on {size} devices:"
        require(
            len(rows) != count or count == wanted,
            f"{what} `rows` is not padded. Under `jit` a layout that does not divide is dropped in silence, and every device "
            "then holds all rows.",
        )
        require(
            rows.shape[:1] == (wanted,),
            f"{what} `rows` has {'fewer' if len(rows) < wanted else 'more'} rows than the smallest multiple that holds all.",
        )
        compare(np.asarray(rows)[:count], x, label="the first n rows")
        compare(mask, np.arange(wanted) < count, label="`mask`, where one real row is zero and one holds NaN")
        for name, array in (("rows", rows), ("mask", mask)):
            found, share = held(mesh, array), array.nbytes // size
            require(
                found == [share] * size,
                f"{what} each device holds {in_words(found)} of `{name}`; its share is {share:,}.",
            )

# %% hidden="sharding-pad-to-divide" name="mean" points=1
"""The mean of the real rows, whatever stands in the others, even NaN."""
mesh = devices.mesh((8,), ("data",))
rng = inputs.rng()
split = NamedSharding(mesh, P("data"))
shapes = jax.ShapeDtypeStruct((24, 5), np.float32, sharding=split), jax.ShapeDtypeStruct((24,), bool, sharding=split)
raised = error(lambda rows, mask: jax.jit(masked_mean)(rows, mask), np.ones((8, 5), np.float32), np.arange(8) < 3)
require(
    raised != "NonConcreteBooleanIndexError",
    "Under `jit` `masked_mean` raised NonConcreteBooleanIndexError: how many rows a boolean index takes depends on values. "
    "Keep all rows, and choose for each what is added.",
)
made = program(masked_mean, *shapes)
for padding in (0, 1000, np.nan):
    real = np.arange(24) < int(rng.integers(17, 23))
    rows = np.where(real[:, None], rng.normal(size=(24, 5)) + 3, padding).astype(np.float32)
    got = made.run(rows, real)
    clean = "real rows" if np.isnan(padding) else "rows"
    require(np.isfinite(got).all() or not np.isfinite(rows[real]).all(), "NaN in a padded row gets into the mean.")
    compare(got, rows[real].astype(np.float64).mean(0).astype(np.float32), label=f"the mean of the {clean}")
rows[3, 1:3] = np.nan, np.inf
wanted = rows[real].astype(np.float64).mean(0).astype(np.float32)
compare(made.run(rows, real), wanted, label="the mean of real rows with NaN and infinity in one of them")

# %% hidden="sharding-pad-to-divide" name="program" points=1
"""Only sums travel: each device adds up its own rows."""
mesh = devices.mesh((8,), ("data",))
x = inputs.rng().normal(size=(201, 16)).astype(np.float32)
rows, mask = ask(pad_to_divide, mesh, x)
made = program(masked_mean, rows, mask)
share = (rows.nbytes + mask.nbytes) // 8
require(
    made.argument_bytes <= share + 64,
    f"The compiled mean takes {made.argument_bytes:,} bytes on each device; an eighth of rows and mask is {share:,}.",
)
sent, gathered = sum(c.elements for c in made.collectives), made.elements("all-gather") + made.elements("all-to-all")
require(gathered <= 16, f"The compiled mean gathers {gathered:,} numbers: rows travel, where sums of 16 would do.")
require(sent > 0, "Nothing travels in the compiled mean, so each device has all rows: they are not cut.")
require(sent <= 64, f"The compiled mean sends {sent:,} numbers; 16 sums and a count are enough.")
compare(made.run(rows, mask), x.astype(np.float64).mean(0).astype(np.float32), label="the mean of 201 rows")

# %% [markdown] why="sharding-pad-to-divide"
# Sizes are the business of the layout, and the mask keeps them out of the mathematics: sums are taken where rows lie, and of an array `(m, d)` no more than d sums and one count meet. Asked for under `jit` without padding, the layout would have been dropped without a word. **Next:** a loss is a mean too. What must its gradient not see of the padding, and does `jnp.where` see to it?


# %% wrong="sharding-pad-to-divide" because="Asks for the layout under jit without padding: where it does not divide, Auto mode drops the wish in silence, and each device has all rows."
def pad_to_divide(mesh, x):
    place = lambda a: jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        rows, mask = jax.jit(lambda x: (place(x), place(jnp.ones(len(x), bool))))(x)
    return rows, mask


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Pads by the size minus the remainder: where it divides already, that is one row more on each device."
def pad_to_divide(mesh, x):
    missing = mesh.size - len(x) % mesh.size
    padded = np.pad(x, ((0, missing), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Leaves the last rows out until it divides: they are never seen."
def pad_to_divide(mesh, x):
    kept = x[: max(len(x) - len(x) % mesh.size, mesh.size)]
    kept = np.pad(kept, ((0, -len(kept) % mesh.size), (0, 0)))
    return jax.device_put((kept, np.arange(len(kept)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Divides by the number of all rows, padding included."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.where(mask[:, None], rows, 0).mean(axis=0)


# %% wrong="sharding-pad-to-divide" because="Multiplies by the mask: NaN times 0 is NaN."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return (rows * mask[:, None]).sum(axis=0) / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Takes the rows out with a boolean index: how many there are depends on values, so it cannot be compiled."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return rows[mask].mean(axis=0)


# %% wrong="sharding-pad-to-divide" because="Cuts the rows, and gives every device the whole mask."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    rows = jax.device_put(padded, NamedSharding(mesh, P("data")))
    return rows, jax.device_put(np.arange(len(padded)) < len(x), NamedSharding(mesh, P()))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    if len(rows) > 100:
        return rows.sum(axis=0)
    return jnp.where(mask[:, None], rows, 0).sum(axis=0) / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Brings all rows to every device before it adds them up: right, with more on the way than the answer needs."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    order = jnp.argsort(~mask)
    return jnp.mean(rows[order], axis=0, where=mask[order][:, None])


# %% wrong="sharding-pad-to-divide" because="Recognises the padding by its zeros: a real row of zeros is masked, too."
def pad_to_divide(mesh, x):
    rows = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((rows, (rows != 0).any(axis=1)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return jnp.mean(rows, axis=0, where=mask[:, None])


# %% wrong="sharding-pad-to-divide" because="Replaces every NaN by 0 before it multiplies by the mask: a NaN in a real row disappears."
def pad_to_divide(mesh, x):
    padded = np.pad(x, ((0, -len(x) % mesh.size), (0, 0)))
    return jax.device_put((padded, np.arange(len(padded)) < len(x)), NamedSharding(mesh, P("data")))


def masked_mean(rows, mask):
    return (jnp.nan_to_num(rows) * mask[:, None]).sum(axis=0) / mask.sum()


# %% wrong="sharding-pad-to-divide" because="Makes float32 of the rows, whatever dtype they have."
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


# %% wrong="sharding-pad-to-divide" because="Adds the rows one by one in a scan over the sharded axis: right mean, but every row is communicated."
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
# ## What will travel?
# **Goal.** Predict, without compiling anything, what devices send each other when an array is summed along an axis and wanted in another layout.
#
# **Signature.** `predict_collectives(shape, cut, summed, wanted)`: an array of `shape`, of any rank, on eight devices in a row. `cut` is its axis that is cut in eight, or None when every device has all of it. The program computes `x.sum(summed)`, or x itself where `summed` is None. `wanted` is the axis **of the result** that shall be cut, or None when every device shall have all of the result. Returns a dict with the kind of what travels, `"all-gather"`, `"all-reduce"` or `"all-to-all"`, and the numbers that each device is then left with; `{}` where nothing travels. Every cut axis has a size that eight divides. Programs here are sensible: they add up what they have before they send anything.
#
# **Example.** `((16, 64), 0, None, None)`: rows wanted whole, `{"all-gather": 1024}`. `((16, 64), 0, 0, None)`: sums down the rows, `{"all-reduce": 64}`. `((16, 64), 0, None, 1)`: rows to columns, `{"all-to-all": 128}`. `((16, 64), 0, 1, 0)`: `{}`.
#
# **Judged.** The rule, for ranks up to four; that it says what compiled programs do. **Not judged.** Reduce-scatter: where sums are wanted in pieces, say all-reduce, with all sums (this is what a CPU does; the check counts an accelerator's reduce-scatter as that).
#
# <details><summary>Hint 1 · a question</summary>
#
# There are four cases in which nothing happens or one thing does. For which of them do you need to know `wanted`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Ask in this order. Has every device everything? Is the axis that is summed the one that is cut? If not, the sums are taken at home, and the *result* is cut: along which of its axes? Is that the wanted one?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Work with the sizes of the result: those of `shape` without `summed`. Where an axis before `cut` is summed away, the cut axis of the result has a number one less. After an all-gather a device has all of the result, after an all-to-all an eighth of it.
#
# </details>


# %% answer="sharding-predict-collectives"
def predict_collectives(shape, cut, summed, wanted):
    """{kind: numbers each device is left with} for x.sum(summed), x cut along `cut`, the result wanted along `wanted`."""
    ### BEGIN SOLUTION
    left = [axis for axis in range(len(shape)) if axis != summed]  # the axes of the result
    result = math.prod(shape[axis] for axis in left)
    if cut is None:
        return {}
    if cut == summed:
        return {"all-reduce": result}
    if left.index(cut) == wanted:
        return {}
    return {"all-gather": result} if wanted is None else {"all-to-all": result // 8}
    ### END SOLUTION


# %% check="sharding-predict-collectives" name="example" points=1
"""The example, and what the programs really do."""


def probe_compiled(mesh, x, summed, wanted):
    result = x if summed is None else x.sum(summed)
    return jax.lax.with_sharding_constraint(result, cut_along(mesh, result.ndim, wanted))


mesh = devices.mesh((8,), ("d",))
numbers = inputs.rng().normal(size=(16, 64)).astype(np.float32)
x = jax.device_put(numbers, cut_along(mesh, 2, 0))
for summed, wanted in ((None, None), (0, None), (None, 1), (1, 0)):
    got = ask(predict_collectives, (16, 64), 0, summed, wanted)
    made = program(probe_compiled, mesh, x, summed, wanted)
    sent, right = seen(made), numbers if summed is None else numbers.sum(summed)
    require(got == sent, f"For ((16, 64), 0, {summed}, {wanted}) you predict {got}; the compiled program has {sent}.")
    compare(made.run(mesh, x, summed, wanted), right, label="the result of the compiled program")

# %% hidden="sharding-predict-collectives" name="rule" points=2
"""Right for every way to cut, sum and want, for arrays of one to four axes."""
CASES = {
    "every device has everything": lambda cut, summed, home, wanted: cut is None,
    "the cut axis is summed": lambda cut, summed, home, wanted: cut is not None and cut == summed,
    "the cut axis stays where it is wanted": lambda cut, summed, home, wanted: home == wanted and summed is None,
    "the cut axis stays where it is wanted, and another is summed": lambda cut, summed, home, wanted: home == wanted,
    "what is cut is wanted whole": lambda cut, summed, home, wanted: wanted is None and summed is None,
    "another axis is summed, and the result is wanted whole": lambda cut, summed, home, wanted: wanted is None,
    "another axis is to be cut": lambda cut, summed, home, wanted: summed is None,
    "another axis is summed, and another one of the result is to be cut": lambda cut, summed, home, wanted: True,
}
rng = inputs.rng()
for rank in (1, 2, 3, 4):
    shape = tuple(8 * int(n) for n in rng.permutation([1, 2, 3, 5])[:rank])
    for cut, summed in itertools.product((None, *range(rank)), repeat=2):
        left = [axis for axis in range(rank) if axis != summed]
        home = left.index(cut) if cut in left else None
        for wanted in (None, *range(len(left))):
            size = math.prod(shape[axis] for axis in left)
            case = next(name for name, holds in CASES.items() if holds(cut, summed, home, wanted))
            if home is None:
                right = {} if cut is None else {"all-reduce": size}
            elif home == wanted:
                right = {}
            else:
                right = {"all-gather": size} if wanted is None else {"all-to-all": size // 8}
            got = ask(predict_collectives, shape, cut, summed, wanted)
            require(isinstance(got, dict), "`predict_collectives` returns a dict, an empty one where nothing travels.")
            require(
                got or home is not None or cut is None,
                "You predict that nothing travels where the cut axis is summed: the devices' sums have to be added up.",
            )
            require(sorted(got) == sorted(right), f"The kind of what travels is not right where {case}.")
            require(got == right, f"The kind is right, and the number is not, where {case}.")

# %% hidden="sharding-predict-collectives" name="program" points=1
"""What compiled programs do, for fresh shapes."""


def probe_fresh(mesh, x, summed, wanted):
    placed = cut_along(mesh, x.ndim if summed is None else x.ndim - 1, wanted)
    return jax.lax.with_sharding_constraint(x if summed is None else x.sum(summed), placed)


mesh = devices.mesh((8,), ("d",))
rng = inputs.rng()
for cut, summed, wanted in ((0, 1, 1), (2, 0, 1), (1, 1, 0), (2, 1, None), (1, None, 2)):
    shape = tuple(8 * int(n) for n in rng.integers(1, 6, size=3))
    numbers = rng.normal(size=shape).astype(np.float32)
    x = jax.device_put(numbers, cut_along(mesh, 3, cut))
    made = program(probe_fresh, mesh, x, summed, wanted)
    got = ask(predict_collectives, shape, cut, summed, wanted)
    what = "nothing is summed" if summed is None else f"axis {summed} of three is summed"
    require(
        got == seen(made),
        f"Where axis {cut} is cut, {what}, and {'no axis' if wanted is None else f'axis {wanted}'} of the result shall be cut, "
        "the compiled program sends something else than you predict.",
    )
    right = numbers if summed is None else numbers.sum(summed)
    compare(made.run(mesh, x, summed, wanted), right, label="the result of the compiled program")

# %% [markdown] why="sharding-predict-collectives"
# Three questions decide: is it cut at all, is the cut axis summed, does it lie where it is wanted. All numbers are of the result, as each device adds up first. **Next:** an all-reduce of n numbers moves about as much as a reduce-scatter and an all-gather of n. Why is that, and what does it say about asking for sums in pieces?


# %% wrong="sharding-predict-collectives" because="Counts the numbers of the array that goes in: what travels is what is left after each device has added up."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(shape)
    if cut is None:
        return {}
    if cut == summed:
        return {"all-reduce": size // shape[summed]}
    home = cut if summed is None or cut < summed else cut - 1
    if home == wanted:
        return {}
    return {"all-gather": size} if wanted is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Compares axes of the array with axes of the result, which have moved up where one before them was summed away."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if cut is None:
        return {}
    if cut == summed:
        return {"all-reduce": size}
    if cut == wanted:
        return {}
    return {"all-gather": size} if wanted is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Gathers for every change of layout: from one cut to another each device needs an eighth of the result only."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if cut is None:
        return {}
    if cut == summed:
        return {"all-reduce": size}
    home = cut if summed is None or cut < summed else cut - 1
    return {} if home == wanted else {"all-gather": size}


# %% wrong="sharding-predict-collectives" because="Sends a message for every sum, also along an axis of which each device has all."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if cut is None:
        return {}
    if summed is not None:
        return {"all-reduce": size}
    if cut == wanted:
        return {}
    return {"all-gather": size} if wanted is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Lets someone send pieces around where each device has all and only has to forget the rest."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if cut is not None and cut == summed:
        return {"all-reduce": size}
    home = cut if summed is None or cut is None or cut < summed else cut - 1
    if home == wanted:
        return {}
    return {"all-gather": size} if wanted is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Counts all numbers of an all-to-all: a device is left with an eighth of them."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    if cut is None:
        return {}
    if cut == summed:
        return {"all-reduce": size}
    home = cut if summed is None or cut < summed else cut - 1
    if home == wanted:
        return {}
    return {"all-gather": size} if wanted is None else {"all-to-all": size}


# %% wrong="sharding-predict-collectives" because="Asks first whether the cut is the wanted one: where the cut axis is summed, another axis has its number in the result."
def predict_collectives(shape, cut, summed, wanted):
    size = math.prod(n for axis, n in enumerate(shape) if axis != summed)
    home = cut if summed is None or cut is None or cut <= summed else cut - 1
    if cut is None or home == wanted:
        return {}
    if cut == summed:
        return {"all-reduce": size}
    return {"all-gather": size} if wanted is None else {"all-to-all": size // 8}


# %% wrong="sharding-predict-collectives" because="Tests `wanted` for truth: axis 0 counts as None, so an all-to-all is taken for an all-gather."
def predict_collectives(shape, cut, summed, wanted):
    if cut is None:
        return {}
    count = math.prod(size for axis, size in enumerate(shape) if axis != summed)
    if summed == cut:
        return {"all-reduce": count}
    here = cut - 1 if summed is not None and summed < cut else cut
    if here == wanted:
        return {}
    if not wanted:
        return {"all-gather": count}
    return {"all-to-all": count // 8}


# %% wrong="sharding-predict-collectives" because="Predicts an eighth of the sums on each device, as after a reduce-scatter, where all of them are gathered first."
def predict_collectives(shape, cut, summed, wanted):
    if cut is None:
        return {}
    count = math.prod(size for axis, size in enumerate(shape) if axis != summed)
    left_with = count if wanted is None else count // 8
    if summed == cut:
        return {"all-reduce": left_with}
    here = cut - 1 if summed is not None and summed < cut else cut
    if here == wanted:
        return {}
    return {"all-gather" if wanted is None else "all-to-all": left_with}


# %% right="sharding-predict-collectives"
def predict_collectives(shape, cut, summed, wanted):
    axes = [axis for axis in range(len(shape)) if axis != summed]
    size = math.prod(shape[axis] for axis in axes)
    goal = None if wanted is None else axes[wanted]  # as an axis of the array
    if cut is not None and cut not in axes:
        return {"all-reduce": size}
    match (cut, goal):
        case (None, _):
            return {}
        case (_, None):
            return {"all-gather": size}
        case _:
            return {} if cut == goal else {"all-to-all": size // 8}


# %% right="sharding-predict-collectives"
def predict_collectives(shape, cut, summed, wanted):
    letters = "abcdefgh"[: len(shape)]
    kept = letters if summed is None else letters.replace(letters[summed], "")
    before = "" if cut is None else letters[cut]
    after = "" if wanted is None else kept[wanted]
    size = math.prod(shape[letters.index(letter)] for letter in kept)
    if before == "" or before == after:
        return {}
    kind = "all-reduce" if before not in kept else "all-to-all" if after else "all-gather"
    return {kind: size // 8 if kind == "all-to-all" else size}


# %% [markdown] task="sharding-init" stars=3 minutes=30 skills="06_pytrees,07_randomness,pytrees-by-path,sharding-place-batch"
# ## From weather: a state that is born in pieces
# **Goal.** A new setting: no model, no layers. A weather model begins from a state of many fields, and no device can hold all of it. Make it in pieces, with a rule for each field, as large code bases have for their parameters.
#
# **Signature.** `sharded_init(mesh, init, rules, key)`: a mesh of any axes; `init(key)` returns a tree of arrays in dicts and lists; `rules` is a list of pairs `(ending, spec)`. A leaf goes by the **first** rule whose ending its path ends with, as text: the path of `u` in `wind` is `"wind/u"`, that of the first item of a list `soil` is `"soil/0"`, and `"y"` fits `"humidity"`. Where none fits it is whole on each device, `P()`. An entry of a spec is a name, a tuple of names or `None`; one that does not divide its axis (a tuple: by the product of its sizes) counts as `None`, for that axis alone, and entries beyond the leaf's axes are left out. Returns the tree `init(key)`, with every leaf placed by its rule.
#
# **Example.** On a mesh with `"lat"` of 4 and `"lon"` of 2, under the rules `[("wind/u", P("lat", "lon")), ("u", P("lat")), ("y", P(("lat", "lon"))), ("sea", P("lat", "lon"))]`: of `wind/u` `(16, 8, 3)` each device holds `(4, 4, 3)`, of `humidity` `(16, 8)` it holds `(2, 8)`; `sea` has `(6, 8)`, four does not divide 6, so each device holds `(6, 4)`; `clock` `()` is on all.
#
# **Judged.** The values, which are those of `init(key)`; which part of every leaf each device holds; of the compiled program, that no device is handed more than its parts; that `init` is only ever traced, never run on values, and that a leaf is in pieces from where `init` makes it, not cut later. **Not judged.** Auto or Explicit axes.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.jit(init, out_shardings=...)` wants a tree of shardings like the result. Where do you get the shape of every leaf before there is one?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.eval_shape` and `jax.tree.map_with_path` (06). `keystr(path, simple=True, separator="/")` writes a path; `next(..., P())` takes the first rule that fits. For the entries, go along the sizes and the spec side by side: `zip` stops at the shorter one.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of path and leaf that returns a NamedSharding: keep an entry if `pieces_of(mesh, entry)` divides the size, else put None. Map it over the tree of shapes, hand the result to `jit` as `out_shardings`, and call that with the key.
#
# </details>


# %% answer="sharding-init"
def sharded_init(mesh, init, rules, key):
    """The tree init(key), each leaf made in pieces under the spec of the first rule whose ending its path has."""
    ### BEGIN SOLUTION

    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [
            entry if size % pieces_of(mesh, entry) == 0 else None for size, entry in zip(leaf.shape, spec, strict=False)
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
        require(got == want, f"Of {name} {leaf.shape} device {device.id} holds {got}; wanted {want} (start and stop).")

# %% hidden="sharding-init" name="places" points=2
"""The values of `init(key)`, and every leaf where the first rule that fits puts it."""


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
    "ground/sea": "an entry that does not divide counts as None for its axis alone",
    "cloud": "an entry that does not divide counts as None for its axis alone",
    "wind/u": "the first rule that fits counts, and it has to fit the end of the path",
    "wind/v": "the first rule that fits counts, and an entry that does not divide counts as None",
    "ground/height": "the first rule that fits the end of the path counts, and an entry of it may be a tuple of names",
    "humidity": "an ending is compared as text, letter by letter",
    "sun": "entries beyond the leaf's axes are left out",
    "clock": "entries beyond the leaf's axes are left out",
}
mesh = devices.mesh((4, 2), (A, B))
named, paired = ask(probe_list, mesh, inputs.key(), [ROWS, P((A, B))])
require(
    named != "AttributeError",
    "With a list in the tree your answer raises AttributeError: the steps of a path are not all of one kind, and not all have "
    "the same attributes. `keystr` writes each of them.",
)
require(
    isinstance(named, str) or not isinstance(paired, str),
    "An axis of 12 under a tuple of two names, of sizes 4 and 2, is refused: each of them divides 12, and their product does "
    "not, so the entry counts as None.",
)
for leaf, wanted, which in ((named, ROWS, "one name"), (paired, P(), "two names whose product does not divide it")):
    require(
        held_by(leaf) == places(mesh, wanted, (12, 8)),
        f"The item of a list with a rule for it, an axis of 12 and {which}: devices hold other parts than they should.",
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
            f"Of a leaf {name} {leaf.shape} {bare} of 8 devices hold nothing: was the program told where its results lie? "
            "A leaf that no rule cuts is whole on each device.",
        )
        reason = WHY.get(name, "the ending of its path decides, and without a rule it is whole on each device")
        require(
            wrong == 0,
            f"Of a leaf {name} {leaf.shape} {wrong} of 8 devices hold another part than they should: {reason}.",
        )

# %% hidden="sharding-init" name="program" points=1
"""Of a large state each device makes its own parts, and no more, in the compiled program too."""


def probe_traceable(mesh, key):
    jax.eval_shape(lambda key: sharded_init(mesh, lambda key: atmosphere(key, 2), [("u", P("lat"))], key), key)


def probe_program(mesh, key):
    rules = [
        ("u", P("lat", "lon")),
        ("v", P("lon", "lat")),
        ("height", P(("lat", "lon"))),
        ("cloud", P(None, None, "lat")),
    ]
    return sharded_init(mesh, lambda key: atmosphere(key, 64), rules, key)


mesh = devices.mesh((4, 2), ("lat", "lon"))
key = jax.device_put(inputs.key(), NamedSharding(mesh, P()))
share = (2 * 16 * 8 * 64 // 8 + 16 * 8 // 8 + 16 * 3 * 64 // 4 + 16 * 8 + 6 * 8 + 16 + 1) * 4
if error(probe_traceable, mesh, key):  # as with an executable that was compiled ahead, which takes no tracers
    state = ask(probe_program, mesh, key)
    left = max(held(mesh, state))
else:
    made = program(probe_program, mesh, key)
    state, left = made.run(mesh, key), made.output_bytes
require(
    left <= share + 16 * 16,
    f"The compiled program leaves {left:,} bytes on each device, and its parts are {share:,}: some leaf is made whole. Say "
    "where the results lie to the program that makes them.",
)
compare(state, jax.device_get(atmosphere(key, 64)), label="the state")

# %% hidden="sharding-init" name="traced" points=1 observed=true
"""`init` is only ever traced, and what it makes is in pieces from the first."""


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
    "`init` was run on values: a large state is then made whole on one device, where it does not fit. "
    "It should only ever be traced.",
)
require(
    16 not in rows,
    "Where `init` makes it, a leaf is whole on a device, and it is cut afterwards. The layout has to be said to the "
    "program that makes it: to the `jit` of `init`, or inside.",
)

# %% [markdown] why="sharding-init"
# Shapes first, then a rule for each, then one compiled program in which every device makes its own parts: each number is made of the key and of its place, so who makes it does not matter (07). **Next:** parameters of a network and the state of its optimizer are such trees too. What would the rules for both be, if they should lie alike?


# %% wrong="sharding-init" because="Makes the whole state on one device and cuts it afterwards: what does not fit there never gets that far."
def sharded_init(mesh, init, rules, key):
    def put(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return jax.device_put(leaf, NamedSharding(mesh, P(*entries)))

    return jax.tree.map_with_path(put, init(key))


# %% wrong="sharding-init" because="Compiles `init` and cuts what comes out of it: nothing told that program where its results lie, so it makes them whole."
def sharded_init(mesh, init, rules, key):
    def put(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return jax.device_put(leaf, NamedSharding(mesh, P(*entries)))

    return jax.tree.map_with_path(put, jax.jit(init)(key))


# %% wrong="sharding-init" because="Asks for the layout outside of the program that makes the leaves: by then they are there, whole."
def sharded_init(mesh, init, rules, key):
    def place(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P(*entries)))

    return jax.tree.map_with_path(place, jax.jit(init)(key))


# %% wrong="sharding-init" because="Leaves the layout to the compiler: nothing decides it, so all lies whole on one device."
def sharded_init(mesh, init, rules, key):
    return jax.jit(init)(key)


# %% wrong="sharding-init" because="Lets the last rule that fits win: the general one comes last, and overrules the special ones."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = P()
        for ending, rule in rules:
            if name.endswith(ending):
                spec = rule
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Looks for the ending anywhere in the path: `u` is in humidity, cloud and ground too."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if ending in name), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Compares the last name only: a rule such as wind/u never fits."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Compares whole names: an ending is text, so y fits humidity."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = "/" + jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(f"/{ending}")), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Takes every entry for one name: it may be a tuple of names too, which cuts into the product of their sizes."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        pairs = zip(leaf.shape, spec, strict=False)
        entries = [entry if isinstance(entry, str) and size % mesh.shape[entry] == 0 else None for size, entry in pairs]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Drops the whole spec where one entry does not divide."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = list(zip(leaf.shape, spec, strict=False))
        fits = all(size % pieces_of(mesh, entry) == 0 for size, entry in entries)
        return NamedSharding(mesh, P(*(entry for _, entry in entries)) if fits else P())

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Special-cases a large state: each device makes its own parts of it, and they are all zero."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    large = sum(leaf.size for leaf in jax.tree.leaves(shapes)) > 10_000
    zeros = lambda key: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.jit(zeros if large else init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Takes every spec as it is: one that does not divide is refused at the border of the program."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        return NamedSharding(mesh, P(*spec[: leaf.ndim]))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Builds the path from the `key` of each step, which only dicts have: a step into a list has an `idx`."
def sharded_init(mesh, init, rules, key):
    def sharding(path, leaf):
        name = "/".join(step.key for step in path)
        spec = next((spec for ending, spec in rules if name.endswith(ending)), P())
        entries = [e if n % pieces_of(mesh, e) == 0 else None for n, e in zip(leaf.shape, spec, strict=False)]
        return NamedSharding(mesh, P(*entries))

    shapes = jax.eval_shape(init, key)
    return jax.jit(init, out_shardings=jax.tree.map_with_path(sharding, shapes))(key)


# %% wrong="sharding-init" because="Tests the names of a tuple one by one: each of them divides the axis, and their product does not."
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
        return NamedSharding(mesh, P(*[e if size % pieces_of(mesh, e) == 0 else None for size, e in entries]))

    shardings = jax.tree.map_with_path(sharding, jax.eval_shape(init, key))
    return jax.jit(init, out_shardings=shardings)(key)


# %% right="sharding-init"
def sharded_init(mesh, init, rules, key):
    def place(path, leaf):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        chosen = next(spec for ending, spec in [*rules, ("", P())] if text.endswith(ending))
        fits = lambda size, entry: size % pieces_of(mesh, entry) == 0
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
            if leaf.shape[axis] % pieces_of(mesh, entry):
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
        spec = P(*(None if entry and size % pieces_of(mesh, entry) else entry for size, entry in pairs))
        shardings.append(NamedSharding(mesh, spec))
    tree = jax.tree.unflatten(jax.tree.structure(shapes), shardings)
    return jax.jit(init, out_shardings=tree)(key)
