# %% [markdown]
# # 15 · Memory and precision
#
# *The core takes 30 minutes. Nine "Deeper" sections can be skipped. Then do [the exercises](../exercises/15_memory_and_precision/15_memory_and_precision.ipynb).* After the core you can measure what is stored for the backward pass, recompute a part of it instead, and train with 16-bit numbers without losing small gradients and updates.
#
# **Prerequisites.** Gradients (lesson 04), pytrees (06), `scan` (08), training (09) and `memory_analysis` (14). Answer these questions from memory.
#
# 1. From 04: In which order does reverse mode visit the operations of a function?
#
# <details><summary>Answer</summary>
#
# In the reverse order. First the forward pass computes all values. Then the backward pass goes from the result to the inputs and uses values of the forward pass.
# </details>
#
# 2. From 14: What is the difference between the argument bytes and the temporary bytes of a compiled function?
#
# <details><summary>Answer</summary>
#
# Arguments exist before and after the call. Temporary memory is needed only while the function runs.
# </details>
#
# 3. From 01, *Deeper: 16-bit floats*: `total` is the bfloat16 number 256. What is `total + 1`?
#
# <details><summary>Answer</summary>
#
# 256. A bfloat16 has 8 significant bits, so the next number after 256 is 258, and 257 is rounded to 256.
# </details>

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.ad_checkpoint import checkpoint_name

# Helpers of this course, which plot, print errors and list residuals:
from grader.learning import figures, plots
from grader.learning.inspection import print_error, print_residuals

# %% [markdown]
# ## Why does training need so much more memory?
# A model that fits on a device for prediction often runs out of memory in training with the same batch size. We measure both with a `scan` over the stacked weights of 16 layers.


# %%
def layer(params, x):
    """One residual layer: {"up": (64, 256), "down": (256, 64)}, x (512, 64) -> (512, 64)"""
    hidden = jnp.tanh(x @ params["up"])
    return x + jnp.sin(hidden @ params["down"])


def network_loss(params, x, layer=layer):
    """params: the weights of all layers, stacked along axis 0"""
    last, _ = jax.lax.scan(lambda x, one: (layer(one, x), None), x, params)
    return jnp.mean(last**2)


def new_params(layers):
    up, down = jax.random.split(jax.random.key(15))
    return {
        "up": jax.random.normal(up, (layers, 64, 256)) / 8,
        "down": jax.random.normal(down, (layers, 256, 64)) / 64,
    }


# %%
params, x = new_params(16), jax.random.normal(jax.random.key(0), (512, 64))


def temporary_mb(function, *args):
    """The temporary memory of the compiled function, in megabytes"""
    return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes / 1e6


print(f"loss     {temporary_mb(network_loss, params, x):5.1f} MB")
print(f"gradient {temporary_mb(jax.grad(network_loss), params, x):5.1f} MB")
print(f"parameters {sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 1e6:.1f} MB")

# %% [markdown]
# For a prediction, the result of a layer can be discarded as soon as the next layer is computed. For the gradient, the backward pass needs it later. **What is stored, and can it be reduced?**
#
# ## Residuals
# The backward pass of `sin(a)` multiplies by `cos(a)`, and that of `x @ w` by `x` and by `w`. Such values are stored during the forward pass and are called [residuals](../docs/glossary.md#residual). `jax.ad_checkpoint.print_saved_residuals` lists them. Our helper `print_residuals` calls it and omits file paths.

# %%
one = jax.tree.map(lambda leaf: leaf[0], params)  # the weights of one layer
print_residuals(layer, one, x)

# %% [markdown]
# The arguments are listed too, but they are in memory anyway. The layer computes the other three arrays. `tanh` stores its result and an array for its derivative (`sub`), both with 256 columns. `sin` stores its cosine.
#
# `jax.vjp` returns the result and a function for the backward pass. This function is a pytree, and its leaves are the residuals. So you can add up their bytes.


# %%
def residual_mb(function, *args):
    """The size of the residuals of function(*args), in megabytes"""
    _, backward = jax.vjp(function, *args)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(backward)) / 1e6


print(
    f"one layer {residual_mb(layer, one, x):.2f} MB, of which x and the weights {(x.nbytes + 2 * 64 * 256 * 4) / 1e6:.2f}"
)
print(f"16 layers {residual_mb(network_loss, params, x):.2f} MB")

# %% [markdown]
# A `scan` stacks the residuals of all iterations. They account for most of the temporary memory of the gradient.
#
# ## Recompute instead of storing
# `jax.checkpoint(f)` returns a function with the same results and the same gradients as `f`. Its forward pass stores only the **arguments** of `f`, and its backward pass computes `f` again to get the other residuals. This is called *rematerialization*, and `jax.remat` is an alias of `jax.checkpoint`.

# %%
print_residuals(jax.checkpoint(layer), one, x)

# %%
for name, function in {"stored": layer, "recomputed": jax.checkpoint(layer)}.items():
    text = str(jax.make_jaxpr(jax.grad(lambda one: function(one, x).sum()))(one))
    print(f"{name:10s} {text.count('dot_general')} products, {text.count('= tanh')} tanh in the gradient")

# %% [markdown]
# With `jax.checkpoint`, both forward products are computed twice. The gradient needs less memory and more time.

# %% [markdown] predict="memory-where"
# Where should `jax.checkpoint` be applied to save the most temporary memory in the gradient of our 16 layers?
#
# - [ ] to the whole loss, `jax.checkpoint(network_loss)` | Then the backward pass first recomputes the whole forward pass, and stores the residuals of all 16 layers while it does.
# - [x] to each layer, in the body of the `scan` | Right. Only the inputs of the layers are stored between the passes, and only one layer at a time has its residuals in memory.
# - [ ] to the last operation, the mean | Its residual is one array. The 16 layers before it still store all of theirs.

# %%
remat_layer = jax.checkpoint(layer)
candidates = {
    "no checkpoint": network_loss,
    "the whole loss": jax.checkpoint(network_loss),
    "each layer": lambda params, x: network_loss(params, x, remat_layer),
}
for name, function in candidates.items():
    print(f"{name:14s} {temporary_mb(jax.grad(function), params, x):5.1f} MB")

# %% [markdown]
# A checkpoint around the whole loss adds work and saves no memory. **Apply it to a part of the program whose input is small and whose residuals are large**, such as a layer. In the `__call__` of an NNX module (10), write `x = jax.checkpoint(lambda block, x: block(x))(block, x)`.
#
# ![Two timelines of a network with four layers. Above: every layer stores its residuals in the forward pass, so memory grows until the backward pass begins, and then shrinks. Below: with jax.checkpoint each layer stores only its input. In the backward pass each layer is first recomputed, which stores the residuals of this layer alone.](../images/memory_remat.svg)
#
# The next figure computes these timelines for four layers. It counts the result of each equation of the gradient, before the compiler fuses equations.


# %%
def four_layers_loss(layers, x, layer=layer):
    """A Python loop, so that the jaxpr contains the equations of each layer"""
    for one in layers:
        x = layer(one, x)
    return jnp.mean(x**2)


four = [jax.tree.map(lambda leaf: leaf[i], params) for i in range(4)]
remat_loss = lambda layers, x: four_layers_loss(layers, x, remat_layer)
figures.backward_memory({"no checkpoint": four_layers_loss, "each layer": remat_loss}, four, x)

# %% [markdown]
# Here is the temporary memory for several depths.

# %%
depths = [4, 16, 64]
megabytes = {
    name: [temporary_mb(jax.grad(candidates[name]), jax.eval_shape(lambda: new_params(n)), x) for n in depths]
    for name in ("no checkpoint", "each layer")
}
_, axes = plots.subplots(height=2.3)
for name, line in megabytes.items():
    axes.plot(depths, line, marker="o", markersize=4, label=name)
axes.set(xlabel="layers", ylabel="temporary MB", xticks=depths, ylim=(0, None))
axes.legend()
lines = "; ".join(f"{name}: {line[0]:.0f} to {line[-1]:.0f} MB" for name, line in megabytes.items())
plots.show(f"Temporary memory of the gradient for 4 to 64 layers, as two straight lines. {lines}.")

# %% [markdown]
# ## Policies: store some results
# The argument `policy` selects results that may be stored. The **policy** `dots_saveable` stores the results of products, which are expensive to recompute, and recomputes the elementwise operations, which are cheap. You can also name values in the model with `checkpoint_name` and select them. A name alone changes nothing.


# %%
def named_layer(params, x):
    hidden = jnp.tanh(checkpoint_name(x @ params["up"], "up"))
    return x + jnp.sin(checkpoint_name(hidden @ params["down"], "down"))


policies = jax.checkpoint_policies
print_residuals(jax.checkpoint(named_layer, policy=policies.save_only_these_names("down")), one, x)

# %% [markdown] predict="memory-policies"
# The results of the products have 256 and 64 columns. Without a checkpoint, 256 + 256 + 64 columns are stored in addition to the arguments. How many bytes does `dots_saveable` store instead?
#
# - [ ] none | That is `nothing_saveable`, which is what `jax.checkpoint` does without a policy.
# - [x] about half | Right. It stores 256 + 64 columns. `tanh`, its derivative and the cosine are recomputed from them.
# - [ ] the same | That is `everything_saveable`, which is what happens without `jax.checkpoint`.

# %%
choices = {
    "no checkpoint": layer,
    "dots_saveable": jax.checkpoint(layer, policy=policies.dots_saveable),
    'only "up"': jax.checkpoint(named_layer, policy=policies.save_only_these_names("up")),
    'only "down"': jax.checkpoint(named_layer, policy=policies.save_only_these_names("down")),
    "nothing_saveable": jax.checkpoint(layer, policy=policies.nothing_saveable),
}
arguments = x.nbytes + one["up"].nbytes + one["down"].nbytes
for name, function in choices.items():
    print(f"{name:17s} {1e6 * residual_mb(function, one, x) - arguments:9,.0f} bytes in addition to the arguments")

# %% [markdown]
# In the loop over 16 layers, each choice is a point between two extremes. XLA counts the body of a loop once, so the next cell shows the operations of one layer, forward and backward.


# %%
def cost(function):
    gradient = jax.jit(jax.grad(lambda params, x: network_loss(params, x, function))).lower(params, x).compile()
    return gradient.cost_analysis()["flops"] / 1e6, gradient.memory_analysis().temp_size_in_bytes / 1e6


costs = {name: cost(function) for name, function in choices.items()}
_, axes = plots.subplots(height=2.6)
for name, (work, memory) in costs.items():
    axes.plot(work, memory, "o", color=plots.COLOURS[0], markersize=7)
    axes.annotate(name, (work, memory), xytext=(8, 3), textcoords="offset points")
axes.set(xlabel="million operations for each layer", ylabel="temporary MB", ylim=(0, None))
axes.margins(x=0.25)
points = "; ".join(f"{name}: {work:.0f} million and {memory:.1f} MB" for name, (work, memory) in costs.items())
plots.show(f"Temporary memory of the gradient against the operations for each layer. {points}.")

# %% [markdown]
# Less memory usually costs more operations. A full recomputation adds one forward pass, about a third more work. Storing only `"down"` costs as much as storing only `"up"`, and needs less memory. The best choice depends on the model and the device. For transformers, `dots_with_no_batch_dims_saveable` is a common policy. It stores the products with weight matrices, which have no batch dimensions, and recomputes everything else.
#
# ## Fewer bits for each number
# The other way to save memory is a smaller dtype. A 16-bit dtype halves the memory of parameters and activations, and accelerators also multiply 16-bit numbers much faster.


# %%
def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


for dtype in (jnp.float32, jnp.bfloat16):
    print(f"{jnp.dtype(dtype)!s:9s} residuals of one layer {residual_mb(layer, *cast((one, x), dtype)):.2f} MB")

# %% [markdown]
# The bits of a floating-point number are divided among a sign, an exponent and a mantissa.
#
# ![Six formats of floating-point numbers, drawn as cells for the sign, the exponent and the mantissa. float32 has 8 bits of exponent and 23 of mantissa, TF32 8 and 10, bfloat16 8 and 7, float16 5 and 10, float8_e5m2 5 and 2, float8_e4m3fn 4 and 3.](../images/memory_formats.svg)
#
# The exponent determines the range, and the mantissa the precision.

# %%
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    info = jnp.finfo(dtype)
    largest, smallest, gap = float(info.max), float(info.smallest_subnormal), float(info.eps)
    print(f"{info.dtype!s:9s} largest {largest:7.1e}  smallest {smallest:7.1e}  the next after 1 is 1 + {gap:.1e}")

# %% [markdown]
# bfloat16 has the range of float32, and float16 has more digits. Each causes a different problem in training. We fit a small network to a curve in three ways.


# %%
def fit_loss(weights, x, y):
    """weights {"w1": (1, 64), "b1": (64,), "w2": (64, 1)} and x (256, 1) in any dtype, y (256, 1) float32 -> float32"""
    hidden = jnp.tanh(x @ weights["w1"] + weights["b1"])
    return jnp.mean(((hidden @ weights["w2"]).astype(jnp.float32) - y) ** 2)


first, second = jax.random.split(jax.random.key(1))
weights = {
    "w1": 2 * jax.random.normal(first, (1, 64)),
    "b1": jax.random.normal(second, 64),
    "w2": jnp.full((64, 1), 0.1),
}
inputs = jnp.linspace(-2, 2, 256)[:, None]
targets = jnp.sin(3 * inputs)

# %% [markdown] predict="memory-bf16"
# We keep all weights in bfloat16 and subtract `0.001 * gradient` at each step. The entries of `w1` are about 1 and their gradients below 0.2. What happens to these entries?
#
# - [ ] they move as in float32, but less precisely | The update is below 0.0002. The next bfloat16 after 1 is 1.0078.
# - [x] most of them never change | Right. An update of less than half the distance to the next number is rounded away in every step.
# - [ ] they become NaN | bfloat16 has the range of float32, so nothing overflows here.


# %%
def step(weights, store, compute, rate=0.001):
    """One step. The weights are stored in one dtype, and the loss is computed in another."""
    gradients = jax.grad(fit_loss)(cast(weights, compute), cast(inputs, compute), targets)
    return cast(jax.tree.map(lambda w, g: w - rate * g.astype(store), weights, gradients), store)


print("largest gradient of w1:", jnp.abs(jax.grad(fit_loss)(weights, inputs, targets)["w1"]).max())
plain = cast(weights, jnp.bfloat16)
moved = jax.jit(step, static_argnums=(1, 2))(plain, jnp.bfloat16, jnp.bfloat16)
for name in weights:
    print(f"{name}: {jnp.mean(moved[name] == plain[name]):4.0%} of the entries did not change")

# %% [markdown]
# The remedy is **mixed precision**. Store the weights in float32, the *master weights*, and cast them to bfloat16 for the forward and the backward pass. The update is then applied in float32.


# %%
def train(store, compute, steps=2000):
    def body(weights, _):
        return step(weights, store, compute), fit_loss(cast(weights, jnp.float32), inputs, targets)

    return jax.jit(lambda weights: jax.lax.scan(body, weights, length=steps)[1])(cast(weights, store))


curves = {
    "float32": train(jnp.float32, jnp.float32),
    "bfloat16": train(jnp.bfloat16, jnp.bfloat16),
    "bfloat16, float32 master weights": train(jnp.float32, jnp.bfloat16),
}
_, axes = plots.subplots(height=2.5)
for (name, losses), colour, width in zip(curves.items(), ("#7db8e8", *plots.COLOURS[1:3]), (5, 1.8, 1.5), strict=True):
    axes.plot(losses, color=colour, linewidth=width, label=name)
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
ends = ", ".join(f"{name} {losses[-1]:.4f}" for name, losses in curves.items())
plots.show(f"The loss over 2,000 steps. It ends at: {ends}. With master weights it follows the curve of float32.")

# %% [markdown]
# With master weights, the loss follows that of float32. The master weights need memory, but the activations usually need more, and they are in bfloat16. Three things stay in float32 in practice: the master weights, the state of the optimizer, and long sums, such as the mean of the loss. In NNX, a layer with `dtype=jnp.bfloat16` stores float32 parameters and computes in bfloat16.
#
# ## Small gradients in float16
# float16 has a different weakness. Its smallest positive number is 6e-8, and gradients are often smaller. Our loss is a mean over 256 examples. Suppose that it is also weighted by 1e-5, as one of several terms.

# %%
weighted = lambda weights, x: 1e-5 * fit_loss(weights, x, targets)
gradients = jax.grad(weighted)(weights, inputs)
flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradients)])
exponents = np.log2(np.abs(np.asarray(flat)))

# %% [markdown] predict="memory-scaling"
# **Loss scaling** multiplies the loss by a number such as 2**10 before differentiation, and divides the gradients by it afterwards, in float32. Why does this help?
#
# - [ ] it makes the gradients more precise | The mantissa has as many bits as before. What changes is the exponent.
# - [x] it moves all gradients into the range of float16 | Right. The derivative is linear, so every gradient in the backward pass is multiplied by the same number.
# - [ ] it makes the steps larger | The division undoes the multiplication, so the update is the same.


# %%
@jax.jit
def lost(scale):
    """The fractions of float16 gradients that are zero and not finite, with this loss scale"""
    half, x16 = cast((weights, inputs), jnp.float16)
    scaled = jax.grad(lambda weights: scale * weighted(weights, x16))(half)
    found = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(scaled)])
    return jnp.mean(found == 0), jnp.mean(~jnp.isfinite(found))


for power in (0, 5, 10, 20, 30, 35):
    zero, infinite = lost(2.0**power)
    print(f"scale 2**{power:<2d}  {zero:4.0%} of the gradients are 0, {infinite:4.0%} are not finite")

# %%
_, axes = plots.subplots(height=2.3)
bins = np.arange(-40, 17, 1.5)
for shift, (fill, hatch), name in zip((0, 15), plots.FILLS, ("no scale", "scale 2**15"), strict=False):
    axes.hist(exponents + shift, bins, color=fill, hatch=hatch, edgecolor="white", label=name)
axes.axvspan(-24, 16, facecolor=plots.QUIET, alpha=0.12)
axes.text(-23.5, axes.get_ylim()[1] * 0.92, "range of float16")
axes.set(xlabel="exponent of the gradient, log2", ylabel="entries")
axes.legend(loc="upper left")
inside = [np.mean(exponents + shift >= -24) for shift in (0, 15)]
plots.show(
    f"Histograms of the exponents of the gradients. The range of float16 is -24 to 16. Without a scale, {inside[0]:.0%} of "
    f"the gradients are in it, with the scale 2**15, {inside[1]:.0%}."
)

# %% [markdown]
# Without a scale, more gradients became 0 than the histogram shows, because intermediate values of the backward pass are even smaller. If the scale is too large, gradients overflow to infinity. So a *dynamic* loss scale starts large. A step with a non-finite gradient is skipped, and the scale is halved. After many steps without overflow, the scale is doubled. An exercise implements the halving. bfloat16 needs no loss scale, because it has the range of float32.
#
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: segments
# With a checkpoint for each layer, memory still grows with the number of layers, because the input of each layer is stored. To store less, checkpoint a **segment** of several layers. The backward pass then recomputes the layers of one segment together. We write this as a `scan` in a `scan`.


# %%
def segment_loss(params, x, segment, layer=layer):
    @jax.checkpoint
    def run(x, some):
        return jax.lax.scan(lambda x, one: (layer(one, x), None), x, some)[0]

    segments = jax.tree.map(lambda leaf: leaf.reshape(-1, segment, *leaf.shape[1:]), params)
    last, _ = jax.lax.scan(lambda x, some: (run(x, some), None), x, segments)
    return jnp.mean(last**2)


deep = new_params(64)
lengths = [1, 4, 16, 64]
by_length = {
    "residuals in the segment": [temporary_mb(jax.grad(lambda p, x: segment_loss(p, x, n)), deep, x) for n in lengths],
    "layers checkpointed too": [
        temporary_mb(jax.grad(lambda p, x: segment_loss(p, x, n, remat_layer)), deep, x) for n in lengths
    ],
}

# %%
_, axes = plots.subplots(height=2.4)
for name, line in by_length.items():
    axes.plot(lengths, line, marker="o", markersize=4, label=name)
axes.set(xscale="log", xlabel="layers in a segment, of 64", ylabel="temporary MB", ylim=(0, None))
axes.set_xticks(lengths, lengths)
axes.minorticks_off()
axes.legend()
best = {name: lengths[int(np.argmin(line))] for name, line in by_length.items()}
plots.show(
    "Temporary memory against the number of layers in a segment. "
    + "; ".join(
        f"{name}: {min(line):.1f} MB at {best[name]} layers, {line[-1]:.1f} MB at 64"
        for name, line in by_length.items()
    )
)

# %% [markdown]
# Long segments store few inputs but many residuals while a segment is recomputed. Short segments do the reverse. For n layers in segments of s, n/s inputs are stored between the passes. If the residuals of a layer are r times as large as its input, recomputing a segment needs the memory of r·s inputs. The sum is smallest near s = √(n/r). Here r is 10. If the layers are checkpointed as well, r is 1, but each layer is computed three times. Segments can also be nested recursively. Then the memory grows with the logarithm of n, and so does the number of times that a layer is computed. The gradients stay the same, as the next cell shows for one length.

# %%
gradients = jax.jit(jax.grad(network_loss))(deep, x)
by_segments = jax.jit(jax.grad(lambda p, x: segment_loss(p, x, 8)))(deep, x)
print(
    "largest difference:",
    max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (gradients, by_segments)), strict=True)),
)

# %% [markdown]
# ## Deeper: offload to host memory
# Instead of being recomputed, a residual can be moved to host memory, which is much larger, until the backward pass needs it. The method `addressable_memories` lists the kinds of memory that a device can use. `"pinned_host"` is host memory that an accelerator can access directly. A *sharding* (lesson 16) states where an array is stored, including the [memory kind](../docs/glossary.md#memory-kind). `SingleDeviceSharding(device, memory_kind=...)` means this memory of this device, and `device_put` copies an array there.

# %%
device = jax.devices()[0]
kinds = [memory.kind for memory in device.addressable_memories()]
print(device.platform, kinds, "default:", device.default_memory().kind)
can_offload = "pinned_host" in kinds and device.default_memory().kind == "device"
if can_offload:
    host = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    on_device = jax.sharding.SingleDeviceSharding(device, memory_kind="device")
    on_host = jax.device_put(x, host)
    print(on_host.sharding.memory_kind, jax.typeof(on_host), "and", jax.typeof(x))
else:
    print("This backend has no separate host memory, so the cells of this section do nothing.")

# %% [markdown]
# The policy below offloads named values. The input of each layer is moved to the host in the forward pass and fetched again in the backward pass. All other residuals are recomputed.

# %%
offload = policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["input"],
    offload_src="device",
    offload_dst="pinned_host",
)
offloading_layer = jax.checkpoint(lambda one, x: layer(one, checkpoint_name(x, "input")), policy=offload)
if can_offload:
    print_residuals(lambda params, x: network_loss(params, x, offloading_layer), params, x)
    _, backward = jax.vjp(lambda params, x: network_loss(params, x, offloading_layer), params, x)
    for leaf in jax.tree.leaves(backward):
        print(f"{leaf.nbytes / 1e6:5.2f} MB in {leaf.sharding.memory_kind}")

# %% [markdown]
# `f32<host>` is the type of an array in host memory. The weights and the last result stay on the device. On a CPU, both kinds are the same physical memory, so the placement can be tested there, but nothing is saved. On a GPU or TPU, the stacked inputs leave the memory of the device. The JAX documentation [reports](https://docs.jax.dev/en/latest/201/memory-spaces.html) 6.5 MB instead of 17.25 MB of temporary memory for ten layers on a TPU. The price is two copies for each layer. Offload only if these copies can overlap with the computation, and measure the time of a step (14).
#
# Parameters and the state of an optimizer can be kept in host memory as well, because they are not used for most of a step. Place them there with `device_put`, and fetch them inside the jitted step. With `out_shardings`, the new state is returned in host memory.

# %%
if can_offload:
    optimizer = optax.adam(1e-3)
    state = jax.device_put(optimizer.init(one), host)

    def update(one, state, x):
        gradients = jax.grad(lambda one: jnp.mean(layer(one, x) ** 2))(one)
        updates, state = optimizer.update(gradients, jax.device_put(state, on_device), one)
        return optax.apply_updates(one, updates), state

    changed, state = jax.jit(update, out_shardings=(on_device, host))(one, state, x)
    print({leaf.sharding.memory_kind for leaf in jax.tree.leaves(changed)}, "for the weights")
    print({leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)}, "for the state of Adam")

# %% [markdown]
# ## Deeper: what the compiler does
# XLA merges equal computations (*common subexpression elimination*, CSE). It could recognise that the recomputed values equal those of the forward pass, and store them after all. `jax.checkpoint` inserts an optimization barrier to prevent this. If the checkpoint is in the body of a `scan`, the two computations are in different loops, so no barrier is needed. `prevent_cse=False` omits it, which can make the program faster.


# %%
def one_loss(one, x, **options):
    return jnp.sum(jax.checkpoint(layer, **options)(one, x))


for name, options in {"default": {}, "prevent_cse=False": {"prevent_cse": False}}.items():
    lowered = jax.jit(jax.value_and_grad(lambda one, x: one_loss(one, x, **options))).lower(one, x)
    barriers = lowered.as_text().count("optimization_barrier")
    products = lowered.compile().cost_analysis()["flops"] / (2 * 512 * 64 * 256)
    print(f"{name:17s} {barriers} barrier, {products:.1f} products in the compiled program")

# %% [markdown]
# Only the first program has a barrier. The jaxpr with a checkpoint contains 7 products, and without one there would be 5. On a CPU, both compiled programs have 5, so XLA removed the recomputation in spite of the barrier. Outside of loops the compiler often decides what to recompute, and `jax.checkpoint` is most useful in the body of a `scan`. Judge a checkpoint by the residuals or, in a loop, by the temporary memory. XLA for GPUs and TPUs also has its own rematerialization pass, which recomputes values if a program does not fit in memory. `jax.config.update("jax_compiler_enable_remat_pass", False)` disables it. Versions of JAX after 0.10.2 also have `jax.custom_remat`, with which the author of a function decides what is stored and how the rest is recomputed.
#
# ## Deeper: the precision of products
# The dtype of an array determines how it is stored. A product of float32 arrays may still be computed with fewer bits. By default, TPUs round its factors to bfloat16, and recent NVIDIA GPUs to TF32. CPUs use all bits. The argument `precision`, or `jax.default_matmul_precision` for a whole block, controls this.

# %%
a = jnp.asarray(np.random.default_rng(15).normal(size=(256, 256)), jnp.float32)
exact = np.asarray(a, np.float64) @ np.asarray(a, np.float64)


def error_of(product):
    return float(np.abs(np.asarray(product, np.float64) - exact).max())


for precision in ("default", "high", "highest"):
    with jax.default_matmul_precision(precision):
        print(f"{precision:8s} largest error {error_of(a @ a):.1e} on {jax.default_backend()}")
for algorithm in ("F32_F32_F32", "BF16_BF16_F32", "BF16_BF16_F32_X3", "TF32_TF32_F32"):
    try:
        print(f"{algorithm:17s} largest error {error_of(jnp.dot(a, a, precision=algorithm)):.1e}")
    except ValueError as problem:
        print(f"{algorithm:17s} {problem}")

# %% [markdown]
# `"default"`, `"high"` and `"highest"` name a level. The other names are *algorithms*, which state the dtype of both factors and of the sum. A backend rejects an algorithm that it cannot run. On a CPU, every supported algorithm used all bits. `jax.lax.reduce_precision` rounds to any number of bits on every device, so we can see what an accelerator would compute.


# %%
def rounded(exponent_bits, mantissa_bits):
    round_to = lambda a: jax.lax.reduce_precision(a, exponent_bits, mantissa_bits)
    return round_to(a) @ round_to(a)


low = lambda a: jax.lax.reduce_precision(a, 8, 7)
rest = low(a - low(a))  # what bfloat16 leaves over, in bfloat16
three_products = low(a) @ low(a) + (low(a) @ rest + rest @ low(a))
errors = {"float32": a @ a, "TF32": rounded(8, 10), "bfloat16": rounded(8, 7), "bfloat16, 3 products": three_products}
for name, product in errors.items():
    print(f"{name:21s} largest error {error_of(product):.1e}")

# %% [markdown]
# With three products of bfloat16 numbers, the error is hundreds of times smaller than with one. This is the idea of the algorithm `BF16_BF16_F32_X3`. The backward pass uses the precision of the forward pass, as the jaxpr of a gradient shows.

# %%
gradient = jax.make_jaxpr(jax.grad(lambda a: jnp.sum(jnp.dot(a, a, precision="BF16_BF16_F32"))))(a)
print(str(gradient).count("precision=BF16_BF16_F32"), "of", str(gradient).count("dot_general"), "products")

# %% [markdown]
# If a result looks wrong on an accelerator, run it once under `jax.default_matmul_precision("highest")`. If the problem disappears, the cause was rounding. The setting is part of the key of the `jit` cache, so a function is compiled again when it changes. The setting also accepts the names of algorithms.
#
# `preferred_element_type` is the dtype of the *result*. Use it to get a float32 sum of bfloat16 products.

# %%
half = a.astype(jnp.bfloat16)
print(f"result in bfloat16: {error_of(half @ half):.2f}")
print(f"result in float32:  {error_of(jnp.dot(half, half, preferred_element_type=jnp.float32)):.2f}")

# %% [markdown]
# ## Deeper: stochastic rounding
# Rounding to the nearest number discards every update below half the distance to the next number. *Stochastic rounding* rounds up or down at random. A number that is a quarter of the way to the next bfloat16 is rounded up with probability 1/4, so the mean is correct. A bfloat16 consists of the upper 16 bits of a float32. So add a random 16-bit integer to the bits of the float32, and discard the lower 16 bits of the sum.


# %%
def stochastic_round(key, x):
    """x float32 -> bfloat16, rounded up or down at random, so that the mean is x"""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    bits = bits + jax.random.bits(key, x.shape, jnp.uint32) % 2**16
    upper = (bits >> 16).astype(jnp.uint16)
    return jax.lax.bitcast_convert_type(upper, jnp.bfloat16)


many = stochastic_round(jax.random.key(3), jnp.full(100_000, 1.001))
values, counts = np.unique(np.asarray(many, np.float32), return_counts=True)
print(dict(zip(values.tolist(), (counts / 1e5).tolist(), strict=True)), " mean", np.asarray(many, np.float32).mean())

# %% [markdown]
# Below, 10,000 updates of 0.001 are added to 1 in bfloat16.


# %%
def add_many(round_to):
    def body(total, key):
        total = round_to(key, total.astype(jnp.float32) + 0.001)
        return total, total

    keys = jax.random.split(jax.random.key(4), 10_000)
    return np.asarray(jax.lax.scan(body, jnp.full(8, 1, jnp.bfloat16), keys)[1], np.float32)


nearest, stochastic = add_many(lambda key, x: x.astype(jnp.bfloat16)), add_many(stochastic_round)
_, axes = plots.subplots(height=2.3)
axes.plot(1 + 0.001 * np.arange(10_000), label="exact")
axes.plot(stochastic[:, 0], label="stochastic rounding")
axes.plot(nearest[:, 0], label="to the nearest")
axes.set(xlabel="updates", ylabel="total")
axes.legend()
ends = f"{stochastic[-1].min():.2f} to {stochastic[-1].max():.2f}"
plots.show(
    f"The total over 10,000 updates of 0.001. Exact 11, to the nearest {nearest[-1, 0]}, stochastic rounding {ends}."
)

# %% [markdown]
# Rounding to the nearest leaves the total at 1. Stochastic rounding follows the exact total, with noise. So it can replace float32 master weights if there is not enough memory for them. The function above has no special case for infinity and NaN.
#
# ## Deeper: 8-bit floats
# Two formats with 8 bits are common. `float8_e4m3fn` has more precision and is used for activations and weights. `float8_e5m2` has more range and is used for gradients.

# %%
for dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2):
    info = jnp.finfo(dtype)
    numbers = jnp.array([0.3, 1.1, 300.0, 1e6]).astype(dtype).astype(jnp.float32)
    print(f"{info.dtype!s:14s} largest {float(info.max):7,.0f}  {jnp.array([0.3, 1.1, 300.0, 1e6])} -> {numbers}")
normal = jax.random.normal(jax.random.key(8), (256, 256))
small = normal.astype(jnp.float8_e4m3fn)
print_error(lambda: small + jnp.ones(256))
print("product:", jnp.dot(small, small, preferred_element_type=jnp.float32).dtype)

# %% [markdown]
# `e4m3fn` has no infinity, and a number that is too large becomes NaN. JAX does not promote 8-bit floats to other dtypes implicitly. Because the range is so small, each *array* has its own scale, which is chosen such that its largest entry is near the largest number of the format.


# %%
def to_fp8(x):
    """Returns (float8 array, scale) such that the product of both approximates x."""
    scale = jnp.abs(x).max() / float(jnp.finfo(jnp.float8_e4m3fn).max)
    return (x / scale).astype(jnp.float8_e4m3fn), scale


tiny = 1e-4 * normal
scaled, scale = to_fp8(tiny)
product = scale**2 * jnp.dot(scaled, scaled, preferred_element_type=jnp.float32)
direct = tiny.astype(jnp.float8_e4m3fn)  # without a scale
unscaled = jnp.dot(direct, direct, preferred_element_type=jnp.float32)
wanted = tiny @ tiny
for name, found in {"with a scale": product, "without": unscaled}.items():
    print(f"{name:13s} relative error {float(jnp.linalg.norm(found - wanted) / jnp.linalg.norm(wanted)):.3f}")

# %% [markdown]
# According to their data sheets, recent GPUs multiply 8-bit floats about twice as fast as bfloat16. A CPU cannot show this.
#
# ## Deeper: mixed precision in libraries
# Flax NNX has two dtypes for each layer. `param_dtype` is the dtype of the stored parameters, and `dtype` that of the computation.

# %%
from flax import nnx

dense = nnx.Linear(64, 64, dtype=jnp.bfloat16, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
print("kernel", dense.kernel.dtype, "  result", dense(x).dtype)

# %% [markdown]
# Optax computes with the dtype of the gradients and parameters that it receives. Some optimizers have an option for the dtype of their state, such as `mu_dtype` of `optax.adam`.

# %%
for options in ({}, {"mu_dtype": jnp.bfloat16}):
    adam = optax.adam(1e-3, **options).init(weights)[0]
    print(options, " first moment", adam.mu["w2"].dtype, "  second moment", adam.nu["w2"].dtype)

# %% [markdown]
# `optax.apply_if_finite` skips an update that is not finite, as a dynamic loss scale does. It also counts these updates.

# %%
careful = optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=5)
updates, counts = careful.update(jnp.array([1.0, jnp.nan]), careful.init(jnp.zeros(2)))
print("update", updates, " not finite so far:", counts.total_notfinite)

# %% [markdown]
# After five such updates in a row, it applies the next one anyway. In NNX (lesson 10), `nnx.remat` is `jax.checkpoint` for modules.
#
# ## Deeper: the memory of a GPU
# On a GPU, JAX reserves 75% of the memory at its first operation. `memory_stats()` of a device shows how much of this memory is in use. On a CPU it returns `None`.

# %%
statistics = jax.devices()[0].memory_stats()
print(
    {name: statistics[name] for name in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")}
    if statistics
    else statistics
)

# %% [markdown]
# Three environment variables change this. Set them before the first operation.
#
# | variable | effect |
# |---|---|
# | `XLA_CLIENT_MEM_FRACTION=.50` | reserves 50% instead of 75% |
# | `XLA_PYTHON_CLIENT_PREALLOCATE=false` | allocates memory when it is needed, which can cause fragmentation |
# | `XLA_PYTHON_CLIENT_ALLOCATOR=platform` | allocates on demand and frees unused memory, but is slow; for debugging |
#
# If a program runs out of memory, first look for a second process on the same GPU. Then compare `memory_analysis` of the step with the memory of the device. The usual remedies, in this order: donate the arguments (03), checkpoint the layers, use bfloat16 for activations, accumulate gradients over smaller batches (09), and shard the state (18).
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.remat`, `nn.remat` of Linen | `jax.checkpoint`, of which `jax.remat` is another name; `nnx.remat` |
# | `jax.checkpoint(f, concrete=True)` | `static_argnums` |
# | `TransferToMemoryKind("pinned_host")` | a sharding with `memory_kind="pinned_host"`, or `jax.memory.Space.Host` |
# | `policies.checkpoint_dots` | the same as `dots_saveable` |
# | a function of primitives as a policy, such as `dots_saveable` | still works on 0.10.2; the documentation of the newer implementation (the flag `jax_remat3`) describes only policies that select by name |
# | `jmp`, a library for mixed precision | casts as above, or the dtypes of NNX layers |
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a list of the residuals | `jax.ad_checkpoint.print_saved_residuals(f, *args)` |
# | their bytes | the leaves of `jax.vjp(f, *args)[1]` |
# | the memory of the compiled gradient | `memory_analysis().temp_size_in_bytes` |
# | less memory, more work | `jax.checkpoint(layer)`, in the body of a `scan` |
# | store only results of products | `policy=jax.checkpoint_policies.dots_saveable` |
# | store named values | `checkpoint_name(x, "name")` and `save_only_these_names("name")` |
# | half the memory for activations | cast to bfloat16, with float32 master weights |
# | small gradients in float16 | multiply the loss by a scale, divide the gradients in float32 |
# | all bits in a product on an accelerator | `jax.default_matmul_precision("highest")` |
