# %% [markdown]
# # 05 · vmap: write for one example, run on a batch
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/05_vmap/05_vmap.ipynb).* After the core, you can run a function of one example on a batch or on all pairs, compute a gradient for each example, and find mistakes in the choice of axes.
#
# **Prerequisites.** Arrays (lesson 01), tracing (02), `jit` (03) and `grad` (04). Answer these questions from memory.
#
# 1. From 01: `a` has shape `(4, 1)` and `b` has shape `(3,)`. What is the shape of `a + b`?
#
# <details><summary>Answer</summary>
#
# `(4, 3)`. Shapes are aligned from the right, and an axis that is missing or has size 1 is broadcast.
# </details>
#
# 2. From 02: What does a `print(x)` in a function print under `jax.make_jaxpr`?
#
# <details><summary>Answer</summary>
#
# A tracer, which has a shape and a dtype but no numbers. Python code runs while JAX traces the function.
# </details>
#
# 3. From 04: Why does `jax.grad` reject a function that returns a vector?
#
# <details><summary>Answer</summary>
#
# A gradient describes how *one number* changes with the inputs. Each entry of a vector has its own gradient.
# </details>

# %%
import jax
import jax.numpy as jnp
import numpy as np

# Helpers of this course, which draw figures, print errors, measure times and list operations:
from grader.learning import figures, plots
from grader.learning.inspection import flops, primitives, print_error, time_ms

# %% [markdown]
# ## Which sensor is wrong?
# The mean loss of a batch can show that a model fits badly, but not for which example. In this lesson, an example is one of 64 sensors. Each sensor reports a value `y`, which a linear model predicts from four measurements `x`. The mean loss has risen sharply since yesterday. Which sensor is the cause?
#
# The model and its loss are written for **one example**, without a batch axis.


# %%
def predict(params, x):
    """params {"w": (4,), "b": ()}, x (4,) -> a prediction ()"""
    return jnp.dot(params["w"], x) + params["b"]


def loss(params, x, y):
    """The squared error of one example: x (4,), y () -> ()"""
    return (predict(params, x) - y) ** 2


# %%
rng = np.random.default_rng(5)
params = {"w": jnp.array([1.0, -2.0, 0.5, 3.0]), "b": jnp.float32(0.25)}
xs = jnp.asarray(rng.normal(size=(64, 4)), jnp.float32)  # one row for each sensor
noise = jnp.asarray(0.1 * rng.normal(size=64), jnp.float32)
ys = xs @ params["w"] + params["b"] + noise
ys = ys.at[rng.integers(64)].multiply(-1)  # the fault that we want to find

losses_by_loop = jnp.stack([loss(params, x, y) for x, y in zip(xs, ys, strict=True)])
print(f"mean loss {losses_by_loop.mean():.2f}")

# %% [markdown]
# The Python loop is slow, because JAX dispatches several small operations for each example. You could rewrite `predict` for a batch, as `xs @ params["w"] + params["b"]`. In a larger function, you would have to change every axis and every index.
#
# `jax.vmap` does this rewrite for you. It takes a function of one example and returns a function of a batch. Its option `in_axes` has an entry for each argument. The entry is the axis of the examples, called the **mapped axis**, or `None` if all examples share the argument. A single number applies to all arguments, and the default is 0.

# %% [markdown] predict="vmap-out-shape"
# What is the shape of `jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)`, with `xs` of shape `(64, 4)`?
#
# - [ ] `()` | This would be the mean loss, but `vmap` does not reduce. It returns a result for each example.
# - [x] `(64,)` | Right. `loss` returns shape `()`, and `vmap` adds an axis for the 64 examples.
# - [ ] `(64, 4)` | `loss` receives the axis of 4 measurements, and its dot product sums over it.

# %%
losses = jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys)
print("shape", losses.shape, "  equal to the loop:", bool(jnp.allclose(losses, losses_by_loop)))

# %% [markdown]
# The result has the shape that `loss` returns, with the mapped axis in front. The largest of the 64 losses belongs to the faulty sensor. `predict` can be mapped in the same way.

# %%
worst = int(losses.argmax())
predictions = jax.vmap(predict, in_axes=(None, 0))(params, xs)
print(f"sensor {worst}: predicted {predictions[worst]:.1f}, reported {ys[worst]:.1f}")

# %%
_, (left, right) = plots.subplots(1, 2, height=3)
left.semilogy(losses, "o", markersize=4, label="one sensor")
left.axhline(losses.mean(), color=plots.COLOURS[2], linestyle="--", label="mean loss")
left.set(xlabel="sensor", ylabel="loss", ylim=(1e-7, 1e4))
left.legend(loc="upper left", ncols=2)
right.plot(predictions, ys, "o", markersize=4)
right.set(xlabel="predicted value", ylabel="reported value")
for panel, x, y in ((left, worst, losses[worst]), (right, predictions[worst], ys[worst])):
    panel.plot(x, y, "D", color=plots.COLOURS[1])
    panel.annotate(f"sensor {worst}", (x, y), xytext=(9, -3), textcoords="offset points")
plots.show(
    f"Left: the loss of each of 64 sensors. Sensor {worst} has {losses[worst]:.1f}, all others at most "
    f"{jnp.sort(losses)[-2]:.2f}, and the mean is {losses.mean():.2f}. Right: reported against predicted values. "
    f"All sensors lie on the diagonal but sensor {worst}, which reports {ys[worst]:.1f} instead of {predictions[worst]:.1f}."
)

# %% [markdown]
# One sensor causes the high mean. It reports its value with the wrong sign, as the right panel shows.

# %% [markdown]
# ## What the function sees
# A `print` shows the argument that `vmap` passes to your function.

# %% [markdown] predict="vmap-print"
# `vmap` maps a function with a `print` over 64 examples of 4 measurements. How often does it print, and which shape?
#
# - [ ] 64 times, `(4,)` | This would be a loop. `vmap` runs the function once, on a tracer.
# - [ ] once, `(64, 4)` | The function does run once, but `vmap` hides the batch axis from it.
# - [x] once, `(4,)` | Right. The function runs once, on a tracer that represents any of the examples.


# %%
def loss_that_prints(params, x, y):
    print("x is", x, "of shape", x.shape)
    return loss(params, x, y)


_ = jax.vmap(loss_that_prints, in_axes=(None, 0, 0))(params, xs, ys)

# %% [markdown]
# The function ran once, on a [tracer](../docs/glossary.md#tracer). The tracer contains the whole batch, `float32[64,4]`, but has the shape of one example, `float32[4]`. So `x.shape[0]` is 4, and `x.mean()` averages four measurements.
#
# What does `vmap` compute? Compare the [jaxpr](../docs/glossary.md#jaxpr) for one example with the jaxpr for 64.

# %%
print(jax.make_jaxpr(loss)(params, xs[0], ys[0]))
print(jax.make_jaxpr(jax.vmap(loss, in_axes=(None, 0, 0)))(params, xs, ys))

# %% [markdown]
# The operations are the same, in the same order, on larger arrays, so the program does not grow with the batch. Each primitive has a **batching rule**, which tells JAX how to compute it with an additional axis. `dot_general` now sums over axis 1 of `xs`, because axis 0 holds the examples. Compare `([0], [1])` with `([0], [0])`.

# %% [markdown]
# ## Choose the axes
# An entry of `in_axes` can be any axis, and negative numbers count from the end. Here each example is a column.

# %%
columns = xs.T  # (4, 64)
print(jax.vmap(predict, in_axes=(None, 1))(params, columns).shape)

# %% [markdown]
# An argument may be a dict or another container of arrays. One entry then applies to all its arrays, as `None` does for `params`. The entry can also be a container **of the same structure**, with an axis for each array. In the next cell, five models have different weights but share one bias.

# %%
ensemble = {"w": jnp.asarray(rng.normal(size=(5, 4)), jnp.float32), "b": jnp.float32(0.25)}
print(jax.vmap(predict, in_axes=({"w": 0, "b": None}, None))(ensemble, xs[0]).shape)

# %% [markdown]
# Operations that depend only on shared arguments are not batched. In this jaxpr, `tanh` is computed once, on four numbers.

# %%
print(jax.make_jaxpr(jax.vmap(lambda w, x: jnp.dot(jnp.tanh(w), x), in_axes=(None, 0)))(params["w"], xs))

# %% [markdown]
# `out_axes` is the same option for the results. It is one number, by default 0, or a container with the structure of the result.

# %% [markdown] predict="vmap-out-axes"
# `scale(x)` returns `{"scaled": (4,), "norm": ()}`. What are the two shapes with `out_axes={"scaled": 1, "norm": 0}` and 64 examples?
#
# - [x] `(4, 64)` and `(64,)` | Right. The mapped axis is axis 1 of the *result* "scaled".
# - [ ] `(64, 4)` and `(64,)` | `out_axes=0` gives these shapes. The number is the position of the mapped axis, not that of the measurements.
# - [ ] an error: "norm" has no axes | It has none for one example. In the result it has one, the mapped axis.


# %%
def scale(x):
    norm = jnp.linalg.norm(x)
    return {"scaled": x / norm, "norm": norm}


jax.tree.map(jnp.shape, jax.vmap(scale, out_axes={"scaled": 1, "norm": 0})(xs))

# %% [markdown]
# An entry of `out_axes` is the position of the mapped axis in that result. The figure summarises both options.
#
# ![Above: vmap of loss with in_axes (None, 0, 0). All examples share one copy of the parameters. Row i of xs and entry i of ys are the arguments of example i. The function is written for one example and traced once, and the results are stacked along axis 0. Below: in_axes 0 passes rows, 1 columns and None the whole array. out_axes 0 makes the results rows, 1 columns.](../images/vmap_axes.svg)

# %% [markdown]
# Change the axes. Each element shows its example.


# %%
def weigh(x, weights):
    return x * weights


figures.axis_mover(weigh, xs[:3], params["w"], in_axes=(0, None))

# %% [markdown]
# ## A gradient for each example
# `jax.grad(loss)` is a function of one example, so `vmap` can map it. First try the reverse order.

# %% [markdown] predict="vmap-grad-order"
# What does `jax.grad(jax.vmap(loss, in_axes=(None, 0, 0)))(params, xs, ys)` return?
#
# - [ ] a gradient for each example | This is the other order, `vmap` of `grad`.
# - [ ] the mean gradient | The mapped function would have to compute a mean, but `vmap` does not reduce.
# - [x] an error | Right. The mapped function returns shape `(64,)`, and `grad` needs a scalar.

# %%
print_error(lambda: jax.grad(jax.vmap(loss, in_axes=(None, 0, 0)))(params, xs, ys))

# %% [markdown]
# `vmap` of `grad` returns a gradient for each example.

# %%
gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)
print(jax.tree.map(jnp.shape, gradients))
norms = jnp.sqrt(jnp.sum(gradients["w"] ** 2, axis=1) + gradients["b"] ** 2)
print(f"largest gradient: sensor {norms.argmax()}, norm {norms.max():.1f}; median norm {jnp.median(norms):.2f}")

# %% [markdown]
# The result has the structure of `params`, and each array has a new first axis of size 64. These gradients need as much memory as 64 copies of the parameters. If you need only their mean, differentiate the mean loss.


# %%
def mean_loss(params):
    return jax.vmap(loss, in_axes=(None, 0, 0))(params, xs, ys).mean()


gradient_of_mean = jax.grad(mean_loss)(params)
jax.tree.map(lambda each, mean: bool(jnp.allclose(each.mean(0), mean, atol=1e-5)), gradients, gradient_of_mean)

# %% [markdown]
# ## All pairs
# Each `vmap` adds one axis, so two nested calls evaluate a function for all pairs. The inner one shares a row `x` and maps over the rows of `ys`. The outer one maps over the rows of `xs` and shares `ys`.
#
# ![A grid of distances between 4 xs and 5 ys. The inner vmap, in_axes (None, 0), computes one row, x0 against all ys. The outer vmap, in_axes (0, None), stacks the rows. The outermost vmap creates the first axis.](../images/vmap_pairwise.svg)


# %%
def l1(x, y):
    return jnp.sum(jnp.abs(x - y))


def pairwise(xs, ys):
    return jax.vmap(jax.vmap(l1, in_axes=(None, 0)), in_axes=(0, None))(xs, ys)


def pairwise_by_broadcasting(xs, ys):
    return jnp.sum(jnp.abs(xs[:, None, :] - ys[None, :, :]), axis=-1)


few, many = xs[:4], xs[10:15]
print(pairwise(few, many).shape, bool(jnp.allclose(pairwise(few, many), pairwise_by_broadcasting(few, many))))

# %% [markdown]
# The **outermost** `vmap` creates the first axis, so entry `[i, j]` compares `xs[i]` with `ys[j]`. Broadcasting gives the same result, but you must insert each axis by hand.

# %% [markdown]
# ## How fast is vmap?
# Here are five ways to compute all distances between two sets of 32 vectors.


# %%
compiled_l1 = jax.jit(l1)


def pairwise_by_loop(xs, ys):
    return jnp.stack([jnp.stack([compiled_l1(x, y) for y in ys]) for x in xs])


small = jnp.asarray(rng.normal(size=(32, 32)), jnp.float32)
ways = {
    "loop over jitted l1": pairwise_by_loop,
    "vmap": pairwise,
    "broadcasting": pairwise_by_broadcasting,
    "jit of vmap": jax.jit(pairwise),
    "jit of broadcasting": jax.jit(pairwise_by_broadcasting),
}

# %% [markdown] predict="vmap-speed"
# Which two of these ways take nearly the same time?
#
# - [ ] the Python loop and vmap | The loop dispatches 1,024 calls. `vmap` dispatches each operation once.
# - [ ] vmap with and without jit | Without `jit`, `vmap` traces the function at every call, and each operation is dispatched separately.
# - [x] vmap and broadcasting, both under jit | Right. Both consist of the same operations.

# %%
calls = [lambda way=way: way(small, small) for way in ways.values()]
milliseconds = dict(zip(ways, time_ms(*calls, repeats=51), strict=True))
_, axes = plots.subplots(height=2.2)
axes.plot(list(milliseconds.values()), list(ways), "o", markersize=8)
for way, took in milliseconds.items():
    axes.annotate(f"{took:.2g} ms", (took, way), (9, -4), textcoords="offset points", backgroundcolor=plots.PAPER)
axes.set(xscale="log", xlim=(min(milliseconds.values()) / 2, 5 * max(milliseconds.values())))
axes.set(xlabel="median time in milliseconds, logarithmic scale")
axes.grid(axis="y", color=plots.QUIET, alpha=0.3, linewidth=0.8)
axes.margins(y=0.15)
axes.invert_yaxis()
plots.show("Median times. " + "; ".join(f"{way}: {took:.2g} ms" for way, took in milliseconds.items()) + ".")

# %% [markdown]
# Under `jit`, `vmap` and broadcasting by hand take nearly the same time. Without `jit`, both dispatch their operations one at a time, and `vmap` also traces the function at every call. Use `jax.jit(jax.vmap(f))` in code that runs often.

# %% [markdown]
# ## What each transformation hides
# The tracers of `grad`, `vmap` and `jit` differ in what they hide from your function.


# %%
def magnitude(x):
    print(f"shape {x.shape}, {x}")
    return jnp.abs(x.sum())


jax.grad(magnitude)(xs[0])
jax.vmap(magnitude)(xs)
_ = jax.jit(magnitude)(xs[0])

# %% [markdown]
# | transformation | a tracer represents | it hides | a Python `if` on its value |
# |---|---|---|---|
# | `jax.grad(f)(x)` | this array `x` | nothing | runs the branch for this value |
# | `jax.vmap(f)(xs)` | any one example of `xs` | the mapped axis | fails, as two examples may need different branches |
# | `jax.jit(f)(x)` | any array of this shape and dtype | the value | fails, as there is no value yet |
#
# The next cell tries such an `if`.


# %%
def magnitude_by_if(x):
    return x.sum() if x.sum() > 0 else -x.sum()


print("grad:", jax.grad(magnitude_by_if)(xs[0]))
print("vmap, jit, vmap of grad:")
print_error(lambda: jax.vmap(magnitude_by_if)(xs), length=75)
print_error(lambda: jax.jit(magnitude_by_if)(xs[0]), length=75)
print_error(lambda: jax.vmap(jax.grad(magnitude_by_if))(xs), length=75)
print("vmap with where:", jax.vmap(lambda x: jnp.where(x.sum() > 0, x.sum(), -x.sum()))(xs[:3]))

# %% [markdown]
# Combined transformations have the restrictions of both, so `vmap` of `grad` rejects the `if` too. Use `jnp.where` for such a choice. It computes both results and selects one for each example.

# %% [markdown]
# ## What goes wrong
# A wrong entry of `in_axes` is a common mistake. The next function divides each of the four measurements by its standard deviation. All examples share `spread`, so its entry must be `None`. Suppose that you forget this and test with four examples.

# %% [markdown] predict="vmap-silent"
# What does `jax.vmap(lambda x, spread: x / spread)(xs[:4], spread)` return, with `spread` of shape `(4,)`?
#
# - [ ] an error about sizes | There are 4 examples and 4 spreads, so the sizes agree.
# - [ ] the right result | Example i receives the single number `spread[i]`, which divides *all* its measurements.
# - [x] the right shape with wrong numbers | Right. No error reports the mistake.

# %%
spread = jnp.array([1.0, 10.0, 100.0, 1000.0])
divide = lambda x, spread: x / spread
wrong = jax.vmap(divide)(xs[:4], spread)
right = jax.vmap(divide, in_axes=(0, None))(xs[:4], spread)
print("shapes", wrong.shape, right.shape, "  equal:", bool(jnp.allclose(wrong, right)))
print_error(lambda: jax.vmap(divide)(xs, spread), length=420)

# %% [markdown]
# With all 64 examples, the same mistake raises an error that lists each argument with its axis and size. **Test with sizes that all differ**, such as 7 examples of 4 measurements.

# %% [markdown]
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: what vmap compiles to
# `vmap` and broadcasting by hand produce the same operations and the same number of floating-point operations.

# %%
for way in (pairwise, pairwise_by_broadcasting):
    print(f"{way.__name__}: {flops(way, small, small):,.0f} flops, {primitives(way, small, small)}")

# %% [markdown]
# `jit` saves time, because JAX traces the function only once, in either order of `jit` and `vmap`.

# %%
traces = []


def l1_that_counts(x, y):
    traces.append("trace")
    return l1(x, y)


over_rows = jax.vmap(l1_that_counts, in_axes=(0, None))
vmap_of_jit = jax.vmap(jax.jit(l1_that_counts), in_axes=(0, None))
for name, way in {"vmap": over_rows, "jit of vmap": jax.jit(over_rows), "vmap of jit": vmap_of_jit}.items():
    traces.clear()
    for _ in range(3):
        way(small, small[0])
    print(f"{name:12s} traces in 3 calls: {len(traces)}")

# %% [markdown]
# `jit` also saves memory, because the compiler fuses these operations. Without `jit`, the differences of all pairs are stored as an array.

# %%
big = jnp.asarray(rng.normal(size=(512, 256)), jnp.float32)
largest = max(equation.outvars[0].aval.size for equation in jax.make_jaxpr(pairwise)(big, big).eqns)
print(f"largest intermediate array without jit: {4 * largest / 2**20:,.0f} MiB")
scratch = jax.jit(pairwise).lower(big, big).compile().memory_analysis().temp_size_in_bytes
print(f"temporary memory of the compiled code:  {scratch / 2**20:,.0f} MiB")

# %% [markdown]
# Programs with intermediate results that cannot be fused may need too much memory for a large batch. `jax.lax.map(f, xs, batch_size=32)` processes 32 examples at a time, in a loop.
#
# A Python loop under `jit` is not a replacement for `vmap`. JAX unrolls it during tracing, so the program grows with the batch.

# %%
for n in (4, 8, 16):
    unrolled = primitives(lambda xs: jnp.stack([l1(x, xs[0]) for x in xs]), small[:n])
    batched = primitives(jax.vmap(l1, in_axes=(0, None)), small[:n], small[0])
    print(f"{n:3d} examples: {len(unrolled):4d} operations unrolled, {len(batched)} with vmap")

# %% [markdown]
# ## Deeper: functions that you did not write
# `vmap` can also map library functions that consist of JAX operations. `jnp.interp` interpolates along a single curve, and `vmap` extends it to one curve for each reading.

# %%
readings = jnp.array([0.5, 1.5, 1.0])
curve_x = jnp.array([[0.0, 1.0, 2.0]] * 3)
curve_y = jnp.array([[0.0, 10.0, 20.0], [0.0, 100.0, 200.0], [5.0, 5.0, 5.0]])

print_error(lambda: jnp.interp(readings, curve_x, curve_y))
print(jax.vmap(jnp.interp)(readings, curve_x, curve_y))

# %% [markdown]
# A NumPy function needs concrete arrays and rejects every tracer, including that of `grad`.

# %%
print_error(lambda: jax.vmap(np.interp)(readings, curve_x, curve_y), length=105)
print_error(lambda: jax.grad(np.interp)(readings[0], curve_x[0], curve_y[0]), length=105)

# %% [markdown]
# ## Deeper: keyword arguments and unmapped results
# Keyword arguments are always mapped along axis 0, because `in_axes` applies to positional arguments only. Bind a shared keyword argument before you map the function, with `functools.partial` or a lambda.

# %%
print_error(lambda: jax.vmap(divide)(xs, spread=spread), length=420)
print(jax.vmap(lambda x: divide(x, spread=spread))(xs).shape)

# %% [markdown]
# `out_axes=None` declares that a result is the same for all examples. JAX accepts the declaration only if the result depends on no mapped argument.

# %%
mean_and_rest = lambda x, spread: (x / spread, spread.mean())
print(jax.tree.map(jnp.shape, jax.vmap(mean_and_rest, in_axes=(0, None), out_axes=(0, None))(xs, spread)))
print_error(lambda: jax.vmap(divide, in_axes=(0, None), out_axes=None)(xs, spread), length=200)

# %% [markdown]
# ## Deeper: branches in a batch
# `jax.lax.cond` chooses a branch while the program runs. In a batch, different examples can need different branches.

# %% [markdown] predict="vmap-cond"
# Both branches of a `cond` print a line. `vmap` maps it over `[1., -1., 3.]`, where two numbers are positive (hot) and one is negative (cold). Which lines appear?
#
# - [ ] 2 hot, 1 cold | One example runs one branch. A batch has to serve all its examples.
# - [x] 3 hot, 3 cold | Right. Both branches run on the whole batch, and each example's result is then selected.
# - [ ] 1 hot, 1 cold | Each branch does run once, on the whole batch. But the print is batched too, and prints a line for each example.


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
#
# The jaxpr shows the reason. With a flag for each example, `cond` becomes a selection.

# %%
either = lambda flag, x: jax.lax.cond(flag, jnp.sin, jnp.cos, x)
flags, numbers = jnp.array([True, False, True]), jnp.ones(3)
print("one example:           ", primitives(either, flags[0], numbers[0]))
print("a flag for each example:", primitives(jax.vmap(either), flags, numbers))
print("one shared flag:       ", primitives(jax.vmap(either, in_axes=(None, 0)), flags[0], numbers))

# %% [markdown]
# In the second line, `sin` and `cos` are both computed, and the last `select_n` picks the results. The other two `select_n` protect the gradient from a NaN in the branch that is not taken (lesson 08). With a shared flag, the `cond` remains.
#
# With a flag for each example, both branches are computed for every example. If one branch is expensive and rarely taken, `jax.lax.map` may be faster. It processes the examples one by one and keeps the `cond`. Here one of 256 examples needs 200 steps.


# %%
def settle(x):
    many_steps = lambda x: jax.lax.fori_loop(0, 200, lambda i, x: jnp.tanh(1.01 * x), x)
    return jax.lax.cond(jnp.max(x) > 1.0, many_steps, lambda x: x, x)


states = jnp.asarray(rng.uniform(0, 1, size=(256, 512)), jnp.float32).at[7, 0].set(2.0)
mapped, looped = jax.jit(jax.vmap(settle)), jax.jit(lambda states: jax.lax.map(settle, states))
vmap_ms, loop_ms = time_ms(lambda: mapped(states), lambda: looped(states))
print(f"jit of vmap: {vmap_ms:.2f} ms   jit of lax.map: {loop_ms:.2f} ms")

# %% [markdown]
# Loops behave in a similar way. Under `vmap`, a `while_loop` runs until the last example is done (lesson 08).

# %% [markdown]
# ## Deeper: closed over, or in_axes=None?
# A function can also use an array from the enclosing scope. `vmap` shares it among the examples, exactly like an argument with `None`. The batched operations are the same.

# %%
matrix = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
closed = jax.vmap(lambda x: matrix @ x)
passed = jax.vmap(lambda matrix, x: matrix @ x, in_axes=(None, 0))
print(primitives(closed, xs), primitives(passed, matrix, xs))

# %% [markdown]
# The difference appears under `jit` (03). A compiled program contains a closed-over array as a constant. It is not updated when the variable is assigned again. An argument can be replaced, differentiated and donated.

# %%
closed_program, passed_program = jax.jit(closed), jax.jit(passed)
closed_program(xs), passed_program(matrix, xs)  # compiles both
matrix = jnp.zeros_like(matrix)
print("after the assignment, closed over:", closed_program(xs)[0], " passed:", passed_program(matrix, xs)[0])

# %% [markdown]
# As a rule, close over settings and pass parameters.

# %% [markdown]
# ## Deeper: reduce over the batch with axis_name
# A mapped function can compute with the whole batch if the mapped axis has a name. `axis_name` gives it one, and collective operations such as `jax.lax.pmean` then reduce over that axis. The function below normalises one example with the mean and the variance of the batch.


# %%
def normalise(x):
    mean = jax.lax.pmean(x, "batch")
    return (x - mean) / jnp.sqrt(jax.lax.pmean((x - mean) ** 2, "batch") + 1e-5)


normalised = jax.vmap(normalise, axis_name="batch")(xs)
print("means", normalised.mean(0).round(4), " standard deviations", normalised.std(0).round(4))

# %% [markdown]
# The same collectives communicate between devices inside `jax.shard_map` ([lesson 19](19_shard_map.ipynb)).

# %% [markdown]
# ## Deeper: vmap on several devices
# *Read this section after lesson 19.* A function can constrain how its arrays are sharded over a mesh of devices. Under `vmap`, it does not see the mapped axis, so its constraint cannot mention that axis. `spmd_axis_name` is the name of the mesh axis over which `vmap` partitions the mapped axis. An `AbstractMesh` describes a mesh without its devices, which is enough to see the effect.

# %%
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def activations(x):
    return jax.lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(mesh, P("model")))


def print_constraint(function, x):
    constraint = jax.make_jaxpr(function)(x).eqns[-1]
    print(constraint.outvars[0].aval, constraint.params["sharding"].spec)


print_constraint(activations, xs[0])
print_constraint(jax.vmap(activations), xs)
print_constraint(jax.vmap(activations, spmd_axis_name="data"), xs)

# %% [markdown]
# In the second line, the mapped axis is `UNCONSTRAINED`, so the compiler chooses its sharding. In the third line, it is partitioned over `data`. A `jax.shard_map` inside `vmap` uses the name in the same way. In the output below, `None` means that every device along `data` processes all examples.


# %%
def shard_map_specs(**options):
    total = jax.shard_map(lambda x: jax.lax.psum(x, "model"), mesh=mesh, in_specs=P("model"), out_specs=P())
    [equation] = jax.make_jaxpr(jax.vmap(total, **options))(xs).eqns
    return equation.params["in_specs"]


print("without a name:", shard_map_specs())
print("with a name:   ", shard_map_specs(spmd_axis_name="data"))

# %% [markdown]
# The option is meant for meshes with `Auto` axes. On a mesh with `Explicit` axes, the sharding is part of the array's type, so `vmap` finds the sharding of the mapped axis in the argument's type.

# %%
explicit = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Explicit))
with jax.sharding.use_abstract_mesh(explicit):
    batch = jax.ShapeDtypeStruct(xs.shape, xs.dtype, sharding=NamedSharding(explicit, P("data")))
    print(jax.make_jaxpr(jax.vmap(lambda x: jax.sharding.reshard(jnp.tanh(x), P("model"))))(batch))

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.experimental.maps.xmap`, `jax.soft_pmap`, `jax.mask` | removed; use `vmap` with `axis_name`, or `jax.shard_map` |
# | `jax.pmap(jax.vmap(f))` | `jax.jit` of `vmap` with sharded inputs (18), or `jax.shard_map` |
# | `nnx.vmap` | still available; modules are pytrees now, so `jax.vmap` accepts them too (10) |
# | `pure_callback(..., vectorized=True)` | `pure_callback(..., vmap_method="broadcast_all")` |
# | `np.vectorize` | a Python loop in NumPy; `jnp.vectorize` uses `vmap`, with NumPy's signature strings |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | one function for many examples | `jax.vmap(f)`, which maps axis 0 of every argument |
# | a shared argument | `in_axes=(None, 0)` |
# | the batch on another axis | `in_axes=1` or `-1`; for results `out_axes=1` |
# | some arrays of a container mapped | an entry of the same structure, `in_axes=({"w": 0, "b": None}, 0)` |
# | all pairs | `vmap` of `vmap`; the outermost creates the first axis |
# | a gradient for each example | `vmap(grad(loss), in_axes=(None, 0, 0))` |
# | the mean gradient | `grad` of the mean of the mapped loss |
# | a choice for each example | `jnp.where`; an `if` on a value fails |
# | speed | `jax.jit(jax.vmap(f))` |
# | a test that finds wrong axes | sizes that all differ |
