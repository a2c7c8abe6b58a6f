# %% [markdown]
# # 10 · NNX: a model is a tree that you can call
#
# *Forty-five minutes, then [the exercises](../exercises/10_nnx/10_nnx.ipynb).* Afterwards you can write a model as a class, train it under `jit` without losing an update, take it apart by kinds of state and put it together again, switch it between training and evaluation, operate on it, look inside it, know its size before it exists, and read models in the libraries that others use.
#
# **Assumed.** `jit` (03), `grad` (04), trees (06), keys (07), Optax (09). Recall before you go on; answer first, then open the fold.
#
# 1. From 06: what is the path of a leaf, and what is it good for?
#
# <details><summary>Answer</summary>
#
# The keys, numbers and attributes on the way to it. It says which leaf is meant, whatever the order in which a tree has them.
# </details>
#
# 2. From 07: `jax.random.fold_in(key, n)` for n = 0, 1, 2. What does it give, and what for?
#
# <details><summary>Answer</summary>
#
# A key for each n, the same ones in each run. One key and a counter are enough for as many as you like.
# </details>
#
# 3. From 09: which two things must come out of a training step, besides the loss?
#
# <details><summary>Answer</summary>
#
# The new parameters, and the new state of the optimizer.
# </details>

# %%
import functools
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from grader.learning import plots

np.set_printoptions(precision=3, suppress=True)


def refusal(call, most=200):
    """Runs `call()`, which should fail, and prints how its error begins, in at most so many characters."""
    try:
        call()
    except Exception as problem:
        print(textwrap.fill(textwrap.shorten(f"{type(problem).__name__}: {problem}", most), 110))


# %% [markdown]
# ## The question: who names forty layers?
# In lesson 09 a model was a function and a list of dicts. With forty layers of five kinds, that is two lists to keep in step: where parameters are made, and where they are used. A class keeps both in one place. But a class has a `self` that changes. **What becomes of an object when `jit` takes it?**
#
# Three arms of a galaxy, measured with noise: to which arm does a star belong?

# %%
rng = np.random.default_rng(10)
along, arm = rng.uniform(0.1, 1, size=900), np.arange(900) % 3
angle = 2 * np.pi * (arm / 3 + along) + 0.2 * rng.normal(size=900)
stars = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1).astype(np.float32)
x, y, new_x, new_y = stars[:300], arm[:300], stars[300:], arm[300:]  # few to learn from, many to be judged by


class Plain:
    def __init__(self, key):
        self.w = jax.random.normal(key, (2, 3))

    def __call__(self, x):
        return x @ self.w


class Known(Plain, nnx.Module):
    """The same text, and an NNX module."""


# %% [markdown] predict="nnx-plain"
# What does `jax.jit(lambda model, x: model(x))` do with a `Plain` as its first argument?
#
# - [ ] it compiles; the weights become constants | That is what happens to an object from *outside* (03). This one is an argument, and arguments are traced.
# - [ ] it runs it as Python, without compiling | `jit` either traces or refuses.
# - [x] it refuses it before anything is traced | Right: JAX wants trees, and does not know what in a `Plain` is data. In a `Known` it does.

# %%
call = jax.jit(lambda model, x: model(x))
refusal(lambda: call(Plain(jax.random.key(0)), x))
known = Known(jax.random.key(0))
print("Known:", call(known, x).shape, "leaves:", jax.tree.map(jnp.shape, jax.tree.leaves(known)))

# %% [markdown]
# `nnx.Module` registers every class that is made from it (06): attributes with arrays are data, all others are settings. That is all it takes to be an argument of `jit`, `grad` and `vmap`.
#
# ## Parts, and the keys they are made from
# A **Variable** is a box around an array that also says of what *kind* it is: `nnx.Param` is trained, `nnx.BatchStat` is measured, others count or hold keys. Layers put their arrays into such boxes; `box[...]` reads and writes them. And `nnx.Rngs` hands out keys:

# %% [markdown] predict="nnx-rngs"
# `rngs = nnx.Rngs(0)`, then `nnx.Linear(3, 3, rngs=rngs)` twice. Do the two begin with the same kernel?
#
# - [ ] yes: both are made from seed 0 | They would if each had an `nnx.Rngs(0)` of its own.
# - [x] no: the second gets other keys | Right: `rngs` counts. Each request folds the next number into the key (07).
# - [ ] neither: a key is used twice | No key is used twice, for each is derived anew.

# %%
rngs = nnx.Rngs(0)
one, other = (nnx.Linear(3, 3, rngs=rngs) for _ in range(2))
print("same kernel:", bool(jnp.all(one.kernel[...] == other.kernel[...])), "  keys handed out:", rngs.params.count[...])
print("the next key is fold_in(key(0), 4):", rngs.params() == jax.random.fold_in(jax.random.key(0), 4))
for path, variable in nnx.to_flat_state(nnx.state(one)):
    print("/".join(path), type(variable).__name__, variable.shape, variable.dtype)

# %% [markdown]
# Each array stands under the path of its attribute, with its kind; `print(one)` shows the settings too. And `rngs` has counted: four keys, as each layer took one for its kernel and one for its bias (0 all the same). Layers ask by name, `Linear` for `params` and `Dropout` for `dropout`. `nnx.Rngs(params=0, dropout=1)` keeps a key and a counter for each; `nnx.Rngs(0)` has one of both, which answers to every name.
#
# ## Where does an update go?
# A first model, and `nnx.Optimizer`: an Optax transformation together with its state. `wrt` says for which kind of Variable.


# %%
class Small(nnx.Module):
    def __init__(self, width=64, *, rngs):
        self.first = nnx.Linear(2, width, rngs=rngs)
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.first(x)))


def cross_entropy(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@jax.jit
def learn(model, optimizer, x, y):
    value, slopes = jax.value_and_grad(cross_entropy)(model, x, y)
    optimizer.update(model, slopes)  # in place
    return value


# %% [markdown] predict="nnx-lost"
# `learn` updates the model in place and returns the loss. What are the losses of five calls?
#
# - [x] five times the same number | Right: the update happened, to a model that exists only while the program is traced.
# - [ ] they fall from call to call | So they would without `jit`.
# - [ ] none: `jit` raises an error | It cannot: inside, changes are ordinary Python.


# %%
@jax.jit
def step(model, optimizer, x, y):
    value, slopes = jax.value_and_grad(cross_entropy)(model, x, y)
    optimizer.update(model, slopes)
    return model, optimizer, value


small = Small(rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(small, optax.adam(0.01), wrt=nnx.Param)
print("learn:    ", np.array([learn(small, optimizer, x, y) for _ in range(5)]))
values = []
for _ in range(5):
    small, optimizer, value = step(small, optimizer, x, y)
    values.append(value)
print("step:     ", np.array(values), "  steps counted:", optimizer.step[...])

# %% [markdown]
# ![Two lanes. In both, model is taken apart into leaves, a copy is put together from tracers inside jit, and update changes the copy. Above only value is returned: the copy is dropped, the model outside is as before. Below model, optimizer and value are returned: the copy's leaves come out as a new model.](../images/nnx_copies.svg)
#
# A module is taken apart at the border of `jit` and put together again inside, from tracers. That one is updated. **What is not returned is lost, and nothing says so.** `jax.value_and_grad` takes the module as it is; the slopes are a `Small`, too.
#
# In older code you find `nnx.jit` and `nnx.grad`, which carry changes out by themselves. They are in maintenance, and that service is paid for at each call:

# %%
carried = nnx.jit(learn.__wrapped__)  # the same function, compiled by NNX
took = {step: [], carried: []}
for _ in range(100):
    for way, seconds in took.items():  # in turns: a busy moment meets both alike
        start = time.perf_counter()
        jax.block_until_ready(way(small, optimizer, x, y))  # what jax.jit gives is dropped here
        seconds.append(time.perf_counter() - start)
print(f"a step: {1e6 * min(took[step]):.0f} µs by jax.jit, {1e6 * min(took[carried]):.0f} µs by nnx.jit")
print("steps counted now, all but five of them by nnx.jit:", optimizer.step[...])

# %% [markdown]
# ## Apart, and together again
# Real models hold more than parameters. This block has three kinds: weights that are trained, means that BatchNorm measures, and for each Dropout a key and a counter of its own. Blocks stand in an `nnx.List`. A plain list NNX takes for a setting (`self.sizes = [2, 64]` is one), so with arrays or modules in it, it is refused:


# %%
class Block(nnx.Module):
    def __init__(self, width, *, rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(jax.nn.relu(self.norm(self.linear(x))))


class Galaxy(nnx.Module):
    def __init__(self, width=64, depth=3, *, keep=nnx.List, rngs):
        self.stem = nnx.Linear(2, width, rngs=rngs)
        self.blocks = keep([Block(width, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def megabytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) / 1e6


refusal(lambda: Galaxy(keep=list, rngs=nnx.Rngs(0)), most=640)  # read to its fourth way out
galaxy = Galaxy(rngs=nnx.Rngs(0))
graphdef, params, statistics, rest = nnx.split(galaxy, nnx.Param, nnx.BatchStat, ...)
for name, state in {"Param": params, "BatchStat": statistics, "the rest": rest}.items():
    paths = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(state)]
    print(f"{name:10s} {len(paths):2d} arrays {megabytes(state):.4f} MB, such as {paths[0]}")
merged = nnx.merge(graphdef, params, statistics, rest)

# %% [markdown]
# ![A Galaxy in the middle with its Variables, each marked with its kind, and settings. nnx.split gives graphdef, the form with all settings and no array, and a State for each filter: params, statistics, the rest with Dropout's key and counter. nnx.merge goes back.](../images/nnx_split.svg)
#
# `nnx.split` gives the **form** (hashable, without arrays; in code mostly `graphdef`) and a `State` for each **filter**; `...` takes the rest. A State is a nested dict of Variables by path. Filters are kinds, paths, functions of both, or made of others:

# %%
filters = {
    'PathContains("head")': nnx.PathContains("head"),
    "Param outside blocks": nnx.All(nnx.Param, nnx.Not(nnx.PathContains("blocks"))),
    "matrices": lambda path, variable: variable.ndim == 2,
}
for name, chosen in filters.items():
    print(f"{name:21s}", ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(galaxy, chosen))])

# %% [markdown] predict="nnx-share"
# We write 7 into `params["head"]["bias"]`, the State that was split off. Does `galaxy` change?
#
# - [ ] no: what was split off is a copy | Nothing is copied: that would double the memory.
# - [ ] no: a State cannot be written into | Its Variables can, by `[...]`.
# - [x] yes: its last bias is then 7 | Right: the State holds the model's own Variables. So does what `nnx.merge` makes of it.

# %%
cloned = nnx.clone(galaxy)
params["head"]["bias"][...] = jnp.full(3, 7.0)
for name, model in {"the model": galaxy, "merged": merged, "cloned before": cloned}.items():
    print(f"{name:13s} {model.head.bias[...]}")
params["head"]["bias"][...] = jnp.zeros(3)
nnx.update(cloned, {"head": {"bias": jnp.ones(5), "bais": jnp.ones(3)}})  # a wrong shape, and a name that is not there
print("head of the clone:", jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(cloned.head))))

# %% [markdown]
# `nnx.clone(model)` and `nnx.merge(..., copy=True)` make new Variables. `optimizer.update` and `nnx.update(model, state)` write into those that are there. The latter says nothing when a name or a shape does not fit, as the last line shows; an exercise meets that.
#
# ## One model, two modes
# In training Dropout draws masks, and BatchNorm uses the mean of the *batch* and moves its running one. In evaluation nothing is drawn, and the running mean is used. Both are settings of layers deep inside.

# %% [markdown] predict="nnx-modes"
# A model as it is made is in training mode. We ask for the scores of the first star, alone, and in a batch of 300. Are they equal?
#
# - [ ] yes: rows do not see each other | In a matrix product they do not. In BatchNorm they do.
# - [x] no, and asked again they are different again | Right: the batch decides, and the masks are new each time.
# - [ ] no, but asked again they are as before | Dropout's counter has moved on.

# %%
calm = nnx.view(galaxy, deterministic=True, use_running_average=True)
for name, model in {"in training": galaxy, "in evaluation": calm}.items():
    print(f"{name:14s} alone {model(x[:1])[0]}, in a batch {model(x)[0]}, again {model(x)[0]}")

# %% [markdown]
# `nnx.view` gives the same Variables with other settings; `galaxy` stays in training. Name only settings that some layer has: in a model without Dropout `deterministic` is an error. (`galaxy.eval()` and `galaxy.train()` set them in place, and someone has to set them back.)
#
# Now the step. Integers have no slope, so Dropout's counter must not be differentiated. `optimizer.wrt` is the filter of what is trained: split by it. And what changes on the way forward has to come *out* of the loss:

# %%
refusal(lambda: jax.grad(cross_entropy)(galaxy, x, y))


@functools.partial(jax.jit, static_argnames="keep")
def full_step(model, optimizer, x, y, keep=True):
    graphdef, params, rest = nnx.split(model, optimizer.wrt, ...)

    def loss(params):
        inside = nnx.merge(graphdef, params, rest, copy=True)
        return cross_entropy(inside, x, y), nnx.state(inside, nnx.Not(optimizer.wrt))

    (value, moved), slopes = jax.value_and_grad(loss, has_aux=True)(params)
    optimizer.update(model, slopes)
    if keep:
        nnx.update(model, moved)
    return model, optimizer, value


def right(model, x, y):
    return float(jnp.mean(call(model, x).argmax(axis=1) == y))


trained = {}
for keep in (True, False):
    model = Galaxy(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.003), wrt=nnx.Param)
    for _ in range(400):
        model, optimizer, value = full_step(model, optimizer, x, y, keep=keep)
    trained[keep] = nnx.view(model, deterministic=True, use_running_average=True)
    block, scored = model.blocks[0], right(trained[keep], new_x, new_y)
    print(f"the rest {'kept' if keep else 'lost'}: loss {value:.3f}, right on new stars {scored:.3f}")
    print(f"    masks drawn {block.dropout.rngs.count[...]}, running means {block.norm.mean[...][:3]} ...")

# %% [markdown]
# The second run shows how this goes wrong in real code: the loss falls just as well, but the running statistics stay at 0 and 1, evaluation uses them, and every step draws *the same* mask. Why `copy=True`? A Variable may be changed only inside the transformation in which it was made, or a tracer would leak out with it (02). Those in `rest` were made outside of `grad`:

# %%
graphdef, params, rest = nnx.split(galaxy, nnx.Param, ...)
refusal(lambda: jax.grad(lambda params: cross_entropy(nnx.merge(graphdef, params, rest), x, y))(params))

side = np.linspace(-1.1, 1.1, 150, dtype=np.float32)
plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
_, axes = plots.subplots(1, 2, height=3.6)
scored = {}
for ax, (name, model) in zip(axes, {"before": calm, "after": trained[True]}.items(), strict=True):
    found = call(model, plane).argmax(axis=1).reshape(150, 150)
    ax.contourf(side, side, found, [-0.5, 0.5, 1.5, 2.5], colors=["C0", "C1", "C2"], alpha=0.3)
    for i, mark in enumerate("o^s"):
        ax.plot(*x[y == i].T, mark, markersize=3, color=f"C{i}")
    scored[name] = f"{right(model, new_x, new_y):.1%}"
    ax.set(title=f"{name}: {scored[name]} of new stars right", aspect="equal")
plots.show(
    "Stars of three spiral arms, each arm with a mark of its own, on the regions that the network gives to each arm. "
    f"Before training the regions cut across the arms ({scored['before']} of new stars right); after it they wind along "
    f"with them ({scored['after']})."
)

# %% [markdown]
# ## Surgery
# A model is an object: parts can be exchanged. An array goes *into* its Variable, `layer.bias[...] = array`; with `layer.bias = array` a bare array takes the place of the `nnx.Param`, and is none. Here a new question is asked of old layers: does a star lie inside the radius 0.5? All but the new head is **frozen**: it is not in `wrt`, so `full_step` neither differentiates nor moves it.

# %%
tuned = nnx.clone(trained[True])  # in evaluation: its statistics stay as well
tuned.head = nnx.Linear(64, 2, rngs=nnx.Rngs(1))
near, new_near = ((np.linalg.norm(points, axis=1) < 0.5).astype(int) for points in (x, new_x))
refusal(lambda: full_step(tuned, optimizer, x, near))

optimizer = nnx.Optimizer(tuned, optax.adam(0.02), wrt=nnx.All(nnx.Param, nnx.PathContains("head")))
for _ in range(200):
    tuned, optimizer, value = full_step(tuned, optimizer, x, near)
print(f"right on new stars {right(tuned, new_x, new_near):.3f}")
print(f"parameters {megabytes(nnx.state(tuned, nnx.Param)):.4f} MB, optimizer {megabytes(optimizer):.4f} MB")

# %% [markdown]
# The old optimizer did not fit the new head: it has a memory for each parameter that *was* there. Make a new one after surgery.
#
# **Shared parts come apart.** Two layers may hold the same Variable. For plain transformations a module is a tree, and a tree has no sharing: inside there are two. `nnx.split` knows better, and keeps one:


# %%
class Tied(nnx.Module):
    def __init__(self, *, rngs):
        self.into, self.out = (nnx.Linear(3, 3, use_bias=False, rngs=rngs) for _ in range(2))
        self.out.kernel = self.into.kernel


tied = Tied(rngs=nnx.Rngs(0))
graphdef, state = nnx.split(tied)
halve = jax.jit(lambda tree: jax.tree.map(lambda array: array / 2, tree))
for name, model in {"module through jit": halve(tied), "state through jit": nnx.merge(graphdef, halve(state))}.items():
    print(f"{name:18s} still tied: {model.into.kernel is model.out.kernel}")

# %% [markdown]
# ## Looking inside
# Why does a model not learn? `nnx.capture` runs it and collects what comes out of every layer (`method_outputs`), or what the model itself notes with `self.sow(nnx.Intermediate, "name", value)`. (Without `capture`, `sow` writes into the model itself, and warns of it.) It is a second result, so it works under `jit`. And it is a real run: in training it draws masks and moves statistics, so look at a view.

# %%
watch = jax.jit(lambda model, x: nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(x))
_, seen = watch(trained[True], new_x)
for path, variable in nnx.to_flat_state(seen):
    if path[0] == "blocks" and path[2] == "norm":
        [out] = variable.get_value()  # a tuple: one entry for each call
        print(f"{'/'.join(map(str, path))}: spread {out.std():.2f}, relu lets through {(out > 0).mean():.0%}")
_, noted = nnx.capture(lambda model: model.sow(nnx.Intermediate, "hidden", model.first(new_x)), nnx.Intermediate)(small)
print("sown, once for each call:", jax.tree.map(jnp.shape, nnx.to_pure_dict(noted)))

# %% [markdown]
# ## Before it exists
# What would a larger one weigh? `jax.eval_shape` builds the model out of shapes: nothing is drawn, nothing is allocated.

# %%
start = time.perf_counter()
giant = jax.eval_shape(lambda: Galaxy(width=2**15, depth=40, rngs=nnx.Rngs(0)))
print(f"{megabytes(giant):,.0f} MB in {time.perf_counter() - start:.1f} s; head: {giant.head.kernel.get_value()}")

# %% [markdown]
# ## Many models at once
# A constructor is a function from a key to a tree, so `vmap` makes four models of it, with a first axis in every array. The step is mapped the same way: four trainings in one program.


# %%
def begin(key):
    model = Small(rngs=nnx.Rngs(key))
    return model, nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)


models, optimizers = jax.vmap(begin)(jax.random.split(jax.random.key(3), 4))
steps = jax.jit(jax.vmap(step, in_axes=(0, 0, None, None)))
for _ in range(300):
    models, optimizers, value = steps(models, optimizers, x, y)
scores = jax.vmap(call, in_axes=(0, None))(models, new_x)
print("kernels", models.first.kernel.shape, " right on new stars", np.mean(scores.argmax(-1) == new_y, axis=1))

# %% [markdown]
# ## Four libraries, one idea
# All of them end in a pure function of a tree. They differ in who holds the arrays meanwhile. **Linen** is Flax's older interface: a module holds no arrays; `init` gives them, `apply` takes them, and names are numbers by kind and order:


# %%
class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x, training):
        x = linen.BatchNorm(use_running_average=not training)(linen.Dense(4)(x))
        return linen.Dropout(0.2, deterministic=not training)(jax.nn.relu(x))


block, data, key = LinenBlock(), jnp.ones((5, 2)), jax.random.key(0)
variables = block.init(key, data, training=False)
print(*(f"{kind}: {jax.tree.map(jnp.shape, tree)}" for kind, tree in variables.items()), sep="\n")
out, moved = block.apply(variables, data, training=True, rngs={"dropout": key}, mutable=["batch_stats"])
print("apply:", out.shape, "and", list(moved))

# %% [markdown]
# | | Haiku | Linen | Equinox | NNX |
# |---|---|---|---|---|
# | a model is | a function that calls modules, through `hk.transform` | a frozen dataclass without arrays | a frozen dataclass *with* arrays: a tree | an object with Variables: a tree, and it may change |
# | parameters are | in a dict from `init` | in `variables["params"]` from `init` | fields of the model | `nnx.Param`s in attributes |
# | made | at `init`, from an input's shape | at `init`, from an input's shape | in the constructor, from sizes | in the constructor, from sizes |
# | called | `apply(params, key, x)` | `model.apply(variables, x)` | `model(x)` | `model(x)` |
# | BatchNorm's means | `hk.transform_with_state` | the collection `batch_stats`, `mutable` | an `eqx.nn.State`, in and out | `nnx.BatchStat`, in place; return the model |
# | Dropout's keys | `hk.next_rng_key()` | `rngs={"dropout": key}` | a `key` argument | `nnx.Rngs` in the model |
# | only the parameters | `hk.data_structures.partition` | it is a dict | `eqx.partition`, `eqx.is_inexact_array` | `nnx.split` with filters |
# | surgery | change the dict | change the dict, and the class | `eqx.tree_at` gives a new model | assign a part to an attribute, an array to `[...]` |
# | jit | `jax.jit` of `apply` | `jax.jit` of `apply` | `eqx.filter_jit` | `jax.jit` |
# | stands, in November 2026 | in maintenance, points to Flax | maintained; much Flax code is written in it | active | active; what Flax recommends |
#
# Shapes from an input, or sizes by hand? Linen and Haiku infer; NNX and Equinox want `nnx.Linear(2, 64)`. What you get for it: the model exists, and can be looked at, before any data does. Models from Linen work inside NNX, and the other way round: `nnx.bridge`.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a model | a class from `nnx.Module`, layers in attributes, several in an `nnx.List`; then `Model(rngs=nnx.Rngs(seed))` |
# | an optimizer | `nnx.Optimizer(model, tx, wrt=nnx.Param)`, anew after surgery |
# | a compiled step | plain `jax.jit`; return model *and* optimizer |
# | a gradient, when there are counters or statistics | `nnx.split(model, nnx.Param, ...)`; merge inside with `copy=True`; return what moved |
# | evaluation | `nnx.view(model, deterministic=True, use_running_average=True)`, or the one of them that its layers have |
# | a copy | `nnx.clone(model)`: split, merge and view share Variables |
# | to train some parts | one filter, for the split and for `wrt` |
# | what comes out of layers | `nnx.capture(model, nnx.Intermediate, ...)` |
# | bytes, before there are any | `jax.eval_shape(lambda: Model(...))` |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `nnx.jit`, `nnx.grad`, `nnx.vmap`, `nnx.scan` | in maintenance: the plain ones, since modules are trees |
# | a plain list or dict of layers | `nnx.List`, `nnx.Dict` |
# | `param.value`, `param.raw_value` | `param[...]`; `get_value()` where it holds no array |
# | `nnx.Optimizer(model, tx)`, `optimizer.update(slopes)`, `optimizer.model` | `wrt=nnx.Param`; `optimizer.update(model, slopes)`; the model is yours to keep |
# | `sow`, then `nnx.state(model, nnx.Intermediate)` or `nnx.pop` | `nnx.capture` |
#
# Next: the exercises. In the first, what keeps the layers is missing.
