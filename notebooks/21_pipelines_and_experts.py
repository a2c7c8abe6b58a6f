# %% [markdown]
# # 21 · Pipelines and experts: models too large for one device
#
# *The core takes about 35 minutes. Thirteen "Deeper" sections are optional (one exercise needs one of them). Then do [the exercises](../exercises/21_pipelines_and_experts/21_pipelines_and_experts.ipynb).* After the core, you can run a pipeline, send tokens to experts on other devices, and compare what each kind of parallelism communicates.
#
# **Prerequisites.** `scan` (lesson 08), FSDP (18), `shard_map`, its collectives and `pcast` (19). Try to answer these questions from memory.
#
# 1. From 19: What is the transpose (backward pass) of `ppermute`?
#
# <details><summary>Answer</summary>
#
# A `ppermute` in the opposite direction.
# </details>
#
# 2. From 19: What does `jax.lax.pcast(w, "data", to="varying")` do, and what is its transpose?
#
# <details><summary>Answer</summary>
#
# It changes only the type of `w`. Its transpose is an all-reduce along `data`.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P
from jax.sharding import NamedSharding

from grader.learning import figures, plots
from grader.learning.inspection import list_collectives, print_error

eight = list(devices.mesh((8,), ("all",)).devices)
rng = np.random.default_rng(21)

# %% [markdown]
# ## Layers on different devices
# FSDP communicates all parameters in every step. **What if each device keeps some of the layers and sends only activations?** The layers of one device are a *stage*, which needs the results of the stage before it. If the batch were not divided, only one stage would work at a time. In **[pipeline parallelism](../docs/glossary.md#pipeline-parallelism)**, the batch is split into [micro-batches](../docs/glossary.md#micro-batch), so that several stages work at once.
#
# ![A pipeline of four stages with six micro-batches. Each row is a device, each column a time step. Micro-batch 0 moves along the diagonal from stage 0 to stage 3, and the next micro-batches follow one step behind. In the first three and the last three steps, some devices are idle. Below, the gradients move back from stage 3 to stage 0.](../images/pipeline_ticks.svg)
#
# ## The bubble
# In the figure, the forward passes take 9 time steps, and each stage works in 6 of them. The other three are the **[bubble](../docs/glossary.md#bubble)**. [GPipe](https://arxiv.org/abs/1811.06965) runs all forward passes, and then all backward passes from the last stage to the first. With S equal stages and M micro-batches, each direction takes M + S - 1 steps. A stage works in M of them, so the idle fraction is (S - 1) / (M + S - 1).
#
# We simulate the forward passes. A stage starts a micro-batch once it is free and its input has arrived.

# %% [markdown] predict="pipeline-bubble"
# A pipeline has 4 stages and 12 micro-batches. You double both. How does the idle fraction change?
#
# - [ ] it almost halves | It would, if only the micro-batches doubled.
# - [x] it changes little | Right. It changes from 3/15 to 7/31. The ratio of micro-batches to stages matters most.
# - [ ] it almost doubles | It would, if only the stages doubled.


# %%
def idle_fraction(stages, count):
    free = np.zeros(stages)  # when each stage has finished its work so far
    for _ in range(count):
        arrived = 0  # when this micro-batch is ready for the next stage
        for stage in range(stages):
            free[stage] = arrived = max(free[stage], arrived) + 1
    return 1 - count / arrived


print(f"idle: {idle_fraction(4, 12):.1%}, and with twice as many of both: {idle_fraction(8, 24):.1%}")
counts = np.array([1, 2, 4, 8, 16, 32, 64])
_, axes = plots.subplots(height=2.5)
for stages, marker in ((2, "o"), (4, "s"), (8, "^")):
    idle = [idle_fraction(stages, count) for count in counts]
    axes.plot(counts, (stages - 1) / (counts + stages - 1), label=f"{stages} stages")
    axes.plot(counts, idle, marker, color=plots.INK, markersize=4)
axes.set(xscale="log", xlabel="micro-batches M", ylabel="idle fraction", xticks=counts, xticklabels=counts)
axes.legend(title="lines: formula, points: simulation", alignment="left")
plots.show(f"The points lie on the formula's lines. Eight stages idle for {idle[0]:.0%} to {idle[-1]:.0%} of the time.")

# %%
figures.pipeline(stages=4, micro_batches=6, schedule="GPipe")  # for 1F1B, see "Deeper: schedules and memory"

# %% [markdown]
# In this figure, a backward pass takes two time steps. For a small bubble, use many more micro-batches than stages. Each micro-batch needs at least one example on each device.
#
# ## A pipeline in shard_map
# Our network has eight residual blocks. The mesh has four stages, with two data-parallel devices each, so each stage stores two blocks.

# %%
mesh = jax.make_mesh((4, 2), ("stage", "data"), devices=eight)
jax.set_mesh(mesh)
width = 16
draw_weights = lambda *shape: (rng.normal(size=shape) / 8).astype(np.float32)
weights = {"w1": draw_weights(8, width, 32), "b1": draw_weights(8, 32), "w2": draw_weights(8, 32, width)}  # 8 blocks
params = jax.tree.map(lambda leaf: jax.device_put(leaf, P("stage")), weights)
plots.show_shardings({"b1, a row for each block": params["b1"]}, "Each stage stores two of the eight blocks.")


def block(x, p):
    return x + jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"], None


def all_blocks(weights, x):  # all blocks of weights: eight, or the two of a stage
    return jax.lax.scan(block, x, weights)[0]


# %% [markdown]
# All devices run the same loop, so in the bubble a device computes results that are never used. Each iteration is a column of the forward passes in the first figure. In iteration t, stage s works on micro-batch t - s. Stage 0 reads micro-batch t, and every other stage uses the activations that it received. A permute sends the result to the next stage.


# %%
def pipeline(params, xs, apply=all_blocks):
    """Code of one device. xs (M, B, width): its part of the micro-batches. Returns the results of this stage in the last M iterations."""
    last, me, count = jax.lax.axis_size("stage") - 1, jax.lax.axis_index("stage"), len(xs)
    to_next = [(i, i + 1) for i in range(last)]  # stage 0 receives zeros, and ignores them
    xs = jax.lax.pcast(xs, "stage", to="varying")  # so the initial carry varies along stage, as received values do

    def iteration(arrived, t):
        x = jnp.where(me == 0, xs[jnp.minimum(t, count - 1)], arrived)  # only stage 0 reads xs
        result = apply(params, x)
        return jax.lax.ppermute(result, "stage", to_next), result

    _, results = jax.lax.scan(iteration, jnp.zeros_like(xs[0]), jnp.arange(count + last))
    return results[last:]


# %% [markdown]
# The last stage has the first result of the whole network in iteration S - 1, so the slice `[last:]` removes the iterations before it. The other stages return the results of earlier layers, so the loss uses 0 in place of their errors. The `psum` along `stage` then gives every stage the error of the last one, and the `pmean` averages over the devices along `data`.


# %%
def pipeline_loss(params, xs, ys, cast=("data",), apply=all_blocks):
    """Code of one device. Returns the mean squared error of the whole batch."""
    params = jax.lax.pcast(params, cast, to="varying")  # the next section explains this line
    results = pipeline(params, xs, apply)
    is_last = jax.lax.axis_index("stage") == jax.lax.axis_size("stage") - 1
    error = jnp.where(is_last, jnp.mean((results - ys) ** 2), 0)
    return jax.lax.pmean(jax.lax.psum(error, "stage"), "data")


# %%
teacher = {k: draw_weights(*v.shape[1:]) * 3 for k, v in weights.items()}
xs = rng.normal(size=(12, 16, width)).astype(np.float32)  # 12 micro-batches
ys = np.asarray(block(jnp.asarray(xs), teacher)[0])  # the targets: the results of one random block
batches = [jax.device_put(array, P(None, "data")) for array in (xs, ys)]
specs = {"in_specs": (P("stage"), P(None, "data"), P(None, "data")), "out_specs": P()}
pipelined = jax.jit(jax.shard_map(pipeline_loss, **specs))

one_device_loss = jax.jit(lambda weights, xs, ys: jnp.mean((all_blocks(weights, xs) - ys) ** 2))
on_one = [jax.device_put(tree, eight[0]) for tree in (weights, xs, ys)]
with jax.set_mesh(None):
    print("one device:", one_device_loss(*on_one))
print("pipeline:  ", pipelined(params, *batches))
for one in list_collectives(pipelined, params, *batches):
    print(f"{one.kind} of {one.elements} elements, {one.times} times")

# %% [markdown]
# The losses agree. The permute sends 8 examples of 16 elements in each of 12 + 4 - 1 = 15 iterations. The all-reduces of one element are the `psum` and the `pmean` of the loss.
#
# ## The backward pipeline
# The transpose of a permute is a permute in the opposite direction. So **`jax.grad` derives the backward pipeline**.
#
# The two devices of a stage have the same parameters but different examples, so their gradients must be added. The activations vary along `data`, but the parameters do not. Before JAX multiplies the two, it casts the parameters to varying, unless you have done so. The transpose of this cast is the all-reduce that adds the gradients.

# %% [markdown] predict="pipeline-gradient"
# `pipeline_loss` casts the parameters before the loop, in its first line. What happens without this line?
#
# - [ ] the gradients of the two devices are not added | JAX inserts the missing casts, so the gradients are still added.
# - [x] the gradients are all-reduced in every iteration | Right. JAX casts where the parameters are used, inside the loop. So the transposes of these casts are in the backward loop.
# - [ ] nothing, because JAX all-reduces the sum over all iterations | The all-reduce takes place where the cast was. Only a cast before the loop moves the all-reduce after the backward loop.

# %%
with jax.set_mesh(None):
    expected = jax.tree.map(np.asarray, jax.grad(one_device_loss)(*on_one))
largest = max(np.abs(leaf).max() for leaf in expected.values())
for cast in ((), ("data",)):
    gradient = jax.jit(jax.grad(jax.shard_map(functools.partial(pipeline_loss, cast=cast), **specs)))
    got = gradient(params, *batches)
    error = max(np.abs(np.asarray(got[name]) - expected[name]).max() for name in expected) / largest
    print(f"cast before the loop: {bool(cast)}, relative error of the gradient: {error:.1g}")
    for one in list_collectives(gradient, params, *batches):
        print(f"    {one.kind:18s} {one.elements:5d} elements x {one.times}, in a loop: {one.in_loop}")

# %% [markdown]
# A block has 16 · 32 + 32 + 32 · 16 = 1056 parameters. Without the cast, there are 30 all-reduces, for 15 iterations and two blocks of a stage. With the cast, the gradients of both blocks are all-reduced once, after the loop.
#
# ## Experts
# A **[mixture of experts](../docs/glossary.md#mixture-of-experts)** replaces the MLP of a layer with many MLPs, the *experts*. A *router* chooses one or a few experts per token (a row of activations), so the work of the MLPs per token does not grow with their number.
#
# The router is a matrix that computes one logit per expert. In *top-1 routing*, a token goes to the expert with the largest logit. The result is multiplied by the softmax probability of this expert, the *gate*. The choice itself has no gradient, so the router learns through the gate only.

# %%
row = jax.make_mesh((8,), ("expert",), devices=eight)
jax.set_mesh(row)
EXPERTS, TOKENS = 8, 512  # one expert and 64 tokens on each device
experts = {"w1": draw_weights(EXPERTS, width, 32), "w2": draw_weights(EXPERTS, 32, width)}
router = draw_weights(width, EXPERTS) * 4
tokens = rng.normal(size=(TOKENS, width)).astype(np.float32) + 0.3  # a nonzero mean makes some experts more popular


# %%
def expert(p, x):
    return jnp.tanh(x @ p["w1"]) @ p["w2"]


def dense_reference(experts, router, x):
    """Every expert processes every token, and all results but one are discarded."""
    logits = x @ router
    chosen = jax.nn.one_hot(logits.argmax(-1), EXPERTS) * jax.nn.softmax(logits)
    return jnp.einsum("te,etd->td", chosen, jax.vmap(expert, in_axes=(0, None))(experts, x))


with jax.set_mesh(None):
    reference = jax.jit(dense_reference)(experts, router, tokens)
    popular = np.bincount((tokens @ router).argmax(1), minlength=EXPERTS)
print("tokens for each expert:", popular, "  mean:", TOKENS // EXPERTS)

# %% [markdown]
# One expert gets more than three times as many tokens as another. But array shapes in compiled programs are static, so each device reserves a fixed number of places for each expert, the **[capacity](../docs/glossary.md#expert-capacity)**.
#
# 1. *Routing* chooses an expert for each token and assigns the token to the expert's next free place. If none is free, the token is *dropped*.
# 2. *Dispatch* copies the tokens into a buffer of shape (experts, capacity, width).
# 3. *Combine* copies the results back. A dropped token's result is 0, so a residual block leaves the token unchanged.
#
# Four tokens with the values 10, 20, 30 and 40 choose experts 1, 0, 1 and 1, with a capacity of 2. Expert 0 changes the sign, and expert 1 multiplies by 100. Which token is dropped?


# %%
def places(choice):
    """choice (tokens, experts), one-hot -> (tokens,): the number of earlier tokens with the same choice"""
    counted = jnp.cumsum(choice, axis=0)  # by expert, including this token
    return jnp.sum(counted * choice, axis=-1) - 1


with jax.set_mesh(None):
    choice = jax.nn.one_hot(jnp.array([1, 0, 1, 1]), 2)
    print("tokens counted so far, by expert:", *np.asarray(jnp.cumsum(choice, axis=0), int).tolist())
    print("places:", places(choice))

# %% [markdown]
# Places count from 0. Token 30 is the second token of expert 1, so its place is 1. Token 40 has place 2, so it is dropped. A *mask* marks the place of each remaining token with a 1.


# %%
def dispatch_mask(choice, capacity):
    """choice (tokens, experts), one-hot -> (tokens, experts, capacity), with a 1 at the place of each token."""
    at_place = jax.nn.one_hot(places(choice), capacity)  # zeros for places beyond the capacity
    return choice[:, :, None] * at_place[:, None]  # only for the chosen expert


with jax.set_mesh(None):
    four, multiply_by = jnp.array([10.0, 20.0, 30.0, 40.0]), jnp.array([[-1.0], [100.0]])
    mask = dispatch_mask(choice, capacity=2)
    buffer = jnp.einsum("tec,t->ec", mask, four)
    combined = jnp.einsum("tec,ec->t", mask, multiply_by * buffer)  # without gates
print("buffer of expert 0:", buffer[0], "  of expert 1:", buffer[1])
print("combined:", combined)

# %% [markdown]
# In **[expert parallelism](../docs/glossary.md#expert-parallelism)**, the experts are on different devices, here one on each. The same mesh axis partitions the tokens, and each device fills a buffer from its own. An [all-to-all](../docs/glossary.md#all-to-all) sends row e of every buffer to device e. There, row i of the received buffer contains the tokens of device i. A second all-to-all returns the results.
#
# ![Two devices with four tokens each and one expert each, with a capacity of two. Tokens are coloured by their expert. Each device copies its tokens into a buffer with a row for each expert, and drops the fourth token. An all-to-all exchanges the rows, so that device 0 has the tokens of both devices for expert 0, and device 1 those for expert 1. After a second all-to-all, each device combines the results of its own tokens. The result of a dropped token is 0.](../images/expert_dispatch.svg)


# %%
def experts_layer(experts, router, x, capacity):
    """Code of one device, with one expert. x (tokens of this device, width)"""
    logits = x @ router
    mask = dispatch_mask(jax.nn.one_hot(logits.argmax(-1), EXPERTS), capacity)  # routing
    buffer = jnp.einsum("tec,td->ecd", mask, x)  # dispatch: (experts, capacity, width)
    exchange = functools.partial(jax.lax.all_to_all, axis_name="expert", split_axis=0, concat_axis=0, tiled=True)
    arrived = exchange(buffer)  # for the expert of this device: (devices, capacity, width)
    own = jax.tree.map(lambda leaf: leaf[0], experts)  # without the axis of experts, which has size 1 here
    returned = exchange(expert(own, arrived))  # the results of its own tokens: (experts, capacity, width)
    gated = mask * jax.nn.softmax(logits)[:, :, None]  # the gate of each token, at its place
    kept = jax.lax.psum(mask.sum(), "expert")  # the mask has a single 1 for each token that is not dropped
    return jnp.einsum("tec,ecd->td", gated, returned), TOKENS - kept  # combine


# %% [markdown]
# A capacity of 64 drops no token.


# %%
def parallel_layer(capacity):
    layer = functools.partial(experts_layer, capacity=capacity)
    return jax.jit(jax.shard_map(layer, in_specs=(P("expert"), P(), P("expert")), out_specs=(P("expert"), P())))


shard = lambda tree: jax.tree.map(lambda leaf: jax.device_put(leaf, P("expert")), tree)
placed = shard(experts), router, shard(tokens)
out, dropped = parallel_layer(64)(*placed)
print(f"dropped: {dropped:.0f}, largest difference: {np.abs(out - np.asarray(reference)).max():.1g}")
for one in list_collectives(parallel_layer(64), *placed):
    print(f"{one.kind} of {one.elements} elements in groups of {one.group_size}")

# %% [markdown]
# The values match. Each all-to-all exchanges a buffer of 8 · 64 · 16 elements.

# %% [markdown] predict="moe-capacity"
# If the 64 tokens of a device chose the 8 experts equally often, 8 places would suffice. The *capacity factor* is the capacity divided by this number. How many tokens are dropped at a factor of 1?
#
# - [ ] none | The router is uneven, as the counts above show.
# - [x] more than a tenth of them | Right. Even random routing of 64 tokens is uneven.
# - [ ] the program fails | A place out of bounds only makes the row of the mask zero.

# %%
factors, fractions, sizes = (0.5, 1, 1.5, 2, 4), [], []
for factor in factors:
    layer = parallel_layer(int(8 * factor))
    fractions.append(float(layer(*placed)[1]) / TOKENS)
    sizes.append(sum(one.bytes for one in list_collectives(layer, *placed) if one.kind == "all-to-all") / 1000)
_, (left, right) = plots.subplots(1, 2, height=2.3)
left.plot(factors, fractions, marker="o")
left.set(xlabel="capacity factor", ylabel="fraction of tokens dropped", ylim=(0, None))
right.plot(factors, sizes, marker="s", color=plots.COLOURS[1])
right.set(xlabel="capacity factor", ylabel="kB in all-to-alls", ylim=(0, None))
told = ", ".join(f"{f:g}: {d:.0%}" for f, d in zip(factors, fractions, strict=True))
plots.show(
    f"Dropped tokens by capacity factor: {told}. The bytes that the all-to-alls return on a device grow in proportion "
    f"to the factor, from {sizes[0]:.0f} to {sizes[-1]:.0f} kB."
)

# %% [markdown]
# At a factor of 1, a fifth of the tokens is dropped. At 2, it is 1%, but each device sends and computes twice as many rows.
#
# ## Which mesh for which model?
# | | each device stores | and communicates |
# |---|---|---|
# | data parallelism (DP) | all parameters | gradients |
# | FSDP (lesson 18) | a shard of each parameter | parameters and gradients |
# | tensor parallelism (TP, lesson 20) | a shard of each parameter | activations, in four all-reduces per layer |
# | pipeline (PP) | some of the layers | activations between stages, and their gradients |
# | expert parallelism (EP) | some of the experts, all other parameters | tokens, for each layer with experts, and gradients of the other parameters |
#
# If the model fits on a device, use DP. If not, FSDP is often the best choice: with a large batch, computing hides its communication. TP then sends the most and needs the fastest links. PP sends far less than TP, so it suits slower links, but has a bubble. EP is for layers with experts. Large models combine several axes.
#
# The core ends here.

# %% [markdown]
# ## Deeper: train the pipeline
# The training step is the same for the pipeline and for one device.

# %%
optimizer = optax.adam(2e-3)


def train(loss, params, batch, steps=50):
    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    state, values = jax.jit(optimizer.init)(params), []
    for _ in range(steps):
        params, state, value = step(params, state)
        values.append(float(value))
    return params, np.array(values)


# %% [markdown]
# Do the two losses stay equal?

# %%
with jax.set_mesh(mesh):
    trained, losses = train(pipelined, params, batches)
with jax.set_mesh(None):
    _, wanted = train(one_device_loss, on_one[0], on_one[1:])
_, axes = plots.subplots(height=2.3)
axes.plot(wanted, label="one device", linewidth=4, alpha=0.4)
axes.plot(losses, label="pipeline")
axes.set(xlabel="step", ylabel="loss", yscale="log")
axes.legend()
difference = np.abs(losses / wanted - 1).max()
plots.show(
    f"Both losses fall from {losses[0]:.3f} to {losses[-1]:.4f} in {len(losses)} steps. "
    f"Their largest relative difference is {difference:.1g}, so the two lines coincide."
)
print("type of the trained weights:", jax.typeof(trained["w1"]))

# %% [markdown]
# The trained weights are still partitioned along `stage`.
#
# ## Deeper: which mesh for which model?
# We estimate the time of a step. A transformer has P parameters and L layers of width d, and a step processes B tokens on N devices. On a ring (lesson 19), each device sends r K elements in an all-gather or a reduce-scatter of K elements, and 2 r K in an all-reduce, with r = (N - 1) / N.
#
# | | collectives of a step | elements that a device sends |
# |---|---|---|
# | data parallelism (DP) | an all-reduce of all gradients | 2 r P |
# | FSDP | two all-gathers of all parameters, a reduce-scatter of all gradients | 3 r P |
# | tensor parallelism (TP) | four all-reduces of activations in each layer (lesson 20) | 4 L · 2 r B d |
# | pipeline (PP) | permutes of activations, and of their gradients | 2 B d |
#
# Computing takes 6 operations for each token and parameter, and PP adds the bubble. We store only the activations between layers, and ignore the time to recompute the others (lesson 15). A stored parameter takes 16 bytes, with its gradient and Adam's moments (lesson 18). We plan for [TPU v5p](https://docs.cloud.google.com/tpu/docs/v5p), and assume that each device sends bfloat16 over one link in one direction.

# %%
# Stated for a chip: 95 GB, 459 TFLOP/s in bfloat16, and 1200 GB/s over its six links in both directions together.
V5P = {"memory": 95e9, "flops": 459e12, "bandwidth": 1200e9 / 6 / 2}


def plan(P, layers, width, batch, sequence, n, chip=V5P, micro_batches=32):
    """For each kind: bytes on a device, seconds to compute, seconds to send. `batch`: sequences in a step."""
    tokens = batch * sequence
    r, compute = (n - 1) / n, 6 * P * tokens / n / chip["flops"]
    acts = 2 * layers * tokens * width  # bytes of the activations between layers, in bfloat16
    kinds = {  # bytes on a device, elements sent, factor of the bubble
        "DP": (16 * P + acts / n, 2 * r * P, 1),
        "FSDP": ((16 * P + acts) / n, 3 * r * P, 1),
        "TP": (16 * P / n + acts, 8 * layers * r * tokens * width, 1),
        "PP": ((16 * P + acts) / n, 2 * tokens * width, 1 + (n - 1) / micro_batches),
    }
    return {k: (size, compute * bubble, 2 * sent / chip["bandwidth"]) for k, (size, sent, bubble) in kinds.items()}


# %% [markdown]
# A model has 8 billion parameters, and a step has 32 sequences of 8,192 tokens. Which kinds fit into memory, and which is fastest?


# %%
def print_plan(table, chip=V5P):
    for name, (size, compute, send) in table.items():
        fits = "fits" if size <= chip["memory"] else "too large"
        print(f"{name:5s}{size / 1e9:9.1f} GB  {fits:10s} compute {compute:7.3f} s   send {send:7.3f} s")


print_plan(plan(P=8e9, layers=32, width=4096, batch=32, sequence=8192, n=32))

# %% [markdown]
# - DP stores 128 GB of state, and activations, on every device, which is too large.
# - FSDP stores 1/32 of this state. Sending takes 0.47 s, less than computing.
# - TP sends all activations in every layer, which takes more than ten times as long as sending with FSDP.
# - PP sends the least, but the bubble of 32 stages with 32 micro-batches almost doubles the time.
#
# So FSDP is best for this model.
#
# ### A model with experts
# In expert parallelism (EP), each device stores one expert of every layer, and all other parameters. The gradients of the other parameters are all-reduced, as in DP. Each layer needs four all-to-alls of a device's B / N tokens, two in each pass. On a one-way ring, a block crosses N / 2 links on average, and every device on its way forwards it. So for the tokens, each link carries 4 (N - 1) / 2 · L B d / N elements (4 r L B d / N with direct links). Each token uses one expert per layer, so computing counts only this expert and the other parameters.


# %%
def plan_experts(experts, shared, layers, width, batch, sequence, n, chip=V5P):
    """`plan` for a model with n experts, of which a token uses one. `experts`: parameters of all experts together."""
    tokens, r = batch * sequence, (n - 1) / n
    used = shared + experts / n  # the parameters that a token uses, which EP stores on a device
    table = plan(experts + shared, layers, width, batch, sequence, n, chip)
    table = {k: (size, compute * used / (experts + shared), send) for k, (size, compute, send) in table.items()}
    size = 16 * used + 2 * layers * tokens * width / n
    elements = 2 * r * shared + 4 * (n - 1) / 2 * layers * tokens * width / n
    return table | {"EP": (size, table["FSDP"][1], 2 * elements / chip["bandwidth"])}


print("32 experts of 4 billion parameters, and 1 billion other parameters")
print_plan(plan_experts(128e9, 1e9, layers=32, width=4096, batch=32, sequence=8192, n=32))

# %% [markdown]
# FSDP gathers all experts twice and reduce-scatters their gradients, which takes 7.5 s. EP sends tokens and the gradients of the other parameters, which takes 1.4 s on a ring. This is still longer than computing, so on a one-way ring, PP is faster in spite of its bubble. On a ring in both directions, EP would send for 0.36 s, over direct links for 0.12 s, and be the fastest.
#
# ### When FSDP reaches its limit
# FSDP sends parameters, so its sending time does not depend on the batch. Above which batch size does computing take longer than sending? We plan the model with 8 billion parameters for several batches.

# %%
batches_in_tokens, n = 2.0 ** np.arange(13, 25), 32
lines = {name: [] for name in ("FSDP", "TP", "PP")}
for B in batches_in_tokens:
    table = plan(8e9, 32, 4096, B / 8192, 8192, n)
    for name, values in lines.items():
        values.append(table[name][2])
compute = [plan(8e9, 32, 4096, B / 8192, 8192, n)["FSDP"][1] for B in batches_in_tokens]
_, axes = plots.subplots(height=2.7)
axes.plot(batches_in_tokens, compute, color=plots.INK, linewidth=3, alpha=0.5, label="computing", linestyle="-")
for name, values in lines.items():
    axes.plot(batches_in_tokens, values, label=f"sending, {name}")
axes.set(xscale="log", yscale="log", xlabel="tokens per step", ylabel="seconds")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
cross = lines["FSDP"][0] / compute[0] * batches_in_tokens[0]  # computing is proportional to the tokens
plots.show(
    f"Time of a step on 32 devices against the tokens per step. Sending with FSDP takes {lines['FSDP'][0]:.2f} s for any "
    f"batch, and computing takes longer above {cross:,.0f} tokens. Sending with TP and PP grows with the batch, "
    f"as computing does."
)

# %% [markdown]
# The lines cross at 142,000 tokens, about 4,400 on each device (740 if it used all six links). Above this batch, sending with FSDP can be hidden, and above 2.8 million tokens, PP sends more than FSDP. TP and PP send activations, so the ratio of their sending to computing is fixed. With 32 devices, TP takes longer to send than to compute for every batch, unlike with four. If N grows and the batch stays the same, computing becomes shorter, but FSDP still sends all parameters. Then a second axis is needed, such as TP along the fastest links.
#
# ## Deeper: schedules and memory
# A *schedule* is the order in which each stage performs its forward (F) and backward (B) passes. GPipe performs all forward passes first. *1F1B* (one forward, one backward) alternates the two after a few forward passes, so backward passes start early.


# %%
def gpipe_order(stage, stages, count):
    """The passes of one stage, in order, for `count` micro-batches."""
    return [("F", m) for m in range(count)] + [("B", m) for m in reversed(range(count))]


def one_f_one_b_order(stage, stages, count):
    ahead = min(stages - stage, count)  # forward passes before the first backward pass
    order = [("F", m) for m in range(ahead)]
    for m in range(count):
        order += [("B", m)] + [("F", ahead + m)] * (ahead + m < count)
    return order


# %% [markdown]
# The next function computes when each pass ends. A stage performs its passes in the given order, and each pass waits for its input.


# %%
def end_times(orders, forward=1, backward=2):
    """The end of each (stage, pass, micro-batch), if each stage works as early as its order and its inputs allow."""
    ends, clocks, left = {}, [0] * len(orders), [list(order) for order in orders]
    while any(left):
        for stage, order in enumerate(left):
            kind, m = order[0] if order else ("", 0)
            before = (stage - 1, "F", m) if kind == "F" else (stage + 1, "B", m)
            at_an_end = before[0] in (-1, len(orders))
            if order and (at_an_end or before in ends):
                start = max(clocks[stage], ends.get(before, 0))
                ends[stage, kind, m] = clocks[stage] = start + (forward if kind == "F" else backward)
                order.pop(0)
    return ends


# %% [markdown] predict="pipeline-schedules"
# A backward pass takes twice as long as a forward pass. Which schedule finishes first, with four stages and eight micro-batches?
#
# - [ ] 1F1B, because the backward passes start earlier | Its stages wait between the passes instead.
# - [x] both at the same time | Right. 1F1B saves memory, not time.
# - [ ] GPipe, because it changes only once from forward to backward passes | In this model, a change costs nothing.


# %%
def draw(axes, orders, name):
    ends = end_times(orders)
    for (stage, kind, m), end in ends.items():
        (fill, hatch), width = plots.FILLS[kind == "B"], 1 + (kind == "B")
        axes.barh(stage, width, 0.9, left=end - width, color=fill, hatch=hatch, edgecolor=plots.INK, linewidth=0.6)
        axes.text(end - width / 2, stage, str(m), ha="center", va="center", fontsize=7)
    axes.set(title=name, yticks=range(len(orders)), ylabel="stage", xlim=(0, max(ends.values())))
    axes.invert_yaxis()
    idle = 1 - sum(1 + (kind == "B") for _, kind, _ in ends) / (len(orders) * max(ends.values()))
    return f"{name} ends at {max(ends.values())}, {idle:.1%} idle"


_, rows = plots.subplots(2, height=3.8, sharex=True)
told = []
for axes, order, name in zip(rows, (gpipe_order, one_f_one_b_order), ("GPipe", "1F1B"), strict=True):
    told.append(draw(axes, [order(stage, 4, 8) for stage in range(4)], name))
rows[1].set(xlabel="time (plain: forward pass, hatched: backward pass, white: idle)")
print(*told, f"(S - 1) / (M + S - 1) = {3 / (8 + 3):.1%}", sep="\n")
plots.show(f"Timelines of four stages and eight micro-batches. {'. '.join(told)}.")

# %%
orders = {"GPipe": gpipe_order, "1F1B": one_f_one_b_order}
figures.pipeline(stages=4, micro_batches=8, schedule="1F1B", schedules=orders)

# %% [markdown]
# Both schedules end at the same time, and their bubbles are as large as the formula states. But a stage stores the residuals of each forward pass until the backward pass of the same micro-batch. How many micro-batches does a stage store at most?


# %%
def most_stored(order):
    """The largest number of micro-batches that wait for their backward pass."""
    return int(np.cumsum([1 if kind == "F" else -1 for kind, _ in order]).max())


for count in (8, 32):
    for order in (gpipe_order, one_f_one_b_order):
        stored = [most_stored(order(stage, 4, count)) for stage in range(4)]
        print(f"{count:2d} micro-batches, {order.__name__:18s} stages 0 to 3 store at most {stored}")

# %% [markdown]
# With GPipe, each stage stores all M micro-batches. With 1F1B, it stores at most S of them. So for a fixed batch, the memory falls as M grows. `jax.grad` of a scan performs all forward passes first, as in GPipe. For another order, compute the backward passes explicitly with `jax.vjp`. `jax.checkpoint` (lesson 15) reduces the memory of both schedules. The next cell compiles the gradient of the pipeline for 4 to 32 micro-batches of the same size. How fast does the temporary memory grow, with and without `jax.checkpoint`?


# %%
def temporary_kilobytes(count, apply):
    """Temporary memory of one device for the gradient of a pipeline with `count` micro-batches of 64 examples."""
    shapes = jax.ShapeDtypeStruct((count, 64, width), jnp.float32, sharding=NamedSharding(mesh, P(None, "data")))
    with jax.set_mesh(mesh):
        loss = jax.shard_map(functools.partial(pipeline_loss, apply=apply), **specs)
        compiled = jax.jit(jax.grad(loss)).lower(params, shapes, shapes).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 1000


_, axes = plots.subplots(height=2.2)
told = ""
for name, apply in (("all residuals", all_blocks), ("with jax.checkpoint", jax.checkpoint(all_blocks))):
    kilobytes = [temporary_kilobytes(count, apply) for count in (4, 16, 32)]
    axes.plot((4, 16, 32), kilobytes, marker="o", label=name)
    told += f" {name}: {', '.join(f'{one:.0f}' for one in kilobytes)} kB."
axes.set(xlabel="micro-batches", ylabel="kB of temporary memory", ylim=(0, None))
axes.legend()
plots.show(f"Temporary memory of one device for 4, 16 and 32 micro-batches.{told}")

# %% [markdown]
# In both programs, the memory grows with the number of micro-batches, but much more slowly with `jax.checkpoint`. Every stage also stores all of `xs` and all results, although only the first and the last stage need them.
#
# ## Deeper: an interleaved schedule
# *The exercise "An interleaved pipeline" needs this section.* More micro-batches reduce the bubble, and so do more, shorter stages per device. In an *interleaved* schedule, each of S devices has V short stages, and a micro-batch visits each device V times. On four devices with V = 2, device 0 has the stages 0 and 4, device 1 has the stages 1 and 5, and so on. After stage 3, device 3 sends the activations back to device 0.
#
# The micro-batches enter in groups of S. When the last micro-batch of a group has entered, the first one returns to device 0 for its second visit. The next group enters after the last visit of this group to device 0. We simulate the forward passes for V = 1, 2 and 4. A short stage takes 1 / V of the time.


# %%
def interleaved_idle(devices, visits, count):
    """The idle fraction of the forward passes, if each device has `visits` stages that take 1 / visits each."""
    clocks, arrived = np.zeros(devices), np.zeros(count)
    for first in range(0, count, devices):  # groups of as many micro-batches as there are devices
        for _ in range(visits):
            for m in range(first, first + devices):
                for device in range(devices):
                    clocks[device] = arrived[m] = max(clocks[device], arrived[m]) + 1 / visits
    return 1 - count / clocks.max()


for visits in (1, 2, 4):
    formula = 3 / (visits * 8 + 3)
    idle = interleaved_idle(4, visits, 8)
    print(f"{visits} stages on each of 4 devices: idle {idle:.3f}, (S - 1) / (V M + S - 1) = {formula:.3f}")

# %% [markdown]
# With four stages on each device, the idle fraction falls from 27% to 9%. But a micro-batch is sent V S - 1 times instead of S - 1 times. [Zero-bubble schedules](https://arxiv.org/abs/2401.10241) fill the bubble by computing weight gradients, for which no other stage waits.
#
# ## Deeper: balance the experts
# Two ways are common to make a router use all experts equally. The first is a [load-balancing loss](../docs/glossary.md#load-balancing-loss), as in the [Switch Transformer](https://arxiv.org/abs/2101.03961). For E experts it is E · Σ f · p, a sum over the experts. Here f is the fraction of the tokens that choose an expert, and p is the mean of its probability over all tokens. If both are uniform, the loss is 1. It is larger if experts with many tokens also have high probabilities. In training, you add it to the main loss with a small factor.
#
# The second way needs no gradient. [DeepSeek-V3](https://arxiv.org/abs/2412.19437) uses it together with a small loss. Each expert has a *bias*, which is added to its score for the choice, but not for the gate. (Here, the score is the logit.) After each step, the biases of experts with more tokens than the mean decrease by a constant, and the biases of experts with fewer tokens increase. The counts need a `psum`, because each device has only a part of the tokens.


# %%
def rebalance(bias, x, rate=0.03):
    chosen = jax.nn.one_hot((x @ router + bias).argmax(-1), EXPERTS)
    counts = jax.lax.psum(chosen.sum(0), "expert")
    return bias + rate * jnp.sign(TOKENS / EXPERTS - counts), counts / TOKENS


def dropped_fraction(bias, capacity=12):
    """In NumPy: each of 8 devices has 64 tokens, and `capacity` places for each expert."""
    chosen = (tokens @ router + bias).argmax(1).reshape(8, 64)
    counts = np.stack([np.bincount(row, minlength=EXPERTS) for row in chosen])
    return np.maximum(counts - capacity, 0).sum() / TOKENS


# %% [markdown]
# We apply 60 steps to the same tokens. How close do the fractions come to 1/8, and do they stay there?

# %%
update = jax.jit(jax.shard_map(rebalance, in_specs=(P(), P("expert")), out_specs=(P(), P())))
bias, shares = jnp.zeros(EXPERTS), []
for _ in range(60):
    bias, share = update(bias, shard(tokens))
    shares.append(np.asarray(share))
before, after = dropped_fraction(np.zeros(EXPERTS)), dropped_fraction(np.asarray(bias))
_, (left, right) = plots.subplots(1, 2, height=2.3)
left.plot(shares, linestyle="-", linewidth=1.2)
left.axhline(1 / EXPERTS, color=plots.INK, linewidth=0.8, linestyle=":")
left.set(xlabel="step", ylabel="fraction of tokens", ylim=(0, None), title="one line for each expert")
right.bar(("before", "after"), (before, after), color=plots.COLOURS[5])
right.set(ylabel="fraction dropped", title="with a capacity factor of 1.5")
plots.show(
    f"The fractions of the experts are {shares[0].min():.3f} to {shares[0].max():.3f} in the first step, and "
    f"{shares[-1].min():.3f} to {shares[-1].max():.3f} in the last (uniform: 0.125). With a capacity factor of 1.5, "
    f"{before:.1%} of the tokens are dropped before and {after:.1%} after."
)

# %% [markdown]
# The fractions come close to 1/8 after about 30 steps, then oscillate, because each step changes a bias by the same amount. Fewer tokens are dropped. The gate does not contain the bias, so the main loss has no gradient with respect to the bias.
#
# ## Deeper: the cost of the mask
# Dispatch and combine multiply every token by every place of the buffer. How do the operations of these products compare with those of the experts?

# %%
compiled = parallel_layer(16).lower(*placed).compile()
of_experts = 4 * EXPERTS * 16 * width * 32  # two products for each place of the buffers that a device receives
print(f"operations of one device: {compiled.cost_analysis()['flops']:,.0f}, of the experts alone: {of_experts:,}")

# %% [markdown]
# The two products with the mask need twice as many operations as the experts. The ratio is the number of tokens of a device, 64, divided by the hidden width of an expert, 32. In the exercise "Send tokens to their experts", you copy the rows by their indices instead.
#
# ## Deeper: experts without a capacity
# On one device, no token has to be dropped. If you sort the tokens by expert, each expert multiplies a block of consecutive rows. The blocks have different sizes, but the sum of the sizes is always the number of tokens, so all shapes are static. `jax.lax.ragged_dot(lhs, rhs, group_sizes)` computes these products. `lhs` has the shape (tokens, k), `rhs` has the shape (experts, k, n), and `group_sizes` contains one size for each expert. How many operations does the program need?


# %%
def ragged_layer(experts, router, x):
    logits = x @ router
    choice = logits.argmax(-1)
    order = jnp.argsort(choice)
    sizes = jnp.bincount(choice, length=EXPERTS)
    hidden = jnp.tanh(jax.lax.ragged_dot(x[order], experts["w1"], sizes))
    results = jax.lax.ragged_dot(hidden, experts["w2"], sizes)
    return results[jnp.argsort(order)] * jax.nn.softmax(logits).max(-1, keepdims=True)


with jax.set_mesh(None):
    ragged = jax.jit(ragged_layer).lower(experts, router, tokens).compile()
    difference = np.abs(ragged(experts, router, tokens) - np.asarray(reference)).max()
    print(f"largest difference: {difference:.1g}")
    needed = 2 * TOKENS * width * (2 * 32 + EXPERTS)
    dense = jax.jit(dense_reference).lower(experts, router, tokens).compile().cost_analysis()["flops"]
    print(f"flops: needed {needed:,}, ragged_dot {ragged.cost_analysis()['flops']:,.0f}, dense {dense:,.0f}")

# %% [markdown]
# The values match the dense reference, and no token is dropped. But on a CPU, the compiled program performs about as many operations as the dense reference. Check your accelerator's program before you rely on a gain. Between devices, `jax.lax.ragged_all_to_all` sends blocks of different sizes. XLA does not support this operation on CPUs.
#
# ## Deeper: several experts for each token
# In *top-k routing*, each token goes to the k experts with the largest logits. The gates are the softmax of these k logits, so they add up to 1. The mask has an additional first axis for the k choices. So on each device, the cumulative sum gives places to all first choices before any second choice. Which choices are dropped more often?


# %%
def top_k_layer(experts, router, x, capacity, k=2):
    logits, best = jax.lax.top_k(x @ router, k)  # (tokens, k)
    gates = jax.nn.softmax(logits)
    choice = jax.nn.one_hot(best.T, EXPERTS)  # (k, tokens, experts), first choices first
    flat = choice.reshape(-1, EXPERTS)
    place = (jnp.sum(jnp.cumsum(flat, axis=0) * flat, axis=-1) - 1).reshape(k, -1)
    route = choice[..., None] * jax.nn.one_hot(place, capacity)[:, :, None]  # (k, tokens, experts, capacity)
    sent = jnp.einsum("ktec,td->ecd", route, x)
    arrived = jax.lax.all_to_all(sent, "expert", 0, 0, tiled=True)
    results = expert(jax.tree.map(lambda leaf: leaf[0], experts), arrived)
    back = jax.lax.all_to_all(results, "expert", 0, 0, tiled=True)
    kept = jax.lax.psum(route.sum((1, 2, 3)), "expert")
    return jnp.einsum("ktec,tk,ecd->td", route, gates, back), kept


def dense_top_2(experts, router, x):
    logits, best = jax.lax.top_k(x @ router, 2)
    chosen = jnp.einsum("tke,tk->te", jax.nn.one_hot(best, EXPERTS), jax.nn.softmax(logits))
    return jnp.einsum("te,etd->td", chosen, jax.vmap(expert, in_axes=(0, None))(experts, x))


# %% [markdown]
# With two choices for each of 64 tokens and 8 experts, a device sends 16 to an expert on average.

# %%
with jax.set_mesh(None):
    reference_2 = np.asarray(jax.jit(dense_top_2)(experts, router, tokens))
for capacity in (64, 16):
    layer = functools.partial(top_k_layer, capacity=capacity)
    specs_2 = {"in_specs": (P("expert"), P(), P("expert")), "out_specs": (P("expert"), P())}
    got, kept = jax.jit(jax.shard_map(layer, mesh=row, **specs_2))(*placed)
    print(f"capacity {capacity}: {TOKENS - kept} first and second choices dropped, ", end="")
    print(f"largest difference {np.abs(got - reference_2).max():.1g}")

# %% [markdown]
# With a capacity of 16, the results differ because choices are dropped, nearly all of them second choices. Some models add *shared experts*, which process every token.
#
# ## Deeper: check the planner against programs
# `plan` only uses formulas. Now we compile the gradient of a small network for each of the five kinds, on eight devices. We compare the bytes of the compiled programs with those of the planner. A block of this network is one MLP without attention, so TP needs two all-reduces per block instead of four.

# %%
line = jax.make_mesh((8,), ("d",), devices=eight)
DEPTH, ROWS = 8, 64
stack = rng.normal(size=(DEPTH, 2, 32, 32)).astype(np.float32) / 8
examples = rng.normal(size=(ROWS, 32)).astype(np.float32)


def varying(tree):
    return jax.lax.pcast(tree, "d", to="varying")


def mlp(x, w):
    return x + jnp.tanh(x @ w[0]) @ w[1]


def over_layers(function, x, w):
    return jax.lax.scan(lambda x, w: (function(x, w), None), x, w)[0]


def mean_square(y):
    return jax.lax.pmean(jnp.mean(y**2), "d")


# %% [markdown]
# Four of the five kinds need only a few lines. DP and FSDP differ in where the weights are stored, TP adds a `psum` to each block, and EP exchanges the examples twice.


# %%
def dp(w, x):
    return mean_square(over_layers(mlp, x, varying(w)))


def fsdp(w, x):  # with remat, so that the backward pass gathers the weights again
    gathered = jax.checkpoint(lambda x, w: mlp(x, jax.lax.all_gather(w, "d", axis=1, tiled=True)))
    return mean_square(over_layers(gathered, x, w))


def tp(w1, w2, x):
    part = lambda x, w: x + jax.lax.psum(jnp.tanh(x @ w[0]) @ w[1], "d")
    return jnp.mean(over_layers(part, x, (w1, w2)) ** 2)


def ep(w, x):  # one layer of eight experts; each device sends one example to each of them
    arrived = jax.lax.all_to_all(x, "d", 0, 0, tiled=True)
    return mean_square(jax.lax.all_to_all(mlp(arrived, w[0]), "d", 0, 0, tiled=True))


# %% [markdown]
# The pipeline is that of the core, with one block for each of eight stages. `CASES` lists the five programs, and what the planner computes for them.


# %%
def pp(w, x, count=16):
    me, last, micro = jax.lax.axis_index("d"), 7, varying(x).reshape(count, -1, 32)

    def iteration(arrived, t):
        y = mlp(jnp.where(me == 0, micro[jnp.minimum(t, count - 1)], arrived), w[0])
        return jax.lax.ppermute(y, "d", [(i, i + 1) for i in range(last)]), y

    ys = jax.lax.scan(iteration, micro[0] * 0, jnp.arange(count + last))[1][last:]
    return jax.lax.psum(jnp.where(me == last, jnp.mean(ys**2), 0), "d")


full, part, ring = stack.size, stack.size / 8, 7 / 8
w_in, columns = (stack[:, 0], stack[:, 1]), P(None, None, "d")
CASES = {  # function, specs, arrays, arguments to differentiate, and of the planner: parameters stored, elements sent
    "DP": (dp, (P(), P("d")), (stack, examples), 0, full, 2 * ring * full),
    "FSDP": (fsdp, (columns, P("d")), (stack, examples), 0, part, 3 * ring * full),
    "TP": (tp, (columns, P(None, "d"), P()), (*w_in, examples), (0, 1, 2), part, 4 * DEPTH * ring * examples.size),
    "PP": (pp, (P("d"), P()), (stack, examples), 0, part, 2 * examples.size),
    "EP": (ep, (P("d"), P("d")), (stack, examples), (0, 1), part, 4 * ring * examples.size / 8),
}


# %%
def sent(one):
    """The elements that one device sends, by the formulas of lesson 19."""
    n = one.group_size
    factors = {"all-reduce": 2 * ring, "reduce-scatter": 7, "collective-permute": 1}
    return (n != 1) * factors.get(one.kind, ring) * one.elements * one.times


print("        parameters on a device, bytes     sent by a device, bytes")
for name, (function, in_specs, arrays, argnums, stored, sends) in CASES.items():
    with jax.set_mesh(line):
        arrays = [jax.device_put(array, spec) for array, spec in zip(arrays, in_specs, strict=True)]
        mapped = jax.shard_map(function, in_specs=in_specs, out_specs=P())
        gradient = jax.jit(jax.grad(mapped, argnums=argnums))
        total = 4 * sum(sent(one) for one in list_collectives(gradient, *arrays) if one.elements > 1)
        size = gradient.lower(*arrays).compile().memory_analysis().argument_size_in_bytes
    size -= arrays[-1].addressable_shards[0].data.nbytes  # the examples
    print(
        f"{name:5s} planner {4 * stored:7,.0f}, program {size:7,}    planner {4 * sends:8,.0f}, program {total:8,.0f}"
    )

# %% [markdown]
# The bytes of the parameters agree exactly. The bytes that are sent also agree, except for PP, whose permutes also run in the bubble: 23 iterations (M + S - 1) in each direction instead of 16. (For EP, we count the bytes that a device sends directly, not those that it forwards on a ring.)
#
# ## Deeper: published configurations
# Two publications state the mesh, the batch and the speed achieved per device.
#
# - A GPT with a trillion parameters on 3,072 A100 GPUs ([Megatron-LM, 2021](https://arxiv.org/abs/2104.04473)): data 6, tensor 8, stage 64, 163 TFLOP/s. This counts recomputed activations, so a step performs 8 P B operations instead of 6 P B.
# - Llama 3 with 405 billion parameters on 16,384 H100 GPUs ([2024](https://arxiv.org/abs/2407.21783)): data 128, tensor 8, stage 16, 400 TFLOP/s. Along `data`, it partitions gradients and optimizer states. The gathered parameters are kept for the backward pass, so they are gathered once instead of twice. The gradients are reduced in float32.
#
# In both runs, the servers have eight GPUs with NVLink, and `tensor` has the size of a server. The network has 200 Gb/s for each A100 and 400 Gb/s for each H100. For NVLink, NVIDIA states 600 and 900 GB/s in both directions together, so we use half of these values. We assume micro-batches of one sequence, without interleaving.


# %%
def step_time(P, layers, width, tokens, data, tensor, stage, micro, passes, fsdp, flops, fast, slow):
    """Seconds of computing, of the bubble and of sending, and bytes of state on one device. `fast`, `slow`: bytes per
    second along tensor and along the other axes. `passes`: operations for each parameter and token."""
    compute = passes * P * tokens / (data * tensor * stage * flops)
    local, activation = P / (tensor * stage), 2 * tokens / data * width
    along_tensor = (passes - 2) * 2 * (tensor - 1) / tensor * activation * layers / stage / fast  # 4 all-reduces, or 6
    along_stage = 2 * activation / tensor / slow  # each of the tensor-parallel devices sends a part
    along_data = (2 + (4 if fsdp else 2)) * (data - 1) / data * local / slow
    state = 16 * local / data + 2 * local if fsdp else 16 * local
    return compute, compute * (stage - 1) / micro, along_tensor + along_stage + along_data, state


# %%
# flops: as NVIDIA states for dense products in bfloat16
A100 = {"flops": 312e12, "fast": 300e9, "slow": 25e9}
H100 = {"flops": 989e12, "fast": 450e9, "slow": 50e9}
GPT = {"P": 1.008e12, "layers": 128, "width": 25600, "tokens": 3072 * 2048, "data": 6, "tensor": 8, "stage": 64}
LLAMA = {"P": 405e9, "layers": 126, "width": 16384, "tokens": 2**24, "data": 128, "tensor": 8, "stage": 16}
RUNS = {
    "GPT 1T": (GPT | A100 | {"micro": 512, "passes": 8, "fsdp": False}, 163e12),
    "Llama 3 405B": (LLAMA | H100 | {"micro": 16, "passes": 6, "fsdp": True}, 400e12),
}


# %% [markdown]
# How much of the published time do the formulas explain?


# %%
def draw_run(axes, place, name, run, published):
    *parts, state = step_time(**run)
    real, left = parts[0] * run["flops"] / published, 0  # seconds
    for (fill, hatch), part, label in zip(plots.FILLS, parts, ("compute", "bubble", "send"), strict=True):
        bar = {"left": left / real, "color": fill, "hatch": hatch, "edgecolor": plots.INK, "linewidth": 0.6}
        axes.barh(place, part / real, 0.5, label=label if place == 0 else None, **bar)
        left += part
    seconds = ", ".join(
        f"{label} {part:.1f} s" for label, part in zip(("compute", "bubble", "send"), parts, strict=True)
    )
    return f"{name}: state {state / 1e9:.1f} GB, {seconds}, published {real:.1f} s"


# %%
_, axes = plots.subplots(height=2.0)
told = [draw_run(axes, place, name, *RUNS[name]) for place, name in enumerate(RUNS)]
print(*told, sep="\n")
axes.axvline(1, color=plots.INK, label="published")
axes.set(yticks=range(len(RUNS)), yticklabels=RUNS, xlabel="fraction of the published time of a step", xlim=(0, 1.35))
axes.legend(loc="center right")
axes.invert_yaxis()
plots.show(f"The formulas against published times. {'. '.join(told)}.")

# %% [markdown]
# The published time follows from the speed. In both cases, the state fits into the 80 GB of the GPU, and the sum of the three times is lower. Real matrix products are slower, and a step contains other work. But the two runs used interleaved schedules, which reduce the bubble, and sending can overlap with computing. So the sum is an estimate, not a bound. [PaLM](https://arxiv.org/abs/2204.02311), with 540 billion parameters, was trained on 6,144 TPU v4 chips without a pipeline.
#
# ## Deeper: collectives on TPUs and GPUs
# We also compiled four programs of this lesson ahead of time for a TPU and a GPU topology, with JAX 0.10.2.
#
# | program | simulated CPUs | eight TPU v5e | eight H100 |
# |---|---|---|---|
# | loss of the pipeline | two all-reduces of one element, in groups of 4 and of 2 | the same | one all-reduce of one element, in a group of 8 |
# | its gradient, cast before the loop | one all-reduce of 2,112 elements, after the loop | the same | the same |
# | its gradient, cast inside the loop | an all-reduce of 1,056 elements, 30 times | an all-reduce of 1,056 elements, in nested loops | an all-reduce of 2,112 elements, 15 times |
# | layer with experts | two all-to-alls of 8,192 elements in float32 | two all-to-alls of 8,192 elements in bfloat16 | two all-to-alls of 8,192 elements in float32 |
#
# The compiler for GPUs merges collectives. It computes the sum along `stage` and the mean along `data` in one all-reduce, and it all-reduces the gradients of both blocks of a stage at once. The compiler for TPUs sends the tokens in bfloat16, half the bytes, because products on a TPU round their operands to bfloat16 by default (lesson 15).
#
# No compiler moved the all-reduce out of the loop, so cast before the loop on every device.
#
# ## Deeper: mistakes and their errors
# Two mistakes raise type errors.
#
# 1. The carry starts with zeros, which do not vary, but the received activations do.
# 2. The results differ between stages, but `out_specs` does not name `stage`. Replace the results of all stages but the last with zeros, then apply `psum`. (A `psum` alone raises no error, but adds the results of earlier layers.)


# %%
def traced(start, reduce):
    """Traces a pipeline that returns the results of its first iterations."""

    def stages(params, xs):
        me, xs = jax.lax.axis_index("stage"), jax.lax.pcast(xs, "stage", to="varying")

        def iteration(arrived, t):
            result = all_blocks(params, jnp.where(me == 0, xs[t], arrived))
            return jax.lax.ppermute(result, "stage", [(0, 1), (1, 2), (2, 3)]), result

        return reduce(jax.lax.scan(iteration, start(xs), jnp.arange(len(xs)))[1])

    with jax.set_mesh(mesh):
        mapped = jax.shard_map(stages, in_specs=specs["in_specs"][:2], out_specs=P(None, "data"))
        jax.jit(mapped).trace(params, batches[0])


# %%
varying_start, fixed_start = lambda xs: jnp.zeros_like(xs[0]), lambda xs: jnp.zeros(xs.shape[1:])
add = lambda results: jax.lax.psum(results, "stage")
print_error(lambda: traced(fixed_start, add), length=360)
print_error(lambda: traced(varying_start, lambda results: results), length=360)

# %% [markdown]
# Other mistakes raise no error.
#
# - If you index places beyond the capacity with `array[i]`, JAX clips the index. A dropped token then receives the result of another token.
# - If a stage in the bubble returns NaN, its product with 0 is also NaN. `jnp.where` makes the loss finite, but the gradient can still be NaN (lesson 04). So give idle stages valid inputs.
# - If a stage has a state, the stage must not update it in the bubble.
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.pmap` or `xmap` over stages | `jax.shard_map` |
# | a buffer with a leading stage axis, `vmap` over stages and `jnp.roll` (GSPMD pipelines) | this still works in Auto mode. In `shard_map`, use `ppermute`. |
# | products with masks (tokens, experts, capacity) | copies by indices, or `jax.lax.ragged_dot` |

# %% [markdown]
# ## Summary
#
# | you want | you use |
# |---|---|
# | layers on different devices | a scan of M + S - 1 iterations, each with `jax.lax.ppermute` |
# | the backward pipeline | `jax.grad` of the scan |
# | gradients reduced once | `jax.lax.pcast(params, "data", to="varying")` before the loop |
# | a small bubble, (S - 1) / (M + S - 1) | many more micro-batches than stages |
# | more parameters, but not more operations per token | experts, and a router |
# | static shapes | a capacity, beyond which tokens are dropped |
# | experts on different devices | a buffer (experts, capacity, width) and two `jax.lax.all_to_all` |
# | communication hidden behind computing, with a large batch | FSDP |
#
# The [scaling book](https://jax-ml.github.io/scaling-book/training/) derives such costs. In the first exercise, you distribute layers over stages.
