# %% [markdown]
# # 17 · Explicit sharding: shardings in types
#
# *The core takes about 35 minutes. Seven "Deeper" sections can be skipped. Then do [the exercises](../exercises/17_explicit_sharding/17_explicit_sharding.ipynb).* After the core, you can read the sharding of a value from its type, resolve the errors that JAX raises for ambiguous shardings, and compare a model in Auto, Explicit and Manual mode.
#
# **Prerequisites.** Gradients (lesson 04), `vmap` (05), `scan` (08), meshes, specs and collectives (16). Try to answer these questions from memory.
#
# 1. From 16: `lhs` has the spec `P(None, "a")` and `rhs` has `P("a", None)`. What do the devices communicate to compute `lhs @ rhs`?
#
# <details><summary>Answer</summary>
#
# An all-reduce. The summed axis is partitioned, so each device computes partial sums.
# </details>
#
# 2. From 16: What changes when you set a mesh with `jax.set_mesh(mesh)`?
#
# <details><summary>Answer</summary>
#
# Functions that take a sharding accept a bare `P`, and new arrays are replicated on the devices of the mesh.
# </details>
#
# 3. From 08: Which properties of the carry of `jax.lax.scan` must stay the same in every iteration?
#
# <details><summary>Answer</summary>
#
# Its structure, shapes and dtypes.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.learning import plots
from grader.learning.inspection import bytes_on_device, print_collectives, print_error

eight = list(devices.mesh((8,), ("all",)).devices)

# %% [markdown]
# ## How is an intermediate value sharded?
# In lesson 16, you sharded the arguments of a program, and the compiler chose the sharding of everything else. **How is an intermediate value of your program sharded?** On Auto axes, your function cannot find out, because the compiler decides after JAX has traced it.

# %%
x, w = np.ones((8, 16), np.float32), np.ones((16, 32), np.float32)


@jax.jit
def layer(x, w):
    hidden = jnp.tanh(x @ w)
    print("type of hidden:", jax.typeof(hidden))
    return hidden


auto = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=eight)
with jax.set_mesh(auto):
    result = layer(jax.device_put(x, P("data", None)), jax.device_put(w, P(None, "model")))
print("the result is stored as", result.sharding.spec)

# %% [markdown]
# `jax.typeof` returns the type that JAX has for a value. Here it contains the dtype and the shape. A concrete array has the attribute `sharding`, but `hidden` is only a tracer.
#
# On an **Explicit** axis ([axis types](../docs/glossary.md#axis-type)), the sharding is part of the type. JAX computes it during tracing. `jax.make_mesh` creates Explicit axes by default, and this notebook uses the following mesh from now on.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"), devices=eight)
jax.set_mesh(mesh)  # for the rest of the notebook
x, w = jax.device_put(x, P("data", None)), jax.device_put(w, P(None, "model"))
print("types of x and w:", jax.typeof(x), jax.typeof(w))
result = layer(x, w)
plots.show_shardings({"x": x, "w": w, "result": result}, "The arguments and the result of the layer.")

# %% [markdown]
# `8@data` is an axis of size 8 that is partitioned along the mesh axis `data`. The array is replicated along each mesh axis that its type does not contain. The shape is that of the whole array.
#
# ## Every operation has a sharding rule
# A rule computes the type of a result from the types of the arguments. For most operations, only one result is reasonable.

# %% [markdown] predict="explicit-outer-sum"
# `column` has the type `float32[8@data,1]` and `row` the type `float32[1,8@model]`. What is the type of `column + row`?
#
# - [ ] `float32[8,8]`, because the specs of the two arguments differ | They do not conflict. Each of them partitions a different axis of the result.
# - [x] `float32[8@data,8@model]` | Right. Each axis of the result is sharded like the argument that has this axis. Each device adds its part of the column to its part of the row.
# - [ ] none, JAX raises an error | An error would be raised if both arguments used the same mesh axis.

# %%
column = jax.device_put(np.ones((8, 1), np.float32), P("data", None))
row = jax.device_put(np.ones((1, 8), np.float32), P(None, "model"))
table = column + row
print("column + row ", jax.typeof(table))
print("sin(table).T ", jax.typeof(jnp.sin(table).T))
print("table.sum(0) ", jax.typeof(table.sum(0)))
print("table + ones ", jax.typeof(table + jnp.ones((8, 8))))

# %% [markdown]
# For each axis of the result, JAX compares the matching axes of the arguments.
#
# 1. If no matching axis is partitioned, the axis of the result is not partitioned.
# 2. If the partitioned axes agree, the axis of the result is partitioned in the same way.
# 3. If two are partitioned differently, JAX raises an error.
# 4. If the result would use a mesh axis twice, JAX raises an error.

# %%
other = jax.device_put(np.ones((1, 8), np.float32), P(None, "data"))
print_error(lambda: table + table.T)  # rule 3
print_error(lambda: column + other)  # rule 4

# %% [markdown]
# The second message shows a result with `data` twice.
#
# ## Change a sharding with reshard
# After such an error, choose a sharding. `jax.reshard` returns the same values with another sharding, also inside `jit`.


# %%
def symmetric(table):
    return table + jax.reshard(table.T, P("data", "model"))


print(jax.typeof(symmetric(table)))
print_collectives(jax.jit(symmetric).lower(table).compile())  # for each collective, the elements on one device

# %% [markdown]
# The transposed blocks move between devices.
#
# In Auto mode, `with_sharding_constraint` chooses the sharding of an intermediate value. On Explicit axes, it is an assertion about the type.

# %%
constrain = jax.lax.with_sharding_constraint
print(jax.typeof(constrain(table, P("data", "model"))))
print_error(lambda: constrain(table, P("model", "data")), length=400)

# %% [markdown]
# ## Ambiguous products
# In a matrix product, the summed axis may be partitioned on both sides. Then each device computes partial sums, and several shardings of the result are reasonable.

# %% [markdown] predict="explicit-contraction"
# `a` has the type `float32[8,8@data]` and `b` the type `float32[8@data,8]`. In Auto mode, the compiler adds the partial sums with an all-reduce. What happens to `a @ b` in Explicit mode?
#
# - [ ] an all-reduce, with the type `float32[8,8]` | This is one of several reasonable results, so JAX does not choose it for you.
# - [x] an error that asks for the sharding of the result | Right. The sums could be replicated, partitioned along one of the two axes, or left as partial sums.
# - [ ] no communication, and each device keeps its part of the sums | This is possible too, but only if you request it.

# %%
a = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), P(None, "data"))
b = jax.device_put(np.ones((8, 8), np.float32), P("data", None))
print_error(lambda: a @ b, length=400)

# %% [markdown]
# The message calls the summed axis a contracting dimension and names its mesh axis on each side. `jnp.matmul`, `jnp.dot` and `jnp.einsum` take the argument `out_sharding`.
#
# ![A product of two matrices on two devices, with the summed axis partitioned. Each device multiplies its columns of the left matrix by its rows of the right one and has a table of partial sums. Three results are possible. With out_sharding P(), an all-reduce gives both devices all sums. With P("data"), a reduce-scatter gives each device half of the rows. With unreduced, nothing is communicated and each device keeps its partial sums.](../images/explicit_contraction.svg)

# %%
for spec in (P(), P("data", None), P(None, "data"), P("data", "model")):
    multiply = functools.partial(jnp.matmul, out_sharding=spec)
    print(f"{jax.typeof(multiply(a, b))!s:25s} ", end="")
    print_collectives(jax.jit(multiply).lower(a, b).compile())

# %% [markdown]
# The number counts the elements that the collective returns on one device. For the second and the third result, a GPU or TPU can use a reduce-scatter. The compiler for CPUs uses an all-reduce, and each device keeps its shard. In the last program, each device needs only half of the columns.
#
# ## Types do not show every communication
# JAX raises an error if the *sharding of the result* is ambiguous. Otherwise, the compiler inserts the communication that the computation needs.

# %%
quiet = {
    "table.sum(0)": (lambda t: t.sum(0), table),
    "table @ whole": (lambda t: t @ jnp.ones((8, 8)), table),
    "whole @ b": (lambda b: jnp.ones((8, 8)) @ b, b),
    "table.reshape(-1)": (lambda t: t.reshape(-1), table),
}
for name, (function, argument) in quiet.items():
    print(f"{name:18s} {jax.typeof(function(argument))!s:25s} ", end="")
    print_collectives(jax.jit(function).lower(argument).compile())

# %% [markdown]
# In the two products, only one side is partitioned along the summed axis, and the compiler gathers it. The reshape puts the rows one after the other, so pairs of devices exchange half rows. Types show how values are stored. The compiled program shows what is communicated.
#
# ## Transformations work on types
# Transformations compute shardings too.

# %% [markdown] predict="explicit-gradient"
# `x` has the type `float32[8@data,16]` and `w` the type `float32[16,32@model]`. What is the type of `jax.grad(loss)(w, x)` for `loss(w, x) = jnp.sum(jnp.tanh(x @ w))`?
#
# - [ ] `float32[16,32]`, because the gradient is a sum over the whole batch | The batch determines what is communicated. The type comes from `w`.
# - [x] `float32[16,32@model]` | Right. The gradient with respect to an argument has the type of this argument.
# - [ ] `float32[16@data,32@model]`, because the backward pass uses x and w | By rule 2, `w` would then have another type after a gradient step.


# %%
def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w))


print("gradient:", jax.typeof(jax.grad(loss)(w, x)))
print_collectives(jax.jit(jax.grad(loss)).lower(w, x).compile())

# %% [markdown]
# So the types of the forward pass determine those of the backward pass. The gradient is replicated along `data`, as `w` is. Therefore the partial sums over the batch are added in an all-reduce.
#
# `vmap` removes the mapped axis from the type, together with its mesh axis. The type of the result has both again.

# %%
print("in the function:", end=" ")
mapped = jax.vmap(lambda row: print(jax.typeof(row)) or jnp.sin(row))(table)
print("result:", jax.typeof(mapped))

# %% [markdown]
# In `scan`, the carry must have the same type in every iteration, and this type includes the sharding.


# %%
def running_sum(start, table):
    return jax.lax.scan(lambda total, _: (total + table, None), start, length=3)[0]


print_error(lambda: running_sum(jnp.zeros((8, 8)), table), length=400)
print(jax.typeof(running_sum(jnp.zeros((8, 8), out_sharding=P("data", "model")), table)))
print(jax.typeof(running_sum(jnp.zeros_like(table), table)))

# %% [markdown]
# `jnp.zeros` has no argument whose sharding it could use, so its result is replicated. Pass `out_sharding`, or use `jnp.zeros_like`. The branches of `jax.lax.cond` also need equal types.
#
# ## Auto islands
# Some operations, such as indexing, sorting or `roll`, have no sharding rule along a partitioned axis.

# %%
rows = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), P("data", None))
print_error(lambda: rows[0])
print_error(lambda: jnp.roll(rows, 1, axis=0))
print("one row:", jax.typeof(rows.at[0].get(out_sharding=P())))

# %% [markdown]
# For indexing, pass the sharding of the result to `.at[...].get(out_sharding=...)`. For other operations, write an [Auto island](../docs/glossary.md#auto-island), a function that the compiler partitions. `jax.sharding.auto_axes` makes all mesh axes Auto inside it, and you state the sharding of its result.


# %%
@jax.sharding.auto_axes
def next_row(rows):
    print("type inside:", jax.typeof(rows))
    return jnp.roll(rows, -1, axis=0)


def replicated_first(rows):
    return jax.reshard(jnp.roll(jax.reshard(rows, P()), -1, axis=0), P("data", None))


island = jax.jit(functools.partial(next_row, out_sharding=jax.typeof(rows).sharding.spec))
print("type outside:", jax.typeof(island(rows)))
for name, function in (("island", island), ("replicated first", jax.jit(replicated_first))):
    print(f"{name:17s} ", end="")
    print_collectives(function.lower(rows).compile())

# %% [markdown]
# In the island, each device sends one row to its neighbour. The other function gathers all rows on every device. An island must receive each JAX array from outside as an argument.
#
# ## One transformer block in three modes
# We now write a transformer block in three modes. In attention ([lesson 25](25_attention.ipynb)), each *head* averages the values of all tokens, with weights from its queries and keys. Heads are independent until the product with `out` sums over them, and hidden units until the product with `down`. We partition both along `model`, and the batch along `data`. So only these two products sum over a partitioned axis. The argument `summed` computes them.

# %%
BATCH, TIME, FEATURES, HEADS, SIZE, HIDDEN = 8, 16, 32, 4, 8, 64


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def block(params, x, summed):
    """Attention and an MLP. x (B, T, D) -> (B, T, D). `summed` is an einsum over a partitioned axis."""
    # An einsum sums over the letters that are missing after the arrow: b example, t and s token, h head, f hidden unit
    query, key, value = jnp.einsum("btd,cdhk->cbthk", norm(x), params["qkv"])
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / math.sqrt(SIZE)
    mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), value)
    x = x + summed("bthk,hkd->btd", mixed, params["out"])  # sums over the heads
    hidden = jax.nn.gelu(norm(x) @ params["up"])
    return x + summed("btf,fd->btd", hidden, params["down"])  # sums over the hidden units


# %%
shapes = {
    "qkv": (3, FEATURES, HEADS, SIZE),
    "out": (HEADS, SIZE, FEATURES),
    "up": (FEATURES, HIDDEN),
    "down": (HIDDEN, FEATURES),
}
specs = {"qkv": P(None, None, "model"), "out": P("model"), "up": P(None, "model"), "down": P("model")}
rng = np.random.default_rng(17)
params = {name: rng.normal(size=shape).astype(np.float32) / math.sqrt(FEATURES) for name, shape in shapes.items()}
tokens = rng.normal(size=(BATCH, TIME, FEATURES)).astype(np.float32)

# %% [markdown]
# In Auto mode, `summed` is `jnp.einsum`. In Explicit mode, it also takes `out_sharding`. In the third mode, Manual, `jax.shard_map` runs the block on the shards of each device, and you call the all-reduce, `jax.lax.psum`, yourself.


# %%
def auto_block(params, x):
    return block(params, x, jnp.einsum)


def explicit_block(params, x):
    return block(params, x, functools.partial(jnp.einsum, out_sharding=P("data", None, None)))


@jax.shard_map(in_specs=(specs, P("data")), out_specs=P("data"), mesh=mesh)
def manual_block(params, x):
    return block(params, x, lambda *arguments: jax.lax.psum(jnp.einsum(*arguments), "model"))


# %% [markdown] predict="explicit-three-modes"
# We compile the three functions. Which program communicates the least?
#
# - [ ] Auto, because the compiler is free to choose | It starts from the same shardings of the arguments, and here it finds the same program.
# - [ ] Manual, because you call every collective yourself | You need an all-reduce where a partitioned axis is summed, as in the other modes.
# - [x] all three communicate the same | Right. Each has one all-reduce after the attention and one after the MLP.

# %%
modes = {"Auto": (auto, auto_block), "Explicit": (mesh, explicit_block), "Manual": (mesh, manual_block)}
programs, results = {}, {}
for name, (its_mesh, function) in modes.items():
    with jax.set_mesh(its_mesh):
        arguments = jax.device_put(params, specs), jax.device_put(tokens, P("data"))
        forward = jax.jit(function).lower(*arguments).compile()
        average = lambda params, x, function=function: jnp.mean(function(params, x) ** 2)
        backward = jax.jit(jax.grad(average)).lower(*arguments).compile()
        programs[name] = forward, backward
        stored = (
            bytes_on_device(arguments),
            bytes_on_device(backward(*arguments)),
            backward.memory_analysis().temp_size_in_bytes,
        )
        results[name] = stored, jax.tree.map(np.asarray, (forward(*arguments), backward(*arguments)))
    print(name)
    print_collectives(forward)

# %% [markdown]
# We also compare the gradients and the bytes on each device. All-reduces of 1,024 elements sum over `model`, and the one of 4,096 sums all gradients over `data`.

# %%
for name, (_, backward) in programs.items():
    print(f"{name}, gradient")
    print_collectives(backward)
    stored, values = results[name]
    print("bytes on each device: {:,} of arguments, {:,} of gradients, {:,} of intermediate values".format(*stored))
    gap = jax.tree.map(lambda one, other: np.abs(one - other).max(), values, results["Auto"][1])
    print(f"largest difference from Auto: {max(jax.tree.leaves(gap)):.0e}")

# %%
from grader.program.hlo import collectives

sent = {name: [one.elements for one in collectives(pair[1].as_text(), 8)] for name, pair in programs.items()}
_, axes = plots.subplots(height=2.2)
for row, sizes in enumerate(sent.values()):
    left = 0
    for i, size in enumerate(sizes):
        axes.barh(row, size, left=left, color=plots.FILLS[i % 2][0], edgecolor=plots.INK)
        axes.text(left + size / 2, row, f"{size:,}", ha="center", va="center")
        left += size
axes.set_yticks(range(len(sent)), list(sent))
axes.set(xlabel="elements of each all-reduce in the gradient's program")
axes.invert_yaxis()
listed = "; ".join(f"{name}: {', '.join(map(str, sizes))}" for name, sizes in sent.items())
plots.show(
    f"The all-reduces of the gradient's program in three modes, as bars with their numbers of elements. {listed}."
)

# %% [markdown]
# Apart from rounding and temporary memory, the programs agree. Auto mode needs the least code. In Explicit mode, you state the sharding of two products and can read every sharding in the types. In Manual mode, the code contains every collective of the forward pass, and `jax.grad` adds the others.
#
# The core ends here.

# %% [markdown]
# ## Deeper: errors and their fixes
# The errors below have a common cause. No rule gives one sharding for the result, and JAX does not choose.


# %%
def show(name, wrong, right):
    """Prints the start of the error of `wrong()`, and the type of `right()`."""
    print(f"-- {name}")
    print_error(wrong, length=200)
    print("fixed:", jax.typeof(right()), "\n")


# %%
halves = jax.reshard(rows, P(("data", "model"), None))
show("different specs", lambda: rows + halves, lambda: jax.reshard(rows, P(("data", "model"), None)) + halves)
product = functools.partial(jnp.matmul, rows.T)
show("a product", lambda: product(halves), lambda: product(jax.reshard(halves, P("data")), out_sharding=P()))
whole = jnp.ones((16, 4))
show(
    "concatenate",
    lambda: jnp.concatenate([rows, whole]),
    lambda: jnp.concatenate([rows, jax.reshard(whole, P("data"))]),
)
split = functools.partial(jnp.reshape, rows, (2, 8, 4))
show("reshape", split, lambda: split(out_sharding=P(None, "data", None)))
half = lambda **options: rows.at[:8].get(**options)
show("a slice", half, lambda: half(out_sharding=P("data", None)))
show("an update", lambda: rows.at[0].set(0), lambda: rows.at[0].set(0, out_sharding=P("data", None)))
show("sort", lambda: jnp.sort(rows, axis=0), lambda: jnp.sort(jax.reshard(rows, P(None, "data")), axis=0))

# %% [markdown]
# In the fix for `sort`, `reshard` partitions the other axis, so that each device has whole columns to sort. Transformations compare the types of several values. Their errors are ordinary `TypeError` and `ValueError` exceptions.

# %%
show(
    "vmap over two arrays",
    lambda: jax.vmap(jnp.add)(rows, whole),
    lambda: jax.vmap(jnp.add)(rows, jax.reshard(whole, P("data", None))),
)
show(
    "cond",
    lambda: jax.lax.cond(True, lambda: rows, lambda: jnp.zeros((16, 4))),
    lambda: jax.lax.cond(True, lambda: rows, lambda: jnp.zeros((16, 4), out_sharding=P("data", None))),
)
show(
    "scan over a partitioned axis",
    lambda: jax.lax.scan(lambda total, row: (total + row, None), jnp.zeros(4), rows)[0],
    lambda: jax.lax.scan(lambda total, row: (total + row, None), jnp.zeros(4), jax.reshard(rows, P()))[0],
)

# %% [markdown]
# The last fix gathers all rows on every device. `scan` processes the rows in order, but they are stored on different devices. If you can, scan over an axis that is not partitioned.
#
# | the message contains | what is wrong | fixes |
# |---|---|---|
# | `illegally sharded result` | the result would use one mesh axis twice | `reshard` one argument, or an island |
# | `incompatible shardings` | two arguments are partitioned differently along one axis | `reshard` one argument |
# | `Contracting dimensions are sharded` | a summed axis is partitioned on both sides | `out_sharding` |
# | `consistent sharding` | a summed axis is partitioned differently on the two sides | `reshard` one argument |
# | `.at[...].get(out_sharding=)` | indexing along a partitioned axis | `.at[...].get(..., out_sharding=...)` |
# | `not divisible` | the axis of the result is not divisible by the mesh axis | an island, or padding (lesson 16) |
# | `equal types` | a carry or a branch changes its type | `out_sharding` or `zeros_like` for the initial value |
# | `should be sharded the same` | `vmap` over axes that are partitioned differently | `reshard` one argument |
#
# ## Deeper: unreduced values
# The third result in the picture of the product is an **[unreduced](../docs/glossary.md#unreduced)** array. Each device stores partial sums in an array of full size. The value is the sum of these arrays along the mesh axis `data`, and the type contains `{U:data}`.

# %%
partial = jnp.matmul(a, b, out_sharding=P(unreduced={"data"}))
print(jax.typeof(partial))
for shard in partial.addressable_shards[::2]:  # those with the first position along "model"
    print(f"device {shard.device.id}: [0, 0] is {np.asarray(shard.data)[0, 0]}")
print("the sum:", jax.reshard(partial, P())[0, 0])

# %% [markdown]
# `reshard` performs the reduction. You can first add unreduced arrays and then reduce only their sum.


# %%
def reduce_twice(a, b):
    first, second = (jnp.matmul(left, b, out_sharding=P()) for left in (a, jnp.cos(a)))
    return first + second


def reduce_once(a, b):
    unreduced = P(unreduced={"data"})
    first, second = (jnp.matmul(left, b, out_sharding=unreduced) for left in (a, jnp.cos(a)))
    return jax.reshard(first + second, P())


for function in (reduce_twice, reduce_once):
    print_collectives(jax.jit(function).lower(a, b).compile())
print("largest difference:", jnp.abs(reduce_twice(a, b) - reduce_once(a, b)).max())
print_error(lambda: jnp.cos(partial))
print_error(lambda: partial * partial)
print_error(lambda: partial - partial)

# %% [markdown]
# In the first program, the compiler merges two all-reduces of 64 elements into one of 128. The second program sends half as much. Only linear operations are allowed, because the cosine of a sum is not the sum of the cosines. In JAX 0.10.2, some linear operations, such as subtraction, have no rule yet. A compiler may reduce the sum only once by itself, but the type guarantees it.
#
# The main use is in the backward pass. A replicated weight has a replicated gradient, so its partial sums are reduced immediately. If you want to delay this reduction, declare the weight **reduced**. It is stored like a replicated array, but its gradient is unreduced.

# %%
print("gradient of a replicated weight:", jax.typeof(jax.grad(loss)(jnp.ones((16, 4)), x)))
weight = jax.reshard(jnp.ones((16, 4)), P(reduced={"data"}))
print("type:", jax.typeof(weight), "  type of its gradient:", jax.typeof(jax.grad(loss)(weight, x)))

# %% [markdown]
# Suppose that a step adds the gradients of five micro-batches in a loop. With a replicated weight, every iteration communicates. With a reduced one, the carry is unreduced, and one reduction follows the loop.

# %%
micro_batches = jax.device_put(np.random.default_rng(0).normal(size=(5, 8, 16)).astype(np.float32), P(None, "data"))


def accumulate(weight, start):
    add = lambda total, batch: (total + jax.grad(loss)(weight, batch), None)
    return jax.reshard(jax.lax.scan(add, start, micro_batches)[0], P())


immediate = jax.jit(lambda w: accumulate(w, jnp.zeros_like(w)))
delayed = jax.jit(
    lambda w: accumulate(jax.reshard(w, P(reduced={"data"})), jax.reshard(jnp.zeros_like(w), P(unreduced={"data"})))
)
replicated = jnp.ones((16, 4))
for function in (immediate, delayed):
    print_collectives(function.lower(replicated).compile())
print("largest difference:", jnp.abs(immediate(replicated) - delayed(replicated)).max())

# %% [markdown]
# | type of an argument | type of its gradient |
# |---|---|
# | partitioned, such as `8@data` | partitioned in the same way |
# | replicated | replicated |
# | reduced, `{R:data}` | unreduced, `{U:data}` |
#
# JAX 0.10.2 does not add a reduced bias to a partitioned batch, and rules for other operations may be missing too.

# %%
print_error(lambda: x + jax.reshard(jnp.ones(16), P(reduced={"data"})))

# %% [markdown]
# The documentation has [more on autodiff and sharding](https://docs.jax.dev/en/latest/301/sharding-ad.html).
#
# ## Deeper: a mode for each axis
# The mode belongs to a mesh axis. A mesh may have Explicit and Auto axes, and `auto_axes` changes only the axes in `axes=`. A type contains the Explicit axes only. The attribute `sharding` of a concrete array also contains the Auto axes.

# %%
mixed_types = AxisType.Explicit, AxisType.Auto
with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=mixed_types, devices=eight)):
    mixed = jax.device_put(np.ones((8, 8), np.float32), P("data", "model"))
    print("type:", jax.typeof(mixed), "  stored as", mixed.sharding.spec)


def inside(table):
    print("type:", jax.typeof(table), "  axis types:", jax.sharding.get_abstract_mesh().axis_types)
    return table * 2


doubled = jax.sharding.auto_axes(inside, axes="model", out_sharding=P("data", "model"))(table)
print("type of the result:", jax.typeof(doubled))

# %% [markdown]
# `explicit_axes` is the opposite of `auto_axes`. It makes axes of an Auto mesh Explicit inside a function, and you state the shardings of the arguments.

# %%
with jax.set_mesh(auto):
    in_auto = jax.device_put(np.ones((8, 8), np.float32), P("data", "model"))
    print("type outside:", jax.typeof(in_auto))
    doubled = jax.sharding.explicit_axes(inside)(in_auto, in_sharding=P("data", "model"))

# %% [markdown]
# `jax.shard_map` makes axes Manual. On Explicit axes, `in_specs` must match the types of the arguments. If you omit it, JAX takes it from the types. The last error shows an island that uses an array from outside that is not an argument.

# %%
double = lambda shard: 2 * shard
print(jax.typeof(jax.shard_map(double, out_specs=P("data", "model"))(table)))
print_error(lambda: jax.shard_map(double, in_specs=P("model"), out_specs=P("model"))(table), length=400)
print_error(lambda: jax.sharding.auto_axes(lambda t: t + table, out_sharding=P())(table), length=270)

# %% [markdown]
# ## Deeper: create parameters in shards
# Create a large parameter in shards, so that no device ever stores all of it. Functions that create arrays take `out_sharding`, including those of `jax.random` and the initializers of `jax.nn`.

# %%
key = jax.random.key(0)
print(jax.typeof(jax.random.normal(key, (16, 8), out_sharding=P("data"))))
print(jax.typeof(jnp.arange(16, out_sharding=P("data"))))
embedding = jax.nn.initializers.normal()(key, (64, 8), out_sharding=P("model", None))
print("embedding:", jax.typeof(embedding), bytes_on_device(embedding), "bytes on a device")

# %% [markdown]
# Lookups in a partitioned table are ambiguous, so state the sharding of the result. Here each device looks up the rows that it has, and an all-reduce combines them.

# %%
words = jax.device_put(np.arange(40, dtype=np.int32).reshape(8, 5), P("data"))
print_error(lambda: embedding[words], length=130)
lookup = lambda table, ids: table.at[ids].get(out_sharding=P("data", None, None))
print(jax.typeof(lookup(embedding, words)))
print_collectives(jax.jit(lookup).lower(embedding, words).compile())

# %% [markdown]
# `jnp.zeros_like` uses the type of its argument. Therefore the state of an optimizer gets the shardings of the parameters, even in a jitted `init`. In Auto mode, these zeros depend on no input of the compiled function, so the compiler replicates them on the devices of the mesh. Without `jax.set_mesh`, they would be on one device (lesson 18).

# %%
for its_mesh in (auto, mesh):
    with jax.set_mesh(its_mesh):
        placed = jax.device_put(np.ones((8, 8), np.float32), P("data", None))
        _, momentum, _ = jax.tree.leaves(jax.jit(optax.adam(1e-3).init)(placed))
        print(its_mesh.axis_types[0], momentum.sharding.spec)

# %% [markdown]
# ## Deeper: check the types for 1,024 devices
# You can compute types without devices. An `AbstractMesh` has axes but no devices, and `jax.eval_shape` computes types without values. So a laptop can check the shardings of a program for a large machine.

# %%
large = jax.sharding.AbstractMesh((64, 16), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
typed = lambda shape, spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(large, spec))
batch, weights = typed((2**16, 2**14), P("data")), typed((2**14, 2**16), P(None, "model"))
with jax.set_mesh(None), jax.sharding.use_abstract_mesh(large):
    hidden = jax.eval_shape(lambda x, w: jnp.tanh(x @ w), batch, weights)
    print(hidden.shape, hidden.sharding.spec, "shards", hidden.sharding.shard_shape(hidden.shape))
    print(f"{math.prod(hidden.shape) * 4 / 2**30:.0f} GiB in all, ", end="")
    print(
        f"{math.prod(hidden.sharding.shard_shape(hidden.shape)) * 4 / 2**20:.0f} MiB on each of {large.size:,} devices"
    )
    print_error(lambda: jax.eval_shape(lambda x: x.T @ x, batch))

# %% [markdown]
# `set_mesh(None)` is needed here because the notebook has set a mesh of eight devices. `use_abstract_mesh` can replace it only with a mesh of the same size.
#
# ## Deeper: read a typed jaxpr
# The jaxpr of a function contains the sharding of every value. In this gradient, the last product sums over the batch, which is partitioned. It is not ambiguous, because the gradient must have the type of `w`. This type is not partitioned along `data`, so the compiler inserts the all-reduce here.

# %%
print(jax.jit(jax.grad(loss)).trace(w, x).jaxpr)

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.make_mesh(...)`, whose axes were Auto by default | `jax.make_mesh(..., axis_types=(AxisType.Auto,) * n)`, because the default is Explicit. `Mesh(...)` still creates Auto axes |
# | `jax.sharding.use_mesh(mesh)`, `with mesh:` | `with jax.set_mesh(mesh):` |
# | `from jax.experimental.shard import reshard, auto_axes, explicit_axes` | `jax.reshard`, `jax.sharding.auto_axes`, `jax.sharding.explicit_axes` |
# | `auto_axes(f)(x, out_shardings=...)`, `in_shardings=...` | `out_sharding=...`, `in_sharding=...` |
# | `with_sharding_constraint` to choose a sharding | `jax.reshard` on Explicit axes, where a constraint is an assertion |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | Explicit axes | `jax.set_mesh(jax.make_mesh((4, 2), ("data", "model")))` |
# | the sharding of any value | `jax.typeof(value)`, or `jax.typeof(value).sharding.spec` |
# | another sharding | `jax.reshard(value, P(...))` |
# | the sharding of an ambiguous result | `jnp.matmul(a, b, out_sharding=P(...))` |
# | to assert a sharding | `jax.lax.with_sharding_constraint(value, P(...))` |
# | a new array in shards | `jnp.zeros(shape, out_sharding=P(...))`, `jnp.zeros_like(value)` |
# | one row of a partitioned array | `value.at[i].get(out_sharding=P(...))` |
# | a part in Auto mode | `jax.sharding.auto_axes(f, out_sharding=P(...))` |
# | a part in Manual mode | `jax.shard_map(f, out_specs=P(...))` |
# | to delay a reduction | `out_sharding=P(unreduced={"data"})`, then `jax.reshard` |
# | to know what is communicated | the compiled program, as in Auto mode |
#
# The JAX documentation has a page on [the three modes](https://docs.jax.dev/en/latest/201/sharding.html). In the first exercise, you predict the shardings of twelve expressions, three of which are given.
