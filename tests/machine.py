"""What lies around a run: folders that nobody may change, servers that nobody may reach, places to litter."""

from __future__ import annotations

import hashlib
import os
import select
import site
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

MARK = "jaxercise-attack"  # in the name of every file that an attack tries to leave somewhere


@dataclass(frozen=True)
class Places:
    """What lies around a run. All of it can be read by anyone, as on a careless machine, and some written to."""

    base: Path

    def __getattr__(self, name: str) -> Path:
        if name not in ("course", "overlay", "submitted", "home", "outside", "scratch"):
            raise AttributeError(name)
        return self.base / name

    def guarded(self) -> dict[str, tuple[int, str]]:
        """Mode and content of all that no submission may change."""
        return {
            str(path): (path.lstat().st_mode, _content(path))
            for top in (self.course, self.overlay, self.submitted, self.home, self.outside)
            for path in sorted(top.rglob("*"))
            if "build" not in path.relative_to(self.base).parts
        }


class Listeners:
    """Servers on this machine that no learner's process may reach."""

    def __init__(self, path: Path) -> None:
        self.abstract = f"jaxercise-{os.urandom(8).hex()}"
        tcp, by_path = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
        by_path.bind(str(path))
        self.port = tcp.getsockname()[1]
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", self.port))
        self.sockets = {"port": tcp, "path": by_path, "datagrams": datagrams}
        if sys.platform == "linux":
            self.sockets["abstract"] = socket.socket(socket.AF_UNIX)
            self.sockets["abstract"].bind(f"\0{self.abstract}")
        for name, one in self.sockets.items():
            one.setblocking(False)
            if name != "datagrams":
                one.listen()

    def visited(self) -> list[str]:
        """Which of them somebody has spoken to."""
        return [name for name, one in self.sockets.items() if select.select([one], [], [], 0)[0]]

    def close(self) -> None:
        """Listen no more."""
        for one in self.sockets.values():
            one.close()


def _content(path: Path) -> str:
    if path.is_symlink():
        return os.readlink(path)
    if not path.is_file():
        return ""
    with path.open("rb") as stream:  # one of them says that it has a terabyte
        return f"{path.stat().st_size} {hashlib.sha256(stream.read(32 << 20)).hexdigest()}"


def left_behind() -> list[str]:
    """Files with the mark of an attack where one may leave them on this machine; they are removed."""
    tops = ["/tmp", "/var/tmp", "/dev/shm", "/run", sys.prefix, *site.getsitepackages(), str(Path(__file__).parents[1])]
    found = [path for top in tops for pattern in (f"{MARK}*", f"grader/{MARK}*") for path in Path(top).glob(pattern)]
    for path in found:
        path.unlink()
    return sorted(map(str, found))
