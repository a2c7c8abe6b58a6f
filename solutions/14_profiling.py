# %% [markdown]
# # 14 · Exercises: profiling
# Run the setup, then each exercise: fill in its cell, run it, run the checks below it. Hidden checks run when you are graded; what they look at stands under **Judged**. Hints open one at a time: try the question before the nudge.
#
# `read_trace(folder)`, from the setup, reads a trace that `jax.profiler.trace(folder)` wrote, and gives a list of `Event`. An `Event` has a `name`, a `begin` and a `length` in microseconds, for an operation of a compiled program its name in the HLO as `operation` (else `""`), and for a step its number as `step` (else -1).

# %% setup
import contextlib
import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from grader.checks import ask, compare, counted, error, inputs, require


class Event(NamedTuple):
    """Something that took time; begin and length are in microseconds."""

    name: str
    begin: float
    length: float
    operation: str = ""
    step: int = -1


def read_trace(folder):
    """The events of the one trace under `folder`, in the order of their begin, without Python's own calls."""
    files = list(Path(folder).glob("plugins/profile/*/*.trace.json.gz"))
    if len(files) != 1:
        raise ValueError(f"There are {len(files)} traces under this folder; there should be one.")
    events = []
    for found in json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]:
        if found.get("ph") == "X" and not found["name"].startswith("$"):
            told = found.get("args", {})
            operation, step = told.get("hlo_op", ""), int(told.get("step_num", -1))
            events.append(Event(found["name"], found["ts"], found["dur"], operation, step))
    return sorted(events, key=lambda event: event.begin)


def long_work(x):
    """A product a hundred times, some tenths of a second for n = 384: (n, n) -> (n, n)"""
    return jax.lax.fori_loop(0, 100, lambda i, x: jnp.tanh(x @ x) + i, x)


def layers(params, x):
    """A network without biases: params {"first": (d, h), "last": (h, k)}, x (n, d) -> (n, k)"""
    return jnp.tanh(x @ params["first"]) @ params["last"]


# %% [markdown] task="profiling-cost" stars=1 minutes=8 skills="03_jit,06_pytrees,09_training"
# ## What would it cost?
# **Goal.** Say what a function would cost as a compiled program, without running it and without its data. Two lines are missing: the compiled program, and its floating-point operations.
#
# **Signature.** `cost(f, *shapes)`: `f` is a function of arrays or trees of arrays, `shapes` are its arguments with a `jax.ShapeDtypeStruct` in the place of each array. Returns `(flops, argument_bytes, result_bytes)`: the floating-point operations that XLA counts in the *compiled* program (`tanh` and other transcendental functions have a count of their own, which is not wanted), and the bytes of its arguments and results.
#
# **Example.** For `jnp.dot` of a float32 `(8, 16)` and a `(16, 4)`: `(1024.0, 768, 128)`, as 2 · 8 · 16 · 4 = 1024, (8 · 16 + 16 · 4) · 4 = 768 and 8 · 4 · 4 = 128.
#
# **Judged.** The three numbers, for several functions and dtypes; that nothing is allocated: some arguments are larger than any memory; that operations which the compiler merges count once. **Not judged.** Loops, which the analysis counts once; arguments that `f` does not use, which the program does not take.
#
# <details><summary>Hint 1 · a question</summary>
#
# Tracing, lowering and compiling lie between a function and its program. What does each of them need to know of the arguments?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Shapes and dtypes are enough for all, and `shapes` is a tuple of just that. Lowering, which traces first, is a method of the jitted function; compiling is one of what that gives back.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `lower` takes what the function would take, here `*shapes`; what it gives can be compiled. The lowered one has a `cost_analysis()` too, from before anything was merged: you want the other one's. It is a dict with the key `"flops"`.
#
# </details>


# %% answer="profiling-cost"
def cost(f, *shapes):
    """(flops, bytes of the arguments, bytes of the results) of f compiled for `shapes`. Runs nothing."""
    ### BEGIN SOLUTION
    compiled = jax.jit(f).lower(*shapes).compile()
    flops = compiled.cost_analysis()["flops"]
    ### END SOLUTION
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% check="profiling-cost" name="example" points=1
"""The example: a product of two small matrices."""
shapes = jax.ShapeDtypeStruct((8, 16), np.float32), jax.ShapeDtypeStruct((16, 4), np.float32)
flops, given, made = ask(lambda *shapes: cost(jnp.dot, *shapes), *shapes)
require(
    flops != 2048,
    "Your 2048 operations are twice the 1024 of the product. XLA counts a multiplication and an addition as two already.",
)
compare(flops, 1024.0, rtol=1e-2, label="flops")
compare((given, made), (768, 128), label="(argument_bytes, result_bytes)")

# %% hidden="profiling-cost" name="values" points=1
"""Operations and bytes of a network, for several sizes and dtypes."""
for dtype in (np.float32, jnp.bfloat16):
    n, d, h, k = (int(size) for size in 32 * inputs.rng().integers(4, 12, size=4))
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    shapes = {"first": struct(d, h), "last": struct(h, k)}, struct(n, d)
    flops, given, made = ask(lambda *shapes: cost(layers, *shapes), *shapes)
    size = np.dtype(dtype).itemsize
    compare((given, made), (size * (d * h + h * k + n * d), size * n * k), label="(argument_bytes, result_bytes)")
    require(
        abs(flops / (2 * n * d * h + 2 * n * h * k) - 1) < 0.03,
        "The number of operations is not that of the two products of the network, by more than 3 in 100. Is it `flops` "
        "that you read?",
    )

# %% hidden="profiling-cost" name="large" points=1
"""Arguments that no memory holds: shapes are enough."""
large = jax.ShapeDtypeStruct((2**25, 2**25), np.float32)


def probe_large(large):
    return cost(lambda x: jnp.sum(2 * x), large)


require(
    error(probe_large, large) not in ("MemoryError", "_ArrayMemoryError", "JaxRuntimeError"),
    "Memory ran out for an argument that no memory holds: arrays are made where shapes are enough.",
)
_, given, made = ask(probe_large, large)
compare((given, made), (2**52, 4), label="(argument_bytes, result_bytes)")

# %% hidden="profiling-cost" name="merged" points=1
"""What the compiler merges is counted once, and transcendental functions are not counted."""
n = 64 * int(inputs.rng().integers(2, 6))
square = jax.ShapeDtypeStruct((n, n), np.float32)
flops, *_ = ask(lambda x, w: cost(lambda x, w: x @ w + jnp.sin(x @ w), x, w), square, square)
require(
    flops < 3 * n**3,
    "The function writes the same product down twice, and the program computes it once; here both were counted. That is "
    "the analysis of another stage: ask the one that runs.",
)
compare(flops, 2.0 * n**3, rtol=0.05, label="flops")
elementwise = lambda x: x * jnp.tanh(x) + 1
wanted = jax.jit(elementwise).lower(square).compile().cost_analysis()["flops"]  # accelerators count tanh differently
flops, *_ = ask(lambda x: cost(lambda x: x * jnp.tanh(x) + 1, x), square)
require(
    abs(flops - wanted) < 0.01 * wanted,
    "For an elementwise function with a `tanh` in it the number of operations is not right. Transcendental functions have a "
    "count of their own: were they added?",
)

# %% [markdown] why="profiling-cost"
# Lowering and compiling look at shapes and dtypes only, so the largest program costs as much to ask about as a small one. **Next:** ask for the gradient of a network too. How many times the forward pass is it, and why?


# %% wrong="profiling-cost" because="Makes arrays of zeros to have something to lower: that allocates what was only to be asked about."
def cost(f, *shapes):
    arrays = jax.block_until_ready(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
    compiled = jax.jit(f).lower(*arrays).compile()
    flops = compiled.cost_analysis()["flops"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Takes the lowered program's analysis: XLA has not merged anything yet, so equal products count twice."
def cost(f, *shapes):
    lowered = jax.jit(f).lower(*shapes)
    compiled = lowered.compile()
    flops = lowered.cost_analysis()["flops"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Reads the bytes that are accessed as if they were operations."
def cost(f, *shapes):
    compiled = jax.jit(f).lower(*shapes).compile()
    flops = compiled.cost_analysis()["bytes accessed"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Compiles for float32 whatever the dtypes are."
def cost(f, *shapes):
    single = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), shapes)
    compiled = jax.jit(f).lower(*single).compile()
    flops = compiled.cost_analysis()["flops"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Counts a multiplication and an addition as one operation."
def cost(f, *shapes):
    compiled = jax.jit(f).lower(*shapes).compile()
    flops = compiled.cost_analysis()["flops"] / 2
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Adds the transcendental functions to the floating-point operations: XLA counts them separately."
def cost(f, *shapes):
    compiled = jax.jit(f).lower(*shapes).compile()
    found = compiled.cost_analysis()
    flops = found["flops"] + found.get("transcendentals", 0)
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% right="profiling-cost"
def cost(f, *shapes):
    compiled = jax.jit(f).trace(*shapes).lower().compile()
    count = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    return compiled.cost_analysis()["flops"], count(shapes), count(jax.eval_shape(f, *shapes))


# %% [markdown] task="profiling-capture" stars=1 minutes=12 skills="01_arrays,03_jit,profiling-cost"
# ## A trace of one call
# **Goal.** Write the trace of one call of a compiled function: the whole call, and nothing else.
#
# **Signature.** `capture_trace(f, *arguments)`: `f` is a function that has not been compiled yet. Compile it, write a trace of **one** call into a folder of its own, and return `(result, events)`: what `f(*arguments)` gives, an array or a tree of arrays, and what `read_trace` (from the setup) finds in that folder.
#
# **Example.** `capture_trace(long_work, jnp.eye(384))` gives the result and some hundred events. Those with an `operation` are what ran on the device: the product in the loop is among them 100 times.
#
# **Judged.** The result; that every operation of the call is in the trace, as often as it ran in one call, and that Python does not trace `f` meanwhile. **Not judged.** Events without an `operation`, such as those of the host.
#
# <details><summary>Hint 1 · a question</summary>
#
# When does a call of a compiled function return, and when is its work done? And what does the first call do that the second does not?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Call twice: once before the trace, so that the program is there, and once in it. The recording ends with the `with`: the result must be there before.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Two `with`, one in the other: `tempfile.TemporaryDirectory()` gives a folder and removes it at its end, `jax.profiler.trace` takes that folder. In the inner one, `jax.block_until_ready` around the call. Read the trace after the inner one has ended, and before the outer one has.
#
# </details>


# %% answer="profiling-capture"
def capture_trace(f, *arguments):
    """(f(*arguments), the events of a trace of one compiled call of it, from its begin to its end)."""
    ### BEGIN SOLUTION
    compiled = jax.jit(f)
    jax.block_until_ready(compiled(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = jax.block_until_ready(compiled(*arguments))
        return result, read_trace(folder)
    ### END SOLUTION


# %% check="profiling-capture" name="example" points=1
"""The example: the result, and the events of a trace."""


def probe_example(x):
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()  # left running by an earlier try
    return capture_trace(long_work, x)


result, events = ask(probe_example, np.eye(384, dtype=np.float32))
compare(result.shape, (384, 384), label="the result's shape")
require(
    isinstance(events, list) and events and all(isinstance(event, Event) for event in events),
    "The second item is not the list of events that `read_trace` gives.",
)

# %% hidden="profiling-capture" name="values" points=1
"""The results of two functions: one with several arguments and a tree for a result, one with a tree for an argument."""
x, y = inputs.rng().normal(size=(2, 5, 3)).astype(np.float32)


def probe_values(x, y):
    first, _ = capture_trace(lambda x, y: {"sum": x + y, "dot": x @ y.T}, x, y)
    second, _ = capture_trace(lambda tree: tree["x"] - tree["y"], {"x": x, "y": y})
    return [first, second]


wanted = [{"sum": x + y, "dot": x @ y.T}, x - y]
compare(ask(probe_values, x, y), wanted, label="the results of two functions")

# %% hidden="profiling-capture" name="whole" points=2 observed=true
"""Every operation of one call is in the trace, and Python does not trace the function meanwhile."""


def probe_whole(x, shift):
    python_calls = []

    def work(x):
        python_calls.append(1)
        with jax.profiler.TraceAnnotation("python traces this function"):
            return long_work(x) + shift

    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()
    _, events = capture_trace(work, x)
    if not (isinstance(events, list) and all(isinstance(event, Event) for event in events)):
        return None
    count = len(python_calls)
    compiled = jax.jit(work).lower(x).compile()
    compiled(x).block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            compiled(x).block_until_ready()
        return count, *([event[:] for event in some] for some in (events, read_trace(folder)))


x, shift = np.eye(384, dtype=np.float32), float(inputs.rng().integers(1, 9))
found = ask(probe_whole, x, shift)
require(found is not None, "The second item is not the list of events that `read_trace` gives.")
python_calls, events, wanted = found
times = [sorted(operation for _, _, _, operation, _ in some if operation) for some in (events, wanted)]
got, want, same = len(times[0]), len(times[1]), times[0] == times[1]
traced = "python traces this function" in [name for name, *_ in events]
several = "More operations ran in the trace than one call has. Was there another call in it, or did one from before it still run?"
require(
    got >= want,
    "Operations of the call are missing in the trace. Was the work done when the trace ended, and had the trace begun "
    "when the work did?",
)
require(got < 2 * want, several)
require(
    same or not traced,
    "Python ran the function within the trace, and the operations there are not those of its compiled program. Was it "
    "compiled?",
)
require(got <= want, several)
require(same, "The operations in the trace are not those of the compiled function.")
require(
    python_calls == 1 or not traced,
    "While the trace was recorded, Python traced the function, and not for the first time: what is called in the trace is "
    "not what was compiled before.",
)
require(
    not traced,
    "While the trace was recorded, Python traced the function: the trace holds the compilation too. Compile before.",
)

# %% [markdown] why="profiling-capture"
# Called once before, so that nothing compiles; waited for within the `with`, so that nothing is cut off. **Next:** look at the events without an `operation`. Which of them are yours to shorten?


# %% wrong="profiling-capture" because="Does not wait for the result within the trace: the call returns at once, and the recording ends while the device works."
def capture_trace(f, *arguments):
    compiled = jax.jit(f)
    compiled(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = compiled(*arguments)
        jax.block_until_ready(result)
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Compiles within the trace: Python traces the function there, and the first call is not like the others."
def capture_trace(f, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = jax.block_until_ready(jax.jit(f)(*arguments))
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Lets two calls run within the trace: the one that warms up is in it too, or was not waited for and still ran when the trace began."
def capture_trace(f, *arguments):
    compiled = jax.jit(f).lower(*arguments).compile()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*arguments))
            result = jax.block_until_ready(compiled(*arguments))
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Waits by the method of an array, which a dict of arrays has not."
def capture_trace(f, *arguments):
    compiled = jax.jit(f)
    compiled(*arguments).block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = compiled(*arguments).block_until_ready()
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Returns the folder: it is removed when the with ends, and the trace with it."
def capture_trace(f, *arguments):
    compiled = jax.jit(f)
    jax.block_until_ready(compiled(*arguments))
    with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
        result = jax.block_until_ready(compiled(*arguments))
    return result, folder


# %% wrong="profiling-capture" because="Jits another function for the call in the trace than for the one before: what was compiled is not found."
def capture_trace(f, *arguments):
    jax.block_until_ready(jax.jit(lambda *leaves: f(*leaves))(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = jax.block_until_ready(jax.jit(lambda *leaves: f(*leaves))(*arguments))
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Never compiles the function: its operations run one by one, each as a program of its own."
def capture_trace(f, *arguments):
    jax.block_until_ready(f(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = jax.block_until_ready(f(*arguments))
        return result, read_trace(folder)


# %% right="profiling-capture"
def capture_trace(f, *arguments):
    program = jax.jit(f).lower(*arguments).compile()
    jax.block_until_ready(program(*arguments))
    folder = tempfile.mkdtemp()
    jax.profiler.start_trace(folder)
    try:
        result = program(*arguments)
        for leaf in jax.tree.leaves(result):
            leaf.block_until_ready()
    finally:
        jax.profiler.stop_trace()
    return result, read_trace(folder)


# %% [markdown] task="profiling-ahead" stars=2 minutes=20 skills="03_jit,06_pytrees,profiling-cost"
# ## Compiled before the doors open
# **Goal.** A service answers requests of a few known lengths. Compile a program for each of them before there is any data, and answer from these programs alone.
#
# **Signature.** `compile_ahead(f, params, lengths)`: `f(params, x)` takes a tree of arrays and `x` of shape `(n, d)`, float32; `params` is that tree with a ShapeDtypeStruct for each array, and `d` is 4; `lengths` is a list of different `n`. Returns a function `serve(params, x)` that gives `f(params, x)`, and raises `ValueError` for an `x` of another length, and `TypeError` for one of another dtype, such as int32 or float16.
#
# **Example.** With `f(params, x) = x @ params["w"]` and the lengths `[2, 8]`, `serve` answers an `x` of `(8, 4)`, and refuses one of `(5, 4)` with a ValueError.
#
# **Judged.** Values for every length; both refusals; that `f` is traced once for each length by `compile_ahead`, and never by `serve`. **Not judged.** What the errors say, and which one comes first; NumPy's float64, which JAX takes as float32 wherever it meets it.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.jit(f)` compiles whenever a call has a new shape. What have you seen that never does?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# One executable for each length, in a dict by length. An executable refuses int32, float16 and the like by itself, with a TypeError. For other lengths the dict has none, and would raise a KeyError.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Lower for `params` and a ShapeDtypeStruct of `(n, 4)` and float32, and compile, for each `n`. `serve` looks up `len(x)`; if that is not in the dict it raises, else it calls what it finds with `params` and `x`.
#
# </details>


# %% answer="profiling-ahead"
def compile_ahead(f, params, lengths):
    """serve(params, x (n, 4) float32) -> f(params, x), for n among lengths, each compiled now from shapes alone."""
    ### BEGIN SOLUTION
    programs = {}
    for n in lengths:
        x = jax.ShapeDtypeStruct((n, 4), jnp.float32)
        programs[n] = jax.jit(f).lower(params, x).compile()

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError(f"no program for {len(x)} rows; there are those for {sorted(programs)}")
        return programs[len(x)](params, x)

    return serve
    ### END SOLUTION


# %% check="profiling-ahead" name="example" points=1
"""The example: eight rows are answered, five are refused."""


def probe_example(w, x):
    struct = {"w": jax.ShapeDtypeStruct(w.shape, w.dtype)}
    return compile_ahead(lambda params, x: x @ params["w"], struct, [2, 8])({"w": w}, x)


w, x = np.ones((4, 3), np.float32), np.arange(32, dtype=np.float32).reshape(8, 4)
compare(ask(probe_example, w, x), x @ w, label="serve(params, x)")
kind = error(probe_example, w, x[:5])
require(kind is not None, "Five rows are answered, though only 2 and 8 were asked for: no error was raised.")
compare(kind, "ValueError", label="the error for five rows")

# %% hidden="profiling-ahead" name="values" points=1
"""Every length is answered by the program made for it."""


def probe_values(params, requests, lengths):
    struct = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    serve = compile_ahead(lambda params, x: layers(params, x) / len(x) + params["shift"], struct, lengths)
    answers = []
    for x in requests:
        try:
            answers.append(serve(params, x))
        except (TypeError, ValueError):
            answers.append("refused")
    return answers


rng = inputs.rng()
params = {"first": rng.normal(size=(4, 6)).astype(np.float32), "last": rng.normal(size=(6, 2)).astype(np.float32)}
params["shift"] = np.int32(rng.integers(1, 9))
lengths = [int(n) for n in rng.permutation(np.arange(1, 12))[:3]]
requests = [rng.normal(size=(n, 4)).astype(np.float32) for n in (*lengths, *lengths[::-1])]
wanted = [np.tanh(x @ params["first"]) @ params["last"] / len(x) + params["shift"] for x in requests]
wanted = [answer.astype(np.float32) for answer in wanted]
got = ask(probe_values, params, requests, lengths)
refused = sum(isinstance(answer, str) for answer in got)
require(
    not refused,
    f"{refused} of {len(got)} requests of lengths that were asked for are refused: is there a program for each length?",
)
compare(got, wanted, rtol=1e-3, atol=1e-4, label="the answers")

# %% hidden="profiling-ahead" name="refusals" points=1
"""Other lengths are refused with ValueError, other dtypes with TypeError, for large parameters too."""


def probe_refusals(lengths, requests):
    large = {"w": jax.ShapeDtypeStruct((4, 2**48), jnp.float32)}
    compile_ahead(lambda params, x: jnp.sum(params["w"]) + x, large, lengths)
    serve = compile_ahead(lambda params, x: x * params["w"], {"w": jax.ShapeDtypeStruct((4,), jnp.int8)}, lengths)

    def reply(x):
        try:
            return serve({"w": jnp.full(4, 2, jnp.int8)}, x)
        except Exception as problem:
            return type(problem).__name__

    return [reply(x) for x in requests]


lengths = [int(n) for n in inputs.rng().permutation(np.arange(2, 20))[:3]]
others = (max(lengths) + 1, min(lengths) - 1)
dtypes = [np.dtype(dtype) for dtype in (np.int32, np.float16, jnp.bfloat16, np.uint8, np.bool_, np.complex64)]
asked = [np.ones((lengths[1], 4), np.float32), *(np.ones((n, 4), np.float32) for n in others)]
right, *replies = ask(probe_refusals, lengths, asked + [np.ones((lengths[0], 4), dtype) for dtype in dtypes])
require(not isinstance(right, str), "An `x` of a length that was asked for is refused.")
compare(right, np.full((lengths[1], 4), 2, np.float32), label="the answer for a length that was asked for")
for kind in replies[:2]:
    require(isinstance(kind, str), "A length that was not asked for is answered: is it compiled on the way, or padded?")
    require(kind == "ValueError", "A length that was not asked for is refused with another error than ValueError.")
for dtype, kind in zip(dtypes, replies[2:], strict=True):
    if not isinstance(kind, str):
        require(
            kind.dtype == np.float32,
            f"An `x` of {dtype} is answered, in another dtype than float32: a program for it was compiled on the way.",
        )
        require(False, f"An `x` of {dtype} is answered as if it were float32: it was converted.")
    require(kind == "TypeError", f"An `x` of {dtype} is refused with another error than TypeError.")

# %% hidden="profiling-ahead" name="traces" points=1 observed=true
"""Traced once for each length ahead, and never while serving."""


def probe_traces(w, lengths):
    f = counted(lambda params, x: x @ params["w"])
    serve = compile_ahead(f, {"w": jax.ShapeDtypeStruct(w.shape, w.dtype)}, lengths)
    ahead = f.calls
    for n in (*lengths, *lengths):
        serve({"w": w}, jnp.ones((n, 4)))
    return ahead, f.calls - ahead


ahead, later = ask(probe_traces, np.ones((4, 2), np.float32), [3, 5, 9])
require(
    later == 0,
    "While requests were answered, the function was run by Python again: something is traced, or not compiled at all.",
)
require(ahead == 3, f"Before the first request `f` was traced {ahead} times, for 3 lengths.")

# %% [markdown] why="profiling-ahead"
# An executable holds one program for one set of shapes, and has nothing left to trace; so what it cannot do, it refuses. **Next:** how would you serve every length up to 64 with four programs, and what must the padding not change?


# %% wrong="profiling-ahead" because="Calls a jitted function once with zeros, to warm it up: other shapes are then compiled silently, and zeros have to be there."
def compile_ahead(f, params, lengths):
    compiled = jax.jit(f)
    for n in lengths:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
        compiled(zeros, jnp.zeros((n, 4)))
    return compiled


# %% wrong="profiling-ahead" because="Lowers and compiles, throws that away, and serves with the jitted function: that compiles whatever comes."
def compile_ahead(f, params, lengths):
    jitted = jax.jit(f)
    for n in lengths:
        jitted.lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile()

    def serve(params, x):
        if len(x) not in lengths:
            raise ValueError("no such length")
        return jitted(params, x)

    return serve


# %% wrong="profiling-ahead" because="Keeps only the last program: the loop assigns the same name again."
def compile_ahead(f, params, lengths):
    for n in lengths:
        program = jax.jit(f).lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile()

    def serve(params, x):
        if len(x) not in lengths:
            raise ValueError("no such length")
        return program(params, x)

    return serve


# %% wrong="profiling-ahead" because="Compiles each length when it is first asked for: the first user waits."
def compile_ahead(f, params, lengths):
    programs = {}

    def serve(params, x):
        if len(x) not in lengths:
            raise ValueError("no such length")
        if len(x) not in programs:
            programs[len(x)] = jax.jit(f).lower(params, jax.ShapeDtypeStruct((len(x), 4), jnp.float32)).compile()
        return programs[len(x)](params, x)

    return serve


# %% wrong="profiling-ahead" because="Looks the length up and lets the KeyError out: the caller gets another error than the task states."
def compile_ahead(f, params, lengths):
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(params, of(n)).compile() for n in lengths}
    return lambda params, x: programs[len(x)](params, x)


# %% wrong="profiling-ahead" because="Converts what comes to float32: a wrong dtype is no longer noticed."
def compile_ahead(f, params, lengths):
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(params, of(n)).compile() for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError("no such length")
        return programs[len(x)](params, jnp.asarray(x, jnp.float32))

    return serve


# %% wrong="profiling-ahead" because="Lists the dtypes that it refuses, and converts every other one: only float32 has a program."
def compile_ahead(f, params, lengths):
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(params, of(n)).compile() for n in lengths}

    def serve(params, x):
        if x.dtype in (jnp.int32, jnp.float16):
            raise TypeError("not float32")
        if len(x) not in programs:
            raise ValueError("no such length")
        return programs[len(x)](params, jnp.asarray(x, jnp.float32))

    return serve


# %% wrong="profiling-ahead" because="Compiles for float32 parameters, whatever dtypes `params` has."
def compile_ahead(f, params, lengths):
    single = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(single, of(n)).compile() for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError("no such length")
        return programs[len(x)](params, x)

    return serve


# %% wrong="profiling-ahead" because="Casts other floats before it calls: float16 is answered where it should be refused."
def compile_ahead(f, params, lengths):
    programs = {n: jax.jit(f).lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile() for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError(f"{len(x)} rows were not asked for")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"wanted floats, not {x.dtype}")
        return programs[len(x)](params, jnp.asarray(x, jnp.float32))

    return serve


# %% right="profiling-ahead"
def compile_ahead(f, params, lengths):
    jitted = jax.jit(f)
    one = {n: jitted.trace(params, jax.ShapeDtypeStruct((n, 4), "float32")).lower().compile() for n in lengths}

    def serve(params, x):
        try:
            program = one[x.shape[0]]
        except KeyError as missing:
            raise ValueError(f"no program for length {missing}") from None
        return program(params, x)

    return serve


# %% [markdown] task="profiling-intensity" stars=2 minutes=15 skills="06_pytrees,profiling-cost"
# ## Bound by memory or by arithmetic?
# **Goal.** The arithmetic intensity of a function: how many floating-point operations it does for each byte that has to be moved at least.
#
# **Signature.** `arithmetic_intensity(f, *shapes)`: as in the first exercise, `shapes` are the arguments of `f` with a ShapeDtypeStruct for each array, in trees of any form. Returns a Python float: the operations of the compiled program, divided by the bytes of all arguments and all results, each moved once.
#
# **Example.** For `jnp.dot` of a float32 `(512, 512)` and a `(512, 256)`: 2 · 512 · 512 · 256 operations, 4 · (512 · 512 + 512 · 256 + 512 · 256) bytes, so 64.0.
#
# **Judged.** Within 3 in 100, for several functions, trees and dtypes; operations that the compiler merges count once; that nothing is allocated. **Not judged.** How you count the bytes; arguments that `f` does not use.
#
# <details><summary>Hint 1 · a question</summary>
#
# The analysis has a number of bytes, too. Which bytes does it add up, and what if a program has two steps with an array in between?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Bytes are a matter of shapes and dtypes: those of the arguments you have, those of the results JAX can tell without computing them. An element of bfloat16 has two bytes.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.eval_shape(f, *shapes)` is the result's tree. Over the leaves of both trees sum `leaf.size * leaf.dtype.itemsize`.
#
# </details>


# %% answer="profiling-intensity"
def arithmetic_intensity(f, *shapes):
    """Floating-point operations of f compiled for `shapes`, for each byte of its arguments and results."""
    ### BEGIN SOLUTION
    program = jax.jit(f).lower(*shapes).compile()
    moved = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    return program.cost_analysis()["flops"] / sum(leaf.size * leaf.dtype.itemsize for leaf in moved)
    ### END SOLUTION


# %% check="profiling-intensity" name="example" points=1
"""The example: a product of two matrices."""
shapes = jax.ShapeDtypeStruct((512, 512), np.float32), jax.ShapeDtypeStruct((512, 256), np.float32)
compare(ask(lambda *shapes: arithmetic_intensity(jnp.dot, *shapes), *shapes), 64.0, rtol=1e-2, label="the intensity")

# %% hidden="profiling-intensity" name="steps" points=1
"""A network: what lies between its two products need not be moved. And a product that the compiler computes once."""
n, d, h, k = (int(size) for size in 64 * inputs.rng().integers((8, 4, 8, 4), (12, 6, 12, 6)))  # weights > result
struct = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
shapes = {"first": struct(d, h), "last": struct(h, k)}, struct(n, d)
got = ask(lambda *shapes: arithmetic_intensity(layers, *shapes), *shapes)
flops, inner, result = 2 * n * d * h + 2 * n * h * k, d * h + h * k + n * d, n * k
require(isinstance(got, float), "The intensity is not a Python float.")
near = lambda elements: abs(got / (flops / 4 / elements) - 1) < 0.03
require(not near(inner), "The bytes of the result are missing.")
require(not near(n * d + result), "The bytes of the parameters are missing: they are arguments as well.")
require(not near((inner + result) / 4), "Those are operations for each element, not for each byte.")
require(
    not near(inner + result + n * h),
    "The array between the two products was counted too: it is neither argument nor result, but scratch memory.",
)
require(
    near(inner + result),
    "For a network of two products the intensity is not right. Count the bytes of arguments and results once each: "
    "an array between two steps is neither.",
)
twice = ask(lambda x: arithmetic_intensity(lambda x: x @ x + jnp.sin(x @ x), x), struct(n, n))
require(
    abs(twice / (2 * n**3 / (8 * n * n)) - 1) < 0.03,
    "For a function that writes the same product down twice the intensity is not right: the compiled program computes it "
    "once. Whose operations were counted?",
)

# %% hidden="profiling-intensity" name="dtypes" points=1
"""Two bytes for an element of bfloat16, one for one of int8; several results."""
n = 128 * int(inputs.rng().integers(3, 7))
pair = jax.ShapeDtypeStruct((n, n), jnp.bfloat16), jax.ShapeDtypeStruct((n, n), jnp.bfloat16)
got = ask(lambda *shapes: arithmetic_intensity(jnp.dot, *shapes), *pair)
near = lambda bytes_of_all: abs(got / (2 * n**3 / bytes_of_all) - 1) < 0.03
require(not near(4 * 3 * n * n), "For a product in bfloat16 every element was counted with four bytes.")
require(not near(3 * n * n), "For a product in bfloat16, those are operations for each element, not for each byte.")
require(not near(2 * 2 * n * n), "For a product in bfloat16 the bytes of the result are missing.")
require(
    near(2 * 3 * n * n),
    "For a product in bfloat16 the intensity is not right. Only arguments and results count, as they are given, and not "
    "what the compiler converts them to in between.",
)


def probe_several(tree):
    compute = lambda tree: (tree["weights"].astype(jnp.float32) @ tree["x"], [tree["x"] + 1])
    return arithmetic_intensity(compute, tree)


whole = {"weights": jax.ShapeDtypeStruct((n, n), np.int8), "x": jax.ShapeDtypeStruct((n, n), np.float32)}
got = ask(probe_several, whole)
for width, which in ((1, "the first argument"), (4, "the result")):
    require(
        not near(4 * width * n * n / (1 + 0.5 / n)),
        f"For a tree of int8 and float32, every element was counted with the {width} byte{'s' * (width > 1)} that one of {which} has.",
    )
require(
    near((n * n + 3 * 4 * n * n) / (1 + 0.5 / n)),
    "For a tree of int8 and float32, with two results, the intensity is not right.",
)

# %% hidden="profiling-intensity" name="large" points=1
"""Larger than any memory: shapes are enough."""
large = jax.ShapeDtypeStruct((2**25, 2**24), np.float32)


def probe_large(large):
    return arithmetic_intensity(lambda x: x * jnp.tanh(x) + 1, large)


require(
    error(probe_large, large) not in ("MemoryError", "_ArrayMemoryError", "JaxRuntimeError"),
    "Memory ran out for an argument that no memory holds: arrays are made where shapes are enough.",
)
got = ask(probe_large, large)
flops = jax.jit(lambda x: x * jnp.tanh(x) + 1).lower(large).compile().cost_analysis()["flops"]
wanted = flops / (2 * large.size * 4)  # accelerators count a tanh differently
compare(got, wanted, rtol=0.03, label="the intensity of an elementwise function with a `tanh` in it")

# %% [markdown] why="profiling-intensity"
# What must be moved is what goes in and what comes out; whatever else is moved is the compiler's choice, and it may keep it in registers. So this is the best that a program can hope for. **Next:** for which batch sizes is a layer of (4096, 4096) bound by memory, on a device with 300 operations for each byte?


# %% wrong="profiling-intensity" because="Divides by XLA's bytes accessed: an array between two steps counts when it is written and again when it is read."
def arithmetic_intensity(f, *shapes):
    found = jax.jit(f).lower(*shapes).compile().cost_analysis()
    return found["flops"] / found["bytes accessed"]


# %% wrong="profiling-intensity" because="Takes four bytes for every element."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return flops / (4 * sum(leaf.size for leaf in jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))))


# %% wrong="profiling-intensity" because="Forgets that results have to be written."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return flops / sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


# %% wrong="profiling-intensity" because="Counts the data and forgets the parameters, which have to be read as well."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    moved = jax.tree.leaves((shapes[-1], jax.eval_shape(f, *shapes)))
    if len(shapes) == 2 and not isinstance(shapes[0], dict):
        moved.append(shapes[0])
    return flops / sum(leaf.size * leaf.dtype.itemsize for leaf in moved)


# %% wrong="profiling-intensity" because="Counts elements, not bytes."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return flops / sum(leaf.size for leaf in jax.tree.leaves((shapes, jax.eval_shape(f, *shapes))))


# %% wrong="profiling-intensity" because="Runs the function to see its result: what is larger than the memory cannot be asked about."
def arithmetic_intensity(f, *shapes):
    arguments = jax.block_until_ready(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes))
    compiled = jax.jit(f).lower(*arguments).compile()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves((arguments, compiled(*arguments))))
    return compiled.cost_analysis()["flops"] / total


# %% wrong="profiling-intensity" because="Takes the lowered program's operations: the compiler has not merged anything yet."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).cost_analysis()["flops"]
    leaves = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    return flops / sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


# %% wrong="profiling-intensity" because="Takes one number of bytes for all elements, that of the first argument's dtype."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    leaves = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    return flops / (leaves[0].dtype.itemsize * sum(leaf.size for leaf in leaves))


# %% wrong="profiling-intensity" because="Adds the program's scratch memory to what must be moved."
def arithmetic_intensity(f, *shapes):
    compiled = jax.jit(f, keep_unused=True).lower(*shapes).compile()
    memory = compiled.memory_analysis()
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return compiled.cost_analysis()["flops"] / moved


# %% wrong="profiling-intensity" because="Adds the transcendental functions to the floating-point operations: XLA counts them separately."
def arithmetic_intensity(f, *shapes):
    found = jax.jit(f).lower(*shapes).compile().cost_analysis()
    leaves = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return (found["flops"] + found.get("transcendentals", 0)) / total


# %% wrong="profiling-intensity" because="Adds up every array of the jaxpr, so intermediate results count as moved too."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    jaxpr = jax.make_jaxpr(f)(*shapes).jaxpr
    arrays = [v.aval for v in jaxpr.invars] + [v.aval for eqn in jaxpr.eqns for v in eqn.outvars]
    return float(flops / sum(a.size * a.dtype.itemsize for a in arrays))


# %% right="profiling-intensity"
def arithmetic_intensity(f, *shapes):
    compiled = jax.jit(f, keep_unused=True).lower(*shapes).compile()
    memory = compiled.memory_analysis()
    return compiled.cost_analysis()["flops"] / (memory.argument_size_in_bytes + memory.output_size_in_bytes)


# %% right="profiling-intensity"
def arithmetic_intensity(f, *shapes):
    lowered = jax.jit(f).lower(*shapes)
    total = 0
    for tree in (shapes, lowered.out_info):
        for leaf in jax.tree.leaves(tree):
            total += int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
    return lowered.compile().cost_analysis()["flops"] / total


# %% [markdown] task="profiling-scope" stars=2 minutes=20 skills="02_tracing,profiling-capture"
# ## Which line of mine was it?
# **Goal.** A trace says which operation took the time, and the compiled program says where each operation came from. Put the two together.
#
# **Signature.** `scope_of(hlo, events)`: `hlo` is the text of a compiled program, `compiled.as_text()`; `events` is a list of `Event`, as `read_trace` gives it. Returns the `op_name` of the operation that took the longest **in all its events together**; the string as it stands in the text, or `""` if that operation has none there. Events without an `operation` do not count. One operation at least has an event.
#
# **Example.** In the text
#
# ```
#   %dot.1 = f32[4,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, metadata={op_name="jit(f)/encoder/dot_general"}
#   ROOT %add = f32[4,4]{1,0} add(%dot.1, %b), metadata={op_name="jit(f)/head/add"}
# ```
#
# and with events of `dot.1` of 3 and 4 µs and one of `add` of 5 µs, it is `jit(f)/encoder/dot_general`.
#
# **Judged.** The string, for programs compiled for the check and for texts like the example's. **Not judged.** How you read the text: regular expressions or string methods.
#
# <details><summary>Hint 1 · a question</summary>
#
# The same name may be in many events, and on many lines of the text. Which line says what an operation *is*, and which only use it?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# First sum the lengths in a dict by operation, and take the key with the largest sum. Then look for the line that begins with `%`, that name and ` =`; `ROOT ` may stand before it. `dot` is not `dot.1`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For each line: `line.strip().removeprefix("ROOT ")`, and does it start with `f"%{name} = "`? If it has `op_name="`, the string goes from there to the next `"`.
#
# </details>


# %% answer="profiling-scope"
def scope_of(hlo, events):
    """The op_name, in the HLO text, of the operation whose events are the longest together; "" if it has none."""
    ### BEGIN SOLUTION
    total = {}
    for event in events:
        if event.operation:
            total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            _, _, rest = line.partition('op_name="')
            return rest.partition('"')[0]
    return ""
    ### END SOLUTION


# %% check="profiling-scope" name="example" points=1
"""The example: two operations, three events."""
hlo = """
  %dot.1 = f32[4,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, metadata={op_name="jit(f)/encoder/dot_general"}
  ROOT %add = f32[4,4]{1,0} add(%dot.1, %b), metadata={op_name="jit(f)/head/add"}
"""
events = [Event("dot.1", 0.0, 3.0, "dot.1"), Event("add", 3.0, 5.0, "add"), Event("dot.1", 9.0, 4.0, "dot.1")]
compare(ask(scope_of, hlo, events), "jit(f)/encoder/dot_general", label="the op_name")

# %% hidden="profiling-scope" name="names" points=2
"""Names that begin alike, origins that operations share, events of the host, and an operation without an op_name."""
rng = inputs.rng()
KEYS = ("lake", "hill", "moor", "wood", "reef", "dune", "cove")
words = {word: f"{word}{int(rng.integers(100, 1000))}" for word in KEYS}
hlo = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,8]{1,0})->f32[8,8]{1,0}}

%fused_computation (param_0: f32[8,8]) -> f32[8,8] {
  %param_0 = f32[8,8]{1,0} parameter(0)
  ROOT %tanh.0 = f32[8,8]{1,0} tanh(%param_0), metadata={op_name="jit(step)/lake/tanh" stack_frame_id=3}
}

ENTRY %main.9 (x.1: f32[8,8]) -> f32[8,8] {
  %x.1 = f32[8,8]{1,0} parameter(0), metadata={op_name="x"}
  %mul.1 = f32[8,8]{1,0} multiply(%x.1, %x.1), metadata={op_name="jit(step)/cove/mul" stack_frame_id=2}
  %fusion.12 = f32[8,8]{1,0} fusion(%mul.1), kind=kLoop, calls=%fused_computation, metadata={op_name="jit(step)/hill/tanh" stack_frame_id=3}
  %copy = f32[8,8]{0,1} copy(%fusion.12)
  %fusion.1 = f32[8,8]{1,0} fusion(%copy, %fusion.12), kind=kCustom, calls=%other, metadata={op_name="jit(step)/transpose(jvp(moor))/dot_general" stack_frame_id=4}
  %mul.2 = f32[8,8]{1,0} multiply(%fusion.1, %x.1), metadata={op_name="jit(step)/cove/mul" stack_frame_id=2}
  %fusion = f32[8,8]{1,0} fusion(%fusion.1, %mul.2), kind=kCustom, calls=%other.1, metadata={op_name="jit(step)/wood/mul" stack_frame_id=5}
  %mul.3 = f32[8,8]{1,0} multiply(%fusion, %x.1), metadata={op_name="jit(step)/cove/mul" stack_frame_id=2}
  %dot.3 = f32[8,8]{1,0} dot(%mul.3, %fusion.12), lhs_contracting_dims={1}, metadata={op_name="jit(step)/reef/dot_general" stack_frame_id=6}
  ROOT %add = f32[8,8]{1,0} add(%dot.3, %copy), metadata={op_name="jit(step)/dune/add" stack_frame_id=6}
}
"""
for word, drawn in words.items():
    hlo = hlo.replace(word, drawn)
shared = f"jit(step)/{words['cove']}/mul"
meant = {
    "fusion": f"jit(step)/{words['wood']}/mul",
    "fusion.1": f"jit(step)/transpose(jvp({words['moor']}))/dot_general",
    "fusion.12": f"jit(step)/{words['hill']}/tanh",
    "dot.3": f"jit(step)/{words['reef']}/dot_general",
    "add": f"jit(step)/{words['dune']}/add",
    "copy": "",
}
# For each hottest operation: the one with the longest event, the one with the most, and the one whose name its events have.
OTHERS = {
    "fusion": ("add", "dot.3", "fusion.12"),
    "fusion.1": ("add", "dot.3", "fusion.12"),
    "fusion.12": ("add", "dot.3", "fusion.1"),
    "dot.3": ("add", "fusion", "fusion.1"),
    "add": ("dot.3", "fusion", "fusion.1"),
    "copy": ("add", "dot.3", "fusion.12"),
}


def drawn_events(hottest, longest, most, namesake):
    """Nine events of the hottest, 72 to 108 µs together; others have less, but for a shared op_name and the host."""
    lengths = [(name, float(rng.uniform(1, 9))) for name in meant if name not in (hottest, most) for _ in range(2)]
    lengths += [(longest, 20.0)] + [(hottest, float(rng.uniform(8, 12))) for _ in range(9)]
    lengths += [(most, float(rng.uniform(0.1, 0.9))) for _ in range(40)]
    lengths += [(f"mul.{i}", 15.0) for i in (1, 2, 3) for _ in range(4)]
    found = [
        Event(namesake if name == hottest else name, float(rng.uniform(0, 1e3)), length, name)
        for name, length in lengths
    ]
    found += [Event("wait", 0.0, 900.0), Event(longest, 0.0, 990.0), Event("train", 0.0, 950.0, "", 7)]
    return sorted(found, key=lambda event: event.begin)


for hottest, wanted in meant.items():
    longest, most, namesake = OTHERS[hottest]
    got = ask(scope_of, hlo, drawn_events(hottest, longest, most, namesake))
    require(isinstance(got, str), "The result is not a string: without an `op_name` in the text it is an empty one.")
    if got != wanted:
        require(
            got != meant[longest],
            "That is the operation with the longest single event: add up all events of each operation, and leave out those "
            "without an `operation`.",
        )
        require(got != meant[most], "That is the operation with the most events: add up their lengths.")
        require(
            got != shared,
            "That is an `op_name` which several operations share: add up the events of each operation, and look its origin "
            "up afterwards.",
        )
        require(
            got != meant[namesake],
            "That is not the hottest operation, but the one whose name its events have as `name`, or one whose name begins "
            "in the same way. An event's operation is its `operation`, and the whole name counts.",
        )
        require(
            got or hottest != "add",
            "The string is empty, though the hottest operation has an `op_name`: the line that defines it begins with `ROOT`.",
        )
        require(
            got,
            "The string is empty, though the hottest operation has an `op_name`. Did events without an `operation` win, or "
            "is the line that defines the operation passed over?",
        )
        require(hottest != "copy", "The hottest operation has no `op_name` in the text, and yet one was found.")
        require(
            False,
            "That is not the `op_name` of the hottest operation: add up the lengths of all events of an operation, and "
            "find the line that defines it.",
        )

# %% hidden="profiling-scope" name="compiled" points=1
"""A program that was compiled for this check."""
scopes = [f"part{int(number)}" for number in inputs.rng().permutation(900)[:3] + 100]


def work(x):
    for name in scopes:
        with jax.named_scope(name):
            x = jnp.tanh(x @ x)
    return jnp.sort(x)


text = jax.jit(work).lower(jax.ShapeDtypeStruct((64, 64), np.float32)).compile().as_text()
entry = text[text.index("\nENTRY ") :]
named = re.findall(r'\n +(?:ROOT )?%(\S+) = [^\n]*op_name="(jit[^"]*)"', entry)
for hottest, wanted in named:
    lengths = {name: 1.0 for name, _ in named} | {hottest: 3.5}
    events = [Event(name, 0.0, lengths[name], name) for name, _ in named for _ in range(2)]
    require(
        ask(scope_of, text, events) == wanted,
        "For a program that was compiled for this check, that is not the `op_name` of the operation whose events are the "
        "longest together.",
    )

# %% [markdown] why="profiling-scope"
# The trace knows times, the program knows origins, and the name of an operation is what they share. A fused operation keeps the `op_name` of one of its parts, so what you get is where to look, not a verdict. **Next:** sum by scope instead of by operation. What changes if one scope has a thousand small operations?


# %% wrong="profiling-scope" because="Takes the longest single event: an operation that runs often, and a little each time, is overlooked."
def scope_of(hlo, events):
    longest = max((event for event in events if event.operation), key=lambda event: event.length)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{longest.operation} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Looks for the name anywhere in the text: `fusion.1` is part of `fusion.12`."
def scope_of(hlo, events):
    total = {}
    for event in events:
        if event.operation:
            total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if f"%{hottest}" in line:
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Lets a pattern run over the ends of lines: an operation without op_name gets that of the next one."
def scope_of(hlo, events):
    total = {}
    for event in events:
        if event.operation:
            total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    found = re.search("%" + re.escape(hottest) + ' = .*?op_name="(.*?)"', hlo, re.DOTALL)
    return found[1] if found else ""


# %% wrong="profiling-scope" because="Sums by the event's name and keeps the events of the host, of which one may be the longest."
def scope_of(hlo, events):
    total = {}
    for event in events:
        total[event.name] = total.get(event.name, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Counts events instead of adding up their lengths."
def scope_of(hlo, events):
    names = [event.operation for event in events if event.operation]
    hottest = max(names, key=names.count)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Forgets that the last operation of a computation has ROOT before its name."
def scope_of(hlo, events):
    total = {}
    for event in events:
        if event.operation:
            total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Adds up by op_name instead of by operation: several operations may have the same one."
def scope_of(hlo, events):
    origin = dict(re.findall(r'^\s*(?:ROOT )?%(\S+) = .*op_name="([^"]*)"', hlo, re.MULTILINE))
    total = {}
    for event in events:
        if event.operation:
            name = origin.get(event.operation, "")
            total[name] = total.get(name, 0) + event.length
    return max(total, key=total.get)


# %% wrong="profiling-scope" because="Keeps the events of the host: none of them has an operation, and together they are the longest."
def scope_of(hlo, events):
    total = {}
    for event in events:
        total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Sums by the event's name: the operation in the HLO is another field."
def scope_of(hlo, events):
    total = {}
    for event in events:
        if event.operation:
            total[event.name] = total.get(event.name, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% right="profiling-scope"
def scope_of(hlo, events):
    names = sorted({event.operation for event in events} - {""})
    sums = [sum(event.length for event in events if event.operation == name) for name in names]
    hottest = names[int(np.argmax(sums))]
    found = re.search(rf'^\s*(?:ROOT )?%{re.escape(hottest)} = .*?op_name="([^"]*)"', hlo, re.MULTILINE)
    return found.group(1) if found else ""


# %% [markdown] task="profiling-annotate" stars=1 minutes=15 skills="01_arrays,profiling-capture"
# ## From a telescope: name what takes the time
# **Goal.** A new setting: no model, no training. Each frame of a telescope passes several stages, one after the other, and a colleague will look at the trace. Give every frame and every stage its bar, as long as its work.
#
# **Signature.** `annotate_timeline(stages, frames)`: `stages` is a dict from a name to a compiled function of one array, in the order in which they are applied; `frames` is a list of arrays. Returns the list of what comes out of the last stage. In a trace that is recorded meanwhile, frame number i (from 0) has the annotation of a **step**, with the name `"frame"` and the number i; within it each stage is an annotation with the stage's name, and the device's work for that stage lies within that bar.
#
# **Example.** For `{"dark": subtract, "flat": divide}` and two frames, the trace has `frame` 0 with `dark` and `flat` in it, then `frame` 1 with `dark` and `flat` in it.
#
# **Judged.** The results; names, order and numbers of the bars; that the work of a stage lies within its bar. **Not judged.** Speed: who waits after every stage gives up that Python runs ahead, and gets bars that are true.
#
# <details><summary>Hint 1 · a question</summary>
#
# A compiled function returns before its work is done. When does the `with` around it end?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Two kinds of annotations, one within the other: one that knows the number of a step, and one that knows a name only. `jax.named_scope` is neither: it names parts of a program, not of the timeline.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Around a frame `jax.profiler.StepTraceAnnotation("frame", step_num=i)`, around a stage `jax.profiler.TraceAnnotation(name)`, and within the inner one wait for what the stage gives.
#
# </details>


# %% answer="profiling-annotate"
def annotate_timeline(stages, frames):
    """Applies all stages {name: function} to each frame. Every frame is a step, every stage an annotation in it."""
    ### BEGIN SOLUTION
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stage(image))
        finished.append(image)
    return finished
    ### END SOLUTION


# %% check="profiling-annotate" name="example" points=1
"""The example: the results of two stages, and two bars in each frame."""


def probe_example(frames):
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()
    stages = {"dark": jax.jit(lambda x: x - 1), "flat": jax.jit(lambda x: x / 2)}
    with tempfile.TemporaryDirectory() as place:
        jax.profiler.start_trace(place)
        try:
            results = annotate_timeline(stages, frames)
        finally:
            jax.profiler.stop_trace()
        return results, [event for event in read_trace(place) if event.name in ("frame", "dark", "flat")]


results, events = ask(probe_example, [jnp.array([3.0]), jnp.array([5.0])])
compare(results, [jnp.array([1.0]), jnp.array([2.0])], label="the results")
found, wanted = [event.name for event in events], 2 * ["frame", "dark", "flat"]
require(
    found == wanted,
    f"The bars in the trace are, in the order of their begin, {', '.join(found) or 'none'}; wanted {', '.join(wanted)}.",
)

# %% hidden="profiling-annotate" name="values" points=1
"""What comes out of the last stage, for every frame."""


def probe_values(frames, shift):
    stages = {"double": jax.jit(lambda x: 2 * x), "shift": jax.jit(lambda x: x + shift), "square": jax.jit(jnp.square)}
    return annotate_timeline(stages, [*frames])


rng = inputs.rng()
frames, shift = [rng.normal(size=(3, 2)).astype(np.float32) for _ in range(4)], float(rng.integers(1, 9))
compare(
    ask(probe_values, frames, shift), [(2 * frame + np.float32(shift)) ** 2 for frame in frames], label="the results"
)

# %% hidden="profiling-annotate" name="bars" points=2 observed=true
"""Every frame is a step with its number, every stage a bar within it, and the work lies within its bar."""


def probe_bars(frames, names):
    with contextlib.suppress(RuntimeError):
        jax.profiler.stop_trace()
    stages = {name: jax.jit(long_work) for name in names}
    for stage in stages.values():
        jax.block_until_ready(stage(frames[0]))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(annotate_timeline(stages, frames))
        found = read_trace(folder)
    work = [event for event in found if event.operation]
    return [event for event in found if event.name == "frame" or event.name in names], [work[0], work[-1], *work[::20]]


names = [f"{word} {int(inputs.rng().integers(10, 100))}" for word in ("flat", "dark")]
bars, work = ask(probe_bars, [np.eye(256, dtype=np.float32)] * 3, names)
steps = [bar for bar in bars if bar.name == "frame"]
require(len(steps) == 3, f"There are {len(steps)} bars with the name `frame` in a trace of 3 frames.")
require(
    [bar.step for bar in steps] != [-1] * 3,
    "The bars with the name `frame` have no number: that takes the annotation for steps.",
)
require([bar.step for bar in steps] != [1, 2, 3], "The numbers of the steps begin with 1: the first frame is number 0.")
require([bar.step for bar in steps] == [0, 1, 2], "The numbers of the steps are not 0, 1 and 2.")
inner = [bar for bar in bars if bar.name != "frame"]
require(len(inner) == 6, f"In a trace of 3 frames and 2 stages there are {len(inner)} bars with the names of stages.")
require([bar.name for bar in inner] == names * 3, "The bars of the stages are not in the order of the stages.")
slack = 5_000  # microseconds: clocks of threads, and what happens at the ends of a bar
within = lambda small, big: (
    big.begin - slack < small.begin and small.begin + small.length < big.begin + big.length + slack
)
require(
    all(within(bar, steps[place // 2]) for place, bar in enumerate(inner)), "A stage's bar does not lie in its frame's."
)
share = sum(any(within(event, bar) for bar in inner) for event in work) / len(work)
require(
    not 0.2 < share < 1,
    "Only a part of the work lies within the bars of the stages: when a bar ends, what its own stage gives has to be there.",
)
require(
    share == 1 or not all(any(within(event, bar) for bar in steps) for event in work),
    "All work lies within the bars of the frames, but not all of it within those of the stages: when a stage's bar ends, its "
    "work has to be done.",
)
require(
    share == 1,
    "Work of the device lies outside the bars of the stages: when a bar ends, the work that was begun in it has to be done.",
)

# %% [markdown] why="profiling-annotate"
# A bar ends when its `with` does, so who wants it to hold the work has to wait in it. That is right while you measure, and a price in production: there, annotate without waiting, and read the device's own row. **Next:** how would you let Python run ahead by one frame, and still see every frame's work in the trace?


# %% wrong="profiling-annotate" because="Does not wait: the bars end when the work is handed over, and the device works outside of them."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = stage(image)
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Waits at the end of a frame: all work of the frame then lies behind the bars of its stages."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = stage(image)
            jax.block_until_ready(image)
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Uses named_scope, which names parts of a program while it is traced: the timeline has no such bars."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.named_scope(name):
                    image = jax.block_until_ready(stage(image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Annotates a frame like a stage: it is no step, and has no number."
def annotate_timeline(stages, frames):
    finished = []
    for image in frames:
        with jax.profiler.TraceAnnotation("frame"):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stage(image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Opens one step around all frames."
def annotate_timeline(stages, frames):
    finished = []
    with jax.profiler.StepTraceAnnotation("frame", step_num=len(frames)):
        for image in frames:
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stage(image))
            finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Gives every stage the original frame instead of what the stage before made of it."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    result = jax.block_until_ready(stage(image))
        finished.append(result)
    return finished


# %% wrong="profiling-annotate" because="Waits for what goes into a stage instead of what comes out of it: each bar holds the work of the stage before."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = stage(jax.block_until_ready(image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Counts the frames from 1."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames, start=1):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stage(image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Goes through the stages in the order of their names instead of that of the dict."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name in sorted(stages):
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stages[name](image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Closes the step annotation before the stages run."
def annotate_timeline(stages, frames):
    results = []
    for i, frame in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            x = jax.block_until_ready(jnp.asarray(frame))
        for name, stage in stages.items():
            with jax.profiler.TraceAnnotation(name):
                x = jax.block_until_ready(stage(x))
        results.append(x)
    return results


# %% right="profiling-annotate"
def annotate_timeline(stages, frames):
    def named(name, stage):
        return jax.profiler.annotate_function(lambda x: stage(x).block_until_ready(), name=name)

    chain = [named(*pair) for pair in stages.items()]
    results = list(frames)
    for i in range(len(results)):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for stage in chain:
                results[i] = stage(results[i])
    return results
