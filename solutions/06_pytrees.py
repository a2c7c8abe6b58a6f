# %% [markdown]
# # 06 · Exercises: pytrees
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The **structure** of a pytree is everything except its leaves: the types of its containers, their keys and lengths, their static fields, and the places of `None`. `jax.tree.structure` returns it as a treedef.

# %% setup
from grader.checks import ask, compare, counted, error, inputs, program, require
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


class Layer(NamedTuple):
    """The parameters of one layer. A named tuple is a container whose keys are the names of its fields."""

    w: jax.Array  # (k, d)
    b: jax.Array  # (k,)


# Functions of a leaf, by name.
CHANGES = {
    "double": lambda leaf: 2 * leaf,
    "negate": lambda leaf: -leaf,
    "zero": lambda leaf: jnp.zeros_like(leaf),
}


def is_float(leaf):
    """Whether a leaf is an array of floats."""
    return isinstance(leaf, np.ndarray | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)


def network_loss(model, x, y):
    """Squared error of a model on one example: {"layers": [Layer, Layer], "activation": str, ...}, x (d,), y () -> ()"""
    first, second = model["layers"]
    hidden = getattr(jnp, model["activation"])(first.w @ x + first.b)
    return ((second.w @ hidden + second.b)[0] - y) ** 2


def point_class():
    """Returns a new class of points, which is not registered."""

    class Point:
        """x and y, float32 arrays of the same shape, and their unit, such as "m"."""

        def __init__(self, x, y, unit):
            self.x, self.y, self.unit = x, y, unit

    return Point


METRES = {"m": 1.0, "km": 1000.0, "ft": 0.3048}


def metres_walked(point):
    """The distance to each point in metres, first along x and then along y, with the shape of x."""
    return METRES[point.unit] * (point.x + point.y)


# %% [markdown] task="pytrees-bytes" stars=1 minutes=8 skills="01_arrays,06_pytrees"
# ## The size of a model that does not exist
# **Goal.** How much memory will the parameters of a model take? Compute this number for a model of arrays, and also for a model that is only described by its shapes and dtypes. One line is missing.
#
# **Signature.** `tree_bytes(tree)`. `tree` is any pytree. Its leaves are JAX or NumPy arrays, or `jax.ShapeDtypeStruct` objects, which have a shape and a dtype but no numbers. Returns one number, the total bytes of all leaves.
#
# **Example.** `{"w": (3, 4) of float32, "b": (4,) of bfloat16}` takes 12 · 4 + 4 · 2 = 56 bytes, as arrays and as shapes.
#
# **Judged.** The number, for many dtypes and containers. No array may be created, because the shapes can describe petabytes. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Create `jax.ShapeDtypeStruct((3, 4), jnp.float32)` and look at its attributes (type a dot, then press Tab). Which of them does an array have too?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# An array has the attribute `nbytes`, and a `ShapeDtypeStruct` does not. But both have a number of elements and a dtype.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A NumPy dtype has an `itemsize`, the bytes of one element. Add to the total instead of replacing it.
#
# </details>


# %% answer="pytrees-bytes"
def tree_bytes(tree):
    """Returns the bytes of all leaves of a tree, which are arrays or objects of jax.ShapeDtypeStruct."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        ### BEGIN SOLUTION
        total += leaf.size * leaf.dtype.itemsize
        ### END SOLUTION
    return total


# %% check="pytrees-bytes" name="example" points=1
"""The example, as arrays and as shapes."""
arrays = {"w": np.ones((3, 4), np.float32), "b": jnp.ones(4, jnp.bfloat16)}
shapes = {"w": jax.ShapeDtypeStruct((3, 4), jnp.float32), "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16)}
for what, tree in (("the arrays", arrays), ("the shapes", shapes)):
    got = ask(tree_bytes, tree)
    require(
        isinstance(got, int | float | np.number | jax.Array) and np.shape(got) == (),
        f"For {what}, the result is a {type(got).__name__} instead of a number.",
    )
    require(got == 56, f"For {what} of the example, the result is {got}, but should be 56.")

# %% hidden="pytrees-bytes" name="values" points=1
"""The number is correct for arrays of any dtype in any containers."""
rng = inputs.rng()
n, m = (int(size) for size in rng.integers(2, 9, size=2))
trees = {
    "float32 alone": (4 * n * m, {"w": np.ones((n, m), np.float32)}),
    "several leaves": (8 * n + 4, [jnp.ones(n), (jnp.ones(n), {"step": jnp.int32(3)})]),
    "16 bits": (2 * n + 2 * m, Layer(jnp.ones((1, n), jnp.bfloat16), np.ones(m, np.float16))),
    "bool and int8": (n + m, {"mask": np.ones(n, bool), "codes": np.ones(m, np.int8)}),
    "float64 and complex64": (8 * n + 8 * m, [np.ones(n), np.ones(m, np.complex64)]),
    "None and empty arrays": (4 * n, {"b": None, "nothing": np.ones((0, m), np.float32), "w": jnp.ones((n, 1))}),
    "numbers without axes": (12, {"b": jnp.float32(1), "s": [np.float32(2), np.int32(1)]}),
    "an empty tree": (0, {"a": [], "b": None}),
}
for what, (wanted, tree) in trees.items():
    raised = error(tree_bytes, tree)
    require(raised is None, f"For a tree with {what}, your answer raised {raised}.", kind="raised")
    got = ask(tree_bytes, tree)
    number = isinstance(got, int | float | np.number | jax.Array) and np.shape(got) == ()
    require(number and int(got) == wanted, f"The number is wrong for a tree with {what}.")

# %% hidden="pytrees-bytes" name="shapes" points=2
"""The number is correct for shapes of petabytes, and no array is created."""
k = int(inputs.rng().integers(1, 100))
huge = {"table": jax.ShapeDtypeStruct((1024,) * 4, jnp.float32)}
huge["head"] = Layer(jax.ShapeDtypeStruct((2**44, k), jnp.bfloat16), jax.ShapeDtypeStruct((2**44,), jnp.int8))
small = Layer(jax.ShapeDtypeStruct((k, 2), jnp.float16), jax.ShapeDtypeStruct((), jnp.float32))
table = {"table": huge["table"]}
cases = (("a few shapes", 4 * k + 4, small), ("a shape of 4 TiB", 2**42, table))
for what, wanted, tree in (*cases, ("shapes of petabytes", 2**42 + (2 * k + 1) * 2**44, huge)):
    raised = error(tree_bytes, tree)
    require(
        raised != "OverflowError",
        f"For {what}, your answer raised OverflowError, because a size exceeds the 32 bits of JAX's integers. "
        "Count with Python integers, which have no limit.",
    )
    require(
        raised is None,
        f"For {what}, your answer raised {raised}. Shapes contain no numbers, and no array may be created. Count with "
        "`.shape` or `.size`, and `.dtype`.",
    )
    got = ask(tree_bytes, tree)
    number = isinstance(got, int | float | np.number | jax.Array) and np.shape(got) == ()
    require(
        number and int(got) == wanted,
        f"The number is wrong for {what}."
        + " Python integers have no limit, and JAX integers have 32 bits." * (tree is not small),
    )

# %% [markdown] why="pytrees-bytes"
# `jax.tree.leaves` flattens any container, and the shape and the dtype of an array determine its size. `jax.eval_shape` returns such a pytree of shapes for any function, including one that creates a model. **Next:** Which of your numbers would change if you also counted the optimizer state?


# %% wrong="pytrees-bytes" because="Reads `nbytes` of each leaf, which an array has and a ShapeDtypeStruct does not."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += leaf.nbytes
    return total


# %% wrong="pytrees-bytes" because="Creates an array of each shape to measure it, and so requests 4 TiB."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += jnp.zeros(leaf.shape, leaf.dtype).nbytes
    return total


# %% wrong="pytrees-bytes" because="Counts elements instead of bytes."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += leaf.size
    return total


# %% wrong="pytrees-bytes" because="Assumes 4 bytes for each element, whatever the dtype."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += 4 * leaf.size
    return total


# %% wrong="pytrees-bytes" because="Replaces the total at every leaf, so only the last leaf is counted."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total = leaf.size * leaf.dtype.itemsize
    return total


# %% wrong="pytrees-bytes" because="Multiplies with jnp.prod, whose 32-bit integers overflow for large shapes."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += int(jnp.prod(jnp.array(leaf.shape, jnp.int32))) * leaf.dtype.itemsize
    return total


# %% wrong="pytrees-bytes" because="Creates a NumPy array of each shape to read its `nbytes`, but there is no memory for 4 TiB."
def tree_bytes(tree):
    return sum(np.zeros(leaf.shape, leaf.dtype).nbytes for leaf in jax.tree.leaves(tree))


# %% wrong="pytrees-bytes" because="Uses finfo for the bits of an element, which accepts only float dtypes and rejects integers and booleans."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += leaf.size * jnp.finfo(leaf.dtype).bits // 8
    return total


# %% wrong="pytrees-bytes" because="Reads the number of bits from finfo or iinfo, which reject bool."
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            bits = jnp.finfo(leaf.dtype).bits
        else:
            bits = jnp.iinfo(leaf.dtype).bits
        total += leaf.size * bits // 8
    return total


# %% right="pytrees-bytes"
def tree_bytes(tree):
    total = 0
    for leaf in jax.tree.leaves(tree):
        total += math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
    return total


# %% right="pytrees-bytes"
def tree_bytes(tree):
    sizes = jax.tree.map(lambda leaf: np.prod(leaf.shape) * leaf.dtype.itemsize, tree)
    return jax.tree.reduce(lambda one, other: one + other, sizes, 0)


# %% [markdown] task="pytrees-transpose" stars=1 minutes=10 skills="03_jit,06_pytrees,pytrees-bytes"
# ## A list of dicts, a dict of lists
# **Goal.** A training loop returns a list with a container of metrics for each step. For a plot, you want *one* container whose arrays hold all steps. The same operation combines a list of models into one ensemble.
#
# **Signature.** `transpose_trees(trees)`. `trees` is a list of n pytrees of the same structure, with n at least 1. Their leaves are arrays or Python numbers, and leaves at the same place have the same shape and dtype. Returns one pytree of this structure. Each leaf is a JAX array that contains the n leaves in order, stacked along a new axis 0.
#
# **Example.** `[{"loss": 2.0, "hits": [1, 0]}, {"loss": 1.5, "hits": [1, 1]}]` gives `{"loss": [2.0, 1.5], "hits": [[1, 1], [0, 1]]}`. The inner list of hits is a container, so each of its two numbers becomes an array of two steps.
#
# **Judged.** Structure, values and dtypes, also under `jit`. Pytrees of different structures must raise an exception. **Not judged.** The type of the exception.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.tree.map(f, a, b)` calls `f` with two leaves from the same place. How would you call it with three pytrees?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The argument is a list of pytrees. A list is a container too, so if you map over it, it becomes part of the structure. Pass its items as separate arguments, with a star.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# A function can accept any number of arguments, as in `lambda *leaves: ...`. These are the n leaves at one place, and `jnp.stack` combines them.
#
# </details>


# %% answer="pytrees-transpose"
def transpose_trees(trees):
    """Converts a list of n trees of the same structure to one tree, each of whose leaves stacks n leaves."""
    ### BEGIN SOLUTION
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    ### END SOLUTION


# %% check="pytrees-transpose" name="example" points=1
"""The example: two steps."""
steps = [{"loss": 2.0, "hits": [1, 0]}, {"loss": 1.5, "hits": [1, 1]}]
wanted = {"loss": np.array([2, 1.5], np.float32), "hits": [np.array([1, 1], np.int32), np.array([0, 1], np.int32)]}
got = ask(transpose_trees, steps)
compare(got, wanted)
are_jax = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))
require(are_jax, "The leaves of the result are not JAX arrays. Did you stack them with NumPy?")

# %% hidden="pytrees-transpose" name="values" points=1
"""The result is correct under jit for nested containers of arrays, with their dtypes, and for a single tree."""


def draw(rng):
    w, b = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=4).astype(np.float16)
    return {"net": [Layer(w, None), Layer(w.T, b)], "step": np.int32(rng.integers(9)), "ok": rng.uniform(size=4) < 0.5}


for n in (4, 1):
    trees = [draw(inputs.rng()) for _ in range(n)]
    pick = lambda get: np.stack([get(tree) for tree in trees])
    wanted = {
        "net": [
            Layer(pick(lambda tree: tree["net"][0].w), None),
            Layer(pick(lambda tree: tree["net"][1].w), pick(lambda tree: tree["net"][1].b)),
        ],
        "step": pick(lambda tree: tree["step"]),
        "ok": pick(lambda tree: tree["ok"]),
    }
    raised = error(lambda trees: jax.jit(transpose_trees)(trees), trees)
    require(
        raised is None,
        "Under jit, a NumPy function received a tracer, which contains no numbers. Stack with `jnp`."
        if raised == "TracerArrayConversionError"
        else f"For {n} tree{'s' * (n > 1)} of nested containers, your answer raised {raised} under jit.",
        kind="raised",
    )
    compare(program(transpose_trees, trees).run(trees), wanted, label=f"the result for {n} tree{'s' * (n > 1)}")

# %% hidden="pytrees-transpose" name="refused" points=1
"""Rejects trees of different structures."""
x, y = inputs.rng().normal(size=(2, 3)).astype(np.float32)
got = ask(transpose_trees, [{"a": x}, {"a": y}])
compare(got, {"a": np.stack([x, y])}, label="the result for two trees of the same structure")
pairs = {
    "other keys": [{"a": x, "b": y}, {"a": x, "c": y}],
    "an additional key in the first": [{"a": x, "b": y}, {"a": x}],
    "an additional key in the second": [{"a": x}, {"a": x, "b": y}],
    "a list and a tuple": [[x, y], (x, y)],
    "another nesting": [[x, [y, x]], [[x, y], x]],
}
pairs["a list of numbers in place of an array"] = [{"a": x}, {"a": [1.0, 2.0, 3.0]}]
pairs["the third of three"] = [{"a": x}, {"a": y}, {"b": x}]
pairs["the second of three"] = [{"a": x}, {"b": y}, {"a": x}]
for what, trees in pairs.items():
    require(
        error(transpose_trees, trees) is not None,
        f"Trees with different structures ({what}) were not rejected. Leaves of only one tree would be lost, or leaves "
        "from different places would be combined.",
    )

# %% [markdown] why="pytrees-transpose"
# `jax.tree.map` walks through all pytrees together and compares their structures. This is safer than several lists of leaves, which are matched only by position. **Next:** How do you extract pytree i from the result? What does `jax.vmap` over the result do?


# %% wrong="pytrees-transpose" because="Maps over the list without a star. The list is then part of the structure, and each leaf is stacked alone."
def transpose_trees(trees):
    return jax.tree.map(jnp.stack, trees)


# %% wrong="pytrees-transpose" because="Handles only one level of a dict, so stack receives the containers below it."
def transpose_trees(trees):
    return {key: jnp.stack([tree[key] for tree in trees]) for key in trees[0]}


# %% wrong="pytrees-transpose" because="Collects the leaves into lists, which are containers and not arrays."
def transpose_trees(trees):
    return jax.tree.map(lambda *leaves: list(leaves), *trees)


# %% wrong="pytrees-transpose" because="Joins the arrays along an existing axis instead of stacking them along a new one."
def transpose_trees(trees):
    return jax.tree.map(lambda *leaves: jnp.concatenate([jnp.atleast_1d(leaf) for leaf in leaves]), *trees)


# %% wrong="pytrees-transpose" because="Stacks with NumPy and corrects the dtypes. The leaves are not JAX arrays, and under jit NumPy receives a tracer."
def transpose_trees(trees):
    def stack(*leaves):
        stacked = np.stack(leaves)
        return stacked.astype(jax.dtypes.canonicalize_dtype(stacked.dtype))

    return jax.tree.map(stack, *trees)


# %% wrong="pytrees-transpose" because="Stacks with NumPy and converts the result to a JAX array. Under jit, NumPy receives a tracer."
def transpose_trees(trees):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


# %% wrong="pytrees-transpose" because="Uses hstack, which stacks numbers but joins arrays along an existing axis."
def transpose_trees(trees):
    return jax.tree.map(lambda *leaves: jnp.hstack(leaves), *trees)


# %% wrong="pytrees-transpose" because="Compares the structures of the first and the last tree only."
def transpose_trees(trees):
    form = jax.tree.structure(trees[0])
    if jax.tree.structure(trees[-1]) != form:
        raise ValueError("the trees differ")
    columns = zip(*map(jax.tree.leaves, trees), strict=True)
    return jax.tree.unflatten(form, [jnp.stack(column) for column in columns])


# %% wrong="pytrees-transpose" because="Stacks along the last axis instead of the first."
def transpose_trees(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=-1), *trees)


# %% wrong="pytrees-transpose" because="Combines leaves by position and assumes the structure of the first tree, so a different structure is not noticed."
def transpose_trees(trees):
    columns = zip(*(jax.tree.leaves(tree) for tree in trees), strict=True)
    return jax.tree.unflatten(jax.tree.structure(trees[0]), [jnp.stack(column) for column in columns])


# %% wrong="pytrees-transpose" because="Stacks with jnp.array, which also accepts a list where the first tree has an array, so such a structure is not rejected."
def transpose_trees(trees):
    return jax.tree.map(lambda *leaves: jnp.array(leaves), *trees)


# %% right="pytrees-transpose"
def transpose_trees(trees):
    form = jax.tree.structure(trees[0])
    if any(jax.tree.structure(tree) != form for tree in trees):
        raise ValueError("the trees differ in form")
    columns = zip(*map(jax.tree.leaves, trees), strict=True)
    return jax.tree.unflatten(form, [jnp.array(column) for column in columns])


# %% right="pytrees-transpose"
def transpose_trees(trees):
    form = jax.tree.structure(trees[0])
    rows = [form.flatten_up_to(tree) for tree in trees]
    return form.unflatten(map(jnp.stack, zip(*rows, strict=True)))


# %% [markdown] task="pytrees-rates" stars=2 minutes=12 skills="01_arrays,06_pytrees,pytrees-transpose"
# ## A learning rate for each part
# **Goal.** Update a model by one step of gradient descent in which each part has its own learning rate. For example, the rate is zero for the embedding, small for the layers and large for the head. A part can be a single array or half of the model.
#
# **Signature.** `step_by_parts(rates, params, gradients)`. `params` is a pytree of float arrays of any dtype, and `gradients` has the same structure, shapes and dtypes. `rates` is a prefix of `params`. It has the containers of `params`, but may end earlier, with a float32 number `()` that applies to everything below. Returns the new parameters `p - rate * g`, with the structure and the dtypes of `params`.
#
# **Example.** `rates = {"embed": 0.0, "head": 0.5}`, `params = {"embed": 1.0, "head": Layer(w=2.0, b=3.0)}` and gradients that are 1 everywhere give `{"embed": 1.0, "head": Layer(w=1.5, b=2.5)}`.
#
# **Judged.** Values, structure and dtypes, for prefixes of every depth, from a single number for the whole model to one for each leaf. **Not judged.** The last digit of 16-bit numbers.
#
# <details><summary>Hint 1 · a question</summary>
#
# In `jax.tree.map(f, first, second)`, which pytree decides where the walk stops? What does `f` receive from the other one?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# If `rates` comes first, your function receives one rate and two *containers* of the same structure. Alternatively, repeat the rates for each leaf before you start.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Nest two maps. The outer one is over `rates`, `params` and `gradients`, and the inner one over the two containers that it receives. A float32 rate converts 16-bit parameters to float32, so convert the result back with `.astype(p.dtype)`.
#
# </details>


# %% answer="pytrees-rates"
def step_by_parts(rates, params, gradients):
    """Returns p - rate * g for each parameter. rates is a prefix of params, gradients has the same structure."""

    ### BEGIN SOLUTION
    def step(rate, part, grads):
        return jax.tree.map(lambda p, g: (p - rate * g).astype(p.dtype), part, grads)

    return jax.tree.map(step, rates, params, gradients)
    ### END SOLUTION


# %% check="pytrees-rates" name="example" points=1
"""The example: two rates for three parameters."""
rates = {"embed": np.float32(0), "head": np.float32(0.5)}
params = {"embed": np.float32(1), "head": Layer(np.float32(2), np.float32(3))}
ones = {"embed": np.float32(1), "head": Layer(np.float32(1), np.float32(1))}
wanted = {"embed": np.float32(1), "head": Layer(np.float32(1.5), np.float32(2.5))}
compare(program(step_by_parts, rates, params, ones).run(rates, params, ones), wanted, label="the new parameters")

# %% hidden="pytrees-rates" name="prefixes" points=2
"""The new parameters are correct for prefixes of every depth."""


def draw(rng):
    layer = lambda: Layer(rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=2).astype(np.float32))
    return {"embed": rng.normal(size=4).astype(np.float32), "layers": [layer(), layer()], "none": None}


def stepped(one, other, rate):
    return Layer(one.w - rate[0] * other.w, one.b - rate[1] * other.b)


rng = inputs.rng()
a, b, c, d, e = rng.uniform(0.5, 2, size=5).astype(np.float32)
# The rates, and the rate that each gives for embed, and for w and b of both layers.
prefixes = {
    "a number for each part": ({"embed": a, "layers": b, "none": None}, a, (b, b), (b, b)),
    "a number for each layer": ({"embed": a, "layers": [b, c], "none": None}, a, (b, b), (c, c)),
    "a number for one layer, and two for the other": (
        {"embed": a, "layers": [b, Layer(c, d)], "none": None},
        a,
        (b, b),
        (c, d),
    ),
    "a number for each array": ({"embed": a, "layers": [Layer(b, c), Layer(d, e)], "none": None}, a, (b, c), (d, e)),
    "one number for the whole model": (a, a, (a, a), (a, a)),
}
for what, (rates, embed, first, second) in prefixes.items():
    params, gradients = draw(rng), draw(rng)
    arrays = jax.tree.map(jnp.asarray, (params, gradients))
    raised = error(step_by_parts, rates, *arrays)
    require(raised is None, f"Where `rates` has {what}, your answer raised {raised}.")
    got = ask(step_by_parts, rates, *arrays)
    pairs = zip(params["layers"], gradients["layers"], (first, second), strict=True)
    wanted = {
        "embed": params["embed"] - embed * gradients["embed"],
        "layers": [stepped(one, other, rate) for one, other, rate in pairs],
        "none": None,
    }
    compare(got, wanted, label=f"the result ({what})")
like = lambda: {"head": rng.normal(size=3).astype(np.float32), "head2": [rng.normal(size=2).astype(np.float32)]}
params, gradients, rates = like(), like(), {"head": a, "head2": b}
wanted = {
    "head": params["head"] - a * gradients["head"],
    "head2": [params["head2"][0] - b * gradients["head2"][0]],
}
got = ask(step_by_parts, rates, *jax.tree.map(jnp.asarray, (params, gradients)))
compare(got, wanted, label="the result for the keys `head` and `head2`")

# %% hidden="pytrees-rates" name="dtypes" points=1
"""Parameters with 16 bits keep their dtype."""
rng = inputs.rng()
p, g = rng.normal(size=(2, 2, 3)).astype(np.float32)
rates = {"half": np.float32(0.5), "brain": np.float32(0.25), "full": np.float32(2)}
forms = {"half": np.float16, "brain": jnp.bfloat16, "full": np.float32}
params, gradients = ({name: [jnp.asarray(x, dtype)] for name, dtype in forms.items()} for x in (p, g))
got = program(step_by_parts, rates, params, gradients).run(rates, params, gradients)
wanted = {name: [(p - rates[name] * g).astype(dtype)] for name, dtype in forms.items()}
compare(got, wanted, atol=0.05, label="the new parameters")

# %% [markdown] why="pytrees-rates"
# The first pytree decides where `map` stops. At a leaf of `rates`, the function receives whole parts of the other pytrees, and each part is a pytree too. `in_axes` and shardings are prefixes in the same way. **Next:** Optax (lesson 09) accepts labels instead of rates, such as "frozen" and "fast". Why are labels better if each part needs its own optimizer?


# %% wrong="pytrees-rates" because="Assumes that every rate meets an array. Where the prefix ends early, it meets a container."
def step_by_parts(rates, params, gradients):
    return jax.tree.map(lambda rate, p, g: (p - rate * g).astype(p.dtype), rates, params, gradients)


# %% wrong="pytrees-rates" because="Passes the parameters first, so the walk continues below the leaves of the rates."
def step_by_parts(rates, params, gradients):
    return jax.tree.map(lambda p, rate, g: (p - rate * g).astype(p.dtype), params, rates, gradients)


# %% wrong="pytrees-rates" because="Uses one rate for each top-level key, so deeper prefixes and a single number do not work."
def step_by_parts(rates, params, gradients):
    new = {}
    for key in params:
        new[key] = jax.tree.map(lambda p, g: (p - rates[key] * g).astype(p.dtype), params[key], gradients[key])
    return new


# %% wrong="pytrees-rates" because="Rebuilds a named tuple like a list, but its constructor takes one argument for each field."
def step_by_parts(rates, params, gradients):
    if isinstance(rates, dict):
        return {key: step_by_parts(rates[key], params[key], gradients[key]) for key in rates}
    if isinstance(rates, list | tuple):
        return type(rates)(step_by_parts(*parts) for parts in zip(rates, params, gradients, strict=True))
    return jax.tree.map(lambda p, g: (p - rates * g).astype(p.dtype), params, gradients)


# %% wrong="pytrees-rates" because="Adds the gradient instead of subtracting it, which increases the loss."
def step_by_parts(rates, params, gradients):
    def step(rate, part, grads):
        return jax.tree.map(lambda p, g: (p + rate * g).astype(p.dtype), part, grads)

    return jax.tree.map(step, rates, params, gradients)


# %% wrong="pytrees-rates" because="Leaves the dtype to promotion, so a float32 rate converts 16-bit parameters to float32."
def step_by_parts(rates, params, gradients):
    def step(rate, part, grads):
        return jax.tree.map(lambda p, g: p - rate * g, part, grads)

    return jax.tree.map(step, rates, params, gradients)


# %% wrong="pytrees-rates" because="Returns the steps without the parameters to which they should be added."
def step_by_parts(rates, params, gradients):
    def step(rate, grads):
        return jax.tree.map(lambda g: (-rate * g).astype(g.dtype), grads)

    return jax.tree.map(step, rates, gradients)


# %% wrong="pytrees-rates" because="Converts all results to the dtype of the first leaf, which is wrong for mixed dtypes."
def step_by_parts(rates, params, gradients):
    dtype = jax.tree.leaves(params)[0].dtype

    def step_part(rate, part, grads):
        return jax.tree.map(lambda p, g: (p - rate * g).astype(dtype), part, grads)

    return jax.tree.map(step_part, rates, params, gradients)


# %% wrong="pytrees-rates" because="Rebuilds a named tuple as a plain tuple."
def step_by_parts(rates, params, gradients):
    if isinstance(rates, dict):
        return {name: step_by_parts(rates[name], params[name], gradients[name]) for name in rates}
    if isinstance(rates, list | tuple):
        parts = [step_by_parts(*three) for three in zip(rates, params, gradients, strict=True)]
        return parts if isinstance(rates, list) else tuple(parts)
    return jax.tree.map(lambda p, g: (p - rates * g).astype(p.dtype), params, gradients)


# %% wrong="pytrees-rates" because="Finds a rate by the beginning of a name, so `head` also matches `head2`."
def step_by_parts(rates, params, gradients):

    def name_of(path):
        return jax.tree_util.keystr(path, simple=True, separator="/")

    by_name = {name_of(path): rate for path, rate in jax.tree.leaves_with_path(rates)}

    def update(path, p, g):
        name = name_of(path)
        rate = next(rate for start, rate in by_name.items() if name.startswith(start))
        return (p - rate * g).astype(p.dtype)

    return jax.tree.map_with_path(update, params, gradients)


# %% wrong="pytrees-rates" because="Combines rates and leaves by position, but one rate may apply to several leaves."
def step_by_parts(rates, params, gradients):
    leaves, treedef = jax.tree.flatten(params)
    numbers = jax.tree.leaves(rates)
    numbers = numbers + [numbers[-1]] * (len(leaves) - len(numbers))
    updates = zip(leaves, jax.tree.leaves(gradients), numbers, strict=True)
    return treedef.unflatten([(p - rate * g).astype(p.dtype) for p, g, rate in updates])


# %% right="pytrees-rates"
def step_by_parts(rates, params, gradients):
    spread = jax.tree.broadcast(rates, params)
    return jax.tree.map(lambda p, rate, g: p - rate.astype(p.dtype) * g, params, spread, gradients)


# %% right="pytrees-rates"
def step_by_parts(rates, params, gradients):
    numbers, form = jax.tree.flatten(rates)
    parts = zip(numbers, form.flatten_up_to(params), form.flatten_up_to(gradients), strict=True)
    new = [jax.tree.map(lambda p, g, r=rate: jnp.asarray(p - r * g, p.dtype), *pair) for rate, *pair in parts]
    return form.unflatten(new)


# %% [markdown] task="pytrees-by-path" stars=2 minutes=15 skills="06_pytrees,pytrees-rates"
# ## Rules by name
# **Goal.** Large training programs contain a short table of rules, such as no weight decay for biases, or half the learning rate for the embedding. Each rule applies to the parameters whose *names* match a pattern. Write the function that applies such a table.
#
# **Signature.** `map_by_path(rules, tree)`. `tree` is a pytree of arrays. The name of a leaf consists of its keys, joined by `/`, such as `layers/0/w` for the weights of a `Layer`. `rules` is a list of pairs `(pattern, function)` of a regular expression and a function of a leaf. The first pattern that is found *anywhere* in the name (`re.search`) decides, and the leaf becomes `function(leaf)`. A leaf without a matching pattern is not changed. Returns a pytree of the same structure.
#
# **Example.** `{"embed": 1.0, "layers": [Layer(w=2.0, b=3.0)]}` has the names `embed`, `layers/0/w` and `layers/0/b`. The rules `[("w$", double), ("^layers", negate)]` convert it to `{"embed": 1.0, "layers": [Layer(w=4.0, b=-3.0)]}`.
#
# **Judged.** Values and structure, for dicts, lists, tuples and named tuples, and for keys with any text, such as `layer-norm` or `block.1`. **Not judged.** Patterns that are not regular expressions, and keys that contain `/`.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.tree.map` passes only the leaf to its function. Which related function also passes its place?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.tree.map_with_path` calls a function of a path and a leaf. A path is a tuple of keys. The keys of a dict, a list and a named tuple are of different types with different attributes, and `jax.tree_util.keystr` converts all of them to text.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `keystr` accepts `simple=True` and a `separator`. Iterate over the rules in order, and return from the function at the first match. After the loop, return the leaf unchanged.
#
# </details>


# %% answer="pytrees-by-path"
def map_by_path(rules, tree):
    """Changes each leaf by the function of the first pair (pattern, function) in rules that matches its name."""

    ### BEGIN SOLUTION
    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)
    ### END SOLUTION


# %% check="pytrees-by-path" name="example" points=1
"""The example: two rules for three leaves."""


def probe_example(tree):
    return map_by_path([("w$", CHANGES["double"]), ("^layers", CHANGES["negate"])], tree)


tree = {"embed": np.float32(1), "layers": [Layer(np.float32(2), np.float32(3))]}
wanted = {"embed": np.float32(1), "layers": [Layer(np.float32(4), np.float32(-3))]}
compare(program(probe_example, tree).run(tree), wanted, label="the changed tree")

# %% hidden="pytrees-by-path" name="first" points=1
"""Only the first matching rule is applied, and a leaf without a matching rule is not changed."""


def probe_rules(rules, tree):
    return map_by_path([(pattern, CHANGES[what]) for pattern, what in rules], tree)


KEYS = ("embed", "head", "norm")
cases = {
    "no rules": ([], (1, 1, 1)),
    "one rule that matches one leaf": ([("head", "double")], (1, 2, 1)),
    "two rules that match the same leaf": ([("head", "double"), ("head", "negate")], (1, 2, 1)),
    "a later rule that matches all": ([("norm", "zero"), ("embed", "negate"), (".", "double")], (-1, 2, 0)),
    "a first rule that matches all": ([("", "negate"), ("embed", "double")], (-1, -1, -1)),
    "a rule that matches no leaf": ([("tail", "zero"), ("norm", "double")], (1, 1, 2)),
}
rng = inputs.rng()
for what, (rules, factors) in cases.items():
    leaves = rng.normal(size=(3, 2)).astype(np.float32) + 3
    got = ask(probe_rules, rules, dict(zip(KEYS, leaves, strict=True)))
    wanted = {key: np.float32(factor) * leaf for key, factor, leaf in zip(KEYS, factors, leaves, strict=True)}
    compare(got, wanted, label=f"the result ({what})")

# %% hidden="pytrees-by-path" name="names" points=2
"""Names consist of keys of every type, and patterns are searched for in the whole name."""


def probe_rules(rules, tree):
    return map_by_path([(pattern, CHANGES[what]) for pattern, what in rules], tree)


def draw(rng):
    layer = lambda: Layer(rng.normal(size=(2, 3)).astype(np.float32) + 5, rng.normal(size=2).astype(np.float32) + 5)
    return {
        "embed": np.float32(rng.uniform(1, 2)),
        "layers": [layer(), layer()],
        "pair": (layer().b, layer().b),
        "x": None,
    }


# Factors in the order of the leaves: embed, layers/0/w, layers/0/b, layers/1/w, layers/1/b, pair/0, pair/1.
cases = {
    "a pattern of brackets and quotes, which no name contains": ([(r"[\[\]']", "double")], (1, 1, 1, 1, 1, 1, 1)),
    "a pattern that matches a last key, but no whole name": ([("^[wb01]$", "double")], (1, 1, 1, 1, 1, 1, 1)),
    "a pattern for the end of a name": ([("w$", "double")], (1, 2, 1, 2, 1, 1, 1)),
    "a pattern for the middle of a name": ([("/0/", "double")], (1, 2, 2, 1, 1, 1, 1)),
    "a pattern for the beginning of a name": ([("^pair", "negate")], (1, 1, 1, 1, 1, -1, -1)),
    "a letter that several names contain": ([("b", "negate")], (-1, 1, -1, 1, -1, 1, 1)),
    "whole names": ([("^layers/1/b$", "zero"), ("^pair/1$", "double")], (1, 1, 1, 1, 0, 1, 2)),
    "a choice of a beginning and a part": ([("^pair|ayers/1", "double")], (1, 1, 1, 2, 2, 2, 2)),
    "a pattern with a choice": ([("layers/[01]/w|pair/0", "double")], (1, 2, 1, 2, 1, 2, 1)),
}
rng = inputs.rng()
for what, (rules, factors) in cases.items():
    tree = draw(rng)
    raised = error(probe_rules, rules, tree)
    require(
        raised is None, f"For a tree of dicts, lists, tuples and `Layer`s, your answer raised {raised}.", kind="raised"
    )
    got = ask(probe_rules, rules, tree)
    (first, second), (one, other), scale = tree["layers"], tree["pair"], np.float32(factors)
    wanted = {
        "embed": scale[0] * tree["embed"],
        "layers": [Layer(scale[1] * first.w, scale[2] * first.b), Layer(scale[3] * second.w, scale[4] * second.b)],
        "pair": (scale[5] * one, scale[6] * other),
        "x": None,
    }
    compare(got, wanted, label=f"the result ({what})")
leaves = rng.normal(size=(4, 2)).astype(np.float32) + 5
tree = lambda a, b, c, d: {"['w']": a, "block.1": [b], "layer-norm": {"b c": c}, "step": {10: d}}
cases = {
    "a pattern for a key with a hyphen": ([("^layer-norm/", "double")], (1, 1, 2, 1)),
    "a pattern for a key with a dot": ([(r"^block\.1/0$", "double")], (1, 2, 1, 1)),
    "a pattern for a key with a space": ([("/b c$", "double")], (1, 1, 2, 1)),
    "a pattern for a key that is a number": ([("/10$", "double")], (1, 1, 1, 2)),
    "a pattern for a key with brackets and quotes": ([(r"^\['w'\]$", "double")], (2, 1, 1, 1)),
}
for what, (rules, factors) in cases.items():
    raised = error(probe_rules, rules, tree(*leaves))
    require(raised is None, f"With {what}, your answer raised {raised}.", kind="raised")
    wanted = tree(*(np.float32(factor) * leaf for factor, leaf in zip(factors, leaves, strict=True)))
    compare(ask(probe_rules, rules, tree(*leaves)), wanted, label=f"the result ({what})")

# %% [markdown] why="pytrees-by-path"
# `map_with_path` passes the place of each leaf as keys of known types, so one function works for every container, including your own classes. Tables like this one assign weight decay, learning rates and, from lesson 16 on, shardings. **Next:** A rule with a typing mistake matches nothing and raises no error. How would you find rules that were never used?


# %% wrong="pytrees-by-path" because="Continues after a match, so the last matching rule decides."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        changed = leaf
        for pattern, function in rules:
            if re.search(pattern, name):
                changed = function(leaf)
        return changed

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Applies every matching rule, one after the other."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, function in rules:
            if re.search(pattern, name):
                leaf = function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Matches only at the beginning of the name, with re.match."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, function in rules:
            if re.match(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Uses keystr without options as the name, which is Python code with brackets, quotes and dots."
def map_by_path(rules, tree):
    def change(path, leaf):
        for pattern, function in rules:
            if re.search(pattern, jax.tree_util.keystr(path)):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Reads .key of every key. Keys of dicts have it, but those of lists have .idx and those of named tuples .name."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = "/".join(str(key.key) for key in path)
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Uses only the last key, so the position in the tree is lost."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Extracts the words from the text of keystr, which splits keys with a hyphen, a dot or a space."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = "/".join(re.findall(r"\w+", jax.tree_util.keystr(path)))
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Searches each key separately, so the start, the end and the slashes of the whole name are lost."
def map_by_path(rules, tree):
    def change(path, leaf):
        keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
        for pattern, function in rules:
            if any(re.search(pattern, key) for key in keys):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Returns a list for a plain tuple, but the type of a container is part of the structure."
def map_by_path(rules, tree, name=""):
    inside = lambda key, node: map_by_path(rules, node, f"{name}/{key}" if name else str(key))
    if isinstance(tree, dict):
        return {key: inside(key, node) for key, node in tree.items()}
    if hasattr(tree, "_fields"):
        return type(tree)(*map(inside, tree._fields, tree))
    if isinstance(tree, list | tuple):
        return [inside(i, node) for i, node in enumerate(tree)]
    if tree is None:
        return None
    return next((function for pattern, function in rules if re.search(pattern, name)), lambda leaf: leaf)(tree)


# %% wrong="pytrees-by-path" because="Forgets leaves without a matching rule. The function then returns None, which replaces them."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Replaces brackets, quotes and dots in the text of keystr, so dots inside a key become slashes too."
def map_by_path(rules, tree):

    def change(path, leaf):
        name = re.sub(r"[\[\]'.]+", "/", jax.tree_util.keystr(path)).strip("/")
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Walks through containers by hand and treats a plain tuple as a leaf."
def map_by_path(rules, tree):

    def walk(keys, node):
        if isinstance(node, dict):
            return {key: walk([*keys, str(key)], child) for key, child in node.items()}
        if isinstance(node, list):
            return [walk([*keys, str(i)], child) for i, child in enumerate(node)]
        if hasattr(node, "_fields"):
            return type(node)(*[walk([*keys, field], getattr(node, field)) for field in node._fields])
        name = "/".join(keys)
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(node)
        return node

    return walk([], tree)


# %% wrong="pytrees-by-path" because="Puts `.*` in front of the pattern for re.match, which covers only the first alternative of a choice."
def map_by_path(rules, tree):

    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, function in rules:
            if re.match(".*" + pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% wrong="pytrees-by-path" because="Joins the keys by a dot instead of a slash, so a pattern with a slash matches nothing."
def map_by_path(rules, tree):
    def change(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        for pattern, function in rules:
            if re.search(pattern, name):
                return function(leaf)
        return leaf

    return jax.tree.map_with_path(change, tree)


# %% right="pytrees-by-path"
def map_by_path(rules, tree):
    places, form = jax.tree.flatten_with_path(tree)
    leaves = []
    for path, leaf in places:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        fitting = [function for pattern, function in rules if re.compile(pattern).search(name)]
        leaves.append(fitting[0](leaf) if fitting else leaf)
    return form.unflatten(leaves)


# %% right="pytrees-by-path"
def map_by_path(rules, tree, name=""):
    inside = lambda key, node: map_by_path(rules, node, f"{name}/{key}" if name else str(key))
    if isinstance(tree, dict):
        return {key: inside(key, node) for key, node in tree.items()}
    if hasattr(tree, "_fields"):
        return type(tree)(*map(inside, tree._fields, tree))
    if isinstance(tree, list | tuple):
        return type(tree)(inside(i, node) for i, node in enumerate(tree))
    if tree is None:
        return None
    return next((function for pattern, function in rules if re.search(pattern, name)), lambda leaf: leaf)(tree)


# %% [markdown] task="pytrees-partition" stars=2 minutes=20 skills="03_jit,04_grad,06_pytrees,pytrees-transpose"
# ## What is trained, and what is not
# **Goal.** A model contains weights together with strings, settings and counters, and neither `jit` nor `grad` accepts all of these. Split the model into one pytree of the wanted leaves and one of the rest, and combine them again later. Equinox is built on this pair of functions.
#
# **Signature.** `partition(wanted, tree)`. `wanted` is a function of a leaf that returns True or False. `None` is not a leaf, so `wanted` is never called on it. Returns a pair `(kept, rest)`. Both have the structure of `tree`, except that `kept` has `None` in place of each leaf that is not wanted, and `rest` in place of each leaf that is wanted.
#
# `combine(one, other)` is the inverse. At each place it takes the value that is not `None`, from either argument.
#
# **Example.** With `is_float` from the setup, `{"w": [1., 2.], "step": 3, "name": "net"}` (an array, an int and a string) is split into `{"w": [1., 2.], "step": None, "name": None}` and `{"w": None, "step": 3, "name": "net"}`. `combine` of both, in any order, returns the original.
#
# **Judged.** Both functions, for leaves of every type, including zeros and empty strings, and for pytrees that contain `None` themselves. Gradients with respect to `kept`. **Not judged.** `combine` of pytrees that are not parts of one tree.
#
# <details><summary>Hint 1 · a question</summary>
#
# The function of `jax.tree.map` may return `None`. What does `jax.tree.map` do with a `None` in its *argument*?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `None` is an empty container, so it is part of the structure, and the structures of `kept` and `rest` differ. With the argument `is_leaf`, a node can count as a leaf.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In `combine`, let `is_leaf` return True for `None`. Then decide with `is None`. A zero or an empty string is false in Python, and an array of several numbers is neither true nor false.
#
# </details>


# %% answer="pytrees-partition"
def partition(wanted, tree):
    """Returns (kept, rest), two copies of tree. None replaces unwanted leaves in kept and wanted leaves in rest."""
    ### BEGIN SOLUTION
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest
    ### END SOLUTION


def combine(one, other):
    """Returns the tree that has, at each place, the value of one or other that is not None."""
    ### BEGIN SOLUTION
    pick = lambda mine, theirs: theirs if mine is None else mine
    return jax.tree.map(pick, one, other, is_leaf=lambda node: node is None)
    ### END SOLUTION


# %% check="pytrees-partition" name="example" points=1
"""The example: three leaves, split and combined."""


def probe_example(tree):
    parts = partition(is_float, tree)
    return parts, combine(*parts)


tree = {"w": np.array([1, 2], np.float32), "step": 3, "name": "net"}
parts, again = ask(probe_example, tree)
compare(parts, ({**tree, "step": None, "name": None}, {**tree, "w": None}), label="`(kept, rest)`")
compare(again, tree, label="`combine(kept, rest)`")

# %% hidden="pytrees-partition" name="parts" points=1
"""Splits trees of any structure, by any function of a leaf."""
rng = inputs.rng()
x, y = rng.normal(size=(2, 3)).astype(np.float32)
tree = {"a": [Layer(x, None), (0, "relu")], "b": {"c": y, "d": "", "e": []}, "f": False}
kept = {"a": [Layer(x, None), (None, None)], "b": {"c": y, "d": None, "e": []}, "f": None}
rest = {"a": [Layer(None, None), (0, "relu")], "b": {"c": None, "d": "", "e": []}, "f": False}
raised = error(lambda tree: partition(is_float, tree), tree)
require(
    raised is None,
    f"`partition` of nested containers, with lists and named tuples, raised {raised}.",
    kind="raised",
)
compare(ask(lambda tree: partition(is_float, tree), tree), (kept, rest), label="`partition(is_float, tree)`")
texts = {"a": [Layer(None, None), (None, "relu")], "b": {"c": None, "d": "", "e": []}, "f": None}
others = {"a": [Layer(x, None), (0, None)], "b": {"c": y, "d": None, "e": []}, "f": False}
got = ask(lambda tree: partition(lambda leaf: isinstance(leaf, str), tree), tree)
compare(got, (texts, others), label="`partition(is_text, tree)`")


def probe_asked(tree):
    asked = []
    partition(lambda leaf: asked.append(leaf is None) or is_float(leaf), tree)
    return asked


asked = ask(probe_asked, tree)
require(len(asked) > 0, "`wanted` was never called. The answer must work for any function `wanted`.")
require(not any(asked), "`wanted` was called on `None`. None is not a leaf, and a function of a leaf may reject it.")

# %% hidden="pytrees-partition" name="together" points=1
"""Combines two parts in either order, whatever the leaves are."""
rng = inputs.rng()
x, y = rng.normal(size=(2, 3)).astype(np.float32)
zeros = np.zeros(2, np.float32)
numbers = {"a": 0, "b": None, "c": False}, {"a": None, "b": "", "c": None}


def told(what, one, other):
    raised = error(combine, one, other)
    require(raised is None, f"{what} raised {raised}.", kind="raised")
    return ask(combine, one, other)


what = "`combine(kept, rest)` (zeros and an empty string)"
compare(told(what, *numbers), {"a": 0, "b": "", "c": False}, label=what)
tree = {"a": [Layer(x, None), (0, "relu", 0.0)], "b": {"c": zeros, "d": "", "e": y}, "f": False, "g": None}
kept = {"a": [Layer(x, None), (None, None, 0.0)], "b": {"c": zeros, "d": None, "e": None}, "f": None, "g": None}
rest = {"a": [Layer(None, None), (0, "relu", None)], "b": {"c": None, "d": "", "e": y}, "f": False, "g": None}
only = {"w": None, "b": None}, {"w": x, "b": None}
what = "`combine(kept, rest)` (both have `None` at one place)"
compare(told(what, *only), only[1], label=what)
others = {"scalar": np.float32(x[0]), "complex": complex(x[1], x[2]), "dtype": np.dtype(np.int8)}
what = "`combine(kept, rest)` (a NumPy scalar, a complex number and a dtype)"
compare(told(what, others, dict.fromkeys(others)), others, label=what)


def probe_functions(x):
    """What the functions in a tree return after `combine`."""
    parts = {"change": CHANGES["negate"], "class": None}, {"change": None, "class": Layer}
    whole = combine(*parts)
    return [whole["change"](x), whole["class"](x, None)]


raised = error(probe_functions, x)
require(raised is None, f"Calling the leaves of `combine(kept, rest)` (a function and a class) raised {raised}.")
compare(ask(probe_functions, x), [-x, Layer(x, None)], label="the results of leaves that are functions")
for what, pair in (("`combine(kept, rest)`", (kept, rest)), ("`combine(rest, kept)`", (rest, kept))):
    compare(told(f"{what} (nested containers, which contain `None` themselves)", *pair), tree, label=what)

# %% hidden="pytrees-partition" name="gradient" points=1
"""Gradients with respect to the floats of a model that contains a string and a counter."""


def probe_gradient(model, x, y):
    kept, rest = partition(is_float, model)
    return jax.value_and_grad(lambda kept: network_loss(combine(kept, rest), x, y))(kept)


def draw():
    rng = inputs.rng()
    layers = [Layer(rng.normal(size=(4, 3)), rng.normal(size=4)), Layer(rng.normal(size=(1, 4)), rng.normal(size=1))]
    layers = [Layer(layer.w.astype(np.float32), layer.b.astype(np.float32)) for layer in layers]
    return {"layers": layers, "activation": "tanh", "step": 7}, rng.normal(size=3).astype(np.float32)


y = np.float32(0.5)
raised = error(probe_gradient, *draw(), y)
require(
    raised is None,
    f"The gradient with respect to `kept`, for a model with strings and a counter, raised {raised}. Does `kept` contain "
    "leaves other than floats, or does `combine` fail?",
    kind="raised",
)
made = program(probe_gradient, *draw(), y)
for _ in range(2):
    model, x = draw()
    first, second = model["layers"]
    hidden = np.tanh(first.w @ x + first.b)
    miss = (second.w @ hidden + second.b)[0] - y
    inner = 2 * miss * second.w[0] * (1 - hidden**2)
    layers = [Layer(np.outer(inner, x), inner), Layer(2 * miss * hidden[None], 2 * miss[None])]
    wanted = np.float32(miss**2), {"layers": layers, "activation": None, "step": None}
    compare(made.run(model, x, y), wanted, atol=1e-4, label="`(loss, gradient)`")

# %% [markdown] why="pytrees-partition"
# `None` is a container without leaves. Therefore `grad` accepts a pytree in which `None` replaces the leaves that it would reject, and the gradient has the structure of `kept`. **Next:** How would you freeze one layer, including its floats, with `map_by_path` and these functions?


# %% wrong="pytrees-partition" because="Combines without is_leaf. None is part of the structure, so the two structures differ."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    return jax.tree.map(lambda mine, theirs: theirs if mine is None else mine, one, other)


# %% wrong="pytrees-partition" because="Chooses with `or`. Zero, False and the empty string are false, and an array of several numbers is neither true nor false."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    return jax.tree.map(lambda mine, theirs: mine or theirs, one, other, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Makes None a leaf in partition too, so wanted is called on None."
def partition(wanted, tree):
    none = lambda node: node is None
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree, is_leaf=none)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree, is_leaf=none)
    return kept, rest


def combine(one, other):
    pick = lambda mine, theirs: theirs if mine is None else mine
    return jax.tree.map(pick, one, other, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Checks for arrays but chooses everything else with `or`, so zero, False and the empty string are lost."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    pick = lambda mine, theirs: mine if isinstance(mine, np.ndarray | jax.Array) else mine or theirs
    return jax.tree.map(pick, one, other, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Takes the first value that is not None and assumes that there is one. A None of the tree itself has no other value."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    first = lambda *leaves: next(leaf for leaf in leaves if leaf is not None)
    return jax.tree.map(first, one, other, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Leaves everything in the rest, so the floats are in both parts."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    return kept, tree


def combine(one, other):
    pick = lambda mine, theirs: theirs if mine is None else mine
    return jax.tree.map(pick, one, other, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Replaces unwanted leaves by 0, which is a leaf, while None is not."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else 0, tree)
    rest = jax.tree.map(lambda leaf: 0 if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    return jax.tree.map(lambda mine, theirs: theirs if type(mine) is int else mine, one, other)


# %% wrong="pytrees-partition" because="Returns two lists of leaves, so the structure and the place of each leaf are lost."
def partition(wanted, tree):
    leaves = jax.tree.leaves(tree)
    return [leaf for leaf in leaves if wanted(leaf)], [leaf for leaf in leaves if not wanted(leaf)]


def combine(one, other):
    return [*one, *other]


# %% wrong="pytrees-partition" because="Removes unwanted entries from the dict, but the keys are part of the structure. It also handles only one level."
def partition(wanted, tree):
    kept = {key: leaf for key, leaf in tree.items() if wanted(leaf)}
    return kept, {key: leaf for key, leaf in tree.items() if key not in kept}


def combine(one, other):
    return {**one, **other}


# %% wrong="pytrees-partition" because="Always takes the value of the second tree, which is None where only the first has a value."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    return jax.tree.map(lambda mine, theirs: theirs, one, other, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Fills each None with the next leaf of the other tree, so a None of the tree itself takes a leaf."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: None if wanted(leaf) else leaf, tree)
    return kept, rest


def combine(one, other):
    """The tree that has, at each place, what is not None in one of the two."""
    missing = iter(jax.tree.leaves(other))
    return jax.tree.map(lambda leaf: next(missing) if leaf is None else leaf, one, is_leaf=lambda node: node is None)


# %% wrong="pytrees-partition" because="Lists the types that a leaf may have, so a leaf of another type is taken for missing."
def partition(wanted, tree):
    kept = jax.tree.map(lambda leaf: leaf if wanted(leaf) else None, tree)
    rest = jax.tree.map(lambda leaf: leaf if not wanted(leaf) else None, tree)
    return kept, rest


def combine(one, other):
    def pick(a, b):
        if isinstance(a, np.ndarray | jax.Array | str | int | float):
            return a
        return b

    return jax.tree.map(pick, one, other, is_leaf=lambda node: node is None)


# %% right="pytrees-partition"
def partition(wanted, tree):
    leaves, form = jax.tree.flatten(tree)
    yes = [wanted(leaf) for leaf in leaves]
    kept = [leaf if ok else None for leaf, ok in zip(leaves, yes, strict=True)]
    rest = [None if ok else leaf for leaf, ok in zip(leaves, yes, strict=True)]
    return jax.tree.unflatten(form, kept), jax.tree.unflatten(form, rest)


def combine(one, other):
    none = lambda node: node is None
    ones, form = jax.tree.flatten(one, is_leaf=none)
    others = jax.tree.leaves(other, is_leaf=none)
    return form.unflatten([b if a is None else a for a, b in zip(ones, others, strict=True)])


# %% right="pytrees-partition"
def partition(wanted, tree):
    pairs = jax.tree.map(lambda leaf: {True: (leaf, None), False: (None, leaf)}[bool(wanted(leaf))], tree)
    form = jax.tree.structure(tree)
    halves = list(zip(*form.flatten_up_to(pairs), strict=True))
    return form.unflatten(halves[0]), form.unflatten(halves[1])


def combine(one, other):
    def choose(*both):
        return next((leaf for leaf in both if leaf is not None), None)

    return jax.tree.map(choose, one, other, is_leaf=lambda node: node is None)


# %% [markdown] task="pytrees-register" stars=2 minutes=20 skills="03_jit,04_grad,05_vmap,06_pytrees,pytrees-partition"
# ## A class as a container
# *Needs: Deeper: classes that are not dataclasses.*
#
# **Goal.** An object of an unregistered class is a leaf that no transformation accepts. Register a class, so that JAX treats some of its attributes as data and others as static.
#
# **Signature.** `register_point(cls)`. `cls` has the attributes `x` and `y`, arrays of the same shape, and `unit`, a string. `cls(x, y, unit)` creates an object. After the call, an object is a container with the leaves `x` and `y`, in this order and with these names, and `unit` is part of its structure. Returns `cls`, so that `register_point` can be used as a decorator. Each class is registered once.
#
# **Example.** For `point = cls(1.0, 2.0, "km")`, `jax.tree.leaves(point)` is `[1.0, 2.0]`, and `jax.tree.map(lambda leaf: 10 * leaf, point)` is a point with `x` 10.0, `y` 20.0 and `unit` "km".
#
# **Judged.** The leaves and their names in a path. Points under `jit`, `grad` and `vmap`. A map over points of different units must raise an exception. A jitted function is traced again for another unit, but not for other numbers. **Not judged.** Which registration function you use, and the type of the keys in a path.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which of the three attributes may be a tracer? Which one does Python need during tracing, to look up a factor?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Static attributes belong to the structure. You can use the lesson's functions for a class that is not a dataclass. `register_dataclass` is shorter. It accepts any class whose constructor takes all attributes by name, with a list of the data and a list of the static attributes.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The arguments of `jax.tree_util.register_dataclass` are the class, `data_fields` and `meta_fields`. The last two are lists of names. Remember to return the class.
#
# </details>


# %% answer="pytrees-register"
def register_point(cls):
    """Registers cls as a container of its attributes x and y, with unit as part of its structure. Returns cls."""
    ### BEGIN SOLUTION
    return jax.tree_util.register_dataclass(cls, data_fields=["x", "y"], meta_fields=["unit"])
    ### END SOLUTION


# %% check="pytrees-register" name="example" points=1
"""The example: leaves, and a map over a point."""


def probe_example(x, y):
    Point = register_point(point_class())
    point = Point(x, y, "km")
    tenfold = jax.tree.map(lambda leaf: 10 * leaf, point)
    return jax.tree.leaves(point), [tenfold.x, tenfold.y, tenfold.unit]


leaves, tenfold = ask(probe_example, 1.0, 2.0)
compare(leaves, [1.0, 2.0], label="`jax.tree.leaves(point)`")
compare(tenfold, [10.0, 20.0, "km"], label="the point times 10, [x, y, unit]")

# %% hidden="pytrees-register" name="transformed" points=1
"""Works with jit, grad and vmap, and keeps its unit."""


def probe_jit(x, y):
    Point = register_point(point_class())
    walked = jax.jit(metres_walked)
    return [walked(Point(x, y, "km")), walked(Point(y, x, "ft"))]


def probe_grad(x, y):
    Point = register_point(point_class())
    gradient = jax.grad(lambda point: jnp.sum(metres_walked(point) * point.x))(Point(x, y, "km"))
    return [gradient.x, gradient.y, gradient.unit]


def probe_vmap(x, y):
    Point = register_point(point_class())
    shifted = jax.vmap(lambda point: Point(point.x - point.y, point.y, point.unit))(Point(x, y, "ft"))
    return [shifted.x, shifted.y, shifted.unit]


x, y = inputs.rng().uniform(1, 2, size=(2, 5)).astype(np.float32)
wanted = [np.float32(1000) * (x + y), np.float32(0.3048) * (x + y)]
tried = {"jit": error(probe_jit, x, y), "grad": error(probe_grad, x, y), "vmap": error(probe_vmap, x, y)}
for what, raised in tried.items():
    require(raised is None, f"A point under {what} raised {raised}. Are x and y its only leaves?", kind="raised")
compare(ask(probe_jit, x, y), wanted, label="the distances in metres under jit (in km, in ft)")
compare(ask(probe_grad, x, y), [1000 * (2 * x + y), 1000 * x, "km"], label="the gradient, [x, y, unit]")
compare(ask(probe_vmap, x, y), [x - y, y, "ft"], label="the result of vmap, [x, y, unit]")

# %% hidden="pytrees-register" name="names" points=1
"""The leaves are x and y, in this order and with these names."""


def probe_names(x, y):
    Point = register_point(point_class())
    named = jax.tree.leaves_with_path({"points": [Point(x, y, "m"), Point(y, x, "ft")]})
    return [[jax.tree_util.keystr(path, simple=True, separator="/"), leaf] for path, leaf in named]


x, y = inputs.rng().normal(size=(2, 3)).astype(np.float32)
raised = error(probe_names, x, y)
require(raised is None, f"`leaves_with_path` of a list of points raised {raised}.", kind="raised")
got = ask(probe_names, x, y)
require(len(got) == 4, f"Two points together have {len(got)} leaves instead of four, the x and y of each.")
compare([leaf for _, leaf in got], [x, y, y, x], label="the leaves of two points")
require(
    [name for name, _ in got] == ["points/0/x", "points/0/y", "points/1/x", "points/1/y"],
    "The names of the two leaves in a path are not x and y. Register the class with keys, not only with positions.",
)

# %% hidden="pytrees-register" name="units" points=1
"""Points of the same unit are mapped together, and points of different units are rejected."""


def probe_add(x, y, unit, other):
    Point = register_point(point_class())
    total = jax.tree.map(jnp.add, Point(x, y, unit), Point(y, y, other))
    return [total.x, total.y, total.unit]


x, y = inputs.rng().normal(size=(2, 3)).astype(np.float32)
for unit in ("m", "ft"):
    raised = error(probe_add, x, y, unit, unit)
    require(raised is None, f"A map over two points of the same unit raised {raised}.", kind="raised")
    compare(ask(probe_add, x, y, unit, unit), [x + y, y + y, unit], label="the sum of two points, [x, y, unit]")
require(
    error(probe_add, x, y, "m", "ft") is not None,
    "A point in m and one in ft were added leaf by leaf. Make the unit part of the structure, so that JAX rejects this.",
)

# %% hidden="pytrees-register" name="traces" points=1 observed=true
"""A new unit causes a trace. Other numbers, or a unit that was used before, do not."""


def probe_traces(x, y):
    Point = register_point(point_class())
    function = counted(metres_walked)
    walked = jax.jit(function)
    calls = []
    for point in (Point(x, y, "km"), Point(y, x, "km"), Point(x, y, "ft"), Point(x, x, "km")):
        last = walked(point)
        calls.append(function.calls)
    return last, calls


x, y = inputs.rng().uniform(1, 2, size=(2, 4)).astype(np.float32)
raised = error(probe_traces, x, y)
require(
    raised is None,
    f"A jitted function that was called with points in km and then in ft raised {raised}.",
    kind="raised",
)
last, calls = ask(probe_traces, x, y)
compare(last, 2000 * x, label="the distance of the last point")
require(
    calls[1] == calls[0],
    "Other numbers in x and y caused another trace. Only the unit may be part of the structure, and not the numbers.",
)
require(calls[2] == calls[1] + 1, "Another unit did not cause a trace. The unit must be part of the structure.")
require(
    calls[3] == calls[2],
    "A unit that was used before caused another trace. The static parts of two points with equal units must be equal.",
)

# %% [markdown] why="pytrees-register"
# Data become leaves and therefore tracers. Static attributes, which JAX calls `meta_fields`, become part of the treedef. `jit` has the treedef in its cache key, and `map` compares treedefs. A value that Python needs during tracing is static, such as a unit, the name of an activation or a flag. A value that changes at each step is data. **Next:** Suppose that `unit` were a number, such as metres per unit, and a leaf. How often would each function be traced?


# %% wrong="pytrees-register" because="Makes the unit a leaf. A string is not an array, so jit, grad and vmap reject it."
def register_point(cls):
    return jax.tree_util.register_dataclass(cls, data_fields=["x", "y", "unit"], meta_fields=[])


# %% wrong="pytrees-register" because="Makes everything part of the structure. A point then has no leaves, and nothing in it is traced."
def register_point(cls):
    return jax.tree_util.register_static(cls)


# %% wrong="pytrees-register" because="Makes y static. It is then not a leaf, and arrays in treedefs cannot be compared."
def register_point(cls):
    return jax.tree_util.register_dataclass(cls, data_fields=["x"], meta_fields=["y", "unit"])


# %% wrong="pytrees-register" because="Builds the point with its children in the wrong order, so x and y are swapped."
def register_point(cls):
    apart = lambda point: ((("x", point.x), ("y", point.y)), point.unit)
    keyed = lambda point: ([(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in apart(point)[0]], point.unit)
    jax.tree_util.register_pytree_with_keys(cls, keyed, lambda unit, leaves: cls(leaves[1], leaves[0], unit))
    return cls


# %% wrong="pytrees-register" because="Loses the unit when it flattens the point and always rebuilds it in metres."
def register_point(cls):
    key = jax.tree_util.GetAttrKey
    apart = lambda point: ([(key("x"), point.x), (key("y"), point.y)], None)
    jax.tree_util.register_pytree_with_keys(cls, apart, lambda nothing, leaves: cls(*leaves, "m"))
    return cls


# %% wrong="pytrees-register" because="Registers without keys, so the paths of the leaves contain indices instead of names."
def register_point(cls):
    apart = lambda point: ((point.x, point.y), point.unit)
    jax.tree_util.register_pytree_node(cls, apart, lambda unit, leaves: cls(*leaves, unit))
    return cls


# %% wrong="pytrees-register" because="Stores the whole point as its static part. Two points are never equal, so each one is traced."
def register_point(cls):
    key = jax.tree_util.GetAttrKey
    apart = lambda point: ([(key("x"), point.x), (key("y"), point.y)], point)
    jax.tree_util.register_pytree_with_keys(cls, apart, lambda old, leaves: cls(*leaves, old.unit))
    return cls


# %% wrong="pytrees-register" because="Stores the unit in a closure instead of the structure, so all points share the last unit."
def register_point(cls):
    seen, key = {}, jax.tree_util.GetAttrKey

    def apart(point):
        seen["unit"] = point.unit
        return [(key("x"), point.x), (key("y"), point.y)], None

    jax.tree_util.register_pytree_with_keys(cls, apart, lambda nothing, leaves: cls(*leaves, seen["unit"]))
    return cls


# %% wrong="pytrees-register" because="Loses the unit when it flattens the point and always rebuilds it with the unit of the example."
def register_point(cls):
    def flatten(point):
        return [(jax.tree_util.GetAttrKey("x"), point.x), (jax.tree_util.GetAttrKey("y"), point.y)], None

    jax.tree_util.register_pytree_with_keys(cls, flatten, lambda _, children: cls(*children, "km"))
    return cls


# %% wrong="pytrees-register" because="Stores the whole point as its static part. Two points are never equal, so each one is traced."
def register_point(cls):
    import copy

    def flatten(point):
        return [(jax.tree_util.GetAttrKey(name), getattr(point, name)) for name in ("x", "y")], point

    def unflatten(old, children):
        new = copy.copy(old)
        new.x, new.y = children
        return new

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


# %% right="pytrees-register"
def register_point(cls):
    def keyed(point):
        return [(jax.tree_util.GetAttrKey(name), getattr(point, name)) for name in "xy"], point.unit

    def whole(unit, leaves):
        point = object.__new__(cls)
        point.x, point.y = leaves
        point.unit = unit
        return point

    jax.tree_util.register_pytree_with_keys(cls, keyed, whole)
    return cls


# %% right="pytrees-register"
def register_point(cls):
    def tree_flatten_with_keys(self):
        return ((jax.tree_util.DictKey("x"), self.x), (jax.tree_util.DictKey("y"), self.y)), (self.unit,)

    cls.tree_flatten_with_keys = tree_flatten_with_keys
    cls.tree_unflatten = classmethod(lambda kind, settings, leaves: kind(*leaves, *settings))
    return jax.tree_util.register_pytree_with_keys_class(cls)


# %% [markdown] task="pytrees-checkpoint" stars=2 minutes=20 skills="01_arrays,06_pytrees,pytrees-by-path"
# ## Into a file and back
# **Goal.** A file format for arrays, such as that of `np.savez`, stores names and arrays, but no containers. Convert a model to this format, and load it into a pytree again.
#
# **Signature.** `to_arrays(tree)`. `tree` is a pytree of arrays. Returns a dict with a NumPy array for each leaf, whose name consists of its keys joined by `/`.
#
# `from_arrays(like, arrays)`. `like` is a pytree of arrays or of `jax.ShapeDtypeStruct`. `arrays` is such a dict, in any order, and may contain more than `like` needs. Returns a pytree with the structure of `like`. Each leaf is the array of the same name, as a JAX array with the dtype of the leaf of `like`. A name that is missing in `arrays` raises `KeyError`. An array whose shape differs from that of the leaf raises `ValueError`.
#
# **Example.** `to_arrays({"layers": [Layer(w, b)]})` is `{"layers/0/w": w, "layers/0/b": b}`.
#
# **Judged.** Names, values, dtypes and structure, for models of many layers and for files with additional arrays. `to_arrays` returns NumPy arrays and `from_arrays` returns JAX arrays. Both exceptions. **Not judged.** Writing the file.
#
# <details><summary>Hint 1 · a question</summary>
#
# `to_arrays` needs all leaves with their paths. `from_arrays` needs a pytree with the structure of `like`, in which each leaf depends on its path. Which two functions of `jax.tree` do this?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Do not rely on the order. Names are sorted differently from leaves, with `layers/10` before `layers/2`. Look up each array by its name. `arrays[name]` raises `KeyError` without further code.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Both directions can share a small function that converts a path to a name. For `from_arrays`, write a function of a path and a leaf of `like`. It finds the array, compares the two shapes, and creates a JAX array with the dtype of the leaf.
#
# </details>


# %% answer="pytrees-checkpoint"
def to_arrays(tree):
    """Returns a dict with a NumPy array for each leaf of a tree, named by its keys joined by "/"."""
    ### BEGIN SOLUTION
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}
    ### END SOLUTION


def from_arrays(like, arrays):
    """Returns a tree with the structure and dtypes of `like` and the arrays of the same names. Raises KeyError for a
    missing name and ValueError for another shape."""

    ### BEGIN SOLUTION
    def find(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        array = arrays[name]
        if array.shape != leaf.shape:
            raise ValueError(f"{name} has shape {array.shape} in the file, and {leaf.shape} in the model")
        return jnp.asarray(array, leaf.dtype)

    return jax.tree.map_with_path(find, like)
    ### END SOLUTION


# %% check="pytrees-checkpoint" name="example" points=1
"""The example, converted and restored."""
w, b = np.array([[1, 2], [3, 4]], np.float32), np.array([5, 6], np.float32)
tree = {"layers": [Layer(w, b)]}
arrays = ask(to_arrays, jax.tree.map(jnp.asarray, tree))
compare(arrays, {"layers/0/w": w, "layers/0/b": b}, label="`to_arrays(tree)`")
require(all(isinstance(array, np.ndarray) for array in arrays.values()), "`to_arrays` must return NumPy arrays.")
again = ask(from_arrays, tree, arrays)
compare(again, tree, label="`from_arrays(tree, arrays)`")
require(all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(again)), "`from_arrays` must return JAX arrays.")

# %% hidden="pytrees-checkpoint" name="out" points=1
"""Every leaf of a large model has its own name."""
rng = inputs.rng()
layers = [Layer(rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=2).astype(np.float16)) for _ in range(12)]
head = jnp.asarray(rng.normal(size=3), jnp.bfloat16)
model = {"layers": layers, "head": (head, {"b": None, "w": layers[0].w + 1}), "layer-norm.1": {"a b": layers[1].w}}
wanted = {f"layers/{i}/{name}": getattr(layer, name) for i, layer in enumerate(layers) for name in ("w", "b")}
wanted |= {"head/0": np.asarray(head), "head/1/w": layers[0].w + 1, "layer-norm.1/a b": layers[1].w}
raised = error(to_arrays, model)
require(
    raised is None,
    f"`to_arrays` of a model with lists, tuples, named tuples and `None` raised {raised}.",
    kind="raised",
)
got = ask(to_arrays, model)
require(isinstance(got, dict), f"`to_arrays` returns a {type(got).__name__} instead of a dict.")
require(
    len(got) == len(wanted),
    f"A model with {len(wanted)} leaves has {len(got)} arrays. Every leaf needs a unique name.",
)
compare(got, wanted, label="`to_arrays(model)`")
require(all(isinstance(array, np.ndarray) for array in got.values()), "`to_arrays` must return NumPy arrays.")

# %% hidden="pytrees-checkpoint" name="back" points=2
"""Loads arrays by name, in any order of the file, with the dtypes of `like`."""
rng = inputs.rng()
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
model = {"layers": [Layer(draw(2, 2), draw(2)) for _ in range(12)], "pair": (draw(2), draw(2)), "none": None}
arrays = {f"layers/{i}/{name}": getattr(layer, name) for i, layer in enumerate(model["layers"]) for name in ("w", "b")}
arrays |= {"pair/0": model["pair"][0], "pair/1": model["pair"][1]}
shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
like = {"layers": [Layer(shape(2, 2), shape(2)) for _ in range(12)], "pair": (shape(2), shape(2)), "none": None}
ordered = dict(sorted(arrays.items()))
raised = error(from_arrays, like, ordered)
require(
    raised is None,
    f"`from_arrays` into shapes in lists, tuples and `None`, from a file with sorted names, raised {raised}.",
    kind="raised",
)
compare(ask(from_arrays, like, ordered), model, label="the result of `from_arrays` with sorted names")
names = list(arrays)
mixed = {names[i]: arrays[names[i]] for i in rng.permutation(len(names))} | {"optimizer/step": np.int32(3)}
raised = error(from_arrays, like, mixed)
require(raised is None, f"`from_arrays` from a file with an additional name raised {raised}.", kind="raised")
compare(ask(from_arrays, like, mixed), model, label="the result of `from_arrays` with an additional name")
smaller = {"pair": (np.zeros(2, np.float16), jax.ShapeDtypeStruct((2,), jnp.float32))}
wanted = {"pair": (model["pair"][0].astype(np.float16), model["pair"][1])}
raised = error(from_arrays, smaller, mixed)
require(raised is None, f"`from_arrays` with a part of the names, one as float16, raised {raised}.", kind="raised")
got = ask(from_arrays, smaller, mixed)
compare(
    got,
    wanted,
    label="the result of `from_arrays` with another dtype and a part of the names",
)
require(all(isinstance(leaf, jax.Array) for leaf in got["pair"]), "`from_arrays` must return JAX arrays.")
copies = {f"optimizer/{name}": np.zeros_like(array) for name, array in arrays.items()}
got = ask(from_arrays, like, copies | arrays)
compare(got, model, label="the result of `from_arrays` from a file with an optimizer's arrays beside the model's")

# %% hidden="pytrees-checkpoint" name="refused" points=1
"""Rejects a file in which a name is missing or an array has another shape."""
w, b = inputs.rng().normal(size=(2, 4)).astype(np.float32)
like = {"layers": [Layer(np.zeros((2, 2), np.float32), np.zeros(4, np.float32))]}
good = {"layers/0/w": w.reshape(2, 2), "layers/0/b": b}
raised = error(from_arrays, like, good)
require(
    raised is None,
    f"`from_arrays` with the arrays of one layer, all of the right shape, raised {raised}.",
    kind="raised",
)
compare(ask(from_arrays, like, good), {"layers": [Layer(w.reshape(2, 2), b)]}, label="the result of `from_arrays`")
without = {"layers/0/w": w.reshape(2, 2), "layers/1/b": b}
raised = error(from_arrays, like, without)
require(
    raised is not None,
    "A name of `like` that the file does not contain must raise KeyError. Do not replace the missing array by the leaf "
    "of `like` or by another array.",
)
require(
    raised == "KeyError",
    f"For a name that the file does not contain, it must raise KeyError, not {raised}.",
    kind="raised",
)
for what, array in (("as many numbers in another shape", w), ("a shape that could be broadcast", w[:1])):
    raised = error(from_arrays, like, {"layers/0/w": array, "layers/0/b": b})
    require(raised is not None, f"An array of {what} must raise ValueError, but it was accepted.")
    require(raised == "ValueError", f"For an array of {what}, it must raise ValueError, not {raised}.", kind="raised")

# %% [markdown] why="pytrees-checkpoint"
# Names stay valid where positions do not, such as in a sorted file or after a layer is added. Checkpoint libraries therefore store arrays by path. `like`, which may be a pytree of shapes, determines the structure and the dtypes. **Next:** For which containers would two leaves have the same name here?


# %% wrong="pytrees-checkpoint" because="Relies on the order. The names in a file may be sorted, with layers/10 before layers/2, so arrays end up in other layers."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    leaves, form = jax.tree.flatten(like)
    for leaf, array in zip(leaves, arrays.values(), strict=True):
        if leaf.shape != array.shape:
            raise ValueError("another shape")
    return form.unflatten([jnp.asarray(array, leaf.dtype) for leaf, array in zip(leaves, arrays.values(), strict=True)])


# %% wrong="pytrees-checkpoint" because="Confuses the two kinds of arrays, returning JAX arrays from to_arrays and NumPy arrays from from_arrays."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): jnp.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays[jax.tree_util.keystr(path, simple=True, separator="/")]
        if array.shape != leaf.shape:
            raise ValueError("another shape")
        return np.asarray(array, leaf.dtype)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Asserts the shape, which raises AssertionError instead of the ValueError that callers expect."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays[jax.tree_util.keystr(path, simple=True, separator="/")]
        assert array.shape == leaf.shape
        return jnp.asarray(array, leaf.dtype)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Names each leaf by its last key. All layers have a w, so only the last one remains."
def to_arrays(tree):
    return {
        jax.tree_util.keystr(path[-1:], simple=True): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)
    }


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays[jax.tree_util.keystr(path[-1:], simple=True)]
        if array.shape != leaf.shape:
            raise ValueError("another shape")
        return jnp.asarray(array, leaf.dtype)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Keeps the value of `like` where the file has no array, so a part of the model is silently not loaded."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays.get(jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        if array.shape != leaf.shape:
            raise ValueError("another shape")
        return jnp.asarray(array, leaf.dtype)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Reshapes every array to the shape in the model, which accepts arrays of another layer with the same size."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays[jax.tree_util.keystr(path, simple=True, separator="/")]
        return jnp.asarray(array, leaf.dtype).reshape(leaf.shape)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Broadcasts every array to the shape in the model, so a single row is repeated."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays[jax.tree_util.keystr(path, simple=True, separator="/")]
        return jnp.broadcast_to(jnp.asarray(array, leaf.dtype), leaf.shape)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Checks that all names exist, but then takes the arrays in the order of the file."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    leaves, form = jax.tree.flatten(like)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(like)]
    if missing := set(names) - set(arrays):
        raise KeyError(*missing)
    needed = [array for name, array in arrays.items() if name in names]
    for leaf, array in zip(leaves, needed, strict=True):
        if leaf.shape != array.shape:
            raise ValueError("another shape")
    return form.unflatten([jnp.asarray(array, leaf.dtype) for leaf, array in zip(leaves, needed, strict=True)])


# %% wrong="pytrees-checkpoint" because="Keeps the dtype of the file. A float16 model is then loaded as float32 and takes twice the memory."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    def find(path, leaf):
        array = arrays[jax.tree_util.keystr(path, simple=True, separator="/")]
        if array.shape != leaf.shape:
            raise ValueError("another shape")
        return jnp.asarray(array)

    return jax.tree.map_with_path(find, like)


# %% wrong="pytrees-checkpoint" because="Builds dicts from the names, so lists, tuples and named tuples become dicts."
def to_arrays(tree):
    named = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in named}


def from_arrays(like, arrays):
    tree = {}
    for name, array in arrays.items():
        *keys, last = name.split("/")
        node = tree
        for key in keys:
            node = node.setdefault(key, {})
        node[last] = jnp.asarray(array)
    return tree


# %% wrong="pytrees-checkpoint" because="Finds an array by the end of its name, so another array in the file, such as an optimizer's, may be used instead."
def to_arrays(tree):
    places = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in places}


def from_arrays(like, arrays):
    """A tree of the form and dtypes of `like`, filled from a dict of arrays by name. KeyError, ValueError: no such
    name, another shape."""

    def find(name):
        for candidate, array in arrays.items():
            if candidate.endswith(name):
                return array
        raise KeyError(name)

    def load(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        array = find(name)
        if array.shape != leaf.shape:
            raise ValueError(f"{name} has shape {array.shape} in the file, and {leaf.shape} in the model")
        return jnp.asarray(array, leaf.dtype)

    return jax.tree.map_with_path(load, like)


# %% right="pytrees-checkpoint"
def name_of(path):
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))) for key in path)


def to_arrays(tree):
    return {name_of(path): np.array(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def from_arrays(like, arrays):
    places, form = jax.tree.flatten_with_path(like)
    found = [jnp.array(arrays[name_of(path)]) for path, leaf in places]
    for (path, leaf), array in zip(places, found, strict=True):
        if array.shape != leaf.shape:
            raise ValueError(f"{name_of(path)}: {array.shape} is not {leaf.shape}")
    return form.unflatten([array.astype(leaf.dtype) for (path, leaf), array in zip(places, found, strict=True)])


# %% right="pytrees-checkpoint"
def to_arrays(tree):
    arrays = {}
    jax.tree.map_with_path(
        lambda path, leaf: arrays.update({jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)}),
        tree,
    )
    return arrays


def from_arrays(like, arrays):
    names = jax.tree.map_with_path(lambda path, leaf: jax.tree_util.keystr(path, simple=True, separator="/"), like)

    def load(name, leaf):
        if jnp.shape(arrays[name]) != leaf.shape:
            raise ValueError(name)
        return jnp.astype(arrays[name], leaf.dtype)

    return jax.tree.map(load, names, like)
