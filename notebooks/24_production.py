# %% [markdown]
# # 24 · Production: save, export, serve, connect
#
# *The core takes about 35 minutes. Eight "Deeper" sections can be skipped. Then do [the exercises](../exercises/24_production/24_production.ipynb).* After the core, you can save a training run and resume it exactly after a crash, restore it on a different mesh, export a program that runs without your Python code, and connect several processes that compute together.
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
# 2. From 07: A training loop executes `key, subkey = jax.random.split(key)` in each step. What do you need to repeat step 5 exactly?
#
# <details><summary>Answer</summary>
#
# The `key` at the end of step 4. It depends on all earlier splits.
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
from concurrent.futures import ThreadPoolExecutor
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
# A long run will be interrupted: a machine fails, or its time limit ends. **What must be on disk, so that you lose only time?**
#
# [Orbax](https://orbax.readthedocs.io) is the [checkpoint](../docs/glossary.md#checkpoint) library that the Flax documentation uses. It saves a pytree to a folder that does not exist yet. The leaves may be arrays on any mesh, random keys and Python numbers.

# %%
w = jax.device_put(np.arange(1 << 22, dtype=np.float32).reshape(2048, 2048), NamedSharding(mesh, P("d")))
state = {"w": w, "scale": jnp.ones(8, jnp.bfloat16), "key": jax.random.key(0), "epoch": 3}

checkpointer = ocp.StandardCheckpointer()
checkpointer.save(folder / "first", state)
checkpointer.wait_until_finished()
for path in sorted((folder / "first").iterdir()):
    print(path.name)

# %% [markdown]
# `ocdbt.process_0` contains the values that process 0, the only one here, has written. `d` and `manifest.ocdbt` are the index of these values, and the metadata files describe the tree and its shardings. The path of a checkpoint must be absolute.

# %% [markdown] predict="production-async"
# `save` is *asynchronous*: it returns before the checkpoint is complete. Suppose that the next training step donates the saved array, while Orbax still writes. Which values does the checkpoint contain?
#
# - [x] the values at the call of `save` | Right. `save` returns after the values have been transferred to the host. Background threads then write the files.
# - [ ] the values after the step, or a mixture | Then asynchronous checkpoints would be useless. `save` transfers the values to the host before it returns.
# - [ ] none, because the donated array was deleted | Donation would come too late: `save` has already transferred the values to the host.

# %%
step = jax.jit(lambda x: 2 * x, donate_argnums=0)
x = step(jnp.ones(1 << 24))  # 64 MiB of 2.0
checkpointer.save(folder / "before", {"x": x})
print("complete when save returns:", (folder / "before").exists())
x = step(x)
checkpointer.wait_until_finished()
print("in the checkpoint:", checkpointer.restore(folder / "before", {"x": x})["x"][:3], "  after the step:", x[:3])

# %% [markdown]
# Training waits only until `save` returns, which the first *Deeper* section measures. **Always wait before the program ends or reads the checkpoint**: call `wait_until_finished`, or use the checkpointer in a `with` statement.
#
# ## Restore on other devices
# Orbax stores a partitioned array in chunks, from which it can assemble any part. So the mesh may change between saving and restoring. The *target* of `restore` is a tree with a `jax.ShapeDtypeStruct` for each array. It states the shape, the dtype, and the sharding that you want now. Here, the mesh changes from eight devices in a row to two by four devices.

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
# Without a target, Orbax uses the saved shardings, so it needs the same devices. The next cell makes three typical mistakes: a wrong shape, a target that lacks leaves, and a folder that exists already.

# %%
print_error(lambda: checkpointer.restore(folder / "before", {"x": x[:100]}), length=160)
print_error(lambda: checkpointer.restore(folder / "first", {"w": target["w"]}), length=130)
print_error(lambda: checkpointer.save(folder / "first", state), length=130)

# %% [markdown] predict="production-crash"
# ## What a crash leaves behind
# Orbax writes a checkpoint to a temporary folder, and gives it the final name only when all files are written. The next script saves the checkpoint `one` and waits. Then it begins the checkpoint `two`, and kills itself as soon as Orbax has created a second folder. Signal 9 ends a process at once, without any cleanup. What is in the parent folder afterwards?
#
# - [ ] `one`, and an incomplete `two` | Then a reader could mistake it for a checkpoint.
# - [x] `one`, and a folder with a temporary name | Right. The process ended before the rename.
# - [ ] only `one` | A process that was killed cannot delete what it has written.

# %%
CRASH = """
import os, signal, sys
import jax.numpy as jnp, orbax.checkpoint as ocp

folder = sys.argv[1]
checkpointer = ocp.StandardCheckpointer()
checkpointer.save(folder + "/one", {"x": jnp.ones(4)})
checkpointer.wait_until_finished()
checkpointer.save(folder + "/two", {"x": jnp.ones(1 << 24)})
while len(os.listdir(folder)) < 2:  # until the second folder exists
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
(folder / "crash").mkdir()
ended = subprocess.run([sys.executable, "-c", CRASH, str(folder / "crash")], env=environment)
print("exit code", ended.returncode, "  folder:", sorted(path.name for path in (folder / "crash").iterdir()))
print_error(lambda: checkpointer.restore(folder / "crash" / "two", {"x": jnp.ones(1 << 24)}))

# %% [markdown]
# On a local file system, a rename happens completely or not at all. So a folder with its final name is a complete checkpoint.
#
# ## A loop that survives kill -9
# A training step reads the parameters, the optimizer state, a key and a batch. **The checkpoint must contain all that determines the next step.** The position of the data loader stands for the batch.
#
# The next script trains a small network with dropout and shuffled batches. Its first half is an ordinary training step.

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

# %% [markdown]
# The second half is the loop. `ocp.CheckpointManager` numbers the checkpoints, finds the latest complete one, and deletes old ones. After a restart, the fresh state from the first half serves as the target of `restore`.

# %%
LOOP += """
import logging
logging.getLogger("absl").setLevel(logging.ERROR)  # no warning about the temporary folder of a killed process
position = 0  # of the data loader
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
        time.sleep(0.03)  # a step of a larger model takes longer
        if number % 10 == 0:
            manager.save(number, args=ocp.args.StandardSave({"state": state, "position": position}))
"""

# %% [markdown]
# This loop runs the next steps while `save` finishes. If it must not, call `manager.wait_until_finished()` after `save`.
#
# We run the script once without an interruption. In another folder, we start it three times, and kill the first two processes when they have printed step 17 and step 34.


# %%
def run(name, kill_after=None):
    """Runs the loop in a process, which is killed after this step. Returns the losses {step: bits}."""
    losses, command = {}, [sys.executable, "-c", LOOP, str(folder / name), "40"]
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            number, bits = line.split()
            losses[int(number)] = bits
            if int(number) == kill_after:
                process.kill()
                break
    return losses


with ThreadPoolExecutor() as pool:  # the uninterrupted run in the background
    whole = pool.submit(run, "whole")
    attempts = [run("killed", kill_after) for kill_after in (17, 34, None)]
whole = whole.result()

# %% [markdown]
# The plot shows which steps each process has computed. The vertical lines are the steps after which the script saves.

# %%
_, axes = plots.subplots(height=2.2)
for row, losses in enumerate((whole, *attempts)):
    axes.plot(losses.keys(), [row] * len(losses), marker="o", markersize=5, linestyle="none")
for number in range(10, 41, 10):
    axes.axvline(number + 0.5, color=plots.QUIET, linewidth=1)
axes.set(xlabel="step", yticks=range(4), yticklabels=["uninterrupted", "attempt 1", "attempt 2", "attempt 3"])
axes.invert_yaxis()
ranges = ", ".join(f"{min(losses)} to {max(losses)}" for losses in attempts)
plots.show(f"The steps of the uninterrupted run, 1 to {max(whole)}, and of three attempts: {ranges}.")
print("loss of step 40, without and with interruptions:", whole[40], attempts[-1][40])
print("all losses bitwise equal:", all(whole[step] == bits for losses in attempts for step, bits in losses.items()))

# %% [markdown]
# Each attempt resumes after the latest complete checkpoint, so some steps are computed twice. An incomplete checkpoint does not count. All losses are equal to the last bit.
#
# Without the key or the position in the checkpoint, the restarted loop would use other dropout masks or other batches, without any error. Bitwise equality also needs the same program on the same kind of device: another compiler or mesh may add numbers in another order.
#
# ## Export a program
# To use a checkpoint, you need the Python code of the model, and its libraries. [`jax.export`](https://docs.jax.dev/en/latest/501/export.html) saves the *program* instead: it traces and lowers a jitted function to StableHLO (lesson 02), and `serialize` returns this program as bytes. The parameters are arguments, so they are not in the [export](../docs/glossary.md#export).
#
# Three options matter:
#
# - An export accepts only the shapes for which it was traced. With a **symbolic dimension** ([shape polymorphism](../docs/glossary.md#shape-polymorphism)) such as `b`, one program accepts any size.
# - `platforms` lists the target platforms, which this machine need not have.
# - An export has no derivative, unless `serialize` receives `vjp_order`. It adds the backward pass.

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
# The next script has only this file, and neither `predict` nor a model library. Which calls work there?
#
# - [ ] a forward pass for the batch size of the export | There is no such size. At the export, `b` was a symbol.
# - [x] forward passes for batches of 1 and 7, and the gradient with respect to the parameters | Right. The bytes contain the program for any `b`, and its backward pass.
# - [ ] forward passes for batches of 1 and 7, but no gradient | `vjp_order=1` has added the backward pass.

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

# %% [markdown]
# The number of features was 4 at the export, and the dtype was float32. An export checks both in each call.

# %%
print_error(lambda: exported.call(params, jnp.ones((2, 5))), length=200)
print_error(lambda: exported.call(params, jnp.ones((2, 4), jnp.int32)), length=200)

# %% [markdown]
# Call `symbolic_shape` only once for an export: each call creates a new *scope*, and scopes cannot be mixed.
#
# With a symbol, each operation must be valid for all sizes. JAX cannot trace a Python `if` that compares the symbol with 10, or a `reshape` that needs an even size. If the size is always even, state this in the shape: `2*b` instead of `b`.

# %%
halves = jax.jit(lambda x: x.reshape(-1, 2).sum(axis=1))
print_error(lambda: jax.export.export(halves)(jax.ShapeDtypeStruct((b,), jnp.float32)), length=180)
print(*jax.export.export(halves)(jax.ShapeDtypeStruct((2 * b,), jnp.float32)).out_avals)

# %% [markdown]
# ## Several processes
# On a cluster, every machine runs its own process with the same program. `jax.distributed.initialize(address, count, index)` connects the processes. `address` belongs to process 0, the [coordinator](../docs/glossary.md#coordinator). On Slurm, Open MPI, Kubernetes and Cloud TPUs, JAX can detect the three arguments.
#
# Afterwards, `jax.devices()` contains the devices of all processes, and a mesh may span all of them. A process can read only the shards of its own devices, which are **[addressable](../docs/glossary.md#addressable)**.
#
# ![Two processes with four devices each. Each process loads half of the rows of a batch. make_array_from_process_local_data combines them into one global array of eight shards. Process 0 can read shards 0 to 3, process 1 shards 4 to 7. A jitted sum with a replicated result is an all-reduce between the processes, and afterwards each device has the sum.](../images/production_processes.svg)
#
# The next script follows this figure. Each process loads its rows, the sum runs over the rows of both processes, and then each process tries to read the whole batch.

# %%
WORKER = """
import sys, jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
index, count, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_num_cpu_devices", 8 // count)
jax.distributed.initialize(address, count, index, initialization_timeout=60)
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

# %% [markdown]
# Here, we start two processes with four simulated devices each, then four with two. They communicate over the loopback address 127.0.0.1.


# %%
def start_processes(script, count, *args):
    """Starts `count` connected processes and returns their own lines, without the messages of the transport."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"  # a port that is free now
    command = [sys.executable, "-c", script]
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment}
    started = [subprocess.Popen([*command, str(i), str(count), address, *args], **pipes) for i in range(count)]
    lines = [line for process in started for line in process.communicate()[0].splitlines()]
    lines = [line for line in lines if line.startswith(("process", "  RuntimeError"))]
    return "\n".join(lines), started


for count in (2, 4):
    print(start_processes(WORKER, count)[0])

# %% [markdown]
# The sum has the sharding `P()`, so each process has a copy. The batch is partitioned, so no process can read the whole of it. `jax.experimental.multihost_utils.process_allgather` returns a copy of a partitioned array in each process.
#
# **Every process must run the same computations in the same order**, because each collective waits for all of them. So never put a computation on a global array under `if jax.process_index() == 0:`. This condition is for `print` and for log files.
#
# ## Deeper: how long save takes
# The next cell measures the time until `save` returns, and until the checkpoint is complete.

# %%
sizes, returned, complete = (16, 18, 20, 22, 24), [], []  # log2 of the number of elements
for size in sizes:
    values = {"x": jax.device_put(np.random.default_rng(0).normal(size=1 << size).astype(np.float32))}
    start = time.perf_counter()
    checkpointer.save(folder / f"size_{size}", values)
    returned.append(1e3 * (time.perf_counter() - start))
    checkpointer.wait_until_finished()
    complete.append(1e3 * (time.perf_counter() - start))

# %% [markdown]
# Both axes are logarithmic.

# %%
_, axes = plots.subplots(height=2.6)
mebibytes = [4 * 2**size / 2**20 for size in sizes]
axes.loglog(mebibytes, complete, marker="s", label="until the checkpoint is complete")
axes.loglog(mebibytes, returned, marker="o", label="until save returns")
axes.set(xlabel="size of the array in MiB", ylabel="milliseconds", xticks=mebibytes, yticks=(10, 30, 100, 300))
axes.xaxis.set_major_formatter("{x:g}")
axes.yaxis.set_major_formatter("{x:g}")
axes.minorticks_off()
axes.legend()
plots.show(
    f"Time to save an array of {mebibytes[0]:g} to {mebibytes[-1]:g} MiB. For the largest one, save returns after "
    f"{returned[-1]:.0f} ms, and the checkpoint is complete after {complete[-1]:.0f} ms."
)

# %% [markdown]
# For small arrays, the times do not grow with the size. For the largest one, most of the time passes after `save` has returned. On an accelerator, the lower curve also contains the transfer from the device to the host.
#
# ## Deeper: when one process fails
# All processes send heartbeats to the coordinator. If none has arrived from a process for 100 seconds, the coordinator considers it dead. The next script shortens this timeout to 3 seconds. First process 1 kills itself, then, in a second run, process 0. How long does the other process continue?

# %%
FAIL = """
import os, signal, sys, time, jax
index, count, address, killed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
jax.distributed.initialize(address, count, index, initialization_timeout=60, heartbeat_timeout_seconds=3)
if index == killed:
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
while time.monotonic() - began < 30:
    print(f"process {index} ran for {time.monotonic() - began:.1f} s", flush=True)
    time.sleep(0.1)
"""
for killed in ("1", "0"):
    text, ended = start_processes(FAIL, 2, killed)
    print(
        f"process {killed} is killed:", text.splitlines()[-1], "  exit codes", [process.returncode for process in ended]
    )

# %% [markdown]
# In both runs, JAX ended the surviving process (signal 6, an abort), because its next collective could never finish. If process 1 fails, this takes as long as the timeout. If the coordinator fails, its connections are closed, and the other process ends immediately. The usual reaction is to restart all processes, which resume from the last checkpoint.
#
# ## Deeper: a checkpoint of two processes
# With several processes, all of them call `save` with the same global array. Each process writes values that its own devices store, to a folder of its own. We restore the result in this process, which has all eight devices.

# %%
SAVE = """
import sys, jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
index, count, address, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.config.update("jax_num_cpu_devices", 8 // count)
jax.distributed.initialize(address, count, index, initialization_timeout=60)
mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
rows = np.random.default_rng(index).normal(size=(512, 256)).astype(np.float32)
x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("d")), rows)
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, {"x": x})
"""
start_processes(SAVE, 2, str(folder / "processes"))
for part in sorted((folder / "processes").glob("ocdbt.process_*")):
    print(part.name, sum(path.stat().st_size for path in part.rglob("*") if path.is_file()), "bytes")
rows = np.concatenate([np.random.default_rng(index).normal(size=(512, 256)).astype(np.float32) for index in (0, 1)])
found = checkpointer.restore(
    folder / "processes", {"x": jax.ShapeDtypeStruct((1024, 256), jnp.float32, sharding=NamedSharding(grid, P("x")))}
)["x"]
print("equal:", bool((np.asarray(found) == rows).all()), found.sharding.spec, f"{rows.nbytes} bytes in memory")

# %% [markdown]
# ## Deeper: restore a part
# For fine-tuning, you may need the weights without the optimizer state. `metadata` returns the shapes and dtypes of a checkpoint, and reads no array. With `partial_restore=True`, the target may contain a part of the tree, and Orbax restores only this part.

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
# An export contains the shardings of its arguments, and the number of devices. It does not contain which devices they were. The process that loads it needs a mesh of this size.

# %%
layout = [jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("d")))]
column_sums = jax.export.export(jax.jit(lambda x: x.sum(axis=0)))(*layout)
x = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, P("d")))
again = jax.export.deserialize(column_sums.serialize())
print(again.nr_devices, "devices:", jax.jit(again.call)(x))
print_error(lambda: again.call(np.ones((16, 8), np.float32)), length=240)

# %% [markdown]
# Not every program can be exported. The first function below calls Python, and the second calls C++ code that is registered as `my_op`. An export also has the version of its *calling convention*, which has to be one that the loading JAX supports.

# %%
x = jnp.ones(3)
print_error(lambda: jax.export.export(jax.jit(lambda x: jax.pure_callback(np.sin, x, x)))(x))
print_error(lambda: jax.export.export(jax.jit(lambda x: jax.ffi.ffi_call("my_op", x)(x)))(x), length=110)
lowest, highest = (getattr(jax.export, f"{name}imum_supported_calling_convention_version") for name in ("min", "max"))
print("calling convention", again.calling_convention_version, "of the supported", lowest, "to", highest)

# %% [markdown]
# `jax.export` accepts a custom call only if its target is in JAX's list of stable targets, or if the argument `disabled_checks` names the target. Host callbacks are not supported.
#
# According to the [documentation](https://docs.jax.dev/en/latest/501/export.html#compatibility-guarantees), an export works with releases of JAX up to six months newer than the release that wrote it, and up to three weeks older. So an export is not an archive: also keep the checkpoint and the source code.
#
# **Load exports and checkpoints only from sources that you trust.** `deserialize` does not check whether its input is well formed, and calling the result executes the program.
#
# ## Deeper: serve requests
# A server receives single requests. Batches use the device better, but each request waits for its batch to be full. `jax.jit` would compile for every new batch size while a request waits. So we compile ahead of time for three sizes, and pad each batch to the next of them.

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


# %% [markdown]
# We measure the time of a batch, and the number of requests that are answered per millisecond.

# %%
counts = (1, 2, 8, 16, 64)
requests = np.ones((64, 512), np.float32)
times = time_ms(*[lambda n=n: answer(requests[:n]) for n in counts])
rate = [n / ms for n, ms in zip(counts, times, strict=True)]
_, axes = plots.subplots(1, 2, height=2.5)
axes[0].plot(counts, times, marker="o")
axes[0].set(ylabel="milliseconds", ylim=(0, None))
axes[1].plot(counts, rate, marker="o")
axes[1].set(ylabel="requests per millisecond", ylim=(0, None))
for ax in axes:
    ax.set(xlabel="requests in a batch", xscale="log", xticks=counts, xticklabels=counts)
    ax.minorticks_off()
plots.show(
    f"Left: a batch of 1 takes {times[0]:.2f} ms, a batch of 64 takes {times[-1]:.2f} ms. "
    f"Right: {rate[0]:.1f} and {rate[-1]:.1f} requests per millisecond."
)
print_error(lambda: compiled[8](layers, requests), length=400)

# %% [markdown]
# Batches of 2 and 8 requests run the same executable, and so do 16 and 64. So padding lowers the rate for 2 and for 16. A compiled executable never compiles again, so it rejects other shapes.
#
# A restarted server can read its executables from the [persistent cache](../docs/glossary.md#persistent-cache) (lesson 14) instead of compiling them. The next cell starts one script twice with the same folder. By default, JAX stores only programs that took at least a second to compile, and the script removes this limit.

# %%
RESTART = """
import sys, time, jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
lowered = jax.jit(lambda x: jnp.linalg.svd(jnp.tanh(x @ x.T))[1]).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))
began = time.perf_counter()
lowered.compile()
print(f"{1e3 * (time.perf_counter() - began):.0f} ms to compile, {len(hits)} programs from the cache")
"""
for attempt in ("first start: ", "second start:"):
    command = [sys.executable, "-c", RESTART, str(folder / "cache")]
    print(attempt, subprocess.run(command, env=environment, text=True, capture_output=True).stdout, end="")

# %% [markdown]
# The second process compiled nothing. The cache also depends on the versions of JAX and XLA, the compiler options and the kind of device. A changed program is compiled again.
#
# ## Deeper: logging and a progress bar
# `float(loss)` waits for the device, so a loop that prints each loss cannot run ahead of it (lesson 01). Read the loss rarely, and only after later steps have been dispatched. The next loop prints the loss of 20 steps ago, which is finished by then. With several processes, only process 0 shows the bar.

# %%
import io

from tqdm import tqdm

bar_text, pending = io.StringIO(), None
step = jax.jit(lambda x: x - 0.02 * x @ (x.T @ x - jnp.eye(256)))  # makes x orthogonal
value = jax.random.normal(jax.random.key(0), (256, 256)) / 32
with tqdm(total=100, file=bar_text, disable=jax.process_index() != 0, ncols=70) as bar:
    for number in range(100):
        value = step(value)
        if number % 20 == 19:
            if pending is not None:
                bar.set_postfix(loss=f"{float(pending):.1f}")  # of 20 steps ago
            pending = jnp.sum((value.T @ value - jnp.eye(256)) ** 2)
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
# The documentation of [export](https://docs.jax.dev/en/latest/501/export.html), of [several processes](https://docs.jax.dev/en/latest/multi_process.html) and of [Orbax](https://orbax.readthedocs.io) has more.
#
# ## Deeper: older code
#
# | in older code | now |
# |---|---|
# | `flax.training.checkpoints.save_checkpoint` | `orbax.checkpoint` |
# | `ocp.PyTreeCheckpointer()`, `ocp.AsyncCheckpointer` | `ocp.StandardCheckpointer()`, which is asynchronous |
# | `jax.experimental.export` | `jax.export` |
# | `jax2tf.convert` to save a program | `jax.export` |
# | `host_local_array_to_global_array`, `GlobalDeviceArray` | `jax.make_array_from_process_local_data` |
#
# Next to this API of Orbax, there is a new one in `orbax.checkpoint.experimental.v1`, which may still change.
