# %% [markdown]
# # 14 · Profiling: find what takes the time
#
# *The core takes about 35 minutes. Thirteen "Deeper" sections can be skipped. Then do [the exercises](../exercises/14_profiling/14_profiling.ipynb).* After the core, you can time a call correctly, record a trace, find the code behind the slowest operation, and read the cost of a program before it runs.
#
# **Prerequisites.** Asynchronous dispatch (lesson 01), tracing (02), `jit` (03), `grad` (04), pytrees (06) and training (09). Answer these questions from memory.
#
# 1. From 01: A call of a compiled function returns after 50 µs. Is the result computed?
#
# <details><summary>Answer</summary>
#
# Not necessarily. The call has only submitted the work to the device. `block_until_ready` waits for the result.
# </details>
#
# 2. From 02: Which two representations does a program have between your Python function and machine code?
#
# <details><summary>Answer</summary>
#
# A jaxpr, from tracing, and StableHLO, from lowering. XLA compiles StableHLO and fuses many operations.
# </details>
#
# 3. From 06: `jax.eval_shape(f, x)` runs `f` on shapes and dtypes only. What does it return?
#
# <details><summary>Answer</summary>
#
# A pytree of `ShapeDtypeStruct` with the structure of the result, and no arrays.
# </details>

# %%
import collections
import gzip
import json
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
from sklearn.datasets import load_digits

from grader.learning import plots
from grader.learning.inspection import print_error, show_trace, time_ms

# %% [markdown]
# ## Which part of the step is slow?
# A training step takes longer than expected. Before you change the code, find out where the time goes.
#
# The example network maps each picture of a digit to a point. Points of the same digit should be close together, and all others at least 1 apart. The loss therefore compares all pairs in a batch.


# %%
def by_broadcasting(points):
    """Squared distances of all pairs of points: (n, d) -> (n, n)"""
    return jnp.sum((points[:, None] - points[None]) ** 2, axis=-1)


def encode(params, x):
    """The network: pictures (n, 64) -> points (n, 64)"""
    for w in params[:-1]:
        x = jax.nn.relu(x @ w)
    return x @ params[-1]


# %% [markdown]
# `jax.named_scope` names the operations that are traced inside its block. We use these names below. The function that computes the distances is an argument, so that we can replace it.


# %%
def loss(params, x, y, distances):
    """x (n, 64), y (n,) -> one number"""
    with jax.named_scope("encoder"):
        points = encode(params, x)
    with jax.named_scope("distances"):
        squared = distances(points)
    with jax.named_scope("pairs"):
        same_digit = y[:, None] == y
        return jnp.mean(jnp.where(same_digit, squared, jax.nn.relu(1 - squared)))


tx = optax.adam(1e-3)


@jax.jit(static_argnames="distances")
def step(params, state, x, y, *, distances):
    value, gradient = jax.value_and_grad(loss)(params, x, y, distances)
    with jax.named_scope("optimizer"):
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value


# %%
keys, sizes = jax.random.split(jax.random.key(14), 3), ((64, 512), (512, 512), (512, 64))
params = [jax.random.normal(key, size) * (2 / size[0]) ** 0.5 for key, size in zip(keys, sizes, strict=True)]
state = tx.init(params)
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)


def load(i):
    """Batch i: images (512, 64) and labels (512,)"""
    time.sleep(0.01)  # a disk that takes ten milliseconds
    rows = np.random.default_rng(i).permutation(len(images))[:512]
    return images[rows], labels[rows]


# %% [markdown] predict="profiling-stopwatch"
# Each iteration of the training loop loads a batch, calls the compiled step, and converts the loss to a Python number with `float(value)`. Which of these three lines takes the most time on a CPU?
#
# - [ ] the call, because it computes the step | The call submits the work and returns before the work is done.
# - [x] `float(value)` | Right. It waits for the submitted work, so the clock assigns the time of the step to this line.
# - [ ] loading, which takes ten milliseconds in each iteration | The step takes longer than that, and one of the other lines waits for it.

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
# The clock shows which line waits, as in lessons 01, 09 and 11, but not what it waits for.
#
# ## Time one call
# As a reminder of lesson 01, follow three rules to time a JAX function.
#
# 1. Call the function once before you measure, because the first call compiles.
# 2. Wait for the result with `jax.block_until_ready` before you read the clock.
# 3. Repeat the measurement and take the median, because other programs use the machine too.
#
# The helper `time_ms` follows these rules. The next three cells define a bar plot, then time the same step in four ways.


# %%
def show_times(times, alt):
    """Draws a bar for each time. times: {name: milliseconds}"""
    texts = [f"{took:,.0f} ms" if took > 10 else f"{took:.2g} ms" for took in times.values()]
    _, axes = plots.subplots(height=0.7 + 0.33 * len(times))
    bars = axes.barh(list(times), list(times.values()), color=plots.FILLS[0][0])
    axes.bar_label(bars, texts, padding=4)
    axes.set(xlabel="milliseconds", xlim=(0, 1.15 * max(times.values())))
    axes.invert_yaxis()
    plots.show(alt + " " + ", ".join(f"{name}: {text}" for name, text in zip(times, texts, strict=True)) + ".")


# %%
fresh = jax.jit(lambda *args: step(*args, distances=by_broadcasting))  # not compiled yet
took = {}
for name, wait in {"first call": True, "later call, without waiting": False, "later call, with waiting": True}.items():
    begin = time.perf_counter()
    result = fresh(params, state, x, y)
    if wait:
        jax.block_until_ready(result)
    took[name] = 1e3 * (time.perf_counter() - begin)
    jax.block_until_ready(result)

# %%
took["median of 3 later calls"] = time_ms(lambda: fresh(params, state, x, y), repeats=3)
show_times(took, "Four times of the same step.")

# %% [markdown]
# The first bar includes the compilation. The second one measures only the submission of the work.
#
# ## Record a trace
# `with jax.profiler.trace(folder):` records when each operation inside the block starts and ends, on the host (where Python runs) and on the device. This **profiler trace** is not related to the tracing of lesson 02.
#
# `TraceAnnotation("load")` adds an event with a name of your own. `StepTraceAnnotation` adds a numbered event for an iteration.


# %%
def train(iterations, distances, read_every=1):
    p, s, losses = params, state, []
    for i in range(iterations):
        with jax.profiler.StepTraceAnnotation("train", step_num=i):
            with jax.profiler.TraceAnnotation("load"):
                x, y = load(i)
            with jax.profiler.TraceAnnotation("call"):
                p, s, value = step(p, s, x, y, distances=distances)
            losses.append(value)
            if (i + 1) % read_every == 0:
                with jax.profiler.TraceAnnotation("read loss"):
                    float(value)
    return jax.block_until_ready(losses)


# %%
logs = Path(tempfile.mkdtemp())
with jax.profiler.trace(logs / "first"):
    train(3, by_broadcasting)
for file in sorted(logs.rglob("*.gz")) + sorted(logs.rglob("*.pb")):
    print(f"{file.stat().st_size:8,} bytes  {file.relative_to(logs)}")

# %% [markdown]
# The step was already compiled, so these are typical iterations. Record only a few, because a long trace is slow to open.
#
# ## Open the trace in XProf
# **XProf** displays these files. `pip install tensorboard xprof` installs it as a plugin of TensorBoard. You usually start TensorBoard in a terminal with `tensorboard --logdir FOLDER`. Here, the helper `show_trace` starts it.

# %%
tensorboard = show_trace(logs, "first")

# %% [markdown]
# The viewer has more space if you open the printed address in a new tab. The picture shows it with the trace of another run.
#
# ![XProf in a browser tab. On the left are three menus. Sessions shows the recording, Tools shows Trace Viewer, and Hosts shows the computer. On the right is a timeline with a row of coloured bars for each thread. The row python contains train 0, train 1 and train 2 next to each other, and a long bar read loss below each of them. One read loss is selected, and the panel at the bottom shows its start and its duration.](../images/xprof.png)
#
# On the left, choose the recording under *Sessions*, the page *Trace Viewer* under *Tools*, and the computer under *Hosts*. If these menus cover the timeline, click outside them to close them.
#
# Our annotations are in the row `python`. On a CPU, the rows that begin with `tf_XLA` are the threads of the device. Zoom with `w` and `s`, and move with `a` and `d`. A click on a bar shows its duration.
#
# A later cell stops TensorBoard. If you ran all cells, run the `show_trace` cell again.
#
# ## Read the trace as data
# The viewer shows single events. To add up their times, read the `.trace.json.gz` file. Each of its events has a name, a start time `ts` and a duration `dur` in microseconds. An event of a compiled program also has the operation's name, `hlo_op`.
#
# The next two cells define helpers. It is enough to read their docstrings.


# %%
def events(run):
    """The events of the newest trace in the folder logs/run"""
    newest = max((logs / run).rglob("*.trace.json.gz"), key=lambda file: file.stat().st_mtime)
    found = json.loads(gzip.decompress(newest.read_bytes()))["traceEvents"]
    return [{"args": {}, **event} for event in found if event.get("ph") == "X"]  # "X": an event with a duration


def operation(event):
    """The operation of the compiled program that this event is about, or None"""
    return event["args"].get("hlo_op")


def total_ms(found, key):
    """Adds the durations of the events with the same key(event), longest first. Leaves out those with key None."""
    total = collections.Counter()
    for event in found:
        total[key(event)] += event["dur"] / 1e3
    return {name: ms for name, ms in total.most_common() if name is not None}


# %%
def draw_timeline(axes, found):
    """Draws our annotations in the upper row and the operations of the device in the lower row."""
    start = min(event["ts"] for event in found if event["name"] == "train")
    fills = {"load": plots.FILLS[0], "call": (plots.INK, ""), "read loss": plots.FILLS[2], "device": plots.FILLS[1]}
    for name, (fill, hatch) in fills.items():
        shown = [event for event in found if ("device" if operation(event) else event["name"]) == name]
        bars = [((event["ts"] - start) / 1e3, event["dur"] / 1e3) for event in shown]
        style = {"edgecolor": plots.INK, "linewidth": 0.4, "hatch": hatch} if name in ("load", "read loss") else {}
        axes.broken_barh(bars, (0.1 if name == "device" else 1.1, 0.8), facecolor=fill, label=name, **style)
    axes.set(yticks=[0.5, 1.5], yticklabels=["device", "Python"], xlim=(0, None), ylim=(0, 2))


# %%
found = events("first")
spent = total_ms(found, lambda event: "device" if operation(event) else event["name"])
parts = {part: round(spent[part] / 3, 1) for part in ("train", "load", "call", "read loss", "device")}
_, axes = plots.subplots(height=2)
draw_timeline(axes, found)
axes.set(xlabel="milliseconds")
axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
plots.show(
    "Timeline of three iterations. In each, Python loads for a short time and then reads the loss, which takes as long "
    f"as the device works. ms: {parts}"
)
print("milliseconds per iteration:", parts)

# %% [markdown]
# The device works while Python waits in `read loss`, and is idle while Python loads the next batch.

# %%
by_operation = total_ms(found, operation)
print(f"{len(found)} events, {len(by_operation)} operations, {sum(by_operation.values()) / 3:.1f} ms per iteration")
for name, ms in list(by_operation.items())[:4]:
    print(f"{ms / 3:8.1f} ms  {name}")

# %% [markdown] predict="profiling-unfinished"
# We record one call of the step and leave the `with` block without waiting for the result. What does the trace contain?
#
# - [x] the call, and few or none of the device's operations | Right. The recording ends with the `with` block, while the device is still working.
# - [ ] all operations, because JAX finishes its work | It does finish the work, but after the recording has ended.
# - [ ] nothing, because a step that is running raises an error | The profiler does not check whether work is unfinished.

# %%
for name, wait in {"waited": jax.block_until_ready, "not_waited": lambda result: result}.items():
    with jax.profiler.trace(logs / name):
        result = wait(step(params, state, x, y, distances=by_broadcasting))
    jax.block_until_ready(result)
    print(f"{name:11s}", sum(operation(event) is not None for event in events(name)), "operations in the trace")

# %% [markdown]
# ## From an operation to your code
# One operation takes most of the time. The compiler chose the names, in which `fusion` stands for several [fused](../docs/glossary.md#fusion) operations. The text of the compiled program states the origin of each operation as its `op_name`.

# %% [markdown] predict="profiling-hottest"
# In its forward pass, the encoder has 512 · (64 · 512 + 512 · 512 + 512 · 64) multiplications. The distances have 512 · 512 · 64, which is a tenth of that. Where is the slowest operation?
#
# - [ ] in the encoder | Most multiplications are in the encoder and its gradient, but they do not take the most time.
# - [ ] in the forward pass of the distances | The distances are slow, but another part of them is slower.
# - [x] in the backward pass of the distances | Right on a CPU. `grad` created this operation. It sums an array of shape (512, 512, 64).

# %%
compiled = step.lower(params, state, x, y, distances=by_broadcasting).compile()
origin = dict(re.findall(r'%(\S+) = .*op_name="([^"]*)"', compiled.as_text()))
for name, ms in list(by_operation.items())[:4]:
    print(f"{ms / 3:8.1f} ms  {name:28s} {origin.get(name)}")

# %% [markdown]
# An `op_name` lists the compiled function, the scopes and the primitive. In a gradient, the forward pass is marked `jvp(...)`, and the [backward pass](../docs/glossary.md#backward-pass) is marked `transpose(jvp(...))`. We can now add up the times of each scope.

# %%
scopes, kinds = ("encoder", "distances", "pairs", "optimizer"), ("backward pass", "all other operations")
by_scope = {kind: dict.fromkeys(scopes, 0.0) for kind in kinds}
for name, ms in by_operation.items():
    path = origin.get(name, "")
    if scope := re.search("|".join(scopes), path):
        by_scope[kinds[0] if "transpose" in path else kinds[1]][scope[0]] += ms / 3
_, axes = plots.subplots(height=2.3)
left = np.zeros(len(scopes))
for (kind, times), (fill, hatch) in zip(by_scope.items(), plots.FILLS, strict=False):
    axes.barh(scopes, list(times.values()), left=left, label=kind, color=fill, hatch=hatch, edgecolor=plots.INK)
    left += list(times.values())
axes.set(xlabel="milliseconds per iteration")
axes.invert_yaxis()
axes.legend(loc="lower right")
rounded = jax.tree.map(lambda ms: round(ms, 1), by_scope)
plots.show("Milliseconds per iteration in each scope. " + "; ".join(f"{kind}: {rounded[kind]}" for kind in kinds) + ".")

# %% [markdown]
# A fused operation has the `op_name` of only one of its parts, so these sums are approximate. XProf's page *HLO Op Stats* lists the time of each operation.
#
# ## Fix the largest part, then measure again
# In the backward pass of `by_broadcasting`, an array of 512 · 512 · 64 numbers is summed. The formula |a - b|² = |a|² + |b|² - 2 a·b avoids this array, because all products a·b are one matrix product. (For points that nearly coincide, the formula is less accurate, because it subtracts nearly equal numbers.)


# %%
def by_product(points):
    """Squared distances of all pairs of points: (n, d) -> (n, n)"""
    squares = jnp.sum(points**2, axis=1)
    return squares[:, None] + squares[None] - 2 * points @ points.T


points = np.random.default_rng(0).normal(size=(512, 64)).astype(np.float32)
print("largest difference:", jnp.abs(by_broadcasting(points) - by_product(points)).max())

# %% [markdown]
# We record the loop three times. The third time, it reads the loss only in every fifth iteration.

# %%
ways = {"broadcasting": (by_broadcasting, 1), "product": (by_product, 1), "product, read later": (by_product, 5)}
traces, per_iteration = {}, {}
for name, (distances, read_every) in ways.items():
    jax.block_until_ready(step(params, state, x, y, distances=distances))  # compiles
    with jax.profiler.trace(logs / name):
        losses = train(5, distances, read_every)
    traces[name] = events(name)
    spent = total_ms(traces[name], lambda event: "device" if operation(event) else event["name"])
    per_iteration[name] = {part: round(spent[part] / 5, 1) for part in ("train", "load", "read loss", "device")}
    print(f"{name:20s} ms per iteration: {per_iteration[name]}; loss {losses[-1]:.3f}")

# %%
_, panels = plots.subplots(3, height=4.9)
for axes, (name, found_events) in zip(panels, traces.items(), strict=True):
    draw_timeline(axes, found_events)
    axes.set_title(f"{name}: {per_iteration[name]['train']} ms per iteration", loc="left")
panels[0].legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1.25))
panels[2].set(xlabel="milliseconds, on a different scale in each panel")
plots.show(f"Timelines of five iterations in three ways. Milliseconds per iteration: {per_iteration}")

# %% [markdown]
# The loss is the same, and the slowest operation is gone. In the second panel, the device is idle during `load`, because Python loads only after reading the loss. In the third panel, Python waits only once, so the device works during `load`. At best, an iteration takes as long as the slower of loading and computing.

# %% [markdown]
# ## What a program costs before it runs
# Tracing, lowering and compiling need only the shapes and dtypes of the arguments, and so do the compiler's analyses. You can pass a `ShapeDtypeStruct` in place of each array.

# %% [markdown] predict="profiling-flops"
# The step with `by_product` is much faster. How many floating-point operations does it perform, compared with `by_broadcasting`?
#
# - [ ] a small fraction | The time of a program is not proportional to its number of operations.
# - [x] about as many | Right. Most of them are in the encoder. The two programs differ in the bytes that they read and write.
# - [ ] many more, because each pair needs a product of 64 terms | `by_broadcasting` also has 64 multiplications for each pair, and 64 subtractions.

# %%
shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, state, x, y))
for distances in (by_broadcasting, by_product):
    compiled = step.lower(*shapes, distances=distances).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    print(f"{distances.__name__}: {cost['flops'] / 1e9:.2f} Gflop, {cost['bytes accessed'] / 1e6:.0f} MB accessed")
    print(f"    arguments {memory.argument_size_in_bytes / 1e6:.1f} MB", end=", ")
    print(f"temporary memory {memory.temp_size_in_bytes / 1e6:.1f} MB")

# %% [markdown]
# The large array increases the bytes accessed and the temporary memory. Operations and bytes accessed are the compiler's estimates, and no number here predicts the time. `bytes accessed` adds what each operation reads and writes, so an array between two operations counts twice. The body of a loop counts only once (Deeper).
#
# The core ends here. Stop TensorBoard, and continue with a Deeper section or the [summary](#Summary).

# %%
tensorboard.terminate()
print("TensorBoard ended with", tensorboard.wait(20))

# %% [markdown]
# ## Deeper: common patterns in a trace
# Look for these patterns when you open the trace of a slow program.
#
# | in the trace | usual cause | remedy |
# |---|---|---|
# | gaps in the device's row | the device waits for Python, which loads data or reads a value | load ahead, read values less often |
# | a long first iteration | compilation | compile before you record |
# | compilation in later iterations | a shape or a static argument changes | find the change (03) |
# | many short operations | code outside `jit` | one larger compiled function |
# | one long operation | a part of your code | find it with `op_name` |
# | long operations such as `all-reduce` | communication between devices | another sharding (16) |

# %% [markdown]
# ## Deeper: from an operation to its line number
# The text of a compiled program begins with tables of files, functions and lines. The metadata of an operation contains a `stack_frame_id`, which is an index into these tables.


# %%
def source_line(text, name):
    """The innermost function and the line of the operation `name`, from the text of a compiled program"""
    frame = re.search(rf"%{re.escape(name)} = .*stack_frame_id=(\d+)", text)
    if frame is None:  # added by the compiler
        return "no function of yours", 0
    [place] = re.findall(rf"^{frame[1]} {{file_location_id=(\d+)", text, re.MULTILINE)
    [(key, line)] = re.findall(rf"^{place} {{.*function_name_id=(\d+) line=(\d+)", text, re.MULTILINE)
    functions = dict(re.findall(r'^(\d+) "(.*)"$', text.partition("FunctionNames")[2], re.MULTILINE))
    return functions[key], int(line)


# %%
slow_text = step.lower(*shapes, distances=by_broadcasting).compile().as_text()
for name, ms in list(by_operation.items())[:2]:
    function, number = source_line(slow_text, name)
    print(f"{ms / 3:8.1f} ms  {name:28s} line {number} of its cell, in {function}")

# %% [markdown]
# Both operations come from the line of `by_broadcasting` that computes the distances. The second operation belongs to the forward pass. `grad` derived the first one, which belongs to the backward pass. For a lowered function, `lowered.as_text(debug_info=True)` returns StableHLO with the same locations.

# %% [markdown]
# ## Deeper: compare JAX with NumPy
# A comparison is fair if both sides do the same work. NumPy computes in float64 by default and JAX in float32, so give both the same dtype. Transfer the data to the device before you measure, unless your program has to transfer it in every call.


# %%
def products_of_columns(x):
    """Runs in NumPy and in JAX: (n, d) -> (d, d)"""
    return x.T @ (x - x.mean(axis=0))


double = np.random.default_rng(1).normal(size=(1000, 1000))
single = double.astype(np.float32)
on_device, jitted = jax.device_put(single), jax.jit(products_of_columns)
labelled = {
    "NumPy, float64": lambda: products_of_columns(double),
    "NumPy, float32": lambda: products_of_columns(single),
    "JAX, float32": lambda: jitted(on_device),
    "JAX, float32, with transfer": lambda: jitted(jax.device_put(single)),
}
show_times(
    dict(zip(labelled, time_ms(*labelled.values(), repeats=7), strict=True)), "The same function in NumPy and in JAX."
)

# %% [markdown]
# The first two bars differ only because of the dtype. On a CPU, the transfer is at most a copy within the same memory. On an accelerator, it can take longer than the computation.

# %% [markdown]
# ## Deeper: other ways to record and view a trace
# By default, the trace also contains calls of Python functions, with `$` before the name. `ProfileOptions` turns this off. `host_tracer_level` selects how much of the work on the host is recorded, from 0 (nothing) to 3. On a CPU, the operations of your program are work on the host, so level 0 omits them.

# %%
light, no_host = jax.profiler.ProfileOptions(), jax.profiler.ProfileOptions()
light.python_tracer_level = no_host.python_tracer_level = 0
light.host_tracer_level = 1
no_host.host_tracer_level = 0
for name, chosen in {"default": None, "light": light, "no_host": no_host}.items():
    with jax.profiler.trace(logs / name, profiler_options=chosen, create_perfetto_trace=True):
        train(3, by_product)
    recorded = events(name)
    calls = sum(event["name"].startswith("$") for event in recorded)
    operations = sum(operation(event) is not None for event in recorded)
    print(f"{name:8s}{len(recorded):6,} events: {calls:5,} calls of Python functions, {operations:5,} operations")
print("files:", sorted(file.name for file in (logs / "light").rglob("*.*") if file.is_file()))

# %% [markdown]
# **To record.** `jax.profiler.start_trace` and `stop_trace` record the same trace without a `with` block. The decorator `jax.profiler.annotate_function` adds an event for each call of a function. For a closer look at a GPU, NVIDIA's Nsight Systems can also record a JAX program.
#
# **To view.** XProf also runs without TensorBoard, with the command `xprof FOLDER`. Its menu *Tools* contains other pages, such as *HLO Op Stats*, with the total time of each operation, and *Memory Profile*. Not all of them support JAX. The file `perfetto_trace.json.gz` can be opened at [ui.perfetto.dev](https://ui.perfetto.dev). With `create_perfetto_link=True`, JAX prints a link to that page and waits until you have opened it.

# %% [markdown]
# ## Deeper: profile a program that is already running
# You do not always know in advance when a program will be slow. `jax.profiler.start_server(port)` lets other processes request a trace at any time. In the next cell, another process records 200 ms of a loop with the command `python -m jax.collect_profile`.

# %%
import socket

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = jax.profiler.start_server(port)
request = f"-m jax.collect_profile {port} 200 --no_perfetto_link --log_dir={logs / 'served'}".split()
collector = subprocess.Popen([sys.executable, *request], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
iterations = 0
while collector.poll() is None:  # the program that is being profiled
    float(step(params, state, x, y, distances=by_product)[2])
    iterations += 1
jax.profiler.stop_server()
served = total_ms(events("served"), operation)
print(f"{iterations} iterations meanwhile; {sum(served.values()):.0f} ms of operations in the trace")

# %% [markdown]
# The button *Capture profile* of XProf requests a trace too. Some of its features need TensorFlow. If the program runs on another machine, start TensorBoard there. Then forward its port, as in `ssh -L 6006:localhost:6006 machine`, and open `localhost:6006` on your own computer. A program with several processes starts a server in each of them. The server accepts requests from other computers too, so use it only where a firewall protects the port.

# %% [markdown]
# ## Deeper: memory or arithmetic?
# A device can compute a certain number of operations per second, and its memory can move a certain number of bytes per second. The **arithmetic intensity** of a program decides which of the two limits it. This is the number of floating-point operations per byte that has to be moved. The next cell multiplies a matrix by 1, 4 and up to 1,024 columns.

# %%
matrix, columns = jnp.ones((2048, 2048)), np.array([1, 4, 16, 64, 256, 1024])
multiply = jax.jit(jnp.matmul)
others = [jnp.ones((2048, n)) for n in columns]
timed = [lambda other=other: multiply(matrix, other) for other in others]
operations = 2 * 2048 * 2048 * columns
moved = 4 * (2048 * 2048 + 2 * 2048 * columns)  # bytes of both arguments and of the result
intensity, rate = operations / moved, operations / np.array(time_ms(*timed, repeats=15)) / 1e6
bandwidth, peak = rate[0] / intensity[0], rate.max()
print(f"{bandwidth:.0f} GB/s and {peak:.0f} Gflop/s, so a byte takes as long as {peak / bandwidth:.0f} operations")

# %%
_, axes = plots.subplots(height=3)
axes.loglog([0.3, peak / bandwidth, 300], [0.3 * bandwidth, peak, peak], "-", color=plots.QUIET)
axes.plot(intensity, rate, "o")
for count, *place in zip(columns, intensity, rate, strict=True):
    axes.annotate(f"{count}", place, xytext=(6, -11), textcoords="offset points")
axes.set(xlabel="operations per byte (at each point, the number of columns)", ylabel="Gflop/s")
plots.show(
    f"A roofline. A line rises with {bandwidth:.0f} GB/s up to {peak / bandwidth:.0f} operations per byte, and is flat at "
    f"{peak:.0f} Gflop/s from there. The product with 1 column reaches {rate[0]:.0f} Gflop/s, with 1024 {rate[-1]:.0f}."
)

# %% [markdown]
# This plot is called a **roofline**. The product with one column uses each number of the matrix once, so it is limited by memory. The rising line is drawn through this point. A product with many columns uses each number often, and the fastest product gives the flat line.
#
# To the left of the bend, reduce the bytes that are moved for each operation, for example with a smaller dtype or a larger batch. To the right, reduce the operations. A point far below both lines has another cause, which a trace may show.

# %% [markdown]
# ## Deeper: loops count once
# The cost analysis counts the body of a loop once. The next cell compares the counted operations with those of the matrix products, for `scan` with 1, 4 and 16 iterations.

# %%
repeated = lambda w, x, n: jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=n)[0]
square = jax.ShapeDtypeStruct((64, 64), jnp.float32)
for n in (1, 4, 16):
    counted = jax.jit(repeated, static_argnums=2).lower(square, square, n).compile().cost_analysis()["flops"]
    print(f"n = {n:2d}: {counted:9,.0f} flops counted, {2 * n * 64**3:9,} in the products")

# %% [markdown]
# Multiply the count by the number of iterations, or analyse one iteration.

# %% [markdown]
# ## Deeper: programs larger than any device
# Because shapes are enough, you can analyse a program whose arrays do not fit on your machine.

# %%
begin = time.perf_counter()
large = jax.eval_shape(lambda: jnp.zeros((1024,) * 4))
print(f"{large.size * large.dtype.itemsize / 2**40} TiB described in {1e3 * (time.perf_counter() - begin):.1f} ms")
huge = jax.ShapeDtypeStruct((2**25, 2**25), jnp.float32)
program = jax.jit(lambda v: jnp.sum(2 * v)).lower(huge).compile()
print(f"arguments of the compiled program: {program.memory_analysis().argument_size_in_bytes / 2**50} PiB")
print_error(lambda: jnp.zeros((1024,) * 5))

# %% [markdown]
# The large program was compiled on this computer, and only the creation of a large array fails. So you can find out whether a model fits, and what its step costs, before you rent a machine. To include shardings, see *Deeper: memory during a step* in lesson 18.

# %% [markdown]
# ## Deeper: compile before the first request
# A service should not compile while a user waits (03). Compile **ahead of time** instead, with `lower(...).compile()`. The result is called an executable.

# %% [markdown] predict="profiling-ahead"
# `ready` was compiled ahead of time for 8 pictures. What does it do with 7?
#
# - [x] It raises an error. | Right. An executable never compiles, so an unexpected shape cannot cause a delay.
# - [ ] It compiles again, as `jit` does. | `jit` stores the Python function and can trace it again. An executable contains one compiled program.
# - [ ] It pads the batch to 8. | JAX never pads an argument, because the padding could change the result.

# %%
begin = time.perf_counter()
ready = jax.jit(encode).lower(shapes[0], jax.ShapeDtypeStruct((8, 64), jnp.float32)).compile()
print(f"compiled in {1e3 * (time.perf_counter() - begin):.0f} ms, without any data")
begin = time.perf_counter()
jax.block_until_ready(ready(params, images[:8]))
print(f"first request answered in {1e3 * (time.perf_counter() - begin):.1f} ms")
print_error(lambda: ready(params, images[:7]), length=400)

# %% [markdown]
# Compile one executable for each shape that the service accepts. The figure shows all stages and where executables are stored.
#
# ![From a Python function to a run in four steps. Tracing gives a jaxpr. Lowering gives StableHLO. Compiling gives an executable, with op_name in its text, cost_analysis and memory_analysis. Only the call needs data, and only the trace of a run shows times. Below, where an executable is stored. jax.jit stores it in this process and compiles again for a new shape. Your own compiled object rejects other shapes. The persistent cache is a folder for later processes.](../images/profiling_stages.svg)
#
# `lower` first calls `trace`, which you can also call directly. `trace` returns an object with the jaxpr and the shapes of the result.

# %%
power = jax.jit(lambda x, n: x**n, static_argnames="n")
traced = power.trace(jax.ShapeDtypeStruct((3,), jnp.float32), n=3)
print(traced.jaxpr)
print(traced.out_info)
cube = traced.lower().compile()
print(cube(jnp.arange(3.0)))

# %% [markdown]
# A static argument needs its value when the function is traced. The value becomes part of the program, so the executable does not take this argument. Executables also reject arguments of other dtypes, and `vmap` or `grad` cannot transform an executable.

# %%
print_error(lambda: cube(jnp.arange(3.0), n=3), length=190)
print_error(lambda: cube(jnp.arange(3)), length=330)
print_error(lambda: jax.vmap(cube)(jnp.ones((2, 3))), length=150)

# %% [markdown]
# So transform a function before you compile it, as in `jax.jit(jax.vmap(f)).lower(...)`.
#
# The texts and analyses are meant for inspection and debugging. They can be missing on some devices, and their contents can change with the version of JAX. An executable exists only in its own process. To store a program for other machines, use `jax.export`.

# %% [markdown]
# ## Deeper: options and metadata for the compiler
# `jax.jit(f, compiler_options={...})` passes options of XLA to the compiler for one program. `compile(compiler_options={...})` does the same for a lowered program, and the environment variable `XLA_FLAGS` sets options for the whole process. The next cell turns off the pass of the CPU's compiler that fuses operations.


# %%
def chain(x):
    for _ in range(6):
        x = 2 * jnp.tanh(x) + jnp.sin(x)
    return x


numbers = jnp.linspace(0, 1, 1_000_000)
for name, options in {"default": None, "no fusion": {"xla_disable_hlo_passes": "fusion"}}.items():
    program = jax.jit(chain, compiler_options=options)
    compiled = program.lower(numbers).compile()
    took = time_ms(lambda program=program: program(numbers))
    temporary = compiled.memory_analysis().temp_size_in_bytes / 1e6
    print(f"{name:10s} {compiled.as_text().count(' fusion('):3d} fusions  {temporary:4.1f} MB temporary  {took:.1f} ms")
print_error(lambda: jax.jit(chain, compiler_options={"xla_unknown": True})(numbers))

# %% [markdown]
# Without fusion, intermediate arrays are written to memory. So these options are useful for experiments, such as finding the pass that makes a program slow or wrong. On GPUs and TPUs, some options also control how communication overlaps with computation. Most of them can change with any version of XLA.
#
# `set_xla_metadata` (experimental) attaches names and values of your choice to operations. A `named_scope` changes only the `op_name`. Metadata are separate entries, which passes of the compiler and your own tools can read.

# %%
from jax.experimental.xla_metadata import set_xla_metadata


def tagged(x):
    with set_xla_metadata(phase="encoder"):
        hidden = jnp.sin(x)
    return jnp.cos(hidden)


text = jax.jit(tagged).lower(numbers).compile().as_text()
for line in text.splitlines():
    if "frontend_attributes" in line and " = " in line:
        print(line.partition(", metadata")[0].strip())

# %% [markdown]
# ## Deeper: the persistent cache
# A new process starts without compiled programs. The **persistent cache** stores them in a folder. The key of each entry includes the program, the compile options, the version of XLA and the kind of device. The next cell runs the same script in two processes, with an empty folder as the cache.

# %%
import os

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
env = os.environ | {
    "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # also store programs that compile in less than a second
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this notebook may already use most of the device's memory
}

# %%
for process in ("first", "second"):
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    print(f"{process} process: compiled in {done.stdout.strip()}, {len(list(cache.iterdir()))} files in the cache")

# %% [markdown]
# In your own program, call `jax.config.update("jax_compilation_cache_dir", folder)` before anything is compiled. JAX runs the programs in this folder, so other users must not be able to write to it.

# %% [markdown]
# ## Deeper: what is stored on the device?
# An array stays on the device as long as a Python object refers to it. `jax.live_arrays()` lists all these arrays. The function below should return losses. But `step` returns a tuple, so the list also contains the parameters and the optimizer state of each iteration.


# %%
def stored_mb():
    return sum(array.nbytes for array in jax.live_arrays()) / 1e6


def losses_with_leak(iterations):
    return [step(params, state, x, y, distances=by_product) for _ in range(iterations)]


before = stored_mb()
jax.profiler.save_device_memory_profile(logs / "before.prof")
history = losses_with_leak(10)
jax.profiler.save_device_memory_profile(logs / "after.prof")
print(f"{before:.1f} MB before, {stored_mb():.1f} MB after ten iterations")
print("the profile names the function:", b"losses_with_leak" in gzip.decompress((logs / "after.prof").read_bytes()))

# %% [markdown]
# A **device memory profile** lists the arrays together with the Python functions that created them. The program [`pprof`](https://github.com/google/pprof), which Go includes as `go tool pprof`, displays it. The command `pprof -top -diff_base before.prof after.prof` shows which functions created the additional arrays, so it helps you find a leak.
#
# The profile shows the memory at one moment and treats a compiled function as a whole. For the temporary memory of a compiled program, use `memory_analysis` or the page *Memory Viewer* of XProf. On accelerators, `device.memory_stats()` reports the peak memory in use. Lesson 15 covers memory in training.

# %% [markdown]
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.xla_computation(f)(x)` | `jax.jit(f).lower(x)` and its `as_text()` |
# | `compiled.cost_analysis()[0]` | `compiled.cost_analysis()`, which returns a dict |
# | `compilation_cache.initialize_cache(path)`, `set_cache_dir(path)` | the setting `jax_compilation_cache_dir` |
# | the TensorBoard plugin `tensorboard_plugin_profile` | the package `xprof`, with the same page in TensorBoard |

# %% [markdown]
# ## Summary
#
# | you want to know | you use |
# |---|---|
# | how long a call takes | a first call, `block_until_ready`, and the median of several calls |
# | where the time goes | `with jax.profiler.trace(folder):` around a few compiled iterations, and a wait at the end |
# | which line of the loop takes it | `TraceAnnotation("load")`, `StepTraceAnnotation("train", step_num=i)` |
# | which part of your code an operation comes from | its `op_name` in `compiled.as_text()`, with names from `jax.named_scope` |
# | what a program costs | `lower` with shapes, `compile()`, then `cost_analysis()`; loops count once |
# | whether a program fits in memory | `memory_analysis()` |
# | whether memory or arithmetic limits it (Deeper) | its operations per byte, compared with those of the device |
# | how to avoid compilation during a request (Deeper) | executables compiled ahead of time, one for each shape |
#
# Continue with [the exercises](../exercises/14_profiling/14_profiling.ipynb).
