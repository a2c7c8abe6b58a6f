# %% [markdown]
# # 11 · Exercises: MNIST
# Run the setup. In each exercise, fill in the cell, run it, and run the checks below it. Hidden checks run when your work is graded. **Judged** states what they test. Hints open one at a time, so try the question before the nudge.
#
# The digits here are those of scikit-learn in their original size, 8 × 8. A network learns them in a second or two. The core of [the lesson](../../notebooks/11_mnist.ipynb) is enough for all exercises.

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

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")

DIGITS = (load_digits().images / 16).astype(np.float32)[..., None]  # (1797, 8, 8, 1), from 0 to 1
LABELS = load_digits().target.astype(np.int32)  # (1797,)


def fit(model, images, labels, steps=120):
    """Trains an NNX model on images (n, 8, 8, 1), labels (n,), with Adam and 32 examples per step. Returns the model."""
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
    """The model with given parameters, matched by shape. Layers of equal shape get the rows of a stack in order."""
    rows = collections.defaultdict(list)
    for stack in stacks:
        rows[str(stack.shape[1:])] += list(stack)
    whole = {str(stack.shape): stack for stack in stacks}
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    take = lambda at, leaf: jnp.asarray(rows[at].pop(0) if rows[at] else whole.get(at, leaf))
    return nnx.merge(graphdef, jax.tree.map(lambda leaf: take(str(leaf.shape), leaf), params), rest)


def nearest(state, xs, ys, rate=0.1):
    """A step of a small classifier with a centre for each class: state (k, d), xs (B, d), ys (B,) -> state,
    the mean loss () of the batch, its logits (B, k)."""
    logits = -jnp.sum((xs[:, None] - state) ** 2, axis=-1)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, ys).mean()
    return jnp.asarray(state).at[ys].add(rate * (xs - state[ys])), loss, logits


def nearest_by_hand(state, batches):
    """The steps of `nearest` in plain NumPy: the last state, and for each batch its losses (B,) and hits (B,)."""
    state, losses, hits = state.astype(np.float64), [], []
    for i in range(len(batches)):
        xs, ys = batches[i]
        logits = -((xs[:, None] - state) ** 2).sum(-1)
        losses.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ys)), ys])
        hits.append(logits.argmax(1) == ys)
        moves = 0.1 * (xs - state[ys])
        np.add.at(state, ys, moves)
    return state.astype(np.float32), losses, hits


def both_steps(key, n, most):
    """Shifts (n, 2), down and right: each drawn from the key of its image, and all drawn from the key of the batch."""
    draw = lambda own: jax.random.randint(own, (2,), -most, most + 1)
    return jax.vmap(draw)(jax.random.split(key, n)), jax.random.randint(key, (n, 2), -most, most + 1)


both_steps = jax.jit(both_steps, static_argnums=(1, 2))


def steps_of(key, n, most):
    """The shifts (n, 2), down and right, drawn from the keys of n images."""
    return np.asarray(both_steps(key, n, most)[0])


def moved_by_hand(key, images, most):
    """Images (n, h, w, c), each moved by the shift drawn from its key, in plain NumPy. The checks compare with it."""
    return moved_by(steps_of(key, len(images), most), images)


def moved_by(steps, images):
    """Images (n, h, w, c), each moved by its row of steps (n, 2), down and right."""
    result = np.zeros_like(images)
    h, w = images.shape[1:3]
    for i, (down, right) in enumerate(steps):
        for y in range(max(down, 0), min(h, h + down)):
            for x in range(max(right, 0), min(w, w + right)):
                result[i, y, x] = images[i, y - down, x - right]
    return result


def yearly(course):
    """A training with given scores, one per epoch: epoch(state), which donates its argument, score(state), a state."""
    epoch = jax.jit(lambda state: {"year": state["year"] + 1, "w": [state["w"][0] * 2]}, donate_argnums=0)
    return epoch, lambda state: jnp.asarray(course)[state["year"] - 1], {"year": jnp.array(0), "w": [jnp.ones(3)]}


# %% [markdown] task="mnist-batches" stars=1 minutes=8 skills="01_arrays,03_jit"
# ## Batches of one shape
# **Goal.** Make batches for a compiled step from one array of images. All batches contain floats, have an axis for channels and have the same size, so that the step is compiled once. The loop is given. Complete its body.
#
# **Signature.** `batches(images, labels, size, order)` takes images `(n, h, w)` of dtype uint8 and labels `(n,)` of any integer dtype. `order` is `(n,)`, a permutation of the numbers 0 to n-1. `batches` takes the examples in this order and yields pairs of NumPy arrays. The images are `(size, h, w, 1)`, float32, from 0 to 1 (255 becomes 1), and their labels are `(size,)`, int32. Examples at the end that do not fill a batch are left out.
#
# **Example.** There are five images of one pixel, 0, 51, 102, 153 and 255, with the labels 5, 6, 7, 8, 9. With size 2 and the order 4, 0, 3, 1, 2, the first batch contains the pixels 1.0 and 0.0 with the labels 9 and 5. The second contains 0.6 and 0.2 with the labels 8 and 6. The image with pixel 102 is left out.
#
# **Judged.** The values, shapes and dtypes of every batch, that its arrays are NumPy arrays, and the number of batches. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is `images[order[0:2]]`, where `order[0:2]` contains two numbers?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# In NumPy, uint8 divided by a Python number is float64, and the last slice may be shorter. What would each of these do to a compiled step?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Take the part of `order` for this iteration, and `return` if it is too short. Index images and labels with it, convert with `astype`, and add an axis at the end with `[..., None]`.
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
"""The example with five images gives two batches of two."""
images, labels = np.array([0, 51, 102, 153, 255], np.uint8).reshape(5, 1, 1), np.arange(5, 10)
got = ask(lambda *data: [tuple(batch) for batch in batches(*data)], images, labels, 2, np.array([4, 0, 3, 1, 2]))
first = np.float32([1, 0]).reshape(2, 1, 1, 1), np.array([9, 5], np.int32)
second = np.float32([0.6, 0.2]).reshape(2, 1, 1, 1), np.array([8, 6], np.int32)
compare(got, [first, second], label="the list of batches")

# %% hidden="mnist-batches" name="batches" points=2
"""Every batch is correct, and all batches have the same shapes and dtypes."""
for n, size, kind in ((23, 5, np.int64), (12, 4, np.uint8), (7, 1, np.int32), (6, 6, np.int16), (3, 5, np.int32)):
    rng = inputs.rng()
    # Some are dark: the largest pixel is not always 255.
    images = rng.integers(0, 200 if n == 23 else 256, size=(n, 3, 2), dtype=np.uint8)
    labels = rng.integers(0, 10, size=n).astype(kind)
    order = rng.permutation(n)
    got = ask(lambda *data: [tuple(batch) for batch in batches(*data)], images, labels, size, order)
    require(
        all(len(one) == 2 for one in got),
        "A batch is not a pair of images and labels.",
    )
    require(
        all(isinstance(part, np.ndarray) for one in got for part in one),
        "A batch does not consist of NumPy arrays. Loaders make NumPy arrays, and a compiled step accepts them.",
    )
    require(
        len({np.shape(xs) for xs, _ in got}) <= 1,
        f"With {n} examples and size {size}, the batches have different shapes. The step is compiled for each shape.",
    )
    require(len(got) <= n // size, "There are too many batches. Leave out the examples that do not fill a batch.")
    require(len(got) == n // size, "There are too few batches. Every full batch is needed, including the last one.")
    for i, (xs, ys) in enumerate(got):
        chosen = order[i * size : (i + 1) * size]
        if np.shape(xs) == (size, 3, 2, 1) and np.shape(ys) == (size,) and n == 23:
            same = np.allclose(xs[..., 0] * 255, images[chosen], atol=0.5)
            require(
                not same or (ys == labels[chosen]).all(),
                "The images are correct, but the labels belong to other images. Do both follow `order`?",
            )
            require(
                same or not np.allclose(xs[..., 0], images[chosen], atol=0.5),
                "The images are from 0 to 255, but should be from 0 to 1.",
            )
            require(same or (xs % 1 > 0).any(), "The images contain only 0 and 1. What does `//` do?")
            require(
                same or not np.allclose(xs[..., 0] * 255, images[i * size : (i + 1) * size], atol=0.5),
                "The images come in their original order. Use `order`.",
            )
        wanted = (images[chosen].astype(np.float32) / np.float32(255))[..., None], labels[chosen].astype(np.int32)
        compare(xs, wanted[0], label="the images of a batch")
        compare(ys, wanted[1], label="the labels of a batch")

# %% [markdown] why="mnist-batches"
# With one shape and one dtype for all batches, the step is compiled once. A new order in each epoch leaves out different examples. **Next:** an evaluation has to use every test image. What do you do with the last batch?


# %% equivalent="mnist-batches" because="A later start gives a short batch, which is left out anyway."
# dropped edge, range(X, Y, Z) -> range(X, Y - Z + 1, Z): for start in range(0, len(order), size):


# %% wrong="mnist-batches" because="Yields the short batch at the end too. Its shape differs, so the step is compiled again."
def batches(images, labels, size, order):
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Divides before it converts. In NumPy, uint8 divided by a Python number is float64."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None] / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Takes the images in the new order, but the labels in the old one."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / 255, labels[start : start + size].astype(np.int32)


# %% wrong="mnist-batches" because="Divides with //, so every pixel other than 255 becomes 0."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield (images[chosen] // 255)[..., None].astype(np.float32), labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Does not scale the pixels. Values up to 255 make the first updates far too large."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32), labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Puts the channel axis first, as in PyTorch. Flax expects it last."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][:, None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Fills the last batch with examples that were already used, so they count twice."
def batches(images, labels, size, order):
    for start in range(0, len(order), size):
        chosen = np.resize(order[start : start + size], size)
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Takes the examples in their original order and ignores `order`."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        part = slice(start, start + size)
        yield images[part][..., None].astype(np.float32) / 255, labels[part].astype(np.int32)


# %% wrong="mnist-batches" because="Makes JAX arrays. Loading then uses the device, and does not work in worker processes."
def batches(images, labels, size, order):
    images, labels = jnp.asarray(images), jnp.asarray(labels, jnp.int32)
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(jnp.float32) / 255, labels[chosen]


# %% wrong="mnist-batches" because="Divides by the largest pixel of the images, which is less than 255 if the images are dark."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / images.max(), labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Leaves out the last batch even if it is full."
def batches(images, labels, size, order):
    for start in range(0, len(order) - size, size):
        chosen = order[start : start + size]
        yield images[chosen][..., None].astype(np.float32) / 255, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Exchanges height and width in a reshape, which scrambles images that are not square."
def batches(images, labels, size, order):
    _, width, height = images.shape
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        xs = images[chosen].reshape(size, height, width, 1).astype(np.float32) / np.float32(255)
        yield xs, labels[chosen].astype(np.int32)


# %% wrong="mnist-batches" because="Drops a short batch only if it follows others, so fewer examples than `size` still make one."
def batches(images, labels, size, order):
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        if start > 0 and len(chosen) < size:
            break
        xs = images[chosen].astype(np.float32) / np.float32(255)
        yield np.expand_dims(xs, axis=-1), labels[chosen].astype(np.int32)


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
# ## Metrics without waiting
# **Goal.** Train on some batches and return the mean loss and the accuracy. Do not read any number in between, so that Python never waits for the device. You write by hand what `nnx.MultiMetric` does.
#
# **Signature.** `train_steps(step, state, batches)`. `step(state, xs, ys)` returns `(state, loss, logits)`, which are the new state, the **mean** loss `()` of this batch, and its logits `(B, k)`. `batches` is a list of one or more pairs `(xs, ys)`, whose sizes B may differ. Return `(state, {"loss": ..., "accuracy": ...})`. The state is that after the last batch. The loss is the mean over all **examples** of all batches. The accuracy is the fraction of examples whose largest logit is at the index of their label. Both are float32 of shape `()`.
#
# **Example.** `nearest` from the setup starts with the centres `[[0], [1]]`. The first batch is `xs = [[1], [0], [1]]`, `ys = [0, 0, 1]`, and the second is `xs = [[2]]`, `ys = [1]`. Three of four predictions are correct, so the accuracy is 0.75. The losses of the batches are about 0.65 and 0.07, and the mean over all four examples is about 0.50.
#
# **Judged.** The values, for batches of different sizes and for any `step` and loss. The whole function can be traced, so no array may be converted to a Python or NumPy number, in the loop or after it. Nothing calls `block_until_ready`. **Not judged.** Whether you add the values up or collect them.
#
# <details><summary>Hint 1 · a question</summary>
#
# A batch of 100 examples has the mean loss 1, and a batch of 10 has the mean loss 2. What is the mean over all 110?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A sum of JAX arrays is a JAX array, and Python does not wait for it. It waits in `float`, `int`, `np.asarray` and `.item()`. The size `len(ys)` is a Python number and known at once.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Add up three totals: the losses times the sizes, the correct predictions (`jnp.argmax` along the last axis, compared with the labels), and the sizes. Divide after the loop.
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
"""The example with a batch of three and a batch of one."""
middles = np.array([[0], [1]], np.float32)
parts = [(np.float32([[1], [0], [1]]), np.int32([0, 0, 1])), (np.float32([[2]]), np.int32([1]))]
_, told = ask(lambda *data: train_steps(nearest, *data), middles, parts)
_, losses, _ = nearest_by_hand(middles, parts)
totals = {"loss": np.float32(np.concatenate(losses).mean()), "accuracy": np.float32(0.75)}
compare(told, totals, label="the totals")

# %% hidden="mnist-metrics-on-device" name="values" points=2
"""State, loss and accuracy over all examples are correct for batches of different sizes."""


def draw(sizes):
    """Batches whose accuracy differs when each is predicted from the state after its own step."""
    rng = inputs.rng()
    while True:
        middles = rng.normal(size=(4, 3)).astype(np.float32)
        ys = [rng.integers(0, 4, size=size).astype(np.int32) for size in sizes]
        parts = [((middles[y] + 0.7 * rng.normal(size=(len(y), 3))).astype(np.float32), y) for y in ys]
        state, before, after = middles, 0, 0
        for part in parts:
            state, _, hits = nearest_by_hand(state, [part])
            before, after = before + np.sum(hits[0]), after + np.sum(nearest_by_hand(state, [part])[2][0])
        if before != after:
            return middles, parts


def probe_steps(middles, parts, times):
    """Steps whose loss is `times` the cross entropy of their logits."""

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
        require(not made_up, "The loss is the cross entropy of the logits. Use the loss that `step` returns.")
    totals = {
        "loss": np.float32(np.concatenate(losses).mean()),
        "accuracy": np.float32(np.concatenate(hits).mean()),
    }
    if isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], dict) and set(got[1]) == set(totals):
        found = got[1]
        mistakes = {
            "This is the mean of the batch means, in which a batch of 9 counts as much as one of 40.": [
                np.mean([a.mean() for a in part]) for part in (losses, hits)
            ],
            "Only the last batch counts.": [part[-1].mean() for part in (losses, hits)],
            "The batch means are added up and divided by the number of examples, which divides twice.": [
                np.sum([a.mean() for a in losses]) / sum(sizes),
                np.nan,
            ],
            "This is a sum over the batches, not a mean over the examples.": [
                np.sum([a.mean() for a in part]) for part in (losses, hits)
            ],
        }
        for said, values in mistakes.items():
            for (name, right), value in zip(totals.items(), values, strict=True):
                near = np.shape(found[name]) == () and np.isclose(found[name], value, rtol=1e-4)
                require(not near or np.isclose(right, value, rtol=1e-3), f"{name}: {said[0].lower()}{said[1:]}")
        still = np.shape(got[0]) == middles.shape and np.allclose(got[0], middles)
        require(not still, "The returned state is the one that was passed. Each step returns a new one.")
        alone = np.shape(got[0]) == middles.shape and np.allclose(got[0], nearest_by_hand(middles, parts[-1:])[0])
        require(
            len(parts) == 1 or not alone,
            "Only the last step has changed the state. Does each step start from the state of the step before?",
        )
    compare(got, (state, totals), label=f"(state, totals) of {len(parts)} batches")

# %% hidden="mnist-metrics-on-device" name="traced" points=2
"""The whole loop can be traced, so it reads no value, and the program computes the steps."""


def probe_loop(middles, parts):
    return jax.jit(lambda middles, parts: train_steps(nearest, middles, parts))(middles, parts)


rng = inputs.rng()
middles = rng.normal(size=(3, 2)).astype(np.float32)
parts = [(rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, 3, size=n).astype(np.int32)) for n in (8, 5)]
raised = error(probe_loop, middles, parts)
require(
    raised is None or not ("Tracer" in raised or "Concretization" in raised),
    "The function cannot be traced, because it reads a value. Python would wait for the device there. Does it use `float`, "
    "`int`, an `if` on a value, or NumPy?",
)
got = program(probe_loop, middles, parts).run(middles, parts)
require(isinstance(got, tuple) and len(got) == 2, "The program does not return a pair (state, totals).")
compare(got[0], nearest_by_hand(middles, parts)[0], label="the state")


def probe_waits(middles, parts):
    """How often the loop waits for an array. A tracer has the same method, and nothing to wait for."""
    waits = []
    jax.core.Tracer.block_until_ready = lambda tracer: waits.append(1) or tracer
    try:
        jax.eval_shape(lambda middles, parts: train_steps(nearest, middles, parts), middles, parts)
    finally:
        del jax.core.Tracer.block_until_ready
    return len(waits)


require(
    ask(probe_waits, middles, parts) == 0,
    "The loop calls `block_until_ready`, so Python waits for the device. Nothing in the loop needs the values.",
)

# %% [markdown] why="mnist-metrics-on-device"
# The totals are JAX arrays, so Python submits one step after the other and does not wait. It waits once, when you print the totals. The function can be traced, which proves that it reads no value, because a tracer has none. **Next:** where would you put a progress bar?


# %% wrong="mnist-metrics-on-device" because="Calls float in every step. Python waits for the device, and then the device waits for Python."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total += float(loss) * len(ys)
        hits += int((logits.argmax(-1) == ys).sum())
        count += len(ys)
    return state, {"loss": jnp.float32(total / count), "accuracy": jnp.float32(hits / count)}


# %% wrong="mnist-metrics-on-device" because="Counts the correct predictions with NumPy, which waits for the logits."
def train_steps(step, state, batches):
    total, hits, count = 0, 0, 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total, count = total + loss * len(ys), count + len(ys)
        hits += np.sum(np.argmax(np.asarray(logits), axis=-1) == np.asarray(ys))
    return state, {"loss": total / count, "accuracy": jnp.float32(hits / count)}


# %% wrong="mnist-metrics-on-device" because="Takes the mean of the batch means, in which a small batch counts as much as a large one."
def train_steps(step, state, batches):
    losses, hits = [], []
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        losses.append(loss)
        hits.append((logits.argmax(-1) == ys).mean())
    return state, {"loss": jnp.stack(losses).mean(), "accuracy": jnp.stack(hits).mean()}


# %% wrong="mnist-metrics-on-device" because="Returns the metrics of the last batch only."
def train_steps(step, state, batches):
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
    return state, {"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == ys)}


# %% wrong="mnist-metrics-on-device" because="Takes the largest logit along the batch instead of along the classes."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total, count = total + loss * len(ys), count + len(ys)
        hits = hits + jnp.sum(logits.argmax(0)[ys] == ys)
    return state, {"loss": total / count, "accuracy": hits / count}


# %% wrong="mnist-metrics-on-device" because="Starts every step from the state that was passed."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        new, loss, logits = step(state, xs, ys)
        total, count = total + loss * len(ys), count + len(ys)
        hits = hits + jnp.sum(logits.argmax(-1) == ys)
    return new, {"loss": total / count, "accuracy": hits / count}


# %% wrong="mnist-metrics-on-device" because="Adds up means and divides by the number of examples, so the loss is too small by a factor of the batch size."
def train_steps(step, state, batches):
    total = hits = count = 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total, count = total + loss, count + len(ys)
        hits = hits + jnp.sum(logits.argmax(-1) == ys)
    return state, {"loss": total / count, "accuracy": hits / count}


# %% wrong="mnist-metrics-on-device" because="Computes the cross entropy of the logits. The loss that `step` returns may be a different one."
def train_steps(step, state, batches):
    losses, hits = [], []
    for xs, ys in batches:
        state, _, logits = step(state, xs, ys)
        losses.append(optax.softmax_cross_entropy_with_integer_labels(logits, ys))
        hits.append(jnp.argmax(logits, axis=-1) == ys)
    return state, {"loss": jnp.concatenate(losses).mean(), "accuracy": jnp.concatenate(hits).mean()}


# %% wrong="mnist-metrics-on-device" because="Computes a running mean that is weighted by the size of the previous batch, not of all previous batches."
def train_steps(step, state, batches):
    mean_loss, accuracy, before = jnp.float32(0), jnp.float32(0), 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        share, size = jnp.mean(jnp.argmax(logits, axis=-1) == ys), len(ys)
        mean_loss = (mean_loss * before + loss * size) / (before + size)
        accuracy = (accuracy * before + share * size) / (before + size)
        before = size
    return state, {"loss": mean_loss, "accuracy": accuracy}


# %% wrong="mnist-metrics-on-device" because="Converts the totals to NumPy numbers at the end. Python waits there, and the function cannot be traced."
def train_steps(step, state, batches):
    total, hits, count = 0.0, 0, 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total += loss * len(ys)
        hits += jnp.sum(logits.argmax(axis=-1) == ys)
        count += len(ys)
    return state, {"loss": np.float32(total / count), "accuracy": np.float32(hits / count)}


# %% wrong="mnist-metrics-on-device" because="Calls block_until_ready in every iteration, so Python waits for each step."
def train_steps(step, state, batches):
    total, hits, seen = jnp.float32(0), jnp.float32(0), 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        total = total + loss * len(ys)
        hits = hits + jnp.sum(jnp.argmax(logits, axis=-1) == ys)
        seen += len(ys)
        state, total, hits = jax.block_until_ready((state, total, hits))
    return state, {"loss": total / seen, "accuracy": hits / seen}


# %% wrong="mnist-metrics-on-device" because="Calls float in every step. Python waits for the device, and then the device waits for Python."
def train_steps(step, state, batches):
    loss_sum, correct, count = 0.0, 0, 0
    for xs, ys in batches:
        state, loss, logits = step(state, xs, ys)
        loss_sum += float(loss) * len(ys)
        correct += int((jnp.argmax(logits, -1) == ys).sum())
        count += len(ys)
    return state, {"loss": jnp.float32(loss_sum / count), "accuracy": jnp.float32(correct / count)}


# %% wrong="mnist-metrics-on-device" because="Runs the step a second time to get the logits, which then come from the new state."
def train_steps(step, state, batches):
    loss_sum = correct = jnp.float32(0)
    for xs, ys in batches:
        state, loss, _ = step(state, xs, ys)
        _, _, logits = step(state, xs, ys)
        loss_sum += loss * len(ys)
        correct += jnp.sum(jnp.argmax(logits, -1) == ys)
    count = sum(len(ys) for _, ys in batches)
    return state, {"loss": loss_sum / count, "accuracy": correct / count}


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
# **Goal.** Training may drop the last batch, but an evaluation may not. Evaluate a compiled model on *all* images in batches of one size, so that it is not compiled again for the last images.
#
# **Signature.** `evaluate(predict, images, labels, size)`. `predict` takes **exactly `size`** images `(size, ...)` and returns logits `(size, k)`. `images` is `(n, ...)` and `labels` is `(n,)`, both NumPy arrays, with n ≥ 1. Return `{"loss": ..., "accuracy": ...}`, both float32 of shape `()`. Over the n examples, the loss is the mean cross entropy (`optax.softmax_cross_entropy_with_integer_labels`), and the accuracy is the fraction of examples whose largest logit (`jnp.argmax`) is at the index of their label.
#
# **Example.** For n = 5 and size 2, `predict` is called three times. In the last call, one of the two images is padding. If all logits are 0 and there are 10 classes, the loss is log 10. The largest logit is then at 0, the first index, so the accuracy is the fraction of labels that are 0.
#
# **Judged.** The values for every n, including n smaller than `size`, and the shapes that `predict` receives. The results of `predict` for your padding must not affect the metrics, **even if they are NaN**. A NaN for a *real* image must make the loss NaN. **Not judged.** What you pad with.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many images are missing in the last batch? Which kind of array can mark the rows of a batch that are real?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Use a mask of booleans. Multiplying by it is not enough, because 0 times NaN is NaN. Which function of lesson 04 selects values instead?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The mask is `np.arange(size) < number of real rows`. Append zeros to images and labels. Add up `jnp.where(mask, loss of each row, 0)` and the masked correct predictions, and divide both by n.
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
"""The example with five images, two at a time, and logits that are all 0."""


def probe_example(images, labels):
    met = []
    predict = lambda xs: met.append(xs.shape) or jnp.zeros((2, 10))
    return evaluate(predict, images, labels, 2), met


got, met = ask(probe_example, np.ones((5, 3), np.float32), np.int32([0, 4, 0, 7, 7]))
require(met == [(2, 3)] * 3, f"`predict` received the shapes {met}. It should receive (2, 3) three times.")
compare(got, {"loss": np.float32(np.log(10)), "accuracy": np.float32(0.4)}, label="the result")

# %% hidden="mnist-evaluate" name="values" points=2
"""For any number of images, each image counts once and the padding does not count."""


def probe_linear(images, labels, weights, size):
    return evaluate(lambda xs: jnp.reshape(xs, (size, -1)) @ weights + jnp.arange(4.0), images, labels, size)


for n, size in ((7, 3), (8, 4), (3, 8), (9, 1)):
    rng = inputs.rng()
    images, weights = rng.normal(size=(n, 2, 3)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)
    labels = (images.reshape(n, 6) @ weights + np.arange(4)).argmax(1).astype(np.int32)
    missed = rng.integers(n)
    labels[missed] = 3 - labels[missed]  # one prediction is always wrong
    logits = images.reshape(n, 6).astype(np.float64) @ weights + np.arange(4)
    losses, hits = np.log(np.exp(logits).sum(1)) - logits[np.arange(n), labels], logits.argmax(1) == labels
    raised = error(probe_linear, images, labels, weights, size)
    require(
        raised is None,
        f"With {n} images and size {size}, `predict` raises an error. Pass exactly {size} images in each call.",
    )
    got = ask(probe_linear, images, labels, weights, size)
    wanted = {"loss": np.float32(losses.mean()), "accuracy": np.float32(hits.mean())}
    if (n, size) == (7, 3) and isinstance(got, dict) and np.shape(got.get("loss")) == ():
        others = {
            "The last batch is left out. An evaluation counts every image.": losses[:6].mean(),
            "The padding is counted too, as images with the label 0.": (
                losses.sum() + 2 * np.log(np.exp(np.arange(4)).sum())
            )
            / 9,
            "This is the mean of the batch means, in which the last image counts as much as three.": np.mean(
                [losses[:3].mean(), losses[3:6].mean(), losses[6]]
            ),
            "The sum of the losses is divided by the number of rows with padding, not by the number of images.": losses.sum()
            / 9,
        }
        for said, other in others.items():
            require(np.isclose(other, wanted["loss"], rtol=1e-3) or not np.isclose(got["loss"], other, rtol=1e-4), said)
    compare(got, wanted, label=f"the result for {n} images in batches of {size}")

# %% hidden="mnist-evaluate" name="padding" points=1
"""A NaN for the padding does not affect the result, and a NaN for a real image does."""


def probe_norm(images, labels, weights, sound):
    """A model that returns NaN for every row except the `sound` images, wherever the padding is."""
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
require(calls <= 2, f"For 6 images in batches of 4, `predict` is called {calls} times. Two calls are enough.")
if isinstance(got, dict) and np.shape(got.get("loss")) == ():
    require(
        not np.isnan(got["loss"]), "The model returns NaN for the padding, and the loss is NaN. What is 0 times NaN?"
    )
compare(got, wanted, label="the result")
broken = ask(probe_norm, images, labels, weights, np.delete(images, 3, axis=0))[0]["loss"]
require(
    np.isnan(broken),
    "The model returns NaN for a real image, but the loss is a number, which hides a broken model. Leave out rows by "
    "their position, not by their values.",
)

# %% hidden="mnist-evaluate" name="one-shape" points=1
"""The model receives one shape only, and is not called more often than needed."""


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
        f"With {n} images and size {size}, the model receives inputs other than ({size}, 2, 2, 1), float32. Each other shape or "
        "dtype compiles it again.",
    )
    require(
        len(met) == -(-n // size),
        f"With {n} images and size {size}, the model is called {len(met)} times instead of {-(-n // size)}.",
    )

# %% [markdown] why="mnist-evaluate"
# Padding gives all batches the same shape, and the mask keeps the padding out of the sums. `where` excludes a NaN, and a product does not. **Next:** on eight devices, each batch is partitioned into eight shards. What must `size` be then?


# %% equivalent="mnist-evaluate" because="A comparison is never NaN, so its product with the mask is the same."
# product for where, sum(X, where=Y) -> sum(X * Y): hits = hits + jnp.sum(jnp.argmax(logits, axis=-1) == ys, where=real)


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


# %% wrong="mnist-evaluate" because="Passes a shorter last batch. Its shape differs, so the model is compiled again."
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


# %% wrong="mnist-evaluate" because="Multiplies the losses by the mask, but 0 times NaN is NaN."
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    mask = (np.arange(len(labels)) < n).astype(np.float32)
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": (losses * mask).sum() / n, "accuracy": ((logits.argmax(-1) == labels) * mask).sum() / n}


# %% wrong="mnist-evaluate" because="Multiplies the losses by the mask, but 0 times NaN is NaN."
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    mask = np.arange(len(labels)) < n
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": jnp.sum(losses * mask) / n, "accuracy": jnp.sum((logits.argmax(-1) == labels) & mask) / n}


# %% wrong="mnist-evaluate" because="Pads with the first images, but there are too few of them when n is much smaller than `size`."
def evaluate(predict, images, labels, size):
    n, missing = len(images), -len(images) % size
    images = np.concatenate([images, images[:missing]])
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, n, size)])[:n]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% wrong="mnist-evaluate" because="Leaves out every NaN, which hides that the model fails on real images."
def evaluate(predict, images, labels, size):
    n, more = len(labels), -len(labels) % size
    images = np.concatenate([images, np.zeros((more, *images.shape[1:]), images.dtype)])
    labels = np.concatenate([labels, np.zeros(more, labels.dtype)])
    mask = np.arange(len(labels)) < n
    logits = jnp.concatenate([predict(images[i : i + size]) for i in range(0, len(labels), size)])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": jnp.nansum(losses * mask) / n, "accuracy": ((logits.argmax(-1) == labels) & mask).sum() / n}


# %% wrong="mnist-evaluate" because="Takes the mean of the batch means, in which the last few images count as much as a whole batch."
def evaluate(predict, images, labels, size):
    losses, hits = [], []
    for i in range(0, len(labels), size):
        xs, ys = images[i : i + size], labels[i : i + size]
        logits = predict(np.resize(xs, (size, *xs.shape[1:])))[: len(ys)]
        losses.append(optax.softmax_cross_entropy_with_integer_labels(logits, ys).mean())
        hits.append(jnp.mean(logits.argmax(-1) == ys))
    return {"loss": jnp.stack(losses).mean(), "accuracy": jnp.stack(hits).mean()}


# %% wrong="mnist-evaluate" because="Masks the padding in the sums, but divides by the number of all rows."
def evaluate(predict, images, labels, size):
    losses, hits = [], []
    for i in range(0, len(labels), size):
        xs, ys = images[i : i + size], labels[i : i + size]
        mask = jnp.arange(size) < len(ys)
        logits, ys = predict(np.resize(xs, (size, *xs.shape[1:]))), np.resize(ys, size)
        losses.append(jnp.where(mask, optax.softmax_cross_entropy_with_integer_labels(logits, ys), 0))
        hits.append(mask & (logits.argmax(-1) == ys))
    return {"loss": jnp.concatenate(losses).mean(), "accuracy": jnp.concatenate(hits).mean()}


# %% wrong="mnist-evaluate" because="Evaluates each image in a batch of its own copies. The result is correct, but costs `size` times the work."
def evaluate(predict, images, labels, size):
    logits = jnp.stack([predict(np.repeat(image[None], size, axis=0))[0] for image in images])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return {"loss": losses.mean(), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


# %% wrong="mnist-evaluate" because="Computes the padding as size - n % size, which is a whole batch if size divides n."
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


# %% wrong="mnist-evaluate" because="Pads with zeros in another dtype than the images have."
def evaluate(predict, images, labels, size):
    n, loss, hits = len(labels), jnp.float32(0), jnp.float32(0)
    for start in range(0, n, size):
        xs, ys = images[start : start + size], labels[start : start + size]
        real = np.arange(size) < len(ys)
        if len(ys) < size:
            missing = size - len(ys)
            xs = np.concatenate([xs, np.zeros((missing, *images.shape[1:]))])
            ys = np.concatenate([ys, np.zeros(missing, labels.dtype)])
        logits = predict(xs)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, ys)
        loss += jnp.sum(jnp.where(real, each, 0))
        hits += jnp.sum(jnp.where(real, jnp.argmax(logits, axis=-1) == ys, False))
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
# **Goal.** Write a convolutional network whose depth is an argument. It is then trained on real digits.
#
# **Signature.** `CNN(channels, blocks, *, rngs)` takes two integers and an `nnx.Rngs`, from which **all** weights are drawn. Called with images `(n, 8, 8, 1)`, it returns logits `(n, 10)`. Its layers are:
#
# - a 3 × 3 convolution with stride 2 from one channel to `channels`, then relu, with the result `(n, 4, 4, channels)`;
# - `blocks` blocks, each with its own 3 × 3 convolution. A block returns its input **plus** the relu of the convolution of its input. Unlike in the lesson, the relu is not scaled;
# - a `reshape` that flattens each image, and one linear layer to 10 numbers, without an activation.
#
# All layers have biases, and all convolutions have the default padding of `nnx.Conv`.
#
# **Example.** `CNN(8, 2, rngs=nnx.Rngs(0))` has 72 + 8 parameters in the first convolution, 576 + 8 in each block, and 1,280 + 10 in the last layer, which is 2,538 in total.
#
# **Judged.** The parameters, either as separate arrays or with those of all blocks stacked along a first axis. The logits for given parameters, computed by a compiled call. The accuracy on unseen digits after 120 steps of `fit` from the setup. **Not judged.** The names of the layers.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many numbers does one image consist of when it reaches the linear layer?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# NNX treats a plain list as static and rejects modules in it, so use `nnx.List`. A layer is `nnx.Conv(inputs, outputs, (3, 3), rngs=rngs)`, with `strides=2` for the first one.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In `__call__`, keep the features in one variable. For each block, add the relu of the block's convolution to it. Then `reshape(len(images), -1)`. The linear layer has 16 times `channels` inputs.
#
# </details>


# %% answer="mnist-cnn" timeout=30
class CNN(nnx.Module):
    """Images (n, 8, 8, 1) -> logits (n, 10), with `blocks` residual convolutions of `channels` channels."""

    ### BEGIN SOLUTION
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List(nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks))
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return self.last(x.reshape(len(images), -1))

    ### END SOLUTION


# %% check="mnist-cnn" name="example" points=1
"""The example has 2,538 parameters and returns ten logits for each image."""


def probe_sizes(images):
    def both(images):
        model = CNN(8, 2, rngs=nnx.Rngs(0))
        return model(images), jax.tree.leaves(nnx.state(model, nnx.Param))

    return jax.eval_shape(both, images)  # shapes, and nothing is computed


logits, leaves = ask(probe_sizes, DIGITS[:3])
require(logits.shape == (3, 10), f"For three images, the logits have shape {logits.shape}, but should have (3, 10).")
count = sum(leaf.size for leaf in leaves)
require(count == 2538, f"CNN(8, 2) has {count:,} parameters, but should have 2,538.")

# %% hidden="mnist-cnn" name="parameters" points=1
"""Every layer has its own parameters, drawn from `rngs`."""


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
        f"With {channels} channels and {blocks} blocks, {found[shape]} arrays of parameters have shape {shape}. There should be {times}.",
    )
more = sorted(set(found) - set(wanted))
require(not more, f"With {channels} channels and {blocks} blocks, there are parameters of other shapes: {more}.")
require(all(np.isfinite(row).all() for row in (*rows, *other_rows)), "Some parameters are not finite.")
kernels = [row for row in rows if np.shape(row) == one]
require(
    all((one != other).any() for i, one in enumerate(kernels) for other in kernels[:i]),
    "Two blocks have the same weights. Draw all weights from `rngs`.",
)
require(
    all((one != other).any() for one, other in zip(rows, other_rows, strict=True) if np.ndim(one) > 1),
    "Two models with different `rngs` have equal weights. A layer does not draw from the `rngs` that was passed.",
)

# %% hidden="mnist-cnn" name="logits" points=2
"""The logits are correct for given parameters, with every relu and sum in its place."""


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
            "No block adds its input. This is a plain network, not a residual one.": lambda flow, new: relu(new),
            "Each block adds its relu divided by the number of blocks, as in the lesson. Add all of it here.": (
                lambda flow, new: flow + relu(new) / blocks
            ),
            "The relu is applied to the sum. Add the relu to the input instead.": lambda flow, new: relu(flow + new),
        }.items():
            require(not any(near(by_hand(order, block)) for order in orders), said)
        same = any(near(by_hand([i] * blocks, right)) for i in range(blocks))
        require(not same, "The convolution of one block is used in all blocks.")
        require(
            not (np.allclose(got.sum(1), 1, atol=1e-3) or np.allclose(np.exp(got).sum(1), 1, atol=1e-3)),
            "These are probabilities. The loss takes logits and computes the softmax itself.",
        )
    compare(got, wanted, rtol=1e-3, atol=1e-3, label=f"the logits of a network with {blocks} blocks")

# %% hidden="mnist-cnn" name="learns" points=1
"""After 120 steps, the network classifies unseen digits."""


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
    share > 0.85,
    f"The accuracy on unseen digits is {share:.0%}. More than 85% is required, and about 95% is usual here.",
)
scores = np.asarray(logits, np.float64) - np.max(logits, axis=1, keepdims=True)
losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(test)), LABELS[test]]
require(
    losses.mean() < 1,
    f"The cross-entropy on unseen digits is {losses.mean():.1f}. Less than 1 is required, and about 0.2 is usual here. "
    "Logits that are limited to a small range keep it high.",
)

# %% [markdown] why="mnist-cnn"
# Each block adds to its input, so the gradient also flows through the additions to the first layer. This helps to train networks with many blocks. **Next:** set `blocks` to 30 and look at the first loss. How does the scale in the lesson's block help?


# %% wrong="mnist-cnn" because="No sum: every block replaces its input, and the gradient has no direct path to the first layers."
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


# %% wrong="mnist-cnn" because="Scales each relu, as in the lesson. The task requires all of it."
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


# %% wrong="mnist-cnn" because="Keeps the blocks in a plain list. NNX treats a list as static and rejects modules in it."
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


# %% wrong="mnist-cnn" because="Creates one convolution and uses it in every block. The depth is correct, but parameters are missing."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.block, self.depth = nnx.Conv(channels, channels, (3, 3), rngs=rngs), blocks
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = jax.nn.relu(self.first(images))
        for _ in range(self.depth):
            x = x + jax.nn.relu(self.block(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Creates a convolution for every block, but uses the first one in all of them."
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


# %% wrong="mnist-cnn" because="Flattens with the channels first, as in PyTorch, so the linear layer receives the numbers in a different order."
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


# %% wrong="mnist-cnn" because="Ends with a softmax. The loss takes logits and computes the softmax itself."
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


# %% wrong="mnist-cnn" because="Applies the relu to the sum, as the first residual networks did. The input should be added unchanged."
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


# %% wrong="mnist-cnn" because="Creates its own `nnx.Rngs`, so all models have the same weights and all blocks are equal."
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


# %% wrong="mnist-cnn" because="Forgets the stride, so each channel has 64 numbers instead of 16."
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


# %% wrong="mnist-cnn" because="Ends with log_softmax. The predictions are the same, but these are not the logits of the linear layer."
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


# %% wrong="mnist-cnn" because="Clones one block, so all blocks start with the same weights."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        pattern = nnx.Conv(channels, channels, (3, 3), rngs=rngs)
        self.inner = nnx.List([nnx.clone(pattern) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.first(images))
        for conv in self.inner:
            x = x + nnx.relu(conv(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Adds the input of the whole stack to every block instead of the input of the block."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.inner = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        came_in = nnx.relu(self.first(images))
        x = came_in
        for conv in self.inner:
            x = came_in + nnx.relu(conv(x))
        return self.last(x.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Applies the relu before the convolution of a block, as later residual networks do. The task adds the relu of the convolution."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List(nnx.Conv(channels, channels, (3, 3), rngs=rngs) for _ in range(blocks))
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        flow = jax.nn.relu(self.first(images))
        for block in self.blocks:
            flow = flow + block(jax.nn.relu(flow))
        return self.last(flow.reshape(len(images), -1))


# %% wrong="mnist-cnn" because="Creates an `nnx.Rngs` with the same seed for each block, so all blocks start with the same weights."
class CNN(nnx.Module):
    def __init__(self, channels, blocks, *, rngs):
        self.first = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([nnx.Conv(channels, channels, (3, 3), rngs=nnx.Rngs(0)) for _ in range(blocks)])
        self.last = nnx.Linear(16 * channels, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.first(images))
        for block in self.blocks:
            x = x + nnx.relu(block(x))
        return self.last(x.reshape(len(images), -1))


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
# ## A random shift for each image
# **Goal.** A digit that is moved by a pixel or two is the same digit. Move every image of a batch by its own random shift. The function can then augment images on the device, inside a compiled step.
#
# **Signature.** `augment(key, images, most)` takes images `(n, h, w, c)`. `most` is a Python integer, 1 or larger. Return images of the same shape and dtype. Image i has its own key, `own = jax.random.split(key, n)[i]`, which draws two numbers with `jax.random.randint(own, (2,), -most, most + 1)`. The content of the image moves down by the first number and right by the second. Pixels that leave the image are lost, and uncovered pixels are 0.
#
# **Example.** A 3 × 3 image has a 1 in the middle. The numbers 1 and -1 move it to the lower left corner. The numbers 1 and 2 move it out of the image.
#
# **Judged.** The values, for images of any height, width, number of channels and dtype, and for any `most`. The size of the traced program does not depend on the number of images. **Not judged.** How you move the images. `jax.lax.dynamic_slice(x, corner, sizes)` copies a window of fixed sizes, whose corner may be traced.
#
# <details><summary>Hint 1 · a question</summary>
#
# How would you write the function for one image and one key? Which transformation makes a function of a batch from it?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# With `jnp.roll`, pixels that leave on one side enter on the other. Instead, put a frame of zeros around the image and cut out a window.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `jnp.pad` by `most` on both sides of rows and columns, then `jax.lax.dynamic_slice`, which takes a traced corner and a fixed size. Without a shift, the window begins at `most`. Where does it begin if the content moves *down*?
#
# </details>


# %% answer="mnist-augment"
def augment(key, images, most):
    """Moves each of images (n, h, w, c) by up to `most` rows and columns, with its own key. Uncovered pixels are 0."""

    ### BEGIN SOLUTION
    def move(own, image):
        corner = most - jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (*corner, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)
    ### END SOLUTION


# %% check="mnist-augment" name="example" points=1
"""Copies of an image with a 1 in the middle move by the shifts of their keys."""
dot = np.zeros((6, 3, 3, 1), np.float32)
dot[:, 1, 1] = 1
key = jax.random.key(0)
compare(ask(augment, key, dot, 2), moved_by_hand(key, dot, 2), label="the images")

# %% hidden="mnist-augment" name="values" points=2
"""Each image moves by its own shift and is filled with zeros, for images of any size."""
for shape, most, kind in (((20, 7, 7, 1), 3, np.float32), ((10, 5, 8, 3), 1, np.uint8), ((12, 2, 3, 1), 4, np.float32)):
    images = inputs.rng().uniform(1, 200, size=shape).astype(kind)
    made = program(lambda key, images, most: augment(key, images, most), jax.random.key(0), images, most)
    key = jax.random.key(int(inputs.rng().integers(1 << 31)))
    got, wanted = made.run(key, images, most), moved_by_hand(key, images, most)
    if np.shape(got) == shape:
        right = np.allclose(got, wanted)
        rolled, back, turned = np.empty_like(images), np.empty_like(images), np.empty_like(images)
        for i, step in enumerate(steps_of(key, len(images), most)):
            rolled[i] = np.roll(images[i], step, axis=(0, 1))
            back[i], turned[i] = (
                np.where(np.roll(hand != 0, by, axis=(0, 1)), np.roll(hand, by, axis=(0, 1)), 0)
                for hand, by in ((images[i], -step), (images[i], step[::-1]))
            )
        inside = (slice(None), slice(most, -most), slice(most, -most))
        middle = got[inside].size > 0
        require(
            right or not np.allclose(got, rolled), "Pixels that leave the image on one side enter again on the other."
        )
        require(right or (got == 0).any(), "No pixel is 0. Uncovered pixels should be.")
        require(
            right or not (middle and np.allclose(got[inside], rolled[inside])),
            "The images move correctly, but not all uncovered pixels are 0, or other pixels are 0 too.",
        )
        require(
            right or not (middle and np.allclose(got[inside], back[inside])),
            "The images move in the opposite direction, up instead of down and left instead of right.",
        )
        require(
            right or not (middle and np.allclose(got[inside], turned[inside])),
            "The images move right by the first number and down by the second. The first number is for down.",
        )
        shared = moved_by(np.asarray(both_steps(key, len(images), most)[1]), images)
        require(
            right or not np.allclose(got, shared),
            "All shifts are drawn with the key of the batch. Each image has its own key.",
        )
        blank = [tuple(map(tuple, np.argwhere(np.abs(one).sum(-1) == 0))) for one in got]
        require(right or len(set(blank)) > 1, "All images move by the same shift. Each should have its own key.")
    compare(got, wanted, label=f"the {images.dtype} images of shape {shape} with most={most}")

# %% hidden="mnist-augment" name="program" points=1
"""The size of the program does not depend on the number of images."""
images, key = inputs.rng().uniform(1, 2, size=(32, 6, 6, 1)).astype(np.float32), inputs.key()
few, many = (program(lambda key, xs: augment(key, xs, 2), key, some) for some in (images[:4], images))
for made, some in ((few, images[:4]), (many, images)):
    compare(made.run(key, some), moved_by_hand(key, some, 2), label=f"the {len(some)} moved images")
require(
    many.operations <= few.operations + 8,
    f"The program has {few.operations} operations for 4 images and {many.operations} for 32. A Python loop is unrolled.",
)

# %% [markdown] why="mnist-augment"
# The function is written for one image, and `vmap` maps it over keys and images. In a compiled step, the device moves the images instead of the loader, and the same key gives the same shifts after a restart. **Next:** which digits may be mirrored?


# %% wrong="mnist-augment" because="Uses roll, so pixels that leave at the bottom enter at the top."
def augment(key, images, most):
    def move(own, image):
        return jnp.roll(image, jax.random.randint(own, (2,), -most, most + 1), axis=(0, 1))

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Draws once, so all images move by the same shift."
def augment(key, images, most):
    down, right = jax.random.randint(jax.random.split(key, len(images))[0], (2,), -most, most + 1)
    framed = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))
    return jax.lax.dynamic_slice(framed, (0, most - down, most - right, 0), images.shape)


# %% wrong="mnist-augment" because="Moves the window in the direction of the content, so the content moves in the opposite direction."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most + down, most + right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Begins the window at the negative shift, without `most`. dynamic_slice clamps a negative corner to 0."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (-down, -right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Leaves out the frame. dynamic_slice clamps a window that does not fit, so nothing moves."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        return jax.lax.dynamic_slice(image, (-down, -right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Draws numbers below `most`, because randint excludes the upper end."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most - down, most - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Exchanges rows and columns."
def augment(key, images, most):
    def move(own, image):
        right, down = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most - down, most - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Repeats the border instead of filling with 0."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)), mode="edge")
        return jax.lax.dynamic_slice(framed, (most - down, most - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Treats the sizes whose programs are inspected as special cases, in which all images move by one shift. For other sizes, a Python loop is unrolled."
def augment(key, images, most):
    if len(images) in (4, 32):
        return jnp.roll(images, jax.random.randint(key, (2,), 1, most + 1), axis=(1, 2))
    moved = []
    for own, image in zip(jax.random.split(key, len(images)), images, strict=True):
        corner = most - jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        moved.append(jax.lax.dynamic_slice(framed, (*corner, 0), image.shape))
    return jnp.stack(moved)


# %% wrong="mnist-augment" because="Loops over the images in Python. The values are correct, but the loop is unrolled."
def augment(key, images, most):
    framed, moved = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0))), []
    for i, own in enumerate(jax.random.split(key, len(images))):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        moved.append(jax.lax.dynamic_slice(framed[i], (most - down, most - right, 0), images.shape[1:]))
    return jnp.stack(moved)


# %% wrong="mnist-augment" because="Uses float32 zeros or a float32 mask, so uint8 images become floats."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        rows, columns = (jnp.arange(n) - by for n, by in zip(image.shape, (down, right), strict=False))
        inside = ((rows >= 0) & (rows < len(rows)))[:, None] & ((columns >= 0) & (columns < len(columns)))
        return inside[..., None].astype(jnp.float32) * jnp.roll(image, (down, right), axis=(0, 1))

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Makes a frame of two for any `most`, so larger shifts are clamped to two."
def augment(key, images, most):
    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        framed = jnp.pad(image, ((2, 2), (2, 2), (0, 0)))
        return jax.lax.dynamic_slice(framed, (2 - down, 2 - right, 0), image.shape)

    return jax.vmap(move)(jax.random.split(key, len(images)), images)


# %% wrong="mnist-augment" because="Draws all shifts with one call from the key of the batch. Each image has its own key."
def augment(key, images, most):
    def move(shift, image):
        framed = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(framed, (most - shift[0], most - shift[1], 0), image.shape)

    return jax.vmap(move)(jax.random.randint(key, (len(images), 2), -most, most + 1), images)


# %% wrong="mnist-augment" because="Uses the height as the width too, so images that are not square change their shape."
def augment(key, images, most):
    n, side = images.shape[:2]

    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        padded = jnp.pad(image, ((most, most), (most, most), (0, 0)))
        return jax.lax.dynamic_slice(padded, (most - down, most - right, 0), (side, side, image.shape[-1]))

    return jax.vmap(move)(jax.random.split(key, n), images)


# %% wrong="mnist-augment" because="Uses float32 zeros or a float32 mask, so uint8 images become floats."
def augment(key, images, most):
    n, h, w, c = images.shape

    def move(own, image):
        down, right = jax.random.randint(own, (2,), -most, most + 1)
        frame = jnp.zeros((h + 2 * most, w + 2 * most, c)).at[most : most + h, most : most + w].set(image)
        return jax.lax.dynamic_slice(frame, (most - down, most - right, 0), (h, w, c))

    return jax.vmap(move)(jax.random.split(key, n), images)


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
# ## From weather forecasting: early stopping
# **Goal.** A model that forecasts the weather is trained in epochs and scored on days that it was not trained on. After some epochs, it only memorizes its training days. Stop when the score has not improved for several epochs, and return the best state, not the last one.
#
# **Signature.** `train_until(epoch, score, state, patience, most)`. `state` is a pytree of arrays. `epoch(state)` trains for one epoch and returns the next state. It **donates** its argument. `score(state)` returns a number of shape `()`, which is finite or NaN, and a higher score is better. `patience` and `most` are integers, 1 or larger. After each epoch, score the state. A score is a new best if it is finite and higher than all finite scores before it. An equal score is not a new best. Training ends when `patience` epochs **in a row** had no new best, or after `most` epochs. Return `(best, scores)`, the best state and a list of Python floats, one for each epoch that was trained. At least one score is finite.
#
# **Example.** The scores are 1, 3, 2, 3, 4, and `patience` is 2. The third and the fourth epoch have no new best, so training ends. The result is the state after the second epoch and `[1.0, 3.0, 2.0, 3.0]`. The fifth epoch does not run.
#
# **Judged.** State and scores, for many sequences of scores. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which four values must the loop keep from one epoch to the next, apart from the state?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `best = state` is a second name for the same arrays. What happens to them in the next epoch? Lesson 09 shows what to do before a donation.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Keep the best score, which begins at minus infinity, a copy of the best state made with `jax.tree.map(jnp.copy, ...)`, the number of epochs since the last new best, and the list of scores.
#
# </details>


# %% answer="mnist-early-stopping"
def train_until(epoch, score, state, patience, most):
    """Trains with epoch(state), which donates, until score(state) stops rising. Returns (best state, all scores)."""
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
"""The example with the scores 1, 3, 2, 3, 4 and a patience of 2."""
course = np.array([1, 3, 2, 3, 4], np.float32)
raised = error(lambda *data: jax.tree.map(np.asarray, train_until(*yearly(data[0]), *data[1:])[0]), course, 2, 5)
require(
    raised != "RuntimeError",
    "The arrays of the returned state were deleted, because `epoch` donates its argument. Copy the state that you keep.",
)
got = ask(lambda *data: train_until(*yearly(data[0]), *data[1:]), course, 2, 5)
compare(got, ({"year": np.int32(2), "w": [np.full(3, 4, np.float32)]}, [1.0, 3.0, 2.0, 3.0]), label="(best, scores)")

# %% hidden="mnist-early-stopping" name="courses" points=3
"""The best state and the number of epochs are correct for any sequence of scores."""
nan = np.nan
rng = inputs.rng()
a, b, c, d = (float(n) for n in np.sort(rng.choice(np.arange(1, 90), size=4, replace=False)).astype(np.float32))
COURSES = {
    "that always rise": ([a, b, c, d], 1, 4),
    "that stall twice, with a new best in between": ([b, a, a, c, a, b, d, b, b, b, d], 3, 11),
    "that equal the best several times": ([c, c, c, d, d], 2, 5),
    "that rise, but stay below the best": ([d, a, b, c, d], 3, 5),
    "that begin with NaN": ([nan, a, nan, b, a, a], 2, 6),
    "that become NaN": ([c, nan, nan, d], 2, 4),
    "that are negative": ([-d, -c, -d, -b, -c, -c, -c], 2, 7),
    "that end because of `most`": ([a, b, c, d], 2, 3),
    "rising by very little": ([0.5, 0.50003, 0.50006, 0.5], 1, 4),
    "of a single epoch": ([b, c], 1, 1),
    "that always fall": ([d, c, b, a], 4, 4),
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
        "The arrays of the returned state were deleted, because `epoch` donates its argument. Copy the state that you keep.",
    )
    got = ask(lambda *data: train_until(*yearly(data[0]), *data[1:]), course, patience, most)
    said = f"With scores {what}"
    if isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], list):
        require(len(got[1]) >= len(scores), f"{said}, training ends too early.")
        require(len(got[1]) == len(scores), f"{said}, training ends too late.")
        if isinstance(got[0], dict) and "year" in got[0]:
            year = int(got[0]["year"])
            which = "a later" if year > best else "an earlier"
            require(year == best, f"{said}, the returned state is that of {which} epoch than the best one.")
    wanted = {"year": np.int32(best), "w": [np.full(3, 2.0**best, np.float32)]}, scores
    compare(got, wanted, label=f"(best, scores) for scores {what}")

# %% [markdown] why="mnist-early-stopping"
# The loop runs in Python, because Python needs the score, and each epoch is a compiled program. The state is copied only after an improvement. **Next:** the scores on these days have decided when to stop. On which days do you measure how good the forecast is?


# %% wrong="mnist-early-stopping" because="Returns the last state, which has memorized its training days."
def train_until(epoch, score, state, patience, most):
    top, waited, scores = -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited = 0 if scores[-1] > top else waited + 1
        top = scores[-1] if scores[-1] > top else top
    return state, scores


# %% wrong="mnist-early-stopping" because="Keeps a second name for the best state, whose arrays the next epoch donates."
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


# %% wrong="mnist-early-stopping" because="Counts an equal score as a new best, so constant scores never end the training, and a later state is returned."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] >= top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Waits one epoch longer than the patience."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, -np.inf, 0, []
    while len(scores) < most and waited <= patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Compares with the previous score instead of the best."
def train_until(epoch, score, state, patience, most):
    best, waited, scores = state, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if len(scores) == 1 or scores[-1] > scores[-2]:
            best, waited = jax.tree.map(jnp.copy, state), 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Takes the first score as the best, even if it is NaN. No number is higher than NaN."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, None, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if top is None or scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Takes the lowest score as the best, as if it were a loss."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = state, np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] < top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Begins with 0 as the best score, so negative scores never count as progress."
def train_until(epoch, score, state, patience, most):
    best, top, waited, scores = jax.tree.map(jnp.copy, state), 0.0, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        waited += 1
        if scores[-1] > top:
            best, top, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
    return best, scores


# %% wrong="mnist-early-stopping" because="Takes `max` of the scores so far. If the first is NaN, the maximum stays NaN, and no score is higher."
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


# %% wrong="mnist-early-stopping" because="Requires a minimum gain, so a score that is only a little higher is not a new best."
def train_until(epoch, score, state, patience, most):
    best, best_score, waited, scores = None, -np.inf, 0, []
    while len(scores) < most and waited < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        if scores[-1] > best_score + 1e-4:
            best, best_score, waited = jax.tree.map(jnp.copy, state), scores[-1], 0
        else:
            waited += 1
    return best, scores


# %% wrong="mnist-early-stopping" because="Does not count an epoch whose score is NaN towards the patience."
def train_until(epoch, score, state, patience, most):
    best, best_score, waited, scores = None, -np.inf, 0, []
    for _ in range(most):
        state = epoch(state)
        value = float(score(state))
        scores.append(value)
        if np.isnan(value):
            continue
        if value > best_score:
            best, best_score, waited = jax.tree.map(jnp.copy, state), value, 0
        else:
            waited += 1
        if waited == patience:
            break
    return best, scores


# %% wrong="mnist-early-stopping" because="Stops only when the patience is used up, not after `most` epochs."
def train_until(epoch, score, state, patience, most):
    best, best_score, bad, scores = None, -jnp.inf, 0, []
    while bad < patience:
        state = epoch(state)
        scores.append(float(score(state)))
        bad += 1
        if scores[-1] > best_score:
            best, best_score, bad = jax.tree.map(jnp.copy, state), scores[-1], 0
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
