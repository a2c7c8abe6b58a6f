# %% [markdown]
# # 27 · Exercises: from PyTorch
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# PyTorch does not have to be installed. Weights are dicts of NumPy arrays with the names and shapes of a PyTorch `state_dict`, and the checks compute what PyTorch computes with NumPy.
#
# In shapes, B is the batch size, C the number of channels, H and W the height and width of an image.

# %% setup
import itertools
import math
from typing import Any

from grader.checks import ask, case, compare, inputs, program, require

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


class ConvNet(nnx.Module):
    """Images (B, H, W, C) -> logits (B, classes): a convolution of 3 x 2 pixels, BatchNorm, ReLU and a linear layer."""

    def __init__(self, height, width, channels, features, classes, *, rngs):
        self.conv = nnx.Conv(channels, features, (3, 2), padding="VALID", rngs=rngs)
        self.norm = nnx.BatchNorm(features, momentum=0.9, rngs=rngs)
        self.size = height - 2, width - 1, features  # of one image after the convolution
        self.linear = nnx.Linear(math.prod(self.size), classes, rngs=rngs)

    def __call__(self, images, training=False):
        x = nnx.relu(self.norm(self.conv(images), use_running_average=not training))
        return self.linear(x.reshape(len(x), -1))


class Regressor(linen.Module):
    """x (B, inputs) -> predictions (B, 1), with BatchNorm and Dropout."""

    hidden: int

    @linen.compact
    def __call__(self, x, training):
        x = linen.Dense(self.hidden)(x)
        x = linen.BatchNorm(use_running_average=not training, momentum=0.9)(x)
        x = linen.Dropout(0.4, deterministic=not training)(jax.nn.relu(x))
        return linen.Dense(1)(x)


class State(TrainState):
    """A TrainState (step, apply_fn, params, tx, opt_state) that also contains the running statistics."""

    batch_stats: Any


def normal(rng, *shape):
    """NumPy float32 numbers from a normal distribution, from a NumPy generator."""
    return rng.normal(size=shape).astype(np.float32)


# %% [markdown] task="torch-collate" stars=1 minutes=8 skills="01_arrays"
# ## A collate function for a PyTorch loader
# **Goal.** Write a `collate_fn` with which a PyTorch `DataLoader` feeds a compiled step. All batches have the same shape, also the last one. Three lines are missing.
#
# **Signature.** `collate(examples, size)` takes a list of 1 to `size` examples `(image, label)`. `image` is a uint8 NumPy array in PyTorch's order (C, H, W), and `label` is an int. It returns a dict of NumPy arrays:
#
# - `"image"`, float32 of shape (size, H, W, C), pixels divided by 255,
# - `"label"`, int32 of shape (size,),
# - `"mask"`, bool of shape (size,), True for the rows that contain an example.
#
# The examples come first, in their order. All other rows of `image` and `label` are 0.
#
# **Example.** For `[(np.full((1, 2, 3), 51, np.uint8), 7)]` and `size = 2`, the image has the shape (2, 2, 3, 1), its first row is 0.2 and its second row is 0. The label is `[7 0]` and the mask is `[True False]`.
#
# **Judged.** Values, shapes and dtypes, and that all arrays are NumPy arrays, because worker processes of a loader should not use JAX. **Not judged.** The speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# After `np.stack`, images have the shape (B, C, H, W). In which order do the axes have to be for `nnx.Conv`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `transpose` moves axes. `reshape` would keep the order of the pixels in memory and give them other positions.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `images.transpose(0, 2, 3, 1)`, then a conversion to float32 and a division by 255. `missing` is the number of rows that are not in `examples`. The mask compares `np.arange(size)` with the number of examples.
#
# </details>


# %% answer="torch-collate"
def collate(examples, size):
    """A list of (uint8 image (C, H, W), label) -> {"image": (size, H, W, C), "label": (size,), "mask": (size,)}"""
    images = np.stack([image for image, _ in examples])
    labels = np.array([label for _, label in examples], np.int32)
    ### BEGIN SOLUTION
    images = images.transpose(0, 2, 3, 1).astype(np.float32) / 255
    missing = size - len(examples)
    ### END SOLUTION
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    ### BEGIN SOLUTION
    return {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}
    ### END SOLUTION


# %% check="torch-collate" name="example" points=1
"""The example, and a full batch."""
got = ask(collate, [(np.full((1, 2, 3), 51, np.uint8), 7)], 2)
image = np.stack([np.full((2, 3, 1), 0.2, np.float32), np.zeros((2, 3, 1), np.float32)])
compare(got, {"image": image, "label": np.array([7, 0], np.int32), "mask": np.array([True, False])}, label="the batch")
pixels = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
got = ask(collate, [(pixels, 3)], 1)
want = np.array([[[[0, 4], [1, 5]], [[2, 6], [3, 7]]]], np.float32) / 255
compare(got["image"], want, label="the image of a full batch")

# %% hidden="torch-collate" name="values" points=2
"""Right for other images, and for a batch that is not full."""
rng = inputs.rng()
for shape, count, size, words in (
    ((3, 4, 5), 4, 4, "for a full batch of colour images"),
    ((3, 3, 3), 2, 5, "when height, width and channels are equal"),
    ((2, 6, 3), int(rng.integers(1, 4)), 6, "when the batch is not full"),
    ((1, 3, 5), 3, 4, "when no pixel is white"),
    ((2, 3, 4), 3, 5, "when an example has the label 0"),
):
    with case(words):
        images = rng.integers(1, 200, size=(count, *shape)).astype(np.uint8)
        if words != "when no pixel is white":
            images[0, 0, 0, 0] = 255
        labels = rng.integers(1, 10, size=count)
        if words == "when an example has the label 0":
            labels[1] = 0
        got = ask(collate, [(image, int(label)) for image, label in zip(images, labels, strict=True)], size)
        wanted = {
            "image": np.zeros((size, shape[1], shape[2], shape[0]), np.float32),
            "label": np.zeros(size, np.int32),
            "mask": np.zeros(size, bool),
        }
        for i in range(count):
            for channel in range(shape[0]):
                wanted["image"][i, :, :, channel] = images[i, channel] / 255
            wanted["label"][i], wanted["mask"][i] = labels[i], True
        compare(got, wanted, label="the batch")
        require(
            all(isinstance(array, np.ndarray) for array in got.values()),
            "the batch contains a JAX array. A loader's worker processes should not use JAX.",
        )

# %% [markdown] why="torch-collate"
# PyTorch's order is (C, H, W), that of Flax and of Keras (H, W, C). With the mask, an evaluation can count each example once although all batches have one shape, so the step is compiled once. Keep batches in NumPy until they leave the loader. **Next:** The padded images are black. Through which layer would they change the results of the real examples?


# %% wrong="torch-collate" because="Uses `reshape` to move the channels, which keeps the order of the pixels in memory and mixes the channels."
def collate(examples, size):
    images = np.stack([image for image, _ in examples])
    labels = np.array([label for _, label in examples], np.int32)
    count, channels, height, width = images.shape
    images = images.reshape(count, height, width, channels).astype(np.float32) / 255
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Reverses all axes of an image, which also exchanges height and width."
def collate(examples, size):
    images = np.stack([image.T for image, _ in examples]).astype(np.float32) / 255
    labels = np.array([label for _, label in examples], np.int32)
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Reverses all axes of an image, which also exchanges height and width."
def collate(examples, size):
    image = np.zeros((size, *examples[0][0].shape[::-1]), np.float32)
    label = np.zeros(size, np.int32)
    for i, (pixels, number) in enumerate(examples):
        image[i], label[i] = pixels.swapaxes(0, 2) / 255, number
    return {"image": image, "label": label, "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Leaves the channels first, as in PyTorch."
def collate(examples, size):
    images = np.stack([image for image, _ in examples]).astype(np.float32) / 255
    labels = np.array([label for _, label in examples], np.int32)
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Does not divide the pixels by 255."
def collate(examples, size):
    images = np.stack([image for image, _ in examples]).transpose(0, 2, 3, 1).astype(np.float32)
    labels = np.array([label for _, label in examples], np.int32)
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Divides by the largest pixel of the batch instead of 255."
def collate(examples, size):
    images = np.stack([image for image, _ in examples]).transpose(0, 2, 3, 1).astype(np.float32)
    labels = np.array([label for _, label in examples], np.int32)
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images / images.max()), "label": pad(labels), "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Returns float64 images. NumPy divides integers in float64."
def collate(examples, size):
    images = np.stack([image for image, _ in examples]).transpose(0, 2, 3, 1) / 255
    labels = np.array([label for _, label in examples], np.int32)
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Returns int64 labels, PyTorch's dtype for class numbers."
def collate(examples, size):
    image = np.zeros((size, *np.moveaxis(examples[0][0], 0, -1).shape), np.float32)
    label = np.zeros(size, np.int64)
    for i, (pixels, number) in enumerate(examples):
        image[i], label[i] = np.moveaxis(pixels, 0, -1) / np.float32(255), number
    return {"image": image, "label": label, "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Does not pad a batch that is not full."
def collate(examples, size):
    images = np.stack([image for image, _ in examples]).transpose(0, 2, 3, 1).astype(np.float32) / 255
    labels = np.array([label for _, label in examples], np.int32)
    return {"image": images, "label": labels, "mask": np.ones(len(examples), bool)}


# %% wrong="torch-collate" because="The mask is True for all rows, also for the padding."
def collate(examples, size):
    images = np.stack([image for image, _ in examples]).transpose(0, 2, 3, 1).astype(np.float32) / 255
    labels = np.array([label for _, label in examples], np.int32)
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": np.ones(size, bool)}


# %% wrong="torch-collate" because="Makes JAX arrays. Worker processes of a loader should not use JAX."
def collate(examples, size):
    images = jnp.stack([image for image, _ in examples]).transpose(0, 2, 3, 1).astype(jnp.float32) / 255
    labels = jnp.array([label for _, label in examples], jnp.int32)
    missing = size - len(examples)
    pad = lambda rows: jnp.concatenate([rows, jnp.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": jnp.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Fills the batch with copies of the last example instead of zeros."
def collate(examples, size):
    full = examples + examples[-1:] * (size - len(examples))
    images = np.stack([image for image, _ in full]).transpose(0, 2, 3, 1).astype(np.float32) / 255
    labels = np.array([label for _, label in full], np.int32)
    return {"image": images, "label": labels, "mask": np.arange(size) < len(examples)}


# %% wrong="torch-collate" because="Computes the mask from the labels. 0 is also the number of a class."
def collate(examples, size):
    images = np.stack([image for image, _ in examples])
    labels = np.array([label for _, label in examples], np.int32)
    images = images.transpose(0, 2, 3, 1).astype(np.float32) / 255
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    labels = pad(labels)
    return {"image": pad(images), "label": labels, "mask": labels != 0}


# %% wrong="torch-collate" because="Makes JAX arrays. Worker processes of a loader should not use JAX."
def collate(examples, size):
    images = np.stack([image for image, _ in examples])
    labels = np.array([label for _, label in examples], np.int32)
    images = images.transpose(0, 2, 3, 1).astype(np.float32) / 255
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    batch = {"image": pad(images), "label": pad(labels), "mask": np.arange(size) < len(examples)}
    return jax.tree.map(jnp.asarray, batch)


# %% wrong="torch-collate" because="Returns the mask as numbers. It should have the dtype bool."
def collate(examples, size):
    images = np.stack([image for image, _ in examples])
    labels = np.array([label for _, label in examples], np.int32)
    images = images.transpose(0, 2, 3, 1).astype(np.float32) / 255
    missing = size - len(examples)
    pad = lambda rows: np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return {"image": pad(images), "label": pad(labels), "mask": (np.arange(size) < len(examples)).astype(np.float32)}


# %% right="torch-collate"
def collate(examples, size):
    channels, height, width = examples[0][0].shape
    batch = {
        "image": np.zeros((size, height, width, channels), np.float32),
        "label": np.zeros(size, np.int32),
        "mask": np.zeros(size, bool),
    }
    for i, (image, label) in enumerate(examples):
        batch["image"][i] = np.moveaxis(image, 0, -1) / 255.0
        batch["label"][i], batch["mask"][i] = label, True
    return batch


# %% right="torch-collate"
def collate(examples, size):
    images, labels = zip(*examples, strict=True)
    room = (0, size - len(examples))
    image = np.einsum("bchw->bhwc", np.array(images)) * np.float32(1 / 255)
    return {
        "image": np.pad(image, (room, (0, 0), (0, 0), (0, 0))),
        "label": np.pad(np.asarray(labels), (room,)).astype(np.int32),
        "mask": np.pad(np.ones(len(examples), bool), (room,)),
    }


# %% [markdown] task="torch-in-place" stars=1 minutes=10 skills="01_arrays,03_jit"
# ## In-place updates and a view
# **Goal.** Port a PyTorch function that updates a tensor in place, also through a view.
#
# ```python
# def torch_update(scores, rows, bonus):
#     scores = scores.clone()
#     last = scores[-1]
#     last += bonus
#     scores.index_add_(0, rows, torch.ones(len(rows), scores.shape[1]))
#     scores[scores < 0] = 0
#     return scores, last
# ```
#
# `last` is a view of the last row, so both names refer to the same numbers. `index_add_` adds each row of its last argument to the row of `scores` with the given index. A repeated index receives several rows.
#
# **Signature.** `update(scores, rows, bonus)` takes `scores` (R, C) float32, `rows` (n,) int32 with indices from 0 to R - 1, which may be repeated, and `bonus` (C,) float32. It returns the pair of arrays that `torch_update` returns, (R, C) and (C,).
#
# **Example.** For `scores` = [[-3], [0]], `rows` = [0 0 1] and `bonus` = [5], the result is ([[0], [6]], [6]).
#
# **Judged.** The values, computed by a compiled program without a loop, which has the same number of operations for any R, C and n. **Not judged.** Which functions of `jnp` you use.
#
# <details><summary>Hint 1 · a question</summary>
#
# When does `torch_update` read the numbers that it returns as `last`: when the view is created, or at the end?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `scores.at[...].add(...)` returns a new array, and all updates to the same index are summed. Give the new array the name `scores`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Add the bonus with `.at[-1].add(bonus)` and the ones with `.at[rows].add(1)`. Then take `jnp.maximum(scores, 0)`, and read `scores[-1]` last.
#
# </details>


# %% answer="torch-in-place"
def update(scores, rows, bonus):
    """scores (R, C), rows (n,) int32, bonus (C,) -> the updated scores (R, C), their last row (C,)."""
    ### BEGIN SOLUTION
    scores = scores.at[-1].add(bonus)
    scores = scores.at[rows].add(1)
    scores = jnp.maximum(scores, 0)
    return scores, scores[-1]
    ### END SOLUTION


# %% check="torch-in-place" name="example" points=1
"""The example."""
scores, rows, bonus = np.array([[-3], [0]], np.float32), np.array([0, 0, 1], np.int32), np.array([5], np.float32)
got = ask(update, *map(jnp.asarray, (scores, rows, bonus)))
compare(got, (np.array([[0], [6]], np.float32), np.array([6], np.float32)), label="the result")

# %% hidden="torch-in-place" name="values" points=2
"""The compiled program computes what the PyTorch function computes."""
rng = inputs.rng()
for R, C, kind in ((5, 3, "no row twice"), (4, 4, "repeated"), (6, 2, "last"), (3, 5, "negative")):
    scores, bonus = 3 * normal(rng, R, C), 1 + np.abs(normal(rng, C))
    scores[0, 0], scores[1, 1], scores[2] = -4, 2.5, -0.25
    rows = rng.permutation(R - 1)[:2]
    if kind == "repeated":
        rows = np.array([1, 2, 1, 0, 1])
    if kind == "last":
        rows = np.array([R - 1, 1, R - 1, 2])
        scores[-1] = np.abs(scores[-1])
    if kind == "negative":
        scores[-1] = -20
    words = {
        "no row twice": "when no index is repeated",
        "repeated": "when an index is repeated",
        "last": "when the last row is in `rows`",
        "negative": "when the last row is negative after the bonus",
    }
    with case(words[kind]):
        wanted = scores.astype(np.float64)
        wanted[-1] += bonus
        for row in rows:
            wanted[row] += 1
        wanted = np.where(wanted < 0, 0, wanted).astype(np.float32)
        made = program(update, scores, rows.astype(np.int32), bonus)
        got = made.run(scores, rows.astype(np.int32), bonus)
        compare(got, (wanted, wanted[-1]), label="the result")
        require(made.loops == 0, "the program has a loop.")

operations = {}
for R, C, n in ((7, 2, 3), (7, 2, 19), (19, 2, 3), (7, 14, 3)):
    scores, bonus, rows = 3 * normal(rng, R, C), normal(rng, C), rng.integers(0, R, size=n).astype(np.int32)
    wanted = scores.astype(np.float64)
    wanted[-1] += bonus
    np.add.at(wanted, rows, 1)
    wanted = np.maximum(wanted, 0).astype(np.float32)
    made = program(update, scores, rows, bonus)
    operations[R, C, n] = made.operations
    compare(made.run(scores, rows, bonus), (wanted, wanted[-1]), label=f"the result for ({R}, {C}) scores and {n} rows")
few, *others = operations.values()
for many, words in zip(others, ("19 indices", "19 rows of scores", "14 columns"), strict=True):
    require(
        few == many,
        f"For 7 rows of scores, 2 columns and 3 indices, the program has {few} operations. For {words} it has {many}. "
        "JAX has unrolled a Python loop. One call of `.at[rows].add` adds to all rows in `rows`.",
    )

# %% [markdown] why="torch-in-place"
# JAX arrays have no views that can be written, so each update needs a name for its result, and the order of reads is explicit. Under `jit`, XLA reuses the memory of an array that is not needed any more. **Next:** PyTorch's `scores[rows] += 1` differs from `index_add_` if an index is repeated. What would it compute?


# %% wrong="torch-in-place" because="Reads the last row before the later updates. In PyTorch, `last` is a view, so it contains all updates."
def update(scores, rows, bonus):
    last = scores[-1] + bonus
    scores = scores.at[-1].set(last).at[rows].add(1)
    return jnp.maximum(scores, 0), last


# %% wrong="torch-in-place" because="Reads the last row before the later updates. In PyTorch, `last` is a view, so it contains all updates."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus)
    last = scores[-1]
    scores = scores.at[rows].add(1)
    return jnp.where(scores < 0, 0, scores), last


# %% wrong="torch-in-place" because="Adds the bonus to a copy of the last row, and not to `scores`. A slice of a JAX array is not a view."
def update(scores, rows, bonus):
    last = scores[-1]
    last += bonus
    scores = jnp.maximum(scores.at[rows].add(1), 0)
    return scores, last


# %% wrong="torch-in-place" because="Adds the bonus to a copy of the last row, and not to `scores`. A slice of a JAX array is not a view."
def update(scores, rows, bonus):
    last = scores[-1] + bonus
    last = jnp.maximum(last + jnp.sum(rows == len(scores) - 1), 0)
    return jnp.maximum(scores.at[rows].add(1), 0), last


# %% wrong="torch-in-place" because="Counts a repeated index once. `.at[rows].set(...)` writes a value for each index, and one of them remains."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus)
    scores = scores.at[rows].set(scores[rows] + 1)
    scores = jnp.maximum(scores, 0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Does not use the array that `.at[...].add(...)` returns."
def update(scores, rows, bonus):
    scores.at[-1].add(bonus)
    scores.at[rows].add(1)
    scores = jnp.maximum(scores, 0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Assigns to a JAX array, which is immutable."
def update(scores, rows, bonus):
    scores[-1] += bonus
    scores = jnp.maximum(scores.at[rows].add(1), 0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Replaces negative numbers before the ones are added."
def update(scores, rows, bonus):
    scores = jnp.maximum(scores.at[-1].add(bonus), 0)
    scores = scores.at[rows].add(1)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Replaces negative numbers only in the rows of `rows`."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus).at[rows].add(1).at[rows].max(0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Uses NumPy, which cannot change traced arrays."
def update(scores, rows, bonus):
    scores = np.array(scores)
    scores[-1] += bonus
    np.add.at(scores, np.asarray(rows), 1)
    scores[scores < 0] = 0
    return jnp.asarray(scores), jnp.asarray(scores[-1])


# %% wrong="torch-in-place" because="Selects with a Boolean mask, so the size of the result depends on values. This fails under `jit`."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus).at[rows].add(1)
    scores = scores.at[scores < 0].set(0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Adds the ones to columns. `index_add_(0, ...)` selects rows."
def update(scores, rows, bonus):
    scores = jnp.maximum(scores.at[-1].add(bonus).at[:, rows].add(1), 0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Reads the last row before the later updates. In PyTorch, `last` is a view, so it contains all updates."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus).at[rows].add(1)
    last = scores[-1]
    scores = jnp.where(scores < 0, 0, scores)
    return scores, last


# %% wrong="torch-in-place" because="Loops over the rows. `.at[rows].add(...)` adds a repeated index several times."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus)
    scores = jax.lax.fori_loop(0, len(rows), lambda i, scores: scores.at[rows[i]].add(1), scores)
    scores = jnp.maximum(scores, 0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Loops over the indices in Python. JAX unrolls the loop, so the program grows with their number."
def update(scores, rows, bonus):
    scores = scores.at[-1].add(bonus)
    for i in range(len(rows)):
        scores = scores.at[rows[i]].add(1)
    scores = jnp.maximum(scores, 0)
    return scores, scores[-1]


# %% wrong="torch-in-place" because="Adds the bonus to all rows. `last` is a view of the last row only."
def update(scores, rows, bonus):
    scores = scores + bonus
    scores = scores.at[rows].add(1)
    scores = jnp.maximum(scores, 0)
    return scores, scores[-1]


# %% right="torch-in-place"
def update(scores, rows, bonus):
    times = jnp.bincount(rows, length=len(scores))
    is_last = (jnp.arange(len(scores)) == len(scores) - 1)[:, None]
    scores = scores + times[:, None] + jnp.where(is_last, bonus, 0)
    scores = jnp.where(scores < 0, 0, scores)
    return scores, scores[len(scores) - 1]


# %% right="torch-in-place"
def update(scores, rows, bonus):
    scores = jnp.concatenate([scores[:-1], scores[-1:] + bonus])
    scores = scores + jax.ops.segment_sum(jnp.ones((len(rows), scores.shape[1])), rows, len(scores))
    scores = scores * (scores > 0)
    return scores, scores[-1, :]


# %% [markdown] task="torch-tabulate" stars=1 minutes=10 skills="01_arrays,06_pytrees"
# ## Read a table of layers
# *Needs: Deeper: Linen, with a table of its layers.*
#
# **Goal.** Compute the numbers that `tabulate` of Linen prints for a network, so that you can compare them with those of a PyTorch model.
#
# The network has a `Dense`, `BatchNorm`, ReLU and `Dropout` for each hidden size, and a final `Dense`. Each kind of module is numbered separately, in the order of the calls. This is the table for 100 inputs, a hidden size of 300, one output and a batch of 16, in evaluation. An empty field means 0.
#
# | path | outputs | flops | params | batch_stats |
# |---|---|---|---|---|
# | Dense_0 | float32[16,300] | 964800 | 30,300 | |
# | BatchNorm_0 | float32[16,300] | 15000 | 600 | 600 |
# | Dropout_0 | float32[16,300] | 0 | | |
# | Dense_1 | float32[16,1] | 9616 | 301 | |
#
# The products and sums of a `Dense` layer are its flops. The flops of BatchNorm depend on how XLA computes it.
#
# **Signature.** `layer_table(sizes, batch)` takes a tuple of ints `(inputs, hidden, ..., outputs)` with any number of hidden sizes, also none, and an int. It returns a list with a tuple for each row, in the order of the table: the path (a string), the shape of the output (a tuple), the flops, the number of params and the number of batch_stats (ints). The flops of BatchNorm are `None`.
#
# **Example.** `layer_table((100, 300, 1), 16)` begins with `("Dense_0", (16, 300), 964800, 30300, 0), ("BatchNorm_0", (16, 300), None, 600, 600)`.
#
# **Judged.** All rows for several networks, one of them without a hidden size. **Not judged.** How you compute them.
#
# <details><summary>Hint 1 · a question</summary>
#
# Each output of `Dense_0` is a sum of 100 products and a bias. How many multiplications and additions are that?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# 100 multiplications, 99 additions of products and one addition of the bias are 200 flops, but the table contains 201 for each output: 2 for each product, and 1 for the bias. BatchNorm has a scale and a bias, which are trained, and a mean and a variance, which are not.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For `n` inputs and `m` outputs, a Dense layer has `batch * m * (2 * n + 1)` flops and `(n + 1) * m` params. BatchNorm has `2 * m` params and `2 * m` batch_stats. The last size has only a Dense row.
#
# </details>


# %% answer="torch-tabulate"
def layer_table(sizes, batch):
    """Ints (inputs, hidden, ..., outputs), the batch size -> rows (path, shape, flops, params, batch_stats)."""
    ### BEGIN SOLUTION
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        shape = batch, m
        rows.append((f"Dense_{i}", shape, batch * m * (2 * n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", shape, None, 2 * m, 2 * m))
            rows.append((f"Dropout_{i}", shape, 0, 0, 0))
    return rows
    ### END SOLUTION


# %% check="torch-tabulate" name="example" points=1
"""The network of the example."""
wanted = [
    ("Dense_0", (16, 300), 964800, 30300, 0),
    ("BatchNorm_0", (16, 300), None, 600, 600),
    ("Dropout_0", (16, 300), 0, 0, 0),
    ("Dense_1", (16, 1), 9616, 301, 0),
]
compare(ask(layer_table, (100, 300, 1), 16), wanted, label="the table")

# %% hidden="torch-tabulate" name="values" points=2
"""Right for networks with any number of hidden sizes."""
rng = inputs.rng()
a, b, c, d, e = (int(size) for size in 3 + rng.permutation(20)[:5])
for sizes, batch, words in (
    ((a, b, c), int(rng.integers(2, 9)), "for one hidden size"),
    ((a, b, c, d, e), int(rng.integers(10, 20)), "for three hidden sizes"),
    ((b, d), 1, "without a hidden size"),
    ((e, c, c, c, 1), 7, "when hidden sizes are equal"),
):
    with case(words):
        wanted, numbers = [], {"Dense": 0, "BatchNorm": 0, "Dropout": 0}
        for place in range(1, len(sizes)):
            before, after = sizes[place - 1], sizes[place]
            weights, biases = before * after, after
            entries = [("Dense", 2 * batch * weights + batch * biases, weights + biases, 0)]
            if place < len(sizes) - 1:
                entries += [("BatchNorm", None, after + after, after + after), ("Dropout", 0, 0, 0)]
            for kind, *rest in entries:
                wanted.append((f"{kind}_{numbers[kind]}", (batch, after), *rest))
                numbers[kind] += 1
        compare(ask(layer_table, sizes, batch), wanted, label="the table")

# %% [markdown] why="torch-tabulate"
# Compare such numbers before you port weights. If the params differ, a bias or a normalization layer is missing. PyTorch stores the same arrays in one `state_dict`, with `running_mean` and `running_var` as buffers and a counter `num_batches_tracked` for each BatchNorm. **Next:** How many numbers does the `state_dict` of this network contain?


# %% wrong="torch-tabulate" because="Counts a product and its addition as one flop."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
            rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="The flops do not contain the additions of the bias."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), 2 * batch * m * n, (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
            rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Counts the flops of one example instead of the batch."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), m * (2 * n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
            rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Leaves the bias of a Dense layer out of its params."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), n * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
            rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Counts the running mean and variance of BatchNorm as params. They are in `batch_stats` and are not trained."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 4 * m, 0))
            rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Counts the running mean and variance of BatchNorm as params. They are in `batch_stats` and are not trained."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 4 * m, 2 * m))
            rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Numbers all modules together, as `nn.Sequential` of PyTorch does. Linen numbers each kind separately."
def layer_table(sizes, batch):
    rows = []
    for n, m in itertools.pairwise(sizes):
        rows.append((f"Dense_{len(rows)}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        if len(rows) < 3 * (len(sizes) - 2):
            rows.append((f"BatchNorm_{len(rows)}", (batch, m), None, 2 * m, 2 * m))
            rows.append((f"Dropout_{len(rows)}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Adds BatchNorm and Dropout after the last layer too."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
        rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    return rows


# %% wrong="torch-tabulate" because="Omits the rows of Dropout, which has no arrays but is a module."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
    return rows


# %% wrong="torch-tabulate" because="Uses the name of the last layer in the example. The number in a name depends on how many layers there are."
def layer_table(sizes, batch):
    rows = []
    for i, (n, m) in enumerate(itertools.pairwise(sizes[:-1])):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
        rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    n, m = sizes[-2:]
    rows.append(("Dense_1", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
    return rows


# %% wrong="torch-tabulate" because="Gives each hidden layer the inputs of the network. The inputs of a layer are the outputs of the layer before."
def layer_table(sizes, batch):
    inputs, *hidden, outputs = sizes
    rows = []
    for i, m in enumerate(hidden):
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * inputs + 1), (inputs + 1) * m, 0))
        rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
        rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    n = hidden[-1] if hidden else inputs
    rows.append((f"Dense_{len(hidden)}", (batch, outputs), batch * outputs * (2 * n + 1), (n + 1) * outputs, 0))
    return rows


# %% wrong="torch-tabulate" because="Counts the last layer as if it had one output."
def layer_table(sizes, batch):
    rows = []
    for i in range(len(sizes) - 2):
        n, m = sizes[i], sizes[i + 1]
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        rows.append((f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m))
        rows.append((f"Dropout_{i}", (batch, m), 0, 0, 0))
    n = sizes[-2]
    rows.append((f"Dense_{len(sizes) - 2}", (batch, sizes[-1]), batch * (2 * n + 1), n + 1, 0))
    return rows


# %% wrong="torch-tabulate" because="Counts `num_batches_tracked`, which only PyTorch's BatchNorm stores."
def layer_table(sizes, batch):
    rows = []
    for i in range(len(sizes) - 1):
        n, m = sizes[i], sizes[i + 1]
        rows.append((f"Dense_{i}", (batch, m), batch * m * (2 * n + 1), (n + 1) * m, 0))
        if i < len(sizes) - 2:
            rows += [(f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m + 1), (f"Dropout_{i}", (batch, m), 0, 0, 0)]
    return rows


# %% wrong="torch-tabulate" because="Works for one hidden size only."
def layer_table(sizes, batch):
    rows = []
    n, h, m = sizes[0], sizes[1], sizes[-1]
    return [
        ("Dense_0", (batch, h), batch * h * (2 * n + 1), (n + 1) * h, 0),
        ("BatchNorm_0", (batch, h), None, 2 * h, 2 * h),
        ("Dropout_0", (batch, h), 0, 0, 0),
        ("Dense_1", (batch, m), batch * m * (2 * h + 1), (h + 1) * m, 0),
    ]


# %% right="torch-tabulate"
def layer_table(sizes, batch):
    dense = lambda i: (
        f"Dense_{i}",
        (batch, sizes[i + 1]),
        batch * sizes[i + 1] * (1 + 2 * sizes[i]),
        sizes[i + 1] * (1 + sizes[i]),
        0,
    )
    table = []
    for i in range(len(sizes) - 2):
        m = sizes[i + 1]
        table += [dense(i), (f"BatchNorm_{i}", (batch, m), None, 2 * m, 2 * m), (f"Dropout_{i}", (batch, m), 0, 0, 0)]
    return [*table, dense(len(sizes) - 2)]


# %% right="torch-tabulate"
def layer_table(sizes, batch):
    rows, x = [], jax.ShapeDtypeStruct((batch, sizes[0]), jnp.float32)
    count = lambda tree: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
    for i, size in enumerate(sizes[1:]):
        params = jax.eval_shape(linen.Dense(size).init, jax.random.key(0), x)["params"]
        flops = sum(
            2 * batch * math.prod(p.shape) if len(p.shape) == 2 else batch * p.shape[0] for p in params.values()
        )
        x = jax.ShapeDtypeStruct((batch, size), jnp.float32)
        rows += [(f"Dense_{i}", x.shape, flops, count(params), 0)]
        norm = jax.eval_shape(linen.BatchNorm(use_running_average=True).init, jax.random.key(0), x)
        rows += [(f"BatchNorm_{i}", x.shape, None, count(norm["params"]), count(norm["batch_stats"]))]
        rows += [(f"Dropout_{i}", x.shape, 0, 0, 0)]
    return rows[:-2]


# %% [markdown] task="torch-port-weights" stars=2 minutes=20 skills="10_nnx,torch-collate"
# ## Weights of a convolutional network, from PyTorch to NNX
# *Needs: Deeper: convolutions.*
#
# **Goal.** Load a PyTorch `state_dict` into the `ConvNet` of the setup, so that both models return the same logits.
#
# The PyTorch model has the layers `conv` (`Conv2d`), `norm` (`BatchNorm2d`) and `linear` (`Linear`). After the convolution, it computes BatchNorm and ReLU, and `linear(torch.flatten(x, 1))`. Its images have the shape (B, C, H, W).
#
# **Signature.** `from_torch(model, state)` takes a new `ConvNet` and a dict of float32 NumPy arrays. Let F be the number of features, and h x w the size of an image after the convolution, so `model.size` is `(h, w, F)`.
#
# - `"conv.weight"` (F, C, 3, 2) and `"conv.bias"` (F,)
# - `"norm.weight"`, `"norm.bias"`, `"norm.running_mean"`, `"norm.running_var"`, each (F,), and `"norm.num_batches_tracked"`, an integer scalar, which is not needed
# - `"linear.weight"` (classes, F * h * w) and `"linear.bias"` (classes,)
#
# It returns the model (the same object or a new one). The arrays of `model` are `conv.kernel` (3, 2, C, F), `conv.bias`, `norm.scale`, `norm.bias`, `norm.mean`, `norm.var`, `linear.kernel` (h * w * F, classes) and `linear.bias`.
#
# **Example.** If `state["conv.weight"][f, c, i, j]` is 2, then `model.conv.kernel[i, j, c, f]` is 2 too.
#
# **Judged.** The logits in evaluation for images of several sizes, the running statistics after a batch in training, and that the trained arrays are still `nnx.Param` of dtype float32. **Not judged.** The order in which you write the arrays.
#
# <details><summary>Hint 1 · a question</summary>
#
# `torch.flatten` of (B, F, h, w) and `x.reshape(len(x), -1)` of (B, h, w, F) contain the same numbers. Which number is second in each?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The convolution needs `.transpose(2, 3, 1, 0)`. Split the columns of `linear.weight` into (F, h, w) with `reshape` before you change their order.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `state["linear.weight"].reshape(-1, F, h, w).transpose(2, 3, 1, 0).reshape(h * w * F, -1)` is the kernel of the linear layer. Write with `model.linear.kernel[...] = ...`, or with `nnx.update(model.linear, {"kernel": ..., "bias": ...})`.
#
# </details>


# %% answer="torch-port-weights"
def from_torch(model, state):
    """A ConvNet, a state_dict of NumPy arrays in PyTorch's layouts -> the model with these weights."""
    ### BEGIN SOLUTION
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model
    ### END SOLUTION


# %% check="torch-port-weights" name="example" points=1
"""The example: one weight of the convolution is 2, and all others are 0."""


def probe_kernel(state):
    model = from_torch(ConvNet(4, 3, 3, 2, 5, rngs=nnx.Rngs(0)), state)
    return model.conv.kernel[...], model.norm.mean[...], model.norm.var[...]


shapes = {"conv.weight": (2, 3, 3, 2), "conv.bias": (2,), "linear.weight": (5, 8), "linear.bias": (5,)}
state = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
names = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")
state |= {name: np.full(2, i, np.float32) for i, name in enumerate(names)}
state["norm.num_batches_tracked"] = np.array(3, np.int32)
state["conv.weight"][1, 2, 0, 1] = 2
kernel, mean, var = ask(probe_kernel, state)
wanted = np.zeros((3, 2, 3, 2), np.float32)
wanted[0, 1, 2, 1] = 2
compare(kernel, wanted, label="the kernel of the convolution")
compare(mean, np.array([2, 2], np.float32), label="the running mean")
compare(var, np.array([3, 3], np.float32), label="the running variance")

# %% hidden="torch-port-weights" name="logits" points=2
"""The logits are those of the PyTorch model."""


def probe_logits(sizes, state, images):
    return from_torch(ConvNet(*sizes, rngs=nnx.Rngs(1)), state)(images)


rng = inputs.rng()
for sizes, words in (
    ((3, 2, 2, 3, 4), "when the convolution leaves one pixel and its kernel is symmetric"),
    ((3, 2, 3, 3, 2), "when the convolution has as many inputs as outputs"),
    ((4, 5, 2, 2, 16), "when the linear layer has as many inputs as outputs"),
    ((6, 4, 1, 4, 3), "for grayscale images"),
):
    height, width, channels, features, classes = sizes
    h, w = height - 2, width - 1
    state = {
        "conv.weight": normal(rng, features, channels, 3, 2),
        "conv.bias": normal(rng, features),
        "norm.weight": 1 + 0.3 * normal(rng, features),
        "norm.bias": 0.5 + normal(rng, features),
        "norm.running_mean": normal(rng, features),
        "norm.running_var": rng.uniform(2, 5, features).astype(np.float32),
        "norm.num_batches_tracked": np.array(7, np.int32),
        "linear.weight": normal(rng, classes, features * h * w),
        "linear.bias": normal(rng, classes),
    }
    if "symmetric" in words:
        state["conv.weight"] = state["conv.weight"] + state["conv.weight"][:, :, ::-1, ::-1]
    images = normal(rng, 3, channels, height, width)
    x = np.zeros((3, features, h, w))
    for i in range(h):
        for j in range(w):
            window = images[:, None, :, i : i + 3, j : j + 2].astype(np.float64)
            x[:, :, i, j] = (window * state["conv.weight"]).sum((2, 3, 4)) + state["conv.bias"]
    column = lambda name: state[name].astype(np.float64)[:, None, None]
    x = (x - column("norm.running_mean")) / np.sqrt(column("norm.running_var") + 1e-5)
    x = np.maximum(x * column("norm.weight") + column("norm.bias"), 0)
    wanted = x.reshape(3, -1) @ state["linear.weight"].T + state["linear.bias"]
    with case(words):
        got = ask(probe_logits, sizes, state, images.transpose(0, 2, 3, 1))
        compare(got, wanted.astype(np.float32), label="the logits")

# %% hidden="torch-port-weights" name="training" points=1
"""Training can continue with the returned model."""


def probe_training(state, images):
    model = from_torch(ConvNet(4, 4, 2, 3, 5, rngs=nnx.Rngs(2)), state)
    kinds = [
        [
            jnp.shape(leaf[...])
            for _, leaf in sorted(nnx.to_flat_state(nnx.state(model, kind)), key=lambda pair: pair[0])
        ]
        for kind in (nnx.Param, nnx.BatchStat)
    ]
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(model))}
    model(images, training=True)
    return kinds, sorted(dtypes), model.norm.mean[...], model.norm.var[...]


rng = inputs.rng()
state = {"conv.weight": normal(rng, 3, 2, 3, 2), "conv.bias": normal(rng, 3)}
state |= {"norm.weight": normal(rng, 3), "norm.bias": normal(rng, 3), "norm.running_mean": normal(rng, 3)}
state |= {
    "norm.running_var": rng.uniform(1, 2, 3).astype(np.float32),
    "norm.num_batches_tracked": np.array(1, np.int32),
}
state |= {"linear.weight": normal(rng, 5, 18), "linear.bias": normal(rng, 5)}
images = normal(rng, 4, 4, 4, 2)
windows = [images[:, i : i + 3, j : j + 2] for i in range(2) for j in range(3)]
outputs = (
    np.stack([np.einsum("bijc,fcij->bf", window, state["conv.weight"]) for window in windows]) + state["conv.bias"]
)
means, variances = outputs.mean((0, 1), dtype=np.float64), outputs.var((0, 1), dtype=np.float64)
kinds, dtypes, mean, var = ask(probe_training, state, images)
require(
    kinds == [[(3,), (3, 2, 2, 3), (5,), (18, 5), (3,), (3,)], [(3,), (3,)]],
    "the model does not contain the six `nnx.Param` and two `nnx.BatchStat` of a ConvNet with their shapes.",
)
require(dtypes == ["float32"], "the model contains an array that is not float32.")
compare(mean, (0.9 * state["norm.running_mean"] + 0.1 * means).astype(np.float32), label="the running mean")
compare(var, (0.9 * state["norm.running_var"] + 0.1 * variances).astype(np.float32), label="the running variance")

# %% [markdown] why="torch-port-weights"
# A weight is a matrix of numbers with named axes, so write down the axes of both sides and transpose by name. Between a convolution and a linear layer, the order of the flattened axes matters too, and a mistake there raises no error. **Next:** Replace the flattening by a mean over all pixels. Which of the transpositions can you then leave out?


# %% wrong="torch-port-weights" because="Transposes the linear weights, but keeps PyTorch's order (F, h, w) of the flattened features. NNX flattens (h, w, F)."
def from_torch(model, state):
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(state["linear.weight"].T)
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model


# %% wrong="torch-port-weights" because="Transposes the linear weights, but keeps PyTorch's order (F, h, w) of the flattened features. NNX flattens (h, w, F)."
def from_torch(model, state):
    arrays = {name: jnp.asarray(array) for name, array in state.items()}
    nnx.update(model.conv, {"kernel": jnp.einsum("fcij->ijcf", arrays["conv.weight"]), "bias": arrays["conv.bias"]})
    nnx.update(model.norm, {"scale": arrays["norm.weight"], "bias": arrays["norm.bias"]})
    nnx.update(model.norm, {"mean": arrays["norm.running_mean"], "var": arrays["norm.running_var"]})
    nnx.update(model.linear, {"kernel": arrays["linear.weight"].T, "bias": arrays["linear.bias"]})
    return model


# %% wrong="torch-port-weights" because="Reshapes the weights of the convolution instead of transposing them."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].reshape(model.conv.kernel.shape))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model


# %% wrong="torch-port-weights" because="Reshapes the linear weights instead of transposing them."
def from_torch(model, state):
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(state["linear.weight"].reshape(model.linear.kernel.shape))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model


# %% wrong="torch-port-weights" because="Exchanges inputs and outputs of the convolution: PyTorch's weights are (out, in, height, width), those of NNX (height, width, in, out)."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 0, 1))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model


# %% wrong="torch-port-weights" because="Copies the weights without a transposition."
def from_torch(model, state):
    arrays = {name: jnp.asarray(array) for name, array in state.items()}
    nnx.update(model.conv, {"kernel": arrays["conv.weight"], "bias": arrays["conv.bias"]})
    nnx.update(model.norm, {"scale": arrays["norm.weight"], "bias": arrays["norm.bias"]})
    nnx.update(model.norm, {"mean": arrays["norm.running_mean"], "var": arrays["norm.running_var"]})
    nnx.update(model.linear, {"kernel": arrays["linear.weight"], "bias": arrays["linear.bias"]})
    return model


# %% wrong="torch-port-weights" because="Does not load the running statistics of BatchNorm, which are in the `state_dict` too."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    model.norm.scale[...], model.norm.bias[...] = jnp.asarray(state["norm.weight"]), jnp.asarray(state["norm.bias"])
    return model


# %% wrong="torch-port-weights" because="Stores the square root of the running variance. Both libraries store the variance."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    nnx.update(model.norm, {"scale": jnp.asarray(state["norm.weight"]), "bias": jnp.asarray(state["norm.bias"])})
    nnx.update(
        model.norm, {"mean": jnp.asarray(state["norm.running_mean"]), "var": jnp.sqrt(state["norm.running_var"])}
    )
    return model


# %% wrong="torch-port-weights" because="Flips the kernel of the convolution. Both libraries compute the same sum of products without a flip."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0)[::-1, ::-1])
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model


# %% wrong="torch-port-weights" because="Transposes the linear weights, but keeps PyTorch's order (F, h, w) of the flattened features. NNX flattens (h, w, F)."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, h, w, features).transpose(1, 2, 3, 0)
    model.conv.kernel[...] = jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.asarray(state["conv.bias"])
    model.linear.kernel[...] = jnp.asarray(linear.reshape(h * w * features, -1))
    model.linear.bias[...] = jnp.asarray(state["linear.bias"])
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        getattr(model.norm, ours)[...] = jnp.asarray(state[f"norm.{theirs}"])
    return model


# %% wrong="torch-port-weights" because="Replaces the Variables of the model by plain arrays, or by Variables of another kind."
def from_torch(model, state):
    h, w, features = model.size
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.conv.kernel = nnx.Param(jnp.asarray(state["conv.weight"].transpose(2, 3, 1, 0)))
    model.conv.bias = nnx.Param(jnp.asarray(state["conv.bias"]))
    model.linear.kernel = nnx.Param(jnp.asarray(linear.reshape(h * w * features, -1)))
    model.linear.bias = nnx.Param(jnp.asarray(state["linear.bias"]))
    names = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
    for ours, theirs in names.items():
        setattr(model.norm, ours, nnx.Param(jnp.asarray(state[f"norm.{theirs}"])))
    return model


# %% wrong="torch-port-weights" because="Does not copy the bias of the convolution. In evaluation, BatchNorm subtracts the stored mean, which contains it."
def from_torch(model, state):
    h, w, features = model.size
    model.conv.kernel[...] = state["conv.weight"].transpose(2, 3, 1, 0)
    model.norm.scale[...] = state["norm.weight"]
    model.norm.bias[...] = state["norm.bias"]
    model.norm.mean[...] = state["norm.running_mean"]
    model.norm.var[...] = state["norm.running_var"]
    linear = state["linear.weight"].reshape(-1, features, h, w).transpose(2, 3, 1, 0)
    model.linear.kernel[...] = linear.reshape(h * w * features, -1)
    model.linear.bias[...] = state["linear.bias"]
    return model


# %% wrong="torch-port-weights" because="Exchanges height and width of the flattened features."
def from_torch(model, state):
    h, w, F = model.size
    model.conv.kernel[...] = jnp.array(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.array(state["conv.bias"])
    model.norm.scale[...] = jnp.array(state["norm.weight"])
    model.norm.bias[...] = jnp.array(state["norm.bias"])
    model.norm.mean[...] = jnp.array(state["norm.running_mean"])
    model.norm.var[...] = jnp.array(state["norm.running_var"])
    linear = state["linear.weight"].reshape(-1, F, w, h).transpose(3, 2, 1, 0)
    model.linear.kernel[...] = jnp.array(linear.reshape(h * w * F, -1))
    model.linear.bias[...] = jnp.array(state["linear.bias"])
    return model


# %% wrong="torch-port-weights" because="Corrects the running variance. Evaluation uses the stored variance as it is."
def from_torch(model, state):
    h, w, F = model.size
    model.conv.kernel[...] = jnp.array(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.array(state["conv.bias"])
    model.norm.scale[...] = jnp.array(state["norm.weight"])
    model.norm.bias[...] = jnp.array(state["norm.bias"])
    model.norm.mean[...] = jnp.array(state["norm.running_mean"])
    model.norm.var[...] = jnp.array(state["norm.running_var"] * (h * w - 1) / (h * w))
    linear = state["linear.weight"].reshape(-1, F, h, w).transpose(2, 3, 1, 0)
    model.linear.kernel[...] = jnp.array(linear.reshape(h * w * F, -1))
    model.linear.bias[...] = jnp.array(state["linear.bias"])
    return model


# %% wrong="torch-port-weights" because="Exchanges the scale and the bias of BatchNorm. PyTorch's `weight` is the scale."
def from_torch(model, state):
    h, w, F = model.size
    model.conv.kernel[...] = jnp.array(state["conv.weight"].transpose(2, 3, 1, 0))
    model.conv.bias[...] = jnp.array(state["conv.bias"])
    model.norm.bias[...] = jnp.array(state["norm.weight"])
    model.norm.scale[...] = jnp.array(state["norm.bias"])
    model.norm.mean[...] = jnp.array(state["norm.running_mean"])
    model.norm.var[...] = jnp.array(state["norm.running_var"])
    linear = state["linear.weight"].reshape(-1, F, h, w).transpose(2, 3, 1, 0)
    model.linear.kernel[...] = jnp.array(linear.reshape(h * w * F, -1))
    model.linear.bias[...] = jnp.array(state["linear.bias"])
    return model


# %% wrong="torch-port-weights" because="Stores an array in another dtype than float32."
def from_torch(model, state):
    h, w, F = model.size
    model.conv.kernel[...] = jnp.array(state["conv.weight"].transpose(2, 3, 1, 0), jnp.bfloat16)
    model.conv.bias[...] = jnp.array(state["conv.bias"])
    model.norm.scale[...] = jnp.array(state["norm.weight"])
    model.norm.bias[...] = jnp.array(state["norm.bias"])
    model.norm.mean[...] = jnp.array(state["norm.running_mean"])
    model.norm.var[...] = jnp.array(state["norm.running_var"])
    linear = state["linear.weight"].reshape(-1, F, h, w).transpose(2, 3, 1, 0)
    model.linear.kernel[...] = jnp.array(linear.reshape(h * w * F, -1))
    model.linear.bias[...] = jnp.array(state["linear.bias"])
    return model


# %% right="torch-port-weights"
def from_torch(model, state):
    h, w, features = model.size
    arrays = {name: jnp.asarray(array) for name, array in state.items()}
    linear = jnp.einsum("kfij->ijfk", arrays["linear.weight"].reshape(-1, features, h, w))
    nnx.update(model.conv, {"kernel": jnp.einsum("fcij->ijcf", arrays["conv.weight"]), "bias": arrays["conv.bias"]})
    nnx.update(model.norm, {"scale": arrays["norm.weight"], "bias": arrays["norm.bias"]})
    nnx.update(model.norm, {"mean": arrays["norm.running_mean"], "var": arrays["norm.running_var"]})
    nnx.update(model.linear, {"kernel": linear.reshape(-1, linear.shape[-1]), "bias": arrays["linear.bias"]})
    return model


# %% right="torch-port-weights"
def from_torch(model, state):
    h, w, F = model.size
    order = np.arange(F * h * w).reshape(F, h, w).transpose(1, 2, 0).ravel()  # PyTorch's column for each row of ours
    graphdef, variables = nnx.split(model)
    pure = nnx.to_pure_dict(variables)
    pure["conv"]["kernel"] = jnp.moveaxis(jnp.asarray(state["conv.weight"]), (2, 3), (0, 1)).swapaxes(2, 3)
    pure["conv"]["bias"], pure["linear"]["bias"] = jnp.asarray(state["conv.bias"]), jnp.asarray(state["linear.bias"])
    pure["linear"]["kernel"] = jnp.asarray(state["linear.weight"][:, order].T)
    for name, array in zip(
        ("scale", "bias", "mean", "var"), ("weight", "bias", "running_mean", "running_var"), strict=True
    ):
        pure["norm"][name] = jnp.asarray(state["norm." + array])
    nnx.replace_by_pure_dict(variables, pure)
    return nnx.merge(graphdef, variables)


# %% [markdown] task="torch-port-back" stars=2 minutes=15 skills="torch-port-weights"
# ## Weights of an attention layer, from NNX to PyTorch
# *Needs: Deeper: embeddings and attention.*
#
# **Goal.** Convert the weights of a trained NNX model, so that a colleague can load them with `load_state_dict`.
#
# **Signature.** `to_torch(params)` takes a dict of dicts with float32 arrays. V is the number of tokens, D the width, N the number of heads, and d the size of a head, with D = N * d.
#
# - `"embed"`: `"embedding"` (V, D), of `nnx.Embed`
# - `"attention"`, of `nnx.MultiHeadAttention`: `"query"`, `"key"` and `"value"`, each a dict of `"kernel"` (D, N, d) and `"bias"` (N, d), and `"out"` with `"kernel"` (N, d, D) and `"bias"` (D,)
# - `"norm"`: `"scale"` and `"bias"` (D,), of `nnx.LayerNorm`
# - `"head"`: `"kernel"` (D, V) and `"bias"` (V,), of `nnx.Linear`
#
# It returns a dict of arrays with the names and shapes of PyTorch:
#
# - `"embed.weight"` (V, D), of `nn.Embedding`
# - `"attention.in_proj_weight"` (3 * D, D) and `"attention.in_proj_bias"` (3 * D,), of `nn.MultiheadAttention`. They contain the rows of queries, then those of keys, then those of values. PyTorch computes `x @ in_proj_weight.T + in_proj_bias`. Within each of the three, head 0 has the first d rows.
# - `"attention.out_proj.weight"` (D, D) and `"attention.out_proj.bias"` (D,). PyTorch computes `y @ weight.T + bias` for the outputs of all heads, concatenated in the same order.
# - `"norm.weight"`, `"norm.bias"` (D,), `"head.weight"` (V, D) and `"head.bias"` (V,)
#
# **Example.** For D = 2, N = 2 and d = 1, `params["attention"]["key"]["kernel"][1, 0, 0]` becomes `["attention.in_proj_weight"][2, 1]`.
#
# **Judged.** All arrays, for several numbers of heads. **Not judged.** Whether they are NumPy or JAX arrays.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which two axes of (D, N, d) become the rows of PyTorch's matrix, and in which order?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `kernel.reshape(D, N * d)` is a matrix (in, out), with head 0 in the first d columns. PyTorch stores (out, in).
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `np.concatenate([kernel.reshape(D, D).T for ...])` over query, key and value. The kernel of `out` has its inputs first, so it becomes `.reshape(D, D).T` too. An embedding has the same layout in both libraries.
#
# </details>


# %% answer="torch-port-back"
def to_torch(params):
    """A dict of dicts with the arrays of an NNX model -> a dict with the names and shapes of a PyTorch state_dict."""
    ### BEGIN SOLUTION
    attention = params["attention"]
    width = params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width).T for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }
    ### END SOLUTION


# %% check="torch-port-back" name="example" points=1
"""The example, for the weights of the keys and of the last layer."""
shapes = {name: {"kernel": (2, 2, 1), "bias": (2, 1)} for name in ("query", "key", "value")}
shapes |= {"out": {"kernel": (2, 1, 2), "bias": (2,)}}
shapes = {"embed": {"embedding": (3, 2)}, "attention": shapes, "norm": {"scale": (2,), "bias": (2,)}}
shapes["head"] = {"kernel": (2, 3), "bias": (3,)}
params = jax.tree.map(lambda shape: np.zeros(shape, np.float32), shapes, is_leaf=lambda one: isinstance(one, tuple))
params["attention"]["key"]["kernel"][1, 0, 0], params["head"]["kernel"][0, 2] = 5, 7
got = ask(to_torch, params)
weights, head = np.zeros((6, 2), np.float32), np.zeros((3, 2), np.float32)
weights[2, 1], head[2, 0] = 5, 7
compare(got["attention.in_proj_weight"], weights, label="in_proj_weight")
compare(got["head.weight"], head, label="the weights of the last layer")

# %% hidden="torch-port-back" name="values" points=3
"""All arrays are right, for several numbers of heads."""
rng = inputs.rng()
for V, N, d, words in (
    (5, 2, 3, "for two heads"),
    (6, 3, 2, "when there are as many tokens as the width"),
    (7, 2, 2, "when there are as many heads as numbers in a head"),
    (4, 1, 5, "for one head"),
    (9, 4, 1, "for heads of size 1"),
):
    D = N * d
    params = {"embed": {"embedding": normal(rng, V, D)}, "norm": {"scale": normal(rng, D), "bias": normal(rng, D)}}
    params["attention"] = {
        name: {"kernel": normal(rng, D, N, d), "bias": normal(rng, N, d)} for name in ("query", "key", "value")
    }
    params["attention"]["out"] = {"kernel": normal(rng, N, d, D), "bias": normal(rng, D)}
    params["head"] = {"kernel": normal(rng, D, V), "bias": normal(rng, V)}
    wanted = {"embed.weight": params["embed"]["embedding"], "head.bias": params["head"]["bias"]}
    wanted |= {"norm.weight": params["norm"]["scale"], "norm.bias": params["norm"]["bias"]}
    wanted["head.weight"] = np.einsum("dv->vd", params["head"]["kernel"])
    wanted["attention.in_proj_weight"], wanted["attention.in_proj_bias"] = np.zeros((3 * D, D)), np.zeros(3 * D)
    for third, name in enumerate(("query", "key", "value")):
        for head in range(N):
            rows = slice(third * D + head * d, third * D + (head + 1) * d)
            wanted["attention.in_proj_weight"][rows] = params["attention"][name]["kernel"][:, head].T
            wanted["attention.in_proj_bias"][rows] = params["attention"][name]["bias"][head]
    out = [params["attention"]["out"]["kernel"][head] for head in range(N)]
    wanted["attention.out_proj.weight"] = np.concatenate(out, axis=0).T
    wanted["attention.out_proj.bias"] = params["attention"]["out"]["bias"]
    with case(words):
        got = ask(to_torch, params)
        compare(got, {name: np.asarray(array, np.float32) for name, array in wanted.items()}, label="the state")

# %% [markdown] why="torch-port-back"
# Both libraries compute the same function, but PyTorch multiplies with `weight.T`, and it stores queries, keys and values in one matrix. A dict of NumPy arrays needs neither library, so it is a good format between them. Test a conversion in both directions with random weights, and biases that are not 0. **Next:** Which parts of this conversion would change for a `MultiheadAttention` with `batch_first=False`?


# %% wrong="torch-port-back" because="Does not transpose the kernels of queries, keys and values. PyTorch's matrices are (out, in)."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width) for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Does not transpose the kernel of the output projection."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width).T for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width),
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Reshapes the kernel of a linear layer instead of transposing it."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width).T for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].reshape(-1, width),
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Mixes the heads: the numbers of all heads alternate in the rows, but PyTorch stores one head after the other."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].T.reshape(width, width) for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Mixes the heads: the numbers of all heads alternate in the rows, but PyTorch stores one head after the other."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].T.reshape(width, width) for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].T.reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].T.reshape(width, width),
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Concatenates keys, queries and values. PyTorch's order is queries, keys, values."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in sorted(attention) if name != "out"]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width).T for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Concatenates queries, keys and values of each head. PyTorch stores the queries of all heads first."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    kernels = np.stack([one["kernel"] for one in three], axis=2)  # (D, N, 3, d)
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": kernels.reshape(width, -1).T,
        "attention.in_proj_bias": np.stack([one["bias"] for one in three], axis=1).reshape(-1),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Concatenates queries, keys and values along the axis of the inputs."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width).T for one in three], axis=1),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Transposes the embedding, which has the same layout in both libraries."
def to_torch(params):
    attention, width = params["attention"], params["embed"]["embedding"].shape[1]
    three = [attention[name] for name in ("query", "key", "value")]
    return {
        "embed.weight": params["embed"]["embedding"].T,
        "attention.in_proj_weight": np.concatenate([one["kernel"].reshape(width, width).T for one in three]),
        "attention.in_proj_bias": np.concatenate([one["bias"].reshape(width) for one in three]),
        "attention.out_proj.weight": attention["out"]["kernel"].reshape(width, width).T,
        "attention.out_proj.bias": attention["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Mixes the heads: the numbers of all heads alternate in the rows, but PyTorch stores one head after the other."
def to_torch(params):
    a = params["attention"]
    D, N, d = a["query"]["kernel"].shape
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([a[n]["kernel"].reshape(D, D).T for n in ("query", "key", "value")]),
        "attention.in_proj_bias": np.concatenate([a[n]["bias"].T.ravel() for n in ("query", "key", "value")]),
        "attention.out_proj.weight": a["out"]["kernel"].reshape(D, D).T,
        "attention.out_proj.bias": a["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% wrong="torch-port-back" because="Mixes the heads in the output projection. Its inputs are the outputs of one head after the other."
def to_torch(params):
    a = params["attention"]
    D, N, d = a["query"]["kernel"].shape
    return {
        "embed.weight": params["embed"]["embedding"],
        "attention.in_proj_weight": np.concatenate([a[n]["kernel"].reshape(D, D).T for n in ("query", "key", "value")]),
        "attention.in_proj_bias": np.concatenate([a[n]["bias"].ravel() for n in ("query", "key", "value")]),
        "attention.out_proj.weight": a["out"]["kernel"].transpose(2, 1, 0).reshape(D, D),
        "attention.out_proj.bias": a["out"]["bias"],
        "norm.weight": params["norm"]["scale"],
        "norm.bias": params["norm"]["bias"],
        "head.weight": params["head"]["kernel"].T,
        "head.bias": params["head"]["bias"],
    }


# %% right="torch-port-back"
def to_torch(params):
    flat = lambda kernel: jnp.einsum("knd->ndk", kernel).reshape(-1, kernel.shape[0])
    ours, state = params["attention"], {}
    state["embed.weight"] = jnp.asarray(params["embed"]["embedding"])
    state["attention.in_proj_weight"] = jnp.vstack([flat(ours[name]["kernel"]) for name in ("query", "key", "value")])
    state["attention.in_proj_bias"] = jnp.ravel(jnp.stack([ours[name]["bias"] for name in ("query", "key", "value")]))
    state["attention.out_proj.weight"] = jnp.einsum("ndk->knd", ours["out"]["kernel"]).reshape(
        flat(ours["key"]["kernel"]).shape
    )
    state["attention.out_proj.bias"] = ours["out"]["bias"]
    state["norm.weight"], state["norm.bias"] = params["norm"]["scale"], params["norm"]["bias"]
    state["head.weight"], state["head.bias"] = jnp.swapaxes(params["head"]["kernel"], 0, 1), params["head"]["bias"]
    return state


# %% right="torch-port-back"
def to_torch(params):
    params = jax.tree.map(np.asarray, params)
    state, width = {}, len(params["norm"]["scale"])
    names = {"embedding": "weight", "kernel": "weight", "scale": "weight", "bias": "bias"}
    for layer in ("embed", "norm", "head"):
        for name, array in params[layer].items():
            state[f"{layer}.{names[name]}"] = array.T if name == "kernel" else array
    q, k, v, out = (params["attention"][name] for name in ("query", "key", "value", "out"))
    state["attention.in_proj_weight"] = np.hstack([one["kernel"].reshape(width, -1) for one in (q, k, v)]).T
    state["attention.in_proj_bias"] = np.hstack([one["bias"].ravel() for one in (q, k, v)])
    state["attention.out_proj.weight"] = out["kernel"].reshape(-1, width).T
    return state | {"attention.out_proj.bias": out["bias"]}


# %% [markdown] task="torch-train-state" stars=2 minutes=15 skills="04_grad,07_randomness,nnx-modes"
# ## A training step with four mistakes
# **Goal.** A colleague ported a training step from PyTorch to Linen. It raises no error, but the model learns nothing. Write the step without its four mistakes.
#
# ```python
# @jax.jit
# def train_step(state, xs, ys, key):
#     def loss_fn(params):
#         variables = {"params": state.params, "batch_stats": state.batch_stats}
#         predictions, updates = state.apply_fn(
#             variables, xs, training=True, mutable=["batch_stats"], rngs={"dropout": key}
#         )
#         return jnp.mean((predictions - ys) ** 2), updates
#
#     (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
#     state = state.apply_gradients(grads=grads)
#     return state, loss
# ```
#
# **Signature.** `train_step(state, xs, ys, key)` takes a `State` of the setup whose `apply_fn` is that of a `Regressor`, `xs` (B, inputs) and `ys` (B,) float32, and the typed key of the whole run, which is the same in each step. It returns the new `State` and the loss of this step, a scalar.
#
# - The loss is the mean over the batch of the squared difference of a prediction and its target, in training mode.
# - The dropout key of a step is `jax.random.fold_in(key, state.step)`, with the step before the update.
# - `apply_gradients` updates `params`, `opt_state` and `step`. The new state also contains the new running statistics.
#
# **Example.** If all parameters are 0, all predictions are 0, and the loss is the mean of `ys ** 2`.
#
# **Judged.** The losses, params, running statistics and the step counter after several steps, computed by a compiled program. **Not judged.** Whether `train_step` itself is jitted.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.value_and_grad` differentiates with respect to the argument of `loss_fn`. Where does `loss_fn` use this argument?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Check the shape of `predictions - ys`. Then find out what happens to `updates`, and which dropout mask the second step uses.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `"params": params`, `predictions[:, 0]`, the key from `fold_in`, and `state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"])`, which also replaces other fields of the state.
#
# </details>


# %% answer="torch-train-state" timeout=20
def train_step(state, xs, ys, key):
    """A State, xs (B, inputs), ys (B,), the key of the run -> the new State, the loss ()."""
    ### BEGIN SOLUTION
    rngs = {"dropout": jax.random.fold_in(key, state.step)}

    def batch_loss(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(variables, xs, training=True, mutable=["batch_stats"], rngs=rngs)
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed["batch_stats"]

    (loss, stats), grads = jax.value_and_grad(batch_loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats), loss
    ### END SOLUTION


# %% check="torch-train-state" name="example" points=1
"""The example, with parameters that are 0."""


def probe_zero(ys):
    net, xs = Regressor(3), jnp.ones((len(ys), 2))
    variables = jax.tree.map(jnp.zeros_like, net.init(jax.random.key(0), xs, False))
    state = State.create(apply_fn=net.apply, tx=optax.sgd(0.1), **variables)
    state, loss = train_step(state, xs, ys, jax.random.key(1))
    return state.step, loss


step, loss = ask(probe_zero, jnp.array([1, 2, 3], jnp.float32))
compare(loss, np.float32(14 / 3), label="the loss")
compare(int(step), 1, label="the step counter")

# %% hidden="torch-train-state" name="steps" points=3
"""Losses, params, running statistics and the step counter are right after each of several steps."""


def probe_steps(hidden, start, variables, batches, key):
    tx = optax.sgd(0.05, momentum=0.9)
    state = State.create(apply_fn=Regressor(hidden).apply, tx=tx, **variables).replace(step=jnp.asarray(start))
    losses = []
    for xs, ys in zip(*batches, strict=True):
        state, loss = train_step(state, xs, ys, key)
        losses.append(loss)
    return jnp.stack(losses), state.params, state.batch_stats, state.step


for B, width, hidden, steps, start, words in (
    (6, 3, 8, 1, 0, "in the first step"),
    (5, 4, 6, 1, 7, "in a step in the middle of a run"),
    (4, 2, 7, 3, 0, "after three steps"),
):
    rng, key = inputs.rng(), inputs.key()
    net = Regressor(hidden)
    shapes = {
        "params": {
            "Dense_0": {"kernel": (width, hidden), "bias": (hidden,)},
            "BatchNorm_0": {"scale": (hidden,), "bias": (hidden,)},
            "Dense_1": {"kernel": (hidden, 1), "bias": (1,)},
        },
        "batch_stats": {"BatchNorm_0": {"mean": (hidden,), "var": (hidden,)}},
    }
    draw = lambda shape: 0.5 + 0.5 * np.abs(normal(rng, *shape))
    variables = jax.tree.map(draw, shapes, is_leaf=lambda one: isinstance(one, tuple))
    batches = 2 * normal(rng, steps, B, width), 2 * normal(rng, steps, B)
    params, stats, speed, losses = variables["params"], variables["batch_stats"], None, []
    for n, (xs, ys) in enumerate(zip(*batches, strict=True)):
        rngs = {"dropout": jax.random.fold_in(key, start + n)}

        def loss_by_hand(params):
            given = {"params": params, "batch_stats": stats}
            y, new = net.apply(given, xs, True, rngs=rngs, mutable=["batch_stats"])
            return jnp.square(y.reshape(B) - ys).sum() / B, new["batch_stats"]

        (loss, stats), grads = jax.value_and_grad(loss_by_hand, has_aux=True)(params)
        speed = grads if speed is None else jax.tree.map(lambda v, g: 0.9 * v + g, speed, grads)
        params = jax.tree.map(lambda p, v: p - 0.05 * v, params, speed)
        losses.append(loss)
    wanted = jax.tree.map(np.asarray, (jnp.stack(losses), params, stats))
    with case(words):
        made = program(probe_steps, hidden, np.array(start, np.int32), variables, batches, key)
        got = made.run(hidden, np.array(start, np.int32), variables, batches, key)
        compare(got[0], wanted[0], label="the loss of each step", rtol=1e-3)
        compare(got[2], wanted[2], label="the running statistics", rtol=1e-3)
        compare(got[1], wanted[1], label="the params", rtol=1e-3, atol=1e-4)
        compare(int(got[3]), start + steps, label="the step counter")

# %% [markdown] why="torch-train-state"
# A function that reads `state.params` treats it as a constant, so its gradient is 0. PyTorch finds parameters through the graph, but `jax.grad` differentiates only with respect to an argument. PyTorch also updates running statistics and its random state as side effects. Here, the step returns the statistics, and it derives the key from the step. **Next:** Which of the four mistakes would be noticed first in a plot of the loss?


# %% equivalent="torch-train-state" because="The outputs have one column, and an index after it is clamped to it."
# off by one, 0 -> 1: return jnp.mean((outputs[:, 0] - ys) ** 2), changed["batch_stats"]


# %% wrong="torch-train-state" because="The loss reads `state.params` instead of its argument, so all gradients are 0."
def train_step(state, xs, ys, key):
    dropout_key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        given = {"params": state.params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Uses the same dropout mask in each step, because the key does not depend on the step."
def train_step(state, xs, ys, key):
    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": key})
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Uses the same dropout mask in each step, because the key does not depend on the step."
def train_step(state, xs, ys, key):
    key, dropout_key = jax.random.split(key)

    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Does not store the new running statistics in the state."
def train_step(state, xs, ys, key):
    dropout_key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, _ = state.apply_fn(given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key})
        return jnp.mean((outputs[:, 0] - ys) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


# %% wrong="torch-train-state" because="Subtracts (B,) from (B, 1), which broadcasts to (B, B), so each prediction is compared with all targets."
def train_step(state, xs, ys, key):
    dropout_key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key}
        )
        return jnp.mean((outputs - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Computes the loss in evaluation mode, without dropout and with the running statistics."
def train_step(state, xs, ys, key):
    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        return jnp.mean((state.apply_fn(given, xs, training=False)[:, 0] - ys) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


# %% wrong="torch-train-state" because="Derives the key from the step after the update."
def train_step(state, xs, ys, key):
    dropout_key = jax.random.fold_in(key, state.step + 1)

    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Sums the squared differences instead of averaging them."
def train_step(state, xs, ys, key):
    dropout_key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key}
        )
        return jnp.sum((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Updates the params without `apply_gradients`, and does not count the step."
def train_step(state, xs, ys, key):
    dropout_key = jax.random.fold_in(key, state.step)

    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            given, xs, training=True, mutable=["batch_stats"], rngs={"dropout": dropout_key}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    params = jax.tree.map(lambda p, g: p - 0.05 * g, state.params, grads)
    return state.replace(params=params, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Uses the same dropout mask in each step, because the key does not depend on the step."
@jax.jit
def train_step(state, xs, ys, key):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            variables, xs, training=True, mutable=["batch_stats"], rngs={"dropout": jax.random.split(key)[0]}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"]), loss


# %% wrong="torch-train-state" because="Returns the loss of the new params. The loss of a step is that before the update."
@jax.jit
def train_step(state, xs, ys, key):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            variables, xs, training=True, mutable=["batch_stats"], rngs={"dropout": jax.random.fold_in(key, state.step)}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    new = state.apply_gradients(grads=grads, batch_stats=changed["batch_stats"])
    return new, loss_fn(new.params)[0]


# %% wrong="torch-train-state" because="Computes the running statistics again, with the new params."
@jax.jit
def train_step(state, xs, ys, key):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        outputs, changed = state.apply_fn(
            variables, xs, training=True, mutable=["batch_stats"], rngs={"dropout": jax.random.fold_in(key, state.step)}
        )
        return jnp.mean((outputs[:, 0] - ys) ** 2), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    new = state.apply_gradients(grads=grads)
    changed = loss_fn(new.params)[1]
    return new.replace(batch_stats=changed["batch_stats"]), loss


# %% right="torch-train-state"
@jax.jit
def train_step(state, xs, ys, key):
    def loss_fn(params, stats, key):
        out, changed = state.apply_fn(
            {"params": params, "batch_stats": stats}, xs, True, mutable="batch_stats", rngs={"dropout": key}
        )
        return jnp.mean(jnp.square(out - ys[:, None])), changed["batch_stats"]

    with_stats = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, stats), grads = with_stats(state.params, state.batch_stats, jax.random.fold_in(key, state.step))
    return state.apply_gradients(grads=grads).replace(batch_stats=stats), loss


# %% right="torch-train-state"
def train_step(state, xs, ys, key):
    rngs = {"dropout": jax.random.fold_in(key, state.step)}

    def forward(params):
        return state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats}, xs, True, rngs=rngs, mutable=["batch_stats"]
        )

    outputs, backward, changed = jax.vjp(forward, state.params, has_aux=True)
    error = jnp.squeeze(outputs, axis=1) - ys
    (grads,) = backward((2 * error / len(ys))[:, None])
    moves, opt_state = state.tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, moves)
    state = state.replace(step=state.step + 1, params=params, opt_state=opt_state, **changed)
    return state, jnp.mean(error**2)


# %% [markdown] task="torch-same-curve" stars=3 minutes=30 skills="09_training,08_control_flow,torch-train-state"
# ## The same loss curve
# *Needs: Deeper: same names, other defaults.*
#
# **Goal.** Before you trust a port, train both programs from the same weights on the same batches, and compare the losses of the first steps. Write the JAX side of this test for the following PyTorch program.
#
# ```python
# model = nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.LayerNorm(H), nn.Linear(H, K))
# model.load_state_dict(state)
# optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
# scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=step_size, gamma=0.5)
# losses = []
# for x, y in zip(xs, ys):
#     optimizer.zero_grad()
#     loss = nn.functional.cross_entropy(model(x), y)
#     loss.backward()
#     nn.utils.clip_grad_norm_(model.parameters(), max_norm)
#     optimizer.step()
#     scheduler.step()
#     losses.append(loss)
# ```
#
# In PyTorch 2.13, `GELU` is exact (`approximate="none"`), `LayerNorm` adds 1e-5 to the variance, and the weight decay of `Adam` is added to the gradient: `Adam` uses `grad + weight_decay * weight` in place of the gradient. (Only `AdamW` shrinks the weights separately.) `clip_grad_norm_` scales all gradients together, before the optimizer uses them. `StepLR` multiplies the learning rate by 0.5 after each `step_size` steps.
#
# **Signature.** `train(state, xs, ys, options)`. `state` is a dict with the arrays `"0.weight"` (H, D), `"0.bias"` (H,), `"2.weight"` and `"2.bias"` (H,), `"3.weight"` (K, H), `"3.bias"` (K,). `xs` is (N, B, D) float32 and `ys` (N, B) int32, N batches. `options` is a dict with the Python numbers `"lr"`, `"weight_decay"`, `"max_norm"` and `"step_size"`. It returns the losses (N,) and the trained state, a dict with the names and shapes of `state`.
#
# **Example.** If all arrays of `state` are 0, the first loss is ln K.
#
# **Judged.** The losses and the final state. The program has exactly one loop. **Not judged.** Rounding errors.
#
# <details><summary>Hint 1 · a question</summary>
#
# Optax chains transformations. In which order does PyTorch clip, add the decay, and compute Adam's moments?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.nn.gelu` is an approximation by default. `optax.adamw` adds the decay after the moments, so it is not the same as `Adam` with `weight_decay`. `optax.exponential_decay` has an option `staircase`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `optax.chain(optax.clip_by_global_norm(...), optax.add_decayed_weights(...), optax.adam(schedule))`. Use `jax.nn.gelu(h, approximate=False)` and `jax.nn.standardize(h, axis=-1, epsilon=1e-5)`. Scan over the pairs of `xs` and `ys` with the params and the optimizer state as the carry.
#
# </details>


# %% answer="torch-same-curve" timeout=20
def train(state, xs, ys, options):
    """A state_dict, xs (N, B, D), ys (N, B), the options of the optimizer -> losses (N,), the trained state_dict."""
    ### BEGIN SOLUTION
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        params, moments = carry
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params
    ### END SOLUTION


# %% check="torch-same-curve" name="example" points=1
"""The example: all arrays are 0."""
shapes = {"0.weight": (3, 2), "0.bias": (3,), "2.weight": (3,), "2.bias": (3,), "3.weight": (5, 3), "3.bias": (5,)}
state = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
options = {"lr": 0.1, "weight_decay": 0.1, "max_norm": 1.0, "step_size": 2}
data = np.ones((2, 4, 2), np.float32), np.array([[0, 1, 2, 3], [4, 0, 1, 2]], np.int32)
losses, trained = ask(train, *jax.tree.map(jnp.asarray, (state, *data)), options)
require(np.shape(losses) == (2,), "The losses do not have the shape (2,).")
compare(losses[0], np.log(np.float32(5)), label="the first loss")
compare(jax.tree.map(np.shape, trained), shapes, label="the shapes of the trained state")

# %% hidden="torch-same-curve" name="first-loss" points=1
"""The first loss is that of the PyTorch model, also for small inputs."""


def probe_first(state, xs, ys, options):
    return train(state, xs, ys, options)[0][0]


def exact(a):
    return a * (1 + np.vectorize(math.erf)(a / math.sqrt(2))) / 2


def by_tanh(a):
    return a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) / 2


def first_loss(gelu, state, x, y):
    h = gelu(x.astype(np.float64) @ state["0.weight"].T + state["0.bias"])
    variance = h.var(1, keepdims=True)
    h = (h - h.mean(1, keepdims=True)) / np.sqrt(variance + 1e-5)
    z = (h * state["2.weight"] + state["2.bias"]) @ state["3.weight"].T + state["3.bias"]
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean(), variance.min()


rng = inputs.rng()
for D, H, K, B, scale, words in (
    (6, 9, 4, 5, 2.0, "for moderate inputs"),
    (7, 7, 7, 4, 1.5, "when all layers are square"),
    (3, 8, 5, 6, 0.002, "for small inputs, where the LayerNorm's 1e-5 matters"),
):
    state = {
        "0.weight": normal(rng, H, D),
        "0.bias": 0.5 * scale * normal(rng, H),
        "2.weight": 1 + 0.3 * normal(rng, H),
    }
    state |= {"2.bias": normal(rng, H), "3.weight": normal(rng, K, H), "3.bias": normal(rng, K)}
    ys, clear = rng.integers(K, size=(1, B)).astype(np.int32), False
    while not clear:  # of moderate inputs, the loss shows which GELU is used, and does not show the 1e-5
        xs = scale * normal(rng, 1, B, D)
        wanted, variance = first_loss(exact, state, xs[0], ys[0])
        apart = abs(first_loss(by_tanh, state, xs[0], ys[0])[0] / wanted - 1)
        clear = scale < 1 or (variance > 0.1 * scale**2 and apart > 5e-5)
    with case(words):
        options = {"lr": 0.1, "weight_decay": 0.1, "max_norm": 1.0, "step_size": 1}
        got = ask(probe_first, *jax.tree.map(jnp.asarray, (state, xs, ys)), options)
        compare(got, np.float32(wanted), rtol=1e-5, atol=2e-6, label="the first loss")

# %% hidden="torch-same-curve" name="curve" points=2
"""The losses and the trained state are those of the PyTorch program, computed in one loop."""
rng = inputs.rng()
erf = np.vectorize(math.erf)
for D, H, K, B, N, max_norm, weight_decay, step_size, words in (
    (4, 6, 3, 8, 6, 100.0, 0.2, 100, "when no gradient is clipped and the learning rate is constant"),
    (12, 24, 8, 6, 5, 0.2, 0.3, 100, "when gradients are clipped"),
    (3, 8, 5, 7, 7, 0.4, 0.2, 2, "when the learning rate falls"),
):
    state = {"0.weight": normal(rng, H, D) / 2, "0.bias": normal(rng, H) / 2, "2.weight": 1 + 0.3 * normal(rng, H)}
    state |= {"2.bias": normal(rng, H) / 2, "3.weight": normal(rng, K, H), "3.bias": normal(rng, K)}
    xs, ys = normal(rng, N, B, D), rng.integers(K, size=(N, B)).astype(np.int32)
    options = {"lr": 0.05, "weight_decay": weight_decay, "max_norm": max_norm, "step_size": step_size}
    p = {name: array.astype(np.float64) for name, array in state.items()}
    first, second, wanted = dict.fromkeys(p, 0.0), dict.fromkeys(p, 0.0), []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        a = x @ p["0.weight"].T + p["0.bias"]
        cdf = (1 + erf(a / math.sqrt(2))) / 2
        h = a * cdf
        over = 1 / np.sqrt(h.var(1, keepdims=True) + 1e-5)
        n = (h - h.mean(1, keepdims=True)) * over
        z = (n * p["2.weight"] + p["2.bias"]) @ p["3.weight"].T + p["3.bias"]
        soft, right = np.exp(z) / np.exp(z).sum(1, keepdims=True), np.eye(K)[y]
        wanted.append(-np.log((soft * right).sum(1)).mean())
        dz = (soft - right) / B
        dl = dz @ p["3.weight"]
        dn = dl * p["2.weight"]
        dh = over * (dn - dn.mean(1, keepdims=True) - n * (dn * n).mean(1, keepdims=True))
        da = dh * (cdf + a * np.exp(-a * a / 2) / math.sqrt(2 * math.pi))
        g = {"0.weight": da.T @ x, "0.bias": da.sum(0), "2.weight": (dl * n).sum(0), "2.bias": dl.sum(0)}
        g |= {"3.weight": dz.T @ (n * p["2.weight"] + p["2.bias"]), "3.bias": dz.sum(0)}
        norm = math.sqrt(sum((array**2).sum() for array in g.values()))
        rate = 0.05 * 0.5 ** (i // step_size)
        for name in p:
            d = g[name] * min(1, max_norm / (norm + 1e-6)) + weight_decay * p[name]
            first[name] = 0.9 * first[name] + 0.1 * d
            second[name] = 0.999 * second[name] + 0.001 * d**2
            root = np.sqrt(second[name] / (1 - 0.999 ** (i + 1))) + 1e-8
            p[name] = p[name] - rate * first[name] / (1 - 0.9 ** (i + 1)) / root
    with case(words):
        made = program(train, state, xs, ys, options)
        losses, trained = made.run(state, xs, ys, options)
        compare(losses, np.array(wanted, np.float32), rtol=1e-3, atol=1e-3, label="the losses")
        ended = {name: array.astype(np.float32) for name, array in p.items()}
        compare(trained, ended, rtol=5e-3, atol=5e-3, label="the trained state")
        require(made.loops == 1, "the program has not exactly one loop.")

# %% [markdown] why="torch-same-curve"
# The first loss tests the weights and the forward pass, the second loss tests the gradient and the optimizer, and the third tests the optimizer's state. So three steps find most mistakes of a port, and they take a second. Compare without dropout, because the libraries draw different masks. **Next:** With `GELU` approximated by tanh, the curves differ by about 0.001. Would you notice this in a plot, and how would you find the cause?


# %% wrong="torch-same-curve" because="Uses JAX's default `gelu`, which is the approximation with tanh."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"])
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Adds 1e-6 to the variance, the default of `nnx.LayerNorm`. PyTorch adds 1e-5."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-6) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Multiplies with the weights without a transposition. PyTorch stores (out, in)."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"] + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"] + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Uses `optax.adamw`, which decays the weights separately. PyTorch's `Adam` adds the decay to the gradient."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip = optax.clip_by_global_norm(options["max_norm"])
    optimizer = optax.chain(clip, optax.adamw(rate, weight_decay=options["weight_decay"]))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Adds the decay before clipping. PyTorch clips the gradient of the loss alone."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(decay, clip, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Clips each number of the gradient. `clip_grad_norm_` scales all gradients by one factor."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="The learning rate falls a little in each step. `StepLR` keeps it constant for `step_size` steps."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Keeps the learning rate constant."
def train(state, xs, ys, options):
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(options["lr"]))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Uses a Python loop over the batches, so the program contains all steps one after the other."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = jax.nn.standardize(hidden, axis=-1, epsilon=1e-5) * params["2.weight"] + params["2.bias"]
        logits = hidden @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    params, moments, losses = state, optimizer.init(state), []
    for x, y in zip(xs, ys, strict=True):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        updates, moments = optimizer.update(grads, moments, params)
        params = optax.apply_updates(params, updates)
        losses.append(value)
    return jnp.stack(losses), params


# %% wrong="torch-same-curve" because="Divides by the standard deviation with n - 1. LayerNorm divides by n."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    clip, decay = optax.clip_by_global_norm(options["max_norm"]), optax.add_decayed_weights(options["weight_decay"])
    optimizer = optax.chain(clip, decay, optax.adam(rate))

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["0.weight"].T + params["0.bias"], approximate=False)
        hidden = hidden - hidden.mean(axis=-1, keepdims=True)
        hidden = hidden / jnp.sqrt(hidden.var(axis=-1, keepdims=True, ddof=1) + 1e-5)
        logits = (hidden * params["2.weight"] + params["2.bias"]) @ params["3.weight"].T + params["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        value, grads = jax.value_and_grad(loss)(carry[0], *batch)
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), (xs, ys))
    return losses, params


# %% wrong="torch-same-curve" because="Halves the learning rate one step too early."
def train(state, xs, ys, options):
    rate = lambda count: options["lr"] * 0.5 ** ((count + 1) // options["step_size"])
    tx = optax.chain(
        optax.clip_by_global_norm(options["max_norm"]),
        optax.add_decayed_weights(options["weight_decay"]),
        optax.adam(rate),
    )

    def loss_fn(p, x, y):
        h = x @ p["0.weight"].T + p["0.bias"]
        h = jax.nn.gelu(h, approximate=False)
        h = jax.nn.standardize(h, axis=-1, epsilon=1e-5) * p["2.weight"] + p["2.bias"]
        logits = h @ p["3.weight"].T + p["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, xy):
        p, s = carry
        loss, grads = jax.value_and_grad(loss_fn)(p, *xy)
        updates, s = tx.update(grads, s, p)
        return (optax.apply_updates(p, updates), s), loss

    (state, _), losses = jax.lax.scan(step, (state, tx.init(state)), (xs, ys))
    return losses, state


# %% wrong="torch-same-curve" because="Adds 1e-5 to the standard deviation. LayerNorm adds it to the variance, before the root."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    tx = optax.chain(
        optax.clip_by_global_norm(options["max_norm"]),
        optax.add_decayed_weights(options["weight_decay"]),
        optax.adam(rate),
    )

    def loss_fn(p, x, y):
        h = x @ p["0.weight"].T + p["0.bias"]
        h = jax.nn.gelu(h, approximate=False)
        h = ((h - h.mean(-1, keepdims=True)) / (h.std(-1, keepdims=True) + 1e-5)) * p["2.weight"] + p["2.bias"]
        logits = h @ p["3.weight"].T + p["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, xy):
        p, s = carry
        loss, grads = jax.value_and_grad(loss_fn)(p, *xy)
        updates, s = tx.update(grads, s, p)
        return (optax.apply_updates(p, updates), s), loss

    (state, _), losses = jax.lax.scan(step, (state, tx.init(state)), (xs, ys))
    return losses, state


# %% wrong="torch-same-curve" because="Returns the losses after each update. PyTorch's program stores them before the update."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    tx = optax.chain(
        optax.clip_by_global_norm(options["max_norm"]),
        optax.add_decayed_weights(options["weight_decay"]),
        optax.adam(rate),
    )

    def loss_fn(p, x, y):
        h = x @ p["0.weight"].T + p["0.bias"]
        h = jax.nn.gelu(h, approximate=False)
        h = jax.nn.standardize(h, axis=-1, epsilon=1e-5) * p["2.weight"] + p["2.bias"]
        logits = h @ p["3.weight"].T + p["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, xy):
        p, s = carry
        loss, grads = jax.value_and_grad(loss_fn)(p, *xy)
        updates, s = tx.update(grads, s, p)
        p = optax.apply_updates(p, updates)
        return (p, s), loss_fn(p, *xy)

    (state, _), losses = jax.lax.scan(step, (state, tx.init(state)), (xs, ys))
    return losses, state


# %% wrong="torch-same-curve" because="Clips each array by itself. `clip_grad_norm_` uses the norm of all gradients together."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    tx = optax.chain(
        optax.clip_by_block_rms(options["max_norm"]),
        optax.add_decayed_weights(options["weight_decay"]),
        optax.adam(rate),
    )

    def loss_fn(p, x, y):
        h = x @ p["0.weight"].T + p["0.bias"]
        h = jax.nn.gelu(h, approximate=False)
        h = jax.nn.standardize(h, axis=-1, epsilon=1e-5) * p["2.weight"] + p["2.bias"]
        logits = h @ p["3.weight"].T + p["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, xy):
        p, s = carry
        loss, grads = jax.value_and_grad(loss_fn)(p, *xy)
        updates, s = tx.update(grads, s, p)
        return (optax.apply_updates(p, updates), s), loss

    (state, _), losses = jax.lax.scan(step, (state, tx.init(state)), (xs, ys))
    return losses, state


# %% wrong="torch-same-curve" because="Clips after Adam. PyTorch clips the gradient, before the optimizer uses it."
def train(state, xs, ys, options):
    rate = optax.exponential_decay(options["lr"], options["step_size"], 0.5, staircase=True)
    tx = optax.chain(
        optax.add_decayed_weights(options["weight_decay"]),
        optax.adam(rate),
        optax.clip_by_global_norm(options["max_norm"]),
    )

    def loss_fn(p, x, y):
        h = x @ p["0.weight"].T + p["0.bias"]
        h = jax.nn.gelu(h, approximate=False)
        h = jax.nn.standardize(h, axis=-1, epsilon=1e-5) * p["2.weight"] + p["2.bias"]
        logits = h @ p["3.weight"].T + p["3.bias"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, xy):
        p, s = carry
        loss, grads = jax.value_and_grad(loss_fn)(p, *xy)
        updates, s = tx.update(grads, s, p)
        return (optax.apply_updates(p, updates), s), loss

    (state, _), losses = jax.lax.scan(step, (state, tx.init(state)), (xs, ys))
    return losses, state


# %% right="torch-same-curve"
def train(state, xs, ys, options):
    def loss(p, x, y):
        h = x @ p["0.weight"].T + p["0.bias"]
        h = h * jax.scipy.stats.norm.cdf(h)
        h = (h - h.mean(1, keepdims=True)) * jax.lax.rsqrt(h.var(1, keepdims=True) + 1e-5)
        logits = (h * p["2.weight"] + p["2.bias"]) @ p["3.weight"].T + p["3.bias"]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    def step(carry, batch):
        p, first, second, i = carry
        value, g = jax.value_and_grad(loss)(p, *batch)
        scale = jnp.minimum(1, options["max_norm"] / (optax.global_norm(g) + 1e-6))
        g = jax.tree.map(lambda g, p: g * scale + options["weight_decay"] * p, g, p)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, g)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, g)
        rate = options["lr"] * 0.5 ** (i // options["step_size"])
        move = lambda p, m, v: p - rate * (m / (1 - 0.9 ** (i + 1))) / (jnp.sqrt(v / (1 - 0.999 ** (i + 1))) + 1e-8)
        return (jax.tree.map(move, p, first, second), first, second, i + 1), value

    zeros = jax.tree.map(jnp.zeros_like, state)
    (p, *_), losses = jax.lax.scan(step, (state, zeros, zeros, 0), (xs, ys))
    return losses, p


# %% right="torch-same-curve"
def train(state, xs, ys, options):
    steps = dict.fromkeys(range(options["step_size"], len(xs), options["step_size"]), 0.5)
    optimizer = optax.chain(
        optax.clip_by_global_norm(options["max_norm"]),
        optax.add_decayed_weights(options["weight_decay"]),
        optax.scale_by_adam(),
        optax.scale_by_learning_rate(optax.piecewise_constant_schedule(options["lr"], steps)),
    )
    norm = nnx.LayerNorm(len(state["0.bias"]), epsilon=1e-5, rngs=nnx.Rngs(0))

    def loss(p, x, y):
        hidden = jax.nn.gelu(jnp.einsum("bd,hd->bh", x, p["0.weight"]) + p["0.bias"], approximate=False)
        hidden = norm(hidden) * p["2.weight"] + p["2.bias"]
        logits = jnp.einsum("bh,kh->bk", hidden, p["3.weight"]) + p["3.bias"]
        return optax.softmax_cross_entropy(logits, jax.nn.one_hot(y, logits.shape[1])).mean()

    def step(carry, i):
        value, grads = jax.value_and_grad(loss)(carry[0], xs[i], ys[i])
        updates, moments = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), moments), value

    (params, _), losses = jax.lax.scan(step, (state, optimizer.init(state)), jnp.arange(len(xs)))
    return losses, params
