# %% [markdown]
# # 02 · Tracing: what Python runs, and when
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/02_tracing/02_tracing.ipynb).* After the core you can tell which parts of a function Python runs and which become part of a compiled program, read that program, fix the errors that tracing raises, and avoid leaked tracers.
#
# **Prerequisites.** [The start page](00_start_here.ipynb) and arrays (01). Try to answer these questions from memory.
#
# 1. From 01: How do you set entry 2 of `x` to 99, and what happens to `x`?
#
# <details><summary>Answer</summary>
#
# `y = x.at[2].set(99)`. Nothing happens to `x`, because JAX arrays are immutable. The method returns a new array.
# </details>
#
# 2. From 01: `jnp.bfloat16(1) + 2.0` is a bfloat16. Why is it not a float32?
#
# <details><summary>Answer</summary>
#
# A Python number is *weakly typed*. It takes the dtype of the array that it is combined with.
# </details>
#
# 3. From 01: Python has executed the line `y = x @ x`. Has the product been computed?
#
# <details><summary>Answer</summary>
#
# Perhaps not. JAX dispatches the operation and returns at once. Code that needs the numbers, such as `print(y)`, waits for them.
# </details>

# %%
import jax
import jax.numpy as jnp
import numpy as np

# Helpers of this course, which draw figures, print errors and list operations:
from grader.learning import figures, plots
from grader.learning.inspection import primitives, print_error

# %% [markdown]
# ## How often does Python run a function?
# `jax.jit` is a **[transformation](../docs/glossary.md#transformation)**. It takes a function and returns a new function, in this case a compiled one. The function `smooth` below averages neighbouring measurements. It also prints its argument and counts its runs. The decorator `@jax.jit` replaces it with the compiled function.

# %% [markdown] predict="tracing-print"
# `smooth` is compiled and then called three times, with three different arrays of four numbers. What does its `print` of `x` show?
#
# - [ ] three lines, with the numbers | Python would do this without `jit`. Under `jit`, Python runs the function only once here, with a placeholder for `x`.
# - [ ] one line, with the first numbers | One line is right. But `x` is not the first array. It is a placeholder for any array of this shape and dtype.
# - [x] one line, without numbers | Right. `x` is a placeholder with a shape and a dtype.

# %%
runs = 0


@jax.jit
def smooth(x):
    global runs
    runs += 1
    print("Python runs smooth. x is", x)
    return (x[:-1] + x[1:]) / 2


for start in (0.0, 10.0, 20.0):
    print("result:", smooth(start + jnp.arange(4.0)))
print("runs:", runs)

# %% [markdown]
# All three results are right, although Python ran the function only once. In the first call, JAX passed a **[tracer](../docs/glossary.md#tracer)** instead of the array. This tracer represents *any* float32 array of four numbers, and JAX recorded each operation on it. This is called **tracing**. The recorded operations are a **program**, which JAX compiled. The second and third calls ran only the program.
#
# The following function prints the properties of a tracer.


# %%
def show_properties(x):
    print(x, " shape", x.shape, " length", len(x), " dtype", x.dtype, " weak type", x.weak_type)
    print("jax.typeof(x):", jax.typeof(x), "  2 * x.sum():", 2 * x.sum(), "  x > 0:", x > 0)
    return x


_ = jax.jit(show_properties)(jnp.ones(3))

# %% [markdown]
# A tracer has a shape and a dtype, and it may be weakly typed. `jax.typeof` combines these properties into one type. A tracer under `jit` has no values. The result of an operation on a tracer is also a tracer.

# %% [markdown]
# ## Read a jaxpr
# `jax.make_jaxpr(f)(x)` traces `f` and returns the recorded program, called a **[jaxpr](../docs/glossary.md#jaxpr)** (JAX expression).

# %% [markdown] predict="tracing-log2"
# `log2(x)` is `jnp.log(x) / jnp.log(2.0)`. How many operations does its jaxpr contain?
#
# - [ ] two: a logarithm and a division | This would be true if `jnp.log(2.0)` were computed at once. During tracing, JAX records it instead.
# - [x] three: two logarithms and a division | Right. During tracing, JAX records every `jnp` operation, even on plain numbers.
# - [ ] one: a logarithm to base 2 | A jaxpr contains the operations that the function called. JAX does not recognize the formula.


# %%
def log2(x):
    return jnp.log(x) / jnp.log(2.0)


print(jax.make_jaxpr(log2)(8.0))

# %% [markdown]
# The first line lists the inputs. `a:f32[]` is a scalar of dtype float32. Each line after `let` is an **equation**. It applies a **[primitive](../docs/glossary.md#primitive)**, an elementary operation such as `log`, and gives the result a name and a type. The line with `in` lists the outputs.
#
# The functions that `grad` (04) and `vmap` (05) return can be traced too.

# %%
print(jax.make_jaxpr(jax.grad(log2))(8.0))
print(jax.make_jaxpr(jax.vmap(log2))(jnp.ones(4)))

# %% [markdown]
# The first jaxpr computes the derivative, `1 / (x log 2)`. The result named `_` is not used. The second one computes four logarithms at once, and `convert_element_type` makes the weakly typed `log 2.0` a float32.
#
# A transformation works on the operations of your function, not on its source code, so JAX has to trace it.

# %% [markdown]
# ## What runs when
# Everything in a function belongs to one of two stages. **While tracing**, Python runs loops, evaluates each `if`, prints, and computes with NumPy. **In every call**, the program runs the recorded operations.
#
# ![A function with a print, a Python loop, an if on the shape and a jax.debug.print, beside what happens while tracing and what the program contains. Python prints, runs three iterations and decides by the shape. The program contains three sin, a sum, a debug print and a multiplication by 1.414, which NumPy computed. Below, three calls: the first traces and runs, the second with the same shape only runs, the third with a new shape traces and runs.](../images/tracing_times.svg)


# %%
def describe(x):
    if x.ndim == 2:  # shapes are known: Python decides while tracing
        x = x.sum(axis=0)
    for _ in range(x.shape[0] - 1):  # Python runs the loop while tracing
        x = jnp.sin(x)
    return x * np.sqrt(2.0)  # NumPy computes the root while tracing


print(jax.make_jaxpr(describe)(jnp.ones(3)))
print(jax.make_jaxpr(describe)(jnp.ones((5, 2))))
figures.trace_stepper(describe, jnp.ones((5, 2)))

# %% [markdown]
# Step through the second trace.
#
# The two shapes give two programs. Neither contains a loop, an `if` or a square root. Python **unrolled** the loop, so each iteration has its own equation. The brackets after `reduce_sum` contain its parameters, such as the axes.
#
# `jax.debug.print` is recorded as an operation, so it can show the values in each call.

# %% [markdown] predict="tracing-debug"
# `jax.debug.print` is in the **first** line of a function, and `print` is in the second line. The function is compiled and called twice with the same shape. What is printed, in which order? (d for debug, p for print)
#
# - [x] p d d | Right. Python first runs the whole function, and then the program runs. The second call only runs the program.
# - [ ] d p d p | This is the order in which plain Python would run the lines.
# - [ ] d p d | Python does run the function only once. But it runs *all* lines before the program starts.


# %%
@jax.jit
def noisy(x):
    jax.debug.print("  program: the sum is {}", x.sum())
    print("  Python:  x is", x)
    return x


for x in (jnp.ones(3), 2 * jnp.ones(3), jnp.ones(4)):
    print("call with", jax.typeof(x))
    noisy(x)
    jax.effects_barrier()  # wait for the prints

# %% [markdown]
# The third call has a new shape, so JAX traced `noisy` again (03).

# %% [markdown]
# ## Side effects happen while tracing
# A **side effect** is anything that a function does apart from returning a result, such as printing, counting, appending to a list, or drawing a random number with NumPy. The following random walk draws one number for each step, with and without `jit`.

# %%
rng = np.random.default_rng(2)


def step(position):
    return position + rng.normal()


def walk(step):
    positions = [jnp.float32(0)]
    for _ in range(40):
        positions.append(step(positions[-1]))
    return np.array(positions)


without_jit, with_jit = walk(step), walk(jax.jit(step))

# %%
_, axes = plots.subplots(height=2.6)
axes.plot(without_jit, label="without jit")
axes.plot(with_jit, label="with jit")
axes.set(xlabel="step", ylabel="position")
axes.legend()
plots.show(
    f"Positions of two walks of 40 steps. Without jit the walk changes direction often and stays between "
    f"{without_jit.min():.1f} and {without_jit.max():.1f}. With jit it is a straight line to {with_jit[-1]:.1f}, "
    f"because each step adds {with_jit[1]:.2f}."
)

# %% [markdown]
# Under `jit`, NumPy drew one number, while JAX traced `step`. That number is now a constant of the program, and every call adds it again. JAX raises no error.
#
# A **[pure function](../docs/glossary.md#pure-function)** has no side effects, and its result depends only on its arguments. Transformations are designed for pure functions. Lesson 07 teaches random numbers without side effects.

# %% [markdown]
# ## Static values
# Values that are known while tracing are called **static**, and tracers are called traced values. A shape is static. Under `jit`, the result of a `jnp` operation is traced, even if its inputs are static.


# %%
def flatten(x):
    size = jnp.array(x.shape).prod()
    print("shape", x.shape, "  size", size)
    return x.reshape(size)


print_error(lambda: jax.jit(flatten)(jnp.ones((2, 3))), length=130)
print(jax.jit(lambda x: x.reshape(np.prod(x.shape)))(jnp.ones((2, 3))).shape)

# %% [markdown]
# NumPy computes while tracing, so its result is static. **Use NumPy for shapes and constants, and `jnp` for everything that depends on traced values.**
#
# An argument of a jitted function is traced, unless you declare it [static](../docs/glossary.md#static-argument) with `static_argnames`. JAX traces the function again for each new value of a static argument.


# %%
def sines(x, n):
    print("tracing with x =", x, "and n =", n)
    for _ in range(n):
        x = jnp.sin(x)
    return x


compiled_sines = jax.jit(sines, static_argnames="n")
for n in (2, 2, 3):
    print(compiled_sines(jnp.float32(1), n=n))

# %% [markdown]
# ## Errors: when Python needs a value
# If Python cannot continue without the value of a tracer, JAX raises an error. The name of the error shows what Python needed.

# %% [markdown] predict="tracing-ask"
# Which of these expressions fails under `jit`, with `x` of shape `(4,)`?
#
# - [ ] `x[0] if x.shape[0] > 2 else x[1]` | A shape is static. Python evaluates the `if` while tracing, and the program contains only one of the two entries.
# - [x] `x[0] if x[0] > x[1] else x[1]` | Right. `if` needs True or False, and `x[0] > x[1]` is a tracer.
# - [ ] `sum(value for value in x)` | This loop needs only the length of the array, which is static. Python unrolls it.

# %%
x = jnp.array([0.1, 0.2, 0.3, 0.4])
failing = {
    "if":  lambda x: x[0] if x[0] > x[1] else x[1],
    "range": lambda x: [None for _ in range(x.argmax())],
    "float": lambda x: float(x.max()),
    "NumPy": lambda x: np.cos(x),
    "mask": lambda x: x[x > 0.2],
    "shape": lambda x: jnp.ones(x.argmax()),
    "slice": lambda x: x[: x.argmax()],
    "format": lambda x: f"{x[0]:.2f}",
}  # fmt: skip
for name, function in failing.items():
    print(f"{name:8s}", end="")
    print_error(lambda function=function: jax.jit(function)(x), length=96)
# The other two expressions need only the shape, so they do not fail:
print("if on the shape:", jax.jit(lambda x: x[0] if x.shape[0] > 2 else x[1])(x))
print("loop over x:", jax.jit(lambda x: sum(value for value in x))(x))

# %% [markdown]
# | code | Python needs | error | write instead |
# |---|---|---|---|
# | `if`, `while`, `and`, `not`, `max(a, b)`, `x in (…)` | a truth value | `TracerBoolConversionError` | `jnp.where`, `jnp.maximum`; `cond`, `while_loop` (08) |
# | `range(n)`, `a_list[n]` | an integer | `TracerIntegerConversionError` | `an_array[n]`; loops of lesson 08; a static `n` |
# | `float(x)`, `int(x)`, `x.item()`, `jnp.arange(n)` | a concrete value | `ConcretizationTypeError` | keep the array, `x.astype(float)`; a static `n` |
# | `np.cos(x)`, `np.asarray(x)` | an array of numbers | `TracerArrayConversionError` | `jnp.cos(x)` |
# | `x[x > 0]` | the number of True entries | `NonConcreteBooleanIndexError` | `jnp.where(x > 0, x, 0)`, `x.sum(where=x > 0)` |
# | `jnp.zeros(n)`, `x.reshape(n, -1)` | a shape | `TypeError` | sizes from `x.shape`; a static `n` |
# | `x[:n]` | the ends of a slice | `IndexError` | `jnp.where(jnp.arange(len(x)) < n, x, 0)`; a static `n` |
# | `f"{x:.2f}"` | a number to format | `TypeError` | `jax.debug.print("{:.2f}", x)` |
#
# An array that is **not an argument** can cause the same errors, because JAX records every operation on JAX arrays inside `jit`. Convert it to a Python value before the call.

# %%
limits = jnp.array([0.0, 1.0])
print_error(lambda: jax.jit(lambda x: x if limits[0] < limits[1] else -x)(x), length=104)
ordered = bool(limits[0] < limits[1])  # computed outside jit, so a plain bool
print(jax.jit(lambda x: x if ordered else -x)(x))

# %% [markdown]
# ## Values stored while tracing
# Appending to a list is a side effect too. Suppose that you want to store an intermediate result.

# %% [markdown] predict="tracing-leak"
# Under `jit`, `norm` appends `jnp.abs(x).max()` to the list `peaks`, and returns something else. After one call, `peaks[0]` is …
#
# - [x] a tracer that is no longer valid | Right. You can print it, but computing with it raises an error, often far from the cause.
# - [ ] the largest value of that call | There was no value yet when Python appended to the list.
# - [ ] nothing, the list is empty | Python did append to the list, while tracing.

# %%
peaks = []


@jax.jit
def norm(x):
    peaks.append(jnp.abs(x).max())
    return jnp.sqrt(jnp.sum(x**2))


print("the norm is right:", norm(x), "  peaks:", peaks)
print_error(lambda: peaks[0] + 1, length=700)

# %% [markdown]
# ## Leaked tracers
# The list contains a **[leaked tracer](../docs/glossary.md#leaked-tracer)**. JAX raises `UnexpectedTracerError` where the tracer is *used*. The message names the traced function and the line that created the tracer. Tracers can leak through lists, globals, attributes (`self.last = …`) and caches. To get a value out of a function, **return it**.

# %% [markdown]
# The core ends here. Continue with a Deeper section, the [summary](#Summary) or the exercises.

# %% [markdown]
# ## Deeper: caches that leak, and how to find a leak
# A tracer can also leak into a cache, and whether it does depends on the first call. The function `table` computes an array when it is first needed, and then reuses it.

# %%
tables = {}


def table(n):
    if n not in tables:
        tables[n] = jnp.linspace(0, 1, n)  # under jit, this stores a tracer
    return tables[n]


print(jax.jit(lambda x: x * table(4))(x))
print_error(lambda: x * table(4), length=60)
tables.clear()
print("first without jit:", x * table(4), " then with jit:", jax.jit(lambda x: x * table(4))(x))

# %% [markdown]
# The table works if the first call is made without `jit`, so tests may pass and production code may fail. `np.linspace` is safe, because NumPy returns numbers even while JAX traces. If the table must be a JAX array, create it under `jax.ensure_compile_time_eval()`, which makes `jnp` compute at once.


# %%
def safe_table(n):
    if n not in tables:
        with jax.ensure_compile_time_eval():
            tables[n] = jnp.linspace(0, 1, n)
    return tables[n]


tables.clear()
print("first with jit:", jax.jit(lambda x: x * safe_table(4))(x), " then without:", x * safe_table(4))

# %% [markdown]
# To find a leak, trace under `jax.checking_leaks()`, or set the environment variable `JAX_CHECK_TRACER_LEAKS=1`. JAX then raises an error at the end of the trace, and the message lists the objects that refer to the tracer. Only new traces are checked, so use it around the first call. Below, `norm(x)` was traced before and raises no error.

# %%
with jax.checking_leaks():
    print_error(lambda: norm(x))  # this shape was traced before
    print_error(lambda: norm(jnp.ones(5)), length=350)

# %% [markdown]
# ## Deeper: write a tracer yourself
# Tracing needs no special access to the Python interpreter. A class can define what `+` and `*` do with its objects, so these operators can record an operation instead of computing it.

# %%
recorded = []


class Recorder:
    """Represents a number and records the operations on it."""

    def __init__(self, name):
        self.name = name

    def record(self, operation, other):
        result = Recorder(f"v{len(recorded)}")
        recorded.append(f"{result.name} = {operation} {self.name} {getattr(other, 'name', other)}")
        return result

    def __add__(self, other):
        return self.record("add", other)

    def __mul__(self, other):
        return self.record("mul", other)


# %%
def polynomial(x):
    result = 0 * 1.5 + 2  # plain Python numbers are computed, not recorded
    for coefficient in (3.0, 5.0):
        result = x * coefficient + result
    return result


polynomial(Recorder("x"))
print("\n".join(recorded))
print(jax.make_jaxpr(polynomial)(1.0))

# %% [markdown]
# The jaxpr contains the same four operations, with a type for each result. Python has unrolled the loop and computed `0 * 1.5 + 2`.

# %% [markdown]
# ## Deeper: tracers that have values
# Some tracers contain concrete values. Outside `jit`, `jax.grad` computes the function's values while it traces the function. Its tracer contains such a value, the [primal](../docs/glossary.md#primal), and an `if` can use it. Below, `~` marks a weak type.


# %%
def square_if_positive(x):
    print(x)
    return x**2 if x > 0 else -x


print("gradient:", jax.grad(square_if_positive)(3.0))
print_error(lambda: jax.jit(jax.grad(square_if_positive))(3.0), length=100)

# %% [markdown]
# Under `jit`, `primal` is itself a tracer without a value, so the `if` fails. A function can also get a tracer without a value where you do not use `jit`. The loops and branches of `jax.lax` (08) trace the functions that they take, even outside `jit`. Here `cond` traces `negate`. Lesson 05 compares the tracers of `grad`, `vmap` and `jit`.


# %%
def negate(x):
    print("negate:", x)
    return -x


print("result:", jax.lax.cond(True, negate, jnp.sin, 3.0))  # negate if True, else jnp.sin

# %% [markdown]
# ## Deeper: a jaxpr as data
# Tracing needs only the shape and the dtype of an argument. `jax.ShapeDtypeStruct` describes an array without creating it. The array described here would take more than four million gigabytes.

# %%
closed = jax.make_jaxpr(log2)(jax.ShapeDtypeStruct((2**50,), jnp.float32))
for equation in closed.eqns:
    inputs = ", ".join(str(variable.aval) for variable in equation.invars)
    print(f"{equation.primitive.name:21s} inputs {inputs:55s} output {equation.outvars[0].aval}")

# %% [markdown]
# A jaxpr is a list of equations, `eqns`. Each one has a `primitive`, inputs `invars`, outputs `outvars`, and parameters `params`, which are printed in square brackets. An `aval`, short for abstract value, is the type of a variable. The `~` marks the weak type of `jnp.log(2.0)`, which JAX converts because the input is not weakly typed.
#
# An array that a function uses but does not take as an argument is a **constant**. The first line of a jaxpr lists such arrays before the semicolon, while numbers are part of the equation. `make_jaxpr` returns a `ClosedJaxpr`. Its attribute `jaxpr` is the program, and `consts` contains the values of the constants.

# %%
weights = jnp.array([1.0, 2.0, 4.0])
closed = jax.make_jaxpr(lambda x: weights * x + 0.5)(x[:3])
print(closed)
print("constants:", closed.consts)

# %% [markdown]
# A jaxpr has no dicts or tuples. JAX flattens such an argument into one input for each array or number (06). The keys of a dict are sorted, so `a` below is `model["b"]`.

# %%
print(jax.make_jaxpr(lambda model, x: model["w"] * x + model["b"])({"w": x, "b": 0.5}, x))

# %% [markdown]
# ## Deeper: from the jaxpr to machine code
# A jaxpr is written in JAX's own language. The method `lower` of a jitted function translates the jaxpr into **[StableHLO](../docs/glossary.md#stablehlo)**, which other frameworks and compilers also use. The method `compile` passes the result to the compiler [XLA](../docs/glossary.md#xla), which optimizes the program in its own language, **[HLO](../docs/glossary.md#hlo)**, and generates machine code.

# %% [markdown] predict="tracing-hlo"
# The jaxpr of `log2` contains three operations, log, log of 2, and div. What is left of them in the compiled program?
#
# - [ ] the same three | JAX does not change them, but the compiler does.
# - [ ] log and div | The compiler does compute the logarithm of 2 in advance. But a division by a constant can be avoided.
# - [x] log and a multiplication | Right. The factor is 1 / log(2) = 1.4427. Both operations are in one kernel, so no intermediate result is written to memory.

# %%
lowered = jax.jit(log2).lower(8.0)
print(lowered.as_text())
# The operations of the optimized HLO, without metadata:
for line in lowered.compile().as_text().splitlines():
    if " = " in line and "file_name" not in line:
        print(line.split(", metadata")[0].split(", calls")[0])

gradient_program = jax.jit(jax.grad(log2)).lower(8.0).compile().as_text()
print("\nlogarithms in the compiled gradient:", gradient_program.count(" log("))

# %% [markdown]
# A constant that `jnp` computes from numbers costs no time when this program runs. Results that are not used are not computed. The jaxpr of the gradient contains two logarithms, and the compiled program contains none.
#
# ![Four stages of log2, one below the other, with their texts. Python, which runs once: jnp.log(x) / jnp.log(2.0). The jaxpr: log, log of 2.0, div. StableHLO: the same operations in another language. HLO after XLA has optimized it: one fused kernel with a log and a multiplication by 1.44269502. Beside each stage how to see it: make_jaxpr, lower, compile.](../images/tracing_path.svg)

# %% [markdown]
# ## Deeper: unrolled loops take long to compile
# A program with an unrolled Python loop grows with the number of iterations. `jax.lax` has loops of its own, such as `scan` (08).

# %% [markdown] predict="tracing-scan"
# `jax.lax.scan` repeats a body with `settle(x)`, which has two operations, 500 times. How many equations does the jaxpr have, and how often is the body traced?
#
# - [x] one equation, the body traced once | Right. The equation contains the jaxpr of the body and the number of iterations.
# - [ ] 1,000 equations, traced 500 times | This is the Python loop.
# - [ ] one equation, traced 500 times | Python would have to run the body in each iteration. The program runs without Python.


# %%
def settle(x):
    return 1.01 * jnp.tanh(x)


def settle_by_python(x, iterations):
    for _ in range(iterations):
        x = settle(x)
    return x


def settle_by_scan(x, iterations):
    def body(x, _):
        print("tracing the body")
        return settle(x), None

    return jax.lax.scan(body, x, length=iterations)[0]


signal = jnp.linspace(-1, 1, 2000)
print(jax.make_jaxpr(lambda x: settle_by_scan(x, 500))(signal))

# %% [markdown]
# Next, measure how long JAX takes to trace, lower and compile each loop.

# %%
import time


def stage_ms(f, iterations):
    """Milliseconds to trace, lower and compile f, and the number of equations."""
    seconds = [time.perf_counter()]
    traced = jax.jit(f, static_argnums=1).trace(signal, iterations)
    seconds.append(time.perf_counter())
    lowered = traced.lower()
    seconds.append(time.perf_counter())
    lowered.compile()
    seconds.append(time.perf_counter())
    return 1e3 * np.diff(seconds), len(traced.jaxpr.eqns)


# The first use of each operation takes longer, so it is not measured:
_ = stage_ms(settle_by_python, 3), stage_ms(settle_by_scan, 3)

# %%
ways = {f"Python, {n}": (settle_by_python, n) for n in (10, 100, 500)} | {"scan, 500": (settle_by_scan, 500)}
results = {name: stage_ms(*way) for name, way in ways.items()}
_, axes = plots.subplots(height=2.4)
left = np.zeros(len(results))
for i, stage in enumerate(("trace", "lower", "compile")):
    took = np.array([milliseconds[i] for milliseconds, _ in results.values()])
    fill, hatch = plots.FILLS[i]
    bars = axes.barh(list(results), took, left=left, color=fill, hatch=hatch, edgecolor=plots.INK, label=stage)
    left += took
axes.bar_label(bars, [f"equations: {equations:,}" for _, equations in results.values()], padding=4)
axes.set(xlabel="milliseconds", ylabel="loop, iterations", xlim=(0, 1.3 * left.max()))
axes.legend(loc="upper right")
axes.invert_yaxis()
described = [f"{name}: {took.sum():.0f} ms, equations: {equations}" for name, (took, equations) in results.items()]
plots.show("Time to trace, lower and compile each loop with its number of iterations. " + "; ".join(described) + ".")

# %% [markdown]
# The time grows with the number of equations. The program with `scan` has one equation for all 500 iterations, and it is ready much sooner than the unrolled loop with as many iterations.

# %% [markdown]
# ## Deeper: equations that contain jaxprs
# Some equations have jaxprs among their parameters, `params`. The equation of a `scan`, a loop of `jax.lax` (08), contains the jaxpr of its body. A `while` (08) contains two, for its condition and its body. A `jit` contains the jaxpr of the jitted function, and many functions of `jnp` are jitted. A `cond` (08) contains one for each branch. A `custom_jvp_call` wraps a function such as `relu` that has its own derivative rule (04).

# %%
print(jax.make_jaxpr(lambda flag, x: jax.lax.cond(flag, jnp.sin, jnp.cos, x))(True, x))
print(jax.make_jaxpr(jax.nn.relu)(x))

# %% [markdown]
# The branches of a `cond` are numbered, and False comes first. To find every operation of a function, look into the inner jaxprs too. `jaxprs_in_params` lists them.

# %%
from jax.extend.core import jaxprs_in_params


def print_outline(jaxpr, depth=0):
    for equation in jaxpr.eqns:
        length = f", {equation.params['length']} iterations" if equation.primitive.name == "scan" else ""
        print("    " * depth + equation.primitive.name + length)
        for inner in jaxprs_in_params(equation.params):
            print_outline(inner, depth + 1)


layer = lambda x: jax.nn.relu(jnp.where(x > 0, x, 0.1 * x))
layers = lambda x: jax.lax.scan(lambda x, _: (layer(x), None), x, length=3)[0]
print("outermost equations:", primitives(layers, x))
print_outline(jax.make_jaxpr(layers)(x).jaxpr)

double_up_to_ten = lambda x: jax.lax.while_loop(lambda x: x < 10, lambda x: 2 * x, x)
print()
print_outline(jax.make_jaxpr(double_up_to_ten)(1.0).jaxpr)

# %% [markdown]
# The lambda `layer` is a plain Python function, so its operations are part of the body of the `scan`. Each call of a jitted function, such as `jnp.where`, has its own equation.

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `Traced<ShapedArray(float32[3])>with<DynamicJaxprTrace…>` | `JitTracer(float32[3])` |
# | `log 2.0` computed while tracing, a number in the jaxpr | since 2020, JAX records every `jnp` operation (this change is called omnistaging) |
# | `xla_call[…]` and `pjit[…]` in a jaxpr | `jit[…]` |
# | `jax.xla_computation(f)(x)` | `jax.jit(f).lower(x)` |
# | `jax.core.Jaxpr`, `jax.core.jaxpr_as_fun` | in `jax.extend.core`, for code that analyses jaxprs |
# | `jax.core.get_aval(x)` | `jax.typeof(x)` |
# | `host_callback.id_print` | `jax.debug.print` |
# | HLO or MHLO as the output of `lower` | StableHLO; HLO is the language of XLA |
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | the program of a function | `jax.make_jaxpr(f)(x)` |
# | the same without an array | `jax.ShapeDtypeStruct(shape, dtype)` instead of `x` (Deeper) |
# | the next stages | `jax.jit(f).lower(x).as_text()`, `.compile().as_text()` (Deeper) |
# | the type of a tracer | `jax.typeof(x)` |
# | a printed value from a program | `jax.debug.print("{}", x)` |
# | to print, count or decide once for each shape | plain Python |
# | a shape or a constant | NumPy, or code outside the function |
# | a Python value as an argument | `jax.jit(f, static_argnames="n")` |
# | a choice by a traced value | `jnp.where`, or `cond` (08) |
# | a value from inside the function | return it |
# | to find a leak | `with jax.checking_leaks():` around the first call (Deeper) |
# | a program that does not grow | a loop of `jax.lax` (08) instead of a Python loop |
#
# In the first exercise only two lines are missing.
