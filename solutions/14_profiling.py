# %% [markdown]
# # 14 · Exercises: profiling
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# `read_trace(folder)` from the setup reads the trace that `jax.profiler.trace(folder)` has written, and returns a list of `Event`. An `Event` has a `name`, and a `begin` and a `length` in microseconds. For an operation of a compiled program, `operation` is its name in the text of the program. For all other events, `operation` is `""`. For a step, `step` is its number. For all other events, `step` is -1.

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
    """An event of a trace; begin and length are in microseconds."""

    name: str
    begin: float
    length: float
    operation: str = ""
    step: int = -1


def read_trace(folder):
    """The events of the only trace in `folder`, ordered by `begin`, without the calls of Python functions."""
    files = list(Path(folder).glob("plugins/profile/*/*.trace.json.gz"))
    if len(files) != 1:
        raise ValueError(f"This folder contains {len(files)} traces, but it should contain one.")
    events = []
    for found in json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]:
        if found.get("ph") == "X" and not found["name"].startswith("$"):
            details = found.get("args", {})
            operation, step = details.get("hlo_op", ""), int(details.get("step_num", -1))
            events.append(Event(found["name"], found["ts"], found["dur"], operation, step))
    return sorted(events, key=lambda event: event.begin)


def long_work(x):
    """One hundred products, which take some tenths of a second for n = 384: (n, n) -> (n, n)"""
    return jax.lax.fori_loop(0, 100, lambda i, x: jnp.tanh(x @ x) + i, x)


def as_ints(*numbers):
    """The numbers, with Python's ints in the place of NumPy's."""
    return tuple(number.item() if isinstance(number, np.integer) else number for number in numbers)


def layers(params, x):
    """A network without biases: params {"first": (d, h), "last": (h, k)}, x (n, d) -> (n, k)"""
    return jnp.tanh(x @ params["first"]) @ params["last"]


# %% [markdown] task="profiling-cost" stars=1 minutes=8 skills="03_jit,06_pytrees,09_training"
# ## What would it cost?
# **Goal.** Find the cost of a compiled function, without running it and without its data. Two lines are missing. They define the compiled program and its number of floating-point operations.
#
# **Signature.** `cost(f, *shapes)`. `f` is a function of arrays or of pytrees of arrays. `shapes` are its arguments, with a `jax.ShapeDtypeStruct` in place of each array. Returns `(flops, argument_bytes, result_bytes)`. The first number is the number of floating-point operations that XLA counts in the *compiled* program. It does not include `tanh` and other transcendental functions, which XLA counts separately. The other two numbers are the bytes of the arguments and of the results.
#
# **Example.** For `jnp.dot` of two float32 matrices of shapes `(8, 16)` and `(16, 4)`, the result is `(1024.0, 768, 128)`. The operations are 2 · 8 · 16 · 4 = 1024, and the bytes are (8 · 16 + 16 · 4) · 4 = 768 and 8 · 4 · 4 = 128.
#
# **Judged.** The three numbers for several functions and dtypes. Operations that the compiler merges count once. No arrays are created, and some arguments are larger than any memory. **Not judged.** Loops, whose body the analysis counts once. Arguments that `f` does not use, because the compiled program does not take them.
#
# <details><summary>Hint 1 · a question</summary>
#
# A function is traced, lowered and compiled before it runs. What do these stages need from the arguments?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# All of them need only shapes and dtypes, and `shapes` contains these. `lower` is a method of the jitted function, and it traces first. `compile` is a method of the result of `lower`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `lower` takes the arguments of the function, here `*shapes`. Both the lowered and the compiled function have a method `cost_analysis()`. The lowered function has not been optimized, so use the compiled one. The result is a dict with the key `"flops"`.
#
# </details>


# %% answer="profiling-cost"
def cost(f, *shapes):
    """(flops, bytes of the arguments, bytes of the results) of f compiled for `shapes`. Does not run f."""
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
compare(as_ints(given, made), (768, 128), label="(argument_bytes, result_bytes)")

# %% hidden="profiling-cost" name="values" points=1
"""Operations and bytes of a network, for several sizes and dtypes."""
for dtype in (np.float32, jnp.bfloat16):
    n, d, h, k = (int(size) for size in 32 * inputs.rng().integers(4, 12, size=4))
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    shapes = {"first": struct(d, h), "last": struct(h, k)}, struct(n, d)
    flops, given, made = ask(lambda *shapes: cost(layers, *shapes), *shapes)
    size = np.dtype(dtype).itemsize
    compare(
        as_ints(given, made), (size * (d * h + h * k + n * d), size * n * k), label="(argument_bytes, result_bytes)"
    )
    require(
        abs(flops / (2 * n * d * h + 2 * n * h * k) - 1) < 0.03,
        "The number of operations differs by more than 3% from that of the two products of the network. Did you read "
        "`flops`?",
    )

# %% hidden="profiling-cost" name="large" points=1
"""Arguments that are larger than any memory."""
large = jax.ShapeDtypeStruct((2**25, 2**25), np.float32)


def probe_large(large):
    return cost(lambda x: jnp.sum(2 * x), large)


require(
    error(probe_large, large) not in ("MemoryError", "_ArrayMemoryError", "JaxRuntimeError"),
    "Memory ran out, because the argument is larger than any memory. Do not create arrays, because shapes are enough.",
)
flops, given, made = ask(probe_large, large)
compare(as_ints(given, made), (2**52, 4), label="(argument_bytes, result_bytes)")
require(0 < flops < np.inf, "For an argument that is larger than any memory, `flops` is not a positive number.")

# %% hidden="profiling-cost" name="merged" points=1
"""Operations that the compiler merges count once, and transcendental functions do not count."""
n = 64 * int(inputs.rng().integers(2, 6))
square = jax.ShapeDtypeStruct((n, n), np.float32)
flops, *_ = ask(lambda x, w: cost(lambda x, w: x @ w + jnp.sin(x @ w), x, w), square, square)
require(
    flops < 3 * n**3,
    "The function contains the same product twice, and the compiled program computes it once. Here both were counted. "
    "Use the analysis of the compiled program.",
)
compare(flops, 2.0 * n**3, rtol=0.05, label="flops")
elementwise = lambda x: x * jnp.tanh(x) + 1
wanted = jax.jit(elementwise).lower(square).compile().cost_analysis()["flops"]  # accelerators count tanh differently
flops, *_ = ask(lambda x: cost(lambda x: x * jnp.tanh(x) + 1, x), square)
require(
    abs(flops - wanted) < 0.01 * wanted,
    "For an elementwise function that contains a `tanh`, the number of operations is wrong. XLA counts transcendental "
    "functions separately. Did you add them?",
)

# %% [markdown] why="profiling-cost"
# Lowering and compiling use only shapes and dtypes, so the size of the arrays makes no difference to the analysis. **Next:** Compute the cost of a network's gradient. By which factor is it larger than the cost of the forward pass, and why?


# %% wrong="profiling-cost" because="Creates arrays of zeros for `lower`, although shapes are enough and large arrays do not fit in memory."
def cost(f, *shapes):
    arrays = jax.block_until_ready(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
    compiled = jax.jit(f).lower(*arrays).compile()
    flops = compiled.cost_analysis()["flops"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Uses the analysis of the lowered program, which is not optimized, so equal products count twice."
def cost(f, *shapes):
    lowered = jax.jit(f).lower(*shapes)
    compiled = lowered.compile()
    flops = lowered.cost_analysis()["flops"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Returns the number of bytes accessed instead of the number of operations."
def cost(f, *shapes):
    compiled = jax.jit(f).lower(*shapes).compile()
    flops = compiled.cost_analysis()["bytes accessed"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Compiles for float32, even if the arguments have another dtype."
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


# %% wrong="profiling-cost" because="Adds the transcendental functions, which XLA counts separately, to the floating-point operations."
def cost(f, *shapes):
    compiled = jax.jit(f).lower(*shapes).compile()
    found = compiled.cost_analysis()
    flops = found["flops"] + found.get("transcendentals", 0)
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% wrong="profiling-cost" because="Doubles the number of XLA, which already counts a multiplication and an addition as two operations."
def cost(f, *shapes):
    compiled = jax.jit(f).lower(*shapes).compile()
    flops = 2 * compiled.cost_analysis()["flops"]
    memory = compiled.memory_analysis()
    return flops, memory.argument_size_in_bytes, memory.output_size_in_bytes


# %% right="profiling-cost"
def cost(f, *shapes):
    compiled = jax.jit(f).trace(*shapes).lower().compile()
    count = lambda tree: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    return compiled.cost_analysis()["flops"], count(shapes), count(jax.eval_shape(f, *shapes))


# %% [markdown] task="profiling-capture" stars=1 minutes=12 skills="01_arrays,03_jit,profiling-cost"
# ## A trace of one call
# **Goal.** Record a trace that contains one complete call of a compiled function, and no other work.
#
# **Signature.** `capture_trace(f, *arguments)`. `f` is a function that has not been compiled yet. Compile it, record a trace of **one** call in a separate folder, and return `(result, events)`. `result` is the result of `f(*arguments)`, an array or a pytree of arrays. `events` is the list that `read_trace` from the setup returns for that folder.
#
# **Example.** `capture_trace(long_work, jnp.eye(384))` returns the result and several hundred events. The events with an `operation` ran on the device. The product in the loop is among them 100 times.
#
# **Judged.** The result. The trace contains every operation as often as one call runs it. JAX does not trace `f` while the profiler is recording. **Not judged.** Events without an `operation`, such as those of the host.
#
# <details><summary>Hint 1 · a question</summary>
#
# When does a call of a compiled function return, and when is its work done? What happens only in the first call?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Call the function twice. The first call compiles it, before the trace. The second call is inside the `with` block of the trace, and its result must be ready before this block ends.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use two nested `with` blocks. The outer one is `tempfile.TemporaryDirectory()`, which creates a folder and removes it at the end. The inner one is `jax.profiler.trace` with that folder, and contains `jax.block_until_ready` around the call. Read the trace between the end of the inner block and the end of the outer one.
#
# </details>


# %% answer="profiling-capture"
def capture_trace(f, *arguments):
    """(f(*arguments), the events of a trace of one complete call of the compiled f)."""
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
        jax.profiler.stop_trace()  # may still be running after an earlier attempt
    return capture_trace(long_work, x)


result, events = ask(probe_example, np.eye(384, dtype=np.float32))
compare(result.shape, (384, 384), label="the result's shape")
require(
    isinstance(events, list) and events and all(isinstance(event, Event) for event in events),
    "The second item is not the list of events that `read_trace` returns.",
)

# %% hidden="profiling-capture" name="values" points=1
"""The results of two functions: one has several arguments and returns a pytree, one has a pytree as its argument."""
x, y = inputs.rng().normal(size=(2, 5, 3)).astype(np.float32)


def probe_values(x, y):
    first, _ = capture_trace(lambda x, y: {"sum": x + y, "dot": x @ y.T}, x, y)
    second, _ = capture_trace(lambda tree: tree["x"] - tree["y"], {"x": x, "y": y})
    return [first, second]


wanted = [{"sum": x + y, "dot": x @ y.T}, x - y]
compare(ask(probe_values, x, y), wanted, label="the results of two functions")

# %% hidden="profiling-capture" name="whole" points=2 observed=true
"""Every operation of one call is in the trace, and JAX does not trace the function meanwhile."""


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
require(found is not None, "The second item is not the list of events that `read_trace` returns.")
python_calls, events, wanted = found
times = [sorted(operation for _, _, _, operation, _ in some if operation) for some in (events, wanted)]
got, want, same = len(times[0]), len(times[1]), times[0] == times[1]
traced = "python traces this function" in [name for name, *_ in events]
several = "The trace contains more operations than one call. Did it include a second call, or was an earlier call still running?"
require(
    got >= want,
    "Operations of the call are missing in the trace. Did the trace start before the call, and did it end after the "
    "work was done?",
)
require(got < 2 * want, several)
require(
    same or not traced,
    "Python ran the function during the trace, and the operations in the trace differ from those of the compiled "
    "function. Did you compile it?",
)
require(got <= want, several)
require(same, "The operations in the trace are not those of the compiled function.")
require(
    python_calls == 1 or not traced,
    "The function was traced again while the profiler was recording. The call in the trace does not use the program that "
    "was compiled before.",
)
require(
    not traced,
    "The function was traced while the profiler was recording, so the trace contains the compilation. Compile it earlier.",
)

# %% [markdown] why="profiling-capture"
# The first call compiles the function before the recording starts, so the trace contains no compilation. The wait inside the `with` block keeps the recording running until the work is done. **Next:** Look at the events without an `operation`. Which of them could you shorten?


# %% wrong="profiling-capture" because="Does not wait for the result inside the trace, so the recording ends while the device is still working."
def capture_trace(f, *arguments):
    compiled = jax.jit(f)
    compiled(*arguments)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = compiled(*arguments)
        jax.block_until_ready(result)
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Compiles during the trace, so the trace contains the compilation."
def capture_trace(f, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = jax.block_until_ready(jax.jit(f)(*arguments))
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Includes work of a second call, because the first call is inside the trace or still running when the trace starts."
def capture_trace(f, *arguments):
    compiled = jax.jit(f).lower(*arguments).compile()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*arguments))
            result = jax.block_until_ready(compiled(*arguments))
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Waits with a method of arrays, which a dict of arrays does not have."
def capture_trace(f, *arguments):
    compiled = jax.jit(f)
    compiled(*arguments).block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = compiled(*arguments).block_until_ready()
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Returns the folder, which is removed with the trace when the `with` block ends."
def capture_trace(f, *arguments):
    compiled = jax.jit(f)
    jax.block_until_ready(compiled(*arguments))
    with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
        result = jax.block_until_ready(compiled(*arguments))
    return result, folder


# %% wrong="profiling-capture" because="Applies `jit` to a new function for the call in the trace, so the program that was compiled before is not used."
def capture_trace(f, *arguments):
    jax.block_until_ready(jax.jit(lambda *leaves: f(*leaves))(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            result = jax.block_until_ready(jax.jit(lambda *leaves: f(*leaves))(*arguments))
        return result, read_trace(folder)


# %% wrong="profiling-capture" because="Never compiles the function, so each operation runs as a separate program."
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
# ## Compile before the service starts
# *Needs: Deeper: compile before the first request.*
#
# **Goal.** A service answers requests of a few known lengths. Compile a program for each length before there is any data, and answer requests with these programs only.
#
# **Signature.** `compile_ahead(f, params, lengths)`. `f(params, x)` takes a pytree of arrays and an `x` of shape `(n, 4)` and dtype float32. `params` is that pytree with a `ShapeDtypeStruct` for each array. `lengths` is a list of different values of n. Returns a function `serve(params, x)`, which returns `f(params, x)`. It raises `ValueError` for an `x` of another length and `TypeError` for an `x` of another dtype, such as int32 or float16.
#
# **Example.** With `f(params, x) = x @ params["w"]` and the lengths `[2, 8]`, `serve` answers an `x` of shape `(8, 4)`. It raises a ValueError for an `x` of shape `(5, 4)`.
#
# **Judged.** The values for every length. Both errors. `compile_ahead` traces `f` once for each length. `serve` traces nothing and compiles nothing. **Not judged.** The messages of the errors, and which error comes first. Arrays of NumPy's float64, which JAX converts to float32.
#
# <details><summary>Hint 1 · a question</summary>
#
# `jax.jit(f)` compiles whenever a call has a new shape. Which object of the lesson never compiles?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Store one executable for each length in a dict. An executable raises a TypeError for int32, float16 and other dtypes. For a missing length, the dict would raise a KeyError.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For each `n`, lower for `params` and a `ShapeDtypeStruct` of shape `(n, 4)` and dtype float32, and compile. `serve` looks up `len(x)` in the dict. If it is missing, raise the ValueError. Otherwise call the executable with `params` and `x`.
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
            raise ValueError(f"no program was compiled for {len(x)} rows, only for {sorted(programs)}")
        return programs[len(x)](params, x)

    return serve
    ### END SOLUTION


# %% check="profiling-ahead" name="example" points=1
"""The example: a request of eight rows is answered, and one of five rows is rejected."""


def probe_example(w, x):
    struct = {"w": jax.ShapeDtypeStruct(w.shape, w.dtype)}
    return compile_ahead(lambda params, x: x @ params["w"], struct, [2, 8])({"w": w}, x)


w, x = np.ones((4, 3), np.float32), np.arange(32, dtype=np.float32).reshape(8, 4)
compare(ask(probe_example, w, x), x @ w, label="serve(params, x)")
kind = error(probe_example, w, x[:5])
require(
    kind is not None, "A request of five rows was answered without an error, although `lengths` contains only 2 and 8."
)
compare(kind, "ValueError", label="the error for five rows")

# %% hidden="profiling-ahead" name="values" points=1
"""Every length is answered by its own program."""


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
    f"{refused} of {len(got)} requests with lengths from `lengths` were rejected. Is there a program for each length?",
)
compare(got, wanted, rtol=1e-3, atol=1e-4, label="the answers")

# %% hidden="profiling-ahead" name="refusals" points=1
"""Other lengths raise ValueError and other dtypes TypeError, and large parameters are not created."""


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
require(not isinstance(right, str), "An `x` with a length from `lengths` was rejected.")
compare(right, np.full((lengths[1], 4), 2, np.float32), label="the answer for a length from `lengths`")
for kind in replies[:2]:
    require(isinstance(kind, str), "A length that is not in `lengths` was answered. Did you compile for it, or pad it?")
    require(kind == "ValueError", "A length that is not in `lengths` raised an error other than ValueError.")
for dtype, kind in zip(dtypes, replies[2:], strict=True):
    if not isinstance(kind, str):
        require(
            kind.dtype == np.float32,
            f"An `x` of {dtype} was answered in a dtype other than float32, so a program was compiled for it.",
        )
        require(False, f"An `x` of {dtype} was answered as if it were float32. It was converted.")
    require(kind == "TypeError", f"An `x` of {dtype} raised an error other than TypeError.")

# %% hidden="profiling-ahead" name="traces" points=1 observed=true
"""`f` is traced once for each length in advance, and never while serving."""


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
    "Python ran `f` again while requests were answered. It was traced again, or it was never compiled.",
)
require(ahead == 3, f"Before the first request, `f` was traced {ahead} times for 3 lengths.")


def probe_compiled(w, lengths):
    compiled = []
    serve = compile_ahead(lambda params, x: x @ params["w"], {"w": jax.ShapeDtypeStruct(w.shape, w.dtype)}, lengths)
    requests = [jnp.ones((n, 4)) for n in lengths]
    event = "/jax/core/compile/backend_compile_duration"
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.extend([1] * (name == event)))
    for x in requests:
        serve({"w": w}, x)
    return len(compiled)


require(
    ask(probe_compiled, jnp.ones((4, 2)), [3, 5, 9]) == 0,
    "A program was compiled while requests were answered. `lower` only creates the text of a program, so also call `compile` "
    "in advance.",
)

# %% [markdown] why="profiling-ahead"
# An executable contains one program for one set of shapes and no Python function to trace, so it raises an error for all other shapes. **Next:** How would you serve every length up to 64 with four programs, and what must the padding not change?


# %% wrong="profiling-ahead" because="Calls a jitted function with zeros in advance, which creates large arrays, and it still compiles for other shapes."
def compile_ahead(f, params, lengths):
    compiled = jax.jit(f)
    for n in lengths:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
        compiled(zeros, jnp.zeros((n, 4)))
    return compiled


# %% wrong="profiling-ahead" because="Compiles in advance but serves with the jitted function, which compiles again for any shape."
def compile_ahead(f, params, lengths):
    jitted = jax.jit(f)
    for n in lengths:
        jitted.lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile()

    def serve(params, x):
        if len(x) not in lengths:
            raise ValueError("no such length")
        return jitted(params, x)

    return serve


# %% wrong="profiling-ahead" because="Keeps only the last program, because the loop assigns to the same name each time."
def compile_ahead(f, params, lengths):
    for n in lengths:
        program = jax.jit(f).lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile()

    def serve(params, x):
        if len(x) not in lengths:
            raise ValueError("no such length")
        return program(params, x)

    return serve


# %% wrong="profiling-ahead" because="Compiles each length at its first request, so the first user waits."
def compile_ahead(f, params, lengths):
    programs = {}

    def serve(params, x):
        if len(x) not in lengths:
            raise ValueError("no such length")
        if len(x) not in programs:
            programs[len(x)] = jax.jit(f).lower(params, jax.ShapeDtypeStruct((len(x), 4), jnp.float32)).compile()
        return programs[len(x)](params, x)

    return serve


# %% wrong="profiling-ahead" because="Looks the length up in the dict, which raises a KeyError instead of a ValueError."
def compile_ahead(f, params, lengths):
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(params, of(n)).compile() for n in lengths}
    return lambda params, x: programs[len(x)](params, x)


# %% wrong="profiling-ahead" because="Converts every `x` to float32, so a wrong dtype raises no error."
def compile_ahead(f, params, lengths):
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(params, of(n)).compile() for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError("no such length")
        return programs[len(x)](params, jnp.asarray(x, jnp.float32))

    return serve


# %% wrong="profiling-ahead" because="Rejects a list of dtypes and converts all others, although only float32 has a program."
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


# %% wrong="profiling-ahead" because="Compiles for float32 parameters, even if `params` has other dtypes."
def compile_ahead(f, params, lengths):
    single = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), params)
    of = lambda n: jax.ShapeDtypeStruct((n, 4), jnp.float32)
    programs = {n: jax.jit(f).lower(single, of(n)).compile() for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError("no such length")
        return programs[len(x)](params, x)

    return serve


# %% wrong="profiling-ahead" because="Converts other floating-point dtypes, so float16 is answered instead of rejected."
def compile_ahead(f, params, lengths):
    programs = {n: jax.jit(f).lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile() for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError(f"{len(x)} rows were not asked for")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"wanted floats, not {x.dtype}")
        return programs[len(x)](params, jnp.asarray(x, jnp.float32))

    return serve


# %% wrong="profiling-ahead" because="Only lowers ahead and compiles while serving."
def compile_ahead(f, params, lengths):
    jitted = jax.jit(f)
    ready = {n: jitted.lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)) for n in lengths}

    def serve(params, x):
        if len(x) not in ready:
            raise ValueError(f"no program for {len(x)} rows")
        return ready[len(x)].compile()(params, x)

    return serve


# %% wrong="profiling-ahead" because="Tries all programs in turn, so another dtype ends with the error for another length."
def compile_ahead(f, params, lengths):
    programs = [jax.jit(f).lower(params, jax.ShapeDtypeStruct((n, 4), jnp.float32)).compile() for n in lengths]

    def serve(params, x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"x should be of floats, not of {x.dtype}")
        for program in programs:
            try:
                return program(params, x)
            except TypeError:  # compiled for another length
                continue
        raise ValueError(f"no program was compiled for {len(x)} rows")

    return serve


# %% wrong="profiling-ahead" because="Creates a jitted function for each length, which is compiled only at its first call, and again for another dtype."
def compile_ahead(f, params, lengths):
    programs = {n: jax.jit(f) for n in lengths}

    def serve(params, x):
        if len(x) not in programs:
            raise ValueError(f"no program for {len(x)} rows")
        return programs[len(x)](params, x)

    return serve


# %% wrong="profiling-ahead" because="Calls a jitted function with zeros in advance, which creates large arrays, and it still compiles for other shapes."
def compile_ahead(f, params, lengths):
    compiled, zeros = jax.jit(f), jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
    for n in lengths:
        compiled(zeros, jnp.zeros((n, 4), jnp.float32))

    def serve(params, x):
        if x.shape[0] not in lengths:
            raise ValueError(f"no program for {len(x)} rows")
        return compiled(params, x)

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
# ## Limited by memory or by arithmetic?
# *Needs: Deeper: memory or arithmetic?*
#
# **Goal.** Compute the arithmetic intensity of a function. This is the number of floating-point operations per byte that must be moved.
#
# **Signature.** `arithmetic_intensity(f, *shapes)`. As in the first exercise, `shapes` are the arguments of `f` with a `ShapeDtypeStruct` for each array, in pytrees of any structure. Returns a Python float, the operations of the compiled program divided by the bytes of all arguments and all results. Each argument and each result is moved once.
#
# **Example.** For `jnp.dot` of two float32 matrices of shapes `(512, 512)` and `(512, 256)`, the result is 64.0. There are 2 · 512 · 512 · 256 operations and 4 · (512 · 512 + 512 · 256 + 512 · 256) bytes.
#
# **Judged.** The value within 3%, for several functions, pytrees and dtypes. Operations that the compiler merges count once. No arrays are created. **Not judged.** How you count the bytes. Arguments that `f` does not use.
#
# <details><summary>Hint 1 · a question</summary>
#
# The analysis also contains a number of bytes. If a program has two steps with an array between them, which bytes does it add up?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Shapes and dtypes determine the bytes. You have those of the arguments, and JAX can find those of the results without computing them. An element of bfloat16 has two bytes.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.eval_shape(f, *shapes)` returns the pytree of the result. Sum `leaf.size * leaf.dtype.itemsize` over the leaves of the arguments and of the result.
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
"""A network, whose array between the two products does not count, and a product that the compiler computes once."""
n, d, h, k = (int(size) for size in 64 * inputs.rng().integers((8, 4, 8, 6), (12, 6, 12, 8)))  # weights > result
struct = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
shapes = {"first": struct(d, h), "last": struct(h, k)}, struct(n, d)
got = ask(lambda *shapes: arithmetic_intensity(layers, *shapes), *shapes)
flops, inner, result = 2 * n * d * h + 2 * n * h * k, d * h + h * k + n * d, n * k
require(isinstance(got, float), "The intensity is not a Python float.")
near = lambda elements: abs(got / (flops / 4 / elements) - 1) < 0.03
require(not near(inner), "The bytes of the result are missing.")
require(not near(n * d + result), "The bytes of the parameters are missing. They are arguments too.")
require(not near((inner + result) / 4), "This is the number of operations for each element, not for each byte.")
require(
    not near(inner + result + n * h),
    "The array between the two products was counted too. It is neither an argument nor a result.",
)
require(
    near(inner + result),
    "For a network of two products, the intensity is wrong. Count the bytes of each argument and each result once, and "
    "no array between two steps.",
)
twice = ask(lambda x: arithmetic_intensity(lambda x: x @ x + jnp.sin(x @ x), x), struct(n, n))
require(
    abs(twice / (2 * n**3 / (8 * n * n)) - 1) < 0.03,
    "For a function that contains the same product twice, the intensity is wrong. The compiled program computes it once. "
    "Did you count its operations?",
)

# %% hidden="profiling-intensity" name="dtypes" points=1
"""An element has two bytes in bfloat16 and one in int8, and a function may have several results."""
n = 128 * int(inputs.rng().integers(3, 7))
pair = jax.ShapeDtypeStruct((n, n), jnp.bfloat16), jax.ShapeDtypeStruct((n, n), jnp.bfloat16)
got = ask(lambda *shapes: arithmetic_intensity(jnp.dot, *shapes), *pair)
near = lambda bytes_of_all: abs(got / (2 * n**3 / bytes_of_all) - 1) < 0.03
require(not near(4 * 3 * n * n), "For a product in bfloat16, every element was counted with four bytes.")
require(
    not near(3 * n * n),
    "For a product in bfloat16, this is the number of operations for each element, not for each byte.",
)
require(not near(2 * 2 * n * n), "For a product in bfloat16, the bytes of the result are missing.")
require(
    near(2 * 3 * n * n),
    "For a product in bfloat16, the intensity is wrong. Count arguments and results in their own dtypes. The compiler may "
    "convert them in between, which does not count.",
)


def probe_several(tree):
    compute = lambda tree: (tree["weights"].astype(jnp.float32) @ tree["x"], [tree["x"] + 1])
    return arithmetic_intensity(compute, tree)


whole = {"weights": jax.ShapeDtypeStruct((n, n), np.int8), "x": jax.ShapeDtypeStruct((n, n), np.float32)}
got = ask(probe_several, whole)
for width, which in ((1, "the first argument"), (4, "the result")):
    require(
        not near(4 * width * n * n / (1 + 0.5 / n)),
        f"For a pytree of int8 and float32, every element was counted with {width} byte{'s' * (width > 1)}, as in {which}.",
    )
require(
    near((n * n + 3 * 4 * n * n) / (1 + 0.5 / n)),
    "For a pytree of int8 and float32, with two results, the intensity is wrong.",
)

# %% hidden="profiling-intensity" name="large" points=1
"""Arguments that are larger than any memory."""
large = jax.ShapeDtypeStruct((2**25, 2**24), np.float32)


def probe_large(large):
    return arithmetic_intensity(lambda x: x * jnp.tanh(x) + 1, large)


require(
    error(probe_large, large) not in ("MemoryError", "_ArrayMemoryError", "JaxRuntimeError"),
    "Memory ran out, because the argument is larger than any memory. Do not create arrays, because shapes are enough.",
)
got = ask(probe_large, large)
flops = jax.jit(lambda x: x * jnp.tanh(x) + 1).lower(large).compile().cost_analysis()["flops"]
wanted = flops / (2 * large.size * 4)  # accelerators count a tanh differently
compare(got, wanted, rtol=0.03, label="the intensity of an elementwise function with a `tanh` in it")

# %% [markdown] why="profiling-intensity"
# Every program must read its arguments and write its results. The compiler decides whether other arrays are moved too, so the actual intensity is at most this value. **Next:** For which batch sizes is a layer with weights of shape (4096, 4096) limited by memory, on a device that computes 300 operations in the time in which it moves one byte?


# %% wrong="profiling-intensity" because="Divides by XLA's `bytes accessed`, which counts an array between two steps when it is written and when it is read."
def arithmetic_intensity(f, *shapes):
    found = jax.jit(f).lower(*shapes).compile().cost_analysis()
    return found["flops"] / found["bytes accessed"]


# %% wrong="profiling-intensity" because="Counts four bytes for every element."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return flops / (4 * sum(leaf.size for leaf in jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))))


# %% wrong="profiling-intensity" because="Forgets the results, which have to be written."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return flops / sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


# %% wrong="profiling-intensity" because="Counts the data and forgets the parameters, which have to be read too."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    moved = jax.tree.leaves((shapes[-1], jax.eval_shape(f, *shapes)))
    if len(shapes) == 2 and not isinstance(shapes[0], dict):
        moved.append(shapes[0])
    return flops / sum(leaf.size * leaf.dtype.itemsize for leaf in moved)


# %% wrong="profiling-intensity" because="Counts elements instead of bytes."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return flops / sum(leaf.size for leaf in jax.tree.leaves((shapes, jax.eval_shape(f, *shapes))))


# %% wrong="profiling-intensity" because="Runs the function to get the shape of its result, which fails for arrays that do not fit in memory."
def arithmetic_intensity(f, *shapes):
    arguments = jax.block_until_ready(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes))
    compiled = jax.jit(f).lower(*arguments).compile()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves((arguments, compiled(*arguments))))
    return compiled.cost_analysis()["flops"] / total


# %% wrong="profiling-intensity" because="Counts the operations of the lowered program, in which equal products are not merged yet."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).cost_analysis()["flops"]
    leaves = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    return flops / sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


# %% wrong="profiling-intensity" because="Uses the element size of the first argument for all arrays."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    leaves = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    return flops / (leaves[0].dtype.itemsize * sum(leaf.size for leaf in leaves))


# %% wrong="profiling-intensity" because="Adds the temporary memory of the program, which is neither an argument nor a result."
def arithmetic_intensity(f, *shapes):
    compiled = jax.jit(f, keep_unused=True).lower(*shapes).compile()
    memory = compiled.memory_analysis()
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return compiled.cost_analysis()["flops"] / moved


# %% wrong="profiling-intensity" because="Adds the transcendental functions, which XLA counts separately, to the floating-point operations."
def arithmetic_intensity(f, *shapes):
    found = jax.jit(f).lower(*shapes).compile().cost_analysis()
    leaves = jax.tree.leaves((shapes, jax.eval_shape(f, *shapes)))
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return (found["flops"] + found.get("transcendentals", 0)) / total


# %% wrong="profiling-intensity" because="Adds up every array of the jaxpr, so intermediate results count too."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    jaxpr = jax.make_jaxpr(f)(*shapes).jaxpr
    arrays = [v.aval for v in jaxpr.invars] + [v.aval for eqn in jaxpr.eqns for v in eqn.outvars]
    return float(flops / sum(a.size * a.dtype.itemsize for a in arrays))


# %% wrong="profiling-intensity" because="Collects the arrays in a set, so equal ones count once."
def arithmetic_intensity(f, *shapes):

    def moved(tree):
        return sum(leaf.size * leaf.dtype.itemsize for leaf in set(jax.tree.leaves(tree)))  # each moved once

    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    return float(flops / (moved(shapes) + moved(jax.eval_shape(f, *shapes))))


# %% wrong="profiling-intensity" because="Multiplies the shape with jnp.prod, whose int32 overflows for large shapes."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    moved = 0
    for leaf in jax.tree.leaves((shapes, jax.eval_shape(f, *shapes))):
        moved += int(jnp.prod(jnp.array(leaf.shape))) * leaf.dtype.itemsize
    return float(flops) / moved


# %% wrong="profiling-intensity" because="Treats arguments and results as single arrays, but they may be trees."
def arithmetic_intensity(f, *shapes):
    flops = jax.jit(f).lower(*shapes).compile().cost_analysis()["flops"]
    result = jax.eval_shape(f, *shapes)
    return flops / sum(one.size * one.dtype.itemsize for one in (*shapes, result))


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
# ## From the trace to your code
# **Goal.** A trace shows which operation takes the most time, and the compiled program contains the origin of each operation. Combine the two.
#
# **Signature.** `scope_of(hlo, events)`. `hlo` is the text of a compiled program, `compiled.as_text()`. `events` is a list of `Event`, as `read_trace` returns it, and at least one of them has an `operation`. Returns the `op_name` of the operation that takes the most time **in all its events together**. The result is the string in the text, or `""` if the operation has no `op_name` there. Events without an `operation` do not count.
#
# **Example.** In the text
#
# ```
#   %dot.1 = f32[4,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, metadata={op_name="jit(f)/encoder/dot_general"}
#   ROOT %add = f32[4,4]{1,0} add(%dot.1, %b), metadata={op_name="jit(f)/head/add"}
# ```
#
# and with two events of `dot.1` of 3 and 4 µs and one event of `add` of 5 µs, the result is `jit(f)/encoder/dot_general`.
#
# **Judged.** The string, for a program compiled by the check and for texts like the example. **Not judged.** Whether you parse the text with regular expressions or with string methods.
#
# <details><summary>Hint 1 · a question</summary>
#
# The same name may occur in many events and on many lines of the text. Which line defines the operation, and which lines only use its result?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# First add up the lengths in a dict by operation, and take the key with the largest sum. Then find the line that begins with `%`, this name and ` =`. The line may have `ROOT ` in front. `dot` and `dot.1` are different names.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# For each line, test whether `line.strip().removeprefix("ROOT ")` starts with `f"%{name} = "`. If that line contains `op_name="`, the result is the text from there to the next `"`.
#
# </details>


# %% answer="profiling-scope"
def scope_of(hlo, events):
    """The op_name in the HLO text of the operation with the most time in all its events, or "" if it has none."""
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
"""Similar names, operations with the same op_name, events of the host, and an operation without an op_name."""
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
  %dot_3 = f32[8,8]{1,0} subtract(%mul.3, %x.1), metadata={op_name="jit(step)/cove/mul" stack_frame_id=2}
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
    require(
        isinstance(got, str),
        "The result is not a string. For an operation without an `op_name`, it is an empty string.",
    )
    if got != wanted:
        require(
            got != meant[longest],
            "This is the operation with the longest single event. Add up all events of each operation, and leave out events "
            "without an `operation`.",
        )
        require(got != meant[most], "This is the operation with the most events. Add up their lengths.")
        require(
            got != shared,
            "This is an `op_name` that several operations have. Add up the events of each operation, and look up its "
            "`op_name` afterwards.",
        )
        require(
            got != meant[namesake],
            "This is not the slowest operation, but one with a similar name, or the one in the field `name` of its events. "
            "Use the field `operation`, and compare the whole name.",
        )
        require(
            got or hottest != "add",
            "The string is empty, but the slowest operation has an `op_name`. The line that defines it begins with `ROOT`.",
        )
        require(
            got,
            "The string is empty, but the slowest operation has an `op_name`. Did you count events without an `operation`, or "
            "did you miss the line that defines the operation?",
        )
        require(hottest != "copy", "The slowest operation has no `op_name` in the text, but the result is not empty.")
        require(
            False,
            "This is not the `op_name` of the slowest operation. Add up the lengths of all events of an operation, and "
            "find the line that defines it.",
        )

# %% hidden="profiling-scope" name="compiled" points=1
"""A program that this check compiles."""
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
        "For a program that this check compiled, the result is not the `op_name` of the operation that takes the most time "
        "in all its events.",
    )

# %% [markdown] why="profiling-scope"
# The trace contains the times, the program contains the origins, and both contain the name of the operation. A fused operation has the `op_name` of only one of its parts, so the result shows where to look first. **Next:** Add up the times by scope instead of by operation. What changes if one scope has a thousand small operations?


# %% wrong="profiling-scope" because="Takes the longest single event, which overlooks an operation that runs often for a short time."
def scope_of(hlo, events):
    longest = max((event for event in events if event.operation), key=lambda event: event.length)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{longest.operation} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Searches for the name anywhere in the text, but `fusion.1` is a part of `fusion.12`."
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


# %% wrong="profiling-scope" because="Lets the pattern match across lines, so an operation without an `op_name` gets that of a later one."
def scope_of(hlo, events):
    total = {}
    for event in events:
        if event.operation:
            total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    found = re.search("%" + re.escape(hottest) + ' = .*?op_name="(.*?)"', hlo, re.DOTALL)
    return found[1] if found else ""


# %% wrong="profiling-scope" because="Adds up by the name of the event and includes the events of the host, which may be the longest."
def scope_of(hlo, events):
    total = {}
    for event in events:
        total[event.name] = total.get(event.name, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Counts the events instead of adding up their lengths."
def scope_of(hlo, events):
    names = [event.operation for event in events if event.operation]
    hottest = max(names, key=names.count)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Forgets that the line of the last operation of a computation begins with `ROOT`."
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


# %% wrong="profiling-scope" because="Adds up by `op_name` instead of by operation, but several operations can have the same `op_name`."
def scope_of(hlo, events):
    origin = dict(re.findall(r'^\s*(?:ROOT )?%(\S+) = .*op_name="([^"]*)"', hlo, re.MULTILINE))
    total = {}
    for event in events:
        if event.operation:
            name = origin.get(event.operation, "")
            total[name] = total.get(name, 0) + event.length
    return max(total, key=total.get)


# %% wrong="profiling-scope" because="Includes the events of the host, which have no operation and take the most time together."
def scope_of(hlo, events):
    total = {}
    for event in events:
        total[event.operation] = total.get(event.operation, 0) + event.length
    hottest = max(total, key=total.get)
    for line in hlo.splitlines():
        if line.strip().removeprefix("ROOT ").startswith(f"%{hottest} = "):
            return line.partition('op_name="')[2].partition('"')[0]
    return ""


# %% wrong="profiling-scope" because="Adds up by the name of the event, but the name in the HLO is in the field `operation`."
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


# %% wrong="profiling-scope" because="Uses the name as a pattern without escaping it, so its dot matches any character."
def scope_of(hlo, events):
    spent = {}
    for event in events:
        if event.operation:
            spent[event.operation] = spent.get(event.operation, 0) + event.length
    longest = max(spent, key=spent.get)
    found = re.search(rf'%{longest} = [^\n]*op_name="([^"]*)"', hlo)
    return found.group(1) if found else ""


# %% wrong="profiling-scope" because="Adds up by `op_name` instead of by operation, but several operations can have the same `op_name`."
def scope_of(hlo, events):
    origin, total = {}, {}
    for line in hlo.splitlines():
        name, equals, rest = line.strip().removeprefix("ROOT ").partition(" = ")
        if equals:
            origin[name[1:]] = rest.partition('op_name="')[2].partition('"')[0]
    for event in events:
        if event.operation:
            scope = origin.get(event.operation, "")
            total[scope] = total.get(scope, 0) + event.length
    return max(total, key=total.get)


# %% wrong="profiling-scope" because="Lets the pattern match across lines, so an operation without an `op_name` gets that of a later one."
def scope_of(hlo, events):
    total = {}
    for event in events:
        if event.operation:
            total[event.operation] = total.get(event.operation, 0) + event.length
    longest = max(total, key=total.get)
    start = hlo.index(f"%{longest} = ")
    return re.search(r'op_name="([^"]*)"', hlo[start:]).group(1)


# %% right="profiling-scope"
def scope_of(hlo, events):
    names = sorted({event.operation for event in events} - {""})
    sums = [sum(event.length for event in events if event.operation == name) for name in names]
    hottest = names[int(np.argmax(sums))]
    found = re.search(rf'^\s*(?:ROOT )?%{re.escape(hottest)} = .*?op_name="([^"]*)"', hlo, re.MULTILINE)
    return found.group(1) if found else ""


# %% [markdown] task="profiling-annotate" stars=1 minutes=15 skills="01_arrays,profiling-capture"
# ## From a telescope: annotate the stages
# **Goal.** Programs without training have traces too. Here, several stages process each image ("frame") of a telescope, one after the other. In a trace, every frame and every stage should have a bar that is as long as its work.
#
# **Signature.** `annotate_timeline(stages, frames)`. `stages` is a dict of names and compiled functions of one array, in the order in which they are applied. `frames` is a list of arrays. Returns the list of the results of the last stage. While a trace is recorded, frame number i (from 0) is annotated as a **step** with the name `"frame"` and the number i. Inside this bar, each stage has an annotation with its name, and the device's work for the stage is done within that annotation.
#
# **Example.** For `{"dark": subtract, "flat": divide}` and two frames, the trace contains `frame` 0 with `dark` and `flat` inside, and then `frame` 1 with `dark` and `flat` inside.
#
# **Judged.** The results. The names, the order and the numbers of the bars. The work of a stage lies within its bar. **Not judged.** Speed. If you wait after every stage, Python no longer runs ahead of the device, but the bars show the work.
#
# <details><summary>Hint 1 · a question</summary>
#
# A compiled function returns before its work is done. When does the `with` around it end?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Nest two kinds of annotations. One has a name and the number of a step, and the other has only a name. `jax.named_scope` is neither, because it names parts of a program and not of the timeline.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Use `jax.profiler.StepTraceAnnotation("frame", step_num=i)` around a frame and `jax.profiler.TraceAnnotation(name)` around a stage. Wait for the result of the stage inside the inner annotation.
#
# </details>


# %% answer="profiling-annotate"
def annotate_timeline(stages, frames):
    """Applies all stages {name: function} to each frame. Annotates each frame as a step, and each stage inside it."""
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
    f"The bars in the trace should begin in this order: {', '.join(wanted)}. Yours are {', '.join(found) or 'missing'}.",
)

# %% hidden="profiling-annotate" name="values" points=1
"""The result of the last stage for every frame."""


def probe_values(frames, shift):
    stages = {"double": jax.jit(lambda x: 2 * x), "shift": jax.jit(lambda x: x + shift), "square": jax.jit(jnp.square)}
    return annotate_timeline(stages, [*frames])


rng = inputs.rng()
frames, shift = [rng.normal(size=(3, 2)).astype(np.float32) for _ in range(4)], float(rng.integers(1, 9))
compare(
    ask(probe_values, frames, shift), [(2 * frame + np.float32(shift)) ** 2 for frame in frames], label="the results"
)

# %% hidden="profiling-annotate" name="bars" points=2 observed=true
"""Every frame is a step with its number, every stage has a bar inside it, and the work lies within its bar."""


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
require(len(steps) == 3, f"A trace of 3 frames contains {len(steps)} bars with the name `frame`.")
require(
    [bar.step for bar in steps] != [-1] * 3,
    "The bars with the name `frame` have no number. Use the annotation for steps.",
)
require(
    [bar.step for bar in steps] != [1, 2, 3], "The numbers of the steps begin with 1, but the first frame is number 0."
)
require([bar.step for bar in steps] == [0, 1, 2], "The numbers of the steps are not 0, 1 and 2.")
inner = [bar for bar in bars if bar.name != "frame"]
require(len(inner) == 6, f"A trace of 3 frames and 2 stages contains {len(inner)} bars with the names of stages.")
require([bar.name for bar in inner] == names * 3, "The bars of the stages are not in the order of the stages.")
slack = 5_000  # microseconds: clocks of threads, and what happens at the ends of a bar
within = lambda small, big: (
    big.begin - slack < small.begin and small.begin + small.length < big.begin + big.length + slack
)
require(
    all(within(bar, steps[place // 2]) for place, bar in enumerate(inner)),
    "The bar of a stage is not inside the bar of its frame.",
)
share = sum(any(within(event, bar) for bar in inner) for event in work) / len(work)
require(
    not 0.4 < share < 1,
    "Only a part of the work lies within the bars of the stages. Before a bar ends, the result of its own stage must be ready.",
)
require(
    share == 1 or not all(any(within(event, bar) for bar in steps) for event in work),
    "All work lies within the bars of the frames, but not all of it within those of the stages. The work of a stage must be "
    "done before its bar ends.",
)
require(
    share == 1,
    "Work of the device lies outside the bars of the stages. The work that starts in a bar must be done before the bar ends.",
)

# %% [markdown] why="profiling-annotate"
# A bar ends with its `with` block, so the work lies within the bar only if you wait inside the block. Wait only while you measure. In production, annotate without waiting and read the row of the device. **Next:** How could Python run ahead by one frame, while the trace still shows the work of every frame?


# %% wrong="profiling-annotate" because="Does not wait, so the bars end when the work is submitted and the device works outside of them."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = stage(image)
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Waits at the end of a frame, so its work lies after the bars of its stages."
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


# %% wrong="profiling-annotate" because="Uses `named_scope`, which names parts of a program while it is traced and adds no bars to the timeline."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.named_scope(name):
                    image = jax.block_until_ready(stage(image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Annotates a frame like a stage, so it is not a step and has no number."
def annotate_timeline(stages, frames):
    finished = []
    for image in frames:
        with jax.profiler.TraceAnnotation("frame"):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stage(image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Annotates all frames together as one step."
def annotate_timeline(stages, frames):
    finished = []
    with jax.profiler.StepTraceAnnotation("frame", step_num=len(frames)):
        for image in frames:
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stage(image))
            finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Applies every stage to the original frame instead of the result of the previous stage."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    result = jax.block_until_ready(stage(image))
        finished.append(result)
    return finished


# %% wrong="profiling-annotate" because="Waits for the input of a stage instead of its result, so each bar contains the work of the previous stage."
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


# %% wrong="profiling-annotate" because="Applies the stages in the order of their names instead of the order of the dict."
def annotate_timeline(stages, frames):
    finished = []
    for i, image in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name in sorted(stages):
                with jax.profiler.TraceAnnotation(name):
                    image = jax.block_until_ready(stages[name](image))
        finished.append(image)
    return finished


# %% wrong="profiling-annotate" because="Ends the annotation of the step before the stages run."
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


# %% wrong="profiling-annotate" because="Waits after the annotation has ended."
def annotate_timeline(stages, frames):
    annotated = [jax.profiler.annotate_function(stage, name=name) for name, stage in stages.items()]
    results = []
    for i, frame in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for stage in annotated:
                frame = jax.block_until_ready(stage(frame))  # wait before the next bar begins
            results.append(frame)
    return results


# %% wrong="profiling-annotate" because="Waits at the end of a frame, so its work lies after the bars of its stages."
def annotate_timeline(stages, frames):
    results = []
    for i, frame in enumerate(frames):
        with jax.profiler.StepTraceAnnotation("frame", step_num=i):
            for name, stage in stages.items():
                with jax.profiler.TraceAnnotation(name):
                    frame = stage(frame)
            frame.block_until_ready()
        results.append(frame)
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
