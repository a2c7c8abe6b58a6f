"""Inspection of programs in lessons: errors, logs, times, operations, communication, memory and traces.

    from grader.learning.inspection import print_error, time_ms
    print_error(lambda: jax.grad(jnp.sin)(3))
    one, other = time_ms(lambda: f(x), lambda: g(x))

Lessons import these functions, so that their own cells show one idea each.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import logging
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload
from urllib.parse import urlencode

import jax
import numpy as np
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import Mesh

from grader.program.hlo import Collective, Groups, collectives, collectives_and_groups

WIDTH = 110  # columns: what a notebook's output shows without a scroll bar
_SHARDING = re.compile(r"NamedSharding\(mesh=.*?, spec=(P\w*\(.*?\))(?:, memory_kind=\w+)?\)")
_LOCATION = re.compile(r" from \S+?:(\d+):\d+ \(([^)]*)\)$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CELL_FILE = re.compile(r"[^\s()]*ipykernel_[^\s():]*\.py")  # the file name that IPython gives to a cell
_FOLDER = re.compile(r"(?<![\w:/])/(?:[^\s():/]+/)+")
_IDENTITY = re.compile(r"\bid=\d+")


def print_error(call: Callable[[], Any], length: int = 300) -> None:
    """Runs `call()`, which should fail, and prints its exception: the class and the start of the message.

    Args:
        call: takes no arguments.
        length: the most characters to print, after white space is collapsed, colours and folders are removed and each
            `NamedSharding` is shortened to its spec.
    """
    try:
        call()
    except Exception as problem:
        text = " ".join(_COLOUR.sub("", f"{type(problem).__name__}: {_without_folders(str(problem))}").split())
        text = textwrap.shorten(_SHARDING.sub(r"\1", text), length, placeholder=" ...")
        print(textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))
    else:
        print("No error.")
    with warnings.catch_warnings():  # of coroutines that the error kept from starting, as in a failed restore of Orbax
        warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
        gc.collect()


def traceback_frames(call: Callable[[], Any]) -> list[str]:
    """Runs `call()`, which should fail, and returns the frames of its traceback, the outermost first.

    Args:
        call: takes no arguments.

    Returns:
        "function: source line" for each frame below `call`, without file names, which differ between machines. The list
        is empty if no exception is raised.
    """
    try:
        call()
    except Exception as problem:
        return [f"{frame.name}: {frame.line}" for frame in traceback.extract_tb(problem.__traceback__)[1:]]
    return []


def print_log(call: Callable[[], Any]) -> Any:
    """Runs `call()` and prints what JAX logs meanwhile, without folders and object ids, which differ between machines.

    Args:
        call: takes no arguments.

    Returns:
        The result of the call.
    """
    text = io.StringIO()
    logger = logging.getLogger("jax")
    before, propagate = logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [logging.StreamHandler(text)], False
    try:
        result = jax.block_until_ready(call())
    finally:
        logger.handlers, logger.propagate = before, propagate
    for line in text.getvalue().splitlines() or ["Nothing was logged."]:
        print(_IDENTITY.sub("id=...", _without_folders(line)))
    return result


def _without_folders(text: str) -> str:
    return _FOLDER.sub("", _CELL_FILE.sub("cell", text))


@overload
def time_ms(call: Callable[[], Any], /, *, repeats: int = 9) -> float: ...
@overload
def time_ms(*calls: Callable[[], Any], repeats: int = 9) -> list[float]: ...
def time_ms(*calls: Callable[[], Any], repeats: int = 9) -> float | list[float]:
    """Measures how long each call takes until its result is ready, without its first call, which may compile.

    Args:
        calls: functions of no arguments. They are called in turn, so that a busy moment of the machine meets them all.
        repeats: number of measurements of each call.

    Returns:
        The median in milliseconds: a float for one call, a list for several.
    """
    for call in calls:
        jax.block_until_ready(call())
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, own in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            own.append(time.perf_counter() - start)
    medians = [1e3 * statistics.median(own) for own in seconds]
    return medians[0] if len(calls) == 1 else medians


def primitives(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns the names of the primitives in the jaxpr of `function(*args)`, in order.

    The body of a loop, a branch or a jitted function is inside one primitive and is not listed.
    """
    return [str(equation.primitive) for equation in jax.make_jaxpr(function)(*args).eqns]


def flops(function: Callable[..., Any], *args: Any) -> float:
    """Returns the floating-point operations of the compiled `function(*args)`, as XLA's cost analysis counts them.

    Args:
        function: is compiled with `jax.jit`, unless it is jitted already.
        args: its arguments; `jax.ShapeDtypeStruct` serves as well as an array, because nothing runs.
    """
    lower = function.lower if hasattr(function, "lower") else jax.jit(function).lower
    return float((lower(*args).compile().cost_analysis() or {}).get("flops", 0.0))


def print_collectives(compiled: Any, mesh: Mesh | None = None) -> None:
    """Prints a line for each collective operation of a compiled program: its kind, the number of elements of its result
    on one device, and whether it is inside a loop.

    Args:
        compiled: what `jax.jit(function).lower(*args).compile()` returns.
        mesh: of the arrays. If it is given, each line also names the mesh axes along which devices communicate.
    """
    # without a mesh, the number of devices is not known, and neither group sizes nor groups are printed
    found = collectives_and_groups(compiled.as_text(), mesh.size if mesh else 1)
    for one, groups in found:
        along = f"  along {' and '.join(axes_of_groups(groups, mesh)) or '?'}" if mesh else ""
        print(f"{one.kind:18s} {one.elements:>11,} elements{along}{'  inside a loop' if one.in_loop else ''}")
    if not found:
        print("No collectives.")


def axes_of_groups(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    """Returns the names of the mesh axes along which the devices of a group differ.

    Args:
        groups: of a collective, as `grader.program.hlo.collectives_and_groups` returns them.
        mesh: the mesh of the program.
    """
    places = [np.unravel_index(list(group), mesh.devices.shape) for group in groups]
    differ = [any(np.ptp(place[i]) for place in places) for i in range(mesh.devices.ndim)]
    return tuple(name for name, found in zip(mesh.axis_names, differ, strict=True) if found)


def list_collectives(function: Callable[..., Any], *args: Any) -> tuple[Collective, ...]:
    """Returns the collectives of the compiled `function(*args)`, in the order of its program.

    Args:
        function: is compiled with `jax.jit`, unless it is jitted already.
        args: its arguments; `jax.ShapeDtypeStruct` serves as well as an array, because nothing runs.

    Returns:
        For each its `kind`, the `elements` and `bytes` of its result on one device, the `group_size` of devices that
        take part together (None for a permute), whether it is `in_loop`, and how many `times` a call runs it (None if
        the program does not state it).
    """
    lower = function.lower if hasattr(function, "lower") else jax.jit(function).lower
    compiled = lower(*args).compile()
    count = max((len(one.device_set) for one in jax.tree.leaves(compiled.input_shardings)), default=1)
    return collectives(compiled.as_text() or "", count)


def print_residuals(function: Callable[..., Any], *args: Any) -> None:
    """Prints what `jax.ad_checkpoint.print_saved_residuals` prints, with the function and the line in place
    of the path of the file.

    Args:
        function: a function that `jax.vjp` can differentiate.
        args: its arguments.
    """
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_saved_residuals(function, *args)
    for line in text.getvalue().splitlines():
        print(_LOCATION.sub(r" in \2, line \1", line).removesuffix(" from "))


def bytes_on_device(tree: Any, device: jax.Device | None = None) -> int:
    """Returns the bytes of a tree's arrays that are stored on one device.

    Args:
        tree: a pytree; leaves that are no JAX arrays do not count.
        device: the default is the device with the lowest id among those that store a part of the tree.
    """
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    shards = [shard for array in arrays for shard in array.addressable_shards]
    if device is None:
        device = min((shard.device for shard in shards), key=lambda one: one.id, default=None)
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


def show_trace(folder: Path, name: str, height: int = 640) -> subprocess.Popen[bytes]:
    """Starts TensorBoard, prints its address and shows a trace in XProf's trace viewer below the cell.

    Args:
        folder: contains a folder for each recording.
        name: the folder in `folder` that one `jax.profiler.trace` wrote to.
        height: of the viewer, in pixels.

    Returns:
        The process of TensorBoard. It ends with this process, or with its method `terminate`.

    Raises:
        RuntimeError: TensorBoard did not start. The message is what it printed.
    """
    from IPython.display import IFrame, display

    options = (f"--logdir={folder}", "--host=127.0.0.1", "--port=0", "--load_fast=false")  # port 0: any free one
    log = Path(tempfile.mkdtemp(), "log")
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tensorboard.main", *options]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    atexit.register(process.kill)
    while not (found := re.search(r"http://127\S+", log.read_text())):
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.1)
    print(found[0])
    display(IFrame(found[0] + trace_viewer_path(folder, name), width="100%", height=height))
    return process


def trace_viewer_path(folder: Path, name: str) -> str:
    """Returns the part of a TensorBoard address that selects XProf's trace viewer for the recording `folder/name`."""
    [file] = (folder / name).rglob("*.xplane.pb")
    run, host = f"{name}/{file.parent.name}", file.name.removesuffix(".xplane.pb")
    return f"?{urlencode({'run': run, 'tag': 'trace_viewer@', 'host': host})}#profile"
