# %% [markdown]
# # 06 · Pytrees: one function for any container
#
# *The core takes about 35 minutes. Nine "Deeper" sections can be skipped. Then do [the exercises](../exercises/06_pytrees/06_pytrees.ipynb).* After the core, you can compute with all arrays of a model in one line, distinguish leaves from structure, train parameters in any container, find a parameter by its name, and pass objects of your own classes to `jit`, `grad` and `vmap`.
#
# **Prerequisites.** Arrays and dtypes (lesson 01), `jit` and its cache key (03), `grad` (04) and `vmap` (05). Answer these questions from memory.
#
# 1. From 03: You call a jitted function again, with other numbers in arrays of the same shape and dtype. Does JAX trace it again?
#
# <details><summary>Answer</summary>
#
# No. The cache key contains shapes and dtypes, but not the numbers.
# </details>
#
# 2. From 04: `loss(params, x)` takes a dict of parameters. What does `jax.grad(loss)(params, x)` return?
#
# <details><summary>Answer</summary>
#
# A dict with the same keys. Each entry is the gradient with respect to that parameter.
# </details>
#
# 3. From 05: What does `in_axes=(None, 0)` mean for a first argument that is a dict of arrays?
#
# <details><summary>Answer</summary>
#
# All examples share all arrays of the dict, because one entry applies to a whole container.
# </details>

# %%
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

# Helpers of this course, which plot, print errors and measure times:
from grader.learning import plots
from grader.learning.inspection import print_error, time_ms

# %% [markdown]
# ## How large is this model?
# Models store their arrays in nested containers. A colleague sends you the model below. Its file is unexpectedly large. Which part is the largest?

# %%
rng = np.random.default_rng(6)


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)


model = {
    "words": normal(5000, 128),  # a vector for each of 5,000 words
    "layers": [{"up": (normal(128, 512), jnp.zeros(512)), "down": (normal(512, 128), None)} for _ in range(3)],
    "head": {"w": normal(128, 10), "scale": jnp.ones(128, jnp.bfloat16)},
}


# %%
def megabytes_by_hand(node):
    if isinstance(node, dict):
        return sum(megabytes_by_hand(child) for child in node.values())
    if isinstance(node, list | tuple):
        return sum(megabytes_by_hand(child) for child in node)
    return 0 if node is None else node.nbytes / 2**20


print(f"by hand: {megabytes_by_hand(model):.3f} MiB")

# %% [markdown]
# This function handles dicts, lists, tuples and `None`, but the next model may contain another type. JAX has the same problem with the arguments of every function that it transforms. It treats nested containers as a tree, called a [**pytree**](../docs/glossary.md#pytree). The values at the ends of the tree are its [**leaves**](../docs/glossary.md#leaf), usually arrays.

# %%
leaves = jax.tree.leaves(model)
print(f"{len(leaves)} leaves, {sum(leaf.nbytes for leaf in leaves) / 2**20:.3f} MiB")
for name, part in model.items():
    print(f"{name:8s} {sum(leaf.nbytes for leaf in jax.tree.leaves(part)) / 2**20:.3f} MiB")

# %% [markdown]
# The table of words takes more than half of the memory. Every part of a pytree is a pytree too, even a single array, so the same line works for the parts.

# %% [markdown]
# ## Leaves and structure
# `jax.tree.flatten` separates a pytree into a list of leaves and its structure, which JAX represents as a [**treedef**](../docs/glossary.md#treedef). `jax.tree.unflatten` builds a pytree from both.

# %% [markdown] predict="pytrees-order"
# What is `jax.tree.leaves({"w": 1, "b": 2, "a": (3, None)})`?
#
# - [x] `[3, 2, 1]` | Right. The keys are sorted, and `None` has no leaves.
# - [ ] `[1, 2, 3]` | Python's dicts keep this order. JAX sorts the keys, so that the insertion order does not matter.
# - [ ] `[3, None, 2, 1]` | The keys are sorted, but `None` counts as an empty container.

# %%
leaves, treedef = jax.tree.flatten({"w": 1, "b": 2, "a": (3, None)})
print(leaves, treedef)
print(jax.tree.unflatten(treedef, ["third", "second", "first"]))

# %% [markdown]
# Each `*` in the treedef is the place of a leaf. A treedef describes the containers but not the leaves, so `unflatten` accepts any list of the right length.
#
# ![A pytree drawn from its root, a dict with the keys a, b and w. Under a is a tuple of 3 and None. The leaves 3, 2 and 1 are in a row at the bottom, in the order of the sorted keys. None is an empty container and not a leaf. On the right, flatten returns the list of leaves and the treedef, and unflatten combines them again.](../images/pytrees_flatten.svg)
#
# Lists, tuples, named tuples, dicts (including `OrderedDict` and `defaultdict`) and `None` are containers, and you can register your own classes. **Every other object is a leaf**, even if JAX cannot compute with it.


# %%
class Range(NamedTuple):
    low: float
    high: float


for tree in (Range(0.0, 1.0), [[], {}, None, ()], {"activation": "relu"}, [{1, 2}]):
    print(f"{tree!s:26s} leaves: {jax.tree.leaves(tree)}")

# %% [markdown]
# The treedef of the arguments is part of the [cache key](../docs/glossary.md#cache-key) of `jit`.

# %% [markdown] predict="pytrees-traces"
# A jitted function is called with `{"a": 1., "b": 2.}`, `{"b": 2., "a": 1.}`, `[1., 2.]` and `(1., 2.)`. How often does JAX trace it?
#
# - [ ] once | All four have the leaves 1 and 2. But the function receives the containers, and could check `isinstance(x, list)`.
# - [ ] twice | The two dicts do have the same structure. But a list and a tuple are different types of containers.
# - [x] three times | Right. The two dicts have the same structure, and the structures of the list and the tuple differ.

# %%
traces = []


@jax.jit
def total(tree):
    traces.append(type(tree).__name__)  # runs only while JAX traces
    return sum(jax.tree.leaves(tree))


for tree in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, [1.0, 2.0], (1.0, 2.0)):
    total(tree)
print("traced for", traces)

# %% [markdown]
# ## Compute with every leaf
# `jax.tree.map(f, tree)` calls `f` on each leaf and returns a pytree of the same structure. If you pass several pytrees, `f` receives the leaves at the same position.

# %%
small_tree = {"w": 1, "b": (2, 3)}
tenfold = jax.tree.map(lambda leaf: 10 * leaf, small_tree)
print(tenfold)
print(jax.tree.map(lambda a, b: a - b, tenfold, small_tree))

# %% [markdown]
# `jax.tree.reduce` combines all leaves into one value. The next cell rounds the model to `bfloat16` and computes the norm of the rounding errors.

# %%
half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)
print(f"in bfloat16: {sum(leaf.nbytes for leaf in jax.tree.leaves(half)) / 2**20:.3f} MiB")

errors = jax.tree.map(lambda exact, rounded: float(jnp.sum((exact - rounded) ** 2)), model, half)
print("squared errors of the first layer:", jax.tree.map(lambda error: round(error, 5), errors["layers"][0]))
print(f"norm of all errors: {jax.tree.reduce(jnp.add, errors) ** 0.5:.3f}")

# %% [markdown]
# If the structures do not match, the error message states where and how they differ.

# %%
print_error(lambda: jax.tree.map(jnp.add, {"w": 1}, {"w": 1, "b": 2}), length=400)
print_error(lambda: jax.tree.map(jnp.add, {"w": 1, "b": None}, {"w": 1, "b": 2}), length=400)
print_error(lambda: jax.tree.map(jnp.add, {"layers": [1, 2]}, {"layers": (1, 2)}), length=400)

# %% [markdown]
# ## A tree of shapes
# Before a model is created, it can be described by the shapes of its arrays.

# %% [markdown] predict="pytrees-shapes"
# You have a dict of shapes and want an array for each shape. What does `jax.tree.map(jnp.zeros, {"w": (3, 2), "b": (2,)})` return?
#
# - [ ] under "w" a 3 × 2 matrix, under "b" a vector of 2 | This was the intention. But the leaves of this pytree are the numbers 3, 2 and 2.
# - [x] under "w" a vector of 3 and a vector of 2, under "b" a vector of 2 | Right. A shape is a tuple and so a container, and its numbers are the leaves. No error reports the mistake.
# - [ ] an error, because `jnp.zeros` receives a number instead of a shape | `jnp.zeros(3)` is allowed and returns a vector of 3.

# %%
shapes = {"w": (3, 2), "b": (2,)}
print("without is_leaf:", jax.tree.map(jnp.shape, jax.tree.map(jnp.zeros, shapes)))
zeros = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda node: isinstance(node, tuple))
print("with is_leaf:   ", jax.tree.map(jnp.shape, zeros))

# %% [markdown]
# JAX calls `is_leaf` on each node, from the root down. If it returns True, the node counts as a leaf.
#
# A `jax.ShapeDtypeStruct` is a leaf that describes an array by its shape and dtype. `jax.eval_shape` traces a function without computing anything. It returns the pytree of the result, with such a leaf in place of each array.

# %%
plan = jax.eval_shape(lambda: {"w": jnp.ones((1_000_000, 1_000_000)), "b": jnp.zeros(1_000_000)})
print(plan)
print(f"{sum(leaf.size for leaf in jax.tree.leaves(plan)):,} parameters, and no array is created")

# %% [markdown]
# ## Train parameters in any container
# All transformations accept functions of pytrees. `jax.grad` returns a [gradient](../docs/glossary.md#gradient) with the structure of the parameters, so a single `jax.tree.map` updates them all. The next cells fit a small network to noisy points of a sine curve. Its parameters are a list of dicts, one for each layer.


# %%
def init(*sizes):
    return [{"w": normal(n, m), "b": jnp.zeros(m)} for n, m in pairwise(sizes)]


def predict(network, x):
    *hidden, last = network
    for layer in hidden:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


@jax.jit
def update(network, x, y):
    mean_loss = lambda network: jnp.mean((predict(network, x) - y) ** 2)
    value, gradients = jax.value_and_grad(mean_loss)(network)
    return jax.tree.map(lambda p, g: p - 0.03 * g, network, gradients), value


# %%
x = jnp.linspace(-1, 1, 64)[:, None]
y = jnp.sin(4 * x) + jnp.asarray(rng.normal(scale=0.1, size=x.shape), jnp.float32)
network, losses = init(1, 32, 32, 1), []
before = predict(network, x)
for _ in range(2000):
    network, value = update(network, x, y)
    losses.append(float(value))
after = predict(network, x)

# %%
_, (left, right) = plots.subplots(1, 2, height=2.7)
left.semilogy(losses)
left.set(xlabel="step", ylabel="mean loss")
right.plot(x, y, ".", color=plots.QUIET, label="data")
right.plot(x, before, label="before")
right.plot(x, after, label="after training")
right.set(xlabel="x", ylabel="y")
right.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1), columnspacing=1.2)
plots.show(
    f"Left: the mean loss over {len(losses)} steps falls from {losses[0]:.2f} to {losses[-1]:.3f}. Right: 64 noisy points of "
    f"sin(4x). The largest distance of the network from sin(4x) is {jnp.abs(before - jnp.sin(4 * x)).max():.1f} before "
    f"training and {jnp.abs(after - jnp.sin(4 * x)).max():.1f} after."
)

# %% [markdown]
# `update` does not depend on the number of layers or the names of the parameters. It works for any parameters that `predict` accepts.

# %% [markdown]
# ## One value for a whole part
# A setting can apply to a whole part of a model, for example one factor to all its layers. In `jax.tree.map`, the *first* pytree decides where the leaves are. At each of its leaves, `f` also receives what the other pytrees contain at the same place, even if that is a container.

# %%
factors = {"words": 0.1, "layers": 1.0, "head": 1.0}
scale_part = lambda factor, part: jax.tree.map(lambda leaf: factor * leaf, part)
scaled = jax.tree.map(scale_part, factors, model)
print(f"largest entry of words: {model['words'].max():.4f} becomes {scaled['words'].max():.4f}")
print("a factor for each leaf:", jax.tree.broadcast(factors, model)["layers"][0])

# %% [markdown]
# `factors` is a **prefix** of `model`, because its leaves stand for whole parts. `jax.tree.broadcast` repeats each of its values for all leaves of the part. The option `in_axes` of `vmap` is a prefix of the tuple of arguments. In `in_axes`, `None` counts as a leaf and means "not mapped".

# %%
dot = lambda inputs: jnp.dot(inputs["w"], inputs["x"])
print("one w, three x:", jax.vmap(dot, in_axes=({"w": None, "x": 0},))({"w": jnp.ones(2), "x": jnp.ones((3, 2))}))

# %% [markdown]
# ## Names of leaves
# The **key path** of a leaf is the tuple of keys that lead to it from the root. `jax.tree_util.keystr` converts it to text, as Python code or in a simple format.

# %%
for path, _ in jax.tree.leaves_with_path({"layers": [Range(0.0, 1.0)]}):
    print(path, jax.tree_util.keystr(path), jax.tree_util.keystr(path, simple=True, separator="."))

# %% [markdown]
# `jax.tree.leaves_with_path` pairs each leaf with its path. With these names, you can see which arrays are large.

# %%
kibibytes = {}
for path, leaf in jax.tree.leaves_with_path(model):
    kibibytes[jax.tree_util.keystr(path, simple=True, separator=".")] = leaf.nbytes / 1024

_, axes = plots.subplots(height=3)
axes.barh(list(kibibytes), list(kibibytes.values()))
for name, size in kibibytes.items():
    axes.annotate(f"{size:,.4g}", (size, name), (4, -4), textcoords="offset points")
axes.set(xlabel="size in KiB")
axes.margins(x=0.12)
axes.invert_yaxis()
plots.show("Sizes of the leaves in KiB. " + ", ".join(f"{name} {size:,.4g}" for name, size in kibibytes.items()) + ".")

# %% [markdown]
# `jax.tree.map_with_path` calls a function of the path and the leaf. The next cell builds a pytree of names.

# %%
named = jax.tree.map_with_path(lambda path, _: jax.tree_util.keystr(path, simple=True, separator="."), model)
print(named["layers"][2])

# %% [markdown]
# ## None, strings and settings
# Models also contain `None`, strings and numbers. Which of these do the transformations accept?

# %% [markdown] predict="pytrees-none"
# `layer = {"w": jnp.ones(3), "b": None, "name": "first"}`, and the loss uses only `w`. What does `jax.grad` with respect to `layer` do?
#
# - [x] it raises an error because of the name | Right. A string is a leaf, but not a number. `None` is allowed.
# - [ ] it raises an error because of `None` | `None` has no leaves, and is returned as it is.
# - [ ] it returns a gradient for `w` only | It needs a derivative for each *leaf*, and the string is a leaf.


# %%
def loss(layer, x):
    return jnp.sum((layer["w"] * x) ** 2)


layer = {"w": jnp.ones(3), "b": None, "name": "first"}
print_error(lambda: jax.grad(loss)(layer, 2.0))  # a string
print_error(lambda: jax.grad(loss)({"w": jnp.ones(3), "b": None, "step": 7}, 2.0))  # an integer
print_error(lambda: jax.jit(loss)(layer, 2.0))  # a string under jit
print(jax.grad(loss)({"w": jnp.ones(3), "b": None}, 2.0))

# %% [markdown]
# All transformations accept `None`, because it has no leaves. `grad` rejects strings and integers. `jit` rejects strings and traces integers. There are three ways to handle settings. You can keep them apart from the parameters, replace them with `None` before a transformation (an exercise), or make them part of the structure with a class of your own.

# %% [markdown]
# ## Your own containers
# In Python, a class can hold parameters together with their settings.

# %% [markdown] predict="pytrees-class"
# `Plain` is a dataclass with the fields `w`, `b` and the name of an activation. What does `jax.jit(lambda layer: layer.w)` do with a `Plain`?
#
# - [ ] it returns `w` | It would without `jit`. `jit` first flattens the argument into leaves that it can trace.
# - [ ] it rejects the string | JAX never reaches the string, because it does not look into the object.
# - [x] it rejects the object | Right. An object of an unregistered class is a single leaf, and not an array.


# %%
@dataclass
class Plain:
    w: jax.Array
    b: jax.Array
    activation: str = "tanh"


plain = Plain(normal(4, 4), jnp.zeros(4))
print("leaves:", len(jax.tree.leaves(plain)), type(jax.tree.leaves(plain)[0]).__name__)
print_error(lambda: jax.jit(lambda layer: layer.w)(plain))

# %% [markdown]
# The decorator `register_dataclass` makes a dataclass a container. A field becomes a **child**, which can be an array or another pytree, unless it is declared with `jax.tree.static()`. The value of such a **static** field becomes part of the treedef.


# %%
@jax.tree_util.register_dataclass
@dataclass
class Dense:
    w: jax.Array
    b: jax.Array
    activation: str = jax.tree.static(default="tanh")

    def __call__(self, x):
        return getattr(jnp, self.activation)(self.w @ x + self.b)


dense = Dense(normal(4, 4), jnp.zeros(4))
print("leaves: ", jax.tree.map(jnp.shape, jax.tree.leaves(dense)))
print("treedef:", jax.tree.structure(dense))

# %% [markdown] predict="pytrees-static"
# A jitted function calls a `Dense` layer. It runs five times: with `dense`, with other weights, with "sin", with "tanh" again, and with "sin" and other weights. How often does JAX trace it?
#
# - [ ] once | The weights are traced values, but the activation is not. Python needs its name to find the function.
# - [x] twice | Right. There is one treedef with "tanh" and one with "sin", and both programs stay in the cache.
# - [ ] five times | A new object does not cause a trace. The cache key contains its treedef and the shapes and dtypes of its leaves.

# %%
traced = []


@jax.jit
def forward(layer, x):
    traced.append(layer.activation)  # runs only while JAX traces
    return layer(x)


other = jax.tree.map(lambda leaf: leaf + 1, dense)  # a Dense with other weights
sine = Dense(dense.w, dense.b, "sin")
for layer in (dense, other, sine, Dense(other.w, other.b, "tanh"), Dense(other.w, other.b, "sin")):
    forward(layer, jnp.ones(4))
print("traced for", traced)

# %% [markdown]
# ![A Dense object with w, b and activation. The data fields w and b become leaves. They are tracers under jit, and have gradients and batch axes. The static field activation becomes part of the treedef and so of the cache key of jit. Python can read it while JAX traces, and another value requires another trace.](../images/pytrees_static.svg)
#
# The other transformations accept and return a `Dense` too.

# %%
gradient = jax.grad(lambda layer: jnp.sum(layer(jnp.ones(4))))(dense)
print("the gradient is a", type(gradient).__name__, "with", gradient.activation)
ensemble = jax.vmap(lambda shift: jax.tree.map(lambda leaf: leaf + shift, dense))(jnp.arange(3.0))
print("vmap returns a", type(ensemble).__name__, "with", jax.tree.map(jnp.shape, jax.tree.leaves(ensemble)))
print_error(lambda: jax.tree.map(jnp.add, dense, sine), length=400)

# %% [markdown]
# The error is useful, because layers with different activations should not be added. As a rule, values that change or are differentiated are data. Values that Python reads during tracing are static. Optimizer states (09) and Flax modules (10) are pytrees too.
#
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: which types are containers
# JAX finds containers in a registry of types, which contains `OrderedDict` and `defaultdict`. It ignores inheritance, so a subclass of `dict` is a leaf. Named tuples are the only exception. *All* fields of a named tuple are children, including a string that is meant as a setting.


# %%
class Settings(dict):
    pass


class Person(NamedTuple):
    name: str
    age: float


for tree in (Settings(a=1), Person("Ada", 36.0), OrderedDict(w=1, b=2), defaultdict(int, w=1, b=2)):
    print(f"{type(tree).__name__:12s} leaves: {jax.tree.leaves(tree)}")
print("dict, OrderedDict equal:", jax.tree.structure({"w": 1, "b": 2}) == jax.tree.structure(OrderedDict(w=1, b=2)))
print("None as a leaf:", jax.tree.leaves([None, 1], is_leaf=lambda node: node is None))

# %% [markdown]
# An `OrderedDict` keeps its insertion order, because the order is part of its structure. A dict and an `OrderedDict` with the same content therefore have different treedefs. The keys of a dict are sorted, which fails for strings mixed with numbers.

# %%
print_error(lambda: jax.tree.leaves({"w": 1, 2: 3}))

# %% [markdown]
# ## Deeper: what transformations do with a pytree
# A jaxpr contains arrays, but no containers. A transformation flattens the arguments, works on the list of leaves, and unflattens the results. The jaxpr of `predict` has one input for each leaf of its first argument, and one for `x`.

# %%
small_network = init(1, 2, 1)
print(jax.tree.structure(small_network))
print(jax.make_jaxpr(predict)(small_network, x[:3]))

# %% [markdown]
# Use the same recipe if your function needs all leaves at once. The next function keeps the leaf with the largest norm and sets the others to zero. Such a function can reduce a gradient to its most important part before it is communicated.


# %%
def keep_largest(tree):
    leaves, treedef = jax.tree.flatten(tree)
    norms = jnp.array([jnp.linalg.norm(leaf.ravel()) for leaf in leaves])
    kept = [jnp.where(i == norms.argmax(), leaf, 0) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, kept)


gradients = jax.grad(lambda network: predict(network, x[:3]).mean())(small_network)
norm = lambda leaf: round(float(jnp.linalg.norm(leaf.ravel())), 3)
print("norms before:", jax.tree.map(norm, gradients))
print("norms after: ", jax.tree.map(norm, jax.jit(keep_largest)(gradients)))

# %% [markdown]
# ## Deeper: classes that are not dataclasses
# `register_dataclass` accepts any class whose constructor takes all attributes by name. List the data as `data_fields` and the static attributes as `meta_fields`.


# %%
class Scale:
    def __init__(self, by, unit):
        self.by, self.unit = by, unit


jax.tree_util.register_dataclass(Scale, data_fields=["by"], meta_fields=["unit"])
print(jax.tree.structure(Scale(1.5, "cm")), jax.tree.leaves(Scale(1.5, "cm")))

# %% [markdown]
# For other classes, such as those of a library, write two functions. The first flattens an object into pairs of a key and a child, and into its static part, which the JAX documentation calls `aux_data`. The second builds an object from the static part and the children.

# %%
flatten_box = lambda box: ([(jax.tree_util.GetAttrKey("w"), box.w)], box.by)
unflatten_box = lambda by, children: SimpleNamespace(w=children[0], by=by)
jax.tree_util.register_pytree_with_keys(SimpleNamespace, flatten_box, unflatten_box)
box = SimpleNamespace(w=1.5, by="ten")
print(jax.tree.leaves_with_path(box), jax.tree.structure(box))

# %% [markdown]
# `jax.tree_util.register_pytree_node` does the same without keys. The paths of its children then contain indices instead of names. The decorators `register_pytree_node_class` and `register_pytree_with_keys_class` use two methods of the class, `tree_flatten` (or `tree_flatten_with_keys`) and `tree_unflatten`.


# %%
@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def tree_flatten(self):
        return (self.first, self.second), None  # children, static part

    @classmethod
    def tree_unflatten(cls, static_part, children):
        return cls(*children)


for path, leaf in jax.tree.leaves_with_path({"pair": Pair(1.0, 2.0)}):
    print(jax.tree_util.keystr(path), leaf)

# %% [markdown]
# `jax.tree_util.register_static` registers a class whose objects contain settings only. They have no leaves. Each object becomes part of the treedef, so it must be hashable, as frozen dataclasses are.


# %%
@jax.tree_util.register_static
@dataclass(frozen=True)
class Options:
    activation: str


print(jax.tree.structure([Options("relu"), 1.5]), jax.tree.leaves([Options("relu"), 1.5]))

# %% [markdown]
# A function is a leaf, which `jit` rejects. `jax.tree_util.Partial` is a container for a function and its bound arguments. The function is static, and the arguments are children.

# %%
power = jax.tree_util.Partial(jnp.power, 2.0)
apply = jax.jit(lambda function, x: function(x))
print_error(lambda: apply(jnp.sin, 3.0), length=200)
print(jax.tree.leaves(power), apply(power, 3.0))

# %% [markdown]
# ## Deeper: mistakes in your own containers
# **A changing value is static.** A step counter is an integer, like many settings. If it is static, every step has a new treedef and compiles a new program.


# %%
@jax.tree_util.register_dataclass
@dataclass
class Counted:
    w: jax.Array
    static_step: int = jax.tree.static(default=0)
    step: int = 0


took = {"static_step": [], "step": []}
for field, milliseconds in took.items():
    advance = jax.jit(lambda state: state.w * 0.99 ** (state.static_step + state.step))
    for i in range(10):
        start = time.perf_counter()
        jax.block_until_ready(advance(Counted(dense.w, **{field: i})))
        milliseconds.append(1e3 * (time.perf_counter() - start))

# %%
_, axes = plots.subplots(height=2.4)
axes.semilogy(took["static_step"], "o-", label="the counter is static")
axes.semilogy(took["step"], "s--", label="the counter is data")
axes.set(xlabel="call", ylabel="time in ms")
axes.legend(loc="center right")
mean_ms = {field: sum(milliseconds[1:]) / 9 for field, milliseconds in took.items()}
plots.show(
    f"The time of ten calls. After the first call, a call takes {mean_ms['static_step']:.2g} ms on average if the counter is "
    f"static, because each call compiles a program, and {mean_ms['step']:.2g} ms if the counter is data."
)

# %% [markdown]
# **An array is static.** JAX compares treedefs, but the comparison of two arrays returns an array and not a single truth value. The first call may still work.


# %%
@jax.tree_util.register_dataclass
@dataclass
class Masked:
    w: jax.Array
    mask: np.ndarray = jax.tree.static()


apply_mask = jax.jit(lambda layer: layer.w * layer.mask)
print(apply_mask(Masked(jnp.ones(3), np.array([1, 0, 1]))))
print_error(lambda: apply_mask(Masked(jnp.ones(3), np.array([1, 0, 1]))))

# %% [markdown]
# **The constructor checks its arguments.** JAX also builds objects of your class from values that are not arrays. The next class records their types.


# %%
@jax.tree_util.register_dataclass
@dataclass
class Recorded:
    rows: jax.Array

    def __post_init__(self):
        received.add(type(self.rows).__name__)


received = set()
recorded = Recorded(jnp.ones((3, 2)))
for transformation in (jax.jit, jax.vmap, jax.jacobian):
    received.clear()
    transformation(lambda recorded: recorded)(recorded)
    print(f"{transformation.__name__:8s}", sorted(received))

# %% [markdown]
# The constructor receives tracers and placeholders such as `None`. The Jacobian of a function from a pytree to a pytree nests one pytree in the other, so the constructor even receives objects of its own class. Under `vmap`, an array has one axis fewer. A constructor that checks or converts its argument may reject such values.


# %%
@jax.tree_util.register_dataclass
@dataclass
class Strict:
    rows: jax.Array

    def __post_init__(self):
        if self.rows.ndim != 2:
            raise ValueError(f"rows need two axes, got {self.rows.ndim}")


strict = Strict(jnp.ones((3, 2)))
print("under jit:", jax.jit(lambda strict: strict.rows.sum())(strict))
print_error(lambda: jax.vmap(lambda strict: strict.rows.sum())(strict))
print_error(lambda: jax.jacobian(lambda strict: strict)(strict))

# %% [markdown]
# Check and convert arguments in a separate function that creates objects. Alternatively, write an unflatten function that does not call the constructor.


# %%
class Checked:
    def __init__(self, rows):
        self.rows = jnp.asarray(rows)
        if self.rows.ndim != 2:
            raise ValueError(f"rows need two axes, got {self.rows.ndim}")


def unflatten_checked(_, children):
    checked = object.__new__(Checked)
    checked.rows = children[0]
    return checked


jax.tree_util.register_pytree_node(Checked, lambda checked: ((checked.rows,), None), unflatten_checked)
print(jax.vmap(lambda checked: checked.rows.sum())(Checked([[1.0, 2.0], [3.0, 4.0]])))

# %% [markdown]
# ## Deeper: one array in two places
# Pytrees are trees, so an array that is stored in two places counts as two leaves. After a `map`, they are separate arrays with their own memory, and each has its own gradient.

# %%
table = normal(1000, 64)
tied = {"into": table, "out": table}
moved = jax.tree.map(lambda leaf: leaf * 1.0, tied)
print("one object before:", tied["into"] is tied["out"], " after a map:", moved["into"] is moved["out"])
tied_gradient = jax.grad(lambda tree: jnp.sum(tree["into"] @ tree["out"][:64]))(tied)
print("equal gradients:", bool(jnp.allclose(tied_gradient["into"], tied_gradient["out"])))

# %% [markdown]
# An update with these gradients makes the two copies differ. To share weights, store the array once and use it twice in the function.

# %% [markdown]
# ## Deeper: few large arrays or many small ones
# `jit` flattens its arguments at every call.

# %% [markdown] predict="pytrees-leaves-cost"
# A jitted function adds 1 to 100,000 numbers. They are stored in 1 array, or in 1,000 arrays of 100 numbers. The call with 1,000 arrays takes …
#
# - [x] many times as long | Right. Each array is a separate object that is checked and passed individually. For arrays this small, that takes nearly all of the time.
# - [ ] about twice as long | It takes longer than that. Compare how the time grows with the number of leaves.
# - [ ] about equally long | The number of values is equal, but each array is a separate object.

# %%
add_one = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree))
counts = [1, 10, 100, 1_000]
many_arrays = [[jnp.ones(100_000 // count) for _ in range(count)] for count in counts]
tiny_arrays = [[jnp.ones(1) for _ in range(count)] for count in counts]
calls = [lambda tree=tree: add_one(tree) for tree in many_arrays + tiny_arrays]
medians = time_ms(*calls, repeats=15)
for count, many_ms, tiny_ms in zip(counts, medians[:4], medians[4:], strict=True):
    print(f"{count:5d} leaves: 100,000 numbers in all {many_ms:7.3f} ms   1 number in each {tiny_ms:7.3f} ms")

# %%
_, axes = plots.subplots(height=2.4)
axes.loglog(counts, medians[:4], "o-", label="100,000 numbers in all")
axes.loglog(counts, medians[4:], "s--", label="one number in each leaf")
axes.set(xlabel="number of leaves", ylabel="time of a call in ms")
axes.legend()
plots.show(
    f"Median time of a call against the number of leaves. With 100,000 numbers in all it grows from {medians[0]:.2g} ms for one "
    f"leaf to {medians[3]:.2g} ms for 1,000. With one number in each leaf it grows from {medians[4]:.2g} to {medians[7]:.2g} ms."
)

# %% [markdown]
# With 1,000 leaves, the time hardly depends on the sizes of these small arrays. If this overhead matters, store equal layers as **one** layer whose leaves have an additional axis (next section), or run many steps in one program (08, 09).

# %% [markdown]
# ## Deeper: pytrees with a batch axis
# `ensemble` contains three layers in one `Dense`, whose leaves have a leading axis of size 3. Use `map` to select or average the layers, and `vmap` to call them.

# %%
middle = jax.tree.map(lambda leaf: leaf[1], ensemble)
average = jax.tree.map(lambda leaf: leaf.mean(axis=0), ensemble)
print("the middle layer is the average:", jax.tree.map(lambda a, b: bool(jnp.allclose(a, b)), middle, average))
print("outputs of all layers:", jax.vmap(lambda layer, x: layer(x), in_axes=(0, None))(ensemble, jnp.ones(4)).shape)

# %% [markdown]
# Some algorithms accept only vectors, such as the optimizers of SciPy. `ravel_pytree` concatenates all leaves into one vector and returns a function that restores the pytree. With one vector, the Hessian is one matrix.

# %%
vector, unravel = ravel_pytree(dense)
curvature = jax.hessian(lambda vector: jnp.sum(unravel(vector)(jnp.ones(4)) ** 2))(vector)
print("vector", vector.shape, " Hessian", curvature.shape, " restored:", jax.tree.structure(unravel(vector)))

# %% [markdown]
# ## Deeper: a pytree of pairs
# If the function of a `map` returns a pair, the result is a pytree of pairs. `jax.tree.transpose` converts it to a pair of pytrees. It needs the treedefs of the outer and the inner container.

# %%
pairs = jax.tree.map(lambda leaf: (round(float(leaf.min()), 2), round(float(leaf.max()), 2)), dense)
print("a layer of pairs:", pairs)
print("a pair of layers:", jax.tree.transpose(jax.tree.structure(dense), jax.tree.structure((0, 0)), pairs))

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.tree_map`, `jax.tree_leaves`, `jax.tree_util.tree_multimap` | removed; use `jax.tree.map` and `jax.tree.leaves`. `jax.tree_util.tree_map` still exists |
# | `dataclasses.field(metadata=dict(static=True))` | `jax.tree.static()` has the same effect |
# | `@register_pytree_node_class` | still available, but paths contain no names; use `register_dataclass` or `register_pytree_with_keys` |
# | `flax.struct.dataclass`, `chex.dataclass`, `flax.traverse_util` | still available; registered dataclasses and key paths need no other library |
# | `model.state_dict()` (PyTorch) | the pytree itself; an exercise converts it to flat names |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | all leaves, or the treedef | `jax.tree.leaves(tree)`, `jax.tree.structure(tree)` |
# | to separate and rebuild a pytree | `jax.tree.flatten`, `jax.tree.unflatten` |
# | to compute with each leaf, or to combine all | `jax.tree.map(f, tree, …)`, `jax.tree.reduce(f, tree)` |
# | a container as a leaf | `is_leaf=…` |
# | one value for a whole part | a prefix as the first pytree, or `jax.tree.broadcast` |
# | names | `jax.tree.leaves_with_path`, `jax.tree.map_with_path`, `jax.tree_util.keystr` |
# | a class as a container | `@jax.tree_util.register_dataclass`, settings with `jax.tree.static()` |
# | shapes and dtypes without arrays | `jax.eval_shape` |
