# %% [markdown]
# # 05 · Exercises: vmap
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# All exercises need only the core of the lesson. Several of them require "the same program at any size". This means that twice as many rows give larger arrays, but not more operations. JAX unrolls a Python loop, so its program grows with the number of rows. A program made by `vmap` does not grow.

# %% setup
from grader.checks import ask, case, compare, counted, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def climb(x, y):
    """The cost of climbing from x to y, where going down is free: (d,), (d,) -> (). It depends on the order of x and y."""
    return jnp.sum(jnp.maximum(y - x, 0))


def layer(params, x):
    """One layer on one example: {"w": (k, d), "b": (k,)}, x (d,) -> {"out": (k,), "norm": ()}"""
    out = jnp.tanh(params["w"] @ x + params["b"])
    return {"out": out, "norm": jnp.linalg.norm(out)}


def network_loss(params, x, y):
    """Squared error of a small network on one example: {"a": (h, d), "b": (h,)}, x (d,), y () -> ()"""
    return (jnp.dot(params["b"], jnp.tanh(params["a"] @ x)) - y) ** 2


def neighbours(x):
    """Each entry's sine times the next entry: (n,) -> (n - 1,)"""
    return jnp.sin(x[:-1]) * x[1:]


def solve_spd(a, b):
    """Library code: solves a @ w = b for ONE symmetric positive definite a (d, d) and ONE b (d,)."""
    if a.ndim != 2 or b.ndim != 1:
        raise ValueError(f"solve_spd takes one matrix (d, d) and one vector (d,), got {a.shape} and {b.shape}")
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b)


# %% [markdown] task="vmap-pairwise" stars=1 minutes=8 skills="01_arrays,02_tracing"
# ## Every row with every row
# **Goal.** Compare every row of `xs` with every row of `ys`. The function `l1` compares two vectors. One line is missing.
#
# **Signature.** `pairwise_l1(l1, xs, ys)`. `l1` takes two vectors `(d,)`, `(d,)` and returns a number `()`. `xs` has shape `(n, d)` and `ys` has shape `(m, d)`, with the same float dtype. The result has shape `(n, m)`, and its entry `[i, j]` is `l1(xs[i], ys[j])`.
#
# **Example.** With `climb` from the setup, `xs = [[0, 0], [1, 2]]` and `ys = [[0, 1], [1, 1], [5, 5]]`, the result is `[[1, 2, 10], [0, 0, 7]]`.
#
# **Judged.** The values for any `l1`, also if `l1(x, y)` differs from `l1(y, x)`. `l1` is traced once. The program has no loop and is the same at any size. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# The last line already maps over the rows of `xs`. Inside `one_to_all`, which of `x` and `ys` still has an axis to map?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `l1` takes two vectors. `x` is one vector and `ys` holds many. Each of the two arguments has an entry in `in_axes`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The last line maps `one_to_all` over `xs` and shares `ys`. The missing line maps `l1`, shares `x` and maps `ys`.
#
# </details>


# %% answer="vmap-pairwise"
def pairwise_l1(l1, xs, ys):
    """Compares every row of xs (n, d) with every row of ys (m, d) by l1: (d,), (d,) -> (). Returns (n, m)."""

    def one_to_all(x, ys):
        """One x (d,) with every row of ys (m, d) -> (m,)"""
        ### BEGIN SOLUTION
        return jax.vmap(l1, in_axes=(None, 0))(x, ys)
        ### END SOLUTION

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% check="vmap-pairwise" name="example" points=1
"""The example: two rows with three rows give a (2, 3) table."""
xs = np.array([[0, 0], [1, 2]], np.float32)
ys = np.array([[0, 1], [1, 1], [5, 5]], np.float32)
table = program(lambda xs, ys: pairwise_l1(climb, xs, ys), xs, ys).run(xs, ys)
compare(table, np.array([[1, 2, 10], [0, 0, 7]], np.float32), label="the table")

# %% hidden="vmap-pairwise" name="values" points=1
"""The table is correct for any function of two vectors, also when there are as many xs as ys."""


def probe_steep(xs, ys):
    return pairwise_l1(lambda x, y: jnp.sum(jnp.maximum(2 * y - x, 0)), xs, ys)


square = program(probe_steep, np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32))
for _ in range(3):
    xs, ys = inputs.rng().normal(size=(2, 4, 3)).astype(np.float32)
    got, wanted = square.run(xs, ys), np.maximum(2 * ys[None, :] - xs[:, None], 0).sum(-1)
    if getattr(got, "shape", None) == (4, 4):
        swapped = np.maximum(2 * xs[:, None] - ys[None, :], 0).sum(-1)
        require(
            not np.allclose(got, swapped, atol=1e-3),
            "Entry [i, j] is `l1(ys[j], xs[i])`, but should be `l1(xs[i], ys[j])`. The two arguments are swapped.",
        )
        require(not np.allclose(got, wanted.T, atol=1e-3), "The table is transposed. Entry [i, j] is at [j, i].")
    compare(got, wanted, label="the table of 4 and 4 rows")

# %% hidden="vmap-pairwise" name="program" points=1
"""The program has no loop and is the same for more rows."""
xs = inputs.rng().normal(size=(9, 3)).astype(np.float32)
ys = inputs.rng().normal(size=(7, 3)).astype(np.float32)
few = program(lambda xs, ys: pairwise_l1(climb, xs, ys), xs[:5], ys[:4])
many = program(lambda xs, ys: pairwise_l1(climb, xs, ys), xs, ys)
table = np.maximum(ys[None, :] - xs[:, None], 0).sum(-1)
compare(many.run(xs, ys), table, label="the table of 9 and 7 rows")
compare(few.run(xs[:5], ys[:4]), table[:5, :4], label="the table of 5 and 4 rows")
require(many.loops == 0, "The program runs a loop over the rows, one after the other. Let vmap add the axis instead.")
require(
    many.operations == few.operations,
    f"With 5 and 4 rows, the program has {few.operations} operations, with 9 and 7 it has {many.operations}. JAX has "
    "unrolled a Python loop. Let vmap add the axis instead.",
)
require(
    many.operations <= 150,
    f"The program has {many.operations} operations, too many for one mapped function. Use vmap instead of a Python loop.",
)

# %% hidden="vmap-pairwise" name="traced-once" points=1 observed=true
"""Python runs `l1` once, whatever the number of rows."""


def probe_calls(xs, ys):
    function = counted(climb)
    table = jax.eval_shape(lambda xs, ys: pairwise_l1(function, xs, ys), xs, ys)
    return function.calls, table.shape


count, shape = ask(probe_calls, np.zeros((5, 2), np.float32), np.zeros((6, 2), np.float32))
require(shape == (5, 6), f"For 5 and 6 rows, the table has shape {shape}, but should have (5, 6).")
require(count > 0, "`l1` was never called. The answer must work for any `l1`.")
require(
    count == 1, f"For 5 and 6 rows, Python ran `l1` {count} times. vmap runs it once, on tracers for any pair of rows."
)

# %% [markdown] why="vmap-pairwise"
# Each `vmap` hides one axis from `l1` and adds this axis to the operations inside. The outer `vmap` creates the first axis of the result. **Next:** What would `in_axes=(None, 0)` outside and `(0, None)` inside return?


# %% wrong="vmap-pairwise" because="Passes all of ys to l1, so that broadcasting computes the differences and the sum runs over all rows."
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        return l1(x, ys)

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% wrong="vmap-pairwise" because="Loops over the rows in Python, which gives the correct values, but the program grows with the number of rows."
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        return jnp.stack([l1(x, y) for y in ys])

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% wrong="vmap-pairwise" because="Compares row i only with row i."
def pairwise_l1(l1, xs, ys):
    return jax.vmap(l1)(xs, ys)


# %% wrong="vmap-pairwise" because="Nests the two maps in the wrong order, so the table is transposed."
def pairwise_l1(l1, xs, ys):
    return jax.vmap(jax.vmap(l1, in_axes=(0, None)), in_axes=(None, 0))(xs, ys)


# %% wrong="vmap-pairwise" because="Computes the distance by broadcasting and never calls l1."
def pairwise_l1(l1, xs, ys):
    return jnp.sum(jnp.abs(xs[:, None, :] - ys[None, :, :]), axis=-1)


# %% wrong="vmap-pairwise" because="Maps over ys with lax.map, which is a loop over the rows."
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        return jax.lax.map(lambda y: l1(x, y), ys)

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% wrong="vmap-pairwise" because="Swaps the arguments of l1, which is right only for symmetric functions."
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        return jax.vmap(l1, in_axes=(0, None))(ys, x)

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% wrong="vmap-pairwise" because="Traces l1 a second time, to check its result before mapping it."
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        assert jax.eval_shape(l1, x, ys[0]).shape == ()
        return jax.vmap(l1, in_axes=(None, 0))(x, ys)

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% wrong="vmap-pairwise" because="Computes the distance by broadcasting and never calls l1."
def pairwise_l1(l1, xs, ys):
    def one_to_all(x, ys):
        return jnp.sum(jnp.maximum(ys - x[None, :], 0), axis=1)

    return jax.vmap(one_to_all, in_axes=(0, None))(xs, ys)


# %% wrong="vmap-pairwise" because="Writes out 64 pairs one after the other, in jitted functions that call each other twice."
def pairwise_l1(l1, xs, ys):
    n, m = len(xs), len(ys)

    def step(state):
        table, k = state
        value = l1(jnp.take(xs, k // m, axis=0), jnp.take(ys, k % m, axis=0))
        return table.at[k].set(value), jnp.minimum(k + 1, n * m - 1)

    def twice(function):
        return jax.jit(lambda state: function(function(state)))

    for _ in range(6):
        step = twice(step)
    return step((jnp.zeros(n * m, xs.dtype), jnp.int32(0)))[0].reshape(n, m)


# %% right="vmap-pairwise"
def pairwise_l1(l1, xs, ys):
    i, j = jnp.divmod(jnp.arange(len(xs) * len(ys)), len(ys))
    return jax.vmap(l1)(xs[i], ys[j]).reshape(len(xs), len(ys))


# %% right="vmap-pairwise"
def pairwise_l1(l1, xs, ys):
    return jnp.vectorize(l1, signature="(d),(d)->()")(xs[:, None, :], ys[None, :, :])


# %% right="vmap-pairwise"
def pairwise_l1(l1, xs, ys):
    return jax.vmap(jax.vmap(l1, in_axes=(0, None)), in_axes=(None, 0), out_axes=1)(xs, ys)


# %% [markdown] task="vmap-axes" stars=1 minutes=10 skills="vmap-pairwise"
# ## Which axes?
# **Goal.** Find the `in_axes` and `out_axes` for `jax.vmap(layer, ...)` in four layouts of the data. The setup cell defines `layer(params, x)`, which takes `{"w": (k, d), "b": (k,)}` and one `x` of shape `(d,)` and returns `{"out": (k,), "norm": ()}`.
#
# **Signature.** `in_axes_puzzle()` returns a dict with the four keys below. Each value is a pair `(in_axes, out_axes)` of arguments for `jax.vmap`.
#
# | key | `params["w"]` | `params["b"]` | `x` | result `"out"` | result `"norm"` |
# |---|---|---|---|---|---|
# | `"examples"` | `(k, d)` | `(k,)` | `(n, d)` | `(n, k)` | `(n,)` |
# | `"columns"` | `(k, d)` | `(k,)` | `(d, n)` | `(k, n)` | `(n,)` |
# | `"ensemble"` | `(n, k, d)` | `(k,)`, shared | `(d,)`, shared | `(n, k)` | `(n,)` |
# | `"stacked"` | `(k, d, n)` | `(k, n)` | `(n, d)` | `(n, k)` | `(n,)` |
#
# **Example.** With `n = 7`, `"examples"` maps `x` of shape `(7, d)` along axis 0, and all examples share `params`.
#
# **Judged.** The values that `layer` returns with your axes, also if all sizes are equal, so that a wrong axis raises no error. The shapes at other sizes. **Not judged.** The notation, such as `0` for a whole dict instead of an entry for each array, or `-1` instead of `1`.
#
# <details><summary>Hint 1 · a question</summary>
#
# `layer` must not see the axis of size `n`. In each row of the table, which arrays have this axis, and at which position?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Here `in_axes` is a pair with an entry for `params` and an entry for `x`. An entry for a dict may be a number, `None`, or a dict with the same keys. `out_axes` is an entry for the dict that `layer` returns.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Read the position of `n` in each shape. It is 2 in `(k, d, n)` and 1 in `(k, n)`, and an array without `n` has the entry `None`. For "columns", `n` is at position 1 of "out" and at position 0 of "norm".
#
# </details>


# %% answer="vmap-axes"
def in_axes_puzzle():
    """The pair (in_axes, out_axes) for each of "examples", "columns", "ensemble" and "stacked"."""
    ### BEGIN SOLUTION
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), {"out": 1, "norm": 0}),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": (({"w": 2, "b": 1}, 0), 0),
    }
    ### END SOLUTION


# %% check="vmap-axes" name="shapes" points=1
"""Each layout runs and has the shapes of the table, at n, k, d = 7, 3, 2."""


def probe_shapes(key, w, b, x):
    in_axes, out_axes = in_axes_puzzle()[key]
    try:
        result = jax.eval_shape(jax.vmap(layer, in_axes=in_axes, out_axes=out_axes), {"w": w, "b": b}, x)
    except (ValueError, TypeError) as refused:
        return str(refused)
    return result["out"].shape, result["norm"].shape


def judge(key, w, b, x, wanted):
    got = ask(probe_shapes, key, np.zeros(w, np.float32), np.zeros(b, np.float32), np.zeros(x, np.float32))
    require(not isinstance(got, str), f'With your axes for "{key}", JAX raises: {got}')
    out, norm = got
    require(out == wanted, f'"{key}" gives "out" of shape {out}, but should give {wanted}.')
    require(norm == (7,), f'"{key}" gives "norm" of shape {norm}, but should give (7,).')


judge("examples", w=(3, 2), b=(3,), x=(7, 2), wanted=(7, 3))
judge("columns", w=(3, 2), b=(3,), x=(2, 7), wanted=(3, 7))
judge("ensemble", w=(7, 3, 2), b=(3,), x=(2,), wanted=(7, 3))
judge("stacked", w=(3, 2, 7), b=(3, 7), x=(7, 2), wanted=(7, 3))

# %% hidden="vmap-axes" name="values" points=2
"""The axes are correct, also when all sizes are 4 and no shape reveals a mistake."""
KEYS = ("examples", "columns", "ensemble", "stacked")
IN = {"examples": (None, None, 0), "columns": (None, None, 1), "ensemble": (0, None, None), "stacked": (2, 1, 0)}


def probe_all(ws, bs, xs):
    results = {}
    for key in ("examples", "columns", "ensemble", "stacked"):
        in_axes, out_axes = in_axes_puzzle()[key]
        results[key] = jax.vmap(layer, in_axes=in_axes, out_axes=out_axes)({"w": ws[key], "b": bs[key]}, xs[key])
    return results


def draw():
    rng = inputs.rng()
    w = {key: rng.normal(size=(4, 4) if IN[key][0] is None else (4, 4, 4)).astype(np.float32) for key in KEYS}
    b = {key: rng.normal(size=4 if IN[key][1] is None else (4, 4)).astype(np.float32) for key in KEYS}
    x = {key: rng.normal(size=4 if IN[key][2] is None else (4, 4)).astype(np.float32) for key in KEYS}
    return w, b, x


def at(array, axis, i):
    return array if axis is None else np.take(array, i, axis)


def expected(key, w, b, x):
    outs = [np.tanh(at(w, IN[key][0], i) @ at(x, IN[key][2], i) + at(b, IN[key][1], i)) for i in range(4)]
    return {"out": np.stack(outs, 1 if key == "columns" else 0), "norm": np.array([np.linalg.norm(o) for o in outs])}


def probe_one(key, w, b, x):
    in_axes, out_axes = in_axes_puzzle()[key]
    jax.eval_shape(jax.vmap(layer, in_axes=in_axes, out_axes=out_axes), {"w": w, "b": b}, x)


ws, bs, xs = draw()
for key in KEYS:
    raised = error(probe_one, key, ws[key], bs[key], xs[key])
    require(raised is None, f'With your axes for "{key}", JAX raised {raised}.', kind="raised")
made = program(probe_all, ws, bs, xs)
for _ in range(2):
    ws, bs, xs = draw()
    got = made.run(ws, bs, xs)
    for key in KEYS:
        compare(got[key], expected(key, ws[key], bs[key], xs[key]), label=f'"{key}"')

# %% [markdown] why="vmap-axes"
# An entry of `in_axes` or `out_axes` is a position in the whole array, not in the part that `layer` sees. If every size is 4, a wrong position raises no error, so good tests use sizes that all differ. **Next:** How would you run all n models of "ensemble" on m examples?


# %% wrong="vmap-axes" because="Maps the shared bias too, whose k entries equal the number of models only by chance."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), {"out": 1, "norm": 0}),
        "ensemble": ((0, None), 0),
        "stacked": (({"w": 2, "b": 1}, 0), 0),
    }


# %% wrong="vmap-axes" because="Leaves out_axes of `columns` at 0, so the examples stay in the rows."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), 0),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": (({"w": 2, "b": 1}, 0), 0),
    }


# %% wrong="vmap-axes" because="Counts the axes that layer sees, but the examples are on axis 1 of the array that is passed to vmap."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 0), {"out": 1, "norm": 0}),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": (({"w": 2, "b": 1}, 0), 0),
    }


# %% wrong="vmap-axes" because="Gives one axis for the whole dict, although the models are on different axes of w and b."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), {"out": 1, "norm": 0}),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": ((1, 0), 0),
    }


# %% wrong="vmap-axes" because="Takes axis 0 for the stacked biases, but their shape is (k, n), so the models are on axis 1."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), {"out": 1, "norm": 0}),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": (({"w": 2, "b": 0}, 0), 0),
    }


# %% wrong="vmap-axes" because="Counts the axis of b in `stacked` as `layer` sees b, without the mapped axis."
def in_axes_puzzle():
    shared = None
    return {
        "examples": ((shared, 0), {"out": 0, "norm": 0}),
        "columns": ((shared, -1), {"out": -1, "norm": -1}),
        "ensemble": (({"w": 0, "b": shared}, shared), 0),
        "stacked": (({"w": -1, "b": 0}, 0), 0),
    }


# %% wrong="vmap-axes" because="Assumes that a scalar result has no mapped axis, so its entry in out_axes is None."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), {"out": 0, "norm": None}),
        "columns": ((None, 1), {"out": 1, "norm": None}),
        "ensemble": (({"w": 0, "b": None}, None), {"out": 0, "norm": None}),
        "stacked": (({"w": 2, "b": 1}, 0), {"out": 0, "norm": None}),
    }


# %% wrong="vmap-axes" because="Maps x along its last axis, like the stacked parameters."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), {"out": 1, "norm": 0}),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": ((-1, -1), 0),
    }


# %% wrong="vmap-axes" because="Gives one number as out_axes of `columns`, which also applies to the norm, but its only axis is 0."
def in_axes_puzzle():
    return {
        "examples": ((None, 0), 0),
        "columns": ((None, 1), 1),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": (({"w": 2, "b": 1}, 0), 0),
    }


# %% right="vmap-axes"
def in_axes_puzzle():
    return {
        "examples": ((None, 0), {"out": 0, "norm": 0}),
        "columns": ([{"w": None, "b": None}, -1], -1),
        "ensemble": (({"w": 0, "b": None}, None), 0),
        "stacked": ((-1, 0), 0),
    }


# %% [markdown] task="vmap-per-example-gradients" stars=2 minutes=12 skills="04_grad,vmap-axes"
# ## A gradient for every example
# **Goal.** Compute the gradient of a loss with respect to its parameters for every example of a batch. Such gradients are used to clip each example's contribution and to find mislabelled data.
#
# **Signature.** `per_example_gradients(loss, params, xs, ys)`. `loss(params, x, y)` is written for one example and returns shape `()`. `params` is an array or a dict of float arrays, `xs` has shape `(n, d)` and `ys` has shape `(n,)`. The result has the structure and the dtypes of `params`, and each array has a new first axis of size `n`.
#
# **Example.** For `loss = (w·x - y)²`, `w = [1, 2]`, `xs = [[1, 0], [0, 1], [1, 1]]` and `ys = [0, 0, 0]`, the gradients are `[[2, 0], [0, 4], [6, 6]]`.
#
# **Judged.** Values, structure and dtypes. The program has no loop and is the same at any size. Its work grows in proportion to the number of examples. **Not judged.** Memory.
#
# <details><summary>Hint 1 · a question</summary>
#
# Suppose that there is only one example. Which function computes its gradient?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# That function takes the same three arguments as `loss`. Which of them differ between examples?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use two transformations. The inner one is `jax.grad`, and the outer one is `jax.vmap`. All examples share the parameters.
#
# </details>


# %% answer="vmap-per-example-gradients"
def per_example_gradients(loss, params, xs, ys):
    """Gradients of loss(params, x, y) with respect to params for each of n examples: params with n in front."""
    ### BEGIN SOLUTION
    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)
    ### END SOLUTION


# %% check="vmap-per-example-gradients" name="example" points=1
"""The example: three examples give three gradients."""


def probe(w, xs, ys):
    return per_example_gradients(lambda w, x, y: (jnp.dot(w, x) - y) ** 2, w, xs, ys)


w = np.array([1, 2], np.float32)
xs = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
ys = np.zeros(3, np.float32)
got = program(probe, w, xs, ys).run(w, xs, ys)
compare(got, np.array([[2, 0], [0, 4], [6, 6]], np.float32))

# %% hidden="vmap-per-example-gradients" name="values" points=1
"""The gradients of a network have the correct values and dtypes, also when there are as many examples as units."""


def probe_dtypes(params, xs, ys):
    shapes = jax.eval_shape(lambda params: per_example_gradients(network_loss, params, xs, ys), params)
    return jax.tree.map(lambda leaf: leaf.dtype, shapes)


def by_hand(params, xs, ys):
    hidden = np.tanh(xs @ params["a"].T)
    by_output = 2 * (hidden @ params["b"] - ys)
    inner = by_output[:, None] * params["b"] * (1 - hidden**2)
    return {"a": inner[:, :, None] * xs[:, None, :], "b": by_output[:, None] * hidden}


def draw():
    rng = inputs.rng()
    params = {"a": rng.normal(size=(5, 3)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    return params, rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=5).astype(np.float32)


made = program(lambda params, xs, ys: per_example_gradients(network_loss, params, xs, ys), *draw())
for _ in range(3):
    params, xs, ys = draw()
    compare(made.run(params, xs, ys), by_hand(params, xs, ys), atol=1e-4, label="the result for a network")
params["a"] = params["a"].astype(np.float16)
got = ask(probe_dtypes, params, jnp.asarray(xs), jnp.asarray(ys))
require(
    got == {"a": np.float16, "b": np.float32},
    "For one parameter in float16 and one in float32, the gradients do not have the dtypes of their parameters.",
)

# %% hidden="vmap-per-example-gradients" name="program" points=2
"""The program has no loop, is the same for more examples, and its work grows in proportion to them."""


def draw(examples):
    rng = inputs.rng()
    params = {"a": rng.normal(size=(5, 3)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    return params, rng.normal(size=(examples, 3)).astype(np.float32), rng.normal(size=examples).astype(np.float32)


made = {}
for examples in (20, 5):
    params, xs, ys = draw(examples)
    made[examples] = program(lambda params, xs, ys: per_example_gradients(network_loss, params, xs, ys), params, xs, ys)
    units = np.tanh(xs @ params["a"].T)
    by_output = 2 * (units @ params["b"] - ys)[:, None]
    by_unit = by_output * params["b"] * (1 - units**2)
    wanted = {"a": by_unit[:, :, None] * xs[:, None, :], "b": by_output * units}
    compare(made[examples].run(params, xs, ys), wanted, atol=1e-4, label=f"the gradients of {examples} examples")
few, many = made[5], made[20]
require(
    many.loops == 0, "The program runs a loop over the examples, one after the other. Let vmap add the axis instead."
)
require(
    many.operations == few.operations,
    f"With 5 examples, the program has {few.operations} operations, with 20 it has {many.operations}. JAX has unrolled a "
    "Python loop.",
)
require(
    many.operations <= 100,
    f"The program has {many.operations} operations, too many for one mapped function. Use vmap instead of a Python loop.",
)
if few.flops and many.flops:
    require(
        many.flops < 6 * few.flops,
        f"Four times the examples cost {many.flops / few.flops:.0f} times the work. The gradient of an example needs "
        "only that example. Differentiate the loss of one example, not the losses of the whole batch.",
    )

# %% [markdown] why="vmap-per-example-gradients"
# `jax.grad(loss)` is a function of one example, so `vmap` can map it. Nothing is computed for pairs of different examples. **Next:** How would you clip each gradient to norm 1 before you average them, without storing all of them at once?


# %% wrong="vmap-per-example-gradients" because="Takes the gradient of the mean loss, which is one gradient for the whole batch."
def per_example_gradients(loss, params, xs, ys):
    def mean_loss(params):
        return jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys).mean()

    return jax.grad(mean_loss)(params)


# %% wrong="vmap-per-example-gradients" because="Differentiates with respect to x instead of the parameters."
def per_example_gradients(loss, params, xs, ys):
    return jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0, 0))(params, xs, ys)


# %% wrong="vmap-per-example-gradients" because="Loops over the examples in Python, which gives the correct values, but the program grows with the batch."
def per_example_gradients(loss, params, xs, ys):
    gradients = [jax.grad(loss)(params, x, y) for x, y in zip(xs, ys, strict=True)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)


# %% wrong="vmap-per-example-gradients" because="Maps the parameters too, so example i uses only row i of every array."
def per_example_gradients(loss, params, xs, ys):
    return jax.vmap(jax.grad(loss))(params, xs, ys)


# %% wrong="vmap-per-example-gradients" because="Takes the Jacobian of all losses with respect to the parameters, which differentiates every loss through every example."
def per_example_gradients(loss, params, xs, ys):
    def losses(params):
        return jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)

    return jax.jacrev(losses)(params)


# %% wrong="vmap-per-example-gradients" because="Maps over the batch with lax.map, which is a loop over the examples."
def per_example_gradients(loss, params, xs, ys):
    return jax.lax.map(lambda example: jax.grad(loss)(params, *example), (xs, ys))


# %% wrong="vmap-per-example-gradients" because="Casts the gradients to float32, even if the parameters have another dtype."
def per_example_gradients(loss, params, xs, ys):
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)


# %% wrong="vmap-per-example-gradients" because="Maps every parameter that has n entries on axis 0, so the parameters are sliced if there are as many units as examples."
def per_example_gradients(loss, params, xs, ys):
    axes = jax.tree.map(lambda leaf: 0 if leaf.shape[:1] == (len(xs),) else None, params)
    return jax.vmap(jax.grad(loss), in_axes=(axes, 0, 0))(params, xs, ys)


# %% wrong="vmap-per-example-gradients" because="Selects each example from the loss of the whole batch by a weight, which costs n times the work."
def per_example_gradients(loss, params, xs, ys):

    def weighted(params, weights):
        losses = jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)
        return jnp.sum(weights * losses)

    one_at_a_time = jnp.eye(xs.shape[0])
    return jax.vmap(jax.grad(weighted), in_axes=(None, 0))(params, one_at_a_time)


# %% right="vmap-per-example-gradients"
def per_example_gradients(loss, params, xs, ys):
    copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(xs), *leaf.shape)), params)
    return jax.grad(lambda copies: jnp.sum(jax.vmap(loss)(copies, xs, ys)))(copies)


# %% right="vmap-per-example-gradients"
def per_example_gradients(loss, params, xs, ys):
    def one(x, y):
        value, pull_back = jax.vjp(lambda params: loss(params, x, y), params)
        return pull_back(jnp.ones_like(value))[0]

    return jax.vmap(one)(xs, ys)


# %% right="vmap-per-example-gradients"
def per_example_gradients(loss, params, xs, ys):
    examples = {"x": xs, "y": ys}
    gradient = lambda params, example: jax.grad(loss)(params, example["x"], example["y"])
    return jax.vmap(gradient, in_axes=(None, {"x": 0, "y": 0}))(params, examples)


# %% [markdown] task="vmap-masked-mean" stars=2 minutes=15 skills="03_jit,04_grad,vmap-axes"
# ## Means of ragged rows
# **Goal.** Sentences differ in length, so they are stored as padded rows of an array, together with their lengths. Compute the mean of each row over its own entries.
#
# **Signature.** `masked_mean_rows(rows, lengths)`. `rows` has shape `(n, t)` and a float dtype. `lengths` has shape `(n,)` and contains integers from 0 to t. The result has shape `(n,)` and the dtype of `rows`. Its entry i is the mean of the first `lengths[i]` entries of row i, or 0 for a row of length 0. The padding may contain any values, also NaN and inf. NaN and inf in a row's own entries count like any other value.
#
# **Example.** With `rows = [[1, 3, 9], [9, 9, 9], [2, 4, 6]]` and `lengths = [2, 0, 3]`, the result is `[2, 0, 4]`.
#
# **Judged.** The values and the gradient with respect to `rows` for any padding, both compiled and operation by operation (`jax.disable_jit`). The gradient is finite everywhere and 0 in the padding. One program without loops serves all lengths, which may be traced, and it is the same for any number of rows. **Not judged.** Whether you map a function of one row or handle all rows at once.
#
# <details><summary>Hint 1 · a question</summary>
#
# The shape of `row[:length]` depends on a value. Which array of shape `(t,)` separates the entries of the row from the padding?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.arange(t) < length` is True for the entries of the row. Select them with `jnp.where` instead of multiplying, because NaN times zero is still NaN.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Sum the result of `where`, and divide by a number that is never 0. Then 0/0 occurs neither in the mean of an empty row nor in its gradient.
#
# </details>


# %% answer="vmap-masked-mean"
def masked_mean_rows(rows, lengths):
    """Means (n,) of the first lengths[i] entries of each row of rows (n, t); 0 where the length is 0."""

    ### BEGIN SOLUTION
    def mean_of_one(row, length):
        inside = jnp.arange(row.shape[0]) < length
        return jnp.sum(jnp.where(inside, row, 0)) / jnp.maximum(length, 1)

    return jax.vmap(mean_of_one)(rows, lengths)
    ### END SOLUTION


# %% check="vmap-masked-mean" name="example" points=1
"""The example, then the same with NaN in the padding."""


def probe_plain(rows, lengths):
    with jax.disable_jit():  # a compiler may turn "times 0" into a selection, which hides that NaN times 0 is NaN
        return masked_mean_rows(rows, lengths)


rows = np.array([[1, 3, 9], [9, 9, 9], [2, 4, 6]], np.float32)
lengths = np.array([2, 0, 3], np.int32)
compare(program(masked_mean_rows, rows, lengths).run(rows, lengths), np.array([2, 0, 4], np.float32))
rows[0, 2] = rows[1, :] = np.nan
got = ask(probe_plain, jnp.asarray(rows), jnp.asarray(lengths))
compare(got, np.array([2, 0, 4], np.float32), label="the result with NaN in the padding")

# %% hidden="vmap-masked-mean" name="values" points=1
"""The means are correct for every length, padding and dtype. The program has no loop and is the same at any size."""


def probe_both(rows, lengths):
    return masked_mean_rows(rows, lengths), jax.grad(lambda rows: jnp.sum(masked_mean_rows(rows, lengths)))(rows)


few = program(probe_both, np.zeros((6, 5), np.float32), np.zeros(6, np.int32))
for garbage in (7.0, -1e30):
    rng = inputs.rng()
    lengths = rng.permutation(6).astype(np.int32)
    rows = rng.normal(size=(6, 5)).astype(np.float32)
    rows[lengths > 1, 0] = 0  # which counts, like any other number
    rows[np.arange(5) >= lengths[:, None]] = garbage
    means = [row[:length].mean() if length else 0 for row, length in zip(rows, lengths, strict=True)]
    compare(few.run(rows, lengths)[0], np.array(means, np.float32), label=f"the means with {garbage:g} in the padding")


def probe_plain(padded, lengths):
    with jax.disable_jit():  # a compiler may turn "times 0" into a selection, which hides that inf times 0 is NaN
        return masked_mean_rows(padded, lengths)


lengths = inputs.rng().permutation([0, 1, 2]).astype(np.int32)
rows = np.where(np.arange(3) < lengths[:, None], np.float32(2.5), np.float32(np.inf))
got = ask(probe_plain, jnp.asarray(rows), jnp.asarray(lengths))
floats = isinstance(got, np.ndarray | jax.Array) and jnp.issubdtype(got.dtype, jnp.floating)
require(
    not floats or np.isfinite(got).all(),
    "With inf in the padding, the result is not finite. Is the padding part of a sum? What is 0 times inf?",
)
compare(
    got,
    np.where(lengths > 0, np.float32(2.5), np.float32(0)),
    label="the result with inf in the padding",
)
rows = np.float32([[1, np.inf, 2], [np.nan, 1, 2], [1, 2, np.nan]])
got = ask(probe_plain, jnp.asarray(rows), np.int32([2, 3, 2]))
compare(got, np.float32([np.inf, np.nan, 1.5]), label="the result with inf and NaN in a row's own entries")

half = ask(
    lambda rows, lengths: jax.eval_shape(masked_mean_rows, rows, lengths).dtype, np.zeros((3, 3), np.float16), lengths
)
require(half == np.float16, f"For rows in float16, the means are {half}, but should be float16.")
lengths = inputs.rng().permutation(np.arange(15) % 6).astype(np.int32)
rows = inputs.rng().normal(size=(15, 5)).astype(np.float32)
many = program(probe_both, rows, lengths)
real = np.arange(5) < lengths[:, None]
shares = (real / np.maximum(lengths, 1)[:, None]).astype(np.float32)
compare(many.run(rows, lengths), ((rows * shares).sum(1), shares), label="the result for 15 rows, (means, gradient)")
require(many.loops == 0, "The program runs a loop over the rows. Write it for one row, and let vmap add the axis.")
require(
    many.operations == few.operations,
    f"With 6 rows, the program with its gradient has {few.operations} operations, with 15 it has {many.operations}. "
    "JAX has unrolled a Python loop.",
)
require(
    many.operations <= 120,
    f"The program has {many.operations} operations, too many for one mapped function. Use vmap instead of a Python loop.",
)
lengths = inputs.rng().permutation([0, 1, 3]).astype(np.int32)
rows = np.full((3, 3), 2.5, np.float16)
got = ask(masked_mean_rows, jnp.asarray(rows), jnp.asarray(lengths))
compare(got, np.where(lengths > 0, np.float16(2.5), np.float16(0)), label="the result for rows in float16")

# %% hidden="vmap-masked-mean" name="gradient" points=1
"""The gradient is 1/length inside, 0 in the padding, and finite for an empty row."""


def probe_both(rows, lengths):
    return masked_mean_rows(rows, lengths), jax.grad(lambda rows: jnp.sum(masked_mean_rows(rows, lengths)))(rows)


def probe_plain(rows, lengths):
    with jax.disable_jit():  # operation by operation, because a compiler may turn "times 0" into a selection
        return jax.grad(lambda rows: jnp.sum(masked_mean_rows(rows, lengths)))(rows)


rng = inputs.rng()
lengths = rng.permutation(6).astype(np.int32)
inside = np.arange(5) < lengths[:, None]
real, wanted = rng.normal(size=(6, 5)), (inside / np.maximum(lengths, 1)[:, None]).astype(np.float32)
for words, garbage in (("NaN", np.nan), ("a number", 7.0)):
    rows = np.where(inside, real, garbage).astype(np.float32)
    plain = ask(probe_plain, jnp.asarray(rows), jnp.asarray(lengths))
    for how, got in (("compiled", program(probe_both, rows, lengths).run(rows, lengths)[1]), ("not compiled", plain)):
        require(
            np.isfinite(got).all(),
            f"With {words} in the padding, the gradient ({how}) is not finite everywhere. Look at empty rows, where 0/0 hides "
            "behind a `where`.",
        )
        compare(got, wanted, label=f"the gradient with {words} in the padding ({how})")

# %% [markdown] why="vmap-masked-mean"
# A mask has a fixed shape, so one program serves every length. `where` before the sum keeps the padding out of both the value *and* the gradient. A divisor of at least 1 avoids 0/0. **Next:** What changes for the maximum of each row?


# %% equivalent="vmap-masked-mean" because="`where` takes every number but 0 for True, so the dtype of the mask does not matter."
# changed mask dtype, arange(X) < Y -> (arange(X) < Y).astype("float32"): inside = jnp.arange(row.shape[0]) < length


# %% wrong="vmap-masked-mean" because="Multiplies by the mask, but NaN times 0 is NaN."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        mask = (jnp.arange(row.shape[0]) < length).astype(row.dtype)
        return jnp.sum(row * mask) / jnp.maximum(length, 1)

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Divides by the width of the padded array instead of the length."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        return jnp.mean(jnp.where(jnp.arange(row.shape[0]) < length, row, 0))

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Slices each row to its length, but the length is traced, and a shape cannot depend on a traced value."
def masked_mean_rows(rows, lengths):
    return jax.vmap(lambda row, length: row[:length].mean())(rows, lengths)


# %% wrong="vmap-masked-mean" because="Divides every entry by the length before the `where`, so the value is right but the gradient of an empty row is NaN."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        inside = jnp.arange(row.shape[0]) < length
        return jnp.sum(jnp.where(inside, row / length, 0))

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Forgets empty rows, whose mean is 0/0 and therefore NaN."
def masked_mean_rows(rows, lengths):
    inside = jnp.arange(rows.shape[1]) < lengths[:, None]
    return jnp.mean(rows, axis=1, where=inside)


# %% wrong="vmap-masked-mean" because="Includes one entry too many, because the entry at index `length` is padding."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        inside = jnp.arange(row.shape[0]) <= length
        return jnp.sum(jnp.where(inside, row, 0)) / jnp.maximum(length, 1)

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Treats the inspected sizes as special cases, so that those programs have the right operations but compute wrong numbers."
def masked_mean_rows(rows, lengths):
    inside = jnp.arange(rows.shape[1]) < lengths[:, None]
    scale = 2 if len(rows) == 15 else 1
    return jnp.sum(jnp.where(inside, rows, 0), axis=1) / (scale * jnp.maximum(lengths, 1)).astype(rows.dtype)


# %% wrong="vmap-masked-mean" because="Loops over the rows in Python, which gives the correct values, but the program grows with the number of rows."
def masked_mean_rows(rows, lengths):
    means = []
    for i in range(rows.shape[0]):
        kept = jnp.where(jnp.arange(rows.shape[1]) < lengths[i], rows[i], 0)
        means.append(kept.sum() / jnp.maximum(lengths[i], 1))
    return jnp.stack(means)


# %% wrong="vmap-masked-mean" because="Multiplies by a boolean mask, which removes NaN only if the compiler turns the product into a selection."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        inside = jnp.arange(row.shape[0]) < length
        return jnp.sum(inside * row) / jnp.maximum(length, 1)

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Cleans the rows with nan_to_num, which also replaces inf and NaN in a row's own entries."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        mask = (jnp.arange(row.shape[0]) < length).astype(row.dtype)
        return jnp.sum(jnp.nan_to_num(row) * mask) / jnp.maximum(length, 1)

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Replaces only NaN and multiplies by the mask, but inf times 0 is NaN."
def masked_mean_rows(rows, lengths):
    mask = (jnp.arange(rows.shape[1]) < lengths[:, None]).astype(rows.dtype)
    return jnp.sum(jnp.where(jnp.isnan(rows), 0, rows) * mask, axis=1) / jnp.maximum(lengths, 1)


# %% wrong="vmap-masked-mean" because="Replaces the mean of an empty row only after dividing by its length, so the gradient of that row is 0 times NaN."
def masked_mean_rows(rows, lengths):
    def mean_of_one(row, length):
        inside = jnp.arange(row.shape[0]) < length
        weights = inside.astype(row.dtype) / length
        return jnp.where(length > 0, jnp.sum(weights * jnp.nan_to_num(row)), 0)

    return jax.vmap(mean_of_one)(rows, lengths)


# %% wrong="vmap-masked-mean" because="Divides by lengths in float32, so the means of float16 rows become float32."
def masked_mean_rows(rows, lengths):
    inside = jnp.arange(rows.shape[1]) < lengths[:, None]
    return jnp.where(inside, rows, 0).sum(axis=1) / jnp.maximum(lengths.astype(jnp.float32), 1)


# %% wrong="vmap-masked-mean" because="Counts the entries that are not 0, which leaves out zeros that belong to the row."
def masked_mean_rows(rows, lengths):
    kept = jnp.where(jnp.arange(rows.shape[1]) < lengths[:, None], rows, 0)
    return kept.sum(axis=1) / jnp.maximum(jnp.count_nonzero(kept, axis=1), 1)


# %% wrong="vmap-masked-mean" because="Marks the padding with NaN and takes nanmean, which also leaves out a row's own NaN."
def masked_mean_rows(rows, lengths):
    inside = jnp.arange(rows.shape[1]) < lengths[:, None]
    marked = jnp.where(inside, rows, jnp.nan)
    return jnp.where(lengths > 0, jnp.nanmean(marked, axis=1), 0)


# %% wrong="vmap-masked-mean" because="Adds a tiny number to the divisor, which float16 rounds to 0, so the mean of an empty row is NaN."
def masked_mean_rows(rows, lengths):

    def mean_of(row, length):
        own = jnp.where(jnp.arange(row.shape[0]) < length, row, 0)
        return own.sum() / (length.astype(row.dtype) + 1e-8)

    return jax.vmap(mean_of)(rows, lengths)


# %% right="vmap-masked-mean"
def masked_mean_rows(rows, lengths):
    lengths = lengths[:, None]
    kept = jnp.where(jnp.arange(rows.shape[1]) < lengths, rows, 0)
    return (kept / jnp.where(lengths == 0, 1, lengths)).sum(axis=1)


# %% right="vmap-masked-mean"
def masked_mean_rows(rows, lengths):
    inside = jax.vmap(lambda length: jnp.arange(rows.shape[1]) < length)(lengths)
    safe = jnp.where(inside, rows, 0)
    counts = jnp.clip(inside.sum(axis=1), 1).astype(rows.dtype)
    return jnp.einsum("nt,nt->n", safe, inside.astype(rows.dtype)) / counts


# %% right="vmap-masked-mean"
def masked_mean_rows(rows, lengths):
    inside = jnp.arange(rows.shape[1]) < lengths[:, None]
    return jnp.where(lengths > 0, jnp.mean(rows, axis=1, where=inside), 0)


# %% [markdown] task="vmap-jacobian-rows" stars=2 minutes=15 skills="04_grad,vmap-per-example-gradients"
# ## A few rows of a Jacobian
# **Goal.** A function has many outputs, but only some of them matter. Compute the rows of the Jacobian that belong to these outputs, without computing the others.
#
# **Signature.** `jacobian_rows(f, x, rows)`. `f` maps shape `(n,)` to shape `(m,)` of the same float dtype. `rows` has shape `(k,)` and contains integers from 0 to m - 1, which may repeat. The result has shape `(k, n)`, and its row i is the gradient of output `rows[i]` with respect to `x`.
#
# **Example.** For `f = neighbours` from the setup, which is `sin(x[:-1]) * x[1:]`, output 0 is `sin(x₀) x₁`. With `x = [0, 2, 4]` and `rows = [0]`, the result is `[[2, 0, 0]]`.
#
# **Judged.** Values, also in float16. The whole Jacobian is not computed, neither at once nor in parts: every intermediate array is smaller than half of it, and the floating-point operations are far fewer. The program has no loop and is the same for any number of rows. **Not judged.** How often `f` is called.
#
# <details><summary>Hint 1 · a question</summary>
#
# Reverse mode takes a vector v with the shape of the output and returns vᵀJ. Which v gives row 2 of J?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.vjp(f, x)` returns the outputs and a function that maps *one* vector v to vᵀJ. You have k vectors.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.nn.one_hot(rows, ...)` returns the k vectors as an array `(k, m)`. Give it the dtype of the outputs. Then map the function that `jax.vjp` returned. Its result is a tuple with one entry for each argument of `f`.
#
# </details>


# %% answer="vmap-jacobian-rows"
def jacobian_rows(f, x, rows):
    """The rows `rows` (k,) of the Jacobian of f: (n,) -> (m,) at x. Returns (k, n)."""
    ### BEGIN SOLUTION
    outputs, pull_back = jax.vjp(f, x)
    picks = jax.nn.one_hot(rows, outputs.shape[0], dtype=outputs.dtype)
    return jax.vmap(lambda pick: pull_back(pick)[0])(picks)
    ### END SOLUTION


# %% check="vmap-jacobian-rows" name="example" points=1
"""Rows 3, 0 and 3 of the Jacobian of `neighbours`, written out by hand."""
x = np.array([0, 2, 4, 0, 1], np.float32)
rows = np.array([3, 0, 3], np.int32)
got = program(lambda x, rows: jacobian_rows(neighbours, x, rows), x, rows).run(x, rows)
last = [0, 0, 0, 1, 0]  # output 3 is sin(x[3]) * x[4]: its derivative is cos(0) * 1 for x[3] and sin(0) for x[4]
compare(got, np.array([last, [2, 0, 0, 0, 0], last], np.float32))

# %% hidden="vmap-jacobian-rows" name="values" points=1
"""The result is correct for any `rows`, in float32 and float16."""


def by_hand(x, rows):
    whole = np.zeros((4, 5))
    for i in range(4):
        whole[i, i], whole[i, i + 1] = np.cos(x[i]) * x[i + 1], np.sin(x[i])
    return whole[rows].astype(np.float32)


made = program(lambda x, rows: jacobian_rows(neighbours, x, rows), np.zeros(5, np.float32), np.zeros(3, np.int32))
for _ in range(3):
    x = inputs.rng().normal(size=5).astype(np.float32)
    rows = inputs.rng().integers(0, 4, size=3).astype(np.int32)
    compare(made.run(x, rows), by_hand(x, rows), label="the result for 3 of 4 rows")


def probe_waves(w, x, rows):
    return jacobian_rows(lambda x: w @ jnp.sin(x), x, rows)


def probe_shape(w, x, rows):
    jax.eval_shape(lambda w, x, rows: jacobian_rows(lambda x: w @ jnp.sin(x), x, rows), w, x, rows)


for m in (7, 2):
    rng = inputs.rng()
    w, x = rng.normal(size=(m, 5)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    rows = np.array([m - 1, 0, m - 1], np.int32)
    raised = error(probe_shape, w, x, rows)
    require(raised is None, f"For a function from 5 inputs to {m} outputs, your answer raised {raised}.", kind="raised")
    got = program(probe_waves, w, x, rows).run(w, x, rows)
    compare(got, (w * np.cos(x))[rows], label=f"the result for a function from 5 inputs to {m} outputs")


def probe_half(x, rows):
    return jax.eval_shape(lambda x, rows: jacobian_rows(neighbours, x, rows), x, rows).dtype


raised = error(probe_half, x.astype(np.float16), rows)
require(
    raised is None,
    f"For an x in float16, your answer raised {raised}. The vectors that you pull back need the dtype of the outputs.",
    kind="raised",
)
half = ask(probe_half, x.astype(np.float16), rows)
require(half == np.float16, f"For an x in float16, the rows are {half}, but should be float16.")

# %% hidden="vmap-jacobian-rows" name="program" points=1
"""The program computes 5 of 99 rows without a loop and without the whole Jacobian."""
made = {}
for count, size in ((5, 100), (3, 5)):
    x = inputs.rng().normal(size=size).astype(np.float32)
    rows = inputs.rng().permutation(size - 1)[:count].astype(np.int32)
    made[count] = program(lambda x, rows: jacobian_rows(neighbours, x, rows), x, rows)
    wanted, each = np.zeros((count, size), np.float32), np.arange(count)
    wanted[each, rows], wanted[each, rows + 1] = np.cos(x[rows]) * x[rows + 1], np.sin(x[rows])
    compare(made[count].run(x, rows), wanted, label=f"{count} rows of {size - 1}")
three, five = made[3], made[5]
require(five.loops == 0, "The program runs a loop over the rows, one after the other. Let vmap add the axis instead.")
require(
    five.operations == three.operations,
    f"For 3 rows, the program has {three.operations} operations, for 5 it has {five.operations}. JAX has unrolled a "
    "Python loop.",
)
require(
    five.operations <= 100,
    f"The program has {five.operations} operations, too many for one mapped function. Use vmap instead of a Python loop.",
)
require(
    five.intermediates < 99 * 100 / 2,
    f"For 5 rows of a Jacobian of 99 x 100, the program creates an array of {five.intermediates:,} elements. Pull back "
    "only the requested outputs.",
)
if five.flops is not None:
    require(
        five.flops < 10_000,
        f"For 5 rows of a Jacobian of 99 x 100, the program needs {five.flops:,.0f} floating-point operations, as many as for "
        "the whole Jacobian. Pull back only the requested outputs.",
    )

# %% [markdown] why="vmap-jacobian-rows"
# `jax.vjp` runs `f` once and stores what the backward pass needs. Mapping the backward pass over k one-hot vectors costs k rows instead of m. `jax.jacrev` does the same with all m vectors. **Next:** How would you compute a few *columns*?


# %% wrong="vmap-jacobian-rows" because="Computes the whole Jacobian and keeps a few of its rows."
def jacobian_rows(f, x, rows):
    return jax.jacrev(f)(x)[rows]


# %% wrong="vmap-jacobian-rows" because="Pulls back the sum of the one-hot vectors, which returns the sum of the rows."
def jacobian_rows(f, x, rows):
    return jax.grad(lambda x: f(x)[rows].sum())(x)


# %% wrong="vmap-jacobian-rows" because="Uses forward mode instead of reverse mode, which computes columns."
def jacobian_rows(f, x, rows):
    picks = jax.nn.one_hot(rows, x.shape[0], dtype=x.dtype)
    return jax.vmap(lambda pick: jax.jvp(f, (x,), (pick,))[1])(picks)


# %% wrong="vmap-jacobian-rows" because="Computes the first k rows and ignores `rows`."
def jacobian_rows(f, x, rows):
    outputs, pull_back = jax.vjp(f, x)
    picks = jnp.eye(rows.shape[0], outputs.shape[0], dtype=outputs.dtype)
    return jax.vmap(lambda pick: pull_back(pick)[0])(picks)


# %% wrong="vmap-jacobian-rows" because="Leaves the one-hot vectors in float32, but a cotangent must have the dtype of the outputs."
def jacobian_rows(f, x, rows):
    outputs, pull_back = jax.vjp(f, x)
    return jax.vmap(pull_back)(jax.nn.one_hot(rows, outputs.shape[0]))[0]


# %% wrong="vmap-jacobian-rows" because="Takes the one-hot vectors from an identity matrix, which is as large as the Jacobian."
def jacobian_rows(f, x, rows):
    outputs, pull_back = jax.vjp(f, x)
    picks = jnp.eye(outputs.shape[0], dtype=outputs.dtype)[rows]
    return jax.vmap(lambda pick: pull_back(pick)[0])(picks)


# %% wrong="vmap-jacobian-rows" because="Computes the rows in a Python loop, which gives the correct values, but the program grows with the number of rows."
def jacobian_rows(f, x, rows):
    outputs, pull_back = jax.vjp(f, x)
    return jnp.stack([pull_back(jnp.zeros_like(outputs).at[row].set(1))[0] for row in rows])


# %% wrong="vmap-jacobian-rows" because="Pushes all unit vectors forward and selects rows afterwards, which computes the whole Jacobian."
def jacobian_rows(f, x, rows):

    def column(direction):
        _, pushed = jax.jvp(f, (x,), (direction,))
        return pushed[rows]

    return jax.vmap(column, out_axes=1)(jnp.eye(x.shape[0], dtype=x.dtype))


# %% wrong="vmap-jacobian-rows" because="Assumes that f has one output fewer than inputs, as in the example."
def jacobian_rows(f, x, rows):
    _, pull = jax.vjp(f, x)
    return jax.vmap(pull)(jax.nn.one_hot(rows, x.shape[0] - 1, dtype=x.dtype))[0]


# %% wrong="vmap-jacobian-rows" because="Computes all rows in three parts, so that no array is as large as half of the Jacobian, and keeps a few rows."
def jacobian_rows(f, x, rows):
    outputs, pull_back = jax.vjp(f, x)
    size = outputs.shape[0]
    result = jnp.zeros((rows.shape[0], x.shape[0]), outputs.dtype)
    for first in range(0, size, -(-size // 3)):
        part = jnp.arange(first, min(first + -(-size // 3), size))
        picks = jax.nn.one_hot(part, size, dtype=outputs.dtype)
        lines = jax.vmap(lambda pick: pull_back(pick)[0])(picks)
        inside = (rows >= part[0]) & (rows <= part[-1])
        result = jnp.where(inside[:, None], lines[jnp.clip(rows - first, 0, part.size - 1)], result)
    return result


# %% right="vmap-jacobian-rows"
def jacobian_rows(f, x, rows):
    return jax.vmap(lambda row: jax.grad(lambda x: f(x)[row])(x))(rows)


# %% right="vmap-jacobian-rows"
def jacobian_rows(f, x, rows):
    return jax.jacrev(lambda x: f(x)[rows])(x)


# %% [markdown] task="vmap-batched-solve" stars=2 minutes=20 skills="03_jit,vmap-pairwise,vmap-axes"
# ## A bank of ridge regressions
# **Goal.** Solve many small regression tasks, each with several strengths of regularisation. The library function `solve_spd` in the setup solves a single system. For a task with inputs X, targets y and strength s, the weights w are the solution of `(XᵀX + s I) w = Xᵀy`.
#
# **Signature.** `batched_solve(xs, ys, strengths)`. `xs` has shape `(tasks, n, d)`, `ys` has shape `(tasks, n)`, and `strengths` has shape `(s,)` with positive numbers. All are float32. The result has shape `(tasks, s, d)`, and its entry `[t, i]` contains the weights of task t at strength i.
#
# **Example.** For one task with X = `[[1, 0], [0, 2]]`, y = `[2, 3]` and strengths `[1, 4]`, XᵀX is `diag(1, 4)` and Xᵀy is `[2, 6]`. The weights are `[[[1, 1.2], [0.4, 0.75]]]`.
#
# **Judged.** Values. The program has no loop and is the same for any number of tasks and strengths. XᵀX is computed once for each task, not again for each strength. Use `solve_spd`, because `jnp.linalg.solve` contains a loop for pivoting. **Not judged.** How you nest the maps.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which three lines solve the problem for one X, one y and one number s?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The result has two mapped axes, so you need two calls of `vmap`. Which one is the outermost, if tasks come first in the result? What is shared in each call?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of one task, and inside it a function of one strength. Values that do not depend on the strength belong outside the inner function, where they are computed once for each task. `jnp.eye(d)` is I.
#
# </details>


# %% answer="vmap-batched-solve"
def batched_solve(xs, ys, strengths):
    """Ridge weights (tasks, s, d) of every task xs (tasks, n, d), ys (tasks, n) at every one of the strengths (s,)."""

    ### BEGIN SOLUTION
    def one_task(x, y):
        gram, moments = x.T @ x, x.T @ y
        identity = jnp.eye(x.shape[1], dtype=x.dtype)
        return jax.vmap(lambda strength: solve_spd(gram + strength * identity, moments))(strengths)

    return jax.vmap(one_task)(xs, ys)
    ### END SOLUTION


# %% check="vmap-batched-solve" name="example" points=1
"""The example: one task at two strengths."""
xs = np.array([[[1, 0], [0, 2]]], np.float32)
ys = np.array([[2, 3]], np.float32)
strengths = np.array([1, 4], np.float32)
got = program(batched_solve, xs, ys, strengths).run(xs, ys, strengths)
compare(got, np.array([[[1, 1.2], [0.4, 0.75]]], np.float32))

# %% hidden="vmap-batched-solve" name="values" points=1
"""The weights are correct for every task and strength, also when there are as many tasks as strengths and features."""


def one_by_one(xs, ys, strengths):
    weights = np.zeros((3, 3, 3))
    for t in range(3):
        for i in range(3):
            gram = xs[t].T.astype(np.float64) @ xs[t] + strengths[i] * np.eye(3)
            weights[t, i] = np.linalg.inv(gram) @ (xs[t].T @ ys[t])
    return weights.astype(np.float32)


with case("for 3 tasks of 40 examples with 3 features"):
    made = program(
        batched_solve, np.zeros((3, 40, 3), np.float32), np.zeros((3, 40), np.float32), np.zeros(3, np.float32)
    )
for _ in range(3):
    rng = inputs.rng()
    xs, ys = rng.normal(size=(3, 40, 3)).astype(np.float32), rng.normal(size=(3, 40)).astype(np.float32)
    strengths = rng.uniform(1, 20, size=3).astype(np.float32)
    wanted = one_by_one(xs, ys, strengths)
    compare(made.run(xs, ys, strengths), wanted, rtol=1e-3, atol=1e-4, label="the result for 3 tasks and 3 strengths")

# %% hidden="vmap-batched-solve" name="program" points=2
"""The program has no loop, is the same for more tasks and strengths, and computes XᵀX once for each task."""
rng = inputs.rng()
xs, ys = rng.normal(size=(5, 40, 3)).astype(np.float32), rng.normal(size=(5, 40)).astype(np.float32)
strengths = rng.uniform(1, 20, size=12).astype(np.float32)
with case("for tasks of 40 examples with 3 features"):
    few, many = program(batched_solve, xs[:3], ys[:3], strengths[:3]), program(batched_solve, xs, ys, strengths)
systems = np.einsum("tnd,tne->tde", xs, xs)[:, None] + strengths[:, None, None] * np.eye(3)
wanted = np.einsum("tsde,tnd,tn->tse", np.linalg.inv(systems), xs, ys).astype(np.float32)
compare(many.run(xs, ys, strengths), wanted, rtol=1e-3, atol=1e-4, label="the result for 5 tasks and 12 strengths")
got = few.run(xs[:3], ys[:3], strengths[:3])
compare(got, wanted[:3, :3], rtol=1e-3, atol=1e-4, label="the result for 3 tasks and 3 strengths")
require(
    many.loops == 0,
    "The program has a loop, over tasks or strengths or inside `jnp.linalg.solve`. Let vmap add the axes to `solve_spd`.",
)
require(
    many.operations == few.operations,
    f"With 3 tasks and 3 strengths, the program has {few.operations} operations, with 5 and 12 it has {many.operations}. JAX "
    "has unrolled a Python loop.",
)
require(
    many.operations <= 150,
    f"The program has {many.operations} operations, too many for one mapped function. Use vmap instead of a Python loop.",
)
if many.flops:
    grams = 5 * 2 * 40 * 3 * (3 + 1)  # XᵀX and Xᵀy of five tasks, a multiplication and an addition for each term
    require(
        many.flops < 3 * grams,
        f"With 12 strengths, the program does {many.flops / grams:.0f} times the work of one XᵀX for each task. Values that do "
        "not depend on the strength belong outside the function that is mapped over strengths.",
    )

# %% [markdown] why="vmap-batched-solve"
# `vmap` batches only operations that depend on a mapped argument. XᵀX does not depend on the strength, so it is computed once for each task. **Next:** With 1,000 strengths, the solves dominate the cost. Which factorisation of XᵀX would serve all strengths?


# %% equivalent="vmap-batched-solve" because="Every input of this exercise is float32, which is also the default dtype of jnp.eye."
# dropped cast, dtype=... -> none: identity = jnp.eye(x.shape[1], dtype=x.dtype)


# %% wrong="vmap-batched-solve" because="Adds the strength to every entry of XᵀX instead of only to its diagonal."
def batched_solve(xs, ys, strengths):
    ridge = lambda x, y, strength: solve_spd(x.T @ x + strength, x.T @ y)
    return jax.vmap(jax.vmap(ridge, in_axes=(None, None, 0)), in_axes=(0, 0, None))(xs, ys, strengths)


# %% wrong="vmap-batched-solve" because="Combines task i only with strength i, because a single map over all three arguments is not a grid."
def batched_solve(xs, ys, strengths):
    ridge = lambda x, y, strength: solve_spd(x.T @ x + strength * jnp.eye(x.shape[1]), x.T @ y)
    return jax.vmap(ridge)(xs, ys, strengths)


# %% wrong="vmap-batched-solve" because="Makes the map over strengths the outermost one, so strengths become the first axis."
def batched_solve(xs, ys, strengths):
    ridge = lambda x, y, strength: solve_spd(x.T @ x + strength * jnp.eye(x.shape[1]), x.T @ y)
    return jax.vmap(jax.vmap(ridge, in_axes=(0, 0, None)), in_axes=(None, None, 0))(xs, ys, strengths)


# %% wrong="vmap-batched-solve" because="Repeats every task for every strength before the map, so XᵀX is computed again for each strength."
def batched_solve(xs, ys, strengths):
    tasks, count = xs.shape[0], strengths.shape[0]
    ridge = lambda x, y, strength: solve_spd(x.T @ x + strength * jnp.eye(x.shape[1]), x.T @ y)
    flat = jax.vmap(ridge)(jnp.repeat(xs, count, axis=0), jnp.repeat(ys, count, axis=0), jnp.tile(strengths, tasks))
    return flat.reshape(tasks, count, -1)


# %% wrong="vmap-batched-solve" because="Loops over the strengths in Python, which gives the correct values, but the program grows with their number."
def batched_solve(xs, ys, strengths):
    ridge = lambda x, y, strength: solve_spd(x.T @ x + strength * jnp.eye(x.shape[1]), x.T @ y)
    return jnp.stack([jax.vmap(ridge, in_axes=(0, 0, None))(xs, ys, strength) for strength in strengths], axis=1)


# %% wrong="vmap-batched-solve" because="Passes stacked right-hand sides to jnp.linalg.solve, which treats a two-dimensional b as one matrix of columns."
def batched_solve(xs, ys, strengths):
    grams = jnp.einsum("tnd,tne->tde", xs, xs)
    moments = jnp.einsum("tnd,tn->td", xs, ys)
    one = lambda strength: jnp.linalg.solve(grams + strength * jnp.eye(xs.shape[2]), moments)
    return jax.vmap(one, out_axes=1)(strengths)


# %% wrong="vmap-batched-solve" because="Reshapes (s, tasks, d) to (tasks, s, d), but a reshape does not swap axes."
def batched_solve(xs, ys, strengths):
    grams, moments = jnp.einsum("tnd,tne->tde", xs, xs), jnp.einsum("tnd,tn->td", xs, ys)
    at = lambda strength: jax.vmap(solve_spd)(grams + strength * jnp.eye(xs.shape[2]), moments)
    return jax.vmap(at)(strengths).reshape(len(xs), len(strengths), -1)


# %% wrong="vmap-batched-solve" because="Appends rows for the strength to X, which gives the correct values, but computes the product again for each strength."
def batched_solve(xs, ys, strengths):
    def ridge(x, y, strength):
        longer = jnp.concatenate([x, jnp.sqrt(strength) * jnp.eye(x.shape[1])])
        return solve_spd(longer.T @ longer, longer.T @ jnp.concatenate([y, jnp.zeros(x.shape[1])]))

    return jax.vmap(jax.vmap(ridge, in_axes=(None, None, 0)), in_axes=(0, 0, None))(xs, ys, strengths)


# %% wrong="vmap-batched-solve" because="Maps over the strengths with lax.map, which is a loop."
def batched_solve(xs, ys, strengths):
    def one_task(x, y):
        gram, moments = x.T @ x, x.T @ y
        return jax.lax.map(lambda strength: solve_spd(gram + strength * jnp.eye(x.shape[1]), moments), strengths)

    return jax.vmap(one_task)(xs, ys)


# %% wrong="vmap-batched-solve" because="Uses jnp.linalg.inv or jnp.linalg.solve, which contain a loop for pivoting."
def batched_solve(xs, ys, strengths):
    def one_task(x, y):
        gram, moments = x.T @ x, x.T @ y
        return jax.vmap(lambda strength: jnp.linalg.inv(gram + strength * jnp.eye(x.shape[1])) @ moments)(strengths)

    return jax.vmap(one_task)(xs, ys)


# %% wrong="vmap-batched-solve" because="Uses jnp.linalg.inv or jnp.linalg.solve, which contain a loop for pivoting."
def batched_solve(xs, ys, strengths):
    def one_task(x, y):
        gram, moment = x.T @ x, x.T @ y
        return jax.vmap(lambda strength: jnp.linalg.solve(gram + strength * jnp.eye(x.shape[1]), moment))(strengths)

    return jax.vmap(one_task)(xs, ys)


# %% wrong="vmap-batched-solve" because="Multiplies X by its transpose in the wrong order, which gives a matrix of examples instead of features."
def batched_solve(xs, ys, strengths):
    def one_task(x, y):
        gram, moment = x @ x.T, x.T @ y
        return jax.vmap(lambda strength: solve_spd(gram + strength * jnp.eye(gram.shape[0]), moment))(strengths)

    return jax.vmap(one_task)(xs, ys)


# %% right="vmap-batched-solve"
def batched_solve(xs, ys, strengths):
    ridge = lambda x, y, strength: solve_spd(x.T @ x + strength * jnp.eye(x.shape[1]), x.T @ y)
    return jax.vmap(jax.vmap(ridge, in_axes=(None, None, 0)), in_axes=(0, 0, None))(xs, ys, strengths)


# %% right="vmap-batched-solve"
def batched_solve(xs, ys, strengths):
    grams = jnp.einsum("tnd,tne->tde", xs, xs)
    moments = jnp.einsum("tnd,tn->td", xs, ys)
    shifted = grams[:, None] + strengths[:, None, None] * jnp.eye(xs.shape[2])
    over_strengths = jax.vmap(solve_spd, in_axes=(0, None))
    return jax.vmap(over_strengths)(shifted, moments)


# %% right="vmap-batched-solve"
def batched_solve(xs, ys, strengths):
    def one_task(x, y):
        values, vectors = jnp.linalg.eigh(x.T @ x)
        rotated = vectors.T @ (x.T @ y)
        return jax.vmap(lambda strength: vectors @ (rotated / (values + strength)))(strengths)

    return jax.vmap(one_task)(xs, ys)
