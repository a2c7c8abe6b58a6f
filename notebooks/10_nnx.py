# %% [markdown]
# # 10 · NNX: a model is a pytree that you can call
#
# *The core takes about 35 minutes. Then do [the exercises](../exercises/10_nnx/10_nnx.ipynb). Twelve "Deeper" sections can be skipped.* After the core, you can write a model as a class, train it under `jit`, and separate its parameters from its other state.
#
# **Prerequisites.** `jit` (03), `grad` (04), pytrees (06), keys (07), Optax (09). Answer these questions from memory.
#
# 1. From 06: what is the path of a leaf?
#
# <details><summary>Answer</summary>
#
# The keys, indices and attribute names that lead from the root of the tree to the leaf.
# </details>
#
# 2. From 07: how do you get many keys from one key and a counter?
#
# <details><summary>Answer</summary>
#
# Fold the counter into the key with `jax.random.fold_in(key, n)`. The keys are the same in every run.
# </details>
#
# 3. From 09: a training step returns the loss. What else must it return?
#
# <details><summary>Answer</summary>
#
# The updated parameters and the updated state of the optimizer.
# </details>

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from grader.learning import plots
from grader.learning.inspection import flops, print_error, time_ms

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## The question: what does `jit` do with an object?
# In lesson 09, one function created the parameters and another function used them, and both had to use the same names. A class keeps the two together. **NNX**, the current API of the neural network library Flax, is built on such classes. But a method can change `self`, and `jit` requires pure functions (02). **What happens when you pass an object to `jit`?**
#
# In our example, a model predicts the arm of a spiral galaxy from a star's position. We train it on 300 stars and test it on 600 others.

# %%
rng = np.random.default_rng(10)
radius, arm = rng.uniform(0.1, 1, size=900), np.arange(900) % 3
angle = 2 * np.pi * (arm / 3 + radius) + 0.2 * rng.normal(size=900)
stars = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
x, y, test_x, test_y = stars[:300], arm[:300], stars[300:], arm[300:]

# %% [markdown]
# Here is a linear model, once as a plain class and once as an NNX module.


# %%
class Plain:
    def __init__(self, key):
        self.w = jax.random.normal(key, (2, 3))

    def __call__(self, x):
        return x @ self.w


class PlainModule(Plain, nnx.Module):
    """The same methods in a subclass of nnx.Module."""


apply = jax.jit(lambda model, x: model(x))

# %% [markdown] predict="nnx-plain"
# What does `apply(model, x)` do when `model` is a `Plain`?
#
# - [ ] It compiles a program in which the weights are constants. | That happens to an object that the function closes over (03). This object is an argument.
# - [ ] It runs the function in Python, without compiling it. | `jit` either traces a function or raises an error.
# - [x] It raises an error before tracing starts. | Right. An argument must be a pytree of arrays, and JAX does not know which attributes of a `Plain` are data.

# %%
print_error(lambda: apply(Plain(jax.random.key(0)), x))
module = PlainModule(jax.random.key(0))
print("PlainModule:", apply(module, x).shape, "from leaves of shape", jax.tree.map(jnp.shape, jax.tree.leaves(module)))

# %% [markdown]
# `nnx.Module` registers every subclass as a pytree (06). Attributes that hold arrays or other modules are data. All other attributes, such as a width, are static and belong to the [treedef](../docs/glossary.md#treedef).
#
# ## Variables and keys
# An array alone does not show whether it should be trained. Layers therefore wrap each array in a **Variable**, whose type states its role. A trainable parameter is an `nnx.Param`. In arithmetic, a Variable behaves like its array. You read the array with `bias[...]` and replace it with `bias[...] = array`.
#
# Random initial values need keys. An `nnx.Rngs` object is created from a seed, and `rngs.params()` returns a key. Here is a complete layer.


# %%
class Dense(nnx.Module):
    def __init__(self, inputs, outputs, *, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs))

    def __call__(self, x):
        return x @ self.kernel + self.bias


dense = Dense(2, 3, rngs=nnx.Rngs(0))
dense.bias[...] = jnp.ones(3)
print("output:", dense(x).shape, "  bias:", dense.bias[...])

# %% [markdown]
# NNX's own dense layer is `nnx.Linear`.

# %% [markdown] predict="nnx-rngs"
# We create `rngs = nnx.Rngs(0)` and then call `nnx.Linear(3, 3, rngs=rngs)` twice. Do the two layers start with the same kernel?
#
# - [ ] Yes, both start from seed 0. | They would if each layer had its own `nnx.Rngs(0)`.
# - [x] No, the second layer gets different keys. | Right. `rngs` counts its draws and folds the count into its key (07).
# - [ ] We get an error, because a key is used twice. | No key is used twice. Each draw derives a new one.

# %%
rngs = nnx.Rngs(0)
first, second = (nnx.Linear(3, 3, rngs=rngs) for _ in range(2))
print("same kernel:", bool(jnp.array_equal(first.kernel[...], second.kernel[...])))
print("keys drawn:", rngs.params.count[...])
print("the next key is fold_in(key(0), 4):", rngs.params() == jax.random.fold_in(jax.random.key(0), 4))

# %% [markdown]
# Each layer drew two keys, one for its kernel and one for its bias.
#
# ## A network
# A model stores its layers in attributes. A list of layers goes into an `nnx.List`.


# %%
class Network(nnx.Module):
    def __init__(self, width=64, depth=2, *, rngs):
        self.stem = nnx.Linear(2, width, rngs=rngs)
        self.hidden = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.stem(x))
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.head(x)


# %% [markdown]
# `nnx.display` shows a model as a tree that you can expand, and `print` shows it as text. Both list the Variables and the static attributes.

# %%
network = Network(rngs=nnx.Rngs(0))
nnx.display(network)
print(network.head)

# %% [markdown]
# Why `nnx.List`? NNX treats a plain list as static, and a static attribute must not contain arrays or modules.


# %%
class PlainList(nnx.Module):
    def __init__(self, *, rngs):
        self.hidden = [nnx.Linear(64, 64, rngs=rngs)]


print_error(lambda: PlainList(rngs=nnx.Rngs(0)), length=640)

# %% [markdown]
# ## Where does an update go?
# An `nnx.Optimizer` holds an Optax transformation and its state. Its argument `wrt` ("with respect to") selects the Variables to train. `optimizer.update(model, grads)` works **in place**. It writes new arrays into the Variables of the model and of the optimizer. `jax.value_and_grad` accepts a module and returns the gradient as a module of the same structure.


# %%
def cross_entropy(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


def learn(model, optimizer, x, y):
    value, grads = jax.value_and_grad(cross_entropy)(model, x, y)
    optimizer.update(model, grads)  # in place
    return value


# %% [markdown] predict="nnx-lost"
# `learn` updates the model in place and returns only the loss. We call `jax.jit(learn)` five times with the same arguments. Which losses do we get?
#
# - [x] The same number five times. | Right. The update changes a copy of the model, and the copy exists only while the program is traced.
# - [ ] Losses that fall from call to call. | They fall without `jit`.
# - [ ] None, because `jit` raises an error. | The update writes into Variables that `jit` created for this trace, so there is no error.

# %%
optimizer = nnx.Optimizer(network, optax.adam(0.003), wrt=nnx.Param)
jax_learn = jax.jit(learn)
print(np.array([jax_learn(network, optimizer, x, y) for _ in range(5)]))

# %% [markdown]
# ![Two lanes. In both, jit flattens the model into leaves and builds a copy from tracers, and optimizer.update changes the copy. In the upper lane only value is returned, so the copy is dropped and the model outside is as before. In the lower lane model, optimizer and value are returned, and the leaves of the copy become a new model.](../images/nnx_copies.svg)
#
# `jit` flattens the model into its leaves and builds a second model from [tracers](../docs/glossary.md#tracer). The update changes this second model. **What you do not return is silently lost.** So return the model and the optimizer.


# %%
@jax.jit
def step(model, optimizer, x, y):
    value, grads = jax.value_and_grad(cross_entropy)(model, x, y)
    optimizer.update(model, grads)
    return model, optimizer, value


# %%
def train(model, tx, steps, x=x, y=y, wrt=nnx.Param):
    optimizer, losses = nnx.Optimizer(model, tx, wrt=wrt), []
    for _ in range(steps):
        model, optimizer, value = step(model, optimizer, x, y)
        losses.append(value)
    return model, optimizer, np.array(losses)


trained, trained_optimizer, losses = train(network, optax.adam(0.003), 200)
print("the first five losses:", losses[:5])
print("the last loss:", losses[-1], "  steps counted by the optimizer:", trained_optimizer.step[...])

# %% [markdown]
# `network` itself has not changed, so we can draw the predictions of both models.


# %%
def accuracy(model, x, y):
    return float(jnp.mean(apply(model, x).argmax(axis=1) == y))


def show_regions(models, alt):
    """Colours the plane by the arm that each model predicts, with the training stars on top. models: {title: model}"""
    side = np.linspace(-1.1, 1.1, 150, dtype=np.float32)
    plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    _, axes = plots.subplots(1, len(models), height=3.6)
    for ax, (title, model) in zip(axes, models.items(), strict=True):
        arms = apply(model, plane).argmax(axis=1).reshape(150, 150)
        ax.contourf(side, side, arms, [-0.5, 0.5, 1.5, 2.5], colors=["C0", "C1", "C2"], alpha=0.3)
        for i, marker in enumerate("o^s"):
            ax.plot(*x[y == i].T, marker, markersize=3, color=f"C{i}")
        ax.set(title=title, aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    plots.show(alt)


# %%
before, after = (f"{accuracy(model, test_x, test_y):.1%}" for model in (network, trained))
show_regions(
    {f"before training: {before} correct": network, f"after training: {after} correct": trained},
    "Stars of three spiral arms, each arm with its own marker, on the regions that the network assigns to each arm. "
    f"Before training the regions cut across the arms and {before} of the test stars are classified correctly. "
    f"After training the regions follow the arms and {after} are correct.",
)

# %% [markdown]
# ## `nnx.jit` beside `jax.jit`
# NNX has its own versions of JAX's transformations. `nnx.jit` compiles like `jax.jit`, and after each call it writes the changed Variables back into the objects that you passed. With `nnx.jit`, `learn` needs no change.

# %%
nnx_learn = nnx.jit(learn)
student = Network(rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(student, optax.adam(0.003), wrt=nnx.Param)
print(np.array([nnx_learn(student, optimizer, x, y) for _ in range(5)]))

# %%
jax_ms, nnx_ms = time_ms(
    lambda: step(student, optimizer, x, y), lambda: nnx_learn(student, optimizer, x, y), repeats=50
)
print(f"a step takes {1e3 * jax_ms:.0f} µs with jax.jit and {1e3 * nnx_ms:.0f} µs with nnx.jit")

# %% [markdown]
# The losses equal those of `step`. The extra time is spent in Python, because `nnx.jit` traverses the objects in each call.
#
# Most Flax tutorials use `nnx.jit`, which loses no update. This course uses `jax.jit`, because the code then shows everything that a step changes, and a call takes less time.
#
# ## State that is not trained
# Some state of a model changes but is not trained. Here, a model counts the examples it has seen. The counter is a Variable with its own type, a subclass of `nnx.Variable`.


# %%
class Count(nnx.Variable):
    """A number of examples."""


class Counted(nnx.Module):
    def __init__(self, network):
        self.network = network
        self.seen = Count(jnp.int32(0))

    def __call__(self, x):
        self.seen[...] += len(x)
        return self.network(x)


counted = Counted(Network(rngs=nnx.Rngs(0)))
print_error(lambda: jax.grad(cross_entropy)(counted, x, y))

# %% [markdown]
# `jax.grad` differentiates with respect to the whole model and rejects the counter, which is an integer. `nnx.value_and_grad` differentiates with respect to the Params only. It also writes the changed counter into the model, which the step returns.


# %%
@jax.jit
def full_step(model, optimizer, x, y):
    value, grads = nnx.value_and_grad(cross_entropy)(model, x, y)
    optimizer.update(model, grads)
    return model, optimizer, value


optimizer = nnx.Optimizer(counted, optax.adam(0.003), wrt=nnx.Param)
for _ in range(5):
    counted, optimizer, value = full_step(counted, optimizer, x, y)
print(f"loss {value:.3f} after {counted.seen[...]} examples")

# %% [markdown]
# **This step works for every model.** If all Variables are Params, `jax.value_and_grad` is enough.
#
# `nnx.state` returns the Variables of a model. A **filter** selects some of them, by their type or, with `nnx.PathContains`, by a name in their path.

# %%
for name, chosen in {"Count": Count, 'nnx.PathContains("head")': nnx.PathContains("head")}.items():
    print(f"{name:24s}", *("/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(counted, chosen))))

# %% [markdown]
# ## Training and evaluation modes
# Two common layers, Dropout and BatchNorm, have state that is not trained. Dropout sets random values to 0, and BatchNorm normalizes each feature by a mean and a variance.


# %%
class Regularized(nnx.Module):
    def __init__(self, width=64, *, rngs):
        self.stem = nnx.Linear(2, width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.stem(x))
        x = x + jax.nn.relu(self.norm(self.hidden(x)))
        return self.head(self.dropout(x))


model = Regularized(rngs=nnx.Rngs(0))

# %% [markdown] predict="nnx-modes"
# A new model is in training mode. We compute the scores of the first star twice, once alone and once in a batch of 300 stars. Are they equal?
#
# - [ ] Yes, because rows do not affect each other. | In a matrix product they do not. In BatchNorm they do.
# - [x] No, and if we repeat the calls, the scores are different again. | Right. BatchNorm uses the statistics of the batch, and Dropout draws a new mask in each call.
# - [ ] No, but if we repeat the calls, we get the same two results. | Dropout counts its calls, so the next call has another mask.

# %%
evaluating = nnx.view(model, deterministic=True, use_running_average=True)
for name, one in {"training": model, "evaluation": evaluating}.items():
    for call in ("first call", "second call"):
        print(f"{name:10s} {call:11s} alone {one(x[:1])[0]}, in a batch {one(x)[0]}")

# %% [markdown]
# In training mode, BatchNorm uses the mean and variance of the batch and updates its running statistics, which are `nnx.BatchStat` Variables. Dropout draws its masks from a key and a counter, which are Variables as well. In evaluation mode, BatchNorm uses the running statistics and Dropout does nothing.
#
# Each layer stores its mode as a static attribute, `use_running_average` or `deterministic`. `nnx.view` returns a second model with new values of these attributes and the *same* Variables. `model` itself stays in training mode. `model.eval()` and `model.train()` change the attributes of `model`.
#
# `full_step` trains this model correctly, because it returns all state that changed. What happens when a step discards that state?


# %%
@jax.jit
def forgetful_step(model, optimizer, x, y):
    old = nnx.state(model, nnx.Not(nnx.Param))  # all Variables but the Params
    updated, optimizer, value = full_step(model, optimizer, x, y)
    nnx.update(updated, old)  # writes the statistics and counters from before the step into the model
    return updated, optimizer, value


regularized = {}
for name, one_step in {"all state returned": full_step, "only Params returned": forgetful_step}.items():
    model = Regularized(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.003), wrt=nnx.Param)
    for _ in range(400):
        model, optimizer, value = one_step(model, optimizer, x, y)
    evaluating = nnx.view(model, deterministic=True, use_running_average=True)
    regularized[f"{name}: {accuracy(evaluating, test_x, test_y):.1%} correct"] = evaluating
    print(f"{name}: loss {value:.3f}, masks drawn {model.dropout.rngs.count[...]}")
    print(f"    running means {model.norm.mean[...][:4]} ...")

# %%
show_regions(
    regularized,
    "The regions that two networks assign to the three arms after training, in evaluation mode. "
    + " ".join(f"With {title}." for title in regularized),
)

# %% [markdown]
# Both losses are small at the end. But when only the Params are returned, the running means stay at 0 and are wrong in evaluation mode, and every step draws the same mask.
#
# Layers draw their keys from named streams of `nnx.Rngs`. `nnx.Linear` uses the stream `params`, and `nnx.Dropout` uses `dropout`. `nnx.Rngs(params=0, dropout=1)` has a stream for each of the two names. `nnx.Rngs(0)` has one default stream, which is used for every name.
#
# **This is the end of the core.** You can now do the exercises "A model of any depth" and "One training step". The others list the sections that they need.
#
# ## Deeper: split and merge
# For `jax.grad`, the loss must be a function of the parameters only. To write such a loss, split the model. Libraries that expect pure functions need this too.
#
# `nnx.split` separates a model into its structure and its state. The structure is a [`graphdef`](../docs/glossary.md#graphdef), the treedef of NNX. Filters divide the state. The filter `nnx.Param` selects the parameters, and `...` selects the rest. Each filter yields a `State`, a nested mapping from names to Variables. `nnx.state` also takes filters, but returns no graphdef.

# %%
graphdef, params, rest = nnx.split(counted, nnx.Param, ...)
for name, state in {"params": params, "rest": rest}.items():
    for path, variable in nnx.to_flat_state(state):
        print(f"{name:6s} {type(variable).__name__:5s} {'/'.join(map(str, path)):24s} {variable.shape}")

# %% [markdown] predict="nnx-share"
# Now we write 7 into `params["network"]["head"]["bias"]`, in the State. Does the model `counted` change?
#
# - [ ] No, the State is a copy. | `nnx.split` copies nothing. A copy would double the memory.
# - [ ] No, a State cannot be changed. | A State contains Variables, and they can be changed with `[...]`.
# - [x] Yes, its last bias is then 7. | Right. The State contains the model's own Variables.

# %%
merged = nnx.merge(graphdef, params, rest)
params["network"]["head"]["bias"][...] = jnp.full(3, 7.0)
print("counted:", counted.network.head.bias[...], "  merged:", merged.network.head.bias[...])
params["network"]["head"]["bias"][...] = jnp.zeros(3)

# %% [markdown]
# ![A Counted model on the left, with the bias of the stem, the kernel of the head, a static attribute and the counter. nnx.split gives three things on the right. graphdef is the structure with all static attributes and no array. params contains the kernels and biases. rest contains the counter. nnx.merge goes back.](../images/nnx_split.svg)
#
# `nnx.merge` is the inverse of `nnx.split`. Its result shares the Variables as well, unless you pass `copy=True`.
#
# Can the loss now merge the model and call it?

# %%
print_error(lambda: jax.grad(lambda params: cross_entropy(nnx.merge(graphdef, params, rest), x, y))(params))

# %% [markdown]
# A traced function can change only Variables that were created in the same trace. Otherwise a tracer would leak (02). The counter was created outside. So the loss merges with `copy=True`, which creates new Variables, and returns the changed counter as an auxiliary result (04).


# %%
@jax.jit
def split_step(model, optimizer, x, y):
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        inner = nnx.merge(graphdef, params, rest, copy=True)
        value = cross_entropy(inner, x, y)
        _, _, changed = nnx.split(inner, nnx.Param, ...)
        return value, changed

    (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(params)
    optimizer.update(model, grads)
    nnx.update(model, changed)  # writes the new counter into the model
    return model, optimizer, value


# %%
fresh = Counted(Network(rngs=nnx.Rngs(0)))
fresh_optimizer = nnx.Optimizer(fresh, optax.adam(0.003), wrt=nnx.Param)
for _ in range(5):
    fresh, fresh_optimizer, value = split_step(fresh, fresh_optimizer, x, y)
print(f"loss {value:.3f} after {fresh.seen[...]} examples")

# %% [markdown]
# The result is the same as with `nnx.value_and_grad`.
#
# ## Deeper: filters
# Filters can be combined. `nnx.All`, `nnx.Any` and `nnx.Not` build filters from filters, and a tuple is short for `nnx.Any`. A function of a path and a Variable is a filter as well.

# %%
filters = {
    "nnx.Param": nnx.Param,
    'nnx.PathContains("head")': nnx.PathContains("head"),
    "Param outside hidden": nnx.All(nnx.Param, nnx.Not(nnx.PathContains("hidden"))),
    "head or Count": (nnx.PathContains("head"), Count),
    "matrices": lambda path, variable: variable.ndim == 2,
}
for name, chosen in filters.items():
    paths = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(counted, chosen))]
    print(f"{name:25s}", *(path.removeprefix("network/") for path in paths))

# %% [markdown]
# A type matches its subclasses too. `nnx.split` assigns each Variable to the *first* filter that matches, so put the most specific filter first. The filters must cover every Variable.


# %%
class Scale(nnx.Param):
    """A kind of parameter."""


pair = nnx.Dict(scale=Scale(jnp.ones(2)), shift=nnx.Param(jnp.zeros(2)))
for filters in ((Scale, nnx.Param), (nnx.Param, Scale)):
    _, *states = nnx.split(pair, *filters)
    print([one.__name__ for one in filters], [list(state) for state in states])
print_error(lambda: nnx.split(pair, Scale), length=75)

# %% [markdown]
# ## Deeper: clones and copies
# The results of `nnx.split` and `nnx.merge` share the Variables of the model. `nnx.clone` creates new Variables that hold the *same arrays*. You can write into a clone and leave the original as it is, because `bias[...] = array` replaces the array and does not change the old one. To copy the arrays as well, map `jnp.copy` over the model.

# %%
original = Network(rngs=nnx.Rngs(0))
clone, copied = nnx.clone(original), jax.tree.map(jnp.copy, original)
clone.head.bias[...] = jnp.ones(3)
print("original:", original.head.bias[...], "  clone:", clone.head.bias[...])

# %% [markdown]
# The difference matters when a step donates its arguments (03). Donation deletes the arrays of the original, which are also the arrays of the clone.

# %%
halve = jax.jit(lambda model: jax.tree.map(lambda array: array / 2, model), donate_argnums=0)
halved = halve(original)
for name, one in {"original": original, "clone": clone, "copied": copied}.items():
    print(f"{name:9s} kernel deleted: {one.head.kernel[...].is_deleted()}")

# %% [markdown]
# `nnx.update(model, state)` writes into the existing Variables. It checks neither names nor shapes.

# %%
nnx.update(copied, {"head": {"bias": jnp.ones(5), "bais": jnp.ones(3)}})  # a wrong shape and a misspelled name
print(jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(copied.head))))

# %% [markdown]
# ## Deeper: a new head on a frozen network
# Replacing parts of a trained model is called **model surgery**. In NNX you assign a new layer to an attribute. Here a clone of the trained network, which has its own Variables, gets a new head. The new task is to predict whether a star is within 0.5 of the galaxy's centre.

# %%
tuned = nnx.clone(trained)
tuned.head = nnx.Linear(64, 2, rngs=nnx.Rngs(1))
near, test_near = ((np.linalg.norm(points, axis=1) < 0.5).astype(int) for points in (x, test_x))
print_error(lambda: step(tuned, trained_optimizer, x, near))

# %% [markdown]
# The step fails with the old optimizer, because its state has the shapes of the old parameters. Create a new optimizer after surgery.
#
# The other layers should stay as they are, so we **freeze** them. A parameter is frozen when `wrt` does not select it.

# %%
head_only = nnx.PathContains("head")
costs = {
    name: flops(step, tuned, nnx.Optimizer(tuned, optax.adam(0.02), wrt=wrt), x, near)
    for name, wrt in {"all parameters": nnx.Param, "head only": head_only}.items()
}
tuned, optimizer, losses = train(tuned, optax.adam(0.02), 200, y=near, wrt=head_only)
print(f"correct: {accuracy(tuned, test_x, test_near):.1%}")
print("stem changed:", not jnp.array_equal(tuned.stem.kernel[...], trained.stem.kernel[...]))
print({name: f"{cost / 1e6:.1f} million operations in a step" for name, cost in costs.items()})

# %% [markdown]
# `step` computes the gradient of all parameters, but the optimizer uses only the part that `wrt` selects. The compiler removes the rest, which is why the second step needs fewer operations.
#
# Assign modules to attributes, but write arrays into Variables. If you assign an array to an attribute, it replaces the whole Variable, and the attribute is no longer a parameter.

# %%
tuned.head.bias[...] = jnp.zeros(2)
print("type of head.bias:", type(tuned.head.bias).__name__)
tuned.head.bias = jnp.zeros(2)
print("Params of the head:", list(nnx.state(tuned.head, nnx.Param)))

# %% [markdown]
# ## Deeper: LoRA
# Low-rank adaptation (LoRA) fine-tunes a model with few new parameters. The layer itself computes $xW$ and is not trained. An adapter adds $xAB$ to its output. The number of columns of $A$, which is the number of rows of $B$, is the rank. $B$ starts at 0, so at first nothing changes.
#
# `nnx.LoRA` is such an adapter. It contains the layer that it adapts, and replaces this layer in the model. We now train our network on a galaxy whose arms wind the other way, by adapting its two hidden layers. The first three arguments of `nnx.LoRA` are the number of inputs, the rank and the number of outputs.

# %%
mirror = np.float32([1, -1])
rngs, adapted = nnx.Rngs(1), nnx.clone(trained)  # a clone has its own Variables
adapted.hidden = nnx.List([nnx.LoRA(64, 2, 64, base_module=layer, rngs=rngs) for layer in adapted.hidden])
print("same output as before:", bool(jnp.array_equal(adapted(x), trained(x))))
print(f"correct in the new galaxy: {accuracy(adapted, test_x * mirror, test_y):.1%}")

# %% [markdown]
# The Variables of an adapter have the type `nnx.LoRAParam`, a subclass of `nnx.Param`. With this type as `wrt`, only the adapters are trained.

# %%
adapted, optimizer, losses = train(adapted, optax.adam(0.01), 300, x * mirror, wrt=nnx.LoRAParam)


def size(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


print(f"correct in the new galaxy: {accuracy(adapted, test_x * mirror, test_y):.1%}")
print(f"trained {size(nnx.state(adapted, nnx.LoRAParam))} of {size(nnx.state(adapted, nnx.Param))} parameters")

# %% [markdown]
# After training, $AB$ can be added to $W$. The result is an ordinary network without adapters.

# %%
folded = nnx.clone(trained)
for layer, adapter in zip(folded.hidden, adapted.hidden, strict=True):
    layer.kernel[...] += adapter.lora_a @ adapter.lora_b
print("largest difference:", jnp.abs(folded(x * mirror) - adapted(x * mirror)).max())

# %% [markdown]
# ## Deeper: metrics
# Models are often evaluated in batches, and the last batch may be smaller. The mean of the batch means is then not the mean over the data set. The classes in `nnx.metrics` accumulate sums and counts instead. A metric is an NNX object like an optimizer, so a compiled function takes it as an argument and returns it.

# %%
metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Welford("losses"))


@jax.jit
def evaluate(model, metrics, x, y):
    logits = model(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    metrics.update(logits=logits, labels=y, losses=losses)
    return metrics


# %%
means = []
for start in range(0, 600, 256):
    batch_x, batch_y = test_x[start : start + 256], test_y[start : start + 256]
    metrics = evaluate(trained, metrics, batch_x, batch_y)
    means.append(accuracy(trained, batch_x, batch_y))
found = metrics.compute()
print(f"accuracy {found['accuracy']:.4f}; the mean of the three batches would be {np.mean(means):.4f}")
print(f"loss {found['loss'].mean:.4f} ± {found['loss'].standard_error_of_mean:.4f}")
metrics.reset()

# %% [markdown]
# `nnx.metrics.Average` computes a mean, and `Welford` also computes the standard error. Pass the losses of the examples, not the mean loss of a batch. After `reset` the metrics are ready for the next epoch.
#
# ## Deeper: shared Variables
# Two layers may share one Variable. In some language models, the embedding and the output layer share their matrix. A JAX pytree cannot represent this, because each leaf has one place in the tree. A module that `jax.jit` returns therefore has two separate Variables. `nnx.split` keeps the sharing.


# %%
class Tied(nnx.Module):
    def __init__(self, *, rngs):
        self.into, self.out = (nnx.Linear(3, 3, use_bias=False, rngs=rngs) for _ in range(2))
        self.out.kernel = self.into.kernel


tied = Tied(rngs=nnx.Rngs(0))
graphdef, state = nnx.split(tied)
identity = jax.jit(lambda tree: tree)
results = {
    "jax.jit of the module": identity(tied),
    "jax.jit of the State": nnx.merge(graphdef, identity(state)),
    "nnx.jit of the module": nnx.jit(lambda model: model)(tied),
}
for name, model in results.items():
    print(f"{name}: {len(jax.tree.leaves(nnx.state(model)))} Variable(s)")

# %% [markdown]
# So when Variables are shared, split the model first or use `nnx.jit`. By default, NNX's transformations treat a module as a graph, in which several paths may lead to one Variable. This is **graph mode**. With `graph=False` they treat it as a pytree, which is **tree mode**. Calls take less time, and updates are still written back, but shared Variables raise an error. `nnx.find_duplicates` lists their paths.

# %%
print_error(lambda: nnx.jit(lambda model: model.into.kernel.sum(), graph=False)(tied), length=30)
print(nnx.find_duplicates(tied))
tree_learn = nnx.jit(learn, graph=False)
student = Network(rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(student, optax.adam(0.003), wrt=nnx.Param)
graph_ms, tree_ms = time_ms(
    lambda: nnx_learn(student, optimizer, x, y), lambda: tree_learn(student, optimizer, x, y), repeats=50
)
print(f"a step takes {1e3 * graph_ms:.0f} µs in graph mode and {1e3 * tree_ms:.0f} µs in tree mode")

# %% [markdown]
# The Flax team [proposes](https://flax.readthedocs.io/en/latest/flip/5310-tree-mode-nnx.html) to make tree mode the default. In tree mode, `nnx.grad` differentiates with respect to all state, as `jax.grad` does. You then split off the parameters as in `full_step`. Code that uses `jax.jit` works in both modes.
#
# ## Deeper: the outputs of layers
# When a network does not learn, look at the outputs of its layers. `nnx.capture` wraps a model so that a call also returns recorded values as a second result. With `method_outputs`, these include the output of each layer. It works under `jit`. Here we break one layer on purpose. Can we find it?

# %%
broken = nnx.clone(trained)  # a clone has its own Variables
broken.hidden[0].bias[...] = jnp.full(64, -8.0)


@jax.jit
def outputs(model, x):
    _, captured = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(x)
    return {path: variable.get_value()[0] for path, variable in nnx.to_flat_state(captured)}


for path, out in outputs(broken, test_x).items():
    print(f"{'/'.join(map(str, path)):20s} {out.shape}, positive: {(out > 0).mean():.0%}")

# %%
_, axes = plots.subplots(1, 2, height=2.4, sharey=True)
path, positive = ("hidden", 0, "__call__"), {}
for ax, (name, model) in zip(axes, {"trained": trained, "broken": broken}.items(), strict=True):
    out = np.asarray(outputs(model, test_x)[path]).ravel()
    positive[name] = f"{(out > 0).mean():.0%}"
    ax.hist(out, bins=60, range=(-13, 5))
    ax.axvline(0, color="C1", label="relu gives 0 left\nof this line")
    ax.set(title=f"{name}: {positive[name]} positive", xlabel="output of hidden[0]", xticks=[-10, -5, 0, 5])
axes[0].legend(loc="upper left")
axes[0].set(ylabel="number of outputs")
plots.show(
    "Histograms of the outputs of the first hidden layer, with a line at 0. In the trained network "
    f"{positive['trained']} of the outputs are right of the line, in the broken network {positive['broken']}."
)

# %% [markdown]
# In the broken network every output of `hidden[0]` is negative. The relu turns all of them into 0, so the later layers get the same input for every star.
#
# A model can also record a value under a name of your choice, with `self.sow(nnx.Intermediate, "name", value)`. Each entry is a tuple, because a layer may be called several times. A captured call is an ordinary call, so put a model with Dropout or BatchNorm into evaluation mode first.


# %%
class Recorded(nnx.Module):
    def __init__(self, network):
        self.network = network

    def __call__(self, x):
        out = self.network(x)
        self.sow(nnx.Intermediate, "confidence", jax.nn.softmax(out).max(axis=1))
        return out


_, captured = nnx.capture(Recorded(trained), nnx.Intermediate)(test_x)
print(f"lowest confidence: {captured['confidence'][0].min():.2f}")

# %% [markdown]
# ## Deeper: the size of a model before it is created
# Will a model fit into memory? `jax.eval_shape` traces the constructor and returns the model with shapes in place of arrays. No random numbers are drawn and no memory is allocated.

# %%
giant = jax.eval_shape(lambda: Network(width=2**15, depth=40, rngs=nnx.Rngs(0)))
total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(giant))
print(f"{total / 1e9:,.0f} GB")
print("head.kernel:", giant.head.kernel.get_value())

# %% [markdown]
# For a model that fits into memory, `nnx.tabulate` prints a table of the layers with their shapes and parameters.

# %%
print(nnx.tabulate(network, x, console_kwargs={"width": 110}))

# %% [markdown]
# ## Deeper: many models at once
# A constructor is a function from a key to a pytree, so `jax.vmap` can build many models at once. Every array gets a new first axis. The training step is mapped in the same way, and four models train in one program.


# %%
def create(key):
    model = Network(rngs=nnx.Rngs(key))
    return model, nnx.Optimizer(model, optax.adam(0.003), wrt=nnx.Param)


models, optimizers = jax.vmap(create)(jax.random.split(jax.random.key(3), 4))
steps = jax.jit(jax.vmap(step, in_axes=(0, 0, None, None)))
for _ in range(100):
    models, optimizers, values = steps(models, optimizers, x, y)
scores = jax.vmap(apply, in_axes=(0, None))(models, test_x)
print("kernels of the head:", models.head.kernel.shape)
print("correct:", np.mean(scores.argmax(axis=-1) == test_y, axis=1))

# %% [markdown]
# Such a stack can also contain the layers of *one* deep model, if `jax.lax.scan` iterates over its first axis. You write this in an exercise.
#
# `nnx.vmap` and `nnx.scan` are NNX's versions, which write changed Variables back. With `nnx.StateAxes` you choose an axis for each kind of Variable. Here, one Dropout layer, which sets random values to 0, draws four masks in one call. `nnx.split_rngs` splits its key into four, and after the call restores a single key.


# %%
@nnx.split_rngs(splits=4)
@nnx.vmap(in_axes=(nnx.StateAxes({nnx.RngState: 0, ...: None}), None))
def masked(dropout, values):
    return dropout(values)


dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
print(masked(dropout, jnp.ones(8)))
print("shape of the key after the call:", dropout.rngs.key.shape)

# %% [markdown]
# ## Deeper: four libraries
# You will find code that uses Haiku, Linen, Equinox and NNX. In all four, the program that is compiled is a pure function of a pytree. They differ in where the arrays are kept. In **Linen**, the older interface of Flax, a module holds no arrays. `init` returns them, and `apply` takes them. Layers without a name get numbered names, such as `Dense_0`. This block contains BatchNorm and Dropout, two layers with state that is not trained.


# %%
class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x, training):
        x = linen.BatchNorm(use_running_average=not training)(linen.Dense(4)(x))
        return linen.Dropout(0.2, deterministic=not training)(jax.nn.relu(x))


block, key = LinenBlock(), jax.random.key(0)
variables = block.init(key, x, training=False)
for kind, arrays in variables.items():
    print(f"{kind}: {jax.tree.map(jnp.shape, arrays)}")
out, changed = block.apply(variables, x, training=True, rngs={"dropout": key}, mutable=["batch_stats"])
print("apply returns", out.shape, "and new", list(changed))

# %% [markdown]
# | | Haiku | Linen | Equinox | NNX |
# |---|---|---|---|---|
# | a model is | a function that calls modules, inside `hk.transform` | a frozen dataclass without arrays | a frozen dataclass *with* arrays, a pytree | a mutable object with Variables, a pytree |
# | parameters are | in a dict from `init` | in `variables["params"]` from `init` | fields of the model | `nnx.Param` attributes |
# | created | by `init`, from the shape of an input | by `init`, from the shape of an input | in the constructor, from sizes | in the constructor, from sizes |
# | called | `apply(params, key, x)` | `model.apply(variables, x)` | `model(x)` | `model(x)` |
# | BatchNorm statistics | `hk.transform_with_state` | the collection `batch_stats`, listed in `mutable` | an `eqx.nn.State` argument and result | `nnx.BatchStat`, changed in place |
# | Dropout keys | `hk.next_rng_key()` | `rngs={"dropout": key}` | a `key` argument | `nnx.Rngs` in the model |
# | parameters only | `hk.data_structures.partition` | index the dict | `eqx.partition`, `eqx.is_inexact_array` | `nnx.split` with filters |
# | surgery | change the dict | change the dict and the class | `eqx.tree_at` returns a new model | assign to an attribute |
# | compiled by | `jax.jit` of `apply` | `jax.jit` of `apply` | `eqx.filter_jit` | `jax.jit` or `nnx.jit` |
# | status, November 2026 | in maintenance, refers newcomers to Flax | maintained, much Flax code uses it | active | active, recommended by Flax |
#
# Linen and Haiku infer sizes from an input, while NNX and Equinox require `nnx.Linear(2, 64)`. In return, the model exists and can be inspected before there is any data. `nnx.bridge` uses Linen modules in NNX and NNX modules in Linen.
#
# ## Deeper: older code
#
# | older | now |
# |---|---|
# | `nnx.split` and `nnx.merge` around every `jax.jit` | modules are pytrees, pass them directly |
# | a plain list or dict of layers | `nnx.List`, `nnx.Dict` |
# | `param.value`, `param.raw_value` | `param[...]`, or `get_value()` where it holds no array |
# | `nnx.Optimizer(model, tx)`, `optimizer.update(grads)`, `optimizer.model` | `wrt=nnx.Param`, `optimizer.update(model, grads)`, and you keep the model |
# | `sow`, then `nnx.state(model, nnx.Intermediate)` or `nnx.pop` | `nnx.capture` |
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a model | a subclass of `nnx.Module`, with lists of layers in an `nnx.List` |
# | an instance | `Model(rngs=nnx.Rngs(seed))` |
# | an optimizer | `nnx.Optimizer(model, tx, wrt=nnx.Param)` |
# | a compiled step | `jax.jit`, returning model *and* optimizer, or `nnx.jit` |
# | a gradient when there is other state | `nnx.value_and_grad`; under `jax.jit`, return the model |
# | your own kind of state | `class Count(nnx.Variable)` |
# | a look at a model | `nnx.display(model)`, `print(model)`, `nnx.tabulate(model, x)` |
# | evaluation mode | `nnx.view(model, deterministic=True, use_running_average=True)` |
# | an independent model | `nnx.clone(model)`, or `jax.tree.map(jnp.copy, model)` if its arrays will be donated |
# | to train some parameters only | a filter as `wrt` |
# | metrics over batches | `nnx.MultiMetric` |
# | the outputs of layers | `nnx.capture(model, nnx.Intermediate, ...)` |
# | the size before allocation | `jax.eval_shape(lambda: Model(...))` |
#
# Flax's own pages go further: [NNX basics](https://flax.readthedocs.io/en/latest/nnx_basics.html), [transformations](https://flax.readthedocs.io/en/latest/guides/transforms.html), [filters](https://flax.readthedocs.io/en/latest/guides/filters_guide.html), [model surgery](https://flax.readthedocs.io/en/latest/guides/surgery.html) and [randomness](https://flax.readthedocs.io/en/latest/guides/randomness.html).
#
# Next: the exercises. In the first one, you complete a network of any depth.
