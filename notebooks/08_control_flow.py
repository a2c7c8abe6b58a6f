# %% [markdown]
# # 08 · control flow: loops and branches inside a program
#
# *The core takes about 30 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/08_control_flow/08_control_flow.ipynb).* After the core you can put a loop or a branch into a compiled program, choose a loop that can be differentiated or one that stops early, predict what `vmap` does with it, and simulate a thousand environments at once.
#
# **Prerequisites.** Tracing (lesson 02), `jit` (03), `grad` (04), `vmap` (05), pytrees (06) and keys (07). Answer these questions from memory.
#
# 1. From 02: A function contains `print("here")`. It is traced once, and its program runs three times. How often does it print?
#
# <details><summary>Answer</summary>
#
# Once, during tracing. The program contains only the operations that were applied to tracers.
# </details>
#
# 2. From 03: Why does `jit` reject `if x > 0:`, where `x` is an argument?
#
# <details><summary>Answer</summary>
#
# `x` is a tracer, which has a shape and a dtype but no value. Python needs a value to choose a branch.
# </details>
#
# 3. From 04: What are the value and the gradient of `jnp.where(x > 0, jnp.sqrt(x), 0.0)` at -1?
#
# <details><summary>Answer</summary>
#
# 0 and NaN. `where` computes both sides. The backward pass multiplies 0, the gradient of the side that was not chosen, by the derivative of the square root, which is NaN at -1.
# </details>

# %%
import time

import jax
import jax.numpy as jnp
import numpy as np

# Helpers of this course, which plot, list operations, print errors and measure times:
from grader.learning import plots
from grader.learning.inspection import primitives, print_error, time_ms

np.set_printoptions(precision=3, suppress=True)

# %% [markdown]
# ## Which part should be compiled?
# A pendulum swings and slowly comes to rest. One step takes two lines of code, and a simulation takes hundreds of steps. Should you apply `jit` to the whole loop or to one step?


# %%
def swing(pendulum):
    """One step. The pendulum is a pair (angle, speed)."""
    angle, speed = pendulum
    speed = 0.99 * speed - 0.1 * jnp.sin(angle)
    return angle + 0.1 * speed, speed


def python_loop(pendulum, n):
    for _ in range(n):
        pendulum = swing(pendulum)
    return pendulum


pendulum = (jnp.float32(2), jnp.float32(0))
print("angle and speed after 300 steps:", python_loop(pendulum, 300))

# %% [markdown] predict="control-unrolled"
# `jax.jit(python_loop, static_argnums=1)` is compiled for n = 10, 100 and 800. How does the time to compile grow?
#
# - [ ] not at all: there is one loop to compile | The source code has one loop. But Python runs it during tracing, so the compiler receives no loop.
# - [x] with n: every iteration is compiled | Right. Tracing records each iteration separately, and every operation has to be optimized.
# - [ ] hardly: the compiler sees that the iterations are equal | The compiler receives a list of thousands of operations and does not search it for repetition.


# %%
lengths = (10, 100, 800)


def seconds_to_compile(function, n):
    lowered = jax.jit(function, static_argnums=1).lower(pendulum, n)
    start = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - start


def print_sizes(function):
    for n in lengths:
        operations = primitives(lambda pendulum: function(pendulum, n), pendulum)
        print(f"n = {n:3d}: {len(operations)} operation{'s' * (len(operations) > 1)}")


print_sizes(python_loop)
unrolled_seconds = [seconds_to_compile(python_loop, n) for n in lengths]
print("seconds to compile:", np.array(unrolled_seconds))

# %% [markdown]
# Under `jit`, a Python loop is **unrolled**. The program contains every iteration. To put a loop *into* the program, pass one iteration to JAX as a function. `jax.lax.scan` runs this function, the **body**, `length` times. The body returns the next state and an output, and `scan` collects the outputs.


# %%
def scan_loop(pendulum, n):
    def body(state, _):
        angle, _ = state
        return swing(state), angle

    return jax.lax.scan(body, pendulum, None, length=n)


print_sizes(scan_loop)
scan_seconds = [seconds_to_compile(scan_loop, n) for n in lengths]
end, angles = scan_loop(pendulum, 300)
print("angle and speed after 300 steps:", end, "  all angles:", angles.shape)

# %% [markdown]
# The result is the same, and the only operation is the [scan](../docs/glossary.md#scan), for any length. `scan_loop` also returns the angle of each step, plotted on the left below. On the right are the times to compile.

# %%
_, (left, right) = plots.subplots(1, 2, height=2.6)
left.plot(angles)
left.set(xlabel="step", ylabel="angle (radians)")
right.loglog(lengths, unrolled_seconds, "o-", label="Python loop")
right.loglog(lengths, scan_seconds, "s--", label="scan")
right.set(xlabel="iterations", ylabel="seconds to compile", xticks=lengths, xticklabels=lengths)
right.minorticks_off()
right.legend()
plots.show(
    f"Left: the angle of the pendulum swings between {angles.max():.1f} and {angles.min():.1f}, less with every swing. "
    f"Right: the time to compile {', '.join(map(str, lengths))} iterations. The Python loop takes "
    f"{', '.join(f'{took:.2f}' for took in unrolled_seconds)} seconds, and scan "
    f"{', '.join(f'{took:.2f}' for took in scan_seconds)} seconds."
)

# %% [markdown]
# The time to compile the `scan` does not grow with the length. You could also compile one step and keep the loop in Python. This is the right choice if each step takes long. Here, dispatching a step from Python takes longer than the step itself.

# %%
step = jax.jit(swing)


def call_steps(pendulum):
    for _ in range(1000):
        pendulum = step(pendulum)
    return pendulum


one_scan = jax.jit(lambda pendulum: scan_loop(pendulum, 1000))
calls_ms, scan_ms = time_ms(lambda: call_steps(pendulum), lambda: one_scan(pendulum))
print(f"1000 steps, each called from Python: {calls_ms:7.2f} ms")
print(f"1000 steps in one scan:              {scan_ms:7.2f} ms")

# %% [markdown]
# ## scan: carry, inputs, outputs
# The body takes `(carry, x)` and returns `(carry, y)`. Each iteration passes the [carry](../docs/glossary.md#carry) to the next one. `scan` slices the inputs `xs` along their leading axis, and stacks the outputs along a new leading axis. Carry, inputs and outputs may each be a pytree. For arrays, this Python function computes the same result.
#
# ```python
# def scan(body, carry, xs):
#     ys = []
#     for x in xs:
#         carry, y = body(carry, x)
#         ys.append(y)
#     return carry, jnp.stack(ys)
# ```
#
# ![scan as a row of equal boxes, one for each iteration. The carry passes through them from left to right, from the initial carry to the one that is returned. Each box receives one slice of the inputs from above and returns one output below.](../images/control_scan.svg)
#
# In the next cell, the carry is the balance of an account. The inputs are a payment and an interest rate for each month.


# %%
def month(balance, flow):
    interest = balance * flow["rate"]
    output = {"interest": interest, "overdrawn": balance + flow["paid"] < 0}
    return balance + interest + flow["paid"], output


flows = {"paid": jnp.array([100.0, -30.0, -80.0, 50.0]), "rate": jnp.full(4, 0.01)}
balance, outputs = jax.lax.scan(month, 0.0, flows)
print("at the end", balance, "  interest", outputs["interest"], "  overdrawn", outputs["overdrawn"])

# %%
print(jax.make_jaxpr(lambda flows: jax.lax.scan(month, 0.0, flows))(flows))

# %% [markdown]
# The program contains the [jaxpr](../docs/glossary.md#jaxpr) of the body once, as a parameter of the `scan`.

# %% [markdown] predict="control-carry"
# `jax.lax.scan(lambda total, x: (total + x, None), jnp.int32(0), jnp.ones(3))` adds three floats. What is the result?
#
# - [ ] 3.0, as in Python | In Python, the sum would become a float with the first addition. In a program, each value has one dtype.
# - [ ] 3, an integer | JAX does not convert the carry back to an integer.
# - [x] a TypeError | Right. The carry is int32 before the first iteration and float32 after it, so the second iteration would need another program.

# %%
print_error(lambda: jax.lax.scan(lambda total, x: (total + x, None), jnp.int32(0), jnp.ones(3)), length=420)
print()
print_error(lambda: jax.lax.scan(lambda found, x: (jnp.append(found, x), None), jnp.zeros(0), jnp.ones(3)), length=420)

# %% [markdown]
# One body serves all iterations. So the carry must have the same structure, shapes and dtypes after each iteration as before it. The second call tried to grow an array. Return its entries as outputs instead, or start with an array of the full size and write to it with `.at[i].set`.

# %% [markdown]
# ## cond: run one of two branches
# `jax.lax.cond(condition, true_branch, false_branch, *operands)` is the `if` of a compiled program. The program contains both branches, and at run time the value of the condition decides which one runs. `jnp.where` selects between two results, so both are computed. In the next cell, `heavy` multiplies matrices 300 times with `fori_loop`, which is explained below.


# %%
def heavy(x):
    return jax.lax.fori_loop(0, 300, lambda i, x: jnp.cos(x @ x), x)


def light(x):
    return x + 1


by_cond = jax.jit(lambda x, flag: jax.lax.cond(flag, heavy, light, x))
by_where = jax.jit(lambda x, flag: jnp.where(flag, heavy(x), light(x)))
matrix = jnp.ones((64, 64)) / 64
for name, function in {"cond": by_cond, "where": by_where}.items():
    heavy_ms, light_ms = time_ms(lambda: function(matrix, True), lambda: function(matrix, False))
    print(f"{name:6s} heavy chosen: {heavy_ms:6.2f} ms, light chosen: {light_ms:6.2f} ms")

# %% [markdown]
# Both branches must return the same structure, shapes and dtypes.

# %%
print_error(lambda: jax.lax.cond(True, lambda: 1, lambda: 1.0), length=420)

# %% [markdown] predict="control-cond"
# `jax.vmap(by_cond)(matrices, jnp.zeros(8, bool))` maps over eight matrices, and all eight conditions are false. How long does it take?
#
# - [x] as long as the heavy branch on all eight | Right. One program serves all examples. As their conditions may differ, it computes both branches and then selects.
# - [ ] hardly any time: the light branch on all eight | This would be true of one condition. Here each matrix has its own.
# - [ ] an error: cond takes one condition | `by_cond` is written for one example. `vmap` turns its `cond` into an operation that takes eight conditions.

# %%
matrices, all_false = jnp.stack([matrix] * 8), jnp.zeros(8, bool)
own_flag = jax.jit(jax.vmap(by_cond))
shared_flag = jax.jit(jax.vmap(by_cond, in_axes=(0, None)))
calls = {
    "a condition for each matrix, all false": lambda: own_flag(matrices, all_false),
    "one condition for all, true": lambda: shared_flag(matrices, True),
    "one condition for all, false": lambda: shared_flag(matrices, False),
}
for name, took in zip(calls, time_ms(*calls.values()), strict=True):
    print(f"{name:38s} {took:6.2f} ms")

# %% [markdown]
# If the condition is not mapped, the `cond` remains, and only one branch runs.

# %% [markdown]
# ## while_loop: stop when the work is done
# `jax.lax.while_loop(condition, body, carry)` evaluates the condition before each iteration, on the device. Both functions take the carry only, and there are no stacked outputs.
#
# ```python
# while condition(carry):
#     carry = body(carry)
# ```
#
# The next cell counts the steps of the pendulum until its energy is at most 1e-4.


# %%
@jax.jit
def run_until_rest(pendulum):
    print("tracing")

    def is_moving(carry):
        (angle, speed), _ = carry
        return speed**2 / 2 + 1 - jnp.cos(angle) > 1e-4

    def body(carry):
        pendulum, steps = carry
        return swing(pendulum), steps + 1

    return jax.lax.while_loop(is_moving, body, (pendulum, 0))


for angle in (0.1, 0.5, 2.0):
    (last_angle, _), steps = run_until_rest((jnp.float32(angle), jnp.float32(0)))
    print(f"from {angle}: {steps:3d} steps, then at {last_angle:.4f}")

# %% [markdown]
# `tracing` was printed once, so one program ran all three simulations. The number of iterations depends on values, which has a cost. [Reverse mode](../docs/glossary.md#reverse-mode) stores values of each iteration, its [residuals](../docs/glossary.md#residual), and JAX must know beforehand how much memory they need. So only forward mode can differentiate a `while_loop`. The next loop doubles a number until it is at least 100.

# %%
doublings = lambda x: jax.lax.while_loop(lambda x: x < 100, lambda x: 2 * x, x)
print("forward mode, value and derivative:", jax.jvp(doublings, (3.0,), (1.0,)))
print_error(lambda: jax.grad(doublings)(3.0), length=78)

# %% [markdown]
# The third loop, `jax.lax.fori_loop(start, stop, body, carry)`, passes an index and the carry to its body.
#
# ```python
# for i in range(start, stop):
#     carry = body(i, carry)
# ```

# %% [markdown] predict="control-fori"
# `power(x, n)` is `jax.lax.fori_loop(0, n, lambda i, y: y * x, 1.0)`. Which derivatives with respect to x exist: (a) `jax.grad(lambda x: power(x, 3))`, (b) `jax.grad(power)` under `jit`, where n is a traced argument?
#
# - [x] only (a): its bounds are numbers | Right. With known bounds, `fori_loop` *is* a `scan`. Otherwise it is a `while_loop`.
# - [ ] both: the derivatives are with respect to x, not n | In (b), the number of iterations is unknown when the program is built.
# - [ ] neither: it is a while_loop inside | This was true of early versions of JAX, and older advice still repeats it.


# %%
def power(x, n):
    return jax.lax.fori_loop(0, n, lambda i, y: y * x, 1.0)


print("known bounds: ", primitives(lambda x: power(x, 3), 2.0))
print("traced bounds:", primitives(power, 2.0, 3))
print("(a)", jax.grad(lambda x: power(x, 3))(2.0))
print("(b)", end=" ")
print_error(lambda: jax.jit(jax.grad(power))(2.0, 3), length=420)

# %% [markdown]
# If you need both an early end and a gradient, scan up to a maximum length and **freeze** the carry. `jnp.where` then keeps the old carry once the work is done. The remaining iterations are still computed, and their results are discarded.


# %%
def frozen_doublings(x):
    body = lambda x, _: (jnp.where(x < 100, 2 * x, x), None)
    return jax.lax.scan(body, x, None, length=10)[0]


print("value and gradient:", *jax.value_and_grad(frozen_doublings)(3.0))

# %% [markdown] predict="control-while"
# `vmap` maps `doublings` over 100,000 numbers. One of them needs sixty iterations, and each of the others needs two. How long does this take?
#
# - [ ] as long as if all needed two | The loop cannot end before that one number is done.
# - [ ] it fails, because a loop has only one condition | The condition of the mapped loop is whether any number is unfinished.
# - [x] as long as if all needed sixty | Right. The loop runs until the last number is done. Numbers that are done keep their values.

# %%
need_two = jnp.full(100_000, 30.0)
need_sixty = jnp.full(100_000, 100 / 2.0**60)  # doubled sixty times, this is 100
one_needs_sixty = need_two.at[7].set(need_sixty[7])
mapped = jax.jit(jax.vmap(doublings))
cases = {"all need two": need_two, "one needs sixty": one_needs_sixty, "all need sixty": need_sixty}
case_ms = time_ms(*[lambda xs=xs: mapped(xs) for xs in cases.values()])
for name, took in zip(cases, case_ms, strict=True):
    print(f"{name:16s} {took:6.2f} ms")

# %% [markdown]
# ## A thousand simulations at once
# A pole stands on a cart and falls unless the cart is pushed. The state consists of position, velocity, angle and angular velocity, here called spin. In reinforcement learning, cart and pole are an **environment**, and a simulation from start to end is an **episode**. The **controller** here is four numbers, its gains. It pushes with the force `gains @ state`, limited to ten newtons.


# %%
def simulate(state, force):
    """The state (4,) after 0.02 seconds with a force ()"""
    _, velocity, angle, spin = state
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    push = (force + 0.05 * spin**2 * sine) / 1.1
    spin_rate = (9.8 * sine - cosine * push) / (2 / 3 - 0.05 * cosine**2 / 1.1)
    return state + 0.02 * jnp.array([velocity, push - 0.05 * spin_rate * cosine / 1.1, spin, spin_rate])


def episode(gains, start):
    """All states (200, 4) of four seconds"""

    def body(state, _):
        state = simulate(state, 10 * jnp.tanh(gains @ state / 10))
        return state, state

    return jax.lax.scan(body, start, None, length=200)[1]


# %% [markdown]
# The pattern of a simulator is `scan` **over time** and `vmap` **over environments**.

# %%
episodes = jax.jit(jax.vmap(episode, in_axes=(None, 0)))
starts = jax.random.uniform(jax.random.key(8), (1000, 4), minval=-0.2, maxval=0.2)
controllers = {
    "no force": jnp.zeros(4),
    "angle": jnp.array([0.0, 0.0, 20.0, 0.0]),
    "angle and spin": jnp.array([0.0, 0.0, 30.0, 6.0]),
    "whole state": jnp.array([1.0, 3.0, 40.0, 10.0]),
}
best = controllers["whole state"]
print("all states:", episodes(best, starts).shape)
many_ms, single_ms = time_ms(lambda: episodes(best, starts), lambda: episodes(best, starts[:1]))
print(f"200 steps: 1000 environments {many_ms:.2f} ms, one environment {single_ms:.2f} ms")

# %%
_, panels = plots.subplots(2, 4, width=11, height=4.6, sharex=True, sharey="row")
seconds, described = 0.02 * np.arange(1, 201), []
for (name, gains), (upper, lower) in zip(controllers.items(), panels.T, strict=True):
    states = np.asarray(episodes(gains, starts))
    poles, carts = states[:, :, 2], states[:, :, 0]
    upright = f"{np.mean(np.all(np.abs(poles) < 0.8, axis=1)):.0%} stay upright"
    upper.plot(seconds, poles[:40].T, "-", color=plots.COLOURS[0], alpha=0.35, linewidth=0.9)
    lower.plot(seconds, carts[:40].T, "-", color=plots.COLOURS[1], alpha=0.35, linewidth=0.9)
    upper.set(title=f"{name}\n{upright}", ylim=(-0.8, 0.8))
    lower.set(xlabel="seconds", ylim=(-4, 4))
    described.append(f"{name}, {upright}, and the carts end {np.abs(carts[:, -1]).mean():.2f} metres away on average")
panels[0, 0].set_ylabel("angle (radians)")
panels[1, 0].set_ylabel("position (metres)")
plots.show(
    "Angle and position over four seconds, 40 of 1000 poles for each of four controllers. Without a force, all poles "
    "fall. With the angle, they swing wider and wider. With angle and spin, they come to rest and the carts drift away. "
    f"With the whole state, the carts return. The controllers are {'; '.join(described)}."
)

# %% [markdown]
# A controller that uses only the angle makes the pole swing wider and wider. With angle and spin, the pole comes to rest, but the cart drifts away. With the whole state, the cart also returns.
#
# The core ends here. Continue with a Deeper section or the [summary](#Summary).

# %% [markdown]
# ## Deeper: Python's if, for and "and"
# Python evaluates its own control flow during tracing. A loop or a branch may therefore depend on shapes, dtypes and static arguments (03), but not on traced values. This function sums the first n entries of an array.


# %%
def sum_first(xs, n):
    total = 0.0
    for i in range(n):
        total = total + xs[i]
    return total


entries = jnp.array([2.0, 3.0, 4.0])
print_error(lambda: jax.jit(sum_first)(entries, 2), length=160)
print("n is static:   ", jax.jit(sum_first, static_argnums=1)(entries, 2))
print("n from a shape:", jax.jit(lambda xs: sum_first(xs, xs.shape[0]))(entries))
by_fori = lambda xs, n: jax.lax.fori_loop(0, n, lambda i, total: total + xs[i], 0.0)
print("n is traced:   ", jax.jit(by_fori)(entries, 2))
print("gradient:      ", jax.grad(sum_first)(entries, 2))

# %% [markdown]
# With a static n, JAX compiles a program for each value of n. A `fori_loop` accepts a traced n, so one program serves all values. `grad` without `jit` works with concrete values, so it accepts Python's control flow (05).
#
# A shape cannot depend on a traced value either. Keep the full shape and mask the entries that do not count.

# %%
print_error(lambda: jax.jit(lambda xs, n: jnp.sum(xs[:n]))(entries, 2), length=160)
print("masked:", jax.jit(lambda xs, n: jnp.sum(jnp.where(jnp.arange(len(xs)) < n, xs, 0)))(entries, 2))

# %% [markdown]
# Python's `and`, `or` and `not` convert their operands to `bool`. This fails for a tracer, and without `jit` for every array with more than one entry.


# %%
def between_by_and(x):
    return x > 0 and x < 3


def between(x):
    return (x > 0) & (x < 3)


numbers = jnp.array([-1.0, 2.0, 5.0])
print("one number:", between_by_and(2.0), between(2.0), "  array:", jax.jit(between)(numbers))
print_error(lambda: jax.jit(between_by_and)(2.0), length=120)
print_error(lambda: between_by_and(numbers), length=120)

# %% [markdown]
# Use `jnp.logical_and`, `jnp.logical_or` and `jnp.logical_not`, or `&`, `|` and `~` on boolean arrays. The parentheses are necessary, because `&` binds more tightly than `<`. `and` skips its second operand if the first is false. The functions of JAX always evaluate both operands.

# %% [markdown]
# ## Deeper: choose among more than two
# `jax.lax.switch(index, branches, *operands)` runs one of several branches. An index outside the list is clamped to the first or the last branch.

# %%
shapes = (lambda x: x, lambda x: x**2, lambda x: x**3)
for index in (-1, 0, 1, 2, 7):
    print(f"branch {index:2d}:", jax.lax.switch(index, shapes, 2.0))

# %% [markdown]
# Three more functions choose for each entry of an array, as `jnp.where` does. `jax.lax.select` takes a condition and two arrays of equal shape and dtype, which `jnp.where` broadcasts and converts first. `jnp.select` takes a list of conditions and a list of arrays. `jnp.piecewise` takes a list of functions instead of arrays.

# %%
points = jnp.array([-2.0, 0.5, 3.0])
conditions = [points < 0, points > 1]
choose = lambda x: jnp.piecewise(x, [x < 0, x > 1], [jnp.negative, jnp.square, 0.0])
print("lax.select:   ", jax.lax.select(points < 0, -points, points))
print("jnp.select:   ", jnp.select(conditions, [-points, points**2], 0.0))
print("jnp.piecewise:", choose(points))
by_switch = jax.make_jaxpr(lambda i: jax.lax.switch(i, shapes, 2.0))(1)
print("cond in switch:", "cond[" in str(by_switch), "  in piecewise:", "cond[" in str(jax.make_jaxpr(choose)(points)))

# %% [markdown]
# `switch` is a `cond` with several branches. `jnp.piecewise` maps a `switch` over the entries with `vmap`. Each entry has its own index, so no `cond` remains, and every function is computed for every entry.

# %% [markdown]
# ## Deeper: gradients of cond and where
# A `cond` that `vmap` turns into a selection still has finite gradients where a `where` gives NaN.


# %%
def root_by_cond(x):
    return jax.lax.cond(x > 0, jnp.sqrt, jnp.zeros_like, x)


root_by_where = lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0)
samples = jnp.array([-1.0, 0.0, 4.0])
print(jax.make_jaxpr(jax.vmap(root_by_cond))(samples))
for name, root in {"cond": root_by_cond, "where": root_by_where}.items():
    print(f"gradient with {name:5s}", jax.grad(lambda xs, root=root: jnp.sum(jax.vmap(root)(xs)))(samples))

# %% [markdown]
# The two `stop_gradient` operations in the jaxpr make the difference. Each branch receives a copy of x in which the entries of the other branch are held constant. With `where`, you have to do this yourself (04).
#
# The same applies to a carry that is frozen. These loops replace x by the square root of x - 1 until x is at most 1.

# %%
lower = lambda x: jnp.sqrt(x - 1)
bodies = {
    "where": lambda x, _: (jnp.where(x > 1, lower(x), x), None),
    "cond": lambda x, _: (jax.lax.cond(x > 1, lower, lambda x: x, x), None),
}
for name, body in bodies.items():
    take_roots = lambda x, body=body: jax.lax.scan(body, x, length=6)[0]
    print(f"frozen with {name:5s} value and gradient:", *jax.value_and_grad(take_roots)(3.0))

# %% [markdown]
# If the body has no finite derivative at the frozen carry, freeze with a `cond` in the body. You can also define the derivative with a custom rule (04), as one of the exercises does.

# %% [markdown]
# ## Deeper: what the backward pass stores
# Reverse mode through a `scan` stores the residuals of each iteration. These are the values that the derivative rules need in the backward pass. They are stacked, with the number of iterations as the leading axis.


# %%
def repeated_sine(x, n):
    return jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=n)[0]


wide = jnp.ones(10_000)
for n in (10, 100, 1000):
    _, backward = jax.vjp(lambda x: repeated_sine(x, n), wide)
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(backward))
    operations = primitives(jax.grad(lambda x: jnp.sum(repeated_sine(x, n))), wide)
    print(f"{n:5d} iterations: {len(operations)} operations in the gradient, {stored / 1e6:5.1f} MB of residuals")

# %% [markdown]
# The size of the *program* is independent of the number of iterations, but the *memory* is proportional to it. Lesson 15 reduces this memory.

# %% [markdown]
# ## Deeper: one row at a time
# `jax.lax.map(f, xs)` is a `scan` without a carry. It returns the same result as `vmap` with the memory of a single row, but it needs an iteration for each row. With `batch_size=100`, each iteration processes 100 rows with `vmap`.

# %%
weights_in, weights_out = jnp.ones((32, 256)) / 32, jnp.ones((256, 32)) / 256


def network(row):
    hidden = jnp.maximum(row @ weights_in, 0)  # an intermediate result of 256 numbers
    return hidden @ weights_out


rows = jnp.ones((20_000, 32))
variants = {
    "vmap": jax.vmap(network),
    "lax.map": lambda rows: jax.lax.map(network, rows),
    "lax.map, batch_size=100": lambda rows: jax.lax.map(network, rows, batch_size=100),
}
compiled = [jax.jit(variant).lower(rows).compile() for variant in variants.values()]

# %%
variant_ms = time_ms(*[lambda program=program: program(rows) for program in compiled], repeats=5)
for name, program, took in zip(variants, compiled, variant_ms, strict=True):
    scratch = program.memory_analysis().temp_size_in_bytes / 1e6
    print(f"{name:24s} {scratch:6.2f} MB of temporary memory, {took:6.1f} ms")

# %% [markdown]
# Batches of 100 rows need about 1% of the temporary memory of `vmap`. They take much less time than single rows, because one product of two matrices is faster than 100 products of a vector and a matrix.

# %% [markdown]
# ## Deeper: unroll a scan
# Each iteration of a loop has a cost of its own. `unroll=k` writes the body k times into each iteration, so the program is longer and has fewer iterations. Only a measurement shows whether it is faster.

# %%
short_step = lambda x, _: (0.5 * x + 1, None)
programs, compile_seconds = {}, {}
for k in (1, 4, 16, 100):
    lowered = jax.jit(lambda x, k=k: jax.lax.scan(short_step, x, length=10_000, unroll=k)[0]).lower(jnp.float32(1))
    began = time.perf_counter()
    programs[k] = lowered.compile()
    compile_seconds[k] = time.perf_counter() - began
run_ms = time_ms(*[lambda program=program: program(jnp.float32(1)) for program in programs.values()])
for k, took in zip(programs, run_ms, strict=True):
    print(f"unroll={k:3d}: compiled in {compile_seconds[k]:4.2f} s, runs in {took:6.3f} ms")

# %% [markdown]
# ## Deeper: train the controller
# The gains of the controllers above were found by trial and error. An episode is a `scan`, so gradient descent can also find them. The cost adds the mean squared angle and a tenth of the mean squared position.


# %%
@jax.jit
def cost(gains):
    states = jax.vmap(episode, in_axes=(None, 0))(gains, starts[:50])
    return jnp.mean(states[..., 2] ** 2 + 0.1 * states[..., 0] ** 2)


@jax.jit
def train(gains):
    def body(gains, _):
        value, gradient = jax.value_and_grad(cost)(gains)
        return gains - 10 * gradient, value

    return jax.lax.scan(body, gains, None, length=100)


began = time.perf_counter()
trained, values = jax.block_until_ready(train(controllers["angle and spin"]))
print(f"100 steps of training, compiled and run in {time.perf_counter() - began:.1f} s")
print(f"cost before training {values[0]:.4f}, after {cost(trained):.4f}, of the whole state {cost(best):.4f}")

# %% [markdown]
# The training is a `scan` as well, so the whole training is one program. It contains three loops, one over the training steps, one over time in the forward pass, and one over time in the backward pass.

# %%
print("loops in the program:", train.lower(trained).as_text().count("stablehlo.while"))
_, (left, right) = plots.subplots(1, 2, height=2.6)
left.semilogy(values)
left.set(xlabel="training step", ylabel="cost")
for gains, label in ((controllers["angle and spin"], "before training"), (trained, "after training")):
    right.plot(0.02 * np.arange(1, 201), np.abs(episodes(gains, starts)[:, :, 0]).mean(axis=0), label=label)
right.set(xlabel="seconds", ylabel="mean distance (metres)")
right.legend()
plots.show(
    f"Left: the cost during training, from {values[0]:.3f} to {values[-1]:.3f}. Right: the mean distance of 1000 "
    f"carts from the middle of the track over four seconds, before and after training. The trained gains are "
    f"{np.asarray(trained)}."
)

# %% [markdown]
# ## Deeper: older code
#
# | in older code, or elsewhere | now |
# |---|---|
# | `jax.ops.index_update(xs, i, x)` in a loop | `xs.at[i].set(x)`, or an output of `scan` |
# | `jax.experimental.loops` | removed; use `scan`, `fori_loop`, `while_loop` |
# | `lax.cond(pred, x, f, y, g)`, with an operand for each branch | `jax.lax.cond(pred, f, g, *operands)` |
# | "fori_loop cannot be differentiated" | it can with known bounds, as it is then a `scan` |
# | `tf.scan`, `tf.while_loop`, `theano.scan` | `jax.lax.scan`, `jax.lax.while_loop` |
# | a PyTorch loop over steps | a Python loop over a compiled step if the step takes long; a `scan` over steps if it is short |

# %% [markdown]
# ## Summary
#
# ![A table with a row for Python's if, for and while, for where, cond and switch, scan, fori_loop, and while_loop. The columns are what it may depend on, what the program contains, whether forward and reverse mode work, and what vmap does. Python's control flow needs values that are known during tracing. where computes both sides. cond runs one branch, and both under vmap with a mapped condition. scan has a known length and supports reverse mode. fori_loop supports it only with known bounds. while_loop may depend on values, does not support reverse mode, and under vmap runs until the last example is done.](../images/control_table.svg)
#
# | you want | you write |
# |---|---|
# | a loop or branch over what is known during tracing, such as layers | Python's own `for` or `if` |
# | a cheap choice for each entry | `jnp.where`, with safe values on both sides |
# | an expensive branch that runs only if it is chosen | `jax.lax.cond`, with a condition that `vmap` does not map |
# | n iterations with outputs or a gradient | `jax.lax.scan` |
# | n iterations without outputs | `jax.lax.fori_loop`; known bounds allow a gradient |
# | iterations until a condition fails | `jax.lax.while_loop`; no reverse mode, and `vmap` waits for the last example |
# | an early end and a gradient | a `scan` that freezes its carry |
# | a simulator | `scan` over time, `vmap` over environments |
