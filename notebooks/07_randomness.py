# %% [markdown]
# # 07 · Randomness: keys instead of hidden state
#
# *The core takes about 30 minutes. Then do [the exercises](../exercises/07_randomness/07_randomness.ipynb). You can skip the nine sections marked "Deeper", or read them later in any order.* After the core, you can draw random numbers that stay the same in a resumed run, also under `jit` and `vmap`. You can also find a key that is used twice.
#
# **Prerequisites.** Arrays (lesson 01), `jit` (03), `vmap` (05) and pytrees (06). Answer these questions from memory.
#
# 1. From 03: A jitted function calls `np.random.normal()`. What does its second call return?
#
# <details><summary>Answer</summary>
#
# The same number as the first call. Python runs only while JAX traces the function, so NumPy's number is a constant of the compiled program.
# </details>
#
# 2. From 05: A function is mapped with `in_axes=(None, 0)`. Which arrays do all examples share?
#
# <details><summary>Answer</summary>
#
# The first argument, and every array that the function closes over. The second argument is mapped along axis 0.
# </details>
#
# 3. From 06: What are the leaves of `{"w": jnp.ones((2, 3)), "b": None}`?
#
# <details><summary>Answer</summary>
#
# One array. The dict's keys and the `None` belong to the treedef.
# </details>

# %%
import jax

jax.config.update("jax_num_cpu_devices", 8)  # for one of the Deeper sections; must come before JAX is used (01)

import jax.numpy as jnp
import numpy as np

from grader.learning import plots
from grader.learning.inspection import print_error, time_ms

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## Why does the resumed run differ?
# A training run adds random noise in every step. It stops after step 2 and is resumed with the same seed. Steps 3 to 5 should get the same noise as in a run that never stopped. First, we draw the noise with NumPy.

# %%
generator = np.random.default_rng(7)
complete = [generator.normal() for step in range(6)]
generator = np.random.default_rng(7)  # the program starts again, at step 3
resumed = [generator.normal() for step in range(3, 6)]
print("steps 3 to 5, complete run:", np.array(complete[3:]))
print("steps 3 to 5, resumed run: ", np.array(resumed))

# %% [markdown]
# The resumed run draws different numbers. NumPy's generator has a hidden **state**, which changes with every draw. A number therefore depends on how many numbers were drawn before it, anywhere in the program.
#
# You could save this state when the run stops. But the numbers would still have to be drawn one after the other. And a jitted function cannot change a hidden state, because it must be [pure](../docs/glossary.md#pure-function) (02).
#
# ## A key is a value
# JAX has no such generator. It has **[keys](../docs/glossary.md#key)**, which are immutable arrays. The first key is created from a seed. Each function that draws random numbers takes a key as an argument.

# %%
key = jax.random.key(7)
print("type:", jax.typeof(key), "  shape:", key.shape, "  data:", jax.random.key_data(key))

# %% [markdown]
# A key is an array of shape `()` with the dtype `key<fry>`. Here, `fry` stands for *Threefry*, the default generator. The data of this key are two 32-bit integers.

# %% [markdown] predict="random-same"
# `jax.random.normal(key)` is called twice, with the same key. What do the calls return?
#
# - [ ] two different numbers | A generator with a state would return them. A key has no state that a call could change.
# - [ ] an error, because the key is used twice | JAX does not check this by default. You will soon enable a check.
# - [x] the same number, twice | Right. The function is pure, like `jnp.sin`, so the same argument gives the same result.

# %%
print(jax.random.normal(key), jax.random.normal(key))

# %% [markdown]
# A function that draws random numbers is called a **sampler**. It does not modify its key, so new numbers need a new key. You cannot calculate with keys, and a sampler takes exactly one key.

# %%
print_error(lambda: key + 1)
print_error(lambda: jax.random.normal(7))
print_error(lambda: jax.random.normal(jax.random.split(key, 3)))

# %% [markdown]
# ## Split: new keys from a key
# `jax.random.split(key, n)` returns an array of `n` new keys. The default is two keys. Numbers that are drawn with these keys are statistically independent.

# %%
first, second = jax.random.split(key)
print("data:", jax.random.key_data(first), jax.random.key_data(second))
print("draws:", jax.random.normal(first), jax.random.normal(second))

# %% [markdown]
# Here are some common samplers. Each gets its own key as the first argument, and most of them take a shape.

# %%
keys = jax.random.split(key, 6)
tokens = jnp.array([10, 20, 30, 40])
print("floats from 0 to 1:      ", jax.random.uniform(keys[0], (3,)))
print("True (probability 1/2):  ", jax.random.bernoulli(keys[1], 0.5, (5,)))
print("integers from 0 to 3:    ", jax.random.randint(keys[2], (6,), 0, 4))
print("shuffled:                ", jax.random.permutation(keys[3], tokens))
print("drawn with replacement:  ", jax.random.choice(keys[4], tokens, (6,)))
print("by log probabilities:    ", jax.random.categorical(keys[5], jnp.log(jnp.array([0.1, 0.2, 0.7])), shape=(6,)))

# %% [markdown]
# The [`jax.random` page](https://docs.jax.dev/en/latest/jax.random.html) lists all samplers.
#
# There is one rule. **Never use a key twice**, and splitting counts as a use. (This lesson breaks the rule in some cells, so that you can compare outputs.)
#
# ![Left, a tree of keys: key is split into three keys, and one of these is split again into a and b. The other two, a and b are each passed to one sampler. Right, two mistakes: one key is passed to two samplers, which both use the same bits. Another key is split and is also passed to a sampler.](../images/random_tree.svg)
#
# ## What a reused key does
# Suppose that a program draws the weights of two layers with one key.

# %% [markdown] predict="random-prefix"
# The weights are `jax.random.normal(key, (2, 3))` and `jax.random.normal(key, (4, 2))`. How many numbers do they have in common?
#
# - [x] the first six | Right. Number i depends on the key and on i. The shape only determines how many numbers there are.
# - [ ] none, because the shapes differ | The shape determines how many numbers are drawn. It does not change them.
# - [ ] all of them, up to a scale | Nothing is rescaled. One layer has six numbers and the other eight, so at most six can be shared.

# %%
print(jax.random.normal(key, (2, 3)).ravel())
print(jax.random.normal(key, (4, 2)).ravel())

# %% [markdown]
# Different samplers use the same random bits, too. The next cell simulates the trial of a drug that has no effect. Each of 10,000 patients gets the drug or a placebo at random. The response of each patient is a normal random number.


# %%
def trial(group_key, response_key):
    gets_drug = jax.random.bernoulli(group_key, 0.5, (10_000,))
    return gets_drug, jax.random.normal(response_key, (10_000,))


trials = {"two keys": trial(first, second), "the same key twice": trial(first, first)}
means = {}
for name, (gets_drug, response) in trials.items():
    means[name] = response[gets_drug].mean(), response[~gets_drug].mean()
    print(f"{name:18s} mean response: drug {means[name][0]:5.2f}, placebo {means[name][1]:5.2f}")

# %%
_, panels = plots.subplots(1, 2, sharey=True)
for panel, (name, (gets_drug, response)) in zip(panels, trials.items(), strict=True):
    for chosen, label, (fill, hatch) in zip((gets_drug, ~gets_drug), ("drug", "placebo"), plots.FILLS, strict=False):
        style = {"histtype": "stepfilled", "facecolor": fill, "hatch": hatch, "edgecolor": plots.INK, "alpha": 0.75}
        panel.hist(response[chosen], bins=np.linspace(-4, 4, 41), label=label, **style)
    panel.set(title=name, xlabel="response")
panels[0].set(ylabel="patients")
panels[0].legend(loc="upper left")
(drug, placebo), (drug_reused, placebo_reused) = means.values()
plots.show(
    f"Histograms of the response in both groups. Left, with two keys: nearly the same bell curve twice, with means "
    f"{drug:.2f} for the drug and {placebo:.2f} for the placebo. Right, with one key: the drug group is the left half "
    f"of a bell curve, with mean {drug_reused:.2f}, and the placebo group the right half, with mean {placebo_reused:.2f}."
)

# %% [markdown]
# With two keys, both groups have nearly the same distribution. With one key for both samplers, the response is negative with the drug and positive with the placebo, so a useless drug appears to have a large effect. There is no error, and each array alone looks right.
#
# ## Find a reused key
# JAX can check for reused keys. The check is experimental and off by default. It is useful in tests.

# %%
with jax.debug_key_reuse(True):
    drawn = jax.random.key(1)
    jax.random.normal(drawn)
    print_error(lambda: jax.random.uniform(drawn), length=100)
    parent = jax.random.key(2)
    jax.random.split(parent)
    print_error(lambda: jax.random.normal(parent), length=100)

# %% [markdown]
# The messages mention a jitted function because all samplers are jitted. The check does not cover `fold_in`, the next function.
#
# ## Fold in: the key of a step
# `jax.random.fold_in(key, number)` derives a new key from a key and an integer. The new key can belong to step 700, to layer 3 or to example 12,345. We draw the noise of the run again, first with a chain of splits. Many programs write `key, subkey = jax.random.split(key)`, which replaces the used key.

# %%
root = jax.random.key(7)
chain, noise = root, []
for _ in range(6):
    chain, subkey = jax.random.split(chain)
    noise.append(float(jax.random.normal(subkey)))
print("chain of splits:", np.array(noise))

# %% [markdown]
# With `fold_in`, each step folds its number into the first key.


# %%
def noise_of_step(step):
    return jax.random.normal(jax.random.fold_in(root, step))


print("fold_in:        ", np.array([noise_of_step(step) for step in range(6)]))
print("resumed, step 3:", noise_of_step(3))

# %% [markdown]
# ![A run of six steps that stops after step 2. Above, a chain of splits: each step's key is derived from the previous one. To resume at step 3, the last key has to be stored, or all splits have to be repeated. Below, fold_in: every step's key is derived from the first key directly. To resume at step 3, fold in 3.](../images/random_resume.svg)
#
# The resumed run gets the same noise. To resume the chain, you need its last key. With `fold_in`, you need only the first key and the number of the step. Avoid long chains, because each split has to wait for the one before. Derive many keys directly from one parent, with `fold_in` or with one `split(key, n)`.

# %% [markdown] predict="random-collide"
# Let `a = jax.random.split(key, 3)[2]` and `b = jax.random.fold_in(key, 2)`. How are they related?
#
# - [ ] They are unrelated, because two functions derived them. | Both functions apply Threefry to a key and a number, which is 2 here.
# - [x] They are the same key. | Right, in today's JAX. So never split a key that you also fold numbers into.
# - [ ] `b` is a child of `a`. | Both are children of `key`.

# %%
print("the same key:", jax.random.split(key, 3)[2] == jax.random.fold_in(key, 2))

# %% [markdown]
# This is why 0.454 occurs in both rows of noise above, where `root` was split and also folded into. JAX does not document that the keys agree, so this may change. A more precise rule avoids the problem. **Each key has one job.** Pass it to one sampler, or split it once, or fold different numbers into it.
#
# ## Under jit
# In a jitted function, it matters where the key comes from.

# %% [markdown] predict="random-jit"
# `noisy = jax.jit(lambda x: x + jax.random.normal(jax.random.key(0)))`. What do three calls of `noisy(0.0)` return?
#
# - [x] the same number, three times | Right. The key is the same in every call, with and without `jit`.
# - [ ] three different numbers | The author probably wanted this, but all three calls use the same key.
# - [ ] an error, because the function creates a key | A jitted function may create keys.

# %%
noisy = jax.jit(lambda x: x + jax.random.normal(jax.random.key(0)))
print([round(float(noisy(0.0)), 3) for _ in range(3)])

# %% [markdown]
# The seed 0 is a constant of the compiled program. For new numbers in each call, pass the key or the number of the step as an argument.


# %%
@jax.jit
def noisy_step(key, step, x):
    print("tracing", jax.typeof(key), jax.typeof(step))
    noise_key, dropout_key = jax.random.split(jax.random.fold_in(key, step))
    x = x + jax.random.normal(noise_key, x.shape)
    return jnp.where(jax.random.bernoulli(dropout_key, 0.5, x.shape), x, 0)


for seed, step in ((7, 0), (7, 1), (10, 0)):
    print(f"seed {seed}, step {step}:", noisy_step(jax.random.key(seed), step, jnp.ones(4)))

# %% [markdown]
# JAX traced `noisy_step` once, for all keys and steps. `fold_in` accepts a tracer as the number. The function folds in the step and then splits once, so that noise and dropout have different keys.
#
# ## Under vmap
# Suppose that each example of a batch needs its own noise.

# %% [markdown] predict="random-vmap"
# What does `jax.vmap(lambda x: x + jax.random.normal(key))(jnp.zeros(4))` return?
#
# - [ ] four different numbers | `vmap` does not derive keys. All four examples use the same key.
# - [ ] an error, because each example needs a key | Examples may share a key, and sometimes this is intended.
# - [x] the same number, four times | Right. The function closes over `key`, so all examples share it.

# %%
print("shared key:", jax.vmap(lambda x: x + jax.random.normal(key))(jnp.zeros(4)))
print("own keys:  ", jax.vmap(lambda key, x: x + jax.random.normal(key))(jax.random.split(key, 4), jnp.zeros(4)))

# %% [markdown]
# An array of keys is mapped like any other array. You can also map over the numbers of the examples and fold them in. Example 9 then gets the same noise in every batch.

# %%
example_noise = jax.vmap(lambda number: jax.random.normal(jax.random.fold_in(key, number)))
print("examples 9, 0 and 7:", example_noise(jnp.array([9, 0, 7])))
print("example 9 alone:    ", example_noise(jnp.array([9])))

# %% [markdown]
# One key is also enough for four independent numbers, if one call draws them as an array.

# %%
four_keys = jax.random.split(key, 4)
print("loop over keys:", np.array([jax.random.normal(one) for one in four_keys]))
print("vmap over keys:", jax.vmap(jax.random.normal)(four_keys))
print("one key, (4,): ", jax.random.normal(key, (4,)))
print("NumPy, 3 draws:", np.array(complete[:3]), "  one draw of 3:", np.random.default_rng(7).normal(size=3))

# %% [markdown]
# `vmap` over keys returns the same numbers as the loop. One call with one key returns different numbers. In NumPy, three draws of one number and one draw of three numbers agree. JAX does not have this *sequential equivalence*. In return, number i of an array depends only on the key and on i, so JAX can compute all numbers in parallel.
#
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: what the check for reused keys detects
# With `jax.debug_key_reuse`, JAX also checks your own functions and loops while it traces them. The loop below, `fori_loop`, is a loop of JAX (08).

# %%
with jax.debug_key_reuse(True):
    draws_twice = jax.jit(lambda key: (jax.random.normal(key), jax.random.uniform(key)))
    print_error(lambda: draws_twice(jax.random.key(4)), length=80)
    draws_in_loop = lambda key: jax.lax.fori_loop(0, 3, lambda i, total: total + jax.random.normal(key), 0.0)
    print_error(lambda: draws_in_loop(jax.random.key(5)), length=120)

# %% [markdown]
# The check does not cover `fold_in`. The next cell makes three mistakes that the check does not report. It folds the same number in twice, draws with a key that was folded into, and shares a key under `vmap`.

# %%
with jax.debug_key_reuse(True):
    folded = jax.random.key(3)
    draw_one = lambda: jax.random.normal(jax.random.fold_in(folded, 1))
    print("folded in twice:", draw_one(), draw_one(), "  then drawn from:", jax.random.normal(folded))
    shared = jax.random.key(6)
    print("shared by vmap: ", jax.vmap(lambda x: x + jax.random.normal(shared))(jnp.zeros(3)))

# %% [markdown]
# If you reuse a key on purpose, pass a copy made with `jax.random.clone`, which the check treats as a new key. The clone has the same data. To check a whole program, call `jax.config.update("jax_debug_key_reuse", True)`.

# %%
with jax.debug_key_reuse(True):
    original = jax.random.key(8)
    print(jax.random.normal(original), jax.random.normal(jax.random.clone(original)))

# %% [markdown]
# ## Deeper: wide and deep trees of keys
# The keys of a program form a tree. If all keys are derived from a common parent, the tree is wide. A chain of splits makes the tree deep, and computing the key of a late step takes long.


# %%
def key_by_chain(steps):
    chain = root
    for _ in range(steps):
        chain, subkey = jax.random.split(chain)
    return subkey


chain_ms, fold_ms = time_ms(lambda: key_by_chain(2000), lambda: jax.random.fold_in(root, 1999), repeats=3)
print(f"key of step 1999: chain of splits {chain_ms:.1f} ms, fold_in {fold_ms:.3f} ms")

# %% [markdown]
# Two keys of a long chain can also be equal by chance. From the second of them on, the chain repeats itself. The default keys have 64 bits, so this is unlikely in a chain of fewer than a billion splits. The generator `philox2x32` has keys of only 32 bits, so it shows the effect much earlier. `scan` (08) runs the chain as a compiled loop.


# %%
def count_distinct(keys):
    return len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0))


def keys_of_chain(parent, n):
    return jax.lax.scan(lambda chain, _: tuple(jax.random.split(chain)), parent, length=n)[1]


n = 300_000
for name in ("philox2x32", "threefry2x32"):
    parent_of_all = jax.random.key(0, dtype=name)
    deep, wide = keys_of_chain(parent_of_all, n), jax.random.split(parent_of_all, n)
    print(f"{name:12s} distinct of {n:,} keys: chain {count_distinct(deep):,}, one split {count_distinct(wide):,}")

# %% [markdown]
# With 32 bits, the chain has repeated itself. One split into the same number of keys has only a few pairs of equal keys. With Threefry, the keys of one split are [always distinct](https://docs.jax.dev/en/latest/101/random.html), and so are keys into which distinct integers are folded. A few splits in a row are harmless. For anything as long as a training run, derive keys from a common parent.

# %% [markdown]
# ## Deeper: a key for each leaf of a tree
# To draw a tree of parameters (06), split one key into as many keys as there are leaves, and arrange them in the same structure.

# %%
shapes = {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32), "b": jax.ShapeDtypeStruct((3,), jnp.float32)}
leaves, treedef = jax.tree.flatten(shapes)
leaf_keys = jax.tree.unflatten(treedef, list(jax.random.split(key, len(leaves))))
jax.tree.map(lambda key, leaf: jax.random.normal(key, leaf.shape, leaf.dtype), leaf_keys, shapes)

# %% [markdown]
# ## Deeper: the same key on purpose
# A comparison is more precise if both sides use the same random numbers. Suppose that you simulate a loss with noise, for the settings 0.50 and 0.51. Is the loss at 0.51 smaller? The next cell repeats the comparison 200 times.


# %%
def simulated_loss(setting, key):
    return jnp.mean(jnp.maximum(jax.random.normal(key, (1000,)) - setting, 0))


def difference(key, other):
    return simulated_loss(0.51, key) - simulated_loss(0.50, other)


one_side, other_side = jax.random.split(jax.random.key(1), (2, 200))  # an array of keys of shape (2, 200)
for name, chosen in {"two keys": other_side, "same key": one_side}.items():
    differences = jax.vmap(difference)(one_side, chosen)
    print(f"{name}: mean difference {differences.mean():.5f}, standard deviation {differences.std():.5f}")

# %% [markdown]
# With two keys, the standard deviation is several times the true difference, so a single comparison shows nothing. With the same key, most of the noise cancels, and a single comparison is enough. It shows that the loss at 0.51 is smaller. In the same way, you can compare two models with the same dropout masks.
#
# With a fixed key, a draw is also a differentiable function of its parameters. The next cell estimates the mean of $(\sigma z)^2$ for normal $z$, which is $\sigma^2$. Its derivative with respect to $\sigma$ is $2\sigma$.

# %%
variance = lambda sigma: jnp.mean((sigma * jax.random.normal(key, (10_000,))) ** 2)
print(f"at sigma = 3: variance {variance(3.0):.2f}, derivative {jax.grad(variance)(3.0):.2f}")

# %% [markdown]
# ## Deeper: limits of 32 bits
# Integers in JAX have 32 bits by default. Only the lower 32 bits of a seed are used, so two long seeds, such as dates with times, can give the same key. `fold_in` also takes a 32-bit integer. It discards a fraction without an error.

# %%
print("the same seed:  ", jax.random.key(5) == jax.random.key(2**32 + 5))
print("the same number:", jax.random.fold_in(key, 2) == jax.random.fold_in(key, 2.9))

# %% [markdown]
# Random numbers have limited precision, too. Many programs draw random waiting times with the following formula.

# %% [markdown] predict="random-zero"
# `-jnp.log(jax.random.uniform(key, (2**24,)))` should return 16 million waiting times. Are they all finite?
#
# - [ ] yes, because 0 has probability 0 | This holds for real numbers. In float32, `uniform` returns one of 8,388,608 values, and 0 is one of them.
# - [x] no, a few are inf | Right. About one draw in 8 million is 0. A small test is unlikely to show it.
# - [ ] no, a few are NaN | The logarithm of 0 is -inf. A NaN would need a negative number.

# %%
for seed in range(4):
    uniform = jax.random.uniform(jax.random.key(seed), (2**24,))
    print(f"zeros: {jnp.sum(uniform == 0)}   longest waiting time: {jnp.max(-jnp.log(uniform))}")
print(f"largest uniform number: {uniform.max():.8f}")
print(f"longest waiting time from 1 - uniform: {jnp.max(-jnp.log1p(-uniform)):.1f}")

# %% [markdown]
# `uniform` can return 0 but not 1. Use the sampler for the distribution that you need, here `jax.random.exponential`. A dtype of lower precision has even fewer values, so draw in float32 and round afterwards.

# %%
coarse = jax.random.uniform(key, (100_000,), jnp.bfloat16)
print("distinct values in bfloat16:", len(np.unique(np.asarray(coarse, np.float32))))
for mode in ("low", "high"):
    count = jax.random.bernoulli(key, 1e-9, (2**24,), mode=mode).sum()
    print(f"events of probability 1e-9 in 16 million draws, mode {mode!r}: {count}")

# %% [markdown]
# For the same reason, `bernoulli` is inaccurate for probabilities below about 1e-7. Use `mode="high"` for them.

# %% [markdown]
# ## Deeper: one array on many devices
# *Read this section after lesson 16.* Several devices can draw one array together. Number i depends only on the key and on i, so each device computes its own part.
#
# ![A key is copied to four devices. Device 0 draws the numbers 0 and 1, device 1 the numbers 2 and 3, and so on. Each number is a function of the key and its index. Together they are the array that one device would draw. Below, in a generator with a state, number 5 needs the state after number 4.](../images/random_sharded.svg)
#
# We compile a function that draws four million numbers, for one device and for eight simulated devices.

# %%
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from grader.checks import devices
from grader.learning.inspection import print_collectives

mesh = devices.mesh((8,), ("devices",))
one_device = SingleDeviceSharding(mesh.devices[0])
eight_devices = NamedSharding(mesh, PartitionSpec("devices"))
draw = lambda key: jax.random.normal(key, (2**22,))


def print_cost(name, sharding):
    compiled = jax.jit(draw, out_shardings=sharding).lower(key).compile()
    memory, flops = compiled.memory_analysis(), compiled.cost_analysis()["flops"]
    result, temporary = memory.output_size_in_bytes / 2**20, memory.temp_size_in_bytes / 2**20
    print(f"{name:13s} result {result:.0f} MiB, temporary {temporary:.0f} MiB, {flops / 1e6:.0f} million flops")
    print_collectives(compiled)


# %%
print_cost("one device", one_device)
print_cost("eight devices", eight_devices)
with jax.threefry_partitionable(False):
    print_cost("JAX before 0.5", eight_devices)
parts, whole = (jax.jit(draw, out_shardings=sharding)(key) for sharding in (eight_devices, one_device))
print("shape on one device:", parts.addressable_shards[3].data.shape, "  same numbers:", np.array_equal(parts, whole))

# %% [markdown]
# Each of the eight devices does an eighth of the work, stores an eighth of the array, and communicates nothing. The numbers are the same on any number of devices. Before version 0.5, JAX computed random numbers in a different way by default. This needed fewer flops, but devices had to communicate. The same seed gives different numbers today.

# %% [markdown]
# ## Deeper: other generators
# JAX has several generators. The argument `dtype` of `jax.random.key` selects one of them, and the setting `jax_default_prng_impl` changes the default. They differ in the size of their keys and in their speed on each kind of device. The experimental generator `rbg` uses an algorithm of XLA that is fast on TPUs.

# %%
bits = jax.jit(lambda key: jax.random.bits(key, (2**22,)))
for name in ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "rbg"):
    named_key = jax.random.key(0, dtype=name)
    size = 32 * jax.random.key_data(named_key).size
    print(f"{name:12s} {jax.typeof(named_key)!s:11s} {size:3d} bits {time_ms(lambda: bits(named_key)):6.1f} ms")

# %% [markdown]
# The times are those of four million integers on this machine. The default is not always the fastest generator. Under `vmap`, `rbg` differs from the others.

# %%
for name in ("threefry2x32", "rbg"):
    named_key = jax.random.key(0, dtype=name)
    three_keys = jax.random.split(named_key, 3)
    print(f"{name}\n  vmap:", jax.vmap(jax.random.normal)(three_keys), end="   ")
    print("loop:", np.array([jax.random.normal(one) for one in three_keys]))
    numbered = jax.vmap(lambda number: jax.random.normal(jax.random.fold_in(named_key, number)))
    print("  examples 9, 0, 7:", numbered(jnp.array([9, 0, 7])), "  7, 0, 9:", numbered(jnp.array([7, 0, 9])))

# %% [markdown]
# Under `vmap`, `rbg` draws the numbers of the whole batch with the first key and ignores the other keys. The results differ from those of a loop. The noise of an example depends on its batch, although its number is folded in. In addition, only the Threefry and Philox generators return [the same bits on CPU, GPU and TPU](https://docs.jax.dev/en/latest/jax.random.html). Use the default unless a profile (14) shows that random numbers take much of the time.

# %% [markdown]
# ## Deeper: keys in files
# A key cannot be written to a file like other arrays, because its type exists only in JAX. Save its data instead.

# %%
print_error(lambda: np.asarray(key))
saved = np.asarray(jax.random.key_data(key))
print(saved, saved.dtype, "  restored:", jax.random.wrap_key_data(saved) == key)

# %% [markdown]
# For another generator, also store its name, and pass it to `wrap_key_data`.

# %%
fast_key = jax.random.key(0, dtype="rbg")
fast_data = jax.random.key_data(fast_key)
print_error(lambda: jax.random.wrap_key_data(fast_data), length=120)
print("restored:", jax.random.wrap_key_data(fast_data, dtype="rbg") == fast_key)

# %% [markdown]
# Older code uses `jax.random.PRNGKey`, which returns only the data. Samplers accept such a raw key. But it does not record its generator, it can be changed like any other array, and the check for reused keys does not cover it. Create new keys with `jax.random.key`.

# %%
raw = jax.random.PRNGKey(7)
print("type:", jax.typeof(raw), "  raw + 1:", raw + 1)
with jax.debug_key_reuse(True):
    print("used twice, not detected:", jax.random.normal(raw), jax.random.normal(raw))

# %% [markdown]
# ## Deeper: older code
#
# | in older code, or in other libraries | now |
# |---|---|
# | `jax.random.PRNGKey(0)`, a `uint32[2]` | `jax.random.key(0)`, a typed key |
# | `jax.random.key(0, impl="rbg")` | `jax.random.key(0, dtype="rbg")` |
# | `jax.random.shuffle(key, x)` | `jax.random.permutation(key, x)` |
# | `jax_threefry_partitionable`, to be enabled | enabled by default; `False` gives the numbers of older versions |
# | `jax_enable_custom_prng` | typed keys |
# | `np.random.seed`, `torch.manual_seed` | a key that is passed as an argument |
# | `np.random.default_rng(0)` | a key; the experimental `jax.experimental.random.stateful_rng(0)` has similar methods |
# | `torch.Generator`, `np.random.SeedSequence.spawn` | `jax.random.split` |
# | `hk.next_rng_key()`, `self.make_rng("dropout")` | Flax's `nnx.Rngs`, a key and a counter for each name (10) |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | a first key | `jax.random.key(seed)`, once, at the start of the program |
# | n new keys | `jax.random.split(key, n)`; do not use `key` again |
# | the key of step, layer or example i | `jax.random.fold_in(key, i)`; do not split this `key` too |
# | new numbers in each call under `jit` | the key or the step as an argument |
# | different noise for each example | `vmap` over an array of keys |
# | the same noise for an example in every batch | `vmap` over the numbers of the examples, with `fold_in` |
# | to find a key that is used twice | `with jax.debug_key_reuse(True):` |
#
# Next, do [the exercises](../exercises/07_randomness/07_randomness.ipynb).
