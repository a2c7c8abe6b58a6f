# %% [markdown]
# # 00 · Start here
#
# *The core takes about 25 minutes. Four "Deeper" sections can be skipped. This page has no exercises.* After this page, you know what JAX does with a Python function, where it runs, and how this course works. Run each cell with Shift+Enter.
#
# **Prerequisites.** Python, NumPy, and what a gradient is.

# %%
import jax

jax.config.update("jax_num_cpu_devices", 8)  # before any other use of JAX, which then fixes its devices

import time

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import grader.learning
from grader.learning import plots
from grader.learning.inspection import print_collectives, time_ms

print("jax", jax.__version__, "on", jax.devices()[0].device_kind)

# %% [markdown]
# ## One function, three transformations
# JAX transforms functions. As an example, here is a small network and its squared error on one example. It is NumPy code except for the prefix `jnp`.


# %%
def loss(params, x, y):
    """The squared error of a small network on one example: x (64,), y () -> ()"""
    hidden = jnp.tanh(params["a"] @ x)
    return (params["b"] @ hidden - y) ** 2


rng = np.random.default_rng(0)
params = {"a": rng.normal(size=(256, 64)).astype(np.float32) / 8, "b": rng.normal(size=256).astype(np.float32) / 16}
xs, ys = rng.normal(size=(512, 64)).astype(np.float32), rng.normal(size=512).astype(np.float32)
print("loss of one example:", loss(params, xs[0], ys[0]))

# %% [markdown]
# A [transformation](../docs/glossary.md#transformation) takes a function and returns a new one. `jax.grad` returns a function that computes the [gradient](../docs/glossary.md#gradient), here the derivatives of the loss with respect to every parameter. `jax.vmap` returns a function of a whole batch.

# %%
gradient = jax.grad(loss)  # lesson 04
losses = jax.vmap(loss, in_axes=(None, 0, 0))  # lesson 05: the same params, one x and one y for each example

print("gradient:", {name: array.shape for name, array in gradient(params, xs[0], ys[0]).items()})
print("losses:  ", losses(params, xs, ys).shape)

# %% [markdown]
# The gradient has the same structure and shapes as `params`, and there is a loss for each of the 512 examples. You wrote neither a derivative nor a batch axis.
#
# Transformations can be combined. The function `step_by_step` computes the gradient of the mean loss. `jax.jit` compiles it into one program.


# %%
def mean_loss(params, xs, ys):
    return losses(params, xs, ys).mean()


step_by_step = jax.grad(mean_loss)
fast = jax.jit(step_by_step)  # lesson 03

# %% [markdown] predict="start-compiled"
# `step_by_step` runs one operation at a time, and `fast` runs one compiled program. How do their times compare?
#
# - [ ] The first call of `fast` is already faster | The first call traces and compiles, which takes longer than one call of `step_by_step`.
# - [x] The first call of `fast` is slower, later calls are faster | Right. The first call traces and compiles. Later calls run the compiled program.
# - [ ] They take the same time, because both run the same operations | `step_by_step` transforms the function again in each call, and it writes every intermediate array to memory.

# %%
jax.block_until_ready(step_by_step(params, xs, ys))  # JAX also compiles single operations at their first use
start = time.perf_counter()
jax.block_until_ready(fast(params, xs, ys))
first = 1e3 * (time.perf_counter() - start)
eager, later = time_ms(lambda: step_by_step(params, xs, ys), lambda: fast(params, xs, ys))

_, axes = plots.subplots(height=1.7)
names = ["fast, later calls", "fast, first call", "step_by_step, each call"]
bars = axes.barh(names, [later, first, eager], color=plots.COLOURS[5])
axes.bar_label(bars, fmt="%.2f ms", padding=4)
axes.set(xscale="log", xlabel="milliseconds for one call, logarithmic", xlim=(later / 3, 5 * first))
plots.show(
    f"Bars of the time of one call. step_by_step takes {eager:.2f} ms, the first call of fast {first:.2f} ms, "
    f"and later calls of fast {later:.2f} ms."
)

# %% [markdown]
# The first call of `fast` traces and compiles the function. Each later call with the same shapes and dtypes runs the compiled program only.
#
# ## The same program on eight devices
# JAX can partition a program over several [devices](../docs/glossary.md#device). Unless you have eight accelerators, this page simulates eight devices on your CPU. The function `loss` stays the same, and only its data are placed differently. The batch is partitioned along its first axis, and the parameters are [replicated](../docs/glossary.md#replicate) on every device.

# %%
# Eight devices of one kind: accelerators if there are enough, otherwise simulated devices.
devices = (jax.devices() if len(jax.devices()) >= 8 else jax.devices("cpu"))[:8]
mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=devices)
sharded_xs, sharded_ys = jax.device_put((xs, ys), NamedSharding(mesh, P("data")))
replicated = jax.device_put(params, NamedSharding(mesh, P()))

plots.show_shardings(
    {"xs": sharded_xs, 'params["a"]': replicated["a"], "losses": losses(replicated, sharded_xs, sharded_ys)},
    "The batch, a parameter, and the losses on eight devices.",
)

# %% [markdown]
# The colours and numbers are those of the devices. Each device stores a [shard](../docs/glossary.md#shard) of 64 examples and computes their losses. The gradient of the mean loss needs all examples, so the devices have to communicate.

# %%
program = fast.lower(replicated, sharded_xs, sharded_ys).compile()
print_collectives(program)

# %% [markdown]
# The compiler inserted the communication. In an [all-reduce](../docs/glossary.md#all-reduce), the devices add up their parts of the gradient, which has 16,640 elements here, one for each parameter. If you know MPI, this is `MPI_Allreduce`, but the compiler calls it for you. Part III of the course teaches how to choose shardings, and the checks of its exercises inspect compiled programs in this way.
#
# ## From Python to the chip
# JAX turns a Python function into machine code in four steps.
#
# ![Five boxes from left to right. Your Python function and its transformations are traced to a jaxpr, typed primitives, one in each line. The jaxpr is lowered to StableHLO, the portable input of a compiler, which is compiled to HLO, optimized and partitioned over the devices, and loaded as machine code for CPU, GPU or TPU, which runs without Python. The steps before the machine code happen once for each combination of shapes and dtypes, and the machine code runs in every call.](../images/start_here_path.svg)
#
# First, JAX **traces** the function. It calls the function once with [tracers](../docs/glossary.md#tracer), which stand for arrays, and records every operation. The record is a [jaxpr](../docs/glossary.md#jaxpr).

# %%
print(jax.make_jaxpr(loss)(params, xs[0], ys[0]))

# %% [markdown]
# Then JAX **lowers** the jaxpr to [StableHLO](../docs/glossary.md#stablehlo), a portable program for compilers. The compiler [XLA](../docs/glossary.md#xla) optimizes it. Among other things it combines operations into [fusions](../docs/glossary.md#fusion), so that values between them are not written to memory. The resulting machine code is loaded and runs without Python.

# %%
lowered = jax.jit(loss).lower(params, xs[0], ys[0])
stablehlo, compiled = lowered.as_text(), lowered.compile().as_text()
print("A line of StableHLO:", next(line.strip() for line in stablehlo.split("\n") if "tanh" in line))
print("Operations in StableHLO:", stablehlo.count("stablehlo."))
print("Fusions in the compiled program:", compiled.count(" fusion("))

# %% [markdown]
# XLA sees a whole program with known shapes. It can therefore fuse operations, plan memory in advance, and partition a program over thousands of chips. In return, JAX requires functions without side effects and shapes that do not depend on values. These requirements are the topic of part I.
#
# ## Where JAX runs
# JAX runs on CPUs, GPUs and TPUs. The command that installs it depends on the hardware.
#
# | hardware | command | state |
# |---|---|---|
# | a CPU with Linux, macOS (Apple silicon) or Windows | `pip install jax` | supported; on Windows, this course requires WSL 2 |
# | an NVIDIA GPU with Linux | `pip install "jax[cuda13]"`, or `cuda12` for older drivers | supported; experimental in WSL 2 |
# | an AMD GPU with Linux | `pip install "jax[rocm7-local]"`, with ROCm installed | supported; experimental in WSL 2 |
# | a Google Cloud TPU | `pip install "jax[tpu]"` on its virtual machine | supported |
# | an Apple or Intel GPU | the vendor's plugin | experimental |
#
# The [installation page](https://docs.jax.dev/en/latest/installation.html) has the details. For this course, `make setup` has already installed JAX. The notebooks run on all of this hardware, and they simulate eight devices where there are fewer.

# %%
print(f"{len(jax.devices())} x {jax.devices()[0].device_kind}, backend {jax.default_backend()}")

# %% [markdown]
# ## The ecosystem
# JAX itself provides arrays and transformations. Libraries provide models, optimizers, data loading and checkpoints. They can be combined, because all of them exchange [pytrees](../docs/glossary.md#pytree) of arrays, such as the dict `params` above.
#
# ![A map with JAX, its arrays and transformations, in the middle, and libraries around it by purpose. Models: Flax NNX, Equinox and Keras 3 are active, Haiku and Linen maintained, Trax, Objax and Elegy retired. Optimization: Optax and Optimistix are active, JAXopt retired. Data and checkpoints: Grain and Orbax. Reinforcement learning: Gymnax is active, RLax and Brax maintained, Coax retired. Science: Diffrax, Lineax, JAX MD, NumPyro and BlackJAX are active, Jraph retired. Tests, types, clusters: Chex and jaxtyping are active, mpi4jax maintained.](../images/start_here_map.svg)
#
# This course uses Flax NNX for models, Optax for optimization and Orbax for checkpoints. Batches come from NumPy or from PyTorch's loader, and lesson 11 also shows Grain. "Deeper: libraries and their releases" lists all of them.
#
# ## How this course works
# Each lesson starts from a practical question. It asks you to **predict** the result of a cell, and shows the result beside your prediction. Then you solve its **exercises**. In each exercise you write a function. The checks below it show what is wrong, and there are three hints. The last cell grades the whole notebook, including its hidden checks. In a terminal, `grader check 05_vmap` does the same.
#
# Some checks inspect the compiled *program* of your function. They count its loops, its communication, or the bytes on each device.
#
# Run this cell again later. The map shows the points of every notebook that you have graded, as `grader progress` does in a terminal.

# %%
grader.learning.course_map()

# %% [markdown]
# Choose one of three paths through the course, and take its lessons in the order of this table. Every lesson states what it requires.
#
# | path | lessons |
# |---|---|
# | I train models | 00 to 11, 13 to 15, 25, 27 |
# | I scale models | 00 to 09, 14, 15, 25, 16 to 21, 24, 26 |
# | I do science with gradients | 00 to 09, 12 to 17, 22, 28 |
#
# At the end of a lesson, return to this table for the next one. If you train models, continue with the core of 24, which explains checkpoints, and with the capstone 26. Their sections about several devices need lessons 16, 18 and 20. In 26, run these cells without reading them.
#
# If you scale models, also read *Deeper: accumulate gradients* in lesson 09, and leave *Deeper: a cache on eight devices* in lesson 25 until after lesson 20. Start with 03 if you know NumPy well and have seen a tracer. Start with 16 if you already train on one device, know attention, and want to use several devices. The [glossary](../docs/glossary.md) explains the terms.
#
# ## Summary
#
# | you want | write |
# |---|---|
# | the derivative of a function | `jax.grad(f)` |
# | the same function for a batch | `jax.vmap(f)` |
# | one compiled program | `jax.jit(f)` |
# | to use many devices | `jax.device_put(x, sharding)` for the data |
# | to inspect the program | `jax.make_jaxpr(f)(x)`, `jax.jit(f).lower(x).as_text()`, `.compile().as_text()` |

# %% [markdown]
# ## Deeper: the lessons and their topics
# The course has four parts. The picture shows what each lesson requires, and which lessons belong to the three paths.
#
# ![Lessons 00 to 08 follow each other. Below them, arrows lead from each lesson to those that build on it. Training (09) leads to NNX (10), profiling (14) and data parallelism (18). NNX leads to MNIST (11), which leads to the lesson from PyTorch (27). Profiling leads to memory and precision (15), which leads to attention (25) and, with state (12), to Pallas (22) and autodiff (28). Sharding (16) leads to explicit sharding (17), then to data parallelism (18) and shard_map (19), which leads to tensor parallelism (20), pipelines and experts (21) and escape hatches (23). Profiling and data parallelism lead to production (24). Production, attention and tensor parallelism lead to the capstone (26). State (12) and debugging (13) need only part I. Letters mark the lessons of the three paths.](../images/start_here_lessons.svg)
#
# | | lesson | topics |
# |---|---|---|
# | **I** | **Thinking in JAX** | |
# | 00 | [start_here](00_start_here.ipynb) | transformations, XLA, the ecosystem, this course |
# | 01 | [arrays](01_arrays.ipynb) | `jnp` and NumPy, immutable arrays, dtypes, timing |
# | 02 | [tracing](02_tracing.ipynb) | tracers, jaxprs, StableHLO, leaked tracers |
# | 03 | [jit](03_jit.ipynb) | compilation and its cache, static arguments, donation |
# | 04 | [grad](04_grad.ipynb) | derivatives of any order, custom rules, NaN in gradients |
# | 05 | [vmap](05_vmap.ipynb) | batches, all pairs, per-example gradients |
# | 06 | [pytrees](06_pytrees.ipynb) | map, flatten, key paths, custom nodes |
# | 07 | [randomness](07_randomness.ipynb) | keys, reproducible streams, keys under `vmap` and `jit` |
# | 08 | [control_flow](08_control_flow.ipynb) | `cond`, `while_loop` and `scan` under `jit` and `grad` |
# | **II** | **Models and training** | |
# | 09 | [training](09_training.ipynb) | Optax, schedules, gradient accumulation |
# | 10 | [nnx](10_nnx.ipynb) | modules, Variables, split and merge, training and evaluation modes |
# | 11 | [mnist](11_mnist.ipynb) | data loaders, a residual CNN, evaluation |
# | 12 | [state](12_state.ipynb) | carries and Refs, aliasing, updates in place |
# | 13 | [debugging](13_debugging.ipynb) | NaN, prints in compiled code, checkify, tracebacks |
# | 14 | [profiling](14_profiling.ipynb) | traces, cost and memory analysis, ahead-of-time compilation |
# | 15 | [memory_and_precision](15_memory_and_precision.ipynb) | rematerialization, offload, bfloat16, loss scaling |
# | **III** | **Many devices** | |
# | 16 | [sharding](16_sharding.ipynb) | meshes, shardings, collectives |
# | 17 | [explicit_sharding](17_explicit_sharding.ipynb) | shardings in types, ambiguous products, Auto islands, three modes compared |
# | 18 | [data_parallel](18_data_parallel.ipynb) | data parallelism and FSDP on eight devices |
# | 19 | [shard_map](19_shard_map.ipynb) | code for each device, collectives and what they send, gradients inside and outside |
# | 20 | [tensor_parallel](20_tensor_parallel.ipynb) | layouts for an MLP, attention heads, tokens and the vocabulary, and when they pay off |
# | 21 | [pipelines_and_experts](21_pipelines_and_experts.ipynb) | pipeline schedules, mixture of experts, choosing a mesh |
# | **IV** | **Below and beyond** | |
# | 22 | [pallas](22_pallas.ipynb) | kernels on blocks, accumulators, edges, flash attention, gradients |
# | 23 | [escape_hatches](23_escape_hatches.ipynb) | callbacks, the C++ foreign function interface, and what they cost |
# | 24 | [production](24_production.ipynb) | checkpoints, exact resumption, export, several processes |
# | 25 | [attention](25_attention.ipynb) | masks, heads, positions, key-value cache, sampling |
# | 26 | [capstone](26_capstone.ipynb) | a small transformer, trained on a poem, sharded, resumed, evaluated and sampled |
# | 27 | [from_pytorch](27_from_pytorch.ipynb) | one pipeline in PyTorch, Linen, NNX and Keras, ported weights, mistakes of people who switch; needs only lessons 00 to 11 |
# | 28 | [autodiff_inside_out](28_autodiff_inside_out.ipynb) | VJP objects, separate forward and backward programs, gradients added in place, rules of your own, delayed reductions |
#
# ## Deeper: libraries and their releases
# The table lists the libraries of the map with their latest releases on the Python Package Index. A library without a release for two years probably does not work with the current JAX.
#
# | library | for | latest release | state in November 2026 |
# |---|---|---|---|
# | [Flax](https://flax.readthedocs.io) | models (NNX, and Linen in older code) | 2026-10 | active; lesson 10 teaches NNX |
# | [Equinox](https://docs.kidger.site/equinox) | models as plain pytrees | 2026-05 | active |
# | [Keras 3](https://keras.io) | models, on JAX, PyTorch or TensorFlow | 2026-07 | active |
# | [Haiku](https://github.com/google-deepmind/dm-haiku) | models | 2026-07 | maintained; recommends Flax for new projects |
# | [Optax](https://optax.readthedocs.io) | gradient transformations, losses, schedules | 2026-03 | active; lesson 09 |
# | [JAXopt](https://github.com/google/jaxopt) | optimization, implicit differentiation | 2025-04 | retired; Optax and Optimistix replace it |
# | [Optimistix](https://docs.kidger.site/optimistix), [Lineax](https://docs.kidger.site/lineax), [Diffrax](https://docs.kidger.site/diffrax) | root finding and least squares, linear solvers, differential equations | 2026-02 to 05 | active |
# | [Orbax](https://orbax.readthedocs.io) | checkpoints, sharded and asynchronous | 2026-10 | active; lesson 24 |
# | [Grain](https://google-grain.readthedocs.io) | data loading | 2026-06 | active; lesson 11 |
# | [Chex](https://github.com/google-deepmind/chex), [jaxtyping](https://docs.kidger.site/jaxtyping) | tests; shapes in type annotations | 2026-06 | active |
# | [RLax](https://github.com/google-deepmind/rlax), [Gymnax](https://github.com/RobertTLange/gymnax) | losses and environments of reinforcement learning | 2026-06, 2026-10 | RLax maintained, Gymnax active |
# | [Brax](https://github.com/google/brax) | rigid-body physics, reinforcement learning | 2026-03 | training code maintained; recommends MuJoCo's MJX for physics |
# | [JAX MD](https://github.com/jax-md/jax-md) | molecular dynamics | 2026-06 | active |
# | [NumPyro](https://num.pyro.ai), [BlackJAX](https://blackjax-devs.github.io/blackjax) | probabilistic programming; samplers | 2026-09, 2026-10 | active |
# | [mpi4jax](https://mpi4jax.readthedocs.io) | MPI inside jitted code | 2026-09 | maintained |
# | [Jraph](https://github.com/google-deepmind/jraph) | graph neural networks | 2022-08 | retired |
# | [Coax](https://github.com/coax-dev/coax), [Objax](https://github.com/google/objax), [Elegy](https://github.com/poets-ai/elegy), [Trax](https://github.com/google/trax) | reinforcement learning; models | 2023, 2023, 2022, 2021 | retired |
#
# ## Deeper: XLA, the name and the users of JAX
# **XLA** is short for "accelerated linear algebra". It began as a part of TensorFlow and is now developed as the open-source project OpenXLA. PyTorch can use it too.
#
# **JAX** is short for "just after execution". Python executes your function once for JAX to observe, and the compiled program runs just after that ([Frostig, Johnson and Leary, 2018](https://mlsys.org/Conferences/doc/2018/146.pdf)).
#
# **Users.** Google trains its Gemini models with JAX. AlphaFold 2, AlphaFold 3 and xAI's Grok-1 are published as JAX code. AXLearn is Apple's training library for JAX. Brax and MuJoCo's MJX simulate robots, and JAX MD simulates molecules. NumPyro and BlackJAX sample from posterior distributions.

# %% [markdown]
# ## Deeper: take part in a workshop
# In a workshop, the instructor's board shows which exercises everyone works on. Run this cell, and enter the address and the code from the projector. Without a name, the board draws one. With the same call in an exercise notebook, you can also share an answer.

# %%
grader.learning.workshop()
