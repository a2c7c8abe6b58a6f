# %% [markdown]
# # 26 · Capstone: train a small transformer
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/26_capstone/26_capstone.ipynb).* After the core, you have trained a language model on a real text, with the parts of a larger run: a tokenizer, resumable batches, remat, mixed precision, a layout for many devices, checkpoints and evaluation.
#
# **Prerequisites.** Training with Optax (lesson 09), remat and bfloat16 (15), FSDP (18), tensor parallelism (20), checkpoints (24), attention (25). Try to answer these questions from memory.
#
# 1. From 15: What does `jax.checkpoint` store for the backward pass?
#
# <details><summary>Answer</summary>
#
# The inputs of the function that it wraps. The backward pass computes the rest again.
# </details>
#
# 2. From 20: Along `model`, `up` is partitioned by columns and `down` by rows. Which collective does the forward pass of the MLP need?
#
# <details><summary>Answer</summary>
#
# One all-reduce, which adds the results of the hidden units.
# </details>
#
# 3. From 24: What must a checkpoint contain, so that a resumed run computes equal losses?
#
# <details><summary>Answer</summary>
#
# All that determines the next step: parameters, optimizer state, keys, and the position in the data.
# </details>

# %%
from grader.checks import devices

devices.start(8, keep=True)  # before JAX is first used: a single accelerator stays the default device

import bz2
import collections
import functools
import gzip
import json
import re
import tempfile
import time
from pathlib import Path

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from grader.learning import plots, poem
from grader.learning.inspection import axes_of_groups, bytes_on_device, time_ms
from grader.program.hlo import collectives_and_groups

# %% [markdown]
# ## The text
# **Which parts does a training run consist of?** The figure shows them.
#
# ![The parts of the run. The poem becomes tokens, and the number of a step selects a batch. The training step consists of the model with scan and remat, gradients of micro-batches, clipping and Adam. A checkpoint contains the state and the number of the step, and the run resumes from both. The same step runs on one device and on a mesh of four by two.](../images/capstone_parts.svg)
#
# Our text is *Paradise Lost* by John Milton, which is in the public domain. A [file beside the exercises](../exercises/26_capstone/README.md) states the source. The last two of its twelve books are held out.

# %%
text = poem.load()
cut = text.index("\nBook XI\n")
train_text, held_text = text[:cut], text[cut:]
print(f"{len(train_text):,} characters for training, {len(held_text):,} held out, {len(set(text))} distinct ones")
print(train_text[8:131])

# %% [markdown]
# ## Tokens
# **Byte-pair encoding** merges the most frequent pair of adjacent tokens into a new token, and repeats this until there are `V` tokens. `merge` replaces all occurrences of one pair.

# %%
CHARACTERS, V = sorted(set(text)), 512
encode_characters = lambda text: np.array([CHARACTERS.index(c) for c in text], np.int32)


def merge(tokens, pair, new):
    """Replaces each occurrence of the pair, two different tokens, by `new`."""
    found = np.flatnonzero((tokens[:-1] == pair[0]) & (tokens[1:] == pair[1]))
    tokens = tokens.copy()
    tokens[found] = new
    return np.delete(tokens, found + 1)


# %% [markdown]
# The merges are learned from the **training text** only. Pairs of equal tokens are excluded, because they can overlap, as in `aaa`.

# %%
spelled, merges, train = list(CHARACTERS), [], encode_characters(train_text)
while len(spelled) < V:
    # counts[a, b]: how often token b follows token a
    counts = np.bincount(train[:-1] * V + train[1:], minlength=V * V).reshape(V, V)
    np.fill_diagonal(counts, 0)
    pair = np.unravel_index(counts.argmax(), counts.shape)
    train = merge(train, pair, len(spelled))
    merges.append(pair)
    spelled.append(spelled[pair[0]] + spelled[pair[1]])

# %% [markdown]
# To encode another text, `encode` applies the same merges in the same order.

# %%
decode = lambda tokens: "".join(spelled[t] for t in tokens)


def encode(text):
    tokens = encode_characters(text)
    for new, pair in enumerate(merges, len(CHARACTERS)):
        tokens = merge(tokens, pair, new)
    return tokens


held = encode(held_text)
print(f"{len(train):,} and {len(held):,} tokens, {len(held_text) / len(held):.2f} characters each in the held-out text")
print("decoded without loss:", decode(held) == held_text, "  last tokens:", spelled[-6:])
print("|".join(spelled[t] for t in held[100:125]))

# %% [markdown]
# A loss per token depends on the tokenizer, because longer tokens are harder to predict. So we report the loss per **character**, which is the total loss divided by the number of characters.
#
# ## Batches with a position
# The number of the step determines the batch, so a checkpoint needs no state of a data loader. We divide the text into windows of `LENGTH` tokens and draw a new order of the windows for each epoch.

# %%
LENGTH, BATCH, MICRO = 128, 8, 2  # tokens in a window, windows in a batch, micro-batches
windows = (len(train) - 1) // LENGTH
PER_EPOCH = windows // BATCH


def batch_at(step):
    """int32 (MICRO, BATCH / MICRO, LENGTH + 1): the windows of this step, in an order that each epoch draws"""
    epoch, position = divmod(step, PER_EPOCH)
    order = np.random.default_rng((26, epoch)).permutation(windows)[position * BATCH :][:BATCH]
    return train[order[:, None] * LENGTH + np.arange(LENGTH + 1)].reshape(MICRO, -1, LENGTH + 1)


used = {row.tobytes() for step in range(PER_EPOCH) for row in batch_at(step).reshape(BATCH, -1)}
print(
    f"{PER_EPOCH} steps in an epoch, with {len(used)} distinct windows of {windows}. Batch 1000: {batch_at(1000).shape}"
)

# %% [markdown]
# ## The model
# The model is that of lesson 25. The first axis of each leaf of `blocks` is the layer. The random weights are divided by the square root of their fan-in, as in lesson 25. The 2 x layers results of `out` and `down` are added to x, so these weights are also divided by sqrt(2 x layers).
#
# The embedding is also the output matrix. Its numbers are small at first, so all tokens have similar probabilities, and the first loss is near ln 512 = 6.24.

# %%
SIZE = 32  # entries of a query, key or value of one head


def new_params(key, width, layers):
    keys, heads = jax.random.split(key, 5), width // SIZE
    draw = lambda i, fan_in, *shape: jax.random.normal(keys[i], shape) / fan_in**0.5
    blocks = {
        "qkv": draw(0, width, layers, width, 3, heads, SIZE),
        "out": draw(1, 2 * layers * width, layers, heads, SIZE, width),
        "up": draw(2, width, layers, width, 4 * width),
        "down": draw(3, 8 * layers * width, layers, 4 * width, width),
    }
    return {"embed": jax.random.normal(keys[4], (V, width)) / 50, "blocks": blocks}


def normalize(x):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


# %% [markdown]
# Norms and the softmax of attention are computed in float32, even if the rest is in bfloat16.


# %%
def rotate(x):
    """Rotary positions: x (B, T, heads, SIZE)"""
    angles = jnp.arange(x.shape[1])[:, None, None] * 10_000.0 ** -jnp.linspace(0, 1, SIZE // 2, endpoint=False)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, one * sin + other * cos], axis=-1)


def block(w, x):
    """One layer: x (B, T, width) -> (B, T, width)"""
    q, k, v = jnp.einsum("btd,dnhk->nbthk", normalize(x), w["qkv"])
    mixed = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, w["out"])
    return x + jax.nn.silu(normalize(x) @ w["up"]) @ w["down"]


# %% [markdown]
# `model` combines three techniques of earlier lessons: a `scan` over the layers, `jax.checkpoint` around its body, and a cast to the dtype of the computation. The parameters stay float32.

# %%
# CPUs differ in how fast they compute in bfloat16. A Deeper section measures it.
DTYPE = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


def model(params, tokens, dtype=DTYPE, wrap=jax.checkpoint, pin=lambda x: x):
    """tokens (B, T) -> logits float32 (B, T, V). `pin` is applied to activations, and is used below on several devices."""
    small = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    x = pin(small["embed"][tokens] * small["embed"].shape[1] ** 0.5)
    x, _ = jax.lax.scan(wrap(lambda x, w: (pin(block(w, x)), None)), x, small["blocks"])
    return jnp.einsum("btd,vd->btv", normalize(x), small["embed"], preferred_element_type=jnp.float32)


def loss(params, batch, **options):
    found = model(params, batch[:, :-1], **options)
    return optax.softmax_cross_entropy_with_integer_labels(found, batch[:, 1:]).mean()


# %% [markdown] predict="capstone-remat"
# `jax.vjp` returns the residuals. We count their bytes for 3 and for 6 layers, with and without `jax.checkpoint`. With `jax.checkpoint`, how do the residuals change if the number of layers doubles?
#
# - [ ] They stay the same, because each layer is computed again | Each layer is computed again from its input, so this input must be stored.
# - [x] They grow by the weights and one array (B, T, width) for each additional layer | Right. The weights are residuals too.
# - [ ] They double, as without `jax.checkpoint` | The residuals also contain arrays that do not belong to a layer, such as the logits.

# %%
megabytes = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / 1e6
rows = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)
for name, wrap in {"without checkpoint": lambda f: f, "with checkpoint": jax.checkpoint}.items():
    in_float32 = functools.partial(loss, wrap=wrap, dtype=jnp.float32)
    for depth in (3, 6):
        weights = jax.eval_shape(lambda: new_params(jax.random.key(0), 128, depth))
        stored = jax.eval_shape(lambda w, b: jax.vjp(lambda w: in_float32(w, b), w)[1], weights, rows)
        parts = megabytes(weights), depth * BATCH * LENGTH * 128 * 4 / 1e6
        rest = megabytes(stored) - sum(parts)
        print(
            f"{name:18s} {depth} layers: {megabytes(stored):5.1f} MB = weights {parts[0]:.1f} "
            f"+ inputs of layers {parts[1]:.1f} + rest {rest:.1f}"
        )

# %% [markdown]
# With `jax.checkpoint`, the rest does not grow. It contains arrays such as the logits.
#
# ## The step
# The schedule warms up and then follows a cosine. Clipping limits the norm of the gradient. Weight decay applies to all leaves. Biases and scales would be excluded with `mask=`, as in an exercise. The gradients of the micro-batches are added in a `scan`, so the activations of only one micro-batch are in memory at a time.

# %%
WIDTH, LAYERS, STEPS = 128, 3, 800
schedule = optax.warmup_cosine_decay_schedule(0.0, 6e-3, STEPS // 10, STEPS, 2e-4)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.3))


def new_state(key, width=WIDTH, layers=LAYERS):
    params = new_params(key, width, layers)
    return {"params": params, "opt": optimizer.init(params)}


def step(state, batch, **options):
    """batch (MICRO, B, LENGTH + 1) -> the next state, the loss"""
    gradient_of = jax.value_and_grad(functools.partial(loss, **options))
    add = lambda sums, micro: (jax.tree.map(jnp.add, sums, gradient_of(state["params"], micro)), None)
    zeros = jnp.float32(0), jax.tree.map(jnp.zeros_like, state["params"])
    sums, _ = jax.lax.scan(add, zeros, batch)
    value, gradient = jax.tree.map(lambda s: s / len(batch), sums)
    updates, opt = optimizer.update(gradient, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


# %% [markdown]
# The mean of the means of the micro-batches is right here, because all micro-batches have the same number of tokens.
#
# ## The same step on eight devices
# The state of a large model does not fit on one device. We choose a layout for 4 x 2 devices: FSDP along `data`, and tensor parallelism along `model`. Heads, hidden units and the vocabulary are partitioned along `model`, and the axis `width` along `data`. The moments of Adam have the same keys as the parameters, so one rule serves both.

# %%
mesh = devices.mesh((4, 2), ("data", "model"))
RULES = {
    "embed": P("model", "data"),
    "qkv": P(None, "data", None, "model"),
    "out": P(None, "model", None, "data"),
    "up": P(None, "data", "model"),
    "down": P(None, "model", "data"),
}


def layout(tree):
    """A sharding for each leaf: by its key, and replicated without one"""
    find = lambda path: RULES.get(getattr(path[-1], "key", None), P())
    return jax.tree_util.tree_map_with_path(lambda path, _: NamedSharding(mesh, find(path)), tree)


# %% [markdown]
# We compile the step for abstract arguments and read the program of one device. `compile_on_mesh` adds up the elements of its collectives by kind and mesh axis. A collective in a loop counts once for each iteration.

# %%
like = jax.eval_shape(new_state, jax.random.key(0))
state_layout, batch_layout = layout(like), NamedSharding(mesh, P(None, "data"))


def compile_on_mesh(**options):
    """The compiled step for 4 x 2 devices. Prints its collectives, and the scratch memory of one device."""
    shardings = {"in_shardings": (state_layout, batch_layout), "out_shardings": (state_layout, None)}
    jitted = jax.jit(functools.partial(step, **options), donate_argnums=0, **shardings)
    program, totals = jitted.lower(like, jax.eval_shape(lambda: batch_at(0))).compile(), collections.Counter()
    for one, groups in collectives_and_groups(program.as_text(), mesh.size):
        totals[one.kind, " and ".join(axes_of_groups(groups, mesh))] += one.elements * (one.times or 1)
    for (kind, along), elements in totals.most_common():
        print(f"{kind:18s} along {along:14s} {elements:>9,} elements")
    memory = program.memory_analysis().temp_size_in_bytes
    print(f"scratch memory {memory / 1e6:.1f} MB, all collectives {totals.total():,} elements")
    return program


# %% [markdown]
# The gradients have 655,360 elements. How many are communicated?

# %%
_ = compile_on_mesh()

# %% [markdown]
# About four million elements are all-reduced along `data`, six times the number of all gradients. **A layout of the parameters is not enough.** The compiler also chose a layout for the activations. It partitioned their last axis along `data`, as in the weights, instead of the batch. So it adds up partial products. We pin the activations to the layout of the batch.

# %%
rows_on_data = NamedSharding(mesh, P("data"))
pin = lambda x: jax.lax.with_sharding_constraint(x, rows_on_data)
on_eight = compile_on_mesh(pin=pin)

# %% [markdown]
# - **all-gather along `data`**: the weights, in the forward pass and again in the backward pass, because gathered weights are not stored
# - **all-reduce along `data`**: the gradients of two micro-batches, each partitioned in two along `model`
# - **all-reduce along `model`**: tensor parallelism, and the loss over a partitioned vocabulary
# - the other rows: the lookup in the partitioned embedding

# %% [markdown]
# A device stores an eighth of the state.

# %%
# Compiled ahead of time, so that a later section can read its program.
train_step = jax.jit(step, donate_argnums=0).lower(like, jax.eval_shape(lambda: batch_at(0))).compile()
fresh = jax.jit(new_state)(jax.random.key(26))
sharded = jax.device_put(jax.device_get(fresh), state_layout)
count = sum(leaf.size for leaf in jax.tree.leaves(fresh["params"]))
print(f"{count:,} parameters. State: {bytes_on_device(fresh):,} bytes, on device 0 of 8: {bytes_on_device(sharded):,}")

# %% [markdown]
# Simulated devices show the values, the bytes and the collectives of a program. Their times do not predict those of real devices. **So we train on one device.**
#
# ## Before training
# `generate` computes a whole window for each new token, which the cache of lesson 25 avoids. The parameters are still random, and so is the text.


# %%
@jax.jit
def generate(params, key, prompt):
    """prompt int32 (n,) -> int32 (LENGTH,), the prompt and the tokens that were drawn after it"""

    def draw(i, tokens):
        logits = model(params, tokens[None])[0, i - 1] / 0.6
        return tokens.at[i].set(jax.random.categorical(jax.random.fold_in(key, i), logits))

    start = jnp.zeros(LENGTH, jnp.int32).at[: len(prompt)].set(prompt)
    return jax.lax.fori_loop(len(prompt), LENGTH, draw, start)


prompt = encode("So spake the Arch-Angel Michael; then paused,\n")
params = jax.jit(new_params, static_argnums=(1, 2))(jax.random.key(26), WIDTH, LAYERS)
print(decode(np.asarray(generate(params, jax.random.key(1), prompt))))

# %% [markdown]
# ## Training
# Before the run, we state what it should reach. Four earlier runs, three of them with other random parameters, ended between 1.59 and 1.62 nats per character on the held-out books. We require **less than 1.65**, because other devices and dtypes round differently. On two CPU cores, the 800 steps take one to two minutes.

# %%
TARGET = 1.65
held_batch = held[: (len(held) - 1) // LENGTH * LENGTH + 1]
held_batch = held_batch[LENGTH * np.arange(len(held_batch) // LENGTH)[:, None] + np.arange(LENGTH + 1)]
per_token = len(held_text) / len(held)
evaluate = jax.jit(loss)
temporary = tempfile.TemporaryDirectory()
manager = ocp.CheckpointManager(temporary.name)


def train_until(state, done, last):
    """Performs the steps from done + 1 to last, records losses, and returns the state."""
    for n in range(done, last):
        state, losses[n + 1] = train_step(state, batch_at(n))
        if (n + 1) % 80 == 0:
            held_losses[n + 1] = float(evaluate(state["params"], held_batch)) / per_token
            manager.save(n + 1, args=ocp.args.StandardSave(state))
    return state


# %% [markdown] predict="capstone-resume"
# We interrupt the run after step 250. The last checkpoint is that of step 240, so the resumed run repeats the steps 241 to 250. How do their losses compare with the first ones?
#
# - [x] They are equal to the last bit | Right. State and batches are equal, and so is the program.
# - [ ] They agree up to rounding | The same program on the same numbers rounds in the same way.
# - [ ] They differ, because the loader begins a new epoch | The batch depends only on the number of the step.

# %%
losses, held_losses = {}, {}
state = train_until(jax.jit(new_state)(jax.random.key(26)), 0, 250)
manager.wait_until_finished()
first_losses = {n: float(value) for n, value in losses.items()}
del state  # the crash

# %% [markdown]
# `CheckpointManager` finds the last complete checkpoint. The state passed to `restore` determines the structure, shapes and dtypes. Its values are not used.

# %%
done = manager.latest_step()
state = manager.restore(done, args=ocp.args.StandardRestore(jax.jit(new_state)(jax.random.key(1))))
state = train_until(state, done, 520)
same = all(float(losses[n]) == first_losses[n] for n in range(done + 1, 251))
print(f"resumed after step {done}; the losses of the steps {done + 1} to 250 are bitwise equal: {same}")

# %% [markdown]
# We measure the time of the remaining steps.

# %%
began = time.perf_counter()
state = jax.block_until_ready(train_until(state, 520, STEPS))
seconds = time.perf_counter() - began
losses = {n: float(value) for n, value in losses.items()}
print(f"{STEPS - 520} steps with four evaluations and four checkpoints: {seconds:.0f} s")

# %%
_, axes = plots.subplots(height=2.6)
axes.plot(losses.keys(), np.array([*losses.values()]) * len(train) / len(train_text), label="training, one batch")
axes.plot(held_losses.keys(), held_losses.values(), marker="o", label="held-out books")
axes.axhline(TARGET, color=plots.QUIET, linewidth=0.9, label="stated in advance")
axes.set(xlabel="step", ylabel="nats per character", ylim=(1.2, 3))
axes.legend()
plots.show(
    f"The loss per character in {STEPS} steps. The held-out loss falls from {held_losses[80]:.2f} after 80 steps to "
    f"{held_losses[STEPS]:.3f}, below the stated {TARGET}."
)
assert held_losses[STEPS] < TARGET

# %% [markdown]
# ## Evaluation
# Is this loss good? We compare it with simple models that only count characters in the training text. `table_loss(n)` uses a table of the probability of each character after the n - 1 characters before it. n = 2 gives bigrams (lesson 25).

# %%
characters = encode_characters(text)
known, new = characters[: len(train_text)], characters[len(train_text) :]


def groups_of(n, tokens):
    """n arrays: the first, second, ... characters of all groups of n adjacent characters"""
    return tuple(tokens[i : len(tokens) - n + 1 + i] for i in range(n))


def table_loss(n):
    """The loss per character on the held-out books, of a table with n axes"""
    counts = np.full((len(CHARACTERS),) * n, 0.02)  # a small count for each group, so that no probability is 0
    np.add.at(counts, groups_of(n, known), 1)
    p = counts / counts.sum(axis=-1, keepdims=True)
    return -np.log(p[groups_of(n, new)]).mean()


# %% [markdown]
# We also use the compressor bz2. A model with a loss of x nats could compress the text to x / ln 2 bits per character. For bz2, we count the bytes that the held-out text adds to the compressed training text.

# %%
both, alone = (len(bz2.compress(part.encode())) for part in (text, train_text))
table = {
    "equal probabilities": np.log(len(CHARACTERS)),
    "frequencies of characters": table_loss(1),
    "bigrams": table_loss(2),
    "trigrams": table_loss(3),
    "bz2, after the training text": (both - alone) * 8 * np.log(2) / len(held_text),
    f"transformer, {count:,} parameters": held_losses[STEPS],
}
for name, value in table.items():
    print(f"{name:36s} {value:.3f} nats, {value / np.log(2):.2f} bits per character")

# %% [markdown]
# The transformer is much better than counts of characters, and about as good as bz2. A loss does not show the kind of mistakes, so read samples too.

# %%
for seed in (1, 2):
    print(decode(np.asarray(generate(state["params"], jax.random.key(seed), prompt))), "\n")

# %% [markdown]
# The model has learned the length of a verse, capitals at its start, and many words. Other words do not exist, and the verses make no sense.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a loss that does not depend on the tokenizer | the total divided by the number of characters |
# | batches that can be resumed | a function of the step, with a random generator for each epoch |
# | depth without a larger program | `jax.lax.scan` over stacked layers |
# | fewer residuals | `jax.checkpoint` around the body of the scan |
# | weight decay without biases and scales | `mask=` of `optax.adamw`, by the path of a leaf |
# | mixed precision | float32 parameters, a cast in the model, and float32 for norms, softmax and logits |
# | a large batch | a `scan` over micro-batches, which adds gradients |
# | FSDP and tensor parallelism | a spec for each key, and activations pinned to the layout of the batch |
# | an exact resumption | state and step in the checkpoint |
# | a fair judgement of a loss | a target stated before the run, a trigram model, and a compressor |
#
# In the exercises, you write these parts and then the whole run.
#
# ## Deeper: tokens per second
# **[Model FLOPs utilization](../docs/glossary.md#model-flops-utilization)** (MFU) is the number of operations that the model requires, divided by the number that the device could perform in this time. We count operations as the [PaLM paper](https://arxiv.org/abs/2204.02311) does. For each token, a training step requires
#
# - **6 operations for each weight**: a multiplication and an addition in the forward pass, and twice as many in the backward pass, which computes the gradients of the weights and of the activations,
# - **12 x layers x length x width for attention**. This convention includes the pairs of positions that the mask excludes.
#
# Recomputation by remat does not count. XLA's `cost_analysis` cannot replace this formula, because it counts the body of a loop once.

# %%
# Peak in FLOP/s of dense bfloat16 products, from the vendors' data sheets. NVIDIA's show twice these numbers, for sparse matrices.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}
PEAKS |= {"TPU v5 lite": 197e12, "TPU v4": 275e12}
per_second = (STEPS - 520) * BATCH * LENGTH / seconds
flops = 6 * count + 12 * LAYERS * LENGTH * WIDTH
kind = jax.devices()[0].device_kind
peak = next((value for name, value in PEAKS.items() if name in kind), None)
square = jnp.ones((2048, 2048), DTYPE)
product = jax.jit(jnp.matmul)
measured = 2 * 2048**3 / (time_ms(lambda: product(square, square)) / 1e3)
print(f"{kind}: {per_second:,.0f} tokens per second, {per_second * flops / 1e9:.1f} GFLOP/s of the model")
print(f"a product of 2048 x 2048 matrices: {measured / 1e9:.1f} GFLOP/s, ratio {per_second * flops / measured:.0%}")
print(f"MFU: {per_second * flops / peak:.1%}" if peak else "MFU: `PEAKS` contains no peak for this device")

# %% [markdown]
# On a CPU, we use the measured speed of one large product in place of a peak. Other programs share the cores, so both numbers vary. On a GPU or TPU, expect a low MFU for this model, because its matrices are small.
#
# ## Deeper: where the time goes
# We record a trace of three steps, after one step that is not recorded (lesson 14).

# %%
ours, _ = train_step(jax.jit(new_state)(jax.random.key(0)), batch_at(0))
with jax.profiler.trace(temporary.name + "/trace"):
    for n in range(3):
        ours, last = train_step(ours, batch_at(n))
    jax.block_until_ready(last)
[file] = Path(temporary.name, "trace").rglob("*.trace.json.gz")
trace_events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
print(f"{len(trace_events):,} events")

# %% [markdown]
# An event of an operation of the compiled program has its name in `hlo_op`. We add up the durations by name. Loops and calls are left out, because their events contain those of other operations.

# %%
spent = collections.Counter()  # milliseconds per step of each operation
for event in trace_events:
    name = event.get("args", {}).get("hlo_op", "")
    if event.get("ph") == "X" and name and not name.startswith(("while", "call", "conditional")):
        spent[name] += event["dur"] / 1e3 / 3  # `dur` is in microseconds, for three steps
by_kind = collections.Counter()
for name, ms in spent.items():
    by_kind[name.split(".")[0]] += ms  # such as dot for dot.12
for name, ms in by_kind.most_common(6):
    print(f"{ms:7.1f} ms per step  {ms / spent.total():4.0%}  {name}")

# %% [markdown]
# On a CPU, XLA passes matrix products to libraries, and their names are `ynn_fusion` or `dot`. Matrix products should take most of the time. If another name takes much time, find its source. The compiled program contains a line for each operation. Its `op_name` is the path of the JAX functions that it comes from.

# %%
products = ("ynn_fusion", "dot", "gemm", "cublas", "custom-call")
others = [(ms, name) for name, ms in spent.items() if not name.startswith(products)]
for ms, name in sorted(others, reverse=True)[:4]:
    found = re.search(rf'%?{re.escape(name)} = (\S+?)[{{ ].*op_name="([^"]*)"', train_step.as_text())
    shape, path = found.groups() if found else ("", "")
    print(f"{ms:5.1f} ms  {name} {shape}  {'/'.join(path.split('/')[-3:])}")

# %% [markdown]
# A fusion whose name contains `copy` writes an array in another order of its axes, here for the next product. Its `op_name` is that of an operation that is fused with the copy. An `op_name` with `rematted_computation` belongs to a layer that is computed again.
#
# ## Deeper: remat on the mesh
# What does remat cost on eight devices? We compile the pinned step without it.

# %%
_ = compile_on_mesh(pin=pin, wrap=lambda layer: layer)

# %% [markdown]
# Without remat, the step communicates about a tenth less, and needs about twice the scratch memory. The weights are still gathered twice, for the forward and for the backward pass. Remat adds one all-gather of a weight and one all-reduce along `model` for each layer and micro-batch.
#
# ## Deeper: bfloat16
# We compare a gradient in bfloat16 with one in float32, for the trained parameters. For scale, we also compare the float32 gradients of two different batches.

# %%
trained, some = state["params"], held_batch[:8]
in_dtype = lambda dtype: jax.jit(jax.value_and_grad(functools.partial(loss, dtype=dtype)))
gradients = {dtype: in_dtype(dtype) for dtype in ("float32", "bfloat16")}
values = {dtype: function(trained, some) for dtype, function in gradients.items()}
values["another batch"] = gradients["float32"](trained, held_batch[8:16])
print("losses:", {name: round(float(value[0]), 4) for name, value in values.items()})
for name in ("bfloat16", "another batch"):
    gap = jax.tree.map(jnp.subtract, values[name][1], values["float32"][1])
    share = float(optax.global_norm(gap) / optax.global_norm(values["float32"][1]))
    print(f"{name}: the norm of the difference is {share:.1%} of the norm of the gradient")
milliseconds = time_ms(*(functools.partial(function, trained, some) for function in gradients.values()), repeats=3)
print("milliseconds:", {dtype: round(ms) for dtype, ms in zip(gradients, milliseconds, strict=True)})

# %% [markdown]
# The rounding errors of bfloat16 are small compared with the difference between two batches. Parameters, norms, softmax and the sums of the logits are float32 in both cases. Which dtype is faster depends on the device. GPUs and TPUs have units for products in bfloat16, and only some CPUs do.
#
# ## Deeper: from one device to eight
# A checkpoint is not tied to a mesh. We restore the last one with the layout for 4 x 2 devices, evaluate it there, and perform one more step.

# %%
abstract = lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
target = jax.tree.map(abstract, like, state_layout)
moved = manager.restore(STEPS, args=ocp.args.StandardRestore(target))
up = moved["params"]["blocks"]["up"]
print("shards of up:", up.sharding.shard_shape(up.shape), "of", up.shape)
part = held_batch[:112]
there = evaluate(moved["params"], jax.device_put(part, rows_on_data))
here = evaluate(state["params"], part)
print(f"loss of 112 held-out windows: {float(there):.5f} on eight devices, {float(here):.5f} on one")
moved, value = on_eight(moved, jax.device_put(batch_at(STEPS), batch_layout))
print("loss of the next step, on eight devices:", round(float(value), 4))

# %% [markdown]
# A checkpoint does not have to be converted for another mesh. The target alone determines the shardings. The next prediction compares the steps on one device and on eight.

# %% [markdown] predict="capstone-eight"
# We run five steps on one device, and five on the eight simulated devices. How do the losses and the times of the eight devices compare with those of one device?
#
# - [ ] equal losses, an eighth of the time | Simulated devices share the cores of this machine, and there are not eight times as many.
# - [x] nearly equal losses, and far more than an eighth of the time | Right. All devices share the cores of this machine. Sums in another order can round differently.
# - [ ] different losses, because each device sees other examples | The loss is the mean over the whole batch in both cases.

# %%
alone = jax.jit(new_state)(jax.random.key(26))
spread, rows_of_0 = jax.device_put(jax.device_get(alone), state_layout), jax.device_put(batch_at(0), batch_layout)
for name, call, now, batch in (("one", train_step, alone, batch_at(0)), ("eight", on_eight, spread, rows_of_0)):
    some, times = [], []
    for _ in range(5):
        began = time.perf_counter(), time.process_time()
        now, value = call(now, batch)
        some.append(float(value))
        times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    wall, processor = 1e3 * np.median(times, axis=0)
    print(f"{name:6s} losses {np.round(some, 4)}  {wall:.0f} ms, processor time {processor:.0f} ms")

# %% [markdown]
# The losses agree to four decimals. On a CPU, the processor times are similar, because the same cores perform all operations.
#
# ## Deeper: three sizes
# How does the loss depend on the size of the model? We train three widths for 80 steps each. The schedule of the long run applies, so none of them is finished. Each step is compiled before the clock starts.

# %%
found, sizes = {}, {}
for width in (32, 64, 128):
    small = jax.jit(new_state, static_argnums=(1, 2))(jax.random.key(0), width, LAYERS)
    sizes[width] = sum(leaf.size for leaf in jax.tree.leaves(small["params"]))
    small_step = jax.jit(step, donate_argnums=0).lower(small, batch_at(0)).compile()
    start_time = time.perf_counter()
    for n in range(80):
        small, value = small_step(small, batch_at(n))
    jax.block_until_ready(value)
    seconds_of_80 = time.perf_counter() - start_time
    found[width] = float(evaluate(small["params"], held_batch)) / per_token, seconds_of_80
_, axes = plots.subplots(height=2.4)
axes.semilogx(sizes.values(), [value for value, _ in found.values()], marker="o")
labels = [f"{size:,}" for size in sizes.values()]
axes.set(xlabel="parameters", ylabel="nats per character", xticks=[*sizes.values()], xticklabels=labels)
axes.minorticks_off()
words = ", ".join(f"{sizes[w]:,} parameters {value:.3f} in {s:.1f} s" for w, (value, s) in found.items())
plots.show(f"The held-out loss per character after 80 steps, for three widths: {words}.")

# %% [markdown]
# The larger models reach a lower loss after the same number of steps, and take more time. Three points do not establish a scaling law. For a prediction, train each size to the end, with several seeds, and tune its learning rate.
#
# ## Deeper: a mistake in each part
# With each of these mistakes, the loss is still finite and looks plausible. A short test finds each one.
#
# | part | mistake | test |
# |---|---|---|
# | tokens | merges learned from the held-out text too | learn from the training text only, and require `decode(encode(text)) == text` |
# | batches | the targets are not shifted | the targets of a window are the next tokens of the text |
# | mask | a position attends to later tokens | change a token, and require that no earlier logit changes (lesson 25) |
# | accumulation | a mean of means, with padding | compare with one large batch |
# | schedule | counts micro-batches instead of steps | print the learning rate of the last step |
# | layout | the activations follow the weights | add up the elements of the collectives |
# | checkpoint | without the optimizer state | compare the losses after resuming, bitwise |
# | evaluation | losses per token of different tokenizers | losses per character |
#
# The next cell runs the tests of batches, mask and schedule.

# %%
window = batch_at(0)[0, 0]
begin = next(i for i in range(0, len(train), LENGTH) if (train[i : i + LENGTH + 1] == window).all())
print("targets are the next tokens:", bool((window[1:] == train[begin + 1 : begin + LENGTH + 1]).all()))
original = held_batch[:1, :-1]
changed = np.where(np.arange(LENGTH) == 40, (original + 1) % V, original)
difference = jnp.abs(model(state["params"], original) - model(state["params"], changed)).max(axis=(0, 2))
print("changed position: 40, first position at which the logits change:", int(jnp.argmax(difference > 1e-4)))
print(f"steps: {STEPS}, learning rate of the next step: {schedule(STEPS):.1e}")
manager.close()
temporary.cleanup()

# %% [markdown]
# ## Deeper: older code
#
# | in other code | here |
# |---|---|
# | `flax.training.train_state.TrainState` | a dict with the parameters and the optimizer state |
# | `flax.training.checkpoints.save_checkpoint` | `ocp.CheckpointManager` |
# | `flax.linen.scan` and `flax.linen.remat` over layers | `jax.lax.scan` and `jax.checkpoint` over stacked weights |
# | `pjit` with `PartitionSpec`s and a global mesh | `jax.jit` with `NamedSharding` |
# | a PyTorch `DataLoader` whose position is not saved | a batch that is a function of the step |
