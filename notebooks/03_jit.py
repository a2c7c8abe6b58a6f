# %% [markdown]
# # 03 · jit: compile once, run many times
#
# *Forty minutes, then [the exercises](../exercises/03_jit/03_jit.ipynb).* Afterwards you can say before a call whether JAX will compile it, find out why it did when you did not expect it, choose what is static, put `jit` where it pays most, give memory back, and serve inputs of every length with a handful of programs.
#
# **Assumed.** Arrays and dtypes (01), tracers and jaxprs (02). Recall before you go on; answer first, then open the fold.
#
# 1. From 01: what is the dtype of `jnp.ones(3, jnp.bfloat16) * 2.0`, and why?
#
# <details><summary>Answer</summary>
#
# `bfloat16`. A Python number is *weakly typed*: it takes on the dtype of the array it meets.
# </details>
#
# 2. From 01: `y = f(x)` with two large matrices inside takes 30 µs by the clock. What was measured?
#
# <details><summary>Answer</summary>
#
# The dispatch. JAX returns before the result is there; `jax.block_until_ready(y)` waits for it.
# </details>
#
# 3. From 02: what does a tracer know of the array that it stands for, and what not?
#
# <details><summary>Answer</summary>
#
# Shape, dtype and whether it is weakly typed. Not the values: there are none while Python runs.
# </details>

# %%
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:420]}\n")
    else:
        print("No error!")


def milliseconds(call):
    """How long `call()` takes until its result is there."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return 1e3 * (time.perf_counter() - start)


# %% [markdown]
# ## The question: why was *this* call slow?
# A service scores batches of sensor readings with a compiled function. Here are its last calls:


# %%
def score(weights, readings):
    """weights (8,), readings (n, 8) -> one number"""
    signal = jnp.tanh(readings @ weights)
    return jnp.sum(signal**2) / jnp.sum(jnp.abs(signal))


compiled_score = jax.jit(score)
rng = np.random.default_rng(3)
weights = jnp.asarray(rng.normal(size=8), jnp.float32)

for n in (64, 64, 64, 65, 64, 65, 66):
    readings = rng.normal(size=(n, 8)).astype(np.float32)
    print(f"{n} readings: {milliseconds(lambda: compiled_score(weights, readings)):8.2f} ms")

# %% [markdown]
# The first call is hundreds of times slower than the second; fine, it compiles. But a call with *one reading more* is as slow as the first. Why did it compile again, and when will it next time?
#
# ## What the slow call does
# JAX tells, when asked:

# %%
readings = rng.normal(size=(67, 8)).astype(np.float32)
with jax.log_compiles(True):
    compiled_score(weights, readings)

# %% [markdown]
# **Trace**: Python runs your function on tracers and writes a jaxpr (02). **Lower**: the jaxpr becomes an MLIR module in StableHLO, the language that XLA reads. **Compile**: XLA makes machine code, and that takes most of the time; for a large model, minutes.
#
# ## The key
# `jit` keeps every program in a cache. From a call it makes a **key**. If the key is there, its program runs, and your Python does not.
#
# ![Above left: the call compiled(w, 0.1, mode="fast") taken apart. In the key are the function object, how the arguments are passed, float32[3] for w, weak float32[] for 0.1, and the value "fast" of the static argument. The numbers in w and the value 0.1 are not. Right: a key seen before is a hit and runs the stored program; else trace, lower, compile, and store. Below, five more calls: new values hit; a new shape, dtype, static value, or an argument passed by name miss.](../images/jit_cache.svg)
#
# For an array its **shape and dtype** count, for a Python number its type, for a container its form. All of it can be looked at; `~` marks a weak type:

# %%
print([str(jax.typeof(argument)) for argument in (np.ones(3), jnp.ones((3, 1)), 1.0, 5.0, 1, jnp.float32(1.0))])
print(jax.tree.structure({"w": 1.0, "b": 2.0}), jax.tree.structure([1.0, 2.0]), jax.tree.structure((1.0, None)))

# %% [markdown]
# (NumPy's float64 became float32, lesson 01.) Python runs the function while tracing, and only then. So a counter inside tells which calls were traced:


# %%
def tell(function, *calls, **options):
    """Jits `function` as `f`, makes the calls one after the other, and tells which of them were traced."""
    traces = []

    @functools.wraps(function)
    def watched(*arguments, **keywords):
        traces.append(None)
        return function(*arguments, **keywords)

    f = jax.jit(watched, **options)
    for call in calls:
        before = len(traces)
        eval(call, globals(), {"f": f})
        print(f"  {call:34s} {'traced' if len(traces) > before else '·'}")


# %% [markdown] predict="jit-key"
# `f(x, 2.0)` has been traced, with a float32 `x` of shape `(3,)`. Which of these calls is **not** traced anew?
#
# - [ ] `f(x, 2)` | An int is another dtype: int32 instead of float32, both weak.
# - [x] `f(np.zeros(3), 7.0)` | Right: other values, and NumPy instead of JAX, but the same shapes and dtypes.
# - [ ] `f(x, jnp.float32(2.0))` | The same dtype, but no longer weak, and that is in the key: it decides the dtype of results.
# - [ ] `f(x, factor=2.0)` | How an argument is passed is in the key too. Surprising, and easily avoided.

# %%
x = jnp.ones(3)
tell(
    lambda x, factor=2.0: jax.tree.map(lambda leaf: factor * leaf, x),
    "f(x, 2.0)",
    "f(np.zeros(3), 7.0)",
    "f(x, 2)",
    "f(x, jnp.float32(2.0))",
    "f(x, factor=2.0)",
    "f(x)",
    "f(x.astype(jnp.bfloat16), 2.0)",
    "f(jnp.ones((3, 1)), 2.0)",
    "f({'w': x, 'b': x}, 2.0)",
    "f({'b': x, 'w': x}, 2.0)",
    "f([x, x], 2.0)",
    "f((x, x), 2.0)",
)

# %% [markdown]
# Each traced call compiled, too. A dict's order does not matter; a list against a tuple does. Devices and shardings of the arguments (16) and settings such as the matmul precision count as well.
#
# Weak types are the subtle one. It usually is the *second* call that compiles again:

# %% [markdown] predict="jit-weak-loop"
# `add` is compiled; `total = 0.0`, then five times `total = add(total, number)` with float32 numbers. How many traces?
#
# - [ ] one | Every shape is `()`, every dtype float32. But the first `total` is a Python number.
# - [x] two | Right: weak in the first call; from then on an array, which is not weak.
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
# Start such a loop from an array of the right dtype, `jnp.zeros(())`, and it compiles once.
#
# ## Ask JAX why
# You need not guess. `jax.explain_cache_misses` says what is new in the key. Like `jax.log_compiles`, it is also a setting for a whole run: `JAX_EXPLAIN_CACHE_MISSES=1 python serve.py`. And where compiling would be a fault (in a test, in a warm service), `jax.no_tracing` makes it an error.


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
    scale(x, 3.0)  # in the cache
    refusal(lambda: scale(np.ones(6), 3.0))

# %% [markdown]
# ## Values that Python needs
# While tracing there are no values, so Python cannot decide by them, count to them, or make arrays of their size.


# %%
def power(x, n):
    result = jnp.ones_like(x)
    for _ in range(n):
        result = result * x
    return result


refusal(lambda: jax.jit(lambda x: x if x.sum() > 0 else -x)(x))
refusal(lambda: jax.jit(power)(x, 3))
refusal(lambda: jax.jit(lambda n: jnp.zeros(n))(3))

# %% [markdown]
# Three ways out. Decide **inside** the program: `jnp.where`, or `jax.lax.cond` and the loops of lesson 08. Decide **before** it, outside `jit`. Or make the argument **static**: then it is an ordinary Python value while tracing, and *its value is part of the key*.

# %% [markdown] predict="jit-static"
# With `static_argnames="n"`, in the order `n = 2`, `3`, `2`, `True`, `1`: how many traces?
#
# - [ ] three: 2, 3, and 1 | `True == 1` in Python, but JAX looks at the type too.
# - [x] four: 2, 3, True and 1 | Right: one for each different value and type.
# - [ ] five | The second 2 is in the cache. Old programs are kept.

# %%
tell(power, "f(x, 2)", "f(x, 3)", "f(x, 2)", "f(x, True)", "f(x, 1)", static_argnames="n")
refusal(lambda: jax.jit(power, static_argnames="n")(x, [1, 2]))

# %% [markdown]
# A static value must be hashable: a tuple, not a list or an array. And static is for what takes **few values**: a flag, a mode, a number of layers. A learning rate, a step counter, a temperature change all the time. Traced, that costs nothing; static, each value costs a compilation:

# %%
rates = [0.1 / step for step in range(1, 13)]
for name, options in {"traced": {}, "static": {"static_argnames": "rate"}}.items():
    step = jax.jit(lambda x, rate: x - rate * jnp.tanh(x), **options)
    took = sum(milliseconds(lambda: step(x, rate)) for rate in rates)
    print(f"rate {name}: {len(rates)} steps in {took:7.1f} ms")

# %% [markdown]
# ## The function is in the key too
# `jit` knows a function by its identity, not by its text. A `lambda` or `def` that runs again makes a new function:


# %%
def double(x):
    print("tracing", end=" ")
    return 2 * x


print("a lambda in the loop:", end=" ")
for _ in range(3):
    jax.jit(lambda x: double(x))(x)
print("\ncompiled before it:  ", end=" ")
compiled_double = jax.jit(double)
for _ in range(3):
    compiled_double(x)

# %% [markdown]
# The same happens with `jax.jit(functools.partial(...))`, and with a `jit` of a function that is itself made again and again, such as a lambda. Compile at module level, or once before the loop.
#
# ## Python runs once: purity
# What a function takes from elsewhere is read while tracing, and is a constant from then on. What it does beside returning a result happens while tracing, and not again.

# %% [markdown] predict="jit-global"
# `shift` adds the global `offset`, and was traced with `offset = 1.0`. Then `offset = 100.0`, and `shift` is called with the same shape, and with a new one. What do the three calls add?
#
# - [ ] 1, 100, 100 | That would be Python. The program for the old shape holds a 1.
# - [ ] 1, 1, 1 | Nearly. But a new shape is traced anew, and then Python reads the global again.
# - [x] 1, 1, 100 | Right: each program keeps what it saw when it was traced. The worst kind of bug: right in every small test.

# %%
offset = 1.0
shift = jax.jit(lambda x: x + offset)
print("first:      ", shift(jnp.zeros(3))[0])
offset = 100.0
print("same shape: ", shift(jnp.zeros(3))[0])
print("new shape:  ", shift(jnp.zeros(4))[0])

dice = jax.jit(lambda: jnp.asarray(np.random.default_rng().integers(1, 7)))
print("NumPy's dice under jit:", [int(dice()) for _ in range(6)])

# %% [markdown]
# So: everything that may change goes in as an argument, everything that you want comes out as a result. Random numbers come from keys (07), prints from `jax.debug.print` (13).
#
# ## Methods, and the stale self
# `self` is an argument like any other, and no array. The usual "mend" for that error is to make it static.


# %%
shifted = jax.jit(lambda offset, x: x + offset)


class Sensor:
    def __init__(self, offset):
        self.offset = offset

    @jax.jit
    def plain(self, x):
        return x + self.offset

    @functools.partial(jax.jit, static_argnames="self")
    def static(self, x):
        return x + self.offset

    def fresh(self, x):
        return shifted(self.offset, x)


sensor = Sensor(1.0)
refusal(lambda: sensor.plain(x))

# %% [markdown] predict="jit-self"
# `sensor.static(x)` gave 2. Now `sensor.offset = 100.0`. What does `sensor.static(x)` give?
#
# - [x] 2 | Right: the key is the object, and it still is the same object. Its attributes are baked in.
# - [ ] 101 | Only if the key looked into the object. It uses the object's hash and equality, here its identity.
# - [ ] an error | It would be better. Nothing says a word.

# %%
print("before: static", sensor.static(x)[0], "  fresh", sensor.fresh(x)[0])
sensor.offset = 100.0
print("after:  static", sensor.static(x)[0], "  fresh", sensor.fresh(x)[0])

# %% [markdown]
# A closure over `self`, or a `jax.jit(sensor.method)` kept in a variable, goes stale in the same way. `fresh` does it right: the method hands its state, as an argument, to a compiled function, and all sensors share one program. An object whose class is registered as a pytree is an argument too (06); Flax modules are (10).
#
# ## Put jit outermost
# A training step: a network, its loss, the gradient, the new parameters. (`jax.grad(loss)` is the function that gives the gradient of `loss`; lesson 04 is about it.) Where should `jit` go?


# %%
def network(params, xs):
    for w, b in params[:-1]:
        xs = jnp.tanh(xs @ w + b)
    w, b = params[-1]
    return (xs @ w + b)[:, 0]


def loss(params, xs, ys):
    return jnp.mean((network(params, xs) - ys) ** 2)


def train_step(gradient, params, xs, ys):
    return jax.tree.map(lambda p, slope: p - 0.05 * slope, params, gradient(params, xs, ys))


shapes = ((16, 64), (64, 64), (64, 64), (64, 1))
params = [(jnp.asarray(rng.normal(size=(a, b)) / a**0.5, jnp.float32), jnp.zeros(b)) for a, b in shapes]
xs = jnp.asarray(rng.normal(size=(64, 16)), jnp.float32)
ys = jnp.sin(xs.sum(1))

compiled_network = jax.jit(network)
loss_of_compiled = lambda params, xs, ys: jnp.mean((compiled_network(params, xs) - ys) ** 2)
ways = {
    "nothing": functools.partial(train_step, jax.grad(loss)),
    "the network": functools.partial(train_step, jax.grad(loss_of_compiled)),
    "the gradient": functools.partial(train_step, jax.jit(jax.grad(loss))),
    "the whole step": jax.jit(functools.partial(train_step, jax.grad(loss))),
}
for name, way in ways.items():
    milliseconds(lambda: way(params, xs, ys))  # compile, and warm up
    median = np.median([milliseconds(lambda: way(params, xs, ys)) for _ in range(15)])
    print(f"jit on {name:15s} {median:8.3f} ms")

# %% [markdown]
# Outermost wins: one dispatch instead of dozens, and the compiler sees everything at once. It can fuse the update into the gradient, leave out what nobody uses, and **merge** what is computed twice. An inner `jit` does no harm; it becomes part of the outer program.

# %% [markdown] predict="jit-merge"
# `loss(params)` and `jax.grad(loss)(params)`, both in one compiled function: the forward pass stands there twice. How many flops, against `value_and_grad`, which runs it once?
#
# - [ ] a third more | That is what two separate programs cost.
# - [x] the same | Right: the compiler sees the same operation on the same inputs and keeps one of them.
# - [ ] twice as many | The backward pass, the larger part, is there only once.


# %%
def flops(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


both = lambda *arguments: (loss(*arguments), jax.grad(loss)(*arguments))
inner = lambda *arguments: (jax.jit(loss)(*arguments), jax.jit(jax.grad(loss))(*arguments))
print(f"value_and_grad:             {flops(jax.value_and_grad(loss), params, xs, ys):12,.0f} flops")
print(f"loss and grad, one program: {flops(both, params, xs, ys):12,.0f}")
print(f"the same, jit inside too:   {flops(inner, params, xs, ys):12,.0f}")
print(f"loss and grad, two programs:{flops(loss, params, xs, ys) + flops(jax.grad(loss), params, xs, ys):12,.0f}")

matrix, vector = jnp.ones((256, 256)), jnp.ones(256)
print(f"(A @ A) @ v:                {flops(lambda a, v: (a @ a) @ v, matrix, vector):12,.0f}")
print(f"A @ (A @ v):                {flops(lambda a, v: a @ (a @ v), matrix, vector):12,.0f}")

# %% [markdown]
# The last two lines are the limit: the compiler merges what is *the same*, not what is *equal*. Matrix products stay in the order in which you wrote them.
#
# What stays outside: reading files, deciding when to stop, everything that needs a value in Python now.
#
# ## Donation: giving memory back
# A step takes parameters and returns new ones of the same size. The old ones are of no use any more, but JAX cannot know: you may still hold them. Say it with `donate_argnames`.
#
# ![Left, jax.jit(update): before the call device memory holds params and gradient, after it params, gradient and new params, written beside. Right, with params donated: the new params are written over the old ones in place, the gradient is kept, and the old array is deleted.](../images/jit_donation.svg)


# %%
def update(params, gradient):
    return params - 0.1 * gradient


keeping, donating = jax.jit(update), jax.jit(update, donate_argnames="params")
weights, slopes = jnp.ones((1024, 1024)), jnp.ones((1024, 1024))
for name, way in {"keeping": keeping, "donating": donating}.items():
    memory = way.lower(weights, slopes).compile().memory_analysis()
    total = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    print(
        f"{name:9s} {total >> 20} MiB for arguments and results, {memory.alias_size_in_bytes >> 20} MiB of them shared"
    )
print(donating.lower(weights, slopes).as_text().splitlines()[1].strip())

# %% [markdown]
# `tf.aliasing_output = 0`: this argument's buffer is result 0. It is in the program, so it can be checked. And in Python?

# %% [markdown] predict="jit-donated"
# `new = donating(weights, slopes)`. What does `weights` hold now?
#
# - [ ] the old values | They have been written over.
# - [ ] the new values | The buffer does, but this array is no longer allowed to look.
# - [x] nothing: reading it is an error | Right: the array is deleted. So write `weights = donating(weights, slopes)`.

# %%
address = weights.unsafe_buffer_pointer()
new = donating(weights, slopes)
print("the result lies where the argument lay:", new.unsafe_buffer_pointer() == address)
print("weights deleted:", weights.is_deleted(), "  slopes deleted:", slopes.is_deleted())
refusal(lambda: weights + 1)

# %% [markdown]
# Only a result that fits can take the buffer over. Where none has as many elements, or two are given for one result, JAX warns while compiling. Where only the width of the dtype differs, **nothing is said** and nothing saved, so read the alias bytes. And only the *outermost* `jit` can donate:

# %%
shared = lambda way: way.lower(slopes, slopes).compile().memory_analysis().alias_size_in_bytes
narrower = lambda params, gradient: update(params, gradient).astype(jnp.bfloat16)
print("donated, the same dtype:   ", shared(donating), "bytes shared")
print("donated, a narrower result:", shared(jax.jit(narrower, donate_argnames="params")))
print("donated in an inner jit:   ", shared(jax.jit(lambda params, gradient: donating(params, gradient))))

# %% [markdown]
# Donate what the result replaces: parameters, optimizer state, caches. Not the batch, not the gradient that you still want to log.
#
# ## Ragged inputs: buckets and masks
# Back to the service. Lengths differ with every request, and every new length compiles. One program can serve many lengths: pad up to the next of a few sizes, the **buckets**, and mask what is padding.
#
# ![Five rows of lengths 3, 2, 4, 6 and 7 arrive. The first three are padded with zeros to 4, the others to 8, on the host. Two programs are compiled once each, for every n up to 4 and up to 8. Inside, f is computed on the padding too, a mask jnp.arange(8) < n tells what is real, and where chooses.](../images/jit_buckets.svg)


# %%
def mean_energy(signal, n):
    """signal (size,), of which the first n are real -> one number"""
    energy = jnp.log(signal**2)  # log(0) in the padding: -inf
    real = jnp.arange(signal.shape[0]) < n
    return jnp.sum(jnp.where(real, energy, 0)) / n


def padded(signal, buckets):
    size = next(bucket for bucket in buckets if bucket >= len(signal))
    return np.pad(signal, (0, size - len(signal)))


signals = [rng.normal(size=n).astype(np.float32) for n in rng.integers(1, 257, size=24)]
for name, buckets in {"none": range(1, 257), "four": (32, 64, 128, 256), "one": (256,)}.items():
    serve = jax.jit(lambda signal, n: mean_energy(signal, n))
    batches = [padded(signal, buckets) for signal in signals]
    took = sum(milliseconds(lambda: serve(batch, len(signal))) for batch, signal in zip(batches, signals, strict=True))
    programs, waste = len({batch.shape for batch in batches}), 1 - sum(map(len, signals)) / sum(map(len, batches))
    print(f"buckets: {name:5s} {programs:3d} programs, {took:7.0f} ms, {waste:4.0%} of the work is padding")

# %% [markdown]
# Buckets that double waste about half at worst, and compile a handful of times. `n` is traced, so a new length is no new key. Two traps: **choose, do not multiply**, since what the function makes of padding (here `-inf`) is NaN when multiplied by zero, unless the compiler happens to turn your product into a choice; and **pad with NumPy**, before the array is JAX's: `jnp.pad` is itself compiled for each new length.

# %%
energy, mask = jnp.log(jnp.array([1.0, 2.0, 0.0])), jnp.array([1.0, 1.0, 0.0])
print("times the mask:", jnp.sum(energy * mask), "  where:", jnp.sum(jnp.where(mask == 1, energy, 0)))
with jax.no_tracing(True):
    refusal(lambda: jnp.pad(signals[0], (0, 256 - len(signals[0]))))

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | to know whether it will compile | compare keys: function, how it is passed, form of containers, shape, dtype, weak type, static values |
# | to know why it did | `jax.explain_cache_misses(True)`, `jax.log_compiles(True)` |
# | to forbid it | `with jax.no_tracing(True):` |
# | one trace in a loop | `jax.jit(step)` before the loop, state that starts as an array of its final dtype |
# | a value that Python needs | `static_argnames`, for few values; else `where`, `cond` (08), or decide before the call |
# | a rate, a counter, a temperature | leave it traced |
# | a method | a compiled function that takes the object's state as arguments |
# | speed | `jit` on the whole step, and nothing in it that has to come back to Python |
# | old parameters' memory | `donate_argnames`, and use the result under the same name |
# | inputs of every length | buckets padded with NumPy, a traced length, `jnp.where` with a mask |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `jax.jit(f, static_argnums=(1,))`, `donate_argnums=(0,)` | still there, by position from 0; `static_argnames`, `donate_argnames` say what they mean |
# | `@functools.partial(jax.jit, static_argnames="n")` | also `@jax.jit(static_argnames="n")` |
# | `jit(f, device=…)`, `jit(f, backend="cpu")` | deprecated: put the arguments there with `jax.device_put` |
# | `jax.xla_computation(f)(x)` | `jax.jit(f).lower(x).as_text()` |
# | `pjit(f, in_axis_resources=…)`, and `pjit` in a jaxpr | `jax.jit(f, in_shardings=…)` (16), shown as `jit` |
# | `jit(f, inline=True)` | leaves an inner `jit` out of the jaxpr; the compiler does so anyway |
# | `f._cache_size()` | private: count traces with a wrapper as `tell` does |
# | `nnx.jit` | in maintenance: plain `jax.jit`, with the state returned (10) |
#
# Next: the exercises. The first has two lines missing.
