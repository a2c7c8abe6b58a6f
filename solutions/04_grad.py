# %% [markdown]
# # 04 · Exercises: grad
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# "The gradient with respect to `params`" means one derivative for each number in `params`, in a container of the same structure. Most exercises need only the core of the lesson. The others name the Deeper section that they need.

# %% setup
from grader.checks import ask, case, compare, counted, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def linear_loss(params, x, y):
    """Squared error of a linear model on one example: {"w": (d,), "b": ()}, x (d,), y () -> ()"""
    return (jnp.dot(params["w"], x) + params["b"] - y) ** 2


def network_loss(params, x, y):
    """Squared error of a small network on one example: {"a": (h, d), "b": (h,)}, x (d,), y () -> ()"""
    return (jnp.dot(params["b"], jnp.tanh(params["a"] @ x)) - y) ** 2


def visitors(params, xs):
    """The expected number of visitors on each day: {"w": (d,), "b": ()}, xs (n, d) -> (n,)"""
    return jnp.exp(xs @ params["w"] + params["b"])


def quartic(x):
    """() -> ()"""
    return x**4


def wave(x):
    """A growing wave: () -> ()"""
    return jnp.exp(x / 2) * jnp.sin(2 * x)


def worth(params, states):
    """The value of each state: {"w": (d,), "b": ()}, states (n, d) -> (n,)"""
    return jnp.tanh(states @ params["w"]) + params["b"]


def ripple(x):
    """Energy of a chain in which only neighbours interact: (n,) -> ()"""
    return jnp.sum(jnp.sin(x[:-1]) * x[1:] ** 2)


def rectangle(sides):
    """Area and perimeter: (2,) -> (2,)"""
    return jnp.stack([sides[0] * sides[1], 2 * (sides[0] + sides[1])])


def cooling(knobs):
    """300 temperatures of a cup, half a minute apart. The knobs are (room, start, rate): (3,) -> (300,)"""
    room, start, rate = knobs
    return room + (start - room) * jnp.exp(-rate * 0.5 * jnp.arange(300))


# %% [markdown] task="grad-grads" stars=1 minutes=8 skills="01_arrays,02_tracing"
# ## The loss and both its gradients
# **Goal.** Compute the loss of one example, its gradient with respect to the parameters (to train them) and its gradient with respect to the input (to see which inputs matter). Run the loss only once for all three. The line that defines `loss_and_gradients` is missing.
#
# **Signature.** `grads(loss, params, x, y)`. `loss(params, x, y)` returns a number `()`. `params` is a dict of arrays, `x` has shape `(d,)` and `y` has shape `()`, all float32. The result is a dict. Its entry `"loss"` has shape `()`, `"params"` has the structure of `params`, and `"x"` has shape `(d,)`.
#
# **Example.** `linear_loss` from the setup is `(w·x + b - y)²`. With the parameters `w = [1, 2]`, `b = 0`, and `x = [3, 1]`, `y = 4`, the prediction is 5 and the loss is 1. The gradient is `[6, 2]` with respect to `w`, 2 with respect to `b`, and `[2, 4]` with respect to `x`.
#
# **Judged.** The values for any loss, also for several losses one after another. Python runs `loss` once. **Not judged.** The gradient with respect to `y`, which is not part of the result.
#
# <details><summary>Hint 1 · a question</summary>
#
# The line below yours unpacks the result of `loss_and_gradients`. What is the structure of this result?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# One transformation returns the value together with the gradient. One of its options selects the arguments to differentiate with respect to.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Apply `jax.value_and_grad` to `loss`, with `argnums` as a tuple of the two positions, counted from 0. The gradients are then a tuple too, in the same order.
#
# </details>


# %% answer="grad-grads"
def grads(loss, params, x, y):
    """The loss () at params, x (d,), y () and its gradients with respect to params and x: {"loss", "params", "x"}."""
    ### BEGIN SOLUTION
    loss_and_gradients = jax.value_and_grad(loss, argnums=(0, 1))
    ### END SOLUTION
    value, (by_params, by_x) = loss_and_gradients(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% check="grad-grads" name="example" points=1
"""The example: a linear model on one example."""
params = {"w": np.array([1, 2], np.float32), "b": np.float32(0)}
x, y = np.array([3, 1], np.float32), np.float32(4)
got = program(lambda params, x, y: grads(linear_loss, params, x, y), params, x, y).run(params, x, y)
wanted = {
    "loss": np.float32(1),
    "params": {"w": np.array([6, 2], np.float32), "b": np.float32(2)},
    "x": np.array([2, 4], np.float32),
}
compare(got, wanted)

# %% hidden="grad-grads" name="values" points=2
"""Right for the loss of a network, also if it has as many units as inputs."""


def by_hand(params, x, y):
    hidden = np.tanh(params["a"] @ x)
    miss = params["b"] @ hidden - y
    inner = 2 * miss * params["b"] * (1 - hidden**2)
    return {
        "loss": np.float32(miss**2),
        "params": {"a": np.outer(inner, x), "b": 2 * miss * hidden},
        "x": params["a"].T @ inner,
    }


def draw():
    rng = inputs.rng()
    params = {"a": rng.normal(size=(3, 3)).astype(np.float32), "b": rng.normal(size=3).astype(np.float32)}
    return params, rng.normal(size=3).astype(np.float32), np.float32(rng.normal())


def probe_two(params, x, y):
    return [grads(loss, params, x, y) for loss in (linear_loss, lambda params, x, y: 4 - 3 * linear_loss(params, x, y))]


x, w, y = inputs.rng().normal(size=3).astype(np.float32), np.ones(3, np.float32), np.float32(5)
linear = {"w": w, "b": np.float32(0)}
derivative = 2 * (x.sum() - y)
first, second = program(probe_two, linear, x, y).run(linear, x, y)
wanted = {"loss": derivative**2 / 4, "params": {"w": derivative * x, "b": derivative}, "x": derivative * w}
compare(first, wanted, atol=1e-3, label="the result for a linear model")
wanted = jax.tree.map(lambda value: np.asarray(-3 * value, np.float32), wanted)
compare(second, {**wanted, "loss": wanted["loss"] + np.float32(4)}, atol=1e-3, label="the result for a second loss")
with case("for the loss of a network"):
    made = program(lambda params, x, y: grads(network_loss, params, x, y), *draw())
for _ in range(3):
    params, x, y = draw()
    compare(made.run(params, x, y), by_hand(params, x, y), atol=1e-4, label="the result for a network")

# %% hidden="grad-grads" name="once" points=1 observed=true
"""Python runs `loss` once for the value and both gradients."""


def probe_calls(params, x, y):
    grads(linear_loss, params, x, y)
    function = counted(linear_loss)
    got = grads(function, params, x, y)
    by_x = got.get("x") if isinstance(got, dict) else None
    return getattr(by_x, "shape", None), function.calls


x = inputs.rng().normal(size=3).astype(np.float32)
shape, calls = ask(probe_calls, {"w": x + 1, "b": np.float32(1)}, x, np.float32(2))
require(shape is not None, '"x" of the result is not an array. It should be the gradient with respect to x.')
require(shape == (3,), f'For an x of 3 entries "x" has shape {shape} instead of (3,).')
require(calls == 1, f"Python ran `loss` {calls} times, but one run is enough for the value and both gradients.")

# %% [markdown] why="grad-grads"
# The backward pass starts from the values that one run of the loss stored, so the loss is available without a second run. One backward pass computes the gradients for all `argnums`. **Next:** What does `"x"` look like if `x` is an image, and how would you change the image to fool the model?


# %% wrong="grad-grads" because="Leaves out argnums, so there is only the gradient with respect to the first argument, a dict, which the next line unpacks as a pair."
def grads(loss, params, x, y):
    loss_and_gradients = jax.value_and_grad(loss)
    value, (by_params, by_x) = loss_and_gradients(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Counts arguments from 1, which gives the gradients with respect to x and y."
def grads(loss, params, x, y):
    loss_and_gradients = jax.value_and_grad(loss, argnums=(1, 2))
    value, (by_params, by_x) = loss_and_gradients(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Differentiates with respect to x and the parameters in this order, and swaps their names."
def grads(loss, params, x, y):
    loss_and_gradients = jax.value_and_grad(loss, argnums=(1, 0))
    value, (by_params, by_x) = loss_and_gradients(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Returns the gradient with respect to y, the last argument, as the one with respect to x."
def grads(loss, params, x, y):
    loss_and_gradients = jax.value_and_grad(loss, argnums=(0, 2))
    value, (by_params, by_x) = loss_and_gradients(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Computes the value and each gradient one after another, which gives the right values but runs the loss three times."
def grads(loss, params, x, y):
    by_params = jax.grad(loss)(params, x, y)
    by_x = jax.grad(loss, argnums=1)(params, x, y)
    return {"loss": loss(params, x, y), "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Stores the transformed function of the first loss in a global, so a second loss gets the gradients of the first."
kept = None


def grads(loss, params, x, y):
    global kept
    kept = kept or jax.value_and_grad(loss, argnums=(0, 1))
    value, (by_params, by_x) = kept(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Computes the gradient with respect to x from the one for b and the weights, which holds only for a linear model."
def grads(loss, params, x, y):
    value, by_params = jax.value_and_grad(loss)(params, x, y)
    weights = params.get("w", next(iter(params.values())))
    return {"loss": value, "params": by_params, "x": by_params["b"] * weights}


# %% wrong="grad-grads" because="Runs the loss twice, in value_and_grad for the parameters and in grad for x."
def grads(loss, params, x, y):
    value, by_params = jax.value_and_grad(loss)(params, x, y)
    return {"loss": value, "params": by_params, "x": jax.grad(loss, argnums=1)(params, x, y)}


# %% wrong="grad-grads" because="Caches the gradient function under the name of the loss, so two losses with the same name share it."
compiled_losses = {}


def grads(loss, params, x, y):
    name = getattr(loss, "__name__", "loss")
    if name not in compiled_losses:
        compiled_losses[name] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    loss_and_gradients = compiled_losses[name]
    value, (by_params, by_x) = loss_and_gradients(params, x, y)
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Passes the loss instead of 1 to the function from vjp, which scales the gradients."
def grads(loss, params, x, y):
    value, backward = jax.vjp(lambda params, x: loss(params, x, y), params, x)
    by_params, by_x = backward(value)  # start the backward pass from the loss
    return {"loss": value, "params": by_params, "x": by_x}


# %% wrong="grad-grads" because="Computes the gradient with respect to x from the one for b and the weights, which holds only for a linear model."
def grads(loss, params, x, y):
    value, by_params = jax.value_and_grad(loss)(params, x, y)
    by_x = by_params["b"] * params["w"]
    return {"loss": value, "params": by_params, "x": by_x}


# %% right="grad-grads"
def grads(loss, params, x, y):
    value, way_back = jax.vjp(lambda params, x: loss(params, x, y), params, x)
    by_params, by_x = way_back(jnp.ones_like(value))
    return {"loss": value, "params": by_params, "x": by_x}


# %% right="grad-grads"
def grads(loss, params, x, y):
    both = {"params": params, "x": x}
    value, gradients = jax.value_and_grad(lambda both: loss(both["params"], both["x"], y))(both)
    return {"loss": value, **gradients}


# %% [markdown] task="grad-zero" stars=1 minutes=12 skills="01_arrays,03_jit,grad-grads"
# ## The loss that never falls
# **Goal.** A model predicts the number of visitors on each day. This training step raises no error, but the parameters never change, because every gradient is 0. There are **two** reasons, and each of them is enough. Find both, and write a step that works.
#
# ```python
# def fix_zero_gradient(model, params, xs, ys, rate):
#     guess = model(params, xs)
#
#     def loss(params):
#         return jnp.mean((jnp.round(guess) - ys) ** 2)
#
#     reported, gradient = jax.value_and_grad(loss)(params)
#     new_params = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
#     return new_params, reported
# ```
#
# **Signature.** `fix_zero_gradient(model, params, xs, ys, rate)`. `model(params, xs)` returns the predictions `(n,)`, as `visitors` from the setup does. `params` is a dict of arrays, `xs` has shape `(n, d)` and `ys` has shape `(n,)`, all float32, and `rate` is a float. The result is a pair `(new_params, reported)`. `reported` `()` is the mean squared error of the *rounded* prediction at the old parameters, as above, because visitors are counted in whole numbers. The step itself uses the gradient of the mean squared error *without* rounding.
#
# **Example.** For one day with `xs = [[0]]`, `w = [0]`, `b = 0.5`, the prediction is exp(0.5) = 1.65. With `ys = [4]`, the error is -2.35 and the derivative with respect to `b` is 2 · (-2.35) · 1.65 = -7.75. With rate 0.1, the new `b` is 1.275, and `w` stays 0. The reported loss is (2 - 4)² = 4.
#
# **Judged.** The new parameters and the reported loss for several models, also if `ys` contains fractions. **Not judged.** How often the model is run.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.grad` differentiates with respect to the argument of `loss`. Where in its body does `loss` use this argument?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Your answer is the first reason. For the second one, plot `jnp.round`. What is the derivative on a step of this staircase?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Run the model inside `loss`, with the argument of `loss`, and leave out the rounding there. Return the loss to report as an auxiliary result with `has_aux=True`, or write two functions.
#
# </details>


# %% answer="grad-zero"
def fix_zero_gradient(model, params, xs, ys, rate):
    """One step of gradient descent on model(params, xs (n, d)) -> (n,) against ys (n,): (new_params, reported ())."""

    ### BEGIN SOLUTION
    def loss(params):
        expected = model(params, xs)
        reported = jnp.mean((jnp.round(expected) - ys) ** 2)
        return jnp.mean((expected - ys) ** 2), reported

    gradient, reported = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported
    ### END SOLUTION


# %% check="grad-zero" name="example" points=1
"""The example: one day."""
params = {"w": np.zeros(1, np.float32), "b": np.float32(0.5)}
xs, ys = np.zeros((1, 1), np.float32), np.array([4], np.float32)
made = program(lambda params, xs, ys: fix_zero_gradient(visitors, params, xs, ys, 0.1), params, xs, ys)
derivative = 2 * (np.exp(0.5) - 4) * np.exp(0.5)
wanted = {"w": np.zeros(1, np.float32), "b": np.float32(0.5 - 0.1 * derivative)}, np.float32(4)
compare(made.run(params, xs, ys), wanted, label="(new_params, reported)")

# %% hidden="grad-zero" name="values" points=2
"""Steps against the gradient of the loss without rounding."""


def draw():
    """A week whose expectations stay away from the edges of rounding, where one bit would decide."""
    while True:
        rng = inputs.rng()
        params = {"w": rng.normal(size=3).astype(np.float32) / 2, "b": np.float32(1 + rng.uniform())}
        xs = rng.normal(size=(7, 3)).astype(np.float32)
        expected = np.exp(xs @ params["w"] + params["b"])
        if np.abs(expected % 1 - 0.5).min() > 0.01 and expected.max() < 30:
            return params, xs, expected, np.round(expected + rng.uniform(1, 3, size=7)).astype(np.float32)


params, xs, expected, ys = draw()
made = program(lambda params, xs, ys: fix_zero_gradient(visitors, params, xs, ys, 0.01), params, xs, ys)
for _ in range(3):
    params, xs, expected, ys = draw()
    got = made.run(params, xs, ys)
    require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (new_params, reported).")
    derivatives = 2 * (expected - ys) * expected / 7
    require(
        not (isinstance(got[0], dict) and np.array_equal(got[0].get("w"), params["w"])),
        "The new parameters equal the old ones, so the gradient is still 0. Does the loss depend on its own argument, "
        "without an operation whose derivative is 0?",
    )
    wanted = {"w": params["w"] - 0.01 * (derivatives @ xs), "b": params["b"] - np.float32(0.01) * derivatives.sum()}
    rounded = params["w"] - 0.01 * ((2 * (np.round(expected) - ys) * expected / 7) @ xs)
    by_w = got[0].get("w") if isinstance(got[0], dict) else None
    require(
        getattr(by_w, "shape", None) != (3,) or not np.allclose(by_w, rounded, rtol=1e-4, atol=1e-5),
        "The gradient is computed from the rounded error. Use the error without rounding, and round only for the reported "
        "loss.",
    )
    compare(got[0], wanted, label="the new parameters")


def probe_linear(weights, xs, ys):
    return fix_zero_gradient(lambda params, xs: xs @ params["weights"], {"weights": weights}, xs, ys, 0.1)


weights, xs, ys = (inputs.rng().normal(size=size).astype(np.float32) for size in (2, (5, 2), 5))
new = weights - np.float32(0.1) * (2 * (xs @ weights - ys) / 5) @ xs
got = program(probe_linear, weights, xs, ys).run(weights, xs, ys)
compare(got[0], {"weights": new}, label="the new parameters of a linear model")

# %% hidden="grad-zero" name="reported" points=1
"""Reports the loss of the rounded prediction at the old parameters."""


def draw():
    while True:
        rng = inputs.rng()
        weights, xs = rng.uniform(1, 3, size=2).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
        expected, ys = xs @ weights, rng.uniform(-5, 5, size=5).astype(np.float32)
        new = weights - np.float32(0.1) * (2 * (expected - ys) / 5) @ xs
        others = expected - ys, np.round(expected - ys), np.round(xs @ new) - ys
        apart = [np.mean(other**2) - np.mean((np.round(expected) - ys) ** 2) for other in others]
        if np.abs(expected % 1 - 0.5).min() > 0.01 and np.abs(apart).min() > 0.1:
            return weights, xs, expected, ys


def probe_linear(weights, xs, ys):
    return fix_zero_gradient(lambda params, xs: xs @ params["weights"], {"weights": weights}, xs, ys, 0.1)


weights, xs, expected, ys = draw()
made = program(probe_linear, weights, xs, ys)
for _ in range(3):
    weights, xs, expected, ys = draw()
    got = made.run(weights, xs, ys)
    require(isinstance(got, tuple) and len(got) == 2, "The result is not a pair (new_params, reported).")
    new = weights - np.float32(0.1) * (2 * (expected - ys) / 5) @ xs
    rounded, smooth = np.mean((np.round(expected) - ys) ** 2), np.mean((expected - ys) ** 2)
    later = np.mean((np.round(xs @ new) - ys) ** 2)
    if getattr(got[1], "shape", None) == ():
        require(not np.isclose(got[1], smooth, rtol=1e-4), "The reported loss is the one without rounding.")
        require(not np.isclose(got[1], later), "The reported loss is the one at the new parameters.")
        whole = np.mean(np.round(expected - ys) ** 2)
        require(
            not np.isclose(got[1], whole),
            "The error is rounded. Report the error of the rounded prediction.",
        )
    compare(got[1], np.float32(rounded), label="the reported loss")

# %% [markdown] why="grad-zero"
# A value that `loss` does not compute from its own argument is a constant to `grad`, and a staircase is flat between its steps. Both zeros were the correct derivatives of the code, but not of the intended loss. **Next:** Accuracy, the fraction of right answers, is often the real goal. Why is it not used as the loss?


# %% wrong="grad-zero" because="Removes the rounding but leaves the model outside the loss, which still does not depend on its argument."
def fix_zero_gradient(model, params, xs, ys, rate):
    expected = model(params, xs)

    def loss(params):
        return jnp.mean((expected - ys) ** 2)

    reported = jnp.mean((jnp.round(expected) - ys) ** 2)
    gradient = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported


# %% wrong="grad-zero" because="Renames the argument of loss but reads the outer parameters in its body."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(new_params):
        return jnp.mean((model(params, xs) - ys) ** 2)

    reported = jnp.mean((jnp.round(model(params, xs)) - ys) ** 2)
    gradient = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported


# %% wrong="grad-zero" because="Moves the model into the loss but keeps the rounding there, whose derivative is 0."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        return jnp.mean((jnp.round(model(params, xs)) - ys) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value


# %% wrong="grad-zero" because="Reports the loss that it differentiates, which is not rounded."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        return jnp.mean((model(params, xs) - ys) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value


# %% wrong="grad-zero" because="Reports the loss at the new parameters."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        return jnp.mean((model(params, xs) - ys) ** 2)

    new = jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params))
    return new, jnp.mean((jnp.round(model(new, xs)) - ys) ** 2)


# %% wrong="grad-zero" because="Rounds with a straight-through derivative, so the gradient is computed from the rounded error."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        expected = model(params, xs)
        rounded = expected + jax.lax.stop_gradient(jnp.round(expected) - expected)
        return jnp.mean((rounded - ys) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value


# %% wrong="grad-zero" because="Adds the gradient, which increases the loss."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        expected = model(params, xs)
        return jnp.mean((expected - ys) ** 2), jnp.mean((jnp.round(expected) - ys) ** 2)

    gradient, reported = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p + rate * g, params, gradient), reported


# %% wrong="grad-zero" because="Rounds the error instead of the prediction, which is the same only if ys contains whole numbers."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        miss = model(params, xs) - ys
        return jnp.mean(miss**2), jnp.mean(jnp.round(miss) ** 2)

    gradient, reported = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported


# %% wrong="grad-zero" because="Squares the mean of the errors, so errors of opposite sign cancel."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        expected = model(params, xs)
        return jnp.mean(expected - ys) ** 2, jnp.mean((jnp.round(expected) - ys) ** 2)

    gradient, reported = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported


# %% wrong="grad-zero" because="Takes the sum over the days instead of the mean."
def fix_zero_gradient(model, params, xs, ys, rate):
    def loss(params):
        expected = model(params, xs)
        return jnp.sum((expected - ys) ** 2), jnp.mean((jnp.round(expected) - ys) ** 2)

    gradient, reported = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported


# %% wrong="grad-zero" because="Rounds by adding a half and converting to integers, which is wrong for negative numbers."
def fix_zero_gradient(model, params, xs, ys, rate):

    def loss(params):
        predicted = model(params, xs)
        whole = (predicted + 0.5).astype(jnp.int32)
        return jnp.mean((predicted - ys) ** 2), jnp.mean((whole - ys) ** 2)

    gradient, reported = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), reported


# %% right="grad-zero"
def fix_zero_gradient(model, params, xs, ys, rate):
    expected, way_back = jax.vjp(lambda params: model(params, xs), params)
    (gradient,) = way_back(2 * (expected - ys) / len(ys))
    new = {name: params[name] - rate * gradient[name] for name in params}
    return new, ((jnp.round(expected) - ys) ** 2).mean()


# %% right="grad-zero"
def fix_zero_gradient(model, params, xs, ys, rate):
    def error(params, reads):
        return jnp.mean((reads(model(params, xs)) - ys) ** 2)

    gradient = jax.grad(error)(params, lambda expected: expected)
    return jax.tree.map(lambda p, g: p - rate * g, params, gradient), error(params, jnp.round)


# %% [markdown] task="grad-third-derivative" stars=1 minutes=8 skills="01_arrays,02_tracing,grad-grads"
# ## Jerk
# **Goal.** Velocity is the first derivative of a position, acceleration is the second, and jerk is the third. Passengers feel it when a lift starts. Compute a third derivative.
#
# **Signature.** `third_derivative(f, x)`. `f` takes a float32 number `()` and returns a number, and `x` has shape `()`. The result `()` is the third derivative of `f` at `x`.
#
# **Example.** `quartic` from the setup is `x⁴`. Its third derivative is `24x`, which is 72 at `x = 3`.
#
# **Judged.** The values to the precision of float32, also for steep functions. The result can be differentiated again. **Not judged.** The method, as long as it computes derivatives. A finite difference is not accurate enough.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.grad` takes a function. What does it return, and what can you do with it?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The derivative of `f` is again a function of a number, and so is its derivative.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Replace `f` by its derivative three times. Only then evaluate the result at `x`.
#
# </details>


# %% answer="grad-third-derivative"
def third_derivative(f, x):
    """The third derivative of f: () -> () at x ()."""
    ### BEGIN SOLUTION
    for _ in range(3):
        f = jax.grad(f)
    return f(x)
    ### END SOLUTION


# %% check="grad-third-derivative" name="example" points=1
"""The example: x to the fourth, at 3."""
x = np.float32(3)
got = program(lambda x: third_derivative(quartic, x), x).run(x)
compare(got, np.float32(72), label="the third derivative")

# %% hidden="grad-third-derivative" name="values" points=2
"""Right for a growing wave at any point, to the precision of float32."""
made = program(lambda x: third_derivative(wave, x), np.float32(0))
points = (np.arange(6) * 0.65 - 2 + inputs.rng().uniform(0, 0.6, size=6)).astype(np.float32)  # of both signs
# The wave is the imaginary part of exp((1/2 + 2i) x), and each derivative of that brings the factor down once.
wanted = np.imag((0.5 + 2j) ** 3 * np.exp((0.5 + 2j) * points))
got = [made.run(x) for x in points]
if all(getattr(one, "shape", None) == () for one in got):
    require(
        np.allclose(got, wanted, rtol=1e-4, atol=1e-4) or not np.allclose(got, wanted, rtol=0.2, atol=0.5),
        "The third derivative is right only to one or two digits. Is it a finite difference?",
    )
    require(
        np.allclose(got, wanted, rtol=1e-4, atol=1e-4) or not np.allclose(got, np.abs(wanted), rtol=1e-3, atol=1e-3),
        "The third derivative is right except for its sign.",
    )
for one, value in zip(got, wanted, strict=True):
    compare(one, np.float32(value), atol=1e-4, label="the third derivative")
made = program(lambda x: third_derivative(lambda x: 1e4 * x**2 + jnp.sin(x), x), np.float32(0))
for _ in range(3):
    x = np.float32(inputs.rng().uniform(0.1, 1.4))
    require(
        np.isclose(made.run(x), -np.cos(x), rtol=1e-3, atol=1e-3),
        "Adding a steep parabola, whose third derivative is 0, changes the result. Is one of the three derivatives a "
        "finite difference? Rounding then removes most digits.",
    )

# %% hidden="grad-third-derivative" name="again" points=1
"""Can be differentiated once more."""
made = program(lambda x: jax.grad(lambda x: third_derivative(wave, x))(x), np.float32(0))
for start in (
    -2,
    -0.05,
    0.6,
):  # between these and half a unit further, the third derivative is first positive, then not
    x = np.float32(start + inputs.rng().uniform(0, 0.5))
    wanted = np.imag((0.5 + 2j) ** 4 * np.exp((0.5 + 2j) * x))
    compare(made.run(x), np.float32(wanted), atol=1e-3, label="the derivative of the third derivative")

# %% [markdown] why="grad-third-derivative"
# `grad` returns a function, so it can be applied to its own result. Each level differentiates all operations of the previous one, so the result is exact up to rounding, and the program grows quickly. **Next:** Which function in the lesson's Deeper sections gives a shorter program for the tenth derivative?


# %% wrong="grad-third-derivative" because="Raises the first derivative to the third power instead of differentiating three times."
def third_derivative(f, x):
    return jax.grad(f)(x) ** 3


# %% wrong="grad-third-derivative" because="Differentiates only twice."
def third_derivative(f, x):
    return jax.grad(jax.grad(f))(x)


# %% wrong="grad-third-derivative" because="Uses finite differences three times, which leaves almost no digits of float32."
def third_derivative(f, x):
    h = 0.05
    return (f(x + 2 * h) - 2 * f(x + h) + 2 * f(x - h) - f(x - 2 * h)) / (2 * h**3)


# %% wrong="grad-third-derivative" because="Computes the last derivative by a finite difference, which is inaccurate if the second derivative is large."
def third_derivative(f, x):
    h, bend = 1e-3, jax.grad(jax.grad(f))
    return (bend(x + h) - bend(x - h)) / (2 * h)


# %% wrong="grad-third-derivative" because="Returns the coefficient of the Taylor series, which is the derivative divided by 3 · 2 · 1."
def third_derivative(f, x):
    return jax.grad(jax.grad(jax.grad(f)))(x) / 6


# %% wrong="grad-third-derivative" because="Calls f first, so grad is given a number instead of a function."
def third_derivative(f, x):
    return jax.grad(jax.grad(jax.grad(f(x))))


# %% wrong="grad-third-derivative" because="Passes (1, 1, 1) as the derivatives of x in Taylor mode, but the second and the third derivative of x are 0."
def third_derivative(f, x):
    from jax.experimental import jet

    return jet.jet(f, (x,), ((1.0, 1.0, 1.0),))[1][2]


# %% wrong="grad-third-derivative" because="Takes the absolute value, but a derivative may be negative."
def third_derivative(f, x):
    return jnp.abs(jax.grad(jax.grad(jax.grad(f)))(x))


# %% wrong="grad-third-derivative" because="Applies stop_gradient to the result, so its own derivative is 0."
def third_derivative(f, x):
    return jax.lax.stop_gradient(jax.grad(jax.grad(jax.grad(f)))(x))


# %% wrong="grad-third-derivative" because="Differentiates four times."
def third_derivative(f, x):
    for _ in range(4):
        f = jax.grad(f)
    return f(x)


# %% wrong="grad-third-derivative" because="Computes the last derivative by a finite difference, which is inaccurate if the second derivative is large."
def third_derivative(f, x):
    second = jax.grad(jax.grad(f))
    h = 0.125
    return (second(x + h) - second(x - h)) / (2 * h)


# %% wrong="grad-third-derivative" because="Passes each derivative on as the next x, instead of differentiating the derivative."
def third_derivative(f, x):
    for _ in range(3):
        x = jax.grad(f)(x)
    return x


# %% wrong="grad-third-derivative" because="Computes the last derivative by a finite difference, which is inaccurate if the second derivative is large."
def third_derivative(f, x):
    second = jax.grad(jax.grad(f))
    h = 0.0625
    return (second(x + h) - second(x - h)) / (2 * h)


# %% right="grad-third-derivative"
def third_derivative(f, x):
    from jax.experimental import jet

    return jet.jet(f, (x,), ((1.0, 0.0, 0.0),))[1][2]


# %% right="grad-third-derivative"
def third_derivative(f, x):
    derivative = lambda g: lambda x: jax.jvp(g, (x,), (jnp.ones_like(x),))[1]
    return derivative(derivative(derivative(f)))(x)


# %% [markdown] task="grad-stop-target" stars=1 minutes=12 skills="01_arrays,grad-zero"
# ## A target that stays constant
# **Goal.** An agent learns to predict the value of a state from the value that it predicts one step later. The prediction for a state should approach a **target**, which is the reward plus the discounted value of the next state. The prediction and the target are computed from the same parameters, but only the prediction should be trained. Otherwise, the target would also move towards the prediction.
#
# **Signature.** `stop_target(value, params, states, rewards, next_states, discount)`. `value(params, states)` returns the values `(n,)`, as `worth` from the setup does. `params` is a dict of arrays, `states` and `next_states` have shape `(n, d)` and `rewards` has shape `(n,)`, all float32, and `discount` is a float. The target is `rewards + discount * value(params, next_states)`, and the loss is the mean over n of `(value(params, states) - target)²`. The result is the gradient of the loss with respect to `params`, with the target held constant, in the structure of `params`.
#
# **Example.** For one state `[0]` with next state `[0]`, `w = [0]`, `b = 2`, reward 1 and discount 0.5, the prediction is 2 and the target is 1 + 0.5 · 2 = 2. Both gradients are 0. With reward 0, the target is 1 and the gradient with respect to `b` is 2 · (2 - 1) · 1 = 2.
#
# **Judged.** The values and the structure, for several value functions. **Not judged.** How the target is held constant.
#
# <details><summary>Hint 1 · a question</summary>
#
# If the target is trained too, the gradient with respect to `b` in the example with reward 0 is 1. Which part of the loss should JAX treat as a constant?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# In the exercise about the loss that never falls, the model was run outside the loss by mistake, so its result was a constant. `jax.lax.stop_gradient` does the same on purpose.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write the loss as a function of `params`. In it, apply `stop_gradient` to the whole target before you subtract it. Then use `jax.grad`.
#
# </details>


# %% answer="grad-stop-target"
def stop_target(value, params, states, rewards, next_states, discount):
    """The gradient of mean((value(params, states) - target)²) with respect to params, with the target held constant."""

    ### BEGIN SOLUTION
    def loss(params):
        target = jax.lax.stop_gradient(rewards + discount * value(params, next_states))
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)
    ### END SOLUTION


# %% check="grad-stop-target" name="example" points=1
"""The example, with reward 1 and with reward 0."""
params = {"w": np.zeros(1, np.float32), "b": np.float32(2)}
state, reward = np.zeros((1, 1), np.float32), np.array([1], np.float32)
made = program(lambda p, s, r, t: stop_target(worth, p, s, r, t, 0.5), params, state, reward, state)
nothing = {"w": np.zeros(1, np.float32), "b": np.float32(0)}
compare(made.run(params, state, reward, state), nothing, label="with reward 1, the gradient")
wanted = {"w": np.zeros(1, np.float32), "b": np.float32(2)}
compare(made.run(params, state, 0 * reward, state), wanted, label="with reward 0, the gradient")

# %% hidden="grad-stop-target" name="values" points=2
"""Differentiates the whole prediction, and not the target."""


def gradient_by(params, states, errors):
    """How the sum of errors * worth changes with the parameters."""
    inner = errors * (1 - np.tanh(states @ params["w"]) ** 2)
    return {"w": inner @ states, "b": errors.sum()}


def near(got, wanted):
    w = got.get("w") if isinstance(got, dict) else None
    return getattr(w, "shape", None) == (3,) and np.allclose(w, wanted["w"], rtol=1e-3, atol=1e-4)


def draw():
    rng = inputs.rng()
    params = {"w": rng.normal(size=3).astype(np.float32), "b": np.float32(rng.normal())}
    states, following = rng.normal(size=(2, 6, 3)).astype(np.float32)
    return params, states, (1 + rng.uniform(size=6)).astype(np.float32), following


made = program(lambda p, s, r, t: stop_target(worth, p, s, r, t, 0.75), *draw())
for _ in range(3):
    params, states, rewards, following = draw()
    got = made.run(params, states, rewards, following)
    now, later = (np.tanh(where @ params["w"]) + params["b"] for where in (states, following))
    errors = (2 * (now - rewards - np.float32(0.75) * later) / 6).astype(np.float32)
    wanted, target = gradient_by(params, states, errors), gradient_by(params, following, np.float32(-0.75) * errors)
    require(not near(got, {"w": np.zeros(3)}), "The gradient is 0, because the prediction is held constant too.")
    require(
        not near(got, {"w": wanted["w"] + target["w"]}),
        "This is the gradient through both the prediction and the target. Hold the target constant.",
    )
    require(
        not near(got, target), "This is the gradient through the target alone. The prediction is held constant instead."
    )
    require(
        not near(got, {"w": 6 * wanted["w"]}),
        "For 6 states the gradient is 6 times too large. Is the loss a sum instead of a mean?",
    )
    compare(got, wanted, atol=1e-4, label="the gradient")


def probe_other(params, states, rewards, following):
    value = lambda params, states: params["gain"] * jnp.exp(states @ params["weights"])
    return stop_target(value, params, states, rewards, following, 0.5)


weights, gain = inputs.rng().uniform(-0.5, 0.5, size=3).astype(np.float32), np.float32(inputs.rng().uniform(1, 2))
params = {"weights": weights, "gain": gain}
now, later = (np.exp(where @ weights) for where in (states, following))
errors = 2 * (gain * (now - later / 2) - rewards) / 6
wanted = {"weights": ((errors * gain * now) @ states).astype(np.float32), "gain": np.float32(errors @ now)}
with case("for a value function with other parameters"):
    got = program(probe_other, params, states, rewards, following).run(params, states, rewards, following)
compare(got, wanted, rtol=1e-3, atol=1e-4, label="the gradient for another value function")

# %% [markdown] why="grad-stop-target"
# `stop_gradient` is the identity in the forward pass, and its derivative is 0. The result is the gradient of a loss whose target is a constant. It is not the gradient of any single loss of `params`, so it is called a *semi-gradient*. **Next:** Would you still need `stop_gradient` if the target used a copy of the parameters from 1,000 steps ago?


# %% wrong="grad-stop-target" because="Differentiates the target too, so the gradient also moves the target towards the prediction."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        target = rewards + discount * value(params, next_states)
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Holds the prediction constant, so the gradient moves the target towards it."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        target = rewards + discount * value(params, next_states)
        return jnp.mean((jax.lax.stop_gradient(value(params, states)) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Applies stop_gradient to the difference, so nothing is left to differentiate."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        target = rewards + discount * value(params, next_states)
        return jnp.mean(jax.lax.stop_gradient(value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Applies stop_gradient only to the rewards, which do not depend on the parameters, while the value of the next state does."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        target = jax.lax.stop_gradient(rewards) + discount * value(params, next_states)
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Applies stop_gradient to the states, which are data, while the gradient is taken with respect to the parameters."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        target = rewards + discount * value(params, jax.lax.stop_gradient(next_states))
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Takes the sum over the states instead of the mean."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        target = jax.lax.stop_gradient(rewards + discount * value(params, next_states))
        return jnp.sum((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Computes the gradient by hand for `worth`, but another value function has another gradient."
def stop_target(value, params, states, rewards, next_states, discount):
    target = rewards + discount * value(params, next_states)
    errors = 2 * (value(params, states) - target)
    steep = 1 - jnp.tanh(states @ params["w"]) ** 2
    return {"w": jnp.mean((errors * steep)[:, None] * states, axis=0), "b": jnp.mean(errors)}


# %% wrong="grad-stop-target" because="Holds one parameter constant in the target, but the other parameters still change it."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        held = {**params, "b": jax.lax.stop_gradient(params["b"])}
        target = rewards + discount * value(held, next_states)
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% wrong="grad-stop-target" because="Makes the targets a column, so every prediction is compared with every target."
def stop_target(value, params, states, rewards, next_states, discount):
    target = (rewards + discount * value(params, next_states))[:, None]
    return jax.grad(lambda params: jnp.mean((value(params, states) - target) ** 2))(params)


# %% wrong="grad-stop-target" because="Leaves out the discount in the target."
def stop_target(value, params, states, rewards, next_states, discount):
    target = rewards + value(params, next_states)
    return jax.grad(lambda params: jnp.mean((value(params, states) - target) ** 2))(params)


# %% wrong="grad-stop-target" because="Uses the parameter names of the example, but another value function has other names."
def stop_target(value, params, states, rewards, next_states, discount):
    target = rewards + discount * value(params, next_states)

    def loss(w, b):
        return jnp.mean((value({"w": w, "b": b}, states) - target) ** 2)

    by_w, by_b = jax.grad(loss, argnums=(0, 1))(params["w"], params["b"])
    return {"w": by_w, "b": by_b}


# %% wrong="grad-stop-target" because="Divides the full gradient by a factor, which is right only if both states have the same derivative."
def stop_target(value, params, states, rewards, next_states, discount):

    def loss(params):
        target = rewards + discount * value(params, next_states)
        return jnp.mean((value(params, states) - target) ** 2)

    # the target follows with the part `discount` of each change, take that out again
    return jax.tree.map(lambda g: g / (1 - discount), jax.grad(loss)(params))


# %% wrong="grad-stop-target" because="Uses the parameter names of the example, but another value function has other names."
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params):
        frozen = {"w": jax.lax.stop_gradient(params["w"]), "b": jax.lax.stop_gradient(params["b"])}
        target = rewards + discount * value(frozen, next_states)
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss)(params)


# %% right="grad-stop-target"
def stop_target(value, params, states, rewards, next_states, discount):
    target = rewards + discount * value(params, next_states)
    return jax.grad(lambda params: jnp.mean((value(params, states) - target) ** 2))(params)


# %% right="grad-stop-target"
def stop_target(value, params, states, rewards, next_states, discount):
    now, way_back = jax.vjp(lambda params: value(params, states), params)
    target = rewards + discount * value(params, next_states)
    return way_back(2 * (now - target) / len(rewards))[0]


# %% right="grad-stop-target"
def stop_target(value, params, states, rewards, next_states, discount):
    def loss(params, frozen):
        target = rewards + discount * value(frozen, next_states)
        return jnp.mean((value(params, states) - target) ** 2)

    return jax.grad(loss, argnums=0)(params, params)


# %% [markdown] task="grad-safe-norm" stars=2 minutes=15 skills="01_arrays,03_jit,grad-grads"
# ## A norm that is safe at zero
# **Goal.** Compute the length of each row, with a gradient that is finite everywhere. At a row of zeros, the length has a kink and no derivative. A NaN there would turn all parameters into NaN in the next step. The gradient at this point should be 0.
#
# **Signature.** `safe_norm(rows)`. `rows` has shape `(n, d)` and is float32. The result `(n,)` contains the square root of the sum of squares of each row.
#
# **Example.** For `[[3, 4], [0, 0]]`, the result is `[5, 0]`. The gradient of the sum of both lengths with respect to `rows` is `[[0.6, 0.8], [0, 0]]`.
#
# **Judged.** The values, with a relative tolerance, also for rows as short as 10⁻¹² or with single zeros. The length of a row of zeros is exactly 0. The gradients in reverse mode and in forward mode. The gradient of a length is the row divided by this length, and 0 for a row of zeros. **Not judged.** Rows whose squares are outside the range of float32, and second derivatives.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is the derivative of the square root at 0? And what is this derivative times 0?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A `where` on the *result* is not enough. In the backward pass, the side that is not selected gets 0 and multiplies it by its own derivative. The square root must never get a 0.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `where` twice. Before the square root, replace the sum of squares by a harmless value such as 1 where it is 0. After the square root, select the right value, 0, there.
#
# </details>


# %% answer="grad-safe-norm"
def safe_norm(rows):
    """The length (n,) of each row of rows (n, d), with gradient 0 at a row of zeros."""
    ### BEGIN SOLUTION
    squares = jnp.sum(rows**2, axis=1)
    zero = squares == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))
    ### END SOLUTION


# %% check="grad-safe-norm" name="example" points=1
"""The example: lengths, and the gradient of their sum."""
rows = np.array([[3, 4], [0, 0]], np.float32)
made = program(lambda rows: [safe_norm(rows), jax.grad(lambda rows: jnp.sum(safe_norm(rows)))(rows)], rows)
lengths, gradient = made.run(rows)
compare(lengths, np.array([5, 0], np.float32), label="the lengths")
compare(gradient, np.array([[0.6, 0.8], [0, 0]], np.float32), label="the gradient of their sum")

# %% hidden="grad-safe-norm" name="values" points=1
"""Right for long rows, for very short rows and for zeros."""
made = program(safe_norm, np.zeros((5, 5), np.float32))
for _ in range(3):
    rng = inputs.rng()
    rows = rng.normal(size=(5, 5)) * rng.permutation([1e3, 1, 1e-6, 1e-12, 0])[:, None]
    rows = rows.astype(np.float32)
    rows[np.arange(5), rng.integers(5, size=5)] = 0  # one zero in every row
    wanted = np.sqrt(np.sum(rows.astype(np.float64) ** 2, axis=1)).astype(np.float32)
    got = made.run(rows)
    if getattr(got, "shape", None) == (5,):
        got = np.asarray(got)
        require(np.all(got[wanted == 0] == 0), "The length of a row of zeros is not exactly 0.")
        long = wanted > 1e-3
        require(np.all(got[long] > 0), "A row with a single zero gets the length 0.")
        require(
            np.allclose(got[long], wanted[long], rtol=1e-3, atol=0),
            "The lengths of rows with a single zero are wrong.",
        )
        short = (wanted > 0) & ~long
        require(
            np.allclose(got[short], wanted[short], rtol=1e-3, atol=0),
            "The lengths of very short rows are wrong. Do not add a small number, and treat only rows of zeros as zero.",
        )
    compare(got, wanted, atol=0, label="the lengths")

# %% hidden="grad-safe-norm" name="reverse" points=1
"""The gradient is the direction of each row, and 0 at a row of zeros."""


def probe_reverse(rows, weights):
    return jax.grad(lambda rows: jnp.sum(weights * safe_norm(rows)))(rows)


rng = inputs.rng()
rows = (rng.normal(size=(5, 3)) * rng.permutation([1e3, 1, 1e-6, 1e-12, 0])[:, None]).astype(np.float32)
rows[np.arange(5), rng.integers(3, size=5)] = 0  # one zero in every row
weights = rng.uniform(1, 2, size=5).astype(np.float32)
# Operation by operation: a compiler may turn "times 0" into a choice, and so hide what 0 times inf is.
got = ask(probe_reverse, rows, weights)
require(
    np.isfinite(got).all(), "The gradient is not finite. Somewhere, 0 is multiplied by inf, the derivative of sqrt(0)."
)
length = np.sqrt(np.sum(rows.astype(np.float64) ** 2, axis=1, keepdims=True))
wanted = (weights[:, None] * rows / np.where(length == 0, 1, length)).astype(np.float32)
zeros = np.asarray(got)[length[:, 0] == 0]
require(not np.any(zeros), "The gradient at a row of zeros is finite, but not 0.")
compare(got, wanted, label="the gradient")

# %% hidden="grad-safe-norm" name="forward" points=1
"""Forward mode agrees, without a NaN at a row of zeros."""
rng = inputs.rng()
rows = (rng.normal(size=(4, 4)) * rng.permutation([10, 1, 1, 0])[:, None]).astype(np.float32)
directions = rng.normal(size=(4, 4)).astype(np.float32)
got = ask(lambda rows, directions: jax.jvp(safe_norm, (rows,), (directions,))[1], rows, directions)
finite = getattr(got, "shape", None) != (4,) or np.isfinite(got).all()
require(finite, "The tangent of forward mode is not finite at a row of zeros.")
length = np.linalg.norm(rows, axis=1)
compare(got, np.sum(rows * directions, axis=1) / np.where(length == 0, 1, length), label="the tangents of forward mode")

# %% [markdown] why="grad-safe-norm"
# The inner `where` keeps 0 out of the square root, so its derivative is finite in the backward pass. The outer `where` restores the value 0. With only one `where`, 0 · inf would be NaN. **Next:** How would you do the same for `x / |x|`, and for a standard deviation of values that may all be equal?


# %% equivalent="grad-safe-norm" because="The inner where keeps the root and its derivative finite, so a product with 0 gives 0."
# product for where, where(X, 0, Y) -> (1 - X) * Y: return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))


# %% wrong="grad-safe-norm" because="Uses the norm of the library, whose gradient at a row of zeros is 0 times inf."
def safe_norm(rows):
    return jnp.linalg.norm(rows, axis=1)


# %% wrong="grad-safe-norm" because="Uses one where around the result, so the square root still gets the 0, and the backward pass multiplies its derivative inf by 0."
def safe_norm(rows):
    squares = jnp.sum(rows**2, axis=1)
    return jnp.where(squares == 0, 0, jnp.sqrt(squares))


# %% wrong="grad-safe-norm" because="Adds a small number under the root, so the gradient is finite, but the length of a row of zeros is not 0, and short rows are wrong."
def safe_norm(rows):
    return jnp.sqrt(jnp.sum(rows**2, axis=1) + 1e-12)


# %% wrong="grad-safe-norm" because="Limits the root from below, but where the limit is selected, 0 is still multiplied by the derivative inf of the root."
def safe_norm(rows):
    return jnp.maximum(jnp.sqrt(jnp.sum(rows**2, axis=1)), 1e-12)


# %% wrong="grad-safe-norm" because="Applies nan_to_num to the value, but only its derivative is NaN."
def safe_norm(rows):
    return jnp.nan_to_num(jnp.sqrt(jnp.sum(rows**2, axis=1)))


# %% wrong="grad-safe-norm" because="Treats every short row as a row of zeros, so its length and its gradient are lost."
def safe_norm(rows):
    squares = jnp.sum(rows**2, axis=1)
    zero = squares < 1e-8
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))


# %% wrong="grad-safe-norm" because="Inserts the 1 but does not remove it again, so a row of zeros gets the length 1."
def safe_norm(rows):
    squares = jnp.sum(rows**2, axis=1)
    return jnp.sqrt(jnp.where(squares == 0, 1, squares))


# %% wrong="grad-safe-norm" because="Replaces every zero entry by 1, so a row with a single zero becomes too long."
def safe_norm(rows):
    zero = jnp.all(rows == 0, axis=1)
    lengths = jnp.sqrt(jnp.sum(jnp.where(rows == 0, 1, rows) ** 2, axis=1))
    return jnp.where(zero, 0, lengths)


# %% wrong="grad-safe-norm" because="Defines only the backward pass, but a custom_vjp has no forward mode."
def safe_norm(rows):
    norm = jax.custom_vjp(lambda rows: jnp.sqrt(jnp.sum(rows**2, axis=1)))

    def backward(kept, g):
        rows, lengths = kept
        return ((g / jnp.where(lengths == 0, 1, lengths))[:, None] * rows,)

    norm.defvjp(lambda rows: (norm(rows), (rows, norm(rows))), backward)
    return norm(rows)


# %% wrong="grad-safe-norm" because="Adds the smallest float32 under the root, so the length of a row of zeros is 1e-19 instead of 0."
def safe_norm(rows):
    return jnp.sqrt(jnp.sum(rows**2, axis=1) + jnp.finfo(jnp.float32).tiny)


# %% wrong="grad-safe-norm" because="Treats a row with a single zero as a row of zeros."
def safe_norm(rows):
    zero = jnp.any(rows == 0, axis=1)
    squares = jnp.sum(rows**2, axis=1)
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))


# %% wrong="grad-safe-norm" because="Defines only the backward pass, but a custom_vjp has no forward mode."
@jax.custom_vjp
def safe_norm(rows):
    return jnp.sqrt(jnp.sum(rows**2, axis=1))


def _safe_norm_forward(rows):
    lengths = safe_norm(rows)
    return lengths, (rows, lengths)


def _safe_norm_back(kept, g):
    rows, lengths = kept
    return ((g / jnp.where(lengths > 0, lengths, 1))[:, None] * rows,)


safe_norm.defvjp(_safe_norm_forward, _safe_norm_back)


# %% wrong="grad-safe-norm" because="Divides by at least 1e-7, so the gradients of very short rows are too small."
@jax.custom_jvp
def row_lengths(rows):
    return jnp.sqrt(jnp.sum(rows**2, axis=1))


@row_lengths.defjvp
def row_lengths_rule(primals, tangents):
    (rows,), (moved,) = primals, tangents
    lengths = row_lengths(rows)
    return lengths, jnp.sum(rows * moved, axis=1) / jnp.maximum(lengths, 1e-7)


def safe_norm(rows):
    return row_lengths(rows)


# %% right="grad-safe-norm"
def safe_norm(rows):
    squares = jnp.sum(rows**2, axis=1)
    return squares * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1))


# %% right="grad-safe-norm"
def safe_norm(rows):
    @jax.custom_jvp
    def norm(rows):
        return jnp.linalg.norm(rows, axis=1)

    @norm.defjvp
    def rule(primals, tangents):
        length = norm(primals[0])
        return length, jnp.sum(primals[0] * tangents[0], axis=1) / jnp.where(length == 0, 1, length)

    return norm(rows)


# %% right="grad-safe-norm"
def safe_norm(rows):
    zero = jnp.all(rows == 0, axis=1)
    return jnp.where(zero, 0, jnp.linalg.norm(jnp.where(zero[:, None], 1, rows), axis=1))


# %% [markdown] task="grad-clip" stars=2 minutes=20 skills="01_arrays,03_jit,grad-safe-norm"
# ## Clip the gradient in the backward pass
# *Needs: Deeper: a backward pass of your own.*
#
# **Goal.** A single bad example can produce a very large gradient, which spoils the parameters. Write a function to insert into a model. In the forward pass, it returns its input. In the backward pass, it scales down a gradient that is too long.
#
# **Signature.** `clip_gradient(x, limit)`. `x` is an array of any shape, float32, and `limit` is a positive number, possibly traced. The result is `x`. In the backward pass, `g` is the gradient that arrives, in the shape of `x`, and `|g|` is the square root of the sum of its squares. If `|g|` is at most `limit`, pass on `g` unchanged. Otherwise pass on `g * limit / |g|`, which has the length `limit`. The gradient with respect to `limit` is 0.
#
# **Example.** The gradient of `3 x₀ + 4 x₁` with respect to `x` is `[3, 4]`, of length 5. With `clip_gradient(x, 1.0)` instead of `x`, it is `[0.6, 0.8]`. With limit 10, it is `[3, 4]` again.
#
# **Judged.** The values. The gradients with respect to `x`, whether they are long, short, as small as 10⁻⁶ or zero, for vectors and matrices, and under `jit` with a traced limit. The gradient with respect to `limit`. **Not judged.** Gradients whose squares are outside the range of float32, and forward mode, which a `custom_vjp` does not support.
#
# <details><summary>Hint 1 · a question</summary>
#
# A custom rule consists of two functions. The first stores values in the forward pass, and the second processes `g` in the backward pass. Which of `x` and `limit` does the second function need?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Apply `jax.custom_vjp` to the identity. Then call `defvjp` with two functions. The first returns the result *and* the values to store. The second takes these values and `g`, and returns a tuple with an entry for each argument. `None` stands for 0.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Multiply `g` by the smaller of 1 and `limit / |g|`. For `g = 0`, the quotient is limit / 0 = inf, and the smaller number is 1. You may define the function and its rule inside `clip_gradient`, and call it there.
#
# </details>


# %% answer="grad-clip"
def clip_gradient(x, limit):
    """x itself. In the backward pass, a gradient longer than limit () is scaled down to this length."""

    ### BEGIN SOLUTION
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def forward(x, limit):
        return x, limit

    def backward(limit, g):
        length = jnp.sqrt(jnp.sum(g**2))
        return g * jnp.minimum(1, limit / length), None

    clipped.defvjp(forward, backward)
    return clipped(x, limit)
    ### END SOLUTION


# %% check="grad-clip" name="example" points=1
"""The example: a gradient of length 5, with limit 1 and with limit 10."""


def probe_example(x, limit):
    return jax.grad(lambda x: jnp.vdot(jnp.array([3.0, 4.0]), clip_gradient(x, limit)))(x)


x = jnp.array([7.0, -2.0])
compare(ask(clip_gradient, x, 1.0), x, label="the result")
compare(ask(probe_example, x, 1.0), np.array([0.6, 0.8], np.float32), label="the gradient with limit 1")
made = program(probe_example, x, np.float32(10))  # here the limit is traced
compare(made.run(x, np.float32(10)), np.array([3, 4], np.float32), label="the gradient with limit 10")

# %% hidden="grad-clip" name="values" points=2
"""Keeps values and short gradients, and shortens long ones as a whole. The limit may be traced."""


def probe_all(x, weights, limit):
    def loss(x, limit):
        return jnp.sum(weights * jnp.sin(clip_gradient(x, limit)))

    return clip_gradient(x, limit), *jax.grad(loss, argnums=(0, 1))(x, limit)


made = program(probe_all, np.zeros((3, 3), np.float32), np.zeros((3, 3), np.float32), np.float32(1))
for factor, size, what in (
    (0.25, 1, "a gradient four times too long"),
    (4.0, 1, "a gradient below the limit"),
    (0.25, 1e-6, "a tiny gradient, four times too long,"),
    (4.0, 1e-6, "a tiny gradient below the limit"),
):
    x, weights = inputs.rng().normal(size=(2, 3, 3)).astype(np.float32)
    weights *= np.float32(size)
    arriving = weights * np.cos(x)
    length = np.linalg.norm(arriving)
    value, by_x, by_limit = made.run(x, weights, np.float32(factor * length))
    compare(value, x, label="the result")
    if factor < 1:
        require(
            not np.allclose(by_x, arriving, rtol=1e-3, atol=0), "A gradient that is too long is passed on unchanged."
        )
        for axis in (0, 1):
            lengths = np.linalg.norm(arriving, axis=axis, keepdims=True)
            apart = arriving * np.minimum(1, factor * length / lengths)
            require(
                not np.allclose(by_x, apart, rtol=1e-3, atol=0),
                "Each row or column has its own length here. `|g|` is one number for the whole array.",
            )
    compare(by_x, arriving * np.float32(min(1, factor)), rtol=1e-3, atol=1e-5 * size, label=what)
    compare(by_limit, np.float32(0), label="the gradient with respect to limit")

# %% hidden="grad-clip" name="zero" points=1
"""A gradient of 0 stays 0, whatever x is."""


def probe_zero(x, limit):
    return jax.grad(lambda x: jnp.sum(clip_gradient(x, limit) ** 2))(x)


x = inputs.rng().normal(size=6).astype(np.float32)
compare(ask(probe_zero, x, 2 * float(np.linalg.norm(2 * x))), 2 * x, label="a gradient below the limit")
got = ask(probe_zero, 0 * x, 2.0)
require(
    np.isfinite(got).all(), "If the gradient that arrives is 0, the one that is passed on is not finite. Is it 0 / 0?"
)
compare(got, 0 * x, label="the gradient where 0 arrives")

# %% [markdown] why="grad-clip"
# A `custom_vjp` defines the backward pass, whether or not it is the derivative of the forward pass. JAX does not check this. Here the difference is intended, because the value is that of the identity and the gradient is not. **Next:** Clipping each *entry* of `g` to ±limit also bounds it. What happens to the direction then?


# %% wrong="grad-clip" because="Clips the value in the forward pass instead of the gradient in the backward pass."
def clip_gradient(x, limit):
    return x * jnp.minimum(1, limit / jnp.sqrt(jnp.sum(x**2)))


# %% wrong="grad-clip" because="Clips each entry separately, which changes the direction of the gradient, and its length is not the limit."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    clipped.defvjp(lambda x, limit: (x, limit), lambda limit, g: (jnp.clip(g, -limit, limit), None))
    return clipped(x, limit)


# %% wrong="grad-clip" because="Measures each row separately, but |g| is one number for the whole array."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / jnp.linalg.norm(g, axis=-1, keepdims=True)), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Scales every gradient to the limit, so short gradients become longer."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * limit / jnp.maximum(jnp.sqrt(jnp.sum(g**2)), 1e-12), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Measures x, which was stored, instead of the gradient that arrives."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(kept, g):
        x, limit = kept
        return g * jnp.minimum(1, limit / jnp.sqrt(jnp.sum(x**2))), None

    clipped.defvjp(lambda x, limit: (x, (x, limit)), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Returns one gradient for two arguments."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / jnp.sqrt(jnp.sum(g**2)))

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Divides by the length before it multiplies, which is 0 / 0 if the gradient that arrives is 0."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        length = jnp.sqrt(jnp.sum(g**2))
        return g / length * jnp.minimum(length, limit), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Declares limit as non-differentiable by its position, so it must be a Python number, and a traced limit is rejected."
def clip_gradient(x, limit):
    def clipped(x, limit):
        return x

    def backward(limit, kept, g):
        return (g * jnp.minimum(1, limit / jnp.sqrt(jnp.sum(g**2))),)

    clipped = jax.custom_vjp(clipped, nondiff_argnums=(1,))
    clipped.defvjp(lambda x, limit: (x, None), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Compares the sum of squares with the limit, but the length is its square root."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / jnp.sum(g**2)), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Adds 1e-6 to the length to avoid a division by 0, so a tiny gradient becomes too short."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / (jnp.sqrt(jnp.sum(g**2)) + 1e-6)), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Computes the norm with ord=2, which is the largest singular value of a matrix."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / jnp.linalg.norm(g, ord=2)), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Returns the limit as its own gradient instead of 0."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / jnp.sqrt(jnp.sum(g**2))), limit

    clipped.defvjp(lambda x, limit: (x, jnp.asarray(limit, jnp.float32)), backward)
    return clipped(x, limit)


# %% wrong="grad-clip" because="Measures the largest entry, but the length is the square root of the sum of squares."
def clip_gradient(x, limit):
    @jax.custom_vjp
    def clipped(x, limit):
        return x

    def backward(limit, g):
        return g * jnp.minimum(1, limit / jnp.max(jnp.abs(g))), None

    clipped.defvjp(lambda x, limit: (x, limit), backward)
    return clipped(x, limit)


# %% right="grad-clip"
@jax.custom_vjp
def clip_gradient(x, limit):
    return x


def keep_limit(x, limit):
    return x, limit


def shorten(limit, g):
    length = jnp.linalg.norm(g.ravel())
    return jnp.where(length > limit, g * (limit / length), g), jnp.zeros_like(limit)


clip_gradient.defvjp(keep_limit, shorten)


# %% right="grad-clip"
def clip_gradient(x, limit):
    limit = jax.lax.stop_gradient(limit)
    clipped = jax.custom_vjp(lambda x, limit: x)
    scale = lambda g, limit: g / jnp.maximum(1, jnp.sqrt(jnp.sum(g * g)) / limit)
    clipped.defvjp(lambda x, limit: (x, limit), lambda limit, g: (scale(g, limit), jnp.zeros_like(limit)))
    return clipped(x, limit)


# %% [markdown] task="grad-hvp" stars=2 minutes=20 skills="01_arrays,02_tracing,grad-third-derivative"
# ## Curvature along a line
# **Goal.** How does the gradient change when x moves along v? The answer is the Hessian times v. For a million parameters, the Hessian has a million times a million entries. The product has only a million entries, and it costs about as much as a few gradients.
#
# **Signature.** `hvp(f, x, v)`. `f` takes a vector `(n,)` and returns a number `()`. `x` and `v` have shape `(n,)` and are float32. The result `(n,)` is the Hessian of `f` at `x`, times `v`.
#
# **Example.** For two numbers, `ripple` from the setup is `sin(x₀) x₁²`. At `x = [0, 3]`, its Hessian is `[[0, 6], [6, 0]]`, and for `v = [1, 2]` the product is `[12, 6]`.
#
# **Judged.** The values for several functions, also for v = 0. No intermediate array is as large as half of the Hessian. The program has no loop, and it needs at most 8 times the flops of the gradient. **Not judged.** Which modes you combine.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.grad(f)` is a function from `(n,)` to `(n,)`, and its Jacobian is the Hessian of `f`. Which transformation multiplies a Jacobian by a vector without computing the Jacobian?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Use forward mode. `jax.jvp(g, (x,), (v,))` returns `g(x)` and the derivative of `g` along `v`, without computing a matrix.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Apply `jax.jvp` to the gradient function instead of `f`, and return the second of its two results.
#
# </details>


# %% answer="grad-hvp"
def hvp(f, x, v):
    """The Hessian of f: (n,) -> () at x (n,), times v (n,). Returns (n,)."""
    ### BEGIN SOLUTION
    return jax.jvp(jax.grad(f), (x,), (v,))[1]
    ### END SOLUTION


# %% check="grad-hvp" name="example" points=1
"""The example: two numbers."""
x, v = np.array([[0, 3], [1, 2]], np.float32)
compare(program(lambda x, v: hvp(ripple, x, v), x, v).run(x, v), np.array([12, 6], np.float32), label="the product")

# %% hidden="grad-hvp" name="values" points=1
"""Right for any direction, to the precision of float32."""
made = program(lambda x, v: hvp(ripple, x, v), np.zeros(5, np.float32), np.zeros(5, np.float32))
for _ in range(3):
    x, v = inputs.rng().normal(size=(2, 5)).astype(np.float32)
    v *= np.float32(0.01)  # short, so that a difference of two gradients always shows
    first, second = x[:-1].astype(np.float64), x[1:]  # each term of the sum depends on two neighbours
    wanted = np.zeros(5)
    wanted[:-1] += -np.sin(first) * second**2 * v[:-1] + 2 * np.cos(first) * second * v[1:]
    wanted[1:] += 2 * np.cos(first) * second * v[:-1] + 2 * np.sin(first) * v[1:]
    got = made.run(x, v)
    if getattr(got, "shape", None) == (5,) and np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max():
        exact = np.allclose(got, wanted, rtol=1e-4, atol=1e-7)
        require(exact, "The product is right only to a few digits. Is it a difference of two gradients?")
    compare(got, wanted.astype(np.float32), atol=1e-7, label="the product")
compare(made.run(x, 0 * v), np.zeros(5, np.float32), label="the product for v = 0")
got = program(lambda x, v: hvp(lambda x: jnp.sum(x) ** 3, x, v), x, v).run(x, v)
compare(
    got, np.full(5, 6 * x.sum() * v.sum(), np.float32), rtol=1e-3, atol=1e-5, label="the product for the cube of a sum"
)

# %% hidden="grad-hvp" name="program" points=2
"""Right for 80 numbers, without a Hessian and without a loop, at the cost of a few gradients."""
x, v = inputs.rng().normal(size=(2, 80)).astype(np.float32)
made = program(lambda x, v: hvp(ripple, x, v), x, v)
sine, cosine, after = np.sin(x[:-1], dtype=np.float64), np.cos(x[:-1], dtype=np.float64), x[1:]
products = np.concatenate([2 * cosine * after * v[1:] - sine * after**2 * v[:-1], np.zeros(1)])
products[1:] += 2 * (cosine * after * v[:-1] + sine * v[1:])
compare(made.run(x, v), products.astype(np.float32), label="the product")
require(
    made.intermediates < 80 * 80 / 2,
    f"For 80 numbers the program has an array of {made.intermediates:,} elements, as if it computed the Hessian. Compute "
    "only the change of the gradient along `v`.",
)
require(made.loops == 0, "The program runs a loop. One direction needs only one forward-mode derivative.")
gradient = program(lambda x: jax.grad(ripple)(x), x)
entries = np.append(cosine * after**2, 0)
entries[1:] += 2 * sine * after
compare(gradient.run(x), entries.astype(np.float32), label="the gradient that the product is measured against")
if made.flops and gradient.flops:
    require(
        made.flops <= 8 * gradient.flops,
        f"The product costs {made.flops / gradient.flops:.0f} times the flops of the gradient. The limit is 8 times.",
    )

# %% [markdown] why="grad-hvp"
# The gradient is a function like any other. Forward mode computes its derivative along one direction at about the cost of running it twice. Conjugate gradients, estimates of curvature and Newton steps for large models use this product. **Next:** How would you find the largest eigenvalue of a Hessian that is too large to store?


# %% wrong="grad-hvp" because="Computes the whole Hessian and multiplies it by v."
def hvp(f, x, v):
    return jax.hessian(f)(x) @ v


# %% wrong="grad-hvp" because="Takes the difference of two gradients, which keeps only half of the digits of float32."
def hvp(f, x, v):
    step = 1e-3
    return (jax.grad(f)(x + step * v) - jax.grad(f)(x - step * v)) / (2 * step)


# %% wrong="grad-hvp" because="Sums each row of the Hessian before it multiplies by v."
def hvp(f, x, v):
    return jax.grad(lambda x: jnp.sum(jax.grad(f)(x)))(x) * v


# %% wrong="grad-hvp" because="Applies jvp to f instead of its gradient, which gives the derivative of f along v, one number."
def hvp(f, x, v):
    return jax.jvp(f, (x,), (v,))[1]


# %% wrong="grad-hvp" because="Returns the first result of jvp, which is the gradient itself."
def hvp(f, x, v):
    return jax.jvp(jax.grad(f), (x,), (v,))[0]


# %% wrong="grad-hvp" because="Computes each entry of the product with its own pass, which is as much work as the whole Hessian."
def hvp(f, x, v):
    return jnp.stack([jnp.vdot(jax.grad(lambda x: jax.grad(f)(x)[i])(x), v) for i in range(len(x))])


# %% wrong="grad-hvp" because="Computes the product row by row in a loop, which costs as much as n gradients."
def hvp(f, x, v):
    row = lambda push: jnp.vdot(jax.jvp(jax.grad(f), (x,), (push,))[1], v)
    return jax.lax.map(row, jnp.eye(len(x), dtype=x.dtype))


# %% wrong="grad-hvp" because="Normalises v and scales the result, which is 0 / 0 for v = 0."
def hvp(f, x, v):
    length = jnp.linalg.norm(v)
    return length * jax.jvp(jax.grad(f), (x,), (v / length,))[1]


# %% wrong="grad-hvp" because="Applies jacfwd to the product with v, which needs one JVP for each input and n times n numbers."
def hvp(f, x, v):
    return jax.jacfwd(lambda x: jnp.vdot(jax.grad(f)(x), v))(x)


# %% wrong="grad-hvp" because="Multiplies the diagonal of the Hessian by v."
def hvp(f, x, v):
    return jnp.diag(jax.hessian(f)(x)) * v


# %% wrong="grad-hvp" because="Computes the product row by row in a loop, which costs as much as n gradients."
def hvp(f, x, v):
    gradient = jax.grad(f)

    def entry(i):
        row = jax.grad(lambda x: gradient(x)[i])(x)
        return jnp.vdot(row, v)

    return jax.lax.map(entry, jnp.arange(x.shape[0]))


# %% right="grad-hvp"
def hvp(f, x, v):
    return jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x)


# %% right="grad-hvp"
def hvp(f, x, v):
    along = lambda x: jax.jvp(f, (x,), (v,))[1]
    return jax.grad(along)(x)


# %% right="grad-hvp"
def hvp(f, x, v):
    gradient, push = jax.linearize(jax.grad(f), x)
    return push(v)


# %% right="grad-hvp"
def hvp(f, x, v):
    gradient, way_back = jax.vjp(jax.grad(f), x)
    return way_back(v)[0]


# %% [markdown] task="grad-propagate" stars=2 minutes=20 skills="01_arrays,02_tracing,grad-hvp"
# ## From the laboratory: error bars
# *Needs: Deeper: Jacobians.*
#
# **Goal.** Three quantities were measured, each with its own uncertainty. A curve of hundreds of points is computed from them. How uncertain is each point of the curve? For independent measurements, the squares of the contributions add up to first order.
#
# **Signature.** `propagate(f, x, sigma)`. `f` takes a vector `(n,)` and returns a vector `(m,)`, where n is small and m is large. `x` and `sigma` have shape `(n,)` and are float32, and `sigma` is not negative. The result has shape `(m,)`. Its entry i is the square root of the sum over j of `(∂fᵢ/∂xⱼ · sigmaⱼ)²`.
#
# **Example.** `rectangle` from the setup returns the area and the perimeter. For the sides `[3, 4]` and the uncertainties `[0.3, 0.1]`, the uncertainty of the area is √((4 · 0.3)² + (3 · 0.1)²) = 1.237, and that of the perimeter is √(0.6² + 0.2²) = 0.632.
#
# **Judged.** The values to the precision of float32, also if an input is negative or 0. One pass for each input is enough, so no intermediate array is as large as half of m times m. `f` may contain a `jax.lax.while_loop`. **Not judged.** A loop over the inputs, and derivatives of your result.
#
# <details><summary>Hint 1 · a question</summary>
#
# You need the derivatives of all outputs, which are the whole Jacobian `(m, n)`. It is tall and narrow. Is it cheaper to compute it row by row or column by column?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Reverse mode computes a row, which contains all derivatives of one output, so it needs m passes. Forward mode computes a column. JAX has a function for each way, and its name contains the mode.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Multiply each column of the Jacobian by its `sigma`, square, sum over the inputs and take the square root.
#
# </details>


# %% answer="grad-propagate"
def propagate(f, x, sigma):
    """The uncertainty (m,) of f: (n,) -> (m,) at x (n,), whose entries have the independent uncertainties sigma (n,)."""
    ### BEGIN SOLUTION
    contributions = jax.jacfwd(f)(x) * sigma
    return jnp.sqrt(jnp.sum(contributions**2, axis=1))
    ### END SOLUTION


# %% check="grad-propagate" name="example" points=1
"""The example: area and perimeter of a rectangle."""
x, sigma = np.array([[3, 4], [0.3, 0.1]], np.float32)
got = program(lambda x, sigma: propagate(rectangle, x, sigma), x, sigma).run(x, sigma)
compare(got, np.array([1.236932, 0.632456], np.float32), label="the uncertainties")

# %% hidden="grad-propagate" name="values" points=1
"""Right for any rectangle, also if one side is exact, negative or 0."""
made = program(lambda x, sigma: propagate(rectangle, x, sigma), np.zeros(2, np.float32), np.zeros(2, np.float32))
cases = ("", " where one side is exact", " where one input is negative", " where one input is 0")
for index, what in enumerate(cases):
    x, sigma = inputs.rng().uniform(1, 3, size=(2, 2)).astype(np.float32)
    one = int(inputs.rng().integers(2))
    sigma[one] *= index != 1
    x[one] *= (1, 1, -1, 0)[index]
    area, perimeter = np.hypot(x[1] * sigma[0], x[0] * sigma[1]), 2 * np.hypot(sigma[0], sigma[1])
    compare(made.run(x, sigma), np.array([area, perimeter], np.float32), label=f"the uncertainties{what}")

# %% hidden="grad-propagate" name="program" points=2
"""Right for a curve of 300 points, with work that depends on the number of inputs."""


def probe_loop(x, sigma):
    def halved(x):  # a loop whose number of steps depends on the values can only be differentiated in forward mode
        return jax.lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 1, lambda y: y / 2, cooling(x))

    return propagate(halved, x, sigma)


made = program(lambda x, sigma: propagate(cooling, x, sigma), np.zeros(3, np.float32), np.zeros(3, np.float32))
for _ in range(2):
    rng = inputs.rng()
    x = np.array([rng.uniform(15, 25), rng.uniform(70, 95), rng.uniform(0.02, 0.06)], np.float32)
    sigma = np.array([rng.uniform(0.5, 2), rng.uniform(1, 3), rng.uniform(0.005, 0.01)], np.float32)
    minutes = 0.5 * np.arange(300)
    left = np.exp(-x[2] * minutes)
    columns = np.stack([1 - left, left, -minutes * (x[1] - x[0]) * left], axis=1)
    got, wanted = made.run(x, sigma), np.sqrt(np.sum((columns * sigma) ** 2, axis=1)).astype(np.float32)
    faster = np.exp(-(x[2] + sigma[2]) * minutes)
    moved = np.stack([columns[:, 0] * sigma[0], left * sigma[1], (x[1] - x[0]) * (faster - left)])
    if getattr(got, "shape", None) == (300,):
        steps = np.allclose(got, np.sqrt(np.sum(moved**2, axis=0)), rtol=1e-3, atol=1e-3)
        require(not steps, "Each input is moved by its whole sigma. Use derivatives times sigma.")
    compare(got, wanted, label="the curve's uncertainties")
require(
    made.intermediates < 300 * 300 / 2,
    f"For 3 inputs and 300 outputs the program has an array of {made.intermediates:,} elements. An array with "
    "one entry for each input and output is enough.",
)
raised = error(probe_loop, x, sigma)
require(
    raised is None,
    f"For a curve that is computed with a `while_loop`, your answer raised {raised}. JAX differentiates such a loop only in "
    "forward mode. Reverse mode also needs a pass for each point of the curve.",
    kind="raised",
)
halved = wanted / np.float32(2**7)  # the curve's largest value is its first, between 70 and 95
compare(ask(probe_loop, x, sigma), halved, label="the uncertainties of a curve with a while_loop")

# %% [markdown] why="grad-propagate"
# Three inputs need three JVPs, however long the curve is. Reverse mode would need 300 VJPs. A loss is the opposite case, with one output and one VJP. **Next:** What would you change if two of the measurements were made with the same thermometer?


# %% wrong="grad-propagate" because="Computes the Jacobian row by row in reverse mode, with 300 passes for three columns."
def propagate(f, x, sigma):
    return jnp.sqrt(jnp.sum((jax.jacrev(f)(x) * sigma) ** 2, axis=1))


# %% wrong="grad-propagate" because="Uses all uncertainties in one tangent, so contributions of opposite sign cancel, as if there were only one error."
def propagate(f, x, sigma):
    return jnp.abs(jax.jvp(f, (x,), (sigma,))[1])


# %% wrong="grad-propagate" because="Adds the absolute values of the contributions, which is the worst case, in which all errors have the same direction."
def propagate(f, x, sigma):
    return jnp.sum(jnp.abs(jax.jacfwd(f)(x) * sigma), axis=1)


# %% wrong="grad-propagate" because="Squares the derivatives but not the uncertainties."
def propagate(f, x, sigma):
    return jnp.sqrt(jax.jacfwd(f)(x) ** 2 @ sigma)


# %% wrong="grad-propagate" because="Returns the sum of squares, which is the variance."
def propagate(f, x, sigma):
    return jnp.sum((jax.jacfwd(f)(x) * sigma) ** 2, axis=1)


# %% wrong="grad-propagate" because="Moves each input by its whole uncertainty and takes differences, which are not derivatives if the curve bends."
def propagate(f, x, sigma):
    steps = [f(x.at[j].add(sigma[j])) - f(x) for j in range(len(x))]
    return jnp.sqrt(sum(step**2 for step in steps))


# %% wrong="grad-propagate" because="Takes the gradient of the sum of all outputs, which mixes the points of the curve."
def propagate(f, x, sigma):
    gradient = jax.grad(lambda x: jnp.sum(f(x)))(x)
    return jnp.full_like(f(x), jnp.sqrt(jnp.sum((gradient * sigma) ** 2)))


# %% wrong="grad-propagate" because="Uses relative errors and the logarithms of the inputs, which do not exist for a negative input or 0."
def propagate(f, x, sigma):
    by_log = jax.jacfwd(lambda logs: f(jnp.exp(logs)))(jnp.log(x))
    return jnp.sqrt(jnp.sum((by_log * (sigma / x)) ** 2, axis=1))


# %% wrong="grad-propagate" because="Computes the covariance matrix of all outputs to get its diagonal, which needs m times m numbers."
def propagate(f, x, sigma):
    jacobian = jax.jacfwd(f)(x)
    return jnp.sqrt(jnp.diag(jacobian @ jnp.diag(sigma**2) @ jacobian.T))


# %% wrong="grad-propagate" because="Uses relative uncertainties, which do not exist where an input is 0."
def propagate(f, x, sigma):
    relative = sigma / x
    per_relative = jax.vmap(lambda direction: jax.jvp(f, (x,), (direction,))[1])(jnp.diag(x))
    return jnp.sqrt(jnp.sum((relative[:, None] * per_relative) ** 2, axis=0))


# %% wrong="grad-propagate" because="Computes the Jacobian row by row in reverse mode, with 300 passes for three columns."
def propagate(f, x, sigma):
    x = jnp.asarray(x)
    outputs = jax.eval_shape(f, x).shape[0]
    gradient_of = jax.grad(lambda x, i: f(x)[i])
    jacobian = jax.vmap(gradient_of, in_axes=(None, 0))(x, jnp.arange(outputs))
    return jnp.sqrt(jnp.sum((jacobian * sigma) ** 2, axis=1))


# %% wrong="grad-propagate" because="Uses relative uncertainties, which do not exist where an input is 0."
def propagate(f, x, sigma):
    relative = sigma / x
    # the derivatives by the scale of each input
    derivatives = jax.jacfwd(lambda scales: f(scales * x))(jnp.ones_like(x))
    return jnp.sqrt(jnp.sum((derivatives * relative) ** 2, axis=1))


# %% wrong="grad-propagate" because="Computes the Jacobian row by row in reverse mode, in a loop over the 300 points."
def propagate(f, x, sigma):
    points = jnp.arange(jax.eval_shape(f, x).shape[0])
    rows = jax.lax.map(lambda i: jax.grad(lambda x: f(x)[i])(x), points)
    return jnp.sqrt(jnp.sum((rows * sigma) ** 2, axis=1))


# %% wrong="grad-propagate" because="Computes the Jacobian row by row in reverse mode, in blocks of 100 rows."
def propagate(f, x, sigma):
    outputs, pull_back = jax.vjp(f, x)
    blocks = jnp.array_split(jnp.arange(outputs.size), -(-outputs.size // 100))
    picks = [jax.nn.one_hot(block, outputs.size, dtype=outputs.dtype) for block in blocks]
    jacobian = jnp.concatenate([jax.vmap(pull_back)(pick)[0] for pick in picks])
    return jnp.sqrt(jnp.sum((jacobian * sigma) ** 2, axis=1))


# %% right="grad-propagate"
def propagate(f, x, sigma):
    values, push = jax.linearize(f, x)
    return jnp.sqrt(sum(push(jnp.zeros_like(x).at[j].set(sigma[j])) ** 2 for j in range(len(x))))


# %% right="grad-propagate"
def propagate(f, x, sigma):
    scaled = jax.jacfwd(lambda moved: f(x + moved * sigma))(jnp.zeros_like(x))
    return jnp.linalg.norm(scaled, axis=1)
