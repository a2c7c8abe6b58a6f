# %% [markdown]
# # 13 · Debugging: from a symptom to its cause
#
# *The core takes about 30 minutes. The eleven "Deeper" sections are optional, but two exercises need one of them. Then do [the exercises](../exercises/13_debugging/13_debugging.ipynb).* After the core you can find the step, the example and the operation that produce a NaN, print values from a compiled function, detect silent mistakes with `checkify`, and read the traceback of a transformed function.
#
# **Prerequisites.** Tracing (02), `jit` (03), `grad` (04), `vmap` (05) and control flow (08). Answer these questions from memory.
#
# 1. From 02: What do `print(x)` and `jax.debug.print("{}", x)` show under `jit`, and when?
#
# <details><summary>Answer</summary>
#
# `print` shows a tracer, once for each trace. `jax.debug.print` shows the value in each call of the program.
# </details>
#
# 2. From 04: Why does `jnp.where(x > 0, jnp.log(x), 0.0)` have a NaN gradient at `x = 0`?
#
# <details><summary>Answer</summary>
#
# Both branches are computed. The derivative of the logarithm at 0 is infinite, and 0 times infinity is NaN.
# </details>
#
# 3. From 08: What does `jax.lax.scan` return in addition to the last carry?
#
# <details><summary>Answer</summary>
#
# The outputs of all iterations, stacked along a new first axis.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for one Deeper section

import io

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

# Helpers of this course, which plot, measure times, and print errors, tracebacks and logs:
from grader.learning import plots
from grader.learning.inspection import print_error, print_log, time_ms, traceback_frames

# %% [markdown]
# ## A loss that becomes NaN
# The model below predicts the logarithm of a quantity that is linear in three measurements `x`. Its loss decreases in every step until it is NaN.


# %%
def predict(w, x):
    """w (3,), x (3,) -> the predicted logarithm ()"""
    quantity = jnp.dot(w, x)
    return jnp.log(quantity)


def loss(w, xs, ys):
    predictions = jax.vmap(predict, in_axes=(None, 0))(w, xs)
    return jnp.mean((predictions - ys) ** 2)


@jax.jit
def step(w, xs, ys):
    value, gradient = jax.value_and_grad(loss)(w, xs, ys)
    return w - 0.2 * gradient, value


# %%
rng = np.random.default_rng(13)
xs = rng.uniform(0.2, 1.0, size=(64, 3)).astype(np.float32)
xs[17] = [0.1, 0.1, 0.7]  # an unusual example
ys = np.log(np.maximum(xs @ np.array([2, 1, -0.5], np.float32), 0.01))
xs, ys = jnp.asarray(xs), jnp.asarray(ys)

w, weights, losses = jnp.ones(3), [], []
for _ in range(30):
    weights.append(w)
    w, value = step(w, xs, ys)
    losses.append(float(value))
first = int(np.argmax(~np.isfinite(losses)))
print(f"step {first - 1}: loss {losses[first - 1]:.3f}, step {first}: loss {losses[first]}, final weights {w}")

# %%
_, axes = plots.subplots(height=2.4)
axes.plot(losses, "o-", markersize=4)
axes.axvline(first, color=plots.COLOURS[1], linestyle="--")
axes.annotate("NaN from here", (first, 0.3), (6, 0), textcoords="offset points")
axes.set(xlabel="step", ylabel="loss", xlim=(-1, 30), ylim=(0, 0.6))
plots.show(
    f"The loss of 30 steps. It decreases from {losses[0]:.2f} to {losses[first - 1]:.2f} in step {first - 1}. "
    f"From step {first} on it is NaN, and no point is drawn."
)

# %% [markdown]
# The curve gives no warning. After step 23 all weights are NaN, so it is too late to inspect them. The figure shows the tools for each symptom. The core uses five tools, and Deeper sections cover the others.
#
# ![A table of symptoms, tools and what each tool gives. Wrong values: for NaN or inf, jax.debug_nans and jax.debug_infs raise an error at the operation; for unknown values, jax.debug.print prints a line in each call, and jax.debug.breakpoint opens a prompt; for one bad example or index, checkify returns an error value with a message. Errors: jax.disable_jit runs code as plain Python; jax_traceback_filtering shortens a traceback; jax.checking_leaks raises an error where a tracer leaks. Slow calls: jax.explain_cache_misses shows what differs in the cache key; jax.log_compiles shows the time of each stage; jax.transfer_guard raises an error at a copy. Silent mistakes: jax.debug_key_reuse raises an error at the second use of a key; visualize_array_sharding draws the shards.](../images/debugging_tools.svg)

# %% [markdown]
# ## Which operation? jax.debug_nans
# We stored the weights before each step, so step 23 can be repeated alone. `jax.debug_nans` is a context manager that raises an error at the first operation with a NaN in its result.

# %%
with jax.debug_nans(True):
    print_error(lambda: step(weights[first], xs, ys))

# %% [markdown]
# The operation is a logarithm. In an NNX model (10), the traceback contains the line of `__call__`, where `jax.debug.print` works too. JAX also prints that it calls a "de-optimized version", which is explained below. These are the frames of the traceback in our functions.

# %%
with jax.debug_nans(True):
    frames = traceback_frames(lambda: step(weights[first], xs, ys))
print("\n".join(frame for frame in frames if frame.startswith(("step", "loss", "predict"))))

# %% [markdown]
# JAX cannot check the individual operations of a compiled program. It checks the **results** of a jitted function. If it finds a NaN, it prints the message above, runs the function again without `jit`, and checks each operation. The message appears twice because `jnp.log` is itself jitted. The option slows programs down and disables donation (03), so use it only while you debug. The environment variable `JAX_DEBUG_NANS=1` sets it for a whole run. `jax.debug_infs` does the same for infinities.

# %% [markdown] predict="debug-masked"
# `masked(x)` is `jnp.where(x > 0, jnp.log(x), 0.0)`. What happens in `jax.jit(masked)(-1.0)` under `jax.debug_nans(True)`?
#
# - [ ] an error in `log` | This is what happens without `jit`, where every operation is checked.
# - [x] no error, the result is 0 | Right. The logarithm is NaN, but it is not a result of the jitted function.
# - [ ] no error, the result is NaN | `where` selects 0 for a negative number.


# %%
def masked(x):
    return jnp.where(x > 0, jnp.log(x), 0.0)


with jax.debug_nans(True):
    print("jit:", jax.jit(masked)(-1.0))
    print_error(lambda: masked(-1.0))
    print_error(lambda: jax.jit(jax.grad(masked))(0.0))

# %% [markdown]
# Without `jit` the same call raises an error, although its result is correct. This is a false alarm, until the function is differentiated. Its gradient at 0 is NaN, from a `div`, because the derivative of `log` divides by `x`. A second `where`, on the argument, prevents both errors (04).

# %% [markdown]
# ## Which values? jax.debug.print
# Now we know the line, but not its values. `jax.debug.print` prints from compiled code. Its text is a format string, and traced values are its arguments.

# %% [markdown] predict="debug-formatted"
# A jitted function is called twice with arrays of the same shape. It contains `jax.debug.print(f"sum {x.sum()}")`, with an `f`. What is printed?
#
# - [ ] the sum, in both calls | This needs `jax.debug.print("sum {}", x.sum())`. Python evaluates an f-string while JAX traces.
# - [ ] `sum JitTracer(float32[])` once | The text was created once, but it is printed by the program.
# - [x] `sum JitTracer(float32[])` in both calls | Right. Python created the text while tracing, and the program prints this constant text each time.

# %%
formatted = jax.jit(lambda x: jax.debug.print(f"sum {x.sum()}"))
formatted(jnp.ones(3)), formatted(jnp.zeros(3))
jax.effects_barrier()  # wait for the prints
print_error(lambda: f"{jnp.ones(3):.3f}")

# %% [markdown]
# The last line shows that a format such as `{:.3f}` accepts scalars only, also in `jax.debug.print`.
#
# In a long run, put the print into one branch of `jax.lax.cond`, so that it runs only in steps with a problem.


# %%
@jax.jit
def step_that_reports(w, xs, ys):
    quantities = xs @ w
    worst = jnp.argmin(quantities)
    report = lambda: jax.debug.print("example {}: quantity {:.4f}, w = {}", worst, quantities[worst], w)
    jax.lax.cond(quantities[worst] <= 0, report, lambda: None)
    return step(w, xs, ys)


w = weights[0]
for _ in range(30):
    w, _ = step_that_reports(w, xs, ys)
jax.effects_barrier()

# %% [markdown]
# In 30 steps one line is printed, in step 23. In later steps the quantities are NaN, and a comparison with NaN is False. Example 17 has a negative quantity, and its logarithm is NaN.
#
# ## Return what you want to see
# A print shows one moment. To see how a value develops, return it, here all 64 quantities of each step.


# %%
def step_with_quantities(w, _):
    return step(w, xs, ys)[0], jax.vmap(jnp.dot, in_axes=(None, 0))(w, xs)


_, quantities = jax.lax.scan(step_with_quantities, weights[0], length=first + 1)
_, axes = plots.subplots(height=2.6)
axes.plot(np.delete(quantities, 17, axis=1), color=plots.COLOURS[0], linestyle="-", linewidth=0.6)
axes.plot(quantities[:, 17], "o-", color=plots.COLOURS[1], markersize=4)
axes.axhline(0, color=plots.INK, linewidth=1)
axes.annotate("example 17", (first - 6, quantities[first - 6, 17]), (0, -22), textcoords="offset points")
axes.set(xlabel="step", ylabel="quantity", ylim=(-0.4, None))
plots.show(
    f"The quantities of 64 examples in {first + 1} steps. Those of 63 examples stay between "
    f"{np.delete(quantities, 17, axis=1).min():.2f} and {quantities.max():.2f}. Example 17 decreases from "
    f"{quantities[0, 17]:.2f} to {quantities[first - 1, 17]:.3f} and is {quantities[first, 17]:.3f} in step {first}."
)

# %% [markdown]
# Example 17 approaches zero slowly and then crosses it. Near zero the derivative of the logarithm is large, so the update is too large. The model is the cause, because nothing keeps its quantity positive.

# %% [markdown]
# ## Which example? checkify
# The tools above are for debugging sessions. `checkify` adds checks that can stay in a program. `checkify.check(condition, message, ...)` is an assertion on traced values. `checkify.checkify(f)` transforms `f` into a function that returns an **[error value](../docs/glossary.md#error-value)** and the result, and can be compiled.


# %%
def predict_checked(w, x):
    quantity = jnp.dot(w, x)
    checkify.check(quantity > 0, "the quantity is {}", quantity)
    return jnp.log(quantity)


compiled = jax.jit(checkify.checkify(predict_checked))
for x in (xs[0], xs[17]):
    error, value = compiled(weights[first], x)
    print(f"result {value:.3f}, error: {error.get()}")
print_error(error.throw)
print_error(lambda: jax.jit(predict_checked)(weights[first], xs[17]))

# %% [markdown]
# `error.get()` returns the message of the first failed check or `None` (after `vmap`, a line for each failing example), and `error.throw()` raises it. Without one of these calls, a failed check goes unnoticed. As the last error shows, a check cannot be compiled without `checkify`.

# %% [markdown] predict="debug-checkify-order"
# Which of these names the failing example of the batch?
#
# - [ ] `checkify.checkify(jax.vmap(predict_checked, in_axes=(None, 0)))` | It returns one error for the whole batch, with the value but without the index.
# - [x] `jax.vmap(checkify.checkify(predict_checked), in_axes=(None, 0))` | Right. Each example has its own error.
# - [ ] both | They compute the same results, but the first has one error for the batch, and the second has 64.

# %%
checkify_of_vmap = checkify.checkify(jax.vmap(predict_checked, in_axes=(None, 0)))
vmap_of_checkify = jax.vmap(checkify.checkify(predict_checked), in_axes=(None, 0))
for function in (checkify_of_vmap, vmap_of_checkify):
    error, _ = jax.jit(function)(weights[first], xs)
    print(error.get())

# %% [markdown]
# `checkify` can also add checks to code that has none. Its argument `errors` is a `frozenset` of checks, and `|` combines such sets.
#
# | `errors=` | reports |
# |---|---|
# | `checkify.user_checks` (the default) | a failed `checkify.check` |
# | `checkify.nan_checks` | most operations with a NaN in their result, even if it is masked later |
# | `checkify.div_checks` | a division by zero |
# | `checkify.index_checks` | an index that is out of bounds |
# | `checkify.float_checks` | NaN and division by zero |
# | `checkify.automatic_checks`, `checkify.all_checks` | all automatic checks, or these and your own |
#
# This helps most with out-of-bounds indices. JAX clamps the index of `table[i]`, so `table[7]` below silently returns the last entry.

# %%
table = jnp.array([0.1, 0.2, 0.4, -0.8])
lookup = lambda table, i: jnp.log(table[i])
checked = jax.jit(checkify.checkify(lookup, errors=checkify.automatic_checks))
for i in (0, 3, 7):
    error, value = checked(table, i)
    print(f"table[{i}]: result {value:.2f}, error: {error.get()}")

# %% [markdown]
# Checks are additional operations on the device, but the program stays compiled. Use the automatic checks in tests, and a few cheap checks of your own in production.
#
# ## Fix, and test the fix
# `jax.nn.softplus(z)`, which is log(1 + exp(z)), is positive in float32 for `z` above about -87, so its logarithm is finite. Training then runs under `debug_nans` without an error. The loss stays above the earlier 0.10, mostly because this model cannot reach the target of example 17.


# %%
def fixed_loss(w):
    predictions = jnp.log(jax.nn.softplus(xs @ w))
    return jnp.mean((predictions - ys) ** 2)


@jax.jit
def fixed_step(w, _):
    value, gradient = jax.value_and_grad(fixed_loss)(w)
    return w - 0.2 * gradient, value


with jax.debug_nans(True):
    w, fixed_losses = jax.lax.scan(fixed_step, jnp.ones(3), length=200)
print(f"first loss {fixed_losses[0]:.3f}, last loss {fixed_losses[-1]:.3f}, weights {w}")

# %% [markdown]
# ## Run it as Python: jax.disable_jit
# Under `jax.disable_jit`, jitted functions and the loops of `jax.lax` run as plain Python on arrays with values. `print`, an `if` on a value and the Python debugger then work. This function fails under `jit`, because its `if` needs a value.


# %%
@jax.jit
def first_large(x):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
        if total > 1:
            print("the total exceeds 1 at index", i, "with", total)
            return i
    return len(x)


x = jnp.array([0.3, 0.5, 0.4, 0.1])
print_error(lambda: first_large(x), length=110)
with jax.disable_jit():
    print("without jit:", first_large(x))

# %% [markdown]
# `vmap` and `grad` still use tracers under `disable_jit`, so an `if` under `vmap` still fails (05). Programs also become much slower.

# %%
fast = lambda: jax.lax.scan(fixed_step, jnp.ones(3), length=3)


def slow():
    with jax.disable_jit():
        return jax.lax.scan(fixed_step, jnp.ones(3), length=3)


compiled_ms, python_ms = time_ms(fast, slow, repeats=1)
print(f"3 steps: {compiled_ms:.1f} ms compiled, {python_ms:.0f} ms without jit")

# %% [markdown]
# ## Read a traceback
# Errors in shapes and types appear while JAX traces, so their traceback contains the line of your code. Between your frames are many frames of JAX. The option `jax_traceback_filtering` controls whether these are shown.
#
# | mode | frames of JAX |
# |---|---|
# | `quiet_remove_frames` | are removed |
# | `remove_frames` | are removed, and the full traceback is shown first |
# | `tracebackhide` | are hidden by IPython, for example in a notebook |
# | `off` | are shown |
# | `auto`, the default | are hidden in IPython, and removed elsewhere |


# %%
def layer(w, x):
    return jnp.tanh(w @ x)


def network_loss(w, xs):
    return jnp.sum(jax.vmap(layer, in_axes=(None, 0))(w, xs))


def call_with_wrong_shape():
    return jax.jit(jax.grad(network_loss))(jnp.ones((3, 5)), jnp.ones((8, 4)))


for mode in ("off", "quiet_remove_frames"):
    jax.config.update("jax_traceback_filtering", mode)
    frames = traceback_frames(call_with_wrong_shape)
    print(f"{mode}: {len(frames)} frames")
jax.config.update("jax_traceback_filtering", "auto")
print("\n".join(frames))
print_error(call_with_wrong_shape)

# %% [markdown]
# Read a traceback from its end. The last line is the message, with the sizes of the contracted axes, 5 of `w` and 4 of `x`. Above it, find the last line of your code, here in `layer`. The filter keeps the frames of `jax.numpy` after it. Set the mode to `off` to report a bug in JAX.

# %% [markdown]
# The core ends here. Continue with a Deeper section, the [summary](#Summary) or the exercises.

# %% [markdown]
# ## Deeper: a breakpoint in a compiled program
# `jax.debug.breakpoint()` stops a compiled program and opens a prompt with the values of the surrounding functions. It works in a terminal, and in notebooks that can ask for input. Put it into a branch of `cond`, so that it stops only when something is wrong.
#
# | command | effect |
# |---|---|
# | `p name`, `pp name` | prints a value |
# | `l`, `w` | lists the source, shows the traceback |
# | `u`, `d` | moves to the caller, and back |
# | `c`, `q` | continues, stops |
#
# In the next cell the commands come from a text instead of the keyboard.

# %%
commands, prompt = io.StringIO("p quantity\np weights\nc\n"), io.StringIO()


def predict_or_stop(w, x):
    def stop(quantity, weights):
        jax.debug.breakpoint(backend="cli", stdin=commands, stdout=prompt)

    quantity = jnp.dot(w, x)
    jax.lax.cond(quantity <= 0, stop, lambda quantity, weights: None, quantity, w)
    return jnp.log(quantity)


_ = jax.jit(predict_or_stop)(weights[first], xs[17]).block_until_ready()
jax.effects_barrier()
print(prompt.getvalue())

# %% [markdown]
# The prompt shows copies, so you cannot change a value of the program. The program waits until you enter `c`.

# %% [markdown]
# ## Deeper: prints under grad, vmap and scan
# A print is transformed with its function. Under `vmap` it prints a line for each example, and in a `scan` a line for each iteration. Under `grad` it prints once, in the forward pass.


# %%
def noisy_square(x):
    jax.debug.print("  x = {}", x)
    return x**2


for name, function, argument in (
    ("vmap:", jax.vmap(noisy_square), jnp.array([1.0, 2.0])),
    ("grad:", jax.grad(noisy_square), 3.0),
    ("scan:", lambda x: jax.lax.scan(lambda c, x: (c, noisy_square(x)), 0, x), jnp.array([4.0, 5.0])),
):
    print(name)
    jax.jit(function)(argument)
    jax.effects_barrier()

# %% [markdown]
# The backward pass has no lines of code in which you could print. A function that returns its argument can have a derivative rule (04) that prints the [cotangent](../docs/glossary.md#cotangent).


# %%
@jax.custom_vjp
def print_cotangent(x):
    return x


def print_and_pass(_, cotangent):
    jax.debug.print("cotangent {}", cotangent)
    return (cotangent,)


print_cotangent.defvjp(lambda x: (x, None), print_and_pass)
jax.grad(lambda x: jnp.sum(jnp.sqrt(print_cotangent(x)) * 3))(jnp.array([4.0, 0.0]))
jax.effects_barrier()

# %% [markdown]
# The infinite cotangent of the second entry becomes a NaN if it is multiplied by 0, as in a masked loss.
#
# JAX may reorder prints that do not depend on each other. `ordered=True` keeps their order, but raises an error if the program runs on several devices. The jaxpr records the order as a different effect, as the last two lines below show. `jax.debug.callback(function, x)` calls any Python function with the values, for example to fill a list or to write a log. It returns nothing to the program. Lesson 23 covers callbacks that return values.

# %%
seen = []
jax.jit(lambda x: jax.debug.callback(lambda total: seen.append(float(total)), x.sum()))(jnp.arange(4.0))
jax.effects_barrier()
print(seen)

for ordered in (False, True):
    printing = jax.make_jaxpr(lambda x, ordered=ordered: jax.debug.print("{}", x, ordered=ordered))(1.0)
    print(f"ordered={ordered}:", *[type(effect).__name__ for effect in printing.effects])

# %% [markdown]
# ## Deeper: where checkify works, and what it costs
# `checkify` adds operations to the [jaxpr](../docs/glossary.md#jaxpr), and an error value to the results. These are the operations of a logarithm without and with a check for NaN.

# %%
from grader.learning.inspection import primitives

print(primitives(jnp.log, 1.0))
print(primitives(checkify.checkify(jnp.log, errors=checkify.nan_checks), 1.0))

# %% [markdown]
# It also transforms the loops and branches of JAX, and checks only the branch that runs.

# %%
at_zero = jnp.zeros(3)
functions = {
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sqrt(c - 1), None), x + 2, length=4)[0],
    "while_loop": lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: jnp.log(c - 1) + 5, x),
    "cond, bad branch": lambda x: jax.lax.cond(x.sum() < 1, lambda x: x / x, jnp.exp, x),
    "cond, other branch": lambda x: jax.lax.cond(x.sum() > 1, lambda x: x / x, jnp.exp, x),
    "grad": jax.grad(lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))),
    "index in .at": lambda x: x.at[3].set(1.0),
    "dynamic_slice": lambda x: jax.lax.dynamic_slice(x, (2,), (2,)),
    "infinity": jnp.log,
}
for name, function in functions.items():
    error, _ = jax.jit(checkify.checkify(function, errors=checkify.automatic_checks))(at_zero)
    print(f"{name:20s}{error.get()}")

# %% [markdown]
# The message for `dynamic_slice` names the start index, 2, although only the end of the slice is out of bounds.
#
# `checkify` of `grad` also checks the backward pass, as the line for `grad` shows. `grad` of `checkify` checks the forward pass only. No set of checks reports an infinity without a division, as the last line shows. For infinities, write a check, such as `checkify.check(jnp.isfinite(y).all(), "...")`.
#
# Some NaN are not reported. `checkify` has no NaN check for a few operations, and a constant NaN in `where` is not the result of a checked operation. It also cannot transform a `vmap` of `while_loop`.

# %%
unchecked = {
    "cholesky": lambda x: jax.lax.linalg.cholesky(x[0] - jnp.eye(2)),
    "constant in where": lambda x: jnp.where(x > 0, x, jnp.nan),
}
for name, function in unchecked.items():
    error, value = jax.jit(checkify.checkify(function, errors=checkify.all_checks))(at_zero)
    print(f"{name:20s}NaN in the result: {bool(jnp.isnan(value).any())}, error: {error.get()}")
loops = jax.vmap(lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))
print_error(lambda: checkify.checkify(loops, errors=checkify.all_checks)(at_zero))


# %%
def masked_root(x):
    return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))


def value_and_error(x):
    error, value = checkify.checkify(masked_root, errors=checkify.float_checks)(x)
    return value, error


error_of_gradient, gradient = checkify.checkify(jax.grad(masked_root), errors=checkify.float_checks)(at_zero)
gradient_only, error = jax.grad(value_and_error, has_aux=True)(at_zero)
print("checkify of grad:", error_of_gradient.get(), " gradient", gradient)
print("grad of checkify:", error.get(), " gradient", gradient_only)

# %% [markdown]
# In a function for several devices ([lesson 19](19_shard_map.ipynb)), each device has its own error. Here device 0 has a negative number.

# %%
rooted = jax.shard_map(jnp.sqrt, mesh=devices.mesh((8,), ("data",)), in_specs=jax.P("data"), out_specs=jax.P("data"))
error, _ = jax.jit(checkify.checkify(rooted, errors=checkify.nan_checks))(jnp.arange(8.0) - 1)
print(error.get())

# %% [markdown]
# The cost of the checks depends on the program. A check reads each result again. This is little work compared with a matrix product, but it can take longer than a fused elementwise operation.

# %%
square = jnp.asarray(rng.normal(size=(500, 500)) / 20, jnp.float32)
for name, operation in (("matrix product", lambda x: jnp.tanh(square @ x)), ("elementwise", lambda x: 2 * x + 1)):
    twenty = lambda x, operation=operation: jax.lax.scan(lambda x, _: (operation(x), None), x, length=20)[0]
    plain, with_checks = jax.jit(twenty), jax.jit(checkify.checkify(twenty, errors=checkify.all_checks))
    plain_ms, checked_ms = time_ms(lambda f=plain: f(square), lambda f=with_checks: f(square)[1], repeats=5)
    print(f"{name:15s}{plain_ms:6.1f} ms without checks,{checked_ms:6.1f} ms with checks")

# %% [markdown]
# `checkify.check_error(error)` turns an error value back into a check, so that a library can use `checkify` internally. `checkify.debug_check` is a check that does nothing unless it is transformed, so the function can be compiled without `checkify`. `error.throw()` raises `checkify.JaxRuntimeError`, a `ValueError`, which is not the class `jax.errors.JaxRuntimeError`. In JAX 0.10.2 the messages contain no source lines. The traceback of `error.throw()` contains the line of the check.

# %% [markdown]
# ## Deeper: bisect the steps and inspect the operations
# If a run stores checkpoints of its weights, you need not repeat the whole run. Once the loss is NaN, it stays NaN, so a binary search finds the first bad step with few evaluations.

# %%
import bisect

evaluated = []


def is_bad(index):
    evaluated.append(index)
    return not np.isfinite(step(weights[index], xs, ys)[1])


print("first bad step:", bisect.bisect_left(range(30), True, key=is_bad), " evaluated:", evaluated)

# %% [markdown]
# Return intermediates with `has_aux=True` (04), or with `nnx.capture` from a module (10). If you cannot edit a function, evaluate its jaxpr, one equation at a time.


# %%
def print_intermediates(function, *args):
    """Prints the smallest and the largest value of each operation, outside inner jaxprs."""
    closed = jax.make_jaxpr(function)(*args)
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *args], strict=True))
    for equation in jaxpr.eqns:
        read = [one.val if hasattr(one, "val") else values[one] for one in equation.invars]
        results = equation.primitive.bind(*read, **equation.params)
        results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
        print(f"{equation.primitive.name:16s} from {results[0].min():8.3f} to {results[0].max():8.3f}")


print_intermediates(lambda w, xs: jnp.square(jnp.log(xs @ w) - ys), weights[first - 1], xs)

# %% [markdown]
# ## Deeper: transfer guards
# A copy between host and device takes time, and some copies happen without being requested. `jax.transfer_guard` controls them with a level. `"allow"` is the default, `"log"` prints each implicit copy, and `"disallow"` raises an error for it. An **implicit** copy is, for example, a NumPy array that is passed to a jitted function. `jax.device_put` and `jax.device_get` are **explicit**, and only the levels `"log_explicit"` and `"disallow_explicit"` include them.

# %%
double = jax.jit(lambda x: 2 * x)
on_device, on_host = jnp.arange(3.0), np.arange(3, dtype=np.float32)
double(on_device)  # compiles it
uses = {
    "JAX array": lambda: double(on_device),
    "NumPy array": lambda: double(on_host),
    "Python number": lambda: double(2.0),
    "x + 1 without jit": lambda: on_device + 1,
    "x[0] without jit": lambda: on_device[0],
    "device_put": lambda: double(jax.device_put(on_host)),
}
with jax.transfer_guard("disallow"):
    for name, use in uses.items():
        print(f"{name:19s}", end="")
        print_error(use, length=72)

# %% [markdown]
# Even `x + 1` copies its constant to the device when it is not compiled. Wrap the training loop in a guard after the first step. The traceback of its error shows which line copies. `jax.transfer_guard_host_to_device`, `..._device_to_host` and `..._device_to_device` control one direction each. On a CPU the guard never reports copies from device to host, because there the host can read the device's memory.

# %% [markdown]
# ## Deeper: leaked tracers and reused keys
# A leaked tracer raises an error when it is used, often far from the cause. `jax.checking_leaks` raises it where the trace ends, and lists the objects that hold the tracer (02). It checks new traces only. `jax.debug_key_reuse` reports a key that is used twice (07).

# %%
history = []


def remember(x):
    history.append(2 * x)
    return x.sum()


with jax.checking_leaks():
    print_error(lambda: jax.jit(remember)(jnp.ones(3)), length=260)
with jax.debug_key_reuse(True):
    print_error(lambda: jax.jit(lambda key: jax.random.normal(key) - jax.random.uniform(key))(jax.random.key(0)))

# %% [markdown]
# ## Deeper: where the shards are
# *Read this section after lesson 16.* `jax.debug.visualize_array_sharding(x)` draws which device stores which part of an array with one or two axes. `jax.debug.inspect_array_sharding` shows the sharding that the compiler has chosen for a value inside a compiled function.

# %%
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

sharding = NamedSharding(devices.mesh((4, 2), ("data", "model")), P("data", "model"))
placed = jax.device_put(jnp.ones((8, 8)), sharding)
jax.debug.visualize_array_sharding(placed, use_color=False)


@jax.jit
def product(x):
    result = x.T @ x
    jax.debug.inspect_array_sharding(result, callback=lambda found: print("sharding of the product:", found.spec))
    return result


_ = product(placed)

# %% [markdown]
# The callback runs while JAX compiles, so a second call prints nothing. `plots.show_shardings`, a helper of this course, draws several arrays at once.

# %%
plots.show_shardings({"x": placed, "x.T @ x": product(placed)}, "The argument and the result of the product.")

# %% [markdown]
# ## Deeper: a field guide to slow tracing and compilation
# *The exercise "A slow start" needs this section.* Start with `JAX_LOG_COMPILES=1`. The log contains the seconds of each stage for each compiled function (03). What to look for:
#
# | in the log | cause | fix |
# |---|---|---|
# | the same function again and again | its cache key changes | `jax.explain_cache_misses` names the difference |
# | many small functions, such as `jit(multiply)` | operations outside `jit` | compile the function that contains them |
# | the same function with other shapes | each shape is a new key | pad to a few sizes (03) |
# | one long "Finished tracing" | slow Python, or many operations | profile Python; a loop of `jax.lax` |
# | one long "XLA compilation" | a large program | `scan` over layers, fewer unrolled iterations |
# | the same at every start of the process | nothing is stored on disk | the persistent compilation cache (14) |
#
# **A function that is created again.** The function object is part of the cache key of `jit`. A lambda or an inner function is a new object in each call.


# %%
def scale_by_lambda(x, factor):
    return jax.jit(lambda x: factor * x)(x)


with jax.explain_cache_misses(True):
    for _ in range(2):
        print_log(lambda: scale_by_lambda(x, 2.0))

# %% [markdown]
# The second message contains the diagnosis. Define the function once and pass what changes as an argument. In JAX 0.10.2 a new `functools.partial` in each call does not help, as the next cell shows, although it may in later versions.

# %%
import functools

traces = []


def scale_by(factor, x):
    traces.append("trace")
    return factor * x


for _ in range(3):
    jax.jit(functools.partial(scale_by, 2.0))(x)
print("new partial in each call:", len(traces), "traces")
traces.clear()
for _ in range(3):
    jax.jit(scale_by)(2.0, x)
print("the same function:       ", len(traces), "trace")

# %% [markdown]
# **Operations outside `jit`.** Each operation is compiled for each new shape. The next cell normalizes four arrays of different shapes and counts the compiled programs in the log.


# %%
import contextlib


def normalize(x):
    return jnp.round(x / jnp.max(jnp.abs(x)), 3)


def count_compilations(function, tree):
    with contextlib.redirect_stdout(io.StringIO()) as log, jax.log_compiles(True):
        print_log(lambda: function(tree))
    return log.getvalue().count("Finished XLA compilation")


arrays = {f"w{size}": jnp.ones((size, 3)) for size in range(11, 15)}
one_by_one = lambda arrays: jax.tree.map(normalize, arrays)
print("without jit:", count_compilations(one_by_one, arrays), "compilations")
print("with jit:   ", count_compilations(jax.jit(one_by_one), arrays), "compilation")

# %% [markdown]
# **Too many operations.** A jaxpr records the source line of each equation, so you can count which line creates most of them. `jax_dump_ir_to` names a folder to which JAX writes the programs that it compiles. `jax_dump_ir_modes` chooses what to write, for example `jaxpr`, `stablehlo`, or `eqn_count_pprof`, a profile of equations for each line, which the program `pprof` displays.

# %%
import pathlib
import tempfile


def deep_network(x):
    for _ in range(60):
        x = jnp.tanh(jnp.cos(x))
    return x.sum()


with tempfile.TemporaryDirectory() as folder:
    jax.config.update("jax_dump_ir_to", folder)
    jax.config.update("jax_dump_ir_modes", "jaxpr,eqn_count_pprof")
    jax.jit(deep_network)(x)
    jax.config.update("jax_dump_ir_to", "")
    for file in sorted(pathlib.Path(folder).iterdir()):
        print(file.name, file.stat().st_size, "bytes")
    listed = next(pathlib.Path(folder).glob("*.jaxpr.txt")).read_text()
print("lines with tanh:", listed.count(" tanh "), " with cos:", listed.count(" cos "))

# %% [markdown]
# Sixty layers give sixty copies of the operations. A `scan` over stacked weights contains one copy (08). Lesson 02 measures how the compile time grows with the number of operations.
#
# ## Deeper: options that turn silent choices into errors
# *The exercise "A loss that never gets low" needs this section.* These options are useful in tests. Each is also an environment variable, such as `JAX_NUMPY_RANK_PROMOTION=raise`.

# %%
strict = {
    "rank_promotion": (jax.numpy_rank_promotion("raise"), lambda: jnp.ones((3, 4)) + jnp.ones(4)),
    "dtype_promotion": (jax.numpy_dtype_promotion("strict"), lambda: jnp.ones(3) + jnp.arange(3)),
    "debug_infs": (jax.debug_infs(True), lambda: jnp.log(jnp.zeros(2))),
    "no_tracing": (jax.no_tracing(True), lambda: jax.jit(lambda x: x + 1)(x)),
    "no_execution": (jax.no_execution(True), lambda: jax.jit(jnp.cos)(x)),
}
for name, (option, use) in strict.items():
    print(f"{name:17s}", end="")
    with option:
        print_error(use, length=90)

# %% [markdown]
# `numpy_rank_promotion` reports arrays of different rank that are broadcast, and `numpy_dtype_promotion` reports dtypes that are converted to a common one. `no_tracing` reports each new trace, and `no_execution` each program that would run.
#
# ## Deeper: the errors of jax.errors
# The cells below raise each of these errors once, and then run the fix.
#
# | error | cause | fix |
# |---|---|---|
# | `TracerBoolConversionError` | `if` on a traced value | `jnp.where`, `cond` |
# | `TracerIntegerConversionError` | a traced value as a Python index or size | a static argument |
# | `TracerArrayConversionError` | a NumPy function on a tracer | the `jnp` function |
# | `ConcretizationTypeError` | `float(x)` or a traced `axis` | keep the array; a static argument |
# | `NonConcreteBooleanIndexError` | `x[x > 0]` | `jnp.where`, `where=` |
# | `UnexpectedTracerError` | a leaked tracer | return the value |
# | `KeyReuseError` | a key is used twice, and the check is on | split the key |
# | `JaxRuntimeError` | the program failed while it ran, for example without memory | smaller arrays; read the message |
# | `InconclusiveDimensionOperation` | a comparison with a symbolic size (24) | a constraint |
# | `JaxprTypeError` | a jaxpr that was built by hand is inconsistent | build it by tracing |
# | `JAXTypeError`, `JAXIndexError` | base classes of seven of the errors above | catch a base class to catch all its errors |

# %%
mistakes = {
    "if": (lambda x: x if x[0] > 0 else -x, lambda x: jnp.where(x[0] > 0, x, -x)),
    "index": (lambda x: [5.0, 6.0][x.argmax()], lambda x: jnp.array([5.0, 6.0])[x.argmax()]),
    "NumPy": (lambda x: np.cos(x), lambda x: jnp.cos(x)),
    "float": (lambda x: float(x.max()), lambda x: x.max().astype(float)),
    "mask": (lambda x: x[x > 0].sum(), lambda x: x.sum(where=x > 0)),
}
x = jnp.array([-1.0, 2.0])
for name, (wrong, fixed) in mistakes.items():
    print(f"{name:6s}", end="")
    print_error(lambda wrong=wrong: jax.jit(wrong)(x), length=60)
    print("      fixed:", jax.jit(fixed)(x))

# %% [markdown]
# A leaked tracer, a key that is used twice, and an array that is too large:

# %%
leaked = []
jax.jit(lambda x: leaked.append(2 * x))(x)
print_error(lambda: leaked[0] + 1, length=60)
print("fixed:", jax.jit(lambda x: 2 * x)(x) + 1)
key = jax.random.key(0)
with jax.debug_key_reuse(True):
    print_error(lambda: jax.jit(lambda key: jax.random.normal(key) - jax.random.uniform(key))(key), length=60)
    one, other = jax.random.split(key)
    print("fixed:", jax.random.normal(one) - jax.random.uniform(other))
print_error(lambda: jnp.zeros(2**45).block_until_ready(), length=110)
print("fixed:", jnp.zeros(2**10).nbytes, "bytes")

# %% [markdown]
# The last two errors concern symbolic sizes, and jaxprs that were built by hand.

# %%
from jax import export


def shorten(x):
    return x[:3] if x.shape[0] > 3 else x


def export_for(size):
    shape = jax.ShapeDtypeStruct(size, jnp.float32)
    return export.export(jax.jit(shorten))(shape).out_avals


print_error(lambda: export_for(export.symbolic_shape("n")), length=110)
print("with a constraint:", export_for(export.symbolic_shape("n", constraints=["n >= 4"])))

# %%
from jax.extend.core import check_jaxpr

complete = jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(1.0).jaxpr
print_error(lambda: check_jaxpr(complete.replace(eqns=complete.eqns[1:])), length=110)
check_jaxpr(complete)  # as it was traced, it is consistent
for kind in (jax.errors.KeyReuseError, jax.errors.TracerBoolConversionError, jax.errors.NonConcreteBooleanIndexError):
    print(kind.__name__, "->", " -> ".join(base.__name__ for base in kind.__mro__[1:4]))

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `host_callback.id_print`, `hcb.call` | `jax.debug.print`, `jax.debug.callback`; `io_callback` for results |
# | `from jax.config import config` | `jax.config.update(...)`, or a context manager such as `jax.debug_nans(True)` |
# | `jax.core.ConcretizationTypeError` | `jax.errors.ConcretizationTypeError` |
# | `XlaRuntimeError` from `jaxlib` | `jax.errors.JaxRuntimeError` |
# | `jax.experimental.host_callback` with `barrier_wait` | `jax.effects_barrier()` |
# | `FilteredStackTrace` in a traceback | `jax_traceback_filtering`; your exception keeps its class |

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | the operation that produces a NaN | `with jax.debug_nans(True):` around the call |
# | a value from a compiled function | `jax.debug.print("{}", x)`, in a branch of `cond` to print it rarely |
# | a value over time | return it |
# | an assertion in compiled code | `checkify.check`, and `checkify.checkify` around the function |
# | out-of-bounds indices, NaN and division by zero reported | `checkify.checkify(f, errors=checkify.all_checks)` |
# | the failing example | `jax.vmap(checkify.checkify(f))` |
# | plain Python | `with jax.disable_jit():` |
# | the full traceback | `JAX_TRACEBACK_FILTERING=off` |
