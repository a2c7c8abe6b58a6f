# %% [markdown]
# # 23 · Escape hatches: callbacks and the FFI
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/23_escape_hatches/23_escape_hatches.ipynb).* After the core, you can call Python and C++ from a compiled program, batch and differentiate these calls, run them on several devices, and state what they cost.
#
# **Prerequisites.** Tracing and `jit` (lessons 02, 03), custom derivative rules (04), `vmap` (05), `shard_map` (19). Try to answer these questions from memory.
#
# 1. From 02: What does `print(x)` in a jitted function print, and how often?
#
# <details><summary>Answer</summary>
#
# A tracer, without values, once for each trace.
# </details>
#
# 2. From 04: What do `jax.custom_jvp` and `jax.custom_vjp` define, and which of them also supports `jax.jvp`?
#
# <details><summary>Answer</summary>
#
# `custom_jvp` defines the tangent of the result, and JAX transposes it for `grad`. `custom_vjp` defines a forward and a backward pass, and supports reverse mode only.
# </details>
#
# 3. From 19: In `shard_map`, what does the type `float32[2]{V:d}` state?
#
# <details><summary>Answer</summary>
#
# The devices along the mesh axis `d` may have different values.
# </details>

# %%
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # before JAX starts: hides warnings that the compiler writes in C++
from grader.checks import devices, native

devices.start(8)  # before JAX is first used

import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.experimental import io_callback

from grader.learning import plots
from grader.learning.inspection import list_collectives, print_error, time_ms

# %% [markdown]
# ## The ladder
# A simulator exists only in NumPy, or a fast routine only in C++. **How does a compiled program reach code that JAX cannot trace?**
#
# ![A ladder with five rungs, from the bottom to the top. First rung, jnp and jit: you write mathematics, and XLA chooses kernels, fusion and layout. Second rung, shardings: you choose where arrays are stored, and XLA inserts communication. Third rung, shard_map: you write the program of one device with its collectives, and XLA still compiles the local operations. Fourth rung, Pallas: you write a kernel and its blocks, and JAX still traces it. Fifth rung, FFI: you write C++ or CUDA, and XLA only passes buffers. Beside the ladder, callbacks lead from the lower three rungs to Python on the host.](../images/escape_hatches_ladder.svg)
#
# On higher rungs, you control more, and JAX does less for you. JAX cannot look inside a callback or an FFI call. So you supply the type of the result, and the rules for `vmap` and for gradients.
#
# ## Call Python from a compiled program
# This NumPy function has a loop that depends on its values. Tracing it fails.


# %%
def halvings(x):
    """NumPy: how often each number has to be halved until it is below 1."""
    counts = np.zeros(np.shape(x), np.int32)
    x = np.array(x)
    while (x >= 1).any():
        counts += x >= 1
        x = np.where(x >= 1, x / 2, x)
    return counts


x = jnp.array([0.5, 3, 100])
print_error(lambda: jax.jit(halvings)(x), length=200)

# %% [markdown]
# `jax.pure_callback(function, result_type, *args)` calls a [host function](../docs/glossary.md#host-callback), which is a Python function outside of the program. While JAX traces, the function does not run, so you declare the shape and the dtype of its result.


# %%
def halvings_on_host(x):
    return jax.pure_callback(halvings, jax.ShapeDtypeStruct(x.shape, jnp.int32), x)


print(jax.jit(lambda x: halvings_on_host(x) + 1)(x))
print(jax.make_jaxpr(halvings_on_host)(x))

# %% [markdown]
# In the jaxpr, the call is one operation with the declared type. When the program runs, the arguments are copied to the host, the program waits for Python, and the result is copied back. A result of another shape raises an error.


# %%
def last_line(call):
    """Prints the last line of the exception that call() raises. The lines before it quote the traceback of the host."""
    try:
        jax.block_until_ready(call())
    except Exception as problem:
        print(f"{type(problem).__name__}: ... {str(problem).strip().splitlines()[-1][:200]}")


wrong_type = jax.ShapeDtypeStruct((2,), jnp.int32)
last_line(lambda: jax.jit(lambda x: jax.pure_callback(halvings, wrong_type, x))(x))

# %% [markdown]
# ## What "pure" promises
# Equal arguments give equal results, and nothing else happens. To see what JAX does with this promise, we break it: `record` also notes each call.

# %%
seen = []  # the shape of the argument in each call


def record(values):
    seen.append(np.shape(values))
    return np.asarray(values, np.float32)


def calls_of(program, *args):
    """Runs program(*args). Returns the shapes of the arguments in all calls of `record`."""
    seen.clear()
    jax.block_until_ready(program(*args))
    jax.effects_barrier()  # waits for callbacks that return nothing
    return list(seen)


# %% [markdown]
# `in_a_loop` calls `record` in a loop with five iterations.


# %%
def pure(x):
    return jax.pure_callback(record, jax.ShapeDtypeStruct(x.shape, jnp.float32), x, vmap_method="sequential")


@jax.jit
def in_a_loop(x):
    return jax.lax.fori_loop(0, 5, lambda i, total: total + pure(x), 0 * x)


# %% [markdown] predict="hatches-pure"
# How often does `in_a_loop(x)` call `record`?
#
# - [ ] five times | The loop has five iterations, but the argument is the same in each of them.
# - [x] once | Right. The result does not change in the loop, so the compiler moves the call out of the loop. The promise allows this.
# - [ ] never | The result is used. A call whose result is not used is removed.

# %%
print("in a loop:", calls_of(in_a_loop, x))
print("not used: ", calls_of(jax.jit(lambda x: (pure(x), x + 1)[1]), x))

# %% [markdown]
# The five iterations share one call. The unused call is removed.
#
# ## Three kinds of callbacks
# | | returns values | may have side effects | runs |
# |---|---|---|---|
# | `jax.debug.callback(f, *args)` | no | for logs, plots and prints | whenever the code around it runs, also under `vmap` and `grad` |
# | `jax.pure_callback(f, type, *args)` | yes | no | when its result is needed: perhaps never, perhaps several times |
# | `io_callback(f, type, *args, ordered=...)` | yes, or None | yes, such as reading a file | exactly as often as the program states |
#
# We count the calls of each kind in five programs around one call `f(x)`.

# %%
same = lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32)
KINDS = {
    "debug.callback": lambda x: (jax.debug.callback(record, x), x)[1],
    "pure_callback": pure,
    "io_callback": lambda x: io_callback(record, same(x), x),
    "io, ordered": lambda x: io_callback(record, same(x), x, ordered=True),
}
row = jnp.ones(3)
PROGRAMS = {
    "jit, called twice": lambda f: [jax.jit(lambda x: f(x).sum())(v) for v in (row, 2 * row)],
    "result not used": lambda f: jax.jit(lambda x: (f(x), x)[1])(row),
    "scan, 3 steps": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=3)[0])(row),
    "vmap over 4": lambda f: jax.vmap(f)(jnp.ones((4, 3))),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(row),
}

# %% [markdown]
# `count_calls` prints a table of these numbers. Which of them do you expect to be 0?


# %%
def count_calls(programs):
    """Prints how often each program calls `record` with each kind of callback, or "error"."""
    print(f"{'':20s}", *(f"{kind:>15s}" for kind in KINDS))
    for name, program in programs.items():
        counts = []
        for f in KINDS.values():
            try:
                counts.append(len(calls_of(program, f)))
            except Exception:
                counts.append("error")
        print(f"{name:20s}", *(f"{count:>15}" for count in counts))


count_calls(PROGRAMS)

# %% [markdown]
# Only `pure_callback` omits the call whose result is not used. Pure and io callbacks have no derivative. Ordered callbacks cannot be batched, because a batch has no order.
#
# ## One call for a batch
# Under `vmap`, a pure callback needs `vmap_method`, which states what the host function accepts. The next cell calls a function of two arguments, of which only the first has a batch axis.

# %%
shapes = []


def add(a, b):
    shapes.append((np.shape(a), np.shape(b)))
    return np.asarray(a) + np.asarray(b)


for method in ("sequential", "expand_dims", "broadcast_all"):
    one = lambda a, b, method=method: jax.pure_callback(add, same(a), a, b, vmap_method=method)
    shapes.clear()
    jax.block_until_ready(jax.vmap(one, in_axes=(0, None))(jnp.ones((4, 3)), jnp.ones(3)))
    print(f"{method:14s} calls: {len(shapes)}, shapes of the arguments: {shapes[0]}")

# %% [markdown]
# `"sequential"` calls the function once for each element. The other two make one call with a leading batch axis. With `"expand_dims"`, an argument without a batch gets an axis of size 1, so the host function has to broadcast. With `"broadcast_all"`, it gets copies.
#
# ## A derivative for a host function
# Suppose that a simulator computes a curve, here `np.sinc`, and a second host function its derivative. `jax.custom_jvp` combines the two.


# %%
def host(function, x):
    return jax.pure_callback(function, same(x), x, vmap_method="expand_dims")


@jax.custom_jvp
def curve(x):
    return host(lambda x: np.sinc(np.asarray(x)), x)


@curve.defjvp
def curve_jvp(primals, tangents):
    [x], [x_tangent] = primals, tangents
    derivative = lambda x: (np.cos(np.pi * np.asarray(x)) - np.sinc(np.asarray(x))) / np.asarray(x)
    return curve(x), host(derivative, x) * x_tangent  # the tangent stays in JAX


# %% [markdown]
# Compare its gradients with those of `jnp.sinc`, which JAX can trace.

# %%
at = jnp.linspace(0.1, 4, 121)
values, gradients = jax.jit(jax.vmap(jax.value_and_grad(curve)))(at)
expected = jax.vmap(jax.grad(jnp.sinc))(at)
_, axes = plots.subplots(height=2.3)
axes.plot(at, values, label="value from the host")
axes.plot(at, gradients, label="gradient")
axes.plot(at[::8], expected[::8], "o", color=plots.INK, markersize=4, label="gradient of jnp.sinc")
axes.legend()
worst = jnp.abs(gradients - expected).max()
plots.show(f"A curve of a host function and its gradient at 121 points. It differs from JAX's by {worst:.1e} at most.")

# %% [markdown]
# The host returns the derivative, and JAX multiplies it by the tangent. JAX can transpose this product for reverse mode. If the host computed the whole tangent, `grad` would fail, because JAX cannot transpose a callback.
#
# ## Order
# Unordered callbacks run when their arguments are ready. `ordered=True` guarantees the order of the program, also between iterations and calls.

# %%
lines = []


def step(total, i):
    total = total + i
    io_callback(lambda i, total: lines.append(f"step {i}: {total}"), None, i, total, ordered=True)
    return total, None


run = jax.jit(lambda: jax.lax.scan(step, 0, jnp.arange(4))[0])
print(run(), run())
jax.effects_barrier()  # before the log is read
print(lines)

# %% [markdown] predict="hatches-devices"
# ## Callbacks on several devices
# `spread` has the shape `(16,)` and is partitioned over eight devices. What does the host function get in `jax.jit(pure)(spread)`?
#
# - [ ] eight calls with two numbers each | This happens inside `shard_map`.
# - [x] one call with all sixteen numbers | Right. XLA cannot partition a Python function. It gathers the array on one device, which makes the call.
# - [ ] eight calls with sixteen numbers each | The result would be the same on all devices, so one call is enough.

# %%
mesh = jax.make_mesh((8,), ("d",), devices=list(devices.mesh((8,), ("all",)).devices))
jax.set_mesh(mesh)  # for the rest of the notebook
spread = jax.device_put(np.arange(16, dtype=np.float32), P("d"))
on_shards = lambda f: jax.shard_map(f, in_specs=P("d"), out_specs=P("d"))
print("jit:      ", calls_of(jax.jit(pure), spread))
print("shard_map:", calls_of(jax.jit(on_shards(pure)), spread))
count_calls({"jit": lambda f: jax.jit(f)(spread), "shard_map": lambda f: jax.jit(on_shards(f))(spread)})

# %% [markdown]
# Inside `shard_map`, each device calls the host with its shard. The order of the devices is not specified. All kinds of callbacks behave in this way.
#
# ## C++: the foreign function interface
# With the [FFI](../docs/glossary.md#ffi), XLA calls a compiled function with pointers to its buffers, and no Python runs. It takes three steps.
#
# **First, write a handler.** This one computes the RMS norm of each row. It reads the buffer `x` and fills the buffer `y`. `Bind()` lists its attributes, arguments and results in order. An *attribute* is a constant of the program, such as `eps`.

# %%
RMS_NORM = r"""
#include <cmath>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

ffi::Error RmsNorm(float eps, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  int64_t n = x.dimensions().back();
  for (int64_t start = 0; start < int64_t(x.element_count()); start += n) {
    float sum = 0, *in = x.typed_data() + start, *out = y->typed_data() + start;
    for (int64_t i = 0; i < n; ++i) sum += in[i] * in[i];
    float scale = 1 / std::sqrt(sum / n + eps);
    for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(rms_norm, RmsNorm, ffi::Ffi::Bind()
    .Attr<float>("eps").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""

# %% [markdown]
# **Second, compile it and register it as a *target*, under a name.** `native.load` runs `g++ -std=c++17 -O1 -shared -fPIC -I <jax.ffi.include_dir()>` and loads the library. Without g++, it prints a sentence, and the following cells about the FFI do nothing.

# %%
with tempfile.TemporaryDirectory() as folder:
    source = Path(folder, "rms_norm.cc")
    source.write_text(RMS_NORM)
    library = native.load(source)
cpu = jax.devices()[0].platform == "cpu"
if have_ffi := library is not None and cpu:
    capsule = jax.ffi.pycapsule(library.rms_norm)  # a Python object with the pointer to the handler
    jax.ffi.register_ffi_target("rms_norm", capsule, platform="cpu")

# %% [markdown]
# **Third, call it** with the type of the result. `rms_jnp` is the same function without C++.


# %%
def rms_ffi(x, eps=1e-5):
    call = jax.ffi.ffi_call("rms_norm", jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method="broadcast_all")
    return call(x, eps=np.float32(eps))


def rms_jnp(x, eps=1e-5):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)


rng = np.random.default_rng(23)
data = jnp.asarray(rng.normal(size=(4, 6, 32)), jnp.float32)
if have_ffi:
    print("largest difference:", jnp.abs(jax.jit(rms_ffi)(data) - rms_jnp(data)).max())
    along_axis_1 = jax.vmap(rms_ffi, in_axes=1)(data)  # one call, with a leading batch axis
    print("under vmap:        ", jnp.abs(along_axis_1 - rms_jnp(jnp.swapaxes(data, 0, 1))).max())

# %% [markdown]
# Four mistakes are common: an attribute of another dtype, an array of another dtype, an unknown name, and a missing gradient.

# %%
if have_ffi:
    like = jax.ShapeDtypeStruct(data.shape, data.dtype)
    last_line(lambda: jax.ffi.ffi_call("rms_norm", like)(data, eps=1e-5))
    last_line(lambda: rms_ffi(data.astype(jnp.bfloat16)))
    last_line(lambda: jax.ffi.ffi_call("rms_nrom", like)(data, eps=np.float32(1e-5)))
    print_error(lambda: jax.grad(lambda x: rms_ffi(x).sum())(data))

# %% [markdown]
# A Python float becomes a 64-bit attribute, so write `np.float32(eps)`. XLA checks dtypes, but not sizes. So a handler should compare sizes itself, as `norms.cc` of the exercises does. Otherwise it may write outside of its buffer.
#
# ## A gradient for the FFI
# Let s = 1 / √(mean(x²) + eps), so y = s · x. Because s depends on every element of its row, the gradient with respect to x has two terms, s · dy and -s³ · x · mean(dy · x). This version computes their sum with `jnp`. In the exercises, a second handler computes it.


# %%
@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def rms_norm(x, eps):
    return rms_ffi(x, eps)


def rms_backward(eps, x, dy):
    scale = jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)
    return (scale * (dy - x * scale**2 * jnp.mean(dy * x, axis=-1, keepdims=True)),)


rms_norm.defvjp(lambda x, eps: (rms_ffi(x, eps), x), rms_backward)
if have_ffi:
    found, wanted = (jax.jit(jax.grad(lambda x, f=f: jnp.sin(f(x, 1e-5)).sum()))(data) for f in (rms_norm, rms_jnp))
    print("largest difference of the gradients:", jnp.abs(found - wanted).max())

# %% [markdown]
# ## The FFI on several devices
# Under `jit` alone, XLA gathers a partitioned array before an FFI call, as before a callback. Inside `shard_map`, each device calls the handler with its shard.

# %%
if have_ffi:
    rows = jax.device_put(rng.normal(size=(16, 32)).astype(np.float32), P("d"))
    mapped = jax.jit(jax.shard_map(rms_ffi, in_specs=P("d"), out_specs=P("d")))
    for name, program in {"jit": jax.jit(rms_ffi), "shard_map": mapped}.items():
        print(f"{name:9s}", [(one.kind, one.elements) for one in list_collectives(program, rows)])

# %% [markdown] predict="hatches-hole"
# `out_specs=P()` states that all devices have equal results. JAX checks this with the type of the result, which does not vary for an FFI call in JAX 0.10.2. Here, each device has other rows. What does `jax.shard_map(rms_ffi, in_specs=P("d"), out_specs=P())(rows)` do?
#
# - [ ] It raises an error | JAX rejects these `out_specs` for `rms_jnp`, whose type varies. Here, the type does not vary.
# - [x] It returns the rows of one device | Right. The check accepts the type, although the rows differ.
# - [ ] It gathers all rows | `out_specs` never communicates.

# %%
if have_ffi:
    print("rms_ffi:", jax.shard_map(rms_ffi, in_specs=P("d"), out_specs=P())(rows).shape, "of", rows.shape)
    varying = lambda x: jax.lax.pcast(rms_ffi(x), "d", to="varying")
    for name, function in {"rms_jnp": rms_jnp, "rms_ffi and pcast": varying}.items():
        print(f"{name}:", end=" ")
        print_error(lambda f=function: jax.shard_map(f, in_specs=P("d"), out_specs=P())(rows), length=150)

# %% [markdown]
# With `jax.lax.pcast` directly after the call, the check works again. Callbacks need this cast, too. If the call has a custom gradient, the cast belongs *inside* that function. Otherwise gradients are silently wrong (*Deeper: gradients inside shard_map*).
#
# ## What each rung costs
# The next cells time the RMS norm on each rung, for a small and a larger array. The Pallas kernel runs in interpret mode (lesson 22).

# %%
from jax.experimental import pallas as pl


def kernel(x_ref, y_ref):
    y_ref[...] = rms_jnp(x_ref[...])


def rms_pallas(x):
    block = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel, jax.typeof(x), grid=(len(x) // 64,), in_specs=[block], out_specs=block, interpret=True
    )
    return call(x)


def rms_host(x):
    numpy = lambda x: (x := np.asarray(x)) / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5)
    return jax.pure_callback(numpy, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# %% [markdown]
# The programs in `ON_EIGHT` use eight simulated devices, which share one CPU, and an array that is partitioned by rows.

# %%
row_wise = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
RUNGS = {
    "jnp, eager": rms_jnp,
    "jit": jax.jit(rms_jnp),
    "jit, sharded": jax.jit(rms_jnp),
    "shard_map": jax.jit(row_wise(rms_jnp)),
    "Pallas, interpreted": jax.jit(rms_pallas),
    **({"FFI (C++)": jax.jit(rms_ffi)} if have_ffi else {}),
    "pure_callback (NumPy)": jax.jit(rms_host),
}
ON_EIGHT, measured = ("jit, sharded", "shard_map"), {}
for size in ((64, 64), (4096, 512)):
    numbers = rng.normal(size=size).astype(np.float32)
    many, v = jax.device_put(numbers, P("d")), jax.device_put(numbers, jax.devices()[0])
    with jax.set_mesh(None):
        measured[size] = time_ms(*[functools.partial(f, many if n in ON_EIGHT else v) for n, f in RUNGS.items()])

# %% [markdown]
# The bars are in the order of the ladder, with a callback at the top.

# %%
_, axes = plots.subplots(height=3.6)
for place, (size, times) in enumerate(measured.items()):
    fill, hatch = plots.FILLS[place]
    at = np.arange(len(RUNGS)) + 0.4 * place - 0.2
    bars = axes.barh(at, times, 0.38, color=fill, hatch=hatch, edgecolor="white", label=f"{size[0]} x {size[1]}")
    axes.bar_label(bars, fmt="%.3g ms", padding=3)
axes.set(xscale="log", xlabel="milliseconds (logarithmic)", xlim=(None, 12 * max(map(max, measured.values()))))
axes.set_yticks(range(len(RUNGS)), RUNGS)
axes.legend(loc="lower right")
shown = [f"{s}: " + ", ".join(f"{k} {t:.3g} ms" for k, t in zip(RUNGS, ts, strict=True)) for s, ts in measured.items()]
plots.show("The time of an RMS norm on each rung. " + "; ".join(shown) + ".")

# %% [markdown]
# For the small array, the time is mostly the overhead of a call. In our runs, it was smaller for the FFI than for the callback, which has to enter Python. For the larger array, the work itself counts, and this simple C++ loop took about as long as XLA's program. So measure before you leave `jnp`. Use the FFI for algorithms that XLA cannot express well, and for existing libraries.
#
# ## Summary
#
# | you want | you write |
# |---|---|
# | a value from Python, without side effects | `jax.pure_callback(f, jax.ShapeDtypeStruct(shape, dtype), x)` |
# | to read or write something on the host | `io_callback(f, result_type, x, ordered=True)` |
# | to print or plot, also under `grad` and `vmap` | `jax.debug.callback(f, x)` |
# | one host call for a batch | `vmap_method="expand_dims"` or `"broadcast_all"` |
# | a gradient | `jax.custom_jvp` or `jax.custom_vjp` around the call |
# | all callbacks to have run | `jax.effects_barrier()` |
# | C++ | a handler, `register_ffi_target`, `jax.ffi.ffi_call(name, types)(x, eps=np.float32(eps))` |
# | no gather before the call | the call inside `jax.shard_map`, and `jax.lax.pcast(result, axes, to="varying")` directly after it |
# | CUDA | `platform="CUDA"`, and a handler that takes a stream |
#
# The JAX documentation has pages on [callbacks](https://docs.jax.dev/en/latest/external-callbacks.html) and on the [FFI](https://docs.jax.dev/en/latest/ffi.html).
#
# ## Deeper: callbacks in branches and under checkpoint
# We count the calls of four more programs.

# %%
count_calls(
    {
        "cond, taken": lambda f: jax.jit(lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x, x))(row),
        "cond, not taken": lambda f: jax.jit(lambda x: jax.lax.cond(x[0] > 5, f, lambda x: x, x))(row),
        "vmap of cond": lambda f: jax.vmap(lambda x: jax.lax.cond(x[0] > 0, f, lambda x: x, x))(jnp.eye(4, 3)),
        "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(lambda x: jnp.sin(f(x)).sum()))(row),
    }
)

# %% [markdown]
# The condition holds for one of the four rows of `jnp.eye(4, 3)`. But in a vmapped `cond`, both branches run for each element (lesson 08). So `debug.callback` also runs where the branch is not taken, and `io_callback` is rejected. With `checkpoint`, the forward pass runs again, and so does its `debug.callback`.
#
# ## Deeper: gradients inside shard_map
# This function has a custom rule. We compute its gradient with the cast inside of this function, after it, and without the cast, and compare with `jnp`.


# %%
def gradient_error(cast):
    def call(x):
        y = rms_ffi(x)
        return jax.lax.pcast(y, "d", to="varying") if cast == "inside" else y

    norm = jax.custom_vjp(call)
    norm.defvjp(lambda x: (call(x), x), functools.partial(rms_backward, 1e-5))
    after = lambda y: jax.lax.pcast(y, "d", to="varying") if cast == "after" else y
    on_shards = jax.shard_map(lambda x: jnp.sin(after(norm(x)) * x), in_specs=P("d"), out_specs=P("d"))
    found = jax.jit(jax.grad(lambda x: on_shards(x).sum()))(rows)
    return jnp.abs(found - jax.grad(lambda x: jnp.sin(rms_jnp(x) * x).sum())(rows)).max()


if have_ffi:
    for cast in ("inside", "after", "none"):
        print(f"cast: {cast:6s}  error of the gradient: {gradient_error(cast):.2g}")

# %% [markdown]
# Without a cast inside, the result of `norm` has a type that does not vary. When such a value is combined with one that varies, JAX casts it, and the transpose of this cast is a `psum` of the cotangents (lesson 19). So the rule gets the sum of the cotangents of all devices, although each device has other rows. A cast after `norm` is the same cast. The gradient is wrong, and no error is raised.
#
# ## Deeper: CUDA
# `rms_ffi` calls a target by its name, and the same Python code runs on a GPU. Only the registration differs:
#
# ```python
# jax.ffi.register_ffi_target("rms_norm", jax.ffi.pycapsule(library.rms_norm), platform="CUDA")
# ```
#
# In C++, the handler gets one more line in its binding, `.Ctx<ffi::PlatformStream<cudaStream_t>>()`. The stream becomes its first argument, and the handler starts a kernel on this stream instead of computing itself.
#
# ```cpp
# __global__ void Rows(float eps, int64_t n, const float* x, float* y) {
#   const float* in = x + blockIdx.x * n;
#   float sum = 0;
#   for (int64_t i = 0; i < n; ++i) sum += in[i] * in[i];
#   for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
#     y[blockIdx.x * n + i] = in[i] * rsqrtf(sum / n + eps);
# }
#
# ffi::Error RmsNorm(cudaStream_t stream, float eps, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
#   int64_t n = x.dimensions().back();
#   Rows<<<x.element_count() / n, 128, 0, stream>>>(eps, n, x.typed_data(), y->typed_data());
#   return cudaGetLastError() == cudaSuccess ? ffi::Error::Success() : ffi::Error::Internal("no launch");
# }
#
# XLA_FFI_DEFINE_HANDLER_SYMBOL(rms_norm, RmsNorm, ffi::Ffi::Bind()
#     .Ctx<ffi::PlatformStream<cudaStream_t>>()  // the stream
#     .Attr<float>("eps").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
# ```
#
# We compiled this file with nvcc 13.0 (`nvcc -std=c++17 -shared -Xcompiler -fPIC`), but did not run it on a GPU. The kernel is simple rather than fast. Each thread of a block computes the whole sum. The pointers point to the memory of the device, so the C++ of the CPU handler would crash there.
#
# ## Deeper: several dtypes
# A template gives one handler for each dtype. The Python function chooses the target by the dtype of its argument.

# %%
TEMPLATE = RMS_NORM.replace("ffi::Error RmsNorm", "template <ffi::DataType T>\nffi::Error RmsNorm")
TEMPLATE = TEMPLATE.replace("Buffer<ffi::F32> x", "Buffer<T> x").replace("Buffer<ffi::F32> y", "Buffer<T> y")
TEMPLATE = TEMPLATE.replace("float sum", "ffi::NativeType<T> sum").replace("float scale", "ffi::NativeType<T> scale")
TEMPLATE = TEMPLATE.split("XLA_FFI_DEFINE")[0]
DEFINE = """XLA_FFI_DEFINE_HANDLER_SYMBOL(rms_%s, RmsNorm<ffi::%s>, ffi::Ffi::Bind()
    .Attr<float>("eps").Arg<ffi::Buffer<ffi::%s>>().Ret<ffi::Buffer<ffi::%s>>());
"""
if have_ffi:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "rms_dtypes.cc")
        kinds = {"float32": "F32", "float64": "F64"}
        source.write_text(TEMPLATE + "".join(DEFINE % (name, kind, kind, kind) for name, kind in kinds.items()))
        several = native.load(source)
    for name in kinds:
        jax.ffi.register_ffi_target(f"rms_{name}", jax.ffi.pycapsule(getattr(several, f"rms_{name}")), platform="cpu")
    with jax.enable_x64(True):
        for dtype in (np.float32, np.float64):
            v = jnp.asarray(data, dtype)
            call = jax.ffi.ffi_call(f"rms_{v.dtype}", jax.ShapeDtypeStruct(v.shape, v.dtype))
            print(v.dtype, jnp.abs(call(v, eps=np.float32(1e-5)) - rms_jnp(v, np.float32(1e-5))).max())

# %% [markdown]
# C++17 has no bfloat16, so the FFI passes its values as `uint16_t`, and the handler converts them. `norms.cc`, beside the exercises, shows how. `ffi::AnyBuffer` accepts every dtype, and the handler then checks `x.element_type()`.
#
# ## Deeper: a host function that fails
# An exception in a host function ends the program. The class of the exception is lost, and JAX raises its own class, with the traceback of the host as text.

# %%
import logging

logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # JAX also logs the exception


def refuse(x):
    raise ValueError("the simulator has no licence")


with jax.set_mesh(None):
    last_line(lambda: jax.jit(lambda x: jax.pure_callback(refuse, same(x), x))(row))

# %% [markdown]
# To react to a failure, return a flag as a second result. Do not call JAX operations in a host function. The program that waits for the host may occupy the device, so the two can wait for each other forever. Use NumPy there. The arguments are JAX arrays, and `np.asarray` converts them.
#
# ## Deeper: two chains of order
# `jax.debug.callback` accepts `ordered=True` too. But its order is a chain of its own. JAX orders debug callbacks among each other, and io callbacks among each other, and nothing orders one kind relative to the other. The effects of the program show the two chains. A compiled program for several devices rejects ordered debug callbacks, but accepts ordered io callbacks, as the table of *Callbacks on several devices* shows.


# %%
def mixed(x):
    jax.debug.callback(record, x, ordered=True)
    return io_callback(record, same(x), x, ordered=True)


print(sorted(type(effect).__name__ for effect in jax.make_jaxpr(mixed)(row).effects))
print_error(lambda: jax.jit(mixed)(spread), length=100)

# %% [markdown]
# ## Deeper: what cannot leave the process
# A callback is a pointer to a Python function of this process, and an FFI target is a pointer to a loaded library. A program with one of them cannot be exported as bytes (lesson 24), because neither exists in another process.

# %%
with jax.set_mesh(None):
    print_error(lambda: jax.export.export(jax.jit(pure))(row).serialize())
    if have_ffi:
        print_error(lambda: jax.export.export(jax.jit(rms_ffi))(row).serialize())

# %% [markdown]
# For the FFI, you can pass `disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("rms_norm")]`. The process that loads the export must then register the same target.
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `jax.experimental.host_callback.call`, `id_tap`, `id_print` | `jax.pure_callback` or `io_callback`, `jax.debug.callback`, `jax.debug.print` |
# | `pure_callback(..., vectorized=True)` | `vmap_method="expand_dims"` or `"broadcast_all"` |
# | `jax.extend.ffi` | `jax.ffi` |
# | `ffi_call(name, types, x, eps=...)` | `ffi_call(name, types)(x, eps=...)` |
# | `xla_client.register_custom_call_target`, custom calls with a `void*` | `jax.ffi.register_ffi_target` and a typed handler |
# | a primitive with an MLIR lowering for each call | `jax.ffi.ffi_call` with `custom_vjp` |
