# %% [markdown]
# # 07 · Randomness: keys instead of a hidden state
#
# *Forty minutes, then [the exercises](../exercises/07_randomness/07_randomness.ipynb).* Afterwards you can draw random numbers that a run, a rerun and a resumed run agree on; give every layer, step, example and machine numbers of its own; find a key that is used twice; and say what `jit`, `vmap` and a mesh of devices do to randomness.
#
# **Assumed.** Arrays (01), `jit` (03), `vmap` (05), pytrees (06). Recall before you go on; answer first, then open the fold.
#
# 1. From 03: a compiled function calls `np.random.normal()`. What does it give, the second time?
#
# <details><summary>Answer</summary>
#
# The same number as the first time. Python runs while tracing only, and what NumPy gave then is a constant of the program.
# </details>
#
# 2. From 05: what does `in_axes=(None, 0)` say, and what of an array that the function takes from outside?
#
# <details><summary>Answer</summary>
#
# The first argument is shared by all runs, the second one is mapped along its axis 0. What is taken from outside is shared, too.
# </details>
#
# 3. From 06: what are the leaves of `{"w": jnp.ones((2, 3)), "b": None}`?
#
# <details><summary>Answer</summary>
#
# One array. The dict's keys and the `None` belong to the structure.
# </details>

# %%
import re
import time

import jax

jax.config.update("jax_num_cpu_devices", 8)  # for the end of the lesson; before JAX is first used (01)

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

np.set_printoptions(precision=3, suppress=True)


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:200]}")
    else:
        print("No error!")


def milliseconds(call, repeats=5):
    """The shortest of some calls, each until its result is there; the first call does not count."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


# %% [markdown]
# ## The question: why is the resumed run another one?
# A training run adds noise in every step. It stopped after step 2, was resumed from its checkpoint with the same seed, and came out differently. Here is all that matters of it:

# %%
generator = np.random.default_rng(7)
whole = [generator.normal() for step in range(6)]
generator = np.random.default_rng(7)  # the program starts again, at step 3
resumed = [generator.normal() for step in range(3, 6)]
print("noise of steps 3 to 5, in one run:", np.array(whole[3:]), "  resumed:", np.array(resumed))

# %% [markdown]
# The generator holds a **state** that every draw moves on. What a draw gives depends on how many were made before it, anywhere in the program: add one line, change the order, resume, run on two machines, and all numbers after it are others. And a compiled function must not have a state at all (03).
#
# ## A key is a value
# JAX has no generator. It has **keys**, ordinary, immutable values, which are handed to samplers.

# %%
key = jax.random.key(7)
print(jax.typeof(key), " shape", key.shape, " its 64 bits:", jax.random.key_data(key))

# %% [markdown] predict="random-same"
# `jax.random.normal(key)` is called twice, with the same key. What comes out?
#
# - [ ] two different numbers | That needs a state which the first call has moved on. There is none: where would it be?
# - [ ] an error, the key was used | It would be welcome, and there is a switch for that, below. It is off.
# - [x] the same number, twice | Right: a function of its argument, like `jnp.sin`. New numbers need a new key.

# %%
print(jax.random.normal(key), jax.random.normal(key))
print(jax.random.normal(key, (3,)), jax.random.uniform(key, (3,)), jax.random.bernoulli(key, 0.5, (5,)))

# %% [markdown]
# A sampler is a function of its key. So results can be repeated by handing over the key again, which is half of what we wanted. The other half is new keys. A key is no number, a number is no key, and a sampler takes one key, not an array of them:

# %%
refusal(lambda: key + 1)
refusal(lambda: jax.random.normal(7))
refusal(lambda: jax.random.normal(jax.random.split(key, 3)))
print("two seeds, one key:", jax.random.key(5) == jax.random.key(2**32 + 5))

# %% [markdown]
# (With 64-bit types off, only the lower 32 bits of a seed count. So write no date and time into one number: 20261121213000 has 45 bits, of which the upper 13 are lost.)
#
# ## Split: new keys from old ones
# `jax.random.split(key, n)` gives an array of n keys. What they draw is, for all that tests can tell, independent. From then on **the parent is spent**: draw from it, or split it again, and numbers come back that were there before.

# %%
first, second = jax.random.split(key)  # two, if you do not say how many
print("bits of the parent", jax.random.key_data(key), " of its children", *map(jax.random.key_data, (first, second)))
print(jax.random.normal(first), jax.random.normal(second), "  as one array:", jax.random.split(key, 4).shape)

# %% [markdown]
# ![Left: key is split in three, each child is used once, one child is split again. Every arrow leads to another key, each leaf is consumed once. Right, two mistakes: one key is used by two samplers, which then draw from the same bits; and a parent is split and is used as well.](../images/random_tree.svg)
#
# What happens when a key *is* used twice? Nothing that you would see at once.

# %% [markdown] predict="random-prefix"
# One key for two layers: `jax.random.normal(key, (2, 3))` and `jax.random.normal(key, (4, 2))`. How much do they have in common?
#
# - [x] the first six numbers | Right: number i is made of the key and of i, whatever the shape. The smaller one is a part of the larger.
# - [ ] nothing, the shapes differ | The shape says how many numbers are wanted, not which.
# - [ ] everything but the scale | They have six and eight entries; six of them agree.

# %%
print(jax.random.normal(key, (2, 3)).ravel())
print(jax.random.normal(key, (4, 2)).ravel())
coin, height = jax.random.bernoulli(key, 0.5, (1000,)), jax.random.normal(key, (1000,))
print(f"'random' heights of heads {height[coin].mean():.2f}, of tails {height[~coin].mean():.2f}")

# %% [markdown]
# No error, no NaN, plausible numbers, and a coin that knows the heights. JAX can watch for it, in tests and for a first run:

# %%
with jax.debug_key_reuse(True):
    one_key = jax.random.key(1)
    jax.random.normal(one_key)
    refusal(lambda: jax.random.uniform(one_key))
    parent = jax.random.key(2)
    jax.random.split(parent)
    refusal(lambda: jax.random.normal(parent))
    refusal(lambda: jax.jit(lambda key: (jax.random.normal(key), jax.random.uniform(key)))(jax.random.key(4)))
    again = jax.random.key(3)
    draw = lambda: jax.random.normal(jax.random.fold_in(again, 1))
    print("not seen: one number is folded in twice:", draw(), draw())
    print("nor this: drawn from, and then folded into:", jax.random.normal(again), draw())

# %% [markdown]
# It looks through `jit`, and through loops (08). It does not watch `fold_in`, which may be given the same number twice, or a key that is spent. That function is next.
#
# ## Fold in: keys that have names
# `jax.random.fold_in(key, number)` makes a new key of a key and a number. Where `split` hands out keys one after the other, `fold_in` gives the key *of* something: of step 700, of layer 3, of example 12,345. Our run, with either:

# %%
root = jax.random.key(7)
chain, noise = root, []
for _ in range(6):
    chain, now = jax.random.split(chain)
    noise.append(float(jax.random.normal(now)))
by_name = [float(jax.random.normal(jax.random.fold_in(root, step))) for step in range(6)]
print("a chain of splits:  ", np.array(noise))
print("each step by itself:", np.array(by_name), "  resumed at 3:", jax.random.normal(jax.random.fold_in(root, 3)))

# %% [markdown]
# ![A run of six steps that stops after step 2. Above, a chain of splits: each step's key comes from the one before; to resume at step 3, the key has to be in the checkpoint, or the chain walked again. Below, fold_in: every step's key comes from the first key directly; to resume at step 3, fold in 3.](../images/random_resume.svg)
#
# Both can be repeated. The chain resumes if its last key is in the checkpoint; `fold_in` needs nothing but the first key, and the number may be traced. What does it cost to get to a late step?

# %%
steps = 2000


def walk():
    current = root
    for _ in range(steps):
        current, now = jax.random.split(current)
    return now


jump = lambda: jax.random.fold_in(root, steps)
print(f"to step {steps}: walking the chain {milliseconds(walk, 1):.1f} ms, folding in {milliseconds(jump):.3f} ms")

# %% [markdown]
# Numbers that are folded in are whole ones of 32 bits; a fraction is cut off without a word. And how do the two functions go together?

# %% [markdown] predict="random-collide"
# `a = jax.random.split(key, 3)[2]` and `b = jax.random.fold_in(key, 2)`: how are they related?
#
# - [ ] not at all, they are two functions | Two functions of one key and one number, 2. There is only one cipher below.
# - [x] they are the same key | Right, today. So a key is *either* split *or* folded into, never both.
# - [ ] `b` is a child of `a` | Both are children of `key`.

# %%
print("the same:", jax.random.split(key, 3)[2] == jax.random.fold_in(key, 2))
print("2.9 is 2:", jax.random.fold_in(key, 2.9) == jax.random.fold_in(key, 2))

# %% [markdown]
# Nobody promises that they agree, and nobody promises that they do not. The key checker does not see it either. A habit that avoids all of this: **a key has one job**. Either it is given to one sampler, or it is split once, or things are folded into it, each under its own number. (This lesson hands out `key` again and again, so that you can compare. Do not copy that.)
#
# ## Under jit
# A key can be handed over, or made inside.

# %% [markdown] predict="random-jit"
# `noisy = jax.jit(lambda x: x + jax.random.normal(jax.random.key(0)))`. What do three calls `noisy(0.0)` give?
#
# - [x] three times the same number | Right: one key, one number, under `jit` or not.
# - [ ] three different numbers | That is what everybody means who writes this. But nothing in the three calls differs.
# - [ ] an error: a key is made inside | That is allowed, and sometimes useful.

# %%
noisy = jax.jit(lambda x: x + jax.random.normal(jax.random.key(0)))
print([round(float(noisy(0.0)), 3) for _ in range(3)])


@jax.jit
def noisy_step(key, step, x):
    print("tracing", jax.typeof(key), jax.typeof(step))
    add, drop = jax.random.split(jax.random.fold_in(key, step))
    return jnp.where(jax.random.bernoulli(drop, 0.5, x.shape), x + jax.random.normal(add, x.shape), 0)


for seed, step in ((7, 0), (7, 1), (10, 0)):
    print(f"key {seed}, step {step}:", noisy_step(jax.random.key(seed), step, jnp.ones(4)))

# %% [markdown]
# A key is an argument like any other, so it is traced once for new keys and new steps; a key that is taken from outside or made inside is a constant (03). The step's number goes in, its key is made inside, and one split gives each purpose its own.
#
# ## Under vmap
# Each example shall get noise of its own.

# %% [markdown] predict="random-vmap"
# `jax.vmap(lambda x: x + jax.random.normal(key))(jnp.zeros(4))`, with `key` from outside:
#
# - [ ] four different numbers | vmap is no loop that draws four times, and even a loop would draw with one key.
# - [ ] an error, a key for each is missing | Sharing may be what you want, so it is none.
# - [x] one number, which comes four times | Right: the key is shared, as all that comes from outside.

# %%
print("shared:      ", jax.vmap(lambda x: x + jax.random.normal(key))(jnp.zeros(4)))
noise_of = lambda key, x: x + jax.random.normal(key)
print("a key each:  ", jax.vmap(noise_of)(jax.random.split(key, 4), jnp.zeros(4)))

ids = jnp.array([9, 0, 7])
by_id = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i)))
print("by number:   ", by_id(ids), "  9 alone:", by_id(ids[:1]))

# %% [markdown]
# An array of keys is mapped like any other array. And with its number folded in, example 9 gets the same noise in every batch, at every place; what the others are does not matter. `jax.random.normal(key, (4,))` is four independent numbers too, from one key; but there a number belongs to a *place*. A tree of parameters (06), one key for each leaf:

# %%
shapes = {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32), "b": jax.ShapeDtypeStruct((3,), jnp.float32)}
leaves, structure = jax.tree.flatten(shapes)
keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))
jax.tree.map(lambda key, leaf: jax.random.normal(key, leaf.shape, leaf.dtype), keys, shapes)

# %% [markdown]
# ## The same key on purpose
# Is the setting 0.51 better than 0.50? Simulate both with noise, take the difference, and ask how far it scatters from run to run. (`split` takes a shape, too: two rows of 200 keys.)


# %%
def loss(setting, key):
    return jnp.mean(jnp.maximum(jax.random.normal(key, (1000,)) - setting, 0))


def difference(key, other):
    return loss(0.51, key) - loss(0.50, other)


keys, others = jax.random.split(jax.random.key(1), (2, 200))
for name, chosen in {"two keys": others, "the same key": keys}.items():
    differences = jax.vmap(difference)(keys, chosen)
    print(f"{name:13s} difference {differences.mean():.5f}, from run to run ± {differences.std():.5f}")

# %% [markdown]
# Yes: its loss is smaller, by some twenty times the scatter of one run. With two keys the scatter is several times the difference, and one run says nothing. The same noise on both sides drops out of the difference. Reuse is a mistake where independence is meant, and a tool where a *comparison* is meant. In the same way two models are judged on the same dropout masks, or a gradient checked by nudging.
#
# And samples have gradients: with the key held fixed, a draw is a function of its parameters like any other.

# %%
spread = lambda sigma: jnp.mean((sigma * jax.random.normal(key, (10_000,))) ** 2)
print("E[(sigma z)²] at sigma = 3:", spread(3.0), "  its slope, 2 sigma:", jax.grad(spread)(3.0))

# %% [markdown]
# ## What can be drawn
# The samplers stand in `jax.random`; each takes a key first, most of them a shape. Some that you will need:

# %%
tokens = jnp.array([10, 20, 30, 40])
print("shuffled      ", jax.random.permutation(key, tokens), " an order:", jax.random.permutation(key, 4))
print(
    "with repeats  ",
    jax.random.choice(key, tokens, (6,)),
    " without:",
    jax.random.choice(key, tokens, (3,), replace=False),
)
print("whole numbers ", jax.random.randint(key, (6,), 0, 4), " (4 is never among them)")
print("by log weights", jax.random.categorical(key, jnp.log(jnp.array([0.1, 0.2, 0.7])), shape=(6,)))
print("others        ", ", ".join("gamma beta dirichlet poisson truncated_normal gumbel ball orthogonal".split()))

# %% [markdown]
# One formula that stands in many programs:

# %% [markdown] predict="random-zero"
# `-jnp.log(jax.random.uniform(key, (2**24,)))` should be 16 million waiting times. Are they all finite?
#
# - [ ] yes, 0 has probability 0 | On paper. In float32, `uniform` knows 8,388,608 values, and 0 is one of them.
# - [x] no, a few are inf | Right: about one in 8 million draws is 0. In a small test you never see it.
# - [ ] no, a few are NaN | The logarithm of 0 is -inf; NaN would need a negative number.

# %%
for seed in range(4):
    uniform = jax.random.uniform(jax.random.key(seed), (2**24,))
    print("zeros:", int(jnp.sum(uniform == 0)), "  longest waiting time:", jnp.max(-jnp.log(uniform)))
print("from 1 - uniform:", jnp.max(-jnp.log1p(-uniform)), "  and 1 never comes:", uniform.max() < 1)
half = jax.random.uniform(key, (100_000,), jnp.bfloat16)
print("in bfloat16 there are", len(np.unique(np.asarray(half, np.float32))), "different values")

# %% [markdown]
# Take the sampler that means what you mean, `jax.random.exponential`; and draw in float32 before you round.
#
# ## On many devices
# A network is initialised on eight devices, each of which is to hold an eighth of the weights (here eight simulated ones; meshes and shardings are lesson 16). Who draws? Since number i is made of the key and of i, **each device makes its own part**, and no one sends anything.
#
# ![A key is copied to four devices. Device 0 makes the numbers 0 and 1, device 1 the numbers 2 and 3, and so on: each number is a function of the key and its place. Together they are the array that one device would have made. Below: a generator with a state makes number 5 only after number 4.](../images/random_sharded.svg)


# %%
# All eight of one kind: accelerators where there are enough of them, else the simulated ones.
eight = (jax.devices() if len(jax.devices()) >= 8 else jax.devices("cpu"))[:8]
mesh = jax.make_mesh((8,), ("devices",), axis_types=(AxisType.Auto,), devices=eight)
jax.config.update("jax_default_device", eight[0])  # what nobody places goes to the first of them
in_parts = NamedSharding(mesh, PartitionSpec("devices"))
draw = lambda key: jax.random.normal(key, (2**22,))


def report(name, **options):
    program = jax.jit(draw, **options).lower(key).compile()
    memory, flops = program.memory_analysis(), program.cost_analysis()["flops"]
    sent = sorted(set(re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", program.as_text())))
    result, scratch = memory.output_size_in_bytes / 2**20, memory.temp_size_in_bytes / 2**20
    print(f"{name:14s} result {result:4.0f} MiB, scratch {scratch:4.0f} MiB, {flops / 1e6:5.0f} Mflop, sent: {sent}")


report("on one device")
report("each of eight", out_shardings=in_parts)
with jax.threefry_partitionable(False):
    report("before 0.5", out_shardings=in_parts)
parts = jax.jit(draw, out_shardings=in_parts)(key)
print(
    "the same numbers:", np.array_equal(parts, draw(key)), "  each device holds", parts.addressable_shards[3].data.shape
)

# %% [markdown]
# An eighth of the work and of the memory, no communication, and **the same numbers on any number of devices**. The row "before 0.5" is how JAX drew until that version; a seed from then gives other numbers today. It has fewer flops, as one run of the cipher gave two numbers, and gives one now; for that its devices had to send.
#
# ## Other generators
# The numbers come from a cipher, *Threefry*, that scrambles place and key. There is a second one, `rbg`, made for TPUs. What does it not keep of the above?

# %%
for name in ("threefry2x32", "rbg"):
    other = jax.random.key(0, impl=name)
    bits = jax.jit(lambda key: jax.random.bits(key, (2**22,)))
    keys = jax.random.split(other, 3)
    batch = jax.vmap(jax.random.normal)(keys)
    loop = jnp.stack([jax.random.normal(key) for key in keys])
    own = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(other, i)))
    print(f"{name:13s} {jax.typeof(other)!s:12s} {milliseconds(lambda: bits(other)):6.1f} ms for {2**22:,} words")
    print("    vmap:", batch, "  a loop:", loop)
    print("    numbers folded in, of 9, 0, 7:", own(ids), "  of 7, 0, 9:", own(ids[::-1]))

# %% [markdown]
# Under `vmap`, `rbg` draws for the whole batch from the first key and ignores the others. So the results are not those of a loop, and what an example gets depends on its batch, also where its own number was folded in. Keep Threefry unless a profile (14) says that drawing is what takes the time.
#
# ## Keys on disk
# A key's type says what may be done with it, and files know no such type. Save its data; a checkpoint of a run that folds in the step holds the first key and the step, no more.

# %%
saved = np.asarray(jax.random.key_data(key))
restored = jax.random.wrap_key_data(saved)
print(saved, saved.dtype, "  the same key:", restored == key)
old = jax.random.PRNGKey(7)
print("in older code:", jax.typeof(old), " and this works, alas:", old + 1)
refusal(lambda: jax.random.wrap_key_data(jax.random.key_data(other)))  # `other` is of rbg, and has four words
print("with its kind:", jax.random.wrap_key_data(jax.random.key_data(other), impl="rbg") == other)

# %% [markdown]
# Data of another generator need its name, `impl=`. `jax.random.PRNGKey` gives the bare data, a `uint32[2]`. It can be added to, averaged with the parameters by a `tree.map`, cast to float; and `debug_key_reuse` does not watch it. Samplers still take it. Make new ones with `jax.random.key`.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a first key | `jax.random.key(seed)`, once, at the top |
# | n keys for n things | `jax.random.split(key, n)`; the parent is spent |
# | the key of step, layer or example i | `jax.random.fold_in(key, i)`; never from a key that is split as well |
# | new numbers in each call under `jit` | the key, or the step, as an argument |
# | noise of its own for each example | `vmap` over an array of keys, or over numbers that are folded in |
# | noise that follows an example around | fold in the example's number, not its place |
# | a fair comparison | the same key on both sides |
# | to find a key used twice | `with jax.debug_key_reuse(True):` |
# | an array in parts on many devices | `jax.jit(draw, out_shardings=…)` |
# | a key in a file | `jax.random.key_data`, `jax.random.wrap_key_data` |
#
# ## What it became
#
# | in older code, or elsewhere | now |
# |---|---|
# | `jax.random.PRNGKey(0)`, a `uint32[2]` | `jax.random.key(0)`, a typed key |
# | `jax.random.shuffle(key, x)` | `jax.random.permutation(key, x)` |
# | `jax_threefry_partitionable`, to be switched on | on; numbers of older versions come with `False` |
# | `jax_enable_custom_prng` | typed keys, and `impl=` where another generator is wanted |
# | `np.random.seed`, `torch.manual_seed` | a key, handed down |
# | `torch.Generator`, `np.random.SeedSequence.spawn` | `jax.random.split` |
# | `hk.next_rng_key()`, `self.make_rng("dropout")` | Flax's `nnx.Rngs` keeps a key and a counter for each name (10) |
#
# Next: the exercises. The first has one line missing.
