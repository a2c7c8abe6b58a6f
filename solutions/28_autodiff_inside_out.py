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

# Accelerators round the factors of a product to fewer bits unless told otherwise; here every product keeps all of them.
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
# JAX compares the identity of each residual with that of the arguments. The weights of `affine` are kept as they are, so they need no extra memory. `half` casts them first, and its residuals are new arrays in bfloat16, in addition to the float32 weights. **Next:** A step accumulates four micro-batches and delays all backward passes. Which residuals exist once, and which four times?


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


# %% [markdown] task="autodiff-two-programs" stars=2 minutes=25 skills="03_jit,06_pytrees,21_pipelines_and_experts,autodiff-residual-bytes"
# ## One stage of a pipeline, in 1F1B order
# **Goal.** A stage of a pipeline runs the forward passes and the backward passes of its micro-batches in an order of its own. Compile both passes once, and run them in 1F1B order.
#
# **Signature.** `stage(params, x)` returns `y`. `params` is a tree of float32 arrays. `two_programs(stage)` returns two compiled functions. `forward(params, x)` returns `(y, vjp)` with a VJP object, and `backward(vjp, g)` returns the cotangents of `params` and of `x`, for the cotangent `g` of `y`.
#
# `run_stage(stage, params, xs, ahead, send, receive)` runs the micro-batches in the list `xs`, which have equal shapes. After forward pass i, it calls `send(i, y)`. Before backward pass i, it calls `receive(i)`, which returns the cotangent of this `y`. It starts with `ahead` forward passes (an int of at least 1), or with all of them if there are fewer. Then backward and forward passes alternate, beginning with the backward pass of micro-batch 0. The backward passes that are left follow in order. It returns the **sum** of the cotangents of `params`, and a list with the cotangent of each `x`.
#
# **Example.** With four micro-batches and `ahead=2`, the passes are F0 F1 B0 F2 B1 F3 B2 B3.
#
# **Judged.** The values, for trees of parameters. In `run_stage`, JAX traces `stage` only once and each of its backward rules only once, and the number of compilations does not depend on the number of micro-batches. The calls of `send` and `receive` have the right order, and residuals are stored for at most `ahead` micro-batches. (The order, the residuals and what is compiled are observed.) **Not judged.** The speed.
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
        require(stored <= ahead, "residuals of too many micro-batches are stored at the same time.")

# %% [markdown] why="autodiff-two-programs"
# The compiled forward pass returns VJP objects with one tree structure, which contains the backward program. So the compiled backward pass finds it in its cache. A VJP object that is no longer referenced frees its residuals. `jax.fwd_and_bwd(stage, argnums=(0, 1))` returns the same two programs. **Next:** On several devices, which calls of a stage run at the same time as those of other stages, and what would `send` do?




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
# **Goal.** Add the gradients of several micro-batches to Refs that the caller owns. No micro-batch should need memory for a gradient of all parameters.
#
# **Signature.** `accumulate_in_place(loss, params, refs, batches)`. `params` is a tree of float32 arrays, and `refs` is a tree of the same structure with a Ref of the same shape for each array. `batches` is an array with one micro-batch for each index of its first axis, and `loss(params, batch)` is a scalar. The function adds the gradient of `loss` with respect to `params`, for every micro-batch, to the Refs. It returns the losses, an array with one number for each micro-batch.
#
# **Example.** For `loss = lambda w, x: w * x` with `w = 3`, a Ref that contains 100 and `batches = [1, 2]`, the losses are `[3, 6]`, and the Ref contains 103 afterwards.
#
# **Judged.** The values. For a network of equal layers that are stacked and run by `scan`, the compiled program has a size that does not depend on the number of micro-batches, updates the Refs in the memory of their old values, and its temporary memory is less than half of the bytes of the parameters. **Not judged.** The speed.
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
# In the body, `value, vjp = jax.vjp(lambda params: loss(params, batch), params)`. Then `vjp.with_refs(refs)` is a function, which you call with the cotangent of the loss, `jnp.ones_like(value)`. Its result is only a placeholder.
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
losses, after = many.run(params, totals, batches)
wanted = {name: leaf.astype(np.float64) for name, leaf in totals.items()}
for i, x in enumerate(batches.astype(np.float64)):
    xs = [x]
    for w in params["layers"]:
        xs.append(np.tanh(xs[-1] @ w))
    compare(losses[i], np.float32(np.mean(xs[-1] @ params["out"])), rtol=1e-3, atol=1e-3, label="a loss")
    wanted["out"] += xs[-1].mean(0)
    back = np.tile(params["out"] / len(x), (len(x), 1))
    for j in reversed(range(depth)):
        back = back * (1 - xs[j + 1] ** 2)
        wanted["layers"][j] += xs[j].T @ back
        back = back @ params["layers"][j].T
wanted = {name: leaf.astype(np.float32) for name, leaf in wanted.items()}
compare(after, wanted, rtol=1e-3, atol=1e-3, label="the Refs")
size = sum(leaf.nbytes for leaf in params.values())
require(few.operations == many.operations, "The size of the program grows with the number of micro-batches.")
require(many.alias_bytes == size, "The program does not update the Refs in the memory of their old values.")
require(
    many.temp_bytes < size / 2,
    "The program needs temporary memory for at least half of the parameters, such as for a separate gradient.",
)

# %% [markdown] why="autodiff-accumulate"
# `with_refs` passes the Ref on to the rules of the backward pass. The backward loop over the layers then adds the gradient of each layer to its slice of the Ref. A gradient that is returned is a new array of the size of all parameters, even if it is added to a Ref afterwards. **Next:** What changes if one matrix is used in two places of the network?


# %% wrong="autodiff-accumulate" because="Adds a returned gradient to the Ref. The gradient is a separate array of the size of the parameters."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, gradient = jax.value_and_grad(loss)(params, batch)
        jax.tree.map(lambda ref, leaf: jax.ref.addupdate(ref, ..., leaf), refs, gradient)
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Adds a returned gradient to the Ref. The gradient is a separate array of the size of the parameters."
def accumulate_in_place(loss, params, refs, batches):
    def step(_, batch):
        value, vjp = jax.vjp(lambda params: loss(params, batch), params)
        (gradient,) = vjp(jnp.ones_like(value))
        for ref, leaf in zip(jax.tree.leaves(refs), jax.tree.leaves(gradient), strict=True):
            ref[...] += leaf
        return None, value

    return jax.lax.scan(step, None, batches)[1]


# %% wrong="autodiff-accumulate" because="Sums the gradients in the carry of the loop and adds the sum to the Refs at the end, so there is a second buffer."
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
# ## Where do gradients vanish?
# **Goal.** In a deep network, cotangents often shrink or grow from layer to layer. Log their size in the same backward pass that computes the gradients.
#
# **Signature.** `gradients_and_norms(block, layers, x)`. `layers` is a tree of float32 arrays, whose first axis is that of the L layers. `block(layer, x)` maps an `x` of shape `(n, d)` to the same shape. The network applies the layers in order. Its loss is `mean_square` (setup) of the last result. The function returns `(gradients, norms)`, the gradients of the loss with respect to `layers`, and an array of shape `(L,)`. `norms[i]` is the Euclidean norm (the root of the sum of all squares) of the cotangent of the **result** of layer i.
#
# **Example.** For `block = lambda layer, x: layer * x` with `layers = [2, 3]` and `x = [[1]]`, the result of layer 0 is 2 and that of layer 1 is 6. The loss is 36. The cotangent of 6 is 12, and that of 2 is 36, so the norms are `[36, 12]`. The gradients are `[36, 24]`.
#
# **Judged.** The values, for any block. The program has two loops, one forward and one backward over the layers, and its size does not depend on L. For a network of linear layers, which need no residuals, each array of the program has fewer than L · n · d entries, so the cotangents of all layers are never stored together. **Not judged.** Whether you use a Ref.
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
# The backward rule writes `ref[i] = jnp.linalg.norm(g)` and returns `None, None, g`. Create the Ref inside `gradients_and_norms`. The body of the loop returns `log(ref, i, block(layer, x))`. After `jax.grad`, read the Ref.
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
    layers = {"w": rng.normal(size=(depth, d, d)).astype(np.float32), "b": rng.normal(size=(depth, d)).astype(np.float32)}
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
got, last = many.run(layers, x), x.astype(np.float64)
for layer in layers:
    last = layer + 0.9 * np.roll(last, 1, axis=1)
powers = 0.9 ** np.arange(depth)[::-1]
norms, gradients = (function(2 * last / last.size) * powers for function in (np.linalg.norm, np.sum))
compare(got[1], norms.astype(np.float32), rtol=1e-3, atol=1e-5, label="the array of norms of 24 layers")
compare(got[0], gradients.astype(np.float32), rtol=1e-3, atol=1e-4, label="the gradients of 24 layers")
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


