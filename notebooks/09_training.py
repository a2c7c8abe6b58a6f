# %% [markdown]
# # 09 · Training: a loop of pure functions
#
# *Forty minutes, then [the exercises](../exercises/09_training/09_training.ipynb).* Afterwards you can train a model from nothing but functions and trees, say what an optimizer remembers, weight and schedule without compiling anew, train with batches that do not fit, find out whether Python holds up your loop, show its progress, and stop it before NaN gets into the parameters.
#
# **Assumed.** `jit` (03), `grad` (04), trees (06), keys (07), `scan` and `cond` (08). Recall before you go on; answer first, then open the fold.
#
# 1. From 03: which argument should be static, a learning rate or the choice of a loss function?
#
# <details><summary>Answer</summary>
#
# The choice: it takes few values, and Python needs it while tracing. A rate changes all the time; static, each value would compile.
# </details>
#
# 2. From 04: `jax.value_and_grad(loss)(params, xs, ys)`, where `params` is a dict. What comes back?
#
# <details><summary>Answer</summary>
#
# The loss, and a dict of the same form with a slope for every number in `params`.
# </details>
#
# 3. From 08: what must the carry of a `scan` look like after each turn?
#
# <details><summary>Answer</summary>
#
# As before it: the same tree, the same shapes and dtypes.
# </details>

# %%
import functools
import io
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from grader.learning import plots

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## The question: is it the model, the rate, or the loop?
# A sensor turns, and reads the cosine of its angle, with noise; and on the right half one reading in four is stuck at 2. A small network should learn the curve. Nothing in it is an object: a function makes the parameters, another one uses them.


# %%
def init(key, sizes):
    """A layer for each pair of neighbours in sizes: {"w": (a, b), "b": (b,)}"""
    shapes = zip(jax.random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False)
    return [{"w": jax.random.normal(own, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)} for own, a, b in shapes]


def network(params, xs):
    """xs (n, 1) -> (n,)"""
    for layer in params[:-1]:
        xs = jnp.tanh(xs @ layer["w"] + layer["b"])
    return (xs @ params[-1]["w"] + params[-1]["b"])[:, 0]


def mean_square(params, xs, ys):
    return jnp.mean((network(params, xs) - ys) ** 2)


rng = np.random.default_rng(9)
xs = np.sort(rng.uniform(-1, 1, size=(256, 1)), axis=0).astype(np.float32)
ys = (np.cos(6 * xs[:, 0]) + 0.2 * rng.normal(size=256)).astype(np.float32)
ys = np.where((xs[:, 0] > 0) & (rng.uniform(size=256) < 0.25), np.float32(2), ys)
start = init(jax.random.key(9), (1, 32, 32, 1))
grid = np.linspace(-1, 1, 200, dtype=np.float32)[:, None]


def show(curves):
    """The measurements, the true cosine, and the network with each of the named parameters."""
    _, axes = plots.subplots()
    axes.plot(xs[:, 0], ys, ".", color="0.65", label="measured")
    axes.plot(grid[:, 0], np.cos(6 * grid[:, 0]), "k--", linewidth=1, label="cosine")
    gaps = {}
    for style, (name, params) in zip(("-", "-."), curves.items(), strict=False):
        axes.plot(grid[:, 0], network(params, grid), style, linewidth=2, label=name)
        gaps[name] = f"{np.abs(network(params, grid) - np.cos(6 * grid[:, 0])).mean():.2f}"
    axes.set(xlabel="angle", ylabel="reading", ylim=(-1.8, 3))
    axes.legend(ncols=4, fontsize=8, loc="upper center")
    plots.show(
        "Readings over angles from -1 to 1: most lie about a cosine, on the right a quarter are stuck at 2. Mean distance "
        f"of the network's curve from the cosine: {', '.join(f'{name} {gap}' for name, gap in gaps.items())}."
    )


show({"before": start})

# %% [markdown]
# ## An optimizer is two pure functions
# Downhill is against the gradient (04). Better optimizers **remember** the gradients before. Where does the memory live? In a tree that goes in and comes out:


# %%
def momentum_update(gradient, velocity, rate=0.05, decay=0.9):
    velocity = jax.tree.map(lambda v, g: decay * v + g, velocity, gradient)
    return jax.tree.map(lambda v: -rate * v, velocity), velocity


gradient, tx = jax.grad(mean_square)(start, xs, ys), optax.sgd(0.05, momentum=0.9)
mine, theirs = jax.tree.map(jnp.zeros_like, start), tx.init(start)
for _ in range(3):
    (ours, mine), (updates, theirs) = momentum_update(gradient, mine), tx.update(gradient, theirs)
print("updates equal Optax's:", jax.tree.all(jax.tree.map(jnp.allclose, ours, updates)))

# %% [markdown]
# That is all of Optax: a **gradient transformation** is a pair of functions. `tx.init(params)` makes the state, `tx.update(gradient, state, params)` gives updates and the next state; `optax.apply_updates` adds them. The minus is already in.
#
# ![One step as a function. params and the batch go into value_and_grad of the loss, which gives the value and the gradient. Gradient and state go into tx.update, which gives updates and the new state. apply_updates adds the updates to params. New params and new state go round into the next step under the same names.](../images/training_step.svg)

# %% [markdown] predict="training-state"
# How many bytes has the state of `optax.adam`, compared with the parameters?
#
# - [ ] as many: one number for each of theirs | That is momentum's, a running sum of gradients. Adam keeps two.
# - [ ] next to none: it is a pair of functions | The functions hold nothing. What they remember has to be somewhere, and you carry it.
# - [x] twice as many, and a few for a counter | Right: a mean of the gradients, a mean of their squares, and the number of steps.

# %%
size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
optimizers = {"sgd": optax.sgd(0.05), "momentum": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(0.01)}
for name, tx in optimizers.items():
    print(f"{name:9s} parameters {size(start):,} bytes, state {size(tx.init(start)):,}")


# %% [markdown]
# So the step is a function of everything that changes, and can be compiled as a whole. `tx` and the loss do not change; they are closed over or, as here, static:


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
        losses.append(value)  # an array that need not be there yet
    return params, np.array(losses)


_, axes = plots.subplots(height=2.6)
ends = []
for name, tx in optimizers.items():
    fitted, losses = train(start, tx, 1000)
    ends.append(f"{name}, {losses[-1]:.3f} at the end")
    axes.semilogy(losses, linewidth=1.4, label=ends[-1])
axes.set(xlabel="step", ylabel="loss")
axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.08, 1))
plots.show(f"The loss over 1000 steps, on a logarithmic scale, for each optimizer: {'; '.join(ends)}.")
show({"before": start, "after": fitted})

# %% [markdown]
# Same model, same loop, another optimizer: plain descent is the slowest, and its loss jumps. And on the right it is the data: the curve is drawn up towards the readings that are stuck.
#
# ## A loss that weighs
# No reading above 1.7 can be true, so it should hardly count. Which loss is used is a choice with few values, so it is a **static argument**:


# %%
traces = []


def weighted(params, xs, ys):
    traces.append("weighted")
    trust = jnp.where(ys > 1.7, 0.001, 1.0)
    return jnp.average((network(params, xs) - ys) ** 2, weights=trust)


tx = optax.adam(0.01)
by_weight, _ = train(start, tx, 1000, loss=weighted)
for name, params in {"plain": fitted, "weighted": by_weight}.items():
    miss = (network(params, grid) - np.cos(6 * grid[:, 0])) ** 2
    print(f"{name:9s} off the true cosine: left, right", np.asarray(jnp.sqrt(miss.reshape(2, 100).mean(1))))
show({"plain": fitted, "weighted": by_weight})

# %% [markdown] predict="training-static"
# How often is `weighted` traced in a loop of 5 steps that passes `loss=lambda *a: weighted(*a)`, written out in the call?
#
# - [x] 5 times: once in each turn | Right: every turn makes a new function, so every turn compiles.
# - [ ] once: it is the same text | A function is known by its identity (03), and the lambda is made anew in each turn.
# - [ ] never: functions are no arguments | Static arguments may be anything that can be hashed, and functions can.

# %%
print("traces in the 1,000 steps above: ", len(traces))
traces.clear()
state = tx.init(start)
for _ in range(5):
    step(start, state, xs, ys, tx=tx, loss=lambda *arguments: weighted(*arguments))
print("traces with a lambda in the loop:", len(traces))

# %% [markdown]
# So weights mended the right half, with one program for 1,000 steps; a new function in each step makes a new one each time. The same holds for `tx`: make it once. A static argument chooses *code*. Weights that are data (a column of the table) go in as an array, and the first exercise is about them.
#
# ## Chains, and their order
# Transformations compose: `optax.chain` hands the updates of one on to the next. Clipping keeps one bad batch from throwing everything away. But where in the chain?

# %% [markdown] predict="training-chain"
# A gradient of the length 1,000 meets `chain(clip_by_global_norm(1.0), sgd(0.1))` and `chain(sgd(0.1), clip_by_global_norm(1.0))`. How long are the two steps?
#
# - [ ] the same: both clip at 1 | The same number, of different things: of the gradient, or of the step.
# - [x] 0.1 and 1 | Right: clipped first, the rate makes it smaller. Clipped last, the *step* may be 1 long.
# - [ ] 0.1 and 100 | The second would be 100 without the clip behind it.

# %%
norm = optax.tree.norm
apart = lambda one, other: norm(jax.tree.map(jnp.subtract, one, other))
huge = jax.tree.map(lambda g: 1000 * g / norm(gradient), gradient)
for name, links in {
    "clip, sgd": (optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
    "sgd, clip": (optax.sgd(0.1), optax.clip_by_global_norm(1.0)),
    "adam, no clip": (optax.adam(0.1),),
}.items():
    chain = optax.chain(*links)
    first, _ = chain.update(huge, chain.init(start), start)
    print(f"{name:14s} length of the step {norm(first):6.3f}")

# %% [markdown]
# Global means: one norm over the whole tree, and one factor for all, so the direction stays. Adam's first step does not care how large a gradient is (each parameter moves by the rate), but its memory does: of a huge square, 0.999⁵⁰⁰ or 61% is still in the mean 500 steps later, so clip *before* Adam.
#
# ## Schedules
# A large rate is quick, and never comes to rest. A schedule rises at first and falls at the end; it is a function of the step, and Optax's counter is in the state, so it is traced:

# %%
rise_and_fall = optax.warmup_cosine_decay_schedule(0.0, 0.03, warmup_steps=100, decay_steps=1000)
print("rates:", [round(float(rise_and_fall(n)), 4) for n in (0, 50, 100, 550, 1000)])
traces.clear()
for name, plan in {"0.03, all the time": 0.03, "warm-up and cosine": rise_and_fall}.items():
    _, losses = train(start, optax.adam(plan), 1000, loss=weighted)
    jumps = np.abs(np.diff(losses[-200:])).max()
    print(f"{name:19s} loss {losses[-1]:.5f}, largest jump in the last 200 steps {jumps:.5f}")
print("traces:", len(traces))

# %% [markdown]
# One trace each: 1,000 rates, one program. And the last steps come to rest. (Whether the loss ends lower is another question; here it does not.) But what if the rate depends on what is *seen*, such as a loss that no longer falls?

# %% [markdown] predict="training-rate"
# `rate = 0.1`, then `tx = optax.sgd(lambda count: rate)` and a compiled step. After the first step we set `rate = 0.0`. What does the second step do?
#
# - [x] a step, with the rate 0.1 | Right: a name from outside is frozen. Nothing says so.
# - [ ] nothing: the rate is 0 | It was read while tracing, and is a constant in the program (03).
# - [ ] it compiles anew | No argument has changed, so the old program is found.

# %%
frozen, knob = optax.sgd(lambda count: rate), optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
states = {"closed over": (frozen, frozen.init(start)), "in the state": (knob, knob.init(start))}
for name, (tx, state) in states.items():
    rate = 0.1
    params, state, _ = step(start, state, xs, ys, tx=tx)
    rate = 0.0
    if name == "in the state":
        state = state._replace(hyperparams={"learning_rate": jnp.float32(0.0)})
    print(f"rate {name:13s} second step moves by {apart(step(params, state, xs, ys, tx=tx)[0], params):.4f}")

# %% [markdown]
# `optax.inject_hyperparams` moves settings into the state, where a loop can change them. What may change is an argument; there is no exception for optimizers.
#
# ## A batch that does not fit
# The gradient of a large batch is the mean of the gradients of its parts, so four small steps can be one large one. `optax.MultiSteps` keeps a running mean in its state and moves the parameters in every fourth call only. What is saved can be read off the program:

# %%
wide = init(jax.random.key(1), (1, 512, 512, 1))
many = jnp.linspace(-1, 1, 4096)[:, None]
every_fourth, at_once = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=4), optax.sgd(0.1)


def scratch(tx, part):
    """MiB that the compiled step needs beside its arguments and results."""
    data = wide, tx.init(wide), many[:part], many[:part, 0]
    return step.lower(*data, tx=tx).compile().memory_analysis().temp_size_in_bytes / 2**20


print(f"4,096 at once: {scratch(at_once, 4096):6.1f} MiB    4 times 1,024: {scratch(every_fourth, 1024):6.1f} MiB")
small_steps, state = wide, every_fourth.init(wide)
for part in np.split(np.asarray(many)[rng.permutation(4096)], 4):
    small_steps, state, _ = step(small_steps, state, part, part[:, 0], tx=every_fourth)
big_step, _, _ = step(wide, at_once.init(wide), many, many[:, 0], tx=at_once)
print(f"length of the step {apart(big_step, wide):.3f}, difference {apart(big_step, small_steps):.1e}")
print(f"parameters {size(wide):,} bytes, state {size(at_once.init(wide)):,} at once, {size(state):,} in four parts")

# %% [markdown]
# The price: its state holds one more gradient, and each part is a call. An exercise does it in one program.
#
# ## Who is waiting for whom?
# A step of a small model takes microseconds. Python needs some for each call, too. JAX runs ahead (01): Python prepares the next call while this one computes.

# %% [markdown] predict="training-dispatch"
# 1,000 steps of a tiny model. Which loop is the slowest?
#
# - [ ] one call of a compiled scan of 1,000 steps | It does not come back to Python between steps.
# - [ ] a Python loop over the compiled step | Each turn pays a call, but Python runs ahead of the device.
# - [x] the same loop with `float(value)` in every turn | Right: now Python waits for the step, and then the device waits for Python.

# %%
tiny, tx = init(jax.random.key(2), (1, 8, 1)), optax.adam(0.01)
few_xs, few_ys = jnp.asarray(xs[::16]), jnp.asarray(ys[::16])


def one_step(carry, _=None):
    params, state, value = step(*carry, few_xs, few_ys, tx=tx)
    return (params, state), value


@functools.partial(jax.jit, static_argnames=("turns", "unroll"))
def several(carry, turns, unroll=1):
    return jax.lax.scan(one_step, carry, length=turns, unroll=unroll)


def loop(calls, call, look=lambda value: None):
    carry = tiny, tx.init(tiny)
    for _ in range(calls):
        carry, value = call(carry)
        look(value)
    return carry


def seconds(way):
    begin = time.perf_counter()
    jax.block_until_ready(way())
    return time.perf_counter() - begin


ways = {
    "a call for each step": functools.partial(loop, 1000, one_step),
    "the same, and float(value)": functools.partial(loop, 1000, one_step, float),
    "calls of 8, the loop unrolled": functools.partial(loop, 125, lambda carry: several(carry, 8, unroll=8)),
    "calls of 8, a loop": functools.partial(loop, 125, lambda carry: several(carry, 8)),
    "one call of 1,000, a loop": functools.partial(loop, 1, lambda carry: several(carry, 1000)),
}
rounds = [[seconds(way) for way in ways.values()] for _ in range(10)]  # in turns: a busy moment meets all alike
for name, (first, *later) in zip(ways, zip(*rounds, strict=True), strict=True):
    print(f"{name:31s} {1e3 * min(later):7.1f} µs a step, first run {first:5.2f} s")

# %% [markdown]
# Calls, looks, compilation: three prices. Unrolled (`unroll=8`, or a Python loop inside `jit`), eight steps are eight copies of the code, and the first run shows what that costs; a loop holds one copy (08). `float`, `print(value)`, `if value < best` and `np.asarray` all wait. Collect values as they come, as `train` did, and look at them later, or every so often.
#
# ## A progress bar that costs little
# The same for `tqdm`: it is quick, but what it *shows* has to be there. Update it from time to time:


# %%
def with_bar(look_every, file, steps=1000):
    params, state = tiny, tx.init(tiny)
    with tqdm(total=steps, file=file, mininterval=10, bar_format="{l_bar}{bar:20}{r_bar}") as bar:
        for i in range(1, steps + 1):
            params, state, value = step(params, state, few_xs, few_ys, tx=tx)
            if i % look_every == 0:
                bar.set_postfix_str(f"loss {value:.4f}", refresh=False)  # formatting waits for the value
                bar.update(look_every)
    return bar.format_dict["elapsed"]


for look_every in (1, 100):
    took = [with_bar(look_every, io.StringIO()) for _ in range(6)] + [with_bar(look_every, sys.stdout)]
    print(f"looking every {look_every} steps: {1e3 * min(took):.0f} µs a step at best; the last of seven runs is shown")

# %% [markdown]
# Formatting the loss is what waits. With many steps in one call, update between calls; from inside a program, `jax.debug.callback` can (23).
#
# ## Stop before NaN gets in
# One broken reading, and the loss is NaN, its gradient too, and after one update every parameter. So training loops stop at NaN. Here is such a loop as it stood in a tour of JAX, in short:


# %%
def run(keep, params, state, batches):
    def body(carry, batch):
        def go(params, state, done):
            *new, value = step(params, state, *batch, tx=tx)
            return keep(new, [params, state], value), value

        return jax.lax.cond(carry[-1], lambda *carry: (carry, jnp.float32(-1)), go, *carry)  # -1: this step is skipped

    return jax.lax.scan(body, (params, state, False), batches)


def stop_at_nan(new, old, value):
    return (*new, jnp.isnan(value))  # what is carried on, and whether the run is done


# %% [markdown] predict="training-nan"
# `run` with `stop_at_nan` meets a NaN in batch 3 of 6, and skips the others. What does it return?
#
# - [ ] the parameters after batch 2, the last good ones | That is what it was written for. But look at when `done` is decided.
# - [x] parameters that are NaN, after batch 3 | Right: the update of batch 3 is kept. Only what comes later is skipped.
# - [ ] the parameters after batch 6, without batch 3 | It stops; it does not pass over.


# %%
def stop_in_time(new, old, value):
    fine = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves([value, new[0]])]).all()
    return (*jax.tree.map(functools.partial(jnp.where, fine), new, old), ~fine)


batches = jnp.asarray(xs[:192].reshape(6, 32, 1)), jnp.asarray(ys[:192].reshape(6, 32)).at[2, 5].set(jnp.nan)
after_two, state = tiny, tx.init(tiny)
for batch in zip(batches[0][:2], batches[1][:2], strict=True):
    after_two, state, _ = step(after_two, state, *batch, tx=tx)
for keep in (stop_at_nan, stop_in_time):
    (params, _, done), values = jax.jit(functools.partial(run, keep))(tiny, tx.init(tiny), batches)
    print(f"{keep.__name__:12s} losses {np.asarray(values)}  from those after batch 2: {apart(params, after_two):.0e}")

# %% [markdown]
# ![Two lanes of five batches, the third of which is NaN. Stops after the step: the NaN update is kept, later batches are skipped, NaN is returned. Decides before it keeps: the update is refused, the parameters after batch 2 are carried on and returned.](../images/training_early_stop.svg)
#
# (Two programs, a scan and single steps, round differently: that is the 1e-8 or so.) Three things make it right. The decision comes **before** anything is kept; the optimizer's state is kept back too, for its means would stay NaN for ever; and the new parameters are looked at, each number of them, beside the loss, because a finite loss may have a NaN slope, and inf is as bad:

# %%
distance = lambda params, xs, ys: jnp.linalg.norm(params - ys) ** 2  # the root has no slope at 0 (04)
params, tx = jnp.array([1.0, 2.0]), optax.sgd(0.1)
after, _, value = step(params, tx.init(params), None, params, tx=tx, loss=distance)
print("loss", value, " new parameters", after)

skipping = optax.apply_if_finite(tx, max_consecutive_errors=5)
after, state, _ = step(params, skipping.init(params), None, params, tx=skipping, loss=distance)
print("apply_if_finite:", after, " refused so far:", state.total_notfinite)

# %% [markdown]
# `optax.apply_if_finite` passes over a bad batch and goes on. It looks at the gradients that come in, not at the loss nor at what comes out, and after too many refusals in a row it lets everything through: for a rare bad batch, not for a run that has gone wrong.
#
# ## What else goes wrong
# **The best parameters, deleted.** A compiled step should take over the buffers of parameters and state (03); an exercise does. `best = params` is then deleted by the next step, as the cell below shows: keep `jax.tree.map(jnp.copy, params)`.
#
# **The state, forgotten.** `updates, _ = tx.update(...)` throws the memory away: Adam takes a first step for ever, and the loss falls a little, so nobody notices. **A new optimizer for each epoch** is the same mistake. So is a **restart from saved parameters** without the state that was saved with them (24).

# %%
tx, params, amnesia = optax.adam(0.01), start, start
state = fresh = tx.init(start)
for _ in range(300):
    params, state, value = step(params, state, xs, ys, tx=tx)
    amnesia, _, poor = step(amnesia, fresh, xs, ys, tx=tx)
print(f"after 300 steps: loss {value:.3f}, with a forgotten state {poor:.3f}")
best = params  # the same arrays, under another name
params = jax.jit(lambda tree: jax.tree.map(lambda p: 0.9 * p, tree), donate_argnums=0)(params)
print("the best parameters are deleted:", best[0]["w"].is_deleted())

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | an optimizer | `tx = optax.adam(0.01)`, once; `state = tx.init(params)` |
# | a step | `tx.update(gradient, state, params)`, then `optax.apply_updates`; return params *and* state |
# | another loss in the same step | a static argument, and a function that is defined once |
# | weights that are data | an array among the arguments |
# | several transformations | `optax.chain`, clipping before Adam |
# | a rate that follows a plan | a schedule in place of the number: traced, one program |
# | a rate that follows what is seen | `optax.inject_hyperparams`, and set it in the state |
# | a batch that does not fit | `optax.MultiSteps`, or a scan over its parts |
# | small steps, fast | several in one call, by `scan` |
# | progress | look every so often; every look waits |
# | no NaN in what you keep | decide before you keep, by loss and new parameters, for the state too |
#
# ## What it became
#
# | in older code, or elsewhere | now |
# |---|---|
# | `jax.experimental.optimizers`, `jax.example_libraries.optimizers` | Optax |
# | `flax.optim` | Optax; `TrainState` (12) and `nnx.Optimizer` (10) hold its state |
# | `optax.cross_entropy_loss` | never was: `optax.softmax_cross_entropy_with_integer_labels` |
# | `jaxopt.GradientDescent`, `jaxopt.LBFGS` | `optax.lbfgs` and others; Optimistix |
# | `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`, `scheduler.step()` (PyTorch) | the three lines of `step`: nothing to zero, and the counter is in the state |
#
# Next: the exercises. In the first, the end is missing.
