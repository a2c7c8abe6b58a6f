# %% [markdown]
# # 18 · Data parallel: eight devices, one model
#
# *An hour, then [the exercises](../exercises/18_data_parallel/18_data_parallel.ipynb).* Afterwards you can train one model on eight devices, with all parameters on each or an eighth on each; say what the devices tell each other and what each of them stores, and read both off the compiled program; keep the optimizer's state spread; accumulate gradients with one reduction; and recognise the mistakes that give right numbers.
#
# **Assumed.** Gradients (04), `vmap` (05), pytrees (06), `scan` (08), optax (09), NNX modules (10), the network of lesson 11, `memory_analysis` (14), meshes and NamedSharding (16), Explicit axes (17). Recall before you go on; answer first, then open the fold.
#
# 1. From 16: a float32 array of shape `(64, 256)` lies on a mesh of eight devices with the axis `"data"`. How many bytes does each device hold under `P("data")`, and under `P()`?
#
# <details><summary>Answer</summary>
#
# Under `P("data")` a piece `(8, 256)`: 8,192 bytes. Under `P()` all of it: 65,536 bytes, on each.
# </details>
#
# 2. From 09: what does Adam keep beside each parameter from step to step?
#
# <details><summary>Answer</summary>
#
# Two numbers, a running mean of its gradient and one of its square. So parameters, gradients and state together are four times the parameters.
# </details>
#
# 3. From 14: what do `argument_size_in_bytes` and `temp_size_in_bytes` of `compiled.memory_analysis()` count when a program runs on eight devices?
#
# <details><summary>Answer</summary>
#
# What *one* device is handed, and the scratch memory that one device needs while the program runs.
# </details>

# %%
import grader.checks
import grader.learning.digits

# Before JAX is first used, as JAX counts its devices once. `start` sets `jax_num_cpu_devices`, and gives the simulated
# devices more threads: with few, a training loop that runs ahead of its results can lock up on a small machine.
grader.checks.devices.start(8)

import functools
import itertools
import math
import re
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

from grader.learning import plots

# Eight accelerators where there are as many; else eight devices made of this computer's cores.
devices = (jax.devices() if len(jax.devices()) >= 8 else jax.devices("cpu"))[:8]
jax.config.update("jax_default_device", devices[0])  # what nobody places goes to the first of them
print(len(devices), "x", devices[0].device_kind)

KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def travels(compiled):
    """Prints every collective of a compiled program: kind, elements of its result, and whether a loop repeats it."""
    found = re.findall(rf"= (.+?) ({KINDS})(-start)?\((.*)", compiled.as_text())
    for result, kind, start, rest in found:
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for dims in re.findall(r"\[([\d,]*)\]", result)]
        if start and kind != "all-reduce":  # an asynchronous start lists its operands too
            sizes = sizes[len(sizes) // 2 :]
        where = "in the loop" if "while/body" in rest else ""
        print(f"  {kind:14s} {len(sizes)} array{'s' if len(sizes) > 1 else ' '} {sum(sizes):8,} elements  {where}")
    if not found:
        print("  nothing travels")


def stored(tree):
    """The bytes of a tree of arrays that lie on the first device."""
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == devices[0])


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:330]}")
    else:
        print("No error!")


# %% [markdown]
# ## The question
# Here is a training step as one writes it for one device: a small network that reads handwritten digits, and Adam. Nothing in this cell speaks of devices, and until the last section nothing in it will change.


# %%
def new_parameters(key, sizes):
    """A list of layers {"w": (inputs, outputs), "b": (outputs,)}"""
    layers = []
    for i, shape in enumerate(itertools.pairwise(sizes)):
        w = jax.random.normal(jax.random.fold_in(key, i), shape) * math.sqrt(2 / shape[0])
        layers.append({"w": w, "b": jnp.zeros(shape[1])})
    return layers


def scores(params, x):
    """x (B, 64) -> the score of each digit (B, 10)"""
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss(params, x, y):
    """The mean cross entropy of a batch: x (B, 64), y (B,) -> ()"""
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, x), y).mean()


optimizer = optax.adam(1e-3)


def step(params, state, x, y, loss=loss):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


digits = load_digits()
order = np.random.default_rng(18).permutation(1797)
images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int32)
x, y = images[:256], labels[:256]  # one batch, in NumPy, as a loader hands it over

params = jax.jit(new_parameters, static_argnums=1)(jax.random.key(0), (64, 256, 256, 10))
params = jax.device_put(params, devices[0])
state = optimizer.init(params)
count = sum(leaf.size for leaf in jax.tree.leaves(params))
print(f"{count:,} parameters in {len(jax.tree.leaves(params))} arrays, {stored(params):,} bytes")
print(f"Adam's state: {stored(state):,} bytes")

# %% [markdown]
# Parameters, gradients and two moments: four times 340 kB, which is nothing. For ten billion parameters it is 160 GB, twice what a device of 80 GB has. So: **we have eight devices. What do they have to tell each other, and what does each of them have to store?** There are two answers. The first makes it faster, the second makes it fit.
#
# ## A mesh, and why Auto
# The devices stand in one row, an axis that we call `"data"`.

# %%
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=devices)
everywhere = NamedSharding(mesh, P())  # all of it on each device
split = NamedSharding(mesh, P("data"))  # axis 0 cut into eight
mesh

# %% [markdown]
# `jax.make_mesh` makes **Explicit** axes unless told otherwise (17): shardings are part of every array's type, and where a result could be placed in two ways, JAX asks you. With **Auto** axes the compiler decides, starting from how the arguments are placed. This lesson takes Auto, for one reason: code written for one device (ours, optax, a library's) then runs on eight as it is, so that we see what *placement alone* does. The price is that we have to read what the compiler decided. The last section does the same with Explicit axes.
#
# ## Data parallel: all parameters everywhere, the batch in pieces
# We place, and call the same step.

# %%
params_dp, state_dp = jax.device_put((params, state), everywhere)
x_split, y_split = jax.device_put((x, y), split)
print("each device holds", x_split.addressable_shards[0].data.shape, "of the images", x_split.shape)

# %% [markdown] predict="dp-what-travels"
# Each device has all parameters and 32 of the 256 images. What do the devices have to exchange in one step?
#
# - [ ] the images | Each device can push its own 32 through the network without knowing the others.
# - [ ] the parameters | They start equal everywhere. If every device makes the same update, they stay equal.
# - [x] the gradients | Right: the update needs the gradient of the mean over all 256, and each device can only sum up its own 32.
# - [ ] nothing | Then every device would follow the gradient of its own 32 images, and there would be eight models after one step.

# %%
compiled_dp = jax.jit(step).lower(params_dp, state_dp, x_split, y_split).compile()
travels(compiled_dp)
print(f"  the parameters are {len(jax.tree.leaves(params))} arrays of {count:,} elements")

# %% [markdown]
# One all-reduce of the gradient of every parameter, and one number more: the loss. Six gradients were **merged** into one operation; on another machine they may be two or six. So when you judge a program, count elements, not operations.
#
# Nobody wrote this all-reduce. Look at the gradient of a weight: `x.T @ s`, where `s` (batch, outputs) is the derivative of the loss by the layer's outputs. That product sums over the batch. The batch is cut, so each device can sum its own 32 rows only, and where the eight partial sums meet, the compiler has to put a reduction. Data parallelism is what a mean over a split axis compiles to.
#
# The same by hand: eight gradients side by side, one of each device's images, and their mean.


# %%
def gradient_of_each_device(params, x, y):
    eighths = x.reshape(8, -1, 64), y.reshape(8, -1)
    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, *eighths)


compiled = jax.jit(gradient_of_each_device).lower(params_dp, x_split, y_split).compile()
travels(compiled)
eight = compiled(params_dp, x_split, y_split)
print(f"gradients of one weight {eight[0]['w'].shape}, on each device {eight[0]['w'].addressable_shards[0].data.shape}")

on_one_device = jax.jit(jax.grad(loss))(params, x, y)
difference = jax.tree.map(
    lambda many, one: jnp.abs(np.asarray(many).mean(0) - np.asarray(one)).max(), eight, on_one_device
)
print("largest difference of their mean from the gradient on one device:", max(jax.tree.leaves(difference)))

# %% [markdown]
# Nothing travels until the axis of eight is summed. Keep this picture: *a sum over devices that is not taken yet is an axis of eight*. We will need it again.
#
# And the work? Each device now does an eighth:

# %%
compiled_one = jax.jit(step).lower(params, state, x, y).compile()
for name, compiled in (("one device", compiled_one), ("data parallel", compiled_dp)):
    print(f"{name:14s} {compiled.cost_analysis()['flops'] / 1e6:6.1f} million flops on each device")

# %% [markdown]
# ## A batch that nobody placed
# A loader hands over NumPy arrays. Suppose we place the parameters and forget the batch.

# %% [markdown] predict="dp-forgotten-batch"
# `jax.jit(step)(params_dp, state_dp, x, y)` with `x` and `y` straight from NumPy:
#
# - [ ] an error: x is on no device | An array that was never placed goes wherever the others need it.
# - [ ] the batch is split, as the mesh's axis is called "data" | The name means nothing to JAX. Nobody said that x should be cut.
# - [x] right numbers, and no speed-up at all | Right: the whole batch goes to each device, and all eight do all the work.

# %%
compiled_forgotten = jax.jit(step).lower(params_dp, state_dp, x, y).compile()
travels(compiled_forgotten)
print(f"  {compiled_forgotten.cost_analysis()['flops'] / 1e6:.1f} million flops on each device")
print(f"  loss, batch split      {compiled_dp(params_dp, state_dp, x_split, y_split)[2]:.6f}")
print(f"  loss, batch forgotten  {compiled_forgotten(params_dp, state_dp, x, y)[2]:.6f}")

# %% [markdown]
# The mistake that gives right numbers: no error, no warning, equal losses, eight times the work. What gives it away is what is *missing*: no all-reduce. Put a guard where batches enter your loop: `assert x.sharding.is_equivalent_to(split, x.ndim)`.
#
# Only a batch that was expressly put on one device is refused:

# %%
refusal(lambda: jax.jit(step)(params_dp, state_dp, *jax.device_put((x, y), devices[0])))

# %% [markdown]
# ## What each device stores
# Data parallelism splits the work and stores everything eight times. Now the second answer: **fully sharded data parallel**, FSDP. Each device is the home of an eighth of every parameter.
#
# All we change is the placement. Each array is cut along its first axis that eight divides; the ten output biases have none, so they stay whole.


# %%
def sharding_for(leaf):
    """A sharding by shape alone: cut the first axis that eight divides, keep whole what has none."""
    for axis, size in enumerate(leaf.shape):
        if size % mesh.size == 0:
            return NamedSharding(mesh, P(*[None] * axis, "data"))
    return everywhere


params_fsdp = jax.device_put(params, jax.tree.map(sharding_for, params))
state_fsdp = jax.device_put(state, jax.tree.map(sharding_for, state))
for path, leaf in jax.tree.leaves_with_path(params_fsdp):
    name, piece = jax.tree_util.keystr(path), leaf.addressable_shards[0].data
    print(
        f"{name:8s} {leaf.shape!s:11s} {leaf.sharding.spec!s:11s} {leaf.nbytes:8,} bytes, on a device {piece.nbytes:7,}"
    )
print(f"parameters on a device: {stored(params_fsdp):,} bytes of {stored(params):,}")

# %% [markdown] predict="dp-fsdp-travels"
# The same `step`, with parameters in pieces. What does the compiler make of `x @ layer["w"]`?
#
# - [ ] an error: a device has no whole weight | Auto mode never gives up; it moves what is missing.
# - [x] it gathers each weight for all devices, and reduces the gradients as before | Right: weights travel to the examples, and gradients travel back.
# - [ ] it sends the images around, so that each device multiplies with its piece | That is possible too (tensor parallelism, 20), and with the batch split as well it costs more.

# %%
compiled_fsdp = jax.jit(step).lower(params_fsdp, state_fsdp, x_split, y_split).compile()
travels(compiled_fsdp)

# %% [markdown]
# An all-gather for every array that was cut, then the gradients as before. This is the CPU's compiler: it reduces whole gradients on every device and cuts them afterwards. Compilers for accelerators turn the pair into a **reduce-scatter**, after which each device is left with just its eighth of the sum; that moves half as much. Accept both when you read a program.
#
# The two side by side. In a deep model the weights should be gathered a layer at a time, dropped after use, and gathered again on the way back. That is how the picture has it; the program above, made for a CPU, gathers each of them once and keeps it:
#
# ![Data parallel against FSDP. Data parallel: each of 8 devices holds all parameters, gradients and Adam moments, and an eighth of the batch; nothing travels forward, in the backward pass the gradients are all-reduced, each device updates everything. FSDP: each device holds an eighth of parameters, gradients and moments; forward and backward the weights are all-gathered for use, gradients are reduce-scattered, and each device updates its own eighth.](../images/data_parallel_fsdp.svg)
#
# After the step each device updates its own piece only, so what comes back lies as it went in. Measure it: arguments and results of each program, on one device.

# %%
programs = {"one device": compiled_one, "data parallel": compiled_dp, "FSDP": compiled_fsdp}
print(f"{'bytes on each device':22s} {'arguments':>12s} {'results':>12s} {'scratch':>12s}")
for name, compiled in programs.items():
    memory = compiled.memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    print(f"{name:22s} {sizes[0]:12,} {sizes[1]:12,} {sizes[2]:12,}")

# %% [markdown]
# Arguments and results shrink to an eighth. Scratch *grows*, against one device and more so against data parallel: it holds all gathered weights at once, and here the whole gradients too. **FSDP shrinks what is kept, not what is used.** In a deep model only one layer should be whole at a time, and that is what `scan` over stacked layers gives (08, 15). Sixteen layers, written out and scanned:


# %%
def deep_step(layers, x, scanned):
    def apply(x, layer):
        return jax.nn.relu(x @ layer["w"] + layer["b"]), None

    def deep_loss(layers):
        if scanned:
            return jnp.mean(jax.lax.scan(apply, x, layers)[0] ** 2)
        out = x
        for i in range(16):
            out, _ = apply(out, jax.tree.map(lambda leaf: leaf[i], layers))
        return jnp.mean(out**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(deep_loss)(layers))


columns = NamedSharding(mesh, P(None, "data"))  # axis 0 counts the layers: cut the next one
deep = {
    "w": jax.ShapeDtypeStruct((16, 256, 256), jnp.float32, sharding=columns),
    "b": jax.ShapeDtypeStruct((16, 256), jnp.float32, sharding=columns),
}
x_deep = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=split)
for scanned in (False, True):
    compiled = jax.jit(deep_step, static_argnums=2).lower(deep, x_deep, scanned).compile()
    memory, gathers = compiled.memory_analysis(), re.findall(r" all-gather(?:-start)?\(", compiled.as_text())
    print(
        f"{'scanned' if scanned else 'written out':12s} arguments {memory.argument_size_in_bytes:9,}  scratch "
        f"{memory.temp_size_in_bytes:9,}  all-gathers {len(gathers):2d}  (all layers: {16 * 257 * 256 * 4:,} bytes)"
    )
travels(compiled)  # the scanned one

# %% [markdown]
# Written out, this compiler gathers each of the 32 arrays once and keeps it, sixteen layers at a time: that is the scratch. It is the loop that makes it let go: one layer is gathered on the way forward, and its weights once more on the way back, as keeping them would cost what FSDP saves. The all-reduce in this loop is a layer's gradient, which the next lines of the program cut.
#
# ## The optimizer's state
# Adam's moments are twice the parameters, so they must be cut as well. `optimizer.init` makes them. But when, and where?

# %% [markdown] predict="dp-jitted-init"
# `jax.jit(optimizer.init)(params_fsdp)`: where do Adam's moments lie?
#
# - [x] whole, on one device | Right: nobody said otherwise, and whole on one device is the default for a program that uses no value of its arguments.
# - [ ] cut like the parameters | That is the intention. But zeros depend on no argument, so there is no sharding to start from.
# - [ ] whole, on every device | That is what you get from an optimizer whose `init` uses the parameters' values: the program then runs on all devices. Adam's uses their shapes only.

# %%
shapes = jax.eval_shape(optimizer.init, params_fsdp)  # the state's shapes, before there is a state
init_cut = jax.jit(optimizer.init, out_shardings=jax.tree.map(sharding_for, shapes))
ways = {
    "init before the parameters are cut": lambda: optimizer.init(params),
    "jit(init), nothing said": lambda: jax.jit(optimizer.init)(params_fsdp),
    "init of cut parameters, without jit": lambda: optimizer.init(params_fsdp),
    "jit(init, out_shardings=...)": lambda: init_cut(params_fsdp),
}
for name, make in ways.items():
    made = make()
    placed = made[0].mu[0]["w"].sharding
    where = placed.spec if isinstance(placed, NamedSharding) else f"on {placed.device_set}"
    print(f"{name:36s} {stored(made):8,} bytes, first moment of a weight {where}")

w = params_fsdp[0]["w"]
print(
    "\nzeros_like(w):", jnp.zeros_like(w).sharding.spec, "  zeros(w.shape): on", jnp.zeros(w.shape).sharding.device_set
)

# %% [markdown]
# The first two are the traps, and both work, at the price of what FSDP was to save. The third is right for Adam by a detail: it uses `zeros_like`, which run by itself copies the placement. An optimizer that makes zeros from a shape, say of another dtype, ends up like the second. The last is the way: **`eval_shape` for the shapes, a rule from shapes to shardings, `out_shardings`**. No leaf is ever whole, not even for a moment. Make the *parameters* of a large model the same way, by compiling `new_parameters`.
#
# With plain data parallelism one can cut the state alone, or state and gradients. You will meet these as ZeRO-1 and ZeRO-2; FSDP is ZeRO-3.
#
# Gradients have a trap of their own. A step uses them up inside. Return them, and the compiler chooses:

# %%
gradient_shardings = jax.tree.map(lambda leaf: leaf.sharding, params_fsdp)
free = jax.jit(jax.grad(loss)).lower(params_fsdp, x_split, y_split).compile()
said = jax.jit(jax.grad(loss), out_shardings=gradient_shardings).lower(params_fsdp, x_split, y_split).compile()
for name, compiled in (("nothing said", free), ("out_shardings", said)):
    print(f"gradients, {name:14s} {stored(compiled(params_fsdp, x_split, y_split)):8,} bytes on a device")

# %% [markdown]
# In Auto mode, say where a result shall lie whenever you keep it. Here is the account:

# %%
whole_gradients, cut_gradients = (stored(program(params_fsdp, x_split, y_split)) for program in (free, said))
account = {
    "one device": (stored(params), whole_gradients, stored(state)),
    "data\nparallel": (stored(params_dp), whole_gradients, stored(state_dp)),
    "FSDP,\ninit not cut": (stored(params_fsdp), cut_gradients, stored(jax.jit(optimizer.init)(params_fsdp))),
    "FSDP": (stored(params_fsdp), cut_gradients, stored(init_cut(params_fsdp))),
}
_, axes = plots.subplots(height=3.2)
bottom = np.zeros(4)
for part, (colour, hatch) in enumerate(plots.FILLS):
    heights = np.array([sizes[part] for sizes in account.values()]) / 1000
    label = ("parameters", "gradients", "Adam's state")[part]
    axes.bar(list(account), heights, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", label=label)
    bottom += heights
for place, height in enumerate(bottom):
    axes.text(place, height + 15, f"{height:,.0f} kB", ha="center")
axes.set(ylabel="kB on the first device", ylim=(0, 1600))
axes.legend()
sums = ", ".join(f"{name} {height:,.0f} kB" for name, height in zip(account, bottom, strict=True))
plots.show(f"Parameters, gradients and Adam's state on the first device, stacked: {sums}.")

# %% [markdown]
# ## Do they learn the same?
# So far it was a network whose programs are short to read. Now the one of lesson 11, from NNX, with convolutions. `nnx.split` gives its parameters as a tree, the step is the same, and the rule asks for nothing but shapes.


# %%
class Block(nnx.Module):
    def __init__(self, channels, share, *, rngs):
        self.conv, self.share = nnx.Conv(channels, channels, (3, 3), rngs=rngs), share

    def __call__(self, x):
        return x + self.share * nnx.relu(self.conv(x))


class Network(nnx.Module):
    """Images (B, 28, 28, 1) -> the score of each digit (B, 10)"""

    def __init__(self, channels, depth, *, rngs):
        self.shrink = nnx.Conv(1, channels, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([Block(channels, 1 / depth, rngs=rngs) for _ in range(depth)])
        self.hidden = nnx.Linear(14 * 14 * channels, 64, rngs=rngs)
        self.scores = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        x = nnx.relu(self.shrink(images))
        for block in self.blocks:
            x = block(x)
        return self.scores(nnx.relu(self.hidden(x.reshape(len(x), -1))))


graph, start = nnx.split(jax.jit(lambda: Network(16, 2, rngs=nnx.Rngs(0)))())


def network_loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(nnx.merge(graph, params)(x), y).mean()


found = grader.learning.digits.get()
print(found.says)
(pictures, marks), (unseen, unseen_marks) = found.arrays(train=True), found.arrays(train=False)
drawn = np.random.default_rng(18).integers(len(marks), size=(60, 128))  # which examples, in 60 steps

# %% [markdown] predict="dp-curves"
# We train from the same parameters on the same batches: one device, data parallel, FSDP. The three loss curves …
#
# - [ ] are equal to the last bit | Eight partial sums are added in another order than one long sum, and floating-point sums depend on the order.
# - [x] agree to rounding | Right: it is one and the same algorithm, step by step; only who computes what differs.
# - [ ] differ a little, as each device sees other images | Each *gradient* differs. What is used is their mean.

# %%
alone = SingleDeviceSharding(devices[0])
ways = {  # where a batch goes, and where a leaf goes
    "one device": (alone, lambda leaf: alone),
    "data parallel": (split, lambda leaf: everywhere),
    "FSDP": (split, sharding_for),
}
curves = {}
for name, (place, rule) in ways.items():
    p = jax.device_put(start, jax.tree.map(rule, start))
    shapes = jax.eval_shape(optimizer.init, p)
    s = jax.jit(optimizer.init, out_shardings=jax.tree.map(rule, shapes))(p)
    train = jax.jit(functools.partial(step, loss=network_loss))
    losses = []
    for chosen in drawn:
        batch = (pictures[chosen, ..., None] / np.float32(255), marks[chosen])
        p, s, value = train(p, s, *jax.device_put(batch, place))
        losses.append(value)  # stays on its device: a float here would make the loop wait (09)
    curves[name] = np.array(losses)
    guesses = nnx.merge(graph, jax.device_get(p))(unseen[:1000, ..., None] / np.float32(255)).argmax(-1)
    gap = np.abs(curves[name] - curves["one device"]).max()
    print(
        f"{name:14s} keeps {stored((p, s)):9,} bytes on a device, last loss {losses[-1]:.3f}, "
        f"{np.mean(guesses == unseen_marks[:1000]):.1%} of unseen digits, largest gap to one device {gap:.0e}"
    )

_, axes = plots.subplots()
for (name, losses), colour, width in zip(curves.items(), ("#d8d3c8", "#7db8e8", "#1d2430"), (9, 5, 1.2), strict=True):
    axes.plot(losses, "-", color=colour, linewidth=width, label=name)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
apart = np.ptp(list(curves.values()), axis=0).max()
plots.show(
    f"The loss over {len(losses)} steps, from {losses[0]:.1f} to {losses[-1]:.2f}: the curves of one device, data parallelism "
    f"and FSDP lie on each other, nowhere more than {apart:.0e} apart."
)

# %% [markdown]
# ## Accumulating gradients
# The batch that we want is four times what fits. So we take four micro-batches one after the other, add their gradients, and update once. With `scan` that is short:


# %%
def accumulate(params, xs, ys):
    """The mean gradient of micro-batches xs (4, 256, 64), ys (4, 256)"""

    def add(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *batch)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, ys))
    return jax.tree.map(lambda g: g / 4, total)


micro = NamedSharding(mesh, P(None, "data"))  # axis 0 counts micro-batches, axis 1 the examples
xs, ys = jax.device_put((images[:1024].reshape(4, 256, 64), labels[:1024].reshape(4, 256)), micro)

# %% [markdown] predict="dp-accumulate-where"
# How often do the devices all-reduce in `accumulate`?
#
# - [x] four times, once a micro-batch | Right: each turn adds a finished gradient, and finishing it takes an all-reduce.
# - [ ] once, at the end | That would be enough. But `total` is *one* sum, equal on all devices, at every turn of the loop.
# - [ ] not at all | The micro-batches are split over the devices like any batch.

# %%
compiled_naive = jax.jit(accumulate).lower(params_dp, xs, ys).compile()
travels(compiled_naive)

# %% [markdown]
# Right, and not good. The all-reduce stands in the loop: four turns, four reductions, where one would do. The sum over micro-batches and the sum over devices may be taken in any order, but `total` has no room for "not yet summed over devices". Give it room: the axis of eight.
#
# ![Gradient accumulation over four micro-batches. Left, reduced in the loop: after each micro-batch the devices all-reduce, four times in all. Right, reduced once: each device adds its own gradients over the four micro-batches, and one all-reduce follows the loop.](../images/data_parallel_accumulate.svg)


# %%
def accumulate_once(params, xs, ys):
    def by_device(a):
        """(4, 256, ...) -> (4, 8, 32, ...): axis 1 counts devices, and every example is already where it belongs."""
        return jax.lax.with_sharding_constraint(a.reshape(4, 8, 32, *a.shape[2:]), micro)

    gradient_of_each = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))

    def add(total, batch):
        return jax.tree.map(jnp.add, total, gradient_of_each(params, *batch)), None

    nothing = jax.tree.map(lambda p: jax.lax.with_sharding_constraint(jnp.zeros((8, *p.shape)), split), params)
    total, _ = jax.lax.scan(add, nothing, (by_device(xs), by_device(ys)))
    return jax.tree.map(lambda g: g.mean(0) / 4, total)  # here, and only here, the eight meet


compiled_once = jax.jit(accumulate_once).lower(params_dp, xs, ys).compile()
travels(compiled_once)
pairs = jax.tree.map(
    lambda a, b: float(jnp.abs(a - b).max()), compiled_naive(params_dp, xs, ys), compiled_once(params_dp, xs, ys)
)
print("largest difference between the two:", max(jax.tree.leaves(pairs)))

# %% [markdown]
# `(8, *p.shape)` cut along its first axis is *one* gradient on each device: the accumulator that a device would keep anyway. The constraints say aloud what the compiler also finds by itself from the reshape; in a larger program, say it.
#
# (Micro-batches of unlike size, or padded ones, need care: a mean of means is not the mean. Add up sums, divide at the end. The last exercise is about that.)
#
# ## Where eight does not divide
# A real model has leaves of every rank: scalars, odd class counts, kernels `(3, 3, 16, 32)`. What happens at `(10,)`?

# %% [markdown] predict="dp-does-not-divide"
# Ten biases, `P("data")` on eight devices. `jax.device_put` raises an error. And `jax.lax.with_sharding_constraint` under `jit`?
#
# - [ ] the same error | It asks for the same. But in Auto mode a constraint is a wish to the compiler.
# - [ ] two biases on each of five devices | Pieces are always of equal size.
# - [x] no error, and the biases lie whole on each device | Right: a wish that cannot be granted is dropped, silently.

# %%
refusal(lambda: jax.device_put(np.zeros(10, np.float32), split))
constrained = jax.jit(lambda a: jax.lax.with_sharding_constraint(a, split))(jnp.zeros(10))
print(
    "constraint:       ", constrained.sharding.spec, [shard.data.shape for shard in constrained.addressable_shards][:2]
)
moved = jax.jit(lambda a: jax.device_put(a, split))(jax.device_put(jnp.zeros(16), everywhere))
print("device_put in jit:", moved.sharding.spec, [shard.data.shape for shard in moved.addressable_shards][:2])

# %% [markdown]
# The last line is the sister of this trap: under `jit`, `device_put` with a sharding places nothing, even where eight divides. Outside `jit` place with `device_put`; inside, with `with_sharding_constraint` or `out_shardings`; and look at what came out.
#
# A rule by shape, like `sharding_for`, serves every rank, because it asks which axis *can* be cut:

# %%
for shape in ((), (10,), (256,), (10, 24), (3, 3, 16, 32), (7, 5)):
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
    sharding = sharding_for(leaf)
    print(f"{shape!s:15s} {sharding.spec!s:27s} on a device {sharding.shard_shape(shape)}")

# %% [markdown]
# What stays whole is small in most models. Where it is not (a vocabulary of 50,257), people round the size up to a multiple of a few hundred when they design the model.
#
# ## How much faster?

# %% [markdown] predict="dp-speed"
# A step on 256 digits, on this machine. Against one device, eight are …
#
# - [ ] eight times as fast | On eight accelerators, and with work enough, nearly. Here?
# - [x] no faster, if they are simulated | Right: eight devices on the cores that the one device used already, and waiting for each other besides. (Real ones gain when a step is large. This one is tiny.)
# - [ ] eight times as slow | Only the forgotten batch makes eight times the work. A split batch is the same work in all; what it costs here is the talking.


# %%
def median_ms(function, *arguments, repeats=11):
    jax.block_until_ready(function(*arguments))  # warm up
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


timed = {
    "one device": (compiled_one, params, state, x, y),
    "data parallel": (compiled_dp, params_dp, state_dp, x_split, y_split),
    "FSDP": (compiled_fsdp, params_fsdp, state_fsdp, x_split, y_split),
    "forgotten batch": (compiled_forgotten, params_dp, state_dp, *jax.device_put((x, y), everywhere)),
}
for name, (compiled, *arguments) in timed.items():
    print(f"{name:16s} {median_ms(compiled, *arguments):7.1f} ms")

# %% [markdown]
# Simulated devices show *what* is computed, stored and sent. They cannot show speed: they share the cores that one device uses alone. One profile trace (14) of all three shows where the time goes. Every row is a thread of this computer. What looks long in a collective is mostly waiting, for devices whose turn on a core has not come yet.

# %%
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
folder = tempfile.mkdtemp()
with jax.profiler.trace(folder, profiler_options=options):
    for name in programs:
        compiled, *arguments = timed[name]
        with jax.profiler.TraceAnnotation(name):
            jax.block_until_ready(compiled(*arguments))

trace = jax.profiler.ProfileData.from_file(str(next(Path(folder).rglob("*.xplane.pb"))))
threads = [list(line.events) for plane in trace.planes for line in plane.lines]
figure, panels = plots.subplots(1, 3, width=11, height=3)
waiting = {}
for panel, (name, compiled) in zip(panels, programs.items(), strict=True):
    operations = set(re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) = ", compiled.as_text(), re.M))
    window = next(event for events in threads for event in events if event.name == name)
    row, spent = 0, {True: 0.0, False: 0.0}
    for events in threads:
        mine = [e for e in events if e.name in operations and window.start_ns <= e.start_ns <= window.end_ns]
        for event in mine:
            talks, took = bool(re.match(KINDS, event.name)), event.duration_ns / 1e6
            colour, height = ("#D55E00", 0.4) if talks else ("#0072B2", 0.8)
            panel.barh(row, took, height, left=(event.start_ns - window.start_ns) / 1e6, color=colour)
            spent[talks] += took
        row += bool(mine)
    waiting[name] = f"{name} {spent[True] / sum(spent.values()):.0%}"
    panel.set(title=name, xlabel="ms", yticks=[], xlim=(0, None), ylim=(-0.6, 16))
panels[0].set_ylabel("threads")
figure.suptitle("tall, blue: computing        low, orange: in a collective, waiting included", fontsize=10)
plots.show(
    f"What each thread does in one step. In a collective, of all time that is drawn: {', '.join(waiting.values())}."
)

# %% [markdown]
# (`tensorboard --logdir` on that folder shows the same with every name in it, lesson 14.)
#
# On real devices three numbers decide: the flops of a device, the bytes per second between devices, and the size of the batch. Work grows with the batch, and what travels does not, so a larger batch hides it better. Lesson 21 does this on paper for thousands of chips.
#
# ## The same with Explicit axes
# Data parallelism runs as it is. FSDP does not: in `x @ w + b` the examples are cut along `"data"`, and so are the biases; an axis of the mesh can cut a result only once, so one of the two has to give way. Auto mode decided that for us. Explicit mode asks:

# %%
explicit = jax.make_mesh((8,), ("data",), devices=devices)
on_explicit = lambda leaf: jax.device_put(leaf, NamedSharding(explicit, leaf.sharding.spec))
whole, whole_state, batch = jax.tree.map(on_explicit, (params_dp, state_dp, (x_split, y_split)))
travels(jax.jit(step).lower(whole, whole_state, *batch).compile())

cut, cut_state = jax.tree.map(on_explicit, (params_fsdp, state_fsdp))
refusal(lambda: jax.jit(step).lower(cut, cut_state, *batch))

# %% [markdown]
# The answer is one line, and it says in code what FSDP is: *the weights are whole while they are used.*


# %%
def gathered_loss(params, x, y):
    return loss(jax.tree.map(lambda p: jax.reshard(p, NamedSharding(explicit, P())), params), x, y)


def explicit_step(params, state, x, y):
    value, gradients = jax.value_and_grad(gathered_loss)(params, x, y)
    print("a gradient's type:", jax.typeof(gradients[0]["w"]))
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


travels(jax.jit(explicit_step).lower(cut, cut_state, *batch).compile())

# %% [markdown]
# The program that Auto mode found. And in this mode a gradient has the sharding of its parameter in its *type*: what was a trap above cannot happen.
#
# ## Summary
#
# | | data parallel | FSDP |
# |---|---|---|
# | parameters | whole on each device, `P()` | cut, by a rule from shapes to specs |
# | batch | cut along axis 0, `P("data")` | the same |
# | travels forward | nothing | all-gather of the weights |
# | travels backward | all-reduce of the gradients | reduce-scatter of the gradients (here all-reduce, then cut); in a loop over layers the weights once more |
# | a device keeps, with Adam | 3 times the parameters, and their gradients during a step | an eighth of that |
# | take it when | the model fits, and you want more examples a second | the model, or its optimizer, does not fit |
#
# | you want to know | look at |
# |---|---|
# | what travels | `compiled.as_text()`: kinds and elements, not the number of operations |
# | whether the batch is split | `x.sharding`, flops per device; no all-reduce is a bad sign |
# | what a device keeps | `memory_analysis()`: arguments and results; `leaf.addressable_shards` |
# | where the optimizer's state lies | its leaves' `.sharding`, right after `init` |
# | whether a wish was granted | `.sharding` of the result: constraints that do not divide are dropped |
# | whether accumulating reduces once | no collective in the loop |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `jax.pmap(step, axis_name="i")` with `jax.lax.pmean(grads, "i")` | `jax.jit(step)` with the batch under `P("data")`; by hand: `jax.shard_map` (19) |
# | `flax.jax_utils.replicate`, `jax.device_put_replicated` | `jax.device_put(tree, NamedSharding(mesh, P()))` |
# | `x.reshape(8, -1, ...)`, `jax.device_put_sharded` | `jax.device_put(x, NamedSharding(mesh, P("data")))` |
# | `PositionalSharding(devices).reshape(8, 1)` | `NamedSharding(mesh, P("data", None))` |
# | `pjit(f, in_axis_resources=...)`, `with mesh:`, `jax.sharding.use_mesh` | `jax.jit(f, in_shardings=...)`, `jax.set_mesh` |
# | `jax.make_mesh(...)` with Auto axes | Explicit by default; say `axis_types=(AxisType.Auto,)` |
#
# Next: the exercises. The first has two lines missing.
