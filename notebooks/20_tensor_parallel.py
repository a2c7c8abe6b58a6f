# %% [markdown]
# # 20 · Tensor parallelism
#
# *The core takes about 35 minutes. Five "Deeper" sections can be skipped. Then do [the exercises](../exercises/20_tensor_parallel/20_tensor_parallel.ipynb).* After the core, you can partition the layers of a transformer so that two products need one all-reduce, read this from the compiled program in three modes, and estimate when it pays off.
#
# **Prerequisites.** Shardings and collectives (lesson 16), Explicit axes (17), data parallelism and FSDP (18), `shard_map` (19). Try to answer these questions from memory.
#
# 1. From 16: The summed axis of a product is partitioned on both sides. Which collective completes the product?
#
# <details><summary>Answer</summary>
#
# An [all-reduce](../docs/glossary.md#all-reduce). Each device has a part of every sum.
# </details>
#
# 2. From 18: What does each device store with FSDP, and what does it need during a step?
#
# <details><summary>Answer</summary>
#
# It stores a shard of every weight. During a step, it gathers whole weights, one layer after the other.
# </details>
#
# 3. From 19: How many elements does one of n devices send in an all-reduce of S elements, and how many in a reduce-scatter?
#
# <details><summary>Answer</summary>
#
# 2 (n - 1) / n · S and (n - 1) / n · S, on a ring.
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
# With FSDP, every device gathers every weight before it uses it. **What if each device keeps its part of a weight and computes with that part only?** This is *[tensor parallelism](../docs/glossary.md#tensor-parallelism)*.
#
# The example is a network of four layers on a mesh of four by two devices. The batch is partitioned along `batch`, and the two middle layers along `model`. The other layers are replicated.

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
# Two devices along `model` have the same examples. Each has half of the columns of `W2` and half of the rows of `W3`. The network and its training step contain nothing about shardings.


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
print(f"gradient: {one:.1f} ms on one device, {several:.1f} ms on eight simulated devices, which share one CPU")

# %% [markdown]
# The layouts persist, because new parameters are computed from partitioned parameters and gradients.
#
# ## Two ways to partition a product
# There are two ways to partition the weight of a layer.
#
# - **By columns.** Each device computes some columns of the result, from all columns of the input. No communication is needed.
# - **By rows.** Each device uses some columns of the input. The results are partial sums, and an all-reduce adds them.
#
# ![Above, an MLP with tensor parallelism on two devices. All devices have the input. The first weight is partitioned by columns, so each device has half of the hidden units. The second weight is partitioned by rows, so each device has partial sums, and an all-reduce adds them. Below, the same MLP with sequence parallelism. Each device has half of the tokens before and after. An all-gather precedes the first product, and a reduce-scatter follows the second.](../images/tensor_parallel_layouts.svg)

# %% [markdown] predict="tp-columns-columns"
# Suppose you partition both `W2` and `W3` by columns. Each device then stores as much as before. What is communicated in the forward pass?
#
# - [ ] nothing, because products by columns need no communication | This holds only if each device has all columns of the input.
# - [ ] one all-reduce | There are no partial sums, because the summed axes are not partitioned on both sides.
# - [x] two all-gathers | Right. The hidden units are gathered before the third product, and its result is gathered before the fourth.

# %%
WAYS = {"whole": P(), "columns": P(None, "model"), "rows": P("model", None)}


def sent(one):
    """The elements that one device sends for a collective of a program on rings, as in lesson 19."""
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

# %%
_, axes = plots.subplots(height=2.6)
colours = [plots.COLOURS[1] if name == "columns, rows" else plots.COLOURS[5] for name in measured]
axes.bar_label(axes.barh(list(measured), list(measured.values()), color=colours), fmt="{:,.0f}", padding=4)
axes.set(
    xlabel="elements that one device sends in the forward pass",
    ylabel="W2, W3",
    xlim=(0, 1.15 * max(measured.values())),
)
axes.invert_yaxis()
plots.show(
    "The elements that one device sends for nine layouts. "
    + ", ".join(f"{k}: {v:,.0f}" for k, v in measured.items())
    + "."
)

# %% [markdown]
# Four of these layouts partition both weights. Among them, *columns, rows* has the fewest collectives and sends least. The activation function between the products changes nothing, because it treats each hidden unit alone.
#
# ## The Megatron MLP in three modes
# *Columns, then rows* is known from Megatron-LM ([Shoeybi et al. 2019](https://arxiv.org/abs/1909.08053)). We write it in the three modes of lesson 17. On Explicit axes, the second product is ambiguous, so you state the sharding of its result.

# %%
mesh = jax.make_mesh((4, 2), ("data", "model"), devices=eight)
jax.set_mesh(mesh)  # Explicit axes, for the rest of the notebook
auto = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=eight)
TOKENS, D, F = (8, 16), 32, 128  # examples and tokens of each, their width, hidden units
mlp = {"w1": draw(D, F), "w2": draw(F, D)}, {"w1": P(None, "model"), "w2": P("model", None)}


def whole_mlp(params, x, **options):
    return jnp.matmul(jax.nn.gelu(x @ params["w1"]), params["w2"], **options)


def manual_mlp(params, x):
    summed = lambda params, x: jax.lax.psum(whole_mlp(params, x), "model")  # code of one device
    return jax.shard_map(summed, out_specs=P("data"))(params, x)


explicit_mlp = functools.partial(whole_mlp, out_sharding=P("data"))
MLPS = {"auto": (auto, whole_mlp), "explicit": (mesh, explicit_mlp), "manual": (mesh, manual_mlp)}

# %% [markdown] predict="tp-backward"
# The forward pass has one all-reduce along `model`. What does the gradient with respect to the weights **and the input** add?
#
# - [ ] nothing along `model`, only the all-reduce of the weights' gradients along `data` | This holds if you do not need the gradient of the input. A layer below needs it.
# - [x] one more all-reduce along `model`, and one along `data` | Right. Each device has partial sums of the gradient of the input, from its own hidden units.
# - [ ] an all-gather of the weights | Each device computes the gradient of its own part.


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
# All three programs communicate the same. The first all-reduce returns the shard of the result, 2 · 16 · 32 elements. That of the gradient of the input is as large. Along `data`, the devices add the gradients of their halves of the weights.
#
# | | forward pass | backward pass |
# |---|---|---|
# | before the first product (Megatron's *f*) | nothing | all-reduce of the gradient of the input |
# | after the second product (Megatron's *g*) | all-reduce of the result | nothing |
#
# In Manual mode, *f* is the cast of `x` to a varying value, whose transpose is a `psum` (lesson 19).
#
# ## Attention heads
# Heads are independent until the output product adds them. So the weights of queries, keys and values are partitioned by heads (columns), and that of the output by rows.

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


# %%
explicit_attention = functools.partial(whole_attention, out_sharding=P("data"))
ATTENTIONS = {
    "auto": (auto, whole_attention),
    "explicit": (mesh, explicit_attention),
    "manual": (mesh, manual_attention),
}
report(ATTENTIONS, *heads, tokens)

# %% [markdown]
# Again, there is one all-reduce in the forward pass. So a transformer block has two. But in the backward pass, 3,072 elements are all-reduced along `model` in this program, three times the size of the shard of the input. Queries, keys and values each contribute to the gradient of `x`, and each contribution is all-reduced. If you cast `x` once, or compute all three with one product, the contributions are added first.


# %%
def cast_once(params, x):
    def on_one_device(params, x):
        x = jax.lax.pcast(x, "model", to="varying")  # one cast, so one psum in the backward pass
        return jax.lax.psum(whole_attention(params, x), "model")

    return jax.shard_map(on_one_device, out_specs=P("data"))(params, x)


report({"manual, cast once": (mesh, cast_once)}, *heads, tokens)

# %% [markdown]
# The number of heads must be divisible by M, the number of devices along `model`. A typical mistake is to partition the axis of size K instead. The scores are then partial sums, and have to be all-reduced.
#
# ## Sequence parallelism
# Between two such layers, all devices along `model` have the same tokens. They store equal copies, and compute the same norms. *[Sequence parallelism](../docs/glossary.md#sequence-parallelism)* ([Korthikanti et al. 2022](https://arxiv.org/abs/2205.05198)) partitions the tokens between the layers by their position in the sequence. The lower half of the figure shows it.


# %%
def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def tensor_block(params, x):
    return x + jax.lax.psum(whole_mlp(params, norm(x)), "model")


def sequence_block(params, x):
    gathered = jax.lax.all_gather(norm(x), "model", axis=1, tiled=True)
    return x + jax.lax.psum_scatter(whole_mlp(params, gathered), "model", scatter_dimension=1, tiled=True)


# %%
BLOCKS = {"tensor parallel": (tensor_block, P("data")), "and sequence parallel": (sequence_block, P("data", "model"))}


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
# An all-gather and a reduce-scatter send exactly as much as an all-reduce. What is gained is memory. The next cell computes what a device stores for the backward pass of four blocks, with one to eight devices along `model`. `jax.vjp` returns a pytree whose leaves are these *residuals*, and their types contain their shardings.

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

# %%
_, axes = plots.subplots(height=2.6)
for name, marker in zip(stored, "os", strict=True):
    axes.plot(along_model, stored[name], marker=marker, label=name)
axes.plot(along_model, [stored["tensor parallel"][0] / m for m in along_model], color=plots.QUIET, label="1 / M")
axes.set(xlabel="devices along model, M", ylabel="kB of residuals on a device", xticks=along_model, ylim=(0, None))
axes.legend()
told = "; ".join(f"{name}: {', '.join(f'{kb:.0f}' for kb in values)}" for name, values in stored.items())
plots.show(f"Residuals of four blocks on each device, in kB, for 1, 2, 4 and 8 devices along model. {told}.")

# %% [markdown]
# With tensor parallelism alone, the tokens between the products are replicated, so their memory does not shrink. With sequence parallelism, almost everything shrinks. (The gathered tokens are stored too. With `jax.checkpoint`, lesson 15, you can gather them again instead.)
#
# ## When does tensor parallelism pay off?
# Compare the time to compute with the time to communicate. For an MLP with t tokens, width d and f hidden units on M devices, in bfloat16 (2 bytes), each device needs
#
# - 4 t d f / M floating-point operations for both products, and
# - 2 (M - 1) / M · t d · 2 bytes for the all-reduce of the result.
#
# The next cell compares these formulas with a compiled program, whose elements have 4 bytes.

# %%
weights, x = {n: jax.device_put(mlp[0][n], mlp[1][n]) for n in mlp[0]}, jax.device_put(tokens, P("data"))
t, m = TOKENS[0] * TOKENS[1] / 4, 2  # the tokens of one position along data
print(f"operations: {4 * t * D * F / m:,.0f} by the formula, {flops(manual_mlp, weights, x):,.0f} in the program")
print(f"bytes sent: {2 * (m - 1) / m * t * D * 4:,.0f} by the formula, ", end="")
print(f"{4 * sum(map(sent, list_collectives(manual_mlp, weights, x))):,.0f} in the program")

# %% [markdown]
# XLA also counts the activation function. These are figures of accelerators.
#
# | | peak in bfloat16 | one device sends | source |
# |---|---|---|---|
# | H100 SXM, in a node | 989 TFLOP/s | 450 GB/s | [NVIDIA](https://www.nvidia.com/en-us/data-center/h100/): 1,979 TFLOP/s with sparsity, NVLink 900 GB/s in both directions together |
# | H100, between nodes | 989 TFLOP/s | 50 GB/s | [DGX H100](https://www.nvidia.com/en-us/data-center/dgx-h100/): a network card with 400 Gbit/s for each GPU |
# | TPU v5e, along one axis | 197 TFLOP/s | 100 GB/s | [Google Cloud](https://cloud.google.com/tpu/docs/v5e): 400 GB/s in both directions, on four links in two axes |
# | TPU v5p, along one axis | 459 TFLOP/s | 200 GB/s | [Google Cloud](https://cloud.google.com/tpu/docs/v5p): 1,200 GB/s in both directions, on six links in three axes |

# %% [markdown] predict="tp-batch"
# The communication takes half as long as the computation. You double the number of tokens. What happens to this ratio?
#
# - [ ] it falls, because only the computation grows | This holds for FSDP, which communicates weights. Tensor parallelism communicates tokens.
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
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="devices along model, M", ylabel=label)
    axes.legend(fontsize=7.5)
limits = {chip: 1 + f * bandwidth / peak for chip, (peak, bandwidth) in CHIPS.items()}
told = ", ".join(f"{chip} {limit:.1f}" for chip, limit in limits.items())
words = (
    f"Left, the time to communicate divided by the time to compute, for {f:,} hidden units. It reaches 1 at M = {told}."
)
plots.show(f"{words} Right, both times in milliseconds for an H100.")
print("both take equally long at M =", told)

# %% [markdown]
# Both times are equal at M = 1 + f · bandwidth / peak. The chips have similar limits inside a node or along one axis. If each H100 along `model` is in a different node, the limit is two devices. So on H100s, tensor parallelism usually stays inside a node of eight, and other mesh axes use data parallelism, FSDP or a pipeline (lesson 21).
#
# This model assumes peak rates. If computation and communication overlap, the longer time counts. The scaling book [derives such limits](https://jax-ml.github.io/scaling-book/training/). An all-reduce that adds inside each node first lets tensor parallelism [span two nodes](https://jax-ml.github.io/scaling-book/gpus/).
#
# The core ends here.

# %% [markdown]
# ## Deeper: communicate while you multiply
# *The exercise "A product whose sums are passed on" needs this section.* With sequence parallelism, the first product waits for the all-gather. Lesson 19 showed the alternative. If the blocks of tokens are passed around, each device multiplies the block that it has while the next one arrives. Here, each block gives some **rows** of the result.


# %%
def gather_then_multiply(x, w):
    return jax.lax.all_gather(x, "model", tiled=True) @ w


def multiply_while_gathering(x, w):
    n, me = jax.lax.axis_size("model"), jax.lax.axis_index("model")
    to_next = [(i, (i + 1) % n) for i in range(n)]

    def step(number, state):
        block, rows = state
        rows = rows.at[(me - number) % n].set(block @ w)  # the block of the device `number` positions before
        return jax.lax.ppermute(block, "model", to_next), rows

    start = x, jnp.zeros_like(x, shape=(n, len(x), w.shape[1])) + 0 * (x[0] @ w)
    return jax.lax.fori_loop(0, n, step, start)[1].reshape(-1, w.shape[1])


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
# The last permute of this loop is not needed. It keeps the code short. The second product of the MLP ends with a reduce-scatter, and there the *sums* can be passed on. This is the exercise.
#
# ## Deeper: the embedding and the loss over a partitioned vocabulary
# The table of an embedding has one row for each word. With 128,000 words and a width of 8,192, it has 2 GB in bfloat16. If its rows are partitioned along `model`, each device looks up the words that it has, and an all-reduce adds the results, of which all but one are zero.

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
# At the end of a model, the scores of all words are computed with a matrix of the same shape. For 4,096 tokens, 128,000 scores in float32 take 2 GB, so they should stay partitioned. The loss needs three numbers for each token. These are the largest score, the sum of the exponentials, and the score of the right word. In Explicit mode, the reductions over the partitioned axis become small all-reduces.


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
# Each device has two tokens, so the collectives along `model` return two numbers for each reduction, and no device gathers 40 scores. A lookup of the right score with `scores[i, words[i]]` would index a partitioned axis. The comparison with `jnp.arange` treats each score alone.
#
# ## Deeper: meshes with three axes
# Large models combine several kinds of parallelism. On the mesh of this section, the batch is partitioned along `data` and `fsdp`. The weights are partitioned along `fsdp` and `model`, gathered along `fsdp` only, and used in parts along `model`.

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
# Each axis has its own collectives. The gathered weights and the reduce-scatters belong to FSDP, the all-reduce along `model` to tensor parallelism, and that along `data` adds the gradients of the replicas. The last axis of the mesh varies fastest in the order of the devices. So devices along `model`, which communicate most often, have consecutive numbers. `jax.make_mesh` takes the topology of TPUs into account.
#
# The next figure shows a training step of a whole transformer block, read from its program in the same way. [Its script](../images/src/parallel_step_3d.py) contains the step.
#
# ![Thirteen collectives of one training step of a transformer block on two by two by two devices, in the order of execution. Four all-gathers along fsdp gather the weights. Two all-reduces along tensor add heads and hidden units, and a small one along data and fsdp averages the loss. In the backward pass, an all-reduce along tensor, one along data for all gradients, and four reduce-scatters along fsdp follow.](../images/parallel_step_3d.svg)
#
# | kind of parallelism | communicates | how often | its axis should be |
# |---|---|---|---|
# | data | gradients | once in a step | the slowest network |
# | FSDP | weights and gradients | for each layer | in between |
# | tensor | tokens | several times for each layer | the fastest links |
#
# You can also partition one weight along two axes without gathering it, `P("x", "y")`, and the tokens along both. Each product then needs smaller collectives along both axes. [Pope et al. 2022](https://arxiv.org/abs/2211.05102) use such layouts for inference with few tokens, where gathered weights would be much larger than the tokens.
#
# ## Deeper: what compilers for accelerators do
# The programs of this notebook were compiled for simulated CPUs. We also compiled three programs for accelerators, from a description of the devices, with JAX 0.10.2. They use bfloat16, 8 examples of 256 tokens, a width of 1,024, 4,096 hidden units, and a mesh of four by two devices. The table shows the collectives along `model`.
#
# | program | simulated CPUs | eight TPU v5e | eight H100 |
# |---|---|---|---|
# | gradient of an MLP with two first products, Explicit | all-reduces of 524,288 and 1,048,576 | two all-reduces of 524,288 | two all-reduces of 524,288 |
# | sequence parallelism, Explicit | all-gather of 524,288, all-reduce of 524,288 | all-gather of 524,288, reduce-scatter of 262,144 | as on TPUs |
# | sequence parallelism, `shard_map` | all-gather of 524,288, reduce-scatter of 262,144 | the same | the same |
#
# The compilers for accelerators add both contributions to the gradient of the input before they communicate, and use a reduce-scatter where the result is partitioned. So Explicit code that looks wasteful on CPUs can be as good as Manual code. With very small arrays, the compiler for TPUs replaced a reduce-scatter by an all-reduce, even in Manual mode. Read the program of your accelerator, at your sizes.
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

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | to partition a product without communication | the weight by columns, `P(None, "model")` |
# | to sum over partitioned units | the weight by rows, `P("model", None)`, and one all-reduce |
# | an MLP or attention with one all-reduce | columns, then rows; heads are the columns |
# | the all-reduce on Explicit axes | `jnp.matmul(h, w2, out_sharding=P("data"))` |
# | the all-reduce in Manual mode | `jax.lax.psum(h @ w2, "model")` |
# | one all-reduce for the gradient of an input of several products | `jax.lax.pcast(x, "model", to="varying")` once, or one product |
# | partitioned tokens between the products | `all_gather` before, `psum_scatter` after |
# | to know along which axis a program communicates | `print_collectives(compiled, mesh)` of this course |
# | to choose M | M below 1 + f · bandwidth / peak, inside a node |
#
# The JAX documentation has a page on [distributed arrays](https://docs.jax.dev/en/latest/201/sharding.html). In the first exercise, you complete the layout of four layers.
