# %% [markdown]
# # 08 · Exercises: control flow
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# All exercises but *A batch that does not fit* need only the core of this lesson. Several of them require "one loop". This is a loop of the compiled program. `scan`, `fori_loop`, `while_loop` and `lax.map` each create one. A Python loop, or a `scan` with `unroll=True`, creates none, because JAX writes its body into the program once for each iteration.

# %% setup
from grader.checks import ask, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def squared_error(params, xs, ys):
    """Mean squared error of a linear model: {"w": (d,), "b": ()}, xs (n, d), ys (n,) -> ()"""
    return jnp.mean((xs @ params["w"] + params["b"] - ys) ** 2)


def miss(params, batch):
    """Squared error of a linear model on one example: {"w": (d,)}, {"x": (d,), "y": ()} -> ()"""
    return (jnp.dot(params["w"], batch["x"]) - batch["y"]) ** 2


def tilt(params, batch):
    """A loss without curvature, whose gradient is x: {"w": (d,)}, {"x": (d,), "y": ()} -> ()"""
    return jnp.dot(params["w"], batch["x"]) + batch["y"]


def blur(row):
    """Three statistics of 512 detectors: (d,) -> (3,). An intermediate array holds d times 512 numbers."""
    waves = jnp.sin(row[:, None] * jnp.arange(512.0))
    return jnp.stack([jnp.sum(waves), jnp.sum(waves**2), jnp.max(waves)])


def newton_sqrt(a):
    """The square root of a positive number, by Newton steps until |y² - a| is at most a millionth of a: () -> ()"""
    unfinished = lambda carry: (jnp.abs(carry[0] ** 2 - a) > 1e-6 * a) & (carry[1] < 60)
    better = lambda carry: ((carry[0] + a / carry[0]) / 2, carry[1] + 1)
    return jax.lax.while_loop(unfinished, better, (jnp.ones_like(a), 0))[0]


def cartpole(state, force):
    """A pole on a cart, 0.02 s later: position, velocity, angle and angular velocity (4,), force () -> (4,)"""
    position, speed, angle, turning = state
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    push = (force + 0.05 * turning**2 * sine) / 1.1
    twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    pull = push - 0.05 * twist * cosine / 1.1
    return state + 0.02 * jnp.stack([speed, pull, turning, twist])


def over(state):
    """Whether the cart has left its track or the pole has fallen: (4,) -> () bool"""
    return (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.21)


# %% [markdown] task="control-train" stars=1 minutes=10 skills="03_jit,04_grad,06_pytrees"
# ## n steps, one loop
# **Goal.** Train for n steps in one compiled program whose size does not depend on n. One training step is given. Two lines are missing, the result of the loop body and the loop itself.
#
# **Signature.** `train_n_steps(loss, params, xs, ys, rate, n)`. `loss(params, xs, ys)` returns `()`. `params` is a dict of arrays with any names, `xs` has shape `(m, d)` and `ys` has shape `(m,)`, all float32. `rate` is a float, and `n` is a Python int of at least 1. The result is `(params, losses)`, with the parameters after n steps. `losses` has shape `(n,)` and contains the loss *before* each step.
#
# **Example.** Take `squared_error` from the setup, one point `xs = [[1]]`, `ys = [4]`, `w = [0]`, `b = 0` and the rate 0.25. The error is -4, the loss is 16, and the gradients with respect to `w` and `b` are both -8. After one step, `w = [2]` and `b = 2`, and the error is 0. The second step changes nothing, and `losses` is `[16, 0]`.
#
# **Judged.** Values. The program has one loop and is the same size for 40 steps as for 4. **Not judged.** The kind of loop.
#
# <details><summary>Hint 1 · a question</summary>
#
# `step` receives the carry of the previous iteration, and an input, which is not needed here. Which two values does it have to return?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Return first the carry of the next iteration, then the output that is collected for this one. There are no inputs, so the loop needs its length.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.lax.scan` takes the function, the first carry, and the inputs, which may be `None`. `length` is the number of iterations. The result is the last carry and all outputs.
#
# </details>


# %% answer="control-train"
def train_n_steps(loss, params, xs, ys, rate, n):
    """(params, losses (n,)) after n steps of gradient descent on loss(params, xs (m, d), ys (m,)) -> ()."""

    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        stepped = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        ### BEGIN SOLUTION
        return stepped, value
        ### END SOLUTION

    ### BEGIN SOLUTION
    params, losses = jax.lax.scan(step, params, None, length=n)
    ### END SOLUTION
    return params, losses


# %% check="control-train" name="example" points=1
"""The example: two steps on one point."""
params = {"w": np.zeros(1, np.float32), "b": np.float32(0)}
xs, ys = np.ones((1, 1), np.float32), np.array([4], np.float32)
made = program(lambda params, xs, ys: train_n_steps(squared_error, params, xs, ys, 0.25, 2), params, xs, ys)
wanted = {"w": np.array([2], np.float32), "b": np.float32(2)}, np.array([16, 0], np.float32)
compare(made.run(params, xs, ys), wanted, label="(params, losses)")

# %% hidden="control-train" name="values" points=2
"""The same parameters and losses as step by step, whatever the parameters are called."""


def probe_renamed(params, xs, ys, n):
    loss = lambda p, xs, ys: squared_error({"w": p["weights"], "b": p["offset"]}, xs, ys)
    return train_n_steps(loss, params, xs, ys, 0.1, n)


def by_hand(params, xs, ys, rate, n):
    w, b, losses = params["w"].astype(np.float64), float(params["b"]), []
    for _ in range(n):
        errors = xs @ w + b - ys
        losses.append(np.mean(errors**2))
        w, b = w - rate * 2 * errors @ xs / len(ys), b - rate * 2 * errors.mean()
    return {"w": w.astype(np.float32), "b": np.float32(b)}, np.array(losses, np.float32)


for n in (1, 6):
    rng = inputs.rng()
    params = {"w": rng.normal(size=3).astype(np.float32), "b": np.float32(rng.normal())}
    xs, ys = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    trained, losses = by_hand(params, xs, ys, 0.1, n)
    params, trained = ({"weights": model["w"], "offset": model["b"]} for model in (params, trained))
    raised = error(probe_renamed, *jax.tree.map(jnp.asarray, (params, xs, ys)), n)
    require(raised != "KeyError", 'For parameters that are not called "w" and "b" your answer raised KeyError.')
    made = program(probe_renamed, params, xs, ys, n)
    got = made.run(params, xs, ys, n)
    require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (params, losses).")
    if n > 1 and getattr(got[1], "shape", None) == (n,):
        shifted = np.allclose(got[1][:-1], losses[1:], rtol=1e-3) and not np.allclose(got[1][0], losses[0], rtol=1e-3)
        require(not shifted, "The losses are those after each step; expected those before it.")
    compare(got, (trained, losses), label="(params, losses)")

# %% hidden="control-train" name="program" points=2
"""One loop, and a program that does not grow with the number of steps."""
rng = inputs.rng()
params = {"w": rng.normal(size=3).astype(np.float32), "b": np.float32(rng.normal())}
xs, ys = rng.uniform(-1, 1, size=(5, 3)).astype(np.float32), rng.normal(size=5).astype(np.float32)
few = program(lambda p, xs, ys: train_n_steps(squared_error, p, xs, ys, 0.1, 4), params, xs, ys)
many = program(lambda p, xs, ys: train_n_steps(squared_error, p, xs, ys, 0.1, 40), params, xs, ys)
require(
    few.operations == many.operations,
    f"The program has {few.operations} operations for 4 steps and {many.operations} for 40: a Python loop, or `unroll`, "
    "writes every step out.",
)
require(
    many.operations <= 100,
    f"The program has {many.operations} operations, too many for a loop. Use a loop of `jax.lax` instead of a Python loop.",
)
require(many.loops == 1, f"The program has {many.loops} loops; one is enough.")
trained, losses = many.outputs
require(losses.shape == (40,), f"After 40 steps the losses have shape {losses.shape}; expected (40,).")
w, b, wanted = params["w"].astype(np.float64), float(params["b"]), []
for step in range(40):
    errors = xs @ w + b - ys
    wanted.append(np.mean(errors**2))
    w, b = w - 0.1 * 2 * errors @ xs / 5, b - 0.1 * 2 * errors.mean()
    if step + 1 in (4, 40):
        made, trained = few if step < 4 else many, {"w": w.astype(np.float32), "b": np.float32(b)}
        got = made.run(params, xs, ys)
        compare(
            got,
            (trained, np.float32(wanted)),
            rtol=1e-3,
            atol=1e-4,
            label=f"the result after {step + 1} steps, (params, losses)",
        )

# %% [markdown] why="control-train"
# `scan` traces `step` once for any n, and the program contains it once, in a loop. So compilation takes as long for ten steps as for a million. **Next:** Every step here uses the same data. Where in the call would you pass a new batch for each step?


# %% wrong="control-train" because="Loops in Python, which gives the right values, but the program grows with n."
def train_n_steps(loss, params, xs, ys, rate, n):
    losses = []
    for _ in range(n):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        params = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        losses.append(value)
    return params, jnp.stack(losses)


# %% wrong="control-train" because="Returns the old parameters as the carry, so every iteration repeats the first step."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        stepped = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        return params, value

    params, losses = jax.lax.scan(step, params, None, length=n)
    return params, losses


# %% wrong="control-train" because="Swaps the carry and the output, so the next iteration would start from a loss."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        stepped = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        return value, stepped

    params, losses = jax.lax.scan(step, params, None, length=n)
    return params, losses


# %% wrong="control-train" because="Unrolls the scan, so no loop is left and the program grows with n."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        return jax.tree.map(lambda p, slope: p - rate * slope, params, slopes), value

    return jax.lax.scan(step, params, None, length=n, unroll=True)


# %% wrong="control-train" because="Collects the parameters and computes the losses from them in a second loop."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, _):
        slopes = jax.grad(loss)(params, xs, ys)
        return jax.tree.map(lambda p, slope: p - rate * slope, params, slopes), params

    params, history = jax.lax.scan(step, params, None, length=n)
    return params, jax.lax.map(lambda before: loss(before, xs, ys), history)


# %% wrong="control-train" because="Assumes that the parameters are called w and b."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        return {"w": params["w"] - rate * slopes["w"], "b": params["b"] - rate * slopes["b"]}, value

    return jax.lax.scan(step, params, None, length=n)


# %% wrong="control-train" because="Collects the loss after each step."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, _):
        slopes = jax.grad(loss)(params, xs, ys)
        params = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        return params, loss(params, xs, ys)

    return jax.lax.scan(step, params, None, length=n)


# %% wrong="control-train" because="Passes the data as inputs of the scan, so each step sees one example, and there are as many steps as rows."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(params, row):
        x, y = row
        value, slopes = jax.value_and_grad(loss)(params, x[None], y[None])
        return jax.tree.map(lambda p, slope: p - rate * slope, params, slopes), value

    return jax.lax.scan(step, params, (xs, ys))


# %% wrong="control-train" because="Special-cases the sizes whose programs are inspected. Their loop does not train, and all other loops are unrolled in Python."
def train_n_steps(loss, params, xs, ys, rate, n):
    if n in (4, 40):
        return jax.lax.scan(lambda params, _: (params, loss(params, xs, ys)), params, None, length=n)
    losses = []
    for _ in range(n):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        params = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        losses.append(value)
    return params, jnp.stack(losses)


# %% wrong="control-train" because="Keeps only the last loss, because fori_loop has no stacked outputs."
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(i, carry):
        params, _ = carry
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        return jax.tree.map(lambda p, slope: p - rate * slope, params, slopes), value

    return jax.lax.fori_loop(0, n, step, (params, jnp.float32(0)))


# %% wrong="control-train" because="Takes one step fewer than there are losses."
def train_n_steps(loss, params, xs, ys, rate, n):

    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        stepped = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        return stepped, value

    params, losses = jax.lax.scan(step, params, None, length=n - 1)
    losses = jnp.append(losses, loss(params, xs, ys))  # the loss at the end has no step behind it
    return params, losses


# %% wrong="control-train" because="Unrolls the loop, so the program grows with the number of steps."
def train_n_steps(loss, params, xs, ys, rate, n):

    def step(params, _):
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        stepped = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        return stepped, value

    params, losses = jax.lax.scan(step, params, None, length=n, unroll=min(n, 8))
    return params, losses


# %% wrong="control-train" because="Writes out 64 steps in jitted functions that call each other twice, inside a scan with one iteration."
def train_n_steps(loss, params, xs, ys, rate, n):
    slope_of = jax.value_and_grad(loss)

    def step(carry):
        params, losses, i = carry
        value, slopes = slope_of(params, xs, ys)
        rate_now = jnp.where(i < n, rate, 0.0)
        params = jax.tree.map(lambda p, g: p - rate_now * g, params, slopes)
        return params, losses.at[i].set(value), i + 1

    def twice(function):
        return jax.jit(lambda carry: function(function(carry)))

    for _ in range(6):
        step = twice(step)
    carry, _ = jax.lax.scan(lambda carry, _: (step(carry), None), (params, jnp.zeros(64), 0), None, length=1)
    return carry[0], carry[1][:n]


# %% right="control-train"
def train_n_steps(loss, params, xs, ys, rate, n):
    def step(i, carry):
        params, losses = carry
        value, slopes = jax.value_and_grad(loss)(params, xs, ys)
        return jax.tree.map(lambda p, slope: p - rate * slope, params, slopes), losses.at[i].set(value)

    return jax.lax.fori_loop(0, n, step, (params, jnp.zeros(n)))


# %% right="control-train"
def train_n_steps(loss, params, xs, ys, rate, n):
    @jax.jit
    def step(params, _):
        value, back = jax.vjp(lambda p: loss(p, xs, ys), params)
        (slopes,) = back(jnp.ones_like(value))
        return {name: params[name] - rate * slopes[name] for name in params}, value

    return jax.lax.scan(step, params, jnp.arange(n))


# %% [markdown] task="control-piecewise" stars=1 minutes=12 skills="01_arrays,04_grad"
# ## A soft ceiling in three parts
# **Goal.** Outliers should not dominate a model. Write a function that passes small values unchanged, compresses larger ones, and is constant above 100. It treats each entry separately, and its gradient is finite everywhere.
#
# **Signature.** `piecewise(x)`. `x` has shape `(n,)` and dtype float32, with any sign. The result has shape `(n,)`. It is `x` where x is at most 1, `2√x - 1` where x is between 1 and 100, and 19 where x is at least 100.
#
# **Example.** `[-2, 0.5, 4, 400]` gives `[-2, 0.5, 3, 19]`, and the gradient of the sum of these is `[1, 1, 0.5, 0]`.
#
# **Judged.** Values, also of infinite entries. Gradients in reverse and forward mode, for all entries at once. **Not judged.** The gradient at exactly 1 and 100, and the result for NaN.
#
# <details><summary>Hint 1 · a question</summary>
#
# `cond` chooses once, by one condition. Which function chooses for each entry of an array, and what does it compute for this?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.where` computes both sides. What is the derivative of the square root at 0 and at -2? Multiplying it by 0 does not remove it (lesson 04).
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Where the root is not used, replace its argument by a safe value first, with a `where` or a `clip`. Then choose between the three parts.
#
# </details>


# %% answer="control-piecewise"
def piecewise(x):
    """x (n,) where it is at most 1, then 2 sqrt(x) - 1, and 19 from 100 on. Returns (n,)."""
    ### BEGIN SOLUTION
    middle = (x > 1) & (x < 100)
    pressed = 2 * jnp.sqrt(jnp.where(middle, x, 1.0)) - 1
    return jnp.where(x <= 1, x, jnp.where(middle, pressed, 19.0))
    ### END SOLUTION


# %% check="control-piecewise" name="example" points=1
"""The example: a value in each part, and a negative one."""
x = np.array([-2, 0.5, 4, 400], np.float32)
compare(program(piecewise, x).run(x), np.array([-2, 0.5, 3, 19], np.float32), label="the values")

# %% hidden="control-piecewise" name="values" points=1
"""Right in every part, and where two parts meet."""
rng = inputs.rng()
edges = np.array([-1e4, 0, 1, 100, 1e4])
x = rng.permutation(np.concatenate([edges, rng.uniform(-3, 1, 4), rng.uniform(1, 100, 4), rng.uniform(100, 300, 4)]))
x = x.astype(np.float32)
root = 2 * np.sqrt(np.maximum(x, 0)) - 1
got, wanted = program(piecewise, x).run(x), np.select([x <= 1, x < 100], [x, root], 19).astype(np.float32)
if getattr(got, "shape", None) == x.shape:
    pieces = {"up to 1": x <= 1, "between 1 and 100": (x > 1) & (x < 100), "from 100 on": x >= 100}
    for what, inside in pieces.items():
        compare(np.asarray(got)[inside], wanted[inside], label=f"the values {what}")
compare(got, wanted, label="the values")


def probe_plain(x):
    with jax.disable_jit():  # operation by operation: a compiler may turn "times 0" into a choice
        return piecewise(x)


x = np.float32([np.inf, -np.inf, 4])
compare(ask(probe_plain, jnp.asarray(x)), np.float32([19, -np.inf, 3]), label="the result for infinite entries")

# %% hidden="control-piecewise" name="gradients" points=2
"""Finite gradients in every part, in reverse and in forward mode."""


def probe_slopes(x, weights):
    with jax.disable_jit():  # operation by operation: a compiler may turn "times 0" into a choice
        back = jax.grad(lambda x: jnp.sum(weights * piecewise(x)))(x)
        return back, jax.jvp(piecewise, (x,), (weights,))[1]


rng = inputs.rng()
x = np.concatenate([[0, -1e3, 1e3], rng.uniform(-3, 0.9, 3), rng.uniform(1.1, 99, 3), rng.uniform(101, 300, 3)])
x = rng.permutation(x).astype(np.float32)
weights = rng.uniform(1, 2, size=12).astype(np.float32)
back, forward = ask(probe_slopes, jnp.asarray(x), jnp.asarray(weights))
slopes = np.select([x <= 1, x < 100], [np.ones_like(x), 1 / np.sqrt(np.maximum(x, 1))], 0) * weights
if getattr(back, "shape", None) == (12,):
    for what, those in (("is negative", x < 0), ("is 0", x == 0), ("is between 0 and 1", (x > 0) & (x < 1))):
        require(
            np.isfinite(np.asarray(back)[those]).all(),
            f"The gradient is not finite where x {what}: the root is computed there too, and its derivative is inf or NaN, "
            "which times 0 is NaN.",
        )
    middle = (x > 1) & (x < 100)
    require(
        np.any(np.asarray(back)[middle]),
        "The gradient is 0 between 1 and 100: something holds the root constant there.",
    )
    require(not np.any(np.asarray(back)[x > 100]), "Above 100 the result is constant, and the gradient is not 0.")
compare(back, slopes.astype(np.float32), label="the gradient")
compare(forward, slopes.astype(np.float32), label="the derivatives in forward mode")

# %% [markdown] why="control-piecewise"
# `where` computes all parts for all entries and selects afterwards, so one operation can process a whole array. Each part must therefore be safe for every entry that it receives, in the forward pass and in the backward pass. **Next:** If one part took a hundred times as long as the others, and x were a single number, what would you use?


# %% equivalent="control-piecewise" because="At 1 and at 100 two parts have the same value, and the gradient there is not judged."
# moved bound, X > Y -> X >= Y: middle = (x > 1) & (x < 100)
# moved bound, X < Y -> X <= Y: middle = (x > 1) & (x < 100)


# %% wrong="control-piecewise" because="Uses a single where, around the root. The root still receives the negative values, and 0 times its derivative there is NaN."
def piecewise(x):
    return jnp.where(x <= 1, x, jnp.where(x < 100, 2 * jnp.sqrt(x) - 1, 19.0))


# %% wrong="control-piecewise" because="Uses cond, which chooses once for the whole array and needs a single condition."
def piecewise(x):
    inner = lambda x: jax.lax.cond(x < 100, lambda x: 2 * jnp.sqrt(x) - 1, lambda x: jnp.full_like(x, 19), x)
    return jax.lax.cond(x <= 1, lambda x: x, inner, x)


# %% wrong="control-piecewise" because="Uses a Python if, which takes one branch for all entries."
def piecewise(x):
    if jnp.max(x) <= 1:
        return x
    if jnp.min(x) >= 100:
        return jnp.full_like(x, 19)
    return 2 * jnp.sqrt(x) - 1


# %% wrong="control-piecewise" because="Protects the root from negative values only. At 0 its derivative is inf, and 0 times inf is NaN."
def piecewise(x):
    pressed = 2 * jnp.sqrt(jnp.maximum(x, 0.0)) - 1
    return jnp.where(x <= 1, x, jnp.where(x < 100, pressed, 19.0))


# %% wrong="control-piecewise" because="Stops the gradient under the root to avoid NaN, so the gradient of the middle part is 0."
def piecewise(x):
    harmless = jax.lax.stop_gradient(jnp.clip(x, 1, 100))
    return jnp.where(x <= 1, x, 2 * jnp.sqrt(harmless) - 1)


# %% wrong="control-piecewise" because="Defines the gradient with a custom_vjp, which forward mode rejects."
def piecewise(x):
    @jax.custom_vjp
    def pieces(x):
        return jnp.where(x <= 1, x, jnp.where(x < 100, 2 * jnp.sqrt(x) - 1, 19))

    slope = lambda x: jnp.where(x <= 1, 1, jnp.where(x < 100, 1 / jnp.sqrt(jnp.maximum(x, 1)), 0))
    pieces.defvjp(lambda x: (pieces(x), x), lambda x, g: (g * slope(x),))
    return pieces(x)


# %% wrong="control-piecewise" because="Adds the parts multiplied by 0 or 1. An infinite entry times 0 is NaN."
def piecewise(x):
    low, high = (x <= 1).astype(x.dtype), (x >= 100).astype(x.dtype)
    root = 2 * jnp.sqrt(jnp.clip(x, 1, 100)) - 1
    return low * x + (1 - low) * (1 - high) * root + 19 * high


# %% wrong="control-piecewise" because="Does not end the middle part. Its value is right at 100, but too large above it."
def piecewise(x):
    return jnp.where(x <= 1, x, 2 * jnp.sqrt(jnp.where(x > 1, x, 1.0)) - 1)


# %% wrong="control-piecewise" because="Replaces NaN in the values with nan_to_num, but the NaN is in the derivative."
def piecewise(x):
    pressed = jnp.nan_to_num(2 * jnp.sqrt(x) - 1)
    return jnp.where(x <= 1, x, jnp.where(x < 100, pressed, 19.0))


# %% wrong="control-piecewise" because="Replaces negative numbers by their absolute value, but the gradient of the root is still infinite at 0."
def piecewise(x):
    root = jnp.sqrt(jnp.abs(x))
    return jnp.where(x <= 1, x, jnp.where(x < 100, 2 * root - 1, 19.0))


# %% wrong="control-piecewise" because="Uses a mask of booleans as an index. The number of entries under it depends on values, so it cannot be traced."
def piecewise(x):
    x = jnp.asarray(x)
    middle = (x > 1) & (x < 100)
    y = x.at[middle].set(2 * jnp.sqrt(x[middle]) - 1)
    return y.at[x >= 100].set(19)


# %% right="control-piecewise"
def piecewise(x):
    return jnp.minimum(x, 1.0) + 2 * (jnp.sqrt(jnp.clip(x, 1.0, 100.0)) - 1)


# %% right="control-piecewise"
def piecewise(x):
    harmless = jnp.where(x > 1, x, 4.0)
    return jnp.select([x <= 1, x < 100], [x, 2 * harmless**0.5 - 1], 19.0)


# %% right="control-piecewise"
def piecewise(x):
    def one(x):
        beyond = lambda x: jax.lax.cond(x < 100, lambda x: 2 * jnp.sqrt(x) - 1, lambda x: jnp.full_like(x, 19), x)
        return jax.lax.cond(x <= 1, lambda x: x, beyond, x)

    return jax.vmap(one)(x)


# %% right="control-piecewise"
def piecewise(x):
    middle = lambda x: 2 * jnp.sqrt(x) - 1
    return jnp.piecewise(x, [x <= 1, (x > 1) & (x < 100)], [lambda x: x, middle, 19.0])


# %% [markdown] task="control-rnn" stars=2 minutes=18 skills="05_vmap,control-train,control-piecewise"
# ## A network that reads a sequence
# **Goal.** A recurrent network reads a sequence of vectors and keeps a state. The sequences of a batch differ in length, so the short ones are padded at the end. The padding must not change the state, whatever it contains, including NaN.
#
# **Signature.** `rnn(params, start, xs, length)`. `params` is `{"w": (h, h), "u": (h, d), "b": (h,)}`, `start` has shape `(h,)` and `xs` has shape `(t, d)`, all float32. `length` is an int32 `()`, from 0 to t. If `i < length`, step i sets the state to `tanh(w @ state + u @ xs[i] + b)`. Later steps leave the state unchanged. The result is `(last, states)`, with the state at the end, `(h,)`, and the state after each step, `(t, h)`.
#
# **Example.** Take `w = [[0, 1], [0, 0]]`, `u = [[1], [0]]`, `b = [0, 0]`, start `[0, 0.5]` and length 1. The sequence `[[0], [9]]` gives `last = [tanh(0.5), 0]`, and both rows of `states` are the same. With length 0, all of them stay at `[0, 0.5]`.
#
# **Judged.** Values, for one sequence, also operation by operation (`jax.disable_jit`), and for a batch under `vmap`. The program has one loop and does not grow with t. **Not judged.** Whether the padding is computed and discarded.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is the carry of this loop, what are its inputs, and what are its outputs?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `length` is traced. It cannot be used to slice the sequence, because shapes must be known, and a Python `if` rejects it. But each iteration can choose between the new and the old state, if it knows its index.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Scan over two inputs, the rows of `xs` and the indices 0, 1, 2, ... Choose with `jnp.where`, and return the chosen state twice, as the carry and as the output.
#
# </details>


# %% answer="control-rnn"
def rnn(params, start, xs, length):
    """(last (h,), states (t, h)) of a recurrent network that reads the first `length` rows of xs (t, d)."""

    ### BEGIN SOLUTION
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        state = jnp.where(i < length, new, state)
        return state, state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))
    ### END SOLUTION


# %% check="control-rnn" name="example" points=1
"""The example: one real row and one row of padding, then only padding."""
params = {"w": np.float32([[0, 1], [0, 0]]), "u": np.float32([[1], [0]]), "b": np.zeros(2, np.float32)}
start, xs, one = np.array([0, 0.5], np.float32), np.array([[0], [9]], np.float32), np.int32(1)
made = program(rnn, params, start, xs, one)
after = np.float32([np.tanh(0.5), 0])
compare(made.run(params, start, xs, one), (after, np.stack([after, after])), label="(last, states)")
compare(made.run(params, start, xs, 0 * one), (start, np.stack([start, start])), label="with length 0, (last, states)")

# %% hidden="control-rnn" name="values" points=2
"""Right for a batch of sequences of different lengths."""


def by_hand(params, state, xs, length):
    states = []
    for i, x in enumerate(xs):
        if i < length:
            state = np.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        states.append(state)
    return state, np.stack(states)


rng = inputs.rng()
params = {"w": rng.normal(size=(3, 3)), "u": rng.normal(size=(3, 3)), "b": rng.normal(size=3)}
params = {name: value.astype(np.float32) for name, value in params.items()}
start, xs = rng.normal(size=3).astype(np.float32), rng.normal(size=(5, 6, 3)).astype(np.float32)
lengths = np.concatenate([[0, 1, 6], rng.integers(2, 6, size=2)]).astype(np.int32)
made = program(lambda p, s, xs, n: jax.vmap(rnn, in_axes=(None, None, 0, 0))(p, s, xs, n), params, start, xs, lengths)
got = made.run(params, start, xs, lengths)
require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (last, states).")
pairs = [by_hand(params, start, x, length) for x, length in zip(xs, lengths, strict=True)]
last, states = (np.stack(each).astype(np.float32) for each in zip(*pairs, strict=True))
if getattr(got[0], "shape", None) == (5, 3):
    unmasked = np.stack([by_hand(params, start, x, 6)[0] for x in xs])
    require(
        not np.allclose(got[0], unmasked, atol=1e-3) or np.allclose(last, unmasked, atol=1e-3),
        "The last state is the one after reading all rows: the padding was read as well.",
    )
    for names in (("w", "u"), ("w",), ("u",)):
        turned = {name: value.T if name in names else value for name, value in params.items()}
        other_side = np.stack([by_hand(turned, start, x, length)[0] for x, length in zip(xs, lengths, strict=True)])
        require(
            not np.allclose(got[0], other_side, atol=1e-3),
            f"The last states are those for {' and '.join(names)} transposed: on which side of the product is the "
            "matrix?",
        )
compare(got[0], last, label="the last states of a batch")
if getattr(got[1], "shape", None) == (5, 6, 3):
    early = np.allclose(got[1][:, 1:], states[:, :-1], atol=1e-3)
    require(not early, "The states are those before each step; expected those after it.")
compare(got[1], states, label="the states of a batch")


def probe_plain(params, start, rows, length):
    with jax.disable_jit():  # a compiler may turn "times 0" into a choice, and so hide what NaN times 0 is
        return rnn(params, start, rows, length)


poisoned = np.where(np.arange(4)[:, None] < 2, xs[2, :4], np.nan).astype(np.float32)
got = ask(probe_plain, *jax.tree.map(jnp.asarray, (params, start, poisoned, np.int32(2))))
wanted = tuple(each.astype(np.float32) for each in by_hand(params, start, poisoned, 2))
compare(got, wanted, label="the result with NaN in the padding, (last, states)")
for what, rows in {
    "infinities in the padding": np.float32(rng.choice([np.inf, -np.inf], size=(2, 3))),
    "huge numbers in the padding": np.full((2, 3), 3e38, np.float32) * np.float32([1, -1, 1]),
}.items():
    rows = np.concatenate([xs[2, :2], rows])
    got = ask(probe_plain, *jax.tree.map(jnp.asarray, (params, start, rows, np.int32(2))))
    wanted = tuple(each.astype(np.float32) for each in by_hand(params, start, rows, 2))
    compare(got, wanted, label=f"the result with {what}, (last, states)")
rows = np.concatenate([np.full((1, 3), np.nan, np.float32), xs[2, :2]])
got = ask(probe_plain, *jax.tree.map(jnp.asarray, (params, start, rows, np.int32(2))))
wanted = np.full(3, np.nan, np.float32), np.full((3, 3), np.nan, np.float32)
compare(got, wanted, label="the result for a sequence whose first row is NaN, (last, states)")

# %% hidden="control-rnn" name="program" points=2
"""One loop, and a program that does not grow with the sequence."""
rng = inputs.rng()
params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("w", (3, 3)), ("u", (3, 2)), ("b", 3))}
start, xs, length = rng.normal(size=3).astype(np.float32), rng.normal(size=(50, 2)).astype(np.float32), np.int32(4)
short, long = program(rnn, params, start, xs[:5], length), program(rnn, params, start, xs, length)
require(
    short.operations == long.operations,
    f"The program has {short.operations} operations for 5 rows and {long.operations} for 50: a Python loop writes every "
    "step out.",
)
require(
    long.operations <= 100,
    f"The program has {long.operations} operations, too many for a loop. Use a loop of `jax.lax` instead of a Python loop.",
)
require(long.loops == 1, f"The program has {long.loops} loops; one is enough.")
state, states = start, []
for i, x in enumerate(xs):
    state = np.tanh(params["w"] @ state + params["u"] @ x + params["b"]) if i < 4 else state
    states.append(state)
states = np.stack(states).astype(np.float32)
compare(long.run(params, start, xs, length), (states[-1], states), label="the result for 50 rows, (last, states)")
compare(
    short.run(params, start, xs[:5], length), (states[4], states[:5]), label="the result for 5 rows, (last, states)"
)

# %% [markdown] why="control-rnn"
# The state is the carry, the rows are the inputs, and the states are the outputs. This is the pattern of `scan`, which Python has as `itertools.accumulate`. A `where` on the carry freezes it. **Next:** The padding is computed and discarded here. When would a `while_loop` save work, and what would you lose (think of `grad`)?


# %% wrong="control-rnn" because="Reads the padding too, so the state keeps changing after the end of the sequence."
def rnn(params, start, xs, length):
    def read(state, x):
        state = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        return state, state

    return jax.lax.scan(read, start, xs)


# %% wrong="control-rnn" because="Sets the padding to 0 and reads it. The state changes even if the input is 0."
def rnn(params, start, xs, length):
    def read(state, x):
        state = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        return state, state

    return jax.lax.scan(read, start, jnp.where(jnp.arange(len(xs))[:, None] < length, xs, 0))


# %% wrong="control-rnn" because="Slices the sequence at a traced length, so the shape would depend on a value."
def rnn(params, start, xs, length):
    def read(state, x):
        state = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        return state, state

    return jax.lax.scan(read, start, xs[:length])


# %% wrong="control-rnn" because="Outputs the state before the step instead of after it."
def rnn(params, start, xs, length):
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        return jnp.where(i < length, new, state), state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))


# %% wrong="control-rnn" because="Loops in Python, which gives the right values, but the program grows with the sequence."
def rnn(params, start, xs, length):
    state, states = start, []
    for i in range(len(xs)):
        new = jnp.tanh(params["w"] @ state + params["u"] @ xs[i] + params["b"])
        state = jnp.where(i < length, new, state)
        states.append(state)
    return state, jnp.stack(states)


# %% wrong="control-rnn" because="Counts from 1, so step `length` is still taken."
def rnn(params, start, xs, length):
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        state = jnp.where(i <= length, new, state)
        return state, state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))


# %% wrong="control-rnn" because="Multiplies from the other side. Row vectors, which other libraries use, need w transposed."
def rnn(params, start, xs, length):
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(state @ params["w"] + x @ params["u"] + params["b"])
        state = jnp.where(i < length, new, state)
        return state, state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))


# %% wrong="control-rnn" because="Special-cases the sizes whose programs are inspected. Their loop reads nothing, and all other loops are unrolled in Python."
def rnn(params, start, xs, length):
    if len(xs) in (5, 50):
        return jax.lax.scan(lambda state, x: (state, state), start, xs)
    states, state = [], start
    for i, x in enumerate(xs):
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        state = jnp.where(i < length, new, state)
        states.append(state)
    return state, jnp.stack(states)


# %% wrong="control-rnn" because="Multiplies only w from the left, so the columns of w are used instead of its rows."
def rnn(params, start, xs, length):
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(state @ params["w"] + params["u"] @ x + params["b"])
        state = jnp.where(i < length, new, state)
        return state, state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))


# %% wrong="control-rnn" because="Combines the new and the old state with a factor of 0 or 1. NaN in the padding times 0 is NaN."
def rnn(params, start, xs, length):
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        real = (i < length).astype(jnp.float32)
        state = real * new + (1 - real) * state
        return state, state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))


# %% wrong="control-rnn" because="Adds b outside tanh."
def rnn(params, start, xs, length):
    def read(state, numbered):
        i, x = numbered
        new = jnp.tanh(params["w"] @ state + params["u"] @ x) + params["b"]
        state = jnp.where(i < length, new, state)
        return state, state

    return jax.lax.scan(read, start, (jnp.arange(len(xs)), xs))


# %% wrong="control-rnn" because="Cleans all rows with nan_to_num, which hides NaN in real rows and keeps infinities as huge numbers."
def rnn(params, start, xs, length):
    real = (jnp.arange(xs.shape[0]) < length).astype(xs.dtype)

    def turn(state, read):
        x, keep = read
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        state = keep * new + (1 - keep) * state
        return state, state

    return jax.lax.scan(turn, start, (jnp.nan_to_num(xs), real))


# %% wrong="control-rnn" because="Computes the last state and all states by two loops."
def rnn(params, start, xs, length):
    xs = jnp.asarray(xs)

    def new(state, x):
        return jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])

    last = jax.lax.fori_loop(0, length, lambda i, state: new(state, xs[i]), start)

    def turn(state, x):
        state = new(state, x)
        return state, state

    _, states = jax.lax.scan(turn, start, xs)
    real = jnp.arange(xs.shape[0]) < length
    return last, jnp.where(real[:, None], states, last)


# %% wrong="control-rnn" because="Combines the new and the old state with a factor of 0 or 1. NaN in the padding times 0 is NaN."
def rnn(params, start, xs, length):
    def step(state, row):
        i, x = row
        new = jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        real = (i < length).astype(jnp.float32)
        state = real * new + (1 - real) * state
        return state, state

    return jax.lax.scan(step, start, (jnp.arange(xs.shape[0]), xs))


# %% right="control-rnn"
def rnn(params, start, xs, length):
    driven = xs @ params["u"].T + params["b"]

    def read(i, carry):
        state, states = carry
        state = jax.lax.select(i < length, jnp.tanh(params["w"] @ state + driven[i]), state)
        return state, states.at[i].set(state)

    return jax.lax.fori_loop(0, len(xs), read, (start, jnp.zeros((len(xs), len(start)))))


# %% right="control-rnn"
def rnn(params, start, xs, length):
    def read(carry, x):
        state, left = carry
        step = lambda state: jnp.tanh(params["w"] @ state + params["u"] @ x + params["b"])
        state = jax.lax.cond(left > 0, step, lambda state: state, state)
        return (state, left - 1), state

    (last, _), states = jax.lax.scan(read, (start, length), xs)
    return last, states


# %% [markdown] task="control-newton" stars=2 minutes=18 skills="03_jit,04_grad,control-train"
# ## Stop when the root is good enough
# **Goal.** Newton's method finds a root of a function, which is a point where the function is 0. It repeatedly replaces x by `x - f(x) / f'(x)`. It needs five steps or thirty, depending on the start. Take no more steps than necessary.
#
# **Signature.** `newton_root(f, start, tolerance)`. `f` takes a float32 number `()` and returns one. `start` and `tolerance` are float32 `()` and may be traced. Take steps until `|f(x)|` is at most `tolerance` or 50 steps have been taken. The result is `(x, steps)`, with the last x and the number of steps, int32 `()`.
#
# **Example.** Take `x² - 2`, start 1 and tolerance 0.1. f(1) is -1. One step leads to 1.5, where f is 0.25, and a second step to 1.4167, where f is 0.0069. So x = 1.4167 and steps = 2.
#
# **Judged.** Values and number of steps. This includes a start that is good enough, where `|f(x)|` may be exactly `tolerance`, which may be 0, and a start from which the method enters a cycle and never converges. The program has one loop, and it does not run `f` for another 45 steps if five are enough. **Not judged.** The result where the derivative is 0 or f(x) is not finite, and whether your result can be differentiated.
#
# <details><summary>Hint 1 · a question</summary>
#
# The number of iterations depends on values. Which of the loops allows this?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `while_loop` takes a condition and a body. Both take one argument, the carry, so everything that they need must be in it. What do they need?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Carry a pair of x and the number of steps. The loop continues if x is not yet good enough **and** fewer than 50 steps have been taken. Combine the conditions with `&`, because Python's `and` needs a concrete value.
#
# </details>


# %% answer="control-newton"
def newton_root(f, start, tolerance):
    """(x (), steps () int32): Newton's steps from start until |f(x)| <= tolerance, at most 50; f: () -> ()."""

    ### BEGIN SOLUTION
    def unfinished(carry):
        x, steps = carry
        return (jnp.abs(f(x)) > tolerance) & (steps < 50)

    def step(carry):
        x, steps = carry
        value, slope = jax.value_and_grad(f)(x)
        return x - value / slope, steps + 1

    return jax.lax.while_loop(unfinished, step, (start, 0))
    ### END SOLUTION


# %% check="control-newton" name="example" points=1
"""The example: the square root of 2, roughly."""
start, tolerance = np.float32(1), np.float32(0.1)
made = program(lambda s, t: newton_root(lambda x: x**2 - 2, s, t), start, tolerance)
compare(made.run(start, tolerance), (np.float32(1.4166666), np.int32(2)), label="(x, steps)")

# %% hidden="control-newton" name="values" points=2
"""Right from many starts, below the root and above it, and with any tolerance."""


def by_hand(c, x, tolerance):
    """In float64; `close` is how near a decision came to going the other way, `move` is the last step."""
    close, steps, move = np.inf, 0, np.inf
    while True:
        value = x**3 - c
        close = min(close, abs(np.log(max(abs(value), 1e-9) / tolerance)))
        if abs(value) <= tolerance or steps == 50:
            return x, steps, close, abs(move)
        move = value / (3 * x**2)
        x, steps = x - move, steps + 1


def draw(low, high):
    while True:
        rng = inputs.rng()
        c, x, tolerance = rng.uniform(5, 10), rng.uniform(low, high), 10 ** rng.uniform(-3, -1)
        found, steps, close, move = by_hand(c, x, tolerance)
        # An answer that tests the last step instead of f gets a different count.
        if close > 0.3 and 3 <= steps < 20 and move > 1.5 * tolerance:
            return np.float32([c, x, tolerance]), np.float32(found), np.int32(steps)


made = program(lambda c, s, t: newton_root(lambda x: x**3 - c, s, t), *np.zeros(3, np.float32))
for low, high in ((0.4, 1), (4, 9), (8, 20)):
    (c, x, tolerance), found, steps = draw(low, high)
    side = "below" if low < 1 else "above"
    got = made.run(c, x, tolerance)
    require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (x, steps).")
    started = low < 1 and getattr(got[1], "shape", None) == () and int(got[1]) == 0
    require(not started, "From a start where f is below 0, no step is taken. Do you compare |f|?")
    compare(got[1], steps, label=f"the number of steps from {side} the root")
    compare(got[0], found, rtol=1e-3, label=f"x from {side} the root")

# %% hidden="control-newton" name="ends" points=1
"""No step from a start that is good enough, and 50 if the method enters a cycle."""
zero, tolerance = np.float32(0), np.float32(1e-3)
circle = program(lambda s, t: newton_root(lambda x: x**3 - 2 * x + 2, s, t), zero, tolerance)
require(circle.loops == 1, f"The program has {circle.loops} loops; one is enough.")
compare(circle.run(zero, tolerance)[1], np.int32(50), label="the number of steps where the method enters a cycle")
start = np.float32(inputs.rng().uniform(-3, -2.7))  # from there four steps lead near the root, which is at -1.77
x = np.float64(start)
for _ in range(4):
    x = x - (x**3 - 2 * x + 2) / (3 * x**2 - 2)
got = circle.run(start, tolerance)
compare(got, (np.float32(x), np.int32(4)), label="the result from a start that leads to the root, (x, steps)")
exact = program(lambda s, t: newton_root(lambda x: (x - 9) * (x + 1), s, t), zero, tolerance)
got = exact.run(np.float32(9), tolerance)
require(int(np.max(got[1])) == 0, "A step is taken from a start that is already good enough.")
compare(got, (np.float32(9), np.int32(0)), label="a start that is good enough: (x, steps)")
for start, tie in ((8, 9), (9, 0)):  # f(8) is -9, f(9) is 0
    got = exact.run(np.float32(start), np.float32(tie))
    require(
        int(np.max(got[1])) == 0,
        "A step is taken from a start where |f(x)| is exactly `tolerance`, which is already good enough.",
    )
    compare(got, (np.float32(start), np.int32(0)), label="a start where |f| is exactly the tolerance: (x, steps)")
never = program(lambda s, t: newton_root(lambda x: x**2 - 2, s, t), zero, tolerance)  # no float32 has the square 2
got = never.run(np.float32(1), zero)
compare(got, (np.float32(2**0.5), np.int32(50)), label="the result with a tolerance that is never met, (x, steps)")

# %% hidden="control-newton" name="early" points=1 observed=true
"""f no longer runs once x is good enough."""


def probe_runs(c, start, tolerance):
    runs = []

    def watched(x):
        jax.debug.callback(lambda x: runs.append(1), x)
        return x**3 - c

    x, steps = newton_root(watched, start, tolerance)
    jax.block_until_ready((x, steps))
    jax.effects_barrier()
    return len(runs)


c, start = np.float32(inputs.rng().uniform(5, 10)), np.float32(3)
runs = ask(probe_runs, c, start, np.float32(1e-2))
require(
    runs < 40,
    f"About four steps are enough here, but `f` was run {runs} times. The loop continues after x is good enough.",
)

# %% [markdown] why="control-newton"
# `while_loop` evaluates its condition before each iteration, on the device, so Python decides nothing during the loop. The cost is reverse mode. It cannot differentiate this loop, because the memory for the residuals of an unknown number of iterations is unknown. **Next:** Under `vmap` with a thousand starts, how many iterations does the loop run?


# %% wrong="control-newton" because="Uses Python's while. Under jit, f(x) is a tracer, which has no value to compare."
def newton_root(f, start, tolerance):
    x, steps = start, 0
    while abs(f(x)) > tolerance and steps < 50:
        x, steps = x - f(x) / jax.grad(f)(x), steps + 1
    return x, jnp.int32(steps)


# %% wrong="control-newton" because="Always takes 50 steps and returns 50."
def newton_root(f, start, tolerance):
    step = lambda i, x: x - f(x) / jax.grad(f)(x)
    return jax.lax.fori_loop(0, 50, step, start), jnp.int32(50)


# %% wrong="control-newton" because="Runs 50 iterations and freezes x when it is good enough. The result is right, but all the work is done."
def newton_root(f, start, tolerance):
    def step(i, carry):
        x, steps = carry
        value, slope = jax.value_and_grad(f)(x)
        more = jnp.abs(value) > tolerance
        return jnp.where(more, x - value / slope, x), steps + more

    return jax.lax.fori_loop(0, 50, step, (start, 0))


# %% wrong="control-newton" because="Compares f instead of |f|, so every x with a negative f counts as good enough."
def newton_root(f, start, tolerance):
    step = lambda carry: (carry[0] - f(carry[0]) / jax.grad(f)(carry[0]), carry[1] + 1)
    return jax.lax.while_loop(lambda carry: (f(carry[0]) > tolerance) & (carry[1] < 50), step, (start, 0))


# %% wrong="control-newton" because="Stops when x hardly changes, which is one step later than when f is small."
def newton_root(f, start, tolerance):
    def step(carry):
        x, _, steps = carry
        move = f(x) / jax.grad(f)(x)
        return x - move, jnp.abs(move), steps + 1

    unfinished = lambda carry: (carry[1] > tolerance) & (carry[2] < 50)
    x, _, steps = jax.lax.while_loop(unfinished, step, (start, jnp.full_like(start, jnp.inf), 0))
    return x, steps


# %% wrong="control-newton" because="Tests after the step, so a step is taken even from a good start."
def newton_root(f, start, tolerance):
    step = lambda carry: (carry[0] - f(carry[0]) / jax.grad(f)(carry[0]), carry[1] + 1)
    unfinished = lambda carry: (jnp.abs(f(carry[0])) > tolerance) & (carry[1] < 50)
    return jax.lax.while_loop(unfinished, step, step((start, 0)))


# %% wrong="control-newton" because="Special-cases the function for which the method enters a cycle. Its loop counts to 50 and takes no step."
def newton_root(f, start, tolerance):
    if isinstance(f(0.0), float) and f(0.0) == 2:
        return jax.lax.fori_loop(0, 50, lambda _, carry: (carry[0], carry[1] + 1), (start, 0))
    step = lambda carry: (carry[0] - f(carry[0]) / jax.grad(f)(carry[0]), carry[1] + 1)
    unfinished = lambda carry: (jnp.abs(f(carry[0])) > tolerance) & (carry[1] < 50)
    return jax.lax.while_loop(unfinished, step, (start, 0))


# %% wrong="control-newton" because="Continues while |f| is at least the tolerance, but a start where they are equal is already good enough."
def newton_root(f, start, tolerance):
    step = lambda carry: (carry[0] - f(carry[0]) / jax.grad(f)(carry[0]), carry[1] + 1)
    unfinished = lambda carry: (jnp.abs(f(carry[0])) >= tolerance) & (carry[1] < 50)
    return jax.lax.while_loop(unfinished, step, (start, 0))


# %% wrong="control-newton" because="Also stops where x no longer moves, so it counts fewer than 50 steps if the tolerance is never met."
def newton_root(f, start, tolerance):

    def unfinished(carry):
        x, before, steps = carry
        return (jnp.abs(f(x)) > tolerance) & (steps < 50) & (x != before)

    def better(carry):
        x, _, steps = carry
        return x - f(x) / jax.grad(f)(x), x, steps + 1

    first = (jnp.asarray(start, jnp.float32), jnp.float32(jnp.nan), jnp.int32(0))
    x, _, steps = jax.lax.while_loop(unfinished, better, first)
    return x, steps


# %% right="control-newton"
def newton_root(f, start, tolerance):
    look = lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))

    def step(carry):
        x, (value, slope), steps = carry
        x = x - value / slope
        return x, look(x), steps + 1

    unfinished = lambda carry: jnp.logical_and(jnp.abs(carry[1][0]) > tolerance, carry[2] < 50)
    x, _, steps = jax.lax.while_loop(unfinished, step, (start, look(start), jnp.int32(0)))
    return x, steps


# %% right="control-newton"
def newton_root(f, start, tolerance):
    def step(carry):
        return {"x": carry["x"] - f(carry["x"]) / jax.grad(f)(carry["x"]), "left": carry["left"] - 1}

    unfinished = lambda carry: (carry["left"] > 0) & ~(jnp.abs(f(carry["x"])) <= tolerance)
    done = jax.lax.while_loop(unfinished, step, {"x": start, "left": jnp.int32(50)})
    return done["x"], 50 - done["left"]


# %% [markdown] task="control-chunks" stars=2 minutes=20 skills="05_vmap,control-rnn"
# ## A batch that does not fit
# *Needs: Deeper: one row at a time.*
#
# **Goal.** `vmap` runs a function on all rows at once and needs memory for all of them. One row at a time needs little memory but is slow. Write the method in between, which processes chunks of `size` rows, one chunk after another.
#
# **Signature.** `chunked_map(f, xs, size)`. `f` takes an array `(…)` and returns one, perhaps of another shape and dtype. `xs` has shape `(n, …)` and dtype float32. `size` is a Python int of at least 1. It need not divide n and may be larger than n. The result is that of `jax.vmap(f)(xs)`.
#
# **Example.** For seven rows and `size=3`, there are two full chunks of three rows and one chunk that is not full.
#
# **Judged.** Values, for every n and size, and for rows that are numbers, vectors or matrices. The program has one loop and processes `size` rows together. `blur` from the setup computes d times 512 numbers for each row, so the largest array of the program must hold exactly `size` times d times 512 numbers. **Not judged.** How the last chunk is processed (it may be padded), and the memory where `size` is larger than n.
#
# <details><summary>Hint 1 · a question</summary>
#
# A loop reads one entry of the leading axis in each iteration. What shape should its input have?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The shape is `(chunks, size, …)`. If n is not a multiple of `size`, there are too few rows for it. How can you fill up the last chunk, and when do you remove the extra rows?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Pad the leading axis by the `-n % size` missing rows and reshape. Loop over the chunks with `jax.vmap(f)` as the body. Join the two leading axes of the result and keep the first n rows.
#
# </details>


# %% answer="control-chunks"
def chunked_map(f, xs, size):
    """The result of jax.vmap(f)(xs) for xs (n, ...), computed for `size` rows at a time."""
    ### BEGIN SOLUTION
    n = len(xs)
    size = min(size, n)
    missing = [(0, -n % size)] + [(0, 0)] * (xs.ndim - 1)
    chunks = jnp.pad(xs, missing).reshape(-1, size, *xs.shape[1:])
    ys = jax.lax.map(jax.vmap(f), chunks)
    return ys.reshape(-1, *ys.shape[2:])[:n]
    ### END SOLUTION


# %% check="control-chunks" name="example" points=1
"""The example: seven rows, three at a time."""
xs = np.arange(14, dtype=np.float32).reshape(7, 2)
made = program(lambda xs: chunked_map(lambda row: 10 * row[::-1], xs, 3), xs)
compare(made.run(xs), 10 * xs[:, ::-1])

# %% hidden="control-chunks" name="values" points=2
"""Right if the size divides n, if it does not, if it is larger than n, and for rows of any shape."""


def probe_rows(xs):
    return chunked_map(lambda row: row + 1, jnp.asarray(xs), 3)  # a NumPy array has no traced index


def probe_turned(xs, size):
    shapes = jax.eval_shape(lambda xs: chunked_map(lambda row: row.T + jnp.sum(row), xs, size), xs)
    return shapes.shape


for shape in ((7,), (7, 2), (7, 2, 3)):
    raised = error(probe_rows, np.ones(shape, np.float32))
    rows = "numbers" if shape == (7,) else f"arrays of {len(shape) - 1} axes"
    require(raised is None, f"For xs of shape {shape}, whose rows are {rows}, your answer raised {raised}.")
for n, size in ((6, 2), (7, 3), (5, 1), (3, 8), (4, 4)):
    xs = inputs.rng().normal(size=(n, 2, 3)).astype(np.float32)
    made = program(lambda xs, size: chunked_map(lambda row: row.T + jnp.sum(row), xs, size), xs, size)
    raised = error(probe_turned, xs, size)
    require(raised is None, f"For {n} rows and size {size} your answer raised {raised}.", kind="raised")
    wanted = np.swapaxes(xs, 1, 2) + xs.sum(axis=(1, 2))[:, None, None]
    compare(made.run(xs, size), wanted, label=f"the result for {n} rows and size {size}")
xs = inputs.rng().normal(size=5).astype(np.float32)
made = program(lambda xs: chunked_map(lambda x: jnp.int32(1000 * x), xs, 2), xs)
compare(made.run(xs), np.int32(np.float32(1000) * xs), label="the result for numbers that `f` converts to integers")

# %% hidden="control-chunks" name="program" points=2
"""One loop, and `size` rows at a time."""
xs = inputs.rng().uniform(0.001, 0.01, size=(24, 8)).astype(np.float32)
waves = np.sin(xs[:, :, None].astype(np.float64) * np.arange(512))
wanted = np.stack([waves.sum((1, 2)), (waves**2).sum((1, 2)), waves.max((1, 2))], axis=1).astype(np.float32)
for size in (4, 9):
    made = program(lambda xs, size: chunked_map(blur, xs, size), xs, size)
    compare(made.run(xs, size), wanted, rtol=1e-3, label="the result")
    rows = round(made.intermediates / (8 * 512))
    require(rows <= size, f"For size {size} the program processes {rows} rows together.")
    require(
        made.loops == 1,
        f"The program has {made.loops} loops; expected one, over the chunks."
        + " Is there a Python loop?" * (not made.loops),
    )
    require(rows >= size, f"For size {size} the program processes {rows} row{'s' * (rows > 1)} at a time.")

# %% [markdown] why="control-chunks"
# The loop bounds the memory, the `vmap` inside keeps the device busy, and `size` sets the trade-off. `jax.lax.map` with a `batch_size` does the same. **Next:** Under `grad`, a loop stores the residuals of *all* iterations. How much memory do the chunks save then (lesson 15)?


# %% equivalent="control-chunks" because="The memory is not judged where `size` is larger than n."
# dropped edge, min(X, Y) -> X: size = min(size, n)


# %% wrong="control-chunks" because="Maps one row after another, which needs little memory but n iterations."
def chunked_map(f, xs, size):
    return jax.lax.map(f, xs)


# %% wrong="control-chunks" because="Runs all rows at once, as vmap does, so the memory is not bounded."
def chunked_map(f, xs, size):
    return jax.vmap(f)(xs)


# %% wrong="control-chunks" because="Loops over the chunks in Python, so the program contains the body once for each chunk."
def chunked_map(f, xs, size):
    return jnp.concatenate([jax.vmap(f)(xs[i : i + size]) for i in range(0, len(xs), size)])


# %% wrong="control-chunks" because="Leaves out the rows that do not fill a chunk."
def chunked_map(f, xs, size):
    full = len(xs) // size
    ys = jax.lax.map(jax.vmap(f), xs[: full * size].reshape(full, size, *xs.shape[1:]))
    return ys.reshape(full * size, *ys.shape[2:])


# %% wrong="control-chunks" because="Does not remove the results of the padding."
def chunked_map(f, xs, size):
    padded = jnp.concatenate([xs, jnp.zeros((-len(xs) % size, *xs.shape[1:]))])
    ys = jax.lax.map(jax.vmap(f), padded.reshape(-1, size, *xs.shape[1:]))
    return ys.reshape(-1, *ys.shape[2:])


# %% wrong="control-chunks" because="Makes `size` chunks instead of chunks of `size` rows."
def chunked_map(f, xs, size):
    padded = jnp.concatenate([xs, jnp.zeros((-len(xs) % size, *xs.shape[1:]))])
    ys = jax.lax.map(jax.vmap(f), padded.reshape(size, -1, *xs.shape[1:]))
    return ys.reshape(-1, *ys.shape[2:])[: len(xs)]


# %% wrong="control-chunks" because="Assigns the rows to the chunks in turn, so the results come back in a different order."
def chunked_map(f, xs, size):
    padded = jnp.concatenate([xs, jnp.zeros((-len(xs) % size, *xs.shape[1:]))])
    dealt = jnp.swapaxes(padded.reshape(size, -1, *xs.shape[1:]), 0, 1)
    ys = jax.lax.map(jax.vmap(f), dealt)
    return ys.reshape(-1, *ys.shape[2:])[: len(xs)]


# %% wrong="control-chunks" because="Gives the results the shape of the rows, but f may return another shape."
def chunked_map(f, xs, size):
    padded = jnp.concatenate([xs, jnp.zeros((-len(xs) % size, *xs.shape[1:]))])
    ys = jax.lax.map(jax.vmap(f), padded.reshape(-1, size, *xs.shape[1:]))
    return ys.reshape(padded.shape)[: len(xs)]


# %% wrong="control-chunks" because="Shifts the last slice back so that it is full. If the size is larger than n, there is no such slice."
def chunked_map(f, xs, size):
    def turn(i, ys):
        chunk = jax.lax.dynamic_slice_in_dim(xs, i * size, size)
        return jax.lax.dynamic_update_slice_in_dim(ys, jax.vmap(f)(chunk), i * size, axis=0)

    row = jax.eval_shape(f, xs[0])
    return jax.lax.fori_loop(0, -(-len(xs) // size), turn, jnp.zeros((len(xs), *row.shape), row.dtype))


# %% wrong="control-chunks" because="Stores the results in an array of the dtype of xs, but f may return integers."
def chunked_map(f, xs, size):
    full = jnp.pad(xs, [(0, -len(xs) % size)] + [(0, 0)] * (xs.ndim - 1))
    ys = jnp.zeros((len(full), *jax.eval_shape(f, xs[0]).shape), xs.dtype)

    def turn(i, ys):
        chunk = jax.lax.dynamic_slice_in_dim(full, i * size, size)
        new = jax.vmap(f)(chunk).astype(xs.dtype)
        return jax.lax.dynamic_update_slice_in_dim(ys, new, i * size, axis=0)

    return jax.lax.fori_loop(0, len(full) // size, turn, ys)[: len(xs)]


# %% wrong="control-chunks" because="Pads as if each row were a vector. Rows that are numbers have no second axis, and matrices have a third."
def chunked_map(f, xs, size):
    padded = jnp.pad(xs, [(0, -len(xs) % size), (0, 0)])
    ys = jax.lax.map(jax.vmap(f), padded.reshape(-1, size, *xs.shape[1:]))
    return ys.reshape(-1, *ys.shape[2:])[: len(xs)]


# %% wrong="control-chunks" because="Makes the chunks equally large, which may be fewer rows than `size`."
def chunked_map(f, xs, size):
    n = xs.shape[0]
    chunks = -(-n // size)
    each = -(-n // chunks)
    padded = jnp.pad(xs, [(0, chunks * each - n)] + [(0, 0)] * (xs.ndim - 1))
    results = jax.lax.map(jax.vmap(f), padded.reshape(chunks, each, *xs.shape[1:]))
    return results.reshape(chunks * each, *results.shape[2:])[:n]


# %% right="control-chunks"
def chunked_map(f, xs, size):
    return jax.lax.map(f, xs, batch_size=size)


# %% right="control-chunks"
def chunked_map(f, xs, size):
    full = len(xs) // size
    run = lambda _, rows: (None, jax.vmap(f)(rows))
    chunks = xs[: full * size].reshape(full, size, *xs.shape[1:])
    rest = jax.vmap(f)(xs[full * size :])
    if not full:
        return rest
    ys = jax.lax.scan(run, None, chunks)[1]
    return jnp.concatenate([ys.reshape(full * size, *rest.shape[1:]), rest])


# %% [markdown] task="control-stop" stars=3 minutes=25 skills="04_grad,06_pytrees,control-train,control-piecewise"
# ## Stop before it is too late
# **Goal.** One bad batch puts a NaN into a training run, and an hour later all parameters are NaN. Stop at that step instead, in one compiled program, and return the last good parameters.
#
# **Signature.** `early_stop(loss, params, batches, rate)`. `loss(params, batch)` returns `()`, and `params` is a dict of float32 arrays. `batches` is a dict of arrays with a leading axis of size n, and step i uses entry i of each. `rate` is a float. A step is gradient descent with this rate. It is **good** if its loss, at the parameters before it, and every entry of the parameters after it are finite. NaN and both infinities are not finite. The run ends at the first step that is not good, so neither this step nor a later one changes anything. The result is `(params, steps)`, with the parameters after the last good step and the number of good steps, int32 `()`.
#
# **Example.** Take `miss` from the setup, `w = [1]`, the rate 0.25 and three batches `x = [[1], [1], [1]]`, `y = [3, NaN, 3]`. The first step leads from 1 to 2, and the second is bad. The result is `w = [2]` and steps = 1.
#
# **Judged.** Values, for NaN and inf in the loss, in the gradient and in the step, and for parameters that are huge but finite. The program has one loop and does not grow with n. **Not judged.** Whether steps after the bad one are computed and discarded, and whether the result is selected after the loop from recorded steps.
#
# <details><summary>Hint 1 · a question</summary>
#
# In which order does a step compute the loss, compute the new parameters, test whether both are finite, and choose the next carry?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Choose between the old and the new parameters *after* testing the new ones, leaf by leaf, with `where`. Once stopped, the run stays stopped. This information also belongs in the carry.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Carry `(params, steps, running)`. Set `running` to `running & isfinite(loss)` and combine it with `all(isfinite(leaf))` for each new leaf. Then `running` selects the parameters, and it can be added to `steps`.
#
# </details>


# %% answer="control-stop"
def early_stop(loss, params, batches, rate):
    """(params, steps () int32): gradient descent over the batches until a step would not be finite."""

    ### BEGIN SOLUTION
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        for watched in (value, *jax.tree.leaves(new)):
            running &= jnp.all(jnp.isfinite(watched))
        params = jax.tree.map(lambda new, old: jnp.where(running, new, old), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps
    ### END SOLUTION


# %% check="control-stop" name="example" points=1
"""The example: the second of three batches is bad."""
params = {"w": np.ones(1, np.float32)}
batches = {"x": np.ones((3, 1), np.float32), "y": np.array([3, np.nan, 3], np.float32)}
made = program(lambda params, batches: early_stop(miss, params, batches, 0.25), params, batches)
compare(made.run(params, batches), ({"w": np.array([2], np.float32)}, np.int32(1)), label="(params, steps)")

# %% hidden="control-stop" name="nan" points=2
"""The last good parameters, with a NaN in the middle, at the start, or nowhere."""


def by_hand(w, xs, ys, rate, n):
    w = w.astype(np.float64)
    for x, y in zip(xs[:n], ys[:n], strict=True):
        w = w - rate * 2 * (w @ x - y) * x
    return w


rng = inputs.rng()
bad = int(rng.integers(2, 5))
made = program(
    lambda params, batches: early_stop(miss, params, batches, 0.1),
    {"w": np.zeros(3, np.float32)},
    {"x": np.zeros((7, 3), np.float32), "y": np.zeros(7, np.float32)},
)
for at in (7, bad, 0):
    w, xs = rng.normal(size=3).astype(np.float32), rng.uniform(0.5, 1, size=(7, 3)).astype(np.float32)
    ys = rng.normal(size=7).astype(np.float32)
    ys[at : at + 1] = np.nan
    where = "without a bad step" if at == 7 else "with a bad first step" if at == 0 else "with a bad step"
    got = made.run({"w": w}, {"x": xs, "y": ys})
    require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (params, steps).")
    entries = got[0].get("w") if isinstance(got[0], dict) else None
    if getattr(entries, "shape", None) == (3,):
        require(
            np.isfinite(entries).all(), f"{where.capitalize()} the parameters are not finite: the bad step was applied."
        )
        skipped = by_hand(w, xs[np.arange(7) != at], ys[np.arange(7) != at], 0.1, 6) if at < 7 else w + np.inf
        require(
            not np.allclose(entries, skipped, rtol=1e-3),
            "The bad step was left out, but the run continued after it. It must end there.",
        )
        if at > 0:
            early = by_hand(w, xs, ys, 0.1, at - 1)
            require(not np.allclose(entries, early, rtol=1e-3), f"{where.capitalize()} the last good step is missing.")
    compare(got, ({"w": by_hand(w, xs, ys, 0.1, at).astype(np.float32)}, np.int32(at)), label=f"the result {where}")

# %% hidden="control-stop" name="inf" points=1
"""An infinite value ends the run, in the loss alone, in the gradient, or in the step alone."""
rng = inputs.rng()
made = program(
    lambda params, batches: early_stop(tilt, params, batches, 10.0),
    {"w": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)},
    {"x": np.zeros((6, 2), np.float32), "y": np.zeros(6, np.float32)},
)
rooted = program(
    lambda params, batches: early_stop(lambda p, batch: jnp.sum(jnp.sqrt(p["w"] - batch["y"])), params, batches, 2.0),
    {"w": np.zeros(1, np.float32)},
    {"y": np.zeros(6, np.float32)},
)
results = {}
bad = int(rng.integers(1, 3))
ys = 9 - np.minimum(np.arange(1, 7), bad).astype(np.float32)  # each good step takes 1 off 9, until w - y is 0
got = rooted.run({"w": np.float32([9])}, {"y": ys})
results["an infinite gradient whose loss is finite"] = got, ({"w": np.float32([9 - bad])}, np.int32(bad))
kinds = (
    "a loss that is NaN",
    "an infinite loss whose gradient is finite",
    "a step that overflows from a finite gradient",
)
for what in kinds:
    start, b = np.zeros(2, np.float32), rng.normal(size=2).astype(np.float32)
    xs, ys = rng.normal(size=(6, 2)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    bad = int(rng.integers(1, 3))
    xs[:bad, 0] = 0  # so that w[0] is still 0, and a loss with 1e38 times w[0] in it is finite
    if "infinite" in what:
        ys[bad] = rng.choice([np.inf, -np.inf])
    else:
        xs[bad, 0] = np.inf if "NaN" in what else 1e38
    got, wanted = made.run({"w": start, "b": b}, {"x": xs, "y": ys}), start - 10 * xs[:bad].sum(axis=0)
    results[what] = got, ({"w": wanted.astype(np.float32), "b": b}, np.int32(bad))
# All of them run before any is compared, because the set of missed ones identifies the misconception.
missed = [
    what
    for what, (got, (_, steps)) in results.items()
    if isinstance(got, tuple) and len(got) == 2 and getattr(got[1], "shape", None) == () and int(got[1]) > steps
]
require(not missed, f"The run continues after {', and after '.join(missed)}.")
for what, (got, wanted) in results.items():
    compare(got, wanted, label=f"a run with {what}: (params, steps)")
start = {"w": np.float32(0), "b": np.float32(rng.normal())}
batches = {"x": np.zeros(6, np.float32), "y": rng.uniform(1, 2, size=6).astype(np.float32)}
batches["x"][bad] = 1e38
made = program(
    lambda params, batches: early_stop(lambda p, b: p["w"] * b["x"] + p["b"] * b["y"], params, batches, 10.0),
    start,
    batches,
)
wanted = {"w": np.float32(0), "b": np.float32(start["b"] - 10 * batches["y"][:bad].sum())}
compare(
    made.run(start, batches),
    (wanted, np.int32(bad)),
    label="a run in which one of two parameters overflows: (params, steps)",
)

# %% hidden="control-stop" name="large" points=1
"""Large is not infinite, and the loss that counts is the one before the step."""
tilted = program(
    lambda params, batches: early_stop(tilt, params, batches, 2.0),
    {"w": np.zeros(2, np.float32)},
    {"x": np.zeros((6, 2), np.float32), "y": np.zeros(6, np.float32)},
)
missed = program(
    lambda params, batches: early_stop(miss, params, batches, 2.0),
    {"w": np.zeros(1, np.float32)},
    {"x": np.zeros((6, 1), np.float32), "y": np.zeros(6, np.float32)},
)
rng = inputs.rng()
big = int(rng.integers(1, 4))
w, ys = np.float64(rng.uniform(1, 2)), np.zeros(6, np.float32)
ys[big] = 1e17  # its loss has room in float32; at the parameter after it, 4e18, the loss has not
got = missed.run({"w": np.float32([w])}, {"x": np.full((6, 1), 10, np.float32), "y": ys})
if isinstance(got, tuple) and len(got) == 2 and getattr(got[1], "shape", None) == ():
    require(
        int(got[1]) > big,
        "A step is rejected because the loss at its *new* parameters is not finite. That loss belongs to the next step.",
    )
    require(int(got[1]) == big + 1, "The run continues after an infinite loss.")
for y in ys[: big + 1]:
    w = w - 40 * (10 * w - y)
compare(
    got, ({"w": np.float32([w])}, np.int32(big + 1)), label="a step after which the loss is infinite: (params, steps)"
)
xs, ys = rng.uniform(-0.2, 0.2, size=(6, 2)).astype(np.float32), rng.normal(size=6).astype(np.float32)
xs[big] = -1e38  # both parameters become 2e38: neither their squares nor their sum has room in float32
got = tilted.run({"w": np.zeros(2, np.float32)}, {"x": xs, "y": ys})
if isinstance(got, tuple) and len(got) == 2 and getattr(got[1], "shape", None) == ():
    require(
        int(got[1]) > big,
        "The run ends at a step whose loss and new parameters are all finite. A large number is still finite, but the "
        "sum of several, or of their squares, may not be.",
    )
w = -2 * xs.astype(np.float64).sum(axis=0)
compare(got, ({"w": w.astype(np.float32)}, np.int32(6)), label="a run with large parameters: (params, steps)")

# %% hidden="control-stop" name="program" points=1
"""One loop, and a program that does not grow with the number of batches."""
rng = inputs.rng()
start, xs = rng.normal(size=3).astype(np.float32), rng.uniform(-1, 1, size=(50, 3)).astype(np.float32)
ys = rng.normal(size=50).astype(np.float32)
bad = int(rng.integers(2, 4))  # of both numbers of batches, some are left after it
ys[bad] = np.nan
few, many = (
    program(lambda params, batches: early_stop(miss, params, batches, 0.1), {"w": start}, {"x": xs[:n], "y": ys[:n]})
    for n in (5, 50)
)
require(
    few.operations == many.operations,
    f"The program has {few.operations} operations for 5 batches and {many.operations} for 50: a Python loop writes every "
    "step out.",
)
require(
    many.operations <= 300,
    f"The program has {many.operations} operations, too many for a loop. Use a loop of `jax.lax` instead of a Python loop.",
)
require(many.loops == 1, f"The program has {many.loops} loops; one is enough.")
w = start.astype(np.float64)
for x, y in zip(xs[:bad], ys[:bad], strict=True):
    w = w - 0.1 * 2 * (w @ x - y) * x
wanted = {"w": w.astype(np.float32)}, np.int32(bad)
for made, n in ((few, 5), (many, 50)):
    got = made.run({"w": start}, {"x": xs[:n], "y": ys[:n]})
    compare(got, wanted, label=f"the result for {n} batches, (params, steps)")

# %% [markdown] why="control-stop"
# The test uses the new parameters, and its result is applied before they become the carry, so no NaN enters the carry. If the choice came one iteration later, it could only preserve parameters that are already NaN. **Next:** The steps after the end are still computed here. How would you write the function with `while_loop`, and which version would you prefer on an accelerator?


# %% wrong="control-stop" because="Detects the NaN one step late, so the bad update is applied and only later ones are skipped."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        params = jax.tree.map(lambda new, old: jnp.where(running, new, old), new, params)
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((value, new))]
        return (params, steps + running, running & jnp.all(jnp.stack(finite))), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Skips the bad step and continues after it, because the carry does not record that the run has ended."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        good = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((value, new))]))
        return (jax.tree.map(lambda n, p: jnp.where(good, n, p), new, params), steps + good), None

    return jax.lax.scan(step, (params, 0), batches)[0]


# %% wrong="control-stop" because="Tests for NaN only, so an infinite loss or step passes."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        bad = jnp.stack([jnp.any(jnp.isnan(leaf)) for leaf in jax.tree.leaves((value, new))])
        running = running & ~jnp.any(bad)
        return (jax.tree.map(lambda n, p: jnp.where(running, n, p), new, params), steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Tests the loss only, but a finite loss can have a gradient that is not finite."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        running = running & jnp.isfinite(value)
        new = jax.tree.map(lambda p, slope: jnp.where(running, p - rate * slope, p), params, slopes)
        return (new, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Tests the loss and the gradient, but not the new parameters. A finite gradient times the rate can overflow."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        for leaf in jax.tree.leaves((value, slopes)):
            running = running & jnp.all(jnp.isfinite(leaf))
        new = jax.tree.map(lambda p, slope: jnp.where(running, p - rate * slope, p), params, slopes)
        return (new, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Tests the new parameters only, but the loss can be infinite where they are finite."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        slopes = jax.grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        for leaf in jax.tree.leaves(new):
            running = running & jnp.all(jnp.isfinite(leaf))
        new = jax.tree.map(lambda n, p: jnp.where(running, n, p), new, params)
        return (new, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Tests whether the sum of the squared parameters is finite, but large finite numbers make it infinite."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        size = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(new))
        running = running & jnp.isfinite(value) & jnp.isfinite(size)
        return (jax.tree.map(lambda n, p: jnp.where(running, n, p), new, params), steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Also tests the loss at the new parameters, which belongs to the next step and its own batch."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        for leaf in jax.tree.leaves((value, new, loss(new, batch))):
            running = running & jnp.all(jnp.isfinite(leaf))
        return (jax.tree.map(lambda n, p: jnp.where(running, n, p), new, params), steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Multiplies the step by 0 to skip it, but 0 times NaN is NaN."
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        for leaf in jax.tree.leaves((value, new)):
            running = running & jnp.all(jnp.isfinite(leaf))
        return (jax.tree.map(lambda p, g: p - running * rate * g, params, slopes), steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return params, steps


# %% wrong="control-stop" because="Special-cases the sizes whose programs are inspected. Their loop only counts, and all other loops are unrolled in Python."
def early_stop(loss, params, batches, rate):
    n = len(jax.tree.leaves(batches)[0])
    steps, running = jnp.int32(0), jnp.array(True)
    if n in (5, 50):
        return jax.lax.scan(lambda carry, batch: ((carry[0], carry[1] + 1), None), (params, steps), batches)[0]
    for i in range(n):
        value, slopes = jax.value_and_grad(loss)(params, jax.tree.map(lambda leaf: leaf[i], batches))
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        for watched in (value, *jax.tree.leaves(new)):
            running &= jnp.all(jnp.isfinite(watched))
        params = jax.tree.map(lambda new, old: jnp.where(running, new, old), new, params)
        steps += running
    return params, steps


# %% wrong="control-stop" because="Breaks out of a Python loop, but under jit the condition is a tracer."
def early_stop(loss, params, batches, rate):
    steps = 0
    for i in range(len(jax.tree.leaves(batches)[0])):
        value, slopes = jax.value_and_grad(loss)(params, jax.tree.map(lambda each: each[i], batches))
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((value, new))):
            break
        params, steps = new, steps + 1
    return params, jnp.int32(steps)


# %% wrong="control-stop" because="Decides for each array separately, so in the bad step the arrays that are still finite are updated."
def early_stop(loss, params, batches, rate):

    def step(carry, batch):
        params, steps, running = carry
        value, slopes = jax.value_and_grad(loss)(params, batch)
        running = running & jnp.isfinite(value)
        stepped = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        fine = jax.tree.map(lambda leaf: jnp.all(jnp.isfinite(leaf)), stepped)
        params = jax.tree.map(lambda ok, new, old: jnp.where(running & ok, new, old), fine, stepped, params)
        running = running & jnp.all(jnp.stack(jax.tree.leaves(fine)))
        return (params, steps + running.astype(jnp.int32), running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, jnp.int32(0), jnp.array(True)), batches)
    return params, steps


# %% wrong="control-stop" because="Selects the last good parameters from the history at `steps - 1`, which is the last entry where no step was good."
def early_stop(loss, params, batches, rate):

    def step(params, batch):
        value, slopes = jax.value_and_grad(loss)(params, batch)
        params = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        good = jnp.isfinite(value)
        for leaf in jax.tree.leaves(params):
            good = good & jnp.all(jnp.isfinite(leaf))
        return params, (params, good)

    _, (history, good) = jax.lax.scan(step, params, batches)
    first_bad = jnp.argmin(good.astype(jnp.int32))
    steps = jnp.where(jnp.all(good), good.shape[0], first_bad).astype(jnp.int32)
    return jax.tree.map(lambda leaf: leaf[steps - 1], history), steps


# %% right="control-stop"
def early_stop(loss, params, batches, rate):
    n = len(jax.tree.leaves(batches)[0])

    def attempt(params, i):
        value, slopes = jax.value_and_grad(loss)(params, jax.tree.map(lambda each: each[i], batches))
        new = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        return new, jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((value, new))]).all()

    def step(carry):
        params, steps, _ = carry
        new, good = attempt(params, steps)
        return jax.tree.map(lambda n, p: jnp.where(good, n, p), new, params), steps + good, ~good

    going = lambda carry: (carry[1] < n) & ~carry[2]
    params, steps, _ = jax.lax.while_loop(going, step, (params, jnp.int32(0), False))
    return params, steps


# %% right="control-stop"
def early_stop(loss, params, batches, rate):
    def step(carry, batch):
        def walk(params, steps):
            value, slopes = jax.value_and_grad(loss)(params, batch)
            new = {name: params[name] - rate * slopes[name] for name in params}
            total = sum(jnp.sum(jnp.abs(leaf) * 0) for leaf in (value, *new.values()))
            good = total == 0
            return jax.lax.cond(good, lambda: (new, steps + 1, True), lambda: (params, steps, False))

        params, steps, running = carry
        return jax.lax.cond(running, walk, lambda params, steps: (params, steps, False), params, steps), None

    return jax.lax.scan(step, (params, jnp.int32(0), True), batches)[0][:2]


# %% [markdown] task="control-implicit" stars=3 minutes=25 skills="04_grad,control-newton"
# ## The derivative of a solution, without the search
# *Needs: lesson 04, Deeper: a derivative rule of your own.*
#
# **Goal.** `newton_sqrt` in the setup searches for y with y² = a and stops when y is accurate enough. Reverse mode rejects its `while_loop`. But the derivative of the solution follows from the equation, however the solution was found. Differentiating y² = a gives 2y · dy = da. Make the search differentiable, any number of times.
#
# **Signature.** `implicit_sqrt(a)`. `a` is a positive float32 `()`. The result `()` is that of `newton_sqrt(a)`, up to rounding.
#
# **Example.** `implicit_sqrt(4)` is 2. Its derivative there is 1/(2 · 2) = 0.25, and its second derivative is -1/(4 · 2³) = -0.03125.
#
# **Judged.** Values, and first and second derivatives in reverse mode, also under `vmap`. The program of value and gradient together has exactly one loop, the search. It has at most 50 operations, so the steps of a search cannot be written out one by one. **Not judged.** Forward mode, third derivatives, and whether your answer also uses `jnp.sqrt`.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which transformation of lesson 04 lets you define the derivative of a function yourself?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A rule for `jax.custom_jvp` receives the value and the tangent of a. It returns the result and the tangent of the result, which is the tangent of a divided by 2y. For the second derivative, JAX differentiates the rule itself. How should the rule compute y?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In the rule, compute y by calling the function **that has the rule**, not `newton_sqrt`. Then JAX can differentiate y too.
#
# </details>


# %% answer="control-implicit"
def implicit_sqrt(a):
    """The square root of a positive a (), found by newton_sqrt, with derivatives that do not go through its loop."""

    ### BEGIN SOLUTION
    @jax.custom_jvp
    def root(a):
        return newton_sqrt(a)

    @root.defjvp
    def moves(values, pushes):
        y = root(*values)
        return y, pushes[0] / (2 * y)

    return root(a)
    ### END SOLUTION


# %% check="control-implicit" name="example" points=1
"""The example: the root of 4 and its derivative."""
a = np.float32(4)
got = program(lambda a: [implicit_sqrt(a), jax.grad(implicit_sqrt)(a)], a).run(a)
compare(got, [np.float32(2), np.float32(0.25)], label="[root, derivative]")

# %% hidden="control-implicit" name="slopes" points=2
"""Right values and derivatives, for many numbers at once, with one loop."""
made = program(lambda a: jax.vmap(jax.value_and_grad(implicit_sqrt))(a), np.ones(5, np.float32))
for _ in range(2):
    a = inputs.rng().uniform(0.2, 40, size=5).astype(np.float32)
    values, slopes = made.run(a)
    compare(values, np.sqrt(a), label="the roots")
    compare(slopes, 0.5 / np.sqrt(a), label="the derivatives")
both = program(lambda a: jax.value_and_grad(implicit_sqrt)(a), a[0])
compare(both.run(a[0]), (np.sqrt(a[0]), 0.5 / np.sqrt(a[0])), label="the result for one number, (root, derivative)")
require(both.loops > 0, "The program has no loop, so `newton_sqrt` does not compute the root.")
require(
    both.loops == 1,
    f"The program of value and gradient has {both.loops} loops; expected one, the search. The derivative goes through the "
    "steps of the search, or repeats the search.",
)
require(
    both.operations <= 50,
    f"The program of value and gradient has {both.operations} operations. The derivative needs only y and one division, not "
    "the steps of a search.",
)

# %% hidden="control-implicit" name="second" points=2
"""The second derivative is right too."""


def probe_second(a):
    return jax.vmap(jax.grad(jax.grad(implicit_sqrt)))(a)


a = inputs.rng().uniform(0.5, 9, size=4).astype(np.float32)
require(
    error(probe_second, a) != "ValueError",
    "For the second derivative, reverse mode reaches a while_loop without a rule of its own. If you have defined a rule, "
    "how does it compute y?",
)
got = program(probe_second, a).run(a)
constant = getattr(got, "shape", None) == (4,) and not np.any(got)
require(not constant, "The second derivative is 0: y is held constant somewhere.")
compare(got, (-0.25 / np.sqrt(a) ** 3).astype(np.float32), label="the second derivatives")

# %% [markdown] why="control-implicit"
# This is the implicit function theorem. It differentiates the equation that the solution satisfies, not the search. The program contains one search and one division, and stores no residuals of the loop. Solvers, fixed points and whole optimizations are made differentiable in this way (`jax.lax.custom_root`, and the library Optimistix). **Next:** Suppose that y satisfies cos(y) = a·y. What is your rule then?


# %% wrong="control-implicit" because="Calls the search without a rule, but reverse mode rejects a while_loop."
def implicit_sqrt(a):
    return newton_sqrt(a)


# %% wrong="control-implicit" because="Takes a fixed number of steps, so that reverse mode accepts the loop. The backward pass then goes through every step."
def implicit_sqrt(a):
    return jax.lax.fori_loop(0, 40, lambda i, y: (y + a / y) / 2, jnp.ones_like(a))


# %% wrong="control-implicit" because="Calls the library's square root. The values are right, but there is no search, and other equations have no such function."
def implicit_sqrt(a):
    return jnp.sqrt(a)


# %% wrong="control-implicit" because="Holds the root constant and takes one more Newton step. The first derivative is right, but the second is not."
def implicit_sqrt(a):
    y = jax.lax.stop_gradient(newton_sqrt(a))
    return y - (y**2 - a) / (2 * y)


# %% wrong="control-implicit" because="In the rule, calls the search instead of the function that has the rule, so the second derivative reaches the loop."
def implicit_sqrt(a):
    @jax.custom_jvp
    def root(a):
        return newton_sqrt(a)

    @root.defjvp
    def moves(values, pushes):
        y = newton_sqrt(values[0])
        return y, pushes[0] / (2 * y)

    return root(a)


# %% wrong="control-implicit" because="Divides by 2a, but the equation contains 2y · dy."
def implicit_sqrt(a):
    @jax.custom_jvp
    def root(a):
        return newton_sqrt(a)

    @root.defjvp
    def moves(values, pushes):
        return root(values[0]), pushes[0] / (2 * values[0])

    return root(a)


# %% wrong="control-implicit" because="Stops the gradient of y in the rule, so y is a constant for the second derivative."
def implicit_sqrt(a):
    @jax.custom_jvp
    def root(a):
        return newton_sqrt(a)

    @root.defjvp
    def moves(values, pushes):
        y = root(values[0])
        return y, pushes[0] / (2 * jax.lax.stop_gradient(y))

    return root(a)


# %% wrong="control-implicit" because="Stores a instead of the root for the backward pass, and searches again there."
def implicit_sqrt(a):
    @jax.custom_vjp
    def root(a):
        return newton_sqrt(a)

    root.defvjp(lambda a: (root(a), a), lambda a, g: (g / (2 * root(a)),))
    return root(a)


# %% wrong="control-implicit" because="Stops the gradient at the search and adds one Newton step: the first derivative is right, the second is 0."
def implicit_sqrt(a):
    y = jax.lax.stop_gradient(newton_sqrt(jax.lax.stop_gradient(a)))
    return (y + a / y) / 2


# %% wrong="control-implicit" because="Divides by y squared instead of 2y, which is the same only in the example."
@jax.custom_jvp
def implicit_sqrt(a):
    return newton_sqrt(a)


@implicit_sqrt.defjvp
def implicit_sqrt_rule(primals, tangents):
    (a,), (push,) = primals, tangents
    y = implicit_sqrt(a)
    return y, push / y**2


# %% wrong="control-implicit" because="Searches, but differentiates 20 Newton steps that are written out."
def implicit_sqrt(a):
    y = jnp.ones_like(a)
    for _ in range(20):
        y = (y + a / y) / 2
    return y + 0 * jax.lax.stop_gradient(newton_sqrt(jax.lax.stop_gradient(a)))


# %% wrong="control-implicit" because="Searches again for each factor of the rule, in a jitted function that the program contains once and calls three times."
search = jax.jit(newton_sqrt)


@jax.custom_jvp
def implicit_sqrt(a):
    return search(a)


@implicit_sqrt.defjvp
def moves(values, pushes):
    return implicit_sqrt(*values), pushes[0] / (implicit_sqrt(*values) + implicit_sqrt(*values))


# %% right="control-implicit"
@jax.custom_vjp
def implicit_sqrt(a):
    return newton_sqrt(a)


def keep_root(a):
    y = implicit_sqrt(a)
    return y, y


implicit_sqrt.defvjp(keep_root, lambda y, slope: (slope / (2 * y),))


# %% right="control-implicit"
def implicit_sqrt(a):
    solve = lambda f, guess: newton_sqrt(a)
    return jax.lax.custom_root(lambda y: y**2 - a, jnp.ones_like(a), solve, lambda g, y: y / g(1.0))


# %% [markdown] task="control-rollout" stars=2 minutes=20 skills="05_vmap,control-rnn,control-stop"
# ## From reinforcement learning: many carts at once
# **Goal.** An agent tries out plans, and each plan is a sequence of pushes that is fixed beforehand. Every plan is run in its own environment. An environment runs until it is over, and its state does not change after that. Simulate all environments in one program, with a loop over time and `vmap` over environments.
#
# **Signature.** `rollout(starts, forces)`. `starts` has shape `(e, 4)` and contains the first state of each environment. `forces` has shape `(e, t)`, with t at most 50, and contains the forces that push it, one for each time step. Both are float32. A push moves a state with `cartpole` from the setup, unless `over` from the setup is true for the state. The result is `(states, taken)`. `states` has shape `(e, t, 4)` and contains the state after each push, which stays the same once the environment is over. `taken` has shape `(e,)` and dtype int32 and contains the number of pushes that moved each environment.
#
# **Example.** One environment starts from `[2.39, 1, 0, 0]` and is pushed three times with force 0. After the first push, its position is 2.41, beyond the end of the track at 2.4. This push counts. So `taken = [1]`, and all three states are `[2.41, 1, 0, 0]`.
#
# **Judged.** Values, also where an environment is over at the start. The program has one loop and grows neither with t nor with e. **Not judged.** Whether environments that are over are computed and discarded, and whether states are selected after the loop.
#
# <details><summary>Hint 1 · a question</summary>
#
# The program for a single environment resembles an earlier exercise of this lesson. What are its carry, its inputs and its outputs?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Each iteration has two outputs, the state after it and whether the environment moved. The sum of the second over time is `taken`. Write the loop for one environment, and map it with `vmap`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Once `over(state)` is true, it stays true, because the state no longer changes. So the carry needs no flag. Evaluate `over` before the push, choose with `where`, and output its negation.
#
# </details>


# %% answer="control-rollout"
def rollout(starts, forces):
    """(states (e, t, 4), taken (e,) int32) of environments from starts (e, 4), pushed by forces (e, t)."""

    ### BEGIN SOLUTION
    def push(state, force):
        moves = ~over(state)
        state = jnp.where(moves, cartpole(state, force), state)
        return state, (state, moves)

    _, (states, moved) = jax.vmap(lambda start, plan: jax.lax.scan(push, start, plan))(starts, forces)
    return states, jnp.sum(moved, axis=1)
    ### END SOLUTION


# %% check="control-rollout" name="example" points=1
"""The example: one environment that leaves its track with the first push."""
starts, forces = np.array([[2.39, 1, 0, 0]], np.float32), np.zeros((1, 3), np.float32)
wanted = np.tile(np.array([2.41, 1, 0, 0], np.float32), (1, 3, 1)), np.array([1], np.int32)
compare(program(rollout, starts, forces).run(starts, forces), wanted, label="(states, taken)")

# %% hidden="control-rollout" name="values" points=2
"""Right for environments that end early, late, at the start and not at all."""


def by_hand(state, forces):
    """In float64; `close` is how near a state came to the edge of being over."""
    states, taken, close, state = [], 0, np.inf, state.astype(np.float64)
    for force in forces:
        close = min(close, abs(abs(state[0]) - 2.4), abs(abs(state[2]) - 0.21))
        if abs(state[0]) <= 2.4 and abs(state[2]) <= 0.21:
            _, speed, angle, turning = state
            sine, cosine = np.sin(angle), np.cos(angle)
            push = (force + 0.05 * turning**2 * sine) / 1.1
            twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
            state = state + 0.02 * np.array([speed, push - 0.05 * twist * cosine / 1.1, turning, twist])
            taken += 1
        states.append(state)
    return np.stack(states), taken, close


def draw(kind, t):
    while True:
        rng = inputs.rng()
        start, forces = rng.uniform(-0.05, 0.05, size=4), rng.choice([-10.0, 10.0], size=t)
        if kind == "at once":
            start[0] = 2.5
        if kind == "track":
            start[:2] = 2.35, 1
        if kind == "never":
            forces = 10.0 * (-1) ** np.arange(t)
        if kind == "pole":
            forces[:] = 10
        start, forces = start.astype(np.float32), forces.astype(np.float32)
        states, taken, close = by_hand(start, forces)
        if close > 1e-3 and (taken == t) == (kind == "never"):
            return start, forces, states, taken


e, t = 20, 40
kinds = ["never", "pole", "track", "at once"] * 5
drawn = [draw(kind, t) for kind in inputs.rng().permutation(kinds)]
starts, forces, states, taken = (np.stack([each[part] for each in drawn]) for part in range(4))
got = program(rollout, starts, forces).run(starts, forces)
require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (states, taken).")
if getattr(got[0], "shape", None) == (e, t, 4):
    result = np.asarray(got[0])
    before = np.concatenate([starts[:, None], states[:, :-1]], axis=1)
    require(
        not np.allclose(result, before, atol=1e-3), "The states are those before each push; expected those after it."
    )
    ended = np.arange(t) > taken[:, None]  # two states in a row that are over
    still = np.diff(result, axis=1, prepend=starts[:, None])[ended]
    require(np.all(np.abs(still) < 1e-6), "An environment that is over continues to move.")
compare(got[0], states.astype(np.float32), rtol=1e-3, atol=1e-3, label="the array of states")
if getattr(got[1], "shape", None) == (e,):
    extra = np.asarray(got[1]).astype(int) - taken
    require(not np.any(extra[taken == 0]), "An environment that is over at the start is counted as pushed.")
    require(not np.any(extra[taken == t]), "If an environment is never over, not all of its pushes are counted.")
    require(
        not np.all(extra[(taken > 0) & (taken < t)] == -1),
        "The push after which an environment is over is not counted, but it moved the state.",
    )
compare(got[1], taken.astype(np.int32), label="the number of pushes taken")

# %% hidden="control-rollout" name="program" points=2
"""One loop, and a program that grows neither with time nor with the number of environments."""


def by_hand(states, forces):
    """All environments at once, in float64."""
    states, after, taken = states.astype(np.float64), [], 0
    for force in forces.T:
        _, speed, angle, turning = states.T
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moved = states + 0.02 * np.stack([speed, push - 0.05 * twist * cosine / 1.1, turning, twist], axis=1)
        moves = (np.abs(states[:, 0]) <= 2.4) & (np.abs(angle) <= 0.21)
        states, taken = np.where(moves[:, None], moved, states), taken + moves
        after.append(states)
    return np.stack(after, axis=1).astype(np.float32), taken.astype(np.int32)


rng, sizes = inputs.rng(), {}
for e, t in ((3, 5), (3, 20), (12, 5)):
    starts, forces = rng.uniform(-0.05, 0.05, size=(e, 4)), rng.uniform(-1, 1, size=(e, t)).astype(np.float32)
    starts[-1, 0] = 2.5  # over at once; the others never are, with pushes as weak as these
    starts = starts.astype(np.float32)
    made = program(rollout, starts, forces)
    sizes[e, t] = made.operations
    require(made.loops > 0, "The program has no loop: a Python loop writes every step out.")
    require(
        made.loops == 1, f"The program has {made.loops} loops; one over time is enough, for all environments together."
    )
    states, taken = made.outputs
    sizes_of = f"{e} environments and {t} pushes"
    require(states.shape == (e, t, 4), f"For {sizes_of} the states have shape {states.shape}; expected {(e, t, 4)}.")
    require(taken.shape == (e,), f"For {sizes_of} `taken` has shape {taken.shape}; expected {(e,)}.")
    got, wanted = made.run(starts, forces), by_hand(starts, forces)
    compare(got, wanted, rtol=1e-3, atol=1e-3, label=f"the result for {sizes_of}, (states, taken)")
require(sizes[3, 5] == sizes[3, 20], "The program grows with time: is there a Python loop over the pushes?")
require(sizes[3, 5] == sizes[12, 5], "The program grows with the number of environments: is there a Python loop?")

# %% [markdown] why="control-rollout"
# A simulator that is itself a JAX program runs thousands of environments in lockstep on one device, and no state is copied back to Python between two steps. **Next:** Here each plan is fixed beforehand. What changes in the loop body if a network chooses each push from the state, and how would you compute the gradient of the outcome with respect to its weights?


# %% equivalent="control-rollout" because="All states are finite, so the product with 0 or 1 selects the same values as `where`."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: state = jnp.where(moves, cartpole(state, force), state)


# %% wrong="control-rollout" because="Continues after the end, because the result of `over` is never applied to the state."
def rollout(starts, forces):
    def push(state, force):
        moves = ~over(state)
        state = cartpole(state, force)
        return state, (state, moves)

    _, (states, moved) = jax.vmap(lambda start, plan: jax.lax.scan(push, start, plan))(starts, forces)
    return states, jnp.sum(moved, axis=1)


# %% wrong="control-rollout" because="Scans over the environments as if they were time, so each starts where the previous one ended."
def rollout(starts, forces):
    def push(state, force):
        moves = jax.vmap(lambda s: ~over(s))(state)
        state = jnp.where(moves[:, None], jax.vmap(cartpole)(state, force[: len(state)]), state)
        return state, (state, moves)

    _, (states, moved) = jax.lax.scan(push, starts, forces)
    return jnp.swapaxes(states, 0, 1), jnp.sum(moved, axis=0)


# %% wrong="control-rollout" because="Outputs the states before the pushes."
def rollout(starts, forces):
    def push(state, force):
        moves = ~over(state)
        return jnp.where(moves, cartpole(state, force), state), (state, moves)

    _, (states, moved) = jax.vmap(lambda start, plan: jax.lax.scan(push, start, plan))(starts, forces)
    return states, jnp.sum(moved, axis=1)


# %% wrong="control-rollout" because="Evaluates `over` after the push, so the push that ended the environment is not counted."
def rollout(starts, forces):
    def push(state, force):
        state = jnp.where(over(state), state, cartpole(state, force))
        return state, (state, ~over(state))

    _, (states, moved) = jax.vmap(lambda start, plan: jax.lax.scan(push, start, plan))(starts, forces)
    return states, jnp.sum(moved, axis=1)


# %% wrong="control-rollout" because="Loops over the environments in Python, so the program has a loop for each of them."
def rollout(starts, forces):
    def push(state, force):
        moves = ~over(state)
        state = jnp.where(moves, cartpole(state, force), state)
        return state, (state, moves)

    runs = [jax.lax.scan(push, start, plan)[1] for start, plan in zip(starts, forces, strict=True)]
    return jnp.stack([states for states, _ in runs]), jnp.stack([jnp.sum(moved) for _, moved in runs])


# %% wrong="control-rollout" because="Tests the new state and keeps the old one, so an environment stops before its last push."
def rollout(starts, forces):
    def push(state, force):
        new = cartpole(state, force)
        moves = ~over(new)
        state = jnp.where(moves, new, state)
        return state, (state, moves)

    _, (states, moved) = jax.vmap(lambda start, plan: jax.lax.scan(push, start, plan))(starts, forces)
    return states, jnp.sum(moved, axis=1)


# %% wrong="control-rollout" because="Special-cases the sizes whose programs are inspected. Their loop moves nothing, and all other loops are unrolled in Python."
def rollout(starts, forces):
    if forces.shape in ((3, 5), (3, 20), (12, 5)):
        _, states = jax.lax.scan(lambda states, force: (states, states), starts, forces.T)
        return jnp.swapaxes(states, 0, 1), jnp.zeros(len(starts), jnp.int32)
    states, taken, after = starts, 0, []
    for force in forces.T:
        moves = ~jax.vmap(over)(states)
        states = jnp.where(moves[:, None], jax.vmap(cartpole)(states, force), states)
        taken += moves
        after.append(states)
    return jnp.stack(after, axis=1), taken.astype(jnp.int32)


# %% wrong="control-rollout" because="Starts with a flag that every environment is running, so an environment that is over at the start is pushed once."
def rollout(starts, forces):
    def push(carry, force):
        state, running = carry
        state = jnp.where(running, cartpole(state, force), state)
        return (state, running & ~over(state)), (state, running)

    def one(start, plan):
        _, (states, moved) = jax.lax.scan(push, (start, jnp.array(True)), plan)
        return states, jnp.sum(moved)

    return jax.vmap(one)(starts, forces)


# %% wrong="control-rollout" because="Finds the first state that is over with argmax, which is 0 if there is none."
def rollout(starts, forces):
    def push(state, force):
        state = jnp.where(over(state), state, cartpole(state, force))
        return state, state

    def one(start, plan):
        _, states = jax.lax.scan(push, start, plan)
        return states, jnp.argmax(jax.vmap(over)(states)).astype(jnp.int32) + 1

    return jax.vmap(one)(starts, forces)


# %% wrong="control-rollout" because="Maps over the environments with lax.map, which is a loop around the loop over time."
def rollout(starts, forces):
    def push(state, force):
        moves = ~over(state)
        state = jnp.where(moves, cartpole(state, force), state)
        return state, (state, moves)

    def one(environment):
        _, (states, moved) = jax.lax.scan(push, *environment)
        return states, jnp.sum(moved)

    return jax.lax.map(one, (starts, forces))


# %% wrong="control-rollout" because="Leaves time as the first axis, because a scan over a batch stacks its outputs along a new leading axis."
def rollout(starts, forces):
    def push(states, forces):
        moves = ~jax.vmap(over)(states)
        states = jnp.where(moves[:, None], jax.vmap(cartpole)(states, forces), states)
        return states, (states, moves)

    _, (states, moved) = jax.lax.scan(push, starts, forces.T)
    return states, jnp.sum(moved, axis=0)


# %% wrong="control-rollout" because="Adds the last push to the count, also where the environment is over at the start."
def rollout(starts, forces):

    def one(start, pushes):
        def turn(state, force):
            state = jnp.where(over(state), state, cartpole(state, force))
            return state, state

        _, states = jax.lax.scan(turn, start, pushes)
        standing = jnp.sum(~jax.vmap(over)(states), dtype=jnp.int32)
        return states, jnp.minimum(standing + 1, pushes.shape[0])

    return jax.vmap(one)(starts, forces)


# %% wrong="control-rollout" because="Loops over time in Python, so the program contains the code of every step."
def rollout(starts, forces):
    states, taken, state = [], jnp.zeros(starts.shape[0], jnp.int32), starts
    for i in range(forces.shape[1]):
        moves = ~jax.vmap(over)(state)
        state = jnp.where(moves[:, None], jax.vmap(cartpole)(state, forces[:, i]), state)
        taken = taken + moves
        states.append(state)
    return jnp.stack(states, axis=1), taken


# %% right="control-rollout"
def rollout(starts, forces):
    def push(carry, forces):
        states, taken = carry
        moves = ~jax.vmap(over)(states)
        states = jnp.where(moves[:, None], jax.vmap(cartpole)(states, forces), states)
        return (states, taken + moves), states

    (_, taken), states = jax.lax.scan(push, (starts, jnp.zeros(len(starts), jnp.int32)), forces.T)
    return states.transpose(1, 0, 2), taken


# %% right="control-rollout"
def rollout(starts, forces):
    def one(start, plan):
        def push(i, carry):
            state, states, taken = carry
            done = over(state)
            state = jax.lax.cond(done, lambda: state, lambda: cartpole(state, plan[i]))
            return state, states.at[i].set(state), taken + jnp.where(done, 0, 1)

        return jax.lax.fori_loop(0, len(plan), push, (start, jnp.zeros((len(plan), 4)), 0))[1:]

    return jax.vmap(one)(starts, forces)
