# %% [markdown]
# # 20 · Tensor parallelism
#
# *The core takes about 35 minutes. The six "Deeper" sections can be skipped, but two exercises need the first two. Then do [the exercises](../exercises/20_tensor_parallel/20_tensor_parallel.ipynb).* After the core, you can partition a transformer so that each MLP and each attention layer needs one all-reduce in the forward pass, and estimate how many devices are useful.
#
# **Prerequisites.** Lessons 16 to 19. Answer these questions from memory.
#
# 1. From 16: The summed axis of a product is partitioned on both sides. Which collective completes the product?
#
# <details><summary>Answer</summary>
#
# An [all-reduce](../docs/glossary.md#all-reduce). Each device has a partial sum of every element.
# </details>
#
# 2. From 19: How many elements does each of n devices on a ring send in an all-reduce of S elements, and how many in a reduce-scatter?
#
# <details><summary>Answer</summary>
#
# 2 (n - 1) / n · S and (n - 1) / n · S.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import AxisType, NamedSharding

from grader.learning import plots
from grader.learning.inspection import bytes_on_device, flops, list_collectives, print_collectives

eight = list(devices.mesh((8,), ("all",)).devices)
rng = np.random.default_rng(20)

# %% [markdown]
# ## Partition the layers
# With FSDP, every device gathers whole weights and computes whole layers for its own examples.
#
# **What if each device computes with only the part of the weight that it stores?** This is *[tensor parallelism](../docs/glossary.md#tensor-parallelism)*. Several devices share the work for the same examples, and communicate activations instead of weights. There are two ways to partition the weight in `x @ w`.
#
# - **By columns** (*column-parallel*). Each device multiplies the whole `x` by some columns of `w` and computes the same columns of the result. Nothing is communicated.
# - **By rows** (*row-parallel*). Each device multiplies some columns of `x` by the matching rows of `w` and gets a partial sum of the whole result. An all-reduce adds the partial sums.
#
# An MLP has two products, with an activation function in between. We partition the first weight by columns and the second by rows.
#
# ![An MLP with tensor parallelism on two devices. Both devices have all tokens of the input. The first weight is partitioned by columns, so each device has half of the hidden units. The second weight is partitioned by rows, so each device has partial sums of the whole result, and an all-reduce adds them.](../images/tensor_parallel_layouts.svg)
#
# Each iteration of this loop computes the part of one device.

# %%
TOKENS, WIDTH, UNITS = (8, 16), 64, 256  # 8 examples of 16 tokens, the width of a token, the number of hidden units


def draw(*shape):
    return (rng.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)


w1, w2 = draw(WIDTH, UNITS), draw(UNITS, WIDTH)
tokens, targets = rng.normal(size=(2, *TOKENS, WIDTH)).astype(np.float32)

partial_sums = []
for units in (slice(0, UNITS // 2), slice(UNITS // 2, UNITS)):  # half of the hidden units for each device
    hidden = jax.nn.gelu(tokens @ w1[:, units])
    partial_sums.append(hidden @ w2[units])

whole = jax.nn.gelu(tokens @ w1) @ w2
print("largest difference:", np.abs(partial_sums[0] + partial_sums[1] - whole).max())

# %% [markdown]
# Between the products, nothing is communicated, because the activation function is elementwise. With `w1` by rows, an all-reduce would be needed here: gelu(a + b) is not gelu(a) + gelu(b).
#
# ## The layout on a mesh
# On four by two devices, we partition the batch along `data` and the weights along `model`, which has M = 2 devices.

# %%
auto = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=eight)
weights = {"w1": w1, "w2": w2}
SPECS = {"w1": P(None, "model"), "w2": P("model", None)}  # by columns, by rows


def place(mesh, arrays, specs):
    return {name: jax.device_put(arrays[name], NamedSharding(mesh, specs[name])) for name in arrays}


params = place(auto, weights, SPECS)
batch = place(auto, {"x": tokens, "y": targets}, {"x": P("data"), "y": P("data")})
shown = {"first token of each example": batch["x"][:, 0]} | params
plots.show_shardings(shown, "A part of the batch and two weights on a mesh of four by two devices.")

# %% [markdown] predict="tp-columns-columns"
# Suppose you partition `w1` **and** `w2` by columns. The result should have the layout of the batch, with all columns on each device. What is communicated in the forward pass?
#
# - [ ] nothing, because products by columns need no communication | This holds only if each device has all columns of the input.
# - [ ] one all-reduce | There are no partial sums, because the summed axes are not partitioned on both sides.
# - [x] two all-gathers | Right. The hidden units are gathered before the second product. Then the columns of the result are gathered too.


# %%
def mlp(params, x):
    return jax.nn.gelu(x @ params["w1"]) @ params["w2"]


def sent(one):
    """The elements that one device sends on a ring for one collective, as in lesson 19."""
    n = one.group_size or 1
    factors = {"all-reduce": 2 * (n - 1) / n, "all-gather": (n - 1) / n, "collective-permute": 1}
    factors["reduce-scatter"] = n - 1  # `one.elements` are the returned ones, here 1/n of the input
    return factors[one.kind] * one.elements * (one.times or 1)


program = jax.jit(mlp, out_shardings=NamedSharding(auto, P("data")))
for second in ("columns", "rows"):
    spec = {"columns": P(None, "model"), "rows": P("model", None)}[second]
    found = list_collectives(program, place(auto, weights, SPECS | {"w2": spec}), batch["x"])
    print(f"w1 by columns, w2 by {second}:", ", ".join(f"{one.kind} of {one.elements:,}" for one in found))
    print(f"    one device sends {sum(map(sent, found)):,.0f} elements")

# %% [markdown]
# *Columns, then rows*, the layout of Megatron-LM ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)), sends less than half as much as columns twice.
#
# In Auto mode, the training step needs no sharding annotations.


# %%
@jax.jit
def step(params, x, y):
    loss, gradients = jax.value_and_grad(lambda params: jnp.mean((mlp(params, x) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 3 * g, params, gradients), loss


alone = jax.device_put((weights, {"x": tokens, "y": targets}), eight[0])
for name, (trained, data) in {"one device": alone, "4 x 2 devices": (params, batch)}.items():
    for _ in range(30):
        trained, loss = step(trained, **data)
    print(f"{name:13s} loss {loss:.6f}, {bytes_on_device(trained):,} bytes of weights on a device")
print("layouts after training:", {name: w.sharding.spec for name, w in trained.items()})

# %% [markdown]
# ## The backward pass

# %% [markdown] predict="tp-backward"
# The forward pass has one all-reduce along `model`. Which collectives does a program add if it also computes the gradients of the weights **and the input**?
#
# - [ ] nothing along `model`, only the all-reduce of the weights' gradients along `data` | This holds only without the gradient of the input, which the previous layer needs.
# - [x] one more all-reduce along `model`, and one along `data` | Right. Each device computes a partial sum of the gradient of the input, from its own hidden units.
# - [ ] an all-gather of the weights | Each device computes with its own part of the weights, in the backward pass too.


# %%
def report(function, params, specs, mesh):
    with jax.set_mesh(mesh):
        params, x = place(mesh, params, specs), jax.device_put(tokens, NamedSharding(mesh, P("data")))
        gradient = jax.grad(lambda params, x: jnp.sum(function(params, x) ** 2), argnums=(0, 1))
        for name, one in {"forward pass": function, "gradient (forward and backward pass)": gradient}.items():
            print(f"-- {name}")
            print_collectives(jax.jit(one).lower(params, x).compile(), mesh)


report(mlp, weights, SPECS, auto)

# %% [markdown]
# | axis | sums of | elements on each device |
# |---|---|---|
# | `model` | the result, as in the forward pass | 2 · 16 · 64 |
# | `data` | the gradients of the device's shards of `w1` and `w2` | 64 · 128 + 128 · 64 |
# | `model` | the gradient of the input | 2 · 16 · 64 |
#
# In the backward pass, columns and rows swap roles: the gradient of `x` is `g @ w1.T`, where `g` is the gradient of `x @ w1`, and `w1.T` is partitioned by rows.
#
# | weight | forward pass | gradient of the input |
# |---|---|---|
# | by columns | nothing | all-reduce |
# | by rows | all-reduce | nothing |
#
# ## Explicit and Manual mode
# In Explicit mode (lesson 17), the sharding of the second product's result is ambiguous, so specify it. In Manual mode, you write the `psum`.


# %%
def explicit_mlp(params, x):
    return jnp.matmul(jax.nn.gelu(x @ params["w1"]), params["w2"], out_sharding=P("data"))


def manual_mlp(params, x):
    def on_one_device(params, x):
        return jax.lax.psum(mlp(params, x), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


mesh = jax.make_mesh((4, 2), ("data", "model"), devices=eight)
jax.set_mesh(mesh)  # Explicit axes, for the rest of the notebook
for function in (explicit_mlp, manual_mlp):
    print(function.__name__)
    report(function, weights, SPECS, mesh)

# %% [markdown]
# All three modes produce the same collectives. In Manual mode, JAX casts `x` to varying along `model`. The transpose of this cast (lesson 19) is the all-reduce of the gradient of the input.
#
# The bias of the first product is partitioned like the hidden units, and that of the second is replicated. In Manual mode, add the second **after** the `psum`. Otherwise the result contains it M times, without an error.
#
# ## Attention heads
# In attention (lesson 25), each *head* computes queries, keys and values with three weights, and from them a weighted average of the values for each token. A fourth weight maps each head's averages to the width of a token, and the results are added. Until then, heads are independent, like hidden units. The head axis of all four weights is partitioned, so M must divide their number. (Fewer key and value heads are copied, as in an exercise.)

# %%
HEADS, K = 4, 16
heads = {name: draw(WIDTH, HEADS, K) for name in "qkv"} | {"o": draw(HEADS, K, WIDTH)}
HEAD_SPECS = {name: P(None, "model") for name in "qkv"} | {"o": P("model")}


def attention(params, x, out_sharding=None):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # softmax(q · k / sqrt(K)) · v, no later tokens
    return jnp.einsum("bthk,hkd->btd", mixed, params["o"], out_sharding=out_sharding)


report(attention, heads, HEAD_SPECS, auto)

# %% [markdown]
# Queries, keys and values each contribute to the gradient of `x`, and this program for CPUs all-reduces each contribution, 3 · 2,048 elements in one operation. In Manual mode, JAX casts `x` once for each product. If you cast it **before** the products, each device adds its contributions first. (Compilers for accelerators often do this themselves.) The next cell does this in a block of a transformer: attention and an MLP, each after a norm and with a residual connection.


# %%
def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def block(params, x):
    def on_one_device(params, x):
        for layer in (attention, mlp):
            # Changes only the type: one cast, so one psum in the backward pass.
            entering = jax.lax.pcast(norm(x), "model", to="varying")
            x = x + jax.lax.psum(layer(params, entering), "model")
        return x

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


report(block, heads | weights, HEAD_SPECS | SPECS, mesh)

# %% [markdown]
# A block has two all-reduces along `model` in each pass.
#
# ## Sequence parallelism
# Between the layers, all devices along `model` store copies of the same tokens, and each rescales all of them in the norm. *[Sequence parallelism](../docs/glossary.md#sequence-parallelism)* ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)) partitions these tokens by position. A device's heads and hidden units need all tokens, so an all-gather precedes the first product, and a reduce-scatter replaces the all-reduce. In the backward pass, the two swap roles.
#
# ![An MLP with tensor and sequence parallelism on two devices. Each device has half of the tokens before and after. An all-gather precedes the product with the first weight, which is partitioned by columns. A reduce-scatter follows the product with the second weight, which is partitioned by rows. It adds the partial sums and leaves each device the sums of its own tokens.](../images/sequence_parallel_layouts.svg)


# %%
def tensor_block(params, x):  # x + ... is the residual connection
    return x + jax.lax.psum(mlp(params, norm(x)), "model")


def sequence_block(params, x):
    gathered = jax.lax.all_gather(norm(x), "model", axis=1, tiled=True)
    return x + jax.lax.psum_scatter(mlp(params, gathered), "model", scatter_dimension=1, tiled=True)


BLOCKS = {
    "tensor parallelism": (tensor_block, P("data")),
    "with sequence parallelism": (sequence_block, P("data", "model")),
}

# %%
params = place(mesh, weights, SPECS)
for name, (block, spec) in BLOCKS.items():
    program, x = jax.jit(jax.shard_map(block, out_specs=spec)), jax.device_put(tokens, spec)
    print(f"-- {name}: one device sends {sum(map(sent, list_collectives(program, params, x))):,.0f} elements")
    print_collectives(program.lower(params, x).compile(), mesh)

# %% [markdown]
# Both together send as much as the all-reduce, but sequence parallelism saves memory. The next cell adds up the *residuals* (lesson 15) on each device.


# %%
def activation_kilobytes(block, spec, mesh):
    """What one device of the mesh stores for the backward pass of a block, without weights."""
    with jax.set_mesh(mesh):
        arguments = place(mesh, weights, SPECS), jax.device_put(tokens, spec)
        backward = lambda *arguments: jax.vjp(jax.shard_map(block, out_specs=spec), *arguments)[1]
        residuals = jax.tree.leaves(jax.eval_shape(backward, *arguments))  # shapes and shardings only
    shards = [one.sharding.shard_shape(one.shape) for one in residuals if one.ndim == 3]  # weights have two axes
    return sum(4 * math.prod(shard) for shard in shards) / 1000


for m in (1, 2, 4, 8):
    smaller = jax.make_mesh((1, m), ("data", "model"), devices=eight[:m])
    sizes = [f"{name} {activation_kilobytes(*one, smaller):3.0f} kB" for name, one in BLOCKS.items()]
    print(f"M = {m}: {', '.join(sizes)}")

# %% [markdown]
# With sequence parallelism, only the gathered tokens are stored whole, unless they are gathered again in the backward pass.
#
# ## When does tensor parallelism pay off?
# More devices compute less each, but do not send less. **How many are useful?** Consider the forward pass of an MLP with t tokens of width d and f hidden units.
#
# - Each of the two products takes 2 t d f floating-point operations, so each device performs 4 t d f / M operations.
# - In the all-reduce of t d elements, each device sends 2 (M - 1) / M · t d elements.

# %%
x = jax.device_put(tokens, P("data"))
t, m = TOKENS[0] * TOKENS[1] / 4, 2  # the tokens on one device
print(f"operations: {4 * t * WIDTH * UNITS / m:,.0f} by the formula")
print(f"            {flops(manual_mlp, params, x):,.0f} in the program, with the activation function")

# %% [markdown] predict="tp-batch"
# The ratio of communication time to computation time is 0.5. You double the number of tokens. What happens to the ratio?
#
# - [ ] it falls, because only the computation grows | This holds for FSDP, which communicates weights.
# - [ ] it grows, because more is sent | More is computed too.
# - [x] it stays the same | Right. Both times are proportional to t, and also to d. The ratio depends only on M, f and the accelerator.

# %%
d, f = 8192, 28_672  # width and hidden units
CHIPS = {  # peak in FLOP/s, bytes per second that one device sends (sources: last Deeper section)
    "H100, one per node": (989e12, 50e9),
    "H100, in a node": (989e12, 450e9),
    "TPU v5e, 16 chips": (197e12, 100e9),
    "TPU v5p": (459e12, 200e9),
}


def times_ms(chip, m, t=8192):
    peak, bandwidth = CHIPS[chip]
    item = 2  # bytes of a bfloat16 element
    return 1e3 * 4 * t * d * f / m / peak, 1e3 * 2 * (m - 1) / m * t * d * item / bandwidth


for t in (8192, 16384):
    compute, communicate = times_ms("H100, in a node", 8, t)
    print(f"{t:,} tokens, M = 8: compute {compute:.2f} ms, communicate {communicate:.2f} ms", end=", ")
    print(f"ratio {communicate / compute:.2f}")

# %% [markdown]
# The next layer needs the sums, so the two times add up, or at best overlap (first Deeper section). At which M are they equal?

# %%
chip, d, f = "H100, in a node", 8192, 28_672  # change these and run the cell again
_, (left, right) = plots.subplots(1, 2, height=2.9)
m = np.arange(2, 65)  # one device sends nothing
left.loglog(m, np.transpose(times_ms(chip, m)), base=2, label=("compute", "communicate"))
left.set(title=chip, ylabel="ms", xlabel="devices along model, M")
limits = {name: 1 + f * bandwidth / peak for name, (peak, bandwidth) in CHIPS.items()}
for name, limit in limits.items():
    compute, communicate = times_ms(name, m)
    right.loglog(m, communicate / compute, base=2, label=f"{name}: 1 at M = {limit:.1f}")
    right.plot(limit, 1, "o", color=plots.INK)
right.axhline(1, color=plots.QUIET, linewidth=0.8)  # communication takes as long as computation
right.axvline(8, 0.45, color=plots.QUIET, linestyle=":", label="a node of 8 H100s")
right.set(title="communicate / compute", ylim=(0.004, 50), yticks=2.0 ** np.arange(-3, 6), xlabel=left.get_xlabel())
for axes in (left, right):
    axes.legend(fontsize="small")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
equal = ", ".join(f"{limit:.1f} ({name})" for name, limit in limits.items())
plots.show(f"Left: milliseconds of an MLP's forward pass. Right: their ratio, which is 1 at M = {equal}.")

# %% [markdown]
# In bfloat16, the times are 4 t d f / (M · peak) and 4 (M - 1) t d / (M · bandwidth). They are equal at **M = 1 + f · bandwidth / peak**. Beyond this limit, even a complete overlap gains nothing.
#
# For f = 28,672, the limit in a node of H100s is 14. Eight GPUs are 5.2 times as fast as one if both times add up, and 8 times if they overlap completely. With one GPU per node, the limit is 2.4, so tensor parallelism usually stays inside a node. On closed rings of TPUs, it is 13.5 to 15.6. Attention has a lower limit, 5 to 9 (last Deeper section). The backward pass computes twice as much and sends the same, so its limit is almost twice as high.
#
# In a step, FSDP gathers the 2 d f weights twice and reduce-scatters their gradients, 6 d f elements. Tensor parallelism sends 4 t d, which is less for fewer than 1.5 f tokens in a group.
#
# The core ends here.

# %% [markdown]
# ## Deeper: overlap communication and computation
# *The exercise "Reduce-scatter during a product" needs this section.* With sequence parallelism, the first product waits for the all-gather. The collective matmul of lesson 19 avoids this wait. The blocks of tokens are passed around a ring. A device can multiply the block that it has while it receives the next one. In lesson 19, each product was one term of the result. Here, each product gives some **rows** of the result.


# %%
def gather_then_multiply(x, w):
    return jax.lax.all_gather(x, "model", tiled=True) @ w


def multiply_while_gathering(x, w):
    n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
    to_next = [(i, (i + 1) % n) for i in range(n)]

    def step(number, state):
        block, rows = state
        rows = rows.at[(me - number) % n].set(block @ w)
        return jax.lax.ppermute(block, "model", to_next), rows

    start = x, jnp.zeros_like(x, shape=(n, len(x), w.shape[1]))  # these zeros vary along model, as x does
    return jax.lax.fori_loop(0, n, step, start)[1].reshape(-1, w.shape[1])


# %% [markdown]
# In iteration `number`, a device has the block of the device `number` positions before it. So it writes the product to the rows of this block. Compare the collectives of both functions.

# %%
row = jax.make_mesh((8,), ("model",), devices=eight)
with jax.set_mesh(row):
    block, columns = jax.device_put(draw(64, 32), P("model")), jax.device_put(draw(32, 128), P(None, "model"))
    mapped = functools.partial(jax.shard_map, out_specs=P(None, "model"))
    products = [jax.jit(mapped(g)) for g in (gather_then_multiply, multiply_while_gathering)]
    for product in products:
        [found] = list_collectives(product, block, columns)
        print(f"{found.kind} of {found.elements} elements, {found.times} times")
    print("largest difference:", jnp.abs(products[0](block, columns) - products[1](block, columns)).max())

# %% [markdown]
# One all-gather is replaced by eight permutes, and both programs compute the same result. The permute of the last iteration is not needed, but it keeps the code short. The second product of the MLP ends with a reduce-scatter. Its partial *sums* can be passed around the ring in the same way, which you implement in the exercise. In the backward pass, Korthikanti et al. gather the tokens again, instead of storing them, while another gradient is computed.
#
# ## Deeper: the embedding and the loss over a partitioned vocabulary
# *The exercise "A loss over a partitioned vocabulary" needs this section.* The table of an embedding has one row for each word of the vocabulary. With 128,000 words and a width of 8,192, it takes 2 GB in bfloat16. If its rows are partitioned along `model`, each device looks up the words whose rows it stores. It uses zeros for all other words. An all-reduce adds these results, so each word gets its row. The next cell writes this lookup in Manual mode and in Explicit mode.

# %%
VOCABULARY = 40
table = jax.device_put(draw(VOCABULARY, WIDTH), P("model", None))
words = jax.device_put(rng.integers(VOCABULARY, size=TOKENS[0]).astype(np.int32), P("data"))


def look_up(table, words):
    first = jax.lax.axis_index("model") * len(table)
    mine = (words >= first) & (words < first + len(table))
    rows = table[jnp.where(mine, words - first, 0)]
    return jax.lax.psum(jnp.where(mine[:, None], rows, 0), "model")


manual_lookup = jax.jit(jax.shard_map(look_up, out_specs=P("data")))
explicit_lookup = jax.jit(lambda table, words: table.at[words].get(out_sharding=P("data", None)))
print("equal:", jnp.array_equal(manual_lookup(table, words), explicit_lookup(table, words)))
for lookup in (manual_lookup, explicit_lookup):
    print_collectives(lookup.lower(table, words).compile(), mesh)

# %% [markdown]
# Both programs have the same all-reduce. At the end of a model, the hidden vectors are multiplied by a matrix of the same shape, which gives a score (logit) for each word. For 4,096 tokens, these scores take 2 GB in float32, so they should stay partitioned. The loss needs only three numbers for each token: the largest score, the sum of the exponentials, and the score of the target word. In Explicit mode, each reduction over the partitioned axis becomes a small all-reduce. Compare the sizes of these all-reduces with the 40 scores of each token.


# %%
def word_loss(table, hidden, words):
    scores = hidden @ table.T  # float32[tokens@data,words@model]
    right = jnp.sum(jnp.where(jnp.arange(VOCABULARY) == words[:, None], scores, 0), axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)


hidden = jax.device_put(draw(TOKENS[0], WIDTH), P("data"))
print_collectives(jax.jit(word_loss).lower(table, hidden, words).compile(), mesh)
print("gradient:")
print_collectives(jax.jit(jax.grad(word_loss, argnums=(0, 1))).lower(table, hidden, words).compile(), mesh)

# %% [markdown]
# Each device has two tokens, so an all-reduce along `model` returns two elements for each reduction. The compiler merged two reductions into the all-reduce of four elements. No device gathers 40 scores. The two larger all-reduces of the gradient return shards of the gradients of `hidden` and of the table. The loss does not look up the score of the target word with `scores[i, words[i]]`, because indexing a partitioned axis is ambiguous (lesson 17). The comparison with `jnp.arange` is elementwise.
#
# ## Deeper: meshes with three axes
# Large models combine several kinds of parallelism. This example combines data parallelism, FSDP and tensor parallelism on a mesh with three axes. The batch is partitioned along `data` and `fsdp`. The weights are partitioned along `fsdp` and `model`. They are gathered along `fsdp` only, so each device computes with its part along `model`. In the program, look for the axis of each collective.

# %%
cube = jax.make_mesh((2, 2, 2), ("data", "fsdp", "model"), devices=eight)
names = {"w1": ("fsdp", "model"), "w2": ("model", "fsdp")}


def local_loss(params, x):
    w1 = jax.lax.all_gather(params["w1"], "fsdp", axis=0, tiled=True)
    w2 = jax.lax.all_gather(params["w2"], "fsdp", axis=1, tiled=True)
    result = jax.lax.psum(mlp({"w1": w1, "w2": w2}, x), "model")
    return jax.lax.pmean(jnp.mean(result**2), ("data", "fsdp"))


with jax.set_mesh(cube):
    params = {n: jax.device_put(weights[n], P(*names[n])) for n in names}
    batch = jax.device_put(tokens, P(("data", "fsdp")))
    three = jax.jit(jax.value_and_grad(jax.shard_map(local_loss, out_specs=P())))
    print_collectives(three.lower(params, batch).compile(), cube)
    print("type of a gradient:", jax.typeof(three(params, batch)[1]["w1"]))
plots.show_shardings({"w1": params["w1"], "w2": params["w2"]}, "Two weights on a mesh of two by two by two devices.")

# %% [markdown]
# Each kind of parallelism has its own collectives.
#
# - FSDP gathers the weights along `fsdp` and reduce-scatters their gradients.
# - Tensor parallelism all-reduces the result along `model`. In the backward pass, it adds nothing here, because the input needs no gradient.
# - Data parallelism all-reduces the gradients along `data`. A small all-reduce along `data` and `fsdp` averages the loss.
#
# This program all-reduces 16,384 elements along `data` **before** it reduce-scatters them along `fsdp`. JAX casts the weights to values that vary along `data` only after the all-gather, and the backward pass runs in the reverse order. If you cast the weights before the all-gather, the reduce-scatter comes first.


# %%
def cast_before_gather(params, x):
    return local_loss(jax.lax.pcast(params, "data", to="varying"), x)


with jax.set_mesh(cube):
    early = jax.jit(jax.value_and_grad(jax.shard_map(cast_before_gather, out_specs=P())))
    print_collectives(early.lower(params, batch).compile(), cube)
    pairs = zip(*(jax.tree.leaves(function(params, batch)[1]) for function in (three, early)), strict=True)
    print("largest difference of the gradients:", max(jnp.abs(one - other).max() for one, other in pairs))

# %% [markdown]
# Now only 8,192 elements are all-reduced along `data`, half as many. The gradients agree up to rounding.
#
# The last axis of a mesh varies fastest in the order of the devices. So in this mesh, devices along `model`, which communicate most often, have consecutive numbers. `jax.make_mesh` also takes the topology of TPUs into account.
#
# The next figure shows the collectives of a training step of a whole transformer block, also read from its compiled program. Its weights are cast after the gather, as in the first program above, so 6,144 elements are all-reduced along `data` before the reduce-scatters. The backward pass has only one all-reduce along `model`, between the two layers.
#
# ![Thirteen collectives of one training step of a transformer block on two by two by two devices, in the order of execution. Four all-gathers along fsdp gather the weights. Two all-reduces along model add heads and hidden units, and a small one along data and fsdp averages the loss. In the backward pass, an all-reduce along model, one along data for all gradients, and four reduce-scatters along fsdp follow.](../images/parallel_step_3d.svg)
#
# | kind of parallelism | communicates | how often | its axis should use |
# |---|---|---|---|
# | data | gradients | once per step | the slowest network |
# | FSDP | weights and gradients | for every layer | medium-speed links |
# | tensor | activations | several times per layer | the fastest links |
#
# The core compared 6 d f elements for FSDP with 4 t d for tensor parallelism. With FSDP, each device gathers the 2 d f weights of an MLP, usually again in the backward pass (lesson 18), and reduce-scatters their gradients. With tensor parallelism, it takes part in two all-reduces of t d elements, one in each pass. Both are equal for 1.5 f tokens, or about 43,000 for the MLP of the core. However, FSDP can gather the next weights during a computation, while the next layer waits for the sums of tensor parallelism.
#
# *Context parallelism* is yet another kind. Like sequence parallelism, it partitions the tokens, but in attention too, where the devices exchange keys and values. Some texts use the name sequence parallelism for it.
#
# You can also partition one weight along two mesh axes, `P("x", "y")`, without gathering it. The activations are then partitioned along both axes too, and each product needs collectives along both, of smaller shards. [Pope et al. 2022](https://arxiv.org/abs/2211.05102) use such layouts for inference with few tokens, where gathered weights would be much larger than the activations.
#
# ## Deeper: collectives on TPUs and GPUs
# The programs of this notebook were compiled for simulated CPUs. Which collectives do other compilers choose? First, we write sequence parallelism in Auto and in Explicit mode. Both functions state that the result is partitioned by tokens, so a reduce-scatter would suffice.


# %%
def auto_block(params, x):
    constrain = jax.lax.with_sharding_constraint
    return x + constrain(mlp(params, constrain(norm(x), P("data"))), P("data", "model"))


def explicit_block(params, x):
    hidden = jax.nn.gelu(jax.reshard(norm(x), P("data")) @ params["w1"])
    return x + jnp.matmul(hidden, params["w2"], out_sharding=P("data", "model"))


for name, own_mesh, block in (("auto", auto, auto_block), ("explicit", mesh, explicit_block)):
    with jax.set_mesh(own_mesh):
        arrays = place(own_mesh, weights, SPECS), jax.device_put(tokens, NamedSharding(own_mesh, P("data", "model")))
        print(f"-- {name}")
        print_collectives(jax.jit(block).lower(*arrays).compile(), own_mesh)

# %% [markdown]
# In both modes, the compiler for CPUs uses an all-reduce, which sends twice as much as a reduce-scatter. Only the program with `shard_map` contains the reduce-scatter.
#
# We also compiled three programs for TPUs and GPUs with JAX 0.10.2. This needs no such device, because `jax.experimental.topologies` describes the hardware to the compiler. The programs use bfloat16, 8 examples of 256 tokens, a width of 1,024, 4,096 hidden units, and a mesh of four by two devices. The table shows the collectives along `model`. The first program has two products with the same input, like a gated MLP.
#
# | program | simulated CPUs | eight TPU v5e | eight H100 |
# |---|---|---|---|
# | gradient of an MLP with two first products, Explicit | all-reduces of 524,288 and 1,048,576 | two all-reduces of 524,288 | two all-reduces of 524,288 |
# | sequence parallelism, Explicit | all-gather of 524,288, all-reduce of 524,288 | all-gather of 524,288, reduce-scatter of 262,144 | as on TPUs |
# | sequence parallelism, `shard_map` | all-gather of 524,288, reduce-scatter of 262,144 | the same | the same |
#
# In these programs, the compilers for accelerators add both contributions to the gradient of the input before they communicate. They also use a reduce-scatter where the result is partitioned. So Explicit code that sends too much on CPUs can compile to the same collectives as Manual code on an accelerator. With very small arrays, the compiler for TPUs replaced a reduce-scatter with an all-reduce, even in Manual mode. Inspect the program of your accelerator at your sizes.
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `pjit(f, in_axis_resources=..., out_axis_resources=...)` | `jax.jit`, with shardings of the arguments, or `in_shardings` and `out_shardings` |
# | `with mesh:` and `with_sharding_constraint(x, P(...))` | `with jax.set_mesh(mesh):`, and on Explicit axes `out_sharding=P(...)` or `jax.reshard` |
# | `PositionalSharding(devices).reshape(4, 2)` | `jax.make_mesh((4, 2), ("data", "model"))` and `P` |
# | `xmap` with named axes for model parallelism | `jax.shard_map` |
# | the functions `f` and `g` of Megatron-LM | `f` is `jax.lax.pcast(x, "model", to="varying")`, and `g` is `jax.lax.psum(y, "model")` |
# | `flax.linen.with_partitioning` | in NNX, an `out_sharding` in the metadata of a Param |
#
# ## Deeper: where the rates come from
# The core uses these rates, computed from the manufacturers' specifications. Each bandwidth is that of one direction, from one device.
#
# | | peak in bfloat16 | one device sends | source |
# |---|---|---|---|
# | H100 SXM, in a node | 989 TFLOP/s | 450 GB/s | [NVIDIA](https://www.nvidia.com/en-us/data-center/h100/): 1,979 TFLOP/s with sparsity, NVLink 900 GB/s in both directions together |
# | H100, one per node | 989 TFLOP/s | 50 GB/s | [DGX H100](https://www.nvidia.com/en-us/data-center/dgx-h100/): a network card with 400 Gbit/s for each GPU |
# | TPU v5e, along one axis | 197 TFLOP/s | 100 GB/s | [Google Cloud](https://cloud.google.com/tpu/docs/v5e): 400 GB/s in both directions, on four links in two axes |
# | TPU v5p, along one axis | 459 TFLOP/s | 200 GB/s | [Google Cloud](https://cloud.google.com/tpu/docs/v5p): 1,200 GB/s in both directions, on six links in three axes |
#
# For TPUs, we assume a closed ring along one axis, on which each device sends in both directions at once. It then sends half of the data over each of its two links along this axis. A link of a TPU v5e sends 50 GB/s, and a link of a TPU v5p sends 100 GB/s. With one direction only, or without a closed ring, use half of this bandwidth. A TPU v5e has closed rings only along an axis of 16 chips, so the limit on a shorter axis is 8.3, and the curve of the figure holds at M = 16 only. A TPU v5p has closed rings only in slices of at least 4 x 4 x 4 chips. If M spans two axes, use twice the bandwidth.
#
# The same formula gives other limits for other parts of a model. A gated MLP has three products, 6 t d f operations, and the same all-reduce. So its limit is 1 + 1.5 f · bandwidth / peak, which is 20.6 in a node of H100s, 22.8 for TPU v5e and 19.7 for TPU v5p. The four products with the weights of attention take 8 t d² operations for one all-reduce, so their limit is 1 + 2 d · bandwidth / peak. With d = 8192, this is 8.5 in a node of H100s, 9.3 for TPU v5e and 8.1 for TPU v5p. With one key head and one value head for every eight query heads, these products take 4.5 t d² operations, and the limit in a node of H100s is 5.2. For a backward pass, which computes twice as much, double bandwidth / peak in these formulas.
#
# The scaling book [derives limits on M](https://jax-ml.github.io/scaling-book/training/). It uses about 10% less bandwidth for TPUs, and leaves out the 1. All rates are peaks, so real times are usually longer. Switches that add in the network (NVLink SHARP) can shorten an all-reduce. The row "one per node" assumes that each device sends all of its data to another node. Rings through whole nodes leave each node only once and can use all eight network cards (NICs), 400 GB/s together. On two nodes, each node sends the S elements of an all-reduce once, which at M = 16 takes about 0.7 times as long as the computation. So the book derives that tensor parallelism can [span two nodes](https://jax-ml.github.io/scaling-book/gpus/).

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | a product that communicates nothing in the forward pass | the weight by columns, `P(None, "model")` |
# | an MLP or attention with one all-reduce | columns, then rows, `P("model", None)` |
# | the all-reduce on Explicit axes | `jnp.matmul(h, w2, out_sharding=P("data"))` |
# | the all-reduce in Manual mode | `jax.lax.psum(h @ w2, "model")` |
# | one all-reduce for the gradient of an input of several products | `jax.lax.pcast(x, "model", to="varying")` once |
# | partitioned tokens between the products | `all_gather` before, `psum_scatter` after |
# | to choose M | for an MLP, M below 1 + f · bandwidth / peak, on the fastest links |
#
# In the first exercise, you complete the layout of four layers.
