# %% [markdown]
# # 23 · Exercises: escape hatches
# Run the setup cell first. In each exercise, complete the answer cell, run it, and then run the checks below it. Hidden checks run when your notebook is graded, and **Judged** states what they examine. Open one hint at a time.
#
# The setup requests eight devices and compiles the C++ file `norms.cc`, which is beside this notebook, with g++. It takes a few seconds. Without g++, the setup prints a sentence, and the checks of the two exercises about the FFI are skipped. They are also skipped on accelerators, because the handlers are written for CPUs.
#
# Programs with callbacks or FFI calls cannot be exported, so the checks call your functions in your process. A *host function* is a function that runs in Python, outside of the compiled program. Types are written as JAX prints them, so `float32[n@data,d]` is an array of shape (n, d) whose first axis is partitioned along the mesh axis `data`. All meshes have Explicit axes, and each check sets its own mesh.

# %% setup
from grader.checks import ask, case, compare, devices, inputs, native, require, skip
from grader.checks.devices import entries_of

devices.start(8)  # before JAX is first used

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from grader.learning.inspection import list_collectives

norms = native.load("norms.cc")  # None without g++
if norms is not None:
    for of_dtype in ("float32", "bfloat16"):
        for target in (f"group_norm_{of_dtype}", f"group_norm_grad_{of_dtype}"):
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(norms, target)), platform="cpu")
    jax.ffi.register_ffi_target("row_squares", jax.ffi.pycapsule(norms.row_squares), platform="cpu")


def need_ffi():
    """Skips a check where the handlers cannot run."""
    if norms is None:
        skip("This check needs the handlers of norms.cc, and there is no g++ on this machine to compile them.")
    if jax.default_backend() != "cpu":
        skip("This check needs handlers that run on CPUs, and the default device is an accelerator.")


def grid(*sizes, names=("data", "model")):
    """A mesh with Explicit axes, such as grid(4, 2) or grid(8, names=("data",))."""
    return devices.mesh(sizes, names, explicit=True)


def place(mesh, array, *entries):
    """The NumPy array on the mesh, with the spec P(*entries)."""
    return jax.device_put(array, NamedSharding(mesh, P(*entries)))


def custom_calls(function, *args):
    """The number of FFI calls in the program of function(*args) before it is compiled, for each target."""
    text, names = jax.jit(function).lower(*args).as_text(), ("group_norm_grad", "group_norm", "row_squares")
    found = [part.split("(")[0] for part in text.split("stablehlo.custom_call @")[1:]]
    return {name: sum(one.removesuffix("_float32") == name for one in found) for name in names}


def tide_table(hours):
    """An example of a host function. It takes hours (...) and returns float64 (..., 2): height and current."""
    hours = np.asarray(hours) % 12
    heights = np.interp(hours, [0, 3, 6, 9, 12], [1, 2, 1, 0, 1])
    return np.stack([heights, np.interp(hours, [0, 3, 6, 9, 12], [2, 0, -2, 0, 2])], axis=-1)


def loss(w, batch):
    """Mean squared distance of the rows of batch (b, d) from w (d,)."""
    return jnp.mean((batch - w) ** 2)


host_calls = []  # the names of the two host functions below, in the order of their calls


def host_energy(x, charge):
    """The energy of n charges on a line. x (..., n), charge (..., n) -> float64 (...). Leading axes are broadcast."""
    x, charge = np.asarray(x, np.float64), np.asarray(charge, np.float64)
    host_calls.append("energy")
    near = np.exp(-((x[..., :, None] - x[..., None, :]) ** 2))
    return (charge[..., :, None] * charge[..., None, :] * near).sum((-2, -1)) / 2


def host_forces(x, charge):
    """The forces on the charges, MINUS the gradient of the energy. x, charge (..., n) -> float64 (..., n)."""
    x, charge = np.asarray(x, np.float64), np.asarray(charge, np.float64)
    host_calls.append("forces")
    distance = x[..., :, None] - x[..., None, :]
    pairs = charge[..., :, None] * charge[..., None, :] * distance * np.exp(-(distance**2))
    return 2 * pairs.sum(-1)


def norm_by_hand(x, eps, groups, dy=None):
    """GroupNorm of NumPy x (..., n) in float64, and with dy (..., n) also the gradient with respect to x."""
    shape = (*x.shape[:-1], groups, x.shape[-1] // groups)
    x = x.astype(np.float64).reshape(shape)
    scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    if dy is None:
        return (x * scale).reshape(*shape[:-2], -1)
    dy = dy.astype(np.float64).reshape(shape)
    dx = scale * (dy - x * scale**2 * (dy * x).mean(-1, keepdims=True))
    return (x * scale).reshape(*shape[:-2], -1), dx.reshape(*shape[:-2], -1)


# %% [markdown] task="hatches-tides" stars=1 minutes=8 skills="03_jit"
# ## A table on the host
# **Goal.** A harbour model needs the tides at given hours, and the only implementation is a NumPy function. Call it from a compiled program. Two lines are missing.
#
# **Signature.** `tides(table, hours)`. `hours` is an array of any shape, with dtype float32 or int32. `table` is a host function. It takes `hours` unchanged, with their shape `(...)` and dtype, and returns a float64 NumPy array with shape `(..., 2)`, which contains height and current. `tides` returns both as a float32 array with shape `(..., 2)`.
#
# **Example.** The setup cell contains such a function. For `tide_table` and the hours [0, 3], the result is [[1, 2], [2, 0]].
#
# **Judged.** The results of `jax.jit(lambda hours: tides(table, hours))`, for other tables, several shapes and both dtypes. **Not judged.** `vmap`, gradients and speed.
#
# <details><summary>Hint 1 · a question</summary>
#
# While JAX traces the function, the table is not called. How does JAX know the shape and the dtype of its result?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.ShapeDtypeStruct(shape, dtype)` describes an array. The shape has one axis more than `hours`. The dtype does not depend on that of `hours`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.pure_callback(function, result_type, *args)` calls `function(*args)` on the host while the program runs. JAX converts the float64 result to float32.
#
# </details>


# %% answer="hatches-tides"
def tides(table, hours):
    """Calls the host function table with hours (...). Returns float32 (..., 2)."""
    ### BEGIN SOLUTION
    result_type = jax.ShapeDtypeStruct((*hours.shape, 2), jnp.float32)
    return jax.pure_callback(table, result_type, hours)
    ### END SOLUTION


# %% check="hatches-tides" name="example" points=1
"""The example, and the hours of a whole day."""


def probe_example(hours):
    return jax.jit(lambda hours: tides(tide_table, hours))(hours)


hours = np.array([0, 3], np.float32)
compare(ask(probe_example, hours), np.array([[1, 2], [2, 0]], np.float32), label="the tides at 0 and 3 hours")
hours = np.arange(24, dtype=np.float32)
compare(ask(probe_example, hours), tide_table(hours).astype(np.float32), label="the tides of a day")

# %% hidden="hatches-tides" name="values" points=2
"""Other tables, shapes and dtypes, and several calls of one compiled function."""


def probe_table(hours, heights, currents):
    shapes = []

    def table(hours):
        shapes.append(np.shape(hours))
        hours = np.asarray(hours, np.float64) % 40
        columns = [np.interp(hours, [0, 10, 20, 30, 40], column) for column in (heights, currents)]
        return np.stack(columns, axis=-1)

    compiled = jax.jit(lambda hours: tides(table, hours))
    return jax.block_until_ready((compiled(hours[0]), compiled(hours[1]))), shapes


rng = inputs.rng()
for shape in ((5,), (), (3, 4), (2, 1, 3)):
    for dtype in (np.int32, np.float32):
        hours = rng.uniform(0, 40, size=(2, *shape)).astype(dtype)
        if dtype == np.int32:  # float32 has no room for the digits of these numbers
            hours += 40 * 10**7
        columns = rng.normal(size=(2, 5))
        wanted = [np.interp(hours.astype(np.float64) % 40, [0, 10, 20, 30, 40], column) for column in columns]
        wanted = np.stack(wanted, axis=-1).astype(np.float32)
        with case(f"for hours of shape {shape} and dtype {hours.dtype}"):
            (first, second), shapes = ask(probe_table, hours, *columns)
            compare(first, wanted[0], label="the result")
            compare(second, wanted[1], label="the result of a second call")
            require(all(tuple(one) == shape for one in shapes), "the table is called with hours of another shape.")

# %% [markdown] why="hatches-tides"
# JAX needs the type of the result while it traces, because the host function runs later, and no transformation can look inside it. The promise of `pure_callback` is that equal arguments give equal results, so XLA may skip, repeat or reorder calls. **Next:** What would happen with a table that also counts how often it is called?


# %% wrong="hatches-tides" because="Passes the hours to the table as a vector. The task promises the table the shape of `hours`."
def tides(table, hours):
    result_type = jax.ShapeDtypeStruct((hours.size, 2), jnp.float32)
    return jax.pure_callback(table, result_type, hours.ravel()).reshape(*hours.shape, 2)


# %% wrong="hatches-tides" because="Calls the NumPy function while JAX traces, when there are no values yet."
def tides(table, hours):
    return jnp.asarray(table(hours), jnp.float32)


# %% wrong="hatches-tides" because="Calls the NumPy function while JAX traces, when there are no values yet."
def tides(table, hours):
    return jnp.asarray(table(np.asarray(hours)), dtype=jnp.float32)


# %% wrong="hatches-tides" because="Declares the shape of the argument. The result has one axis more."
def tides(table, hours):
    return jax.pure_callback(table, jax.ShapeDtypeStruct(hours.shape, jnp.float32), hours)


# %% wrong="hatches-tides" because="Declares the dtype of the argument, which is an integer for int32 hours."
def tides(table, hours):
    return jax.pure_callback(table, jax.ShapeDtypeStruct((*hours.shape, 2), hours.dtype), hours)


# %% wrong="hatches-tides" because="Declares the dtype of the argument, which is an integer for int32 hours."
def tides(table, hours):
    kind = jax.ShapeDtypeStruct((*hours.shape, 2), hours.dtype)
    return jax.pure_callback(lambda values: np.asarray(table(values)).astype(kind.dtype), kind, hours)


# %% wrong="hatches-tides" because="Declares the dtype of the table. JAX has no float64 unless it is enabled."
def tides(table, hours):
    return jax.pure_callback(table, jax.ShapeDtypeStruct((*hours.shape, 2), np.float64), hours)


# %% wrong="hatches-tides" because="Declares the two values as the first axis, but the table returns them as the last one."
def tides(table, hours):
    return jax.pure_callback(table, jax.ShapeDtypeStruct((2, *hours.shape), jnp.float32), hours)


# %% wrong="hatches-tides" because="Declares the two values as the first axis, but the table returns them as the last one."
def tides(table, hours):
    both = jax.ShapeDtypeStruct(hours.shape, jnp.float32)
    height, current = jax.pure_callback(table, (both, both), hours)
    return jnp.stack([height, current], axis=-1)


# %% wrong="hatches-tides" because="Assumes that `hours` has one axis."
def tides(table, hours):
    return jax.pure_callback(table, jax.ShapeDtypeStruct((len(hours), 2), jnp.float32), hours)


# %% wrong="hatches-tides" because="Assumes that `hours` has one axis."
def tides(table, hours):
    return jax.pure_callback(table, jax.ShapeDtypeStruct((hours.shape[0], 2), jnp.float32), hours)


# %% wrong="hatches-tides" because="Uses `jax.debug.callback`, which returns nothing to the program."
def tides(table, hours):
    return jax.debug.callback(table, hours)


# %% wrong="hatches-tides" because="Rounds the hours to integers before the call."
def tides(table, hours):
    result_type = jax.ShapeDtypeStruct((*hours.shape, 2), jnp.float32)
    return jax.pure_callback(table, result_type, hours.astype(jnp.int32))


# %% wrong="hatches-tides" because="Calls the table for whole hours while JAX traces, and looks up the results. Other hours are not in it."
def tides(table, hours):
    whole_hours = jnp.asarray(table(np.arange(24)), jnp.float32)
    return whole_hours[hours.astype(jnp.int32) % 24]


# %% wrong="hatches-tides" because="Converts the hours to float32, which rounds large integers."
def tides(table, hours):
    result_type = jax.ShapeDtypeStruct((*hours.shape, 2), jnp.float32)
    return jax.pure_callback(table, result_type, hours.astype(jnp.float32))


# %% wrong="hatches-tides" because="Loops over the first axis of `hours`. A scalar has no axis."
def tides(table, hours):
    def host(hours):
        return np.stack([table(hour) for hour in np.asarray(hours)]).astype(np.float32)

    return jax.pure_callback(host, jax.ShapeDtypeStruct((*hours.shape, 2), jnp.float32), hours)


# %% wrong="hatches-tides" because="Calls the table for whole hours while JAX traces, and looks up the results. Other hours are not in it."
def tides(table, hours):
    whole = np.arange(25)
    samples = np.asarray(table(whole), np.float32)
    columns = [jnp.interp(hours.astype(jnp.float32), whole, samples[:, i]) for i in range(2)]
    return jnp.stack(columns, axis=-1)


# %% right="hatches-tides"
def tides(table, hours):
    host = lambda hours: table(np.asarray(hours)).astype(np.float32)
    return jax.pure_callback(host, jax.ShapeDtypeStruct((*hours.shape, 2), np.float32), hours)


# %% right="hatches-tides"
def tides(table, hours):
    one = jax.ShapeDtypeStruct(hours.shape, jnp.float32)

    def host(hours):
        result = table(hours)
        return {"height": result[..., 0], "current": result[..., 1]}

    result = io_callback(host, {"height": one, "current": one}, hours)
    return jnp.stack([result["height"], result["current"]], axis=-1)


# %% [markdown] task="hatches-log" stars=2 minutes=15 skills="hatches-tides,04_grad,08_control_flow"
# ## A loop that reads and writes on the host
# **Goal.** Train in one compiled program. In every step, the program reads a batch from the host and appends a line to a log on the host.
#
# **Signature.** `train(w, steps, read, log)`. `w` is float32 `(d,)`, and `steps` is a Python int. `read()` is a host function without arguments. It returns the next batch as a float32 NumPy array with shape `(4, d)`. `log(step, value)` is a host function that returns nothing. `train` returns the final `w`.
#
# For each step i = 0, 1, …, `steps` - 1, your program reads a batch, computes `loss(w, batch)` of the setup and its gradient, logs i and this loss, and replaces `w` by `w - 0.1 * gradient`.
#
# **Example.** If all batches are ones, `w` is 0 with d = 1, and `steps` is 2, the log contains (0, 1.0) and (1, 0.64). The result is [0.36].
#
# **Judged.** The result and the log of the compiled function, in the first call and in later calls. `read` returns the batch that follows the last logged step, so the program must log a step before it reads the next batch. JAX must guarantee the order of the calls. Values that you pass from one callback to the next do not count as such a guarantee (this check is observed). **Not judged.** Whether you use `scan`, how many callbacks you use, and speed. One callback may log a step and read the next batch.
#
# <details><summary>Hint 1 · a question</summary>
#
# `read` returns another batch in each call, although its arguments are always the same. Which kind of callback allows this?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `io_callback(function, result_type, *args, ordered=True)` calls a host function each time, in the order of the program. The setup cell imports it. For a function that returns nothing, the result type is None.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Write a function `step(w, i)` for `jax.lax.scan` over `jnp.arange(steps)`. It reads with the result type `jax.ShapeDtypeStruct((4, *w.shape), w.dtype)`, calls `jax.value_and_grad(loss)`, and logs with the arguments `i` and the loss. The callbacks are outside of the function that you differentiate.
#
# </details>


# %% answer="hatches-log" timeout=15
def train(w, steps, read, log):
    """Takes w float32 (d,), reads a batch and logs a line in each step. Returns the final w."""
    ### BEGIN SOLUTION
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type, ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]
    ### END SOLUTION


# %% check="hatches-log" name="example" points=1
"""The example, and batches that are not all equal, in two calls of one compiled function."""


def probe_ones(w):
    lines = []
    log = lambda step, value: lines.append((int(step), float(value)))
    result = jax.jit(lambda w: train(w, 2, lambda: np.ones((4, 1), np.float32), log))(w)
    jax.effects_barrier()
    return result, lines


result, lines = ask(probe_ones, np.zeros(1, np.float32))
compare(result, np.array([0.36], np.float32), label="the result")
require([step for step, _ in lines] == [0, 1], f"The log has the steps {[step for step, _ in lines]}; expected [0, 1].")
compare(np.array([value for _, value in lines], np.float32), np.array([1, 0.64], np.float32), label="the logged losses")


def probe_numbers(w):
    lines = []
    read = lambda: np.full((4, 1), len(lines), np.float32)  # the number of lines in the log
    compiled = jax.jit(lambda w: train(w, 2, read, lambda step, value: lines.append(float(value))))
    for _ in range(2):
        jax.block_until_ready(compiled(w))
        jax.effects_barrier()
    return np.array(lines, np.float32)


wanted = np.array([0, 1, 4, 2.6**2], np.float32)
compare(ask(probe_numbers, np.zeros(1, np.float32)), wanted, label="the losses if batch i consists of i, in two calls")

# %% hidden="hatches-log" name="values" points=2
"""Other batches, in the first call and in later calls of one compiled function."""


def probe_batches(w, batches, steps):
    lines = []
    read = lambda: batches[min(len(lines), len(batches) - 1)]  # the batch after the last logged step
    log = lambda step, value: lines.append((int(step), float(value)))
    compiled = jax.jit(lambda w: train(w, steps, read, log))
    results = []
    for _ in range(len(batches) // steps):
        results.append(compiled(w))
        jax.effects_barrier()
    return results, lines


rng = inputs.rng()
for steps, d in ((3, 2), (1, 3), (int(rng.integers(4, 7)), 5)):
    w, batches = rng.normal(size=d).astype(np.float32), rng.normal(size=(2 * steps, 4, d)).astype(np.float32)
    wanted, values = [], []
    for call in range(2):
        now = w.astype(np.float64)
        for batch in batches[call * steps : (call + 1) * steps]:
            values.append(((batch - now) ** 2).mean())
            now = now - 0.1 * 2 * (now - batch).sum(0) / batch.size
        wanted.append(now.astype(np.float32))
    with case(f"with {steps} steps"):
        results, lines = ask(probe_batches, w, batches, steps)
        require(len(lines) == 2 * steps, "the log of two calls does not have one line for each step.")
        found = [step for step, _ in lines]
        require(found == 2 * list(range(steps)), "the steps in the log are not 0, 1, 2 and so on in each call.")
        compare(np.array([v for _, v in lines], np.float32), np.array(values, np.float32), label="the logged losses")
        compare(results[0], wanted[0], label="the result")
        compare(results[1], wanted[1], label="the result of the second call")

# %% hidden="hatches-log" name="ordered" points=1 observed=true
"""The order of the callbacks is guaranteed."""


def probe_effects(w):
    lines, reads = [], []
    read = lambda: (reads.append(1), np.ones((4, len(w)), np.float32))[1]
    traced = jax.jit(lambda w: train(w, 3, read, lambda step, value: lines.append(int(step)))).trace(w)
    result = traced.lower().compile()(w)
    jax.effects_barrier()
    effects = sorted({type(effect).__name__ for effect in traced.jaxpr.effects})
    return effects, "pure_callback[" in str(traced.jaxpr), lines, len(reads), result


w = inputs.rng().normal(size=3).astype(np.float32)
effects, pure, lines, reads, result = ask(probe_effects, w)
require(lines == [0, 1, 2], "The log of three steps does not contain the steps 0, 1 and 2.")
compare(result, (1 - (1 - w) * (1 - 0.2 / 3) ** 3).astype(np.float32), label="the result for batches of ones")
require(not pure, "The program has a `pure_callback`, which JAX may call once for all steps, or in any order.")
chains = "The program has ordered debug callbacks. JAX does not order them relative to io callbacks."
require("OrderedDebugEffect" not in effects, chains)
require(effects == ["OrderedIOEffect"], "The program has callbacks whose order is not guaranteed, or none at all.")
require(reads == 3, f"For three steps, `read` is called {reads} times. It should be called once in each step.")

# %% [markdown] why="hatches-log"
# An ordered `io_callback` takes part in a chain of tokens that the compiled program passes from call to call, also between iterations. So each call starts after the one before it has ended. The price is that the program waits for Python twice in each step. **Next:** Why are ordered callbacks impossible under `vmap`, and what would the log of a vmapped `train` contain?


# %% wrong="hatches-log" because="Calls `read` while JAX traces, so the program contains a single batch as a constant."
def train(w, steps, read, log):
    def step(w, i):
        value, gradient = jax.value_and_grad(loss)(w, jnp.asarray(read()))
        io_callback(log, None, i, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Calls `log` while JAX traces, with tracers instead of values."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type, ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        log(i, value)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Logs with `pure_callback` and does not use its result, so the call is removed."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type, ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        jax.pure_callback(lambda i, value: log(i, value) or np.float32(0), jax.ShapeDtypeStruct((), w.dtype), i, value)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Reads all batches before the loop, so they are read before any step is logged."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)
    batches = jnp.stack([io_callback(read, batch_type, ordered=True) for _ in range(steps)])

    def step(w, item):
        i, batch = item
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, (jnp.arange(steps), batches))[0]


# %% wrong="hatches-log" because="Reads one batch before the loop and uses it in every step."
def train(w, steps, read, log):
    batch = io_callback(read, jax.ShapeDtypeStruct((4, *w.shape), jnp.float32), ordered=True)

    def step(w, i):
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="The callbacks are unordered. They happen to run in order here, but JAX does not guarantee it."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="The callbacks are unordered. They happen to run in order here, but JAX does not guarantee it."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type, ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        jax.debug.callback(log, i, value)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Reads with `pure_callback`, which promises JAX that equal arguments give equal results."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = jax.pure_callback(lambda i: read(), batch_type, i)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Reads with `pure_callback`, which promises JAX that equal arguments give equal results."
def train(w, steps, read, log):
    def step(w, i):
        batch = jax.pure_callback(read, jax.ShapeDtypeStruct((4, *w.shape), w.dtype))
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Logs with an ordered `jax.debug.callback`. Its order is a chain of its own, and JAX does not order it relative to the reads."
def train(w, steps, read, log):
    def step(w, i):
        batch = io_callback(read, jax.ShapeDtypeStruct((4, *w.shape), w.dtype), ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        jax.debug.callback(log, i, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Puts the callbacks inside the differentiated function. `io_callback` has no derivative."
def train(w, steps, read, log):
    def step(w, i):
        def logged(w):
            batch = io_callback(read, jax.ShapeDtypeStruct((4, *w.shape), jnp.float32), ordered=True)
            value = loss(w, batch)
            io_callback(log, None, i, value, ordered=True)
            return value

        return w - 0.1 * jax.grad(logged)(w), None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Logs the loss after the update instead of the loss before it."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type, ordered=True)
        w = w - 0.1 * jax.grad(loss)(w, batch)
        io_callback(log, None, i, loss(w, batch), ordered=True)
        return w, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Counts the steps from 1."
def train(w, steps, read, log):
    batch_type = jax.ShapeDtypeStruct((4, *w.shape), jnp.float32)

    def step(w, i):
        batch = io_callback(read, batch_type, ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i + 1, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, jnp.arange(steps))[0]


# %% wrong="hatches-log" because="Counts the steps on the host, so the count continues in the next call of the compiled function."
def train(w, steps, read, log):
    done = []

    def write(value):
        log(len(done), value)
        done.append(value)

    def step(w, _):
        batch = io_callback(read, jax.ShapeDtypeStruct((4, *w.shape), w.dtype), ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(write, None, value, ordered=True)
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, length=steps)[0]


# %% wrong="hatches-log" because="Reads the next batch at the end of each step, also after the last step."
def train(w, steps, read, log):
    next_batch = lambda: io_callback(read, jax.ShapeDtypeStruct((4, *w.shape), w.dtype), ordered=True)

    def step(carry, i):
        w, batch = carry
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(log, None, i, value, ordered=True)
        return (w - 0.1 * gradient, next_batch()), None

    return jax.lax.scan(step, (w, next_batch()), jnp.arange(steps))[0][0]


# %% wrong="hatches-log" because="Writes the log after the loop, so no step is logged before the next batch is read."
def train(w, steps, read, log):
    def step(w, i):
        batch = io_callback(read, jax.ShapeDtypeStruct((4, *w.shape), w.dtype), ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        return w - 0.1 * gradient, value

    def write(values):
        for i, value in enumerate(np.asarray(values)):
            log(i, value)

    w, values = jax.lax.scan(step, w, jnp.arange(steps))
    io_callback(write, None, values, ordered=True)
    return w


# %% right="hatches-log"
def train(w, steps, read, log):
    for i in range(steps):
        batch = io_callback(lambda: np.asarray(read()), jax.ShapeDtypeStruct((4, len(w)), w.dtype), ordered=True)
        value, gradient = jax.value_and_grad(loss)(w, batch)
        io_callback(lambda i, value: log(i, value), None, i, value, ordered=True)
        w = w - 0.1 * gradient
    return w


# %% right="hatches-log"
def train(w, steps, read, log):
    types = jax.ShapeDtypeStruct((4, *w.shape), w.dtype)

    def body(i, w):
        batch = io_callback(read, types, ordered=True)
        gradient = 2 * (w - batch).sum(0) / batch.size
        io_callback(log, None, i, jnp.mean((batch - w) ** 2), ordered=True)
        return w - 0.1 * gradient

    return jax.lax.fori_loop(0, steps, body, w)


# %% [markdown] task="hatches-simulator" stars=2 minutes=20 skills="hatches-tides,04_grad,05_vmap"
# ## A simulator with gradients
# **Goal.** A simulator on the host computes the energy of charges on a line, and the forces on them. Make it a function that JAX can compile, batch and differentiate.
#
# **Signature.** `energy(x, charge)` takes positions `x` and charges `charge`, both float32 `(n,)`, and returns a float32 scalar. The setup cell contains the host functions `host_energy(x, charge)`, which returns `(...)`, and `host_forces(x, charge)`, which returns `(..., n)`. Both take arrays of shape `(..., n)`, whose leading axes are broadcast, and return float64 arrays. A force is **minus** the derivative of the energy with respect to a position.
#
# **Example.** Two charges of 1 at the positions 0 and 1 have the energy 1.3679. The gradient with respect to `x` is [0.7358, -0.7358].
#
# **Judged.** The values, the gradients with respect to `x`, and `jax.jvp` in any direction of `x`. All are compiled, and also batched with `vmap` over either argument or both. The derivative with respect to `charge` is 0, because the simulator does not compute it. Under one `vmap`, the energies of a whole batch take one call of `host_energy` and at most one of `host_forces`, and gradients take at most one call of each (this check is observed). **Not judged.** Second derivatives.
#
# <details><summary>Hint 1 · a question</summary>
#
# Which argument of `jax.pure_callback` states what happens under `vmap`? What shape does the host function get?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.custom_jvp` defines the tangent of the result. It is the sum of the derivatives times the tangent of `x`. Only the forces come from the host. The product and the sum are computed by JAX, which can then transpose them for `jax.grad`.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Decorate `energy` with `@jax.custom_jvp`, and a function `energy_jvp(primals, tangents)` with `@energy.defjvp`. It returns `energy(x, charge)` and `-jnp.sum(forces * x_tangent)`, where `forces` is a second callback. Pass `vmap_method="expand_dims"` to both.
#
# </details>


# %% answer="hatches-simulator" timeout=20
def energy(x, charge):
    """x, charge float32 (n,) -> the energy, a float32 scalar that is differentiable with respect to x."""
    ### BEGIN SOLUTION
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


energy = jax.custom_jvp(energy)


@energy.defjvp
def energy_jvp(primals, tangents):
    (x, charge), (x_tangent, _) = primals, tangents
    forces = jax.pure_callback(
        host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), -jnp.sum(forces * x_tangent)
    ### END SOLUTION


# %% check="hatches-simulator" name="example" points=1
"""The example: the energy and its gradient, also for two pairs of charges with `vmap`."""


def probe_both(x, charge):
    return jax.jit(jax.value_and_grad(energy))(x, charge)


value, gradient = ask(probe_both, np.array([0, 1], np.float32), np.ones(2, np.float32))
compare(value, np.float32(1 + np.exp(-1)), label="the energy")
compare(gradient, np.array([2, -2], np.float32) * np.float32(np.exp(-1)), label="the gradient")


def probe_pairs(x, charge):
    return jax.jit(jax.vmap(jax.value_and_grad(energy), in_axes=(0, None)))(x, charge)


values, gradients = ask(probe_pairs, np.array([[0, 1], [0, 0]], np.float32), np.ones(2, np.float32))
compare(values, np.array([1 + np.exp(-1), 2], np.float32), label="the energies under vmap")
wanted = np.array([[2 * np.exp(-1), -2 * np.exp(-1)], [0, 0]], np.float32)
compare(gradients, wanted, label="the gradients under vmap")

# %% hidden="hatches-simulator" name="derivatives" points=1
"""Values, gradients and directional derivatives, for other charges."""


def probe_derivatives(x, charge, direction):
    compiled = jax.jit(jax.value_and_grad(energy, argnums=(0, 1)))
    return compiled(x, charge), jax.jit(lambda x, v: jax.jvp(lambda x: energy(x, charge), (x,), (v,)))(x, direction)


for n in (1, 3, 6):
    x, charge, direction = (inputs.rng().normal(size=n).astype(np.float32) for _ in range(3))
    value, forces = host_energy(x, charge).astype(np.float32), host_forces(x, charge)
    (got, gradients), (primal, tangent) = ask(probe_derivatives, x, charge, direction)
    with case(f"with {n} charges"):
        compare(got, value, label="the energy")
        compare(gradients[0], (-forces).astype(np.float32), label="the gradient with respect to x")
        compare(gradients[1], np.zeros(n, np.float32), label="the gradient with respect to charge")
        compare(primal, value, label="the value that jax.jvp returns")
        compare(tangent, (-forces @ direction).astype(np.float32), label="the directional derivative")
    with case(f"with {n} other charges at the same positions"):
        (got, gradients), _ = ask(probe_derivatives, x, 2 * charge, direction)
        compare(got, 4 * value, label="the energy")
        compare(gradients[0], (-4 * forces).astype(np.float32), label="the gradient with respect to x")

# %% hidden="hatches-simulator" name="batches" points=2
"""Under vmap over either argument or both, also along another axis."""


def probe_batches(x, charge, axes):
    mapped = jax.vmap(energy, in_axes=axes)
    gradients = jax.vmap(jax.grad(energy), in_axes=axes)
    whole = jax.grad(lambda x: jnp.sum(jax.vmap(energy, in_axes=axes)(x, charge) ** 2))
    return jax.jit(mapped)(x, charge), jax.jit(gradients)(x, charge), jax.jit(whole)(x)


rng = inputs.rng()
n, count = 4, int(rng.integers(5, 8))
for x_axis, charge_axis in ((0, 0), (0, None), (None, 0), (1, 0), (1, None)):
    one, other = rng.normal(size=(count, n)).astype(np.float32), rng.normal(size=(count, n)).astype(np.float32)
    x, charge = one if x_axis is not None else one[0], other if charge_axis is not None else other[0]
    values, slopes = host_energy(x, charge), -host_forces(x, charge)
    whole = 2 * values[:, None] * slopes
    whole = whole if x_axis is not None else whole.sum(0)
    given = x.T if x_axis == 1 else x
    with case(f"for in_axes=({x_axis}, {charge_axis})"):
        energies, gradients, of_sum = ask(probe_batches, given, charge, (x_axis, charge_axis))
        compare(energies, values.astype(np.float32), label="the energies")
        compare(gradients, slopes.astype(np.float32), label="the gradients of the energies")
        compare(
            of_sum, (whole.T if x_axis == 1 else whole).astype(np.float32), label="the gradient of a sum of squares"
        )

# %% hidden="hatches-simulator" name="calls" points=1 observed=true
"""A batch takes one call of each host function."""


def probe_calls(x, charge):
    counts, results = [], []
    for function in (energy, jax.grad(energy), jax.value_and_grad(energy)):
        host_calls.clear()
        results.append(jax.block_until_ready(jax.jit(jax.vmap(function, in_axes=(0, None)))(x, charge)))
        counts.append([host_calls.count(name) for name in ("energy", "forces")])
    return counts, results


x, charge = (inputs.rng().normal(size=shape).astype(np.float32) for shape in ((5, 3), (3,)))
counts, results = ask(probe_calls, x, charge)
compare(results[0], host_energy(x, charge).astype(np.float32), label="the energies")
for gradients in (results[1], results[2][1]):
    compare(gradients, (-host_forces(x, charge)).astype(np.float32), label="the gradients")
require(counts[0][0] > 0, "Your answer does not call `host_energy`.")
require(max(counts[0]) == 1, "The energies of a batch of five take more than one call of a host function.")
require(max(counts[1]) == 1, "The gradients of a batch of five take more than one call of a host function.")
require(
    max(counts[2]) == 1, "The energies and gradients of a batch of five take more than one call of a host function."
)

# %% [markdown] why="hatches-simulator"
# The callback returns the forces, which do not depend on the tangent. The tangent enters only through a product and a sum in JAX, so JAX can transpose it, and one rule serves `jvp` and `grad`. With `expand_dims`, the host function gets the whole batch in one call, and an argument without a batch gets an axis of size 1. **Next:** What would you add to make second derivatives work?


# %% wrong="hatches-simulator" because="Calls the host for the energy twice: for the value, and again in the rule of the derivative."
@jax.custom_jvp
def energy(x, charge):
    kind = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(host_energy, kind, x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    (x, charge), (dx, _) = primals, tangents
    kinds = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct(x.shape, jnp.float32)
    both = lambda x, charge: (host_energy(x, charge), host_forces(x, charge))
    again, forces = jax.pure_callback(both, kinds, x, charge, vmap_method="expand_dims")
    return (energy(x, charge) + again) / 2, -jnp.sum(forces * dx)


# %% wrong="hatches-simulator" because="Defines no derivative. JAX cannot look inside a callback."
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


# %% wrong="hatches-simulator" because="Uses the force as the derivative of the energy. It is minus the derivative."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(
        host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), jnp.sum(forces * tangents[0])


# %% wrong="hatches-simulator" because="States no `vmap_method`, so the function cannot be batched."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge)


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge)
    return energy(x, charge), -jnp.sum(forces * tangents[0])


# %% wrong="hatches-simulator" because="Batches the energy, but not the callback of the forces, so gradients cannot be batched."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge)
    return energy(x, charge), -jnp.sum(forces * tangents[0])


# %% wrong="hatches-simulator" because="Calls the host once for each element of a batch, although the simulator takes whole batches."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="sequential")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="sequential")
    return energy(x, charge), -jnp.sum(forces * tangents[0])


# %% wrong="hatches-simulator" because="Computes the tangent on the host, so JAX cannot transpose it, and `jax.grad` fails."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    host = lambda x, charge, v: -np.sum(host_forces(x, charge) * v, axis=-1)
    scalar = jax.ShapeDtypeStruct((), x.dtype)
    return energy(x, charge), jax.pure_callback(host, scalar, x, charge, tangents[0], vmap_method="expand_dims")


# %% wrong="hatches-simulator" because="Defines a VJP, which supports `jax.grad` but not `jax.jvp`."
@jax.custom_vjp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


def energy_forward(x, charge):
    forces = jax.pure_callback(
        host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), forces


energy.defvjp(energy_forward, lambda forces, back: (-back * forces, jnp.zeros_like(forces)))


# %% wrong="hatches-simulator" because="Returns the derivatives as the tangent. The tangent is a scalar, their sum times the tangent of `x`."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(
        host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), -forces * tangents[0]


# %% wrong="hatches-simulator" because="Ignores the tangent of `x`. The gradient of the result is then not the one of the energy."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(
        host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), -jnp.sum(forces)


# %% wrong="hatches-simulator" because="Approximates the derivative by differences in float32, which loses most digits and needs many calls."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    value, step = energy(x, charge), 1e-3
    derivatives = jnp.stack([(energy(x.at[i].add(step), charge) - value) / step for i in range(len(x))])
    return value, jnp.sum(derivatives * tangents[0])


# %% wrong="hatches-simulator" because="Measures the derivative with differences of the energy on the host, which takes many calls instead of one of `host_forces`."
def differences(x, charge):
    x, shifts = np.asarray(x, np.float64), 1e-5 * np.eye(np.shape(x)[-1])
    columns = [host_energy(x + shift, charge) - host_energy(x - shift, charge) for shift in shifts]
    return np.stack(columns, axis=-1) / 2e-5


@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    gradient = jax.pure_callback(
        differences, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), jnp.sum(gradient * tangents[0])


# %% wrong="hatches-simulator" because="Adds a derivative for the charges, which is not zero, although the simulator does not compute it."
@jax.custom_jvp
def energy(x, charge):
    return jax.pure_callback(host_energy, jax.ShapeDtypeStruct((), x.dtype), x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    forces = jax.pure_callback(
        host_forces, jax.ShapeDtypeStruct(x.shape, x.dtype), x, charge, vmap_method="expand_dims"
    )
    return energy(x, charge), -jnp.sum(forces * tangents[0]) + jnp.sum(charge * tangents[1])


# %% wrong="hatches-simulator" because="Computes the energy with `jnp` and does not call the simulator."
def energy(x, charge):
    charge = jax.lax.stop_gradient(charge)
    near = jnp.exp(-((x[:, None] - x[None, :]) ** 2))
    return jnp.sum(charge[:, None] * charge[None, :] * near) / 2


# %% wrong="hatches-simulator" because="Caches results on the host by the positions only, although they also depend on the charges."
cached_results = {}


def cached(function, x, charge):
    key = function.__name__, np.asarray(x).tobytes(), np.shape(charge)
    if key not in cached_results:
        cached_results[key] = function(x, charge)
    return cached_results[key]


@jax.custom_jvp
def energy(x, charge):
    host, like = functools.partial(cached, host_energy), jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(host, like, x, charge, vmap_method="expand_dims")


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    host, like = functools.partial(cached, host_forces), jax.ShapeDtypeStruct(x.shape, x.dtype)
    forces = jax.pure_callback(host, like, x, charge, vmap_method="expand_dims")
    return energy(x, charge), -jnp.sum(forces * tangents[0])


# %% wrong="hatches-simulator" because="Uses the forces as the derivative for the charges too. The task defines this derivative as 0."
def on_host(function, shape, *args):
    return jax.pure_callback(function, jax.ShapeDtypeStruct(shape, jnp.float32), *args, vmap_method="expand_dims")


@jax.custom_jvp
def energy(x, charge):
    return on_host(host_energy, (), x, charge)


@energy.defjvp
def energy_jvp(primals, tangents):
    x, charge = primals
    x_tangent, charge_tangent = tangents
    forces = on_host(host_forces, x.shape, x, charge)
    return energy(x, charge), -jnp.sum(forces * x_tangent) - jnp.sum(forces * charge_tangent)


# %% right="hatches-simulator"
@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def energy(x, charge):
    like = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(host_energy, like, x, charge, vmap_method="broadcast_all")


@energy.defjvp
def energy_jvp(charge, primals, tangents):
    [x], [x_tangent] = primals, tangents
    forces = jax.pure_callback(host_forces, jax.typeof(x), x, charge, vmap_method="broadcast_all")
    return energy(x, charge), -jnp.vdot(forces, x_tangent)


# %% right="hatches-simulator"
def on_host(function, shape, *args):
    return jax.pure_callback(function, jax.ShapeDtypeStruct(shape, jnp.float32), *args, vmap_method="broadcast_all")


@jax.custom_jvp
def energy(x, charge):
    return on_host(host_energy, (), x, charge)


energy.defjvps(
    lambda v, value, x, charge: -jnp.vdot(on_host(host_forces, x.shape, x, charge), v),
    None,
)


# %% right="hatches-simulator"
@jax.custom_jvp
def energy_and_forces(x, charge):
    types = jax.ShapeDtypeStruct((), x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)
    both = lambda x, charge: (host_energy(x, charge), host_forces(x, charge))
    return jax.pure_callback(both, types, x, charge, vmap_method="expand_dims")


@energy_and_forces.defjvp
def rule(primals, tangents):
    value, forces = energy_and_forces(*primals)
    return (value, forces), (-forces @ tangents[0], jnp.zeros_like(forces))


def energy(x, charge):
    return energy_and_forces(x, charge)[0]


# %% [markdown] task="hatches-group-norm" stars=3 minutes=30 skills="hatches-simulator,15_memory_and_precision"
# ## A norm in C++
# **Goal.** `norms.cc` contains a GroupNorm without weights, and its gradient. It divides the last axis into groups of equal size, and divides each group by its root mean square. Write the JAX function around both.
#
# **Signature.** `group_norm(x, eps, groups)` takes `x` with shape `(..., n)` and dtype float32 or bfloat16, a Python float `eps` and a Python int `groups`, which divides n. It returns an array of the shape and dtype of `x`.
#
# The setup registers these targets. `T` is the name of the dtype of `x`. For a target with two results, pass a pair of types to `jax.ffi.ffi_call`. The handlers do not broadcast leading axes.
#
# | target | attributes | arguments | results |
# |---|---|---|---|
# | `group_norm_T` | `eps` (a float32), `groups` (an int64) | `x` `(..., n)` | `y`, like `x`, and `scale`, float32 `(..., groups)` |
# | `group_norm_grad_T` | `groups` (an int64) | `x`, `scale`, and the gradient `dy` with respect to `y`, all with the same leading axes | `dx`, like `x` |
#
# **Example.** For `x` = [3, 3, 1, 1], `eps` = 0 and `groups` = 2, the result is [1, 1, 1, 1]. With `groups` = 1, it is [3, 3, 1, 1] / √5.
#
# **Judged.** The values and the gradients with respect to `x`, compiled, for several shapes and both dtypes. Both are also tested under `vmap` along any axis but the last, and the gradients with `jax.jacrev`. The forward pass is one FFI call and the backward pass a second one, also under `vmap`. The backward pass uses the `scale` of the forward pass (this check is observed). **Not judged.** `jax.jvp` and second derivatives.
#
# <details><summary>Hint 1 · a question</summary>
#
# What does the backward pass need in addition to `dy`? Which arguments of `group_norm` have no gradient?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# `jax.custom_vjp` with `nondiff_argnums=(1, 2)` takes a forward function `(x, eps, groups)`, which returns the result and the residuals, and a backward function `(eps, groups, residuals, dy)`, which returns a tuple with one gradient.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.ffi.ffi_call(target, result_types, vmap_method="broadcast_all")(x, eps=np.float32(eps), groups=groups)`. In `jacrev`, only `dy` has a batch axis. `broadcast_all` gives this axis to the other arguments too.
#
# </details>


# %% answer="hatches-group-norm" timeout=25
def group_norm(x, eps, groups):
    """x (..., n) float32 or bfloat16, eps float, groups int -> GroupNorm of x in C++, with a gradient in C++."""
    ### BEGIN SOLUTION
    return group_norm_forward(x, eps, groups)[0]


group_norm = jax.custom_vjp(group_norm, nondiff_argnums=(1, 2))


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)
### END SOLUTION


# %% check="hatches-group-norm" name="example" points=1
"""The example, and a gradient."""
need_ffi()


def probe_example(x):
    return [jax.jit(lambda x, groups=groups: group_norm(x, 0.0, groups))(x) for groups in (2, 1)]


def probe_one(x, dy):
    y, backward = jax.vjp(lambda x: group_norm(x, 1e-3, 2), x)
    return y, backward(dy)[0]


x = np.array([3, 3, 1, 1], np.float32)
two, one = ask(probe_example, x)
compare(two, np.ones(4, np.float32), label="the result with two groups")
compare(one, x / np.float32(np.sqrt(5)), label="the result with one group")
x, dy = (inputs.rng().normal(size=(3, 8)).astype(np.float32) for _ in range(2))
y, dx = (value.astype(np.float32) for value in norm_by_hand(x, 1e-3, 2, dy))
got, gradient = ask(probe_one, x, dy)
compare(got, y, label="the result for a matrix")
compare(gradient, dx, label="the gradient for a matrix")

# %% hidden="hatches-group-norm" name="values" points=2
"""Values and gradients for several shapes, both dtypes, and other eps and groups."""
need_ffi()


def probe_values(x, dy, eps, groups):
    run = lambda x: group_norm(x, eps, groups)

    def both(x, dy):
        y, backward = jax.vjp(run, x)
        return y, backward(dy)[0]

    return jax.jit(run)(x), jax.jit(both)(x, dy)


rng = inputs.rng()
for shape, groups in (((6,), 3), ((4, 10), 2), ((2, 3, 8), 4), ((5, 7), 1)):
    for dtype in (jnp.float32, jnp.bfloat16):
        x, dy = (np.asarray(rng.normal(size=shape), dtype) for _ in range(2))
        eps = float(rng.uniform(0.1, 0.9))
        wanted = [value.astype(np.float32).astype(dtype) for value in norm_by_hand(x, eps, groups, dy)]
        with case(f"for shape {shape} and dtype {x.dtype}"):
            y, (again, dx) = ask(probe_values, x, dy, eps, groups)
            compare(y, wanted[0], label="the result")
            compare(again, wanted[0], label="the result that jax.vjp returns")
            compare(dx, wanted[1], label="the gradient")

# %% hidden="hatches-group-norm" name="batches" points=2
"""Under vmap along several axes, with gradients, and with jax.jacrev."""
need_ffi()


def probe_batches(x, dy, axis):
    run = lambda x: group_norm(x, 0.25, 2)
    pull = lambda x, dy: jax.vjp(run, x)[1](dy)[0]
    return jax.jit(jax.vmap(run, in_axes=axis))(x), jax.jit(jax.vmap(pull, in_axes=(axis, 0)))(x, dy)


def probe_jacobian(x):
    return jax.jit(jax.jacrev(lambda x: group_norm(x, 0.25, 2)))(x)


rng = inputs.rng()
for axis in (0, 1):
    x = rng.normal(size=(5, 3, 4)).astype(np.float32)
    rows = np.moveaxis(x, axis, 0)
    dy = rng.normal(size=rows.shape).astype(np.float32)
    y, dx = norm_by_hand(rows, 0.25, 2, dy)
    with case(f"for in_axes={axis}"):
        got, gradients = ask(probe_batches, x, dy, axis)
        compare(got, y.astype(np.float32), label="the result")
        compare(gradients, dx.astype(np.float32), label="the gradients")
x = rng.normal(size=(6,)).astype(np.float32)
jacobian = np.stack([norm_by_hand(x, 0.25, 2, row)[1] for row in np.eye(6)])
with case("for jax.jacrev"):
    compare(ask(probe_jacobian, x), jacobian.astype(np.float32), label="the Jacobian")

# %% hidden="hatches-group-norm" name="calls" points=2 observed=true
"""The forward pass is one FFI call, and the backward pass is a second one, also under vmap."""
need_ffi()


def probe_calls(x, dy):
    run = lambda x: group_norm(x, 0.25, 2)

    def pull(x, dy):
        y, backward = jax.vjp(run, x)
        return y, backward(dy)[0]

    found = []
    for function, args in ((run, (x,)), (pull, (x, dy)), (jax.vmap(run), (x,)), (jax.vmap(pull), (x, dy))):
        text = jax.jit(function).lower(*args).as_text()
        sums = text.count("stablehlo.reduce") + text.count("stablehlo.dot_general")
        found.append((custom_calls(function, *args), text.count("stablehlo.while"), sums))
    return found, jax.jit(jax.vmap(pull))(x, dy)


x, dy = (inputs.rng().normal(size=(3, 4, 6)).astype(np.float32) for _ in range(2))
found, gradients = ask(probe_calls, x, dy)
compare(gradients, jax.tree.map(np.float32, norm_by_hand(x, 0.25, 2, dy)), label="the results and the gradients")
for (calls, loops, _), words in zip(found, ("", "", " under vmap", " under vmap"), strict=True):
    require(calls["group_norm"] > 0, f"The program{words} does not call `group_norm_float32`.")
    require(calls["group_norm"] == 1, f"The program{words} calls `group_norm_float32` more than once.")
    require(loops == 0, f"The program{words} has a loop. A single FFI call handles a whole batch.")
for calls, _, sums in (found[1], found[3]):
    require(sums == 0, "The program of the gradient adds numbers outside of the handlers. Use the stored `scale`.")
    require(calls["group_norm_grad"] == 1, "The program of the gradient does not call `group_norm_grad_float32` once.")

# %% [markdown] why="hatches-group-norm"
# An FFI call is opaque, so JAX needs a type for each result, a rule for `vmap` and a rule for gradients. The handler is compiled C++, so a call costs microseconds instead of the time of a Python function. The forward pass returns `scale`, which would otherwise have to be computed again. **Next:** The residual `x` takes as much memory as the input. Which other residual of the same size could replace it?


# %% wrong="hatches-group-norm" because="Computes `scale` again in the backward pass, although the forward pass has already returned it."
def forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    return call(x, eps=np.float32(eps), groups=groups)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return forward(x, eps, groups)[0]


def norm_backward(eps, groups, x, dy):
    parts = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    scale = jax.lax.rsqrt(jnp.mean(parts**2, axis=-1) + eps)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", like, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(lambda x, eps, groups: (group_norm(x, eps, groups), x), norm_backward)


# %% wrong="hatches-group-norm" because="Defines no gradient. JAX cannot look inside an FFI call."
def group_norm(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    return call(x, eps=np.float32(eps), groups=groups)[0]


# %% wrong="hatches-group-norm" because="Passes `eps` as a Python float, which becomes a 64-bit attribute. The handler expects a float32."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=eps, groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Uses the float32 target for every dtype."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call("group_norm_float32", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call("group_norm_grad_float32", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Declares `scale` in the dtype of `x`. The handler returns float32."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="States no `vmap_method`, so the function cannot be batched."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types)
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type)
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Batches the forward pass, but not the backward pass."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type)
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Uses `expand_dims`, so arguments without a batch axis get an axis of size 1. The handler does not broadcast, as `jacrev` shows."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="expand_dims")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="expand_dims")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Calls the handler in a loop over the batch, although it accepts any number of leading axes."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="sequential")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="sequential")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Passes the arguments of the backward pass in the wrong order. The dtypes and sizes do not fit."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(dy, scale, x, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Declares one result. The handler returns two."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types[0], vmap_method="broadcast_all")
    y = call(x, eps=np.float32(eps), groups=groups)
    scale = 1 / jnp.sqrt(jnp.mean(x.reshape(*x.shape[:-1], groups, -1) ** 2, axis=-1) + eps)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Calls the forward handler again in the backward pass, although the forward pass has already returned `scale`."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, _ = residuals
    scale = group_norm_forward(x, eps, groups)[1][1]
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Treats `scale` as a constant in the gradient."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    scale = jnp.repeat(scale, x.shape[-1] // groups, axis=-1)
    return ((dy * scale).astype(x.dtype),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Uses the result in place of `x` as the residual."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (y, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=groups),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Normalises with another number of groups in the backward pass."
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return group_norm_forward(x, eps, groups)[0]


def group_norm_forward(x, eps, groups):
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((*x.shape[:-1], groups), jnp.float32)
    call = jax.ffi.ffi_call(f"group_norm_{x.dtype}", types, vmap_method="broadcast_all")
    y, scale = call(x, eps=np.float32(eps), groups=groups)
    return y, (x, scale)


def group_norm_backward(eps, groups, residuals, dy):
    x, scale = residuals
    dx_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = jax.ffi.ffi_call(f"group_norm_grad_{x.dtype}", dx_type, vmap_method="broadcast_all")
    return (call(x, scale, dy, groups=scale.shape[0]),)


group_norm.defvjp(group_norm_forward, group_norm_backward)


# %% wrong="hatches-group-norm" because="Computes the norm with `jnp` and does not call the handlers."
def group_norm(x, eps, groups):
    parts = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    scale = jax.lax.rsqrt(jnp.mean(parts**2, axis=-1, keepdims=True) + eps)
    return (parts * scale).reshape(x.shape).astype(x.dtype)


# %% right="hatches-group-norm"
def call(target, results, groups, *args, **attributes):
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    run = jax.ffi.ffi_call(f"{target}_{args[0].dtype.name}", types, vmap_method="broadcast_all")
    return run(*args, groups=np.int64(groups), **attributes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def group_norm(x, eps, groups):
    return forward(x, eps, groups)[0]


def forward(x, eps, groups):
    results = (x.shape, x.dtype), ((*x.shape[:-1], groups), jnp.float32)
    y, scale = call("group_norm", results, groups, x, eps=np.float32(eps))
    return y, (x, scale)


def backward(eps, groups, residuals, dy):
    return tuple(call("group_norm_grad", [(dy.shape, dy.dtype)], groups, *residuals, dy))


group_norm.defvjp(forward, backward)


# %% right="hatches-group-norm"
def group_norm(x, eps, groups):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    scales = jax.ShapeDtypeStruct((*x.shape[:-1], groups), np.float32)
    options = {"vmap_method": "broadcast_all"}

    def forward(x):
        run = jax.ffi.ffi_call("group_norm_" + x.dtype.name, (like, scales), **options)
        y, scale = run(x, eps=np.float32(eps), groups=groups)
        return y, (scale, x)

    def backward(kept, dy):
        run = jax.ffi.ffi_call("group_norm_grad_" + dy.dtype.name, like, **options)
        return [run(kept[1], kept[0], dy, groups=groups)]

    norm = jax.custom_vjp(lambda x: forward(x)[0])
    norm.defvjp(forward, lambda kept, dy: tuple(backward(kept, dy)))
    return norm(x)


# %% [markdown] task="hatches-sharded" stars=3 minutes=25 skills="hatches-group-norm,shardmap-psum-matmul"
# ## C++ on every device
# *Needs: Deeper: gradients inside shard_map.*
#
# **Goal.** Divide each row of a partitioned array by its root mean square. The sums of squares are computed in C++. The rows are longer than the shard of a device, and the result must be differentiable.
#
# **Signature.** `sharded_norm(x, eps)` takes `x`, a `float32[B@data,T,D@model]`, and a Python float `eps`. It returns `x / sqrt(mean(x**2) + eps)` with the mean over the last axis, as an array of the type of `x`. The setup registers the target `row_squares`, which takes a float32 array `(..., n)` and returns the sum of the squares of each row, float32 `(...)`. It has no attributes.
#
# **Example.** On four by two devices, `x` = 3 everywhere with shape (4, 1, 2) and `eps` = 0 gives 1 everywhere. Each device has one number of each row.
#
# **Judged.** The values, the types and the gradient of a weighted sum of the result, on several meshes with the axes `data` and `model`. The program of the result calls `row_squares`, and has one collective, an all-reduce of B · T / N elements on each device, where N is the number of devices along `data` (this check is observed). **Not judged.** The collectives of the gradient.
#
# <details><summary>Hint 1 · a question</summary>
#
# Inside `jax.shard_map`, JAX does not know that the result of an FFI call differs between devices. What does `jax.typeof(result)` state, and what should it state?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# The gradient of the sum of squares is `2 * x * dy[..., None]`, so the backward pass needs no FFI call. Define it with `jax.custom_vjp`. The result of its forward pass should vary along both mesh axes.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `jax.lax.pcast(result, ("data", "model"), to="varying")` directly after the FFI call, inside of the function with the custom gradient. Then `jax.lax.psum` over `model`, divide by the size of the whole row, and let JAX differentiate the rest.
#
# </details>


# %% answer="hatches-sharded" timeout=25
def sharded_norm(x, eps):
    """x float32[B@data,T,D@model] -> x divided by the root mean square of each row, with the type of x."""
    ### BEGIN SOLUTION

    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    specs = P("data", None, "model")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=specs)(x)
    ### END SOLUTION


# %% check="hatches-sharded" name="example" points=1
"""The example, and a gradient."""
need_ffi()


def probe_example(x):
    return jax.jit(lambda x: sharded_norm(x, 0.0))(x), jax.jit(jax.grad(lambda x: jnp.sum(sharded_norm(x, 1.0))))(x)


mesh = grid(4, 2)
with jax.set_mesh(mesh):
    result, gradient = ask(probe_example, place(mesh, np.full((4, 1, 2), 3, np.float32), "data", None, "model"))
compare(result, np.ones((4, 1, 2), np.float32), label="the result")
require(entries_of(result) == ("data", None, "model"), "The result does not have the type of x.")
compare(gradient, np.full((4, 1, 2), 10**-1.5, np.float32), label="the gradient of the sum, with eps = 1")

# %% hidden="hatches-sharded" name="values" points=1
"""Values and types on several meshes."""
need_ffi()


def probe_values(x, eps):
    return jax.jit(lambda x: sharded_norm(x, eps))(x)


rng = inputs.rng()
for along_data, along_model in ((4, 2), (2, 4), (2, 3)):
    mesh, eps = grid(along_data, along_model), float(rng.uniform(0.1, 0.9))
    shape = along_data * int(rng.integers(1, 4)), int(rng.integers(2, 5)), along_model * int(rng.integers(2, 5))
    numbers = rng.normal(size=shape).astype(np.float32)
    with case(f"on {along_data} by {along_model} devices"), jax.set_mesh(mesh):
        result = ask(probe_values, place(mesh, numbers, "data", None, "model"), eps)
        compare(result, norm_by_hand(numbers, eps, 1).astype(np.float32), label="the result")
        require(entries_of(result) == ("data", None, "model"), "the result does not have the type of x.")

# %% hidden="hatches-sharded" name="gradient" points=2
"""The gradient of a weighted sum, on several meshes."""
need_ffi()


def probe_gradient(x, weights, eps):
    return jax.jit(jax.grad(lambda x: jnp.sum(weights * sharded_norm(x, eps))))(x)


rng = inputs.rng()
for along_data, along_model in ((2, 4), (3, 2)):
    mesh, eps = grid(along_data, along_model), float(rng.uniform(0.1, 0.9))
    shape = along_data * int(rng.integers(1, 4)), int(rng.integers(2, 5)), along_model * int(rng.integers(2, 5))
    numbers, weights = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    with case(f"on {along_data} by {along_model} devices"), jax.set_mesh(mesh):
        x, placed = (place(mesh, array, "data", None, "model") for array in (numbers, weights))
        gradient = ask(probe_gradient, x, placed, eps)
        wanted = norm_by_hand(numbers, eps, 1, weights)[1].astype(np.float32)
        compare(gradient, wanted, label="the gradient")
        require(entries_of(gradient) == ("data", None, "model"), "the gradient does not have the type of x.")

# %% hidden="hatches-sharded" name="program" points=2 observed=true
"""The program calls the C++ handler, and has one all-reduce of the sums."""
need_ffi()


def probe_program(x):
    run = lambda x: sharded_norm(x, 0.5)
    found = [(one.kind, one.elements) for one in list_collectives(run, x)]
    return custom_calls(run, x)["row_squares"], found, jax.jit(run)(x)


rng, mesh = inputs.rng(), grid(4, 2)
numbers = rng.normal(size=(8, 3, 6)).astype(np.float32)
with jax.set_mesh(mesh):
    calls, found, result = ask(probe_program, place(mesh, numbers, "data", None, "model"))
compare(result, norm_by_hand(numbers, 0.5, 1).astype(np.float32), label="the result")
require(calls > 0, "The program does not call `row_squares`.")
kinds = sorted(kind for kind, _ in found)
require(kinds == ["all-reduce"], f"The collectives of the program are {kinds}. It should have exactly one all-reduce.")
require(found[0][1] == 6, "The all-reduce does not return one element for each row of the device.")

# %% [markdown] why="hatches-sharded"
# Under `jit` alone, XLA cannot partition an FFI call. It gathers the whole array, and every device works on all of it. Inside `shard_map`, each device calls the handler with its shard. There, JAX 0.10.2 gives the result of an FFI call a type that does not vary, although it does, so you state it with `pcast`. Otherwise `out_specs` is not checked, and gradients are silently wrong. **Next:** Is the same `pcast` necessary after a `pure_callback`?


# %% wrong="hatches-sharded" because="Has no `pcast` between the FFI call and the end of the function with the custom gradient. JAX believes that the sums are equal on all devices, so it adds their gradients, which is wrong."
def sharded_norm(x, eps):
    squares = lambda x: jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Has no `pcast` between the FFI call and the end of the function with the custom gradient. JAX believes that the sums are equal on all devices, so it adds their gradients, which is wrong."
def sharded_norm(x, eps):
    squares = lambda x: jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        sums = jax.lax.pcast(row_squares(shard), ("data", "model"), to="varying")
        return shard * jax.lax.rsqrt(jax.lax.psum(sums, "model") / x.shape[-1] + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Defines no gradient for the FFI call."
def sharded_norm(x, eps):
    def on_one_device(shard):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(shard.shape[:-1], x.dtype))(shard)
        mean = jax.lax.psum(jax.lax.pcast(sums, ("data", "model"), to="varying"), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Divides by the size of the shard of a row instead of the whole row."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / shard.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Does not add the sums of the devices along `model`, so each device divides by a mean of its own."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = row_squares(shard) / shard.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Averages the sums of the devices. Each is the sum of a part of the row."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.pmean(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Adds over `data`, where the devices have different rows."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), ("data", "model")) / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Adds over `data`, where the devices have different rows."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.pmean(row_squares(shard) / shard.shape[-1], ("data", "model"))
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Forgets the factor 2 in the gradient of a square."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Treats the sums of squares as constants in the gradient."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (jnp.zeros_like(x),))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Adds the gradients of the devices in the backward pass. The transpose of `psum` has done this already."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * jax.lax.psum(dy, "model")[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Gathers the rows first, so each device stores and adds whole rows."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        rows = jax.lax.all_gather(shard, "model", axis=2, tiled=True)
        mean = row_squares(rows) / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Adds `eps` before the division by the size of the row."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = (jax.lax.psum(row_squares(shard), "model") + eps) / x.shape[-1]
        return shard * jax.lax.rsqrt(mean)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Adds `eps` on each device before the sum, so it counts several times."
def sharded_norm(x, eps):
    def squares(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard) / x.shape[-1] + eps, "model")
        return shard * jax.lax.rsqrt(mean)[..., None]

    return jax.shard_map(on_one_device, out_specs=P("data", None, "model"))(x)


# %% wrong="hatches-sharded" because="Calls the handler under `jit` alone, without `shard_map`. XLA cannot partition the call and gathers the whole array."
def sharded_norm(x, eps):
    @jax.custom_vjp
    def row_squares(x):
        return jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)

    row_squares.defvjp(lambda x: (row_squares(x), x), lambda x, dy: (2 * x * dy[..., None],))
    sums = jax.reshard(row_squares(jax.reshard(x, P())), P("data"))
    return x * jax.lax.rsqrt(sums / x.shape[-1] + eps)[..., None]


# %% wrong="hatches-sharded" because="Computes the norm with `jnp` and does not call the handler."
def sharded_norm(x, eps):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)


# %% wrong="hatches-sharded" because="Assumes two devices along `model`, as in the example."
def sharded_norm(x, eps):
    def call(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32))(x)
        return jax.lax.pcast(sums, ("data", "model"), to="varying")

    squares = jax.custom_vjp(call)
    squares.defvjp(lambda x: (call(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(x):
        return x / jnp.sqrt(jax.lax.psum(squares(x), "model") / (2 * x.shape[-1]) + eps)[..., None]

    spec = P("data", None, "model")
    return jax.shard_map(on_one_device, in_specs=spec, out_specs=spec)(x)


# %% wrong="hatches-sharded" because="Computes the mean of the backward pass from the shard of a device. It is over the whole row."
def sharded_norm(x, eps):
    spec, of_rows, size = P("data", None, "model"), P("data", None), x.shape[-1]

    @jax.shard_map(in_specs=spec, out_specs=(spec, of_rows))
    def forward_on_device(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32))(x)
        sums = jax.lax.pcast(sums, ("data", "model"), to="varying")
        scale = jax.lax.rsqrt(jax.lax.psum(sums, "model") / size + eps)
        return x * scale[..., None], scale

    @jax.shard_map(in_specs=(spec, of_rows, spec), out_specs=spec)
    def backward_on_device(y, scale, dy):
        return scale[..., None] * (dy - y * jnp.mean(dy * y, axis=-1, keepdims=True))

    def forward(x):
        y, scale = forward_on_device(x)
        return y, (y, scale)

    norm = jax.custom_vjp(lambda x: forward(x)[0])
    norm.defvjp(forward, lambda stored, dy: (backward_on_device(*stored, dy),))
    return norm(x)


# %% right="hatches-sharded"
@jax.custom_vjp
def sum_of_squares(x):
    sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32))(x)
    return jax.lax.pcast(sums, tuple(jax.typeof(x).manual_axis_type.varying), to="varying")


sum_of_squares.defvjp(lambda x: (sum_of_squares(x), x), lambda x, dy: (2 * jnp.einsum("btd,bt->btd", x, dy),))


def sharded_norm(x, eps):
    def local(x):
        whole_row = x.shape[-1] * jax.lax.axis_size("model")
        mean = jax.lax.psum(sum_of_squares(x), "model") / whole_row
        return x / jnp.sqrt(mean + eps)[:, :, None]

    return jax.shard_map(local, out_specs=P("data", None, "model"))(x)


# %% right="hatches-sharded"
def sharded_norm(x, eps):
    specs = P("data", None, "model")

    def scale_of(x):
        sums = jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
        sums = jax.lax.pcast(sums, ("data", "model"), to="varying")
        return jax.lax.rsqrt(jax.lax.pmean(sums, "model") / x.shape[-1] + eps)[..., None]

    def forward(x):
        scale = scale_of(x)
        return x * scale, (x, scale)

    def backward(residuals, dy):
        x, scale = residuals
        mean = jax.lax.pmean(jnp.mean(dy * x, axis=-1, keepdims=True), "model")
        return (scale * (dy - x * scale**2 * mean),)

    norm = jax.custom_vjp(lambda x: forward(x)[0])
    norm.defvjp(forward, backward)
    return jax.jit(jax.shard_map(norm, in_specs=specs, out_specs=specs))(x)


# %% right="hatches-sharded"
def sharded_norm(x, eps):
    squares = lambda x: jax.ffi.ffi_call("row_squares", jax.ShapeDtypeStruct(x.shape[:-1], x.dtype))(x)
    row_squares = jax.custom_vjp(squares)
    row_squares.defvjp(lambda x: (squares(x), x), lambda x, dy: (2 * x * dy[..., None],))

    def on_one_device(shard):
        mean = jax.lax.psum(row_squares(shard), "model") / x.shape[-1]
        return shard * jax.lax.rsqrt(mean + eps)[..., None]

    specs = P("data", None, "model")
    return jax.shard_map(on_one_device, in_specs=specs, out_specs=specs, check_vma=False)(x)


# %% [markdown] task="hatches-host-table" stars=2 minutes=20 skills="hatches-tides,shardmap-psum-matmul"
# ## A table that is too large for the devices
# **Goal.** The rows of an embedding table are stored on the host, because the table does not fit on a device. Look up the rows of a partitioned batch. Each device requests its own rows only.
#
# **Signature.** `lookup(ids, fetch, width)`. `ids` is an `int32[B@data]`, and -1 stands for padding. `lookup` returns a `float32[B@data,width]`. The rows of padding are 0.
#
# `fetch` is a host function. It takes a one-dimensional NumPy array of row numbers with an integer dtype, which may be empty, and returns the rows as a float32 NumPy array `(len(rows), width)`. It raises an error for -1, for a row that occurs twice in one call, and for rows that are not all among the ids of one device.
#
# **Example.** On four devices with the ids [2, 2, -1, 0, 5, 1, -1, -1], the first device fetches the row 2 once and uses it twice. The second one fetches the row 0. The last device needs no row.
#
# **Judged.** The values and the type of the compiled function, on several meshes, and that `fetch` never raises an error, so each device requests its own rows only. **Not judged.** The number of calls, and gradients.
#
# <details><summary>Hint 1 · a question</summary>
#
# With which ids does a callback run in a program for several devices, under `jit` alone, and inside `jax.shard_map`?
#
# </details>
# <details><summary>Hint 2 · a nudge</summary>
#
# Wrap `fetch` in your own host function, which takes the ids of one device. There, you may use all of NumPy, such as `np.unique` and boolean masks.
#
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `rows, places = np.unique(known_ids, return_inverse=True)` gives distinct rows and, for each id, the place of its row. Start with a NumPy array of zeros, and assign `fetch(rows)[places]` to its rows of known ids.
#
# </details>


# %% answer="hatches-host-table" timeout=20
def lookup(ids, fetch, width):
    """ids int32[B@data] -> the rows that the host function fetch returns, float32[B@data,width], 0 for padding."""
    ### BEGIN SOLUTION

    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)
    ### END SOLUTION


# %% check="hatches-host-table" name="example" points=1
"""The example, with a table whose row i contains 10 i and 10 i + 1."""


def probe_example(ids):
    shards = [set(shard) for shard in np.asarray(ids).reshape(4, 2).tolist()]

    def fetch(rows):
        rows = np.asarray(rows)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ValueError("fetch did not get a one-dimensional array of integers")
        if (rows < 0).any() or len(np.unique(rows)) < len(rows):
            raise ValueError("fetch got padding or a row twice")
        if not any(set(rows.tolist()) <= shard for shard in shards):
            raise ValueError("fetch got rows that are not all among the ids of one device")
        return np.stack([10 * rows, 10 * rows + 1], axis=1).astype(np.float32)

    return jax.jit(lambda ids: lookup(ids, fetch, 2))(ids)


mesh = grid(4, names=("data",))
ids = np.array([2, 2, -1, 0, 5, 1, -1, -1], np.int32)
with jax.set_mesh(mesh):
    result = ask(probe_example, place(mesh, ids, "data"))
wanted = np.where(ids[:, None] >= 0, np.stack([10 * ids, 10 * ids + 1], axis=1), 0).astype(np.float32)
compare(result, wanted, label="the rows")
require(entries_of(result) == ("data", None), "The result is not partitioned by its rows along data.")

# %% hidden="hatches-host-table" name="values" points=3
"""Other tables, ids and meshes, with padding and repeated ids, in two calls of one compiled function."""


def probe_lookup(ids, other, table, each):
    shards, faults = [], []

    def fetch(rows):
        rows = np.asarray(rows)
        found = {
            "an array with more than one axis, or none": rows.ndim != 1,
            "an array without an integer dtype": rows.dtype.kind not in "iu",
            "padding": (rows < 0).any(),
            "a row twice": len(np.unique(rows)) < len(rows),
            "rows that are not all among the ids of one device": not any(set(rows.tolist()) <= one for one in shards),
        }
        faults.extend(fault for fault, present in found.items() if present)
        if any(found.values()):
            raise ValueError(faults[-1])
        return table[rows]

    compiled, results = jax.jit(lambda ids: lookup(ids, fetch, table.shape[1])), []
    try:
        for batch in (ids, other):
            shards[:] = [set(shard) for shard in np.asarray(batch).reshape(-1, each).tolist()]
            results.append(jax.block_until_ready(compiled(batch)))
    except Exception:
        if not faults:
            raise
    return sorted(set(faults)), results


rng = inputs.rng()
width = int(rng.integers(2, 6))
for sizes, names in (((8,), ("data",)), ((4,), ("data",)), ((2, 3), ("data", "model"))):
    mesh, each = grid(*sizes, names=names), int(rng.integers(3, 6))
    table = rng.normal(size=(40, width)).astype(np.float32)
    batches = rng.integers(0, 40, size=(2, sizes[0], each)).astype(np.int32)
    batches[:, 0, 1], batches[:, 0, 2] = (batches[:, 0, 0] + 1) % 40, batches[:, 0, 0]  # not next to each other
    batches[:, 1, :2] = -1
    batches[1, -1] = -1
    batches = batches.reshape(2, -1)
    with case(f"on {' by '.join(map(str, sizes))} devices"), jax.set_mesh(mesh):
        faults, got = ask(probe_lookup, *(place(mesh, ids, "data") for ids in batches), table, each)
        require(not faults, f"`fetch` got {faults[0] if faults else 'nothing'}.")
        for result, ids, label in zip(got, batches, ("the rows", "the rows of a second call"), strict=True):
            compare(result, np.where(ids[:, None] >= 0, table[ids], 0), label=label)
            require(entries_of(result) == ("data", None), "the result is not partitioned by its rows along data.")

# %% [markdown] why="hatches-host-table"
# Under `jit` alone, a callback on a partitioned array first gathers it on one device, and runs once with the whole batch. Inside `shard_map`, each device calls the host with its shard, and the result stays on this device. A loader of features or a cache of embeddings works in the same way. **Next:** Which kind of callback would write updated rows back to the table, and what would you have to know about its order on several devices?


# %% wrong="hatches-host-table" because="Calls the host under `jit` alone. The ids of all devices are gathered, and one call gets all of them."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)


# %% wrong="hatches-host-table" because="Fetches padding too. NumPy would take -1 for the last row, and `fetch` refuses it."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids, return_inverse=True)
        result[:] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Replaces padding by the row 0 and does not set its rows to 0."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(np.maximum(ids, 0), return_inverse=True)
        result[:] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Fetches a row once for each of its ids."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        result[ids >= 0] = fetch(ids[ids >= 0])
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Uses the rows in the order of `np.unique`, which sorts them, instead of the order of the ids."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[: len(rows)] = fetch(rows)
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Closes over the ids, so the callback does not get values of the program."
def lookup(ids, fetch, width):
    whole = ids

    def on_host():
        ids = np.asarray(whole)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32))

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="States `out_specs=P()`. JAX believes that the result of a callback is equal on all devices, and returns the rows of one of them."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P())(ids)


# %% wrong="hatches-host-table" because="Replicates the ids, so each device requests the rows of all ids."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P(), out_specs=P())(jax.reshard(ids, P()))


# %% wrong="hatches-host-table" because="Calls `fetch` while JAX traces, when the ids have no values yet."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jnp.asarray(on_host(ids))

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Declares the result for the whole batch, but the callback gets the ids of one device."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((len(ids), width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    B = len(ids)

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((B, width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Removes a repeated row only if its ids are next to each other."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        known = ids[ids >= 0]
        new = np.diff(known, prepend=-1) != 0
        result = np.zeros((len(ids), width), np.float32)
        result[ids >= 0] = fetch(known[new])[np.cumsum(new) - 1]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Creates the row numbers with `np.array` from a list. An empty list gives float64, and `fetch` needs integers."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        rows = np.array(sorted(set(ids.tolist()) - {-1}))
        result = np.zeros((len(ids), width), np.float32)
        for row, values in zip(rows, fetch(rows), strict=True):
            result[ids == row] = values
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Assumes the number of devices of the example."
def lookup(ids, fetch, width):
    each = len(ids) // 4

    def on_host(ids):
        ids = np.asarray(ids)
        result = np.zeros((each, width), np.float32)
        rows, places = np.unique(ids[ids >= 0], return_inverse=True)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((each, width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Requests row 0 for padding and sets the result to 0. A device requests only rows of its own ids."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        rows, places = np.unique(np.maximum(ids, 0), return_inverse=True)
        return np.where(ids[:, None] >= 0, fetch(rows)[places], 0).astype(np.float32)

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Assumes that a Python set is sorted. This is only true for some sets of small integers."
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        rows = np.array(list(set(ids[ids >= 0].tolist())), np.int64)
        places = np.minimum(np.searchsorted(rows, ids[ids >= 0]), max(len(rows) - 1, 0))
        result = np.zeros((len(ids), width), np.float32)
        result[ids >= 0] = fetch(rows)[places]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% wrong="hatches-host-table" because="Keeps fetched rows by their number alone, so another table gets the rows of the first one."
known_rows = {}


def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        missing = [row for row in np.unique(ids) if row >= 0 and (int(row), width) not in known_rows]
        for row, values in zip(missing, fetch(np.array(missing, np.int32)), strict=True):
            known_rows[int(row), width] = values
        result = np.zeros((len(ids), width), np.float32)
        for place, row in enumerate(ids):
            if row >= 0:
                result[place] = known_rows[int(row), width]
        return result

    def on_one_device(ids):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), ids)

    return jax.shard_map(on_one_device, in_specs=P("data"), out_specs=P("data"))(ids)


# %% right="hatches-host-table"
def lookup(ids, fetch, width):
    def on_host(ids):
        ids = np.asarray(ids)
        kept = {int(row): None for row in ids if row >= 0}
        rows = np.array(list(kept), np.int64)
        kept = dict(zip(kept, fetch(rows), strict=True)) if len(rows) else {}
        return np.stack([kept.get(int(row), np.zeros(width, np.float32)) for row in ids])

    def on_one_device(ids):
        result = io_callback(on_host, jax.ShapeDtypeStruct((*ids.shape, width), jnp.float32), ids)
        return jax.lax.pcast(result, "data", to="varying")

    return jax.shard_map(on_one_device, out_specs=P("data"))(ids)


# %% right="hatches-host-table"
def lookup(ids, fetch, width):
    @functools.partial(jax.shard_map, in_specs=P("data"), out_specs=P("data", None))
    def rows_of(ids):
        known = ids >= 0
        order = jnp.argsort(ids)
        sorted_ids = ids[order]
        first = jnp.concatenate([jnp.ones(1, bool), sorted_ids[1:] != sorted_ids[:-1]]) & (sorted_ids >= 0)

        def on_host(sorted_ids, first):
            sorted_ids, first = np.asarray(sorted_ids), np.asarray(first)
            rows = fetch(sorted_ids[first])
            place = np.maximum(np.cumsum(first) - 1, 0)
            padded = np.concatenate([rows, np.zeros((1, width), np.float32)])
            return padded[place]

        result = jax.pure_callback(
            on_host, jax.ShapeDtypeStruct((len(ids), width), jnp.float32), sorted_ids, first, vmap_method="sequential"
        )
        back = jnp.argsort(order)
        return jnp.where(known[:, None], result[back], 0)

    return rows_of(ids)
