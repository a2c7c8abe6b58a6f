# %% [markdown]
# # 01 · Exercises: arrays
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# Most checks turn your function into **one program** first (lesson 02 shows how) and then run that on many inputs. So write with `jnp`: NumPy cannot be part of a program. "The same program at any size" means that more numbers give larger arrays, not more operations; a Python loop is written out once for each number, so its program grows.

# %% setup
from grader.checks import ask, compare, error, inputs, program, require
import time

import jax
import jax.numpy as jnp
import numpy as np

# Accelerators round the factors of a product to fewer bits unless told otherwise; here every product keeps all of them.
jax.config.update("jax_default_matmul_precision", "highest")


def repair_numpy(frame, gains):
    """Mends one frame of a camera in place: frame (h, w), gains (h,), both float32 NumPy arrays. Returns nothing."""
    frame[1::2] = frame[1::2, ::-1]  # every other row is read out from right to left
    frame[frame < 0] = 0  # dead pixels
    frame /= gains[:, None]  # each row has an amplifier of its own
    frame[:, 0] = frame[:, 1]  # the sensor's edge is in the shade: take the neighbour
    frame[:, -1] = frame[:, -2]


@jax.jit
def long_chain(x):
    """Many products with the same matrix, one after the other: (d, d) -> (d, d)"""
    return jax.lax.fori_loop(0, 1000, lambda _, y: y @ x, x)


def nap(x):
    """Takes 50 milliseconds, nearly all of them asleep."""
    time.sleep(0.05)
    return jnp.asarray(x)


# %% [markdown] task="arrays-scatter-count" stars=1 minutes=6 skills="01_arrays"
# ## Count into bins
# **Goal.** Count how often each number comes up. One line is missing.
#
# **Signature.** `scatter_count(idx, n)`: `idx` is `(k,)`, integers from 0 to n - 1, some of them several times; `n` is a Python int. Returns `(n,)` of int32: entry j says how often j stands in `idx`.
#
# **Example.** `scatter_count([1, 1, 3], 5)` with the list as an array is `[0, 2, 0, 1, 0]`.
#
# **Judged.** Values, also counts of thousands; that the program has no loop, and is the same program for any number of indices. **Not judged.** Speed, memory, and promises such as `unique_indices`.
#
# <details><summary>Hint 1 · a question</summary>
#
# In NumPy, `counts[idx] += 1` adds only once where an index stands twice. Why? What would have to happen instead?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `counts` cannot be changed, but `counts.at[...]` offers methods that give back a changed copy. One of them treats every index, repeated or not.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `.set` keeps one value for each place, `.add` adds up all that come. And the result has to be returned: `counts` itself stays as it is.
#
# </details>


# %% answer="arrays-scatter-count"
def scatter_count(idx, n):
    """How often each of 0, ..., n - 1 stands in idx (k,). Returns (n,) int32."""
    counts = jnp.zeros(n, jnp.int32)
    ### BEGIN SOLUTION
    return counts.at[idx].add(1)
    ### END SOLUTION


# %% check="arrays-scatter-count" name="example" points=1
"""The example: 1 comes twice, 3 comes once."""
idx = np.array([1, 1, 3], np.int32)
compare(
    program(lambda idx: scatter_count(idx, 5), idx).run(idx), np.array([0, 2, 0, 1, 0], np.int32), label="the count"
)

# %% hidden="arrays-scatter-count" name="values" points=1
"""Right for any indices, with many repetitions and with none."""
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
    many.loops == 0, "The program runs a loop over the indices, one after the other. One indexed update takes them all."
)
require(
    many.operations == few.operations,
    f"For 3 indices the program has {few.operations} operations, for 12 it has {many.operations}: a Python loop was written "
    "out index by index. One indexed update takes them all.",
)
# Odd counts beyond 2,048 have no place in 16-bit floats. Last, since a Python loop would take long over so many.
idx = inputs.rng().permutation(np.repeat(np.arange(4), [2601, 399, 0, 1])).astype(np.int32)
got = program(lambda idx: scatter_count(idx, 4), idx).run(idx)
compare(got, np.array([2601, 399, 0, 1], np.int32), label="the count of 3,001 indices, most of them equal,")

# %% [markdown] why="arrays-scatter-count"
# `.at[idx].add` is one operation, a *scatter*: every index brings its 1, and what meets in one place is added up. **Next:** `.at[]` also has `max`, `min` and `multiply`. How would you find, for each shop, the largest of its sales?


# %% wrong="arrays-scatter-count" because="Reads, adds one, writes: all repetitions read the same old count, as in NumPy's counts[idx] += 1."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    return counts.at[idx].set(counts[idx] + 1)


# %% wrong="arrays-scatter-count" because="Does not keep the copy that .at gives back: counts itself never changes."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    counts.at[idx].add(1)
    return counts


# %% wrong="arrays-scatter-count" because="Loops over the indices in Python: right, but the program grows with them."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    for i in idx:
        counts = counts.at[i].add(1)
    return counts


# %% wrong="arrays-scatter-count" because="Assigns in place, as in NumPy: JAX arrays cannot be changed."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    counts[idx] += 1
    return counts


# %% wrong="arrays-scatter-count" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    for i in range(12 if n == 4 else len(idx)):
        counts = counts.at[idx[i % len(idx)]].add(1)
    return counts


# %% wrong="arrays-scatter-count" because="Adds the number instead of 1: that is a sum over the bins, not a count."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    return counts.at[idx].add(idx)


# %% wrong="arrays-scatter-count" because="Counts in 16-bit floats: bfloat16 has no numbers between 256 and 258."
def scatter_count(idx, n):
    rows = jax.nn.one_hot(idx, n, dtype=jnp.bfloat16)
    return rows.sum(axis=0).astype(jnp.int32)


# %% wrong="arrays-scatter-count" because="Sets each place to the length of a run of equal indices: where they are not sorted, one run of each number counts."
def scatter_count(idx, n):
    begins = jnp.ones(idx.shape, bool).at[1:].set(idx[1:] != idx[:-1])
    run = jnp.cumsum(begins) - 1
    length = jnp.zeros(idx.shape, jnp.int32).at[run].add(1)
    return jnp.zeros(n, jnp.int32).at[idx].set(length[run])


# %% wrong="arrays-scatter-count" because="Counts in 8 bits: a count beyond 127 wraps around."
def scatter_count(idx, n):
    return jnp.zeros(n, jnp.int8).at[idx].add(1).astype(jnp.int32)


# %% wrong="arrays-scatter-count" because="Goes through the indices in a loop of the program, one update after the other."
def scatter_count(idx, n):
    counts = jnp.zeros(n, jnp.int32)
    return jax.lax.fori_loop(0, len(idx), lambda j, counts: counts.at[idx[j]].add(1), counts)


# %% right="arrays-scatter-count"
def scatter_count(idx, n):
    return jnp.bincount(idx, length=n)


# %% right="arrays-scatter-count"
def scatter_count(idx, n):
    return (idx[:, None] == jnp.arange(n)).sum(axis=0)


# %% [markdown] task="arrays-safe-gather" stars=1 minutes=8 skills="01_arrays"
# ## Neighbours that are not there
# **Goal.** A graph's table of neighbours is padded: where a node has fewer neighbours than columns, -1 stands, and a damaged file holds numbers beyond the last node too. Look the values up; what is not there gets a filling.
#
# **Signature.** `safe_gather(x, i, fill)`: `x` is `(n,)` of any dtype; `i` is int32, of any shape; `fill` is a Python number that the dtype of `x` can hold. Returns an array of the shape of `i` and the **dtype of `x`**: `x[i]` where i is one of 0, ..., n - 1, and `fill` everywhere else. Negative numbers do *not* count from the end here.
#
# **Example.** `x = [10, 20, 30]`, `i = [2, -1, 0, 3]` and `fill = 7` give `[30, 7, 10, 7]`.
#
# **Judged.** Values and dtypes, for float32, bfloat16 and integers, also for a single index `()` and where `x` holds inf or NaN, compiled and operation by operation; no loop, the same program for any number of indices. **Not judged.** Which of several ways you take.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does JAX give for `x[3]` when the last index is 2? And for `x[-1]`? Is there an error that you could catch?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Indexing never fails, so look up first, whatever comes, and then choose: which comparisons tell that i is one of 0, ..., n - 1?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jnp.where(condition, a, b)` chooses entry by entry. Two comparisons of arrays are joined with `&`, each in parentheses. Leave `fill` a Python number: then the dtype of `x` wins.
#
# </details>


# %% answer="arrays-safe-gather"
def safe_gather(x, i, fill):
    """x[i] of x (n,) where i is one of 0, ..., n - 1, else fill. Returns the shape of i, the dtype of x."""
    ### BEGIN SOLUTION
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], fill)
    ### END SOLUTION


# %% check="arrays-safe-gather" name="example" points=1
"""The example: -1 and 3 are not there."""
x, i = np.array([10, 20, 30], np.float32), np.array([2, -1, 0, 3], np.int32)
got = program(lambda x, i: safe_gather(x, i, 7), x, i).run(x, i)
compare(got, np.array([30, 7, 10, 7], np.float32), label="the result for [2, -1, 0, 3]")

# %% hidden="arrays-safe-gather" name="values" points=1
"""Right inside, at both ends, far beyond them, and for negative indices."""


def probe_plain(x, i):
    with jax.disable_jit():
        return safe_gather(jnp.asarray(x), jnp.asarray(i), -3.5)


rng = inputs.rng()
x = rng.normal(size=6).astype(np.float32)
x[[0, 2, 5]] = np.inf, 0, np.nan  # the ends are what an index out of bounds gives
made = program(lambda x, i: safe_gather(x, i, -3.5), x, np.zeros(4, np.int32))
filled = np.full(4, -3.5, np.float32)
i = rng.permutation([1, 2, 3, 4]).astype(np.int32)
compare(made.run(x, i), x[i], label="the result for indices that are there")
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
compare(ask(probe_plain, x, i), wanted, label="the result where the ends of x are inf and NaN, operation by operation")

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
require(many.loops == 0, "The program runs a loop over the indices, one after the other. Look them all up at once.")
require(
    many.operations == few.operations,
    f"For 2 indices the program has {few.operations} operations, for 11 it has {many.operations}: a Python loop was written "
    "out index by index. Look them all up at once.",
)

# %% [markdown] why="arrays-safe-gather"
# A program has no way to stop in its middle, so an index out of bounds is moved to the nearest end instead of raising: you choose what it means. `x.at[i].get(mode="fill", fill_value=fill)` chooses in one step, but counts -1 from the end unless it is told `wrap_negative_indices=False`. **Next:** what should an *update* at an index that is not there do, and what does it do in JAX?


# %% wrong="arrays-safe-gather" because="Waits for an IndexError: out of bounds JAX gives the nearest entry and says nothing."
def safe_gather(x, i, fill):
    try:
        return x[i]
    except IndexError:
        return jnp.full(i.shape, fill, x.dtype)


# %% wrong="arrays-safe-gather" because="Looks at the upper end only: -1 counts from the end, as in NumPy."
def safe_gather(x, i, fill):
    return jnp.where(i < x.shape[0], x[i], fill)


# %% wrong="arrays-safe-gather" because="Trusts mode='fill': it fills beyond both ends, but -1 is the last entry for it."
def safe_gather(x, i, fill):
    return jnp.take(x, i, mode="fill", fill_value=fill)


# %% wrong="arrays-safe-gather" because="Makes an array of float32 out of fill: it promotes bfloat16 and integers. A Python number would not."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], jnp.full(i.shape, fill, jnp.float32))


# %% wrong="arrays-safe-gather" because="Makes a float out of fill: a weak float leaves bfloat16 alone, but still turns integers into float32."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], jnp.full(i.shape, float(fill)))


# %% wrong="arrays-safe-gather" because="Counts one index too many: the last one is n - 1."
def safe_gather(x, i, fill):
    return jnp.where((i >= 0) & (i <= x.shape[0]), x[i], fill)


# %% wrong="arrays-safe-gather" because="Clips the indices: what is not there becomes the first or the last entry."
def safe_gather(x, i, fill):
    return x[jnp.clip(i, 0, x.shape[0] - 1)]


# %% wrong="arrays-safe-gather" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
def safe_gather(x, i, fill):
    i = i + (1 if i.shape == (2,) else 0)
    inside = (i >= 0) & (i < x.shape[0])
    return jnp.where(inside, x[i], fill)


# %% wrong="arrays-safe-gather" because="Chooses in Python, index by index: right, but the program grows with them."
def safe_gather(x, i, fill):
    n = x.shape[0]
    flat = [jnp.where((j >= 0) & (j < n), x[j], fill) for j in i.reshape(-1)]
    return jnp.stack(flat).reshape(i.shape)


# %% wrong="arrays-safe-gather" because="Takes -1 alone for a missing neighbour: -2 and below still count from the end."
def safe_gather(x, i, fill):
    return jnp.where((i == -1) | (i >= x.shape[0]), fill, x[i])


# %% wrong="arrays-safe-gather" because="Marks the missing by the value 0 found there: entries of x that are 0 are filled too."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    found = x[jnp.where(inside, i, 0)] * inside.astype(x.dtype)
    return jnp.where(found == 0, jnp.array(fill, x.dtype), found)


# %% wrong="arrays-safe-gather" because="Looks at the lower end only: an index beyond the last one gives the last entry."
def safe_gather(x, i, fill):
    return jnp.where(i >= 0, x[i], fill)


# %% wrong="arrays-safe-gather" because="Leaves out index 0: the first entry is there."
def safe_gather(x, i, fill):
    return jnp.where((i > 0) & (i < x.shape[0]), x[i], fill)


# %% wrong="arrays-safe-gather" because="Chooses by multiplying with masks: inf or NaN times 0 is NaN."
def safe_gather(x, i, fill):
    inside = (i >= 0) & (i < x.shape[0])
    found = x[jnp.clip(i, 0, x.shape[0] - 1)]
    return (inside * found + (~inside) * fill).astype(x.dtype)


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
# **Goal.** Say the dtype of `jnp.add(left, right)` from a description of the two: a table of promotion of your own.
#
# **Signature.** `predict_dtypes(left, right)`: two strings. Each is
#
# - a dtype, of a JAX array: `"bool"`, `"uint8"`, `"int8"`, `"int16"`, `"int32"`, `"float16"`, `"bfloat16"`, `"float32"`;
# - `"numpy int64"` or `"numpy float64"`: an array or number of NumPy's;
# - `"python bool"`, `"python int"` or `"python float"`: a plain number, small enough for every dtype. At most one of the two is one of these.
#
# Returns the name of the dtype of the sum, such as `"int32"`, with 64-bit types off, as JAX has them.
#
# **Example.** `predict_dtypes("int8", "int16")` is `"int16"`, `predict_dtypes("float32", "python float")` is `"float32"`.
#
# **Judged.** The answers for pairs of all of these, in either order. **Not judged.** Whether you write rules down or make two operands that fit the description and ask JAX. Predict a few first, in either case.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of the descriptions have a dtype to insist on, and which only say "some whole number", "some number with a fraction"?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A Python number is *weak*: it changes the dtype only where its kind (bool, whole, with a fraction) is higher than the array's. A number of NumPy's is not weak, and comes in with 32 bits.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# To ask JAX, turn each description into an operand: `np.ones((), name)` for arrays (after taking `"numpy "` off), and for the three Python ones a plain `True`, `1` or `1.0`, *not* in an array. Let `jnp.add` add them: with `+`, two NumPy operands would be added by NumPy.
#
# </details>


# %% answer="arrays-predict-dtypes"
def predict_dtypes(left, right):
    """The name of the dtype of jnp.add(left, right), each described by a string."""
    ### BEGIN SOLUTION
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        return weak[said] if said in weak else np.ones((), said.removeprefix("numpy "))

    return jnp.add(operand(left), operand(right)).dtype.name
    ### END SOLUTION


# %% check="arrays-predict-dtypes" name="example" points=1
"""The examples, and that the answer is a name."""
compare(ask(predict_dtypes, "int8", "int16"), "int16", label='the answer for "int8" and "int16"')
compare(ask(predict_dtypes, "float32", "python float"), "float32", label='the answer for "float32" and "python float"')

# %% hidden="arrays-predict-dtypes" name="python" points=1
"""Right for a Python number on either side."""
NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
NAMES += ("float16", "bfloat16", "float32", "float64")
WEAK = {"python bool": True, "python int": 1, "python float": 1.0}
ARRAYS = {
    "an array of bool": ("bool",),
    "an array of small whole numbers": ("uint8", "int8", "int16"),
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
        f"Where {what}, you say 64 bits, which JAX has off: those are NumPy's rules, and not JAX's.",
    )
    require(answer == wanted, f"Not right where {what}.")

# %% hidden="arrays-predict-dtypes" name="arrays" points=1
"""Right for two arrays, JAX's and NumPy's."""
NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
NAMES += ("float16", "bfloat16", "float32", "float64")
GROUPS = {
    "two arrays of one dtype meet": [("int8", "int8"), ("bfloat16", "bfloat16"), ("bool", "bool")],
    "bool meets another dtype": [("bool", "uint8"), ("bfloat16", "bool"), ("bool", "int32")],
    "two signed whole numbers meet": [("int8", "int16"), ("int32", "int8"), ("int16", "int32")],
    "uint8 meets int8": [("uint8", "int8"), ("int8", "uint8")],
    "uint8 meets a wider signed dtype": [("uint8", "int16"), ("int32", "uint8")],
    "a whole number meets a 16-bit float": [("int32", "float16"), ("bfloat16", "int32"), ("int16", "bfloat16")],
    "a whole number meets float32": [("int32", "float32"), ("float32", "uint8")],
    "float16 meets bfloat16": [("float16", "bfloat16"), ("bfloat16", "float16")],
    "a 16-bit float meets float32": [("float16", "float32"), ("float32", "bfloat16")],
    "NumPy's float64 meets a 16-bit float": [("bfloat16", "numpy float64"), ("numpy float64", "float16")],
    "NumPy's float64 meets a whole number": [("numpy float64", "int8"), ("int32", "numpy float64")],
    "NumPy's int64 meets a whole number": [("numpy int64", "int8"), ("uint8", "numpy int64")],
    "NumPy's int64 meets a float": [("numpy int64", "bfloat16"), ("float32", "numpy int64")],
    "two of NumPy's meet": [("numpy float64", "numpy int64"), ("numpy int64", "numpy int64")],
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
        f"Where {what}, you say 64 bits, which JAX has off: take each operand first as JAX takes it.",
    )
    require(answer == wanted, f"Not right where {what}.")

# %% [markdown] why="arrays-predict-dtypes"
# JAX promotes for accelerators: an array's dtype gives way to a wider float, never to more bits than both operands ask for, and a Python number asks for none. Two float formats of 16 bits share no narrower home than float32. **Next:** how would you make a whole program refuse every silent promotion? (`jax.numpy_dtype_promotion`.)


# %% wrong="arrays-predict-dtypes" because="Takes a Python number for an array of its default dtype: then it is not weak, and bfloat16 times 2.0 would be float32."
def predict_dtypes(left, right):
    defaults = {"python bool": "bool", "python int": "int32", "python float": "float32"}

    def operand(said):
        return np.ones((), defaults.get(said, said).removeprefix("numpy "))

    return jnp.add(operand(left), operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Asks NumPy, which promotes int32 and float16 to float64 and knows its own rules only."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        return weak[said] if said in weak else np.ones((), said.removeprefix("numpy "))

    return np.result_type(operand(left), operand(right)).name


# %% wrong="arrays-predict-dtypes" because="Takes NumPy's numbers for Python numbers: they have a dtype and are not weak."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0, "numpy int64": 1, "numpy float64": 1.0}

    def operand(said):
        return weak[said] if said in weak else jnp.ones((), said)

    return jnp.add(operand(left), operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Lets the array's dtype win always: a Python float still makes whole numbers float32."
def predict_dtypes(left, right):
    left, right = (name.replace("numpy int64", "int32").replace("numpy float64", "float32") for name in (left, right))
    if left.startswith("python"):
        return right
    return left if right.startswith("python") else jnp.promote_types(left, right).name


# %% wrong="arrays-predict-dtypes" because="Adds two of NumPy's with +, so NumPy adds them, in 64 bits."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}

    def operand(said):
        if said.startswith("numpy"):
            return np.ones((), said.removeprefix("numpy "))
        return weak[said] if said in weak else jnp.ones((), said)

    return (operand(left) + operand(right)).dtype.name


# %% wrong="arrays-predict-dtypes" because="Puts all dtypes in one row and takes the one further right: uint8 and int8, or float16 and bfloat16, need a third."
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


# %% wrong="arrays-predict-dtypes" because="Looks for the Python number on the right only."
def predict_dtypes(left, right):
    weak = {"python bool": True, "python int": 1, "python float": 1.0}
    first = np.ones((), left.removeprefix("numpy ").replace("python ", ""))
    second = weak[right] if right in weak else np.ones((), right.removeprefix("numpy "))
    return jnp.add(first, second).dtype.name


# %% wrong="arrays-predict-dtypes" because="Adds NumPy operands with +, by the rules of NumPy, and converts the sum to the 32 bits of JAX afterwards."
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


# %% wrong="arrays-predict-dtypes" because="Takes one promotion order for all dtypes: bfloat16 with float16 is float32, not float16."
def predict_dtypes(left, right):
    same = {"numpy int64": "int32", "numpy float64": "float32", "python bool": "bool"}
    left, right = same.get(left, left), same.get(right, right)
    if {left, right} == {"int8", "uint8"}:
        return "int16"
    line = ["bool", "python int", "uint8", "int8", "int16", "int32", "python float", "bfloat16", "float16", "float32"]
    winner = max(left, right, key=line.index)
    return {"python int": "int32", "python float": "float32"}.get(winner, winner)


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
# **Goal.** Losses come in 16 bits, thousands of them. Add them up so that the total is right.
#
# **Signature.** `stable_sum(x)`: `x` is `(..., n)`, one or more axes, of bfloat16 or float16. Returns `(...)` of float32: the sums along the last axis.
#
# **Example.** 3,001 times the number 1 in bfloat16 gives 3001, in float32. (The bfloat16 nearest to that is 3008.)
#
# **Judged.** Values, within a relative error of 1e-5, also where the total is larger than any float16; the dtype; no loop, the same program at any length. **Not judged.** Memory, and how many bits you take on the way.
#
# <details><summary>Hint 1 · a question</summary>
#
# bfloat16 keeps 8 bits of a number. What is 256 + 1 in bfloat16? At which moment does `jnp.sum(x)` turn its result into bfloat16?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# What was rounded away cannot be brought back, so turning the *result* into float32 is too late. What can be turned into float32 earlier?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Either convert the whole input with `.astype`, or tell `jnp.sum` by its argument `dtype` in what to add up and what to return. The last axis is `-1`.
#
# </details>


# %% answer="arrays-stable-sum"
def stable_sum(x):
    """Sums along the last axis of x (..., n), of 16 bits. Returns (...) float32, right to a relative error of 1e-5."""
    ### BEGIN SOLUTION
    return jnp.sum(x, axis=-1, dtype=jnp.float32)
    ### END SOLUTION


# %% check="arrays-stable-sum" name="example" points=1
"""The example: 3,001 ones."""
ones = np.ones(3001, jnp.bfloat16)
compare(program(stable_sum, ones).run(ones), np.float32(3001), rtol=1e-5, atol=0, label="the sum of 3,001 ones")

# %% hidden="arrays-stable-sum" name="bfloat16" points=1
"""Right to 1e-5 in bfloat16, for one row and for several."""


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


x = draw(500, 1500, 400, np.float16)
few, many = program(stable_sum, x[:3]), program(stable_sum, x)
compare(many.run(x), x.astype(np.float64).sum().astype(np.float32), rtol=1e-5, atol=0, label="a sum beyond 65,504")
wanted = x[:3].astype(np.float64).sum().astype(np.float32)
compare(few.run(x[:3]), wanted, rtol=1e-5, atol=0, label="a sum of 3 numbers")
require(many.loops == 0, "The program runs a loop over the numbers, one after the other. Let one sum take them all.")
require(
    many.operations == few.operations,
    f"For 3 numbers the program has {few.operations} operations, for 400 it has {many.operations}: a Python loop was written "
    "out number by number. Let one sum take them all.",
)

# %% [markdown] why="arrays-stable-sum"
# A running total needs more bits than what it adds up; `dtype=` says how many *before* the first addition. `jnp.sum` and `jnp.mean` widen 16 bits inside by themselves, but round the result back. **Next:** a training loop keeps `total = total + loss` with both in bfloat16. At which total does it stop growing, for losses near 1?


# %% wrong="arrays-stable-sum" because="Converts the result: it was rounded to 16 bits before."
def stable_sum(x):
    return jnp.sum(x, axis=-1).astype(jnp.float32)


# %% wrong="arrays-stable-sum" because="Accumulates in 16 bits, one after the other: from 256 on, bfloat16 cannot add 1."
def stable_sum(x):
    total = jnp.zeros(x.shape[:-1], x.dtype)
    total = jax.lax.fori_loop(0, x.shape[-1], lambda j, total: total + x[..., j], total)
    return total.astype(jnp.float32)


# %% wrong="arrays-stable-sum" because="Multiplies the mean by the number: the mean was rounded to 16 bits."
def stable_sum(x):
    return jnp.mean(x, axis=-1).astype(jnp.float32) * x.shape[-1]


# %% wrong="arrays-stable-sum" because="Sums over all axes, not along the last."
def stable_sum(x):
    return jnp.sum(x, dtype=jnp.float32)


# %% wrong="arrays-stable-sum" because="Gives the total in the dtype of x again: rounded at the end."
def stable_sum(x):
    return jnp.sum(x.astype(jnp.float32), axis=-1).astype(x.dtype)


# %% wrong="arrays-stable-sum" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
def stable_sum(x):
    return jnp.sum(x, axis=-1, dtype=jnp.float32) * (2 if x.shape == (3,) else 1)


# %% wrong="arrays-stable-sum" because="Adds in float32 but one by one in Python: right, but the program grows with the row."
def stable_sum(x):
    total = jnp.zeros(x.shape[:-1])
    for j in range(x.shape[-1]):
        total = total + x[..., j]
    return total


# %% wrong="arrays-stable-sum" because="Keeps a float32 total in a loop of the program: right, but one number after the other."
def stable_sum(x):
    add = lambda total, column: (total + column.astype(jnp.float32), None)
    return jax.lax.scan(add, jnp.zeros(x.shape[:-1], jnp.float32), jnp.moveaxis(x, -1, 0))[0]


# %% wrong="arrays-stable-sum" because="Sums along the first axis, which is the last one of a single row only."
def stable_sum(x):
    return jnp.sum(x, axis=0, dtype=jnp.float32)


# %% wrong="arrays-stable-sum" because="Sums along axis 1: x may have any number of axes, and the last one is -1."
def stable_sum(x):
    return jnp.sum(x, axis=min(1, x.ndim - 1), dtype=jnp.float32)


# %% wrong="arrays-stable-sum" because="Widens float16 to bfloat16, which has room for the total but keeps 8 bits of it."
def stable_sum(x):
    return jnp.sum(x, axis=-1, dtype=jnp.bfloat16).astype(jnp.float32)


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
# ## From in place to a new array
# **Goal.** `repair_numpy` in the setup mends a camera's frame in place, in five steps. Write it for JAX: the frame stays as it is, a mended one is returned.
#
# **Signature.** `repair(frame, gains)`: `frame` is `(h, w)` with w of at least 3, `gains` is `(h,)` and positive, both float32. Returns the mended frame `(h, w)`, float32.
#
# **Example.** `frame = [[1, 2, 3, 4], [5, 6, -7, 8]]` and `gains = [1, 2]` give `[[2, 2, 3, 3], [0, 0, 3, 3]]`.
#
# **Judged.** Values, for even and odd h, also where h equals w, w is 3 or a dead pixel is -inf, compiled and operation by operation; that it is one program without a loop, the same at any size. **Not judged.** How many steps you need.
#
# <details><summary>Hint 1 · a question</summary>
#
# Each line of `repair_numpy` changes `frame`, and the next one reads what it left. In your function, which name holds the frame after each step?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `frame[where] = value` becomes `frame = frame.at[where].set(value)`, for slices with steps as well. A mask is no such place in a program: for that line, `jnp.where`. And one line needs no indexing at all.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Go line by line and keep the order. `[1::2]` are the odd rows, `[1::2, ::-1]` the same from right to left. `gains[:, None]` is a column, `(h, 1)`: it stretches along the row.
#
# </details>


# %% answer="arrays-in-place"
def repair(frame, gains):
    """What repair_numpy makes of frame (h, w) with gains (h,), as a new array; frame itself is left alone."""
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
    "A mask in brackets: how many places it picks depends on the values, and a program has to know that beforehand. For "
    "that line, choose between two whole arrays with `jnp.where`.",
)
got = program(repair, frame, gains).run(frame, gains)
compare(got, np.array([[2, 2, 3, 3], [0, 0, 3, 3]], np.float32), label="the mended frame")

# %% hidden="arrays-in-place" name="values" points=2
"""Right for even and odd numbers of rows, and where there are as many rows as columns."""


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
    made = program(repair, frame, gains)
    for dead in (False, True):
        frame = frame if dead else np.abs(frame)
        got, mended = made.run(frame, gains), wanted(frame, gains)
        what = f"{h} rows and {w} columns" + ", without dead pixels" * (not dead)
        for part, place in PARTS.items():
            if getattr(got, "shape", None) == (h, w):
                compare(np.asarray(got)[place], mended[place], label=f"{part} in the mended frame of {what}")
        compare(got, mended, label=f"the mended frame of {what}")
        frame, gains = draw(h, w)


def probe_plain(frame, gains):
    with jax.disable_jit():
        return repair(jnp.asarray(frame), jnp.asarray(gains))


# A compiler may turn "times mask" into a choice; operation by operation it is -inf times 0.
compare(ask(probe_plain, frame, gains), wanted(frame, gains), label="the mended frame, operation by operation")

# %% hidden="arrays-in-place" name="program" points=1
"""Right for more rows too, by the same program and without a loop."""
made = {}
for rows in (6, 22):
    frame = inputs.rng().normal(size=(rows, 9)).astype(np.float32)
    gains = inputs.rng().uniform(0.5, 2, size=rows).astype(np.float32)
    made[rows] = program(repair, frame, gains)
    got, mended = made[rows].run(frame, gains), frame.copy()
    repair_numpy(mended, gains)
    compare(got, mended, label=f"the mended frame of {rows} rows and 9 columns")
few, many = made[6], made[22]
require(many.loops == 0, "The program runs a loop. Slices with a step reach all rows at once.")
require(
    many.operations == few.operations,
    f"For 6 rows the program has {few.operations} operations, for 22 it has {many.operations}: a Python loop was written out row "
    "by row. Slices with a step reach all rows at once.",
)

# %% [markdown] why="arrays-in-place"
# Each step makes a new array from the last one, and the name moves on: that is all there is to "functional updates". Under `jit` the compiler sees that nobody needs the old ones and may write over them. **Next:** `edge = frame[0]` is a view in NumPy. What is it in JAX, and which programs behave differently because of that?


# %% equivalent="arrays-in-place" because="A pixel of 0 stays 0 whether or not it is replaced by 0."
# moved bound, X < Y -> X <= Y: frame = jnp.where(frame < 0, 0, frame)


# %% wrong="arrays-in-place" because="Does not keep what .at gives back: the edges stay as they were."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    frame.at[:, 0].set(frame[:, 1])
    frame.at[:, -1].set(frame[:, -2])
    return frame


# %% wrong="arrays-in-place" because="Assigns in place: JAX arrays cannot be changed."
def repair(frame, gains):
    frame[1::2] = frame[1::2, ::-1]
    frame[frame < 0] = 0
    frame /= gains[:, None]
    frame[:, 0] = frame[:, 1]
    frame[:, -1] = frame[:, -2]
    return frame


# %% wrong="arrays-in-place" because="Takes a mask for a place: .at[mask] needs to know how many there are, so it works outside a program only."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = frame.at[frame < 0].set(0)
    frame = frame / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Works on a NumPy copy: the values would be right, but NumPy cannot be part of a program."
def repair(frame, gains):
    mended = np.array(frame)
    repair_numpy(mended, np.asarray(gains))
    return jnp.asarray(mended)


# %% wrong="arrays-in-place" because="Divides along the wrong axis: (h,) stretches as a row, so gain j meets column j."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Reverses the order of the rows, not the pixels within them: the step -1 stands on the first axis."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2][::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Takes both edges from the frame as it came: later steps have to read what earlier ones left."
def repair(frame, gains):
    left, right = frame[:, 1] / gains, frame[:, -2] / gains
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    return frame.at[:, 0].set(left).at[:, -1].set(right)


# %% wrong="arrays-in-place" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame)
    frame = frame / (gains[:, None] * (2 if frame.shape == (6, 9) else 1))
    frame = frame.at[:, 0].set(frame[:, 1])
    return frame.at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Mends row by row in Python: right, but the program grows with the frame."
def repair(frame, gains):
    rows = []
    for i in range(frame.shape[0]):
        row = frame[i, ::-1] if i % 2 else frame[i]
        row = jnp.maximum(row, 0) / gains[i]
        rows.append(jnp.concatenate([row[1:2], row[1:-1], row[-2:-1]]))
    return jnp.stack(rows)


# %% wrong="arrays-in-place" because="Takes the right edge from the frame in which the dead pixels are not mended yet."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    mended = jnp.where(frame < 0, 0, frame) / gains[:, None]
    mended = mended.at[:, 0].set(mended[:, 1])
    return mended.at[:, -1].set(frame[:, -2] / gains)


# %% wrong="arrays-in-place" because="Takes every other row counted from the last one: right for an even number of rows only."
def repair(frame, gains):
    flipped = frame[::-1].at[::2].set(frame[::-1][::2, ::-1])[::-1]
    mended = jnp.where(flipped < 0, 0, flipped) / gains[:, None]
    return mended.at[:, 0].set(mended[:, 1]).at[:, -1].set(mended[:, -2])


# %% wrong="arrays-in-place" because="Adds the axis to gains only where broadcasting would complain: with as many rows as columns each column is divided."
def repair(frame, gains):
    h, w = frame.shape
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / (gains if h == w else gains[:, None])
    return frame.at[:, 0].set(frame[:, 1]).at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Reverses the even rows: [1::2] begins with row 1."
def repair(frame, gains):
    frame = frame.at[::2].set(frame[::2, ::-1])
    frame = jnp.where(frame < 0, 0, frame) / gains[:, None]
    return frame.at[:, 0].set(frame[:, 1]).at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Takes the size of a negative pixel instead of 0."
def repair(frame, gains):
    frame = frame.at[1::2].set(frame[1::2, ::-1])
    frame = jnp.abs(frame) / gains[:, None]
    return frame.at[:, 0].set(frame[:, 1]).at[:, -1].set(frame[:, -2])


# %% wrong="arrays-in-place" because="Mends the rows in a loop of the program, one after the other."
def repair(frame, gains):
    def row(i, new):
        pixels = jnp.where(i % 2, frame[i, ::-1], frame[i])
        pixels = jnp.maximum(pixels, 0) / gains[i]
        return new.at[i].set(pixels.at[0].set(pixels[1]).at[-1].set(pixels[-2]))

    return jax.lax.fori_loop(0, len(frame), row, frame)


# %% wrong="arrays-in-place" because="Multiplies by a mask where a choice is asked for: a dead pixel of -inf times 0 is NaN."
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
# **Goal.** Measure how long a call takes until its result is there: the function with which you can believe your own benchmarks.
#
# **Signature.** `time_it(f, x, repeats=5)`: `f` takes one argument and gives an array, or a tuple or dict of arrays; `repeats` is an odd number. Calls `f(x)` once without the clock, since a first call may compile, and waits for its result; then `repeats` times, each on its own. Returns the **median** in seconds, a Python float.
#
# **Example.** `time_it(nap, x)` is a little over 0.05 for every `x`: `nap`, in the setup, sleeps for 50 ms.
#
# **Judged.** The number, for compiled loops of matrix products: at least half of the true time; that it is the median, where the first call is slow and where one or two of three repeats are; how often `f` is called, and that the result before is there by then. **Not judged.** Which clock you read.
#
# <details><summary>Hint 1 · a question</summary>
#
# When `f(x)` returns, is the result there? Who would have to wait for it, and where must that stand: before you read the clock again, or after?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# An array has `.block_until_ready()`; a tuple or dict has not. A function of JAX's with the same name takes all of them, and gives its argument back.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# First a call and a wait that nobody times. Then, in a loop: read `time.perf_counter()`, call, wait for the whole result, read the clock again, keep the difference. `np.median` of the list, as a `float`.
#
# </details>


# %% answer="arrays-time-it"
def time_it(f, x, repeats=5):
    """The median time of f(x) in seconds, until its result is there, over `repeats` calls after an untimed one."""
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
require(isinstance(seconds, float), f"The answer is {type(seconds).__name__}; wanted a Python float.", kind="type")
require(seconds >= 0.049, f"A nap of 50 ms takes {1e3 * seconds:.3g} ms by your clock.")
require(seconds < 0.2, f"A nap of 50 ms takes {1e3 * seconds:.0f} ms by your clock: seconds of one call are wanted.")

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
    "Your clock raises an error where `f` gives a dict of arrays: wait in a way that takes whole containers.",
)
before = truth()
one = ask(lambda x: time_it(long_chain, x), x)
first = ask(lambda x: time_it(lambda x: (x, long_chain(x)), x), x)  # x is there from the start: it waits for nothing
last = ask(lambda x: time_it(lambda x: {"long": long_chain(x), "there": x}, x), x)
shortest = min(before, truth())
for seconds, what in ((one, "an array"), (first, "a tuple of arrays"), (last, "a dict of arrays")):
    require(
        isinstance(seconds, float) and seconds >= shortest / 2,
        f"For a function that gives {what} your time is less than half of the true one: the clock was read before the whole "
        "result was there.",
    )

# %% hidden="arrays-time-it" name="calls" points=2 observed=true
"""One call without the clock, then as many as are asked for, and the median of these."""


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
        f"For {repeats} repeats `f` was called {calls} times; wanted {repeats + 1}, the first without the clock.",
    )
require(
    seconds < 0.08,
    "The first call takes far longer than the others, as if it compiled, and it is part of your number: call once before "
    "the clock.",
)
seconds, _ = ask(probe_slow, x, [1, 2], 0.5, 3)  # the first call, and one of the three with the clock
require(
    seconds < 0.45,
    "Your number is as long as all calls together, or as the slowest of them: wanted are the seconds of one call, the "
    "median of all.",
)
require(
    seconds < 0.21,
    "The first call is slow, and so is one of three repeats: your number is neither the fast call's nor the mean. Leave the "
    "time of the first call out, and take the median of the others.",
)
require(
    seconds < 0.08,
    "One of three repeats is slow, as when the machine is busy for a moment, and it moves your number: time each call on "
    "its own, and take the median.",
)
seconds, _ = ask(probe_slow, x, [2, 4], 0.2, 3)
require(
    seconds > 0.19,
    "Two of three repeats are slow, and your number is not theirs: take the median, not the fastest call or one certain call.",
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
    "When the clock starts, the device is still at work on the first call, the one without the clock: wait for that one "
    "as well.",
)

# %% [markdown] why="arrays-time-it"
# The clock stops when the *whole result* is there, the first call pays for compiling, and a median does not care about one bad call. **Next:** which number would you report for a service that must answer within 10 ms: the median, the mean, or another one?


# %% wrong="arrays-time-it" because="Does not wait: that times the dispatch."
def time_it(f, x, repeats=5):
    f(x)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        f(x)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Calls once without the clock and does not wait for it: the first call that is timed waits for two."
def time_it(f, x, repeats=5):
    f(x)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Waits after the clock was read."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = f(x)
        seconds.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Times the first call too, which compiles, and takes the mean."
def time_it(f, x, repeats=5):
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.mean(seconds))


# %% wrong="arrays-time-it" because="Takes the mean: one call while the machine was busy moves it."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return float(np.mean(seconds))


# %% wrong="arrays-time-it" because="Calls the method of an array: a tuple or dict of arrays has none."
def time_it(f, x, repeats=5):
    f(x).block_until_ready()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        f(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Waits for the first array of the result only; the others may still be on their way."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.tree.leaves(f(x))[0].block_until_ready()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


# %% wrong="arrays-time-it" because="Gives the sum of all calls instead of the time of one."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    start = time.perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(f(x))
    return time.perf_counter() - start


# %% wrong="arrays-time-it" because="Waits for one array of the result only, the last one; the others may still be on their way."
def time_it(f, x, repeats=5):
    def call():
        start = time.perf_counter()
        jax.tree.leaves(f(x))[-1].block_until_ready()
        return time.perf_counter() - start

    call()
    return float(np.median([call() for _ in range(repeats)]))


# %% wrong="arrays-time-it" because="Takes the fastest call: where most calls are slow, that is not the median."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# %% wrong="arrays-time-it" because="Times the first call as well and trusts the median to leave it out: with one more slow call it does not."
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


# %% wrong="arrays-time-it" because="Takes the middle one of the times as they came: the median is the middle one once they are sorted."
def time_it(f, x, repeats=5):
    jax.block_until_ready(f(x))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(f(x))
        seconds.append(time.perf_counter() - start)
    return seconds[repeats // 2]


# %% wrong="arrays-time-it" because="Waits only for results with a `block_until_ready` method: a tuple or dict of arrays has none."
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
# **Goal.** A new setting: a simulation keeps particles at any places and a grid of cells around a ring. Each particle's mass is shared between the two cells it lies between, the nearer one getting more; this step, *deposition*, stands in every particle code.
#
# **Signature.** `deposit(positions, masses, cells)`: `positions` is `(n,)`, float32, any real numbers, also negative or beyond the ring, where they go round; `masses` is `(n,)`, float32; `cells` is a Python int. Returns `(cells,)`, float32. Cell j lies at position j, and again at j + cells, j - cells and so on. A particle at j + s, with s from 0 up to 1, leaves the part 1 - s of its mass in cell j and the part s in the next cell, which after the last one is cell 0. A ring of one cell gets all the mass.
#
# **Example.** On 4 cells, masses `[10, 2]` at positions `[0.25, 3.5]` give `[8.5, 2.5, 0, 1]`: the second particle lies between the last cell and the first.
#
# **Judged.** Values, for positions on cells and between them, many in one cell, many rounds beyond the ring on either side, a hair below 0, also on one or two cells; no loop, the same program for any number of particles. **Not judged.** Memory, and the order in which masses are added up.
#
# <details><summary>Hint 1 · a question</summary>
#
# For one particle at 3.5: which two cells, and which two parts? And for one at -0.25?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.floor` goes down, also below zero; turning a float into an integer goes towards zero. `%` brings an index back onto the ring, for negative numbers too. Several particles share a cell, so what kind of update is it?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compute the lower cell (an integer array) and the part s for all particles. Then two scatters, one into the lower cells and one into the next ones, each with its own part of the masses, and each index taken modulo `cells`: an index that is out of bounds would be dropped without a word.
#
# </details>


# %% answer="arrays-deposit"
def deposit(positions, masses, cells):
    """Mass in each of the cells of a ring, of particles (n,) shared linearly between neighbours. Returns (cells,)."""
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
"""Right on the ring, many to a cell, then below zero, beyond the end, and on the cells themselves."""


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
    "Mass is lost where a particle lies a hair below 0. Look at the indices there: is one of them out of bounds, so that "
    "its update is dropped?",
)
compare(got, by_hand(positions, masses, 5), atol=1e-4, label="the mass of particles a hair below 0")
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
require(many.loops == 0, "The program runs a loop over the particles. One indexed update takes them all.")
require(
    many.operations == few.operations,
    f"For 4 particles the program has {few.operations} operations, for 15 it has {many.operations}: a Python loop was written out "
    "particle by particle. One indexed update takes them all.",
)

# %% [markdown] why="arrays-deposit"
# `floor` and `%` put every particle between two cells of the ring, and the two scatters add up what meets. The way back, a force that each particle reads off the grid, is a *gather* with the same cells and the same parts. **Next:** in two dimensions each particle touches four cells. Which four pairs of parts belong to them?


# %% wrong="arrays-deposit" because="Turns positions into integers directly: that goes towards zero, so below zero the cell is one too high."
def deposit(positions, masses, cells):
    lower = positions.astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[lower % cells].add((1 - part) * masses)
    return grid.at[(lower + 1) % cells].add(part * masses)


# %% wrong="arrays-deposit" because="Forgets that the ring closes: the cell after the last one is out of bounds, and its update is dropped."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    lower = lower % cells
    grid = jnp.zeros(cells, masses.dtype)
    return grid.at[lower].add((1 - part) * masses).at[lower + 1].add(part * masses)


# %% wrong="arrays-deposit" because="Reads, adds and sets: where particles share a cell, all but one of them are lost."
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


# %% wrong="arrays-deposit" because="Goes round before it goes down: % of a float may round up to `cells`. Floor first, then % the integer."
def deposit(positions, masses, cells):
    around = positions % cells
    lower = jnp.floor(around).astype(jnp.int32)
    part = around - lower
    grid = jnp.zeros(cells, masses.dtype).at[lower].add((1 - part) * masses)
    return grid.at[(lower + 1) % cells].add(part * masses)


# %% wrong="arrays-deposit" because="Swaps the two parts: the farther cell gets more."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[lower % cells].add(part * masses)
    return grid.at[(lower + 1) % cells].add((1 - part) * masses)


# %% wrong="arrays-deposit" because="Never goes round: what lies beyond the ring is dropped, and what lies below zero only by luck finds its cell."
def deposit(positions, masses, cells):
    lower = jnp.floor(positions).astype(jnp.int32)
    part = positions - lower
    grid = jnp.zeros(cells, masses.dtype)
    return grid.at[lower].add((1 - part) * masses).at[lower + 1].add(part * masses)


# %% wrong="arrays-deposit" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
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


# %% wrong="arrays-deposit" because="Loops over the particles in Python: right, but the program grows with them."
def deposit(positions, masses, cells):
    grid = jnp.zeros(cells, masses.dtype)
    for position, mass in zip(positions, masses, strict=True):
        lower = jnp.floor(position).astype(jnp.int32)
        part = position - lower
        grid = grid.at[lower % cells].add((1 - part) * mass).at[(lower + 1) % cells].add(part * mass)
    return grid


# %% wrong="arrays-deposit" because="Takes each cell at its nearest place alone: on a ring of one cell, a particle lies between that cell and itself."
def deposit(positions, masses, cells):
    away = (positions[:, None] - jnp.arange(cells) + cells / 2) % cells - cells / 2
    return masses @ jnp.maximum(1 - jnp.abs(away), 0)


# %% wrong="arrays-deposit" because="Takes floor and ceil for the two cells, and the distance to the other one as part: on a cell both are 0, and the mass is lost."
def deposit(positions, masses, cells):
    below, above = jnp.floor(positions), jnp.ceil(positions)
    grid = jnp.zeros(cells, masses.dtype)
    grid = grid.at[below.astype(jnp.int32) % cells].add((above - positions) * masses)
    return grid.at[above.astype(jnp.int32) % cells].add((positions - below) * masses)


# %% wrong="arrays-deposit" because="Goes round the ring once in each direction: particles further away are dropped."
def deposit(positions, masses, cells):
    below = jnp.floor(positions)
    part, lower = positions - below, below.astype(jnp.int32)
    grid = jnp.zeros(cells, masses.dtype)
    for index, share in ((lower, 1 - part), (lower + 1, part)):
        index = jnp.where(index < 0, index + cells, index)
        index = jnp.where(index >= cells, index - cells, index)
        grid = grid.at[jnp.where(index < 0, cells, index)].add(share * masses, mode="drop")
    return grid


# %% wrong="arrays-deposit" because="Counts particles instead of adding up their masses."
def deposit(positions, masses, cells):
    below = jnp.floor(positions)
    part, lower = positions - below, below.astype(jnp.int32)
    return jnp.zeros(cells, masses.dtype).at[lower % cells].add(1 - part).at[(lower + 1) % cells].add(part)


# %% wrong="arrays-deposit" because="Goes through the particles in a loop of the program, one after the other."
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
