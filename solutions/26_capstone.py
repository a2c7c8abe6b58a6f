# %% [markdown]
# # 26 · Exercises: capstone
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The exercises are the parts of a training run: batches, an optimizer, a model, accumulation, a layout, and the whole run. **Each exercise is graded on its own.** Where a part needs another one, the setup or an argument provides it, so you can skip an exercise and still solve the next one. The model of the setup differs from that of the lesson in details, such as a trainable scale in its first norm.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise. All meshes have Auto axes, and the setup sets no mesh.
#
# The file `paradise_lost.txt` beside this notebook contains the poem of the lesson. `README.md` states its source and its licence.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, program, require

devices.start(8)  # before JAX is first used

import functools
import math
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def grid(*sizes, names=("data", "model")):
    """A mesh of devices with Auto axes, such as grid(4, 2)."""
    return devices.mesh(sizes, names)


def on_mesh(mesh, specs):
    """A tree of P -> the tree of NamedShardings on this mesh."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda one: isinstance(one, P))


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


# For capstone-run: the poem in characters, and the parts of a small training run.
CHARACTERS, TOKENS = np.unique(np.frombuffer(Path("paradise_lost.txt").read_bytes(), np.uint8), return_inverse=True)
TOKENS = TOKENS.astype(np.int32)  # the poem, with a number from 0 to 64 for each character
TRAIN, HELD_OUT = TOKENS[:410_000], TOKENS[410_000:]
D, LAYERS, HEADS, LENGTH, VOCABULARY = 32, 2, 4, 32, 72  # 65 characters and 7 unused rows, so that 2, 4 and 8 divide it


def batch_of(step):
    """The batch of this step, which depends on nothing else: int32 (16, 33)"""
    starts = np.random.default_rng(step).integers(0, len(TRAIN) - LENGTH, 16)
    return TRAIN[starts[:, None] + np.arange(LENGTH + 1)]


def held_out_batch():
    """int32 (64, 33)"""
    return HELD_OUT[700 * np.arange(64)[:, None] + np.arange(LENGTH + 1)]


def start(seed):
    """The state before the first step. params, mean and square are three trees with equal structure and shapes."""
    keys = jax.random.split(jax.random.key(seed), 5)
    draw = lambda key, *shape: jax.random.normal(key, shape) / math.sqrt(D)
    layers = {
        "qkv": draw(keys[0], LAYERS, D, 3, HEADS, D // HEADS),
        "out": draw(keys[1], LAYERS, HEADS, D // HEADS, D) / 2,
        "up": draw(keys[2], LAYERS, D, 4 * D),
        "down": draw(keys[3], LAYERS, 4 * D, D) / 4,
        "scale": jnp.ones((LAYERS, D)),
    }
    params = {"embed": draw(keys[4], VOCABULARY, D), "layers": layers}
    mean, square = (
        jax.tree.map(jnp.zeros_like, params) for _ in range(2)
    )  # no buffer twice, so that all can be donated
    return {"params": params, "mean": mean, "square": square, "count": jnp.int32(0)}


# FSDP along data and tensor parallelism along model, for the parameters of `start`.
SPECS = {
    "embed": P("model", "data"),
    "layers": {
        "qkv": P(None, "data", None, "model"),
        "out": P(None, "model", None, "data"),
        "up": P(None, "data", "model"),
        "down": P(None, "model", "data"),
        "scale": P(),
    },
}


def loss_of(params, batch, pin=lambda x: x):
    """The mean loss of the next character: batch int32 (B, T + 1) -> float32[]. `pin` is applied to all activations."""

    def layer(x, w):
        y = x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * w["scale"]
        q, k, v = jnp.einsum("btd,dnhk->nbthk", y, w["qkv"])
        x = x + jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v, is_causal=True), w["out"])
        return pin(x + jax.nn.silu(x @ w["up"]) @ w["down"]), None

    x, _ = jax.lax.scan(layer, pin(math.sqrt(D) * params["embed"][batch[:, :-1]]), params["layers"])
    logits = jnp.einsum("btd,vd->btv", x, params["embed"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


def update(state, batch, pin=lambda x: x):
    """One step of Adam: the next state and the loss, computed before the step. `pin` is that of loss_of."""
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], batch, pin)
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, state["square"], gradients)
    rate = 0.01 * jnp.minimum(1, count / 5)
    move = lambda p, m, s: p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.99**count)) + 1e-8)
    params = jax.tree.map(move, state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square, "count": count}, loss


class Stopped(Exception):
    """What `after_step` raises in the checks, in place of a crash."""


def stop_after(steps):
    """An `after_step` that raises Stopped after this number of steps; None for never."""

    def after_step(step):
        if step == steps:
            raise Stopped

    return after_step


# %% [markdown] task="capstone-batches" stars=1 minutes=10 skills="01_arrays,07_randomness"
# ## Batches from a position
# **Goal.** Compute the batch of a step from the number of the step. Then a checkpoint needs no state of a data loader. Three lines are missing.
#
# **Signature.** `batch_at(tokens, step, size, length, seed)` takes an int32 array with one axis, and four ints. It returns an int32 array of shape `(size, length + 1)`. Each row is a window.
#
# Window i consists of the `length + 1` tokens that begin at position `i * length`, so adjacent windows share one token. The text has as many windows as fit completely. In epoch e, the windows have the order `np.random.default_rng((seed, e)).permutation(number of windows)`, and each batch takes the next `size` windows of this order. Windows that do not fill a batch are left out in this epoch. Step 0 is the first batch of epoch 0.
#
# **Example.** 10 tokens with `length = 3` are three windows, which begin at 0, 3 and 6. With `size = 1`, an epoch has three batches, and step 4 is the second batch of epoch 1. With 9 tokens, there are two windows.
#
# **Judged.** The values, the shape and the dtype, for several epochs and sizes, and for texts in which the last window just fits, or just does not fit. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# The last window needs its `length` inputs and one more token. How many tokens do n windows need?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# n windows need `n * length + 1` tokens. An epoch has `n // size` batches, and `divmod` returns the epoch and the position in it.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The last token is no input, so leave it out before you divide by `length`. Then `divmod` the step by the batches of an epoch. The chosen windows are the slice of `order` from `position * size` on, with `size` entries.
#
# </details>


# %% answer="capstone-batches"
def batch_at(tokens, step, size, length, seed):
    """tokens int32 (n,), the number of a step -> int32 (size, length + 1)"""
    ### BEGIN SOLUTION
    windows = (len(tokens) - 1) // length
    epoch, position = divmod(step, windows // size)
    ### END SOLUTION
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    ### BEGIN SOLUTION
    starts = length * order[position * size : (position + 1) * size]
    ### END SOLUTION
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% check="capstone-batches" name="example" points=1
"""The example: ten tokens in windows of three."""
tokens, seen = np.arange(10, dtype=np.int32), []
for step in range(3):
    batch = ask(batch_at, tokens, step, 1, 3, 0)
    compare(batch, batch[0, 0] + np.arange(4, dtype=np.int32)[None], label=f"the batch of step {step}")
    seen.append(int(batch[0, 0]))
require(sorted(seen) == [0, 3, 6], f"The windows of epoch 0 begin at {sorted(seen)}; expected 0, 3 and 6.")

# %% hidden="capstone-batches" name="values" points=3
"""Every step has the windows that the task prescribes, in all epochs."""


def expected(tokens, step, size, length, seed):
    windows, stop = [], len(tokens) - length
    for begin in range(0, stop, length):
        windows.append(tokens[begin : begin + length + 1])
    per_epoch = len(windows) // size
    order = np.random.default_rng((seed, step // per_epoch)).permutation(len(windows))
    return np.stack([windows[i] for i in order[step % per_epoch * size :][:size]])


rng = inputs.rng()
for length, size, windows, more in ((5, 2, 9, 1), (4, 3, 9, 0), (3, 4, 13, 3), (7, 3, 7, 4), (1, 2, 6, 1)):
    tokens = rng.integers(0, 1000, windows * length + more).astype(np.int32)
    seed = int(rng.integers(1000))
    with case(f"for {len(tokens)} tokens in windows of {length} and batches of {size}"):
        for step in (0, 1, 2, 3, 6, 7, 11):
            got = ask(batch_at, tokens, step, size, length, seed)
            compare(got, expected(tokens, step, size, length, seed), label="the batch")

# %% [markdown] why="capstone-batches"
# The order of an epoch depends on the seed and the epoch only, so any batch can be computed without the earlier ones. A checkpoint that contains the number of the step is enough to resume. **Next:** How would two processes use this function, so that each of them loads half of every batch?


# %% wrong="capstone-batches" because="Counts a window too many where the last one lacks its target. n windows need n * length + 1 tokens."
def batch_at(tokens, step, size, length, seed):
    windows = len(tokens) // length
    epoch, position = divmod(step, windows // size)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = length * order[position * size : (position + 1) * size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Counts a window too many where the last one lacks its target. n windows need n * length + 1 tokens."
def batch_at(tokens, step, size, length, seed):
    windows = len(tokens) // length
    epoch, position = divmod(step, windows // size)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = length * order[position * size : (position + 1) * size]
    return np.take(tokens, starts[:, None] + np.arange(length + 1), mode="clip")


# %% wrong="capstone-batches" because="Uses windows of length + 1 tokens that share none, so the text has fewer windows than prescribed."
def batch_at(tokens, step, size, length, seed):
    windows = len(tokens) // (length + 1)
    epoch, position = divmod(step, windows // size)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = (length + 1) * order[position * size : (position + 1) * size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Counts the steps of an epoch in windows instead of batches, so later epochs begin too late."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    epoch, position = divmod(step, windows)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = length * order[(position * size + np.arange(size)) % windows]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Rounds the number of batches up. The last batch of an epoch is then incomplete."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    epoch, position = divmod(step, -(-windows // size))
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = length * order[position * size : (position + 1) * size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Advances by one window for each step, so batches overlap."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    epoch, position = divmod(step, windows // size)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = length * order[position : position + size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Uses the same order in every epoch."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    position = step % (windows // size)
    order = np.random.default_rng((seed, 0)).permutation(windows)
    starts = length * order[position * size : (position + 1) * size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Draws a new order for every step, so an epoch repeats some windows and lacks others."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    order = np.random.default_rng((seed, step)).permutation(windows)
    return tokens[length * order[:size, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Forgets to multiply by the length: the windows begin at adjacent positions."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    epoch, position = divmod(step, windows // size)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = order[position * size : (position + 1) * size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Carries the windows that are left over into the next epoch, where the task leaves them out."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    epochs = (step * size + np.arange(size)) // windows
    places = (step * size + np.arange(size)) % windows
    orders = [np.random.default_rng((seed, int(e))).permutation(windows) for e in epochs]
    starts = np.array([length * order[i] for order, i in zip(orders, places, strict=True)])
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% wrong="capstone-batches" because="Takes every n-th window of the order. Each batch takes the next `size` windows."
def batch_at(tokens, step, size, length, seed):
    windows = (len(tokens) - 1) // length
    epoch, position = divmod(step, windows // size)
    order = np.random.default_rng((seed, epoch)).permutation(windows)
    starts = length * order[position :: windows // size][:size]
    return tokens[starts[:, None] + np.arange(length + 1)]


# %% right="capstone-batches"
def batch_at(tokens, step, size, length, seed):
    rows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]
    batches = len(rows) // size
    order = np.random.default_rng((seed, step // batches)).permutation(len(rows))
    return np.array(rows[order[: batches * size].reshape(batches, size)[step % batches]])


# %% right="capstone-batches"
def batch_at(tokens, step, size, length, seed):
    count = -(-(len(tokens) - length) // length)
    order = np.random.default_rng((seed, step // (count // size))).permutation(count)
    first = step % (count // size) * size
    return np.stack([tokens[i * length : i * length + length + 1] for i in order[first : first + size]])


# %% [markdown] task="capstone-optimizer" stars=2 minutes=15 skills="06_pytrees,09_training"
# ## Clip, schedule, decay
# **Goal.** Build the optimizer of the run from parts of Optax.
#
# **Signature.** `make_optimizer(peak, warmup, steps, limit, decay)` returns an `optax.GradientTransformation`. Its updates are added to the parameters, as `optax.apply_updates` does. It
#
# 1. scales all gradients by one factor, if their global norm exceeds `limit`, so that it becomes `limit`,
# 2. applies Adam with `b1=0.9`, `b2=0.95` and `eps=1e-8`,
# 3. adds `decay` times the parameter, which is decoupled weight decay, except for leaves with the key `"scale"` or `"bias"`,
# 4. multiplies by minus the learning rate. It rises linearly from 0, for the first update, to `peak` after `warmup` updates. Then it follows a cosine to `peak / 10` after `steps` updates in all, and remains there.
#
# The parameters are nested dicts. The weights of the layers are stacked, so a `"scale"` may have the shape `(layers, d)` or `(d,)`.
#
# **Example.** With `peak = 0.5` and `warmup = 2`, the learning rates of the first three updates are 0, 0.25 and 0.5. For `params = {"w": [[2]], "scale": [[2]]}` and the gradients 1, Adam returns 1 for both in each step. With `decay = 0.1` and a large `limit`, the second update is -0.25 (1 + 0.2) = -0.3 for `w`, and -0.25 for `scale`.
#
# **Judged.** The updates in the course of a run, for gradients above and below `limit`, and for several trees and settings. `init` and `update` work under `jit`. **Not judged.** The structure of the optimizer state.
#
# <details><summary>Hint 1 · a question</summary>
#
# `leaf.ndim > 1` is true for a stacked scale. What else distinguishes it from a matrix?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `optax.adamw` takes `mask=`, a function from the parameters to a tree of booleans. `jax.tree_util.tree_map_with_path` passes the path of each leaf.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Chain `optax.clip_by_global_norm` and `optax.adamw`. The learning rate is a schedule from `optax.warmup_cosine_decay_schedule`, whose `decay_steps` include the warm-up. In the mask, the key of a leaf is `path[-1].key`.
#
# </details>


# %% answer="capstone-optimizer"
def make_optimizer(peak, warmup, steps, limit, decay):
    """float, int, int, float, float -> optax.GradientTransformation"""

    ### BEGIN SOLUTION
    def is_matrix(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in ("scale", "bias"), params)

    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    adam = optax.adamw(schedule, b1=0.9, b2=0.95, eps=1e-8, weight_decay=decay, mask=is_matrix)
    return optax.chain(optax.clip_by_global_norm(limit), adam)
    ### END SOLUTION


# %% check="capstone-optimizer" name="example" points=1
"""The example: three updates, with and without weight decay."""


def probe_example(params, gradients):
    optimizer, updates = make_optimizer(0.5, 2, 10, 100.0, 0.1), []
    state = optimizer.init(params)
    for _ in range(3):
        update, state = optimizer.update(gradients, state, params)
        updates.append(update)
    return updates


params = {"w": np.full((1, 1), 2, np.float32), "scale": np.full((1, 1), 2, np.float32)}
updates = ask(probe_example, params, jax.tree.map(np.ones_like, params))
for i, rate in enumerate((0.0, 0.25, 0.5)):
    wanted = {"w": np.full((1, 1), -1.2 * rate, np.float32), "scale": np.full((1, 1), -rate, np.float32)}
    compare(updates[i], wanted, label=f"update {i + 1}")

# %% hidden="capstone-optimizer" name="values" points=3
"""The updates of a whole run agree with the four parts of the task."""


def probe_updates(peak, warmup, steps, limit, decay, params, gradients):
    optimizer, updates = make_optimizer(peak, warmup, steps, limit, decay), []
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    for some in gradients:
        changes, state = update(some, state, params)
        params = optax.apply_updates(params, changes)
        updates.append(changes)
    return updates


def by_hand(peak, warmup, steps, limit, decay, params, gradients):
    names = list(params)
    params, updates = {n: np.float64(params[n]) for n in names}, []
    m, s = ({n: np.zeros(params[n].shape) for n in names} for _ in range(2))
    for t, some in enumerate(gradients):
        total = math.sqrt(sum(float((np.float64(some[n]) ** 2).sum()) for n in names))
        factor = min(1.0, limit / total)
        rate = peak * t / warmup
        if t >= warmup:
            rate = peak / 10 + 0.45 * peak * (1 + math.cos(math.pi * min(1, (t - warmup) / (steps - warmup))))
        changes = {}
        for n in names:
            m[n] = 0.9 * m[n] + 0.1 * factor * some[n]
            s[n] = 0.95 * s[n] + 0.05 * (factor * some[n]) ** 2
            step = m[n] / (1 - 0.9 ** (t + 1)) / (np.sqrt(s[n] / (1 - 0.95 ** (t + 1))) + 1e-8)
            matrix = n.split("/")[-1] not in ("scale", "bias")
            changes[n] = -rate * (step + decay * params[n] * matrix)
            params[n] = params[n] + changes[n]
        updates.append({n: np.float32(changes[n]) for n in names})
    return updates


def nested(flat):
    tree = {}
    for name, leaf in flat.items():
        *above, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), above, tree)[last] = leaf
    return tree


rng = inputs.rng()
for words, peak, warmup, steps, limit, decay, sizes in (
    ("without decay or clipping", 0.2, 3, 8, 500.0, 0.0, (1.0, 2.0)),
    ("with decay and without clipping", 0.05, 2, 6, 500.0, 1.5, (0.2, 1.0)),
    ("with gradients above the limit", 0.3, 3, 7, 2.0, 0.3, (0.05, 4.0)),
):
    shapes = {"layers/up": (2, 3, 4), "layers/scale": (2, 3), "layers/bias": (2, 4), "embed": (5, 3), "scale": (3,)}
    shapes |= {"layers/upscale": (2, 3, 3), "bias_net/out": (3, 2)}  # these are decayed
    params = {n: rng.normal(size=shape).astype(np.float32) + 1 for n, shape in shapes.items()}
    # The sizes alternate, and clipping changes the ratio of one step to the next.
    gradients = [
        {n: (sizes[t % 2] * rng.uniform(0.5, 1.5, size=shape)).astype(np.float32) for n, shape in shapes.items()}
        for t in range(steps + 3)
    ]
    settings = peak, warmup, steps, limit, decay
    got = ask(probe_updates, *settings, nested(params), [nested(some) for some in gradients])
    wanted = by_hand(*settings, params, gradients)
    require(isinstance(got, list) and len(got) == len(wanted), "The number of updates is wrong.")
    for t, (one, other) in enumerate(zip(got, wanted, strict=True)):
        when = "in the warm-up" if t < warmup else "in the cosine" if t <= steps else "after the last step"
        with case(f"{words}, {when}"):
            compare(one, nested(other), rtol=2e-3, atol=1e-5, label="the update")

# %% [markdown] why="capstone-optimizer"
# Stacking the layers adds an axis to every leaf, so the number of axes no longer tells a vector from a matrix. The path does. Clipping comes first, because Adam would remove a constant factor from all later gradients. **Next:** Why does Adam with clipping still change if all gradients of a run are multiplied by 1,000?


# %% wrong="capstone-optimizer" because="Selects matrices by their number of axes. The scales of stacked layers have two axes."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    adam = optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask)
    return optax.chain(optax.clip_by_global_norm(limit), adam)


# %% wrong="capstone-optimizer" because="Decays all parameters, also scales and biases."
def make_optimizer(peak, warmup, steps, limit, decay):
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay))


# %% wrong="capstone-optimizer" because="Clips the updates of Adam instead of the gradients."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(
        optax.scale_by_adam(b2=0.95),
        optax.clip_by_global_norm(limit),
        optax.add_decayed_weights(decay, mask),
        optax.scale_by_learning_rate(schedule),
    )


# %% wrong="capstone-optimizer" because="Clips entries or leaves on their own, which changes the direction of the gradient. The task scales all gradients by one factor, which depends on their common norm."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.clip(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Clips entries or leaves on their own, which changes the direction of the gradient. The task scales all gradients by one factor, which depends on their common norm."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.clip_by_block_rms(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Adds the decay to the gradients, before Adam, so it is divided by their root mean square. This is L2 regularization, and not decoupled decay."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(
        optax.clip_by_global_norm(limit), optax.add_decayed_weights(decay, mask), optax.adam(schedule, b2=0.95)
    )


# %% wrong="capstone-optimizer" because="The cosine lasts `steps` updates after the warm-up. `steps` includes the warm-up."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps + warmup, peak / 10)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Lets the learning rate fall to 0 instead of a tenth of its peak."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Uses the default b2 = 0.999."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="The mask is inverted: it selects the leaves that are not decayed."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Excludes the scales only. The biases are not decayed either."
def make_optimizer(peak, warmup, steps, limit, decay):

    def mask(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key != "scale", params)

    rate = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    adam = optax.adamw(rate, b1=0.9, b2=0.95, eps=1e-8, weight_decay=decay, mask=mask)
    return optax.chain(optax.clip_by_global_norm(limit), adam)


# %% wrong="capstone-optimizer" because="Subtracts the warm-up from `decay_steps`, which Optax counts from the first update."
def make_optimizer(peak, warmup, steps, limit, decay):

    def mask(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in ("scale", "bias"), params)

    rate = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps - warmup, peak / 10)
    adam = optax.adamw(rate, b1=0.9, b2=0.95, eps=1e-8, weight_decay=decay, mask=mask)
    return optax.chain(optax.clip_by_global_norm(limit), adam)


# %% wrong="capstone-optimizer" because="Searches the whole path for the words. Only the last key counts, and it has to be equal to one of the words."
def make_optimizer(peak, warmup, steps, limit, decay):
    def mask(params):
        name = lambda path: jax.tree_util.keystr(path)
        decayed = lambda path, _: "scale" not in name(path) and "bias" not in name(path)
        return jax.tree_util.tree_map_with_path(decayed, params)

    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Ends at the learning rate 0.1. `end_value` of Optax is a learning rate, and not a fraction of the peak."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, end_value=0.1)
    return optax.chain(optax.clip_by_global_norm(limit), optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask))


# %% wrong="capstone-optimizer" because="Subtracts the decay after the multiplication by the learning rate. The learning rate multiplies the decay too."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    adam = optax.adam(schedule, b2=0.95)
    return optax.chain(optax.clip_by_global_norm(limit), adam, optax.add_decayed_weights(-decay, mask))


# %% wrong="capstone-optimizer" because="Clips the updates of Adam instead of the gradients."
def make_optimizer(peak, warmup, steps, limit, decay):
    mask = lambda params: jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key not in ("scale", "bias"), params)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 10)
    return optax.chain(optax.adamw(schedule, b2=0.95, weight_decay=decay, mask=mask), optax.clip_by_global_norm(limit))


# %% right="capstone-optimizer"
def make_optimizer(peak, warmup, steps, limit, decay):
    def mask(tree):
        return {
            key: mask(leaf) if isinstance(leaf, dict) else key not in {"scale", "bias"} for key, leaf in tree.items()
        }

    cosine = optax.cosine_decay_schedule(peak, steps - warmup, alpha=0.1)
    schedule = optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), cosine], [warmup])
    return optax.chain(
        optax.clip_by_global_norm(limit),
        optax.scale_by_adam(b2=0.95),
        optax.add_decayed_weights(decay, mask=mask),
        optax.scale_by_learning_rate(schedule),
    )


# %% right="capstone-optimizer"
def make_optimizer(peak, warmup, steps, limit, decay):
    def rate(count):
        part = jnp.clip((count - warmup) / (steps - warmup), 0, 1)
        return jnp.where(count < warmup, peak * count / warmup, peak * (0.55 + 0.45 * jnp.cos(jnp.pi * part)))

    adam = optax.inject_hyperparams(optax.adamw, static_args=("mask",))(
        rate,
        b2=0.95,
        weight_decay=decay,
        mask=lambda params: jax.tree.map_with_path(
            lambda p, _: "'scale'" not in str(p) and "'bias'" not in str(p), params
        ),
    )
    return optax.chain(optax.clip_by_global_norm(limit), adam)


# %% [markdown] task="capstone-logits" stars=2 minutes=20 skills="08_control_flow,15_memory_and_precision,25_attention"
# ## A model whose program and memory do not grow with depth
# **Goal.** Run stacked layers with a scan, store only the input of each layer for the backward pass, and compute in a given dtype.
#
# **Signature.** `logits(block, params, tokens, dtype)` takes `params = {"embed": float32[V,d], "layers": tree}`. Each leaf of `layers` is float32 and has a first axis for the layers. `block(w, x)` applies one layer to x of shape (B, T, d), where `w` is a tree without this axis. It returns an array with the shape and the dtype of x. `tokens` is int32[B,T]. The function
#
# 1. selects the rows of `embed` and casts them to `dtype`,
# 2. applies all layers, with x and all leaves of `w` in `dtype`,
# 3. multiplies x by the transposed `embed`, both in `dtype`, and returns float32[B,T,V]. The sums of this product are float32, and are not rounded to `dtype`.
#
# **Example.** If `block` is `lambda w, x: x + w["b"]`, with `b` of shape (layers, d), then the logits are `(embed[tokens] + b.sum(0)) @ embed.T`.
#
# **Judged.** The values and gradients in float32 and bfloat16, with several blocks, and the dtypes that `block` receives. The number of operations does not depend on the number of layers. In addition to `params`, which may also be stored once in `dtype`, the residuals have the bytes of one x per layer, and of at most two more. **Not judged.** Speed. The gradients are float32, as the parameters.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does the backward pass of a scan store for each iteration if its body is wrapped with `jax.checkpoint`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The body of the scan takes `x` as the carry and `w` from `xs=params["layers"]`. Cast `w` inside the body. The logits need `preferred_element_type=jnp.float32`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Decorate the body `layer(x, w)` with `@jax.checkpoint`. It returns a pair, the next x and `None`. It passes `block` the weights after a `jax.tree.map` with `astype`. The last line is a `jnp.einsum("btd,vd->btv", ...)`.
#
# </details>


# %% answer="capstone-logits"
def logits(block, params, tokens, dtype):
    """block(w, x), params {"embed": (V, d), "layers": (layers, ...)}, tokens int32 (B, T) -> float32 (B, T, V)"""
    ### BEGIN SOLUTION
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

    @jax.checkpoint
    def layer(x, w):
        return block(cast(w), x), None

    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"])
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)
    ### END SOLUTION


# %% check="capstone-logits" name="example" points=1
"""The example, with three layers."""


def probe_example(params, tokens):
    return logits(lambda w, x: x + w["b"], params, tokens, jnp.float32)


embed, b = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([[1, 2], [3, 4], [5, 6]], np.float32)
tokens = np.array([[0, 3, 1], [2, 2, 0]], np.int32)
params = {"embed": embed, "layers": {"b": b}}
got = program(probe_example, params, tokens).run(params, tokens)
compare(got, (embed[tokens] + b.sum(axis=0)) @ embed.T, label="the logits")

# %% hidden="capstone-logits" name="values" points=2
"""Values and gradients of a network, in float32."""


def probe_network(params, tokens, weights):
    def block(w, x):
        inner = w["two"]
        return x + jnp.tanh(x @ w["one"] + inner["shift"]) @ inner["back"]

    def total(params):
        found = logits(block, params, tokens, jnp.float32)
        return jnp.sum(weights * jax.nn.log_softmax(found)), found

    (_, found), gradients = jax.value_and_grad(total, has_aux=True)(params)
    return {"found": found, "gradients": gradients}


rng = inputs.rng()
for V, d, h, depth, B, T in ((7, 4, 6, 3, 2, 5), (5, 3, 8, 1, 4, 2)):
    draw = lambda *shape: (rng.normal(size=shape) / 2).astype(np.float32)
    one, shift, back, embed = draw(depth, d, h), draw(depth, h), draw(depth, h, d), draw(V, d)
    params = {"embed": embed, "layers": {"one": one, "two": {"shift": shift, "back": back}}}
    tokens, weights = rng.integers(0, V, (B, T)).astype(np.int32), draw(B, T, V)
    states, hidden = [np.float64(embed)[tokens]], []
    for i in range(depth):
        hidden.append(np.tanh(states[-1] @ one[i] + shift[i]))
        states.append(states[-1] + hidden[-1] @ back[i])
    wanted = states[-1] @ embed.T
    p = np.exp(wanted - wanted.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    pull = weights - p * weights.sum(axis=-1, keepdims=True)
    by_embed, by_x = np.einsum("btv,btd->vd", pull, states[-1]), pull @ embed
    grads = {"one": np.zeros(one.shape), "shift": np.zeros(shift.shape), "back": np.zeros(back.shape)}
    for i in reversed(range(depth)):
        grads["back"][i] = np.einsum("bth,btd->hd", hidden[i], by_x)
        inside = (by_x @ back[i].T) * (1 - hidden[i] ** 2)
        grads["shift"][i] = inside.sum(axis=(0, 1))
        grads["one"][i] = np.einsum("btd,bth->dh", states[i], inside)
        by_x = by_x + inside @ one[i].T
    np.add.at(by_embed, tokens.reshape(-1), by_x.reshape(-1, d))
    layers = {"one": grads["one"], "two": {"shift": grads["shift"], "back": grads["back"]}}
    with case(f"for {depth} layers"):
        got = program(probe_network, params, tokens, weights).run(params, tokens, weights)
        compare(got["found"], np.float32(wanted), rtol=1e-3, atol=1e-4, label="the logits")
        gradients = jax.tree.map(np.float32, {"embed": by_embed, "layers": layers})
        compare(got["gradients"], gradients, rtol=2e-3, atol=1e-3, label="the gradients")

# %% hidden="capstone-logits" name="dtypes" points=2
"""x and w have the dtype of the argument, and the logits are not rounded to it."""


def probe_bfloat16(params, tokens):
    bits = lambda array: jnp.asarray(-math.log2(jnp.finfo(array.dtype).eps), array.dtype)  # 7, 10 or 23
    return logits(lambda w, x: (x + w["b"] + bits(x) + 2 * bits(w["b"])).astype(x.dtype), params, tokens, jnp.bfloat16)


def probe_float16(params, tokens):
    bits = lambda array: jnp.asarray(-math.log2(jnp.finfo(array.dtype).eps), array.dtype)
    return logits(lambda w, x: (x + w["b"] + bits(x) + 2 * bits(w["b"])).astype(x.dtype), params, tokens, jnp.float16)


rng = inputs.rng()
# Whole numbers below 256 are exact in both dtypes, and the sums of the logits are not. No token uses the last rows of
# `embed`, which are not whole, so only the product rounds them.
embed, b = rng.integers(20, 60, (6, 32)).astype(np.float32), rng.integers(1, 6, (3, 32)).astype(np.float32)
embed[4:] += rng.uniform(0.1, 0.9, (2, 32)).astype(np.float32)
params, tokens = {"embed": embed, "layers": {"b": b}}, rng.integers(0, 4, (2, 4)).astype(np.int32)
in_bfloat16, in_float16 = program(probe_bfloat16, params, tokens), program(probe_float16, params, tokens)
for dtype, made, bits in ((jnp.bfloat16, in_bfloat16, 7), (jnp.float16, in_float16, 10)):
    with case(f"in {np.dtype(dtype).name}"):
        require(made.outputs.dtype == np.float32, "The logits are not float32.")
        x = np.float64(embed[tokens] + b.sum(axis=0) + 3 * 3 * bits)
        wanted = np.float32(x @ np.float64(embed.astype(dtype)).T)
        compare(made.run(params, tokens), wanted, rtol=2e-6, atol=0, label="the logits")

# %% hidden="capstone-logits" name="program" points=2 observed=true
"""The program does not grow with the number of layers, and the residuals are one x for each layer."""


def probe_stored(params, tokens):
    def block(w, x):
        for _ in range(3):
            x = x + jnp.tanh(jnp.sin(x @ w["up"])) @ w["down"]
        return x

    found, backward = jax.vjp(lambda params: logits(block, params, tokens, jnp.bfloat16), params)
    return {"found": found, "stored": jax.tree.leaves(backward)}


made, rng = {}, inputs.rng()
for depth in (3, 6):
    draw = lambda *shape: (rng.normal(size=shape) / 8).astype(np.float32)
    params = {"embed": 8 * draw(5, 16), "layers": {"up": draw(depth, 16, 24), "down": draw(depth, 24, 16)}}
    tokens = rng.integers(0, 5, (8, 32)).astype(np.int32)
    made[depth] = program(probe_stored, params, tokens)
    x = params["embed"][tokens]
    for i in range(depth):
        for _ in range(3):
            x = x + np.tanh(np.sin(x @ params["layers"]["up"][i])) @ params["layers"]["down"][i]
    with case(f"for {depth} layers"):
        got = made[depth].run(params, tokens)["found"]
        compare(got, np.float32(x @ params["embed"].T), rtol=6e-2, atol=0.4, label="the logits")
        stored = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in made[depth].outputs["stored"])
        one = tokens.size * 16 * 2  # bytes of x in bfloat16
        weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        states = (stored - 1.5 * weights - 8 * tokens.nbytes) / one
        require(
            states < depth + 2,
            "The residuals have too many bytes; expected those of the parameters and of one x for each layer.",
        )
        few = (stored - weights) / one < depth - 0.5
        require(not few, "The residuals have too few bytes; expected one x for each layer, and not one for all layers.")
require(made[3].operations == made[6].operations, "The program has more operations for more layers. Use one scan.")

# %% [markdown] why="capstone-logits"
# The scan stores its carry in each iteration, which is the input of each layer. Because of `jax.checkpoint`, the backward pass computes everything else in a layer again. The cast is part of the layer, so no second copy of all weights is stored. **Next:** How would you store every second carry only?


# %% wrong="capstone-logits" because="No `jax.checkpoint`: the backward pass stores all intermediate arrays of every layer."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = lambda x, w: (block(cast(w), x), None)
    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"])
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="No `jax.checkpoint`: the backward pass stores all intermediate arrays of every layer."
def logits(block, params, tokens, dtype):
    params16 = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    x, _ = jax.lax.scan(lambda x, w: (block(w, x), None), params16["embed"][tokens], params16["layers"])
    return jnp.matmul(x, params16["embed"].T, preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Wraps the whole scan with `jax.checkpoint`. The backward pass then runs all layers again, and stores the intermediate arrays of all of them at once."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

    @jax.checkpoint
    def layers(x, weights):
        return jax.lax.scan(lambda x, w: (block(cast(w), x), None), x, weights)[0]

    x = layers(cast(params["embed"][tokens]), params["layers"])
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Uses a policy that stores the results of matrix products, which are several arrays for each layer."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = jax.checkpoint(lambda x, w: (block(cast(w), x), None), policy=jax.checkpoint_policies.dots_saveable)
    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"])
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="A Python loop over the layers is unrolled, so the program grows with depth."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    x = cast(params["embed"][tokens])
    for i in range(len(jax.tree.leaves(params["layers"])[0])):
        x = jax.checkpoint(lambda w, x: block(cast(w), x))(jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"]), x)
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="The logits are computed in `dtype` and cast afterwards. They are already rounded then."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = jax.checkpoint(lambda x, w: (block(cast(w), x), None))
    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"])
    return (x @ cast(params["embed"]).T).astype(jnp.float32)


# %% wrong="capstone-logits" because="Casts x but not the weights, so the layers compute in float32, or fail because the carry changes its dtype."
def logits(block, params, tokens, dtype):
    layer = jax.checkpoint(lambda x, w: (block(w, x).astype(dtype), None))
    x, _ = jax.lax.scan(layer, params["embed"][tokens].astype(dtype), params["layers"])
    return jnp.einsum("btd,vd->btv", x, params["embed"].astype(dtype), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Ignores `dtype` and computes in float32."
def logits(block, params, tokens, dtype):
    layer = jax.checkpoint(lambda x, w: (block(w, x), None))
    x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
    return jnp.einsum("btd,vd->btv", x, params["embed"])


# %% wrong="capstone-logits" because="Casts x back to float32 between the layers, so the layers store and add in float32."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = jax.checkpoint(lambda x, w: (block(cast(w), x.astype(dtype)).astype(jnp.float32), None))
    x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
    return jnp.einsum("btd,vd->btv", x, params["embed"])


# %% wrong="capstone-logits" because="Returns the logits in `dtype`."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = jax.checkpoint(lambda x, w: (block(cast(w), x), None))
    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"])
    return x @ cast(params["embed"]).T


# %% wrong="capstone-logits" because="Runs the layers in reverse order."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = jax.checkpoint(lambda x, w: (block(cast(w), x), None))
    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"], reverse=True)
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Computes the logits with the float32 weights. Both factors of the product should have `dtype`."
def logits(block, params, tokens, dtype):

    @jax.checkpoint
    def layer(x, w):
        return block(jax.tree.map(lambda leaf: leaf.astype(dtype), w), x), None

    x = params["embed"][tokens].astype(dtype)
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return jnp.einsum("btd,vd->btv", x.astype(jnp.float32), params["embed"])


# %% wrong="capstone-logits" because="No `jax.checkpoint`: the backward pass stores all intermediate arrays of every layer."
def logits(block, params, tokens, dtype):

    def layer(x, w):
        return block(jax.tree.map(lambda leaf: leaf.astype(dtype), w), x), None

    x = params["embed"][tokens].astype(dtype)
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return jnp.einsum("btd,vd->btv", x, params["embed"].astype(dtype), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Multiplies the embeddings by sqrt(d), as the model of the lesson does. The task selects the rows and casts them."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    layer = jax.checkpoint(lambda x, w: (block(cast(w), x), None))
    x = cast(params["embed"][tokens]) * params["embed"].shape[1] ** 0.5
    x, _ = jax.lax.scan(layer, x, params["layers"])
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Unrolls the scan, so the program grows with depth."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

    @jax.checkpoint
    def layer(x, w):
        return block(cast(w), x), None

    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"], unroll=True)
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% wrong="capstone-logits" because="Uses a policy that stores the results of matrix products, which are several arrays for each layer."
def logits(block, params, tokens, dtype):
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(x, w):
        return block(cast(w), x), None

    x, _ = jax.lax.scan(layer, cast(params["embed"][tokens]), params["layers"])
    return jnp.einsum("btd,vd->btv", x, cast(params["embed"]), preferred_element_type=jnp.float32)


# %% right="capstone-logits"
def logits(block, params, tokens, dtype):
    small = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    layer = jax.checkpoint(block)
    x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), small["embed"][tokens], small["layers"])
    return jnp.matmul(x, small["embed"].T, preferred_element_type=jnp.float32)


# %% right="capstone-logits"
def logits(block, params, tokens, dtype):
    cast = functools.partial(jax.tree.map, lambda leaf: jnp.asarray(leaf, dtype))
    layer = jax.checkpoint(lambda w, x: block(cast(w), x), policy=jax.checkpoint_policies.nothing_saveable)
    depth = len(jax.tree.leaves(params["layers"])[0])

    def body(x, i):
        return layer(jax.tree.map(lambda leaf: leaf[i], params["layers"]), x), None

    x, _ = jax.lax.scan(body, jnp.take(params["embed"], tokens, axis=0).astype(dtype), jnp.arange(depth))
    return jax.lax.dot_general(x, cast(params["embed"]), (((2,), (1,)), ((), ())), preferred_element_type=jnp.float32)


# %% [markdown] task="capstone-accumulate" stars=2 minutes=15 skills="04_grad,08_control_flow,15_memory_and_precision"
# ## Gradients of micro-batches
# **Goal.** Compute the gradient of a large batch from micro-batches, in which some tokens are padding.
#
# **Signature.** `mean_gradient` takes a function `loss_sum`, a tree `params`, and `batches`, an int32 array whose first axis counts the M micro-batches. `loss_sum(params, batch)` gets one of them and returns two float32 scalars: the **sum** of the losses of its real tokens, and their number. The result is `(loss, gradients)`. `loss` is the mean over all real tokens of all micro-batches. `gradients` is its gradient with respect to `params`.
#
# Leaves of `params` are float32 or bfloat16. All gradients are accumulated and returned in **float32**. Divide them by the number of tokens after the last micro-batch, since bfloat16 would round them if they were divided earlier.
#
# **Example.** Two micro-batches have the sums 6 and 1, for 3 tokens and 1 token. The mean is 7 / 4 = 1.75. The mean of the two means, (2 + 1) / 2, would be wrong.
#
# **Judged.** The loss and the gradients, for many micro-batches, also if a micro-batch contains only padding. The dtypes. The program has a loop, does not grow with M, and never stores the gradients of all micro-batches at once. **Not judged.** A batch without any real token.
#
# <details><summary>Hint 1 · a question</summary>
#
# By which number should the sum of all gradients be divided, and when is this number known?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Accumulate three things in the carry of a scan: the sum of the losses, the number of tokens, and the gradients in float32. `jax.value_and_grad` with `has_aux=True` differentiates the first result of `loss_sum` and returns the second.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Start with `jnp.zeros(p.shape, jnp.float32)` for each leaf. The sum of a float32 and a bfloat16 is float32. Divide the loss and the gradients by the number of tokens after the scan.
#
# </details>


# %% answer="capstone-accumulate"
def mean_gradient(loss_sum, params, batches):
    """loss_sum(params, batch) -> (sum, count), batches int32 (M, ...) -> mean loss, its gradients in float32"""
    ### BEGIN SOLUTION
    gradient = jax.value_and_grad(loss_sum, has_aux=True)

    def add(sums, batch):
        (loss, count), gradients = gradient(params, batch)
        return jax.tree.map(jnp.add, sums, (loss, count, gradients)), None

    zeros = jnp.float32(0), jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, count, gradients), _ = jax.lax.scan(add, zeros, batches)
    return loss / count, jax.tree.map(lambda g: g / count, gradients)
    ### END SOLUTION


# %% check="capstone-accumulate" name="example" points=1
"""The example: the sums 6 and 1, for 3 tokens and 1 token."""


def probe_example(w, batches):
    def loss_sum(w, batch):
        real = batch >= 0
        return w * jnp.sum(jnp.where(real, batch, 0).astype(jnp.float32)), jnp.sum(real).astype(jnp.float32)

    return mean_gradient(loss_sum, w, batches)


w, batches = np.float32(1), np.array([[1, 2, 3], [1, -1, -1]], np.int32)
loss, gradient = program(probe_example, w, batches).run(w, batches)
compare(loss, np.float32(1.75), label="the loss")
compare(gradient, np.float32(1.75), label="the gradient")

# %% hidden="capstone-accumulate" name="values" points=2
"""The loss and the gradients are those of all real tokens together."""


def probe_table(params, batches):
    def loss_sum(params, batch):
        real = batch[..., 1:] >= 0
        safe = jnp.maximum(batch, 0)
        found = jax.nn.log_softmax(params["table"][safe[..., :-1]] * params["scale"])
        losses = -jnp.take_along_axis(found, safe[..., 1:, None], axis=-1)[..., 0]
        return jnp.sum(jnp.where(real, losses, 0)), jnp.sum(real).astype(jnp.float32)

    return mean_gradient(loss_sum, params, batches)


rng = inputs.rng()
for M, B, T in ((5, 3, 7), (2, 4, 4), (9, 1, 5)):
    table, scale = rng.normal(size=(6, 6)).astype(np.float32), np.float32(rng.uniform(0.5, 2))
    batches = rng.integers(0, 6, (M, B, T)).astype(np.int32)
    for i in range(M):
        for b in range(B):  # the numbers of real tokens differ strongly between the micro-batches
            batches[i, b, int(rng.integers(2, 4)) if i % 2 else int(rng.integers(T - 1, T + 1)) :] = -1
    batches[1] = np.where(np.arange(T) < 1, batches[1], -1)  # nothing is predicted here
    rows, columns = batches[..., :-1].reshape(-1), batches[..., 1:].reshape(-1)
    rows, columns = rows[columns >= 0], columns[columns >= 0]
    scores = np.float64(table)[rows]
    p = np.exp(scale * scores)
    p /= p.sum(axis=1, keepdims=True)
    pull = p.copy()
    pull[np.arange(len(rows)), columns] -= 1
    by_table = np.zeros((6, 6))
    np.add.at(by_table, rows, scale * pull / len(rows))
    wanted = {"table": np.float32(by_table), "scale": np.float32((pull * scores).sum() / len(rows))}
    with case(f"for {M} micro-batches"):
        params = {"table": table, "scale": scale}
        loss, gradients = program(probe_table, params, batches).run(params, batches)
        compare(loss, np.float32(-np.log(p[np.arange(len(rows)), columns]).mean()), rtol=1e-3, label="the loss")
        compare(gradients, wanted, rtol=1e-3, atol=1e-4, label="the gradients")

# %% hidden="capstone-accumulate" name="program" points=2
"""A loop adds the gradients in float32, also those of bfloat16 parameters."""


def probe_half(params, batches):
    def loss_sum(params, batch):
        values = batch.astype(jnp.float32)
        return jnp.sum(params["a"].astype(jnp.float32)) * jnp.sum(values) + params["b"], jnp.float32(batch.size)

    return mean_gradient(loss_sum, params, batches)


made, rng = {}, inputs.rng()
for M in (300, 600):
    batches = rng.choice([1, 3], size=(M, 1)).astype(np.int32)
    params = {"a": jnp.asarray(rng.normal(size=4), jnp.bfloat16), "b": np.float32(2)}
    made[M] = program(probe_half, params, batches)
    loss, gradients = made[M].run(params, batches)
    require(made[M].loops > 0, "The program has no loop over the micro-batches.")
    few = made[M].intermediates <= batches.size
    require(few, "The program stores the gradients of all micro-batches, and adds them up afterwards.")
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(made[M].outputs)}
    require(dtypes == {"float32"}, "The loss and the gradients are not all float32.")
    mean = np.float32(batches.mean())
    compare(gradients["a"], np.full(4, mean, np.float32), rtol=1e-4, label="the gradient of a bfloat16 parameter")
    compare(gradients["b"], np.float32(1), label="the gradient of a float32 parameter")
    a = float(np.asarray(params["a"], np.float64).sum())
    compare(loss, np.float32(a * mean + 2), rtol=1e-3, atol=1e-3, label="the loss")
require(made[300].operations == made[600].operations, "The program grows with the number of micro-batches.")

# %% [markdown] why="capstone-accumulate"
# A sum over all tokens does not depend on how they are divided into micro-batches. A mean of means does, if the numbers of real tokens differ. In bfloat16, a running sum no longer changes when it is 256 times as large as what is added. **Next:** Where would the all-reduce of the gradients be if the batch is partitioned over devices (lesson 18)?


# %% wrong="capstone-accumulate" because="Averages the means of the micro-batches. A micro-batch with little text then counts as much as a full one."
def mean_gradient(loss_sum, params, batches):
    def mean(params, batch):
        loss, count = loss_sum(params, batch)
        return loss / jnp.maximum(count, 1)

    def add(sums, batch):
        found = jax.value_and_grad(mean)(params, batch)
        return jax.tree.map(lambda s, a: s + a.astype(jnp.float32) / len(batches), sums, found), None

    zeros = jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    return jax.lax.scan(add, zeros, batches)[0]


# %% wrong="capstone-accumulate" because="Divides by the number of micro-batches instead of the number of real tokens."
def mean_gradient(loss_sum, params, batches):
    def add(sums, batch):
        (loss, _), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(lambda s, a: s + a.astype(jnp.float32), sums, (loss, gradients)), None

    zeros = jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    sums, _ = jax.lax.scan(add, zeros, batches)
    return jax.tree.map(lambda s: s / len(batches), sums)


# %% wrong="capstone-accumulate" because="Divides by the number of all tokens, with padding. The mean is over real tokens."
def mean_gradient(loss_sum, params, batches):
    def add(sums, batch):
        (loss, _), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(lambda s, a: s + a.astype(jnp.float32), sums, (loss, gradients)), None

    zeros = jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    sums, _ = jax.lax.scan(add, zeros, batches)
    return jax.tree.map(lambda s: s / batches.size, sums)


# %% wrong="capstone-accumulate" because="Accumulates in the dtype of the parameters. A running sum in bfloat16 soon no longer changes."
def mean_gradient(loss_sum, params, batches):
    def add(sums, batch):
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(jnp.add, sums, (loss, count, gradients)), None

    zeros = jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    (loss, count, gradients), _ = jax.lax.scan(add, zeros, batches)
    return loss / count, jax.tree.map(lambda g: g.astype(jnp.float32) / count, gradients)


# %% wrong="capstone-accumulate" because="Accumulates in float32, but casts the result back to the dtype of the parameters."
def mean_gradient(loss_sum, params, batches):
    def add(sums, batch):
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(lambda s, a: s + a.astype(jnp.float32), sums, (loss, count, gradients)), None

    zeros = jnp.float32(0), jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, count, gradients), _ = jax.lax.scan(add, zeros, batches)
    return loss / count, jax.tree.map(lambda g, p: (g / count).astype(p.dtype), gradients, params)


# %% wrong="capstone-accumulate" because="Divides the loss by the number of tokens, but not the gradients."
def mean_gradient(loss_sum, params, batches):
    def add(sums, batch):
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(lambda s, a: s + a.astype(jnp.float32), sums, (loss, count, gradients)), None

    zeros = jnp.float32(0), jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, count, gradients), _ = jax.lax.scan(add, zeros, batches)
    return loss / count, gradients


# %% wrong="capstone-accumulate" because="Processes all micro-batches at once with `vmap`, so the program has no loop, and needs the memory that it should save."
def mean_gradient(loss_sum, params, batches):
    def total(params):
        losses, counts = jax.vmap(loss_sum, in_axes=(None, 0))(params, batches)
        return losses.sum() / counts.sum()

    wide = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    return jax.value_and_grad(total)(wide)


# %% wrong="capstone-accumulate" because="Divides in each iteration by the number of tokens so far. The early micro-batches then count too much."
def mean_gradient(loss_sum, params, batches):
    def add(carry, batch):
        sums, seen = carry
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        seen = seen + count
        return (jax.tree.map(lambda s, a: s + a.astype(jnp.float32) / seen, sums, (loss, gradients)), seen), None

    zeros = jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (sums, _), _ = jax.lax.scan(add, (zeros, jnp.float32(0)), batches)
    return sums


# %% wrong="capstone-accumulate" because="Uses only the last micro-batch: the carry is replaced instead of added to."
def mean_gradient(loss_sum, params, batches):
    def replace(_, batch):
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(lambda a: a.astype(jnp.float32), (loss, count, gradients)), None

    zeros = jnp.float32(0), jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, count, gradients), _ = jax.lax.scan(replace, zeros, batches)
    return loss / count, jax.tree.map(lambda g: g / count, gradients)


# %% wrong="capstone-accumulate" because="Divides by the number of tokens of each micro-batch. It can be 0, and the result is then NaN."
def mean_gradient(loss_sum, params, batches):

    def mean_loss(params, batch):
        total, count = loss_sum(params, batch)
        return total / count, count

    def body(carry, batch):
        loss, tokens, sums = carry
        (value, count), gradients = jax.value_and_grad(mean_loss, has_aux=True)(params, batch)
        sums = jax.tree.map(lambda s, g: s + count * g.astype(jnp.float32), sums, gradients)
        return (loss + count * value, tokens + count, sums), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, tokens, sums), _ = jax.lax.scan(body, (jnp.float32(0), jnp.float32(0), zeros), batches)
    return loss / tokens, jax.tree.map(lambda s: s / tokens, sums)


# %% wrong="capstone-accumulate" because="Uses a Python loop, which is unrolled, so the program grows with the number of micro-batches."
def mean_gradient(loss_sum, params, batches):
    loss, count = jnp.float32(0), jnp.float32(0)
    gradients = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    for batch in batches:
        (some, tokens), more = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        loss, count, gradients = loss + some, count + tokens, jax.tree.map(jnp.add, gradients, more)
    return loss / count, jax.tree.map(lambda g: g / count, gradients)


# %% wrong="capstone-accumulate" because="Processes all micro-batches at once with `vmap`, so the program has no loop, and needs the memory that it should save."
def mean_gradient(loss_sum, params, batches):
    gradient = jax.value_and_grad(loss_sum, has_aux=True)
    (losses, counts), gradients = jax.vmap(gradient, in_axes=(None, 0))(params, batches)
    count = counts.sum()
    return losses.sum() / count, jax.tree.map(lambda g: g.astype(jnp.float32).sum(axis=0) / count, gradients)


# %% wrong="capstone-accumulate" because="Returns the gradients of all micro-batches from the scan and adds them afterwards. This needs the memory of all of them."
def mean_gradient(loss_sum, params, batches):
    def one(_, batch):
        return None, jax.value_and_grad(loss_sum, has_aux=True)(params, batch)

    _, ((losses, counts), gradients) = jax.lax.scan(one, None, batches)
    count = counts.sum()
    return losses.sum() / count, jax.tree.map(lambda g: g.astype(jnp.float32).sum(axis=0) / count, gradients)


# %% wrong="capstone-accumulate" because="Differentiates a scan over the losses. Its backward pass adds the gradients in the dtype of the parameters."
def mean_gradient(loss_sum, params, batches):
    def mean(params):
        def add(sums, batch):
            return jax.tree.map(jnp.add, sums, loss_sum(params, batch)), None

        (loss, count), _ = jax.lax.scan(jax.checkpoint(add), (jnp.float32(0), jnp.float32(0)), batches)
        return loss / count

    loss, gradients = jax.value_and_grad(mean)(params)
    return loss, jax.tree.map(lambda g: g.astype(jnp.float32), gradients)


# %% wrong="capstone-accumulate" because="Divides the gradients by the number of micro-batches and only the loss by the number of tokens."
def mean_gradient(loss_sum, params, batches):
    def add(sums, batch):
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batch)
        return jax.tree.map(lambda s, a: s + a.astype(jnp.float32), sums, (loss, count, gradients)), None

    zeros = jnp.float32(0), jnp.float32(0), jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, count, gradients), _ = jax.lax.scan(add, zeros, batches)
    return loss / count, jax.tree.map(lambda g: g / len(batches), gradients)


# %% wrong="capstone-accumulate" because="Returns the gradients of all micro-batches from the scan and adds them afterwards. This needs the memory of all of them."
def mean_gradient(loss_sum, params, batches):
    gradient = jax.value_and_grad(loss_sum, has_aux=True)
    (losses, counts), gradients = jax.lax.map(lambda batch: gradient(params, batch), batches)
    count = counts.sum()
    return losses.sum() / count, jax.tree.map(lambda g: g.astype(jnp.float32).sum(axis=0) / count, gradients)


# %% right="capstone-accumulate"
def mean_gradient(loss_sum, params, batches):
    def one(i, sums):
        (loss, count), gradients = jax.value_and_grad(loss_sum, has_aux=True)(params, batches[i])
        total, tokens, acc = sums
        return total + loss, tokens + count, jax.tree.map(lambda s, g: s + jnp.asarray(g, jnp.float32), acc, gradients)

    acc = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), params)
    total, tokens, acc = jax.lax.fori_loop(0, len(batches), one, (0.0, 0.0, acc))
    return total / tokens, jax.tree.map(lambda s: s / tokens, acc)


# %% [markdown] task="capstone-layout" stars=2 minutes=15 skills="dp-any-rank,tp-layout,06_pytrees"
# ## FSDP and tensor parallelism in one layout
# **Goal.** Choose a spec for every parameter of a transformer, on a mesh with the axes `data` and `model`.
#
# **Signature.** `layout(params, mesh)` takes a tree of arrays or `jax.ShapeDtypeStruct`s, and a mesh. It returns a tree of the same structure with a `P` for each leaf. The key of a leaf determines the meaning of its **last** axes:
#
# | key | last axes | along `model` |
# |---|---|---|
# | `embed` | (vocabulary, d) | vocabulary |
# | `qkv` | (d, 3, heads, size) | heads |
# | `out` | (heads, size, d) | heads |
# | `up`, `gate` | (d, hidden) | hidden |
# | `down` | (hidden, d) | hidden |
# | `scale` | (d,) | nothing |
#
# In addition, the axis d is partitioned along `data`, except that `scale` is replicated. Some leaves have **one more axis in front**, which counts the stacked layers. It is not partitioned. If the size of an axis is not a multiple of the devices along its mesh axis, this axis is not partitioned either, but the others are.
#
# **Example.** On `grid(4, 2)`, an `up` of the shape (6, 32, 128) has the spec `P(None, "data", "model")`, and one of the shape (32, 128) has `P("data", "model")`. With 30 instead of 32, it is `P(None, "model")`.
#
# **Judged.** The shards of all leaves on several meshes, for stacked and single layers. A mesh may have its axes in any order, and further axes, along which nothing is partitioned. A forward pass with your layout has the right values, and no device receives a whole parameter as an argument. **Not judged.** A trailing `None` in a spec.
#
# <details><summary>Hint 1 · a question</summary>
#
# Negative indices count from the end. Which entry belongs to axis -1 of `down`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Write a dict from the key to the entries of the last axes, such as `"down": ("model", "data")`. `jax.tree_util.tree_map_with_path` passes the path of each leaf. Prepend `None` until there is an entry for each axis.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A leaf with one more axis than its rule gets one more `None` in front. Keep an entry only if it is a name and `size % mesh.shape[name] == 0`, and return `P(*kept)`.
#
# </details>


# %% answer="capstone-layout"
def layout(params, mesh):
    """A tree of arrays or ShapeDtypeStructs, and a mesh with the axes data and model -> a tree of P"""
    ### BEGIN SOLUTION
    matrix, rows = ("data", "model"), ("model", "data")
    rules = {"embed": rows, "up": matrix, "gate": matrix, "down": rows, "scale": (None,)}
    rules |= {"qkv": ("data", None, "model", None), "out": ("model", None, "data")}

    def spec(path, leaf):
        rule = rules[path[-1].key]
        entries = (None,) * (leaf.ndim - len(rule)) + rule
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)
    ### END SOLUTION


# %% check="capstone-layout" name="example" points=1
"""The example: three shapes of `up`."""
mesh = grid(4, 2)
for shape, shard in (((6, 32, 128), (6, 8, 64)), ((32, 128), (8, 64)), ((30, 128), (30, 64))):
    got = ask(layout, {"up": jax.ShapeDtypeStruct(shape, jnp.float32)}, mesh)
    found = NamedSharding(mesh, got["up"]).shard_shape(shape)
    require(found == shard, f"The shards of {shape} have the shape {found}; expected {shard}.")

# %% hidden="capstone-layout" name="shards" points=3
"""All leaves have the right shards on several meshes."""


def wanted_shard(name, shape, sizes):
    # The positions from the end of the axis d and of the axis along model.
    d, model = {"embed": (1, 2), "qkv": (4, 2), "out": (1, 3), "up": (2, 1), "gate": (2, 1), "down": (1, 2)}.get(
        name, (0, 0)
    )
    shard = list(shape)
    for place, along in ((d, "data"), (model, "model")):
        if place and shape[-place] % sizes[along] == 0:
            shard[-place] //= sizes[along]
    return tuple(shard)


rng = inputs.rng()
for names, sizes in (
    (("data", "model"), (4, 2)),
    (("data", "model"), (2, 4)),
    (("model", "data"), (4, 2)),
    (("pipe", "data", "model"), (2, 2, 2)),
    (("data", "model"), (8, 1)),
):
    mesh, on = grid(*sizes, names=names), ", ".join(f"{name} = {n}" for name, n in zip(names, sizes, strict=True))
    for width, heads, hidden, vocabulary, depth in ((16, 4, 48, 40, 8), (12, 2, 24, 6, 4), (8, 6, 30, 65, 2)):
        size = 2 * int(rng.integers(1, 5))
        shapes = {
            "qkv": (width, 3, heads, size),
            "out": (heads, size, width),
            "gate": (width, hidden),
            "up": (width, hidden),
            "down": (hidden, width),
            "scale": (width,),
        }
        like = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
        params = {
            "embed": like(vocabulary, width),
            "last": {n: like(*shape) for n, shape in shapes.items()},
            "layers": {"inner": {n: like(depth, *shape) for n, shape in shapes.items()}},
            "scale": like(width),
        }
        specs = ask(layout, params, mesh)
        same = jax.tree.structure(specs, is_leaf=lambda one: isinstance(one, P)) == jax.tree.structure(params)
        require(same, "The tree of specs does not have the structure of the parameters.")
        flat = jax.tree_util.tree_leaves_with_path(params)
        for (path, leaf), spec in zip(
            flat, jax.tree.leaves(specs, is_leaf=lambda one: isinstance(one, P)), strict=True
        ):
            require(isinstance(spec, P) and len(spec) <= leaf.ndim, "A leaf is not a P with an entry for each axis.")
            by_axis = dict(zip(names, sizes, strict=True))
            wanted = wanted_shard(path[-1].key, leaf.shape, by_axis)
            with case(f"for `{path[-1].key}` with {leaf.ndim} axes on a mesh with {on}"):
                found = NamedSharding(mesh, spec).shard_shape(leaf.shape)
                require(found == wanted, "A shard does not have the right shape.", kind=f"the spec {tuple(spec)}")
                used = {n for entry in spec for n in (entry if isinstance(entry, tuple) else (entry,)) if n}
                require(used <= {"data", "model"}, "A parameter is partitioned along another axis of the mesh.")

# %% hidden="capstone-layout" name="program" points=2
"""A forward pass with this layout has the right values, and each device receives only its shards."""


def probe_forward(params, x, mesh):
    specs = layout(params, mesh)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda one: isinstance(one, P))
    constrained = jax.tree.map(jax.lax.with_sharding_constraint, params, shardings)

    def layer(x, w):
        return x + jax.nn.silu(x @ w["up"]) @ w["down"], None

    found = jax.lax.scan(layer, x, constrained["layers"])[0] @ constrained["embed"].T
    return found, constrained


rng = inputs.rng()
for sizes in ((4, 2), (2, 4)):
    mesh, B = grid(*sizes), 8 * int(rng.integers(1, 3))
    draw = lambda *shape: (rng.normal(size=shape) / math.sqrt(shape[-2])).astype(np.float32)
    params = {"embed": draw(24, 16), "layers": {"up": draw(3, 16, 32), "down": draw(3, 32, 16)}}
    x = draw(B, 16)
    made = program(probe_forward, params, place(mesh, x, "data"), mesh)
    wanted = np.float64(x)
    for up, down in zip(params["layers"]["up"], params["layers"]["down"], strict=True):
        h = wanted @ up
        wanted = wanted + (h / (1 + np.exp(-h))) @ down
    found, kept = made.run(params, place(mesh, x, "data"), mesh)
    compare(found, np.float32(wanted @ params["embed"].T), rtol=1e-3, atol=1e-4, label="the logits")
    compare(kept, params, label="the parameters")
    most = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) // 8 + found.nbytes // sizes[0]
    require(made.output_bytes <= most + 512, "Each device returns more than an eighth of the parameters.")
    require(made.count("all-reduce") + made.count("reduce-scatter") > 0, "Nothing is added up along `model`.")

# %% [markdown] why="capstone-layout"
# Along `model`, `up` is partitioned by columns and `down` by rows, so the hidden units stay on their devices, and one all-reduce adds the results. Along `data`, every weight is stored once and gathered before its use. Both together divide the bytes of a weight by all devices. **Next:** Why is the axis of the stacked layers a poor choice, although it often has a convenient size?


# %% wrong="capstone-layout" because="Counts the axes from the front. With stacked layers, the first axis is the layer."
def layout(params, mesh):
    rows, columns, qkv, out = (
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model", None),
        ("model", None, "data"),
    )
    rules = {"embed": rows, "qkv": qkv, "out": out, "up": columns, "gate": columns, "down": rows, "scale": (None,)}

    def spec(path, leaf):
        entries = zip(rules[path[-1].key], leaf.shape, strict=False)
        return P(*(name if name and size % mesh.shape[name] == 0 else None for name, size in entries))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Expects stacked layers everywhere. A single layer has no axis in front."
def layout(params, mesh):
    rules = {
        "embed": ("model", "data"),
        "qkv": (None, "data", None, "model", None),
        "out": (None, "model", None, "data"),
        "up": (None, "data", "model"),
        "gate": (None, "data", "model"),
        "down": (None, "model", "data"),
        "scale": (),
    }

    def spec(path, leaf):
        entries = zip(rules[path[-1].key], leaf.shape, strict=False)
        return P(*(name if name and size % mesh.shape[name] == 0 else None for name, size in entries))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Uses tensor parallelism only. Devices along `data` then store equal weights."
def layout(params, mesh):
    rules = {
        "embed": ("model", None),
        "qkv": (None, None, "model", None),
        "out": ("model", None, None),
        "up": (None, "model"),
        "gate": (None, "model"),
        "down": ("model", None),
        "scale": (None,),
    }

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        return P(
            *(
                name if name and size % mesh.shape[name] == 0 else None
                for name, size in zip(entries, leaf.shape, strict=True)
            )
        )

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Uses FSDP only. Devices along `model` then store equal weights."
def layout(params, mesh):
    places = {"embed": -1, "qkv": -4, "out": -1, "up": -2, "gate": -2, "down": -1}

    def spec(path, leaf):
        entries = [None] * leaf.ndim
        place = places.get(path[-1].key)
        if place is not None and leaf.shape[place] % mesh.shape["data"] == 0:
            entries[place] = "data"
        return P(*entries)

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions `down` like `up`. Its hidden units are the rows, so the columns along `model` are the wrong axis."
def layout(params, mesh):
    rows, columns, qkv, out = (
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model", None),
        ("model", None, "data"),
    )
    rules = {"embed": rows, "qkv": qkv, "out": out, "up": columns, "gate": columns, "down": columns, "scale": (None,)}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        return P(
            *(
                name if name and size % mesh.shape[name] == 0 else None
                for name, size in zip(entries, leaf.shape, strict=True)
            )
        )

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Ignores whether the sizes divide. Such a spec is an error when the parameters are placed."
def layout(params, mesh):
    rows, columns, qkv, out = (
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model", None),
        ("model", None, "data"),
    )
    rules = {"embed": rows, "qkv": qkv, "out": out, "up": columns, "gate": columns, "down": rows, "scale": (None,)}

    def spec(path, leaf):
        rule = rules[path[-1].key]
        return P(*(None,) * (leaf.ndim - len(rule)), *rule)

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Replicates a leaf as soon as one of its axes cannot be partitioned. The others still can."
def layout(params, mesh):
    rows, columns, qkv, out = (
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model", None),
        ("model", None, "data"),
    )
    rules = {"embed": rows, "qkv": qkv, "out": out, "up": columns, "gate": columns, "down": rows, "scale": (None,)}

    def spec(path, leaf):
        rule = rules[path[-1].key]
        entries = (None,) * (leaf.ndim - len(rule)) + rule
        fits = all(name is None or size % mesh.shape[name] == 0 for name, size in zip(entries, leaf.shape, strict=True))
        return P(*entries) if fits else P()

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions the scales along `data`, which the task replicates."
def layout(params, mesh):
    rows, columns, qkv, out = (
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model", None),
        ("model", None, "data"),
    )
    rules = {"embed": rows, "qkv": qkv, "out": out, "up": columns, "gate": columns, "down": rows, "scale": ("data",)}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        return P(
            *(
                name if name and size % mesh.shape[name] == 0 else None
                for name, size in zip(entries, leaf.shape, strict=True)
            )
        )

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Reads the sizes of the mesh by position. The axes of a mesh may be in any order, so use their names."
def layout(params, mesh):
    rows, columns, qkv, out = (
        ("model", "data"),
        ("data", "model"),
        ("data", None, "model", None),
        ("model", None, "data"),
    )
    rules = {"embed": rows, "qkv": qkv, "out": out, "up": columns, "gate": columns, "down": rows, "scale": (None,)}
    counts = {"data": mesh.devices.shape[0], "model": mesh.devices.shape[1]}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        return P(
            *(
                name if name and size % counts[name] == 0 else None
                for name, size in zip(entries, leaf.shape, strict=True)
            )
        )

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions the largest axis along both mesh axes, as FSDP on one axis does. Heads and hidden units are then not on the devices of `model`."
def layout(params, mesh):
    def spec(path, leaf):
        if path[-1].key == "scale":
            return P()
        entries = [None] * leaf.ndim
        place = int(np.argmax(leaf.shape))
        if leaf.shape[place] % (mesh.shape["data"] * mesh.shape["model"]) == 0:
            entries[place] = ("data", "model")
        return P(*entries)

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Compares the size of an axis with the number of all devices. It has to be a multiple of the size of one mesh axis."
RULES = {
    "embed": ("model", "data"),
    "qkv": ("data", None, "model", None),
    "out": ("model", None, "data"),
    "up": ("data", "model"),
    "gate": ("data", "model"),
    "down": ("model", "data"),
    "scale": (None,),
}


def layout(params, mesh):

    def spec(path, leaf):
        entries = RULES[path[-1].key]
        entries = (None,) * (len(leaf.shape) - len(entries)) + entries
        return P(
            *(name if name and size % mesh.size == 0 else None for name, size in zip(entries, leaf.shape, strict=True))
        )

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Reads the sizes of the mesh by position. The axes of a mesh may be in any order, so use their names."
def layout(params, mesh):
    data, model = mesh.axis_names[:2]
    rules = {
        "embed": (model, data),
        "qkv": (data, None, model, None),
        "out": (model, None, data),
        "up": (data, model),
        "gate": (data, model),
        "down": (model, data),
        "scale": (None,),
    }

    def spec(path, leaf):
        entries = rules[path[-1].key]
        entries = (None,) * (len(leaf.shape) - len(entries)) + entries
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions the scales along `data`, which the task replicates."
def layout(params, mesh):
    rules = {
        "embed": ("model", "data"),
        "qkv": ("data", None, "model", None),
        "out": ("model", None, "data"),
        "up": ("data", "model"),
        "gate": ("data", "model"),
        "down": ("model", "data"),
        "scale": ("data",),
    }

    def spec(path, leaf):
        entries = rules[path[-1].key]
        entries = (None,) * (len(leaf.shape) - len(entries)) + entries
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions `out` by columns. Its heads are the first of its last axes, so they belong along `model`."
def layout(params, mesh):
    matrix, rows = ("data", "model"), ("model", "data")
    rules = {"embed": rows, "up": matrix, "gate": matrix, "down": rows, "scale": (None,)}
    rules |= {"qkv": ("data", None, "model", None), "out": ("data", None, "model")}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions the size of a head along `model` instead of the heads."
def layout(params, mesh):
    matrix, rows = ("data", "model"), ("model", "data")
    rules = {"embed": rows, "up": matrix, "gate": matrix, "down": rows, "scale": (None,)}
    rules |= {"qkv": ("data", None, None, "model"), "out": (None, "model", "data")}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Partitions the size of a head along `model` instead of the heads."
def layout(params, mesh):
    matrix, rows = ("data", "model"), ("model", "data")
    rules = {"embed": rows, "up": matrix, "gate": matrix, "down": rows, "scale": (None,)}
    rules |= {"qkv": ("data", None, None, "model"), "out": ("model", None, "data")}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Uses the sizes of the example. Read the sizes of the mesh by the names of its axes."
def layout(params, mesh):
    matrix, rows, sizes = ("data", "model"), ("model", "data"), {"data": 4, "model": 2}
    rules = {"embed": rows, "up": matrix, "gate": matrix, "down": rows, "scale": (None,)}
    rules |= {"qkv": ("data", None, "model", None), "out": ("model", None, "data")}

    def spec(path, leaf):
        entries = (None,) * (leaf.ndim - len(rules[path[-1].key])) + rules[path[-1].key]
        fits = lambda name, size: name is not None and size % sizes[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=True)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% wrong="capstone-layout" because="Takes each leaf with more than two axes for a stacked one. A single `qkv` has four axes, and a stacked `scale` has two."
def layout(params, mesh):
    matrix, rows = ("data", "model"), ("model", "data")
    rules = {"embed": rows, "up": matrix, "gate": matrix, "down": rows, "scale": (None,)}
    rules |= {"qkv": ("data", None, "model", None), "out": ("model", None, "data")}

    def spec(path, leaf):
        entries = ((None,) if leaf.ndim > 2 else ()) + rules[path[-1].key]
        fits = lambda name, size: name is not None and size % mesh.shape[name] == 0
        return P(*(name if fits(name, size) else None for name, size in zip(entries, leaf.shape, strict=False)))

    return jax.tree_util.tree_map_with_path(spec, params)


# %% right="capstone-layout"
def layout(params, mesh):
    d_and_model = {
        "embed": (-1, -2),
        "qkv": (-4, -2),
        "out": (-1, -3),
        "up": (-2, -1),
        "gate": (-2, -1),
        "down": (-1, -2),
    }

    def spec(path, leaf):
        entries = [None] * len(leaf.shape)
        for axis, name in zip(d_and_model.get(path[-1].key, ()), ("data", "model"), strict=False):
            if leaf.shape[axis] % mesh.shape[name] == 0:
                entries[axis] = name
        return P(*entries)

    return jax.tree_util.tree_map_with_path(spec, params)


# %% right="capstone-layout"
def layout(params, mesh):
    words = {"embed": "m d", "qkv": "d . m .", "out": "m . d", "up": "d m", "gate": "d m", "down": "m d", "scale": "."}
    names = {"d": "data", "m": "model"}

    def visit(tree):
        found = {}
        for key, leaf in tree.items():
            if isinstance(leaf, dict):
                found[key] = visit(leaf)
                continue
            last = [names.get(word) for word in words[key].split()]
            entries = [None] * (len(leaf.shape) - len(last)) + last
            pairs = zip(entries, leaf.shape, strict=True)
            found[key] = P(*[None if name is None or size % mesh.shape[name] else name for name, size in pairs])
        return found

    return visit(params)


# %% [markdown] task="capstone-run" stars=3 minutes=35 skills="capstone-layout,dp-optimizer,production-resume-exactly"
# ## The whole run
# **Goal.** Train a transformer on eight devices, save checkpoints, resume exactly, and evaluate it on held-out text. The layout is given, and the model, the data and the optimizer are in the setup.
#
# **Signature.** `sharded_step(mesh, specs)` returns a compiled function from `(state, batch)` to the next state and the loss, with the values of `update` from the setup. `specs` is a tree with a `P` for each parameter. The parameters, `mean` and `square` have these specs before and after the step, and `count` is replicated. `batch` is a NumPy array, or an array that is partitioned along `data`. `state` is **donated**. `update` takes a function `pin`, which it applies to all activations, of shape (batch, length, D). Use it to **pin** them to the layout of the batch.
#
# `train(mesh, specs, folder, seed, steps, save_every, after_step)` trains until `steps` steps have been performed in total, in this call and all earlier ones. It begins with `start(seed)`, or continues after the last checkpoint in `folder`, even if its `seed` differs. Steps count from 1, and step n uses `batch_of(n)`. After each step, it calls `after_step(n)`, which may raise an exception. Then it saves a checkpoint to `folder`, a string, if n is a multiple of `save_every`. The folder does not always exist before the call. It returns a dict:
#
# - `"losses"`: `{n: loss}` for the steps of this call, as Python floats
# - `"held_out"`: the loss `loss_of` of the last parameters on `held_out_batch()`, as a Python float
# - `"state"`: the last state, on the mesh
#
# **Example.** `train(grid(4, 2), specs, folder, 0, 7, 3, stop_after(5))` raises `Stopped` after step 5. The same call with `stop_after(None)` then resumes after step 3 and returns the losses of the steps 4, 5, 6 and 7.
#
# **Judged.** *The program* of `sharded_step`: its values, the bytes on each device before and after, donation, and that it gathers weights and reduces gradients. With `SPECS` on `grid(4, 2)`, it all-reduces at most 100,000 elements in a step. Without pinned activations, these are more than 250,000. *The run*: the losses, the held-out loss of a longer run, which is below 2.75, the shardings of the last state, and bitwise equal losses after resuming, with several meshes, specs and intervals. A checkpoint is complete before the next step begins. A resumed state is never replicated: `train` restores each leaf into its sharding. **Not judged.** The number of checkpoints that you keep, the layout of a batch, and where the held-out loss is computed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which three trees of the state have the same specs? How do you create them on the mesh, so that no device ever stores all of them?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Build a tree of `NamedSharding`s with the structure of the state, with `on_mesh` of the setup. It serves as `out_shardings` for `jax.jit(start)`, as `in_shardings` and `out_shardings` of the step, and as the shardings of the `jax.ShapeDtypeStruct`s with which Orbax restores.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `functools.partial(update, pin=...)` is the function to compile, with `jax.lax.with_sharding_constraint` in `pin`. `jax.jit(..., in_shardings=(shardings, batch_sharding), out_shardings=(shardings, None), donate_argnums=0)` is the step. With an `ocp.CheckpointManager`, restore the state created by `start` as a target: `StandardRestore(state)`. After `save`, call `wait_until_finished()`, also because the next step donates the state.
#
# </details>


# %% answer="capstone-run" timeout=60
def sharded_step(mesh, specs):
    """A mesh and a tree of P such as SPECS -> the compiled update(state, batch) with this layout, which donates the state"""
    ### BEGIN SOLUTION
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    rows = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, rows))
    return jax.jit(pinned, in_shardings=(state, rows), out_shardings=(state, None), donate_argnums=0)
    ### END SOLUTION


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    """Trains until step `steps`: {"losses": {step: float}, "held_out": float, "state": the last state}"""
    ### BEGIN SOLUTION
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}
    ### END SOLUTION


# %% check="capstone-run" name="example" points=1
"""The example: a run that is stopped after step 5 and resumes after step 3."""


def probe_example(mesh, specs):
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(mesh, specs, folder, 0, 7, 3, stop_after(5))
            raised = False
        except Stopped:
            raised = True
        return raised, train(mesh, specs, folder, 0, 7, 3, stop_after(None))["losses"]


specs = SPECS
raised, losses = ask(probe_example, grid(4, 2), SPECS)
require(raised, "An exception of after_step has to leave train.")
require(sorted(losses) == [4, 5, 6, 7], f"The resumed run performed the steps {sorted(losses)}; expected 4 to 7.")
require(0 < losses[7] < 5, f"The loss of step 7 is {losses[7]}.")

# %% hidden="capstone-run" name="program" points=4
"""The compiled step: values, bytes on each device, donation, all-gathers, and how much is reduced."""


def probe_step(mesh, specs, state, batch):
    return sharded_step(mesh, specs)(state, batch)


mesh, specs = grid(4, 2), SPECS
first, batch = start(int(inputs.rng().integers(1000))), batch_of(int(inputs.rng().integers(1000)))
first, _ = jax.jit(update)(first, batch)  # no moment is 0
values, loss = jax.jit(update)(first, batch)
first, values = jax.tree.map(np.asarray, (first, values))
shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
placed = jax.tree.map(jax.device_put, first, shardings), place(mesh, batch, "data")
made = program(probe_step, mesh, specs, *placed)
got, found = made.run(mesh, specs, *placed)
compare(found, np.asarray(loss), rtol=1e-3, label="the loss")
compare(got, values, rtol=2e-2, atol=2e-3, label="the next state")
shard = lambda leaf, sharding: math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
held = sum(jax.tree.leaves(jax.tree.map(shard, first, shardings)))
require(made.argument_bytes <= held + batch.nbytes // mesh.shape["data"] + 64, "A device receives too many bytes.")
require(made.output_bytes <= held + 64, "A device returns more than its shards of the next state.")
require(made.alias_bytes >= held - 64, "The next state does not reuse the memory of the old one.")
same = jax.tree.map(lambda leaf, wanted: leaf.sharding.is_equivalent_to(wanted, leaf.ndim), made.outputs[0], shardings)
require(all(jax.tree.leaves(same)), "A leaf of the next state does not have the sharding of its spec.")
gathered = made.elements("all-gather") + made.elements("all-to-all")
require(gathered > 0, "The program gathers no weights.")
reduced = made.elements("all-reduce") + 8 * made.elements("reduce-scatter")
count = sum(leaf.size for leaf in jax.tree.leaves(first["params"])) // mesh.shape["model"]
require(reduced >= count // 2, "The program reduces fewer elements than the gradients have.")
few = made.elements("all-reduce") <= 100_000
require(few, "The step all-reduces more than 100,000 elements. Are the activations pinned to the layout of the batch?")

# %% hidden="capstone-run" name="run" points=3
"""A longer run: its losses, its held-out loss, and the shardings of the last state."""


def probe_run(mesh, specs, seed):
    with tempfile.TemporaryDirectory() as folder:
        return train(mesh, specs, str(Path(folder) / "new"), seed, 30, 25, stop_after(None))


mesh, seed = grid(4, 2), int(inputs.rng().integers(1, 1000))
specs = SPECS
got = ask(probe_run, mesh, specs, seed)
require(isinstance(got, dict) and set(got) == {"losses", "held_out", "state"}, "The result has other keys.")
require(sorted(got["losses"]) == list(range(1, 31)), "The numbers of the steps are wrong.")
state, step, wanted = start(seed), jax.jit(update), []
for n in range(1, 31):
    state, loss = step(state, batch_of(n))
    wanted.append(float(loss))
held_out = float(jax.jit(loss_of)(state["params"], held_out_batch()))
floats = all(isinstance(loss, float) for loss in (*got["losses"].values(), got["held_out"]))
require(floats, "A loss is not a Python float.")
found = np.array([got["losses"][n] for n in range(1, 31)], np.float32)
compare(found[:10], np.array(wanted[:10], np.float32), rtol=5e-3, label="the first ten losses")
compare(found, np.array(wanted, np.float32), rtol=3e-2, label="the losses")
compare(np.float32(got["held_out"]), np.float32(held_out), rtol=1e-2, label="the held-out loss")
require(got["held_out"] < 2.75, "The held-out loss is not below 2.75.")
layout_of = {"params": specs, "mean": specs, "square": specs, "count": P()}
require(
    jax.tree.structure(got["state"]) == jax.tree.structure(state),
    "The last state does not have the structure of the state.",
)
for leaf, spec in zip(
    jax.tree.leaves(got["state"]), jax.tree.leaves(layout_of, is_leaf=lambda one: isinstance(one, P)), strict=True
):
    same = isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec), leaf.ndim)
    require(same, "A leaf of the last state does not have the sharding of its spec.")

# %% hidden="capstone-run" name="resumed" points=3
"""Every stop is resumed after the last checkpoint, with bitwise equal losses and the same layout."""


def probe_stops(mesh, specs, seed, other):
    import contextlib
    import shutil

    found = {"restored": 0}
    with tempfile.TemporaryDirectory() as folder:

        def on_each_device():
            """The bytes of all arrays, for each device of the mesh."""
            sizes = dict.fromkeys(mesh.devices.flat, 0)
            for array in jax.live_arrays():
                for device in array.sharding.device_set & sizes.keys():
                    sizes[device] += math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
            return np.array(list(sizes.values()))

        def observed(restore):
            def restore_and_measure(*args, **options):
                before = on_each_device()
                result = restore(*args, **options)
                found["restored"] = max(found["restored"], int((on_each_device() - before).max()))
                return result

            return restore_and_measure

        def run(name, steps, save_every, after_step, seed=seed):
            with contextlib.ExitStack() as stack:
                for kind in (ocp.CheckpointManager, ocp.Checkpointer, ocp.StandardCheckpointer):
                    stack.callback(setattr, kind, "restore", kind.restore)
                    kind.restore = observed(kind.restore)
                try:
                    return train(mesh, specs, str(Path(folder) / name), seed, steps, save_every, after_step)
                except Stopped:
                    return None

        def copy(n):
            if n == 7:  # the step after a checkpoint
                with contextlib.suppress(OSError):  # of files that are being written, which resuming reveals
                    shutil.copytree(Path(folder) / "whole", Path(folder) / "copy")

        found["whole"] = run("whole", 8, 3, copy)
        found["copy"] = run("copy", 8, 3, stop_after(None))
        found["stops"] = [run("stopped", 8, 3, stop_after(stop)) for stop in (2, 6)]
        calls = (7, 3, seed), (8, 2, other), (8, 2, other)
        found["resumed"] = [run("stopped", n, each, stop_after(None), own) for n, each, own in calls]
    return found


specs = {
    "embed": P(None, "model"),
    "layers": {
        "qkv": P(None, "data", None, "model"),
        "out": P(None, "model"),
        "up": P(None, None, ("data", "model")),
        "down": P(None, "model", "data"),
        "scale": P(None, "data"),
    },
}
seed, other = (int(number) for number in inputs.rng().permutation(1000)[:2])
found = ask(probe_stops, grid(2, 4), specs, seed, other)
whole, stops = found["whole"], found["stops"]
state, step, wanted = start(seed), jax.jit(update), []
for n in range(1, 9):
    state, loss = step(state, batch_of(n))
    wanted.append(float(loss))
with case("for a run without a stop"):
    require(sorted(whole["losses"]) == list(range(1, 9)), "The numbers of the steps are wrong.")
    losses = np.array([whole["losses"][n] for n in range(1, 9)], np.float32)
    compare(losses, np.array(wanted, np.float32), rtol=3e-2, label="the losses")
    require(np.isfinite(whole["held_out"]), "The held-out loss is not finite.")
require(stops == [None, None], "An exception of after_step does not leave train.")
for words, part, done, steps in (
    ("for a copy of the folder during the step after a checkpoint", found["copy"], 6, 8),
    ("for a run that is stopped in a step that would be saved", found["resumed"][0], 3, 7),
    ("for a second call with more steps and another seed", found["resumed"][1], 6, 8),
    ("for a further call after a saved last step", found["resumed"][2], 8, 8),
):
    with case(words):
        losses = part["losses"]
        require(
            sorted(losses) == list(range(done + 1, steps + 1)), "The run does not resume after the last checkpoint."
        )
        require(all(losses[n] == whole["losses"][n] for n in losses), "A loss is not bitwise equal.")
        equal = steps < 8 or part["held_out"] == whole["held_out"]
        require(equal, "The held-out loss is not bitwise equal.")
        for leaf, other in zip(jax.tree.leaves(part["state"]), jax.tree.leaves(whole["state"]), strict=True):
            same = isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(other.sharding, leaf.ndim)
            require(same, "A leaf of the resumed state has another sharding.")
        up = part["state"]["mean"]["layers"]["up"]
        require(up.sharding.shard_shape(up.shape) == (2, 32, 16), "A moment does not have the sharding of its spec.")

with case("for a resumed run"):
    whole_state = sum(leaf.nbytes for leaf in jax.tree.leaves(whole["state"]))
    require(found["restored"] < whole_state, "A device stores the whole state when the checkpoint is restored.")

# %% equivalent="capstone-run" because="The key of the parameters may also be computed from a traced seed."
# traced for static, static_argnums=... -> none: state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)

# %% [markdown] why="capstone-run"
# One tree of shardings describes the state in all places: when it is created, in each step, and when it is restored. The batch is a function of the step, so the number of the checkpoint is the position in the data. **Next:** Which parts would change on a mesh of 16 devices, and could the new run resume from this checkpoint?


# %% wrong="capstone-run" because="The activations are not pinned. The compiler may partition their last axis as in the weights, and then it adds up partial products."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    return jax.jit(update, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Pins the activations to a replicated layout, so each device computes the whole batch."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P())))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Pins the last axis of the activations along `data` instead of their first one."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(
        update, pin=lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(None, None, "data")))
    )
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="The step donates nothing, so the old and the new state are in memory at the same time."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None))


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Donates the batch instead of the state."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=1)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="The parameters have their specs, but the moments are replicated. Adam's moments need twice the memory of the parameters."
def sharded_step(mesh, specs):
    none = jax.tree.map(lambda _: P(), specs, is_leaf=lambda one: isinstance(one, P))
    state = on_mesh(mesh, {"params": specs, "mean": none, "square": none, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    none = jax.tree.map(lambda _: P(), specs, is_leaf=lambda one: isinstance(one, P))
    shardings = on_mesh(mesh, {"params": specs, "mean": none, "square": none, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Everything is replicated. Each device stores the whole state."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, jax.tree.map(lambda _: P(), jax.eval_shape(start, 0)))
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, jax.tree.map(lambda _: P(), jax.eval_shape(start, 0)))
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Saves the parameters only. After resuming, the moments of Adam are zeros again."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state |= manager.restore(done, args=ocp.args.StandardRestore({"params": state["params"]}))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave({"params": state["params"]}))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Begins with the first batch again after resuming. Step n uses `batch_of(n)`."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n - done))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Resumes with the step that the checkpoint already contains."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(max(done, 1), steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Saves before `after_step`, so a run that is stopped in a step has already saved it."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
            after_step(n)
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Restores without a target and gets the state without the shardings of the specs."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            like = jax.tree.map(np.zeros_like, jax.tree.map(np.asarray, state))
            state = manager.restore(done, args=ocp.args.StandardRestore(like))
            state = jax.tree.map(jnp.asarray, state)
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Never restores: every call begins with step 1."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Evaluates on the last training batch instead of the held-out text."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    data = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, data))
    return jax.jit(pinned, in_shardings=(state, data), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            state = manager.restore(done, args=ocp.args.StandardRestore(state))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], batch_of(steps))
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Restores the whole state on one device and partitions it afterwards. Where the state does not fit on one device, this fails."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    rows = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, rows))
    return jax.jit(pinned, in_shardings=(state, rows), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    step, losses, done = sharded_step(mesh, specs), {}, 0
    with ocp.CheckpointManager(folder) as manager:
        if manager.latest_step() is not None:
            done = manager.latest_step()
            first = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
            typed = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=first)
            target = jax.tree.map(typed, jax.eval_shape(start, seed))
            state = jax.device_put(manager.restore(done, args=ocp.args.StandardRestore(target)), shardings)
        else:
            state = jax.device_put(start(seed), shardings)
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% wrong="capstone-run" because="Restores the whole state on each device and partitions it afterwards. Where the state does not fit on one device, this fails."
def state_shardings(mesh, specs):
    tree = on_mesh(mesh, specs)
    return {"params": tree, "mean": tree, "square": tree, "count": NamedSharding(mesh, P())}


def sharded_step(mesh, specs):
    shardings, rows = state_shardings(mesh, specs), NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, rows))
    return jax.jit(pinned, in_shardings=(shardings, rows), out_shardings=(shardings, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    step, losses = sharded_step(mesh, specs), {}
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            like = jax.device_put(start(seed), NamedSharding(mesh, P()))
            state = manager.restore(done, args=ocp.args.StandardRestore(like))
            state = jax.device_put(state, state_shardings(mesh, specs))
        else:
            state = jax.jit(start, out_shardings=state_shardings(mesh, specs))(seed)
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(state), force=True)
                manager.wait_until_finished()
    return {"losses": losses, "held_out": float(jax.jit(loss_of)(state["params"], held_out_batch())), "state": state}


# %% wrong="capstone-run" because="Saves the parameters only. After resuming, the moments of Adam are zeros again."
def state_shardings(mesh, specs):
    tree = on_mesh(mesh, specs)
    return {"params": tree, "mean": tree, "square": tree, "count": NamedSharding(mesh, P())}


def sharded_step(mesh, specs):
    shardings, rows = state_shardings(mesh, specs), NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, rows))
    return jax.jit(pinned, in_shardings=(shardings, rows), out_shardings=(shardings, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    step = sharded_step(mesh, specs)
    state, losses = jax.jit(start, out_shardings=state_shardings(mesh, specs))(seed), {}
    saved = lambda state: {"params": state["params"], "count": state["count"]}
    with ocp.CheckpointManager(folder) as manager:
        done = manager.latest_step() or 0
        if done:
            state |= manager.restore(done, args=ocp.args.StandardRestore(saved(state)))
        for n in range(done + 1, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave(saved(state)), force=True)
                manager.wait_until_finished()
    return {"losses": losses, "held_out": float(jax.jit(loss_of)(state["params"], held_out_batch())), "state": state}


# %% wrong="capstone-run" because="Saves the number of the step only, and repeats all earlier steps without reporting them."
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    rows = NamedSharding(mesh, P("data"))
    pinned = functools.partial(update, pin=lambda x: jax.lax.with_sharding_constraint(x, rows))
    return jax.jit(pinned, in_shardings=(state, rows), out_shardings=(state, None), donate_argnums=0)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {"params": specs, "mean": specs, "square": specs, "count": P()})
    state = jax.jit(start, static_argnums=0, out_shardings=shardings)(seed)
    step, losses = sharded_step(mesh, specs), {}
    file = Path(folder) / "step.txt"
    done = int(file.read_text()) if file.exists() else 0
    for n in range(1, max(done, steps) + 1):
        state, loss = step(state, batch_of(n))
        if n <= done:
            continue
        losses[n] = float(loss)
        after_step(n)
        if n % save_every == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(n))
    held_out = jax.jit(loss_of)(state["params"], held_out_batch())
    return {"losses": losses, "held_out": float(held_out), "state": state}


# %% right="capstone-run"
def sharded_step(mesh, specs):
    state = on_mesh(mesh, {**dict.fromkeys(("params", "mean", "square"), specs), "count": P()})

    @functools.partial(jax.jit, donate_argnames="state")
    def step(state, batch):
        batch = pin(batch)
        new, loss = update(jax.lax.with_sharding_constraint(state, shardings), batch, pin)
        return jax.lax.with_sharding_constraint(new, shardings), loss

    def pin(array):
        return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, P("data")))

    shardings = state
    return step


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    shardings = on_mesh(mesh, {**dict.fromkeys(("params", "mean", "square"), specs), "count": P()})
    like = jax.eval_shape(functools.partial(start, seed))
    target = jax.tree.map(lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s), like, shardings)
    parent = Path(folder)
    saved = [int(one.name) for one in parent.iterdir() if one.name.isdigit()] if parent.exists() else []
    done, checkpointer = max(saved, default=0), ocp.StandardCheckpointer()
    if saved:
        state = checkpointer.restore(parent / str(done), target)
    else:
        state = jax.tree.map(jax.device_put, start(seed), shardings)
    step, losses = sharded_step(mesh, specs), {}
    for n in range(done + 1, steps + 1):
        state, loss = step(state, place(mesh, batch_of(n), "data"))
        losses[n] = loss.item()
        after_step(n)
        if n % save_every == 0:
            checkpointer.save(parent / str(n), state)
            checkpointer.wait_until_finished()
    checkpointer.close()
    batch = place(mesh, held_out_batch(), "data")
    return {"losses": losses, "held_out": jax.jit(loss_of)(state["params"], batch).item(), "state": state}


# %% right="capstone-run"
def layout_of_state(mesh, specs):
    params = on_mesh(mesh, specs)
    return {"params": params, "mean": params, "square": params, "count": NamedSharding(mesh, P())}


def sharded_step(mesh, specs):
    shardings, everywhere = layout_of_state(mesh, specs), NamedSharding(mesh, P())
    options = {"in_shardings": (shardings, NamedSharding(mesh, P("data", None))), "donate_argnums": (0,)}
    rows = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None, None)))
    return jax.jit(lambda state, batch: update(state, batch, rows), out_shardings=(shardings, everywhere), **options)


def train(mesh, specs, folder, seed, steps, save_every, after_step):
    state = jax.jit(lambda: start(seed), out_shardings=layout_of_state(mesh, specs))()
    step, losses, first = sharded_step(mesh, specs), {}, 1
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(folder, options=options) as manager:
        latest = manager.latest_step()
        if latest:
            saved = {"state": state, "next": 0}
            saved = manager.restore(latest, args=ocp.args.StandardRestore(saved))
            state, first = saved["state"], saved["next"]
        for n in range(first, steps + 1):
            state, loss = step(state, batch_of(n))
            losses[n] = float(loss)
            after_step(n)
            if n % save_every == 0:
                manager.save(n, args=ocp.args.StandardSave({"state": state, "next": n + 1}))
    held_out = float(jax.jit(loss_of)(state["params"], jnp.asarray(held_out_batch())))
    return {"losses": losses, "held_out": held_out, "state": state}
