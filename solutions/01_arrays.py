# %% [markdown]
# # 01 · Exercises: arrays
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# Most checks turn your function into **one program** (lesson 02 shows how) and then run the program on many inputs. Write your answers with `jnp`, because NumPy computations cannot be part of a program. Several exercises require "the same program at any size". This means that more numbers give larger arrays, but not more operations. JAX unrolls a Python loop, so its program grows with the number of inputs.

# %% setup
from grader.checks import ask, case, compare, error, inputs, program, require
import time

import jax
import jax.numpy as jnp
import numpy as np

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def repair_numpy(frame, gains):
    """Repairs one frame of a camera in place: frame (h, w), gains (h,), both float32 NumPy arrays. Returns nothing."""
    frame[1::2] = frame[1::2, ::-1]  # every other row is read out from right to left
    frame[frame < 0] = 0  # dead pixels
    frame /= gains[:, None]  # each row has its own amplifier
    frame[:, 0] = frame[:, 1]  # the edges of the sensor are in the shade, so copy the neighbours
    frame[:, -1] = frame[:, -2]


@jax.jit
def long_chain(x):
    """Multiplies by the same matrix 1,000 times: (d, d) -> (d, d)"""
    return jax.lax.fori_loop(0, 1000, lambda _, y: y @ x, x)


def nap(x):
    """Sleeps for 50 milliseconds and returns x as an array."""
    time.sleep(0.05)
    return jnp.asarray(x)


# %% [markdown] task="arrays-scatter-count" stars=1 minutes=6 skills="01_arrays"
# ## Count into bins
# **Goal.** Count how often each number occurs. One line is missing.
#
# **Signature.** `scatter_count(idx, n)`. `idx` has shape `(k,)` and contains integers from 0 to n - 1, possibly repeated. `n` is a Python int. The result has shape `(n,)` and dtype int32, and its entry j is the number of times that j occurs in `idx`.
#
# **Example.** `scatter_count([1, 1, 3], 5)`, with the list as an array, is `[0, 2, 0, 1, 0]`.
#
# **Judged.** The values, also for counts of several thousand. The program has no loop and is the same for any number of indices. **Not judged.** Speed, memory, and promises such as `unique_indices`.
#
# <details><summary>Hint 1 · a question</summary>
#
# In NumPy, `counts[idx] += 1` adds only 1 for a repeated index. Why? What should happen instead?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `counts` itself cannot change, but `counts.at[...]` has methods that return an updated copy. One of them applies the update for every index, repeated or not.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `.set` keeps one value for each index, and `.add` sums all updates. Return the result, because `counts` itself does not change.
#
# </details>


# %% answer="arrays-scatter-count"
def scatter_count(idx, n):
    """Counts how often each of 0, ..., n - 1 occurs in idx (k,). Returns (n,) int32."""
    counts = jnp.zeros(n, jnp.int32)
    ### BEGIN SOLUTION
    return counts.at[idx].add(1)
    ### END SOLUTION


# %% check="arrays-scatter-count" name="example" points=1
"""The example: 1 occurs twice, 3 once."""
idx = np.array([1, 1, 3], np.int32)
compare(
    program(lambda idx: scatter_count(idx, 5), idx).run(idx), np.array([0, 2, 0, 1, 0], np.int32), label="the count"
)

# %% hidden="arrays-scatter-count" name="values" points=1
"""Right for indices with and without repetitions."""
made = program(lambda idx: scatter_count(idx, 6), np.zeros(20, np.int32))
for _ in range(3):
    idx = inputs.rng().integers(0, 6, size=20).astype(np.int32)
    compare(made.run(idx), np.bincount(idx, minlength=6).astype(np.int32), label="the count of repeated indices")
idx = inputs.rng().permutation(9)[:7].astype(np.int32)
got = program(lambda idx: scatter_count(idx, 9), idx).run(idx)
compare(got, np.bincount(idx, minlength=9).astype(np.int32), label="the count of indices that all differ")

# %% hidden="arrays-scatter-count" name="program" points=1
"""Right for more indices too, by the same program and without a loop."""
idx = inputs.rng().integers(0, 4, size=12).astype(np.int32)
few, many = (program(lambda idx: scatter_count(idx, 4), some) for some in (idx[:3], idx))
compare(many.run(idx), np.bincount(idx, minlength=4).astype(np.int32), label="the count of 12 indices")
compare(few.run(idx[:3]), np.bincount(idx[:3], minlength=4).astype(np.int32), label="the count of 3 indices")
require(
    many.loops == 0,
    "The program runs a loop over the indices, one after the other. One indexed update handles all of them.",
)
require(
    many.operations == few.operations,
    f"For 3 indices the program has {few.operations} operations, for 12 it has {many.operations}. JAX has unrolled a "
    "Python loop over the indices. One indexed update handles all of them.",
)
# Odd counts beyond 2,048 have no place in 16-bit floats. Last, since a Python loop would take long over so many.
idx = inputs.rng().permutation(np.repeat(np.arange(4), [2601, 399, 0, 1])).astype(np.int32)
got = program(lambda idx: scatter_count(idx, 4), idx).run(idx)
compare(got, np.array([2601, 399, 0, 1], np.int32), label="the count of 3,001 mostly equal indices")

# %% [markdown] why="arrays-scatter-count"
# `.at[idx].add` is one operation, a *scatter*. Each index contributes its 1, and all updates of the same index are summed. **Next:** `.at[]` also has `max`, `min` and `multiply`. How would you find the largest sale of each shop?


# %% wrong="arrays-scatter-count" because="Reads the counts, adds 1 and writes them, so that all repetitions read the same old count, as in NumPy's counts[idx] += 1."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    return counts.at[idx].set(counts[idx] + 1)


# %% wrong="arrays-scatter-count" because="Does not use the array that .at returns, and counts itself never changes."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    counts.at[idx].add(1)
    return counts


# %% wrong="arrays-scatter-count" because="Loops over the indices in Python, which gives the right values, but the program grows with the indices."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    for i in idx:
        counts = counts.at[i].add(1)
    return counts


# %% wrong="arrays-scatter-count" because="Assigns in place, as in NumPy, but JAX arrays are immutable."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    counts[idx] += 1
    return counts


# %% wrong="arrays-scatter-count" because="Treats the inspected sizes as special cases, so that those programs have the right operations but compute wrong numbers."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    for i in range(12 if n == 4 else len(idx)):
        counts = counts.at[idx[i % len(idx)]].add(1)
    return counts


# %% wrong="arrays-scatter-count" because="Adds the number itself instead of 1, which sums the numbers in each bin instead of counting them."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    return counts.at[idx].add(idx)


# %% wrong="arrays-scatter-count" because="Counts in 16-bit floats, which do not represent every integer above 256 (bfloat16) or 2048 (float16)."
def scatter_count(idx, n):
    rows = jax.nn.one_hot(idx, n, dtype=jnp.bfloat16)
    return rows.sum(axis=0).astype(jnp.int32)


# %% wrong="arrays-scatter-count" because="Sets each count to the length of a run of equal indices, so that only one run of each number counts if the indices are not sorted."
def scatter_count(idx, n):
    begins = jnp.ones(idx.shape, bool).at[1:].set(idx[1:] != idx[:-1])
    run = jnp.cumsum(begins) - 1
    length = jnp.zeros(idx.shape, jnp.int32).at[run].add(1)
    return jnp.zeros(n, jnp.int32).at[idx].set(length[run])


# %% wrong="arrays-scatter-count" because="Counts in 8 bits, where a count beyond 127 wraps around."
def scatter_count(idx, n):
    return jnp.zeros(n, jnp.int8).at[idx].add(1).astype(jnp.int32)


# %% wrong="arrays-scatter-count" because="Updates one index after the other, in a loop inside the program."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    return jax.lax.fori_loop(0, len(idx), lambda j, counts: counts.at[idx[j]].add(1), counts)


# %% wrong="arrays-scatter-count" because="Counts runs of equal indices, but equal indices need not be next to each other."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    # how many indices have been seen when the run of j ends
    ends = counts.at[idx].max(jnp.arange(1, idx.shape[0] + 1, dtype=jnp.int32))
    ends = jax.lax.cummax(ends)
    return jnp.diff(ends, prepend=jnp.int32(0))


# %% wrong="arrays-scatter-count" because="Counts in 16-bit floats, which do not represent every integer above 256 (bfloat16) or 2048 (float16)."
def scatter_count(idx, n):
    table = jax.nn.one_hot(idx, n, dtype=jnp.float16)
    return jnp.sum(table, axis=0).astype(jnp.int32)


# %% right="arrays-scatter-count"
def scatter_count(idx, n):
    return jnp.bincount(idx, length=n)


# %% right="arrays-scatter-count"
def scatter_count(idx, n):
    return (idx[:, None] == jnp.arange(n)).sum(axis=0)


# %% [markdown] task="arrays-safe-gather" stars=1 minutes=8 skills="01_arrays"
# ## Missing neighbours
# **Goal.** In the neighbour table of a graph, a row is padded with -1 if its node has fewer neighbours than the table has columns. A damaged file also contains numbers beyond the last node. Look up the values, and use a fill value for every index that is not a node.
#
# **Signature.** `safe_gather(x, i, fill)`. `x` has shape `(n,)` and any dtype. `i` is int32, of any shape. `fill` is a Python number that the dtype of `x` can represent. The result has the shape of `i` and the **dtype of `x`**. It is `x[i]` where i is one of 0, ..., n - 1, and `fill` everywhere else. Negative numbers do *not* count from the end here.
#
# **Example.** `x = [10, 20, 30]`, `i = [2, -1, 0, 3]` and `fill = 7` give `[30, 7, 10, 7]`.
#
# **Judged.** The values and dtypes for float32, bfloat16 and integers, also for a single index of shape `()` and if `x` contains inf or NaN, with and without `jit`. The program has no loop and is the same for any number of indices. **Not judged.** Which method you use.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does JAX return for `x[3]` if the last index is 2? And for `x[-1]`? Is there an error that you could catch?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Indexing never fails, so first look up a value for every index and then choose. Which comparisons tell you that i is one of 0, ..., n - 1?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jnp.where(condition, a, b)` chooses entry by entry. Combine two comparisons of arrays with `&`, each in parentheses. If `fill` remains a Python number, the result keeps the dtype of `x`.
#
# </details>


# %% answer="arrays-safe-gather"
def safe_gather(x, i, fill):
    """Looks up x[i] of x (n,) where i is one of 0, ..., n - 1, else fill. Returns the shape of i, the dtype of x."""
    ### BEGIN SOLUTION
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], fill)
    ### END SOLUTION


# %% check="arrays-safe-gather" name="example" points=1
"""The example: -1 and 3 are not valid indices of x."""
x, i = np.array([10, 20, 30], np.float32), np.array([2, -1, 0, 3], np.int32)
got = program(lambda x, i: safe_gather(x, i, 7), x, i).run(x, i)
compare(got, np.array([30, 7, 10, 7], np.float32), label="the result for [2, -1, 0, 3]")

# %% hidden="arrays-safe-gather" name="values" points=1
"""Right for valid indices, for both ends, far beyond them, and for negative indices."""


def probe_plain(x, i):
    with jax.disable_jit():
        return safe_gather(jnp.asarray(x), jnp.asarray(i), -3.5)


rng = inputs.rng()
x = rng.normal(size=6).astype(np.float32)
x[[0, 2, 5]] = np.inf, 0, np.nan  # the ends are what an index out of bounds gives
made = program(lambda x, i: safe_gather(x, i, -3.5), x, np.zeros(4, np.int32))
filled = np.full(4, -3.5, np.float32)
i = rng.permutation([1, 2, 3, 4]).astype(np.int32)
compare(made.run(x, i), x[i], label="the result for valid indices")
i = np.array([0, 5, 0, 5], np.int32)
compare(made.run(x, i), x[i], label="the result for the first and the last index")
i = rng.integers(7, 40, size=4).astype(np.int32)
compare(made.run(x, i), filled, label="the result for indices beyond n")
compare(made.run(x, np.full(4, 6, np.int32)), filled, label="the result for the index n, one beyond the last")
compare(made.run(x, np.full(4, -1, np.int32)), filled, label="the result for the index -1")
i = rng.integers(-6, -1, size=4).astype(np.int32)
compare(made.run(x, i), filled, label="the result for indices from -n to -2")
i = rng.integers(-40, -6, size=4).astype(np.int32)
compare(made.run(x, i), filled, label="the result for indices below -n")
# A compiler may turn "times mask" into a choice; operation by operation it is inf times 0.
i = np.array([-1, 6, 2, -40], np.int32)
wanted = np.array([-3.5, -3.5, x[2], -3.5], np.float32)
compare(ask(probe_plain, x, i), wanted, label="the result without jit where the ends of x are inf and NaN")

# %% hidden="arrays-safe-gather" name="dtypes" points=1
"""Right for a table of indices, in the dtype of x, by the same program at any size."""
rng = inputs.rng()
table = np.array([[0, -1, 4], [4, 5, 2]], np.int32)
for dtype, fill, i, what in (
    (jnp.bfloat16, 0.5, table, "a table of indices and bfloat16"),
    (np.int8, -7, table, "a table of indices and int8"),
    (np.float32, 2, np.array(-1, np.int32), "a single index and float32"),
):
    x = rng.permutation(np.arange(10, 90))[:5].astype(dtype)
    got = program(lambda x, i, fill: safe_gather(x, i, fill), x, i, fill).run(x, i, fill)
    wanted = np.where((i >= 0) & (i < 5), x[np.clip(i, 0, 4)], np.array(fill, dtype))
    compare(got, wanted, label=f"the result for {what}")
i = np.append([1, -1], rng.permutation([-3, -2, 0, 2, 3, 4, 5, 7, 8])).astype(np.int32)
few, many = (program(lambda x, i: safe_gather(x, i, 7), x, some) for some in (i[:2], i))
wanted = np.where((i >= 0) & (i < 5), x[np.clip(i, 0, 4)], np.float32(7))
compare(many.run(x, i), wanted, label="the result for 11 indices")
compare(few.run(x, i[:2]), wanted[:2], label="the result for 2 indices")
require(
    many.loops == 0,
    "The program runs a loop over the indices, one after the other. One indexed read handles all of them.",
)
require(
    many.operations == few.operations,
    f"For 2 indices the program has {few.operations} operations, for 11 it has {many.operations}. JAX has unrolled a "
    "Python loop over the indices. One indexed read handles all of them.",
)

# %% [markdown] why="arrays-safe-gather"
# A program cannot stop in the middle, so JAX clamps the index of a read instead of raising an error, and you decide what an invalid index means. `x.at[i].get(mode="fill", fill_value=fill)` does this in one step, but -1 counts from the end unless you pass `wrap_negative_indices=False`. **Next:** What should an *update* at an invalid index do, and what does it do in JAX?


# %% wrong="arrays-safe-gather" because="Expects an IndexError, but JAX returns the nearest entry for an index out of bounds."
def safe_gather(x, i, fill):
    try:
        return x[i]
    except IndexError:
        return jnp.full(i.shape, fill, x.dtype)


# %% wrong="arrays-safe-gather" because="Checks the upper bound only, but -1 counts from the end, as in NumPy."
def safe_gather(x, i, fill):
    return jnp.where(i < x.shape[0], x[i], fill)


# %% wrong="arrays-safe-gather" because="Relies on mode='fill', which fills beyond both ends but treats -1 as the last entry."
def safe_gather(x, i, fill):
    return jnp.take(x, i, mode="fill", fill_value=fill)


# %% wrong="arrays-safe-gather" because="Converts fill to a float32 array, which promotes bfloat16 and integers. A Python number would not."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], jnp.full(i.shape, fill, jnp.float32))


# %% wrong="arrays-safe-gather" because="Converts fill to a float, which is weakly typed and preserves bfloat16, but promotes integers to float32."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], jnp.full(i.shape, float(fill)))


# %% wrong="arrays-safe-gather" because="Accepts index n, but the last index is n - 1."
def safe_gather(x, i, fill):
    return jnp.where((i >= 0) & (i <= x.shape[0]), x[i], fill)


# %% wrong="arrays-safe-gather" because="Clips the indices, so that an invalid index reads the first or the last entry."
def safe_gather(x, i, fill):
    return x[jnp.clip(i, 0, x.shape[0] - 1)]


# %% wrong="arrays-safe-gather" because="Treats the inspected sizes as special cases, so that those programs have the right operations but compute wrong numbers."
def safe_gather(x, i, fill):
    i = i + (1 if i.shape == (2,) else 0)
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], fill)


# %% wrong="arrays-safe-gather" because="Chooses in Python, index by index, which gives the right values, but the program grows with the indices."
def safe_gather(x, i, fill):
    n = x.shape[0]
    flat = [jnp.where((j >= 0) & (j < n), x[j], fill) for j in i.reshape(-1)]
    return jnp.stack(flat).reshape(i.shape)


# %% wrong="arrays-safe-gather" because="Treats only -1 as a missing neighbour, but -2 and below still count from the end."
def safe_gather(x, i, fill):
    return jnp.where((i == -1) | (i >= x.shape[0]), fill, x[i])


# %% wrong="arrays-safe-gather" because="Marks invalid indices by the value 0, so that entries of x that are 0 are filled too."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    found = x[jnp.where(inside, i, 0)] * inside.astype(x.dtype)
    return jnp.where(found == 0, jnp.array(fill, x.dtype), found)


# %% wrong="arrays-safe-gather" because="Checks the lower bound only, but an index beyond the last one reads the last entry."
def safe_gather(x, i, fill):
    return jnp.where(i >= 0, x[i], fill)


# %% wrong="arrays-safe-gather" because="Fills index 0, which is a valid index."
def safe_gather(x, i, fill):
    return jnp.where((i > 0) & (i < x.shape[0]), x[i], fill)


# %% wrong="arrays-safe-gather" because="Chooses by multiplying with masks, but inf or NaN times 0 is NaN."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    found = x[jnp.clip(i, 0, x.shape[0] - 1)]
    return (inside * found + (~inside) * fill).astype(x.dtype)


# %% wrong="arrays-safe-gather" because="Marks missing entries with NaN and replaces every NaN, so a NaN of the array is replaced too."
def safe_gather(x, i, fill):
    x = jnp.asarray(x)
    beyond = x.shape[0]
    found = jnp.take(x, jnp.where(i < 0, beyond, i), mode="fill")  # NaN where there is no node
    return jnp.where(jnp.isnan(found), fill, found)


# %% wrong="arrays-safe-gather" because="Creates the result with the dtype of the indices instead of that of the values."
def safe_gather(x, i, fill):
    x = jnp.asarray(x)
    n = x.shape[0]
    result = jnp.full_like(i, fill)
    return jnp.where((i >= 0) & (i < n), x[jnp.clip(i, 0, n - 1)], result)


# %% wrong="arrays-safe-gather" because="Chooses by multiplying with masks, but inf or NaN times 0 is NaN."
def safe_gather(x, i, fill):
    valid = ((i >= 0) & (i < x.shape[0])).astype(x.dtype)
    return x[i] * valid + jnp.asarray(fill, x.dtype) * (1 - valid)


# %% wrong="arrays-safe-gather" because="Maps over the indices with vmap, but a single index has no axis to map over."
def safe_gather(x, i, fill):
    def one(j):
        return jnp.where((j >= 0) & (j < len(x)), x[j], fill)

    return jax.vmap(one)(i)


# %% right="arrays-safe-gather"
def safe_gather(x, i, fill):
    return x.at[i].get(mode="fill", fill_value=fill, wrap_negative_indices=False)


# %% right="arrays-safe-gather"
def safe_gather(x, i, fill):
    padded = jnp.concatenate([x, jnp.array([fill], x.dtype)])
    last = x.shape[0]
    return padded[jnp.where(i < 0, last, jnp.minimum(i, last))]


# %% [markdown] task="arrays-predict-dtypes" stars=1 minutes=12 skills="01_arrays"
# ## Which dtype?
# **Goal.** Predict the dtype of `jnp.add(left, right)` from a description of the operands.
#
# **Signature.** `predict_dtypes(left, right)`. Each argument is one of these strings:
#
# - a dtype, for a JAX array: `"bool"`, `"uint8"`, `"int8"`, `"int16"`, `"int32"`, `"float16"`, `"bfloat16"`, `"float32"`;
# - `"numpy int64"` or `"numpy float64"`, for a NumPy array or number;
# - `"python bool"`, `"python int"` or `"python float"`, for a Python number that is small enough for every dtype. At most one of the two arguments is of this kind.
#
# The result is the name of the dtype of the sum, such as `"int32"`. JAX's default settings apply, so 64-bit types are disabled.
#
# **Example.** `predict_dtypes("int8", "int16")` is `"int16"`, and `predict_dtypes("float32", "python float")` is `"float32"`.
#
# **Judged.** The answers for pairs of all these descriptions, in either order. **Not judged.** Whether you write down rules, or create two operands that fit the description and ask JAX. In both cases, predict a few answers first.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of the descriptions have a dtype with a number of bits, and which only state "an integer" or "a float"?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A Python number is *weakly typed*. It changes the dtype only if its kind (bool, integer, float) is higher than that of the array. A NumPy number is not weakly typed, and JAX converts it to 32 bits.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# To ask JAX, turn each description into an operand. Use `np.ones((), name)` for arrays, after you remove `"numpy "`, and a plain `True`, `1` or `1.0` for a Python number, *not* an array of it. Add them with `jnp.add`, because `+` of two NumPy operands follows NumPy's rules.
#
# </details>


# %% answer="arrays-predict-dtypes"
def predict_dtypes(left, right):
    """Returns the name of the dtype of jnp.add(left, right), each described by a string."""
    ### BEGIN SOLUTION
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        return weak[said] if said in weak else np.ones((), said.removeprefix("numpy "))

    return jnp.add(operand(left), operand(right)).dtype.name
    ### END SOLUTION


# %% check="arrays-predict-dtypes" name="example" points=1
"""The two examples."""
compare(ask(predict_dtypes, "int8", "int16"), "int16", label='the answer for "int8" and "int16"')
compare(ask(predict_dtypes, "float32", "python float"), "float32", label='the answer for "float32" and "python float"')

# %% hidden="arrays-predict-dtypes" name="python" points=1
"""Right for a Python number as the left or the right operand."""
NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
NAMES += ("float16", "bfloat16", "float32", "float64")
WEAK = {"python bool": True, "python int": 1, "python float": 1.0}
ARRAYS = {
    "an array of bool": ("bool",),
    "an array of small integers": ("uint8", "int8", "int16"),
    "an array of int32": ("int32",),
    "an array of float16": ("float16",),
    "an array of bfloat16": ("bfloat16",),
    "an array of float32": ("float32",),
    "NumPy's int64": ("numpy int64",),
    "NumPy's float64": ("numpy float64",),
}
rng = inputs.rng()
groups = []
for i, number in enumerate(WEAK):
    for j, (kind, names) in enumerate(ARRAYS.items()):
        name = names[rng.integers(len(names))]
        pair = (name, number) if (i + j) % 2 else (number, name)
        wanted = jnp.result_type(WEAK[number], np.ones((), name.removeprefix("numpy "))).name
        groups.append((f"a {number.capitalize()} meets {kind}", pair, wanted))
shuffled = [int(i) for i in rng.permutation(len(groups))]  # judged in one order, so no draw changes which fails first
answers = ask(lambda pairs: [predict_dtypes(*pair) for pair in pairs], [groups[i][1] for i in shuffled])
answers = [answers[shuffled.index(i)] for i in range(len(groups))]
for answer, (what, _, wanted) in zip(answers, groups, strict=True):
    require(answer in NAMES, f"Where {what}, the answer is not the name of a dtype.")
    require(
        not answer.endswith("64"),
        f"Where {what}, your answer has 64 bits, which JAX disables by default. These are NumPy's rules, not JAX's.",
    )
    require(answer == wanted, f"The answer is wrong where {what}.")

# %% hidden="arrays-predict-dtypes" name="arrays" points=1
"""Right for two arrays of JAX or NumPy."""
NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
NAMES += ("float16", "bfloat16", "float32", "float64")
GROUPS = {
    "two arrays of one dtype meet": [("int8", "int8"), ("bfloat16", "bfloat16"), ("bool", "bool")],
    "bool meets another dtype": [("bool", "uint8"), ("bfloat16", "bool"), ("bool", "int32")],
    "two signed integers meet": [("int8", "int16"), ("int32", "int8"), ("int16", "int32")],
    "uint8 meets int8": [("uint8", "int8"), ("int8", "uint8")],
    "uint8 meets a wider signed dtype": [("uint8", "int16"), ("int32", "uint8")],
    "an integer meets a 16-bit float": [("int32", "float16"), ("bfloat16", "int32"), ("int16", "bfloat16")],
    "an integer meets float32": [("int32", "float32"), ("float32", "uint8")],
    "float16 meets bfloat16": [("float16", "bfloat16"), ("bfloat16", "float16")],
    "a 16-bit float meets float32": [("float16", "float32"), ("float32", "bfloat16")],
    "NumPy's float64 meets a 16-bit float": [("bfloat16", "numpy float64"), ("numpy float64", "float16")],
    "NumPy's float64 meets an integer": [("numpy float64", "int8"), ("int32", "numpy float64")],
    "NumPy's int64 meets an integer": [("numpy int64", "int8"), ("uint8", "numpy int64")],
    "NumPy's int64 meets a float": [("numpy int64", "bfloat16"), ("float32", "numpy int64")],
    "two NumPy operands meet": [("numpy float64", "numpy int64"), ("numpy int64", "numpy int64")],
}
asked = []
for what, pairs in GROUPS.items():
    for pair in pairs:
        both = (np.ones((), said.removeprefix("numpy ")) for said in pair)
        asked.append((what, pair, jnp.result_type(*both).name))
shuffled = [int(i) for i in inputs.rng().permutation(len(asked))]
answers = ask(lambda pairs: [predict_dtypes(*pair) for pair in pairs], [asked[i][1] for i in shuffled])
answers = [answers[shuffled.index(i)] for i in range(len(asked))]
for answer, (what, _, wanted) in zip(answers, asked, strict=True):
    require(answer in NAMES, f"Where {what}, the answer is not the name of a dtype.")
    require(
        not answer.endswith("64"),
        f"Where {what}, your answer has 64 bits, which JAX disables by default. First convert each operand as JAX does.",
    )
    require(answer == wanted, f"The answer is wrong where {what}.")

# %% [markdown] why="arrays-predict-dtypes"
# JAX's promotion suits accelerators. An integer array takes the dtype of a float operand, however narrow, and a Python number has no bits of its own. The two 16-bit float formats have no common dtype narrower than float32. **Next:** How would you make a whole program reject every silent promotion? (`jax.numpy_dtype_promotion`)


# %% wrong="arrays-predict-dtypes" because="Treats a Python number as an array of its default dtype, which is not weakly typed, so that bfloat16 times 2.0 would be float32."
def predict_dtypes(left, right):
    defaults = {"python bool": "bool", "python int": "int32", "python float": "float32"}

    def operand(said):
        return np.ones((), defaults.get(said, said).removeprefix("numpy "))

    return jnp.add(operand(left), operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Uses NumPy's promotion rules, which give float64 for int32 and float16."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        return weak[said] if said in weak else np.ones((), said.removeprefix("numpy "))

    return np.result_type(operand(left), operand(right)).name


# %% wrong="arrays-predict-dtypes" because="Treats NumPy's numbers as Python numbers, but they have a dtype and are not weakly typed."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0, "numpy int64": 1, "numpy float64": 1.0}

    def operand(said):
        return weak[said] if said in weak else jnp.ones((), said)

    return jnp.add(operand(left), operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Always returns the dtype of the array, but a Python float promotes integers to float32."
def predict_dtypes(left, right):
    left, right = (name.replace("numpy int64", "int32").replace("numpy float64", "float32") for name in (left, right))
    if left.startswith("python"):
        return right
    return left if right.startswith("python") else jnp.promote_types(left, right).name


# %% wrong="arrays-predict-dtypes" because="Adds two NumPy operands with +, so that NumPy's rules apply and the result has 64 bits."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        if said.startswith("numpy"):
            return np.ones((), said.removeprefix("numpy "))
        return weak[said] if said in weak else jnp.ones((), said)

    return (operand(left) + operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Puts all dtypes in one order and returns the higher one, but uint8 and int8, or float16 and bfloat16, are promoted to a third dtype."
def predict_dtypes(left, right):
    row = ["bool", "uint8", "int8", "int16", "int32", "float16", "bfloat16", "float32"]
    strong = {"numpy int64": "int32", "numpy float64": "float32", "python bool": "bool"}
    left, right = strong.get(left, left), strong.get(right, right)
    if left.startswith("python"):
        left, right = right, left
    if right == "python int":
        return "int32" if left == "bool" else left
    if right == "python float":
        return left if "float" in left else "float32"
    return max(left, right, key=row.index)


# %% wrong="arrays-predict-dtypes" because="Expects the Python number only as the right operand."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}
    first = np.ones((), left.removeprefix("numpy ").replace("python ", ""))
    second = weak[right] if right in weak else np.ones((), right.removeprefix("numpy "))
    return jnp.add(first, second).dtype.name


# %% wrong="arrays-predict-dtypes" because="Adds NumPy operands with +, which follows NumPy's rules, and converts only the sum to 32 bits."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        return weak[said] if said in weak else np.ones((), said.removeprefix("numpy "))

    return jnp.asarray(operand(left) + operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Turns the Python numbers into NumPy arrays first, so they are no longer weakly typed and promote to 32 bits."
def predict_dtypes(left, right):
    plain_numbers = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(name):
        if name in plain_numbers:
            return np.asarray(plain_numbers[name])
        return np.ones((), name.removeprefix("numpy "))

    return jnp.add(operand(left), operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Assumes one promotion order for all dtypes, but bfloat16 and float16 are promoted to float32."
def predict_dtypes(left, right):
    same = {"numpy int64": "int32", "numpy float64": "float32", "python bool": "bool"}
    left, right = same.get(left, left), same.get(right, right)
    if {left, right} == {"int8", "uint8"}:
        return "int16"
    line = ["bool", "python int", "uint8", "int8", "int16", "int32", "python float", "bfloat16", "float16", "float32"]
    winner = max(left, right, key=line.index)
    return {"python int": "int32", "python float": "float32"}.get(winner, winner)


# %% wrong="arrays-predict-dtypes" because="Converts NumPy scalars to Python numbers, which are weakly typed."
def predict_dtypes(left, right):
    def operand(description):
        library, _, kind = description.rpartition(" ")
        if library:  # not a JAX array: a number
            return {"b": True, "i": 1, "f": 1.0}[kind[0]]
        return jnp.ones((), description)

    return jnp.add(operand(left), operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Adds NumPy operands with +, which follows NumPy's rules, and converts only the sum to 32 bits."
def predict_dtypes(left, right):
    def operand(name):
        if name.startswith("python "):
            return {"bool": True, "int": 1, "float": 1.0}[name[7:]]
        return np.ones((), jnp.dtype(name.removeprefix("numpy ")))

    return np.add(operand(left), operand(right)).dtype.name.replace("64", "32")


# %% wrong="arrays-predict-dtypes" because="Treats a Python number as an array of its default dtype, which is not weakly typed, so that bfloat16 times 2.0 would be float32."
def predict_dtypes(left, right):
    names = {"python bool": "bool", "python int": "int64", "python float": "float64"}

    def operand(name):
        return np.ones((), names.get(name, name.removeprefix("numpy ")))

    return jnp.add(operand(left), operand(right)).dtype.name


# %% right="arrays-predict-dtypes"
def predict_dtypes(left, right):
    left, right = (name.replace("numpy int64", "int32").replace("numpy float64", "float32") for name in (left, right))
    if right.startswith("python"):
        left, right = right, left
    if left.startswith("python"):
        highest = {"python bool": 0, "python int": 1, "python float": 2}[left]
        own = 0 if right == "bool" else 1 if "int" in right else 2
        return right if own >= highest else {1: "int32", 2: "float32"}[highest]
    return jnp.promote_types(left, right).name


# %% right="arrays-predict-dtypes"
def predict_dtypes(left, right):
    def operand(said):
        owner, _, name = said.rpartition(" ")
        if owner == "python":
            return {"bool": bool, "int": int, "float": float}[name](1)
        return np.zeros((2,), name) if owner == "numpy" else jnp.zeros((2,), name)

    return str(jnp.result_type(operand(left), operand(right)))


# %% [markdown] task="arrays-stable-sum" stars=2 minutes=10 skills="arrays-predict-dtypes"
# ## A sum that does not stall
# *Needs: Deeper: 16-bit floats.*
#
# **Goal.** Add thousands of losses, stored in 16 bits, so that the total is right.
#
# **Signature.** `stable_sum(x)`. `x` has shape `(..., n)`, with one or more axes, and dtype bfloat16 or float16. The result has shape `(...)` and dtype float32, and contains the sums along the last axis.
#
# **Example.** 3,001 ones in bfloat16 give 3001, in float32. (The nearest bfloat16 is 3008.)
#
# **Judged.** The values, with a relative error of at most 1e-5, also if the total is larger than any float16. The dtype. The program has no loop and is the same at any length. **Not judged.** Memory, and the number of bits of intermediate results.
#
# <details><summary>Hint 1 · a question</summary>
#
# bfloat16 stores 8 significant bits. What is 256 + 1 in bfloat16? At which moment does `jnp.sum(x)` convert its result to bfloat16?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Rounding cannot be undone, so it is too late to convert the *result* to float32. What can you convert earlier?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Convert the whole input with `.astype`, or use the argument `dtype` of `jnp.sum`, which is the dtype of the additions and of the result. The last axis is `-1`.
#
# </details>


# %% answer="arrays-stable-sum"
def stable_sum(x):
    """Sums 16-bit floats x (..., n) along the last axis. Returns (...) float32 with a relative error of at most 1e-5."""
    ### BEGIN SOLUTION
    return jnp.sum(x, axis=-1, dtype=jnp.float32)
    ### END SOLUTION


# %% check="arrays-stable-sum" name="example" points=1
"""The example: 3,001 ones."""
ones = np.ones(3001, jnp.bfloat16)
compare(program(stable_sum, ones).run(ones), np.float32(3001), rtol=1e-5, atol=0, label="the sum of 3,001 ones")

# %% hidden="arrays-stable-sum" name="bfloat16" points=1
"""Right to 1e-5 in bfloat16, for one row and for several axes."""


def draw(low, high, size, dtype):
    """Numbers whose sum and mean both lie between two of the dtype: rounding either of them shows."""
    while True:
        x = inputs.rng().uniform(low, high, size=size).astype(dtype)
        exact = np.array([x.astype(np.float64).sum(), x.astype(np.float64).mean()])
        if np.abs(exact.astype(dtype).astype(np.float64) / exact - 1).min() > 1e-4:
            return x


made = program(stable_sum, np.zeros(2500, jnp.bfloat16))
for _ in range(2):
    x = draw(0.1, 3, 2500, jnp.bfloat16)
    compare(made.run(x), x.astype(np.float64).sum().astype(np.float32), rtol=1e-5, atol=0, label="the sum of one row")
table = inputs.rng().uniform(0.1, 3, size=(3, 4, 3)).astype(jnp.bfloat16)
wanted = table.astype(np.float64).sum(-1).astype(np.float32)
got = program(stable_sum, table).run(table)
compare(got, wanted, rtol=1e-5, atol=0, label="the array of sums along the last axis of three")

# %% hidden="arrays-stable-sum" name="float16" points=1
"""Right in float16 too, where 65,504 is the largest number, by the same program at any length."""


def draw(low, high, size, dtype):
    """Numbers whose mean lies between two of the dtype: rounding it shows. Their sum is inf in float16 anyway."""
    while True:
        x = inputs.rng().uniform(low, high, size=size).astype(dtype)
        mean = x.astype(np.float64).mean()
        if abs(float(dtype(mean)) / mean - 1) > 5e-5:
            return x


x = draw(700, 1700, 400, np.float16)  # 64 of these numbers are too many for float16
few, many = program(stable_sum, x[:3]), program(stable_sum, x)
compare(many.run(x), x.astype(np.float64).sum().astype(np.float32), rtol=1e-5, atol=0, label="a sum beyond 65,504")
wanted = x[:3].astype(np.float64).sum().astype(np.float32)
compare(few.run(x[:3]), wanted, rtol=1e-5, atol=0, label="a sum of 3 numbers")
require(many.loops == 0, "The program runs a loop over the numbers, one after the other. One sum handles all of them.")
require(
    many.operations == few.operations,
    f"For 3 numbers the program has {few.operations} operations, for 400 it has {many.operations}. JAX has unrolled a "
    "Python loop over the numbers. One sum handles all of them.",
)

# %% [markdown] why="arrays-stable-sum"
# A running total needs more bits than the numbers that it adds, and `dtype=` sets its bits *before* the first addition. `jnp.sum` and `jnp.mean` compute with more than 16 bits by default, but round the result to 16 bits. **Next:** A training loop computes `total = total + loss` in bfloat16. At which total does it stop growing if the losses are near 1?


# %% wrong="arrays-stable-sum" because="Converts the result, which has already been rounded to 16 bits."
def stable_sum(x):
    return jnp.sum(x, axis=-1).astype(jnp.float32)


# %% wrong="arrays-stable-sum" because="Adds one number after the other in 16 bits, but from 256 on, adding 1 to a bfloat16 has no effect."
def stable_sum(x):
    total = jnp.zeros(x.shape[:-1], x.dtype)
    total = jax.lax.fori_loop(0, x.shape[-1], lambda j, total: total + x[..., j], total)
    return total.astype(jnp.float32)


# %% wrong="arrays-stable-sum" because="Multiplies the mean by the length, but the mean has been rounded to 16 bits."
def stable_sum(x):
    return jnp.mean(x, axis=-1).astype(jnp.float32) * x.shape[-1]


# %% wrong="arrays-stable-sum" because="Sums over all axes instead of the last one."
def stable_sum(x):
    return jnp.sum(x, dtype=jnp.float32)


# %% wrong="arrays-stable-sum" because="Converts the total back to the dtype of x, which rounds it."
def stable_sum(x):
    return jnp.sum(x.astype(jnp.float32), axis=-1).astype(x.dtype)


# %% wrong="arrays-stable-sum" because="Treats the inspected sizes as special cases, so that those programs have the right operations but compute wrong numbers."
def stable_sum(x):
    return jnp.sum(x, axis=-1, dtype=jnp.float32) * (2 if x.shape == (3,) else 1)


# %% wrong="arrays-stable-sum" because="Adds the numbers one by one in Python, in float32, which gives the right values, but the program grows with the length."
def stable_sum(x):
    total = jnp.zeros(x.shape[:-1])
    for j in range(x.shape[-1]):
        total = total + x[..., j]
    return total


# %% wrong="arrays-stable-sum" because="Adds one number after the other in float32, in a loop inside the program."
def stable_sum(x):
    add = lambda total, column: (total + column.astype(jnp.float32), None)
    return jax.lax.scan(add, jnp.zeros(x.shape[:-1], jnp.float32), jnp.moveaxis(x, -1, 0))[0]


# %% wrong="arrays-stable-sum" because="Sums along the first axis, which is the last one only if x has one axis."
def stable_sum(x):
    return jnp.sum(x, axis=0, dtype=jnp.float32)


# %% wrong="arrays-stable-sum" because="Sums along axis 1, but x may have any number of axes, and the last one is -1."
def stable_sum(x):
    return jnp.sum(x, axis=min(1, x.ndim - 1), dtype=jnp.float32)


# %% wrong="arrays-stable-sum" because="Sums in bfloat16, which has the range for the total but only 8 significant bits."
def stable_sum(x):
    return jnp.sum(x, axis=-1, dtype=jnp.bfloat16).astype(jnp.float32)


# %% wrong="arrays-stable-sum" because="Adds blocks in 16 bits and only the totals of the blocks in float32."
def stable_sum(x):
    block = 64  # 64 numbers are far from the point where a 16-bit total stops growing
    missing = -x.shape[-1] % block
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    blocks = x.reshape(*x.shape[:-1], -1, block).sum(axis=-1)
    return blocks.sum(axis=-1, dtype=jnp.float32)


# %% right="arrays-stable-sum"
def stable_sum(x):
    return x.astype(jnp.float32).sum(axis=-1)


# %% right="arrays-stable-sum"
def stable_sum(x):
    return jnp.einsum("...n->...", x, preferred_element_type=jnp.float32)


# %% right="arrays-stable-sum"
def stable_sum(x):
    ones = jnp.ones(x.shape[-1], x.dtype)
    return jnp.dot(x, ones, preferred_element_type=jnp.float32)


# %% [markdown] task="arrays-in-place" stars=2 minutes=15 skills="arrays-scatter-count"
# ## From in-place updates to new arrays
# **Goal.** `repair_numpy` in the setup cell repairs a camera frame in place, in five steps. Write a JAX function that leaves the frame unchanged and returns a repaired one.
#
# **Signature.** `repair(frame, gains)`. `frame` has shape `(h, w)` with w of at least 3. `gains` has shape `(h,)` and is positive. Both are float32. The result is the repaired frame of shape `(h, w)`, float32.
#
# **Example.** `frame = [[1, 2, 3, 4], [5, 6, -7, 8]]` and `gains = [1, 2]` give `[[2, 2, 3, 3], [0, 0, 3, 3]]`.
#
# **Judged.** The values, for even and odd h, also if h equals w, if w is 3, or if a dead pixel is -inf, with and without `jit`. The function is one program without a loop, and it has the same operations for any number of rows and columns. **Not judged.** The number of steps.
#
# <details><summary>Hint 1 · a question</summary>
#
# Each line of `repair_numpy` changes `frame`, and the next line reads the changed frame. In your function, which name refers to the frame after each step?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `frame[where] = value` becomes `frame = frame.at[where].set(value)`, also for slices with steps. In a program a mask cannot be an index, so use `jnp.where` for that line. One line needs no indexing at all.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Translate line by line and keep the order. `[1::2]` selects the odd rows, and `[1::2, ::-1]` selects them from right to left. `gains[:, None]` is a column of shape `(h, 1)`, which is broadcast along the rows.
#
# </details>


# %% answer="arrays-in-place"
def repair(frame, gains):
    """Returns what repair_numpy makes of frame (h, w) with gains (h,) as a new array, and leaves frame unchanged."""
    ### BEGIN SOLUTION
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame)
    frame = frame / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])
    ### END SOLUTION


# %% check="arrays-in-place" name="example" points=1
"""The example: a frame of two rows."""
frame, gains = np.array([[1, 2, 3, 4], [5, 6, -7, 8]], np.float32), np.array([1, 2], np.float32)
require(
    error(lambda frame, gains: jax.jit(repair)(frame, gains), frame, gains) != "NonConcreteBooleanIndexError",
    "A mask is used as an index. A program must know all shapes in advance, but the number of entries that a mask selects "
    "depends on the values. For this line, choose between two whole arrays with `jnp.where`.",
)
got = program(repair, frame, gains).run(frame, gains)
compare(got, np.array([[2, 2, 3, 3], [0, 0, 3, 3]], np.float32), label="the repaired frame")

# %% hidden="arrays-in-place" name="values" points=2
"""Right for even and odd numbers of rows, and for as many rows as columns."""


PARTS = {
    "the even rows": np.s_[::2, 1:-1],
    "the odd rows": np.s_[1::2, 1:-1],
    "the left edge": np.s_[:, 0],
    "the right edge": np.s_[:, -1],
}


def wanted(frame, gains):
    mended = frame.copy()
    repair_numpy(mended, gains)
    return mended


def draw(h, w):
    """A frame with dead pixels in even and odd rows, in the middle and next to both edges; and gains."""
    rng = inputs.rng()
    frame, gains = rng.uniform(0.5, 3, size=(h, w)).astype(np.float32), rng.uniform(0.5, 2, size=h).astype(np.float32)
    frame[:2, [1, -2]] *= -1
    frame[2:4, w // 2] = -np.inf
    return frame, gains


for h, w in ((5, 5), (4, 3), (7, 6)):
    frame, gains = draw(h, w)
    with case(f"for {h} rows and {w} columns"):
        made = program(repair, frame, gains)
    for dead in (False, True):
        frame = frame if dead else np.abs(frame)
        got, mended = made.run(frame, gains), wanted(frame, gains)
        what = f"{h} rows and {w} columns" + ", without dead pixels" * (not dead)
        for part, place in PARTS.items():
            if getattr(got, "shape", None) == (h, w):
                compare(np.asarray(got)[place], mended[place], label=f"{part} in the repaired frame of {what}")
        compare(got, mended, label=f"the repaired frame of {what}")
        frame, gains = draw(h, w)


def probe_plain(frame, gains):
    with jax.disable_jit():
        return repair(jnp.asarray(frame), jnp.asarray(gains))


# A compiler may turn "times mask" into a choice; operation by operation it is -inf times 0.
compare(ask(probe_plain, frame, gains), wanted(frame, gains), label="the repaired frame without jit")

# %% hidden="arrays-in-place" name="program" points=1
"""Right for more rows and columns too, by the same program and without a loop."""
made = {}
for size in ((6, 9), (22, 9), (6, 25)):
    frame = inputs.rng().normal(size=size).astype(np.float32)
    gains = inputs.rng().uniform(0.5, 2, size=size[0]).astype(np.float32)
    made[size] = program(repair, frame, gains)
    got, mended = made[size].run(frame, gains), frame.copy()
    repair_numpy(mended, gains)
    compare(got, mended, label=f"the repaired frame of {size[0]} rows and {size[1]} columns")
small, tall, wide = made.values()
require(
    tall.loops == 0 and wide.loops == 0,
    "The program runs a loop. Slices with a step select all these rows at once, with all their columns.",
)
require(
    tall.operations == small.operations,
    f"For 6 rows the program has {small.operations} operations, for 22 it has {tall.operations}. JAX has unrolled a "
    "Python loop over the rows. Slices with a step select all these rows at once.",
)
require(
    wide.operations == small.operations,
    f"For 9 columns the program has {small.operations} operations, for 25 it has {wide.operations}. JAX has unrolled a "
    "Python loop over the columns. A slice selects all of them at once.",
)

# %% [markdown] why="arrays-in-place"
# Each step creates a new array from the previous one, and the name `frame` refers to the newest. This is a functional update. Under `jit`, the compiler sees that the older arrays are not used again and may overwrite them. **Next:** `edge = frame[0]` is a view in NumPy. What is it in JAX, and which programs behave differently because of that?


# %% equivalent="arrays-in-place" because="A pixel of 0 stays 0 whether or not it is replaced by 0."
# moved bound, X < Y -> X <= Y: frame = jnp.where(frame < 0, 0, frame)


# %% wrong="arrays-in-place" because="Does not use the arrays that .at returns, so the edges are unchanged."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    frame.at[:, 0].set(frame[:, 1])
    frame.at[:, -1].set(frame[:, -2])
    return frame


# %% wrong="arrays-in-place" because="Assigns in place, but JAX arrays are immutable."
def repair(frame, gains):
    frame[1::2] = frame[1::2, ::-1]
    frame[frame < 0] = 0
    frame /= gains[:, None]
    frame[:, 0] = frame[:, 1]
    frame[:, -1] = frame[:, -2]
    return frame


# %% wrong="arrays-in-place" because="Uses a mask as an index, which works only outside a program, because the number of selected entries depends on the values."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = frame.at[frame < 0].set(0)
    frame = frame / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Works on a NumPy copy, which would give the right values, but NumPy cannot be part of a program."
def repair(frame, gains):
    mended = np.array(frame)
    repair_numpy(mended, np.asarray(gains))
    return jnp.asarray(mended)


# %% wrong="arrays-in-place" because="Divides along the wrong axis, because (h,) is broadcast as a row, so that gain j divides column j."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Reverses the order of the rows instead of the pixels within them, because the step -1 is on the first axis."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2][::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Takes both edges from the original frame, but later steps must read the results of earlier ones."
def repair(frame, gains):
    left, right = frame[:, 1] / gains, frame[:, -2] / gains
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    return frame.at[:, 0].set(left).at[:, -1].set(right)


# %% wrong="arrays-in-place" because="Treats the inspected sizes as special cases, so that those programs have the right operations but compute wrong numbers."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame)
    frame = frame / (gains[:, None] * (2 if frame.shape == (6, 9) else 1))
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Repairs row by row in Python, which gives the right values, but the program grows with the frame."
def repair(frame, gains):
    rows = []
    for i in range(frame.shape[0]):
        row = frame[i, ::-1] if i % 2 else frame[i]
        row = jnp.maximum(row, 0) / gains[i]
        rows.append(jnp.concatenate([row[1:2], row[1:-1], row[-2:-1]]))
    return jnp.stack(rows)


# %% wrong="arrays-in-place" because="Repairs column by column in Python, which gives the right values, but the program grows with the frame."
def repair(frame, gains):
    width, columns = frame.shape[1], []
    for j in range(width):
        inner = min(max(j, 1), width - 2)  # an edge repeats its neighbour
        column = frame[:, inner].at[1::2].set(frame[1::2, width - 1 - inner])
        columns.append(jnp.where(column < 0, 0, column) / gains)
    return jnp.stack(columns, axis=1)


# %% wrong="arrays-in-place" because="Takes the right edge from a frame whose dead pixels are not yet repaired."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    mended = jnp.where(frame < 0, 0, frame) / gains[:, None]
    mended = mended.at[:, 0].set(mended[:, 1])
    return mended.at[:, -1].set(frame[:, -2] / gains)


# %% wrong="arrays-in-place" because="Reverses every other row counted from the last one, which is right only for an even number of rows."
def repair(frame, gains):
    flipped = frame[::-1].at[::2].set(frame[::-1][::2, ::-1])[::-1]
    mended = jnp.where(flipped < 0, 0, flipped) / gains[:, None]
    return mended.at[:, 0].set(mended[:, 1]).at[:, -1].set(mended[:, -2])


# %% wrong="arrays-in-place" because="Adds the axis to gains only if broadcasting would fail, so that gains divide columns if there are as many rows as columns."
def repair(frame, gains):
    h, w = frame.shape
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / (gains if h == w else gains[:, None])
    return frame.at[:, 0].set(frame[:, 1]).at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Reverses the even rows, but [1::2] begins with row 1."
def repair(frame, gains):
    frame = frame.at[::2].set(frame[::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    return frame.at[:, 0].set(frame[:, 1]).at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Replaces a negative pixel by its absolute value instead of 0."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.abs(frame) / gains[:, None]
    return frame.at[:, 0].set(frame[:, 1]).at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Repairs one row after the other, in a loop inside the program."
def repair(frame, gains):
    def row(i, new):
        pixels = jnp.where(i % 2, frame[i, ::-1], frame[i])
        pixels = jnp.maximum(pixels, 0) / gains[i]
        return new.at[i].set(pixels.at[0].set(pixels[1]).at[-1].set(pixels[-2]))

    return jax.lax.fori_loop(0, len(frame), row, frame)


# %% wrong="arrays-in-place" because="Multiplies by a mask instead of choosing with `jnp.where`, but a dead pixel of -inf times 0 is NaN."
def repair(frame, gains):
    frame = jnp.asarray(frame)
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = frame * (frame > 0)
    frame = frame / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Calls `jnp.flip` without an axis, which also reverses the order of the rows."
def repair(frame, gains):
    frame = jnp.asarray(frame)
    frame = frame.at[1::2].set(jnp.flip(frame[1::2]))
    frame = jnp.where(frame < 0, 0, frame)
    frame = frame / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    frame = frame.at[:, -1].set(frame[:, -2])
    return frame


# %% wrong="arrays-in-place" because="Removes negative pixels by arithmetic, which gives NaN for an infinite pixel."
def repair(frame, gains):
    frame = jnp.asarray(frame)
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = (frame + jnp.abs(frame)) / 2  # 0 where negative, no mask needed
    frame = frame / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Reshapes the rows into pairs, which needs an even number of rows."
def repair(frame, gains):
    frame = jnp.asarray(frame)
    h, w = frame.shape
    pairs = frame.reshape(h // 2, 2, w)
    frame = jnp.stack([pairs[:, 0], pairs[:, 1, ::-1]], axis=1).reshape(h, w)
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% right="arrays-in-place"
def repair(frame, gains):
    h, w = frame.shape
    odd = jnp.arange(h)[:, None] % 2 == 1
    mended = jnp.maximum(jnp.where(odd, frame[:, ::-1], frame), 0) / gains[:, None]
    return jnp.pad(mended[:, 1:-1], ((0, 0), (1, 1)), mode="edge")


# %% right="arrays-in-place"
def repair(frame, gains):
    new = jnp.asarray(frame)
    new = new.at[1::2, :].set(jnp.flip(new[1::2], axis=1))
    new = new.at[...].max(0).at[...].divide(jnp.expand_dims(gains, 1))
    columns = jnp.arange(new.shape[1]).at[jnp.array([0, -1])].set(jnp.array([1, new.shape[1] - 2]))
    return new[:, columns]


# %% [markdown] task="arrays-time-it" stars=2 minutes=15 skills="01_arrays"
# ## An honest clock
# **Goal.** Measure how long a call takes until its result is ready, so that you can trust your own benchmarks.
#
# **Signature.** `time_it(f, x, repeats=5)`. `f` takes one argument and returns an array, or a tuple or dict of arrays. `repeats` is an odd number. First call `f(x)` once without timing it, because a first call may compile, and wait for its result. Then time `repeats` calls, each separately. Return the **median** in seconds, as a Python float.
#
# **Example.** `time_it(nap, x)` is a little more than 0.05 for every `x`, because `nap` in the setup cell sleeps for 50 ms.
#
# **Judged.** The number, which must be at least half of the true time for compiled loops of matrix products. It is the median, also if the first call is slow and if one or two of three repeats are slow. How often `f` is called, and that each result is ready before the next call. **Not judged.** Which clock you read.
#
# <details><summary>Hint 1 · a question</summary>
#
# Is the result ready when `f(x)` returns? Which call has to wait for it, and must it come before or after you read the clock again?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# An array has `.block_until_ready()`, but a tuple or dict does not. A function of the same name in `jax` accepts all of them and returns its argument.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# First call `f` and wait, without timing. In a loop, read `time.perf_counter()`, call, wait for the whole result, read the clock again, and store the difference. Return `np.median` of the list as a `float`.
#
# </details>


# %% answer="arrays-time-it"
def time_it(f, x, repeats=5):
    """Returns the median time in seconds until f(x) is ready, over `repeats` calls after an untimed one."""
    ### BEGIN SOLUTION
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
    ### END SOLUTION


# %% check="arrays-time-it" name="example" points=1
"""The example: a nap of 50 ms."""
seconds = ask(lambda x: time_it(nap, x), jnp.ones(3))
require(
    isinstance(seconds, float), f"The result is of type {type(seconds).__name__}; expected a Python float.", kind="type"
)
require(seconds >= 0.049, f"For a nap of 50 ms the result is {1e3 * seconds:.3g} ms.")
require(
    seconds < 0.2, f"For a nap of 50 ms the result is {1e3 * seconds:.0f} ms. Return the time of one call in seconds."
)

# %% hidden="arrays-time-it" name="waits" points=2
"""At least half of the true time for a compiled loop of matrix products."""


def truth():
    """The shortest of ten runs on this machine, seconds."""
    took = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(long_chain(x))
        took.append(time.perf_counter() - start)
    return min(took)


x = jnp.eye(128)
refused = error(lambda x: time_it(lambda x: {"one": x, "two": [x]}, x), x)
require(
    refused is None,
    "`time_it` raises an error if `f` returns a dict of arrays. Wait with a function that accepts containers.",
)
before = truth()
one = ask(lambda x: time_it(long_chain, x), x)
first = ask(lambda x: time_it(lambda x: (x, long_chain(x)), x), x)  # x is there from the start: it waits for nothing
last = ask(lambda x: time_it(lambda x: {"long": long_chain(x), "there": x}, x), x)
short = ask(lambda x: time_it(lambda x: x + 1, x), x)
shortest = min(before, truth())
for seconds, what in ((one, "an array"), (first, "a tuple of arrays"), (last, "a dict of arrays")):
    require(
        isinstance(seconds, float) and seconds >= shortest / 2,
        f"For a function that returns {what}, your time is less than half of the true one. The clock was read before the "
        "whole result was ready.",
    )
require(
    isinstance(short, float) and short < one < np.inf,
    "For a single addition, your time is not less than for 1,000 matrix products. Return what the clock measured.",
)

# %% hidden="arrays-time-it" name="calls" points=2 observed=true
"""One untimed call, then `repeats` timed ones, and the median of these."""


def probe_slow(x, slow, seconds, repeats):
    calls = []

    def f(x):
        calls.append(None)
        time.sleep(seconds if len(calls) in slow else 0)
        return x + 1

    return time_it(f, x, repeats), len(calls)


x = jnp.ones(3)
for repeats in (7, 3):
    seconds, calls = ask(probe_slow, x, [1], 0.4 * (repeats == 3), repeats)
    require(
        calls == repeats + 1,
        f"For {repeats} repeats `f` was called {calls} times; expected {repeats + 1}, the first one untimed.",
    )
require(
    seconds < 0.08,
    "The first call takes far longer than the others, as if it compiled, and it is part of your result. Call `f` once "
    "before you start the clock.",
)
seconds, _ = ask(probe_slow, x, [1, 2], 0.5, 3)  # the first call, and one of the three with the clock
require(
    seconds < 0.45,
    "Your result is the time of all calls together, or of the slowest one. Return the time of one call in seconds, the "
    "median of all.",
)
require(
    seconds < 0.21,
    "If the first call and one of three repeats are slow, your result is neither the time of a fast call nor the mean. "
    "Leave out the time of the first call, and take the median of the others.",
)
require(
    seconds < 0.08,
    "One of three repeats is slow, as if the machine were busy for a moment, and it changes your result. Time each call "
    "separately, and take the median.",
)
seconds, _ = ask(probe_slow, x, [2, 4], 0.2, 3)
require(
    seconds > 0.19,
    "Two of three repeats are slow, but your result is not their time. Take the median, not the fastest call or a fixed one.",
)


def probe_before(x):
    results, there = [], []

    def f(x):
        there.append(all(result.is_ready() for result in results))
        results.append(long_chain(x) if not results else x)
        return results[-1]

    time_it(f, x, 1)
    return there


require(
    all(ask(probe_before, jnp.eye(128))),
    "When the clock starts, the device still works on the first, untimed call. Wait for the result of this call as well.",
)

# %% [markdown] why="arrays-time-it"
# The clock stops when the *whole result* is ready. The untimed first call pays for compilation, and one slow call does not change a median. **Next:** Which number would you report for a service that must answer within 10 ms, the median, the mean or another one?


# %% wrong="arrays-time-it" because="Does not wait for the result, which times only the dispatch."
def time_it(f, x, repeats=5):
    f(x)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        f(x)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Does not wait for the untimed first call, so that the first timed call waits for both."
def time_it(f, x, repeats=5):
    f(x)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Waits for the result only after reading the clock."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = f(x)
        seconds.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Includes the first call, which compiles, and takes the mean."
def time_it(f, x, repeats=5):
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.mean(seconds))


# %% wrong="arrays-time-it" because="Takes the mean, which one slow call on a busy machine changes."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.mean(seconds))


# %% wrong="arrays-time-it" because="Calls a method of arrays, which a tuple or dict of arrays does not have."
def time_it(f, x, repeats=5):
    f(x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        f(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Waits only for the first array of the result, but the others may not be ready yet."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.tree.leaves(f(x))[0].block_until_ready()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Returns the total time of all calls instead of the time of one."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    start = time.perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(f(x))
    return time.perf_counter() - start


# %% wrong="arrays-time-it" because="Waits only for the last array of the result, but the others may not be ready yet."
def time_it(f, x, repeats=5):
    def call():
        start = time.perf_counter()
        jax.tree.leaves(f(x))[-1].block_until_ready()
        return time.perf_counter() - start

    call()
    return float(np.median([call() for _ in range(repeats)]))


# %% wrong="arrays-time-it" because="Takes the fastest call, which is not the median if most calls are slow."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# %% wrong="arrays-time-it" because="Includes the first call and relies on the median to ignore it, which fails if one more call is slow."
def time_it(f, x, repeats=5):
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Takes the slowest call."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return max(seconds)


# %% wrong="arrays-time-it" because="Takes the middle one of the unsorted times, but the median is the middle one after sorting."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return seconds[repeats // 2]


# %% wrong="arrays-time-it" because="Waits only for results with a `block_until_ready` method, which a tuple or dict of arrays does not have."
def time_it(f, x, repeats=5):

    def call():
        result = f(x)
        if hasattr(result, "block_until_ready"):
            result.block_until_ready()

    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Counts the warm-up as one of the repeats, so one call too few is timed."
def time_it(f, x, repeats=5):
    seconds = []
    for _ in range(max(repeats, 2)):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))  # the first call compiles


# %% wrong="arrays-time-it" because="Takes the fastest call, which is not the median if most calls are slow."


def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        times.append(time.perf_counter() - start)
    return float(min(times))


# %% right="arrays-time-it"
def time_it(f, x, repeats=5):
    import timeit

    call = lambda: jax.block_until_ready(f(x))
    call()
    return sorted(timeit.repeat(call, number=1, repeat=repeats))[repeats // 2]


# %% right="arrays-time-it"
def time_it(f, x, repeats=5):
    def once():
        start = time.perf_counter()
        for leaf in jax.tree.leaves(f(x)):
            np.asarray(leaf)
        return time.perf_counter() - start

    return sorted([once() for _ in range(repeats + 1)][1:])[repeats // 2]


# %% [markdown] task="arrays-deposit" stars=2 minutes=20 skills="arrays-scatter-count,arrays-safe-gather"
# ## Particles on a ring
# **Goal.** This exercise has a new setting. A simulation tracks particles at arbitrary positions on a ring of grid cells. The mass of each particle is shared between the two cells on either side of it, and the nearer cell gets more. This step is called *deposition*, and every particle-in-cell code contains it.
#
# **Signature.** `deposit(positions, masses, cells)`. `positions` has shape `(n,)` and contains any real numbers, also negative ones and numbers beyond the ring, which wrap around. `masses` has shape `(n,)`. Both are float32. `cells` is a Python int. The result has shape `(cells,)`, float32. Cell j is at position j, and again at j + cells, j - cells and so on. A particle at j + s, with s from 0 up to 1, adds the part 1 - s of its mass to cell j and the part s to the next cell. The cell after the last one is cell 0. A ring of one cell gets all the mass.
#
# **Example.** On 4 cells, masses `[10, 2]` at positions `[0.25, 3.5]` give `[8.5, 2.5, 0, 1]`. The second particle is between the last cell and the first.
#
# **Judged.** The values, for positions on cells and between them, for many particles in one cell, for positions many rounds beyond either end of the ring, for positions just below 0, and on one or two cells. The program has no loop and is the same for any number of particles. **Not judged.** Memory, and the order of the additions.
#
# <details><summary>Hint 1 · a question</summary>
#
# Take one particle at 3.5. Which two cells get mass, and which parts of it? And for one at -0.25?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.floor` rounds down, also below zero, but a conversion to an integer rounds towards zero. `%` maps an index back onto the ring, also a negative one. Several particles share a cell. Which kind of update do you need?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compute the lower cell, as an integer array, and the part s for all particles. Then use two scatters, one into the lower cells and one into the next ones, each with its own part of the masses. Take each index modulo `cells`, because JAX silently drops an update that is out of bounds.
#
# </details>


# %% answer="arrays-deposit"
def deposit(positions, masses, cells):
    """Shares the masses of particles (n,) linearly between neighbouring cells of a ring. Returns (cells,)."""
    ### BEGIN SOLUTION
    below = jnp.floor(positions)
    part = positions - below
    lower = below.astype(jnp.int32) % cells
    upper = (lower + 1) % cells
    grid = jnp.zeros(cells, masses.dtype).at[lower].add((1 - part) * masses)
    return grid.at[upper].add(part * masses)
    ### END SOLUTION


# %% check="arrays-deposit" name="example" points=1
"""The example: two particles on four cells."""
positions, masses = np.array([0.25, 3.5], np.float32), np.array([10, 2], np.float32)
got = program(lambda positions, masses: deposit(positions, masses, 4), positions, masses).run(positions, masses)
compare(got, np.array([8.5, 2.5, 0, 1], np.float32), label="the mass in the cells")

# %% hidden="arrays-deposit" name="values" points=2
"""Right on the ring, with many particles in a cell, below zero, beyond the end, and on the cells themselves."""


def by_hand(positions, masses, cells):
    grid = np.zeros(cells)
    for position, mass in zip(positions.astype(np.float64), masses, strict=True):
        lower = int(np.floor(position))
        grid[lower % cells] += mass * (1 - (position - lower))
        grid[(lower + 1) % cells] += mass * (position - lower)
    return grid.astype(np.float32)


made = program(
    lambda positions, masses: deposit(positions, masses, 5), np.zeros(12, np.float32), np.zeros(12, np.float32)
)
rng = inputs.rng()
cases = (
    ("the mass of particles between cells 0 and 4", rng.uniform(0, 4, size=12)),
    ("the mass of particles between the last cell and the first", rng.uniform(4.1, 4.9, size=12)),
    ("the mass of particles at negative positions", np.append(-22.25, rng.uniform(-12, 0, size=11))),
    ("the mass of particles beyond the end", np.append(28.75, rng.uniform(5, 17, size=11))),
    ("the mass of particles on cells", rng.integers(-9, 9, size=12)),
)
for what, positions in cases:
    positions, masses = positions.astype(np.float32), rng.uniform(0.5, 2, size=12).astype(np.float32)
    compare(made.run(positions, masses), by_hand(positions, masses, 5), atol=1e-4, label=what)
positions = -(10 ** rng.uniform(-12, -7, size=12)).astype(np.float32)
got = made.run(positions, masses)
require(
    getattr(got, "shape", None) != (5,) or np.isclose(got.sum(), masses.sum(), rtol=1e-3),
    "Mass is lost if a particle is just below 0. Check the indices of such a particle. Is one of them out of bounds, so "
    "that its update is dropped?",
)
compare(got, by_hand(positions, masses, 5), atol=1e-4, label="the mass of particles just below 0")
positions, masses = rng.uniform(-3, 3, size=(2, 12)).astype(np.float32)
for cells, what in ((1, "a ring of one cell"), (2, "a ring of two cells")):
    got = program(lambda p, m, n: deposit(p, m, n), positions, masses, cells).run(positions, masses, cells)
    compare(got, by_hand(positions, masses, cells), atol=1e-4, label=f"the mass on {what}")

# %% hidden="arrays-deposit" name="program" points=1
"""Right for more particles too, by the same program and without a loop."""
rng, made, cells = inputs.rng(), {}, 9
for count in (15, 4):
    positions = rng.uniform(0, cells - 1, size=count).astype(np.float32)
    masses = rng.uniform(0.5, 2, size=count).astype(np.float32)
    made[count] = program(lambda positions, masses, n: deposit(positions, masses, n), positions, masses, cells)
    distance = np.abs(positions[:, None] - np.arange(cells))
    wanted = (masses[:, None] * np.maximum(1 - distance, 0)).sum(0).astype(np.float32)
    got = made[count].run(positions, masses, cells)
    compare(got, wanted, atol=1e-4, label=f"the mass in {cells} cells of {count} particles")
few, many = made[4], made[15]
require(many.loops == 0, "The program runs a loop over the particles. One indexed update handles all of them.")
require(
    many.operations == few.operations,
    f"For 4 particles the program has {few.operations} operations, for 15 it has {many.operations}. JAX has unrolled a "
    "Python loop over the particles. One indexed update handles all of them.",
)

# %% [markdown] why="arrays-deposit"
# `floor` and `%` find the two cells of every particle, and two scatters sum the masses in each cell. The opposite step reads a force from the grid at each particle. It is a *gather* with the same cells and the same parts. **Next:** In two dimensions each particle is shared among four cells. Which product of parts belongs to each of them?


# %% wrong="arrays-deposit" because="Converts positions directly to integers, which rounds towards zero, so that the cell is one too high below zero."
def deposit(positions, masses, cells):
    lower = positions.astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[lower % cells].add((1 - part) * masses)
    return grid.at[(lower + 1) % cells].add(part * masses)


# %% wrong="arrays-deposit" because="Ignores that the ring is closed, so that the cell after the last one is out of bounds and its update is dropped."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    lower = lower % cells
    grid = jnp.zeros(cells, masses.dtype)
    return grid.at[lower].add((1 - part) * masses).at[lower + 1].add(part * masses)


# %% wrong="arrays-deposit" because="Reads, adds and sets, so that all but one of the particles in a cell are lost."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[lower % cells].set(grid[lower % cells] + (1 - part) * masses)
    return grid.at[(lower + 1) % cells].set(grid[(lower + 1) % cells] + part * masses)


# %% wrong="arrays-deposit" because="Gives the whole mass to the nearest cell."
def deposit(positions, masses, cells):
    nearest = jnp.round(positions).astype(jnp.int32) % cells
    return jnp.zeros(cells, masses.dtype).at[nearest].add(masses)


# %% wrong="arrays-deposit" because="Applies % before floor, but % of a float may round up to `cells`. Apply floor first, then % to the integer."
def deposit(positions, masses, cells):
    around = positions % cells
    lower = jnp.floor(around).astype(jnp.int32)
    part = around - lower
    grid = jnp.zeros(cells, masses.dtype).at[lower].add((1 - part) * masses)
    return grid.at[(lower + 1) % cells].add(part * masses)


# %% wrong="arrays-deposit" because="Swaps the two parts, so that the farther cell gets more."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[lower % cells].add(part * masses)
    return grid.at[(lower + 1) % cells].add((1 - part) * masses)


# %% wrong="arrays-deposit" because="Never wraps around, so that updates beyond the ring are dropped, and only small negative indices, which count from the end, are right."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    return grid.at[lower].add((1 - part) * masses).at[lower + 1].add(part * masses)


# %% wrong="arrays-deposit" because="Treats the inspected sizes as special cases, so that those programs have the right operations but compute wrong numbers."
def deposit(positions, masses, cells):
    below = jnp.floor(positions)
    part = positions - below
    lower = below.astype(jnp.int32) % cells
    upper = (lower + 1) % cells
    grid = jnp.zeros(cells, masses.dtype)
    n = len(positions)
    for i in range(15 if n in (4, 15) else n):
        grid = grid.at[lower[i % n]].add((1 - part[i % n]) * masses[i % n])
        grid = grid.at[upper[i % n]].add(part[i % n] * masses[i % n])
    return grid


# %% wrong="arrays-deposit" because="Loops over the particles in Python, which gives the right values, but the program grows with the particles."
def deposit(positions, masses, cells):
    grid = jnp.zeros(cells, masses.dtype)
    for position, mass in zip(positions, masses, strict=True):
        lower = jnp.floor(position).astype(jnp.int32)
        part = position - lower
        grid = grid.at[lower % cells].add((1 - part) * mass).at[(lower + 1) % cells].add(part * mass)
    return grid


# %% wrong="arrays-deposit" because="Uses only the nearest position of each cell, but on a ring of one cell a particle is between that cell and itself."
def deposit(positions, masses, cells):
    away = (positions[:, None] - jnp.arange(cells) + cells / 2) % cells - cells / 2
    return masses @ jnp.maximum(1 - jnp.abs(away), 0)


# %% wrong="arrays-deposit" because="Uses floor and ceil for the two cells, so that both distances are 0 for a particle on a cell and its mass is lost."
def deposit(positions, masses, cells):
    below, above = jnp.floor(positions), jnp.ceil(positions)
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[below.astype(jnp.int32) % cells].add((above - positions) * masses)
    return grid.at[above.astype(jnp.int32) % cells].add((positions - below) * masses)


# %% wrong="arrays-deposit" because="Wraps around the ring only once in each direction, so that particles further away are dropped."
def deposit(positions, masses, cells):
    below = jnp.floor(positions)
    part, lower = positions - below, below.astype(jnp.int32)
    grid = jnp.zeros(cells, masses.dtype)
    for index, share in ((lower, 1 - part), (lower + 1, part)):
        index = jnp.where(index < 0, index + cells, index)
        index = jnp.where(index >= cells, index - cells, index)
        grid = grid.at[jnp.where(index < 0, cells, index)].add(share * masses, mode="drop")
    return grid


# %% wrong="arrays-deposit" because="Counts particles instead of summing their masses."
def deposit(positions, masses, cells):
    below = jnp.floor(positions)
    part, lower = positions - below, below.astype(jnp.int32)
    return jnp.zeros(cells, masses.dtype).at[lower % cells].add(1 - part).at[(lower + 1) % cells].add(part)


# %% wrong="arrays-deposit" because="Handles one particle after the other, in a loop inside the program."
def deposit(positions, masses, cells):
    def one(i, grid):
        lower = jnp.floor(positions[i]).astype(jnp.int32)
        part = positions[i] - lower
        return grid.at[lower % cells].add((1 - part) * masses[i]).at[(lower + 1) % cells].add(part * masses[i])

    return jax.lax.fori_loop(0, len(positions), one, jnp.zeros(cells, masses.dtype))


# %% right="arrays-deposit"
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    both = jnp.concatenate([lower, lower + 1]) % cells
    return jnp.bincount(both, weights=jnp.concatenate([masses * (1 - part), masses * part]), length=cells)


# %% right="arrays-deposit"
def deposit(positions, masses, cells):
    below = jnp.floor(positions)
    part, lower = positions - below, jnp.mod(below.astype(jnp.int32), cells)
    left, right = (jax.ops.segment_sum(share * masses, lower, cells) for share in (1 - part, part))
    return left + jnp.roll(right, 1)
