"""Several processes that compute together with `jax.distributed` on this machine, for exercises and their checks.

    from grader.checks import processes
    totals = processes.run(global_sum, [(rows_of_first,), (rows_of_second,)])

The processes find each other over this machine's loopback. While a notebook is graded, the loopback is the worker's own
(docs/confinement.md), and where it has none, `need_loopback` skips a check.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grader.checks.outcomes import Skipped
from grader.checks.verbs import backend

IMPORTS = """
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
"""
# Of the environment, what is meant for this process alone: its flags, and the spare threads of its simulated devices.
DROPPED = ("XLA_FLAGS", "PYTHONPATH", "PJRT_NPROC")
_MAIN = """
import os, pickle, sys
with open(sys.argv[1], "rb") as file:
    told = pickle.load(file)
# The first line of an error alone: JAX adds a notice about its tracebacks below it.
sys.excepthook = lambda kind, value, _: print(": ".join([kind.__name__, *str(value).splitlines()[:1]]), file=sys.stderr)
import jax
jax.config.update("jax_num_cpu_devices", told["devices"])
if told["address"]:
    own = {"coordinator_bind_address": told["address"]} if told["index"] == 0 else {}
    jax.distributed.initialize(told["address"], told["count"], told["index"], initialization_timeout=120, **own)
names = {"__name__": "__main__"}
exec(told["imports"], names)
exec(compile(told["source"], "<answer>", "exec"), names)
result = names[told["name"]](*told["args"])
import numpy
result = jax.tree.map(lambda leaf: numpy.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, result)
with open(sys.argv[2] + ".part", "wb") as file:
    pickle.dump(result, file)
os.replace(sys.argv[2] + ".part", sys.argv[2])
if told["address"]:
    jax.distributed.shutdown()
os._exit(0)
"""


def run(
    function: Callable[..., Any] | str, arguments: Sequence[tuple[Any, ...]], devices: int = 4, seconds: float = 180.0
) -> list[Any]:
    """Calls `function(*arguments[i])` in process `i`, each a new process with JAX's CPU devices.

    The processes contain the source of the cell that defines `function`, and the names of `IMPORTS`. Several of them
    are connected with `jax.distributed`, so `jax.devices()` contains the devices of all. One process alone is not.

    Args:
        function: is defined in a cell or a file, and uses nothing of other cells; or the text of such a function.
        arguments: for each process, the arguments: NumPy arrays, numbers, strings, bytes and containers of them.
        devices: number of simulated CPU devices of each process.
        seconds: how long they may take on the clock.

    Returns:
        The results in the order of the processes, with NumPy arrays.

    Raises:
        RuntimeError: a process failed; the text contains the last line that it printed to stderr.
    """
    name, source = _source(function)
    address = f"127.0.0.1:{_free_port()}" if len(arguments) > 1 else ""
    told = {"source": source, "name": name, "imports": IMPORTS, "devices": devices, "address": address}
    environment = {key: value for key, value in os.environ.items() if key not in DROPPED}
    environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    environment["PJRT_NPROC"] = str(max(4, 2 * devices))  # threads of XLA, which are limited while a notebook is graded
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            for index, args in enumerate(arguments):
                (folder / f"{index}.in").write_bytes(
                    pickle.dumps(told | {"args": args, "index": index, "count": len(arguments)})
                )
                command = [sys.executable, "-c", _MAIN, str(folder / f"{index}.in"), str(folder / f"{index}.out")]
                with open(folder / f"{index}.err", "wb") as errors:
                    started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors))
            _wait(started, folder, seconds)
        except RuntimeError as failed:
            if str(failed).endswith(": NotImplementedError") and callable(function):
                function(*arguments[0])  # the released stub, which a check recognises by its own error
            raise
        finally:
            for process in started:
                process.kill()
                process.wait()
        return [pickle.loads((folder / f"{index}.out").read_bytes()) for index in range(len(arguments))]


def _source(function: Callable[..., Any] | str) -> tuple[str, str]:
    """The name of a function, and the text of the cell or file that defines it."""
    if isinstance(function, str):
        return next(node.name for node in ast.parse(function).body if isinstance(node, ast.FunctionDef)), function
    plain = inspect.unwrap(function)
    text = "".join(linecache.getlines(plain.__code__.co_filename))
    if not text:
        raise RuntimeError(f"the source of {plain.__name__} is not known; define it in a cell of its own")
    return plain.__name__, text


def _wait(started: list[subprocess.Popen[bytes]], folder: Path, seconds: float) -> None:
    """Returns once all results are written. As soon as one process fails, the others would wait for it in vain."""
    end = time.monotonic() + seconds
    while not all((folder / f"{index}.out").exists() for index in range(len(started))):
        for index, process in enumerate(started):
            if process.poll() is not None and not (folder / f"{index}.out").exists():
                lines = (folder / f"{index}.err").read_text(errors="replace").strip().splitlines()
                # A fatal error of XLA begins with F, and a stack of addresses follows it.
                said = [line for line in lines if re.match(r"F\d{4} ", line)][:1] or lines[-1:]
                raise RuntimeError(f"process {index} failed: {said[0] if said else f'status {process.returncode}'}")
        if time.monotonic() > end:
            raise RuntimeError(
                f"the processes have not finished after {seconds:g} s. Does every process run each computation that "
                "uses the devices of all?"
            )
        time.sleep(0.02)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def loopback() -> bool:
    """Whether processes that an answer starts can connect to each other."""
    return backend().loopback


def need_loopback() -> None:
    """Ends a check as skipped, which gives its points, where the answer's processes cannot connect to each other.

    Raises:
        Skipped: with the reason.
    """
    if not loopback():
        raise Skipped(
            "This check starts processes that connect to each other over the loopback address. The confinement of this "
            "machine has no loopback (docs/confinement.md)."
        )
