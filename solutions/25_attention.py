# %% [markdown]
# # 25 · Exercises: attention
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices for the last exercise. JAX determines its devices only once, when it is first used. If the setup fails, restart the kernel and run the setup first.
#
# In shapes, T is the number of queries, S the number of keys, H the number of query heads, G the number of key heads, d the size of a head, and D the size of a token's vector.

# %% setup
from grader.checks import ask, case, compare, counted, devices, inputs, program, require

devices.start(8)  # before JAX is first used

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def rotate(x, positions):
    """Rotary position embedding: x (..., heads, d) with an even d, positions of the shape (...) -> like x.

    The lesson uses the base 10,000. With the base 100, even the slowest pair turns visibly within a short text.
    """
    half = x.shape[-1] // 2
    angles = positions[..., None, None] * 100.0 ** (-jnp.arange(half) / half)
    one, other = jnp.split(x, 2, axis=-1)
    turned = one * jnp.cos(angles) - other * jnp.sin(angles), one * jnp.sin(angles) + other * jnp.cos(angles)
    return jnp.concatenate(turned, axis=-1)


def distance_weighted(q, k, v):
    """Replaces attention in one exercise: q (T, d), k (S, d), v (S, e) -> (T, e). The order of queries and keys matters."""
    places, factors = jnp.linspace(0.0, 1.0, len(k)), jnp.linspace(1.0, 2.0, len(q))
    return (factors * jnp.tanh(q @ (places @ k)))[:, None] + places**2 @ v


def grid(size):
    """A mesh with the Explicit axis `cache`."""
    return devices.mesh((size,), ("cache",), explicit=True)


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


def normal(rng, *shape):
    """NumPy float32 numbers from a normal distribution, from a NumPy generator."""
    return rng.normal(size=shape).astype(np.float32)


# %% [markdown] task="attention-causal-mask" stars=1 minutes=8 skills="01_arrays"
# ## Which keys may a query use?
# **Goal.** Compute a causal mask with a sliding window. It should also work while text is generated, when there are fewer queries than keys. Two lines are missing.
#
# **Signature.** `causal_mask(T, S, window)` takes three Python ints with 1 <= T <= S and window >= 1. The keys have the positions 0 to S - 1, and the T queries have the **last** T of these positions. The result is a Boolean array of shape (T, S). Entry [i, j] is True if key j is not after query i and is one of the `window` last keys up to this query, including the key at the query's own position.
#
# **Example.** In `causal_mask(2, 5, 3)`, the queries have the positions 3 and 4. The result is `[[0 1 1 1 0] [0 0 1 1 1]]` with 1 for True.
#
# **Judged.** The values, the shape and the dtype. **Not judged.** Whether you use `jnp` or NumPy.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is the position of the first query if T = 2 and S = 5?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `queries[:, None] - keys` states how far a key is before a query. It is 0 at the query's own position and negative for later keys.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The positions of the queries are `jnp.arange(S - T, S)`. The distance must be at least 0 and less than `window`. Combine the two conditions with `&`.
#
# </details>


# %% answer="attention-causal-mask"
def causal_mask(T, S, window):
    """Three ints -> bool (T, S). True where the query (one of the last T positions) may use the key."""
    keys = jnp.arange(S)
    ### BEGIN SOLUTION
    queries = jnp.arange(S - T, S)
    ### END SOLUTION
    distance = queries[:, None] - keys
    ### BEGIN SOLUTION
    return (distance >= 0) & (distance < window)
    ### END SOLUTION


# %% check="attention-causal-mask" name="example" points=1
"""The example, and all positions of a short text."""
compare(ask(causal_mask, 2, 5, 3), np.array([[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]], bool), label="the mask")
compare(ask(causal_mask, 4, 4, 4), np.tri(4, dtype=bool), label="the mask of four queries and four keys")

# %% hidden="attention-causal-mask" name="values" points=2
"""Right for other numbers of queries and keys and other windows."""
rng = inputs.rng()
S = int(rng.integers(7, 12))
for T, window, words in (
    (S, S + 3, "when the window is longer than the text"),
    (S, int(rng.integers(2, 5)), "when there are as many queries as keys"),
    (int(rng.integers(3, 5)), int(rng.integers(2, 4)), "when there are fewer queries than keys"),
    (1, S, "for a single query with a long window"),
    (int(rng.integers(2, 5)), 1, "when each query may use only its own key"),
    (3, int(rng.integers(150, 200)), "for hundreds of keys"),
):
    if words.startswith("for hundreds"):
        S = int(rng.integers(300, 400))
    with case(words):
        got = ask(causal_mask, T, S, window)
        wanted = np.zeros((T, S), bool)
        for i in range(T):
            here = S - T + i
            wanted[i, max(0, here - window + 1) : here + 1] = True
        compare(got, wanted, label="the mask")

# %% [markdown] why="attention-causal-mask"
# A mask compares positions, so first compute the positions of queries and keys. If there are as many queries as keys, both begin at 0. During generation, the only query has the last position, and a lower triangular matrix of shape (1, S) would allow only the first key. **Next:** How many entries are True for T = S, and how does this number grow with S for a fixed window?


# %% wrong="attention-causal-mask" because="Gives the queries the first T positions instead of the last. A single query may then use only the first key."
def causal_mask(T, S, window):
    distance = jnp.arange(T)[:, None] - jnp.arange(S)
    return (distance >= 0) & (distance < window)


# %% wrong="attention-causal-mask" because="Gives the queries the first T positions instead of the last. A single query may then use only the first key."
def causal_mask(T, S, window):
    ones = jnp.ones((T, S), bool)
    return jnp.tril(ones) & ~jnp.tril(ones, -window)


# %% wrong="attention-causal-mask" because="Excludes the key at the query's own position."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return (distance > 0) & (distance <= window)


# %% wrong="attention-causal-mask" because="Excludes the key at the query's own position."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return (distance > 0) & (distance < window)


# %% wrong="attention-causal-mask" because="The window has one key too many."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return (distance >= 0) & (distance <= window)


# %% wrong="attention-causal-mask" because="Marks the forbidden entries with True. JAX's masks are True where a query may use a key."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return (distance < 0) | (distance >= window)


# %% wrong="attention-causal-mask" because="Allows later keys within the window."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return jnp.abs(distance) < window


# %% wrong="attention-causal-mask" because="Ignores the window."
def causal_mask(T, S, window):
    return jnp.arange(S - T, S)[:, None] >= jnp.arange(S)


# %% wrong="attention-causal-mask" because="Returns numbers instead of a Boolean mask."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return jnp.where((distance >= 0) & (distance < window), 0.0, -jnp.inf)


# %% wrong="attention-causal-mask" because="Has the sign of the distance wrong, so each query may use its own key and later keys."
def causal_mask(T, S, window):
    distance = jnp.arange(S) - jnp.arange(S - T, S)[:, None]
    return (distance >= 0) & (distance < window)


# %% wrong="attention-causal-mask" because="Returns the transposed mask, with a row for each key."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S) - jnp.arange(S)[:, None]
    return (distance >= 0) & (distance < window)


# %% wrong="attention-causal-mask" because="Applies the window only if there are fewer queries than keys."
def causal_mask(T, S, window):
    distance = jnp.arange(S - T, S)[:, None] - jnp.arange(S)
    return (distance >= 0) & ((distance < window) | (T == S))


# %% wrong="attention-causal-mask" because="Stores positions in 8 bits, so those above 127 overflow."
def causal_mask(T, S, window):
    distance = np.arange(S - T, S).astype(np.int8)[:, None] - np.arange(S).astype(np.int8)
    return (distance >= 0) & (distance < window)


# %% wrong="attention-causal-mask" because="Begins a slice before position 0. A negative start counts from the end, so the slice is empty."
def causal_mask(T, S, window):
    mask = np.zeros((T, S), bool)
    for i in range(T):
        here = S - T + i
        mask[i, here - window + 1 : here + 1] = True
    return mask


# %% wrong="attention-causal-mask" because="The window has one key too many."
def causal_mask(T, S, window):
    keys = jnp.arange(S)
    queries = keys[-T:]
    distance = queries[:, None] - keys
    return (distance >= 0) & (distance <= window)


# %% wrong="attention-causal-mask" because="Uses the offset of the example. The first query has the position S - T."
def causal_mask(T, S, window):
    keys = jnp.arange(S)
    queries = jnp.arange(T) + (3 if T < S else 0)
    distance = queries[:, None] - keys
    return (distance >= 0) & (distance < window)


# %% wrong="attention-causal-mask" because="Shifts the first triangle by S - T, but not the second one, which removes the keys before the window."
def causal_mask(T, S, window):
    return jnp.tri(T, S, S - T, dtype=bool) & ~jnp.tri(T, S, -window, dtype=bool)


# %% right="attention-causal-mask"
def causal_mask(T, S, window):
    return jnp.tri(T, S, S - T, dtype=bool) & ~jnp.tri(T, S, S - T - window, dtype=bool)


# %% right="attention-causal-mask"
def causal_mask(T, S, window):
    def allowed(i, j):
        here = i + S - T
        return np.logical_and(j <= here, j > here - window)

    return np.fromfunction(allowed, (T, S), dtype=int)


# %% [markdown] task="attention-masked" stars=2 minutes=20 skills="04_grad,15_memory_and_precision"
# ## Attention with a mask
# *Needs: Deeper: padding.*
#
# **Goal.** Write attention for one head. Queries without any allowed key, such as padding, must not produce NaN, neither in the result nor in the gradient.
#
# **Signature.** `attention(q, k, v, mask)` takes `q` (T, d), `k` (S, d) and `v` (S, e), all float32 or all bfloat16, and a Boolean `mask` (T, S). The score of a query and a key is their dot product divided by sqrt(d). The weights of a query are the softmax of its scores over the keys for which the mask is True, and 0 for all other keys. A query for which no entry of the mask is True returns zeros. The result has the shape (T, e) and the dtype of `q`. Compute scores and softmax in float32.
#
# **Example.** For `q` = [[1], [2]], `k` = [[0], [ln 3], [9]], `v` = [[4], [8], [100]] and `mask` = [[1 1 0] [0 0 0]], the weights of the first query are 1/4, 3/4 and 0, and its result is 7. The result of the second query is 0.
#
# **Judged.** The values in both dtypes, also for scores above 100, for masked scores that are much larger than the others, and for queries without any allowed key. The gradients with respect to `q`, `k` and `v` in float32. **Not judged.** The speed, the memory, and whether you call a function of `jax.nn`.
#
# <details><summary>Hint 1 · a question</summary>
#
# The weights of a query should add up to 1. What is their sum if you set some of them to 0 after the softmax?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.where(mask, scores, -jnp.inf)` before the softmax gives weights of exactly 0. If all scores of a query are -inf, the softmax computes -inf - (-inf), which is NaN. A `where` after the softmax hides this NaN, but the gradient with respect to `v` is still NaN.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use a large negative but finite number instead of -inf, such as `jnp.finfo(jnp.float32).min`. Then compute `jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)`. Convert q, k and v to float32 first, and the result back at the end.
#
# </details>


# %% answer="attention-masked"
def attention(q, k, v, mask):
    """q (T, d), k (S, d), v (S, e), bool mask (T, S) -> (T, e) with the dtype of q."""
    ### BEGIN SOLUTION
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = query @ key.T / math.sqrt(q.shape[1])
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
    return (weights @ value).astype(q.dtype)
    ### END SOLUTION


# %% check="attention-masked" name="example" points=1
"""The example in both dtypes, and its gradient with respect to v."""
q, k, v = np.array([[1], [2]], np.float32), np.array([[0], [np.log(3)], [9]], np.float32), np.array([[4], [8], [100]])
mask = np.array([[1, 1, 0], [0, 0, 0]], bool)
one, mask = [jnp.asarray(array, jnp.float32) for array in (q, k, v)], jnp.asarray(mask)
compare(ask(attention, *one, mask), np.array([[7], [0]], np.float32), label="the result")
small = [jnp.asarray(array, jnp.bfloat16) for array in (q, k, v)]
compare(ask(attention, *small, mask), np.array([[7], [0]], jnp.bfloat16), label="the result in bfloat16")


def probe_gradient_of_values(q, k, v, mask):
    return jax.grad(lambda v: attention(q, k, v, mask).sum())(v)


with case("when the second query has no allowed key"):
    found = ask(probe_gradient_of_values, *one, mask)
    compare(found, np.array([[0.25], [0.75], [0]], np.float32), label="the gradient with respect to v")

# %% hidden="attention-masked" name="values" points=1
"""The values are right in float32, also for large scores and for queries without any allowed key."""
rng = inputs.rng()
for T, S, d, e, factor, words in (
    (5, 7, 4, 3, 1, "for moderate scores"),
    (6, 4, 9, 9, 1, "when all queries and keys are drawn again"),
    (4, 6, 16, 5, 1, "for scores above 100"),
    (4, 6, 4, 2, 3, "when the masked scores are much larger than the others"),
):
    q, k, v = factor * normal(rng, T, d), factor * normal(rng, S, d), normal(rng, S, e)
    mask = rng.random((T, S)) < 0.6
    mask[0] = np.arange(S) == 1
    mask[1] = np.arange(S) != 2
    mask[2] = False
    if words.startswith("for scores"):
        q[:, 0], k[:, 0] = 20, 21  # adds 105 to each score
    if words.startswith("when the masked"):
        q, k[mask[1]] = np.abs(q) + 1, -np.abs(k[mask[1]])
        k[2] = 30_000
    with case(words):
        scores = np.where(mask, q.astype(np.float64) @ k.T / math.sqrt(d), -1e9)
        weights = np.where(mask, np.exp(scores - scores.max(1, keepdims=True)), 0)
        weights /= np.maximum(weights.sum(1, keepdims=True), 1e-30)
        got = ask(attention, *map(jnp.asarray, (q, k, v, mask)))
        compare(got, (weights @ v).astype(np.float32), label="the result")

# %% hidden="attention-masked" name="bfloat16" points=1
"""In bfloat16, the scores and the softmax have the accuracy of float32."""
rng = inputs.rng()
T, S, d, e = 30, 9, 8, 4
# All scores are about 42, where numbers in bfloat16 are multiples of 0.25.
numbers = 5 + normal(rng, T, d) / 4, 4 + normal(rng, S, d) / 3, 3 * normal(rng, S, e)
# Two large terms of each score almost cancel. In bfloat16, 11.625 / sqrt(8) is rounded up and 12.0625 / sqrt(8) down.
numbers[0][:, :2] = 11.625, 12.0625
numbers[1][:, 0] = 8 * (rng.permutation(S) - S // 2)
numbers[1][:, 1] = numbers[1][:, 0] * np.float32(-11.625 / 12.0625)
small = [jnp.asarray(array, jnp.bfloat16) for array in numbers]
mask = rng.random((T, S)) < 0.8
mask[:, 0], mask[3] = True, False
q, k, v = (np.asarray(array, np.float64) for array in small)
scores = np.where(mask, q @ k.T / math.sqrt(d), -1e9)
weights = np.where(mask, np.exp(scores - scores.max(1, keepdims=True)), 0)
weights /= np.maximum(weights.sum(1, keepdims=True), 1e-30)
got = ask(attention, *small, jnp.asarray(mask))
compare(got, (weights @ v).astype(jnp.bfloat16), rtol=1e-2, atol=3e-2, label="the result in bfloat16")

# %% hidden="attention-masked" name="gradient" points=1
"""The gradients are right and finite, also if queries have no allowed key."""


def probe_gradients(q, k, v, mask, cotangent):
    return jax.vjp(lambda q, k, v: attention(q, k, v, mask), q, k, v)[1](cotangent)


rng = inputs.rng()
T, S, d, e = (int(size) for size in rng.permutation([4, 5, 6, 7]))
q, k, v, g = normal(rng, T, d), normal(rng, S, d), normal(rng, S, e), normal(rng, T, e)
mask = rng.random((T, S)) < 0.6
mask[0], mask[1], mask[2] = True, np.arange(S) < 2, False
scores = np.where(mask, q.astype(np.float64) @ k.T / math.sqrt(d), -1e9)
weights = np.where(mask, np.exp(scores - scores.max(1, keepdims=True)), 0)
weights /= np.maximum(weights.sum(1, keepdims=True), 1e-30)
back = g.astype(np.float64) @ v.T
back = weights * (back - (back * weights).sum(1, keepdims=True)) / math.sqrt(d)
wanted = tuple(array.astype(np.float32) for array in (back @ k, back.T @ q, weights.T @ g))
got = ask(probe_gradients, *map(jnp.asarray, (q, k, v, mask, g)))
require(all(np.isfinite(one).all() for one in got), "Some gradients are NaN or infinite.")
compare(got, wanted, label="the gradients with respect to q, k and v")

# %% [markdown] why="attention-masked"
# The mask belongs before the softmax, so that the allowed keys share the whole weight. A finite number keeps the softmax finite in a row without any allowed key, and the second `where` sets this row to 0. In the backward pass, only finite numbers are then multiplied by 0. **Next:** `jax.nn.dot_product_attention` returns something else for such a row. What is it, and does it matter for padding?


# %% wrong="attention-masked" because="Applies the mask after the softmax. The weights of the allowed keys then add up to less than 1."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    weights = jax.nn.softmax(query @ key.T / math.sqrt(q.shape[1]), axis=-1)
    return (jnp.where(mask, weights, 0) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Applies the mask after the softmax. The weights of the allowed keys then add up to less than 1."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = query @ key.T * q.shape[1] ** -0.5
    return ((jax.nn.softmax(scores, axis=-1) * mask) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Applies the mask after the softmax and divides by the sum again. If a masked score is much larger, all allowed weights underflow to 0."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    weights = jax.nn.softmax(query @ key.T / math.sqrt(q.shape[1]), axis=-1) * mask
    weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-9)
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Multiplies the scores by the mask. Masked keys then have the score 0, which is not the weight 0."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = query @ key.T / math.sqrt(q.shape[1]) * mask
    weights = jnp.where(mask.any(axis=1, keepdims=True), jax.nn.softmax(scores, axis=-1), 0)
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="A row without any allowed key consists of -inf only, and its softmax is NaN."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), -jnp.inf)
    return (jax.nn.softmax(scores, axis=-1) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Replaces the NaN of the result by 0. The gradient is still NaN, because the backward pass multiplies 0 by NaN."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), -jnp.inf)
    return jnp.nan_to_num(jax.nn.softmax(scores, axis=-1) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Replaces the NaN of the result by 0. The gradient is still NaN, because the backward pass multiplies 0 by NaN."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), -jnp.inf)
    weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    return jnp.where(mask.any(axis=1, keepdims=True), weights @ value, 0).astype(q.dtype)


# %% wrong="attention-masked" because="Uses a finite number for masked scores and nothing else. A row without any allowed key is then the mean of all values."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), -1e9)
    return (jax.nn.softmax(scores, axis=-1) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Does not divide the scores by sqrt(d)."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T, jnp.finfo(jnp.float32).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Divides the scores by d instead of its square root."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / q.shape[1], jnp.finfo(jnp.float32).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Computes the softmax over the queries instead of the keys."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), jnp.finfo(jnp.float32).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=0), 0)
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Computes scores and softmax in bfloat16, which has 8 bits of precision. Large scores are then rounded to multiples of 0.25 or more."
def attention(q, k, v, mask):
    scores = jnp.where(mask, q @ k.T / math.sqrt(q.shape[1]), jnp.finfo(q.dtype).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
    return weights @ v


# %% wrong="attention-masked" because="Converts the scores to float32 after the product. They were already rounded to bfloat16."
def attention(q, k, v, mask):
    scores = (q @ k.T).astype(jnp.float32) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    return (jnp.where(mask, weights, 0) @ v.astype(jnp.float32)).astype(q.dtype)


# %% wrong="attention-masked" because="Scales the query in bfloat16, which rounds it, and converts it afterwards."
def attention(q, k, v, mask):
    query = (q / math.sqrt(q.shape[1])).astype(jnp.float32)
    scores = jnp.where(mask, query @ k.astype(jnp.float32).T, jnp.finfo(jnp.float32).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
    return (weights @ v.astype(jnp.float32)).astype(q.dtype)


# %% wrong="attention-masked" because="Adds a moderate negative number to masked scores. A masked score can be larger than this number."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = query @ key.T / math.sqrt(q.shape[1]) - 1e4 * ~mask
    return (jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Divides by the root of the size of a value instead of the size of a query."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(v.shape[1]), jnp.finfo(jnp.float32).min)
    return (jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Returns float32 for inputs in bfloat16."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), jnp.finfo(jnp.float32).min)
    return jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0) @ value


# %% wrong="attention-masked" because="Computes exp of the scores without subtracting the maximum, so large scores overflow."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    weights = jnp.where(mask, jnp.exp(query @ key.T / math.sqrt(q.shape[1])), 0)
    weights = weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Reads the mask the wrong way round. True means that the query may use the key."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, jnp.finfo(jnp.float32).min, query @ key.T / math.sqrt(q.shape[1]))
    weights = jnp.where(mask, 0, jax.nn.softmax(scores, axis=-1))
    return (weights @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Applies the mask after the softmax and divides by the sum again. If a masked score is much larger, all allowed weights underflow to 0."
def attention(q, k, v, mask):
    scores = (q.astype(jnp.float32) @ k.astype(jnp.float32).T) / math.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=-1) * mask
    weights = weights / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-9)
    return (weights @ v.astype(jnp.float32)).astype(q.dtype)


# %% wrong="attention-masked" because="Computes exp of the scores without subtracting the maximum, so large scores overflow."
def attention(q, k, v, mask):
    wide_q, wide_k, wide_v = (array.astype(jnp.float32) for array in (q, k, v))
    numerators = jnp.where(mask, jnp.exp(wide_q @ wide_k.T / math.sqrt(q.shape[-1])), 0)
    total = numerators.sum(axis=-1, keepdims=True)
    weights = numerators / jnp.where(total > 0, total, 1)
    return (weights @ wide_v).astype(q.dtype)


# %% wrong="attention-masked" because="Subtracts the maximum over all keys, also masked ones. If a masked score is much larger, all allowed weights underflow to 0."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = query @ key.T / math.sqrt(q.shape[1])
    weights = jnp.where(mask, jnp.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    return (weights / jnp.where(total == 0, 1, total) @ value).astype(q.dtype)


# %% wrong="attention-masked" because="Multiplies the scores by the mask. Masked keys then have the score 0, which is not the weight 0."
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    weights = jax.nn.softmax(query @ key.T / math.sqrt(q.shape[1]) * mask, axis=-1) * mask
    return (weights @ value).astype(q.dtype)


# %% right="attention-masked"
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    scores = jnp.where(mask, query @ key.T / math.sqrt(q.shape[1]), -jnp.inf)
    # In a row without any allowed key, the `where` above stops the cotangents, so the NaN reach no gradient.
    return (jnp.nan_to_num(jax.nn.softmax(scores, axis=-1)) @ value).astype(q.dtype)


# %% equivalent="attention-masked" because="The scores are finite, so the product is the same. All scores of this task are above the smallest float16 number."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
# product for where, where(X, Y, 0) -> X * Y: weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
# swapped function, float32 -> float16: scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)


# %% right="attention-masked"
def attention(q, k, v, mask):
    size = max(q.shape[1], v.shape[1])  # this function of JAX requires keys and values of one size
    wide = [jnp.pad(array, ((0, 0), (0, size - array.shape[1])))[:, None] for array in (q, k, v)]
    result = jax.nn.dot_product_attention(*wide, mask=mask[None], scale=q.shape[1] ** -0.5)[:, 0, : v.shape[1]]
    return jnp.where(mask.any(axis=1, keepdims=True), result, 0)


# %% right="attention-masked"
def attention(q, k, v, mask):
    query, key, value = (array.astype(jnp.float32) for array in (q, k, v))
    weights = jax.nn.softmax(query @ key.T / math.sqrt(q.shape[1]), axis=-1, where=mask)
    return (jnp.where(mask, weights, 0) @ value).astype(q.dtype)


# %% right="attention-masked"
def attention(q, k, v, mask):
    scores = jnp.einsum("td,sd->ts", q, k, preferred_element_type=jnp.float32) / q.shape[1] ** 0.5
    allowed = mask | ~mask.any(axis=1, keepdims=True)  # a row without any key uses all of them, and is removed below
    weights = jax.nn.softmax(scores, axis=1, where=allowed) * mask
    return jnp.einsum("ts,se->te", weights.astype(v.dtype), v, preferred_element_type=jnp.float32).astype(q.dtype)


# %% [markdown] task="attention-heads" stars=2 minutes=15 skills="05_vmap,attention-masked"
# ## Heads with vmap
# **Goal.** Turn a function for one head into grouped-query attention for a batch. Several query heads share one key head and one value head.
#
# **Signature.** `attend_heads(attend, q, k, v)` takes `q` (B, T, H, d), `k` (B, S, G, d) and `v` (B, S, G, e), all float32. H is a multiple of G. `attend` takes the arrays of one head, (T, d), (S, d) and (S, e), and returns (T, e). Query head h uses key and value head h // (H // G). The result has the shape (B, T, H, e).
#
# **Example.** With H = 4 and G = 2, the query heads 0 and 1 use key head 0, and the query heads 2 and 3 use key head 1.
#
# **Judged.** The values for any `attend`, which may depend on the order of the queries and of the keys. `attend` is traced once. The program has no loop, and `k` and `v` are not copied for each query head, so no array of the program is larger than the largest argument unless `attend` creates it. **Not judged.** The number of calls of `vmap`.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which axes of `q` does `attend` not have? If you give the query heads two axes, one for the group and one for the head within its group, which of them does `k` also have?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Reshape `q` to (B, T, G, H // G, d). The axis of size H // G exists only in `q`, so `in_axes` has None for `k` and `v` there.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The innermost map is `jax.vmap(attend, in_axes=(1, None, None), out_axes=1)`, for q of shape (T, H // G, d). The next one maps the groups, with `in_axes=1` and `out_axes=1`, and the outermost the batch. Reshape the result.
#
# </details>


# %% answer="attention-heads"
def attend_heads(attend, q, k, v):
    """q (B, T, H, d), k (B, S, G, d), v (B, S, G, e) -> (B, T, H, e), with attend for the arrays of one head."""
    ### BEGIN SOLUTION
    B, T, H, d = q.shape
    G = k.shape[2]
    grouped = q.reshape(B, T, G, H // G, d)
    in_group = jax.vmap(attend, in_axes=(1, None, None), out_axes=1)
    in_example = jax.vmap(in_group, in_axes=1, out_axes=1)
    return jax.vmap(in_example)(grouped, k, v).reshape(B, T, H, -1)
    ### END SOLUTION


# %% check="attention-heads" name="example" points=1
"""The heads of the example use the right keys."""


def probe_sum(q, k, v):
    return attend_heads(lambda q, k, v: q + k.sum(0) + v.sum(0), q, k, v)


q = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
k = np.array([10, 20], np.float32).reshape(1, 1, 2, 1)
wanted = np.array([10, 11, 22, 23], np.float32).reshape(1, 1, 4, 1)
compare(ask(probe_sum, *map(jnp.asarray, (q, k, 0 * k))), wanted, label="the result")

# %% hidden="attention-heads" name="program" points=2
"""The values are right, and keys and values are not copied for each query head."""


def probe_weighted(q, k, v):
    return attend_heads(distance_weighted, q, k, v)


rng = inputs.rng()
for B, T, S, H, G, d, e, words in (
    (2, 3, 40, 6, 2, 4, 5, "with three query heads for each key head"),
    (3, 1, 50, 8, 4, 5, 5, "with one query position"),
    (4, 4, 32, 4, 4, 4, 4, "when several axes have the same size"),
    (2, 2, 40, 4, 1, 3, 6, "with one key head"),
):
    q, k, v = normal(rng, B, T, H, d), normal(rng, B, S, G, d), normal(rng, B, S, G, e)
    with case(words):
        made = program(probe_weighted, q, k, v)
        places, wanted = np.linspace(0, 1, S), np.zeros((B, T, H, e))
        for h in range(H):
            keys, values = k[:, :, h // (H // G)].astype(np.float64), v[:, :, h // (H // G)].astype(np.float64)
            summed = np.einsum("s,bsd->bd", places, keys)
            score = np.tanh(np.einsum("btd,bd->bt", q[:, :, h], summed))
            score = np.linspace(1, 2, T) * score
            wanted[:, :, h] = score[..., None] + np.einsum("s,bse->be", places**2, values)[:, None]
        compare(made.run(q, k, v), wanted.astype(np.float32), label="the result")
        require(made.loops == 0, "the program has a loop.")
        require(
            made.intermediates <= max(q.size, k.size, v.size),
            "the program contains an array that is larger than each argument. Do not copy keys and values.",
        )

# %% hidden="attention-heads" name="traced-once" points=1 observed=true
"""Python runs `attend` once."""


def probe_calls(q, k, v):
    function = counted(distance_weighted)
    result = jax.eval_shape(lambda *arrays: attend_heads(function, *arrays), q, k, v)
    return function.calls, result.shape


q, k, v = np.zeros((2, 3, 6, 4), np.float32), np.zeros((2, 5, 3, 4), np.float32), np.zeros((2, 5, 3, 7), np.float32)
count, shape = ask(probe_calls, q, k, v)
require(shape == (2, 3, 6, 7), f"The result has shape {shape}, but should have (2, 3, 6, 7).")
require(count == 1, f"Python ran `attend` {count} times, but should run it once.")

# %% [markdown] why="attention-heads"
# Each `vmap` hides one axis from `attend`. The axis within a group is mapped in `q` only, so the products of all query heads of a group read the same keys. **Next:** A cache stores `k` and `v`. By which factor is it smaller than with as many key heads as query heads?


# %% wrong="attention-heads" because="Copies keys and values for each query head."
def attend_heads(attend, q, k, v):
    k, v = (jnp.repeat(array, q.shape[2] // array.shape[2], axis=2) for array in (k, v))
    return jax.vmap(jax.vmap(attend, in_axes=1, out_axes=1))(q, k, v)


# %% wrong="attention-heads" because="Copies keys and values for each query head."
def attend_heads(attend, q, k, v):
    groups = jnp.arange(q.shape[2]) // (q.shape[2] // k.shape[2])
    return jax.vmap(jax.vmap(attend, in_axes=1, out_axes=1))(q, k[:, :, groups], v[:, :, groups])


# %% wrong="attention-heads" because="Gives query head h the key head h % G."
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    grouped = q.reshape(B, T, H // k.shape[2], k.shape[2], d)
    in_group = jax.vmap(attend, in_axes=(1, None, None), out_axes=1)
    in_example = jax.vmap(in_group, in_axes=(2, 1, 1), out_axes=2)
    return jax.vmap(in_example)(grouped, k, v).reshape(B, T, H, -1)


# %% wrong="attention-heads" because="Gives query head h the key head h % G."
def attend_heads(attend, q, k, v):
    k, v = (jnp.tile(array, (1, 1, q.shape[2] // array.shape[2], 1)) for array in (k, v))
    return jax.vmap(jax.vmap(attend, in_axes=1, out_axes=1))(q, k, v)


# %% wrong="attention-heads" because="Leaves the axis of the heads at the front, where `vmap` puts it without `out_axes`."
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, d)
    in_group = jax.vmap(attend, in_axes=(1, None, None))
    in_example = jax.vmap(in_group, in_axes=1)
    result = jax.vmap(in_example)(grouped, k, v)
    return result.reshape(B, H, T, -1)


# %% wrong="attention-heads" because="Reshapes the axes of positions and heads into each other. A reshape does not transpose."
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    grouped = q.reshape(B, T, k.shape[2], -1, d)
    in_group = jax.vmap(attend, in_axes=(1, None, None))
    in_example = jax.vmap(in_group, in_axes=1)
    return jax.vmap(in_example)(grouped, k, v).reshape(B, T, H, -1)


# %% wrong="attention-heads" because="Uses a Python loop over the heads, which traces `attend` for each of them."
def attend_heads(attend, q, k, v):
    each = q.shape[2] // k.shape[2]
    over_batch = jax.vmap(attend)
    heads = [over_batch(q[:, :, h], k[:, :, h // each], v[:, :, h // each]) for h in range(q.shape[2])]
    return jnp.stack(heads, axis=2)


# %% wrong="attention-heads" because="Runs a loop over the examples with `lax.map` instead of adding an axis."
def attend_heads(attend, q, k, v):
    T, H = q.shape[1:3]
    in_group = jax.vmap(attend, in_axes=(1, None, None), out_axes=1)
    in_example = jax.vmap(in_group, in_axes=1, out_axes=1)
    one = lambda arrays: in_example(arrays[0].reshape(T, arrays[1].shape[1], -1, q.shape[3]), *arrays[1:])
    return jax.lax.map(one, (q, k, v)).reshape(len(q), T, H, -1)


# %% wrong="attention-heads" because="Maps `q`, `k` and `v` along the heads together, which works only with as many key heads as query heads."
def attend_heads(attend, q, k, v):
    return jax.vmap(jax.vmap(attend, in_axes=1, out_axes=1))(q, k, v)


# %% wrong="attention-heads" because="Stacks the query heads of a group along the positions, so `attend` is called with another number of queries."
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    G, R = k.shape[2], H // k.shape[2]
    rows = q.reshape(B, T, G, R, d).swapaxes(2, 3).reshape(B, T * R, G, d)
    result = jax.vmap(jax.vmap(attend, in_axes=1, out_axes=1))(rows, k, v)
    return result.reshape(B, T, R, G, -1).swapaxes(2, 3).reshape(B, T, H, -1)


# %% wrong="attention-heads" because="Stacks the query heads of a group along the positions, so `attend` is called with another number of queries."
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    heads_first = q.swapaxes(1, 2).reshape(B, k.shape[2], -1, d)
    result = jax.vmap(jax.vmap(attend, (0, 1, 1)))(heads_first, k, v)
    return result.reshape(B, H, T, -1).swapaxes(1, 2)


# %% wrong="attention-heads" because="Gives the result the shape of q. Its last axis has the size of the values."
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    in_group = jax.vmap(attend, in_axes=(1, None, None), out_axes=1)
    in_example = jax.vmap(in_group, in_axes=1, out_axes=1)
    return jax.vmap(in_example)(q.reshape(B, T, k.shape[2], -1, d), k, v).reshape(q.shape)


# %% wrong="attention-heads" because="Uses key head 0 for all query heads."
def attend_heads(attend, q, k, v):
    in_example = jax.vmap(attend, in_axes=(1, None, None), out_axes=1)
    return jax.vmap(in_example)(q, k[:, :, 0], v[:, :, 0])


# %% wrong="attention-heads" because="Ignores `attend` and computes attention."
def attend_heads(attend, q, k, v):
    return jax.nn.dot_product_attention(q, k, v)


# %% right="attention-heads"
def attend_heads(attend, q, k, v):
    B, T, H, d = q.shape
    heads_first = [array.swapaxes(1, 2) for array in (q, k, v)]
    grouped = heads_first[0].reshape(B, k.shape[2], H // k.shape[2], T, d)
    result = jax.vmap(jax.vmap(jax.vmap(attend, (0, None, None))))(grouped, *heads_first[1:])
    return jnp.moveaxis(result.reshape(B, H, T, -1), 1, 2)


# %% right="attention-heads"
def attend_heads(attend, q, k, v):
    G = k.shape[2]
    per_group = [q[:, :, i :: q.shape[2] // G] for i in range(q.shape[2] // G)]  # the i-th head of every group
    over_batch = jax.vmap(jax.vmap(attend, 1, 1))
    both = jax.vmap(over_batch, (0, None, None), 3)(jnp.stack(per_group), k, v)  # (B, T, G, H // G, e)
    return both.reshape(*q.shape[:3], -1)


# %% [markdown] task="attention-tokenise" stars=2 minutes=20 skills="01_arrays"
# ## Text to tokens
# *Needs: Deeper: tokens from bytes.*
#
# **Goal.** Encode text with byte-pair encoding, whose merges were learned before.
#
# **Signature.** `tokenise(text, merges)` takes a string and a list of pairs of ints. It returns an int32 NumPy array with one axis. At first, the tokens are the bytes of the text in UTF-8, as ints from 0 to 255. Then apply the merges, in the order of the list. The pair `merges[i]` replaces each occurrence of these two tokens, one directly after the other, by the token `256 + i`. No pair occurs twice in the list, and a pair contains only bytes and tokens of earlier merges. Search from left to right. Each token can be in one replacement of a merge only, so `aaa` with the merge `(97, 97)` becomes `[256, 97]`.
#
# **Example.** For `merges = [(97, 98), (256, 97)]`, the text `"abab"` first becomes `[256, 256]`, and the second merge finds nothing. The text `"aba"` becomes `[256, 97]` and then `[257]`.
#
# **Judged.** The values, the shape and the dtype, also for text that is not ASCII, and for an empty text. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many bytes does `"é"` have? `"é".encode()` shows them.
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# For each merge, build a new list. Look at the current token and the next one. If they are the pair, append the new token and go on two tokens further.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The outer loop is `for new, pair in enumerate(merges, 256)`. Inside, use a `while` loop over the position, because it advances by one or by two.
#
# </details>


# %% answer="attention-tokenise"
def tokenise(text, merges):
    """A string and a list of pairs of ints -> int32 NumPy array (number of tokens,)."""
    ### BEGIN SOLUTION
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        merged, place = [], 0
        while place < len(tokens):
            found = tuple(tokens[place : place + 2]) == tuple(pair)
            merged.append(new if found else tokens[place])
            place += 2 if found else 1
        tokens = merged
    return np.array(tokens, np.int32)
    ### END SOLUTION


# %% check="attention-tokenise" name="example" points=1
"""The examples."""
merges = [(97, 98), (256, 97)]
compare(ask(tokenise, "abab", merges), np.array([256, 256], np.int32), label="the tokens of abab")
compare(ask(tokenise, "aba", merges), np.array([257], np.int32), label="the tokens of aba")
compare(ask(tokenise, "aaa", [(97, 97)]), np.array([256, 97], np.int32), label="the tokens of aaa")

# %% hidden="attention-tokenise" name="values" points=2
"""Right for other texts and merges."""


def merged(tokens, pair, new):
    if len(tokens) < 2:
        return tokens
    if (tokens[0], tokens[1]) == tuple(pair):
        return [new, *merged(tokens[2:], pair, new)]
    return [tokens[0], *merged(tokens[1:], pair, new)]


rng = inputs.rng()
a, b, c, d = (int(letter) for letter in rng.permutation(np.arange(97, 123))[:4])
word = lambda *letters: "".join(map(chr, letters))
random = word(*(int(letter) for letter in rng.choice([a, b, c], size=60)))
for text, merges, words in (
    (word(a, b, c, a, b, d), [(b, c), (a, b)], "when the first pair of the text is not merged first"),
    (word(a, b, c, a, b, c, d), [(b, c), (a, b), (a, 256)], "when an early merge takes a token from a later one"),
    (word(a, b, c, d, a, b), [(a, b), (c, d), (b, c), (256, 257)], "when a merge combines two merged tokens"),
    (word(d, *[a] * 7, b, a, a), [(a, a), (256, 256), (256, a)], "when a token is repeated"),
    (word(a, b) + "é–ж" + word(a, b), [(0xC3, 0xA9), (a, b), (256, 0xE2)], "when the text is not ASCII"),
    (word(a) + "Ä" + word(a), [(32, a)], "when the decimal number of a token ends with that of another"),
    (word(a, b) + " " + word(a, b) + "\n", [(b, 32), (32, a), (256, a), (b, 10)], "when a pair contains a space"),
    (word(a, c), [], "when there are no merges"),
    (word(a), [(a, a)], "for a single letter"),
    ("", [(a, b)], "for an empty text"),
    (random, [(a, b), (b, c), (256, 256), (257, a), (c, c)], "for a random text"),
):
    wanted = list(text.encode())
    for i, pair in enumerate(merges):
        wanted = merged(wanted, pair, 256 + i)
    with case(words):
        compare(ask(tokenise, text, merges), np.array(wanted, np.int32), label="the tokens")

# %% [markdown] why="attention-tokenise"
# Each merge sees the result of the merges before it, so long tokens are built from short ones. Every text can be encoded, because each byte is a token. The order matters, since an early merge may take a token that a later one needs. **Next:** How would you decode the tokens? Is every list of tokens a valid text in UTF-8?


# %% wrong="attention-tokenise" because="Always takes the longest token that matches the text. The order of the merges may give other tokens."
def tokenise(text, merges):
    spelled = {i: (i,) for i in range(256)}
    for i, (one, other) in enumerate(merges):
        spelled[256 + i] = spelled[one] + spelled[other]
    letters, tokens, place = tuple(text.encode()), [], 0
    while place < len(letters):
        fitting = [t for t, s in spelled.items() if letters[place : place + len(s)] == s]
        tokens.append(max(fitting, key=lambda t: len(spelled[t])))
        place += len(spelled[tokens[-1]])
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Starts with characters instead of bytes. Only ASCII characters have one byte."
def tokenise(text, merges):
    tokens = [ord(letter) for letter in text]
    for new, pair in enumerate(merges, 256):
        merged, place = [], 0
        while place < len(tokens):
            found = tuple(tokens[place : place + 2]) == tuple(pair)
            merged.append(new if found else tokens[place])
            place += 2 if found else 1
        tokens = merged
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Uses a token in two replacements of one merge, because the loop advances by one after a match."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        merged, place = [], 0
        while place < len(tokens):
            found = tuple(tokens[place : place + 2]) == tuple(pair)
            merged.append(new if found else tokens[place])
            place += 2 if found and place + 2 == len(tokens) else 1
        tokens = merged
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Replaces only the first occurrence of each pair."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        for place in range(len(tokens) - 1):
            if tuple(tokens[place : place + 2]) == tuple(pair):
                tokens[place : place + 2] = [new]
                break
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Repeats a merge from the start after each pass, or replaces from right to left. Occurrences should be replaced from left to right."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        for place in reversed(range(len(tokens) - 1)):
            if tuple(tokens[place : place + 2]) == tuple(pair):
                tokens[place : place + 2] = [new]
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Applies the merges in the reverse order."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in reversed(list(enumerate(merges, 256))):
        merged, place = [], 0
        while place < len(tokens):
            found = tuple(tokens[place : place + 2]) == tuple(pair)
            merged.append(new if found else tokens[place])
            place += 2 if found else 1
        tokens = merged
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Applies whichever merge fits at the leftmost position, instead of one merge after the other."
def tokenise(text, merges):
    tokens, ids = list(text.encode()), {tuple(pair): 256 + i for i, pair in enumerate(merges)}
    place = 0
    while place < len(tokens) - 1:
        new = ids.get(tuple(tokens[place : place + 2]))
        if new is None:
            place += 1
        else:
            tokens[place : place + 2] = [new]
            place = max(place - 1, 0)
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Goes through the text once and never merges a merged token again."
def tokenise(text, merges):
    letters, ids = list(text.encode()), {tuple(pair): 256 + i for i, pair in enumerate(merges)}
    tokens, place = [], 0
    while place < len(letters):
        new = ids.get(tuple(letters[place : place + 2]))
        tokens.append(letters[place] if new is None else new)
        place += 1 if new is None else 2
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Drops the last token if it is not part of a pair."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        merged, place = [], 0
        while place < len(tokens) - 1:
            found = tuple(tokens[place : place + 2]) == tuple(pair)
            merged.append(new if found else tokens[place])
            place += 2 if found else 1
        tokens = merged
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Returns int64, the default dtype of NumPy integers."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, (one, other) in enumerate(merges, 256):
        place = 0
        while place < len(tokens) - 1:
            if tokens[place] == one and tokens[place + 1] == other:
                tokens[place : place + 2] = [new]
            place += 1
    return np.array(tokens)


# %% wrong="attention-tokenise" because="Drops each match that begins inside another match. In a run of equal tokens, only the first pair is then replaced."
def tokenise(text, merges):
    tokens = np.array(list(text.encode()), np.int32)
    for new, (one, other) in enumerate(merges, 256):
        found = np.append((tokens[:-1] == one) & (tokens[1:] == other), [False] * min(len(tokens), 1)).astype(bool)
        found[1:] &= ~found[:-1].copy()
        second = np.roll(found, 1)
        tokens = np.where(found, new, tokens)[~second].astype(np.int32)
    return tokens


# %% wrong="attention-tokenise" because="Splits the text at spaces first. Merges may cross spaces."
def tokenise(text, merges):
    letters = ["".join(map(chr, part.encode())) for part in text.replace(" ", "\0 ").split("\0")]
    for new, pair in enumerate(merges, 256):
        letters = [part.replace("".join(map(chr, pair)), chr(new)) for part in letters]
    return np.array([ord(letter) for part in letters for letter in part], np.int32)


# %% wrong="attention-tokenise" because="Reads the first token without a test, which fails for an empty text."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, (one, other) in enumerate(merges, 256):
        merged = [tokens[0]]
        for token in tokens[1:]:
            if (merged[-1], token) == (one, other):
                merged[-1] = new
            else:
                merged.append(token)
        tokens = merged
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Returns a Python list. The result should be an int32 array."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        merged, place = [], 0
        while place < len(tokens):
            found = tuple(tokens[place : place + 2]) == tuple(pair)
            merged.append(new if found else tokens[place])
            place += 2 if found else 1
        tokens = merged
    return tokens


# %% wrong="attention-tokenise" because="Replaces text in a string of decimal numbers. The number of a token can be the end or the beginning of another one."
def tokenise(text, merges):
    tokens = " ".join(str(byte) for byte in text.encode("utf-8"))
    for i, (first, second) in enumerate(merges):
        tokens = tokens.replace(f"{first} {second}", str(256 + i))
    return np.array(tokens.split(), dtype=np.int32)


# %% wrong="attention-tokenise" because="Looks at the tokens two by two. A pair can begin at any position."
def tokenise(text, merges):
    tokens = list(text.encode())
    for new, pair in enumerate(merges, 256):
        merged = []
        for i in range(0, len(tokens), 2):
            if tuple(tokens[i : i + 2]) == pair:
                merged.append(new)
            else:
                merged.extend(tokens[i : i + 2])
        tokens = merged
    return np.array(tokens, np.int32)


# %% wrong="attention-tokenise" because="Applies whichever merge fits at the leftmost position, instead of one merge after the other."
def tokenise(text, merges):
    ranks = {tuple(pair): i for i, pair in enumerate(merges)}
    tokens, changed = list(text.encode()), True
    while changed:
        changed = False
        for i in range(len(tokens) - 1):
            if (tokens[i], tokens[i + 1]) in ranks:
                tokens[i : i + 2] = [256 + ranks[tokens[i], tokens[i + 1]]]
                changed = True
                break
    return np.array(tokens, np.int32)


# %% right="attention-tokenise"
def tokenise(text, merges):
    tokens, ids = list(text.encode("utf-8")), {tuple(pair): 256 + i for i, pair in enumerate(merges)}
    while True:
        pairs = [ids[pair] for i in range(len(tokens) - 1) if (pair := tuple(tokens[i : i + 2])) in ids]
        if not pairs:
            return np.asarray(tokens, dtype=np.int32)
        pair, place = tuple(merges[min(pairs) - 256]), 0
        while place < len(tokens) - 1:
            if (tokens[place], tokens[place + 1]) == pair:
                tokens[place : place + 2] = [ids[pair]]
            place += 1


# %% right="attention-tokenise"
def tokenise(text, merges):
    letters = "".join(map(chr, text.encode()))
    for i, (one, other) in enumerate(merges):
        letters = letters.replace(chr(one) + chr(other), chr(256 + i))
    return np.array([ord(letter) for letter in letters], np.int32)


# %% [markdown] task="attention-cache-step" stars=3 minutes=30 skills="attention-heads,08_control_flow"
# ## One token with a cache
# **Goal.** Compute grouped-query attention for one new token. The keys and values of earlier tokens are in a cache of fixed size, so one compiled program serves all positions.
#
# **Signature.** `cache_step(params, cache, x)`. `params` is a dict with `"q"` (D, H, d), `"k"` and `"v"`, each (D, G, d), and `"o"` (H, d, D). `cache` is a dict with `"k"` and `"v"`, each (S, G, d), and `"length"`, an int32 scalar. `x` (D,) is the vector of the new token. The other arrays are float32. The result is `(y, new_cache)`.
#
# - The new token has the position `length`. The cache is never full.
# - `q`, `k` and `v` of the new token are its products with the parameters. Apply `rotate` of the setup to `q` and `k`. The cache contains rotated keys.
# - Write the key and the value to position `length` of the cache, leave all other positions as they are, and increase `length` by 1. Its dtype stays int32.
# - Query head h uses key and value head h // (H // G). The token attends to all positions up to its own, with scores divided by sqrt(d). Later positions contain finite numbers that have no meaning.
# - `y` (D,) is the sum over heads of the output times `o[h]`.
#
# **Example.** In an empty cache, `length` is 0, so the softmax has a single weight of 1. `y` is then the sum over heads of `v[h // (H // G)] @ o[h]`.
#
# **Judged.** The values of `y` and of the new cache, in single steps and in a `scan` that continues from a cache. The steps together equal causal attention over all tokens. The checks also apply `vmap` over caches with different lengths. The program has no loop, and no array in it has more elements than the largest array in `params` and `cache`. The scores fit into this limit, because H is at most G · d in the checks. **Not judged.** Donation, the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# `length` is traced. Which operation writes a slice at a traced position, and which one would select the valid positions if slices of traced size are not possible?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Write with `jax.lax.dynamic_update_slice_in_dim(cache["k"], k[None], length, axis=0)`. Then compute the scores for all S positions, and mask those after `length`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Reshape q to (G, H // G, d). The scores are `jnp.einsum("grd,sgd->grs", q, keys) / sqrt(d)`, and the mask is `jnp.arange(S) <= length`. The output is `jnp.einsum("grs,sgd->grd", weights, values)`, reshaped to (H, d).
#
# </details>


# %% answer="attention-cache-step" timeout=20
def cache_step(params, cache, x):
    """params, a cache with k and v (S, G, d) and an int32 length, x (D,) -> y (D,), the new cache."""
    ### BEGIN SOLUTION
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys = jax.lax.dynamic_update_slice_in_dim(cache["k"], k[None], length, axis=0)
    values = jax.lax.dynamic_update_slice_in_dim(cache["v"], v[None], length, axis=0)
    grouped = q.reshape(len(k), -1, q.shape[1])
    scores = jnp.einsum("grd,sgd->grs", grouped, keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    y = jnp.einsum("hd,hdm->m", heads, params["o"])
    return y, {"k": keys, "v": values, "length": length + 1}
    ### END SOLUTION


# %% check="attention-cache-step" name="example" points=1
"""The example, an empty cache, and a second token."""
rng = inputs.rng()
shapes = {"q": (5, 4, 2), "k": (5, 2, 2), "v": (5, 2, 2), "o": (4, 2, 5)}
params, x = {name: normal(rng, *shape) for name, shape in shapes.items()}, normal(rng, 5)
cache = {"k": np.ones((3, 2, 2), np.float32), "v": np.ones((3, 2, 2), np.float32), "length": np.int32(0)}
y, new = ask(cache_step, *jax.tree.map(jnp.asarray, (params, cache, x)))
value = np.repeat(np.einsum("m,mhd->hd", x, params["v"]), 2, axis=0)
compare(y, np.einsum("hd,hdm->m", value, params["o"]), label="y")
compare(np.asarray(new["length"]), np.array(1, np.int32), label="the length")
compare(new["v"], np.concatenate([value[None, ::2], cache["v"][1:]]), label="the values in the cache")
second = normal(rng, 5)
with case("for a second token"):
    y, _ = ask(cache_step, *jax.tree.map(jnp.asarray, (params, new, second)))
    tokens = np.stack([x, second])
    queries = np.asarray(rotate(jnp.einsum("m,mhd->hd", second, params["q"]), jnp.int32(1)))
    keys = np.asarray(rotate(jnp.einsum("tm,mhd->thd", tokens, params["k"]), jnp.arange(2)))
    values = np.einsum("tm,mhd->thd", tokens, params["v"])
    wanted = np.zeros(5, np.float32)
    for head in range(4):
        weights = np.exp(keys[:, head // 2] @ queries[head] / math.sqrt(2))
        wanted += (weights / weights.sum()) @ values[:, head // 2] @ params["o"][head]
    compare(y, wanted, label="y")

# %% hidden="attention-cache-step" name="step" points=2
"""The result and the cache of single steps are right, and the program needs no copies of the cache for each head."""
rng = inputs.rng()
for D, H, G, d, S, length, words in (
    (6, 6, 2, 4, 40, int(rng.integers(3, 9)), "for a few tokens in a long cache"),
    (5, 3, 3, 2, 30, int(rng.integers(15, 25)), "with as many key heads as query heads"),
    (4, 4, 1, 6, 50, 49, "for the last position of the cache"),
    (6, 8, 2, 4, 40, 0, "for an empty cache"),
    (5, 4, 2, 4, 30, int(rng.integers(3, 9)), "when later positions contain large numbers"),
):
    shapes = {"q": (D, H, d), "k": (D, G, d), "v": (D, G, d), "o": (H, d, D)}
    params, x = {name: normal(rng, *shape) for name, shape in shapes.items()}, normal(rng, D)
    cache = {name: 3 * normal(rng, S, G, d) for name in "kv"} | {"length": np.int32(length)}
    if words.endswith("large numbers"):
        cache["k"][length + 1 :] *= 3000
    q, k, v = (np.einsum("m,mhd->hd", x.astype(np.float64), params[name]) for name in "qkv")
    angles = length * 100.0 ** (-np.arange(d // 2) / (d // 2))
    turn = np.exp(1j * angles)
    turned = [(z[:, : d // 2] + 1j * z[:, d // 2 :]) * turn for z in (q, k)]
    q, k = (np.concatenate([z.real, z.imag], axis=1) for z in turned)
    wanted = {name: cache[name].copy() for name in "kv"}
    wanted["k"][length], wanted["v"][length] = k, v
    result = np.zeros(D)
    for h in range(H):
        keys, values = (wanted[name][: length + 1, h // (H // G)].astype(np.float64) for name in "kv")
        weights = np.exp((scores := keys @ q[h] / math.sqrt(d)) - scores.max())
        result += weights / weights.sum() @ values @ params["o"][h]
    with case(words):
        made = program(cache_step, params, cache, x)
        y, new = made.run(params, cache, x)
        compare(np.asarray(new["length"]), np.array(length + 1, np.int32), label="the length")
        compare(new["k"], wanted["k"], label="the keys in the cache")
        compare(new["v"], wanted["v"], label="the values in the cache")
        compare(y, result.astype(np.float32), label="y")
        limit = max(array.size for array in (*params.values(), cache["k"]))
        require(made.intermediates <= limit, "the program contains an array that is larger than each argument.")
        require(made.loops == 0, "the program has a loop.")

# %% hidden="attention-cache-step" name="scan" points=1
"""Steps in a `scan` equal causal attention over all tokens, also for several caches with different lengths."""


def probe_scan(params, caches, xs):
    def one(cache, xs):
        return jax.lax.scan(lambda cache, x: cache_step(params, cache, x)[::-1], cache, xs)[::-1]

    ys, caches = jax.vmap(one)(caches, xs)
    return ys, caches["length"]


rng = inputs.rng()
D, H, G, d, S, steps = 5, 4, 2, 4, 12, 4
shapes = {"q": (D, H, d), "k": (D, G, d), "v": (D, G, d), "o": (H, d, D)}
params = {name: normal(rng, *shape) for name, shape in shapes.items()}
lengths = np.array([0, 3, int(rng.integers(5, 8))], np.int32)
caches = {name: 3 * normal(rng, 3, S, G, d) for name in "kv"}
xs, wanted = normal(rng, 3, steps, D), np.zeros((3, steps, D))
for b, length in enumerate(lengths):
    positions = np.arange(length, length + steps)
    q, k, v = (np.einsum("tm,mhd->thd", xs[b].astype(np.float64), params[name]) for name in "qkv")
    turn = np.exp(1j * positions[:, None, None] * 100.0 ** (-np.arange(d // 2) / (d // 2)))
    turned = [(z[..., : d // 2] + 1j * z[..., d // 2 :]) * turn for z in (q, k)]
    q, k = (np.concatenate([z.real, z.imag], axis=-1) for z in turned)
    keys, values = np.concatenate([caches["k"][b, :length], k]), np.concatenate([caches["v"][b, :length], v])
    for t in range(steps):
        for h in range(H):
            scores = keys[: length + t + 1, h // (H // G)] @ q[t, h] / math.sqrt(d)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            wanted[b, t] += weights @ values[: length + t + 1, h // (H // G)] @ params["o"][h]
ys, ended = ask(probe_scan, params, caches | {"length": lengths}, xs)
compare(ys, wanted.astype(np.float32), label="the results of four steps with three caches")
compare(np.asarray(ended), lengths + np.int32(4), label="the lengths after four steps")

# %% [markdown] why="attention-cache-step"
# The shapes of the cache never change, so the step is compiled once, and `length` is an ordinary traced number. A step computes the scores for all S positions, and the mask removes those that are not written yet. **Next:** How many bytes does a step read if the cache has 32 layers, S = 8192, G = 8, d = 128 and bfloat16? Compare this with the bytes of the new token.


# %% wrong="attention-cache-step" because="Masks with `< length`, so the new token does not attend to itself. In an empty cache, no key is left."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) < length, scores, -1e30), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Attends to all positions of the cache, also to those that are not written yet."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    heads = jnp.einsum("grs,sgd->grd", jax.nn.softmax(scores, axis=-1), values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Sets the scores of later positions to 0 instead of minus infinity, so these positions get weight too."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, 0), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Subtracts the maximum over all positions, also those without meaning. If it is much larger, all allowed weights underflow to 0."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(scores, axis=-1) * (jnp.arange(len(keys)) <= length)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Stores the key without its rotation."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    grouped = rotate(q, length).reshape(len(k), -1, q.shape[1])
    scores = jnp.einsum("grd,sgd->grs", grouped, keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Rotates the cached keys again, although the cache contains rotated keys."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    turned = rotate(keys, jnp.arange(len(keys)))
    grouped = rotate(q, length).reshape(len(k), -1, q.shape[1])
    scores = jnp.einsum("grd,sgd->grs", grouped, turned) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    keys = keys.at[length].set(rotate(k, length))
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Rotates the whole cache in each step and stores the new key without its rotation. The cache contains rotated keys."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    turned = rotate(keys, jnp.arange(len(keys)))
    grouped = rotate(q, length).reshape(len(k), -1, q.shape[1])
    scores = jnp.einsum("grd,sgd->grs", grouped, turned) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Uses the position after the new token for the rotation."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length + 1), rotate(k, length + 1)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Does not rotate the query."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    k = rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Does not increase the length, so every step writes to the same position."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length}


# %% wrong="attention-cache-step" because="Writes to position `length + 1`, so a position is never written and the last step is lost."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    write = lambda array, new: jax.lax.dynamic_update_slice_in_dim(array, new[None], length + 1, axis=0)
    keys, values = write(cache["k"], k), write(cache["v"], v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length + 1, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Appends to the cache, so its shape changes with each step."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = jnp.concatenate([cache["k"], k[None]]), jnp.concatenate([cache["v"], v[None]])
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(q.shape[1])
    heads = jnp.einsum("grs,sgd->grd", jax.nn.softmax(scores, axis=-1), values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Selects the valid positions with a slice. Its size depends on `length`, which is traced."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    grouped, valid = q.reshape(len(k), -1, q.shape[1]), slice(0, length + 1)
    scores = jnp.einsum("grd,sgd->grs", grouped, keys[valid]) / math.sqrt(q.shape[1])
    heads = jnp.einsum("grs,sgd->grd", jax.nn.softmax(scores, axis=-1), values[valid]).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Copies the cached keys and values for each query head, so each step creates arrays that are larger than the cache."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    new = {"k": cache["k"].at[length].set(k), "v": cache["v"].at[length].set(v), "length": length + 1}
    keys, values = (jnp.repeat(new[name], len(q) // len(k), axis=1) for name in "kv")
    scores = jnp.einsum("hd,shd->hs", q, keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    return jnp.einsum("hs,shd,hdm->m", weights, values, params["o"]), new


# %% wrong="attention-cache-step" because="Gives query head h the key head h % G."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("rgd,sgd->rgs", q.reshape(-1, len(k), q.shape[1]), keys) / math.sqrt(q.shape[1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("rgs,sgd->rgd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Loops over the query heads. One product for each key head needs no copies either."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    group = q.shape[0] // k.shape[0]
    valid = jnp.arange(keys.shape[0]) <= length

    def one_head(h):
        scores = keys[:, h // group] @ q[h] / math.sqrt(q.shape[-1])
        return jax.nn.softmax(jnp.where(valid, scores, -jnp.inf)) @ values[:, h // group]

    output = jax.lax.map(one_head, jnp.arange(q.shape[0]))
    return jnp.tensordot(output, params["o"], axes=2), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Uses `is_causal=True`, which treats the only query as the first position. It then attends to position 0 alone."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    heads = jax.nn.dot_product_attention(q[None], keys, values, is_causal=True)[0]
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Divides the scores by sqrt(D), the root of the size of a token's vector, instead of sqrt(d)."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys) / math.sqrt(len(x))
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Does not divide the scores by sqrt(d)."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    q, k = rotate(q, length), rotate(k, length)
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    scores = jnp.einsum("grd,sgd->grs", q.reshape(len(k), -1, q.shape[1]), keys)
    weights = jax.nn.softmax(jnp.where(jnp.arange(len(keys)) <= length, scores, -jnp.inf), axis=-1)
    heads = jnp.einsum("grs,sgd->grd", weights, values).reshape(q.shape)
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% wrong="attention-cache-step" because="Rotates the values too. Positions belong in the scores only, so rotate queries and keys."
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (rotate(jnp.einsum("m,mhd->hd", x, params[name]), length) for name in "qkv")
    keys, values = cache["k"].at[length].set(k), cache["v"].at[length].set(v)
    valid = (jnp.arange(len(keys)) <= length)[None, None]
    heads = jax.nn.dot_product_attention(q[None], keys, values, mask=valid)[0]
    return jnp.einsum("hd,hdm->m", heads, params["o"]), {"k": keys, "v": values, "length": length + 1}


# %% right="attention-cache-step"
def cache_step(params, cache, x):
    length = cache["length"]
    q, k, v = (jnp.tensordot(x, params[name], 1) for name in ("q", "k", "v"))
    keys = cache["k"].at[length].set(rotate(k, length))
    values = cache["v"].at[length].set(v)
    valid = (jnp.arange(len(keys)) < length + 1)[None, None, :]
    heads = jax.nn.dot_product_attention(rotate(q, length)[None], keys, values, mask=valid)
    return jnp.tensordot(heads[0], params["o"], 2), {"k": keys, "v": values, "length": length + 1}


# %% right="attention-cache-step"
def cache_step(params, cache, x):
    place, size = cache["length"], len(cache["k"])
    here = jnp.arange(size) == place
    q, k, v = (jnp.einsum("m,mhd->hd", x, params[name]) for name in "qkv")
    keys = jnp.where(here[:, None, None], rotate(k, place), cache["k"])
    values = jnp.where(here[:, None, None], v, cache["v"])

    def one_head(q, keys, values):
        scores = jnp.where(jnp.arange(size) > place, -1e30, keys @ q / q.size**0.5)
        return jax.nn.softmax(scores) @ values

    in_group = jax.vmap(one_head, in_axes=(0, None, None))
    heads = jax.vmap(in_group, in_axes=(0, 1, 1))(rotate(q, place).reshape(len(k), -1, q.shape[1]), keys, values)
    return heads.reshape(-1) @ params["o"].reshape(-1, len(x)), {"k": keys, "v": values, "length": place + 1}


# %% [markdown] task="attention-sample" stars=2 minutes=20 skills="07_randomness,attention-causal-mask"
# ## Draw the next token
# *Needs: Deeper: top-k and top-p.*
#
# **Goal.** Draw a token from the logits of a language model, with a temperature, the k most probable tokens and a limit on their total probability.
#
# **Signature.** `sample(key, logits, temperature, top_k, top_p)` takes one key, `logits`, a float32 (V,), and returns an int32 scalar, a token from 0 to V - 1. `top_k` is a Python int, `temperature` and `top_p` are float32 scalars, which may be traced.
#
# 1. Divide the logits by `temperature`.
# 2. Keep the `top_k` largest logits.
# 3. Compute the probabilities of the tokens that are left, which add up to 1. In the order of decreasing probability, keep the smallest number of tokens whose total is at least `top_p`. At least one token is kept.
# 4. Set the divided logits of all other tokens to -inf, and pass the whole array, in the order of the tokens, to `jax.random.categorical(key, ...)`.
#
# No two logits are equal, the temperature is positive, and `0 < top_p <= 1`. With `top_p` = 1, all `top_k` tokens are kept. Otherwise no total equals `top_p`.
#
# **Example.** For the probabilities 0.5, 0.3 and 0.2 and `top_p` = 0.6, the first two tokens are kept, because 0.5 is less than 0.6 and 0.5 + 0.3 is not. They are drawn with the probabilities 0.625 and 0.375.
#
# **Judged.** Thousands of draws with different keys, under `jit` and `vmap`. At least 99.8% of them must equal the draws of step 4, since rounding may change a few. The tokens that are never drawn must be right. **Not judged.** The order of your operations, the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# If you sort the tokens by probability, what is the total of all tokens *before* a token? For which totals is the token kept?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Find the smallest logit that is kept, instead of tracking which token went where. `jax.lax.top_k(logits, top_k)` returns the k largest logits in decreasing order, and their indices.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Let `largest` be the first result of `jax.lax.top_k` for the divided logits. The probabilities are `jax.nn.softmax(largest)`. The total before each token is `jnp.cumsum(p) - p`. Keep those with a total below `top_p`. The limit is the smallest kept logit.
#
# </details>


# %% answer="attention-sample"
def sample(key, logits, temperature, top_k, top_p):
    """A key, logits (V,), a temperature, an int k and a probability p -> an int32 token."""
    ### BEGIN SOLUTION
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    probabilities = jax.nn.softmax(largest)
    before = jnp.cumsum(probabilities) - probabilities
    limit = jnp.min(jnp.where(before < top_p, largest, jnp.inf))
    kept = jnp.where(logits >= limit, logits, -jnp.inf)
    return jax.random.categorical(key, kept).astype(jnp.int32)
    ### END SOLUTION


# %% check="attention-sample" name="example" points=1
"""The example, with a thousand keys."""


def probe_many(keys, logits, temperature, top_k, top_p):
    return jax.vmap(lambda key: sample(key, logits, temperature, top_k, top_p))(keys)


logits = np.log(np.array([0.2, 0.5, 0.3], np.float32))
keys = jax.random.split(inputs.key(), 1000)
drawn = np.asarray(ask(probe_many, keys, logits, np.float32(1), 3, np.float32(0.6)))
require(drawn.shape == (1000,) and drawn.dtype == np.int32, "A token is not an int32 scalar.")
require(set(drawn.tolist()) <= {1, 2}, "A token other than the two most probable ones was drawn.")
share = np.mean(drawn == 1)
require(0.5 < share < 0.75, f"The most probable token was drawn in {share:.1%} of all cases; expected about 62.5%.")

# %% hidden="attention-sample" name="draws" points=3
"""The draws are right for other temperatures, numbers of tokens and limits."""


def probe_all_kept(keys, logits, top_k):
    return jax.vmap(lambda key, logits: sample(key, logits, jnp.float32(1), top_k, jnp.float32(1)))(keys, logits)


def probe_draws(keys, logits, temperature, top_k, top_p):
    return jax.vmap(lambda key: sample(key, logits, temperature, top_k, top_p))(keys)


rng = inputs.rng()
V, count = 8, 3000
ladder = np.log(np.array([0.27, 0.2, 0.155, 0.12, 0.095, 0.07, 0.05, 0.04]))
for temperature, top_k, top_p, words in (
    (1.0, V, 0.999, "when the logits are in decreasing order"),
    (1.0, V, 0.999, "when all tokens are kept"),
    (0.5, V, 0.999, "for a temperature below 1"),
    (2.0, 3, 1.0, "for three tokens and a temperature above 1"),
    (1.0, V, 0.6, "for a limit on the total probability"),
    (0.6, V, 0.75, "for a limit and a temperature below 1"),
    (1.0, 4, 0.7, "for four tokens and a limit"),
    (1.0, 5, 0.01, "for a limit below the largest probability"),
    (0.01, 4, 0.999, "for a very low temperature"),
    (20.0, 4, 0.999, "for a very high temperature"),
):
    order = np.arange(V) if words.endswith("decreasing order") else rng.permutation(V)
    logits = np.empty(V, np.float32)
    logits[order] = ladder + rng.uniform(-0.01, 0.01, V) + rng.normal()
    if words.startswith("for a very"):
        logits *= temperature  # so that several tokens have a chance
    scaled = logits.astype(np.float64) / temperature
    ranked = np.argsort(-scaled)[:top_k]
    p = np.exp(scaled[ranked] - scaled[ranked].max())
    p /= p.sum()
    kept = ranked[: int(np.sum(np.cumsum(p) - p < top_p - 1e-6))]
    filtered = np.full(V, -np.inf)
    filtered[kept] = scaled[kept]
    keys = jax.random.split(inputs.key(), count)
    wanted = np.asarray(jax.vmap(lambda key, f=filtered: jax.random.categorical(key, f.astype(np.float32)))(keys))
    given = np.float32(temperature), top_k, np.float32(top_p)
    with case(words):
        made = program(probe_draws, keys, logits, *given)
        drawn = np.asarray(made.run(keys, logits, *given))
        require(drawn.shape == (count,), "a token is not a scalar.")
        require(drawn.dtype == np.int32, "the tokens are not int32.")
        require(len(set(drawn.tolist())) > 1 or len(kept) == 1, "every key gives the same token.")
        require(np.isin(drawn, kept).all(), "tokens are drawn that should have been removed.")
        require(np.isin(kept, drawn).all(), "a token is never drawn that should have been kept.")
        require(
            np.mean(drawn == wanted) >= 0.998, "the draws are not those of `jax.random.categorical` with the given key."
        )
# Rounded totals of all tokens are above 1 for some of these logits, and below 1 for others.
logits, keys = normal(rng, count, V), jax.random.split(inputs.key(), count)
drawn = np.asarray(ask(probe_all_kept, keys, logits, V))
wanted = np.asarray(jax.vmap(jax.random.categorical)(keys, logits))
with case("for top_p = 1 and many logits"):
    require(drawn.shape == (count,) and drawn.dtype == np.int32, "a token is not an int32 scalar.")
    require(np.mean(drawn == wanted) >= 0.998, "tokens are removed, although all of them should be kept.")

# %% [markdown] why="attention-sample"
# Temperature changes all ratios of probabilities, top-k bounds the number of tokens, and top-p adapts this number to how certain the model is. The token that crosses `top_p` is kept, so there is always one. All shapes are static, because removed tokens stay in the array with the logit -inf. **Next:** What does a temperature of 0 mean, and what does this code return for it?


# %% wrong="attention-sample" because="Multiplies by the temperature, so a high temperature makes the draws more certain."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits * temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(logits >= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Removes the token that crosses `top_p`, so the total is below it, and sometimes no token is left."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    limit = jnp.min(jnp.where(jnp.cumsum(jax.nn.softmax(largest)) <= top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(logits >= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Computes the total in the order of the vocabulary instead of the order of decreasing probability."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    logits = jnp.where(logits >= jax.lax.top_k(logits, top_k)[0][-1], logits, -jnp.inf)
    p = jax.nn.softmax(logits)
    return jax.random.categorical(key, jnp.where(jnp.cumsum(p) - p < top_p, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Returns the rank of the token among the sorted ones instead of the token."
def sample(key, logits, temperature, top_k, top_p):
    largest, _ = jax.lax.top_k(logits / temperature, top_k)
    p = jax.nn.softmax(largest)
    kept = jnp.where(jnp.cumsum(p) - p < top_p, largest, -jnp.inf)
    return jax.random.categorical(key, kept).astype(jnp.int32)


# %% wrong="attention-sample" because="Sets the removed logits to 0. Their probability is then not 0."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(logits >= limit, logits, 0.0)).astype(jnp.int32)


# %% wrong="attention-sample" because="Passes probabilities to `jax.random.categorical`, which takes logits."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    kept = jax.nn.softmax(jnp.where(logits >= limit, logits, -jnp.inf))
    return jax.random.categorical(key, kept).astype(jnp.int32)


# %% wrong="attention-sample" because="Applies the temperature after top-p, so the total is that of other probabilities."
def sample(key, logits, temperature, top_k, top_p):
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(logits >= limit, logits, -jnp.inf) / temperature).astype(jnp.int32)


# %% wrong="attention-sample" because="Computes the total with the probabilities of all tokens, instead of those that top-k has left."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, places = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(logits)[places]
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(logits >= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Removes tokens whose own probability is below 1 - `top_p`, instead of adding probabilities."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    logits = jnp.where(logits >= jax.lax.top_k(logits, top_k)[0][-1], logits, -jnp.inf)
    p = jax.nn.softmax(logits)
    kept = (p >= 1 - top_p) | (p == p.max())
    return jax.random.categorical(key, jnp.where(kept, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Keeps the smallest logits, because `jnp.sort` sorts in increasing order."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    ordered = jnp.sort(logits)[:top_k]
    p = jax.nn.softmax(ordered)
    limit = jnp.max(jnp.where(jnp.cumsum(p) - p < top_p, ordered, -jnp.inf))
    return jax.random.categorical(key, jnp.where(logits <= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Returns the most probable token, so every key gives the same token."
def sample(key, logits, temperature, top_k, top_p):
    return jnp.argmax(logits / temperature).astype(jnp.int32)


# %% wrong="attention-sample" because="Draws in another way than `jax.random.categorical` with the given key, such as with a split key or with `jax.random.choice`."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    mine, _ = jax.random.split(key)
    return jax.random.categorical(mine, jnp.where(logits >= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Draws in another way than `jax.random.categorical` with the given key, such as with a split key or with `jax.random.choice`."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    kept = jax.nn.softmax(jnp.where(logits >= limit, logits, -jnp.inf))
    return jax.random.choice(key, len(logits), p=kept).astype(jnp.int32)


# %% wrong="attention-sample" because="Raises low temperatures to a lower bound. The task divides by every temperature."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / jnp.maximum(temperature, 0.1)
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(logits >= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Uses the number of totals below `top_p` as an index. For `top_p` = 1, rounding can make it larger than the last index, where `jnp.take` returns NaN."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    below = jnp.sum(jnp.cumsum(jax.nn.softmax(largest)) < top_p)
    return jax.random.categorical(key, jnp.where(logits >= jnp.take(largest, below), logits, -jnp.inf)).astype(
        jnp.int32
    )


# %% wrong="attention-sample" because="Draws among the sorted logits and looks up the token. The probabilities are right, but `categorical` should get the logits in the order of the tokens."
def sample(key, logits, temperature, top_k, top_p):
    largest, tokens = jax.lax.top_k(logits / temperature, top_k)
    p = jax.nn.softmax(largest)
    kept = jnp.where(jnp.cumsum(p) - p < top_p, largest, -jnp.inf)
    return tokens[jax.random.categorical(key, kept)].astype(jnp.int32)


# %% wrong="attention-sample" because="Ignores the key and draws with a key of its own."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(jax.random.key(0), jnp.where(logits >= limit, logits, -jnp.inf)).astype(jnp.int32)


# %% wrong="attention-sample" because="Decides in Python how many tokens to keep. Under `jit`, `top_p` and the logits are traced."
def sample(key, logits, temperature, top_k, top_p):
    logits = logits / temperature
    largest, _ = jax.lax.top_k(logits, top_k)
    p, count, total = jax.nn.softmax(largest), 0, 0.0
    while total < top_p and count < top_k:
        total, count = total + p[count], count + 1
    kept = jnp.where(logits >= largest[count - 1], logits, -jnp.inf)
    return jax.random.categorical(key, kept).astype(jnp.int32)


# %% wrong="attention-sample" because="Passes the original logits to `categorical`, so the temperature decides which tokens are kept, but not how often they are drawn."
def sample(key, logits, temperature, top_k, top_p):
    scaled = logits / temperature
    largest, _ = jax.lax.top_k(scaled, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(scaled >= limit, logits, -jnp.inf))


# %% wrong="attention-sample" because="Gives the removed tokens a moderate logit instead of -inf. Their probability is then not 0."
def sample(key, logits, temperature, top_k, top_p):
    scaled = logits / temperature
    largest, _ = jax.lax.top_k(scaled, top_k)
    p = jax.nn.softmax(largest)
    limit = jnp.min(jnp.where(jnp.cumsum(p) - p < top_p, largest, jnp.inf))
    return jax.random.categorical(key, jnp.where(scaled >= limit, scaled, -10.0))


# %% equivalent="attention-sample" because="`categorical` already returns int32. The task states that no total equals `top_p`."
# dropped cast, X.astype(Y) -> X: return jax.random.categorical(key, kept).astype(jnp.int32)
# moved bound, X < Y -> X <= Y: limit = jnp.min(jnp.where(before < top_p, largest, jnp.inf))


# %% right="attention-sample"
def sample(key, logits, temperature, top_k, top_p):
    scaled = jnp.asarray(logits) / temperature
    order = jnp.argsort(-scaled)
    in_order = jnp.where(jnp.arange(len(scaled)) < top_k, scaled[order], -jnp.inf)
    p = jax.nn.softmax(in_order)
    before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(p)[:-1]])
    kept = jnp.where(before < top_p, in_order, -jnp.inf)
    return jnp.int32(jax.random.categorical(key, jnp.full_like(scaled, -jnp.inf).at[order].set(kept)))


# %% right="attention-sample"
def sample(key, logits, temperature, top_k, top_p):
    scaled = logits / temperature
    larger = scaled[None, :] > scaled[:, None]  # [i, j]: token j is more probable than token i
    scaled = jnp.where(larger.sum(axis=1) < top_k, scaled, -jnp.inf)
    before = (larger * jax.nn.softmax(scaled)).sum(axis=1)
    return jax.random.categorical(key, jax.nn.log_softmax(jnp.where(before < top_p, scaled, -jnp.inf))).astype("int32")


# %% [markdown] task="attention-sharded-cache" stars=3 minutes=30 skills="attention-masked,attention-cache-step,19_shard_map"
# ## A cache on several devices
# *Needs: Deeper: a cache on eight devices.*
#
# **Goal.** A long text does not fit into the memory of one device, so the cache is partitioned along its positions. Compute the attention of one query without gathering the cache. Each device computes with its shard of the positions, and the devices combine their results.
#
# **Signature.** `sharded_decode(q, k, v, length)` takes `q`, a `float32[H,d]`, `k` and `v`, each a `float32[S@cache,G,d]`, and `length`, an int32 scalar from 1 to S. It returns a `float32[H,d]` that is not partitioned. Query head h uses key and value head h // (H // G), and attends to the positions before `length`. The scores are divided by sqrt(d). Types are written as JAX prints them, so `S@cache` is partitioned along the mesh axis `cache`, whose size divides S. The check enters a mesh with `jax.set_mesh`, so your code can use a bare `P`. Call `jax.shard_map` inside your function, because the checks use meshes of several sizes.
#
# **Example.** With one head of size 1, `q` = [[0]], two devices with the values [1, 3] and [5, 7] and `length` 3, all scores are 0, so the result is (1 + 3 + 5) / 3 = 3. The devices have the sums 4 and 5, and 2 and 1 allowed positions.
#
# **Judged.** The values and the type, also if some devices have no allowed position, if scores are in the hundreds, and if positions that are not allowed have much larger scores. On n devices, the collectives return at most n · H · (d + 2) elements on each device. **Not judged.** How many collectives there are, and the gradient.
#
# <details><summary>Hint 1 · a question</summary>
#
# The softmax is exp(score - m) / total. Which parts of this need all positions? May each device use its own m?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Each device needs its positions, which begin at `axis_index * positions of a shard`. Use the same m on all devices, the maximum over all of them. `jax.lax.pmax` computes it. Then the numerators and the totals can be added.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compute `m = jax.lax.pmax(scores.max(axis=-1), "cache")` with masked scores of -inf, and `weights = jnp.exp(scores - m[..., None])`. The result is `psum(weights @ values) / psum(weights.sum(axis=-1))`. Since `length` is at least 1, m is finite.
#
# </details>


# %% answer="attention-sharded-cache" timeout=20
def sharded_decode(q, k, v, length):
    """q float32[H,d], k and v float32[S@cache,G,d], an int32 length -> float32[H,d]."""
    ### BEGIN SOLUTION

    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions < length, scores, -jnp.inf)
        highest = jax.lax.pmax(scores.max(axis=-1), "cache")
        weights = jnp.exp(scores - highest[..., None])
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)
    ### END SOLUTION


# %% check="attention-sharded-cache" name="example" points=1
"""The example, on two devices."""
mesh, values = grid(2), np.array([1, 3, 5, 7], np.float32).reshape(4, 1, 1)
with jax.set_mesh(mesh):
    arguments = place(mesh, np.zeros((1, 1), np.float32)), place(mesh, 0 * values, "cache")
    result = ask(sharded_decode, *arguments, place(mesh, values, "cache"), place(mesh, np.int32(3)))
compare(result, np.array([[3]], np.float32), label="the result")
with case("when the largest scores of the devices differ"), jax.set_mesh(mesh):
    scores = np.array([0, 1, 3, 2], np.float32).reshape(4, 1, 1)
    arguments = place(mesh, np.ones((1, 1), np.float32)), place(mesh, scores, "cache")
    result = ask(sharded_decode, *arguments, place(mesh, values, "cache"), place(mesh, np.int32(3)))
    weights = np.exp([0, 1, 3])
    compare(result, np.float32([[weights @ [1, 3, 5] / weights.sum()]]), label="the result")

# %% hidden="attention-sharded-cache" name="program" points=3
"""Right for other meshes, lengths and scores, and the cache is not gathered."""
rng = inputs.rng()
for size, H, G, d, per_device, length, factor, words in (
    (2, 1, 1, 4, 6, 8, 1, "when all devices have the same highest score"),
    (8, 6, 2, 4, 24, 8 * 24 - int(rng.integers(2, 20)), 1, "when all devices have allowed positions"),
    (4, 4, 4, 3, 20, int(rng.integers(3, 18)), 1, "when only one device has allowed positions"),
    (4, 8, 2, 6, 30, int(rng.integers(65, 85)), 9, "for scores above 100"),
    (3, 2, 1, 5, 40, 3 * 40, 1, "when all positions are allowed"),
):
    S, mesh = size * per_device, grid(size)
    q, k, v = factor * normal(rng, H, d), factor * normal(rng, S, G, d), normal(rng, S, G, d) + 2
    if words.endswith("highest score"):
        k[::per_device] = 40 * math.sqrt(d) * q / np.sum(q**2)  # the score 40
    if words == "for scores above 100":
        for h in range(H):  # a position that is not allowed has the score 3000
            k[length + h % (H // G), h // (H // G)] = 3000 * math.sqrt(d) * q[h] / np.sum(q[h] ** 2)
    wanted, longer = np.zeros((2, H, d))
    for h in range(H):
        for result, count in ((wanted, length), (longer, length + 1)):
            keys, values = k[:count, h // (H // G)].astype(np.float64), v[:count, h // (H // G)]
            weights = np.exp((scores := keys @ q[h] / math.sqrt(d)) - scores.max())
            result[h] = weights / weights.sum() @ values
    with case(words):
        with jax.set_mesh(mesh):
            placed = place(mesh, q), place(mesh, k, "cache"), place(mesh, v, "cache"), place(mesh, np.int32(length))
            made = program(sharded_decode, *placed)
            got = made.run(*placed)
        if length < S and got.shape == longer.shape:
            included = np.allclose(got, longer, rtol=1e-4, atol=1e-5) and not np.allclose(got, wanted, 1e-4, 1e-5)
            require(not included, "the position `length` is included.")
        compare(got, wanted.astype(np.float32), label="the result")
        spec = getattr(made.outputs.sharding, "spec", ("unknown",))
        require(not any(spec), "the result is partitioned.")
        require(
            made.elements() <= size * H * (d + 2),
            "the collectives return more elements on each device than n · H · (d + 2).",
        )

# %% [markdown] why="attention-sharded-cache"
# The numerator and the denominator of a softmax are sums over the keys, and sums can be computed in parts. Only the maximum must be the same everywhere, or each part must be rescaled when the parts are combined. The communication does not depend on the number of positions. The same idea lets a single device process the keys in blocks, which is how *flash attention* avoids the array of all scores. **Next:** On which device should a step write the key of the next token, and how do you write this with static shapes?


# %% wrong="attention-sharded-cache" because="Averages the results of the devices, although they have different totals."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        weights = jax.nn.softmax(jnp.where(positions < length, scores, -1e30), axis=-1)
        return jax.lax.pmean(jnp.einsum("grs,sgd->grd", weights, v), "cache").reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Weights the results of the devices by their numbers of allowed positions instead of their sums of exp(score)."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        allowed = jax.lax.axis_index("cache") * S + jnp.arange(S) < length
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        weights = jax.nn.softmax(jnp.where(allowed, scores, -1e30), axis=-1)
        result = allowed.sum() * jnp.einsum("grs,sgd->grd", weights, v).reshape(q.shape)
        return jax.lax.psum(result, "cache") / length

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Takes the maximum over the devices before the maximum over the positions, so `pmax` returns a number for each position of a shard."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions < length, scores, -jnp.inf)
        highest = jax.lax.pmax(scores, "cache").max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        total = jax.lax.psum(weights.sum(axis=-1, keepdims=True), "cache")
        return (jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache") / total).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Adds the results of the devices, each with its own softmax, so the weights add up to the number of devices."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        weights = jnp.where(positions < length, jax.nn.softmax(scores, axis=-1), 0)
        return jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache").reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Subtracts a different maximum on each device, so numerators and totals of the devices do not have the same scale."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions < length, scores, -1e30)
        weights = jnp.where(positions < length, jnp.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Subtracts the maximum of each device, as its softmax does. On a device without allowed positions, this is -inf - (-inf), which is NaN."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions < length, scores, -jnp.inf)
        local = scores.max(axis=-1)
        weights = jnp.exp(scores - local[..., None])
        scale = jnp.exp(local - jax.lax.pmax(local, "cache"))
        total = jax.lax.psum(scale * weights.sum(axis=-1), "cache")
        result = jax.lax.psum(scale[..., None] * jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Subtracts no maximum, so large scores overflow."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        weights = jnp.where(positions < length, jnp.exp(scores), 0)
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Counts the positions from 0 on each device, so each device uses its first `length` positions."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(jnp.arange(S) < length, scores, -jnp.inf)
        weights = jnp.exp(scores - jax.lax.pmax(scores.max(axis=-1), "cache")[..., None])
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Divides by the total of one device before adding, instead of by the total of all devices."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions < length, scores, -jnp.inf)
        weights = jnp.exp(scores - jax.lax.pmax(scores.max(axis=-1), "cache")[..., None])
        total = jnp.maximum(weights.sum(axis=-1), 1e-30)
        result = jnp.einsum("grs,sgd->grd", weights, v) / total[..., None]
        return jax.lax.psum(result, "cache").reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Gathers the cache on each device."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        k, v = (jax.lax.all_gather(array, "cache", tiled=True, to="invarying") for array in (k, v))
        valid = (jnp.arange(len(k)) < length)[None, None, :]
        return jax.nn.dot_product_attention(q[None], k, v, mask=valid)[0]

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Gathers the cache on each device."
def sharded_decode(q, k, v, length):
    k, v = jax.reshard(k, P()), jax.reshard(v, P())
    valid = (jnp.arange(len(k)) < length)[None, None, :]
    return jax.nn.dot_product_attention(q[None], k, v, mask=valid)[0]


# %% wrong="attention-sharded-cache" because="Includes the position `length`."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * S + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions <= length, scores, -jnp.inf)
        weights = jnp.exp(scores - jax.lax.pmax(scores.max(axis=-1), "cache")[..., None])
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Takes the maximum before the mask. If the score of a position that is not allowed is much larger, all allowed weights underflow to 0."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        allowed = jax.lax.axis_index("cache") * S + jnp.arange(S) < length
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        highest = jax.lax.pmax(scores.max(axis=-1), "cache")
        weights = jnp.where(allowed, jnp.exp(scores - highest[..., None]), 0)
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Divides S by the number of all devices. The mesh may have fewer, so use the size of the shard."
def sharded_decode(q, k, v, length):
    per_device = k.shape[0] // jax.device_count()

    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        positions = jax.lax.axis_index("cache") * per_device + jnp.arange(S)
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(positions < length, scores, -jnp.inf)
        highest = jax.lax.pmax(scores.max(axis=-1), "cache")
        weights = jnp.exp(scores - highest[..., None])
        total = jax.lax.psum(weights.sum(axis=-1), "cache")
        result = jax.lax.psum(jnp.einsum("grs,sgd->grd", weights, v), "cache")
        return (result / total[..., None]).reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% wrong="attention-sharded-cache" because="Gathers the scores of all positions. The maximum and the total of each head are enough."
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        first = jax.lax.axis_index("cache") * S
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) / math.sqrt(d)
        scores = jnp.where(first + jnp.arange(S) < length, scores, -jnp.inf)
        weights = jax.nn.softmax(jax.lax.all_gather(scores, "cache", axis=2, tiled=True), axis=-1)
        own = jax.lax.dynamic_slice_in_dim(weights, first, S, axis=2)
        return jax.lax.psum(jnp.einsum("grs,sgd->grd", own, v), "cache").reshape(q.shape)

    specs = P(), P("cache"), P("cache"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(q, k, v, length)


# %% right="attention-sharded-cache"
def sharded_decode(q, k, v, length):
    def on_one_device(q, k, v, length):
        S, G, d = k.shape
        allowed = jax.lax.axis_index("cache") * S + jnp.arange(S) < length
        scores = jnp.einsum("grd,sgd->grs", q.reshape(G, -1, d), k) * d**-0.5
        local = jnp.where(allowed, scores, -1e30).max(axis=-1, keepdims=True)
        weights = jnp.where(allowed, jnp.exp(scores - local), 0)
        parts = jnp.einsum("grs,sgd->grd", weights, v), weights.sum(axis=-1, keepdims=True), local
        results, totals, highest = (jax.lax.all_gather(part, "cache", to="invarying") for part in parts)
        scale = jnp.exp(highest - highest.max(axis=0))
        return ((scale * results).sum(axis=0) / (scale * totals).sum(axis=0)).reshape(q.shape)

    return jax.shard_map(on_one_device, in_specs=(P(), P("cache"), P("cache"), P()), out_specs=P())(q, k, v, length)


# %% right="attention-sharded-cache"
def sharded_decode(q, k, v, length):
    (H, d), G = q.shape, k.shape[1]
    scores = jnp.einsum("grd,sgd->grs", q.reshape(G, H // G, d), k) / math.sqrt(d)
    allowed = jax.reshard(jnp.arange(len(k)) < length, P("cache"))
    weights = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)  # the compiler inserts its collectives
    return jnp.einsum("grs,sgd->grd", weights, v, out_sharding=P(None, None, None)).reshape(H, d)
