# %% [markdown]
# # 13 · Debugging: from a symptom to its cause
#
# *The core takes about 30 minutes. Eleven "Deeper" sections can be skipped. Then do [the exercises](../exercises/13_debugging/13_debugging.ipynb).* After the core you can find the step, the example and the operation that produce a NaN, print values from a compiled function, detect silent mistakes with `checkify`, and read the traceback of a transformed function.
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
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

# Helpers of this course, which plot, measure times, and print errors, tracebacks and logs:
from grader.learning import plots
from grader.learning.inspection import print_error, time_ms, traceback_frames

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
# The curve gives no warning. After this step all weights are NaN, so it is too late to look at them. The figure shows which tool answers which question. The next sections use the first four tools, one after the other.
#
# ![A table of symptoms and tools. NaN or inf: jax.debug_nans names the operation. Wrong values inside a program: jax.debug.print, jax.debug.breakpoint. Which example, or a wrong index: checkify returns an error with the values. Code that only fails under jit: jax.disable_jit runs it as Python. Below, tools of other lessons and of Deeper sections: a slow repeated compilation, explain_cache_misses; a leaked tracer, checking_leaks; equal random numbers, debug_key_reuse; hidden copies, transfer_guard; unexpected sharding, visualize_array_sharding.](../images/debugging_tools.svg)

# %% [markdown]
# ## Which operation? jax.debug_nans
# We stored the weights before each step, so step 23 can be repeated alone. `jax.debug_nans` is a context manager that raises an error at the first operation with a NaN in its result.

# %%
with jax.debug_nans(True):
    print_error(lambda: step(weights[first], xs, ys))

# %% [markdown]
# The operation is a logarithm. The traceback ends with the line of our code, in `predict`. The last two lines are inside JAX.

# %%
with jax.debug_nans(True):
    frames = traceback_frames(lambda: step(weights[first], xs, ys))
print("\n".join(frame for frame in frames if frame.startswith(("step", "loss", "predict"))))

# %% [markdown]
# A compiled program has no single operations that could be checked. JAX checks the **results** of a jitted function. If it finds a NaN, it runs the function again without `jit`, checks each operation and raises the error. The flag slows down everything, because JAX has to wait for each result and examine it, so use it only while you debug. The environment variable `JAX_DEBUG_NANS=1` sets it for a whole run. `jax.debug_infs` does the same for infinities.

# %% [markdown] predict="debug-masked"
# `masked(x)` is `jnp.where(x > 0, jnp.log(x), 0.0)`. What happens in `jax.jit(masked)(-1.0)` under `jax.debug_nans(True)`?
#
# - [ ] an error in `log` | This is what happens without `jit`, where every operation is checked.
# - [x] no error, the result is 0 | Right. The logarithm is NaN, but it is no result of the jitted function.
# - [ ] no error, the result is NaN | `where` selects 0 for a negative number.


# %%
def masked(x):
    return jnp.where(x > 0, jnp.log(x), 0.0)


with jax.debug_nans(True):
    print("jit:", jax.jit(masked)(-1.0))
    print_error(lambda: masked(-1.0))
    print_error(lambda: jax.jit(jax.grad(masked))(0.0))

# %% [markdown]
# Without `jit` the same function is reported, although its result is fine. Such a NaN on purpose is a false alarm, until the function is differentiated, as the third line shows. A second `where` on the argument prevents both (04).

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

# %% [markdown]
# A print in each step is too much for a long run. Put it into one branch of `jax.lax.cond`, and it prints only in steps with a problem. A format such as `{:.3f}` works for scalars, but not for arrays.


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
# In 30 steps there is one line, from step 23. Later comparisons with NaN are False, so nothing is printed. Example 17 has a negative quantity, and its logarithm is NaN.
#
# ## Return what you want to see
# A print shows one moment. To see how a value develops, let the function return it, here with all 64 quantities of each step.


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
# Example 17 approaches zero slowly and then crosses it. Near zero the derivative of the logarithm is huge, so the step is too long. The model is the cause, because nothing keeps its quantity positive.

# %% [markdown]
# ## Which example? checkify
# The tools above print or raise while you watch. `checkify` is for programs that should detect their own mistakes. `checkify.check(condition, message, ...)` is an assertion on traced values. `checkify.checkify(f)` transforms `f` to a function that returns an **error value** and the result, and this function can be compiled.


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
# `error.get()` returns the message of the first failed check or `None`, and `error.throw()` raises it. The last line shows that a check cannot be compiled alone. Only `checkify` makes it a part of the result.

# %% [markdown] predict="debug-checkify-order"
# Which of these names the failing example of the batch?
#
# - [ ] `checkify.checkify(jax.vmap(predict_checked, in_axes=(None, 0)))` | It returns one error for the whole batch, with the value but without the index.
# - [x] `jax.vmap(checkify.checkify(predict_checked), in_axes=(None, 0))` | Right. Every example has an error value of its own.
# - [ ] both | They compute the same results, but a batch has one error in one of them and 64 in the other.

# %%
one_error, _ = checkify.checkify(jax.vmap(predict_checked, in_axes=(None, 0)))(weights[first], xs)
an_error_each, _ = jax.vmap(checkify.checkify(predict_checked), in_axes=(None, 0))(weights[first], xs)
print(one_error.get())
print(an_error_each.get())

# %% [markdown]
# `checkify` can also add checks to code that has none. Its argument `errors` is a set of checks.
#
# | `errors=` | reports |
# |---|---|
# | `checkify.user_checks` (the default) | a failed `checkify.check` |
# | `checkify.nan_checks` | an operation with a NaN in its result, even if it is masked later |
# | `checkify.div_checks` | a division by zero |
# | `checkify.index_checks` | an index that is out of bounds |
# | `checkify.float_checks` | NaN and division by zero |
# | `checkify.automatic_checks`, `checkify.all_checks` | all of these without, or with, your own checks |
#
# Out-of-bounds indices need it most. JAX clamps the index of `table[i]`, so the mistake below returns the last entry.

# %%
table = jnp.array([0.1, 0.2, 0.4, -0.8])
lookup = lambda table, i: jnp.log(table[i])
checked = jax.jit(checkify.checkify(lookup, errors=checkify.automatic_checks))
for i in (0, 3, 7):
    error, value = checked(table, i)
    print(f"table[{i}]: result {value:.2f}, error: {error.get()}")

# %% [markdown]
# Each check is an additional operation on the device, but the program stays compiled. Keep cheap checks in production, and the automatic ones in tests.
#
# ## Fix, and test the fix
# `jax.nn.softplus` is positive for every argument, so its logarithm is finite. The same training runs under `debug_nans` without an error.


# %%
def predict(w, x):
    return jnp.log(jax.nn.softplus(jnp.dot(w, x)))


@jax.jit
def fixed_step(w, _):
    value, gradient = jax.value_and_grad(loss)(w, xs, ys)
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
# `vmap` and `grad` still use tracers under `disable_jit`, so an `if` under `vmap` fails as before (05). Programs also become much slower.

# %%
fast = lambda: jax.lax.scan(fixed_step, jnp.ones(3), length=5)


def slow():
    with jax.disable_jit():
        return jax.lax.scan(fixed_step, jnp.ones(3), length=5)


compiled_ms, python_ms = time_ms(fast, slow, repeats=1)
print(f"5 steps: {compiled_ms:.1f} ms compiled, {python_ms:.0f} ms without jit")

# %% [markdown]
# ## Read a traceback
# Errors in shapes and types appear while JAX traces, so their traceback leads to the line. It also contains many frames of JAX. With `jax_traceback_filtering` JAX removes them. The modes are `quiet_remove_frames`, `remove_frames` (which appends the full traceback), `tracebackhide` (IPython hides them, used in notebooks) and `off`. The default `auto` chooses for you.


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
# Read it from the end. The message comes first, then the last line that is yours, here in `layer`. The message states the shapes that `layer` sees, without the axis that `vmap` hides. If an error seems to come from inside JAX, set the mode to `off` before you report it.

# %% [markdown]
# The core ends here. Continue with a Deeper section, the [summary](#Summary) or the exercises.

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
