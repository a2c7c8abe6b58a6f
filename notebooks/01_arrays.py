# %% [markdown]
# # 01 · Arrays: what changes when np becomes jnp
#
# *The core takes about 35 minutes. Eleven "Deeper" sections can be skipped. Then do [the exercises](../exercises/01_arrays/01_arrays.ipynb).* After the core you can move array code from NumPy to JAX, write updates without assignment, predict the dtype of a result, and measure how long an operation takes.
#
# **Prerequisites.** Python, some NumPy, and [the start page](00_start_here.ipynb). Try to answer these questions from memory.
#
# 1. From 00: What does the compiler XLA need to see before it can make a program fast?
#
# <details><summary>Answer</summary>
#
# The whole program, with known shapes. So functions should have no side effects, and shapes should not depend on values.
# </details>
#
# 2. From 00: What do `jax.jit`, `jax.grad` and `jax.vmap` take, and what do they return?
#
# <details><summary>Answer</summary>
#
# Each takes a function and returns a function. `jit` returns a compiled version (03), `grad` the derivative (04), and `vmap` a version for a whole batch (05).
# </details>
#
# 3. From NumPy: `a` is a matrix. What does it contain after `row = a[0]` and `row[:] = 7`?
#
# <details><summary>Answer</summary>
#
# Its first row contains sevens. In NumPy a slice is a *view*, which shares memory with `a`.
# </details>

# %%
import jax

jax.config.update("jax_num_cpu_devices", 2)  # before JAX is first used; for the section "Devices"

import time
import warnings

import jax.numpy as jnp
import numpy as np

from grader.learning import plots
from grader.learning.inspection import primitives, print_error, time_ms

# %% [markdown]
# ## Which lines change?
# Suppose that you want to run a NumPy script on a GPU. `jax.numpy` has nearly all of NumPy's functions under the same names, so the first step is to replace `np` by `jnp`. The following helper evaluates an expression with both libraries.


# %%
def both(*expressions):
    """Evaluates each expression with `xp` as NumPy and as JAX; `x` contains the numbers 0 to 9."""
    for expression in expressions:
        print(expression)
        for name, xp in {"NumPy": np, "JAX": jnp}.items():
            try:
                result = repr(eval(expression, {"xp": xp, "x": xp.arange(10)}))
            except Exception as problem:
                result = f"{type(problem).__name__}: {str(problem)[:70]}"
            print(f"    {name:6s} {' '.join(result.split())}")


both("x[7:1:-2]", "xp.where(x % 2 == 0, x, -x)", "(x[:, None] * x[:3]).shape", "xp.sqrt(x).std() > 0.5")

# %% [markdown]
# All four expressions give the same values, and broadcasting follows the same rules.
#
# The next four expressions behave differently. The last one is the call that Python makes for the assignment `x[0] = 99`.

# %%
both("x[20]", "x[[1, 2]]", "(x / 4).dtype", "x.__setitem__(0, 99)")

# %% [markdown]
# JAX returns an entry for an index that does not exist, rejects a list as an index, computes in 32 bits, and does not allow the assignment. The following sections explain why.

# %% [markdown]
# ## Arrays are immutable
# The contents of a JAX array, an instance of `jax.Array`, never change. Immutability lets JAX transform a program and decide when and where it runs. Instead of assigning to `x`, you create an updated array. In `x.at[index]`, the index can be almost anything that you would write into `x[index]`, and a method such as `set` defines the update.

# %%
x = jnp.arange(6)
updated = x.at[2].set(99)
print("x:", x, "  updated:", updated)
print_error(lambda: x.__setitem__(2, 99), length=160)

x.at[0].set(7)  # a common mistake: the result is not used
print("x:", x)

# %% [markdown]
# Write `x = x.at[0].set(7)` to keep the result under the same name. The update methods are `set`, `add`, `subtract`, `multiply`, `divide`, `power`, `min`, `max` and `apply`. The method `get` reads entries. Here are five updates of one array.

# %%
grid = jnp.arange(20).reshape(4, 5)
rows, columns = jnp.array([0, 1, 3]), jnp.array([0, 2, 4])
updates = {
    "grid": grid,
    "grid.at[2].set(0)": grid.at[2].set(0),
    "grid.at[:, 1].add(100)": grid.at[:, 1].add(100),
    "grid.at[::2, ::2].multiply(-1)": grid.at[::2, ::2].multiply(-1),
    "grid.at[rows, columns].set(99)": grid.at[rows, columns].set(99),
    "grid.at[grid > 11].min(15)": grid.at[grid > 11].min(15),
}

# %%
_, panels = plots.subplots(2, 3, height=3.2)
for panel, (expression, result) in zip(panels.flat, updates.items(), strict=True):
    fills = np.where(result == grid, plots.PAPER, plots.FILLS[0][0])
    shown = panel.table(cellText=result.tolist(), cellColours=fills.tolist(), cellLoc="center", bbox=(0, 0, 1, 1))
    for cell in shown.get_celld().values():
        cell.set_edgecolor(plots.QUIET)
    panel.set_title(expression, family="monospace", fontsize=8)
    panel.axis("off")
effects = [f"{name} changes {(result != grid).sum()} entries" for name, result in updates.items() if name != "grid"]
plots.show(f"Tables of grid, with the numbers 0 to 19 in 4 rows, and of 5 updates of it. {'; '.join(effects)}.")

# %% [markdown]
# Entries whose value changed are coloured. Two index arrays, such as `rows` and `columns`, select one entry for each pair.

# %% [markdown] predict="arrays-twice"
# The amounts of three sales are `[5, 20, 3]`, and their shops are `[1, 1, 4]`. What is the entry of shop 1 in `jnp.zeros(6).at[shops].add(amounts)`?
#
# - [ ] 20 | NumPy gives this for `totals[shops] += amounts`. It reads both old values first, and the second write overwrites the first.
# - [x] 25 | Right. `.at[].add` is one operation, which sums all updates of the same index.
# - [ ] an error, since 1 is repeated | Repeated indices are allowed. They are used for counts and for sums by group.

# %%
shops, amounts = np.array([1, 1, 4]), np.array([5.0, 20.0, 3.0])
in_numpy = np.zeros(6)
in_numpy[shops] += amounts
print("NumPy, +=:        ", in_numpy)
print("JAX, .at[].add:   ", jnp.zeros(6).at[shops].add(amounts))
totals = jnp.zeros(6)
print("JAX, .at[].set:   ", totals.at[shops].set(totals[shops] + amounts))

# %% [markdown]
# ![Above: x.at[2].set(99) leaves x unchanged and returns a new array that differs at index 2. Below: the amounts 5, 20 and 3 update the indices 1, 1 and 4. With .add both updates of index 1 are summed, 25. With .set one of them is kept, 20.](../images/arrays_at.svg)
#
# With `.set`, JAX does not define which of several updates of the same index is kept. An indexed update is called a *scatter*, and an indexed read `x[indices]` is called a *gather*.
#
# Outside `jit`, each update copies the whole array. In compiled code, XLA updates arrays in place where it can. A Deeper section measures both.

# %% [markdown]
# ## NumPy arrays and lists
# You can mix NumPy and JAX arrays. Which of these results are JAX arrays?

# %%
row = jnp.ones(3)
mixed = {"jnp function": jnp.sin(np.ones(3)), "operator": np.ones(3) + row, "NumPy function": np.sin(row)}
print({name: isinstance(result, jax.Array) for name, result in mixed.items()})
print_error(lambda: jnp.sin([1.0, 2.0]))

# %% [markdown]
# A `jnp` function accepts NumPy arrays, and an operator with one JAX operand returns a JAX array. A NumPy *function* computes on the CPU and returns a NumPy array.
#
# `jnp` functions and array indices reject Python lists, because converting a long list is slow. Convert a list once, with `jnp.array`.

# %% [markdown]
# ## Indices out of bounds
# An accelerator cannot raise a Python error in the middle of a computation, so JAX needs another result for an index that does not exist.

# %% [markdown] predict="arrays-bounds"
# In the first section, `x[20]` returned an entry. What does `x.at[10].set(99)` return for `x = jnp.arange(6)`?
#
# - [ ] an `IndexError` | NumPy raises one. JAX raises no error for an index out of bounds.
# - [ ] an array that ends with 99 | A *read* returns the nearest entry. A write to that entry would destroy a correct value.
# - [x] an array equal to `x` | Right. An update out of bounds is dropped, whereas the index of a read is clamped to the nearest valid one.

# %%
print("read: ", x[10], x[-10], x[jnp.array([0, 3, 10])])
print("write:", x.at[10].set(99), x.at[jnp.array([0, 10])].add(1))

# %% [markdown]
# If an index is too large by one, NumPy raises an error and JAX continues with a wrong number. The argument `mode` of `get` and of the update methods selects the behaviour, and `jnp.take` fills with NaN by default. Negative indices count from the end, so -1 is in bounds and -10 is not.

# %%
places = jnp.array([0, 10, -1, -10])
print("clip:", x.at[places].get(mode="clip"), "  fill:", x.at[places].get(mode="fill", fill_value=-7))
print("jnp.take fills with NaN:", jnp.take(x.astype(jnp.float32), places))

# %% [markdown]
# ## Masks
# The number of entries that a mask selects depends on the values. A compiled program must know all its shapes in advance, so a mask works as an index only outside `jit`.

# %%
print(x[x > 3], x.at[x > 3].set(0), jnp.where(x > 3, 0, x))
print_error(lambda: jax.jit(lambda x: x.at[x > 3].set(0))(x), length=80)
print("under jit:", jax.jit(lambda x: jnp.where(x > 3, 0, x))(x))

# %% [markdown]
# `jnp.where(mask, new, old)` returns an array of the same shape for every mask, so it works everywhere.

# %% [markdown]
# ## Dtypes
# Accelerators are fastest with numbers of 32 bits or fewer, so JAX avoids wide dtypes. NumPy promotes int32 and float16 to float64, which can represent all values of both. JAX promotes them to float16.
#
# Python numbers are **[weakly typed](../docs/glossary.md#weak-type)**. They have a kind, such as integer or float, but no number of bits.

# %% [markdown] predict="arrays-weak"
# `half` is `jnp.ones(3, jnp.bfloat16)`. What are the dtypes of `half * 2.0` and `half * np.float32(2.0)`?
#
# - [ ] float32, both | The Python number 2.0 is weakly typed, so it takes the dtype of `half`.
# - [ ] bfloat16, both | `np.float32(2.0)` has a dtype and takes part in promotion like an array of 32 bits.
# - [x] bfloat16 and float32 | Right. One NumPy constant can promote a whole bfloat16 computation to float32, which doubles its memory.

# %%
half, small = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.int8)
results = {
    "bfloat16 * 2.0": half * 2.0,
    "bfloat16 * np.float32(2.0)": half * np.float32(2.0),
    "bfloat16 * np.float64(2.0)": half * np.float64(2.0),
    "bfloat16 + int32": half + jnp.arange(3),
    "int32 + float16": jnp.arange(3) + jnp.ones(3, jnp.float16),
    "bfloat16 + float16": half + jnp.ones(3, jnp.float16),
    "int8 + 100": small + 100,
    "int8 + uint8": small + jnp.ones(3, jnp.uint8),
    "int8 * 2.5": small * 2.5,
    "int8 / int8": small / small,
    "jnp.asarray(2.5)": jnp.asarray(2.5),
}
for name, result in results.items():
    print(f"{name:28s} {jax.typeof(result)!s:12s} {result.nbytes:3d} bytes")
print("int32 + float16 in NumPy:   ", (np.arange(3, dtype=np.int32) + np.ones(3, np.float16)).dtype)

# %% [markdown]
# `jax.typeof` returns the dtype and the shape of an array, and `~` marks a weakly typed one. A Python number changes the dtype only if its kind is higher than that of the array, as in `int8 * 2.5`, and the result is then weakly typed too. NumPy's float64 was converted to float32 before promotion. An operator between two NumPy operands follows NumPy's rules, and `/` of two integers gives float32. Otherwise two operands are promoted to the nearest dtype that both lead to in this figure.
#
# ![Dtypes joined by arrows, from left to right: bool leads to Python's int, that to uint8 and int8, both to int16, then int32, then Python's float, that to bfloat16 and float16, and both to float32. Two operands are promoted to the nearest dtype that both lead to.](../images/arrays_dtypes.svg)

# %% [markdown]
# ## 32 bits by default
# JAX creates no 64-bit arrays unless you enable them. If you request float64, you get float32 and a warning. Data from NumPy can need more than 32 bits.

# %% [markdown] predict="arrays-overflow"
# What is `jnp.asarray(np.array([2**31 + 5]))`, an int64 array from NumPy, with JAX's default settings?
#
# - [ ] an `OverflowError` | The *Python* number `2**31 + 5` raises it, because JAX checks the value of a Python number.
# - [x] a negative number | Right. The upper 32 bits are dropped without a warning, which destroys timestamps, hashes and row numbers of large tables.
# - [ ] the largest int32 | JAX clamps the index of a read. It does not check the values of an array.

# %%
print_error(lambda: jnp.asarray(2**31 + 5))
print(jnp.asarray(np.array([2**31 + 5])), "  pi from NumPy:", jnp.asarray(np.array([np.pi])).dtype)
print("2**24 + 1 == 2**24 in float32:", jnp.float32(2**24) + 1 == jnp.float32(2**24))
with jax.enable_x64(True):
    print("with 64 bits:", jnp.asarray(np.array([2**31 + 5])), jnp.ones(3).dtype, jnp.float32(1).dtype)

# %% [markdown]
# The comparison shows that float32 cannot represent 2**24 + 1. It represents all integers up to 2**24, or 16,777,216, which is about seven digits. To enable 64 bits, begin a program with `jax.config.update("jax_enable_x64", True)` or set the environment variable `JAX_ENABLE_X64=1`.

# %% [markdown]
# ## Asynchronous dispatch
# When a line of NumPy code has run, its result is complete.

# %% [markdown] predict="arrays-dispatch"
# A product of two matrices of 1,500 x 1,500 takes tens of milliseconds on a CPU. How long does the line `product = matrix @ matrix` take?
#
# - [ ] tens of milliseconds | After this time the result is complete, but the line itself does not wait for it.
# - [ ] nothing until it is printed | JAX is not lazy. The computation starts now, whether or not you use its result.
# - [x] less than one millisecond | Right. The line only dispatches the operation. If you time only this line, the product seems far faster than it is.

# %%
matrix = jnp.asarray(np.random.default_rng(1).normal(size=(1500, 1500)), jnp.float32)
(matrix @ matrix).block_until_ready()  # the first call compiles


def time_product():
    start = time.perf_counter()
    product = matrix @ matrix
    returned, ready = time.perf_counter() - start, product.is_ready()
    product.block_until_ready()
    return 1e3 * returned, 1e3 * (time.perf_counter() - start), ready


returned, complete, ready = min(time_product() for _ in range(5))
print(f"the line returned after {returned:.2f} ms (ready: {ready}), its result was ready after {complete:.2f} ms")

# %% [markdown]
# ![Two timelines. Without waiting: Python dispatches three products and reads the clock at once, while the device has only begun the first; the time measured is the dispatch. With block_until_ready: Python waits until the device has finished the last one, then reads the clock.](../images/arrays_async.svg)
#
# The line returns an array whose values are still being computed. Thanks to this **[asynchronous dispatch](../docs/glossary.md#asynchronous-dispatch)**, Python prepares the next operations while the device works.
#
# Code that needs the values, such as `print`, `float()`, `np.asarray` or `if`, waits for them. So a `print(loss)` makes Python wait for the device in every step of a training loop.
#
# To measure a time, wait with `jax.block_until_ready(result)`, which also accepts a container of arrays. Exclude the first call, which compiles, and measure several calls. The imported `time_ms` does this and returns a median.

# %% [markdown]
# ## Devices
# Every array is stored on a device, or on several (lesson 16). New arrays are placed on the default device. `jax.device_put` places an array on a device of your choice and **[commits](../docs/glossary.md#committed)** it to this device.

# %%
first, second = jax.devices("cpu")[:2]
free, placed = jnp.ones(3), jax.device_put(jnp.ones(3), second)
print("default:", free.device, " placed:", placed.device, " committed:", free.committed, placed.committed)
print("their sum is on", (free + placed).device)
print_error(lambda: jax.device_put(free, first) + placed)

# %% [markdown]
# An operation runs where its committed operands are, and uncommitted operands are copied there. If operands are committed to different devices, JAX raises an error. The CPU appears as two devices here, because the first cell requested two.

# %% [markdown]
# The core ends here. Continue with a Deeper section, or go to the [summary](#Summary) and the exercises.

# %% [markdown]
# ## Deeper: the cost of an update
# The next cell measures the time of updates of an array of 40 MB.

# %%
big = jnp.zeros(10_000_000, jnp.float32)


def ten_updates(x):
    for i in range(10):
        x = x.at[i].set(1.0)
    return x


compiled_updates = jax.jit(ten_updates)
ways = {"one update": lambda: big.at[0].set(1.0), "ten updates": lambda: ten_updates(big)}
ways["ten updates under jit"] = lambda: compiled_updates(big)
for way, took in zip(ways, time_ms(*ways.values(), repeats=3), strict=True):
    print(f"{way:22s} {took:6.1f} ms")
scratch = compiled_updates.lower(big).compile().memory_analysis().temp_size_in_bytes
print(f"memory for intermediate arrays under jit: {scratch} bytes")

# %% [markdown]
# Outside `jit`, each update makes a new array of 40 MB. In a compiled function, XLA updates the intermediate arrays in place, so ten updates take about as long as one. Put loops of updates under `jit`.

# %% [markdown]
# ## Deeper: options of `.at`
# The documented default mode of `.at` is `"promise_in_bounds"`. You promise that all indices are valid, and JAX does not have to check them. Clamped reads and dropped updates are what happens in practice if you break the promise. The other modes, `"clip"`, `"drop"` and `"fill"`, are reliable.

# %%
five = jnp.arange(5.0)
print("clip:", five.at[10].add(100, mode="clip"), "  drop:", five.at[10].add(100, mode="drop"))
print("fill:", five.at[10].get(mode="fill"), "  for integers:", jnp.arange(5).at[10].get(mode="fill"))
print("-1 counts from the end:", five.at[-1].set(7))
print("-1 is out of bounds:   ", five.at[-1].set(7, mode="drop", wrap_negative_indices=False))
print("apply:", five.at[1:3].apply(jnp.cos))

# %% [markdown]
# Differentiation shows why you should not rely on the default. The derivative of a gather is a scatter. The gather clamps and the scatter drops, so this read returns the last entry, but its derivative with respect to that entry is 0 instead of 1.


# %%
def read(values):
    return values[jnp.array([10])].sum()


print("value:", read(five), "  derivative:", jax.grad(read)(five))

# %% [markdown]
# Two other arguments are promises about the indices, `unique_indices=True` and `indices_are_sorted=True`. They can make an update faster on some devices. If the promise is false, the result is undefined.

# %% [markdown]
# ## Deeper: arrays from NumPy buffers
# A slice of a JAX array behaves like a copy, because neither the slice nor the array can change. The next question is about an array that comes from NumPy.

# %% [markdown] predict="arrays-alias"
# `buffer` is a NumPy array of zeros, and `x = jax.device_put(buffer)` places it on a CPU. Then `buffer[0] = 5`. What is `x[0]`?
#
# - [x] 5, since the memory is shared | Right in this example, where JAX uses the buffer without a copy. On another device, or with another buffer, it can be 0.
# - [ ] 0, since a JAX array never changes | JAX never changes it. NumPy can, because on a CPU both arrays may use the *same memory*.
# - [ ] an error: the buffer is in use | An error would be useful, but nothing locks the buffer.

# %%
raw = np.zeros(4 * 1000 + 64, np.uint8)
start = -raw.ctypes.data % 64  # JAX can share a buffer whose address is a multiple of 64 bytes
buffer = raw[start : start + 4000].view(np.float32)

cpu = jax.devices("cpu")[0]
shared, safe = jax.device_put(buffer, cpu), jax.device_put(buffer.copy(), cpu)
buffer[0] = 5
print("shared:", shared[0], "  from a copy:", safe[0])

back = np.asarray(shared)
print("np.asarray is writeable:", back.flags.writeable, "  np.array:", np.array(shared).flags.writeable)

# %% [markdown]
# Data loaders often reuse a buffer, so this can corrupt a batch. **Do not write to a NumPy array after you have passed it to JAX**, or pass a copy. `jnp.array` makes a copy (`jnp.asarray` does not promise one), but it may return before the copy is complete. Call `block_until_ready()` on the result before you write to the NumPy array.
#
# The opposite direction is safe. `np.asarray` of a JAX array returns a read-only array, and `np.array` returns a copy. `jax.device_get` converts all arrays of a container.

# %% [markdown]
# ## Deeper: 16-bit floats
# There are two float formats with 16 bits. bfloat16 has the range of float32 with fewer digits. float16 has more digits than bfloat16, but a much smaller range.

# %%
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    largest, step, size = float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).eps), jnp.ones(1000, dtype).nbytes
    print(f"{dtype.__name__:8s} 1,000 numbers: {size} bytes   largest {largest:.5g}   after 1 comes 1 + {step:.3g}")
print("bfloat16: 256 + 1 =", jnp.bfloat16(256) + jnp.bfloat16(1))

# %% [markdown]
# Both are good for *storage*, but a running total needs more digits. The next cell adds 3,000 ones, one after the other, and rounds each total to the dtype.

# %%
_, axes = plots.subplots(height=2.6)
final = {}
for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
    running = np.cumsum(np.ones(3000, dtype)).astype(np.float32)
    final[dtype.__name__] = running[-1]
    axes.plot(running)
    axes.annotate(dtype.__name__, (3000, running[-1]), xytext=(5, -3), textcoords="offset points")
axes.set(xlabel="ones added", ylabel="running total", xlim=(0, 3400))
ends = ", ".join(f"{name} {total:,.0f}" for name, total in final.items())
plots.show(f"Running totals of 3,000 ones. The lines grow together at first. At the end they show {ends}.")

# %% [markdown]
# A bfloat16 total stops growing at 256, because 256 + 1 is rounded to 256. A float16 total stops at 2,048. A total of losses can stop in the same way, and no error reports it. An exercise asks you to add such numbers correctly.

# %% [markdown]
# ## Deeper: stricter settings
# JAX can raise an error where it would otherwise promote silently. `jax.numpy_dtype_promotion("strict")` rejects operands of two dtypes. Python numbers are still allowed. `jax.numpy_rank_promotion("raise")` rejects operands with different numbers of axes, because broadcasting can hide a mistake in a shape.

# %%
with jax.numpy_dtype_promotion("strict"):
    print((jnp.ones(3, jnp.bfloat16) * 2.0).dtype)
    print_error(lambda: jnp.ones(3, jnp.bfloat16) * jnp.ones(3), length=200)
with jax.numpy_rank_promotion("raise"):
    print_error(lambda: jnp.ones((3, 2)) + jnp.ones(2), length=160)

# %% [markdown]
# An update never promotes the array. The new values are converted to the array's dtype. JAX warns if this can lose information, and announces an error for a future release. A request for a 64-bit dtype gives a warning too.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(jnp.arange(3).at[0].set(1.75), "|", str(caught[-1].message)[:96])
    print(jnp.ones(3, jnp.float64).dtype, "|", str(caught[-1].message)[:104])

# %% [markdown]
# ## Deeper: more differences from NumPy
# The following differences are rare in practice, but surprising.

# %%
both("xp.arange(254.0, 258.0).astype('uint8')", "xp.float32(1e-45) + 0", "xp.nanargmin(xp.full(3, xp.nan))")

# %% [markdown]
# In this run, NumPy wraps 256 and 257 around to 0 and 1, and JAX saturates them at 255. Such conversions can differ between devices, so clip first. Floats below the normal range, which are called subnormal, become zero on some devices. `nanargmin` returns -1 if there is no valid entry.
#
# Functions such as `nonzero` and `unique` return arrays whose shape depends on the values. Their JAX versions accept an argument `size`, so that they work under `jit`.

# %%
where_large = lambda values: jnp.nonzero(values > 3, size=4, fill_value=-1)[0]
print(jax.jit(where_large)(jnp.array([5, 1, 7, 2])))

# %% [markdown]
# `jnp.array` of a list is slow under `jit`, because each number of the list becomes an argument of its own. The number of operations grows with the list.

# %%
total_of_list = lambda numbers: jnp.sum(jnp.array(numbers))
for n in (3, 30):
    print(n, "numbers:", len(primitives(total_of_list, [1.0] * n)), "operations")

# %% [markdown]
# ## Deeper: `jax.numpy` and `jax.lax`
# The functions of `jax.numpy` are built on those of `jax.lax`, which are stricter and closer to XLA. A `jnp` function first converts and promotes its arguments. A `lax` function does not.

# %%
whole = jnp.arange(3)
print("jnp.sin:", primitives(jnp.sin, whole), "  jnp.add:", primitives(jnp.add, whole, jnp.ones(3)))
print_error(lambda: jax.lax.sin(whole), length=200)
print_error(lambda: jax.lax.add(whole, jnp.ones(3)), length=200)

# %% [markdown]
# Use `jax.numpy` by default. Look in `jax.lax` for operations that NumPy does not have, such as general convolutions (11) and loops inside a program (08).

# %% [markdown]
# ## Deeper: mutable references
# `jax.new_ref` creates a `Ref`, a reference to a mutable array. You read and write it with brackets. A compiled function can update a `Ref` that it receives as an argument.

# %%
counts = jax.new_ref(jnp.zeros(3))


@jax.jit
def count(counts, i):
    counts[i] += 1.0


for i in (0, 2, 2):
    count(counts, i)
print(counts[...])
print_error(lambda: counts + 1.0)

# %% [markdown]
# A `Ref` is not an array, so functions need its contents, `counts[...]`. Use `.at` unless you need state that is updated in place.

# %% [markdown]
# ## Deeper: is JAX faster than NumPy?
# The answer depends on the sizes of the arrays. The next cells time a chain of eight matrix products, as in a network without biases and activations. They compare NumPy, JAX without and with `jit`, and PyTorch if it is installed. All use the same float32 numbers, converted before the measurement.

# %%
import importlib.util


def chain(x, matrices):
    for matrix in matrices:
        x = x @ matrix
    return x


contestants = {"NumPy": (chain, np.asarray), "JAX": (chain, jnp.asarray), "JAX, jit": (jax.jit(chain), jnp.asarray)}
if importlib.util.find_spec("torch"):
    import torch

    contestants["PyTorch"] = (chain, torch.from_numpy)

# %% [markdown] predict="arrays-fastest"
# Which of NumPy, JAX, and JAX with `jit` is the fastest for matrices of 8 x 8?
#
# - [x] NumPy | Right. About 4,000 multiplications take almost no time. The cost of each call dominates, and it is lowest in NumPy.
# - [ ] JAX, operation by operation | Each operation is dispatched to a device, and JAX tracks its pending result. This costs more than the product itself.
# - [ ] JAX with jit | It needs one dispatch instead of eight, which removes most of the difference, but not all.

# %%
sizes = [8, 32, 128, 512]
milliseconds = {name: [] for name in contestants}
for n in sizes:
    numbers = np.random.default_rng(n).normal(size=(9, n, n)).astype(np.float32) / n**0.5
    calls = []
    for function, convert in contestants.values():
        start, *others = [convert(matrix.copy()) for matrix in numbers]
        calls.append(lambda function=function, start=start, others=others: function(start, others))
    for name, took in zip(contestants, time_ms(*calls, repeats=5), strict=True):
        milliseconds[name].append(took)

# %%
_, axes = plots.subplots(height=3.2)
for (name, took), marker in zip(milliseconds.items(), "os^D", strict=False):
    axes.loglog(sizes, took, marker=marker, label=name)
axes.set(xlabel="rows and columns of each matrix", xticks=sizes, xticklabels=sizes)
axes.set(ylabel="median time of 8 products\nin milliseconds")
axes.minorticks_off()
axes.legend()
each = [f"{name} {took[0]:.3f} ms and {took[-1]:.2f} ms" for name, took in milliseconds.items()]
plots.show(
    f"Median times against matrix size, both axes logarithmic. With {sizes[0]} and {sizes[-1]} rows: {'; '.join(each)}."
)

# %% [markdown]
# Two observations hold on most machines. For small matrices the figure shows the cost of a call, and NumPy is faster than JAX. For large matrices all contestants spend their time in a library's matrix product, and `jit` changes little. If a time looks implausible, close other programs and measure again.
#
# The next example is a series of elementwise operations on a large array. A compiled program **fuses** them, so that no intermediate array is written to memory.


# %%
def bumps(x, xp):
    return xp.exp(-x * x) * xp.sin(3 * x) + 0.5 * xp.cos(x) ** 2 - x / (1 + x * x)


many = np.linspace(-3, 3, 2_000_000, dtype=np.float32)
on_device, compiled_bumps = jnp.asarray(many), jax.jit(lambda x: bumps(x, jnp))
took = time_ms(lambda: bumps(many, np), lambda: bumps(on_device, jnp), lambda: compiled_bumps(on_device))
for name, one in zip(("NumPy", "JAX", "JAX, jit"), took, strict=True):
    print(f"{name:10s} {one:8.2f} ms")
steps = len(primitives(lambda x: bumps(x, jnp), on_device))
fused = compiled_bumps.lower(on_device).compile().memory_analysis().temp_size_in_bytes
print(
    f"without jit, {steps} operations write {many.nbytes / 1e6:.0f} MB each; compiled, intermediate arrays need {fused} bytes"
)

# %% [markdown]
# The two times of JAX show what fusion saves. JAX on a CPU is not always faster than NumPy, whose loops are compiled too. You gain from `jit` over many operations, from `vmap` instead of Python loops, and from devices that NumPy cannot use.

# %% [markdown]
# ## Deeper: number of devices and GPU memory
# JAX creates its devices **when it is first used**, and the number of simulated CPU devices is then fixed. In a shell you can set it with `XLA_FLAGS=--xla_force_host_platform_device_count=8`. The attribute `sharding` of an array describes which devices store it and how (16).

# %%
print_error(lambda: jax.config.update("jax_num_cpu_devices", 8))
print("sharding:", jnp.ones(3).sharding)
for device in jax.local_devices():
    stats = device.memory_stats() or {}
    known = {name: f"{stats[name] / 2**30:.2f} GiB" for name in ("bytes_limit", "bytes_in_use") if name in stats}
    print(device, known or "reports no memory statistics")

# %% [markdown]
# On a GPU this cell prints `bytes_limit`, which is 75% of the memory. JAX reserves this part **when it is first used**. `nvidia-smi` therefore shows an almost full GPU for an array of three numbers, and a second process on the same GPU may run out of memory. `XLA_CLIENT_MEM_FRACTION=.40` reserves less. `XLA_PYTHON_CLIENT_PREALLOCATE=false` allocates memory as it is needed. Set these environment variables before JAX starts.

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.ops.index_update(x, i, y)`, `index_add` | `x.at[i].set(y)`, `.add(y)` |
# | `jnp.DeviceArray`, `jax.interpreters.xla.DeviceArray` | `jax.Array`, also in `isinstance` |
# | `x.device()`, `x.device_buffer` | `x.device`, `x.devices()`, `x.addressable_data(0)` |
# | `from jax.config import config` | `jax.config` |
# | `jax.experimental.enable_x64()` | `jax.enable_x64(True)` |
# | `x.to_py()`, `jax.dlpack.to_dlpack(x)` | `np.asarray(x)`, `torch.from_dlpack(x)` |
# | `jnp.clip(x, a_min=0)`, `jnp.in1d`, `jnp.trapz`, `jnp.row_stack` | `jnp.clip(x, min=0)`, `jnp.isin`, `jnp.trapezoid`, `jnp.vstack`, as in NumPy 2 |
# | `XLA_FLAGS=--xla_force_host_platform_device_count=8` | still available; in Python, `jax_num_cpu_devices` |
# | `XLA_PYTHON_CLIENT_MEM_FRACTION` | `XLA_CLIENT_MEM_FRACTION` |

# %% [markdown]
# ## Summary
#
# | NumPy | JAX |
# |---|---|
# | `x[where] = y`, `x[where] += y` | `x = x.at[where].set(y)`, `x = x.at[where].add(y)` |
# | `np.add.at(x, i, y)` | `x.at[i].add(y)`, which sums repeated indices |
# | `x[100]` raises an error | a read is clamped, an update is dropped; `mode` changes this |
# | `x[x > 3] = 0` | `jnp.where(x > 3, 0, x)` |
# | `x[[1, 2]]`, `np.sin([1.0])` | `x[jnp.array([1, 2])]`, `jnp.sin(jnp.array([1.0]))` |
# | float64, int64 | float32, int32; `jax_enable_x64` |
# | int32 + float16 is float64 | float16; Python numbers are weakly typed, NumPy's are not |
# | a line returns when its result is complete | it returns earlier; `jax.block_until_ready(result)` |
#
# In the first exercise only one line is missing.
