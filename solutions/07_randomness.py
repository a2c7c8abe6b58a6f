# %% [markdown]
# # 07 · Exercises: randomness
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# `key` is always one typed key, as `jax.random.key(0)` makes it. Where a task does not say how keys are derived from it, that is up to you.

# %% setup
from grader.checks import ask, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np


def linear(key):
    """The parameters of a small linear model, drawn with one key: {"w": (3,), "b": ()}"""
    return {"w": jax.random.normal(key, (3,)), "b": jnp.float32(0)}


# %% [markdown] task="random-init" stars=1 minutes=8 skills="01_arrays,07_randomness"
# ## A network's first weights
# **Goal.** Draw the first weights of a network, layer by layer. One line is missing, the one that makes `keys`.
#
# **Signature.** `init_mlp(key, sizes)`: `sizes` is a tuple of ints, two or more. Returns a list with one dict for each layer: layer i has `"w"` of shape `(sizes[i], sizes[i + 1])`, normally distributed with mean 0 and standard deviation 1/√`sizes[i]`, and `"b"` of shape `(sizes[i + 1],)`, zeros; all float32.
#
# **Example.** `init_mlp(jax.random.key(0), (3, 4, 2))` gives two layers, with weights of shapes `(3, 4)` and `(4, 2)`.
#
# **Judged.** Shapes, the distribution, that no layer repeats numbers of another one, that a key always gives the same network and every key another one; that your answer passes `jax.debug_key_reuse`. **Not judged.** How the keys of the layers are derived.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does the loop below do with `keys`, and how many does it need? (`strict=True` makes `zip` refuse lists of different lengths.)
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Each layer consumes one key. Two layers with one key begin with the same numbers, whatever their shapes.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.random.split(key, n)` gives an array of n keys. How many layers do `len(sizes)` sizes make?
#
# </details>


# %% answer="random-init"
def init_mlp(key, sizes):
    """First parameters of a network with these sizes: a list of {"w": (n, m), "b": (m,)}, one for each layer."""
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
"""Normal weights of the right size, others in every layer and for every key."""
key, other = inputs.key(), inputs.key()
layers, others = (ask(init_mlp, one, (200, 200, 300, 200)) for one in (key, other))
shapes = ((200, 200), (200, 300), (300, 200))
wanted = [{"w": np.zeros(shape, np.float32), "b": np.zeros(shape[1], np.float32)} for shape in shapes]
compare(layers, wanted, atol=1e9, label="the list of layers for four sizes")
compare(
    ask(init_mlp, key, (200, 200, 300, 200)), layers, label="the list of layers, asked for again with the same key,"
)
drawn = [np.asarray(layer["w"], np.float64).ravel() * n**0.5 for layer, (n, _) in zip(layers, shapes, strict=True)]


def agree(one, other):
    """Whether two lists of numbers agree in places where chance would not make them: in four of the first thousand."""
    return np.sum(np.abs(one[:1000] - other[:1000]) < 1e-5) >= 4


for i in range(3):
    compare(layers[i]["b"], wanted[i]["b"], label=f'"b" of layer {i}')
    again = np.asarray(others[i]["w"], np.float64).ravel() * shapes[i][0] ** 0.5
    require(not agree(drawn[i], again), f"Two keys give the same weights in layer {i}: where does `key` come in?")
    for j in range(i):
        require(
            not agree(drawn[i], drawn[j]),
            f"Layer {i} repeats numbers of layer {j}: both were drawn with one key.",
        )
    # Bounds of seven standard errors: a right answer meets one of them once in 10^11 times.
    error_of_mean = drawn[i].size ** -0.5
    require(abs(drawn[i].mean()) < 7 * error_of_mean, f"The mean of the weights of layer {i} is not 0.")
    spread = drawn[i].std()
    require(
        abs(spread**2 - 1) < 7 * 2**0.5 * error_of_mean,
        f"The weights of layer {i} spread {spread:.2f} times as far as they should.",
    )
    inner = np.mean(np.abs(drawn[i]) < 1)
    require(abs(inner - 0.6827) < 7 * 0.4655 * error_of_mean, f"The weights of layer {i} are not normally distributed.")

# %% hidden="random-init" name="reuse" points=1 observed=true
"""No key is used twice: passes `jax.debug_key_reuse`."""


def probe_reuse(key):
    with jax.debug_key_reuse(True):
        layers = init_mlp(key, (4, 4, 4, 4, 4))
    return len(layers)


refused = error(probe_reuse, inputs.key())
require(
    refused != "KeyReuseError",
    "Under `jax.debug_key_reuse(True)` your answer ends in a KeyReuseError: a key is used again after it was used or split.",
)
require(refused is None, f"For five sizes your answer raises {refused}: are there as many keys as layers?")

# %% [markdown] why="random-init"
# A key that was split is spent; its children are as good as independent, and each is used once. **Next:** numbers of the first layer should stay the same when a layer is added at the end. Do they, with `split`?


# %% wrong="random-init" because="Uses one key for all layers: layers of one shape are equal, others begin with the same numbers."
def init_mlp(key, sizes):
    keys = [key] * (len(sizes) - 1)
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Uses the parent for the first layer and its children for the others: a key that was split is spent."
def init_mlp(key, sizes):
    keys = [key, *jax.random.split(key, len(sizes) - 2)]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Makes keys of the layers' numbers and never looks at `key`: every network is the same one."
def init_mlp(key, sizes):
    keys = [jax.random.key(i) for i in range(len(sizes) - 1)]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Draws seeds from NumPy: the same key gives another network each time."
def init_mlp(key, sizes):
    keys = [jax.random.key(np.random.randint(2**31)) for _ in sizes[1:]]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Splits without saying into how many: two keys, enough for the example only."
def init_mlp(key, sizes):
    keys = jax.random.split(key)
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Folds in the size of a layer instead of its number: layers of one size share a key."
def init_mlp(key, sizes):
    keys = [jax.random.fold_in(key, n) for n in sizes[:-1]]
    layers = []
    for layer_key, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        layers.append({"w": jax.random.normal(layer_key, (n, m)) / n**0.5, "b": jnp.zeros(m)})
    return layers


# %% wrong="random-init" because="Splits as many keys as there are sizes: one more than layers."
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
# **Goal.** While a network trains, each entry of a layer's output is dropped (set to 0) with some probability, and what is kept is scaled up so that the mean stays the same. Every layer must drop its own entries, and every run must be repeatable.
#
# **Signature.** `dropout(key, layer, x, rate)`: `layer` is an int, `x` a float array of any shape, `rate` a Python float from 0 up to 1: the probability to be dropped. Returns an array like `x`, also in its dtype. The derivation is prescribed: the key of a layer is `key` with `layer` folded in, and an entry is **kept** where `jax.random.bernoulli`, called with that key, the probability to be kept and the shape of `x`, is True. What is kept is divided by the probability to be kept.
#
# **Example.** `dropout(jax.random.key(0), 3, jnp.arange(1.0, 7.0), 0.25)` is `[1.3333, 2.6667, 0, 5.3333, 6.6667, 0]`.
#
# **Judged.** Values, for several layers, shapes and rates; the dtype. **Not judged.** `rate` 1, where nothing is kept; entries of `x` that are NaN or inf; which function makes the layer's key, as long as it is that key.
#
# <details><summary>Hint 1 · a question</summary>
#
# Three quantities are near each other here: the probability to be dropped, the one to be kept, and the factor for what is kept. Which of them is `rate`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.random.fold_in(key, number)` gives a new key for each number. `bernoulli(key, p, shape)` is True with probability p, and draws for each entry of the shape.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# With a mask of booleans, `jnp.where(mask, ..., 0)` picks. A Python number leaves the dtype of `x` as it is; a float32 mask would not.
#
# </details>


# %% answer="random-dropout"
def dropout(key, layer, x, rate):
    """x with entries set to 0 with probability `rate`, the others divided by 1 - rate; other entries in each layer."""
    ### BEGIN SOLUTION
    kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)
    ### END SOLUTION


# %% check="random-dropout" name="example" points=1
"""The example: six entries, a quarter to be dropped."""
got = ask(dropout, jax.random.key(0), 3, jnp.arange(1.0, 7.0), 0.25)
compare(got, np.array([4 / 3, 8 / 3, 0, 16 / 3, 20 / 3, 0], np.float32))

# %% hidden="random-dropout" name="values" points=2
"""Drops what is prescribed, in every layer, and scales the rest."""


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
            (np.array_equal(zeros, kept), "Kept and dropped are swapped: an entry is kept where `bernoulli` is True."),
            (np.array_equal(zeros, inverted), "Was `bernoulli` given the probability to be dropped?"),
            (
                np.array_equal(zeros, ~inverted),
                "They are those where `bernoulli` with `rate` is True: as many, but not where the task's one is False.",
            ),
            (
                np.array_equal(zeros, shared) and layer == 0,
                "In layer 0 they are those that `key` itself gives: 0 is folded in like any other number.",
            ),
            (np.array_equal(zeros, shared), "Every layer drops the same ones: where does `layer` come in?"),
            (rows, "Every row of `x` loses the same ones: how many booleans were drawn?"),
            (True, "The mask was drawn with another key, or by other arguments, than the task says."),
        ):
            require(right or not misled, f"The wrong entries are dropped. {why}")
        require(
            np.allclose(got, wanted, rtol=1e-3),
            "The right entries are dropped, and the others are not scaled right: what has to be done for the mean to stay?",
        )
    compare(got, wanted, label=f"the result for an input of {len(shape)} axes and rate {rate:g}")

# %% hidden="random-dropout" name="dtype" points=1
"""The result has the dtype of `x`, also in bfloat16."""
zeros = jnp.zeros((7, 9), jnp.bfloat16)
compare(ask(dropout, inputs.key(), 2, zeros, 0.4), zeros, label="the result for an x in bfloat16")

# %% [markdown] why="random-dropout"
# `fold_in` names a stream: layer 3 of this step is always the same key, whichever layers were run before it, and nothing has to be carried along. **Next:** the same mask falls in every training step, as long as the caller hands over the same key. What should the caller do?


# %% equivalent="random-dropout" because="`where` takes every number but 0 for True, and entries of x that are NaN or inf are not judged."
# changed mask dtype, bernoulli(...) -> bernoulli(...).astype("float32"): kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
# product for where, where(X, Y, 0) -> X * Y: return jnp.where(kept, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Asks bernoulli with the probability to be dropped: rate is not the probability to be kept."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Drops where bernoulli with the probability to be dropped is True: as many entries, but others than prescribed."
def dropout(key, layer, x, rate):
    dropped = jax.random.bernoulli(jax.random.fold_in(key, layer), rate, x.shape)
    return jnp.where(dropped, 0, x / (1 - rate))


# %% wrong="random-dropout" because="Sets to 0 where bernoulli is True: keeps what should be dropped."
def dropout(key, layer, x, rate):
    dropped = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(dropped, 0, x / (1 - rate))


# %% wrong="random-dropout" because="Never folds in the layer: all layers drop the same entries."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Uses the key itself in layer 0, as if there were nothing to fold in."
def dropout(key, layer, x, rate):
    own = jax.random.fold_in(key, layer) if layer else key
    return jnp.where(jax.random.bernoulli(own, 1 - rate, x.shape), x / (1 - rate), 0)


# %% wrong="random-dropout" because="Leaves out the scale: in training the layer gives less on average than later without dropout."
def dropout(key, layer, x, rate):
    return jnp.where(jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape), x, 0)


# %% wrong="random-dropout" because="Divides by rate instead of by the probability to be kept."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return jnp.where(keep, x / max(rate, 0.01), 0)


# %% wrong="random-dropout" because="Draws one row of the mask and lets it broadcast: every example loses the same entries."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape[-1:])
    return jnp.where(keep, x / (1 - rate), 0)


# %% wrong="random-dropout" because="Multiplies by a mask in float32: an x in bfloat16 comes back wider."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - rate, x.shape)
    return x * keep.astype(jnp.float32) / (1 - rate)


# %% wrong="random-dropout" because="Makes the layer's key of its number alone: the mask is the same in every step and every run."
def dropout(key, layer, x, rate):
    keep = jax.random.bernoulli(jax.random.key(layer), 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


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
# ## A stream that can be resumed
# **Goal.** A training step needs keys for several purposes: shuffling, dropout, noise. A run that stopped after step 699 shall go on at step 700 with exactly the keys that it would have had, without anything being stored but the first key.
#
# **Signature.** `step_key(key, step, purpose)`: `step` is an int from 0 to 1,000,000, `purpose` one from 0 to 9; under `jit` both are traced. Returns one key.
#
# **Example.** `step_key(key, 700, 2)` is the same key whether steps 0 to 699 were run before it in this program or not; and it is no other than that for step 701, for purpose 1, or for another `key`.
#
# **Judged.** That all steps and purposes have keys of their own, that the same step and purpose give the same key again, that the answer can be traced. **Not judged.** How you derive the keys.
#
# <details><summary>Hint 1 · a question</summary>
#
# A chain of `split`s gets to step 700 by way of all steps before it. Which function of `jax.random` goes there directly?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Two numbers have to go in. Step 4 with purpose 1 and step 3 with purpose 2 must not become the same number.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# What `fold_in` gives is a key like any other, and something can be folded into that too.
#
# </details>


# %% answer="random-step-key"
def step_key(key, step, purpose):
    """The key for a purpose (an int, 0 to 9) in a training step (an int), the same in every run that begins with `key`."""
    ### BEGIN SOLUTION
    return jax.random.fold_in(jax.random.fold_in(key, step), purpose)
    ### END SOLUTION


# %% check="random-step-key" name="resume" points=1
"""Step 2 has the same key after steps 0 and 1 and without them; steps 1 and 2 have others."""
key = jax.random.key(0)
through = ask(lambda key: [step_key(key, step, 0) for step in range(3)], key)
resumed = ask(lambda key: step_key(key, 2, 0), key)
compare(resumed, through[2], label="the key of step 2, resumed there,")
require(
    bool(jnp.any(jax.random.key_data(through[1]) != jax.random.key_data(through[2]))), "Steps 1 and 2 have one key."
)

# %% hidden="random-step-key" name="apart" points=2
"""No two of all steps and purposes share a key, and every first key gives others."""
# For each number from 1 to a million there are two steps here that lie so far apart, so any factor between step and
# purpose is noticed; the first thousand steps stand in their own places.
steps = np.concatenate([np.arange(1001), np.arange(2000, 1_000_001, 1000)]).astype(np.int32)
purposes = np.arange(10, dtype=np.int32)
key, other = inputs.key(), inputs.key()


def probe_grid(key, steps, purposes):
    of_step = jax.vmap(step_key, in_axes=(None, None, 0))
    return jax.random.key_data(jax.vmap(of_step, in_axes=(None, 0, None))(key, steps, purposes))


refused = error(probe_grid, key, steps, purposes)
require(
    refused is None,
    f"Where step and purpose are traced, your answer raises {refused}. Python can neither count to a traced number nor "
    "decide by it; what can a traced number be handed to?",
)
grid, others = (np.asarray(ask(probe_grid, one, steps, purposes)) for one in (key, other))
require(
    grid.shape == (2000, 10, 2), f"A grid of steps and purposes gives keys of shape {grid.shape[:-1]}: return one key."
)
equal = (grid[:5, None, :, None] == grid[None, :5, None, :]).all(-1)  # steps, steps, purposes, purposes
require(not equal[1, 2].diagonal().all(), "Every step has the same keys: where does `step` come in?")
require(
    not equal[3, 3, 1, 2],
    "Purposes 1 and 2 of one step have the same key: where does `purpose` come in? (`fold_in` cuts off a fraction.)",
)
require(
    not equal[4, 3, 1, 2], "Step 4 with purpose 1 has the same key as step 3 with purpose 2: their sum is the same."
)
require(not equal[0, 0, 1, 2], "In step 0 purposes 1 and 2 have the same key: 0 times anything is 0.")
rows = grid.reshape(-1, 2)
order = np.lexsort(rows.T)
twice = (rows[order[1:]] == rows[order[:-1]]).all(1)
apart = np.abs(steps[order[1:] // 10] - steps[order[:-1] // 10])[twice]
require(
    not twice.any(),
    f"Two keys are the same, of steps that are {apart.min(initial=10**6):,} apart: each pair of step and purpose needs a number "
    "of its own, or two folds.",
)
mixed = np.concatenate([rows, others.reshape(-1, 2)])
require(
    len(np.unique(mixed, axis=0)) == len(mixed), "Two first keys give some of the same keys: where does `key` come in?"
)
one = program(step_key, key, np.int32(0), np.int32(0))
compare(one.run(key, np.int32(700), np.int32(4)), jax.random.wrap_key_data(grid[700, 4]), label="the key under `jit`")

# %% hidden="random-step-key" name="repeat" points=1
"""The same step and purpose give the same key, in any order, also after other keys were asked for."""
key, other = inputs.key(), inputs.key()
places = [(int(step), int(purpose)) for step, purpose in inputs.rng().integers(0, 9, size=(6, 2))]
forward = ask(lambda key, places: [step_key(key, *place) for place in places], key, places)
backward = ask(lambda key, other, places: [(step_key(other, 3, 3), step_key(key, *place))[1] for place in places],
               key, other, places[::-1])  # fmt: skip
compare(backward[::-1], forward, label="the second pass's list")

# %% [markdown] why="random-step-key"
# A key is a *function* of the first key and the names of the place where it is used; so there is nothing to carry, to save, or to get out of step. **Next:** what would you fold in where eight machines each need noise of their own in every step?


# %% wrong="random-step-key" because="Folds in the sum of step and purpose: neighbouring steps share keys."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step + purpose)


# %% wrong="random-step-key" because="Folds in the product: in step 0 all purposes share one key, and 2 times 3 is 3 times 2."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step * purpose)


# %% wrong="random-step-key" because="Gives each purpose a block of a million numbers: step 1,000,000 is the next purpose's step 0."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, 1_000_000 * purpose + step)


# %% wrong="random-step-key" because="Sets the purpose into the bits above the sixteenth, which steps from 65,536 on use too."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step ^ (purpose << 16))


# %% wrong="random-step-key" because="Leaves the step out: every step has the same keys."
def step_key(key, step, purpose):
    return jax.random.split(key, 10)[purpose]


# %% wrong="random-step-key" because="Leaves the purpose out, or folds it in as a fraction, which is cut off: shuffling, dropout and noise share a key."
def step_key(key, step, purpose):
    return jax.random.fold_in(key, step)


# %% wrong="random-step-key" because="Makes the key of the step alone: every run is the same, whatever its first key."
def step_key(key, step, purpose):
    return jax.random.fold_in(jax.random.key(step), purpose)


# %% wrong="random-step-key" because="Walks along a chain of splits in Python: right, but it cannot be traced, and takes a split for every step so far."
def step_key(key, step, purpose):
    for _ in range(step):
        key, _ = jax.random.split(key)
    return jax.random.fold_in(key, purpose)


# %% wrong="random-step-key" because="Keeps a key of its own from call to call: a resumed run starts it anew."
kept = []


def step_key(key, step, purpose):
    before = kept[-1] if kept else key
    following, new = jax.random.split(before)
    kept.append(following)
    return new


# %% wrong="random-step-key" because="Splits into as many keys as the purpose's number: that number is a shape, which must not be traced."
def step_key(key, step, purpose):
    of_step = jax.random.fold_in(key, step)
    return jax.random.split(of_step, purpose + 1)[purpose]


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
# ## Batches without end
# **Goal.** Which examples are in the batch of step 12,345? An epoch goes through the data once, in an order of its own; the batches of the stream are numbered on and on, and any of them can be had directly.
#
# **Signature.** `shuffled_epochs(key, steps, n, size)`: `steps` is `(m,)`, int32, in any order; `n` examples and the batches' `size` are Python ints. An epoch is `n // size` steps long: steps 0 to `n // size` - 1 are the first epoch, and so on. Returns `(m, size)`, int32: row i holds the indices, from 0 to n - 1, of the examples in the batch of step `steps[i]`.
#
# **Example.** `shuffled_epochs(key, jnp.array([0, 1, 2]), 6, 2)` holds each of 0 to 5 once, in some order; so does `[3, 4, 5]`, in another one. With n = 7 an epoch also has three steps, and leaves out one example.
#
# **Judged.** In an epoch no example comes twice; every epoch has an order of its own, and leaves out other examples where some are left over; single examples are shuffled, not whole batches; a row depends on key, step, `n` and `size` alone; that the traced program has as many operations for any number of steps, so no Python loop over them (one of JAX's, 08, is fine). **Not judged.** How you derive the keys; that each row draws a whole order.
#
# <details><summary>Hint 1 · a question</summary>
#
# For one step: in which epoch is it, and at which place in that epoch?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# All steps of an epoch need the same order, so the same key; steps of different epochs need different ones. `jax.random.permutation(key, n)` gives an order.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function of one step. Cut the order to whole batches, `order[: batches * size]`, reshape it to a row for each batch, and index with the place, which may be traced. Then `jax.vmap`.
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
"""The example: each epoch of six examples holds each of them once, in three batches of two."""
steps = np.arange(12, dtype=np.int32)
made = program(shuffled_epochs, jax.random.key(0), steps, 6, 2)
got = made.run(jax.random.key(0), steps, 6, 2)
compare(got * 0, np.zeros((12, 2), np.int32), label="the array of batches")
for epoch in np.asarray(got).reshape(4, 6):
    require(sorted(epoch.tolist()) == list(range(6)), f"The three batches of one epoch hold {epoch.tolist()}.")

# %% hidden="random-epochs" name="epochs" points=2
"""Twenty epochs of 22 examples in batches of 4: each example at most once in an epoch, in orders of their own."""
steps, key = np.arange(100, dtype=np.int32).reshape(10, 10), inputs.key()


def probe_tens(key, steps):
    return jax.vmap(lambda steps: shuffled_epochs(key, steps, 22, 4))(steps)


got = program(probe_tens, key, steps).run(key, steps)
compare(got * 0, np.zeros((10, 10, 4), np.int32), label="the batches of ten steps, ten times,")
got = np.asarray(got).reshape(100, 4)
require(((got >= 0) & (got < 22)).all(), "There are indices outside of 0 to n - 1.")
require(all(len(set(row)) == 4 for row in got.tolist()), "An example comes twice in one batch.")
epochs = got.reshape(20, 20)
require(
    all(len(set(epoch)) == 20 for epoch in epochs.tolist()),
    "With 22 examples in batches of 4, an example comes twice in five steps that should be one epoch. How many steps has an "
    "epoch, and do all of them take different parts of one order?",
)
require(len({tuple(epoch) for epoch in epochs.tolist()}) > 1, "All epochs go through the examples in the same order.")
members = (got.reshape(20, 5, 4)[..., None] == np.arange(22)).any(2).astype(int)  # epochs, batches, examples
together = np.einsum("ebi,ebj->ij", members, members) - 20 * np.eye(22)
require(
    together.max() < 20,
    "Some examples are in one batch in each of twenty epochs: are whole batches shuffled, instead of examples?",
)
require(
    len(np.unique(got)) == 22,
    "The two examples that are left over are the same in all of twenty epochs: they are never seen.",
)
require(
    len({tuple(epoch) for epoch in epochs.tolist()}) == 20, "Some epochs go through the examples in the same order."
)

# %% hidden="random-epochs" name="resume" points=1
"""A batch depends on key and step alone, for any number of steps in any order and of any size, by the same program."""
key, other = inputs.key(), inputs.key()
steps = np.arange(12, dtype=np.int32)
made = program(shuffled_epochs, key, steps, 6, 2)  # the example's, so it is compiled once
got = np.asarray(made.run(key, steps, 6, 2))
places = inputs.rng().permutation(12)[:4].astype(np.int32)
few = program(shuffled_epochs, key, places, 6, 2)
compare(np.asarray(few.run(key, places, 6, 2)), got[places], label="the result for four steps, asked for alone,")
require(
    (np.sort(got.reshape(4, 6)) == np.arange(6)).all(), "Three batches of two do not hold each of six examples once."
)
require(
    not np.array_equal(made.run(other, steps, 6, 2), got), "Two keys give the same batches: where does `key` come in?"
)
epochs = inputs.rng().integers(100_000, 500_000, size=4) + 500_000 * np.arange(4)
far = (3 * epochs[:, None] + np.arange(3)).astype(np.int32)
far = np.asarray(made.run(key, far.ravel(), 6, 2)).reshape(4, 6)
require(
    (np.sort(far) == np.arange(6)).all(),
    "After many epochs, three batches of two do not hold each of six examples once.",
)
require(
    len(np.unique(far, axis=0)) > 1,
    "After many epochs, all epochs go through the examples in one order: were keys made for a limited number of epochs?",
)
require(
    made.operations == few.operations,
    f"For 4 steps the program has {few.operations} operations, for 12 it has {made.operations}: a Python loop was written out "
    "step by step.",
)

# %% [markdown] why="random-epochs"
# The order belongs to the epoch, so the epoch's number is folded in; the place only cuts. Nothing is stored, and two workers that take the even and the odd steps go through the data together without a word. **Next:** how would you have the last, smaller batch too, and what would `jit` say to it?


# %% wrong="random-epochs" because="Draws every batch anew: an example comes again before the epoch is over."
def shuffled_epochs(key, steps, n, size):
    return jax.vmap(lambda step: jax.random.permutation(jax.random.fold_in(key, step), n)[:size])(steps)


# %% wrong="random-epochs" because="Draws with replacement."
def shuffled_epochs(key, steps, n, size):
    return jax.vmap(lambda step: jax.random.randint(jax.random.fold_in(key, step), (size,), 0, n))(steps)


# %% wrong="random-epochs" because="Uses one order for all epochs: the examples of a batch always meet again."
def shuffled_epochs(key, steps, n, size):
    batches = n // size
    order = jax.random.permutation(key, n)[: batches * size].reshape(batches, size)
    return order[steps % batches]


# %% wrong="random-epochs" because="Shuffles whole batches: neighbours in the data are always in one batch."
def shuffled_epochs(key, steps, n, size):
    batches = n // size

    def one(step):
        epoch, place = step // batches, step % batches
        first = size * jax.random.permutation(jax.random.fold_in(key, epoch), batches)[place]
        return first + jnp.arange(size)

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Cuts off the last examples before shuffling: what is left over is never seen."
def shuffled_epochs(key, steps, n, size):
    batches = n // size

    def one(step):
        epoch, place = step // batches, step % batches
        order = jax.random.permutation(jax.random.fold_in(key, epoch), batches * size)
        return order.reshape(batches, size)[place]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Counts epochs by examples, as if a step were one: the order changes in the middle of an epoch."
def shuffled_epochs(key, steps, n, size):
    batches = n // size

    def one(step):
        order = jax.random.permutation(jax.random.fold_in(key, step // n), n)
        return order[: batches * size].reshape(batches, size)[step % batches]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Splits as many keys as the asked steps would fill epochs: a later epoch indexes past the end and gets the last key."
def shuffled_epochs(key, steps, n, size):
    batches = n // size
    keys = jax.random.split(key, len(steps) // batches + 1)

    def one(step):
        order = jax.random.permutation(keys[step // batches], n)
        return order[: batches * size].reshape(batches, size)[step % batches]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Splits keys for a thousand epochs: all later ones get the last key."
def shuffled_epochs(key, steps, n, size):
    batches, keys = n // size, jax.random.split(key, 1000)

    def one(step):
        order = jax.random.permutation(keys[step // batches], n)
        return order[: batches * size].reshape(batches, size)[step % batches]

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Rounds the number of batches up: the last one begins where no whole batch is left, and is clamped back."
def shuffled_epochs(key, steps, n, size):
    batches = -(-n // size)

    def one(step):
        order = jax.random.permutation(jax.random.fold_in(key, step // batches), n)
        return jax.lax.dynamic_slice(order, (step % batches * size,), (size,))

    return jax.vmap(one)(steps)


# %% wrong="random-epochs" because="Goes through the steps in a Python loop: right, but the program grows with them."
def shuffled_epochs(key, steps, n, size):
    rows = []
    for step in steps:
        order = jax.random.permutation(jax.random.fold_in(key, step // (n // size)), n)
        rows.append(jnp.take(order, step % (n // size) * size + jnp.arange(size)))
    return jnp.stack(rows)


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
# ## How sure is the mean?
# **Goal.** The mean of a sample is uncertain, and the *bootstrap* says how much without any formula: draw as many entries from the sample as it has, **with replacement**, take the mean of these, and do that many times over. The spread of the means is the uncertainty.
#
# **Signature.** `bootstrap_means(key, x, n)`: `x` is `(m,)`, float32; `n` is a Python int. Returns `(n,)`, float32: the means of n resamples of m entries each.
#
# **Example.** With `x = [0, 0, 3]` every resample holds three of these entries, so each of the means is 0, 1, 2 or 3: 0 in 8 of 27 cases, 1 in 12, 2 in 6, and 3 in one.
#
# **Judged.** That resamples are as large as the sample, drawn with replacement, each entry as likely as any other, each draw and each resample for itself, also among thousands; that a key gives the same means again and every key others; that the traced program has as many operations for any n, so no Python loop over the resamples. **Not judged.** Which function draws; whether resamples are made all at once or in a loop of JAX's (08).
#
# <details><summary>Hint 1 · a question</summary>
#
# Forget the n. With one key, how do you draw one resample of `x`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.random.choice` draws from an array, with replacement unless told otherwise. Every resample needs a key of its own, so what is it that vmap has to run along?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# An array of n keys from `jax.random.split` is mapped like any other array. The function of one key closes over `x`.
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
"""The example: every mean of three entries of [0, 0, 3] is 0, 1, 2 or 3, and not all are the same."""
x = np.array([0, 0, 3], np.float32)
got = program(bootstrap_means, jax.random.key(0), x, 12).run(jax.random.key(0), x, 12)
compare(got, np.zeros(12, np.float32), atol=1e9, label="the means")
require(np.allclose(got, np.round(got)), "There are means other than 0, 1, 2 and 3: resamples have three entries each.")
require(len(np.unique(np.round(got))) > 1, "All 12 means are the same.")

# %% hidden="random-bootstrap" name="draws" points=2
"""What is in each resample: as many entries as the sample has, with replacement, all equally likely, all for themselves."""


def probe_again(key, x):
    return bootstrap_means(key, x, 5), bootstrap_means(key, x, 5)


once, again = ask(probe_again, inputs.key(), jnp.float32([1, 10, 100]))
require(
    np.array_equal(once, again),
    "The same key gives other means when it is used again: all draws have to come from `key`.",
)
# Powers of 16: the sum of five of them tells how often each was drawn, without a rounding error.
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
    "The means are not those of as many entries as the sample has.",
)
counts = (sums[:, None].astype(np.int64) // 16 ** np.arange(5)) % 16
require(
    (counts.sum(1) == 5).all(),
    "The means are not those of as many entries as the sample has.",
)
require(
    not (counts == 1).all(),
    "Every resample holds each entry exactly once, as a shuffled sample does: each place has to be drawn anew.",
)
require(not (counts[:16] == counts[0]).all(), "All resamples are the same one: they share a key.")
require(not np.array_equal(got[:16], got[16:32]), "Two keys give the same means: where does `key` come in?")
require(not (counts.max(1) == 5).all(), "Each mean is a single entry of the sample: draw as many as the sample has.")
# Bounds of seven standard errors: a right answer meets one of them once in 10^11 times.
share = counts.sum(0) / (5 * n)
require(share.min() > 0.01, "An entry of the sample is never drawn: is the first or the last one left out?")
neighbours = np.mean(counts[1:] * counts[:-1])
expected = 5 * np.sum(share**2)  # 1, if all entries are equally likely
require(
    abs(neighbours - expected) < 7 * 1 / n**0.5,
    "Resamples that follow each other are not independent of each other.",
)
require(
    np.abs(share - 0.2).max() < 7 * (0.16 / (5 * n)) ** 0.5,
    "Not every entry is drawn as often as the others: where are indices rounded?",
)
second = (counts * (counts - 1)).sum() / n  # ordered pairs of draws that agree: 20 pairs, each with probability 1/5
require(abs(second - 4) < 7 * 4 / n**0.5, "The draws of one resample are not independent of each other.")

# %% hidden="random-bootstrap" name="program" points=1
"""The same program for any number of resamples, all of them different ones, with means between the sample's ends."""
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
        "Some means lie outside of the sample: what are the resamples made of?",
    )
    nearest = np.abs(means[:, None] - possible).min(axis=1)
    require(nearest.max() < 1e-4, "Some means are not those of as many entries as the sample has.")
    require(len(np.unique(means)) > 1, "All means are the same, for every key.")
require(
    few.operations == many.operations,
    f"For 5 resamples the program has {few.operations} operations, for 12 it has {many.operations}: a Python loop was "
    "written out resample by resample.",
)
# Means of 50 entries hardly ever agree: two resamples that do are one, drawn with the same key or seed.
x, key = inputs.rng().normal(size=50).astype(np.float32), inputs.key()
many = np.asarray(program(bootstrap_means, key, x, 2000).run(key, x, 2000))
require(
    len(np.unique(many)) > 1995,
    "Among 2,000 resamples many are the same one: each needs a key of its own, and not one of a few seeds.",
)

# %% [markdown] why="random-bootstrap"
# Keys are an array, and vmap runs along it: one program draws all resamples, each with its own key. What the function closes over, `x`, is shared; a *key* that it closes over would be shared too, and all resamples one and the same. **Next:** how would you bootstrap a correlation, where pairs have to stay together?


# %% wrong="random-bootstrap" because="Draws without replacement: a resample is the sample in another order."
def bootstrap_means(key, x, n):
    one = lambda key: jnp.mean(jax.random.permutation(key, x))
    return jax.vmap(one)(jax.random.split(key, n))


# %% wrong="random-bootstrap" because="Closes over the key: every run of vmap draws the same resample."
def bootstrap_means(key, x, n):
    one = lambda _: jnp.mean(jax.random.choice(key, x, x.shape))
    return jax.vmap(one)(jnp.arange(n))


# %% wrong="random-bootstrap" because="Draws from NumPy, which knows nothing of the key: the means are others each time."
def bootstrap_means(key, x, n):
    picks = np.random.randint(0, x.shape[0], size=(n, x.shape[0]))
    return x[picks].mean(axis=1)


# %% wrong="random-bootstrap" because="Draws a seed below 1000 for each resample: among many some are the same."
def bootstrap_means(key, x, n):
    one = lambda seed: jnp.mean(jax.random.choice(jax.random.key(seed), x, x.shape))
    return jax.vmap(one)(jax.random.randint(key, (n,), 0, 1000))


# %% wrong="random-bootstrap" because="Rounds a uniform number to an index: the first and the last entry are drawn half as often."
def bootstrap_means(key, x, n):
    picks = jnp.round(jax.random.uniform(key, (n, x.shape[0])) * (x.shape[0] - 1)).astype(int)
    return x[picks].mean(axis=1)


# %% wrong="random-bootstrap" because="Draws one resample from the sample and all others from that one."
def bootstrap_means(key, x, n):
    first, *keys = jax.random.split(key, 2)
    sample = jax.random.choice(first, x, x.shape)
    return sample[jax.random.randint(keys[0], (n, x.shape[0]), 0, x.shape[0])].mean(axis=1)


# %% wrong="random-bootstrap" because="Takes the upper end of randint for inclusive: the last entry is never drawn."
def bootstrap_means(key, x, n):
    return x[jax.random.randint(key, (n, x.shape[0]), 0, x.shape[0] - 1)].mean(axis=1)


# %% wrong="random-bootstrap" because="Draws single entries: resamples of size one spread as far as the data do."
def bootstrap_means(key, x, n):
    return jax.vmap(lambda key: jax.random.choice(key, x))(jax.random.split(key, n))


# %% wrong="random-bootstrap" because="Makes keys of the numbers 0 to n - 1 and never looks at `key`."
def bootstrap_means(key, x, n):
    one = lambda seed: jnp.mean(jax.random.choice(jax.random.key(seed), x, x.shape))
    return jax.vmap(one)(jnp.arange(n))


# %% wrong="random-bootstrap" because="Draws whole rotations of the sample: the draws hang together, and every mean is that of the sample."
def bootstrap_means(key, x, n):
    starts = jax.random.randint(key, (n, 1), 0, x.shape[0])
    return jnp.mean(x[(starts + jnp.arange(x.shape[0])) % x.shape[0]], axis=1)


# %% wrong="random-bootstrap" because="Draws resample by resample in Python: right, but the program grows with n."
def bootstrap_means(key, x, n):
    return jnp.stack([jnp.mean(jax.random.choice(own, x, x.shape)) for own in jax.random.split(key, n)])


# %% wrong="random-bootstrap" because="Special-cases the sizes whose programs are inspected: those programs have the right form and compute wrong numbers."
def bootstrap_means(key, x, n):
    keys = jax.random.split(key, n)
    means = [jnp.mean(jax.random.choice(keys[i % n], x, x.shape)) for i in range(12 if n in (5, 12) else n)]
    return jnp.stack([sum(means[5:], means[0]), *means[1:5]] if n == 5 else means)


# %% wrong="random-bootstrap" because="Takes n for the size of a resample: it is the number of resamples."
def bootstrap_means(key, x, n):
    one = lambda key: jnp.mean(jax.random.choice(key, x, (n,)))
    return jax.vmap(one)(jax.random.split(key, n))


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
# **Goal.** Several networks that differ in nothing but their first weights tell how sure a prediction is. Make all members at once, as one tree whose leaves have an axis for the members; and when the ensemble is made larger tomorrow, today's members shall be among the new ones, unchanged.
#
# **Signature.** `ensemble(key, init, n)`: `init(key)` gives a dict, list or tuple of arrays, nested as you like; `n` is a Python int. Returns the same form, each leaf with a new first axis of size n: member i is what `init` gives for a key of its own. Member i does not depend on n.
#
# **Example.** With `linear` from the setup, which gives `{"w": (3,), "b": ()}`, `ensemble(key, linear, 4)` has `"w"` of shape `(4, 3)` and `"b"` of shape `(4,)`.
#
# **Judged.** That every member has a key of its own, the same for all its leaves; that members of a smaller ensemble are found in a larger one, in their places; that another key gives others; that the traced program has as many operations for any n, so no Python loop over the members (one of JAX's, 08, is fine). **Not judged.** How you derive the keys.
#
# <details><summary>Hint 1 · a question</summary>
#
# `init` is a function of one key. What turns it into a function of n keys, whatever tree it gives?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A key that is made of `key` and of the member's number knows nothing of n.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# vmap over the numbers 0 to n - 1, and fold the number in, which may be traced.
#
# </details>


# %% answer="random-ensemble"
def ensemble(key, init, n):
    """n results of init(key), each with a key of its own, as one tree; each leaf has a new first axis of size n."""
    ### BEGIN SOLUTION
    return jax.vmap(lambda member: init(jax.random.fold_in(key, member)))(jnp.arange(n))
    ### END SOLUTION


# %% check="random-ensemble" name="example" points=1
"""The example: four linear models, with weights of their own."""
got = program(lambda key: ensemble(key, linear, 4), jax.random.key(0)).run(jax.random.key(0))
compare(got, {"w": np.zeros((4, 3), np.float32), "b": np.zeros(4, np.float32)}, atol=1e9, label="the ensemble")
require(len(np.unique(np.asarray(got["w"]), axis=0)) == 4, "Some members have the same weights.")

# %% hidden="random-ensemble" name="members" points=2
"""Every member has one key of its own, and keeps it in a larger ensemble."""


def probe_members(key, count):
    init = lambda key: {"key": jax.random.key_data(key), "rest": (jnp.float32(2), jax.random.normal(key, (3, 2)))}
    return ensemble(key, init, count)


key, other = inputs.key(), inputs.key()
few, many = program(probe_members, key, 5), program(probe_members, key, 9)
got, more, others = few.run(key, 5), many.run(key, 9), few.run(other, 5)
shapes = {"key": np.zeros((5, 2), np.uint32), "rest": (np.zeros(5, np.float32), np.zeros((5, 3, 2), np.float32))}
compare(got, {"key": got["key"] if isinstance(got, dict) and "key" in got else 0, "rest": shapes["rest"]}, atol=1e9,
        label="the result for five members")  # fmt: skip
require(np.shape(got["key"]) == (5, 2), "A leaf of shape (2,) has not become one of shape (5, 2).")
data = np.asarray(got["key"])
require(len(np.unique(data, axis=0)) > 1, "All members were drawn with the same key.")
require(len(np.unique(data, axis=0)) == 5, "Some members were drawn with the same key.")
require(
    len(np.unique(np.concatenate([data, np.asarray(others["key"])]), axis=0)) == 10,
    "Two keys give some of the same members: where does `key` come in?",
)
require(
    not (data == np.asarray(jax.random.key_data(key))).all(1).any(),
    "One member is drawn with `key` itself, from which the other members' keys are made: a key that was split is spent.",
)
drawn = np.stack([jax.random.normal(jax.random.wrap_key_data(row), (3, 2)) for row in data])
require(
    np.allclose(got["rest"][1], drawn, atol=1e-5),
    "The leaves of one member were not drawn with one key: `init` is to be called once for a member, with its key.",
)
compare(got["rest"], (np.full(5, 2, np.float32), drawn), label="what a member's key draws")
require(
    np.shape(more["key"]) == (9, 2) and np.array_equal(np.asarray(more["key"])[:5], data),
    "The first five members of nine are not the members of an ensemble of five: their keys depend on n.",
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
    compare(got["rest"], (np.full(n, 2, np.float32), drawn), label="what a member's key draws")
    others = np.asarray(made.run(inputs.key(), n)["key"])
    require(len(np.unique(np.concatenate([keys[n], others]), axis=0)) == 2 * n, "Some members have the same key.")
require(np.array_equal(keys[5], keys[9][:5]), "The first five members of nine are not those of an ensemble of five.")
require(
    few.operations == many.operations,
    f"For 5 members the program has {few.operations} operations, for 9 it has {many.operations}: a Python loop was written "
    "out member by member.",
)


def probe_shapes(key, count):
    ensembles = jax.eval_shape(lambda key: ensemble(key, linear, count), key)
    return jax.tree.map(lambda leaf: leaf.shape, ensembles)


got = ask(probe_shapes, key, 5000)
require(got == {"w": (5000, 3), "b": (5000,)}, "For 5,000 members a leaf has not 5,000 on its first axis.")

# %% [markdown] why="random-ensemble"
# vmap over the members' numbers runs `init` once, on a key that stands for any of them, and stacks every leaf. (In today's JAX, `split(key, n)[i]` is the very key that `fold_in(key, i)` gives, so a vmap over `split(key, n)` grows as well; older versions and other kinds of keys do not promise it.) **Next:** with which `in_axes` do you run all members on the same batch?


# %% wrong="random-ensemble" because="Copies one initialisation n times: no member differs from another."
def ensemble(key, init, n):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * n), init(key))


# %% wrong="random-ensemble" because="Closes over the key: every run of vmap gets the same one."
def ensemble(key, init, n):
    return jax.vmap(lambda _: init(key))(jnp.arange(n))


# %% wrong="random-ensemble" because="Folds n in: a larger ensemble has other members."
def ensemble(key, init, n):
    return jax.vmap(init)(jax.random.split(jax.random.fold_in(key, n), n))


# %% wrong="random-ensemble" because="Splits a hundred keys and takes the first n: there are no more members than that."
def ensemble(key, init, n):
    return jax.vmap(init)(jax.random.split(key, 100)[:n])


# %% wrong="random-ensemble" because="Hands all keys to one call of init: samplers take a single key."
def ensemble(key, init, n):
    return init(jax.random.split(key, n))


# %% wrong="random-ensemble" because="Makes keys of the members' numbers and never looks at `key`."
def ensemble(key, init, n):
    return jax.vmap(lambda member: init(jax.random.key(member)))(jnp.arange(n))


# %% wrong="random-ensemble" because="Gives each leaf keys of its own, as if init drew one leaf: what belongs together in a member was drawn apart."
def ensemble(key, init, n):
    leaves, structure = jax.tree.flatten(jax.eval_shape(init, key))
    keys = jax.tree.unflatten(structure, [jax.random.fold_in(key, i) for i in range(len(leaves))])
    one = lambda own, i: jax.vmap(lambda m: jax.tree.leaves(init(jax.random.fold_in(own, m)))[i])(jnp.arange(n))
    return jax.tree.map(one, keys, jax.tree.unflatten(structure, range(len(leaves))))


# %% wrong="random-ensemble" because="Makes member after member in Python: right, but the program grows with n."
def ensemble(key, init, n):
    members = [init(jax.random.fold_in(key, i)) for i in range(n)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)


# %% wrong="random-ensemble" because="Keeps the parent as the first member's key: it is spent, its children are the others' keys."
def ensemble(key, init, n):
    keys = jnp.concatenate([key[None], jax.random.split(key, n - 1)])
    return jax.vmap(init)(keys)


# %% wrong="random-ensemble" because="Gives a list of trees: there is no axis to run a batch of members along."
def ensemble(key, init, n):
    return [init(member_key) for member_key in jax.random.split(key, n)]


# %% right="random-ensemble"
def ensemble(key, init, n):
    return jax.vmap(init)(jax.random.split(key, n))


# %% right="random-ensemble"
def ensemble(key, init, n):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, 1000 + jnp.arange(n))
    return jax.lax.map(init, keys)


# %% [markdown] task="random-kicks" stars=2 minutes=20 skills="05_vmap,random-step-key,random-ensemble"
# ## Particles in a fluid
# **Goal.** A new setting. In a simulation every particle is kicked at random in every step. The particles are spread over several machines and change places all the time, in memory and between machines; still the whole simulation must come out the same, however it is spread. So a particle's kick may depend on who it is and when it is, and on nothing else.
#
# **Signature.** `kick(key, step, ids, positions, strength)`: `step` is an int from 0 to 1,000,000, perhaps traced; `ids` is `(n,)`, int32, different numbers of 0 and more; `positions` is `(n, 3)`, float32; `strength` is a float. Returns `(n, 3)`: the positions, each moved by `strength` times three normal numbers (mean 0, standard deviation 1), independent for every particle, every step and every coordinate.
#
# **Example.** Let `kick(key, 5, [7, 8, 9], zeros of (3, 3), 1.0)` give the rows a, b, c. Then `kick(key, 5, [9, 7], zeros of (2, 3), 1.0)` gives c, a; in step 6 the rows are others.
#
# **Judged.** That a kick depends on key, step and id alone; the distribution; that no two kicks share a key, for small ids and large ones, in near steps and far ones; that the traced program has as many operations for any number of particles, so no Python loop over them (one of JAX's, 08, is fine). **Not judged.** How you derive the keys.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.random.normal(step_key, (n, 3))` draws n rows at once. What decides which row a particle gets?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A key for each particle, made of `key`, `step` and the particle's id; a function of one id and one position; and a vmap.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Fold in the step, and into that the id. A number of 32 bits that is made of both will not do: there are more pairs of step and id than such numbers.
#
# </details>


# %% answer="random-kicks"
def kick(key, step, ids, positions, strength):
    """The positions (n, 3) after the random kicks of this step to the particles with these ids (n,)."""

    ### BEGIN SOLUTION
    def moved(particle, position):
        own = jax.random.fold_in(jax.random.fold_in(key, step), particle)
        return position + strength * jax.random.normal(own, (3,))

    return jax.vmap(moved)(ids, positions)
    ### END SOLUTION


# %% check="random-kicks" name="example" points=1
"""The example: particles in another order, and fewer of them, get the same kicks."""
ids, fewer, key = np.array([7, 8, 9], np.int32), np.array([9, 7], np.int32), jax.random.key(0)
start = np.zeros((3, 3), np.float32)
step, strength = np.int32(5), np.float32(1)
three = program(kick, key, step, ids, start, strength)
rows = np.asarray(three.run(key, step, ids, start, strength))
compare(rows, start, atol=1e9, label="the positions")
two = program(kick, key, step, fewer, start[:2], strength)
compare(two.run(key, step, fewer, start[:2], strength), rows[[2, 0]], label="what particles 9 and 7 get alone")

# %% hidden="random-kicks" name="apart" points=2
"""Kicks depend on key, step and id alone, and no two share a key."""
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
require(np.allclose(again, kicks[3][order], atol=1e-5), "In another order the same particles get other kicks.")
three = program(kick, key, step, ids[0, :3], positions[0, :3], one)  # the example's, so it is compiled once
fewer = np.asarray(three.run(key, np.int32(3), ids[0, :3], positions[0, :3], one))
require(np.allclose(fewer, kicks[3][:3], atol=1e-5), "Where there are fewer particles, the same ones get other kicks.")
require(not (kicks[0] == kicks[0][0]).all(), "All particles get the same kick.")
require(not (kicks[0][:, 0] == kicks[0][:, 1]).all(), "A particle is moved equally far in all three directions.")
require(not np.array_equal(kicks[0], kicks[1]), "Steps 0 and 1 give the same kicks.")
unique = lambda rows: len(np.unique(np.concatenate(rows), axis=0)) == sum(map(len, rows))
require(all(unique([rows]) for rows in kicks), "In one step, some particles with different ids get the same kick.")
require(
    unique(kicks),
    "Some particles get a kick that another one gets in another step: step and id were made into one number.",
)
others = np.asarray(made.run(other, np.int32(0), ids, positions, one)).reshape(-1, 3)
require(unique([*kicks, others]), "Two keys give some of the same kicks: where does `key` come in?")
start = rng.normal(size=positions.shape).astype(np.float32)
got = made.run(key, np.int32(2), ids, start, np.float32(0.25))
wanted = start + np.float32(0.25) * kicks[2].reshape(start.shape)
compare(got, wanted, atol=1e-4, label="the positions that are kicked with strength 0.25")

# A million steps and 4,300 ids make more pairs than 32 bits have numbers, so some pairs must share any sum of multiples.
# In two grids, one coarse and one fine, stand pairs for each difference of steps and of ids up to these.
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
    "Two particles get the same kick in steps that lie far apart: step and id were made into one number of 32 bits, and "
    "there are more pairs of step and id than such numbers.",
)

# %% hidden="random-kicks" name="distribution" points=1
"""Normal numbers, independent of each other, by the same program for any number of particles."""
n, key, strength = 20_000, inputs.key(), np.float32(1)
ids, positions = np.arange(n, dtype=np.int32), np.zeros((n, 3), np.float32)
few = program(kick, key, np.int32(700), ids[:2], positions[:2], strength)  # both are the example's
more = program(kick, key, np.int32(700), ids[:3], positions[:3], strength)
require(
    few.operations == more.operations,
    f"For 2 particles the program has {few.operations} operations, for 3 it has {more.operations}: a Python loop was written "
    "out particle by particle.",
)
many = program(kick, key, np.int32(700), ids, positions, strength)
now, then = (np.asarray(many.run(key, np.int32(step), ids, positions, strength), np.float64) for step in (700, 701))
compare(now.astype(np.float32), np.zeros((n, 3), np.float32), atol=1e9, label="the positions")
# Bounds of seven standard errors: a right answer meets one of them once in 10^11 times.
bound = 7 / n**0.5
require(
    np.abs(now.mean(0)).max() < bound,
    "The kicks of many particles do not average to 0: has each particle a draw of its own?",
)
require(np.abs((now**2).mean(0) - 1).max() < 2**0.5 * bound, "The kicks do not have a standard deviation of 1.")
require(np.abs((np.abs(now) < 1).mean(0) - 0.6827).max() < 0.4655 * bound, "The kicks are not normally distributed.")
require(np.abs((now * np.roll(now, 1, axis=1)).mean(0)).max() < bound, "The directions of a kick hang together.")
require(
    np.abs((now[1:] * now[:-1]).mean(0)).max() < 1.01 * bound, "Kicks of particles with neighbouring ids hang together."
)
require(np.abs((now * then).mean(0)).max() < bound, "Kicks of one particle in successive steps hang together.")
for made, n in ((more, 3), (few, 2)):
    alone = made.run(key, np.int32(700), ids[:n], positions[:n], strength)
    compare(alone, now[:n].astype(np.float32), label=f"the positions of {n} of the particles, asked for alone,")

# %% [markdown] why="random-kicks"
# The key says *what* is drawn, not *when* or *where*: with the particle's id folded in, no order, no neighbour and no machine has a say. Simulation codes call such generators counter-based, and JAX's is one of them. **Next:** two particles collide and push each other with one random force, equal and opposite. Of which numbers do you make its key?


# %% wrong="random-kicks" because="Draws one array for all: the kick belongs to a place in the array, not to a particle."
def kick(key, step, ids, positions, strength):
    return positions + strength * jax.random.normal(jax.random.fold_in(key, step), positions.shape)


# %% wrong="random-kicks" because="Folds in the sum of step and id: a particle gets tomorrow what its neighbour got today."
def kick(key, step, ids, positions, strength):
    one = lambda i: jax.random.normal(jax.random.fold_in(key, step + i), (3,))
    return positions + strength * jax.vmap(one)(ids)


# %% wrong="random-kicks" because="Makes one number of step and id with a factor that large ids exceed."
def kick(key, step, ids, positions, strength):
    one = lambda i: jax.random.normal(jax.random.fold_in(key, 100_000 * step + i), (3,))
    return positions + strength * jax.vmap(one)(ids)


# %% wrong="random-kicks" because="Makes one number of step and id with a factor above all steps: in 32 bits it wraps around, and far pairs meet."
def kick(key, step, ids, positions, strength):
    one = lambda i: jax.random.normal(jax.random.fold_in(key, 1_000_001 * i + step), (3,))
    return positions + strength * jax.vmap(one)(ids)


# %% wrong="random-kicks" because="Closes over one key for the step: all particles are kicked the same way."
def kick(key, step, ids, positions, strength):
    own = jax.random.fold_in(key, step)
    return jax.vmap(lambda i, position: position + strength * jax.random.normal(own, (3,)))(ids, positions)


# %% wrong="random-kicks" because="Draws one number for each particle: it moves along the diagonal only."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    one = lambda i, position: position + strength * jax.random.normal(jax.random.fold_in(now, i))
    return jax.vmap(one)(ids, positions)


# %% wrong="random-kicks" because="Never folds in the step: every step gives every particle the same kick."
def kick(key, step, ids, positions, strength):
    one = lambda i, position: position + strength * jax.random.normal(jax.random.fold_in(key, i), (3,))
    return jax.vmap(one)(ids, positions)


# %% wrong="random-kicks" because="Splits a key for each place in the array: whoever stands first gets the first one."
def kick(key, step, ids, positions, strength):
    keys = jax.random.split(jax.random.fold_in(key, step), len(ids))
    return positions + strength * jax.vmap(lambda own: jax.random.normal(own, (3,)))(keys)


# %% wrong="random-kicks" because="Returns the kicks instead of the positions after them."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    return strength * jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(now, i), (3,)))(ids)


# %% wrong="random-kicks" because="Draws uniform numbers."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    draw = lambda i: jax.random.uniform(jax.random.fold_in(now, i), (3,), minval=-1, maxval=1)
    return positions + strength * jax.vmap(draw)(ids)


# %% wrong="random-kicks" because="Goes through the particles in Python: right, but the program grows with them."
def kick(key, step, ids, positions, strength):
    now = jax.random.fold_in(key, step)
    return positions + strength * jnp.stack([jax.random.normal(jax.random.fold_in(now, i), (3,)) for i in ids])


# %% wrong="random-kicks" because="Packs step and id into one 32-bit number: large ids collide with other steps."
def kick(key, step, ids, positions, strength):

    def one(number, position):
        own = jax.random.fold_in(key, step * 100_000 + number)
        return position + strength * jax.random.normal(own, (3,))

    return jax.vmap(one)(ids, positions)


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
