# %% [markdown]
# # 11 · MNIST: from files to a trained network
#
# *Forty minutes, then [the exercises](../exercises/11_mnist/11_mnist.ipynb).* Afterwards you can feed a compiled step from PyTorch's data sets and loaders, keep every batch the same shape, say who waits for whom, start worker processes that do not deadlock, train a residual network with a progress bar and a curve, look inside it, and show what it gets wrong.
#
# **Assumed.** `jit` (03), keys (07), training steps and what waits (09), NNX modules, `split` and `merge` (10). Recall before you go on; answer first, then open the fold.
#
# 1. From 03: a compiled step has met images `(128, 28, 28, 1)`; now `(29, 28, 28, 1)` come. What happens?
#
# <details><summary>Answer</summary>
#
# It is traced and compiled once more: a program is for given shapes and dtypes.
# </details>
#
# 2. From 09: why is a loop slower that prints the loss in every step?
#
# <details><summary>Answer</summary>
#
# The number has to be there to be printed, so Python waits; and then the device waits for Python.
# </details>
#
# 3. From 10: a plainly jitted step changes a module in place and returns nothing. What has changed afterwards?
#
# <details><summary>Answer</summary>
#
# Nothing. What a step changes goes in as an argument and comes out as a result.
# </details>

# %%
import functools
import itertools
import multiprocessing
import queue
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tqdm import tqdm

from grader.learning import digits, plots
from grader.learning.loaders import SAYS, DataLoader, MNIST, numpy_collate, seed

found = digits.get()
print(SAYS, found.says, sep="\n")

# %% [markdown]
# ## The question: who feeds the program?
# Pictures come from files, one at a time, through Python. A training step is a program that wants batches, as fast as it can eat. PyTorch has the best known tools for what is in between, and they know nothing of JAX: `torchvision.datasets.MNIST` and `torch.utils.data.DataLoader`.
#
# `MNIST` and `DataLoader` above are these two; where there is no torch, stand-ins with the same interface. Which digits were found, the line above says: real MNIST, or 1,797 real digits that need no download. Their folder is `found.root`; `found.arrays` gives them as whole arrays. If you have MNIST, set `JAXERCISE_DIGITS` to the folder with `MNIST/raw` in it. All that follows runs with either.
#
# ![From a file to a program. A data set gives one example by its index: an image and a label. The loader draws an order, asks for 128 examples and hands them to collate, which stacks them into NumPy arrays (128, 28, 28, 1) and (128,). The compiled step takes them and gives new parameters. Left of collate all is Python, one example at a time; right of it all is one program, one batch at a time.](../images/mnist_feed.svg)
#
# A **data set** is anything with a length and an index. `transform` is called on each image when it is asked for: here into floats, with a channel axis. For training, the digit is also moved by up to two pixels, another way in each epoch: it stays the same digit, and the network cannot learn pixels by heart.


# %%
draws = np.random.default_rng(11)


def to_floats(image):
    """An image (28, 28) with values 0 to 255 -> (28, 28, 1) float32 from 0 to 1"""
    return np.asarray(image, np.float32)[..., None] / 255


def jittered(image):
    """The same, moved by up to two pixels each way."""
    rows, columns = draws.integers(5, size=2)
    return np.pad(to_floats(image), ((2, 2), (2, 2), (0, 0)))[rows : rows + 28, columns : columns + 28]


train_set = MNIST(found.root, train=True, transform=jittered)
test_set = MNIST(found.root, train=False, transform=to_floats)
image, label = train_set[0]
print(
    f"{len(train_set):,} to train on, {len(test_set):,} to test with; the first: {image.shape}, {image.dtype}, {label}"
)

_, axes = plots.subplots(2, 8, height=2)
for i, ax in enumerate(axes.T.flat):
    image, label = train_set[i // 2]  # each twice: it is transformed anew
    ax.imshow(image[..., 0], cmap="gray_r")
    ax.set_title(label if i % 2 == 0 else "", fontsize=8)
    ax.axis("off")
plots.show(
    f"Eight handwritten digits, {', '.join(ax.get_title() for ax in axes[0])}, each shown twice, one above the other: "
    "the second time it lies a little elsewhere in its square."
)

# %% [markdown]
# ## Batches of one shape
# The **loader** draws an order, asks for examples, and hands a list of them to `collate_fn`. Left alone it makes torch tensors, which JAX does not take. So the function is ours: NumPy arrays are what both sides understand.


# %%
def collate(examples):
    """A list of (image, label) -> images (B, 28, 28, 1) float32, labels (B,) int32"""
    images, labels = zip(*examples, strict=True)
    return np.stack(images), np.array(labels, np.int32)


load = functools.partial(DataLoader, batch_size=128, collate_fn=collate)
xs, ys = next(iter(load(test_set)))
print(type(xs).__name__, xs.shape, xs.dtype, type(ys).__name__, ys.shape, ys.dtype)

# %% [markdown] predict="mnist-drop-last"
# The number of test images is no multiple of 128. How often is a compiled function traced in **two** epochs?
#
# - [ ] once: it is the same function | The function is the same, the shapes are not: the last batch is shorter.
# - [x] twice | Right: once for 128, once for what is left over. In the second epoch both programs are there.
# - [ ] four times, twice in each epoch | The programs are kept; nothing new comes in the second epoch.


# %%
def count_traces(loader):
    traces = []
    look = jax.jit(lambda xs: traces.append(xs.shape[0]) or jnp.mean(xs))
    for _ in range(2):
        for xs, _ in loader:
            look(xs)
    return traces


print("all batches:    traced for the sizes", count_traces(load(test_set)))
print("drop_last=True: traced for the sizes", count_traces(load(test_set, drop_last=True)))

# %% [markdown]
# Each size costs a compilation, of a large model the whole of it (03). In training, drop the last batch: with `shuffle=True` other examples are left out in each epoch. A test has to see every image, so there the last batch is padded and masked; an exercise does that.
#
# ## The network
# Each block *adds* something to what comes in. So a block can do nothing, and gradients find a way past it: that is what lets dozens be stacked. But how much should it add?

# %% [markdown] predict="mnist-depth"
# Adding the relu of an untrained convolution makes numbers about half as large again. 32 blocks in a row do that; the first gets numbers up to 2. How large are they at the end?
#
# - [x] hundreds of thousands | Right: each block adds half of what is *there by then*, so they grow like interest.
# - [ ] about 3, half as large again | That is one block. The second gets what the first has made of it, and adds to that.
# - [ ] about 34: two, and 32 times one more | The second block adds half of 3, not half of 2, and the last half of all before.

# %%
conv = functools.partial(nnx.Conv, kernel_size=(3, 3), rngs=nnx.Rngs(0))
start, convs = nnx.relu(conv(1, 16)(xs[:8])), [conv(16, 16) for _ in range(32)]
scores = nnx.Linear(start[0].size, 10, rngs=nnx.Rngs(1))
for share in (1, 1 / 32):
    x = start
    for one in convs:
        x = x + share * nnx.relu(one(x))
    high = optax.softmax_cross_entropy_with_integer_labels(scores(x.reshape(8, -1)), ys[:8]).mean()
    grown = (x.max() / start.max()) ** (1 / 32)
    print(f"share {share:<7} from {start.max():.2f} to {x.max():,.2f}, times {grown:.2f} a block; loss {high:,.2f}")


# %% [markdown]
# Where the numbers are that large, so are the scores and the loss, and training begins far off. (32 such blocks without a share once stood in a tour of JAX.) Divided by the depth, all blocks together add about as much as one. How deep it is, is then a number, and one class serves a laptop and an accelerator.


# %%
class Block(nnx.Module):
    def __init__(self, channels, share, *, rngs):
        self.conv, self.share = nnx.Conv(channels, channels, (3, 3), rngs=rngs), share

    def __call__(self, x):
        return x + self.share * nnx.relu(self.conv(x))


class Network(nnx.Module):
    """Images (B, 28, 28, 1) -> the score of each digit (B, 10)"""

    def __init__(self, channels, depth, *, rngs):
        self.shrink = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([Block(channels, 1 / depth, rngs=rngs) for _ in range(depth)])
        self.hidden = nnx.Linear(14 * 14 * channels, 64, rngs=rngs)
        self.scores = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.shrink(images))
        for block in self.blocks:
            x = block(x)
        return self.scores(nnx.relu(self.hidden(x.reshape(len(x), -1))))


SIZES = {"cpu": {"channels": 16, "depth": 2}, "accelerator": {"channels": 64, "depth": 32}}
for name, sizes in SIZES.items():
    shapes = nnx.state(jax.eval_shape(lambda: Network(**sizes, rngs=nnx.Rngs(0))), nnx.Param)
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    print(f"{name:12s} {sizes}: {count:,} parameters, {4 * count / 2**20:.1f} MiB")
print("here:", kind := "cpu" if jax.default_backend() == "cpu" else "accelerator")

# %% [markdown]
# ![A residual block. What comes in goes two ways: straight on, and through a 3 by 3 convolution and a relu, of which it takes a share. Both are added. Below, a network of such blocks: a convolution with stride 2, depth blocks one after the other, two linear layers, ten scores. The straight ways form one line from the first layer to the last, along which gradients come back.](../images/mnist_residual.svg)
#
# ## The step
# As in 09, a pure function from everything that changes to everything that has changed: `split` takes the module apart into its form (`graphdef`), closed over, and its parameters, which go in and come out. (The `nnx.Optimizer` of 10 does the same in one object; here all that changes is an argument by itself.) Parameters and state are donated, so from the first step on `model` is only a form: its arrays are gone, and those in `params` are the network. Loss and share of hits come back too, as arrays that nobody has looked at.

# %%
STEPS = 220
model = jax.jit(lambda: Network(**SIZES[kind], rngs=nnx.Rngs(0)))()
graphdef, params = nnx.split(model)
tx = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.003, STEPS // 10, STEPS))


def loss(params, xs, ys):
    scores = nnx.merge(graphdef, params)(xs)
    hits = jnp.mean(scores.argmax(-1) == ys)
    return optax.softmax_cross_entropy_with_integer_labels(scores, ys).mean(), hits


@functools.partial(jax.jit, donate_argnames=("params", "state"))
def step(params, state, xs, ys):
    (value, hits), gradient = jax.value_and_grad(loss, has_aux=True)(params, xs, ys)
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value, hits


@jax.jit
def predict(params, xs):
    return nnx.merge(graphdef, params)(xs).argmax(-1)


# %% [markdown]
# ## The loop
# `seed` fixes the loader's order. The bar moves every 20 steps, and only then does anybody look at a number: the accuracy on test digits, and the mean of the last 20 losses.

# %%
seed(0)
loader = load(train_set, shuffle=True, drop_last=True)
forever = itertools.chain.from_iterable(itertools.repeat(loader))
some_images, some_labels = next(iter(load(test_set, batch_size=min(len(test_set), 1000))))
state, losses, hits, curve = tx.init(params), [], [], {}
began = time.perf_counter()
with tqdm(total=STEPS, file=sys.stdout, mininterval=5, bar_format="{l_bar}{bar:20}{r_bar}") as bar:
    for n, (xs, ys) in enumerate(itertools.islice(forever, STEPS), 1):
        params, state, value, hit = step(params, state, xs, ys)
        losses.append(value)
        hits.append(hit)
        if n % 20 == 0:
            curve[n] = np.mean(predict(params, some_images) == some_labels)
            bar.set_postfix_str(f"loss {np.mean(losses[-20:]):.3f}, test {curve[n]:.1%}", refresh=False)
            bar.update(20)
print(f"{STEPS} steps, {STEPS * 128 / len(train_set):.1f} epochs, in {time.perf_counter() - began:.0f} s")

# %%
_, (left, right) = plots.subplots(1, 2, height=2.6)
left.semilogy(np.asarray(losses), linewidth=1)
left.set(xlabel="step", ylabel="loss of the batch")
smooth = np.convolve(np.asarray(hits), np.ones(10) / 10, "valid")  # the mean of ten steps, drawn at the last of them
right.plot(np.arange(10, len(hits) + 1), smooth, linewidth=1, label="training, moved digits")
right.plot(list(curve), list(curve.values()), "o-", label="test")
right.set(xlabel="step", ylabel="accuracy", ylim=(0.5, 1.02))
right.legend()
plots.show(
    f"Left: the loss of each batch over {STEPS} steps, from {losses[0]:.2f} to {losses[-1]:.2f}, on a logarithmic scale. Right: "
    f"the accuracy rises to {smooth[-1]:.1%} on training digits and to {curve[n]:.1%} on test digits; the curves stay close."
)

# %% [markdown]
# The first steps are slow ones: the rate rises from 0. Then the loss falls, and the test follows. Training digits score no better than test digits: each comes about twenty times, mostly moved another way than the time before. (Of real MNIST, 220 steps see fewer than half, and each of those once.)
#
# ## Who waits for whom?
# In a turn of the loop the loader works, and then the device. Say, the files lie on a slow disk, so that a batch takes as long to load (L) as a step takes to compute (S). Below are three loops: one looks at every loss; one looks too, but a thread loads for it; one looks at nothing.

# %% [markdown] predict="mnist-waiting"
# Which of the three need clearly **less** than L + S a turn?
#
# - [ ] none of them: a step needs its batch before it can begin | *Its* batch, yes. But not the next one, and that is what is loaded meanwhile.
# - [ ] only the one with a thread: one Python does one thing at a time | So it does. But all it does for a step is to hand it over; then it is free to load.
# - [x] two: the one with a thread, and the one that looks at nothing | Right: either a thread loads while Python waits for the loss, or nobody waits and Python loads.
# - [ ] all three: the device computes, whoever looks at its losses | The first waits for the step, then loads, while the device has nothing to do.


# %%
def ahead(batches, how_many=2):
    """The same batches, put on the device by a thread that is up to `how_many` ahead."""
    shelf = queue.Queue(maxsize=how_many)

    def fill():
        try:
            for batch in batches:
                shelf.put(jax.device_put(batch))
            shelf.put(None)
        except Exception as problem:  # goes on the shelf too, or the loop would wait for ever
            shelf.put(problem)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := shelf.get()) is not None:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def seconds(batches, look, turns=12):
    """Of a turn: load a batch, make a step."""
    now, opt = jax.tree.map(jnp.copy, (params, state))
    begin = time.perf_counter()
    for xs, ys in itertools.islice(batches, turns):
        now, opt, value, _ = step(now, opt, xs, ys)
        if look:
            float(value)
    jax.block_until_ready(now)
    return (time.perf_counter() - begin) / turns


def slow_disk(pause):
    for batch in itertools.repeat((xs, ys), 12):
        time.sleep(pause)
        yield batch


alone = min(seconds(slow_disk(0), look=True) for _ in range(3))
ways = {
    "looks at every loss": lambda: seconds(slow_disk(alone), look=True),
    "looks, and a thread loads ahead": lambda: seconds(ahead(slow_disk(alone)), look=True),
    "looks at nothing": lambda: seconds(slow_disk(alone), look=False),
}
print(f"L = S = {1e3 * alone:.1f} ms, L + S = {2e3 * alone:.1f} ms")
rounds = [[way() for way in ways.values()] for _ in range(3)]
for name, times in zip(ways, zip(*rounds, strict=True), strict=True):
    print(f"{name:32s} {1e3 * min(times):6.1f} ms a turn")

# %% [markdown]
# JAX runs ahead (01): while the device computes, Python is free to load the next batch, unless it waits for a number. A thread is enough as long as loading *waits* (for disk, for network). Where it *computes* in Python, two threads share one interpreter, and processes are the next step. First look whether you need them: how many images a second does each side manage?

# %%
begin = time.perf_counter()
loaded = sum(len(ys) for _, ys in itertools.islice(loader, 10))
by_loader = loaded / (time.perf_counter() - begin)
print(f"the loader gives {by_loader:9,.0f} images a second")
print(f"the step takes   {128 / alone:9,.0f}")

raw, marks = found.arrays(train=True)
begin = time.perf_counter()
for _ in range(10):
    chosen = draws.choice(len(raw), 128, replace=False)
    xs, ys = raw[chosen, ..., None].astype(np.float32) / 255, marks[chosen]
print(f"indexing one array {1280 / (time.perf_counter() - begin):7,.0f}")

# %% [markdown]
# The slower of the first two is what you train at. And what fits into memory needs no loader: one array, indexed by a shuffled list of numbers, is far faster than an example at a time (the first exercise). Shifts then move into the compiled step (another exercise).
#
# ## Worker processes, and fork
# `DataLoader(num_workers=2)` loads in two other processes. On Linux, before Python 3.14, these are made by `fork` unless you say otherwise: a copy of this process, in which *one* thread goes on. JAX has many threads, and a lock that one of the others held at that moment stays locked in the copy for ever.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    child = multiprocessing.get_context("fork").Process(target=int)  # does nothing, and is gone
    child.start()
    child.join()
print("\n".join({str(one.message) for one in caught if "JAX" in str(one.message)}) or "no warning")

# %% [markdown]
# So let them come from a process that never had JAX: `forkserver` starts one clean process, which imports what you tell it, and forks the workers. They get the data set and the functions by pickle, so these must live in a module: what is defined in a notebook cannot be found there. (Hence the course's own `numpy_collate` here.)

# %%
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["grader.learning.loaders"])
plain_set = MNIST(found.root, train=True, transform=np.asarray)
processes = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": True, "prefetch_factor": 2}
for name, options in {"in this process": {}, "in two workers": processes}.items():
    workers = DataLoader(plain_set, batch_size=128, drop_last=True, collate_fn=numpy_collate, **options)
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        shapes = {xs.shape for xs, _ in itertools.islice(workers, 8)}
        times.append(time.perf_counter() - begin)
    print(f"{name:16s} 8 batches of {shapes}: {times[0]:.2f} s, and {times[1]:.2f} s in the next epoch")
    del workers

# %% [markdown]
# The first epoch waits for processes to start and import, so keep them (`persistent_workers`); later ones have only to carry the batches over here, which takes about as long as loading images that small. Workers are worth it where an example takes milliseconds (a JPEG, a sentence to tokenise) and the device has to wait; look at the figures above first. **In workers, no JAX**: no `jnp` in a data set, a transform or a collate function. And no generator that all share: after a fork each worker would have a copy of `draws` in the same state, and all would jitter alike. Seed by worker (`worker_init_fn`), or draw on the device with keys (07).
#
# ## Grain
# **Grain** is the loader made for JAX. It needs neither torch nor a collate function, its order is a function of a seed and its place in the data can be saved, so a run that was stopped goes on with the next batch (24). Nothing here needs it; this is what the loop above would start with:
#
# ```python
# import grain
#
# loader = (
#     grain.MapDataset.source(plain_set)              # anything with a length and an index
#     .map(lambda pair: (to_floats(pair[0]), np.int32(pair[1])))
#     .shuffle(seed=0)
#     .repeat()
#     .batch(128, drop_remainder=True)                # NumPy arrays
#     .to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=16))
# )
# batches = iter(loader)
# place = batches.get_state()                         # goes into the checkpoint; batches.set_state(place) goes back
# ```
#
# ## What does it see?
# `nnx.capture` runs a module and keeps what its methods returned. It works in a compiled function too. Here is one image, and what comes out of the first layer, of the first block and of the last.

# %%
watch = jax.jit(
    lambda params, xs: nnx.capture(nnx.merge(graphdef, params), nnx.Intermediate, method_outputs=nnx.Intermediate)(xs)
)
one = int(np.argmax(some_labels == 8))
scores, seen = watch(params, some_images[one : one + 1])
outputs = {"shrink": nnx.relu(seen["shrink"]["__call__"][0])}
outputs |= {f"block {i}": seen["blocks"][i]["__call__"][0] for i in (0, len(model.blocks) - 1)}
_, axes = plots.subplots(len(outputs), 9, height=0.85 * len(outputs))
for row, (name, maps) in zip(axes, outputs.items(), strict=True):
    row[0].imshow(some_images[one, ..., 0], cmap="gray_r")
    for ax, channel in zip(row[1:], np.moveaxis(np.asarray(maps[0]), -1, 0), strict=False):
        ax.imshow(channel, cmap="viridis")
    for ax in row:
        ax.axis("off")
    row[0].set_title(name, fontsize=8)
plots.show(
    f"A handwritten 8, and beside it eight channels each of {', '.join(outputs)}: small maps of the same 8, in each of which "
    "other parts of it are bright, such as edges on one side or the insides of its loops."
)
print("scores:", np.round(np.asarray(scores[0]), 1))

# %% [markdown]
# Each channel answers to something else: edges from above, from the left, the inside of a loop. With each block something is added to them; nothing is lost on the way, as what came in is still part of the sum.
#
# ## What does it get wrong?
# One number hides much. Which digits are taken for which?

# %%
parts = [(xs, ys, predict(params, xs)) for xs, ys in load(test_set, batch_size=40)]  # divides 360, and 10,000
images, labels, guessed = (np.concatenate(part) for part in zip(*parts, strict=True))
print(f"test accuracy, every image: {np.mean(guessed == labels):.2%}")
taken_for = np.zeros((10, 10), int)
np.add.at(taken_for, (labels, guessed), 1)
wrong = np.flatnonzero(guessed != labels)[:8]
_, axes = plots.subplots(1, 1 + len(wrong), height=2, squeeze=False, width_ratios=[3] + [1] * len(wrong))
grid, *small = axes[0]
grid.imshow(np.log1p(taken_for), cmap="Blues")
grid.set(xlabel="taken for", ylabel="is", xticks=range(10), yticks=range(10))
for ax, i in zip(small, wrong, strict=True):
    ax.imshow(images[i, ..., 0], cmap="gray_r")
    ax.set_title(f"{labels[i]} as {guessed[i]}", fontsize=8)
    ax.axis("off")
mistakes = ", ".join(f"{labels[i]} as {guessed[i]}" for i in wrong) or "none"
plots.show(
    "A table of ten by ten, what a digit is by what it is taken for, nearly all on the diagonal; and the first digits that "
    f"are taken for another: {mistakes}."
)

# %% [markdown]
# Look at the mistakes before you change the network: some of these digits you would not have read either. The rows and columns of the table say which pairs need more examples.
#
# ## What else goes wrong
# - **Types.** Pixels are uint8, and wrap round: 100 - 128 is 228, so a dark pixel becomes a bright one. Divided by a Python number, NumPy makes float64 of them: twice the bytes in the loader, of which JAX makes float32 anyway.
# - **Mirrored digits.** What may be done to an image is a question to the data: cats may be mirrored, digits not, and a 6 turned round is a 9.
# - **The test set has a vote.** The curve above was drawn with test digits, and nothing was chosen by it. Whoever picks the best point of it, or the number of steps, has trained on the test set a little. Early stopping needs images of its own; the last exercise does it.
# - **Channels first.** PyTorch has `(B, 1, 28, 28)`, Flax `(B, 28, 28, 1)`. With `(B, 1, 28, 28)` a convolution here takes 28 for the number of channels, and says so.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a data set | a length and an index; `transform` for what happens to each example |
# | NumPy instead of tensors | `collate_fn`, with `np.stack` and an explicit dtype |
# | one program for all batches | `drop_last=True`; for a test pad and mask |
# | data that fit into memory | one array and shuffled indices, no loader |
# | to load while the device computes | look at nothing; or a thread that loads ahead |
# | worker processes | `forkserver`, functions from a module, no JAX in them |
# | what a layer gives | `nnx.capture(..., method_outputs=nnx.Intermediate)` |
# | a depth that trains | blocks that add, each its share |
#
# ## What it became
#
# | in older code, or elsewhere | now |
# |---|---|
# | `for x, y in loader: x.to(device)` (PyTorch) | the compiled step takes NumPy arrays; `jax.device_put` in a thread where the way is long |
# | `optimizer.zero_grad()`, `loss.backward()`, `with torch.no_grad()` | `jax.value_and_grad`; nothing is recorded unless asked |
# | `self.sow(...)`, then `nnx.state(model, nnx.Intermediate)` | `nnx.capture` around the call |
#
# Next: the exercises. In the first, the batches are yours.
