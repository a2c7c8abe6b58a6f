# %% [markdown]
# # 25 · Attention
#
# *The core takes about 35 minutes. Twelve "Deeper" sections can be skipped. Then do [the exercises](../exercises/25_attention/25_attention.ipynb).* After the core, you can write and train a transformer block, test that its mask works, and generate text with a cache.
#
# **Prerequisites.** `vmap` (05), keys (07), `scan` (08), training with Optax (09), memory and precision (15, *Deeper* only). Try to answer these questions from memory.
#
# 1. From 05: What does `in_axes=(1, None)` mean?
#
# <details><summary>Answer</summary>
#
# `vmap` maps over axis 1 of the first argument, and passes the same second argument to each call.
# </details>
#
# 2. From 08: What does `jax.lax.scan(f, x, ws)` pass to `f` in each iteration?
#
# <details><summary>Answer</summary>
#
# The carry, which is `x` at first, and the next entry of each leaf of `ws` along its first axis.
# </details>
#
# 3. From 07: Why does each draw need a new key?
#
# <details><summary>Answer</summary>
#
# The same key gives the same numbers.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: the last sections use eight simulated devices

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P

from grader.learning import plots
from grader.learning.inspection import list_collectives, print_error, time_ms
from grader.learning.story import STORY

# %% [markdown]
# ## Tokens, and a model that sees one of them
# A language model computes the probability of the next token from the tokens before it. In training, the whole text is given, also the tokens that a position should predict. **How can a position use all earlier positions, but no later one?** Our text is a short story, and each character is a token.

# %%
CHARACTERS = sorted(set(STORY))
V = len(CHARACTERS)
encode = lambda text: np.array([CHARACTERS.index(c) for c in text], np.int32)
decode = lambda tokens: "".join(CHARACTERS[t] for t in tokens)

tokens = encode(STORY)
train, held_out = np.split(tokens, [int(0.9 * len(tokens))])
print(f"{len(tokens):,} tokens, {V} different ones. {STORY[:58]!r} begins with", tokens[:6])

# %% [markdown]
# The simplest model is a **bigram** model, a table of the probability of each token after each token.

# %%
counts = np.full((V, V), 0.1)  # a small count for each pair, so that no probability is 0
np.add.at(counts, (train[:-1], train[1:]), 1)
bigram = counts / counts.sum(axis=1, keepdims=True)
bigram_loss = -np.log(bigram[held_out[:-1], held_out[1:]]).mean()
print(f"loss on the held-out text: {bigram_loss:.3f}, for equal probabilities: {np.log(V):.3f}")
print("the four most probable tokens after 't':", [decode([t]) for t in np.argsort(-bigram[encode("t")[0]])[:4]])

# %% [markdown]
# The loss is the mean of -log p of the correct next token. To do better, a model has to look further back.
#
# ## Attention
# In a transformer, each token is represented by a vector, its **[embedding](../docs/glossary.md#embedding)**. *[Attention](../docs/glossary.md#attention)* lets each position collect information from other positions. Three matrices compute three vectors of size d from the vector of a position:
#
# - the **query** describes what this position looks for,
# - the **key** describes what it offers to other positions,
# - the **value** is the information that other positions receive.
#
# The **score** of a query and a key is their dot product, divided by sqrt(d). The softmax of the scores of one query gives weights that add up to 1. The result is the mean of the values with these weights.
#
# By hand, with d = 1: a query 1 and the keys 0 and ln 4 have the scores 0 and ln 4. Their exponentials are 1 and 4, so the weights are 1/5 and 4/5. With the values 10 and 20, the result is 2 + 16 = 18. The function below also has a mask, which states the keys that each query may use.


# %%
def attend(q, k, v, mask):
    """One head: q (T, d), k (S, d), v (S, d), mask (T, S) -> (T, d)"""
    scores = (q @ k.T) / q.shape[1] ** 0.5
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ v


print("by hand:", attend(np.array([[1.0]]), np.array([[0], [np.log(4)]]), np.array([[10.0], [20.0]]), True))

# %% [markdown]
# A language model needs a *causal* mask: a query may use the key at its own position and the keys before it. If the values are the rows of the identity matrix, the results are the weights themselves. The next cell prints them.

# %%
rng = np.random.default_rng(25)
T, d = 6, 8
q, k, v = rng.normal(size=(3, T, d)).astype(np.float32)
causal = np.tri(T, dtype=bool)  # True where a query may use a key: at its own position and before
print(np.round(attend(q, k, np.eye(T, dtype=np.float32), causal), 2))

# %% [markdown]
# The first query has only one key, so its weight is 1. *Deeper: the size of scores* measures what the division by sqrt(d) changes.

# %% [markdown] predict="attention-mask-after"
# ## Masks
# Some programs apply the mask after the softmax, as `softmax(scores) * mask`. The mask is causal. You replace the *last* token by another one. Which results change?
#
# - [ ] only the last one, because the mask removes later keys | This is what a causal mask is for, and what happens if it is applied to the scores.
# - [x] all of them | Right. The denominator of the softmax still contains the scores of later keys.
# - [ ] none, because only the weights of the last token change | The weight of the last token is 0 for earlier queries, but its score is part of their denominators.


# %%
def masked_after(q, k, v, mask):
    weights = jax.nn.softmax((q @ k.T) / q.shape[1] ** 0.5, axis=-1)
    return (weights * mask) @ v


changed_k = k.copy()
changed_k[-1] += 1  # another last token
for name, function in {"mask before the softmax": attend, "mask after the softmax": masked_after}.items():
    difference = np.abs(function(q, k, v, causal) - function(q, changed_k, v, causal)).max(axis=1)
    print(f"{name:24s} change at each position:", np.round(difference, 3))

# %% [markdown]
# The figure compares the two orders for four tokens.
#
# ![Attention for four tokens. Queries and keys of size d are multiplied and divided by the square root of d, which gives a table of scores with a row for each query. The mask replaces the scores of later keys by minus infinity. The softmax of each row gives weights that add up to one, and later keys have the weight zero. The weights are multiplied by the values. Below, the mask is applied after the softmax: the rows no longer add up to one, and the weights that are left depend on later tokens.](../images/attention_mask.svg)
#
# **Test a causal model like this.** Change a token, and require that no earlier result changes. A model with this mistake has a low training loss, because each position learns something about the tokens that it should predict. When it generates text, these tokens do not exist.
#
# ## Heads
# One softmax gives one set of weights. Models use several **heads**, each with its own queries, keys and values. `attend` handles one head, and `vmap` adds the axis. JAX has a function for all heads, `jax.nn.dot_product_attention`, for arrays of shape `(T, heads, d)`, or `(B, T, heads, d)` with a batch.

# %%
H = 4
q, k, v = rng.normal(size=(3, T, H, d)).astype(np.float32)
heads = jax.vmap(attend, in_axes=(1, 1, 1, None), out_axes=1)  # the mask is the same for all heads
built_in = jax.nn.dot_product_attention(q, k, v, is_causal=True)
print("shape", heads(q, k, v, causal).shape, " largest difference:", jnp.abs(heads(q, k, v, causal) - built_in).max())

# %% [markdown]
# Keys and values may have fewer heads than queries. Each key head then serves a group of query heads. This is **[grouped-query attention](../docs/glossary.md#grouped-query-attention)**. The next cell uses a single key head for all query heads.

# %%
shared = jax.vmap(attend, in_axes=(1, None, None, None), out_axes=1)
built_in = jax.nn.dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True)
print("one key head: largest difference:", jnp.abs(shared(q, k[:, 0], v[:, 0], causal) - built_in).max())

# %% [markdown]
# ## Positions
# Without a mask, attention does not depend on the order of the keys. **[Rotary position embeddings](../docs/glossary.md#rotary-position-embedding)** add the positions. They treat the entries i and i + d/2 of a query or key as a point (a, b) in the plane, and rotate it by an angle. A rotation by the angle φ gives (a cos φ - b sin φ, a sin φ + b cos φ). The angle is the position times a frequency, and each pair of entries has its own frequency.


# %%
def rotate(x, positions):
    """x (T, heads, d), positions (T,) -> like x, with the pairs (x[i], x[i + d / 2]) rotated"""
    frequencies = 10_000.0 ** (-jnp.linspace(0, 1, x.shape[-1] // 2, endpoint=False))
    angles = positions[:, None, None] * frequencies  # (T, 1, d / 2)
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


# %% [markdown]
# A score then depends only on the **distance** of the two positions, which *Deeper: rotated scores* tests.
#
# ## A transformer block
# A block adds the result of attention to its input, and then the result of an MLP. Both parts start with a normalization.
#
# ![A transformer block. The input x of shape (T, WIDTH) is normalized and multiplied by the parameters q, k and v. Queries and keys are rotated. Attention follows, which is the only step that combines positions. Its result is multiplied by o and added to the input. The sum is normalized, multiplied by up, passed through silu, multiplied by down, and added to its own input. The function project contains the steps before attention, and finish those after it.](../images/attention_block.svg)
#
# The yellow boxes are parameters. `SHAPES` lists the *fan-in*, which is the number of inputs that each result adds up, and the shape. `init` divides random numbers by sqrt(fan-in), so that results are about as large as inputs.

# %%
WIDTH, LAYERS, HEADS, KEY_HEADS, SIZE = 64, 2, 4, 2, 16
SHAPES = {
    "q": (WIDTH, (WIDTH, HEADS, SIZE)),
    "k": (WIDTH, (WIDTH, KEY_HEADS, SIZE)),
    "v": (WIDTH, (WIDTH, KEY_HEADS, SIZE)),
    "o": (HEADS * SIZE, (HEADS, SIZE, WIDTH)),
    "up": (WIDTH, (WIDTH, 4 * WIDTH)),
    "down": (4 * WIDTH, (4 * WIDTH, WIDTH)),
}


def init(key):
    embed_key, *keys = jax.random.split(key, 1 + len(SHAPES))
    blocks = {}
    for key, (name, (fan_in, shape)) in zip(keys, SHAPES.items(), strict=True):
        blocks[name] = jax.random.normal(key, (LAYERS, *shape)) / fan_in**0.5
    return {"embed": jax.random.normal(embed_key, (V, WIDTH)) / WIDTH**0.5, "blocks": blocks}


# %% [markdown]
# The first axis of each parameter is the layer, for a `scan`. The next cell is the figure in code, with the parameters `w` of one layer.


# %%
def normalize(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def project(w, x, positions):
    q, k, v = (jnp.einsum("td,dhk->thk", normalize(x), w[name]) for name in "qkv")
    return rotate(q, positions), rotate(k, positions), v


def finish(w, x, mixed):
    x = x + jnp.einsum("thk,hkd->td", mixed, w["o"])
    return x + jax.nn.silu(normalize(x) @ w["up"]) @ w["down"]


def block(w, x):
    q, k, v = project(w, x, jnp.arange(len(x)))
    return finish(w, x, jax.nn.dot_product_attention(q, k, v, is_causal=True))


# %% [markdown]
# The model selects the embedding of each token, multiplies it by sqrt(WIDTH), so that its entries have a standard deviation of 1, and runs the blocks. The logit of a token is the dot product of the last vector with this token's embedding. Using one matrix for both is called *weight tying*.


# %%
def model(params, tokens):
    """One text (T,) -> logits (T, V) for the next token after each position"""
    x = WIDTH**0.5 * params["embed"][tokens]
    x, _ = jax.lax.scan(lambda x, w: (block(w, x), None), x, params["blocks"])
    return normalize(x) @ params["embed"].T


params = init(jax.random.key(0))
print("parameters:", sum(leaf.size for leaf in jax.tree.leaves(params)), " logits:", model(params, tokens[:6]).shape)

# %% [markdown]
# ## Train it
# We train on random windows of 65 characters. The model reads the first 64, and the label of each position is the next character. The model is written for one text, and the loss maps it over a batch.


# %%
def loss(params, batch):
    logits = jax.vmap(functools.partial(model, params))(batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 30, 400, 1e-4))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, key):
    starts = jax.random.randint(key, (16, 1), 0, len(train) - 64)
    value, gradient = jax.value_and_grad(loss)(params, jnp.asarray(train)[starts + jnp.arange(65)])
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(params, updates), state, value


# %% [markdown]
# Every 25 steps, we also compute the loss on the held-out text.

# %%
held_batch = np.stack([held_out[i : i + 65] for i in range(0, len(held_out) - 64, 64)])
state, evaluate, losses, held_losses = optimizer.init(params), jax.jit(loss), [], {}
for step, key in enumerate(jax.random.split(jax.random.key(1), 400)):
    params, state, value = train_step(params, state, key)
    losses.append(value)
    if step % 25 == 24:
        held_losses[step] = float(evaluate(params, held_batch))
_, axes = plots.subplots(height=2.5)
axes.plot(np.array(losses), label="training")
axes.plot(*zip(*held_losses.items(), strict=True), marker="o", label="held-out")
axes.axhline(bigram_loss, color=plots.QUIET, linewidth=0.9, label="bigram, held-out")
axes.set(xlabel="step", ylabel="loss", ylim=(0, 3.5))
axes.legend()
last = f"training {losses[-1]:.2f}, held-out {held_losses[399]:.2f}, bigram model {bigram_loss:.2f}"
plots.show(f"The loss of the transformer during 400 steps. At the end: {last}.")

# %% [markdown]
# Attention to earlier characters pays off. Then the two curves separate, because the model memorizes the short text.
#
# A low loss does not show that the mask is right, so we test it. We change character 40 of a text.

# %%
original = held_batch[0]
changed = np.where(np.arange(len(original)) == 40, (original + 1) % V, original)
difference = jnp.abs(model(params, original) - model(params, changed)).max(axis=1)
print("changed position: 40, first position at which the logits change:", jnp.argmax(difference > 1e-4))

# %% [markdown]
# ## The key-value cache
# Text is generated by drawing a token with `jax.random.categorical(key, logits)` and appending it to the input. Each draw needs a new key (lesson 07). Logits are often divided by a **temperature** first. A low one makes probable tokens more probable.
#
# For each new token, `model` would compute all earlier positions again, although their keys and values do not change. A **[key-value cache](../docs/glossary.md#key-value-cache)** stores them. Its size is fixed, so one compiled program serves all positions. In the cache of one layer, `cache[0, p]` is the key at position p, and `cache[1, p]` is the value.


# %%
def cached_block(w, cache, x, start):
    """x (T, WIDTH) at the positions from `start` on, cache (2, S, KEY_HEADS, SIZE) -> x, the new cache"""
    positions = start + jnp.arange(len(x))
    q, k, v = project(w, x, positions)
    cache = jax.lax.dynamic_update_slice_in_dim(cache, jnp.stack([k, v]), start, axis=1)
    mask = jnp.arange(cache.shape[1]) <= positions[:, None]  # later positions are not written yet
    return finish(w, x, jax.nn.dot_product_attention(q, *cache, mask=mask[None])), cache


# %% [markdown]
# The block writes the new keys and values to the cache, and its mask covers all positions of the cache. The `scan` over layers now also has their caches as input.


# %%
@jax.jit
def cached_model(params, cache, tokens, start):
    print("traced for", tokens.shape[0], "tokens")
    x = WIDTH**0.5 * params["embed"][tokens]
    layers = params["blocks"], cache
    x, cache = jax.lax.scan(lambda x, layer: cached_block(*layer, x, start), x, layers)
    return normalize(x) @ params["embed"].T, cache


# %% [markdown] predict="attention-cache"
# The program first processes a prompt of 19 tokens, and then 60 tokens one by one. How often is `cached_model` traced?
#
# - [ ] 61 times, because `start` has a new value in each call | `start` is traced. Values of traced arguments are not part of the cache key.
# - [x] twice | Right. The prompt and a single token have different shapes. All later tokens use the same program.
# - [ ] once | The shape of `tokens` is (19,) in the first call and (1,) in the others.

# %%
prompt, S = "in the evening the ", 128
cache = jnp.zeros((LAYERS, 2, S, KEY_HEADS, SIZE))
text = encode(prompt)
logits, cache = cached_model(params, cache, text, 0)
for i, key in enumerate(jax.random.split(jax.random.key(2), 60)):
    new = jax.random.categorical(key, logits[-1] / 0.5)
    text = np.append(text, new)
    logits, cache = cached_model(params, cache, new[None], len(prompt) + i)
print(decode(text))
print("largest difference to `model`:", np.abs(logits[-1] - model(params, text)[-1]).max())
print(f"bytes of the cache: {cache.nbytes:,}")

# %% [markdown]
# The first call is the *prefill*, which writes the whole prompt to the cache. The other calls are *decode* steps. Their logits agree with those of `model` up to rounding. We compare the times for one more token, for texts of several lengths.

# %%
lengths, times = (64, 128, 256, 512), {"model": [], "cached_model": []}
whole = jax.jit(model)
for S in lengths:
    some, cache = np.resize(tokens, S), jnp.zeros((LAYERS, 2, S, KEY_HEADS, SIZE))
    both = time_ms(lambda: whole(params, some), lambda: cached_model(params, cache, some[-1:], S - 1))
    for name, one in zip(times, both, strict=True):
        times[name].append(one)
_, axes = plots.subplots(height=2.3)
for (name, values), marker in zip(times.items(), "os", strict=True):
    axes.plot(lengths, values, marker=marker, label=name)
axes.set(xlabel="tokens in the text", ylabel="milliseconds", ylim=(0, None), xticks=lengths)
axes.legend()
last = ", ".join(f"{name} {values[-1]:.2f} ms" for name, values in times.items())
plots.show(f"The time for one more token, for texts of 64 to 512 tokens. With 512 tokens: {last}.")

# %% [markdown]
# Each size of the cache is a new shape, so it has its own program. Without a cache, the time grows with the length of the text. With a cache, a step computes one token, but it still reads the whole cache. Grouped-query attention makes the cache smaller.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | attention for all heads | `jax.nn.dot_product_attention(q, k, v, is_causal=True)`, with `(T, heads, d)` or `(B, T, heads, d)` |
# | another mask | `mask=`, Boolean, with the shape `(B or 1, heads or 1, T, S)`, or `(heads or 1, T, S)` without a batch, and True where a query may use a key |
# | a test of the mask | change a token, and require that no earlier result changes |
# | generation without recomputation | a cache of fixed size, `jax.lax.dynamic_update_slice_in_dim`, and a mask |
# | a random token | `jax.random.categorical(key, logits / temperature)`, with a new key for each token |
#
# The JAX documentation describes [dot_product_attention](https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html).
#
# ## Deeper: the size of scores
# Why are scores divided by the square root of d? The dot product of two vectors of d independent numbers from the standard normal distribution has a standard deviation of sqrt(d).

# %%
for size in (16, 256, 4096):
    one, other = rng.normal(size=(2, 64, size))
    products = one @ other.T
    largest = [jax.nn.softmax(products / by, axis=-1).max(axis=-1).mean() for by in (1, size**0.5)]
    print(f"d = {size:4d}  standard deviation {products.std():5.1f}", end="")
    print(f"  mean of the largest of 64 weights: {largest[0]:.2f}, divided by sqrt(d): {largest[1]:.2f}")

# %% [markdown]
# Without the division, long vectors give large scores, and the softmax selects a single key.
#
# Large scores also need a dtype with enough bits. Queries, keys and values are often in bfloat16, which has eight significant bits, so numbers between 32 and 64 are rounded to multiples of 0.25 (lesson 15). Which part of attention needs more bits?

# %%
wide_q, wide_k, wide_v = rng.normal(size=(3, 256, 64)) * np.array([6, 1, 1])[:, None, None]
small = [jnp.asarray(array, jnp.bfloat16) for array in (wide_q, wide_k, wide_v)]
scores = np.asarray(small[0], np.float64) @ np.asarray(small[1], np.float64).T / 8  # the reference, in float64
exact = np.exp(scores - scores.max(axis=1, keepdims=True))
exact = exact / exact.sum(axis=1, keepdims=True) @ np.asarray(small[2], np.float64)


def by_hand(q, k, v, dtype):
    scores = jnp.einsum("td,sd->ts", q, k, preferred_element_type=dtype) / 8
    return jnp.einsum("ts,sd->td", jax.nn.softmax(scores, axis=-1).astype(jnp.bfloat16), v)


built_in = jax.nn.dot_product_attention(*(array[:, None] for array in small))[:, 0]
results = {
    "all in bfloat16": by_hand(*small, jnp.bfloat16),
    "scores and softmax in float32": by_hand(*small, jnp.float32),
}
for name, result in {**results, "dot_product_attention": built_in}.items():
    print(f"{name:30s} largest error {np.abs(np.asarray(result, np.float64) - exact).max():.4f}")

# %% [markdown]
# An error of 0.1 in a score changes the numerator of its weight by about ten percent. So inputs and weights may have 16 bits, but **scores and softmax should be float32**. The built-in function does this.
#
# ## Deeper: more masks
# Masks are combined with `&`. A **padding** mask excludes the positions behind the end of a shorter text. A **sliding window** allows only the last keys, such as the last four. In the next plot, a row is a query, and dark entries are allowed.

# %%
distance = np.arange(16)[:, None] - np.arange(16)
masks = {
    "causal": distance >= 0,
    "causal, 10 tokens and padding": (distance >= 0) & (np.arange(16) < 10),
    "sliding window of 4": (distance >= 0) & (distance < 4),
}
_, all_axes = plots.subplots(1, 3, height=2.5)
for axes, (name, mask) in zip(all_axes, masks.items(), strict=True):
    axes.imshow(mask, cmap="Blues", vmin=-0.3, vmax=1.4)
    axes.set(title=name, xlabel="key", ylabel="query", xticks=(0, 5, 10, 15), yticks=(0, 5, 10, 15))
found = ", ".join(f"{name}: {mask.sum()}" for name, mask in masks.items())
plots.show(f"Three masks for 16 queries and 16 keys. The allowed entries are dark. Their number: {found}.")

# %% [markdown]
# With a window, a row has at most four dark entries, whatever the position of its query is.
#
# ## Deeper: padding
# A batch contains texts of different lengths. Shorter ones are padded at the end. In causal attention, no real token attends to this padding, so it only has to be excluded from the loss. Attention without a causal mask needs a padding mask. `key_value_seq_lengths` creates it.

# %%
lengths_in_batch = np.array([6, 4, 1])
query, key_, value_ = rng.normal(size=(3, 3, 6, 2, 8)).astype(np.float32)  # three texts, padded to six tokens
padded = jax.nn.dot_product_attention(query, key_, value_, key_value_seq_lengths=lengths_in_batch)
unmasked = jax.nn.dot_product_attention(query, key_, value_)
for i, n in enumerate(lengths_in_batch):
    alone = jax.nn.dot_product_attention(query[i, :n], key_[i, :n], value_[i, :n])
    errors = [np.abs(result[i, :n] - alone).max() for result in (padded, unmasked)]
    print(f"{n} tokens: difference to the text alone {errors[0]:.1e}, without a padding mask {errors[1]:.1e}")

# %% [markdown]
# The results at padded positions are not zero. A mean over positions, or a loss, must exclude them (lesson 11).

# %% [markdown] predict="attention-empty-row"
# If padding comes first, a query may have no allowed key. In `attend`, all its scores are then -inf, and the softmax computes -inf - (-inf), which is NaN. `jax.nn.dot_product_attention` uses a large negative number instead of -inf. What does it return for such a query?
#
# - [ ] NaN | The difference of two finite numbers is 0, not NaN.
# - [ ] zeros | This would be a good answer, but a softmax adds up to 1.
# - [x] the mean of all values, also of masked ones | Right. All masked scores are the same large negative number, so their softmax gives equal weights.

# %%
nothing = causal.copy()
nothing[2] = False
one_q, one_k, one_v = q[:, 0], k[:, 0], v[:, 0]  # one head
print("attend:               ", attend(one_q, one_k, one_v, nothing)[2, :3])
built_in_row = jax.nn.dot_product_attention(q[:, :1], k[:, :1], v[:, :1], mask=nothing[None])[2, 0]
print("dot_product_attention:", built_in_row[:3], " mean of all values:", one_v.mean(axis=0)[:3])
hidden = lambda v: jnp.sum(jnp.where(nothing.any(axis=1, keepdims=True), attend(one_q, one_k, v, nothing), 0))
print("gradient with respect to v, if a `where` hides the NaN:", jax.grad(hidden)(one_v)[0, :3])

# %% [markdown]
# The mean of all values is finite, but meaningless, so exclude such positions from the loss. A `where` that hides the NaN of `attend` does not repair the gradient: the backward pass multiplies the cotangent 0 of that row by NaN weights (lesson 04). You fix this in an exercise.

# %% [markdown]
# ## Deeper: rotated scores
# The score of two rotated vectors depends only on the distance of their positions. The next cell places all tokens 1 and 1,000 positions later, and compares the scores.


# %%
def rotated_scores(start):
    positions = start + jnp.arange(T)
    return jnp.einsum("thd,shd->hts", rotate(q, positions), rotate(k, positions))


print("scores of the last query:", np.round(rotated_scores(0)[0, -1], 3))
for start in (1, 1000):
    difference = np.abs(rotated_scores(start) - rotated_scores(0)).max()
    print(f"all tokens {start:4d} positions later: largest difference {difference:.1e}")

# %% [markdown]
# The differences are rounding errors. The dot product of two points in the plane depends on the angle between them, and a shift of all positions does not change this angle.
#
# ## Deeper: top-k and top-p
# Improbable tokens can be excluded before a token is drawn.
#
# - **Top-k** keeps the k most probable tokens. `jax.lax.top_k` returns their logits in decreasing order, and the tokens.
# - **Top-p** keeps the most probable tokens until their total probability reaches p.
#
# The next cell shows the five most probable tokens after a prompt, at three temperatures.

# %%
next_logits = model(params, encode(prompt))[-1]
largest, candidates = jax.lax.top_k(next_logits, 5)
print("the five most probable tokens:", [decode([token]) for token in candidates])
for temperature in (0.5, 1.0, 2.0):
    p = jax.nn.softmax(next_logits / temperature)[candidates]
    print(f"temperature {temperature}: probabilities {np.round(p, 2)}, totals {np.round(np.cumsum(p), 2)}")

# %% [markdown]
# With p = 0.8, top-p keeps all tokens up to the first one whose total is at least 0.8. How many these are depends on the temperature. To remove tokens, set their logits to -inf, so that all shapes stay static. You write this function in an exercise.
#
# ## Deeper: what the heads look at
# We plot the weights of the second layer for a short text. A row is a query, and its weights add up to 1. Each title states how many characters a head looks back on average.

# %%
words = "the cat had a fish"
first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], params["blocks"]) for i in range(LAYERS))
vectors = block(first, WIDTH**0.5 * params["embed"][encode(words)])
queries, its_keys, _ = project(second, vectors, jnp.arange(len(words)))
its_keys = jnp.repeat(its_keys, HEADS // KEY_HEADS, axis=1)
all_scores = jnp.einsum("thk,shk->hts", queries, its_keys) / SIZE**0.5
weights = jax.nn.softmax(jnp.where(np.tri(len(words), dtype=bool), all_scores, -jnp.inf), axis=-1)
back = np.arange(len(words))[:, None] - np.arange(len(words))
looks_back = [float((weights[head] * back).sum(axis=1).mean()) for head in range(HEADS)]
_, all_axes = plots.subplots(1, 4, height=2.3)
for head, axes in enumerate(all_axes):
    axes.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
    axes.set(title=f"head {head}: {looks_back[head]:.1f}", xticks=range(len(words)), yticks=range(len(words)))
    axes.set_xticklabels(words, fontsize=6)
    axes.set_yticklabels(words, fontsize=6)
found = ", ".join(f"head {head}: {mean:.1f}" for head, mean in enumerate(looks_back))
plots.show(f"The second layer's weights. Rows are queries. Mean distance to the keys, in characters: {found}.")

# %% [markdown]
# Weights show where a head reads, but not what it does with the values. With two layers, a position in the second layer also receives information that the first layer has collected, so a key stands for more than its own character.
#
# ## Deeper: two mistakes that raise no error
# Both happen with `dot_product_attention`. With a cache, `is_causal=True` treats a single query as the *first* position. And PyTorch's `scaled_dot_product_attention` takes `(B, heads, T, d)`. If you pass this order, positions and heads are exchanged.

# %%
one_query, five_keys = np.ones((1, 1, 4), np.float32), np.ones((5, 1, 4), np.float32)
numbered = np.arange(5, dtype=np.float32)[:, None, None] * five_keys  # the value at position i is i
for causal_flag in (True, False):
    result = jax.nn.dot_product_attention(one_query, five_keys, numbered, is_causal=causal_flag)
    print(f"is_causal={causal_flag!s:5}: the mean of the values is {result[0, 0, 0]}, expected 2.0")
q, k, v = rng.normal(size=(3, 1, T, H, d)).astype(np.float32)
exchanged = jax.nn.dot_product_attention(*(array.swapaxes(1, 2) for array in (q, k, v))).swapaxes(1, 2)
print("(B, heads, T, d): largest error", np.abs(exchanged - jax.nn.dot_product_attention(q, k, v)).max())

# %% [markdown]
# Both results are wrong without any error, so compare a new call with a case that you can compute. The exercises include a mask for generation.
#
# ## Deeper: attention without a table of all scores
# T queries and T keys have T x T scores. The sums of a softmax can be computed in blocks of keys, if each block is rescaled to the largest score so far. This is the idea of **flash attention**. A `scan` over blocks shows it.


# %%
def in_blocks(q, k, v, size=128):
    """One head without a mask: q, k, v (T, d) -> (T, d), with scores of the shape (T, size)"""

    def add_block(sums, block):
        highest, total, result = sums
        scores = q @ block[0].T / q.shape[1] ** 0.5
        new = jnp.maximum(highest, scores.max(axis=1))
        weights, scale = jnp.exp(scores - new[:, None]), jnp.exp(highest - new)
        return (new, scale * total + weights.sum(axis=1), scale[:, None] * result + weights @ block[1]), None

    nothing = jnp.full(len(q), -jnp.inf), jnp.zeros(len(q)), jnp.zeros(q.shape)
    (_, total, result), _ = jax.lax.scan(
        add_block, nothing, (k.reshape(-1, size, k.shape[1]), v.reshape(-1, size, k.shape[1]))
    )
    return result / total[:, None]


at_once = lambda q, k, v: jax.nn.dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
long = rng.normal(size=(3, 1024, 32)).astype(np.float32)
print("largest difference:", np.abs(in_blocks(*long) - at_once(*long)).max())

# %% [markdown]
# The results agree. We read the scratch memory of both programs from `memory_analysis`.

# %%
sizes, scratch = (512, 1024, 2048, 4096), {"dot_product_attention": [], "in_blocks": []}
for T_long in sizes:
    shape = jax.ShapeDtypeStruct((T_long, 32), jnp.float32)
    for name, function in zip(scratch, (at_once, in_blocks), strict=True):
        memory = jax.jit(function).lower(shape, shape, shape).compile().memory_analysis()
        scratch[name].append(memory.temp_size_in_bytes / 1e6)
_, axes = plots.subplots(height=2.3)
for (name, values), marker in zip(scratch.items(), "os", strict=True):
    axes.loglog(sizes, values, marker=marker, label=name)
axes.set(xlabel="tokens T", ylabel="scratch memory in MB", xticks=sizes, xticklabels=sizes)
axes.minorticks_off()
axes.legend()
last = ", ".join(f"{name} {values[-1]:.1f} MB" for name, values in scratch.items())
plots.show(f"Scratch memory of the compiled programs for 512 to 4096 tokens. With 4096 tokens: {last}.")

# %% [markdown]
# The memory of the built-in function grows with the square of T, because its default `implementation="xla"` computes all scores. `implementation="cudnn"` calls a fused kernel of NVIDIA GPUs. It raises an error if the device, shapes or dtypes are not supported. Lesson 22 writes kernels for such loops.

# %%
fused = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
half = jnp.ones((1, 128, 4, 64), jnp.bfloat16)
if jax.default_backend() == "cpu":
    print_error(lambda: fused(half, half, half))
else:
    print(
        "largest difference:", jnp.abs(fused(half, half, half) - jax.nn.dot_product_attention(half, half, half)).max()
    )

# %% [markdown]
# ## Deeper: tokens from bytes
# A token can have several characters. **Byte-pair encoding** starts with the bytes of the text. It finds the most frequent pair of adjacent tokens, replaces it by a new token, and repeats this. We learn 150 merges from the story, which is ASCII, so each character is a byte.

# %%
letters, merges, counts_left = STORY, [], [len(STORY)]
for new in range(256, 406):
    pairs = [letters[i : i + 2] for i in range(len(letters) - 1)]
    best = max(set(pairs), key=lambda pair: (pairs.count(pair), pair))
    merges.append(tuple(map(ord, best)))
    letters = letters.replace(best, chr(new))  # from left to right
    counts_left.append(len(letters))
spelled = {i: chr(i) for i in range(256)}
for new, (one, other) in enumerate(merges, 256):
    spelled[new] = spelled[one] + spelled[other]
print("first merges:", [spelled[256 + i] for i in range(8)], " longest token:", repr(max(spelled.values(), key=len)))
print("|".join(spelled[ord(letter)] for letter in letters[:24]))
_, axes = plots.subplots(height=2.1)
axes.plot(counts_left)
axes.set(xlabel="merges", ylabel="tokens of the story", ylim=(0, None))
plots.show(
    f"The number of tokens of the story. It falls from {counts_left[0]:,} characters to {counts_left[-1]:,} tokens "
    f"with {len(merges)} merges, and the first merges shorten the text most."
)

# %% [markdown]
# A shorter sequence needs fewer steps to generate, but each token needs a row of the embedding. To encode another text, apply the same merges in the order in which they were learned.
#
# ## Deeper: a cache on eight devices
# A cache has axes for positions and key heads. Partition the heads as in lesson 20, or the positions if there are more devices than key heads. The step computes one token in Auto mode. The cache has 4,096 positions and 8 key heads of size 64.

# %%
eight = devices.mesh((8,), ("d",))  # its axis is Auto


def decode_step(cache, q, new, length):
    cache = jax.lax.dynamic_update_slice(cache, new[:, None], (0, length, 0, 0))
    valid = (jnp.arange(cache.shape[1]) <= length)[None, None, :]
    return jax.nn.dot_product_attention(q[None], *cache, mask=valid)[0], cache


def placed(spec, *shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(eight, spec))


# %% [markdown]
# We compile the step for both layouts, and list its collectives.

# %%
for name, spec in {"heads": P(None, None, "d"), "positions": P(None, "d")}.items():
    over_heads = P(None, "d") if name == "heads" else P()
    arguments = placed(spec, 2, 4096, 8, 64), placed(P(*over_heads[1:]), 32, 64), placed(over_heads, 2, 8, 64)
    step_on_eight = jax.jit(decode_step, out_shardings=(None, jax.NamedSharding(eight, spec)))
    arguments = *arguments, placed(P(), dtype=jnp.int32)
    found = [(one.kind, one.elements) for one in list_collectives(step_on_eight, *arguments)]
    stored = step_on_eight.lower(*arguments).compile().memory_analysis().argument_size_in_bytes
    print(f"{name:10s} arguments on one device: {stored / 1e6:.1f} MB  {found or 'no communication'}")
print(f"the whole cache: {2 * 4096 * 8 * 64 * 4 / 1e6:.1f} MB")

# %% [markdown]
# Partitioned heads need no communication, and each device stores an eighth of the cache in both layouts. With partitioned positions, the compiler all-reduces the maximum and the total of the 32 query heads, and their 32 x 64 results. It does not gather the cache. In an exercise, you write this with `shard_map`.
#
# ## Deeper: speculative sampling
# With a cache, each new token needs one call of the model. In **[speculative sampling](../docs/glossary.md#speculative-sampling)**, a cheap *draft* model proposes several tokens, and the large model scores all of them in a single call. A proposed token is accepted with the probability min(1, p / q), where p is its probability in the large model and q in the draft model. The first token that is rejected is replaced by a draw from max(p - q, 0), divided by its sum. Our draft is the bigram model.


# %%
def accept_or_replace(key, p, q, proposed):
    """Probabilities p and q (V,) of both models, a token drawn from q -> a token, whether it was accepted"""
    accept_key, draw_key = jax.random.split(key)
    accepted = jax.random.uniform(accept_key) * q[proposed] < p[proposed]
    rest = jnp.maximum(p - q, 0)  # `categorical` normalizes
    return jnp.where(accepted, proposed, jax.random.categorical(draw_key, jnp.log(rest))), accepted


context = encode("in the evening the ")
p, q = jax.nn.softmax(model(params, context)[-1]), jnp.asarray(bigram[context[-1]], jnp.float32)
draws = 20_000
draft_key, key = jax.random.split(jax.random.key(3))
proposed = jax.random.categorical(draft_key, jnp.log(q), shape=(draws,))
chosen, accepted = jax.jit(jax.vmap(accept_or_replace, (0, None, None, 0)))(
    jax.random.split(key, draws), p, q, proposed
)
found = np.bincount(chosen, minlength=V) / draws
print(f"accepted: {accepted.mean():.3f}, predicted by the sum of min(p, q): {jnp.minimum(p, q).sum():.3f}")
print(f"largest difference to p: {np.abs(found - p).max():.4f}, difference between p and q: {jnp.abs(p - q).max():.4f}")

# %% [markdown]
# The draws have the distribution of the **large** model, whatever the draft is. A good draft only makes it faster, because more tokens are accepted. If all proposals are accepted, the same call yields one more token. We count the tokens for each call.

# %%
table = jnp.asarray(bigram, jnp.float32)


@functools.partial(jax.jit, static_argnames="count")
def tokens_in_one_call(key, text, count):
    """text (S,) -> how many new tokens a call of the large model yields, with `count` proposals"""
    keys = jax.random.split(key, 2 * count)
    for i in range(count):
        text = jnp.append(text, jax.random.categorical(keys[i], jnp.log(table[text[-1]])))
    p, q = jax.nn.softmax(model(params, text))[-count - 1 : -1], table[text[-count - 1 : -1]]
    _, accepted = jax.vmap(accept_or_replace)(keys[count:], p, q, text[-count:])
    return 1 + jnp.cumprod(accepted).sum()  # one token comes from the large model


windows = jnp.asarray(np.stack([tokens[i : i + 40] for i in range(0, 4000, 20)]))
for count in (1, 3):
    some_keys = jax.random.split(jax.random.key(count), len(windows))
    yielded = jax.vmap(functools.partial(tokens_in_one_call, count=count))(some_keys, windows)
    print(f"{count} proposals: {yielded.mean():.2f} tokens for each call of the large model")

# %% [markdown]
# The bigram model is a poor draft, so three proposals yield little more than one. Proposals after a rejected one are ignored. With a cache, set its length back, and the mask hides the rest. The method saves time if scoring several tokens takes about as long as scoring one, for example because most of the time is spent on reading the weights.
#
# ## Deeper: older code
#
# | in other code | here |
# |---|---|
# | `flax.linen.SelfAttention`, `MultiHeadDotProductAttention` | `flax.nnx.MultiHeadAttention`, or the functions of this lesson |
# | `nn.make_causal_mask(tokens)` | `is_causal=True`, or `jnp.tri(T, dtype=bool)` |
# | `decode=True` and a mutable `cache` collection in Linen | a cache that is passed and returned |
# | scores `+ (1 - mask) * -1e9` | `jnp.where(mask, scores, ...)`, or `mask=` |
# | learned or sinusoidal vectors, added to the embeddings | rotary embeddings of queries and keys |
# | `jax.random.PRNGKey(0)` | `jax.random.key(0)` |
