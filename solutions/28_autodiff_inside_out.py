# %% [markdown]
# # 28 · Exercises: autodiff inside out
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise. Only the last exercise uses several devices.
#
# A VJP object is the second result of `jax.vjp`. `jax.experimental.hijax`, which one exercise uses, is experimental and may change in any release of JAX.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, program, require

devices.start(8)  # before JAX is first used

import collections
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.experimental.hijax import VJPHiPrimitive

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def nbytes(tree):
    """The bytes of a tree of arrays or of jax.ShapeDtypeStruct, as an int."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def mean_square(x):
    """x of any shape -> ()"""
    return jnp.mean(x**2)


def dense(params, x):
    """One layer: {"w": (d, h), "b": (h,)}, x (n, d) -> (n, h)"""
    return jnp.tanh(x @ params["w"] + params["b"])


def factor(a):
    """The lower Cholesky factor c of a symmetric positive definite matrix a (n, n), with c @ c.T == a."""
    return jnp.linalg.cholesky(a)


def solve_factored(c, b):
    """The solution x (n, k) of c @ c.T @ x == b, for c (n, n) = factor(a) and b (n, k)"""
    return jax.scipy.linalg.cho_solve((c, True), b)


def iterate(step, x0):
    """x0, step(x0), step(step(x0)), ... until no entry changes by more than 1e-6, or 1000 steps. Returns the last x."""

    def one(state):
        return state[1], step(state[1]), state[2] + 1

    def not_done(state):
        return (state[2] < 1000) & (jnp.max(jnp.abs(state[1] - state[0])) > 1e-6)

    return jax.lax.while_loop(not_done, one, (x0, step(x0), 1))[1]


def cosine_map(theta, x):
    """A map with a fixed point: {"w": (d, d), "b": (d,)}, x (d,) -> (d,)"""
    return jnp.cos(theta["w"] @ x) + theta["b"]


def contraction(rng, d, size):
    """Parameters for cosine_map, from a NumPy generator. In the maximum norm, it is a contraction by `size`."""
    w = rng.uniform(0.2, 1, size=(d, d))
    w *= size / w.sum(1, keepdims=True)
    return {"w": w.astype(np.float32), "b": rng.uniform(0.8, 1.6, size=d).astype(np.float32)}


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, jax.NamedSharding(mesh, P(*entries)))


# Functions for the first exercise. Each takes params, {"w": (d, h), "b": (h,)}, and x (n, d), and returns (n, h).
affine = lambda params, x: x @ params["w"] + params["b"]
sine_layer = lambda params, x: jnp.sin(x @ params["w"] + params["b"])
recomputed = jax.checkpoint(sine_layer)
squared = lambda params, x: x @ (params["w"] * params["w"])
half = lambda params, x: (x.astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16)).astype(jnp.float32)

FUNCTIONS = {"affine": affine, "sine_layer": sine_layer, "recomputed": recomputed, "squared": squared, "half": half}


# %% [markdown] task="autodiff-residual-bytes" stars=1 minutes=8 skills="06_pytrees,memory-predict-residuals"
# ## Which residuals need extra memory?
# **Goal.** Some residuals are arguments of the function. They are stored anyway, such as the weights of a model. Other residuals are computed in the forward pass and need extra memory. Count the bytes of both, without computing anything. Two lines are missing.
#
# **Signature.** `residual_bytes(f, *args)` takes a function `f` and its arguments. Each argument is a tree of arrays or of `jax.ShapeDtypeStruct`. It returns `(kept, computed)`. `kept` is a tuple with one int for each argument, the bytes of its arrays that the VJP object contains. `computed` is an int, the bytes of all its other residuals.
#
# **Example.** For `affine` of the setup, with `w` of shape (4, 3), `b` of shape (3,) and `x` of shape (5, 4) in float32, the result is `((48, 80), 0)`. The backward pass needs `w` and `x`, but not `b`.
#
# **Judged.** The numbers for the functions at the end of the setup and for others, for several sizes and dtypes, also for arguments that are too large for any memory. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# The second result of `jax.vjp` has an attribute for residuals that are arguments, and one for all others. What are their names?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Under `jax.eval_shape`, the leaves of a VJP object are `jax.ShapeDtypeStruct`. `nbytes` of the setup also takes trees of them, and lists.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `vjp.args_res` is a list with an entry for each argument of `f`. In it, leaves that are not needed are replaced by an object without leaves, so `nbytes` of an entry counts the needed ones only. `vjp.opaque_residuals` contains the other residuals.
#
# </details>


# %% answer="autodiff-residual-bytes"
def residual_bytes(f, *args):
    """f(*args), with trees of arrays or ShapeDtypeStruct -> (kept, computed): the bytes of the residuals that are
    arguments, as a tuple with an int for each argument, and those of all other residuals, an int."""
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)  # no array is allocated
    ### BEGIN SOLUTION
    kept = tuple(nbytes(argument) for argument in vjp.args_res)
    computed = nbytes(vjp.opaque_residuals)
    ### END SOLUTION
    return kept, computed


# %% check="autodiff-residual-bytes" name="example" points=1
"""The example: a tuple with two ints, and an int."""


def probe_example(params, x):
    return residual_bytes(affine, params, x)


got = ask(probe_example, {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}, jnp.ones((5, 4)))
require(
    isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], tuple) and len(got[0]) == 2,
    f"The result is {got}; expected a tuple of two: a tuple with an int for each argument, and an int.",
)
numbers = (*got[0], got[1])
whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in numbers)
require(whole, f"The result is {got}; expected ints.")
require(got[0][0] == 48, f"For the argument `params` you return {got[0][0]} bytes; expected 48, those of `w`.")
require(got[0][1] == 80, f"For the argument `x` you return {got[0][1]} bytes; expected 80.")
require(got[1] == 0, f"For the other residuals you return {got[1]} bytes; expected 0.")

# %% hidden="autodiff-residual-bytes" name="values" points=2
"""The bytes for all functions of the setup, for several sizes, and for arguments too large for any memory."""


def probe_setup(name, params, x):
    return residual_bytes(FUNCTIONS[name], params, x)


def shapes(n, d, h):
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {"w": struct(d, h), "b": struct(h)}, struct(n, d)


def by_hand(name, n, d, h):
    w, x, product = 4 * d * h, 4 * n * d, 4 * n * h
    return {
        "affine": ((w, x), 0),
        "sine_layer": ((w, x), product),
        "recomputed": ((w + 4 * h, x), 0),
        "squared": ((w, x), w),
        "half": ((0, 0), w // 2 + x // 2),
    }[name]


rng = inputs.rng()
small = [int(size) for size in rng.choice(np.arange(3, 40), size=3, replace=False)]
for name in ("affine", "sine_layer", "recomputed", "squared", "half"):
    for sizes, words in ((small, ""), ([2**20, 2**21, 2**19], " with very large arguments")):
        with case(f"for `{name}`{words}"):
            params, x = shapes(*sizes)
            got = ask(probe_setup, name, params, x)
            pair = isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], tuple) and len(got[0]) == 2
            require(pair, "the result is not a pair of a tuple with two numbers and a number.")
            (params_kept, x_kept), computed = by_hand(name, *sizes)
            require(got[0][0] == params_kept, "the number for the argument `params` is wrong.", kind="values")
            require(got[0][1] == x_kept, "the number for the argument `x` is wrong.", kind="values")
            require(got[1] == computed, "the number for the other residuals is wrong.", kind="values")

# %% hidden="autodiff-residual-bytes" name="other" points=1
"""The bytes for functions of one and of three arguments, with loops and other dtypes."""


def probe_one(x):
    return residual_bytes(lambda x: jnp.sum(jnp.sin(x) * jnp.arange(x.shape[0], dtype=x.dtype)), x)


def probe_three(layers, x, scale):
    def network(layers, x, scale):
        return scale * jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, layers)[0]

    return residual_bytes(network, layers, x, scale)


n = int(inputs.rng().integers(3, 30))
# The cosine, and the range. The range is not an argument, and the rule of a product stores it.
got, wanted = ask(probe_one, jax.ShapeDtypeStruct((n,), jnp.bfloat16)), ((0,), 4 * n)
require(isinstance(got, tuple) and got == wanted, "For a function of one bfloat16 argument, the result is wrong.")
depth, d = 5, int(inputs.rng().integers(3, 30))
struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
got = ask(probe_three, struct(depth, d, d), struct(n, d), struct())
# Each iteration stores its input and a cosine. The factor needs the result, and the result needs the factor.
wanted = ((4 * depth * d * d, 0, 4), 4 * (2 * depth * n * d + n * d))
require(isinstance(got, tuple) and got == wanted, "For a function of three arguments with a loop, the result is wrong.")

# %% [markdown] why="autodiff-residual-bytes"
# JAX compares the identity of each residual with that of the arguments. The weights of `affine` are kept as they are, so they need no extra memory. `half` casts them first, and its residuals are new arrays in bfloat16, in addition to the float32 weights. If `jax.jit` compiles the forward pass, the kept arguments are copied. **Next:** A step accumulates four micro-batches and delays all backward passes. Which residuals exist once, and which four times?


# %% wrong="autodiff-residual-bytes" because="Counts all bytes of each argument, also of arrays that the backward pass does not need."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    return tuple(nbytes(argument) for argument in args), nbytes(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Adds up all leaves of the VJP object, so the arguments are counted again among the other residuals."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    return tuple(nbytes(argument) for argument in vjp.args_res), nbytes(vjp)


# %% wrong="autodiff-residual-bytes" because="Subtracts the bytes of all arguments from those of all residuals, but not every argument is a residual."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    return tuple(nbytes(argument) for argument in vjp.args_res), nbytes(vjp) - nbytes(args)


# %% wrong="autodiff-residual-bytes" because="Flattens the arguments, so the result has a number for each array that is needed instead of one for each argument."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    return tuple(nbytes(leaf) for leaf in jax.tree.leaves(vjp.args_res)), nbytes(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Assumes four bytes for each entry, but the dtype of a residual can be another one."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    count = lambda tree: 4 * sum(leaf.size for leaf in jax.tree.leaves(tree))
    return tuple(count(argument) for argument in vjp.args_res), count(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Counts entries instead of bytes."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    return tuple(count(argument) for argument in vjp.args_res), count(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Runs the forward pass on zeros, which fails for arguments that are too large for the memory."
def residual_bytes(f, *args):
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), args)
    _, vjp = jax.vjp(f, *zeros)
    return tuple(nbytes(argument) for argument in vjp.args_res), nbytes(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Calls `jax.vjp` with `jax.ShapeDtypeStruct`, which is not an array. `jax.eval_shape` has to call it."
def residual_bytes(f, *args):
    _, vjp = jax.vjp(f, *args)
    return tuple(nbytes(argument) for argument in vjp.args_res), nbytes(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Exchanges the two kinds of residuals."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    return tuple(nbytes(argument) for argument in vjp.opaque_residuals), nbytes(vjp.args_res)


# %% wrong="autodiff-residual-bytes" because="Identifies arguments by their shape and dtype, but a computed residual can have those of an argument."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    kind = lambda leaf: (leaf.shape, leaf.dtype)
    leaves = jax.tree.leaves(vjp)
    of_arguments = {kind(leaf) for leaf in jax.tree.leaves(args)}
    stored = {kind(leaf) for leaf in leaves}
    kept = tuple(sum(nbytes(leaf) for leaf in jax.tree.leaves(arg) if kind(leaf) in stored) for arg in args)
    return kept, sum(nbytes(leaf) for leaf in leaves if kind(leaf) not in of_arguments)


# %% wrong="autodiff-residual-bytes" because="Assumes at most two arguments."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    params, x = vjp.args_res[:2] if len(args) > 1 else (vjp.args_res[0], None)
    kept = (nbytes(params), nbytes(x))
    return kept, nbytes(vjp.opaque_residuals)


# %% wrong="autodiff-residual-bytes" because="Counts entries instead of bytes."
def residual_bytes(f, *args):
    _, vjp = jax.eval_shape(functools.partial(jax.vjp, f), *args)
    kept = tuple(nbytes(one) for one in vjp.args_res)
    computed = sum(leaf.size for leaf in jax.tree.leaves(vjp.opaque_residuals))
    return kept, computed


# %% right="autodiff-residual-bytes"
def residual_bytes(f, *args):
    vjp = jax.eval_shape(lambda *args: jax.vjp(f, *args)[1], *args)
    size = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    return tuple(map(size, vjp.args_res)), size(vjp) - size(vjp.args_res)


# %% right="autodiff-residual-bytes"
def residual_bytes(f, *args):
    forward, _ = jax.fwd_and_bwd(f, argnums=tuple(range(len(args))))
    vjp, kept = forward.trace(*args).out_info[1], []
    for argument in vjp.args_res:
        kept.append(sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(argument)))
    return tuple(kept), nbytes(list(vjp.opaque_residuals))


# %% [markdown] task="autodiff-two-programs" stars=2 minutes=25 skills="03_jit,06_pytrees,autodiff-residual-bytes"
# ## One stage of a pipeline, in 1F1B order
# **Goal.** A stage of a pipeline runs the forward passes and the backward passes of its micro-batches in an order of its own. Compile both passes once, and run them in 1F1B order.
#
# **Signature.** `stage(params, x)` returns `y`. `params` is a tree of float32 arrays. `two_programs(stage)` returns two compiled functions. `forward(params, x)` returns `(y, vjp)` with a VJP object, and `backward(vjp, g)` returns the cotangents of `params` and of `x`, for the cotangent `g` of `y`.
#
# `run_stage(stage, params, xs, ahead, send, receive)` runs the micro-batches in the list `xs`, which have equal shapes. After forward pass i, it calls `send(i, y)`. Before backward pass i, it calls `receive(i)`, which returns the cotangent of this `y`. It starts with `ahead` forward passes (an int of at least 1), or with all of them if there are fewer. Then backward and forward passes alternate, beginning with the backward pass of micro-batch 0. The backward passes that are left follow in order. It returns the **sum** of the cotangents of `params`, and a list with the cotangent of each `x`.
#
# **Example.** With four micro-batches and `ahead=2`, the passes are F0 F1 B0 F2 B1 F3 B2 B3.
#
# **Judged.** The values, for trees of parameters. In `run_stage`, JAX traces `stage` only once. If `stage` contains a `jax.custom_vjp` function, its backward rule is also traced only once. The number of compilations does not depend on the number of micro-batches. The calls of `send` and `receive` have the right order. At each of these calls, residuals of at most `ahead` micro-batches are stored. (The order, the residuals and what is compiled are observed.) **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# What has to be compiled so that the VJP objects of all micro-batches have the same tree structure? What happens if `jax.vjp` runs outside of `jit`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `forward` is the compiled `jax.vjp` of `stage`, and `backward` is a compiled function that calls its first argument. Call `two_programs` once, before the loop. A queue contains the VJP objects that wait for their backward pass, and the oldest one is used first.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Loop over the micro-batches. If the queue already contains `ahead` VJP objects, first run a backward pass with `queue.popleft()`. Then run the forward pass, append its VJP object, and call `send`. After the loop, run backward passes until the queue is empty. Add the cotangents of `params` with `jax.tree.map(jnp.add, ...)`.
#
# </details>


# %% answer="autodiff-two-programs" timeout=20
def two_programs(stage):
    """stage(params, x) -> y. Returns compiled forward(params, x) -> (y, vjp) and backward(vjp, g) -> cotangents."""
    ### BEGIN SOLUTION
    forward = jax.jit(functools.partial(jax.vjp, stage))
    backward = jax.jit(lambda vjp, g: vjp(g))
    return forward, backward
    ### END SOLUTION


def run_stage(stage, params, xs, ahead, send, receive):
    """Runs the micro-batches xs in 1F1B order. Returns (sum of the cotangents of params, [cotangents of each x])."""
    ### BEGIN SOLUTION
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = backward(stored.popleft(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results
    ### END SOLUTION


# %% check="autodiff-two-programs" name="example" points=1
"""The order of the example, and the sum of the gradients of a stage that multiplies."""


def probe_example():
    log, results = [], {}

    def send(i, y):
        log.append(f"F{i}")
        results[i] = y

    def receive(i):
        log.append(f"B{i}")
        return 10.0 * results[i]

    xs = [jnp.float32(x) for x in (1, 2, 3, 4)]
    total, gradients = run_stage(lambda w, x: w * x, jnp.float32(3), xs, 2, send, receive)
    return " ".join(log), total, list(gradients)


order, total, gradients = ask(probe_example)
require(order == "F0 F1 B0 F2 B1 F3 B2 B3", f"The passes are {order}; expected F0 F1 B0 F2 B1 F3 B2 B3.")
compare(total, np.float32(10 * 3 * (1 + 4 + 9 + 16)), label="the sum of the cotangents of the parameter")
compare(gradients, [np.float32(90 * x) for x in (1, 2, 3, 4)], label="the list of the cotangents of each x")

# %% hidden="autodiff-two-programs" name="values" points=2
"""The results of both programs and of run_stage, for a layer and other numbers of micro-batches."""


def probe_programs(params, x, g):
    forward, backward = two_programs(dense)
    y, vjp = forward(params, x)
    return y, backward(vjp, g)


def probe_stage(params, xs, ahead):
    results = {}

    def receive(i):
        return (i + 2) * jnp.cos(results[i])

    total, gradients = run_stage(dense, params, list(xs), ahead, results.__setitem__, receive)
    return total, list(gradients)


def by_hand(params, x, cotangent):
    y = np.tanh(x @ params["w"] + params["b"])
    back = cotangent(y) * (1 - y**2)
    wide = y, {"w": x.T @ back, "b": back.sum(0)}, back @ params["w"].T
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), wide)


rng = inputs.rng()
for count, ahead in ((5, 3), (2, 4)):
    n, d, h = (int(size) for size in rng.choice(np.arange(2, 7), size=3, replace=False))
    params = {"w": rng.normal(size=(d, h)).astype(np.float32), "b": rng.normal(size=h).astype(np.float32)}
    xs, g = rng.normal(size=(count, n, d)).astype(np.float32), rng.normal(size=(n, h)).astype(np.float32)
    y, by_params, by_x = by_hand(params, xs[0], lambda y: g)
    if count > ahead:
        result = program(probe_programs, params, xs[0], g).run(params, xs[0], g)
        compare(result, (y, (by_params, by_x)), rtol=1e-3, atol=1e-4, label="the results of both programs")
    each = [by_hand(params, x, lambda y, i=i: (i + 2) * np.cos(y)) for i, x in enumerate(xs)]
    wanted = jax.tree.map(lambda *leaves: np.sum(leaves, 0), *(one[1] for one in each)), [one[2] for one in each]
    with case(f"with {count} micro-batches, and {ahead} forward passes ahead"):
        result = program(probe_stage, params, xs, ahead).run(params, xs, ahead)
        compare(result[0], wanted[0], rtol=1e-3, atol=1e-4, label="the sum of the cotangents of the parameters")
        compare(result[1], wanted[1], rtol=1e-3, atol=1e-4, label="the list of the cotangents of each x")

# %% hidden="autodiff-two-programs" name="schedule" points=2 observed=true
"""The passes have 1F1B order, both programs are compiled once, and few residuals are stored at a time."""


def probe_schedule(count, ahead):
    traced, log, stored, results, compiled = {"forward": 0, "backward": 0}, [], [], {}, []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
    )
    residual = (3, 41)  # the only array of this shape, one for each micro-batch

    @jax.custom_vjp
    def activation(h):
        return jnp.sin(h)

    def rule(h, g):
        traced["backward"] += 1
        return (g * jnp.cos(h),)

    activation.defvjp(lambda h: (jnp.sin(h), h), rule)

    def stage(params, x):
        traced["forward"] += 1
        return activation(x @ params["w"]).sum(axis=1)

    def note(kind, i):
        log.append((kind, i))
        stored.append(sum(array.shape == residual for array in jax.live_arrays()))

    def send(i, y):
        results[i] = y
        note("F", i)

    def receive(i):
        note("B", i)
        return results.pop(i)

    params = {"w": jnp.ones((7, 41)) / 7}
    xs = [jnp.full((3, 7), float(i)) for i in range(3 * count)]
    run_stage(stage, params, xs[:count], ahead, send, receive)
    found = dict(traced), list(log), max(stored)
    needed = []
    for more in (count, 3 * count):  # with another function for each, which has to be compiled again
        compiled.clear()
        run_stage(lambda params, x: stage(params, x), params, xs[:more], ahead, send, receive)
        needed.append(len(compiled))
    return *found, needed


def order_of(count, ahead):
    first = min(count, ahead)
    order = [("F", i) for i in range(first)]
    for i in range(count):
        order += [("B", i)] + [("F", first + i)] * (first + i < count)
    return order


for count, ahead in ((6, 3), (4, 1), (2, 4)):
    with case(f"with {count} micro-batches, and {ahead} forward passes ahead"):
        traced, log, stored, needed = ask(probe_schedule, count, ahead)
        require(log == order_of(count, ahead), "the order of the passes is not 1F1B.")
        require(traced["forward"] == 1, "the stage is not traced exactly once.")
        require(traced["backward"] == 1, "the backward rule of the stage is not traced exactly once.")
        require(needed[0] == needed[1], "more micro-batches need more compilations.")
        require(stored <= ahead + 1, "residuals are still stored after the backward passes that used them.")
        require(stored <= ahead, "residuals of one micro-batch too many are stored, perhaps because of a variable.")

# %% [markdown] why="autodiff-two-programs"
# The compiled forward pass returns VJP objects with one tree structure, which contains the backward program. So the compiled backward pass finds it in its cache. A VJP object that is no longer referenced frees its residuals. `jax.fwd_and_bwd`, with both arguments in `argnums`, returns the same two programs. **Next:** On several devices, which calls of a stage run at the same time as those of other stages, and what would `send` do?


# %% wrong="autodiff-two-programs" because="Compiles the backward pass alone. Each call of `jax.vjp` outside of `jit` traces the stage and creates a new tree structure, so the backward pass is compiled again for each micro-batch."
def two_programs(stage):
    return functools.partial(jax.vjp, stage), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = backward(stored.popleft(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Compiles the backward pass alone. Each call of `jax.vjp` outside of `jit` traces the stage and creates a new tree structure, so the backward pass is compiled again for each micro-batch."
def two_programs(stage):
    stage = jax.jit(stage)
    return lambda params, x: jax.vjp(stage, params, x), lambda vjp, g: jax.jit(vjp)(g)


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), [], []
    total = jax.tree.map(jnp.zeros_like, params)
    for i in range(len(xs) + ahead):
        if i >= ahead and stored:
            by_params, by_x = backward(stored.pop(0), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if i < len(xs):
            y, vjp = forward(params, xs[i])
            stored.append(vjp)
            send(i, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Calls `two_programs` for each micro-batch. Each call of `jax.jit` with a new function compiles again."
def two_programs(stage):
    return jax.jit(lambda params, x: jax.vjp(stage, params, x)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    stored, results = collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = two_programs(stage)[1](stored.popleft(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = two_programs(stage)[0](params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Runs all forward passes before the first backward pass, as GPipe does, so residuals of all micro-batches are stored."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), [], []
    for i, x in enumerate(xs):
        y, vjp = forward(params, x)
        stored.append(vjp)
        send(i, y)
    total = jax.tree.map(jnp.zeros_like, params)
    for i, vjp in enumerate(stored):
        by_params, by_x = backward(vjp, receive(i))
        total = jax.tree.map(jnp.add, total, by_params)
        results.append(by_x)
    return total, results


# %% wrong="autodiff-two-programs" because="Uses the newest VJP object first, but the cotangents arrive in the order of the micro-batches."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), [], []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = backward(stored.pop(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Keeps all VJP objects in a list, so no residuals are freed until the end."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), vjps, results = two_programs(stage), [], []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and len(results) < len(vjps):
            i = len(results)
            by_params, by_x = backward(vjps[i], receive(i))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            vjps.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Runs the next forward pass before the backward pass, so one more VJP object is stored than allowed."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
        if step >= ahead and stored:
            by_params, by_x = backward(stored.popleft(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
    return total, results


# %% wrong="autodiff-two-programs" because="Returns the mean of the cotangents of the parameters. The cotangents of all micro-batches add up."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = backward(stored.popleft(), receive(len(results)))
            total = jax.tree.map(lambda t, g: t + g / len(xs), total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Returns the cotangents of the last micro-batch instead of the sum."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            total, by_x = backward(stored.popleft(), receive(len(results)))
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Stores the arguments instead of the VJP object and runs the forward pass again for each backward pass."
def two_programs(stage):
    forward = jax.jit(lambda params, x: (stage(params, x), (params, x)))
    return forward, jax.jit(lambda stored, g: jax.vjp(stage, *stored)[1](g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = backward(stored.popleft(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, saved = forward(params, xs[step])
            stored.append(saved)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Calls the VJP object with the cotangent of each result as a separate argument, or unpacks one result too many. It takes one cotangent and returns one for each argument."
def two_programs(stage):
    forward = jax.jit(functools.partial(jax.vjp, stage))
    return forward, jax.jit(lambda vjp, g: vjp(*g))


def run_stage(stage, params, xs, ahead, send, receive):
    (forward, backward), stored, results = two_programs(stage), collections.deque(), []
    total = jax.tree.map(jnp.zeros_like, params)
    for step in range(len(xs) + ahead):
        if step >= ahead and stored:
            by_params, by_x = backward(stored.popleft(), receive(len(results)))
            total = jax.tree.map(jnp.add, total, by_params)
            results.append(by_x)
        if step < len(xs):
            y, vjp = forward(params, xs[step])
            stored.append(vjp)
            send(step, y)
    return total, results


# %% wrong="autodiff-two-programs" because="Compiles the backward pass alone. Each call of `jax.vjp` outside of `jit` traces the stage and creates a new tree structure, so the backward pass is compiled again for each micro-batch."
def two_programs(stage):
    return functools.partial(jax.vjp, stage), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    forward, backward = two_programs(stage)
    queue, total, by_x = collections.deque(), jax.tree.map(jnp.zeros_like, params), []

    def one_backward():
        nonlocal total
        i = len(by_x)
        by_params, gradient = backward(queue.popleft(), receive(i))
        total = jax.tree.map(jnp.add, total, by_params)
        by_x.append(gradient)

    for i, x in enumerate(xs):
        if len(queue) == ahead:
            one_backward()
        y, vjp = forward(params, x)
        queue.append(vjp)
        del vjp
        send(i, y)
    while queue:
        one_backward()
    return total, by_x


# %% wrong="autodiff-two-programs" because="Assumes that there are at least `ahead` micro-batches."
def two_programs(stage):
    return jax.fwd_and_bwd(stage, argnums=(0, 1))


def run_stage(stage, params, xs, ahead, send, receive):
    forward, backward = two_programs(stage)
    waiting, by_x, total = {}, [], jax.tree.map(jnp.zeros_like, params)
    for i in range(ahead):
        y, waiting[i] = forward(params, xs[i])
        send(i, y)
    for i in range(len(xs)):
        by_params, gradient = backward(waiting.pop(i), receive(i))
        total = jax.tree.map(jnp.add, total, by_params)
        by_x.append(gradient)
        if i + ahead < len(xs):
            y, waiting[i + ahead] = forward(params, xs[i + ahead])
            send(i + ahead, y)
    return total, by_x


# %% wrong="autodiff-two-programs" because="A variable still refers to the VJP object of the last backward pass while the next forward pass runs, so its residuals are not freed."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    forward, backward = two_programs(stage)
    total, by_x, queue, n = None, [], collections.deque(), len(xs)
    ahead = min(ahead, n)
    for i in range(n + ahead):
        if i >= ahead:
            oldest = queue.popleft()
            by_params, g = backward(oldest, receive(i - ahead))
            total = by_params if total is None else jax.tree.map(jnp.add, total, by_params)
            by_x.append(g)
        if i < n:
            y, vjp = forward(params, xs[i])
            queue.append(vjp)
            send(i, y)
    return total, by_x


# %% wrong="autodiff-two-programs" because="Keeps all VJP objects in a list, so no residuals are freed until the end."
def two_programs(stage):
    return jax.jit(functools.partial(jax.vjp, stage)), jax.jit(lambda vjp, g: vjp(g))


def run_stage(stage, params, xs, ahead, send, receive):
    forward, backward = two_programs(stage)
    total, by_x, queue = jax.tree.map(jnp.zeros_like, params), [], collections.deque()

    def back():
        nonlocal total
        vjp = queue.popleft()
        by_params, g = backward(vjp, receive(len(by_x)))
        total = jax.tree.map(jnp.add, total, by_params)
        by_x.append(g)

    kept = []
    for i, x in enumerate(xs):
        if len(queue) == ahead:
            back()
        y, vjp = forward(params, x)
        queue.append(vjp)
        kept.append(vjp)
        del vjp
        send(i, y)
    while queue:
        back()

    return total, by_x


# %% right="autodiff-two-programs"
def two_programs(stage):
    return jax.fwd_and_bwd(stage, argnums=(0, 1))


def run_stage(stage, params, xs, ahead, send, receive):
    forward, backward = two_programs(stage)
    queue, totals, by_xs = [], [], []

    def one_backward():
        by_params, by_x = backward(queue.pop(0), receive(len(by_xs)))
        totals[:] = [jax.tree.map(jnp.add, totals[0], by_params)] if totals else [by_params]
        by_xs.append(by_x)

    for i, x in enumerate(xs):
        if len(queue) == ahead:
            one_backward()
        y, vjp = forward(params, x)
        queue.append(vjp)
        send(i, y)
    while queue:
        one_backward()
    return totals[0], by_xs


# %% right="autodiff-two-programs"
def two_programs(stage):
    @jax.jit
    def forward(params, x):
        return jax.vjp(lambda *args: stage(*args), params, x)

    @jax.jit
    def backward(vjp, g):
        by_params, by_x = vjp(g)
        return by_params, by_x

    return forward, backward


def run_stage(stage, params, xs, ahead, send, receive):
    forward, backward = two_programs(stage)
    count, waiting, by_x, total = len(xs), {}, [], None
    order = [("F", i) for i in range(min(ahead, count))]
    for i in range(count):
        order += [("B", i)] + [("F", i + ahead)] * (i + ahead < count)
    for kind, i in order:
        if kind == "F":
            y, waiting[i] = forward(params, xs[i])
            send(i, y)
        else:
            g = receive(i)
            one, back = backward(waiting.pop(i), g)
            total = one if total is None else jax.tree.map(lambda a, b: a + b, total, one)
            by_x.append(back)
    return total, by_x


# %% [markdown] task="autodiff-accumulate" stars=2 minutes=15 skills="08_control_flow,12_state,state-accumulate,autodiff-residual-bytes"
# ## Gradients of micro-batches, added in place
# **Goal.** Add the gradients of several micro-batches to Refs that the caller owns. No micro-batch should need memory for a gradient of all parameters, and the residuals of only one micro-batch should be stored at a time.
#
# **Signature.** `accumulate_in_place(loss, params, refs, batches)`. `params` is a tree of float32 arrays, and `refs` is a tree of the same structure with a Ref of the same shape for each array. `batches` is an array with one micro-batch for each index of its first axis, and `loss(params, batch)` is a scalar. The function adds the gradient of `loss` with respect to `params`, for every micro-batch, to the Refs. It returns the losses, an array with one number for each micro-batch.
#
# **Example.** For `loss = lambda w, x: w * x` with `w = 3`, a Ref that contains 100 and `batches = [1, 2]`, the losses are `[3, 6]`, and the Ref contains 103 afterwards.
#
# **Judged.** The values. The compiled program is examined for a network of 12 equal layers, stacked and run by `scan`, with three and six micro-batches. Its size does not depend on their number. It updates the Refs in the memory of their old values. Its temporary memory is less than half of the bytes of the parameters. One `vmap` over all six micro-batches exceeds this limit, because it stores all their residuals. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.grad` returns a new array for each parameter, which is then added. Which method of a VJP object adds to Refs instead?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `with_refs` takes one tree of Refs for each argument of the function that was differentiated, so differentiate a function of `params` only. The loop is a `scan` that closes over the Refs.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In the body, call `jax.vjp` for a function of `params` alone that closes over the micro-batch. Then `vjp.with_refs(refs)` is a function, which you call with the cotangent of the loss, `jnp.ones_like(value)`. Its result is only a placeholder.
#
# </details>


# %% answer="autodiff-accumulate" timeout=20
def accumulate_in_place(loss, params, refs, batches):
    """Adds the gradients of loss(params, batch) for all micro-batches to the Refs. Returns the losses."""
    ### BEGIN SOLUTION

    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)(jnp.ones_like(value))
        return None, value

    return jax.lax.scan(step, None, batches)[1]
    ### END SOLUTION


# %% check="autodiff-accumulate" name="example" points=1
"""The example: two micro-batches, added to 100."""


def probe_example(w, total, batches):
    ref = jax.new_ref(total)
    losses = accumulate_in_place(lambda w, x: w * x, w, ref, batches)
    return losses, jax.freeze(ref)


numbers = np.float32(3), np.float32(100), np.array([1, 2], np.float32)
losses, total = program(probe_example, *numbers).run(*numbers)
compare(losses, np.array([3, 6], np.float32), label="the losses")
compare(total, np.float32(103), label="the Ref afterwards")

# %% hidden="autodiff-accumulate" name="values" points=1
"""The losses and the Refs for a tree of parameters, also after a second call."""


def probe_values(params, totals, batches):
    refs = jax.tree.map(jax.new_ref, totals)
    loss = lambda params, batch: jnp.sum(dense(params, batch) ** 2)
    first = accumulate_in_place(loss, params, refs, batches)
    return first, accumulate_in_place(loss, params, refs, batches), jax.tree.map(jax.freeze, refs)


rng = inputs.rng()
for count in (1, 4):
    n, d, h = (int(size) for size in rng.choice(np.arange(2, 7), size=3, replace=False))
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    params, totals = {"w": draw(d, h), "b": draw(h)}, {"w": draw(d, h), "b": draw(h)}
    batches = draw(count, n, d)
    y = np.tanh(batches.astype(np.float64) @ params["w"] + params["b"])
    back = 2 * y * (1 - y**2)
    gradients = {"w": np.einsum("mnd,mnh->dh", batches, back), "b": back.sum((0, 1))}
    wanted = {name: (totals[name] + 2 * gradients[name]).astype(np.float32) for name in totals}
    losses = (y**2).sum((1, 2)).astype(np.float32)
    first, second, after = program(probe_values, params, totals, batches).run(params, totals, batches)
    with case(f"with {count} micro-batch{'es' if count > 1 else ''}"):
        compare(first, losses, rtol=1e-3, atol=1e-3, label="the losses")
        compare(second, losses, rtol=1e-3, atol=1e-3, label="the losses of a second call")
        found, added = after["w"] - totals["w"], 2 * gradients["w"]
        require(np.abs(found).max() > 1e-6, "the Refs are unchanged.")
        lost = np.allclose(after["w"], added, atol=1e-3) or np.allclose(after["w"], added / 2, atol=1e-3)
        require(not lost, "the Refs lose what they contained before.")
        divided = count > 1 and np.allclose(count * found, added, atol=1e-3)
        require(not divided, "the gradients are divided by the number of micro-batches.")
        require(not np.allclose(found, 2 * added, atol=1e-3), "the gradients are added twice.")
        compare(after, wanted, rtol=1e-3, atol=1e-3, label="the Refs after two calls")

# %% hidden="autodiff-accumulate" name="memory" points=3
"""The program updates the Refs in place, needs little temporary memory, and has one loop over the micro-batches."""


def probe_memory(params, totals, batches):
    def loss(params, x):
        return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["layers"])[0] @ params["out"])

    def run(params, totals, batches):
        refs = jax.tree.map(jax.new_ref, totals)
        losses = accumulate_in_place(loss, params, refs, batches)
        return losses, jax.tree.map(jax.freeze, refs)

    return jax.jit(run, donate_argnums=1)(params, totals, batches)


rng = inputs.rng()
depth, d = 12, 64
params = {"layers": rng.normal(size=(depth, d, d)) / 8, "out": rng.normal(size=d)}
params = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
totals = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params)
batches = rng.normal(size=(6, 2, d)).astype(np.float32)
few, many = (program(probe_memory, params, totals, batches[:count]) for count in (3, 6))
wanted = {name: leaf.astype(np.float64) for name, leaf in totals.items()}
for i, x in enumerate(batches.astype(np.float64), 1):
    xs = [x]
    for w in params["layers"]:
        xs.append(np.tanh(xs[-1] @ w))
    wanted["out"] += xs[-1].mean(0)
    back = np.tile(params["out"] / len(x), (len(x), 1))
    for j in reversed(range(depth)):
        back = back * (1 - xs[j + 1] ** 2)
        wanted["layers"][j] += xs[j].T @ back
        back = back @ params["layers"][j].T
    if i in (3, 6):
        losses, after = (few if i == 3 else many).run(params, totals, batches[:i])
        compare(losses[-1], np.float32(np.mean(xs[-1] @ params["out"])), rtol=1e-3, atol=1e-3, label="the last loss")
        expected = {name: leaf.astype(np.float32) for name, leaf in wanted.items()}
        compare(after, expected, rtol=1e-3, atol=1e-3, label="the Refs")
size = sum(leaf.nbytes for leaf in params.values())
require(few.operations == many.operations, "The size of the program grows with the number of micro-batches.")
require(many.alias_bytes == size, "The program does not update the Refs in the memory of their old values.")
require(
    many.temp_bytes < size / 2,
    "The program needs temporary memory for at least half of the parameters, such as for a separate gradient or for the residuals of all micro-batches.",
)

# %% [markdown] why="autodiff-accumulate"
# `with_refs` passes the Ref on to the rules of the backward pass. The backward loop over the layers then adds the gradient of each layer to its slice of the Ref. A gradient that is returned is a new array of the size of all parameters, even if it is added to a Ref afterwards. **Next:** What changes if one matrix is used in two places of the network?


# %% wrong="autodiff-accumulate" because="Stores the gradient in a buffer of its own before it is added to the Refs, which takes as much memory as the parameters."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        jax.tree.map(lambda ref, leaf: jax.ref.addupdate(ref, ..., leaf), refs, gradient)
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Stores the gradient in a buffer of its own before it is added to the Refs, which takes as much memory as the parameters."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        (gradient,) = vjp(jnp.ones_like(value))
        for ref, leaf in zip(jax.tree.leaves(refs), jax.tree.leaves(gradient), strict=True):
            ref[...] += leaf
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Stores the gradient in a buffer of its own before it is added to the Refs, which takes as much memory as the parameters."
def accumulate_in_place(loss, params, refs, batches):
    def step(total, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(jnp.add, total, gradient), value

    total, losses = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), batches)
    jax.tree.map(lambda ref, leaf: jax.ref.addupdate(ref, ..., leaf), refs, total)
    return losses


# %% wrong="autodiff-accumulate" because="Differentiates the sum of all losses at once. The residuals and the gradient are those of all micro-batches together."
def accumulate_in_place(loss, params, refs, batches):
    losses, vjp = jax.vjp(lambda params: jax.vmap(loss, (None, 0))(params, batches), params)
    (gradient,) = vjp(jnp.ones_like(losses))
    jax.tree.map(lambda ref, leaf: jax.ref.addupdate(ref, ..., leaf), refs, gradient)
    return losses


# %% wrong="autodiff-accumulate" because="A Python loop over the micro-batches is written out by tracing, so the program grows with their number."
def accumulate_in_place(loss, params, refs, batches):
    losses = []
    for batch in batches:
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)(jnp.ones_like(value))
        losses.append(value)
    return jnp.stack(losses)


# %% wrong="autodiff-accumulate" because="Passes the loss itself as its cotangent, so each gradient is multiplied by its loss. The cotangent of the loss is 1."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)(value)
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Divides by the number of micro-batches. The gradients should be added, not averaged."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)(jnp.ones_like(value) / len(batches))
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Sets the Refs to zero first, but they contain what was added before."
def accumulate_in_place(loss, params, refs, batches):
    for ref in jax.tree.leaves(refs):
        ref[...] = jnp.zeros_like(ref[...])

    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)(jnp.ones_like(value))
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Writes the gradient to the Refs instead of adding it, so only the last micro-batch is left."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        for ref, leaf in zip(jax.tree.leaves(refs), jax.tree.leaves(gradient), strict=True):
            ref[...] = leaf
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="`with_refs` only returns a function. Without a call of it, nothing is added."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Passes no entry for the second argument. `with_refs` takes one tree for each argument of the function that was differentiated."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(loss, params, batch)
        vjp.with_refs(refs)(jnp.ones_like(value))
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Adds each gradient twice, once by `with_refs` and once by hand. The placeholder that `with_refs` returns is not needed."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(refs)(jnp.ones_like(value))
        jax.tree.map(lambda ref, leaf: jax.ref.addupdate(ref, ..., leaf), refs, vjp(jnp.ones_like(value))[0])
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Stores the gradient in a buffer of its own before it is added to the Refs, which takes as much memory as the parameters."
def accumulate_in_place(loss, params, refs, batches):
    sums = jax.tree.map(lambda leaf: jax.new_ref(jnp.zeros_like(leaf)), params)

    def body(carry, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        vjp.with_refs(sums)(jnp.ones_like(value))
        return carry, value

    losses = jax.lax.scan(body, (), batches)[1]
    for ref, one in zip(jax.tree.leaves(refs), jax.tree.leaves(sums), strict=True):
        ref[...] += one[...]
    return losses


# %% wrong="autodiff-accumulate" because="Returns the mean of the losses instead of one loss for each micro-batch."
def accumulate_in_place(loss, params, refs, batches):
    def one(_, batch):
        value, vjp = jax.vjp(lambda p: loss(p, batch), params)
        vjp.with_refs(refs)(jnp.ones_like(value))
        return None, value

    return jax.lax.scan(one, None, batches)[1].mean()


# %% wrong="autodiff-accumulate" because="Differentiates the sum of all losses at once. The residuals and the gradient are those of all micro-batches together."
def accumulate_in_place(loss, params, refs, batches):
    def total(p):
        losses = jax.lax.scan(lambda _, b: (None, loss(p, b)), None, batches)[1]
        return losses.sum(), losses

    value, vjp, losses = jax.vjp(total, params, has_aux=True)
    vjp.with_refs(refs)(jnp.ones_like(value))
    return losses


# %% wrong="autodiff-accumulate" because="Stores the gradient in a buffer of its own before it is added to the Refs, which takes as much memory as the parameters."
def accumulate_in_place(loss, params, refs, batches):
    def one(_, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        jax.tree.map(lambda ref, g: jax.ref.addupdate(ref, ..., g), refs, grads)
        return None, value

    return jax.lax.scan(one, None, batches)[1]


# %% right="autodiff-accumulate"
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(loss, params, batch)
        vjp.with_refs(refs, jax.ad.DontWant())(jnp.ones_like(value))
        return _, value

    return jax.lax.scan(step, 0, batches)[1]


# %% right="autodiff-accumulate"
def accumulate_in_place(loss, params, refs, batches):
    losses = jax.new_ref(jnp.zeros(batches.shape[0]))

    def step(i, _):
        value, vjp = jax.vjp(functools.partial(loss), params, batches[i])
        vjp.with_refs(refs, jax.ad.GradValue())(jnp.float32(1))
        losses[i] = value

    jax.lax.fori_loop(0, len(batches), lambda i, _: step(i, _), None)
    return losses[...]


# %% [markdown] task="autodiff-backward-log" stars=2 minutes=20 skills="08_control_flow,12_state,autodiff-accumulate"
# ## How large are the cotangents?
# **Goal.** In a deep network, cotangents often shrink or grow from layer to layer. Log their size in the same backward pass that computes the gradients.
#
# **Signature.** `gradients_and_norms(block, layers, x)`. `layers` is a tree of float32 arrays, whose first axis is that of the L layers. `block(layer, x)` maps an `x` of shape `(n, d)` to the same shape. The network applies the layers in order. Its loss is `mean_square` (setup) of the last result. The function returns `(gradients, norms)`, the gradients of the loss with respect to `layers`, and an array of shape `(L,)`. `norms[i]` is the Euclidean norm (the root of the sum of all squares) of the cotangent of the **result** of layer i.
#
# **Example.** For `block = lambda layer, x: layer * x` with `layers = [2, 3]` and `x = [[1]]`, the result of layer 0 is 2 and that of layer 1 is 6. The loss is 36. The cotangent of 6 is 12, and that of 2 is 36, so the norms are `[36, 12]`. The gradients are `[36, 24]`.
#
# **Judged.** The values, for any block. The program has two loops, one forward and one backward over the layers, and its size does not depend on L. The size of arrays is examined for the block `layer + 0.9 * jnp.roll(x, 1, axis=1)`, with a number for each layer. Its backward pass needs no residuals, so an array of L · n · d entries, such as the cotangents of all layers, is not necessary: each array of this program has fewer entries. **Not judged.** Whether you use a Ref.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which kind of function sees the cotangent of its result? How does its backward rule know the number of the layer?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A `jax.custom_vjp` function of a Ref, an index and `x` returns `x`. Its forward rule stores the Ref and the index as residuals. Its backward rule writes to the Ref and passes on the cotangent. The `scan` runs over `(jnp.arange(L), layers)`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The backward rule writes the norm of `g` at index `i` of the Ref, and returns `None, None, g`. Create the Ref inside `gradients_and_norms`. The body of the loop returns `log(ref, i, block(layer, x))`. After `jax.grad`, read the Ref.
#
# </details>


# %% answer="autodiff-backward-log" timeout=20
def gradients_and_norms(block, layers, x):
    """Gradients of mean_square of the network with respect to layers, and the norm of the cotangent of each layer's
    result, (L,). block(layer, x (n, d)) -> (n, d); the first axis of each array of layers has L entries."""
    ### BEGIN SOLUTION

    @jax.custom_vjp
    def log(ref, i, x):
        return x

    def backward(residuals, g):
        ref, i = residuals
        ref[i] = jnp.linalg.norm(g)
        return None, None, g

    log.defvjp(lambda ref, i, x: (x, (ref, i)), backward)
    indices = jnp.arange(len(jax.tree.leaves(layers)[0]))
    norms = jax.new_ref(jnp.zeros(len(indices)))

    def loss(layers):
        step = lambda x, each: (log(norms, each[0], block(each[1], x)), None)
        return mean_square(jax.lax.scan(step, x, (indices, layers))[0])

    return jax.grad(loss)(layers), norms[...]
    ### END SOLUTION


# %% check="autodiff-backward-log" name="example" points=1
"""The example: two layers that multiply."""


def probe_example(layers, x):
    return gradients_and_norms(lambda layer, x: layer * x, layers, x)


layers, x = np.array([2, 3], np.float32), np.array([[1]], np.float32)
gradients, norms = program(probe_example, layers, x).run(layers, x)
compare(norms, np.array([36, 12], np.float32), label="the norms")
compare(gradients, np.array([36, 24], np.float32), label="the gradients")

# %% hidden="autodiff-backward-log" name="values" points=2
"""The gradients and the norms of residual networks of different depths and shapes."""


def probe_values(layers, x):
    return gradients_and_norms(lambda layer, x: layer["b"] + x + jnp.tanh(x @ layer["w"]), layers, x)


rng = inputs.rng()
for depth, n, d in ((5, 3, 4), (3, 1, 6)):
    layers = {
        "w": rng.normal(size=(depth, d, d)).astype(np.float32),
        "b": rng.normal(size=(depth, d)).astype(np.float32),
    }
    x = rng.normal(size=(n, d)).astype(np.float32)
    xs, slopes = [x.astype(np.float64)], []
    for w, b in zip(layers["w"], layers["b"], strict=True):
        y = np.tanh(xs[-1] @ w)
        slopes.append(1 - y**2)
        xs.append(b + xs[-1] + y)
    back, norms = 2 * xs[-1] / (n * d), np.zeros(depth)
    gradients = {name: np.zeros(leaf.shape) for name, leaf in layers.items()}
    for i in reversed(range(depth)):
        norms[i] = np.sqrt(np.sum(back**2))
        inner = back * slopes[i]
        gradients["w"][i], gradients["b"][i] = xs[i].T @ inner, back.sum(0)
        back = back + inner @ layers["w"][i].T
    with case(f"for {depth} layers"):
        got = program(probe_values, layers, x).run(layers, x)
        wanted = {name: leaf.astype(np.float32) for name, leaf in gradients.items()}
        compare(got[1], norms.astype(np.float32), rtol=1e-3, atol=1e-4, label="the array of norms")
        compare(got[0], wanted, rtol=1e-3, atol=1e-4, label="the tree of gradients")

# %% hidden="autodiff-backward-log" name="program" points=2
"""One backward loop computes gradients and norms, and the cotangents of all layers are not stored."""


def probe_program(layers, x):
    return gradients_and_norms(lambda layer, x: layer + 0.9 * jnp.roll(x, 1, axis=1), layers, x)


rng = inputs.rng()
n, d, depth = 9, 8, 24
layers, x = rng.normal(size=depth).astype(np.float32), rng.normal(size=(n, d)).astype(np.float32)
few, many = program(probe_program, layers[:11], x), program(probe_program, layers, x)
for made, used in ((few, layers[:11]), (many, layers)):
    got, last = made.run(used, x), x.astype(np.float64)
    for layer in used:
        last = layer + 0.9 * np.roll(last, 1, axis=1)
    powers = 0.9 ** np.arange(len(used))[::-1]
    norms, gradients = (function(2 * last / last.size) * powers for function in (np.linalg.norm, np.sum))
    compare(got[1], norms.astype(np.float32), rtol=1e-3, atol=1e-5, label=f"the array of norms of {len(used)} layers")
    compare(got[0], gradients.astype(np.float32), rtol=1e-3, atol=1e-4, label="the gradients of the layers")
require(few.operations == many.operations, "The size of the program grows with the number of layers.")
require(many.loops == 2, "The program should have two loops over the layers, one forward and one backward.")
require(
    many.intermediates < depth * n * d,
    "The program stores an array for all layers that is as large as all their results, although no rule needs one.",
)

# %% [markdown] why="autodiff-backward-log"
# The identity function `log` has a custom backward rule, which runs exactly where the cotangent of its result is known. The Ref stores only one number for each layer. An alternative without a Ref gives `log` a second argument, an array of zeros, and returns the norm as the cotangent of this argument. `jax.grad` with respect to it then returns the norms. **Next:** How would you log the largest entry of each cotangent too, and how would you stop the program at the first NaN?


# %% wrong="autodiff-backward-log" because="Adds an array of zeros to the results and differentiates with respect to it. This returns the cotangents of all layers, which is far more than one number for each."
def gradients_and_norms(block, layers, x):
    def loss(layers, zeros):
        step = lambda x, each: (block(each[0], x) + each[1], None)
        return mean_square(jax.lax.scan(step, x, (layers, zeros))[0])

    zeros = jnp.zeros((len(jax.tree.leaves(layers)[0]), *x.shape))
    gradients, cotangents = jax.grad(loss, (0, 1))(layers, zeros)
    return gradients, jnp.sqrt(jnp.sum(cotangents**2, axis=(1, 2)))


# %% wrong="autodiff-backward-log" because="Applies `log` to the input of each layer, so it sees the cotangents of the layers before."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(ref, i, x):
        return x

    def backward(residuals, g):
        ref, i = residuals
        ref[i] = jnp.linalg.norm(g)
        return None, None, g

    log.defvjp(lambda ref, i, x: (x, (ref, i)), backward)
    count = len(jax.tree.leaves(layers)[0])
    norms = jax.new_ref(jnp.zeros(count))

    def loss(layers):
        step = lambda x, each: (block(each[1], log(norms, each[0], x)), None)
        return mean_square(jax.lax.scan(step, x, (jnp.arange(count), layers))[0])

    return jax.grad(loss)(layers), norms[...]


# %% wrong="autodiff-backward-log" because="Logs in the forward pass, so the norms are those of the results of the layers and not of their cotangents."
def gradients_and_norms(block, layers, x):
    count = len(jax.tree.leaves(layers)[0])

    def loss(layers):
        def step(x, layer):
            x = block(layer, x)
            return x, jnp.linalg.norm(x)

        x_last, norms = jax.lax.scan(step, x, layers)
        return mean_square(x_last), norms

    return jax.grad(loss, has_aux=True)(layers)


# %% wrong="autodiff-backward-log" because="Computes the norms of the gradients with respect to the parameters, not of the cotangents of the results."
def gradients_and_norms(block, layers, x):
    def loss(layers):
        return mean_square(jax.lax.scan(lambda x, layer: (block(layer, x), None), x, layers)[0])

    gradients = jax.grad(loss)(layers)
    square = lambda leaf: jnp.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1)
    return gradients, jnp.sqrt(sum(map(square, jax.tree.leaves(gradients))))


# %% wrong="autodiff-backward-log" because="Passes on the norm, or a normalized cotangent, instead of the cotangent. Logging must not change the gradients."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(ref, i, x):
        return x

    def backward(residuals, g):
        ref, i = residuals
        ref[i] = jnp.linalg.norm(g)
        return None, None, g / ref[i]

    log.defvjp(lambda ref, i, x: (x, (ref, i)), backward)
    count = len(jax.tree.leaves(layers)[0])
    norms = jax.new_ref(jnp.zeros(count))

    def loss(layers):
        step = lambda x, each: (log(norms, each[0], block(each[1], x)), None)
        return mean_square(jax.lax.scan(step, x, (jnp.arange(count), layers))[0])

    return jax.grad(loss)(layers), norms[...]


# %% wrong="autodiff-backward-log" because="Writes the squared norm. The norm is the root of the sum of all squares."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(ref, i, x):
        return x

    def backward(residuals, g):
        ref, i = residuals
        ref[i] = jnp.sum(g**2)
        return None, None, g

    log.defvjp(lambda ref, i, x: (x, (ref, i)), backward)
    count = len(jax.tree.leaves(layers)[0])
    norms = jax.new_ref(jnp.zeros(count))

    def loss(layers):
        step = lambda x, each: (log(norms, each[0], block(each[1], x)), None)
        return mean_square(jax.lax.scan(step, x, (jnp.arange(count), layers))[0])

    return jax.grad(loss)(layers), norms[...]


# %% wrong="autodiff-backward-log" because="Writes every norm to the whole Ref, so only the norm that was written last is left. The backward pass ends with layer 0."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(ref, x):
        return x

    def backward(ref, g):
        ref[...] = jnp.broadcast_to(jnp.linalg.norm(g), ref.shape)
        return None, g

    log.defvjp(lambda ref, x: (x, ref), backward)
    norms = jax.new_ref(jnp.zeros(len(jax.tree.leaves(layers)[0])))

    def loss(layers):
        step = lambda x, layer: (log(norms, block(layer, x)), None)
        return mean_square(jax.lax.scan(step, x, layers)[0])

    return jax.grad(loss)(layers), norms[...]


# %% wrong="autodiff-backward-log" because="Numbers the norms in the order of the backward pass, which begins with the last layer."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(slot, x):
        return x

    log.defvjp(lambda slot, x: (x, None), lambda _, g: (jnp.linalg.norm(g), g))

    def loss(layers, slots):
        step = lambda x, each: (log(each[1], block(each[0], x)), None)
        return mean_square(jax.lax.scan(step, x, (layers, slots))[0])

    gradients, norms = jax.grad(loss, (0, 1))(layers, jnp.zeros(len(jax.tree.leaves(layers)[0])))
    return gradients, norms[::-1]


# %% wrong="autodiff-backward-log" because="Computes the norms in a second backward pass for each layer, which repeats the work of the first."
def gradients_and_norms(block, layers, x):
    count = len(jax.tree.leaves(layers)[0])

    def network(layers, x):
        return mean_square(jax.lax.scan(lambda x, layer: (block(layer, x), None), x, layers)[0])

    norms, result = [], x
    for i in range(count):
        result = block(jax.tree.map(lambda leaf: leaf[i], layers), result)
        rest = jax.tree.map(lambda leaf: leaf[i + 1 :], layers)
        norms.append(jnp.linalg.norm(jax.grad(network, 1)(rest, result)))
    return jax.grad(network)(layers, x), jnp.stack(norms)


# %% wrong="autodiff-backward-log" because="A Python loop over the layers is written out by tracing, so the program grows with the number of layers."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(slot, x):
        return x

    log.defvjp(lambda slot, x: (x, None), lambda _, g: (jnp.linalg.norm(g), g))
    count = len(jax.tree.leaves(layers)[0])

    def loss(layers, slots):
        result = x
        for i in range(count):
            result = log(slots[i], block(jax.tree.map(lambda leaf: leaf[i], layers), result))
        return mean_square(result)

    return jax.grad(loss, (0, 1))(layers, jnp.zeros(count))


# %% wrong="autodiff-backward-log" because="Computes the norm of each example or the mean of the squares. The norm is over all entries of the cotangent."
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(slot, x):
        return x

    log.defvjp(lambda slot, x: (x, None), lambda _, g: (jnp.linalg.norm(g, axis=1).mean(), g))

    def loss(layers, slots):
        step = lambda x, each: (log(each[1], block(each[0], x)), None)
        return mean_square(jax.lax.scan(step, x, (layers, slots))[0])

    return jax.grad(loss, (0, 1))(layers, jnp.zeros(len(jax.tree.leaves(layers)[0])))


# %% wrong="autodiff-backward-log" because="Uses `jnp.linalg.norm` with `ord=2`. For a matrix, this is the largest singular value."
@jax.custom_vjp
def log(ref, i, x):
    return x


def log_backward(residuals, g):
    ref, i = residuals
    ref[i] = jnp.linalg.norm(g, ord=2)
    return None, None, g


log.defvjp(lambda ref, i, x: (x, (ref, i)), log_backward)


def gradients_and_norms(block, layers, x):
    depth = jax.tree.leaves(layers)[0].shape[0]
    ref = jax.new_ref(jnp.zeros(depth))

    def loss(layers):
        body = lambda x, one: (log(ref, one[0], block(one[1], x)), None)
        return mean_square(jax.lax.scan(body, x, (jnp.arange(depth), layers))[0])

    gradients = jax.grad(loss)(layers)
    return gradients, ref[...]


# %% wrong="autodiff-backward-log" because="A Python loop over the layers is written out by tracing, so the program grows with the number of layers."
@jax.custom_vjp
def log_norm(ref, x):
    return x


def log_norm_backward(ref, g):
    ref[...] = jnp.sqrt(jnp.sum(g**2))
    return None, g


log_norm.defvjp(lambda ref, x: (x, ref), log_norm_backward)


def gradients_and_norms(block, layers, x):
    depth = jax.tree.leaves(layers)[0].shape[0]
    refs = [jax.new_ref(jnp.float32(0)) for _ in range(depth)]

    def loss(layers):
        result = x
        for i in range(depth):
            result = log_norm(refs[i], block(jax.tree.map(lambda leaf: leaf[i], layers), result))
        return mean_square(result)

    gradients = jax.grad(loss)(layers)
    return gradients, jnp.stack([ref[...] for ref in refs])


# %% wrong="autodiff-backward-log" because="Writes the largest absolute entry. The norm is the root of the sum of all squares."
def gradients_and_norms(block, layers, x):
    L = len(jax.tree.leaves(layers)[0])
    ref = jax.new_ref(jnp.zeros(L))

    @jax.custom_vjp
    def log(ref, i, x):
        return x

    def bwd(res, g):
        ref, i = res
        ref[i] = jnp.abs(g).max()
        return None, None, g

    log.defvjp(lambda ref, i, x: (x, (ref, i)), bwd)

    def loss(layers):
        return mean_square(
            jax.lax.scan(lambda x, il: (log(ref, il[0], block(il[1], x)), None), x, (jnp.arange(L), layers))[0]
        )

    gradients = jax.grad(loss)(layers)
    return gradients, ref[...]


# %% wrong="autodiff-backward-log" because="Computes the norm of each example or the mean of the squares. The norm is over all entries of the cotangent."
def gradients_and_norms(block, layers, x):
    L = len(jax.tree.leaves(layers)[0])
    ref = jax.new_ref(jnp.zeros(L))

    @jax.custom_vjp
    def log(ref, i, x):
        return x

    def bwd(res, g):
        ref, i = res
        ref[i] = jnp.sqrt(jnp.mean(g**2))
        return None, None, g

    log.defvjp(lambda ref, i, x: (x, (ref, i)), bwd)

    def loss(layers):
        return mean_square(
            jax.lax.scan(lambda x, il: (log(ref, il[0], block(il[1], x)), None), x, (jnp.arange(L), layers))[0]
        )

    gradients = jax.grad(loss)(layers)
    return gradients, ref[...]


# %% right="autodiff-backward-log"
def gradients_and_norms(block, layers, x):
    @jax.custom_vjp
    def log(slot, x):
        return x

    log.defvjp(lambda slot, x: (x, None), lambda _, g: (jnp.sqrt(jnp.sum(g * g)), g))

    def loss(layers, slots):
        step = lambda x, each: (log(each[1], block(each[0], x)), None)
        return mean_square(jax.lax.scan(step, x, (layers, slots))[0])

    return jax.grad(loss, (0, 1))(layers, jnp.zeros(len(jax.tree.leaves(layers)[0])))


# %% right="autodiff-backward-log"
def gradients_and_norms(block, layers, x):
    ref = jax.new_ref(jnp.zeros(jax.tree.leaves(layers)[0].shape[0]))

    @jax.custom_vjp
    def apply(ref, i, layer, x):
        return block(layer, x)

    def forward(ref, i, layer, x):
        y, vjp = jax.vjp(block, layer, x)
        return y, (ref, i, vjp)

    def backward(residuals, g):
        ref, i, vjp = residuals
        ref[i] = jnp.sqrt(jnp.vdot(g, g))
        return None, None, *vjp(g)

    apply.defvjp(forward, backward)
    numbers = jnp.arange(ref.shape[0])
    run = lambda layers: jax.lax.scan(lambda x, each: (apply(ref, each[0], each[1], x), None), x, (numbers, layers))[0]
    gradients = jax.grad(lambda layers: mean_square(run(layers)))(layers)
    return gradients, jax.freeze(ref)


# %% [markdown] task="autodiff-fixed-point" stars=3 minutes=35 skills="04_grad,08_control_flow,control-implicit,autodiff-residual-bytes"
# ## The derivative of a fixed point
# **Goal.** Solve x = f(theta, x) by iteration, and differentiate the solution without differentiating the iterations, to any order of reverse mode.
#
# **Signature.** `fixed_point(f, theta, x0)`. `theta` is a tree of float32 arrays. `f(theta, x)` maps an `x` of the shape of `x0` to the same shape, and float32 to float32. In the maximum norm, it is a contraction with respect to x. The function returns the solution that `iterate` of the setup finds from `x0`. Its gradient with respect to `theta` is that of the exact solution, and its gradient with respect to `x0` is zero.
#
# **Example.** `fixed_point(lambda t, x: (x + t / x) / 2, 9.0, 1.0)` is about 3, the square root of 9. Its derivative is about 1/6, and its second derivative about -1/108.
#
# **Judged.** The values, the gradients and the gradients of gradients, also if `f` closes over values that are differentiated, and the values under `vmap`. No residuals of iterations are stored: for an `f` that closes over no arrays, the leaves of the VJP object of `jax.vjp(lambda theta: fixed_point(f, theta, x0), theta)` have at most four times the bytes of `theta`, `x0` and x together. **Not judged.** Forward mode, and the number of iterations in the backward pass.
#
# <details><summary>Hint 1 · a question</summary>
#
# At the solution, dx = df/dtheta dtheta + df/dx dx. For the cotangent g of x, which equation does the vector w solve whose product with df/dtheta is the cotangent of `theta`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# w = g + (df/dx)ᵀ w is a fixed point again. If the backward rule calls your function for it, the rule can be differentiated too. A `jax.custom_vjp` function with `nondiff_argnums` must not close over traced values. `jax.closure_convert(f, theta, x0)` returns a function that takes these values as further arguments, and a list of them.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write `solve(f, theta, x0)` as a `jax.custom_vjp` function that calls `iterate`. Its forward rule calls `solve` itself, and its residuals are `theta` and x. Its backward rule calls `solve` for the map from w to g plus the product of w with df/dx, which `jax.vjp` computes. The parameters of this map are `(theta, x, g)`. Then it applies the VJP with respect to `theta` to w. `fixed_point` converts `f` and passes `(theta, values)` as parameters.
#
# </details>


# %% answer="autodiff-fixed-point" timeout=20
def fixed_point(f, theta, x0):
    """The solution of x == f(theta, x), by iteration from x0. Implicit derivatives with respect to theta."""
    ### BEGIN SOLUTION
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(functools.partial(f, params), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    def step(all_params, w):
        params, x, g = all_params
        return g + jax.vjp(lambda x: f(params, x), x)[1](w)[0]

    params, x = residuals
    w = solve(step, (params, x, g), g)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)
### END SOLUTION


# %% check="autodiff-fixed-point" name="example" points=1
"""The example: a square root, and its first two derivatives."""


def probe_root(t):
    root = lambda t: fixed_point(lambda t, x: (x + t / x) / 2, t, jnp.ones_like(t))
    return root(t), jax.grad(root)(t), jax.grad(jax.grad(root))(t)


got = program(probe_root, np.float32(9)).run(np.float32(9))
compare(got[0], np.float32(3), rtol=1e-3, atol=1e-3, label="the root of 9")
compare(got[1], np.float32(1 / 6), rtol=1e-3, atol=1e-3, label="the derivative at 9")
compare(got[2], np.float32(-1 / 108), rtol=1e-2, atol=1e-4, label="the second derivative at 9")

# %% hidden="autodiff-fixed-point" name="values" points=1
"""The solution for trees of parameters and for a batch."""


def probe_values(theta, x0):
    return fixed_point(cosine_map, theta, x0)


def probe_batch(thetas, x0):
    return jax.vmap(lambda theta: fixed_point(cosine_map, theta, x0))(thetas)


def solution(theta, x):
    for _ in range(2000):
        x = np.cos(theta["w"].astype(np.float64) @ x) + theta["b"]
    return x


rng = inputs.rng()
for d, size in ((1, 0.5), (5, 0.95)):
    theta, x0 = contraction(rng, d, size), rng.normal(size=d).astype(np.float32)
    got = program(probe_values, theta, x0).run(theta, x0)
    compare(got, solution(theta, x0).astype(np.float32), rtol=1e-3, atol=1e-3, label="the solution")
each = [contraction(rng, 3, size) for size in (0.1, 0.9)]
thetas, x0 = jax.tree.map(lambda *leaves: np.stack(leaves), *each), np.zeros(3, np.float32)
got = program(probe_batch, thetas, x0).run(thetas, x0)
wanted = np.stack([solution(theta, x0) for theta in each]).astype(np.float32)
compare(got, wanted, rtol=1e-3, atol=1e-3, label="the solutions under vmap")

# %% hidden="autodiff-fixed-point" name="derivatives" points=2
"""First and second derivatives, also with respect to values that f closes over."""


def probe_derivatives(a, theta, weights, x0):
    def value(a, theta, x0):
        return jnp.sum(weights * fixed_point(lambda t, x: a * jnp.cos(t["w"] @ x) + t["b"], theta, x0))

    def squares(a, theta):
        first = jax.grad(value, argnums=(0, 1))(a, theta, x0)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(first))

    return jax.grad(value, argnums=(0, 1, 2))(a, theta, x0), jax.grad(squares, argnums=(0, 1))(a, theta)


def first_derivatives(a, w, b, weights):
    x = np.zeros(len(b))
    for _ in range(500):
        x = a * np.cos(w @ x) + b
    slope = -a * np.sin(w @ x)
    back = np.linalg.solve(np.eye(len(b)) - (slope[:, None] * w).T, weights)
    return np.cos(w @ x) @ back, np.outer(slope * back, x), back


rng = inputs.rng()
d = int(rng.integers(3, 6))
theta, weights, x0 = (
    contraction(rng, d, 0.7),
    rng.uniform(1, 3, size=d).astype(np.float32),  # of one sign, so that no error cancels
    rng.normal(size=d).astype(np.float32),
)
a = np.float32(rng.uniform(0.7, 1.2))
wide = [np.asarray(one, np.float64) for one in (a, theta["w"], theta["b"])]
by_a, by_w, by_b = first_derivatives(*wide, weights)
first, second = program(probe_derivatives, a, theta, weights, x0).run(a, theta, weights, x0)
tolerance = {"rtol": 5e-3, "atol": 5e-3}
compare(first[1], {"w": by_w.astype(np.float32), "b": by_b.astype(np.float32)}, **tolerance, label="the gradient")
compare(first[0], np.float32(by_a), **tolerance, label="the derivative with respect to a value that f closes over")
compare(first[2], np.zeros(d, np.float32), label="the gradient with respect to x0")


def squares_at(*moved):
    return sum(np.sum(one**2) for one in first_derivatives(*moved, weights))


wanted, step = [], 1e-5
for which in range(3):
    slope = np.zeros_like(wide[which])
    for entry in np.ndindex(slope.shape):
        nudge = np.zeros_like(slope)
        nudge[entry] = step
        up, down = ([one + sign * nudge if i == which else one for i, one in enumerate(wide)] for sign in (1, -1))
        slope[entry] = (squares_at(*up) - squares_at(*down)) / (2 * step)
    wanted.append(np.asarray(slope, np.float32))
for got, want, words in (
    (second[1]["w"], wanted[1], "the second derivatives with respect to w"),
    (second[1]["b"], wanted[2], "the second derivatives with respect to b"),
    (second[0], wanted[0], "the second derivative with respect to a value that f closes over"),
):
    compare(got, want, rtol=1e-2, atol=1e-2 * np.abs(want).max(), label=words)

# %% hidden="autodiff-fixed-point" name="residuals" points=1 observed=true
"""The backward pass stores no residuals of iterations."""


def probe_residuals(theta, x0):
    x, vjp = jax.vjp(lambda theta: fixed_point(cosine_map, theta, x0), theta)
    return {"x": x, "gradient": vjp(jnp.ones_like(x))[0], "stored": jax.tree.leaves(vjp)}


rng = inputs.rng()
d = int(rng.integers(4, 8))
theta, x0 = contraction(rng, d, 0.8), rng.normal(size=d).astype(np.float32)
made = program(probe_residuals, theta, x0)
got, x = made.run(theta, x0), x0
for _ in range(500):
    x = np.cos(theta["w"].astype(np.float64) @ x) + theta["b"]
compare(got["x"], x.astype(np.float32), rtol=1e-3, atol=1e-3, label="the solution")
slope = -np.sin(theta["w"] @ x)
back = np.linalg.solve(np.eye(d) - (slope[:, None] * theta["w"]).T, np.ones(d))
compare(got["gradient"]["w"], np.outer(slope * back, x).astype(np.float32), rtol=5e-3, atol=5e-3, label="the gradient")
allowed = 4 * (nbytes(theta) + 2 * x0.nbytes)
require(nbytes(made.outputs["stored"]) <= allowed, "The residuals need more memory than four times theta and x.")

# %% [markdown] why="autodiff-fixed-point"
# The derivative of a solution follows from the equation that it solves, so it does not matter how the solution was found. The backward rule solves a linear equation by the same method, and because it calls `solve`, its own derivative is implicit again. Values that `f` closes over have become parameters, so their cotangents exist. **Next:** `jax.lax.custom_root` does the same for any equation g(x) = 0. Which function would you pass as its `tangent_solve`?


# %% wrong="autodiff-fixed-point" because="Differentiates through all iterations, so each of them stores residuals."
def fixed_point(f, theta, x0):
    return jax.lax.scan(lambda x, _: (f(theta, x), None), x0, length=1000)[0]


# %% wrong="autodiff-fixed-point" because="Calls `iterate`, a `while_loop`, and defines no derivative. Reverse mode needs the number of iterations in advance."
def fixed_point(f, theta, x0):
    return iterate(lambda x: f(theta, x), x0)


# %% wrong="autodiff-fixed-point" because="Solves no linear equation. The cotangent of x, or the first terms of a series, ignore that x also appears on the right-hand side."
def fixed_point(f, theta, x0):
    fixed, start = jax.lax.stop_gradient((theta, x0))
    x = iterate(lambda x: f(fixed, x), start)
    return f(theta, jax.lax.stop_gradient(x))


# %% wrong="autodiff-fixed-point" because="Does not convert f. A custom rule cannot return cotangents for values that f closes over, so these are missing or leak."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    step = lambda p, w: p[2] + jax.vjp(lambda x: f(p[0], x), p[1])[1](w)[0]
    w = solve(step, (params, x, g), g)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    return solve(f, theta, x0)


# %% wrong="autodiff-fixed-point" because="Solves the backward equation with `iterate`, which has no derivative, so the rule cannot be differentiated again."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    step = lambda w: g + jax.vjp(lambda x: f(params, x), x)[1](w)[0]
    w = iterate(step, g)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Iterates inside the forward rule instead of calling the function that has the rule, so a second derivative meets the loop itself."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = iterate(lambda x: f(params, x), x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    step = lambda p, w: p[2] + jax.vjp(lambda x: f(p[0], x), p[1])[1](w)[0]
    w = solve(step, (params, x, g), g)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Solves no linear equation. The cotangent of x, or the first terms of a series, ignore that x also appears on the right-hand side."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    return jax.vjp(lambda params: f(params, x), params)[1](g)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Solves no linear equation. The cotangent of x, or the first terms of a series, ignore that x also appears on the right-hand side."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    w = g + jax.vjp(lambda x: f(params, x), x)[1](g)[0]
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Solves with the Jacobian instead of its transpose. The backward pass multiplies from the left."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    jacobian = jax.jacobian(f, 1)(params, x).reshape(x.size, x.size)
    w = jnp.linalg.solve(jnp.eye(x.size) - jacobian, g.ravel()).reshape(x.shape)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Adds the Jacobian to the identity. From x = f(x) follows (I - df/dx) dx = df/dtheta dtheta."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    jacobian = jax.jacobian(f, 1)(params, x).reshape(x.size, x.size)
    w = jnp.linalg.solve(jnp.eye(x.size) + jacobian.T, g.ravel()).reshape(x.shape)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Returns a gradient with respect to x0. The solution does not depend on where the iteration starts."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    step = lambda p, w: p[2] + jax.vjp(lambda x: f(p[0], x), p[1])[1](w)[0]
    w = solve(step, (params, x, g), g)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], g


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Does not convert f. A custom rule cannot return cotangents for values that f closes over, so these are missing or leak."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve_fixed(f, theta, x0):
    return iterate(lambda x: f(theta, x), x0)


def solve_fixed_forward(f, theta, x0):
    x = solve_fixed(f, theta, x0)
    return x, (theta, x)


def solve_fixed_backward(f, residuals, g):
    theta, x = residuals

    def adjoint(parameters, w):
        theta, x, g = parameters
        return g + jax.vjp(lambda x: f(theta, x), x)[1](w)[0]

    w = solve_fixed(adjoint, (theta, x, g), g)
    return jax.vjp(lambda theta: f(theta, x), theta)[1](w)[0], jnp.zeros_like(x)


solve_fixed.defvjp(solve_fixed_forward, solve_fixed_backward)


def fixed_point(f, theta, x0):
    return solve_fixed(f, theta, x0)


# %% wrong="autodiff-fixed-point" because="Stores x0 where the backward rule needs the solution."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve_it(f, theta, x0):
    return iterate(lambda x: f(theta, x), x0)


def solve_fwd(f, theta, x0):
    x = solve_it(f, theta, x0)
    return x, (theta, x0)


def solve_bwd(f, res, g):
    theta, x = res
    w = solve_it(lambda p, w: p[2] + jax.vjp(lambda x: f(p[0], x), p[1])[1](w)[0], (theta, x, g), g)
    return jax.vjp(lambda theta: f(theta, x), theta)[1](w)[0], jnp.zeros_like(x)


solve_it.defvjp(solve_fwd, solve_bwd)


def fixed_point(f, theta, x0):
    f, values = jax.closure_convert(f, theta, x0)
    return solve_it(lambda p, x: f(p[0], x, *p[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Returns a gradient with respect to x0. The solution does not depend on where the iteration starts."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve_it(f, theta, x0):
    return iterate(lambda x: f(theta, x), x0)


def solve_fwd(f, theta, x0):
    x = solve_it(f, theta, x0)
    return x, (theta, x)


def solve_bwd(f, res, g):
    theta, x = res
    w = solve_it(lambda p, w: p[2] + jax.vjp(lambda x: f(p[0], x), p[1])[1](w)[0], (theta, x, g), g)
    return jax.vjp(lambda theta: f(theta, x), theta)[1](w)[0], w


solve_it.defvjp(solve_fwd, solve_bwd)


def fixed_point(f, theta, x0):
    f, values = jax.closure_convert(f, theta, x0)
    return solve_it(lambda p, x: f(p[0], x, *p[1]), (theta, values), x0)


# %% wrong="autodiff-fixed-point" because="Does not convert f. A custom rule cannot return cotangents for values that f closes over, so these are missing or leak."
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve_it(f, theta, x0):
    return iterate(lambda x: f(theta, x), x0)


def solve_fwd(f, theta, x0):
    x = solve_it(f, theta, x0)
    return x, (theta, x)


def solve_bwd(f, res, g):
    theta, x = res
    w = solve_it(lambda p, w: p[2] + jax.vjp(lambda x: f(p[0], x), p[1])[1](w)[0], (theta, x, g), g)
    return jax.vjp(lambda theta: f(theta, x), theta)[1](w)[0], jnp.zeros_like(x)


solve_it.defvjp(solve_fwd, solve_bwd)


def fixed_point(f, theta, x0):
    return solve_it(f, theta, x0)


# %% right="autodiff-fixed-point"
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def solve(f, params, x0):
    return iterate(lambda x: f(params, x), x0)


def solve_forward(f, params, x0):
    x = solve(f, params, x0)
    return x, (params, x)


def solve_backward(f, residuals, g):
    params, x = residuals
    jacobian = jax.jacobian(f, 1)(params, x).reshape(x.size, x.size)
    w = jnp.linalg.solve(jnp.eye(x.size) - jacobian.T, g.ravel()).reshape(x.shape)
    return jax.vjp(lambda params: f(params, x), params)[1](w)[0], jnp.zeros_like(x)


solve.defvjp(solve_forward, solve_backward)


def fixed_point(f, theta, x0):
    converted, values = jax.closure_convert(f, theta, x0)
    return solve(lambda params, x: converted(params[0], x, *params[1]), (theta, values), x0)


# %% right="autodiff-fixed-point"
def fixed_point(f, theta, x0):
    def solve_linear(g, y):
        matrix = jax.jacobian(g)(y).reshape(y.size, y.size)
        return jnp.linalg.solve(matrix, y.ravel()).reshape(y.shape)

    return jax.lax.custom_root(
        lambda x: f(theta, x) - x,
        jax.lax.stop_gradient(x0),
        lambda _, x: iterate(functools.partial(f, theta), x),
        solve_linear,
    )


# %% [markdown] task="autodiff-hi-primitive" stars=3 minutes=35 skills="05_vmap,autodiff-fixed-point"
# ## A primitive for linear systems
# **Goal.** Define one primitive that solves a @ x = b for a symmetric positive definite matrix, with its own rules for reverse mode and for `vmap`. The matrix is factored only once, also for the gradient, and all right-hand sides of a batch that share a matrix are solved together.
#
# **Signature.** `solve(a, b)` takes `a`, (n, n), and `b`, (n, k), both float32, and returns x, (n, k). It calls an instance of your class `Solve`, a `VJPHiPrimitive`. Add the methods `vjp_fwd`, `vjp_bwd_retval` and `batch`, and others if you need them. Use `factor` and `solve_factored` of the setup. These two functions and `solve` take single matrices, and `jax.vmap` adds the batch axes. For the cotangent g of x, the cotangent of `b` is the solution w of a @ w = g, and that of `a` is -w @ x.T.
#
# **Example.** For `a = [[4, 0], [0, 1]]` and `b = [[8], [3]]`, x is `[[2], [3]]`. With g = `[[4], [0]]`, w is `[[1], [0]]`, and the cotangent of `a` is `[[-2, -3], [0, 0]]`.
#
# **Judged.** The values, the gradients with respect to `a` and `b` and the values under `vmap`, for all combinations of batched and unbatched arguments and for any axis of a batch. For a batch of `b` with one common `a`, no array of the gradient's program has as many entries as the batch of matrices would have. The jaxpr of `solve` contains a single `VJPHiPrimitive`, and that of `jax.value_and_grad` one factorization, both also under `vmap` over `b`. A factorization inside a primitive counts too. So `vjp_fwd` has to compute x from the factor that it stores, and no rule for reverse mode calls `solve`. (The jaxprs are observed.) **Not judged.** Forward mode and second derivatives. The API is experimental.
#
# <details><summary>Hint 1 · a question</summary>
#
# What do the cotangents of `a` and `b` need from the forward pass? How do you arrange a batch of right-hand sides so that one call of `solve` handles all of them?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `vjp_fwd(self, nonzeros, a, b)` returns the result and the residuals, such as the factor and x. `vjp_bwd_retval(self, residuals, g)` returns a tuple of cotangents. `batch(self, axis_data, args, dims)` returns the batched result and the position of its batch axis. `dims` contains the batch axis of each argument, or None.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# If `dims[0]` is None, move the batch axis of `b` to position 1 and reshape (n, batch, k) to (n, batch · k). Call `solve`, and reshape its result back. The batch axis is then 1. In all other cases, call the method `batch` of the superclass with the same arguments. It applies `vmap` to your other rules and needs the method `batch_dim_rule(self, axis_data, dims)`, which returns the position of the batch axis of the result, 0.
#
# </details>


# %% answer="autodiff-hi-primitive" timeout=20
def solve(a, b):
    """x (n, k) with a @ x == b, for a symmetric positive definite a (n, n) and b (n, k)."""
    ### BEGIN SOLUTION
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)
    ### END SOLUTION


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    ### BEGIN SOLUTION
    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0

    ### END SOLUTION


# %% check="autodiff-hi-primitive" name="example" points=1
"""The example: a system of two equations, and the cotangents."""


def probe_example(a, b, g):
    x, vjp = jax.vjp(solve, a, b)
    return x, vjp(g)


a, b, g = (np.array(rows, np.float32) for rows in ([[4, 0], [0, 1]], [[8], [3]], [[4], [0]]))
x, (by_a, by_b) = program(probe_example, a, b, g).run(a, b, g)
compare(x, np.array([[2], [3]], np.float32), label="x")
compare(by_b, np.array([[1], [0]], np.float32), label="the cotangent of b")
compare(by_a, np.array([[-2, -3], [0, 0]], np.float32), label="the cotangent of a")

# %% hidden="autodiff-hi-primitive" name="values" points=1
"""The solution and the cotangents of both arguments, for several shapes."""


def probe_values(a, b, g):
    x, vjp = jax.vjp(solve, a, b)
    return x, vjp(g)


rng = inputs.rng()
for n, k in ((5, 3), (4, 1)):
    root = rng.normal(size=(n, n))
    a, b, g = root @ root.T + 2 * np.eye(n), rng.normal(size=(n, k)), rng.normal(size=(n, k))
    x, w = np.linalg.solve(a, b), np.linalg.solve(a, g)
    arrays = [array.astype(np.float32) for array in (a, b, g)]
    got = program(probe_values, *arrays).run(*arrays)
    with case(f"with {k} right-hand side{'s' if k > 1 else ''}"):
        compare(got[0], x.astype(np.float32), rtol=1e-3, atol=1e-3, label="the solution")
        compare(got[1][1], w.astype(np.float32), rtol=1e-3, atol=1e-3, label="the cotangent of b")
        by_a = -w @ x.T
        require(not np.allclose(got[1][0], -by_a, atol=1e-3), "the sign of the cotangent of a is wrong.")
        require(not np.allclose(got[1][0], by_a.T, atol=1e-3), "the cotangent of a is transposed.")
        compare(got[1][0], by_a.astype(np.float32), rtol=1e-3, atol=1e-3, label="the cotangent of a")

# %% hidden="autodiff-hi-primitive" name="batches" points=2
"""Values and gradients under vmap, for any batch axes."""


def probe_batch(a, b, weights, axes):
    batched = jax.vmap(solve, in_axes=axes)
    loss = lambda a, b: jnp.sum(weights * batched(a, b))
    return batched(a, b), jax.grad(loss, argnums=(0, 1))(a, b)


rng = inputs.rng()
count, n, k = 3, 5, 2
roots = rng.normal(size=(count, n, n))
matrices = roots @ roots.swapaxes(1, 2) + 2 * np.eye(n)
rights, weights = rng.normal(size=(2, count, n, k))
for axes in ((None, 2), (0, None), (1, 0)):
    a, b = (
        whole[0] if axis is None else np.moveaxis(whole, 0, axis)
        for whole, axis in zip((matrices, rights), axes, strict=True)
    )
    each_a, each_b = (
        np.repeat(one[None], count, 0) if axis is None else np.moveaxis(one, axis, 0)
        for one, axis in zip((a, b), axes, strict=True)
    )
    x, w = np.linalg.solve(each_a, each_b), np.linalg.solve(each_a, weights)
    by_a, by_b = (
        total.sum(0) if axis is None else np.moveaxis(total, 0, axis)
        for total, axis in zip((-w @ x.swapaxes(1, 2), w), axes, strict=True)
    )
    arrays = [array.astype(np.float32) for array in (a, b, weights)]
    got = program(probe_batch, *arrays, axes).run(*arrays, axes)
    with case(f"with the in_axes {axes}"):
        compare(got[0], x.astype(np.float32), rtol=2e-3, atol=2e-3, label="the solution")
        compare(got[1][1], by_b.astype(np.float32), rtol=2e-3, atol=2e-3, label="the gradient of b")
        compare(got[1][0], by_a.astype(np.float32), rtol=2e-3, atol=2e-3, label="the gradient of a")

# %% hidden="autodiff-hi-primitive" name="together" points=1
"""With one matrix for a whole batch, the gradient's program stores no batch of matrices."""


def probe_common(a, b, weights):
    return jax.grad(lambda a, b: jnp.sum(weights * jax.vmap(solve, (None, 0))(a, b)), argnums=(0, 1))(a, b)


rng = inputs.rng()
count, n = 6, 12
root = rng.normal(size=(n, n))
a, (b, weights) = root @ root.T + 2 * np.eye(n), rng.normal(size=(2, count, n, 1))
x, w = np.linalg.solve(a, b), np.linalg.solve(a, weights)
arrays = [array.astype(np.float32) for array in (a, b, weights)]
made = program(probe_common, *arrays)
wanted = (-w @ x.swapaxes(1, 2)).sum(0).astype(np.float32), w.astype(np.float32)
compare(made.run(*arrays), wanted, rtol=2e-3, atol=2e-3, label="the gradients")
require(made.intermediates < count * n * n, "The program has an array as large as a batch of matrices.")

# %% hidden="autodiff-hi-primitive" name="primitive" points=2 observed=true
"""The jaxpr contains one VJPHiPrimitive, and values and gradients need one factorization."""


def probe_jaxprs(a, b, bs):
    from jax.extend.core import jaxprs_in_params

    def equations(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in jaxprs_in_params(equation.params):
                yield from equations(inner)

    def primitives(function, *args):
        found = [equation.params.get("_prim") for equation in equations(jax.make_jaxpr(function)(*args).jaxpr)]
        return [one for one in found if one is not None]

    def classes(function, *args):
        return [isinstance(one, VJPHiPrimitive) for one in primitives(function, *args)]

    def factorizations(function, *args):  # in the jaxpr, and inside the primitives of the learner
        names = [equation.primitive.name for equation in equations(jax.make_jaxpr(function)(*args).jaxpr)]
        inside = [sum(factorizations(one.expand, *one.in_avals)) for one in primitives(function, *args)]
        return names.count("cholesky"), sum(inside)

    loss = lambda a, b: jnp.sum(solve(a, b) ** 2)
    batch_loss = lambda a, bs: jnp.sum(jax.vmap(solve, (None, 0))(a, bs) ** 2)
    found = [factorizations(jax.value_and_grad(one, (0, 1)), a, rest) for one, rest in ((loss, b), (batch_loss, bs))]
    return classes(solve, a, b), classes(jax.vmap(solve, (None, 0)), a, bs), found


alone, batched, found = ask(probe_jaxprs, jnp.eye(4), jnp.ones((4, 2)), jnp.ones((3, 4, 2)))
require(alone == [True], "The jaxpr of `solve` does not contain exactly one VJPHiPrimitive.")
require(batched == [True], "Under vmap, the jaxpr of `solve` does not contain exactly one VJPHiPrimitive.")
for (direct, inside), words in zip(
    found, ("The value and the gradient", "Under vmap, the value and the gradient"), strict=True
):
    require(inside == 0, f"{words} use the primitive itself, which factors the matrix again.")
    require(direct == 1, f"{words} need another number of factorizations than one.")

# %% [markdown] why="autodiff-hi-primitive"
# The forward rule stores the factor, so the backward rule only solves triangular systems. The batching rule turns a batch into more columns, so the cotangent of the common matrix is one product. Without the rule, `vmap` computes a matrix for each example and adds them up. **Next:** Which rule would you add for `jax.linearize`, and what would its residuals be?


# %% wrong="autodiff-hi-primitive" because="Has no own batching rule for a common matrix. `vmap` of the backward rule then computes a matrix for each example."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Factors the matrix again in the backward pass. The residuals should contain the factor."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        x = solve_factored(factor(a), b)
        return x, (a, x)

    def vjp_bwd_retval(self, residuals, g):
        a, x = residuals
        w = solve_factored(factor(a), g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Stores b where the cotangent of a needs the solution x."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, b)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Multiplies in the wrong order, so the cotangent of a is transposed."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -x @ w.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Forgets the sign. From a x = b follows dx = -solve(a, da x)."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Multiplies the cotangent g by x instead of w. The cotangent of b appears in that of a."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -g @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Batches by `vmap` of the implementation. The result is right, but the primitive and its backward rule are lost under `vmap`."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        return jax.vmap(self.expand, in_axes=dims)(*args), 0


# %% wrong="autodiff-hi-primitive" because="Reshapes without moving the batch axis, so columns of different examples are mixed."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 0)
        return solve(a, columns.reshape(columns.shape[1], -1)).reshape(columns.shape), 0

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Assumes that the batch axis of b is its first one, but `in_axes` can name any axis."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, 0, 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Returns the batch axis 0, but the batching rule has moved it to position 1."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 0

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Treats every batch as one of right-hand sides, but the matrix can be batched too."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        columns = jnp.moveaxis(b, dims[1], 1)
        return solve(a, columns.reshape(len(columns), -1)).reshape(columns.shape), 1

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Always batches both arguments, so a common matrix is repeated for each example."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        each = [
            jnp.broadcast_to(arg, (axis_data.size, *arg.shape)) if dim is None else jnp.moveaxis(arg, dim, 0)
            for arg, dim in zip(args, dims, strict=True)
        ]
        return super().batch(axis_data, tuple(each), (0, 0))

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Uses a function of JAX with its own rules, so the jaxpr has no primitive of yours."
def solve(a, b):
    return jnp.linalg.solve(a, b)


Solve = None


# %% wrong="autodiff-hi-primitive" because="Uses `custom_vjp`, which has no rule for `vmap`. JAX batches its two functions, and each example has a matrix in the backward pass."
@jax.custom_vjp
def solve(a, b):
    return solve_factored(factor(a), b)


def forward(a, b):
    c = factor(a)
    x = solve_factored(c, b)
    return x, (c, x)


def backward(residuals, g):
    w = solve_factored(residuals[0], g)
    return -w @ residuals[1].T, w


solve.defvjp(forward, backward)
Solve = None


# %% wrong="autodiff-hi-primitive" because="Assumes that the batch axis of b is its first one, but `in_axes` can name any axis."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is None:
            batch, n, k = b.shape
            columns = b.transpose(1, 0, 2).reshape(n, batch * k)
            return solve(a, columns).reshape(n, batch, k).transpose(1, 0, 2), 0
        return super().batch(axis_data, args, dims)

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% wrong="autodiff-hi-primitive" because="Calls `solve` in a rule, so the primitive factors the matrix again."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve(a, b)
        return x, (c, x)

    def vjp_bwd_retval(self, res, g):
        c, x = res
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch_dim_rule(self, axis_data, dims):
        return 0

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        b = jnp.moveaxis(b, dims[1], 1)
        x = solve(a, b.reshape(len(b), -1))
        return x.reshape(b.shape), 1


# %% wrong="autodiff-hi-primitive" because="Calls `solve` in a rule, so the primitive factors the matrix again."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (a, x)

    def vjp_bwd_retval(self, res, g):
        a, x = res
        w = solve(a, g)
        return -w @ x.T, w

    def batch_dim_rule(self, axis_data, dims):
        return 0

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        b = jnp.moveaxis(b, dims[1], 1)
        x = solve(a, b.reshape(len(b), -1))
        return x.reshape(b.shape), 1


# %% wrong="autodiff-hi-primitive" because="Returns the batch axis 0, but the batching rule has moved it to position 1."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, res, g):
        c, x = res
        w = solve_factored(c, g)
        return -w @ x.T, w

    def batch_dim_rule(self, axis_data, dims):
        return 0

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        b = jnp.moveaxis(b, dims[1], 1)
        x = solve(a, b.reshape(len(b), -1))
        return x.reshape(b.shape), 0


# %% wrong="autodiff-hi-primitive" because="Uses only the first right-hand side in the cotangent of a."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, res, g):
        c, x = res
        w = solve_factored(c, g)
        return -jnp.outer(w[:, 0], x[:, 0]), w

    def batch_dim_rule(self, axis_data, dims):
        return 0

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        b = jnp.moveaxis(b, dims[1], 1)
        x = solve(a, b.reshape(len(b), -1))
        return x.reshape(b.shape), 1


# %% wrong="autodiff-hi-primitive" because="Symmetrizes the cotangent of a. The task defines it as -w @ x.T."
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, res, g):
        c, x = res
        w = solve_factored(c, g)
        return -(w @ x.T + x @ w.T) / 2, w

    def batch_dim_rule(self, axis_data, dims):
        return 0

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is not None:
            return super().batch(axis_data, args, dims)
        b = jnp.moveaxis(b, dims[1], 1)
        x = solve(a, b.reshape(len(b), -1))
        return x.reshape(b.shape), 1


# %% right="autodiff-hi-primitive"
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, nonzeros, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        c, x = residuals
        w = solve_factored(c, g)
        return -jnp.einsum("ik,jk->ij", w, x), w

    def batch(self, axis_data, args, dims):
        a, b = args
        if dims[0] is None:
            size = self.in_avals[1].shape[1]
            columns = jnp.concatenate(list(jnp.moveaxis(b, dims[1], 0)), axis=1)
            x = Solve(jax.typeof(a), jax.typeof(columns))(a, columns)
            return jnp.stack(jnp.split(x, x.shape[1] // size, axis=1)), 0
        b = b if dims[1] is None else jnp.moveaxis(b, dims[1], 0)
        return super().batch(axis_data, (jnp.moveaxis(a, dims[0], 0), b), (0, None if dims[1] is None else 0))

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% right="autodiff-hi-primitive"
def solve(a, b):
    return Solve(jax.typeof(a), jax.typeof(b))(a, b)


class Solve(VJPHiPrimitive):
    def __init__(self, a, b):
        self.in_avals, self.out_aval, self.params = (a, b), b, {}
        super().__init__()

    def expand(self, a, b):
        return solve_factored(factor(a), b)

    def vjp_fwd(self, _, a, b):
        c = factor(a)
        x = solve_factored(c, b)
        return x, (c, x)

    def vjp_bwd_retval(self, residuals, g):
        factored, solution = residuals
        by_b = solve_factored(factored, g)
        return -(by_b @ jnp.swapaxes(solution, -1, -2)), by_b

    def batch(self, axis_data, args, dims):
        if dims[0] is None:
            b = jnp.moveaxis(args[1], dims[1], -1)
            n, k, count = b.shape
            return solve(args[0], b.reshape(n, k * count)).reshape(n, k, count), 2
        return super().batch(axis_data, args, dims)

    def batch_dim_rule(self, axis_data, dims):
        return 0


# %% [markdown] task="autodiff-delayed-reduction" stars=3 minutes=30 skills="explicit-accumulate,shardmap-gradient-inside,08_control_flow,autodiff-accumulate"
# ## One reduction for a recurrent network
# *Needs: Deeper: shardings of cotangents, and lesson 17, Deeper: unreduced values, or lesson 19.*
#
# **Goal.** A recurrent network uses the same weights at every time step. On a mesh, `jax.grad` then reduces their gradients over the devices once per time step, inside the backward loop. Reduce them once, after the loop.
#
# **Signature.** `recurrent_gradients(params, xs, ys)`. The mesh has the Explicit axis `data`, and may have others. `params` is a dict of replicated float32 arrays, `{"u": (d, h), "w": (h, h), "b": (h,), "v": (h, k)}`. `xs` is a `float32[T,B@data,d]`, a batch of sequences of T steps, and `ys` is a `float32[B@data,k]`. The state starts with zeros. In each step, it becomes `tanh(x @ u + state @ w + b)`. The loss is the mean of `(state @ v - y)**2` over all entries, for the last state. The function returns `(loss, gradients)`, both replicated. If you use types, note that JAX 0.10.2 cannot add a reduced bias to a partitioned array (see *Deeper: shardings of cotangents* in the lesson).
#
# **Example.** For T = 1, `x` of ones with d = 1, `u = b = 0`, `v = w = 1` with h = k = 1, and `y = 2`, the state is 0 and the loss 4. The gradients of `u` and `b` are -4, and those of `w` and `v` are 0.
#
# **Judged.** The values and the types, for several meshes and numbers of steps. The compiled program has loops, its size does not depend on T, and no collective is inside a loop. All collectives are all-reduces, and they return at most 32 elements more than all parameters have together. **Not judged.** Whether you use types or `jax.shard_map`.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is the type of the gradient of a replicated parameter, and of a reduced one? At which point of the program does the reduction happen if the parameters are cast inside the loss?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# With types, `jax.reshard(leaf, P(reduced={"data"}))` inside the loss is enough for matrices, because its transpose reduces the sum. JAX 0.10.2 cannot add a reduced bias to a partitioned array. A product with a column of ones can. With `jax.shard_map`, `jax.lax.pcast(params, "data", to="varying")` before the loop has the same effect.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write the loss as a function of one device: cast the parameters and the initial state to varying along `data`, run the `scan`, and return `jax.lax.pmean` of the local mean. Pass it to `jax.shard_map` with `out_specs=P()`, and take `jax.value_and_grad` **outside**.
#
# </details>


# %% answer="autodiff-delayed-reduction" timeout=20
def recurrent_gradients(params, xs, ys):
    """The loss of the recurrent network and its gradients, with one reduction after the backward loop.
    xs float32[T,B@data,d], ys float32[B@data,k]"""
    ### BEGIN SOLUTION

    def on_one_device(params, xs, ys):
        start = jnp.zeros((xs.shape[1], params["b"].size))
        params, start = jax.lax.pcast((params, start), "data", to="varying")
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state, _ = jax.lax.scan(step, start, xs)
        return jax.lax.pmean(jnp.mean((state @ params["v"] - ys) ** 2), "data")

    specs = P(), P(None, "data"), P("data")
    return jax.value_and_grad(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys)
    ### END SOLUTION


# %% check="autodiff-delayed-reduction" name="example" points=1
"""The example, for eight sequences on eight devices."""
mesh = devices.mesh((8,), ("data",), explicit=True)
one, zero = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
with jax.set_mesh(mesh):
    weights = {"u": zero, "w": one, "b": zero[0], "v": one}
    params = {name: place(mesh, leaf) for name, leaf in weights.items()}
    xs = place(mesh, np.ones((1, 8, 1), np.float32), None, "data")
    ys = place(mesh, np.full((8, 1), 2, np.float32), "data")
    loss, gradients = ask(recurrent_gradients, params, xs, ys)
compare(loss, np.float32(4), label="the loss")
compare(gradients, {"u": -4 * one, "w": zero, "b": -4 * one[0], "v": zero}, label="the gradients")

# %% hidden="autodiff-delayed-reduction" name="program" points=3
"""The loss and the gradients on several meshes, without communication inside a loop."""


def by_hand(params, xs, ys):
    u, w, b, v = (params[name].astype(np.float64) for name in "uwbv")
    states = [np.zeros((xs.shape[1], len(b)))]
    for x in xs.astype(np.float64):
        states.append(np.tanh(x @ u + states[-1] @ w + b))
    wrong = states[-1] @ v - ys
    back = 2 * wrong @ v.T / wrong.size
    total = {"v": states[-1].T @ (2 * wrong / wrong.size), "u": 0, "w": 0, "b": 0}
    for t in reversed(range(len(xs))):
        inner = back * (1 - states[t + 1] ** 2)
        total["u"], total["w"] = total["u"] + xs[t].T @ inner, total["w"] + states[t].T @ inner
        total["b"], back = total["b"] + inner.sum(0), inner @ w.T
    return np.float32(np.mean(wrong**2)), {name: total[name].astype(np.float32) for name in params}


rng = inputs.rng()
operations = []
for sizes, names, steps in (((8,), ("data",), 3), ((8,), ("data",), 6), ((2, 4), ("other", "data"), 4)):
    mesh = devices.mesh(sizes, names, explicit=True)
    d, h, k = (6, 10, 3) if len(sizes) == 1 else (int(size) for size in rng.choice(np.arange(3, 12), 3, replace=False))
    shapes = {"u": (d, h), "w": (h, h), "b": (h,), "v": (h, k)}
    weights = {name: (rng.normal(size=shape) / 2).astype(np.float32) for name, shape in shapes.items()}
    numbers, targets = rng.normal(size=(steps, 16, d)).astype(np.float32), rng.normal(size=(16, k)).astype(np.float32)
    with jax.set_mesh(mesh), case(f"on a mesh {sizes} with {steps} time steps"):
        params = {name: place(mesh, leaf) for name, leaf in weights.items()}
        xs, ys = place(mesh, numbers, None, "data"), place(mesh, targets, "data")
        made = program(recurrent_gradients, params, xs, ys)
        loss, gradients = made.run(params, xs, ys)
        wanted = by_hand(weights, numbers, targets)
        times_too_large = np.linalg.norm(gradients["v"]) / np.linalg.norm(wanted[1]["v"])
        summed = abs(times_too_large - mesh.shape["data"]) < 1e-2
        require(not summed, "the gradients are too large by the number of devices along data.")
        compare(loss, wanted[0], rtol=1e-3, atol=1e-4, label="the loss")
        compare(gradients, wanted[1], rtol=1e-3, atol=1e-4, label="the tree of gradients")
        replicated = all(
            leaf.sharding is None or leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(made.outputs)
        )
        require(replicated, "a result is not replicated.")
        require(made.loops > 0, "the program has no loop over the time steps.")
        inside = sum(one.elements for one in made.collectives if one.in_loop)
        require(inside != h, "the gradient of the bias is still reduced inside a loop.")
        require(inside == 0, "a collective is inside a loop.")
        require(all(one.kind == "all-reduce" for one in made.collectives), "a collective is not an all-reduce.")
        size = sum(leaf.size for leaf in weights.values())
        require(made.elements() <= size + 32, "the collectives return more elements than the parameters have.")
        operations.append(made.operations)
require(operations[0] == operations[1], "The size of the program grows with the number of time steps.")

# %% [markdown] why="autodiff-delayed-reduction"
# The backward loop adds the gradients of a parameter in its carry. If the parameter varies along `data`, or is reduced, this sum contains the partial sums of one device. The transpose of the cast, which stands before the forward loop, follows after the backward loop, and it is the only reduction. **Next:** A tied embedding is used at the beginning and at the end of a model. How many reductions does its gradient need, and where would you place the cast?


# %% wrong="autodiff-delayed-reduction" because="Uses the replicated parameters in the loop, or casts them only inside its body, so every iteration of the backward loop reduces their gradients."
def recurrent_gradients(params, xs, ys):
    def loss(params):
        start = jnp.zeros((xs.shape[1], params["b"].size), out_sharding=P("data", None))
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state, _ = jax.lax.scan(step, start, xs)
        return jnp.mean((state @ params["v"] - ys) ** 2)

    return jax.value_and_grad(loss)(params)


# %% wrong="autodiff-delayed-reduction" because="Uses the replicated parameters in the loop, or casts them only inside its body, so every iteration of the backward loop reduces their gradients."
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        start = jax.lax.pcast(jnp.zeros((xs.shape[1], params["b"].size)), "data", to="varying")
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state, _ = jax.lax.scan(step, start, xs)
        return jax.lax.pmean(jnp.mean((state @ params["v"] - ys) ** 2), "data")

    specs = P(), P(None, "data"), P("data")
    return jax.value_and_grad(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Delays the reduction for the matrices only. The gradient of the bias is still reduced in every iteration."
def recurrent_gradients(params, xs, ys):
    def loss(params):
        reduced = lambda name: jax.reshard(params[name], P(reduced={"data"}))
        u, w, v = reduced("u"), reduced("w"), reduced("v")
        start = jnp.zeros((xs.shape[1], params["b"].size), out_sharding=P("data", None))
        state, _ = jax.lax.scan(lambda s, x: (jnp.tanh(x @ u + s @ w + params["b"]), None), start, xs)
        return jnp.mean((state @ v - ys) ** 2)

    return jax.value_and_grad(loss)(params)


# %% wrong="autodiff-delayed-reduction" because="Casts the bias to reduced and adds it to a partitioned array, for which JAX 0.10.2 has no rule."
def recurrent_gradients(params, xs, ys):
    def loss(params):
        params = jax.tree.map(lambda leaf: jax.reshard(leaf, P(reduced={"data"})), params)
        start = jnp.zeros((xs.shape[1], params["b"].size), out_sharding=P("data", None))
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state, _ = jax.lax.scan(step, start, xs)
        return jnp.mean((state @ params["v"] - ys) ** 2)

    return jax.value_and_grad(loss)(params)


# %% wrong="autodiff-delayed-reduction" because="Uses the replicated parameters in the loop, or casts them only inside its body, so every iteration of the backward loop reduces their gradients."
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        start = jax.lax.pcast(jnp.zeros((xs.shape[1], params["b"].size)), "data", to="varying")

        def step(s, x):
            p = jax.lax.pcast(params, "data", to="varying")
            return jnp.tanh(x @ p["u"] + s @ p["w"] + p["b"]), None

        state, _ = jax.lax.scan(step, start, xs)
        return jax.lax.pmean(jnp.mean((state @ params["v"] - ys) ** 2), "data")

    specs = P(), P(None, "data"), P("data")
    return jax.value_and_grad(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Takes the gradient inside `shard_map` without any reduction, so each device returns the gradient of its own sequences."
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        def loss(params):
            start = jnp.zeros((xs.shape[1], params["b"].size))
            step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
            return jnp.mean((jax.lax.scan(step, start, xs)[0] @ params["v"] - ys) ** 2)

        return jax.value_and_grad(loss)(params)

    specs = P(), P(None, "data"), P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(), check_vma=False)(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Adds the gradients of the devices, although the loss is a mean over all of them."
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        def loss(params):
            start = jax.lax.pcast(jnp.zeros((xs.shape[1], params["b"].size)), "data", to="varying")
            step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
            return jnp.mean((jax.lax.scan(step, start, xs)[0] @ params["v"] - ys) ** 2)

        value, gradients = jax.value_and_grad(loss)(jax.lax.pcast(params, "data", to="varying"))
        return jax.lax.pmean(value, "data"), jax.lax.psum(gradients, "data")

    specs = P(), P(None, "data"), P("data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P())(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Writes the time steps out in Python. There is no loop, and the program grows with the number of steps."
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        params = jax.lax.pcast(params, "data", to="varying")
        state = jnp.zeros((xs.shape[1], params["b"].size))
        for x in xs:
            state = jnp.tanh(x @ params["u"] + state @ params["w"] + params["b"])
        return jax.lax.pmean(jnp.mean((state @ params["v"] - ys) ** 2), "data")

    specs = P(), P(None, "data"), P("data")
    return jax.value_and_grad(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Gathers all sequences on every device. There is no gradient to reduce, but each device computes everything."
def recurrent_gradients(params, xs, ys):
    xs, ys = jax.reshard(xs, P()), jax.reshard(ys, P())

    def loss(params):
        start = jnp.zeros((xs.shape[1], params["b"].size))
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        return jnp.mean((jax.lax.scan(step, start, xs)[0] @ params["v"] - ys) ** 2)

    return jax.value_and_grad(loss)(params)


# %% wrong="autodiff-delayed-reduction" because="Stops the gradient at the state, so only the last time step contributes."
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        start = jnp.zeros((xs.shape[1], params["b"].size))
        params, start = jax.lax.pcast((params, start), "data", to="varying")

        def step(s, x):
            return jnp.tanh(x @ params["u"] + jax.lax.stop_gradient(s) @ params["w"] + params["b"]), None

        state, _ = jax.lax.scan(step, start, xs)
        return jax.lax.pmean(jnp.mean((state @ params["v"] - ys) ** 2), "data")

    specs = P(), P(None, "data"), P("data")
    return jax.value_and_grad(jax.shard_map(on_one_device, in_specs=specs, out_specs=P()))(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Uses the replicated parameters in the loop, or casts them only inside its body, so every iteration of the backward loop reduces their gradients."
def recurrent_gradients(params, xs, ys):

    def loss(params):
        def step(state, x):
            return jnp.tanh(x @ params["u"] + state @ params["w"] + params["b"]), None

        start = jnp.zeros((xs.shape[1], params["w"].shape[0]), out_sharding=P("data", None))
        state, _ = jax.lax.scan(step, start, xs)
        return jnp.mean((state @ params["v"] - ys) ** 2)

    return jax.value_and_grad(loss)(params)


# %% wrong="autodiff-delayed-reduction" because="Divides by the number of devices of the example. The axis `data` can have another size."
def recurrent_gradients(params, xs, ys):

    @jax.shard_map(in_specs=(P(), P(None, "data"), P("data")), out_specs=P())
    def loss(params, xs, ys):
        params = jax.lax.pcast(params, "data", to="varying")

        def step(state, x):
            return jnp.tanh(x @ params["u"] + state @ params["w"] + params["b"]), None

        start = jax.lax.pcast(jnp.zeros((xs.shape[1], params["w"].shape[0])), "data", to="varying")
        state, _ = jax.lax.scan(step, start, xs)
        return jax.lax.psum(jnp.mean((state @ params["v"] - ys) ** 2), "data") / 8

    return jax.value_and_grad(loss)(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Adds the gradients of the devices, although the loss is a mean over all of them."
def recurrent_gradients(params, xs, ys):
    def loss_fn(params, xs, ys, start):
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state = jax.lax.scan(step, start, xs)[0]
        return jnp.mean((state @ params["v"] - ys) ** 2)

    def local(params, xs, ys):
        params, start = jax.lax.pcast((params, jnp.zeros((xs.shape[1], len(params["b"])))), "data", to="varying")
        return jax.lax.psum(loss_fn(params, xs, ys, start), "data")

    f = jax.shard_map(local, in_specs=(P(), P(None, "data"), P("data")), out_specs=P(), axis_names={"data"})
    return jax.value_and_grad(f)(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Computes the loss of all time steps. The task defines it for the last state."
def recurrent_gradients(params, xs, ys):
    def loss_fn(params, xs, ys, start):
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state = jax.lax.scan(lambda s, x: (step(s, x)[0],) * 2, start, xs)[1]
        return jnp.mean((state @ params["v"] - ys) ** 2)

    def local(params, xs, ys):
        params, start = jax.lax.pcast((params, jnp.zeros((xs.shape[1], len(params["b"])))), "data", to="varying")
        return jax.lax.pmean(loss_fn(params, xs, ys, start), "data")

    f = jax.shard_map(local, in_specs=(P(), P(None, "data"), P("data")), out_specs=P(), axis_names={"data"})
    return jax.value_and_grad(f)(params, xs, ys)


# %% wrong="autodiff-delayed-reduction" because="Delays the reduction for the matrices only. The gradient of the bias is still reduced in every iteration."
def recurrent_gradients(params, xs, ys):
    def loss_fn(params, xs, ys, start):
        step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
        state = jax.lax.scan(step, start, xs)[0]
        return jnp.mean((state @ params["v"] - ys) ** 2)

    def local(params, xs, ys):
        start = jax.lax.pcast(jnp.zeros((xs.shape[1], len(params["b"]))), "data", to="varying")
        params = {n: p if n == "b" else jax.lax.pcast(p, "data", to="varying") for n, p in params.items()}
        return jax.lax.pmean(loss_fn(params, xs, ys, start), "data")

    f = jax.shard_map(local, in_specs=(P(), P(None, "data"), P("data")), out_specs=P(), axis_names={"data"})
    return jax.value_and_grad(f)(params, xs, ys)


# %% right="autodiff-delayed-reduction"
def recurrent_gradients(params, xs, ys):
    def loss(params):
        rows = {**params, "b": params["b"][None]}
        p = jax.tree.map(lambda leaf: jax.reshard(leaf, P(reduced={"data"})), rows)
        ones = jnp.ones((xs.shape[1], 1), out_sharding=P("data", None))
        start = jnp.zeros((xs.shape[1], params["b"].size), out_sharding=P("data", None))
        step = lambda s, x: (jnp.tanh(x @ p["u"] + s @ p["w"] + ones @ p["b"]), None)
        state, _ = jax.lax.scan(step, start, xs)
        return jnp.mean((state @ p["v"] - ys) ** 2)

    return jax.value_and_grad(loss)(params)


# %% right="autodiff-delayed-reduction"
def recurrent_gradients(params, xs, ys):
    def on_one_device(params, xs, ys):
        def loss(params):
            start = jax.lax.pcast(jnp.zeros((xs.shape[1], params["b"].size)), "data", to="varying")
            step = lambda s, x: (jnp.tanh(x @ params["u"] + s @ params["w"] + params["b"]), None)
            return jnp.mean((jax.lax.scan(step, start, xs)[0] @ params["v"] - ys) ** 2)

        mine = jax.value_and_grad(loss)(jax.lax.pcast(params, "data", to="varying"))
        return jax.lax.pmean(mine, "data")

    return jax.shard_map(on_one_device, in_specs=(P(), P(None, "data"), P("data")), out_specs=P())(params, xs, ys)
