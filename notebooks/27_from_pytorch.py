# %% [markdown]
# # 27 · From PyTorch
#
# *The core takes about 35 minutes. Eleven "Deeper" sections can be skipped. Then do [the exercises](../exercises/27_from_pytorch/27_from_pytorch.ipynb).* After the core, you can port a model and its weights from PyTorch in both directions, test the port with a few training steps, and avoid common mistakes.
#
# **Prerequisites.** You know PyTorch. From this course, you need lessons 00 to 11: gradients (04), keys (07), Optax (09), NNX (10). Try to answer these questions from memory.
#
# 1. From 04: With respect to what does `jax.grad(f)` differentiate?
#
# <details><summary>Answer</summary>
#
# With respect to the first argument of `f`. Everything else that `f` reads is a constant.
# </details>
#
# 2. From 10: `jax.jit` compiles a step that changes a module in place and returns only the loss. What has changed after the call?
#
# <details><summary>Answer</summary>
#
# Nothing, because the step changed a copy. It must return the module.
# </details>
#
# 3. From 07: What happens if you pass the same key to `dropout` twice?
#
# <details><summary>Answer</summary>
#
# Both calls use the same mask.
# </details>

# %%
import contextlib
import itertools
import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState

from grader.learning import digits, plots
from grader.learning.inspection import print_error
from grader.learning.loaders import MNIST, DataLoader, numpy_collate, seed

torch = None
with contextlib.suppress(ImportError):  # without PyTorch, `torch` stays None
    import torch
print(f"PyTorch {torch.__version__}" if torch else "PyTorch is not installed, so the cells that need it are skipped.")

# %% [markdown]
# ## One loader for all libraries
# **How do you find out whether your JAX program computes what your PyTorch program computes?** Give both the same weights and the same batches, and compare the results. In this lesson, we do this for PyTorch, NNX, Linen and Keras.
#
# Lesson 11 showed that PyTorch's `DataLoader` feeds JAX if `collate_fn` returns NumPy arrays, and all four libraries take such batches. (Without PyTorch, `DataLoader` and `MNIST` are stand-ins with the same interface.) Our images have 14 × 14 pixels, and `batches` contains the 60 batches of all training runs.


# %%
def small(image):
    """An image (28, 28) with values 0 to 255 -> (196,) float32 from 0 to 1"""
    return (np.asarray(image, np.float32).reshape(14, 2, 14, 2).mean((1, 3)) / 255).ravel()


source = digits.get()
seed(27)
loader = DataLoader(
    MNIST(source.root, train=True, transform=small), 128, shuffle=True, drop_last=True, collate_fn=numpy_collate
)
STEPS = 60
epochs = itertools.chain.from_iterable(itertools.repeat(loader))
batches = [(xs, ys.astype(np.int32)) for xs, ys in itertools.islice(epochs, STEPS)]
test_xs, test_ys = numpy_collate([MNIST(source.root, train=False, transform=small)[i] for i in range(300)])
print(source.description, batches[0][0].shape, batches[0][1].shape)

# %% [markdown]
# ## The same network in four libraries
# The network has three hidden layers, each with BatchNorm, ReLU and Dropout. With the probability `rate`, Dropout sets a value to 0. We train with a rate of 0. In PyTorch:

# %%
SIZES = 196, 300, 200, 100, 10


def torch_net(rate=0.0):
    layers = []
    for n, m in itertools.pairwise(SIZES[:-1]):
        layers += [torch.nn.Linear(n, m), torch.nn.BatchNorm1d(m), torch.nn.ReLU(), torch.nn.Dropout(rate)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(*SIZES[-2:]))


if torch:
    torch.set_num_threads(1)  # leaves the other cores to JAX
    for name, tensor in list(torch_net().state_dict().items())[:8]:
        print(f"{name:22s} {tuple(tensor.shape)}")

# %% [markdown]
# `4.weight` is the weight of the second linear layer, because `Sequential` numbers its layers and each hidden layer has four. A weight of PyTorch has the shape **(out, in)**. The [running statistics](../docs/glossary.md#running-statistics) of BatchNorm are in the `state_dict` too. As in PyTorch, modules of NNX own their arrays.


# %%
class Net(nnx.Module):
    """x (B, 196) -> logits (B, 10)"""

    def __init__(self, rate=0.0, *, rngs):
        self.linears = nnx.List([nnx.Linear(n, m, rngs=rngs) for n, m in itertools.pairwise(SIZES)])
        self.norms = nnx.List([nnx.BatchNorm(m, momentum=0.9, rngs=rngs) for m in SIZES[1:-1]])
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x):
        for linear, norm in zip(self.linears, self.norms, strict=False):  # without the last linear layer
            x = self.dropout(nnx.relu(norm(linear(x))))
        return self.linears[-1](x)


model = Net(rngs=nnx.Rngs(0))
print("kernel", model.linears[0].kernel.shape, " scale", model.norms[0].scale.shape, " mean", model.norms[0].mean.shape)

# %% [markdown]
# A kernel of Flax has the shape **(in, out)**. The momentum is 0.9 (Flax's default is 0.99) where PyTorch's default is 0.1, because Flax and Keras multiply the *old* statistics by the momentum, and PyTorch multiplies the *new* ones.
#
# Linen is Flax's older interface, which you meet in existing code. A module contains no arrays. `init` returns them as nested dicts, and `apply` takes them. `@linen.compact` lets you create layers where you use them. The mode, training or evaluation, is an argument.


# %%
class LinenNet(linen.Module):
    rate: float = 0.0

    @linen.compact
    def __call__(self, x, train):
        for m in SIZES[1:-1]:
            x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(linen.Dense(m)(x))
            x = linen.Dropout(self.rate, deterministic=not train)(linen.relu(x))
        return linen.Dense(SIZES[-1])(x)


variables = LinenNet().init(jax.random.key(0), jnp.ones((1, 196)), train=False)
print({kind: list(layers) for kind, layers in variables.items()})

# %% [markdown]
# Keras 3 has no arrays of its own. It runs on JAX, PyTorch or TensorFlow, and `KERAS_BACKEND` selects one *before* the import. We check that the import changes no option of JAX and creates no array.

# %%
import gc

folder = tempfile.TemporaryDirectory()
os.environ.update(KERAS_BACKEND="jax", KERAS_HOME=folder.name)  # Keras writes its configuration into KERAS_HOME
gc.collect()  # so that the count contains only arrays in use
before = dict(jax.config.values), len(jax.live_arrays())
keras = None
with contextlib.suppress(ImportError):  # without Keras, `keras` stays None
    import keras
unchanged = before == (dict(jax.config.values), len(jax.live_arrays()))
if keras:
    print(f"Keras {keras.__version__} on {keras.backend.backend()}. Options and arrays of JAX unchanged: {unchanged}")
else:
    print("Keras is not installed, so the cells that need it are skipped.")

# %% [markdown]
# Two defaults of Keras's BatchNorm differ from PyTorch's, so we set both.


# %%
def keras_net(rate=0.0):
    layers = [keras.Input((SIZES[0],))]
    for m in SIZES[1:-1]:
        norm = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)  # by default 0.99 and 1e-3
        layers += [keras.layers.Dense(m), norm, keras.layers.ReLU(), keras.layers.Dropout(rate)]
    return keras.Sequential([*layers, keras.layers.Dense(SIZES[-1])])


if keras:
    for variable in keras_net().weights[:6]:
        print(variable.path.split("/", 1)[1], variable.shape)

# %% [markdown] predict="torch-square"
# ## Port the weights
# A colleague writes PyTorch's weights of two linear layers, 196 → 300 and 100 → 100, into NNX kernels with `kernel[...] = weight`, and calls both layers. The transposition is missing. What happens?
#
# - [ ] errors for both layers, because the layouts differ | JAX sees shapes, not layouts, and (100, 100) fits a kernel (100, 100).
# - [x] an error for the first layer, and wrong outputs of the second | Right. A shape reveals a missing transposition only if the two sizes differ. Compare outputs.
# - [ ] no error, and wrong outputs of both layers | The shape (300, 196) does not fit a kernel (196, 300).

# %%
rng = np.random.default_rng(0)
wide = nnx.Linear(196, 300, use_bias=False, rngs=nnx.Rngs(0))
print_error(lambda: wide.kernel.__setitem__(..., jnp.ones((300, 196))))  # wide.kernel[...] = jnp.ones((300, 196))

weight, x = rng.normal(size=(100, 100)).astype(np.float32), rng.normal(size=(5, 100)).astype(np.float32)
square = nnx.Linear(100, 100, use_bias=False, rngs=nnx.Rngs(0))
expected = torch.nn.functional.linear(torch.tensor(x), torch.tensor(weight)).numpy() if torch else x @ weight.T
for name, kernel in {"not transposed": weight, "transposed": weight.T}.items():
    square.kernel[...] = jnp.array(kernel)
    print(f"{name:14s} largest error {np.abs(square(x) - expected).max():.1e}")

# %% [markdown]
# ![Three layouts of weights. A linear layer: PyTorch stores rows of outputs, (out, in), and Flax and Keras (in, out), the transposed matrix. A convolution: PyTorch stores (out, in, height, width), Flax and Keras (height, width, in, out). Flattening: an image with two channels of two by two pixels, numbered by channel, is flattened channel by channel in PyTorch, 0 1 2 3 4 5 6 7, and pixel by pixel in Flax, 0 4 1 5 2 6 3 7. So the columns of a linear layer after a convolution have to be reordered.](../images/from_pytorch_layouts.svg)
#
# Convolutions and flattened features follow in a Deeper section.
#
# Now we port the whole network in both directions. The weights are a dict of NumPy arrays in PyTorch's layouts. NumPy draws them from the same distribution as PyTorch, so this lesson also works without PyTorch.


# %%
def initial_state():
    """Draws initial weights like PyTorch: uniform numbers up to 1 / sqrt(in)."""
    state, draw = {}, np.random.default_rng(27)
    for i, (n, m) in enumerate(itertools.pairwise(SIZES)):
        uniform = lambda *shape: draw.uniform(-(n**-0.5), n**-0.5, shape).astype(np.float32)
        state |= {f"{4 * i}.weight": uniform(m, n), f"{4 * i}.bias": uniform(m)}
        if i < len(SIZES) - 2:
            values = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
            state |= {f"{4 * i + 1}.{name}": np.full(m, value, np.float32) for name, value in values.items()}
    return state


# %% [markdown]
# `from_torch` transposes each weight. The arrays of BatchNorm only have other names. An assignment to `kernel[...]` raises an error only for a shape that cannot be broadcast, and `nnx.update` for none.

# %%
NAMES = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def from_torch(state):
    """A state_dict with NumPy arrays -> a Net"""
    model = Net(rngs=nnx.Rngs(0))
    for i, linear in enumerate(model.linears):
        linear.kernel[...] = jnp.array(state[f"{4 * i}.weight"].T)
        linear.bias[...] = jnp.array(state[f"{4 * i}.bias"])
    for i, norm in enumerate(model.norms):
        for ours, theirs in NAMES.items():
            getattr(norm, ours)[...] = jnp.array(state[f"{4 * i + 1}.{theirs}"])
    return model


# %% [markdown]
# `to_torch` is the other direction.


# %%
def to_torch(model):
    """A Net -> a state_dict with NumPy arrays"""
    state = {f"{4 * i}.weight": np.array(linear.kernel[...].T) for i, linear in enumerate(model.linears)}
    state |= {f"{4 * i}.bias": np.array(linear.bias[...]) for i, linear in enumerate(model.linears)}
    for i, norm in enumerate(model.norms):
        state |= {f"{4 * i + 1}.{theirs}": np.array(getattr(norm, ours)[...]) for ours, theirs in NAMES.items()}
    return state


# %% [markdown]
# A **round trip** must return the same arrays, and both models the same logits. `load_state_dict` takes a dict of tensors, which may omit the counter `num_batches_tracked` of each BatchNorm.

# %%
state = initial_state()
model = from_torch(state)
print("round trip:", all(np.array_equal(array, state[name]) for name, array in to_torch(model).items()))
if torch:
    net = torch_net()
    print(net.load_state_dict({name: torch.tensor(array) for name, array in state.items()}))
    logits = net.eval()(torch.tensor(test_xs)).detach().numpy()
    model.eval()
    print(f"logits up to {np.abs(logits).max():.2f}, largest difference {np.abs(logits - model(test_xs)).max():.1e}")

# %% [markdown]
# ## Train all four
# In PyTorch, the gradient is stored in the parameters, `backward()` *adds* to it, and the optimizer changes the parameters in place.

# %%
losses = {}
if torch:
    net = torch_net().train()
    net.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    torch_optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses["PyTorch"] = []
    for xs, ys in batches:
        torch_optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(xs)), torch.tensor(ys, dtype=torch.int64))
        loss.backward()
        torch_optimizer.step()
        losses["PyTorch"].append(loss.item())

# %% [markdown]
# In JAX, the gradient is the *result of a function* of the parameters, so there is nothing to reset or to detach. The step returns the objects that it changed. A new NNX module is in training mode.

# %%
tx = optax.sgd(0.1, momentum=0.9)
cross_entropy = lambda logits, ys: optax.softmax_cross_entropy_with_integer_labels(logits, ys).mean()


@jax.jit
def nnx_step(model, optimizer, xs, ys):
    loss, grads = nnx.value_and_grad(lambda model: cross_entropy(model(xs), ys))(model)
    optimizer.update(model, grads)
    return model, optimizer, loss


model = from_torch(state)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
losses["NNX"] = []
for xs, ys in batches:
    model, optimizer, loss = nnx_step(model, optimizer, xs, ys)
    losses["NNX"].append(loss)

# %% [markdown]
# Linen code usually has a `TrainState`, which contains the parameters, the optimizer and its state. BatchNorm needs a field of its own. With a Dropout rate above 0, each step would also need its own key.


# %%
class State(TrainState):
    batch_stats: dict


@jax.jit
def linen_step(state, xs, ys):
    def loss_fn(params):
        given = {"params": params, "batch_stats": state.batch_stats}
        logits, changed = state.apply_fn(given, xs, train=True, mutable=["batch_stats"])  # and what changed
        return cross_entropy(logits, ys), changed

    (loss, changed), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, **changed), loss  # updates params, replaces batch_stats


# %% [markdown]
# The arrays of Linen have the names and layouts of NNX, so a port only changes the structure.


# %%
def to_linen(model):
    part = lambda norm, *names: {name: jnp.array(getattr(norm, name)[...]) for name in names}
    params = {f"Dense_{i}": part(layer, "kernel", "bias") for i, layer in enumerate(model.linears)}
    params |= {f"BatchNorm_{i}": part(norm, "scale", "bias") for i, norm in enumerate(model.norms)}
    stats = {f"BatchNorm_{i}": part(norm, "mean", "var") for i, norm in enumerate(model.norms)}
    return {"params": params, "batch_stats": stats}


train_state = State.create(apply_fn=LinenNet().apply, tx=tx, **to_linen(from_torch(state)))
losses["Linen"] = []
for xs, ys in batches:
    train_state, loss = linen_step(train_state, xs, ys)
    losses["Linen"].append(loss)

# %% [markdown]
# Keras takes the arrays layer by layer. `stateless_call` makes a Keras model a function of its variables, so the same kind of step trains it.

# %%
if keras:
    keras_model, ported = keras_net(), from_torch(state)
    dense = [layer for layer in keras_model.layers if isinstance(layer, keras.layers.Dense)]
    for layer, linear in zip(dense, ported.linears, strict=True):
        layer.set_weights([linear.kernel[...], linear.bias[...]])

    @jax.jit
    def keras_step(weights, stats, moments, xs, ys):
        def loss_fn(weights):
            logits, new_stats = keras_model.stateless_call(weights, stats, xs, training=True)
            return cross_entropy(logits, ys), new_stats

        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(weights)
        updates, moments = tx.update(grads, moments, weights)
        return optax.apply_updates(weights, updates), stats, moments, loss


# %% [markdown]
# The loop passes all variables from step to step.

# %%
if keras:
    weights = [variable.value for variable in keras_model.trainable_variables]
    stats = [variable.value for variable in keras_model.non_trainable_variables]
    moments, losses["Keras"] = tx.init(weights), []
    for xs, ys in batches:
        weights, stats, moments, loss = keras_step(weights, stats, moments, xs, ys)
        losses["Keras"].append(loss)

# %% [markdown]
# On the left are all losses, and on the right their differences to those of PyTorch, plus 1e-8.

# %%
losses = {name: np.array(values) for name, values in losses.items()}
reference = losses.get("PyTorch", losses["NNX"])
_, (left, right) = plots.subplots(1, 2, height=2.5)
for (name, values), width in zip(losses.items(), (5, 3.5, 2, 1.2), strict=False):
    left.plot(values, label=name, linewidth=width, linestyle="-")
    right.semilogy(np.abs(values - reference) + 1e-8, label=name)
left.set(xlabel="step", ylabel="loss")
right.set(xlabel="step", ylabel=f"difference to {next(iter(losses))}")
left.legend()
last = ", ".join(f"{name} {values[-1]:.4f}" for name, values in losses.items())
plots.show(
    f"Left: the losses of {STEPS} steps, which lie on one curve. The last losses: {last}. Right: the differences to the "
    f"first library, at most {max(np.abs(values - reference).max() for values in losses.values()):.1e}."
)

# %% [markdown]
# The libraries compute the same function. The first losses agree up to rounding. Later differences can grow, because each step depends on all earlier steps and the libraries do not round alike. Keras, for example, computes the variance of a batch with another formula than Flax.
#
# **Compare without Dropout**, because the libraries draw different masks.
#
# **At which step does a mistake in the port become visible?** We make four mistakes, one at a time.


# %%
def first_losses(epsilon=1e-5, rate=0.1, momentum=0.9, average=0.9):
    """The losses of the first three steps of the NNX model"""
    model = from_torch(state)
    for norm in model.norms:
        norm.epsilon, norm.momentum = epsilon, average
    optimizer = nnx.Optimizer(model, optax.sgd(rate, momentum=momentum), wrt=nnx.Param)
    found = []
    for xs, ys in batches[:3]:
        model, optimizer, loss = nnx_step(model, optimizer, xs, ys)
        found.append(float(loss))
    return found


mistakes = {"no mistake": {}, "epsilon of BatchNorm 1e-3": {"epsilon": 1e-3}, "learning rate 0.11": {"rate": 0.11}}
mistakes |= {"momentum of SGD 0.8": {"momentum": 0.8}, "momentum of BatchNorm 0.1": {"average": 0.1}}
print("absolute differences of the first three losses")
for name, mistake in mistakes.items():
    print(f"{name:26s}", *(f"{one:.0e}" for one in np.abs(first_losses(**mistake) - reference[:3])))

# %% [markdown]
# A mistake in the forward pass changes the first loss. A mistake in the gradient or the learning rate changes the second loss, and one in the optimizer's state the third. No loss reveals the wrong momentum of BatchNorm, because a training step does not read the running statistics.

# %% [markdown] predict="torch-eval"
# ## Evaluation
# The PyTorch model and the NNX model, both with the right momentum of BatchNorm, now evaluate test images. How do their logits compare?
#
# - [ ] They are equal up to rounding | The losses were, but training normalizes with the batch. Evaluation uses running statistics, which the two libraries compute differently.
# - [x] They differ visibly, because the running statistics differ | Right. PyTorch's running variance is the unbiased one, with n - 1. Flax's is divided by n.
# - [ ] They differ visibly, because the weights differ | If the weights differed, the last losses would differ too.

# %%
model.eval()
ours = np.asarray(model(test_xs))
print(f"accuracy {np.mean(ours.argmax(1) == test_ys):.3f}, logits up to {np.abs(ours).max():.1f}")
if torch:
    theirs = net.eval()(torch.tensor(test_xs)).detach().numpy()
    print(
        f"PyTorch: accuracy {np.mean(theirs.argmax(1) == test_ys):.3f}, largest difference {np.abs(ours - theirs).max():.2f}"
    )
    trained = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    for kind in ("running_mean", "running_var"):
        mixed = to_torch(model) | {name: array for name, array in trained.items() if name.endswith(kind)}
        exact = from_torch(mixed)
        exact.eval()
        print(f"with PyTorch's {kind}: largest difference {np.abs(exact(test_xs) - theirs).max():.1e}")
    ratio = trained["1.running_var"] / np.asarray(model.norms[0].var[...])
    print(f"ratio of the running variances: {np.median(ratio):.4f}, and 128 / 127 is {128 / 127:.4f}")

# %% [markdown]
# With PyTorch's running variances, the NNX model returns PyTorch's logits. So a ported model is exact, but a model that is trained again differs in evaluation. The factor n / (n - 1) is larger for smaller batches.
#
# `model.eval()` and `model.train()` exist in PyTorch and in NNX, and Linen and Keras take the mode as an argument. We predict two test images, one at a time, in both modes.

# %%
traces = []


@jax.jit
def predict(model, xs):
    traces.append(xs.shape)  # runs only while JAX traces the function
    return model(xs)


for mode in (model.eval, model.train):
    mode()
    one, other = (predict(model, test_xs[i : i + 1]) for i in range(2))
    print(
        f"{mode.__name__:5s}: the logits of two images differ by {np.abs(one - other).max():.2f}, traces: {len(traces)}"
    )
model.eval()
if torch:
    net.train()
    print_error(lambda: net(torch.tensor(test_xs[:1])))
    net.eval()

# %% [markdown]
# In training mode, BatchNorm subtracts the mean of the batch. Nothing remains of a batch with one image, so all such images have the same logits. PyTorch raises an error here, and Flax does not, so call `model.eval()` before you predict. The mode is a static part of the module, so `jit` traces the function once for each mode.
#
# ## Mistakes of people who switch
# **Gradients of attributes.** PyTorch finds parameters wherever the loss reads them. `jax.grad` differentiates only with respect to an argument. If a loss reads `train_state.params` instead of its argument, its gradient is 0, and JAX reports no error.


# %%
def wrong_loss(params):
    variables = {"params": train_state.params, "batch_stats": train_state.batch_stats}
    return cross_entropy(train_state.apply_fn(variables, test_xs, train=False), test_ys)


loss, grads = jax.jit(jax.value_and_grad(wrong_loss))(train_state.params)
print(f"loss {loss:.3f}, norm of the gradient: {optax.global_norm(grads)}")

# %% [markdown]
# Print the norm of the gradient in the first step of each port.
#
# **In-place operations.** A slice of a tensor is a view, so an update of the slice also changes the tensor. JAX arrays are immutable. `x[0] = 1` raises an error, but two other mistakes do not. `row += 1` only gives the name `row` to a new array. And `x.at[0].add(1)` returns an array, which is lost without a name.

# %%
if torch:
    tensor = torch.zeros(2, 2)
    row = tensor[0]
    row += 1
    print("PyTorch:", tensor.tolist())
x = jnp.zeros((2, 2))
print_error(lambda: x.__setitem__(0, 1), length=110)  # x[0] = 1
row = x[0]
row += 1
x.at[0].add(1)
print("JAX:    ", x.tolist())
x = x.at[0].add(1)
print("JAX, with a name for the result:", x.tolist())

# %% [markdown]
# Under `jit`, XLA can still update the memory in place (lesson 01).
#
# The core ends here. Continue with a Deeper section, the [table of equivalents](#Deeper:-a-table-of-equivalents), or the [summary](#Summary).
#
# ## Deeper: shared memory
# A JAX array is immutable, but it can share memory with a tensor or a NumPy array that is not. We change a tensor in place after four conversions.

# %%
if torch:
    tensor = torch.zeros(256, 256)
    converted = {"jnp.array": jnp.array(tensor.numpy()), "jnp.asarray": jnp.asarray(tensor.numpy())}
    converted |= {"jax.device_put": jax.device_put(tensor.numpy()), "jnp.from_dlpack": jnp.from_dlpack(tensor)}
    tensor.add_(1)
    print({name: float(one[0, 0]) for name, one in converted.items()})

# %% [markdown]
# Where a 1 appears, the memory is shared, so an "immutable" array has changed. This happens if you port weights while PyTorch still trains them. Only `jnp.array` promises a copy, so use it for weights. `jnp.asarray` copies "only when necessary", and `jax.device_put` shares memory where the runtime allows it. Use [DLPack](../docs/glossary.md#dlpack) for large tensors that do not change.
#
# ## Deeper: convolutions
# Images of PyTorch are (B, C, H, W), and weights of a convolution (out, in, height, width). Flax and Keras use (B, H, W, C) and (height, width, in, out). There are two traps. With a stride, `padding="SAME"` of Flax does not always pad as PyTorch's `padding=1`. And flattened features have another order, as in the figure above.

# %%
images = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
kernel = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
weight = rng.normal(size=(5, 4 * 4 * 4)).astype(np.float32)
if torch:
    features = torch.nn.functional.conv2d(torch.tensor(images), torch.tensor(kernel), stride=2, padding=1)
    expected = (features.flatten(1) @ torch.tensor(weight).T).numpy()
    for padding in ("SAME", 1):
        conv = nnx.Conv(3, 4, (3, 3), strides=2, padding=padding, use_bias=False, rngs=nnx.Rngs(0))
        conv.kernel[...] = jnp.array(kernel.transpose(2, 3, 1, 0))
        ours = conv(images.transpose(0, 2, 3, 1))
        print(f"padding={padding!r:6} {np.abs(ours.transpose(0, 3, 1, 2) - features.numpy()).max():.1e}", end="  ")
    flat = ours.reshape(2, -1)
    reordered = weight.reshape(5, 4, 4, 4).transpose(2, 3, 1, 0).reshape(64, 5)  # (out, C, H, W) -> (H, W, C, out)
    for name, matrix in {"weight.T": weight.T, "reordered": reordered}.items():
        print(f"{name}: {np.abs(flat @ matrix - expected).max():.1e}", end="  ")

# %% [markdown]
# The numbers are the largest differences from PyTorch. `SAME` pads 0 and 1 pixels here, and PyTorch 1 and 1. Pass the padding as a number. Transposed convolutions store (in, out, height, width) in PyTorch. With `transpose_kernel=True`, they need the same transposition. Pooling also has another default: the stride of `nnx.max_pool` is 1, and that of `nn.MaxPool2d` is the window.

# %%
if torch:
    theirs = torch.nn.ConvTranspose2d(3, 4, 3, stride=2, bias=False)
    up = nnx.ConvTranspose(
        3, 4, (3, 3), strides=2, padding="VALID", transpose_kernel=True, use_bias=False, rngs=nnx.Rngs(0)
    )
    up.kernel[...] = jnp.array(theirs.weight.detach().numpy().transpose(2, 3, 1, 0))
    expected, ours = theirs(torch.tensor(images)).detach().numpy(), up(images.transpose(0, 2, 3, 1))
    print(f"transposed convolution: {np.abs(ours.transpose(0, 3, 1, 2) - expected).max():.1e}", end="  ")
    pooled = torch.nn.functional.max_pool2d(torch.tensor(images), 2).numpy()
    ours = nnx.max_pool(images.transpose(0, 2, 3, 1), (2, 2), strides=(2, 2))
    print(f"pooling: {np.abs(ours.transpose(0, 3, 1, 2) - pooled).max():.1e}")

# %% [markdown]
# For other paddings of a transposed convolution, compare the outputs yourself.
#
# ## Deeper: embeddings and attention
# An embedding has the same layout in all libraries. PyTorch's `MultiheadAttention` stores the weights of queries, keys and values in one matrix (3 D, D). NNX has a kernel for each, (D, heads, size).

# %%
in_weight, out_weight = rng.normal(size=(24, 8)).astype(np.float32), rng.normal(size=(8, 8)).astype(np.float32)
attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(1))
parts = attention.query, attention.key, attention.value
for part, matrix in zip(parts, np.split(in_weight, 3), strict=True):
    part.kernel[...] = jnp.array(matrix.T.reshape(8, 2, 4))  # (in, heads, size)
attention.out.kernel[...] = jnp.array(out_weight.T.reshape(2, 4, 8))
tokens = rng.normal(size=(1, 5, 8)).astype(np.float32)
if torch:
    theirs = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    weights_of_torch = {"in_proj_weight": torch.tensor(in_weight), "out_proj.weight": torch.tensor(out_weight)}
    print(theirs.load_state_dict(weights_of_torch))
    expected = theirs(*[torch.tensor(tokens)] * 3, need_weights=False)[0].detach().numpy()
    print(f"largest difference {np.abs(attention(tokens) - expected).max():.1e}")

# %% [markdown]
# Masks have opposite meanings: in a Boolean `attn_mask` of `MultiheadAttention`, True *excludes* a key. In Flax, and in PyTorch's `scaled_dot_product_attention`, True *allows* it. Lesson 25 shows more differences.
#
# ## Deeper: same names, other defaults
# Functions with the same name can compute something else. Each bar compares the results of PyTorch's and JAX's defaults for the same numbers.

# %%
if torch:
    numbers = rng.normal(size=(64, 16)).astype(np.float32)
    tensor, functional = torch.tensor(numbers), torch.nn.functional
    norm = nnx.LayerNorm(16, rngs=nnx.Rngs(0))
    pairs = {
        "gelu": (functional.gelu(tensor), jax.nn.gelu(numbers)),
        "gelu, exact": (functional.gelu(tensor), jax.nn.gelu(numbers, approximate=False)),
        "std": (tensor.std(0), jnp.std(numbers, 0)),
        "std, ddof=1": (tensor.std(0), jnp.std(numbers, 0, ddof=1)),
        "median": (tensor.median(0).values, jnp.median(numbers, 0)),
        "LayerNorm": (functional.layer_norm(tensor / 100, (16,)), norm(numbers / 100)),
        "softmax": (functional.softmax(tensor, 1), jax.nn.softmax(numbers)),
    }
    differences = {name: float(np.abs(one.numpy() - other).max()) for name, (one, other) in pairs.items()}

# %%
if torch:
    _, axes = plots.subplots(height=2.4)
    axes.barh(list(differences), list(differences.values()))
    axes.set(xscale="log", xlabel="largest difference", xlim=(1e-9, 2))
    axes.invert_yaxis()
    found = ", ".join(f"{name} {value:.0e}" for name, value in differences.items())
    plots.show(f"Largest differences between PyTorch and JAX on a logarithmic axis: {found}.")

# %% [markdown]
# The bars below 1e-5 are rounding errors. The others have a reason. (The inputs of `LayerNorm` are small here.)
#
# | | PyTorch | here |
# |---|---|---|
# | `gelu` | exact | `jax.nn.gelu` approximates with tanh, unless `approximate=False` |
# | `std`, `var` | divide by n - 1 | divide by n, unless `ddof=1` |
# | `median` of an even number | the lower one | the mean of both |
# | `LayerNorm` | `eps=1e-5` | `nnx.LayerNorm`: `epsilon=1e-6`, Keras: `1e-3` |
# | `BatchNorm` | momentum 0.1 of the new value, 1e-5 | 0.99 of the old value, 1e-5 (Keras: 0.99, 1e-3) |
# | `AdamW` | `weight_decay=0.01` | `optax.adamw`: `1e-4` |
# | `Adam(weight_decay=...)` | added to the gradient | `optax.add_decayed_weights` before `optax.adam` |
# | initial weights of a linear layer | uniform, also the bias | truncated normal with variance 1 / in, and a bias of 0 (Keras: uniform up to the square root of 6 / (in + out)) |
#
# ## Deeper: dtypes
# PyTorch's integers have 64 bits, and JAX's 32, unless you enable `jax_enable_x64`. Promotion differs in one rule: a PyTorch tensor without axes does not widen an array of the same kind, but a JAX array without axes does. A Python number does not widen a float16 array in either library.

# %%
cases = {"float16 (3,) + float32 ()": (np.float16, np.float32), "int32 (3,) + float32 ()": (np.int32, np.float32)}
for name, (first, second) in cases.items():
    one, other = np.ones(3, first), np.ones((), second)
    theirs = (torch.tensor(one) + torch.tensor(other)).dtype if torch else "(not installed)"
    print(f"{name:26s} PyTorch {theirs}  JAX {(jnp.array(one) + jnp.array(other)).dtype}")
print("arange:", torch.arange(3).dtype if torch else "torch.int64", jnp.arange(3).dtype)
if torch:
    half = torch.ones(2, dtype=torch.bfloat16)
    print_error(lambda: half.numpy())
    print("with DLPack:", jnp.from_dlpack(half).dtype)

# %% [markdown]
# So a float32 scale in a half-precision model makes everything after it float32. NumPy has no bfloat16, so convert such weights with DLPack, or through float32.

# %% [markdown] predict="torch-rng"
# ## Deeper: a global generator
# PyTorch draws random numbers from a global generator, as older NumPy code does. A function adds a number from NumPy's generator to its argument 0 and is compiled with `jax.jit`. You call it three times. What does it return?
#
# - [ ] three different numbers | The generator is called only while the function is traced.
# - [x] the same number three times | Right. The number is drawn during tracing and becomes a constant of the program.
# - [ ] an error, because the generator has state | JAX does not see the generator. It sees only the number.

# %%
generator = np.random.default_rng(0)
noisy = jax.jit(lambda x: x + generator.normal())
print("NumPy's generator:", [round(float(noisy(0.0)), 3) for _ in range(3)])
noisy = jax.jit(lambda x, key: x + jax.random.normal(key))
print("a key for each call:", [round(float(noisy(0.0, jax.random.key(i))), 3) for i in range(3)])

# %% [markdown]
# ## Deeper: the tape and the function
# PyTorch records operations on a *tape*, and many of its functions control this tape. JAX transforms functions, so most of these functions are not needed.

# %%
square = lambda w: jnp.sum(w**3)
w = jnp.array([1.0, 2.0])
value, backward = jax.vjp(square, w)
print("twice, as with retain_graph:", backward(1.0)[0], backward(1.0)[0])
print("second derivative:", jax.grad(lambda w: jax.grad(square)(w).sum())(w))
print("detached:", jax.grad(lambda w: jnp.sum(w * jax.lax.stop_gradient(w**2)))(w))
if torch:
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        (leaf**3).sum().backward()  # without zero_grad in between
    print("accumulated in .grad:", leaf.grad)

# %% [markdown]
# | PyTorch | JAX |
# |---|---|
# | `loss.backward()`, `p.grad` | `grads = jax.grad(loss)(params)` |
# | `optimizer.zero_grad()` | not needed, because gradients are results |
# | several `backward()` to accumulate | add the trees, or `optax.MultiSteps` |
# | `with torch.no_grad()`, `inference_mode` | not needed |
# | `x.detach()` | `jax.lax.stop_gradient(x)` |
# | `p.requires_grad_(False)` | differentiate with respect to fewer arguments, or `nnx.DiffState(0, filter)` |
# | `retain_graph=True` | call the function of `jax.vjp` again |
# | `create_graph=True` | `jax.grad` of `jax.grad` |
# | `torch.autograd.Function` | `jax.custom_vjp` |
# | hooks | `nnx.capture` for outputs, `jax.custom_vjp` for gradients |
# | `torch.func.vmap`, `grad`, `functional_call` | `jax.vmap`, `jax.grad`, and `nnx.split` with `nnx.merge` |
# | `torch.compile`, graph breaks | `jax.jit`, which raises an error where a value is needed |
# | `torch.cuda.synchronize()` | `jax.block_until_ready(result)` |
# | `torch.utils.checkpoint` | `jax.checkpoint` |
#
# ## Deeper: Linen, with a table of its layers
# `tabulate` of Linen shows what a module contains. With `compute_flops=True`, XLA counts the operations of each layer. This network has 100 inputs, hidden layers of 300, 200 and 100 units, and one output.


# %%
class Regressor(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        for m in (300, 200, 100):
            x = linen.BatchNorm(use_running_average=not train)(linen.Dense(m)(x))
            x = linen.Dropout(0.2, deterministic=not train)(linen.relu(x))
        return linen.Dense(1)(x)


narrow = {"width": 112, "force_terminal": False, "force_jupyter": False}
table = Regressor().tabulate(
    jax.random.key(0), jnp.ones((16, 100)), train=False, compute_flops=True, console_kwargs=narrow
)
print("\n".join(line for line in table.splitlines() if line.strip(" │")))

# %% [markdown]
# You explain the numbers of such a table in an exercise. For NNX, `nnx.tabulate(model, x)` prints a similar table, with flops if `compute_flops=True`.
#
# | Linen | NNX |
# |---|---|
# | `setup` or `@compact`; shapes inferred by `init` | `__init__`, with the sizes of inputs |
# | `module.apply(variables, x)` | `module(x)` |
# | `train=` and `deterministic=` arguments | `model.train()`, `model.eval()`, `nnx.view` |
# | collections such as `batch_stats`, `mutable=` | types of Variables such as `nnx.BatchStat`, updated in place |
# | `rngs={"dropout": key}` | `nnx.Rngs(dropout=key)` in the module |
# | `nn.scan`, `nn.vmap`, `nn.remat` | `nnx.scan`, `nnx.vmap`, `nnx.remat`, or those of JAX |
# | `TrainState` | a module and an `nnx.Optimizer` |
# | an old Linen module inside a new model | `nnx.bridge.ToNNX`, and the reverse `nnx.bridge.ToLinen` |
# | Haiku: `hk.transform`, `hk.get_parameter`, `hk.next_rng_key` | `nnx.Module`, `nnx.Param`, `rngs()` |
#
# ## Deeper: Keras with its own loop
# Keras also has the loop that PyTorch leaves to you. `compile` selects loss, optimizer and metrics, and `fit` trains. On the JAX backend, the step is compiled with `jax.jit`.

# %%
if keras:
    looped = keras_net(rate=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    looped.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    xs, ys = (np.concatenate(part) for part in zip(*batches[:11], strict=True))
    history = looped.fit(xs, ys, batch_size=128, epochs=2, verbose=0)
    print({name: [round(value, 3) for value in values] for name, values in history.history.items()})
    print("kind of an array:", type(looped.weights[0].value).__name__, " jit:", looped.jit_compile)

# %% [markdown]
# A weight of Keras on this backend *is* a JAX array. So you can use Keras layers in JAX programs, as our `keras_step` did, and leave the loop to Optax. Set `KERAS_BACKEND` before the first import, because it cannot be changed later in the process.
#
# ## Deeper: save and load
# Files of one library are rarely readable by another one. A dict of NumPy arrays with PyTorch's names is. `np.savez` writes it, and so does the package `safetensors`. `torch.save` uses pickle, so load such files only if you trust them, with `weights_only=True`.

# %%
path = os.path.join(folder.name, "model.npz")
np.savez(path, **to_torch(model))
with np.load(path) as file:
    loaded = from_torch(dict(file))
loaded.eval()
print("from .npz:", jnp.array_equal(loaded(test_xs), model(test_xs)), f"{os.path.getsize(path):,} bytes")
if torch:
    torch.save(net.state_dict(), os.path.join(folder.name, "model.pt"))
    tensors = torch.load(os.path.join(folder.name, "model.pt"), weights_only=True)
    loaded = from_torch({name: tensor.numpy() for name, tensor in tensors.items()})
    loaded.eval()
    print(
        f"from .pt:  largest difference {np.abs(loaded(test_xs) - net(torch.tensor(test_xs)).detach().numpy()).max():.1e}"
    )
if keras:
    keras_model.save_weights(os.path.join(folder.name, "model.weights.h5"))
    print("Keras:", [name for name in sorted(os.listdir(folder.name)) if name.startswith("model")])

# %% [markdown]
# For training runs of JAX, use Orbax, which saves the optimizer and shardings too (lesson 24). Remove the temporary folder at the end of the program.

# %%
folder.cleanup()

# %% [markdown]
# ## Deeper: a table of equivalents
# One pipeline, side by side:
#
# | | PyTorch | NNX | Linen | Keras 3 |
# |---|---|---|---|---|
# | a layer | `nn.Linear(n, m)` | `nnx.Linear(n, m, rngs=rngs)` | `nn.Dense(m)` | `layers.Dense(m)` |
# | its weights | `weight` (out, in) | `kernel` (in, out) | `kernel` (in, out) | `kernel` (in, out) |
# | where they are | in the module | in the module | in a dict | in the model |
# | in place | `x[i] += 1`, `x.add_(1)` | `x = x.at[i].add(1)` | the same | the same |
# | a list of layers | `nn.ModuleList` | `nnx.List` | a Python list in `setup` | a Python list |
# | state that is not trained | `register_buffer` | `nnx.BatchStat`, `nnx.Variable` | a collection | `trainable=False` |
# | images | (B, C, H, W) | (B, H, W, C) | (B, H, W, C) | (B, H, W, C) |
# | BatchNorm | `momentum=0.1` | `momentum=0.9` | `momentum=0.9` | `momentum=0.9` |
# | mode | `net.train()`, `net.eval()` | `model.train()`, `model.eval()` | `train=` | `training=` |
# | randomness | a global generator | `nnx.Rngs` | `rngs=` of `apply` | seed generators |
# | forward pass | `net(x)` | `model(x)` | `apply(variables, x)` | `model(x)`, `stateless_call` |
# | gradient | `loss.backward()` | `nnx.value_and_grad` | `jax.value_and_grad` | `fit`, or `jax.value_and_grad` |
# | update | `optimizer.step()` | `optimizer.update(model, grads)` | `state.apply_gradients` | `fit`, or Optax |
# | clip gradients | `clip_grad_norm_` | `optax.clip_by_global_norm` | the same | `global_clipnorm=` |
# | learning rate | `lr_scheduler.step()` | a schedule in the optimizer | the same | a schedule |
# | compile | `torch.compile` | `jax.jit` or `nnx.jit` | `jax.jit` | by itself |
# | save | `torch.save` | Orbax | Orbax | `model.save` |
# | parameters as a dict | `state_dict()` | `nnx.to_pure_dict(nnx.state(model))` | `variables` | `model.weights` |
# | to a device | `.to("cuda")` | `jax.device_put`, often not needed | the same | by itself |
# | several devices | `DistributedDataParallel` | shardings (16 to 18) | the same | `keras.distribution` |
#
# In JAX, computation takes place where the arrays are, and new arrays are created on the first accelerator. So most `.to(device)` calls are not needed (lesson 01, *Devices*). On a GPU, JAX reserves most of the memory when it is first used (lesson 01), so set `XLA_PYTHON_CLIENT_PREALLOCATE=false` if PyTorch shares the GPU.
#
# In older code you will also meet:
#
# | older | now |
# |---|---|
# | `flax.optim` | `optax` |
# | `FrozenDict`, `unfreeze` | plain dicts |
# | `jax.tree_map` | `jax.tree.map` |
# | `torch.utils.dlpack.to_dlpack` and a capsule | `jnp.from_dlpack(tensor)` |
# | `flax.training.checkpoints` | `orbax.checkpoint` |
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | NumPy batches from a `DataLoader` | a `collate_fn` with `np.stack` |
# | weights of a linear layer | `jnp.array(state["weight"].T)` |
# | weights of a convolution | `.transpose(2, 3, 1, 0)`, and another order of flattened features |
# | an update in place | `x = x.at[i].add(1)` |
# | a safe copy | `jnp.array`, not `device_put` or DLPack |
# | to test a port | round trip, logits in evaluation, then the losses of three steps without Dropout |
# | PyTorch's BatchNorm | momentum 1 - m, and a tolerance for running variances |
# | randomness | a key as an argument |
# | a gradient | a function of the parameters that reads its argument |
#
# JAX's documentation lists [common gotchas](https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html), and Flax's has pages on [migrating](https://flax.readthedocs.io/en/latest/migrating/index.html). In the first exercise, you write the `collate_fn` of an evaluation.
