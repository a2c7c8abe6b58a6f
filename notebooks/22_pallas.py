# %% [markdown]
# # 22 · Pallas: kernels on blocks
#
# *The core takes about 35 minutes. Nine "Deeper" sections can be skipped. Then do [the exercises](../exercises/22_pallas/22_pallas.ipynb).* After the core, you can write a kernel on blocks, accumulate across its steps, handle edges, and differentiate it. You can explain why flash attention needs no matrix of scores.
#
# **Prerequisites.** `jit` (lesson 03), `custom_vjp` (04, *Deeper: a backward pass of your own*), Refs (12), memory and precision (15). Try to answer these questions from memory.
#
# 1. From 12: `ref` is a Ref with three numbers. How do you read all of them, and how do you add 1 to each of them in place?
#
# <details><summary>Answer</summary>
#
# `ref[...]` reads them, and `ref[...] += 1` adds 1 to each.
# </details>
#
# 2. From 04: Which two functions does `f.defvjp` take, and what do they return?
#
# <details><summary>Answer</summary>
#
# The forward function returns the result and the values to store. The backward function takes these values and the cotangent of the result, and returns a cotangent for each argument.
# </details>
#
# 3. From 01 (*Deeper*): The sum of ones in bfloat16 stops growing at 256 if each partial sum is rounded. Why?
#
# <details><summary>Answer</summary>
#
# bfloat16 has no number between 256 and 258, and 257 is rounded to 256.
# </details>

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from grader.learning import plots
from grader.learning.inspection import print_error, time_ms

jax.config.update("jax_default_matmul_precision", "highest")  # full float32 products on accelerators, too

# %% [markdown]
# ## A kernel is a function on Refs
# An accelerator stores arrays in a large, slow memory, and computes on data in a small, fast memory. Attention of 16,384 tokens computes 16,384² scores for each head, which do not fit into fast memory. XLA fuses operations, but it keeps your algorithm, so it writes these scores to slow memory and reads them again. **How do you decide yourself what is in fast memory?**
#
# You write a **[kernel](../docs/glossary.md#kernel)**. It gets Refs to *blocks* of arrays in fast memory, first those of its inputs, then those of its results. It returns nothing. `pallas_call` turns a kernel into a function of arrays, and `out_shape` describes the result of this function.


# %%
def add_kernel(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] + y_ref[...]


x = jnp.arange(24, dtype=jnp.float32).reshape(4, 6)
like_x = jax.ShapeDtypeStruct(x.shape, x.dtype)
add = pl.pallas_call(add_kernel, out_shape=like_x, interpret=True)
print(add(x, x))
print_error(lambda: pl.pallas_call(add_kernel, out_shape=like_x)(x, x))

# %% [markdown]
# Here, each block is a whole array. Without `interpret=True`, `pallas_call` compiles the kernel for a TPU or a GPU, so the second call fails on a CPU. In **interpret mode**, it translates the kernel to ordinary JAX operations. We use this mode throughout. The values are the same, but *the speed is not that of a compiled kernel*.

# %%
interpreted = functools.partial(pl.pallas_call, interpret=True)

# %% [markdown]
# ## The grid and the blocks
# Large arrays do not fit into fast memory. So the kernel runs in many *steps*, each with other blocks. The **[grid](../docs/glossary.md#grid)** is the number of steps along one or several axes. A `BlockSpec` has the shape of a block and an **index map**, which returns the position of the block of a step. For a grid (2, 3) and blocks of shape (2, 2), `pallas_call` corresponds to this loop:
#
# ```python
# for i in range(2):
#     for j in range(3):  # the last index of the grid changes fastest
#         row, column = index_map(i, j)  # a position in blocks
#         kernel(out[2 * row : 2 * row + 2, 2 * column : 2 * column + 2])
# ```
#
# This kernel has no inputs. Each step writes its number. `program_id` is the index of the step along an axis, and `num_programs` is the number of steps along it.


# %%
def number_kernel(out_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    out_ref[...] = jnp.full_like(out_ref, i * pl.num_programs(1) + j)


blocks = pl.BlockSpec((2, 2), lambda i, j: (i, j))
print(interpreted(number_kernel, grid=(2, 3), out_specs=blocks, out_shape=like_x)())

# %% [markdown]
# In the figure, a kernel adds a row to each row of a matrix. The index map of the row ignores i, so steps 1 and 4 use the same block of it.
#
# ![A grid of two by three steps. The blocks of x and of the result have the index map (i, j), and each contains the number of the step that uses it. The blocks of the row have the index map (0, j), so the steps 1 and 4 both use its second block. Step 4 uses the second block in the second row of x. Below, a timeline: while the kernel computes step s, the blocks of step s + 1 are copied to fast memory and the result of step s - 1 is copied back.](../images/pallas_grid.svg)

# %%
row_blocks = pl.BlockSpec((1, 2), lambda i, j: (0, j))
add_row = interpreted(
    add_kernel,
    grid=(2, 3),
    in_specs=[blocks, row_blocks],
    out_specs=blocks,
    out_shape=like_x,
)
print(add_row(x, 100 * jnp.arange(6.0).reshape(1, 6)))

# %% [markdown]
# Step 4, with the indices (1, 1), added 200 and 300.
#
# The lower part of the figure shows a TPU. While it computes a step, it copies the blocks of the next step and the previous result. If the kernel computes little with each element, it waits for these copies. So a kernel is worth writing if it uses a block several times, or avoids writing a large array to slow memory.

# %% [markdown] predict="pallas-index-map"
# `x` has the shape (4, 6), and blocks have the shape (2, 2). Which block does the index map `lambda i, j: (2 * i, 2 * j)` select in step (1, 1)?
#
# - [ ] rows 2 and 3, columns 2 and 3 | These are the elements from position (2, 2) on. An index map counts blocks, not elements.
# - [x] a block outside of `x` | Right. The map returns the block (2, 2), whose rows are 4 and 5. `x` has rows 0 to 3.
# - [ ] `pallas_call` raises an error | Positions are computed while the kernel runs, so interpret mode does not raise an error.


# %%
def copy_kernel(x_ref, out_ref):
    out_ref[...] = x_ref[...]


def copied(spec):
    return interpreted(copy_kernel, grid=(2, 3), in_specs=[spec], out_specs=blocks, out_shape=like_x)(x)


print(copied(pl.BlockSpec((2, 2), lambda i, j: (2 * i, 2 * j))))

# %% [markdown]
# Interpret mode moved blocks that are outside of `x` back to the edge, and reported nothing. Compiled kernels do not promise this. Other mistakes raise errors (*Deeper: four errors*).
#
# ## Accumulate across steps
# In a sum over an axis, several steps share a block of the result, which is not initialized.

# %% [markdown] predict="pallas-accumulate"
# The grid has three steps. Step j reads columns 2j and 2j + 1 of `x`, and every step has the *same* block of the result. The kernel is `out_ref[...] += x_ref[...].sum(axis=1)`. What is the result?
#
# - [ ] the sum of each row | This needs sums that start at 0.
# - [ ] the sum of the last two columns | Steps with the same block share its content, so nothing is lost between them.
# - [x] NaN | Right. Interpret mode fills new memory with NaN.


# %%
def sum_kernel(x_ref, out_ref):
    out_ref[...] += x_ref[...].sum(axis=1)


two_columns = pl.BlockSpec((4, 2), lambda j: (0, j))
all_sums = pl.BlockSpec((4,), lambda j: (0,))
sums = jax.ShapeDtypeStruct((4,), jnp.float32)
in_three_steps = functools.partial(interpreted, grid=3, in_specs=[two_columns], out_specs=all_sums, out_shape=sums)
print(in_three_steps(sum_kernel)(x))

# %% [markdown]
# The first step has to set the sums to 0. A Python `if` cannot depend on `program_id`, which is traced. Instead, `pl.when` runs the function below it if a condition holds.


# %%
def rows_kernel(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    out_ref[...] += x_ref[...].sum(axis=1)


print(in_three_steps(rows_kernel)(x))
print(x.sum(axis=1))

# %% [markdown]
# A block of a result stays in fast memory as long as *consecutive* steps select it. So in a grid with several axes, the axis that you sum over must come **last**. Otherwise the steps leave a block and select it again. Interpret mode hides this mistake (*Deeper: a stricter interpreter*). On a GPU, steps run in parallel and cannot share a sum (*Deeper: kernels for GPUs*).
#
# ## Edges
# Two blocks of four columns cover the six columns of `x`, and the second block extends past the edge. `pl.cdiv(6, 4)` divides and rounds up.

# %%
ragged = pl.BlockSpec((4, 4), lambda j: (0, j))
run = functools.partial(interpreted, grid=pl.cdiv(6, 4), in_specs=[ragged])
print("copied correctly:", np.array_equal(run(copy_kernel, out_specs=ragged, out_shape=like_x)(x), x))
print("sums:", run(rows_kernel, out_specs=all_sums, out_shape=sums)(x))

# %% [markdown]
# What a kernel writes past the edge is dropped, so the copy is correct. What it reads there is undefined. Interpret mode fills it with NaN, but a compiled kernel may read old data. So before a sum, replace these elements by 0. Select them by their *position* in the whole array.


# %%
def masked_kernel(x_ref, out_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    column = 4 * pl.program_id(0) + jax.lax.broadcasted_iota(jnp.int32, (4, 4), 1)  # iota: 0, 1, 2, 3 in each row
    out_ref[...] += jnp.where(column < 6, x_ref[...], 0).sum(axis=1)


print("masked sums:", run(masked_kernel, out_specs=all_sums, out_shape=sums)(x))

# %% [markdown]
# ## Scratch arrays
# An accumulator often needs another shape or dtype than the result. A **scratch array** stays in fast memory from step to step. `pltpu.VMEM(shape, dtype)` requests one (VMEM is the fast memory of a TPU). Its Ref comes after those of the results. This kernel computes the mean of 512 rows of bfloat16 ones, one row in each step.


# %%
def mean_kernel(x_ref, out_ref, sum_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += x_ref[...].astype(sum_ref.dtype).sum(axis=0)

    @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
    def _():
        out_ref[...] = (sum_ref[...] / 512).astype(out_ref.dtype)


# %% [markdown]
# We accumulate in bfloat16 and in float32.


# %%
def mean_of_ones(accumulator):
    return interpreted(
        mean_kernel,
        grid=512,
        in_specs=[pl.BlockSpec((1, 3), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((3,), lambda i: (0,)),
        out_shape=jax.ShapeDtypeStruct((3,), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((3,), accumulator)],
    )(jnp.ones((512, 3), jnp.bfloat16))


print("bfloat16", mean_of_ones(jnp.bfloat16))
print("float32 ", mean_of_ones(jnp.float32))

# %% [markdown]
# The bfloat16 sum stops at 256, so the mean is 0.5. With the float32 accumulator, only the result is rounded.
#
# ## Flash attention
# In attention, T tokens have queries, keys and values, the rows of `q`, `k` and `v` with d numbers each. Each result is a weighted mean of all values: `softmax(q @ k.T / sqrt(d)) @ v`. The softmax divides `exp(score)` by the sum of its row. To avoid overflow, it first subtracts the largest score of the row. So XLA computes all T x T scores before it sums.
#
# **Flash attention** needs only one block of scores at a time. It stores the largest score so far, `top`. If a block contains a larger one, then all terms `exp(score - top)` of the sum change by the same factor, `exp(top - new_top)`.

# %%
top, row_sum = -np.inf, 0.0  # so the first correction is exp(-inf) = 0
for scores in np.array([[1.0, 2.0], [4.0, 3.0]]):  # two blocks of one row
    new_top = max(top, scores.max())
    row_sum = np.exp(top - new_top) * row_sum + np.exp(scores - new_top).sum()
    top = new_top
    print(f"after {scores}: top {top}, sum {row_sum:.4f}")
print(f"in one go: {np.exp(np.array([1, 2, 4, 3]) - 4).sum():.4f}")

# %% [markdown]
# The same factor corrects the weighted sum of the values, `total_ref` in the kernel.
#
# ![On the left, the arrays in slow memory: four blocks of q along i, four blocks of k and v along j, and four blocks of the result. The four by four blocks of scores between them are dashed, because they are never stored as a whole. The step with i = 1 and j = 2 is outlined. The blocks before it in the order of the grid are done. On the right, the fast memory in this step: a block of q, of k and of v, the block of scores, q @ k.T / sqrt(d), and three scratch arrays that are kept from j to j + 1: top, the largest score, sum, the sum of exp(score - top), and total, the sum of exp(score - top) * v. After the last j, block i of the result is total / sum.](../images/pallas_flash.svg)


# %%
def flash_kernel(q_ref, k_ref, v_ref, out_ref, top_ref, sum_ref, total_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        top_ref[...] = jnp.full_like(top_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        total_ref[...] = jnp.zeros_like(total_ref)

    scores = q_ref[...] @ k_ref[...].T / q_ref.shape[1] ** 0.5
    top = jnp.maximum(top_ref[...], scores.max(axis=1, keepdims=True))
    weights, correction = jnp.exp(scores - top), jnp.exp(top_ref[...] - top)
    sum_ref[...] = correction * sum_ref[...] + weights.sum(axis=1, keepdims=True)
    total_ref[...] = correction * total_ref[...] + weights @ v_ref[...]
    top_ref[...] = top

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = total_ref[...] / sum_ref[...]


# %% [markdown]
# The grid has axes for heads, queries and keys. The sum is over keys, so their axis comes last. `None` in a block shape is a size of 1 on an axis that the kernel does not see.


# %%
def flash_attention(q, k, v, queries=64, keys=64, kernel=flash_kernel):
    heads, length, d = q.shape
    some_queries = pl.BlockSpec((None, queries, d), lambda h, i, j: (h, i, 0))
    some_keys = pl.BlockSpec((None, keys, d), lambda h, i, j: (h, j, 0))
    return interpreted(
        kernel,
        grid=(heads, length // queries, length // keys),
        in_specs=[some_queries, some_keys, some_keys],
        out_specs=some_queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_shapes=[pltpu.VMEM((queries, columns), jnp.float32) for columns in (1, 1, d)],
    )(q, k, v)


# %% [markdown]
# The same function without a kernel:


# %%
def attention(q, k, v):
    return jax.nn.softmax(q @ k.mT / q.shape[-1] ** 0.5) @ v


q, k, v = jax.random.normal(jax.random.key(22), (3, 2, 256, 32))  # two heads, 256 tokens
print("largest difference:", jnp.abs(flash_attention(q, k, v) - attention(q, k, v)).max())

# %% [markdown]
# How large are the arrays in slow memory? From each jaxpr, we read the largest result of an operation outside of kernels.


# %%
def largest(function, *args):
    """The bytes of the largest result of an operation in the jaxpr, outside of kernels."""
    results = [out.aval for equation in jax.make_jaxpr(function)(*args).eqns for out in equation.outvars]
    return max(aval.size * aval.dtype.itemsize for aval in results)


lengths = [256, 1024, 4096, 16384]
inputs = [[jax.ShapeDtypeStruct((2, length, 64), jnp.float32)] * 3 for length in lengths]
_, axes = plots.subplots(height=2.6)
ends = []
for function, marker in ((attention, "o"), (flash_attention, "s")):
    megabytes = [largest(function, *arrays) / 1e6 for arrays in inputs]
    axes.loglog(lengths, megabytes, marker=marker, label=function.__name__)
    end = lengths[-1], megabytes[-1]
    axes.annotate(f"{megabytes[-1]:,.0f} MB", end, (-10, 0), textcoords="offset points", ha="right", va="bottom")
    ends.append(f"{function.__name__} {megabytes[0]:.2g} and {megabytes[-1]:,.1f}")
axes.set(xlabel="tokens", ylabel="largest array, MB", xticks=lengths, xticklabels=lengths)
axes.legend()
plots.show(f"The megabytes of the largest array outside of kernels, for 256 and for 16,384 tokens: {', '.join(ends)}.")

# %% [markdown]
# The scores in `attention` grow with T². The largest array of `flash_attention` is the result, which grows with T. The blocks and scratch arrays do not depend on T.
#
# ## Gradients
# JAX 0.10.2 cannot differentiate a kernel that uses `program_id`. It raises an `AssertionError` without a message.

# %%
print_error(lambda: jax.grad(lambda q: flash_attention(q, k, v).sum())(q))

# %% [markdown]
# So you supply the rule. This `custom_vjp` stores only the inputs, and its backward pass computes the attention again, without a kernel.


# %%
@jax.custom_vjp
def differentiable(q, k, v):
    return flash_attention(q, k, v)


def backward(stored, cotangent):
    return jax.vjp(attention, *stored)[1](cotangent)


differentiable.defvjp(lambda q, k, v: (flash_attention(q, k, v), (q, k, v)), backward)
for argument in range(3):
    one, other = (
        jax.grad(lambda *a, f=f: jnp.sin(f(*a)).sum(), argument)(q, k, v) for f in (differentiable, attention)
    )
    print(f"largest difference for {'qkv'[argument]}:", jnp.abs(one - other).max())

# %% [markdown]
# The gradients are correct, but this backward pass computes the matrix of scores. In the exercises, you write a backward kernel for a simpler function.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a kernel on blocks | `pl.pallas_call(kernel, grid=..., in_specs=[...], out_specs=..., out_shape=...)(x)` |
# | the block of a step | `pl.BlockSpec(shape, index_map)`; the map counts blocks |
# | the index of a step, the size of the grid | `pl.program_id(axis)`, `pl.num_programs(axis)` |
# | a sum across steps | the same block of the result in consecutive steps, set to 0 with `@pl.when` |
# | an accumulator of another dtype | `scratch_shapes=[pltpu.VMEM(shape, dtype)]` |
# | blocks that do not divide an array | `pl.cdiv` for the grid, and `jnp.where` on positions before a sum or a maximum |
# | a gradient | `jax.custom_vjp` with a kernel for the backward pass |
#
# The JAX documentation has a guide to [Pallas](https://docs.jax.dev/en/latest/pallas/index.html).
#
# ## Deeper: four errors
# Each of these calls contains one mistake. Find it before you read the explanation below.

# %%
print_error(lambda: copied(pl.BlockSpec((2, 2), lambda i: (i, 0))))
print_error(lambda: copied(pl.BlockSpec((2, 3), lambda i, j: (i, j))))
print_error(lambda: interpreted(lambda x_ref, out_ref: x_ref[...] + 1, out_shape=like_x)(x))
print_error(lambda: interpreted(lambda x_ref, out_ref: out_ref.__setitem__(..., x_ref[...] + x), out_shape=like_x)(x))

# %% [markdown]
# The first index map takes one index, but the grid has two axes. The second kernel writes a block of shape (2, 3) to one of shape (2, 2). The third kernel returns a value instead of writing it. The last one closes over an array, but every array that a kernel reads has to be an argument.
#
# ## Deeper: choose the blocks by measuring
# Interpret mode runs one iteration of a loop for each step, without fast memory. We add two matrices of shape (512, 512) in square blocks.

# %%
big = jnp.ones((512, 512))


def add_in_blocks(size):
    spec = pl.BlockSpec((size, size), lambda i, j: (i, j))
    like = jax.ShapeDtypeStruct(big.shape, big.dtype)
    grid = pl.cdiv(512, size), pl.cdiv(512, size)
    return jax.jit(interpreted(add_kernel, grid=grid, in_specs=[spec] * 2, out_specs=spec, out_shape=like))


sizes = (32, 64, 128, 256, 512)
kernels = {size: add_in_blocks(size) for size in sizes}
times = time_ms(*(functools.partial(kernels[size], big, big) for size in sizes), lambda: jnp.add(big, big))
for size, milliseconds in zip((*sizes, "jnp.add"), times, strict=True):
    print(f"{size!s:>8s} {milliseconds:8.2f} ms")

# %% [markdown]
# Blocks of size 32 need 256 steps, and blocks of size 512 need one. The time falls with the number of steps, and one step is about as fast as `jnp.add`. These times do not tell you which block size to choose for an accelerator.
#
# Block sizes do not change the result, so you can choose them by measuring: time each size that fits into fast memory, and keep the fastest. Below, we do this for flash attention in interpret mode. The procedure is the same on an accelerator, **but the optimum is not.**

# %%
sizes = (32, 64, 128, 256)
variants = [jax.jit(functools.partial(flash_attention, queries=a, keys=b)) for a in sizes for b in sizes]
times = time_ms(*(functools.partial(f, q, k, v) for f in variants))
table = np.array(times).reshape(4, 4)
_, axes = plots.subplots(width=4.6, height=3.2)
shade = np.log(table / table.min()) / np.log(table.max() / table.min())
axes.imshow(shade, cmap="Blues")
for (row_of, column_of), value in np.ndenumerate(table):
    colour = "white" if shade[row_of, column_of] > 0.6 else plots.INK
    axes.text(column_of, row_of, f"{value:.1f}", ha="center", va="center", color=colour)
axes.set(xticks=range(4), yticks=range(4), xticklabels=sizes, yticklabels=sizes, title="milliseconds")
axes.set(xlabel="keys in a block", ylabel="queries in a block")
best = np.unravel_index(table.argmin(), table.shape)
plots.show(
    f"The time of flash attention in interpret mode for 16 block sizes, from {table.max():.1f} ms for the slowest to "
    f"{table.min():.1f} ms for {sizes[best[0]]} queries and {sizes[best[1]]} keys in a block."
)

# %% [markdown]
# Here, too, blocks with many steps are mostly slower. On a busy machine, single values can be far off, so measure twice before you choose.
#
# ## Deeper: overwrite an input
# `input_output_aliases={0: 0}` stores result 0 in the memory of input 0. Under `jit`, the caller's array is overwritten only if it is donated (lesson 03). Otherwise XLA copies it first. (Compiled for a described TPU, the program without donation contains one copy, and the one with donation contains no copy.)


# %%
def double_kernel(x_ref, out_ref):
    out_ref[...] = 2 * x_ref[...]


part = pl.BlockSpec((2, 6), lambda i: (i, 0))
call = interpreted(
    double_kernel, grid=2, in_specs=[part], out_specs=part, out_shape=like_x, input_output_aliases={0: 0}
)
kept = x + 0
print("not donated:", jax.jit(call)(kept)[0], "  the argument:", kept[0])
donated = jax.jit(call, donate_argnums=0)
print("bytes of the aliased result:", donated.lower(kept).compile().memory_analysis().alias_size_in_bytes)
donated(kept)
print("deleted:", kept.is_deleted())

# %% [markdown]
# An alias is only safe if each step reads blocks that no *earlier* step has overwritten. The kernel below reads the block before its own. We run it in interpret mode, and with an interpreter that simulates a TPU (see the next section).

# %%
numbers = jnp.arange(1.0, 7.0)
own, previous = pl.BlockSpec((2,), lambda i: (i,)), pl.BlockSpec((2,), lambda i: (jnp.maximum(i - 1, 0),))


def double_previous(aliases, interpret):
    like = jax.ShapeDtypeStruct((6,), jnp.float32)
    options = {"grid": 3, "in_specs": [previous], "out_specs": own, "out_shape": like}
    return pl.pallas_call(double_kernel, input_output_aliases=aliases, interpret=interpret, **options)(numbers)


for aliases in ({}, {0: 0}):
    print(f"{aliases!s:7s} interpret=True:", double_previous(aliases, True), end="  ")
    print("simulated TPU:", double_previous(aliases, pltpu.InterpretParams()))

# %% [markdown]
# In interpret mode, the alias makes no difference. On the simulated TPU, step 2 reads the numbers 2 and 4, which step 1 has written, instead of 3 and 4. So the fifth number of the result becomes 4 instead of 6.
#
# ## Deeper: a stricter interpreter
# `interpret=pltpu.InterpretParams()` simulates the memories and copies of a TPU on the CPU. It finds mistakes that `interpret=True` hides, such as the alias above. We show two more. The first is a sum over the first axis of the grid, so its steps leave a block of the result and select it again.

# %%
import logging

logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # prints the same errors again


def reason(call):
    try:
        print(call())
    except jax.errors.JaxRuntimeError as problem:
        print(str(problem).strip().splitlines()[-1])
        pltpu.reset_tpu_interpret_mode_state()


def sums_first(interpret):
    specs = {
        "in_specs": [pl.BlockSpec((2, 2), lambda j, i: (i, j))],
        "out_specs": pl.BlockSpec((2,), lambda j, i: (i,)),
    }
    return pl.pallas_call(rows_kernel, grid=(3, 2), out_shape=sums, interpret=interpret, **specs)(x)


# %% [markdown]
# The second mistake is a slice that ends after the block. `pl.ds(start, size)` selects a slice whose start is not known while JAX traces.


# %%
def past_the_end(interpret):
    kernel = lambda x_ref, out_ref: out_ref.__setitem__(..., x_ref[pl.ds(2 * pl.program_id(0) + 1, 2)])
    specs = {"in_specs": [pl.BlockSpec((6,), lambda i: (0,))], "out_specs": pl.BlockSpec((2,), lambda i: (i,))}
    like = jax.ShapeDtypeStruct((6,), jnp.float32)
    return pl.pallas_call(kernel, grid=3, out_shape=like, interpret=interpret, **specs)(jnp.arange(6.0))


for mistake in (sums_first, past_the_end):
    print(mistake.__name__)
    for interpret in (True, pltpu.InterpretParams()):
        reason(functools.partial(mistake, interpret))

# %% [markdown]
# `interpret=True` sums the rows correctly, and moves the slice to the edge, as it does with blocks. The stricter interpreter names the block that is visited again, and the slice that is out of bounds.
#
# ## Deeper: kernels for TPUs
# The slow memory of a TPU is HBM, with 16 GB on a v5e. Blocks and `pltpu.VMEM` arrays are in vector memory (VMEM). A v5e core has 128 MiB of it, of which the compiler gives a kernel 16 MiB by default.
#
# A `BlockSpec` can name another memory. `memory_space=pltpu.SMEM` puts a few scalars, such as lengths or indices, into scalar memory. With `memory_space=pl.ANY`, nothing is copied: the Ref refers to the array in HBM, and the kernel copies the parts that it needs with `pltpu.make_async_copy(source, target, semaphore)`. Its `start` and `wait` let the kernel compute during the copy.
#
# Without `interpret`, a kernel is lowered for a platform. You can lower it without an accelerator, and see the first errors. The first line below is the size of VMEM that JAX lists for a TPU v5e.

# %%
square = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)


def lowered(block):
    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    grid = 1024 // block[0], 1024 // block[1]
    call = pl.pallas_call(add_kernel, grid=grid, in_specs=[spec] * 2, out_specs=spec, out_shape=square)
    return jax.jit(call).trace(square, square).lower(lowering_platforms=("tpu",)).as_text()


v5e = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V5E, 1)
print("VMEM:", v5e.vmem_capacity_bytes // 2**20, "MiB")
[line] = [line for line in lowered((256, 256)).splitlines() if "custom_call" in line]
print(line.strip()[:70], "...")
print_error(lambda: lowered((64, 64)))

# %% [markdown]
# The kernel becomes one custom call, `tpu_custom_call`, and the compiler *Mosaic* compiles its body. As the error states, the last two sizes of a block must be multiples of 8 and 128, or those of the whole array. We compiled kernels of this lesson with JAX 0.10.2 and libtpu 0.0.52 for a described TPU v5e. *We did not run them, because we had no TPU.*
#
# | kernel, compiled for a TPU v5e | result |
# |---|---|
# | sum of float32 matrices, blocks (768, 768) | compiled |
# | the same, blocks (1024, 1024) | error: needs 24 MiB of VMEM, the limit is 16 MiB |
# | the same, with `pipeline_mode=pl.Buffered(1)` | compiled |
# | `flash_kernel`, T = 8192, d = 128, float32, blocks of 1024 queries and keys | compiled |
# | the same, blocks of 2048 queries and 1024 keys | error: needs 19.9 MiB |
#
# Three blocks of 4 MiB with two buffers each are 24 MiB, so the compiler does allocate two buffers for each block. With one buffer, they need half as much, but then copies and computation cannot overlap.
#
# In the same way, we compared the temporary memory in HBM that the two versions of attention need, for two heads with d = 128 in float32.
#
# | tokens | attention without a kernel | flash attention, blocks of 512 |
# |---|---|---|
# | 2,048 | 0 (the scores fit into VMEM, which is not counted) | 0 |
# | 8,192 | 0.54 GB | 0 |
# | 32,768 | 8.59 GB | 0 |
#
# The TPU quickstart in the JAX documentation uses `pl.kernel`, in which you allocate fast memory and start copies yourself. `pallas_call` derives both from the specs. Inside `pl.kernel`, `pltpu.emit_pipeline` does the same, with a grid and specs as in this lesson.
#
# For TPUs, also state which axes of the grid are independent, so that several cores can share them: `compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))`.
#
# ## Deeper: kernels for GPUs
# JAX 0.10.2 has two compilers of kernels for GPUs. **Mosaic GPU** is the default. **Triton** is selected with `compiler_params`. We lower `add_kernel` with both, and print the warnings.

# %%
import warnings

from jax.experimental.pallas import triton as pltriton


def lowered_for_gpu(size, **options):
    spec = pl.BlockSpec((size, size), lambda i, j: (i, j))
    like, grid = jax.ShapeDtypeStruct((1024, 1024), jnp.float32), (1024 // size, 1024 // size)
    call = pl.pallas_call(add_kernel, grid=grid, in_specs=[spec] * 2, out_specs=spec, out_shape=like, **options)
    return jax.jit(call).trace(like, like).lower(lowering_platforms=("cuda",)).as_text()


for name, options in {"Mosaic GPU": {}, "Triton": {"compiler_params": pltriton.CompilerParams(num_warps=4)}}.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        [line] = [line for line in lowered_for_gpu(64, **options).splitlines() if "custom_call" in line]
    print(f"{name:10s}", line.strip()[:62], "...", *{f"\n  {one.message}" for one in caught})
print_error(lambda: lowered_for_gpu(256))

# %% [markdown]
# The error shows the limit of the shared memory of an H100, 227 KiB for a kernel. Three blocks of 256 KiB do not fit into it. If you have an accelerator, the next cell runs a compiled kernel.

# %%
if jax.default_backend() in ("gpu", "tpu"):  # runs the compiled kernel
    many, spec = jnp.ones((512, 512)), pl.BlockSpec((128, 128), lambda i, j: (i, j))
    call = pl.pallas_call(add_kernel, grid=(4, 4), in_specs=[spec] * 2, out_specs=spec, out_shape=jax.typeof(many))
    print("on this accelerator:", jnp.array_equal(jax.jit(call)(many, many), many + many))
else:
    print("There is no accelerator here, so nothing runs.")

# %% [markdown]
# Both interfaces are about to change. As the warning states, `pl.pallas_call` is deprecated for Mosaic GPU, in favour of `plgpu.kernel` of `jax.experimental.pallas.mosaic_gpu`. The [changelog of Pallas](https://docs.jax.dev/en/latest/pallas/CHANGELOG.html) lists Triton as deprecated since JAX 0.11.0. So use the table below to read existing kernels, and read the changelog before you write a new one. The JAX documentation states that Mosaic GPU needs a Hopper or newer GPU, and that Triton also supports Ampere.
#
# On a GPU, the steps of a grid **run in parallel and in no fixed order**, so a sum across steps does not work as it does on a TPU. Loop inside the kernel instead, with `jax.lax.fori_loop` and `pl.ds`, or use the pipelines of Mosaic GPU. We compiled these kernels with the CUDA plugin of JAX 0.10.2 for a described H100. *We did not run them, because we had no GPU.*
#
# | kernel, compiled for an H100 | Triton | Mosaic GPU |
# |---|---|---|
# | sum of float32 matrices, blocks (64, 64) | compiled | compiled |
# | blocks (48, 32) | error: sizes must be powers of two | not tried |
# | attention with a loop over all keys of a head inside the kernel | compiled, for T = 2048 and 8192 | error for T = 1024: a head exceeds the shared memory |
# | `flash_kernel` of this lesson | error: no scratch memory | error: no `pltpu.VMEM` |
# | product with `@`, accumulated across steps | compiled, although the steps would race | error: `dot_general` is not implemented |
# | product with `plgpu.wgmma` and an accumulator `plgpu.ACC` | not available | compiled |
#
# The ideas of this lesson apply to both kinds of hardware, but a fast kernel is written for one of them.
#
# ## Deeper: vmap adds an axis to the grid
# We map a kernel for one matrix over five matrices, and read the grid from the jaxpr.

# %%
mapped = jax.make_jaxpr(jax.vmap(lambda x: run(copy_kernel, out_specs=ragged, out_shape=like_x)(x)))(
    jnp.ones((5, 4, 6))
)
[equation] = mapped.eqns
print("grid:", equation.params["grid_mapping"].grid)
print("block:", equation.params["grid_mapping"].block_mappings[0].block_shape)
print(equation.params["jaxpr"])

# %% [markdown]
# The new axis comes first, and the kernel does not see it, because its block size along this axis is squeezed. In `flash_attention`, the grid has an axis for heads, with a `None` in the block shapes. `vmap` of a kernel for one head would give the same grid.
#
# ## Deeper: skip blocks
# In causal attention, a query attends only to keys at its own and earlier positions. Many blocks of scores contain no such pair of query and key. This kernel skips them with `pl.when`. In the blocks that it computes, it replaces the scores of later keys with -inf.


# %%
def causal_kernel(q_ref, k_ref, v_ref, out_ref, top_ref, sum_ref, total_ref):
    (rows, d), columns = q_ref.shape, k_ref.shape[0]
    first_query, first_key = pl.program_id(1) * rows, pl.program_id(2) * columns

    @pl.when(pl.program_id(2) == 0)
    def _():
        top_ref[...], sum_ref[...] = jnp.full((rows, 1), -jnp.inf), jnp.zeros((rows, 1))
        total_ref[...] = jnp.zeros_like(total_ref)

    @pl.when(first_key < first_query + rows)
    def _():
        query, key = (jax.lax.broadcasted_iota(jnp.int32, (rows, columns), axis) for axis in (0, 1))
        scores = q_ref[...] @ k_ref[...].T / d**0.5
        scores = jnp.where(first_key + key <= first_query + query, scores, -jnp.inf)
        top = jnp.maximum(top_ref[...], scores.max(axis=1, keepdims=True))
        weights, correction = jnp.exp(scores - top), jnp.exp(top_ref[...] - top)
        sum_ref[...] = correction * sum_ref[...] + weights.sum(axis=1, keepdims=True)
        total_ref[...] = correction * total_ref[...] + weights @ v_ref[...]
        top_ref[...] = top
        out_ref[...] = total_ref[...] / sum_ref[...]


# %% [markdown]
# We compare it with a softmax that masks the matrix of scores, and count the blocks that contain a score to compute.

# %%
causal = flash_attention(q, k, v, kernel=causal_kernel)
mask = np.tri(256, dtype=bool)
expected = jax.nn.softmax(jnp.where(mask, q @ k.mT / 32**0.5, -jnp.inf)) @ v
print("largest difference:", jnp.abs(causal - expected).max())
needed = mask.reshape(4, 64, 4, 64).any(axis=(1, 3))
print(f"{needed.sum()} of {needed.size} blocks are computed for each head")

# %% [markdown]
# The first block of keys contains key 0, to which each query attends. So `top` is never -inf after this block, and `exp(old top - new top)` is never NaN. The index map still selects the skipped blocks, so a pipeline copies them. To avoid these copies, let the index map return the position of a block that is already in fast memory.
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `pl.BlockSpec(index_map, shape)` | `pl.BlockSpec(shape, index_map)`. The old order raises an error only when it is used. |
# | `pl.load(ref, (pl.ds(i, n),))`, `pl.store` | `ref[pl.ds(i, n)]`, `ref[...] = value`. With a mask: `load` and `store` of `pallas.triton` or `pallas.tpu` |
# | `pl.dot` | `@` or `jnp.dot` (`pltriton.dot` for Triton) |
# | `jax.experimental.pallas.gpu` | `jax.experimental.pallas.triton` or `.mosaic_gpu` |
# | `pl.core_map` | `pl.kernel` |
# | `pl.pallas_call` for Mosaic GPU | `plgpu.kernel` |
# | `pltpu.TPUCompilerParams` | `pltpu.CompilerParams` |
# | `compiler_params=dict(triton=...)` | `compiler_params=pltriton.CompilerParams(...)` |
