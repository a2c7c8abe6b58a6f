# %% [markdown]
# # 11 · MNIST: from files to a trained network
#
# *The core takes 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/11_mnist/11_mnist.ipynb).* After the core, you can feed a compiled step from PyTorch's data sets and loaders, train and evaluate a convolutional network, find out whether loading slows down your loop, and examine what the network gets wrong.
#
# **Prerequisites.** `jit` (lesson 03), training steps and asynchronous dispatch (09), NNX modules (10). Answer these questions from memory.
#
# 1. From 03: A compiled step has been called with images of shape `(128, 28, 28, 1)`. What happens when you pass `(29, 28, 28, 1)`?
#
# <details><summary>Answer</summary>
#
# It is traced and compiled again. Each compiled program serves only the shapes and dtypes for which it was traced.
# </details>
#
# 2. From 09: Why does a loop get slower when it prints the loss in every step?
#
# <details><summary>Answer</summary>
#
# Python waits for the number before it submits the next step. After that, the device waits for Python.
# </details>
#
# 3. From 10: A step compiled with `jax.jit` updates a module in place and returns only the loss. What has changed after the call?
#
# <details><summary>Answer</summary>
#
# Nothing, because the update changes a copy. A step must return every module that it changes.
# </details>

# %%
import functools
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from grader.learning import digits, plots
from grader.learning.inspection import print_error
from grader.learning.loaders import DESCRIPTION, MNIST, DataLoader, numpy_collate, seed

# To use your copy of MNIST, set the environment variable JAXERCISE_DIGITS to the folder that contains MNIST/raw.
source = digits.get()
print(DESCRIPTION, source.description, sep="\n")

# %% [markdown]
# ## From files to batches
# A training step takes batches of arrays. Images come from files, one at a time, through Python code. If this code takes longer than the step, the device waits. In this lesson, PyTorch's data tools load handwritten digits, and JAX trains a network on them.
#
# ![From a file to a program. A data set returns one example for an index, an image and a label. The loader draws an order, requests 128 examples and passes them to collate_fn, which stacks them into NumPy arrays (128, 28, 28, 1) and (128,). The compiled step takes these arrays and returns a new model and optimizer. Up to collate_fn, Python handles one example at a time. After it, one program handles a batch at a time.](../images/mnist_feed.svg)
#
# A **data set** has a length and returns an example for each index, here an image and its label. Each time you request an example, it applies `transform` to the image. Here, `transform` converts pixels to floats and adds an axis for channels, of which a grayscale image has one. For training, it also moves the digit by up to two pixels. The label stays the same, but the pixels differ in each epoch. This is called **data augmentation**.
#
# `MNIST` and `DataLoader` are classes of torchvision and PyTorch, or stand-ins with the same interface. The output above shows which classes and digits you have.


# %%
draws = np.random.default_rng(11)


def to_floats(image):
    """An image (28, 28) with values 0 to 255 -> (28, 28, 1) float32 from 0 to 1"""
    return np.asarray(image, np.float32)[..., None] / 255


def moved(image):
    """to_floats(image), moved by up to two pixels in each direction"""
    row, column = draws.integers(5, size=2)
    return np.pad(to_floats(image), ((2, 2), (2, 2), (0, 0)))[row : row + 28, column : column + 28]


train_set = MNIST(source.root, train=True, transform=moved)
test_set = MNIST(source.root, train=False, transform=to_floats)
print(f"{len(train_set):,} training examples, {len(test_set):,} test examples")

# %%
_, axes = plots.subplots(2, 8, height=2)
examples = [train_set[i] for _ in range(2) for i in range(8)]  # each is requested twice
for ax, (image, label) in zip(axes.flat, examples, strict=True):
    ax.imshow(image[..., 0], cmap="gray_r")
    ax.set_title(label if ax in axes[0] else "")
    ax.axis("off")
plots.show(
    f"Eight handwritten digits with the labels {', '.join(str(label) for _, label in examples[:8])}. Each is shown "
    "twice, one above the other. In the second row, the digits are at slightly different positions."
)

# %% [markdown]
# ## Batches of one shape
# A **loader** chooses an order, which is random with `shuffle=True`, and requests the examples from the data set. It passes lists of 128 examples to `collate_fn`, which makes batches. PyTorch's default `collate_fn` makes torch tensors, which a jitted function rejects.

# %%
xs, ys = next(iter(DataLoader(test_set, batch_size=128)))  # the stand-in makes NumPy arrays, so it causes no error
print(type(xs))
print_error(lambda: jax.jit(jnp.mean)(xs), length=240)

# %% [markdown]
# So we write our own `collate_fn`, which makes NumPy arrays.


# %%
def collate(examples):
    """A list of (image, label) -> images (B, 28, 28, 1) float32, labels (B,) int32"""
    images, labels = zip(*examples, strict=True)
    return np.stack(images), np.array(labels, np.int32)


load = functools.partial(DataLoader, batch_size=128, collate_fn=collate)
xs, ys = next(iter(load(test_set)))
print(type(xs).__name__, xs.shape, xs.dtype, type(ys).__name__, ys.shape, ys.dtype)

# %% [markdown] predict="mnist-drop-last"
# The number of test images is not a multiple of 128. How often is a compiled function traced in **two** epochs?
#
# - [ ] once | The function is the same, but the shapes are not. The last batch is smaller.
# - [x] twice | Right. It is traced for 128 examples and for the rest. In the second epoch, both programs are in the cache.
# - [ ] four times, twice in each epoch | The programs stay in the cache, so the second epoch needs no new ones.


# %%
def count_traces(loader):
    traces = []

    @jax.jit
    def mean(xs):
        traces.append(len(xs))  # runs only while JAX traces the function
        return jnp.mean(xs)

    for _ in range(2):  # epochs
        for xs, _ in loader:
            mean(xs)
    return traces


print("all batches:    traced for batches of", count_traces(load(test_set)))
print("drop_last=True: traced for batches of", count_traces(load(test_set, drop_last=True)))

# %% [markdown]
# Each batch size needs a program of its own. In training, drop the last batch. With `shuffle=True`, each epoch drops different examples. An evaluation should count every image. Choose a batch size that divides the number of images, or pad the last batch and mask the padding (an exercise).
#
# ## A residual network
# A 3 × 3 **convolution** computes each output from all channels of a pixel and its neighbours, with the same weights at every position. Networks with many such layers are hard to train. A **residual block** therefore adds the result of its layers to its input. In the backward pass, the gradient also flows unchanged through the addition to earlier layers.


# %%
class Block(nnx.Module):
    def __init__(self, channels, scale, *, rngs):
        self.conv = nnx.Conv(channels, channels, kernel_size=(3, 3), rngs=rngs)
        self.scale = scale

    def __call__(self, x):
        return x + self.scale * nnx.relu(self.conv(x))


# %% [markdown]
# `scale` multiplies what a block adds. In the network, a convolution of stride 2 computes only every second row and column, so height and width become 14. After the blocks, two linear layers compute a score for each digit. The scores are called **logits**. `nnx.Conv` expects the channels last, `(B, height, width, channels)`.


# %%
class Network(nnx.Module):
    """Images (B, 28, 28, 1) -> a score for each digit (B, 10)"""

    def __init__(self, channels, depth, *, rngs):
        self.shrink = nnx.Conv(1, channels, kernel_size=(3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([Block(channels, 1 / depth, rngs=rngs) for _ in range(depth)])
        self.hidden = nnx.Linear(14 * 14 * channels, 64, rngs=rngs)
        self.scores = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.shrink(images))
        for block in self.blocks:
            x = block(x)
        x = x.reshape(len(x), -1)  # one row of features for each image
        return self.scores(nnx.relu(self.hidden(x)))


# %% [markdown]
# ![A residual block. Its input takes two paths. One leads straight to the addition. The other leads through a 3 by 3 convolution and a relu, and is multiplied by 1 / depth. Below, the network: a convolution with stride 2, depth blocks, two linear layers and ten scores. The straight paths form one line between the first and the last layer, along which gradients flow in the backward pass.](../images/mnist_residual.svg)
#
# With a scale of 1 / depth, the total that all blocks add has a similar size for every depth.

# %%
on_cpu = jax.default_backend() == "cpu"  # where the larger network would train for too long
sizes = {"channels": 16, "depth": 2} if on_cpu else {"channels": 64, "depth": 32}
create = jax.jit(lambda: Network(**sizes, rngs=nnx.Rngs(0)))  # one program draws all parameters
model = create()
scores = model(xs)
count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
print(f"{sizes}: {count:,} parameters, scores of a batch {scores.shape}")
print(f"accuracy before training: {jnp.mean(scores.argmax(-1) == ys):.1%}")

# %% [markdown]
# ## Steps for training and evaluation
# The optimizer is an `nnx.Optimizer` (10) whose learning rate first rises and then falls (09). The loss is the cross entropy, the negative logarithm of the probability of the correct digit, averaged over the batch. An `nnx.MultiMetric` accumulates metrics over several batches, until `reset`.

# %%
STEPS = 220
rate = optax.warmup_cosine_decay_schedule(0.0, 0.003, warmup_steps=STEPS // 10, decay_steps=STEPS)
tx = optax.adam(rate)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
metrics = nnx.MultiMetric(
    loss=nnx.metrics.Average("loss"),  # the mean of the argument `loss`
    accuracy=nnx.metrics.Accuracy(),  # compares the arguments `logits` and `labels`
)


def loss_and_scores(model, xs, ys):
    scores = model(xs)
    return optax.softmax_cross_entropy_with_integer_labels(scores, ys).mean(), scores


# %% [markdown]
# The step changes the model, the optimizer and the metrics, so it takes and returns all three. They are [donated](../docs/glossary.md#donation), so XLA can reuse their memory. After the call, only the returned objects are valid.


# %%
@functools.partial(jax.jit, donate_argnames=("model", "optimizer", "metrics"))
def train_step(model, optimizer, metrics, xs, ys):
    (loss, scores), grads = nnx.value_and_grad(loss_and_scores, has_aux=True)(model, xs, ys)
    optimizer.update(model, grads)
    metrics.update(loss=loss, logits=scores, labels=ys)
    return model, optimizer, metrics, loss


@jax.jit
def eval_step(model, metrics, xs, ys):
    loss, scores = loss_and_scores(model, xs, ys)
    metrics.update(loss=loss, logits=scores, labels=ys)
    return metrics


# %% [markdown]
# ## The training loop
# `seed` fixes the random order. `batches` repeats the loader, with a new order in each epoch, until there are 220 batches. Every 20 steps, the loop records the metrics of these steps and those of up to 1,000 test images. Only `record` reads numbers and waits for the device.


# %%
def repeat(loader):
    """Yields the batches of one epoch after the other, without end."""
    while True:
        yield from loader


seed(0)
loader = load(train_set, shuffle=True, drop_last=True)
batches = itertools.islice(repeat(loader), STEPS)
some_images, some_labels = next(iter(load(test_set, batch_size=min(len(test_set), 1000))))
history = {"train": [], "test": []}


def record(name, metrics):
    """Appends the metrics to the history and resets them."""
    history[name].append({key: float(value) for key, value in metrics.compute().items()})
    metrics.reset()


# %%
start = time.perf_counter()
for n, (xs, ys) in enumerate(batches, 1):
    model, optimizer, metrics, _ = train_step(model, optimizer, metrics, xs, ys)
    if n % 20 == 0:
        record("train", metrics)
        metrics = eval_step(model, metrics, some_images, some_labels)
        record("test", metrics)
        print(f"step {n:3d}: test accuracy {history['test'][-1]['accuracy']:.1%}")
print(f"{STEPS} steps, {STEPS * 128 / len(train_set):.1f} epochs, {time.perf_counter() - start:.0f} s")

# %%
_, axes = plots.subplots(1, 2, height=2.6)
steps, last = np.arange(20, STEPS + 1, 20), {}
for name, marker in {"train": "o", "test": "s"}.items():
    for ax, key in zip(axes, ("loss", "accuracy"), strict=True):
        ax.plot(steps, [recorded[key] for recorded in history[name]], marker=marker, markersize=4, label=name)
    last[name] = "{loss:.3f} and an accuracy of {accuracy:.1%}".format(**history[name][-1])
axes[0].set(xlabel="step", ylabel="loss", yscale="log")
axes[1].set(xlabel="step", ylabel="accuracy", ylim=(0.4, 1.02))
axes[1].legend(loc="lower right")
plots.show(
    f"The loss and the accuracy over {STEPS} steps, for training and test images. The losses fall and the accuracies "
    f"rise, fastest at the beginning. At the end, the training images have a loss of {last['train']}, "
    f"the test images a loss of {last['test']}."
)

# %% [markdown]
# A training point is a mean over 20 steps, during which the network improves, and its images have been moved. Both can put the training accuracy below the test accuracy. A network that **overfits** memorizes its training images. Its test loss rises while its training loss still falls.
#
# ## Does the device wait for data?
# In each iteration, the loader prepares a batch and the device computes a step. Suppose that the disk is slow, and loading a batch takes as long (L) as a step (S). We compare three loops.
#
# 1. The loop reads the loss in each iteration.
# 2. The loop reads the loss, and a thread loads the next batch.
# 3. The loop does not read the loss.


# %%
from concurrent.futures import ThreadPoolExecutor


def slow_disk(seconds_per_batch):
    """Yields ten batches. Loading each of them takes a given time."""
    for _ in range(10):
        time.sleep(seconds_per_batch)
        yield xs, ys


def ahead(batches):
    """Yields the same batches. A thread loads the next one and copies it to the device."""
    batches = iter(batches)
    load_next = lambda: jax.device_put(next(batches, None))  # None at the end
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(load_next)
        while (batch := upcoming.result()) is not None:
            upcoming = thread.submit(load_next)
            yield batch


# %%
def seconds_per_iteration(batches, read_loss):
    state = jax.tree.map(jnp.copy, (model, optimizer, metrics))  # the step donates its arguments
    jax.block_until_ready(state)
    start = time.perf_counter()
    for batch in batches:
        *state, loss = train_step(*state, *batch)
        if read_loss:
            float(loss)  # waits for the step
    jax.block_until_ready(state)
    return (time.perf_counter() - start) / 10


# %% [markdown] predict="mnist-waiting"
# Which of the three loops need clearly **less** time than L + S for an iteration?
#
# - [ ] none, because a step needs its batch before it can start | It needs *its* batch. The next batch can be loaded meanwhile.
# - [ ] only the one with the thread, because Python does one thing at a time | It does. But for a step, Python only submits a program, and can then load.
# - [x] two: the one with the thread and the one that does not read the loss | Right. Either a thread loads while Python waits for the loss, or Python does not wait and loads itself.
# - [ ] all three, because the device computes anyway | The first loop waits for the step and loads only then. Meanwhile the device has nothing to do.

# %%
load_s = min(seconds_per_iteration(slow_disk(0), read_loss=True) for _ in range(3))  # as long as a step
loops = {
    "no disk": lambda: seconds_per_iteration(slow_disk(0), read_loss=True),
    "reads the loss": lambda: seconds_per_iteration(slow_disk(load_s), read_loss=True),
    "reads the loss,\na thread loads": lambda: seconds_per_iteration(ahead(slow_disk(load_s)), read_loss=True),
    "does not read the loss": lambda: seconds_per_iteration(slow_disk(load_s), read_loss=False),
}
rounds = [[loop() for loop in loops.values()] for _ in range(5)]
best_ms = {name: 1e3 * min(times) for name, times in zip(loops, zip(*rounds, strict=True), strict=True)}
step_ms = best_ms.pop("no disk")
both_ms = 1e3 * load_s + step_ms

# %%
_, axes = plots.subplots(height=2)
bars = axes.barh(list(best_ms), list(best_ms.values()), color=plots.COLOURS[5], height=0.55)
axes.bar_label(bars, fmt="%.1f ms", padding=6, backgroundcolor=plots.PAPER)
axes.axvline(both_ms, color=plots.COLOURS[1], label=f"L + S = {both_ms:.1f} ms")
axes.set(xlabel="milliseconds for an iteration", xlim=(0, 1.3 * max(best_ms.values())))
axes.invert_yaxis()
axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
described = "; ".join(f"{' '.join(name.split())}: {took:.1f} ms" for name, took in best_ms.items())
plots.show(f"Bars for the time of an iteration, beside a line at L + S, {both_ms:.1f} ms. {described}.")

# %% [markdown]
# Dispatch is [asynchronous](../docs/glossary.md#asynchronous-dispatch). While the device computes, Python can load the next batch, unless it waits for a number. If you need the loss in each step, load in a thread.
#
# How many images per second do the loader and the step process? The third line is for indexing one array of all images, without moving the digits.

# %%
start = time.perf_counter()
loaded = sum(len(labels) for _, labels in itertools.islice(loader, 10))
print(f"loader            {loaded / (time.perf_counter() - start):9,.0f} images per second")
print(f"training step     {128e3 / step_ms:9,.0f}")
all_images, all_labels = source.arrays(train=True)
start = time.perf_counter()
for _ in range(10):
    chosen = draws.choice(len(all_images), 128, replace=False)
    batch = all_images[chosen, ..., None].astype(np.float32) / 255, all_labels[chosen]
print(f"indexing an array {1280 / (time.perf_counter() - start):9,.0f}")

# %% [markdown]
# When loading and computing overlap, the slower of the two limits the speed of training. Data that fit into memory need no loader. Put them into one array and index it in a random order, as in the first exercise.
#
# ## What does the network get wrong?
# The accuracy does not show which digits the network confuses. The softmax of the scores gives a probability for each digit. The next cell computes it for every test image, in batches of 40, which divides both 360 and 10,000.


# %%
@jax.jit
def predict(model, xs):
    return jax.nn.softmax(model(xs))


parts = [(xs, ys, predict(model, xs)) for xs, ys in load(test_set, batch_size=40)]
images, labels, probabilities = (np.concatenate(part) for part in zip(*parts, strict=True))
predicted = probabilities.argmax(-1)
print(f"test accuracy, every image: {np.mean(predicted == labels):.2%}")

# %%
confusion = np.zeros((10, 10), int)
np.add.at(confusion, (labels, predicted), 1)
of_label = probabilities[np.arange(len(labels)), labels]  # the probability of the correct digit
hardest = np.argsort(of_label)[:4]
_, (table, *small) = plots.subplots(1, 5, height=2.2, width_ratios=[2, 1, 1, 1, 1])
table.imshow(np.log1p(confusion), cmap="Blues")
table.set(xlabel="prediction", ylabel="label", xticks=range(10), yticks=range(10))
for label, other in np.argwhere(confusion * (1 - np.eye(10))):  # the mistakes
    table.text(other, label, confusion[label, other], ha="center", va="center", fontsize=7)
for ax, i in zip(small, hardest, strict=True):
    ax.imshow(images[i, ..., 0], cmap="gray_r")
    ax.set_title(f"{labels[i]} as {predicted[i]}\np({labels[i]}) = {of_label[i]:.0%}")
    ax.axis("off")
plots.show(
    f"A table of labels by predictions. {np.trace(confusion):,} of its {confusion.sum():,} counts are on the diagonal. "
    "Beside it are the four images whose labels have the lowest probabilities: "
    + ", ".join(f"{labels[i]} predicted as {predicted[i]} ({of_label[i]:.0%} for {labels[i]})" for i in hardest)
)

# %% [markdown]
# The table is a **confusion matrix**. Counts off the diagonal are mistakes. The images are the four whose labels have the lowest probabilities. Their titles give label, prediction and probability. Look at such images before you change the network. If a model has Dropout or BatchNorm, call `model.eval()` before you predict (10).
#
# **Do not make decisions with test images.** We only watched them. If you choose the number of steps by the test accuracy, the accuracy that you report is too optimistic. Decide with a third set of images, the validation set.
#
# ## What goes wrong
# Images often have the wrong dtype or the wrong order of axes.

# %%
pixels = np.array([100, 200], np.uint8)
print("uint8 minus 128:", pixels - 128, "  uint8 divided by 255:", (pixels / 255).dtype)
print_error(lambda: model(some_images.transpose(0, 3, 1, 2)))

# %% [markdown]
# Differences of uint8 wrap around, so the smaller pixel becomes the larger one here. Division gives float64, which takes twice the memory, and JAX converts it to float32 by default. Convert to float32 first. PyTorch puts the channels first, `(B, 1, 28, 28)`, but `nnx.Conv` expects them last.
#
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: the same step with nnx.jit
# Flax's tutorial compiles its steps with `nnx.jit`, which writes all changes back into the objects that were passed (10). The step does not have to return them.


# %%
@nnx.jit
def nnx_train_step(model, optimizer, metrics, xs, ys):
    (loss, scores), grads = nnx.value_and_grad(loss_and_scores, has_aux=True)(model, xs, ys)
    optimizer.update(model, grads)
    metrics.update(loss=loss, logits=scores, labels=ys)


def new_objects():
    model = create()
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param), metrics


# %%
by_jax, by_nnx = new_objects(), new_objects()
for batch in itertools.islice(load(test_set), 2):  # any images will do
    *by_jax, _ = train_step(*by_jax, *batch)
    nnx_train_step(*by_nnx, *batch)
for name, (_, _, its_metrics) in {"jax.jit": by_jax, "nnx.jit": by_nnx}.items():
    print(name, {key: round(float(value), 4) for key, value in its_metrics.compute().items()})

# %% [markdown]
# The metrics are equal. The loop around an `nnx.jit` step is shorter, because it assigns nothing. The price is the time that `nnx.jit` spends in Python in each call, as measured in lesson 10.
#
# ## Deeper: save the network
# The parameters are arrays with a path, so a file of NumPy can store them. To load the network, create one with the same settings, and write the arrays into its Variables.


# %%
import tempfile
from pathlib import Path


def arrays_of(tree):
    """The array of each Variable of a module or an optimizer, by its path"""
    return {"/".join(map(str, path)): np.asarray(v[...]) for path, v in nnx.to_flat_state(nnx.state(tree))}


def load_into(tree, file):
    for path, variable in nnx.to_flat_state(nnx.state(tree)):
        variable[...] = file["/".join(map(str, path))]


# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.npz"
    np.savez(path, **arrays_of(model))
    loaded = create()
    with np.load(path) as file:
        print(path.stat().st_size // 1000, "kB, for example", file.files[:2])
        load_into(loaded, file)
print("equal scores:", bool(jnp.array_equal(loaded(some_images), model(some_images))))

# %% [markdown]
# The state of the optimizer can be saved in the same way, so that training resumes with the same moments (09). Dropout also has a key, which `jax.random.key_data` converts to numbers (07). For large models and for checkpoints during training, use Orbax (lesson 24).
#
# ## Deeper: how much should a block add?
# The blocks of our network scale what they add by 1 / depth. What happens with a scale of 1?

# %% [markdown] predict="mnist-depth"
# With a scale of 1, an untrained block increases the largest numbers by about half. The input of 32 such blocks has numbers up to about 2. How large are the numbers after the last block?
#
# - [x] hundreds of thousands | Right. Each block adds half of what it *receives*, so the numbers grow exponentially.
# - [ ] about 3, because half of 2 is added | This is the result of one block. The second block adds to that result.
# - [ ] about 34, because each block adds 1 to the 2 of the input | The second block adds half of 3, not half of 2. Each block adds more than the one before it.

# %%
rngs = nnx.Rngs(0)
first = nnx.relu(nnx.Conv(1, 16, (3, 3), rngs=rngs)(some_images[:8]))
convs = [nnx.Conv(16, 16, (3, 3), rngs=rngs) for _ in range(32)]
linear = nnx.Linear(first[0].size, 10, rngs=nnx.Rngs(1))
for scale in (1, 1 / 32):
    x = first
    for conv in convs:
        x = x + scale * nnx.relu(conv(x))
    loss = optax.softmax_cross_entropy_with_integer_labels(linear(x.reshape(8, -1)), some_labels[:8]).mean()
    growth = (x.max() / first.max()) ** (1 / 32)
    print(f"scale {scale:<7} from {first.max():.2f} to {x.max():,.2f}, a factor of {growth:.2f} per block")
    print(f"              loss {loss:,.2f}")

# %% [markdown]
# When the numbers are that large, so are the scores and the loss, and training starts far from a good solution. With a scale of 1 / 32, the numbers hardly grow.
#
# On an accelerator, the lesson uses a network with 32 blocks. `jax.eval_shape` computes its shapes without creating it (10).

# %%
for its_sizes in ({"channels": 16, "depth": 2}, {"channels": 64, "depth": 32}):
    shapes = nnx.state(jax.eval_shape(lambda: Network(**its_sizes, rngs=nnx.Rngs(0))), nnx.Param)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    print(f"{its_sizes}: {count:,} parameters, {4 * count / 2**20:.1f} MiB")

# %% [markdown]
# ## Deeper: worker processes
# A thread helps while loading *waits*, for a disk or a network. Loading that *computes* in Python holds Python's global interpreter lock (GIL), so other Python code waits. `DataLoader(num_workers=2)` loads in two other processes instead.
#
# On Linux, before Python 3.14, these processes are created by `fork` unless you choose another method. A fork copies the process, but only one of its threads continues in the copy. JAX starts many threads. A lock that another thread held at that moment stays locked in the copy forever. JAX therefore warns when a process forks.

# %%
import multiprocessing
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    child = multiprocessing.get_context("fork").Process(target=int)  # does nothing and ends
    child.start()
    child.join()
print("\n".join({str(one.message) for one in caught if "JAX" in str(one.message)}) or "no warning")

# %% [markdown]
# The method `forkserver` is safe. It starts one clean process, which imports the modules that you list, and forks the workers from it. The workers receive the data set and the functions by pickle, so these must be defined in a module. A worker cannot import a function that is defined in a notebook, so the next cell uses the course's own `numpy_collate`.

# %%
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["grader.learning.loaders"])
plain_set = MNIST(source.root, train=True, transform=np.asarray)
processes = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": True, "prefetch_factor": 2}
for name, options in {"in this process": {}, "in two workers": processes}.items():
    workers = DataLoader(plain_set, batch_size=128, drop_last=True, collate_fn=numpy_collate, **options)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        shapes = {xs.shape for xs, _ in itertools.islice(workers, 8)}
        times.append(time.perf_counter() - start)
    print(f"{name:16s} 8 batches of {shapes}: {times[0]:.2f} s, in the next epoch {times[1]:.2f} s")
    del workers

# %% [markdown]
# The first epoch waits until the processes have started and imported their modules. `persistent_workers` keeps them for later epochs. These images are so small that workers save little time. Workers help when an example takes milliseconds, for instance when a JPEG has to be decoded. First compare the speeds of loader and step, as in the core.
#
# **Do not use JAX in workers.** They run the data set, its `transform` and `collate_fn`. Do not share a NumPy generator either. Each worker receives a copy in the same state, so all workers draw the same numbers.

# %%
import pickle

copies = [pickle.loads(pickle.dumps(draws)) for _ in range(2)]
print([copy.integers(5, size=6).tolist() for copy in copies])

# %% [markdown]
# Create a generator in each worker instead, with `worker_init_fn`, or augment on the device with keys, as an exercise does.
#
# ## Deeper: Grain and TensorFlow Datasets
# Any iterator of NumPy arrays can feed a compiled step. **Grain** is a loader written for JAX. It makes NumPy arrays without a `collate_fn`. Its order follows from a seed, and its position can be saved, so an interrupted run resumes with the next batch (24). With Grain, batches like those of the core are created as follows. Grain is not installed with this course, so this is not a cell.
#
# ```python
# import grain
#
# loader = (
#     grain.MapDataset.source(MNIST(source.root, train=True, transform=to_floats))
#     .shuffle(seed=0)
#     .repeat()
#     .batch(128, drop_remainder=True)
#     .to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=16))
# )
# batches = iter(loader)
# position = batches.get_state()  # for the checkpoint; batches.set_state(position) restores it
# ```
#
# Flax's tutorial uses **TensorFlow Datasets**. Here is such a pipeline. `prefetch(1)` prepares one batch ahead.
#
# ```python
# import tensorflow as tf
# import tensorflow_datasets as tfds
#
# train_ds = tfds.load("mnist", split="train")
# train_ds = train_ds.map(lambda example: (tf.cast(example["image"], tf.float32) / 255, example["label"]))
# train_ds = train_ds.repeat().shuffle(1024).batch(128, drop_remainder=True).take(STEPS).prefetch(1)
# batches = train_ds.as_numpy_iterator()
# ```
#
# `drop_remainder` corresponds to PyTorch's `drop_last`. `shuffle(1024)` draws from a buffer of 1,024 examples, so the order is not completely random.
#
# ## Deeper: what do the layers compute?
# `nnx.capture` runs a module and also returns the outputs of its methods. It works in a compiled function. Here is the image of an 8, and eight channels of the outputs of the first convolution, of the first block and of the last block.

# %%
capture = jax.jit(lambda model, xs: nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(xs))
eight = int(np.argmax(some_labels == 8))
scores, captured = capture(model, some_images[eight : eight + 1])
outputs = {"shrink": nnx.relu(captured["shrink"]["__call__"][0])}
outputs |= {f"block {i}": captured["blocks"][i]["__call__"][0] for i in (0, len(model.blocks) - 1)}
print("scores:", np.round(np.asarray(scores[0]), 1))
for (before, one), (after, other) in itertools.pairwise(outputs.items()):
    print(f"{after} minus {before}: from {(other - one).min():.2f} to {(other - one).max():.2f}")

# %%
_, axes = plots.subplots(len(outputs), 9, height=0.85 * len(outputs))
brightest = np.max(list(outputs.values()), axis=(0, 1, 2, 3))  # of each channel, so that rows can be compared
for row, (name, maps) in zip(axes, outputs.items(), strict=True):
    row[0].imshow(some_images[eight, ..., 0], cmap="gray_r")
    row[0].set_title(name)
    for i, ax in enumerate(row[1:]):
        ax.imshow(maps[0, ..., i], cmap="viridis", vmin=0, vmax=brightest[i])
    for ax in row:
        ax.axis("off")
plots.show(
    f"A handwritten 8 and, beside it, eight channels of each of {', '.join(outputs)}. Each column is one channel, a small "
    "map of the same 8, and no map is darker than the one above it. In some maps "
    "the whole stroke is bright, in others only a part of it, such as its left edge."
)

# %% [markdown]
# Each column is one channel, with the same colours in all rows. The channels respond to different parts of the digit. Some maps show the whole stroke and others only some of its edges. A block adds the output of a relu, which is never negative, so no value decreases from row to row.
#
# ## Deeper: from PyTorch
#
# | in PyTorch | here |
# |---|---|
# | `for x, y in loader: x.to(device)` | the compiled step accepts NumPy arrays; `jax.device_put` in a thread copies them earlier |
# | `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()` | `jax.value_and_grad`, `optimizer.update(model, grads)` |
# | `with torch.no_grad()` | not needed; JAX computes derivatives only where you ask for them |
# | `torchmetrics` | `nnx.MultiMetric` |
# | images `(B, C, H, W)` | `(B, H, W, C)` |
# | `nn.AvgPool2d(2)` | `nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))` |
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `nnx.Optimizer(model, tx)`, `optimizer.update(grads)`, as in older versions of Flax's tutorial | `nnx.Optimizer(model, tx, wrt=nnx.Param)`, `optimizer.update(model, grads)` |
# | `flax.linen`, `train_state.TrainState.create(...)` | an `nnx.Module` and an `nnx.Optimizer` |
# | `self.sow(...)`, then `nnx.state(model, nnx.Intermediate)` | `nnx.capture` around the call |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | a data set | a class with a length and an index; `transform` for each image |
# | NumPy arrays from PyTorch's loader | `collate_fn` with `np.stack` and an explicit dtype |
# | one program for all batches | `drop_last=True` in training; padding and a mask in evaluation |
# | loss and accuracy over many batches | `nnx.MultiMetric`, passed to the step and returned |
# | to load while the device computes | do not read a number in each step, or load in a thread |
# | data that fit into memory | one array, indexed with shuffled numbers |
# | a deep network that trains | blocks that add to their input |
# | to save it | *Deeper: save the network* |
