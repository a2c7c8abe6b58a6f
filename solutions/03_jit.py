# %% [markdown]
# # 03 · Exercises: jit
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# Several checks count **traces**, which means how often Python runs a function that you receive. Under `jit`, Python runs it only while JAX traces. So one trace means one compiled program, and as many traces as calls mean that no program was reused. To count traces yourself, put a `print` into the function, or call it under `jax.explain_cache_misses(True)`.

# %% setup
import copy
import functools
import warnings

from grader.checks import ask, case, compare, counted, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np


def smooth(state, sample):
    """A step of an exponential moving average: (), () -> ()"""
    return 0.9 * state + 0.1 * sample


def peak(state, sample):
    """A peak meter, which rises with the sample and falls slowly: (), () -> ()"""
    return jnp.maximum(0.5 * state, jnp.abs(sample))


def damped(x, rate, t, clip, order):
    """One step of a damped relaxation: x (n,) -> (n,).

    rate is a float that changes with every call, and t is the number of the step (1, 2, 3, ...). clip is a flag, and
    order (0 to 4) is the number of times that the step is smoothed.
    """
    move = rate * x / (1 - 0.9**t)
    if clip:
        move = jnp.clip(move, -1, 1)
    for _ in range(order):
        move = (move + jnp.roll(move, 1)) / 2
    return x - move


def neuron(w, gain, x):
    """A neuron on a batch: w (d,), gain (), x (n, d) -> (n,)"""
    return gain * jnp.tanh(jnp.sum(w * x, axis=1))


def inverse_norm(rows):
    """One over the length of each row: (n, d) -> (n,). A row of zeros gives inf."""
    return 1 / jnp.sqrt(jnp.sum(rows**2, axis=1))


# %% [markdown] task="jit-once" stars=1 minutes=8 skills="01_arrays,02_tracing"
# ## One trace for the whole stream
# **Goal.** Run a compiled filter over a stream of samples. It is traced only once, for any number of samples. Two lines are missing. They define the compiled step and the first state.
#
# **Signature.** `jit_once(update, samples)`. `update(state, sample)` takes two numbers `()` and returns the next state `()`, all of one float dtype. `samples` is `(n,)` of that dtype, with n ≥ 1. The state is 0 before the first sample. Returns the last state, `()`, in the dtype of `samples`.
#
# **Example.** With `smooth` from the setup, which is `0.9 * state + 0.1 * sample`, the samples `[10, 0, 20]` give the states 1, 0.9 and 2.81.
#
# **Judged.** Values and dtype, also in bfloat16, and that `update` is traced exactly once for any n. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# The loop calls `compiled` n times. Which function is `compiled`, and where must you create it so that all n calls share one program?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Call 1 receives the state that you created, and call 2 receives the result of call 1. Both must have the same type. Which property belongs to a type, apart from shape and dtype?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A Python `0.0` is weakly typed. The state that `update` returns is not. Start from an array of shape `()` with the dtype of `samples`.
#
# </details>


# %% answer="jit-once"
def jit_once(update, samples):
    """Runs update(state (), sample ()) -> state () over samples (n,), from state 0. Returns the last state ()."""
    ### BEGIN SOLUTION
    compiled = jax.jit(update)
    state = jnp.zeros((), samples.dtype)
    ### END SOLUTION
    for sample in samples:
        state = compiled(state, sample)
    return state


# %% check="jit-once" name="example" points=1
"""The example: three samples through the moving average."""
samples = np.array([10, 0, 20], np.float32)
compare(ask(lambda samples: jit_once(smooth, samples), samples), np.array(2.81, np.float32), label="the last state")

# %% hidden="jit-once" name="values" points=1
"""Right for another filter, from state 0, in the dtype of the samples."""


def by_hand(samples):
    state = 0.0
    for sample in samples:
        state = max(0.5 * state, abs(sample))
    return state


for place, what in ((0, "the first of six samples is the largest"), (3, "the fourth of six samples is the largest")):
    samples = inputs.rng().uniform(-1, 1, size=6).astype(np.float32)
    samples[place] = -inputs.rng().uniform(100, 200)
    got = ask(lambda samples: jit_once(peak, jnp.asarray(samples)), samples)
    compare(got, np.array(by_hand(samples), np.float32), label=f"where {what}, the last state")
short = jnp.bfloat16(inputs.rng().uniform(2, 4, size=2))
wanted = 0.09 * float(short[0]) + 0.1 * float(short[1])
got = ask(lambda samples: jit_once(smooth, jnp.asarray(samples)), short)
compare(got, jnp.bfloat16(wanted), atol=0.02, label="the last state in bfloat16")
one = inputs.rng().uniform(2, 4, size=1).astype(np.float32)
got = ask(lambda samples: jit_once(smooth, jnp.asarray(samples)), one)
compare(got, np.float32(0.1) * one[0], label="the state after a single sample")

# %% hidden="jit-once" name="traces" points=1 observed=true
"""Traces `update` once for the whole stream."""


def probe_traces(samples):
    plain, written_out, static, states = [], [], [], [None]

    def update(state, sample):
        plain.append(not isinstance(state + sample, jax.core.Tracer))
        static.append(not isinstance(sample, jax.core.Tracer))
        written_out.append(state is states[-1])
        states.append(smooth(state, sample))
        return states[-1]

    return jit_once(update, samples).shape, len(plain), any(plain), any(static), any(written_out)


shape, calls, plain, static, written_out = ask(probe_traces, jnp.arange(1.0, 8.0))
require(shape == (), f"The last state has shape {shape} instead of ().")
require(not plain, "Python ran `update` for every sample, operation by operation, so it is not compiled.")
require(
    calls != 2,
    "`update` was traced twice. In the second call the key contained a new type, which is that of the returned state. "
    "Compare it with the type of your first state.",
)
require(
    calls == 1 or not static, "The sample is a static Python number, so each new sample is a new key. Leave it traced."
)
require(
    calls == 1 or not written_out,
    f"For 7 samples Python ran `update` {calls} times while tracing one program, which contains the loop unrolled.",
)
require(calls == 1, f"For 7 samples `update` was traced {calls} times. Compile it once, before the loop.")

# %% [markdown] why="jit-once"
# The same function object is compiled once, before the loop. The state has the same type in every call, because it is never weakly typed. **Next:** How many traces are there if the last sample of the stream is a float64 number from NumPy? And if it is a Python float?


# %% wrong="jit-once" because="Starts from the Python number 0.0, which is weakly typed. The returned state is not weakly typed, so call 2 is traced again."
def jit_once(update, samples):
    compiled = jax.jit(update)
    state = 0.0
    for sample in samples:
        state = compiled(state, sample)
    return state


# %% wrong="jit-once" because="Compiles a new lambda in each iteration. jit identifies functions by the object, so no program is reused."
def jit_once(update, samples):
    state = jnp.zeros((), samples.dtype)
    for sample in samples:
        state = jax.jit(lambda state, sample: update(state, sample))(state, sample)
    return state


# %% wrong="jit-once" because="Does not compile, so Python runs update for every sample."
def jit_once(update, samples):
    state = jnp.zeros((), samples.dtype)
    for sample in samples:
        state = update(state, sample)
    return state


# %% wrong="jit-once" because="Starts from a float32 zero for samples of any dtype, which promotes bfloat16 to float32."
def jit_once(update, samples):
    compiled = jax.jit(update)
    state = jnp.zeros(())
    for sample in samples:
        state = compiled(state, sample)
    return state


# %% wrong="jit-once" because="Starts from the first sample instead of from 0."
def jit_once(update, samples):
    compiled = jax.jit(update)
    state = jnp.asarray(samples[0])
    for sample in samples[1:]:
        state = compiled(state, sample)
    return state


# %% wrong="jit-once" because="Passes the sample as a static argument, so each value is a new key."
def jit_once(update, samples):
    compiled = jax.jit(update, static_argnums=1)
    state = jnp.zeros((), samples.dtype)
    for sample in samples:
        state = compiled(state, float(sample))
    return state


# %% wrong="jit-once" because="Compiles the whole loop, which Python unrolls, so one program contains update once for every sample."
def jit_once(update, samples):
    @jax.jit
    def run(state, samples):
        for sample in samples:
            state = update(state, sample)
        return state

    return run(jnp.zeros((), samples.dtype), samples)


# %% right="jit-once"
def jit_once(update, samples):
    @jax.jit
    def step(state, sample):
        return update(state, sample)

    state = jnp.zeros_like(samples, shape=())
    for i in range(len(samples)):
        state = step(state, samples[i])
    return state


# %% right="jit-once"
def jit_once(update, samples):
    start = jnp.array(0, samples.dtype)
    return jax.lax.scan(lambda state, sample: (update(state, sample), None), start, samples)[0]


# %% right="jit-once"
def jit_once(update, samples):
    samples = jnp.asarray(samples)
    number = jax.ShapeDtypeStruct((), samples.dtype)
    compiled = jax.jit(update).lower(number, number).compile()
    state = jnp.zeros((), samples.dtype)
    for sample in samples:
        state = compiled(state, sample)
    return state


# %% [markdown] task="jit-explain-retrace" stars=1 minutes=12 skills="01_arrays,02_tracing,jit-once"
# ## Why was it traced again?
# **Goal.** Given two calls of a compiled function, name the part of the cache key that has changed. This is a small version of `jax.explain_cache_misses`.
#
# **Signature.** `explain_retrace(before, after)`. Each call is a pair `(arguments, static)`. `arguments` is a tuple of traced arguments, which are NumPy or JAX arrays, Python numbers, and dicts, lists and tuples of them. `static` is the value of one static argument, which is a string, a number, a bool or a tuple. Returns one of these strings:
#
# | | when |
# |---|---|
# | `"nothing"` | the second call uses the program of the first |
# | `"static"` | the static values have different types or are not equal. Items of a tuple only have to be equal, so `(1, 2)` and `(1.0, 2.0)` are the same value |
# | `"tree"` | the arguments have different structures, such as other dict keys, another number of items, or a list instead of a tuple |
# | `"shape"`, `"dtype"`, `"weak_type"` | the structures are the same, and one array or number has another shape, dtype or weak type |
#
# At most one of these differs between `before` and `after`. A Python `1` after `1.0` counts as `"dtype"`.
#
# **Example.** `explain_retrace(((np.ones(3), 0.1), "fast"), ((np.ones(4), 0.1), "fast"))` is `"shape"`.
#
# **Judged.** The answers for pairs of calls with random values. They are the answers of jax 0.10 with 64-bit types disabled. **Not judged.** How you inspect the arguments. You may also jit a function and observe its cache.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.tree.leaves` returns the arrays and numbers in a container, and `jax.tree.structure` returns everything else. Which of the six answers needs which function?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# NumPy's float64 and JAX's float32 use the same program, and a Python number has no `.dtype`. `jax.typeof(leaf)` is the type that JAX gives to an argument. It has a `shape`, a `dtype` and a `weak_type`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# First compare the static values. JAX distinguishes `1`, `1.0` and `True`, but Python's `==` does not, so compare their types too. Then compare the structures. Then go through both lists of leaves in parallel and compare the three attributes of each pair.
#
# </details>


# %% answer="jit-explain-retrace"
def explain_retrace(before, after):
    """The part of the key that differs between two calls (arguments, static): "nothing", "static", "tree", "shape",
    "dtype" or "weak_type"."""
    ### BEGIN SOLUTION
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if type(old_static) is not type(new_static) or old_static != new_static:
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
    return "nothing"
    ### END SOLUTION


# %% check="jit-explain-retrace" name="example" points=1
"""The example, and the same call twice."""
before, longer = ((np.ones(3), 0.1), "fast"), ((np.ones(4), 0.1), "fast")
compare(ask(explain_retrace, before, longer), "shape", label="the answer for a longer array")
compare(ask(explain_retrace, longer, longer), "nothing", label="the answer for the same call again")

# %% hidden="jit-explain-retrace" name="arrays" points=1
"""Right for arrays, NumPy's and JAX's, and for containers of them."""
rng = inputs.rng()
n, m = (int(size) for size in rng.permutation(np.arange(2, 9))[:2])
x = jnp.asarray(rng.normal(size=n), jnp.float32)
y = rng.normal(size=(n, m)).astype(np.float32)
pairs = [
    ("values only", "nothing", ((x, y), "a"), ((x + 1, y * 2), "a")),
    ("a NumPy array instead of a JAX array", "nothing", ((x, y), "a"), ((np.array(x), y), "a")),
    ("NumPy's float64 for float32, with 64-bit types off", "nothing", ((x, y), "a"), ((x, y.astype(np.float64)), "a")),
    ("a shape", "shape", ((x, y), "a"), ((x, y.T), "a")),
    ("an axis of size 1", "shape", ((x,), "a"), ((x[:, None],), "a")),
    ("a dtype", "dtype", ((y,), "a"), ((jnp.bfloat16(y),), "a")),
    ("float16 instead of float32", "dtype", ((x, y), "a"), ((x, y.astype(np.float16)), "a")),
    ("the order in a dict", "nothing", (({"w": x, "b": y},), "a"), (({"b": y, "w": x},), "a")),
    ("the keys of a dict", "tree", (({"w": x, "b": x},), "a"), (({"w": x, "c": x},), "a")),
    ("the number of items", "tree", (([x, x],), "a"), (([x, x, x],), "a")),
    ("a list instead of a tuple", "tree", (([x, y],), "a"), (((x, y),), "a")),
    ("nesting", "tree", (([x, [y]],), "a"), (([[x], y],), "a")),
]
shuffled = [int(i) for i in rng.permutation(len(pairs))]  # judged in one order, so no draw changes which fails first
answers = ask(lambda calls: [explain_retrace(*pair) for pair in calls], [pairs[i][2:] for i in shuffled])
for i, (what, wanted, _, _) in enumerate(pairs):
    answer = answers[shuffled.index(i)]
    require(answer == wanted, f"The answer is wrong for two calls with this difference: {what}.")

# %% hidden="jit-explain-retrace" name="numbers" points=1
"""Right for Python numbers and for static values."""
rng = inputs.rng()
a, b = (float(value) for value in rng.uniform(1, 9, size=2))
n, m = (int(size) for size in rng.permutation(np.arange(2, 9))[:2])
x = jnp.asarray(rng.normal(size=n), jnp.float32)
pairs = [
    ("the value of a Python number", "nothing", ((x, a), "a"), ((x, b), "a")),
    ("the value of an int in a dict", "nothing", (({"x": x, "n": n},), 1), (({"x": x, "n": m},), 1)),
    ("a Python int instead of a Python float", "dtype", ((x, a), "a"), ((x, n), "a")),
    ("an array of shape () instead of a Python float", "weak_type", ((x, a), "a"), ((x, jnp.float32(a)), "a")),
    ("a Python int instead of an int32", "weak_type", (([x, jnp.int32(n)],), "a"), (([x, n],), "a")),
    ("a static string", "static", ((x, a), "fast"), ((x, a), "slow")),
    ("a static number, -2 instead of -1", "static", ((x, a), -1), ((x, a), -2)),
    ("a static value, True instead of 1", "static", ((x,), True), ((x,), 1)),
    ("a static value, a float instead of an int", "static", ((x,), n), ((x,), float(n))),
    ("a static number", "static", ((x, a), n), ((x, a), m)),
    ("an item of a static tuple", "static", ((x,), (n, "a")), ((x,), (m, "a"))),
    ("a static tuple, with floats instead of equal ints", "nothing", ((x,), (n, m)), ((x,), (float(n), float(m)))),
    ("a NumPy float64 for an array of shape ()", "nothing", ((x, jnp.float32(a)), "a"), ((x, np.float64(b)), "a")),
    ("an array made of a Python float for that float", "nothing", ((x, a), "a"), ((x, jnp.asarray(b)), "a")),
    ("values only, with an equal static tuple", "nothing", ((x, a), (n, "a")), ((x + 1, b), (n, "a"))),
]
shuffled = [int(i) for i in rng.permutation(len(pairs))]
answers = ask(lambda calls: [explain_retrace(*pair) for pair in calls], [pairs[i][2:] for i in shuffled])
for i, (what, wanted, _, _) in enumerate(pairs):
    answer = answers[shuffled.index(i)]
    require(answer == wanted, f"The answer is wrong for two calls with this difference: {what}.")

# %% [markdown] why="jit-explain-retrace"
# The key contains everything that a trace can depend on. This is the structure of the arguments, the type of each leaf as `jax.typeof` shows it, and the static values. The values of traced arguments cannot matter, because a tracer does not have them. **Next:** What else does the real key contain? Make a call under `jax.default_matmul_precision("highest")`, or with an argument on another device.


# %% wrong="jit-explain-retrace" because="Compares NumPy's dtypes instead of JAX's. With 64-bit types disabled, JAX converts float64 to float32."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if type(old_static) is not type(new_static) or old_static != new_static:
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        if np.shape(old) != np.shape(new):
            return "shape"
        if np.asarray(old).dtype != np.asarray(new).dtype and not isinstance(old, float | int):
            return "dtype"
        if jax.typeof(old) != jax.typeof(new):
            return "weak_type" if jax.typeof(old).dtype == jax.typeof(new).dtype else "dtype"
    return "nothing"


# %% wrong="jit-explain-retrace" because="Ignores weak types. A Python number and an array of the same dtype have different keys."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if type(old_static) is not type(new_static) or old_static != new_static:
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        if jax.typeof(old).shape != jax.typeof(new).shape:
            return "shape"
        if jax.typeof(old).dtype != jax.typeof(new).dtype:
            return "dtype"
    return "nothing"


# %% wrong="jit-explain-retrace" because="Compares static values only with ==, for which 1, 1.0 and True are equal."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if old_static != new_static:
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
    return "nothing"


# %% wrong="jit-explain-retrace" because="Compares only the leaves. A list and a tuple of the same leaves have different keys."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if type(old_static) is not type(new_static) or old_static != new_static:
        return "static"
    old_leaves, new_leaves = jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments)
    if len(old_leaves) != len(new_leaves):
        return "tree"
    for old, new in zip(old_leaves, new_leaves, strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
    return "nothing"


# %% wrong="jit-explain-retrace" because="Treats the value of a Python number as part of the key, as if it were static."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if type(old_static) is not type(new_static) or old_static != new_static:
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
        if isinstance(old, int | float) and old != new:
            return "static"
    return "nothing"


# %% wrong="jit-explain-retrace" because="Treats NumPy and JAX arrays as different keys. For jit both are the same float32 array."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if type(old_static) is not type(new_static) or old_static != new_static:
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
        if isinstance(old, np.ndarray) is not isinstance(new, np.ndarray):
            return "tree"
    return "nothing"


# %% wrong="jit-explain-retrace" because="Compares static values by their text. For JAX, the tuples (1, 2) and (1.0, 2.0) are the same key."
def explain_retrace(before, after):
    (old_arguments, old_static), (new_arguments, new_static) = before, after
    if repr(old_static) != repr(new_static):
        return "static"
    if jax.tree.structure(old_arguments) != jax.tree.structure(new_arguments):
        return "tree"
    for old, new in zip(jax.tree.leaves(old_arguments), jax.tree.leaves(new_arguments), strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
    return "nothing"


# %% wrong="jit-explain-retrace" because="Treats every Python float and int as weakly typed. NumPy's float64 is a Python float but not weakly typed, and an array created from a Python number is not a float but weakly typed."
def explain_retrace(before, after):
    if (type(before[1]), before[1]) != (type(after[1]), after[1]):
        return "static"
    if jax.tree.structure(before[0]) != jax.tree.structure(after[0]):
        return "tree"
    for old, new in zip(jax.tree.leaves(before[0]), jax.tree.leaves(after[0]), strict=True):
        for part in ("shape", "dtype"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
        if isinstance(old, float | int) is not isinstance(new, float | int):
            return "weak_type"
    return "nothing"


# %% wrong="jit-explain-retrace" because="Compares static values by their hashes. 1, 1.0 and True have the same hash, and so do -1 and -2."
def explain_retrace(before, after):
    if hash(before[1]) != hash(after[1]):
        return "static"
    if jax.tree.structure(before[0]) != jax.tree.structure(after[0]):
        return "tree"
    for old, new in zip(jax.tree.leaves(before[0]), jax.tree.leaves(after[0]), strict=True):
        for part in ("shape", "dtype", "weak_type"):
            if getattr(jax.typeof(old), part) != getattr(jax.typeof(new), part):
                return part
    return "nothing"


# %% wrong="jit-explain-retrace" because="Compares the dtype that NumPy gives a Python number. For NumPy 1.0 is float64, and for JAX it is a weakly typed float32."
def explain_retrace(before, after):
    if (type(before[1]), before[1]) != (type(after[1]), after[1]):
        return "static"
    if jax.tree.structure(before[0]) != jax.tree.structure(after[0]):
        return "tree"
    for old, new in zip(jax.tree.leaves(before[0]), jax.tree.leaves(after[0]), strict=True):
        if np.shape(old) != np.shape(new):
            return "shape"
        if np.asarray(old).dtype != np.asarray(new).dtype:
            return "dtype"
        if jax.typeof(old).weak_type != jax.typeof(new).weak_type:
            return "weak_type"
    return "nothing"


# %% wrong="jit-explain-retrace" because="Compares static values by their repr, which differs for values that are equal."
def explain_retrace(before, after):
    (old, old_static), (new, new_static) = before, after
    if repr(old_static) != repr(new_static):
        return "static"
    if jax.tree.structure(old) != jax.tree.structure(new):
        return "tree"
    pairs = list(zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
    for attribute in ("shape", "dtype", "weak_type"):
        if any(getattr(jax.typeof(a), attribute) != getattr(jax.typeof(b), attribute) for a, b in pairs):
            return attribute
    return "nothing"


# %% right="jit-explain-retrace"
def key_parts(call):
    arguments, static = call
    leaves, tree = jax.tree.flatten(arguments)
    kinds = [jax.typeof(leaf) for leaf in leaves]
    return {
        "static": (type(static), static),
        "tree": tree,
        "shape": [kind.shape for kind in kinds],
        "dtype": [kind.dtype for kind in kinds],
        "weak_type": [kind.weak_type for kind in kinds],
    }


def explain_retrace(before, after):
    old, new = key_parts(before), key_parts(after)
    return next((part for part in old if old[part] != new[part]), "nothing")


# %% right="jit-explain-retrace"
def explain_retrace(before, after):
    traces = []
    f = jax.jit(lambda arguments, static: traces.append(arguments), static_argnums=1)
    f.trace(*before), f.trace(*after)
    if len(traces) == 1:
        return "nothing"
    if repr(before[1]) != repr(after[1]):
        return "static"
    if jax.tree.structure(traces[0]) != jax.tree.structure(traces[1]):
        return "tree"
    old, new = ([jax.typeof(leaf) for leaf in jax.tree.leaves(trace)] for trace in traces)
    if any(a.shape != b.shape for a, b in zip(old, new, strict=True)):
        return "shape"
    return "dtype" if any(a.dtype != b.dtype for a, b in zip(old, new, strict=True)) else "weak_type"


# %% [markdown] task="jit-static-or-traced" stars=2 minutes=12 skills="02_tracing,jit-explain-retrace"
# ## Static or traced?
# **Goal.** Compile a step with five arguments. Make an argument static only if Python needs its value while tracing, so that there are as few programs as possible.
#
# **Signature.** `static_or_traced(step)`. `step(x, rate, t, clip, order)` is `damped` from the setup, or a similar function. Returns the compiled step, a function of the same five arguments, which are passed by position. `x` is `(n,)` float32. `rate` is a float that changes with every call. `t` is an int that counts the calls (1, 2, 3, ...). `clip` is a bool. `order` is an int from 0 to 4. `rate` and `t` may also be arrays `()`.
#
# **Example.** `static_or_traced(damped)(x, 0.5, 1, False, 0)` with `x = [1, -2]` returns `[1 - 0.5 * 1 / 0.1, -2 + 0.5 * 2 / 0.1]`, which is `[-4, 8]`.
#
# **Judged.** The values are right. `rate` and `t` are inputs of the program, not constants in it. The program for one `clip` and `order` contains no operations of other cases. `step` is traced once for each pair of `clip` and `order`, as long as the types of `rate` and `t` do not change. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Read `damped` line by line. For which arguments does Python need the value while it runs the function? Which are only used in operations on arrays?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `t` is an int, but no `range` and no `if` uses it. An int does not have to be static. An argument has to be static if Python makes a decision with it.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Call `jax.jit` once on `step`. List two names in `static_argnames`, the flag and the number that `range` uses.
#
# </details>


# %% answer="jit-static-or-traced"
def static_or_traced(step):
    """Compiles step(x (n,), rate, t, clip, order) -> (n,), with one program for each clip and order."""
    ### BEGIN SOLUTION
    return jax.jit(step, static_argnames=("clip", "order"))
    ### END SOLUTION


# %% check="jit-static-or-traced" name="example" points=1
"""The example, without clipping and smoothing."""
x = np.array([1, -2], np.float32)
compare(ask(lambda x: static_or_traced(damped)(x, 0.5, 1, False, 0), x), np.array([-4, 8], np.float32))

# %% hidden="jit-static-or-traced" name="values" points=1
"""Right for every rate, step, flag and order."""


def by_hand(x, rate, t, clip, order):
    move = rate * x / (1 - 0.9**t)
    move = np.clip(move, -1, 1) if clip else move
    for _ in range(order):
        move = (move + np.roll(move, 1)) / 2
    return (x - move).astype(np.float32)


def probe_calls(x, calls):
    compiled = static_or_traced(damped)
    return jax.jit(lambda x: [compiled(x, *call) for call in calls])(x)


rng = inputs.rng()
x = rng.permutation([-3, -0.1, 0.2, 4]).astype(np.float32)  # of every move, one part is clipped and one is not
calls = [(float(rng.uniform(0.7, 0.9)), t, bool(t % 2), 2 * (t // 3)) for t in (1, 2, 3, 4)]
compare(ask(probe_calls, x, calls), [by_hand(x, *call) for call in calls], label="the results")

# %% hidden="jit-static-or-traced" name="program" points=1
"""One program serves every rate and step, and contains only the operations of its flag and order."""


def probe(x, rate, t, clip, order):
    return static_or_traced(damped)(x, rate, t, clip, order)


def probe_plain(x):
    return static_or_traced(damped)(x, 0.5, 3, False, 1).shape


def probe_rate(x, rate):
    return jax.eval_shape(lambda x, rate: static_or_traced(damped)(x, rate, 3, False, 1), x, rate).shape


def probe_step(x, t):
    return jax.eval_shape(lambda x, t: static_or_traced(damped)(x, 0.5, t, False, 1), x, t).shape


x, rate, t = np.zeros(4, np.float32), np.float32(0.5), np.int32(3)
kind = error(probe_plain, x)
require(
    kind != "ValueError",
    "The compiled step raises ValueError for all arguments. Do the arguments that are marked as static exist? "
    "Positions begin with 0.",
)
require(
    kind is None,
    f"The compiled step raises {kind} when all numbers are plain Python numbers."
    + " Python makes a decision with a traced argument, so make that one static." * ("Tracer" in (kind or "")),
)
kind = error(probe_rate, x, rate)
ADVICE = "Make only those arguments static with which Python makes a decision."
require(kind is None, f"With `rate` as an input of the program the compiled step raises {kind}. {ADVICE}")
kind = error(probe_step, x, t)
require(kind is None, f"With `t` as an input of the program the compiled step raises {kind}. {ADVICE}")
plain, full = program(probe, x, rate, t, False, 1), program(probe, x, rate, t, True, 3)
clipped = program(probe, x, rate, t, True, 1)
for _ in range(3):
    x = inputs.rng().permutation([-20, -2, 2, 25]).astype(np.float32)
    rate, t = np.float32(inputs.rng().uniform(0.1, 1)), np.int32(inputs.rng().integers(1, 30))
    move = rate * x / (1 - np.float32(0.9) ** t)
    wanted = (x - (move + np.roll(move, 1)) / 2).astype(np.float32)
    compare(plain.run(x, rate, t, False, 1), wanted, rtol=1e-3, atol=1e-4, label="the result with order 1")
    move = np.clip(move, -1, 1)
    wanted = (x - (move + np.roll(move, 1)) / 2).astype(np.float32)
    got = clipped.run(x, rate, t, True, 1)
    compare(got, wanted, rtol=1e-3, atol=1e-4, label="the result with clipping and order 1")
    for _ in range(3):
        move = (move + np.roll(move, 1)) / 2
    wanted = (x - move).astype(np.float32)
    compare(full.run(x, rate, t, True, 3), wanted, rtol=1e-3, atol=1e-4, label="the result with clipping and order 3")
require(
    plain.operations < clipped.operations,
    "The program without clipping is as large as the one with it, so it computes both cases and selects one. Let Python "
    "decide by `clip` while tracing.",
)
require(
    clipped.operations < full.operations,
    "The program for order 1 is as large as the one for order 3, so it computes every case and selects one. Let Python "
    "decide by `order` while tracing.",
)

# %% hidden="jit-static-or-traced" name="traces" points=1 observed=true
"""Traces `step` once for each pair of flag and order."""


def probe_traces(x, rates):
    step = counted(damped)
    compiled = static_or_traced(step)

    def calls(x, clip):
        return [compiled(x, rate, t, clip, order) for order in (0, 2) for t, rate in enumerate(rates, start=1)]

    traced = jax.make_jaxpr(lambda x: calls(x, False))(x)
    half = step.calls
    jax.make_jaxpr(lambda x: calls(x, True))(x)
    return traced.out_avals[-1].shape, half, step.calls, [equation.primitive.name for equation in traced.eqns]


rates = [float(rate) for rate in inputs.rng().uniform(0.1, 1, size=3)]
shape, half, calls, operations = ask(probe_traces, np.ones(3, np.float32), rates)
require(shape == (3,), f"For 3 numbers the result has shape {shape}.")
require(calls > 0, "`step` was never called. The answer must work for any step that it receives.")
require("sub" not in operations, "Python ran `step` in every call, operation by operation, so it is not compiled.")
require(
    half <= 2 or calls != 4,
    f"For one flag and two orders, with 3 rates each, `step` was traced {half} times instead of twice. Is it traced "
    "for the other flag too?",
)
require(
    calls == 4,
    f"For two flags and two orders, with 3 rates each, `step` was traced {calls} times instead of 4. Leave the arguments "
    "that change with every call traced, and create the compiled function once.",
)


def probe_pairs(x):
    step = counted(damped)
    compiled = static_or_traced(step)
    pairs = [(clip, order) for clip in (False, True) for order in range(5)]
    for _ in range(2):
        jax.make_jaxpr(lambda x: [compiled(x, 0.5, 1, *pair) for pair in pairs])(x)
    return step.calls


calls = ask(probe_pairs, np.ones(3, np.float32))
require(
    calls == 10,
    f"For all ten pairs of flag and order, each called twice, `step` was traced {calls} times instead of 10. Reuse the "
    "programs that are compiled already.",
)

# %% [markdown] why="jit-static-or-traced"
# An argument is static if Python needs its value, for an `if`, a `range` or a shape. All other arguments stay traced, including ints and Python floats. `0.9**t` is an operation on an input of the program. **Next:** The flag doubles the number of programs. When would you prefer one program that contains `jnp.where` or `jax.lax.cond`?


# %% wrong="jit-static-or-traced" because="Makes every Python number static. The results are right, but each new rate and each step compiles."
def static_or_traced(step):
    return jax.jit(step, static_argnames=("rate", "t", "clip", "order"))


# %% wrong="jit-static-or-traced" because="Makes ints static and floats traced. The step counter is an int, so every step compiles."
def static_or_traced(step):
    return jax.jit(step, static_argnames=("t", "clip", "order"))


# %% wrong="jit-static-or-traced" because="Marks nothing as static. Python cannot make a decision with a traced flag."
def static_or_traced(step):
    return jax.jit(step)


# %% wrong="jit-static-or-traced" because="Makes only the flag static. range cannot count to a traced order."
def static_or_traced(step):
    return jax.jit(step, static_argnames="clip")


# %% wrong="jit-static-or-traced" because="Counts positions from 1, but static_argnums begins with 0."
def static_or_traced(step):
    return jax.jit(step, static_argnums=(4, 5))


# %% wrong="jit-static-or-traced" because="Creates a new lambda that closes over flag and order in every call. The results are right, but each call compiles a new function."
def static_or_traced(step):
    def compiled(x, rate, t, clip, order):
        return jax.jit(lambda x, rate, t: step(x, rate, t, clip, order))(x, rate, t)

    return compiled


# %% wrong="jit-static-or-traced" because="Adds a special case for the order that is inspected. Its program has the right size but computes wrong numbers."
def static_or_traced(step):
    def shown(x, rate, t, clip, order):
        return step(x, rate, t, clip, order) + (1 if order == 3 else 0)

    return jax.jit(shown, static_argnames=("clip", "order"))


# %% wrong="jit-static-or-traced" because="Does not compile at all."
def static_or_traced(step):
    return step


# %% wrong="jit-static-or-traced" because="Leaves the flag traced and chooses with cond, so each program contains both cases."
def static_or_traced(step):
    @functools.partial(jax.jit, static_argnames="order")
    def compiled(x, rate, t, clip, order):
        return jax.lax.cond(
            clip,
            lambda x, rate, t: step(x, rate, t, True, order),
            lambda x, rate, t: step(x, rate, t, False, order),
            jnp.asarray(x),
            rate,
            t,
        )

    return compiled


# %% wrong="jit-static-or-traced" because="Stores one compiled closure for each order. It contains the flag of its first call."
def static_or_traced(step):
    programs = {}

    def compiled(x, rate, t, clip, order):
        if order not in programs:
            programs[order] = jax.jit(lambda x, rate, t: step(x, rate, t, clip, order))
        return programs[order](x, rate, t)

    return compiled


# %% wrong="jit-static-or-traced" because="Compiles damped instead of the step that it receives."
def static_or_traced(step):
    return jax.jit(damped, static_argnames=("clip", "order"))


# %% wrong="jit-static-or-traced" because="Caches one program for each pair, but only five of the ten, so the others are traced again."
def static_or_traced(step):
    @functools.lru_cache(maxsize=5)  # orders 0 to 4
    def compiled_for(clip, order):
        return jax.jit(lambda x, rate, t: step(x, rate, t, clip, order))

    def call(x, rate, t, clip, order):
        return compiled_for(clip, order)(x, rate, t)

    return call


# %% wrong="jit-static-or-traced" because="Chooses with switch between all cases, so each program contains all of them."
def static_or_traced(step):
    cases = [
        lambda x, rate, t, clip=clip, order=order: step(x, rate, t, clip, order)
        for clip in (False, True)
        for order in range(5)
    ]
    return jax.jit(lambda x, rate, t, clip, order: jax.lax.switch(5 * clip + order, cases, x, rate, t))


# %% right="jit-static-or-traced"
def static_or_traced(step):
    return jax.jit(step, static_argnums=(3, 4))


# %% right="jit-static-or-traced"
def static_or_traced(step):
    @functools.lru_cache
    def program_for(clip, order):
        return jax.jit(lambda x, rate, t: step(x, rate, t, clip, order))

    return lambda x, rate, t, clip, order: program_for(clip, order)(x, rate, t)


# %% [markdown] task="jit-donating-update" stars=2 minutes=15 skills="01_arrays,jit-static-or-traced"
# ## An update in place
# *Needs: Deeper: donation in detail.*
#
# **Goal.** Write an optimizer's step that needs no second copy of the weights and the velocity, because the new ones overwrite the old ones.
#
# **Signature.** `donating_update(rate, momentum)`, with two floats. Returns a compiled function `update(w, velocity, gradient)` of three arrays of one shape. It returns the pair `(w, velocity)`. First it computes `velocity ← momentum * velocity - rate * gradient`, and then `w ← w + velocity` with the new velocity. `velocity` and `gradient` are float32, and `w` is float32 or bfloat16. Each result has the dtype of the argument that it replaces.
#
# **Example.** With rate 0.5 and momentum 0.9, `w = [1, 2]`, `velocity = [0, 1]` and `gradient = [2, 2]` give the velocity `[-1, -0.1]` and the weights `[0, 1.9]`.
#
# **Judged.** Values and dtypes are right. In the compiled program, the results reuse all bytes of `w` and `velocity`. `gradient` is not donated, because the caller logs it later. **Not judged.** Speed, and which option of `jit` you use.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which two arrays does the caller no longer need after the call?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.jit` has the option `donate_argnames`. A result of the same shape and dtype reuses the memory of a donated array. What is the dtype of a bfloat16 array plus a float32 array?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write `update` as an inner function. It computes the velocity and then the sum for `w`, which `.astype` converts to `w.dtype`. Return `jax.jit` of it, with the names of the two arrays that are replaced.
#
# </details>


# %% answer="jit-donating-update"
def donating_update(rate, momentum):
    """A compiled update(w, velocity, gradient) -> (w, velocity) that reuses the memory of w and velocity."""

    ### BEGIN SOLUTION
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return jax.jit(update, donate_argnames=("w", "velocity"))
    ### END SOLUTION


# %% check="jit-donating-update" name="example" points=1
"""The example: one step with rate 0.5 and momentum 0.9."""
w, velocity, gradient = np.array([[1, 2], [0, 1], [2, 2]], np.float32)
made = program(lambda w, v, g: donating_update(0.5, 0.9)(w, v, g), w, velocity, gradient)
wanted = (np.array([0, 1.9], np.float32), np.array([-1, -0.1], np.float32))
compare(made.run(w, velocity, gradient), wanted, label="(w, velocity)")

# %% hidden="jit-donating-update" name="in-place" points=1
"""Right for float32 weights, and the results reuse all bytes of weights and velocity."""
shape = (int(inputs.rng().integers(20, 60)), 8)
w, velocity, gradient = inputs.rng().normal(size=(3, *shape)).astype(np.float32)
made = program(lambda w, v, g: donating_update(0.25, 0.75)(w, v, g), w, velocity, gradient)
moved = 0.75 * velocity - 0.25 * gradient
compare(made.run(w, velocity, gradient), (w + moved, moved), label="(w, velocity)")
require(
    made.alias_bytes > 0,
    "No result reuses an argument's memory, so nothing is donated. A donation inside another `jit` has no effect.",
)
require(
    made.alias_bytes == w.nbytes + velocity.nbytes,
    f"The results reuse {made.alias_bytes:,} bytes of arguments; weights and velocity have {w.nbytes + velocity.nbytes:,}.",
)

# %% hidden="jit-donating-update" name="mixed" points=1
"""Right for bfloat16 weights with a float32 velocity, and still in place."""
w = jnp.bfloat16(inputs.rng().normal(size=(48, 8)))
velocity, gradient = inputs.rng().normal(size=(2, 48, 8)).astype(np.float32)
made = program(lambda w, v, g: donating_update(0.25, 0.75)(w, v, g), w, velocity, gradient)
moved = 0.75 * velocity - 0.25 * gradient
wanted = jnp.bfloat16(np.asarray(w, np.float32) + moved), moved
compare(made.run(w, velocity, gradient), wanted, label="(w, velocity)")
require(
    made.alias_bytes == w.nbytes + velocity.nbytes,
    f"With bfloat16 weights the results reuse {made.alias_bytes:,} bytes of arguments; weights and velocity have "
    f"{w.nbytes + velocity.nbytes:,}.",
)

# %% hidden="jit-donating-update" name="given" points=1 observed=true
"""Weights and velocity are donated, and nothing else."""


def probe_buffers(w, velocity, gradient):
    arrays = [jnp.array(array) for array in (w, velocity, gradient)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = donating_update(0.5, 0.9)(*arrays)
    jax.block_until_ready(results)
    return [array.is_deleted() for array in arrays], any("donated buffers" in str(one.message) for one in caught)


w, velocity, gradient = inputs.rng().normal(size=(3, 5)).astype(np.float32)
deleted, unusable = ask(probe_buffers, w, velocity, gradient)
require(
    deleted[1] or not deleted[2],
    "After the call the old velocity still exists and the gradient is deleted. The wrong one of the two was donated.",
)
require(
    deleted[0] or not deleted[2],
    "After the call the old weights still exist and the gradient is deleted. The wrong arrays were donated.",
)
require(
    not deleted[2], "The gradient was donated, so its array is deleted after the call. But the caller still needs it."
)
require(
    deleted[0] or deleted[1], "After the call the old weights and the old velocity still exist. Nothing is donated."
)
require(deleted[0], "After the call the old weights still exist.")
require(deleted[1], "After the call the old velocity still exists.")
require(
    not unusable,
    "JAX warns about donated buffers that it cannot use. More arrays are donated than the results can reuse.",
)

# %% [markdown] why="jit-donating-update"
# A donated buffer is reused by a result of the same shape and dtype, so each new array should have the type of the array that it replaces. The sum of float32 and bfloat16 is a float32 array, which does not fit into the buffer of the weights. JAX does not report this, but the alias bytes show it. **Next:** Why is it useless to donate the batch of a training step?


# %% wrong="jit-donating-update" because="Compiles without donating, so the old and the new arrays both need memory."
def donating_update(rate, momentum):
    @jax.jit
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return update


# %% wrong="jit-donating-update" because="Lets the weights become float32. A bfloat16 buffer is too small for them, so it is not reused, and JAX does not report this."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return w + velocity, velocity

    return jax.jit(update, donate_argnames=("w", "velocity"))


# %% wrong="jit-donating-update" because="Donates the weights only."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return jax.jit(update, donate_argnames="w")


# %% wrong="jit-donating-update" because="Counts positions from 1, and so donates velocity and gradient."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return jax.jit(update, donate_argnums=(1, 2))


# %% wrong="jit-donating-update" because="Donates everything, but two results can reuse only two buffers."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return jax.jit(update, donate_argnums=(0, 1, 2))


# %% wrong="jit-donating-update" because="Updates the weights with the old velocity."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        return (w + velocity).astype(w.dtype), momentum * velocity - rate * gradient

    return jax.jit(update, donate_argnames=("w", "velocity"))


# %% wrong="jit-donating-update" because="Casts the velocity to the dtype of the weights, so its dtype is wrong and its buffer is not reused."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        velocity = (momentum * velocity - rate * gradient).astype(w.dtype)
        return w + velocity, velocity

    return jax.jit(update, donate_argnames=("w", "velocity"))


# %% wrong="jit-donating-update" because="Donates in a compiled step that another compiled function calls. Only the outermost jit can donate."
def donating_update(rate, momentum):
    @functools.partial(jax.jit, donate_argnames=("w", "velocity"))
    def step(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return jax.jit(lambda w, velocity, gradient: step(w, velocity, gradient))


# %% wrong="jit-donating-update" because="Donates the gradient instead of the velocity. It has the same number of bytes, but the caller still needs it."
def donating_update(rate, momentum):
    def update(w, velocity, gradient):
        velocity = momentum * velocity - rate * gradient
        return (w + velocity).astype(w.dtype), velocity

    return jax.jit(update, donate_argnums=(0, 2))


# %% right="jit-donating-update"
def donating_update(rate, momentum):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(w, velocity, gradient):
        moved = velocity * momentum - gradient * rate
        return jnp.asarray(w + moved, w.dtype), moved

    return update


# %% right="jit-donating-update"
def donating_update(rate, momentum):
    def update(state, gradient):
        w, velocity = state
        velocity = momentum * velocity - rate * gradient
        return w + velocity.astype(w.dtype), velocity

    compiled = jax.jit(update, donate_argnames="state")
    return lambda w, velocity, gradient: compiled((w, velocity), gradient)


# %% [markdown] task="jit-method" stars=2 minutes=15 skills="02_tracing,jit-static-or-traced"
# ## A compiled method with current weights
# *Needs: Deeper: methods.*
#
# **Goal.** An object stores the weights of a model. Other code replaces them between calls, for example a training loop. Write a method that is compiled and always uses the *current* weights.
#
# **Signature.** `Model(layer, w, gain)`. `layer(w, gain, x)` is a function such as `neuron` from the setup, `w` is `(d,)` float32, and `gain` is a Python float. At any time, another array of the same shape may be assigned to `model.w`, and another float to `model.gain`. `model.predict(x)`, with `x` of shape `(n, d)` and dtype float32, returns `layer` of the current `w` and `gain`, of shape `(n,)`.
#
# **Example.** With `layer = neuron`, `w = [1, 0]`, `gain = 2.0`, the prediction for `x = [[0.5, 3]]` is 2 tanh(0.5) = 0.924. After `model.gain = 10.0` it is 4.62.
#
# **Judged.** The values are right before and after `w` and `gain` are replaced, for several layers, also in a shallow copy of a model that has predicted before. For one shape of `x`, `layer` is traced only once, even if `w` and `gain` are replaced often. **Not judged.** Other attributes and methods of the class.
#
# <details><summary>Hint 1 · a question</summary>
#
# A compiled function depends on its arguments and on values that Python read while it was traced. Which of the two should the weights be?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The method itself does not have to be compiled. It can read the attributes in Python and pass them to a compiled function.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `layer` already takes `w` and `gain` as arguments. Store the compiled `layer` in an attribute in `__init__`, and call it in `predict`.
#
# </details>


# %% answer="jit-method"
class Model:
    """A layer with the weights w (d,) and gain (), both of which may be replaced at any time."""

    def __init__(self, layer, w, gain):
        """layer: (w (d,), gain (), x (n, d)) -> (n,)"""
        self.w, self.gain = w, gain
        ### BEGIN SOLUTION
        self.compiled = jax.jit(layer)
        ### END SOLUTION

    def predict(self, x):
        """The compiled layer with the current w and gain: x (n, d) -> (n,)"""
        ### BEGIN SOLUTION
        return self.compiled(self.w, self.gain, x)
        ### END SOLUTION


# %% check="jit-method" name="example" points=1
"""The example, before and after the gain is replaced."""


def probe_example(w, x):
    model = Model(neuron, w, 2.0)
    before = model.predict(x)
    model.gain = 10.0
    return [before, model.predict(x)]


before, after = ask(probe_example, np.array([1, 0], np.float32), np.array([[0.5, 3]], np.float32))
compare(before, np.array([2 * np.tanh(0.5)], np.float32), label="the prediction")
compare(after, np.array([10 * np.tanh(0.5)], np.float32), label="the prediction after model.gain = 10.0")

# %% hidden="jit-method" name="fresh" points=1
"""Uses the weights that are current when it is called."""


def probe_fresh(w, other, x):
    model = Model(neuron, w, 2.0)
    before = model.predict(x)
    model.gain = 5.0
    gained = model.predict(x)
    model.w, model.gain = other, 2.0
    after = model.predict(x)
    model.w, model.gain = w, -1.0
    return [before, gained, after, model.predict(x), Model(lambda w, gain, x: gain - x @ w, w, 3.0).predict(x)]


w, other = inputs.rng().normal(size=(2, 3)).astype(np.float32)
x = inputs.rng().normal(size=(5, 3)).astype(np.float32)
before, gained, after, both, linear = program(probe_fresh, w, other, x).run(w, other, x)
compare(before, 2 * np.tanh(x @ w), label="the prediction")
compare(gained, 5 * np.tanh(x @ w), label="the prediction after another gain was assigned")
compare(after, 2 * np.tanh(x @ other), label="the prediction after other weights were assigned")
compare(both, -np.tanh(x @ w), label="the prediction after weights and gain were assigned")
compare(linear, 3 - x @ w, label="the prediction of a second model, with another layer")

# %% hidden="jit-method" name="copies" points=1
"""A copy with other weights uses its own weights, and the original uses its own."""


def probe_copy(w, other, x):
    model = Model(neuron, w, 2.0)
    model.predict(x)
    twin = copy.copy(model)
    twin.w, twin.gain = other, 3.0
    return [twin.predict(x), model.predict(x)]


w, other = inputs.rng().normal(size=(2, 3)).astype(np.float32)
x = inputs.rng().normal(size=(5, 3)).astype(np.float32)
copied, original = program(probe_copy, w, other, x).run(w, other, x)
compare(copied, 3 * np.tanh(x @ other), label="the copy's prediction")
compare(original, 2 * np.tanh(x @ w), label="the original's prediction")

# %% hidden="jit-method" name="traces" points=1 observed=true
"""Traces the layer only once, even if the weights are replaced often."""


def probe_traces(w, other, x):
    layer = counted(neuron)
    model = Model(layer, w, 2.0)
    calls = []
    for model.w, model.gain in ((w, 2.0), (w, 2.0), (other, 2.0), (other, 3.0)):
        result = model.predict(x)
        calls.append(layer.calls)
    return result, calls


w, other = inputs.rng().normal(size=(2, 3)).astype(np.float32)
x = inputs.rng().normal(size=(2, 3)).astype(np.float32)
result, calls = ask(probe_traces, w, other, x)
compare(result, 3 * np.tanh(x @ other), label="the last prediction")
require(
    calls[1] == 1,
    f"In two calls with the same weights and gain, Python ran the layer {calls[1]} times instead of once.",
)
require(calls[2] == 1, "Other weights of the same shape were traced again, so their values are in the key.")
require(calls[3] == 1, "Another gain was traced again, so its value is in the key.")

# %% [markdown] why="jit-method"
# The method reads the attributes in Python in every call, and the compiled function receives them as arguments. New values of the same type do not change the key. **Next:** What happens after `model.gain = 3`, an int? And which objects does the cache keep in memory if `self` is static?


# %% wrong="jit-method" because="Makes self static. The key contains the object's identity, and the weights of the first call are constants in the program."
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    @functools.partial(jax.jit, static_argnums=0)
    def predict(self, x):
        return self.layer(self.w, self.gain, x)


# %% wrong="jit-method" because="Compiles a closure over self in __init__. The values that it reads from self in the first trace become constants."
class Model:
    def __init__(self, layer, w, gain):
        self.w, self.gain = w, gain
        self.predict = jax.jit(lambda x: layer(self.w, self.gain, x))


# %% wrong="jit-method" because="Compiles the method itself, so self is an argument that is not an array."
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    @jax.jit
    def predict(self, x):
        return self.layer(self.w, self.gain, x)


# %% wrong="jit-method" because="Compiles in every call. The weights are current, but no program is reused."
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    def predict(self, x):
        return jax.jit(lambda x: self.layer(self.w, self.gain, x))(x)


# %% wrong="jit-method" because="Binds the first weights to the compiled function."
class Model:
    def __init__(self, layer, w, gain):
        self.w, self.gain = w, gain
        self.compiled = functools.partial(jax.jit(layer), w)

    def predict(self, x):
        return self.compiled(self.gain, x)


# %% wrong="jit-method" because="Makes self static with a hash of its contents. The cache contains the same object, which changes too, so an outdated program may be found."
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    def __hash__(self):
        return hash((np.asarray(self.w).tobytes(), self.gain))

    def __eq__(self, other):
        return hash(self) == hash(other)

    @functools.partial(jax.jit, static_argnums=0)
    def predict(self, x):
        return self.layer(self.w, self.gain, x)


# %% wrong="jit-method" because="Passes the weights but makes the gain static, so each new gain compiles."
class Model:
    def __init__(self, layer, w, gain):
        self.w, self.gain = w, gain
        self.compiled = jax.jit(layer, static_argnums=1)

    def predict(self, x):
        return self.compiled(self.w, self.gain, x)


# %% wrong="jit-method" because="Stores a function that __init__ binds to the object. A copy of the object still reads the attributes of the original."
class Model:
    def __init__(self, layer, w, gain):
        self.w, self.gain = w, gain
        compiled = jax.jit(layer)
        self.predict_now = lambda x: compiled(self.w, self.gain, x)

    def predict(self, x):
        return self.predict_now(x)


# %% wrong="jit-method" because="Stores one compiled function for the whole class, which contains the layer of the first model."
class Model:
    compiled = None

    def __init__(self, layer, w, gain):
        self.w, self.gain = w, gain
        Model.compiled = Model.compiled or jax.jit(layer)

    def predict(self, x):
        return Model.compiled(self.w, self.gain, x)


# %% wrong="jit-method" because="Makes self static, with a hash and an equality that include the gain but not the numbers in w."
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    def __hash__(self):
        return hash((self.layer, self.w.shape, self.gain))

    def __eq__(self, other):
        return hash(self) == hash(other)

    @functools.partial(jax.jit, static_argnums=0)
    def predict(self, x):
        return self.layer(self.w, self.gain, x)


# %% right="jit-method"
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    @staticmethod
    @functools.partial(jax.jit, static_argnames="layer")
    def apply(layer, w, gain, x):
        return layer(w, gain, x)

    def predict(self, x):
        return self.apply(self.layer, self.w, self.gain, x)


# %% right="jit-method"
@jax.tree_util.register_pytree_node_class
class Model:
    def __init__(self, layer, w, gain):
        self.layer, self.w, self.gain = layer, w, gain

    def tree_flatten(self):
        return (self.w, self.gain), self.layer

    @classmethod
    def tree_unflatten(cls, layer, children):
        return cls(layer, *children)

    @jax.jit
    def predict(self, x):
        return self.layer(self.w, self.gain, x)


# %% [markdown] task="jit-bucketed" stars=3 minutes=25 skills="01_arrays,jit-once,jit-static-or-traced"
# ## Every length, a few programs
# *Needs: Deeper: inputs of every length.*
#
# **Goal.** A service receives tables with any number of rows and computes the mean of a feature over the rows. Pad the tables to a few sizes, mask the padding, and compile once for each size.
#
# **Signature.** `bucketed(feature, buckets)`. `feature` takes rows `(size, d)` and returns one number for each row, `(size,)`. `buckets` is a tuple of ints in increasing order. Returns a function `mean(rows)`, where `rows` is a NumPy array `(n, d)` float32 with n ≥ 1. Its result is the mean of `feature` over the n rows, a float32 `()`. `feature` always receives as many rows as the smallest bucket that is at least n. `mean` raises a `ValueError` if there are more rows than the largest bucket.
#
# **Example.** With `inverse_norm` from the setup (one over the length of each row) and buckets `(4, 8)`, the rows `[[3, 4], [0, 2], [1, 0]]` are padded to 4 and give the mean of 0.2, 0.5 and 1: 0.567.
#
# **Judged.** The values are right for every n up to the largest bucket, also where `feature` returns inf or NaN for the padding or for a row. Too many rows raise a `ValueError`. `feature` receives the number of rows of the right bucket and is traced once for each bucket. Nothing else is traced for a new number of rows. **Not judged.** The values of the padding, and whether the program or NumPy computes the mean.
#
# <details><summary>Hint 1 · a question</summary>
#
# The rows and their number n change from call to call. The shape must not depend on n. How else can the compiled function receive n?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Pad outside of `jit`, with NumPy. Compile a function of the padded rows and of n once. In it, `jnp.arange(size) < n` is True for the real rows.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `mean` finds the first bucket that is at least n, or raises a ValueError. It pads, and calls the compiled function with the padded array and with n as a traced int. In this function, `jnp.where` chooses between `feature` and 0 before the sum, and the sum is divided by n, not by the size.
#
# </details>


# %% answer="jit-bucketed"
def bucketed(feature, buckets):
    """A function mean(rows (n, d)) -> (), the mean of feature: (size, d) -> (size,) over the rows, compiled once for
    each of the sizes in buckets. Raises ValueError for more rows than the largest bucket."""

    ### BEGIN SOLUTION
    @jax.jit
    def masked_mean(padded, n):
        real = jnp.arange(padded.shape[0]) < n
        return jnp.sum(jnp.where(real, feature(padded), 0)) / n

    def mean(rows):
        n = rows.shape[0]
        size = next((bucket for bucket in buckets if bucket >= n), None)
        if size is None:
            raise ValueError(f"{n} rows; the largest bucket holds {max(buckets)}")
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean
    ### END SOLUTION


# %% check="jit-bucketed" name="example" points=1
"""The example: three rows in a bucket of four."""
rows = np.array([[3, 4], [0, 2], [1, 0]], np.float32)
got = ask(lambda rows: bucketed(inverse_norm, (4, 8))(rows), rows)
compare(got, np.array((0.2 + 0.5 + 1) / 3, np.float32), label="the mean")

# %% hidden="jit-bucketed" name="values" points=1
"""Right for one row, for a full bucket and for one row more, also operation by operation without the compiler."""


def probe_means(tables):
    mean = bucketed(inverse_norm, (3, 5))
    return [mean(rows) for rows in tables]


def probe_plain(rows):
    with jax.disable_jit():
        return bucketed(inverse_norm, (3, 5))(rows)


def spoiled(got):
    number = isinstance(got, np.ndarray | jax.Array) and jnp.issubdtype(got.dtype, jnp.floating)
    return number and not np.isfinite(got).all()


PADDING = "it includes results of `feature` for padding, such as inf, and inf times 0 is NaN."
sizes = [int(n) for n in inputs.rng().permutation([1, 2, 3, 4, 5])]
tables = [inputs.rng().normal(size=(n, 4)).astype(np.float32) for n in sizes]
with case("for tables of 1 to 5 rows and the buckets 3 and 5"):
    means = ask(probe_means, tables)
for n, rows, got in zip(sizes, tables, means, strict=True):
    place = "a full bucket" if n in (3, 5) else "padding"
    wanted = np.mean(1 / np.sqrt(np.sum(rows**2, axis=1)))
    require(n in (3, 5) or not spoiled(got), f"The mean with padding is not finite: {PADDING}")
    compare(got, np.array(wanted, np.float32), rtol=1e-3, label=f"the mean with {place}")
# This compiler turns a product with the mask into a selection. Others may not, and without a compiler it is inf times 0.
rows = inputs.rng().normal(size=(2, 4)).astype(np.float32)
wanted = np.array(np.mean(1 / np.sqrt(np.sum(rows**2, axis=1))), np.float32)
got = ask(probe_plain, rows)
require(
    not spoiled(got), f"Operation by operation, without the compiler, the mean with padding is not finite: {PADDING}"
)
compare(got, wanted, rtol=1e-3, label="the mean with padding, operation by operation")
got = ask(lambda rows: bucketed(lambda rows: 1 + jnp.sum(rows, axis=1), (3, 5))(rows), rows)
compare(got, 1 + rows.sum(1).mean(), rtol=1e-3, label="the mean with padding of a feature that is finite everywhere")
rows[1] = 0
got = ask(lambda rows: bucketed(inverse_norm, (3, 5))(rows), rows)
compare(got, np.float32(np.inf), label="the mean where one of the rows is 0, which makes it inf,")
got = ask(probe_plain, rows)
compare(got, np.float32(np.inf), label="the mean where the last row makes it inf, operation by operation,")
rows[1] = np.nan
got = ask(lambda rows: bucketed(inverse_norm, (3, 5))(rows), rows)
compare(got, np.float32(np.nan), label="the mean where one of the rows is NaN")

# %% hidden="jit-bucketed" name="refuses" points=1
"""Raises a ValueError for more rows than the largest bucket."""
kind = error(lambda rows: bucketed(inverse_norm, (2, 4))(rows), np.ones((5, 2), np.float32))
require(kind is not None, "More rows than the largest bucket are accepted, but they should raise a ValueError.")
require(kind == "ValueError", f"More rows than the largest bucket raise {kind} instead of ValueError.")

# %% hidden="jit-bucketed" name="traces" points=2 observed=true
"""Traces the feature once for each bucket that is needed, and nothing else for a new number of rows."""


def probe_sizes(tables, others):
    sizes, concrete = [], []

    def watched(rows):
        sizes.append(rows.shape[0])
        concrete.append(not isinstance(rows, jax.core.Tracer))
        return jnp.sum(rows, axis=1)

    jax.clear_caches()  # operations that were traced before this check do not count as known
    mean = bucketed(watched, (4, 6, 12))
    for rows in tables:
        mean(rows)
    fresh = False
    try:
        with jax.no_tracing(True):
            for rows in others:
                mean(rows)
    except RuntimeError:
        fresh = True
    return sizes, any(concrete), fresh


order = inputs.rng().permutation([1, 2, 3])
first, second = [int(order[0]), 4, 6], [*(int(n) for n in order[1:]), 5]
sizes, plain, fresh = ask(probe_sizes, *([np.ones((n, 2), np.float32) for n in numbers] for numbers in (first, second)))
require(not plain, "Python ran `feature` on plain values, so it is not compiled.")
require(
    set(sizes) <= {4, 6, 12},
    "`feature` received a number of rows that is not a bucket. Pad the rows before you call it.",
)
require(12 not in sizes, "`feature` received the rows of the largest bucket where a smaller one is sufficient.")
require(
    len(sizes) == 2,
    f"For tables that need two buckets, `feature` was traced {len(sizes)} times. The key still depends on n. Pad before the "
    "compiled function, compile it once, and pass n as a traced number.",
)
require(
    not fresh,
    "A new number of rows causes a trace, although the program of its bucket is compiled already. A jnp operation outside of the "
    "compiled function receives an array with n rows. Pad with NumPy.",
)

# %% [markdown] why="jit-bucketed"
# Shapes are in the key, and values are not. So the length is passed as a traced number, and there are only a few shapes. `where` chooses before the sum, so the result of the feature for padding does not matter. **Next:** Suppose that n is uniformly distributed from 1 to 1,024. How much of the work is padding for the buckets 128, 256, 512, 1024, and how much for 256, 512, 768, 1024?


# %% equivalent="jit-bucketed" because="jnp.where treats every number other than 0 as true."
# changed mask dtype, arange(X) < Y -> (arange(X) < Y).astype("float32"): real = jnp.arange(padded.shape[0]) < n


# %% wrong="jit-bucketed" because="Compiles for every number of rows. The results are right, but there are as many programs as lengths."
def bucketed(feature, buckets):
    compiled = jax.jit(lambda rows: jnp.mean(feature(rows)))

    def mean(rows):
        if rows.shape[0] > buckets[-1]:
            raise ValueError("too many rows")
        return compiled(rows)

    return mean


# %% wrong="jit-bucketed" because="Pads inside the compiled function. The key contains the shape of its argument, so each length compiles."
def bucketed(feature, buckets):
    @jax.jit
    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        padded = jnp.pad(rows, ((0, size - n), (0, 0)))
        return jnp.sum(jnp.where(jnp.arange(size) < n, feature(padded), 0)) / n

    return mean


# %% wrong="jit-bucketed" because="Multiplies by the mask. The feature may be inf for padding, and inf times 0 is NaN."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        real = (jnp.arange(padded.shape[0]) < n).astype(padded.dtype)
        return jnp.sum(real * feature(padded)) / n

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Makes n static, so each number of rows is a new key, although the shapes agree."
def bucketed(feature, buckets):
    @functools.partial(jax.jit, static_argnames="n")
    def masked_mean(padded, n):
        return jnp.sum(jnp.where(jnp.arange(padded.shape[0]) < n, feature(padded), 0)) / n

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Multiplies by the mask. The feature may be inf for padding, and inf times 0 is NaN."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, mask):
        return jnp.sum(feature(padded) * mask) / jnp.sum(mask)

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        mask = (np.arange(size) < n).astype(np.float32)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), mask)

    return mean


# %% wrong="jit-bucketed" because="Divides by the bucket's size instead of by the number of rows."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        return jnp.mean(jnp.where(jnp.arange(padded.shape[0]) < n, feature(padded), 0))

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Chooses a bucket larger than n, so a full bucket uses the next one, and the largest is rejected."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        return jnp.sum(jnp.where(jnp.arange(padded.shape[0]) < n, feature(padded), 0)) / n

    def mean(rows):
        n = rows.shape[0]
        size = next((bucket for bucket in buckets if bucket > n), None)
        if size is None:
            raise ValueError("too many rows")
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Drops the rows that exceed the largest bucket, without an error."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        return jnp.sum(jnp.where(jnp.arange(padded.shape[0]) < n, feature(padded), 0)) / n

    def mean(rows):
        rows = rows[: buckets[-1]]
        n = rows.shape[0]
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Always pads to the largest bucket. There is one program, but small tables cost as much as the largest."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        return jnp.sum(jnp.where(jnp.arange(padded.shape[0]) < n, feature(padded), 0)) / n

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        return masked_mean(np.pad(rows, ((0, buckets[-1] - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Pads with jnp outside of jit. This padding is itself compiled for every new number of rows."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        return jnp.sum(jnp.where(jnp.arange(padded.shape[0]) < n, feature(padded), 0)) / n

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(jnp.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Averages over the padding too."
def bucketed(feature, buckets):
    compiled = jax.jit(lambda padded: jnp.mean(feature(padded)))

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return compiled(np.pad(rows, ((0, size - n), (0, 0))))

    return mean


# %% wrong="jit-bucketed" because="Leaves out results that are not finite. They may belong to a real row, and padding may be finite."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        values = feature(padded)
        return jnp.sum(jnp.where(jnp.isfinite(values), values, 0)) / n

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Leaves out rows of zeros, which may be real rows."
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, n):
        real = jnp.any(padded != 0, axis=1)
        return jnp.sum(jnp.where(real, feature(padded), 0)) / n

    def mean(rows):
        n = rows.shape[0]
        if n > buckets[-1]:
            raise ValueError("too many rows")
        size = next(bucket for bucket in buckets if bucket >= n)
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0))), n)

    return mean


# %% wrong="jit-bucketed" because="Pads with copies of the last row and multiplies by a mask. If the feature of that row is inf, inf times 0 is NaN."
def bucketed(feature, buckets):
    @jax.jit
    def compiled(padded, n):
        mask = jnp.arange(padded.shape[0]) < n
        return jnp.sum(feature(padded) * mask) / n

    def mean(rows):
        n = len(rows)
        for size in buckets:
            if n <= size:
                return compiled(np.pad(rows, ((0, size - n), (0, 0)), mode="edge"), n)
        raise ValueError(f"{n} rows do not fit into {buckets[-1]}.")

    return mean


# %% wrong="jit-bucketed" because="Marks the padding with NaN and takes nanmean, which also leaves out a real row whose feature is NaN."
def bucketed(feature, buckets):

    @jax.jit
    def masked_mean(padded, n):
        values = feature(padded)
        real = jnp.arange(padded.shape[0]) < n
        return jnp.nanmean(jnp.where(real, values, jnp.nan))

    def mean(rows):
        n = len(rows)
        size = next((bucket for bucket in buckets if bucket >= n), None)
        if size is None:
            raise ValueError(f"{n} rows, but the largest bucket holds {buckets[-1]}")
        return masked_mean(np.pad(rows, ((0, size - n), (0, 0)), constant_values=1), n)

    return mean


# %% wrong="jit-bucketed" because="Cuts off the padding and averages outside of the compiled function, so these operations are compiled again for each number of rows."
def bucketed(feature, buckets):

    compiled = jax.jit(feature)

    def mean(rows):
        n = rows.shape[0]
        if n > max(buckets):
            raise ValueError("too many rows")
        size = min(bucket for bucket in buckets if bucket >= n)
        padded = np.zeros((size, rows.shape[1]), np.float32)
        padded[:n] = rows
        return jnp.mean(compiled(padded)[:n])

    return mean


# %% wrong="jit-bucketed" because="Pads with jnp outside of jit. This padding is itself compiled for every new number of rows."
def bucketed(feature, buckets):
    compiled = jax.jit(feature)

    def mean(rows):
        n = len(rows)
        sizes = [size for size in buckets if size >= n]
        if not sizes:
            raise ValueError(f"too many rows: {n}")
        padded = jnp.pad(jnp.asarray(rows), ((0, sizes[0] - n), (0, 0)))
        return jnp.mean(compiled(padded)[:n])

    return mean


# %% right="jit-bucketed"
def bucketed(feature, buckets):
    @jax.jit
    def masked_mean(padded, real):
        return jnp.mean(feature(padded), where=real)

    def mean(rows):
        n = len(rows)
        if n > max(buckets):
            raise ValueError(f"at most {max(buckets)} rows")
        size = buckets[int(np.searchsorted(buckets, n))]
        padded = np.ones((size, rows.shape[1]), rows.dtype)
        padded[:n] = rows
        return masked_mean(padded, np.arange(size) < n)

    return mean


# %% right="jit-bucketed"
def bucketed(feature, buckets):
    features = jax.jit(feature)

    def mean(rows):
        n = len(rows)
        fitting = [bucket for bucket in buckets if bucket >= n]
        if not fitting:
            raise ValueError("too many rows")
        repeated = rows[np.arange(fitting[0]) % n]
        return jnp.asarray(np.asarray(features(repeated))[:n].mean())

    return mean
