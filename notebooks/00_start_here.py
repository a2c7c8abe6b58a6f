# %% [markdown]
# # 00 · Start here
#
# *Twenty minutes; no exercises yet.* What JAX is, what happens between your Python and the chip, where it runs, who else is in its ecosystem, and how this course works. Run every cell with Shift+Enter.
#
# **Assumed.** Python, NumPy, and what a gradient is.

# %%
import jax

jax.config.update("jax_num_cpu_devices", 8)  # before JAX is first used: it counts its devices once

import time

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

print("jax", jax.__version__, "on", jax.devices()[0].device_kind)

# %% [markdown]
# ## One function, and what JAX makes of it
# Here is a model and its error on one example, as you would write it in NumPy. There is nothing of JAX in it but the name `jnp`.


# %%
def loss(params, x, y):
    """The squared error of a small network on one example: x (64,), y () -> ()"""
    hidden = jnp.tanh(params["a"] @ x)
    return (params["b"] @ hidden - y) ** 2


rng = np.random.default_rng(0)
params = {"a": rng.normal(size=(256, 64)).astype(np.float32) / 8, "b": rng.normal(size=256).astype(np.float32) / 16}
xs, ys = rng.normal(size=(512, 64)).astype(np.float32), rng.normal(size=512).astype(np.float32)
print("one example:", loss(params, xs[0], ys[0]))

# %% [markdown]
# JAX is a handful of functions that take a function and give one back. Each of these lines is a lesson:

# %%
gradient = jax.grad(loss)  # lesson 04: by how much does the loss change with each parameter?
losses = jax.vmap(loss, in_axes=(None, 0, 0))  # lesson 05: the loss of every example of a batch


def mean_loss(params, xs, ys):
    return losses(params, xs, ys).mean()


step_by_step = jax.grad(mean_loss)
fast = jax.jit(step_by_step)  # lesson 03: compiled, as one program

print("one gradient:", gradient(params, xs[0], ys[0])["a"].shape, " 512 losses:", losses(params, xs, ys).shape)

# %% [markdown]
# You wrote the error of *one* example. Nobody wrote its derivative, a batch axis, or a kernel.

# %% [markdown] predict="start-compiled"
# `step_by_step` runs operation by operation; `fast` runs one compiled program. How do their times compare?
#
# - [ ] The first call of `fast` is the faster one too | The first call traces and compiles. That costs more than it saves once.
# - [x] The first call of `fast` is slower, later ones are faster | Right: it pays once to compile, and less each time after. How much less depends on how much there was to merge.
# - [ ] They are the same: both end in the same library calls | Operation by operation, JAX transforms your function anew in each call, and every intermediate array is written to memory and read again.


# %%
def seconds(f):
    """How long one call takes until its result is really there."""
    begin = time.perf_counter()
    jax.block_until_ready(f(params, xs, ys))
    return time.perf_counter() - begin


jax.block_until_ready(step_by_step(params, xs, ys))  # its single operations are compiled once, too
first = seconds(fast)
rounds = [(seconds(step_by_step), seconds(fast)) for _ in range(9)]
eager, later = (sorted(times)[4] for times in zip(*rounds, strict=True))
print(f"operation by operation {eager * 1e3:7.2f} ms")
print(f"compiled, first call   {first * 1e3:7.2f} ms,  later {later * 1e3:.2f} ms")

# %% [markdown]
# And the same function on eight devices. They are simulated from this computer's cores unless you have eight accelerators; the program is the same. Nothing in `loss` changed: only the data was *placed*.

# %%
# All eight of one kind: accelerators where there are enough of them, else the simulated ones.
devices = (jax.devices() if len(jax.devices()) >= 8 else jax.devices("cpu"))[:8]
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=devices)
placed = jax.device_put((xs, ys), NamedSharding(mesh, P("data")))
shared = jax.device_put(params, NamedSharding(mesh, P()))
spread = losses(shared, *placed)
print(
    "the losses:",
    spread.shape,
    "as pieces of",
    spread.addressable_shards[0].data.shape,
    "on",
    len(spread.devices()),
    "devices",
)

program = fast.lower(shared, *placed).compile().as_text()
print("the gradient of their mean, as compiled for eight devices, contains an all-reduce:", "all-reduce" in program)

# %% [markdown]
# You asked for a mean over a batch that lies on eight devices; the compiler put in the communication that this takes. Lessons 16 to 21 are about asking for the right one, and this course's checks read it off the program as you just did.
#
# ## From Python to the chip
# ![Five steps from left to right. Your Python function runs once with tracers in place of arrays, which gives a jaxpr, a list of primitive operations; grad and vmap rewrite jaxprs. It is lowered to StableHLO, a portable program. XLA compiles that: it merges operations and lays out memory, and partitions it when the data lies on several devices. The result runs on CPU, GPU or TPU, and Python no longer takes part.](../images/start_here_path.svg)
#
# Each step can be looked at. The **jaxpr** is what JAX understood when it ran your function once:

# %%
print(jax.make_jaxpr(loss)(params, xs[0], ys[0]))

# %% [markdown]
# **StableHLO** is the same as a portable program for compilers; **HLO** after compilation shows what was merged:

# %%
lowered = jax.jit(loss).lower(params, xs[0], ys[0])
stable, compiled = lowered.as_text(), lowered.compile().as_text()
print(
    "StableHLO:",
    stable.count("stablehlo."),
    "operations, for example",
    next(line.strip() for line in stable.split("\n") if "tanh" in line),
)
print("compiled: ", compiled.count(" fusion("), "merged groups of operations")

# %% [markdown]
# **XLA** ("accelerated linear algebra") is that compiler. It began in TensorFlow and is now developed in the open as OpenXLA; PyTorch reaches it too. What it is good at follows from what it sees: a whole program with known shapes. So it can merge operations, plan memory before it runs, and cut a program into pieces for thousands of chips. What it asks in return is the theme of part I: functions without side effects, shapes that do not depend on values, and a little patience on the first call.
#
# **The name**: "just after execution". Python runs your function once, to watch what it does, and the compiled program comes just after that ([Frostig, Johnson and Leary, 2018](https://mlsys.org/Conferences/doc/2018/146.pdf)).
#
# **Who uses it**: Gemini and its predecessors at Google were trained with it; AlphaFold 2 and 3 are published as JAX code, as is xAI's Grok-1; AXLearn is Apple's training library on top of it; Brax and MuJoCo's MJX simulate robots with it, JAX MD molecules, and NumPyro and BlackJAX sample posteriors. Most of them came for the same three things: derivatives of any function, one program for many chips, and speed without writing kernels.
#
# ## Where it runs
#
# | you have | you install | state |
# |---|---|---|
# | any computer with Linux, macOS on Apple silicon, or Windows | `pip install jax` | supported; on Windows this course wants WSL2 |
# | an NVIDIA GPU, Linux | `pip install "jax[cuda13]"`, or `cuda12` for older drivers | supported; in WSL2 experimental |
# | an AMD GPU, Linux | `pip install "jax[rocm7-local]"`, with ROCm installed | supported |
# | a Google Cloud TPU | `pip install "jax[tpu]"` on its virtual machine | supported |
# | a GPU of Apple's or Intel's | a plugin of the maker's | experimental |
#
# The maker's page is [docs.jax.dev](https://docs.jax.dev/en/latest/installation.html). For this course `make setup` has installed everything. The same notebooks run on all of these; where they need eight devices and there are fewer, they simulate them.

# %%
print(f"{len(jax.devices())} x {jax.devices()[0].device_kind}, by way of {jax.default_backend()}")

# %% [markdown]
# ## Who else is there
# JAX itself holds arrays and transformations. Models, optimizers, data and checkpoints are libraries, and they mix, because all of them speak pytrees of arrays.
#
# ![A map with JAX, its arrays and transformations, in the middle, and libraries around it by what they are for. Models: Flax NNX, Equinox and Keras 3 are active, Haiku and Linen maintained, Trax, Objax and Elegy retired. Optimization: Optax and Optimistix, JAXopt retired. Data and checkpoints: Grain and Orbax. Learning to act: Gymnax, RLax and Brax maintained, Coax retired. Science: Diffrax, Lineax, JAX MD, NumPyro, BlackJAX; Jraph retired. Tests, types, clusters: Chex, jaxtyping, mpi4jax.](../images/start_here_map.svg)
#
# | library | for | latest release | state, as of November 2026 |
# |---|---|---|---|
# | [Flax](https://flax.readthedocs.io) | models: NNX now, Linen in older code | 2026-10 | active; NNX is what this course teaches (10) |
# | [Equinox](https://docs.kidger.site/equinox) | models as plain pytrees | 2026-05 | active |
# | [Keras 3](https://keras.io) | models, on JAX, PyTorch or TensorFlow | 2026-07 | active |
# | [Haiku](https://github.com/google-deepmind/dm-haiku) | models | 2026-07 | in maintenance: it is kept working, and points newcomers to Flax |
# | [Optax](https://optax.readthedocs.io) | gradient transformations, losses, schedules | 2026-03 | active (09) |
# | [JAXopt](https://github.com/google/jaxopt) | optimization, implicit differentiation | 2025-04 | retired: parts went to Optax; Optimistix solves the rest |
# | [Optimistix](https://docs.kidger.site/optimistix), [Lineax](https://docs.kidger.site/lineax), [Diffrax](https://docs.kidger.site/diffrax) | root finding and least squares, linear solvers, differential equations | 2026-02 to 05 | active |
# | [Orbax](https://orbax.readthedocs.io) | checkpoints, sharded and asynchronous | 2026-10 | active (24) |
# | [Grain](https://google-grain.readthedocs.io) | data loading | 2026-06 | active (11) |
# | [Chex](https://github.com/google-deepmind/chex), [jaxtyping](https://docs.kidger.site/jaxtyping) | testing; shapes in annotations | 2026-06 | active |
# | [RLax](https://github.com/google-deepmind/rlax), [Gymnax](https://github.com/RobertTLange/gymnax) | reinforcement learning: losses; environments | 2026-06, 2026-10 | maintained |
# | [Brax](https://github.com/google/brax) | physics of rigid bodies | 2026-03 | its training code is maintained; for physics it points to MuJoCo's MJX |
# | [JAX MD](https://github.com/jax-md/jax-md) | molecular dynamics | 2026-06 | active |
# | [NumPyro](https://num.pyro.ai), [BlackJAX](https://blackjax-devs.github.io/blackjax) | probabilistic programming, samplers | 2026-09, 2026-10 | active |
# | [mpi4jax](https://mpi4jax.readthedocs.io) | MPI inside jitted code | 2026-09 | maintained |
# | [Jraph](https://github.com/google-deepmind/jraph) | graph networks | 2022-08 | retired |
# | [Coax](https://github.com/coax-dev/coax), [Objax](https://github.com/google/objax), [Elegy](https://github.com/poets-ai/elegy), [Trax](https://github.com/google/trax) | reinforcement learning; models | 2023, 2023, 2022, 2021 | retired: good reading, no ground to build on |
#
# Dates are of the newest release on the Python Package Index. A library without one for two years has not followed JAX's changes.
#
# ## How this course works
# Each lesson begins with a question that somebody had, asks you to **predict** before a cell runs, and shows the result beside your prediction. Then come its **exercises**: a function to write, checks under it that say what is missing, three hints, and hidden checks that the last cell runs, as `grader check 05_vmap` does in a terminal. Some checks read the *program* that JAX made of your function: how many loops, which communication, how many bytes on each device.
#
# The map fills as your notebooks are graded (run the cell again), and so does `grader progress`, in a terminal.

# %%
import grader.learning

grader.learning.course_map()

# %% [markdown]
# Start with 01 if you are new to JAX, with 03 if you know NumPy well and have seen a tracer, with 16 if you train on one device and want more.
#
# | | lesson | what it is about |
# |---|---|---|
# | **I** | **Thinking in JAX** | |
# | 00 | [start_here](00_start_here.ipynb) | this page |
# | 01 | [arrays](01_arrays.ipynb) | jnp beside NumPy, immutability, dtypes, honest timing |
# | 02 | [tracing](02_tracing.ipynb) | what Python runs when, jaxprs, StableHLO, leaked tracers |
# | 03 | [jit](03_jit.ipynb) | when it compiles and when not, static arguments, donation |
# | 04 | [grad](04_grad.ipynb) | derivatives of every order, custom rules, gradients that are finite |
# | 05 | [vmap](05_vmap.ipynb) | from one example to a batch, grids, per-example gradients |
# | 06 | [pytrees](06_pytrees.ipynb) | map, flatten, paths, your own node types |
# | 07 | [randomness](07_randomness.ipynb) | keys as data, streams that resume, keys under vmap and jit |
# | 08 | [control_flow](08_control_flow.ipynb) | cond, while_loop and scan under jit and grad |
# | **II** | **Models and training** | |
# | 09 | [training](09_training.ipynb) | optax from pure functions up, schedules, accumulation |
# | 10 | [nnx](10_nnx.ipynb) | modules, state, split and merge, modes |
# | 11 | [mnist](11_mnist.ipynb) | loaders that feed JAX, a residual CNN, evaluation |
# | 12 | from_pytorch *(coming)* | one pipeline in PyTorch, Linen, NNX and Keras |
# | 13 | debugging *(coming)* | NaNs, checkify, leaks, reading JAX's errors |
# | 14 | [profiling](14_profiling.ipynb) | traces, cost and memory analysis, compiling ahead |
# | 15 | memory_and_precision *(coming)* | remat, offload, bf16, loss scaling |
# | **III** | **Many devices** | |
# | 16 | [sharding](16_sharding.ipynb) | meshes, shardings, the five collectives |
# | 17 | explicit_sharding *(coming)* | sharding in types, ambiguous contractions, reshard |
# | 18 | [data_parallel](18_data_parallel.ipynb) | DP and FSDP training on eight devices, measured |
# | 19 | shard_map *(coming)* | code per device, collectives one by one |
# | 20 | tensor_parallel *(coming)* | Megatron layouts, attention heads, sequence parallelism |
# | 21 | pipelines_and_experts *(coming)* | schedules, mixture of experts, choosing a mesh |
# | **IV** | **Below and beyond** | |
# | 22 | pallas *(coming)* | kernels: refs, grids, memory, gradients around them |
# | 23 | escape_hatches *(coming)* | callbacks, and C++ through the foreign function interface |
# | 24 | production *(coming)* | checkpoints, export, several processes |
# | 25 | attention *(coming)* | masks, heads, key/value cache, sampling |
# | 26 | capstone *(coming)* | a small transformer, trained, sharded, resumed and sampled |
#
# ## Summary
#
# | you want | JAX says |
# |---|---|
# | the derivative of a function | `jax.grad(f)` |
# | the same for a batch | `jax.vmap(f)` |
# | one compiled program | `jax.jit(f)` |
# | many devices | place the data: `jax.device_put(x, sharding)` |
# | to see what became of it | `jax.make_jaxpr(f)(x)`, `jax.jit(f).lower(x).as_text()`, `.compile().as_text()` |
