# %% [markdown]
# # 10 · Exercises: NNX
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The **path** `layers/0/kernel` stands for `model.layers[0].kernel`. `arrays_of` from the setup returns the arrays of a model by path.

# %% setup
import functools
import itertools

from flax import linen, nnx
from grader.checks import ask, case, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np
import optax

# By default, accelerators may compute float32 products at lower precision. Use full precision here.
jax.config.update("jax_default_matmul_precision", "highest")


def arrays_of(tree):
    """The arrays of a module, a state or an optimizer by path: {"layers/0/kernel": array, ...}"""
    leaves = jax.tree.leaves_with_path(nnx.to_pure_dict(nnx.state(tree)))
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def fill(module, arrays):
    """Writes arrays into a module by path and returns the module."""
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        name = "/".join(map(str, path))
        if name in arrays:
            variable.set_value(jnp.asarray(arrays[name]))
    return module


def drawn(rng, shapes):
    """A random float32 array for each named shape; variances (`var`) are positive."""
    normal = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return {name: np.float32(a**2 + 0.5 if name.endswith("var") else a) for name, a in normal.items()}


class Stage(nnx.Module):
    """A layer with relu that records its output: (n, width) -> (n, width)."""

    def __init__(self, width, *, rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.linear(x))
        self.sow(nnx.Intermediate, "out", x)
        return x


class Tower(nnx.Module):
    """Applies its stages in order, `rounds` times: (n, width) -> (n,)."""

    def __init__(self, width, depth, rounds=1, *, rngs):
        self.stages = nnx.List(Stage(width, rngs=rngs) for _ in range(depth))
        self.rounds = rounds

    def __call__(self, x):
        for _ in range(self.rounds):
            for stage in self.stages:
                x = x + stage(x) / 2
        return jnp.mean(x, axis=1)


class Classifier(nnx.Module):
    """Two layers: (n, d) -> a score for each of 3 classes, (n, 3)."""

    def __init__(self, d, hidden, *, rngs):
        self.first = nnx.Linear(d, hidden, rngs=rngs)
        self.last = nnx.Linear(hidden, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x)))


class Net(nnx.Module):
    """Linear, BatchNorm, relu, Dropout for each hidden size, then a last Linear: (n, sizes[0]) -> (n, sizes[-1])."""

    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List(map(functools.partial(nnx.Linear, rngs=rngs), sizes, sizes[1:]))
        self.norms = nnx.List(map(functools.partial(nnx.BatchNorm, momentum=0.9, rngs=rngs), sizes[1:-1]))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        *hidden, last = self.layers
        for layer, norm in zip(hidden, self.norms, strict=True):
            x = self.dropout(jax.nn.relu(norm(layer(x))))
        return last(x)


class LinenNet(linen.Module):
    """The same network as `Net` in Linen, with the names that Linen gives to layers."""

    sizes: tuple

    @linen.compact
    def __call__(self, x, training=False):
        for size in self.sizes[1:-1]:
            x = linen.BatchNorm(use_running_average=not training, momentum=0.9)(linen.Dense(size)(x))
            x = linen.Dropout(0.5, deterministic=not training)(jax.nn.relu(x))
        return linen.Dense(self.sizes[-1])(x)


def net_shapes(sizes):
    """The shape of each array of a `Net` by path, without the counters of Dropout."""
    shapes = {}
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        shapes |= {f"layers/{i}/kernel": (a, b), f"layers/{i}/bias": (b,)}
        if i < len(sizes) - 2:
            shapes |= {f"norms/{i}/{name}": (b,) for name in ("scale", "bias", "mean", "var")}
    return shapes


def misfit(module, shapes):
    """The first of these paths with another shape in the module, and that shape, or None."""
    found = {name: array.shape for name, array in arrays_of(module).items()}
    return next(((name, found[name]) for name in shapes if found.get(name, shapes[name]) != shapes[name]), None)


def net_by_hand(arrays, x, training=False):
    """The output of a `Net` without Dropout, and its arrays afterwards. NumPy, for the checks."""
    arrays, depth = dict(arrays), sum(name.endswith("kernel") for name in arrays)
    for i in range(depth):
        x = x.astype(np.float64) @ arrays[f"layers/{i}/kernel"] + arrays[f"layers/{i}/bias"]
        if i < depth - 1:
            scale, bias, mean, var = (arrays[f"norms/{i}/{name}"] for name in ("scale", "bias", "mean", "var"))
            if training:
                arrays[f"norms/{i}/mean"] = np.float32(0.9 * mean + 0.1 * x.mean(0))
                arrays[f"norms/{i}/var"] = np.float32(0.9 * var + 0.1 * x.var(0))
                mean, var = x.mean(0), x.var(0)
            x = np.maximum((x - mean) / np.sqrt(var + 1e-5) * scale + bias, 0)
    return x.astype(np.float32), arrays


class Pretrained(nnx.Module):
    """An encoder with a gain, and a head: (n, 3) -> (n,). `units` is a constant and not a parameter."""

    def __init__(self, *, rngs):
        first, second = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 4, rngs=rngs)
        self.encoder = nnx.Sequential(first, jnp.tanh, second, jnp.tanh)
        self.encoder_gain = nnx.Param(jnp.ones(4))
        self.head = nnx.Linear(4, 1, rngs=rngs)
        self.units = nnx.Variable(jnp.float32(2))

    def __call__(self, x):
        return self.units * self.head(self.encoder_gain * self.encoder(x))[:, 0]


def square_loss(model, x, y):
    """The mean squared error of a model (n, d) -> (n,) at x against y."""
    return jnp.mean((model(x) - y) ** 2)


def pretrained_shapes():
    """The shape of each parameter of a `Pretrained`, by path."""
    arrays = arrays_of(Pretrained(rngs=nnx.Rngs(0)))
    return {name: array.shape for name, array in arrays.items() if name != "units"}


def pretrained_loss(arrays, x, y):
    """square_loss of a `Pretrained` as a pure function of its parameters by path, for the checks."""
    for i in (0, 2):
        x = jnp.tanh(x @ arrays[f"encoder/layers/{i}/kernel"] + arrays[f"encoder/layers/{i}/bias"])
    return jnp.mean((2 * (arrays["encoder_gain"] * x @ arrays["head/kernel"] + arrays["head/bias"])[:, 0] - y) ** 2)


class Block(nnx.Module):
    """x + tanh(BatchNorm(Linear(x))): (n, width) -> (n, width)."""

    def __init__(self, width, *, rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.norm(self.linear(x)))


def block_shapes(width, depth):
    """The shape of each array of `depth` stacked blocks by path."""
    arrays = arrays_of(Block(width, rngs=nnx.Rngs(0)))
    return {f"blocks/{name}": (depth, *array.shape) for name, array in arrays.items()}


# %% [markdown] task="nnx-mlp" stars=1 minutes=10 skills="06_pytrees,07_randomness"
# ## A model of any depth
# **Goal.** Write a network of any depth as an NNX module. The storage of the layers and the loop over them are missing.
#
# **Signature.** `MLP(sizes, *, rngs)` is an `nnx.Module`. `sizes` is a tuple of two or more integers, and `rngs` is an `nnx.Rngs`. `model.layers` holds one `nnx.Linear` for each pair of neighbouring sizes, in order. `model(x)` maps `(n, sizes[0])`, float32, to `(n, sizes[-1])`, with `jax.nn.relu` between layers and not after the last one.
#
# **Example.** `MLP((2, 3, 1), rngs=nnx.Rngs(0))` has four arrays: `layers/0/kernel` `(2, 3)`, `layers/0/bias` `(3,)`, `layers/1/kernel` `(3, 1)` and `layers/1/bias` `(1,)`. It maps an input `(4, 2)` to `(4, 1)`.
#
# **Judged.** The paths, the values inside `jax.jit` with parameters that the checks set, and that no two layers start with the same kernel. **Not judged.** How the kernels are drawn.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many attributes would you need if `sizes` had forty numbers?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# NNX rejects a plain list of layers. Create an `MLP` in a cell of your own and read the error message. Use the fourth option in it.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `nnx.List` accepts any iterable, such as `nnx.Linear(a, b, rngs=rngs) for a, b in pairs`. In the call, loop over `hidden` with a relu around each layer, then apply `last`.
# </details>


# %% answer="nnx-mlp"
class MLP(nnx.Module):
    """Linear layers with relu between them: (n, sizes[0]) -> (n, sizes[-1])."""

    def __init__(self, sizes, *, rngs):
        pairs = itertools.pairwise(sizes)
        ### BEGIN SOLUTION
        self.layers = nnx.List(nnx.Linear(a, b, rngs=rngs) for a, b in pairs)
        ### END SOLUTION

    def __call__(self, x):
        *hidden, last = self.layers
        ### BEGIN SOLUTION
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(x)
        ### END SOLUTION


# %% check="nnx-mlp" name="example" points=1
"""The example: four arrays, and a call inside jit."""


def probe_kind():
    try:
        return "pytree" if not jax.tree_util.all_leaves([MLP((2, 3, 1), rngs=nnx.Rngs(0))]) else "leaf"
    except ValueError as problem:
        # NNX's own text begins with the ways out that are wrong here, and a check shows only how it begins.
        if "static attribute" not in str(problem):
            raise
        return "static"


def probe_example(x):
    model = MLP((2, 3, 1), rngs=nnx.Rngs(0))
    shapes = {name: array.shape for name, array in arrays_of(model).items()}
    return shapes, jax.jit(lambda model, x: model(x))(model, x).shape


kind = ask(probe_kind)
require(
    kind != "static",
    "NNX rejects an attribute of `MLP`, because a plain list is static. Store the layers in NNX's own kind of list.",
)
require(kind == "pytree", "An `MLP` is not a pytree, so `jax.jit` does not accept it. Is `pytree=False` set?")
shapes, result = ask(probe_example, np.ones((4, 2), np.float32))
wanted = {"layers/0/kernel": (2, 3), "layers/0/bias": (3,), "layers/1/kernel": (3, 1), "layers/1/bias": (1,)}
compare(shapes, wanted, label="the dict of shapes")
require(result == (4, 1), f"For an input (4, 2) the output is {result}; expected (4, 1).")

# %% hidden="nnx-mlp" name="values" points=2
"""Right for one layer, for two, and for four."""


def probe_values(sizes, arrays, x):
    model = fill(MLP(sizes, rngs=nnx.Rngs(0)), arrays)
    return jax.jit(lambda model, x: model(x))(model, x)


def by_hand(arrays, x, depth, first_relu, last_relu):
    for i in range(depth):
        x = x.astype(np.float64) @ arrays[f"layers/{i}/kernel"] + arrays[f"layers/{i}/bias"]
        x = np.maximum(x, 0) if (last_relu if i == depth - 1 else first_relu) else x
    return x.astype(np.float32)


for sizes in ((3, 2), (3, 5, 2), (3, 4, 6, 5, 3)):
    rng, depth = inputs.rng(), len(sizes) - 1
    shapes = {f"layers/{i}/kernel": sizes[i : i + 2] for i in range(depth)}
    shapes |= {f"layers/{i}/bias": sizes[i + 1 : i + 2] for i in range(depth)}
    arrays, x = drawn(rng, shapes), rng.normal(size=(7, 3)).astype(np.float32)
    names = sorted(ask(lambda sizes: list(arrays_of(MLP(sizes, rngs=nnx.Rngs(0)))), sizes))
    require(
        names == sorted(shapes),
        f"A model with {depth} layer{'s' * (depth > 1)} should have exactly the paths `layers/0/kernel`, `layers/0/bias` and so on.",
    )
    got, wanted = program(probe_values, sizes, arrays, x).run(sizes, arrays, x), by_hand(arrays, x, depth, True, False)
    if getattr(got, "shape", None) == wanted.shape and not np.allclose(got, wanted, rtol=1e-3, atol=1e-3):
        for said, given, between, after in (
            ("There is a relu after the last layer, so the output is never negative.", x, True, True),
            ("There is no relu between the layers, so together they are one linear map.", x, False, False),
            ("There is a relu after the last layer, but none between the layers.", x, False, True),
            ("There is a relu before the first layer, so negative inputs are lost.", np.maximum(x, 0), True, False),
        ):
            other = by_hand(arrays, given, depth, between, after)
            require(not np.allclose(got, other, rtol=1e-3, atol=1e-3), said)
    compare(got, wanted, rtol=1e-3, atol=1e-3, label=f"the output of {depth} layer{'s' * (depth > 1)}")

# %% hidden="nnx-mlp" name="keys" points=1
"""Every layer starts with its own kernel, and another seed gives different kernels."""


def probe_kernels(seed):
    model = MLP((4, 4, 4, 4), rngs=nnx.Rngs(seed))
    return [array for name, array in arrays_of(model).items() if name.endswith("kernel")]


seed = int(inputs.rng().integers(1, 1000))
kernels, others = ask(probe_kernels, seed), ask(probe_kernels, seed + 1)
require(
    sum(map(np.size, kernels)) == 48 and all(np.isfinite(kernel).all() for kernel in kernels),
    "With sizes (4, 4, 4, 4), the kernels are not three finite arrays of shape (4, 4).",
)
same = any(np.array_equal(a, b) for a, b in itertools.combinations(kernels, 2))
require(not same, "Two layers of the same shape start with the same kernel. Do they draw from the same key?")
require(
    not np.array_equal(kernels[0], others[0]),
    "Another seed gives the same model. Is `rngs` used?",
)

# %% [markdown] why="nnx-mlp"
# `nnx.List` is a module, so its layers have paths. They are in the state, in the gradient and in what you save. A plain list, such as `[2, 64]`, is static and may not contain arrays or modules. Each `nnx.Linear` draws new keys from the one `rngs`, so all kernels differ. **Next:** how would you store layers by name?


# %% wrong="nnx-mlp" because="Keeps the layers in a plain list. NNX treats a plain list as static, so it must not contain arrays. An `nnx.List` may contain them."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = [nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)]

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(x)


# %% wrong="nnx-mlp" because="Silences the error with `pytree=False`. The module is then not a pytree, and JAX does not accept it as an argument."
class MLP(nnx.Module, pytree=False):
    def __init__(self, sizes, *, rngs):
        self.layers = [nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)]

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(x)


# %% wrong="nnx-mlp" because="Puts a relu after the last layer too."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


# %% wrong="nnx-mlp" because="Puts a relu before every layer, including the first one, so negative inputs are cut off."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(jax.nn.relu(x))
        return x


# %% wrong="nnx-mlp" because="Leaves out the relu. Without it, any number of linear layers equals one linear layer."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


# %% wrong="nnx-mlp" because="Creates a new `Rngs(0)` for every layer, so all layers draw the same key."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=nnx.Rngs(0)) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(x)


# %% wrong="nnx-mlp" because="Creates an attribute for each layer. The model works, but other code does not find its layers in `layers`."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.depth = len(sizes) - 1
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            setattr(self, f"layer_{i}", nnx.Linear(a, b, rngs=rngs))

    def __call__(self, x):
        for i in range(self.depth - 1):
            x = jax.nn.relu(getattr(self, f"layer_{i}")(x))
        return getattr(self, f"layer_{self.depth - 1}")(x)


# %% wrong="nnx-mlp" because="Applies relu before each hidden layer instead of after it, so negative inputs are cut off."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List(nnx.Linear(a, b, rngs=rngs) for a, b in pairs)

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = layer(jax.nn.relu(x))
        return last(x)


# %% wrong="nnx-mlp" because="Seeds each layer with its number, so the seed of `rngs` is not used."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List(nnx.Linear(a, b, rngs=nnx.Rngs(i)) for i, (a, b) in enumerate(pairs))

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(x)


# %% wrong="nnx-mlp" because="Applies one hidden layer, however many the model has."
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List(nnx.Linear(a, b, rngs=rngs) for a, b in pairs)

    def __call__(self, x):
        *hidden, last = self.layers
        return last(jax.nn.relu(hidden[0](x)))


# %% right="nnx-mlp"
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.List()
        for i in range(1, len(sizes)):
            self.layers.append(nnx.Linear(sizes[i - 1], sizes[i], rngs=rngs))

    def __call__(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x if i == 0 else jax.nn.relu(x))
        return x


# %% right="nnx-mlp"
class MLP(nnx.Module):
    def __init__(self, sizes, *, rngs):
        self.layers = nnx.data([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(jnp.maximum(x, 0))
        return x


# %% [markdown] task="nnx-capture" stars=1 minutes=10 skills="06_pytrees,nnx-mlp"
# ## What comes out of each stage?
# *Needs: Deeper: the outputs of layers.*
#
# **Goal.** Look inside a model. Which output does each of its stages record for these inputs?
#
# **Signature.** `capture_activations(model, x)`: `model` is a `Tower` from the setup, or any module with stages at any depth and under any name, but without statistics or Dropout. Each stage records its output under the name `out`. Ignore records with other names. `x` is `(n, width)`, float32. Returns `(y, activations)`: the output of the model, `(n,)`, and a dict from the path of each stage to its `out`, `(n, width)`. If a stage is called several times, its last call counts.
#
# **Example.** For `Tower(2, 3, rngs=nnx.Rngs(0))` the keys are `"stages/0"`, `"stages/1"` and `"stages/2"`. With every kernel `[[1, 0], [0, -1]]` and every bias 0, `x = [[2, -2]]` gives the records `[[2, 2]]`, `[[3, 1]]` and `[[4.5, 0.5]]`, and y is `[3.25]`.
#
# **Judged.** Values and keys, for towers and other models, also in a second call with another input, and that the model does not change. **Not judged.** Whether you compile.
#
# <details><summary>Hint 1 · a question</summary>
#
# Where does `self.sow` put its value? What happens if nothing collects it?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Call `nnx.capture(model, nnx.Intermediate)` like the model, and print its second result.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `nnx.to_flat_state` of this result gives pairs of a path, such as `("stages", 0, "out")`, and a Variable. Its value is a tuple with one entry for each call.
# </details>


# %% answer="nnx-capture"
def capture_activations(model, x):
    """model(x), and {path of a stage: what it recorded as "out" in its last call}."""
    ### BEGIN SOLUTION
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    by_path = dict(nnx.to_flat_state(captured))
    outs = {path[:-1]: variable.get_value()[-1] for path, variable in by_path.items() if path[-1] == "out"}
    return y, {"/".join(map(str, path)): out for path, out in outs.items()}
    ### END SOLUTION


# %% check="nnx-capture" name="example" points=1
"""The example: three stages of width 2."""


def probe_example(arrays, x):
    return capture_activations(fill(Tower(2, 3, rngs=nnx.Rngs(0)), arrays), x)


arrays = {f"stages/{i}/linear/kernel": np.float32([[1, 0], [0, -1]]) for i in range(3)}
x = np.float32([[2, -2]])
wanted = {f"stages/{i}": np.float32([[2 * 1.5**i, 2 * 0.5**i]]) for i in range(3)}
compare(ask(probe_example, arrays, x), (np.float32([3.25]), wanted), label="(y, activations)")

# %% hidden="nnx-capture" name="second-call" points=2
"""Right for the second input too, for a stage called twice, and for other depths."""


def probe_twice(depth, rounds, arrays, earlier, later):
    model = fill(Tower(3, depth, rounds, rngs=nnx.Rngs(0)), arrays)
    capture_activations(model, earlier)
    return capture_activations(model, later)


def by_hand(arrays, x, depth, rounds):
    outs, x = [], x.astype(np.float64)
    for i in list(range(depth)) * rounds:
        linear = f"stages/{i}/linear/"
        outs.append(np.maximum(x @ arrays[linear + "kernel"] + arrays[linear + "bias"], 0))
        x = x + outs[-1] / 2
    return np.float32(x.mean(1)), [np.float32(out) for out in outs]


for depth, rounds in ((2, 1), (4, 1), (2, 3)):
    rng = inputs.rng()
    shapes = {f"stages/{i}/linear/kernel": (3, 3) for i in range(depth)}
    arrays = drawn(rng, shapes | {f"stages/{i}/linear/bias": (3,) for i in range(depth)})
    earlier, x = rng.normal(size=(2, 6, 3)).astype(np.float32)
    data = depth, rounds, arrays, earlier, x
    with case(f"for {depth} stages, {rounds} times each"):
        got = program(probe_twice, *data).run(*data)
    (y, outs), (_, before) = by_hand(arrays, x, depth, rounds), by_hand(arrays, earlier, depth, rounds)
    wanted = {f"stages/{i}": outs[i - depth] for i in range(depth)}
    if isinstance(got, tuple) and len(got) == 2 and isinstance(got[1], dict) and set(got[1]) == set(wanted):
        seen = got[1]["stages/1"]
        if getattr(seen, "shape", None) == outs[0].shape:
            alike = lambda one, other: np.allclose(one, other, rtol=1e-3, atol=1e-3)
            # Two calls may leave a stage with the same activations: all below zero.
            stale = alike(seen, before[1]) and not alike(seen, wanted["stages/1"])
            require(
                not stale,
                "In a second call with another input, the activations are still those of the first. The model still contains them.",
            )
            first = rounds > 1 and alike(seen, outs[1]) and not alike(seen, wanted["stages/1"])
            require(
                not first,
                "For a stage that is called three times, the dict has the result of the first call instead of the last.",
            )
    compare(got, (y, wanted), rtol=1e-3, atol=1e-3, label=f"(y, activations) of {depth} stages")


def probe_other(arrays, x):
    class Noting(Stage):
        def __call__(self, x):
            x = super().__call__(x)
            self.sow(nnx.Intermediate, "square", x**2)
            return x + 1

    class Chain(nnx.Module):
        def __init__(self):
            self.out = Noting(3, rngs=nnx.Rngs(0))
            self.rest = Tower(3, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.rest(self.out(x))

    return capture_activations(fill(Chain(), arrays), x)


rng = inputs.rng()
places = "out", "rest/stages/0", "rest/stages/1"
shapes = {f"{place}/linear/{name}": (3, 3)[i:] for place in places for i, name in enumerate(("kernel", "bias"))}
arrays, x = drawn(rng, shapes), rng.normal(size=(6, 3)).astype(np.float32)
first = np.maximum(x @ arrays["out/linear/kernel"] + arrays["out/linear/bias"], 0)
y, outs = by_hand({name.removeprefix("rest/"): array for name, array in arrays.items()}, first + 1, 2, 1)
wanted = y, dict(zip(places, (first, *outs), strict=True))
with case("for a model that is not a tower"):
    got = program(probe_other, arrays, x).run(arrays, x)
compare(got, wanted, rtol=1e-3, atol=1e-3, label="(y, activations) of a model that is not a tower")

# %% hidden="nnx-capture" name="untouched" points=1
"""The model does not change. Its paths and values are the same as before."""


def probe_after(arrays, x):
    model = fill(Tower(3, 2, rngs=nnx.Rngs(0)), arrays)
    captured = capture_activations(model, x)[1]
    left = arrays_of(model)
    return captured.get("stages/0"), {name: left[name] for name in arrays}, list(left)


rng = inputs.rng()
shapes = {f"stages/{i}/linear/kernel": (3, 3) for i in range(2)} | {f"stages/{i}/linear/bias": (3,) for i in range(2)}
arrays, x = drawn(rng, shapes), rng.normal(size=(5, 3)).astype(np.float32)
captured, left, names = ask(probe_after, arrays, x)
require(
    sorted(names) == sorted(shapes),
    f"The model had {len(shapes)} arrays and has {len(names)} afterwards. The records are now part of it.",
)
compare({name: np.asarray(array) for name, array in left.items()}, arrays, label="the model's arrays afterwards")
require(captured is not None, "The activations have no entry `stages/0`. A key is the whole path of a stage.")
out = np.maximum(x @ arrays["stages/0/linear/kernel"] + arrays["stages/0/linear/bias"], 0)
compare(np.asarray(captured), out, rtol=1e-3, atol=1e-3, label="the record of stage 0")

# %% [markdown] why="nnx-capture"
# `nnx.capture` returns the records as a result, also under `jit`. Without it, `sow` writes into the model, which grows with every call. **Next:** a unit is dead if its relu outputs 0 for every input. How would you count dead units with this dict?


# %% wrong="nnx-capture" because="Calls the model and reads the records in it. They stay there, so after a second call the first entry still belongs to the first call."
def capture_activations(model, x):
    y = model(x)
    found = nnx.to_flat_state(nnx.state(model, nnx.Intermediate))
    return y, {"/".join(map(str, path[:-1])): variable.get_value()[0] for path, variable in found}


# %% wrong="nnx-capture" because="Reads the newest records but leaves them in the model, which grows with every call and is compiled again."
def capture_activations(model, x):
    y = model(x)
    found = nnx.to_flat_state(nnx.state(model, nnx.Intermediate))
    return y, {"/".join(map(str, path[:-1])): variable.get_value()[-1] for path, variable in found}


# %% wrong="nnx-capture" because="Returns the tuple of all calls where one array is expected."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    return y, {"/".join(map(str, path[:-1])): variable.get_value() for path, variable in nnx.to_flat_state(captured)}


# %% wrong="nnx-capture" because="Takes the first call of a stage instead of the last."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    return y, {"/".join(map(str, path[:-1])): variable.get_value()[0] for path, variable in nnx.to_flat_state(captured)}


# %% wrong="nnx-capture" because="Calls the stages one after the other, and leaves out what the model computes between them."
def capture_activations(model, x):
    y, activations = nnx.capture(model, nnx.Intermediate)(x)[0], {}
    for i, stage in enumerate(model.stages):
        x, _ = nnx.capture(stage, nnx.Intermediate)(x)
        activations[f"stages/{i}"] = x
    return y, activations


# %% wrong="nnx-capture" because="Captures the result of every method, including the layers inside the stages, which have their own paths."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(x)
    return y, {
        "/".join(map(str, path[:-1])): variable.get_value()[-1] for path, variable in nnx.to_flat_state(captured)
    }


# %% wrong="nnx-capture" because="Uses only the last part of the path as a key. It is `out` for all stages, so only one entry is left."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    return y, {str(path[-1]): variable.get_value()[-1] for path, variable in nnx.to_flat_state(captured)}


# %% wrong="nnx-capture" because="Keeps only two names of the path. The paths of more deeply nested stages lose their start, so these stages may overwrite each other."
def capture_activations(model, x):
    y, notes = nnx.capture(model, nnx.Intermediate)(x)
    flat = nnx.to_flat_state(notes)
    return y, {"/".join(map(str, path[-3:-1])): note.get_value()[-1] for path, note in flat if path[-1] == "out"}


# %% wrong="nnx-capture" because="Looks for `out` anywhere in the path, so all records of a stage named `out` are included."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    activations = {}
    for path, variable in nnx.to_flat_state(captured):
        if "out" in path:
            activations["/".join(map(str, path[:-1]))] = variable.get_value()[-1]
    return y, activations


# %% wrong="nnx-capture" because="Returns what the stage returned instead of what it recorded."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(x)
    found = dict(nnx.to_flat_state(captured))
    stages = [path[:-1] for path in found if path[-1] == "out"]
    return y, {"/".join(map(str, stage)): found[(*stage, "__call__")].get_value()[-1] for stage in stages}


# %% wrong="nnx-capture" because="Returns all records, including those with other names than the outputs."
def capture_activations(model, x):
    y, records = nnx.capture(model, nnx.Intermediate)(x)
    found = {}
    for path, variable in nnx.to_flat_state(records):
        found["/".join(map(str, path[:-1]))] = variable.get_value()[-1]
    return y, found


# %% right="nnx-capture"
def capture_activations(model, x):
    y, captured = nnx.capture(lambda model: model(x), nnx.Intermediate)(model)
    found = {}
    for path, array in jax.tree.leaves_with_path(nnx.to_pure_dict(captured)):
        where, _, name = jax.tree_util.keystr(path[:-1], simple=True, separator="/").rpartition("/")
        if name == "out":
            found[where] = array
    return y, found


# %% right="nnx-capture"
def capture_activations(model, x):
    y, captured = jax.jit(lambda model, x: nnx.capture(model, nnx.Intermediate)(x))(model, x)

    def collect(tree, names):
        for name, below in tree.items():
            if isinstance(below, dict):
                yield from collect(below, [*names, str(name)])
            elif name == "out":
                yield "/".join(names), below[-1]

    return y, dict(collect(nnx.to_pure_dict(captured), []))


# %% wrong="nnx-capture" because="Treats every record as the output, whatever its name is."
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    return y, {
        "/".join(map(str, path[:-1])): variable.get_value()[-1] for path, variable in nnx.to_flat_state(captured)
    }


# %% wrong="nnx-capture" because="Looks for stages in `model.stages` only. Another model has them at other paths."
@jax.jit
def capture_activations(model, x):
    y, captured = nnx.capture(model, nnx.Intermediate)(x)
    return y, {f"stages/{i}": captured["stages"][i]["out"][-1] for i in range(len(model.stages))}


# %% [markdown] task="nnx-train-step" stars=2 minutes=20 skills="03_jit,04_grad,09_training,nnx-mlp"
# ## One training step
# **Goal.** Write the step that a training loop calls, with a penalty that keeps the kernels, and only the kernels, small.
#
# **Signature.** `train_step(model, optimizer, x, y)`, compiled. `model` is a `Classifier` from the setup, and `optimizer` is an `nnx.Optimizer` over its parameters (`wrt=nnx.Param`). `x` is `(n, d)`, float32, and `y` is `(n,)`, int32, the correct classes. The loss to minimize is the mean cross-entropy plus 0.01 times the sum of the squares of all entries of all arrays named `kernel`. Returns `(model, optimizer, metrics)`: both after the step, and `{"loss": ..., "accuracy": ...}`, float32 `()`, of the model *before* it. The metric `loss` is the cross-entropy without the penalty. The accuracy is the share of examples whose highest score is at the correct class.
#
# **Example.** If all parameters are 0, all scores are 0. The loss is log 3 = 1.0986, and `argmax` gives class 0. For the classes 0, 1, 1, 1 the accuracy is 0.25, and `optax.sgd(3.0)` moves `last/bias` to -0.25, 1.25, -1.
#
# **Judged.** Parameters, optimizer and metrics after one step and after two, with momentum, and that `train_step` is compiled once. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# The optimizer's `update` changes a model in place. Which model is that inside `jit`?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.grad` accepts a module. A loss with a second result needs `has_aux=True` (04). `nnx.state(model, ...)` takes a filter, such as `nnx.PathContains`.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# An inner function of the model returns the sum and, as auxiliary result, the cross-entropy and the scores. `jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))` are the kernels. After the update, return the two updated objects.
# </details>


# %% answer="nnx-train-step"
@jax.jit
def train_step(model, optimizer, x, y):
    """One step. Returns (model, optimizer, {"loss": (), "accuracy": ()})."""

    ### BEGIN SOLUTION
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels), (loss, scores)

    grads, (loss, scores) = jax.grad(penalized, has_aux=True)(model)
    optimizer.update(model, grads)
    right = scores.argmax(axis=1) == y
    return model, optimizer, {"loss": loss, "accuracy": right.mean()}
    ### END SOLUTION


# %% check="nnx-train-step" name="example" points=1
"""The example: metrics of a model of zeros, and its first step."""


def probe_zeros(arrays, x, y):
    model = fill(Classifier(2, 2, rngs=nnx.Rngs(0)), arrays)
    optimizer = nnx.Optimizer(model, optax.sgd(3.0), wrt=nnx.Param)
    model, optimizer, metrics = train_step(model, optimizer, x, y)
    return arrays_of(model)["last/bias"], metrics


arrays = {"first/kernel": np.zeros((2, 2), np.float32), "last/kernel": np.zeros((2, 3), np.float32)}
data = arrays, np.ones((4, 2), np.float32), np.int32([0, 1, 1, 1])
bias, metrics = program(probe_zeros, *data).run(*data)
compare(metrics, {"loss": np.float32(np.log(3)), "accuracy": np.float32(0.25)}, label="the metrics")
compare(bias, np.float32([-0.25, 1.25, -1]), label="the last bias after the step")

# %% hidden="nnx-train-step" name="two-steps" points=3
"""Right after one step and after two with momentum: parameters, optimizer state and metrics."""


def probe_steps(arrays, x, y, steps):
    model = fill(Classifier(4, 5, rngs=nnx.Rngs(0)), arrays)
    optimizer = nnx.Optimizer(model, optax.sgd(0.5, momentum=0.9), wrt=nnx.Param)
    for i in range(steps):
        model, optimizer, metrics = train_step(model, optimizer, x[i], y[i])
    memory = {name: array for name, array in arrays_of(optimizer).items() if "trace" in name}
    return metrics, arrays_of(model), memory


def loss(arrays, x, y, kernels, biases):
    scores = jnp.tanh(x @ arrays["first/kernel"] + arrays["first/bias"]) @ arrays["last/kernel"] + arrays["last/bias"]
    entropy = -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(y)), y])
    squares = {name: jnp.sum(array**2) for name, array in arrays.items()}
    penalty = kernels * (squares["first/kernel"] + squares["last/kernel"])
    return entropy + penalty + biases * (squares["first/bias"] + squares["last/bias"]), (entropy, scores)


gradient_of = jax.jit(jax.grad(loss, has_aux=True))


def by_hand(arrays, x, y, steps, kernels=0.01, biases=0.0, momentum=0.9):
    speed = jax.tree.map(np.zeros_like, arrays)
    for i in range(steps):
        grads, (entropy, scores) = gradient_of(arrays, x[i], y[i], kernels, biases)
        accuracy = np.float32(np.mean(np.argmax(scores, 1) == y[i]))
        speed = jax.tree.map(lambda v, g: np.float32(momentum * v + np.asarray(g)), speed, grads)
        arrays = jax.tree.map(lambda p, v: np.float32(p - 0.5 * v), arrays, speed)
    return {"loss": np.asarray(entropy), "accuracy": accuracy}, arrays, speed


rng = inputs.rng()
shapes = {"first/kernel": (4, 5), "first/bias": (5,), "last/kernel": (5, 3), "last/bias": (3,)}
changed = False
while not changed:  # each step changes the accuracy, which shows the model that it was computed with
    arrays = drawn(rng, shapes)
    x, y = rng.normal(size=(2, 12, 4)).astype(np.float32), rng.integers(0, 3, size=(2, 12)).astype(np.int32)
    steps = [(by_hand(arrays, x, y, n), x[n - 1], y[n - 1]) for n in (1, 2)]
    changed = all(
        np.mean(np.argmax(loss(after, x, y, 0, 0)[1][1], 1) == y) != metrics["accuracy"]
        for (metrics, after, _), x, y in steps
    )
for steps in (1, 2):
    metrics, after, memory = program(probe_steps, arrays, x, y, steps).run(arrays, x, y, steps)
    wanted = by_hand(arrays, x, y, steps)
    if set(after) == set(arrays):
        near = lambda other: all(np.allclose(after[name], other[name], rtol=1e-3, atol=1e-4) for name in arrays)
        require(
            not near(arrays),
            "The returned model is the one that was passed in. Inside `jit` an update in place changes a copy. What the "
            "compiled function does not return is lost.",
        )
        for said, changed in {
            "The biases are penalized too. Which arrays are in the penalty?": {"biases": 0.01},
            "The parameters move as if there were no penalty. Is it part of what is differentiated?": {"kernels": 0.0},
            "The second step does not use the momentum of the first. Is the updated optimizer returned?": {
                "momentum": 0.0
            },
        }.items():
            require(near(wanted[1]) or not near(by_hand(arrays, x, y, steps, **changed)[1]), said)
        close = {name: np.allclose(after[name], wanted[1][name], rtol=1e-3, atol=1e-4) for name in arrays}
        require(
            near(wanted[1]) or not (close["first/bias"] and close["last/bias"]),
            "The biases are right, but the kernels are not. Is the penalty 0.01 times the sum of all squares?",
        )
    which = "the first step" if steps == 1 else "the second step"
    compare(after, wanted[1], rtol=1e-3, atol=1e-4, label=f"the parameters after {which}")
    if isinstance(metrics, dict) and getattr(metrics.get("loss"), "shape", None) == ():
        penalized = loss(by_hand(arrays, x, y, 1)[1] if steps == 2 else arrays, x[steps - 1], y[steps - 1], 0.01, 0)[0]
        require(not np.isclose(metrics["loss"], penalized, rtol=1e-4), "The reported loss contains the penalty.")
        new, _ = by_hand(wanted[1], x[steps - 1 :], y[steps - 1 :], 1)[:2]
        late = np.isclose(metrics["loss"], new["loss"], rtol=1e-4)
        require(not late, "The reported loss is that of the model after the step.")
        late = metrics.get("accuracy") == new["accuracy"] != wanted[0]["accuracy"]
        require(not late, "The reported accuracy is that of the model after the step.")
    compare(metrics, wanted[0], rtol=1e-3, label=f"the metrics of {which}")
    kept = {name.partition("trace/")[2]: array for name, array in memory.items()}
    compare(kept, wanted[2], rtol=1e-3, atol=1e-4, label=f"the momentum after {which}")

# %% hidden="nnx-train-step" name="compiled-once" points=1 observed=true
"""The model's code runs while the first step is compiled, and not in later steps."""


def probe_calls(x, y):
    calls = []

    class Counting(Classifier):
        def __call__(self, x):
            calls.append(1)
            return super().__call__(x)

    model = Counting(4, 5, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    seen = []
    for i in range(4):
        model, optimizer, metrics = train_step(model, optimizer, x[i], y[i])
        seen.append(len(calls))
    return seen, metrics["loss"]


rng = inputs.rng()
x, y = rng.normal(size=(4, 8, 4)).astype(np.float32), rng.integers(0, 3, size=(4, 8)).astype(np.int32)
seen, _ = ask(probe_calls, x, y)
require(seen[0] > 0, "The step does not call the model.")
require(
    seen[3] == seen[0],
    f"Python has run the model's code {seen[0]} times after one step and {seen[3]} after four. "
    "The step is traced more than once.",
)

# %% [markdown] why="nnx-train-step"
# Inside `jit` the model is a copy made of tracers. The update changes this copy, so you must return it. The gradient of a module is a module of the same structure, and a filter selects the kernels by name. **Next:** which buffers could this step reuse, and how would you allow that (09)?


# %% wrong="nnx-train-step" because="Updates in place inside `jit` and returns what was passed in. The updated copy is lost without any message."
@jax.jit
def compiled(model, optimizer, x, y):
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels), (loss, scores)

    (_, (loss, scores)), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer.update(model, gradient)
    return {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}


def train_step(model, optimizer, x, y):
    return model, optimizer, compiled(model, optimizer, x, y)


# %% wrong="nnx-train-step" because="Removes `jit` to keep the update in place. Now Python runs every operation of every step."
def train_step(model, optimizer, x, y):
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels), (loss, scores)

    (_, (loss, scores)), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}


# %% wrong="nnx-train-step" because="Creates a new optimizer in each step, so its momentum is always 0."
@jax.jit
def train_step(model, optimizer, x, y):
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels), (loss, scores)

    (_, (loss, scores)), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer = nnx.Optimizer(model, optimizer.tx, wrt=nnx.Param)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}


# %% wrong="nnx-train-step" because="Penalizes all parameters, including the biases."
@jax.jit
def train_step(model, optimizer, x, y):
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        arrays = jax.tree.leaves(nnx.state(model, nnx.Param))
        return loss + 0.01 * sum(jnp.sum(array**2) for array in arrays), (loss, scores)

    (_, (loss, scores)), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}


# %% wrong="nnx-train-step" because="Reports the loss with the penalty, as `value_and_grad` returns it."
@jax.jit
def train_step(model, optimizer, x, y):
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels), scores

    (loss, scores), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}


# %% wrong="nnx-train-step" because="Adds the penalty after the gradient is computed, so the penalty has no effect on the gradient."
@jax.jit
def train_step(model, optimizer, x, y):
    def entropy(model):
        scores = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), scores

    (loss, scores), gradient = jax.value_and_grad(entropy, has_aux=True)(model)
    kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
    penalized = loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": penalized, "accuracy": jnp.mean(scores.argmax(1) == y)}


# %% wrong="nnx-train-step" because="Computes the accuracy after the update, with the model after the step."
@jax.jit
def train_step(model, optimizer, x, y):
    def penalized(model):
        loss = optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels), loss

    (_, loss), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": jnp.mean(model(x).argmax(1) == y)}


# %% wrong="nnx-train-step" because="Halves the squares, as weight decay is often written, so the penalty is half of what the task states."
@jax.jit
def train_step(model, optimizer, x, y):
    def penalized(model):
        scores = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        return loss + 0.01 * sum(jnp.sum(kernel**2) / 2 for kernel in kernels), (loss, scores)

    (_, (loss, scores)), gradient = jax.value_and_grad(penalized, has_aux=True)(model)
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}


# %% wrong="nnx-train-step" because="Takes the penalty's kernels from the model outside, not from the argument that is differentiated. The penalty's gradient is then 0."
@jax.jit
def train_step(model, optimizer, x, y):

    def objective(candidate):
        scores = candidate(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        penalty = 0.01 * sum(jnp.sum(kernel**2) for kernel in kernels)
        return loss + penalty, (loss, scores)

    grads, (loss, scores) = jax.grad(objective, has_aux=True)(model)
    accuracy = jnp.mean(scores.argmax(axis=1) == y)
    optimizer.update(model, grads)
    return model, optimizer, {"loss": loss, "accuracy": accuracy}


# %% wrong="nnx-train-step" because="Uses optax.l2_loss, which is half of the square."
@jax.jit
def train_step(model, optimizer, x, y):

    def objective(model):
        scores = model(x)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()
        kernels = jax.tree.leaves(nnx.state(model, nnx.PathContains("kernel")))
        penalty = 0.01 * sum(optax.l2_loss(kernel).sum() for kernel in kernels)
        return cross_entropy + penalty, (cross_entropy, scores)

    grads, (cross_entropy, scores) = jax.grad(objective, has_aux=True)(model)
    optimizer.update(model, grads)
    accuracy = jnp.mean(jnp.argmax(scores, axis=1) == y)
    return model, optimizer, {"loss": cross_entropy, "accuracy": accuracy}


# %% right="nnx-train-step"
@jax.jit
def train_step(model, optimizer, x, y):
    graphdef, params = nnx.split(model)

    def penalized(params):
        scores = nnx.merge(graphdef, params)(x)
        loss = -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(y)), y])
        flat = nnx.to_flat_state(params)
        squares = [jnp.sum(jnp.square(variable[...])) for path, variable in flat if path[-1] == "kernel"]
        return loss + sum(squares) / 100, {"loss": loss, "accuracy": jnp.mean(scores.argmax(1) == y)}

    gradient, said = jax.grad(penalized, has_aux=True)(params)
    optimizer.update(model, gradient)
    return model, optimizer, said


# %% right="nnx-train-step"
@jax.jit
def train_step(model, optimizer, x, y):
    def entropy(model):
        scores = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), scores

    def penalty(model):
        return 0.01 * (
            jnp.vdot(model.first.kernel, model.first.kernel) + jnp.vdot(model.last.kernel, model.last.kernel)
        )

    (loss, scores), gradient = jax.value_and_grad(entropy, has_aux=True)(model)
    gradient = jax.tree.map(jnp.add, gradient, jax.grad(penalty)(model))
    optimizer.update(model, gradient)
    return model, optimizer, {"loss": loss, "accuracy": (scores.argmax(1) == y).astype(jnp.float32).mean()}


# %% [markdown] task="nnx-modes" stars=2 minutes=20 skills="07_randomness,nnx-train-step"
# ## Statistics for new data
# *Needs: Deeper: clones and copies.*
#
# **Goal.** A trained model is used on another kind of images. Its parameters are fine, but its BatchNorm statistics do not match the new data. Update the statistics without training, and then predict.
#
# **Signature.** `recalibrate(model, batches)`: `model` is a `Net` from the setup, in either mode, and `batches` is `(t, n, d)`, float32. For each batch in turn, BatchNorm updates its running statistics as in training, while Dropout is off. Returns a model with the new statistics and the same parameters, counters and modes. The model that was passed in does not change.
# `predict(model, x)`: `x` is `(n, d)`. Returns `(n, k)`, the output in evaluation mode, with running statistics and without Dropout. The statistics, counters and mode of the model do not change.
#
# **Example.** With `momentum=0.9` and a running mean of 0, a batch with mean 5 moves it to 0.5, and a second such batch moves it to 0.95.
#
# **Judged.** Statistics and predictions for models in either mode, and that nothing else changes. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# What are the mode attributes of BatchNorm and of Dropout called, and must both be switched together?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `nnx.view(model, ...)` returns the model with other static attributes. Which arrays does a view have, its own or the model's?
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The model's. So clone first (`nnx.clone`). Call a view of the clone with `deterministic=True` and `use_running_average=False` on each batch, and return the clone.
# </details>


# %% answer="nnx-modes"
def recalibrate(model, batches):
    """The same model with running statistics that batches (t, n, d) have updated."""
    ### BEGIN SOLUTION
    clone = nnx.clone(model)
    updating = nnx.view(clone, deterministic=True, use_running_average=False)
    for batch in batches:
        updating(batch)
    return clone
    ### END SOLUTION


def predict(model, x):
    """The output in evaluation mode: (n, d) -> (n, k). The model does not change."""
    ### BEGIN SOLUTION
    return nnx.view(model, deterministic=True, use_running_average=True)(x)
    ### END SOLUTION


# %% check="nnx-modes" name="example" points=1
"""The example: a running mean after one batch and after two, and a prediction."""


def probe_example(arrays, batches, x):
    model = fill(Net((1, 1, 1), rngs=nnx.Rngs(0)), arrays)
    means = [arrays_of(recalibrate(model, batches[:t]))["norms/0/mean"] for t in (1, 2)]
    return means, predict(model, x)


arrays = {"layers/0/kernel": np.ones((1, 1), np.float32), "layers/1/kernel": np.ones((1, 1), np.float32)}
batches, x = np.float32([[[4], [6]], [[5], [5]]]), np.float32([[3], [-3]])
means, y = ask(probe_example, arrays, batches, x)
compare([np.asarray(mean) for mean in means], [np.float32([0.5]), np.float32([0.95])], label="the running means")
compare(np.asarray(y), np.float32([[3], [0]]), label="the prediction")

# %% hidden="nnx-modes" name="statistics" points=2
"""The batches update the statistics of a model in either mode. Nothing else changes, including the mode."""


def probe_recalibrated(training, arrays, batches):
    model = fill(Net((3, 6, 5, 2), rngs=nnx.Rngs(0)), arrays)
    model.set_attributes(deterministic=not training, use_running_average=not training)
    result = recalibrate(model, batches)
    got, left, names = arrays_of(result), arrays_of(model), [*arrays, "dropout/rngs/count"]
    result(batches[0])
    later = arrays_of(result)
    return (
        *({name: found[name] for name in names} for found in (got, left)),
        later["dropout/rngs/count"],
        later["norms/0/mean"],
    )


for training in (True, False):
    rng = inputs.rng()
    arrays, batches = drawn(rng, net_shapes((3, 6, 5, 2))), rng.normal(1, 2, size=(3, 9, 3)).astype(np.float32)
    got, left, count, mean = program(probe_recalibrated, training, arrays, batches).run(training, arrays, batches)
    wanted, mode = arrays, "in training mode" if training else "in evaluation mode"
    for batch in batches:
        wanted = net_by_hand(wanted, batch, training=True)[1]
    require(
        all(np.array_equal(left[name], arrays[name]) for name in arrays),
        f"`recalibrate` changes the model that is passed to it {mode}. Return a new model.",
    )
    require(
        not np.array_equal(got["norms/0/mean"], arrays["norms/0/mean"]),
        f"For a model {mode}, the statistics that `recalibrate` returns are the old ones.",
    )
    require(
        got.pop("dropout/rngs/count") == 0 and left["dropout/rngs/count"] == 0,
        "Dropout has drawn masks. Its counter is no longer 0.",
    )
    compare(got, wanted, rtol=1e-3, atol=1e-3, label=f"the arrays that `recalibrate` returns for a model {mode}")
    require(
        (count > 0) == training,
        f"The model is {mode}, but the one that `recalibrate` returns is not.",
    )
    again = net_by_hand(wanted, batches[0], training=True)[1] if training else wanted
    label = f"the running mean after a call of the returned model ({mode})"
    compare(mean, again["norms/0/mean"], rtol=1e-3, atol=1e-3, label=label)

# %% hidden="nnx-modes" name="predictions" points=2
"""Predictions use the running statistics, do not apply Dropout, and change nothing."""


def probe_predict(training, arrays, x):
    model = fill(Net((3, 6, 5, 2), rngs=nnx.Rngs(0)), arrays)
    model.set_attributes(deterministic=not training, use_running_average=not training)
    y = predict(model, x)
    left = arrays_of(model)
    model(x)
    later = arrays_of(model)
    names = [*arrays, "dropout/rngs/count"]
    return y, {name: left[name] for name in names}, {name: later[name] for name in names}


for training in (True, False):
    rng = inputs.rng()
    arrays, x = drawn(rng, net_shapes((3, 6, 5, 2))), rng.normal(size=(8, 3)).astype(np.float32)
    y, left, later = program(probe_predict, training, arrays, x).run(training, arrays, x)
    mode = "in training mode" if training else "in evaluation mode"
    wanted, by_batch = net_by_hand(arrays, x)[0], net_by_hand(arrays, x, training=True)[0]
    batch = np.shape(y) == wanted.shape and np.allclose(y, by_batch, rtol=1e-3, atol=1e-3)
    require(not batch, "The prediction for one example depends on the others. BatchNorm uses the batch's statistics.")
    compare(y, wanted, rtol=1e-3, atol=1e-3, label=f"the prediction of a model {mode}")
    require(
        left["dropout/rngs/count"] == 0 and all(np.array_equal(left[name], arrays[name]) for name in arrays),
        f"After `predict` the arrays of a model {mode} are no longer the same.",
    )
    moved = not np.array_equal(later["norms/0/mean"], arrays["norms/0/mean"])
    require(
        moved == training and (later["dropout/rngs/count"] > 0) == training,
        f"The model was {mode} before `predict`, but is not afterwards.",
    )

# %% [markdown] why="nnx-modes"
# Modes belong to the graphdef, statistics to the state. A view is a new graphdef over the *same* state, so it writes into the model's Variables. A clone has its own Variables. **Next:** `model.eval()` sets both attributes in place. Where would you set them back, and what if an exception comes in between?


# %% wrong="nnx-modes" because="Switches the model itself to evaluation mode and leaves it there, so the next training step runs without Dropout."
def recalibrate(model, batches):
    model = nnx.clone(model)
    listening = nnx.view(model, deterministic=True, use_running_average=False)
    for x in batches:
        listening(x)
    return model


def predict(model, x):
    model.eval()
    return model(x)


# %% wrong="nnx-modes" because="Turns Dropout off and forgets BatchNorm. Each prediction depends on the batch and updates the statistics."
def recalibrate(model, batches):
    model = nnx.clone(model)
    listening = nnx.view(model, deterministic=True, use_running_average=False)
    for x in batches:
        listening(x)
    return model


def predict(model, x):
    return nnx.view(model, deterministic=True)(x)


# %% wrong="nnx-modes" because="Treats a view as a copy. It shares the Variables, so the model that was passed in changes too."
def recalibrate(model, batches):
    listening = nnx.view(model, deterministic=True, use_running_average=False)
    for x in batches:
        listening(x)
    return nnx.clone(model)


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Puts the whole model into training mode. Dropout is on, so later layers see statistics of masked data."
def recalibrate(model, batches):
    model = nnx.clone(model)
    listening = nnx.view(model, deterministic=False, use_running_average=False)
    for x in batches:
        listening(x)
    return model


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Turns Dropout off and assumes that BatchNorm is in training mode. In evaluation mode its statistics do not change."
def recalibrate(model, batches):
    model = nnx.clone(model)
    listening = nnx.view(model, deterministic=True)
    for x in batches:
        listening(x)
    return model


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Returns the view. The statistics are right, but Dropout stays off from now on."
def recalibrate(model, batches):
    listening = nnx.view(nnx.clone(model), deterministic=True, use_running_average=False)
    for x in batches:
        listening(x)
    return listening


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Joins all batches into one, so the statistics are updated once instead of once for each batch."
def recalibrate(model, batches):
    model = nnx.clone(model)
    nnx.view(model, deterministic=True, use_running_average=False)(batches.reshape(-1, batches.shape[-1]))
    return model


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Switches the model of `predict` to evaluation and then to training mode, even if it was in evaluation mode before."
def recalibrate(model, batches):
    model = nnx.clone(model)
    listening = nnx.view(model, deterministic=True, use_running_average=False)
    for x in batches:
        listening(x)
    return model


def predict(model, x):
    model.eval()
    y = model(x)
    model.train()
    return y


# %% wrong="nnx-modes" because="Ends `recalibrate` in training mode, even if the model was in evaluation mode before."
def recalibrate(model, batches):
    model = nnx.clone(model)
    model.set_attributes(deterministic=True, use_running_average=False)
    for x in batches:
        model(x)
    model.train()
    return model


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Normalizes with the running statistics between the layers instead of those of the batch."
def recalibrate(model, batches):
    fresh = nnx.clone(model)
    for x in jnp.asarray(batches):
        for layer, norm in zip(fresh.layers, fresh.norms, strict=False):
            x = layer(x)
            norm.mean[...] = 0.9 * norm.mean[...] + 0.1 * x.mean(axis=0)
            norm.var[...] = 0.9 * norm.var[...] + 0.1 * x.var(axis=0)
            x = (x - norm.mean[...]) / jnp.sqrt(norm.var[...] + 1e-5) * norm.scale[...] + norm.bias[...]
            x = jax.nn.relu(x)
    return fresh


def predict(model, x):
    """The output in evaluation mode: (n, d) -> (n, k). The model does not change."""
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Updates the statistics in a run with Dropout, which changes those of the later layers."
def recalibrate(model, batches):
    probe, fresh = nnx.clone(model), nnx.clone(model)
    probe.train()
    for batch in batches:
        probe(batch)
    nnx.update(fresh, nnx.state(probe, nnx.BatchStat))
    return fresh


def predict(model, x):
    """The output in evaluation mode: (n, d) -> (n, k). The model does not change."""
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% wrong="nnx-modes" because="Returns the clone in the mode in which it updated the statistics, so Dropout stays off."
def recalibrate(model, batches):
    clone = nnx.clone(model)
    clone.set_attributes(deterministic=True, use_running_average=False)
    for batch in batches:
        clone(batch)
    return clone


def predict(model, x):
    return nnx.view(model, deterministic=True, use_running_average=True)(x)


# %% right="nnx-modes"
def recalibrate(model, batches):
    graphdef, state = nnx.split(model)
    quiet, _ = nnx.split(nnx.view(model, deterministic=True, use_running_average=False))

    def follow(state, x):
        listening = nnx.merge(quiet, state, copy=True)
        listening(x)
        return nnx.state(listening), None

    state, _ = jax.lax.scan(follow, state, batches)
    return nnx.merge(graphdef, state)


def predict(model, x):
    other = nnx.clone(model)
    other.eval()
    return other(x)


# %% right="nnx-modes"
def recalibrate(model, batches):
    copied = jax.tree.map(jnp.copy, model)
    for x in batches:
        nnx.view(copied, deterministic=True, use_running_average=False)(x)
    return copied


@jax.jit
def predict(model, x):
    model.set_attributes(deterministic=True, use_running_average=True)
    return model(x)


# %% [markdown] task="nnx-freeze" stars=2 minutes=20 skills="09_training,nnx-train-step"
# ## Freeze what is already good
# *Needs: Deeper: filters.*
#
# **Goal.** Fine-tune some parts of a trained model. The other parts are frozen. They do not change, and need neither a gradient nor optimizer state.
#
# **Signature.** `freeze(model, tx, loss, frozen)`: `model` is a `Pretrained` from the setup, `tx` is an Optax transformation, `loss(model, x, y)` returns `()`, and `frozen` is a tuple of one or more attribute names, such as `("encoder",)`. A parameter (`nnx.Param`) is frozen if one of these names is a part of its path. All other parameters are trained. Returns `(optimizer, gradient)`, an `nnx.Optimizer` over the trained parameters and a function. `gradient(model, x, y)` takes this or another `Pretrained` and returns an `nnx.State` with the gradient of its loss with respect to the trained parameters, and nothing else. A training step is then `optimizer.update(model, gradient(model, x, y))`.
#
# **Example.** With `frozen=("encoder",)` the paths in the gradient are `encoder_gain`, `head/bias` and `head/kernel`. The name `encoder_gain` is not `encoder`.
#
# **Judged.** The paths in the gradient and in the optimizer's state, the gradient of another model than the one passed to `freeze`, whose frozen parameters have other values, and the parameters after two steps, also with weight decay. Frozen parameters stay bitwise the same. **Not judged.** Speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# `optax.adamw` pulls every parameter that it updates towards 0, whatever the gradient. What happens to a parameter whose gradient you have set to 0?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Build one filter, for parameters that are not on a frozen path, from `nnx.All`, `nnx.Any` and `nnx.Not`. Use it as `wrt` and in `nnx.split`.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# In every call of `gradient`, split the model into the state that the filter matches and the rest (`...`), differentiate with respect to the first part, and merge both inside the loss.
# </details>


# %% answer="nnx-freeze"
def freeze(model, tx, loss, frozen):
    """An optimizer of the trained parameters, and gradient(model, x, y), a State with their gradients."""
    ### BEGIN SOLUTION
    trained = nnx.All(nnx.Param, *(nnx.Not(nnx.PathContains(name)) for name in frozen))

    def gradient(model, *batch):
        graphdef, params, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda params: loss(nnx.merge(graphdef, params, rest), *batch))(params)

    return nnx.Optimizer(model, tx, wrt=trained), gradient
    ### END SOLUTION


# %% check="nnx-freeze" name="example" points=1
"""The example: with the encoder frozen, three arrays have a gradient."""


def probe_example(x, y):
    model = Pretrained(rngs=nnx.Rngs(0))
    optimizer, gradient = freeze(model, optax.sgd(0.1), square_loss, ("encoder",))
    return sorted(arrays_of(gradient(model, x, y)))


found = ask(probe_example, np.ones((4, 3), np.float32), np.ones(4, np.float32))
compare(found, ["encoder_gain", "head/bias", "head/kernel"], label="the list of paths in the gradient")

# %% hidden="nnx-freeze" name="gradient" points=2
"""The gradient has the right leaves and values, for one frozen part and for two, and also for another model."""


def probe_gradient(given, arrays, x, y, frozen):
    model, other = (fill(Pretrained(rngs=nnx.Rngs(0)), these) for these in (given, arrays))
    return arrays_of(freeze(model, optax.sgd(0.1), square_loss, frozen)[1](other, x, y))


rng = inputs.rng()
shapes = pretrained_shapes()
arrays, x, y = drawn(rng, shapes), rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=7).astype(np.float32)
given, gradient_of = drawn(rng, shapes), jax.jit(jax.grad(pretrained_loss))
grads = jax.tree.map(np.asarray, gradient_of(arrays, x, y))
for frozen in (("encoder",), ("head", "encoder_gain"), ("bias",)):
    wanted = {name: grad for name, grad in grads.items() if not set(frozen) & set(name.split("/"))}
    got = program(probe_gradient, given, arrays, x, y, frozen).run(given, arrays, x, y, frozen)
    which = f"frozen={frozen}"
    for name in sorted(set(got) - set(wanted)):
        zeros = ", though it is 0" if not np.any(got[name]) else ""
        said = f"for `{name}`, which is frozen{zeros}" if name in grads else "for something that is not a parameter"
        require(False, f"With {which} the gradient has a leaf {said}.")
    for name in sorted(set(wanted) - set(got)):
        require(False, f"With {which} the gradient has no leaf for `{name}`, which should be trained.")
    near = lambda other: all(np.allclose(got[name], other[name], rtol=1e-3, atol=1e-4) for name in wanted)
    mixed = given | {name: arrays[name] for name in wanted}
    for said, of in (
        ("uses the frozen parameters of the model passed to `freeze`", gradient_of(mixed, x, y)),
        ("returns the gradient of the model passed to `freeze`", gradient_of(given, x, y)),
    ):
        require(near(wanted) or not near(of), f"`gradient` is called with another model, but it {said}.")
    compare(got, wanted, rtol=1e-3, atol=1e-4, label=f"the gradient with {which}")

# %% hidden="nnx-freeze" name="steps" points=2
"""After two steps with weight decay, the frozen parameters are bitwise the same, and the others are those of Optax."""


def probe_steps(arrays, x, y, frozen):
    model = fill(Pretrained(rngs=nnx.Rngs(0)), arrays)
    optimizer, gradient = freeze(model, optax.adamw(0.1, weight_decay=0.5), square_loss, frozen)
    for _ in range(2):
        grads = gradient(model, x, y)
        optimizer.update(model, grads)
    return arrays_of(model), [name for name in arrays_of(optimizer) if "/mu/" in name]


def probe_fits(arrays, x, y, frozen):
    def step(arrays):
        model = fill(Pretrained(rngs=nnx.Rngs(0)), arrays)
        optimizer, gradient = freeze(model, optax.adamw(0.1), square_loss, frozen)
        grads = gradient(model, x, y)
        optimizer.update(model, grads)

    jax.eval_shape(step, arrays)


def by_hand(arrays, x, y, frozen):
    moving = {name: array for name, array in arrays.items() if not set(frozen) & set(name.split("/"))}
    gradient_of = jax.jit(jax.grad(lambda moving: pretrained_loss(arrays | moving, x, y)))
    mean = square = dict.fromkeys(moving, np.float32(0))
    for t in (1, 2):
        grads = gradient_of(moving)
        mean = {name: 0.9 * mean[name] + 0.1 * np.asarray(grads[name]) for name in moving}
        square = {name: 0.999 * square[name] + 0.001 * np.asarray(grads[name]) ** 2 for name in moving}
        for name, p in moving.items():
            step = mean[name] / (1 - 0.9**t) / (np.sqrt(square[name] / (1 - 0.999**t)) + 1e-8) + 0.5 * p
            moving[name] = np.float32(p - 0.1 * step)
    return arrays | moving, moving


rng = inputs.rng()
shapes = pretrained_shapes()
arrays, x, y = drawn(rng, shapes), rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=7).astype(np.float32)
for frozen in (("encoder",), ("head", "encoder_gain")):
    raised = error(probe_fits, arrays, x, y, frozen)
    require(
        raised is None,
        f"With frozen={frozen} `optimizer.update(model, gradient(...))` raises {raised}. "
        "Do the optimizer and the gradient have the same parameters?",
    )
    after, memory = program(probe_steps, arrays, x, y, frozen).run(arrays, x, y, frozen)
    wanted, moving = by_hand(arrays, x, y, frozen)
    for name in sorted(set(arrays) - set(moving)):
        same = np.array_equal(after[name], arrays[name])
        require(same, f"`{name}` is frozen (frozen={frozen}), but has changed after two steps with weight decay.")
    require(
        len(memory) == len(moving),
        f"With frozen={frozen} the optimizer stores a running mean for {len(memory)} arrays, but {len(moving)} are trained.",
    )
    after.pop("units", None)
    compare(after, wanted, rtol=1e-3, atol=1e-3, label=f"the parameters after two steps with frozen={frozen}")

# %% [markdown] why="nnx-freeze"
# Frozen parts are constants of the differentiated function. They have no gradient and no optimizer state. A gradient of 0 is different, because momentum, weight decay and noise still change the parameter. **Next:** later, the last layer of the encoder should be trained too. Which part of the optimizer's state would you keep?


# %% wrong="nnx-freeze" because="Sets the frozen gradients to 0. The leaves are still there, Adam stores means of zeros, and weight decay moves the frozen parameters."
def freeze(model, tx, loss, frozen):
    def gradient(model, x, y):
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        grads = jax.grad(lambda params: loss(nnx.merge(graphdef, params, rest), x, y))(params)
        still = lambda path: any(name in path for name in frozen)
        for path, variable in nnx.to_flat_state(grads):
            variable.set_value(jnp.zeros_like(variable[...]) if still(path) else variable[...])
        return grads

    return nnx.Optimizer(model, tx, wrt=nnx.Param), gradient


# %% wrong="nnx-freeze" because="Uses `stop_gradient` for the frozen parameters. Their gradients are then 0, but they are still there."
def freeze(model, tx, loss, frozen):
    def gradient(model, x, y):
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)

        def stopped(params):
            stop = lambda path, p: (
                jax.lax.stop_gradient(p) if any(f"'{name}'" in jax.tree_util.keystr(path) for name in frozen) else p
            )
            return loss(nnx.merge(graphdef, jax.tree_util.tree_map_with_path(stop, params), rest), x, y)

        return jax.grad(stopped)(params)

    return nnx.Optimizer(model, tx, wrt=nnx.Param), gradient


# %% wrong="nnx-freeze" because="Filters the gradient but not the optimizer, so their structures differ."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, nnx.Not(nnx.Any(*(nnx.PathContains(name) for name in frozen))))

    def gradient(model, x, y):
        graphdef, moving, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=nnx.Param), gradient


# %% wrong="nnx-freeze" because="Leaves `nnx.Param` out of the filter, so every Variable off the frozen paths is trained, including constants."
def freeze(model, tx, loss, frozen):
    trained = nnx.Not(nnx.Any(*(nnx.PathContains(name) for name in frozen)))

    def gradient(model, x, y):
        graphdef, moving, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Trains the frozen parts and freezes the others."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, nnx.Any(*(nnx.PathContains(name) for name in frozen)))

    def gradient(model, x, y):
        graphdef, moving, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Searches the text of the path for the name, and `encoder` is also a part of `encoder_gain`."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, lambda path, value: not any(name in "/".join(map(str, path)) for name in frozen))

    def gradient(model, x, y):
        graphdef, moving, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Looks at the first part of the path only, so a name deeper in the path freezes nothing."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, lambda path, value: path[0] not in frozen)

    def gradient(model, x, y):
        graphdef, moving, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Confuses `All` with `Any`. With two names, only a path that contains both is frozen."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, nnx.Not(nnx.All(*(nnx.PathContains(name) for name in frozen))))

    def gradient(model, x, y):
        graphdef, moving, rest = nnx.split(model, trained, ...)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Splits a copy of the model once, outside `gradient`. Every gradient is then that of the initial parameters."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, nnx.Not(nnx.Any(*(nnx.PathContains(name) for name in frozen))))
    graphdef, moving, rest = nnx.split(nnx.clone(model), trained, ...)

    def gradient(model, x, y):
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Splits off the frozen parts once, outside `gradient`. For another model the gradient is then that of a mixture."
def freeze(model, tx, loss, frozen):
    trained = nnx.All(nnx.Param, nnx.Not(nnx.Any(*(nnx.PathContains(name) for name in frozen))))
    graphdef, _, rest = nnx.split(model, trained, ...)

    def gradient(model, x, y):
        moving = nnx.state(model, trained)
        return jax.grad(lambda moving: loss(nnx.merge(graphdef, moving, rest), x, y))(moving)

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% wrong="nnx-freeze" because="Turns the frozen Params of the model into plain Variables, which changes the model."
def freeze(model, tx, loss, frozen):
    for path, variable in list(nnx.to_flat_state(nnx.state(model, nnx.Param))):
        if any(name in path for name in frozen):
            owner = model
            for part in path[:-1]:
                owner = owner[part] if isinstance(part, int) else getattr(owner, part)
            setattr(owner, path[-1], nnx.Variable(variable[...]))

    def gradient(model, x, y):
        graphdef, learned, rest = nnx.split(model, nnx.Param, ...)
        return jax.grad(lambda learned: loss(nnx.merge(graphdef, learned, rest), x, y))(learned)

    return nnx.Optimizer(model, tx, wrt=nnx.Param), gradient


# %% right="nnx-freeze"
def freeze(model, tx, loss, frozen):
    def trained(path, variable):
        return isinstance(variable, nnx.Param) and not set(path) & set(frozen)

    def gradient(model, x, y):
        def of_these(moving):
            copied = nnx.clone(model)
            nnx.update(copied, moving)
            return loss(copied, x, y)

        return jax.grad(of_these)(nnx.state(model, trained))

    return nnx.Optimizer(model, tx, wrt=trained), gradient


# %% right="nnx-freeze"
def freeze(model, tx, loss, frozen):
    still = nnx.Any(*map(nnx.PathContains, frozen))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.All(nnx.Param, nnx.Not(still)))

    @jax.jit
    def gradient(model, x, y):
        return nnx.state(jax.grad(loss)(model, x, y), optimizer.wrt)

    return optimizer, gradient


# %% [markdown] task="nnx-scanned" stars=3 minutes=30 skills="05_vmap,07_randomness,08_control_flow,nnx-modes"
# ## Compile a hundred layers as one
# *Needs: Deeper: many models at once.*
#
# **Goal.** A deep model of equal blocks takes a long time to compile, because each block is compiled separately. Store all blocks as one block with an extra axis, and loop over it.
#
# **Signature.** `Deep(width, depth, *, rngs)` is an `nnx.Module`. `model.blocks` is *one* `Block` from the setup in which every array has an extra first axis of length `depth`, such as `blocks/linear/kernel` `(depth, width, width)`. Row i is block i. `model(x)` passes x `(n, width)`, float32, through blocks 0, 1, ... in order and returns `(n, width)`. In training mode the running statistics of each block follow the data that passes through it.
#
# **Example.** `Deep(2, 3, rngs=nnx.Rngs(0))` has `blocks/norm/mean` of shape `(3, 2)`. If every kernel and bias is 0, the output is the input, and all running means stay 0.
#
# **Judged.** Values and statistics in both modes, gradients, different first kernels, a loop over the blocks, and a program of constructor and call together that does not grow with `depth`. **Not judged.** How the kernels are drawn.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which transformation turns "build one block from a key" into a function that builds many? Which loop iterates over the first axis of a stack?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.vmap` over keys returns a module whose arrays have an extra first axis, and `jax.lax.scan` can go through it. In training mode, a block changes inside the loop. Where does the change have to go?
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Split a key from `rngs.params()` into one key for each block. The body of the scan takes x and a block. It returns the new x and, as second result, the state of the block that it has called. Write what the scan has stacked into `self.blocks`.
# </details>


# %% answer="nnx-scanned"
class Deep(nnx.Module):
    """`depth` blocks, stored as one block with an extra first axis: (n, width) -> (n, width)."""

    def __init__(self, width, depth, *, rngs):
        ### BEGIN SOLUTION
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)
        ### END SOLUTION

    def __call__(self, x):
        ### BEGIN SOLUTION
        def through(x, block):
            x = block(x)
            return x, nnx.state(block, nnx.BatchStat)

        x, statistics = jax.lax.scan(through, x, self.blocks)
        nnx.update(self.blocks, statistics)
        return x
        ### END SOLUTION


# %% check="nnx-scanned" name="example" points=1
"""The example: three blocks of zeros return their input."""


def probe_example(arrays, x):
    model = fill(Deep(2, 3, rngs=nnx.Rngs(0)), arrays)
    return model(x), arrays_of(model)["blocks/norm/mean"]


arrays = {"blocks/linear/kernel": np.zeros((3, 2, 2), np.float32), "blocks/linear/bias": np.zeros((3, 2), np.float32)}
x = np.float32([[1, 2], [3, 4], [5, 6]])


def probe_shapes():
    return {name: array.shape for name, array in arrays_of(Deep(2, 3, rngs=nnx.Rngs(0))).items()}


require(
    "TraceContext" not in str(error(probe_shapes)),
    "A transformed function, such as one under `vmap`, changes the counters of an `rngs` that was created outside it. Take "
    "the keys from `rngs` before the call, and pass them in.",
)
found = ask(probe_shapes)
compare(found, block_shapes(2, 3), label="the dict of shapes")
compare(program(probe_example, arrays, x).run(arrays, x), (x, np.zeros((3, 2), np.float32)), label="(output, means)")

# %% hidden="nnx-scanned" name="values" points=2
"""Values block after block, in training and in evaluation, and the statistics of each block."""


def probe_values(depth, training, arrays, x):
    model = fill(Deep(4, depth, rngs=nnx.Rngs(0)), arrays)
    model.set_attributes(use_running_average=not training)
    y = model(x)
    return y, arrays_of(model)


def by_hand(arrays, x, training, order):
    kernels, biases = arrays["blocks/linear/kernel"], arrays["blocks/linear/bias"]
    scales, shifts, means, variances = (arrays[f"blocks/norm/{name}"] for name in ("scale", "bias", "mean", "var"))
    means, variances, x = means.copy(), variances.copy(), x.astype(np.float64)
    for i in order:
        h = x @ kernels[i] + biases[i]
        mean, var = (h.mean(0), h.var(0)) if training else (means[i], variances[i])
        if training:
            means[i], variances[i] = 0.9 * means[i] + 0.1 * mean, 0.9 * variances[i] + 0.1 * var
        x = x + np.tanh((h - mean) / np.sqrt(var + 1e-5) * scales[i] + shifts[i])
    return np.float32(x), arrays | {"blocks/norm/mean": means, "blocks/norm/var": variances}


for depth, training in ((3, True), (5, False)):
    rng, mode = inputs.rng(), "in training mode" if training else "in evaluation mode"
    arrays, x = drawn(rng, block_shapes(4, depth)), rng.normal(size=(9, 4)).astype(np.float32)
    y, after = program(probe_values, depth, training, arrays, x).run(depth, training, arrays, x)
    wanted, moved = by_hand(arrays, x, training, range(depth))
    if getattr(y, "shape", None) == wanted.shape and not np.allclose(y, wanted, rtol=1e-3, atol=1e-3):
        for said, order in (
            ("The blocks run in the wrong order, the last one first.", range(depth)[::-1]),
            ("Only the first block is used, once for every block.", [0] * depth),
            (
                "The output depends only on the last block. Does each block get the output of the previous one?",
                [depth - 1],
            ),
        ):
            require(not np.allclose(y, by_hand(arrays, x, training, order)[0], rtol=1e-3, atol=1e-3), said)
        batch, _ = by_hand(arrays, x, True, range(depth))
        require(
            training or not np.allclose(y, batch, rtol=1e-3, atol=1e-3),
            "The model is in evaluation mode, but its blocks use the statistics of the batch. The mode is not passed on to them.",
        )
    compare(y, wanted, rtol=1e-3, atol=1e-3, label=f"the output {mode}")
    still = np.array_equal(after.get("blocks/norm/mean"), arrays["blocks/norm/mean"])
    require(
        not (training and still),
        "In training mode, the running means have not changed. The state that a block changes inside the loop must be returned.",
    )
    compare(after, moved, rtol=1e-3, atol=1e-3, label=f"the arrays after a call {mode}")

# %% hidden="nnx-scanned" name="beginning" points=1
"""Each block starts with its own kernel, another seed gives different kernels, and there are gradients."""


def probe_kernels(seed):
    return arrays_of(Deep(3, 4, rngs=nnx.Rngs(seed))).get("blocks/linear/kernel")


def probe_gradient(arrays, x):
    graphdef, params, rest = nnx.split(fill(Deep(3, 4, rngs=nnx.Rngs(0)), arrays), nnx.Param, ...)
    loss = lambda params: nnx.merge(graphdef, params, rest, copy=True)(x)[0, 0]
    return arrays_of(jax.grad(loss)(params)).get("blocks/norm/bias")


seed = int(inputs.rng().integers(1, 1000))
kernels, others = ask(probe_kernels, seed), ask(probe_kernels, seed + 1)
require(np.shape(kernels) == (4, 3, 3), "`blocks/linear/kernel` of four blocks of width 3 is not one array (4, 3, 3).")
require(np.isfinite(kernels).all(), "`blocks/linear/kernel` is not finite.")
require(
    not any(np.array_equal(a, b) for a, b in itertools.combinations(kernels, 2)),
    "Two blocks start with the same kernel. Does each have its own key?",
)
require(not np.array_equal(kernels, others), "Another seed gives the same model. Is `rngs` used?")
arrays = {"blocks/linear/kernel": np.zeros((4, 3, 3), np.float32), "blocks/norm/bias": np.ones((4, 3), np.float32)}
wanted = np.zeros((4, 3), np.float32)
wanted[:, 0] = 1 - np.tanh(1) ** 2
x = inputs.rng().normal(size=(5, 3)).astype(np.float32)
compare(
    program(probe_gradient, arrays, x).run(arrays, x), wanted, label="the gradient with respect to the norms' biases"
)

# %% hidden="nnx-scanned" name="program" points=2
"""A loop runs over the blocks, and three times as many blocks do not make the program larger."""


def probe_still(depth, arrays, x):
    model = fill(Deep(4, depth, rngs=nnx.Rngs(0)), arrays)
    return model(x), arrays_of(model).get("blocks/norm/mean")


x, made = inputs.rng().normal(size=(6, 4)).astype(np.float32), {}
for depth in (4, 12):
    arrays = {name: np.zeros(shape, np.float32) for name, shape in block_shapes(4, depth).items()}
    arrays["blocks/linear/kernel"] += 1
    names = ask(lambda depth: list(arrays_of(Deep(4, depth, rngs=nnx.Rngs(0)))), depth)
    require(set(names) >= set(arrays), "The arrays in `blocks` are not those of one `Block`.")
    made[depth] = program(probe_still, depth, arrays, x)
    compare(made[depth].run(depth, arrays, x)[0], x, label=f"the output of {depth} blocks that add nothing")
require(
    made[4].loops > 0,
    "There is no loop in the program. The blocks run all at once, or each has its own code.",
)
require(
    made[12].operations <= made[4].operations + 10,
    f"The program of 4 blocks has {made[4].operations} operations, that of 12 blocks has {made[12].operations}. It grows with "
    "the depth.",
)

# %% [markdown] why="nnx-scanned"
# `vmap` builds a stack of blocks, and `scan` goes through it row by row. The body is traced once for any depth. As with `jit`, a change inside a block leaves the loop only as a result. **Next:** reverse mode stores what every block computed in the forward pass. Where in this model would you put `jax.checkpoint` (15)?


# %% equivalent="nnx-scanned" because="How the blocks are created is not judged, and the parameters are the same."
# loop for vmap, jax.vmap -> python_loop: self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)


# %% wrong="nnx-scanned" because="Stores a list of blocks. Each is traced separately, so forty blocks make forty times the code."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        self.blocks = nnx.List([Block(width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


# %% wrong="nnx-scanned" because="Stacks the blocks but goes through them with a Python loop, so each block still has its own code."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        self.depth = depth
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        blocks = [jax.tree.map(lambda a: a[i], self.blocks) for i in range(self.depth)]
        for block in blocks:
            x = block(x)
        self.blocks = jax.tree.map(lambda *rows: jnp.stack(rows), *blocks)
        return x


# %% wrong="nnx-scanned" because="Does not return the changed state from the loop, so the running statistics never leave 0 and 1."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        x, _ = jax.lax.scan(lambda x, block: (block(x), None), x, self.blocks)
        return x


# %% wrong="nnx-scanned" because="Returns the running means from the loop, but not the variances."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        def body(x, block):
            x = block(x)
            return x, block.norm.mean[...]

        x, means = jax.lax.scan(body, x, self.blocks)
        self.blocks.norm.mean[...] = means
        return x


# %% wrong="nnx-scanned" because="Stores the graphdef of the constructor, which is in training mode. `eval()` never reaches the blocks in the loop."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)
        self.graphdef = nnx.graphdef(self.blocks)

    def __call__(self, x):
        def body(x, state):
            block = nnx.merge(self.graphdef, state, copy=True)
            x = block(x)
            return x, nnx.state(block, nnx.BatchStat)

        x, statistics = jax.lax.scan(body, x, nnx.state(self.blocks))
        nnx.update(self.blocks, statistics)
        return x


# %% wrong="nnx-scanned" because="Uses `rngs` inside `vmap`, but its counters belong to the outer trace."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        self.blocks = jax.vmap(lambda _: Block(width, rngs=rngs))(jnp.arange(depth))

    def __call__(self, x):
        x, self.blocks = jax.lax.scan(lambda x, block: (block(x), block), x, self.blocks)
        return x


# %% wrong="nnx-scanned" because="Gives every block the same key, so all start with the same kernel."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        key = rngs.params()
        self.blocks = jax.vmap(lambda i: Block(width, rngs=nnx.Rngs(key)))(jnp.arange(depth))

    def __call__(self, x):
        x, self.blocks = jax.lax.scan(lambda x, block: (block(x), block), x, self.blocks)
        return x


# %% wrong="nnx-scanned" because="Runs all blocks on the same input and keeps the last result. `vmap` does not chain calls."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        ys, self.blocks = jax.vmap(lambda block: (block(x), block))(self.blocks)
        return ys[-1]


# %% wrong="nnx-scanned" because="Applies the first block in every iteration, so the model has the parameters of only one block."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        first = jax.tree.map(lambda a: a[0], self.blocks)
        (x, _), states = jax.lax.scan(lambda c, _: ((c[1](c[0]), c[1]), c[1]), (x, first), self.blocks)
        self.blocks = states
        return x


# %% wrong="nnx-scanned" because="Unrolls the scan completely, so no loop is left and the program grows with the depth."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        def body(x, block):
            x = block(x)
            return x, block

        x, self.blocks = jax.lax.scan(body, x, self.blocks, unroll=True)
        return x


# %% wrong="nnx-scanned" because="Unrolls the scan completely, and updates the statistics only in training mode. No loop is left, and the program grows with the depth."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        keys = jax.random.split(rngs.params(), depth)
        self.blocks = jax.vmap(lambda key: Block(width, rngs=nnx.Rngs(key)))(keys)

    def __call__(self, x):
        def body(x, block):
            x = block(x)
            return x, nnx.state(block, nnx.BatchStat)

        x, statistics = jax.lax.scan(body, jnp.asarray(x), self.blocks, unroll=True)
        if not self.blocks.norm.use_running_average:
            nnx.update(self.blocks, statistics)
        return x


# %% wrong="nnx-scanned" because="Gives every block the same key, so all start with the same kernel."
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        one = Block(width, rngs=rngs)
        self.blocks = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], depth, axis=0), one)

    def __call__(self, x):
        def body(x, block):
            x = block(x)
            return x, nnx.state(block)

        x, states = jax.lax.scan(body, x, self.blocks)
        nnx.update(self.blocks, states)
        return x


# %% right="nnx-scanned"
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        blocks = [Block(width, rngs=rngs) for _ in range(depth)]
        self.blocks = jax.tree.map(lambda *rows: jnp.stack(rows), *blocks)

    def __call__(self, x):
        x, self.blocks = jax.lax.scan(lambda x, block: (block(x), block), x, self.blocks)
        return x


# %% right="nnx-scanned"
class Deep(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        self.blocks = jax.vmap(lambda rngs: Block(width, rngs=rngs))(rngs.split(depth))

    def __call__(self, x):
        graphdef, params, rest = nnx.split(self.blocks, nnx.Param, ...)

        def through(x, row):
            block = nnx.merge(graphdef, *row, copy=True)
            return block(x), nnx.state(block, nnx.Not(nnx.Param))

        x, rest = jax.lax.scan(through, x, (params, rest))
        nnx.update(self.blocks, rest)
        return x


# %% [markdown] task="nnx-load-linen" stars=2 minutes=20 skills="06_pytrees,nnx-modes,nnx-freeze"
# ## Load weights from Linen
# *Needs: Deeper: four libraries.*
#
# **Goal.** A colleague's model is written with Linen, Flax's older interface. Load its trained weights, a dict of dicts, into your NNX model.
#
# **Signature.** `load_from_linen(model, variables)`: `model` is a new `Net` from the setup. `variables`, `{"params": {...}, "batch_stats": {...}}`, belongs to a `LinenNet` of the same three or more sizes. Layers have the names `Dense_0`, `Dense_1`, ... and `BatchNorm_0`, ..., in the order in which they are called. Their arrays have the same names as in NNX: `kernel` and `bias` for Dense, `scale` and `bias` for BatchNorm, and `mean` and `var` in its `batch_stats`. Returns the model with these arrays, in training mode (the same object or a new one).
#
# **Example.** `LinenNet((2, 3, 1))` has the arrays `{"params": {"Dense_0": {"kernel": (2, 3), "bias": (3,)}, "BatchNorm_0": {"scale": (3,), "bias": (3,)}, "Dense_1": ...}, "batch_stats": {"BatchNorm_0": {"mean": (3,), "var": (3,)}}}`, shown by their shapes. `Dense_1` becomes `model.layers[1]`.
#
# **Judged.** The scores in evaluation mode, for any depth, even if the dict is sorted by name (as by `jax.tree.map`), and that training can continue with the returned model. **Not judged.** The counters of Dropout.
#
# <details><summary>Hint 1 · a question</summary>
#
# Sort the names `Dense_0` to `Dense_10`. Which is the third?
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Go through the layers of your model by index and look up each one by name. The four arrays of a BatchNorm are in two places.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `nnx.update(module, {"kernel": ..., "bias": ...})` writes arrays into a module by name, without checking names or shapes. `a | b` joins two dicts.
# </details>


# %% answer="nnx-load-linen"
def load_from_linen(model, variables):
    """The model (a Net) with the arrays of a LinenNet of the same sizes."""
    ### BEGIN SOLUTION
    params, statistics = variables["params"], variables["batch_stats"]
    for i, layer in enumerate(model.layers):
        nnx.update(layer, params[f"Dense_{i}"])
    for i, norm in enumerate(model.norms):
        nnx.update(norm, params[f"BatchNorm_{i}"] | statistics[f"BatchNorm_{i}"])
    return model
    ### END SOLUTION


# %% check="nnx-load-linen" name="example" points=1
"""A new Linen model: the same scores."""


def probe_scores(sizes, variables, x):
    model = load_from_linen(Net(sizes, rngs=nnx.Rngs(0)), variables)
    model.eval()
    wrong = misfit(model, net_shapes(sizes))
    return None if wrong else model(x), wrong


theirs, x = LinenNet((2, 3, 1)), np.float32([[1, 2], [-3, 4], [0, 1]])
variables = jax.tree.map(np.asarray, theirs.init(jax.random.key(0), x))
got, wrong = program(probe_scores, (2, 3, 1), variables, x).run((2, 3, 1), variables, x)
require(
    not wrong, wrong and f"The loaded `{wrong[0]}` has shape {wrong[1]}; expected {net_shapes((2, 3, 1))[wrong[0]]}."
)
compare(got, np.asarray(theirs.apply(variables, x)), label="the scores")

# %% hidden="nnx-load-linen" name="scores" points=3
"""The same scores for trained weights, in shallow models and in one with twelve layers."""


def probe_loaded(sizes, variables, x):
    model = load_from_linen(Net(sizes, rngs=nnx.Rngs(0)), variables)
    if misfit(model, net_shapes(sizes)):
        return None, arrays_of(model)
    return nnx.view(model, deterministic=True, use_running_average=True)(x), arrays_of(model)


def as_linen(arrays, norms):
    params, statistics = {}, {}
    for name, array in sorted(arrays.items()):
        kind, i, last = name.split("/")
        place = f"{'Dense' if kind == 'layers' else 'BatchNorm'}_{i}"
        (statistics if last in ("mean", "var") else params).setdefault(place, {})[last] = array
    return {"params": dict(sorted(params.items())), "batch_stats": dict(sorted(statistics.items()))}


def in_words(name):
    kind, i, last = name.split("/")
    return f"the {last} of {'layer' if kind == 'layers' else 'BatchNorm'} {i}"


for sizes in ((4, 4, 4, 4), (3, 5, 2), (4,) * 13):
    rng, depth = inputs.rng(), len(sizes) - 1
    arrays, x = drawn(rng, net_shapes(sizes)), rng.normal(size=(6, sizes[0])).astype(np.float32)
    variables = as_linen(arrays, depth - 1)
    got, loaded = program(probe_loaded, sizes, variables, x).run(sizes, variables, x)
    same = lambda name, other: np.shape(loaded.get(name)) == other.shape and np.array_equal(loaded[name], other)
    for name, wanted in arrays.items():
        where, there = in_words(name), [in_words(other) for other, array in arrays.items() if same(name, array)]
        why = f"It is {there[0]}" if there else "It is the initial value or was changed"
        why = "It is transposed" if wanted.ndim == 2 and same(name, wanted.T) else why
        require(same(name, wanted), f"In a model of {depth} layers, {where} differs from that of Linen. {why}.")
    compare(got, net_by_hand(arrays, x)[0], rtol=1e-2, atol=1e-2, label=f"the scores of {depth} layers")

# %% hidden="nnx-load-linen" name="goes-on" points=1
"""The loaded model can be split, differentiated and called in training."""


def probe_kinds(variables):
    state = nnx.state(load_from_linen(Net((2, 3, 2), rngs=nnx.Rngs(0)), variables))
    return {
        kind.__name__: [
            "/".join(map(str, path)) for path, variable in nnx.to_flat_state(state) if type(variable) is kind
        ]
        for kind in (nnx.Param, nnx.BatchStat)
    }


def probe_training(variables, x):
    model = load_from_linen(Net((2, 3, 2), rngs=nnx.Rngs(0)), variables)
    if wrong := misfit(model, net_shapes((2, 3, 2))):
        return None, None, wrong
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def total(params):
        ours = nnx.view(nnx.merge(graphdef, params, rest, copy=True), deterministic=True)
        return ours(x).sum(), nnx.state(ours, nnx.BatchStat)

    grads, statistics = jax.grad(total, has_aux=True)(params)
    return arrays_of(grads), arrays_of(statistics), None


rng = inputs.rng()
arrays, x = drawn(rng, net_shapes((2, 3, 2))), rng.normal(size=(5, 2)).astype(np.float32)
inner = {"kernel": arrays["layers/0/kernel"], "bias": arrays["layers/0/bias"]}
outer = {"kernel": arrays["layers/1/kernel"], "bias": arrays["layers/1/bias"]}
norm = {name: arrays[f"norms/0/{name}"] for name in ("scale", "bias", "mean", "var")}
params = {"Dense_0": inner, "Dense_1": outer, "BatchNorm_0": {"scale": norm["scale"], "bias": norm["bias"]}}
variables = {"params": params, "batch_stats": {"BatchNorm_0": {"mean": norm["mean"], "var": norm["var"]}}}
require(
    error(probe_kinds, variables) != "ValueError",
    "NNX rejects what `load_from_linen` writes into the model (ValueError). Are Linen's names used for the whole model?",
)
kinds = ask(probe_kinds, variables)
for name in arrays:
    kind = "BatchStat" if name.endswith(("mean", "var")) else "Param"
    require(
        name in kinds[kind],
        f"In the loaded model `{name}` is no longer an `nnx.{kind}`, so it is not trained or updated. Write the array into "
        "the existing Variable.",
    )
grads, statistics, wrong = program(probe_training, variables, x).run(variables, x)
require(
    not wrong, wrong and f"The loaded `{wrong[0]}` has shape {wrong[1]}; expected {net_shapes((2, 3, 2))[wrong[0]]}."
)
moved = net_by_hand(arrays, x, training=True)[1]
kept = {name: moved[name] for name in ("norms/0/mean", "norms/0/var")}
require(
    sorted(grads) == sorted(set(arrays) - set(kept)),
    "The gradient of the loaded model and that of a new `Net` have different leaves.",
)
compare(grads["layers/1/bias"], np.float32([5, 5]), label="the gradient with respect to the last bias")
compare(statistics, kept, rtol=1e-3, atol=1e-3, label="the running statistics after one call in training")

# %% [markdown] why="nnx-load-linen"
# Both models are trees of named arrays. If you swap two layers of one shape or forget the statistics, there is no error. So compare the outputs. **Next:** PyTorch stores the kernel of a linear layer as `(outputs, inputs)`. What else would you check before you trust such a file (27)?


# %% wrong="nnx-load-linen" because="Goes through the dict in its own order. Sorted by name, `Dense_10` comes before `Dense_2`."
def load_from_linen(model, variables):
    params, statistics = variables["params"], variables["batch_stats"]
    dense = [params[name] for name in sorted(params) if name.startswith("Dense")]
    for layer, arrays in zip(model.layers, dense, strict=True):
        nnx.update(layer, arrays)
    for i, norm in enumerate(model.norms):
        nnx.update(norm, params[f"BatchNorm_{i}"] | statistics[f"BatchNorm_{i}"])
    return model


# %% wrong="nnx-load-linen" because="Sorts the names by their last character, so `Dense_10` comes before `Dense_1`."
def load_from_linen(model, variables):
    params, statistics = variables["params"], variables["batch_stats"]
    in_order = lambda kind: sorted((name for name in params if name.startswith(kind)), key=lambda name: int(name[-1]))
    for layer, name in zip(model.layers, in_order("Dense"), strict=True):
        nnx.update(layer, params[name])
    for norm, name in zip(model.norms, in_order("BatchNorm"), strict=True):
        nnx.update(norm, params[name] | statistics[name])
    return model


# %% wrong="nnx-load-linen" because="Forgets the statistics, which are not parameters. They stay at mean 0 and variance 1, as in an untrained model."
def load_from_linen(model, variables):
    params = variables["params"]
    for i, layer in enumerate(model.layers):
        nnx.update(layer, params[f"Dense_{i}"])
    for i, norm in enumerate(model.norms):
        nnx.update(norm, params[f"BatchNorm_{i}"])
    return model


# %% wrong="nnx-load-linen" because="Transposes the kernels, as you have to for PyTorch. Linen and NNX store them in the same way."
def load_from_linen(model, variables):
    params, statistics = variables["params"], variables["batch_stats"]
    for i, layer in enumerate(model.layers):
        arrays = params[f"Dense_{i}"]
        nnx.update(layer, {"kernel": arrays["kernel"].T, "bias": arrays["bias"]})
    for i, norm in enumerate(model.norms):
        nnx.update(norm, params[f"BatchNorm_{i}"] | statistics[f"BatchNorm_{i}"])
    return model


# %% wrong="nnx-load-linen" because="Copies the leaves in the order of each tree, but the two trees have different orders."
def load_from_linen(model, variables):
    graphdef, state, rest = nnx.split(model, nnx.Any(nnx.Param, nnx.BatchStat), ...)
    arrays = jax.tree.leaves(variables)
    return nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(state), arrays), rest)


# %% wrong="nnx-load-linen" because="Assigns arrays in place of Variables, so they are no longer parameters. Write `layer.kernel[...] = array`."
def load_from_linen(model, variables):
    params, statistics = variables["params"], variables["batch_stats"]
    for i, layer in enumerate(model.layers):
        layer.kernel, layer.bias = (jnp.asarray(params[f"Dense_{i}"][name]) for name in ("kernel", "bias"))
    for i, norm in enumerate(model.norms):
        nnx.update(norm, params[f"BatchNorm_{i}"] | statistics[f"BatchNorm_{i}"])
    return model


# %% wrong="nnx-load-linen" because="Updates the whole model with Linen's names. They become new attributes, and the arrays of the layers keep their initial values."
def load_from_linen(model, variables):
    nnx.update(model, variables["params"])
    nnx.update(model, variables["batch_stats"])
    return model


# %% wrong="nnx-load-linen" because="Skips the last layer, as you would for fine-tuning."
def load_from_linen(model, variables):
    params, statistics = variables["params"], variables["batch_stats"]
    for i, norm in enumerate(model.norms):
        nnx.update(model.layers[i], params[f"Dense_{i}"])
        nnx.update(norm, params[f"BatchNorm_{i}"] | statistics[f"BatchNorm_{i}"])
    return model


# %% wrong="nnx-load-linen" because="Stores the standard deviation where the variance belongs."
def load_from_linen(model, variables):
    params, statistics = variables["params"], variables["batch_stats"]
    for i, layer in enumerate(model.layers):
        nnx.update(layer, params[f"Dense_{i}"])
    for i, norm in enumerate(model.norms):
        found = statistics[f"BatchNorm_{i}"]
        nnx.update(norm, params[f"BatchNorm_{i}"] | {"mean": found["mean"], "var": jnp.sqrt(found["var"])})
    return model


# %% wrong="nnx-load-linen" because="Replaces the statistics by Params, which are then trained."
def load_from_linen(model, variables):
    params, stats = variables["params"], variables["batch_stats"]
    for i, layer in enumerate(model.layers):
        for name, array in params[f"Dense_{i}"].items():
            setattr(layer, name, nnx.Param(jnp.asarray(array)))
    for i, norm in enumerate(model.norms):
        for name, array in (params[f"BatchNorm_{i}"] | stats[f"BatchNorm_{i}"]).items():
            setattr(norm, name, nnx.Param(jnp.asarray(array)))
    return model


# %% wrong="nnx-load-linen" because="Pairs the statistics with the norms in the order of the names, where 10 comes before 2."
def load_from_linen(model, variables):
    params = variables["params"]
    for i, layer in enumerate(model.layers):
        nnx.update(layer, params[f"Dense_{i}"])
    for i, norm in enumerate(model.norms):
        nnx.update(norm, params[f"BatchNorm_{i}"])
    for norm, stats in zip(model.norms, variables["batch_stats"].values(), strict=True):
        nnx.update(norm, stats)
    return model


# %% wrong="nnx-load-linen" because="Loads the layers of the example only, so the layers of a deeper model keep their initial values."
def load_from_linen(model, variables):
    params, stats = variables["params"], variables["batch_stats"]
    nnx.update(model.layers[0], params["Dense_0"])
    nnx.update(model.norms[0], params["BatchNorm_0"] | stats["BatchNorm_0"])
    nnx.update(model.layers[1], params["Dense_1"])
    return model


# %% right="nnx-load-linen"
def load_from_linen(model, variables):
    kinds = {"Dense": "layers", "BatchNorm": "norms"}
    state = nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))
    for collection in variables.values():
        for name, arrays in collection.items():
            kind, i = name.split("_")
            state[kinds[kind]][int(i)].update(arrays)
    nnx.update(model, state)
    return model


# %% right="nnx-load-linen"
def load_from_linen(model, variables):
    graphdef, state = nnx.split(model)
    for path, variable in nnx.to_flat_state(state):
        if path[0] in ("layers", "norms"):
            place = f"{'Dense' if path[0] == 'layers' else 'BatchNorm'}_{path[1]}"
            collection = "batch_stats" if path[2] in ("mean", "var") else "params"
            variable[...] = variables[collection][place][path[2]]
    return nnx.merge(graphdef, state)
