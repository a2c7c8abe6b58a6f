"""Runs a notebook from top to bottom in a kernel of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traitlets.config import Config


@contextmanager
def unix_sockets() -> Iterator[Config]:
    """The configuration of a kernel that talks through Unix sockets in a temporary folder.

    With TCP, Jupyter picks free ports before the kernel takes them. Another process may take one in between, and the
    kernel then dies with "Address already in use". That happens when several notebooks run on one machine.
    """
    from traitlets.config import Config

    with tempfile.TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True) as folder:
        yield Config(KernelManager={"transport": "ipc", "connection_file": str(Path(folder) / "kernel.json")})


def execute(
    notebook: Any,
    folder: Path | None = None,
    *,
    cell_s: float = 120,
    allow_errors: bool = False,
    env: Mapping[str, str] | None = None,
) -> None:
    """Runs every cell in order and fills in its outputs.

    `folder` is the kernel's working directory (the current one by default), `cell_s` the time limit of one cell in
    seconds, and `env` the kernel's whole environment (that of this process by default).

    Raises nbclient's CellExecutionError where a cell raises and `allow_errors` is false, CellTimeoutError where one
    takes too long, and DeadKernelError where one ends the kernel.
    """
    import asyncio

    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(folder)}} if folder is not None else {}
    with unix_sockets() as config:
        client = NotebookClient(
            notebook,
            config=config,
            kernel_name="python3",
            timeout=cell_s,
            allow_errors=allow_errors,
            resources=resources,
        )
        # Unlike `client.execute`, this closes its event loop also in a thread other than the main one.
        asyncio.run(client.async_execute(env=dict(os.environ if env is None else env)))
