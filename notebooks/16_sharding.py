# %% [markdown]
# # 16 · Sharding: one array on many devices
#
# *Fifty minutes, then [the exercises](../exercises/16_sharding/16_sharding.ipynb).* Afterwards you can lay an array out on any mesh of devices and draw where it lies; read the messages of placements that are refused; say what a computation has to send before you run it, and read off the compiled program what it does send; make arrays in pieces, pad those that do not divide; and say what eight simulated devices prove about speed.
#
# **Assumed.** Devices and `device_put` (01), `jit` (03), pytrees and `eval_shape` (06), keys (07). Recall before you go on; answer first, then open the fold.
#
# 1. From 01: `free = jnp.ones(3)`, `placed = jax.device_put(jnp.ones(3), second)`. Where does `free + placed` run, and what is refused?
#
# <details><summary>Answer</summary>
#
# On `second`: what nobody placed follows what somebody did. Two arrays that were committed to different devices are refused.
# </details>
#
# 2. From 06: what does `jax.eval_shape(init, key)` give, and what does it cost?
#
# <details><summary>Answer</summary>
#
# The tree that `init` would return, with a `ShapeDtypeStruct` for each array. No number is computed, no memory is taken.
# </details>
#
# 3. From 07: eight devices are to draw an eighth of a random array each. What must they tell each other?
#
# <details><summary>Answer</summary>
#
# Nothing. Number i is a function of the key and of i; each has the key.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import math
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

eight = list(devices.mesh((8,), ("all",)).devices)
jax.config.update("jax_default_device", eight[0])  # what nobody places goes to the first of them
print(len(eight), "x", eight[0].device_kind)


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error without the long names of meshes."""
    try:
        call()
    except Exception as problem:
        text = re.sub(r"NamedSharding\(mesh=.*?spec=(P\(.*?\)), memory_kind=\w+\)", r"\1", str(problem))
        print(f"{type(problem).__name__}: {text[:330]}\n")
    else:
        print("No error!")


def travels(name, function, *arguments, **options):
    """Prints where a function's result lies, and each collective of the compiled program with the numbers it leaves a device."""
    compiled = jax.jit(function, **options).lower(*arguments).compile()
    kinds = "all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute"
    found = []
    for made, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", compiled.as_text()):
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for dims in re.findall(r"\[([\d,]*)\]", made)]
        found.append(f"{kind}, {sum(sizes):,} numbers")
    result, place = jax.eval_shape(function, *arguments), compiled.output_shardings
    print(
        f"{name:30s} {place.spec!s:13s} pieces {place.shard_shape(result.shape)!s:8s} travels: {'; '.join(found) or 'nothing'}"
    )


# %% [markdown]
# ## The question: who has what, and who has to ask?
# An array is too large for one device, or too slow. You have eight. Two questions decide everything that follows in this course: **which device holds which part**, and **what must travel when they compute**. You answer the first; the compiler derives the second from it.
#
# A **mesh** gives the devices coordinates: an array of devices whose axes have names.

# %%
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=eight)
print(mesh)
print(np.vectorize(lambda device: device.id)(mesh.devices))

# %% [markdown]
# On real hardware `make_mesh` puts devices next to each other that have a fast connection. `axis_types`: the default is **Explicit**, where shardings are part of an array's type (17). With **Auto** axes the compiler fills in all that you do not say, so code written for one device runs as it is, and we can watch what placement alone does. This lesson and 18 take Auto.
#
# ## A spec names axes
# `P("a", "b")` has an entry for each axis of the *array*: the axis of the *mesh* that cuts it, a tuple of them, or `None`. With a mesh it is a `NamedSharding`, and `device_put` takes that as it takes a device.

# %% [markdown] predict="sharding-p-ba"
# `x` is `(8, 8)`. What does device 1 hold under `P("b", "a")`? In the mesh it stands in row 0, column 1: a = 0, b = 1.
#
# - [ ] rows 0 and 1, columns 4 to 7 | That is `P("a", "b")`: there a cuts the rows.
# - [x] rows 4 to 7, columns 0 and 1 | Right: b cuts the rows in two, and device 1 has b = 1; a cuts the columns in four, and it has a = 0.
# - [ ] rows 0 to 3, columns 2 and 3 | That would be device 2, with a = 1 and b = 0.

# %%
x = jnp.arange(64.0).reshape(8, 8)
specs = P("a", "b"), P("b", "a"), P(("a", "b"), None), P("a", None), P(None, "b"), P()
for spec in specs:
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    shard = placed.addressable_shards[1]
    print(
        f"{spec!s:20s} on device {shard.device.id}: {shard.data.shape!s:7s} from {shard.index}, copy {shard.replica_id}"
    )
    jax.debug.visualize_array_sharding(placed, use_color=False)

# %% [markdown]
# The six, side by side:
#
# ![A mesh of 4 by 2 devices, numbered 0 to 7, with the axes a and b, and six layouts. P(a, b): 4 by 2 pieces, one on each device. P(b, a): 2 by 4 pieces. P((a, b), None): 8 pieces one under the other. P(a, None): 4 pieces, the first on 0 and 1, the next on 2 and 3, and so on. P(None, b): 2 pieces side by side, on the even and on the odd devices. P(): all on each.](../images/sharding_layouts.svg)
#
# For all other purposes `placed` is the array that it was: same shape, same numbers, `np.asarray(placed)` collects it. Look at the lower half: **an axis of the mesh that no entry names makes copies**. `P("a", None)` says nothing of b, so the two devices of a row hold the same rows. Replication is not a command, it is what is left over. And **in a tuple the first name is the outermost**: `P(("a", "b"))` hands the eight pieces to the devices 0, 1, 2, and so on, `P(("b", "a"))` to 0, 2, 4, 6 first (b = 0), then to 1, 3, 5, 7.
#
# The arithmetic needs no array at all, so a plan for a table of terabytes is free:

# %%
for spec in specs:
    sharding = NamedSharding(mesh, spec)
    piece = sharding.shard_shape((2**20, 2**20))
    print(f"{spec!s:20s} {piece!s:18s} {piece[0] * piece[1] * 4 / 2**30:7,.0f} GiB on each device")
one, other = NamedSharding(mesh, P("a")), NamedSharding(mesh, P("a", None))
print("P('a') == P('a', None):", one == other, "  equivalent for two axes:", one.is_equivalent_to(other, 2))

# %% [markdown]
# The last line is a trap for tests: compare with `is_equivalent_to`, or compare what the devices hold.
#
# ## Placements that are refused
# A spec must be **congruent** with the array: no more entries than the array has axes, and each axis a multiple of the number of pieces.

# %%
refusal(lambda: jax.device_put(x, NamedSharding(mesh, P("a", None, "b"))))
refusal(lambda: jax.device_put(x[:6], NamedSharding(mesh, P("a", "b"))))
refusal(lambda: jax.device_put(x, NamedSharding(mesh, P("a", "a"))))

# %% [markdown]
# Read them from the end. *Valid for values of rank at least 3, applied to rank 2*: three entries, two axes; often a batch axis that is not there. *Partitioned 4 times, but the dimension size is 6*: the mesh's a is 4; the tiling factors are pieces along each axis. *Duplicate entries*: the same axis of the mesh cannot give a device coordinates twice. (Fewer entries than axes are fine: the rest is `None`.)
#
# ## Computation follows data
# Nobody tells `jit`, or a plain `@`, where to run. It runs where its arguments lie, and every device works on what it has. So a product needs no more words than its two sides have: the left one cut into rows, the right one into columns.

# %% [markdown] predict="sharding-dot"
# `lhs @ rhs` with `lhs` under `P("a", None)` and `rhs` under `P(None, "b")`. What has to travel?
#
# - [ ] all of both | On one device it would need both. Here each of eight makes only its piece of the result.
# - [ ] the parts of the sums | The axis that is summed is not cut: each device has whole rows and whole columns.
# - [x] nothing | Right: the piece (i, j) needs the rows i and the columns j, and the device at (i, j) holds just these.

# %%
put = lambda array, *spec: jax.device_put(array, NamedSharding(mesh, P(*spec)))
travels("lhs @ rhs", jnp.matmul, put(x, "a", None), put(x, None, "b"))
product = put(x, "a", None) @ put(x, None, "b")
jax.debug.visualize_array_sharding(product, use_color=False)
print("the same numbers:", np.array_equal(product, x @ x))

# %% [markdown]
# ![lhs at rhs, twice. Above: rows of lhs cut along a, columns of rhs along b; device 5 has the row block 2 and the column block 1 and makes its piece alone. Below: the summed axis is cut, columns of lhs and rows of rhs along a; each device has a table of the full size with a part of every sum, and an all-reduce adds them up.](../images/sharding_dot.svg)
#
# The same product of the same arrays, placed in other ways:

# %%
for left, right in (P("a"), P()), (P(None, "a"), P("a")), (P(), P("a")), (P("a"), P("a")):
    travels(f"{left!s:13s} @ {right}", jnp.matmul, put(x, *left), put(x, *right))

# %% [markdown]
# Cut where nothing is summed: free. The summed axis cut the same way on both sides: every device has a part of every sum, and an **all-reduce** adds them. The summed axis cut on one side only, as in the last two: something is **gathered** first, and each device holds, for a moment, more than its share.
#
# That is the whole trade: *it always runs, and the layout decides what it costs.* What never runs is a computation whose arguments lie on different devices:

# %%
four = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,), devices=eight[:4])
refusal(lambda: put(x, "a") + jax.device_put(x, NamedSharding(four, P("a"))))
refusal(lambda: put(x, "a") + jax.device_put(x, eight[1]))
print("with an array that nobody placed:", (put(x, "a") + jnp.ones((8, 8))).sharding.spec)

# %% [markdown]
# Sets of devices must agree, specs need not. The usual cause of the second message is a batch put on one device by hand.
#
# ## The five collectives
# Nearly all that devices ever say to each other is one of these:
#
# ![Five collectives on four devices, before and after. All-gather: each has a piece, then all have all pieces. All-reduce: each has a part of every sum, then all have all sums. Reduce-scatter: the same, then each has one piece of the sums. All-to-all: each has a row of pieces, then each has a column of them. Collective-permute: each hands its piece to its neighbour.](../images/sharding_collectives.svg)

# %% [markdown] predict="sharding-collectives"
# `table` is `(16, 64)`, rows cut into eight. Which of these needs **no** message?
#
# - [x] `table.T` | Right: a piece transposed is a piece of the transpose. The result is just called `P(None, "d")`.
# - [ ] `table.sum(0)` | Sums down the rows, and the rows are apart: the parts have to be added.
# - [ ] `jnp.roll(table, 1, axis=0)` | Each device's last row belongs to the next device now.

# %%
line = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,), devices=eight)
rows, columns, whole = (NamedSharding(line, spec) for spec in (P("d", None), P(None, "d"), P()))
table = jax.device_put(jnp.arange(1024.0).reshape(16, 64), rows)
same = lambda t: t
for name, function, asked in (
    ("sin, row means", lambda t: jnp.sin(t).mean(1), None),
    ("transpose", jnp.transpose, None),
    ("wanted whole", same, whole),
    ("sum down the rows", lambda t: t.sum(0), None),
    ("such sums, cut", lambda t: t.sum(0), NamedSharding(line, P("d"))),
    ("rows to columns", same, columns),
    ("shift by a row", lambda t: jnp.roll(t, 1, axis=0), None),
):
    travels(name, function, table, **({} if asked is None else {"out_shardings": asked}))

# %% [markdown]
# The numbers are those that one device is left with: 64 sums, however many were added. Two things to keep. Each device adds up what it has **before** it sends: 64 sums travel, not 1,024 numbers. And "such sums, cut" is a reduce-scatter by its nature; the CPU's compiler writes it as an all-reduce, and cuts afterwards, those for accelerators reduce-scatter. When you read programs, take either.
#
# ## Who decides: annotations, then a partitioner
# What `jit` hands to the compiler is still the program for one device, with remarks. What comes back is the program of *one of eight*:

# %%
lowered = jax.jit(lambda t: t.T @ t, out_shardings=rows).lower(table)
print(lowered.as_text())
compiled = lowered.compile().as_text()
print(re.sub(r", (metadata|use_global|channel_id|to_apply)[^\n]*", "", compiled[compiled.index("ENTRY") :]))

# %% [markdown]
# Before: shapes of whole arrays, `(16, 64)`, and `sdy.sharding` on arguments and results. That is **Shardy**, which carries these remarks along every operation until each value has a layout (it *propagates*), where wishes collide picks one, and leaves the cutting and the collectives to the SPMD partitioner. Older JAX left the propagation to **GSPMD** too; in the second program the parameter still has its notation, `devices=[8,1]<=[8]`: a grid of 8 by 1 pieces, on the devices in order. One program, compiled once, run by all (**S**ingle **P**rogram, **M**ultiple **D**ata), each on `(2, 64)`.
#
# ## Saying it: in, out, and in between

# %% [markdown] predict="sharding-in"
# `f = jax.jit(jnp.sin, in_shardings=rows)`. Which call is refused?
#
# - [ ] `f(np.ones((16, 64)))` | Nobody placed it, so `f` does, as rows.
# - [x] `f(jax.device_put(table, columns))` | Right: you placed it and now say it lies elsewhere. JAX does not guess which of the two you meant.
# - [ ] both: `in_shardings` is checked | It is a promise about what was placed, and an order for what was not.

# %%
f = jax.jit(jnp.sin, in_shardings=rows)
print("from NumPy:", f(np.ones((16, 64), np.float32)).sharding.spec)
refusal(lambda: f(jax.device_put(table, columns)))
middle = jax.jit(lambda t: jax.lax.with_sharding_constraint(jnp.sin(t), columns) + 1)
print("with_sharding_constraint:", middle(table).sharding.spec)

# %% [markdown]
# Most code needs no `in_shardings`: place the data, and `jit` follows. `out_shardings` is for what nothing decides otherwise, `with_sharding_constraint` for a value in the middle.
#
# What nothing decides otherwise: **arrays that are born**. A table made on one device and cut afterwards has to fit there first. Read it off the programs:

# %%
draw = lambda key: jax.random.normal(key, (4096, 1024))
for name, options in (("nothing said", {}), ("out_shardings=rows", {"out_shardings": rows})):
    memory = (
        jax.jit(draw, **options).lower(jax.ShapeDtypeStruct((), jax.random.key(0).dtype)).compile().memory_analysis()
    )
    print(
        f"{name:19s} result {memory.output_size_in_bytes:10,} bytes, scratch {memory.temp_size_in_bytes:10,}, on each device"
    )

# %% [markdown]
# For a tree of arrays, `out_shardings` takes a tree of shardings, and `eval_shape` (06) says what that tree looks like before anything exists. The last exercise does it.
#
# ## Sizes that do not divide
# Outside `jit` a layout that does not divide is an error. Inside, values may have any size: the compiler pads. That leaves the border, where they come out.

# %% [markdown] predict="sharding-uneven"
# `table` has 16 rows on eight devices. `jax.jit(lambda t: jnp.diff(t, axis=0))(table)` has 15. Where do they lie?
#
# - [ ] two rows on seven devices, one on the last | What leaves a program has pieces of one size on all devices.
# - [ ] an error | Nobody asked for a layout of the result, so none is refused.
# - [x] all 15 rows on every device | Right: a wish that does not divide is dropped. Nothing says so.

# %%
travels("diff", lambda t: jnp.diff(t, axis=0), table)
travels("15 rows, with a constraint", lambda t: jax.lax.with_sharding_constraint(t[:15], rows), table)
travels("diff that wraps around", lambda t: jnp.roll(t, -1, axis=0) - t, table)
refusal(lambda: jax.jit(lambda t: t[:15], out_shardings=rows)(table))

# %% [markdown]
# At the border the compiler gives way. The first two are silent, and gather all rows (1,024 numbers are 16 rows: one is padding); the third makes 16 rows, of which the last is to be ignored, and one row travels. `out_shardings` is loud, so prefer it where a result leaves. For data: pad to a multiple, carry a mask, and let no padding into a mean (an exercise).
#
# ## How much faster?
# Tutorials like to time one operation on a large array, whole and cut. So do we, with a product: all of it on one device, its rows cut over eight, and, for comparison, an eighth of the rows alone on one.

# %% [markdown] predict="sharding-speed"
# With eight *simulated* devices, against one device:
#
# - [x] about as fast when the array is large, much slower when it is tiny | Right: the same work on the same cores, plus the start of eight runs.
# - [ ] up to eight times as fast when it is large, about as fast when it is tiny | They are parts of one processor, whose cores one device uses already.
# - [ ] much slower, as each of the eight has to be started and waited for | Starting eight runs costs a fraction of a millisecond. In a long computation you do not see it.


# %%
def in_turns(calls, repeats=15):
    """The fastest run of each call in ms. They take turns, as other programs on the machine can only slow them down."""
    times = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, arguments in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(multiply(*arguments))
            if turn:  # the first run compiles
                times[name].append(1e3 * (time.perf_counter() - start))
    return "".join(f"   {name} {min(took):6.2f} ms" for name, took in times.items())


multiply = jax.jit(jnp.matmul)
for size in (16, 256, 1024):
    big = jnp.ones((size, size))
    cut = jax.device_put(big, rows), jax.device_put(big, whole)
    print(
        f"{size:4d}",
        in_turns({"one device": (big, big), "cut over eight": cut, "an eighth alone": (big[: size // 8] + 0, big)}),
    )
for name, arguments in (("one device", (big, big)), ("cut over eight", cut)):
    print(f"{name}: {multiply.lower(*arguments).compile().cost_analysis()['flops']:,.0f} flops on each device")

# %% [markdown]
# What simulated devices show: what each device stores, does and sends (an eighth of the flops), and what a run costs when there is next to nothing to do. What they cannot show: that eight are faster. The last column is the time that eight real ones, each with its eighth, could reach if nothing else cost anything; if your first two columns differ by as much, your devices are real. Never tune a layout on simulated devices by the clock: count bytes and messages instead.
#
# ## From PositionalSharding
# Older code has no names. A `PositionalSharding` *is* an array of devices, reshaped until its axes stand under those of the array; `replicate` merges an axis of it. On the mesh above:
#
# | then, with `s = PositionalSharding(devices).reshape(4, 2)` | now |
# |---|---|
# | `s` | `P("a", "b")` |
# | `s.replicate(0)`: axis 0 of the devices merged into one cell | `P(None, "b")` |
# | `s.replicate(1)` | `P("a", None)` |
# | `s.replicate(0).T` | `P("b", None)` |
# | `s.reshape(8, 1)` | `P(("a", "b"), None)` |
# | `s.replicate()` | `P()` |
#
# Note where `replicate(0)` puts the copies: along **a**, since a is what it merges. What it names is gone; a spec names what stays.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | names for devices | `jax.make_mesh((4, 2), ("a", "b"), axis_types=...)` |
# | an array in pieces | `jax.device_put(x, NamedSharding(mesh, P("a", "b")))` |
# | rows over all eight | `P(("a", "b"), None)` |
# | copies along b | do not name b |
# | to see it | `jax.debug.visualize_array_sharding(x)`, `x.sharding`, `x.addressable_shards` |
# | to plan it | `sharding.shard_shape(shape)` |
# | a result somewhere | `jax.jit(f, out_shardings=...)`: loud where it does not divide |
# | a value inside somewhere | `jax.lax.with_sharding_constraint`: silent where it does not |
# | to know what travels | `jax.jit(f).lower(x).compile().as_text()` |
#
# | the axis that is cut | what travels |
# |---|---|
# | is carried along | nothing |
# | is summed | all-reduce; reduce-scatter if the sums may stay in pieces |
# | should be whole | all-gather |
# | should be another | all-to-all |
# | is shifted | collective-permute |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `PositionalSharding(devices).reshape(...)`, `.replicate(...)` | `NamedSharding(mesh, P(...))` |
# | `mesh_utils.create_device_mesh((4, 2))`, `Mesh(devices, names)` | `jax.make_mesh((4, 2), names)`; its axes are Explicit unless told otherwise |
# | `with mesh:`, `jax.sharding.use_mesh` | `jax.set_mesh(mesh)`; a NamedSharding needs neither |
# | `pjit(f, in_axis_resources=..., out_axis_resources=...)` | `jax.jit(f, in_shardings=..., out_shardings=...)` |
# | `PartitionSpec` imported from `jax.experimental` or `jax.interpreters.pxla` | `jax.sharding.PartitionSpec`, also `jax.P` |
# | `x.device_buffers`, `x.sharding_spec` | `x.addressable_shards`, `x.sharding` |
# | `mhlo.sharding` in the lowered text (GSPMD) | `sdy.sharding` (Shardy) |
#
# Next: the exercises. The first has two lines missing.
