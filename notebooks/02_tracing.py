# %% [markdown]
# # 02 · Tracing: what Python runs, and when
#
# *Forty minutes, then [the exercises](../exercises/02_tracing/02_tracing.ipynb).* Afterwards you can say which lines of a function Python runs and which become part of a program, read that program at each stage from jaxpr to HLO, name the errors that tracing raises and mend them, find a leaked tracer, and see what a function costs before it runs.
#
# **Assumed.** [The start page](00_start_here.ipynb), and arrays (01). Recall before you go on; answer first, then open the fold.
#
# 1. From 01: how do you put 99 into place 2 of `x`, and what happens to `x`?
#
# <details><summary>Answer</summary>
#
# `y = x.at[2].set(99)`. Nothing happens to `x`: arrays do not change, a function gives a new one.
# </details>
#
# 2. From 01: `jnp.bfloat16(1) + 2.0` is a bfloat16. Why not a float32?
#
# <details><summary>Answer</summary>
#
# A Python number is *weakly typed*: it takes on the dtype of the array that it meets.
# </details>
#
# 3. From 01: Python has gone past the line `y = x @ x`. Is the product there?
#
# <details><summary>Answer</summary>
#
# Perhaps not yet: JAX sends the operation off and goes on. What needs the numbers, such as `print(y)`, waits.
# </details>

# %%
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params


def refusal(call, length=160):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {' '.join(str(problem).split())[:length]}")
    else:
        print("No error!")


# %% [markdown]
# ## The question: who runs my lines?
# A measurement is smoothed. Its author wants to see the function at work, and puts in a print and a counter.

# %% [markdown] predict="tracing-print"
# `smooth` is compiled and then called three times, with three different arrays of four numbers. What does its `print(x)` print?
#
# - [ ] three lines, with the numbers | That is Python without `jit`. Here Python runs once, before there are any numbers.
# - [ ] one line, with the first numbers | Once is right. But what comes in is not the first array, it stands for all of that kind.
# - [x] one line, without numbers | Right: a tracer, which knows a shape and a dtype.

# %%
runs = 0


@jax.jit
def smooth(x):
    global runs
    runs += 1
    print("Python is here. x is", x)
    return (x[:-1] + x[1:]) / 2


for start in (0.0, 10.0, 20.0):
    print("result:", smooth(start + jnp.arange(4.0)))
print("runs:", runs)

# %% [markdown]
# All three results are right, yet Python has run the function once. In that run `x` was no array but a **tracer**: it stands for *any* float32 array of four numbers, and it writes down what is done with it. What was written down is a **program**; from then on the program runs, and your function does not.
#
# ## A tracer in a dozen lines
# There is no magic in this. Python lets a class say what `+` and `*` mean, so a value can keep a diary instead of computing:


# %%
written = []


class Diary:
    """Stands for a number, and writes down what is done with it."""

    def __init__(self, name):
        self.name = name

    def _note(self, operation, other):
        result = Diary(f"v{len(written)}")
        written.append(f"{result.name} = {operation} {self.name} {getattr(other, 'name', other)}")
        return result

    __add__ = functools.partialmethod(_note, "add")
    __mul__ = functools.partialmethod(_note, "mul")


def polynomial(x):
    result = 0 * 1.5 + 2  # plain Python numbers: computed, not noted
    for coefficient in (3.0, 5.0):
        result = x * coefficient + result
    return result


polynomial(Diary("x"))
print("\n".join(written))
print(jax.make_jaxpr(polynomial)(1.0))

# %% [markdown]
# Below our diary is JAX's: a **jaxpr**. Its lines are the same four operations, with a type for each result; "Reading a jaxpr", below, names the parts. The loop is gone, since Python went round it while the tracer took notes. `0 * 1.5 + 2` has become the number 2: what Python or NumPy computes from plain numbers never stands in the program.
#
# A real tracer behaves like an array as far as it can. What does it know?


# %%
def ask_around(x):
    print(f"{x}  shape {x.shape}, dtype {x.dtype}, weak {x.weak_type}, len {len(x)}, type {jax.typeof(x)}")
    print(f"{2 * x.sum()} and {x > 0}: what is made from a tracer is one")
    return x


for _ in range(2):  # the second time, the trace is there already
    jax.make_jaxpr(ask_around)(jnp.ones(3))

# %% [markdown]
# Shape, dtype, and whether it is weakly typed: exactly what `jax.typeof` says. Not the values. There are none while Python runs.
#
# ## Reading a jaxpr
# `jax.make_jaxpr(f)(x)` traces `f` and shows the program. The logarithm to base 2:

# %% [markdown] predict="tracing-log2"
# `log2(x)` is `jnp.log(x) / jnp.log(2.0)`. How many operations stand in its jaxpr?
#
# - [ ] two: a logarithm and a division | It would be so if `jnp.log(2.0)` were computed at once. But this is a trace, and `jnp` writes down.
# - [x] three: two logarithms and a division | Right: while tracing, whatever `jnp` is asked to do is written down, also with plain numbers.
# - [ ] one: a logarithm to base 2 | A jaxpr is made of what was called. Nobody looks for a meaning in it.


# %%
def log2(x):
    return jnp.log(x) / jnp.log(2.0)


print(jax.make_jaxpr(log2)(8.0))
print(jax.make_jaxpr(jax.grad(log2))(8.0))

# %% [markdown]
# Left of the `;` stand constants, right of it the inputs: `a` is an `f32[]`, a float32 without axes. Each line is an **equation**: a result and its type, a **primitive** such as `log`, what goes in. The last line is the result. `_` is a result that nobody reads.
#
# The second jaxpr is the gradient's (lesson 04): `1 / (log 2 · x)`. `grad`, `vmap` and `jit` take a program and give a program, and that is why JAX must see yours.
#
# It is also data. And since tracing never looks at a value, a description of the input is enough:

# %%
closed = jax.make_jaxpr(log2)(jax.ShapeDtypeStruct((2**50,), jnp.float32))  # 4 million gigabytes, if it existed
for equation in closed.eqns:
    taken = ", ".join(str(each.aval) for each in equation.invars)
    print(f"{equation.primitive.name:21s} takes {taken:55s} gives {equation.outvars[0].aval}")

# %% [markdown]
# (`~` marks the weak type of `jnp.log(2.0)`. This time the input is not weak, so that number is converted first.)
#
# ## Two times
# So every line of a function belongs to one of two times. **While tracing** Python runs: loops go round, `if` decides, prints print, NumPy computes. **In the program** are the operations that tracers went through, and whatever else `jnp` was asked to do meanwhile; they run later, in each call.
#
# ![A function with a print, a Python loop, an if on the shape and a jax.debug.print, beside what happens while tracing and what stands in the program. Python prints, loops three times and decides by the shape; the program holds three sin, a sum, a debug print and a multiplication by 1.414, which NumPy computed. Below, three calls: the first traces and runs, the second with the same shape only runs, the third with a new shape traces and runs.](../images/tracing_times.svg)


# %%
def describe(x):
    if x.ndim == 2:  # a shape is known: Python decides, now
        x = x.sum(axis=0)
    for _ in range(x.shape[0] - 1):  # so is a length
        x = jnp.sin(x)
    return x * np.sqrt(2.0)  # NumPy computes, now


print(jax.make_jaxpr(describe)(jnp.ones(3)))
print(jax.make_jaxpr(describe)(jnp.ones((5, 2))))

# %% [markdown]
# Two shapes, two programs. In neither is there a loop, an `if`, or a root. To *see* the second time, use `jax.debug.print`: it is an operation like any other, and prints whenever the program runs.

# %% [markdown] predict="tracing-debug"
# `jax.debug.print` stands in the **first** line of a function, `print` in the second. It is compiled and called twice with the same shape. What comes, in which order? (d: debug, p: print)
#
# - [x] p d d | Right: first all of Python's run, then the program's. The second call has only the latter.
# - [ ] d p d p | So it stands there, and so plain Python would do it.
# - [ ] d p d | Python does run once only. But it runs through *all* lines before the program starts.


# %%
@jax.jit
def noisy(x):
    jax.debug.print("  program: the sum is {}", x.sum())
    print("  Python:  x is", x)
    return x


for x in (jnp.ones(3), 2 * jnp.ones(3), jnp.ones(4)):
    print("call with", jax.typeof(x))
    noisy(x).block_until_ready()
    jax.effects_barrier()  # wait for the prints

# %% [markdown]
# The third call has a new shape, so Python ran again. A trace is kept for each shape and dtype; what else counts, lesson 03 says. (`make_jaxpr` keeps its traces too: above it was called twice with `ask_around`, whose lines ran once.)
#
# **Side effects** are what a function does beside returning a result: it prints, counts, writes into a list, draws from NumPy's dice. They happen at the first time, once. So a counter counts traces, a clock stands still, and dice fall once and for all:

# %%
clock = jax.jit(lambda x: x + time.perf_counter())
print("the time, three times:", [float(clock(0.0)) for _ in range(3)])
dice = jax.jit(lambda x: x + np.random.default_rng().integers(1, 7))
print("six throws:", [int(dice(jnp.int32(0))) for _ in range(6)])

# %% [markdown]
# ## What Python may ask of a tracer
# Its shape, yes; its values, no. When Python cannot go on without a value, JAX raises an error, and which one tells **who asked**.

# %% [markdown] predict="tracing-ask"
# Which of these lines fails under `jit`, with `x` of shape `(4,)`?
#
# - [ ] `x[0] if x.shape[0] > 2 else x[1]` | A shape is known. Python decides, and one of the two goes into the program.
# - [x] `x[0] if x[0] > x[1] else x[1]` | Right: `if` wants True or False, and `x[0] > x[1]` is a tracer.
# - [ ] `sum(value for value in x)` | Going through an array needs its length only: four slices, four additions.

# %%
x = jnp.array([0.1, 0.2, 0.3, 0.4])
questions = {
    "if":  lambda x: x[0] if x[0] > x[1] else x[1],
    "range": lambda x: [None for _ in range(x.argmax())],
    "float": lambda x: float(x.max()),
    "NumPy": lambda x: np.cos(x),
    "a mask": lambda x: x[x > 0.2],
    "a shape": lambda x: jnp.ones(x.argmax()),
    "a slice": lambda x: x[: x.argmax()],
    "a format": lambda x: f"{x[0]:.2f}",
    "size, loop": lambda x: sum(value for value in x) if len(x) > 2 else x[0],
}  # fmt: skip
for who, question in questions.items():
    print(f"{who:11s}", end="")
    refusal(lambda: jax.jit(question)(x), 96)

# %% [markdown]
# | Python meets | and wants | error | write instead |
# |---|---|---|---|
# | `if`, `while`, `and`, `not`, `max(a, b)`, `x in (…)` | a truth value | `TracerBoolConversionError` | `jnp.where`, `jnp.maximum`; `cond`, `while_loop` (08) |
# | `range(n)`, `a_list[n]` | a whole number | `TracerIntegerConversionError` | `an_array[n]`; loops of 08; or pass n from outside |
# | `float(x)`, `int(x)`, `x.item()`, `jnp.arange(n)` | a concrete value | `ConcretizationTypeError` | leave it an array, `x.astype(float)` |
# | `np.cos(x)`, `np.asarray(x)` | an array of numbers | `TracerArrayConversionError` | `jnp.cos(x)` |
# | `x[x > 0]` | to know how many | `NonConcreteBooleanIndexError` | `jnp.where(x > 0, x, 0)`, `x.sum(where=x > 0)` |
# | `jnp.zeros(n)`, `x.reshape(n, -1)` | a shape | `TypeError` | sizes from `x.shape`, or from outside |
# | `x[:n]` | the ends of a slice | `IndexError` | `jnp.where(jnp.arange(len(x)) < n, x, 0)`; or n from outside |
# | `f"{x:.2f}"` | digits | `TypeError` | `jax.debug.print("{:.2f}", x)` |
#
# An array that is **no argument** does not help much. Inside `jit`, what `jnp` computes from it is written down too, just as `jnp.log(2.0)` was:

# %%
limits = jnp.array([0.0, 1.0])
refusal(lambda: jax.jit(lambda x: x if limits[0] < limits[1] else -x)(x), 104)
known = bool(limits[0] < limits[1])  # before: computed, and a plain bool
print(jax.jit(lambda x: x if known else -x)(x))

# %% [markdown]
# Not every tracer is blind. Under `jax.grad` alone values are there, as `grad` computes along with them; the tracer shows its `primal`, and an `if` may look:

# %%
print("slope:", jax.grad(lambda x: (print(x), x**2)[1] if x > 0 else -x)(3.0))

# %% [markdown]
# ## Leaks
# A function is to be watched while it works, so its author keeps something in a list.

# %% [markdown] predict="tracing-leak"
# Under `jit`, `norm` appends `jnp.abs(x).max()` to the list `peaks`, and returns something else. After one call, `peaks[0]` is …
#
# - [x] a tracer that has no meaning any more | Right: printing it gives no hint, and computing with it is an error, often far away.
# - [ ] the largest value of that call | There was no value when Python appended.
# - [ ] nothing, the list is empty | The list is Python's, and Python did append, while tracing.

# %%
peaks = []


@jax.jit
def norm(x):
    peaks.append(jnp.abs(x).max())
    return jnp.sqrt(jnp.sum(x**2))


print("the norm is right:", norm(x), "  peaks:", peaks)
refusal(lambda: peaks[0] + 1, 620)

# %% [markdown]
# `UnexpectedTracerError`: a **leaked tracer**. The message says which function was traced and in which line the value was made; it was raised where the value was *used*. To catch a leak where it happens, trace under `jax.checking_leaks()` (or `JAX_CHECK_TRACER_LEAKS=1`), which says who holds it. It looks at new traces only, so turn it on before the first call: below, the call with the old shape passes.

# %%
with jax.checking_leaks():
    refusal(lambda: norm(x))  # traced before
    refusal(lambda: norm(jnp.ones(5)), 350)

# %% [markdown]
# The mend is always the same: what is to leave the function is **returned**. Lists, globals, attributes (`self.last = …`) and caches are other doors, and they leak. The worst comes in good faith: a table that is made once, the first time it is needed.

# %%
tables = {}


def table(n):
    if n not in tables:
        tables[n] = jnp.linspace(0, 1, n)  # inside a jit: a tracer, kept for ever
    return tables[n]


print(jax.jit(lambda x: x * table(4))(x))
refusal(lambda: x * table(4), 60)
tables.clear()
print("without jit first:", x * table(4), "and then with:", jax.jit(lambda x: x * table(4))(x))

# %% [markdown]
# Whether it works depends on who calls first, so tests pass and production fails. Keep what is NumPy's, `np.linspace`: NumPy gives numbers at either time. (Or wrap the line in `with jax.ensure_compile_time_eval():`, which tells `jnp` to compute now.)
#
# ## From the jaxpr to the machine
# A jaxpr is JAX's own language. `lower` translates it to **StableHLO**, which other tools read as well; `compile` hands that to XLA, which rewrites it as it likes. Its form is called **HLO**, and from that machine code is made.

# %% [markdown] predict="tracing-hlo"
# Three operations stand in the jaxpr of `log2`: log, log of 2, div. What is left of them in the compiled program?
#
# - [ ] the same three | JAX leaves them as they are. The compiler does not.
# - [ ] log and div | The logarithm of 2 is computed beforehand, right. But XLA knows another way to divide by a constant.
# - [x] log and a multiplication | Right: by 1 / log(2) = 1.4427, and both in one kernel, so nothing between them goes to memory.

# %%
lowered = jax.jit(log2).lower(8.0)
print(lowered.as_text())
compiled = lowered.compile()
for line in compiled.as_text().splitlines():
    if " = " in line and "file_name" not in line:
        print(line.split(", metadata")[0].split(", calls")[0])
gradient = jax.jit(jax.grad(log2)).lower(8.0).compile().as_text()
print("\nlogarithms in the program of the gradient:", gradient.count(" log("))

# %% [markdown]
# So a constant that `jnp` computes from numbers costs nothing when the program runs, and what nobody reads is left out: in the jaxpr of the gradient stand two logarithms.
#
# ![Four stages of log2, one below the other, with their texts. Python, which runs once: jnp.log(x) / jnp.log(2.0). The jaxpr: log, log of 2.0, div. StableHLO: the same operations in another language. HLO after XLA has optimized it: one fused kernel with a log and a multiplication by 1.44269502. Beside each stage how to see it: make_jaxpr, lower, compile.](../images/tracing_path.svg)
#
# How long does the way take?


# %%
def stages(f, *arguments):
    """Seconds for tracing, lowering and compiling `f`, and its numbers of equations and of HLO instructions."""
    clock = [time.perf_counter()]
    traced = jax.jit(f).trace(*arguments)
    clock.append(time.perf_counter())
    lowered = traced.lower()
    clock.append(time.perf_counter())
    text = lowered.compile().as_text()
    clock.append(time.perf_counter())
    return np.diff(clock), len(traced.jaxpr.eqns), sum(" = " in line for line in text.splitlines())


def settle(x):
    return 1.01 * jnp.tanh(x)


def unrolled(x, rounds):
    for _ in range(rounds):
        x = settle(x)
    return x


signal = jnp.linspace(-1, 1, 2000)
stages(lambda x: unrolled(x, 3), signal)  # the first use of anything is slower
for rounds in (10, 100, 500):
    (trace, lower, compile_), equations, instructions = stages(lambda x: unrolled(x, rounds), signal)
    took = f"trace {1e3 * trace:5.0f} ms, lower {1e3 * lower:5.0f} ms, compile {1e3 * compile_:6.0f} ms"
    print(f"{rounds:3d} rounds: {equations:4d} equations, {instructions:4d} HLO instructions;  {took}")

# %% [markdown]
# ## A loop in the program
# A Python loop is written out: with more rounds the program grows, and so does the time to compile it. JAX has loops of its own (lesson 08).

# %% [markdown] predict="tracing-scan"
# `jax.lax.scan` repeats a body with `settle(x)` 500 times. How many equations has the jaxpr, and how often is the body traced?
#
# - [x] one equation, the body traced once | Right: the equation holds the body's jaxpr, and a length.
# - [ ] 1,000 equations, traced 500 times | That is the Python loop.
# - [ ] one equation, traced 500 times | Python would have to run the body for that. It is not there any more when the loop goes round.


# %%
def looped(x, rounds):
    def body(x, _):
        print("tracing the body")
        return settle(x), None

    return jax.lax.scan(body, x, length=rounds)[0]


(_, _, compile_), equations, instructions = stages(lambda x: looped(x, 500), signal)
print(f"{equations} equation, {instructions} HLO instructions;  compile {1e3 * compile_:.0f} ms")
print(jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (settle(x), None), x, length=500)[0])(signal))

# %% [markdown]
# One equation, and the body is a jaxpr inside it. What stands in brackets are the equation's **parameters**, `equation.params`. An inner `jit` looks the same (many functions of `jnp` are one); `cond`, an `if` in the program (08), holds a jaxpr for each branch; `relu`, whose slope is given by hand (04), is one more wrapper. `jaxprs_in_params` finds the jaxprs among the parameters. So to know all that a function does, go down:


# %%
def outline(jaxpr, depth=0):
    for equation in jaxpr.eqns:
        length = f", {equation.params['length']} times" if equation.primitive.name == "scan" else ""
        print("    " * depth + equation.primitive.name + length)
        for held in jaxprs_in_params(equation.params):
            outline(held, depth + 1)


layer = lambda x: jax.nn.relu(jnp.where(x > 0, x, 0.1 * x))
outline(jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (layer(x), None), x, length=3)[0])(x).jaxpr)

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | to see the program | `jax.make_jaxpr(f)(x)`; as data, `.eqns`, each with `primitive.name`, `invars`, `outvars`, `params` |
# | the same without an array | `jax.ShapeDtypeStruct(shape, dtype)` in place of `x` |
# | the next stages | `jax.jit(f).lower(x).as_text()`, `.compile().as_text()`; each apart: `jax.jit(f).trace(x).jaxpr` |
# | to know what a tracer knows | `jax.typeof(x)`: shape, dtype, weak type |
# | to print a value from a program | `jax.debug.print("{}", x)` |
# | to print, count, decide once for each shape | plain Python |
# | something computed now, as a constant | NumPy, or outside the function |
# | to decide by a value | `jnp.where`, or `cond` (08) |
# | a value out of the function | return it |
# | to find a leak | `with jax.checking_leaks():` around the first call |
# | a program that does not grow | a loop of JAX's (08) in place of Python's |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `Traced<ShapedArray(float32[3])>with<DynamicJaxprTrace…>` | `JitTracer(float32[3])` |
# | `log 2.0` computed while tracing, a number in the jaxpr | since 2020 (the change was called omnistaging) all that `jnp` does is in the jaxpr |
# | `xla_call[…]` and `pjit[…]` in a jaxpr | `jit[…]` |
# | `jax.xla_computation(f)(x)` | `jax.jit(f).lower(x)` |
# | `jax.core.Jaxpr`, `jax.core.jaxpr_as_fun` | in `jax.extend.core`, for those who walk over jaxprs |
# | `jax.core.get_aval(x)` | `jax.typeof(x)` |
# | `host_callback.id_print` | `jax.debug.print` |
# | HLO, MHLO as what JAX lowers to | StableHLO; HLO is XLA's own |
#
# Next: the exercises. The first has two lines missing.
