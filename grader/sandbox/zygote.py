"""The process that all others are forked from: JAX imported, no backend made, no thread started, no secret held.

Run as `python -m grader.sandbox.zygote FD FOLDER` with an empty environment. Each request on a control socket names an
entry point (`module:function`) of ours and carries one end of a stream socket, with which the forked child calls the
entry. Workers and executors are confined first, on the rung that was found by trying when the zygote started. A request
with `control` gives the child a control socket of its own, so that an examiner may fork workers. One with `patient`
gives way to all that are not, and so does whatever it has forked. A fork takes milliseconds, an interpreter seconds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from grader.core.layout import EXAMINER, EXECUTOR, PROOF, WORKER
from grader.sandbox import accelerators, confine
from grader.sandbox import confine_kernel as kernel
from grader.sandbox.accelerators import CPU, Platform
from grader.sandbox.confine import LEVELS, Confinement
from grader.sandbox.process import ConfinementReport, remove
from grader.sandbox.shell import NotebookShell

# A user namespace can be unshared by a single-threaded process only: OpenBLAS must not start its threads.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")

CONFINED = frozenset({WORKER, EXECUTOR})
# What may be forked, and the name of such a process in `top` and `ps`.
ROLES = {WORKER: "worker", EXECUTOR: "executor", EXAMINER: "examiner", PROOF: "proof"}
ALWAYS = """
    jax jax.numpy jax.export grader.checks grader.sandbox.worker
""".split()
# The first export and the first compile import these; in every fork anew that would cost 0.2 s.
AT_FIRST_USE = """
    jaxlib.mlir.dialects.mhlo jaxlib.mlir.dialects.builtin jaxlib.lapack jax.scipy.linalg scipy.linalg.cython_lapack
""".split()
# What `grader.program.load.QUICK` is for programs, for what a worker compiles on its way to an answer.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def import_all(modules: Iterable[str]) -> None:
    """Import what the forks will need; a module that cannot be imported is left for the fork."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def warm_up(modules: Iterable[str], platform: Platform) -> None:
    """Import, trace and share what the forks for this platform will need besides `ALWAYS`."""
    import_all((*AT_FIRST_USE, *modules))
    NotebookShell.ready()
    with contextlib.suppress(Exception):  # a newer JAX may refuse some of it: then nothing is warm, and nothing is lost
        _trace()
    # One MLIR context for all forks: JAX makes one, 3 ms, whenever it lowers, exports or loads (measured: a sixth of a
    # submission's time). It starts no thread before it is used. It has no public name; where it is called otherwise,
    # nothing is shared and nothing is lost.
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.interpreters import mlir

        mlir.make_ir_context = functools.cache(mlir.make_ir_context)
        mlir.make_ir_context()
    # JAX looks for accelerators' plugins among all installed packages, 9 ms, before it makes its first backend. On CPUs
    # it finds none that it uses (see `leave_alone`). This has no public name either.
    if platform.is_cpu:
        with contextlib.suppress(ImportError, AttributeError):
            from jax._src import xla_bridge

            xla_bridge._discover_and_register_pjrt_plugins()


def _trace() -> None:
    """Trace what most answers use, so that no fork traces it for the first time. Tracing makes no backend."""
    import jax
    import jax.numpy as jnp

    def medley(x: jax.Array, w: jax.Array, key: jax.Array) -> jax.Array:
        h = jax.nn.relu(jnp.tanh(x @ w) + jnp.exp(-(x**2)).mean(axis=0)) - jnp.abs(x).max()
        h = jnp.where(h > 0, jnp.log1p(h), jnp.sqrt(jnp.square(h))) / jnp.maximum(h.var(), 1.0)
        h = jnp.concatenate([h[:1], jnp.stack([h[1], h[2]]), h[jnp.arange(1)]]).at[0].set(0.0).at[1].add(1.0)
        h, _ = jax.lax.scan(lambda carry, row: (carry + row, None), h, jax.random.normal(key, (2, *h.shape)))
        h = jax.lax.cond(h.sum() > 0, lambda h: h.T.reshape(h.shape), lambda h: jnp.cumsum(h, axis=1), h)
        return jax.lax.fori_loop(0, 3, lambda i, h: h * i, h).sum() + jax.nn.log_softmax(h).sum()

    batch = jax.vmap(jax.value_and_grad(medley, argnums=1), in_axes=(0, None, 0))
    xs, w = jax.ShapeDtypeStruct((2, 4, 4), "float32"), jax.ShapeDtypeStruct((4, 4), "float32")
    jax.make_jaxpr(batch)(xs, w, jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2)))


def settle(
    at_most: str, platform: Platform, count: int, hidden: Sequence[str], meanwhile: Callable[[], None]
) -> Confinement:
    """Find the rung on which JAX runs, and whether this XLA knows the flags of `QUICK`: where it does not, it ends.

    On an accelerator it has to run on `count` of its devices together. Those flags are for CPUs only. `meanwhile` is
    called while each trial runs in a process of its own.
    """

    def trial() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        jax.config.update("jax_num_cpu_devices", 8)
        jnp.ones(2).sum().block_until_ready()
        Path("written").write_bytes(Path(jax.__file__).read_bytes())
        os.unlink("written")
        if platform.is_cpu:
            return
        if jax.devices()[0].platform != platform.device or len(jax.devices()) < count:
            raise OSError(errno.ENODEV, f"confined, JAX finds {jax.devices()[:count]}", platform.name)
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("all",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
        assert float(jax.jit(jnp.sum)(jax.device_put(np.ones((count, 8), np.float32), sharding))) == 8 * count

    scratch = Path(tempfile.mkdtemp())
    scratch.chmod(0o711)
    try:
        for flags in (QUICK, "") if platform.is_cpu else ("",):
            os.environ["XLA_FLAGS"] = flags
            found = confine.settle(at_most, trial, scratch, accelerators.needs(platform), hidden, meanwhile)
            if found is not None:
                return found
    finally:
        remove(scratch)
    raise SystemExit("No process that runs JAX can be started here.")


class ZygoteServer:
    """Serves control sockets until the first one, that of the process which started it, is closed.

    What was forked through a control socket ends with it, however its owner ended: nobody waits for it any more.
    """

    def __init__(self, control: socket.socket, folder: Path) -> None:
        self.first, self.folder, self.pid = control, folder, os.getpid()
        self.confinement: Confinement | None = None
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.forked: dict[socket.socket, dict[int, str]] = {control: {}}  # processes and their folders
        self.patient: set[socket.socket] = set()  # the controls of those that give way

    def serve(self) -> None:
        """Fork on request until the first client is gone; then end every fork."""
        while self.first in self.forked:
            for key, _ in self.selector.select():
                assert isinstance(key.fileobj, socket.socket)
                try:
                    self.answer(key.fileobj)
                except OSError:  # the client ended in the middle of it
                    self.end([key.fileobj])
        self.end(list(self.forked))
        for orphan in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                orphan.kill()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # with SIGCHLD ignored it returns when none is left
        remove(self.folder)

    def answer(self, control: socket.socket) -> None:
        """Answer one request. Raises OSError when the client is gone."""
        message, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not message:
            raise ConnectionError
        request = json.loads(message)
        if "preload" in request:
            platform = Platform(**request["platform"])
            warm = functools.cache(lambda: warm_up(request["preload"], platform))
            self.confinement = settle(request["at_most"], platform, request["count"], request["hidden"], warm)
            warm()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # from now on the kernel reaps children
            gc.collect()
            gc.freeze()  # what is imported stays: no fork's collector walks it, nor copies its pages
            gc.enable()
        if "entry" in request:
            control.send(json.dumps(self.fork(request, handles[0], control)).encode())
        elif not request and (found := self.confinement) is not None:
            accelerated = bool(found.accelerator.files)
            # On `limits` a worker uses this machine's own; a driver's processes have one for their devices.
            loopback = found.loopback or found.level == LEVELS[-1] or (accelerated and bool(found.namespaces))
            report = ConfinementReport(found.level, found.refused, found.same_user, accelerated, loopback)
            control.send(json.dumps(asdict(report)).encode())

    def end(self, controls: list[socket.socket]) -> None:
        """Kill what is left of the processes forked through these controls; remove what is left of their folders."""
        left = [fork for control in controls for fork in self.forked.pop(control).items()]
        for pid, _ in left:
            for target in (os.killpg, os.kill) if _is_ours(pid) else ():  # one just forked leads no group yet
                with contextlib.suppress(ProcessLookupError):
                    target(pid, signal.SIGKILL)
        for _, folder in left:
            if folder:
                remove(Path(folder))
        self.patient.difference_update(controls)
        for control in controls:
            self.selector.unregister(control)
            control.close()

    def fork(self, request: dict[str, Any], handle: int, client: socket.socket) -> dict[str, Any]:
        """Fork a child for `request`; returns its process id, also its session's, and its folder ("" for none)."""
        ours = theirs = None
        confinement = self.confinement if request["entry"] in CONFINED else None
        namespaces = confinement.namespaces if confinement else ""
        folder = "" if namespaces else tempfile.mkdtemp()
        request["patient"] |= client in self.patient
        if request["control"]:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = kernel.fork(namespaces, lambda: self._become(request, handle, theirs, confinement, folder))
        except OSError as problem:
            return {"refused": f"no process could be forked: {problem.filename or 'fork'}: {problem.strerror}"}
        finally:
            os.close(handle)
            if theirs is not None:
                theirs.close()
        if ours is not None:
            self.selector.register(ours, selectors.EVENT_READ)
            self.forked[ours] = {}
            if request["patient"]:
                self.patient.add(ours)
        alive = {p: place for p, place in self.forked[client].items() if os.path.isdir(place) or _is_ours(p)}
        self.forked[client] = {**alive, pid: folder}
        return {"pid": pid, "folder": folder}

    def _become(
        self, request: dict[str, Any], handle: int, control: socket.socket | None, confined: Confinement | None, to: str
    ) -> None:
        """In the child: drop everything of the zygote's, then run the entry."""
        kernel.end_with_parent(self.pid)  # before anything that takes time: the zygote may be killed at any moment
        keep = {handle, *([control.fileno()] if control else [])}
        # Linux shares its processors out among sessions first: one that starts a hundred processes slows itself.
        os.setsid()
        if request["patient"]:
            kernel.give_way()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1) if request["control"] else (0, 1, 2):
            os.dup2(null, number)
        for number in map(int, os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else range(256):
            if number > 2 and number not in keep:
                with contextlib.suppress(OSError):
                    os.close(number)
        kernel.set_name(f"grader {ROLES[request['entry']]}")
        module, _, function = request["entry"].partition(":")
        serve = getattr(importlib.import_module(module), function)
        if confined is None:
            os.chdir(to)
            kernel.prctl(kernel.DUMPABLE, 0)
        else:
            os.environ.pop("PYTHONPATH", None)
            # An executor needs no network: devices of one process on CPUs use none.
            network = request["entry"] == WORKER
            confine.enter(confined, Path(to), request["readable"], request["writable"], network)
            for path in Path(request["data"]).iterdir() if request["data"] else ():
                os.symlink(path, path.name)
        os.environ.update({name: os.getcwd() for name in ("HOME", "TMPDIR", "MPLCONFIGDIR")})
        tempfile.tempdir = None  # what it remembers is the zygote's
        stream = socket.socket(fileno=handle)
        serve(stream, control) if control else serve(stream)


def _is_ours(pid: int) -> bool:
    """Whether this is a child of the zygote: the number of one that has ended may be another process's by now."""
    try:
        return psutil.Process(pid).ppid() == os.getpid()
    except psutil.Error:
        return False


def main() -> None:
    """Serve the control socket whose number is the first argument; all folders lie in that of the second."""
    kernel.prctl(kernel.DUMPABLE, 0)
    kernel.prctl(kernel.ADOPT_ORPHANS)
    kernel.set_name("grader zygote")
    number, tempfile.tempdir = sys.argv[1:]
    gc.disable()  # until all is imported: walking what stays took a quarter of that time
    if os.environ.get("JAX_PLATFORMS") == CPU.jax:
        accelerators.leave_alone()
    import_all(ALWAYS)  # before the first request, which may come later
    ZygoteServer(socket.socket(fileno=int(number)), Path(tempfile.tempdir)).serve()


if __name__ == "__main__":
    main()
