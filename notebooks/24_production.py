# %% [markdown]
# # 24 · Production: save, export, serve, connect
#
# *The core takes about 30 minutes. Six "Deeper" sections can be skipped. Then do [the exercises](../exercises/24_production/24_production.ipynb).* After the core, you can save a training run and resume it exactly after a crash, restore it on other devices, export a program that runs without your code, and let several processes compute together.
#
# **Prerequisites.** Keys (lesson 07), training with Optax (09), `lower` and `compile` (14), shardings (16), data parallelism (18). Try to answer these questions from memory.
#
# 1. From 16: What does `jax.device_put(x, NamedSharding(mesh, P("d")))` do?
#
# <details><summary>Answer</summary>
#
# It partitions axis 0 of `x` over the devices along the mesh axis `d`. Each of them stores one shard.
# </details>
#
# 2. From 07: Which key does step 5 use if each step splits the key once?
#
# <details><summary>Answer</summary>
#
# One that depends on all earlier splits. To resume at step 5, the run needs the key that step 4 left.
# </details>
#
# 3. From 14: What does `jax.jit(f).lower(x).compile()` return?
#
# <details><summary>Answer</summary>
#
# An executable for the shapes, dtypes and sharding of `x`. It rejects other shapes.
# </details>

# %%
from grader.checks import devices

devices.start(8)  # before JAX is first used: eight simulated devices, for machines with fewer real ones

# %%
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.learning import plots
from grader.learning.inspection import bytes_on_device, print_error, time_ms

# %%
temporary = tempfile.TemporaryDirectory()  # deleted at the end
folder = Path(temporary.name)
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
grid = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

# %% [markdown]
# ## Save a state
# A run on many devices fails sooner or later. **What must be on disk, so that nothing but time is lost?** Orbax is the [checkpoint](../docs/glossary.md#checkpoint) library of the JAX ecosystem. It saves a tree of arrays as a folder, and every process writes only the shards that it stores.

# %%
w = jax.device_put(np.arange(1 << 22, dtype=np.float32).reshape(2048, 2048), NamedSharding(mesh, P("d")))
state = {"w": w, "scale": jnp.ones(8, jnp.bfloat16), "key": jax.random.key(0), "epoch": 3}

checkpointer = ocp.StandardCheckpointer()
checkpointer.save(folder / "first", state)
checkpointer.wait_until_finished()
for path in sorted((folder / "first").iterdir()):
    print(path.name)

# %% [markdown] predict="production-async"
# `save` is *asynchronous*. The cell measures the time until `save` returns, and until the checkpoint is complete. What does `save` do before it returns?
#
# - [ ] nothing, so the next step may change the values that are saved | The values of the moment of the call are saved.
# - [x] it copies the arrays to the memory of the host | Right. Afterwards, a training step may donate or delete the arrays. Threads write the copy while the devices compute.
# - [ ] it writes all files | `wait_until_finished` waits for the files.

# %%
sizes, returned, complete = (16, 18, 20, 22, 24), [], []  # log2 of the number of elements
for size in sizes:
    values = {"x": jax.device_put(np.random.default_rng(0).normal(size=1 << size).astype(np.float32))}
    start = time.perf_counter()
    checkpointer.save(folder / f"size_{size}", values)
    returned.append(1e3 * (time.perf_counter() - start))
    checkpointer.wait_until_finished()
    complete.append(1e3 * (time.perf_counter() - start))

# %%
_, axes = plots.subplots(height=2.6)
mebibytes = [4 * 2**size / 2**20 for size in sizes]
axes.loglog(mebibytes, complete, marker="s", label="until the checkpoint is complete")
axes.loglog(mebibytes, returned, marker="o", label="until save returns")
axes.set(xlabel="size of the array in MiB", ylabel="milliseconds")
axes.legend()
plots.show(
    f"Time to save an array of {mebibytes[0]:g} to {mebibytes[-1]:g} MiB. For the largest one, save returns after "
    f"{returned[-1]:.0f} ms, and the checkpoint is complete after {complete[-1]:.0f} ms."
)

# %% [markdown]
# Training waits only until `save` returns. **Always wait before the program ends or reads the checkpoint**, or use the checkpointer in a `with` statement.
#
# ## Restore on other devices
# A checkpoint contains whole arrays in chunks, and no layout that you have to keep. The *target* of `restore` is a tree of `jax.ShapeDtypeStruct` with the shardings that you want now. Each device then reads its part. Here, the mesh changes from eight to two by four devices.

# %%
target = {
    "w": jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=NamedSharding(grid, P("y", "x"))),
    "scale": jax.ShapeDtypeStruct((8,), jnp.bfloat16, sharding=NamedSharding(grid, P())),
    "key": jax.random.key(1),  # its value is replaced
    "epoch": 0,
}
restored = checkpointer.restore(folder / "first", target)
plots.show_shardings({"w, saved": w, "w, restored": restored["w"]}, "The array before and after.")
same = bool((np.asarray(restored["w"]) == np.asarray(w)).all())
print("equal:", same, "  epoch", restored["epoch"], "  bytes on device 0:", bytes_on_device(restored["w"]))

# %% [markdown]
# Without a target, Orbax uses the shardings that were saved. With a target, it compares the shapes and the structure. These are typical mistakes.

# %%
wrong_shape = {
    **target,
    "w": jax.ShapeDtypeStruct((2048, 1024), jnp.float32, sharding=NamedSharding(grid, P("y", "x"))),
}
print_error(lambda: checkpointer.restore(folder / "first", wrong_shape), length=160)
print_error(lambda: checkpointer.restore(folder / "first", {"w": target["w"]}), length=130)
print_error(lambda: checkpointer.save(folder / "first", state), length=130)

# %% [markdown] predict="production-crash"
# ## What a crash leaves behind
# The next script saves one checkpoint and waits. Then it begins a second one, and the kernel kills it with signal 9, which no program can catch. What is in the folder afterwards?
#
# - [ ] the first checkpoint, and an incomplete folder `second` | Then a reader could mistake it for a checkpoint.
# - [x] the first checkpoint, and a folder with a temporary name | Right. Orbax renames the folder after everything is written. A rename happens completely or not at all.
# - [ ] only the first checkpoint, because the second one is deleted | After signal 9, nothing can be deleted by the process.

# %%
CRASH = """
import os, signal, sys
import jax.numpy as jnp, orbax.checkpoint as ocp

checkpointer = ocp.StandardCheckpointer()
checkpointer.save(sys.argv[1] + "/one", {"x": jnp.ones(4)})
checkpointer.wait_until_finished()
checkpointer.save(sys.argv[1] + "/two", {"x": jnp.ones(1 << 24)})
os.kill(os.getpid(), signal.SIGKILL)
"""
environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
(folder / "crash").mkdir()
ended = subprocess.run([sys.executable, "-c", CRASH, str(folder / "crash")], env=environment)
print("exit code", ended.returncode, "  folder:", sorted(path.name for path in (folder / "crash").iterdir()))
print_error(lambda: checkpointer.restore(folder / "crash" / "two", {"x": jnp.ones(1 << 24)}))

# %% [markdown]
# ## A loop that survives kill -9
# A step of training reads the parameters, the optimizer state, a key and a batch. **All four need a place in the checkpoint**, and the batch is given by the position of the loader. `ocp.CheckpointManager` numbers the checkpoints, finds the latest complete one, and deletes old ones.

# %%
LOOP = """
import sys, time, jax, jax.numpy as jnp, numpy as np, optax, orbax.checkpoint as ocp
folder, steps = sys.argv[1], int(sys.argv[2])
optimizer, data = optax.adam(0.02), np.linspace(-2, 2, 64, dtype=np.float32)

@jax.jit
def step(state, batch):
    key, subkey = jax.random.split(state["key"])
    keep = jax.random.bernoulli(subkey, 0.9, (16,))  # dropout
    def loss_of(p):
        return jnp.mean((jnp.tanh(batch[:, None] * p["w"] + p["b"]) * keep @ p["v"] - jnp.sin(batch)) ** 2)
    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    updates, opt = optimizer.update(gradients, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "key": key}, loss

key, subkey = jax.random.split(jax.random.key(0))
params = {"w": jax.random.normal(subkey, (16,)), "b": jnp.zeros(16), "v": jnp.ones(16)}
state = {"params": params, "opt": optimizer.init(params), "key": key}
"""

# %%
LOOP += """
from absl import logging
logging.set_verbosity(logging.ERROR)  # Orbax logs a warning when it removes what a killed process has left
position = 0  # of the loader
with ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
    done = manager.latest_step() or 0
    if done:
        saved = manager.restore(done, args=ocp.args.StandardRestore({"state": state, "position": position}))
        state, position = saved["state"], saved["position"]
    for number in range(done + 1, steps + 1):
        batch = data[np.random.default_rng(position).permutation(64)[:8]]
        position += 1
        state, loss = step(state, batch)
        print(number, float(loss).hex(), flush=True)  # all bits of the loss
        time.sleep(0.03)  # as if the model were larger
        if number % 10 == 0:
            manager.save(number, args=ocp.args.StandardSave({"state": state, "position": position}))
"""

# %% [markdown]
# We run it once without an interruption. Then we start it again and again in another folder, and kill each process when it has printed a certain step.


# %%
def run(name, kill_after=None):
    """Runs the loop in a process, which is killed after this step. Returns the losses {step: bits}."""
    losses, command = {}, [sys.executable, "-c", LOOP, str(folder / name), "60"]
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            number, losses_bits = line.split()
            losses[int(number)] = losses_bits
            if int(number) == kill_after:
                process.kill()
                break
    return losses


whole = run("whole")
attempts = [run("killed", kill_after) for kill_after in (17, 34, 52, None)]

# %%
_, axes = plots.subplots(height=2.7)
axes.plot(whole.keys(), [float.fromhex(bits) for bits in whole.values()], color=plots.QUIET, label="without a stop")
for number, losses in enumerate(attempts, 1):
    values = np.array([float.fromhex(bits) for bits in losses.values()])
    axes.plot(losses.keys(), values * 1.6**number, marker=".", label=f"attempt {number}")
axes.set(xlabel="step", ylabel="loss (attempts shifted up)", yscale="log")
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
ranges = ", ".join(f"{min(losses)} to {max(losses)}" for losses in attempts)
plots.show(f"The losses of the run without a stop, and of four attempts, which are shifted up. Their steps: {ranges}.")
print("steps of the attempts:", ranges)
print("all losses bitwise equal:", all(whole[step] == bits for losses in attempts for step, bits in losses.items()))

# %% [markdown]
# Each attempt resumes after the last complete checkpoint. A checkpoint that was being written when the process was killed does not count. All losses are equal to the last bit. Bitwise equality needs the same program on the same kind of device, because another compiler or mesh may round differently. If you leave out the key or the position, the losses differ without any error. The exercise *A training loop that resumes exactly* shows it.
#
# ## Export a program
# A checkpoint needs your code. `jax.export` saves the *program* as bytes, without parameters unless you close over them. Such an [export](../docs/glossary.md#export) is a program for fixed shapes. A **symbolic dimension** ([shape polymorphism](../docs/glossary.md#shape-polymorphism)) stands for any size.

# %%
params = {"w": jnp.ones((4, 3)) / 4, "b": jnp.zeros(3)}


def predict(params, x):
    return jax.nn.softmax(x @ params["w"] + params["b"])


(b,) = jax.export.symbolic_shape("b")
exported = jax.export.export(jax.jit(predict), platforms=("cpu", "cuda", "tpu"))(
    params, jax.ShapeDtypeStruct((b, 4), jnp.float32)
)
blob = exported.serialize(vjp_order=1)  # with one backward pass
(folder / "model.bin").write_bytes(blob)
print(len(blob), "bytes for", exported.platforms, *exported.in_avals, "->", *exported.out_avals)

# %% [markdown] predict="production-new-process"
# Another process has only this file, and neither `predict` nor a model library. Which of these calls works there, with parameters of the right shapes?
#
# - [ ] only a batch of the size at the export | The export has no size, because `b` is a symbol.
# - [x] batches of 1 and of 7, and a gradient with respect to the parameters | Right. The bytes contain the program for any `b`, and its backward pass.
# - [ ] batches of any size and of any number of features | The number of features was 4 at the export, so the program requires 4.

# %%
SERVE = """
import sys, jax, jax.numpy as jnp
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
params = {"w": jnp.ones((4, 3)), "b": jnp.arange(3.0)}
for batch in (1, 7):
    print(batch, exported.call(params, jnp.ones((batch, 4))).shape)
print("gradient", jax.grad(lambda params: exported.call(params, jnp.ones((2, 4)))[:, 0].sum())(params)["b"])
"""
command = [sys.executable, "-c", SERVE, str(folder / "model.bin")]
print(subprocess.run(command, env=environment, text=True, capture_output=True).stdout)
print_error(lambda: exported.call(params, jnp.ones((2, 5))), length=200)
print_error(lambda: exported.call(params, jnp.ones((2, 4), jnp.int32)), length=200)

# %% [markdown]
# With a symbol, each step of the function must be valid for all sizes. A Python `if` on the size fails, as does a `reshape` that needs an even size. State what you know in the shape, such as `2*b`.

# %%
halves = jax.jit(lambda x: x.reshape(-1, 2).sum(axis=1))
print_error(lambda: jax.export.export(halves)(jax.ShapeDtypeStruct((b,), jnp.float32)), length=180)
print(*jax.export.export(halves)(jax.ShapeDtypeStruct((2 * b,), jnp.float32)).out_avals)

# %% [markdown]
# ## Several processes
# On a cluster, each machine runs its own process, with the same program. `jax.distributed.initialize` connects them to process 0, the [coordinator](../docs/glossary.md#coordinator). Afterwards, `jax.devices()` contains the devices of all processes, and a mesh may span all of them. A process can read only the shards of its own devices, which are **[addressable](../docs/glossary.md#addressable)**.
#
# ![Two processes with four devices each. Each process loads half of the rows of a batch. make_array_from_process_local_data combines them into one global array of eight shards. Process 0 can read shards 0 to 3, process 1 shards 4 to 7. A jitted sum with a replicated result is an all-reduce between the processes, and afterwards each device has the sum.](../images/production_processes.svg)
#
# The next script runs in two processes on this machine. They have four simulated devices each, and communicate over the loopback address.

# %%
WORKER = """
import sys, jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
index, count, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_num_cpu_devices", 8 // count)
jax.distributed.initialize(address, count, index)
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
rows = 8 // count  # that this process loads
local = np.arange(rows, dtype=np.float32) + rows * jax.process_index()
batch = jax.make_array_from_process_local_data(NamedSharding(mesh, P("d")), local)
total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))(batch)
own = [shard.data.item() for shard in batch.addressable_shards]
text = f"process {index} has {len(jax.local_devices())} of {len(jax.devices())} devices, sum {float(total)}, rows {own}"
try:
    np.asarray(batch)
except RuntimeError as problem:
    text += "\\n  RuntimeError: " + str(problem)[:99]
sys.stdout.write("\\n" + text + "\\n")
"""


# %%
def start_processes(script, count, *args):
    """Starts `count` connected processes and returns what they print, without the messages of the transport."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"  # a port that is free now
    command = [sys.executable, "-c", script]
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment}
    started = [subprocess.Popen([*command, str(i), str(count), address, *args], **pipes) for i in range(count)]
    said = [process.communicate()[0] for process in started]
    lines = [line for text in said for line in text.splitlines() if line and not line.startswith("[Gloo]")]
    return "\n".join(lines), started


print(start_processes(WORKER, 2)[0])

# %% [markdown]
# `make_array_from_process_local_data` takes the rows of this process, and returns the array of all processes. The sum has the same value in both processes, because its sharding `P()` replicates it. To read a partitioned array, use `jax.experimental.multihost_utils.process_allgather`, or save it with Orbax, which lets each process write its part. **Every process must run the same computations in the same order**, because each collective waits for all of them.
#
# ## When one process fails
# The processes send heartbeats to the coordinator. The next script shortens their timeout from 100 to 5 seconds, and process 1 kills itself. How long does process 0 wait?

# %%
FAIL = """
import os, signal, sys, time, jax
index, count, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.distributed.initialize(address, count, index, heartbeat_timeout_seconds=5)
print(f"process {index} is connected", flush=True)
if index == 1:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
while time.monotonic() - began < 30:
    print(f"process 0 runs for {time.monotonic() - began:.0f} s", flush=True)
    time.sleep(1)
"""
text, ended = start_processes(FAIL, 2)
lines = text.splitlines()
print(lines[0], lines[-1], lines[-2], sep="\n")
print("exit codes:", [process.returncode for process in ended])

# %% [markdown]
# JAX ended process 0, too (signal 6, an abort), because the collectives of the others could never finish. The usual reaction is to start all processes again, and to resume at the last checkpoint. If the coordinator fails, the others notice the closed connection immediately.
#
# ## Deeper: four processes
# The same script runs in four processes with two devices each.

# %%
print("\n".join(line for line in start_processes(WORKER, 4)[0].splitlines() if line.startswith("process")))

# %% [markdown]
# ## Deeper: restore a part
# To fine-tune, you may need the weights without the rest. With `partial_restore=True`, Orbax reads only what the target contains. `metadata` returns the shapes without reading any array.

# %%
found = checkpointer.metadata(folder / "first").item_metadata
print({name: (entry.shape, str(entry.dtype)) for name, entry in found.tree.items() if name != "key"})
part = {"w": target["w"]}
arguments = ocp.args.PyTreeRestore(
    item=part, restore_args=ocp.checkpoint_utils.construct_restore_args(part), partial_restore=True
)
with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    only = reader.restore(folder / "first", args=arguments)
print(list(only), only["w"].sharding.spec)

# %% [markdown]
# ## Deeper: export for many devices, and versions
# An export contains the shardings and the number of devices, but not which devices. The loading process needs a mesh of this size.

# %%
layout = [jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("d")))]
column_sums = jax.export.export(jax.jit(lambda x: x.sum(axis=0)))(*layout)
x = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, P("d")))
again = jax.export.deserialize(column_sums.serialize())
print(again.nr_devices, "devices:", jax.jit(again.call)(x))
print_error(lambda: again.call(np.ones((16, 8), np.float32)), length=240)
lowest, highest = (getattr(jax.export, f"{name}imum_supported_calling_convention_version") for name in ("min", "max"))
print("calling convention", again.calling_convention_version, "of the supported", lowest, "to", highest)

# %% [markdown]
# An export also states the version of its *calling convention*. JAX guarantees that exports can be loaded by later releases for six months, so an archive needs the checkpoint and the source code, too. `jax.export` refuses host callbacks and FFI calls that it does not know. **Load exports and checkpoints only from people whom you trust**, because `deserialize` does not check its input.
#
# ## Deeper: serve requests
# A server receives single requests. Larger batches use the device better, but each request waits for its batch. An executable that was compiled ahead of time never compiles while a request waits. We compile for a few batch sizes, and pad each batch to the next of them.

# %%
keys = jax.random.split(jax.random.key(0), 3)
layers = [jax.random.normal(key, (512, 512)) / 512**0.5 for key in keys]


def model(layers, x):
    for layer in layers:
        x = jnp.tanh(x @ layer)
    return x


buckets = (1, 8, 64)
compiled = {n: jax.jit(model).lower(layers, jax.ShapeDtypeStruct((n, 512), jnp.float32)).compile() for n in buckets}


def answer(requests):
    """Answers a list of at most 64 vectors of shape (512,)."""
    size = next(n for n in buckets if n >= len(requests))
    padded = np.zeros((size, 512), np.float32)
    padded[: len(requests)] = requests
    return np.asarray(compiled[size](layers, padded))[: len(requests)]


# %%
counts = (1, 2, 8, 16, 64)
requests = np.ones((64, 512), np.float32)
times = time_ms(*[lambda n=n: answer(requests[:n]) for n in counts])
rate = [n / ms for n, ms in zip(counts, times, strict=True)]
_, axes = plots.subplots(1, 2, height=2.5)
axes[0].plot(counts, times, marker="o")
axes[0].set(xlabel="requests in a batch", ylabel="milliseconds", ylim=(0, None))
axes[1].plot(counts, rate, marker="o")
axes[1].set(xlabel="requests in a batch", ylabel="requests per millisecond", ylim=(0, None))
plots.show(
    f"Left: a batch of 1 takes {times[0]:.2f} ms, a batch of 64 takes {times[-1]:.2f} ms. "
    f"Right: {rate[0]:.1f} and {rate[-1]:.1f} requests per millisecond."
)
print_error(lambda: compiled[8](layers, requests), length=180)

# %% [markdown]
# ## Deeper: start faster
# A restarted process compiles again, unless it has a persistent compilation cache (lesson 14). We measure the first call in two processes with the same cache folder.

# %%
FIRST = """
import sys, time, jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
x, start = jnp.ones((64, 64)), time.perf_counter()
f = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: jnp.linalg.qr(x)[0] @ jnp.cos(x), x))
f(x).block_until_ready()
print(f"{1e3 * (time.perf_counter() - start):.0f} ms")
"""
for name in ("empty cache", "filled cache"):
    command = [sys.executable, "-c", FIRST, str(folder / "cache")]
    print(name, subprocess.run(command, env=environment, text=True, capture_output=True).stdout.strip())

# %% [markdown]
# All processes of a cluster may share one folder. Only trusted users may write to it.
#
# ## Deeper: logging and a progress bar
# `float(loss)` waits for the device. A loop that prints each loss cannot run ahead (lesson 01), so read the losses rarely, and after the next step has been dispatched. Only process 0 should print. Orbax and JAX log with Python's `logging`, and `jax.log_compiles` shows an unexpected compilation.

# %%
import io

from tqdm import tqdm

bar_text, pending = io.StringIO(), None
step = jax.jit(lambda x: jnp.tanh(x @ x) / 2)
value = jnp.eye(256)
with tqdm(total=100, file=bar_text, disable=jax.process_index() != 0, ncols=70) as bar:
    for number in range(100):
        value = step(value)
        if number % 20 == 19:
            if pending is not None:
                bar.set_postfix(mean=f"{float(pending):.1e}")  # of 20 steps ago: it is ready
            pending = value.mean()
            bar.update(20)
print(bar_text.getvalue().split("\r")[-1])

# %%
checkpointer.close()
temporary.cleanup()

# %% [markdown]
# ## Summary
#
# | you want | you write |
# |---|---|
# | to save a tree | `ocp.StandardCheckpointer().save(folder, tree)`, then `wait_until_finished()` |
# | to restore it on other devices | `restore(folder, target)`, with a `jax.ShapeDtypeStruct(shape, dtype, sharding=...)` for each leaf |
# | numbered checkpoints | `ocp.CheckpointManager(folder)` with `latest_step`, `save` and `restore` |
# | to resume exactly | parameters, optimizer state, key and loader position in one checkpoint |
# | a program without your code | `jax.export.export(jax.jit(f))(*shapes).serialize()` |
# | any batch size | `jax.export.symbolic_shape("b")` |
# | a program for other platforms | `platforms=("cpu", "cuda", "tpu")` |
# | several processes | `jax.distributed.initialize(address, count, index)` |
# | a global array from local rows | `jax.make_array_from_process_local_data(sharding, rows)` |
# | no compilation while a request waits | `jax.jit(f).lower(shape).compile()` for each batch size |
#
# | in older code | now |
# |---|---|
# | `flax.training.checkpoints.save_checkpoint` | `orbax.checkpoint` |
# | `ocp.PyTreeCheckpointer()`, `ocp.AsyncCheckpointer` | `ocp.StandardCheckpointer()`, which is asynchronous |
# | `jax.experimental.export` | `jax.export` |
# | `jax2tf.convert` to save a program | `jax.export` |
# | `host_local_array_to_global_array`, `GlobalDeviceArray` | `jax.make_array_from_process_local_data` |
# | `jax.experimental.compilation_cache.initialize_cache` | the setting `jax_compilation_cache_dir` |
#
# The documentation of [JAX](https://docs.jax.dev/en/latest/export/index.html) and of [Orbax](https://orbax.readthedocs.io) has more. In the first exercise, you compute which rows a process loads.
