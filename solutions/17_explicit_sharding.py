# %% [markdown]
# # 17 · Exercises: explicit sharding
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX fixes the number of devices when it first uses them. If the setup fails, restart the kernel and run the setup first. The cells use accelerators if there are at least eight, and eight simulated CPU devices otherwise.
#
# All meshes have Explicit axes. The setup sets no mesh. **Each check enters its own mesh with `jax.set_mesh` before it calls your function**, so your function can use a bare `P`. To try a function yourself, write `with jax.set_mesh(example_mesh()):`. Types are written as JAX prints them, so `float32[n@data,d]` is an array of shape (n, d) whose first axis is partitioned along `data`.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, program, require
from grader.checks.devices import entries_of, in_types

devices.start(8)  # before JAX is first used

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, auto_axes
from jax.sharding import PartitionSpec as P

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def example_mesh():
    """Four by two devices with the Explicit axes "data" and "model"."""
    return devices.mesh((4, 2), ("data", "model"), explicit=True)


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


def padded(spec, rank):
    """The entries of a spec, with None for each missing axis and a name instead of a tuple of one name."""
    found = [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry or None for entry in spec.partitions]
    return (*found, *[None] * (rank - len(found)))


def is_unreduced(tree):
    """Whether the devices store partial sums of an array in the tree."""
    specs = [getattr(getattr(leaf, "sharding", None), "spec", None) for leaf in jax.tree.leaves(tree)]
    return any(spec is not None and spec.unreduced for spec in specs)


def names_of(entries):
    """The mesh axes in the entries of a spec, such as ["data", "model"] for (("data", "model"), None)."""
    return [name for entry in entries for name in (entry if isinstance(entry, tuple) else (entry,)) if name]


def summed_elements(made):
    """The elements that the all-reduces of a program return on each device in one call. A reduce-scatter counts as the
    all-reduce that it replaces."""
    groups = [one.group_size or 1 for one in made.collectives if one.kind == "reduce-scatter"]
    return made.elements("all-reduce") + made.elements("reduce-scatter") * max(groups, default=1)


def moved_elements(made):
    """The elements that all other collectives of a program return on each device in one call."""
    return made.elements("all-gather", "all-to-all", "collective-permute")


def product_loss(params, batch):
    """The mean of batch @ w: {"w": (d, 1)}, batch (B, d) -> ()"""
    return jnp.mean(batch @ params["w"])


def network_loss(params, batch):
    """The mean square of a network without biases: {"w1": (d, h), "w2": (h, k)}, batch (B, d) -> ()"""
    return jnp.mean((jnp.tanh(batch @ params["w1"]) @ params["w2"]) ** 2)


def quiz_arrays(numbers):
    """The arrays x, batch, weight and whole of the quiz on the current mesh, from square NumPy numbers."""
    return [jax.device_put(numbers, spec) for spec in (P("data", "model"), P("data"), P(None, "model"), P())]


def in_quiz(text, x, batch, weight, whole):
    """The value of an expression of the quiz."""
    return {
        "x.T": lambda: x.T,
        "batch + batch.T": lambda: batch + batch.T,
        "jnp.sin(x)": lambda: jnp.sin(x),
        "x.sum(axis=0)": lambda: x.sum(axis=0),
        "batch + weight": lambda: batch + weight,
        "batch @ weight": lambda: batch @ weight,
        "x @ whole": lambda: x @ whole,
        "batch.T @ batch": lambda: batch.T @ batch,
        "jnp.zeros_like(x)": lambda: jnp.zeros_like(x),
        "jnp.zeros(x.shape)": lambda: jnp.zeros(x.shape),
        "gradient with respect to weight": lambda: jax.grad(lambda weight: jnp.sum(batch @ weight))(weight),
        "gradient with respect to whole": lambda: jax.grad(lambda whole: jnp.sum(batch @ whole))(whole),
    }[text]()


# %% [markdown] task="explicit-typeof-quiz" stars=1 minutes=10 skills="04_grad,16_sharding"
# ## Which type does it have?
# **Goal.** Predict the sharding of twelve expressions. Three of them are given.
#
# **Signature.** `typeof_quiz()` returns a plain dict from the text of each expression to the spec of its type, as a `P`. If JAX raises an error instead, the value is the string `"error"`. The expressions are the keys in the function `in_quiz` of the setup. They use four square arrays of the same shape (n, n).
#
# | name | type |
# |---|---|
# | `x` | `float32[n@data,n@model]` |
# | `batch` | `float32[n@data,n]` |
# | `weight` | `float32[n,n@model]` |
# | `whole` | `float32[n,n]` |
#
# **Example.** `x.T` has the type `float32[n@model,n@data]`, so the value is `P("model", "data")`. `batch + batch.T` raises an error, because `data` would be used twice.
#
# **Judged.** Every entry. You may try the expressions, but predict first. **Not judged.** Whether you write `None` for axes at the end that are not partitioned.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which axes of the arguments match each axis of the result? In a product, which axis is summed, and on how many sides is it partitioned?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Only a summed axis that is partitioned on *both* sides is ambiguous. `zeros_like` uses the type of its argument, but `zeros` receives only a shape. A gradient has the type of the argument with respect to which it is taken.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Of the nine missing entries, one is an error, and three are specs that name both mesh axes. Evaluate the ones that you are not sure about with the arrays of the setup, under `with jax.set_mesh(example_mesh()):`.
#
# </details>


# %% answer="explicit-typeof-quiz"
def typeof_quiz():
    """The spec of each expression of the quiz, or "error". The keys are those in `in_quiz`."""
    specs = {"x.T": P("model", "data"), "batch + batch.T": "error", "jnp.sin(x)": P("data", "model")}
    ### BEGIN SOLUTION
    specs["x.sum(axis=0)"] = P("model")
    specs["batch + weight"] = P("data", "model")
    specs["batch @ weight"] = P("data", "model")
    specs["x @ whole"] = P("data", None)
    specs["batch.T @ batch"] = "error"
    specs["jnp.zeros_like(x)"] = P("data", "model")
    specs["jnp.zeros(x.shape)"] = P()
    specs["gradient with respect to weight"] = P(None, "model")
    specs["gradient with respect to whole"] = P()
    ### END SOLUTION
    return specs


# %% check="explicit-typeof-quiz" name="example" points=1
"""Every expression has an entry, and four of them have the types that JAX computes."""
mesh = example_mesh()
with jax.set_mesh(mesh):
    specs, arrays = ask(typeof_quiz), quiz_arrays(np.ones((8, 8), np.float32))
    require(isinstance(specs, dict), "`typeof_quiz` should return a dict.")
    for text in ("x.T", "jnp.sin(x)", "x.sum(axis=0)", "batch + weight"):
        require(text in specs, f"There is no entry for `{text}`.")
        spec, value = specs[text], in_quiz(text, *arrays)
        require(isinstance(spec, P), f"The entry for `{text}` is {spec!r}. JAX computes a type: {jax.typeof(value)}.")
        require(
            len(spec) <= value.ndim, f"`{text}` has {value.ndim} axes, but your spec {spec} has {len(spec)} entries."
        )
        entries = padded(spec, value.ndim)
        require(
            entries == entries_of(value),
            f"For `{text}`, your spec {spec} is the type {in_types(value.shape, entries)}; JAX computes {jax.typeof(value)}.",
        )

# %% hidden="explicit-typeof-quiz" name="types" points=2
"""All twelve entries agree with JAX."""
EXPRESSIONS = {
    "x.T": "the transpose",
    "batch + batch.T": "the sum of batch and its transpose",
    "jnp.sin(x)": "the sine",
    "x.sum(axis=0)": "the sum over axis 0",
    "batch + weight": "the sum of batch and weight",
    "batch @ weight": "the product of batch and weight",
    "x @ whole": "the product of x and whole",
    "batch.T @ batch": "the product of batch and its transpose",
    "jnp.zeros_like(x)": "zeros_like",
    "jnp.zeros(x.shape)": "zeros with the shape of x",
    "gradient with respect to weight": "the gradient with respect to weight",
    "gradient with respect to whole": "the gradient with respect to whole",
}
mesh, size = example_mesh(), 8 * int(inputs.rng().integers(1, 4))
with jax.set_mesh(mesh):
    specs = ask(typeof_quiz)
    arrays = quiz_arrays(np.ones((size, size), np.float32))
    require(isinstance(specs, dict), "`typeof_quiz` should return a dict.")
    for text, words in EXPRESSIONS.items():
        require(text in specs, f"There is no entry for {words}.")
        spec = specs[text]
        try:
            value = in_quiz(text, *arrays)
        except Exception:
            require(spec == "error", f"JAX raises an error for {words}, but you predict a spec.")
            continue
        require(spec != "error", f"JAX computes a type for {words}, but you predict an error.")
        require(isinstance(spec, P), f"Your entry for {words} is not a P.")
        found, wanted = padded(spec, value.ndim), entries_of(value)
        more = len(names_of(found)) - len(names_of(wanted))
        how = "partitions too many axes" if more > 0 else "partitions too few axes" if more else "is wrong"
        require(found == wanted, f"Your spec of {words} {how}.")

# %% [markdown] why="explicit-typeof-quiz"
# Shardings propagate from the arguments to the result, axis by axis. JAX raises an error only where two rules would conflict or several results are reasonable. `x @ whole` is not ambiguous, although it needs communication, because only one side is partitioned along the summed axis. **Next:** Which of these expressions communicate? Compile them and compare with your guess.


# %% wrong="explicit-typeof-quiz" because="Believes that a partitioned summed axis is always ambiguous, but it is so only if both sides are partitioned along it."
def typeof_quiz():
    specs = {"x.T": P("model", "data"), "batch + batch.T": "error", "jnp.sin(x)": P("data", "model")}
    specs["x.sum(axis=0)"] = P("model")
    specs["batch + weight"] = specs["batch @ weight"] = specs["jnp.zeros_like(x)"] = P("data", "model")
    specs["x @ whole"] = "error"
    specs["batch.T @ batch"] = "error"
    specs["jnp.zeros(x.shape)"] = specs["gradient with respect to whole"] = P()
    specs["gradient with respect to weight"] = P(None, "model")
    return specs


# %% wrong="explicit-typeof-quiz" because="Expects an all-reduce with a replicated result, as in Auto mode, where Explicit mode raises an error."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "batch + batch.T": "error",
        "x.sum(axis=0)": P("model"),
        "x @ whole": P("data"),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model"))
    return specs | dict.fromkeys(("batch.T @ batch", "jnp.zeros(x.shape)", "gradient with respect to whole"), P())


# %% wrong="explicit-typeof-quiz" because="Expects `zeros` to be sharded like the array whose shape it gets, but a shape contains no sharding."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "x @ whole": P("data"),
        "gradient with respect to weight": P(None, "model"),
        "gradient with respect to whole": P(),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    return specs | dict.fromkeys(
        ("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)", "jnp.zeros(x.shape)"),
        P("data", "model"),
    )


# %% wrong="explicit-typeof-quiz" because="Confuses the two axes of a sum. After a sum over axis 0, the remaining axis is axis 1."
def typeof_quiz():
    specs = {"x.T": P("model", "data"), "gradient with respect to weight": P(None, "model")}
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    specs |= dict.fromkeys(("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model"))
    specs |= dict.fromkeys(("x.sum(axis=0)", "x @ whole"), P("data"))
    return specs | dict.fromkeys(("jnp.zeros(x.shape)", "gradient with respect to whole"), P())


# %% wrong="explicit-typeof-quiz" because="Expects an error where the two specs differ, but they may name different axes of the result."
def typeof_quiz():
    specs = {"x.T": P("model", "data"), "x.sum(axis=0)": P("model"), "jnp.zeros(x.shape)": P()}
    specs |= dict.fromkeys(
        (
            "batch + batch.T",
            "batch @ weight",
            "batch + weight",
            "x @ whole",
            "batch.T @ batch",
            "gradient with respect to weight",
            "gradient with respect to whole",
        ),
        "error",
    )
    return specs | dict.fromkeys(("jnp.sin(x)", "jnp.zeros_like(x)"), P("data", "model"))


# %% wrong="explicit-typeof-quiz" because="Expects an error for a gradient, because its product sums over an axis that is partitioned on both sides. But JAX gives a gradient the type of its argument."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "x @ whole": P("data"),
        "jnp.zeros(x.shape)": P(),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch", "gradient with respect to whole"), "error")
    return specs | dict.fromkeys(
        ("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model")
    )


# %% wrong="explicit-typeof-quiz" because="Expects a gradient to be partitioned like the batch that it sums over, but it has the type of its argument."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "jnp.zeros(x.shape)": P(),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    specs |= dict.fromkeys(("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model"))
    return specs | dict.fromkeys(("x @ whole", "gradient with respect to whole"), P("data"))


# %% wrong="explicit-typeof-quiz" because="Expects an error where the two specs differ, but they may name different axes of the result."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "x @ whole": P("data"),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch @ weight", "batch.T @ batch"), "error")
    specs |= dict.fromkeys(("jnp.sin(x)", "batch + weight", "jnp.zeros_like(x)"), P("data", "model"))
    return specs | dict.fromkeys(("jnp.zeros(x.shape)", "gradient with respect to whole"), P())


# %% wrong="explicit-typeof-quiz" because="Expects a replicated product if one argument is replicated, but the rows of the other remain partitioned."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    specs |= dict.fromkeys(("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model"))
    return specs | dict.fromkeys(("x @ whole", "jnp.zeros(x.shape)", "gradient with respect to whole"), P())


# %% wrong="explicit-typeof-quiz" because="Expects `x @ whole` to keep both axes of x, but a product sums over the axis that `model` partitions."
def typeof_quiz():
    specs = {"x.T": P("model", "data"), "x.sum(axis=0)": P("model"), "jnp.zeros(x.shape)": P()}
    specs |= {"gradient with respect to weight": P(None, "model"), "gradient with respect to whole": P()}
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    both = "jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)", "x @ whole"
    return specs | dict.fromkeys(both, P("data", "model"))


# %% wrong="explicit-typeof-quiz" because="Expects the zeros of `zeros_like` to be replicated, but `zeros_like` uses the sharding of its argument."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "x @ whole": P("data"),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    specs |= dict.fromkeys(("jnp.sin(x)", "batch @ weight", "batch + weight"), P("data", "model"))
    return specs | dict.fromkeys(("jnp.zeros_like(x)", "jnp.zeros(x.shape)", "gradient with respect to whole"), P())


# %% wrong="explicit-typeof-quiz" because="Expects an error for `zeros`, which receives no sharding, but the result is then replicated."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": P("model"),
        "x @ whole": P("data"),
        "gradient with respect to weight": P(None, "model"),
        "gradient with respect to whole": P(),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch", "jnp.zeros(x.shape)"), "error")
    return specs | dict.fromkeys(
        ("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model")
    )


# %% wrong="explicit-typeof-quiz" because="Writes the name of the mesh axis as a string instead of a `P`."
def typeof_quiz():
    specs = {
        "x.T": P("model", "data"),
        "x.sum(axis=0)": "model",
        "x @ whole": P("data"),
        "gradient with respect to weight": P(None, "model"),
    }
    specs |= dict.fromkeys(("batch + batch.T", "batch.T @ batch"), "error")
    specs |= dict.fromkeys(("jnp.sin(x)", "batch @ weight", "batch + weight", "jnp.zeros_like(x)"), P("data", "model"))
    return specs | dict.fromkeys(("jnp.zeros(x.shape)", "gradient with respect to whole"), P())


# %% right="explicit-typeof-quiz"
def typeof_quiz():
    texts = "x.sum(axis=0)", "batch + weight", "batch @ weight", "x @ whole", "batch.T @ batch", "jnp.zeros_like(x)"
    texts += "jnp.zeros(x.shape)", "gradient with respect to weight", "gradient with respect to whole"
    arrays = quiz_arrays(np.ones((8, 8), np.float32))
    specs = {"x.T": P("model", "data"), "batch + batch.T": "error", "jnp.sin(x)": P("data", "model")}
    for text in texts:
        try:
            specs[text] = jax.typeof(in_quiz(text, *arrays)).sharding.spec
        except Exception:
            specs[text] = "error"
    return specs


# %% right="explicit-typeof-quiz"
def typeof_quiz():
    both, rows, columns, whole = P("data", "model"), P("data", None), P(None, "model"), P(None, None)
    return {
        "x.T": P("model", "data"),
        "batch + batch.T": "error",
        "jnp.sin(x)": both,
        "x.sum(axis=0)": P("model"),
        "batch + weight": both,
        "batch @ weight": both,
        "x @ whole": rows,
        "batch.T @ batch": "error",
        "jnp.zeros_like(x)": both,
        "jnp.zeros(x.shape)": whole,
        "gradient with respect to weight": columns,
        "gradient with respect to whole": whole,
    }


# %% [markdown] task="explicit-dot-specs" stars=2 minutes=15 skills="explicit-typeof-quiz,sharding-spec-for"
# ## The rule of a product
# **Goal.** Write the rule by which JAX computes the sharding of `lhs @ rhs` for two matrices.
#
# **Signature.** `dot_specs(lhs, rhs)` takes the specs of two matrices, each a `P` of at most two entries. An entry is None, the name of a mesh axis, or a tuple of names. It returns the spec of the product as a `P`, or one of three strings. Test for them in this order.
#
# | result | when |
# |---|---|
# | `"ambiguous"` | the summed axis is partitioned on both sides, in the same way |
# | `"different"` | the summed axis is partitioned on both sides, in different ways |
# | `"twice"` | the spec of the product would name a mesh axis twice |
#
# A tuple in a `P` has at least two names, because `P` itself turns `("data",)` into `"data"` and `()` into None. Their order matters, so `("data", "model")` and `("model", "data")` are different.
#
# **Example.** `dot_specs(P("data"), P(None, "model"))` returns `P("data", "model")`, and `dot_specs(P(None, "data"), P("data"))` returns `"ambiguous"`. `dot_specs(P(None, "data"), P("model"))` returns `"different"`, and `dot_specs(P("data"), P(None, "data"))` returns `"twice"`.
#
# **Judged.** All pairs of specs on meshes with other names, and that compiled products agree with your specs. **Not judged.** Whether you write `None` at the end.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which entry of each spec belongs to the summed axis? Which two entries remain for the product?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `P("data")` has one entry and `P()` none, so first extend both specs to two entries. The summed axis is the second of `lhs` and the first of `rhs`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For the last test, collect the names of both remaining entries in a list. `names_of` of the setup does this, also for tuples. Compare the length of the list with the length of its set.
#
# </details>


# %% answer="explicit-dot-specs"
def dot_specs(lhs, rhs):
    """The spec of lhs @ rhs for the specs of two matrices, or "ambiguous", "different" or "twice"."""
    ### BEGIN SOLUTION
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    names = names_of((rows, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"
    ### END SOLUTION


# %% check="explicit-dot-specs" name="example" points=1
"""The four cases of the example, two more, and what JAX computes for them."""
mesh = example_mesh()
CASES = {
    (P("data"), P(None, "model")): P("data", "model"),
    (P(None, "data"), P("data")): "ambiguous",
    (P(None, "data"), P("model")): "different",
    (P("data"), P(None, "data")): "twice",
    (P("data", "model"), P()): P("data", None),
    (P(), P("model", ("data",))): P(None, "data"),
}
numbers = np.ones((8, 8), np.float32)
with jax.set_mesh(mesh):
    for (lhs, rhs), wanted in CASES.items():
        got = ask(dot_specs, lhs, rhs)
        if isinstance(wanted, str):
            require(got == wanted, f"For {lhs} @ {rhs} you return {got!r}; expected {wanted!r}.")
            continue
        require(isinstance(got, P), f"For {lhs} @ {rhs} you return {got!r}; expected {wanted}.")
        product = place(mesh, numbers, *lhs) @ place(mesh, numbers, *rhs)
        require(
            padded(got, 2) == entries_of(product),
            f"For {lhs} @ {rhs} you return {got}; JAX computes {jax.typeof(product)}.",
        )

# %% hidden="explicit-dot-specs" name="rule" points=2
"""Right for all pairs of specs on a mesh with other names."""
mesh = devices.mesh((2, 4), ("x", "y"), explicit=True)
ENTRIES = (None, "x", "y", ("x", "y"), ("y", "x"))
SPECS = [P(*pair) for pair in itertools.product(ENTRIES, repeat=2) if len(set(names_of(pair))) == len(names_of(pair))]
SPECS += [P(), P("x"), P("y"), P(("x", "y"))]


def kind_of(lhs, rhs):
    """The wanted result, and the words for the case."""
    (rows, left), (right, columns) = (*lhs, None, None)[:2], (*rhs, None, None)[:2]
    if left and right:
        same = "in the same way" if left == right else "in different ways"
        if left != right and sorted(names_of((left,))) == sorted(names_of((right,))):
            same = "along the same mesh axes in another order"
        return "ambiguous" if left == right else "different", f"the summed axis is partitioned on both sides {same}"
    names = names_of((rows, columns))
    if len(names) > len(set(names)):
        tuples = "in a tuple" if isinstance(rows, tuple) or isinstance(columns, tuple) else "alone"
        return "twice", f"a mesh axis would be used twice and stands {tuples}"
    if left or right:
        return (rows, columns), "the summed axis is partitioned on one side"
    short = "a spec has fewer than two entries" if min(len(lhs), len(rhs)) < 2 else "the summed axis is not partitioned"
    return (rows, columns), short


with jax.set_mesh(mesh):
    for lhs, rhs in itertools.product(SPECS, repeat=2):
        wanted, words = kind_of(lhs, rhs)
        with case(f"when {words}"):
            got = ask(dot_specs, lhs, rhs)
            if isinstance(wanted, str):
                require(isinstance(got, str), "you return a spec, but JAX raises an error.")
                require(got == wanted, "you return the wrong one of the three strings.")
                continue
            require(isinstance(got, P), "you return no spec, but JAX computes a type.")
            require(len(got) <= 2, "your spec has more than two entries.")
            require(padded(got, 2) == wanted, "your spec is wrong.")

# %% hidden="explicit-dot-specs" name="program" points=1
"""Compiled products have the shardings that you predict, for new shapes."""
mesh, rng = example_mesh(), inputs.rng()
PAIRS = (
    (P("data", "model"), P(None, None)),
    (P(None, "data"), P(None, "model")),
    (P(("model", "data")), P("model", None)),
    (P(), P("data", "model")),
)
with jax.set_mesh(mesh):
    for lhs, rhs in PAIRS:
        rows, inner, columns = (8 * int(n) for n in rng.integers(1, 4, size=3))
        one, other = (rng.normal(size=shape).astype(np.float32) for shape in ((rows, inner), (inner, columns)))
        left, right = place(mesh, one, *lhs), place(mesh, other, *rhs)
        got = ask(dot_specs, lhs, rhs)
        require(isinstance(got, P), "For a product that JAX computes, you return no spec.")
        made = program(lambda left, right: left @ right, left, right)
        compare(made.run(left, right), one @ other, label="the compiled product")
        require(
            padded(got, 2) == entries_of(made.outputs),
            "The compiled product does not have the sharding that you predict.",
        )

# %% [markdown] why="explicit-dot-specs"
# The summed axis decides whether there is a result, and the two other axes decide which. The rule uses the types alone. It does not consider what the communication costs. **Next:** If the summed axis is partitioned on one side only, which side would you gather, and when does the compiler do something else?


# %% wrong="explicit-dot-specs" because="Reads two entries from each spec, but a spec may have fewer."
def dot_specs(lhs, rhs):
    (rows, left), (right, columns) = lhs, rhs
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    names = names_of((rows, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Compares whole entries, but two different entries may contain the same mesh axis in a tuple."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    return "twice" if rows is not None and rows == columns else P(rows, columns)


# %% wrong="explicit-dot-specs" because="Finds a product ambiguous if one side is partitioned along the summed axis, but then there is one reasonable result."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None or right is not None:
        return "ambiguous" if left == right or None in (left, right) else "different"
    names = names_of((rows, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Treats an axis that is partitioned on one side only as partitioned in different ways."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left != right:
        return "different"
    if left is not None:
        return "ambiguous"
    names = names_of((rows, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Does not test whether a mesh axis would be used twice."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    return P(rows, columns)


# %% wrong="explicit-dot-specs" because="Ignores the order of names in a tuple, but another order places the blocks on other devices."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if set(names_of((left,))) == set(names_of((right,))) else "different"
    names = names_of((rows, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Looks for a mesh axis that is used twice before it examines the summed axis."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    names = names_of((rows, columns))
    if len(set(names)) < len(names):
        return "twice"
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    return P(rows, columns)


# %% wrong="explicit-dot-specs" because="Also rejects a name that both arguments use, such as `data` along the rows of the one and along the summed axis of the other."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    names = names_of((rows, left, right, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Finds a product ambiguous if the two entries of the summed axis share a name, but it is so only if they are equal."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if set(names_of((left,))) & set(names_of((right,))) else "different"
    names = names_of((rows, columns))
    return P(rows, columns) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Reads two entries from each spec, but a spec may have fewer."
def dot_specs(lhs, rhs):
    if lhs[1] is not None and rhs[0] is not None:
        return "ambiguous" if lhs[1] == rhs[0] else "different"
    names = names_of((lhs[0], rhs[1]))
    return P(lhs[0], rhs[1]) if len(set(names)) == len(names) else "twice"


# %% wrong="explicit-dot-specs" because="Returns a tuple of the two entries instead of a `P`."
def dot_specs(lhs, rhs):
    rows, left = (*lhs, None, None)[:2]
    right, columns = (*rhs, None, None)[:2]
    if left is not None and right is not None:
        return "ambiguous" if left == right else "different"
    names = names_of((rows, columns))
    return (rows, columns) if len(set(names)) == len(names) else "twice"


# %% right="explicit-dot-specs"
def dot_specs(lhs, rhs):
    typed = lambda spec: jax.ShapeDtypeStruct(
        (64, 64), jnp.float32, sharding=NamedSharding(jax.sharding.get_mesh(), spec)
    )
    try:
        return jax.eval_shape(jnp.matmul, typed(lhs), typed(rhs)).sharding.spec
    except Exception as problem:
        text = str(problem)
    if "ambiguous" in text:
        return "ambiguous"
    return "different" if "consistent" in text else "twice"


# %% right="explicit-dot-specs"
def dot_specs(lhs, rhs):
    entry = lambda spec, axis: spec[axis] if axis < len(spec) else None
    one, other = entry(lhs, 1), entry(rhs, 0)
    if one and other:
        return "different" if one != other else "ambiguous"
    as_set = lambda part: set() if part is None else {part} if isinstance(part, str) else set(part)
    kept = entry(lhs, 0), entry(rhs, 1)
    if as_set(kept[0]) & as_set(kept[1]):
        return "twice"
    return P(*kept)


# %% [markdown] task="explicit-resolve-ambiguity" stars=2 minutes=15 skills="explicit-dot-specs"
# ## Normal equations in shards
# **Goal.** Least squares needs the matrix `x.T @ x` and the vector `x.T @ y`. Both products sum over the examples, which are partitioned, so JAX raises an error. State the shardings of the results.
#
# **Signature.** `normal_equations(x, y)` takes `x`, a `float32[n@data,d@model]`, and `y`, a `float32[n@data]`. It returns the pair of `x.T @ x` with the type `float32[d@model,d]` and `x.T @ y` with the type `float32[d@model]`. The checks compile it for meshes of several sizes with these two axes.
#
# **Example.** For `x` of ones with shape (8, 4) and `y` of ones, each entry of both results is 8.
#
# **Judged.** The values and the types. The elements that the collectives of the compiled program return on each device. With D positions along `data` and M along `model`, the all-reduces return at most (d · d + d) / M elements. All other collectives return at most (n · d) / D elements, which are the examples of one position along `data`. **Not judged.** The number of collectives, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Write `x.T @ x` under the mesh and read the error. Which mesh axis does it name, and which argument does it ask for?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The operator `@` takes no further argument, but `jnp.matmul` does. If you replicate the result first, every device adds all d · d sums. State the final sharding instead.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `out_sharding=P("model", None)` for the matrix also decides that the mesh axis `model` partitions the rows of the result and not its columns. The vector has one axis.
#
# </details>


# %% answer="explicit-resolve-ambiguity"
def normal_equations(x, y):
    """x float32[n@data,d@model], y float32[n@data] -> (x.T @ x float32[d@model,d], x.T @ y float32[d@model])."""
    ### BEGIN SOLUTION
    matrix = jnp.matmul(x.T, x, out_sharding=P("model", None))
    vector = jnp.matmul(x.T, y, out_sharding=P("model"))
    ### END SOLUTION
    return matrix, vector


# %% check="explicit-resolve-ambiguity" name="example" points=1
"""The example, and the types of both results."""
mesh = example_mesh()
with jax.set_mesh(mesh):
    x = place(mesh, np.ones((8, 4), np.float32), "data", "model")
    y = place(mesh, np.ones(8, np.float32), "data")
    results = ask(normal_equations, x, y)
compare(results, (np.full((4, 4), 8, np.float32), np.full(4, 8, np.float32)), label="the results")
for name, result, wanted in zip(("x.T @ x", "x.T @ y"), results, (("model", None), ("model",)), strict=True):
    got = in_types(result.shape, entries_of(result))
    want = in_types(result.shape, wanted)
    require(got == want, f"`{name}` has the type {got}; expected {want}.")

# %% hidden="explicit-resolve-ambiguity" name="program" points=2
"""Values, types and communication for new shapes and meshes."""
rng = inputs.rng()
for sizes in ((4, 2), (2, 4), (2, 3)):
    mesh = devices.mesh(sizes, ("data", "model"), explicit=True)
    along_data, along_model = sizes
    n, d = 16 * int(rng.integers(2, 5)), 12 * int(rng.integers(1, 3))
    numbers, targets = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    with jax.set_mesh(mesh):
        x, y = place(mesh, numbers, "data", "model"), place(mesh, targets, "data")
        made = program(normal_equations, x, y)
        require(not is_unreduced(made.outputs), "A result is unreduced, so its sums are not added yet.")
        results = made.run(x, y)
    exact = numbers.astype(np.float64)
    compare(
        results, ((exact.T @ exact).astype(np.float32), (exact.T @ targets).astype(np.float32)), label="the results"
    )
    matrix, vector = made.outputs
    require(entries_of(matrix) == ("model", None), "The matrix is not partitioned along model, by its rows alone.")
    require(entries_of(vector) == ("model",), "The vector is not partitioned along model.")
    require(
        summed_elements(made) <= (d * d + d) // along_model,
        "The all-reduces return more elements on each device than its shards of the two results have.",
    )
    require(
        moved_elements(made) <= n * d // along_data,
        "The devices gather more than the examples of one position along data.",
    )

# %% [markdown] why="explicit-resolve-ambiguity"
# `out_sharding` does two things. It decides how the partial sums are reduced, and which axis of the result keeps the mesh axis `model`. Without it, the compiler would have to guess both. **Next:** What changes in the program if you ask for `P(None, "model")`, and why are the values of the matrix the same?


# %% wrong="explicit-resolve-ambiguity" because="A product is still ambiguous. JAX raises the error in the product, before a `reshard` could change its result."
def normal_equations(x, y):
    return x.T @ x, x.T @ y


# %% wrong="explicit-resolve-ambiguity" because="Replicates the results, so each device stores and adds all of the matrix."
def normal_equations(x, y):
    return jnp.matmul(x.T, x, out_sharding=P()), jnp.matmul(x.T, y, out_sharding=P())


# %% wrong="explicit-resolve-ambiguity" because="First asks for a replicated result and then partitions it, so the all-reduce adds all sums on every device."
def normal_equations(x, y):
    matrix = jax.reshard(jnp.matmul(x.T, x, out_sharding=P()), P("model", None))
    return matrix, jnp.matmul(x.T, y, out_sharding=P("model"))


# %% wrong="explicit-resolve-ambiguity" because="Gathers all examples on every device first, which avoids the error at the highest cost."
def normal_equations(x, y):
    x, y = jax.reshard(x, P()), jax.reshard(y, P())
    return jax.reshard(x.T @ x, P("model", None)), jax.reshard(x.T @ y, P("model"))


# %% wrong="explicit-resolve-ambiguity" because="Partitions the columns of the matrix, but the task asks for its rows."
def normal_equations(x, y):
    return jnp.matmul(x.T, x, out_sharding=P(None, "model")), jnp.matmul(x.T, y, out_sharding=P("model"))


# %% wrong="explicit-resolve-ambiguity" because="Partitions the results along the axis that is summed, as if the sums of each position stayed there."
def normal_equations(x, y):
    return jnp.matmul(x.T, x, out_sharding=P("data", None)), jnp.matmul(x.T, y, out_sharding=P("data"))


# %% wrong="explicit-resolve-ambiguity" because="A product is still ambiguous. JAX raises the error in the product, before a `reshard` could change its result."
def normal_equations(x, y):
    return jax.reshard(x.T @ x, P("model", None)), jax.reshard(x.T @ y, P("model"))


# %% wrong="explicit-resolve-ambiguity" because="A product is still ambiguous. JAX raises the error in the product, before a `reshard` could change its result."
def normal_equations(x, y):
    return jnp.matmul(x.T, x, out_sharding=P("model", None)), x.T @ y


# %% wrong="explicit-resolve-ambiguity" because="Divides by the number of examples, which gives means instead of sums."
def normal_equations(x, y):
    matrix = jnp.matmul(x.T, x, out_sharding=P("model", None)) / len(x)
    return matrix, jnp.matmul(x.T, y, out_sharding=P("model")) / len(x)


# %% wrong="explicit-resolve-ambiguity" because="Gives every device the partial sums of its own examples, without adding them over `data`."
def normal_equations(x, y):
    whole = jax.reshard(x, P("data"))

    def local(x, whole, y):
        return x.T @ whole, x.T @ y

    specs = P("data", "model"), P("data"), P("data")
    return jax.shard_map(local, in_specs=specs, out_specs=(P("model"), P("model")), check_vma=False)(x, whole, y)


# %% wrong="explicit-resolve-ambiguity" because="Returns unreduced results, whose sums over `data` are not added yet."
def normal_equations(x, y):
    matrix = jnp.matmul(x.T, jax.reshard(x, P("data")), out_sharding=P("model", None, unreduced={"data"}))
    return matrix, jnp.matmul(x.T, y, out_sharding=P("model", unreduced={"data"}))


# %% wrong="explicit-resolve-ambiguity" because="Replicates the vector, but it should be partitioned along `model`."
def normal_equations(x, y):
    return jnp.matmul(x.T, x, out_sharding=P("model", None)), jnp.matmul(x.T, y, out_sharding=P())


# %% wrong="explicit-resolve-ambiguity" because="Calls the argument `sharding`, but its name is `out_sharding`."
def normal_equations(x, y):
    return jnp.matmul(x.T, x, sharding=P("model", None)), jnp.matmul(x.T, y, sharding=P("model"))


# %% wrong="explicit-resolve-ambiguity" because="A product is still ambiguous. JAX raises the error in the product, before a `reshard` could change its result."
def normal_equations(x, y):
    return jnp.matmul(x.T, x), jnp.matmul(x.T, y)


# %% right="explicit-resolve-ambiguity"
def normal_equations(x, y):
    matrix = jnp.einsum("ni,nj->ij", x, x, out_sharding=P("model", None))
    return matrix, jnp.einsum("ni,n->i", x, y, out_sharding=P("model"))


# %% right="explicit-resolve-ambiguity"
@auto_axes(out_sharding=(P("model", None), P("model")))
def normal_equations(x, y):
    return x.T @ x, x.T @ y


# %% right="explicit-resolve-ambiguity"
def normal_equations(x, y):
    left = jax.reshard(x, P("data", None))
    return jnp.matmul(x.T, left, out_sharding=P("model")), jnp.matmul(y, x, out_sharding=P("model"))


# %% [markdown] task="explicit-auto-island" stars=2 minutes=20 skills="explicit-resolve-ambiguity"
# ## Smoothing on an island
# **Goal.** Smooth an array along its first axis, which may be partitioned. `jnp.roll` has no sharding rule for a partitioned axis. Leave this part to the compiler, and return an array of the same type.
#
# **Signature.** `smooth(x)` takes a float32 array of any rank from one to three, with any sharding on a mesh with any Explicit axes. Entry i of the result is the mean of `x[i - 1]`, `x[i]` and `x[i + 1]`, where the last entry is before the first one. The type of the result equals that of `x`, sharding included.
#
# **Example.** `[3, 0, 0, 6, 0, 0, 0, 0]` with the type `float32[8@data]` becomes `[1, 1, 2, 2, 2, 0, 0, 1]`, which is also a `float32[8@data]`.
#
# **Judged.** The values, and the types for several meshes and shardings. In the compiled program, the collectives together return fewer than `x.size / M` elements on each device, if M devices partition the columns. This limit is the number of elements in all rows of the device's columns. An island with `jnp.roll` satisfies this, and so does one that adds a row at each end and then slices. Gathering all rows, repeating the array, or indexing with an array of integers does not. **Not judged.** The number of collectives, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# Inside an island, the type of `x` contains no sharding. Where can you read the sharding that the result should have?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Read `jax.typeof(x).sharding.spec` before you enter the island. `jax.sharding.auto_axes` takes a function and `out_sharding`, and returns a function.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write an inner function of `x` that adds `jnp.roll(x, 1, axis=0)`, `x` and `jnp.roll(x, -1, axis=0)`. Call `auto_axes(inner, out_sharding=spec)(x)`.
#
# </details>


# %% answer="explicit-auto-island"
def smooth(x):
    """The mean of each entry along axis 0 and its two neighbours, around the ends, with the type of x."""
    ### BEGIN SOLUTION

    def mean_of_three(x):
        return (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3

    return auto_axes(mean_of_three, out_sharding=jax.typeof(x).sharding.spec)(x)
    ### END SOLUTION


# %% check="explicit-auto-island" name="example" points=1
"""The example, and a table whose rows are partitioned."""
mesh = example_mesh()
with jax.set_mesh(mesh):
    line = place(mesh, np.array([3, 0, 0, 6, 0, 0, 0, 0], np.float32), "data")
    result = ask(smooth, line)
    compare(result, np.array([1, 1, 2, 2, 2, 0, 0, 1], np.float32), label="the smoothed line")
    got = in_types(result.shape, entries_of(result))
    require(got == "float32[8@data]", f"The result has the type {got}; expected float32[8@data].")
    numbers = inputs.rng().normal(size=(48, 6)).astype(np.float32)
    table = place(mesh, numbers, "data", "model")
    made = program(smooth, table)
    compare(
        made.run(table), (np.roll(numbers, 1, 0) + numbers + np.roll(numbers, -1, 0)) / 3, label="the smoothed table"
    )
    got = in_types((48, 6), entries_of(made.outputs))
    require(got == "float32[48@data,6@model]", f"The result has the type {got}; expected float32[48@data,6@model].")
    sent = moved_elements(made) + summed_elements(made)
    require(
        sent < 144,
        f"The collectives return {sent} elements on each device; expected fewer than 144, the elements of its columns.",
    )

# %% hidden="explicit-auto-island" name="types" points=1
"""The type of the result is that of the argument, for other meshes, ranks and shardings."""
rng = inputs.rng()
PLACES = (
    ((4, 2), ("data", "model"), ("model",), "a line along the second mesh axis"),
    ((4, 2), ("data", "model"), (None, "data"), "a table whose columns are partitioned"),
    ((2, 3), ("rows", "columns"), (("rows", "columns"), None, None), "three axes, the first along both mesh axes"),
    ((8,), ("d",), (), "a replicated array"),
)
for sizes, names, entries, words in PLACES:
    mesh = devices.mesh(sizes, names, explicit=True)
    rank = max(len(entries), 1)
    shape = tuple(24 * int(n) for n in rng.integers(1, 3, size=rank))[:1] + (8, 6)[: rank - 1]
    numbers = rng.normal(size=shape).astype(np.float32)
    with case(f"for {words}"), jax.set_mesh(mesh):
        result = ask(smooth, place(mesh, numbers, *entries))
        mean = (np.roll(numbers, 1, 0) + numbers + np.roll(numbers, -1, 0)) / 3
        compare(result, mean, label="the result")
        wanted = (*entries, *[None] * (rank - len(entries)))
        require(entries_of(result) == wanted, "the type of the result is not that of the argument.")

# %% hidden="explicit-auto-island" name="program" points=2
"""The compiled program has the type of its argument and does not gather the rows."""
rng = inputs.rng()
for sizes, names, entries in (
    ((4, 2), ("data", "model"), ("data", None)),
    ((2, 3), ("rows", "columns"), ("columns", "rows")),
    ((8,), ("d",), ("d", None)),
):
    mesh = devices.mesh(sizes, names, explicit=True)
    numbers = rng.normal(size=(24 * int(rng.integers(2, 4)), 12)).astype(np.float32)
    with jax.set_mesh(mesh):
        x = place(mesh, numbers, *entries)
        made = program(smooth, x)
        result = made.run(x)
    mean = (np.roll(numbers, 1, 0) + numbers + np.roll(numbers, -1, 0)) / 3
    compare(result, mean, label="the result")
    require(entries_of(made.outputs) == entries, "The type of the result is not that of the argument.")
    across = mesh.shape[entries[1]] if entries[1] else 1
    require(
        moved_elements(made) + summed_elements(made) < numbers.size // across,
        "The collectives return on each device at least as many elements as its columns have. Do not gather the rows.",
    )

# %% [markdown] why="explicit-auto-island"
# In the island, all axes are Auto, so the compiler partitions the two rolls. Each device receives only the rows next to its own. Outside, the type is known again, because you stated it. Updates of slices such as `x.at[1:].add(...)` are not an alternative here: with partitioned rows under `jit`, JAX 0.10.2 computes wrong sums for them. **Next:** With `axes=`, an island can make only some mesh axes Auto. Which axes would you choose here, and could `smooth` find them by itself?


# %% wrong="explicit-auto-island" because="Rolls in Explicit mode, where `roll` has no rule for a partitioned axis."
def smooth(x):
    return (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3


# %% wrong="explicit-auto-island" because="Replicates the array first, so every device receives all rows."
def smooth(x):
    spec, x = jax.typeof(x).sharding.spec, jax.reshard(x, P())
    return jax.reshard((jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3, spec)


# %% wrong="explicit-auto-island" because="States the sharding of the example, but the result should have that of the argument."
def smooth(x):
    mean_of_three = lambda x: (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3
    return auto_axes(mean_of_three, out_sharding=P("data", *["model"] * (x.ndim > 1)))(x)


# %% wrong="explicit-auto-island" because="Returns a replicated result from the island, which gathers all rows."
def smooth(x):
    mean_of_three = lambda x: (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3
    return auto_axes(mean_of_three, out_sharding=P())(x)


# %% wrong="explicit-auto-island" because="Replicates in the island and reshards afterwards. The type is right, but every device receives all rows."
def smooth(x):
    spec = jax.typeof(x).sharding.spec

    mean_of_three = lambda x: (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3
    return jax.reshard(auto_axes(mean_of_three, out_sharding=P())(x), spec)


# %% wrong="explicit-auto-island" because="Uses an array of the outer function in the island, which accepts only its own arguments."
def smooth(x):
    def mean_of_three(shifted):
        return (jnp.roll(shifted, 1, axis=0) + x + jnp.roll(shifted, -1, axis=0)) / 3

    return auto_axes(mean_of_three, out_sharding=jax.typeof(x).sharding.spec)(x)


# %% wrong="explicit-auto-island" because="Rolls without `axis=0`, which shifts the flattened array instead of its rows."
def smooth(x):
    def mean_of_three(x):
        return (jnp.roll(x, 1) + x + jnp.roll(x, -1)) / 3

    return auto_axes(mean_of_three, out_sharding=jax.typeof(x).sharding.spec)(x)


# %% wrong="explicit-auto-island" because="Gathers all rows of one column after the other, so a device still receives all rows of its columns."
def smooth(x):
    spec = jax.typeof(x).sharding.spec
    rows = spec[0] if x.ndim > 1 else None

    def mean_of_three(x):
        return (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3

    def column(mine):
        whole = mean_of_three(jax.lax.all_gather(mine, rows, tiled=True))
        return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(rows) * len(mine), len(mine))

    if not rows:
        return auto_axes(mean_of_three, out_sharding=spec)(x)
    by_column = lambda x: jnp.moveaxis(jax.lax.map(column, jnp.moveaxis(x, -1, 0)), 0, -1)
    return jax.shard_map(by_column, in_specs=spec, out_specs=spec)(x)


# %% wrong="explicit-auto-island" because="Omits `out_sharding`, but JAX cannot infer the sharding of what leaves an island."
def smooth(x):
    mean_of_three = lambda x: (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3
    return auto_axes(mean_of_three)(x)


# %% wrong="explicit-auto-island" because="Runs on the shards of each device, so the ends of each shard are averaged with each other."
def smooth(x):
    mean_of_three = lambda x: (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3
    return jax.shard_map(mean_of_three, out_specs=jax.typeof(x).sharding.spec)(x)


# %% wrong="explicit-auto-island" because="Repeats the first and the last entry at the ends, but the neighbours there are at the other end."
def smooth(x):
    def mean_of_three(x):
        before, after = jnp.concatenate([x[:1], x[:-1]]), jnp.concatenate([x[1:], x[-1:]])
        return (before + x + after) / 3

    return auto_axes(mean_of_three, out_sharding=jax.typeof(x).sharding.spec)(x)


# %% wrong="explicit-auto-island" because="Uses an array of the outer function in the island, which accepts only its own arguments."
def smooth(x):
    weights = jnp.ones(3) / 3

    @auto_axes
    def island(x):
        return weights[0] * jnp.roll(x, 1, axis=0) + weights[1] * x + weights[2] * jnp.roll(x, -1, axis=0)

    return island(x, out_sharding=jax.typeof(x).sharding.spec)


# %% wrong="explicit-auto-island" because="Indexes the rows with an array of integers, for which the compiler gathers all rows."
def smooth(x):
    @auto_axes
    def island(x):
        rows = jnp.arange(len(x))
        return (x[(rows - 1) % len(x)] + x + x[(rows + 1) % len(x)]) / 3

    return island(x, out_sharding=jax.typeof(x).sharding.spec)


# %% wrong="explicit-auto-island" because="Gathers the rows before it rolls. The columns remain partitioned, but every device receives all rows of its columns."
def smooth(x):
    spec = jax.typeof(x).sharding.spec
    x = jax.reshard(x, P(None, *spec[1:]))
    return jax.reshard((jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3, spec)


# %% right="explicit-auto-island"
def smooth(x):
    spec = jax.typeof(x).sharding.spec
    before = auto_axes(lambda x: jnp.concatenate([x[-1:], x[:-1]]), out_sharding=spec)
    after = auto_axes(lambda x: jnp.concatenate([x[1:], x[:1]]), out_sharding=spec)
    return (before(x) + x + after(x)) / 3


# %% right="explicit-auto-island"
def smooth(x):
    @auto_axes
    def neighbours(x):
        return jnp.roll(x, 1, axis=0) + jnp.roll(x, -1, axis=0)

    return (x + neighbours(x, out_sharding=jax.typeof(x).sharding)) / 3


# %% right="explicit-auto-island"
def smooth(x):
    spec = jax.typeof(x).sharding.spec
    along = spec[0] if len(spec) else None
    if along is None:
        return (jnp.roll(x, 1, axis=0) + x + jnp.roll(x, -1, axis=0)) / 3

    def on_shards(x):
        count = jax.lax.axis_size(along)
        before = jax.lax.ppermute(x[-1:], along, [(i, (i + 1) % count) for i in range(count)])
        after = jax.lax.ppermute(x[:1], along, [(i, (i - 1) % count) for i in range(count)])
        padded = jnp.concatenate([before, x, after])
        return (padded[:-2] + x + padded[2:]) / 3

    return jax.shard_map(on_shards, in_specs=spec, out_specs=spec)(x)


# %% right="explicit-auto-island"
def smooth(x):
    def island(x):
        longer = jnp.concatenate([x[-1:], x, x[:1]])
        return (longer[:-2] + longer[1:-1] + longer[2:]) / 3

    return auto_axes(island, out_sharding=jax.typeof(x).sharding)(x)


# %% right="explicit-auto-island"
def smooth(x):
    def island(x):
        longer = jnp.pad(x, [(1, 1)] + [(0, 0)] * (x.ndim - 1), mode="wrap")
        return (longer[:-2] + longer[1:-1] + longer[2:]) / 3

    return auto_axes(island, out_sharding=jax.typeof(x).sharding.spec)(x)


# %% [markdown] task="explicit-mlp" stars=2 minutes=20 skills="explicit-resolve-ambiguity,sharding-place-batch"
# ## A tensor-parallel MLP with one all-reduce
# **Goal.** Choose the shardings of a network's parameters so that each device stores a part of them, and write the network so that it needs a single all-reduce.
#
# **Signature.** `mlp_specs()` returns a dict with the specs of the parameters, as `P`. Their shapes are `"w1"` (d, h), `"b1"` (h,), `"w2"` (h, d) and `"b2"` (d,), all float32. `mlp(params, x)` takes a dict of these arrays with your shardings, on a mesh with the Explicit axes `data` and `model`, and a batch `x` of the type `float32[B@data,d]`. It returns `tanh(x @ w1 + b1) @ w2 + b2` with the type `float32[B@data,d]`.
#
# **Example.** With parameters of zeros except `b2`, which contains ones, each entry of the result is 1.
#
# **Judged.** The values and the type of the result. With M positions along `model`, each device stores 1/M of `w1`, `b1` and `w2`. The compiled program has exactly one collective, an all-reduce that returns as many elements on each device as its shard of the result has. The gradient of each parameter has the type of this parameter. **Not judged.** The sharding of `b2`, if the rest is right.
#
# <details><summary>Hint 1 · a question</summary>
#
# The hidden units should be partitioned along `model`. Which axes of the four parameters count hidden units?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Partition these axes, and no others. Then the first product needs no communication, because its summed axis is not partitioned. The second product sums over the hidden units.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `jnp.matmul` with `out_sharding=P("data", None)` for the second product. Add `b2`, which is replicated, to its result.
#
# </details>


# %% answer="explicit-mlp"
def mlp_specs():
    """The specs of w1 (d, h), b1 (h,), w2 (h, d) and b2 (d,)."""
    ### BEGIN SOLUTION
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}
    ### END SOLUTION


def mlp(params, x):
    """tanh(x @ w1 + b1) @ w2 + b2 for a batch x float32[B@data,d]; the result has the type of x."""
    ### BEGIN SOLUTION
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None)) + params["b2"]
    ### END SOLUTION


# %% check="explicit-mlp" name="example" points=1
"""The example, and the type of the result."""
mesh = example_mesh()
params = {name: np.zeros(shape, np.float32) for name, shape in {"w1": (4, 8), "b1": 8, "w2": (8, 4)}.items()}
params["b2"] = np.ones(4, np.float32)
with jax.set_mesh(mesh):
    specs = ask(mlp_specs)
    require(isinstance(specs, dict), "`mlp_specs` should return a dict.")
    require(sorted(specs) == sorted(params), f"The names in your dict are {sorted(specs)}; expected {sorted(params)}.")
    for name, spec in specs.items():
        require(isinstance(spec, P), f'The value of "{name}" is {spec!r}, not a P.')
        require(
            len(spec) <= params[name].ndim,
            f'"{name}" has {params[name].ndim} axes, but {spec} has {len(spec)} entries.',
        )
        unknown = [axis for axis in names_of(padded(spec, 2)) if axis not in mesh.axis_names]
        require(not unknown, f'The spec of "{name}" is {spec}. The mesh has the axes "data" and "model".')
    placed = {name: place(mesh, array, *specs[name]) for name, array in params.items()}
    result = ask(mlp, placed, place(mesh, np.ones((8, 4), np.float32), "data"))
compare(result, np.ones((8, 4), np.float32), label="what `mlp` returns")
got = in_types((8, 4), entries_of(result))
require(got == "float32[8@data,4]", f"The result has the type {got}; expected float32[8@data,4].")

# %% hidden="explicit-mlp" name="program" points=2
"""Values, types, bytes and the single all-reduce, for new shapes and meshes."""
rng = inputs.rng()
for sizes in ((4, 2), (2, 4), (2, 3)):
    mesh = devices.mesh(sizes, ("data", "model"), explicit=True)
    along_data, along_model = sizes
    batch, d, h = 8 * int(rng.integers(2, 4)), 12 * int(rng.integers(2, 4)), 60
    shapes = {"w1": (d, h), "b1": (h,), "w2": (h, d), "b2": (d,)}
    params = {name: (rng.normal(size=shape) / 4).astype(np.float32) for name, shape in shapes.items()}
    numbers = rng.normal(size=(batch, d)).astype(np.float32)
    with jax.set_mesh(mesh):
        specs = ask(mlp_specs)
        require(isinstance(specs, dict) and set(specs) == set(params), "The dict of specs has other names.")
        try:
            placed = {name: place(mesh, array, *specs[name]) for name, array in params.items()}
        except Exception:
            require(False, "A parameter does not fit its spec on a mesh of another size.")
        x = place(mesh, numbers, "data")
        made = program(mlp, placed, x)
        require(not is_unreduced(made.outputs), "The result is unreduced, so its sums are not added yet.")
        result = made.run(placed, x)
    exact = {name: array.astype(np.float64) for name, array in params.items()}
    wanted = np.tanh(numbers @ exact["w1"] + exact["b1"]) @ exact["w2"] + exact["b2"]
    compare(result, wanted.astype(np.float32), label="what `mlp` returns")
    require(entries_of(made.outputs) == ("data", None), "The type of the result is not that of the batch.")
    for name in ("w1", "b1", "w2"):
        share = placed[name].addressable_shards[0].data.size
        require(share * along_model <= params[name].size, f"A device stores more than 1/M of {name}.")
        require(
            share * along_model >= params[name].size,
            f"A device stores less than 1/M of {name}, so it needs other parts.",
        )
    found = made.elements("all-gather")
    require(found == 0, f"The program has all-gathers of {found} elements. A single all-reduce suffices.")
    require(moved_elements(made) == 0, "The program moves blocks from device to device. A single all-reduce suffices.")
    require(summed_elements(made) > 0, "The program has no all-reduce, so every device does all the work of the model.")
    require(
        summed_elements(made) == batch // along_data * d,
        "The all-reduces return more elements on each device than its shard of the result has.",
    )

# %% hidden="explicit-mlp" name="gradient" points=1
"""The gradients of all parameters, and their types."""


def probe_gradient(params, x):
    return jax.grad(lambda params: jnp.sum(mlp(params, x) ** 2))(params)


mesh, rng = example_mesh(), inputs.rng()
batch, d, h = 8 * int(rng.integers(1, 3)), 4 * int(rng.integers(2, 4)), 12
shapes = {"w1": (d, h), "b1": (h,), "w2": (h, d), "b2": (d,)}
params = {name: (rng.normal(size=shape) / 4).astype(np.float32) for name, shape in shapes.items()}
numbers = rng.normal(size=(batch, d)).astype(np.float32)
with jax.set_mesh(mesh):
    specs = ask(mlp_specs)
    require(isinstance(specs, dict) and set(specs) == set(params), "The dict of specs has other names.")
    placed = {name: place(mesh, array, *specs[name]) for name, array in params.items()}
    gradients = ask(probe_gradient, placed, place(mesh, numbers, "data"))
exact = {name: array.astype(np.float64) for name, array in params.items()}
hidden = np.tanh(numbers @ exact["w1"] + exact["b1"])
outer = 2 * (hidden @ exact["w2"] + exact["b2"])
inner = outer @ exact["w2"].T * (1 - hidden**2)
wanted = {"w1": numbers.T @ inner, "b1": inner.sum(0), "w2": hidden.T @ outer, "b2": outer.sum(0)}
compare(gradients, {name: array.astype(np.float32) for name, array in wanted.items()}, label="the gradients")
for name in params:
    require(
        entries_of(gradients[name]) == entries_of(placed[name]), "A gradient does not have the type of its parameter."
    )

# %% [markdown] why="explicit-mlp"
# The two products are partitioned in opposite ways. The first leaves the hidden units partitioned, and `tanh` works on each unit alone. The second sums over them, so one all-reduce suffices. **Next:** How many all-reduces has the gradient, and along which mesh axis does each of them add?


# %% wrong="explicit-mlp" because="Replicates the parameters. Nothing is communicated, but each device stores and computes the whole model."
def mlp_specs():
    return {"w1": P(), "b1": P(), "w2": P(), "b2": P()}


def mlp(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


# %% wrong="explicit-mlp" because="Leaves the second product ambiguous, so JAX raises an error."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


# %% wrong="explicit-mlp" because="Replicates the result of the second product, which gathers the batch."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P()) + params["b2"]


# %% wrong="explicit-mlp" because="Gathers the weights before they are used, as in FSDP, instead of computing with the shards."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    params = {name: jax.reshard(leaf, P()) for name, leaf in params.items()}
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


# %% wrong="explicit-mlp" because="Partitions the rows of w1, so the first product sums over a partitioned axis too."
def mlp_specs():
    return {"w1": P("model", None), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    x = jax.reshard(x, P("data", "model"))
    hidden = jnp.matmul(x, params["w1"], out_sharding=P("data", "model"))
    hidden = jnp.tanh(hidden + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Partitions the columns of w2, so the hidden units are gathered, and the result as well."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P(None, "model"), "b2": P("model")}


def mlp(params, x):
    hidden = jax.reshard(jnp.tanh(x @ params["w1"] + params["b1"]), P("data", None))
    return jax.reshard(hidden @ params["w2"] + params["b2"], P("data", None))


# %% wrong="explicit-mlp" because="Adds b2 on every device before the sum over `model`, so it is counted several times."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    def on_shards(params, x):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jax.lax.psum(hidden @ params["w2"] + params["b2"], "model")

    return jax.shard_map(on_shards, in_specs=(mlp_specs(), P("data")), out_specs=P("data"))(params, x)


# %% wrong="explicit-mlp" because="Leaves the result partitioned along `model`, but the task asks for the type of the batch."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P("model")}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", "model")) + params["b2"]


# %% wrong="explicit-mlp" because="Replicates b1, of which each device needs only the part of its hidden units."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P(), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Partitions the hidden units along `data`, the axis of the batch, so one of them has to be gathered."
def mlp_specs():
    return {"w1": P(None, "data"), "b1": P("data"), "w2": P("data", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(jax.reshard(x, P()) @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Adds the bias to an unreduced product, where only other unreduced arrays may be added."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    unreduced = P("data", None, unreduced={"model"})
    return jax.reshard(jnp.matmul(hidden, params["w2"], out_sharding=unreduced) + params["b2"], P("data", None))


# %% wrong="explicit-mlp" because="Replicates the result of the second product and partitions it afterwards, so the whole batch is gathered."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    result = jnp.matmul(hidden, params["w2"], out_sharding=P()) + params["b2"]
    return jax.reshard(result, P("data", None))


# %% wrong="explicit-mlp" because="Partitions the columns of the result first, and then its rows, which moves the result between the devices."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    result = jnp.matmul(hidden, params["w2"], out_sharding=P(None, "model"))
    return jax.reshard(result, P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Partitions b2, which each device needs as a whole, so it has to be gathered."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P("model")}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None)) + jax.reshard(params["b2"], P())


# %% wrong="explicit-mlp" because="Partitions the weights along `data` as well, as in FSDP, so they are gathered before they are used."
def mlp_specs():
    return {"w1": P("data", "model"), "b1": P("model"), "w2": P("model", "data"), "b2": P()}


def mlp(params, x):
    w1, w2 = jax.reshard(params["w1"], P(None, "model")), jax.reshard(params["w2"], P("model", None))
    hidden = jnp.tanh(x @ w1 + params["b1"])
    return jnp.matmul(hidden, w2, out_sharding=P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Omits `b2`."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None))


# %% wrong="explicit-mlp" because="Omits `tanh`, so the network is linear."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = x @ params["w1"] + params["b1"]
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Leaves the second product ambiguous, so JAX raises an error."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jax.reshard(hidden @ params["w2"], P("data", None)) + params["b2"]


# %% wrong="explicit-mlp" because="Gathers the hidden units before the second product, whose weights are then gathered too."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jax.reshard(jnp.tanh(x @ params["w1"] + params["b1"]), P("data", None))
    return hidden @ params["w2"] + params["b2"]


# %% wrong="explicit-mlp" because="Returns an unreduced result, whose sums over `model` are not added yet."
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.matmul(hidden, params["w2"], out_sharding=P("data", None, unreduced={"model"}))


# %% right="explicit-mlp"
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model"), "b2": P(None)}


def mlp(params, x):
    hidden = jnp.tanh(jnp.einsum("bd,dh->bh", x, params["w1"]) + params["b1"])
    unreduced = jnp.einsum("bh,hd->bd", hidden, params["w2"], out_sharding=P("data", None, unreduced={"model"}))
    return jax.reshard(unreduced, P("data", None)) + params["b2"]


# %% right="explicit-mlp"
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x):
    def on_shards(params, x):
        hidden = jnp.tanh(x @ params["w1"] + params["b1"])
        return jax.lax.psum(hidden @ params["w2"], "model") + params["b2"]

    return jax.shard_map(on_shards, in_specs=(mlp_specs(), P("data")), out_specs=P("data"))(params, x)


# %% right="explicit-mlp"
def mlp_specs():
    return {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


@auto_axes(out_sharding=P("data", None))
def mlp(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


# %% [markdown] task="explicit-accumulate" stars=3 minutes=25 skills="explicit-mlp,08_control_flow"
# ## Delay the reduction
# *Needs: Deeper: unreduced values.*
#
# **Goal.** Each device stores only its shard of the parameters. Compute their mean gradient over several micro-batches in a loop. The compiled program should communicate only before and after it.
#
# **Signature.** `accumulate(loss, params, batches)`. The mesh has one Explicit axis, `data`. `params` is a dict of float32 arrays. Each of them is partitioned along one of its axes, or replicated. `batches` is a `float32[steps,B@data,d]`, one micro-batch for each step. `loss(params, batch)` is a scalar, the mean over a micro-batch, and contains only products of the batch with parameters and elementwise functions. It needs parameters that are not partitioned. The result is a dict with the mean of the gradients with respect to `params` over all steps. Each gradient has the type of its parameter.
#
# **Example.** For `product_loss` of the setup and `w` of the type `float32[8@data,1]`, the gradient is the mean of all rows of all micro-batches, and also a `float32[8@data,1]`.
#
# **Judged.** The values and the types. The compiled program has a loop and no collective inside it. Each iteration processes one micro-batch, or a few: outside the loop, the program neither computes nor stores the gradients of many micro-batches at once. (The check limits the largest array to half of these gradients, and the operations with one iteration of each loop to a third of all. Programs for GPUs do not state the operations of products.) Before the loop, it gathers at most the parameters. After it, the reductions return as many elements as the parameters have. A reduce-scatter counts as the all-reduce that it replaces. **Not judged.** Whether you or the compiler move the communication out of the loop. Parameters that are added to a partitioned array, such as biases, because JAX 0.10.2 has no rule for them if they are reduced.
#
# <details><summary>Hint 1 · a question</summary>
#
# The gradient with respect to a replicated parameter is reduced at once. Which type must the parameters have in the loop so that their gradients are unreduced? Which type does the sum have after the loop, and which one is wanted?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.reshard(leaf, P(reduced={"data"}))` also gathers a partitioned array. The carry of the loop is unreduced, so its initial value must be too. An unreduced array can be resharded to any spec, and `jax.tree.map` takes several trees.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Start with `jax.reshard(jnp.zeros_like(leaf), P(unreduced={"data"}))` for each leaf. In the body of `jax.lax.scan`, add the gradients with `jnp.add`. After the loop, reshard each sum to `jax.typeof(leaf).sharding.spec` of its parameter, and divide it by the number of steps.
#
# </details>


# %% answer="explicit-accumulate"
def accumulate(loss, params, batches):
    """The mean over all steps of the gradient of loss(params, batch), with the types of the parameters.
    params: dict of arrays, batches: float32[steps,B@data,d]."""
    ### BEGIN SOLUTION
    cast = lambda spec, tree: jax.tree.map(lambda leaf: jax.reshard(leaf, spec), tree)
    whole = cast(P(reduced={"data"}), params)
    zeros = cast(P(unreduced={"data"}), jax.tree.map(jnp.zeros_like, params))

    def step(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(whole, batch)), None

    total, _ = jax.lax.scan(step, zeros, batches)
    mean = lambda leaf, total: jax.reshard(total, jax.typeof(leaf).sharding.spec) / len(batches)
    return jax.tree.map(mean, params, total)
    ### END SOLUTION


# %% check="explicit-accumulate" name="example" points=1
"""The example, with the values and the types of the result."""


mesh = devices.mesh((8,), ("data",), explicit=True)
numbers = inputs.rng().normal(size=(3, 16, 8)).astype(np.float32)
with jax.set_mesh(mesh):
    params, batches = {"w": place(mesh, np.ones((8, 1), np.float32), "data")}, place(mesh, numbers, None, "data")
    made = program(lambda params, batches: accumulate(product_loss, params, batches), params, batches)
    require(isinstance(made.outputs, dict) and "w" in made.outputs, "`accumulate` should return a dict like `params`.")
    require(not is_unreduced(made.outputs), 'The gradient of "w" is unreduced. Reduce it after the loop.')
    compare(made.run(params, batches), {"w": numbers.mean((0, 1))[:, None]}, label="the mean gradient")
got = in_types((8, 1), entries_of(made.outputs["w"]))
require(got == "float32[8@data,1]", f'The gradient of "w" has the type {got}; expected float32[8@data,1].')
inside = sum(one.elements for one in made.collectives if one.in_loop)
require(not inside, f"The collectives inside the loop return {inside} elements in each iteration; expected none.")

# %% hidden="explicit-accumulate" name="program" points=3
"""The gradients of a network, and one reduction after the loop."""


def probe_network(params, batches):
    return accumulate(network_loss, params, batches)


rng = inputs.rng()
for count, specs in (
    (8, {"w1": (None, "data"), "w2": ("data", None)}),
    (4, {"w1": ("data", None), "w2": (None, None)}),
):
    mesh = devices.mesh((count,), ("data",), explicit=True)
    steps, batch, d, h, k = 4 * count + int(rng.integers(1, 4)), 8, 32, 8 * int(rng.integers(6, 9)), 5
    weights = {"w1": rng.normal(size=(d, h)) / 4, "w2": rng.normal(size=(h, k)) / 4}
    numbers = rng.normal(size=(steps, batch, d)).astype(np.float32)
    with jax.set_mesh(mesh), case(f"for w1 with the spec P{specs['w1']} and w2 with P{specs['w2']}"):
        params = {name: place(mesh, array.astype(np.float32), *specs[name]) for name, array in weights.items()}
        batches = place(mesh, numbers, None, "data")
        made = program(probe_network, params, batches)
        require(isinstance(made.outputs, dict) and set(made.outputs) == {"w1", "w2"}, "the result has other names.")
        require(not is_unreduced(made.outputs), "a gradient is still unreduced after the loop.")
        result = made.run(params, batches)
        rows = numbers.reshape(-1, d).astype(np.float64)
        hidden = np.tanh(rows @ weights["w1"])
        outer = 2 * (hidden @ weights["w2"]) / (batch * k * steps)
        inner = outer @ weights["w2"].T * (1 - hidden**2)
        wanted = {"w1": rows.T @ inner, "w2": hidden.T @ outer}
        compare(result, {name: array.astype(np.float32) for name, array in wanted.items()}, label="the mean gradient")
        for name in ("w1", "w2"):
            require(
                entries_of(made.outputs[name]) == specs[name], f"the gradient of {name} has another type than {name}."
            )
        size = sum(array.size for array in weights.values())
        require(made.loops > 0, "the program has no loop. Process one micro-batch after the other.")
        require(not any(one.in_loop for one in made.collectives), "a collective is inside the loop.")
        require(
            size <= summed_elements(made) <= size + 64,
            "the reductions after the loop do not have as many elements as the parameters.",
        )
        require(moved_elements(made) <= size + 64, "the program gathers more than the parameters.")
        require(
            made.intermediates < steps * size / 2,
            f"for {steps} micro-batches, the program has an array of {made.intermediates:,} elements. One gradient has "
            f"{size:,}. Add the gradient of each micro-batch to the sum in the loop.",
        )
        work = 6 * steps * batch / count * size  # three products for each parameter
        if made.flops:
            require(
                made.flops <= work / 3,
                "the program processes many micro-batches at once. Compute the gradient of one micro-batch in each "
                "iteration of the loop.",
            )

# %% [markdown] why="explicit-accumulate"
# The type of a parameter determines the type of its gradient, and a reduced parameter has an unreduced gradient. The sum of unreduced arrays is unreduced, so the carry keeps its type. One `reshard` before and one after the loop state where the communication happens. On accelerators, the second one can be a reduce-scatter. **Next:** What does each device store during the loop, and how would you gather only one layer at a time?


# %% wrong="explicit-accumulate" because="Uses the partitioned parameters in the loop, so each iteration gathers them and reduces their gradients."
def accumulate(loss, params, batches):
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(params, batch)), None)
    t, _ = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), batches)
    return jax.tree.map(lambda p: p / len(batches), t)


# %% wrong="explicit-accumulate" because="Gathers the parameters as replicated arrays, so each iteration reduces its gradients over the devices."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P()), params)
    z = jax.tree.map(jnp.zeros_like, w)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Reduces the gradients in each iteration, and not the sum after the loop."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)

    def step(t, batch):
        add = lambda p, one: p + jax.reshard(one, jax.typeof(p).sharding.spec)
        return jax.tree.map(add, t, jax.grad(loss)(w, batch)), None

    t, _ = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), batches)
    return jax.tree.map(lambda p: p / len(batches), t)


# %% wrong="explicit-accumulate" because="Starts with zeros that are not unreduced, but the carry of the loop is unreduced."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(jnp.zeros_like, params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Starts with unreduced zeros but takes the gradient with respect to replicated parameters, which is reduced at once."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P()), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Declares the parameters unreduced, as if they were partial sums, but they should be reduced."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(unreduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Returns the sum of the gradients, not their mean over the steps."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Returns unreduced sums, without the reduction over the devices."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    return t


# %% wrong="explicit-accumulate" because="Returns replicated gradients, but each device should store only its shard of them."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    return jax.tree.map(lambda p: jax.reshard(p, P()) / len(batches), t)


# %% wrong="explicit-accumulate" because="Partitions every gradient along its first axis, but each has the type of its own parameter."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    return jax.tree.map(lambda p: jax.reshard(p, P("data")) / len(batches), t)


# %% wrong="explicit-accumulate" because="Divides the unreduced sums by a number, for which JAX 0.10.2 has no rule. Reduce them first."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t / len(batches), jax.typeof(p).sharding.spec)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Returns the gradient of the last micro-batch, because the body does not add to the carry."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    t, _ = jax.lax.scan(lambda t, batch: (jax.grad(loss)(w, batch), None), z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Uses a Python loop. JAX unrolls it, so the program contains one copy of the step for each micro-batch."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    t = jax.grad(loss)(w, batches[0])
    for batch in batches[1:]:
        t = jax.tree.map(jnp.add, t, jax.grad(loss)(w, batch))
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% wrong="explicit-accumulate" because="Computes all steps at the same time with `vmap`, which needs the memory of all micro-batches at once."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P()), params)
    losses = lambda params: jax.vmap(lambda batch: loss(params, batch))(batches)
    t = jax.grad(lambda w: jnp.mean(losses(w)))(w)
    return jax.tree.map(lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec), params, t)


# %% wrong="explicit-accumulate" because="Computes the gradients of all micro-batches at once, and the loop only adds them. They need the memory that micro-batches should save."
def accumulate(loss, params, batches):
    whole = {name: jax.reshard(leaf, P()) for name, leaf in params.items()}
    count = jax.sharding.get_abstract_mesh().shape["data"]

    def on_one_device(whole, batches):
        whole = jax.lax.pcast(whole, "data", to="varying")
        each = jax.vmap(jax.grad(loss), (None, 0))(whole, batches)
        add = lambda total, one: (jax.tree.map(jnp.add, total, one), None)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, whole), each)
        return jax.tree.map(lambda t: t[None], total)

    specs = P(), P(None, "data")
    total = jax.shard_map(on_one_device, in_specs=specs, out_specs=P("data"))(whole, batches)
    mean = lambda p, t: jax.reshard(jnp.sum(t, 0), jax.typeof(p).sharding.spec) / (count * len(batches))
    return jax.tree.map(mean, params, total)


# %% wrong="explicit-accumulate" because="Processes all micro-batches at once, beside a loop that only counts."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    t = jax.grad(lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, batches)))(w)
    steps = jax.lax.fori_loop(0, len(batches), lambda _, steps: steps + 1, 0.0)
    return jax.tree.map(lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / steps, params, t)


# %% wrong="explicit-accumulate" because="Takes the gradient of the mean micro-batch, but the mean of the gradients differs from the gradient for the mean."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    t = jax.grad(loss)(w, batches.mean(0))
    return jax.tree.map(lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec), params, t)


# %% wrong="explicit-accumulate" because="Calls the loss without the micro-batch."
def accumulate(loss, params, batches):
    w = jax.tree.map(lambda p: jax.reshard(p, P(reduced={"data"})), params)
    z = jax.tree.map(lambda p: jax.reshard(jnp.zeros_like(p), P(unreduced={"data"})), params)
    step = lambda t, batch: (jax.tree.map(jnp.add, t, jax.grad(loss)(w)), None)
    t, _ = jax.lax.scan(step, z, batches)
    m = lambda p, t: jax.reshard(t, jax.typeof(p).sharding.spec) / len(batches)
    return jax.tree.map(m, params, t)


# %% right="explicit-accumulate"
def accumulate(loss, params, batches):
    count = jax.sharding.get_abstract_mesh().shape["data"]
    whole = jax.tree.map(lambda leaf: jax.reshard(leaf, P()), params)
    parts = batches.reshape(len(batches), count, -1, batches.shape[2])
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), out_sharding=P("data")), params)
    add = lambda total, part: (jax.tree.map(jnp.add, total, gradients(whole, part)), None)
    total, _ = jax.lax.scan(add, zeros, parts)
    mean = lambda leaf, total: jax.reshard(total.mean(0), jax.typeof(leaf).sharding.spec) / len(batches)
    return jax.tree.map(mean, params, total)


# %% right="explicit-accumulate"
def accumulate(loss, params, batches):
    def mean_loss(params):
        reduced = jax.tree.map(lambda leaf: jax.reshard(leaf, P(reduced={"data"})), params)
        return jnp.mean(jax.lax.map(lambda batch: loss(reduced, batch), batches))

    return jax.grad(mean_loss)(params)


# %% right="explicit-accumulate"
def accumulate(loss, params, batches):
    weights = {name: jax.reshard(leaf, P(reduced={"data"})) for name, leaf in params.items()}
    zeros = {name: jnp.zeros(leaf.shape, out_sharding=P(unreduced={"data"})) for name, leaf in params.items()}

    def step(total, batch):
        gradients = jax.grad(loss)(weights, batch)
        return {name: total[name] + gradients[name] for name in total}, None

    total, _ = jax.lax.scan(step, zeros, batches)
    specs = {name: jax.typeof(leaf).sharding.spec for name, leaf in params.items()}
    return {name: jax.reshard(total[name], specs[name]) / len(batches) for name in total}


# %% [markdown] task="explicit-pagerank" stars=3 minutes=30 skills="explicit-resolve-ambiguity,explicit-typeof-quiz,08_control_flow"
# ## The rank of pages
# **Goal.** Rank the pages of a web whose table of links is too large for one device. This exercise applies the rules of products, new arrays and loops in a new setting.
#
# **Signature.** `pagerank(links, steps, damping)`. `links` is a `float32[n@data,n]` on a mesh with one Explicit axis, where `links[i, j]` is 1 if page i links to page j and 0 otherwise. `steps` is a Python int and `damping` a Python float, which we call c. The result is a `float32[n@data]` with the rank of each page.
#
# All ranks are 1/n at first. In each step, every page divides c times its rank equally among the pages to which it links. A page without links divides it among all n pages. In addition, each page receives (1 - c)/n. So with a matrix T of the shares, whose rows have the sum 1, a step computes `(1 - c) / n + c * (ranks @ T)`.
#
# **Example.** Of eight pages, page 0 links to all pages, itself included, and each other page links to page 0 alone. With c = 0.5, the ranks after one step are 1/16 + 0.5 · (1/64 + 7/8) = 0.5078 for page 0 and 1/16 + 0.5/64 = 0.0703 for each other page.
#
# **Judged.** The values and the type. In the compiled program, each collective returns at most 2n elements, and all collectives together at most 2n (`steps` + 1), each iteration of a loop counted. So the table of links stays where it is. It is neither gathered nor partitioned in another way. A table of shares that is partitioned like `links` is allowed. **Not judged.** Whether you use `scan`, `fori_loop` or a Python loop.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which axis does `ranks @ T` sum over, and how is this axis partitioned in `T` and in the ranks?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The shares of a page need only its own row, which is on one device. The carry must have the same type before and after a step, so partition the first ranks as well. `jnp.full` takes `out_sharding`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Both sides are partitioned along the summed axis, so state the result with `jnp.matmul(ranks, shares, out_sharding=P("data"))`. For the shares, use `jnp.where` with the number of links of each page, and divide by at least 1.
#
# </details>


# %% answer="explicit-pagerank"
def pagerank(links, steps, damping):
    """The ranks float32[n@data] after `steps` steps, for links float32[n@data,n] of zeros and ones."""
    ### BEGIN SOLUTION
    n = len(links)
    count = links.sum(axis=1, keepdims=True)
    shares = jnp.where(count > 0, links / jnp.maximum(count, 1), 1 / n)

    def step(ranks, _):
        received = jnp.matmul(ranks, shares, out_sharding=P("data"))
        return (1 - damping) / n + damping * received, None

    ranks, _ = jax.lax.scan(step, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)
    return ranks
    ### END SOLUTION


# %% check="explicit-pagerank" name="example" points=1
"""The example, and the type of the result."""
mesh = devices.mesh((8,), ("data",), explicit=True)
table = np.zeros((8, 8), np.float32)
table[0], table[:, 0] = 1, 1
with jax.set_mesh(mesh):
    links = place(mesh, table, "data")
    made = program(pagerank, links, 1, 0.5)
    ranks = made.run(links, 1, 0.5)
    other = inputs.rng().integers(2, size=(8, 8)).astype(np.float32)
    other[:, 1] = 1  # every page links to page 1
    ranks_of_other = made.run(place(mesh, other, "data"), 1, 0.5)
compare(ranks, np.array([1 / 16 + 0.5 * (1 / 64 + 7 / 8), *[1 / 16 + 0.5 / 64] * 7], np.float32), label="the ranks")
wanted = 1 / 16 + 0.5 / 8 * (other / other.sum(1, keepdims=True)).sum(0)
compare(ranks_of_other, wanted.astype(np.float32), label="the ranks in another web")
got = in_types((8,), entries_of(made.outputs))
require(got == "float32[8@data]", f"The result has the type {got}; expected float32[8@data].")

# %% hidden="explicit-pagerank" name="values" points=2
"""The ranks of other webs, for other numbers of devices and steps."""
rng = inputs.rng()
for count, words in ((8, "eight devices"), (4, "four devices"), (2, "two devices")):
    mesh = devices.mesh((count,), ("data",), explicit=True)
    n, steps, damping = 8 * int(rng.integers(2, 5)), int(rng.integers(3, 7)), float(rng.uniform(0.5, 0.9))
    table = (rng.random((n, n)) < 0.3).astype(np.float32)
    table[:, 1] = 1  # every page links to page 1, so none is without links here
    with jax.set_mesh(mesh):
        for without in (False, True):
            if without:
                table[rng.integers(n)] = 0
            with case(f"on {words}, {'when a page has no links' if without else 'when every page has links'}"):
                ranks = ask(pagerank, place(mesh, table, "data"), steps, damping)
                shares, wanted = table.astype(np.float64), np.full(n, 1 / n)
                out = shares.sum(1, keepdims=True)
                shares = np.where(out > 0, shares / np.maximum(out, 1), 1 / n)
                for _ in range(steps):
                    wanted = (1 - damping) / n + damping * wanted @ shares
                whole = isinstance(ranks, jax.Array) and ranks.shape == (n,)
                require(whole, "the result is not an array with a rank for each page.")
                values = np.asarray(ranks, np.float64)
                equal, total = np.ptp(values) <= 1e-3, values.sum()
                require(
                    not equal,
                    "all ranks are equal, although every page with links has one to page 1. Sum over the linking pages.",
                )
                require(not total <= 1 - 1e-3, "the sum of all ranks is less than 1.")
                require(not total >= 1 + 1e-3, "the sum of all ranks is greater than 1.")
                compare(ranks, wanted.astype(np.float32), label="the ranks")

# %% hidden="explicit-pagerank" name="program" points=2
"""The type of the result, and what the program communicates and stores."""
rng = inputs.rng()
mesh = devices.mesh((8,), ("data",), explicit=True)
n = 16 * int(rng.integers(4, 6))
table = (rng.random((n, n)) < 0.2).astype(np.float32)
table[:, 1] = 1
with jax.set_mesh(mesh):
    links = place(mesh, table, "data")
    made = program(pagerank, links, 3, 0.8)
    ranks = made.run(links, 3, 0.8)
shares, wanted = (table / table.sum(1, keepdims=True)).astype(np.float64), np.full(n, 1 / n)
for _ in range(3):
    wanted = 0.2 / n + 0.8 * wanted @ shares
compare(ranks, wanted.astype(np.float32), label="the ranks")
require(entries_of(made.outputs) == ("data",), "The result is not partitioned along data.")
for one in made.collectives:
    found = one.elements * (one.group_size or 1 if one.kind == "reduce-scatter" else 1)
    require(
        found <= 2 * n,
        f"An operation {one.kind} returns more elements than two vectors of ranks have. The table of links should stay "
        "where it is.",
    )
require(
    summed_elements(made) + moved_elements(made) <= 4 * 2 * n,
    "For 3 steps, the collectives return more elements than eight vectors of ranks have. Communicate ranks only.",
)

# %% [markdown] why="explicit-pagerank"
# Row i of the shares and rank i are on the same device, so each device computes the part that its pages contribute to all ranks. `out_sharding` states that the sums are partitioned again, so the carry keeps its type. Each step communicates n numbers, and the table of n · n numbers is never moved. **Next:** What would each step communicate if the columns of the table were partitioned instead?


# %% wrong="explicit-pagerank" because="Leaves the product ambiguous. Both the ranks and the table are partitioned along the summed axis."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * (ranks @ t), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Starts with replicated ranks, but after a step they are partitioned, so the carry changes its type."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Multiplies in the wrong order. A page then receives from the pages to which it links."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * (t @ ranks), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Divides by zero for a page without links, so all ranks become NaN."
def pagerank(links, steps, damping):
    n = len(links)
    t = links / links.sum(axis=1, keepdims=True)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="A page without links distributes nothing here, so the sum of the ranks falls below 1."
def pagerank(links, steps, damping):
    n = len(links)
    t = links / jnp.maximum(links.sum(axis=1, keepdims=True), 1)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Normalises the columns of the table instead of its rows, so a page receives the mean of the pages that link to it."
def pagerank(links, steps, damping):
    n = len(links)
    t = links / jnp.maximum(links.sum(axis=0, keepdims=True), 1)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Exchanges the roles of c and 1 - c."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: (damping / n + (1 - damping) * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Divides the rank of a page without links by n - 1, but it is divided among all n pages."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / (n - 1))
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Adds 1 - c to each rank instead of (1 - c)/n."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Computes one step too many."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps + 1)[0]


# %% wrong="explicit-pagerank" because="Divides by the number of links to a page instead of the number of its own links."
def pagerank(links, steps, damping):
    n = len(links)
    k = links.sum(axis=0, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Gathers the table on every device, which is too large for one."
def pagerank(links, steps, damping):
    n, links = len(links), jax.reshard(links, P())
    k = links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)

    def f(ranks, _):
        received = jax.reshard(ranks, P()) @ t
        return jax.reshard((1 - damping) / n + damping * received, P("data")), None

    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Transposes the table to the other partitioning first, which moves all of it between the devices."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    t = jax.reshard(t, P(None, "data"))
    f = lambda ranks, _: ((1 - damping) / n + damping * jax.reshard(ranks, P()) @ t, None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Returns replicated ranks, but each device should store those of its own pages."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P()), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Uses an argument name of another library. The sums of JAX take `keepdims`, as in NumPy."
def pagerank(links, steps, damping):
    n = len(links)
    k = links.sum(axis=1, keepdim=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="A page without links keeps its own rank here, but it should divide it among all pages."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    own = jnp.arange(n, out_sharding=P("data"))[:, None] == jnp.arange(n)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), own)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Passes `out_sharding` to `eye`, which has no such argument."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), jnp.eye(n, out_sharding=P("data", None)))
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Starts with ranks of 1 instead of 1/n."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data")), None)
    return jax.lax.scan(f, jnp.ones(n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Returns only the new carry from the body, but the body of `scan` returns a pair."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda ranks, _: (1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data"))
    return jax.lax.scan(f, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% wrong="explicit-pagerank" because="Starts with replicated ranks, but after a step they are partitioned, so the carry changes its type."
def pagerank(links, steps, damping):
    n, k = len(links), links.sum(axis=1, keepdims=True)
    t = jnp.where(k > 0, links / jnp.maximum(k, 1), 1 / n)
    f = lambda _, ranks: (1 - damping) / n + damping * jnp.matmul(ranks, t, out_sharding=P("data"))
    return jax.lax.fori_loop(0, steps, f, jnp.ones(n) / n)


# %% wrong="explicit-pagerank" because="Reads single rows of the table in a loop, but JAX has no rule for a traced index into a partitioned axis."
def pagerank(links, steps, damping):
    n, k = len(links), jax.reshard(links.sum(axis=1), P())
    row = lambda i: jnp.where(k[i] > 0, links.at[i].get(out_sharding=P()) / jnp.maximum(k[i], 1), 1 / n)
    add = lambda ranks: lambda i, received: received + ranks[i] * row(i)
    f = lambda _, ranks: (1 - damping) / n + damping * jax.lax.fori_loop(0, n, add(ranks), jnp.zeros(n))
    return jax.reshard(jax.lax.fori_loop(0, steps, f, jnp.full(n, 1 / n)), P("data"))


# %% equivalent="explicit-pagerank" because="The condition is 0 or 1 and both branches are finite, so the product selects as `where` does."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: shares = jnp.where(count > 0, links / jnp.maximum(count, 1), 1 / n)


# %% equivalent="explicit-pagerank" because="`where` discards the NaN of a row without links, and the task takes no gradient."
# dropped edge, maximum(X, Y) -> X: shares = jnp.where(count > 0, links / jnp.maximum(count, 1), 1 / n)


# %% right="explicit-pagerank"
def pagerank(links, steps, damping):
    n = len(links)
    count = links.sum(axis=1, keepdims=True)
    shares = jnp.where(count > 0, links / jnp.maximum(count, 1), 1 / n)
    step = lambda ranks, _: ((1 - damping) / n + damping * jnp.matmul(ranks, shares, out_sharding=P("data")), None)
    return jax.lax.scan(step, jnp.full(n, 1 / n, out_sharding=P("data")), None, length=steps)[0]


# %% right="explicit-pagerank"
def pagerank(links, steps, damping):
    n, count = len(links), links.sum(axis=1)
    ranks = jnp.full(n, 1 / n, out_sharding=P("data"))
    for _ in range(steps):
        received = jnp.matmul(ranks / jnp.maximum(count, 1), links, out_sharding=P("data"))
        lost = jnp.sum(jnp.where(count > 0, 0, ranks))
        ranks = (1 - damping) / n + damping * (received + lost / n)
    return ranks


# %% right="explicit-pagerank"
def pagerank(links, steps, damping):
    n = len(links)

    @auto_axes(out_sharding=P("data"))
    def iterate(links):
        count = links.sum(axis=1, keepdims=True)
        shares = jnp.where(count > 0, links / jnp.maximum(count, 1), 1 / n)
        step = lambda _, ranks: (1 - damping) / n + damping * (ranks @ shares)
        return jax.lax.fori_loop(0, steps, step, jnp.full(n, 1 / n))

    return iterate(links)


# %% right="explicit-pagerank"
def pagerank(links, steps, damping):
    def on_shards(links):
        n = links.shape[1]
        count = links.sum(axis=1, keepdims=True)
        shares = jnp.where(count > 0, links / jnp.maximum(count, 1), 1 / n)
        ranks = jax.lax.pcast(jnp.full(len(links), 1 / n), "data", to="varying")
        for _ in range(steps):
            received = jax.lax.psum_scatter(ranks @ shares, "data", tiled=True)
            ranks = (1 - damping) / n + damping * received
        return ranks

    return jax.shard_map(on_shards, in_specs=P("data"), out_specs=P("data"))(links)
