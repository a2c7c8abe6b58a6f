# %% [markdown]
# # 21 · Exercises: pipelines and experts
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices. JAX determines its devices only once, when it is first used. If the setup fails, restart the kernel and run the setup first. If there are at least eight accelerators, the cells use them. Otherwise they use eight simulated CPU devices.
#
# All meshes have Explicit axes. The setup sets no mesh. **Each check enters its own mesh with `jax.set_mesh`**, so your code can use a bare `P` and omit `mesh=`. Call `jax.shard_map` inside your function, because the checks use meshes of several sizes. Types are written as JAX prints them, so `float32[n@stage,d]` is an array of shape (n, d) whose first axis is partitioned along `stage`.
#
# The checks count the **elements** that a collective returns on one device, because a compiler may merge several collectives into one operation. For a collective in a loop, they count each iteration if the compiled program states the number of iterations.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, program, require
from grader.checks.devices import entries_of

devices.start(8)  # before JAX is first used

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# By default, accelerators may multiply float32 matrices in lower precision. The checks need full precision.
jax.config.update("jax_default_matmul_precision", "highest")


def grid(*sizes, names=("stage", "data")):
    """A mesh with Explicit axes, such as grid(4, 2) or grid(8, names=("expert",))."""
    return devices.mesh(sizes, names, explicit=True)


def place(mesh, tree, *entries):
    """A tree of NumPy arrays on the mesh, each with the spec P(*entries)."""
    return jax.tree.map(lambda array: jax.device_put(array, NamedSharding(mesh, P(*entries))), tree)


def iterations(one):
    """How often a collective runs in one call. Infinite if its loop does not state this, except on TPUs, where it never does."""
    return one.times or (1 if jax.default_backend() == "tpu" else math.inf)


def received(made, *kinds, in_loop=None):
    """The elements that the collectives of these kinds (all kinds if none is given) return on one device in one call of
    a program."""
    found = [one for one in made.collectives if not kinds or one.kind in kinds]
    return sum(one.elements * iterations(one) for one in found if in_loop is None or one.in_loop == in_loop)


def block(params, x):
    """A residual block, used as the stage of a pipeline: {"w1": (d, h), "b1": (h,), "w2": (h, d)}, x (b, d) -> (b, d)"""
    return x + jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def expert_mlp(params, x):
    """One expert: {"w1": (d, h), "b1": (h,), "w2": (h, d), "b2": (d,)}, x (n, d) -> (n, d)"""
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def stacked(rng, count, width, hidden, **more):
    """NumPy float32 parameters of `count` blocks, stacked along axis 0. `more` adds leaves by their shapes."""
    shapes = {"w1": (width, hidden), "b1": (hidden,), "w2": (hidden, width), **more}
    return {k: (rng.normal(size=(count, *s)) / math.sqrt(s[0])).astype(np.float32) for k, s in shapes.items()}


# %% [markdown] task="pipeline-stage-of-layer" stars=1 minutes=8 skills="16_sharding"
# ## Which stage has which layer?
# **Goal.** Distribute the layers of a network over the stages of a pipeline. One line is missing.
#
# **Signature.** `stage_of_layer(layers, stages)` takes two Python ints, with `layers >= stages`. It returns an integer array of shape `(layers,)` with the stage of each layer. Stage 0 has the first layers, stage 1 the next ones, and so on. If the number of layers is not divisible by the number of stages, the first stages have one layer more than the others.
#
# **Example.** `stage_of_layer(10, 4)` is `[0 0 0 1 1 1 2 2 3 3]`.
#
# **Judged.** The values. **Not judged.** Which integer dtype the result has, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# What is the least number of layers that a stage has? How many layers are then left?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `divmod(10, 4)` is `(2, 2)`. Two stages have 2 + 1 layers, and the others have 2.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `sizes` is a list with one int for each stage. It is `least + 1` for the first `left` stages and `least` for the others.
#
# </details>


# %% answer="pipeline-stage-of-layer"
def stage_of_layer(layers, stages):
    """Two ints -> int array (layers,): the stage of each layer."""
    least, left = divmod(layers, stages)
    ### BEGIN SOLUTION
    sizes = [least + 1 if stage < left else least for stage in range(stages)]
    ### END SOLUTION
    return np.repeat(np.arange(stages), sizes)


# %% check="pipeline-stage-of-layer" name="example" points=1
"""The example, and eight layers on four stages."""
for layers, stages, wanted in ((10, 4, [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]), (8, 4, [0, 0, 1, 1, 2, 2, 3, 3])):
    got = np.asarray(ask(stage_of_layer, layers, stages))
    require(got.dtype.kind in "iu", "The stages are not integers.")
    compare(got.astype(np.int32), np.array(wanted, np.int32), label="the stages")

# %% hidden="pipeline-stage-of-layer" name="values" points=2
"""Right for other numbers of layers and stages."""
rng = inputs.rng()
for stages, left, words in (
    (7, 3, "when three stages have a layer more"),
    (int(rng.integers(5, 9)), 1, "when one stage has a layer more"),
    (int(rng.integers(4, 9)), 0, "when all stages have the same number of layers"),
):
    layers = stages * int(rng.integers(2, 4)) + left
    count = lambda stage, each=layers // stages, left=left: each + (stage < left)
    wanted = [stage for stage in range(stages) for _ in range(count(stage))]
    with case(words):
        got = np.asarray(ask(stage_of_layer, layers, stages))
        require(got.dtype.kind in "iu", "the stages are not integers.")
        require(got.shape == (layers,), "the result does not have one entry for each layer.")
        require(np.all(np.diff(got) >= 0), "the layers of a stage are not consecutive.")
        require(got.max() < stages, "a layer belongs to a stage that does not exist.")
        sizes = np.bincount(got, minlength=stages)
        require(np.all(sizes > 0), "a stage has no layer.")
        require(sizes.max() - sizes.min() <= 1, "the numbers of layers of the stages differ by more than one.")
        compare(got.astype(np.int32), np.array(wanted, np.int32), label="the stages")
with case("when each stage has one layer"):
    compare(np.asarray(ask(stage_of_layer, 7, 7)).astype(np.int32), np.arange(7, dtype=np.int32), label="the stages")

# %% [markdown] why="pipeline-stage-of-layer"
# If the layers of each stage are consecutive, an activation is sent only once for each boundary between stages. All stages wait for the slowest one, so the stages should have equally many layers, or differ by at most one. **Next:** The last stage of a language model also computes the logits and the loss. How would you distribute the layers then?


# %% wrong="pipeline-stage-of-layer" because="Rounds the proportional position down, so the larger stages are spread over the pipeline and are not the first."
def stage_of_layer(layers, stages):
    return np.arange(layers) * stages // layers


# %% wrong="pipeline-stage-of-layer" because="Assigns the layers in turn, so every activation is sent after every layer."
def stage_of_layer(layers, stages):
    return np.arange(layers) % stages


# %% wrong="pipeline-stage-of-layer" because="Divides by the smallest number of layers. If the division has a remainder, the last layers belong to a stage that does not exist."
def stage_of_layer(layers, stages):
    return np.arange(layers) // (layers // stages)


# %% wrong="pipeline-stage-of-layer" because="Fills each stage with the largest number of layers, so the last stage has too few or none."
def stage_of_layer(layers, stages):
    return np.arange(layers) // -(-layers // stages)


# %% wrong="pipeline-stage-of-layer" because="Gives the remaining layers to the last stages instead of the first."
def stage_of_layer(layers, stages):
    least, left = divmod(layers, stages)
    sizes = [least + (stage >= stages - left) for stage in range(stages)]
    return np.repeat(np.arange(stages), sizes)


# %% wrong="pipeline-stage-of-layer" because="Gives all remaining layers to the last stage, which then sets the pace for the whole pipeline."
def stage_of_layer(layers, stages):
    return np.minimum(np.arange(layers) // (layers // stages), stages - 1)


# %% wrong="pipeline-stage-of-layer" because="Drops the remaining layers."
def stage_of_layer(layers, stages):
    return np.repeat(np.arange(stages), layers // stages)


# %% wrong="pipeline-stage-of-layer" because="Gives a layer too many to one stage, because it compares with `<=`."
def stage_of_layer(layers, stages):
    least, left = divmod(layers, stages)
    sizes = [least + 1 if stage <= left else least for stage in range(stages)]
    return np.repeat(np.arange(stages), sizes)[:layers]


# %% right="pipeline-stage-of-layer"
def stage_of_layer(layers, stages):
    parts = np.array_split(np.arange(layers), stages)
    return jnp.array([stage for stage, part in enumerate(parts) for _ in part])


# %% right="pipeline-stage-of-layer"
def stage_of_layer(layers, stages):
    layer, (least, left) = np.arange(layers), divmod(layers, stages)
    return np.maximum(layer // (least + 1), (layer - left) // least)


# %% [markdown] task="pipeline-bubble" stars=2 minutes=15 skills="pipeline-stage-of-layer"
# ## The bubble of unequal stages
# **Goal.** Compute the bubble of a pipeline whose stages take different times, as a fraction of the time of a step.
#
# **Signature.** `bubble(forward, backward, micro_batches)` takes two float32 arrays of shape `(S,)` and a Python int. The arrays contain the times of the forward pass and of the backward pass of one micro-batch, for each of S stages. The function returns a float32 scalar: the sum of the idle times of all stages, divided by S times the time of the step.
#
# The schedule is that of GPipe. A stage starts the forward pass of a micro-batch as soon as it has finished the previous micro-batch and the stage before it has finished this micro-batch. When the last stage has finished all forward passes, the backward passes start. They follow the same rule, from the last stage to the first. The step ends when stage 0 has finished the last backward pass. Sending takes no time.
#
# **Example.** For `forward = [1, 1]`, `backward = [2, 2]` and three micro-batches, the forward passes end at 4 and the step ends at 12. Each stage works for 9 of these 12 units of time, so the result is 0.25. For `forward = [3, 1]` and `backward = [2, 4]`, the forward passes end at 10 and the step ends at 24. The two stages together work for 30 of 2 · 24 units of time, so the result is 0.375.
#
# **Judged.** The values, to a relative precision of 1e-5. **Not judged.** How you compute them.
#
# <details><summary>Hint 1 · a question</summary>
#
# Suppose that one stage is much slower than the others. How much time passes between two micro-batches that leave the last stage?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The first micro-batch leaves the last stage after the sum of the times of all stages. The time between two later micro-batches is the time of the *slowest* stage.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The forward passes take `forward.sum() + (M - 1) * forward.max()`. For the backward passes, replace `forward` by `backward`. The working times of all stages add up to `M * (forward.sum() + backward.sum())`.
#
# </details>


# %% answer="pipeline-bubble"
def bubble(forward, backward, micro_batches):
    """forward (S,), backward (S,), int -> (): the idle fraction of a GPipe schedule."""
    ### BEGIN SOLUTION
    passes = lambda times: times.sum() + (micro_batches - 1) * times.max()
    step = passes(forward) + passes(backward)
    busy = micro_batches * (forward.sum() + backward.sum())
    return 1 - busy / (len(forward) * step)
    ### END SOLUTION


# %% check="pipeline-bubble" name="example" points=1
"""The examples, and four equal stages with one micro-batch."""
for forward, backward, count, wanted, words in (
    ([1, 1], [2, 2], 3, 0.25, "of two equal stages"),
    ([3, 1], [2, 4], 3, 0.375, "of two unequal stages"),
    ([1] * 4, [2] * 4, 1, 0.75, "of four stages with one micro-batch"),
):
    got = ask(bubble, np.array(forward, np.float32), np.array(backward, np.float32), count)
    compare(np.float32(got), np.float32(wanted), label=f"the idle fraction {words}", rtol=1e-5)

# %% hidden="pipeline-bubble" name="values" points=3
"""Right for equal and unequal stages, compared with a simulation."""


def simulated(forward, backward, count):
    """The idle fraction of a schedule that is played through, one micro-batch after the other."""
    clock = np.zeros(len(forward))
    for times, order in ((forward, range(len(forward))), (backward, reversed(range(len(forward))))):
        order, clock = list(order), np.full(len(forward), clock.max())
        for _ in range(count):
            arrived = 0.0
            for stage in order:
                clock[stage] = arrived = max(clock[stage], arrived) + times[stage]
    return 1 - count * (forward.sum() + backward.sum()) / (len(forward) * clock.max())


rng = inputs.rng()
stages = int(rng.integers(5, 9))
ones, uneven = np.ones(stages, np.float32), rng.uniform(1, 2, size=(2, stages)).astype(np.float32)
uneven[0, 1], uneven[1, 3] = 4, 7  # the slowest stages of the two passes differ
for forward, backward, count, words in (
    (ones, 2 * ones, int(rng.integers(4, 20)), "when all stages are equal"),
    (uneven[0], uneven[1], int(rng.integers(4, 20)), "when the stages differ"),
    (uneven[0], uneven[1], 1, "with one micro-batch"),
    (ones[:1], uneven[0, 1:2], 5, "with one stage"),
):
    with case(words):
        got, wanted = ask(bubble, forward, backward, count), simulated(forward.astype(float), backward, count)
        compare(np.float32(got), np.float32(wanted), label="the idle fraction", rtol=1e-5, atol=1e-6)

# %% [markdown] why="pipeline-bubble"
# If all stages are equal, the result is (S - 1) / (M + S - 1), independent of the times of a forward and a backward pass. With unequal stages, the idle fraction does not approach 0 as M grows, because all stages wait for the slowest. **Next:** What is the idle fraction for very many micro-batches, as a function of the mean and the maximum of the times?


# %% wrong="pipeline-bubble" because="Uses the formula for equal stages, although the slowest stage sets the pace."
def bubble(forward, backward, micro_batches):
    stages = len(forward)
    return (stages - 1) / (micro_batches + stages - 1)


# %% wrong="pipeline-bubble" because="Divides the idle time by the busy time and not by the time of the whole step."
def bubble(forward, backward, micro_batches):
    passes = lambda times: times.sum() + (micro_batches - 1) * times.max()
    busy = micro_batches * (forward.sum() + backward.sum())
    return len(forward) * (passes(forward) + passes(backward)) / busy - 1


# %% wrong="pipeline-bubble" because="Returns the busy fraction instead of the idle fraction."
def bubble(forward, backward, micro_batches):
    passes = lambda times: times.sum() + (micro_batches - 1) * times.max()
    busy = micro_batches * (forward.sum() + backward.sum())
    return busy / (len(forward) * (passes(forward) + passes(backward)))


# %% wrong="pipeline-bubble" because="Takes the mean time of the stages as their pace, but all stages wait for the slowest."
def bubble(forward, backward, micro_batches):
    passes = lambda times: times.sum() + (micro_batches - 1) * times.mean()
    busy = micro_batches * (forward.sum() + backward.sum())
    return 1 - busy / (len(forward) * (passes(forward) + passes(backward)))


# %% wrong="pipeline-bubble" because="Adds the two passes of each stage first. The slowest stage of the forward passes need not be that of the backward passes."
def bubble(forward, backward, micro_batches):
    both = forward + backward
    step = both.sum() + (micro_batches - 1) * both.max()
    return 1 - micro_batches * both.sum() / (len(both) * step)


# %% wrong="pipeline-bubble" because="Counts all micro-batches after the first one, which has already passed through the pipeline."
def bubble(forward, backward, micro_batches):
    passes = lambda times: times.sum() + micro_batches * times.max()
    busy = micro_batches * (forward.sum() + backward.sum())
    return 1 - busy / (len(forward) * (passes(forward) + passes(backward)))


# %% wrong="pipeline-bubble" because="Lets the last stage set the pace instead of the slowest."
def bubble(forward, backward, micro_batches):
    passes = lambda times: times.sum() + (micro_batches - 1) * times[-1]
    busy = micro_batches * (forward.sum() + backward.sum())
    return 1 - busy / (len(forward) * (passes(forward) + passes(backward)))


# %% wrong="pipeline-bubble" because="Ignores the backward passes."
def bubble(forward, backward, micro_batches):
    step = forward.sum() + (micro_batches - 1) * forward.max()
    return 1 - micro_batches * forward.sum() / (len(forward) * step)


# %% wrong="pipeline-bubble" because="Assumes that one micro-batch occupies the whole pipeline at a time."
def bubble(forward, backward, micro_batches):
    return 1 - 1 / len(forward)


# %% wrong="pipeline-bubble" because="Returns the idle fraction of the slowest stage instead of the mean over all stages."
def bubble(forward, backward, micro_batches):
    forward, backward = jnp.asarray(forward), jnp.asarray(backward)
    phase = lambda times: times.sum() + (micro_batches - 1) * times.max()
    busy = micro_batches * jnp.max(forward + backward)
    return 1 - busy / (phase(forward) + phase(backward))


# %% wrong="pipeline-bubble" because="Counts only the filling and the emptying of the pipeline. A fast stage also waits for the slowest between two micro-batches."
def bubble(forward, backward, micro_batches):
    forward, backward = jnp.asarray(forward), jnp.asarray(backward)
    fill = forward.sum() - forward.max() + backward.sum() - backward.max()
    return fill / (fill + micro_batches * (forward.max() + backward.max()))


# %% right="pipeline-bubble"
def bubble(forward, backward, micro_batches):
    def play(times):
        def one(clock, _):
            def stage(arrived, own):
                done = jnp.maximum(arrived, own[0]) + own[1]
                return done, done

            return jax.lax.scan(stage, jnp.float32(0), (clock, times))[1], None

        return jax.lax.scan(one, jnp.zeros(len(times)), length=micro_batches)[0][-1]

    forward, backward = jnp.asarray(forward), jnp.asarray(backward)[::-1]
    step = play(forward) + play(backward)
    return jnp.mean(1 - micro_batches * (forward + backward[::-1]) / step)


# %% right="pipeline-bubble"
def bubble(forward, backward, micro_batches):
    step = sum(float(np.sum(t) + (micro_batches - 1) * np.max(t)) for t in (forward, backward))
    idle = [step - micro_batches * float(f + b) for f, b in zip(forward, backward, strict=True)]
    return sum(idle) / step / len(idle)


# %% [markdown] task="pipeline-interleaved" stars=3 minutes=40 skills="pipeline-stage-of-layer,shardmap-ring-all-reduce,shardmap-gradient-inside,08_control_flow"
# ## An interleaved pipeline
# *Needs: Deeper: an interleaved schedule.*
#
# **Goal.** In the core of the lesson, a micro-batch visits each device once. Now each device has V stages, and a micro-batch visits it V times. The results must equal those of the stages applied one after the other on one device. The backward pass must not communicate more than necessary.
#
# **Signature.** `interleaved(stage, params, xs)` runs on a mesh with the axes `stage` (size S) and `data` (size D). `params` is a tree with leaves `float32[V,S@stage,...]`. Entry `[v, s]` contains the parameters of stage v · S + s, which device s applies on visit v. `xs` is a `float32[M,B@data,d]` with M micro-batches, and M is a multiple of S. `stage(p, x)` applies one stage to one micro-batch, where `p` has the leaves of one entry. The result of a stage has the shape of `x`. The function returns the results of the last stage, a `float32[M,B@data,d]`. Use `jax.shard_map`.
#
# The micro-batches are processed in groups of S. A group makes all its visits before the next group enters. The table shows two devices with V = 2 and M = 4. An entry `2, visit 1` means that the device applies its stage of visit 1 to micro-batch 2.
#
# | iteration | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
# |---|---|---|---|---|---|---|---|---|---|
# | device 0 | 0, visit 0 | 1, visit 0 | 0, visit 1 | 1, visit 1 | 2, visit 0 | 3, visit 0 | 2, visit 1 | 3, visit 1 | idle |
# | device 1 | idle | 0, visit 0 | 1, visit 0 | 0, visit 1 | 1, visit 1 | 2, visit 0 | 3, visit 0 | 2, visit 1 | 3, visit 1 |
#
# **Example.** On two by two devices, with `stage = lambda p, x: 2 * x + p["b"]`, `b = [[0, 1], [2, 3]]` and two micro-batches, x = 1 becomes 2, 5, 12 and 27, and x = 0 becomes 0, 1, 4 and 11.
#
# **Judged.** The values and the type, and the gradients with respect to `params` and `xs`. The compiled program contains exactly one permute. This permute is in a loop of at most V · M + S - 1 iterations and sends the results of one micro-batch. All other collectives are outside of loops. Together they return at most M · B / D · d elements on each device. In the program of the gradients, the loops contain no collectives except permutes. **Not judged.** What the stages compute in the bubble, and stages that return NaN for zeros.
#
# <details><summary>Hint 1 · a question</summary>
#
# In the table, device s does in iteration t what device 0 does in iteration t - s. How do you compute the group, the visit and the place in the group from t - s, V and S? When does device 0 read from `xs`, and what does it use otherwise?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jnp.divmod(t - me, V * S)` is the group and the iteration within the group, and a second `divmod` of this iteration by S gives the visit and the place. The last device sends to device 0, so the permute is a ring. In iteration t, device 0 receives what the last device computed in iteration t - 1. Is this the micro-batch that it needs?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Start from the scan of the lesson, with V · M + S - 1 iterations. Cast the parameters `leaf[:, 0]` to varying along `data` before the loop, and select `leaf[visit]` inside it. From iteration S - 1 on, the last device has the results of all groups and visits. Reshape them to (M / S, V, S, ...) and select the last visit. Replace the results of the other devices by zeros, and `psum` along `stage`.
#
# </details>


# %% answer="pipeline-interleaved" timeout=20
def interleaved(stage, params, xs):
    """stage(p, x), params with leaves float32[V,S@stage,...], xs float32[M,B@data,d] -> float32[M,B@data,d]."""
    ### BEGIN SOLUTION

    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)
    ### END SOLUTION


# %% check="pipeline-interleaved" name="example" points=1
"""The example, and eight micro-batches that visit four devices twice."""


def probe_doubling(params, xs):
    return jax.jit(lambda *arrays: interleaved(lambda p, x: 2 * x + p["b"], *arrays))(params, xs)


def probe_blocks(params, xs):
    return jax.jit(lambda *arrays: interleaved(block, *arrays))(params, xs)


def one_by_one(params, xs):
    for v in range(len(params["b1"])):
        for s in range(len(params["b1"][v])):
            xs = xs + np.tanh(xs @ params["w1"][v, s] + params["b1"][v, s]) @ params["w2"][v, s]
    return xs


mesh, rng = grid(2, 2), inputs.rng()
with jax.set_mesh(mesh):
    b = place(mesh, {"b": np.arange(4, dtype=np.float32).reshape(2, 2)}, None, "stage")
    two = np.repeat(np.float32([1, 0]), 2).reshape(2, 2, 1)
    result = ask(probe_doubling, b, place(mesh, two, None, "data"))
compare(result, np.repeat(np.float32([27, 11]), 2).reshape(2, 2, 1), label="the example")
mesh, params = grid(4, 2), stacked(rng, 8, 3, 5)
params = jax.tree.map(lambda leaf: leaf.reshape(2, 4, *leaf.shape[1:]), params)
xs = rng.normal(size=(8, 6, 3)).astype(np.float32)
with jax.set_mesh(mesh):
    result = ask(probe_blocks, place(mesh, params, None, "stage"), place(mesh, xs, None, "data"))
compare(result, one_by_one(params, xs), label="the results of eight micro-batches", rtol=1e-4, atol=1e-5)
require(entries_of(result) == (None, "data", None), "The result is not partitioned by its examples along data alone.")

# %% hidden="pipeline-interleaved" name="program" points=3
"""Right for other numbers of devices, visits and micro-batches, with one permute in a loop."""


def probe_pipeline(params, xs):
    return interleaved(block, params, xs)


def in_numpy(params, xs):
    first, bias, second = (params[name].reshape(-1, *params[name].shape[2:]) for name in ("w1", "b1", "w2"))
    for index in range(len(bias)):
        xs = xs + np.tanh(xs @ first[index] + bias[index]) @ second[index]
    return xs


rng = inputs.rng()
for (stages, copies), visits, groups, words in (
    ((4, 2), 2, 2, "with two visits of four devices"),
    ((2, 3), 3, int(rng.integers(2, 4)), "with three visits of two devices"),
    ((3, 2), 1, 2, "with one visit"),
):
    mesh, width, count = grid(stages, copies), int(rng.integers(3, 7)), stages * groups
    params, rows = stacked(rng, visits * stages, width, 7), copies * int(rng.integers(2, 5))
    params = {k: leaf.reshape(visits, stages, *leaf.shape[1:]) for k, leaf in params.items()}
    xs = rng.normal(size=(count, rows, width)).astype(np.float32)
    with case(words), jax.set_mesh(mesh):
        arrays = place(mesh, params, None, "stage"), place(mesh, xs, None, "data")
        made = program(probe_pipeline, *arrays)
        compare(made.run(*arrays), in_numpy(params, xs), label="the result", rtol=1e-4, atol=1e-5)
        require(entries_of(made.outputs) == (None, "data", None), "the result is not partitioned along data alone.")
        moves = [one for one in made.collectives if one.kind == "collective-permute"]
        require(len(moves) > 0, "the program has no permute.")
        require(all(one.in_loop for one in moves), "a permute is outside of the loop.")
        require(len(moves) == 1, "the program has more than one permute.")
        require(
            moves[0].elements == rows // copies * width,
            "the permute does not send the results of one micro-batch.",
        )
        require(
            iterations(moves[0]) <= visits * count + stages - 1,
            "the loop has more than V M + S - 1 iterations. A micro-batch should start its next visit as soon as it arrives.",
        )
        require(
            received(made, in_loop=True) == received(made, "collective-permute"),
            "a loop contains a collective that is not a permute.",
        )
        require(
            received(made, in_loop=False) <= xs.size // copies,
            "the collectives outside of the loop return more elements than the result has on one device.",
        )

# %% hidden="pipeline-interleaved" name="gradients" points=3
"""The gradients are right, and their program communicates nothing except permutes in its loops."""


def probe_gradients(params, xs, weights):
    return jax.grad(lambda params, xs: jnp.sum(weights * interleaved(block, params, xs)), argnums=(0, 1))(params, xs)


def on_one(params, xs, weights):
    def total(params, xs):
        for v, s in np.ndindex(params["b1"].shape[:2]):
            xs = jax.vmap(functools.partial(block, jax.tree.map(lambda leaf: leaf[v, s], params)))(xs)
        return jnp.sum(weights * xs)

    return jax.tree.map(np.asarray, jax.grad(total, argnums=(0, 1))(params, jnp.asarray(xs)))


rng = inputs.rng()
for (stages, copies), visits, words in (((4, 2), 2, "on four by two devices"), ((2, 3), 3, "on two by three")):
    mesh, width, count = grid(stages, copies), int(rng.integers(3, 6)), 2 * stages
    params, shape = stacked(rng, visits * stages, width, 5), (count, 2 * copies, width)
    params = {k: leaf.reshape(visits, stages, *leaf.shape[1:]) for k, leaf in params.items()}
    xs, weights = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    wanted = on_one(jax.tree.map(jnp.asarray, params), xs, weights)
    with case(words), jax.set_mesh(mesh):
        arrays = place(mesh, params, None, "stage"), *(place(mesh, array, None, "data") for array in (xs, weights))
        made = program(probe_gradients, *arrays)
        compare(made.run(*arrays), wanted, label="the gradient", rtol=1e-4, atol=1e-4)
        require(
            received(made, in_loop=True) == received(made, "collective-permute", in_loop=True),
            "a loop in the program of the gradients contains a collective that is not a permute. Cast the parameters before the loop.",
        )

# %% [markdown] why="pipeline-interleaved"
# A micro-batch returns to device 0 after S iterations, when all S micro-batches of its group have entered. So no device waits between the visits, and only the S - 1 iterations at the ends belong to the bubble. The transpose of the ring permute is a ring in the opposite direction, so `jax.grad` derives an interleaved backward pipeline. **Next:** The forward pass stores the residuals of all iterations. Which function of lesson 15 would you apply to `stage`, and what does it cost?


# %% equivalent="pipeline-interleaved" because="The stages return finite values, also for zeros, and a product with False is then 0."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
# product for where, where(X, Y, 0) -> X * Y: return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")


# %% equivalent="pipeline-interleaved" because="All micro-batches have the same shape."
# off by one, 0 -> 1: _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))


# %% equivalent="pipeline-interleaved" because="The shard has one entry along this axis, and JAX clips the index."
# off by one, 0 -> 1: mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)


# %% wrong="pipeline-interleaved" because="Does not cast the parameters before the loop, so their gradients are all-reduced along `data` in every iteration."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: leaf[:, 0], params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Stops after V M iterations, when the last micro-batches are still in the pipeline."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count))
        ys = ys.reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Returns the results of the first V M iterations. The last device needs S - 1 iterations before it has the first micro-batch."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[: visits * count].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Selects the stage from the iteration alone, so all devices change to their next stage at the same time. Device s is s iterations behind device 0."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[t // n % visits], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Does not close the ring, so device 0 receives zeros after the first visit."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, i + 1) for i in range(n - 1)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Device 0 reads a micro-batch in every iteration, also for the later visits."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where(me == 0, xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Lets all micro-batches make their first visit before the second. If there are more micro-batches than devices, they return before device 0 expects them."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            visit, place = jnp.divmod(t - me, count)
            x = jnp.where((me == 0) & (visit == 0), xs[place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :][-count:]
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Returns the results of the first visit instead of the last one."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, 0].reshape(xs.shape)
        return jax.lax.psum(jnp.where(me == n - 1, ys, 0), "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Adds the results of all devices, although only those of the last device are results of the network."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = ys[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])[:, -1].reshape(xs.shape)
        return jax.lax.psum(ys, "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Adds the results of all iterations over the devices, and selects those of the last visit only afterwards."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        visits, count = len(jax.tree.leaves(params)[0]), len(xs)
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            group, rest = jnp.divmod(t - me, visits * n)
            visit, place = jnp.divmod(rest, n)
            x = jnp.where((me == 0) & (visit == 0), xs[group * n + place], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            last = jnp.where(me == n - 1, y, 0)
            return jax.lax.ppermute(y, "stage", [(i, (i + 1) % n) for i in range(n)]), last

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(visits * count + n - 1))
        ys = jax.lax.psum(ys, "stage")[n - 1 :].reshape(-1, visits, n, *xs.shape[1:])
        return ys[:, -1].reshape(xs.shape)

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Runs a whole pipeline for each visit, so the devices are idle at the ends of each of them."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
        mine = jax.tree.map(lambda leaf: jax.lax.pcast(leaf[:, 0], "data", to="varying"), params)

        def visit(xs, p):
            xs = jax.lax.pcast(xs, "stage", to="varying")

            def iteration(arrived, t):
                y = stage(p, jnp.where(me == 0, xs[t], arrived))
                return jax.lax.ppermute(y, "stage", [(i, i + 1) for i in range(n - 1)]), y

            _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(len(xs) + n - 1))
            return jax.lax.psum(jnp.where(me == n - 1, ys[n - 1 :], 0), "stage"), None

        return jax.lax.scan(visit, xs, mine)[0]

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% wrong="pipeline-interleaved" because="Gathers the parameters of all stages, so each device computes the whole network."
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        def gather(leaf):
            every = jax.lax.all_gather(leaf, "stage", axis=1, tiled=True, to="invarying")
            return every.reshape(-1, *every.shape[2:])

        apply = lambda x, p: (jax.vmap(functools.partial(stage, p))(x), None)
        return jax.lax.scan(apply, xs, jax.lax.pcast(jax.tree.map(gather, params), "data", to="varying"))[0]

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% right="pipeline-interleaved"
def interleaved(stage, params, xs):
    def on_one_device(params, xs):
        n, me, count = jax.lax.axis_size("stage"), jax.lax.axis_index("stage"), xs.shape[0]
        mine = jax.lax.pcast(jax.tree.map(lambda leaf: jnp.squeeze(leaf, 1), params), "data", to="varying")
        visits = jax.tree.leaves(mine)[0].shape[0]
        xs = jax.lax.pcast(xs, "stage", to="varying")
        ring = [(i, (i + 1) % n) for i in range(n)]

        def iteration(t, state):
            arrived, results = state
            k = jnp.clip(t - me, 0, visits * count - 1)
            visit, micro_batch = k // n % visits, k // (visits * n) * n + k % n
            x = jax.lax.select((me == 0) & (visit == 0), xs[micro_batch], arrived)
            y = stage(jax.tree.map(lambda leaf: leaf[visit], mine), x)
            done = (me == n - 1) & (visit == visits - 1) & (t >= me)
            return jax.lax.ppermute(y, "stage", ring), jnp.where(done, results.at[micro_batch].set(y), results)

        start = jnp.zeros_like(xs[0]), jnp.zeros_like(xs)
        return jax.lax.psum(jax.lax.fori_loop(0, visits * count + n - 1, iteration, start)[1], "stage")

    specs = P(None, "stage"), P(None, "data")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=P(None, "data"))(params, xs)


# %% right="pipeline-interleaved"
def interleaved(stage, params, xs):
    S, V, M = jax.sharding.get_abstract_mesh().shape["stage"], len(jax.tree.leaves(params)[0]), len(xs)
    plan = [(g * S + j, v) for g in range(M // S) for v in range(V) for j in range(S)]  # micro-batch and visit
    plan = [(0, 0)] * (S - 1) + plan + [(0, 0)] * (S - 1)
    micro_batch, visit = (jnp.array(column) for column in zip(*plan, strict=True))
    ends = jnp.array([t for t, (m, v) in enumerate(plan) if v == V - 1 and S - 1 <= t < V * M + S - 1])

    def pipeline(params, xs):
        me = jax.lax.axis_index("stage")
        params = jax.lax.pcast(jax.tree.map(lambda leaf: leaf[:, 0], params), "data", to="varying")
        xs = jax.lax.pcast(xs, "stage", to="varying")

        def iteration(y, t):
            arrived = jax.lax.ppermute(y, "stage", [(i, (i + 1) % S) for i in range(S)])
            k = t - me + S - 1
            fresh = (me == 0) & (visit[k] == 0)
            y = stage(jax.tree.map(lambda leaf: leaf[visit[k]], params), jnp.where(fresh, xs[micro_batch[k]], arrived))
            return y, y

        _, ys = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(V * M + S - 1))
        return jax.lax.psum(ys[ends] * (me == S - 1), "stage")

    mapped = jax.shard_map(pipeline, in_specs=(P(None, "stage"), P(None, "data")), out_specs=P(None, "data"))
    return jax.jit(mapped)(params, xs)


# %% [markdown] task="moe-balance" stars=2 minutes=15 skills="shardmap-psum-matmul,shardmap-batch-norm"
# ## A loss that balances experts
# **Goal.** Compute an auxiliary loss that encourages a router to use all experts equally. The batch is partitioned over devices.
#
# **Signature.** `balance_loss(logits, axis)` is the code of one device. `logits` is a float32 array of shape `(T, E)`, the router's logits for the T tokens of this device, and `axis` is the name of the mesh axis that partitions the tokens. The result is the float32 scalar E · Σₑ fₑ · pₑ, which is equal on all devices. Here fₑ is the fraction of the tokens of **all** devices whose largest logit is that of expert e. The probabilities of a token are the softmax of its logits, and pₑ is the mean probability of expert e over the tokens of all devices.
#
# **Example.** Two devices have one token each, and there are two experts. With the logits [0, 20] and [20, 0], each expert receives half of the tokens, and the result is 2 · (½ · ½ + ½ · ½) = 1. If both tokens have the logits [0, 20], the result is 2. If both have the logits [0, log 3], the probabilities are ¼ and ¾, but expert 1 still receives all tokens, so the result is 2 · (0 · ¼ + 1 · ¾) = 1.5.
#
# **Judged.** The values, and the gradient with respect to the logits. The all-reduces of the compiled program return at most 2 E + 2 elements on each device, and it has no other collectives. The mesh may have another axis, along which everything is replicated. **Not judged.** Ties between logits, and the number of all-reduces.
#
# <details><summary>Hint 1 · a question</summary>
#
# In the example, what is the loss of each device alone? Is the mean of these losses the loss of the whole batch?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The loss contains products of means, so average over all tokens *before* you multiply. Which collective averages over devices?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.nn.one_hot(logits.argmax(-1), E).mean(0)` is f for this device, and `jax.nn.softmax(logits).mean(0)` is p. Apply `jax.lax.pmean` to both.
#
# </details>


# %% answer="moe-balance" timeout=20
def balance_loss(logits, axis):
    """Code of one device: logits (T, E), name of a mesh axis -> (), E times the sum of f * p."""
    ### BEGIN SOLUTION
    experts = logits.shape[1]
    chosen = jax.nn.one_hot(logits.argmax(-1), experts)
    probabilities = jax.nn.softmax(logits)
    f, p = jax.lax.pmean((chosen.mean(0), probabilities.mean(0)), axis)
    return experts * jnp.sum(f * p)
    ### END SOLUTION


# %% check="moe-balance" name="example" points=1
"""The examples."""


def probe_loss(logits):
    return jax.jit(jax.shard_map(lambda v: balance_loss(v, "data"), in_specs=P("data"), out_specs=P()))(logits)


mesh = grid(2, names=("data",))
for rows, wanted, words in (
    ([[0, 20], [20, 0]], 1, "of two different tokens"),
    ([[0, 20], [0, 20]], 2, "of equal tokens"),
    ([[0, math.log(3)], [0, math.log(3)]], 1.5, "of probabilities 1/4 and 3/4"),
):
    with jax.set_mesh(mesh):
        result = ask(probe_loss, place(mesh, np.array(rows, np.float32), "data"))
    compare(result, np.float32(wanted), label=f"the loss {words}", atol=1e-4)

# %% hidden="moe-balance" name="program" points=2
"""Right for other tokens and meshes, with at most 2 E + 2 elements all-reduced."""


def probe_program(logits, axis):
    return jax.shard_map(lambda v: balance_loss(v, axis), in_specs=P(axis), out_specs=P())(logits)


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


rng = inputs.rng()
for mesh, axis, words in (
    (grid(8, names=("data",)), "data", "on eight devices"),
    (grid(2, 3, names=("copies", "rows")), "rows", "if another mesh axis replicates everything"),
):
    experts, tokens = int(rng.integers(3, 8)), 5 * mesh.shape[axis]
    shift = np.repeat(rng.normal(size=(mesh.shape[axis], experts)), 5, axis=0)  # the devices prefer different experts
    logits = (2 * shift + rng.normal(size=(tokens, experts))).astype(np.float32)
    f = np.bincount(logits.argmax(1), minlength=experts) / tokens
    with case(words), jax.set_mesh(mesh):
        placed = place(mesh, logits, axis)
        made = program(probe_program, placed, axis)
        wanted = experts * np.sum(f * softmax(logits.astype(np.float64)).mean(0))
        compare(made.run(placed, axis), np.float32(wanted), label="the loss", rtol=1e-4)
        require(
            received(made) == received(made, "all-reduce"),
            "the program has collectives other than all-reduces.",
        )
        require(received(made) <= 2 * experts + 2, "the all-reduces return more than 2 E + 2 elements.")

# %% hidden="moe-balance" name="gradient" points=2
"""The gradient with respect to the logits is right."""


def probe_gradient(logits):
    loss = jax.shard_map(lambda v: balance_loss(v, "rows"), in_specs=P("rows"), out_specs=P())
    return jax.jit(jax.grad(loss))(logits)


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


mesh, rng = grid(4, names=("rows",)), inputs.rng()
experts = int(rng.choice((3, 5, 6, 7)))  # not the number of devices
logits = rng.normal(size=(12, experts)).astype(np.float32)
f, p = np.bincount(logits.argmax(1), minlength=experts) / 12, softmax(logits.astype(np.float64))
wanted = experts / 12 * p * (f - (p @ f)[:, None])
with jax.set_mesh(mesh):
    got = ask(probe_gradient, place(mesh, logits, "rows"))
compare(got, wanted.astype(np.float32), label="the gradient", rtol=1e-4, atol=1e-6)

# %% [markdown] why="moe-balance"
# The fractions f come from counts, whose derivative is zero, so f acts as a weight of p. A step along the negative gradient moves probability away from the experts that have many tokens. If all experts receive equally many tokens, the loss is 1. **Next:** What is the largest possible loss with E experts, and when does it occur?


# %% wrong="moe-balance" because="Averages the losses of the devices. The mean of products is not the product of the means."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    f, p = jax.nn.one_hot(logits.argmax(-1), experts).mean(0), jax.nn.softmax(logits).mean(0)
    return jax.lax.pmean(experts * jnp.sum(f * p), axis)


# %% wrong="moe-balance" because="Adds the means of the devices with `psum` instead of averaging them."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    f, p = jax.nn.one_hot(logits.argmax(-1), experts).mean(0), jax.nn.softmax(logits).mean(0)
    f, p = jax.lax.psum((f, p), axis)
    return experts * jnp.sum(f * p)


# %% wrong="moe-balance" because="Multiplies the choices and the probabilities of each token before it averages. This rewards uncertain routers, but does not balance the experts."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    product = jax.nn.one_hot(logits.argmax(-1), experts) * jax.nn.softmax(logits)
    return experts * jax.lax.pmean(product.mean(0), axis).sum()


# %% wrong="moe-balance" because="Omits the factor E, so the loss of balanced experts depends on how many there are."
def balance_loss(logits, axis):
    f, p = jax.nn.one_hot(logits.argmax(-1), logits.shape[1]).mean(0), jax.nn.softmax(logits).mean(0)
    f, p = jax.lax.pmean((f, p), axis)
    return jnp.sum(f * p)


# %% wrong="moe-balance" because="Uses the probabilities in place of the fractions, so it balances the mean probabilities and not the numbers of tokens."
def balance_loss(logits, axis):
    p = jax.lax.pmean(jax.nn.softmax(logits).mean(0), axis)
    return logits.shape[1] * jnp.sum(p * p)


# %% wrong="moe-balance" because="Uses the fractions in place of the probabilities. Counts have no gradient, so the loss trains nothing."
def balance_loss(logits, axis):
    f = jax.lax.pmean(jax.nn.one_hot(logits.argmax(-1), logits.shape[1]).mean(0), axis)
    return logits.shape[1] * jnp.sum(f * f)


# %% wrong="moe-balance" because="Stops the gradient of the probabilities, which are the only part that has one."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    f, p = jax.nn.one_hot(logits.argmax(-1), experts).mean(0), jax.nn.softmax(logits).mean(0)
    f, p = jax.lax.pmean((f, p), axis)
    return experts * jnp.sum(jax.lax.stop_gradient(p) * f)


# %% wrong="moe-balance" because="Gathers the logits of all tokens on every device."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    logits = jax.lax.all_gather(logits, axis, tiled=True, to="invarying")
    f, p = jax.nn.one_hot(logits.argmax(-1), experts).mean(0), jax.nn.softmax(logits).mean(0)
    return experts * jnp.sum(f * p)


# %% wrong="moe-balance" because="Takes the softmax over the tokens instead of over the experts."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    f, p = jax.nn.one_hot(logits.argmax(-1), experts).mean(0), jax.nn.softmax(logits, axis=0).mean(0)
    f, p = jax.lax.pmean((f, p), axis)
    return experts * jnp.sum(f * p)


# %% wrong="moe-balance" because="Multiplies by the number of devices instead of the number of experts."
def balance_loss(logits, axis):
    f = jax.nn.one_hot(logits.argmax(-1), logits.shape[1]).mean(0)
    p = jax.nn.softmax(logits).mean(0)
    f, p = jax.lax.pmean((f, p), axis)
    return jax.lax.axis_size(axis) * jnp.sum(f * p)


# %% wrong="moe-balance" because="Uses the name `data` instead of the argument `axis`."
def balance_loss(logits, axis):
    experts = logits.shape[1]
    f = jax.nn.one_hot(logits.argmax(-1), experts).mean(0)
    f, p = jax.lax.pmean(f, "data"), jax.lax.pmean(jax.nn.softmax(logits).mean(0), "data")
    return experts * jnp.sum(f * p)


# %% right="moe-balance"
def balance_loss(logits, axis):
    tokens, experts = logits.shape
    counts = jnp.bincount(logits.argmax(-1), length=experts)
    sums = jnp.exp(logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)).sum(0)
    total = tokens * jax.lax.axis_size(axis)
    return experts * jnp.vdot(jax.lax.psum(counts, axis) / total, jax.lax.psum(sums, axis) / total)


# %% right="moe-balance"
def balance_loss(logits, axis):
    best = jnp.argmax(logits, axis=1)[:, None] == jnp.arange(logits.shape[1])
    both = jnp.stack([best.astype(jnp.float32), jax.nn.softmax(logits, axis=1)])
    f, p = jax.lax.psum(both.mean(1), axis) / jax.lax.axis_size(axis)
    return jnp.mean(f * p) * len(f) ** 2


# %% right="moe-balance"
def balance_loss(logits, axis):
    experts = logits.shape[1]
    f, p = jax.nn.one_hot(logits.argmax(-1), experts).mean(0), jax.nn.softmax(logits).mean(0)
    # One factor may be that of the device, because the mean of its products with a common factor is the product.
    return jax.lax.pmean(experts * jnp.sum(f * jax.lax.pmean(p, axis)), axis)


# %% [markdown] task="moe-dispatch" stars=3 minutes=40 skills="moe-balance,19_shard_map,05_vmap,01_arrays"
# ## Send tokens to their experts
# **Goal.** Compute a layer whose experts are stored on different devices. In the lesson, each device has one expert, and products with a mask of shape (tokens, experts, capacity) copy the rows. On a device with many tokens, these products need more operations than the experts. Now a device has one or several experts, and you copy the rows without such products.
#
# **Signature.** `moe_dispatch(expert, params, x, logits, capacity)` runs on a mesh with an axis `expert` of N devices. `params` is a tree with leaves `float32[E@expert,...]`, one entry for each of E experts, and E is a multiple of N. `x` is a `float32[T@expert,d]` of tokens, and `logits` a `float32[T@expert,E]`. `expert(p, x)` applies one expert to tokens of shape (n, d) and returns shape (n, d), where `p` has the leaves of one entry of `params`. `capacity` is a Python int.
#
# Each token chooses the expert with its largest logit. Each **device** sends at most `capacity` of its tokens to each expert. If more of its tokens choose an expert, those with the lowest indices are sent, and the others are dropped. The function returns a `float32[T@expert,d]`. The row of a dropped token is 0. The row of every other token is the result of its expert, multiplied by the *gate*. The gate is the probability of the chosen expert, by the softmax of the logits.
#
# **Example.** On two devices with two tokens each and `capacity=1`, suppose that both tokens of the first device choose expert 1. Then the second of these tokens is dropped, and its result is 0. The tokens of the second device choose the experts 1 and 0, and both are sent. Expert 1 receives one token from each device, because each device has its own places for each expert. With the tokens 1, 2, 3 and 4, `expert = lambda p, x: x + p["b"]` and `b` of 10 and 20, the experts return 21, 23 and 14 for the tokens 1, 3 and 4. The logits of each token differ by log 3, so all gates are ¾, and the results of the layer are 15.75, 0, 17.25 and 10.5.
#
# **Judged.** The values and the type, and the gradients with respect to `params`, `x` and `logits`. The compiled program contains two all-to-alls over the N devices and no other collectives. Each all-to-all returns at most E · capacity · d elements on each device. With 64 tokens on each device, the program performs at most three times as many operations as the experts alone. All iterations of a loop count, so the number of iterations must be static (`fori_loop`, `scan` or `map`). (Programs for GPUs do not state the operations of matrix products, so this is judged on CPUs and TPUs.) Checks use one and several experts on each device. **Not judged.** Ties between logits, and how you find the place of a token.
#
# <details><summary>Hint 1 · a question</summary>
#
# A buffer of shape (E, capacity, d) contains what a device sends to each expert. In which row and column of this buffer does a token belong? How many earlier tokens of the device have chosen the same expert?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The column of a token is its place, as in the lesson: the cumulative sum of the one-hot choices at its expert, minus 1. An index must be an integer, so use `jax.nn.one_hot(..., dtype=int)`. `.at[choice, place].set(x, mode="drop")` ignores places beyond the capacity, and `.at[choice, place].get(mode="fill", fill_value=0)` reads zeros there.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.lax.all_to_all(buffer, "expert", split_axis=0, concat_axis=1, tiled=True)` changes the shape from (E, capacity, d) to (E / N, N · capacity, d). The result contains the tokens of all devices for the experts of this device. Apply `jax.vmap(expert)`, and exchange the values of `split_axis` and `concat_axis` to send the results back.
#
# </details>


# %% answer="moe-dispatch" timeout=20
def moe_dispatch(expert, params, x, logits, capacity):
    """params float32[E@expert,...], x float32[T@expert,d], logits float32[T@expert,E] -> float32[T@expert,d]."""
    ### BEGIN SOLUTION

    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back.at[slot].get(mode="fill", fill_value=0)

    specs = P("expert")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=specs)(params, x, logits)
    ### END SOLUTION


# %% check="moe-dispatch" name="example" points=1
"""The example, and four devices with two experts each."""


def probe_example(params, x, logits):
    return jax.jit(lambda *arrays: moe_dispatch(lambda p, x: x + p["b"], *arrays, 1))(params, x, logits)


mesh = grid(2, names=("expert",))
params = {"b": np.array([[10.0], [20.0]], np.float32)}
tokens, logits = np.array([[1], [2], [3], [4]], np.float32), np.log(np.float32([[1, 3], [1, 3], [1, 3], [3, 1]]))
with jax.set_mesh(mesh):
    result = ask(probe_example, *(place(mesh, tree, "expert") for tree in (params, tokens, logits)))
compare(result, np.array([[15.75], [0], [17.25], [10.5]], np.float32), label="the result of the example", rtol=1e-4)
require(entries_of(result) == ("expert", None), "The result is not partitioned by its tokens along expert.")


def probe_network(params, x, logits):
    return jax.jit(lambda *arrays: moe_dispatch(expert_mlp, *arrays, 3))(params, x, logits)


mesh, rng = grid(4, names=("expert",)), inputs.rng()
params, x = stacked(rng, 8, 4, 5, b2=(4,)), rng.normal(size=(24, 4)).astype(np.float32)
logits, wanted = rng.normal(size=(24, 8)).astype(np.float32), np.zeros((24, 4), np.float32)
logits[::6, 5] = logits[1::6, 5] = logits[2::6, 5] = 5  # four of the six tokens of each device choose expert 5
logits[3::6, 5] = 9  # with the largest gate
for token, row in enumerate(logits):
    e, earlier = row.argmax(), logits[token // 6 * 6 : token].argmax(1)
    if np.sum(earlier == e) < 3:  # the capacity
        hidden = np.tanh(x[token] @ params["w1"][e] + params["b1"][e])
        wanted[token] = np.exp(row[e]) / np.exp(row).sum() * (hidden @ params["w2"][e] + params["b2"][e])
with jax.set_mesh(mesh):
    result = ask(probe_network, *(place(mesh, tree, "expert") for tree in (params, x, logits)))
compare(result, wanted, label="the result of eight experts on four devices", rtol=1e-4, atol=1e-5)

# %% hidden="moe-dispatch" name="program" points=3
"""Right if tokens are dropped, with two all-to-alls of the sent tokens."""


def probe_layer(params, x, logits, capacity):
    return moe_dispatch(expert_mlp, params, x, logits, capacity)


def routed(params, x, logits, capacity, n):
    """The result in NumPy, and how many tokens are dropped."""
    result, dropped, used = np.zeros(x.shape), 0, np.zeros((n, logits.shape[1]), int)
    for token, row in enumerate(logits.astype(np.float64)):
        e, device = row.argmax(), token // (len(x) // n)
        used[device, e] += 1
        if used[device, e] > capacity:
            dropped += 1
            continue
        hidden = np.tanh(x[token] @ params["w1"][e] + params["b1"][e])
        gate = 1 / np.exp(row - row.max()).sum()
        result[token] = gate * (hidden @ params["w2"][e] + params["b2"][e])
    return result.astype(np.float32), dropped


rng = inputs.rng()
for n, each, tokens, capacity, words in (
    (4, 1, 10, 2, "with one expert on each device"),
    (2, 3, 11, 3, "with three experts on each device"),
    (3, 2, 8, 20, "if the capacity exceeds the number of tokens"),
):
    mesh, experts, width = grid(n, names=("expert",)), n * each, int(rng.integers(3, 6))
    params, x = stacked(rng, experts, width, 5, b2=(width,)), rng.normal(size=(n * tokens, width)).astype(np.float32)
    logits = rng.normal(size=(n * tokens, experts)).astype(np.float32)
    busy = rng.permutation(tokens)[: capacity + 2]  # more than an expert receives, on the last device
    logits[(n - 1) * tokens + busy, int(rng.integers(experts))] += rng.uniform(4, 5, size=len(busy)).astype(np.float32)
    wanted, dropped = routed(params, x, logits, capacity, n)
    with case(words), jax.set_mesh(mesh):
        arrays = [place(mesh, tree, "expert") for tree in (params, x, logits)]
        made = program(probe_layer, *arrays, capacity)
        compare(made.run(*arrays, capacity), wanted, label="the result", rtol=1e-4, atol=1e-5)
        require(entries_of(made.outputs) == ("expert", None), "the result is not partitioned along expert.")
        require(
            {one.kind for one in made.collectives} == {"all-to-all"} and len(made.collectives) == 2,
            "the program should have exactly two collectives, both all-to-alls.",
        )
        require(
            all(one.elements <= experts * capacity * width for one in made.collectives),
            "an all-to-all returns more than E x capacity x d elements on each device.",
        )
        require(all(one.group_size == n for one in made.collectives), "an all-to-all is not over all devices.")

# %% hidden="moe-dispatch" name="gradients" points=2
"""The gradients with respect to the parameters, the tokens and the logits are right."""


def probe_gradients(params, x, logits, weights):
    total = lambda *arrays: jnp.sum(weights * moe_dispatch(expert_mlp, *arrays, 2))
    return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(params, x, logits)


def on_one(params, x, logits, weights, keep):
    def total(params, x, logits):
        of_all = jax.vmap(expert_mlp, in_axes=(0, None), out_axes=1)(params, x)  # (tokens, experts, width)
        best = jnp.argmax(logits, -1)[:, None]
        chosen = jnp.take_along_axis(of_all, best[:, :, None], axis=1)[:, 0]
        gate = jnp.take_along_axis(jax.nn.softmax(logits), best, axis=1)
        return jnp.sum(weights * keep[:, None] * gate * chosen)

    return jax.tree.map(np.asarray, jax.grad(total, argnums=(0, 1, 2))(params, x, logits))


rng, mesh = inputs.rng(), grid(4, names=("expert",))
params, shape = stacked(rng, 8, 3, 4, b2=(3,)), (4 * 9, 3)
x, weights = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
logits = rng.normal(size=(4 * 9, 8)).astype(np.float32)
logits[:4, 1] += 4  # the first device has more tokens for an expert than it may send
choice = logits.argmax(1).reshape(4, 9)
keep = np.array([[np.sum(row[:i] == row[i]) < 2 for i in range(9)] for row in choice]).ravel()
wanted = on_one(*jax.tree.map(jnp.asarray, (params, x, logits, weights, keep)))
with jax.set_mesh(mesh):
    got = ask(probe_gradients, *(place(mesh, tree, "expert") for tree in (params, x, logits, weights)))
compare(got, wanted, label="the gradient", rtol=1e-4, atol=1e-4)

# %% hidden="moe-dispatch" name="work" points=1
"""With 64 tokens on each device, the experts do at least a third of the work."""


def probe_many_tokens(params, x, logits, capacity):
    with jax.disable_jit():  # loops run in Python, so the program contains the operations of each iteration
        return moe_dispatch(expert_mlp, params, x, logits, capacity)


rng, mesh = inputs.rng(), grid(4, names=("expert",))
tokens, experts, width, hidden, capacity = 4 * 64, 8, 16, 8, 16
params, x = stacked(rng, experts, width, hidden, b2=(width,)), rng.normal(size=(tokens, width)).astype(np.float32)
choice = np.concatenate([rng.permutation(64) % experts for _ in range(4)])  # each expert gets 8 tokens of each device
logits = (3 * np.eye(experts)[choice]).astype(np.float32)
gate = np.exp(3) / (np.exp(3) + experts - 1)
wanted = np.zeros((tokens, width), np.float32)
for e in range(experts):
    rows = np.tanh(x[choice == e] @ params["w1"][e] + params["b1"][e])
    wanted[choice == e] = gate * (rows @ params["w2"][e] + params["b2"][e])
with jax.set_mesh(mesh):
    arrays = [place(mesh, tree, "expert") for tree in (params, x, logits)]
    made = program(probe_many_tokens, *arrays, capacity)
    compare(made.run(*arrays, capacity), wanted, label="the result", rtol=1e-4, atol=1e-5)
require(made.loops == 0, "The program has a loop whose number of iterations is not static, such as a `while_loop`.")
needed = 4 * experts * capacity * width * hidden  # two products for each of the rows that a device receives
if made.flops:
    require(
        made.flops <= 3 * needed,
        f"The program performs {made.flops / needed:.0f} times as many operations as the experts. The limit is 3 times. "
        "Copy the rows by their indices, without products with a mask.",
    )

# %% [markdown] why="moe-dispatch"
# A product with a mask multiplies every token by every place of the buffer. Copying by indices touches each token once. Shapes in a compiled program are static, so each device always sends E · capacity rows, even if some of the rows are empty. The transpose of an all-to-all is an all-to-all, so the backward pass sends gradients along the same routes in the opposite direction. The choice of an expert has no gradient, so the router is trained only through the gate. **Next:** If T tokens were distributed evenly over E experts and N devices, which capacity would suffice? How much of what you send is empty if the capacity is twice as large?


# %% equivalent="moe-dispatch" because="The array has one column here, and JAX clips the index."
# off by one, 0 -> 1: slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]


# %% equivalent="moe-dispatch" because="The task does not state how the experts of one device are applied."
# loop for vmap, jax.vmap -> python_loop: results = jax.vmap(expert)(params, arrived)


# %% wrong="moe-dispatch" because="Omits the gate, so the router receives no gradient."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        return back.at[slot].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Writes and reads tokens beyond the capacity at the last position, where they overwrite a token that is sent."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.minimum(jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0], capacity - 1)
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back.at[slot].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Reads with the default mode, which clips the position, so a dropped token receives the result of another token."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back[slot]

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Sends the tokens with the largest gates instead of those with the lowest indices."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        order = jnp.argsort(-jax.nn.softmax(logits).max(-1))
        earlier = jnp.cumsum(jax.nn.one_hot(choice[order], experts, dtype=jnp.int32), axis=0) - 1
        earlier = earlier[jnp.argsort(order)]
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back.at[slot].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Exchanges the wrong axes on the way to the experts, so tokens reach other experts than their own."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=0, tiled=True)
        arrived = arrived.reshape(len(jax.tree.leaves(params)[0]), -1, x.shape[1])
        results = jax.vmap(expert)(params, arrived).reshape(sent.shape)
        back = jax.lax.all_to_all(results, "expert", split_axis=0, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back.at[slot].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Does not send the results back, so each device combines the results of other devices' tokens."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = results.reshape(sent.shape)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back.at[slot].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Passes dropped tokens through unchanged. Their result should be 0."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        fits = slot[1][:, None] < capacity
        return jnp.where(fits, gate * back.at[slot].get(mode="fill", fill_value=0), x)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Stops the gradient of the gate, so the router learns nothing."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        choice = logits.argmax(-1)
        earlier = jnp.cumsum(jax.nn.one_hot(choice, experts, dtype=jnp.int32), axis=0) - 1
        slot = choice, jnp.take_along_axis(earlier, choice[:, None], axis=1)[:, 0]
        sent = jnp.zeros((experts, capacity, x.shape[1])).at[slot].set(x, mode="drop")
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return jax.lax.stop_gradient(gate) * back.at[slot].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Gathers the parameters of all experts and applies each expert to every token. This is the result without a capacity."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        gather = lambda leaf: jax.lax.all_gather(leaf, "expert", tiled=True)
        of_all = jax.vmap(expert, in_axes=(0, None), out_axes=1)(jax.tree.map(gather, params), x)
        chosen = jax.nn.one_hot(logits.argmax(-1), logits.shape[1])
        return jnp.einsum("ted,te->td", of_all, chosen * jax.nn.softmax(logits))

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Multiplies the token by the gate before the expert, which is not linear, instead of its result."
def moe_dispatch(expert, params, x, logits, capacity):

    def on_one_device(params, x, logits):
        E = logits.shape[1]
        choice, gate = logits.argmax(-1), jax.nn.softmax(logits).max(-1, keepdims=True)
        hot = jax.nn.one_hot(choice, E, dtype=jnp.int32)
        position = jnp.sum(jnp.cumsum(hot, 0) * hot, -1) - 1
        slots = jnp.zeros_like(x, shape=(E, capacity, x.shape[1])).at[choice, position].set(gate * x, mode="drop")
        arrived = jax.lax.all_to_all(slots, "expert", 0, 1, tiled=True)
        back = jax.lax.all_to_all(jax.vmap(expert)(params, arrived), "expert", 1, 0, tiled=True)
        return back.at[choice, position].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Assumes one expert on each device, so the others are not used."
def moe_dispatch(expert, params, x, logits, capacity):

    def on_one_device(params, x, logits):
        E = logits.shape[1]
        choice = jax.nn.one_hot(logits.argmax(-1), E)
        place = jnp.sum(jnp.cumsum(choice, axis=0) * choice, axis=-1) - 1
        route = choice[:, :, None] * jax.nn.one_hot(place, capacity)[:, None]
        sent = jnp.einsum("tec,td->ecd", route, x)
        arrived = jax.lax.all_to_all(sent, "expert", 0, 0, tiled=True)
        results = expert(jax.tree.map(lambda leaf: leaf[0], params), arrived.reshape(-1, x.shape[1]))
        back = jax.lax.all_to_all(results.reshape(arrived.shape), "expert", 0, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", route * jax.nn.softmax(logits)[:, :, None], back)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Sends a place for every token to every expert and drops tokens afterwards, so more is sent than the capacity allows."
def moe_dispatch(expert, params, x, logits, capacity):

    def on_one_device(params, x, logits):
        E, T = logits.shape[1], len(x)
        choice, gate = logits.argmax(-1), jax.nn.softmax(logits).max(-1)
        hot = jax.nn.one_hot(choice, E, dtype=jnp.int32)
        position = jnp.sum(jnp.cumsum(hot, 0) * hot, -1) - 1
        slots = jnp.zeros_like(x, shape=(E, T, x.shape[1])).at[choice, jnp.arange(T)].set(x)
        arrived = jax.lax.all_to_all(slots, "expert", 0, 1, tiled=True)
        back = jax.lax.all_to_all(jax.vmap(expert)(params, arrived), "expert", 1, 0, tiled=True)
        gate = jnp.where(position < capacity, gate, 0)
        return gate[:, None] * back[choice, jnp.arange(T)]

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Copies the rows by products with a mask, which need more operations than the experts."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        n, experts, width = jax.lax.axis_size("expert"), logits.shape[1], x.shape[1]
        chosen = jax.nn.one_hot(logits.argmax(-1), experts)
        position = (jnp.cumsum(chosen, axis=0) * chosen).sum(-1).astype(int) - 1
        routes = chosen[:, :, None] * jax.nn.one_hot(position, capacity)[:, None, :]  # zeros beyond the capacity
        sent = jnp.einsum("tec,td->ecd", routes, x).reshape(n, experts // n, capacity, width)
        arrived = jax.lax.all_to_all(sent, "expert", 0, 0)  # by source device
        ordered = arrived.swapaxes(0, 1).reshape(experts // n, n * capacity, width)
        results = jax.vmap(expert)(params, ordered).reshape(experts // n, n, capacity, width).swapaxes(0, 1)
        back = jax.lax.all_to_all(results, "expert", 0, 0).reshape(experts, capacity, width)
        gates = routes * jax.nn.softmax(logits)[:, :, None]
        return jnp.einsum("tec,ecd->td", gates, back)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% wrong="moe-dispatch" because="Copies the rows by products with a mask, one row after the other in a loop, which needs more operations than the experts."
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        experts = logits.shape[1]
        chosen = jax.nn.one_hot(logits.argmax(-1), experts)
        place = jnp.cumsum(chosen, axis=0) - 1
        mask = chosen[:, :, None] * (place[:, :, None] == jnp.arange(capacity))
        mask = mask.reshape(len(x), -1)  # (tokens, experts * capacity)
        sent = jax.lax.map(lambda row: row @ x, mask.T).reshape(experts, capacity, -1)
        arrived = jax.lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
        results = jax.vmap(expert)(params, arrived)
        back = jax.lax.all_to_all(results, "expert", split_axis=1, concat_axis=0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * jax.lax.map(lambda row: row @ back.reshape(experts * capacity, -1), mask)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% right="moe-dispatch"
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        choice, experts = logits.argmax(-1), logits.shape[1]

        def send(token, state):
            buffer, places, used = state
            e = choice[token]
            buffer = buffer.at[e, used[e]].set(x[token], mode="drop")
            return buffer, places.at[token].set(used[e]), used.at[e].add(1)

        shapes = (experts, capacity, x.shape[1]), len(x), experts
        start = tuple(map(jnp.zeros, shapes, (x.dtype, int, int)))
        start = jax.tree.map(lambda zeros: jax.lax.pcast(zeros, "expert", to="varying"), start)
        buffer, places, _ = jax.lax.fori_loop(0, len(x), send, start)
        arrived = jax.lax.all_to_all(buffer, "expert", 0, 1, tiled=True)
        results = jax.lax.map(lambda one: expert(*one), (params, arrived))
        back = jax.lax.all_to_all(results, "expert", 1, 0, tiled=True)
        gate = jax.nn.softmax(logits).max(-1, keepdims=True)
        return gate * back.at[choice, places].get(mode="fill", fill_value=0)

    return jax.shard_map(on_one_device, in_specs=P("expert"), out_specs=P("expert"))(params, x, logits)


# %% right="moe-dispatch"
def moe_dispatch(expert, params, x, logits, capacity):
    def on_one_device(params, x, logits):
        tokens, experts = logits.shape
        choice = jnp.argmax(logits, axis=1)
        order = jnp.argsort(choice, stable=True)  # tokens by expert, each expert's in order
        first = jnp.searchsorted(choice[order], jnp.arange(experts))
        rank = jnp.zeros(tokens, int).at[order].set(jnp.arange(tokens) - first[choice[order]])
        row = jnp.where(rank < capacity, choice * capacity + rank, experts * capacity)
        buffer = jnp.zeros((experts * capacity + 1, x.shape[1])).at[row].set(x)[:-1]
        exchange = functools.partial(jax.lax.all_to_all, axis_name="expert", tiled=True)
        arrived = exchange(buffer.reshape(experts, capacity, -1), split_axis=0, concat_axis=1)
        results = exchange(jax.vmap(expert)(params, arrived), split_axis=1, concat_axis=0)
        rows = jnp.pad(results.reshape(experts * capacity, -1), ((0, 1), (0, 0)))
        gate = jnp.exp(logits.max(1) - jax.nn.logsumexp(logits, axis=1))
        return rows[row] * gate[:, None]

    return jax.jit(jax.shard_map(on_one_device, out_specs=P("expert")))(params, x, logits)


# %% [markdown] task="mesh-plan" stars=2 minutes=25 skills="pipeline-bubble,18_data_parallel,14_profiling"
# ## Choose a mesh
# **Goal.** Find the fastest mesh for a model, among the meshes for which the arrays fit into the memory of each device.
#
# **Signature.** `plan_mesh(model, machine)` takes two dicts of numbers and returns a dict with the ints `data`, `tensor` and `stage`, and the float `seconds`. If no mesh satisfies rules 1 and 2, it returns `None` instead of a dict.
#
# | key of `model` | | key of `machine` | |
# |---|---|---|---|
# | `params` | parameters P | `devices` | number of devices N |
# | `layers`, `width`, `heads` | L, d and the number of attention heads | `memory` | bytes of one device |
# | `tokens` | tokens of a step, B | `flops` | floating-point operations per second of one device |
# | `micro_batches` | micro-batches M of a step | `bandwidth` | bytes per second that one device sends |
#
# **Rules.** Let D, T and S be the sizes of the axes data, tensor and stage. Arrays are sent in bfloat16, with 2 bytes per element.
#
# 1. D · T · S = N. S divides L, and T divides `heads`.
# 2. A device stores 16 P / N bytes for the parameters, gradients and optimizer state. It also stores an activation of 2 · B / D · d bytes for each of its L / S layers. The sum is at most `memory`.
# 3. Computing takes 6 P B / (N · flops) seconds, multiplied by (M + S - 1) / M for the bubble.
# 4. Along `data`, a device sends 6 · (D - 1) / D · P / (T S) bytes (FSDP gathers the parameters twice and reduce-scatters their gradients). We assume that this happens once per step. A real pipeline gathers for each micro-batch, or keeps the gathered parameters in memory.
# 5. Along `tensor`, it sends 16 · (T - 1) / T · B / D · d bytes for each of its L / S layers (four all-reduces).
# 6. Along `stage`, it sends 4 · B / D · d bytes, if S > 1.
# 7. Nothing overlaps. `seconds` is the time of rule 3 plus all sent bytes divided by `bandwidth`.
#
# **Example.** `model = dict(params=1e9, layers=4, width=1000, heads=2, tokens=1e4, micro_batches=4)` and `machine = dict(devices=2, memory=1e10, flops=1e14, bandwidth=1e10)`. With D = 2, the step takes 0.6 s, with T = 2 it takes 0.332 s, and with S = 2 it takes 0.379 s. All three meshes fit into memory. The result is `{"data": 1, "tensor": 2, "stage": 1, "seconds": 0.332}`.
#
# **Judged.** The mesh, and the seconds to a relative precision of 1e-6. **Not judged.** Ties, and how you search.
#
# <details><summary>Hint 1 · a question</summary>
#
# How many candidates are there for eight devices? Is it fast enough to try all of them?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Loop over T and S from 1 to N, skip the pairs that violate rule 1, and compute D. Skip a mesh that does not fit into memory before you compare its time.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `local = tokens / data * width` occurs in rules 2, 5 and 6. Collect pairs of the seconds and the mesh in a list, and take `min(found, default=None)`.
#
# </details>


# %% answer="mesh-plan"
def plan_mesh(model, machine):
    """Two dicts of numbers -> {"data": int, "tensor": int, "stage": int, "seconds": float} of the fastest mesh, or None."""
    ### BEGIN SOLUTION
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))
    ### END SOLUTION


# %% check="mesh-plan" name="example" points=1
"""The example, models that exclude the fastest meshes, and devices with little memory."""
model = {"params": 1e9, "layers": 4, "width": 1000, "heads": 2, "tokens": 1e4, "micro_batches": 4}
machine = {"devices": 2, "memory": 1e10, "flops": 1e14, "bandwidth": 1e10}
for changed, mesh, seconds in (
    ({}, (1, 2, 1), 0.332),
    ({"heads": 1}, (1, 1, 2), 0.379),
    ({"heads": 1, "layers": 3}, (2, 1, 1), 0.6),
):
    got = ask(plan_mesh, {**model, **changed}, machine)
    require(
        isinstance(got, dict) and set(got) == {"data", "tensor", "stage", "seconds"},
        "The result is not a dict with the four keys.",
    )
    words = "".join(f", {key} = {value}" for key, value in changed.items())
    require(
        (got["data"], got["tensor"], got["stage"]) == mesh,
        f"The mesh (of the example{words}) is {got}; expected data, tensor, stage = {mesh}.",
    )
    compare(
        np.float32(got["seconds"]),
        np.float32(seconds),
        label=f"the number of seconds (of the example{words})",
        rtol=1e-5,
    )
require(ask(plan_mesh, model, {**machine, "memory": 7e9}) is None, "Where nothing fits, the result should be None.")

# %% hidden="mesh-plan" name="values" points=3
"""Right for other models and machines, if memory, layers or heads exclude the fastest mesh."""


def candidates(model, machine, exclude=()):
    """All meshes as (seconds, bytes, (data, tensor, stage)), the fastest first."""
    n, found = machine["devices"], []
    for data in range(1, n + 1):
        for tensor in range(1, n // data + 1):
            stage, left = divmod(n, data * tensor)
            heads = "heads" not in exclude and model["heads"] % tensor
            layers = "layers" not in exclude and stage and model["layers"] % stage
            if left or heads or layers:
                continue
            activation = model["tokens"] / data * model["width"]
            mine = model["layers"] / stage
            used = 16 * model["params"] / n + 2 * activation * mine
            sent = 6 * (1 - 1 / data) * model["params"] / tensor / stage
            sent += 16 * (1 - 1 / tensor) * activation * mine + (4 * activation if stage > 1 else 0)
            compute = 6 * model["params"] * model["tokens"] / n / machine["flops"]
            seconds = compute * (1 + (stage - 1) / model["micro_batches"]) + sent / machine["bandwidth"]
            found.append((seconds, used, (data, tensor, stage)))
    return sorted(found)


def judge(model, machine):
    wanted = [one for one in candidates(model, machine) if one[1] <= machine["memory"]]
    got = ask(plan_mesh, model, machine)
    if not wanted:
        require(got is None, "the result should be None, because no mesh fits.")
        return
    require(isinstance(got, dict), "the result is not a dict, although a mesh fits.")
    require(
        tuple(got.get(name) for name in ("data", "tensor", "stage")) == wanted[0][2],
        "the mesh is not the fastest of those that fit.",
    )
    compare(np.float32(got["seconds"]), np.float32(wanted[0][0]), label="the seconds", rtol=1e-5)


rng = inputs.rng()


def drawn(tokens, **more):
    """A model and a machine with random sizes, which are close together so that the fastest mesh is not."""
    near = lambda value: value * rng.uniform(0.98, 1.02)
    model = {"params": near(6e9), "layers": 32, "width": 128 * int(rng.integers(31, 34)), "heads": 64}
    model |= {"tokens": near(tokens), "micro_batches": int(rng.integers(16, 19))}
    return model, {"devices": 64, "memory": 1e13, "flops": near(4e14), "bandwidth": near(4e10), **more}


for heads, layers, n, name in (
    (1, 1, 5, "if only data is possible"),
    (5, 1, 5, "for data or tensor"),
    (1, 5, 5, "for data or stage"),
    (1, 2, 2, "for two devices"),
):
    model, machine = drawn(500, devices=n)
    with case(name):
        judge({**model, "heads": heads, "layers": layers}, machine)
for name, tokens in (("for a large batch", 2**22), ("for a small batch", 2**16), ("for a tiny batch", 2**11)):
    with case(name):
        judge(*drawn(tokens))
model, machine = drawn(2**16)
found = candidates(model, machine)
with case("if the fastest mesh does not fit"):
    least = min(used for _, used, _ in found)
    machine["memory"] = (least + found[0][1]) / 2 if found[0][1] > least else found[0][1]
    judge(model, machine)
exact = {"params": 2**30, "layers": 8, "width": 1024, "heads": 8, "tokens": 2**16, "micro_batches": 8}
with case("if the memory is just enough"):
    judge(exact, {**machine, "devices": 8, "memory": 2**31 + 2**27})
with case("if no mesh fits"):
    judge(model, {**machine, "memory": least * 0.9})
model, machine = drawn(2**11)
with case("if the heads exclude the fastest mesh"):
    judge({**model, "heads": 3}, machine)
with case("if the layers exclude the fastest mesh"):
    judge({**model, "layers": 25, "heads": 2}, machine)
with case("for 24 devices"):
    judge({**model, "layers": 24, "heads": 48}, {**machine, "devices": 24})
with case("for an odd number of tokens"):
    few = {"params": 2e6, "layers": 1, "width": 4096, "heads": 2, "tokens": 301, "micro_batches": 8}
    judge(few, {**machine, "devices": 4, "bandwidth": 1e6})

# %% [markdown] why="mesh-plan"
# Along `data`, a device sends parameters and gradients, whose number does not depend on the batch. Along `tensor` and `stage`, it sends activations, whose number grows with the batch. So large batches favour `data`, and small ones favour `tensor` and `stage`. **Next:** In real machines, links inside a server are faster than links between servers. Which rule would you change, and which axis would you put on the fast links?


# %% equivalent="mesh-plan" because="Sizes above N do not divide N."
# off by one, 1 -> 2: for tensor, stage in np.ndindex(n + 1, n + 1):
# off by one, 1 -> 2: for tensor, stage in np.ndindex(n + 1, n + 1): (2)


# %% equivalent="mesh-plan" because="The product with a comparison is 0 or the number itself."
# where for product, X * M -> jnp.where(M, X, 0): sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)


# %% wrong="mesh-plan" because="Chooses the fastest mesh without regard to memory."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Ignores the activations when it compares with the memory."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Ignores the bubble."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"])
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Takes the idle fraction of the step as the additional time. The bubble takes (S - 1) / M of the computing time."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = (
            6 * params * model["tokens"] / (n * machine["flops"]) * (1 + (stage - 1) / (micro_batches + stage - 1))
        )
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Sends all parameters along `data`, although each device of a mesh with more axes has only P / (T S) of them."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Uses the tokens of the whole batch, although the devices along `data` divide them."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Divides the parameters by the size of `data` only, so it stores too much where other axes are larger than 1."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / data + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Allows meshes whose stages do not divide the layers."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if not tensor * stage or n % (tensor * stage) or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Tries only powers of two."
def plan_mesh(model, machine):
    params, layers, micro_batches, n = model["params"], model["layers"], model["micro_batches"], machine["devices"]
    found = []
    for tensor, stage in np.ndindex(n + 1, n + 1):
        if tensor & (tensor - 1) or stage & (stage - 1):
            continue
        if not tensor * stage or n % (tensor * stage) or layers % stage or model["heads"] % tensor:
            continue
        data = n // (tensor * stage)
        local, mine = model["tokens"] / data * model["width"], layers / stage
        computing = 6 * params * model["tokens"] / (n * machine["flops"]) * (micro_batches + stage - 1) / micro_batches
        sent = 6 * (data - 1) / data * params / (tensor * stage) + 4 * local * (stage > 1)
        sent += 16 * (tensor - 1) / tensor * local * mine
        if 16 * params / n + 2 * local * mine <= machine["memory"]:
            found.append((computing + sent / machine["bandwidth"], data, tensor, stage))
    best = min(found, default=None)
    return best and dict(zip(("seconds", "data", "tensor", "stage"), best, strict=True))


# %% wrong="mesh-plan" because="Compares only the fastest mesh with the memory, and returns `None` if it does not fit."
def plan_mesh(model, machine):
    P_, L, d, heads = model["params"], model["layers"], model["width"], model["heads"]
    B, M, N = model["tokens"], model["micro_batches"], machine["devices"]
    found = []
    for T in range(1, N + 1):
        for S in range(1, N + 1):
            if N % (T * S) or heads % T or L % S:
                continue
            D = N // (T * S)
            local = B / D * d
            compute = 6 * P_ * B / (N * machine["flops"]) * (M + S - 1) / M
            sent = 6 * (D - 1) / D * P_ / (T * S) + 16 * (T - 1) / T * local * L / S + 4 * local * (S > 1)
            found.append((compute + sent / machine["bandwidth"], D, T, S, 16 * P_ / N + 2 * local * L / S))
    seconds, D, T, S, stored = min(found)
    if stored > machine["memory"]:
        return None
    return {"data": D, "tensor": T, "stage": S, "seconds": seconds}


# %% wrong="mesh-plan" because="Counts what is sent along `tensor` for all layers, although a device has only those of its stage."
def plan_mesh(model, machine):
    P_, L, d, heads = model["params"], model["layers"], model["width"], model["heads"]
    B, M, N = model["tokens"], model["micro_batches"], machine["devices"]
    found = []
    for T in range(1, N + 1):
        for S in range(1, N + 1):
            if N % (T * S) == 0 and heads % T == 0 and L % S == 0:
                D = N // (T * S)
                local = B / D * d
                if 16 * P_ / N + 2 * local * L / S <= machine["memory"]:
                    compute = 6 * P_ * B / (N * machine["flops"]) * (M + S - 1) / M
                    sent = 6 * (D - 1) / D * P_ / (T * S) + 16 * (T - 1) / T * local * L + 4 * local * (S > 1)
                    found.append((compute + sent / machine["bandwidth"], D, T, S))
    best = min(found, default=None)
    return best and {"data": best[1], "tensor": best[2], "stage": best[3], "seconds": best[0]}


# %% wrong="mesh-plan" because="Rounds quotients down with `//`, but the tokens need not be divisible by D."
def plan_mesh(model, machine):
    P_, L, d, heads = model["params"], model["layers"], model["width"], model["heads"]
    B, M, N = model["tokens"], model["micro_batches"], machine["devices"]
    found = []
    for T in range(1, N + 1):
        for S in range(1, N // T + 1):
            D = N // T // S
            if D * T * S != N or heads % T or L % S:
                continue
            local = B // D * d
            if 16 * P_ // N + 2 * local * (L // S) <= machine["memory"]:
                compute = 6 * P_ * B / (N * machine["flops"]) * (M + S - 1) / M
                sent = 6 * P_ * (D - 1) // D // (T * S) + 16 * (T - 1) / T * local * (L // S) + 4 * local * (S > 1)
                found.append((compute + sent / machine["bandwidth"], D, T, S))
    best = min(found, default=None)
    return best and {"data": best[1], "tensor": best[2], "stage": best[3], "seconds": best[0]}


# %% wrong="mesh-plan" because="Requires less than the memory of a device, but the arrays may fill it."
def plan_mesh(model, machine):
    P_, L, d, heads = model["params"], model["layers"], model["width"], model["heads"]
    B, M, N = model["tokens"], model["micro_batches"], machine["devices"]
    found = []
    for T in range(1, N + 1):
        for S in range(1, N + 1):
            if N % (T * S) == 0 and heads % T == 0 and L % S == 0:
                D = N // (T * S)
                local = B / D * d
                if 16 * P_ / N + 2 * local * L / S < machine["memory"]:
                    compute = 6 * P_ * B / (N * machine["flops"]) * (M + S - 1) / M
                    sent = 6 * (D - 1) / D * P_ / (T * S) + 16 * (T - 1) / T * local * L / S + 4 * local * (S > 1)
                    found.append((compute + sent / machine["bandwidth"], D, T, S))
    best = min(found, default=None)
    return best and {"data": best[1], "tensor": best[2], "stage": best[3], "seconds": best[0]}


# %% right="mesh-plan"
def plan_mesh(model, machine):
    n, heads, layers = machine["devices"], model["heads"], model["layers"]
    divisors = [size for size in range(1, n + 1) if n % size == 0]
    meshes = [(n // (t * s), t, s) for t in divisors for s in divisors if n % (t * s) == 0]
    meshes = [(d, t, s) for d, t, s in meshes if layers % s == 0 and heads % t == 0]

    def stored(mesh):
        d, _, s = mesh
        return 16 * model["params"] / n + 2 * model["tokens"] * model["width"] * layers / (d * s)

    def seconds(mesh):
        d, t, s = mesh
        activation = 2 * model["tokens"] * model["width"] / d  # bytes
        along_data = 3 * (d - 1) / d * 2 * model["params"] / (t * s)
        along_tensor = layers / s * 4 * 2 * (t - 1) / t * activation
        along_stage = 2 * activation if s > 1 else 0
        busy = 6 * model["params"] * model["tokens"] / n / machine["flops"]
        bubble = busy * (s - 1) / model["micro_batches"]
        return busy + bubble + (along_data + along_tensor + along_stage) / machine["bandwidth"]

    fitting = [mesh for mesh in meshes if stored(mesh) <= machine["memory"]]
    if not fitting:
        return None
    best = min(fitting, key=seconds)
    return {"data": best[0], "tensor": best[1], "stage": best[2], "seconds": seconds(best)}


# %% right="mesh-plan"
def plan_mesh(model, machine):
    n, micro_batches = machine["devices"], model["micro_batches"]
    t, s = (axis.ravel() for axis in np.meshgrid(np.arange(1, n + 1), np.arange(1, n + 1)))
    keep = (n % (t * s) == 0) & (model["layers"] % s == 0) & (model["heads"] % t == 0)
    t, s = t[keep], s[keep]
    d = n // (t * s)
    rows, layers = model["tokens"] * model["width"] / d, model["layers"] / s
    sent = 6 * (1 - 1 / d) * model["params"] / (t * s) + 16 * (1 - 1 / t) * rows * layers + np.where(s > 1, 4 * rows, 0)
    work = 6 * model["params"] * model["tokens"] / (n * machine["flops"])
    seconds = work * (1 + (s - 1) / micro_batches) + sent / machine["bandwidth"]
    seconds[16 * model["params"] / n + 2 * rows * layers > machine["memory"]] = np.inf
    i = int(np.argmin(seconds))
    if np.isinf(seconds[i]):
        return None
    return {"data": int(d[i]), "tensor": int(t[i]), "stage": int(s[i]), "seconds": float(seconds[i])}


# %% [markdown] task="pipeline-recurrent" stars=3 minutes=30 skills="19_shard_map,08_control_flow"
# ## A recurrent network as a pipeline
# **Goal.** Run a recurrent network with many layers as a pipeline. Each device has one layer, and the time steps of the sequence take the place of the micro-batches. Unlike the stages in the lesson, a layer has a state. The state must not change before the first time step of the layer or after its last one.
#
# **Signature.** `deep_rnn(params, h0, xs)` runs on a mesh with an axis `layer` of N devices. `params` is a dict of `"a"` and `"b"`, both `float32[N@layer,d,d]`, and `"c"`, a `float32[N@layer,d]`. `h0` is a `float32[N@layer,B,d]`, the initial state of each layer, and `xs` is a `float32[T,B,d]`, which is replicated. In time step t, layer l computes `h = tanh(x @ a + h @ b + c)`, where `a`, `b` and `c` are its parameters and `h` is its state. `x` is `xs[t]` for layer 0, and the new state of layer l - 1 for the others. The function returns the states of the last layer in all time steps, a `float32[T,B,d]`, and the final states of all layers, a `float32[N@layer,B,d]`.
#
# **Example.** On two devices, with `a` = 1, `b` = 0, `c` = 0, d = 1 and one time step with x = 0.5, the states are tanh(0.5) = 0.4621 and tanh(0.4621) = 0.4318.
#
# **Judged.** The values and the types. The compiled program contains exactly one permute, which returns B · d elements, in a loop of at most T + N - 1 iterations. All other collectives are outside of loops. Together they return at most T · B · d elements. The mesh may have another axis, along which everything is replicated. **Not judged.** Gradients, and the speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# In which iteration does layer l work on time step 0, and in which iteration on time step T - 1? What happens to its state in all other iterations?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The carry has two parts, the values that were received from the layer before and the state. Layer l works on time step t - l in iteration t. Keep the old state with `jnp.where` if t - l is negative or at least T.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `active = (t >= me) & (t < me + len(xs))`. Send the new state with `jax.lax.ppermute` and also return it from the body of the scan. On the last layer, the entries from N - 1 on are the results. The final states vary along `layer`, so return `state[None]` with `P("layer")`.
#
# </details>


# %% answer="pipeline-recurrent" timeout=20
def deep_rnn(params, h0, xs):
    """params a, b float32[N@layer,d,d], c float32[N@layer,d], h0 float32[N@layer,B,d], xs float32[T,B,d]
    -> (float32[T,B,d], float32[N@layer,B,d])."""
    ### BEGIN SOLUTION

    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[t], arrived)
            active = (t >= me) & (t < me + count)
            state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)
    ### END SOLUTION


# %% check="pipeline-recurrent" name="example" points=1
"""The example, and a sequence of five time steps on eight devices."""


def probe_rnn(params, h0, xs):
    return jax.jit(deep_rnn)(params, h0, xs)


def stepped(params, h0, xs):
    state, results = list(h0), []
    for x in xs:
        for i in range(len(state)):
            state[i] = x = np.tanh(x @ params["a"][i] + state[i] @ params["b"][i] + params["c"][i])
        results.append(x)
    return np.stack(results), np.stack(state)


one = np.ones((2, 1, 1), np.float32)
params, mesh = {"a": one, "b": 0 * one, "c": 0 * one[:, 0]}, grid(2, names=("layer",))
with jax.set_mesh(mesh):
    result = ask(probe_rnn, place(mesh, params, "layer"), place(mesh, 0 * one, "layer"), place(mesh, one[:1] / 2))
wanted = np.array([[[0.46211717]]], np.float32), np.array([[[0.43181]]], np.float32)
compare(result, (wanted[1], np.concatenate(wanted)), label="the results of the example", rtol=1e-4)
mesh, rng = grid(8, names=("layer",)), inputs.rng()
params = {name: rng.normal(size=(8, 3, 3)[: 2 if name == "c" else 3]).astype(np.float32) for name in "abc"}
h0, xs = (rng.normal(size=(count, 2, 3)).astype(np.float32) for count in (8, 5))
with jax.set_mesh(mesh):
    result = ask(probe_rnn, place(mesh, params, "layer"), place(mesh, h0, "layer"), place(mesh, xs))
compare(result, stepped(params, h0, xs), label="the results of eight layers", rtol=1e-4, atol=1e-5)

# %% hidden="pipeline-recurrent" name="program" points=3
"""Right for other lengths and meshes, with one permute in a loop of at most T + N - 1 iterations."""


def in_numpy(params, h0, xs):
    """All states as a table of time steps and layers."""
    table = np.zeros((len(xs) + 1, *h0.shape))
    table[0] = h0
    for t in range(len(xs)):
        for i in range(len(h0)):
            below = table[t + 1, i - 1] if i else xs[t]
            table[t + 1, i] = np.tanh(below @ params["a"][i] + table[t, i] @ params["b"][i] + params["c"][i])
    return table[1:, -1].astype(np.float32), table[-1].astype(np.float32)


rng = inputs.rng()
for sizes, names, count, words in (
    # XLA compiles all-reduces over five or six of the eight devices of a TPU slice into a crash.
    ((4,), ("layer",), int(rng.integers(9, 14)), "with more time steps than layers"),
    ((8,), ("layer",), 2, "with fewer time steps than layers"),
    ((2, 3), ("copies", "layer"), 4, "if another mesh axis replicates everything"),
):
    mesh, rows, width = grid(*sizes, names=names), int(rng.integers(2, 5)), int(rng.integers(3, 6))
    n = mesh.shape["layer"]
    params = {name: rng.normal(size=(n, width, width)[: 2 if name == "c" else 3]).astype(np.float32) for name in "abc"}
    h0, xs = (rng.normal(size=(size, rows, width)).astype(np.float32) for size in (n, count))
    with case(words), jax.set_mesh(mesh):
        arrays = place(mesh, params, "layer"), place(mesh, h0, "layer"), place(mesh, xs)
        made = program(deep_rnn, *arrays)
        compare(made.run(*arrays), in_numpy(params, h0, xs), label="the result", rtol=1e-3, atol=1e-4)
        found = [entries_of(one) for one in made.outputs]
        require(found == [(None, None, None), ("layer", None, None)], "the results do not have the types of the task.")
        moves = [one for one in made.collectives if one.kind == "collective-permute"]
        require(len(moves) > 0, "the program has no permute.")
        require(all(one.in_loop for one in moves), "a permute is outside of the loop.")
        require(len(moves) == 1, "the program has more than one permute.")
        require(moves[0].elements == rows * width, "the permute does not return B x d elements.")
        require(iterations(moves[0]) <= count + n - 1, "the loop has more than T + N - 1 iterations.")
        require(
            received(made, in_loop=True) == received(made, "collective-permute"),
            "a loop contains a collective that is not a permute.",
        )
        require(
            received(made, in_loop=False) <= xs.size,
            "the collectives outside of the loop return more than T x B x d elements.",
        )

# %% [markdown] why="pipeline-recurrent"
# On one device, time steps and layers form a loop of T · N steps. Entries on a diagonal, where t + l is constant, do not depend on each other, so N devices compute a diagonal at once, and T + N - 1 iterations suffice. The same *wavefront* appears in sequence alignment and in stencils. **Next:** How many of the T + N - 1 iterations is each device idle? For which T is the idle fraction below 10% on eight devices?


# %% equivalent="pipeline-recurrent" because="The shards have one entry, and JAX clips the index."
# off by one, 0 -> 1: a, b, c = (params[name][0] for name in "abc")
# off by one, 0 -> 1: (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
# off by one, 0 -> 1: (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1)) (2)


# %% equivalent="pipeline-recurrent" because="All values are finite, so a product with False is 0."
# product for where, where(X, E, F) -> X * E + (1 - X) * F: x = jnp.where(me == 0, xs[t], arrived)
# product for where, where(X, E, F) -> X * E + (1 - X) * F: state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
# product for where, where(X, Y, 0) -> X * Y: return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]


# %% wrong="pipeline-recurrent" because="Updates the state in every iteration, so it changes before the first time step arrives and after the last."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[t], arrived)
            state = jnp.tanh(x @ a + state @ b + c)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Protects the state before the first time step, but not after the last."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[t], arrived)
            active = t >= me
            state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Protects the state after the last time step, but not before the first."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[t], arrived)
            active = t < me + count
            state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Does not use the initial states."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[t], arrived)
            active = (t >= me) & (t < me + count)
            state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(
            tick, (jnp.zeros_like(h0[0]), jnp.zeros_like(h0[0])), jnp.arange(count + n - 1)
        )
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Sends the old state, so each layer receives the time step before."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[t], arrived)
            active = (t >= me) & (t < me + count)
            state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(carry[1], "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Lets every layer read the sequence instead of the states of the layer before."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me, count = jax.lax.axis_size("layer"), jax.lax.axis_index("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        xs = jax.lax.pcast(xs, "layer", to="varying")

        def tick(carry, t):
            arrived, state = carry
            x = xs[t]
            active = (t >= me) & (t < me + count)
            state = jnp.where(active, jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        (_, state), states = jax.lax.scan(tick, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(count + n - 1))
        return jax.lax.psum(jnp.where(me == n - 1, states[n - 1 :], 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Passes each time step through all layers before the next one starts, so one device works at a time."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me = jax.lax.axis_size("layer"), jax.lax.axis_index("layer")
        a, b, c = (params[name][0] for name in "abc")

        def time_step(state, x):
            def layer(l, carry):
                x, state = carry
                state = jnp.where(me == l, jnp.tanh(x @ a + state @ b + c), state)
                return jax.lax.ppermute(state, "layer", [(i, (i + 1) % n) for i in range(n)]), state

            x, state = jax.lax.fori_loop(0, n, layer, (x, state))
            return state, x

        state, results = jax.lax.scan(time_step, h0[0], jax.lax.pcast(xs, "layer", to="varying"))
        return jax.lax.psum(jnp.where(me == 0, results, 0), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Sends the whole sequence from layer to layer, so one device works at a time."
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        n, me = jax.lax.axis_size("layer"), jax.lax.axis_index("layer")
        a, b, c = (params[name][0] for name in "abc")

        def layer(l, carry):
            xs, final = carry

            def step(state, x):
                state = jnp.tanh(x @ a + state @ b + c)
                return state, state

            last, ys = jax.lax.scan(step, h0[0], xs)
            final = jnp.where(me == l, last, final)
            return jax.lax.ppermute(ys, "layer", [(i, (i + 1) % n) for i in range(n)]), final

        xs = jax.lax.pcast(xs, "layer", to="varying")
        ys, final = jax.lax.fori_loop(0, n, layer, (xs, h0[0]))
        return jax.lax.psum(jnp.where(me == 0, ys, 0), "layer"), final[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Loops over the iterations in Python, so the program grows with the time steps."
def deep_rnn(params, h0, xs):

    def on_one_device(params, h0, xs):
        me, size, T = jax.lax.axis_index("layer"), jax.lax.axis_size("layer"), len(xs)
        a, b, c = (params[name][0] for name in "abc")
        arrived, state, results = jnp.zeros_like(h0[0]), h0[0], []
        for t in range(T + size - 1):
            x = jnp.where(me == 0, xs[min(t, T - 1)], arrived)
            state = jnp.where((t >= me) & (t < me + T), jnp.tanh(x @ a + state @ b + c), state)
            arrived = jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(size - 1)])
            results.append(state)
        last = jnp.where(me == size - 1, jnp.stack(results[size - 1 :]), 0)
        return jax.lax.psum(last, "layer"), state[None]

    specs = (P("layer"), P("layer"), P())
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% wrong="pipeline-recurrent" because="Takes the number of all devices as the number of layers, although the mesh may have another axis."
def deep_rnn(params, h0, xs):
    size, T = jax.sharding.get_abstract_mesh().size, len(xs)

    def on_one_device(params, h0, xs):
        me = jax.lax.axis_index("layer")
        a, b, c = (params[name][0] for name in "abc")

        def iteration(carry, t):
            arrived, state = carry
            x = jnp.where(me == 0, xs[jnp.minimum(t, T - 1)], arrived)
            state = jnp.where((t >= me) & (t < me + T), jnp.tanh(x @ a + state @ b + c), state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(size - 1)]), state), state

        (_, state), states = jax.lax.scan(iteration, (jnp.zeros_like(h0[0]), h0[0]), jnp.arange(T + size - 1))
        return jax.lax.psum(jnp.where(me == size - 1, states[size - 1 :], 0), "layer"), state[None]

    specs = (P("layer"), P("layer"), P())
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% right="pipeline-recurrent"
def deep_rnn(params, h0, xs):
    def on_one_device(params, h0, xs):
        last, me = jax.lax.axis_size("layer") - 1, jax.lax.axis_index("layer")
        params, h0 = jax.tree.map(lambda leaf: leaf[0], (params, h0))
        ring = [(i, (i + 1) % (last + 1)) for i in range(last + 1)]

        def tick(t, carry):
            state, results = carry
            below = jax.lax.ppermute(state, "layer", ring)
            step = t - me
            x = jax.lax.select(me == 0, xs[jnp.clip(step, 0, len(xs) - 1)] + 0 * below, below)
            new = jnp.tanh(jnp.einsum("bi,ij->bj", x, params["a"]) + state @ params["b"] + params["c"])
            inside = (step >= 0) & (step < len(xs))
            stored = results.at[jnp.where(inside, step, len(xs))].set(new, mode="drop")
            return jnp.where(inside, new, state), stored

        results = jax.lax.pcast(jnp.zeros(xs.shape), "layer", to="varying")
        state, results = jax.lax.fori_loop(0, len(xs) + last, tick, (h0, results))
        return jax.lax.psum(results * (me == last), "layer"), state[None]

    specs = P("layer"), P("layer"), P()
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=(P(), P("layer")))(params, h0, xs)


# %% right="pipeline-recurrent"
def deep_rnn(params, h0, xs):
    def pipeline(params, h0, xs):
        n = jax.lax.axis_size("layer")
        me = jax.lax.axis_index("layer")
        padded = jnp.concatenate([xs, jnp.zeros((n - 1, *xs.shape[1:]))])

        def tick(carry, inputs):
            x, t = inputs
            arrived, state = carry
            x = jnp.where(me, arrived, x)
            work = lambda state: jnp.tanh(x @ params["a"][0] + state @ params["b"][0] + params["c"][0])
            state = jax.lax.cond((t < me) | (t - me >= len(xs)), lambda state: state, work, state)
            return (jax.lax.ppermute(state, "layer", [(i, i + 1) for i in range(n - 1)]), state), state

        carry = h0[0] * 0, h0[0]
        (_, state), states = jax.lax.scan(tick, carry, (padded, jnp.arange(len(padded))))
        results = states[n - 1 :]
        return jax.lax.psum(jnp.where(me == n - 1, results, 0), "layer"), jnp.expand_dims(state, 0)

    return jax.jit(jax.shard_map(pipeline, out_specs=(P(), P("layer"))))(params, h0, xs)
