"""Kernels that are forked from one process, which has imported JAX and IPython's kernel: a start then takes a tenth of
the time. Everything else about them is as in a kernel that jupyter_client starts itself.

As a script it is that process: it reads requests from stdin, and each kernel announces its number on stdout.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil


class Kernel(psutil.Process):
    """A forked kernel, with what jupyter_client asks of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """None while it runs, and 0 after that: its exit status is not known."""
        return None if self.is_running() else 0


class KernelServer:
    """The process from which kernels are forked; `launch_kernel` stands in for the function of jupyter_client's."""

    def __init__(self, root: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root)}
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def launch_kernel(
        self, command: list[str], *, env: dict[str, str], cwd: str | Path | None = None, **_: Any
    ) -> Kernel:
        """Fork a kernel that runs `command`: Python, `-m`, a module and its arguments."""
        assert command[1] == "-m"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"module": command[2], "arguments": command[3:], "environment": env, "folder": str(cwd or Path.cwd())}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Kernel(int(self.process.stdout.readline()))

    def stop(self) -> None:
        """End the process; kernels that still run go on."""
        self.process.communicate()


def _become(module: str, arguments: list[str], environment: dict[str, str], folder: str) -> None:
    os.setsid()
    os.write(1, f"{os.getpid()}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _serve() -> None:
    del sys.path[0]  # the tests' folder, which is on no kernel's path
    import ipykernel.kernelapp  # noqa: F401
    import jax.numpy  # noqa: F401

    signal.signal(signal.SIGCHLD, _reap)
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                _become(**json.loads(line))
            finally:
                sys.stdout.flush()
                os._exit(0)


if __name__ == "__main__":
    _serve()
