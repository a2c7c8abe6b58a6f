"""Several processes that compute together with `jax.distributed` on this machine, for exercises and their checks.

    from grader.checks import processes
    totals = processes.run(global_sum, [(rows_of_first,), (rows_of_second,)])

The processes find each other over this machine's loopback. While a notebook is graded, the loopback is the worker's own
(docs/confinement.md), and where it has none, `need_loopback` skips a check.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import inspect
import json
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
# Imports JAX once, then forks each process that is requested: an import takes ten times as long as most functions. A
# request is a line of JSON, and so is its reply. It makes no backend of JAX: a fork would lack the threads of one.
_SERVER = """
import gc, json, os, pickle, signal, sys
import jax, numpy

def serve(path, result):
    with open(path, "rb") as file:
        told = pickle.load(file)
    jax.config.update("jax_num_cpu_devices", told["devices"])
    if told["address"]:
        own = {"coordinator_bind_address": told["address"]} if told["index"] == 0 else {}
        jax.distributed.initialize(told["address"], told["count"], told["index"], initialization_timeout=120, **own)
    names = {"__name__": "__main__"}
    exec(told["imports"], names)
    exec(compile(told["source"], "<answer>", "exec"), names)
    found = names[told["name"]](*told["args"])
    found = jax.tree.map(lambda leaf: numpy.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, found)
    with open(result + ".part", "wb") as file:
        pickle.dump(found, file)
    os.replace(result + ".part", result)
    if told["address"]:
        jax.distributed.shutdown()

def become(files, asked):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null, errors = os.open(os.devnull, os.O_RDWR), os.open(files[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, target in enumerate((null, null, errors)):
        os.dup2(target, number)
    os.chdir(asked["place"])
    os.environ["PJRT_NPROC"] = asked["threads"]
    numpy.random.seed()  # else all processes would draw the same
    status = 1
    try:
        serve(*files[:2])
        os._exit(0)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as problem:
        # The first line of an error alone: JAX adds a notice about its tracebacks below it.
        print(": ".join([type(problem).__name__, *str(problem).splitlines()[:1]]), file=sys.stderr)
    sys.stderr.flush()
    os._exit(status)  # without JAX's exit handlers: the first of them waits for the other processes

def poll():
    for pid, status in children.items():
        ended, found = os.waitpid(pid, os.WNOHANG) if status is None else (0, 0)
        if ended:
            children[pid] = os.waitstatus_to_exitcode(found)
    return list(children.values())

def end():
    for pid, status in children.items():
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    children.clear()

exec(sys.argv[1], {})
signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a kernel that is interrupted, which ends the processes itself
gc.freeze()
children = {}
for line in sys.stdin:
    asked = json.loads(line)
    for files in asked.get("start", ()):
        pid = os.fork()
        if pid == 0:
            become(files, asked)
        children[pid] = None
    if "end" in asked:
        end()
    print(json.dumps(poll()), flush=True)
end()
"""


class _Server:
    """The process that the others are forked from. It ends when this object or this process does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment, self.owner, self.waits = environment, os.getpid(), False
        command = [sys.executable, "-c", _SERVER, IMPORTS]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=null, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.back = self.process.stdin, self.process.stdout

    def ask(self, **request: Any) -> list[int | None]:
        """Returns the exit status of each process, None for one that has not ended."""
        self.waits = True  # until the reply has come, which an interrupt of the kernel may prevent
        try:
            self.to.write(json.dumps(request) + "\n")
            self.to.flush()
            statuses: list[int | None] | None = json.loads(self.back.readline() or "null")
        except OSError:
            statuses = None
        if statuses is None:
            raise RuntimeError("the process from which the others are forked has ended")
        self.waits = False
        return statuses

    def stop(self) -> None:
        """Ends it, and with it every process that was forked from it."""
        with contextlib.suppress(OSError):  # it may have ended
            self.to.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.back.close()


_server: _Server | None = None


@atexit.register
def _stop_server() -> None:
    if _server is not None and _server.owner == os.getpid():
        _server.stop()


def _server_with(environment: dict[str, str]) -> _Server:
    """The server, started again where it has ended, or where the environment has changed since it started."""
    global _server
    same = _server is not None and (_server.owner, _server.environment) == (os.getpid(), environment)
    if _server is not None and same and not _server.waits and _server.process.poll() is None:
        return _server
    _stop_server()
    _server = _Server(environment)
    return _server


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
    threads = str(max(4, 2 * devices))  # of XLA, which are limited while a notebook is graded
    server = _server_with(environment)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for index, args in enumerate(arguments):
            content = told | {"args": args, "index": index, "count": len(arguments)}
            (folder / f"{index}.in").write_bytes(pickle.dumps(content))
        files = [[str(folder / f"{index}.{kind}") for kind in ("in", "out", "err")] for index in range(len(arguments))]
        try:
            server.ask(start=files, place=os.getcwd(), threads=threads)
            _wait(server, folder, len(arguments), seconds)
        except RuntimeError as failed:
            if str(failed).endswith(": NotImplementedError") and callable(function):
                function(*arguments[0])  # the released stub, which a check recognises by its own error
            raise
        finally:
            if server.waits:
                server.stop()
            else:
                server.ask(end=True)
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


def _wait(server: _Server, folder: Path, count: int, seconds: float) -> None:
    """Returns once all results are written. As soon as one process fails, the others would wait for it in vain."""
    end = time.monotonic() + seconds
    while not all((folder / f"{index}.out").exists() for index in range(count)):
        for index, status in enumerate(server.ask()):
            if status is not None and not (folder / f"{index}.out").exists():
                lines = (folder / f"{index}.err").read_text(errors="replace").strip().splitlines()
                # A fatal error of XLA begins with F, and a stack of addresses follows it.
                said = [line for line in lines if re.match(r"F\d{4} ", line)][:1] or lines[-1:]
                raise RuntimeError(f"process {index} failed: {said[0] if said else f'status {status}'}")
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
