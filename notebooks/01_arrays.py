# %% [markdown]
# # 01 · Arrays: what changes when np becomes jnp
#
# *Forty minutes, then [the exercises](../exercises/01_arrays/01_arrays.ipynb).* Afterwards you can move array code from NumPy to JAX and name the lines that will behave differently: assignments, indices that do not exist, dtypes, and the clock. You can also say where an array lies, and compare speeds without fooling yourself.
#
# **Assumed.** Python, some NumPy, and [the start page](00_start_here.ipynb). Recall before you go on; answer first, then open the fold.
#
# 1. From 00: what does the compiler, XLA, want of a program before it can make it fast?
#
# <details><summary>Answer</summary>
#
# To see the whole of it, with known shapes. So: functions without side effects, and shapes that do not depend on values. Much of this lesson follows from that.
# </details>
#
# 2. From 00: what do `jax.jit`, `jax.grad` and `jax.vmap` take, and what do they give?
#
# <details><summary>Answer</summary>
#
# A function, and another function: the same one compiled (03), its derivative (04), or one for a whole batch (05).
# </details>
#
# 3. From NumPy: after `row = a[0]` and `row[:] = 7`, what stands in `a`?
#
# <details><summary>Answer</summary>
#
# Sevens, in its first row: a slice is a *view*, it shares memory with `a`.
# </details>

# %%
import jax

jax.config.update("jax_num_cpu_devices", 2)  # before JAX is first used; why, stands under "Where an array lies"

import importlib.util
import os
import time
import timeit
import warnings

import jax.numpy as jnp
import numpy as np

from grader.learning import plots


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:270]}")
    else:
        print("No error!")


def both(*expressions):
    """Evaluates each expression with `xp` as NumPy and as JAX; `x` is a row of ten numbers, 0 to 9."""
    for expression in expressions:
        print(expression)
        for name, xp in {"NumPy": np, "JAX": jnp}.items():
            try:
                result = repr(eval(expression, {"xp": xp, "x": xp.arange(10)}))
            except Exception as problem:
                result = f"{type(problem).__name__}: {str(problem)[:70]}"
            print(f"    {name:6s} {' '.join(result.split())}")


# %% [markdown]
# ## The question: which lines will differ?
# A script that works with NumPy is to run on a GPU. `import jax.numpy as jnp`, replace `np` by `jnp`, done? `jnp` has nearly all of NumPy's functions, under the same names, and most lines do the same:

# %%
both("x[7:1:-2]", "xp.where(x % 2 == 0, x, -x)", "(x[:, None] * x[:3]).shape", "xp.sqrt(x).std() > 0.5")

# %% [markdown]
# These four do not. Read them line by line, and say what surprises you; the rest of the lesson explains each.

# %%
both("x[20]", "x[[1, 2]]", "(x / 4).dtype", "x.__setitem__(0, 99)")

# %% [markdown]
# An index that does not exist gives an entry all the same; a list is no index; the result has 32 bits where NumPy takes 64; and nothing can be assigned.
#
# ## Arrays do not change
# A `jax.Array` keeps its values for ever. That is not a limitation of taste: a compiled program may run later, elsewhere, or twice, and must find what it was given. To "change" an array, make a new one. `x.at[where]` says where, a method says what:

# %%
x = jnp.arange(6)
changed = x.at[2].set(99)
print("x:", x, "  changed:", changed)
refusal(lambda: x.__setitem__(2, 99))

print(x.at[::2].multiply(10), x.at[-1].set(0), x.at[x > 3].set(-1), x.at[1:3].max(2))
x.at[0].set(7)  # a new array that nobody keeps: the most common slip of all
print("and x is still", x)

# %% [markdown]
# `where` is anything that you would put into brackets. There are `set`, `add`, `subtract`, `multiply`, `divide`, `power`, `min`, `max`, `apply`, and `get`. What if a place is named twice?

# %% [markdown] predict="arrays-twice"
# Three sales in the shops `[1, 1, 4]`, of `[5, 20, 3]`. What is shop 1's entry in `jnp.zeros(6).at[shops].add(amounts)`?
#
# - [ ] 20 | So NumPy does with `totals[shops] += amounts`: it reads both old values first, then writes twice, and the last one stays.
# - [x] 25 | Right: `.at[].add` is one operation in which all that meets in a place is added up.
# - [ ] an error: 1 comes twice | Repeated indices are allowed; counting and summing by group live on them.

# %%
shops, amounts = np.array([1, 1, 4]), np.array([5.0, 20.0, 3.0])
in_numpy = np.zeros(6)
in_numpy[shops] += amounts
print("NumPy, +=:        ", in_numpy)
print("JAX, .at[].add:   ", jnp.zeros(6).at[shops].add(amounts))
totals = jnp.zeros(6)
print("read, add, write: ", totals.at[shops].set(totals[shops] + amounts))

# %% [markdown]
# ![Above: x.at[2].set(99) leaves x as it is and makes a new array that differs in place 2. Below: amounts 5, 20 and 3 go to places 1, 1 and 4; with .add both that meet in place 1 are added up, 25; with .set one of them stays, 20.](../images/arrays_at.svg)
#
# (With `.set` and different values in one place, which one stays is not promised.) The operation is called a *scatter*, and reading `x[indices]` a *gather*. Does each update copy the whole array? Measure, here with 40 MB:

# %%
big = jnp.zeros(10_000_000, jnp.float32)


def ten_updates(x):
    for i in range(10):
        x = x.at[i].set(1.0)
    return x


def shortest(call, repeats=5):
    """Milliseconds of the fastest of `repeats` calls, each until its result is there; the first call does not count."""
    jax.block_until_ready(call())
    return 1e3 * min(timeit.repeat(lambda: jax.block_until_ready(call()), number=1, repeat=repeats))


compiled_updates = jax.jit(ten_updates)
print(f"one update:                {shortest(lambda: big.at[0].set(1.0)):7.1f} ms")
print(f"ten updates, one by one:   {shortest(lambda: ten_updates(big)):7.1f} ms")
print(f"ten updates, under jit:    {shortest(lambda: compiled_updates(big)):7.1f} ms")
scratch = compiled_updates.lower(big).compile().memory_analysis().temp_size_in_bytes  # lesson 02 goes this way slowly
print(f"memory that jit needs beside argument and result: {scratch} bytes")

# %% [markdown]
# One by one, ten updates take about ten times as long as one: each makes an array of 40 MB. In a compiled function the steps between are nobody's, and XLA writes over them in place: ten take about as long as one. So do not fear `.at`, but put loops full of it under `jit` (lesson 03 also gives the argument's memory away).
#
# ## Copies and views
# A slice of a JAX array behaves as a copy, always: there is no way to write to the original through it. What comes *from* NumPy, and what goes *to* it?

# %% [markdown] predict="arrays-alias"
# `x = jax.device_put(buffer)` on a CPU, with a NumPy array `buffer` of zeros. Then `buffer[0] = 5`. What is `x[0]`?
#
# - [x] 5, since the memory is shared | Right, here: the buffer was taken as it is, without a copy. Elsewhere, or with another buffer, it can be 0.
# - [ ] 0, since a JAX array never changes | JAX never changes it. NumPy may: on a CPU, both can hold the *same memory*.
# - [ ] an error: the buffer is in use | It would be welcome. Nothing locks it.

# %%
raw = np.zeros(4 * 1000 + 64, np.uint8)
start = -raw.ctypes.data % 64  # a buffer may be shared where it begins at a multiple of 64 bytes
buffer = raw[start : start + 4000].view(np.float32)

cpu = jax.devices("cpu")[0]
shared, safe = jax.device_put(buffer, cpu), jax.device_put(buffer.copy(), cpu)
buffer[0] = 5
print("shared:", shared[0], "  from a copy:", safe[0])

back = np.asarray(shared)  # the way to NumPy; also jax.device_get, for whole containers
print(type(back).__name__, "writeable:", back.flags.writeable, "  np.array(...) is:", np.array(shared).flags.writeable)

# %% [markdown]
# So the rule for data loaders: **an array that was handed to JAX is not written to again**, or a copy is handed over. `jnp.asarray` and `jnp.array` copy, perhaps after the line has returned (this notebook does not catch them at it): `block_until_ready()` before you write. The way back is safe: what `np.asarray` gives forbids writing.
#
# Otherwise the two mix freely. `jnp` functions take NumPy arrays; an operator with one JAX array gives a JAX array; NumPy's *functions* give NumPy arrays, computed on the CPU. Lists are refused: write `jnp.array(...)` where one is to become an array.

# %%
row = jnp.ones(3)
print([type(result).__name__ for result in (jnp.sin(np.ones(3)), np.ones(3) + row, np.sin(row))])
refusal(lambda: jnp.sin([1.0, 2.0]))

# %% [markdown]
# ## Indices that do not exist
# A program on an accelerator has nobody to raise an error to.

# %% [markdown] predict="arrays-bounds"
# At the start, `x[20]` gave an entry. With `x = jnp.arange(6)`, what is `x.at[10].set(99)`?
#
# - [ ] an `IndexError` | That is NumPy. Here nothing is raised, ever, once indices are values of the program.
# - [ ] 99 in the last place | *Reading* takes the nearest entry. But writing there would destroy a good value.
# - [x] `x`, nothing changed | Right: an update out of bounds is dropped, while a gather is clamped to the nearest end.

# %%
print("read: ", x[10], x[-10], x[jnp.array([0, 3, 10])])
print("write:", x.at[10].set(99), x.at[jnp.array([0, 10])].add(1))

# %% [markdown]
# Off by one, and NumPy stops; JAX goes on with a wrong number. Say what you want by `mode`. Negative indices count from the end first, so `-1` is never out of bounds:

# %%
places = jnp.array([0, 10, -1, -10])
print("clip:", x.at[places].get(mode="clip"), "  fill:", x.at[places].get(mode="fill", fill_value=-7))
print("jnp.take fills as well:", jnp.take(x.astype(jnp.float32), places))

# %% [markdown]
# The rest of indexing is NumPy's: a step of `-1` reverses, `None` adds an axis of size 1, integer arrays that broadcast together pick entry by entry, and one of them alone picks rows.

# %%
table = jnp.arange(12).reshape(3, 4)
rows, columns = jnp.array([0, 2]), jnp.array([3, 1])
print("reversed rows: ", table[:, ::-1][0], "  a column:", table[:, 1, None].shape)
print("entry by entry:", table[rows, columns], "  grid:", table[rows[:, None], columns].tolist())
mask = table % 5 == 0
print("a mask:        ", table[mask], "  where:", jnp.where(mask, table, 0)[1])

# %% [markdown]
# The mask matters later: how many entries a mask picks depends on the *values*, and a compiled program needs to know its shapes beforehand (02). `jnp.where(mask, new, old)` keeps the shape, and works in a program; `.at[mask]` asks for the number of places too, and works only outside one.
#
# ## Dtypes
# Accelerators are built for 32 bits and fewer, so JAX promotes differently from NumPy. Where two arrays meet, the result has the smallest dtype that the *kinds* of both need, not the one that holds every value: int32 with float16 is float16. And Python's own numbers are **weakly typed**: they bring a kind (whole, or with a fraction), and take their bits from the array that they meet.

# %% [markdown] predict="arrays-weak"
# `half = jnp.ones(3, jnp.bfloat16)`. What are the dtypes of `half * 2.0` and `half * np.float32(2.0)`?
#
# - [ ] float32, both | The Python number 2.0 has no bits to insist on. NumPy's has.
# - [ ] bfloat16, both | `np.float32(2.0)` is an array as far as promotion goes, and asks for 32 bits.
# - [x] bfloat16 and float32 | Right. One NumPy constant can silently double the memory of a whole model.

# %%
half, whole = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.int8)
results = {
    "bfloat16 * 2.0": half * 2.0,
    "bfloat16 * np.float32(2.0)": half * np.float32(2.0),
    "bfloat16 * np.float64(2.0)": half * np.float64(2.0),
    "bfloat16 + int32 array": half + jnp.arange(3),
    "bfloat16 + float16": half + jnp.ones(3, jnp.float16),
    "int8 + 100": whole + 100,
    "int8 + uint8": whole + jnp.ones(3, jnp.uint8),
    "int8 * 2.5": whole * 2.5,
    "int8 / int8": whole / whole,
    "jnp.asarray(2.5)": jnp.asarray(2.5),
}
for name, result in results.items():
    print(f"{name:28s} {jax.typeof(result)!s:12s} {result.nbytes:3d} bytes")

# %% [markdown]
# `jax.typeof` shows what JAX knows of an array: dtype and shape, and `~` marks a weak type, which a result keeps when only numbers without a dtype decided. NumPy's float64 came in as float32.
#
# ![Dtypes joined by arrows, from left to right: bool leads to Python's int, that to uint8 and int8, both to int16, then int32, then Python's float, that to bfloat16 and float16, and both to float32. Two operands meet in the nearest dtype that both lead to.](../images/arrays_dtypes.svg)
#
# To have every silent promotion refused, set `jax_numpy_dtype_promotion`; Python's numbers stay welcome. Assigning never promotes: the *array's* dtype wins, and a fraction is cut off, with a warning that will be an error one day. Asking for 64 bits earns a warning, too.

# %%
with jax.numpy_dtype_promotion("strict"):
    print((half * 2.0).dtype)
    refusal(lambda: half * jnp.ones(3))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(jnp.arange(3).at[0].set(1.75), "|", str(caught[-1].message)[:96])
    print(jnp.ones(3, jnp.float64).dtype, "|", str(caught[-1].message)[:104])

# %% [markdown]
# ## 32 bits, 64 bits, 16 bits
# JAX makes no 64-bit number unless it is told to beforehand. Ask for one, and you get 32 bits and that warning. And what if a number comes that needs more?

# %% [markdown] predict="arrays-overflow"
# `jnp.asarray(np.array([2**31 + 5]))`, an int64 from NumPy, with JAX's usual settings, is …
#
# - [ ] an `OverflowError` | That is what the *Python* number `2**31 + 5` earns, as its value is looked at.
# - [x] a negative number | Right: the upper 32 bits are cut off, without a word. Timestamps, hashes and row numbers of large tables die this way.
# - [ ] the largest int32 | So an index out of bounds is moved to the nearest end. Here nobody looks at the value.

# %%
refusal(lambda: jnp.asarray(2**31 + 5))
print(jnp.asarray(np.array([2**31 + 5])), " pi from NumPy:", jnp.asarray(np.array([np.pi])).dtype)
print("float32 counts up to 16,777,216:", jnp.float32(2**24) + 1 == jnp.float32(2**24))
with jax.enable_x64(True):
    print("with 64 bits:", jnp.asarray(np.array([2**31 + 5])), jnp.ones(3).dtype, jnp.float32(1).dtype)

# %% [markdown]
# For a whole program: `jax.config.update("jax_enable_x64", True)` first thing, or `JAX_ENABLE_X64=1 python …`. Then NumPy's float64 stays float64, at twice the memory. In the other direction there are two formats of 16 bits: bfloat16 has the range of float32 and fewer digits, float16 more digits and a small range. Both are for *storing*; what is added up needs more:

# %%
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    largest, step, size = float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).eps), jnp.ones(1000, dtype).nbytes
    print(
        f"{dtype.__name__:8s} 1,000 numbers: {size} bytes, the largest is {largest:.5g}, after 1 comes 1 + {step:.3g}"
    )
total = jnp.bfloat16(0)
for _ in range(300):
    total = total + jnp.bfloat16(1)
print("300 times 1, added up in bfloat16:", total, "  since 256 + 1 is", jnp.bfloat16(256) + jnp.bfloat16(1))

# %% [markdown]
# A loss kept like this stops moving, and no error says so. How to add up right is an exercise.
#
# ## The clock
# In NumPy, a line has done its work when Python goes on to the next one.

# %% [markdown] predict="arrays-dispatch"
# A product of two matrices of 1,500 x 1,500 takes tens of milliseconds on a CPU. How long does the line `product = matrix @ matrix` take?
#
# - [ ] tens of milliseconds | That is until the result is there. The line itself does not wait.
# - [ ] nothing until it is printed | JAX is not lazy: the work begins now, whether anybody looks or not.
# - [x] less than one millisecond | Right: it is sent off. Time *that*, and everything looks a hundred times too fast.

# %%
matrix = jnp.asarray(np.random.default_rng(1).normal(size=(1500, 1500)), jnp.float32)
float((matrix @ matrix)[0, 0])  # the first calls compile, for this shape


def sent_and_there():
    start = time.perf_counter()
    product = matrix @ matrix
    sent, ready = time.perf_counter() - start, product.is_ready()
    product.block_until_ready()
    return 1e3 * sent, 1e3 * (time.perf_counter() - start), ready


sent, there, ready = min(sent_and_there() for _ in range(5))
print(f"sent after {sent:.2f} ms (ready: {ready}), there after {there:.2f} ms")

start = time.perf_counter()
corner = float((matrix @ matrix)[0, 0])
print(f"a number of it in Python's hands after {1e3 * (time.perf_counter() - start):.2f} ms")

# %% [markdown]
# ![Two timelines. Without waiting: Python sends three products off and reads the clock at once, while the device has only begun the first; the time measured is the dispatch. With block_until_ready: Python waits until the device has finished the last one, then reads the clock.](../images/arrays_async.svg)
#
# Python's part in `x @ x` is to send the operation off. It returns at once, with an array whose values are still on their way. This is **asynchronous dispatch**: Python prepares the next step while the device works.
#
# Everything that needs *numbers* in Python waits by itself: `print`, `float()`, `np.asarray`, an `if`. In a training loop `print(loss)` in each step makes Python and the device take turns. For a clock there is `jax.block_until_ready`, which takes a whole container of arrays. Two more rules: the first call compiles and is timed apart; and a single number is an anecdote, so take several.
#
# ## Is it faster than NumPy?
# Eight products in a row, the shape of a network without its bias: NumPy, JAX operation by operation, JAX compiled as one program, and PyTorch where it is installed. The same float32 numbers for all, converted before the clock starts, warmed up, waited for, and the shortest of five calls: whatever else the computer does can only add to it.


# %%
def chain(x, matrices):
    for matrix in matrices:
        x = x @ matrix
    return x


ways = {"NumPy": (chain, np.asarray), "JAX": (chain, jnp.asarray), "JAX, jit": (jax.jit(chain), jnp.asarray)}
if importlib.util.find_spec("torch"):
    import torch

    ways["PyTorch"] = (chain, torch.from_numpy)

# %% [markdown] predict="arrays-fastest"
# Matrices of 8 x 8. Who is first?
#
# - [x] NumPy | Right: 8,000 multiplications are nothing, so what counts is how much Python and dispatch surround each call, and NumPy has least.
# - [ ] JAX, operation by operation | Each operation is sent to a device, which keeps book of a result that is not there yet. That costs more than the product.
# - [ ] JAX with jit | One dispatch instead of eight. It closes most of the gap, but not all.

# %%
sizes = [8, 32, 128, 512]
milliseconds = {name: [] for name in ways}
for n in sizes:
    matrices = np.random.default_rng(n).normal(size=(9, n, n)).astype(np.float32) / n**0.5
    for name, (function, convert) in ways.items():
        first, *others = [convert(matrix.copy()) for matrix in matrices]
        milliseconds[name].append(shortest(lambda: function(first, others)))

print(f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}; milliseconds\n{'':10s}", *(f"{n:>8d}" for n in sizes))
for name, took in milliseconds.items():
    print(f"{name:10s}", *(f"{each:8.3f}" for each in took))

_, axes = plots.subplots(height=3.2)
for (name, took), marker in zip(milliseconds.items(), "os^D", strict=False):
    axes.loglog(sizes, took, marker=marker, label=name)
axes.set(
    xlabel="rows and columns of each matrix", ylabel="milliseconds for 8 products", xticks=sizes, xticklabels=sizes
)
axes.minorticks_off()
axes.legend()
first, last = (sorted(milliseconds, key=lambda name: milliseconds[name][place]) for place in (0, -1))
plots.show(
    f"The table above as lines, both axes logarithmic. Fastest first, with 8 rows: {'; '.join(first)}; "
    f"with 512 rows: {'; '.join(last)}."
)

# %% [markdown]
# Read your own table; two things hold on most machines. On the left, what is timed is the *calling*, and NumPy is first. On the right, all of them spend their time in the same thing, a library's matrix product on all cores: whoever is ahead there has the better product for this machine, and `jit` has little to add. A number that looks absurd probably is: other programs use the same cores, and threads wait for each other. Close them, and measure again.
#
# Now a chain of *small* steps on a large array. As one program they are **fused**: nothing in between goes to memory.


# %%
def bumps(x, xp):
    return xp.exp(-x * x) * xp.sin(3 * x) + 0.5 * xp.cos(x) ** 2 - x / (1 + x * x)


many = np.linspace(-3, 3, 2_000_000, dtype=np.float32)
on_device, compiled_bumps = jnp.asarray(many), jax.jit(lambda x: bumps(x, jnp))
took = {
    "NumPy": shortest(lambda: bumps(many, np)),
    "JAX": shortest(lambda: bumps(on_device, jnp)),
    "JAX, jit": shortest(lambda: compiled_bumps(on_device)),
}
for name, each in took.items():
    print(f"{name:10s} {each:8.2f} ms")
steps = len(jax.make_jaxpr(lambda x: bumps(x, jnp))(on_device).eqns)  # what that is, lesson 02 says
scratch = compiled_bumps.lower(on_device).compile().memory_analysis().temp_size_in_bytes
print(f"one by one, {steps} operations write {many.nbytes / 1e6:.0f} MB each; compiled, {scratch} bytes lie between")

# %% [markdown]
# The two rows of JAX show what fusing saves. Against NumPy it says little: on a few cores NumPy may keep up with both, its loops are compiled as well. So JAX on a CPU is not, by itself, a faster NumPy. The gain comes from `jit` over many operations, from `vmap` instead of Python loops, and from devices that NumPy cannot use.
#
# ## Where an array lies
# Every array lies on a device (or on several, lesson 16). What you do not place goes to the first one, and follows whatever it meets; what you place with `jax.device_put` is **committed** and stays.

# %%
first, second = jax.devices("cpu")[:2]
free, placed = jnp.ones(3), jax.device_put(jnp.ones(3), second)
print("default:", free.device, " placed:", placed.device, " committed:", free.committed, placed.committed)
print("their sum is on", (free + placed).device)
refusal(lambda: jax.device_put(free, first) + placed)

# %% [markdown]
# Nothing travels between devices unless you say so: an error is better than a slow program. The second CPU device is simulated, and comes from the first cell: JAX counts its devices **once, at first use**, so the number must be said before. (In a shell: `XLA_FLAGS=--xla_force_host_platform_device_count=8`.)

# %%
refusal(lambda: jax.config.update("jax_num_cpu_devices", 8))
for device in jax.local_devices():
    stats = device.memory_stats() or {}
    known = {name: f"{stats[name] / 2**30:.2f} GiB" for name in ("bytes_limit", "bytes_in_use") if name in stats}
    print(device, known or "does not say")

# %% [markdown]
# On a GPU that cell shows `bytes_limit`, and it is 75% of the memory: JAX takes that much **at first use**, and hands it out itself. That is why `nvidia-smi` shows a full GPU for an array of three numbers, and why a second process on the same GPU, PyTorch's or your other notebook's, may find nothing left. `XLA_CLIENT_MEM_FRACTION=.40` takes less, `XLA_PYTHON_CLIENT_PREALLOCATE=false` takes what is needed as it comes; both have to stand in the environment before JAX starts.
#
# ## Summary
#
# | NumPy | JAX |
# |---|---|
# | `x[where] = y`, `x[where] += y` | `x = x.at[where].set(y)`, `.add(y)`; keep the result |
# | `np.add.at(x, i, y)`, repeated indices add up | `x.at[i].add(y)` does |
# | a slice is a view | behaves as a copy; but hand over a NumPy buffer, and never write to it again |
# | `x[100]` raises | reading gives the nearest entry, writing is dropped; `mode="fill"` says otherwise |
# | `x[[1, 2]]`, `np.sin([1.0])` | `x[jnp.array([1, 2])]`: make the array yourself |
# | float64, int64 | float32, int32, silently; `jax_enable_x64` |
# | int32 + float16 is float64 | float16; Python numbers are weak, NumPy's are not |
# | a line returns when it is done | when it is sent off; `jax.block_until_ready(result)` |
# | memory of the computer | `x.device`, `jax.device_put`, `jax.device_get`; 75% of a GPU at first use |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `jax.ops.index_update(x, i, y)`, `index_add` | `x.at[i].set(y)`, `.add(y)` |
# | `jnp.DeviceArray`, `jax.interpreters.xla.DeviceArray` | `jax.Array`, also in `isinstance` |
# | `x.device()`, `x.device_buffer` | `x.device`, `x.devices()`, `x.addressable_data(0)` |
# | `from jax.config import config` | `jax.config` |
# | `jax.experimental.enable_x64()` | `jax.enable_x64(True)` |
# | `x.to_py()`, `jax.dlpack.to_dlpack(x)` | `np.asarray(x)`, `torch.from_dlpack(x)` |
# | `jnp.clip(x, a_min=0)`, `jnp.in1d`, `jnp.trapz`, `jnp.row_stack` | `jnp.clip(x, min=0)`, `jnp.isin`, `jnp.trapezoid`, `jnp.vstack`: as NumPy 2 |
# | `XLA_FLAGS=--xla_force_host_platform_device_count=8` | still there; from Python, `jax_num_cpu_devices` |
# | `XLA_PYTHON_CLIENT_MEM_FRACTION` | `XLA_CLIENT_MEM_FRACTION` |
#
# Next: the exercises. The first has one line missing.
