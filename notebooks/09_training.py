# %% [markdown]
# # 09 · Training: a loop of pure functions
#
# *The core takes about 30 minutes. Then do [the exercises](../exercises/09_training/09_training.ipynb). You can skip the eleven sections marked "Deeper", or read them later in any order.* After the core, you can train a model with Optax, change the loss, vary the learning rate without recompiling, and find out whether Python slows your loop down.
#
# **Prerequisites.** `jit` (03), `grad` (04), [pytrees](../docs/glossary.md#pytree) (06), keys (07) and `scan` (08). Answer these questions from memory.
#
# 1. From 03: Which argument should be static, a learning rate or the choice of a loss function?
#
# <details><summary>Answer</summary>
#
# The choice. It has few values, and Python needs it during tracing. With a static rate, JAX would recompile for each new value.
# </details>
#
# 2. From 04: What does `jax.value_and_grad(loss)(params, xs, ys)` return, if `params` is a dict?
#
# <details><summary>Answer</summary>
#
# The loss, and a dict of the same structure with the gradient.
# </details>
#
# 3. From 08: What must stay the same in the carry of a `scan`?
#
# <details><summary>Answer</summary>
#
# Its structure, shapes and dtypes.
# </details>

# %%
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

# Helpers of this course, which plot, print errors and measure times:
from grader.learning import plots
from grader.learning.inspection import print_error, time_ms

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## A curve with faulty readings
# Training changes parameters step by step, but a JAX function does not change its arguments. **How do you write a training loop with pure functions?**
#
# In our example, a small network learns a curve from 256 noisy readings of a sensor. In the right half, about one reading in four is stuck at the value 2. The model consists of two functions. `init` creates the parameters, and `network` uses them. The cells after the model create the readings and define a plot.


# %%
def init(key, sizes):
    """A layer for each pair of neighbours in sizes: {"w": (a, b), "b": (b,)}"""
    shapes = zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False)
    return [{"w": jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)} for k, a, b in shapes]


def network(params, xs):
    """xs (n, 1) -> (n,)"""
    for layer in params[:-1]:
        xs = jnp.tanh(xs @ layer["w"] + layer["b"])
    return (xs @ params[-1]["w"] + params[-1]["b"])[:, 0]


def mean_square(params, xs, ys):
    return jnp.mean((network(params, xs) - ys) ** 2)


# %%
rng = np.random.default_rng(9)
xs = np.sort(rng.uniform(-1, 1, size=(256, 1)), axis=0).astype(np.float32)
ys = (np.cos(6 * xs[:, 0]) + 0.2 * rng.normal(size=256)).astype(np.float32)
ys = np.where((xs[:, 0] > 0) & (rng.uniform(size=256) < 0.25), np.float32(2), ys)
start = init(jax.random.key(9), (1, 32, 32, 1))
grid = np.linspace(-1, 1, 200, dtype=np.float32)[:, None]
curve = np.cos(6 * grid[:, 0])


# %%
def distances(params):
    """The mean distance of the network from the true curve, in the left half and in the right half."""
    return np.abs(network(params, grid) - curve).reshape(2, 100).mean(1)


def show_fit(fits):
    """Plots the readings, the true curve, and the network with each of the named parameters."""
    _, axes = plots.subplots()
    axes.plot(xs[:, 0], ys, ".", color="0.65", label="readings")
    axes.plot(grid[:, 0], curve, "k--", linewidth=1, label="true curve")
    for style, (name, params) in zip(("-", "-."), fits.items(), strict=False):
        axes.plot(grid[:, 0], network(params, grid), style, linewidth=2, label=name)
    axes.set(xlabel="angle", ylabel="reading", ylim=(-1.8, 3))
    axes.legend(ncols=4, fontsize=8, loc="upper center")
    gaps = {name: distances(params).mean() for name, params in fits.items()}
    plots.show(
        "Readings at angles from -1 to 1. Most are near a cosine. On the right, about a quarter are stuck at 2. Mean "
        f"distance of the network from the cosine: {', '.join(f'{name} {gap:.2f}' for name, gap in gaps.items())}."
    )


# %%
show_fit({"before training": start})

# %% [markdown]
# ## An optimizer is two pure functions
# Gradient descent moves the parameters in the direction opposite to the gradient (04). Most optimizers also use earlier gradients, but a [pure function](../docs/glossary.md#pure-function) keeps nothing between calls. So an optimizer stores what it needs in a pytree, the **optimizer state**, which is an argument and a result of each update. Here is momentum. Its state, the velocity, is a sum of past gradients in which older ones have less weight.


# %%
def momentum_update(gradient, velocity, rate=0.03, decay=0.9):
    velocity = jax.tree.map(lambda v, g: decay * v + g, velocity, gradient)
    return jax.tree.map(lambda v: -rate * v, velocity), velocity


# %% [markdown]
# **Optax** is the most widely used optimizer library for JAX. In Optax, an optimizer is a **gradient transformation**, a pair of functions.
#
# - `tx.init(params)` returns the first state.
# - `tx.update(gradient, state, params)` returns the updates and the next state. Some optimizers do not need `params`.
#
# The updates already contain the minus sign, so `optax.apply_updates` *adds* them to the parameters. We compare `optax.sgd` with our function.

# %%
gradient = jax.grad(mean_square)(start, xs, ys)
momentum = optax.sgd(0.03, momentum=0.9)
velocity, momentum_state = jax.tree.map(jnp.zeros_like, start), momentum.init(start)
for _ in range(3):
    own_updates, velocity = momentum_update(gradient, velocity)
    updates, momentum_state = momentum.update(gradient, momentum_state)
print("same updates:", jax.tree.all(jax.tree.map(jnp.allclose, own_updates, updates)))
print("state:", jax.tree.map(jnp.shape, momentum_state))

# %% [markdown]
# The state of momentum contains a velocity for each parameter, in the field `trace`. `EmptyState` belongs to the multiplication by the learning rate, which stores nothing.

# %% [markdown] predict="training-state"
# How large is the state of `optax.adam`, in bytes, compared with the parameters?
#
# - [ ] equally large, one number for each parameter | This is true of momentum, which stores a sum of gradients. Adam stores two numbers for each parameter.
# - [ ] almost empty, because an optimizer is a pair of functions | The functions store nothing. What an optimizer remembers is in the state.
# - [x] twice as large, and a few bytes for a counter | Right. Adam stores a mean of the gradients, a mean of their squares, and the number of steps.


# %%
def size(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


optimizers = {"sgd": optax.sgd(0.03), "momentum": momentum, "adam": optax.adam(0.01)}
for name, tx in optimizers.items():
    print(f"{name:9s} parameters {size(start):,} bytes, state {size(tx.init(start)):,}")

# %% [markdown]
# ## The training step
# A training step computes the gradient, calls `tx.update`, and applies the updates. Parameters, state and **batch** (the examples of this step) may change from step to step, so they are arguments, and `jit` compiles the whole step. `tx` and `loss` consist of Python functions, which run only during tracing, so they are [static arguments](../docs/glossary.md#static-argument).
#
# ![One step as a function. params and the batch go into value_and_grad of the loss, which gives the value and the gradient. Gradient, state and params go into tx.update, which gives updates and the new state. apply_updates adds the updates to params. New params and new state go into the next step under the same names.](../images/training_step.svg)


# %%
@functools.partial(jax.jit, static_argnames=("tx", "loss"))
def step(params, state, xs, ys, *, tx, loss=mean_square):
    value, gradient = jax.value_and_grad(loss)(params, xs, ys)
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value


def train(params, tx, steps, **options):
    state, losses = tx.init(params), []
    for _ in range(steps):
        params, state, value = step(params, state, xs, ys, tx=tx, **options)
        losses.append(value)  # perhaps not computed yet
    return params, np.array(losses)


# %% [markdown]
# The returned loss is that of the parameters *before* the update, because `value_and_grad` computes the loss and its gradient at the same parameters. Here are 1,000 steps with each optimizer.

# %%
_, axes = plots.subplots(height=2.6)
ends = []
for name, tx in optimizers.items():
    fitted, losses = train(start, tx, 1000)
    ends.append(f"{name}, {losses[-1]:.3f} at the end")
    axes.plot(losses, linewidth=1.4, label=ends[-1])
axes.set(xlabel="step", ylabel="loss", ylim=(0, 1.6))
axes.legend(fontsize=8, loc="upper right")
plots.show(f"The loss over 1,000 steps, from {losses[0]:.2f} at the start. {'; '.join(ends)}.")
show_fit({"before training": start, "after Adam": fitted})

# %% [markdown]
# Plain gradient descent is the slowest. In the right half, the stuck readings pull the fit up. A better optimizer does not correct that, because the loss weights all readings equally. A different loss can.

# %% [markdown]
# ## A weighted loss
# The curve is at most 1 and the noise is small, so a reading above 1.7 is almost certainly wrong. We give such readings a tiny weight. The loss is a static argument of `step`, so we can replace it.

# %%
traces = []


def weighted(params, xs, ys):
    traces.append("weighted")  # only when it is traced
    trust = jnp.where(ys > 1.7, 0.001, 1.0)
    return jnp.average((network(params, xs) - ys) ** 2, weights=trust)


adam = optax.adam(0.01)
by_weight, _ = train(start, adam, 1000, loss=weighted)
print("distance left and right, plain:   ", distances(fitted))
print("distance left and right, weighted:", distances(by_weight))
show_fit({"plain": fitted, "weighted": by_weight})

# %% [markdown] predict="training-static"
# A loop of 5 steps passes `loss=lambda *a: weighted(*a)`, written in the call. How often is `weighted` traced?
#
# - [x] 5 times | Right. Each iteration creates a new function, so JAX compiles each time.
# - [ ] once, because the source code is the same | JAX compares functions by identity (03), and each iteration creates another lambda.
# - [ ] never, because a function cannot be an argument | A static argument can be any hashable object, and functions are hashable.

# %%
print("traces in the 1,000 steps above: ", len(traces))
traces.clear()
state = adam.init(start)
for _ in range(5):
    step(start, state, xs, ys, tx=adam, loss=lambda *a: weighted(*a))
print("traces with a lambda in the loop:", len(traces))

# %% [markdown]
# Define a loss once, outside the loop. Create `tx` once too, for the same reason. Use static arguments to choose *code*, such as a loss or an optimizer. If the weights are data, such as a column of a table, pass them as an array.

# %% [markdown]
# ## Chains of transformations
# `optax.chain` composes gradient transformations. Each one receives the updates of the one before. `clip_by_global_norm` scales down updates whose norm exceeds a limit, so one bad batch cannot move the parameters far.

# %% [markdown] predict="training-chain"
# A gradient of length 1,000 goes through `chain(clip_by_global_norm(1.0), sgd(0.1))` and through `chain(sgd(0.1), clip_by_global_norm(1.0))`. How long are the two steps?
#
# - [ ] equally long, because both are clipped at 1 | One chain clips the gradient, the other clips the step.
# - [x] 0.1 and 1 | Right. In the first chain, the rate scales the clipped gradient. In the second, the step itself is clipped at 1.
# - [ ] 0.1 and 100 | Without the clipping, the second step would have length 100.

# %%
norm = optax.tree.norm  # of all numbers in a pytree
huge = jax.tree.map(lambda g: 1000 * g / norm(gradient), gradient)
chains = {
    "clip, sgd": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "sgd, clip": optax.chain(optax.sgd(0.1), optax.clip_by_global_norm(1.0)),
}
for name, tx in chains.items():
    updates, _ = tx.update(huge, tx.init(start), start)
    print(f"{name}: length of the step {norm(updates):.3f}")

# %% [markdown]
# The *global* norm is one number for the whole pytree. All arrays are scaled by the same factor, so the direction does not change. Most programs clip the gradient, as in the first chain.

# %% [markdown]
# ## Schedules
# Most models are trained on small random batches, so each gradient has a random error. A low learning rate reduces the effect of these errors but slows training down. So the rate often changes during training.
#
# A **schedule** is a function from the step number to the rate. Optax accepts a schedule wherever it accepts a learning rate. The step number is in the optimizer state, so it is traced. The schedule below rises at first (warm-up), because Adam's early means are based on few gradients, and then falls to 0.


# %%
def train_on_batches(tx, steps=1000, size=16):
    """Returns the mean distance from the true curve after every tenth step."""
    draws = np.random.default_rng(0)
    params, state, history = start, tx.init(start), []
    for i in range(steps):
        batch = draws.integers(len(xs), size=size)
        params, state, _ = step(params, state, xs[batch], ys[batch], tx=tx, loss=weighted)
        if i % 10 == 9:
            history.append(distances(params).mean())
    return history


rise_and_fall = optax.warmup_cosine_decay_schedule(0.0, 0.03, warmup_steps=100, decay_steps=1000)
plans = {"constant": 0.03, "warm-up and decay": rise_and_fall}
traces.clear()
histories = {name: train_on_batches(optax.adam(plan)) for name, plan in plans.items()}
print("traces:", len(traces))

# %%
_, (left, right) = plots.subplots(1, 2, height=2.6)
left.plot(np.full(1001, 0.03), label="constant")
left.plot(jax.vmap(rise_and_fall)(jnp.arange(1001)), label="warm-up and decay")
left.set(xlabel="step", ylabel="learning rate", ylim=(0, 0.04))
left.legend(fontsize=8, loc="upper right")
for name, history in histories.items():
    right.plot(range(10, 1001, 10), history, linewidth=1.4, label=name)
right.set(xlabel="step", ylabel="distance from the true curve", ylim=(0, None))
right.legend(fontsize=8, loc="upper right")
last = {name: f"{name} {min(history[-20:]):.2f} to {max(history[-20:]):.2f}" for name, history in histories.items()}
plots.show(
    "Left: a constant rate of 0.03, and a rate that rises to 0.03 in 100 steps and falls to 0 at step 1,000. Right: the "
    f"distance of the network from the true curve. In the last 200 steps: {', '.join(last.values())}."
)

# %% [markdown]
# Each run was traced once, although the rate of the second one changed in every step. With the constant rate, the distance fluctuates until the end. With the schedule, it settles at a lower value.

# %% [markdown]
# ## Does Python slow the loop down?
# A step of a small model takes microseconds, and so does a call from Python. JAX uses [asynchronous dispatch](../docs/glossary.md#asynchronous-dispatch), so Python prepares the next call while the device computes. A `scan` runs many steps in one call.

# %%
tiny, few_xs, few_ys = init(jax.random.key(2), (1, 8, 1)), jnp.asarray(xs[::16]), jnp.asarray(ys[::16])


def one_step(carry, _=None):  # also the body of a scan
    params, state, value = step(*carry, few_xs, few_ys, tx=adam)
    return (params, state), value


def loop(steps, read=lambda value: None):
    carry = tiny, adam.init(tiny)
    for _ in range(steps):
        carry, value = one_step(carry)
        read(value)
    return carry


@functools.partial(jax.jit, static_argnames="steps")
def scan_steps(carry, steps):
    return jax.lax.scan(one_step, carry, length=steps)


# %% [markdown] predict="training-dispatch"
# Three programs run 1,000 steps of a tiny model. Which one is the slowest?
#
# - [ ] one call of a compiled scan | It does not return to Python between the steps.
# - [ ] a Python loop over the compiled step | Each iteration pays for a call, but Python runs ahead of the device.
# - [x] the same loop with `float(value)` in each iteration | Right. Python waits for each step, and then the device waits for Python.

# %%
ways = {
    "loop with float(value)": lambda: loop(1000, float),
    "loop": lambda: loop(1000),
    "one call, a scan": lambda: scan_steps((tiny, adam.init(tiny)), 1000),
}
microseconds = dict(zip(ways, time_ms(*ways.values()), strict=True))  # ms for 1,000 steps: µs for each
_, axes = plots.subplots(height=1.7)
axes.plot(list(microseconds.values()), list(ways), "o", markersize=8)
for way, took in microseconds.items():
    axes.annotate(f"{took:.3g} µs", (took, way), (9, -4), textcoords="offset points", backgroundcolor=plots.PAPER)
axes.set(xlabel="median time of a step in microseconds", xlim=(0, 1.3 * max(microseconds.values())))
axes.margins(y=0.2)
axes.invert_yaxis()
plots.show("Median times of a step. " + "; ".join(f"{way}: {took:.3g} µs" for way, took in microseconds.items()) + ".")

# %% [markdown]
# If the scan is much faster, Python slows the loop down. `float(value)`, `print(value)`, `if value < best` and `np.asarray(value)` all wait for the value. Append values to a list, as `train` does, and read them later.

# %% [markdown]
# ## What goes wrong
# Three mistakes discard the optimizer state. The first is `updates, _ = tx.update(...)`, which ignores the new state. The second is a new `tx.init` for each epoch. The third is a restart that loads parameters but no state. None of them raises an error. The second run below ignores the new state.

# %%
params, forgetful = start, start
state = first_state = adam.init(start)
for _ in range(300):
    params, state, value = step(params, state, xs, ys, tx=adam)
    forgetful, _, value_without_state = step(forgetful, first_state, xs, ys, tx=adam)
print(f"after 300 steps: loss {value:.3f}, with a discarded state {value_without_state:.3f}")

# %% [markdown]
# A training step should donate parameters and state (03), so that the results reuse their memory. Donation deletes the old arrays, whichever name refers to them.

# %%
best = params  # the same arrays, under another name
shrink = jax.jit(lambda params: jax.tree.map(lambda p: 0.9 * p, params), donate_argnums=0)
params = shrink(params)
print("best is deleted:", best[0]["w"].is_deleted())

# %% [markdown]
# To keep the best parameters, copy them with `jax.tree.map(jnp.copy, params)`.

# %% [markdown]
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: a learning rate that the loop sets
# A schedule is planned before training. A rate can also depend on observations, such as a loss that no longer falls. The training loop then sets it between steps.

# %% [markdown] predict="training-rate"
# We set `rate = 0.1`, create `tx = optax.sgd(lambda count: rate)`, and run a compiled step once. Then we set `rate = 0.0`. What does the second step do?
#
# - [x] a step with the rate 0.1 | Right. The compiled program contains the value from the time of tracing.
# - [ ] nothing, because the rate is 0 | `rate` was read during tracing, and is a constant of the program (03).
# - [ ] it recompiles | No argument has changed, so JAX uses the cached program.

# %%
rate = 0.1
tx = optax.sgd(lambda count: rate)
traces.clear()
params, state, _ = step(start, tx.init(start), xs, ys, tx=tx, loss=weighted)
rate = 0.0
after, _, _ = step(params, state, xs, ys, tx=tx, loss=weighted)
print(f"length of the second step {norm(optax.tree.sub(after, params)):.4f}, traces {len(traces)}")

# %% [markdown]
# `optax.inject_hyperparams` stores the settings of an optimizer in its state. The state is an argument of the step, so the loop can set a new rate there without recompiling.

# %%
tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
traces.clear()
params, state, _ = step(start, tx.init(start), xs, ys, tx=tx, loss=weighted)
state = state._replace(hyperparams={"learning_rate": jnp.float32(0.0)})
after, _, _ = step(params, state, xs, ys, tx=tx, loss=weighted)
print(f"length of the second step {norm(optax.tree.sub(after, params)):.4f}, traces {len(traces)}")

# %% [markdown]
# ## Deeper: clip before Adam
# Adam divides by the root of a running mean of the squared gradient. Does it still need clipping? Here is its first step for two gradients.

# %%
for scale in (0.001, 1):
    updates, state = adam.update(jax.tree.map(functools.partial(jnp.multiply, scale), huge), adam.init(start), start)
    print(f"gradient {scale * 1000:5.0f}, step {norm(updates):.3f}, mean of the squares {norm(state[0].nu):.3g}")
print(f"left of a mean after 500 steps: {0.999**500:.0%}")

# %% [markdown]
# The step has the same length for both gradients, because Adam divides the mean of the gradients by the root of the mean square. However, the huge gradient leaves a mean square that is a million times as large. This mean decays by only 0.1% in each step, so hundreds of later steps are too short. Therefore, clip the gradient *before* Adam.

# %% [markdown]
# ## Deeper: accumulate gradients
# The gradient of a large batch may need more memory than the device has. If a batch is divided into equal parts, called **micro-batches**, the gradient of its mean loss is the mean of their gradients. `optax.MultiSteps` wraps an optimizer and stores a running mean of the gradients in its state. With `every_k_schedule=4`, only every fourth call changes the parameters.

# %%
wide = init(jax.random.key(1), (1, 512, 512, 1))
many = jnp.linspace(-1, 1, 4096)[:, None]
every_fourth, at_once = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=4), optax.sgd(0.1)


def temporary_mib(tx, examples):
    """The memory that the compiled step needs in addition to its arguments and results."""
    arguments = wide, tx.init(wide), many[:examples], many[:examples, 0]
    return step.lower(*arguments, tx=tx).compile().memory_analysis().temp_size_in_bytes / 2**20


print(f"4,096 examples at once:    {temporary_mib(at_once, 4096):6.1f} MiB")
print(f"4 times 1,024 examples:    {temporary_mib(every_fourth, 1024):6.1f} MiB")

# %%
accumulated, multi_state = wide, every_fourth.init(wide)
for part in np.split(np.random.default_rng(1).permutation(np.asarray(many)), 4):
    accumulated, multi_state, _ = step(accumulated, multi_state, part, part[:, 0], tx=every_fourth)
    print(f"steps {multi_state.gradient_step}, length of the change {norm(optax.tree.sub(accumulated, wide)):.3f}")
whole, _, _ = step(wide, at_once.init(wide), many, many[:, 0], tx=at_once)
print(f"length of the step at once {norm(optax.tree.sub(whole, wide)):.3f}")
print(f"difference of the results {norm(optax.tree.sub(whole, accumulated)):.1e}")
print(f"bytes of the state: at once {size(at_once.init(wide)):,}, accumulated {size(multi_state):,}")

# %% [markdown]
# The step is the same up to rounding. Accumulation has two costs. The state holds one more gradient, and each micro-batch is a call. A `scan` over the micro-batches needs only one call. You write it in an exercise.
#
# A schedule inside `MultiSteps` counts steps, not calls. Here, `warmup_steps=100` would mean 400 calls.

# %% [markdown]
# ## Deeper: unrolled steps
# A scan compiles to a loop whose body is one step. With `scan(..., unroll=8)`, or with a Python loop of eight steps under `jit`, the program contains eight copies of the step.

# %%
import time


def compile_eight(unroll):
    """A compiled call of 8 steps, and the seconds that it took to compile."""
    eight = jax.jit(lambda carry: jax.lax.scan(one_step, carry, length=8, unroll=unroll))
    begin = time.perf_counter()
    compiled = eight.lower((tiny, adam.init(tiny))).compile()
    return compiled, time.perf_counter() - begin


def run_compiled(compiled):
    carry = tiny, adam.init(tiny)
    for _ in range(125):
        carry, _ = compiled(carry)
    return carry


# %%
for title, unroll in {"a loop": 1, "unrolled": 8}.items():
    compiled, seconds = compile_eight(unroll)
    print(f"{title:9s} compiled in {seconds:.2f} s, {len(compiled.as_text().splitlines()):5,} lines of HLO,", end=" ")
    print(f"{time_ms(functools.partial(run_compiled, compiled)):.1f} µs a step")  # ms for 1,000 steps

# %% [markdown]
# The unrolled program has more lines of [HLO](../docs/glossary.md#hlo) and takes longer to compile. It may run faster, because XLA can fuse operations of neighbouring steps and needs no loop counter. Measure both for your own step.

# %% [markdown]
# ## Deeper: progress bars and logs
# A progress bar itself is fast, but Python must wait for the loss that it displays. So update the bar only once in many steps.

# %%
import collections
import io
import sys

from tqdm import tqdm


def train_with_bar(look_every, file, steps=1000):
    carry = tiny, adam.init(tiny)
    with tqdm(total=steps, file=file, mininterval=10, bar_format="{l_bar}{bar:20}{r_bar}") as bar:
        for i in range(1, steps + 1):
            carry, value = one_step(carry)
            if i % look_every == 0:
                bar.set_postfix_str(f"loss {value:.4f}", refresh=False)  # formatting waits for the value
                bar.update(look_every)
    return carry


# %%
always, sometimes = time_ms(*(lambda n=n: train_with_bar(n, io.StringIO()) for n in (1, 100)))
print(f"bar updated in every step: {always:.0f} µs a step, every 100 steps: {sometimes:.0f} µs a step")
_ = train_with_bar(100, sys.stdout)

# %% [markdown]
# If you need a record of every step, write it one step late, as the [training cookbook](https://docs.jax.dev/en/latest/the-training-cookbook.html) of JAX does. `float` then waits for the previous step, while the next one is already queued on the device.


# %%
def train_with_log(late, steps=1000):
    carry, pending, log = (tiny, adam.init(tiny)), collections.deque(), []
    for _ in range(steps):
        carry, value = one_step(carry)
        pending.append(value)
        if len(pending) > late:
            log.append(float(pending.popleft()))
    log.extend(map(float, pending))  # the last steps
    return carry


at_each_step, one_late = time_ms(lambda: train_with_log(0), lambda: train_with_log(1))
print(f"logged at once: {at_each_step:.0f} µs a step, one step late: {one_late:.0f} µs a step")

# %% [markdown]
# For a step this short, the two times are similar and change from run to run, so measure your own loop. If one call runs many steps, update the bar between the calls. Inside a compiled program, `jax.debug.callback` can report progress.

# %% [markdown]
# ## Deeper: stop before a NaN is stored
# One broken reading makes the loss NaN. Its gradient is then NaN too, and after one update so is every parameter. Many training loops therefore stop at NaN. In `run_batches` below, the scan skips all steps after `done` becomes true. The argument `keep` is a function that returns the next carry.


# %%
def run_batches(keep, params, state, batches):
    def body(carry, batch):
        def go(params, state, done):
            *new, value = step(params, state, *batch, tx=adam)
            return keep(new, [params, state], value), value

        skip = lambda *carry: (carry, jnp.float32(-1))  # -1 marks a skipped step
        return jax.lax.cond(carry[-1], skip, go, *carry)

    return jax.lax.scan(body, (params, state, False), batches)


def stop_at_nan(new, old, value):
    return (*new, jnp.isnan(value))  # params, state, done


# %% [markdown] predict="training-nan"
# `run_batches` with `stop_at_nan` gets a NaN in batch 3 of 6. Which parameters does it return?
#
# - [ ] those after batch 2, the last good ones | This is the intention, but look at when `done` is computed.
# - [x] NaN, those after batch 3 | Right. The update of batch 3 is stored. Only later batches are skipped.
# - [ ] those after batch 6, without batch 3 | The run skips all batches after the NaN, not only the bad one.


# %%
def stop_before_nan(new, old, value):
    fine = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves([value, new[0]])]).all()
    return (*jax.tree.map(functools.partial(jnp.where, fine), new, old), ~fine)


batches = jnp.asarray(xs[:192].reshape(6, 32, 1)), jnp.asarray(ys[:192].reshape(6, 32)).at[2, 5].set(jnp.nan)
after_two, state = tiny, adam.init(tiny)
for batch in zip(batches[0][:2], batches[1][:2], strict=True):
    after_two, state, _ = step(after_two, state, *batch, tx=adam)
for keep in (stop_at_nan, stop_before_nan):
    run = jax.jit(functools.partial(run_batches, keep))
    (params, _, done), values = run(tiny, adam.init(tiny), batches)
    gap = norm(optax.tree.sub(params, after_two))
    print(f"{keep.__name__:16s} losses {np.asarray(values)}, difference from batch 2: {gap:.0e}")

# %% [markdown]
# ![Two lanes of five batches, the third of which is NaN. Stops after the step: the NaN update is stored, later batches are skipped, NaN is returned. Decides before it stores: the update is rejected, the parameters after batch 2 are kept and returned.](../images/training_early_stop.svg)
#
# A tiny difference such as 1e-08 is rounding, because a scan and single steps are different programs. `stop_before_nan` is right for three reasons.
#
# - It decides **before** it stores anything.
# - It also keeps the old optimizer state. A NaN in Adam's means would stay there forever.
# - It examines each new parameter, in addition to the loss. A finite loss can have a NaN gradient, and infinite values are as harmful.

# %%
length = lambda params, xs, ys: jnp.linalg.norm(params - ys) ** 2  # the derivative of the root at 0 is not finite (04)
params, descent = jnp.array([1.0, 2.0]), optax.sgd(0.1)
after, _, value = step(params, descent.init(params), None, params, tx=descent, loss=length)
print("loss", value, " new parameters", after)

skipping = optax.apply_if_finite(descent, max_consecutive_errors=5)
after, state, _ = step(params, skipping.init(params), None, params, tx=skipping, loss=length)
print("apply_if_finite:", after, " rejected updates:", state.total_notfinite)

# %% [markdown]
# `optax.apply_if_finite` skips a bad batch and continues. It examines the gradients that it receives, but neither the loss nor its own updates. After `max_consecutive_errors` rejections in a row, it applies the next update even if it is not finite. Use it for rare bad batches, not for a run that has diverged.

# %% [markdown]
# ## Deeper: optimizers from parts
# Most optimizers of Optax are chains. AdamW consists of three transformations: Adam's scaling, **weight decay**, and the learning rate with its minus sign.

# %%
parts = (optax.scale_by_adam(), optax.add_decayed_weights(1e-4), optax.scale_by_learning_rate(0.01))
from_parts, library = optax.chain(*parts), optax.adamw(0.01, weight_decay=1e-4)
own, _ = from_parts.update(gradient, from_parts.init(start), start)
theirs, _ = library.update(gradient, library.init(start), start)
print("same updates:", jax.tree.all(jax.tree.map(jnp.allclose, own, theirs)))
print_error(lambda: library.update(gradient, library.init(start)))

# %% [markdown]
# Weight decay subtracts a fraction of each parameter in every step, so `tx.update` needs `params` as its third argument. Always pass it. Optimizers that do not need it ignore it.
#
# `scale_by_learning_rate` also accepts a schedule. With `inject_hyperparams`, any numeric argument can be a schedule. Here the maximal norm of a clip falls from 1 to 0.2 in four steps.

# %%
clip = optax.inject_hyperparams(optax.clip_by_global_norm)(max_norm=optax.linear_schedule(1.0, 0.2, 4))
clip_state = clip.init(start)
lengths = []
for _ in range(5):
    clipped, clip_state = clip.update(huge, clip_state)
    lengths.append(float(norm(clipped)))
print("lengths of the clipped gradient:", np.array(lengths))

# %% [markdown]
# ## Deeper: different rules for different parameters
# Biases usually have no weight decay. A `mask` selects the arrays to which a transformation applies. It is a pytree of booleans with the structure of the parameters, or a function that returns one. With a gradient of zeros, only the decay remains.

# %%
matrices = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
masked = optax.adamw(0.01, weight_decay=0.1, mask=matrices)
zeros = jax.tree.map(jnp.zeros_like, fitted)
changes, _ = masked.update(zeros, masked.init(fitted), fitted)
relative = lambda change, p: round(float(jnp.linalg.norm(change) / jnp.linalg.norm(p)), 6)
print("relative change:", jax.tree.map(relative, changes, fitted))

# %% [markdown]
# `optax.partition` uses a different optimizer for each label. The labels are a pytree too, and one label can stand for a whole subtree. `optax.set_to_zero` freezes parameters.

# %%
rules = {"train": optax.adam(0.01), "freeze": optax.set_to_zero()}
only_last = optax.partition(rules, ["freeze", "freeze", "train"])
changes, _ = only_last.update(gradient, only_last.init(start), start)
print("changed:", jax.tree.map(lambda change: bool((change != 0).any()), changes))

# %% [markdown]
# ## Deeper: losses of Optax
# Optax contains common losses. They return a value for each example, so take the mean yourself. `l2_loss` is *half* the squared error. `huber_loss` grows linearly for large errors, so the gradient of an outlier is bounded.

# %%
errors = jnp.array([0.1, 0.5, 10.0])
for name, of in {"l2_loss": optax.l2_loss, "huber_loss": optax.huber_loss}.items():
    print(f"{name:10s} values {of(errors)}  derivatives {jax.vmap(jax.grad(of))(errors)}")


# %%
def huber(params, xs, ys):
    return optax.huber_loss(network(params, xs), ys, delta=0.3).mean()


by_huber, _ = train(start, adam, 1000, loss=huber)
for name, params in {"mean square": fitted, "huber": by_huber, "weighted": by_weight}.items():
    print(f"{name:11s} distance left and right {distances(params)}")

# %% [markdown]
# In the right half, the distance with the Huber loss is between the other two. The Huber loss requires no knowledge of the curve, unlike the limit of 1.7. Its parameter `delta` is the error above which it grows linearly.

# %% [markdown]
# ## Deeper: a training script
# A complete script needs a few more decisions. The [training cookbook](https://docs.jax.dev/en/latest/the-training-cookbook.html) of JAX puts all settings into one object and everything that changes into one pytree.

# %%
import dataclasses

compiled_for = []


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 0.01


@functools.partial(jax.jit, static_argnames="config", donate_argnames="train_state")
def train_step(config, train_state, xs, ys):
    compiled_for.append(config)
    tx = optax.adam(config.rate)  # created only during tracing
    value, gradient = jax.value_and_grad(mean_square)(train_state["params"], xs, ys)
    updates, opt_state = tx.update(gradient, train_state["opt_state"], train_state["params"])
    params = optax.apply_updates(train_state["params"], updates)
    return {"params": params, "opt_state": opt_state}, value


# %%
own_params = jax.tree.map(jnp.copy, tiny)  # train_step deletes them
train_state = {"params": own_params, "opt_state": optax.adam(Config().rate).init(own_params)}
for _ in range(100):
    train_state, value = train_step(Config(), train_state, few_xs, few_ys)
print("loss", value, " compiled for", compiled_for)

# %% [markdown]
# A frozen dataclass is hashable, so it can be static. It is compared by its values, so a call with an equal `Config` reuses the compiled program. One pytree with everything that changes is simple to donate, to save and to shard. Other lessons cover the remaining parts.
#
# | part of the script | lesson |
# |---|---|
# | layers, dropout and their state | 10 |
# | batches, evaluation | 11 |
# | where the time goes | 14 |
# | memory, lower precision | 15 |
# | several devices | 16, 18 |
# | checkpoints | 24 |

# %% [markdown]
# ## Deeper: older code
#
# | in older code, or in PyTorch | now |
# |---|---|
# | `jax.experimental.optimizers`, `jax.example_libraries.optimizers` | Optax |
# | `flax.optim` | Optax; Flax's `TrainState` and `nnx.Optimizer` (10) hold its state |
# | `optax.cross_entropy_loss`, which Optax never had | `optax.softmax_cross_entropy_with_integer_labels` |
# | `optax.multi_transform` | `optax.partition` |
# | `jaxopt.GradientDescent`, `jaxopt.LBFGS` | `optax.lbfgs` and others; Optimistix |
# | `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`, `scheduler.step()` (PyTorch) | the three lines of `step`; there is nothing to reset, and the counter is in the state |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | an optimizer | `tx = optax.adam(0.01)`, once; `state = tx.init(params)` |
# | a step | `tx.update(gradient, state, params)`, then `optax.apply_updates`; return params *and* state |
# | another loss in the same step | a static argument, a function that is defined once |
# | weights that are data | an array argument |
# | several transformations | `optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01))` |
# | a planned rate | a schedule in place of the number; one program |
# | a rate that depends on what you observe | `optax.inject_hyperparams`; change it in the state |
# | many small steps, fast | several in one call, with `scan` |
# | progress | read values rarely, because each read waits for the device |
# | the best parameters | a copy, because donation deletes the arrays |
#
# Continue with [the exercises](../exercises/09_training/09_training.ipynb).
