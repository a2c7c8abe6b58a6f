# %% [markdown]
# # 03 · jit: compile once, run many times
#
# *The core takes about 35 minutes. Seven "Deeper" sections can be skipped. Then do [the exercises](../exercises/03_jit/03_jit.ipynb).* After the core, you can predict which calls compile, choose static arguments, decide which function to compile, and donate memory.
#
# **Prerequisites.** Arrays (lesson 01) and tracing (02). Answer these questions from memory.
#
# 1. From 01: What is the dtype of `jnp.ones(3, jnp.bfloat16) * 2.0`, and why?
#
# <details><summary>Answer</summary>
#
# It is `bfloat16`. A Python number is *weakly typed*, so it takes the dtype of the array that it is combined with.
# </details>
#
# 2. From 01: A clock measures 30 µs for `y = f(x)`, although `f` multiplies two large matrices. What was measured?
#
# <details><summary>Answer</summary>
#
# The dispatch. JAX returns before the result is ready, and `jax.block_until_ready(y)` waits for it.
# </details>
#
# 3. From 02: Under `jit`, which properties of an array does its tracer have, and which are missing?
#
# <details><summary>Answer</summary>
#
# It has a shape and a dtype, and it may be weakly typed. It has no values.
# </details>

# %%
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

# Helpers of this course, which plot, print errors, measure times and count operations:
from grader.learning import plots
from grader.learning.inspection import flops, print_error, time_ms


def call_ms(call):
    """Returns the milliseconds of one call, until its result is ready."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - start)


# %% [markdown]
# ## Why was this call slow?
# A service scores batches of sensor readings with a compiled function. Here are the times of seven calls.


# %%
def score(weights, readings):
    """weights (8,), readings (n, 8) -> one number"""
    signal = jnp.tanh(readings @ weights)
    return jnp.sum(signal**2) / jnp.sum(jnp.abs(signal))


compiled_score = jax.jit(score)
rng = np.random.default_rng(3)
weights = jnp.asarray(rng.normal(size=8), jnp.float32)

sizes = (64, 64, 64, 65, 64, 65, 66)
batches = [rng.normal(size=(n, 8)).astype(np.float32) for n in sizes]
took = [call_ms(lambda batch=batch: compiled_score(weights, batch)) for batch in batches]

# %%
_, axes = plots.subplots(height=2.6)
for label, marker, is_first in (("first call with a size", "D", True), ("later call with the size", "o", False)):
    calls = [i for i, n in enumerate(sizes) if (n not in sizes[:i]) == is_first]
    axes.plot(calls, [took[i] for i in calls], marker, markersize=7, label=label)
for call, ms in enumerate(took):
    axes.annotate(f"{ms:.2f} ms", (call, ms), xytext=(0, 8), textcoords="offset points", ha="center")
axes.set(yscale="log", ylim=(min(took) / 3, 60 * max(took)), xlim=(-0.7, len(sizes) - 0.3))
axes.set(ylabel="milliseconds,\nlogarithmic scale")
axes.set(xticks=range(len(sizes)), xticklabels=sizes, xlabel="number of readings in each call, from left to right")
axes.legend(loc="upper right", ncols=2)
plots.show(
    "Times of seven calls. " + "; ".join(f"{n} readings: {ms:.2f} ms" for n, ms in zip(sizes, took, strict=True)) + "."
)

# %% [markdown]
# The first call is slow, because it compiles the function. The later calls with the same number of readings are much faster. But each new number makes one call slow again. Why?

# %% [markdown]
# ## What the slow call does
# `jax.log_compiles` logs the stages of a slow call.

# %%
with jax.log_compiles(True):
    compiled_score(weights, rng.normal(size=(67, 8)).astype(np.float32))

# %% [markdown]
# The log shows three stages.
#
# 1. **Trace.** Python runs your function on tracers, which gives a jaxpr (02).
# 2. **[Lower](../docs/glossary.md#lower).** JAX translates the jaxpr to [StableHLO](../docs/glossary.md#stablehlo), the language that XLA reads. The log calls the result an MLIR module, because StableHLO is written in MLIR, a format for compilers.
# 3. **Compile.** XLA generates machine code. This usually takes most of the time. For a large model it can take minutes.

# %% [markdown]
# ## The cache key
# `jit` stores each compiled program in a cache. Every call has a **cache key**. If the cache has a program for this key (a **cache hit**), JAX runs it, and your Python code does not run. Otherwise (a **cache miss**), JAX traces and compiles.
#
# An array or a number contributes its **type** to the key: its shape, dtype and weak type. `jax.typeof` shows it, with `~` for a weak type.

# %%
for argument in (np.ones(3, np.float32), jnp.ones((3, 1)), 1.0, 5.0, 1, jnp.float32(1.0)):
    print(f"{type(argument).__name__:10s} {jax.typeof(argument)}")

# %% [markdown]
# Python runs a jitted function only while JAX traces it, so a counter in the function detects cache misses. For the next helper, read only its docstring.


# %%
def print_traces(function, *calls, **options):
    """Compiles `function` as `f`, evaluates the calls in order, and prints which of them traced it."""
    traces = []

    @functools.wraps(function)
    def counted(*args, **kwargs):
        traces.append("trace")
        return function(*args, **kwargs)

    f = jax.jit(counted, **options)
    for call in calls:
        before = len(traces)
        eval(call, globals(), {"f": f})
        print(f"  {call:34s} {'traced' if len(traces) > before else '-'}")


# %% [markdown] predict="jit-key"
# `f(x, 2.0)` has been traced, with a float32 `x` of shape `(3,)`. Which of these calls is **not** traced again?
#
# - [ ] `f(x, 2)` | An int has another dtype. The key contains a weak int32 instead of a weak float32.
# - [x] `f(np.zeros(3), 7.0)` | Right. The values differ, and one array is a NumPy array, but the types are the same.
# - [ ] `f(x, jnp.float32(2.0))` | The dtype is the same, but this array is not weakly typed. The weak type is in the key, because it can change the dtype of the result.
# - [ ] `f(x, factor=2.0)` | The key also contains how an argument is passed, by position or by name.

# %%
x = jnp.ones(3)
print_traces(
    lambda x, factor=2.0: factor * x,
    "f(x, 2.0)",
    "f(np.zeros(3), 7.0)",
    "f(x, 2)",
    "f(x, jnp.float32(2.0))",
    "f(x, factor=2.0)",
    "f(x)",
    "f(x.astype(jnp.bfloat16), 2.0)",
    "f(jnp.ones((3, 1)), 2.0)",
)

# %% [markdown]
# NumPy's float64 array became float32 (01), so `np.zeros(3)` has the type of `x`. `f(x)` passes no second argument, so its key differs from that of `f(x, 2.0)`.
#
# An argument may also be a container of arrays (06). Then its structure is in the key. Below, `*` stands for an array.

# %%
for container in ({"w": x, "b": x}, {"b": x, "w": x}, [x, x], (x, x)):
    print(jax.tree.structure(container))
print_traces(lambda container: container, "f({'w': x, 'b': x})", "f({'b': x, 'w': x})", "f([x, x])", "f((x, x))")

# %% [markdown]
# The order of a dict's keys does not matter, but a list and a tuple have different structures. The key also contains the devices and shardings of the arguments (16) and settings such as the precision of products (15).

# %% [markdown] predict="jit-weak-loop"
# `add(total, number)` is compiled. A loop starts with `total = 0.0` and runs `total = add(total, number)` for five float32 numbers. How many traces are there?
#
# - [ ] one | Every shape is `()` and every dtype is float32. But the first `total` is a Python number.
# - [x] two | Right. `total` is weakly typed in the first call. From then on it is a result of `add`, and this result is not weakly typed.
# - [ ] five | Values are not in the key.


# %%
@jax.jit
def add(total, number):
    print("tracing: total is", jax.typeof(total), " number is", jax.typeof(number))
    return total + number


total = 0.0
for number in np.arange(5, dtype=np.float32):
    total = add(total, number)

# %% [markdown]
# To trace once, start the loop from an array of the right dtype, such as `jnp.zeros(())`.

# %% [markdown]
# ## Ask JAX why
# `jax.explain_cache_misses` explains each cache miss. `jax.no_tracing` makes tracing an error, for tests and for services that must not compile. You can also set both for a whole run, for example with `JAX_EXPLAIN_CACHE_MISSES=1 python serve.py`.


# %%
@jax.jit
def scale(x, factor):
    return factor * x


scale(x, 2.0)
longer = jnp.ones(4)
with jax.explain_cache_misses(True):
    scale(longer, 2.0)
    scale(x, jnp.float32(2.0))
with jax.no_tracing(True):
    scale(x, 3.0)  # a cache hit
    print_error(lambda: scale(np.ones(6), 3.0))

# %% [markdown]
# ## Values that Python needs
# A tracer has no value. So Python cannot use it to choose a branch, to count iterations, or as a shape (02).


# %%
def power(x, n):
    result = jnp.ones_like(x)
    for _ in range(n):
        result = result * x
    return result


print_error(lambda: jax.jit(lambda x: x if x.sum() > 0 else -x)(x), length=100)
print_error(lambda: jax.jit(power)(x, 3), length=100)
print_error(lambda: jax.jit(lambda n: jnp.zeros(n))(3), length=100)

# %% [markdown]
# There are three solutions.
#
# - Decide **inside the program**, with `jnp.where`, or with `cond` and the loops of lesson 08.
# - Decide **outside of `jit`**. For example, compile only a loop's body.
# - Make the argument **[static](../docs/glossary.md#static-argument)**. Python then receives its value while JAX traces, and the *value is part of the cache key*. The decorator is `@jax.jit(static_argnames="n")`.

# %% [markdown] predict="jit-static"
# `power` is compiled with `static_argnames="n"` and called with `n = 2`, `3`, `2`, `True` and `1`, in this order. How many traces are there?
#
# - [ ] three: 2, 3, and 1 | `True == 1` in Python, but JAX also compares the types.
# - [x] four: 2, 3, True and 1 | Right. There is one for each combination of value and type.
# - [ ] five | The cache still contains the program for the first 2.

# %%
print_traces(power, "f(x, 2)", "f(x, 3)", "f(x, 2)", "f(x, True)", "f(x, 1)", static_argnames="n")
print_error(lambda: jax.jit(power, static_argnames="n")(x, [1, 2]))

# %% [markdown]
# A static value must be hashable, so use a tuple instead of a list. Static arguments are for settings with **few values**, such as a flag or a number of layers. If a learning rate is static, each new rate causes a compilation.

# %%
rates = [0.1 / step for step in range(1, 13)]
for name, options in {"traced": {}, "static": {"static_argnames": "rate"}}.items():
    step = jax.jit(lambda x, rate: x - rate * jnp.tanh(x), **options)
    total_ms = sum(call_ms(lambda step=step, rate=rate: step(x, rate)) for rate in rates)
    print(f"rate {name}: {len(rates)} steps in {total_ms:7.1f} ms")

# %% [markdown]
# ## The function is in the key too
# `jit` identifies a function by the object, not by its source code. Each time Python runs a `lambda` or `def`, it creates a new object.


# %%
def double(x):
    print("tracing", end=" ")
    return 2 * x


print("a new lambda in each iteration:", end=" ")
for _ in range(3):
    jax.jit(lambda x: double(x))(x)
print("\ncompiled before the loop:", end=" ")
compiled_double = jax.jit(double)
for _ in range(3):
    compiled_double(x)

# %% [markdown]
# A `functools.partial` in the loop has the same effect. Call `jax.jit` at module level, or once before the loop. The figure summarizes the cache key.
#
# ![Above left: the call compiled(w, 0.1, mode="fast") and its parts. The key contains the function object, how the arguments are passed, shape and dtype of w, the weak float32 type of 0.1, and the value "fast" of the static argument. It does not contain the numbers in w and the value 0.1. Right: if the cache has a program for the key, the call is a hit and runs the program; otherwise it is a miss, and JAX traces, lowers, compiles and stores the program. Below, five more calls. New values hit. A new shape, dtype or static value, and an argument passed by name, miss.](../images/jit_cache.svg)

# %% [markdown]
# ## Values from outside the function
# A function **closes over** the variables of the enclosing scope that it uses.

# %% [markdown] predict="jit-global"
# `shift` adds the global `offset`. It is called with `offset = 1.0`. Then `offset` is set to 100.0, and `shift` is called again with the same shape and then with a new one. What do the three calls add?
#
# - [ ] 1, 100, 100 | This is what Python would do without `jit`. The program for the old shape contains a 1.
# - [ ] 1, 1, 1 | The second number is right. But the new shape is traced again, and then Python reads the global again.
# - [x] 1, 1, 100 | Right. Each program contains the value that Python read while it was traced.

# %%
offset = 1.0
shift = jax.jit(lambda x: x + offset)
print("first:     ", shift(jnp.zeros(3))[0])
offset = 100.0
print("same shape:", shift(jnp.zeros(3))[0])
print("new shape: ", shift(jnp.zeros(4))[0])

# %% [markdown]
# JAX does not report this mistake. The next function reads a global dict and appends to a global list.

# %%
settings, log = {"gain": 2.0}, []


@jax.jit
def amplify(x):
    log.append("called")
    return settings["gain"] * x


for gain in (2.0, 50.0, 100.0):
    settings["gain"] = gain
    print("gain", gain, " result", amplify(x)[0], " log", log)

# %% [markdown]
# The gain 2.0 became a constant, and the list grew only while JAX traced. As a rule, **pass everything that may change as an argument, and return everything that you need**.

# %% [markdown]
# ## Compile the outermost function
# Below, a loss calls a network, and the network calls four layers. Which of these functions should `jit` compile? `functools.partial(loss, network=other)` is `loss` with `other` in place of its network.


# %%
def layer(w, xs):
    xs = xs @ w
    return jnp.tanh(xs - jnp.mean(xs, axis=0))


def network(params, xs, layer=layer):
    for w in params:
        xs = layer(w, xs)
    return xs


def loss(params, xs, ys, network=network):
    return jnp.mean((network(params, xs) - ys) ** 2)


# %%
shapes = ((16, 64), (64, 64), (64, 64), (64, 1))
params = [jnp.asarray(rng.normal(size=(a, b)) / a**0.5, jnp.float32) for a, b in shapes]
xs = jnp.asarray(rng.normal(size=(64, 16)), jnp.float32)
ys = jnp.sin(xs.sum(axis=1, keepdims=True))

of_compiled_layers = functools.partial(network, layer=jax.jit(layer))
ways = {
    "nothing": loss,
    "each layer": functools.partial(loss, network=of_compiled_layers),
    "the network": functools.partial(loss, network=jax.jit(network)),
    "the loss": jax.jit(loss),
}

# %%
medians = time_ms(*[lambda way=way: way(params, xs, ys) for way in ways.values()], repeats=15)
_, axes = plots.subplots(height=2)
bars = axes.barh(list(ways), medians, color=plots.FILLS[0][0], edgecolor=plots.INK)
axes.bar_label(bars, [f"{median:.2f} ms" for median in medians], padding=4)
axes.set(ylabel="jit on", xlabel="median time of the loss in milliseconds", xlim=(0, 1.2 * max(medians)))
axes.invert_yaxis()
plots.show(
    "Median time of the loss with jit on different functions. "
    + "; ".join(f"jit on {name}: {median:.2f} ms" for name, median in zip(ways, medians, strict=True))
    + "."
)

# %% [markdown]
# Without `jit`, JAX dispatches each operation separately. With `jit` on the loss there is one dispatch, and the compiler sees all operations. It can [fuse](../docs/glossary.md#fusion) them and omit unused results. **Put `jit` on the outermost function**, such as a whole training step (09). An inner `jit` does no harm, because its operations become part of the outer program.

# %% [markdown]
# ## Donation: giving memory back
# A training step replaces parameters with new ones of the same shapes. JAX keeps the old ones, because you may still use them. With `donate_argnames` you promise not to use them after the call, and JAX can reuse their memory. This is called **[donation](../docs/glossary.md#donation)**. With the methods `lower` and `compile`, the next cell compiles a step with and without donation. It prints the memory that the step needs, without running it.


# %%
def update(params, gradient):
    return params - 0.1 * gradient


keeping, donating = jax.jit(update), jax.jit(update, donate_argnames="params")
old, gradient = jnp.ones((1024, 1024)), jnp.ones((1024, 1024))
for name, way in {"keeping": keeping, "donating": donating}.items():
    memory = way.lower(old, gradient).compile().memory_analysis()
    alias = memory.alias_size_in_bytes
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes - alias
    print(f"{name:9s} {needed >> 20} MiB for arguments and results, of which {alias >> 20} MiB are shared")

# %% [markdown]
# `alias_size_in_bytes` is the memory of arguments that the program reuses for results. You can check it before you run the program.

# %% [markdown] predict="jit-donated"
# `new = donating(old, gradient)`. What does `old` contain now?
#
# - [ ] the old values | They have been overwritten.
# - [ ] the new values | Its memory contains them, but this array can no longer be used.
# - [x] nothing, and reading it is an error | Right. The array is deleted. So write `params = donating(params, gradient)`.

# %%
address = old.unsafe_buffer_pointer()
new = donating(old, gradient)
print("the result is stored where the argument was:", new.unsafe_buffer_pointer() == address)
print("old deleted:", old.is_deleted(), "  gradient deleted:", gradient.is_deleted())
print_error(lambda: old + 1)

# %% [markdown]
# Donate what the results replace, such as parameters and optimizer state. Do not donate arrays that you need later. The figure compares both programs.
#
# ![Left, jax.jit(update): before the call, device memory contains params and gradient. After it, params, gradient and new params, which needed new memory. Right, with params donated: the new params overwrite the old ones in place, gradient is kept, and the old array is deleted.](../images/jit_donation.svg)

# %% [markdown]
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: methods
# A method receives its object as the argument `self`. The object is not an array, so JAX rejects it. A common attempt to fix the error is to make `self` static.

# %%
shifted = jax.jit(lambda offset, x: x + offset)


class Sensor:
    def __init__(self, offset):
        self.offset = offset

    @jax.jit
    def plain(self, x):
        return x + self.offset

    @jax.jit(static_argnames="self")
    def static(self, x):
        return x + self.offset

    def by_helper(self, x):
        return shifted(self.offset, x)


# %%
sensor = Sensor(1.0)
print_error(lambda: sensor.plain(x))

# %% [markdown] predict="jit-self"
# `sensor.static(x)` returned 2. Then `sensor.offset` is set to 100.0. What does `sensor.static(x)` return?
#
# - [x] 2 | Right. The key contains the object, and it is still the same object. Its offset is a constant of the program.
# - [ ] 101 | The key would have to contain the attributes. It uses the hash and the equality of the object, which by default mean its identity.
# - [ ] an error | An error would be better. JAX does not notice the change.

# %%
print("before: static", sensor.static(x)[0], "  by_helper", sensor.by_helper(x)[0])
sensor.offset = 100.0
print("after:  static", sensor.static(x)[0], "  by_helper", sensor.by_helper(x)[0])

# %% [markdown]
# A compiled function that closes over `self`, or a stored `jax.jit(sensor.method)`, has the same problem. There are three solutions.
#
# 1. A **helper function** receives the state as an argument, as in `by_helper`. All sensors share one program.
# 2. `self` is static, its class defines `__hash__` and `__eq__` by its attributes, and **no attribute ever changes**. In this case, arrays cannot be attributes, because they are not hashable.
# 3. The class is **registered as a pytree** (06). Its attributes are then traced, and `jax.jit` accepts the object as an argument. Flax modules work in this way (10).
#
# The next cell registers a dataclass.

# %%
import dataclasses


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TreeSensor:
    offset: float

    @jax.jit
    def shift(self, x):
        print("tracing with offset", self.offset)
        return x + self.offset


tree_sensor = TreeSensor(1.0)
print(tree_sensor.shift(x)[0])
tree_sensor.offset = 100.0
print(tree_sensor.shift(x)[0])

# %% [markdown]
# The method was traced only once, and the second call used the new offset.

# %% [markdown]
# ## Deeper: repeated operations
# The compiler optimizes a program before it runs. Which repeated operations does it remove? As an example, take the loss from above and `jax.grad(loss)`, a function that returns its gradient. `jax.value_and_grad(loss)` returns both (04).

# %% [markdown] predict="jit-merge"
# One compiled function returns `loss(params)` and `jax.grad(loss)(params)`. Its jaxpr contains the forward pass twice. How many floating-point operations (flops) does it need, compared with `value_and_grad`, which contains the forward pass once?
#
# - [ ] a third more | Two separate programs would need about a third more.
# - [x] the same | Right. The compiler finds the same operations with the same inputs and keeps one of each.
# - [ ] twice as many | The backward pass, which is the larger part, occurs only once.

# %%
both = lambda *args: (loss(*args), jax.grad(loss)(*args))
inner = lambda *args: (jax.jit(loss)(*args), jax.jit(jax.grad(loss))(*args))
example = (params, xs, ys)
two_programs = flops(loss, *example) + flops(jax.grad(loss), *example)
print(f"value_and_grad              {flops(jax.value_and_grad(loss), *example):12,.0f} flops")
print(f"loss and grad, one program  {flops(both, *example):12,.0f}")
print(f"the same, with an inner jit {flops(inner, *example):12,.0f}")
print(f"loss and grad, two programs {two_programs:12,.0f}")

# %% [markdown]
# The compiler does not find every optimization. For example, it computes matrix products in the order in which you write them.

# %%
matrix, vector = jnp.ones((256, 256)), jnp.ones(256)
print(f"(A @ A) @ v  {flops(lambda a, v: (a @ a) @ v, matrix, vector):12,.0f} flops")
print(f"A @ (A @ v)  {flops(lambda a, v: a @ (a @ v), matrix, vector):12,.0f}")

# %% [markdown]
# ## Deeper: donation in detail
# The memory of a donated array is reused for a result of the same shape and dtype. If no remaining result has the same number of elements, JAX warns when it compiles.

# %%
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    jax.jit(lambda params: params.sum(), donate_argnames="params")(jnp.ones((64, 64)))
print(caught[-1].message)

# %% [markdown]
# If a result has the same number of elements but a dtype of another width, **there is no warning**, and no memory is saved. Also, only the *outermost* `jit` can donate. To be sure, check `alias_size_in_bytes`.

# %%
alias_bytes = lambda way: way.lower(gradient, gradient).compile().memory_analysis().alias_size_in_bytes
narrower = lambda params, gradient: update(params, gradient).astype(jnp.bfloat16)
print("the same dtype:         ", alias_bytes(donating), "bytes")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print("a narrower result:      ", alias_bytes(jax.jit(narrower, donate_argnames="params")))
print("   warnings:            ", len(caught))
print("donated in an inner jit:", alias_bytes(jax.jit(lambda params, gradient: donating(params, gradient))))

# %% [markdown]
# If a donated argument is a container, all its arrays are donated. In the version of JAX that this course uses, it does not matter whether the argument is passed by position or by name. JAX's page on donation warns that arguments passed by name are not donated with `donate_argnums`, so check this in other versions.

# %%
for options in ({"donate_argnums": 0}, {"donate_argnames": "params"}):
    add_one = jax.jit(lambda params: jax.tree.map(lambda p: p + 1, params), **options)
    by_position, by_name = ({"w": jnp.ones(3), "b": jnp.ones(4)} for _ in range(2))
    add_one(by_position), add_one(params=by_name)
    print(options, [leaf.is_deleted() for leaf in jax.tree.leaves((by_position, by_name))])

# %% [markdown]
# ## Deeper: update an array reference in place
# A reference created by `jax.new_ref` (01) is an alternative to donation. A compiled function can write to the referenced array, whose memory stays the same. No array is deleted, so no variable becomes invalid. In exchange, the function changes its argument instead of returning a result.


# %%
@jax.jit
def update_in_place(params, gradient):
    params[...] -= 0.1 * gradient


reference = jax.new_ref(jnp.ones((1024, 1024)))
pointer = reference.unsafe_buffer_pointer()
update_in_place(reference, gradient)
print("the same memory:", reference.unsafe_buffer_pointer() == pointer, "  first entry:", reference[0, 0])

# %% [markdown]
# JAX's documentation notes that calls of compiled functions with references are dispatched more slowly at present. Most code in this course uses donation. [Lesson 12](12_state.ipynb) covers references.

# %% [markdown]
# ## Deeper: inputs of every length
# In the service, the number of readings differs from call to call, and every new number compiles. Instead, choose a few sizes, called **buckets**. Pad each input with zeros to the smallest bucket that is large enough, and mask the padding. Then there is one program for each bucket.
#
# ![Five inputs of lengths 3, 2, 4, 6 and 7. The first three are padded with zeros to 4, the others to 8, with NumPy. Two programs are compiled, one for every n up to 4 and one for every n up to 8. In the program for 8 with n = 6, f is also computed for the padding, the mask jnp.arange(8) < n is true for the input, and jnp.where replaces the rest by 0.](../images/jit_buckets.svg)


# %%
def mean_energy(signal, n):
    """signal (size,), of which the first n entries are real -> one number"""
    energy = jnp.log(signal**2)  # log(0) is -inf in the padding
    real = jnp.arange(signal.shape[0]) < n
    return jnp.sum(jnp.where(real, energy, 0)) / n


def pad_to_bucket(signal, buckets):
    size = next(bucket for bucket in buckets if bucket >= len(signal))
    return np.pad(signal, (0, size - len(signal)))


# %%
signals = [rng.normal(size=n).astype(np.float32) for n in rng.integers(1, 257, size=24)]
for name, buckets in {"none": range(1, 257), "four": (32, 64, 128, 256), "one": (256,)}.items():
    serve = jax.jit(lambda signal, n: mean_energy(signal, n))
    padded = [pad_to_bucket(signal, buckets) for signal in signals]
    start = time.perf_counter()
    for one, signal in zip(padded, signals, strict=True):
        serve(one, len(signal)).block_until_ready()
    ms = 1e3 * (time.perf_counter() - start)
    programs, waste = len({one.shape for one in padded}), 1 - sum(map(len, signals)) / sum(map(len, padded))
    print(f"buckets: {name:5s} {programs:3d} programs, {ms:7.0f} ms, {waste:4.0%} of the work is padding")

# %% [markdown]
# If each bucket is twice as large as the one before, less than half of each input's work is padding, except for inputs that are no longer than half of the smallest bucket. The length `n` is traced, so a new length is not a new key. There are two common mistakes.
#
# - **Multiplying by the mask.** The function may return `-inf` or NaN for padding, and `-inf` times zero is NaN. Use `jnp.where`.
# - **Padding with `jnp.pad`.** Its operations are compiled for each new length. Pad with NumPy before the array becomes a JAX array.

# %%
energy, mask = jnp.log(jnp.array([1.0, 2.0, 0.0])), jnp.array([1.0, 1.0, 0.0])
print("times the mask:", jnp.sum(energy * mask), "  where:", jnp.sum(jnp.where(mask == 1, energy, 0)))
print("times a boolean mask:", jnp.sum(energy * (mask == 1)))
jnp.pad(np.ones(300), (0, 10))  # compiles the operations for a length of 300
with jax.no_tracing(True):
    jnp.pad(np.ones(300), (0, 10))  # cache hits
    print_error(lambda: jnp.pad(np.ones(301), (0, 9)))

# %% [markdown]
# The compiler turned the product with the boolean mask into a selection, so a test may pass despite the first mistake. The last error names `convert_element_type`, the first operation of `jnp.pad`.

# %% [markdown]
# ## Deeper: programs on disk
# The cache of `jit` belongs to one process, and `jax.clear_caches()` empties it. The **persistent compilation cache** stores compiled programs in a folder. With this cache, a new process still traces and lowers each function, but it loads the compiled program from the folder. [Lesson 14](14_profiling.ipynb) measures what it saves.

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.jit(f, static_argnums=(1,))`, `donate_argnums=(0,)` | still available, with positions from 0; `static_argnames` and `donate_argnames` are easier to read |
# | `@functools.partial(jax.jit, static_argnames="n")` | also `@jax.jit(static_argnames="n")` |
# | `jit(f, device=…)`, `jit(f, backend="cpu")` | deprecated; move the arguments with `jax.device_put` |
# | `jax.xla_computation(f)(x)` | `jax.jit(f).lower(x).as_text()` |
# | `pjit(f, in_axis_resources=…)`, and `pjit` in a jaxpr | `jax.jit(f, in_shardings=…)` (16), displayed as `jit` |
# | `jit(f, inline=True)` | removes an inner `jit` from the jaxpr; the compiler does this anyway |
# | `f._cache_size()` | private; count traces with a wrapper, as `print_traces` does |
# | `nnx.jit` | still available; it writes changes back to the module, whereas `jax.jit` needs them returned (10) |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | to predict whether a call compiles | compare the keys: function, how arguments are passed, structure, shape, dtype, weak type, static values |
# | to know why it did | `jax.explain_cache_misses(True)`, `jax.log_compiles(True)` |
# | an error if it does | `with jax.no_tracing(True):` |
# | one trace for a loop | `jax.jit(step)` before the loop, with a first state that is an array of the final dtype |
# | a value that Python needs | `static_argnames`, for few values; otherwise `where`, `cond` (08), or a decision outside of `jit` |
# | a value that changes often | a traced argument |
# | speed | `jit` on the outermost function, such as a whole training step |
# | the memory of old parameters | `donate_argnames`, and the result under the same name |
#
# Continue with [the exercises](../exercises/03_jit/03_jit.ipynb).
