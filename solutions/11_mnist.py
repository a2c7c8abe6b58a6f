# %% [markdown]
# # 11 · Exercises: MNIST
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# The digits here are scikit-learn's, in their own 8 × 8: small enough that a network learns them in a second or two, and the same on every machine. A **tree** is what lesson 06 calls a pytree.

# %% setup
import collections
import itertools

from grader.checks import ask, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

# Accelerators round the factors of a product to fewer bits unless told otherwise; here every product keeps all of them.
jax.config.update("jax_default_matmul_precision", "highest")

DIGITS = (load_digits().images / 16).astype(np.float32)[..., None]  # (1797, 8, 8, 1), from 0 to 1
LABELS = load_digits().target.astype(np.int32)  # (1797,)


def fit(model, images, labels, steps=120):
    """Trains an NNX model on images (n, 8, 8, 1), labels (n,), with Adam and 32 examples a step. Returns the model."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    tx = optax.adam(optax.cosine_decay_schedule(0.015, steps))

    def loss(params, xs, ys):
        logits = nnx.merge(graphdef, params, rest)(xs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, ys).mean()

    def one(carry, chosen):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params, images[chosen], labels[chosen]), state, params)
        return (optax.apply_updates(params, updates), state), None

    chosen = jax.random.randint(jax.random.key(11), (steps, 32), 0, len(labels))
    (params, _), _ = jax.lax.scan(one, (params, tx.init(params)), chosen)
    return nnx.merge(graphdef, params, rest)


def put(model, stacks):
    """The model with given parameters, chosen by their shape: layers of one shape take the rows of a stack in turn."""
    rows = collections.defaultdict(list)
    for stack in stacks:
        rows[str(stack.shape[1:])] += list(stack)
    whole = {str(stack.shape): stack for stack in stacks}
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    take = lambda at, leaf: jnp.asarray(rows[at].pop(0) if rows[at] else whole.get(at, leaf))
    return nnx.merge(graphdef, jax.tree.map(lambda leaf: take(str(leaf.shape), leaf), params), rest)


def nearest(state, xs, ys, rate=0.1):
    """A step of a small classifier that keeps a middle for each class: state (k, d), xs (B, d), ys (B,) -> state,
    the mean loss () of the batch, its logits (B, k)."""
    logits = -jnp.sum((xs[:, None] - state) ** 2, axis=-1)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, ys).mean()
    return jnp.asarray(state).at[ys].add(rate * (xs - state[ys])), loss, logits


def nearest_by_hand(state, batches):
    """What steps of `nearest` give in plain NumPy: the last state, and for each batch its losses (B,) and hits (B,)."""
    state, losses, hits = state.astype(np.float64), [], []
    for i in range(len(batches)):
        xs, ys = batches[i]
        logits = -((xs[:, None] - state) ** 2).sum(-1)
        losses.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ys)), ys])
        hits.append(logits.argmax(1) == ys)
        moves = 0.1 * (xs - state[ys])
        np.add.at(state, ys, moves)
    return state.astype(np.float32), losses, hits


def steps_of(key, n, most):
    """The steps (n, 2), down and right, that the keys of n images draw."""
    draw = lambda own: jax.random.randint(own, (2,), -most, most + 1)
    return np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(key, n))).tolist()


def moved_by_hand(key, images, most):
    """Images (n, h, w, c), each moved by the step that its key draws, in plain NumPy: what the checks compare with."""
    result = np.zeros_like(images)
    h, w = images.shape[1:3]
    for i, (down, right) in enumerate(steps_of(key, len(images), most)):
        for y in range(max(down, 0), min(h, h + down)):
            for x in range(max(right, 0), min(w, w + right)):
                result[i, y, x] = images[i, y - down, x - right]
    return result


def yearly(course):
    """A training that scores as `course` says, epoch by epoch: epoch(state), which donates, score(state), a state."""
    epoch = jax.jit(lambda state: {"year": state["year"] + 1, "w": [state["w"][0] * 2]}, donate_argnums=0)
    return epoch, lambda state: jnp.asarray(course)[state["year"] - 1], {"year": jnp.array(0), "w": [jnp.ones(3)]}


# %% [markdown] task="mnist-batches" stars=1 minutes=8 skills="01_arrays,03_jit"
# ## Batches of one shape
# **Goal.** Feed a compiled step: floats, a channel axis, and every batch of the same size, so that nothing compiles twice. The loop is there, what it does is missing.
#
# **Signature.** `batches(images, labels, size, order)`: `images` is `(n, h, w)` uint8, `labels` is `(n,)` of any integer type; `order` is `(n,)`, the numbers 0 to n-1 in the order in which the examples are wanted. Yields pairs of NumPy arrays: images `(size, h, w, 1)`, float32, from 0 to 1 (255 is 1), and their labels `(size,)`, int32. Examples at the end that do not fill a batch are left out.
#
# **Example.** Five images of one pixel, 0, 51, 102, 153 and 255, with the labels 5, 6, 7, 8, 9, size 2 and the order 4, 0, 3, 1, 2: first the images 1 and 0 with the labels 9, 5, then 0.6 and 0.2 with 8, 6. The image 102 is left out.
#
# **Judged.** Every batch: values, shapes, dtypes, and that NumPy made it; how many there are. **Not judged.** Speed, and how the order is drawn.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is `images[order[0:2]]`, when the inner brackets give two numbers?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# In NumPy uint8 divided by a Python number is float64, and a last slice is simply shorter. What would each of the two do to a compiled step?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Take the part of `order` that this turn is about, and `return` where it is too short. Index images and labels with it, convert with `astype`, and add an axis at the end with `[..., None]`.
#
# </details>


# %% answer="mnist-batches"
def batches(images, labels, size, order):
    """Yields (size, h, w, 1) float32 from 0 to 1 and (size,) int32, of images (n, h, w) uint8 and labels (n,)."""
    for start in range(0, len(order), size):
        ### BEGIN SOLUTION
        chosen = order[start : start + size]
        if len(chosen) < size:
            return
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)
        ### END SOLUTION


# %% check="mnist-batches" name="example" points=1
"""The example: five images, two batches of two."""
images, labels = np.array([0, 51, 102, 153, 255], np.uint8).reshape(5, 1, 1), np.arange(5, 10)
got = ask(lambda *data: list(batches(*data)), images, labels, 2, np.array([4, 0, 3, 1, 2]))
first = np.float32([1, 0]).reshape(2, 1, 1, 1), np.array([9, 5], np.int32)
second = np.float32([0.6, 0.2]).reshape(2, 1, 1, 1), np.array([8, 6], np.int32)
compare(got, [first, second], label="the list of batches")

# %% hidden="mnist-batches" name="batches" points=2
"""Every batch is right, and each has the shapes and dtypes of the first."""
for n, size, kind in ((23, 5, np.int64), (12, 4, np.uint8), (7, 1, np.int32), (6, 6, np.int16)):
    rng = inputs.rng()
    # Some are dark: the largest pixel is not always 255.
    images = rng.integers(0, 200 if n == 23 else 256, size=(n, 3, 2), dtype=np.uint8)
    labels = rng.integers(0, 10, size=n).astype(kind)
    order = rng.permutation(n)
    got = ask(lambda *data: list(batches(*data)), images, labels, size, order)
    require(
        isinstance(got, list) and all(isinstance(one, tuple) and len(one) == 2 for one in got), "A batch is no pair."
    )
    require(
        all(isinstance(part, np.ndarray) for one in got for part in one),
        "A batch is not of NumPy arrays: the loader's side is NumPy's, and the compiled step takes its arrays as they are.",
    )
    require(
        len({np.shape(xs) for xs, _ in got}) <= 1,
        f"With {n} examples and size {size} the batches have unlike shapes: each shape compiles the step once more.",
    )
    require(len(got) <= n // size, "There are too many batches: examples that do not fill one are left out.")
    require(len(got) == n // size, "There are too few batches: all that are full count, the last of them too.")
    for i, (xs, ys) in enumerate(got):
        chosen = order[i * size : (i + 1) * size]
        if np.shape(xs) == (size, 3, 2, 1) and np.shape(ys) == (size,) and n == 23:
            same = np.allclose(xs[..., 0] * 255, images[chosen], atol=0.5)
            require(
                not same or (ys == labels[chosen]).all(),
                "The images are right, and the labels belong to other images: are both taken in the new order?",
            )
            require(
                same or not np.allclose(xs[..., 0], images[chosen], atol=0.5),
                "The images go from 0 to 255; wanted 0 to 1.",
            )
            require(same or (xs % 1 > 0).any(), "The images are whole numbers, 0 or 1: what does `//` do?")
            require(
                same or not np.allclose(xs[..., 0] * 255, images[i * size : (i + 1) * size], atol=0.5),
                "The images come as they lie in the file: `order` has no say.",
            )
        wanted = (images[chosen].astype(np.float32) / np.float32(255))[..., None], labels[chosen].astype(np.int32)
        compare(xs, wanted[0], label="the images of a batch")
        compare(ys, wanted[1], label="the labels of a batch")

# %% [markdown] why="mnist-batches"
# One shape and one dtype for every batch means one program for the whole training. The examples that are left out are others in each epoch, as the order is drawn anew. **Next:** the test set has to be seen whole. What do you do with its last batch?


# %% wrong="mnist-batches" because="Yields the short batch at the end too: another shape, so the step compiles again."
def batches(images, labels, size, order):
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Divides before it converts: NumPy makes float64 of uint8 and a number."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None] / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Takes the images in the new order and the labels in the old one."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / 255, labels[start : start + size].astype(np.int32)


# %% wrong="mnist-batches" because="Divides with //: every pixel that is not 255 becomes 0."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield (images[chosen] // 255)[..., None].astype(np.float32), labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Does not scale: pixels of 255 make steps that are far too long."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32), labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Puts the channel axis first, as PyTorch has it; Flax wants it last."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][:, None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Fills the last batch up with examples that were there already: they count twice."
def batches(images, labels, size, order):
    for start in range(0, len(order), size):
        chosen = np.resize(order[start : start + size], size)
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Goes through the examples as they lie in the file, and forgets the order."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        part = slice(start, start + size)
        yield images[part][..., None].astype(np.float32) / 255, labels[part].astype(np.int32)


# %% wrong="mnist-batches" because="Makes JAX arrays of what NumPy has to load: a tour through the device, and nothing for worker processes."
def batches(images, labels, size, order):
    images, labels = jnp.asarray(images), jnp.asarray(labels, jnp.int32)
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(jnp.float32) / 255, labels[chosen]


# %% wrong="mnist-batches" because="Scales by the largest pixel that there is: in darker images that is not 255."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / images.max(), labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Leaves out the last batch where it ends with the last example: it is full."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Takes width for height in a reshape: images that are not square are scrambled."
def batches(images, labels, size, order):
    _, width, height = images.shape
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        xs = images[chosen].reshape(size, height, width, 1).astype(np.float32) / np.float32(255)
        yield xs, labels[chosen].astype(np.int32)


# %% right="mnist-batches"
def batches(images, labels, size, order):
    whole = order[: len(order) // size * size].reshape(-1, size)
    return [(np.float32(images[rows, :, :, None]) / np.float32(255), np.int32(labels[rows])) for rows in whole]


# %% right="mnist-batches"
def batches(images, labels, size, order):
    xs, ys = np.divide(images[order], 255, dtype=np.float32), labels[order].astype(np.int32)
    for stop in range(size, len(order) + 1, size):
        yield np.expand_dims(xs[stop - size : stop], axis=-1), ys[stop - size : stop]


# %% [markdown] task="mnist-metrics-on-device" stars=2 minutes=15 skills="03_jit,09_training,mnist-batches"
# ## Totals that nobody waits for
# **Goal.** Train through some batches and say how it went: the mean loss and the accuracy. But do not look at a single number on the way, or Python and the device wait for each other in every step.
#
# **Signature.** `train_steps(step, state, batches)`: `step(state, xs, ys)` gives `(state, loss, logits)`: the new state, the **mean** loss `()` of this batch, and its logits `(B, k)`. `batches` is a list of one or more pairs `(xs, ys)`, whose sizes B may differ. Returns `(state, {"loss": ..., "accuracy": ...})`: the state after the last batch, and over all **examples** together the mean loss and the share whose largest logit is at the label, both float32, `()`.
#
# **Example.** `nearest` from the setup with the middles `[[0], [1]]` in two batches, `xs = [[1], [0], [1]]`, `ys = [0, 0, 1]`, then `xs = [[2]]`, `ys = [1]`: three of the four are right, the accuracy is 0.75; the losses are about 0.63 and 0.07 for the batches, and 0.50 over all four.
#
# **Judged.** Values, for batches of unlike sizes and for any `step` and its loss; that the whole function can be traced, which it cannot be where an array is converted to a Python or NumPy number, in the loop or after it. **Not judged.** Whether you add up or collect.
#
# <details><summary>Hint 1 · a question</summary>
#
# A batch of 100 with the loss 1 and one of 10 with the loss 2: what is the mean over all 110?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Sums of `jnp` arrays are `jnp` arrays, and nobody waits for them. `float`, `int`, `np.asarray` and `.item()` do. The sizes are no arrays: `len(ys)` is known.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Three totals: of loss times size, of right answers (`jnp.argmax` along the last axis, compared with the labels), of sizes. Divide after the loop.
#
# </details>


# %% answer="mnist-metrics-on-device"
def train_steps(step, state, batches):
    """Trains with step(state, xs, ys) -> (state, mean loss, logits). Returns state, {"loss": (), "accuracy": ()}."""
    ### BEGIN SOLUTION
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total = total + loss * len(ys)
        hits = hits + jnp.sum(jnp.argmax(logits, axis=-1) == ys)
        count += len(ys)
    return state, {"loss": total / count, "accuracy": hits / count}
    ### END SOLUTION


# %% check="mnist-metrics-on-device" name="example" points=1
"""The example: two batches, one of three and one of one."""
middles = np.array([[0], [1]], np.float32)
parts = [(np.float32([[1], [0], [1]]), np.int32([0, 0, 1])), (np.float32([[2]]), np.int32([1]))]
_, told = ask(lambda *data: train_steps(nearest, *data), middles, parts)
_, losses, _ = nearest_by_hand(middles, parts)
totals = {"loss": np.float32(np.concatenate(losses).mean()), "accuracy": np.float32(0.75)}
compare(told, totals, label="the totals")

# %% hidden="mnist-metrics-on-device" name="values" points=2
"""State, loss and accuracy over all examples, for batches of unlike sizes."""


def draw(sizes):
    rng = inputs.rng()
    middles = rng.normal(size=(4, 3)).astype(np.float32)
    ys = [rng.integers(0, 4, size=size).astype(np.int32) for size in sizes]
    return middles, [((middles[y] + 0.7 * rng.normal(size=(len(y), 3))).astype(np.float32), y) for y in ys]


def probe_steps(middles, parts, times):
    """Steps that report `times` their loss: with 1 the cross entropy of their logits, else another one."""

    def step(state, xs, ys):
        state, loss, logits = nearest(state, xs, ys)
        return state, times * loss, logits

    return train_steps(step, middles, parts)


for sizes, times in (((40, 9, 23), 1), ((3,), 1), ((16, 16, 16, 16), 3)):
    middles, parts = draw(sizes)
    got = ask(probe_steps, middles, parts, times)
    state, losses, hits = nearest_by_hand(middles, parts)
    if times > 1:
        own, losses = np.float32(np.concatenate(losses).mean()), [times * a for a in losses]
        told = got[1] if isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], dict) else {}
        made_up = "loss" in told and np.shape(told["loss"]) == () and np.isclose(told["loss"], own)
        require(not made_up, "The loss is the cross entropy of the logits; wanted is the loss that `step` gives.")
    totals = {
        "loss": np.float32(np.concatenate(losses).mean()),
        "accuracy": np.float32(np.concatenate(hits).mean()),
    }
    if isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], dict) and set(got[1]) == set(totals):
        found = got[1]
        mistakes = {
            "The mean of the batches' means: a batch of 9 counts as much as one of 40.": [
                np.mean([a.mean() for a in part]) for part in (losses, hits)
            ],
            "Only the last batch counts.": [part[-1].mean() for part in (losses, hits)],
            "The batches' means are added up and then divided by the number of examples: that divides twice.": [
                np.sum([a.mean() for a in losses]) / sum(sizes),
                np.nan,
            ],
            "That is a sum over the batches, not a mean over the examples.": [
                np.sum([a.mean() for a in part]) for part in (losses, hits)
            ],
        }
        for said, values in mistakes.items():
            for (name, right), value in zip(totals.items(), values, strict=True):
                near = np.shape(found[name]) == () and np.isclose(found[name], value, rtol=1e-4)
                require(not near or np.isclose(right, value, rtol=1e-3), f"{name}: {said[0].lower()}{said[1:]}")
        still = np.shape(got[0]) == middles.shape and np.allclose(got[0], middles)
        require(not still, "The state that comes back is the one that went in: each step gives a new one.")
        alone = np.shape(got[0]) == middles.shape and np.allclose(got[0], nearest_by_hand(middles, parts[-1:])[0])
        require(
            len(parts) == 1 or not alone,
            "Only the last step has changed the state: does each begin where the last ended?",
        )
    compare(got, (state, totals), label=f"(state, totals) of {len(parts)} batches")

# %% hidden="mnist-metrics-on-device" name="traced" points=2
"""The whole loop can be traced, so nobody looks at a value on the way; and the program takes the steps."""


def probe_loop(middles, parts):
    return jax.jit(lambda middles, parts: train_steps(nearest, middles, parts))(middles, parts)


rng = inputs.rng()
middles = rng.normal(size=(3, 2)).astype(np.float32)
parts = [(rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 3, size=n).astype(np.int32)) for n in (8, 5)]
raised = error(probe_loop, middles, parts)
require(
    raised is None or not ("Tracer" in raised or "Concretization" in raised),
    "The loop cannot be traced: something in it asks for a value, so every step waits for the device. Is there a `float`, an "
    "`int`, an `if` on a value, or NumPy?",
)
got = program(probe_loop, middles, parts).run(middles, parts)
require(isinstance(got, tuple) and len(got) == 2, "The program does not return a pair (state, totals).")
compare(got[0], nearest_by_hand(middles, parts)[0], label="the state")

# %% [markdown] why="mnist-metrics-on-device"
# The totals are arrays that need not be there yet: Python hands over step after step, and the device is never short of work. Whoever prints them at the end waits once. That the loop can be traced is the proof: a tracer has no value to look at. **Next:** where would you put the progress bar?


# %% wrong="mnist-metrics-on-device" because="Calls float in every step: Python waits for the device, and then the device for Python."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total += float(loss) * len(ys)
        hits += int((logits.argmax(-1) == ys).sum())
        count += len(ys)
    return state, {"loss": jnp.float32(total / count), "accuracy": jnp.float32(hits / count)}


# %% wrong="mnist-metrics-on-device" because="Counts the right answers with NumPy, which has to have the logits first."
def train_steps(step, state, batches):
    total, hits, count = 0, 0, 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total, count = total + loss * len(ys), count + len(ys)
        hits += np.sum(np.argmax(np.asarray(logits), axis=-1) == np.asarray(ys))
    return state, {"loss": total / count, "accuracy": jnp.float32(hits / count)}


# %% wrong="mnist-metrics-on-device" because="Takes the mean of the batches' means: a small batch counts as much as a large one."
def train_steps(step, state, batches):
    losses, hits = [], []
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        losses.append(loss)
        hits.append((logits.argmax(-1) == ys).mean())
    return state, {"loss": jnp.stack(losses).mean(), "accuracy": jnp.stack(hits).mean()}


# %% wrong="mnist-metrics-on-device" because="Reports the last batch, and calls it the epoch."
def train_steps(step, state, batches):
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
    return state, {"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == ys)}


# %% wrong="mnist-metrics-on-device" because="Looks for the largest logit along the batch instead of along the classes."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total, count = total + loss * len(ys), count + len(ys)
        hits = hits + jnp.sum(logits.argmax(0)[ys] == ys)
    return state, {"loss": total / count, "accuracy": hits / count}


# %% wrong="mnist-metrics-on-device" because="Starts every step from the state that came in."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        new, loss, logits = step(state, xs, ys)
        total, count = total + loss * len(ys), count + len(ys)
        hits = hits + jnp.sum(logits.argmax(-1) == ys)
    return new, {"loss": total / count, "accuracy": hits / count}


# %% wrong="mnist-metrics-on-device" because="Adds up means and divides by the number of examples: the loss is too small by the size of a batch."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total, count = total + loss, count + len(ys)
        hits = hits + jnp.sum(logits.argmax(-1) == ys)
    return state, {"loss": total / count, "accuracy": hits / count}


# %% wrong="mnist-metrics-on-device" because="Makes a cross entropy of the logits: the loss that `step` gives may be another."
def train_steps(step, state, batches):
    losses, hits = [], []
    for xs, ys in batches:
        state, _, logits = step(state, xs, ys)
        losses.append(optax.softmax_cross_entropy_with_integer_labels(logits, ys))
        hits.append(jnp.argmax(logits, axis=-1) == ys)
    return state, {"loss": jnp.concatenate(losses).mean(), "accuracy": jnp.concatenate(hits).mean()}


# %% wrong="mnist-metrics-on-device" because="Keeps a running mean that remembers only the size of the batch before, not of all before."
def train_steps(step, state, batches):
    mean_loss, accuracy, before = jnp.float32(0), jnp.float32(0), 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        share, size = jnp.mean(jnp.argmax(logits, axis=-1) == ys), len(ys)
        mean_loss = (mean_loss * before + loss * size) / (before + size)
        accuracy = (accuracy * before + share * size) / (before + size)
        before = size
    return state, {"loss": mean_loss, "accuracy": accuracy}


# %% wrong="mnist-metrics-on-device" because="Makes NumPy numbers of the totals at the end: the caller waits there, and the function cannot be traced."
def train_steps(step, state, batches):
    total, hits, count = 0.0, 0, 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total += loss * len(ys)
        hits += jnp.sum(logits.argmax(axis=-1) == ys)
        count += len(ys)
    return state, {"loss": np.float32(total / count), "accuracy": np.float32(hits / count)}


# %% right="mnist-metrics-on-device"
def train_steps(step, state, batches):
    losses, hits, sizes = [], [], np.array([len(ys) for _, ys in batches])
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        losses.append(loss)
        hits.append(jnp.argmax(logits, -1) == ys)
    return state, {
        "loss": jnp.average(jnp.stack(losses), weights=sizes),
        "accuracy": jnp.concatenate(hits).mean(dtype=jnp.float32),
    }


# %% right="mnist-metrics-on-device"
def train_steps(step, state, batches):
    totals = {"loss": jnp.float32(0), "accuracy": jnp.float32(0)}
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        right = logits[jnp.arange(len(ys)), ys] >= logits.max(axis=1)
        found = {"loss": loss * len(ys), "accuracy": right.sum().astype(jnp.float32)}
        totals = jax.tree.map(jnp.add, totals, found)
    return state, jax.tree.map(lambda total: total / sum(len(ys) for _, ys in batches), totals)


# %% [markdown] task="mnist-evaluate" stars=2 minutes=15 skills="03_jit,05_vmap,mnist-metrics-on-device"
# ## Every test image, once
# **Goal.** Training may drop the last batch; a test may not. Evaluate a compiled model on *all* images, in batches of one size, without compiling it again for the rest.
#
# **Signature.** `evaluate(predict, images, labels, size)`: `predict` takes `(size, ...)` images, **always exactly `size`**, and gives logits `(size, k)`; `images` is `(n, ...)`, `labels` is `(n,)`, NumPy arrays, n ≥ 1. Returns `{"loss": ..., "accuracy": ...}`, both float32 `()`: over the n examples, the mean cross entropy (`optax.softmax_cross_entropy_with_integer_labels`) and the share whose largest logit (`jnp.argmax`) is at the label.
#
# **Example.** n = 5 and size 2: `predict` is called three times, and the last time one of the two images is padding. With all logits 0 the loss is log 10 and the accuracy is the share of zeros among the labels.
#
# **Judged.** Values for every n, also smaller than `size`; the shapes that `predict` meets. Whatever `predict` makes of your padding, **NaN too**, must not be seen; NaN of a *real* image must be, as a loss that is NaN. **Not judged.** What you pad with.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many images are missing in the last batch, and how would you say, for each row of a batch, whether it is real?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A mask of booleans. Multiplying by it is not enough: what is 0 times NaN? Lesson 04 has a function that chooses instead.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `np.arange(size) < number of real rows` is the mask. Pad images and labels with zeros behind. Add up `jnp.where(mask, loss of each row, 0)` and the masked hits, divide both by n.
#
# </details>


# %% answer="mnist-evaluate"
def evaluate(predict, images, labels, size):
    """{"loss": (), "accuracy": ()} of predict: (size, ...) -> (size, k) over all images (n, ...), labels (n,)."""
    ### BEGIN SOLUTION
    total = hits = 0
    for start in range(0, len(labels), size):
        xs, ys = images[start : start + size], labels[start : start + size]
        real, missing = np.arange(size) < len(ys), size - len(ys)
        ys = np.pad(ys, (0, missing))
        logits = predict(np.concatenate([xs, np.zeros((missing, *xs.shape[1:]), xs.dtype)]))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, ys)
        total = total + jnp.sum(losses, where=real)
        hits = hits + jnp.sum(jnp.argmax(logits, axis=-1) == ys, where=real)
    return {"loss": total / len(labels), "accuracy": hits / len(labels)}
    ### END SOLUTION


# %% check="mnist-evaluate" name="example" points=1
"""The example: five images, two at a time, and logits that are all 0."""


def probe_example(images, labels):
    met = []
    predict = lambda xs: met.append(xs.shape) or jnp.zeros((2, 10))
    return evaluate(predict, images, labels, 2), met


got, met = ask(probe_example, np.ones((5, 3), np.float32), np.int32([0, 4, 0, 7, 7]))
require(met == [(2, 3)] * 3, f"`predict` met the shapes {met}; wanted (2, 3), three times.")
compare(got, {"loss": np.float32(np.log(10)), "accuracy": np.float32(0.4)}, label="the result")

# %% hidden="mnist-evaluate" name="values" points=2
"""Right for any number of images: all are counted, each once, the padding never."""


def probe_linear(images, labels, weights, size):
    return evaluate(lambda xs: jnp.reshape(xs, (size, -1)) @ weights + jnp.arange(4.0), images, labels, size)


for n, size in ((7, 3), (8, 4), (3, 8), (9, 1)):
    rng = inputs.rng()
    images, weights = rng.normal(size=(n, 2, 3)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)
    labels = (images.reshape(n, 6) @ weights + np.arange(4)).argmax(1).astype(np.int32)
    labels[rng.integers(n)] = 3 - labels[0]
    logits = images.reshape(n, 6).astype(np.float64) @ weights + np.arange(4)
    losses, hits = np.log(np.exp(logits).sum(1)) - logits[np.arange(n), labels], logits.argmax(1) == labels
    raised = error(probe_linear, images, labels, weights, size)
    require(
        raised is None,
        f"With {n} images and size {size} `predict` cannot work: it wants exactly {size} images each time.",
    )
    got = ask(probe_linear, images, labels, weights, size)
    wanted = {"loss": np.float32(losses.mean()), "accuracy": np.float32(hits.mean())}
    if (n, size) == (7, 3) and isinstance(got, dict) and np.shape(got.get("loss")) == ():
        others = {
            "The last batch is left out: a test counts every image.": losses[:6].mean(),
            "The padding is counted too, as blank images.": (losses.sum() + 2 * np.log(np.exp(np.arange(4)).sum())) / 9,
            "The mean of the batches' means: the last image counts as much as three.": np.mean(
                [losses[:3].mean(), losses[3:6].mean(), losses[6]]
            ),
            "All the losses are there, but divided by the number of rows with the padding, not by the number of images.": losses.sum()
            / 9,
        }
        for said, other in others.items():
            require(np.isclose(other, wanted["loss"], rtol=1e-3) or not np.isclose(got["loss"], other, rtol=1e-4), said)
    compare(got, wanted, label=f"the result for {n} images in batches of {size}")

# %% hidden="mnist-evaluate" name="padding" points=1
"""What the model makes of the padding is not seen, NaN neither; NaN of a real image is."""


def probe_norm(images, labels, weights, sound):
    """A model that gives NaN for every row but the `sound` images, wherever the padding stands."""
    calls = []

    def predict(xs):
        calls.append(1)
        known = (jnp.asarray(xs)[:, None] == sound).all(axis=-1).any(axis=-1)
        return jnp.where(known[:, None], xs @ weights, jnp.nan)

    # Compiled as a whole, a product with a boolean mask becomes a choice, and 0 times NaN is 0.
    with jax.disable_jit():
        return evaluate(predict, images, labels, 4), len(calls)


rng = inputs.rng()
images, weights = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
labels = rng.integers(0, 3, size=6).astype(np.int32)
logits = images.astype(np.float64) @ weights
losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels]
wanted = {"loss": np.float32(losses.mean()), "accuracy": np.float32((logits.argmax(1) == labels).mean())}
got, calls = ask(probe_norm, images, labels, weights, images)
require(calls <= 2, f"For 6 images in batches of 4 `predict` is called {calls} times; two batches hold them all.")
if isinstance(got, dict) and np.shape(got.get("loss")) == ():
    require(not np.isnan(got["loss"]), "The model gives NaN for the padding, and the loss is NaN. What is 0 times NaN?")
compare(got, wanted, label="the result")
broken = ask(probe_norm, images, labels, weights, np.delete(images, 3, axis=0))[0]["loss"]
require(
    np.isnan(broken),
    "The model gives NaN for a real image, and the loss is a number: a broken model looks sound. Leave out rows by where they "
    "are, not by what is in them.",
)

# %% hidden="mnist-evaluate" name="one-shape" points=1
"""The model meets one shape only, and no more batches than it takes."""


def probe_shapes(images, labels, size):
    met = []

    def predict(xs):
        met.append((*np.shape(xs), str(xs.dtype)))
        return jnp.zeros((len(xs), 10))

    told = evaluate(predict, images, labels, size)
    return met if told else None


for n, size in ((10, 4), (8, 4), (3, 5)):
    met = ask(probe_shapes, inputs.rng().normal(size=(n, 2, 2, 1)).astype(np.float32), np.zeros(n, np.int32), size)
    require(
        {(*one,) for one in met} == {(size, 2, 2, 1, "float32")},
        f"With {n} images and size {size} the model does not meet ({size}, 2, 2, 1), float32, alone: each other shape or dtype "
        "compiles it again.",
    )
    require(
        len(met) == -(-n // size),
        f"With {n} images and size {size} the model runs {len(met)} times; {-(-n // size)} do it.",
    )

# %% [markdown] why="mnist-evaluate"
# The padding makes every batch the same for the compiler, the mask makes it nothing for the result. Choosing with `where` keeps NaN out; a product does not. **Next:** on eight devices each batch is cut in eight. What does `size` have to be then?


# %% wrong="mnist-evaluate" because="Leaves out the images that do not fill a batch, as in training."
def evaluate(predict, images, labels, size):
    whole = max(len(labels) // size * size, size)
    images, labels = (
        np.resize(images, (max(len(images), size), *images.shape[1:])),
        np.resize(labels, max(len(labels), size)),
    )
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, whole, size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels[:whole])
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels[:whole])}


# %% wrong="mnist-evaluate" because="Hands over a last batch that is shorter: a second shape, so the model compiles again."
def evaluate(predict, images, labels, size):
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% wrong="mnist-evaluate" because="Counts the padding too, as blank images with the label 0."
def evaluate(predict, images, labels, size):
    more = -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% wrong="mnist-evaluate" because="Multiplies the losses by the mask: 0 times NaN is NaN."
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    mask = (np.arange(len(labels)) < n).astype(np.float32)
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": (losses * mask).sum() / n, "accuracy": ((logits.argmax(-1) == labels) * mask).sum() / n}


# %% wrong="mnist-evaluate" because="Multiplies by a boolean mask: only the compiler's choice of operations keeps 0 times NaN from being NaN."
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    mask = np.arange(len(labels)) < n
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": jnp.sum(losses * mask) / n, "accuracy": jnp.sum((logits.argmax(-1) == labels) & mask) / n}


# %% wrong="mnist-evaluate" because="Pads with the first images, of which there are too few when n is much smaller than `size`."
def evaluate(predict, images, labels, size):
    n, missing = len(images), -len(images) % size
    images = np.concatenate([images, images[:missing]])
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, n, size)])[:n]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% wrong="mnist-evaluate" because="Leaves out whatever is NaN: a model that breaks on real images then looks sound."
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    mask = np.arange(len(labels)) < n
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": jnp.nansum(losses * mask) / n, "accuracy": ((logits.argmax(-1) == labels) & mask).sum() / n}


# %% wrong="mnist-evaluate" because="Takes the mean of the batches' means: the last few images count as much as a whole batch."
def evaluate(predict, images, labels, size):
    losses, hits = [], []
    for i in range(0, len(labels), size):
        xs, ys = images[i : i + size], labels[i : i + size]
        logits = predict(np.resize(xs, (size, *xs.shape[1:])))[: len(ys)]
        losses.append(optax.softmax_cross_entropy_with_integer_labels(logits, ys).mean())
        hits.append(jnp.mean(logits.argmax(-1) == ys))
    return {"loss": jnp.stack(losses).mean(), "accuracy": jnp.stack(hits).mean()}


# %% wrong="mnist-evaluate" because="Masks the padding out of the sums, and then divides by all rows."
def evaluate(predict, images, labels, size):
    losses, hits = [], []
    for i in range(0, len(labels), size):
        xs, ys = images[i : i + size], labels[i : i + size]
        mask = jnp.arange(size) < len(ys)
        logits, ys = predict(np.resize(xs, (size, *xs.shape[1:]))), np.resize(ys, size)
        losses.append(jnp.where(mask, optax.softmax_cross_entropy_with_integer_labels(logits, ys), 0))
        hits.append(mask & (logits.argmax(-1) == ys))
    return {"loss": jnp.concatenate(losses).mean(), "accuracy": jnp.concatenate(hits).mean()}


# %% wrong="mnist-evaluate" because="Evaluates image by image, each repeated until the batch is full: right, and `size` times the work."
def evaluate(predict, images, labels, size):
    logits = jnp.stack([predict(np.repeat(image[None], size, axis=0))[0] for image in images])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% wrong="mnist-evaluate" because="Computes the padding as size - n % size, which is a whole batch where size divides n."
def evaluate(predict, images, labels, size):
    n = len(images)
    missing = size - n % size
    xs = np.concatenate([images, np.zeros((missing, *images.shape[1:]), images.dtype)])
    ys = np.concatenate([labels, np.zeros(missing, labels.dtype)])
    real = np.arange(len(xs)) < n
    loss = hits = jnp.float32(0)
    for start in range(0, len(xs), size):
        part = slice(start, start + size)
        logits = predict(xs[part])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, ys[part])
        loss += jnp.where(real[part], each, 0).sum()
        hits += jnp.where(real[part], logits.argmax(-1) == ys[part], False).sum()
    return {"loss": loss / n, "accuracy": hits / n}


# %% right="mnist-evaluate"
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.pad(images, ((0, more), *((0, 0),) * (images.ndim - 1)))
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, n, size)])[:n]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(jnp.argmax(logits, 1) == labels)}


# %% right="mnist-evaluate"
def evaluate(predict, images, labels, size):
    more = -len(labels) % size
    images = np.concatenate([np.zeros((more, *images.shape[1:]), images.dtype), images])  # padded in front
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(images), size)])[more:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% right="mnist-evaluate"
def evaluate(predict, images, labels, size):
    n, padded = len(labels), np.resize(images, (max(len(images), size), *images.shape[1:]))
    parts = [predict(padded[:size])[:n]]
    for stop in range(2 * size, n + size, size):  # the last window is moved back
        new = min(size, n - stop + size)
        parts.append(predict(padded[min(stop, n) - size : min(stop, n)])[size - new :])
    logits = jnp.concatenate(parts)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% right="mnist-evaluate"
def evaluate(predict, images, labels, size):
    totals = jnp.zeros(2)
    for numbers in np.arange(-(-len(labels) // size) * size).reshape(-1, size):
        mask, rows = numbers < len(labels), np.minimum(numbers, len(labels) - 1)
        scores = jax.nn.log_softmax(predict(images[rows]), axis=-1)
        loss = -jnp.take_along_axis(scores, labels[rows][:, None], axis=-1)[:, 0]
        hit = scores.argmax(-1) == labels[rows]
        totals += jnp.stack([jnp.where(mask, loss, 0).sum(), jnp.where(mask, hit, 0).sum()])
    return dict(zip(("loss", "accuracy"), totals / len(labels), strict=True))


# %% [markdown] task="mnist-cnn" stars=2 minutes=20 skills="nnx-mlp,nnx-train-step,09_training"
# ## A residual network
# **Goal.** Write a convolutional network whose depth is a number, and let it learn real digits.
#
# **Signature.** `CNN(channels, blocks, *, rngs)`: two whole numbers, and an `nnx.Rngs` from which **all** weights come. Called with images `(n, 8, 8, 1)` it gives logits `(n, 10)`:
#
# - a 3 × 3 convolution with stride 2 from one channel to `channels`, then relu: `(n, 4, 4, channels)`;
# - `blocks` times, each with a 3 × 3 convolution of its own: what came in, **plus** the relu of the convolution of it (all of it: here without the lesson's share);
# - everything flattened by `reshape`, and one linear layer to 10 numbers, with nothing behind it.
#
# All layers have biases, and all convolutions the padding that `nnx.Conv` has unless told otherwise.
#
# **Example.** `CNN(8, 2, rngs=nnx.Rngs(0))` has 72 + 8 parameters in the first convolution, 576 + 8 in each of the two others and 1,280 + 10 in the last layer: 2,538.
#
# **Judged.** The parameters, each array by itself or those of all blocks in one with an axis in front; the logits for given parameters, which are traced; the accuracy on digits that it has not seen, after 120 steps of `fit` from the setup. **Not judged.** What the layers are called.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many numbers does one image have when it reaches the linear layer?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A plain list would be a setting, so one of modules is refused; `nnx.List` is taken. `nnx.Conv(inputs, outputs, (3, 3), rngs=rngs)`, and `strides=2` for the first.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In `__call__` keep one name for what flows through: it becomes itself plus the relu of the block, for each block. Then `reshape(len(images), -1)`; the linear layer has 16 times `channels` inputs.
#
# </details>


# %% answer="mnist-cnn" timeout=30
class CNN(nnx.Module):
    """Images (n, 8, 8, 1) -> logits (n, 10), by `blocks` residual convolutions of `channels` channels."""

    ### BEGIN SOLUTION
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List(nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks))
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        flow = jax.nn.relu(self.first(images))
        for block in self.blocks:
            flow = flow + jax.nn.relu(block(flow))
        return self.last(flow.reshape(len(images), -1))

    ### END SOLUTION


# %% check="mnist-cnn" name="example" points=1
"""The example: 2,538 parameters, and ten logits for each image."""


def probe_sizes(images):
    def both(images):
        model = CNN(8, 2, rngs=nnx.Rngs(0))
        return model(images), jax.tree.leaves(nnx.state(model, nnx.Param))

    return jax.eval_shape(both, images)  # shapes, and nothing is computed


logits, leaves = ask(probe_sizes, DIGITS[:3])
require(logits.shape == (3, 10), f"For three images the logits have shape {logits.shape}; wanted (3, 10).")
count = sum(leaf.size for leaf in leaves)
require(count == 2538, f"CNN(8, 2) has {count:,} parameters; wanted 2,538.")

# %% hidden="mnist-cnn" name="parameters" points=1
"""Every layer has parameters of its own, drawn from `rngs`."""


def probe_kernels(channels, blocks, seeds):
    keys = [jax.random.key(seed, impl="unsafe_rbg") for seed in seeds]  # compiles in a fraction of the time
    return [jax.tree.leaves(nnx.state(CNN(channels, blocks, rngs=nnx.Rngs(key)), nnx.Param)) for key in keys]


channels, blocks, seed = (int(n) for n in inputs.rng().integers((3, 3, 0), (6, 5, 1000)))
leaves, others = ask(probe_kernels, channels, blocks, [seed, seed + 1])
one, wide = (3, 3, channels, channels), (channels,)
stacked = {(blocks, *shape): shape for shape in (one, wide)}
rows, other_rows = (
    [row for leaf in model for row in (leaf if np.shape(leaf) in stacked else [leaf])] for model in (leaves, others)
)
found = collections.Counter(np.shape(row) for row in rows)
wanted = {(3, 3, 1, channels): 1, (16 * channels, 10): 1, (10,): 1, wide: blocks + 1, one: blocks}
for shape, times in wanted.items():
    require(
        found[shape] == times,
        f"With {channels} channels and {blocks} blocks, {found[shape]} arrays of parameters have the shape {shape}; wanted {times}.",
    )
more = sorted(set(found) - set(wanted))
require(not more, f"With {channels} channels and {blocks} blocks, there are parameters of other shapes: {more}.")
kernels = [row for row in rows if np.shape(row) == one]
require(
    all((one != other).any() for i, one in enumerate(kernels) for other in kernels[:i]),
    "Two blocks have the same weights: they come from one key, not from `rngs`.",
)
require(
    all((one != other).any() for one, other in zip(rows, other_rows, strict=True) if np.ndim(one) > 1),
    "Two models from unlike `rngs` have equal weights: some layer does not draw from the `rngs` that came in.",
)

# %% hidden="mnist-cnn" name="logits" points=2
"""The logits are right, for parameters that are given: relu, sum and order of everything."""


def probe_given(stacks, images, channels, blocks):
    return put(CNN(channels, blocks, rngs=nnx.Rngs(0)), stacks)(images)


def convolved(x, kernel, bias, stride=1):
    """A 3 × 3 convolution in plain NumPy, padded so that stride 1 keeps height and width."""
    x, out = np.pad(x, ((0, 0), (stride % 2, 1), (stride % 2, 1), (0, 0))), x.shape[1] // stride
    taps = [
        x[:, i : i + stride * out : stride, j : j + stride * out : stride] @ kernel[i, j]
        for i in range(3)
        for j in range(3)
    ]
    return sum(taps) + bias


rng = inputs.rng()
for channels, blocks in ((3, 2), (4, 4)):
    shapes = (3, 3, 1, channels), (channels,), (blocks, 3, 3, channels, channels), (16 * channels, 10), (10,)
    first, bias, kernels, last, end = (0.4 * rng.normal(size=shape).astype(np.float32) for shape in shapes)
    biases = np.stack([bias] * (blocks + 1))
    stacks = [first[None], biases, biases[1:], kernels, last[None], end[None]]
    images = rng.uniform(size=(3, 8, 8, 1)).astype(np.float32)
    relu = lambda x: np.maximum(x, 0)

    def by_hand(order, block):
        flow = relu(convolved(images.astype(np.float64), first, bias, 2))
        for i in order:
            flow = block(flow, convolved(flow, kernels[i], bias))
        return (flow.reshape(3, -1) @ last + end).astype(np.float32)

    right = lambda flow, new: flow + relu(new)
    orders = list(itertools.permutations(range(blocks)))  # which block has which kernel is up to the names
    got = program(probe_given, stacks, images, channels, blocks).run(stacks, images, channels, blocks)
    near = lambda other: np.shape(got) == other.shape and np.allclose(got, other, rtol=1e-3, atol=1e-3)
    wanted = by_hand(next((order for order in orders if near(by_hand(order, right))), orders[0]), right)
    if np.shape(got) == wanted.shape and not near(wanted):
        for said, block in {
            "No block adds what came in: that is a plain network, not a residual one.": lambda flow, new: relu(new),
            "Each block adds a share of its relu, 1 by the number of blocks, as in the lesson; wanted here is all of it.": (
                lambda flow, new: flow + relu(new) / blocks
            ),
            "The relu stands around the sum; wanted what came in, plus a relu.": lambda flow, new: relu(flow + new),
        }.items():
            require(not any(near(by_hand(order, block)) for order in orders), said)
        same = any(near(by_hand([i] * blocks, right)) for i in range(blocks))
        require(not same, "The convolution of one block is used in all of them.")
        require(
            not (np.allclose(got.sum(1), 1, atol=1e-3) or np.allclose(np.exp(got).sum(1), 1, atol=1e-3)),
            "Those are probabilities: the loss takes logits, and does the softmax itself.",
        )
    compare(got, wanted, rtol=1e-3, atol=1e-3, label=f"the logits of a network with {blocks} blocks")

# %% hidden="mnist-cnn" name="learns" points=1
"""After 120 steps it reads digits that it has not seen."""


def probe_learns(stacks, images, labels, others):
    return fit(put(CNN(8, 2, rngs=nnx.Rngs(0)), stacks), images, labels)(others)


rng = inputs.rng()
first, kernels, last = (
    (by * rng.normal(size=at)).astype(np.float32)
    for by, at in ((0.4, (1, 3, 3, 1, 8)), (0.1, (2, 3, 3, 8, 8)), (0.08, (1, 128, 10)))
)
zeros = np.zeros((3, 8), np.float32)
stacks = [first, kernels, last, zeros, zeros[1:], np.zeros((1, 10), np.float32)]
order = rng.permutation(len(LABELS))
train, test = order[:1300], order[1300:]
data = stacks, DIGITS[train], LABELS[train], DIGITS[test]
logits = program(probe_learns, *data).run(*data)
require(np.shape(logits) == (len(test), 10), "The logits of the test digits do not have the shape (n, 10).")
share = float(np.mean(np.argmax(logits, axis=1) == LABELS[test]))
require(
    share > 0.85, f"It reads {share:.0%} of the digits that it has not seen; 95% are usual here, and 85% are asked for."
)

# %% [markdown] why="mnist-cnn"
# Each block adds something to what is there, so with small weights it does nothing, and the gradient finds a way past it to the first layer: that is why dozens of blocks can be trained. **Next:** set `blocks` to 30 and look at the first loss. What does the lesson's block do about it?


# %% wrong="mnist-cnn" because="No sum: every block replaces what came in, and the way back through many of them is lost."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = jax.nn.relu(block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Adds only a share of each relu, as the lesson's block does: another network than the one asked for."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x)) / len(self.blocks)
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Keeps the blocks in a plain list: NNX takes that for a setting, and refuses one with modules in it."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = [nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)]
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Makes one convolution and puts it into every block: the depth is there, the parameters are not."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.block, self.turns = nnx.Conv(channels, channels, (3, 3), rngs=rngs), blocks
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for _ in range(self.turns):
            x = x + jax.nn.relu(self.block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Makes a convolution for every block, and uses the first one in all of them."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for _ in self.blocks:
            x = x + jax.nn.relu(self.blocks[0](x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Flattens with the channels first, as PyTorch has them: the linear layer meets the numbers in another order."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return self.last(x.transpose(0, 3, 1, 2).reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Ends with a softmax: the loss takes logits and does that itself."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return jax.nn.softmax(self.last(x.reshape(len(images), -1)))


# %% wrong="mnist-cnn" because="Takes the relu of the sum, as the first residual networks did, where what came in should pass untouched."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = jax.nn.relu(x + block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Makes its own random numbers: every model is the same one, and all blocks are equal."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        conv = lambda *sizes, **more: nnx.Conv(*sizes, (3, 3), rngs=nnx.Rngs(0), **more)
        self.first = conv(1, channels, strides=2)
        self.blocks = nnx.List([conv(channels, channels) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Forgets the stride: sixteen numbers a channel become sixty-four."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(64 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Ends with log_softmax: the predictions are the same, but these are not the logits of the linear layer."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.middle = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(4 * 4 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for conv in self.middle:
            x = x + jax.nn.relu(conv(x))
        x = self.last(x.reshape(x.shape[0], -1))
        return jax.nn.log_softmax(x)


# %% right="mnist-cnn"
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        conv = lambda key: nnx.Conv(channels, channels, (3, 3), rngs=nnx.Rngs(key))
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = jax.vmap(conv)(jax.random.split(rngs.params(), blocks))
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        add = lambda x, block: (x + jax.nn.relu(block(x)), None)
        x, _ = jax.lax.scan(add, jax.nn.relu(self.first(images)), self.blocks)
        return self.last(x.reshape(len(images), -1))


# %% right="mnist-cnn"
class Block(nnx.Module):
    def __init__(self, channels, rngs):
        self.convolution = nnx.Conv(channels, channels, kernel_size=(3, 3), padding="SAME", rngs=rngs)

    def __call__(self, x):
        return x + jnp.maximum(self.convolution(x), 0)


class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.stem = nnx.Conv(1, channels, kernel_size=(3, 3), strides=(2, 2), rngs=rngs)
        self.body = nnx.Sequential(*(Block(channels, rngs) for _ in range(blocks)))
        self.head = nnx.Linear(4 * 4 * channels, 10, rngs=rngs)

    def __call__(self, images):
        flow = self.body(nnx.relu(self.stem(images)))
        return self.head(jnp.reshape(flow, (images.shape[0], flow[0].size)))


# %% right="mnist-cnn"
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.layers = nnx.Dict({"in": nnx.Conv(1, channels, (3, 3), 2, rngs=rngs)})
        for i in range(blocks):
            self.layers[f"block{i}"] = nnx.Conv(channels, channels, (3, 3), rngs=rngs)
        self.layers["out"], self.depth = nnx.Linear(16 * channels, 10, rngs=rngs), blocks

    def __call__(self, images):
        x = jax.nn.relu(self.layers["in"](images))
        for i in range(self.depth):
            x += jax.nn.relu(self.layers[f"block{i}"](x))
        return self.layers["out"](x.reshape(x.shape[0], -1))


# %% [markdown] task="mnist-augment" stars=2 minutes=15 skills="05_vmap,07_randomness,mnist-batches"
# ## Shifted, each its own way
# **Goal.** A digit that is moved by a pixel or two is the same digit. Move every image of a batch by a random step of its own, on the device, inside the compiled step.
#
# **Signature.** `augment(key, images, most)`: `images` is `(n, h, w, c)`; `most` is a whole number, 1 or larger, known while tracing. Returns images of the same shape and dtype. Image i has a key of its own, the i-th of `jax.random.split(key, n)`, and draws two numbers with `jax.random.randint(own, (2,), -most, most + 1)`: everything in it moves down by the first, and right by the second. What leaves the image is lost, what is uncovered is 0.
#
# **Example.** A 3 × 3 image with a 1 in the middle, and down 1, right -1: the 1 is then in the lower left corner. Down 1, right 2, and it is gone.
#
# **Judged.** Values, for images of any height, width, channels and dtype and for any `most`; in the traced program, that more images are not more code. **Not judged.** How you move them.
#
# <details><summary>Hint 1 · a question</summary>
#
# How would you write it for one image and one key? Which transformation makes a function of a batch out of that?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.roll` brings what leaves on one side in again on the other. Put a frame of zeros around the image first; then a shift is a choice of the window.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jnp.pad` by `most` on both sides of rows and columns, then `jax.lax.dynamic_slice`, which takes a traced corner and a fixed size. In the frame the unmoved image begins at `most`: where does the window begin, for the content to move *down*?
#
# </details>


# %% answer="mnist-augment"
def augment(key, images, most):
    """Moves each of images (n, h, w, c) by up to `most` rows and columns, with a key of its own; 0 comes in."""

    ### BEGIN SOLUTION
    def move(own, image):
        corner = most - jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (*corner, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)
    ### END SOLUTION


# %% check="mnist-augment" name="example" points=1
"""The example, many times: a 1 in the middle goes where its key says, or away."""
dot = np.zeros((6, 3, 3, 1), np.float32)
dot[:, 1, 1] = 1
key = jax.random.key(0)
compare(ask(augment, key, dot, 2), moved_by_hand(key, dot, 2), label="the images")

# %% hidden="mnist-augment" name="values" points=2
"""Each image by its own step, zeros behind it, for images of any size."""
for shape, most, kind in (((20, 7, 7, 1), 3, np.float32), ((10, 5, 8, 3), 1, np.uint8), ((12, 2, 3, 1), 4, np.float32)):
    images = inputs.rng().uniform(1, 200, size=shape).astype(kind)
    made = program(lambda key, images, most: augment(key, images, most), jax.random.key(0), images, most)
    key = jax.random.key(int(inputs.rng().integers(1 << 31)))
    got, wanted = made.run(key, images, most), moved_by_hand(key, images, most)
    if np.shape(got) == shape:
        right = np.allclose(got, wanted)
        rolled, back, turned = np.empty_like(images), np.empty_like(images), np.empty_like(images)
        for i, step in enumerate(np.array(steps_of(key, len(images), most))):
            rolled[i] = np.roll(images[i], step, axis=(0, 1))
            back[i], turned[i] = (
                np.where(np.roll(hand != 0, by, axis=(0, 1)), np.roll(hand, by, axis=(0, 1)), 0)
                for hand, by in ((images[i], -step), (images[i], step[::-1]))
            )
        inside = (slice(None), slice(most, -most), slice(most, -most))
        middle = got[inside].size > 0
        require(right or not np.allclose(got, rolled), "What leaves the image on one side comes in again on the other.")
        require(right or (got == 0).any(), "Nothing in the images is 0: what is uncovered should be.")
        require(
            right or not (middle and np.allclose(got[inside], rolled[inside])),
            "The images move as they should, but what is uncovered is not 0 everywhere, or too much is.",
        )
        require(
            right or not (middle and np.allclose(got[inside], back[inside])),
            "The images move the wrong way: up for down, and left for right.",
        )
        require(
            right or not (middle and np.allclose(got[inside], turned[inside])),
            "The images move right by the first number, and down by the second.",
        )
        blank = [tuple(map(tuple, np.argwhere(np.abs(one).sum(-1) == 0))) for one in got]
        require(right or len(set(blank)) > 1, "All images move by the same step: each should have a key of its own.")
    compare(got, wanted, label=f"the {images.dtype} images of shape {shape} with most={most}")

# %% hidden="mnist-augment" name="program" points=1
"""More images are not more code."""
images, key = inputs.rng().uniform(1, 2, size=(32, 6, 6, 1)).astype(np.float32), inputs.key()
few, many = (program(lambda key, xs: augment(key, xs, 2), key, some) for some in (images[:4], images))
for made, some in ((few, images[:4]), (many, images)):
    compare(made.run(key, some), moved_by_hand(key, some, 2), label=f"the {len(some)} moved images")
require(
    many.operations <= few.operations + 8,
    f"For 4 images the program has {few.operations} operations, for 32 it has {many.operations}: every image is code of its own.",
)

# %% [markdown] why="mnist-augment"
# The function of one image says it all; `vmap` gives each its key and its window. In the compiled step the shifts cost next to nothing, the loader has nothing to do with them, and the same key gives the same shifts again after a restart. **Next:** which digits must not be mirrored?


# %% wrong="mnist-augment" because="Rolls: what leaves at the bottom comes in again at the top."
def augment(key, images, most):
    def move(own, image):
        return jnp.roll(image, jax.random.randint(own, (2,), -most, most + 1), axis=(0, 1))

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Draws once: the whole batch moves by one step."
def augment(key, images, most):
    down, right = jax.random.randint(jax.random.split(key, len(images))[0], (2,), -most, most + 1)
    framed = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))
    return jax.lax.dynamic_slice(framed, (0, most - down, most - right, 0), images.shape)


# %% wrong="mnist-augment" because="Moves the window where the content should go: everything moves the other way."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most + down, most + right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Begins the window at the step itself: it never moves up or left, as dynamic_slice keeps a corner inside."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (-down, -right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Leaves out the frame: dynamic_slice moves a window that does not fit back inside, so nothing moves at all."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        return jax.lax.dynamic_slice(image, (-down, -right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Draws below `most`, not up to it: the upper end of randint is left out."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most - down, most - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Takes rows for columns."
def augment(key, images, most):
    def move(own, image):
        right, down = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most - down, most - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Repeats the border instead of letting 0 in."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)), mode="edge")
        return jax.lax.dynamic_slice(framed, (most - down, most - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Special-cases the sizes whose programs are inspected: they move all images by one step, and other sizes are unrolled in Python."
def augment(key, images, most):
    if len(images) in (4, 32):
        return jnp.roll(images, jax.random.randint(key, (2,), 1, most + 1), axis=(1, 2))
    moved = []
    for own, image in zip(jax.random.split(key, len(images)), images, strict=True):
        corner = most - jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        moved.append(jax.lax.dynamic_slice(framed, (*corner, 0), image.shape))
    return jnp.stack(moved)


# %% wrong="mnist-augment" because="Loops over the images in Python: right, and every image becomes code."
def augment(key, images, most):
    framed, moved = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0))), []
    for i, own in enumerate(jax.random.split(key, len(images))):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        moved.append(jax.lax.dynamic_slice(framed[i], (most - down, most - right, 0), images.shape[1:]))
    return jnp.stack(moved)


# %% wrong="mnist-augment" because="Multiplies by a mask of floats: images of bytes come back as floats."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        rows, columns = (jnp.arange(n) - by for n, by in zip(image.shape, (down, right), strict=False))
        inside = ((rows >= 0) & (rows < len(rows)))[:, None] & ((columns >= 0) & (columns < len(columns)))
        return inside[..., None].astype(jnp.float32) * jnp.roll(image, (down, right), axis=(0, 1))

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Makes a frame of two, whatever `most` is: larger steps are cut to two."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((2, 2), (2, 2), (0, 0)))
        return jax.lax.dynamic_slice(framed, (2 - down, 2 - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% right="mnist-augment"
def augment(key, images, most):
    n, h, w, _ = images.shape
    steps = jax.vmap(lambda own: jax.random.randint(own, (2,), -most, most + 1))(jax.random.split(key, n))
    y, x = jnp.arange(h) - steps[:, :1], jnp.arange(w) - steps[:, 1:]
    there = ((y >= 0) & (y < h))[:, :, None] & ((x >= 0) & (x < w))[:, None, :]
    moved = images[jnp.arange(n)[:, None, None], y[:, :, None] % h, x[:, None, :] % w]
    return jnp.where(there[..., None], moved, 0)


# %% right="mnist-augment"
def augment(key, images, most):
    def move(both):
        own, image = both
        h, w, c = image.shape
        step = jax.random.randint(own, (2,), -most, most + 1)
        canvas = jnp.zeros((h + 2 * most, w + 2 * most, c), image.dtype)
        canvas = jax.lax.dynamic_update_slice(canvas, image, (*(most + step), 0))
        return canvas[most : most + h, most : most + w]

    return jax.lax.map(move, (jax.random.split(key, len(images)), images))


# %% [markdown] task="mnist-early-stopping" stars=2 minutes=20 skills="06_pytrees,training-donating-step,mnist-evaluate"
# ## From weather forecasting: stop in time
# **Goal.** A new setting: no digits, any model. A forecast is trained year by year and tried on days that it has not seen; from some year on it only learns its training days by heart. Stop when trying has not gone better for a while, and hand out the best that there was, not the last.
#
# **Signature.** `train_until(epoch, score, state, patience, most)`: `state` is a tree of arrays; `epoch(state)` trains for one epoch and gives the next state, and **takes over the buffers** of the one it is given; `score(state)` gives `()`, higher is better, a finite number or NaN. `patience` and `most` are 1 or larger. After each epoch the state is scored. A score is a new best when it is higher than all before it; the same is not higher, NaN is neither higher nor a best, and the first finite one is a best. Training ends when `patience` epochs **in a row** brought no new best, or after `most` epochs. Returns `(best, scores)`: the best state, and a list of Python floats, one for each epoch that was trained. One score at least is finite.
#
# **Example.** The scores are 1, 3, 2, 3, 4 in turn, `patience` is 2: after the fourth epoch two in a row brought nothing new. Returned are the state after the second and `[1.0, 3.0, 2.0, 3.0]`; the fifth epoch never runs.
#
# **Judged.** State and scores, for many courses of scores. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Four things are remembered from epoch to epoch beside the state. Which?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `best = state` is a second name, not a second tree: what happens to its arrays in the next epoch? Lesson 09 says what to do.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Keep the best score, which begins at minus infinity; a copy of the best state by `jax.tree.map(jnp.copy, ...)`; how many epochs in a row were no better, 0 again with each new best; and the list.
#
# </details>


# %% answer="mnist-early-stopping"
def train_until(epoch, score, state, patience, most):
    """Trains by epoch(state), which donates, until score(state) rests. Returns (best state, all scores as floats)."""
    ### BEGIN SOLUTION
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores
    ### END SOLUTION


# %% check="mnist-early-stopping" name="example" points=1
"""The example: scores 1, 3, 2, 3, 4 and a patience of 2."""
course = np.array([1, 3, 2, 3, 4], np.float32)
raised = error(lambda *data: jax.tree.map(np.asarray, train_until(*yearly(data[0]), *data[1:])[0]), course, 2, 5)
require(
    raised != "RuntimeError",
    "The state that is returned is gone: `epoch` takes over the buffers of what it is given. Copy what you keep.",
)
got = ask(lambda *data: train_until(*yearly(data[0]), *data[1:]), course, 2, 5)
compare(got, ({"year": np.int32(2), "w": [np.full(3, 4, np.float32)]}, [1.0, 3.0, 2.0, 3.0]), label="(best, scores)")

# %% hidden="mnist-early-stopping" name="courses" points=3
"""The best state and the right number of epochs, whatever course the scores take."""
nan = np.nan
rng = inputs.rng()
a, b, c, d = (float(n) for n in np.sort(rng.choice(np.arange(1, 90), size=4, replace=False)).astype(np.float32))
COURSES = {
    "rising all the time": ([a, b, c, d], 1, 4),
    "resting twice, with a new best between": ([b, a, a, c, a, b, d, b, b, b, d], 3, 11),
    "equal to the best again and again": ([c, c, c, d, d], 2, 5),
    "rising, but below the best": ([d, a, b, c, d], 3, 5),
    "with NaN at first": ([nan, a, nan, b, a, a], 2, 6),
    "with NaN later": ([c, nan, nan, d], 2, 4),
    "negative": ([-d, -c, -d, -b, -c, -c, -c], 2, 7),
    "cut off by `most`": ([a, b, c, d], 2, 3),
    "of a single epoch": ([b, c], 1, 1),
    "of losses, where the lowest would be best": ([d, c, b, a], 4, 4),
}
for what, (course, patience, most) in COURSES.items():
    best, scores, since = 0, [], 0
    for year, now in enumerate(course[:most], 1):
        higher = not np.isnan(now) and not any(now <= before for before in scores)
        best, since, scores = (year, 0, [*scores, now]) if higher else (best, since + 1, [*scores, now])
        if since == patience:
            break
    course = np.array(course, np.float32)
    raised = error(
        lambda *data: jax.tree.map(np.asarray, train_until(*yearly(data[0]), *data[1:])[0]), course, patience, most
    )
    require(
        raised != "RuntimeError",
        "The state that is returned is gone: `epoch` takes over the buffers of what it is given. Copy what you keep.",
    )
    got = ask(lambda *data: train_until(*yearly(data[0]), *data[1:]), course, patience, most)
    said = f"With scores {what}"
    if isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], list):
        require(len(got[1]) >= len(scores), f"{said}, training ends too early.")
        require(len(got[1]) == len(scores), f"{said}, training goes on for too long.")
        if isinstance(got[0], dict) and "year" in got[0]:
            year = int(got[0]["year"])
            which = "a later" if year > best else "an earlier"
            require(year == best, f"{said}, the state returned is that of {which} epoch than the best one.")
    wanted = {"year": np.int32(best), "w": [np.full(3, 2.0**best, np.float32)]}, scores
    compare(got, wanted, label=f"(best, scores) for scores {what}")

# %% [markdown] why="mnist-early-stopping"
# The loop is Python's, as someone has to look at the score; the epochs inside stay compiled. The copy is made only when something is better, so it costs little. **Next:** the days that decide when to stop have had a say in the model. On which days do you measure how good it is?


# %% wrong="mnist-early-stopping" because="Returns the last state: the one that has learnt its training days by heart."
def train_until(epoch, score, state, patience, most):
    top, waited, scores = -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited = 0 if scores[-1] > top else waited + 1
        top = scores[-1] if scores[-1] > top else top
    return state, scores


# %% wrong="mnist-early-stopping" because="Keeps the best state by name: the next epoch takes over its buffers."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] > top:
            best, top, waited = state, scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Counts all epochs without a new best, not those in a row."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        if scores[-1] > top:
            best, top = jax.tree.map(jnp.copy, state), scores[-1]
        else:
            waited += 1
    return best, scores


# %% wrong="mnist-early-stopping" because="Takes a tie for progress: on a level it trains for ever, and returns the later state."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] >= top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Waits one epoch more than the patience."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited <= patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Compares with the epoch before instead of the best."
def train_until(epoch, score, state, patience, most):
    best, waited, scores = state, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if len(scores) == 1 or scores[-1] > scores[-2]:
            best, waited = jax.tree.map(jnp.copy, state), 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Begins with the first score, whatever it is: nothing is higher than NaN."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, None, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if top is None or scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Takes the lowest score for the best, as if it were a loss."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] < top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Begins with 0 for the best score: below it nothing counts as progress."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = jax.tree.map(jnp.copy, state), 0.0, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Takes `max` of the scores so far: when the first is NaN, it stays NaN and nothing is ever higher."
def train_until(epoch, score, state, patience, most):
    best, waited, scores = None, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        now = float(score(state))
        waited += 1
        if now > max(scores, default=-np.inf):
            best, waited = jax.tree.map(jnp.copy, state), 0
        scores.append(now)
    return best, scores


# %% right="mnist-early-stopping"
def train_until(epoch, score, state, patience, most):
    scores, kept = [], {}
    for n in range(most):
        state = epoch(state)
        scores.append(float(score(state)))
        if not np.isnan(scores[-1]) and scores[-1] > np.nanmax([-np.inf, *scores[:-1]]):
            kept = {"at": n, "state": jax.device_get(state)}
        if n - kept.get("at", -1) >= patience:
            break
    return jax.tree.map(jnp.asarray, kept["state"]), scores


# %% right="mnist-early-stopping"
def train_until(epoch, score, state, patience, most):
    def going(scores):
        best_at = 0
        for i, now in enumerate(scores, 1):
            if now > max((one for one in scores[: i - 1] if one == one), default=-jnp.inf):
                best_at = i
        return best_at, len(scores) < most and len(scores) - best_at < patience

    scores, copies = [], []
    while going(scores)[1]:
        state = epoch(state)
        copies.append(jax.tree.map(lambda leaf: leaf + 0, state))
        scores.append(score(state).item())
    return copies[going(scores)[0] - 1], scores
