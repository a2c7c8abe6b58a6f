"""Runs git without anything of the folder it is called from, and fetches learners' repositories, bounded and inert.

Nothing of a fetched repository is checked out: no hook, filter, submodule, link or attribute of it ever takes effect.
Files are read from the object store by their ids, and what is not a plain file is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grader.core.notebook import MAX_BYTES

QUIET = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "maintenance.auto=false")
# How a person or a CI job tells git who it is and how it reaches a server.
PASSED_ON = re.compile(
    r"GIT_SSH(_COMMAND|_VARIANT)?|GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL)"
)
COMMIT = "refs/collected/head"
LFS = b"version https://git-lfs.github.com/spec/"
# Files of a repository by which git reads another one, and what a learner does instead. git looks for `.git` first.
LEADING_OUT = {
    ".git": "delete it",
    "commondir": "make a clone of it",
    "objects/info/alternates": "run `git repack -a -d`, then delete that file",
}
# Settings with which older versions of git fetch what a repository lacks, from wherever it says.
FETCHES = re.compile(r"^(extensions\.partialclone|remote\..*\.promisor|includeif\..*)$", re.MULTILINE | re.IGNORECASE)
TICK_S = 0.1  # until a stop is noticed
MEMORY = 4 << 30  # bytes of addresses: a small pack may ask for any amount
# The bound on bytes is the kernel's, on any one file: fetched objects come as one pack.
BOUNDED = 'ulimit -f "$1" || exit 125; ulimit -v "$2" 2>/dev/null; shift 2; exec git "$@"'
INERT = tuple(
    "fetch.unpackLimit=1 transfer.unpackLimit=1 fetch.writeCommitGraph=false fetch.recurseSubmodules=false "
    "submodule.recurse=false core.symlinks=false core.askPass= core.bigFileThreshold=16m pack.threads=1 "
    "http.lowSpeedLimit=1000 http.lowSpeedTime=30 transfer.bundleURI=false credential.interactive=false".split()
)


class GitFailed(Exception):
    """git did not do what it was asked; the text says why, in its own words where it has any."""


class FileRefused(Exception):
    """A file that is there and is not taken; the text says why."""


def environment() -> dict[str, str]:
    """Returns our variables without git's own: GIT_DIR, as in a hook, would have it act on another repository."""
    ours = {name: text for name, text in os.environ.items() if not name.startswith("GIT_") or PASSED_ON.fullmatch(name)}
    return {**ours, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def run(folder: Path, *words: str) -> bytes:
    """Returns what `git WORDS` prints, run in `folder`. Raises GitFailed."""
    if shutil.which("git") is None:
        raise GitFailed("git is not installed")
    command = ["git", *_settings(QUIET), *words]
    done = subprocess.run(command, cwd=folder, env=environment(), input=b"", capture_output=True, check=False)
    if done.returncode != 0:
        raise GitFailed(_reason(done.stderr) or f"git {words[0]} ended with {done.returncode}")
    return done.stdout


def _settings(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("-c", setting)]


def _reason(stderr: bytes) -> str:
    """The line that says what went wrong; the lines after it are its consequences."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "ssh:"))]
    return (fatal or lines or [""])[0].removeprefix("fatal: ").removeprefix("error: ")[:300]


@dataclass(frozen=True)
class Repository:
    """One learner's repository. `url` is as git takes it; `branch` is empty for the repository's default branch."""

    learner: str
    url: str
    branch: str = ""

    @property
    def shown(self) -> str:
        """The url without a password."""
        return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", self.url)


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one repository: seconds for all of it, and bytes fetched."""

    seconds: float = 120.0
    bytes: int = 200 << 20


class FetchedRepository:
    """A learner's repository at one commit, in `folder`, which the caller removes. Methods raise GitFailed.

    Once `stop` is set, a git process that runs or begins is ended.
    """

    def __init__(self, repository: Repository, folder: Path, limits: FetchLimits, stop: threading.Event) -> None:
        self.folder, self.limits, self.stop = folder, limits, stop
        self.until = time.monotonic() + limits.seconds
        self.ref = f"refs/heads/{repository.branch}" if repository.branch else "HEAD"
        self.local = Path(repository.url) if Path(repository.url).is_absolute() else None
        self.protocols = "https:ssh:git" if self.local is None else "file"
        self._git("init", "--quiet", "--bare", "--template=")
        self._git("config", "remote.origin.url", str(self._contained()) if self.local else repository.url)

    def tip(self) -> str:
        """Returns the id of the commit that the branch is at, as the server says; "" where there is none."""
        self._contained()
        words = self._git("ls-remote", "--quiet", "--", "origin", self.ref, protocols=self.protocols).split()
        return words[0].decode("ascii", "replace") if words else ""

    def fetch(self) -> tuple[str, str]:
        """Fetches that commit without its history, and no file that is larger than any notebook.

        Returns its id, and its date as its author's machine had it, ISO 8601.
        """
        self._contained()
        words = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--refmap=")
        limit = f"--filter=blob:limit={MAX_BYTES + 1}"
        self._git("fetch", *words, limit, "--", "origin", f"+{self.ref}:{COMMIT}", protocols=self.protocols)
        shown = self._git("log", "-1", "--no-show-signature", "--format=%H %cI", f"{COMMIT}^{{commit}}")
        commit, committed = shown.decode().split()
        return commit, committed

    def read(self, places: list[str]) -> tuple[str, str, bytes] | None:
        """Returns path, id and bytes of the first of these files that the commit has. Raises FileRefused."""
        found = {}
        for entry in filter(None, self._git("ls-tree", "-z", "--full-tree", COMMIT, "--", *places).split(b"\0")):
            about, _, name = entry.partition(b"\t")
            found[name.decode("utf-8", "replace")] = about.decode().split()
        path = next((place for place in places if place in found), None)
        if path is None:
            return None
        mode, _, blob = found[path]
        if mode not in ("100644", "100755", "100664"):
            what = {"120000": "a link", "040000": "a folder", "160000": "a submodule"}.get(mode, "no file")
            raise FileRefused(f"{path} is {what}; the notebook itself has to be committed.")
        try:
            size = int(self._git("cat-file", "-s", blob))
        except GitFailed:  # left out by the server, as it is larger than asked for
            size = MAX_BYTES + 1
        if size > MAX_BYTES:
            raise FileRefused(f"{path} is larger than {MAX_BYTES >> 20} MB; its outputs have to be cleared.")
        content = self._git("cat-file", "blob", blob)
        if content.startswith(LFS):
            raise FileRefused(f"{path} is stored in Git LFS; the notebook itself has to be committed.")
        return path, blob, content

    def _contained(self) -> Path | None:
        """Returns the folder that git reads in a local repository. Raises GitFailed where anything in it leads out.

        git would follow it with the rights of the one who collects, to a neighbour's work or to any file.
        """
        folder = self.local
        if folder is None:
            return None
        for place in (folder, *folder.parents):
            # A link above it may be the machine's, such as one of /home.
            if place.is_symlink() and (place == folder or place.lstat().st_uid not in (0, os.geteuid())):
                raise GitFailed(f"{place} is a link; name the folder that it leads to")
        if os.path.lexists(folder / ".git"):
            folder /= ".git"
            if folder.is_symlink() or not folder.is_dir():
                raise GitFailed("its .git is a link or a file that leads to another repository; make a clone of it")
        elif folder.is_file() or not (folder / "HEAD").exists():
            raise GitFailed(f"{folder} does not appear to be a git repository")
        for name, instead in LEADING_OUT.items():
            if os.path.lexists(folder / name):
                raise GitFailed(f"its {name} leads to another repository; {instead}")
        for inside, folders, names in os.walk(folder):
            if Path(inside) == folder and "hooks" in folders:
                folders.remove("hooks")  # never run, and often links to what a person shares among repositories
            for path in (Path(inside, name) for name in (*folders, *names)):
                if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                    raise GitFailed(f"its {path.relative_to(folder)} is a link that leads out of the repository")
            if time.monotonic() > self.until:
                raise GitFailed(self._late)
        for config in (folder / "config", folder / "config.worktree"):
            if config.exists():
                listed = self._git("config", "--file", str(config), "--includes", "--name-only", "--list")
                if FETCHES.search(listed.decode("utf-8", "replace")):
                    raise GitFailed("it is a partial clone, which takes missing files from elsewhere; clone all of it")
        return folder

    @property
    def _late(self) -> str:
        return f"no answer, or not all of it, within {self.limits.seconds:g} s"

    def _git(self, *words: str, protocols: str = "none") -> bytes:
        """Returns what git prints. Unless `protocols` are given it can reach nothing, whatever it finds missing."""
        bounds = [str(self.limits.bytes >> 9), str(MEMORY >> 10)]
        command = ["sh", "-c", BOUNDED, "sh", *bounds, *_settings(QUIET + INERT), *words]
        inert = {"GIT_ALLOW_PROTOCOL": protocols, "GIT_NO_LAZY_FETCH": "1", "GIT_DIR": str(self.folder)}
        variables = {name: text for name, text in (environment() | inert).items() if name != "SSH_ASKPASS"}
        # Files, which are bounded like all that git writes.
        with (self.folder / "stdout").open("w+b") as out, (self.folder / "stderr").open("w+b") as err:
            # In a session of its own: without a terminal to ask, and what it starts ends with it.
            child = subprocess.Popen(
                command, cwd=self.folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
            try:
                while child.poll() is None:
                    left = self.until - time.monotonic()
                    if self.stop.is_set() or left <= 0:
                        raise GitFailed("stopped" if self.stop.is_set() else self._late)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(min(left, TICK_S))
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            if child.returncode != 0:
                bound = self.limits.bytes >> 9 << 9  # a file that has come up to it was cut there
                if any(path.stat().st_size >= bound for path in self.folder.rglob("*") if path.is_file()):
                    raise GitFailed(f"more than {self.limits.bytes >> 20} MB")
                err.seek(0)
                reason = _reason(err.read(1 << 16)).replace(str(self.folder), "")
                raise GitFailed(reason or f"git ended with {child.returncode}")
            out.seek(0)
            return out.read()
