# %% [markdown]
# # 16 · Sharding: one array on many devices
#
# *The core takes about 35 minutes. Nine "Deeper" sections can be skipped. Then do [the exercises](../exercises/16_sharding/16_sharding.ipynb).* After the core you can shard an array over a mesh of devices, predict what the devices communicate in a computation, and check the prediction in the compiled program.
#
# **Prerequisites.** Devices and `device_put` (lesson 01), `jit` (03), pytrees and `eval_shape` (06), keys (07). Answer these questions from memory.
#
# 1. From 01: How do you copy an array `x` to the second device?
#
# <details><summary>Answer</summary>
#
# `jax.device_put(x, jax.devices()[1])`
# </details>
#
# 2. From 06: What does `jax.eval_shape(init, key)` return, and what does it cost?
#
# <details><summary>Answer</summary>
#
# The tree that `init` would return, with a `ShapeDtypeStruct` for each array. It computes no numbers and allocates no arrays.
# </details>
#
# 3. From 07: Each of eight devices should draw an eighth of one random array. What must they communicate?
#
# <details><summary>Answer</summary>
#
# Nothing. Number i depends only on the key and on i, and every device has the key.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.learning import figures, plots
from grader.learning.inspection import flops, print_collectives, print_error, time_ms

eight = jax.devices()[:8]

# %% [markdown]
# ## Which device stores what?
# Suppose that an array is too large for one device, and that you have eight. **Which device stores which part, and what must the devices communicate when they compute?** You decide the placement. The compiler derives the communication from it.
#
# A **[mesh](../docs/glossary.md#mesh)** arranges devices in a grid whose axes have names. Ours has an axis `a` of size 4 and an axis `b` of size 2.

# %%
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=eight)
print(mesh)
print(np.vectorize(lambda device: device.id)(mesh.devices))  # the id of each device, at its position

# %% [markdown]
# The axes have the type **Auto**. Code for one device then runs unchanged, and the compiler chooses every placement you do not specify. Choose the default, **Explicit** ([lesson 17](17_explicit_sharding.ipynb)), to read and control the shardings of intermediate values. Both compile to similar programs.
#
# ## A spec names mesh axes
# A `PartitionSpec`, usually imported as `P`, states how an array is partitioned. It has an entry for each axis of the *array*, which names the *mesh* axis that partitions this array axis. In `P("a", "b")`, the mesh axis `a` partitions the rows of a matrix, and `b` partitions its columns.
#
# A mesh and a spec together make a `NamedSharding`. This **[sharding](../docs/glossary.md#sharding)** describes which device stores which part, or **shard**, of an array. `device_put` accepts a sharding in place of a device.

# %%
x = jnp.arange(64.0).reshape(8, 8)
ab = jax.device_put(x, NamedSharding(mesh, P("a", "b")))
plots.show_shardings([ab], "The first sharding of an array (8, 8).")

# %% [markdown]
# The number in a shard is the id of the device that stores it. `a` divides the rows into four parts, and `b` divides the columns into two halves.

# %% [markdown] predict="sharding-p-ba"
# `x` has shape `(8, 8)`. Which shard does device 1 store under `P("b", "a")`? Its position in the mesh is row 0 and column 1, so a = 0 and b = 1.
#
# - [ ] rows 0 and 1, columns 4 to 7 | This is its shard under `P("a", "b")`, where `a` partitions the rows.
# - [x] rows 4 to 7, columns 0 and 1 | Right. `b` divides the rows into two halves, and device 1 has b = 1. `a` divides the columns into four parts, and device 1 has a = 0.
# - [ ] rows 0 to 3, columns 2 and 3 | This is the shard of device 2, which has a = 1 and b = 0.

# %%
ba = jax.device_put(x, NamedSharding(mesh, P("b", "a")))
print("device 1:", ba.addressable_shards[1].index)
plots.show_shardings([ba], "The second sharding of an array (8, 8).")

# %% [markdown]
# `ba` has the shape and values of `x`.
#
# An entry may also be a tuple of mesh axes, or `None` for an axis that is not partitioned. Below are six more specs. If a shard shows several ids, each of these devices stores a copy.

# %%
specs = P("a", None), P(None, "b"), P(), P(("a", "b"), None), P(("b", "a"), None), P(None, ("a", "b"))
plots.show_shardings(
    [(NamedSharding(mesh, spec), (8, 8)) for spec in specs],
    "Six more specs for an array (8, 8).",
)

# %% [markdown]
# Two rules explain the pictures.
#
# 1. **An array is replicated along every mesh axis that its spec does not name.** `P("a", None)` does not name `b`, so the two devices in each row of the mesh store the same shard.
# 2. **In a tuple, the first name varies slowest.** `P(("a", "b"))` assigns the eight shards to devices 0, 1, 2 and so on. `P(("b", "a"))` assigns them first to the devices with b = 0, which are 0, 2, 4 and 6.
#
# `None` at the end can be omitted, so `P("a")` is short for `P("a", None)`.
#
# ## Set a mesh, then write a bare P
# `jax.set_mesh(mesh)` makes a mesh the current one, in a `with` block or for the rest of the program. Functions that take a sharding then accept a bare `P`.

# %%
with jax.set_mesh(mesh):
    placed = jax.device_put(x, P("a", "b"))
    zeros = jnp.zeros((8, 8))
print("placed:", placed.sharding.spec, "  zeros:", zeros.sharding.spec, "on", len(zeros.devices()), "devices")
print_error(lambda: jax.device_put(x, P("a", "b")))

# %% [markdown]
# The current mesh also changes the placement of new arrays, so `zeros` is replicated on its devices. Without a current mesh, a bare `P` is an error. The cells below use several meshes, so they write `NamedSharding` in full.
#
# ## Committed and uncommitted arrays
# Without a current mesh, JAX stores a new array on the default device. Such an array is **[uncommitted](../docs/glossary.md#committed)**, and JAX may copy it to other devices when an operation needs it there. `device_put` with a device or a sharding returns a **committed** array, which stays where it is.

# %%
free = jnp.ones((8, 8))
on_three = jax.device_put(free, eight[3])
sharded = jax.device_put(free, NamedSharding(mesh, P("a", "b")))
sums = {"free + free": free + free, "free + on_three": free + on_three, "free + sharded": free + sharded}
arrays = {"free": free, "on_three": on_three, "sharded": sharded} | sums
for name, array in arrays.items():
    print(f"{name:16s} {'committed' if array.committed else 'uncommitted'}")
plots.show_shardings(arrays, "Above: the three arrays. Below: three sums, stored where their committed argument is.")

# %% [markdown]
# An operation runs on the devices of its committed arguments, and its result is committed there too. If the arguments are committed to different devices, JAX raises an error. It never copies a committed array to other devices implicitly, because such a copy can be slow.

# %%
print_error(lambda: on_three + sharded)

# %% [markdown]
# A common cause is a batch that is stored on one device while the parameters are sharded.
#
# ## Shardings that do not fit
# A sharding must fit the shape of the array. The spec cannot have more entries than the array has axes. The number of shards along an axis must divide its size. The spec may name each mesh axis only once. Each call below violates one of these rules.

# %%
print_error(lambda: jax.device_put(x, NamedSharding(mesh, P("a", None, "b"))), length=400)
print_error(lambda: jax.device_put(x[:6], NamedSharding(mesh, P("a", "b"))), length=400)
print_error(lambda: jax.device_put(x, NamedSharding(mesh, P("a", "a"))), length=400)

# %% [markdown]
# ## Computation follows sharding
# A computation runs where its arguments are stored, with `jit` or without. Each device works on its own shards. Where a device needs data from another one, the compiler inserts a **[collective](../docs/glossary.md#collective)**, an operation in which devices communicate.

# %% [markdown] predict="sharding-dot"
# `lhs` has the sharding `P("a", None)` and `rhs` the sharding `P(None, "b")`. What must the devices communicate to compute `lhs @ rhs`?
#
# - [ ] the whole of both arrays | One device alone would need both arrays. Here each of eight devices computes only its shard of the result.
# - [ ] partial sums | The axis that is summed is not partitioned. Each device has whole rows and whole columns.
# - [x] nothing | Right. Block (i, j) of the result needs row block i and column block j, and the device at (i, j) stores exactly these.


# %%
def print_communication(name, function, *arguments, **options):
    """Compiles the function for these arguments, without running it. Prints the spec of its result, and a line for each
    collective, with the number of elements that it returns on each device."""
    compiled = jax.jit(function, **options).lower(*arguments).compile()
    print(f"{name}, result {compiled.output_shardings.spec}")
    print_collectives(compiled)


put = lambda array, *spec: jax.device_put(array, NamedSharding(mesh, P(*spec)))
lhs, rhs = put(x, "a", None), put(x, None, "b")
print_communication("lhs @ rhs", jnp.matmul, lhs, rhs)
plots.show_shardings({"lhs": lhs, "rhs": rhs, "lhs @ rhs": lhs @ rhs}, "The product is sharded along both axes.")

# %% [markdown]
# This changes if the summed axis is partitioned.
#
# ![The product lhs @ rhs, twice. Above, the rows of lhs are partitioned along a and the columns of rhs along b. Device 5 stores row block 2 and column block 1 and computes its shard alone. Below, the summed axis is partitioned along a, in the columns of lhs and the rows of rhs. Each device computes a table of full size with a part of every sum, and an all-reduce adds these tables.](../images/sharding_dot.svg)

# %%
pairs = (P("a"), P()), (P(None, "a"), P("a")), (P(), P("a")), (P("a"), P("a"))
for left, right in pairs:
    print_communication(f"{left} @ {right}", jnp.matmul, put(x, *left), put(x, *right))
print("same numbers:", all(jnp.array_equal(np.asarray(put(x, *one) @ put(x, *other)), x @ x) for one, other in pairs))

# %% [markdown]
# In the first product, the summed axis is not partitioned, and nothing is communicated. In the second, it is partitioned in the same way in both arguments. Each device then has a part of every sum, and an **all-reduce** adds these parts. In the last two, only `rhs` is partitioned along the summed axis. An **all-gather** first copies all of `rhs` to every device.
#
# The result is the same with every sharding, up to rounding. *The sharding determines the cost.*
#
# ## Five collectives
# Most programs need only five collectives.

# %% [markdown] predict="sharding-collectives"
# `table` has shape `(16, 64)`, and its rows are partitioned over eight devices. Which of these needs **no** communication?
#
# - [x] `table.T` | Right. The transpose of a shard is a shard of the transpose. Only the spec changes, to `P(None, "d")`.
# - [ ] `table.sum(0)` | This sums along the partitioned axis, so the partial sums of the devices must be added.
# - [ ] `jnp.roll(table, 1, axis=0)` | Each device must send its last row to the next device.

# %%
line = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=eight)
rows, columns, whole = (NamedSharding(line, spec) for spec in (P("d", None), P(None, "d"), P()))
table = jax.device_put(jnp.arange(1024.0).reshape(16, 64), rows)
print_communication("transpose", jnp.transpose, table)
print_communication("sum(0)", lambda t: t.sum(0), table)
print_communication("roll", lambda t: jnp.roll(t, 1, axis=0), table)
operations = {"sum(0)": lambda t: t.sum(0), "x @ x": lambda t: t @ t, "roll": lambda t: jnp.roll(t, 1, axis=0)}
shardings = [NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P("a")), rows, columns]
figures.collectives(operations, shardings, shape=(8, 8))

# %% [markdown]
# `sum(0)` adds 1,024 numbers, but its all-reduce has only 64 elements, because **each device first adds its own rows**. The interactive figure shows what a ring of devices sends in each step. The picture shows all five collectives.
#
# ![Five collectives on four devices, before and after. All-gather: each has one shard, then all have all shards. All-reduce: each has a part of every sum, then all have all sums. Reduce-scatter: the same, then each has one shard of the sums. All-to-all: each has a row of blocks, then each has a column of them. Collective-permute: each sends its shard to its neighbour.](../images/sharding_collectives.svg)
#
# Changing a sharding may need communication too. The argument `out_shardings` of `jit` requests a sharding for the result.

# %%
same = lambda t: t
print_communication("mean of each row", lambda t: t.mean(1), table)
print_communication("replicate", same, table, out_shardings=whole)
print_communication("rows to columns", same, table, out_shardings=columns)
print_communication("sharded sum(0)", lambda t: t.sum(0), table, out_shardings=NamedSharding(line, P("d")))

# %% [markdown]
# Replicating the rows gathers all 1,024 elements on each device. From rows to columns, an all-to-all gives each device only 128. The sharded sums need only a reduce-scatter, which compilers for accelerators can use. The compiler for CPUs uses an all-reduce instead, and each device keeps its part of the sums.
#
# ## Shardings inside jit
# Most code needs only `device_put`, because `jit` uses the shardings of its arguments. `jax.lax.with_sharding_constraint` sets the sharding of an intermediate value.


# %%
def sine_by_columns(t):
    return jax.lax.with_sharding_constraint(jnp.sin(t), P(None, "d")) + 1


with jax.set_mesh(line):
    print_communication("sine by columns", sine_by_columns, table)

# %% [markdown]
# The rows of `table` are partitioned, so the constraint adds an all-to-all.
#
# `out_shardings` matters most for **new arrays**. If you create a large array and shard it afterwards, it must first fit on one device.


# %%
def draw(key):
    return jax.random.normal(key, (4096, 1024))


for name, options in {"no options": {}, "out_shardings=rows": {"out_shardings": rows}}.items():
    memory = jax.jit(draw, **options).lower(jax.random.key(0)).compile().memory_analysis()
    print(f"{name:19s} result {memory.output_size_in_bytes / 2**20:4.1f} MiB on each device, ", end="")
    print(f"temporary memory {memory.temp_size_in_bytes / 2**20:4.1f} MiB")

# %% [markdown]
# With `out_shardings`, each device draws only its eighth of the numbers. For a tree of arrays, `out_shardings` takes a tree of shardings with the same structure.
#
# The core ends here.

# %% [markdown]
# ## Deeper: shardings of arguments
# By default, `jit` accepts arguments with any sharding. With `in_shardings`, you require a particular one.

# %% [markdown] predict="sharding-in"
# `f = jax.jit(jnp.sin, in_shardings=rows)`. Which call raises an error?
#
# - [ ] `f(np.ones((16, 64)))` | A NumPy array is not committed, so `f` shards it by rows.
# - [x] `f(jax.device_put(table, columns))` | Right. The argument is committed to another sharding, and JAX does not choose between the two.
# - [ ] both | For an array that is not committed, `in_shardings` is an instruction, so nothing contradicts it.

# %%
f = jax.jit(jnp.sin, in_shardings=rows)
print("NumPy array:", f(np.ones((16, 64), np.float32)).sharding.spec)
print_error(lambda: f(jax.device_put(table, columns)), length=400)

# %% [markdown]
# ## Deeper: sizes that do not divide
# `device_put` rejects a sharding that does not divide the array evenly. Inside a compiled program, an array of any size can be sharded, because the compiler pads it. What about the result of a program?

# %% [markdown] predict="sharding-uneven"
# `table` has 16 rows on eight devices. `jax.jit(lambda t: jnp.diff(t, axis=0))(table)` has 15. Where are they stored?
#
# - [ ] two rows on seven devices, one on the last | The result of a program has shards of one size on all devices.
# - [ ] an error | No sharding was requested for the result, so there is nothing to reject.
# - [x] all 15 rows on every device | Right. A result that cannot be divided evenly is replicated, without a warning.

# %%
constrain = lambda t: jax.lax.with_sharding_constraint(t, rows)
print_communication("diff", lambda t: jnp.diff(t, axis=0), table)
print_communication("15 rows as a result", lambda t: constrain(t[:15]), table)
print_communication("15 rows inside", lambda t: jnp.sin(constrain(t[:15])).sum(), table)
print_communication("16 differences", lambda t: jnp.roll(t, -1, axis=0) - t, table)
print_error(lambda: jax.jit(lambda t: t[:15], out_shardings=rows)(table), length=400)

# %% [markdown]
# A result must have shards of equal size.
#
# - The first two programs return 15 rows, so all rows are gathered and replicated. The 1,024 elements are 16 rows, one of which is padding.
# - In the third program, the 15 rows are not the result, so the constraint is applied. Each device sums its own rows, and the devices communicate a single number.
# - The fourth program returns 16 differences, the last of which should be ignored. It communicates only one row per device.
#
# `out_shardings` raises an error instead of replicating, so prefer it for results. For data, pad the first axis to a multiple of the number of devices, keep a mask, and exclude the padding from every mean.

# %%
batch = np.arange(13.0)
padded = np.pad(batch, (0, -len(batch) % 8))
values, real = jax.device_put((padded, np.arange(len(padded)) < len(batch)), NamedSharding(line, P("d")))
mean = jnp.where(real, values, 0).sum() / real.sum()
print(f"{len(batch)} values, padded to {len(padded)}; mean {mean}, without padding {batch.mean()}")

# %% [markdown]
# ## Deeper: plan shardings without arrays
# `shard_shape` computes the shape of a shard without an array, so you can compare shardings for an array of any size. This float32 array takes 4,096 GiB.

# %%
for spec in specs:
    shard = NamedSharding(mesh, spec).shard_shape((2**20, 2**20))
    print(f"{spec!s:20s} {shard!s:18s} {4 * shard[0] * shard[1] / 2**30:6,.0f} GiB on each device")

# %% [markdown]
# Tests should not compare shardings with `==`. Two different shardings may place every array of a given rank in the same way. `is_equivalent_to` compares only the placement.

# %%
short, full = NamedSharding(mesh, P("a")), NamedSharding(mesh, P("a", None))
print("==:", short == full, "  is_equivalent_to:", short.is_equivalent_to(full, ndim=2))

# %% [markdown]
# ## Deeper: several meshes
# Different arrays may be on different meshes. For example, each part of a model may have its own devices. `Mesh` takes an array of devices and keeps their order, while `jax.make_mesh` may choose an order in which neighbours are connected. `device_put` copies an array from one mesh to another.

# %%
first, second = (Mesh(np.array(half), ("d",), axis_types=(AxisType.Auto,)) for half in (eight[:4], eight[4:]))
on_first = jax.device_put(x, NamedSharding(first, P("d")))
on_second = jax.device_put(on_first, NamedSharding(second, P("d")))
plots.show_shardings({"on_first": on_first, "on_second": on_second}, "The same array on two meshes of four devices.")

# %% [markdown]
# A compiled program runs on one set of devices, so an array cannot be copied to other devices inside `jit`.

# %%
print_error(lambda: on_first + on_second)
print_error(lambda: jax.jit(lambda t: jax.device_put(t, NamedSharding(second, P("d"))))(on_first))

# %% [markdown]
# A single device is equivalent to a mesh of one device, so arrays that were placed in these two ways can be combined.

# %%
single = Mesh(np.array(eight[3:4]), ("d",), axis_types=(AxisType.Auto,))
print((jax.device_put(x, NamedSharding(single, P())) + on_three).devices())

# %% [markdown]
# Two arrays in one operation may have different specs and even different mesh axes, but they need the same devices **in the same order**. With the devices in reverse order, each row is stored on another device.

# %%
backwards = Mesh(np.array(eight[::-1]), ("d",), axis_types=(AxisType.Auto,))
forward_rows, backward_rows = jax.device_put(x, rows), jax.device_put(x, NamedSharding(backwards, P("d")))
print("different mesh axes:", (forward_rows + put(x, "a", "b")).sharding.spec)
print_error(lambda: forward_rows + backward_rows, length=400)
plots.show_shardings({"in order": forward_rows, "in reverse": backward_rows}, "The order of the devices is reversed.")

# %% [markdown]
# ## Deeper: Auto, Explicit and Manual axes
# JAX has three modes of parallel programming. The [type of a mesh axis](../docs/glossary.md#axis-type) selects one of them.
#
# | axis type | you write code for | shardings are | communication is inserted by |
# |---|---|---|---|
# | `Auto` (this lesson) | whole arrays | chosen by the compiler, starting from yours | the compiler |
# | `Explicit` | whole arrays | part of each array's type | the compiler |
# | `Manual` | one device's shards | part of `shard_map`'s arguments | you |
#
# We compute one product in all three modes. The summed axis is partitioned over `a`. In Auto mode, the types contain no shardings, and the compiler chooses the sharding of the result.

# %%
left, right = put(x, None, "a"), put(x, "a", None)
in_auto = left @ right
print(jax.typeof(left), "@", jax.typeof(right), "->", jax.typeof(in_auto), "stored as", in_auto.sharding.spec)

# %% [markdown]
# In Explicit mode, the types contain shardings. JAX propagates them when it traces the program. Where the sharding of a result is ambiguous, JAX raises an error, and you choose it with `out_sharding`. `jax.reshard` changes a sharding, also inside `jit`.

# %%
explicit = jax.make_mesh((4, 2), ("a", "b"), devices=eight)  # Explicit is the default
with jax.set_mesh(explicit):
    left_typed, right_typed = jax.device_put(x, P(None, "a")), jax.device_put(x, P("a", None))
    print(jax.typeof(left_typed), "@", jax.typeof(right_typed))
    print_error(lambda: left_typed @ right_typed)
    in_explicit = jnp.matmul(left_typed, right_typed, out_sharding=P("a", None))
    print(jax.typeof(in_explicit), "resharded:", jax.typeof(jax.reshard(in_explicit, P("a", "b"))))

# %% [markdown]
# In Manual mode, you write a function for one device with `jax.shard_map`. The function receives shards, and calls the collective itself.


# %%
def product_of_shards(left, right):
    print("one device multiplies", left.shape, "by", right.shape)
    return jax.lax.psum(left @ right, "a")  # an all-reduce along a


manual = jax.shard_map(product_of_shards, mesh=mesh, in_specs=(P(None, "a"), P("a", None)), out_specs=P())
in_manual = manual(left, right)
print("equal:", [bool(jnp.array_equal(np.asarray(one), x @ x)) for one in (in_auto, in_explicit, in_manual)])

# %% [markdown]
# [Lesson 17](17_explicit_sharding.ipynb) teaches Explicit mode and compares the three modes on a transformer block. [Lesson 19](19_shard_map.ipynb) teaches Manual mode.
#
# ## Deeper: how the compiler partitions a program
# `jit` passes a program for whole arrays to the compiler, annotated with shardings. The compiler returns a program for *one device*, which all eight run.

# %%
import re

lowered = jax.jit(lambda t: t.T @ t, out_shardings=rows).lower(table)
print(lowered.as_text())
compiled = lowered.compile().as_text()  # printed without metadata
print(re.sub(r", (metadata|use_global|channel_id|to_apply)[^\n]*", "", compiled[compiled.index("ENTRY") :]))

# %% [markdown]
# The first program has the shapes of whole arrays, such as `16x64`. Arguments and results are annotated with `sdy.sharding`. **Shardy** *propagates* these annotations from operation to operation until every value has a sharding, and resolves conflicts between them. XLA's SPMD partitioner then divides the operations and inserts the collectives. So the second program has the shapes of shards, such as `[2,64]`. It is compiled once, and each device runs it on its own shards. SPMD stands for single program, multiple data.
#
# Older versions of JAX used **GSPMD** for propagation. Its notation is still visible in the second program, where `devices=[8,1]<=[8]` means a grid of 8 by 1 shards on the devices in order.

# %% [markdown]
# ## Deeper: how much faster?
# We time a matrix product on one device, and then with the rows of its first argument sharded over eight devices. For comparison, we also time an eighth of the rows on one device.

# %% [markdown] predict="sharding-speed"
# How fast are eight *simulated* devices, compared with one device?
#
# - [x] about as fast when the array is large, much slower when it is tiny | Right. They do the same work on the same cores, and starting eight programs takes additional time.
# - [ ] up to eight times as fast when it is large, about as fast when it is tiny | They are parts of one processor, and one device already uses all its cores.
# - [ ] much slower, as each of the eight has to be started and waited for | Starting eight programs takes a fraction of a millisecond, which does not matter in a long computation.

# %%
multiply = jax.jit(jnp.matmul)
sizes = (16, 256, 1024)
times = {"one device": [], "eight devices": [], "an eighth on one device": []}
for size in sizes:
    square = jnp.ones((size, size))
    part, row_sharded, copies = square[: size // 8] + 0, jax.device_put(square, rows), jax.device_put(square, whole)
    arguments = ((square, square), (row_sharded, copies), (part, square))
    took = time_ms(*(lambda pair=pair: multiply(*pair) for pair in arguments), repeats=15)
    for name, milliseconds in zip(times, took, strict=True):
        times[name].append(milliseconds)

# %%
_, axes = plots.subplots(height=2.8)
for i, (name, milliseconds) in enumerate(times.items()):
    fill, hatch = plots.FILLS[i]
    places = np.arange(len(sizes)) + 0.27 * (i - 1)
    bars = axes.bar(places, milliseconds, 0.25, label=name, color=fill, hatch=hatch, edgecolor=plots.INK)
    axes.bar_label(bars, [f"{one:.2g}" for one in milliseconds], padding=2)
axes.set_xticks(range(len(sizes)), [f"{size} x {size}" for size in sizes])
axes.set(yscale="log", ylabel="median time in ms")
axes.set_ylim(top=20 * max(map(max, times.values())))
axes.legend(loc="upper left", ncols=3)
listed = [f"{name}: {', '.join(f'{one:.2g}' for one in took)}" for name, took in times.items()]
plots.show(f"Median times in ms of products of size {', '.join(map(str, sizes))}. {'; '.join(listed)}.")

# %%
for name, pair in (("one device", (square, square)), ("eight devices", (row_sharded, copies))):
    print(f"{name}: {flops(multiply, *pair):,.0f} flops on each device")

# %% [markdown]
# Each of eight devices performs an eighth of the operations. Simulated devices show what each device stores, computes and communicates, although the compiler for an accelerator may choose other collectives. They cannot show a speedup. The third bar is the time of one device's share. Eight real devices could reach it if starting them took no time.
#
# On simulated devices, compare shardings by their bytes and their communication, never by their time.

# %% [markdown]
# ## Deeper: from PositionalSharding
# Older code may use a `PositionalSharding`, a class that JAX has removed. It was an array of devices without axis names, and code reshaped it until its axes matched those of the data. `replicate` merged one of its axes into a single entry, and all devices of this entry stored the same shard. The titles below are old expressions for `s = PositionalSharding(devices).reshape(4, 2)`. Below each picture is the spec that replaces the expression, on a mesh with the axes `a` of 4 and `b` of 2.

# %%
replacements = {
    "s": P("a", "b"),
    "s.replicate(0)": P(None, "b"),
    "s.replicate(1)": P("a", None),
    "s.replicate(0).T": P("b", None),
    "s.reshape(8, 1)": P(("a", "b"), None),
    "s.replicate()": P(),
}
plots.show_shardings(
    {old: (NamedSharding(mesh, spec), (8, 8)) for old, spec in replacements.items()},
    "Old expressions and the specs that replace them.",
)

# %% [markdown]
# `replicate(0)` creates copies along **a**, the axis that it merges. So the equivalent spec does not contain `a`. `replicate` takes the axis along which there are copies, while a spec names the axes along which there are none.

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `PositionalSharding(devices).reshape(...)`, `.replicate(...)` | `NamedSharding(mesh, P(...))` |
# | `mesh_utils.create_device_mesh((4, 2))`, then `Mesh(devices, names)` | `jax.make_mesh((4, 2), names)`. Its axes are Explicit by default, and those of `Mesh` are Auto |
# | `with mesh:`, `jax.sharding.use_mesh` | `jax.set_mesh(mesh)` |
# | `pjit(f, in_axis_resources=..., out_axis_resources=...)` | `jax.jit(f, in_shardings=..., out_shardings=...)` |
# | `PartitionSpec` from `jax.experimental` or `jax.interpreters.pxla` | `jax.sharding.PartitionSpec` or `jax.P` |
# | `x.device_buffers`, `x.sharding_spec` | `x.addressable_shards`, `x.sharding` |
# | `mhlo.sharding` in lowered programs (GSPMD) | `sdy.sharding` (Shardy) |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | devices in a grid with named axes | `jax.make_mesh((4, 2), ("a", "b"), axis_types=...)` |
# | a sharded array | `jax.device_put(x, NamedSharding(mesh, P("a", "b")))` |
# | a bare `P` | `with jax.set_mesh(mesh): jax.device_put(x, P("a", "b"))` |
# | copies along `b` | a spec that does not name `b` |
# | to see a sharding | `x.sharding`, `x.addressable_shards`, or as text `jax.debug.visualize_array_sharding(x)` |
# | a sharding for a result | `jax.jit(f, out_shardings=...)` |
# | a sharding for an intermediate value | `jax.lax.with_sharding_constraint` |
# | to know what is communicated | `jax.jit(f).lower(x).compile().as_text()` |
#
# | the partitioned axis | communication |
# |---|---|
# | stays in the result | none |
# | is summed | all-reduce, or reduce-scatter if the sums should be sharded |
# | is gathered on every device | all-gather |
# | is gathered while another axis is partitioned | all-to-all |
# | is shifted | collective-permute |
#
# In the first exercise, only two lines are missing.
