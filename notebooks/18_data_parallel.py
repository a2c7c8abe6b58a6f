# %% [markdown]
# # 18 · Data parallelism: eight devices, one model
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/18_data_parallel/18_data_parallel.ipynb).*
#
# Data parallelism trains one model on several devices. Each device processes its own part of the batch. After the core you can run an unchanged training step on eight devices, read from the compiled program what they communicate, compute how many bytes each device stores, and reduce this number with fully sharded data parallelism (FSDP).
#
# **Prerequisites.** Gradients (lesson 04), pytrees (06), Optax (09), meshes and `NamedSharding` (16), shardings in types (17). Answer these questions before you open the answers.
#
# 1. From 16: a float32 array of shape `(64, 256)` is placed on a [mesh](../docs/glossary.md#mesh) of eight devices with the axis `"data"`. How many bytes does each device hold under `P("data")`, and how many under `P()`?
#
# <details><summary>Answer</summary>
#
# Under `P("data")` each device holds a shard of shape `(8, 256)`, 8,192 bytes. Under `P()` it holds the whole array, 65,536 bytes.
# </details>
#
# 2. From 16: each of eight devices has an array of shape `(10,)`. What does a device have after an [all-reduce](../docs/glossary.md#all-reduce) of these arrays, and what after an [all-gather](../docs/glossary.md#all-gather)?
#
# <details><summary>Answer</summary>
#
# After the all-reduce it has the sum of the eight arrays, of shape `(10,)`. After the all-gather it has all eight, concatenated to shape `(80,)`.
# </details>
#
# 3. From 09: what does Adam store for each parameter between two steps?
#
# <details><summary>Answer</summary>
#
# Two moments, a running mean of the gradient and a running mean of its square.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

from grader.learning import plots
from grader.learning.inspection import bytes_on_device, flops, print_collectives, print_error, time_ms

eight = list(devices.mesh((8,), ("data",)).devices)
jax.config.update("jax_default_device", eight[0])  # arrays without a placement go to the first device

# %% [markdown]
# ## Training on one device
# We start with ordinary code for one device, a small network that classifies handwritten digits.


# %%
def new_layer(key, inputs, outputs):
    return {"w": jax.random.normal(key, (inputs, outputs)) * math.sqrt(2 / inputs), "b": jnp.zeros(outputs)}


def new_parameters(key):
    first, second, last = jax.random.split(key, 3)
    return [new_layer(first, 64, 256), new_layer(second, 256, 256), new_layer(last, 256, 10)]


def loss(params, x, y):
    """The mean cross entropy of a batch of images x (B, 64) and labels y (B,)"""
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    scores = x @ last["w"] + last["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


# %% [markdown]
# The training step uses Adam. It does not refer to any device.

# %%
optimizer = optax.adam(1e-3)


def step(params, state, x, y, loss=loss):
    """Returns (new parameters, new state of the optimizer, loss)."""
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


# %%
digits = load_digits()
order = np.random.default_rng(18).permutation(1797)
images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int32)
x, y = images[:256], labels[:256]  # one batch, as NumPy arrays

params = new_parameters(jax.random.key(0))
state = optimizer.init(params)
count = sum(leaf.size for leaf in jax.tree.leaves(params))
print(f"{count:,} parameters, {bytes_on_device(params):,} bytes; Adam's state, {bytes_on_device(state):,} bytes")

# %% [markdown]
# A step needs memory for the parameters, their gradients and Adam's two moments. Together these are four times as large as the parameters, 1.4 MB here. For ten billion float32 parameters it is 160 GB, twice the memory of an 80 GB device.
#
# **With eight devices, what does each of them store, and what do they communicate?** This lesson gives two answers. *Data parallelism* makes training faster. *Fully sharded data parallelism* also makes a large model fit.
#
# ## A mesh of eight devices
# Our mesh has one axis, `"data"`. We need two shardings, one to [replicate](../docs/glossary.md#replicate) arrays and one to [shard](../docs/glossary.md#shard) them.

# %%
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=eight)
replicated = NamedSharding(mesh, P())  # the whole array on each device
sharded = NamedSharding(mesh, P("data"))  # an eighth of the array's first axis on each device

# %% [markdown]
# On an **Auto** axis ([axis types](../docs/glossary.md#axis-type)), the compiler partitions the computation, starting from the shardings of the arguments. Code that was written for one device then runs on eight unchanged. We choose only the placement. Explicit axes ([lesson 17](17_explicit_sharding.ipynb)) would reject our FSDP, whose rule partitions some biases along the mesh axis that partitions the batch (*Deeper: Explicit and Manual axes*).
#
# ## Data parallelism
# Every device stores the whole model and an eighth of the batch. So we replicate the parameters and the optimizer's state, and shard the batch. In the picture, each number and colour is a device.

# %%
params_dp, state_dp = jax.device_put((params, state), replicated)
x_sharded, y_sharded = jax.device_put((x, y), sharded)
plots.show_shardings(
    {"images": x_sharded, "labels": y_sharded, "weights of layer 2": params_dp[1]["w"]},
    "Images and labels are partitioned along axis 0, with one shard on each device. Each device has a copy of the weights.",
)

# %% [markdown] predict="dp-what-travels"
# Each device has all parameters and 32 of the 256 images. What do the devices have to exchange in one step?
#
# - [ ] the images | Each device can run the forward and the backward pass on its own 32 images.
# - [ ] the parameters | They start out equal on all devices. If every device makes the same update, they stay equal.
# - [x] the gradients | Right. The update needs the gradient of the mean over all 256 images, and each device can only sum over its own 32.
# - [ ] nothing | Then every device would use the gradient of its own 32 images, and after one step there would be eight different models.

# %%
compiled_dp = jax.jit(step).lower(params_dp, state_dp, x_sharded, y_sharded).compile()
print_collectives(compiled_dp)  # for each collective, its kind and the elements of its result on one device

# %% [markdown]
# The all-reduce has 85,003 elements, which are the gradients of all 85,002 parameters and the loss. Other compilers may use several operations, so count elements.
#
# We did not write this all-reduce. The compiler inserted it because a gradient is a sum over the batch. For a weight matrix it is `x.T @ d`, where `x` contains the inputs of the layer and `d` the derivative of the loss with respect to `x @ w + b`. Both have a row for each example, and a device has only 32 of the 256 rows. Their product is a partial sum. The all-reduce adds the eight partial sums.
#
# So data parallelism is not a separate mode in JAX. *It follows from sharding the batch.*
#
# How much work is left for each device?

# %%
print(f"one device    {flops(step, params, state, x, y) / 1e6:6.1f} million flops")
print(f"data parallel {flops(step, params_dp, state_dp, x_sharded, y_sharded) / 1e6:6.1f} million flops on each device")

# %% [markdown]
# A little more than an eighth is left, because every device still updates all parameters.
#
# ## A batch without a sharding
# Data loaders return NumPy arrays. Suppose that we place the parameters and forget to place the batch.

# %% [markdown] predict="dp-forgotten-batch"
# What happens in `jax.jit(step)(params_dp, state_dp, x, y)`, where `x` and `y` are NumPy arrays?
#
# - [ ] an error, because x is on no device | An array without a placement is copied to the devices of the other arguments.
# - [ ] the batch is sharded, because the axis of the mesh is called "data" | The name has no meaning to JAX. Only a sharding partitions an array.
# - [x] correct numbers, and no speedup | Right. Every device gets the whole batch and does all the work.

# %%
compiled_forgotten = jax.jit(step).lower(params_dp, state_dp, x, y).compile()
print_collectives(compiled_forgotten)
print(f"{compiled_forgotten.cost_analysis()['flops'] / 1e6:.1f} million flops on each device")
print(f"loss, sharded batch    {compiled_dp(params_dp, state_dp, x_sharded, y_sharded)[2]:.6f}")
print(f"loss, unsharded batch  {compiled_forgotten(params_dp, state_dp, x, y)[2]:.6f}")

# %% [markdown]
# There is no error, and the loss is correct. But each device processes all 256 images instead of 32. The symptom is the missing all-reduce. An assertion in the training loop detects this mistake, for example `assert x.sharding.is_equivalent_to(sharded, x.ndim)`.
#
# ## Fully sharded data parallelism
# **FSDP** stores an eighth of the model on each device. Only the placement of the parameters and of the optimizer's state changes. Our rule shards the first axis whose size is a multiple of eight, and replicates an array without such an axis.


# %%
def sharding_for(leaf):
    """A sharding chosen by shape alone, for an array or a ShapeDtypeStruct."""
    for axis, size in enumerate(leaf.shape):
        if size % mesh.size == 0:
            return NamedSharding(mesh, P(*[None] * axis, "data"))  # P(None, "data") for axis 1
    return replicated


params_fsdp, state_fsdp = jax.device_put((params, state), jax.tree.map(sharding_for, (params, state)))

# %%
_, second, last = params_fsdp
plots.show_shardings(
    {"weights of layer 2": second["w"], "biases of layer 2": second["b"], "output biases": last["b"]},
    "The weights and biases of layer 2 are partitioned, with one shard on each device. The ten output biases are replicated.",
)

# %% [markdown] predict="dp-fsdp-travels"
# The same `step` now gets sharded parameters and a sharded batch. What does the compiler do for `x @ layer["w"]`?
#
# - [ ] an error, because no device has a whole weight | In Auto mode, the compiler inserts the communication that a computation needs.
# - [x] it gathers each weight on all devices, and reduces the gradients as before | Right. Weights are communicated in the forward pass, and gradients in the backward pass.
# - [ ] it communicates the images, so that each device multiplies with its own shard | This is possible too, and is called tensor parallelism. It communicates less only if the batch is small compared with the weights.

# %%
compiled_fsdp = jax.jit(step).lower(params_fsdp, state_fsdp, x_sharded, y_sharded).compile()
print_collectives(compiled_fsdp)

# %% [markdown]
# There is an all-gather for each of the five sharded arrays, and then the same all-reduce as before. After it, each device updates only its own shards.
#
# That is the program of the compiler for CPUs. Compilers for accelerators usually replace the all-reduce by a [**reduce-scatter**](../docs/glossary.md#reduce-scatter), which leaves each device with its own eighth of the gradients and communicates half as much. In a deep model, the weights should be gathered one layer at a time and discarded after use, as in this picture.
#
# ![Data parallelism and FSDP compared. In data parallelism, each of eight devices stores all parameters, gradients and Adam moments, and an eighth of the batch. The forward pass needs no communication, the backward pass all-reduces the gradients, and each device updates everything. In FSDP, each device stores an eighth of parameters, gradients and moments. The weights are all-gathered for the forward and the backward pass, the gradients are reduce-scattered, and each device updates its own eighth.](../images/data_parallel_fsdp.svg)
#
# ## Bytes on each device
# The two placements differ in the bytes that a device stores between two steps.

# %%
stored = {
    "one device": (params, state, jax.device_put((x, y), eight[0])),
    "data parallel": (params_dp, state_dp, (x_sharded, y_sharded)),
    "FSDP": (params_fsdp, state_fsdp, (x_sharded, y_sharded)),
}
_, axes = plots.subplots(height=2.9)
total = np.zeros(3)
for part, (name, (colour, hatch)) in enumerate(zip(("parameters", "Adam's state", "batch"), plots.FILLS, strict=True)):
    kilobytes = np.array([bytes_on_device(trees[part], eight[0]) / 1000 for trees in stored.values()])
    axes.bar(list(stored), kilobytes, bottom=total, color=colour, hatch=hatch, edgecolor="white", label=name)
    total += kilobytes
for place, height in enumerate(total):
    axes.text(place, height + 15, f"{height:,.0f} kB", ha="center")
axes.set(ylabel="kB on the first device", ylim=(0, 1250))
axes.legend()
sums = ", ".join(f"{name} {height:,.0f} kB" for name, height in zip(stored, total, strict=True))
plots.show(f"Parameters, Adam's state and batch on the first device, as stacked bars: {sums}.")

# %% [markdown]
# Data parallelism reduces only the bytes of the batch. FSDP reduces everything to about an eighth. For the model with ten billion parameters, that is 20 GB on each device instead of 160 GB, plus the weights that are gathered at that moment.
#
# | | data parallelism | FSDP |
# |---|---|---|
# | parameters and optimizer state | replicated, `P()` | sharded, by a rule from shapes to specs |
# | batch | sharded, `P("data")` | sharded, `P("data")` |
# | forward pass communicates | nothing | all-gather of the weights |
# | backward pass communicates | all-reduce of the gradients | reduce-scatter of the gradients, often another all-gather of the weights |
# | use it when | the model fits on one device | the model does not fit on one device |
#
# **This is the end of the core.** You can now do the first four exercises. The other two state which Deeper section they need.
#
# ## Deeper: creating the optimizer's state in shards
# *Eight minutes. The exercise "The optimizer's share" needs this section.*
#
# The state of a large model must be sharded when it is created. In the core we sharded a finished state, so all of it was on one device first. A model that needs eight devices has no room for that.

# %% [markdown] predict="dp-jitted-init"
# The parameters are sharded. Where does `jax.jit(optimizer.init)(params_fsdp)` place Adam's moments?
#
# - [x] whole, on one device | Right. Adam's `init` uses the shapes of its arguments and none of their values. So the compiled program has no inputs, and it runs on the default device.
# - [ ] sharded like the parameters | That is what we want. But zeros depend on no argument, so no sharding propagates to them.
# - [ ] whole, on every device | This happens under `jax.set_mesh`, as in lesson 17, because the program then runs on the devices of the mesh. Here no mesh is set.

# %%
shapes = jax.eval_shape(optimizer.init, params_fsdp)  # the shapes of the state, without the state
init_sharded = jax.jit(optimizer.init, out_shardings=jax.tree.map(sharding_for, shapes))
ways = {
    "init(params), before sharding": lambda: optimizer.init(params),
    "jit(init)(params_fsdp)": lambda: jax.jit(optimizer.init)(params_fsdp),
    "init(params_fsdp), without jit": lambda: optimizer.init(params_fsdp),
    "jit(init, out_shardings=...)": lambda: init_sharded(params_fsdp),
}
for name, make in ways.items():
    made = make()
    moment = made[0].mu[0]["w"]
    places, part = len(moment.sharding.device_set), moment.addressable_shards[0].data.shape
    print(f"{name:31s} {bytes_on_device(made):8,} bytes on the first device; a moment: {part} on each of {places}")

# %% [markdown]
# Use the last way. It combines **`eval_shape` for the shapes, a rule from shapes to shardings, and `out_shardings`**, so that an array that can be sharded is never whole on a device. Create the parameters of a large model in the same way, by compiling `new_parameters` with `out_shardings`.
#
# The first two ways raise no error, but they store the whole state on one device. The third way works for Adam because of a detail. Adam's `init` calls `zeros_like`, which outside `jit` copies the placement of its argument. An optimizer that calls `zeros` with a shape gets arrays on one device.

# %%
w = params_fsdp[0]["w"]
print("zeros_like(w): ", jnp.zeros_like(w).sharding)
print("zeros(w.shape):", jnp.zeros(w.shape).sharding)

# %% [markdown]
# Gradients need the same care if a program returns them. Without `out_shardings`, the compiler chooses their placement.

# %%
like_params = jax.tree.map(lambda leaf: leaf.sharding, params_fsdp)
for name, options in {"no out_shardings": {}, "out_shardings": {"out_shardings": like_params}}.items():
    gradients = jax.jit(jax.grad(loss), **options)(params_fsdp, x_sharded, y_sharded)
    print(f"gradients, {name:16s} {bytes_on_device(gradients):8,} bytes on the first device")

# %% [markdown]
# There are two variants between data parallelism and FSDP. **ZeRO-1** shards only the optimizer's state. **ZeRO-2** also shards the gradients. ZeRO-3, which shards the parameters as well, is another name for FSDP.
#
# ## Deeper: accumulating gradients
# *Eight minutes. It uses `vmap` (05) and `scan` (08). The last exercise needs this section.*
#
# If a batch does not fit into memory, process it as several *micro-batches*, add up their gradients, and update the parameters once. This is called *gradient accumulation*. A `scan` over the micro-batches does it in a few lines.


# %%
def accumulate(params, xs, ys):
    """The mean gradient of four micro-batches xs (4, 256, 64), ys (4, 256)"""

    def add(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys))
    return jax.tree.map(lambda g: g / 4, total)


micro = NamedSharding(mesh, P(None, "data"))  # axis 0 counts micro-batches, axis 1 counts examples
xs, ys = jax.device_put((images[:1024].reshape(4, 256, 64), labels[:1024].reshape(4, 256)), micro)

# %% [markdown] predict="dp-accumulate-where"
# How often do the devices all-reduce in `accumulate`?
#
# - [x] four times, once for each micro-batch | Right. Each iteration adds a complete gradient to `total`, and a gradient is complete only after an all-reduce.
# - [ ] once, at the end | This would be enough. But `total` has the shape of one gradient and is equal on all devices in every iteration.
# - [ ] not at all | The micro-batches are sharded over the devices, as any batch is.

# %%
compiled_naive = jax.jit(accumulate).lower(params_dp, xs, ys).compile()
print_collectives(compiled_naive)

# %% [markdown]
# The all-reduce is inside the loop, so it runs four times. One all-reduce after the loop would give the same sum. But `total` is replicated, so it has the same values on all devices. To store sums that differ between devices, it needs an additional axis of size eight.
#
# To get such gradients, reshape a batch of 256 images to eight batches of 32, and map the gradient over these with `vmap`.


# %%
def gradient_of_each_device(params, x, y):
    """x (256, 64), y (256,) -> gradients of shape (8, *p.shape)"""
    eighths = x.reshape(8, 32, 64), y.reshape(8, 32)
    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, *eighths)


compiled = jax.jit(gradient_of_each_device).lower(params_dp, x_sharded, y_sharded).compile()
print_collectives(compiled)
gradients = compiled(params_dp, x_sharded, y_sharded)[0]["w"]
print("gradients of the first weights", gradients.shape, "on each device", gradients.addressable_shards[0].data.shape)
complete = jax.grad(loss)(params, x, y)[0]["w"]
print("largest difference between their mean and the gradient:", jnp.abs(gradients.mean(0) - complete).max())

# %% [markdown]
# Each device computes and stores the gradient of its own images, without communication. *Partial sums that are not reduced yet need an axis with an entry for each device.* The loop should carry arrays with such an axis. (On Explicit axes, JAX also has [unreduced](../docs/glossary.md#unreduced) arrays for this purpose, which lesson 17 explains.)
#
# ![Gradient accumulation over four micro-batches. On the left, the devices all-reduce after each micro-batch, four times in all. On the right, each device adds up its own gradients over the four micro-batches, and one all-reduce follows the loop.](../images/data_parallel_accumulate.svg)


# %%
def accumulate_once(params, xs, ys):
    """The same gradient, with one all-reduce"""
    zeros = jax.tree.map(lambda p: jax.lax.with_sharding_constraint(jnp.zeros((8, *p.shape)), sharded), params)

    def add(total, batch):
        return jax.tree.map(jnp.add, total, gradient_of_each_device(params, *batch)), None

    total, _ = jax.lax.scan(add, zeros, (xs, ys))
    return jax.tree.map(lambda g: g.mean(0) / 4, total)  # the mean over devices: the only all-reduce


compiled_once = jax.jit(accumulate_once).lower(params_dp, xs, ys).compile()
print_collectives(compiled_once)
difference = jax.tree.map(
    lambda a, b: jnp.abs(a - b).max(), compiled_naive(params_dp, xs, ys), compiled_once(params_dp, xs, ys)
)
print("largest difference between the two results:", max(jax.tree.leaves(difference)))

# %% [markdown]
# The all-reduce is now outside the loop. The carry needs no more memory than before, because an array of shape `(8, *p.shape)` that is sharded along its first axis is one gradient on each device.
#
# We divide by four because all micro-batches have the same size. With padding or different sizes, a mean of means is wrong. In that case, add up sums and divide once at the end, as in the last exercise.
#
# ## Deeper: memory during a step
# *Five minutes. It uses `scan` (08) and `memory_analysis` (14).*
#
# FSDP reduces what a device stores between two steps, but not the additional memory during a step. `memory_analysis` reports both for a compiled program. Arguments and results are stored between steps. Scratch memory is used only during the step.

# %%
compiled_one = jax.jit(step).lower(params, state, x, y).compile()
print(f"{'bytes on each device':20s} {'arguments':>10s} {'results':>10s} {'scratch':>10s}")
for name, compiled in {"one device": compiled_one, "data parallel": compiled_dp, "FSDP": compiled_fsdp}.items():
    memory = compiled.memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    print(f"{name:20s} {sizes[0]:10,} {sizes[1]:10,} {sizes[2]:10,}")

# %% [markdown]
# With FSDP, arguments and results shrink to about an eighth, but the scratch memory grows. It contains all gathered weights and whole gradients at once. In a deep model, only one layer should be whole at a time. We compare a Python loop over sixteen layers with a `scan` over the same layers.


# %%
def apply(x, layer):
    return jax.nn.relu(x @ layer["w"] + layer["b"]), None


def unrolled(layers, x):
    for i in range(16):
        x, _ = apply(x, jax.tree.map(lambda leaf: leaf[i], layers))
    return jnp.mean(x**2)


def scanned(layers, x):
    return jnp.mean(jax.lax.scan(apply, x, layers)[0] ** 2)


def sgd(deep_loss, layers, x):
    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(deep_loss)(layers, x))


# %%
stacked = NamedSharding(mesh, P(None, "data"))  # axis 0 counts layers, so axis 1 is sharded
layers = {
    "w": jax.ShapeDtypeStruct((16, 256, 256), jnp.float32, sharding=stacked),
    "b": jax.ShapeDtypeStruct((16, 256), jnp.float32, sharding=stacked),
}
x_deep = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=sharded)
for deep_loss in (unrolled, scanned):
    compiled = jax.jit(sgd, static_argnums=0).lower(deep_loss, layers, x_deep).compile()
    gathers, scratch = compiled.as_text().count(" all-gather("), compiled.memory_analysis().temp_size_in_bytes
    print(f"{deep_loss.__name__:9s} {gathers:2d} all-gathers, scratch {scratch:9,} bytes")
print(f"all layers together {16 * 257 * 256 * 4:,} bytes; the scanned program:")
print_collectives(compiled)

# %% [markdown]
# The unrolled program gathers each of the 32 arrays once and keeps it, so its scratch memory is larger than all layers together. The scanned program gathers one layer in each iteration, and gathers the weights again in the backward pass. It needs less than a fifth of the scratch memory. The all-reduce in the loop is the gradient of one layer.
#
# ## Deeper: sizes that eight does not divide
# *Six minutes.*
#
# Many arrays of real models have sizes that are not a multiple of the number of devices. We try to shard ten biases with `P("data")`.

# %% [markdown] predict="dp-does-not-divide"
# `jax.device_put` with `P("data")` on eight devices raises an error for ten biases. What does `jax.lax.with_sharding_constraint` do in a jitted function that returns its result?
#
# - [ ] the same error | Inside a program, the compiler may pad an array so that every shard has the same size.
# - [ ] two biases on each of five devices | Shards have equal sizes, on all devices of the axis.
# - [x] no error, and each device has all ten biases | Right. Inside the program the array is padded and sharded. The result of a program cannot be padded, so the compiler gathers it.

# %%
print_error(lambda: jax.device_put(np.zeros(10, np.float32), sharded))
double = jax.jit(lambda a: jax.lax.with_sharding_constraint(2 * a, sharded))
ten = jax.device_put(jnp.arange(10.0), replicated)
print_collectives(double.lower(ten).compile())
print("the result:", double(ten).sharding.spec, double(ten).addressable_shards[0].data.shape, "on each device")

# %% [markdown]
# The all-gather has 16 elements, two from each device. So the constraint was applied. The ten values were padded to sixteen, each device computed two of them, and the result was gathered. If you rely on the sharding of a result, check it.
#
# `device_put` inside `jit` is another pitfall. Here it does not change the sharding, although eight divides the size.

# %%
sixteen = jax.device_put(jnp.arange(16.0), replicated)
print("device_put under jit:     ", jax.jit(lambda a: jax.device_put(a, sharded))(sixteen).sharding.spec)
constrained = jax.jit(lambda a: jax.lax.with_sharding_constraint(a, sharded))(sixteen)
print("with_sharding_constraint: ", constrained.sharding.spec)

# %% [markdown]
# Use `device_put` outside `jit`, and `with_sharding_constraint` or `out_shardings` inside. These rules are for Auto axes. On Explicit axes, `jax.reshard` changes a sharding inside and outside of `jit`, and it raises an error for a size that does not divide.
#
# A rule that looks only at shapes, such as `sharding_for`, works for every rank.

# %%
for shape in ((), (10,), (256,), (10, 24), (3, 3, 16, 32), (7, 5)):
    sharding = sharding_for(jax.ShapeDtypeStruct(shape, jnp.float32))
    print(f"{shape!s:15s} {sharding.spec!s:27s} on each device {sharding.shard_shape(shape)}")

# %% [markdown]
# Arrays that stay replicated are small in most models. The embedding table of a vocabulary with an odd size, such as 50,257, is an exception. Such sizes are usually rounded up to a multiple of 128.
#
# ## Deeper: do all placements train the same model?
# *Six minutes. It uses NNX modules (10).*
#
# We test with a convolutional network whether the placement changes what a model learns. `nnx.split` returns its parameters as a tree, and our step and our rule accept any tree.

# %%
import functools

from flax import nnx

from grader.learning import digits as digit_files


class Network(nnx.Module):
    """Images (B, 28, 28, 1) -> scores (B, 10)"""

    def __init__(self, *, rngs):
        self.shrink = nnx.Conv(1, 16, (3, 3), strides=2, rngs=rngs)
        self.conv = nnx.Conv(16, 16, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(14 * 14 * 16, 64, rngs=rngs)
        self.scores = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.conv(nnx.relu(self.shrink(images))))
        return self.scores(nnx.relu(self.hidden(x.reshape(len(x), -1))))


# %%
graphdef, start = nnx.split(Network(rngs=nnx.Rngs(0)))


def network_loss(params, x, y):
    scores = nnx.merge(graphdef, params)(x)
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()


dataset = digit_files.get()
print(dataset.description)
train_images, train_labels = dataset.arrays(train=True)
chosen = np.random.default_rng(18).integers(len(train_labels), size=(60, 128))  # the examples of each of 60 steps

# %% [markdown]
# The training loop takes the sharding of the batch, and the rule that places parameters and state.


# %%
def train(batch_sharding, rule):
    """Returns the losses of 60 steps and the bytes stored on the first device. `rule` maps a leaf to its sharding."""
    trees = start, optimizer.init(start)
    params, state = jax.device_put(trees, jax.tree.map(rule, trees))
    train_step = jax.jit(functools.partial(step, loss=network_loss))
    losses = []
    for rows in chosen:
        batch = train_images[rows, ..., None] / np.float32(255), train_labels[rows]
        params, state, value = train_step(params, state, *jax.device_put(batch, batch_sharding))
        losses.append(value)
    return np.array(losses), bytes_on_device((params, state), eight[0])


# %% [markdown] predict="dp-curves"
# We train three times from the same parameters, on the same batches: on one device, data parallel, and with FSDP. The three loss curves …
#
# - [ ] are equal to the last bit | Eight partial sums are added in a different order than one long sum, and floating-point sums depend on the order.
# - [x] agree up to rounding | Right. All three run the same algorithm.
# - [ ] differ a little, because each device sees other images | Each device's own gradient differs. But the update uses their mean.

# %%
alone = jax.sharding.SingleDeviceSharding(eight[0])
placements = {
    "one device": (alone, lambda leaf: alone),
    "data parallel": (sharded, lambda leaf: replicated),
    "FSDP": (sharded, sharding_for),
}
curves = {}
for name, placement in placements.items():
    curves[name], size = train(*placement)
    gap = np.abs(curves[name] - curves["one device"]).max()
    print(f"{name:14s} {size:9,} bytes on the first device, last loss {curves[name][-1]:.3f}, largest gap {gap:.0e}")

# %%
_, axes = plots.subplots()
for (name, losses), colour, width in zip(curves.items(), ("#d8d3c8", "#7db8e8", "#1d2430"), (9, 5, 1.2), strict=True):
    axes.plot(losses, "-", color=colour, linewidth=width, label=name)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
apart = np.ptp(list(curves.values()), axis=0).max()
plots.show(
    f"The loss over {len(losses)} steps, from {losses[0]:.1f} to {losses[-1]:.2f}. The curves of one device, data "
    f"parallelism and FSDP cover each other. They are nowhere more than {apart:.0e} apart."
)

# %% [markdown]
# The three curves cover each other. With FSDP, the first device stores about an eighth of the bytes.
#
# ## Deeper: how much faster?
# *Nine minutes.*
#
# First we measure our own programs, and then we estimate the times for real devices.

# %% [markdown] predict="dp-speed"
# How long does a step on 256 digits take on this machine, compared with one device? Eight devices are …
#
# - [ ] eight times as fast | Eight accelerators come close to that if the step is large enough. What about this machine?
# - [x] no faster, if they are simulated | Right. The simulated devices share the cores that one device can use alone, and they also wait for each other. (With real devices, the result depends on the size of the step, and this one is tiny.)
# - [ ] eight times as slow | With a sharded batch, the total work is about the same. It is eight times as much only if the batch is not sharded.

# %%
compiled_one = jax.jit(step).lower(params, state, x, y).compile()
x_copies, y_copies = jax.device_put((x, y), replicated)
names = "one device", "data parallel", "FSDP", "batch not sharded"
times = time_ms(
    lambda: compiled_one(params, state, x, y),
    lambda: compiled_dp(params_dp, state_dp, x_sharded, y_sharded),
    lambda: compiled_fsdp(params_fsdp, state_fsdp, x_sharded, y_sharded),
    lambda: compiled_forgotten(params_dp, state_dp, x_copies, y_copies),
)
_, axes = plots.subplots(height=2)
axes.barh(names, times, color=plots.FILLS[0][0])
for row, took in enumerate(times):
    axes.text(took, row, f" {took:.1f} ms", va="center")
axes.set(xlabel="ms for one step", xlim=(0, 1.15 * max(times)))
axes.invert_yaxis()
sums = ", ".join(f"{name} {took:.1f} ms" for name, took in zip(names, times, strict=True))
plots.show(f"The time of one step on this machine, as bars: {sums}.")

# %% [markdown]
# Simulated devices show what is computed, stored and communicated. They do not show the speed of real devices.
#
# For real devices, a short calculation gives a first answer. Computing takes the number of flops divided by the flops per second of a device. In the usual all-reduce over eight devices, each device sends 2 · 7/8 of the gradient's bytes. This takes the number of bytes divided by the bandwidth. FSDP needs two all-gathers and a reduce-scatter instead. Each of these takes half as long as an all-reduce.

# %%
per_parameter = flops(jax.grad(loss), params, x, y) / 256 / count
print(f"{per_parameter:.1f} flops for each parameter and example")
peak, bandwidth = 1e15, 450e9  # flops per second, and bytes per second that a device sends: roughly a recent GPU
size = 1e9  # parameters, with gradients in bfloat16
examples = np.geomspace(64, 16384, 50)  # on each device
compute = 1e3 * per_parameter * size * examples / peak
all_reduce = 1e3 * 2 * 7 / 8 * 2 * size / bandwidth
crossing = np.interp(all_reduce, compute, examples)

# %%
_, axes = plots.subplots()
axes.plot(examples, compute, label="compute")
axes.axhline(all_reduce, color=plots.COLOURS[1], linestyle="--", label="all-reduce")
axes.axhline(1.5 * all_reduce, color=plots.COLOURS[2], linestyle=":", label="communication of FSDP")
axes.plot(crossing, all_reduce, "o", color=plots.COLOURS[1])
axes.text(1.15 * crossing, 0.55 * all_reduce, f"{crossing:,.0f} examples")
axes.set(xscale="log", yscale="log", xlabel="examples on each device", ylabel="ms for one step")
axes.legend()
plots.show(
    f"Estimated time of one step against the examples on each device. Computing grows in proportion to the examples. "
    f"The all-reduce takes {all_reduce:.1f} ms for any number of them, as long as computing {crossing:,.0f} examples."
)

# %% [markdown]
# The time for computing grows with the number of examples on a device, and the time for communication does not. If you shard a batch over so many devices that each has few examples, communication takes longer than computing, and more devices do not help. The crossing does not depend on the size of the model, because both times are proportional to the number of parameters. For a language model, count tokens instead of examples.
#
# This is a rough estimate. Devices can compute and communicate at the same time, and they do not reach their peak. The [scaling book](https://jax-ml.github.io/scaling-book/training/) refines it. It also calculates when to combine FSDP with other methods. *Tensor parallelism* shards the computation of a layer over a second mesh axis, and *pipeline parallelism* places different layers on different devices.
#
# ## Deeper: Explicit and Manual axes
# *Seven minutes.*
#
# JAX has three ways to program several devices. This lesson used the first.
#
# | axis type | you write a program for | shardings are chosen by | [collectives](../docs/glossary.md#collective) are inserted by |
# |---|---|---|---|
# | `Auto` | whole arrays | the compiler | the compiler |
# | `Explicit` | whole arrays | rules of JAX, and you where they are ambiguous | the compiler |
# | `Manual`, in [`jax.shard_map`](../docs/glossary.md#shard_map) | the shard of one device | you | you |
#
# `jax.make_mesh` creates Explicit axes by default. Then the sharding of an array is part of its type, as in [lesson 17](17_explicit_sharding.ipynb). Data parallelism runs on them unchanged. Under `jax.set_mesh`, a spec such as `P("data")` can take the place of a `NamedSharding`.

# %%
explicit = jax.make_mesh((8,), ("data",), devices=eight)
with jax.set_mesh(explicit):
    whole, whole_state = jax.device_put((params, state), P())
    batch = jax.device_put((x, y), P("data"))
    print(jax.typeof(whole[0]["w"]), jax.typeof(batch[0]))
    print_collectives(jax.jit(step).lower(whole, whole_state, *batch).compile())

# %% [markdown]
# If the parameters are sharded too, JAX rejects the same step.

# %%
specs = jax.tree.map(lambda leaf: sharding_for(leaf).spec, (params, state))
with jax.set_mesh(explicit):
    parts, parts_state = jax.device_put((params, state), specs)
    print_error(lambda: jax.jit(step).lower(parts, parts_state, *batch))

# %% [markdown]
# In `x @ w + b`, the mesh axis `"data"` shards the examples of `x @ w` and the units of `b`. It cannot shard both axes of the sum. In Auto mode the compiler resolves such a conflict. In Explicit mode you resolve it. One line is enough. It states the idea of FSDP: *the weights are replicated while they are used*.


# %%
def gathered_loss(params, x, y):
    return loss(jax.tree.map(lambda p: jax.reshard(p, P()), params), x, y)


def fsdp_step(params, state, x, y):
    return step(params, state, x, y, loss=gathered_loss)


with jax.set_mesh(explicit):
    print_collectives(jax.jit(fsdp_step).lower(parts, parts_state, *batch).compile())
    gradients = jax.jit(jax.grad(gathered_loss))(parts, *batch)
    print("type of a gradient:", jax.typeof(gradients[0]["w"]))

# %% [markdown]
# The collectives are those of Auto mode. In addition, the type of a gradient contains the sharding of its parameter. To leave the choice to the compiler in a part of a program, use `jax.sharding.auto_axes`.
#
# The program uses `reshard` because `with_sharding_constraint` does not change a sharding on Explicit axes. There it is an assertion about the type. Sizes that do not divide evenly raise an error instead of being padded.

# %%
with jax.set_mesh(explicit):
    weights, biases = parts[0]["w"], parts[2]["b"]
    print("types:", jax.typeof(weights), jax.typeof(biases))
    print_error(lambda: jax.jit(lambda p: jax.lax.with_sharding_constraint(p, P()))(weights))
    print_error(lambda: jax.jit(lambda p: jax.reshard(p, P("data")))(biases), length=160)

# %% [markdown]
#
# In Manual mode ([lesson 19](19_shard_map.ipynb)) you write the program of one device. It gets 32 images, and `jax.lax.pmean` averages over the devices.


# %%
def mean_loss(params, x, y):
    return jax.lax.pmean(loss(params, x, y), "data")


def manual_step(params, state, x, y):
    print("images of one device:", x.shape)
    return step(params, state, x, y, loss=mean_loss)


batch_specs = (P(), P(), P("data"), P("data"))
manual_step = jax.jit(jax.shard_map(manual_step, mesh=mesh, in_specs=batch_specs, out_specs=P()))
print_collectives(manual_step.lower(params_dp, state_dp, x_sharded, y_sharded).compile())
print(f"loss, Manual {manual_step(params_dp, state_dp, x_sharded, y_sharded)[2]:.6f}")
print(f"loss, Auto   {compiled_dp(params_dp, state_dp, x_sharded, y_sharded)[2]:.6f}")

# %% [markdown]
# Code for the older `jax.pmap` averages the gradients instead of the loss. In `shard_map` this is wrong by default, because the gradient with respect to a replicated argument is already summed over the devices. The mean of eight such sums is eight times too large.


# %%
def averaged_gradients(params, x, y):
    return jax.lax.pmean(jax.grad(loss)(params, x, y), "data")


wrong = jax.jit(jax.shard_map(averaged_gradients, mesh=mesh, in_specs=batch_specs[1:], out_specs=P()))
right = jax.jit(jax.grad(loss))
ratio = wrong(params_dp, x_sharded, y_sharded)[-1]["b"] / right(params_dp, x_sharded, y_sharded)[-1]["b"]
print("averaged gradients / right gradients:", np.asarray(ratio).round(3))

# %% [markdown]
# ## Deeper: batches from several processes
# *Five minutes.*
#
# When training runs on several computers, each process should load only its part of the batch. Usually there is one Python process on each computer, which controls the devices of that computer and calls `jax.distributed.initialize()` first. `jax.process_index()` and `jax.process_count()` determine which examples it loads. `jax.make_array_from_process_local_data` then assembles one global array from the parts of all processes. The same code runs with a single process, as here.

# %%
process, processes = jax.process_index(), jax.process_count()
local = slice(256 // processes * process, 256 // processes * (process + 1))
x_global = jax.make_array_from_process_local_data(sharded, images[local])
y_global = jax.make_array_from_process_local_data(sharded, labels[local])
print(f"process {process} of {processes} loaded {len(images[local])} of {len(x_global)} images")
print(f"loss {compiled_dp(params_dp, state_dp, x_global, y_global)[2]:.6f}")

# %% [markdown]
# `jax.make_array_from_callback` is for loaders that can read any range of examples. It calls a function for each shard of this process, with the slices of that shard.


# %%
def load(index):
    print("rows", index[0].start, "to", index[0].stop)
    return images[index]


x_global = jax.make_array_from_callback((256, 64), sharded, load)

# %% [markdown]
# It does not matter which device gets which example, because the loss is a mean over all of them. So the processes need no common order of examples. We check this with a batch in random order.

# %%
mixed = np.random.default_rng(0).permutation(256)
x_mixed, y_mixed = jax.device_put((x[mixed], y[mixed]), sharded)
gradient = jax.jit(jax.grad(loss))
difference = gradient(params_dp, x_mixed, y_mixed)[0]["w"] - gradient(params_dp, x_sharded, y_sharded)[0]["w"]
print("largest difference between the gradients:", jnp.abs(difference).max())

# %% [markdown]
# Two rules remain. Different processes must load different examples, or some examples count twice. Replicated arrays, such as the parameters in data parallelism, must be equal in all processes, so create them from the same key or checkpoint. The functions above do not compare processes. The JAX documentation describes [more ways to load data](https://docs.jax.dev/en/latest/distributed_data_loading.html).
#
# ## Summary
#
# | you want to know | look at |
# |---|---|
# | what the devices communicate | `compiled.as_text()`, or `print_collectives(compiled)` in this course |
# | whether the batch is sharded | `x.sharding`, the flops on each device, and the all-reduce in the compiled program |
# | what a device stores | `leaf.addressable_shards`, `sharding.shard_shape(shape)` |
# | what a device needs during a step | `compiled.memory_analysis()` |
# | where the optimizer's state is | the `.sharding` of its leaves, after `init` |
# | whether accumulation reduces once | no collective inside a loop |
#
# ## In older code
#
# | older | now |
# |---|---|
# | `jax.pmap(step, axis_name="i")` with `jax.lax.pmean(grads, "i")` | `jax.jit(step)` with a batch under `P("data")`, or `jax.shard_map` |
# | `flax.jax_utils.replicate`, `jax.device_put_replicated` | `jax.device_put(tree, NamedSharding(mesh, P()))` |
# | `x.reshape(8, -1, ...)`, `jax.device_put_sharded` | `jax.device_put(x, NamedSharding(mesh, P("data")))` |
# | `PositionalSharding(devices).reshape(8, 1)` | `NamedSharding(mesh, P("data", None))` |
# | `pjit(f, in_axis_resources=...)`, `with mesh:`, `jax.sharding.use_mesh` | `jax.jit(f, in_shardings=...)`, `jax.set_mesh` |
# | `jax.make_mesh(...)`, whose axes were Auto by default | `jax.make_mesh(..., axis_types=(AxisType.Auto,))`, because the default is Explicit |
#
# The JAX documentation continues with [distributed arrays and the three modes](https://docs.jax.dev/en/latest/201/sharding.html). Next come the exercises. In the first exercise, two lines are missing.
