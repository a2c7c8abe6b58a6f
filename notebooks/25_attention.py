# %% [markdown]
# # 25 · Attention
#
# *The core takes about 35 minutes. Seven "Deeper" sections can be skipped. Then do [the exercises](../exercises/25_attention/25_attention.ipynb).* After the core, you can write and train a transformer block, test that its mask works, and generate text with a cache.
#
# **Prerequisites.** NaN in gradients (lesson 04), `vmap` (05), keys (07), `scan` (08), training with Optax (09), bfloat16 (15). Try to answer these questions from memory.
#
# 1. From 05: What does `in_axes=(1, None)` mean?
#
# <details><summary>Answer</summary>
#
# `vmap` maps over axis 1 of the first argument, and passes the same second argument to each call.
# </details>
#
# 2. From 04: `jnp.where(ok, f(x), 0)` is finite. Why can its gradient be NaN?
#
# <details><summary>Answer</summary>
#
# The backward pass multiplies the cotangent 0 of the unused branch by the derivative of `f`. If this derivative is infinite or NaN, the product is NaN.
# </details>
#
# 3. From 15: How many significant bits does a bfloat16 have?
#
# <details><summary>Answer</summary>
#
# Eight, so numbers between 32 and 64 are rounded to multiples of 0.25.
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
# A language model computes the probability of the next token from the tokens before it. **How can a position use all earlier positions, but no later one?** Our text is a short story, and each character is a token.

# %%
CHARACTERS = sorted(set(STORY))
V = len(CHARACTERS)
encode = lambda text: np.array([CHARACTERS.index(c) for c in text], np.int32)
decode = lambda tokens: "".join(CHARACTERS[t] for t in tokens)

tokens = encode(STORY)
train, held_out = np.split(tokens, [int(0.9 * len(tokens))])
print(f"{len(tokens):,} tokens, {V} different ones. {STORY[:58]!r} begins with", tokens[:6])

# %% [markdown]
# The simplest model is a **bigram** model, a table with the probability of each token after each token. We count pairs.

# %%
counts = np.full((V, V), 0.1)  # a small count for each pair, so that no probability is 0
np.add.at(counts, (train[:-1], train[1:]), 1)
bigram = counts / counts.sum(axis=1, keepdims=True)
bigram_loss = -np.log(bigram[held_out[:-1], held_out[1:]]).mean()
print(f"loss on the held-out text: {bigram_loss:.3f}, for equal probabilities: {np.log(V):.3f}")
print("the four most probable tokens after 't':", [decode([t]) for t in np.argsort(-bigram[encode("t")[0]])[:4]])

# %% [markdown]
# The loss is the mean of -log p of the correct next token. To do better, a model has to look further back. In a transformer, the vector of a token, its **[embedding](../docs/glossary.md#embedding)**, is a row of a matrix, and *[attention](../docs/glossary.md#attention)* adds information from other positions.
#
# ## Attention
# Each position has three vectors of size d. The dot products of its **query** with the **keys** of all positions, divided by sqrt(d), are its **scores**. Their softmax is a row of weights that add up to 1. The result is the mean of the **values** with these weights.


# %%
def attend(q, k, v, mask):
    """One head: q (T, d), k (S, d), v (S, d), mask (T, S) -> (T, d)"""
    scores = q @ k.T / q.shape[1] ** 0.5
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ v


rng = np.random.default_rng(25)
T, d = 6, 8
q, k, v = rng.normal(size=(3, T, d)).astype(np.float32)
causal = np.tri(T, dtype=bool)  # True where a query may use a key: at its own position and before
print(np.round(attend(q, k, np.eye(T, dtype=np.float32), causal), 2))  # with these values, the result is the weights

# %% [markdown]
# Why divide by the square root of d? The dot product of two vectors of d independent numbers from the standard normal distribution has a standard deviation of sqrt(d). Without the division, long vectors give large scores, and the softmax selects a single key.

# %%
for size in (16, 256, 4096):
    one, other = rng.normal(size=(2, 64, size))
    products = one @ other.T
    largest = [jax.nn.softmax(products / by, axis=-1).max(axis=-1).mean() for by in (1, size**0.5)]
    print(f"d = {size:4d}  standard deviation {products.std():5.1f}", end="")
    print(f"  mean of the largest of 64 weights: {largest[0]:.2f}, divided by sqrt(d): {largest[1]:.2f}")

# %% [markdown] predict="attention-mask-after"
# ## Masks
# Some programs apply the mask after the softmax, as `softmax(scores) * mask`. The mask is causal. You replace the *last* token by another one. Which results change?
#
# - [ ] only the last one, because the mask removes later keys | This is what a causal mask is for, and what happens if it is applied to the scores.
# - [x] all of them | Right. The denominator of the softmax still contains the scores of later keys.
# - [ ] none, because only the weights of the last token change | These weights are 0 for earlier queries, but its score is part of their denominators.


# %%
def masked_after(q, k, v, mask):
    return jax.nn.softmax(q @ k.T / q.shape[1] ** 0.5, axis=-1) * mask @ v


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
# Masks are combined with `&`. A **padding** mask excludes positions behind the end of a shorter text. A **sliding window** keeps only the last keys.

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

# %% [markdown] predict="attention-empty-row"
# If padding comes first, a query may have no allowed key. All its scores are then -inf, and `attend` computes -inf - (-inf), which is NaN. What does `jax.nn.dot_product_attention` return for such a query?
#
# - [ ] NaN | It does not use -inf for masked scores.
# - [ ] zeros | This would be a good answer, but a softmax adds up to 1.
# - [x] the mean of all values, also of masked ones | Right. All masked scores are the same large negative number, so their softmax gives equal weights.

# %%
nothing = causal.copy()
nothing[2] = False
print("attend:               ", attend(q, k, v, nothing)[2, :3])
built_in = jax.nn.dot_product_attention(q[:, None], k[:, None], v[:, None], mask=nothing[None])[2, 0]
print("dot_product_attention:", built_in[:3], " mean of all values:", v.mean(axis=0)[:3])
hidden = lambda v: jnp.sum(jnp.where(nothing.any(axis=1, keepdims=True), attend(q, k, v, nothing), 0))
print("gradient with respect to v, if a `where` hides the NaN:", jax.grad(hidden)(v)[0, :3])

# %% [markdown]
# The mean of all values is finite, but meaningless. Exclude such positions from the loss. You fix the gradient in an exercise.
#
# ## Heads
# One softmax can select one thing. Models therefore use several **heads**, each with its own queries, keys and values. `attend` handles one head, and `vmap` adds the axis.

# %%
H = 4
q, k, v = rng.normal(size=(3, T, H, d)).astype(np.float32)
heads = jax.vmap(attend, in_axes=(1, 1, 1, None), out_axes=1)  # the mask is the same for all heads
built_in = jax.nn.dot_product_attention(q, k, v, is_causal=True)
print("shape", heads(q, k, v, causal).shape, " largest difference:", jnp.abs(heads(q, k, v, causal) - built_in).max())
shared = jax.vmap(attend, in_axes=(1, None, None, None), out_axes=1)  # one key head for all query heads
built_in = jax.nn.dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True)
print("one key head: largest difference:", jnp.abs(shared(q, k[:, 0], v[:, 0], causal) - built_in).max())

# %% [markdown]
# `jax.nn.dot_product_attention` takes `(T, heads, d)`, or `(B, T, heads, d)` with a batch. `k` and `v` may have fewer heads than `q`, and each key head then serves a group of query heads. This is **[grouped-query attention](../docs/glossary.md#grouped-query-attention)**. Its purpose is a smaller cache, as we will see.
#
# ## Scores in bfloat16
# Queries, keys and values are often in bfloat16 (lesson 15). Which part of attention needs more bits?

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
# ## Positions
# Without a mask, attention does not depend on the order of the keys. **[Rotary position embeddings](../docs/glossary.md#rotary-position-embedding)** rotate queries and keys by an angle that is proportional to the position. Each pair of entries has its own frequency.


# %%
def rotate(x, positions):
    """x (T, heads, d), positions (T,) -> the pairs (x[i], x[i + d / 2]), rotated"""
    frequencies = 10_000.0 ** (-jnp.linspace(0, 1, x.shape[-1] // 2, endpoint=False))
    angles = positions[:, None, None] * frequencies
    one, other = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([one * cos - other * sin, one * sin + other * cos], axis=-1)


def rotated_scores(start):
    positions = start + jnp.arange(T)
    return jnp.einsum("thd,shd->hts", rotate(q, positions), rotate(k, positions))


print("scores of the last query:", np.round(rotated_scores(0)[0, -1], 3))
for start in (1, 1000):
    difference = np.abs(rotated_scores(start) - rotated_scores(0)).max()
    print(f"all tokens {start:4d} positions later: largest difference {difference:.1e}")

# %% [markdown]
# A score depends only on the **distance** of the two positions, because the dot product of two rotated vectors depends on the difference of their angles. The differences above are rounding errors.
#
# ## A transformer block
# A block adds the result of attention, and then that of an MLP, to its input. Both parts start with a normalization. All layers are stacked, so a `scan` runs them (lesson 08).


# %%
WIDTH, LAYERS, HEADS, KEY_HEADS, SIZE = 64, 2, 4, 2, 16


def init(key):
    shapes = {"q": (HEADS, SIZE), "k": (KEY_HEADS, SIZE), "v": (KEY_HEADS, SIZE), "up": (4 * WIDTH,)}
    keys = dict(zip((*shapes, "o", "down", "embed"), jax.random.split(key, 7), strict=True))
    draw = lambda name, *shape: jax.random.normal(keys[name], shape)
    blocks = {name: draw(name, LAYERS, WIDTH, *shape) / WIDTH**0.5 for name, shape in shapes.items()}
    blocks["o"] = draw("o", LAYERS, HEADS, SIZE, WIDTH) / (4 * HEADS * SIZE) ** 0.5
    blocks["down"] = draw("down", LAYERS, 4 * WIDTH, WIDTH) / (16 * WIDTH) ** 0.5
    return {"embed": draw("embed", V, WIDTH) / WIDTH**0.5, "blocks": blocks}


def normalize(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


# %% [markdown]
# `project` and `finish` are the parts before and after attention. Generation uses them again.


# %%
def project(w, x, positions):
    q, k, v = (jnp.einsum("td,dhk->thk", normalize(x), w[name]) for name in "qkv")
    return rotate(q, positions), rotate(k, positions), v


def finish(w, x, mixed):
    x = x + jnp.einsum("thk,hkd->td", mixed, w["o"])
    return x + jax.nn.silu(normalize(x) @ w["up"]) @ w["down"]


def block(w, x):
    q, k, v = project(w, x, jnp.arange(len(x)))
    return finish(w, x, jax.nn.dot_product_attention(q, k, v, is_causal=True))


def model(params, tokens):
    """One text (T,) -> logits (T, V)"""
    x = WIDTH**0.5 * params["embed"][tokens]
    x, _ = jax.lax.scan(lambda x, w: (block(w, x), None), x, params["blocks"])
    return normalize(x) @ params["embed"].T


# %% [markdown]
# The embedding matrix also computes the logits. The model is written for one text, and the loss maps it over a batch. We train on random windows of 64 characters.


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


held_batch = np.stack([held_out[i : i + 65] for i in range(0, len(held_out) - 64, 64)])

# %% [markdown]
# Every 25 steps, we also compute the loss on the held-out text.

# %%
params = init(jax.random.key(0))
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
# Attention to earlier characters pays off. Then the two curves separate. The text has only a few thousand characters, and the model starts to memorize it.
#
# A low loss does not show that the mask is right, so we test it. We change character 40 of a text.

# %%
original = held_batch[0]
changed = np.where(np.arange(len(original)) == 40, (original + 1) % V, original)
difference = jnp.abs(model(params, original) - model(params, changed)).max(axis=1)
print("changed position: 40, first position at which the logits change:", jnp.argmax(difference > 1e-4))

# %% [markdown]
# What do the heads look at?

# %%
words = "the cat had a fish"
x = WIDTH**0.5 * params["embed"][encode(words)]
_, all_axes = plots.subplots(1, 4, height=2.3)
for layer in range(LAYERS):
    w = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
    q, k, _ = project(w, x, jnp.arange(len(x)))
    scores = jnp.einsum("thk,shk->hts", q, jnp.repeat(k, HEADS // KEY_HEADS, axis=1)) / SIZE**0.5
    weights = jax.nn.softmax(jnp.where(np.tri(len(x), dtype=bool), scores, -jnp.inf), axis=-1)
    x = block(w, x)
for head, axes in enumerate(all_axes):
    axes.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
    axes.set(title=f"head {head}", xticks=range(len(words)), yticks=range(len(words)))
    axes.set_xticklabels(words, fontsize=6)
    axes.set_yticklabels(words, fontsize=6)
shares = [np.diagonal(weights[h], -1).mean() for h in range(HEADS)]
spaces = weights[..., np.array(list(words)) == " "].sum(axis=-1).mean(axis=-1)
found = ", ".join(f"head {h}: {shares[h]:.0%} and {spaces[h]:.0%}" for h in range(HEADS))
plots.show(
    f"The second layer's weights. Rows are queries. Mean weight of the previous character, and of spaces: {found}."
)

# %% [markdown]
# Rows are queries, and each row adds up to 1. The heads have learned different patterns. Weights show where a head reads, but not what it does with the values.
#
# ## Sampling
# Text is generated by drawing a token and appending it to the input. A **temperature** divides the logits before the softmax. **Top-k** keeps the k most probable tokens. **Top-p** keeps the most probable tokens until their total probability reaches p.

# %%
prompt = "in the evening the "
logits = np.asarray(model(params, encode(prompt))[-1])
_, axes = plots.subplots(height=2.3)
for temperature, marker in ((0.5, "o"), (1.0, "s"), (2.0, "^")):
    p = np.sort(jax.nn.softmax(logits / temperature))[::-1]
    kept = int(np.searchsorted(np.cumsum(p), 0.9)) + 1  # top-p with p = 0.9
    axes.plot(np.cumsum(p), marker=marker, label=f"temperature {temperature}, top-p keeps {kept}")
axes.axhline(0.9, color=plots.QUIET, linewidth=0.8)
axes.set(xlabel="rank of the token", ylabel="total probability", ylim=(0, 1.05))
axes.legend(loc="lower right")
plots.show(
    f"The total probability of the most probable tokens after {prompt!r}. The highest probability is "
    + ", ".join(f"{jax.nn.softmax(logits / t).max():.2f} at temperature {t}" for t in (0.5, 1.0, 2.0))
    + "."
)

# %% [markdown]
# Draw with `jax.random.categorical(key, logits)`. Each token needs a new key (lesson 07). Set the logits of removed tokens to -inf, so that all shapes stay static.
#
# ## The key-value cache
# To generate a token, `model` computes all earlier positions again, although their keys and values do not change. A **[key-value cache](../docs/glossary.md#key-value-cache)** stores them. Its size is fixed, so one compiled program serves all positions.


# %%
def cached_block(w, cache, x, start):
    """x (T, WIDTH) at the positions from `start` on, cache (2, S, KEY_HEADS, SIZE) -> x, the new cache"""
    positions = start + jnp.arange(len(x))
    q, k, v = project(w, x, positions)
    cache = jax.lax.dynamic_update_slice_in_dim(cache, jnp.stack([k, v]), start, axis=1)
    mask = jnp.arange(cache.shape[1]) <= positions[:, None]  # later positions are not written yet
    return finish(w, x, jax.nn.dot_product_attention(q, *cache, mask=mask[None])), cache


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
S = 128
cache = jnp.zeros((LAYERS, 2, S, KEY_HEADS, SIZE))
text = encode(prompt)
logits, cache = cached_model(params, cache, text, 0)
for i, key in enumerate(jax.random.split(jax.random.key(2), 60)):
    new = jax.random.categorical(key, logits[-1] / 0.5)
    text = np.append(text, new)
    logits, cache = cached_model(params, cache, new[None], len(prompt) + i)
print(decode(text))
print("largest difference to `model`:", np.abs(logits[-1] - model(params, text)[-1]).max())
print(
    f"bytes of the cache: {cache.nbytes:,}, with as many key heads as query heads: {cache.nbytes * HEADS // KEY_HEADS:,}"
)

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
# ## Deeper: texts of different lengths
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
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | attention for all heads | `jax.nn.dot_product_attention(q, k, v, is_causal=True)`, with `(T, heads, d)` or `(B, T, heads, d)` |
# | another mask | `mask=`, Boolean, with the shape `(B or 1, heads or 1, T, S)`, or `(heads or 1, T, S)` without a batch, and True where a query may use a key |
# | a test of the mask | change a token, and require that no earlier result changes |
# | a function for one head, applied to all heads | `jax.vmap` over the axis of heads |
# | a smaller cache | fewer key heads than query heads |
# | accurate weights in bfloat16 | scores and softmax in float32 |
# | positions | rotate queries and keys |
# | generation without recomputation | a cache of fixed size, `jax.lax.dynamic_update_slice_in_dim`, and a mask |
# | a random token | `jax.random.categorical(key, logits / temperature)`, with a new key for each token |
#
# The JAX documentation describes [dot_product_attention](https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html). In the first exercise, you write a mask that also works with a cache.
