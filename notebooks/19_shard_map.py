# %% [markdown]
# # 19 · shard_map: code for each device
#
# *The core takes about 35 minutes. The nine "Deeper" sections are optional, but three exercises need one of them. Then do [the exercises](../exercises/19_shard_map/19_shard_map.ipynb).* After the core, you can write per-device code, choose its collectives, compute how much each device sends, and reduce gradients once.
#
# **Prerequisites.** Gradients (lesson 04), loops (08), meshes and collectives (16), Explicit axes (17), data parallelism (18). Answer these questions from memory.
#
# 1. From 16: Each of eight devices has an array of shape `(16,)`. What does each device have after an [all-reduce](../docs/glossary.md#all-reduce), and what after a [reduce-scatter](../docs/glossary.md#reduce-scatter)?
#
# <details><summary>Answer</summary>
#
# After the all-reduce, the sum of the eight arrays, with shape `(16,)`. After the reduce-scatter, its shard of this sum, with shape `(2,)`.
# </details>
#
# 2. From 17: What does the type `float32[8@x,4]` tell you?
#
# <details><summary>Answer</summary>
#
# The array has shape `(8, 4)`. Its first axis is partitioned along the mesh axis `x`.
# </details>
#
# 3. From 18: What do the devices communicate in a step of data parallelism, and what in a step of FSDP?
#
# <details><summary>Answer</summary>
#
# In data parallelism, they all-reduce the gradients. With FSDP, they all-gather the weights and reduce-scatter the gradients.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import P  # the same class as jax.sharding.PartitionSpec
from jax.experimental import pallas as pl
from jax.sharding import AxisType

from grader.learning import figures, plots
from grader.learning.inspection import list_collectives, print_collectives, print_error

eight = list(devices.mesh((8,), ("all",)).devices)

# %% [markdown]
# ## Per-device code
# In Auto and Explicit mode, the compiler inserts the collectives. **How do you write the code of each device yourself?**
#
# `jax.shard_map` runs the same function on every device (*Manual* mode), and each device gets its own shards of the arguments (*single program, multiple data*, SPMD). Python calls it once per trace, for all devices.

# %%
mesh = jax.make_mesh((4, 2), ("x", "y"), devices=eight)
jax.set_mesh(mesh)  # jax.shard_map uses this mesh
a = jax.device_put(np.arange(128, dtype=np.float32).reshape(8, 16), P("x", "y"))


def sum_of_rows(block):
    print("one device sums the rows of a block", block.shape)
    return jax.lax.psum(jnp.sum(block, axis=1), "y")  # the sum over the devices along y


row_sums = jax.shard_map(sum_of_rows, in_specs=P("x", "y"), out_specs=P("x"))
sums = row_sums(a)  # in a real program, call it inside jax.jit
print("equal to NumPy:", np.array_equal(sums, np.asarray(a).sum(axis=1)), "  type:", jax.typeof(sums))
plots.show_shardings({"a": a, "sums": sums}, "A matrix, and the sums of its rows.")

# %% [markdown]
# The rows are partitioned along `y`, so each device sums only its part of each row. `jax.lax.psum` adds these partial sums with an all-reduce.

# %%
print_collectives(jax.jit(row_sums).lower(a).compile())  # the elements on one device

# %% [markdown]
# A sum over `"y"` is computed in groups of devices with one position along `x`, such as 0 and 1.
#
# ## Specs split arguments and assemble results
# `in_specs` has one `P` for each argument, and `out_specs` one for each result. A single `P` can also cover a whole tree, or all arguments. A shard has **as many axes as the whole array**.

# %%
row = jax.make_mesh((8,), ("d",), devices=eight)
jax.set_mesh(row)  # for the rest of the notebook
x = jax.device_put(np.arange(16, dtype=np.float32), P("d"))


def show(shard):
    print(shard)  # the shard of each device, or with jit its type. jax.debug.print always shows the values.
    return shard


_ = jax.shard_map(show, in_specs=P("d"), out_specs=P("d"))(x)

# %% [markdown] predict="manual-out-shape"
# `x` has the shape `(16,)`, so each device has a shard of shape `(2,)`. What is the result of `jax.shard_map(lambda shard: jax.lax.psum(shard, "d"), in_specs=P("d"), out_specs=P("d"))(x)`?
#
# - [ ] `(2,)`, the sum of the eight shards | This is the result with `out_specs=P()`.
# - [x] `(16,)`, eight copies of the sums | Right. `out_specs=P("d")` concatenates the results of the devices, although they are equal.
# - [ ] `(16,)`, equal to `x` | Each shard was replaced by the sum.

# %%
for spec in (P("d"), P()):
    total = jax.shard_map(lambda shard: jax.lax.psum(shard, "d"), in_specs=P("d"), out_specs=spec)
    print(f"{spec!s:7s}", total(x))

# %% [markdown]
# If `out_specs` names a mesh axis, the results along it are concatenated. The position of the name selects the array axis. If `out_specs` does not name a mesh axis, the results along it must be *equal*, and the array contains them once. On Explicit axes, `in_specs` must match the types of the arguments and may be omitted. Here it does not match:

# %%
print_error(lambda: jax.shard_map(show, in_specs=P(), out_specs=P())(x), length=360)

# %% [markdown] predict="manual-varying"
# ## Which values differ between devices?
# What is the result of `jax.jit(jax.shard_map(lambda shard: 2 * shard, in_specs=P("d"), out_specs=P()))(x)`?
#
# - [ ] the result of device 0 | This happens only if you disable a check.
# - [ ] the sum of all results | `out_specs` assembles results and does not compute anything.
# - [x] an error while JAX traces the function | Right. The type of a value states along which mesh axes it may differ between devices.

# %%
doubled = jax.shard_map(lambda shard: 2 * shard, in_specs=P("d"), out_specs=P())
print_error(lambda: jax.jit(doubled).trace(x), length=420)

# %% [markdown]
# Inside `shard_map`, a value is **[varying](../docs/glossary.md#varying)** along a mesh axis if the devices along it may have different values. Its type then contains `{V:d}`.


# %%
def types(shard, whole):
    values = {
        "shard": shard,
        "whole": whole,
        "shard * whole": shard * whole,
        "psum(shard)": jax.lax.psum(shard, "d"),
        "axis_index": jax.lax.axis_index("d"),
    }
    for name, value in values.items():
        print(f"{name:14s} {jax.typeof(value)}")
    return shard


_ = jax.shard_map(types, in_specs=(P("d"), P()), out_specs=P("d"))(x, jnp.ones(2))

# %% [markdown]
# An argument varies along the axes in its spec. In `shard * whole`, JAX casts `whole` to varying. The result of `psum` does not vary. `axis_index`, the device's position, varies. **`psum` of a value that does not vary is n times the value**, without an error. By default (`check_vma=True`, from *varying manual axes*), JAX compares these types with `out_specs`. They also matter in loops, whose carry must keep its type.


# %%
def from_zeros(shard):
    return jax.lax.fori_loop(0, 3, lambda i, total: total + shard, jnp.zeros(shard.shape))


def from_varying_zeros(shard):
    start = jax.lax.pcast(jnp.zeros(shard.shape), "d", to="varying")
    return jax.lax.fori_loop(0, 3, lambda i, total: total + shard, start)


print_error(lambda: jax.jit(jax.shard_map(from_zeros, in_specs=P("d"), out_specs=P("d")))(x), length=420)
print(jax.jit(jax.shard_map(from_varying_zeros, in_specs=P("d"), out_specs=P("d")))(x))

# %% [markdown]
# The result of `jnp.zeros` does not vary, but its sum with a shard does. (`jnp.zeros_like(shard)` varies, as its argument does.) `jax.lax.pcast` changes only the type and, in the forward pass, sends nothing.
#
# ## The collectives, step by step
# ![Five collectives on eight devices, with the contents of every device after each step. All-gather: each device starts with one block and passes on the block that it received last, so after seven steps all devices have all eight blocks. Reduce-scatter: each device starts with eight addends and passes on a growing sum, so after seven steps each device has one complete sum. All-reduce: a reduce-scatter followed by an all-gather, fourteen steps. All-to-all: in step s each device sends one block to the device s positions further along, so after seven steps rows and columns are exchanged. Permute: one step, each device receives the block of its neighbour.](../images/shard_map_collectives.svg)
#
# In an all-to-all, a device sends a different block to each of the other devices.


# %%
def to_next(value):
    n = jax.lax.axis_size("d")
    return jax.lax.ppermute(value, "d", [(i, (i + 1) % n) for i in range(n)])  # pairs of a sender and a receiver


COLLECTIVES = {
    "psum": lambda v: jax.lax.psum(v, "d"),
    "psum_scatter": lambda v: jax.lax.psum_scatter(v, "d", tiled=True),
    "all_gather": lambda v: jax.lax.all_gather(v, "d", tiled=True),
    "all_to_all": lambda v: jax.lax.all_to_all(v, "d", split_axis=0, concat_axis=0, tiled=True),
    "ppermute": to_next,
}


# %%
def printing_types(function):
    """The same function, which also prints the types on a device while JAX traces it."""

    def run(values):
        result = function(values)
        print(jax.typeof(values), "->", jax.typeof(result))
        return result

    return run


long = jax.device_put(np.arange(64 * 8, dtype=np.float32), P("d"))  # 64 elements on each device
mapped = {}
for name, function in COLLECTIVES.items():
    on_each_device = functools.partial(jax.shard_map, out_specs=P() if name == "psum" else P("d"))
    mapped[name] = on_each_device(function)
    print(f"{name:13s}", end=" ")
    jax.eval_shape(on_each_device(printing_types(function)), long)

# %%
figures.collectives(mapped, long.sharding, shape=long.shape)  # choose a collective and move the slider

# %% [markdown]
# With `tiled=True`, the number of axes does not change. `all_gather` then concatenates along an existing axis. `psum_scatter` splits an axis into n blocks. `all_to_all` splits an axis and concatenates along the same or another one. `pmean`, `pmax` and `pmin` are all-reduces too. The result of an `all_gather` is equal on all devices, but its type is still varying. `out_specs=P()` therefore raises an error, unless you pass `to="invarying"` (not varying) to `all_gather`.
#
# ## What a collective sends
# On a ring of n devices, an all-gather to S elements takes n - 1 steps, and each device sends S / n elements in each. A reduce-scatter of S elements sends the same number, and a ring all-reduce performs both. S is the larger of a device's argument and result.
#
# | collective | one device sends |
# |---|---|
# | `all_gather`, `psum_scatter`, `all_to_all` | (n - 1) / n · S |
# | `psum` | 2 (n - 1) / n · S |
# | `ppermute` | S |

# %% [markdown] predict="manual-ring"
# You go from eight to sixteen devices. Each device still has S elements, and the devices perform an all-reduce. How much does each device send?
#
# - [ ] twice as much as before | There are more steps, but the blocks are smaller.
# - [x] slightly more than before | Right. The factor 2 (n - 1) / n is 1.75 for eight devices, 1.875 for sixteen, and never more than 2.
# - [ ] half as much as before | The blocks are half as large, but there are more steps.


# %%
def sent(one):
    """The number of elements that one device sends, computed from the size of the collective's result."""
    if one.kind == "collective-permute":
        return one.elements
    n = one.group_size
    factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1}  # a reduce-scatter returns S / n elements
    return factors.get(one.kind, (n - 1) / n) * one.elements


for name, function in mapped.items():
    [found] = list_collectives(function, long)
    print(f"{name:13s} {found.kind:18s} returns {found.elements:3d} elements, each device sends {sent(found):3.0f}")

# %% [markdown]
# If each device needs only its shard of the sum, use `psum_scatter`, which sends half as much as `psum`. On a ring, the time for a large array is the bytes sent divided by the bandwidth. (An all-to-all takes longer, because its blocks pass several links.)
#
# ## Where to take a gradient
# The batch is partitioned and the weights are replicated. First, we call `jax.grad` *outside* `shard_map`.

# %%
rng = np.random.default_rng(19)
numbers, weights = rng.normal(size=(16, 4)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
batch, w = jax.device_put(numbers, P("d")), jax.device_put(weights, P())


def loss(w, batch):
    return jnp.mean((batch @ w) ** 2)


expected = jax.grad(loss)(jnp.asarray(weights), jnp.asarray(numbers))  # not partitioned

# %%
on_shards = functools.partial(jax.shard_map, in_specs=(P(), P("d")), out_specs=P())


def compare(name, gradient):
    gradient = jax.jit(gradient)
    ratio = np.asarray(gradient(w, batch)) / expected
    assert np.ptp(ratio) < 1e-3, "the elements differ by different factors"
    parts = [f"{one.kind} of {one.elements}" for one in list_collectives(gradient, w, batch)]
    print(f"{name:34s} {ratio.mean():.3f} times the gradient  {', '.join(parts)}")


mean_loss = on_shards(lambda w, batch: jax.lax.pmean(loss(w, batch), "d"))
compare("grad outside, pmean of the loss", jax.grad(mean_loss))

# %% [markdown]
# JAX inserted an all-reduce of the gradient's 12 elements. Nothing uses the loss itself, so the compiler removed its all-reduce. Now we call `jax.grad` *inside* `shard_map`.

# %% [markdown] predict="manual-gradient"
# Inside, each device computes `jax.grad(loss)(w, batch)` for its two examples, without any `psum` or `pmean`, and `out_specs` is `P()`. What does the program return?
#
# - [ ] the gradient of each device's examples | JAX would reject `out_specs=P()`.
# - [ ] the gradient of the whole batch | The devices add their gradients, but nothing divides the sum by eight.
# - [x] eight times the gradient of the whole batch | Right. `w` does not vary, so its gradient must not vary either. JAX adds the gradients of eight local means.

# %%
compare("grad inside", on_shards(jax.grad(loss)))
print("The jaxpr of a simpler loss shows why. Its two lines about the weights:")
simple = on_shards(jax.grad(lambda w, batch: jnp.sum(batch @ w)))
for line in jax.make_jaxpr(simple)(w, batch).pretty_print(use_color=False).splitlines():
    if "[4,3]" in line and ("pvary" in line or "psum" in line):  # of the weights
        print(line.strip())

# %% [markdown]
# Before the product, JAX casts `w` to varying, with the primitive `pvary`. Each device uses its own copy, and the gradient with respect to `w` is the sum over all copies. So **the transpose (backward pass) of the cast is a `psum`**, printed as `psum_invariant`.
#
# Older `pmap` code averages the gradients. Does this correct the factor?

# %%
compare("grad inside, then pmean", on_shards(lambda w, batch: jax.lax.pmean(jax.grad(loss)(w, batch), "d")))
compare("grad inside, of the pmean", on_shards(jax.grad(lambda w, batch: jax.lax.pmean(loss(w, batch), "d"))))


def cast_first(w, batch):
    local = jax.grad(loss)(jax.lax.pcast(w, "d", to="varying"), batch)  # a gradient for each device
    return jax.lax.pmean(local, "d")


compare("pcast, grad inside, then pmean", on_shards(cast_first))

# %% [markdown]
# A `pmean` of the gradients only adds a second all-reduce, because they are already equal.  **Differentiate the loss of the whole batch**, including the `pmean` (for unequal numbers of examples, `psum` sums and counts). Or **cast the weights first** and reduce the gradients yourself.
#
# ## Gradients of collectives

# %%
for name, function in mapped.items():
    result, backward = jax.vjp(jax.jit(function), long)
    found = list_collectives(backward, jnp.ones_like(result))
    print(f"{name:13s} backward: {', '.join(f'{one.kind} of {one.elements}' for one in found) or 'no collective'}")

# %% [markdown]
# A backward pass receives the gradient with respect to the result. For `psum`, this gradient is the same on all devices, so the transpose is only a cast. For `all_gather`, the result is *varying*, so each device has its own gradient with respect to the whole array. A reduce-scatter adds these gradients. The transpose of `ppermute` exchanges senders and receivers.


# %%
def fsdp_loss(w, batch):
    whole = jax.lax.all_gather(w, "d", tiled=True)
    return jax.lax.pmean(loss(whole, batch), "d")


wide = jax.device_put(rng.normal(size=(8, 3)).astype(np.float32), P("d"))  # one row on each device
examples = jax.device_put(rng.normal(size=(16, 8)).astype(np.float32), P("d"))
fsdp = jax.grad(jax.shard_map(fsdp_loss, in_specs=P("d"), out_specs=P()))  # P("d") for both arguments
print_collectives(jax.jit(fsdp).lower(wide, examples).compile())
print("type of the gradient:", jax.typeof(jax.jit(fsdp)(wide, examples)))

# %% [markdown]
# Each device gathers all 24 weights and receives the gradient of its row.
#
# ## When to use shard_map
# Write most programs in Auto or Explicit mode. Use `shard_map` for a particular collective, a loop in which neighbours exchange data, or a kernel on each shard. **Call it inside `jax.jit`**, because without `jit`, JAX runs each operation separately. All devices must perform the same collectives in the same order. A `psum` in a `cond` or a loop can hang if the condition or the number of steps varies. JAX does not report this.
#
# The core ends here.

# %% [markdown]
# ## Deeper: a reduce-scatter from permutes
# *The exercise "A ring all-reduce" needs this section.* Every collective can be built from `ppermute`. This function follows the row "reduce-scatter" of the figure. Device d starts with its own values of block d - 1. In each step, it sends its partial sum to the next device, which adds its own values of the same block.


# %%
def ring_reduce_scatter(values, axis="d"):
    """values (n * k,) on each device -> (k,), one block of their sum over the n devices along the axis."""
    n, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    blocks = values.reshape(n, -1)
    pairs = [(i, (i + 1) % n) for i in range(n)]

    def step(number, total):
        total = jax.lax.ppermute(total, axis, pairs)
        return total + blocks[(me - 1 - number) % n]

    return jax.lax.fori_loop(1, n, step, blocks[(me - 1) % n])


by_hand = jax.jit(jax.shard_map(ring_reduce_scatter, out_specs=P("d")))
built_in = jax.jit(jax.shard_map(COLLECTIVES["psum_scatter"], out_specs=P("d")))
print("equal:", jnp.array_equal(by_hand(long), built_in(long)))
for function in (by_hand, built_in):
    [one] = list_collectives(function, long)
    print(f"{one.kind:18s} {one.times} x {one.elements} elements, each device sends {one.times * sent(one):.0f}")

# %% [markdown]
# The program has one permute, which runs seven times. Both programs send 56 elements, as the formula predicts. The built-in collective can use a better algorithm where the devices are connected by more than a ring. If the links of a ring send in both directions at once, half of the blocks can be sent each way. This takes half of the time, but each device sends as many elements as before.
#
# The pairs of `ppermute` need not form a ring. On a device that receives nothing, the result is zeros. Each device may be a sender at most once, and a receiver at most once.

# %%
shift = lambda v: jax.lax.ppermute(v, "d", [(i, i + 1) for i in range(7)])
print(jax.jit(jax.shard_map(shift, out_specs=P("d")))(x))
print_error(lambda: jax.shard_map(lambda v: jax.lax.ppermute(v, "d", [(0, 2), (1, 2)]), out_specs=P("d"))(x))

# %% [markdown]
# ## Deeper: overlap computation and communication
# A product that needs gathered rows cannot start before the all-gather has finished. If you build the all-gather from permutes, each device can multiply by the block that it has while the next block arrives. This is called a *collective matmul*.


# %%
def gather_then_multiply(lhs, rhs):
    return lhs @ jax.lax.all_gather(rhs, "d", tiled=True)


def multiply_while_moving(lhs, rhs):
    n, me = jax.lax.axis_size("d"), jax.lax.axis_index("d")
    columns = lhs.reshape(len(lhs), n, -1)  # in n blocks
    total = columns[:, me] @ rhs
    for step in range(1, n):
        rhs = to_next(rhs)  # does not depend on the product of this step
        total += columns[:, (me - step) % n] @ rhs  # rows from the device `step` positions earlier in the ring
    return total


left, right = (jax.device_put(rng.normal(size=(256, 256)).astype(np.float32), P("d")) for _ in range(2))
products = [jax.jit(jax.shard_map(f, out_specs=P("d"))) for f in (gather_then_multiply, multiply_while_moving)]
for product in products:
    found = list_collectives(product, left, right)
    print(f"{len(found)} x {found[0].kind} of {found[0].elements:,}, one device sends {sum(map(sent, found)):,.0f}")
print("largest difference:", jnp.abs(products[0](left, right) - products[1](left, right)).max())

# %% [markdown]
# Both programs send the same number of elements. As written, the second never needs all rows at once, and a device can send and multiply at the same time. How much time does this save? The following model has two parameters, the time to send a block and the time to multiply by a block. Change them and run the cell again.

# %%
SEND, MULTIPLY = 1.0, 1.5  # milliseconds for a block
arrives = np.arange(8) * SEND
start = [7 * SEND + np.arange(8) * MULTIPLY, np.zeros(8)]
for step in range(1, 8):
    start[1][step] = max(arrives[step], start[1][step - 1] + MULTIPLY)
_, axes = plots.subplots(height=2.2)
(send, _), (multiply, hatch) = plots.FILLS[:2]
for place, begins in enumerate(start):
    axes.barh([place - 0.2] * 7, [SEND] * 7, 0.36, left=arrives[:7], color=send, edgecolor="white", label="send")
    green = {"color": multiply, "hatch": hatch, "edgecolor": "white", "label": "multiply"}
    axes.barh([place + 0.2] * 8, [MULTIPLY] * 8, 0.36, left=begins, **green)
axes.legend(*(entries[:2] for entries in axes.get_legend_handles_labels()), loc="center left", bbox_to_anchor=(1, 0.5))
axes.set(yticks=(0, 1), yticklabels=("gather first", "collective matmul"), xlabel="milliseconds (model)")
axes.invert_yaxis()
ends = [begins[-1] + MULTIPLY for begins in start]
plots.show(
    f"Timelines of one device. The upper bars are seven sends, and the lower bars are eight products. If all blocks "
    f"are gathered first, the last product ends after {ends[0]:.1f} ms, and in the collective matmul after {ends[1]:.1f} ms."
)

# %% [markdown]
# If a product takes at least as long as a transfer, the collective matmul of this model hides all communication. Simulated devices share one CPU, so you cannot measure this here. Instead, we compiled both programs for accelerators, without running them, with matrices of shape (8192, 8192) in bfloat16. Lesson 20 shows how (*Deeper: collectives on TPUs and GPUs*).
#
# | compiled with JAX 0.10.2 for | gather first, scratch memory | collective matmul, scratch memory | permutes with a product between their start and end |
# |---|---|---|---|
# | eight TPU v5e | 134 MB | 17 MB | four of seven |
# | eight H100 | 134 MB | 164 MB | one of seven |
#
# For four of the seven permutes, the program for TPUs starts the permute, multiplies, and then waits for it. The program for GPUs performs six permutes first, and multiplies during the last, so it stores all blocks. Compilers may also overlap a plain all-gather themselves, or replace a collective. For TPUs, an all-gather of one element per device became an all-reduce. So read the program of your accelerator before you rely on an overlap or on a particular collective.
#
# ## Deeper: all_to_all between two axes
# In the core, `all_to_all` split and concatenated the same axis. With two different axes, it changes which axis is partitioned. Each device starts with one row of this table and ends with one column.

# %%
table = jax.device_put(np.arange(64).reshape(8, 8), P("d"))
exchange = lambda shard: jax.lax.all_to_all(shard, "d", split_axis=1, concat_axis=0, tiled=True)
exchanged = jax.jit(jax.shard_map(exchange, in_specs=P("d"), out_specs=P(None, "d")))(table)
for name, value in {"before": table, "after": exchanged}.items():
    print(f"{name:7s} {jax.typeof(value)!s:13s} device 2 has", np.ravel(value.addressable_shards[2].data))
print("equal as whole arrays:", np.array_equal(table, exchanged))

# %% [markdown]
# The whole array did not change, only its sharding. An all-gather would also give each device its column, but it would send eight times as much. Lesson 21 uses `all_to_all` for experts, and *Ulysses* attention uses it to switch from sharded tokens to sharded heads.
#
# On a one-way ring, a block for the device s positions away occupies s links. Each link of eight devices then carries 3.5 S elements, four times as many as the formula counts. So on such a ring, the all-to-all above is twice as fast as the all-gather, not eight times.
#
# ## Deeper: manual on one mesh axis only
# With `axis_names`, a function is manual along some mesh axes and keeps the types of the others, here Auto. This example writes data parallelism by hand and leaves tensor parallelism to the compiler.

# %%
auto = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=eight)


def two_layers(w1, w2, batch):
    print("types inside:", jax.typeof(w1), jax.typeof(batch))
    return jax.lax.pmean(jnp.mean((jnp.tanh(batch @ w1) @ w2) ** 2), "data")


partly = jax.shard_map(two_layers, mesh=auto, in_specs=(P(), P(), P("data")), out_specs=P(), axis_names={"data"})
shapes, specs = ((8, 32), (32, 8), (16, 8)), (P(None, "model"), P("model"), P("data"))
with jax.set_mesh(auto):
    arrays = [jax.device_put(rng.normal(size=s).astype(np.float32), p) for s, p in zip(shapes, specs, strict=True)]
    for one in list_collectives(jax.grad(partly), *arrays):
        print(f"{one.kind} of {one.elements} elements in groups of {one.group_size}")
    wrong = jax.shard_map(two_layers, in_specs=(P(None, "model"), P(), P("data")), out_specs=P(), axis_names={"data"})
    print_error(lambda: wrong(*arrays))

# %% [markdown]
# Inside, the weights have their full shapes, because `model` is not manual here. The compiler inserted the all-reduce in groups of two, which completes the second product. We differentiate with respect to `w1` only. The all-reduce in groups of four adds the gradients of `w1`, 128 elements on each device. It is the transpose of the cast of `w1`. The `pmean` itself is not in this program, because only the gradient is returned.
#
# `in_specs` may name only manual axes. On Auto axes, JAX reshards arguments that do not match `in_specs`. JAX never reshards results. `out_specs` only states how the shards form the whole array.
#
# ## Deeper: from pmap to shard_map
# *The exercise "A training step from older code" needs this section.* `jax.pmap` is the older way to write code for each device. Like `vmap`, it maps over a leading axis and removes it. The size of this axis is the number of devices used.

# %%
with jax.set_mesh(None):  # pmap creates its own mesh
    keys = jax.random.split(jax.random.key(0), 8)  # one for each device
    drawn = jax.pmap(lambda key: jax.random.normal(key, (64, 64)))(keys)
    print("normal: ", drawn.shape)
    print("dot:    ", jax.pmap(jnp.dot)(drawn, drawn).shape)
    print("psum:   ", jax.pmap(lambda one: jax.lax.psum(one, "i"), axis_name="i")(np.ones(8, np.float32)))
    print("of vmap:", jax.pmap(jax.vmap(jnp.sin))(jnp.ones((8, 4, 3))).shape)  # (devices, examples, features)
    print(jax.make_jaxpr(jax.pmap(jnp.sin))(jnp.ones((8, 2))).pretty_print(use_color=False))

# %% [markdown]
# In current versions, `pmap` is implemented with `shard_map`, as the jaxpr shows. `pmap` removes the axis of size one from each shard and inserts it again, without the check of varying values. To migrate, keep the axis of size one inside the function, or remove the axis of devices from the data.

# %%
mine = jax.shard_map(lambda key: jax.random.normal(key[0], (64, 64))[None], out_specs=P("d"))
print("the same numbers:", np.array_equal(jax.jit(mine)(jax.device_put(keys, P("d"))), drawn))

# %% [markdown]
# | with `pmap` | with `shard_map` |
# |---|---|
# | data `(8, B / 8, ...)`, replicated parameters `(8, ...)` | data `(B, ...)` under `P("d")`, parameters under `P()` |
# | `in_axes=(None, 0)` | `in_specs=(P(), P("d"))` |
# | eight keys, one for each device | `key[0]` of eight keys under `P("d")`, or `jax.random.fold_in(key, jax.lax.axis_index("d"))`, which draws different numbers. With the same key, all devices draw the same numbers. |
# | `pmean(jax.grad(loss)(w, x), "i")` | the gradient of the `pmean` of the loss, or `pcast` first |
# | `pmean` of metrics in an evaluation | the same, with `out_specs=P()` |
# | `flax.jax_utils.replicate(params)`, `unreplicate` | `jax.device_put(params, P())`, and nothing, because there is no leading axis |
# | `donate_argnums`, `static_broadcasted_argnums` | `donate_argnums`, `static_argnums` of `jax.jit` |
# | with several processes, arrays of the devices of this process | global arrays, from `jax.make_array_from_process_local_data` (lesson 24) |
#
# If you keep the `pmean` of the gradients (fourth row), they are n times too large on n devices, and JAX reports no error. For computations without communication, such as the cosine of a large array, you need neither `pmap` nor `shard_map`. With `jit` on a sharded array, each device computes its own shard.

# %%
spread = jax.device_put(np.linspace(0, 10, 2**21, dtype=np.float32), P("d"))
print("collectives:", list_collectives(jnp.cos, spread), "  type:", jax.typeof(jax.jit(jnp.cos)(spread)))

# %% [markdown]
# ## Deeper: without the check
# `check_vma=False` disables the types `{V:d}`. In older code, this argument is called `check_rep`. A varying result under `out_specs=P()` is then not reported, and gradients follow different rules.


# %%
def ratio(function, check):
    mapped = jax.shard_map(function, in_specs=(P(), P("d")), out_specs=P("d"), check_vma=check)
    each = np.asarray(jax.jit(mapped)(w, batch)).reshape(8, 4, 3) / expected  # the result of each device
    return f"{each.mean():.3f} times" if np.allclose(each, each.mean()) else "differs between devices"


mean = lambda value: jax.lax.pmean(value, "d")
variants = {
    "grad": jax.grad(loss),
    "grad, then pmean": lambda w, batch: mean(jax.grad(loss)(w, batch)),
    "grad of the pmean": jax.grad(lambda w, batch: mean(loss(w, batch))),
    "grad of the pmean, then pmean": lambda w, batch: mean(jax.grad(lambda w: mean(loss(w, batch)))(w)),
}
for name, function in variants.items():
    print(f"{name:30s} checked: {ratio(function, True):12s} unchecked: {ratio(function, False)}")
silent = jax.shard_map(lambda shard: 2 * shard, in_specs=P("d"), out_specs=P(), check_vma=False)
print("a varying value under out_specs=P():", jax.jit(silent)(x))

# %% [markdown]
# Without the check, JAX does not track which values vary, so it neither casts values nor reduces gradients. Each device gets the gradient of its own examples, and you have to average the gradients yourself, as with `pmap`. The transpose of an unchecked `psum` is again a `psum`. The mean passes 1/8 back on each device, and the `psum` adds eight of these, so each device gets the full gradient of its own loss. Only the last variant, the gradient of the `pmean` followed by a `pmean`, is correct under both rules.
#
# All of this holds for `jax.grad` *inside*. Outside, unchecked gradients are right too: JAX divides the gradient of a replicated result by n, and adds those of replicated arguments. But a `psum` in the function is transposed to one more `psum`, so the program communicates more.
#
# If you write code for one rule and run it under the other, the gradient is eight times too large, or the weights of the devices silently become different. Disable the check only for operations that do not support it, such as this Pallas kernel (lesson 22) in interpret mode.


# %%
def kernel(shard_ref, result_ref):
    result_ref[...] = 2 * shard_ref[...]


def double_by_kernel(shard):
    return pl.pallas_call(kernel, out_shape=jax.typeof(shard), interpret=True)(shard)


print_error(lambda: jax.jit(jax.shard_map(double_by_kernel, out_specs=P("d")))(x), length=300)
print(jax.jit(jax.shard_map(double_by_kernel, out_specs=P("d"), check_vma=False))(x))

# %% [markdown]
# ## Deeper: gradients that are not reduced yet
# Two more types are **unreduced** (lesson 17) and *reduced*. An unreduced value is the sum of the partial sums of the devices. If you cast a weight to *reduced*, its gradient is unreduced, and the type states that a sum is missing. `psum` or `psum_scatter` completes it. So you can add the gradients of several micro-batches, and reduce only their sum.


# %%
def unreduced_gradient(w, batch):
    reduced = jax.lax.pcast(w, "d", to="reduced")
    gradient = jax.grad(lambda w: loss(w, batch) / 8)(reduced)  # the sum of eight local means, divided by 8
    print("types:", jax.typeof(reduced), jax.typeof(gradient))
    return jax.lax.psum(gradient, "d")


compare("pcast to reduced, psum", on_shards(unreduced_gradient))

# %% [markdown]
# | type | the devices along `d` have | convert it with | communication |
# |---|---|---|---|
# | `float32[2]{V:d}` | values that may differ | `psum`, or `pcast` to unreduced | a collective, or none |
# | `float32[2]` | equal values | `pcast` to varying or reduced | none |
# | `float32[2]{R:d}` | equal values, whose gradient is unreduced | `pcast` to varying | none |
# | `float32[2]{U:d}` | partial sums | `psum`, `psum_scatter` | a collective |
#
# ## Deeper: pitfalls in JAX 0.10.2
# Without `mesh=`, `jax.shard_map` uses the mesh of `jax.set_mesh`, and the function that it returns keeps the mesh of its first call. If you need several meshes, call `jax.shard_map` inside a function, as in the exercises.


# %%
@jax.shard_map(out_specs=P("d"))
def twice(shard):
    return 2 * shard


print(twice(x).shape)
with jax.set_mesh(jax.make_mesh((4,), ("d",), devices=eight[:4])):
    print_error(lambda: twice(jax.device_put(np.ones(16, np.float32), P("d"))))

# %% [markdown]
# | problem | cause | remedy |
# |---|---|---|
# | the shape of a result is not what you expect | Without `tiled=True`, `all_gather` stacks along a new axis, and `psum_scatter` removes an axis of size n. `all_to_all` removes `split_axis`, which must have size n, and inserts an axis of size n at `concat_axis`. | pass `tiled=True` |
# | an error about a closed-over array | On Explicit axes, the function cannot close over a JAX array. | pass the array as an argument. NumPy arrays, and arrays that the function creates, are allowed. |
# | a sum is n times too large | `psum` of a value that does not vary adds n equal values. | print `jax.typeof(value)` |
# | an error about divisibility | The size of a partitioned array axis must be divisible by the size of the mesh axis. | pad the array (lesson 16) |
# | an error about the rank of a scalar result | `out_specs=P("d")` concatenates along an axis, and a scalar has none. | return `value[None]` |
# | equal dropout masks on all devices | The key is equal on all devices. | `jax.random.fold_in(key, jax.lax.axis_index("d"))` |
# | an error in the gradient of a softmax | `pmax` has no gradient. | apply `jax.lax.stop_gradient` to its argument. This is right for a softmax, where the maximum cancels. Elsewhere, it would drop the gradient. |
# | an error from `pcast(..., to="varying")` | The value varies along this axis already. | omit the cast |
# | FSDP needs much memory | Gathered weights are stored for the backward pass. | gather inside `jax.checkpoint` (lesson 15), which gathers them again. The compiler for simulated CPUs removes the second gather, so count it in the jaxpr. |

# %%
offset = jnp.ones(2)
print_error(lambda: jax.shard_map(lambda shard: shard + offset, out_specs=P("d"))(x))
print_error(lambda: jax.shard_map(show, mesh=row, in_specs=P("d"), out_specs=P("d"))(jnp.ones(10)), length=400)
largest = jax.shard_map(lambda shard: jax.lax.pmax(shard.max(), "d"), out_specs=P())
print_error(lambda: jax.grad(largest)(x))

# %% [markdown]
# ## Deeper: older code
# Repositories and tutorials still contain these older forms.
#
# | in older code | now |
# |---|---|
# | `from jax.experimental.shard_map import shard_map` | `jax.shard_map` |
# | `check_rep=False` | `check_vma=False`, where needed at all |
# | `shard_map(f, mesh, in_specs, out_specs)` by position | keyword arguments |
# | `auto=frozenset({"model"})` | `axis_names={"data"}`, which lists the manual axes |
# | `jax.lax.pvary(value, "d")` | `jax.lax.pcast(value, "d", to="varying")`. JAX 0.10.2 has no `jax.lax.pvary`. |
# | `jax.lax.all_gather_invariant` | in 0.10.2 `jax.lax.all_gather(..., to="invarying")`, whose backward pass takes a shard and sends nothing |
# | `jax.lax.psum(1, "d")` for the number of devices | `jax.lax.axis_size("d")` |
# | `jax.pmap(f, axis_name="i")`, `jax.experimental.maps.xmap` | `jax.shard_map` |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | code for each device | `jax.jit(jax.shard_map(f, in_specs=..., out_specs=...))`, under `jax.set_mesh(mesh)` or with `mesh=mesh` |
# | to concatenate the results along `d` | `out_specs=P("d")` |
# | a result that is equal on all devices | `out_specs=P()` |
# | to see which values vary | `jax.typeof(value)`, with `{V:d}` for varying values |
# | to treat an equal value as varying | `jax.lax.pcast(value, "d", to="varying")` |
# | the sum on every device | `jax.lax.psum(value, "d")`, or `("x", "y")` for two axes, which sends 2 (n - 1) / n · S elements |
# | one shard of the sum | `jax.lax.psum_scatter(value, "d", tiled=True)`, half as much |
# | all shards | `jax.lax.all_gather(value, "d", tiled=True)`, whose gradient is a reduce-scatter |
# | to exchange blocks, or to send to one device | `jax.lax.all_to_all`, `jax.lax.ppermute` |
# | the gradient of the whole batch | `jax.grad` of a loss that contains `pmean`, if all devices have as many examples |
#
# The JAX documentation has a page on [manual parallelism](https://docs.jax.dev/en/latest/201/shard-map.html). In the first exercise, you complete a product of blocks.
