"""Fetches one repository into a scratch folder, bounded in bytes and seconds, and reads files out of it by their ids.

Nothing is checked out: no hook, filter, submodule, link or attribute of the repository ever takes effect. What is
wanted is read from the object store, and what is no plain file is refused.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grader.core.notebook import MAX_BYTES
from grader.lms import git
from grader.lms.repositories import Repository

COMMIT = "refs/collected/head"
LFS = b"version https://git-lfs.github.com/spec/"
MEMORY = 4 << 30  # bytes of addresses: a small pack may ask for any amount
# The bound on bytes is the kernel's, on any one file: fetched objects come as one pack.
BOUNDED = 'ulimit -f "$1" || exit 125; ulimit -v "$2" 2>/dev/null; shift 2; exec git "$@"'
SETTINGS = (
    "fetch.unpackLimit=1", "transfer.unpackLimit=1", "fetch.writeCommitGraph=false", "fetch.recurseSubmodules=false",
    "submodule.recurse=false", "core.symlinks=false", "core.askPass=", "core.bigFileThreshold=16m", "pack.threads=1",
    "http.lowSpeedLimit=1000", "http.lowSpeedTime=30", "transfer.bundleURI=false", "credential.interactive=false",
)  # fmt: skip


class RepositoryError(Exception):
    """A repository that could not be read; the text says why."""


class FileRefused(Exception):
    """A file that is there and is not taken; the text says why."""


@dataclass(frozen=True)
class FetchLimits:
    """Of one repository: seconds for all of it, and bytes fetched."""

    seconds: float = 120.0
    bytes: int = 200 << 20


class GitProcesses:
    """The git processes that run now: a stop ends them all, and no more begin."""

    def __init__(self) -> None:
        self._lock, self._running, self._stopped = threading.Lock(), set[subprocess.Popen[bytes]](), False

    def start(self, command: list[str], **options: object) -> subprocess.Popen[bytes]:
        """A process in a session of its own: no terminal that it could ask, and its children end with it."""
        with self._lock:
            if self._stopped:
                raise RepositoryError("stopped")
            child: subprocess.Popen[bytes] = subprocess.Popen(command, start_new_session=True, **options)  # type: ignore[call-overload]
            self._running.add(child)
            return child

    def end(self, child: subprocess.Popen[bytes]) -> None:
        """End one and all that it started, and forget it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        with self._lock:
            self._running.discard(child)

    def stop(self) -> None:
        """End all of them."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for child in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


class FetchedRepository:
    """A learner's repository at one commit, in `folder`, which is the caller's to remove."""

    def __init__(self, repository: Repository, folder: Path, limits: FetchLimits, children: GitProcesses) -> None:
        self.repository, self.folder, self.limits, self.children = repository, folder, limits, children
        self.until = time.monotonic() + limits.seconds
        self._git("init", "--quiet", "--bare", "--template=")
        self._git("config", "remote.origin.url", repository.url)

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.repository.branch}" if self.repository.branch else "HEAD"

    def tip(self) -> str:
        """The commit that the branch is at, as the server says. Raises NotFetched."""
        words = self._git("ls-remote", "--quiet", "--", "origin", self.ref, protocols=self._protocols).split()
        return words[0].decode("ascii", "replace") if words else ""

    def fetch(self) -> None:
        """Fetch that commit without its past, and no file that is larger than any notebook. Raises NotFetched."""
        words = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--refmap=")
        limit = f"--filter=blob:limit={MAX_BYTES + 1}"
        self._git("fetch", *words, limit, "--", "origin", f"+{self.ref}:{COMMIT}", protocols=self._protocols)

    @property
    def commit(self) -> str:
        return self._git("rev-parse", f"{COMMIT}^{{commit}}").decode().strip()

    @property
    def committed(self) -> str:
        """The commit's date as its author's machine had it, ISO 8601."""
        return self._git("log", "-1", "--format=%cI", COMMIT).decode().strip()

    def find(self, places: list[str]) -> tuple[str, str, str] | None:
        """The first of these paths that the commit has: path, mode and id."""
        listed = self._git("ls-tree", "-z", "--full-tree", COMMIT, "--", *places).split(b"\0")
        found = {}
        for entry in filter(None, listed):
            (mode, _, blob), path = entry.partition(b"\t")[0].split(), entry.partition(b"\t")[2]
            found[path.decode("utf-8", "replace")] = mode.decode(), blob.decode()
        return next(((place, *found[place]) for place in places if place in found), None)

    def read(self, path: str, mode: str, blob: str) -> bytes:
        """The bytes of a plain file. Raises Refused."""
        if mode not in ("100644", "100755", "100664"):
            what = {"120000": "a link", "040000": "a folder", "160000": "a submodule"}.get(mode, "no file")
            raise FileRefused(f"{path} is {what}; the notebook itself has to be committed.")
        try:
            size = int(self._git("cat-file", "-s", blob))
        except RepositoryError:  # left out by the server, as it is larger than asked for
            size = MAX_BYTES + 1
        if size > MAX_BYTES:
            raise FileRefused(f"{path} is larger than {MAX_BYTES >> 20} MB; its outputs have to be cleared.")
        content = self._git("cat-file", "blob", blob)
        if content.startswith(LFS):
            raise FileRefused(f"{path} is stored in Git LFS; the notebook itself has to be committed.")
        return content

    @property
    def _protocols(self) -> str:
        return "file" if self.repository.local else "https:ssh:git"

    def _git(self, *words: str, protocols: str = "none") -> bytes:
        """What git prints. Unless `protocols` are given it can reach nothing, whatever it finds missing."""
        settings = [word for setting in SETTINGS for word in ("-c", setting)]
        bounds = [str(self.limits.bytes >> 9), str(MEMORY >> 10)]
        command = ["sh", "-c", BOUNDED, "sh", *bounds, *git.QUIET, *settings, *words]
        around = {
            **git.environment(),
            "GIT_ALLOW_PROTOCOL": protocols,
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_DIR": str(self.folder),
        }
        around.pop("SSH_ASKPASS", None)
        said, wrong = self.folder / "said", self.folder / "wrong"  # bounded like all that git writes
        with said.open("w+b") as out, wrong.open("w+b") as err:
            child = self.children.start(
                command, cwd=self.folder, env=around, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            try:
                child.wait(max(0.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise RepositoryError(f"no answer, or not all of it, within {self.limits.seconds:g} s") from None
            finally:
                self.children.end(child)
            if child.returncode != 0:
                err.seek(0)
                raise RepositoryError(self._why(child.returncode, err.read(1 << 16)))
            out.seek(0)
            return out.read()

    def _why(self, status: int, said: bytes) -> str:
        """The reason; a file that has come up to the bound was cut there."""
        bound = self.limits.bytes >> 9 << 9
        if any(path.stat().st_size >= bound for path in self.folder.rglob("*") if path.is_file()):
            return f"more than {self.limits.bytes >> 20} MB"
        return git.reason(said).replace(str(self.folder), "") or f"git ended with {status}"
