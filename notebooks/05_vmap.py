# %% [markdown]
# # 05 · vmap: write for one, run on many
#
# *Forty minutes, then [the exercises](../exercises/05_vmap/05_vmap.ipynb).* Afterwards you can write a function for one example and run it on a batch, a grid or an ensemble; take a gradient for every example; batch library code that never heard of batches; and read the errors that wrong axes earn.
#
# **Assumed.** Arrays and broadcasting (01), tracing and jaxprs (02), `jit` (03), `grad` (04). Recall before you go on; answer first, then open the fold.
#
# 1. From 01: `a` has shape `(4, 1)` and `b` has shape `(3,)`. What is the shape of `a + b`?
#
# <details><summary>Answer</summary>
#
# `(4, 3)`. Shapes are aligned from the right, and an axis of size 1 (or a missing one) is stretched.
# </details>
#
# 2. From 02: a function holds a `print(x)`. Under `jax.make_jaxpr`, how often does it print, and what?
#
# <details><summary>Answer</summary>
#
# Once, and a tracer: a shape and a dtype without numbers. Python runs while tracing, not while computing.
# </details>
#
# 3. From 04: why does `jax.grad` refuse a function that returns a vector?
#
# <details><summary>Answer</summary>
#
# A gradient answers "how does this *one number* change?". For a vector there is one such answer for each of its entries.
# </details>

# %%
import time

import jax
import jax.numpy as jnp
import numpy as np


def primitives(function, *arguments):
    """The operations that `function` becomes, in order."""
    return [str(equation.primitive) for equation in jax.make_jaxpr(function)(*arguments).eqns]


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:420]}")
    else:
        print("No error!")


# %% [markdown]
# ## The question: which example is it?
# A model of four sensors has been fitted, and today its loss is far higher than yesterday. The loss of a batch is one number: it says *that* something is off, not *where*. We want a loss for each example.
#
# The model is written the way one thinks about it: **for one example**, without a batch axis anywhere.


# %%
def predict(params, x):
    """params {"w": (d,), "b": ()}, x (d,) -> a prediction ()"""
    return jnp.dot(params["w"], x) + params["b"]


def loss(params, x, y):
    """The squared error of one example: x (d,), y () -> ()"""
    return (predict(params, x) - y) ** 2


rng = np.random.default_rng(5)
params = {"w": jnp.array([1.0, -2.0, 0.5, 3.0]), "b": jnp.float32(0.25)}
xs = jnp.asarray(rng.normal(size=(64, 4)), jnp.float32)
ys = xs @ params["w"] + params["b"] + jnp.asarray(0.1 * rng.normal(size=64), jnp.float32)
ys = ys.at[37].multiply(-1)  # someone wired one sensor the wrong way round

losses_by_loop = jnp.stack([loss(params, x, y) for x, y in zip(xs, ys, strict=True)])
print(f"mean loss {losses_by_loop.mean():.2f}, worst example {losses_by_loop.argmax()}")

# %% [markdown]
# A Python loop answers it, at the price of several small operations per example, one after the other. `jax.vmap` takes the same `loss` and gives back a function of a whole batch. `in_axes` has an entry for each argument: `None` for what all runs share, a number for the axis along which the examples lie.

# %% [markdown] predict="vmap-out-shape"
# What is the shape of `jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)`, with `xs` of shape `(64, 4)`?
#
# - [ ] `()` | Tempting if you expect the mean loss. vmap never reduces: it gives one result for each run.
# - [x] `(64,)` | Right: `loss` gives `()`, and vmap puts the 64 runs in front of that.
# - [ ] `(64, 4)` | The feature axis went *into* `loss` and was summed there by the dot product.

# %%
losses = jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)
print(
    f"shape {losses.shape}, worst example {losses.argmax()}, its loss {losses.max():.1f}, median {jnp.median(losses):.4f}"
)
print("equal to the loop:", bool(jnp.allclose(losses, losses_by_loop)))

# %% [markdown]
# `(64,)`: the shape that `loss` returns, with the mapped axis in front. And there is the culprit.
#
# ![Above: vmap of loss with in_axes (None, 0, 0). The parameters are one shared copy; row i of xs and entry i of ys go into run i of a function that is written for one example and traced once; the results are stacked along axis 0. Below: in_axes 0 hands over rows, 1 columns, None everything; out_axes 0 makes results rows, 1 columns.](../images/vmap_axes.svg)

# %% [markdown]
# ## What happens inside
# It looks like a loop over runs. Let the function tell us what it sees.

# %% [markdown] predict="vmap-print"
# `print` in a function that is vmapped over 64 examples of 4 features: how often, and which shape?
#
# - [ ] 64 times, `(4,)` | That is the loop. vmap has no loop: the function runs once, on a tracer.
# - [ ] once, `(64, 4)` | The function does run once, but the batch axis is hidden from it.
# - [x] once, `(4,)` | Right: one run on a tracer that stands for any of the examples.


# %%
def loss_that_prints(params, x, y):
    print("x is", x, "of shape", x.shape)
    return loss(params, x, y)


_ = jax.vmap(loss_that_prints, in_axes=(None, 0, 0))(params, xs, ys)

# %% [markdown]
# Once, and `(4,)`. The tracer says both: `float32[4]` is what your code sees, `float32[64,4]` is what it carries. So inside the function **no expression means "the batch"**: `x.shape[0]` is 4, `x.mean()` is over the features.
#
# What comes out is not a loop either. Read the jaxpr for one example, then for 64:

# %%
print(jax.make_jaxpr(loss)(params, xs[0], ys[0]))
print(jax.make_jaxpr(jax.vmap(loss, in_axes=(None, 0, 0)))(params, xs, ys))

# %% [markdown]
# The same operations, line by line, on larger arrays. Every primitive has a **batching rule**: "if this input has an extra axis, I am that operation, with these settings". `dot_general` now contracts axis 1 of `xs` (`([0], [1])`), to get past the examples; `add` and `sub` just work. What does not depend on a mapped input is not batched at all, and so is computed once.

# %% [markdown]
# ## in_axes and out_axes
# An entry may be any axis, also counted from the end; and where an argument is a dict, list or other container, its entry may be one **of the same form** with an entry for each leaf. Here is an ensemble: five weight vectors, one shared bias.

# %%
ensemble = {"w": jnp.asarray(rng.normal(size=(5, 4)), jnp.float32), "b": jnp.float32(0.25)}
five_predictions = jax.vmap(predict, in_axes=({"w": 0, "b": None}, None))(ensemble, xs[0])
print("five models, one example:", five_predictions.shape)

by_feature = xs.T  # (4, 64): the examples are columns
print("examples in columns:     ", jax.vmap(predict, in_axes=(None, 1))(params, by_feature).shape)

# %% [markdown]
# An entry for a whole container holds for all its leaves (`None` for `params` above). Try it: give each of the five models a bias of its own.

# %% [markdown]
# `out_axes` works the same way on the *results*: it says where each result's new axis is put.

# %% [markdown] predict="vmap-out-axes"
# `scale(x)` gives `{"scaled": (4,), "norm": ()}`. What are the two shapes with `out_axes={"scaled": 1, "norm": 0}` and 64 examples?
#
# - [x] `(4, 64)` and `(64,)` | Right: in the *result*, axis 1 of "scaled" is the mapped one.
# - [ ] `(64, 4)` and `(64,)` | That is what 0 gives. 1 is the place of the mapped axis, not of the features.
# - [ ] an error: "norm" has no axes | It has none before, and one after: the mapped axis, at place 0.


# %%
def scale(x):
    norm = jnp.linalg.norm(x)
    return {"scaled": x / norm, "norm": norm}


jax.tree.map(jnp.shape, jax.vmap(scale, out_axes={"scaled": 1, "norm": 0})(xs))

# %% [markdown]
# ## A gradient for every example
# Which example pulls hardest on the parameters? `jax.grad(loss)` answers for one, so `vmap` of it answers for all. Both orders of the two transformations are worth a look.

# %% [markdown] predict="vmap-grad-order"
# `jax.grad(jax.vmap(loss, in_axes=(None, 0, 0)))(params, xs, ys)` gives …
#
# - [ ] a gradient for each example | That is the other order, vmap of grad.
# - [ ] the mean gradient | There would have to be a mean inside. vmap does not reduce.
# - [x] an error | Right: vmap returns `(64,)`, and grad wants one number.

# %%
refusal(lambda: jax.grad(jax.vmap(loss, in_axes=(None, 0, 0)))(params, xs, ys))

per_example = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)
print(jax.tree.map(jnp.shape, per_example))

norms = jnp.sqrt(jnp.sum(per_example["w"] ** 2, axis=1) + per_example["b"] ** 2)
print(f"hardest pull: example {norms.argmax()}, norm {norms.max():.1f}, median norm {jnp.median(norms):.2f}")

# %% [markdown]
# A dict like `params`, each leaf with 64 in front: what gradient clipping for differential privacy, influence functions and Fisher information start from. Note the price: the result is 64 times the size of the parameters. If you only want the mean gradient, take `grad` of the mean loss.

# %%
gradient_of_mean = jax.grad(lambda params: jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys).mean())(params)
jax.tree.map(lambda every, mean: bool(jnp.allclose(every.mean(0), mean, atol=1e-5)), per_example, gradient_of_mean)

# %% [markdown]
# ## Nesting: every row with every row
# Each `vmap` adds one axis. Two of them make a grid: the inner one runs along the rows of `ys` while `x` stays, the outer one runs along the rows of `xs` while all `ys` stay.
#
# ![A grid of distances of 4 xs and 5 ys. The inner vmap, in_axes (None, 0), fills one row: x0 against all ys. The outer vmap, in_axes (0, None), stacks the rows. The outermost vmap makes the first axis.](../images/vmap_pairwise.svg)


# %%
def l1(x, y):
    return jnp.sum(jnp.abs(x - y))


def pairwise(xs, ys):
    return jax.vmap(jax.vmap(l1, in_axes=(None, 0)), in_axes=(0, None))(xs, ys)


def pairwise_by_broadcasting(xs, ys):
    return jnp.sum(jnp.abs(xs[:, None, :] - ys[None, :, :]), axis=-1)


few, many = xs[:4], xs[:5]
difference = jnp.abs(pairwise(few, many) - pairwise_by_broadcasting(few, many)).max()
print(f"{pairwise(few, many).shape}, largest difference from broadcasting by hand: {difference}")

# %% [markdown]
# Read `[i, j]` from the outside in: the **outermost** vmap makes the first axis. Swap the two `in_axes` and you get the transpose.

# %% [markdown]
# ## Library code
# A sensor is calibrated by a curve: `jnp.interp(x, xp, fp)`. Now every sensor gets a curve of its own, and the library's author did not think of that:

# %%
readings = jnp.array([0.5, 1.5, 1.0])
curve_x = jnp.array([[0.0, 1.0, 2.0]] * 3)
curve_y = jnp.array([[0.0, 10.0, 20.0], [0.0, 100.0, 200.0], [5.0, 5.0, 5.0]])

refusal(lambda: jnp.interp(readings, curve_x, curve_y))
print(jax.vmap(jnp.interp)(readings, curve_x, curve_y))

# %% [markdown]
# `vmap` batches what is made of JAX operations, whoever wrote it. It cannot look into NumPy, which wants numbers and gets a tracer:

# %%
refusal(lambda: jax.vmap(np.interp)(readings, curve_x, curve_y))

# %% [markdown]
# ## vmap against a loop against broadcasting
# Is vmap *fast*? Measure: compile first, wait for the result (`block_until_ready`), take the median.

# %% [markdown] predict="vmap-speed"
# All distances between 32 and 32 vectors. Which two end up closest together?
#
# - [ ] the Python loop and vmap | The loop sends out 1,024 calls; vmap sends the operations once each.
# - [ ] vmap with and without jit | Without jit, each operation still writes its whole result to memory before the next begins.
# - [x] vmap and broadcasting, both under jit | Right: look at the operations, they are the same.


# %%
def median_ms(function, *arguments, repeats=9):
    jax.block_until_ready(function(*arguments))  # compile, and warm up
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


compiled_l1 = jax.jit(l1)


def pairwise_by_loop(xs, ys):
    return jnp.stack([jnp.stack([compiled_l1(x, y) for y in ys]) for x in xs])


ways = {
    "Python loop over a jitted l1": pairwise_by_loop,
    "vmap": pairwise,
    "broadcasting": pairwise_by_broadcasting,
    "jit of vmap": jax.jit(pairwise),
    "jit of broadcasting": jax.jit(pairwise_by_broadcasting),
}
small = jnp.asarray(rng.normal(size=(32, 32)), jnp.float32)
milliseconds = {name: median_ms(way, small, small) for name, way in ways.items()}
for name, took in milliseconds.items():
    print(f"{name:30s} {took:9.3f} ms   {took / min(milliseconds.values()):8.1f} x the fastest")

# %%
for way in (pairwise, pairwise_by_broadcasting):
    flops = jax.jit(way).lower(small, small).compile().cost_analysis()["flops"]
    print(f"{way.__name__}: {flops:,.0f} flops, {primitives(way, small, small)}")

# %% [markdown]
# vmap *is* broadcasting, written by a machine: the same operations, the same flops. vmap by itself saves the loop, no more: it even runs your Python anew at every call (run `loss_that_prints` twice and see). The rest is `jit`, which traces once and fuses the operations. Fusing also saves memory. Without it, the differences of all pairs are an array:

# %%
big = jnp.asarray(rng.normal(size=(512, 256)), jnp.float32)
largest = max(e.outvars[0].aval.size for e in jax.make_jaxpr(pairwise)(big, big).eqns)
print(f"largest intermediate, operation by operation: {4 * largest / 2**20:,.0f} MiB")
scratch = jax.jit(pairwise).lower(big, big).compile().memory_analysis().temp_size_in_bytes
print(f"scratch memory of the compiled program:       {scratch / 2**20:,.0f} MiB")

# %% [markdown]
# On a CPU the compiler fuses this one to almost nothing. Where it cannot (a matrix product in the middle, say), a large batch may not fit; `jax.lax.map(f, xs, batch_size=32)` then runs 32 at a time, in a loop. And a Python loop under `jit`? It is unrolled: the program grows with the batch, and so does the time to compile it.

# %%
for n in (4, 8, 16):
    unrolled = primitives(lambda xs: jnp.stack([l1(x, xs[0]) for x in xs]), small[:n])
    batched = primitives(jax.vmap(l1, in_axes=(0, None)), small[:n], small[0])
    print(f"{n:3d} examples:  unrolled {len(unrolled):4d} operations   vmap {len(batched)}")

# %% [markdown]
# ## What goes wrong
# **Sizes disagree.** The most common error, and a good one: it names each argument, axis and size. Usually one `in_axes` entry is missing or points at the wrong axis.

# %%
refusal(lambda: jax.vmap(loss, in_axes=(None, 1, 0))(params, xs, ys))
refusal(lambda: jax.vmap(loss)(params, xs, ys))  # in_axes=0 for params too: b has no axis to map

# %% [markdown]
# **Sizes agree by accident.** Each of 4 features is to be divided by its own spread: `spread` is shared, so `None`. Forget it, and a batch of 64 is refused. But test with a batch of 4 …

# %% [markdown] predict="vmap-silent"
# `jax.vmap(lambda x, spread: x / spread)(xs[:4], spread)` with `spread` of shape `(4,)`:
#
# - [ ] an error about sizes | 4 examples and 4 features agree, so vmap has nothing to complain about.
# - [ ] the right result | Run i is given `spread[i]`, one number, and divides *all* features of example i by it.
# - [x] the right shape with wrong numbers | Right, and nothing says so.

# %%
spread = jnp.array([1.0, 10.0, 100.0, 1000.0])
divide = lambda x, spread: x / spread
wrong = jax.vmap(divide)(xs[:4], spread)
right = jax.vmap(divide, in_axes=(0, None))(xs[:4], spread)
print("shapes", wrong.shape, right.shape, "  equal:", bool(jnp.allclose(wrong, right)))
refusal(lambda: jax.vmap(divide)(xs, spread))

# %% [markdown]
# So **test with sizes that all differ**: a batch of 7, 4 features. A square test hides axis mistakes, in vmap as in broadcasting.
#
# **Keyword arguments are mapped along axis 0, always.** `in_axes` speaks of positional arguments only; bind the others first (`functools.partial`, or a lambda). **`out_axes=None`** promises that all runs give the same. **A Python `if`** on a mapped value fails as it does under `jit`, although there is no `jit`:

# %%
refusal(lambda: jax.vmap(divide, in_axes=(0, None))(xs, spread=spread))
refusal(lambda: jax.vmap(divide, in_axes=(0, None), out_axes=None)(xs, spread))
refusal(lambda: jax.vmap(lambda x: x if x.sum() > 0 else -x)(xs))

# %% [markdown]
# ## cond becomes select
# So use `jax.lax.cond`, which decides while it runs? For one example it does. In a batch, some go one way and some the other.

# %% [markdown] predict="vmap-cond"
# Both branches of a `cond` print. We vmap it over `[1., -1., 3.]`, of which two are hot. How many lines?
#
# - [ ] 2 hot, 1 cold | That is what `cond` means for one example. A batch has no single way to go.
# - [x] 3 hot, 3 cold | Right: both branches run on the whole batch, and a select picks.
# - [ ] 1 hot, 1 cold | Each branch does run once, on the whole batch; but the print is batched too, and prints for each example.


# %%
def amplify(x):
    def hot(x):
        jax.debug.print("hot branch on {}", x)
        return 2 * x

    def cold(x):
        jax.debug.print("cold branch on {}", x)
        return x

    return jax.lax.cond(x > 0, hot, cold, x)


print("one example:")
amplify(jnp.array(1.0))
jax.effects_barrier()  # wait for the prints
print("three examples:")
jax.vmap(amplify)(jnp.array([1.0, -1.0, 3.0]))
jax.effects_barrier()


# %% [markdown]
# ![Left: a cond on one example runs only the branch that is taken. Right: under vmap both branches run for every example, and select picks one of the two results for each.](../images/vmap_select.svg)

# %%
either = lambda flag, x: jax.lax.cond(flag, jnp.sin, jnp.cos, x)
flags, numbers = jnp.array([True, False, True]), jnp.ones(3)
print("one example:     ", primitives(either, flags[0], numbers[0]))
print("a flag for each: ", primitives(jax.vmap(either), flags, numbers))
print("one flag for all:", primitives(jax.vmap(either, in_axes=(None, 0)), flags[0], numbers))

# %% [markdown]
# With a flag for each, the `cond` is gone: `sin` and `cos` both stand there, and the last `select_n` picks. (The other two keep the gradient of the branch not taken out of the result, so that its NaN cannot leak; lesson 08.) One flag for all stays a `cond`. Results are right either way, but with a flag for each you pay for both branches, for everyone. When a branch is expensive and rarely taken, a loop may win. Measure: of 256 examples, one needs 200 steps.


# %%
def settle(x):
    many_steps = lambda x: jax.lax.fori_loop(0, 200, lambda i, x: jnp.tanh(1.01 * x), x)
    return jax.lax.cond(jnp.max(x) > 1.0, many_steps, lambda x: x, x)


states = jnp.asarray(rng.uniform(0, 1, size=(256, 512)), jnp.float32).at[7, 0].set(2.0)
print(f"jit of vmap:    {median_ms(jax.jit(jax.vmap(settle)), states):8.3f} ms")
print(f"jit of lax.map: {median_ms(jax.jit(lambda states: jax.lax.map(settle, states)), states):8.3f} ms")

# %% [markdown]
# `jax.lax.map` goes through the batch one by one and keeps the `cond`. The same idea holds for `while_loop`: under vmap it goes on until the last example is done (lesson 08).
#
# ## Closed over, or in_axes=None?
# A value that the function takes from outside is shared, exactly as with `None`. The batched operations are the same:

# %%
matrix = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
closed = jax.vmap(lambda x: matrix @ x)
passed = jax.vmap(lambda matrix, x: matrix @ x, in_axes=(None, 0))
print(primitives(closed, xs), primitives(passed, matrix, xs))

# %% [markdown]
# The difference shows under `jit` (03). An argument can be exchanged, donated, differentiated; a closed-over array is frozen into the compiled program as a constant, and stays what it was:

# %%
closed_program, passed_program = jax.jit(closed), jax.jit(passed)
closed_program(xs), passed_program(matrix, xs)  # both are compiled here
matrix = jnp.zeros_like(matrix)
print("after the change: closed over", closed_program(xs)[0], " passed", passed_program(matrix, xs)[0])

# %% [markdown]
# Rule of thumb: close over settings, pass parameters.
#
# ## When examples have to see each other
# Inside vmap there is no batch, unless the axis has a name. Then collectives such as `jax.lax.pmean` reach across it. Batch normalisation for one example:


# %%
def normalise(x):
    mean = jax.lax.pmean(x, "batch")
    return (x - mean) / jnp.sqrt(jax.lax.pmean((x - mean) ** 2, "batch") + 1e-5)


normalised = jax.vmap(normalise, axis_name="batch")(xs)
print("means", normalised.mean(0).round(4), " spreads", normalised.std(0).round(4))

# %% [markdown]
# Remember this cell: `jax.shard_map` (19) speaks to other *devices* with the very same words.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | one function, many examples | `jax.vmap(f)`, mapped along axis 0 of every argument |
# | something shared | `in_axes=(None, 0)`, or close over it |
# | the batch on another axis | `in_axes=1`, `-1`; results: `out_axes=1` |
# | part of a container mapped | an entry of the same form: `in_axes=({"w": 0, "b": None}, 0)` |
# | a grid of all pairs | vmap of vmap; the outermost makes the first axis |
# | a gradient for each example | `vmap(grad(loss), in_axes=(None, 0, 0))` |
# | the mean gradient | `grad` of the mean of the vmapped loss |
# | a branch for each example | `cond` or `where`: both sides run; `lax.map` when one is rare and dear |
# | a batch that does not fit | `jax.lax.map(f, xs, batch_size=…)` |
# | examples that see each other | `axis_name="batch"` and `jax.lax.pmean` |
# | to be sure | a test in which all sizes differ |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `jax.experimental.maps.xmap`, `jax.soft_pmap`, `jax.mask` | gone: `vmap` with `axis_name`, `jax.shard_map` (19) |
# | `jax.pmap(jax.vmap(f))` | `jax.jit` of `vmap` with sharded inputs (18), or `jax.shard_map` (19) |
# | `nnx.vmap` | in maintenance: Flax modules are pytrees now, and plain `jax.vmap` takes them (10) |
# | `pure_callback(..., vectorized=True)` | `pure_callback(..., vmap_method="broadcast_all")` (23) |
# | `np.vectorize` | a Python loop in NumPy; `jnp.vectorize` is a vmap with NumPy's signature strings |
#
# Next: the exercises. The first has one line missing.
