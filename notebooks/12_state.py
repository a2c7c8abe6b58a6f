# %% [markdown]
# # 12 · State: values that change between calls
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/12_state/12_state.ipynb).* After the core you can pass state through pure functions, use mutable arrays (Refs) inside and outside compiled functions, predict which uses of a Ref JAX rejects, and read from a compiled program whether an array is updated in place.
#
# **Prerequisites.** Tracing (02), `jit` and donation (03), `grad` (04), `vmap` (05), pytrees (06), and `scan` (08). Answer these questions from memory.
#
# 1. From 02: A function under `jit` appends to a Python list. How often does it append in ten calls with the same shape?
#
# <details><summary>Answer</summary>
#
# Once. Python code runs while JAX traces the function, and only the first call traces it.
# </details>
#
# 2. From 03: What does the donation of an argument allow XLA to do?
#
# <details><summary>Answer</summary>
#
# It can store a result of the same shape and dtype in the memory of the argument. The argument is deleted.
# </details>
#
# 3. From 08: What must be equal in all iterations of a `scan`?
#
# <details><summary>Answer</summary>
#
# The structure, shapes and dtypes of the carry.
# </details>

# %%
import itertools

import jax
import jax.numpy as jnp
import numpy as np

# Helpers of this course, which plot, print errors and measure times:
from grader.learning import plots
from grader.learning.inspection import print_error, time_ms

# %% [markdown]
# ## A counter in a compiled function
# Programs have **state**, which is data that one call changes and a later call reads. Examples are the optimizer state (09), random keys (07) and, if you have read about them, the Variables of a module (10). In Python, state is usually an attribute of an object.


# %%
class Counter:
    def __init__(self):
        self.n = 0

    def count(self):
        self.n += 1
        return self.n


# %% [markdown] predict="state-attribute"
# `count = jax.jit(Counter().count)`. What do three calls of `count()` return?
#
# - [ ] 1, 2, 3 | This is what Python returns without `jit`.
# - [x] 1, 1, 1 | Right. Python adds 1 to the attribute once, during tracing. The compiled program returns the constant 1.
# - [ ] an error | JAX cannot detect that a function changes an attribute.

# %%
counter = Counter()
count = jax.jit(counter.count)
print("results:", count(), count(), count(), "  attribute:", counter.n)
print(jax.make_jaxpr(Counter().count)())

# %% [markdown]
# The program has no input, no operation, and a constant result. The attribute is not part of it, and JAX raises no error.
#
# ## Pass the state in and out
# The standard solution is a [pure function](../docs/glossary.md#pure-function). It takes the state as an argument and returns the new state with its result. The caller stores the state. This is called *threading* the state.


# %%
@jax.jit
def count(n):
    n = n + 1
    return n, n  # (new state, result)


n = 0
for _ in range(3):
    n, result = count(n)
    print(result, end=" ")
print(jax.make_jaxpr(count)(0))

# %% [markdown]
# Any [pytree](../docs/glossary.md#pytree) can be threaded. A training step with Optax takes and returns parameters and optimizer state. The next function removes the slow drift of a sensor. Its state is a running mean that gives recent readings more weight. The signature `(state, x) -> (state, result)` is the one that `scan` needs, so the state becomes the [carry](../docs/glossary.md#carry).


# %%
def remove_drift(mean, x):
    mean = 0.95 * mean + 0.05 * x
    return mean, (x - mean, mean)


def clean(xs):
    _, (cleaned, means) = jax.lax.scan(remove_drift, xs[0], xs)
    return cleaned, means


rng = np.random.default_rng(12)
time = np.arange(300)
xs = jnp.asarray(np.sin(time / 60) + 0.2 * rng.normal(size=300), jnp.float32)
cleaned, means = jax.jit(clean)(xs)

# %%
_, axes = plots.subplots(height=2.6)
axes.plot(xs, linewidth=0.9, linestyle="-", label="readings")
axes.plot(means, label="state: the running mean")
axes.plot(cleaned - 2.2, linewidth=0.9, linestyle="-", color=plots.COLOURS[2], label="result, shifted by -2.2")
axes.set(xlabel="reading", ylim=(-3.4, 2.6))
axes.legend(loc="upper right", ncols=3)
plots.show(
    f"300 noisy readings on a slow wave, with a standard deviation of {xs.std():.2f}. The running mean follows the wave "
    f"with a delay. The result, reading minus mean, stays near 0, with a standard deviation of {cleaned.std():.2f}."
)

# %% [markdown]
# Every transformation accepts `clean`, because it is pure. But to record one number deep in a model, you must change all functions on the path to it. And without donation, each new state is a new array.
#
# ## A Ref is an array that can change
# A **Ref** is a mutable array, or more exactly a reference to one. `jax.new_ref` creates it from an initial value, which it copies. You read and write it by indexing, and `ref[...]` is the whole array.

# %%
ref = jax.new_ref(jnp.zeros(3))
ref[1] = 5.0
before = ref[...]  # reading returns an ordinary array, which never changes
ref[...] = 2 * ref[...] + 1
print(ref, "  before:", before, "  type:", jax.typeof(ref))
print_error(lambda: ref + 1)

# %% [markdown]
# You can index a Ref but not compute with it, so write `ref[...] + 1`.

# %% [markdown] predict="state-ref-closure"
# The compiled function in the next cell takes no argument. It closes over a Ref and adds 1 to it. What do three calls return?
#
# - [ ] 1, 1, 1 | An ordinary array would be a constant of the program. A Ref is not.
# - [x] 1, 2, 3 | Right. JAX makes the Ref a hidden argument of the program, which reads and writes it in each call.
# - [ ] an error, because the function has a side effect | JAX records operations on Refs, so this side effect is part of the program.

# %%
count_ref = jax.new_ref(jnp.int32(0))


@jax.jit
def count():
    count_ref[...] += 1
    return count_ref[...]


print("results:", count(), count(), count(), "  the Ref:", count_ref)
print(jax.make_jaxpr(count)())

# %% [markdown]
# In the [jaxpr](../docs/glossary.md#jaxpr), `Ref{i32[]}` is an input. The line `c:i32[] <- a[...]` is a read. A write has `a[...]` on both sides of the arrow. The figure compares the three programs.
#
# ![Three compiled counters. Attribute: the program has no input, its result is the constant 1, and the attribute stays in Python, where tracing changed it once. Carry: the program takes n and returns n + 1 as a new array, and the caller stores it. Ref: the program takes the Ref as a hidden input and overwrites its memory, and only the result is returned.](../images/state_three_ways.svg)
#
# A lambda, which cannot contain assignments, writes with `jax.ref.set(ref, i, x)`. Three more functions supplement indexing.
#
# | you write | effect |
# |---|---|
# | `jax.ref.addupdate(ref, i, x)` | adds `x` at the indices `i`; repeated indices are added repeatedly |
# | `jax.ref.swap(ref, i, x)` | writes `x` and returns the old values |
# | `jax.freeze(ref)` | returns the final array; do not use the Ref afterwards |
# | `ref[i] += x` | reads, adds and writes; repeated indices are added once |

# %%
ids = jnp.array([0, 0, 1])
once, twice = jax.new_ref(jnp.zeros(2)), jax.new_ref(jnp.zeros(2))
once[ids] += 1.0
jax.ref.addupdate(twice, ids, jnp.ones(3))
print("+=", once, "  addupdate", twice)
print("swap returns", jax.ref.swap(twice, 0, 7.0), "  freeze returns", jax.freeze(twice))

# %% [markdown]
# A write never converts or broadcasts. The value must have the shape and dtype of the entries that it replaces, so `ref[0] = 1` fails too.

# %%
print_error(lambda: jax.ref.set(ref, ..., jnp.zeros(4)))
print_error(lambda: jax.ref.set(ref, 0, jnp.int32(1)))

# %% [markdown]
# ## Refs inside a pure function
# A function that creates a Ref, uses it and returns arrays is **pure** for its callers. `jit`, `grad` and `vmap` accept it. Compare `clean` with a version that threads no state.


# %%
def clean_with_ref(xs):
    mean = jax.new_ref(xs[0])

    def one(_, x):
        mean[...] = 0.95 * mean[...] + 0.05 * x
        return None, (x - mean[...], mean[...])

    return jax.lax.scan(one, None, xs)[1]


def compare_with_clean(transform):
    both = transform(clean), transform(clean_with_ref)
    return bool(jax.tree.all(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-5), *both)))


print("jit: ", compare_with_clean(lambda f: jax.jit(f)(xs)))
print("grad:", compare_with_clean(lambda f: jax.grad(lambda xs: jnp.sum(f(xs)[0] ** 2))(xs)))
print("vmap:", compare_with_clean(lambda f: jax.vmap(f)(jnp.stack([xs, -xs]))))

# %% [markdown]
# The body of the `scan` closes over the Ref, and each iteration sees what the previous one wrote. The gradient flows through these writes.
#
# ## What JAX rejects
# A function that takes a Ref as an argument, or closes over one from outside, is **impure**. JAX runs its reads and writes in program order. It rejects [**aliasing**](../docs/glossary.md#aliasing), where two variables of a program refer to one Ref, because a write to one would change the other.


# %%
@jax.jit
def add_into(target, source):
    target[...] += source[...]


r = jax.new_ref(jnp.zeros(()))
rejected = {
    "passed twice": lambda: add_into(r, r),
    "passed and closed over": lambda: jax.jit(lambda a: a[...] + r[...])(r),
    "returned": lambda: jax.jit(lambda a: a)(r),
    "returned by a scan's body": lambda: jax.lax.scan(lambda c, x: (c, x), r, jnp.arange(3.0)),
}
for use, call in rejected.items():
    print(f"{use}:")
    print_error(call, length=215)

# %% [markdown]
# To fix the first two errors, pass the array that you read from the Ref, as in `add_into(r, r[...])`. Do not return Refs, because the caller already has them.

# %% [markdown] predict="state-vmap-write"
# What does `jax.vmap(lambda x: jax.ref.set(r, ..., x))(jnp.arange(3.0))` do? Each of three examples writes its `x` to the Ref `r` of shape `()`.
#
# - [ ] r becomes 2, the last example | The examples have no order. They run at the same time.
# - [ ] r gets shape (3,) | The shape of a Ref never changes.
# - [x] it raises an error | Right. Three values cannot be stored in one number, and no choice would be better than another.

# %%
print_error(lambda: jax.vmap(lambda x: jax.ref.set(r, ..., x))(jnp.arange(3.0)))
each = jax.new_ref(jnp.zeros(3))
jax.vmap(lambda ref, x: jax.ref.set(ref, ..., 10 * x))(each, jnp.arange(3.0))
print("a Ref with an entry for each example:", each)

# %% [markdown]
# A Ref that is written under `vmap` has to be an argument that is mapped along axis 0. Each example then writes its own entry. Under `grad`, a value that depends on the differentiated argument must not be written to a Ref from outside, because its derivative would be lost. `stop_gradient` makes this explicit.


# %%
def square(x, ref, before_write=lambda value: value):
    ref[...] = before_write(2 * x)
    return x**2


print_error(lambda: jax.grad(square)(3.0, r))
print("gradient:", jax.grad(square)(3.0, r, jax.lax.stop_gradient), "  the Ref:", r)

# %% [markdown]
# ## What a Ref compiles to
# We replace one row of a table of 17 MB in four ways. For each program, we print how much memory of its arguments the results reuse (alias bytes, 03) and how many copies it makes.


# %%
@jax.jit
def write_row(table, i, row):
    table[i] = row


@jax.jit
def write_row_and_return_old(table, i, row):
    old = table[...]
    table[i] = row
    return old


# %%
new_row = lambda table, i, row: table.at[i].set(row)
row, table = jnp.ones(64), jnp.zeros((65_536, 64))
programs = {
    "at[i].set": jax.jit(new_row).lower(table, 3, row),
    "at[i].set, donated": jax.jit(new_row, donate_argnums=0).lower(table, 3, row),
    "Ref": write_row.lower(jax.new_ref(table), 3, row),
    "Ref, returns old": write_row_and_return_old.lower(jax.new_ref(table), 3, row),
}
for name, lowered in programs.items():
    compiled = lowered.compile()
    alias, copies = compiled.memory_analysis().alias_size_in_bytes, compiled.as_text().count(" copy(")
    print(f"{name:19s} alias bytes {alias:>10,}   copies {copies}")

# %% [markdown]
# The memory of a Ref argument is always donated, but the Ref stays valid. The program overwrites it without a copy. The last program also returns the old table, so XLA copies. **An update avoids copies only if the old value is not used any more**, for Refs as for donated arrays.

# %% [markdown] predict="state-eager-write"
# We measure the same update of one row, for tables of growing size. What about the Ref *without* `jit`, `ref[3] = row`?
#
# - [ ] it is fastest, because nothing is compiled | Each operation outside `jit` is a small program of its own.
# - [ ] it takes the same time for all sizes | A write inside `jit` does. Outside `jit`, JAX 0.10.2 computes a whole new array.
# - [x] it takes longer for larger tables | Right. Outside `jit`, a write to a Ref costs at least a copy of the array. Only compiled functions update in place.

# %%
sizes, took = [1_024, 8_192, 65_536], {}
for rows in sizes:
    array, ref, kept = jnp.zeros((rows, 64)), jax.new_ref(jnp.zeros((rows, 64))), [jnp.zeros((rows, 64))]
    copying, donating = jax.jit(new_row), jax.jit(new_row, donate_argnums=0)

    def donate(kept=kept, donating=donating):
        kept[0] = donating(kept[0], 3, row)
        return kept[0]

    ways = {
        "Ref, outside jit": lambda ref=ref: (jax.ref.set(ref, 3, row), ref)[1],
        "at[i].set": lambda array=array, copying=copying: copying(array, 3, row),
        "Ref": lambda ref=ref: (write_row(ref, 3, row), ref)[1],
        "at[i].set, donated": donate,
    }
    for name, way in ways.items():
        took.setdefault(name, []).append(time_ms(way, repeats=15))

# %%
_, axes = plots.subplots(height=2.8)
for name, each in took.items():
    axes.plot([rows * 256 / 1e6 for rows in sizes], each, marker="o", label=name)
axes.set(xscale="log", yscale="log", xlabel="MB of the table", ylabel="median milliseconds")
axes.legend(loc="upper left")
words = "; ".join(f"{name} {each[0]:.2g} and {each[-1]:.2g} ms" for name, each in took.items())
plots.show(
    f"Median time to replace a row of a table of 0.26 MB and of 17 MB: {words}. The last two hardly depend on the size."
)

# %% [markdown]
# Inside `jit`, the time for a Ref or a donated array does not depend on the size. The call with a Ref has a higher overhead in Python. As a rule, **write to Refs inside compiled functions**.
#
# ## Collect values from inside a model
# With a Ref as an argument, a function deep inside a model can report a value, and its callers return nothing more. Here each layer writes its activations.


# %%
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = jnp.tanh(w @ x + b)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


widths = (8, 64, 64, 64, 64)
params = [
    (jnp.asarray(rng.normal(size=(m, k)) * 2.5 / np.sqrt(k), jnp.float32), jnp.zeros(m))
    for k, m in itertools.pairwise(widths)
]
tap_refs = [jax.new_ref(jnp.zeros((100, m))) for m in widths[1:]]
batch = jnp.asarray(rng.normal(size=(100, 8)), jnp.float32)

loss = lambda params, x, tap_refs: jnp.sum(forward(params, x, tap_refs) ** 2)
gradients = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(params, batch, tap_refs)
print([bool(jnp.all(tap[...] != 0)) for tap in tap_refs], jax.tree.map(jnp.shape, gradients[0]))

# %%
_, panels = plots.subplots(1, 4, height=1.9, sharey=True)
saturated = [float(jnp.mean(jnp.abs(tap[...]) > 0.95)) for tap in tap_refs]
for i, (panel, tap, share) in enumerate(zip(panels, tap_refs, saturated, strict=True)):
    panel.hist(np.asarray(tap[...]).ravel(), bins=40, color=plots.COLOURS[0])
    panel.set(title=f"layer {i + 1}: {share:.0%}", xlabel="activation")
plots.show(
    "Histograms of the activations of four tanh layers, collected by Refs. The share beyond ±0.95 is "
    + ", ".join(f"{share:.0%} in layer {i + 1}" for i, share in enumerate(saturated))
    + "."
)

# %% [markdown]
# The weights are too large, so many activations are close to -1 or 1. The titles state the share beyond ±0.95. Collecting works under `jit`, `vmap` and `grad` together.
#
# ## Which one?
#
# | you have | use |
# |---|---|
# | a training step, a loop, anything that you save or differentiate | a **carry**, or an argument and a result; donate large arrays |
# | a value deep inside a model that callers should not thread, or a buffer updated in place | a **Ref**, passed as an argument |
# | a loop that is easier to read with assignments | a **Ref** created inside a pure function |
# | the parameters and statistics of a model | **NNX Variables** (10), which also have types, names and filters |
# | data for Python itself, such as a log or a progress bar | a host callback |
#
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: Refs in loops and branches
# The bodies of `scan`, `fori_loop`, `cond` and `switch` may close over Refs or take them as arguments. A Ref can also be an *input* of a `scan`. Each iteration then gets one row, and can write to it. A Ref cannot be the carry, because the body would return it. Under `vmap`, JAX 0.10.2 also rejects a Ref as an input. Close over the Ref instead, and write `rows[i]`.

# %%
rows = jax.new_ref(jnp.zeros((4, 2)))
total = jax.new_ref(jnp.zeros(2))


@jax.jit
def fill(rows, total):
    def body(scale, row):
        row[...] = scale * jnp.ones(2)  # this iteration's row of `rows`
        jax.lax.cond(scale > 1, lambda: jax.ref.addupdate(total, ..., row[...]), lambda: None)
        return scale + 1, None

    jax.lax.scan(body, 0.0, rows)


fill(rows, total)
print(rows, total)
print_error(lambda: jax.vmap(lambda x: jax.lax.scan(lambda _, row: (None, row[...]), None, jax.new_ref(x)))(xs[None]))

# %% [markdown]
# `while_loop` is an exception in JAX 0.10.2. Its body may write to a Ref, but its condition always reads the value from before the loop. This loop should end when the Ref reaches 3. Without the second condition it would never end. Use the carry for everything that decides when a loop ends.


# %%
@jax.jit
def until_three(ref):
    def body(i):
        ref[...] += 1.0
        return i + 1

    return jax.lax.while_loop(lambda i: (ref[...] < 3.0) & (i < 10), body, 0)


level = jax.new_ref(jnp.zeros(()))
print("iterations:", until_three(level), "  the Ref:", level)

# %% [markdown]
# ## Deeper: a ring buffer
# A **ring buffer** stores the last `n` values of a stream in a fixed array. A position marks the oldest entry. Each new value replaces it, and the position moves on, modulo `n`. Nothing is shifted. As a Ref, the buffer outlives the call, so a stream can be processed in chunks of any length.


# %%
@jax.jit
def push(buffer, position, values):
    """Writes `values` (k,) to the ring buffer, one after the other."""

    def one(_, value):
        buffer[position[...]] = value
        position[...] = (position[...] + 1) % buffer.shape[0]
        return None, None

    jax.lax.scan(one, None, values)


buffer, position = jax.new_ref(jnp.zeros(4)), jax.new_ref(jnp.int32(0))
for chunk in (jnp.arange(1.0, 4.0), jnp.arange(4.0, 7.0)):
    push(buffer, position, chunk)
    print(buffer, "next:", position[...], "  oldest first:", jnp.roll(buffer[...], -position[...]))

# %% [markdown]
# ## Deeper: gradients that are added to a Ref
# *This section uses `jax.vjp` (04).* The backward pass can write to Refs as well. The function that `jax.vjp` returns has a method `with_refs`, which takes a Ref for each argument. The backward pass then adds the gradient to this Ref and returns a placeholder. In this way, gradient accumulation (09) needs only one buffer.


# %%
@jax.jit
def accumulate(w, xs):
    total = jax.new_ref(jnp.zeros_like(w))

    def one(_, x):
        value, backward = jax.vjp(lambda w: jnp.mean(jnp.tanh(x @ w)), w)
        backward.with_refs(total)(jnp.ones_like(value))
        return None, value

    _, losses = jax.lax.scan(one, None, xs)
    return jax.freeze(total), losses


w, micro_batches = jnp.ones((8, 4)) / 8, jnp.asarray(rng.normal(size=(5, 16, 8)), jnp.float32)
wanted = jax.grad(lambda w: sum(jnp.mean(jnp.tanh(x @ w)) for x in micro_batches))(w)
print("equal to the gradient of the sum:", bool(jnp.allclose(accumulate(w, micro_batches)[0], wanted, atol=1e-5)))

# %% [markdown]
# The backward rule of a `jax.custom_vjp` function can also write to a Ref. The next function returns its argument unchanged, and writes the [cotangent](../docs/glossary.md#cotangent) that arrives at this point. Its forward rule returns the Ref, which is allowed only here, to pass it on to the backward rule.


# %%
@jax.custom_vjp
def record_cotangent(ref, x):
    return x


def backward_rule(ref, cotangent):
    ref[...] = cotangent
    return None, cotangent


record_cotangent.defvjp(lambda ref, x: (x, ref), backward_rule)
seen = jax.new_ref(jnp.zeros(()))
print(jax.grad(lambda x: jnp.sin(record_cotangent(seen, x**2)))(1.5), "  cotangent of x²:", seen, jnp.cos(1.5**2))

# %% [markdown]
# Four limits of version 0.10.2 matter here. First, `grad` fails if a function creates an integer Ref and updates it in a `scan`. Keep such a counter in the carry, or use `jnp.arange` as an input of the `scan`. Second, it fails if such a `scan` writes only the `stop_gradient` of values to a float Ref. Third, `jax.hessian` fails for functions that write to their own Refs, even without a `scan`. Fourth, JAX 0.10.2 cannot differentiate with respect to a Ref argument. Later versions can, with `with_refs`.


# %%
def weighted_sum(xs):
    step, total = jax.new_ref(jnp.int32(0)), jax.new_ref(jnp.zeros(()))

    def one(_, x):
        step[...] += 1
        total[...] += step[...] * x
        return None, None

    jax.lax.scan(one, None, xs)
    return total[...]


print("value:", weighted_sum(jnp.ones(3)))
print_error(lambda: jax.grad(weighted_sum)(jnp.ones(3)))


# %%
def last_product(x):
    last = jax.new_ref(jnp.zeros(()))

    def one(_, value):
        last[...] = jax.lax.stop_gradient(value * x)
        return None, last[...] * x

    return jax.lax.scan(one, None, jnp.arange(3.0))[1].sum()


print_error(lambda: jax.grad(last_product)(2.0))
print_error(lambda: jax.hessian(lambda xs: jnp.sum(clean_with_ref(xs)[0] ** 2))(xs[:3]))
_, backward = jax.vjp(lambda ref: ref[...] ** 2, jax.new_ref(2.0))
print_error(lambda: backward.with_refs(jax.new_ref(0.0))(1.0))

# %% [markdown]
# ## Deeper: NNX Variables and Refs
# An NNX Variable (10) is a Python object that stores an array. `variable[...] = x` stores a *new* array in it. Under plain `jax.jit`, the function gets copies of the Variables, so its updates are lost. `nnx.jit` returns the updates to the caller. With `ref=True`, the Variable stores a Ref instead, and `jax.jit` updates it.

# %%
from flax import nnx


def increment(variable):
    variable[...] += 1


for name, options, transform in (
    ("jax.jit", {}, jax.jit),
    ("nnx.jit", {}, nnx.jit),
    ("jax.jit of a Ref", {"ref": True}, jax.jit),
):
    variable, compiled = nnx.Variable(jnp.array(0), **options), transform(increment)
    compiled(variable), compiled(variable)
    print(f"{name:17s} after two calls: {variable[...]}")

# %% [markdown]
# Variables and Refs also differ in aliasing. Two arguments of `nnx.jit` may be the same Variable, because NNX merges them before it calls JAX. Two arguments that contain the same Ref are rejected.


# %%
def increment_and_read(a, b):
    a[...] += 1
    return b[...]


shared, shared_ref = nnx.Variable(jnp.array(0)), nnx.Variable(jnp.array(0), ref=True)
print("the same Variable twice:", nnx.jit(increment_and_read)(shared, shared))
print_error(lambda: jax.jit(increment_and_read)(shared_ref, shared_ref), length=120)

# %% [markdown]
# The option `ref` and the similar option `hijax` are new in Flax, and most modules do not use them yet.
#
# | | Variable | Ref |
# |---|---|---|
# | has a type and a name, and can be selected by a filter | yes | no |
# | `jax.jit` keeps updates | no, return the module or use `nnx.jit` | yes |
# | updated in place by a compiled function | if donated | yes |
# | may appear twice | with `nnx.jit` | no |
#
# ## Deeper: Refs on several devices
# *This section uses meshes and `shard_map` (16, 19), on as many devices as there are.* A Ref has the sharding of its initial array and keeps it. Under `jit`, nothing else changes. `shard_map` accepts a Ref as an argument, and gives each device its shard. In JAX 0.10.2, this `shard_map` has to be inside `jit`, and its function must not close over a Ref.

# %%
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
sharded_ref = jax.new_ref(jax.device_put(jnp.zeros(64), NamedSharding(mesh, P("data"))))


def add(ref, x):
    ref[...] += x


specs = {"mesh": mesh, "in_specs": (P("data"), P("data")), "out_specs": None}
jax.jit(add)(sharded_ref, jnp.ones(64))
jax.jit(jax.shard_map(add, **specs))(sharded_ref, jnp.ones(64))
print(sharded_ref[:4], sharded_ref.sharding.spec)
print_error(lambda: jax.shard_map(add, **specs)(sharded_ref, jnp.ones(64)))

# %% [markdown]
# ## Deeper: state on the host
# A compiled program can also call Python while it runs. `jax.experimental.io_callback` with `ordered=True` calls a function with side effects once for each execution, in order. The program waits for Python, so this suits rare events. State in an array on the device belongs in a carry or a Ref.

# %%
from jax.experimental import io_callback

events = []


def log(value):
    events.append(float(value))
    return np.int32(len(events))


log_in_jit = jax.jit(lambda x: io_callback(log, jax.ShapeDtypeStruct((), jnp.int32), x, ordered=True))
print("results:", *[int(log_in_jit(x)) for x in (0.5, 1.5, 2.5)], "  list:", events)
add_in_jit = jax.jit(lambda ref, x: jax.ref.addupdate(ref, ..., x))
sum_ref = jax.new_ref(jnp.float32(0))
callback_ms, ref_ms = time_ms(lambda: log_in_jit(0.0), lambda: (add_in_jit(sum_ref, jnp.float32(1)), sum_ref)[1])
print(f"callback {callback_ms:.2f} ms, Ref {ref_ms:.2f} ms")

# %% [markdown]
# ## Deeper: more limits of version 0.10.2
# The following uses fail or surprise in JAX 0.10.2. Newer versions lift some of these limits, so run this cell again after an update.

# %%
from jax import export

small = jax.new_ref(jnp.arange(3.0))
alias = small  # another name for the same Ref; copy.deepcopy makes a new one
alias[0] = 9.0
print("an alias in Python changes the original, without an error:", small)
tries = {
    "a boolean mask": lambda: small[jnp.array([True, False, True])],
    "an index out of range": lambda: small[7],
    "conversion to NumPy": lambda: np.asarray(small),
    "a Ref to a Ref": lambda: jax.new_ref(small),
    "a pytree in a Ref": lambda: jax.new_ref({"a": 1.0}),
    "freeze of an argument": lambda: jax.jit(jax.freeze)(small),
    "export of a Ref argument": lambda: export.export(add_into)(small, small[...]),
}
for use, call in tries.items():
    print(f"{use}:", end=" ")
    print_error(call, length=90)

# %% [markdown]
# Some of these errors have no useful message. For masks, NumPy and exported functions, read the Ref and use the array instead. `jax.freeze` should also make the Ref unusable, but JAX 0.10.2 checks this only while tracing.

# %%
frozen = jax.freeze(small)
small[1] = -1.0
print("frozen:", frozen, "  written after freeze, without an error:", small)
print_error(lambda: jax.jit(lambda x: (lambda ref: (jax.freeze(ref), ref[...]))(jax.new_ref(x)))(frozen))

# %% [markdown]
# `jax.checkpoint` (15) raises no error for a function that writes to a Ref. It runs a part of the forward pass again in the backward pass, and so repeats its writes. Here one gradient adds 2 to the count. Use `jax.checkpoint` only on pure functions.

# %%
runs = jax.new_ref(jnp.int32(0))


def sine_that_counts(x):
    runs[...] += 1
    return jnp.sin(jnp.sin(x))


jax.grad(jax.checkpoint(sine_that_counts))(2.0)
print("runs of the function in one gradient:", runs)

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.array_ref`, `jax._src.core.mutable_array` | `jax.new_ref` |
# | `jax.experimental.host_callback` | `jax.experimental.io_callback`, `jax.debug.callback` |
# | `hk.transform_with_state`, the `mutable` argument of Linen's `apply` | NNX Variables (10); the old functions thread the state |
# | `flax.training.train_state.TrainState` | a pytree of parameters and optimizer state, threaded by hand |
# | a Python list of intermediates that a `jit` function fills | a Ref argument, or return them |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | state between calls | an argument and a result, `state, y = step(state, x)` |
# | state between iterations | the carry of a `scan` |
# | a mutable array | `ref = jax.new_ref(array)`; read `ref[...]`, write `ref[i] = x` |
# | to add at indices that may repeat | `jax.ref.addupdate(ref, ids, x)` |
# | a pure function | create its Refs inside, and return arrays |
# | the same Ref twice | read it once, `f(ref, ref[...])` |
# | a Ref under `vmap` | an argument that is mapped along axis 0 |
# | to store a value under `grad` | `ref[...] = jax.lax.stop_gradient(x)` |
# | an update in place | a Ref argument or a donated argument of a *compiled* function, and no use of the old value |
# | the values inside a model | Refs as an argument, written by each layer |
