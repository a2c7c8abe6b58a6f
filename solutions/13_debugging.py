# %% [markdown]
# # 13 · Exercises: debugging
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# All exercises but `strict_loss` and `make_simulation` need only the core of the lesson.

# %% setup
import contextlib
import functools
import io
import re

from grader.checks import ask, case, compare, counted, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import checkify

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def record_prints(function, *calls):
    """Compiles `function` once and calls it on each array of `calls`. Returns the results, and the printed lines of each call."""
    compiled, results, printed = jax.jit(lambda x: function(x)), [], []
    for x in calls:
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            results.append(jax.block_until_ready(compiled(x)))
            jax.effects_barrier()
        printed.append(heard.getvalue().splitlines())
    return results, printed


def clipped(p, x):
    """A layer that limits what it gets: {"gain": (d,), "bias": (d,)}, x (d,) -> (d,)"""
    return p["gain"] * jnp.clip(x, -10, 10) + p["bias"]


def loss_as_found(params, xs, targets, weights):
    """The loss of "A loss that never gets low": {"mean", "std", "w", "b"}, xs (n, d), targets, weights (n,) -> ()"""
    predictions = (xs - params["mean"]) / params["std"] @ params["w"] + params["b"]
    return jnp.sum(weights * jnp.square(predictions - targets)) / weights.sum()


def train_as_found(params, batches, rate):
    """The code of the last exercise, with five bugs."""
    initial, optimizer = {"params": params}, optax.sgd(rate)

    def cost(p, data):
        scores = data["x"] @ initial["params"]["w"] + initial["params"]["b"]
        mean = optax.cross_entropy_loss(scores, data["y"]).mean()
        return mean + 0.1 * jnp.linalg.norm(p["w"] - initial["params"]["w"]) ** 2

    def advance(carry, data):
        p, memory, count, stopped = carry
        value, gradient = jax.value_and_grad(cost)(p, data)
        change, memory = optimizer.update(gradient, memory)
        p = optax.apply_updates(p, change)
        stopped = stopped | jnp.isnan(value)
        return (p, memory, count + ~stopped, stopped), None

    (p, _, count, _), _ = jax.lax.scan(advance, (params, optimizer.init(params), 0, False), batches)
    return {"params": p, "steps": count, "bytes": sum(leaf.size for leaf in jax.tree.leaves(p))}


# %% [markdown] task="debug-print" stars=1 minutes=10 skills="02_tracing,08_control_flow,13_debugging"
# ## Print only the records
# **Goal.** A compiled loop computes the lowest of many losses. Let it print a line for each step whose loss is lower than all losses before it. Two lines are missing.
#
# **Signature.** `print_under_jit(losses)`. `losses` has shape `(n,)` and dtype float32. The result is the lowest loss that is not NaN, `()`. It prints lines such as `step 3: loss 0.125`, with three digits after the point. Steps count from 0, and the first loss is a record, unless it is NaN or positive infinity.
#
# **Example.** For `[2, 3, 1]` it prints `step 0: loss 2.000` and `step 2: loss 1.000`, and returns 1.
#
# **Judged.** The result and the printed lines, under `jit`, in several calls of one compiled program. **Not judged.** The order of the lines.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of `print` and `jax.debug.print` shows values from a compiled program? How often would a plain `print` in `body` print?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A Python `if` cannot decide by `loss < lowest` under `jit`. `jax.lax.cond` can, and its branches are functions.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# One branch is a function without arguments that calls `jax.debug.print`. Its first argument is the text `"step {}: loss {:.3f}"`, and the two values follow. The other branch is `lambda: None`.
#
# </details>


# %% answer="debug-print"
def print_under_jit(losses):
    """Prints "step i: loss x.xxx" for each new lowest loss. losses (n,) float32 -> the lowest loss ()"""

    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        ### BEGIN SOLUTION
        report = lambda: jax.debug.print("step {}: loss {:.3f}", step, loss)
        jax.lax.cond(loss < lowest, report, lambda: None)
        ### END SOLUTION
        return jnp.where(loss < lowest, loss, lowest), None

    lowest, _ = jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))
    return lowest


# %% check="debug-print" name="example" points=1
"""The example: two of three losses are records."""
results, printed = ask(lambda losses: record_prints(print_under_jit, losses), np.array([2, 3, 1], np.float32))
compare(results, [np.float32(1)], label="the results")
compare(sorted(printed[0]), ["step 0: loss 2.000", "step 2: loss 1.000"], label="the printed lines")

# %% hidden="debug-print" name="lines" points=3
"""The right lines in each call of one program, also with equal losses and with NaN."""


def records(losses):
    lines, lowest = [], np.inf
    for step, loss in enumerate(losses):
        if loss < lowest:
            lines.append(f"step {step}: loss {loss:.3f}")
            lowest = loss
    return lines, np.float32(lowest)


rng = inputs.rng()
draw = lambda: rng.integers(1, 400, size=12).astype(np.float32) / 8
mixed, equal, late, falling, infinite, negative = draw(), draw(), draw(), np.sort(draw())[::-1].copy(), draw(), draw()
equal[[2, 5, 9]] = equal.min() - 1  # the lowest loss three times
late[[0, 6]] = np.nan
infinite[[0, 1, 5]] = np.inf
negative[[7, 9]] = -np.inf
calls = {
    "in the first call": mixed,
    "in a second call of the same program": draw(),
    "when the lowest loss occurs again": equal,
    "when the first losses are infinite": infinite,
    "when some losses are NaN": late,
    "when every loss is lower than the one before": falling - np.arange(12, dtype=np.float32),
    "when a loss is negative infinity": negative,
}
results, printed = ask(lambda *calls: record_prints(print_under_jit, *calls), *calls.values())
for when, losses, lowest, lines in zip(calls, calls.values(), results, printed, strict=True):
    wanted, value = records(losses)
    with case(when):
        require(not any("Tracer" in line for line in lines), "A printed line contains a tracer instead of a value.")
        require(len(lines) >= len(wanted), "Fewer lines are printed than there are records.")
        require(len(lines) <= len(wanted), "More lines are printed than there are records.")
        steps = lambda lines: sorted(line.split(":")[0] for line in lines)
        require(steps(lines) == steps(wanted), "The printed lines name other steps than those of the records.")
        require(sorted(lines) == sorted(wanted), "A printed line differs from `step i: loss x.xxx` of its record.")
        compare(lowest, value, label="the lowest loss")

# %% equivalent="debug-print" because="If the loss equals the lowest one, both choices have the same value."
# moved bound, X < Y -> X <= Y: return jnp.where(loss < lowest, loss, lowest), None

# %% [markdown] why="debug-print"
# `jax.debug.print` is an operation of the program, so it can be in a branch of `cond`, and it prints only when this branch runs. The text is a constant, and the values are filled in at each call. **Next:** What would `jax.vmap(print_under_jit)` print for a batch of runs?


# %% wrong="debug-print" because="Uses Python's print, which runs while JAX traces and shows tracers."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss

        def report():
            print("step", step, "loss", loss)

        jax.lax.cond(loss < lowest, report, lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Formats the text with an f-string, which Python evaluates while JAX traces."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        jax.lax.cond(loss < lowest, lambda: jax.debug.print(f"step {step}: loss {loss}"), lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Prints in every step, because nothing selects the records."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        jax.debug.print("step {}: loss {:.3f}", step, loss)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Decides with a Python `if` on a traced value."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        if loss < lowest:
            jax.debug.print("step {}: loss {:.3f}", step, loss)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Prints the lowest loss before the step, not the new one."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        jax.lax.cond(loss < lowest, lambda: jax.debug.print("step {}: loss {:.3f}", step, lowest), lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Also prints a loss that only equals the lowest one."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        jax.lax.cond(loss <= lowest, lambda: jax.debug.print("step {}: loss {:.3f}", step, loss), lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Always prints the first loss, but NaN or infinity is not a record."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        record = (step == 0) | (loss < lowest)
        jax.lax.cond(record, lambda: jax.debug.print("step {}: loss {:.3f}", step, loss), lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Skips a loss if it is at least the lowest one, but every comparison with NaN is false, so NaN is printed."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        report = lambda: jax.debug.print("step {}: loss {:.3f}", step, loss)
        jax.lax.cond(loss >= lowest, lambda: None, report)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Compares with the loss of the step before instead of the lowest one."
def print_under_jit(losses):
    before = jnp.concatenate([jnp.array([jnp.inf]), losses[:-1]])

    def body(lowest, inputs):
        step, loss, previous = inputs
        jax.lax.cond(loss < previous, lambda: jax.debug.print("step {}: loss {:.3f}", step, loss), lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses, before))[0]


# %% wrong="debug-print" because="Chooses with `where` between a print and nothing, so the print is always part of the program."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        shown = jnp.where(loss < lowest, loss, jnp.nan)
        jax.debug.print("step {}: loss {:.3f}", step, shown)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% wrong="debug-print" because="Skips every loss that is not finite, but negative infinity is lower than all numbers."
def print_under_jit(losses):
    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        record = jnp.isfinite(loss) & (loss < lowest)
        jax.lax.cond(record, lambda: jax.debug.print("step {}: loss {:.3f}", step, loss), lambda: None)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% right="debug-print"
def print_under_jit(losses):
    def show(step, loss, lowest):
        if loss < lowest:
            print(f"step {step}: loss {loss:.3f}")

    def body(lowest, step_and_loss):
        step, loss = step_and_loss
        jax.debug.callback(show, step, loss, lowest)
        return jnp.where(loss < lowest, loss, lowest), None

    return jax.lax.scan(body, jnp.float32(jnp.inf), (jnp.arange(len(losses)), losses))[0]


# %% right="debug-print"
def print_under_jit(losses):
    def record(step, lowest):
        jax.debug.print("step {i}: loss {value:.3f}", i=step, value=losses[step], ordered=True)
        return losses[step]

    def body(step, lowest):
        return jax.lax.cond(losses[step] < lowest, record, lambda step, lowest: lowest, step, lowest)

    return jax.lax.fori_loop(0, len(losses), body, jnp.float32(jnp.inf))


# %% [markdown] task="debug-broadcast" stars=1 minutes=10 skills="01_arrays,04_grad"
# ## A loss that never gets low
# *Needs: Deeper: options that turn silent choices into errors.*
#
# **Goal.** With `loss_as_found` from the setup, training ends with the same prediction for every example. No error reports why: two arrays of different rank are broadcast to a third shape. Let JAX report such places, and write the loss so that none is left.
#
# **Signature.** `strict_loss(params, xs, targets, weights)`. `params` is a dict with `"mean"` and `"std"`, each `(d,)`, `"w"` of shape `(d, 1)` and `"b"` of shape `(1,)`. `xs` has shape `(n, d)`, and `targets` and `weights` have shape `(n,)`. All are float32. The prediction for an example is `(x - mean) / std @ w + b`. The result `()` is the sum of the weighted squared errors of the n predictions divided by the sum of the weights.
#
# **Example.** Let d = 1, `mean` and `b` be 0, and `std` and `w` be 1. For `xs = [[1], [3]]`, `targets = [1, 3]` and `weights = [1, 1]`, all predictions are right and the loss is 0. `loss_as_found` returns 4.
#
# **Judged.** The values and the gradient with respect to `params`, also under `jit`, with `jax.numpy_rank_promotion("raise")` and without it. The context manager is part of the check, not of your answer. **Not judged.** How you give arrays the same rank.
#
# <details><summary>Hint 1 · a question</summary>
#
# What shapes do `predictions` and `targets` have in `loss_as_found`, and what shape does their difference have?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Call your function inside the context manager of the lesson, `jax.numpy_rank_promotion("raise")`. The error names the shapes of the first place. Repair it and call again, until no error is left.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `mean[None]` has shape `(1, d)`, and `predictions[:, 0]` has shape `(n,)`. Broadcasting an axis of size 1 is allowed, because both arrays have two axes.
#
# </details>


# %% answer="debug-broadcast"
def strict_loss(params, xs, targets, weights):
    """Weighted mean of squared errors: {"mean", "std" (d,), "w" (d, 1), "b" (1,)}, xs (n, d), targets, weights (n,) -> ()"""
    ### BEGIN SOLUTION
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = (scaled @ params["w"])[:, 0] + params["b"][0]
    return jnp.sum(weights * (predictions - targets) ** 2) / jnp.sum(weights)
    ### END SOLUTION


# %% check="debug-broadcast" name="example" points=1
"""The example, with the option and without it."""


def probe_options(params, xs, targets, weights):
    def strict(*args):
        with jax.numpy_rank_promotion("raise"):
            return strict_loss(*args)

    return [strict_loss(params, xs, targets, weights), strict(params, xs, targets, weights)]


params = {"mean": np.zeros(1), "std": np.ones(1), "w": np.ones((1, 1)), "b": np.zeros(1)}
params = {name: leaf.astype(np.float32) for name, leaf in params.items()}
xs, targets, weights = np.array([[1], [3]], np.float32), np.array([1, 3], np.float32), np.ones(2, np.float32)
got = ask(probe_options, params, jnp.asarray(xs), jnp.asarray(targets), jnp.asarray(weights))
compare(got, [np.float32(0)] * 2, label="[without the option, with it]")

# %% hidden="debug-broadcast" name="values" points=2
"""The loss and its gradient are right for other shapes, under jit, with the option and without it."""


def probe_strict(params, xs, targets, weights):
    with jax.numpy_rank_promotion("raise"):
        return jax.value_and_grad(strict_loss)(params, xs, targets, weights)


def probe_loose(params, xs, targets, weights):
    return jax.jit(jax.value_and_grad(strict_loss))(params, xs, targets, weights)


rng = inputs.rng()
for n, d in ((int(rng.integers(5, 9)), int(rng.integers(2, 5))), (4, 4), (1, 3), (6, 1)):
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    params = {"mean": draw(d), "std": rng.uniform(0.5, 2, size=d).astype(np.float32), "w": draw(d, 1), "b": draw(1)}
    xs, targets, weights = draw(n, d), draw(n), rng.uniform(0.2, 3, size=n).astype(np.float32)
    scaled = (xs.astype(np.float64) - params["mean"]) / params["std"]
    w = params["w"][:, 0].astype(np.float64)
    wrong = scaled @ w + params["b"][0] - targets
    share = weights / weights.sum(dtype=np.float64)
    back = 2 * share * wrong
    gradient = {
        "mean": -back.sum() * w / params["std"],
        "std": -(back @ scaled) * w / params["std"],
        "w": (back @ scaled)[:, None],
        "b": back.sum(keepdims=True),
    }
    right = np.float32(share @ wrong**2), jax.tree.map(np.float32, gradient)
    arrays = params, jnp.asarray(xs), jnp.asarray(targets), jnp.asarray(weights)
    with case(f"for {n} examples with {d} features"):
        compare(ask(probe_loose, *arrays), right, label="(loss, gradient)", rtol=1e-4, atol=1e-5)
        raised = error(probe_strict, *arrays)
        require(
            raised is None,
            f'with `jax.numpy_rank_promotion("raise")`, your answer raised {raised}. Some operation has arrays of different '
            "rank. The message of the error names their shapes.",
            kind="raised",
        )
        compare(ask(probe_strict, *arrays), right, label="(loss, gradient) with the option", rtol=1e-4, atol=1e-5)

# %% [markdown] why="debug-broadcast"
# A difference of `(n, 1)` and `(n,)` has shape `(n, n)`, which contains every prediction minus every target. The prediction that minimizes its mean square is the mean of all targets, so the training seems to work and learns nothing. The option rejects every operation on arrays of different rank, also those that were meant, such as `xs - mean`. Writing these out is the price of finding the other ones. **Next:** With `vmap` over the examples, which of these operations would not need an index at all?


# %% equivalent="debug-broadcast" because="`b` has one entry, and JAX clamps an index out of range."
# off by one, 0 -> 1: predictions = (scaled @ params["w"])[:, 0] + params["b"][0] (2)


# %% wrong="debug-broadcast" because="Subtracts the targets from a column, so every prediction is compared with every target."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = scaled @ params["w"] + params["b"][None]
    return jnp.sum(weights * (predictions - targets) ** 2) / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Gives the targets a leading axis, so they are a row beside a column. The ranks agree, but every prediction is compared with every target."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = scaled @ params["w"] + params["b"][None]
    errors = (predictions - targets[None]) ** 2
    return jnp.sum(weights[None] * errors) / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Gives the targets the right axis, but not the weights, so each error gets all weights."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = scaled @ params["w"] + params["b"][None]
    errors = (predictions - targets[:, None]) ** 2
    return jnp.sum(weights[None] * errors) / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Repairs the difference only. The mean, the deviation and the bias still have another rank than what they are combined with."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"]) / params["std"]
    predictions = (scaled @ params["w"] + params["b"])[:, 0]
    return jnp.sum(weights * (predictions - targets) ** 2) / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Disables the option instead of repairing the code, so its places stay, and one of them is wrong."
def strict_loss(params, xs, targets, weights):
    with jax.numpy_rank_promotion("allow"):
        return loss_as_found(params, xs, targets, weights)


# %% wrong="debug-broadcast" because="Averages over the examples instead of dividing by the sum of the weights."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = (scaled @ params["w"])[:, 0] + params["b"][0]
    return jnp.mean(weights * (predictions - targets) ** 2)


# %% wrong="debug-broadcast" because="Leaves out the weights."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = (scaled @ params["w"])[:, 0] + params["b"][0]
    return jnp.mean((predictions - targets) ** 2)


# %% wrong="debug-broadcast" because="Compares only the first example."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = (scaled @ params["w"])[:, 0] + params["b"][0]
    return weights[0] * (predictions[0] - targets[0]) ** 2 / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Standardizes with the mean and deviation of the batch instead of the parameters."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - xs.mean(0, keepdims=True)) / xs.std(0, keepdims=True)
    predictions = (scaled @ params["w"])[:, 0] + params["b"][0]
    return jnp.sum(weights * (predictions - targets) ** 2) / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Removes all axes of size 1, also the axis of the examples if there is one example, and that of the features."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = jnp.squeeze(jnp.squeeze(scaled) @ jnp.squeeze(params["w"])) + params["b"][0]
    return jnp.sum(weights * (predictions - targets) ** 2) / jnp.sum(weights)


# %% wrong="debug-broadcast" because="Leaves out the bias, which had no rank that fits."
def strict_loss(params, xs, targets, weights):
    scaled = (xs - params["mean"][None]) / params["std"][None]
    predictions = (scaled @ params["w"])[:, 0]
    return jnp.sum(weights * (predictions - targets) ** 2) / jnp.sum(weights)


# %% right="debug-broadcast"
def strict_loss(params, xs, targets, weights):
    def error_of(x, target):
        scaled = (x - params["mean"]) / params["std"]
        return (scaled @ params["w"] + params["b"])[0] - target

    errors = jax.vmap(error_of)(xs, targets)
    return jnp.average(errors**2, weights=weights)


# %% right="debug-broadcast"
def strict_loss(params, xs, targets, weights):
    mean, std, b = (params[name].reshape(1, -1) for name in ("mean", "std", "b"))
    column = lambda values: values.reshape(-1, 1)
    errors = jnp.matmul((xs - mean) / std, params["w"]) + b - column(targets)
    return jnp.sum(column(weights) * errors * errors) / weights.sum()


# %% [markdown] task="debug-examples" stars=1 minutes=12 skills="13_debugging,05_vmap,06_pytrees"
# ## Which examples fail?
# **Goal.** List all examples of a batch for which a check fails.
#
# **Signature.** `failing_examples(f, examples)`. `f` is a function of one example, and may contain calls of `checkify.check`. `examples` is an array or a container of arrays with a leading axis of size n ≥ 1. Return the indices of the examples that fail, as a sorted list of ints. An example fails if a `checkify.check` fails, or if an operation has a NaN in its result, divides by zero, or uses an index out of bounds.
#
# **Example.** For `f = lambda x: jnp.log(x)` and `[1, -1, 0, -2]` the result is `[1, 3]`. The logarithm of 0 is an infinity, which is not a failure.
#
# **Judged.** The list, for each kind of failure, for none and for all examples, and for arrays and containers. A NaN counts even if a `where` masks it. A branch of `cond` counts only for the examples that run it. **Not judged.** Speed, whether you use a loop, and what `checkify` does not check or support, such as `cholesky` and a `vmap` of `while_loop` in `f`.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of the two orders of `vmap` and `checkify` gives each example an error of its own?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Print `error.get()` for a batch with several failures. Each line begins with the index of an example. Without a failure the result is `None`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `re.findall(r"at mapped index (\d+):", message)` returns the indices as texts. The set of checks that covers all failures is `checkify.all_checks`.
#
# </details>


# %% answer="debug-examples"
def failing_examples(f, examples):
    """The sorted indices (a list of ints) of the examples for which a check of f fails."""
    ### BEGIN SOLUTION
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.all_checks))(examples)
    message = error.get() or ""
    return [int(index) for index in re.findall(r"at mapped index (\d+):", message)]
    ### END SOLUTION


# %% check="debug-examples" name="example" points=1
"""The example: two of four logarithms are NaN."""
x = jnp.array([1.0, -1.0, 0.0, -2.0])
compare(ask(lambda x: failing_examples(lambda x: jnp.log(x), x), x), [1, 3], label="the list")

# %% hidden="debug-examples" name="failures" points=3
"""Each kind of failure, for examples that are containers."""


def probe_failures(data):
    table = jnp.array([0.5, 1.0, 2.0, 4.0])

    def checked_one(example):
        checkify.check(example["x"] < 100, "x is too large: {}", example["x"])
        root = jnp.where(example["x"] > 0, jnp.sqrt(example["x"]), 0.0)  # a NaN that is masked
        return {"value": table[example["index"]] * root, "share": 1 / example["count"]}

    return failing_examples(checked_one, data)


rng = inputs.rng()
n = int(rng.integers(12, 20))
good = {
    "x": rng.uniform(1, 9, size=n).astype(np.float32),
    "index": rng.integers(4, size=n).astype(np.int32),
    "count": rng.integers(1, 5, size=n).astype(np.float32),
}
# The three keys of the container are not the number of examples: no failure is among the first three.
at = np.sort(3 + rng.permutation(n - 3)[:8]).reshape(4, 2)[:, rng.permutation(2)][rng.permutation(4)]
changes = {
    "when a masked NaN appears in some examples": ("x", -4),
    "when a check fails for some examples": ("x", 200),
    "when an index is out of bounds in some examples": ("index", 6),
    "when some examples divide by zero": ("count", 0),
}
mixed = {name: value.copy() for name, value in good.items()}
for places, (when, (name, value)) in zip(at, changes.items(), strict=True):
    changed = {**good, name: good[name].copy()}
    changed[name][places] = value
    mixed[name][places] = value
    with case(when):
        wanted = sorted(int(i) for i in places)
        compare(ask(probe_failures, jax.tree.map(jnp.asarray, changed)), wanted, label="the list")
for when, examples, wanted in (
    ("when all kinds of failures occur", mixed, sorted(int(i) for i in at.flat)),
    ("when no example fails", good, []),
    ("when every example fails", {**good, "count": np.zeros(n, np.float32)}, list(range(n))),
    ("with a single example", {name: value[:1] for name, value in good.items()}, []),
):
    with case(when):
        compare(ask(probe_failures, jax.tree.map(jnp.asarray, examples)), wanted, label="the list")


def probe_branches(x):
    return failing_examples(lambda x: jax.lax.cond(x > 0, lambda x: jnp.log(x - 3), lambda x: x, x), x)


x = rng.uniform(4, 9, size=n).astype(np.float32)
x[at[0]], x[at[1]] = 2, -2  # the logarithm of -1, and the branch without a logarithm
with case("when only the branch that does not run would fail"):
    wanted = sorted(int(i) for i in at[0])
    compare(ask(probe_branches, jnp.asarray(x)), wanted, label="the list")

# %% [markdown] why="debug-examples"
# `vmap` of `checkify` returns one error value with an entry for each example, and all of them are computed in one call. `checkify` of `vmap` sees a single operation on the whole batch and can only tell that it failed. **Next:** How would you use the list to remove the bad examples from a batch without a new shape?


# %% wrong="debug-examples" because="Applies `checkify` to the mapped function, so there is one error for the batch, without indices."
def failing_examples(f, examples):
    error, _ = checkify.checkify(jax.vmap(f), errors=checkify.all_checks)(examples)
    message = error.get() or ""
    return [int(index) for index in re.findall(r"at mapped index (\d+):", message)]


# %% wrong="debug-examples" because="Keeps the default set of checks, so only checks of the code itself count."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f))(examples)
    message = error.get() or ""
    return [int(index) for index in re.findall(r"at mapped index (\d+):", message)]


# %% wrong="debug-examples" because="Looks for NaN in the results, which misses masked NaN, indices and failed checks."
def failing_examples(f, examples):
    _, results = jax.vmap(checkify.checkify(f))(examples)
    bad = sum(jnp.isnan(leaf).astype(int) for leaf in jax.tree.leaves(results))
    return [int(index) for index in jnp.flatnonzero(bad)]


# %% wrong="debug-examples" because="Returns only the first failing example."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.all_checks))(examples)
    found = re.search(r"at mapped index (\d+):", error.get() or "")
    return [int(found[1])] if found else []


# %% wrong="debug-examples" because="Does not expect `None`, which `error.get()` returns if no check failed."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.all_checks))(examples)
    return [int(index) for index in re.findall(r"at mapped index (\d+):", error.get())]


# %% wrong="debug-examples" because="Collects every number in the message, including those of shapes and of the checks' values."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.all_checks))(examples)
    return sorted({int(number) for number in re.findall(r"\d+", error.get() or "")})


# %% wrong="debug-examples" because="Leaves out `user_checks`, so failures of the checks in the code itself are not found."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.automatic_checks))(examples)
    message = error.get() or ""
    return [int(index) for index in re.findall(r"at mapped index (\d+):", message)]


# %% wrong="debug-examples" because="Returns texts instead of ints."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.all_checks))(examples)
    return re.findall(r"at mapped index (\d+):", error.get() or "")


# %% wrong="debug-examples" because="Uses `vmap` inside `checkify`, which computes both branches of a `cond`."
def failing_examples(f, examples):
    checked = jax.jit(checkify.checkify(jax.vmap(f), errors=checkify.all_checks))
    failing = []
    for i in range(len(jax.tree.leaves(examples)[0])):
        error, _ = checked(jax.tree.map(lambda array: array[i : i + 1], examples))
        if error.get() is not None:
            failing.append(i)
    return failing


# %% wrong="debug-examples" because="Uses `len` of the container, which is the number of its keys, as the number of examples."
def failing_examples(f, examples):
    checked = jax.jit(checkify.checkify(f, errors=checkify.all_checks))
    failing = []
    for i in range(len(examples)):
        error, _ = checked(jax.tree.map(lambda array: array[i], examples))
        if error.get() is not None:
            failing.append(i)
    return failing


# %% wrong="debug-examples" because="Leaves out the checks for NaN, which `all_checks` contains."
def failing_examples(f, examples):
    errors = checkify.user_checks | checkify.div_checks | checkify.index_checks
    error, _ = jax.vmap(checkify.checkify(f, errors=errors))(examples)
    return [int(index) for index in re.findall(r"at mapped index (\d+):", error.get() or "")]


# %% wrong="debug-examples" because="Sorts the indices as texts, so 10 comes before 2."
def failing_examples(f, examples):
    error, _ = jax.vmap(checkify.checkify(f, errors=checkify.all_checks))(examples)
    return [int(i) for i in sorted(re.findall(r"at mapped index (\d+):", error.get() or ""))]


# %% wrong="debug-examples" because="Uses `len` of the container, which is the number of its keys, as the number of examples."
def failing_examples(f, examples):
    checked = jax.jit(checkify.checkify(f, errors=checkify.all_checks))
    return [i for i in range(len(examples)) if checked(examples[i])[0].get() is not None]


# %% right="debug-examples"
def failing_examples(f, examples):
    checked = jax.jit(checkify.checkify(f, errors=checkify.all_checks))
    failing = []
    for i in range(len(jax.tree.leaves(examples)[0])):
        error, _ = checked(jax.tree.map(lambda array: array[i], examples))
        if error.get() is not None:
            failing.append(i)
    return failing


# %% right="debug-examples"
def failing_examples(f, examples):
    error, _ = jax.jit(jax.vmap(checkify.checkify(f, errors=checkify.automatic_checks | checkify.user_checks)))(
        examples
    )
    lines = (error.get() or "").splitlines()
    return [int(line.split(":")[0].split()[-1]) for line in lines if line.startswith("at mapped index")]


# %% [markdown] task="debug-find" stars=2 minutes=18 skills="13_debugging,04_grad,08_control_flow"
# ## Find the NaN
# **Goal.** Write a function that names the operation of a function where a NaN first appears.
#
# **Signature.** `find_nan(f, *args)`. `f(*args)` returns an array or a container of arrays. The arguments are finite. The result is the name of the first operation of `f` whose result contains a NaN, as JAX names it, such as `"log"`, or `None` if there is no such operation.
#
# **Example.** `find_nan(lambda x: jnp.log(x) - jnp.sqrt(x), jnp.array([1.0, -1.0]))` is `"log"`.
#
# **Judged.** The name, for NaN in the result, for NaN that a `where` masks later, inside jitted functions and loops, and in gradients (`f` may be `jax.grad(g)`). An infinity or a division by zero does not count unless it gives a NaN. **Not judged.** Speed, the names of operations after the first, and operations for which `checkify` has no NaN check, such as `scatter-add`, `cholesky`, and an index out of bounds that gives a NaN (`jnp.take`).
#
# <details><summary>Hint 1 · a question</summary>
#
# Which tools of the lesson name an operation? Which of them also reports a NaN that is masked later in a compiled function?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `checkify.checkify(f, errors=...)` returns an error value. With the right set of checks, its message ends with the name of the operation. Print a message first.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `errors=checkify.nan_checks`. `error.get()` is `None`, or contains `primitive: log`. `re.search(r"primitive: (\w+)", message)[1]` is the name.
#
# </details>


# %% answer="debug-find"
def find_nan(f, *args):
    """The name of the first operation in f(*args) whose result contains a NaN, or None."""
    ### BEGIN SOLUTION
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    message = error.get()
    return None if message is None else re.search(r"primitive: (\w+)", message)[1]
    ### END SOLUTION


# %% check="debug-find" name="example" points=1
"""The example: the logarithm comes first."""
x = np.array([1, -1], np.float32)
compare(ask(lambda x: find_nan(lambda x: jnp.log(x) - jnp.sqrt(x), jnp.asarray(x)), x), "log", label="the name")
compare(ask(lambda x: find_nan(lambda x: jnp.exp(x), jnp.asarray(x)), x), None, label="without a NaN, the result")

# %% hidden="debug-find" name="names" points=2
"""The first operation, for several functions and in any order."""


def probe_chain(order, x):
    makers = {
        "log": jnp.log,
        "sqrt": jnp.sqrt,
        "div": lambda x: (x * 0) / (x * 0),
        "sub": lambda x: jnp.exp(-400 * x) - jnp.exp(-300 * x),
    }

    def f(x):
        total = 0.0
        for name in order:
            total = total + makers[name](x).sum()
        return {"total": total, "x": x}

    return find_nan(f, jnp.asarray(x))


rng = inputs.rng()
names = [str(name) for name in rng.permutation(["log", "sqrt", "div", "sub"])]
for i in range(4):  # each operation is the first one once
    order = names[i:] + names[:i]
    x = -rng.uniform(1, 2, size=int(rng.integers(2, 6))).astype(np.float32)
    found = ask(probe_chain, order, x)
    require(found is not None, "A function with four NaN operations is reported to have none.")
    require(found in order, "The result is not the name of an operation, such as `log`.")
    require(found == order[0], "The result names an operation with a NaN, but not the first one.")

# %% hidden="debug-find" name="arguments" points=1
"""Functions of several arguments, which may be containers."""


def probe_arguments(x, y):
    def f(params, x, y):
        return {"first": params["scale"] * x, "second": jnp.sqrt(y - params["shift"]), "third": jnp.log(x)}

    params = {"scale": jnp.float32(2), "shift": jnp.float32(0)}
    return find_nan(f, params, x, y)


rng = inputs.rng()
positive = rng.uniform(1, 2, size=(3, 2)).astype(np.float32)
for x, y, name in ((positive, -positive, "sqrt"), (-positive, positive, "log"), (positive, positive, None)):
    compare(ask(probe_arguments, jnp.asarray(x), jnp.asarray(y)), name, label="the name")

# %% hidden="debug-find" name="cases" points=3
"""Masked NaN, infinities, loops, branches, jitted functions and gradients."""


def probe_case(which, x):
    def masked(x):
        return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()

    def loop(x):
        return jax.lax.scan(lambda c, _: (jnp.log(c), None), x, length=4)[0]

    functions = {
        "when a `where` masks the NaN later": masked,
        "inside a jitted function": lambda x: {"kept": x, "masked": jnp.nan_to_num(jax.jit(jnp.log)(x))},
        "inside a loop": lambda x: loop(jnp.abs(x)),
        "in a gradient": jax.grad(lambda x: jnp.where(x > 1, jnp.log(x * 0), 0.0).sum()),
        "in a branch that runs": lambda x: jax.lax.cond(x.sum() < 0, jnp.sqrt, jnp.log, x),
        "in a branch that does not run": lambda x: jax.lax.cond(x.sum() < 0, jnp.exp, jnp.log, x),
        "for a division of 1 by 0": lambda x: 1 / (x * 0),
        "for an infinity without a NaN": lambda x: jnp.log(x * 0) * 2,
        "for 0 times infinity": lambda x: (x * 0) * jnp.exp(-x * 400),
        "for an index out of bounds": lambda x: x[x.astype(int) + 9] * 2,
        "when the name contains a digit": lambda x: jnp.log1p(x - 1),
        "when the name of a sum contains an underscore": lambda x: (jnp.exp(-x * 400) * jnp.array([1.0, -1, 1])).sum(),
        "when the name of a product contains an underscore": lambda x: jnp.dot(jnp.exp(-x * 400), x * 0),
        "without arrays of floats": lambda x: x.astype(int) // 2,
    }
    return find_nan(functions[which], jnp.asarray(x))


wanted = {
    "when a `where` masks the NaN later": "sqrt",
    "inside a jitted function": "log",
    "inside a loop": "log",
    "for an infinity without a NaN": None,
    "in a gradient": "div",
    "in a branch that runs": "sqrt",
    "in a branch that does not run": None,
    "for a division of 1 by 0": None,
    "for 0 times infinity": "mul",
    "for an index out of bounds": None,
    "when the name of a sum contains an underscore": "reduce_sum",
    "when the name of a product contains an underscore": "dot_general",
    "when the name contains a digit": "log1p",
    "without arrays of floats": None,
}
x = -inputs.rng().uniform(1, 2, size=3).astype(np.float32)
for which, name in wanted.items():
    with case(which):
        found = ask(probe_case, which, x)
        require(name is None or found is not None, "A NaN appears, but the result is None.")
        require(name is not None or found is None, "There is no NaN, but the result is not None.")
        require(found == name, "The result is not the name of the first operation with a NaN.")

# %% [markdown] why="debug-find"
# `checkify` adds a test to each operation of the program and returns the first that failed, so masked values and loops are covered without leaving the compiled program. `debug_nans` alone tests only the results of a compiled function or loop, so it misses a NaN that is masked inside. **Next:** How would you find the *example* of a batch that produces the NaN?


# %% wrong="debug-find" because="Also asks for division checks, so a division by zero is reported without the name of an operation."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.float_checks))(*args)
    message = error.get()
    return None if message is None else message.split(": ")[-1].rstrip(".")


# %% wrong="debug-find" because="Also asks for division checks, so a division by zero is reported without the name of an operation."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.float_checks))(*args)
    message = error.get()
    return None if message is None else re.search(r"primitive: (\w+)", message)[1]


# %% wrong="debug-find" because="Runs `f` under `debug_nans` alone, which does not look into loops and compiled functions."
def find_nan(f, *args):
    with jax.debug_nans(True):
        try:
            jax.block_until_ready(f(*args))
        except FloatingPointError as problem:
            return str(problem).split()[-1]


# %% wrong="debug-find" because="Reads the letters of the name only, but names may contain digits and underscores."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    message = error.get()
    return None if message is None else re.search(r"primitive: ([a-z]+)", message)[1]


# %% wrong="debug-find" because="Looks for a few known names in the message, but any operation may be the first."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    message = (error.get() or "").split("primitive")[-1]
    known = [name for name in ("log", "sqrt", "div", "mul", "sub", "add", "exp", "pow") if name in message]
    return known[0] if known else None


# %% wrong="debug-find" because="Keeps the default set of checks, which contains only the checks that the code itself makes."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f))(*args)
    message = error.get()
    return None if message is None else re.search(r"primitive: (\w+)", message)[1]


# %% wrong="debug-find" because="Looks at the result first, but a `where` may have masked the NaN."
def find_nan(f, *args):
    error, result = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    if not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(result)):
        return None
    return re.search(r"primitive: (\w+)", error.get())[1]


# %% wrong="debug-find" because="Compiles `f` under `debug_nans`, which then checks only its results."
def find_nan(f, *args):
    with jax.debug_nans(True):
        try:
            jax.block_until_ready(jax.jit(lambda *args: f(*args))(*args))
        except FloatingPointError as problem:
            return str(problem).split()[-1]


# %% wrong="debug-find" because="Returns the whole message instead of the name."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    return error.get()


# %% wrong="debug-find" because="Leaves the full stop of the message at the end of the name."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    message = error.get()
    return None if message is None else message.split("primitive: ")[1]


# %% wrong="debug-find" because="Visits only the outermost operations, so a NaN inside a jitted function or a loop has the name of the call."
def find_nan(f, *args):
    closed = jax.make_jaxpr(f)(*args)
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(closed.jaxpr.invars, jax.tree.leaves(args), strict=True))
    for equation in closed.eqns:
        read = [variable.val if hasattr(variable, "val") else values[variable] for variable in equation.invars]
        results = equation.primitive.bind(*read, **equation.params)
        results = results if equation.primitive.multiple_results else [results]
        values |= dict(zip(equation.outvars, results, strict=True))
        if any(jnp.isnan(result).any() for result in results):
            return equation.primitive.name


# %% wrong="debug-find" because="Enables `debug_infs` too, which reports infinities that are not NaN."
def find_nan(f, *args):
    with jax.debug_nans(True), jax.debug_infs(True), jax.disable_jit():
        try:
            jax.block_until_ready(f(*args))
        except FloatingPointError as problem:
            return str(problem).split()[-1]


# %% wrong="debug-find" because="Does not expect `None`, which `error.get()` returns if no check failed."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    return re.search(r"primitive: (\w+)", error.get())[1]


# %% wrong="debug-find" because="Returns an empty text instead of `None` if there is no NaN."
def find_nan(f, *args):
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.nan_checks))(*args)
    message = error.get() or ""
    found = re.search(r"primitive: (\w+)", message)
    return found[1] if found else ""


# %% wrong="debug-find" because="Catches `jax.errors.JaxRuntimeError`, but `error.throw()` raises `checkify.JaxRuntimeError`, which is another class."
def find_nan(f, *args):
    error, _ = checkify.checkify(f, errors=checkify.nan_checks)(*args)
    try:
        error.throw()
    except jax.errors.JaxRuntimeError as problem:
        return re.search(r"primitive: (\w+)", str(problem))[1]
    return None


# %% wrong="debug-find" because="Looks at the result first, but a `where` may have masked the NaN."
def find_nan(f, *args):
    result = f(*args)
    if not any(bool(jnp.isnan(leaf).any()) for leaf in jax.tree.leaves(result)):
        return None
    with jax.debug_nans(True), jax.disable_jit():
        try:
            f(*args)
        except FloatingPointError as problem:
            return str(problem).split()[-1]


# %% right="debug-find"
def find_nan(f, *args):
    with jax.debug_nans(True), jax.disable_jit():
        try:
            jax.block_until_ready(f(*args))
        except FloatingPointError as problem:
            return str(problem).split()[-1]
    return None


# %% right="debug-find"
def find_nan(f, *args):
    error, _ = checkify.checkify(f, errors=checkify.nan_checks)(*args)
    try:
        error.throw()
    except checkify.JaxRuntimeError as problem:
        return str(problem).strip().rstrip(".").split()[-1]


# %% [markdown] task="debug-layer" stars=2 minutes=15 skills="13_debugging,08_control_flow,06_pytrees"
# ## The first bad layer
# **Goal.** A deep network returns a NaN. Find the first layer whose result is not finite, in one compiled program.
#
# **Signature.** `first_bad_layer(layer, params, x)`. `layer(p, x)` takes the parameters of one layer and an array, and returns an array of the same shape and dtype. `params` is a container of arrays with a leading axis of size n, and layer i uses entry i of each. `x` is a finite float array of any shape. The first layer takes `x`, and each other layer takes the result of the layer before it. Return the index of the first layer with a NaN or an infinity in its result, or -1 if there is none, as int32 `()`.
#
# **Example.** With `clipped` from the setup, d = 1, four layers with the gains 1, 1, inf and 1, biases of zero and `x = [2]`, the index is 2. The last layer clips the infinity, so its result is finite again.
#
# **Judged.** The index, for NaN and infinities in one entry or in all, for layers after which the values are finite again, and for several shapes, dtypes and containers. The program does not grow with n. **Not judged.** Whether layers after the first bad one are computed.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.lax.scan` runs the layers one after the other. What can its body return for each layer, in addition to the carry?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Let the body return `jnp.all(jnp.isfinite(x))` of the layer's result. The scan stacks these flags to an array of shape `(n,)`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jnp.argmin(fine)` is the position of the first False. If there is no False, it is 0, so choose -1 with `jnp.where(jnp.all(fine), ...)`.
#
# </details>


# %% answer="debug-layer"
def first_bad_layer(layer, params, x):
    """The index, int32 (), of the first layer whose result has a NaN or an infinity; -1 if there is none."""

    ### BEGIN SOLUTION
    def body(x, p):
        x = layer(p, x)
        return x, jnp.all(jnp.isfinite(x))

    _, fine = jax.lax.scan(body, x, params)
    return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))
    ### END SOLUTION


# %% check="debug-layer" name="example" points=1
"""The example: layer 2 of four is the first bad one."""
params = {"gain": np.array([[1], [1], [np.inf], [1]], np.float32), "bias": np.zeros((4, 1), np.float32)}
x = np.array([2], np.float32)
made = program(lambda params, x: first_bad_layer(clipped, params, x), params, x)
compare(made.run(params, x), np.int32(2), label="the index")

# %% hidden="debug-layer" name="values" points=3
"""Right for NaN and infinities at any layer, also if later layers are finite again."""


def probe_gated(params, x):
    def gated(p, x):  # a NaN in x becomes 0, so the next layer is finite again
        scale, shift = p
        return scale * jnp.where(x > 0, jnp.minimum(x, 5), -1) + shift

    return first_bad_layer(gated, params, x)


rng = inputs.rng()
n = int(rng.integers(6, 10))
early, late = (int(i) for i in np.sort(rng.permutation(np.arange(1, n - 1))[:2]))
where = int(rng.integers(3))
shape = (n, 2, 3)
scale, shift = rng.uniform(0.5, 1.5, size=(2, *shape)).astype(np.float32)
x = rng.uniform(0.5, 2, size=(2, 3)).astype(np.float32)
made = program(probe_gated, (scale, shift), x)


def index_of(*changes):
    changed = shift.copy()
    for layer, value, everywhere in changes:
        changed[(layer,) if everywhere else (layer, 1, where)] = value
    return made.run((scale, changed), x)


cases = {
    "when one entry of one layer is NaN": (early, [(early, np.nan, False)]),
    "when all entries of one layer are NaN": (late, [(late, np.nan, True)]),
    "when one entry of one layer is infinite": (late, [(late, -np.inf, False)]),
    "when two layers are bad": (early, [(early, np.inf, False), (late, np.nan, False)]),
    "when the first layer is bad": (0, [(0, np.nan, False)]),
    "when only the last layer is bad": (n - 1, [(n - 1, np.inf, False)]),
    "when no layer is bad": (-1, []),
    "when values are large but finite": (-1, [(early, 3e38, True)]),
}
for when, (wanted, changes) in cases.items():
    with case(when):
        compare(index_of(*changes), np.int32(wanted), label="the index")
with case("when finite parameters overflow"):
    grown = scale.copy()
    grown[:early] = 1  # so what layer `early` takes is at least 4
    grown[early, 0, where] = 3e38
    compare(made.run((grown, shift), x + np.float32(4)), np.int32(early), label="the index")
gains, x = np.ones((n, 3), np.float32), rng.uniform(1, 2, size=3).astype(np.float32)
made = program(lambda params, x: first_bad_layer(lambda p, x: p * x, params, x), gains, x)
gains[[early, late], where] = 1e20
with case("when only the chain of the layers overflows"):
    compare(made.run(gains, x), np.int32(late), label="the index")
gains[early, where], gains[late, where] = 1e-20, 3.3e38
with case("when a layer would overflow for `x`, but not for the result of the layer before"):
    compare(made.run(gains, x * 2), np.int32(-1), label="the index")
params = {"gain": np.ones((n, 3), np.float16), "bias": np.zeros((n, 3), np.float16)}
params["gain"][late, where] = 60000
with case("when only float16 overflows"):
    made = program(lambda params, x: first_bad_layer(clipped, params, x), params, x.astype(np.float16))
    compare(made.run(params, (x + 1).astype(np.float16)), np.int32(late), label="the index")

# %% hidden="debug-layer" name="program" points=2
"""The program for many layers has as many operations as the program for few, and is right."""


def probe_clipped(params, x):
    return first_bad_layer(clipped, params, x)


rng = inputs.rng()
made, wanted = {}, {}
for n in (4, 12):
    params = {"gain": rng.normal(size=(n, 5)).astype(np.float32), "bias": rng.normal(size=(n, 5)).astype(np.float32)}
    bad = int(rng.integers(1, n - 1))
    params["bias"][bad, int(rng.integers(5))] = np.inf
    x = rng.normal(size=5).astype(np.float32)
    made[n] = program(probe_clipped, params, x)
    with case(f"with {n} layers"):
        compare(made[n].run(params, x), np.int32(bad), label="the index")
require(
    made[12].operations < made[4].operations + 8,  # an operation for each layer would be eight more
    f"With 4 layers the program has {made[4].operations} operations, with 12 it has {made[12].operations}: a Python loop "
    "was unrolled. Use a loop of `jax.lax`.",
)

# %% equivalent="debug-layer" because="The flag is 0 or 1 and both choices are integers, so the product selects one of them."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))

# %% [markdown] why="debug-layer"
# The scan returns one flag for each layer, so a single run locates the layer, and the program has the size of one layer. Only the flags are stored, not the activations. **Next:** How would you find the first bad layer of the *gradient*, which runs from the last layer to the first?


# %% wrong="debug-layer" because="Returns 0 if all layers are finite, because `argmin` and `argmax` of equal flags are 0."
def first_bad_layer(layer, params, x):
    def body(x, p):
        x = layer(p, x)
        return x, jnp.all(jnp.isfinite(x))

    _, fine = jax.lax.scan(body, x, params)
    return jnp.argmin(fine)


# %% wrong="debug-layer" because="Tests for NaN only, so infinities are not found."
def first_bad_layer(layer, params, x):
    def body(x, p):
        x = layer(p, x)
        return x, jnp.any(jnp.isnan(x))

    _, bad = jax.lax.scan(body, x, params)
    return jnp.where(jnp.any(bad), jnp.argmax(bad), -1)


# %% wrong="debug-layer" because="Counts the finite layers, but layers after the bad one may be finite again."
def first_bad_layer(layer, params, x):
    def body(x, p):
        x = layer(p, x)
        return x, jnp.all(jnp.isfinite(x))

    _, fine = jax.lax.scan(body, x, params)
    return jnp.where(jnp.all(fine), -1, jnp.sum(fine))


# %% wrong="debug-layer" because="Calls a layer bad only if all its entries are bad."
def first_bad_layer(layer, params, x):
    def body(x, p):
        x = layer(p, x)
        return x, jnp.any(jnp.isfinite(x))

    _, fine = jax.lax.scan(body, x, params)
    return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))


# %% wrong="debug-layer" because="Tests the input of each layer, so the index is one too large and the last layer is not tested."
def first_bad_layer(layer, params, x):
    def body(x, p):
        return layer(p, x), jnp.all(jnp.isfinite(x))

    _, fine = jax.lax.scan(body, x, params)
    return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))


# %% wrong="debug-layer" because="Keeps the last bad layer instead of the first."
def first_bad_layer(layer, params, x):
    def body(carry, p):
        x, index, last = carry
        x = layer(p, x)
        return (x, index + 1, jnp.where(jnp.all(jnp.isfinite(x)), last, index)), None

    (_, _, last), _ = jax.lax.scan(body, (x, 0, -1), params)
    return last


# %% wrong="debug-layer" because="Loops over the layers in Python, so the program grows with the number of layers."
def first_bad_layer(layer, params, x):
    first = jnp.int32(-1)
    for i in range(len(jax.tree.leaves(params)[0])):
        x = layer(jax.tree.map(lambda leaf: leaf[i], params), x)
        first = jnp.where((first < 0) & ~jnp.all(jnp.isfinite(x)), i, first)
    return first


# %% wrong="debug-layer" because="Decides with a Python `if` on a traced value."
def first_bad_layer(layer, params, x):
    for i in range(len(jax.tree.leaves(params)[0])):
        x = layer(jax.tree.map(lambda leaf: leaf[i], params), x)
        if not jnp.all(jnp.isfinite(x)):
            return jnp.int32(i)
    return jnp.int32(-1)


# %% wrong="debug-layer" because="Looks for bad parameters, but finite parameters can give an infinite result."
def first_bad_layer(layer, params, x):
    fine = [jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(params)]
    fine = jnp.all(jnp.stack(fine), axis=0)
    return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))


# %% wrong="debug-layer" because="Gives `x` to every layer, instead of the result of the layer before."
def first_bad_layer(layer, params, x):
    results = jax.vmap(layer, in_axes=(0, None))(params, x)
    fine = jnp.isfinite(results).reshape(len(results), -1).all(axis=1)
    return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))


# %% wrong="debug-layer" because="Tests the sum of a result, which overflows for large but finite values."
def first_bad_layer(layer, params, x):
    def body(x, p):
        x = layer(p, x)
        return x, jnp.isfinite(x.sum())

    _, fine = jax.lax.scan(body, x, params)
    return jnp.where(jnp.all(fine), -1, jnp.argmin(fine))


# %% wrong="debug-layer" because="Converts `x` to float32, so a float16 layer gets and returns another dtype and does not overflow."
def first_bad_layer(layer, params, x):
    def body(x, p):
        x = layer(p, x)
        return x, ~jnp.all(jnp.isfinite(x))

    _, bad = jax.lax.scan(body, x.astype(jnp.float32), params)
    return jnp.where(jnp.any(bad), jnp.argmax(bad), -1)


# %% right="debug-layer"
def first_bad_layer(layer, params, x):
    n = len(jax.tree.leaves(params)[0])

    def going(carry):
        i, x = carry
        return (i < n) & jnp.all(jnp.isfinite(x))

    def run(carry):
        i, x = carry
        return i + 1, layer(jax.tree.map(lambda leaf: leaf[i], params), x)

    i, x = jax.lax.while_loop(going, run, (jnp.int32(0), x))
    return jnp.where(jnp.all(jnp.isfinite(x)), -1, i - 1)


# %% right="debug-layer"
def first_bad_layer(layer, params, x):
    def body(carry, p):
        x, index, first = carry
        x = layer(p, x)
        bad = ~jnp.isfinite(jnp.sum(jnp.abs(jnp.where(jnp.isfinite(x), 0, jnp.nan))))
        return (x, index + 1, jnp.where((first == -1) & bad, index, first)), None

    return jax.lax.scan(body, (x, jnp.int32(0), jnp.int32(-1)), params)[0][2]


# %% right="debug-layer"
def first_bad_layer(layer, params, x):
    _, outputs = jax.lax.scan(lambda x, p: (layer(p, x),) * 2, x, params)
    bad = ~jnp.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
    return jnp.append(jnp.flatnonzero(bad, size=len(bad), fill_value=-1), -1)[0].astype(jnp.int32)


# %% [markdown] task="debug-guard" stars=2 minutes=20 skills="13_debugging,03_jit,06_pytrees,debug-find"
# ## A guard around a step
# **Goal.** Wrap a training step so that a failed check neither stops the program nor changes the parameters.
#
# **Signature.** `guarded_step(step)`. `step(params, batch)` returns new parameters, of the structure, shapes and dtypes of `params`. Both arguments are containers of arrays. The step may contain calls of `checkify.check`. `guarded_step` returns a function `guarded(params, batch)`, which returns a pair `(params, message)`. If everything is fine, it consists of the new parameters and `None`. Otherwise it consists of the parameters that `guarded` received and a message, a nonempty string. Four events count as failures: a failed `checkify.check`, a NaN in the result of any operation, a division by zero, and an index out of bounds.
#
# **Example.** With `step = lambda params, batch: params - jnp.log(batch)`, `guarded(jnp.float32(1), jnp.float32(-1))` returns the parameter 1 and a message, and `guarded(jnp.float32(1), jnp.float32(1))` returns 1 and `None`.
#
# **Judged.** Parameters and messages, for each kind of failure and for several structures, also in a good step after a bad one. A NaN counts even if a `where` masks it, and an infinity is not a failure. The message of a failed `checkify.check` contains its text. The step is compiled, so calls of `guarded` with the same shapes trace `step` only once, and a batch of another shape works too. **Not judged.** The text of other messages, and what `checkify` does not check or support, such as `cholesky`, a NaN constant in `jnp.where` and a `vmap` of `while_loop`.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does `checkify.checkify(step, errors=...)` return when you call it? Which set of checks covers all four events?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Under `jit`, the error is a result like the others. Read it after the call, in Python. Where must `jax.jit` be called, so that its cache is kept between the calls of `guarded`?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Before you define `guarded`, transform `step` with `checkify.checkify` and all checks, and compile the result with `jax.jit`. In `guarded`, call the compiled function and choose by `error.get()`.
#
# </details>


# %% answer="debug-guard"
def guarded_step(step):
    """guarded(params, batch) -> (params, message): the new parameters and None, or the old ones and a message."""
    ### BEGIN SOLUTION
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded
    ### END SOLUTION


# %% check="debug-guard" name="example" points=1
"""The example: a logarithm of -1 is reported, and a logarithm of 1 is not."""


def probe_log(params, batch):
    return guarded_step(lambda params, batch: params - jnp.log(batch))(params, batch)


one = np.float32(1)
params, message = ask(probe_log, jnp.asarray(one), jnp.asarray(-one))
compare(params, one, label="the parameter after a logarithm of -1")
require(isinstance(message, str) and message, "A logarithm of -1 has no message.")
compare(ask(probe_log, jnp.asarray(one), jnp.asarray(one)), (one, None), label="(params, message) for a batch of 1")

# %% hidden="debug-guard" name="failures" points=3
"""Each kind of failure is reported and leaves the parameters as they were."""


def probe_steps(params, batches):
    def step(params, batch):
        checkify.check(batch["rate"] > 0, "the rate is not positive")
        row = params["table"][batch["index"]]
        share = batch["x"] / batch["count"]
        change = batch["rate"] * (jnp.sqrt(share).sum() + row)
        return {"table": params["table"].at[batch["index"]].add(-change), "bias": params["bias"] + change.sum()}

    guarded = guarded_step(step)
    return [guarded(params, batch) for batch in batches]


def probe_masked(params, batches):
    guarded = guarded_step(lambda params, batch: params + jnp.where(batch > 0, jnp.log(batch), 0.0))
    return [guarded(params, batch) for batch in batches]


masked, infinite = ask(probe_masked, jnp.float32(1), [jnp.float32(-1), jnp.float32(np.inf)])
with case("when a `where` masks the NaN"):
    require(isinstance(masked[1], str) and masked[1] != "", "The failure is not reported by a message.")
    compare(masked[0], np.float32(1), label="the parameters")
with case("when a new parameter is infinite, but none of the four events occurs"):
    require(infinite[1] is None, "There is a message, although nothing failed.")
    compare(infinite[0], np.float32(np.inf), label="the parameters")

rng = inputs.rng()
params = {"table": rng.normal(size=(5, 3)).astype(np.float32), "bias": np.float32(rng.normal())}
good = {
    "rate": np.float32(0.5),
    "index": np.int32(rng.integers(5)),
    "x": rng.uniform(1, 2, size=4).astype(np.float32),
    "count": np.float32(4),
}
negative = good["x"].copy()
negative[int(rng.integers(4))] = -1
cases = {
    "in a good step": good,
    "when a check of the step fails": {**good, "rate": np.float32(-0.5)},
    "in a good step after a bad one": good,
    "when a NaN appears": {**good, "x": negative},
    "when a division by zero gives an infinity": {**good, "count": np.float32(0)},
    "when an index is out of bounds": {**good, "index": np.int32(rng.integers(5, 9))},
    "in the last good step": {**good, "rate": np.float32(0.25)},
}
answers = ask(probe_steps, jax.tree.map(jnp.asarray, params), [jax.tree.map(jnp.asarray, b) for b in cases.values()])
for (when, batch), answer in zip(cases.items(), answers, strict=True):
    with case(when):
        require(isinstance(answer, tuple) and len(answer) == 2, "The result is not a pair of parameters and message.")
        got, message = answer
        wanted = {name: value.copy() for name, value in params.items()}
        if "good" in when:
            require(message is None, "There is a message, although nothing failed.")
            row = params["table"][batch["index"]]
            change = batch["rate"] * (np.sqrt(batch["x"] / batch["count"]).sum() + row)
            wanted["table"][batch["index"]] -= change
            wanted["bias"] = np.float32(params["bias"] + change.sum())
        else:
            require(isinstance(message, str) and message != "", "The failure is not reported by a message.")
        if when == "when a check of the step fails":
            require("the rate is not positive" in message, "The message does not contain the text of the check.")
        compare(got, wanted, label="the parameters")


def probe_sizes(params, batches):
    guarded, answers = guarded_step(lambda params, batch: params - jnp.log(batch).sum()), []
    with contextlib.suppress(TypeError):
        answers += (guarded(params, batch) for batch in batches)
    return answers


batches = [rng.uniform(1, 2, size=size).astype(np.float32) for size in (3, 5, 3)]
answers = ask(probe_sizes, jnp.float32(1), [jnp.asarray(batch) for batch in batches])
require(len(answers) == 3, "After a batch of one shape, a batch of another shape raises a TypeError.")
for batch, answer in zip(batches, answers, strict=True):
    with case("when the batches have several shapes"):
        compare(answer, (np.float32(1 - np.log(batch).sum()), None), label="(params, message)")


# %% hidden="debug-guard" name="compiled" points=2 observed=true
"""Calls with the same shapes trace the step once."""


def probe_traces(params, batches):
    step = counted(lambda params, batch: [params[0] * batch, params[1] + jnp.log(batch).sum()])
    guarded, calls, results = guarded_step(step), [], []
    for batch in batches:
        results.append(guarded(params, batch))
        calls.append(step.calls)
    return calls, results


rng = inputs.rng()
params = [rng.normal(size=3).astype(np.float32), np.float32(1)]
batches = [rng.uniform(1, 2, size=3).astype(np.float32) for _ in range(4)]
batches[1][0] = -1
calls, results = ask(probe_traces, jax.tree.map(jnp.asarray, params), [jnp.asarray(batch) for batch in batches])
require(calls[-1] > 0, "The step was never called.")
require(
    calls[-1] == calls[0], f"Four calls of the same shapes ran the step in Python {calls[-1]} times. Compile it once."
)
for i, (batch, (got, message)) in enumerate(zip(batches, results, strict=True), 1):
    fine = batch.min() > 0
    with case(f"in call {i} of 4"):
        require((message is None) == fine, "A message is missing, or there is one although nothing failed.")
        wanted = [params[0] * batch, np.float32(params[1] + np.log(batch).sum())] if fine else params
        compare(got, wanted, label="the parameters")

# %% [markdown] why="debug-guard"
# `checkify` turns failures into a result, so the step is compiled as usual, and Python decides afterwards. Reading the error waits for the step, so it costs the overlap of Python and device. **Next:** How would you read the errors only every hundred steps, without losing one?


# %% wrong="debug-guard" because="Keeps the default set of checks, so only the step's own checks are reported."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Leaves out the checks of indices, so an index out of bounds is not reported."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.float_checks | checkify.user_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Leaves out the step's own checks, which are not among the automatic checks."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.automatic_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Returns the new parameters although a check failed."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        return new, error.get()

    return guarded


# %% wrong="debug-guard" because="Lets the error leave `guarded`, which ends the training. `error.throw()` raises `checkify.JaxRuntimeError`."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        error.throw()
        return new, None

    return guarded


# %% wrong="debug-guard" because="Keeps no compiled function from call to call, so Python runs the step in each call."
def guarded_step(step):
    def guarded(params, batch):
        checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Keeps no compiled function from call to call, so Python runs the step in each call."
def guarded_step(step):
    checked = checkify.checkify(step, errors=checkify.all_checks)

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Looks at the new parameters instead of each operation, so a masked NaN and an index out of bounds are not reported."
def guarded_step(step):
    compiled = jax.jit(checkify.checkify(step))

    def guarded(params, batch):
        error, new = compiled(params, batch)
        fine = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(new))
        message = error.get() or (None if fine else "the new parameters are not finite")
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Keeps the message of a bad step, so every later step counts as bad."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))
    messages = []

    def guarded(params, batch):
        error, new = checked(params, batch)
        if error.get() is not None:
            messages.append(error.get())
        return (params, messages[0]) if messages else (new, None)

    return guarded


# %% wrong="debug-guard" because="Compiles the step for the shapes of the first batch only."
def guarded_step(step):
    compiled = []

    def guarded(params, batch):
        if not compiled:
            checked = checkify.checkify(step, errors=checkify.all_checks)
            compiled.append(jax.jit(checked).lower(params, batch).compile())
        error, new = compiled[0](params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Returns the parameters of the last good step instead of those that it received."
def guarded_step(step):
    checked, last = jax.jit(checkify.checkify(step, errors=checkify.all_checks)), []

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        if message is None:
            last[:] = [new]
        return (last[0] if last else params), message

    return guarded


# %% wrong="debug-guard" because="Leaves out the step's own checks, which are not among the automatic checks."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.nan_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Leaves out one of the four sets of checks, so a division by zero is not reported."
def guarded_step(step):
    checked = jax.jit(
        checkify.checkify(step, errors=checkify.user_checks | checkify.nan_checks | checkify.index_checks)
    )

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Returns a fixed text, so the message of the failed check is lost."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        if error.get() is None:
            return new, None
        return params, "the step failed"

    return guarded


# %% wrong="debug-guard" because="Returns the error value instead of its message."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        if error.get() is None:
            return new, None
        return params, error

    return guarded


# %% wrong="debug-guard" because="Tests the error value itself, which is always true. `error.get()` is `None` if no check failed."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        if error:
            return params, error.get()
        return new, None

    return guarded


# %% wrong="debug-guard" because="Reads the error inside the compiled function, where it is a tracer. Read it after the call."
def guarded_step(step):
    checked = checkify.checkify(step, errors=checkify.all_checks)

    @jax.jit
    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Donates the parameters, but they are returned if the step fails."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks), donate_argnums=0)

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return (new if message is None else params), message

    return guarded


# %% wrong="debug-guard" because="Lets the error leave `guarded`, which ends the training. `error.throw()` raises `checkify.JaxRuntimeError`."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        try:
            error.throw()
        except jax.errors.JaxRuntimeError as problem:
            return params, str(problem)
        return new, None

    return guarded


# %% wrong="debug-guard" because="Compiles the step without `checkify`, so JAX rejects a `checkify.check` in it."
def guarded_step(step):
    compiled = jax.jit(step)

    def guarded(params, batch):
        try:
            with jax.debug_nans(True):
                return compiled(params, batch), None
        except FloatingPointError as problem:
            return params, str(problem)

    return guarded


# %% wrong="debug-guard" because="Looks at the new parameters instead of each operation, so a masked NaN and an index out of bounds are not reported."
def guarded_step(step):
    compiled = jax.jit(step)

    def guarded(params, batch):
        new = compiled(params, batch)
        if all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(new)):
            return new, None
        return params, "not finite"

    return guarded


# %% wrong="debug-guard" because="Returns an empty message instead of `None` if nothing failed."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get() or ""
        return (params if message else new), message

    return guarded


# %% wrong="debug-guard" because="Returns the message first and the parameters second."
def guarded_step(step):
    checked = jax.jit(checkify.checkify(step, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        message = error.get()
        return message, (new if message is None else params)

    return guarded


# %% wrong="debug-guard" because="Looks at the new parameters instead of each operation, so a masked NaN and an index out of bounds are not reported."
def guarded_step(step):
    def with_check(params, batch):
        new = step(params, batch)
        for leaf in jax.tree.leaves(new):
            checkify.check(~jnp.isnan(leaf).any(), "bad parameters")
        return new

    errors = checkify.user_checks | checkify.index_checks | checkify.div_checks
    checked = jax.jit(checkify.checkify(with_check, errors=errors))

    def guarded(params, batch):
        error, new = checked(params, batch)
        return (params, error.get()) if error.get() else (new, None)

    return guarded


# %% wrong="debug-guard" because="Also reports an infinite parameter, but an infinity is not a failure."
def guarded_step(step):
    def with_check(params, batch):
        new = step(params, batch)
        for leaf in jax.tree.leaves(new):
            checkify.check(jnp.isfinite(leaf).all(), "bad parameters")
        return new

    checked = jax.jit(checkify.checkify(with_check, errors=checkify.all_checks))

    def guarded(params, batch):
        error, new = checked(params, batch)
        return (params, error.get()) if error.get() else (new, None)

    return guarded


# %% right="debug-guard"
def guarded_step(step):
    every = checkify.user_checks | checkify.index_checks | checkify.div_checks | checkify.nan_checks
    checked = jax.jit(checkify.checkify(step, errors=every))

    def guarded(params, batch):
        error, new = checked(params, batch)
        try:
            error.throw()
        except checkify.JaxRuntimeError as problem:
            return params, f"step skipped: {problem}"
        return new, None

    return guarded


# %% right="debug-guard"
def guarded_step(step):
    inner = checkify.checkify(step, errors=checkify.all_checks)

    @jax.jit
    def run(params, batch):
        return inner(params, batch)

    def guarded(params, batch):
        error, new = run(params, batch)
        return (params, str(error.get())) if error.get() else (new, None)

    return guarded


# %% [markdown] task="debug-slow-start" stars=2 minutes=15 skills="13_debugging,03_jit,08_control_flow,debug-guard"
# ## A slow start
# *Needs: Deeper: a field guide to slow tracing and compilation.*
#
# **Goal.** This simulation compiles in each call, and the more steps it has, the longer it takes. Read the causes from the log, and write it so that it compiles once for all rates and numbers of steps.
#
# ```python
# def simulation_as_found(step, x, rate, steps):
#     @jax.jit
#     def run(x):
#         for i in range(steps):
#             x = step(x, rate)
#         return x
#
#     return run(x)
# ```
#
# **Signature.** `make_simulation(step)`. `step(x, rate)` takes a float array of any shape and a float, and returns an array of the shape and dtype of `x`. `make_simulation` returns a function `simulate(x, rate, steps)`, which applies `step` to `x` `steps` times and returns the result. `rate` is a Python float, and `steps` is a Python int from 0.
#
# **Example.** With `step = lambda x, rate: rate * x`, `make_simulation(step)(jnp.ones(2), 3.0, 2)` is `[9, 9]`.
#
# **Judged.** Values, also for float16 arrays, for many steps, and if `simulate` is called inside a compiled function. With arrays of one shape and dtype, only the first call of `simulate` traces `step`, and all later calls use the same compiled program, also with other rates and numbers of steps. This program has one loop, and its size does not depend on `steps`. **Not judged.** Seconds, how often the first call traces `step`, and gradients of `simulate`.
#
# <details><summary>Hint 1 · a question</summary>
#
# Call the function twice inside `with jax.explain_cache_misses(True):`. What does the log name as the difference? And how many operations does `jax.make_jaxpr` show for 5 and for 50 steps?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Look for a function object that is new in each call, for a number that is a constant of the program, and for a loop that Python writes out. The values of *arguments* are not part of the cache key.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Compile one function of `x`, `rate` and `steps` in `make_simulation`, outside `simulate`, or let it be `simulate`. `jax.lax.fori_loop(0, steps, body, x)` accepts a traced number of iterations.
#
# </details>


# %% answer="debug-slow-start"
def make_simulation(step):
    """simulate(x, rate, steps): x after `steps` times step(x, rate), by one program for all rates and numbers of steps."""

    ### BEGIN SOLUTION
    @jax.jit
    def simulate(x, rate, steps):
        return jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)

    return simulate
    ### END SOLUTION


# %% check="debug-slow-start" name="example" points=1
"""The example: two steps that multiply by 3."""


def probe_example(x):
    return make_simulation(lambda x, rate: rate * x)(x, 3.0, 2)


compare(ask(probe_example, jnp.ones(2)), np.array([9, 9], np.float32), label="the result")

# %% hidden="debug-slow-start" name="values" points=1
"""Right for other steps, shapes, rates and numbers of steps."""


def probe_values(xs, rates, numbers):
    simulate = make_simulation(lambda x, rate: x + rate * (jnp.roll(x, 1, axis=0) - x))
    return [[simulate(x, rate, steps) for rate, steps in zip(rates, numbers, strict=True)] for x in xs]


rng = inputs.rng()
xs = [rng.normal(size=size).astype(np.float32) for size in ((5,), (3, 2))]
rates, numbers = [float(rate) for rate in rng.uniform(0.1, 0.9, size=4)], [4, 1, 0, int(rng.integers(5, 9))]
answers = ask(probe_values, [jnp.asarray(x) for x in xs], rates, numbers)
for x, results in zip(xs, answers, strict=True):
    for rate, steps, got in zip(rates, numbers, results, strict=True):
        wanted = x.copy()
        for _ in range(steps):
            wanted = wanted + np.float32(rate) * (np.roll(wanted, 1, axis=0) - wanted)
        when = "without a step" if steps == 0 else "with one step" if steps == 1 else "with several steps"
        with case(when):
            compare(got, wanted, label="the result")


def probe_half(x):
    with contextlib.suppress(TypeError):
        return make_simulation(lambda x, rate: rate * x)(x, 0.5, 3)


got, x = ask(probe_half, jnp.asarray(xs[0], jnp.float16)), xs[0].astype(np.float16)
require(got is not None, "A float16 array raises a TypeError. Does the rate change the dtype of the result of `step`?")
compare(got, x / 8, label="the result for a float16 array")

# %% hidden="debug-slow-start" name="program" points=2
"""The program has one loop, its size does not depend on the number of steps, and it is right."""


def probe_program(x, rate, steps):
    return make_simulation(lambda x, rate: jnp.sin(rate * x))(x, rate, steps)


rng = inputs.rng()
x, rate, made = rng.uniform(1, 2, size=4).astype(np.float32), float(rng.uniform(0.5, 0.9)), {}
for steps in (3, 11):
    made[steps] = program(probe_program, x, rate, steps)
    wanted = x
    for _ in range(steps):
        wanted = np.sin(np.float32(rate) * wanted)
    compare(made[steps].run(x, rate, steps), wanted, label=f"the result of {steps} steps")
require(
    made[11].operations == made[3].operations,
    f"The program of 3 steps has {made[3].operations} operations, and that of 11 steps {made[11].operations}: a Python "
    "loop was unrolled. Use a loop of `jax.lax`.",
)
require(made[11].loops == 1, f"The program has {made[11].loops} loops; expected one over the steps.")


def probe_many(x, steps):
    return make_simulation(lambda x, rate: x + rate)(x, 0.5, steps)


x, steps = np.float32(rng.integers(9)), int(rng.integers(40_000, 50_000))
compare(program(probe_many, x, steps).run(x, steps), np.float32(x + steps / 2), label="the result of many steps")

# %% hidden="debug-slow-start" name="compiled" points=2 observed=true
"""Calls with arrays of one shape trace the step in the first call only."""


def probe_traces(xs, calls):
    step = counted(lambda x, rate: x - rate * jnp.tanh(x))
    simulate, results, traces = make_simulation(step), [], []
    for x, (rate, steps) in zip(xs, calls, strict=True):
        results.append(simulate(x, rate, steps))
        traces.append(step.calls)
    return results, traces


rng = inputs.rng()
first, second = rng.normal(size=(2, 3)).astype(np.float32)
one, other = (float(rate) for rate in (rng.uniform(0.1, 0.4), rng.uniform(0.6, 0.9)))
calls = {
    "first": (first, one, 4),
    "the same arguments": (first, one, 4),
    "another array": (second, one, 4),
    "another number of steps": (first, one, 6),
    "another rate": (first, other, 4),
}
found, traces = ask(
    probe_traces, [jnp.asarray(x) for x, _, _ in calls.values()], [(rate, steps) for _, rate, steps in calls.values()]
)
require(traces[0] > 0, "The first call does not call `step`.")
for what, before, after in zip(list(calls)[1:], traces, traces[1:], strict=False):
    require(after == before, f"A call with {what} traces `step` again. One program should serve all calls.")
for (what, (x, rate, steps)), got in zip(calls.items(), found, strict=True):
    wanted = x
    for _ in range(steps):
        wanted = wanted - np.float32(rate) * np.tanh(wanted)
    compare(got, wanted, label="the first result" if what == "first" else f"the result for {what}")

# %% [markdown] why="debug-slow-start"
# The cache key of `jit` contains the function object, the static arguments, and the shapes and dtypes of the others. Here none of them changes. A loop with a traced bound becomes a `while` in the program, which contains the step once. The price is that `jax.grad` rejects such a loop. **Next:** How would you simulate 1 to 1,000 steps with a `scan`, which has a gradient, and few compilations?


# %% wrong="debug-slow-start" because="Creates the compiled function, or the body of the loop, in each call. The function object is part of the cache key."
def make_simulation(step):
    def simulate(x, rate, steps):
        @jax.jit
        def run(x, rate, steps):
            return jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)

        return run(x, rate, steps)

    return simulate


# %% wrong="debug-slow-start" because="Makes the number of steps static, so each number has a program of its own."
def make_simulation(step):
    def simulate(x, rate, steps):
        return jax.lax.scan(lambda x, _: (step(x, rate), None), x, length=steps)[0]

    return jax.jit(simulate, static_argnums=2)


# %% wrong="debug-slow-start" because="Makes the rate a constant of the program, so each rate has a program of its own."
def make_simulation(step):
    def simulate(x, rate, steps):
        return jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)

    return jax.jit(simulate, static_argnums=1)


# %% wrong="debug-slow-start" because="Makes the number of steps static for a Python loop, which is unrolled."
def make_simulation(step):
    def simulate(x, rate, steps):
        for _ in range(steps):
            x = step(x, rate)
        return x

    return jax.jit(simulate, static_argnums=2)


# %% wrong="debug-slow-start" because="Compiles a single step and loops in Python, so a call runs as many programs as steps."
def make_simulation(step):
    compiled = jax.jit(step)

    def simulate(x, rate, steps):
        for _ in range(steps):
            x = compiled(x, rate)
        return x

    return simulate


# %% wrong="debug-slow-start" because="Loops over `range` of a traced number, but Python needs its value."
def make_simulation(step):
    @jax.jit
    def simulate(x, rate, steps):
        for _ in range(steps):
            x = step(x, rate)
        return x

    return simulate


# %% wrong="debug-slow-start" because="Uses `scan` with a traced number of steps, but the length of a `scan` is part of the program."
def make_simulation(step):
    @jax.jit
    def simulate(x, rate, steps):
        return jax.lax.scan(lambda x, _: (step(x, rate), None), x, length=steps)[0]

    return simulate


# %% wrong="debug-slow-start" because="Creates the compiled function, or the body of the loop, in each call. The function object is part of the cache key."
def make_simulation(step):
    def simulate(x, rate, steps):
        return jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)

    return simulate


# %% wrong="debug-slow-start" because="Keeps the program of the first call, which contains its rate and number of steps as constants."
def make_simulation(step):
    programs = []

    def simulate(x, rate, steps):
        if not programs:
            programs.append(jax.jit(lambda x: jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)))
        return programs[0](x)

    return simulate


# %% wrong="debug-slow-start" because="Counts from 1, so one step is missing."
def make_simulation(step):
    @jax.jit
    def simulate(x, rate, steps):
        return jax.lax.fori_loop(1, steps, lambda _, x: step(x, rate), x)

    return simulate


# %% wrong="debug-slow-start" because="Runs a fixed number of iterations, so a call with more steps ends too early."
def make_simulation(step):
    @jax.jit
    def simulate(x, rate, steps):
        body = lambda x, i: (jnp.where(i < steps, step(x, rate), x), None)
        return jax.lax.scan(body, x, jnp.arange(1000))[0]

    return simulate


# %% wrong="debug-slow-start" because="Makes the rate a float32 array, which promotes a float16 array. A Python float does not."
def make_simulation(step):
    @jax.jit
    def run(x, rate, steps):
        return jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)

    return lambda x, rate, steps: run(x, jnp.float32(rate), steps)


# %% right="debug-slow-start"
def make_simulation(step):
    @jax.jit
    def run(x, rate, steps):
        more = lambda carry: carry[0] < steps
        return jax.lax.while_loop(more, lambda carry: (carry[0] + 1, step(carry[1], rate)), (0, x))[1]

    def simulate(x, rate, steps):
        return run(x, rate, steps)

    return simulate


# %% right="debug-slow-start"
@functools.partial(jax.jit, static_argnums=0)
def repeat(step, x, rate, steps):
    return jax.lax.fori_loop(0, steps, lambda _, x: step(x, rate), x)


def make_simulation(step):
    return functools.partial(repeat, step)


# %% [markdown] task="debug-seeds" stars=3 minutes=35 skills="13_debugging,03_jit,04_grad,08_control_flow,09_training,debug-find,debug-slow-start"
# ## Five bugs from real notebooks
# **Goal.** This course grew from older notebooks, its seeds. The function `train_as_found` in the setup cell combines five bugs from their code. Run it, find the bugs, and write the function without them.
#
# **Signature.** `fix_the_seeds(params, batches, rate)`. `params` is `{"w": (d, k), "b": (k,)}` in float32. `batches` is `{"x": (n, m, d) float32, "y": (n, m) int32}` with n batches of m examples, and `y` contains classes from 0 to k - 1. `rate` is a float. The function is meant to do the following.
#
# - A step is gradient descent with the rate, on the mean cross-entropy of the logits `x @ w + b`, plus 0.1 times the sum of the squared differences between `w` and the `w` before the first step.
# - A step is **good** if its loss at the parameters before it is finite, and all parameters after it are finite. The run ends at the first step that is not good. Neither this step nor a later one changes anything.
# - Return a dict with the parameters after the last good step, the number of good steps as int32 `()`, and the number of bytes of the arrays in `params` as an int.
#
# **Example.** For `w` of shape `(1, 2)` and `b` of shape `(2,)`, both zeros, one batch with `x = [[1]]` and `y = [0]`, and the rate 1, the gradient of `b` is `[-0.5, 0.5]`. The result has `b = [0.5, -0.5]`, `w = [[0.5, -0.5]]`, 1 step and 16 bytes.
#
# **Judged.** The values under `jit`, for several shapes, for batches with NaN and infinities, and for huge values. The bytes, also of float16 parameters. **Not judged.** Whether steps after the end are computed and discarded, and which functions of Optax you use.
#
# <details><summary>Hint 1 · a question</summary>
#
# One bug is an error, which the traceback shows. One bug gives a NaN in the first step. Which of the remaining lines compute something else than the task describes?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Look for a name that does not exist, a loss that does not use its argument, a norm with the derivative 0/0, an update that is kept although the step is bad, and a count of numbers instead of bytes. The stop condition misses infinities.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Optax has `softmax_cross_entropy_with_integer_labels`. A sum of squares needs no norm. Compute the new parameters, test the loss and all leaves with `jnp.isfinite`, and choose between new and old with `jnp.where`. A leaf has `size` numbers of `dtype.itemsize` bytes.
#
# </details>


# %% answer="debug-seeds"
def fix_the_seeds(params, batches, rate):
    """{"params", "steps", "bytes"} after gradient descent over batches, until a step is not finite."""
    ### BEGIN SOLUTION
    start, tx = params, optax.sgd(rate)

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start["w"]) ** 2)

    def step(carry, batch):
        params, state, steps, running = carry
        loss, gradients = jax.value_and_grad(loss_fn)(params, batch)
        updates, state = tx.update(gradients, state)
        new = optax.apply_updates(params, updates)
        for leaf in (loss, *jax.tree.leaves(new)):
            running = running & jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda new, old: jnp.where(running, new, old), new, params)
        return (params, state, steps + running, running), None

    carry = params, tx.init(params), 0, True
    (params, _, steps, _), _ = jax.lax.scan(step, carry, batches)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return {"params": params, "steps": steps, "bytes": size}
    ### END SOLUTION


# %% check="debug-seeds" name="example" points=1
"""The example: one step from zeros."""
params = {"w": np.zeros((1, 2), np.float32), "b": np.zeros(2, np.float32)}
batches = {"x": np.ones((1, 1, 1), np.float32), "y": np.zeros((1, 1), np.int32)}
made = program(lambda params, batches: fix_the_seeds(params, batches, 1.0), params, batches)
half = np.array([0.5, -0.5], np.float32)
compare(made.run(params, batches)["params"], {"w": half[None], "b": half}, label="the parameters")
compare(made.run(params, batches)["steps"], np.int32(1), label="the number of steps")
require(made.run(params, batches)["bytes"] == 16, "`bytes` is not 16, but 4 float32 numbers have 4 bytes each.")

# %% hidden="debug-seeds" name="training" points=2
"""Right parameters after several good steps."""


def train(params, batches, rate):
    start, params, steps = params["w"].astype(float), {name: p.astype(float) for name, p in params.items()}, 0
    for x, y in zip(batches["x"], batches["y"], strict=True):
        if not np.isfinite(x).all():
            break
        logits = x @ params["w"] + params["b"]
        miss = np.exp(logits - logits.max(axis=1, keepdims=True))
        miss = miss / miss.sum(axis=1, keepdims=True) - np.eye(logits.shape[1])[y]
        gradients = {"w": x.T @ miss / len(y) + 0.2 * (params["w"] - start), "b": miss.mean(axis=0)}
        params, steps = {name: p - rate * gradients[name] for name, p in params.items()}, steps + 1
    return {name: p.astype(np.float32) for name, p in params.items()}, np.int32(steps)


rng = inputs.rng()
for n, m, d, k in ((6, 5, 3, 4), (9, 3, 4, 2)):
    params = {"w": rng.normal(size=(d, k)).astype(np.float32), "b": rng.normal(size=k).astype(np.float32)}
    x, y = rng.normal(size=(n, m, d)).astype(np.float32), rng.integers(k, size=(n, m)).astype(np.int32)
    batches = {"x": x, "y": y}
    made = program(lambda params, batches: fix_the_seeds(params, batches, 0.25), params, batches)
    got, (wanted, steps) = made.run(params, batches), train(params, batches, 0.25)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got["params"]))
    require(finite, "After good batches only, the parameters are not finite.")
    moved = not np.allclose(got["params"]["b"], params["b"])
    require(moved, "The bias has not changed after several steps. Does the loss depend on its argument?")
    compare(got["params"], wanted, label="the parameters")
    compare(got["steps"], steps, label="the number of good steps")

# %% hidden="debug-seeds" name="stopping" points=3
"""The run ends before the first bad step, for NaN, infinities and huge values."""


def train(params, batches, rate):
    start, params, steps = params["w"].astype(float), {name: p.astype(float) for name, p in params.items()}, 0
    for x, y in zip(batches["x"], batches["y"], strict=True):
        if not np.isfinite(x).all():
            break
        logits = x @ params["w"] + params["b"]
        miss = np.exp(logits - logits.max(axis=1, keepdims=True))
        miss = miss / miss.sum(axis=1, keepdims=True) - np.eye(logits.shape[1])[y]
        gradients = {"w": x.T @ miss / len(y) + 0.2 * (params["w"] - start), "b": miss.mean(axis=0)}
        params, steps = {name: p - rate * gradients[name] for name, p in params.items()}, steps + 1
    return {name: p.astype(np.float32) for name, p in params.items()}, np.int32(steps)


def judge(got, params, steps):
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got["params"]))
    require(finite, "The returned parameters are not finite.")
    compare(got["steps"], np.int32(steps), label="the number of good steps")
    compare(got["params"], params, label="the parameters")


rng = inputs.rng()
n, m, d, k = 7, 4, 3, 3
params = {"w": rng.normal(size=(d, k)).astype(np.float32), "b": rng.normal(size=k).astype(np.float32)}
x, y = rng.normal(size=(n, m, d)).astype(np.float32), rng.integers(k, size=(n, m)).astype(np.int32)
made = program(lambda params, batches: fix_the_seeds(params, batches, 0.5), params, {"x": x, "y": y})
middle = int(rng.integers(2, 5))
for when, at, value in (
    ("when a batch contains a NaN", middle, np.nan),
    ("when a batch contains an infinity", middle, np.inf),
    ("when the first batch is bad", 0, np.nan),
    ("when the last batch is bad", n - 1, np.nan),
):
    with case(when):
        batches = {"x": x.copy(), "y": y}
        batches["x"][at, int(rng.integers(m)), int(rng.integers(d))] = value
        judge(made.run(params, batches), *train(params, batches, 0.5))

zeros = {"w": np.zeros((1, 2), np.float32), "b": np.zeros(2, np.float32)}
batch = lambda xs, ys: {"x": np.array(xs, np.float32)[:, None, None], "y": np.array(ys, np.int32)[:, None]}
batches = batch([1e30, 1, 1], [0, 0, 0])
made = program(lambda params, batches: fix_the_seeds(params, batches, 1.0), zeros, batches)
one = made.run(zeros, batches)
wanted = {"w": np.array([[5e29, -5e29]], np.float32), "b": np.array([0.5, -0.5], np.float32)}
zeros["w"] = np.zeros((2, 2), np.float32)
batches = batch([0, 3e38, 1], [0, 1, 0])
batches["x"] = np.concatenate([batches["x"], np.zeros((3, 1, 1), np.float32)], axis=2)
made = program(lambda params, batches: fix_the_seeds(params, batches, 4.0), zeros, batches)
other = made.run(zeros, batches)
require(one["steps"] == 1 or other["steps"] == 1, "Neither an infinite loss nor infinite parameters end the run.")
with case("when huge but finite parameters give an infinite loss in the next step"):
    judge(one, wanted, 1)
with case("when a finite loss leads to some infinite parameters"):
    judge(other, {**zeros, "b": np.array([2, -2], np.float32)}, 1)
with case("when the parameters are finite, but their sum is infinite"):
    huge = {**zeros, "w": np.full((2, 2), 3e38, np.float32)}
    batches["x"] = np.zeros((3, 1, 2), np.float32)
    judge(made.run(huge, batches), *train(huge, batches, 4.0))
with case("when a finite loss leads to an infinite entry of `b`"):
    huge = {"w": np.zeros((1, 2), np.float32), "b": np.array([3e38, 3.2e38], np.float32)}
    batches = batch([0], [0])
    made = program(lambda params, batches: fix_the_seeds(params, batches, 1e38), huge, batches)
    judge(made.run(huge, batches), huge, 0)

# %% hidden="debug-seeds" name="bytes" points=1
"""The bytes of the parameters, for several dtypes."""
rng = inputs.rng()
for dtype in (np.float32, np.float16):
    d, k = (int(size) for size in rng.integers(3, 9, size=2))
    params = {"w": rng.normal(size=(d, k)).astype(dtype), "b": np.zeros(k, dtype)}
    batches = {"x": rng.normal(size=(2, 4, d)).astype(dtype), "y": np.zeros((2, 4), np.int32)}
    # Compiled, as eager code compiles each operation.
    made = program(lambda params, batches: fix_the_seeds(params, batches, 0.5)["bytes"], params, batches)
    wanted = (d * k + k) * np.dtype(dtype).itemsize
    require(
        made.run(params, batches) == wanted,
        f"With {np.dtype(dtype).name} parameters, the number of bytes is not right.",
    )

# %% [markdown] why="debug-seeds"
# None of the five bugs changes a shape, and only one raises an error. `debug_nans` finds the norm, and a gradient that is exactly zero points to a loss that does not use its argument. A test with one bad batch finds the update that is kept. **Next:** Which of these bugs would a test with a decreasing loss have found?


# %% wrong="debug-seeds" because="Keeps the squared norm, whose derivative is 0/0 at the start, where both `w` are equal."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.linalg.norm(params["w"] - start) ** 2

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Leaves the loss with the parameters from before the first step, so its gradient is zero."
def fix_the_seeds(params, batches, rate):
    start = params

    def loss_fn(params, batch):
        logits = batch["x"] @ start["w"] + start["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start["w"]) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Calls a function of Optax that does not exist."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.cross_entropy_loss(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Stops after the bad step, but keeps its update."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            fine = running & jnp.isfinite(leaf).all()
            new = jax.tree.map(lambda new, old: jnp.where(running, new, old), new, params)
            running = fine
        return (new, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Tests for NaN only, so infinities go on."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= ~jnp.isnan(leaf).any()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Tests the loss, but not the new parameters."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        running &= jnp.isfinite(loss)
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Tests the new parameters, but not the loss."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in jax.tree.leaves(new):
            running &= jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Tests `w`, but not `b`."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        running &= jnp.isfinite(loss) & jnp.isfinite(new["w"]).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Tests the sum of each leaf, which overflows for large but finite values."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= jnp.isfinite(leaf.sum())
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Skips bad steps and continues with the next batch, but the run should end."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        fine = jnp.isfinite(loss)
        for leaf in jax.tree.leaves(new):
            fine = fine & jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda new, old: jnp.where(fine, new, old), new, params)
        return (params, steps + fine, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% wrong="debug-seeds" because="Counts the numbers instead of their bytes."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(leaf.size for leaf in jax.tree.leaves(params))}


# %% wrong="debug-seeds" because="Assumes four bytes for each number."
def fix_the_seeds(params, batches, rate):
    start = params["w"]

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start) ** 2)

    def step(carry, batch):
        params, steps, running = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        for leaf in (loss, *jax.tree.leaves(new)):
            running &= jnp.isfinite(leaf).all()
        params = jax.tree.map(lambda a, b: jnp.where(running, a, b), new, params)
        return (params, steps + running, running), None

    (params, steps, _), _ = jax.lax.scan(step, (params, 0, True), batches)
    return {"params": params, "steps": steps, "bytes": sum(4 * leaf.size for leaf in jax.tree.leaves(params))}


# %% wrong="debug-seeds" because="Stops with a Python `if` on traced values."
def fix_the_seeds(params, batches, rate):
    start, steps = params, 0

    def loss_fn(params, batch):
        logits = batch["x"] @ params["w"] + params["b"]
        error = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return error + 0.1 * jnp.sum((params["w"] - start["w"]) ** 2)

    for x, y in zip(batches["x"], batches["y"], strict=True):
        loss, grads = jax.value_and_grad(loss_fn)(params, {"x": x, "y": y})
        new = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in (loss, *jax.tree.leaves(new))):
            break
        params, steps = new, steps + 1
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return {"params": params, "steps": jnp.int32(steps), "bytes": size}


# %% right="debug-seeds"
def fix_the_seeds(params, batches, rate):
    first = params["w"]

    def loss_fn(params, x, y):
        chances = jax.nn.log_softmax(x @ params["w"] + params["b"])
        return -jnp.take_along_axis(chances, y[:, None], axis=1).mean() + jnp.square(params["w"] - first).sum() / 10

    def one(i, params):
        loss, gradients = jax.value_and_grad(loss_fn)(params, batches["x"][i], batches["y"][i])
        new = jax.tree.map(lambda p, g: (p - rate * g).astype(p.dtype), params, gradients)
        return new, jnp.isfinite(loss) & jnp.all(jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(new)]))

    def body(carry):
        i, params, _ = carry
        new, fine = one(i, params)
        return i + fine, jax.tree.map(lambda n, o: jax.lax.select(fine, n, o), new, params), fine

    n = batches["y"].shape[0]
    steps, params, _ = jax.lax.while_loop(lambda c: c[2] & (c[0] < n), body, (jnp.int32(0), params, jnp.array(True)))
    return {"params": params, "steps": steps, "bytes": sum(leaf.nbytes for leaf in params.values())}


# %% right="debug-seeds"
def fix_the_seeds(params, batches, rate):
    size = sum(np.dtype(leaf.dtype).itemsize * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    start, running, steps, tx = params["w"], jnp.array(True), jnp.int32(0), optax.sgd(rate)
    state = tx.init(params)
    for i in range(len(batches["x"])):
        x, y = batches["x"][i], batches["y"][i]

        def loss_fn(params):
            labels = jax.nn.one_hot(y, params["b"].shape[0])
            error = optax.softmax_cross_entropy(x @ params["w"] + params["b"], labels)
            return error.mean() + 0.1 * jnp.vdot(params["w"] - start, params["w"] - start)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, state = tx.update(gradients, state)
        new = optax.apply_updates(params, updates)
        finite = jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), (loss, new))
        running = running & jax.tree.reduce(jnp.logical_and, finite)
        params = jax.lax.cond(running, lambda new, old: new, lambda new, old: old, new, params)
        steps += running
    return {"params": params, "steps": steps, "bytes": size}
