# %% [markdown]
# # 02 · Exercises: tracing
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# You can test every idea here before you submit. `print(jax.make_jaxpr(f)(x))` shows the program of a function, and a call shows whether it raises an error. First state what you expect, then run it.

# %% setup
from grader.checks import ask, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

jax.config.update("jax_default_matmul_precision", "highest")  # full precision, on accelerators too


def flip(x, n):
    return -x if n > 2 else x


def shaped(x, n):
    return n * x if x.shape[0] > 2 else x


def repeat(x, n):
    for _ in range(n):
        x = jnp.tanh(x)
    return x


def pick(x, n):
    return x[n]


def positive(x, n):
    return jnp.mean(x[x > n])


def sine(x, n):
    return n * np.sin(x)


def gain(x, n):
    return n * float(x[0])


def blank(x, n):
    return jnp.zeros(n)


def keep(x, n):
    kept = []
    jax.jit(lambda x: kept.append(n * x))(x)
    return kept[0] + 1


PROGRAMS = {function.__name__: function for function in (flip, shaped, repeat, pick, positive, sine, gain, blank, keep)}


def softly(x):
    """(n,) -> (n,)"""
    return jnp.tanh(2 * x)


def inner(equation):
    """The jaxprs in an equation, such as the body of a jit or of a loop, or the branches of a cond. Often there are none: []."""
    return list(jaxprs_in_params(equation.params))


def plain(counts):
    """A Counter, or NumPy's integers in a dict, as a dict of ints; anything else as it is."""
    return {name: int(count) for name, count in counts.items()} if isinstance(counts, dict) else counts


def polish(x):
    """Four iterations of sin and tanh, in a loop: (n,) -> (n,)"""
    return jax.lax.scan(lambda x, _: (jnp.tanh(jnp.sin(x)), None), x, length=4)[0]


# %% [markdown] task="tracing-log2" stars=1 minutes=8 skills="01_arrays,02_tracing"
# ## A constant from Python
# **Goal.** The `log2` of the lesson computes the logarithm of 2 in the program and divides by it. Write `log2` so that the program computes one logarithm and multiplies it by a constant. Two lines are missing.
#
# **Signature.** `log2(x)`. `x` has shape `()` and dtype float32. The result is the logarithm of `x` to base 2, also `()` and float32.
#
# **Example.** `log2(8)` is 3, and `print(jax.make_jaxpr(log2)(np.float32(8)))` prints
#
# ```
# { lambda ; a:f32[]. let
#     b:f32[] = log a
#     c:f32[] = mul b 1.4426950216293335:f32[]
#   in (c,) }
# ```
#
# **Judged.** The values. The jaxpr contains these two operations and this number to float32 precision. **Not judged.** The order of the two factors, or a `jit` around both operations.
#
# <details><summary>Hint 1 · a question</summary>
#
# 1.4427 is 1 divided by the natural logarithm of 2. Should the program compute it in each call, or should Python compute it once, while tracing?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# While tracing, JAX records every `jnp` operation, even on plain numbers. Which other library can compute a logarithm?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `jnp` for `natural`, because `x` is a tracer. Use NumPy or `math` for `factor`. They compute at once and return a number.
#
# </details>


# %% answer="tracing-log2"
def log2(x):
    """The logarithm of x () float32 to base 2, by two operations."""
    ### BEGIN SOLUTION
    natural = jnp.log(x)
    factor = 1 / np.log(2)
    ### END SOLUTION
    return natural * factor


# %% check="tracing-log2" name="example" points=1
"""The logarithm of 8 is 3."""
compare(program(log2, np.float32(1)).run(np.float32(8)), np.array(3, np.float32), label="log2(8)")

# %% hidden="tracing-log2" name="values" points=1
"""Right for any positive number."""
made = program(log2, np.float32(1))
for _ in range(3):
    x = inputs.rng().uniform(0.1, 100, size=()).astype(np.float32)
    compare(made.run(x), np.array(np.log2(x), np.float32), label="the logarithm")

# %% hidden="tracing-log2" name="jaxpr" points=2 observed=true
"""The jaxpr is that of the example: a logarithm and a multiplication by a number."""


def probe_jaxpr(x):
    jaxpr = jax.make_jaxpr(log2)(x).jaxpr
    while len(jaxpr.eqns) == 1 and inner(jaxpr.eqns[0]):
        jaxpr = inner(jaxpr.eqns[0])[0]
    rows = []
    for equation in jaxpr.eqns:
        rows.append((equation.primitive.name, [float(each.val) for each in equation.invars if hasattr(each, "val")]))
    return jaxpr.outvars[0].aval.shape, rows


shape, rows = ask(probe_jaxpr, np.float32(8))
names = [name for name, _ in rows]
require(shape == (), f"The result has shape {shape}; expected (). Is the factor a plain number?")
require(
    names.count("log") < 2 or "mul" in names,
    "The jaxpr contains two logarithms and no multiplication: the program computes the logarithm of 2 and divides by it, as "
    "`jnp.log2` does. Python can do both once, while tracing.",
)
require(
    names.count("log") < 2,
    "The jaxpr contains two logarithms: with `jnp.log(2)`, the program computes the logarithm of 2. Python can compute it "
    "once, while tracing.",
)
require("log" in names, "There is no `log` in the jaxpr: the logarithm of `x` is computed in another way.")
require(
    "mul" in names or "div" not in names,
    "The jaxpr contains a division. Let Python divide 1 by log(2) once, while tracing, so that the program only multiplies.",
)
require(
    names == ["log", "mul"],
    "The jaxpr contains more than `log` and `mul`: the program computes something that depends on no argument. Let NumPy or "
    "`math` compute the factor while tracing.",
)
numbers = rows[1][1]
require(len(numbers) == 1, "The jaxpr does not multiply by a constant number.")
near, exact = (abs(numbers[0] - 1 / np.log(2)) < limit for limit in (1e-3, 3e-7))
require(exact or not near, "The number in the jaxpr is 1 / log(2) with only a few digits. Let Python compute it.")
require(near, "The number in the jaxpr is not 1 / log(2), 1.4427.")

# %% [markdown] why="tracing-log2"
# NumPy computes while JAX traces, and its result becomes a number in the program. JAX records every operation of `jnp`. Use NumPy for constants and `jnp` for what depends on an argument. **Next:** What does the jaxpr contain if the factor is an array of a thousand numbers?


# %% wrong="tracing-log2" because="Computes the logarithm of 2 with jnp, which JAX records as an operation of the program while tracing."
def log2(x):
    natural = jnp.log(x)
    factor = 1 / jnp.log(2.0)
    return natural * factor


# %% wrong="tracing-log2" because="Computes the logarithm of x with NumPy, which needs numbers but is given a tracer."
def log2(x):
    natural = np.log(x)
    factor = 1 / np.log(2)
    return natural * factor


# %% wrong="tracing-log2" because="Multiplies by log(2) instead of dividing by it."
def log2(x):
    natural = jnp.log(x)
    factor = np.log(2)
    return natural * factor


# %% wrong="tracing-log2" because="Divides by log(2), which gives the right values, but the program divides in each call."
def log2(x):
    natural = jnp.log(x)
    return natural / np.log(2)


# %% wrong="tracing-log2" because="Uses jnp.log2, whose program computes both logarithms and divides."
def log2(x):
    return jnp.log2(x)


# %% wrong="tracing-log2" because="Copies the rounded number from the text, but float32 can store three more digits."
def log2(x):
    natural = jnp.log(x)
    factor = 1.4427
    return natural * factor


# %% wrong="tracing-log2" because="Computes the reciprocal of a known number with jnp, which adds an operation to the program."
def log2(x):
    natural = jnp.log(x)
    factor = jnp.reciprocal(np.log(2))
    return natural * factor


# %% wrong="tracing-log2" because="Divides by the logarithm of 10, which gives the logarithm to base 10."
def log2(x):
    natural = jnp.log(x)
    factor = 1 / np.log(10)
    return natural * factor


# %% wrong="tracing-log2" because="Makes the factor an array of shape (1,), so the result has this shape too."
def log2(x):
    natural = jnp.log(x)
    factor = 1 / np.log([2.0])
    return natural * factor


# %% wrong="tracing-log2" because="Computes the logarithm of 2 with jnp outside the function, but the result is an array, so the program still divides by it."
LOG_OF_2 = jnp.log(2.0)  # before any tracing


def log2(x):
    natural = jnp.log(x)
    factor = 1 / LOG_OF_2
    return natural * factor


# %% wrong="tracing-log2" because="Computes the factor with jnp from plain numbers, which JAX records as an operation of the program."
import math


def log2(x):
    natural = jnp.log(x)
    factor = jnp.divide(1.0, math.log(2.0))  # two Python numbers, so a constant
    return natural * factor


# %% wrong="tracing-log2" because="Guards the logarithm against 0, which adds an operation and changes tiny values."
def log2(x):
    natural = jnp.log(x + 1e-12)  # never the logarithm of 0
    factor = 1 / np.log(2)
    return natural * factor


# %% right="tracing-log2"
def log2(x):
    return np.float32(1.442695) * jax.lax.log(x)


# %% right="tracing-log2"
def log2(x):
    natural = jnp.log(x)
    factor = jnp.float32(np.log2(np.e))
    return natural * factor


# %% right="tracing-log2"
@jax.jit
def log2(x):
    natural = jnp.log(x)
    factor = 1 / np.log(2)
    return natural * factor


# %% [markdown] task="tracing-prints" stars=1 minutes=12 skills="02_tracing,tracing-log2"
# ## Traced or not?
# **Goal.** Predict what a compiled function prints, in which order and how often.
#
# **Signature.** `traced_or_not(lines, lengths)`. `lines` is a list of the lines of a function `f(x)`, in order. Each is a tuple `(verb, word, times)`.
#
# | line | meaning |
# |---|---|
# | `("print", "a", 2)` | `for _ in range(2): print("a")` |
# | `("debug", "b", 2)` | `for _ in range(2): jax.debug.print("b", ordered=True)` |
# | `("print", "c", "len")` | `for _ in range(len(x)): print("c")`, and the same for `"debug"` |
#
# The function is compiled with `compiled = jax.jit(f)`. Then it is called once for each number in `lengths`, with a float32 array `x` of that length. Each call finishes before the next one starts. Return the list of words in the order in which they are printed. With `ordered=True`, the debug prints keep the order of the program.
#
# **Example.** `traced_or_not([("debug", "b", 1), ("print", "a", 1)], [3, 3])` is `["a", "b", "b"]`.
#
# **Judged.** The list, for functions and lengths that are drawn at random. **Not judged.** How you compute it. You may also run JAX and capture what it prints.
#
# <details><summary>Hint 1 · a question</summary>
#
# In which calls does Python run the body of `f`? In which calls does the program run?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A call with a new length has two stages. In the first, the `"print"` lines print, and in the second, the `"debug"` lines. All other calls consist of the second stage only.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Keep a set of the lengths so far. Python unrolls its loops while tracing. So the program contains a `"debug"` line once for each iteration, and prints it that often in every call.
#
# </details>


# %% answer="tracing-prints"
def traced_or_not(lines, lengths):
    """The words that the compiled function prints, in order. lines: (verb, word, times); lengths: one for each call."""
    ### BEGIN SOLUTION
    printed, traced = [], set()

    def speak(speaker, length):
        for verb, word, times in lines:
            if verb == speaker:
                printed.extend([word] * (length if times == "len" else times))

    for length in lengths:
        if length not in traced:
            speak("print", length)
            traced.add(length)
        speak("debug", length)
    return printed
    ### END SOLUTION


# %% check="tracing-prints" name="example" points=1
"""The example: two calls with the same length."""
got = ask(traced_or_not, [("debug", "b", 1), ("print", "a", 1)], [3, 3])
compare(got, ["a", "b", "b"], label="your list")

# %% hidden="tracing-prints" name="words" points=3
"""Right for functions and calls that are drawn at random."""


def run_in_the_head(lines, lengths):
    said, seen = [], []
    for length in lengths:
        for who in ["print", "debug"] if length not in seen else ["debug"]:
            said += [
                word for verb, word, times in lines if verb == who for _ in range(times if times != "len" else length)
            ]
        seen.append(length)
    return said


rng = inputs.rng()
a, b, c, d = (str(word) for word in rng.permutation(["ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew"])[:4])
n, m, k = (int(length) for length in rng.permutation([2, 3, 4, 5, 6])[:3])
cases = [
    ("prints alone, called again with the same length", [("print", a, 1), ("print", b, 1)], [n, n, n]),
    ("debug prints alone, called again with the same length", [("debug", a, 1), ("debug", b, 1)], [n, n, n]),
    ("a print above a debug print, in one call", [("print", a, 1), ("debug", b, 1)], [n]),
    ("both kinds of print, in one call", [("debug", a, 1), ("print", b, 1), ("debug", c, 1), ("print", d, 1)], [n]),
    ("a new length", [("print", a, 1), ("debug", b, 1)], [n, n, m, m]),
    ("a length that is used again", [("print", a, 1), ("debug", b, 1)], [n, m, n]),
    ("Python loops of a fixed length", [("print", a, 3), ("debug", b, 2), ("print", c, 0)], [n, n]),
    ("Python loops over the length of x", [("debug", a, "len"), ("print", b, "len")], [n, n, m, n]),
    ("no call at all", [("print", a, 1), ("debug", b, 1)], []),
    (
        "all kinds of lines",
        [("debug", a, 2), ("print", b, "len"), ("debug", c, "len"), ("print", d, 2)],
        [m, k, m, n, k],
    ),
]
answers = ask(lambda calls: [traced_or_not(*call) for call in calls], [case[1:] for case in cases])
for answer, (what, lines, lengths) in zip(answers, cases, strict=True):
    require(isinstance(answer, list), f"With {what}, the answer is not a list.")
    wanted = run_in_the_head(lines, lengths)
    require(len(answer) <= len(wanted), f"With {what}: your list has more words than JAX prints.")
    require(len(answer) >= len(wanted), f"With {what}: your list has fewer words than JAX prints.")
    same_words = sorted(map(str, answer)) == sorted(wanted)
    require(answer == wanted or not same_words, f"With {what}: your list has the right words in the wrong order.")
    require(answer == wanted, f"With {what}: your list contains words that differ from those that JAX prints.")

# %% [markdown] why="tracing-prints"
# A call of a compiled function with a new shape has two stages. First JAX traces it, and Python prints, counts and runs its loops. Then the program runs the recorded operations. Later calls with this shape only run the program. **Next:** Which of the words would `jax.make_jaxpr(f)(x)` print?


# %% wrong="tracing-prints" because="Assumes that a debug print prints while tracing, so that it prints nothing from the second call on."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        if length not in traced:
            for speaker in ("print", "debug"):
                for verb, word, times in lines:
                    if verb == speaker:
                        printed += [word] * (length if times == "len" else times)
        traced.add(length)
    return printed


# %% wrong="tracing-prints" because="Assumes that Python runs in every call, as without jit."
def traced_or_not(lines, lengths):
    printed = []
    for length in lengths:
        for _, word, times in lines:
            printed += [word] * (length if times == "len" else times)
    return printed


# %% wrong="tracing-prints" because="Mixes both kinds of lines in their order, but tracing ends before the program starts."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        for verb, word, times in lines:
            if verb == "debug" or length not in traced:
                printed += [word] * (length if times == "len" else times)
        traced.add(length)
    return printed


# %% wrong="tracing-prints" because="Remembers only the last length, but JAX caches a program for every length."
def traced_or_not(lines, lengths):
    printed, last = [], None
    for length in lengths:
        for speaker in ("debug",) if length == last else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (length if times == "len" else times)
        last = length
    return printed


# %% wrong="tracing-prints" because="Traces only in the first call, but each new length needs its own program."
def traced_or_not(lines, lengths):
    printed = []
    for i, length in enumerate(lengths):
        for speaker in ("debug",) if i else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (length if times == "len" else times)
    return printed


# %% wrong="tracing-prints" because="Treats a Python loop as a loop of the program, whose body is traced once."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        if length not in traced:
            printed += [word for verb, word, times in lines if verb == "print" and times != 0]
        traced.add(length)
        for verb, word, times in lines:
            if verb == "debug":
                printed += [word] * (length if times == "len" else times)
    return printed


# %% wrong="tracing-prints" because="Assumes that the length is not known while tracing, so that a loop over it has one iteration."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        for speaker in ("debug",) if length in traced else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (1 if times == "len" else times)
        traced.add(length)
    return printed


# %% wrong="tracing-prints" because="Keeps the set of lengths for the next function too, which then counts as traced."
traced = set()


def traced_or_not(lines, lengths):
    printed = []
    for length in lengths:
        for speaker in ("debug",) if length in traced else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (length if times == "len" else times)
        traced.add(length)
    return printed


# %% wrong="tracing-prints" because="Puts the debug prints of a call before its prints, but tracing ends before the program runs."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        for speaker in ("debug",) if length in traced else ("debug", "print"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (length if times == "len" else times)
        traced.add(length)
    return printed


# %% right="tracing-prints"
def traced_or_not(lines, lengths):
    import contextlib
    import io

    def f(x):
        for verb, word, times in lines:
            for _ in range(len(x) if times == "len" else times):
                print(word) if verb == "print" else jax.debug.print(word, ordered=True)
        return x

    compiled, heard = jax.jit(f), io.StringIO()
    with contextlib.redirect_stdout(heard):
        for length in lengths:
            jax.block_until_ready(compiled(jnp.zeros(length)))
            jax.effects_barrier()
    return heard.getvalue().split()


# %% right="tracing-prints"
def traced_or_not(lines, lengths):
    def spoken(speaker, length):
        return [
            word for verb, word, times in lines if verb == speaker for _ in range({"len": length}.get(times, times))
        ]

    return [
        word
        for i, length in enumerate(lengths)
        for word in (spoken("print", length) if length not in lengths[:i] else []) + spoken("debug", length)
    ]


# %% [markdown] task="tracing-errors" stars=1 minutes=15 skills="02_tracing,tracing-prints"
# ## Name that error
# **Goal.** The setup cell defines nine short functions, `flip`, `shaped`, `repeat`, `pick`, `positive`, `sine`, `gain`, `blank` and `keep`. Predict what happens when each is compiled and called.
#
# **Signature.** `name_that_error(name, traced)`. `name` is the name of a function, a string. `traced` is a tuple with the names of the traced arguments, `"x"`, `"n"`, both or neither. The function is always called inside a `jit`, and an argument that is not in `traced` is a plain value from outside. So `("x",)` means
#
# ```python
# x, n = jnp.array([0.1, 0.2, 0.3, 0.4]), 3
# jax.jit(lambda x: PROGRAMS[name](x, n))(x)
# ```
#
# and `()` means `jax.jit(lambda: PROGRAMS[name](x, n))()`. Return the name of the error, such as `"TypeError"`, or `"no error"`.
#
# **Example.** `name_that_error("flip", ("n",))` is `"TracerBoolConversionError"`. With `("x",)` it is `"no error"`.
#
# **Judged.** The answers for all nine functions and each choice of traced arguments, as in jax 0.10. **Not judged.** How you find them. Think first, then try it.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does *Python* need to know in each function? Is it a truth value, an integer, or all numbers of an array? Is it known while tracing?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Some functions need the value of an argument, and fail only if this argument is traced. Some need a value that `jnp` has computed, which is always a tracer inside a `jit`. One function uses a value after the trace that created it has ended.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Three functions always fail, four fail if one particular argument is traced, and two never fail. The lesson lists the names of the errors in the sections "Errors: when Python needs a value" and "Leaked tracers". One or two small dictionaries are enough.
#
# </details>


# %% answer="tracing-errors"
def name_that_error(name, traced):
    """The error that program `name` raises inside a jit whose arguments are `traced`, or "no error"."""
    ### BEGIN SOLUTION
    always = {
        "positive": "NonConcreteBooleanIndexError",
        "gain": "ConcretizationTypeError",
        "keep": "UnexpectedTracerError",
    }
    if_traced = {
        ("flip", "n"): "TracerBoolConversionError",
        ("repeat", "n"): "TracerIntegerConversionError",
        ("sine", "x"): "TracerArrayConversionError",
        ("blank", "n"): "TypeError",
    }
    found = [if_traced[name, argument] for argument in traced if (name, argument) in if_traced]
    return always.get(name) or (found[0] if found else "no error")
    ### END SOLUTION


# %% check="tracing-errors" name="example" points=1
"""The example: one program, traced in two ways."""
compare(
    ask(name_that_error, "flip", ("n",)), "TracerBoolConversionError", label='your answer for `flip` with "n" traced'
)
compare(ask(name_that_error, "flip", ("x",)), "no error", label='your answer for `flip` with "x" traced')

# %% hidden="tracing-errors" name="refused" points=2
"""Right for the functions that need the value of an argument, for each choice of traced arguments."""
TABLE = {
    "flip": ("n", "TracerBoolConversionError"),
    "repeat": ("n", "TracerIntegerConversionError"),
    "sine": ("x", "TracerArrayConversionError"),
    "blank": ("n", "TypeError"),
}
WAYS = [(), ("x",), ("n",), ("x", "n")]
items = [(name, way) for name in TABLE for way in WAYS]
shuffled = [
    int(i) for i in inputs.rng().permutation(len(items))
]  # judged in one order, so no draw changes what fails first
answers = ask(lambda items: [name_that_error(*item) for item in items], [items[i] for i in shuffled])
answers = [answers[shuffled.index(i)] for i in range(len(items))]
for (name, way), answer in zip(items, answers, strict=True):
    needs, problem = TABLE[name]
    said = " and ".join(f'"{argument}"' for argument in way) or "nothing"
    if needs in way:
        require(answer != "no error", f"`{name}` with {said} traced raises an error.")
        require(answer == problem, f"`{name}` with {said} traced raises a different error.")
    else:
        require(answer == "no error", f"`{name}` with {said} traced runs without an error.")

# %% hidden="tracing-errors" name="whatever" points=2
"""Right for the functions that always fail and those that never fail."""
ALWAYS = {
    "positive": "NonConcreteBooleanIndexError",
    "gain": "ConcretizationTypeError",
    "keep": "UnexpectedTracerError",
    "shaped": "no error",
    "pick": "no error",
}
items = [(name, way) for name in ALWAYS for way in [("n",), ("x",), ("x", "n"), ()]]
shuffled = [int(i) for i in inputs.rng().permutation(len(items))]
answers = ask(lambda items: [name_that_error(*item) for item in items], [items[i] for i in shuffled])
answers = [answers[shuffled.index(i)] for i in range(len(items))]
for (name, way), answer in zip(items, answers, strict=True):
    said = " and ".join(f'"{argument}"' for argument in way) or "nothing"
    if ALWAYS[name] == "no error":
        require(answer == "no error", f"`{name}` with {said} traced runs without an error.")
    else:
        require(answer != "no error", f"`{name}` with {said} traced raises an error.")
        require(answer == ALWAYS[name], f"`{name}` with {said} traced raises a different error.")

# %% [markdown] why="tracing-errors"
# The name of the error shows what Python needed. `if` needs a bool, `range` an integer, NumPy an array, `float()` a concrete value, and a mask the number of True entries. Inside a `jit`, every result of `jnp` is a tracer, even if no argument is traced. **Next:** Which of the seven failing functions can you fix with a static `n`, and what would you write in the others?


# %% wrong="tracing-errors" because="Assumes that a result computed from a plain array is a plain value, but inside a jit, x[0] and x > n are tracers."
def name_that_error(name, traced):
    needs = {
        "flip": ("n", "TracerBoolConversionError"),
        "repeat": ("n", "TracerIntegerConversionError"),
        "positive": ("x", "NonConcreteBooleanIndexError"),
        "sine": ("x", "TracerArrayConversionError"),
        "gain": ("x", "ConcretizationTypeError"),
        "blank": ("n", "TypeError"),
    }
    if name == "keep":
        return "UnexpectedTracerError"
    argument, problem = needs.get(name, (None, None))
    return problem if argument in traced else "no error"


# %% wrong="tracing-errors" because="Assumes that a size is not known while tracing."
def name_that_error(name, traced):
    always = {
        "positive": "NonConcreteBooleanIndexError",
        "gain": "ConcretizationTypeError",
        "keep": "UnexpectedTracerError",
    }
    needs = {
        "flip": ("n", "TracerBoolConversionError"),
        "shaped": ("x", "TracerBoolConversionError"),
        "repeat": ("n", "TracerIntegerConversionError"),
        "sine": ("x", "TracerArrayConversionError"),
        "blank": ("n", "TypeError"),
    }
    argument, problem = needs.get(name, (None, None))
    return always.get(name) or (problem if argument in traced else "no error")


# %% wrong="tracing-errors" because="Treats the index of an array like the index of a list, but x[n] is an operation and accepts a traced n."
def name_that_error(name, traced):
    always = {
        "positive": "NonConcreteBooleanIndexError",
        "gain": "ConcretizationTypeError",
        "keep": "UnexpectedTracerError",
    }
    needs = {
        "flip": ("n", "TracerBoolConversionError"),
        "repeat": ("n", "TracerIntegerConversionError"),
        "pick": ("n", "TracerIntegerConversionError"),
        "sine": ("x", "TracerArrayConversionError"),
        "blank": ("n", "TypeError"),
    }
    argument, problem = needs.get(name, (None, None))
    return always.get(name) or (problem if argument in traced else "no error")


# %% wrong="tracing-errors" because="Gives one name to all errors, ConcretizationTypeError, but the other errors have names of their own."
def name_that_error(name, traced):
    if name in ("positive", "gain", "keep"):
        return "ConcretizationTypeError"
    needs = {"flip": "n", "repeat": "n", "sine": "x", "blank": "n"}.get(name)
    return "ConcretizationTypeError" if needs in traced else "no error"


# %% wrong="tracing-errors" because="Expects no error from `keep`, but it uses a tracer whose trace has ended."
def name_that_error(name, traced):
    always = {"positive": "NonConcreteBooleanIndexError", "gain": "ConcretizationTypeError"}
    needs = {
        "flip": ("n", "TracerBoolConversionError"),
        "repeat": ("n", "TracerIntegerConversionError"),
        "sine": ("x", "TracerArrayConversionError"),
        "blank": ("n", "TypeError"),
    }
    argument, problem = needs.get(name, (None, None))
    return always.get(name) or (problem if argument in traced else "no error")


# %% wrong="tracing-errors" because="Expects the error of an integer conversion from jnp.zeros(n), but a traced shape raises a plain TypeError."
def name_that_error(name, traced):
    always = {
        "positive": "NonConcreteBooleanIndexError",
        "gain": "ConcretizationTypeError",
        "keep": "UnexpectedTracerError",
    }
    needs = {
        "flip": ("n", "TracerBoolConversionError"),
        "repeat": ("n", "TracerIntegerConversionError"),
        "sine": ("x", "TracerArrayConversionError"),
        "blank": ("n", "TracerIntegerConversionError"),
    }
    argument, problem = needs.get(name, (None, None))
    return always.get(name) or (problem if argument in traced else "no error")


# %% wrong="tracing-errors" because="Compares the whole tuple with the argument that matters, which is also traced if both arguments are."
def name_that_error(name, traced):
    always = {
        "positive": "NonConcreteBooleanIndexError",
        "gain": "ConcretizationTypeError",
        "keep": "UnexpectedTracerError",
    }
    needs = {
        ("flip", ("n",)): "TracerBoolConversionError",
        ("repeat", ("n",)): "TracerIntegerConversionError",
        ("sine", ("x",)): "TracerArrayConversionError",
        ("blank", ("n",)): "TypeError",
    }
    return always.get(name) or needs.get((name, traced), "no error")


# %% wrong="tracing-errors" because="Assumes that only arguments can be tracers, so that nothing fails if no argument is traced."
def name_that_error(name, traced):
    always = {
        "positive": "NonConcreteBooleanIndexError",
        "gain": "ConcretizationTypeError",
        "keep": "UnexpectedTracerError",
    }
    needs = {
        "flip": ("n", "TracerBoolConversionError"),
        "repeat": ("n", "TracerIntegerConversionError"),
        "sine": ("x", "TracerArrayConversionError"),
        "blank": ("n", "TypeError"),
    }
    argument, problem = needs.get(name, (None, None))
    return "no error" if not traced else always.get(name) or (problem if argument in traced else "no error")


# %% wrong="tracing-errors" because="Expects the error whichever argument is traced, but only some arguments cause it."
def name_that_error(name, traced):
    errors = {
        "repeat": "TracerIntegerConversionError",
        "positive": "NonConcreteBooleanIndexError",
        "sine": "TracerArrayConversionError",
        "gain": "ConcretizationTypeError",
        "blank": "TypeError",
        "keep": "UnexpectedTracerError",
    }
    if name == "flip":
        return "TracerBoolConversionError" if "n" in traced else "no error"
    if name in ("positive", "gain", "keep"):
        return errors[name]
    return errors.get(name, "no error") if traced else "no error"


# %% right="tracing-errors"
def name_that_error(name, traced):
    plain = {"x": jnp.array([0.1, 0.2, 0.3, 0.4]), "n": 3}
    given = {argument: plain[argument] for argument in traced}
    try:
        jax.jit(lambda given: PROGRAMS[name](**{**plain, **given}))(given)
    except Exception as problem:
        return type(problem).__name__
    return "no error"


# %% [markdown] task="tracing-size" stars=2 minutes=12 skills="02_tracing,tracing-log2"
# ## The size of a program before it runs
# *Needs: Deeper: a jaxpr as data.*
#
# **Goal.** Count the operations of a function and the memory that all their results would take. It must work for inputs of any size, even if no machine could store them.
#
# **Signature.** `size_of_program(f, n)`. `f` takes an array of shape `(n,)` and dtype float32, and returns an array or a tuple of arrays. `n` is an int. Return a dict of two ints. `"operations"` is the number of equations in the jaxpr of `f`, where an equation that contains others, such as a `jit`, counts as one. `"bytes"` is the number of bytes of all results of these equations, whether they are used or not.
#
# **Example.** `softly` from the setup, `jnp.tanh(2 * x)`, has two equations. For `n = 1000`, each has a result of 1,000 float32 numbers, so your function returns `{"operations": 2, "bytes": 8000}`.
#
# **Judged.** Both numbers, for several functions, and also for n near 2**50, where a single array would take millions of gigabytes. **Not judged.** The contents of an inner `jit`.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does JAX need for tracing, the numbers of the input, or its shape and dtype?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.make_jaxpr` accepts `jax.ShapeDtypeStruct(shape, dtype)` instead of an array. Each equation has `outvars`, and each variable has an `aval` with a `size` and a `dtype`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# An equation may have several results, so loop over all `outvars` of all `eqns`. `dtype.itemsize` is the number of bytes of an entry, 1 for a bool and 2 for a bfloat16.
#
# </details>


# %% answer="tracing-size"
def size_of_program(f, n):
    """{"operations": equations in the jaxpr of f for an input (n,) float32, "bytes": of all their results}."""
    ### BEGIN SOLUTION
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in results)}
    ### END SOLUTION


# %% check="tracing-size" name="example" points=1
"""The example: `softly` for a thousand numbers."""
compare(ask(lambda n: plain(size_of_program(softly, n)), 1000), {"operations": 2, "bytes": 8000})

# %% hidden="tracing-size" name="numbers" points=2
"""Right for results of any dtype, and for equations with several results or none."""


def probe_sizes(n):
    def looped(x):
        for _ in range(5):
            x = jnp.sin(x)
        return x

    def by_length(x):
        for _ in range(x.shape[0]):
            x = jnp.sin(x)
        return x

    return {
        "a Python loop": plain(size_of_program(looped, n)),
        "a Python loop over the length": plain(size_of_program(by_length, 6)),
        "results in bfloat16": plain(size_of_program(lambda x: jnp.tanh(x.astype(jnp.bfloat16)), n)),
        "a result of bools": plain(size_of_program(lambda x: jax.lax.gt(x, jnp.float32(0)), n)),
        "a result of one number": plain(size_of_program(lambda x: jnp.max(x), n)),
        "an equation with two results": plain(size_of_program(lambda x: jax.lax.top_k(x, 2), n)),
        "two results of different dtypes": plain(
            size_of_program(lambda x: jax.lax.top_k(x.astype(jnp.bfloat16), 3), n)
        ),
        "a result that nothing uses": plain(size_of_program(lambda x: jax.lax.top_k(x, 2)[0], n)),
        "an equation that nothing uses": plain(size_of_program(lambda x: (jnp.sin(x), jnp.cos(x))[1], n)),
        "an inner jit": plain(size_of_program(lambda x: jax.jit(looped)(x) + x, n)),
        "no equation": plain(size_of_program(lambda x: x, n)),
    }


n = int(inputs.rng().integers(100, 1000))
wanted = {
    "a Python loop": (5, 20 * n),
    "a Python loop over the length": (6, 144),
    "a result of one number": (1, 4),
    "results in bfloat16": (2, 4 * n),
    "a result of bools": (1, n),
    "an equation with two results": (1, 16),
    "two results of different dtypes": (2, 2 * n + 18),
    "a result that nothing uses": (1, 16),
    "an equation that nothing uses": (2, 8 * n),
    "an inner jit": (2, 8 * n),
    "no equation": (0, 0),
}
got = ask(probe_sizes, n)
for what, (operations, size) in wanted.items():
    compare(got[what], {"operations": operations, "bytes": size}, label=f"with {what}, the result")

# %% hidden="tracing-size" name="huge" points=1
"""Right for an input that no machine can store."""
n = 2 ** int(inputs.rng().integers(48, 52))
refused = error(lambda n: plain(size_of_program(softly, n)), n)
require(
    refused is None or ("Memory" not in refused and "Runtime" not in refused),
    "For an input that no machine can store, your function runs out of memory: it creates an array of that size. Describe the "
    "input by its shape and dtype instead.",
)
got = ask(lambda n: plain(size_of_program(softly, n)), n)
compare(got, {"operations": 2, "bytes": 8 * n}, label="with an input that no machine can store, the result")

# %% [markdown] why="tracing-size"
# Tracing needs only shapes and dtypes, and every variable of a jaxpr has them. So you can inspect a training step for a cluster on a laptop. The compiled program can need much less memory, because the compiler fuses operations and does not store all results. **Next:** For which of your functions does the number of operations grow with n?


# %% wrong="tracing-size" because="Creates an array of that size, although tracing needs only its shape and dtype."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jnp.zeros(n)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in results)}


# %% wrong="tracing-size" because="Counts four bytes for every entry, whatever its dtype."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    return {"operations": len(equations), "bytes": sum(4 * aval.size for aval in results)}


# %% wrong="tracing-size" because="Counts only the first result of each equation."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [equation.outvars[0].aval for equation in equations]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in results)}


# %% wrong="tracing-size" because="Assumes that every result is as large as the input."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    return {"operations": len(equations), "bytes": 4 * n * len(equations)}


# %% wrong="tracing-size" because="Counts the inputs of the equations instead of their results."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    read = [variable.aval for equation in equations for variable in equation.invars]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in read)}


# %% wrong="tracing-size" because="Counts the lines of the printed jaxpr, but an equation may take several lines, and the first and last lines contain no equation."
def size_of_program(f, n):
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32))
    results = [variable.aval for equation in closed.eqns for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len(str(closed).splitlines()), "bytes": size}


# %% wrong="tracing-size" because="Omits results that are not used, printed as _, but the task counts all results."
def size_of_program(f, n):
    jaxpr = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).jaxpr
    used = {id(each) for equation in jaxpr.eqns for each in equation.invars} | {id(each) for each in jaxpr.outvars}
    results = [each.aval for equation in jaxpr.eqns for each in equation.outvars if id(each) in used]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len(jaxpr.eqns), "bytes": size}


# %% wrong="tracing-size" because="Traces a short input and scales the bytes, but the number of equations and the sizes of results need not be proportional to n."
def size_of_program(f, n):
    short = 4
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((short,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len(equations), "bytes": size * n // short}


# %% wrong="tracing-size" because="Collects the primitives in a set, so two equations with the same primitive count once."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len({equation.primitive for equation in equations}), "bytes": size}


# %% wrong="tracing-size" because="Counts only the bytes of the result of f, without the other equations."
def size_of_program(f, n):
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32))
    size = sum(aval.size * aval.dtype.itemsize for aval in closed.out_avals)
    return {"operations": len(closed.eqns), "bytes": size}


# %% wrong="tracing-size" because="Adds the bytes of the input, which is not the result of an equation."
def size_of_program(f, n):
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32))
    results = [variable.aval for equation in closed.eqns for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in [*results, *closed.in_avals])
    return {"operations": len(closed.eqns), "bytes": size}


# %% wrong="tracing-size" because="Also counts the equations inside an inner jit."
def size_of_program(f, n):
    def visit(jaxpr):
        operations, stored = 0, 0
        for equation in jaxpr.eqns:
            operations += 1
            stored += sum(v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)
            for body in inner(equation):
                more, bigger = visit(body)
                operations, stored = operations + more, stored + bigger
        return operations, stored

    operations, stored = visit(jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).jaxpr)
    return {"operations": operations, "bytes": stored}


# %% right="tracing-size"
def size_of_program(f, n):
    traced = jax.jit(f).trace(jax.ShapeDtypeStruct((n,), np.float32))
    operations = size = 0
    for equation in traced.jaxpr.eqns:
        operations += 1
        for variable in equation.outvars:
            entries = 1
            for length in variable.aval.shape:
                entries *= length
            size += entries * variable.aval.dtype.itemsize
    return {"operations": operations, "bytes": size}


# %% [markdown] task="tracing-leak" stars=2 minutes=15 skills="02_tracing,tracing-errors"
# ## Two leaks
# **Goal.** Without `jit`, this function works for signals of one length. Compiled, it fails in a later call, or when you use a value that it stored. It leaks tracers in **two** places. Find both, and write a version that is safe under `jit`.
#
# ```python
# kept = {}
#
# def fix_leak(signal):
#     if "window" not in kept:
#         kept["window"] = jnp.hanning(len(signal))    # created once, for speed
#     windowed = kept["window"] * signal
#     kept["loudest"] = jnp.max(jnp.abs(windowed))     # for the log
#     return {"energy": jnp.sum(windowed**2)}
# ```
#
# **Signature.** `fix_leak(signal)`. `signal` has shape `(n,)` with n ≥ 3 and dtype float32. Return a dict. `"energy"` is computed as above, and `"loudest"` is the value that was stored for the log. Both have shape `()` and dtype float32.
#
# **Example.** For `[1, -2, 1]` the window is `[0, 1, 0]`, so the energy is 4 and the loudest value is 2.
#
# **Judged.** Both values, for several lengths, with and without `jit`, in any order. Nothing leaks, under `jax.checking_leaks()`. **Not judged.** Whether a window is created again in each call.
#
# <details><summary>Hint 1 · a question</summary>
#
# Under `jit`, what does the function store in `kept`? How long is it valid?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The only way to get a value out of a traced function is to return it. Does the window have to be stored at all? How often does Python run that line under `jit`?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Without `kept`, nothing can leak. Create the window inside the function, with `jnp` as part of the program, or with NumPy as a constant. The window depends on the length, so one window for all lengths would be wrong even without `jit`.
#
# </details>


# %% answer="tracing-leak"
def fix_leak(signal):
    """{"energy": (), "loudest": ()} of signal (n,) float32 in a Hann window. Stores nothing."""
    ### BEGIN SOLUTION
    windowed = np.hanning(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}
    ### END SOLUTION


# %% check="tracing-leak" name="example" points=1
"""The example: three samples, as a program."""
signal = np.array([1, -2, 1], np.float32)
compare(program(fix_leak, signal).run(signal), {"energy": np.float32(4), "loudest": np.float32(2)})

# %% hidden="tracing-leak" name="values" points=2
"""Right for signals of any length, one after the other, with and without jit."""


def probe_calls(signals):
    compiled = jax.jit(lambda signal: fix_leak(signal))
    return [way(signal) for signal in signals for way in (compiled, fix_leak, compiled)]


rng = inputs.rng()
n, m = (int(length) for length in rng.permutation([5, 6, 7, 8])[:2])
signals = [rng.normal(size=length).astype(np.float32) for length in (n, m, n)]
signals[0][n // 2] = -9.0  # the loudest swing is a negative one
windowed = [np.hanning(len(signal)) * signal for signal in signals for _ in range(3)]
names = ["the compiled result", "the result without jit", "the result, compiled once more"]
arrays = [jnp.asarray(signal) for signal in signals]
# The example's length: a window kept since then fits, so what fails now is a tracer, and not another length.
kind = error(probe_calls, [jnp.array([1.0, -2.0, 1.0])])
require(
    kind != "UnexpectedTracerError",
    "A later call with the same length uses a tracer that an earlier call stored. Its trace has ended, so it is not valid.",
)
kind = error(probe_calls, arrays)
require(
    kind != "UnexpectedTracerError",
    "A later call uses a tracer that an earlier call stored. Its trace has ended, so it is not valid.",
)
require(
    kind != "TypeError",
    "Called with several lengths, it raises TypeError: does a later call use something that has the first length?",
)
for i, (got, wanted) in enumerate(zip(ask(probe_calls, arrays), windowed, strict=True)):
    expected = {"energy": np.float32(np.sum(wanted**2)), "loudest": np.float32(np.max(np.abs(wanted)))}
    compare(got, expected, label=names[i % 3])

# %% hidden="tracing-leak" name="nothing" points=2 observed=true
"""Nothing leaks: it passes `jax.checking_leaks()`."""


def probe_leaks(signal):
    with jax.checking_leaks():
        return jax.jit(lambda signal: fix_leak(signal))(signal)


n = int(inputs.rng().integers(9, 99))
signal = inputs.rng().normal(size=n).astype(np.float32)
kind = error(probe_leaks, signal)
require(kind != "UnexpectedTracerError", "A tracer from an earlier call is used again: something is still stored.")
require(
    kind != "Exception",
    "A tracer leaks: after tracing, something outside (a dict, a list, an `lru_cache`) still contains a value of this function. "
    "A copy of a tracer is a tracer too.",
)
require(kind is None, f"Compiled under `jax.checking_leaks()`, the function raises {kind}.")

# %% [markdown] why="tracing-leak"
# A tracer is valid only while its function is traced, so a tracer in a dict is useless afterwards. Return results. Create constants where they are needed, or store them as NumPy arrays, which contain numbers. **Next:** `functools.lru_cache` is safe around a function that calls `np.hanning`, but not around one that calls `jnp.hanning`. Why?


# %% wrong="tracing-leak" because="Stores a window from jnp in a dict or a cache, but under jit it is a tracer."
windows = {}


def fix_leak(signal):
    if len(signal) not in windows:
        windows[len(signal)] = jnp.hanning(len(signal))
    windowed = windows[len(signal)] * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Stores the loudest value for the log and returns it, but the value is a tracer, and so is a copy of it."
for_the_log = {}


def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    for_the_log["loudest"] = jnp.max(jnp.abs(windowed))
    return {"energy": jnp.sum(windowed**2), "loudest": for_the_log["loudest"]}


# %% wrong="tracing-leak" because="Stores a window from jnp in a dict or a cache, but under jit it is a tracer."
import functools


@functools.lru_cache
def window(n):
    return jnp.hanning(n)


def fix_leak(signal):
    windowed = window(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Converts the loudest value to a Python number to store it safely, but there is no number while tracing."
def fix_leak(signal):
    windowed = np.hanning(len(signal)) * signal
    loudest = float(jnp.max(jnp.abs(windowed)))
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.float32(loudest)}


# %% wrong="tracing-leak" because="Stores the window as a NumPy array, which is safe, but uses the first window for all lengths."
first = {}


def fix_leak(signal):
    if "window" not in first:
        first["window"] = np.hanning(len(signal))
    windowed = first["window"] * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Stores the loudest value for the log and returns it, but the value is a tracer, and so is a copy of it."
copies = {}


def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    copies["loudest"] = jnp.array(jnp.max(jnp.abs(windowed)), copy=True)
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Returns the largest value instead of the loudest, but a large negative value is loud too."
def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(windowed)}


# %% wrong="tracing-leak" because="Returns the loudest value, but still stores the window, which is a tracer under jit."
memory = {}


def fix_leak(signal):
    if "window" not in memory:
        memory["window"] = jnp.hanning(len(signal))
    windowed = memory["window"] * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Returns the loudest value of the signal before the window is applied."
def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(signal))}


# %% wrong="tracing-leak" because="Writes the window as a formula without the square of the sine, which is right for three samples only."
def fix_leak(signal):
    n = len(signal)
    windowed = jnp.sin(jnp.pi * jnp.arange(n) / (n - 1)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% right="tracing-leak"
import functools


@functools.lru_cache
def window(n):
    return np.hanning(n).astype(np.float32)


def fix_leak(signal):
    windowed = window(len(signal)) * signal
    return {"energy": jnp.vdot(windowed, windowed), "loudest": jnp.abs(windowed).max()}


# %% right="tracing-leak"
windows = {}


def fix_leak(signal):
    n = signal.shape[0]
    if n not in windows:
        with jax.ensure_compile_time_eval():
            windows[n] = jnp.hanning(n)
    windowed = signal * windows[n]
    return {"energy": (windowed**2).sum(), "loudest": jnp.linalg.norm(windowed, ord=jnp.inf)}


# %% [markdown] task="tracing-count" stars=2 minutes=20 skills="02_tracing,tracing-size"
# ## How often does each operation run?
# *Needs: Deeper: a jaxpr as data. Deeper: equations that contain jaxprs.*
#
# **Goal.** Suppose that a cloud provider charges you for each operation. Write the bill *before* you run the function. The jaxpr shows how often each operation will run, if you also read the jaxprs inside it.
#
# **Signature.** `count_primitives(f, *args)`. The arguments are arrays or containers of arrays. Return a dict from the name of each primitive to the number of times it runs, an int. An equation may contain other jaxprs. The function `inner` from the setup returns a list of them, which is empty for most equations. Do not count an equation that contains jaxprs. Count the equations inside instead, as often as the outer equation runs. Whenever a `scan` runs, its body runs `equation.params["length"]` times. Count all branches of a `cond`, although only one of them runs.
#
# **Example.** `polish` from the setup computes `sin` and `tanh` in a `scan` of length 4, so `count_primitives(polish, x)` is `{"sin": 4, "tanh": 4}`.
#
# **Judged.** The dict, for functions with inner `jit`s, loops, loops in loops, branches, and library code. **Not judged.** `while` loops, which run until their condition is false, and loops of length 0.
#
# <details><summary>Hint 1 · a question</summary>
#
# An inner jaxpr has `eqns` like the outer one, and these may again contain jaxprs. Which kind of function handles any depth?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Write `visit(jaxpr, times)`, which adds `times` for each equation without inner jaxprs, and calls itself for the inner jaxprs of the others. Only a scan changes `times`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Start with `jax.make_jaxpr(f)(*args).jaxpr` and `times=1`. If `inner(equation)` is empty, add `times` to the count of `equation.primitive.name`. Otherwise visit each inner jaxpr. If the primitive's name is `"scan"`, multiply `times` by its length first.
#
# </details>


# %% answer="tracing-count"
def count_primitives(f, *args):
    """How often each primitive runs in f(*args), by name, also inside loops and inner jaxprs."""
    ### BEGIN SOLUTION
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            name, held = equation.primitive.name, inner(equation)
            if not held:
                counts[name] = counts.get(name, 0) + times
            rounds = equation.params["length"] if name == "scan" else 1
            for each in held:
                visit(each, times * rounds)

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts
    ### END SOLUTION


# %% check="tracing-count" name="example" points=1
"""The example: a loop of four iterations."""
compare(
    ask(lambda x: plain(count_primitives(polish, x)), np.ones(3, np.float32)), {"sin": 4, "tanh": 4}, label="the bill"
)

# %% hidden="tracing-count" name="nested" points=2
"""Right for jit in jit, for branches, for library code, and for several arguments."""


def probe_nested(x, model):
    @jax.jit
    def wave(x):
        return jnp.sin(jnp.sin(x))

    @jax.jit
    def waves(x):
        return wave(x) * wave(jnp.cos(x))

    def branches(flag, x):
        return jax.lax.cond(flag, lambda x: jnp.exp(jnp.sin(x)), lambda x: jnp.tanh(x), x)

    def layer(model, x):
        return jnp.tanh(model["w"] @ x + model["b"])

    return {
        "no jaxpr inside": plain(count_primitives(lambda x: jnp.sin(jnp.sin(x)) * jnp.cos(x), x)),
        "a jit in a jit": plain(count_primitives(waves, x)),
        "both branches of a cond": plain(count_primitives(branches, x[0] > 0, x)),
        "a relu, which contains a jit": plain(count_primitives(lambda x: jax.nn.relu(jnp.exp(x)), x)),
        "a dict and an array": plain(count_primitives(layer, model, x)),
        "a function that does nothing": plain(count_primitives(lambda x: x, x)),
    }


n = int(inputs.rng().integers(3, 9))
wanted = {
    "no jaxpr inside": {"sin": 2, "cos": 1, "mul": 1},
    "a jit in a jit": {"sin": 4, "cos": 1, "mul": 1},
    "both branches of a cond": {"sin": 1, "exp": 1, "tanh": 1, "convert_element_type": 1},
    "a relu, which contains a jit": {"exp": 1, "max": 1},
    "a dict and an array": {"dot_general": 1, "add": 1, "tanh": 1},
    "a function that does nothing": {},
}
BOTH = " Both branches count, whichever runs."
got = ask(probe_nested, np.ones(n, np.float32), {"w": np.ones((n, n), np.float32), "b": np.ones(n, np.float32)})
for what, bill in wanted.items():
    names = set(got[what]) if isinstance(got[what], dict) else set(bill)
    require(
        not names & {"jit", "cond", "custom_jvp_call"},
        f"With {what}, the bill counts an equation that only contains other equations.",
    )
    require(
        names == set(bill),
        f"With {what}, the bill lacks operations or lists too many.{BOTH * ('cond' in what)}",
    )
    compare(got[what], bill, label=f"with {what}, the bill")

# %% hidden="tracing-count" name="loops" points=2
"""Right for loops, however they are nested."""


def probe_loops(x, flag, rounds, inside):
    def loop(body, length):
        return lambda x: jax.lax.scan(lambda x, _: (body(x), None), x, length=length)[0]

    def branches(flag):
        return lambda x: jax.lax.cond(flag, jnp.sin, jnp.exp, x)

    @jax.jit
    def small(x):
        return loop(jnp.sin, inside)(jnp.cos(x))

    return {
        "one loop": plain(count_primitives(loop(jnp.sin, rounds), x)),
        "a loop in a loop": plain(count_primitives(loop(lambda x: jnp.exp(loop(jnp.sin, inside)(x)), rounds), x)),
        "a loop in a jit in a loop": plain(count_primitives(loop(small, rounds), x)),
        "a loop and the same operation outside": plain(
            count_primitives(lambda x: jnp.sin(loop(jnp.sin, rounds)(x)), x)
        ),
        "branches in a loop": plain(count_primitives(lambda flag, x: loop(branches(flag), rounds)(x), flag, x)),
        "a loop in a branch": plain(
            count_primitives(lambda flag, x: jax.lax.cond(flag, loop(jnp.sin, inside), jnp.exp, x), flag, x)
        ),
    }


rounds, inside = (int(number) for number in inputs.rng().permutation([3, 5, 7, 9, 11])[:2])
wanted = {
    "one loop": {"sin": rounds},
    "a loop in a loop": {"sin": rounds * inside, "exp": rounds},
    "a loop in a jit in a loop": {"sin": rounds * inside, "cos": rounds},
    "a loop and the same operation outside": {"sin": rounds + 1},
    "branches in a loop": {"sin": rounds, "exp": rounds, "convert_element_type": rounds},
    "a loop in a branch": {"sin": inside, "exp": 1, "convert_element_type": 1},
}
got = ask(probe_loops, np.ones(3, np.float32), np.bool_(True), rounds, inside)
for what, bill in wanted.items():
    names = set(got[what]) if isinstance(got[what], dict) else set(bill)
    require(
        not names & {"jit", "scan"}, f"With {what}, the bill counts an equation that only contains other equations."
    )
    require(names == set(bill), f"With {what}, the bill lacks operations or lists too many.")
    compare(got[what], bill, label=f"with {what}, the bill")

# %% [markdown] why="tracing-count"
# A jaxpr is plain data. It is a list of equations with parameters, and some parameters are jaxprs. A recursive function can count, analyse or transform them. **Next:** How many `dot_general` operations does a loss contain, and how many does its gradient contain? You can count those of `jax.grad(loss)` in the same way.


# %% wrong="tracing-count" because="Counts only the outermost equations, so that a jit or a loop counts as one operation."
def count_primitives(f, *args):
    counts = {}
    for equation in jax.make_jaxpr(f)(*args).eqns:
        counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + 1
    return counts


# %% wrong="tracing-count" because="Counts the body of a loop only once, instead of once for each iteration."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + 1
            for each in inner(equation):
                visit(each)

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    return counts


# %% wrong="tracing-count" because="Ignores the outer loop, but an operation in a nested loop runs as often as the product of both lengths."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in inner(equation):
                visit(each, equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Also counts the equations that contain others, but a jit is only a wrapper."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in inner(equation):
                visit(each, times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Counts only one level of inner jaxprs."
def count_primitives(f, *args):
    counts = {}
    for equation in jax.make_jaxpr(f)(*args).eqns:
        times = equation.params.get("length", 1)
        rows = [row for each in inner(equation) for row in each.eqns] if inner(equation) else [equation]
        for row in rows:
            counts[row.primitive.name] = counts.get(row.primitive.name, 0) + times
    return counts


# %% wrong="tracing-count" because="Counts only one branch of a cond."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in inner(equation)[:1]:
                visit(each, times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Sets the count instead of adding to it, so each equation replaces the earlier ones."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = times
            for each in inner(equation):
                visit(each, times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Changes `times` itself at a scan, so that operations after the loop are counted as often as its body."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            times *= equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            for each in inner(equation):
                visit(each, times)

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Visits each inner jaxpr once, but two calls of a compiled function share one jaxpr and run it twice."
def count_primitives(f, *args):
    counts, seen = {}, set()

    def visit(jaxpr, times):
        if id(jaxpr) in seen:
            return
        seen.add(id(jaxpr))
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in inner(equation):
                visit(each, times * equation.params.get("length", 1))

    closed = jax.make_jaxpr(f)(*args)
    visit(closed.jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Looks only for the parameters jaxpr and branches, but custom_jvp_call has its jaxpr under another name."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            held = list(equation.params.get("branches", ()))
            held += [equation.params["jaxpr"]] if "jaxpr" in equation.params else []
            if not held:
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in held:
                visit(getattr(each, "jaxpr", each), times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Counts the branches of a cond once, but in a loop they run in each iteration."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            if not inner(equation):
                counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in inner(equation):
                visit(each, 1 if equation.primitive.name == "cond" else times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Looks only for the parameter jaxpr, but a cond has branches, and custom_jvp_call has call_jaxpr."
import collections


def count_primitives(f, *args):
    counts = collections.Counter()

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            held = equation.params.get("jaxpr")
            if held is None:
                counts[equation.primitive.name] += times
            else:
                visit(held, times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args), 1)
    return dict(counts)


# %% right="tracing-count"
def count_primitives(f, *args):
    from collections import Counter

    counts, waiting = Counter(), [(jax.make_jaxpr(f)(*args).jaxpr, 1)]
    while waiting:
        jaxpr, times = waiting.pop()
        for equation in jaxpr.eqns:
            held = inner(equation)
            rounds = equation.params["length"] if equation.primitive.name == "scan" else 1
            waiting += [(each, times * rounds) for each in held]
            counts[equation.primitive.name] += 0 if held else times
    return {name: count for name, count in counts.items() if count}
