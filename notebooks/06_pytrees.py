# %% [markdown]
# # 06 · pytrees: one function, any container
#
# *Forty minutes, then [the exercises](../exercises/06_pytrees/06_pytrees.ipynb).* Afterwards you can compute with a whole model in one line, say what in a container is a leaf and what is its form, find a parameter by its name, let classes of your own go through `jit`, `grad` and `vmap`, and read the errors that two different forms earn.
#
# **Assumed.** Arrays and dtypes (01), `jit` and its key (03), `grad` (04), `vmap` (05). Recall before you go on; answer first, then open the fold.
#
# 1. From 03: a jitted function is called with other numbers in arrays of the same shape. Is it traced again?
#
# <details><summary>Answer</summary>
#
# No. Shapes and dtypes are in the key, numbers are not.
# </details>
#
# 2. From 04: `loss(params, x)` takes a dict of parameters. What does `jax.grad(loss)(params, x)` give back?
#
# <details><summary>Answer</summary>
#
# A dict with the same keys, and under each key a slope for every number.
# </details>
#
# 3. From 05: what does `in_axes=(None, 0)` say about a first argument that is a dict of arrays?
#
# <details><summary>Answer</summary>
#
# That all of its arrays are shared by all runs: an entry for a container holds for everything in it.
# </details>

# %%
import time
import timeit
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:400]}\n")
    else:
        print("No error!")


# %% [markdown]
# ## The question: where do the bytes go?
# A colleague hands you a model. It is a dict, in it a list, in that dicts of tuples; some biases are missing. Its file is larger than you expected. How large is the model, and which part is to blame?

# %%
rng = np.random.default_rng(6)


def normal(*shape):
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)


model = {
    "words": normal(5000, 128),
    "layers": [{"up": (normal(128, 512), jnp.zeros(512)), "down": (normal(512, 128), None)} for _ in range(3)],
    "head": {"w": normal(128, 10), "scale": jnp.ones(128, jnp.bfloat16)},
}


def megabytes_by_hand(node):
    if isinstance(node, dict):
        return sum(megabytes_by_hand(child) for child in node.values())
    if isinstance(node, list | tuple):
        return sum(megabytes_by_hand(child) for child in node)
    return 0 if node is None else node.nbytes / 2**20


print(f"by hand: {megabytes_by_hand(model):.3f} MiB")

# %% [markdown]
# This function knows four kinds of containers, and the next model will have a fifth. JAX has to do the same with the arguments of every function that it transforms, so it brings the walk along. Its name for such a container of containers is **pytree**: inner nodes, and at the ends **leaves**.

# %%
leaves = jax.tree.leaves(model)
print(f"{len(leaves)} leaves, {sum(leaf.nbytes for leaf in leaves) / 2**20:.3f} MiB")
for name, part in model.items():
    print(f"{name:8s} {sum(leaf.nbytes for leaf in jax.tree.leaves(part)) / 2**20:.3f} MiB")

# %% [markdown]
# The table of words is to blame for more than half. As a part of a tree is a tree, one line answers for each part.
#
# ## Leaves and form
# `jax.tree.flatten` takes a tree apart into two things: a list of leaves, and all the rest, its **form** (`jax.tree.structure` gives that alone).

# %% [markdown] predict="pytrees-order"
# What is `jax.tree.leaves({"w": 1, "b": 2, "a": (3, None)})`?
#
# - [x] `[3, 2, 1]` | Right: sorted by key, and `None` has no leaves.
# - [ ] `[1, 2, 3]` | The order in which it was written, which Python's dicts keep. JAX sorts the keys, so that the order of writing does not matter.
# - [ ] `[3, None, 2, 1]` | Sorted by key, yes. But `None` counts as a container with nothing in it.

# %%
leaves, form = jax.tree.flatten({"w": 1, "b": 2, "a": (3, None)})
print(leaves, form)
print(jax.tree.unflatten(form, ["third", "second", "first"]))

# %% [markdown]
# In the form each `*` is the place of a leaf. `unflatten` puts any leaves into a form, as long as their number is right: a form knows nothing of what its leaves are.
#
# ![A tree drawn from its root: a dict with the keys a, b and w; a holds a tuple of 3 and None. Its leaves, 3, 2 and 1, stand in a row at the bottom, in the order of the sorted keys; None is an empty container and no leaf. To the right: flatten gives the list of leaves and the form, unflatten puts them together again.](../images/pytrees_flatten.svg)
#
# What is a container, and what is a leaf? Containers are dicts, `OrderedDict` and `defaultdict` among them, lists, tuples, named tuples, `None`, and classes that were registered, as you will do below. **Everything else is a leaf**, a `set` or a `deque` as well, whether JAX can compute with it or not.


# %%
class Range(NamedTuple):
    low: float
    high: float


odd = {
    "a named tuple": Range(0.0, 1.0),
    "empty containers": [[], {}, None, ()],
    "a string": "relu",
    "a set": {1, 2},
    "an OrderedDict": OrderedDict(w=1, b=2),
}
for what, tree in odd.items():
    print(f"{what:18s} {len(jax.tree.leaves(tree))} leaves: {jax.tree.leaves(tree)}")
refusal(lambda: jax.tree.leaves({"w": 1, 2: 3}))

# %% [markdown]
# (The last one has keys that cannot be sorted. An `OrderedDict` keeps its order: it asks for it. So a dict and an `OrderedDict` of the same content are two forms.) The form is a value that can be compared, and `jit` has it in its key:

# %% [markdown] predict="pytrees-traces"
# A jitted function is called with `{"a": 1., "b": 2.}`, `{"b": 2., "a": 1.}`, `[1., 2.]` and `(1., 2.)`. How often is it traced?
#
# - [ ] once | All four have the leaves 1 and 2. But the function sees containers, and could ask `isinstance(x, list)`.
# - [ ] twice | The two dicts have one form, yes. But a list and a tuple are two kinds of container.
# - [x] three times | Right: the two dicts have one form, the list and the tuple have their own.

# %%
traces = []
total = jax.jit(lambda tree: (traces.append(type(tree).__name__), sum(jax.tree.leaves(tree)))[1])
for tree in ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, [1.0, 2.0], (1.0, 2.0)):
    total(tree)
print("traced for", traces)

# %% [markdown]
# ## map: compute with a whole tree
# `jax.tree.map(f, tree)` calls `f` for every leaf and gives back a tree of the same form. With more than one tree, `f` gets the leaves that stand at the same place.

# %%
half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)
print("half the size:", sum(leaf.nbytes for leaf in jax.tree.leaves(half)) / 2**20, "MiB")

errors = jax.tree.map(lambda exact, rounded: float(jnp.sum((exact - rounded) ** 2)), model, half)
print("squared errors of the first layer:", errors["layers"][0])
print("norm of all errors:", jnp.sqrt(jax.tree.reduce(jnp.add, errors)))

# %% [markdown]
# Shapes are tuples, and you may want something for each of them:

# %% [markdown] predict="pytrees-shapes"
# Shapes stand in a dict. What does `jax.tree.map(jnp.zeros, {"w": (3, 2), "b": (2,)})` give?
#
# - [ ] under "w" a matrix of 3 rows and 2 columns, under "b" a vector of 2 | That was meant. But the leaves of this tree are 3, 2 and 2.
# - [x] under "w" two vectors, one of 3 and one of 2, under "b" one of 2 | Right, each in a tuple: a shape is a container, its numbers are the leaves. Nothing says so.
# - [ ] an error, as `jnp.zeros` is handed a 3 from inside a shape, and no shape | `jnp.zeros(3)` is fine: a vector of three.

# %%
shapes = {"w": (3, 2), "b": (2,)}
print("as it stands:", jax.tree.map(jnp.shape, jax.tree.map(jnp.zeros, shapes)))
zeros = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda node: isinstance(node, tuple))
print("with is_leaf:", jax.tree.map(jnp.shape, zeros))

# %% [markdown]
# `is_leaf` is asked at every node on the way down; where it says True, the walk stops. Most functions of `jax.tree` take it. Most mistakes with trees are of this kind: a container that was meant as a leaf, or the other way round.
#
# **Two trees that differ.** The messages name the place, so read them to the end:

# %%
gradient = {"w": jnp.ones(3), "b": jnp.ones(())}
refusal(lambda: jax.tree.map(jnp.add, {"w": jnp.ones(3)}, gradient))
refusal(lambda: jax.tree.map(jnp.add, {"w": jnp.ones(3), "b": None}, gradient))
refusal(lambda: jax.tree.map(jnp.add, {"layers": [1, 2]}, {"layers": (1, 2)}))

# %% [markdown]
# **The first tree leads.** The walk goes on until the *first* tree has a leaf; what the others have there, container or not, is handed over whole. So a small tree may stand for a large one, such as a learning rate for each part:

# %%
rates = {"words": 0.1, "layers": 1.0, "head": 1.0}
scaled = jax.tree.map(lambda rate, part: jax.tree.map(lambda leaf: rate * leaf, part), rates, model)
print("largest of the words:", model["words"].max(), "becomes", scaled["words"].max())
print("spread out:", jax.tree.broadcast(rates, model)["layers"][0])

# %% [markdown]
# The first tree is a **prefix** of the second. `in_axes` of `vmap` is one too, and so are shardings (16). In `in_axes`, `None` counts as a leaf: it means "not mapped".
#
# ## What is no array
# Real models hold more than arrays:

# %% [markdown] predict="pytrees-none"
# `layer = {"w": jnp.ones(3), "b": None, "name": "first"}`, and the loss uses `w` alone. What does `jax.grad` by `layer` do?
#
# - [x] it refuses, because of the name | Right: a string is a leaf, and no number. `None` would not have mattered.
# - [ ] it refuses, because of `None` | `None` has no leaves. It comes back as it is.
# - [ ] it gives a slope for `w` alone | A slope for each *leaf*, and the string is one.


# %%
def loss(layer, x):
    return jnp.sum((layer["w"] * x) ** 2)


layer = {"w": jnp.ones(3), "b": None, "name": "first"}
refusal(lambda: jax.grad(loss)(layer, 2.0))
refusal(lambda: jax.grad(loss)({"w": jnp.ones(3), "b": None, "step": 7}, 2.0))
print(jax.grad(loss)({"w": jnp.ones(3), "b": None}, 2.0))

# %% [markdown]
# `None` goes through everything, as there is nothing in it. `jit` refuses strings as well; an `int` it takes, and traces. There are three ways out: keep settings apart from parameters; part the tree before the transformation, with `None` in the gaps (an exercise); or give the settings a place in the form, which needs a class of your own, below.
#
# ## Names
# A path says where a leaf stands. `leaves_with_path` gives it as a tuple of keys, each of the kind of its container, and `keystr` makes text of it: as you would write it in Python, or simply.

# %%
for path, _ in jax.tree.leaves_with_path({"layers": [Range(0.0, 1.0)]}):
    print(path, jax.tree_util.keystr(path), jax.tree_util.keystr(path, simple=True, separator="."))

largest = sorted(jax.tree.leaves_with_path(model), key=lambda place: -place[1].nbytes)
for path, leaf in largest[:3]:
    print(f"{jax.tree_util.keystr(path):24s} {leaf.nbytes / 2**20:.3f} MiB, {leaf.dtype}{list(leaf.shape)}")

names = jax.tree.map_with_path(lambda path, _: jax.tree_util.keystr(path, simple=True, separator="."), model)
print(names["layers"][2])

# %% [markdown]
# `map_with_path` hands the path to your function, beside the leaf: here it made a tree of the same form that holds the names.
#
# ## A container of your own
# A model has parameters, and settings beside them. In Python that is a class.

# %% [markdown] predict="pytrees-class"
# `Plain` is a dataclass with a `w`, a `b` and the name of an activation. What does `jax.jit(lambda layer: layer.w)` do with a `Plain`?
#
# - [ ] it returns `w` | Without `jit` it would. `jit` first takes the argument apart into leaves that it can trace.
# - [ ] it refuses the string | It never gets to see it: nobody told JAX that there is something in the object.
# - [x] it refuses the object | Right: an object of a class that JAX does not know is one leaf, and no array.


# %%
@dataclass
class Plain:
    w: jax.Array
    b: jax.Array
    activation: str = "tanh"


plain = Plain(normal(4, 4), jnp.zeros(4))
print("leaves:", len(jax.tree.leaves(plain)), type(jax.tree.leaves(plain)[0]).__name__)
refusal(lambda: jax.jit(lambda layer: layer.w)(plain))

# %% [markdown]
# One line registers a dataclass. Its fields are **data**, the children in the tree; those declared with `jax.tree.static()` are **static**, and belong to the form:


# %%
@jax.tree_util.register_dataclass
@dataclass
class Dense:
    w: jax.Array
    b: jax.Array
    activation: str = jax.tree.static(default="tanh")

    def __call__(self, x):
        seen.append(self.activation)  # Python runs this only while it traces
        return getattr(jnp, self.activation)(self.w @ x + self.b)


seen, dense = [], Dense(normal(4, 4), jnp.zeros(4))
print("leaves:", jax.tree.map(jnp.shape, jax.tree.leaves(dense)))
print("form:  ", jax.tree.structure(dense))

# %% [markdown]
# ![A Dense object with w, b and activation. w and b are data: they go into the list of leaves, become tracers, and have slopes and batch axes. activation is static: it goes into the form, which jit has in its key; Python can read it while it traces, and another value is another trace.](../images/pytrees_static.svg)

# %% [markdown] predict="pytrees-static"
# A jitted call of `Dense` is made five times: as it is, with other weights, with "sin", with "tanh" again, with "sin" and other weights. How often is it traced?
#
# - [ ] once | The weights are traced values, but the activation is not: Python needs its name to look the function up.
# - [x] twice | Right: one form with "tanh", one with "sin". Both are kept.
# - [ ] five times | A new object is no reason: not the object is in the key, but its form and the shapes of its leaves.

# %%
forward = jax.jit(lambda layer, x: layer(x))
more = jax.tree.map(lambda leaf: leaf + 1, dense)  # a Dense again
sine = Dense(dense.w, dense.b, "sin")
for layer in (dense, more, sine, Dense(more.w, more.b, "tanh"), Dense(more.w, more.b, "sin")):
    forward(layer, jnp.ones(4))
print("traced for", seen)

slope = jax.grad(lambda layer: jnp.sum(layer(jnp.ones(4))))(dense)
print("the gradient is a", type(slope).__name__, "with", slope.activation)
ensemble = jax.vmap(lambda shift: jax.tree.map(lambda leaf: leaf + shift, dense))(jnp.arange(3.0))
print("vmap returns one with leaves", jax.tree.map(jnp.shape, jax.tree.leaves(ensemble)))
refusal(lambda: jax.tree.map(jnp.add, dense, sine))

# %% [markdown]
# The gradient is a `Dense`, three layers at once are a `Dense`, and two layers with different activations are never mixed up. Optimizer states (09) and Flax modules (10) are containers in the same way.
#
# A class that is no dataclass, such as one that others wrote, is registered with two functions: one takes an object apart into keys with children and what is static, one builds it again. (Where the constructor takes all attributes by name, `register_dataclass` does it too, given their names: the data as `data_fields`, what is static as `meta_fields`.)

# %%
apart = lambda box: ([(jax.tree_util.GetAttrKey("w"), box.w)], box.by)  # pairs of key and child; what is static
together = lambda by, children: SimpleNamespace(w=children[0], by=by)
jax.tree_util.register_pytree_with_keys(SimpleNamespace, apart, together)
print(jax.tree.leaves_with_path(SimpleNamespace(w=1.5, by="ten")), jax.tree.structure(SimpleNamespace(w=1.5, by="ten")))

# %% [markdown]
# ## What goes wrong with classes
# **What changes is static.** A counter of steps is an int, and looks like a setting. It is in the key, and every step is compiled anew. Measure both ways, compiling included:


# %%
@jax.tree_util.register_dataclass
@dataclass
class Counted:
    w: jax.Array
    static_step: int = jax.tree.static(default=0)
    step: int = 0


for name in ("static_step", "step"):
    advance = jax.jit(lambda state: state.w * 0.99 ** (state.static_step + state.step))
    start = time.perf_counter()
    for i in range(10):
        jax.block_until_ready(advance(Counted(dense.w, **{name: i})))
    print(f"10 steps, counted in {name:12s} {1e3 * (time.perf_counter() - start):7.1f} ms")

# %% [markdown]
# **An array is static.** A form has to be compared with another one, and two arrays do not compare to one truth. The first call may even pass:


# %%
@jax.tree_util.register_dataclass
@dataclass
class Masked:
    w: jax.Array
    mask: np.ndarray = jax.tree.static()


apply_mask = jax.jit(lambda layer: layer.w * layer.mask)
print(apply_mask(Masked(jnp.ones(3), np.array([1, 0, 1]))))
refusal(lambda: apply_mask(Masked(jnp.ones(3), np.array([1, 0, 1]))))

# %% [markdown]
# **The constructor is strict.** JAX builds your objects itself, and its idea of a field is wider than yours: a tracer, one example out of a batch, a shape, `0` in `in_axes`, a string after a `map`. So check and convert in a function that makes objects, not in `__init__` or `__post_init__`:


# %%
@jax.tree_util.register_dataclass
@dataclass
class Strict:
    rows: jax.Array

    def __post_init__(self):
        if self.rows.ndim != 2:
            raise ValueError(f"rows need two axes, and have {self.rows.ndim}")


strict = Strict(jnp.ones((3, 2)))
print(jax.jit(lambda strict: strict.rows.sum())(strict))
refusal(lambda: jax.vmap(lambda strict: strict.rows.sum())(strict))

# %% [markdown]
# **One array in two places** is two leaves. Weights that are shared by identity are so no longer after the first `map`: each place has its copy, its bytes, and its own part of the gradient. Store it once, and use it twice in the function.

# %%
table = normal(1000, 64)
tied = {"into": table, "out": table}
moved = jax.tree.map(lambda leaf: leaf * 1.0, tied)
print("one object before:", tied["into"] is tied["out"], " after a map:", moved["into"] is moved["out"])
slopes = jax.grad(lambda tree: jnp.sum(tree["into"] @ tree["out"][:64]))(tied)
print("one gradient for both:", bool(jnp.allclose(slopes["into"], slopes["out"])))

# %% [markdown]
# ## Few large arrays, or many small ones
# `jit` takes its arguments apart at each call.

# %% [markdown] predict="pytrees-leaves-cost"
# A jitted function adds 1 to 100,000 numbers. They come as 1 array, or as 1,000 arrays of 100. The second takes …
#
# - [x] many times as long | Right: each array is an object of its own, checked and handed over one by one. With arrays so small that is nearly all of the time.
# - [ ] about twice as long | More than that. Look at how it grows with the leaves.
# - [ ] about equally long | The numbers are as many. But each array is an object of its own.

# %%
add_one = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree))
for n, size in ((1, 100_000), (10, 10_000), (100, 1_000), (1_000, 100), (1_000, 1)):
    tree = [jnp.ones(size) for _ in range(n)]
    jax.block_until_ready(add_one(tree))  # compile, and warm up
    best = min(timeit.repeat(lambda: jax.block_until_ready(add_one(tree)), number=1, repeat=30))
    print(f"{n:5d} leaves of {size:6d}: {1e3 * best:7.3f} ms a call")

# %% [markdown]
# For small arrays the time is that of the leaves: a thousand of one number each take about as long as a thousand of a hundred. Where that weighs, layers of one form are kept as **one** layer whose leaves have an axis more, or many steps run in one program (08, 09).
#
# ## Trees with an axis more
# Above, `vmap` made one tree of three layers, with a leading axis in each leaf, and it takes such a tree. Indexing goes through `map`:

# %%
one = jax.tree.map(lambda leaf: leaf[1], ensemble)
average = jax.tree.map(lambda leaf: leaf.mean(axis=0), ensemble)
print("the middle one is the average:", jax.tree.map(lambda a, b: bool(jnp.allclose(a, b)), one, average))
print("all three on one input:", jax.vmap(lambda layer, x: layer(x), in_axes=(0, None))(ensemble, jnp.ones(4)).shape)

# %% [markdown]
# And one axis in all: `ravel_pytree` lays all leaves behind each other in one vector, and gives the way back. That is for tools that know vectors only, SciPy's optimizers or the Hessian as one matrix:

# %%
vector, unravel = ravel_pytree(dense)
curvature = jax.hessian(lambda vector: jnp.sum(unravel(vector)(jnp.ones(4)) ** 2))(vector)
print("vector", vector.shape, " Hessian", curvature.shape, " and back:", jax.tree.structure(unravel(vector)))

# %% [markdown]
# ## Trees of shapes
# `jax.eval_shape` runs a function on shapes alone and gives back its result's tree, with a `jax.ShapeDtypeStruct` for each array. So you can ask about a model before there is one:

# %%
plan = jax.eval_shape(lambda: {"w": jnp.ones((1_000_000, 1_000_000)), "b": jnp.zeros(1_000_000)})
print(plan)
print(f"{sum(leaf.size for leaf in jax.tree.leaves(plan)):,} parameters, none of them made")

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | all arrays, in order; how many, how large | `jax.tree.leaves(tree)`, then Python |
# | leaves and form, and back; the form alone | `jax.tree.flatten`, `jax.tree.unflatten`; `jax.tree.structure` |
# | something for each leaf, of one tree or several; one result of all | `jax.tree.map(f, tree, …)`; `jax.tree.reduce(f, tree)` |
# | a container to count as a leaf | `is_leaf=…` |
# | one value for a whole part | a prefix as the first tree, `jax.tree.broadcast` |
# | names | `jax.tree.leaves_with_path`, `jax.tree.map_with_path`, `jax.tree_util.keystr` |
# | a class as a container | `@jax.tree_util.register_dataclass`, settings with `jax.tree.static()` |
# | one vector of everything | `jax.flatten_util.ravel_pytree` |
# | shapes without arrays | `jax.eval_shape` |
# | to know whether it is data or static | data changes and is computed with; static is what Python reads while it traces |
#
# ## What it became
#
# | in older code, or elsewhere | now |
# |---|---|
# | `jax.tree_map`, `jax.tree_util.tree_multimap`, `jax.tree_leaves` | gone: `jax.tree.map`, `jax.tree.leaves`; `jax.tree_util.tree_map` is still there |
# | `dataclasses.field(metadata=dict(static=True))` | `jax.tree.static()` says the same |
# | `@register_pytree_node_class` | works; knows no names. `register_dataclass`, or `register_pytree_with_keys` |
# | `flax.struct.dataclass`, `chex.dataclass`, `flax.traverse_util` | work; a registered dataclass and paths do the same without them |
# | `model.state_dict()` (PyTorch) | the tree itself; as flat names: an exercise |
#
# Next: the exercises. The first has one line missing.
