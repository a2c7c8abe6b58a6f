"""A PostgreSQL server for one test: Debian's package `postgresql`, a cluster of its own, a free port of 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ports import free_port

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
USER = (
    [str(shutil.which("runuser", path="/usr/sbin:/sbin:/usr/bin:/bin")), "-u", "postgres", "--"]
    if os.geteuid() == 0
    else []
)  # the server refuses to run as root


def missing() -> str:
    """Why there is no server on this machine; "" if there is one."""
    if PROGRAMS is None:
        return "no PostgreSQL server on this machine (Debian's package `postgresql`)"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "no psycopg on this machine (pip's group `postgresql`)"
    return ""


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of an empty database, as SQLAlchemy writes it."""
    assert PROGRAMS is not None
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if USER:
        shutil.chown(folder, "postgres")
    port = free_port()

    def run(program: str, *options: str) -> None:
        command = [*USER, str(PROGRAMS.parent / program), *options]
        subprocess.run(
            command, check=True, cwd=folder, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=120
        )

    data = str(folder / "data")
    try:
        run("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
