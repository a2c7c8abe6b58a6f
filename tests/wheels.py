"""The package as a wheel, and kernels of other environments."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import ROOT

# A kernel that can write to its home folder only. Its arguments: that folder, then the command.
READ_ONLY = """
home=$1; shift
mount --make-rprivate / && mount --bind "$home" "$home" && mount -o remount,ro,bind / || exit 9
cd "$home/content" && exec "$@"
"""


def built_wheel(folder: Path) -> Path:
    """Built from what git tracks, as a release is."""
    source = folder / "source"
    source.mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    packed = subprocess.run(["tar", "--null", "-T", "-", "-c"], cwd=ROOT, input=names, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(source)], input=packed.stdout, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder / "dist"), str(source)]
    subprocess.run(command, check=True, timeout=300)
    [made] = (folder / "dist").glob("*.whl")
    return made


def namespace_command() -> list[str]:
    """The beginning of a command with mounts of its own; empty where this machine permits none."""
    unshare = shutil.which("unshare")
    for options in ([], ["-r"]) if unshare else ():
        command = [unshare, *options, "-m"]
        tried = [*command, "bash", "-c", "mount --make-rprivate / && mount -o remount,ro,bind /"]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            return command
    return []


def run_elsewhere(notebook: Any, python: Path, home: Path, read_only: bool, **environment: str) -> None:
    """Runs a notebook in the kernel of another environment, with the variables of that platform alone."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    for name in ("content", "tmp"):
        (home / name).mkdir(exist_ok=True)
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home / "tmp"), **environment}
    begin = [*namespace_command(), "bash", "-c", READ_ONLY if read_only else 'cd "$1/content"; shift; exec "$@"']
    kernel = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    command = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]

    class Manager(AsyncKernelManager):  # type: ignore[misc]
        @property
        def kernel_spec(self) -> Any:
            return KernelSpec(argv=[*command, *begin, "kernel", str(home), *kernel], language="python")

    manager = Manager(ip="127.0.0.1", connection_file=str(home / "kernel.json"))
    client = NotebookClient(notebook, timeout=300, startup_timeout=120, allow_errors=True, km=manager)
    try:
        asyncio.run(client.async_execute(reset_kc=True))  # closes its sockets and ends the kernel
    finally:
        process = getattr(manager.provisioner, "process", None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(process.pid), signal.SIGKILL)
