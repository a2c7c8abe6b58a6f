# %% [markdown]
# # 12 · Exercises: state
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The checks create Refs, call your function with them, and read them afterwards. They call it as part of a compiled program, unless a task states something else. *Alias bytes* are the bytes of donated arguments that the results of a compiled program reuse, and *temporary bytes* are the memory that it needs in addition to arguments and results.

# %% setup
from grader.checks import ask, case, compare, inputs, program, require
import itertools

import jax
import jax.numpy as jnp
import numpy as np

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


@jax.jit
def add_into(target_ref, source_ref):
    """Adds the values of one Ref to another Ref of the same shape and dtype."""
    target_ref[...] += source_ref[...]


def running_stats_carry(xs, decay):
    """Normalises each row of xs (t, d) by running statistics. Returns (rows (t, d), mean (d,), var (d,))."""

    def one(state, x):
        mean, var = state
        mean = decay * mean + (1 - decay) * x
        var = decay * var + (1 - decay) * (x - mean) ** 2
        return (mean, var), (x - mean) / jnp.sqrt(var + 1e-5)

    (mean, var), rows = jax.lax.scan(one, (jnp.zeros_like(xs[0]), jnp.ones_like(xs[0])), xs)
    return rows, mean, var


# %% [markdown] task="state-counter" stars=1 minutes=8 skills="03_jit,06_pytrees,08_control_flow"
# ## A meter without attributes
# **Goal.** A meter reports the mean of the totals of all batches so far. This class works in Python, but not under `jit`. Write it as a pure function. Two lines are missing.
#
# ```python
# class Meter:
#     def __init__(self):
#         self.calls, self.total = 0, 0.0
#
#     def __call__(self, x):
#         self.calls += 1
#         self.total += jnp.sum(x)
#         return self.total / self.calls
# ```
#
# **Signature.** `meter(state, x)`. `state` is `{"calls": int32 (), "total": float32 ()}`, and `x` has shape `(n,)` and dtype float32 or float16. Returns `(new state, mean)`, where `mean` is float32 with shape `()`.
#
# **Example.** From `{"calls": 0, "total": 0}`, the batch `[1, 2]` gives the mean 3. Then `[4, 5]` gives (3 + 9) / 2 = 6.
#
# **Judged.** The results of many calls, in which each call gets the state of the call before. The new state has the structure, shapes and dtypes of the old one, also for float16, so a `scan` can carry it. The dict `state` is not changed, and no result depends on anything else that is kept between calls. **Not judged.** Speed, and whether a float16 batch is summed in float16 or float32.
#
# <details><summary>Hint 1 · a question</summary>
#
# The attribute `total` is changed in place. Which new value replaces it, and where does the old value come from?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The first line computes `total` from `state["total"]` and `x`. The second collects both new values in a new dict.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `state["total"] + jnp.sum(x)` is float32, also if `x` is float16. The new state has the keys `"calls"` and `"total"`.
#
# </details>


# %% answer="state-counter"
def meter(state, x):
    """Takes {"calls": int32 (), "total": float32 ()} and a batch x (n,). Returns (new state, mean of the totals)."""
    calls = state["calls"] + 1
    ### BEGIN SOLUTION
    total = state["total"] + jnp.sum(x)
    new_state = {"calls": calls, "total": total}
    ### END SOLUTION
    return new_state, total / calls


# %% check="state-counter" name="example" points=1
"""The example: two batches, one after the other."""
state = {"calls": np.int32(0), "total": np.float32(0)}
made = program(meter, state, np.zeros(2, np.float32))
got = made.run(state, np.array([1, 2], np.float32))
require(isinstance(got, tuple), "Return a tuple (new state, mean), as the carry and the result of a scan.")
state, first = got
compare(first, np.float32(3), label="the first mean")
compare(state, {"calls": np.int32(1), "total": np.float32(3)}, label="the new state")
_, second = made.run(state, np.array([4, 5], np.float32))
compare(second, np.float32(6), label="the second mean")

# %% hidden="state-counter" name="calls" points=1
"""Right in many calls of one compiled program, from any state, and in a scan."""


def probe_scan(state, xs):
    return jax.lax.scan(meter, state, xs)


for size in (1, 5):
    rng = inputs.rng()
    state = {"calls": np.int32(rng.integers(1, 9)), "total": np.float32(rng.integers(10, 99))}
    xs = rng.integers(-9, 9, size=(6, size)).astype(np.float32)
    totals = state["total"] + np.cumsum(xs.sum(1))
    counts = state["calls"] + np.arange(1, 7)
    made = program(meter, state, xs[0])
    now = state
    for x, total, count in zip(xs, totals, counts, strict=True):
        now, mean = made.run(now, x)
        compare(mean, np.float32(total / count), label="the mean of a later call")
        compare(now, {"calls": np.int32(count), "total": np.float32(total)}, label="the new state of a later call")
    final = {"calls": np.int32(counts[-1]), "total": np.float32(totals[-1])}
    scanned = program(probe_scan, state, xs)
    compare(scanned.run(state, xs), (final, np.float32(totals / counts)), label="the result of a scan over six batches")

# %% hidden="state-counter" name="state" points=1
"""The state keeps its dtypes for float16, the argument is not changed, and a fresh state starts again."""


def probe_eager(state, x):
    results = [meter(state, x) for _ in range(2)]
    return results, state


rng = inputs.rng()
state = {"calls": np.int32(2), "total": np.float32(rng.integers(3, 50))}
x = rng.integers(1, 9, size=3).astype(np.float16)
total = state["total"] + x.sum(dtype=np.float32)
wanted = {"calls": np.int32(3), "total": np.float32(total)}, np.float32(total / 3)
compare(program(meter, state, x).run(state, x), wanted, label="the result (state, mean) for a float16 batch")
made = program(lambda state, xs: jax.lax.scan(meter, state, xs), state, np.stack([x, x]))
twice = total + x.sum(dtype=np.float32)
means = np.array([total / 3, twice / 4], np.float32)
final = {"calls": np.int32(4), "total": np.float32(twice)}
compare(made.run(state, np.stack([x, x])), (final, means), label="the result of a scan over float16 batches")
results, after = ask(probe_eager, jax.tree.map(jnp.asarray, state), jnp.asarray(x))
compare(after, state, label="the argument `state` after the calls, which should be as before,")
compare(results[1], wanted, label="the result of the same call, made a second time")

# %% [markdown] why="state-counter"
# All state enters as an argument and leaves as a result, so the program is complete, and `jit`, `scan` and `vmap` accept it. The new state has the types of the old one, which makes it a valid carry. **Next:** How would you run 100 meters at once, each with a stream of its own?


# %% wrong="state-counter" because="Keeps the total in a global variable. Under jit, tracing changes it once, and the program contains its value as a constant."
kept = {"calls": 0, "total": 0.0}


def meter(state, x):
    kept["calls"] += 1
    total = kept["total"] + jnp.sum(x)
    return {"calls": state["calls"] + 1, "total": total}, total / kept["calls"]


# %% wrong="state-counter" because="Changes the dict of the caller in place. The old state is lost, although nothing in the signature shows this."
def meter(state, x):
    state["calls"] = state["calls"] + 1
    state["total"] = state["total"] + jnp.sum(x)
    return state, state["total"] / state["calls"]


# %% wrong="state-counter" because="Returns the old state, so each call starts from the same values."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.sum(x)
    return state, total / calls


# %% wrong="state-counter" because="Updates the count but not the total in the new state."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.sum(x)
    return {**state, "calls": calls}, total / calls


# %% wrong="state-counter" because="Counts in float32, so the state has another dtype after the first call, and a scan rejects it."
def meter(state, x):
    calls = state["calls"] + 1.0
    total = state["total"] + jnp.sum(x)
    return {"calls": calls, "total": total}, total / calls


# %% wrong="state-counter" because="Converts the total to the dtype of the batch, so the state changes its dtype with float16 batches."
def meter(state, x):
    calls = state["calls"] + 1
    total = (state["total"] + jnp.sum(x)).astype(x.dtype)
    return {"calls": calls, "total": total}, (total / calls).astype(jnp.float32)


# %% wrong="state-counter" because="Stores the mean in the place of the total, so the next call adds a total to a mean."
def meter(state, x):
    calls = state["calls"] + 1
    mean = (state["total"] + jnp.sum(x)) / calls
    return {"calls": calls, "total": mean}, mean


# %% wrong="state-counter" because="Adds the mean of the batch instead of its total."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.mean(x)
    return {"calls": calls, "total": total}, total / calls


# %% wrong="state-counter" because="Returns the state as a tuple, but the structure of the new state has to be that of the old one."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.sum(x)
    return (calls, total), total / calls


# %% wrong="state-counter" because="Adds an entry to the state, so its structure changes, and a scan rejects it."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.sum(x)
    return {"calls": calls, "total": total, "mean": total / calls}, total / calls


# %% wrong="state-counter" because="Counts the numbers of a batch instead of the calls."
def meter(state, x):
    calls = state["calls"] + x.size
    total = state["total"] + jnp.sum(x)
    return {"calls": calls, "total": total}, total / calls


# %% wrong="state-counter" because="Adds 1 to the count twice in each call."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.sum(x)
    return {"calls": calls + 1, "total": total}, total / calls


# %% wrong="state-counter" because="Returns the mean in the dtype of the batch instead of float32."
def meter(state, x):
    calls = state["calls"] + 1
    total = state["total"] + jnp.sum(x)
    return {"calls": calls, "total": total}, (total / calls).astype(x.dtype)


# %% right="state-counter"
def meter(state, x):
    new_state = jax.tree.map(jnp.add, state, {"calls": 1, "total": x.sum().astype(jnp.float32)})
    return new_state, new_state["total"] / new_state["calls"]


# %% right="state-counter"
def meter(state, x):
    state = dict(state)
    state["calls"] += 1
    state["total"] += jnp.sum(x, dtype=jnp.float32)
    return state, state["total"] / state["calls"].astype(jnp.float32)


# %% [markdown] task="state-fix-aliasing" stars=1 minutes=10 skills="03_jit,state-counter"
# ## Two names for one Ref
# **Goal.** Each of these three functions fails because two names refer to one Ref. Two raise an error, and one computes wrong values without an error. Fix them. `add_into` is in the setup cell.
#
# ```python
# def double(ref):
#     add_into(ref, ref)            # ValueError
#
# @jax.jit
# def take(ref):
#     old = ref
#     ref[...] = jnp.zeros(ref.shape, ref.dtype)
#     return old                    # ValueError
#
# def exchange(a_ref, b_ref):
#     old = a_ref
#     a_ref[...] = b_ref[...]
#     b_ref[...] = old[...]         # wrong values
# ```
#
# **Signature.** `double(ref)` doubles the values of a Ref and returns None. `take(ref)` sets a Ref to zeros and returns its old values as an array. `exchange(a_ref, b_ref)` exchanges the values of two different Refs of the same shape and dtype, and returns None. The Refs have any shape, and dtype float32, bfloat16 or int32.
#
# **Example.** With `a` = [1, 2] and `b` = [3, 4], `exchange(a, b)` gives `a` = [3, 4] and `b` = [1, 2]. Then `double(a)` gives `a` = [6, 8]. Then `take(a)` returns [6, 8], and `a` = [0, 0].
#
# **Judged.** The values of the Refs and the results, for each dtype, with and without `jit`. Each Ref keeps its shape and dtype. `take` also replaces infinities and NaN by zeros, and `exchange` does not round. **Not judged.** Whether you use `add_into`, and whether `take` itself has the decorator `@jax.jit`.
#
# <details><summary>Hint 1 · a question</summary>
#
# After `old = ref`, how many mutable arrays are there? And after `old = ref[...]`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Reading a Ref gives an array with the values of that moment. Later writes to the Ref do not change it.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# All three fixes add `[...]` in one place. `add_into` reads its second argument by `source_ref[...]`, which also works for an array.
#
# </details>


# %% answer="state-fix-aliasing"
def double(ref):
    """Doubles the values of a Ref, in place."""
    ### BEGIN SOLUTION
    add_into(ref, ref[...])
    ### END SOLUTION


def take(ref):
    """Sets a Ref to zeros and returns its old values, an array."""
    ### BEGIN SOLUTION
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old
    ### END SOLUTION


def exchange(a_ref, b_ref):
    """Exchanges the values of two Refs, in place."""
    ### BEGIN SOLUTION
    a, b = a_ref[...], b_ref[...]
    a_ref[...], b_ref[...] = b, a
    ### END SOLUTION


# %% check="state-fix-aliasing" name="example" points=1
"""The example: exchange, double, take."""


def probe_example(a, b):
    a_ref, b_ref = jax.new_ref(a), jax.new_ref(b)
    exchange(a_ref, b_ref)
    seen = [a_ref[...], b_ref[...]]
    double(a_ref)
    seen.append(a_ref[...])
    return (*seen, take(a_ref), a_ref[...])


a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
got = program(probe_example, a, b).run(a, b)
for label, one, wanted in zip(
    ("`a` after exchange", "`b` after exchange", "`a` after double", "the result of take", "`a` after take"),
    got,
    (b, a, 2 * b, 2 * b, 0 * b),
    strict=True,
):
    compare(one, wanted, label=label)

# %% hidden="state-fix-aliasing" name="compiled" points=1
"""Right inside a compiled program, for each dtype and shape."""


def probe_double(a):
    ref = jax.new_ref(a)
    return double(ref), ref[...]


def probe_take(a):
    refs = jax.new_ref(a), jax.new_ref(a)
    taken = take(refs[0])
    take(refs[1])
    double(refs[1])
    return taken, [ref[...] for ref in refs]


def probe_exchange(a, b):
    refs = jax.new_ref(a), jax.new_ref(b)
    return exchange(*refs), [ref[...] for ref in refs]


for dtype, shape in ((np.float32, (3, 2)), (np.int32, (4,)), (jnp.bfloat16, ())):
    a, b = (inputs.rng().integers(-50, 50, size=shape).astype(dtype) for _ in range(2))
    a[...] += np.array(1, dtype) * (a == 0)
    with case(f"for `double` with {a.dtype}"):
        nothing, doubled = program(probe_double, a).run(a)
        compare(doubled, (a + a).astype(dtype), label="the Ref after double")
        require(nothing is None, "`double` returns something. It changes its Ref and returns None.")
    with case(f"for `take` with {a.dtype}"):
        taken, (zeros, doubled) = program(probe_take, a).run(a)
        compare(taken, a, label="the result of take")
        compare(zeros, np.zeros_like(a), label="the Ref after take")
        compare(doubled, np.zeros_like(a), label="the Ref after take and double")
    with case(f"for `exchange` with {a.dtype}"):
        nothing, exchanged = program(probe_exchange, a, b).run(a, b)
        compare(exchanged[0], b, label="the first Ref after exchange")
        compare(exchanged[1], a, label="the second Ref after exchange")
        require(nothing is None, "`exchange` returns something. It changes its Refs and returns None.")
for dtype in (np.float32, jnp.bfloat16):
    b = inputs.rng().uniform(1, 2, size=4).astype(dtype)
    a = b.copy()
    a[:3] = np.inf, np.nan, -np.inf
    with case(f"for `take` of infinities and NaN with {a.dtype}"):
        zeros = program(probe_take, a).run(a)[1][0].astype(np.float32)
        require(np.isfinite(zeros).all(), "After `take` the Ref contains NaN or infinities instead of zeros.")
        compare(zeros, np.zeros(4, np.float32), label="the Ref after take")
    a = (inputs.rng().uniform(1, 2, size=4) * 1e9).astype(dtype)
    with case(f"for `exchange` of large and small numbers with {a.dtype}"):
        compare(program(probe_exchange, a, b).run(a, b)[1], [b, a], label="what the two Refs contain")

# %% hidden="state-fix-aliasing" name="eager" points=1
"""Right without jit, and with the functions compiled themselves, for each dtype."""


def probe_ways(a, b):
    results = []
    for way in (lambda f: f, jax.jit):
        a_ref, b_ref, c_ref = jax.new_ref(a), jax.new_ref(b), jax.new_ref(a)
        way(exchange)(a_ref, b_ref)
        way(double)(b_ref)
        taken = way(take)(c_ref)
        results.append((a_ref[...], b_ref[...], taken, c_ref[...]))
    return results


for dtype in (np.float32, np.int32, jnp.bfloat16):
    a, b = (inputs.rng().integers(1, 50, size=3).astype(dtype) for _ in range(2))
    wanted = (b, (a + a).astype(dtype), a, np.zeros_like(a))
    with case(f"for {a.dtype}"):
        for how, got in zip(("without jit", "compiled"), ask(probe_ways, a, b), strict=True):
            for label, one, other in zip(
                (
                    "the first Ref after exchange",
                    "the second Ref after exchange and double",
                    "the result of take",
                    "the Ref after take",
                ),
                got,
                wanted,
                strict=True,
            ):
                compare(one, other, label=f"{label} ({how})")

# %% [markdown] why="state-fix-aliasing"
# `old = ref` is a second name for the same mutable array, and `old = ref[...]` is an array with the values of that moment. JAX rejects two names for one Ref where they meet in one compiled function, but inside Python it cannot see them. **Next:** Could JAX allow `add_into(ref, ref)`, if it knew that the function only reads its second argument?


# %% wrong="state-fix-aliasing" because="Passes the same Ref twice to a compiled function, which is aliasing."
def double(ref):
    add_into(ref, ref)


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Returns the Ref itself from `take`. A compiled function cannot return a Ref, and its values are zeros by then."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref
    ref[...] = jnp.zeros_like(ref[...])
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Reads the Ref in `take` after it was set to zeros."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref
    ref[...] = jnp.zeros_like(ref[...])
    return old[...]


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Gives a Ref a second name in `exchange`, so the old values are overwritten before they are read."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    old = a_ref
    a_ref[...] = b_ref[...]
    b_ref[...] = old[...]


# %% wrong="state-fix-aliasing" because="Swaps the local names, which leaves the two Refs as they were."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref, b_ref = b_ref, a_ref


# %% wrong="state-fix-aliasing" because="Rebinds the local name in `double` to a new array, so the Ref is not written."
def double(ref):
    ref = 2 * ref[...]


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Doubles by a float, which has another dtype than a Ref of integers. A write never converts."
def double(ref):
    ref[...] = ref[...] * 2.0


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Writes float32 zeros of the right shape, but the dtype has to be that of the Ref."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros(ref.shape)
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Freezes a Ref that is an argument. `jax.freeze` is for the end of a Ref that the function created itself. Read it with `[...]`."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a = jax.freeze(a_ref)
    a_ref[...] = jax.freeze(b_ref)
    b_ref[...] = a


# %% wrong="state-fix-aliasing" because="Freezes a Ref that is an argument. `jax.freeze` is for the end of a Ref that the function created itself. Read it with `[...]`."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = jax.freeze(ref)
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Returns the Ref itself from `take`. A compiled function cannot return a Ref, and its values are zeros by then."
def double(ref):
    add_into(ref, ref[...])


@jax.jit
def take(ref):
    old = ref
    ref[...] = 0 * ref[...]
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Returns the new values of a Ref. `double` and `exchange` change their Refs and return None."
def double(ref):
    add_into(ref, ref[...])
    return ref[...]


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Multiplies by 0 or subtracts the values from themselves, which gives NaN for an infinity or NaN."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref[...]
    ref[...] = 0 * ref[...]
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Multiplies by 0 or subtracts the values from themselves, which gives NaN for an infinity or NaN."
def double(ref):
    ref[...] *= 2


def take(ref):
    old = ref[...]
    ref[...] -= old
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% wrong="state-fix-aliasing" because="Exchanges by sums and differences, which are rounded."
def double(ref):
    add_into(ref, ref[...])


def take(ref):
    old = ref[...]
    ref[...] = jnp.zeros_like(old)
    return old


def exchange(a_ref, b_ref):
    a_ref[...] += b_ref[...]
    b_ref[...] = a_ref[...] - b_ref[...]
    a_ref[...] -= b_ref[...]


# %% right="state-fix-aliasing"
def double(ref):
    ref[...] += ref[...]


def take(ref):
    return jax.ref.swap(ref, ..., jnp.zeros(ref.shape, ref.dtype))


def exchange(a_ref, b_ref):
    b_ref[...] = jax.ref.swap(a_ref, ..., b_ref[...])


# %% right="state-fix-aliasing"
@jax.jit
def double(ref):
    jax.ref.addupdate(ref, ..., ref[...])


@jax.jit
def take(ref):
    old = jnp.copy(ref[...])
    ref[...] = jnp.full_like(old, 0)
    return old


@jax.jit
def exchange(a_ref, b_ref):
    a, b = a_ref[...], b_ref[...]
    a_ref[...] = b
    b_ref[...] = a


# %% right="state-fix-aliasing"
def double(ref):
    copy = jax.new_ref(ref[...])
    add_into(ref, copy)


def take(ref):
    old = ref[...]
    jax.ref.set(ref, ..., jnp.zeros_like(old))
    return old


def exchange(a_ref, b_ref):
    a_ref[...], b_ref[...] = b_ref[...], a_ref[...]


# %% [markdown] task="state-running-stats" stars=2 minutes=15 skills="04_grad,05_vmap,08_control_flow,state-fix-aliasing"
# ## Running statistics in Refs
# **Goal.** `running_stats_carry` in the setup cell normalises a stream by its running mean and variance, and threads both through a `scan`. Write the same function with Refs. It creates them itself, so it is still pure.
#
# **Signature.** `running_stats(xs, decay)`. `xs` has shape `(t, d)` and dtype float32, and `decay` is a number between 0 and 1, possibly traced. Returns `(rows, mean, var)` with shapes `(t, d)`, `(d,)` and `(d,)`. The mean starts at 0 and the variance at 1. For each row, first `mean ← decay * mean + (1 - decay) * x`, then `var ← decay * var + (1 - decay) * (x - mean)²` with the new mean. The normalised row is `(x - mean) / sqrt(var + 1e-5)`.
#
# **Example.** For `xs = [[2]]` and `decay = 0.5`, the mean is 1, the variance is 0.5 · 1 + 0.5 · 1² = 1, and the row is `[[1]]`, up to 1e-5.
#
# **Judged.** Values, gradients with respect to `xs` and `decay`, and the result under `vmap`. The program has one loop and is the same for any `t`. No call depends on an earlier one. The loop stores both mean and variance in Refs that the function creates, and its carry contains neither (observed). **Not judged.** How many Refs you use.
#
# <details><summary>Hint 1 · a question</summary>
#
# In `running_stats_carry`, which values does the carry contain? What does the body return in its place, if these values are in Refs?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Create the Refs inside the function, before the `scan`. The body closes over them, and its carry is None.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `mean = jax.new_ref(jnp.zeros_like(xs[0]))`, and the same for `var` with ones. In the body, write `mean[...]` first, then `var[...]`, then return `None, row`. After the `scan`, read both Refs.
#
# </details>


# %% answer="state-running-stats"
def running_stats(xs, decay):
    """Normalises each row of xs (t, d) by running statistics in Refs. Returns (rows (t, d), mean (d,), var (d,))."""
    ### BEGIN SOLUTION
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        centred = x - mean[...]
        var[...] = decay * var[...] + (1 - decay) * centred**2
        return None, centred / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]
    ### END SOLUTION


# %% check="state-running-stats" name="example" points=1
"""The example: one row."""
xs, decay = np.array([[2]], np.float32), np.float32(0.5)
got = program(running_stats, xs, decay).run(xs, decay)
compare(got, (np.array([[1]], np.float32), np.array([1], np.float32), np.array([1], np.float32)))

# %% hidden="state-running-stats" name="values" points=1
"""Right for streams of different lengths, by one loop, and each call starts again."""


def probe_twice(xs, decay):
    return running_stats(xs, decay), running_stats(xs, decay)


def by_hand(xs, decay):
    mean, var, rows = np.zeros(xs.shape[1]), np.ones(xs.shape[1]), []
    for x in xs.astype(np.float64):
        mean = decay * mean + (1 - decay) * x
        var = decay * var + (1 - decay) * (x - mean) ** 2
        rows.append((x - mean) / np.sqrt(var + 1e-5))
    return tuple(np.asarray(part, np.float32) for part in (rows, mean, var))


made = {}
for length, width in ((5, 3), (12, 3)):
    rng = inputs.rng()
    xs, decay = rng.normal(2, 2, size=(length, width)).astype(np.float32), np.float32(rng.uniform(0.6, 0.95))
    made[length] = program(running_stats, xs, decay)
    compare(made[length].run(xs, decay), by_hand(xs, decay), label=f"the result for {length} rows, (rows, mean, var),")
    both = program(probe_twice, xs, decay).run(xs, decay)
    compare(both[1], by_hand(xs, decay), label="the result of a second call")
xs, decay = np.zeros((9, 2), np.float32), np.float32(0.1)
xs[-1] = inputs.rng().uniform(1e-3, 2e-3, size=2)
compare(program(running_stats, xs, decay).run(xs, decay), by_hand(xs, decay), label="the result for a constant stream")
few, many = made[5], made[12]
require(many.loops == 1, f"The program has {many.loops} loops; expected one `scan` over the rows.")
require(
    few.operations == many.operations,
    f"With 5 rows the program has {few.operations} operations, with 12 it has {many.operations}: a Python loop was "
    "written out row by row.",
)

# %% hidden="state-running-stats" name="gradient" points=2
"""The gradients with respect to the stream and the decay are right, and vmap works."""


def probe_gradient(xs, weights, decay):
    return jax.grad(lambda xs, decay: jnp.sum(weights * running_stats(xs, decay)[0]), argnums=(0, 1))(xs, decay)


def probe_batch(batch, decay):
    return jax.vmap(running_stats, in_axes=(0, None))(batch, decay)


def value(xs, weights, decay):
    mean, var, total = np.zeros(xs.shape[1]), np.ones(xs.shape[1]), 0.0
    for x, weight in zip(xs, weights, strict=True):
        mean = decay * mean + (1 - decay) * x
        var = decay * var + (1 - decay) * (x - mean) ** 2
        total += np.sum(weight * (x - mean) / np.sqrt(var + 1e-5))
    return total


rng = inputs.rng()
xs, weights = (rng.normal(1, 1, size=(6, 2)).astype(np.float32) for _ in range(2))
decay = np.float32(rng.uniform(0.6, 0.9))
wide, wide_weights, step = xs.astype(np.float64), weights.astype(np.float64), 1e-5
by_x = np.zeros_like(wide)
for place in np.ndindex(wide.shape):
    nudge = np.zeros_like(wide)
    nudge[place] = step
    by_x[place] = value(wide + nudge, wide_weights, float(decay)) - value(wide - nudge, wide_weights, float(decay))
by_decay = value(wide, wide_weights, float(decay) + step) - value(wide, wide_weights, float(decay) - step)
wanted = (by_x / (2 * step)).astype(np.float32), np.float32(by_decay / (2 * step))
got = program(probe_gradient, xs, weights, decay).run(xs, weights, decay)
compare(got[0], wanted[0], rtol=2e-3, atol=2e-3, label="the gradient with respect to xs")
compare(got[1], wanted[1], rtol=2e-3, atol=2e-3, label="the gradient with respect to the decay")
batch = rng.normal(1, 1, size=(3, 4, 2)).astype(np.float32)
results = program(probe_batch, batch, decay).run(batch, decay)
for i, stream in enumerate(batch):
    mean, var, rows = np.zeros(2), np.ones(2), []
    for x in stream.astype(np.float64):
        mean = decay * mean + (1 - decay) * x
        var = decay * var + (1 - decay) * (x - mean) ** 2
        rows.append((x - mean) / np.sqrt(var + 1e-5))
    one = tuple(np.asarray(part)[i] for part in results)
    compare(one, tuple(np.asarray(part, np.float32) for part in (rows, mean, var)), label="the result under vmap")

# %% hidden="state-running-stats" name="refs" points=1 observed=true
"""The loop stores mean and variance in Refs that the function creates, and not in its carry."""


def probe_jaxpr(xs, decay):
    def loops_of(jaxpr):
        found = []
        for equation in jaxpr.eqns:
            params, operands = equation.params, [variable.aval for variable in equation.invars]
            if equation.primitive.name in ("scan", "while"):
                start = sum(params.get(name, 0) for name in ("num_consts", "cond_nconsts", "body_nconsts"))
                carry = operands[start:][: params.get("num_carry")]
                refs = sum(int(np.prod(aval.shape)) for aval in operands if "Ref{" in str(aval))
                found.append((refs, [int(np.prod(aval.shape)) for aval in carry if "float" in str(aval.dtype)]))
            for inner in jax.tree.leaves(params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
                found += loops_of(inner) if hasattr(inner, "eqns") else []
        return found

    closed = jax.make_jaxpr(running_stats)(xs, decay)
    return loops_of(closed), sum(isinstance(const, jax.ref.Ref) for const in closed.consts)


width = 3
loops, outside = ask(probe_jaxpr, jnp.ones((7, width)), jnp.float32(0.5))
require(len(loops) > 0, "There is no loop over the rows, such as a `scan`. A Python loop is written out by tracing.")
require(any(refs for refs, _ in loops), "No loop reads or writes a Ref: mean and variance have to be stored in Refs.")
in_carry = any(size in (width, 2 * width) for _, carry in loops for size in carry)
require(not in_carry, "The carry of the loop contains the mean or the variance. Store both in Refs only.")
require(
    any(refs >= 2 * width for refs, _ in loops),
    "The Refs that the loop reads or writes are too small to contain both the mean and the variance.",
)
require(outside == 0, "The function uses a Ref from outside. Create all Refs inside.")

# %% [markdown] why="state-running-stats"
# Both versions compute the same values and gradients. A function that creates its Refs itself is pure for its callers, so all transformations accept it. **Next:** In a deep network, the statistics of each layer would be arguments and results of every function in between. Which of them would a Ref argument remove?


# %% equivalent="state-running-stats" because="The initial values use only the shape and the dtype of a row, and JAX clamps an index out of range."
# off by one, 0 -> 1: mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))
# off by one, 0 -> 1: mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0])) (2)


# %% wrong="state-running-stats" because="Forgets the small number under the root, so a stream that hardly changes gives large rows."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...])

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Creates the Refs once, outside, so the second call continues with the statistics of the first."
outer = {}


def running_stats(xs, decay):
    if xs.shape[1] not in outer:
        with jax.ensure_compile_time_eval():
            zeros, ones = np.zeros(xs.shape[1], np.float32), np.ones(xs.shape[1], np.float32)
            outer[xs.shape[1]] = jax.new_ref(zeros), jax.new_ref(ones)
    mean, var = outer[xs.shape[1]]

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Stops the gradient at each write, as for a Ref from outside. The gradient has to flow through Refs that the function creates, and JAX 0.10.2 raises an error here."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = jax.lax.stop_gradient(decay * mean[...] + (1 - decay) * x)
        var[...] = jax.lax.stop_gradient(decay * var[...] + (1 - decay) * (x - mean[...]) ** 2)
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Updates the variance before the mean, so it uses the mean of the previous row."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        mean[...] = decay * mean[...] + (1 - decay) * x
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Reads both Refs before it writes them, so each row is normalised by the statistics of the previous rows."
def running_stats(xs, decay):
    mean_ref, var_ref = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean, var = mean_ref[...], var_ref[...]
        mean_ref[...] = decay * mean + (1 - decay) * x
        var_ref[...] = decay * var + (1 - decay) * (x - mean_ref[...]) ** 2
        return None, (x - mean) / jnp.sqrt(var + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean_ref[...], var_ref[...]


# %% wrong="state-running-stats" because="Creates the Refs as scalars. The shape of a Ref never changes, so the write fails."
def running_stats(xs, decay):
    mean, var = jax.new_ref(0.0), jax.new_ref(1.0)

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Loops over the rows in Python. The values are right, but the program grows with the stream."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))
    rows = []
    for x in xs:
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        rows.append((x - mean[...]) / jnp.sqrt(var[...] + 1e-5))
    return jnp.stack(rows), mean[...], var[...]


# %% wrong="state-running-stats" because="Threads the state through the carry, so the loop uses no Ref."
def running_stats(xs, decay):
    return running_stats_carry(xs, decay)


# %% wrong="state-running-stats" because="Returns a Ref instead of its values. A compiled function cannot return a Ref."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean, var


# %% wrong="state-running-stats" because="Starts the variance at 0 instead of 1."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.zeros_like(xs[0]))

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Threads the state through the carry, so the loop uses no Ref."
def running_stats(xs, decay):
    rows, mean, var = running_stats_carry(xs, decay)
    mean_ref, var_ref = jax.new_ref(mean), jax.new_ref(var)
    return rows, mean_ref[...], var_ref[...]


# %% wrong="state-running-stats" because="Keeps the mean or the variance in the carry. A Ref beside it does not replace the carry."
def running_stats(xs, decay):
    steps = jax.new_ref(jnp.float32(0))

    def one(state, x):
        mean, var = state
        steps[...] += 1.0
        mean = decay * mean + (1 - decay) * x
        var = decay * var + (1 - decay) * (x - mean) ** 2
        return (mean, var), (x - mean) / jnp.sqrt(var + 1e-5)

    (mean, var), rows = jax.lax.scan(one, (jnp.zeros_like(xs[0]), jnp.ones_like(xs[0])), xs)
    return rows, mean, var


# %% wrong="state-running-stats" because="Keeps the mean or the variance in the carry. A Ref beside it does not replace the carry."
def running_stats(xs, decay):
    mean = jax.new_ref(jnp.zeros(xs.shape[1]))

    def one(var, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var = decay * var + (1 - decay) * (x - mean[...]) ** 2
        return var, (x - mean[...]) / jnp.sqrt(var + 1e-5)

    var, rows = jax.lax.scan(one, jnp.ones_like(xs[0]), xs)
    return rows, mean[...], var


# %% wrong="state-running-stats" because="Keeps the mean or the variance in the carry. A Ref beside it does not replace the carry."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(state, x):
        m = decay * state[0] + (1 - decay) * x
        v = decay * state[1] + (1 - decay) * (x - m) ** 2
        mean[...], var[...] = m, v
        return (m, v), (x - m) / jnp.sqrt(v + 1e-5)

    _, rows = jax.lax.scan(one, (mean[...], var[...]), xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Uses a Ref as an input of the scan, which JAX 0.10.2 does not support under vmap. Pass the rows as an array."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))
    rows = jax.new_ref(xs)

    def one(_, row):
        mean[...] = decay * mean[...] + (1 - decay) * row[...]
        var[...] = decay * var[...] + (1 - decay) * (row[...] - mean[...]) ** 2
        row[...] = (row[...] - mean[...]) / jnp.sqrt(var[...] + 1e-5)
        return None, None

    jax.lax.scan(one, None, rows)
    return rows[...], mean[...], var[...]


# %% wrong="state-running-stats" because="Normalises all rows after the loop, by the final statistics instead of those of the row."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, None

    jax.lax.scan(one, None, xs)
    return (xs - mean[...]) / jnp.sqrt(var[...] + 1e-5), mean[...], var[...]


# %% wrong="state-running-stats" because="Exchanges `decay` and `1 - decay`, so a decay near 1 forgets the past quickly."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = (1 - decay) * mean[...] + decay * x
        var[...] = (1 - decay) * var[...] + decay * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Exchanges `decay` and `1 - decay`, so a decay near 1 forgets the past quickly."
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(_, x):
        mean[...] = (1 - decay) * mean[...] + decay * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2
        return None, (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    return rows, mean[...], var[...]


# %% wrong="state-running-stats" because="Scans twice, once for the means and once for the variances, in a jitted function that the program contains once."
@jax.jit
def ema(xs, start, decay):
    ref = jax.new_ref(start)

    def one(_, x):
        ref[...] = decay * ref[...] + (1 - decay) * x
        return None, ref[...]

    return jax.lax.scan(one, None, xs)[1]


def running_stats(xs, decay):
    decay = jnp.asarray(decay)
    means = ema(xs, jnp.zeros_like(xs[0]), decay)
    variances = ema((xs - means) ** 2, jnp.ones_like(xs[0]), decay)
    return (xs - means) / jnp.sqrt(variances + 1e-5), means[-1], variances[-1]


# %% right="state-running-stats"
@jax.jit
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    @jax.jit
    def update(mean, var, x):
        mean[...] = decay * mean[...] + (1 - decay) * x
        var[...] = decay * var[...] + (1 - decay) * (x - mean[...]) ** 2

    def one(x):
        update(mean, var, x)
        return (x - mean[...]) / jnp.sqrt(var[...] + 1e-5)

    return jax.lax.map(one, xs), mean[...], var[...]


# %% right="state-running-stats"
def running_stats(xs, decay):
    stats = jax.new_ref(jnp.stack([jnp.zeros(xs.shape[1]), jnp.ones(xs.shape[1])]))

    def one(_, x):
        stats[0] = decay * stats[0] + (1 - decay) * x
        stats[1] = decay * stats[1] + (1 - decay) * jnp.square(x - stats[0])
        return None, (x - stats[0]) * jax.lax.rsqrt(stats[1] + 1e-5)

    _, rows = jax.lax.scan(one, None, xs)
    final = jax.freeze(stats)
    return rows, final[0], final[1]


# %% right="state-running-stats"
def running_stats(xs, decay):
    state = {"mean": jax.new_ref(jnp.zeros(xs.shape[1])), "var": jax.new_ref(jnp.ones(xs.shape[1]))}
    out = jax.new_ref(jnp.zeros_like(xs))

    def one(i, _):
        x = xs[i]
        new = state["mean"][...] + (1 - decay) * (x - state["mean"][...])
        state["mean"][...] = new
        jax.ref.swap(state["var"], ..., decay * state["var"][...] + (1 - decay) * (x - new) ** 2)
        out[i] = (x - new) / jnp.sqrt(state["var"][...] + 1e-5)

    jax.lax.fori_loop(0, xs.shape[0], one, None)
    return out[...], state["mean"][...], state["var"][...]


# %% right="state-running-stats"
def running_stats(xs, decay):
    mean, var = jax.new_ref(jnp.zeros_like(xs[0])), jax.new_ref(jnp.ones_like(xs[0]))

    def one(i, rows):
        mean[...] = decay * mean[...] + (1 - decay) * xs[i]
        var[...] = decay * var[...] + (1 - decay) * (xs[i] - mean[...]) ** 2
        return rows.at[i].set((xs[i] - mean[...]) / jnp.sqrt(var[...] + 1e-5))

    rows = jax.lax.fori_loop(0, xs.shape[0], one, jnp.zeros_like(xs))
    return rows, mean[...], var[...]


# %% [markdown] task="state-accumulate" stars=2 minutes=18 skills="03_jit,08_control_flow,state-running-stats"
# ## Updates in place
# **Goal.** The gradient of an embedding table is not zero in only a few rows. Add the updates of several steps to a large table **in place**. Write it twice, with a Ref and with a donated argument.
#
# **Signature.** `accumulate_in_place(table_ref, ids, updates)` takes a Ref of shape `(n, d)`, `ids` with shape `(steps, k)`, int32, and `updates` with shape `(steps, k, d)`. It adds `updates[s, j]` to row `ids[s, j]` of the table for all s and j, and returns None. `donated_accumulator()` returns a *compiled* function `update(table, ids, updates)` of three arrays. This function returns the new table, and donates the old one only. All floats are float32. A row may occur many times, in one step and in several.
#
# **Example.** For a table of three rows of one zero, `ids = [[0, 0], [2, 0]]` and `updates = [[[1], [2]], [[3], [4]]]`, the rows become 7, 0 and 3.
#
# **Judged.** Values. In both programs, the new table has the memory of the old one (alias bytes), the temporary bytes are less than half of the table, there are fewer floating-point operations than half of the table's entries, and the size of the program does not depend on `steps`. A loop may visit the updates, but not the rows of the table. So if JAX writes out all loops (`jax.disable_jit`), a program for a larger table has as many operations. `accumulate_in_place` returns nothing. **Not judged.** Loop or no loop.
#
# <details><summary>Hint 1 · a question</summary>
#
# In-place addition at indices, `ref[ids] += x`, reads all rows, then adds, then writes. What happens to a row that occurs twice?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# One function of `jax.ref` adds at indices that may repeat. For arrays, `.at[...]` has a method that does the same (01).
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Indices of shape `(steps, k)` select an array of shape `(steps, k, d)`, so no loop is needed. `donated_accumulator` returns `jax.jit` of a function of three arguments, with `donate_argnums=0`.
#
# </details>


# %% answer="state-accumulate"
def accumulate_in_place(table_ref, ids, updates):
    """Adds updates (steps, k, d) to the rows ids (steps, k) of a Ref (n, d), in place."""
    ### BEGIN SOLUTION
    jax.ref.addupdate(table_ref, ids, updates)
    ### END SOLUTION


def donated_accumulator():
    """Returns a compiled function (table (n, d), ids, updates) -> new table, which donates the old table."""
    ### BEGIN SOLUTION
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)
    ### END SOLUTION


# %% check="state-accumulate" name="example" points=1
"""The example: row 0 occurs three times."""


def probe_ref(table, ids, updates):
    ref = jax.new_ref(table)
    accumulate_in_place(ref, ids, updates)
    return jax.freeze(ref)


def probe_donated(table, ids, updates):
    return donated_accumulator()(table, ids, updates)


table, ids = np.zeros((3, 1), np.float32), np.array([[0, 0], [2, 0]], np.int32)
updates = np.array([[[1], [2]], [[3], [4]]], np.float32)
wanted = np.array([[7], [0], [3]], np.float32)
compare(program(probe_ref, table, ids, updates).run(table, ids, updates), wanted, label="the table in the Ref")
compare(
    program(probe_donated, table, ids, updates).run(table, ids, updates), wanted, label="the table that is returned"
)

# %% hidden="state-accumulate" name="values" points=1
"""Right for tables of different shapes, whatever rows occur twice, and the Ref version returns None."""


def probe_ref(table, ids, updates):
    ref = jax.new_ref(table)
    result = accumulate_in_place(ref, ids, updates)
    return jax.freeze(ref), result


def probe_donated(table, ids, updates):
    return donated_accumulator()(table, ids, updates)


for n, d, steps, k in ((6, 3, 4, 5), (40, 2, 1, 3), (5, 4, 6, 1)):
    rng = inputs.rng()
    table = rng.normal(size=(n, d)).astype(np.float32)
    ids = rng.integers(0, n, size=(steps, k)).astype(np.int32)
    ids[-1, -1] = ids[0, 0]
    updates = rng.normal(size=(steps, k, d)).astype(np.float32)
    wanted = table.copy()
    np.add.at(wanted, ids, updates)
    got, result = program(probe_ref, table, ids, updates).run(table, ids, updates)
    compare(got, wanted, label="the table in the Ref")
    require(result is None, "`accumulate_in_place` returns something. It changes the Ref and returns None.")
    got = program(probe_donated, table, ids, updates).run(table, ids, updates)
    compare(got, wanted, label="the table that is returned")

# %% hidden="state-accumulate" name="in-place" points=2
"""Neither program copies, rebuilds or visits the table: alias bytes, temporary bytes, work and size."""


def probe_in_place(table, ids, updates):
    def with_ref(table, ids, updates):
        ref = jax.new_ref(table)
        accumulate_in_place(ref, ids, updates)
        return jax.freeze(ref)

    return jax.jit(with_ref, donate_argnums=0)(table, ids, updates)


def probe_donated(table, ids, updates):
    return donated_accumulator()(table, ids, updates)


# Loops run in Python here, so a program contains the operations of each iteration.
def probe_in_place_written_out(table, ids, updates):
    with jax.disable_jit(), jax.ensure_compile_time_eval():
        ref = jax.new_ref(table)
        accumulate_in_place(ref, ids, updates)
        return jax.freeze(ref)


def probe_donated_written_out(table, ids, updates):
    with jax.disable_jit(), jax.ensure_compile_time_eval():
        return donated_accumulator()(table, ids, updates)


def draw(rows):
    """A table with this number of rows, four updates of it, and the table that they give."""
    rng = inputs.rng()
    table, updates = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, 4), (2, 2, 4)))
    ids, wanted = rng.integers(0, rows, size=(2, 2)).astype(np.int32), table.copy()
    np.add.at(wanted, ids, updates)
    return (table, ids, updates), wanted


def judge_rows(begin, small, large):
    require(
        small.operations == large.operations,
        f"If its loops are written out, {begin} has {small.operations} operations for a table of 33 rows and "
        f"{large.operations} for one of 60. It visits all rows. Add to the rows that occur, and to no others.",
    )


def judge(begin, few, many, table):
    require(
        many.alias_bytes == table.nbytes,
        f"{begin} reuses {many.alias_bytes:,} bytes of its arguments; the table has {table.nbytes:,}.",
    )
    require(
        many.temp_bytes < table.nbytes / 2,
        f"{begin} needs {many.temp_bytes:,} temporary bytes for a table of {table.nbytes:,}: it builds another array of "
        "this size. Add to the rows that occur, and to no others.",
    )
    if many.flops:
        require(
            many.flops < table.size / 2,
            f"{begin} does {many.flops:,.0f} floating-point operations for a table of {table.size:,} entries, of which a "
            "few rows change. Add to the rows that occur, and to no others.",
        )
    require(
        few.operations == many.operations,
        f"{begin} has {few.operations} operations for 2 steps and {many.operations} for 6: a Python loop was written out.",
    )


rng = inputs.rng()
table = rng.normal(size=(3000, 8)).astype(np.float32)
ids = rng.integers(0, 3000, size=(6, 3)).astype(np.int32)
ids[3, 1] = ids[0, 0]
updates = rng.normal(size=(6, 3, 8)).astype(np.float32)
wanted, wanted_few = table.copy(), table.copy()
np.add.at(wanted, ids, updates)
np.add.at(wanted_few, ids[:2], updates[:2])
few, many = program(probe_in_place, table, ids[:2], updates[:2]), program(probe_in_place, table, ids, updates)
judge("The program with the Ref", few, many, table)
compare(many.run(table, ids, updates), wanted, label="the table in the Ref")
compare(few.run(table, ids[:2], updates[:2]), wanted_few, label="the table in the Ref after two steps")
arrays, wanted_small = draw(33)
small = program(probe_in_place_written_out, *arrays)
compare(small.run(*arrays), wanted_small, label="the table of 33 rows in the Ref")
arrays, wanted_large = draw(60)
large = program(probe_in_place_written_out, *arrays)
compare(large.run(*arrays), wanted_large, label="the table of 60 rows in the Ref")
judge_rows("the program with the Ref", small, large)
few, many = program(probe_donated, table, ids[:2], updates[:2]), program(probe_donated, table, ids, updates)
judge("The program with the donated table", few, many, table)
compare(many.run(table, ids, updates), wanted, label="the table that is returned")
compare(few.run(table, ids[:2], updates[:2]), wanted_few, label="the table that is returned after two steps")
arrays, wanted_small = draw(33)
small = program(probe_donated_written_out, *arrays)
compare(small.run(*arrays), wanted_small, label="the table of 33 rows that is returned")
arrays, wanted_large = draw(60)
large = program(probe_donated_written_out, *arrays)
compare(large.run(*arrays), wanted_large, label="the table of 60 rows that is returned")
judge_rows("the program with the donated table", small, large)

# %% hidden="state-accumulate" name="donated" points=1 observed=true
"""The compiled function donates the table, and neither ids nor updates."""


def probe_deleted(table, ids, updates):
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        donated_accumulator()(table, ids, updates)
    unusable = any("donated buffers" in str(one.message) for one in caught)
    return [array.is_deleted() for array in (table, ids, updates)], unusable


arrays = jnp.ones((9, 2)), jnp.zeros((2, 3), jnp.int32), jnp.ones((2, 3, 2))
deleted, unusable = ask(probe_deleted, *arrays)
require(deleted[0], "After the call the old table still exists: it was not donated.")
require(
    not deleted[1] and not deleted[2] and not unusable,
    "`ids` or `updates` was donated too, but the caller still needs them.",
)

# %% [markdown] why="state-accumulate"
# A Ref argument is always donated, and its rows are updated where they are. A donated array gives the same program. Both need an operation that adds to the given rows only. **Next:** An optimizer with momentum changes every row in each step. What would an update in place still save?


# %% wrong="state-accumulate" because="Reads, adds and writes, so a row that occurs twice is updated only once."
def accumulate_in_place(table_ref, ids, updates):
    table_ref[ids] += updates


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Multiplies by one-hot rows, which builds an array of the size of the table and touches all its rows."
def accumulate_in_place(table_ref, ids, updates):
    hot = jax.nn.one_hot(ids, table_ref.shape[0])
    table_ref[...] += jnp.einsum("skn,skd->nd", hot, updates)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Loops over all rows of the table, also those that do not change, so the time grows with the table."
def accumulate_in_place(table_ref, ids, updates):
    def row(r, _):
        table_ref[r] += jnp.sum(jnp.where((ids == r)[..., None], updates, 0), axis=(0, 1))
        return _

    jax.lax.fori_loop(0, table_ref.shape[0], row, 0)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Loops over all rows of the table, also those that do not change, so the time grows with the table."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)


def donated_accumulator():
    def update(table, ids, updates):
        def row(state):
            r, table = state
            added = jnp.sum(jnp.where((ids == r)[..., None], updates, 0), axis=(0, 1))
            return r + 1, table.at[r].add(added)

        return jax.lax.while_loop(lambda state: state[0] < len(table), row, (0, table))[1]

    return jax.jit(update, donate_argnums=0)


# %% wrong="state-accumulate" because="Builds a table of updates for each step and adds them up, so the memory grows with the number of steps."
def accumulate_in_place(table_ref, ids, updates):
    def one(ids, updates):
        return jnp.zeros(table_ref.shape).at[ids].add(updates)

    table_ref[...] += jax.vmap(one)(ids, updates).sum(0)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Adds to a new array and never writes it to the Ref."
def accumulate_in_place(table_ref, ids, updates):
    table = table_ref[...].at[ids].add(updates)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Returns a second version that is not compiled, or that does not donate the table, so the old and the new table both need memory."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates))


# %% wrong="state-accumulate" because="Donates all three arguments, but the caller still needs the updates."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=(0, 1, 2))


# %% wrong="state-accumulate" because="Loops over the steps in Python. The table is updated in place, but the program grows with the steps."
def accumulate_in_place(table_ref, ids, updates):
    for step_ids, step_updates in zip(ids, updates, strict=True):
        jax.ref.addupdate(table_ref, step_ids, step_updates)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Returns a table as well, but the caller reads the Ref. To return the old values, a program has to copy them."
def accumulate_in_place(table_ref, ids, updates):
    old = table_ref[...]
    jax.ref.addupdate(table_ref, ids, updates)
    return old


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Sets the rows to the updates instead of adding them."
def accumulate_in_place(table_ref, ids, updates):
    table_ref[ids] = updates


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].set(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Collects the table of every iteration as an output of the scan and takes the last, so each iteration copies it."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)


def donated_accumulator():
    def update(table, ids, updates):
        def one(table, step):
            table = table.at[step[0]].add(step[1])
            return table, table

        return jax.lax.scan(one, table, (ids, updates))[1][-1]

    return jax.jit(update, donate_argnums=0)


# %% wrong="state-accumulate" because="Returns a second version that is not compiled, or that does not donate the table, so the old and the new table both need memory."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)


def donated_accumulator():
    return lambda table, ids, updates: table.at[ids].add(updates)


# %% wrong="state-accumulate" because="Reads, adds and writes, so a row that occurs twice is updated only once."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].set(table[ids] + updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Reads, adds and writes, so a row that occurs twice is updated only once."
def accumulate_in_place(table_ref, ids, updates):
    def one(_, step):
        table_ref[step[0]] += step[1]
        return None, None

    jax.lax.scan(one, None, (ids, updates))


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% wrong="state-accumulate" because="Returns a table as well, but the caller reads the Ref. To return the old values, a program has to copy them."
def accumulate_in_place(table_ref, ids, updates):
    jax.ref.addupdate(table_ref, ids, updates)
    return table_ref[...]


def donated_accumulator():
    return jax.jit(lambda table, ids, updates: table.at[ids].add(updates), donate_argnums=0)


# %% right="state-accumulate"
def accumulate_in_place(table_ref, ids, updates):
    def one(_, step):
        jax.ref.addupdate(table_ref, step[0], step[1])
        return None, None

    jax.lax.scan(one, None, (ids, updates))


def donated_accumulator():
    def update(table, ids, updates):
        return jax.lax.scan(lambda table, step: (table.at[step[0]].add(step[1]), None), table, (ids, updates))[0]

    return jax.jit(update, donate_argnames="table")


# %% right="state-accumulate"
def accumulate_in_place(table_ref, ids, updates):
    table_ref[...] = table_ref[...].at[ids].add(updates)


def donated_accumulator():
    def update(table, ids, updates):
        ref = jax.new_ref(table)
        jax.ref.addupdate(ref, ids.ravel(), updates.reshape(-1, updates.shape[-1]))
        return jax.freeze(ref)

    return jax.jit(update, donate_argnums=(0,))


# %% right="state-accumulate"
def accumulate_in_place(table_ref, ids, updates):
    def one(i, _):
        table_ref[ids.ravel()[i]] += updates.reshape(-1, updates.shape[-1])[i]  # one row at a time, so it may repeat
        return _

    jax.lax.fori_loop(0, ids.size, one, None)


def donated_accumulator():
    def update(table, ids, updates):
        add = lambda state: (state[0] + 1, state[1].at[ids[state[0]]].add(updates[state[0]]))
        return jax.lax.while_loop(lambda state: state[0] < len(ids), add, (0, table))[1]

    return jax.jit(update, donate_argnums=0)


# %% right="state-accumulate"
def accumulate_in_place(table_ref, ids, updates):
    table_ref[...] += jnp.zeros(table_ref.shape).at[ids].add(updates)


def donated_accumulator():
    def update(table, ids, updates):
        return table + jnp.zeros_like(table).at[ids].add(updates)

    return jax.jit(update, donate_argnums=0)


# %% [markdown] task="state-collect-activations" stars=2 minutes=15 skills="04_grad,05_vmap,state-fix-aliasing"
# ## Activations out of a network
# **Goal.** Record the result of each layer of a network in Refs that the caller passes, without a change of what the network returns. Then collect the activations of a whole batch.
#
# **Signature.** `forward(params, x, tap_refs)`. `params` is a list of pairs `(w, b)` with shapes `(m, k)` and `(m,)`, and `x` has shape `(k,)`. A layer computes `w @ x + b`, and all layers but the last apply `jnp.tanh` to it. `tap_refs` is None, or a list with a Ref of shape `(m,)` for each layer, to which `forward` writes the result of that layer, after `tanh`. Returns the result of the last layer.
# `collect_activations(params, xs)` takes a batch `xs` of shape `(n, k)` and returns `(outputs, activations)`. `outputs` is an array, and `activations` a list with an array of shape `(n, m)` for each layer. It is pure. All floats are float32.
#
# **Example.** For the layers `([[1]], [0])` and `([[2]], [1])` and x = `[0.5]`, the first Ref becomes tanh(0.5) = 0.4621, and the second becomes 2 · 0.4621 + 1 = 1.9242, which is also the result.
#
# **Judged.** Values. `jax.grad` of a loss with respect to `params` gives the same gradient with and without Refs, and writes the activations. `vmap` maps `forward` over `x` and `tap_refs`. The program of `collect_activations` is the same for any number of examples and has no loop. **Not judged.** Whether `collect_activations` uses Refs.
#
# <details><summary>Hint 1 · a question</summary>
#
# Why does `jax.grad` reject a write of a differentiated value to a Ref from outside? What states that its derivative is not needed?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Apply `jax.lax.stop_gradient` to the value that is written, and to nothing else. For the batch, create Refs with an axis for the examples.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In `collect_activations`, create `jax.new_ref(jnp.zeros((n, m)))` for each layer and call `jax.vmap(forward, in_axes=(None, 0, 0))`. Then read each Ref.
#
# </details>


# %% answer="state-collect-activations"
def forward(params, x, tap_refs=None):
    """A tanh network on x (k,). Writes the result of layer i to tap_refs[i], unless `tap_refs` is None."""
    ### BEGIN SOLUTION
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x
    ### END SOLUTION


def collect_activations(params, xs):
    """Returns (outputs, [activations (n, m) of each layer]) of the network for a batch xs (n, k)."""
    ### BEGIN SOLUTION
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]
    ### END SOLUTION


# %% check="state-collect-activations" name="example" points=1
"""The example: two layers of one unit."""


def probe_example(params, x):
    refs = [jax.new_ref(jnp.zeros(1)), jax.new_ref(jnp.zeros(1))]
    return forward(params, x, refs), [ref[...] for ref in refs], forward(params, x, None)


one = lambda number: np.array([number], np.float32)
params = [(one(1)[None], one(0)), (one(2)[None], one(1))]
got = program(probe_example, params, one(0.5)).run(params, one(0.5))
compare(
    got,
    (one(1.9242343), [one(0.46211717), one(1.9242343)], one(1.9242343)),
    label="(result, Refs, result without Refs)",
)

# %% hidden="state-collect-activations" name="values" points=1
"""Right for networks of different depths, and Refs are overwritten, whatever they contained."""


def probe_refs(params, x, start):
    refs = [jax.new_ref(leaf) for leaf in start]
    return forward(params, x, refs), [ref[...] for ref in refs], forward(params, x, None)


for widths in ((4, 3), (3, 5, 2), (2, 4, 4, 3)):
    rng = inputs.rng()
    params = [
        (rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=m).astype(np.float32))
        for k, m in itertools.pairwise(widths)
    ]
    start = [rng.normal(size=m).astype(np.float32) for m in widths[1:]]
    x = rng.normal(size=widths[0]).astype(np.float32)
    wanted, value = [], x
    for i, (w, b) in enumerate(params):
        value = w @ value + b
        value = np.tanh(value) if i < len(params) - 1 else value
        wanted.append(value)
    got, seen, plain = program(probe_refs, params, x, start).run(params, x, start)
    compare(got, wanted[-1], label="the result with Refs")
    compare(plain, wanted[-1], label="the result without Refs")
    for i, (one, other) in enumerate(zip(seen, wanted, strict=True)):
        compare(one, other, label=f"the Ref of layer {i + 1} of {len(params)}")

# %% hidden="state-collect-activations" name="gradient" points=1
"""The gradient is the same with and without Refs, and the Refs are written."""


def probe_gradient(params, x):
    refs = [jax.new_ref(jnp.zeros_like(b)) for _, b in params]
    loss = lambda params, refs: jnp.sum(forward(params, x, refs) ** 2)
    return jax.grad(loss)(params, None), jax.grad(loss)(params, refs), [ref[...] for ref in refs]


rng = inputs.rng()
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
params, x = [(draw(4, 3), draw(4)), (draw(2, 4), draw(2))], draw(3)
(w1, b1), (w2, b2) = params
hidden = np.tanh(w1 @ x + b1)
output = w2 @ hidden + b2
back = (w2.T @ (2 * output)) * (1 - hidden**2)
wanted = [(np.outer(back, x), back), (np.outer(2 * output, hidden), 2 * output)]
with case("under `jax.grad`"):
    without, with_refs, seen = program(probe_gradient, params, x).run(params, x)
compare(without, wanted, atol=1e-4, label="the gradient without Refs")
compare(with_refs, wanted, atol=1e-4, label="the gradient with Refs")
compare(seen, [hidden, output], label="what the Refs contain after `grad`")

# %% hidden="state-collect-activations" name="batch" points=1
"""Right for a batch, by one program without a loop, and under vmap with Refs that have an axis for the examples."""


def probe_vmap(params, xs):
    refs = [jax.new_ref(jnp.zeros((xs.shape[0], b.shape[0]))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, refs)
    return outputs, [ref[...] for ref in refs]


made = {}
for examples in (9, 3):
    rng = inputs.rng()
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    params, xs = [(draw(3, 4), draw(3)), (draw(3, 3), draw(3)), (draw(2, 3), draw(2))], draw(examples, 4)
    first = np.tanh(xs @ params[0][0].T + params[0][1])
    second = np.tanh(first @ params[1][0].T + params[1][1])
    wanted = second @ params[2][0].T + params[2][1]
    made[examples] = program(collect_activations, params, xs)
    got = made[examples].run(params, xs)
    compare(
        tuple(got) if isinstance(got, list) else got,
        (wanted, [first, second, wanted]),
        label=f"the result for {examples} examples, (outputs, activations),",
    )
    got = program(probe_vmap, params, xs).run(params, xs)
    compare(got, (wanted, [first, second, wanted]), label="the result of vmap over x and the Refs")
require(
    made[9].loops == 0, "The program of `collect_activations` runs a loop over the examples. Let vmap add the axis."
)
require(
    made[9].operations == made[3].operations,
    f"For 3 examples the program has {made[3].operations} operations, for 9 it has {made[9].operations}: a Python loop "
    "was written out.",
)

# %% [markdown] why="state-collect-activations"
# The Refs are arguments, so `vmap` can give each example its own entry, and `jit` updates them in place. `stop_gradient` applies only to the copy that is written, so the gradient of the loss is complete. **Next:** How would you record the *gradients* with respect to the activations?


# %% wrong="state-collect-activations" because="Writes the activation as it is. JAX rejects a differentiated value in a Ref from outside."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = x
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Stops the gradient of the activation itself, so earlier layers get a gradient of zero."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            x = jax.lax.stop_gradient(x)
            tap_refs[i][...] = x
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Writes the value before tanh."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
        if i < len(params) - 1:
            x = jnp.tanh(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Applies tanh to the last layer too."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = jnp.tanh(w @ x + b)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Adds to the Refs, so they also contain what the caller stored in them before."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] += jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Puts the arrays into the caller's list instead of writing to the Refs, so the Refs keep their old values."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs = [*tap_refs[:i], x, *tap_refs[i + 1 :]]
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Uses Refs without an axis for the examples under vmap, where all examples would write to the same Ref."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros(b.shape)) for _, b in params]
    outputs = jax.vmap(lambda x: forward(params, x, tap_refs))(xs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Uses Refs without an axis for the examples under vmap, where all examples would write to the same Ref."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros(b.shape)) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, None))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Runs the examples in a Python loop, so the program grows with the batch."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    outputs, rows = [], []
    for x in xs:
        tap_refs = [jax.new_ref(jnp.zeros(b.shape)) for _, b in params]
        outputs.append(forward(params, x, tap_refs))
        rows.append([tap[...] for tap in tap_refs])
    return jnp.stack(outputs), [jnp.stack(layer) for layer in zip(*rows, strict=True)]


# %% wrong="state-collect-activations" because="Returns the Refs instead of their values. The values have to be read before the function ends."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, tap_refs


# %% wrong="state-collect-activations" because="Does not write the result of the last layer."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None and i < len(params) - 1:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    tap_refs = [jax.new_ref(jnp.zeros((xs.shape[0], *b.shape))) for _, b in params]
    outputs = jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, tap_refs)
    return outputs, [tap[...] for tap in tap_refs]


# %% wrong="state-collect-activations" because="Runs the examples one after the other with `jax.lax.map`, which compiles to a loop."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            tap_refs[i][...] = jax.lax.stop_gradient(x)
    return x


def collect_activations(params, xs):
    def one(x):
        tap_refs = [jax.new_ref(jnp.zeros_like(b)) for _, b in params]
        return forward(params, x, tap_refs), [tap[...] for tap in tap_refs]

    return jax.lax.map(one, xs)


# %% wrong="state-collect-activations" because="Adds to the Refs, so they also contain what the caller stored in them before."
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b
        if i < len(params) - 1:
            x = jnp.tanh(x)
        if tap_refs is not None:
            jax.ref.addupdate(tap_refs[i], ..., jax.lax.stop_gradient(x))
    return x


def collect_activations(params, xs):
    refs = [jax.new_ref(jnp.zeros((xs.shape[0], b.size))) for _, b in params]
    return jax.vmap(forward, in_axes=(None, 0, 0))(params, xs, refs), [ref[...] for ref in refs]


# %% right="state-collect-activations"
def forward(params, x, tap_refs=None):
    *hidden, (w_last, b_last) = params
    taps = []
    for w, b in hidden:
        x = jnp.tanh(jnp.dot(w, x) + b)
        taps.append(x)
    x = jnp.dot(w_last, x) + b_last
    for ref, value in zip(tap_refs or [], [*taps, x], strict=False):
        jax.ref.set(ref, ..., jax.lax.stop_gradient(value))
    return x


def collect_activations(params, xs):
    empty = lambda b: jnp.zeros((len(xs), len(b)), xs.dtype)
    tap_refs = [jax.new_ref(empty(b)) for _, b in params]
    outputs = jax.vmap(lambda x, refs: forward(params, x, refs))(xs, tap_refs)
    return outputs, [jax.freeze(tap) for tap in tap_refs]


# %% right="state-collect-activations"
def forward(params, x, tap_refs=None):
    for i, (w, b) in enumerate(params):
        x = w @ x + b if i == len(params) - 1 else jnp.tanh(w @ x + b)
        if tap_refs:
            jax.ref.swap(tap_refs[i], slice(None), jax.lax.stop_gradient(x))
    return x


def collect_activations(params, xs):
    def one(x):
        tap_refs = [jax.new_ref(jnp.zeros_like(b)) for _, b in params]
        return forward(params, x, tap_refs), [tap[...] for tap in tap_refs]

    return jax.vmap(one)(xs)


# %% [markdown] task="state-ring-buffer" stars=3 minutes=30 skills="03_jit,08_control_flow,state-accumulate"
# ## An echo with a delay for each channel
# *Needs: Deeper: a ring buffer.*
#
# **Goal.** An echo adds to each sample an earlier *output*, and each channel has its own delay: `y[t, c] = x[t, c] + gain * y[t - delays[c], c]`. The signal arrives in chunks and never ends, so only the last n outputs can be stored, in a ring buffer. Write the echo twice, with threaded state and with Refs.
#
# **Signature.** The ring buffer has shape `(n, channels)` and dtype float32, and the position is an int32 of shape `()`. The position is the row that contains the output of n samples ago, and the row that the next output replaces. Then it moves on, from `n - 1` back to 0. `delays` has shape `(channels,)` and dtype int32, with values from 1 to n.
# `echo_carry(state, chunk, delays, gain)` takes `state = (buffer, position)`, a chunk of shape `(t, channels)`, the delays and a number. It returns `(new state, outputs)` with outputs of shape `(t, channels)`. `echo_ref(buffer_ref, position_ref, chunk, delays, gain)` takes Refs with the same contents, updates both, and returns the outputs.
#
# **Example.** With two channels, n = 2, `delays` = [1, 2], a buffer of zeros, position 0 and gain 0.5, the chunk `[[1, 1], [0, 0], [0, 0]]` gives `[[1, 1], [0.5, 0], [0.25, 0.5]]`. The buffer is then `[[0.25, 0.5], [0.5, 0]]` and the position is 1. A second chunk `[[0, 4]]` gives `[[0.125, 4]]`.
#
# **Judged.** Outputs, buffer and position, over several chunks of different lengths, from any position and for any delays. Both programs have one loop, their size depends neither on the length of the chunk nor on n, and the number of arithmetic operations and comparisons does not grow with n. **Not judged.** Gradients, temporary memory, and copies of rows.
#
# <details><summary>Hint 1 · a question</summary>
#
# The row at the position is n samples old. Which row contains the output of one sample ago, and which that of d samples ago, also when the position is 0?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Each channel reads another row. Indexing with two arrays of shape `(channels,)`, one of rows and one of columns, reads one entry for each pair. The write is a whole row.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The rows are `position - delays`, modulo `n`, and the columns are `jnp.arange` of the number of channels. In a `scan` over the samples, read these entries, compute `y`, write it at the position, and then let the position move on. With Refs, read the position inside the body.
#
# </details>


# %% answer="state-ring-buffer"
def echo_carry(state, chunk, delays, gain):
    """state = (buffer (n, channels), position ()), chunk (t, channels), delays (channels,) -> (new state, outputs)"""

    ### BEGIN SOLUTION
    def step(state, x):
        buffer, position = state
        rows = (position - delays) % buffer.shape[0]
        y = x + gain * buffer[rows, jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)
    ### END SOLUTION


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    """The same with a Ref (n, channels) and a Ref (), which it updates. Returns the outputs (t, channels)."""

    ### BEGIN SOLUTION
    def step(_, x):
        position = position_ref[...]
        rows = (position - delays) % buffer_ref.shape[0]
        y = x + gain * buffer_ref[rows, jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]
    ### END SOLUTION


# %% check="state-ring-buffer" name="example" points=1
"""The example: two chunks, one after the other."""


def probe_carry(buffer, position, chunk, delays, gain):
    return echo_carry((buffer, position), chunk, delays, gain)


def probe_example(buffer, position, chunk, delays, gain):
    refs = jax.new_ref(buffer), jax.new_ref(position)
    return echo_ref(*refs, chunk, delays, gain), tuple(ref[...] for ref in refs)


array = lambda *rows: np.array(rows, np.float32)
start, rest = (np.zeros((2, 2), np.float32), np.int32(0)), (np.array([1, 2], np.int32), np.float32(0.5))
chunk, other = array([1, 1], [0, 0], [0, 0]), array([0, 4])
outputs, state = array([1, 1], [0.5, 0], [0.25, 0.5]), (array([0.25, 0.5], [0.5, 0]), np.int32(1))
first = program(probe_carry, *start, chunk, *rest).run(*start, chunk, *rest)
compare(first, (state, outputs), label="the first result of echo_carry, (state, outputs),")
second = program(probe_carry, *state, other, *rest).run(*state, other, *rest)
compare(second[1], array([0.125, 4]), label="the second outputs of echo_carry")
first = program(probe_example, *start, chunk, *rest).run(*start, chunk, *rest)
compare(first[0], outputs, label="the first outputs of echo_ref")
compare(first[1], state, label="the Refs after the first chunk, (buffer, position),")
second = program(probe_example, *state, other, *rest).run(*state, other, *rest)
compare(second[0], array([0.125, 4]), label="the second outputs of echo_ref")

# %% hidden="state-ring-buffer" name="carry" points=2
"""`echo_carry` is right over several chunks, by one loop, and its program grows with nothing."""


def probe_carry(buffer, position, chunk, delays, gain):
    return echo_carry((buffer, position), chunk, delays, gain)


def by_hand(buffer, position, chunk, delays, gain):
    buffer, position, outputs = buffer.copy(), int(position), []
    for x in chunk:
        outputs.append(x + gain * np.array([buffer[position - d, c] for c, d in enumerate(delays)]))
        buffer[position] = outputs[-1]
        position = (position + 1) % len(buffer)
    return (buffer, np.int32(position)), np.asarray(outputs, np.float32)


made = {}
for n, lengths in ((3, (7, 2)), (600, (5, 11))):
    rng = inputs.rng()
    buffer = rng.normal(size=(n, 4)).astype(np.float32)
    position, gain = np.int32(rng.integers(n - 2, n)), np.float32(rng.uniform(0.3, 0.9))
    delays = rng.permutation([1, n, n - 1, rng.integers(2, n)]).astype(np.int32)
    for length in lengths:
        chunk = rng.normal(size=(length, 4)).astype(np.float32)
        made[n, length] = program(probe_carry, buffer, position, chunk, delays, gain)
        wanted = by_hand(buffer, position, chunk, delays, gain)
        got = made[n, length].run(buffer, position, chunk, delays, gain)
        compare(got[1], wanted[1], label=f"the outputs for n = {n} and a chunk of {length}")
        compare(got[0], wanted[0], label=f"the state, (buffer, position), for n = {n} and a chunk of {length}")
        buffer, position = wanted[0]
one, other = made[3, 7], made[600, 11]
require(other.loops == 1, f"The program has {other.loops} loops; expected one `scan` over the samples.")
require(
    one.operations == made[600, 5].operations == other.operations,
    "The number of operations depends on the length of the chunk or on n: a Python loop was written out.",
)
if other.flops:
    require(
        other.flops < 600 * 4 / 2,
        f"With n = 600 the program does {other.flops:,.0f} arithmetic operations and comparisons: each step computes "
        "with the whole buffer. Compute with one row.",
    )

# %% hidden="state-ring-buffer" name="refs" points=2
"""`echo_ref` is right over several chunks, updates both Refs, by one loop, and its program grows with nothing."""


def probe_ref(buffer, position, chunk, delays, gain):
    buffer_ref, position_ref = jax.new_ref(buffer), jax.new_ref(position)
    outputs = echo_ref(buffer_ref, position_ref, chunk, delays, gain)
    return (buffer_ref[...], position_ref[...]), outputs


def by_hand(buffer, position, chunk, delays, gain):
    buffer, position, outputs = buffer.copy(), int(position), []
    for x in chunk:
        outputs.append(x + gain * np.array([buffer[position - d, c] for c, d in enumerate(delays)]))
        buffer[position] = outputs[-1]
        position = (position + 1) % len(buffer)
    return (buffer, np.int32(position)), np.asarray(outputs, np.float32)


made = {}
for n, lengths in ((3, (7, 2)), (600, (5, 11))):
    rng = inputs.rng()
    buffer = rng.normal(size=(n, 4)).astype(np.float32)
    position, gain = np.int32(rng.integers(n - 2, n)), np.float32(rng.uniform(0.3, 0.9))
    delays = rng.permutation([1, n, n - 1, rng.integers(2, n)]).astype(np.int32)
    for length in lengths:
        chunk = rng.normal(size=(length, 4)).astype(np.float32)
        made[n, length] = program(probe_ref, buffer, position, chunk, delays, gain)
        wanted = by_hand(buffer, position, chunk, delays, gain)
        got = made[n, length].run(buffer, position, chunk, delays, gain)
        compare(got[1], wanted[1], label=f"the outputs for n = {n} and a chunk of {length}")
        compare(got[0], wanted[0], label=f"the Refs, (buffer, position), for n = {n} and a chunk of {length}")
        buffer, position = wanted[0]
one, other = made[3, 7], made[600, 11]
require(other.loops == 1, f"The program has {other.loops} loops; expected one `scan` over the samples.")
require(
    one.operations == made[600, 5].operations == other.operations,
    "The number of operations depends on the length of the chunk or on n: a Python loop was written out.",
)
if other.flops:
    require(
        other.flops < 600 * 4 / 2,
        f"With n = 600 the program does {other.flops:,.0f} arithmetic operations and comparisons: each step computes "
        "with the whole buffer. Compute with one row.",
    )

# %% [markdown] why="state-ring-buffer"
# The state has a fixed size, so the signal can be endless, and the chunks can have any lengths. The position moves instead of the data, so a step reads and writes as many entries as there are channels. Both versions compile to a loop that updates the buffer. **Next:** Which of the two versions would you use to process a hundred signals with `vmap`?


# %% wrong="state-ring-buffer" because="Stores the input instead of the output, so each sample is repeated only once."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(x), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = x
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Reads the position once, before the loop, so all samples read and write the same rows."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    position = position_ref[...]

    def step(_, x):
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Lets the position grow without the modulo. An index out of range is clamped to the last row when it is read."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), position + 1), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = position + 1
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Keeps the position in the loop only, so the next chunk starts at the old position."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(position, x):
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        return (position + 1) % buffer_ref.shape[0], y

    return jax.lax.scan(step, position_ref[...], chunk)[1]


# %% wrong="state-ring-buffer" because="Shifts the whole buffer by one row in each step, so the newest output is always in the last row and not before the position."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[buffer.shape[0] - delays, jnp.arange(delays.size)]
        return (jnp.concatenate([buffer[1:], y[None]]), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Writes the sample first and reads afterwards, so a channel with a delay of n reads the sample itself."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        buffer_ref[position] = x
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Returns the old state, so each chunk starts from the same buffer."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return state, jax.lax.scan(step, state, chunk)[1]


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Takes the modulo by the length of the chunk instead of the length of the buffer."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % chunk.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % chunk.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Loops over the samples in Python. The values are right, but the program grows with the chunk."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    outputs = []
    for x in chunk:
        position = position_ref[...]
        outputs.append(x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)])
        buffer_ref[position] = outputs[-1]
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
    return jnp.stack(outputs)


# %% wrong="state-ring-buffer" because="Selects the row with a mask, so each step computes with the whole buffer."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        buffer, position = buffer_ref[...], position_ref[...]
        rows = jnp.arange(buffer.shape[0])[:, None]
        here = rows == position
        y = x + gain * jnp.sum(jnp.where(rows == (position - delays) % buffer.shape[0], buffer, 0), axis=0)
        buffer_ref[...] = jnp.where(here, y, buffer)
        position_ref[...] = (position + 1) % buffer.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Uses the Refs as the carry of the scan. Its body would have to return them, which JAX rejects."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(refs, x):
        buffer_ref, position_ref = refs
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return refs, y

    return jax.lax.scan(step, (buffer_ref, position_ref), chunk)[1]


# %% wrong="state-ring-buffer" because="Selects the row with a mask, so each step computes with the whole buffer."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        here = (jnp.arange(buffer_ref.shape[0]) == position)[:, None]
        buffer_ref[...] = jnp.where(here, y, buffer_ref[...])
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Selects the row with a mask, so each step computes with the whole buffer."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        here = jax.nn.one_hot(position, buffer.shape[0])[:, None]
        past = jax.nn.one_hot((position - delays) % buffer.shape[0], buffer.shape[0], axis=0)
        y = x + gain * jnp.sum(past * buffer, axis=0)
        return (buffer * (1 - here) + here * y, (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Advances the position before the write, so the output replaces the next row."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        y = x + gain * buffer_ref[(position_ref[...] - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        position_ref[...] = (position_ref[...] + 1) % buffer_ref.shape[0]
        buffer_ref[position_ref[...]] = y
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Advances the position before the write, so the output replaces the next row."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        position = (position + 1) % buffer.shape[0]
        return (buffer.at[position].set(y), position), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Reads the row at the position for all channels, as if each delay were n."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[position]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[position]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Adds the delays to the position, but earlier outputs are in earlier rows."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position + delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position + delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Indexes with the rows alone, which reads a whole row for each channel."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0]]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0]]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Reads one row too early. The output of one sample ago is in the row before the position."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays - 1) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays - 1) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Takes the delay of the first channel for all channels."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays[0]) % buffer.shape[0]]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays[0]) % buffer_ref.shape[0]]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Selects the row with a mask, so each step computes with the whole buffer."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        mask = jnp.arange(buffer.shape[0])[:, None] == (position - delays) % buffer.shape[0]
        y = x + gain * jnp.sum(jnp.where(mask, buffer, 0), axis=0)
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        mask = jnp.arange(buffer_ref.shape[0])[:, None] == (position - delays) % buffer_ref.shape[0]
        y = x + gain * jnp.sum(jnp.where(mask, buffer_ref[...], 0), axis=0)
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Starts in row 0 instead of the row at the given position."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, (state[0], jnp.int32(0)), chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    def step(_, x):
        position = position_ref[...]
        y = x + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        buffer_ref[position] = y
        position_ref[...] = (position + 1) % buffer_ref.shape[0]
        return None, y

    return jax.lax.scan(step, None, chunk)[1]


# %% wrong="state-ring-buffer" because="Lets the position grow and takes the modulo only where it is used, but the position is the number of a row."
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        n = len(buffer)
        y = x + gain * buffer[(position - delays) % n, jnp.arange(delays.size)]
        return (buffer.at[position % n].set(y), position + 1), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    state, outputs = echo_carry((buffer_ref[...], position_ref[...]), chunk, delays, gain)
    buffer_ref[...], position_ref[...] = state
    return outputs


# %% right="state-ring-buffer"
def echo_carry(state, chunk, delays, gain):
    n = state[0].shape[0]

    def step(state, x):
        buffer, position = state
        y = x + gain * jnp.take_along_axis(buffer, (position - delays)[None] % n, axis=0)[0]
        buffer = jax.lax.dynamic_update_index_in_dim(buffer, y, position, 0)
        return (buffer, jnp.where(position == n - 1, 0, position + 1)), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    (buffer, position), outputs = echo_carry((buffer_ref[...], position_ref[...]), chunk, delays, gain)
    buffer_ref[...] = buffer
    position_ref[...] = position
    return outputs


# %% right="state-ring-buffer"
def echo_carry(state, chunk, delays, gain):
    buffer_ref, position_ref = jax.new_ref(state[0]), jax.new_ref(state[1])
    outputs = echo_ref(buffer_ref, position_ref, chunk, delays, gain)
    return (buffer_ref[...], position_ref[...]), outputs


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    start, n, channels = position_ref[...], buffer_ref.shape[0], jnp.arange(chunk.shape[1])
    rows = (start + jnp.arange(chunk.shape[0], dtype=jnp.int32)) % n

    def step(_, item):
        x, row = item
        jax.ref.swap(buffer_ref, row, x + gain * buffer_ref[row - delays, channels])
        return None, buffer_ref[row]

    _, outputs = jax.lax.scan(step, None, (chunk, rows))
    position_ref[...] = (start + chunk.shape[0]) % n
    return outputs


# %% right="state-ring-buffer"
def echo_carry(state, chunk, delays, gain):
    def step(state, x):
        buffer, position = state
        y = x + gain * buffer[(position - delays) % buffer.shape[0], jnp.arange(delays.size)]
        return (buffer.at[position].set(y), (position + 1) % buffer.shape[0]), y

    return jax.lax.scan(step, state, chunk)


def echo_ref(buffer_ref, position_ref, chunk, delays, gain):
    outputs = jax.new_ref(jnp.zeros_like(chunk))

    def step(i, _):
        position = position_ref[...]
        buffer_ref[position] = (
            chunk[i] + gain * buffer_ref[(position - delays) % buffer_ref.shape[0], jnp.arange(delays.size)]
        )
        outputs[i] = buffer_ref[position]
        position_ref[...] = jnp.mod(position + 1, buffer_ref.shape[0])

    jax.lax.fori_loop(0, chunk.shape[0], step, None)
    return outputs[...]
