# %% [markdown]
# # 14 · Profiling: where does the time go?
#
# *Fifty minutes, then [the exercises](../exercises/14_profiling/14_profiling.ipynb).* Afterwards you can write a trace and read it, in TensorBoard and as data; name parts of a program, and find the line of yours behind the slowest operation; say what a program will cost in operations, bytes and memory before it runs, even one that fits nowhere; compile before the first request comes, and keep what was compiled for the next process; and see who holds the device's memory.
#
# **Assumed.** Asynchronous dispatch (01), jaxpr and HLO (02), `jit` and its cache (03), `value_and_grad` (04), trees and ShapeDtypeStruct (06), `scan` (08), a training step (09). Recall before you go on; answer first, then open the fold.
#
# 1. From 01: a call of a compiled function returns after 50 µs. What has happened by then?
#
# <details><summary>Answer</summary>
#
# The work was handed to the device. The result is an array that may not be there yet; whoever looks at it waits.
# </details>
#
# 2. From 02: what lies between your Python function and what runs?
#
# <details><summary>Answer</summary>
#
# A jaxpr, made by running Python on tracers; StableHLO, made from it by lowering; and the HLO that XLA has optimized, with many operations fused into one.
# </details>
#
# 3. From 06: `jax.eval_shape(f, x)` runs `f` on nothing but shapes and dtypes. What comes back?
#
# <details><summary>Answer</summary>
#
# A tree of ShapeDtypeStruct, of the form of the result. No array is made.
# </details>

# %%
import atexit
import collections
import functools
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from IPython.display import IFrame
from sklearn.datasets import load_digits

from grader.learning import plots

print("this runs on", jax.devices()[0].device_kind)


def refusal(call):
    """Runs `call()`, which should fail, and prints the start of its error."""
    try:
        call()
    except Exception as problem:
        print(f"{type(problem).__name__}: {str(problem)[:330]}")


# %% [markdown]
# ## The question: which line is slow?
# A network shall put pictures of digits into a space where equal digits lie close together. The loss asks each picture of a batch for its neighbours: it needs the distance of every picture to every other. `jax.named_scope` gives a part of the program a name; we shall need that later.


# %%
def by_broadcasting(points):
    """Squared distances of all pairs: (n, d) -> (n, n)"""
    return jnp.sum((points[:, None] - points[None]) ** 2, axis=-1)


def loss(params, x, y, distances):
    """x (n, 64), y (n,) -> (): how likely a picture's neighbours show another digit"""
    with jax.named_scope("encoder"):
        for w in params[:-1]:
            x = jax.nn.relu(x @ w)
        x = x @ params[-1]
        x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    with jax.named_scope("distances"):
        far = distances(x)
    with jax.named_scope("neighbours"):
        near = jax.nn.softmax(jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, -10 * far))
        return -jnp.mean(jnp.log(jnp.sum(near * (y[:, None] == y), axis=1) + 1e-6))


tx = optax.adam(1e-3)


@functools.partial(jax.jit, static_argnames="distances")
def step(params, state, x, y, *, distances):
    value, gradient = jax.value_and_grad(loss)(params, x, y, distances)
    with jax.named_scope("optimizer"):
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value


keys, sizes = jax.random.split(jax.random.key(14), 3), ((64, 512), (512, 512), (512, 64))
params = [jax.random.normal(key, size) * (2 / size[0]) ** 0.5 for key, size in zip(keys, sizes, strict=True)]
state = tx.init(params)
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)


def load(i):
    """Batch i, from a disk that takes ten milliseconds: images (512, 64), labels (512,)"""
    time.sleep(0.01)
    part = np.random.default_rng(i).permutation(len(images))[:512]
    return images[part], labels[part]


# %% [markdown] predict="profiling-stopwatch"
# A turn of the loop has three lines: `load` the batch, `call` the compiled step, and `float(value)` to note the loss. We hold a stopwatch to each. Which line gets the time?
#
# - [ ] the call: there the work is | The call hands the work over and returns.
# - [x] `float(value)` | Right: it waits for all that was handed over. The stopwatch blames the line that looks.
# - [ ] loading: ten milliseconds of every turn | If the step takes longer than that, whoever waits for it takes longer too.

# %%
p, s, _ = jax.block_until_ready(step(params, state, *load(0), distances=by_broadcasting))  # compiles
laps = np.zeros((3, 3))
for i in range(3):
    begin = time.perf_counter()
    x, y = load(i)
    loaded = time.perf_counter()
    p, s, value = step(p, s, x, y, distances=by_broadcasting)
    called = time.perf_counter()
    float(value)
    laps[i] = loaded - begin, called - loaded, time.perf_counter() - called
print("milliseconds for load, call and float(value):", (1e3 * laps.mean(axis=0)).round(1).tolist())

# %% [markdown]
# So a stopwatch says how long, and not what. Inside the step are an encoder, distances, neighbours, their gradients and an optimizer, in one compiled program. To see into it, ask those who run it.
#
# ## A trace
# `jax.profiler.trace` notes when every operation begins and ends, on the host and on the device, and writes it into a folder. `TraceAnnotation` adds lines of our own to it; `StepTraceAnnotation` also says which step it is.


# %%
def train(steps, distances, look_every=1):
    p, s, losses = params, state, []
    for i in range(steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            with jax.profiler.TraceAnnotation("load"):
                x, y = load(i)
            with jax.profiler.TraceAnnotation("call"):
                p, s, value = step(p, s, x, y, distances=distances)
            losses.append(value)
            if (i + 1) % look_every == 0:
                with jax.profiler.TraceAnnotation("look"):
                    float(value)
    return jax.block_until_ready(losses)


logs = Path(tempfile.mkdtemp())
with jax.profiler.trace(logs / "first"):
    train(3, by_broadcasting)
for file in sorted(logs.rglob("*.gz")) + sorted(logs.rglob("*.pb")):
    print(f"{file.stat().st_size:8,} bytes  {file.relative_to(logs)}")

# %% [markdown]
# Compile before, and trace a few steps: whoever looks for the usual step does not want the first one, nor a million events.
#
# ## Opened in TensorBoard
# TensorBoard's profile page reads that folder. We start it here, for this computer only (`127.0.0.1`), on a free port, and it ends with this notebook.

# %%
log = logs / "tensorboard.log"
options = f"--logdir={logs} --host=127.0.0.1 --port=0 --load_fast=false".split()
with log.open("w") as out:
    tensorboard = subprocess.Popen([sys.executable, "-m", "tensorboard.main", *options], stdout=out, stderr=out)
atexit.register(tensorboard.kill)  # should this notebook not come to its end
while not (said := re.search(r"http://127\S+", log.read_text())) and tensorboard.poll() is None:
    time.sleep(0.1)
assert said, log.read_text()
address = said[0]
[trace] = (logs / "first").rglob("*.xplane.pb")
run, host = trace.parent.name, trace.name.removesuffix(".xplane.pb")
print(address)
IFrame(f"{address}?run=first%2F{run}&tag=trace_viewer%40&host={host}#profile", width="100%", height=640)

# %% [markdown]
# A click on the dark part closes the settings; or open the address in a tab of its own. Then click into the timeline: `w` and `s` zoom, `a` and `d` move, and a click on a bar says what it is. Our bars are in the row `python`; rows of other threads lie around it. (Run all cells, and the last one has stopped it again: run this cell once more.) Not every page works offline: *Overview* draws its charts with a library from the web.
#
# ![What one turn of the loop looks like in the trace viewer. The row python holds the bar train 0, below it load, call and look side by side; look is by far the longest. The row of the device is empty while load runs, and then filled with one long bar and some short ones: that is the work of the call, which ended after a moment; look only waits. The long bar is called fusion.3: which line is that?](../images/profiling_timeline.svg)
#
# ## The same, as data
# What the page draws are events: a name, a begin `ts` and a duration `dur` in microseconds, and `args`. Names with `$` are Python's own calls.


# %%
def events(run):
    """The newest trace under logs/run: its events, with their args."""
    newest = max((logs / run).rglob("*.trace.json.gz"), key=lambda file: file.stat().st_mtime)
    found = json.loads(gzip.decompress(newest.read_bytes()))["traceEvents"]
    return [{"args": {}, **event} for event in found if event.get("ph") == "X"]


def milliseconds(found, what):
    """Sums the durations by `what(event)`, the longest first; an event where that is None does not count."""
    total = collections.Counter()
    for event in found:
        total[what(event)] += event["dur"] / 1e3
    return {name: spent for name, spent in total.most_common() if name is not None}


operation = lambda event: event["args"].get("hlo_op")
found = events("first")
ours = milliseconds(found, lambda event: event["name"] if event["name"] in ("train", "load", "call", "look") else None)
print(len(found), "events; ours, in ms a step:", {name: round(ms / 3, 1) for name, ms in ours.items()})
by_operation = milliseconds(found, operation)
print(f"{len(by_operation)} operations on the device, {sum(by_operation.values()) / 3:.1f} ms a step. The longest:")
for name, ms in list(by_operation.items())[:4]:
    print(f"{ms / 3:8.1f} ms  {name}")

# %% [markdown] predict="profiling-unfinished"
# We trace one call of the step and leave the `with` at once, without waiting for the result. What is in the trace?
#
# - [x] the call, and few operations of the device or none | Right: the recording ends when the `with` does.
# - [ ] the same operations: JAX finishes what it has begun | It does, after the trace has ended.
# - [ ] an error: the step is still running | Nobody checks that.

# %%
for name, wait in {"waited": jax.block_until_ready, "not_waited": lambda result: result}.items():
    with jax.profiler.trace(logs / name):
        result = wait(step(params, state, x, y, distances=by_broadcasting))
    jax.block_until_ready(result)
    print(f"{name:11s}", sum(map(bool, map(operation, events(name)))), "operations in the trace")

# %% [markdown]
# ## From an operation to a line of yours
# One operation takes nearly all the time. Its name is XLA's own, and says little: a `fusion` was made of several operations (`ynn_` before it: on a CPU, a library of kernels called YNNPACK runs it). Events need not say `distances` anywhere (on a CPU none does). But the compiled program does: each operation of the HLO carries where it came from, as `op_name`.

# %% [markdown] predict="profiling-hottest"
# The encoder has 512 · (64 · 512 + 512 · 512 + 512 · 64) multiplications, the distances 512 · 512 · 64: a tenth. Where is the hottest operation?
#
# - [ ] in the encoder, forward | Most multiplications are there and in its gradient. But are they what takes time?
# - [ ] in the distances, forward | Closer. What else is there of them?
# - [x] in the distances, in their gradient | Right, here: nobody wrote that line, and it has a (512, 512, 64) array to sum.

# %%
compiled = step.lower(params, state, x, y, distances=by_broadcasting).compile()
origin = dict(re.findall(r'%(\S+) = .*op_name="([^"]*)"', compiled.as_text()))
for name, ms in list(by_operation.items())[:4]:
    print(f"{ms / 3:8.1f} ms  {name:28s} {origin.get(name)}")

by_scope = collections.Counter()
for name, ms in by_operation.items():
    named = re.search("encoder|distances|neighbours|optimizer", origin.get(name, ""))
    by_scope[named[0] if named else "elsewhere"] += ms / 3
print("ms a step, by scope:", {name: round(ms, 1) for name, ms in by_scope.items()})
print(sum("distances" in json.dumps(event) for event in found), "events say it themselves")

# %% [markdown]
# `op_name` is a path: the compiled function, the scopes, the operation. `jvp(...)` is the forward pass of a gradient and `transpose(jvp(...))` the way back (04). A fused operation shows the name of one of its parts only, so a table by scopes is right in the large, and not to the microsecond.
#
# ## Mend what was measured
# Why are those distances slow? Each of 512 · 512 · 64 differences is computed, and on the way back an array of that size is summed up. But |a - b|² = |a|² + |b|² - 2 a·b, and all products of pairs are one matrix product:


# %%
def by_product(points):
    """Squared distances of all pairs: (n, d) -> (n, n)"""
    squares = jnp.sum(points**2, axis=1)
    return squares[:, None] + squares[None] - 2 * points @ points.T


points = np.random.default_rng(0).normal(size=(512, 64)).astype(np.float32)
print("largest difference:", jnp.abs(by_broadcasting(points) - by_product(points)).max())
ways = {"as it was": (by_broadcasting, 1), "mended": (by_product, 1), "look later": (by_product, 5)}
for name, (distances, look_every) in ways.items():
    jax.block_until_ready(step(params, state, x, y, distances=distances))  # compiles
    with jax.profiler.trace(logs / name):
        losses = train(5, distances, look_every)
    spent = milliseconds(events(name), lambda event: "device" if operation(event) else event["name"])
    parts = {part: round(spent[part] / 5, 1) for part in ("train", "load", "look", "device")}
    print(f"{name:10s} ms a step: {parts}; loss {losses[-1]:.3f}")

# %% [markdown]
# `train` is the whole step. The second line: the same loss, and the slowest operation is gone. (Mind what it costs: for points that are nearly equal, it subtracts nearly equal numbers.) A step now takes `load` and `look` one after the other: the device is idle while a batch is loaded, as `float(value)` makes Python wait for the step before it loads again. The third line looks every five steps, and the next batch is loaded while the device works (09): at best a step takes as long as the longer of the two, `load` or `device`.
#
# ![Three ways to run the loop, not to scale. As it was: load, then a long look, below which the device works; its bars have a gap, as they are far longer than all others; two turns. Mended: load, then a short look, six turns; the device is idle while the batch is loaded. Look later: loads follow each other without a gap, and the device works below the next load; six turns in less time.](../images/profiling_ways.svg)
#
# Measure, mend the largest, measure again: first a gradient that nobody wrote, then a wait for the loss, and what is left is the longer of disk and device.
#
# ## What a program says before it runs
# Between a function and its program lie tracing, lowering and compiling, and what each gives can be asked. `lower` takes arrays or ShapeDtypeStruct, so no data are needed:
#
# ![From a Python function to a run, in four steps from left to right. A Python function; trace gives a jaxpr; lower gives StableHLO, which as_text shows; compile gives an executable, which as_text shows as optimized HLO with op_name, cost_analysis says how many flops and bytes, memory_analysis how many bytes of arguments, results and scratch; and running it, which only the trace sees: time. Above: all but the last need shapes only. Below: jit does all of it at the first call and keeps the executable in memory; the persistent cache keeps it on disk.](../images/profiling_stages.svg)

# %% [markdown] predict="profiling-flops"
# The step with `by_product` took a small part of the time. How many floating-point operations has it, compared with `by_broadcasting`?
#
# - [ ] a small part too | Time is not operations.
# - [x] about as many | Right: nearly all are in the encoder. What differs is what goes through memory.
# - [ ] many more: 64 multiplications for each pair | `by_broadcasting` has 64 too, the squares, and 64 subtractions besides.

# %%
shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, state, x, y))
for distances in (by_broadcasting, by_product):
    compiled = step.lower(*shapes, distances=distances).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    sizes = cost["bytes accessed"], memory.argument_size_in_bytes, memory.temp_size_in_bytes
    print(f"{distances.__name__:16s} {cost['flops'] / 1e9:5.2f} Gflop", end="; ")
    print("MB accessed, of arguments, of scratch:", (np.array(sizes) / 1e6).round(1))

# %% [markdown]
# Scratch and bytes give it away. Three warnings. These are XLA's estimates: `bytes accessed` adds up what every operation reads and writes, so an array between two operations counts twice. They say what has to be done, not how fast. And:

# %%
several = lambda w, x, n: jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=n)[0]
square = jax.ShapeDtypeStruct((64, 64), jnp.float32)
for n in (1, 4, 16):
    counted = jax.jit(several, static_argnums=2).lower(square, square, n).compile().cost_analysis()["flops"]
    print(f"{n:2d} rounds: {counted:9,.0f} flops counted, {2 * n * 64**3:9,} in the products")

# %% [markdown]
# A loop's body is counted once: the analysis does not know how often it runs. Multiply, or analyse one round.
#
# ## How fast could it be?
# Two things bound a program: how many operations the device can do in a second, and how many bytes its memory can move. Which of the two depends on the **arithmetic intensity**, the operations for each byte that has to be moved. A matrix times one column, times four, and so on, counted by hand and timed:


# %%
def seconds(f, *arguments):
    begin = time.perf_counter()
    jax.block_until_ready(f(*arguments))
    return time.perf_counter() - begin


matrix, columns = jnp.ones((2048, 2048)), np.array([1, 4, 16, 64, 256, 1024])
others = [jnp.ones((2048, n)) for n in columns]
rounds = [[seconds(jnp.matmul, matrix, other) for other in others] for _ in range(9)]  # in turns; the first compiles
flops, moved = 2 * 2048 * 2048 * columns, 4 * (2048 * 2048 + 2 * 2048 * columns)
intensity, rate = flops / moved, flops / np.min(rounds, axis=0) / 1e9
bandwidth, peak = rate[0] / intensity[0], rate.max()
print(f"{bandwidth:.0f} GB/s, {peak:.0f} Gflop/s: to move a byte takes as long as {peak / bandwidth:.0f} operations")
_, axes = plots.subplots(height=3)
axes.loglog([0.3, peak / bandwidth, 300], [0.3 * bandwidth, peak, peak], "-", color="0.5")
axes.plot(intensity, rate, "o")
for place in zip(columns, intensity, rate, strict=True):
    axes.annotate(place[0], place[1:], xytext=(6, -11), textcoords="offset points")
axes.set(xlabel="operations for each byte; at each point, the number of columns", ylabel="Gflop/s")
plots.show(
    f"A roofline: a slope of {bandwidth:.0f} GB/s up to {peak / bandwidth:.0f} operations for each byte, then a flat line at "
    f"{peak:.0f} Gflop/s. The products lie at or under it: 1 column {rate[0]:.0f} Gflop/s, 1024 columns {rate[-1]:.0f}."
)

# %% [markdown]
# This is the **roofline**. A matrix times one column uses each number once: it waits for memory, whatever the processor can do; that point gives the slope. A matrix times many columns uses each number often, and the best of them gives the height. Left of the bend, move fewer bytes (fuse, smaller dtypes, larger batches); right of it, do fewer operations. A point far below both lines is bound by something else: look at the trace.
#
# ## Larger than any device
# Shapes are enough for all of this, so they may be shapes of what you do not have: 4 TiB, or 2⁵⁰ elements.

# %%
begin = time.perf_counter()
large = jax.eval_shape(lambda: jnp.zeros((1024,) * 4))
print(large, large.size * large.dtype.itemsize / 2**40, "TiB,", round(1e3 * (time.perf_counter() - begin), 1), "ms")
program = jax.jit(lambda v: jnp.sum(2 * v)).lower(jax.ShapeDtypeStruct((2**25, 2**25), jnp.float32))
print("lowered for", re.findall("tensor<.*?>", program.as_text())[0])
print("arguments:", program.compile().memory_analysis().argument_size_in_bytes / 2**50, "PiB")
refusal(lambda: jnp.zeros((1024,) * 5))

# %% [markdown]
# The large one is lowered and compiled, on this computer. So ask first whether a model fits, what its step costs and what sharding would bring (16), and rent machines afterwards.
#
# ## Compile before the first request
# A service should not compile while a user waits (03). `lower(...).compile()` does it ahead.

# %% [markdown] predict="profiling-ahead"
# `ready` was compiled ahead for requests of 8 pictures. What does it do with 7?
#
# - [x] it refuses them | Right: and that is the point. Nothing is ever compiled behind your back.
# - [ ] it compiles anew, as `jit` does | It is no longer a function that can be traced; it is a program.
# - [ ] it pads to 8 | Nobody said what to pad with.

# %%
place = jax.jit(lambda params, x: jax.nn.relu(x @ params[0]) @ params[1] @ params[2])
begin = time.perf_counter()
ready = place.lower(shapes[0], jax.ShapeDtypeStruct((8, 64), jnp.float32)).compile()
print(f"compiled in {1e3 * (time.perf_counter() - begin):.0f} ms, before there is any request")
print(f"first request answered in {1e3 * seconds(ready, params, images[:8]):.1f} ms")
refusal(lambda: ready(params, images[:7]))

# %% [markdown]
# One program for one set of shapes. A new process starts without any of it, unless compiled programs are kept on disk: the **persistent cache**. Its key is the program, the versions and the device. Two processes, one after the other, with an empty folder for a cache:

# %%
script = """
import time, jax, jax.numpy as jnp
def deep(x):
    for i in range(24):
        x = jnp.tanh(x @ x) + i
    return x.sum()
lowered = jax.jit(jax.grad(deep)).lower(jnp.ones((64, 64)))
begin = time.perf_counter()
lowered.compile()
print(f"{time.perf_counter() - begin:.2f} s")
"""
cache = Path(tempfile.mkdtemp())
env = {
    **os.environ,
    "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # keep what compiled quickly, too (1 s is usual)
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this kernel may hold most of the device's memory
}
for process in ("first", "second"):
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    print(f"{process} process: to compile takes {done.stdout.strip()}; {len(list(cache.iterdir()))} files in the cache")

# %% [markdown]
# In a program of your own: `jax.config.update("jax_compilation_cache_dir", folder)` before anything is compiled. What lies in that folder is run: nobody else should be able to write there.
#
# ## Who holds the memory?
# An array lives as long as somebody holds it. `jax.live_arrays()` lists all; the **device memory profile** also says which line made each.


# %%
def remember(times):
    """A list that was to hold losses, and holds parameters as well."""
    return [step(params, state, x, y, distances=by_product)[::2] for _ in range(times)]


held = lambda: sum(array.nbytes for array in jax.live_arrays()) / 1e6
before, history = held(), remember(10)
print(f"{before:.1f} MB held before, {held():.1f} MB after ten steps whose results are kept")
jax.profiler.save_device_memory_profile(logs / "memory.prof")
print("it names our function:", b"remember" in gzip.decompress((logs / "memory.prof").read_bytes()))
largest = max(jax.live_arrays(), key=lambda array: array.nbytes)
print(f"{largest.nbytes / 1e6:.0f} MB are one array {largest.shape}")

# %% [markdown]
# (The large one? The matrix of the roofline: a name in a notebook holds for ever. On accelerators, `device.memory_stats()` says how much was in use at most.) The file is one for `pprof`: `go tool pprof -top memory.prof` (it comes with Go) prints who made what is held, `-diff_base` compares two, and so finds a leak. How much a program needs *while it runs* is not in it: that is `memory_analysis`, and lesson 15. The next cell stops what was started here:

# %%
tensorboard.terminate()
print("TensorBoard ended with", tensorboard.wait(20))

# %% [markdown]
# ## Summary
#
# | you want to know, or to be sure of | you use |
# |---|---|
# | where the time goes | `with jax.profiler.trace(folder):`, a few steps, compiled before, waited for at the end |
# | which part of the loop it is | `TraceAnnotation("load")`, `StepTraceAnnotation("train", step_num=i)` |
# | which line an operation came from | its `op_name` in `compiled.as_text()`; `jax.named_scope` puts names into it |
# | what a program costs | `lower` with shapes, `compile()`, then `cost_analysis()`; loops count once |
# | whether it fits | `memory_analysis()`, and `jax.eval_shape` for the shapes of results |
# | whether memory or arithmetic bounds it | operations for each byte, beside what the device can do |
# | that nothing compiles in service, nor after a restart | compile ahead, call what refuses other shapes; a persistent cache, in a folder of your own |
# | who holds memory | `jax.live_arrays()`, `save_device_memory_profile` |
#
# ## What it became
#
# | in older code | now |
# |---|---|
# | `jax.xla_computation(f)(x)` | `lower`, and `as_text()` |
# | `compiled.cost_analysis()[0]`, of a list | a dict |
# | `compilation_cache.initialize_cache(path)`, `set_cache_dir(path)` | `jax_compilation_cache_dir` |
# | `jax.profiler.start_trace`, `stop_trace` | still there; a `with` also stops after an error |
#
# Next: the exercises. In the first, two lines are missing.
