# %% [markdown]
# # 09 · Exercises: training
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# In the tasks, a **tree** is a pytree (06) of nested dicts, lists or tuples that contain arrays. Parameters and optimizer states are trees.

# %% setup
import warnings

from grader.checks import ask, compare, counted, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np
import optax

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def line(params, xs):
    """A straight line: {"w": (d, 1), "b": (1,)}, xs (n, d) -> (n, 1)"""
    return xs @ params["w"] + params["b"]


def line_loss(params, xs, ys):
    """Mean squared error of the line: {"w": (d, 1), "b": (1,)}, xs (n, d), ys (n,) -> ()"""
    return jnp.mean((line(params, xs)[:, 0] - ys) ** 2)


def network_loss(params, xs, ys):
    """Mean squared error of a small network: {"a": (d, h), "b": (h,)}, xs (n, d), ys (n,) -> ()"""
    return jnp.mean((jnp.tanh(xs @ params["a"]) @ params["b"] - ys) ** 2)


def network_by_hand(params, xs, ys):
    """network_loss and its gradient in plain NumPy: the reference of the checks."""
    hidden = np.tanh(xs.astype(np.float64) @ params["a"])
    error = hidden @ params["b"] - ys
    back = 2 * error[:, None] / len(ys) * params["b"] * (1 - hidden**2)
    gradient = {"a": (xs.T @ back).astype(np.float32), "b": (2 * hidden.T @ error / len(ys)).astype(np.float32)}
    return np.float32(np.mean(error**2)), gradient


def follow(state, sample):
    """One step of a tracker, a tenth of the way to the sample: (d,), (d,) -> the new state (d,), the squared distance ()"""
    miss = sample - state
    return state + 0.1 * miss, jnp.sum(miss**2)


def misfit(source, stations, arrivals):
    """Mean squared error of the arrival times (k,) for waves from source (2,) to stations (k, 2) at 5 km/s -> ()"""
    distances = jnp.sqrt(jnp.sum((stations - source) ** 2, axis=1))
    return jnp.mean((distances / 5 - arrivals) ** 2)


def descents_by_hand(starts, stations, arrivals, limit, momentum, steps, together=False):
    """The final places of descents of misfit and their misfits, clipped one by one or together. NumPy, for the checks."""
    places, velocity = starts.astype(np.float64), 0.0
    for _ in range(steps):
        away = places[:, None, :] - stations
        distances = np.sqrt((away**2).sum(-1))
        gradients = (2 * (distances / 5 - arrivals) / 5 / distances)[:, :, None] * away
        gradients = gradients.mean(1)
        gradients *= np.minimum(1, limit / np.linalg.norm(gradients, axis=None if together else 1, keepdims=True))
        velocity = momentum * velocity + gradients
        places = places - 2.0 * velocity
    values = ((np.sqrt(((places[:, None, :] - stations) ** 2).sum(-1)) / 5 - arrivals) ** 2).mean(1)
    return places, values


def clear(starts, *more):
    """Whether the best final misfit is clear: it is not tied, not sensitive to rounding, and no path is lower before."""
    (places, values), (nudged, _) = descents_by_hand(starts, *more), descents_by_hand(starts * (1 + 1e-5), *more)
    before = min(descents_by_hand(starts, *more[:-1], steps)[1].min() for steps in range(more[-1]))
    level = np.sort(values)[1] <= 1.05 * values.min() or before <= 1.0001 * values.min()
    return not level and values.min() > 1e-3 and np.allclose(places, nudged, atol=2e-3, rtol=0)


# %% [markdown] task="training-weighted-loss" stars=1 minutes=8 skills="01_arrays,04_grad"
# ## A weighted loss
# **Goal.** Some measurements have more weight than others, and some are only padding. Compute the weighted mean of the squared errors of a model with one output. Only the lines after the call of the model are missing.
#
# **Signature.** `weighted_loss(model, params, xs, ys, weights)`: `model` is a function such as `line` from the setup, and `model(params, xs)` returns `(n, 1)`. `xs` is `(n, d)`, `ys` and `weights` are `(n,)`, all float32. No weight is negative, and at least one is positive. Returns `()`: the sum of the squared errors times their weights, divided by the sum of all weights.
#
# **Example.** The line `w = [[2]]`, `b = [0]` at `xs = [[1], [2], [3]]` gives 2, 4, 6. With `ys = [0, 4, 5]` the squared errors are 4, 0, 1, and with the weights 1, 1, 2 the loss is (4 + 0 + 2) / 4 = 1.5.
#
# **Judged.** Values for any n and any weights, even if their sum is small. The gradient with respect to `params`, even if all errors are 0. Your function is traced. **Not judged.** How the model is written.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is the shape of `predicted - ys` if one is `(n, 1)` and the other `(n,)`? Print it.
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# It is `(n, n)`. Every prediction is compared with every target, and no error is raised. Reshape both to `(n,)` first.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Take column 0 of the predictions. Doubling all weights must not change the loss. What do you have to divide by?
#
# </details>


# %% answer="training-weighted-loss"
def weighted_loss(model, params, xs, ys, weights):
    """The weighted mean () of the squared errors of model(params, xs) -> (n, 1) against ys (n,), weights (n,)."""
    predicted = model(params, xs)
    ### BEGIN SOLUTION
    squares = (jnp.squeeze(predicted, axis=1) - ys) ** 2
    return jnp.sum(weights * squares) / jnp.sum(weights)
    ### END SOLUTION


# %% check="training-weighted-loss" name="example" points=1
"""The example: three points, the last of them with twice the weight."""
params = {"w": np.array([[2]], np.float32), "b": np.zeros(1, np.float32)}
xs, ys, weights = np.array([[[1], [2], [3]]], np.float32)[0], np.array([0, 4, 5], np.float32), np.float32([1, 1, 2])
made = program(lambda params, *data: weighted_loss(line, params, *data), params, xs, ys, weights)
compare(made.run(params, xs, ys, weights), np.float32(1.5), label="the loss")

# %% hidden="training-weighted-loss" name="values" points=2
"""The weighted mean, for weights that add up to anything, some of them 0."""


def draw(n, scale=1):
    rng = inputs.rng()
    params = {"w": rng.normal(size=(3, 1)).astype(np.float32), "b": rng.normal(size=1).astype(np.float32)}
    xs, ys = rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    return params, xs, ys, (scale * rng.uniform(1, 9, size=n) * (np.arange(n) % 4 > 0)).astype(np.float32)


made = program(lambda params, *data: weighted_loss(line, params, *data), *draw(9))
for scale, case in (
    (1, "the loss"),
    (0.01, "the loss for weights whose sum is below 1"),
    (1e-10, "the loss for tiny weights"),
):
    params, xs, ys, weights = draw(9, scale)
    predicted = xs.astype(np.float64) @ params["w"] + params["b"]
    squares, every = (predicted[:, 0] - ys) ** 2, (predicted - ys) ** 2
    got = made.run(params, xs, ys, weights)
    mistakes = {
        "The loss compares every prediction with every target. What is the shape of `predicted - ys`?": every.mean(),
        "The loss compares all `(n, n)` pairs of a prediction and a target. Look at the shape of `predicted - ys`.": (
            every * weights
        ).sum()
        / weights.sum(),
        "The loss compares every prediction with every target, and takes the mean over the predictions.": (
            every @ weights
        ).mean()
        / weights.sum(),
        "The weights have no effect. This is the plain mean.": squares.mean(),
        "Doubling all weights doubles the loss. What should the sum be divided by?": (weights * squares).mean(),
        "The sum of the weighted squares is not divided, so doubling all weights doubles the loss.": (
            weights * squares
        ).sum(),
        "The sum is divided by the number of examples that count, not by their weights.": (weights * squares).sum()
        / (weights > 0).sum(),
        "The weights are squared together with the errors.": (weights**2 * squares).sum() / weights.sum(),
    }
    wanted = np.float32((weights * squares).sum() / weights.sum())
    if scale == 1 and getattr(got, "shape", None) == () and not np.isclose(got, wanted, rtol=1e-4):
        for said, value in mistakes.items():
            require(not np.isclose(got, value, rtol=1e-4), said)
    compare(got, wanted, label=case)

# %% hidden="training-weighted-loss" name="gradient" points=1
"""The gradient with respect to the parameters is right too."""
rng = inputs.rng()
params = {"w": rng.normal(size=(2, 1)).astype(np.float32), "b": rng.normal(size=1).astype(np.float32)}
xs, ys, weights = (rng.uniform(1, 3, size=size).astype(np.float32) for size in ((6, 2), 6, 6))


def probe_gradient(params, xs, ys, weights):
    return jax.grad(lambda params: weighted_loss(line, params, xs, ys, weights))(params)


share = (weights / weights.sum()).astype(np.float64)
off = (xs @ params["w"] + params["b"])[:, 0] - ys
wanted = {"w": (2 * share * off @ xs).astype(np.float32)[:, None], "b": np.float32([2 * share @ off])}
made = program(probe_gradient, params, xs, ys, weights)
compare(made.run(params, xs, ys, weights), wanted, label="the gradient")
whole = {"w": np.array([[2], [-1]], np.float32), "b": np.ones(1, np.float32)}
corners = rng.integers(-4, 5, size=(6, 2)).astype(np.float32)
fitted = (corners @ whole["w"] + whole["b"])[:, 0]
nothing = {"w": np.zeros((2, 1), np.float32), "b": np.zeros(1, np.float32)}
compare(made.run(whole, corners, fitted, weights), nothing, label="the gradient where all errors are 0")

# %% [markdown] why="training-weighted-loss"
# Division by the sum of the weights makes only their proportions matter. Padding with the weight 0 contributes to neither sum. Without the selection of column 0, the predictions `(n, 1)` and the targets `(n,)` would broadcast to `(n, n)`, and no error would report it. **Next:** What happens if an example of weight 0 has a NaN target? Try it, and fix it with `jnp.where` (04).


# %% wrong="training-weighted-loss" because="Subtracts (n,) from (n, 1). Broadcasting then compares every prediction with every target, and no error reports it."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.sum(weights * (predicted - ys) ** 2) / jnp.sum(weights)


# %% wrong="training-weighted-loss" because="Subtracts (n,) from (n, 1) and applies the weights along the targets. Every prediction is still compared with every target."
def weighted_loss(model, params, xs, ys, weights):
    squares = (model(params, xs) - ys) ** 2
    return jnp.mean(jnp.sum(squares * weights, axis=-1) / jnp.sum(weights))


# %% wrong="training-weighted-loss" because="Divides by at least 1 as a precaution. If the weights have a smaller sum, the loss is too small."
def weighted_loss(model, params, xs, ys, weights):
    squares = (model(params, xs)[:, 0] - ys) ** 2
    return jnp.sum(weights * squares) / jnp.maximum(jnp.sum(weights), 1.0)


# %% wrong="training-weighted-loss" because="Adds a small number to the divisor as a precaution, but weights can be smaller than this number."
def weighted_loss(model, params, xs, ys, weights):
    squares = (model(params, xs)[:, 0] - ys) ** 2
    return jnp.sum(weights * squares) / (jnp.sum(weights) + 1e-8)


# %% wrong="training-weighted-loss" because="Squares a norm. The value is right, but the gradient of a norm is NaN where all errors are 0."
def weighted_loss(model, params, xs, ys, weights):
    residual = jnp.sqrt(weights) * (model(params, xs)[:, 0] - ys)
    return jnp.linalg.norm(residual) ** 2 / jnp.sum(weights)


# %% wrong="training-weighted-loss" because="Takes the mean of the weighted squares, which is right only if the weights are 1 on average."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.mean(weights * (predicted[:, 0] - ys) ** 2)


# %% wrong="training-weighted-loss" because="Squares the weights together with the errors."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.sum((weights * (predicted[:, 0] - ys)) ** 2) / jnp.sum(weights)


# %% wrong="training-weighted-loss" because="Divides by the number of examples with a positive weight, as if every weight were 0 or 1."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.sum(weights * (predicted[:, 0] - ys) ** 2) / jnp.sum(weights > 0)


# %% wrong="training-weighted-loss" because="Ignores the weights."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.mean((predicted[:, 0] - ys) ** 2)


# %% wrong="training-weighted-loss" because="Does not divide the sum by the weights, so the loss and its gradient grow with the size of the batch."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.sum(weights * (predicted[:, 0] - ys) ** 2)


# %% wrong="training-weighted-loss" because="Treats weights that add up to almost nothing as zero."
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    squared = jnp.square(predicted.squeeze(axis=1) - ys)
    total = weights.sum()
    empty = total < 1e-3
    return jnp.where(empty, 0.0, jnp.sum(squared * weights) / jnp.where(empty, 1.0, total))


# %% right="training-weighted-loss"
def weighted_loss(model, params, xs, ys, weights):
    predicted = model(params, xs)
    return jnp.average((predicted.ravel() - ys) ** 2, weights=weights)


# %% right="training-weighted-loss"
def weighted_loss(model, params, xs, ys, weights):
    proportions = weights / weights.sum()
    share = lambda output, target, proportion: proportion * jnp.square(target - output[0])
    return jax.vmap(share)(model(params, xs), ys, proportions).sum()


# %% right="training-weighted-loss"
def weighted_loss(model, params, xs, ys, weights):
    errors = model(params, xs)[:, 0] - ys
    return jnp.vdot(weights / weights.sum(), errors**2)


# %% [markdown] task="training-schedule" stars=1 minutes=10 skills="03_jit,08_control_flow"
# ## Warm-up and cool-down
# **Goal.** Write a learning rate that rises at first, stays constant, and falls to 0 at the end. The training step is compiled, so the number of the step is traced.
#
# **Signature.** `schedule(peak, warmup, cooldown, total)`: a float and three ints, each at least 1, with `warmup + cooldown <= total`. Returns a function `rate(step)` from an int `()`, traced or not, to float32 `()`. The rate is 0 at step 0, rises linearly to `peak` at step `warmup`, is `peak` until step `total - cooldown`, falls linearly to 0 at step `total`, and is 0 after that.
#
# **Example.** `schedule(0.4, 2, 4, 10)` gives, for the steps 0 to 11: 0, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4, 0.3, 0.2, 0.1, 0, 0.
#
# **Judged.** The rate at every step, from *one* compiled program in which the step is traced, and that Optax can use it as its learning rate. **Not judged.** Whether you build it from schedules of Optax.
#
# <details><summary>Hint 1 · a question</summary>
#
# The rate is one of three straight lines, or 0. How does a compiled program select one of them by a traced value?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Extend the rising and the falling line without end. Is the rate the higher or the lower of the two? What happens above `peak`, and below 0?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Take the minimum of `step / warmup` and `(total - step) / cooldown` with `jnp.minimum`, keep it between 0 and 1 with `jnp.clip`, and multiply by the peak.
#
# </details>


# %% answer="training-schedule"
def schedule(peak, warmup, cooldown, total):
    """A function from the step () to the rate (): rises in warmup steps, is constant, falls in the last cooldown steps."""

    ### BEGIN SOLUTION
    def rate(step):
        lower = jnp.minimum(step / warmup, (total - step) / cooldown)
        return peak * jnp.clip(lower, 0.0, 1.0)

    return rate
    ### END SOLUTION


# %% check="training-schedule" name="example" points=1
"""The example: the rates of twelve steps, from one program."""
made = program(lambda step: schedule(0.4, 2, 4, 10)(step), np.int32(0))
for step, wanted in enumerate([0, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4, 0.3, 0.2, 0.1, 0, 0]):
    compare(made.run(np.int32(step)), np.float32(wanted), label=f"the rate at step {step}")

# %% hidden="training-schedule" name="every-step" points=2
"""The rate is right at every step, before, between and after the corners."""
rng = inputs.rng()
short, long = (int(n) for n in rng.integers((3, 8), (6, 13)))
for what, warmup, cooldown, level in (
    ("when the warm-up is shorter than the cool-down", short, long, long + int(rng.integers(1, 6))),
    ("when no step lies between warm-up and cool-down", long, short, 0),
    ("when warm-up and cool-down last one step", 1, 1, 3),
):
    peak, total = float(rng.uniform(0.1, 2)), warmup + level + cooldown
    shape = peak, warmup, cooldown, total
    made = program(lambda shape, step: schedule(*shape)(step), shape, np.int32(0))
    parts = {
        "at step 0": (0,),
        "while it rises": range(1, warmup),
        "at step `warmup`": (warmup,),
        "on the constant part": range(warmup + 1, total - cooldown),
        "while it falls": range(max(warmup + 1, total - cooldown), total),
        "at step `total`": (total,),
        "after step `total`": (total + 1, total + 2, total + 7, 3 * total),
    }
    for where, steps in parts.items():
        for step in steps:
            got = made.run(shape, np.int32(step))
            wanted = peak * min(max(min(step / warmup, (total - step) / cooldown), 0), 1)
            if getattr(got, "shape", None) == ():
                near = np.isclose(got, wanted, rtol=1e-4, atol=1e-6)
                require(not np.isnan(got), f"The rate is NaN {where}. Does it come from a table that ends there?")
                require(not got < -1e-6, f"The rate is negative {where}, so the loss would increase.")
                require(near or not np.isclose(got, peak), f"The rate is still `peak` {where}, {what}.")
                require(near, f"The rate is wrong {where}, {what}.")
            compare(got, np.float32(wanted), label=f"the rate {where}")
shape = float(rng.uniform(0.1, 2)), 2**14, 2**15, 2**16
made = program(lambda shape, step: schedule(*shape)(step), shape, np.int32(0))
for step, share in ((500, 500 / 2**14), (2**13, 0.5), (30_000, 1), (2**15 + 2**14, 0.5), (70_000, 0)):
    got = made.run(shape, np.int32(step))
    require(
        getattr(got, "shape", None) != () or np.isclose(got, shape[0] * share, rtol=1e-3),
        "The rate is wrong in a long training of 65,536 steps. Does it come from a table with a limited number of steps?",
    )
    compare(got, np.float32(shape[0] * share), label="a rate in a long training")
for step, wanted in ((0, 0), (1, 0.25), (3, 0.5), (9, 0.125)):
    got = ask(lambda step: schedule(0.5, 2, 4, 10)(step) * jnp.float32(1), step)
    compare(got, np.float32(wanted), label=f"the rate at step {step}, which is a Python int,")

# %% hidden="training-schedule" name="in-optax" points=1
"""Optax can use the schedule as the learning rate of plain gradient descent."""


def probe_training(gradients):
    tx = optax.sgd(schedule(0.5, 2, 2, 6))

    def step(carry, gradient):
        place, state = carry
        updates, state = tx.update(gradient, state)
        return (optax.apply_updates(place, updates), state), updates

    return jax.lax.scan(step, (jnp.zeros(2), tx.init(jnp.zeros(2))), gradients)[1]


gradients = inputs.rng().uniform(1, 2, size=(8, 2)).astype(np.float32)
rates = np.array([0, 0.25, 0.5, 0.5, 0.5, 0.25, 0, 0], np.float32)
compare(
    program(probe_training, gradients).run(gradients), -rates[:, None] * gradients, label="the updates of eight steps"
)

# %% [markdown] why="training-schedule"
# The program has no branches. It computes both lines at every step and takes the lower one, so one program is correct for all steps. Optax passes its own counter as `step`, an int32 in the optimizer state. **Next:** Training resumes from a checkpoint at step 7,000. What must the checkpoint contain so that the rate continues from there?


# %% wrong="training-schedule" because="Uses a Python `if`, but the step is traced and has no value that could decide it."
def schedule(peak, warmup, cooldown, total):
    def rate(step):
        if step < warmup:
            return peak * step / warmup
        if step < total - cooldown:
            return peak
        return peak * max(total - step, 0) / cooldown

    return rate


# %% wrong="training-schedule" because="Does not stop at 0. After the last step the rate is negative, and every step moves in the direction of the gradient."
def schedule(peak, warmup, cooldown, total):
    return lambda step: peak * jnp.minimum(jnp.minimum(step / warmup, (total - step) / cooldown), 1.0)


# %% wrong="training-schedule" because="Divides integers with `//`, so the rate jumps instead of rising linearly."
def schedule(peak, warmup, cooldown, total):
    return lambda step: peak * jnp.clip(jnp.minimum(step // warmup, (total - step) // cooldown), 0.0, 1.0)


# %% wrong="training-schedule" because="Starts to fall only at `total`, so the rate reaches 0 `cooldown` steps too late."
def schedule(peak, warmup, cooldown, total):
    def rate(step):
        return peak * jnp.clip(jnp.minimum(step / warmup, 1 - (step - total) / cooldown), 0.0, 1.0)

    return rate


# %% wrong="training-schedule" because="Counts the first step as 1. The rate does not start at 0, and reaches the peak one step early."
def schedule(peak, warmup, cooldown, total):
    def rate(step):
        return peak * jnp.clip(jnp.minimum((step + 1) / warmup, (total - step) / cooldown), 0.0, 1.0)

    return rate


# %% wrong="training-schedule" because="Converts the step to a Python number, which does not exist during tracing."
def schedule(peak, warmup, cooldown, total):
    rates = [peak * min(s / warmup, (total - s) / cooldown, 1) for s in range(total + 1)]
    return lambda step: jnp.float32(rates[min(int(step), total)])


# %% wrong="training-schedule" because="Falls along a cosine, as many library schedules do. The task requires a straight line."
def schedule(peak, warmup, cooldown, total):
    def rate(step):
        down = (1 + jnp.cos(jnp.pi * jnp.clip((step - total + cooldown) / cooldown, 0, 1))) / 2
        return peak * jnp.minimum(jnp.clip(step / warmup, 0, 1), down)

    return rate


# %% wrong="training-schedule" because="Takes `cooldown` for the length of the constant part, and falls from the end of this part to `total`."
def schedule(peak, warmup, cooldown, total):
    fall = max(total - warmup - cooldown, 1)
    return lambda step: jnp.float32(peak * jnp.clip(jnp.minimum(step / warmup, (total - step) / fall), 0, 1))


# %% wrong="training-schedule" because="Looks the rate up in a table. Beyond its end, `jnp.take` returns NaN."
def schedule(peak, warmup, cooldown, total):
    table = [peak * max(0.0, min(n / warmup, 1.0, (total - n) / cooldown)) for n in range(total + 2)]
    return lambda step: jnp.take(jnp.array(table, jnp.float32), step)


# %% wrong="training-schedule" because="Switches from the rising line to the falling line in the middle of the training. The warm-up or the cool-down may be longer than half of it."
def schedule(peak, warmup, cooldown, total):
    def rate(step):
        up, down = jnp.minimum(step / warmup, 1), jnp.clip((total - step) / cooldown, 0, 1)
        return peak * jnp.where(step < total / 2, up, down)

    return rate


# %% wrong="training-schedule" because="Builds a table that contains the corner twice where warm-up and cool-down meet, because the constant part would need the length -1."
def schedule(peak, warmup, cooldown, total):
    up = [peak * i / warmup for i in range(warmup + 1)]
    level = [peak] * (total - warmup - cooldown - 1)
    down = [peak * (cooldown - i) / cooldown for i in range(cooldown + 1)]
    rates = jnp.array(up + level + down, jnp.float32)

    def rate(step):
        return rates[jnp.minimum(step, total)]

    return rate


# %% wrong="training-schedule" because="Calls astype on the step, which a Python int does not have."
def schedule(peak, warmup, cooldown, total):

    def rate(step):
        at = step.astype(jnp.float32)
        share = jnp.minimum(at / warmup, (total - at) / cooldown)
        return peak * jnp.clip(share, 0.0, 1.0)

    return rate


# %% wrong="training-schedule" because="Looks the rate up in a table of fixed length, so all later steps get its last rate."
def schedule(peak, warmup, cooldown, total):
    steps = jnp.arange(1000)
    table = peak * jnp.clip(jnp.minimum(steps / warmup, (total - steps) / cooldown), 0, 1)
    return lambda step: table[step]


# %% right="training-schedule"
def schedule(peak, warmup, cooldown, total):
    ramp = lambda steps, length: jnp.clip(jnp.asarray(steps, jnp.float32) / length, 0.0, 1.0)
    return lambda step: jnp.float32(peak) * ramp(step, warmup) * ramp(total - step, cooldown)


# %% right="training-schedule"
def schedule(peak, warmup, cooldown, total):
    corners = jnp.array([0, warmup, total - cooldown, total], jnp.float32)
    return lambda step: jnp.interp(step, corners, jnp.array([0, peak, peak, 0], jnp.float32))


# %% right="training-schedule"
def schedule(peak, warmup, cooldown, total):
    up, down = optax.linear_schedule(0.0, peak, warmup), optax.linear_schedule(peak, 0.0, cooldown)
    return optax.join_schedules([up, down], [total - cooldown])


# %% right="training-schedule"
def schedule(peak, warmup, cooldown, total):
    table = np.minimum(np.arange(total + 1) / warmup, (total - np.arange(total + 1)) / cooldown)
    rates = jnp.asarray(peak * np.minimum(table, 1), jnp.float32)
    return lambda step: rates[jnp.minimum(step, total)]


# %% [markdown] task="training-adam" stars=2 minutes=20 skills="04_grad,06_pytrees,training-schedule"
# ## Adam as a pure function
# **Goal.** Write one step of Adam, one of the most widely used optimizers. Its state is an argument and a result.
#
# **Signature.** `adam_update(params, state, gradient, rate)`: `params` and `gradient` are trees of float32 arrays with the same structure, and `rate` is a float. `state` is a dict. Its `"count"` is the number of steps so far, int32 `()`. Its `"mean"` and `"square"` are trees like `params`, all zeros at first. Returns new `(params, state)` of the same structure. For every entry g of the gradient,
#
# - mean ← 0.9 mean + 0.1 g, and square ← 0.999 square + 0.001 g².
# - Both start from 0 and are too small at first. Therefore the update uses the corrected values mean / (1 - 0.9ᵗ) and square / (1 - 0.999ᵗ), where t is 1 in the first step. The state keeps the uncorrected ones.
# - The parameter changes by -rate · (corrected mean) / (√(corrected square) + 1e-8).
#
# **Example.** One parameter, `{"p": [1]}`. In the first step, for g = 2, mean is 0.2 and square 0.004, and corrected they are 2 and 4. With rate 0.1 the parameter changes by -0.1. For any g except 0, the first step has the length `rate`.
#
# **Judged.** New parameters and state after one and several steps, equal to those of `optax.adam`, also for entries that are tiny or 0. One traced program serves every step, and the given `state` is not changed. **Not judged.** How you map over the trees. (Do not call Optax here.)
#
# <details><summary>Hint 1 · a question</summary>
#
# Which part of the state do all parameters share?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.tree.map` takes several trees of one structure: `jax.tree.map(lambda m, g: ..., state["mean"], gradient)`. Three such lines suffice. Is the step counted before or after t is used?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Count first. Then update the two averages, which go into the new state without correction. Finally map over parameters, means and squares, and correct both there. The 1e-8 is added to the root, not under it.
#
# </details>


# %% answer="training-adam"
def adam_update(params, state, gradient, rate):
    """One step of Adam: new params and the new state {"count", "mean", "square"}."""
    ### BEGIN SOLUTION
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)

    def moved(p, m, s):
        m, s = m / (1 - 0.9**count), s / (1 - 0.999**count)
        return p - rate * m / (jnp.sqrt(s) + 1e-8)

    return jax.tree.map(moved, params, mean, square), {"count": count, "mean": mean, "square": square}
    ### END SOLUTION


# %% check="training-adam" name="example" points=1
"""The example: the first step of one parameter."""
params, gradient = {"p": [np.float32(1)]}, {"p": [np.float32(2)]}
state = {"count": np.int32(0), "mean": {"p": [np.float32(0)]}, "square": {"p": [np.float32(0)]}}
made = program(lambda params, state, gradient: adam_update(params, state, gradient, 0.1), params, state, gradient)
wanted = {"count": np.int32(1), "mean": {"p": [np.float32(0.2)]}, "square": {"p": [np.float32(0.004)]}}
compare(made.run(params, state, gradient), ({"p": [np.float32(0.9)]}, wanted), label="(params, state)")

# %% hidden="training-adam" name="one-step" points=1
"""The first step and a later one are right, for large, tiny and zero entries."""


def draw(count):
    """Entries of many sizes; in a later step one gradient is 0 where the mean is not, and two have changed their sign."""
    rng = inputs.rng()
    scale = np.array([1, 1e-4, 1e-6, 0, 30, 0]) * rng.choice([-1, 1], size=6)
    gradient = {"w": [scale.astype(np.float32), rng.normal(size=(2, 3)).astype(np.float32)]}
    params = jax.tree.map(lambda g: np.ones_like(g), gradient)
    past = {"w": [scale * [0.3, 0.2, 0.4, 0, -0.1, 0], rng.normal(size=(2, 3))]}
    past["w"][0][5] = rng.choice([-0.3, 0.3])
    mean = jax.tree.map(lambda m: (m * (count > 0)).astype(np.float32), past)
    square = jax.tree.map(lambda m: (m**2 * (count > 0)).astype(np.float32), past)
    return params, {"count": np.int32(count), "mean": mean, "square": square}, gradient


def probe_step(params, state, gradient):
    given = {name: state[name] for name in ("count", "mean", "square")}
    return adam_update(params, given, gradient, 0.5), given


made = program(probe_step, *draw(0))
for count in (0, 0, 41):
    params, state, gradient = draw(count)
    whose = "the first step's" if count == 0 else "a later step's"
    got, given = made.run(params, state, gradient)
    t = count + 1
    mean = jax.tree.map(lambda m, g: np.float32(0.9 * m + 0.1 * g), state["mean"], gradient)
    square = jax.tree.map(lambda s, g: np.float32(0.999 * s + 0.001 * g**2), state["square"], gradient)
    new = jax.tree.map(
        lambda p, m, s: np.float32(
            p - 0.5 * (m / (1 - 0.9**t)) / (np.sqrt(s.astype(np.float64) / (1 - 0.999**t)) + 1e-8)
        ),
        params,
        mean,
        square,
    )
    require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (params, state).")
    finite = all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(got[0]))
    require(
        finite,
        f"Not all of {whose} parameters are finite. Is something divided by 0, by t or by the root of a square of 0?",
    )
    wanted = {"count": np.int32(t), "mean": mean, "square": square}
    compare(got[1], wanted, label=f"{whose} state")
    rows = jax.tree.leaves(got[0])[:1], jax.tree.leaves(new)[:1]
    if len(rows[0]) == 1 and getattr(rows[0][0], "shape", None) == (6,):
        near, length = np.isclose(rows[0][0], rows[1][0], rtol=1e-4), (rows[0][0] - 1)[0] / (rows[1][0] - 1)[0]
        require(
            bool(near.all() or near[5]) or not near[:5].all(),
            "A parameter whose gradient is 0 has the wrong value. Its mean need not be 0.",
        )
        require(
            bool(near.all()) or not near[0] or not 1e-4 < abs(rows[0][0][1] / rows[1][0][1] - 1) < 0.01,
            "Parameters with large gradients are right, those with tiny gradients are slightly wrong. Is the 1e-8 added to "
            "the root of the corrected square?",
        )
        require(
            bool(near.all()) or not near[0],
            "Parameters with large gradients are right, those with tiny gradients are wrong. Where is the 1e-8 added?",
        )
        require(
            not np.isclose(length, -1, rtol=1e-3),
            "The parameters move along the gradient, not against it. Which sign does the step have?",
        )
        require(
            not (count == 0 and np.isclose(length, 10**0.5, rtol=1e-3)),
            "The first step is three times too long, because the uncorrected mean and square are used.",
        )
    compare(got[0], new, label=f"{whose} parameters")
    compare(given, state, label="the state that was passed in, after the call,")

# %% hidden="training-adam" name="as-optax" points=2
"""Six steps in a row give the same values as `optax.adam`."""
rng = inputs.rng()
params = {"a": rng.normal(size=(3, 2)).astype(np.float32), "b": (rng.normal(size=4).astype(np.float32),)}
zeros = jax.tree.map(np.zeros_like, params)
state, theirs = {"count": np.int32(0), "mean": zeros, "square": zeros}, params
tx = optax.adam(0.25)
their_state = tx.init(params)


def drawn_gradient(p):
    """No entry is near 0, so that only the check above is about the place of the 1e-8."""
    return (rng.uniform(0.5, 2, size=p.shape) * rng.choice([-1, 1], size=p.shape)).astype(np.float32)


made = program(lambda params, state, gradient: adam_update(params, state, gradient, 0.25), params, state, params)
for step in range(1, 7):
    gradient = jax.tree.map(drawn_gradient, params)
    got = made.run(params, state, gradient)
    updates, their_state = tx.update(gradient, their_state, theirs)
    theirs = jax.tree.map(np.asarray, optax.apply_updates(theirs, updates))
    compare(
        got, (theirs, got[1] if isinstance(got, tuple) and len(got) == 2 else {}), label="(params, state)", atol=1e-4
    )
    params, state = got
    compare(state["count"], np.int32(step), label="the count")

# %% [markdown] why="training-adam"
# The mean is divided by the root of the mean square, so each parameter changes by about `rate`, whatever the scale of its gradient. Thanks to the corrections, this holds from the first step. All that Adam remembers is in the state, so the same function computes step 1 and step 1,000,000. **Next:** Multiply all gradients by 1,000. How do the parameters change under Adam, and how under plain gradient descent?


# %% wrong="training-adam" because="Leaves out the corrections. The first steps are about three times too long, because the square starts even lower than the mean."
def adam_update(params, state, gradient, rate):
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    new = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return new, {"count": state["count"] + 1, "mean": mean, "square": square}


# %% wrong="training-adam" because="Increases the count after its use. In the first step t is 0, and the correction divides by 0."
def adam_update(params, state, gradient, rate):
    t = state["count"]
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    moved = lambda p, m, s: p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return jax.tree.map(moved, params, mean, square), {"count": t + 1, "mean": mean, "square": square}


# %% wrong="training-adam" because="Stores the corrected averages in the state, so every later step corrects them again."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g) / (1 - 0.9**t), state["mean"], gradient)
    square = jax.tree.map(lambda s, g: (0.999 * s + 0.001 * g**2) / (1 - 0.999**t), state["square"], gradient)
    new = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return new, {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Adds the 1e-8 under the root, where it acts like 1e-4. Tiny gradients then hardly change the parameters."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    moved = lambda p, m, s: p - rate * (m / (1 - 0.9**t)) / jnp.sqrt(s / (1 - 0.999**t) + 1e-8)
    return jax.tree.map(moved, params, mean, square), {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Moves both corrections into the rate without adapting the 1e-8, which is then added to the uncorrected root."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    size = rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    new = jax.tree.map(lambda p, m, s: p - size * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return new, {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Does not change a parameter whose gradient is 0, although its mean is not 0."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    step = lambda m, s: rate * (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)
    moved = lambda p, g, m, s: jnp.where(g == 0, p, p - step(m, s))
    return jax.tree.map(moved, params, gradient, mean, square), {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Treats every tuple as one of its own triples, but the parameters may also be in tuples."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1

    def one(p, m, s, g):
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
        return p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8), m, s

    triples = jax.tree.map(one, params, state["mean"], state["square"], gradient)
    part = lambda i: jax.tree.map(lambda triple: triple[i], triples, is_leaf=lambda node: isinstance(node, tuple))
    return part(0), {"count": t, "mean": part(1), "square": part(2)}


# %% wrong="training-adam" because="Changes the given `state` dict, so its old values are lost to the caller."
def adam_update(params, state, gradient, rate):
    state["count"] += 1
    state["mean"] = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    state["square"] = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    t = state["count"]
    moved = lambda p, m, s: p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return jax.tree.map(moved, params, state["mean"], state["square"]), state


# %% wrong="training-adam" because="Leaves out the 1e-8, so a parameter whose gradient is 0 becomes 0/0, which is NaN."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    moved = lambda p, m, s: p - rate * (m / (1 - 0.9**t)) / jnp.sqrt(s / (1 - 0.999**t))
    return jax.tree.map(moved, params, mean, square), {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Averages the square of the mean instead of the square of the gradient."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, m: 0.999 * s + 0.001 * m**2, state["square"], mean)
    moved = lambda p, m, s: p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return jax.tree.map(moved, params, mean, square), {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Changes the parameters in the direction of the gradient, which increases the loss."
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)
    moved = lambda p, m, s: p + rate * (m / (1 - 0.9**t)) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return jax.tree.map(moved, params, mean, square), {"count": t, "mean": mean, "square": square}


# %% wrong="training-adam" because="Loops over the keys of one dict, but a tree may contain lists, tuples and further dicts."
def adam_update(params, state, gradient, rate):
    count, new, mean, square = state["count"] + 1, {}, {}, {}
    for name, g in gradient.items():
        mean[name] = 0.9 * state["mean"][name] + 0.1 * g
        square[name] = 0.999 * state["square"][name] + 0.001 * g**2
        m, s = mean[name] / (1 - 0.9**count), square[name] / (1 - 0.999**count)
        new[name] = params[name] - rate * m / (jnp.sqrt(s) + 1e-8)
    return new, {"count": count, "mean": mean, "square": square}


# %% wrong="training-adam" because="Divides by the correction of the first step in every step, although it depends on the number of steps."
def adam_update(params, state, gradient, rate):
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, state["square"], gradient)

    def move(p, m, s):
        return p - rate * (m / (1 - 0.9)) / (jnp.sqrt(s / (1 - 0.999)) + 1e-8)

    new = jax.tree.map(move, params, mean, square)
    return new, {"count": state["count"] + 1, "mean": mean, "square": square}


# %% right="training-adam"
def adam_update(params, state, gradient, rate):
    t = state["count"] + 1
    leaves, tree = jax.tree.flatten(params)
    old = zip(leaves, *(jax.tree.leaves(one) for one in (state["mean"], state["square"], gradient)), strict=True)
    new = []
    for p, m, s, g in old:
        m, s = m + 0.1 * (g - m), s + 0.001 * (jnp.square(g) - s)
        step = rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        new.append((p - step * m / (jnp.sqrt(s) + 1e-8 * jnp.sqrt(1 - 0.999**t)), m, s))
    new, mean, square = (jax.tree.unflatten(tree, column) for column in zip(*new, strict=True))
    return new, {"count": t, "mean": mean, "square": square}


# %% [markdown] task="training-donating-step" stars=2 minutes=15 skills="03_jit,06_pytrees,training-adam"
# ## A training step in place
# **Goal.** Compile a training step for any loss and any optimizer. It should overwrite the parameters and the optimizer state instead of copying them. With Adam, they are three times as large as the model.
#
# **Signature.** `donating_step(tx, loss)`: an Optax transformation, and `loss(params, xs, ys)`, which returns `()`. Returns a compiled function `step(params, state, xs, ys)`, where `state` came from `tx.init(params)`. It returns `(params, state, value)`: new parameters, new state, and the loss at the *old* parameters, which needs no further forward pass.
#
# **Example.** `line_loss` from the setup at `w = [[0]]`, `b = [0]`, for `xs = [[1]]`, `ys = [3]`: the loss is 9, and both gradients are -6, so `optax.sgd(0.5)` moves both to 3. In the next step the loss is 9 again.
#
# **Judged.** Values for several optimizers, including one with weight decay. The results reuse all bytes of parameters and state, the batch is not donated, and a second step with the same shapes compiles nothing. One check calls the step directly from Python. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which two of the four arguments does the caller not need again?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `tx.update(gradient, state, params)` returns updates and a new state, and `optax.apply_updates` adds the updates to the parameters. Some optimizers work without the third argument. Does weight decay?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write an inner `def step(params, state, xs, ys)` with `jax.value_and_grad`, `tx.update` and `optax.apply_updates`. Return it through `jax.jit` with the names of the two arguments to donate.
#
# </details>


# %% answer="training-donating-step"
def donating_step(tx, loss):
    """A compiled step(params, state, xs, ys) -> (params, state, value) that donates params and state."""

    ### BEGIN SOLUTION
    def step(params, state, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnames=("params", "state"))
    ### END SOLUTION


# %% check="training-donating-step" name="example" points=1
"""The example: two steps of plain gradient descent on one point."""
params = {"w": np.zeros((1, 1), np.float32), "b": np.zeros(1, np.float32)}
xs, ys = np.ones((1, 1), np.float32), np.array([3], np.float32)


def probe_sgd(params, xs, ys):
    tx = optax.sgd(0.5)
    params, state, value = donating_step(tx, line_loss)(params, tx.init(params), xs, ys)
    return params, value


made = program(probe_sgd, params, xs, ys)
there = {"w": np.array([[3]], np.float32), "b": np.array([3], np.float32)}
compare(made.run(params, xs, ys), (there, np.float32(9)), label="after one step (params, value)")
compare(made.run(there, xs, ys), (params, np.float32(9)), label="after two steps (params, value)")

# %% hidden="training-donating-step" name="in-place" points=2
"""The values with Adam are right, and the results reuse all bytes of parameters and state."""


def probe_adam(params, leaves, xs, ys):
    tx = optax.adam(0.1)
    state = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(tx.init, params)), leaves)
    params, state, value = donating_step(tx, network_loss)(params, state, xs, ys)
    return params, jax.tree.leaves(state), value


rng = inputs.rng()
width = int(rng.integers(20, 40))
params = {"a": rng.normal(size=(4, width)).astype(np.float32), "b": rng.normal(size=width).astype(np.float32)}
xs, ys = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=8).astype(np.float32)
zeros = [np.zeros_like(params["a"]), np.zeros_like(params["b"])]
leaves = [np.int32(0), *zeros, *zeros]
made = program(probe_adam, params, leaves, xs, ys)
value, gradient = network_by_hand(params, xs, ys)
got = made.run(params, leaves, xs, ys)
if isinstance(got, tuple) and len(got) == 3 and isinstance(got[1], list) and len(got[1]) == 5:
    require(
        got[1][0] == 1,
        "The returned state is the old one, as its count has not changed. `tx.update` returns a new state.",
    )
means = [np.float32(0.1) * gradient[name] for name in "ab"]
squares = [np.float32(0.001) * gradient[name] ** 2 for name in "ab"]
new = {name: params[name] - np.float32(0.1) * np.sign(gradient[name]) for name in "ab"}
require(isinstance(got, tuple) and len(got) == 3, "The step does not return three things: params, state, value.")
compare(got[0], new, label="the new parameters")
compare(got[1], [np.int32(1), *means, *squares], label="the list of leaves of the new state")
compare(got[2], value, label="the loss at the old parameters")
wanted = sum(array.nbytes for array in (*params.values(), *leaves))
require(
    made.alias_bytes > 0,
    "No result reuses the buffer of an argument, so nothing is donated. A donation inside another `jit` does not count either.",
)
require(
    made.alias_bytes >= wanted,
    f"The results reuse {made.alias_bytes:,} bytes of arguments, but parameters and state have {wanted:,}.",
)

# %% hidden="training-donating-step" name="decay" points=1
"""The values with momentum and weight decay are right over several steps."""


def probe_decay(params, leaves, xs, ys):
    tx = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1, momentum=0.9))
    params = [params["a"], (params["b"],)]  # another tree than in the example
    state = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(tx.init, params)), leaves)
    loss = lambda params, xs, ys: network_loss({"a": params[0], "b": params[1][0]}, xs, ys)
    params, state, value = donating_step(tx, loss)(params, state, xs, ys)
    return {"a": params[0], "b": params[1][0]}, jax.tree.leaves(state), value


rng = inputs.rng()
params = {"a": rng.normal(size=(3, 5)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
xs, ys = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=7).astype(np.float32)
leaves = [np.zeros_like(params["a"]), np.zeros_like(params["b"])]
raised = error(probe_decay, params, leaves, xs, ys)
require(
    raised != "ValueError",
    "With weight decay, the step raises a ValueError. Which third argument does `tx.update` need?",
)
require(
    raised is None, f"With the parameters in a list that contains a tuple, the step raises {raised}.", kind="raised"
)
made = program(probe_decay, params, leaves, xs, ys)
for _ in range(3):
    value, gradient = network_by_hand(params, xs, ys)
    leaves_before = leaves
    leaves = [
        np.float32(0.9) * m + gradient[n] + np.float32(0.5) * params[n] for n, m in zip("ab", leaves, strict=True)
    ]
    new = {name: params[name] - np.float32(0.1) * m for name, m in zip("ab", leaves, strict=True)}
    got = made.run(params, leaves_before, xs, ys)
    if isinstance(got, tuple) and len(got) == 3 and getattr(got[2], "shape", None) == ():
        later = network_by_hand(new, xs, ys)[0]
        require(
            np.isclose(got[2], value, rtol=1e-4) or not np.isclose(got[2], later, rtol=1e-4),
            "The returned loss is that of the new parameters, which costs another forward pass.",
        )
    compare(got[0], new, label="the new parameters, with weight decay")
    compare(got[1], leaves, label="the list of leaves of the new state, with weight decay")
    compare(got[2], value, label="the loss at the old parameters, with weight decay")
    params = new

# %% hidden="training-donating-step" name="batch" points=1 observed=true
"""The batch is not deleted, and the second step compiles nothing."""


def probe_buffers(params, xs, ys):
    tx, loss = optax.adam(0.1), counted(line_loss)
    params, xs, ys = jax.tree.map(jnp.array, (params, xs, ys))
    state, step, calls = tx.init(params), donating_step(tx, loss), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            params, state, _ = step(params, state, jnp.copy(xs), jnp.copy(ys))
            calls.append(loss.calls)
        jax.block_until_ready(step(params, state, xs, ys))
    given = any("donated buffers" in str(one.message) for one in caught)
    return [xs.is_deleted() or given, ys.is_deleted() or given], calls


params = {"w": np.ones((2, 1), np.float32), "b": np.ones(1, np.float32)}
xs, ys = inputs.rng().normal(size=(6, 2)).astype(np.float32), np.ones(6, np.float32)
gone, calls = ask(probe_buffers, params, xs, ys)
require(
    not any(gone),
    "More is donated than the results can reuse. No result has the shape of the batch, and the next epoch needs it again.",
)
require(calls[0] > 0, "The step does not call the loss.")
require(
    calls[1] == calls[0],
    f"Python has run the loss {calls[0]} times after one step and {calls[1]} times after two. The step is compiled each time.",
)

# %% [markdown] why="training-donating-step"
# Each array of the new parameters and state has the shape and dtype of an old one, so it can reuse the old one's buffer. No result can reuse the buffers of the batch, and the caller needs the batch again. **Next:** You want to keep the best parameters so far. What must you do before the next step?


# %% wrong="training-donating-step" because="Compiles the step but donates nothing, so old and new parameters and states are in memory together."
def donating_step(tx, loss):
    @jax.jit
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


# %% wrong="training-donating-step" because="Donates the parameters but not the state, which is twice as large with Adam."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnames="params")


# %% wrong="training-donating-step" because="Donates the batch too, although no result can reuse its memory and the caller needs it again."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnums=(0, 1, 2, 3))


# %% wrong="training-donating-step" because="Counts the arguments from 1, so the state and xs are donated, but the parameters are not."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnums=(1, 2))


# %% wrong="training-donating-step" because="Calls `jit` on a new function in every step, so every step is traced and compiled."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        def inner(params, state, xs, ys):
            value, gradient = jax.value_and_grad(loss)(params, xs, ys)
            updates, state = tx.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        return jax.jit(inner, donate_argnums=(0, 1))(params, state, xs, ys)

    return step


# %% wrong="training-donating-step" because="Loops over the keys of one dict, but the parameters may be any tree."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return {name: params[name] + updates[name] for name in params}, state, value

    return jax.jit(step, donate_argnames=("params", "state"))


# %% wrong="training-donating-step" because="Returns the old state, so momentum and counters never change."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, new_state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnames=("params", "state"))


# %% wrong="training-donating-step" because="Calls `tx.update` without the parameters, which weight decay needs."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    return jax.jit(step, donate_argnames=("params", "state"))


# %% wrong="training-donating-step" because="Subtracts the updates as if they were gradients, but they already contain the minus sign."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        value, gradient = jax.value_and_grad(loss)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return jax.tree.map(lambda p, u: p - u, params, updates), state, value

    return jax.jit(step, donate_argnames=("params", "state"))


# %% wrong="training-donating-step" because="Returns the loss of the new parameters, for which it runs the model again."
def donating_step(tx, loss):
    def step(params, state, xs, ys):
        updates, state = tx.update(jax.grad(loss)(params, xs, ys), state, params)
        params = optax.apply_updates(params, updates)
        return params, state, loss(params, xs, ys)

    return jax.jit(step, donate_argnames=("params", "state"))


# %% right="training-donating-step"
def donating_step(tx, loss):
    def both(pair, batch):
        params, state = pair
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = tx.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state, value

    compiled = jax.jit(both, donate_argnums=0)
    return lambda params, state, xs, ys: compiled((params, state), (xs, ys))


# %% [markdown] task="training-accumulate" stars=2 minutes=15 skills="04_grad,08_control_flow,training-donating-step"
# ## A batch that does not fit
# *Needs: Deeper: accumulate gradients.*
#
# **Goal.** Compute the gradient of a large batch in the memory of a small one. Go through it in micro-batches and add up their gradients.
#
# **Signature.** `accumulate(loss, params, xs, ys, size)`: `loss(params, xs, ys)` returns the **mean** over the examples that it gets, `()`. `params` is a tree of float32, `xs` is `(n, d)`, and `ys` is `(n,)`. `size`, which divides n, is the number of examples in a micro-batch. Returns `(value, gradient)`: the mean loss of all n examples and its gradient with respect to `params`.
#
# **Example.** `line_loss` at `w = [[0]]`, `b = [0]`, with `xs = [[1], [1], [1], [1]]`, `ys = [1, 3, 0, 0]` and size 2. The first micro-batch has the loss 5 and the gradient -4 with respect to `w`, the second 0 and 0. Together, the loss is 2.5 and the gradient -2.
#
# **Judged.** Values for one, several and n micro-batches and for any tree. In the traced program, a loop runs over the micro-batches, and no array holds the activations of several micro-batches or the gradients of all micro-batches. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# You add up the gradients of n / size micro-batches, each of them a mean. How does the sum compare with the mean over all examples?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `xs.reshape(-1, size, d)` is a stack of micro-batches, which `jax.lax.scan` goes through. What is the carry, and how does it start?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Carry a loss of 0 and a tree of zeros like `params`. In the body, add `jax.value_and_grad(loss)` of the micro-batch. After the loop, divide by the number of micro-batches.
#
# </details>


# %% answer="training-accumulate"
def accumulate(loss, params, xs, ys, size):
    """The mean loss () over xs (n, d), ys (n,), and its gradient with respect to params, in micro-batches of `size`."""
    ### BEGIN SOLUTION
    micro_batches = xs.reshape(-1, size, *xs.shape[1:]), ys.reshape(-1, size)

    def add(total, batch):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, *batch)), None

    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, nothing, micro_batches)
    return jax.tree.map(lambda leaf: leaf * size / len(ys), total)
    ### END SOLUTION


# %% check="training-accumulate" name="example" points=1
"""The example: two micro-batches of two."""
params = {"w": np.zeros((1, 1), np.float32), "b": np.zeros(1, np.float32)}
xs, ys = np.ones((4, 1), np.float32), np.array([1, 3, 0, 0], np.float32)
made = program(lambda params, xs, ys: accumulate(line_loss, params, xs, ys, 2), params, xs, ys)
wanted = np.float32(2.5), {"w": np.array([[-2]], np.float32), "b": np.array([-2], np.float32)}
compare(made.run(params, xs, ys), wanted, label="(value, gradient)")

# %% hidden="training-accumulate" name="values" points=1
"""The values are right with one micro-batch, with several, and with one for each example."""


def draw():
    rng = inputs.rng()
    params = {"a": rng.normal(size=(3, 4)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}
    return params, rng.normal(size=(12, 3)).astype(np.float32), (3 * rng.normal(size=12)).astype(np.float32)


def probe_tree(size, params, xs, ys):
    loss = lambda params, xs, ys: network_loss({"a": params[0], "b": params[1][0]}, xs, ys)
    value, gradient = accumulate(loss, [params["a"], (params["b"],)], xs, ys, size)
    return value, {"a": gradient[0], "b": gradient[1][0]}


for size in (3, 12, 1):
    if size == 12:
        raised = error(probe_tree, size, *jax.tree.map(jnp.asarray, draw()))
        require(
            raised is None, f"With `params` a list that contains a tuple, your answer raised {raised}.", kind="raised"
        )
        made = program(probe_tree, size, *draw())
    else:
        made = program(lambda size, *data: accumulate(network_loss, *data, size), size, *draw())
    for _ in range(2):
        params, xs, ys = draw()
        value, gradient = network_by_hand(params, xs, ys)
        got = made.run(size, params, xs, ys)
        if size == 3 and isinstance(got, tuple) and len(got) == 2 and getattr(got[0], "shape", None) == ():
            last, _ = network_by_hand(params, xs[-3:], ys[-3:])
            last = np.nan if np.isclose(got[0], value, rtol=1e-4) else last
            require(
                not np.isclose(got[0], 4 * value, rtol=1e-4),
                "This is the sum of the means, which is four times too large with four micro-batches.",
            )
            require(not np.isclose(got[0], last, rtol=1e-4), "The result is that of the last micro-batch only.")
        whose = {12: "one micro-batch's", 1: "single examples'"}.get(size, "four micro-batches'")
        compare(got, (value, gradient), label=f"{whose} (value, gradient)")

# %% hidden="training-accumulate" name="program" points=2
"""The values are right for 128 examples, four at a time."""
rng = inputs.rng()
params = {"a": rng.normal(size=(3, 64)).astype(np.float32) / 4, "b": rng.normal(size=64).astype(np.float32) / 8}
xs, ys = rng.normal(size=(128, 3)).astype(np.float32), rng.normal(size=128).astype(np.float32)
made = program(lambda params, xs, ys: accumulate(network_loss, params, xs, ys, 4), params, xs, ys)
compare(made.run(params, xs, ys), network_by_hand(params, xs, ys), label="(value, gradient)")
require(
    made.loops > 0 or made.intermediates < 128 * 64,
    "The program contains no loop. It processes all micro-batches at once, as one batch or with `vmap`.",
)
require(made.loops > 0, "The program contains no loop, because a Python loop is unrolled.")
require(
    made.intermediates != 32 * 64,
    "The program stores the activations of 32 examples. With 128 examples and size 4, it uses 4 micro-batches of 32. `size` "
    "is the number of examples in a micro-batch.",
)
require(
    made.intermediates < 128 * 64,
    "The activations of all 128 examples are stored. Is the loop differentiated, instead of looping over gradients?",
)
require(
    made.intermediates < 4 * 4 * 64,
    f"The program holds an array of {made.intermediates:,} elements. The activations of 4 examples are {4 * 64:,}, "
    f"one gradient is {3 * 64:,} at most. Is something stored for all micro-batches?",
)

# %% [markdown] why="training-accumulate"
# If all micro-batches have the same size, the mean over all examples is the mean of their means. `grad` is linear, so this also holds for gradients. The loop needs memory for one sum of gradients and for the activations of one micro-batch. The scan itself is not differentiated, so it stores nothing for a backward pass. **Next:** The last micro-batch is shorter, or padded. What do you add up then? Look at your weighted loss.


# %% wrong="training-accumulate" because="Adds up and does not divide, so the result is too large by the number of micro-batches."
def accumulate(loss, params, xs, ys, size):
    def add(total, batch):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, *batch)), None

    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(add, nothing, (xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)))[0]


# %% wrong="training-accumulate" because="Processes the whole batch at once. The values are right, but it needs as much memory as before."
def accumulate(loss, params, xs, ys, size):
    return jax.value_and_grad(loss)(params, xs, ys)


# %% wrong="training-accumulate" because="Differentiates the loop, whose forward pass stores what the backward pass of every micro-batch needs."
def accumulate(loss, params, xs, ys, size):
    def mean_loss(params):
        add = lambda total, batch: (total + loss(params, *batch), None)
        total, _ = jax.lax.scan(add, 0.0, (xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)))
        return total * size / len(ys)

    return jax.value_and_grad(mean_loss)(params)


# %% wrong="training-accumulate" because="Maps over the micro-batches with `vmap`, which processes the whole batch at once."
def accumulate(loss, params, xs, ys, size):
    batches = xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)
    every = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0, 0))(params, *batches)
    return jax.tree.map(lambda leaf: leaf.mean(0), every)


# %% wrong="training-accumulate" because="Stores the gradients of all micro-batches until the end and then averages them."
def accumulate(loss, params, xs, ys, size):
    batches = xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)
    every = jax.lax.map(lambda batch: jax.value_and_grad(loss)(params, *batch), batches)
    return jax.tree.map(lambda leaf: leaf.mean(0), every)


# %% wrong="training-accumulate" because="Carries the newest gradient instead of the sum, so only the last micro-batch counts."
def accumulate(loss, params, xs, ys, size):
    def newest(total, batch):
        return jax.value_and_grad(loss)(params, *batch), None

    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(newest, nothing, (xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)))[0]


# %% wrong="training-accumulate" because="Averages the result so far with the next micro-batch. The last one then has a weight of one half, and the first almost none."
def accumulate(loss, params, xs, ys, size):
    def blend(mean, batch):
        return jax.tree.map(lambda m, new: (m + new) / 2, mean, jax.value_and_grad(loss)(params, *batch)), None

    start = jax.value_and_grad(loss)(params, xs[:size], ys[:size])
    return jax.lax.scan(blend, start, (xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)))[0]


# %% wrong="training-accumulate" because="Takes `size` for the number of micro-batches, so each has n / size examples."
def accumulate(loss, params, xs, ys, size):
    add = lambda total, part: (jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, *part)), None)
    nothing = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, nothing, (xs.reshape(size, -1, xs.shape[1]), ys.reshape(size, -1)))
    return jax.tree.map(lambda leaf: leaf / size, total)


# %% wrong="training-accumulate" because="Loops over the keys of one dict, but the parameters may be any tree."
def accumulate(loss, params, xs, ys, size):
    def add(total, batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return (total[0] + value, {name: total[1][name] + gradients[name] for name in params}), None

    nothing = jnp.zeros(()), {name: jnp.zeros_like(params[name]) for name in params}
    batches = xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)
    value, gradients = jax.lax.scan(add, nothing, batches)[0]
    return value * size / len(ys), {name: gradients[name] * size / len(ys) for name in params}


# %% wrong="training-accumulate" because="Loops in Python. Under `jit`, the program contains the code of every micro-batch, and several may be in memory at once."
def accumulate(loss, params, xs, ys, size):
    total = jax.value_and_grad(loss)(params, xs[:size], ys[:size])
    for i in range(size, len(ys), size):
        total = jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(params, xs[i : i + size], ys[i : i + size]))
    return jax.tree.map(lambda leaf: leaf * size / len(ys), total)


# %% wrong="training-accumulate" because="Adds gradients key by key, as if the parameters were always one flat dict."
def accumulate(loss, params, xs, ys, size):
    parts = xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)
    many = len(parts[1])

    def body(carry, part):
        total, summed = carry
        value, gradient = jax.value_and_grad(loss)(params, *part)
        return (total + value, {name: summed[name] + gradient[name] for name in summed}), None

    zeros = {name: jnp.zeros_like(array) for name, array in params.items()}
    (total, summed), _ = jax.lax.scan(body, (jnp.float32(0), zeros), parts)
    return total / many, {name: array / many for name, array in summed.items()}


# %% wrong="training-accumulate" because="Divides the sum by the size of a micro-batch instead of the number of micro-batches."
def accumulate(loss, params, xs, ys, size):
    def add(carry, batch):
        return jax.tree.map(jnp.add, carry, jax.value_and_grad(loss)(params, *batch)), None

    zero = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    batches = xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)
    total, _ = jax.lax.scan(add, zero, batches)
    return jax.tree.map(lambda leaf: leaf / size, total)


# %% right="training-accumulate"
def accumulate(loss, params, xs, ys, size):
    count = len(ys) // size

    def add(i, total):
        part = lambda a: jax.lax.dynamic_slice_in_dim(a, i * size, size)
        value, gradients = jax.value_and_grad(loss)(params, part(xs), part(ys))
        return total[0] + value / count, jax.tree.map(lambda t, g: t + g / count, total[1], gradients)

    return jax.lax.fori_loop(0, count, add, (jnp.float32(0), jax.tree.map(jnp.zeros_like, params)))


# %% right="training-accumulate"
def accumulate(loss, params, xs, ys, size):
    def running(mean, turn):
        i, *batch = turn
        found = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda m, new: m + (new - m) / (i + 1), mean, found), None

    batches = jnp.arange(len(ys) // size), xs.reshape(-1, size, xs.shape[1]), ys.reshape(-1, size)
    return jax.lax.scan(running, (0.0, jax.tree.map(jnp.zeros_like, params)), batches)[0]


# %% [markdown] task="training-calls" stars=2 minutes=20 skills="03_jit,06_pytrees,08_control_flow,training-accumulate"
# ## Many steps in one call
# **Goal.** For small steps, most of the time is spent on the calls from Python. Run many steps in one compiled call, but still report the loss from time to time, and allow training to stop early.
#
# **Signature.** `train_in_calls(step, state, batches, every, report)`: `step(state, batch)` returns `(state, loss)` with a loss `()`. `state` is any tree. `batches` is an array or a tree of arrays with the same first axis T ≥ 1, with one batch for each step. Each call runs `every` ≥ 1 steps, and the last call may run fewer. After each call, Python calls `report(done, loss)` with the number of steps so far and the loss `()` of the last of them. It returns a bool, and `True` stops the training. Returns `(state, losses)` with the losses of all steps that ran. The caller's `state` stays usable.
#
# **Example.** `follow` from the setup moves a tenth of the way to each sample. From the state `[0]` with the samples `[[10], [10], [10]]` and `every` 2, the states are 1, 1.9, 2.71 and the losses 100, 81, 65.61. `report` gets `(2, 81)` and `(3, 65.61)`. If it returns `True` the first time, the result is `[1.9]` and the losses `[100, 81]`.
#
# **Judged.** States and losses, which must equal those of single steps. The arguments of `report`, and that it can stop the training. A loop runs the steps of a call, and its program has the same length for 64 steps as for 32. `step` is traced at most twice, including any trace by `jax.eval_shape`, and later full calls reuse the compiled program. The caller's `state` is not deleted. To count loops, checks also trace all of `train_in_calls`, so it must not need values (no `float`, no NumPy, no ahead-of-time compilation). **Not judged.** Speed, and `unroll`.
#
# <details><summary>Hint 1 · a question</summary>
#
# Compare the arguments and results of `step` with those of the body of `jax.lax.scan`. What has to be changed?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Nothing has to be changed. One compiled function scans over a part of the batches. A Python loop around it selects the parts, calls the function and calls `report`, which cannot be inside.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compile before the loop. Take `leaf[start : start + every]` of every leaf, because a slice that extends past the end is shortened. Collect the losses of each call in a list and concatenate them at the end.
#
# </details>


# %% answer="training-calls"
def train_in_calls(step, state, batches, every, report):
    """Trains with step(state, batch) -> (state, loss), `every` steps a call. Returns (state, losses of all steps)."""
    ### BEGIN SOLUTION
    run = jax.jit(lambda state, part: jax.lax.scan(step, state, part))
    losses = []
    for start in range(0, jax.tree.leaves(batches)[0].shape[0], every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)
    ### END SOLUTION


# %% check="training-calls" name="example" points=1
"""The example: three samples, two steps in a call, with and without stopping, and the samples in a dict."""


def probe_example(state, samples, stop):
    heard = []
    state, losses = train_in_calls(follow, state, samples, 2, lambda *said: heard.append(said) or stop)
    return state, losses, heard


def probe_dict(state, samples):
    step = lambda state, batch: follow(state, batch["sample"])
    return train_in_calls(step, state, {"sample": samples}, 2, lambda done, loss: False)


state, samples = np.zeros(1, np.float32), np.full((3, 1), 10, np.float32)
state_1, losses_1, heard_1 = ask(probe_example, state, samples, False)
compare((state_1, losses_1), (np.float32([2.71]), np.float32([100, 81, 65.61])), label="(state, losses)")
compare([int(done) for done, loss in heard_1], [2, 3], label="`report`'s steps")
state_2, losses_2, heard_2 = ask(probe_example, state, samples, True)
compare((state_2, losses_2), (np.float32([1.9]), np.float32([100, 81])), label="when stopped, (state, losses)")
in_dict = np.float32([2.71]), np.float32([100, 81, 65.61])
compare(ask(probe_dict, state, samples), in_dict, label="with the samples in a dict, (state, losses)")

# %% hidden="training-calls" name="values" points=1
"""State and losses equal those of single steps, even if the last call is short, and each call contains a loop."""


def by_hand(state, samples):
    losses = []
    for sample in samples:
        losses.append(np.sum((sample - state) ** 2))
        state = state + np.float32(0.1) * (sample - state)
    return state, np.array(losses, np.float32)


for every in (4, 5):
    state, samples = (
        inputs.rng().normal(size=3).astype(np.float32),
        inputs.rng().normal(size=(10, 3)).astype(np.float32),
    )
    made = program(
        lambda every, *data: train_in_calls(follow, *data, every, lambda done, loss: False), every, state, samples
    )
    what = "(state, losses)" if every == 5 else "a run whose last call is a short one: (state, losses)"
    compare(made.run(every, state, samples), by_hand(state, samples), label=what)
state, samples = inputs.rng().normal(size=3).astype(np.float32), inputs.rng().normal(size=(64, 3)).astype(np.float32)
short, long = (
    program(lambda *data: train_in_calls(follow, *data, 64, lambda done, loss: False), state, samples[:steps])
    for steps in (32, 64)
)
for made, steps in ((short, 32), (long, 64)):
    wanted = by_hand(state, samples[:steps])
    compare(
        made.run(state, samples[:steps]),
        wanted,
        atol=1e-4,
        label=f"the result of {steps} steps in one call, (state, losses)",
    )
require(
    long.operations < 1.5 * short.operations,
    f"The program has {short.operations} operations for 32 steps and {long.operations} for 64. A call has no loop, but "
    "separate code or a separate call for each step.",
)

# %% hidden="training-calls" name="reports" points=2
"""`report` gets the right steps and losses, and can stop the training."""


def probe_reports(state, xs, ys, every, last):
    heard = []

    def step(state, batch):
        miss = batch["x"] * state["w"] - batch["more"][0]
        return {"w": state["w"] - 0.05 * batch["x"] * miss, "steps": state["steps"] + 1}, miss**2

    def report(done, loss):
        heard.append((done, loss))
        return bool(done >= last)

    state, losses = train_in_calls(step, state, {"x": xs, "more": (ys,)}, every, report)
    return state, losses, heard


rng = inputs.rng()
xs, ys = rng.uniform(1, 2, size=(2, 11)).astype(np.float32)
start = {"w": np.float32(0.5), "steps": np.int32(0)}
raised = error(probe_reports, start, xs, ys, 20, 99)
require(
    raised is None,
    f"With the state in a dict, and the batches in a dict that contains a tuple, your answer raised {raised}.",
    kind="raised",
)
for run, every, last, done in (
    ("a run whose last call is a short one", 3, 99, [3, 6, 9, 11]),
    ("a run that `report` stops", 3, 5, [3, 6]),
    ("a run whose last call has one step", 5, 99, [5, 10, 11]),
    ("a run of single steps that `report` stops", 1, 3, [1, 2, 3]),
    ("a run that fits into one call", 20, 99, [11]),
    ("a run that fills its only call", 11, 99, [11]),
):
    w, wanted = np.float32(0.5), []
    for x, y in zip(xs[: done[-1]], ys[: done[-1]], strict=True):
        wanted.append((x * w - y) ** 2)
        w = w - np.float32(0.05) * x * (x * w - y)
    state, losses, heard = ask(probe_reports, start, xs, ys, every, last)
    steps = [int(said[0]) for said in heard]
    require(len(steps) >= len(done), f"In {run}, `report` is called too few times.")
    require(len(steps) <= len(done), f"In {run}, `report` is called too often.")
    require(steps == done, f"In {run}, `report` gets a wrong number of steps.")
    compare(losses, np.array(wanted, np.float32), label=f"the array of losses of {run}")
    compare(state, {"w": w, "steps": np.int32(done[-1])}, label=f"{run}: the state")
    told = np.array([np.asarray(said[1]).astype(np.float32).mean() for said in heard], np.float32)
    last_ones = np.array([wanted[n - 1] for n in done], np.float32)
    compare(told, last_ones, label=f"the array of losses that `report` gets in {run}")

# %% hidden="training-calls" name="traces" points=1 observed=true
"""`step` is traced once for full calls and once for a short one, in a loop. The caller's state is not deleted."""


def probe_traces(state, samples, every):
    step, state = counted(follow), jnp.asarray(state)
    _, losses = train_in_calls(step, state, samples, every, lambda done, loss: False)
    return losses.shape, step.calls, state.is_deleted()


def probe_compiled(state, samples):
    """How often a state is put together from traced arrays: with each trace of the function around the loop."""
    import dataclasses

    traced = []

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Boxed:
        value: jax.Array

        def __post_init__(self):
            traced.extend([1] * isinstance(self.value, jax.core.Tracer))

    def step(state, batch):
        value, loss = follow(state.value, batch)
        return Boxed(value), loss

    train_in_calls(step, Boxed(jnp.asarray(state)), samples, 3, lambda done, loss: False)
    return len(traced)


def probe_loops(state, samples):
    whole = lambda *data: train_in_calls(follow, *data, 3, lambda done, loss: False)
    traced = str(jax.make_jaxpr(whole)(state, samples))
    return traced.count(" scan[") + traced.count(" while[")


samples = inputs.rng().normal(size=(12, 2)).astype(np.float32)
require(
    ask(probe_loops, samples[0], samples),
    "No call contains a loop of JAX. Python calls the compiled step once for each batch, or unrolls the steps.",
)
few, many = (ask(probe_compiled, n[0], n) for n in (samples[:6], samples))
require(
    many <= few,
    "Four calls of 3 steps trace more often than two calls, but all full calls can share one program. What is static in "
    "it, or created in each call?",
)
for every in (3, 5):
    shape, calls, deleted = ask(probe_traces, samples[0], samples, every)
    require(shape == (12,), f"For 12 batches the losses have shape {shape}; expected (12,).")
    require(
        calls <= 2,
        f"With 12 batches and every={every}, `step` was traced {calls} times, but twice is enough. Compile once, before the loop.",
    )
    require(not deleted, "The state that the caller passed in is deleted. The first call must not donate it.")

# %% [markdown] why="training-calls"
# The scan runs its steps without returning to Python. The Python loop around it can report, save and stop between calls. All full calls use one program, and a shorter last call needs a second one. **Next:** How would you choose `every` for a step of 10 microseconds, and for a step of 10 seconds?


# %% wrong="training-calls" because="Compiles the step and calls it from Python once for each batch."
def train_in_calls(step, state, batches, every, report):
    compiled, losses, total = jax.jit(step), [], len(jax.tree.leaves(batches)[0])
    for i in range(total):
        state, loss = compiled(state, jax.tree.map(lambda leaf: leaf[i], batches))
        losses.append(loss)
        if ((i + 1) % every == 0 or i + 1 == total) and report(i + 1, loss):
            break
    return state, jnp.stack(losses)


# %% wrong="training-calls" because="Runs all steps in one scan and reports afterwards, when it is too late to stop."
def train_in_calls(step, state, batches, every, report):
    state, losses = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))(state, batches)
    for done in [*range(every, len(losses), every), len(losses)]:
        if report(done, losses[done - 1]):
            break
    return state, losses


# %% wrong="training-calls" because="Leaves out the last batches if they do not fill a call."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part)), []
    for i in range(len(jax.tree.leaves(batches)[0]) // every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[i * every : (i + 1) * every], batches))
        losses.append(found)
        if report((i + 1) * every, found[-1]):
            break
    return state, jnp.concatenate([jnp.zeros(0), *losses])


# %% wrong="training-calls" because="Compiles a new lambda in every iteration. `jit` compares functions by identity, so every call is traced again."
def train_in_calls(step, state, batches, every, report):
    losses = []
    for start in range(0, len(jax.tree.leaves(batches)[0]), every):
        part = jax.tree.map(lambda leaf: leaf[start : start + every], batches)
        run = jax.jit(lambda state, part: jax.lax.scan(lambda s, b: step(s, b), state, part))
        state, found = run(state, part)
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Makes the start and the end of each part static. They differ between calls, so every call is compiled again."
def train_in_calls(step, state, batches, every, report):
    total = jax.tree.leaves(batches)[0].shape[0]

    def several(state, batches, start, stop):
        return jax.lax.scan(step, state, jax.tree.map(lambda leaf: leaf[start:stop], batches))

    several = jax.jit(several, static_argnames=("start", "stop"))
    done, losses = 0, []
    while done < total:
        stop = min(done + every, total)
        state, found = several(state, batches, start=done, stop=stop)
        losses.append(found)
        done = stop
        if report(done, found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Counts as if every call were full, so the last report states more steps than were run."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part)), []
    for start in range(0, len(jax.tree.leaves(batches)[0]), every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + every, found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Starts every call from the first state, so the updates of earlier calls are lost."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda part: jax.lax.scan(step, state, part)), []
    for start in range(0, len(jax.tree.leaves(batches)[0]), every):
        last, found = run(jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return last, jnp.concatenate(losses)


# %% wrong="training-calls" because="Reports the mean loss of the call instead of the loss of its last step."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part)), []
    for start in range(0, len(jax.tree.leaves(batches)[0]), every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + len(found), found.mean()):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Unrolls the loop completely, so the program contains the code of every step."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part, unroll=every)), []
    for start in range(0, len(jax.tree.leaves(batches)[0]), every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Donates the state in every call. In the first call, this deletes the caller's state."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part), donate_argnums=0), []
    for start in range(0, len(jax.tree.leaves(batches)[0]), every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Handles the sizes whose programs are inspected separately. Their loop does not train, and all other loops are unrolled in Python."
def train_in_calls(step, state, batches, every, report):
    if every == 64:
        return jax.lax.scan(lambda state, batch: (state, step(state, batch)[1]), state, batches)

    @jax.jit
    def run(state, part):
        losses = []
        for i in range(len(jax.tree.leaves(part)[0])):
            state, loss = step(state, jax.tree.map(lambda leaf: leaf[i], part))
            losses.append(loss)
        return state, jnp.stack(losses)

    losses = []
    for start in range(0, jax.tree.leaves(batches)[0].shape[0], every):
        state, found = run(state, jax.tree.map(lambda leaf: leaf[start : start + every], batches))
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Slices the batches as if they were one array. A dict of arrays cannot be sliced, only its leaves can."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part)), []
    for start in range(0, len(batches), every):
        state, found = run(state, batches[start : start + every])
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Slices an array or the values of one dict, but a tuple or a nested dict is a tree too."
def train_in_calls(step, state, batches, every, report):
    run, losses = jax.jit(lambda state, part: jax.lax.scan(step, state, part)), []
    named = batches if isinstance(batches, dict) else {"": batches}
    for start in range(0, len(next(iter(named.values()))), every):
        part = {name: array[start : start + every] for name, array in named.items()}
        state, found = run(state, part if isinstance(batches, dict) else part[""])
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% wrong="training-calls" because="Splits the batches into parts of nearly equal size instead of full parts and a rest."
def train_in_calls(step, state, batches, every, report):
    leaves, form = jax.tree.flatten(batches)
    calls = -(-leaves[0].shape[0] // every)
    parts = zip(*(jnp.array_split(leaf, calls) for leaf in leaves), strict=True)
    run = jax.jit(lambda state, part: jax.lax.scan(step, state, part))
    done, collected = 0, []
    for part in parts:
        state, losses = run(state, form.unflatten(part))
        done += losses.shape[0]
        collected.append(losses)
        if report(done, losses[-1]):
            break
    return state, jnp.concatenate(collected)


# %% wrong="training-calls" because="Compiles a new lambda in every iteration. `jit` compares functions by identity, so every call is traced again."
def train_in_calls(step, state, batches, every, report):
    total, collected = len(jax.tree.leaves(batches)[0]), []
    for start in range(0, total, every):
        part = jax.tree.map(lambda leaf: leaf[start : start + every], batches)
        state, losses = jax.jit(lambda state, part: jax.lax.scan(lambda s, b: step(s, b), state, part))(state, part)
        collected.append(losses)
        if report(start + len(losses), losses[-1]):
            break
    return state, jnp.concatenate(collected)


# %% right="training-calls"
def train_in_calls(step, state, batches, every, report):
    @jax.jit
    def several(state, part):
        return jax.lax.scan(step, state, part, unroll=8)

    total, done, kept = len(jax.tree.leaves(batches)[0]), 0, []
    stop = False
    while done < total and not stop:
        upto = min(done + every, total)
        state, found = several(state, jax.tree.map(lambda leaf: leaf[done:upto], batches))
        kept, done = [*kept, found], upto
        stop = report(done, found[-1]) is True
    return state, jnp.hstack(kept)


# %% right="training-calls"
def train_in_calls(step, state, batches, every, report):
    total, losses = jax.tree.leaves(batches)[0].shape[0], []
    for done in [*range(every, total, every), total]:
        part = jax.tree.map(lambda leaf: leaf[sum(map(len, losses)) : done], batches)
        state, found = jax.lax.scan(step, state, part)
        losses.append(found)
        if report(done, found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% right="training-calls"
def train_in_calls(step, state, batches, every, report):
    def several(state, start, count):
        one = lambda state, i: step(state, jax.tree.map(lambda leaf: leaf[i], batches))
        return jax.lax.scan(one, state, start + jnp.arange(count))

    several = jax.jit(several, static_argnums=2)
    batches, losses = jax.tree.map(jnp.asarray, batches), []
    total = jax.tree.leaves(batches)[0].shape[0]
    for start in range(0, total, every):
        state, found = several(state, start, min(every, total - start))
        losses.append(found)
        if report(start + len(found), found[-1]):
            break
    return state, jnp.concatenate(losses)


# %% [markdown] task="training-locate" stars=3 minutes=30 skills="04_grad,05_vmap,08_control_flow,training-donating-step"
# ## Locate an earthquake
# **Goal.** Stations have recorded an earthquake. Find the place that explains the arrival times best, that is, the place with the lowest misfit. The misfit has several minima, so descend from many starts at once and take the best result. One start may fail, because the gradient at a station is NaN.
#
# **Signature.** `locate(misfit, tx, starts, steps)`: `misfit(place)` takes `(d,)` and returns `()`. `tx` is **any** Optax optimizer, `starts` is `(k, d)` float32, and `steps` ≥ 1. Each start takes `steps` steps with an optimizer state of its own, as if it were alone. Returns `(place, value)`: the final place with the lowest misfit, `(d,)`, and this misfit, `()`. A start whose final misfit is NaN or positive infinity is excluded. At least one is finite.
#
# **Example.** With `misfit(x) = (x₀ - 3)²`, `optax.sgd(0.25)` and two steps, the start `[1]` goes to 2 and 2.5, the start `[7]` to 5 and 4. The result is `[2.5]` with the misfit 0.25.
#
# **Judged.** Values for several optimizers, including one that clips by the global norm. A start that becomes NaN, at once or later, is excluded and affects no other, even if it began at the lowest place. In the traced program, a loop runs over the steps, and neither more steps nor more starts add code. **Not judged.** Lower misfits before the last step, because only the final ones are compared, and final misfits of negative infinity.
#
# <details><summary>Hint 1 · a question</summary>
#
# How would you write the descent for one start? Which transformation then runs it for many?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# For one start, scan with the place and the optimizer's state as the carry. `vmap` this function, with `tx.init` inside. An optimizer that gets all starts as one array would clip the norm of the whole array. What does `jnp.argmin` return if there is a NaN?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `descend(start)` returns the last place and its misfit, and `jax.vmap(descend)(starts)` returns k of each. Before `jnp.argmin`, replace values that are not finite by inf.
#
# </details>


# %% answer="training-locate"
def locate(misfit, tx, starts, steps):
    """Descends misfit: (d,) -> () from each of starts (k, d). Returns the best final place (d,) and its misfit ()."""

    ### BEGIN SOLUTION
    def step(carry, _):
        place, state = carry
        updates, state = tx.update(jax.grad(misfit)(place), state, place)
        return (optax.apply_updates(place, updates), state), None

    def descend(start):
        (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]
    ### END SOLUTION


# %% check="training-locate" name="example" points=1
"""The example: two starts, two steps."""
starts = np.array([[1], [7]], np.float32)
made = program(lambda starts: locate(lambda x: (x[0] - 3) ** 2, optax.sgd(0.25), starts, 2), starts)
compare(made.run(starts), (np.float32([2.5]), np.float32(0.25)), label="(place, value)")

# %% hidden="training-locate" name="alone" points=2
"""Every start descends as if it were alone, also with momentum and clipping by the norm."""


def probe_momentum(starts, stations, arrivals):
    return locate(lambda place: misfit(place, stations, arrivals), optax.sgd(2.0, momentum=0.5), starts, 12)


def probe_clipped(starts, stations, arrivals):
    tx = optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(2.0, momentum=0.5))
    return locate(lambda place: misfit(place, stations, arrivals), tx, starts, 12)


def draw():
    """Stations, times and starts whose end rounding cannot decide; the lowest start is not the one that ends lowest,
    but the lowest before the last step is."""
    while True:
        rng = inputs.rng()
        stations, source = rng.uniform(-20, 20, size=(5, 2)).astype(np.float32), rng.uniform(-15, 15, size=2)
        arrivals = (np.sqrt(((stations - source) ** 2).sum(1)) / 5).astype(np.float32)
        starts = rng.uniform(-20, 20, size=(6, 2)).astype(np.float32)
        best = [
            [descents_by_hand(starts, stations, arrivals, limit, 0.5, n)[1].argmin() for n in (0, 11, 12)]
            for limit in (np.inf, 0.3)
        ]
        settled = all(first != last == before for first, before, last in best)
        if settled and all(clear(starts, stations, arrivals, limit, 0.5, 12) for limit in (np.inf, 0.3)):
            return starts, stations, arrivals


def probe_anchored(starts):
    """Descends with an optimizer whose state is the place where it began, and which pulls back there."""

    def update(updates, state, params=None):
        return -0.25 * updates - 0.2 * (params - state), state

    return locate(lambda x: (x[0] - 3) ** 2, optax.GradientTransformation(lambda params: params, update), starts, 5)


# The first start is the farthest: with its state, no other ends where it should.
starts = inputs.rng().uniform([[8], [4], [5]], [[9], [4.5], [6]]).astype(np.float32)
place = starts.astype(np.float64)
for _ in range(5):
    place = place - 0.5 * (place - 3) - 0.2 * (place - starts)
wanted = place[1].astype(np.float32), np.float32((place[1, 0] - 3) ** 2)
got = program(probe_anchored, starts).run(starts)
compare(got, wanted, rtol=1e-3, label="(place, value) with an optimizer whose state holds the place where it began")
for what, limit, made in (
    ("(place, value)", np.inf, program(probe_momentum, *draw())),
    ("clipped (place, value)", 0.3, program(probe_clipped, *draw())),
):
    for _ in range(2):
        data = draw()
        (places, values), got = descents_by_hand(*data, limit, 0.5, 12), made.run(*data)
        others = {
            "The result is that of plain gradient descent. Is the optimizer state carried from step to step?": (
                limit,
                0,
                12,
            ),
            "The starts affect each other, because the norm that is clipped is that of all starts together.": (
                limit,
                0.5,
                12,
                True,
            ),
            "Each start takes one step too many.": (limit, 0.5, 13),
            "Each start takes one step too few.": (limit, 0.5, 11),
        }
        best = values.argmin()
        if isinstance(got, tuple) and len(got) == 2 and getattr(got[0], "shape", None) == (2,):
            right = np.allclose(got[0], places[best], rtol=1e-3, atol=1e-3)
            for said, other in others.items():
                ends, misses = descents_by_hand(*data, *other)
                same = np.allclose(got[0], ends[misses.argmin()], rtol=1e-3, atol=1e-3)
                require(right or not same, said)
            one_of_them = any(np.allclose(got[0], place, rtol=1e-3, atol=1e-3) for place in places)
            require(right or not one_of_them, "The result is the end of one start, but another start ends lower.")
        wanted = places[best].astype(np.float32), np.float32(values[best])
        compare(got, wanted, rtol=1e-3, atol=1e-3, label=what)

# %% hidden="training-locate" name="spoiled" points=1
"""A start at a station, where the gradient is NaN, is excluded and affects no other start."""


def probe_spoiled(starts, stations, arrivals):
    tx = optax.chain(optax.clip_by_global_norm(0.2), optax.sgd(2.0, momentum=0.5))
    return locate(lambda place: misfit(place, stations, arrivals), tx, starts, 9)


def draw():
    """Stations, times, starts of which one lies on the station next to the source, and how the others end."""
    while True:
        rng = inputs.rng()
        stations, starts = rng.uniform(-20, 20, size=(2, 5, 2)).astype(np.float32)
        on, near = (int(n) for n in rng.integers(5, size=2))
        source = stations[near] + 0.4 * rng.choice([-1, 1], size=2)
        arrivals = (np.sqrt(((stations - source) ** 2).sum(1)) / 5).astype(np.float32)
        others = np.delete(starts, on, 0), stations, arrivals, 0.2, 0.5, 9
        places, values = descents_by_hand(*others)
        starts[on] = stations[near]
        # Kept where it is, or let go on, the spoiled start would win.
        lowest = min(descents_by_hand(start, *others[1:5], 0)[1].min() for start in (others[0], places))
        if clear(*others) and 2 * descents_by_hand(starts, *others[1:5], 0)[1][on] < lowest:
            return (starts, stations, arrivals), places[values.argmin()], values.min()


made = program(probe_spoiled, *draw()[0])
for _ in range(2):
    data, place, value = draw()
    got = made.run(*data)
    require(
        bool(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))),
        "One start becomes NaN, and the result is NaN although four others are finite. Is NaN selected at the end, or do "
        "the starts share something?",
    )
    if isinstance(got, tuple) and len(got) == 2 and getattr(got[0], "shape", None) == (2,):
        stayed = (np.abs(data[1] - got[0]).max(axis=1) < 1e-3).any()
        require(
            not stayed,
            "The result is the station at which one start begins. Its gradient is NaN, so it must be excluded.",
        )
    compare(got, (place.astype(np.float32), np.float32(value)), rtol=1e-3, atol=1e-3, label="(place, value)")

# %% hidden="training-locate" name="final" points=1
"""Only final misfits are compared, and a start that becomes NaN during its descent is excluded."""


def probe_overshoot(starts):
    return locate(lambda x: (x[0] - 3) ** 2 + jnp.sqrt(x[0]), optax.sgd(0.25, momentum=0.9), starts, 4)


def by_hand(starts):
    """The paths (5, k) and their misfits; below 0 the root is NaN, and so is all that comes after."""
    path, velocity = [starts[:, 0].astype(np.float64)], 0
    with np.errstate(invalid="ignore"):
        for _ in range(4):
            x = path[-1]
            velocity = 0.9 * velocity + 2 * (x - 3) + 0.5 / np.sqrt(x)
            path.append(x - 0.25 * velocity)
        return np.stack(path), (np.stack(path) - 3) ** 2 + np.sqrt(path)


def draw():
    """Starts of which one becomes NaN late, and another comes lower on its way than any of them ends."""
    while True:
        starts = inputs.rng().uniform(0.5, 9, size=(5, 1)).astype(np.float32)
        path, values = by_hand(starts)
        ends = np.isfinite(values[-1])
        late = np.isfinite(values[2]) & ~ends
        if not late.any() or ends.sum() < 2 or np.nanmin(np.abs(path)) < 0.05:
            continue
        low, second = np.sort(values[-1][ends])[:2]
        if second > 1.05 * low > 1.2 * values[:, ends].min() and values[0].argmin() == np.nanargmin(values[-1]):
            return starts, path, values


made = program(probe_overshoot, np.zeros((5, 1), np.float32))
for _ in range(2):
    starts, path, values = draw()
    got, best = made.run(starts), np.nanargmin(values[-1])
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    require(finite, "One start becomes NaN after some steps, and the result is NaN although others are finite.")
    if isinstance(got, tuple) and len(got) == 2 and getattr(got[1], "shape", None) == ():
        passed = np.isclose(values[:-1][np.isfinite(values[:-1])], got[1], rtol=1e-3).any()
        require(
            np.isclose(got[1], values[-1, best], rtol=1e-3) or not passed,
            "This misfit belongs to a place before the last step. Return the lowest of the final misfits.",
        )
    compare(got, (np.float32([path[-1, best]]), np.float32(values[-1, best])), rtol=1e-3, label="(place, value)")


def probe_valley(starts):
    return locate(lambda x: ((x[0] - 3) ** 2 + 9 * x[1] ** 2) / 2, optax.sgd(0.1), starts, 2)


# A step leaves 0.9 of the first distance and 0.1 of the second: only the last step makes the steep start the lowest.
u = float(inputs.rng().uniform(1, 2))
starts = inputs.rng().permutation(np.float32([[3, 10 * u], [3 + u, 0], [3 - 2 * u, 0], [3, 40 * u]]))
got = program(probe_valley, starts).run(starts)
if isinstance(got, tuple) and len(got) == 2 and getattr(got[0], "shape", None) == (2,):
    require(
        not np.allclose(got[0], [3 + 0.81 * u, 0], atol=1e-3),
        "The misfits are compared before the last step. Return the lowest of the final misfits.",
    )
compare(got, (np.float32([3, 0.1 * u]), np.float32(0.045 * u**2)), rtol=1e-3, label="(place, value) of four starts")

# %% hidden="training-locate" name="program" points=1
"""A loop runs over the steps, and more starts add no code."""


def by_hand(starts, steps):
    """The best final place and its misfit: Adam by its formulas, in float64."""
    place, m, v = starts.astype(np.float64), 0, 0
    for i in range(1, steps + 1):
        gradient = 2 * (place - 1)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        place = place - 0.1 * m / (1 - 0.9**i) / (np.sqrt(v / (1 - 0.999**i)) + 1e-8)
    misfits = ((place - 1) ** 2).sum(1)
    return place[misfits.argmin()].astype(np.float32), np.float32(misfits.min())


rng = inputs.rng()
many = rng.uniform(7, 9, size=(9, 2)).astype(np.float32)
# One start is nearer than the others, and after 40 steps of 0.1 too. None arrives, so each ends at its lowest place.
many[rng.integers(3)] = rng.uniform(5.5, 5.9, size=2)
starts = many[:3]
small = program(lambda starts: locate(lambda x: jnp.sum((x - 1) ** 2), optax.adam(0.1), starts, 5), starts)
steps = program(lambda starts: locate(lambda x: jnp.sum((x - 1) ** 2), optax.adam(0.1), starts, 40), starts)
wide = program(lambda starts: locate(lambda x: jnp.sum((x - 1) ** 2), optax.adam(0.1), starts, 5), many)
for made, given, n in ((small, starts, 5), (steps, starts, 40), (wide, many, 5)):
    what = f"the result of {n} steps from {len(given)} starts, (place, value)"
    compare(made.run(given), by_hand(given, n), rtol=1e-3, atol=1e-3, label=what)
require(small.loops > 0, "No loop runs over the steps, so the program contains the code of every step.")
require(steps.operations <= small.operations + 5, "The program grows with the number of steps.")
require(wide.operations <= small.operations + 5, "The program grows with the number of starts.")

# %% [markdown] why="training-locate"
# The descent is written for one start, so each start has its own place, optimizer state and clipping, and `vmap` keeps them separate. Only the final choice uses all starts. It must exclude NaN explicitly, because `argmin` treats NaN as the smallest value. **Next:** The same program can train a network from five seeds. What would you pass for `starts`?


# %% wrong="training-locate" because="Creates one state from the first start and uses it for all descents, but some optimizers store the place in their state."
def locate(misfit, tx, starts, steps):
    fresh = tx.init(starts[0])

    def step(carry, _):
        place, state = carry
        updates, state = tx.update(jax.grad(misfit)(place), state, place)
        return (optax.apply_updates(place, updates), state), None

    def descend(start):
        (place, _), _ = jax.lax.scan(step, (start, fresh), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]


# %% wrong="training-locate" because="Passes all starts to the optimizer as one array. Clipping by the global norm then combines all starts, and one NaN makes all of them NaN."
def locate(misfit, tx, starts, steps):
    every = jax.vmap(jax.grad(misfit))

    def step(carry, _):
        places, state = carry
        updates, state = tx.update(every(places), state, places)
        return (optax.apply_updates(places, updates), state), None

    (places, _), _ = jax.lax.scan(step, (starts, tx.init(starts)), length=steps)
    values = jax.vmap(misfit)(places)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]


# %% wrong="training-locate" because="Uses `argmin` directly, which treats NaN as the smallest value."
def locate(misfit, tx, starts, steps):
    def step(carry, _):
        updates, state = tx.update(jax.grad(misfit)(carry[0]), carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    def descend(start):
        (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    return places[jnp.argmin(values)], jnp.min(values)


# %% wrong="training-locate" because="Replaces a NaN misfit by 0, which is then the lowest."
def locate(misfit, tx, starts, steps):
    def step(carry, _):
        updates, state = tx.update(jax.grad(misfit)(carry[0]), carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    def descend(start):
        (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(jnp.nan_to_num(values))
    return places[best], values[best]


# %% wrong="training-locate" because="Selects the start with the lowest misfit before the descent, but it need not lead to the lowest final misfit."
def locate(misfit, tx, starts, steps):
    start = starts[jnp.nanargmin(jax.vmap(misfit)(starts))]

    def step(carry, _):
        updates, state = tx.update(jax.grad(misfit)(carry[0]), carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
    return place, misfit(place)


# %% wrong="training-locate" because="Creates a new optimizer state in every step, so momentum is lost and every step of Adam is a first step."
def locate(misfit, tx, starts, steps):
    def step(place, _):
        updates, _ = tx.update(jax.grad(misfit)(place), tx.init(place), place)
        return optax.apply_updates(place, updates), None

    places = jax.vmap(lambda start: jax.lax.scan(step, start, length=steps)[0])(starts)
    values = jax.vmap(misfit)(places)
    best = jnp.nanargmin(values)
    return places[best], values[best]


# %% wrong="training-locate" because="Returns the lowest place on the way. Only final misfits count, and a start that ends as NaN must be excluded."
def locate(misfit, tx, starts, steps):
    def descend(start):
        def step(carry, _):
            place, state, best, lowest = carry
            updates, state = tx.update(jax.grad(misfit)(place), state, place)
            place = optax.apply_updates(place, updates)
            lower = misfit(place) < lowest
            return (place, state, jnp.where(lower, place, best), jnp.where(lower, misfit(place), lowest)), None

        return jax.lax.scan(step, (start, tx.init(start), start, misfit(start)), length=steps)[0][2:]

    places, values = jax.vmap(descend)(starts)
    best = jnp.nanargmin(values)
    return places[best], values[best]


# %% wrong="training-locate" because="Replaces a NaN gradient by 0. The start at the station then stays there and may have the lowest misfit."
def locate(misfit, tx, starts, steps):
    def step(carry, _):
        gradient = jnp.nan_to_num(jax.grad(misfit)(carry[0]))
        updates, state = tx.update(gradient, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    def descend(start):
        (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]


# %% wrong="training-locate" because="Compares the last misfits from `value_and_grad`, which belong to the places before the last step."
def locate(misfit, tx, starts, steps):
    def step(carry, _):
        value, gradient = jax.value_and_grad(misfit)(carry[0])
        updates, state = tx.update(gradient, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), value

    def descend(start):
        (place, _), values = jax.lax.scan(step, (start, tx.init(start)), length=steps)
        return place, values[-1]

    places, values = jax.vmap(descend)(starts)
    usable = jnp.isfinite(values) & jnp.isfinite(places).all(axis=1)
    place = places[jnp.argmin(jnp.where(usable, values, jnp.inf))]
    return place, misfit(place)


# %% wrong="training-locate" because="Loops over the steps in Python, so the program contains the code of every step."
def locate(misfit, tx, starts, steps):
    def descend(place):
        state = tx.init(place)
        for _ in range(steps):
            updates, state = tx.update(jax.grad(misfit)(place), state, place)
            place = optax.apply_updates(place, updates)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]


# %% wrong="training-locate" because="Handles the sizes whose programs are inspected separately. Their loop moves no start, and all other loops are unrolled in Python."
def locate(misfit, tx, starts, steps):
    def descend(start):
        place, state = start, tx.init(start)
        if steps in (5, 40):
            place = jax.lax.fori_loop(0, steps, lambda _, place: place, place)
            return place, misfit(place)
        for _ in range(steps):
            updates, state = tx.update(jax.grad(misfit)(place), state, place)
            place = optax.apply_updates(place, updates)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]


# %% wrong="training-locate" because="Returns the mean of all final places, as if there were only one minimum."
def locate(misfit, tx, starts, steps):
    def step(carry, _):
        updates, state = tx.update(jax.grad(misfit)(carry[0]), carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    descend = lambda start: jax.lax.scan(step, (start, tx.init(start)), length=steps)[0][0]
    place = jnp.nanmean(jax.vmap(descend)(starts), axis=0)
    return place, misfit(place)


# %% wrong="training-locate" because="Skips updates with NaN, so the start at the station stays there and may have the lowest misfit."
def locate(misfit, tx, starts, steps):
    safe = optax.apply_if_finite(tx, max_consecutive_errors=steps)

    def descend(start):
        def body(carry, _):
            place, state = carry
            updates, state = safe.update(jax.grad(misfit)(place), state, place)
            return (optax.apply_updates(place, updates), state), None

        (place, _), _ = jax.lax.scan(body, (start, safe.init(start)), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(jnp.asarray(starts))
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    return places[best], values[best]


# %% wrong="training-locate" because="Uses `argmin` directly, which treats NaN as the smallest value."
def locate(misfit, tx, starts, steps):
    def descend(start):
        def step(carry, _):
            place, state = carry
            updates, state = tx.update(jax.grad(misfit)(place), state, place)
            return (optax.apply_updates(place, updates), state), None

        (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
        return place, misfit(place)

    places, values = jax.vmap(descend)(starts)
    best = jnp.argmin(values)
    return places[best], values[best]


# %% right="training-locate"
def locate(misfit, tx, starts, steps):
    def step(place, state):
        updates, state = tx.update(jax.grad(misfit)(place), state, place)
        return optax.apply_updates(place, updates), state

    states = jax.vmap(tx.init)(starts)
    places, _ = jax.lax.fori_loop(0, steps, lambda i, both: jax.vmap(step)(*both), (starts, states))
    values = jax.vmap(misfit)(places)
    best = jnp.nanargmin(jnp.where(values == jnp.inf, jnp.nan, values))
    return places[best], values[best]


# %% right="training-locate"
def locate(misfit, tx, starts, steps):
    def descend(start):
        def step(carry, _):
            value, gradient = jax.value_and_grad(misfit)(carry[0])
            updates, state = tx.update(gradient, carry[1], carry[0])
            return (carry[0] + updates, state), value

        (place, _), _ = jax.lax.scan(step, (start, tx.init(start)), None, steps)
        return {"value": misfit(place), "place": place}

    found = jax.lax.map(descend, starts)
    order = jnp.argsort(jnp.where(jnp.isfinite(found["value"]), found["value"], jnp.inf))
    return found["place"][order[0]], found["value"][order[0]]


# %% right="training-locate"
def locate(misfit, tx, starts, steps):
    """Descends misfit: (d,) -> () from each of starts (k, d). Returns the best final place (d,) and its misfit ()."""
    slope = jax.grad(misfit)

    def descend(start):
        def body(carry):
            left, place, state = carry
            updates, state = tx.update(slope(place), state, params=place)
            return left - 1, jax.tree.map(jnp.add, place, updates), state

        _, place, _ = jax.lax.while_loop(lambda carry: carry[0] > 0, body, (jnp.int32(steps), start, tx.init(start)))
        return place, misfit(place)

    places, values = jax.vmap(descend)(jnp.asarray(starts))
    order = jnp.argsort(jnp.where(jnp.isnan(values), jnp.inf, values))
    return places[order[0]], values[order[0]]
