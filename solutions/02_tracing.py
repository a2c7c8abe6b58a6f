# %% [markdown]
# # 02 · Exercises: tracing
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# Nothing here needs a guess. `print(jax.make_jaxpr(f)(x))` shows what became of a function, and whether a line raises an error is quickly tried. First say what you expect, then look.

# %% setup
from grader.checks import ask, compare, error, inputs, program, require
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

jax.config.update("jax_default_matmul_precision", "highest")  # every product keeps all bits, on accelerators too


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
    """The jaxprs that an equation holds: the body of a jit or of a loop, the branches of a cond. Most hold none: []."""
    return list(jaxprs_in_params(equation.params))


def plain(counts):
    """A Counter, or NumPy's integers in a dict, as a dict of ints; anything else as it is."""
    return {name: int(count) for name, count in counts.items()} if isinstance(counts, dict) else counts


def polish(x):
    """Four rounds of sin and tanh, in a loop: (n,) -> (n,)"""
    return jax.lax.scan(lambda x, _: (jnp.tanh(jnp.sin(x)), None), x, length=4)[0]


# %% [markdown] task="tracing-log2" stars=1 minutes=8 skills="01_arrays,02_tracing"
# ## What the compiler would write
# **Goal.** In the lesson, the compiler worked out the logarithm of 2, and made the division a multiplication. Write `log2` so that this stands in the jaxpr already. Two lines are missing.
#
# **Signature.** `log2(x)`: `x` is `()`, float32. Returns `()`, float32: the logarithm of `x` to base 2.
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
# **Judged.** Values; that the jaxpr has these two operations, and this number in full. **Not judged.** The order of the two factors; a `jit` around both.
#
# <details><summary>Hint 1 · a question</summary>
#
# 1.4427 is 1 divided by the natural logarithm of 2. Who is to compute it: the program, each time it runs, or Python, once, while tracing?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Whatever `jnp` is asked to do while tracing is written down, also with plain numbers. Who else can take a logarithm?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `natural` comes from `jnp`, since `x` is a tracer. `factor` comes from NumPy or from `math`, which compute at once and leave a number.
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
"""The jaxpr is the one that is printed: a logarithm and a multiplication by a number."""


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
require(shape == (), f"The result has shape {shape}; wanted (). Is the factor a plain number?")
require(
    names.count("log") < 2 or "mul" in names,
    "Two logarithms and no multiplication stand in the jaxpr: that of 2 and the division are left to the program, as "
    "`jnp.log2` does. Python can do both, once, while tracing.",
)
require(
    names.count("log") < 2,
    "Two logarithms stand in the jaxpr: that of 2 is left to the program, by `jnp.log(2)`. Python can take it, once, while "
    "tracing.",
)
require("log" in names, "There is no `log` in the jaxpr: the logarithm of `x` is taken in another way.")
require(
    "mul" in names or "div" not in names,
    "The jaxpr divides the logarithm. Let Python divide 1 by log(2), once, while tracing; the program only multiplies.",
)
require(
    names == ["log", "mul"],
    "The jaxpr holds more than `log` and `mul`: something that depends on no argument is left to the program. Let NumPy or "
    "`math` compute the factor, while tracing.",
)
numbers = rows[1][1]
require(len(numbers) == 1, "The multiplication in the jaxpr is not one by a number.")
near, exact = (abs(numbers[0] - 1 / np.log(2)) < limit for limit in (1e-3, 3e-7))
require(exact or not near, "The number in the jaxpr is 1 / log(2) with a few digits only: let Python compute it.")
require(near, "The number in the jaxpr is not 1 / log(2), 1.4427.")

# %% [markdown] why="tracing-log2"
# NumPy computed while Python ran, and the result went into the program as a literal; `jnp` wrote down. What is constant may be NumPy's; what depends on an argument has to be `jnp`'s. **Next:** what stands in the jaxpr if the factor is an array of a thousand numbers instead?


# %% wrong="tracing-log2" because="Takes the logarithm of 2 by jnp: while tracing that is one more operation of the program, not a number."
def log2(x):
    natural = jnp.log(x)
    factor = 1 / jnp.log(2.0)
    return natural * factor


# %% wrong="tracing-log2" because="Takes the logarithm of x by NumPy: it wants numbers, and gets a tracer."
def log2(x):
    natural = np.log(x)
    factor = 1 / np.log(2)
    return natural * factor


# %% wrong="tracing-log2" because="Multiplies by log(2) where it should divide by it."
def log2(x):
    natural = jnp.log(x)
    factor = np.log(2)
    return natural * factor


# %% wrong="tracing-log2" because="Divides: right, but the program divides each time it runs."
def log2(x):
    natural = jnp.log(x)
    return natural / np.log(2)


# %% wrong="tracing-log2" because="Leaves it to jnp.log2, which takes both logarithms and divides."
def log2(x):
    return jnp.log2(x)


# %% wrong="tracing-log2" because="Copies the rounded number from the text: float32 has room for three more digits."
def log2(x):
    natural = jnp.log(x)
    factor = 1.4427
    return natural * factor


# %% wrong="tracing-log2" because="Lets jnp take the reciprocal of a known number: that is one more operation of the program."
def log2(x):
    natural = jnp.log(x)
    factor = jnp.reciprocal(np.log(2))
    return natural * factor


# %% wrong="tracing-log2" because="Divides by the logarithm of 10: that is the logarithm to base 10."
def log2(x):
    natural = jnp.log(x)
    factor = 1 / np.log(10)
    return natural * factor


# %% wrong="tracing-log2" because="Makes the factor an array of shape (1,): the result has this shape too."
def log2(x):
    natural = jnp.log(x)
    factor = 1 / np.log([2.0])
    return natural * factor


# %% wrong="tracing-log2" because="Computes the logarithm of 2 with jnp outside: it is an array, and the division by it is still an equation."
LOG_OF_2 = jnp.log(2.0)  # before any tracing


def log2(x):
    natural = jnp.log(x)
    factor = 1 / LOG_OF_2
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
# **Goal.** Say what a compiled function prints, and how often, without running it: trace it in your head.
#
# **Signature.** `traced_or_not(lines, lengths)`. `lines` are the lines of a function `f(x)`, in order, each a tuple `(verb, word, times)`:
#
# | line | stands for |
# |---|---|
# | `("print", "a", 2)` | `for _ in range(2): print("a")` |
# | `("debug", "b", 2)` | `for _ in range(2): jax.debug.print("b", ordered=True)` |
# | `("print", "c", "len")` | `for _ in range(len(x)): print("c")`, and the same for `"debug"` |
#
# `f` is compiled, `compiled = jax.jit(f)`, and then called once for each of `lengths`, with a float32 array `x` of that length; each call ends before the next begins. Returns the list of words in the order in which they appear. (`ordered=True`: the prints of the program keep their order.)
#
# **Example.** `traced_or_not([("debug", "b", 1), ("print", "a", 1)], [3, 3])` is `["a", "b", "b"]`.
#
# **Judged.** The list, for functions and lengths drawn for you. **Not judged.** How you get it; running JAX and catching what it prints is fine too.
#
# <details><summary>Hint 1 · a question</summary>
#
# In which of the calls does Python run the body of `f`? And the program?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A call with a length that was not seen before has two parts, one after the other. In the first the `"print"` lines speak, in the second the `"debug"` lines. All other calls have the second part only.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Keep a set of the lengths seen. A Python loop is gone when tracing ends: a `"debug"` line in it stands in the program as many times as Python went round, and so it speaks that often in every call.
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
"""Right for functions and calls drawn for you."""


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
    ("a length that comes back", [("print", a, 1), ("debug", b, 1)], [n, m, n]),
    ("Python loops of a fixed length", [("print", a, 3), ("debug", b, 2), ("print", c, 0)], [n, n]),
    ("Python loops over the length of x", [("debug", a, "len"), ("print", b, "len")], [n, n, m, n]),
    ("no call at all", [("print", a, 1), ("debug", b, 1)], []),
    ("all of it", [("debug", a, 2), ("print", b, "len"), ("debug", c, "len"), ("print", d, 2)], [m, k, m, n, k]),
]
answers = ask(lambda calls: [traced_or_not(*call) for call in calls], [case[1:] for case in cases])
for answer, (what, lines, lengths) in zip(answers, cases, strict=True):
    require(isinstance(answer, list), f"With {what}, the answer is no list.")
    wanted = run_in_the_head(lines, lengths)
    require(len(answer) <= len(wanted), f"With {what}: more words stand in your list than JAX prints.")
    require(len(answer) >= len(wanted), f"With {what}: fewer words stand in your list than JAX prints.")
    same_words = sorted(map(str, answer)) == sorted(wanted)
    require(answer == wanted or not same_words, f"With {what}: the right words, but not in their order.")
    require(answer == wanted, f"With {what}: your list is not what JAX prints.")

# %% [markdown] why="tracing-prints"
# A call of a compiled function has one or two parts: perhaps tracing, in which Python runs, and always the run, in which it does not. What is Python's (prints, loops, counters) belongs to the first part, what JAX wrote down to the second. **Next:** which of the words would `jax.make_jaxpr(f)(x)` print?


# %% wrong="tracing-prints" because="Takes a debug print for one that speaks while tracing: then it would be silent from the second call on."
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


# %% wrong="tracing-prints" because="Lets Python run in every call, as without jit."
def traced_or_not(lines, lengths):
    printed = []
    for length in lengths:
        for _, word, times in lines:
            printed += [word] * (length if times == "len" else times)
    return printed


# %% wrong="tracing-prints" because="Goes through the lines once: tracing has ended before the first operation runs."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        for verb, word, times in lines:
            if verb == "debug" or length not in traced:
                printed += [word] * (length if times == "len" else times)
        traced.add(length)
    return printed


# %% wrong="tracing-prints" because="Remembers the last length only: a program is kept for every length seen."
def traced_or_not(lines, lengths):
    printed, last = [], None
    for length in lengths:
        for speaker in ("debug",) if length == last else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (length if times == "len" else times)
        last = length
    return printed


# %% wrong="tracing-prints" because="Traces in the first call alone, whatever comes later: another length is another program."
def traced_or_not(lines, lengths):
    printed = []
    for i, length in enumerate(lengths):
        for speaker in ("debug",) if i else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (length if times == "len" else times)
    return printed


# %% wrong="tracing-prints" because="Takes a Python loop for a loop of the program, whose body is traced once."
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


# %% wrong="tracing-prints" because="Thinks that the length is not known while tracing, so that a loop over it goes round once."
def traced_or_not(lines, lengths):
    printed, traced = [], set()
    for length in lengths:
        for speaker in ("debug",) if length in traced else ("print", "debug"):
            for verb, word, times in lines:
                if verb == speaker:
                    printed += [word] * (1 if times == "len" else times)
        traced.add(length)
    return printed


# %% wrong="tracing-prints" because="Keeps the lengths seen from one function to the next, which is then taken for one that was traced before."
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


# %% wrong="tracing-prints" because="Puts the debug prints in front of the prints of the same call: tracing ends before the program runs."
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
# **Goal.** Nine short programs stand in the setup: `flip`, `shaped`, `repeat`, `pick`, `positive`, `sine`, `gain`, `blank` and `keep`. Say what happens when each is compiled and called.
#
# **Signature.** `name_that_error(name, traced)`: `name` is the name of one of the nine, a string; `traced` is a tuple of the arguments that `jit` is given, out of `"x"` and `"n"`. The program is called inside a `jit` in any case; an argument that is not in `traced` is taken from outside as it is. So `("x",)` stands for
#
# ```python
# x, n = jnp.array([0.1, 0.2, 0.3, 0.4]), 3
# jax.jit(lambda x: PROGRAMS[name](x, n))(x)
# ```
#
# and `()` for `jax.jit(lambda: PROGRAMS[name](x, n))()`. Returns the name of the error, such as `"TypeError"`, or `"no error"`.
#
# **Example.** `name_that_error("flip", ("n",))` is `"TracerBoolConversionError"`; with `("x",)` it is `"no error"`.
#
# **Judged.** The answers for all nine programs and each way to trace them, as jax 0.10 gives them. **Not judged.** How you find them. Think first; then try it.
#
# <details><summary>Hint 1 · a question</summary>
#
# For each program: what does *Python* need to know here, a truth value, a whole number, all the numbers of an array? Is it there while tracing?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Some need it of an argument, and fail only when that one is traced. Some need it of what `jnp` has just computed, and that is a tracer inside a `jit`, whatever it was computed from. One has the trouble with it that it looks at a value when its `jit` is over.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Three programs fail always, four when one certain argument is traced, two never. The errors' names stand in the lesson, in the table under "What Python may ask of a tracer" and under "Leaks"; the rest is a small dictionary or two.
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
    ask(name_that_error, "flip", ("n",)), "TracerBoolConversionError", label='what you say of `flip` with "n" traced'
)
compare(ask(name_that_error, "flip", ("x",)), "no error", label='what you say of `flip` with "x" traced')

# %% hidden="tracing-errors" name="refused" points=2
"""Right for the programs that need to know something of an argument, however they are traced."""
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
        require(answer == problem, f"`{name}` with {said} traced raises another error than you say.")
    else:
        require(answer == "no error", f"`{name}` with {said} traced runs without an error.")

# %% hidden="tracing-errors" name="whatever" points=2
"""Right for the programs that always fail and those that never do."""
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
        require(answer == ALWAYS[name], f"`{name}` with {said} traced raises another error than you say.")

# %% [markdown] why="tracing-errors"
# Each name says who asked: `if` asks for a bool, `range` for an integer, NumPy for an array, `float()` for a concrete value, a mask for as many places as are true. And inside a `jit` all that `jnp` computes is a tracer, so it is not enough that an argument is none. **Next:** which of the seven that fail can be mended by passing `n` from outside, and what would you write in the others?


# %% wrong="tracing-errors" because="Thinks that what is computed from a plain array is plain: inside a jit, x[0] and x > n are tracers all the same."
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


# %% wrong="tracing-errors" because="Thinks that a size is not known while tracing either."
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


# %% wrong="tracing-errors" because="Takes an index of an array for an index of a list: x[n] is an operation, and takes a traced n."
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


# %% wrong="tracing-errors" because="Takes them all for one error, ConcretizationTypeError: most are kinds of it, but each has its own name."
def name_that_error(name, traced):
    if name in ("positive", "gain", "keep"):
        return "ConcretizationTypeError"
    needs = {"flip": "n", "repeat": "n", "sine": "x", "blank": "n"}.get(name)
    return "ConcretizationTypeError" if needs in traced else "no error"


# %% wrong="tracing-errors" because="Expects no error from `keep`: it uses a tracer whose trace has ended, and this is refused when the program is called."
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


# %% wrong="tracing-errors" because="Expects the whole-number error of jnp.zeros(n) too; a shape is refused with a plain TypeError."
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


# %% wrong="tracing-errors" because="Compares the whole tuple with the one argument that matters: with both traced, that argument is traced too."
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


# %% wrong="tracing-errors" because="Thinks that only an argument of the function can be a tracer, so that nothing fails while nothing is traced."
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
# ## How large is it, before it runs?
# **Goal.** Tell how many operations a function becomes and how much memory their results would take if each were written out, for inputs of any size, even one that no machine could hold.
#
# **Signature.** `size_of_program(f, n)`: `f` takes `(n,)` float32 and gives an array or a tuple of arrays; `n` is an int. Returns a dict of two ints: `"operations"`, the number of equations in the jaxpr of `f` (one that holds others, such as a `jit`, counts as one), and `"bytes"`, the bytes of all results of all these equations, used or not.
#
# **Example.** `softly` from the setup, `jnp.tanh(2 * x)`, has two equations; for `n = 1000` each gives a thousand float32, so the result is `{"operations": 2, "bytes": 8000}`.
#
# **Judged.** Both numbers, for several functions; also for n = 2**50, four million gigabytes in a single array. **Not judged.** What an inner `jit` holds.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does tracing need to know of the input: its numbers, or its shape and dtype?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.make_jaxpr` takes a description in place of an array: `jax.ShapeDtypeStruct(shape, dtype)`. Each equation has `outvars`, and each of these has an `aval`, with a `size` and a `dtype`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# An equation may have several results: go through all `outvars` of all `eqns`. A bool takes one byte, a bfloat16 two; `dtype.itemsize` knows.
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
"""Right for an input that no machine can hold."""
n = 2 ** int(inputs.rng().integers(48, 52))
refused = error(lambda n: plain(size_of_program(softly, n)), n)
require(
    refused is None or ("Memory" not in refused and "Runtime" not in refused),
    "For an input that no machine can hold, the memory ran out: an array of that size was to be made. Describe the input "
    "instead, by its shape and dtype.",
)
got = ask(lambda n: plain(size_of_program(softly, n)), n)
compare(got, {"operations": 2, "bytes": 8 * n}, label="with an input that no machine can hold, the result")

# %% [markdown] why="tracing-size"
# Tracing needs shapes and dtypes, nothing else: a description goes in, and descriptions stand on every variable of the jaxpr. So a training step for a cluster can be looked at on a laptop. The compiler will not write all of these results out: that is what fusing is for. **Next:** for which of your functions does the number of operations grow with n?


# %% wrong="tracing-size" because="Makes an array of that size to trace with: tracing never looks into it, but it has to be there."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jnp.zeros(n)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in results)}


# %% wrong="tracing-size" because="Counts four bytes for every number, whatever its dtype."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    return {"operations": len(equations), "bytes": sum(4 * aval.size for aval in results)}


# %% wrong="tracing-size" because="Looks at the first result of each equation only."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [equation.outvars[0].aval for equation in equations]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in results)}


# %% wrong="tracing-size" because="Takes every result to be as large as the input."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    return {"operations": len(equations), "bytes": 4 * n * len(equations)}


# %% wrong="tracing-size" because="Counts the inputs of the equations instead of their results."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    read = [variable.aval for equation in equations for variable in equation.invars]
    return {"operations": len(equations), "bytes": sum(aval.size * aval.dtype.itemsize for aval in read)}


# %% wrong="tracing-size" because="Counts the lines of the printed jaxpr: an equation may take several, and two lines are none."
def size_of_program(f, n):
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32))
    results = [variable.aval for equation in closed.eqns for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len(str(closed).splitlines()), "bytes": size}


# %% wrong="tracing-size" because="Leaves out results that nothing uses, printed as _: the task counts all."
def size_of_program(f, n):
    jaxpr = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).jaxpr
    used = {id(each) for equation in jaxpr.eqns for each in equation.invars} | {id(each) for each in jaxpr.outvars}
    results = [each.aval for equation in jaxpr.eqns for each in equation.outvars if id(each) in used]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len(jaxpr.eqns), "bytes": size}


# %% wrong="tracing-size" because="Traces a short input and scales the bytes: the number of equations, and results of one number, may depend on n in other ways."
def size_of_program(f, n):
    short = 4
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((short,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len(equations), "bytes": size * n // short}


# %% wrong="tracing-size" because="Collects the names of the operations, so two of one kind count once."
def size_of_program(f, n):
    equations = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32)).eqns
    results = [variable.aval for equation in equations for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in results)
    return {"operations": len({equation.primitive for equation in equations}), "bytes": size}


# %% wrong="tracing-size" because="Gives the bytes of the result of f alone: those of the equations before it are missing."
def size_of_program(f, n):
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32))
    size = sum(aval.size * aval.dtype.itemsize for aval in closed.out_avals)
    return {"operations": len(closed.eqns), "bytes": size}


# %% wrong="tracing-size" because="Adds the bytes of the input, which is no result of an equation."
def size_of_program(f, n):
    closed = jax.make_jaxpr(f)(jax.ShapeDtypeStruct((n,), jnp.float32))
    results = [variable.aval for equation in closed.eqns for variable in equation.outvars]
    size = sum(aval.size * aval.dtype.itemsize for aval in [*results, *closed.in_avals])
    return {"operations": len(closed.eqns), "bytes": size}


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
# **Goal.** This function runs well as it is. Compiled, it fails in the second call, or later, or when somebody looks at what it kept. Tracers get out of it in **two** places. Find both, and write the one that is safe under `jit`.
#
# ```python
# kept = {}
#
# def fix_leak(signal):
#     if "window" not in kept:
#         kept["window"] = jnp.hanning(len(signal))    # made once, for speed
#     windowed = kept["window"] * signal
#     kept["loudest"] = jnp.max(jnp.abs(windowed))     # for the log
#     return {"energy": jnp.sum(windowed**2)}
# ```
#
# **Signature.** `fix_leak(signal)`: `signal` is `(n,)` float32, n ≥ 3. Returns a dict: `"energy"` is `()` as above, and what was kept for the log is returned instead, as `"loudest"`, `()`. Both are float32.
#
# **Example.** For `[1, -2, 1]` the window is `[0, 1, 0]`, so the energy is 4 and the loudest is 2.
#
# **Judged.** Both values, for several lengths, compiled and not, in any order; that nothing leaks, under `jax.checking_leaks()`. **Not judged.** Whether a window is made anew in each call.
#
# <details><summary>Hint 1 · a question</summary>
#
# Under `jit`, what exactly is put into `kept`? And how long does it live?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# A value leaves a traced function in one way only. For the window, ask whether it has to be kept at all: under `jit`, how often is that line run?
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Without `kept`, nothing can leak. The window may be made while tracing: by `jnp`, as part of the program, or by NumPy, as a constant in it. It depends on the length, so one window for all is wrong anyway.
#
# </details>


# %% answer="tracing-leak"
def fix_leak(signal):
    """{"energy": (), "loudest": ()} of signal (n,) float32 in a Hann window. Keeps nothing."""
    ### BEGIN SOLUTION
    windowed = np.hanning(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}
    ### END SOLUTION


# %% check="tracing-leak" name="example" points=1
"""The example: three samples, as a program."""
signal = np.array([1, -2, 1], np.float32)
compare(program(fix_leak, signal).run(signal), {"energy": np.float32(4), "loudest": np.float32(2)})

# %% hidden="tracing-leak" name="values" points=2
"""Right for signals of any length, compiled and not, one after the other."""


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
    "A later call with the same length uses a tracer that an earlier one has left behind: what was kept has outlived its trace.",
)
kind = error(probe_calls, arrays)
require(
    kind != "UnexpectedTracerError",
    "A later call uses a tracer that an earlier one has left behind: what was kept has outlived its trace.",
)
require(
    kind != "TypeError",
    "Called with one length after another, it raises TypeError: is something of the first length used again?",
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
require(kind != "UnexpectedTracerError", "A tracer from an earlier call is used again: something is still kept.")
require(
    kind != "Exception",
    "A tracer leaks: after tracing, something outside (a dict, a list, an `lru_cache`) still holds a value of this function. "
    "A copy of a tracer is a tracer.",
)
require(kind is None, f"Compiled under `jax.checking_leaks()`, the function raises {kind}.")

# %% [markdown] why="tracing-leak"
# What a traced function computes exists only in its program; put into a dict, a tracer is a ticket to a show that is over. So: results are returned, and constants are made where they are needed, or kept as NumPy arrays, which are numbers. **Next:** `functools.lru_cache` around a function that calls `np.hanning` is safe, around one that calls `jnp.hanning` it is not. Why?


# %% wrong="tracing-leak" because="Keeps a window that jnp made, in a dict or a cache: under jit it is a tracer."
windows = {}


def fix_leak(signal):
    if len(signal) not in windows:
        windows[len(signal)] = jnp.hanning(len(signal))
    windowed = windows[len(signal)] * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Keeps the loudest value for the log as well as returning it: it is a tracer, and so is a copy of it."
for_the_log = {}


def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    for_the_log["loudest"] = jnp.max(jnp.abs(windowed))
    return {"energy": jnp.sum(windowed**2), "loudest": for_the_log["loudest"]}


# %% wrong="tracing-leak" because="Keeps a window that jnp made, in a dict or a cache: under jit it is a tracer."
import functools


@functools.lru_cache
def window(n):
    return jnp.hanning(n)


def fix_leak(signal):
    windowed = window(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Turns the loudest value into a Python number to keep it safely: while tracing there is no number."
def fix_leak(signal):
    windowed = np.hanning(len(signal)) * signal
    loudest = float(jnp.max(jnp.abs(windowed)))
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.float32(loudest)}


# %% wrong="tracing-leak" because="Keeps the window as NumPy numbers, which is safe, but the first one for all lengths."
first = {}


def fix_leak(signal):
    if "window" not in first:
        first["window"] = np.hanning(len(signal))
    windowed = first["window"] * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Keeps the loudest value for the log as well as returning it: it is a tracer, and so is a copy of it."
copies = {}


def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    copies["loudest"] = jnp.array(jnp.max(jnp.abs(windowed)), copy=True)
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Takes the largest value where the loudest is wanted: a negative swing is as loud."
def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(windowed)}


# %% wrong="tracing-leak" because="Returns the loudest value and leaves the line about the window as it was: under jit a tracer is kept."
memory = {}


def fix_leak(signal):
    if "window" not in memory:
        memory["window"] = jnp.hanning(len(signal))
    windowed = memory["window"] * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(windowed))}


# %% wrong="tracing-leak" because="Takes the loudest value of the signal before the window."
def fix_leak(signal):
    windowed = jnp.hanning(len(signal)) * signal
    return {"energy": jnp.sum(windowed**2), "loudest": jnp.max(jnp.abs(signal))}


# %% wrong="tracing-leak" because="Writes the window as a formula without the square of the sine: the same for three samples only."
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
# ## The meter: how often does each operation run?
# **Goal.** A new setting. You pay for a machine by the operation, so you want a bill *before* you run: how often will each operation be carried out? A jaxpr tells, if one reads the jaxprs inside it too.
#
# **Signature.** `count_primitives(f, *args)`: the arguments are arrays, or containers of them. Returns a dict: for each primitive's name, how often it runs, an int. An equation that holds other jaxprs (`inner` from the setup gives them; it is `[]` for most) is not counted itself: what it holds is, as often as the equation runs. The body of a `scan` runs `equation.params["length"]` times for each time that the scan runs. Of a `cond`, count all branches.
#
# **Example.** `polish` from the setup does `sin` and `tanh` in a `scan` of length 4: `count_primitives(polish, x)` is `{"sin": 4, "tanh": 4}`.
#
# **Judged.** The dict, for functions with inner `jit`s, loops, loops in loops, branches, and library code. **Not judged.** `while` loops, which run until their condition is false, and loops of length 0.
#
# <details><summary>Hint 1 · a question</summary>
#
# An inner jaxpr has `eqns` as the outer one has, and these may hold jaxprs again. Which kind of function goes down, however deep it is?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Write `visit(jaxpr, times)`, which counts every equation of `jaxpr` as `times` runs, and calls itself for what an equation holds. Only a scan changes `times`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.make_jaxpr(f)(*args).jaxpr` is what to start from, with `times=1`. For each equation: if `inner(equation)` is empty, add `times` to the count of `equation.primitive.name`; else visit each jaxpr in it, with `times` multiplied by the length if the primitive's name is `"scan"`.
#
# </details>


# %% answer="tracing-count"
def count_primitives(f, *args):
    """How often each primitive runs in f(*args), by name; loops and inner jaxprs are counted through."""
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
"""The example: a loop of four rounds."""
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
        "a relu, which holds a jit": plain(count_primitives(lambda x: jax.nn.relu(jnp.exp(x)), x)),
        "a dict and an array": plain(count_primitives(layer, model, x)),
        "a function that does nothing": plain(count_primitives(lambda x: x, x)),
    }


n = int(inputs.rng().integers(3, 9))
wanted = {
    "no jaxpr inside": {"sin": 2, "cos": 1, "mul": 1},
    "a jit in a jit": {"sin": 4, "cos": 1, "mul": 1},
    "both branches of a cond": {"sin": 1, "exp": 1, "tanh": 1, "convert_element_type": 1},
    "a relu, which holds a jit": {"exp": 1, "max": 1},
    "a dict and an array": {"dot_general": 1, "add": 1, "tanh": 1},
    "a function that does nothing": {},
}
BOTH = " Both branches count, whichever runs."
got = ask(probe_nested, np.ones(n, np.float32), {"w": np.ones((n, n), np.float32), "b": np.ones(n, np.float32)})
for what, bill in wanted.items():
    names = set(got[what]) if isinstance(got[what], dict) else set(bill)
    require(
        not names & {"jit", "cond", "custom_jvp_call"},
        f"With {what}, the bill counts an equation that only holds others.",
    )
    require(
        names == set(bill),
        f"With {what}, operations are missing on the bill, or others stand there too.{BOTH * ('cond' in what)}",
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
    require(not names & {"jit", "scan"}, f"With {what}, the bill counts an equation that only holds others.")
    require(names == set(bill), f"With {what}, operations are missing on the bill, or others stand there too.")
    compare(got[what], bill, label=f"with {what}, the bill")

# %% [markdown] why="tracing-count"
# A jaxpr is plain data: equations with parameters, and some parameters are jaxprs. Whoever can walk over it can count it, price it, or rewrite it, and that is all that `grad` and `vmap` do. **Next:** how many more `dot_general` than a network does its gradient have? (`jax.grad(loss)` is a function like any other.)


# %% wrong="tracing-count" because="Reads the outermost equations only: a jit or a loop counts as one thing."
def count_primitives(f, *args):
    counts = {}
    for equation in jax.make_jaxpr(f)(*args).eqns:
        counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + 1
    return counts


# %% wrong="tracing-count" because="Goes down, but counts the body of a loop once, as it is written and not as it runs."
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


# %% wrong="tracing-count" because="Forgets the outer loop: what runs in a loop in a loop is multiplied by both lengths."
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


# %% wrong="tracing-count" because="Counts the equations that hold others as well: a jit is no operation, only a wrapper."
def count_primitives(f, *args):
    counts = {}

    def visit(jaxpr, times):
        for equation in jaxpr.eqns:
            counts[equation.primitive.name] = counts.get(equation.primitive.name, 0) + times
            for each in inner(equation):
                visit(each, times * equation.params.get("length", 1))

    visit(jax.make_jaxpr(f)(*args).jaxpr, 1)
    return counts


# %% wrong="tracing-count" because="Goes one level down and no further."
def count_primitives(f, *args):
    counts = {}
    for equation in jax.make_jaxpr(f)(*args).eqns:
        times = equation.params.get("length", 1)
        rows = [row for each in inner(equation) for row in each.eqns] if inner(equation) else [equation]
        for row in rows:
            counts[row.primitive.name] = counts.get(row.primitive.name, 0) + times
    return counts


# %% wrong="tracing-count" because="Goes into one branch of a cond only."
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


# %% wrong="tracing-count" because="Keeps a set of names seen instead of a count: each operation is on the bill once."
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


# %% wrong="tracing-count" because="Multiplies `times` itself at a scan: what comes after the loop is counted as often as its body."
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


# %% wrong="tracing-count" because="Visits each inner jaxpr once: a compiled function that is called twice shares one, and runs twice."
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


# %% wrong="tracing-count" because="Looks for the parameters jaxpr and branches by name: library functions with a rule of their own hold theirs under another."
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


# %% wrong="tracing-count" because="Counts the branches of a cond once, wherever the cond stands: in a loop they run as often as the loop."
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


# %% wrong="tracing-count" because="Looks only under the parameter named jaxpr: the branches of a cond and a custom rule's call_jaxpr have other names."
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
