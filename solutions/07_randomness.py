# %% [markdown]
# # 07 · Exercises: randomness
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# All exercises need only the core of the lesson. `key` is always a single typed key, such as `jax.random.key(0)`. Unless a task prescribes how to derive keys from it, you may choose.
#
# Several exercises require a program that has the same number of operations at any size. JAX unrolls a Python loop, so its program grows with the number of iterations. A program made with `vmap` does not grow, and neither does a loop of JAX, such as `jax.lax.map` (08).

# %% setup
from grader.checks import ask, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np


def linear(key):
    """The parameters of a small linear model, drawn with one key: {"w": (3,), "b": ()}"""
    return {"w": jax.random.normal(key, (3,)), "b": jnp.float32(0)}


# %% [markdown] task="random-init" stars=1 minutes=8 skills="01_arrays,07_randomness"
# ## Initial weights of a network
# **Goal.** Draw the initial weights of a network, layer by layer. One line is missing. It creates `keys`.
#
# **Signature.** `init_mlp(key, sizes)`. `sizes` is a tuple of at least two ints. The result is a list with one dict for each layer. In layer i, `"w"` has shape `(sizes[i], sizes[i + 1])` and is normally distributed with mean 0 and standard deviation 1/√`sizes[i]`. `"b"` has shape `(sizes[i + 1],)` and is zero. All arrays are float32.
#
# **Example.** `init_mlp(jax.random.key(0), (3, 4, 2))` returns two layers, with weights of shapes `(3, 4)` and `(4, 2)`.
#
# **Judged.** The shapes and the distribution. No layer repeats numbers of another layer. The same key always gives the same network, and different keys give different networks. Your answer raises no error under `jax.debug_key_reuse`. **Not judged.** How you derive the keys of the layers.
#
# <details><summary>Hint 1 · a question</summary>
#
# How does the loop below the missing line use `keys`, and how many keys does it need? (With `strict=True`, `zip` rejects lists of different lengths.)
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Each layer needs its own key. If two layers use the same key, their weights start with the same numbers, even if their shapes differ.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.random.split(key, n)` returns an array of n keys. How many layers does a network with `len(sizes)` sizes have?
#
# </details>


# %% answer="random-init"
def init_mlp(key, sizes):
    """Initial parameters of a network with these sizes: a list of {"w": (n, m), "b": (m,)}, one for each layer."""
    ### BEGIN SOLUTION
    keys = jax.random.split(key, len(sizes) - 1)
    ### END SOLUTION
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% check="random-init" name="example" points=1
"""The example: two layers, with the right shapes."""
got = ask(init_mlp, jax.random.key(0), (3, 4, 2))
wanted = [{"w": np.zeros((n, m), np.float32), "b": np.zeros(m, np.float32)} for n, m in ((3, 4), (4, 2))]
compare(got, wanted, atol=1e9, label="the list of layers")

# %% hidden="random-init" name="values" points=2
"""Normal weights of the right size, different in every layer and for every key."""
key, other = inputs.key(), inputs.key()
layers, others = (ask(init_mlp, one, (200, 200, 300, 200)) for one in (key, other))
shapes = ((200, 200), (200, 300), (300, 200))
wanted = [{"w": np.zeros(shape, np.float32), "b": np.zeros(shape[1], np.float32)} for shape in shapes]
compare(layers, wanted, atol=1e9, label="the list of layers for four sizes")
compare(
    ask(init_mlp, key, (200, 200, 300, 200)), layers, label="the list of layers, in a second call with the same key,"
)
drawn = [np.asarray(layer["w"], np.float64).ravel() * n**0.5 for layer, (n, _) in zip(layers, shapes, strict=True)]


def agree(one, other):
    """Whether at least four of the first thousand numbers agree, which does not happen by chance."""
    return np.sum(np.abs(one[:1000] - other[:1000]) < 1e-5) >= 4


for i in range(3):
    compare(layers[i]["b"], wanted[i]["b"], label=f'"b" of layer {i}')
    again = np.asarray(others[i]["w"], np.float64).ravel() * shapes[i][0] ** 0.5
    require(
        not agree(drawn[i], again), f"Two keys give the same weights in layer {i}. Where does your answer use `key`?"
    )
    for j in range(i):
        require(
            not agree(drawn[i], drawn[j]),
            f"Layer {i} repeats numbers of layer {j}. Both were drawn with the same key.",
        )
    # Bounds of seven standard errors, which a right answer exceeds once in 10^11 draws.
    error_of_mean = drawn[i].size ** -0.5
    require(abs(drawn[i].mean()) < 7 * error_of_mean, f"The mean of the weights of layer {i} is not 0.")
    spread = drawn[i].std()
    require(
        abs(spread**2 - 1) < 7 * 2**0.5 * error_of_mean,
        f"The standard deviation of the weights of layer {i} is {spread:.2f} times what it should be.",
    )
    inner = np.mean(np.abs(drawn[i]) < 1)
    require(abs(inner - 0.6827) < 7 * 0.4655 * error_of_mean, f"The weights of layer {i} are not normally distributed.")

# %% hidden="random-init" name="reuse" points=1 observed=true
"""No key is used twice, as `jax.debug_key_reuse` verifies."""


def probe_reuse(key):
    with jax.debug_key_reuse(True):
        layers = init_mlp(key, (4, 4, 4, 4, 4))
    return len(layers)


refused = error(probe_reuse, inputs.key())
require(
    refused != "KeyReuseError",
    "Under `jax.debug_key_reuse(True)` your answer raises a KeyReuseError. A key is used again after it was passed to a sampler or split.",
)
require(refused is None, f"For five sizes, your answer raises {refused}. Are there as many keys as layers?")

# %% [markdown] why="random-init"
# One split returns a key for each layer, and each of these keys is used once. The weights of different layers are therefore statistically independent. The parent is not used again. **Next:** Suppose that you add a layer at the end. Do the weights of the earlier layers stay the same with `split`? Does JAX document this?


# %% wrong="random-init" because="Uses one key for all layers, so layers of the same shape are equal, and layers of different shapes start with the same numbers."
def init_mlp(key, sizes):
    keys = [key] * (len(sizes) - 1)
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Uses the parent for the first layer and its children for the other layers. A key that was split must not be used again."
def init_mlp(key, sizes):
    keys = [key, *jax.random.split(key, len(sizes) - 2)]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Creates the keys from the numbers of the layers and never uses `key`, so every network is the same."
def init_mlp(key, sizes):
    keys = [jax.random.key(i) for i in range(len(sizes) - 1)]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Draws seeds from NumPy, so the same key gives a different network each time."
def init_mlp(key, sizes):
    keys = [jax.random.key(np.random.randint(2**31)) for _ in sizes[1:]]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Splits into the default number of two keys, which is enough only for the example."
def init_mlp(key, sizes):
    keys = jax.random.split(key)
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Folds in the size of a layer instead of its number, so layers of the same size share a key."
def init_mlp(key, sizes):
    keys = [jax.random.fold_in(key, n) for n in sizes[:-1]]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Splits into as many keys as there are sizes, which is one more than the number of layers."
def init_mlp(key, sizes):
    keys = jax.random.split(key, len(sizes))
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% right="random-init"
def init_mlp(key, sizes):
    layers = []
    for i in range(len(sizes) - 1):
        n, m = sizes[i : i + 2]
        key, layer_key = jax.random.split(key)
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% right="random-init"
def init_mlp(key, sizes):
    import itertools

    draw = lambda i, n, m: jax.random.normal(jax.random.fold_in(key, i), (n, m)) * n**-0.5
    return [{"w": draw(i, n, m), "b": jnp.zeros(m)} for i, (n, m) in enumerate(itertools.pairwise(sizes))]


# %% [markdown] task="random-dropout" stars=1 minutes=10 skills="01_arrays,random-init"
# ## Dropout
# **Goal.** During training, dropout sets each entry of a layer's output to 0 with some probability. It divides the other entries by the probability of being kept, so that the mean stays the same on average. Each layer must drop different entries, and every run must be reproducible.
#
# **Signature.** `dropout(key, layer, x, rate)`. `layer` is an int, 0 or larger, and `x` is a float array of any shape. `rate` is a Python float from 0 to 1, the probability that an entry is dropped. The result has the shape and dtype of `x`.
#
# The derivation of the mask is prescribed. The key of a layer is `key` with `layer` folded in. Call `jax.random.bernoulli` with this key, the probability that an entry is **kept**, and the shape of `x`. Entries are kept where it returns True.
#
# **Example.** `dropout(jax.random.key(0), 3, jnp.arange(1.0, 7.0), 0.25)` returns `[1.3333, 2.6667, 0, 5.3333, 6.6667, 0]`.
#
# **Judged.** The values for several layers, shapes and rates, and the dtype. **Not judged.** A `rate` of 1, with which nothing is kept, and entries of `x` that are NaN or inf. You may derive the layer's key with any function that returns the prescribed key.
#
# <details><summary>Hint 1 · a question</summary>
#
# There are three similar quantities here: the probability of being dropped, the probability of being kept, and the factor for kept entries. Which of them is `rate`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.random.fold_in(key, number)` returns a new key for each number. `bernoulli(key, p, shape)` returns booleans of this shape, and each is True with probability p.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jnp.where(mask, ..., 0)` selects by a mask of booleans. Division by a Python number does not change the dtype of `x`, but a product with a float32 mask can.
#
# </details>


# %% answer="random-dropout"
def dropout(key, layer, x, rate):
    """x with entries set to 0 with probability `rate` and the others divided by 1 - rate. Each layer has its own mask."""
    ### BEGIN SOLUTION
    kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)
    ### END SOLUTION


# %% check="random-dropout" name="example" points=1
"""The example: six entries, each dropped with probability 0.25."""
got = ask(dropout, jax.random.key(0), 3, jnp.arange(1.0, 7.0), 0.25)
compare(got, np.array([4 / 3, 8 / 3, 0, 16 / 3, 20 / 3, 0], np.float32))

# %% hidden="random-dropout" name="values" points=2
"""Drops the prescribed entries in every layer, and scales the others."""


for layer, rate, shape in ((4, 0.7, (7, 9)), (0, 0.2, (7, 9)), (5, 0.5, (3, 4, 5)), (1, 0.0, (7, 9))):
    key, x = inputs.key(), inputs.rng().uniform(1, 2, size=shape).astype(np.float32)
    got = ask(dropout, key, layer, jnp.asarray(x), rate)
    kept = np.asarray(jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, shape))
    wanted = np.where(kept, x / (1 - rate), 0).astype(np.float32)
    if getattr(got, "shape", None) == shape and rate > 0:
        zeros = np.asarray(got) == 0
        inverted = ~np.asarray(jax.random.bernoulli(jax.random.fold_in(key, layer), rate, shape))
        shared = ~np.asarray(jax.random.bernoulli(key, 1 - rate, shape))
        rows = len(shape) > 1 and (zeros == zeros[0]).all()
        right = np.array_equal(zeros, ~kept)
        for misled, why in (
            (
                np.array_equal(zeros, kept),
                "Kept and dropped entries are swapped. An entry is kept where `bernoulli` is True.",
            ),
            (np.array_equal(zeros, inverted), "Was `bernoulli` called with the probability of being dropped?"),
            (
                np.array_equal(zeros, ~inverted),
                "Your answer drops those where `bernoulli` with `rate` is True. Call it with the probability of being kept.",
            ),
            (
                np.array_equal(zeros, shared) and layer == 0,
                "In layer 0, the mask was drawn with `key` itself. Fold in 0 like any other number.",
            ),
            (np.array_equal(zeros, shared), "Every layer drops the same entries. Where does your answer use `layer`?"),
            (rows, "Every row of `x` drops the same entries. How many booleans did you draw?"),
            (True, "The mask was drawn with a different key or different arguments than the task prescribes."),
        ):
            require(right or not misled, f"The wrong entries are dropped. {why}")
        require(
            np.allclose(got, wanted, rtol=1e-3),
            "The right entries are dropped, but the others are not scaled correctly. Which factor keeps the mean the same on average?",
        )
    compare(got, wanted, label=f"the result for an input of {len(shape)} axes and rate {rate:g}")
layer, key, x = int(inputs.rng().integers(10**5, 10**6)), inputs.key(), np.ones((7, 9), np.float32)
raised = error(dropout, key, layer, jnp.asarray(x), 0.5)
require(raised is None, f"For a layer with a large number, your answer raised {raised}.", kind="raised")
got = ask(dropout, key, layer, jnp.asarray(x), 0.5)
wanted = 2 * np.asarray(jax.random.bernoulli(jax.random.fold_in(key, layer), 0.5, x.shape)).astype(np.float32)
if getattr(got, "shape", None) == x.shape:
    require(
        np.array_equal(np.asarray(got) > 0, wanted > 0),
        "In a layer with a large number, the wrong entries are dropped. Did you create keys for a limited number of layers?",
    )
compare(got, wanted, label="the result for a layer with a large number")

# %% hidden="random-dropout" name="dtype" points=1
"""The result has the dtype of `x`, also in bfloat16."""
zeros = jnp.zeros((7, 9), jnp.bfloat16)
compare(ask(dropout, inputs.key(), 2, zeros, 0.4), zeros, label="the result for an x in bfloat16")
key, ones = inputs.key(), jnp.ones((7, 9), jnp.bfloat16)
kept = np.asarray(jax.random.bernoulli(jax.random.fold_in(key, 2), 0.6, (7, 9)))
got = ask(dropout, key, 2, ones, 0.4)
right = np.array_equal(np.asarray(got, np.float32) > 0, kept)
require(right, "For an `x` in bfloat16, the mask differs from the mask for float32. With which dtype was it drawn?")
compare(got, jnp.asarray(kept / 0.6, jnp.bfloat16), atol=0.02, label="the result for ones in bfloat16")

# %% [markdown] why="random-dropout"
# `fold_in` gives each layer its own key. The key of layer 3 does not depend on the layers that run before it, so no state is passed from layer to layer. **Next:** As long as the caller passes the same key, every training step drops the same entries. What should the caller do?


# %% equivalent="random-dropout" because="`where` treats every number except 0 as True, and entries of x that are NaN or inf are not judged."
# changed mask dtype, bernoulli(...) -> bernoulli(...).astype("float32"): kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
# product for where, where(X, Y, 0) -> X * Y: return jnp.where(kept, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Calls bernoulli with the probability of being dropped, but keeps the entries where it is True."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Drops where bernoulli with the probability of being dropped is True. The number of entries is right, but they are not the prescribed ones."
def dropout(key, layer, x, rate):
    dropped = jax.random.bernoulli(jax.random.fold_in(key, layer), rate, x.shape)
    return jnp.where(dropped, 0, x / (1 - rate))


# %% wrong="random-dropout" because="Sets entries to 0 where bernoulli is True, so it keeps what it should drop."
def dropout(key, layer, x, rate):
    dropped = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(dropped, 0, x / (1 - rate))


# %% wrong="random-dropout" because="Never folds in the layer, so all layers drop the same entries."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Uses the key itself in layer 0, instead of folding in 0."
def dropout(key, layer, x, rate):
    own = jax.random.fold_in(key, layer) if layer else key
    return jnp.where(jax.random.bernoulli(own, 1 - rate, x.shape), x / (1 - rate), 0)


# %% wrong="random-dropout" because="Does not scale the kept entries, so the mean is smaller in training than without dropout."
def dropout(key, layer, x, rate):
    return jnp.where(jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape), x, 0)


# %% wrong="random-dropout" because="Divides by rate instead of by the probability of being kept."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(keep, x / max(rate, 0.01), 0)


# %% wrong="random-dropout" because="Draws one row of the mask and broadcasts it, so every example drops the same entries."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape[-1:])
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Multiplies by a float32 mask, so the result for an x in bfloat16 is float32."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return x * keep.astype(jnp.float32) / (1 - rate)


# %% wrong="random-dropout" because="Creates the layer's key from its number alone, so the mask is the same in every step and every run."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.key(layer), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Casts the probability to the dtype of x, so bernoulli draws bfloat16 numbers and gives another mask."
def dropout(key, layer, x, rate):
    keep = jnp.asarray(1 - rate, dtype=x.dtype)
    kept = jax.random.bernoulli(jax.random.fold_in(key, layer), keep, x.shape)
    return jnp.where(kept, x / keep, jnp.zeros_like(x))


# %% wrong="random-dropout" because="Creates keys for a limited number of layers. A larger index is out of bounds and gets the last key."
def dropout(key, layer, x, rate):
    keys = jax.random.split(key, 8)
    mask = jax.random.bernoulli(keys[layer], 1 - rate, x.shape)
    return jnp.where(mask, x / (1 - rate), 0)


# %% right="random-dropout"
def dropout(key, layer, x, rate):
    own = jax.random.fold_in(key, layer)
    keep = 1 - rate
    mask = jax.random.uniform(own, x.shape) < keep
    return x * mask / keep


# %% right="random-dropout"
def dropout(key, layer, x, rate):
    mask = jax.random.bernoulli(jax.random.fold_in(key, layer), p=1 - rate, shape=x.shape)
    return jnp.zeros_like(x).at[mask].set(0) if rate == 1 else x * mask.astype(x.dtype) / (1 - rate)


# %% [markdown] task="random-step-key" stars=1 minutes=12 skills="03_jit,random-dropout"
# ## Keys for a run that can be resumed
# **Goal.** A training step needs keys for several purposes, such as shuffling, dropout and noise. A run that stopped after step 699 must continue at step 700 with exactly the keys that it would have had. Only the first key is stored.
#
# **Signature.** `step_key(key, step, purpose)`. `step` is an int from 0 to 1,000,000, and `purpose` is an int from 0 to 9. Under `jit` both are traced. The result is one key.
#
# **Example.** `step_key(key, 700, 2)` is the same key whether this program has run steps 0 to 699 or not. It differs from the key of step 701, of purpose 1, and of a different first `key`.
#
# **Judged.** All steps and purposes have different keys. The same step and purpose always give the same key. Your answer can be called with a traced `step` and a traced `purpose`. **Not judged.** How you derive the keys.
#
# <details><summary>Hint 1 · a question</summary>
#
# A chain of splits reaches step 700 only through all steps before it. Which function of `jax.random` returns the key of step 700 directly?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The key depends on two numbers. Step 4 with purpose 1 and step 3 with purpose 2 must not be combined into the same number.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `fold_in` returns a key like any other, so you can fold another number into it.
#
# </details>


# %% answer="random-step-key"
def step_key(key, step, purpose):
    """The key for a purpose (an int, 0 to 9) in a training step (an int), the same in every run that starts with `key`."""
    ### BEGIN SOLUTION
    return jax.random.fold_in(jax.random.fold_in(key, step), purpose)
    ### END SOLUTION


# %% check="random-step-key" name="resume" points=1
"""Step 2 has the same key with and without steps 0 and 1 before it. Steps 1 and 2 have different keys."""
key = jax.random.key(0)
through = ask(lambda key: [step_key(key, step, 0) for step in range(3)], key)
resumed = ask(lambda key: step_key(key, 2, 0), key)
compare(resumed, through[2], label="the key of step 2, resumed there,")
require(
    bool(jnp.any(jax.random.key_data(through[1]) != jax.random.key_data(through[2]))),
    "Steps 1 and 2 have the same key.",
)

# %% hidden="random-step-key" name="apart" points=2
"""All steps and purposes have different keys, and different first keys give different keys."""
# Every number from 1 to a million is the difference of two of these steps, so any factor between step and purpose is
# noticed. Each of the first thousand steps is at its own index.
steps = np.concatenate([np.arange(1001), np.arange(2000, 1_000_001, 1000)]).astype(np.int32)
purposes = np.arange(10, dtype=np.int32)
key, other = inputs.key(), inputs.key()


def probe_grid(key, steps, purposes):
    of_step = jax.vmap(step_key, in_axes=(None, None, 0))
    return jax.random.key_data(jax.vmap(of_step, in_axes=(None, 0, None))(key, steps, purposes))


refused = error(probe_grid, key, steps, purposes)
require(
    refused is None,
    f"When step and purpose are traced, your answer raises {refused}. Python can neither loop up to a traced number nor "
    "branch on it. Which functions accept a traced number?",
)
grid, others = (np.asarray(ask(probe_grid, one, steps, purposes)) for one in (key, other))
require(
    grid.shape == (2000, 10, 2), f"A grid of steps and purposes gives keys of shape {grid.shape[:-1]}. Return one key."
)
equal = (grid[:5, None, :, None] == grid[None, :5, None, :]).all(-1)  # steps, steps, purposes, purposes
require(not equal[1, 2].diagonal().all(), "Every step has the same keys. Where does your answer use `step`?")
require(
    not equal[3, 3, 1, 2],
    "Purposes 1 and 2 of one step have the same key. Where does your answer use `purpose`? (`fold_in` discards a fraction.)",
)
require(not equal[4, 3, 1, 2], "Step 4 with purpose 1 has the same key as step 3 with purpose 2. Their sums are equal.")
require(not equal[0, 0, 1, 2], "In step 0, purposes 1 and 2 have the same key. 0 times any number is 0.")
rows = grid.reshape(-1, 2)
order = np.lexsort(rows.T)
twice = (rows[order[1:]] == rows[order[:-1]]).all(1)
apart = np.abs(steps[order[1:] // 10] - steps[order[:-1] // 10])[twice]
require(
    not twice.any(),
    f"Two steps that are {apart.min(initial=10**6):,} apart have the same key. Each pair of step and purpose needs its own "
    "number, or two folds.",
)
mixed = np.concatenate([rows, others.reshape(-1, 2)])
require(
    len(np.unique(mixed, axis=0)) == len(mixed),
    "Two first keys give some of the same keys. Where does your answer use `key`?",
)
one = program(step_key, key, np.int32(0), np.int32(0))
compare(one.run(key, np.int32(700), np.int32(4)), jax.random.wrap_key_data(grid[700, 4]), label="the key under `jit`")
seeds = [jax.random.key(seed) for seed in range(3)]
near = np.concatenate([np.asarray(ask(probe_grid, seed, steps[:20], purposes)).reshape(-1, 2) for seed in seeds])
require(
    len(np.unique(near, axis=0)) == len(near),
    "Some keys that come from `jax.random.key(0)` also come from `jax.random.key(1)` or `jax.random.key(2)`. Adding to the "
    "data of a key gives the key of another seed. Use `fold_in`.",
)

# %% hidden="random-step-key" name="repeat" points=1
"""The same step and purpose give the same key, in any order of calls, also after calls for other keys."""
key, other = inputs.key(), inputs.key()
places = [(int(step), int(purpose)) for step, purpose in inputs.rng().integers(0, 9, size=(6, 2))]
forward = ask(lambda key, places: [step_key(key, *place) for place in places], key, places)
backward = ask(lambda key, other, places: [(step_key(other, 3, 3), step_key(key, *place))[1] for place in places],
               key, other, places[::-1])  # fmt: skip
kinds = [getattr(one, "dtype", None) == key.dtype for one in forward]
require(kinds == [True] * len(places), "The result of a call is not a key.")
compare(backward[::-1], forward, label="the list of keys from calls in the reverse order")

# %% [markdown] why="random-step-key"
# Each key is a *function* of the first key, the step and the purpose. So no state has to be passed from step to step, or stored. **Next:** Eight machines each need their own noise in every step. What would you fold in?


# %% wrong="random-step-key" because="Folds in the sum of step and purpose, so neighbouring steps share keys."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step + purpose)


# %% wrong="random-step-key" because="Folds in the product of step and purpose. In step 0 all purposes share one key, and 2 times 3 equals 3 times 2."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step * purpose)


# %% wrong="random-step-key" because="Gives each purpose a block of a million numbers, but there are a million and one steps. Step 1,000,000 gets the number of step 0 of the next purpose."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, 1_000_000 * purpose + step)


# %% wrong="random-step-key" because="Puts the purpose into the bits above the lower sixteen, which steps from 65,536 on use too."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step ^ (purpose << 16))


# %% wrong="random-step-key" because="Does not use the step, so every step has the same keys."
def step_key(key, step, purpose):
    return jax.random.split(key, 10)[purpose]


# %% wrong="random-step-key" because="Does not use the purpose, or folds it in as a fraction, which is discarded. Shuffling, dropout and noise share a key."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step)


# %% wrong="random-step-key" because="Creates the key from the step and the purpose alone, so every run is the same, whatever its first key."
def step_key(key, step, purpose):
    return jax.random.fold_in(jax.random.key(step), purpose)


# %% wrong="random-step-key" because="Follows a chain of splits in Python. The keys are right, but the loop cannot be traced, and it needs a split for every earlier step."
def step_key(key, step, purpose):
    for _ in range(step):
        key, _ = jax.random.split(key)
    return jax.random.fold_in(key, purpose)


# %% wrong="random-step-key" because="Stores a key between calls, which a resumed run does not have."
kept = []


def step_key(key, step, purpose):
    before = kept[-1] if kept else key
    following, new = jax.random.split(before)
    kept.append(following)
    return new


# %% wrong="random-step-key" because="Splits into as many keys as the number of the purpose. The number of keys is a shape, which cannot be traced."
def step_key(key, step, purpose):
    of_step = jax.random.fold_in(key, step)
    return jax.random.split(of_step, purpose + 1)[purpose]


# %% wrong="random-step-key" because="Folds in a fraction for the purpose, which is cut off, so all purposes share a key."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step + purpose / 10)


# %% wrong="random-step-key" because="Adds step and purpose to the data of the key, which gives keys of neighbouring seeds."
def step_key(key, step, purpose):
    words = jax.random.key_data(key)
    place = jnp.stack([jnp.asarray(step), jnp.asarray(purpose)]).astype(jnp.uint32)
    return jax.random.wrap_key_data(words + place)


# %% wrong="random-step-key" because="Multiplies the step by 9, but there are ten purposes, so purpose 9 shares its key with purpose 0 of the next step."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step * 9 + purpose)


# %% right="random-step-key"
def step_key(key, step, purpose):
    return jax.random.split(jax.random.fold_in(key, step), 10)[purpose]


# %% right="random-step-key"
def step_key(key, step, purpose):
    return jax.random.fold_in(key, 10 * step + purpose)


# %% right="random-step-key"
def step_key(key, step, purpose):
    return jax.random.fold_in(key, purpose << 20 | step)


# %% [markdown] task="random-epochs" stars=2 minutes=20 skills="05_vmap,random-step-key"
# ## An endless stream of batches
# **Goal.** Compute the batch of any step of a training run directly, without the batches before it. In each epoch, the run goes through the data once, in a new random order. The steps are counted through all epochs.
#
# **Signature.** `shuffled_epochs(key, steps, n, size)`. `steps` is `(m,)`, int32, in any order. There are `n` examples, and a batch has `size` of them. Both are Python ints. An epoch has `n // size` steps, so steps 0 to `n // size` - 1 are the first epoch. The result is `(m, size)`, int32. Row i contains the indices, from 0 to n - 1, of the examples in the batch of step `steps[i]`.
#
# **Example.** `shuffled_epochs(key, jnp.array([0, 1, 2]), 6, 2)` contains each of 0 to 5 once, in some order. The result for steps `[3, 4, 5]` also contains each of them once, in a different order. With n = 7, an epoch also has three steps, and leaves out one example.
#
# **Judged.** No example occurs twice in an epoch. Every epoch has its own order, and leaves out different examples if the batches do not use all of them. Single examples are shuffled, not whole batches. A row depends only on key, step, `n` and `size`. The traced program has the same number of operations for any number of steps. **Not judged.** How you derive the keys. Each row may draw the order of a whole epoch.
#
# <details><summary>Hint 1 · a question</summary>
#
# Consider a single step. To which epoch does it belong, and what is its position in that epoch?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# All steps of an epoch need the same order, so they need the same key. Steps of different epochs need different keys. `jax.random.permutation(key, n)` returns a random order.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of one step. Shorten the order to whole batches with `order[: batches * size]`, and reshape it to one row for each batch. The position in the epoch, which may be a tracer, is the index of the row. Then use `jax.vmap`.
#
# </details>


# %% answer="random-epochs"
def shuffled_epochs(key, steps, n, size):
    """The examples (m, size) in the batches of `steps` (m,) of an endless stream of shuffled epochs over n examples."""
    ### BEGIN SOLUTION
    batches = n // size

    def batch(step):
        epoch, place = step // batches, step % batches
        order = jax.random.permutation(jax.random.fold_in(key, epoch), n)
        return order[: batches * size].reshape(batches, size)[place]

    return jax.vmap(batch)(steps)
    ### END SOLUTION


# %% check="random-epochs" name="example" points=1
"""The example: each epoch contains each of six examples once, in three batches of two."""
steps = np.arange(12, dtype=np.int32)
made = program(shuffled_epochs, jax.random.key(0), steps, 6, 2)
got = made.run(jax.random.key(0), steps, 6, 2)
compare(got * 0, np.zeros((12, 2), np.int32), label="the array of batches")
for epoch in np.asarray(got).reshape(4, 6):
    require(
        sorted(epoch.tolist()) == list(range(6)),
        f"The three batches of one epoch contain {epoch.tolist()}, not each of 0 to 5 once.",
    )

# %% hidden="random-epochs" name="epochs" points=2
"""Twenty epochs of 22 examples in batches of 4: each example at most once in an epoch, in different orders."""
steps, key = np.arange(100, dtype=np.int32).reshape(10, 10), inputs.key()


def probe_tens(key, steps):
    return jax.vmap(lambda steps: shuffled_epochs(key, steps, 22, 4))(steps)


got = program(probe_tens, key, steps).run(key, steps)
compare(got * 0, np.zeros((10, 10, 4), np.int32), label="the batches of ten steps, ten times,")
got = np.asarray(got).reshape(100, 4)
require(((got >= 0) & (got < 22)).all(), "Some indices are not between 0 and n - 1.")
require(all(len(set(row)) == 4 for row in got.tolist()), "An example occurs twice in one batch.")
epochs = got.reshape(20, 20)
require(
    all(len(set(epoch)) == 20 for epoch in epochs.tolist()),
    "With 22 examples in batches of 4, an example occurs twice in five steps that should be one epoch. How many steps does "
    "an epoch have, and do they take different parts of one order?",
)
require(len({tuple(epoch) for epoch in epochs.tolist()}) > 1, "All epochs go through the examples in the same order.")
members = (got.reshape(20, 5, 4)[..., None] == np.arange(22)).any(2).astype(int)  # epochs, batches, examples
together = np.einsum("ebi,ebj->ij", members, members) - 20 * np.eye(22)
require(
    together.max() < 20,
    "Some examples are in the same batch in each of twenty epochs. Are whole batches shuffled, instead of examples?",
)
require(
    len(np.unique(got)) == 22,
    "The same two examples are left out in each of twenty epochs, so they are never used.",
)
require(
    len({tuple(epoch) for epoch in epochs.tolist()}) == 20, "Some epochs go through the examples in the same order."
)
where = np.argsort(np.where(np.isin(np.arange(22), got), np.arange(22), 22))
cycles = {tuple(np.roll(epoch, -int(np.argmin(epoch)))[:6]) for epoch in epochs.tolist()}
require(
    len(cycles) > 15,
    "Most epochs go through the examples in the same cycle and only start at a different place. Shuffle again for each epoch.",
)

# %% hidden="random-epochs" name="resume" points=1
"""A batch depends only on key and step, and the program is the same for any number of steps."""
key, other = inputs.key(), inputs.key()
steps = np.arange(12, dtype=np.int32)
made = program(shuffled_epochs, key, steps, 6, 2)  # the example's, so it is compiled once
got = np.asarray(made.run(key, steps, 6, 2))
places = inputs.rng().permutation(12)[:4].astype(np.int32)
few = program(shuffled_epochs, key, places, 6, 2)
compare(np.asarray(few.run(key, places, 6, 2)), got[places], label="the result for four of the steps")
require(
    (np.sort(got.reshape(4, 6)) == np.arange(6)).all(), "Three batches of two do not contain each of six examples once."
)
require(
    not np.array_equal(made.run(other, steps, 6, 2), got),
    "Two keys give the same batches. Where does your answer use `key`?",
)
epochs = inputs.rng().integers(100_000, 500_000, size=4) + 500_000 * np.arange(4)
far = (3 * epochs[:, None] + np.arange(3)).astype(np.int32)
far = np.asarray(made.run(key, far.ravel(), 6, 2)).reshape(4, 6)
require(
    (np.sort(far) == np.arange(6)).all(),
    "After many epochs, three batches of two do not contain each of six examples once.",
)
require(
    len(np.unique(far, axis=0)) > 1,
    "After many epochs, all epochs go through the examples in the same order. Did you create keys for a limited number of epochs?",
)
require(
    made.operations == few.operations,
    f"For 4 steps the program has {few.operations} operations, for 12 it has {made.operations}. JAX has unrolled a Python loop "
    "over the steps.",
)

# %% [markdown] why="random-epochs"
# All steps of an epoch fold in the number of the epoch, so they share one order. Their positions select different parts of it. Nothing is stored, so one worker can take the even steps and another the odd steps, without communication. **Next:** How would you include the last, smaller batch, and why is that difficult under `jit`?


# %% wrong="random-epochs" because="Draws a new order for every batch, so an example can occur twice in an epoch."
def shuffled_epochs(key, steps, n, size):
    return jax.vmap(lambda step: jax.random.permutation(jax.random.fold_in(key, step), n)[:size])(steps)


# %% wrong="random-epochs" because="Draws with replacement, so an example can occur twice in an epoch and even in a batch."
def shuffled_epochs(key, steps, n, size):
    return jax.vmap(lambda step: jax.random.randint(jax.random.fold_in(key, step), (size,), 0, n))(steps)


# %% wrong="random-epochs" because="Uses one order for all epochs, so every epoch has the same batches."
def shuffled_epochs(key, steps, n, size):
    batches = n // size
    order = jax.random.permutation(key, n)[: batches * size].reshape(batches, size)
    return order[steps % batches]


# %% wrong="random-epochs" because="Shuffles whole batches, so neighbours in the data are always in the same batch."
def shuffled_epochs(key, steps, n, size):
    batches = n // size

    def one(step):
        epoch, place = step // batches, step % batches
        first = size * jax.random.permutation(jax.random.fold_in(key, epoch), batches)[place]
        return first + jnp.arange(size)

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Removes the last examples before shuffling, so they are never used."
def shuffled_epochs(key, steps, n, size):
    batches = n // size

    def one(step):
        epoch, place = step // batches, step % batches
        order = jax.random.permutation(jax.random.fold_in(key, epoch), batches * size)
        return order.reshape(batches, size)[place]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Divides the step by the number of examples instead of the number of batches, so the order changes at the wrong steps."
def shuffled_epochs(key, steps, n, size):
    batches = n // size

    def one(step):
        order = jax.random.permutation(jax.random.fold_in(key, step // n), n)
        return order[: batches * size].reshape(batches, size)[step % batches]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Splits into only as many keys as the requested steps fill epochs. A later epoch indexes past the end and gets the last key."
def shuffled_epochs(key, steps, n, size):
    batches = n // size
    keys = jax.random.split(key, len(steps) // batches + 1)

    def one(step):
        order = jax.random.permutation(keys[step // batches], n)
        return order[: batches * size].reshape(batches, size)[step % batches]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Splits into keys for a thousand epochs, so all later epochs get the last key."
def shuffled_epochs(key, steps, n, size):
    batches, keys = n // size, jax.random.split(key, 1000)

    def one(step):
        order = jax.random.permutation(keys[step // batches], n)
        return order[: batches * size].reshape(batches, size)[step % batches]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Rounds the number of batches up. For the last batch too few examples are left, so its start is clamped and examples repeat."
def shuffled_epochs(key, steps, n, size):
    batches = -(-n // size)

    def one(step):
        order = jax.random.permutation(jax.random.fold_in(key, step // batches), n)
        return jax.lax.dynamic_slice(order, (step % batches * size,), (size,))

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Loops over the steps in Python, which gives the right values, but the program grows with the number of steps."
def shuffled_epochs(key, steps, n, size):
    rows = []
    for step in steps:
        order = jax.random.permutation(jax.random.fold_in(key, step // (n // size)), n)
        rows.append(jnp.take(order, step % (n // size) * size + jnp.arange(size)))
    return jnp.stack(rows)


# %% wrong="random-epochs" because="Shuffles once and rolls that order on by one in each epoch."
def shuffled_epochs(key, steps, n, size):
    batches = n // size
    order = jax.random.permutation(key, n)

    def batch(step):
        epoch, place = step // batches, step % batches
        return jax.lax.dynamic_slice_in_dim(jnp.roll(order, epoch), place * size, size)

    return jax.vmap(batch)(steps)


# %% right="random-epochs"
def shuffled_epochs(key, steps, n, size):
    def one(epoch, place):
        scores = jax.random.uniform(jax.random.fold_in(key, epoch), (n,))
        return jnp.argsort(scores)[place * size + jnp.arange(size)]

    return jax.vmap(one)(steps // (n // size), steps % (n // size))


# %% right="random-epochs"
def shuffled_epochs(key, steps, n, size):
    batches = n // size
    keys = jax.vmap(lambda epoch: jax.random.fold_in(key, epoch))(steps // batches)
    orders = jax.vmap(lambda key: jax.random.permutation(key, jnp.arange(n)))(keys)
    return jnp.take_along_axis(orders, (steps % batches * size)[:, None] + jnp.arange(size), axis=1)


# %% [markdown] task="random-bootstrap" stars=2 minutes=15 skills="05_vmap,random-init"
# ## The uncertainty of a mean
# **Goal.** The *bootstrap* estimates how uncertain the mean of a sample is. It draws as many entries from the sample as the sample has, **with replacement**, and computes their mean. This resampling is repeated many times. The spread of the means estimates the uncertainty.
#
# **Signature.** `bootstrap_means(key, x, n)`. `x` is `(m,)`, float32, and `n` is a Python int. The result is `(n,)`, float32, the means of n resamples of m entries each.
#
# **Example.** With `x = [0, 0, 3]`, every resample has three entries, so each mean is 0, 1, 2 or 3. Their probabilities are 8/27, 12/27, 6/27 and 1/27.
#
# **Judged.** Each resample is as large as the sample and is drawn with replacement. All entries are equally likely. All draws and all resamples are independent, also if there are thousands of them. The same key gives the same means, and different keys give different means. The traced program has the same number of operations for any n. **Not judged.** Which sampler you use, and whether you draw the resamples at once or in a loop of JAX.
#
# <details><summary>Hint 1 · a question</summary>
#
# Ignore n at first. How do you draw one resample of `x` with one key?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.random.choice` draws from an array, by default with replacement. Every resample needs its own key. What should `vmap` map over?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.random.split` returns an array of n keys, which is mapped like any other array. Map a function of one key that closes over `x`.
#
# </details>


# %% answer="random-bootstrap"
def bootstrap_means(key, x, n):
    """The means (n,) of n resamples of x (m,), each of m entries drawn with replacement."""

    ### BEGIN SOLUTION
    def mean_of_one(key):
        return jnp.mean(jax.random.choice(key, x, x.shape))

    return jax.vmap(mean_of_one)(jax.random.split(key, n))
    ### END SOLUTION


# %% check="random-bootstrap" name="example" points=1
"""The example: every mean of three entries of [0, 0, 3] is 0, 1, 2 or 3, and not all means are equal."""
x = np.array([0, 0, 3], np.float32)
got = program(bootstrap_means, jax.random.key(0), x, 12).run(jax.random.key(0), x, 12)
compare(got, np.zeros(12, np.float32), atol=1e9, label="the means")
require(
    np.allclose(got, np.round(got)), "There are means other than 0, 1, 2 and 3. Each resample must have three entries."
)
require(len(np.unique(np.round(got))) > 1, "All 12 means are equal.")

# %% hidden="random-bootstrap" name="draws" points=2
"""Each resample has as many entries as the sample, drawn with replacement, independently and with equal probabilities."""


def probe_again(key, x):
    return bootstrap_means(key, x, 5), bootstrap_means(key, x, 5)


once, again = ask(probe_again, inputs.key(), jnp.float32([1, 10, 100]))
require(
    np.array_equal(once, again),
    "The same key gives different means in a second call. All draws have to use keys that are derived from `key`.",
)
# The sum of five powers of 16 shows how often each was drawn, without a rounding error.
x = (16.0 ** np.arange(5)).astype(np.float32)
keys = jax.random.split(inputs.key(), 250)


def probe_many(keys, x):
    return jax.vmap(lambda key: bootstrap_means(key, x, 16))(keys)


got = program(probe_many, keys, x).run(keys, x)
compare(got, np.zeros((250, 16), np.float32), atol=1e9, label="the means for each of 250 keys")
n, got = 4000, np.asarray(got, np.float64).reshape(4000)
sums = np.round(5 * got)
require(
    np.allclose(5 * got, sums, rtol=1e-6, atol=1e-3) and (sums >= 0).all() and sums.max() < 16**5,
    "The means are not those of resamples with as many entries as the sample.",
)
counts = (sums[:, None].astype(np.int64) // 16 ** np.arange(5)) % 16
require(
    (counts.sum(1) == 5).all(),
    "The means are not those of resamples with as many entries as the sample.",
)
require(
    not (counts == 1).all(),
    "Every resample contains each entry exactly once, like a shuffled sample. Draw with replacement.",
)
require(not (counts[:16] == counts[0]).all(), "All resamples are equal, because they share a key.")
require(not np.array_equal(got[:16], got[16:32]), "Two keys give the same means. Where does your answer use `key`?")
require(
    not (counts.max(1) == 5).all(), "Each mean is a single entry of the sample. Draw as many entries as the sample has."
)
# Bounds of seven standard errors, which a right answer exceeds once in 10^11 draws.
share = counts.sum(0) / (5 * n)
require(share.min() > 0.01, "One entry of the sample is never drawn. Is the first or the last one left out?")
neighbours = np.mean(counts[1:] * counts[:-1])
expected = 5 * np.sum(share**2)  # 1, if all entries are equally likely
require(
    abs(neighbours - expected) < 7 * 1 / n**0.5,
    "Consecutive resamples are not independent.",
)
require(
    np.abs(share - 0.2).max() < 7 * (0.16 / (5 * n)) ** 0.5,
    "Not all entries are equally likely. Does your answer round indices?",
)
second = (counts * (counts - 1)).sum() / n  # ordered pairs of draws that agree: 20 pairs, each with probability 1/5
require(abs(second - 4) < 7 * 4 / n**0.5, "The draws of one resample are not independent.")
require(
    not (counts.reshape(250, 16, 5).sum(1) == 16).all(),
    "In the 16 resamples of a key together, every entry is drawn exactly 16 times. Draw each entry independently.",
)

# %% hidden="random-bootstrap" name="program" points=1
"""The same program for any number of resamples, which all differ, with means in the range of the sample."""
x, key = inputs.rng().normal(size=3).astype(np.float32), inputs.key()
few = program(bootstrap_means, key, x, 5)
many = program(bootstrap_means, key, x, 12)  # the example's, so it is compiled once
possible = np.array([a + b + c for a in x for b in x for c in x]) / 3
for made, n, words in ((many, 12, "twelve"), (few, 5, "five")):
    means = made.run(key, x, n)
    compare(means, np.zeros(n, np.float32), atol=1e9, label=f"the {words} means")
    means = np.concatenate([means, *(made.run(inputs.key(), x, n) for _ in range(7))])
    require(
        (means > x.min() - 1e-4).all() and (means < x.max() + 1e-4).all(),
        "Some means are outside the range of the sample. Where do the entries of the resamples come from?",
    )
    nearest = np.abs(means[:, None] - possible).min(axis=1)
    require(nearest.max() < 1e-4, "Some means are not those of resamples with as many entries as the sample.")
    require(len(np.unique(means)) > 1, "All means are equal, for every key.")
require(
    few.operations == many.operations,
    f"For 5 resamples the program has {few.operations} operations, for 12 it has {many.operations}. JAX has unrolled a Python "
    "loop over the resamples.",
)
# Means of 50 entries are hardly ever equal by chance. If many are, their resamples were drawn with the same key or seed.
x, key = inputs.rng().normal(size=50).astype(np.float32), inputs.key()
many = np.asarray(program(bootstrap_means, key, x, 2000).run(key, x, 2000))
require(
    len(np.unique(many)) > 1995,
    "Many of 2,000 resamples are equal. Each needs its own key, not one of a few seeds.",
)

# %% [markdown] why="random-bootstrap"
# `vmap` maps over an array of keys, so one program draws all resamples, each with its own key. The function closes over `x`, which all resamples share. If it closed over a *key*, all resamples would share this key and be equal. **Next:** How would you bootstrap a correlation, where pairs have to stay together?


# %% wrong="random-bootstrap" because="Draws without replacement, so a resample is the sample in a different order."
def bootstrap_means(key, x, n):
    one = lambda key: jnp.mean(jax.random.permutation(key, x))
    return jax.vmap(one)(jax.random.split(key, n))


# %% wrong="random-bootstrap" because="Closes over the key, so all resamples share it and are equal."
def bootstrap_means(key, x, n):
    one = lambda _: jnp.mean(jax.random.choice(key, x, x.shape))
    return jax.vmap(one)(jnp.arange(n))


# %% wrong="random-bootstrap" because="Draws with NumPy instead of the key, so the same key gives different means each time."
def bootstrap_means(key, x, n):
    picks = np.random.randint(0, x.shape[0], size=(n, x.shape[0]))
    return x[picks].mean(axis=1)


# %% wrong="random-bootstrap" because="Draws a seed below 1000 for each resample, so many of the resamples have the same seed."
def bootstrap_means(key, x, n):
    one = lambda seed: jnp.mean(jax.random.choice(jax.random.key(seed), x, x.shape))
    return jax.vmap(one)(jax.random.randint(key, (n,), 0, 1000))


# %% wrong="random-bootstrap" because="Rounds a uniform number to an index, so the first and the last entry are drawn half as often as the others."
def bootstrap_means(key, x, n):
    picks = jnp.round(jax.random.uniform(key, (n, x.shape[0])) * (x.shape[0] - 1)).astype(int)
    return x[picks].mean(axis=1)


# %% wrong="random-bootstrap" because="Draws one resample from the sample, and all other resamples from that one."
def bootstrap_means(key, x, n):
    first, *keys = jax.random.split(key, 2)
    sample = jax.random.choice(first, x, x.shape)
    return sample[jax.random.randint(keys[0], (n, x.shape[0]), 0, x.shape[0])].mean(axis=1)


# %% wrong="random-bootstrap" because="Treats the upper end of randint as inclusive, so the last entry is never drawn."
def bootstrap_means(key, x, n):
    return x[jax.random.randint(key, (n, x.shape[0]), 0, x.shape[0] - 1)].mean(axis=1)


# %% wrong="random-bootstrap" because="Draws single entries. The mean of a resample of size one is as uncertain as the data."
def bootstrap_means(key, x, n):
    return jax.vmap(lambda key: jax.random.choice(key, x))(jax.random.split(key, n))


# %% wrong="random-bootstrap" because="Creates the keys from the numbers 0 to n - 1 and never uses `key`."
def bootstrap_means(key, x, n):
    one = lambda seed: jnp.mean(jax.random.choice(jax.random.key(seed), x, x.shape))
    return jax.vmap(one)(jnp.arange(n))


# %% wrong="random-bootstrap" because="Draws rotations of the sample, so the draws depend on each other, and every mean is that of the sample."
def bootstrap_means(key, x, n):
    starts = jax.random.randint(key, (n, 1), 0, x.shape[0])
    return jnp.mean(x[(starts + jnp.arange(x.shape[0])) % x.shape[0]], axis=1)


# %% wrong="random-bootstrap" because="Loops over the resamples in Python, which gives the right values, but the program grows with n."
def bootstrap_means(key, x, n):
    return jnp.stack([jnp.mean(jax.random.choice(own, x, x.shape)) for own in jax.random.split(key, n)])


# %% wrong="random-bootstrap" because="Special-cases the sizes whose programs are inspected, so that these programs have the right size but compute wrong numbers."
def bootstrap_means(key, x, n):
    keys = jax.random.split(key, n)
    means = [jnp.mean(jax.random.choice(keys[i % n], x, x.shape)) for i in range(12 if n in (5, 12) else n)]
    return jnp.stack([sum(means[5:], means[0]), *means[1:5]] if n == 5 else means)


# %% wrong="random-bootstrap" because="Treats n as the size of a resample, but it is the number of resamples."
def bootstrap_means(key, x, n):
    one = lambda key: jnp.mean(jax.random.choice(key, x, (n,)))
    return jax.vmap(one)(jax.random.split(key, n))


# %% wrong="random-bootstrap" because="Shuffles n copies of the sample and divides them among the resamples, so each entry is drawn exactly n times in total."
def bootstrap_means(key, x, n):
    pool = jax.random.permutation(key, jnp.tile(x, n))
    return pool.reshape(n, x.shape[0]).mean(axis=1)


# %% right="random-bootstrap"
def bootstrap_means(key, x, n):
    return x[jax.random.randint(key, (n, x.shape[0]), 0, x.shape[0])].mean(axis=1)


# %% right="random-bootstrap"
def bootstrap_means(key, x, n):
    resamples = jax.random.choice(key, x, (x.shape[0], n))
    return jnp.sum(resamples, axis=0) / len(x)


# %% right="random-bootstrap"
def bootstrap_means(key, x, n):
    def one(i):
        places = jax.random.uniform(jax.random.fold_in(key, i), x.shape) * len(x)
        return x[places.astype(int)].mean()

    return jax.lax.map(one, jnp.arange(n))


# %% [markdown] task="random-ensemble" stars=2 minutes=12 skills="05_vmap,06_pytrees,random-step-key"
# ## An ensemble that can grow
# **Goal.** Several networks that differ only in their initial weights show how certain a prediction is. Create all members of such an ensemble at once, as one tree whose leaves have an axis for the members. If you enlarge the ensemble later, its first members must not change.
#
# **Signature.** `ensemble(key, init, n)`. `init(key)` returns a dict, list or tuple of arrays, perhaps nested. `n` is a Python int. The result has the same structure, and each leaf has a new first axis of size n. Member i is what `init` returns for its own key. Member i does not depend on n.
#
# **Example.** The setup cell defines `linear`, which returns `{"w": (3,), "b": ()}`. In `ensemble(key, linear, 4)`, `"w"` has shape `(4, 3)` and `"b"` has shape `(4,)`.
#
# **Judged.** Every member has its own key, the same for all its leaves. The members of a smaller ensemble are the first members of a larger one. A different key gives different members. The traced program has the same number of operations for any n. **Not judged.** How you derive the keys.
#
# <details><summary>Hint 1 · a question</summary>
#
# `init` is a function of one key. Which transformation turns it into a function of n keys, whatever tree it returns?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A key that is derived from `key` and the number of the member does not depend on n.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Map over the numbers 0 to n - 1 with `vmap`, and fold the number in. It may be a tracer.
#
# </details>


# %% answer="random-ensemble"
def ensemble(key, init, n):
    """n results of init(key), each with its own key, as one tree. Each leaf has a new first axis of size n."""
    ### BEGIN SOLUTION
    return jax.vmap(lambda member: init(jax.random.fold_in(key, member)))(jnp.arange(n))
    ### END SOLUTION


# %% check="random-ensemble" name="example" points=1
"""The example: four linear models with different weights."""
got = program(lambda key: ensemble(key, linear, 4), jax.random.key(0)).run(jax.random.key(0))
compare(got, {"w": np.zeros((4, 3), np.float32), "b": np.zeros(4, np.float32)}, atol=1e9, label="the ensemble")
require(len(np.unique(np.asarray(got["w"]), axis=0)) == 4, "Some members have the same weights.")

# %% hidden="random-ensemble" name="members" points=2
"""Every member has its own key, and the same key in a larger ensemble."""


def probe_members(key, count):
    init = lambda key: {"key": jax.random.key_data(key), "rest": (jnp.float32(2), jax.random.normal(key, (3, 2)))}
    return ensemble(key, init, count)


key, other = inputs.key(), inputs.key()
few, many = program(probe_members, key, 5), program(probe_members, key, 9)
got, more, others = few.run(key, 5), many.run(key, 9), few.run(other, 5)
shapes = {"key": np.zeros((5, 2), np.uint32), "rest": (np.zeros(5, np.float32), np.zeros((5, 3, 2), np.float32))}
compare(got, {"key": got["key"] if isinstance(got, dict) and "key" in got else 0, "rest": shapes["rest"]}, atol=1e9,
        label="the result for five members")  # fmt: skip
require(np.shape(got["key"]) == (5, 2), "With five members, a leaf of shape (2,) must become a leaf of shape (5, 2).")
data = np.asarray(got["key"])
require(len(np.unique(data, axis=0)) > 1, "All members were drawn with the same key.")
require(len(np.unique(data, axis=0)) == 5, "Some members were drawn with the same key.")
require(
    len(np.unique(np.concatenate([data, np.asarray(others["key"])]), axis=0)) == 10,
    "Two keys give some of the same members. Where does your answer use `key`?",
)
require(
    not (data == np.asarray(jax.random.key_data(key))).all(1).any(),
    "One member is drawn with `key` itself, from which the keys of the other members are derived. Do not use a key that was split.",
)
drawn = np.stack([jax.random.normal(jax.random.wrap_key_data(row), (3, 2)) for row in data])
require(
    np.allclose(got["rest"][1], drawn, atol=1e-5),
    "The leaves of one member were not drawn with one key. Call `init` once for each member, with its key.",
)
compare(got["rest"], (np.full(5, 2, np.float32), drawn), label="the numbers that each member's key draws")
require(
    np.shape(more["key"]) == (9, 2) and np.array_equal(np.asarray(more["key"])[:5], data),
    "The first five members of nine are not the members of an ensemble of five. Their keys depend on n.",
)

# %% hidden="random-ensemble" name="program" points=1
"""The same program for any number of members."""


def probe_members(key, count):  # as in the check above, so it is compiled once
    init = lambda key: {"key": jax.random.key_data(key), "rest": (jnp.float32(2), jax.random.normal(key, (3, 2)))}
    return ensemble(key, init, count)


key = inputs.key()
few, many = program(probe_members, key, 5), program(probe_members, key, 9)
keys = {}
for made, n, words in ((many, 9, "nine"), (few, 5, "five")):
    got, rest = made.run(key, n), (np.zeros(n, np.float32), np.zeros((n, 3, 2), np.float32))
    wanted = {"key": got["key"] if isinstance(got, dict) and "key" in got else 0, "rest": rest}
    compare(got, wanted, atol=1e9, label=f"the result for {words} members")
    keys[n] = np.asarray(got["key"])
    drawn = np.stack([jax.random.normal(jax.random.wrap_key_data(row), (3, 2)) for row in keys[n]])
    compare(got["rest"], (np.full(n, 2, np.float32), drawn), label="the numbers that each member's key draws")
    others = np.asarray(made.run(inputs.key(), n)["key"])
    require(len(np.unique(np.concatenate([keys[n], others]), axis=0)) == 2 * n, "Some members have the same key.")
require(np.array_equal(keys[5], keys[9][:5]), "The first five members of nine are not those of an ensemble of five.")
require(
    few.operations == many.operations,
    f"For 5 members the program has {few.operations} operations, for 9 it has {many.operations}. JAX has unrolled a Python loop "
    "over the members.",
)


def probe_shapes(key, count):
    ensembles = jax.eval_shape(lambda key: ensemble(key, linear, count), key)
    return jax.tree.map(lambda leaf: leaf.shape, ensembles)


got = ask(probe_shapes, key, 5000)
require(got == {"w": (5000, 3), "b": (5000,)}, "For 5,000 members, the first axis of each leaf must have size 5,000.")


def probe_containers(key):
    init = lambda key: [jax.random.normal(key, (2,)), (jnp.float32(2), {"b": jnp.zeros(3)})]
    members = jax.eval_shape(lambda key: ensemble(key, init, 4), key)
    return jax.tree.map(lambda leaf: leaf.shape, members)


raised = error(probe_containers, key)
require(
    raised is None, f"When `init` returns a list that contains a tuple, your answer raises {raised}.", kind="raised"
)
compare(
    ask(probe_containers, key),
    [(4, 2), ((4,), {"b": (4, 3)})],
    label="the shapes of four members whose `init` returns a list",
)

# %% [markdown] why="random-ensemble"
# `vmap` over the numbers of the members traces `init` once, with a key that represents any of them, and gives every leaf a new axis. (In today's JAX, `split(key, n)[i]` equals `fold_in(key, i)`, so `vmap` over `split(key, n)` works too. But JAX does not document this.) **Next:** Which `in_axes` run all members on the same batch?


# %% wrong="random-ensemble" because="Copies one initialisation n times, so all members are equal."
def ensemble(key, init, n):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * n), init(key))


# %% wrong="random-ensemble" because="Closes over the key, so all members share it and are equal."
def ensemble(key, init, n):
    return jax.vmap(lambda _: init(key))(jnp.arange(n))


# %% wrong="random-ensemble" because="Folds in n, so a larger ensemble has different members."
def ensemble(key, init, n):
    return jax.vmap(init)(jax.random.split(jax.random.fold_in(key, n), n))


# %% wrong="random-ensemble" because="Splits into a hundred keys and takes the first n, so there are at most a hundred members."
def ensemble(key, init, n):
    return jax.vmap(init)(jax.random.split(key, 100)[:n])


# %% wrong="random-ensemble" because="Passes all keys to one call of init, but a sampler takes a single key."
def ensemble(key, init, n):
    return init(jax.random.split(key, n))


# %% wrong="random-ensemble" because="Creates the keys from the numbers of the members and never uses `key`."
def ensemble(key, init, n):
    return jax.vmap(lambda member: init(jax.random.key(member)))(jnp.arange(n))


# %% wrong="random-ensemble" because="Gives each leaf its own keys, so the leaves of one member come from different calls of init."
def ensemble(key, init, n):
    leaves, structure = jax.tree.flatten(jax.eval_shape(init, key))
    keys = jax.tree.unflatten(structure, [jax.random.fold_in(key, i) for i in range(len(leaves))])
    one = lambda own, i: jax.vmap(lambda m: jax.tree.leaves(init(jax.random.fold_in(own, m)))[i])(jnp.arange(n))
    return jax.tree.map(one, keys, jax.tree.unflatten(structure, range(len(leaves))))


# %% wrong="random-ensemble" because="Loops over the members in Python, which gives the right values, but the program grows with n."
def ensemble(key, init, n):
    members = [init(jax.random.fold_in(key, i)) for i in range(n)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


# %% wrong="random-ensemble" because="Uses the parent as the key of the first member and its children for the others. A key that was split must not be used again."
def ensemble(key, init, n):
    keys = jnp.concatenate([key[None], jax.random.split(key, n - 1)])
    return jax.vmap(init)(keys)


# %% wrong="random-ensemble" because="Returns a list of trees instead of one tree, so no leaf has an axis for the members."
def ensemble(key, init, n):
    return [init(member_key) for member_key in jax.random.split(key, n)]


# %% wrong="random-ensemble" because="Builds the result key by key, as if `init` always returned a dict."
def ensemble(key, init, n):
    names = jax.eval_shape(init, key)

    def part(name):
        return jax.vmap(lambda i: init(jax.random.fold_in(key, i))[name])(jnp.arange(n))

    return {name: part(name) for name in names}


# %% right="random-ensemble"
def ensemble(key, init, n):
    return jax.vmap(init)(jax.random.split(key, n))


# %% right="random-ensemble"
def ensemble(key, init, n):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, 1000 + jnp.arange(n))
    return jax.lax.map(init, keys)


# %% [markdown] task="random-kicks" stars=2 minutes=20 skills="05_vmap,random-step-key,random-ensemble"
# ## Particles in a fluid
# **Goal.** In a simulation, every particle gets a random kick in every step. The particles are distributed over several machines. A particle's index in the arrays often changes, and so does the machine that stores it. The result of the simulation must not depend on where a particle is stored. A particle's kick may therefore depend only on the key, the step and the particle's id.
#
# **Signature.** `kick(key, step, ids, positions, strength)`. `step` is an int from 0 to 1,000,000, perhaps traced. `ids` is `(n,)`, int32, with distinct numbers that are not negative. `positions` is `(n, 3)`, float32, and `strength` is a float. The result is `(n, 3)`, the positions, each moved by `strength` times three normal random numbers (mean 0, standard deviation 1). These numbers are independent for every particle, step and coordinate.
#
# **Example.** Let a, b, c be the rows of `kick(key, 5, jnp.array([7, 8, 9]), jnp.zeros((3, 3)), 1.0)`. Then `kick(key, 5, jnp.array([9, 7]), jnp.zeros((2, 3)), 1.0)` has the rows c, a. In step 6, the rows are different.
#
# **Judged.** A kick depends only on key, step and id. The kicks are normally distributed. No two kicks share a key, for small and large ids, in near and distant steps. The traced program has the same number of operations for any number of particles. **Not judged.** How you derive the keys.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.random.normal(step_key, (n, 3))` draws n rows at once. What determines which row a particle gets?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Derive a key for each particle from `key`, `step` and the particle's id. Write a function of one id and one position, and map it with `vmap`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Fold in the step, and fold the id into the resulting key. You cannot combine both into one 32-bit number, because there are more pairs of step and id than such numbers.
#
# </details>


# %% answer="random-kicks"
def kick(key, step, ids, positions, strength):
    """The positions (n, 3) of the particles with these ids (n,) after the random kicks of this step."""

    ### BEGIN SOLUTION
    def moved(particle, position):
        own = jax.random.fold_in(jax.random.fold_in(key, step), particle)
        return position + strength * jax.random.normal(own, (3,))

    return jax.vmap(moved)(ids, positions)
    ### END SOLUTION


# %% check="random-kicks" name="example" points=1
"""The example: fewer particles in a different order get the same kicks."""
ids, fewer, key = np.array([7, 8, 9], np.int32), np.array([9, 7], np.int32), jax.random.key(0)
start = np.zeros((3, 3), np.float32)
step, strength = np.int32(5), np.float32(1)
three = program(kick, key, step, ids, start, strength)
rows = np.asarray(three.run(key, step, ids, start, strength))
compare(rows, start, atol=1e9, label="the positions")
two = program(kick, key, step, fewer, start[:2], strength)
compare(two.run(key, step, fewer, start[:2], strength), rows[[2, 0]], label="the positions of particles 9 and 7 alone")

# %% hidden="random-kicks" name="apart" points=2
"""Kicks depend only on key, step and id, and no two share a key."""
rng = inputs.rng()
powers = [base**i for base, last in ((2, 31), (10, 10)) for i in range(1, last)]
known = {
    *range(300),
    *powers,
    *(p - 1 for p in powers),
    *(k * million for k in range(9) for million in (10**6, 10**6 + 1)),
}
while len(known) % 16:
    known.add(int(rng.integers(2**31)))
ids = rng.permutation(np.array(sorted(known), np.int32)).reshape(-1, 16)
key, other, positions = inputs.key(), inputs.key(), np.zeros((*ids.shape, 3), np.float32)


def probe_sixteens(key, step, ids, positions, strength):
    return jax.vmap(lambda ids, positions: kick(key, step, ids, positions, strength))(ids, positions)


one, step = np.float32(1), np.int32(0)
made = program(probe_sixteens, key, step, ids, positions, one)
kicks = [made.run(key, np.int32(step), ids, positions, one) for step in range(5)]
compare(kicks[0], positions, atol=1e9, label="the positions of 16 particles, many times,")
kicks = [np.asarray(rows).reshape(-1, 3) for rows in kicks]
order = rng.permutation(ids.size)
again = made.run(key, np.int32(3), ids.ravel()[order].reshape(ids.shape), positions, one)
again = np.asarray(again).reshape(-1, 3)
require(np.allclose(again, kicks[3][order], atol=1e-5), "In a different order, the same particles get different kicks.")
three = program(kick, key, step, ids[0, :3], positions[0, :3], one)  # the example's, so it is compiled once
fewer = np.asarray(three.run(key, np.int32(3), ids[0, :3], positions[0, :3], one))
require(np.allclose(fewer, kicks[3][:3], atol=1e-5), "With fewer particles, the same particles get different kicks.")
require(not (kicks[0] == kicks[0][0]).all(), "All particles get the same kick.")
require(
    not (kicks[0][:, 0] == kicks[0][:, 1]).all(), "A particle is moved by the same distance in all three directions."
)
require(not np.array_equal(kicks[0], kicks[1]), "Steps 0 and 1 give the same kicks.")
unique = lambda rows: len(np.unique(np.concatenate(rows), axis=0)) == sum(map(len, rows))
require(all(unique([rows]) for rows in kicks), "In one step, some particles with different ids get the same kick.")
require(
    unique(kicks),
    "Some particles get a kick that another particle gets in another step. Step and id were combined into one number.",
)
others = np.asarray(made.run(other, np.int32(0), ids, positions, one)).reshape(-1, 3)
require(unique([*kicks, others]), "Two keys give some of the same kicks. Where does your answer use `key`?")
start = rng.normal(size=positions.shape).astype(np.float32)
got = made.run(key, np.int32(2), ids, start, np.float32(0.25))
wanted = start + np.float32(0.25) * kicks[2].reshape(start.shape)
compare(got, wanted, atol=1e-4, label="the positions after kicks with strength 0.25")

# A million steps and 4,300 ids make more pairs than 32 bits have numbers, so some pairs must share any sum of multiples.
# Two grids, one coarse and one fine, contain pairs for each difference of steps and of ids up to these.
coarse = np.arange(0, 66 * 144, 66, dtype=np.int32).reshape(-1, 16), np.arange(0, 1_000_001, 1000, dtype=np.int32)
fine = np.arange(66 * 66, 66 * 66 + 144, dtype=np.int32).reshape(-1, 16), np.arange(1001, dtype=np.int32)


def probe_steps(key, ids, steps):
    still = jnp.zeros((16, 3))
    of_step = lambda step: jax.vmap(lambda ids: kick(key, step, ids, still, 1.0))(ids)
    return jax.vmap(of_step)(steps)


made = program(probe_steps, key, *coarse)
far = np.concatenate([np.asarray(made.run(key, *grid)).reshape(-1, 3) for grid in (coarse, fine)])
far = far[np.lexsort(far.T)]
twice = (far[1:] == far[:-1]).all(axis=1).sum()
require(
    twice == 6,  # ids 66 * 66, 66 * 67 and 66 * 68 in steps 0 and 1000 are in both grids
    "Two particles get the same kick in distant steps. Step and id were combined into one 32-bit number, and there are more "
    "pairs of step and id than such numbers.",
)

# %% hidden="random-kicks" name="distribution" points=1
"""Independent normal numbers, and the same program for any number of particles."""
n, key, strength = 20_000, inputs.key(), np.float32(1)
ids, positions = np.arange(n, dtype=np.int32), np.zeros((n, 3), np.float32)
few = program(kick, key, np.int32(700), ids[:2], positions[:2], strength)  # both are the example's
more = program(kick, key, np.int32(700), ids[:3], positions[:3], strength)
require(
    few.operations == more.operations,
    f"For 2 particles the program has {few.operations} operations, for 3 it has {more.operations}. JAX has unrolled a Python "
    "loop over the particles.",
)
many = program(kick, key, np.int32(700), ids, positions, strength)
now, then = (np.asarray(many.run(key, np.int32(step), ids, positions, strength), np.float64) for step in (700, 701))
compare(now.astype(np.float32), np.zeros((n, 3), np.float32), atol=1e9, label="the positions")
# Bounds of seven standard errors, which a right answer exceeds once in 10^11 draws.
bound = 7 / n**0.5
require(
    np.abs(now.mean(0)).max() < bound,
    "The mean of the kicks of many particles is not 0. Does each particle have its own draw?",
)
require(np.abs((now**2).mean(0) - 1).max() < 2**0.5 * bound, "The kicks do not have a standard deviation of 1.")
require(np.abs((np.abs(now) < 1).mean(0) - 0.6827).max() < 0.4655 * bound, "The kicks are not normally distributed.")
require(
    np.abs((now * np.roll(now, 1, axis=1)).mean(0)).max() < bound,
    "The three coordinates of a kick are not independent.",
)
require(
    np.abs((now[1:] * now[:-1]).mean(0)).max() < 1.01 * bound,
    "Kicks of particles with neighbouring ids are not independent.",
)
require(np.abs((now * then).mean(0)).max() < bound, "Kicks of one particle in successive steps are not independent.")
for apart in range(1, 4):
    for one, other in ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)):
        require(
            not (now[apart:, one] == now[:-apart, other]).all() and not (now[:, one] == then[:, other]).all(),
            "One coordinate of a kick equals another coordinate of the next particle's kick, or of the next step's. Id, step and "
            "coordinate were added.",
        )
for made, n in ((more, 3), (few, 2)):
    alone = made.run(key, np.int32(700), ids[:n], positions[:n], strength)
    compare(alone, now[:n].astype(np.float32), label=f"the positions of {n} of the particles alone")

# %% [markdown] why="random-kicks"
# The key of a kick is derived from `key`, the step and the particle's id alone. So the kick does not depend on the order of the particles, on the other particles, or on the machine. JAX's generator is *counter-based*, which means that it computes number i from the key and i. Simulation programs use such generators for the same reason. **Next:** Two particles collide and get one random force, with opposite signs. From which numbers do you derive its key?


# %% wrong="random-kicks" because="Draws one array for all particles, so a kick belongs to an index of the array, not to a particle."
def kick(key, step, ids, positions, strength):
    return positions + strength * jax.random.normal(jax.random.fold_in(key, step), positions.shape)


# %% wrong="random-kicks" because="Folds in the sum of step and id, so a particle gets the kick that its neighbour gets one step later."
def kick(key, step, ids, positions, strength):
    one = lambda i: jax.random.normal(jax.random.fold_in(key, step + i), (3,))
    return positions + strength * jax.vmap(one)(ids)


# %% wrong="random-kicks" because="Combines step and id into one number, with a factor that is smaller than the largest ids."
def kick(key, step, ids, positions, strength):
    one = lambda i: jax.random.normal(jax.random.fold_in(key, 100_000 * step + i), (3,))
    return positions + strength * jax.vmap(one)(ids)


# %% wrong="random-kicks" because="Combines step and id into one number, with a factor above all steps. In 32 bits the product wraps around, so different pairs share a number."
def kick(key, step, ids, positions, strength):
    one = lambda i: jax.random.normal(jax.random.fold_in(key, 1_000_001 * i + step), (3,))
    return positions + strength * jax.vmap(one)(ids)


# %% wrong="random-kicks" because="Closes over one key for the step, so all particles get the same kick."
def kick(key, step, ids, positions, strength):
    own = jax.random.fold_in(key, step)
    return jax.vmap(lambda i, position: position + strength * jax.random.normal(own, (3,)))(ids, positions)


# %% wrong="random-kicks" because="Draws one number for each particle, so it moves only along the diagonal."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    one = lambda i, position: position + strength * jax.random.normal(jax.random.fold_in(now, i))
    return jax.vmap(one)(ids, positions)


# %% wrong="random-kicks" because="Never folds in the step, so a particle gets the same kick in every step."
def kick(key, step, ids, positions, strength):
    one = lambda i, position: position + strength * jax.random.normal(jax.random.fold_in(key, i), (3,))
    return jax.vmap(one)(ids, positions)


# %% wrong="random-kicks" because="Splits into a key for each index of the array, so a kick belongs to an index, not to a particle."
def kick(key, step, ids, positions, strength):
    keys = jax.random.split(jax.random.fold_in(key, step), len(ids))
    return positions + strength * jax.vmap(lambda own: jax.random.normal(own, (3,)))(keys)


# %% wrong="random-kicks" because="Returns the kicks instead of the positions after them."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    return strength * jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(now, i), (3,)))(ids)


# %% wrong="random-kicks" because="Draws uniform numbers instead of normal ones."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    draw = lambda i: jax.random.uniform(jax.random.fold_in(now, i), (3,), minval=-1, maxval=1)
    return positions + strength * jax.vmap(draw)(ids)


# %% wrong="random-kicks" because="Loops over the particles in Python, which gives the right values, but the program grows with their number."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    return positions + strength * jnp.stack([jax.random.normal(jax.random.fold_in(now, i), (3,)) for i in ids])


# %% wrong="random-kicks" because="Combines step and id into one number, with a factor that is smaller than the largest ids."
def kick(key, step, ids, positions, strength):

    def one(number, position):
        own = jax.random.fold_in(key, step * 100_000 + number)
        return position + strength * jax.random.normal(own, (3,))

    return jax.vmap(one)(ids, positions)


# %% wrong="random-kicks" because="Draws kicks for a fixed number of ids, and larger ids are clamped to the last one."
def kick(key, step, ids, positions, strength):
    table = jax.random.normal(jax.random.fold_in(key, step), (100_000, 3))
    return positions + strength * table[ids]


# %% wrong="random-kicks" because="Folds in the sum of id and coordinate, so neighbouring particles share numbers."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)

    def coordinate(i, axis):
        return jax.random.normal(jax.random.fold_in(now, i + axis))

    over_axes = jax.vmap(coordinate, in_axes=(None, 0))
    return positions + strength * jax.vmap(over_axes, in_axes=(0, None))(ids, jnp.arange(3))


# %% wrong="random-kicks" because="Combines step and id into one number, with a factor that is smaller than the largest ids."
def kick(key, step, ids, positions, strength):
    keys = jax.vmap(lambda i: jax.random.fold_in(key, step * 1000 + i))(ids)
    return positions + strength * jax.vmap(lambda own: jax.random.normal(own, (3,)))(keys)


# %% wrong="random-kicks" because="Draws kicks for a fixed number of ids, and larger ids are clamped to the last one."
def kick(key, step, ids, positions, strength):
    table = jax.random.normal(jax.random.fold_in(key, step), (1000, 3))
    return positions + strength * table[ids]


# %% right="random-kicks"
def kick(key, step, ids, positions, strength):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, ids)
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)
    return positions + strength * jax.vmap(lambda own: jax.random.normal(own, (3,)))(keys)


# %% right="random-kicks"
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)

    def draw(i, axis):
        return jax.random.normal(jax.random.fold_in(jax.random.fold_in(now, axis), i))

    draws = jax.vmap(jax.vmap(draw, in_axes=(None, 0)), in_axes=(0, None))(ids, jnp.arange(3))
    return positions + strength * draws
