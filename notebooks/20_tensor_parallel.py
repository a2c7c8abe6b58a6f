# %% [markdown]
# # 20 · Tensor parallelism
#
# *The core takes about 35 minutes. Six "Deeper" sections can be skipped. Then do [the exercises](../exercises/20_tensor_parallel/20_tensor_parallel.ipynb).* After the core, you can partition the layers of a transformer so that two products need only one all-reduce, and estimate how many devices tensor parallelism can use.
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
# 2. From 18: What does each device store with FSDP, and what does it need during a step?
#
# <details><summary>Answer</summary>
#
# It stores a shard of every weight. During a step, it gathers the weights of one layer after the other.
# </details>
#
# 3. From 19: How many elements does each of n devices on a ring send in an all-reduce of S elements, and how many in a reduce-scatter?
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
from grader.learning.inspection import bytes_on_device, flops, list_collectives, print_collectives, time_ms

eight = list(devices.mesh((8,), ("all",)).devices)
rng = np.random.default_rng(20)

# %% [markdown]
# ## Partition the layers
# With FSDP, every device gathers a weight before it computes with it. **What if each device computes with only the part of the weight that it stores?** This is *[tensor parallelism](../docs/glossary.md#tensor-parallelism)*.
#
# The example is a network of four layers on a mesh of four by two devices. The batch is partitioned along the mesh axis `batch`. The two largest weights, `W2` and `W3`, are partitioned along `model`. The other weights are replicated. In the figure, compare `W2` and `W3`.

# %%
auto = jax.make_mesh((4, 2), ("batch", "model"), axis_types=(AxisType.Auto,) * 2, devices=eight)
draw = lambda *shape: rng.normal(size=shape).astype(np.float32) / math.sqrt(shape[0])
SIZES = {1: (512, 512), 2: (512, 1024), 3: (1024, 512), 4: (512, 512)}
numbers = {f"W{i}": draw(*shape) for i, shape in SIZES.items()} | {f"b{i}": draw(SIZES[i][1]) for i in SIZES}
examples, targets = draw(64, 512) * 8, draw(64, 512) * 8  # standard normal

layout = dict.fromkeys(numbers, P()) | {"W2": P(None, "model"), "b2": P("model"), "W3": P("model", None)}
put = lambda array, spec: jax.device_put(array, NamedSharding(auto, spec))
params = {name: put(array, layout[name]) for name, array in numbers.items()}
x, y = put(examples, P("batch", None)), put(targets, P("batch", None))
shown = {"x": x, "W1": params["W1"], "W2": params["W2"], "W3": params["W3"]}
plots.show_shardings(shown, "A batch and three weights on a mesh of four by two devices.")

# %% [markdown]
# Two devices along `model` have the same examples. Each has half of the columns of `W2` and of the rows of `W3`. The code of the training step contains nothing about shardings.


# %%
def network(params, x):
    for i in (1, 2, 3):
        x = jax.nn.relu(x @ params[f"W{i}"] + params[f"b{i}"])
    return x @ params["W4"] + params["b4"]


gradient = jax.jit(jax.value_and_grad(lambda params, x, y: jnp.mean((network(params, x) - y) ** 2)))


@jax.jit
def step(params, x, y):
    loss, gradients = gradient(params, x, y)
    return jax.tree.map(lambda p, g: p - 3 * g, params, gradients), loss


# %% [markdown]
# We train on one device and on eight. Compare the losses, the layouts and the memory.

# %%
alone = jax.device_put((numbers, examples, targets), eight[0])
states, losses = {"one device": alone, "4 x 2 devices": (params, x, y)}, {}
for name, (p, *data) in states.items():
    losses[name] = []
    for _ in range(30):
        p, loss = step(p, *data)
        losses[name].append(loss)
    states[name] = p
after = states["4 x 2 devices"]
print(
    "the same layouts after 30 steps:",
    all(after[n].sharding.is_equivalent_to(params[n].sharding, params[n].ndim) for n in params),
)
print("largest difference of the losses:", np.abs(np.subtract(*losses.values())).max())
print("bytes on a device:", f"{bytes_on_device(alone[0]):,} and {bytes_on_device(params):,}")
one, several = time_ms(lambda: gradient(*alone), lambda: gradient(params, x, y))
print(f"gradient: {one:.1f} ms on one device, {several:.1f} ms on eight simulated devices")

# %% [markdown]
# The losses agree up to rounding, and each device stores a third less. The layouts persist, because new parameters are computed from partitioned parameters and gradients. The simulated devices share one CPU, so their time does not show a speedup.
#
# ## Two ways to partition a product
# A weight of shape (inputs, outputs) can be partitioned along each of its axes.
#
# - **By columns.** Each device computes some columns of the result. It needs all columns of the input. Nothing is communicated.
# - **By rows.** Each device multiplies some columns of the input by the matching rows of the weight. An all-reduce adds these partial sums.
#
# The figure combines both.
#
# ![An MLP with tensor parallelism on two devices. Both devices have all tokens of the input. The first weight is partitioned by columns, so each device has half of the hidden units. The second weight is partitioned by rows, so each device has partial sums of the whole result, and an all-reduce adds them.](../images/tensor_parallel_layouts.svg)

# %% [markdown] predict="tp-columns-columns"
# Suppose you partition both `W2` and `W3` by columns. Each device then stores as much of the weights as before. What is communicated in the forward pass?
#
# - [ ] nothing, because products by columns need no communication | This holds only if each device has all columns of the input.
# - [ ] one all-reduce | There are no partial sums, because the summed axes are not partitioned on both sides.
# - [x] two all-gathers | Right. The hidden units are gathered before the product with `W3`, and its result before the product with `W4`.

# %% [markdown]
# We compile nine layouts. *Whole* means replicated.

# %%
WAYS = {"whole": P(), "columns": P(None, "model"), "rows": P("model", None)}


def sent(one):
    """The elements that one device sends on a ring for one collective, as in lesson 19."""
    n = one.group_size or 1
    factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": n - 1, "collective-permute": 1}
    return factors.get(one.kind, (n - 1) / n) * one.elements * (one.times or 1)


measured = {}
for second in WAYS:
    for third in WAYS:
        layouts = layout | {"W2": WAYS[second], "b2": P(*WAYS[second][1:])}
        layouts |= {"W3": WAYS[third], "b3": P(*WAYS[third][1:])}
        found = list_collectives(network, {n: put(numbers[n], layouts[n]) for n in numbers}, x)
        measured[f"{second}, {third}"] = sum(map(sent, found))
        print(f"W2 {second:8s} W3 {third:8s}", ", ".join(f"{one.kind} of {one.elements:,}" for one in found))

# %% [markdown]
# The plot adds up what one device sends. Grey layouts store at least one weight whole.

# %%
_, axes = plots.subplots(height=2.6)
colours = ["lightgrey" if "whole" in name else plots.COLOURS[5] for name in measured]
colours[list(measured).index("columns, rows")] = plots.COLOURS[1]
axes.bar_label(axes.barh(list(measured), list(measured.values()), color=colours), fmt="{:,.0f}", padding=4)
axes.set(
    xlabel="elements that one device sends in the forward pass",
    ylabel="W2, W3",
    xlim=(0, 1.15 * max(measured.values())),
)
axes.invert_yaxis()
plots.show(
    "The elements that one device sends for nine layouts of W2 and W3. "
    + "; ".join(f"{k}: {v:,.0f}" for k, v in measured.items())
    + "."
)

# %% [markdown]
# With *whole, whole*, nothing is sent, but both devices along `model` store both weights and compute the same. Among the four layouts that partition both weights, *columns, rows* sends least. After the first product, each device has some of the hidden units. The activation function is elementwise. Each device stores the rows of `W3` for exactly its units, so nothing is communicated between the products. Only the partial sums of the second product need an all-reduce. The *columns, whole* program sends the same amount, because each device uses only these rows of its `W3`.
#
# ## The Megatron MLP in three modes
# *Columns, then rows* is the layout of Megatron-LM ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)). We write it in the three modes of lesson 17. In Explicit mode, the sharding of the second product is ambiguous, so you specify it. In Manual mode, you write the `psum`. In Auto mode, you write neither.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"), devices=eight)
jax.set_mesh(mesh)  # Explicit axes, for the rest of the notebook
auto = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=eight)
TOKENS, D, F = (8, 16), 32, 128  # examples and tokens of each, their width, hidden units
mlp = {"w1": draw(D, F), "w2": draw(F, D)}, {"w1": P(None, "model"), "w2": P("model", None)}


def whole_mlp(params, x, **options):  # Explicit mode needs the option out_sharding
    return jnp.matmul(jax.nn.gelu(x @ params["w1"]), params["w2"], **options)


def manual_mlp(params, x):
    summed = lambda params, x: jax.lax.psum(whole_mlp(params, x), "model")  # code of one device
    return jax.shard_map(summed, out_specs=P("data"))(params, x)


explicit_mlp = functools.partial(whole_mlp, out_sharding=P("data"))
MLPS = {"auto": (auto, whole_mlp), "explicit": (mesh, explicit_mlp), "manual": (mesh, manual_mlp)}

# %% [markdown] predict="tp-backward"
# The forward pass has one all-reduce along `model`. Which collectives does the gradient with respect to the weights **and the input** add?
#
# - [ ] nothing along `model`, only the all-reduce of the weights' gradients along `data` | This holds only without the gradient of the input, which the previous layer needs.
# - [x] one more all-reduce along `model`, and one along `data` | Right. Each device computes a partial sum of the gradient of the input, from its own hidden units.
# - [ ] an all-gather of the weights | Each device computes with its own part of the weights, in the backward pass too.


# %%
def report(modes, params, specs, x):
    for name, (own_mesh, function) in modes.items():
        with jax.set_mesh(own_mesh):
            on_mesh = {n: jax.device_put(params[n], NamedSharding(own_mesh, specs[n])) for n in params}
            tokens = jax.device_put(x, NamedSharding(own_mesh, P("data")))
            total = lambda params, x, f=function: jnp.sum(f(params, x) ** 2)
            print(f"-- {name}, result {np.asarray(function(on_mesh, tokens)).sum():.4f}")
            print_collectives(jax.jit(function).lower(on_mesh, tokens).compile(), own_mesh)
            print("   gradient:")
            print_collectives(jax.jit(jax.grad(total, argnums=(0, 1))).lower(on_mesh, tokens).compile(), own_mesh)


tokens = draw(*TOKENS, D)
report(MLPS, *mlp, tokens)

# %% [markdown]
# All three modes have the same collectives. The first line of each gradient repeats the forward pass, whose all-reduce returns a shard of the result, with 2 · 16 · 32 = 1,024 elements. The all-reduce of the gradient of the input has the same size. Along `data`, the devices add the gradients of their halves of the weights. In Manual mode, the all-reduce for the input is the transpose of the cast of `x` to a varying value (lesson 19).
#
# ## Attention heads
# Heads are independent until the output projection adds them, so they correspond to hidden units. The query, key and value weights are partitioned by columns, and the output weight by rows, so that each device has whole heads.

# %%
HEADS, K = 4, 8
heads = {name: draw(D, HEADS, K) for name in "qkv"} | {"o": draw(HEADS, K, D)}
heads = heads, {name: P(None, "model") for name in "qkv"} | {"o": P("model")}


def whole_attention(params, x, **options):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in "qkv")
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # for each head alone
    return jnp.einsum("bthk,hkd->btd", mixed, params["o"], **options)


def manual_attention(params, x):
    summed = lambda params, x: jax.lax.psum(whole_attention(params, x), "model")
    return jax.shard_map(summed, out_specs=P("data"))(params, x)


# %% [markdown]
# Compare the sizes of the all-reduces along `model`.

# %%
explicit_attention = functools.partial(whole_attention, out_sharding=P("data"))
ATTENTIONS = {
    "auto": (auto, whole_attention),
    "explicit": (mesh, explicit_attention),
    "manual": (mesh, manual_attention),
}
report(ATTENTIONS, *heads, tokens)

# %% [markdown]
# Again, the forward pass has one all-reduce, so a transformer block has two. But the backward pass all-reduces 3,072 elements along `model`, three times the shard of the input. Queries, keys and values each contribute to the gradient of `x`, and each contribution is all-reduced. If you cast `x` once, each device adds its contributions before the all-reduce.


# %%
def cast_once(params, x):
    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")  # one cast, so one psum in the backward pass
        return jax.lax.psum(whole_attention(params, x), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


report({"manual, cast once": (mesh, cast_once)}, *heads, tokens)

# %% [markdown]
# Now only 1,024 elements are all-reduced. The number of heads must be divisible by M, the number of devices along `model`.
#
# ## Sequence parallelism
# Between two tensor-parallel layers, all devices along `model` store copies of the same tokens and compute the same norms. *[Sequence parallelism](../docs/glossary.md#sequence-parallelism)* ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)) partitions these tokens by their position in the sequence. An all-gather precedes the first product, and a reduce-scatter replaces the all-reduce.
#
# ![An MLP with tensor and sequence parallelism on two devices. Each device has half of the tokens before and after. An all-gather precedes the product with the first weight, which is partitioned by columns. A reduce-scatter follows the product with the second weight, which is partitioned by rows. It adds the partial sums and leaves each device the sums of its own tokens.](../images/sequence_parallel_layouts.svg)


# %%
def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def tensor_block(params, x):
    return x + jax.lax.psum(whole_mlp(params, norm(x)), "model")


def sequence_block(params, x):
    gathered = jax.lax.all_gather(norm(x), "model", axis=1, tiled=True)
    return x + jax.lax.psum_scatter(whole_mlp(params, gathered), "model", scatter_dimension=1, tiled=True)


# %% [markdown]
# Compare what both programs send.

# %%
BLOCKS = {
    "tensor parallelism": (tensor_block, P("data")),
    "with sequence parallelism": (sequence_block, P("data", "model")),
}


def layers(block, spec, params, x, depth=4):
    for _ in range(depth):
        x = jax.shard_map(block, out_specs=spec)(params, x)
    return x


for name, (block, spec) in BLOCKS.items():
    arguments = {n: jax.device_put(mlp[0][n], mlp[1][n]) for n in mlp[0]}, jax.device_put(tokens, spec)
    one_layer = jax.jit(functools.partial(layers, block, spec, depth=1))
    print(f"-- {name}: one device sends {sum(map(sent, list_collectives(one_layer, *arguments))):,.0f} elements")
    print_collectives(one_layer.lower(*arguments).compile(), mesh)

# %% [markdown]
# An all-gather and a reduce-scatter together send as much as an all-reduce. The advantage is memory. The next cell computes how many bytes each device stores for the backward pass of four blocks. The function that `jax.vjp` returns is a pytree of these *residuals* (lesson 15). Their types contain their shardings.

# %%
along_model, stored = (1, 2, 4, 8), {name: [] for name in BLOCKS}
for m in along_model:
    with jax.set_mesh(jax.make_mesh((1, m), ("data", "model"), devices=eight[:m])):
        weights = {n: jax.device_put(mlp[0][n], mlp[1][n]) for n in mlp[0]}
        for name, (block, spec) in BLOCKS.items():
            forward = lambda weights, x, b=block, s=spec: jax.vjp(functools.partial(layers, b, s), weights, x)[1]
            residuals = jax.tree.leaves(jax.eval_shape(forward, weights, jax.device_put(tokens, spec)))
            activations = [one for one in residuals if one.ndim > 2]  # without the weights
            parts = [one.sharding.shard_shape(one.shape) for one in activations]
            stored[name].append(sum(4 * math.prod(part) for part in parts) / 1000)

# %% [markdown]
# If all residuals were partitioned, the memory would be proportional to 1 / M.

# %%
_, axes = plots.subplots(height=3.0)
for name, marker in zip(stored, "os", strict=True):
    axes.plot(along_model, stored[name], marker=marker, label=name)
axes.plot(along_model, [stored["tensor parallelism"][0] / m for m in along_model], color=plots.QUIET, label="1 / M")
axes.loglog(base=2)
axes.set(xlabel="devices along model, M", ylabel="kB of residuals on a device", yticks=[200, 400, 800, 1600])
for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter("{x:g}")
axes.legend()
told = "; ".join(f"{name}: {', '.join(f'{kb:.0f}' for kb in values)}" for name, values in stored.items())
plots.show(f"Residuals of four blocks on each device, in kB, for 1, 2, 4 and 8 devices along model. {told}.")

# %% [markdown]
# With tensor parallelism alone, the tokens between the layers are replicated, so their memory does not shrink. With sequence parallelism, only the gathered tokens are still replicated. Eight devices then store 279 kB each, instead of 397 kB.
#
# ## When does tensor parallelism pay off?
# With more devices, each device computes less, but it does not send less. **How many devices are useful?** Consider the forward pass of an MLP with t tokens, width d and f hidden units on M devices, in bfloat16 (2 bytes). Each device
#
# - computes 4 t d f / M floating-point operations for both products, and
# - sends 2 (M - 1) / M · t d · 2 bytes in the all-reduce.
#
# The next cell compares these formulas with a compiled program, whose elements have 4 bytes.

# %%
weights, x = {n: jax.device_put(mlp[0][n], mlp[1][n]) for n in mlp[0]}, jax.device_put(tokens, P("data"))
t, m = TOKENS[0] * TOKENS[1] / 4, 2  # the tokens of one position along data
print(f"operations: {4 * t * D * F / m:,.0f} by the formula, {flops(manual_mlp, weights, x):,.0f} in the program")
print(f"bytes sent: {2 * (m - 1) / m * t * D * 4:,.0f} by the formula, ", end="")
print(f"{4 * sum(map(sent, list_collectives(manual_mlp, weights, x))):,.0f} in the program")

# %% [markdown]
# The program's count includes the activation function. We estimate both times by dividing by the peak rate and by the bandwidth of an accelerator. The last Deeper section lists the sources of these rates.

# %% [markdown] predict="tp-batch"
# Communication takes half as long as computation. You double the number of tokens. What happens to this ratio?
#
# - [ ] it falls, because only the computation grows | This holds for FSDP, which communicates weights. Tensor parallelism communicates activations, one vector for each token.
# - [ ] it grows, because more is sent | More is computed too.
# - [x] it stays the same | Right. Both times are proportional to t, and also to d. The ratio depends on M, f, and the accelerator only.

# %%
# Change these numbers and run the cell again.
f, LARGEST = 28_672, 64  # hidden units; the largest M
CHIPS = {  # peak in FLOP/s, bytes per second that one device sends
    "H100, in a node": (989e12, 450e9),
    "H100, between nodes": (989e12, 50e9),
    "TPU v5e": (197e12, 100e9),
    "TPU v5p": (459e12, 200e9),
}


def seconds(chip, m, t=8192, d=8192):
    peak, bandwidth = CHIPS[chip]
    return 4 * t * d * f / m / peak, 2 * (m - 1) / m * t * d * 2 / bandwidth


for t in (8192, 16384):
    compute, communicate = seconds("H100, in a node", 8, t)
    print(f"{t:,} tokens, M = 8: communication / computation = {communicate / compute:.2f}")

# %% [markdown]
# We plot this ratio for more devices.

# %%
_, (left, right) = plots.subplots(1, 2, height=3.0)
m = np.arange(2, LARGEST + 1)  # one device sends nothing, and a logarithmic axis has no zero
for chip in CHIPS:
    compute, communicate = seconds(chip, m)
    left.plot(m, communicate / compute, label=chip)
compute, communicate = seconds("H100, in a node", m)
right.plot(m, 1e3 * compute, label="compute")
right.plot(m, 1e3 * communicate, label="communicate")
left.axhline(1, color=plots.QUIET, linewidth=0.8)
for axes, label in ((left, "communication / computation"), (right, "ms, H100 in a node")):
    axes.loglog(base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set(xlabel="devices along model, M", ylabel=label)
    axes.legend(fontsize=7.5)
told = ", ".join(f"{1 + f * bandwidth / peak:.1f} ({chip})" for chip, (peak, bandwidth) in CHIPS.items())
words = f"Left, the time to communicate divided by the time to compute. It reaches 1 at M = {told}."
plots.show(f"{words} Right, both times in milliseconds for an H100.")
print("both take equally long at M =", told)

# %% [markdown]
# Both times are equal at M = 1 + f · bandwidth / peak. Inside a node of H100s or along one axis of TPUs, this limit is about 14 to 16 devices. If each H100 along `model` is in a different node, the limit is two devices. So on H100s, tensor parallelism usually stays inside a node of eight.
#
# The core ends here.

# %% [markdown]
# ## Deeper: communicate while you multiply
# *The exercise "Reduce-scatter during a product" needs this section.* With sequence parallelism, the first product waits for the all-gather. Lesson 19 showed an alternative, the collective matmul. The blocks of tokens are passed around a ring. A device can multiply the block that it has while it receives the next one. In lesson 19, each product was an addend of the result. Here, each product gives some **rows** of the result.


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

    start = x, jnp.zeros_like(x, shape=(n, len(x), w.shape[1]))
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
# One all-gather is replaced by eight permutes, and both programs compute the same result. The permute of the last iteration is not needed, but it keeps the code short. The second product of the MLP ends with a reduce-scatter. There, the partial *sums* can be passed from device to device. You write this in the exercise.
#
# ## Deeper: the embedding and the loss over a partitioned vocabulary
# The table of an embedding has one row for each word of the vocabulary. With 128,000 words and a width of 8,192, it takes 2 GB in bfloat16. If its rows are partitioned along `model`, each device looks up the words whose rows it stores. It uses zeros for all other words. An all-reduce adds these results, so each word gets its row. The next cell writes this lookup in Manual mode and in Explicit mode.

# %%
VOCABULARY = 40
table = jax.device_put(draw(VOCABULARY, D), P("model", None))
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
# Both programs have the same all-reduce. At the end of a model, a matrix of the same shape computes a score (logit) for each word. For 4,096 tokens, these scores take 2 GB in float32, so they should stay partitioned. The loss needs only three numbers for each token: the largest score, the sum of the exponentials, and the score of the target word. In Explicit mode, each reduction over the partitioned axis becomes a small all-reduce. Compare the sizes of these all-reduces with the 40 scores of each token.


# %%
def word_loss(table, hidden, words):
    scores = hidden @ table.T  # float32[tokens@data,words@model]
    right = jnp.sum(jnp.where(jnp.arange(VOCABULARY) == words[:, None], scores, 0), axis=1)
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)


hidden = jax.device_put(draw(TOKENS[0], D), P("data"))
print_collectives(jax.jit(word_loss).lower(table, hidden, words).compile(), mesh)
print("gradient:")
print_collectives(jax.jit(jax.grad(word_loss, argnums=(0, 1))).lower(table, hidden, words).compile(), mesh)

# %% [markdown]
# Each device has two tokens, so an all-reduce along `model` returns two elements for each reduction. The compiler merged two reductions into the all-reduce of four elements. No device gathers 40 scores. The two larger all-reduces of the gradient return shards of the gradients of `hidden` and of the table. The loss does not look up the score of the target word with `scores[i, words[i]]`, because this would index a partitioned axis. The comparison with `jnp.arange` is elementwise.
#
# ## Deeper: meshes with three axes
# Large models combine several kinds of parallelism. This example combines data parallelism, FSDP and tensor parallelism on a mesh with three axes. The batch is partitioned along `data` and `fsdp`. The weights are partitioned along `fsdp` and `model`. They are gathered along `fsdp` only, so each device computes with its part along `model`. In the program, look for the axis of each collective.

# %%
cube = jax.make_mesh((2, 2, 2), ("data", "fsdp", "model"), devices=eight)
names = {"w1": ("fsdp", "model"), "w2": ("model", "fsdp")}


def local_loss(params, x):
    w1 = jax.lax.all_gather(params["w1"], "fsdp", axis=0, tiled=True)
    w2 = jax.lax.all_gather(params["w2"], "fsdp", axis=1, tiled=True)
    result = jax.lax.psum(whole_mlp({"w1": w1, "w2": w2}, x), "model")
    return jax.lax.pmean(jnp.mean(result**2), ("data", "fsdp"))


with jax.set_mesh(cube):
    params = {n: jax.device_put(mlp[0][n], P(*names[n])) for n in names}
    batch = jax.device_put(tokens, P(("data", "fsdp")))
    three = jax.jit(jax.value_and_grad(jax.shard_map(local_loss, out_specs=P())))
    print_collectives(three.lower(params, batch).compile(), cube)
    print("type of a gradient:", jax.typeof(three(params, batch)[1]["w1"]))
plots.show_shardings({"w1": params["w1"], "w2": params["w2"]}, "Two weights on a mesh of two by two by two devices.")

# %% [markdown]
# Each kind of parallelism has its own collectives.
#
# - FSDP gathers the weights along `fsdp` and reduce-scatters their gradients.
# - Tensor parallelism all-reduces the result along `model`.
# - Data parallelism all-reduces the gradients along `data`. A small all-reduce along `data` and `fsdp` averages the loss.
#
# This program all-reduces 4,096 elements along `data` **before** it reduce-scatters them along `fsdp`. JAX casts the weights to values that vary along `data` only after the all-gather, and the backward pass runs in the reverse order. If you cast the weights before the all-gather, the reduce-scatter comes first.


# %%
def cast_before_gather(params, x):
    return local_loss(jax.lax.pcast(params, "data", to="varying"), x)


with jax.set_mesh(cube):
    early = jax.jit(jax.value_and_grad(jax.shard_map(cast_before_gather, out_specs=P())))
    print_collectives(early.lower(params, batch).compile(), cube)
    pairs = zip(*(jax.tree.leaves(function(params, batch)[1]) for function in (three, early)), strict=True)
    print("largest difference of the gradients:", max(jnp.abs(one - other).max() for one, other in pairs))

# %% [markdown]
# Now only 2,048 elements are all-reduced along `data`, half as many. The gradients agree up to rounding.
#
# The last axis of a mesh varies fastest in the order of the devices. So in this mesh, devices along `model`, which communicate most often, have consecutive numbers. `jax.make_mesh` also takes the topology of TPUs into account.
#
# The next figure shows the collectives of a training step of a whole transformer block, also read from its compiled program. It calls the axis of tensor parallelism `tensor`.
#
# ![Thirteen collectives of one training step of a transformer block on two by two by two devices, in the order of execution. Four all-gathers along fsdp gather the weights. Two all-reduces along tensor add heads and hidden units, and a small one along data and fsdp averages the loss. In the backward pass, an all-reduce along tensor, one along data for all gradients, and four reduce-scatters along fsdp follow.](../images/parallel_step_3d.svg)
#
# | kind of parallelism | communicates | how often | its axis should use |
# |---|---|---|---|
# | data | gradients | once in a step | the slowest network |
# | FSDP | weights and gradients | for each layer | links of medium speed |
# | tensor | activations | several times for each layer | the fastest links |
#
# You can also partition one weight along two mesh axes, `P("x", "y")`, without gathering it. The activations are then partitioned along both axes too, and each product needs smaller collectives along both. [Pope et al. 2022](https://arxiv.org/abs/2211.05102) use such layouts for inference with few tokens, where gathered weights would be much larger than the activations.
#
# ## Deeper: what compilers for accelerators do
# The programs of this notebook were compiled for simulated CPUs. Which collectives do other compilers choose? First, we write sequence parallelism in Auto and in Explicit mode. Both functions state that the result is partitioned by tokens, so a reduce-scatter would suffice.


# %%
def auto_block(params, x):
    state = jax.lax.with_sharding_constraint
    return x + state(whole_mlp(params, state(norm(x), P("data"))), P("data", "model"))


def explicit_block(params, x):
    return x + whole_mlp(params, jax.reshard(norm(x), P("data")), out_sharding=P("data", "model"))


for name, own_mesh, block in (("auto", auto, auto_block), ("explicit", mesh, explicit_block)):
    with jax.set_mesh(own_mesh):
        weights = {n: jax.device_put(mlp[0][n], NamedSharding(own_mesh, mlp[1][n])) for n in mlp[0]}
        x = jax.device_put(tokens, NamedSharding(own_mesh, P("data", "model")))
        print(f"-- {name}")
        print_collectives(jax.jit(block).lower(weights, x).compile(), own_mesh)

# %% [markdown]
# In both modes, the compiler for CPUs uses an all-reduce, which sends twice as much as a reduce-scatter. Only the program with `shard_map` contains the reduce-scatter.
#
# We also compiled three programs for accelerators, from a description of the devices, with JAX 0.10.2. They use bfloat16, 8 examples of 256 tokens, a width of 1,024, 4,096 hidden units, and a mesh of four by two devices. The table shows the collectives along `model`. The first program has two products with the same input, like a gated MLP.
#
# | program | simulated CPUs | eight TPU v5e | eight H100 |
# |---|---|---|---|
# | gradient of an MLP with two first products, Explicit | all-reduces of 524,288 and 1,048,576 | two all-reduces of 524,288 | two all-reduces of 524,288 |
# | sequence parallelism, Explicit | all-gather of 524,288, all-reduce of 524,288 | all-gather of 524,288, reduce-scatter of 262,144 | as on TPUs |
# | sequence parallelism, `shard_map` | all-gather of 524,288, reduce-scatter of 262,144 | the same | the same |
#
# In these programs, the compilers for accelerators add both contributions to the gradient of the input before they communicate. They also use a reduce-scatter where the result is partitioned. So Explicit code that sends more than necessary on CPUs can have the same collectives as Manual code on accelerators. With very small arrays, the compiler for TPUs replaced a reduce-scatter by an all-reduce, even in Manual mode. Inspect the program of your accelerator at your sizes.
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `pjit(f, in_axis_resources=..., out_axis_resources=...)` | `jax.jit`, with shardings of the arguments, or `in_shardings` and `out_shardings` |
# | `with mesh:` and `with_sharding_constraint(x, P(...))` | `with jax.set_mesh(mesh):`. On Explicit axes `out_sharding=P(...)` or `jax.reshard` |
# | `PositionalSharding(devices).reshape(4, 2)` | `jax.make_mesh((4, 2), ("data", "model"))` and `P` |
# | `xmap` with named axes for model parallelism | `jax.shard_map` |
# | `flax.linen.with_partitioning`, logical axis rules | in NNX, an `out_sharding` in the metadata of a Param |
#
# ## Deeper: the rates of the estimate
# The core uses these rates, computed from the manufacturers' specifications. Each bandwidth counts only the data that one device sends.
#
# | | peak in bfloat16 | one device sends | source |
# |---|---|---|---|
# | H100 SXM, in a node | 989 TFLOP/s | 450 GB/s | [NVIDIA](https://www.nvidia.com/en-us/data-center/h100/): 1,979 TFLOP/s with sparsity, NVLink 900 GB/s in both directions together |
# | H100, between nodes | 989 TFLOP/s | 50 GB/s | [DGX H100](https://www.nvidia.com/en-us/data-center/dgx-h100/): a network card with 400 Gbit/s for each GPU |
# | TPU v5e, along one axis | 197 TFLOP/s | 100 GB/s | [Google Cloud](https://cloud.google.com/tpu/docs/v5e): 400 GB/s in both directions, on four links in two axes |
# | TPU v5p, along one axis | 459 TFLOP/s | 200 GB/s | [Google Cloud](https://cloud.google.com/tpu/docs/v5p): 1,200 GB/s in both directions, on six links in three axes |
#
# For TPUs, we assume a closed ring along one axis, on which each device sends in both directions at once. It then sends half of the data over each of its two links along this axis. A link of a TPU v5e sends 50 GB/s, and a link of a TPU v5p sends 100 GB/s. With one direction only, or without a closed ring, the bandwidth is lower.
#
# The scaling book [derives limits on M](https://jax-ml.github.io/scaling-book/training/). All rates are peaks, so real times are longer. If computation and communication overlap, only the longer time counts. Between nodes, we assume that each device sends all of its data to another node. If an all-reduce first adds inside each node, tensor parallelism can [span two nodes](https://jax-ml.github.io/scaling-book/gpus/).

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | to partition a product without communication | the weight by columns, `P(None, "model")` |
# | an MLP or attention with one all-reduce | columns, then rows, `P("model", None)` |
# | the all-reduce on Explicit axes | `jnp.matmul(h, w2, out_sharding=P("data"))` |
# | the all-reduce in Manual mode | `jax.lax.psum(h @ w2, "model")` |
# | one all-reduce for the gradient of an input of several products | `jax.lax.pcast(x, "model", to="varying")` once |
# | partitioned tokens between the products | `all_gather` before, `psum_scatter` after |
# | to choose M | M below 1 + f · bandwidth / peak, inside a node |
#
# In the first exercise, you complete the layout of four layers.
