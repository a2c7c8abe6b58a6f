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
import stat
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grader.core.notebook import MAX_BYTES
from grader.core.own_files import MAX_FILES, can_be_own

QUIET = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "maintenance.auto=false")
# How a person or a CI job tells git who it is and how it reaches a server.
PASSED_ON = re.compile(
    r"GIT_SSH(_COMMAND|_VARIANT)?|GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL)"
)
COMMIT = "refs/collected/head"
PLAIN = ("100644", "100755", "100664")  # modes of regular files
LFS = b"version https://git-lfs.github.com/spec/"
# Files of a repository by which git reads another one, and what a learner does instead. git looks for `.git` first.
LEADING_OUT = {
    ".git": "delete it",
    "commondir": "clone it",
    "objects/info/alternates": "run `git repack -a -d`, then delete that file",
}
# Settings with which older versions of git fetch what a repository lacks, from wherever it says.
FETCHES = re.compile(r"^(extensions\.partialclone|remote\..*\.promisor|includeif\..*)$", re.MULTILINE | re.IGNORECASE)
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW  # to open one
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


def ignores(path: Path) -> bool:
    """Whether git ignores an absolute path, which need not exist. True where there is no repository, or no git."""
    above = next(one for one in path.parents if one.is_dir())
    command = ["git", *_settings(QUIET), "check-ignore", "--quiet", "--", str(path)]
    try:
        return subprocess.run(command, cwd=above, env=environment(), capture_output=True, check=False).returncode != 1
    except OSError:
        return True


def run(folder: Path, *words: str) -> bytes:
    """Returns what `git WORDS` prints, run in `folder`. Raises GitFailed."""
    if shutil.which("git") is None:
        raise GitFailed("git is not installed")
    command = ["git", *_settings(QUIET), *words]
    done = subprocess.run(command, cwd=folder, env=environment(), input=b"", capture_output=True, check=False)
    if done.returncode != 0:
        raise GitFailed(_reason(done.stderr) or f"git {words[0]} ended with {done.returncode}")
    return done.stdout


def _open_folder(folder: Path) -> int:
    """Opens a folder. Links on the way to it are followed where they are the machine's, such as one of /home."""
    at = os.open(folder.anchor, FOLDER)
    for place in (*reversed(folder.parents[:-1]), folder):
        try:
            about = os.lstat(place.name, dir_fd=at)
            link = stat.S_ISLNK(about.st_mode)
            if link and (place == folder or about.st_uid not in (0, os.geteuid())):
                raise GitFailed(f"{place} is a link. Use the folder that it points to")
            inside = os.open(place.name, FOLDER & ~os.O_NOFOLLOW if link else FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = inside
    return at


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


class BoundedGit:
    """Runs git in a bare repository in `folder`, which the caller removes, within the limits. Methods raise GitFailed.

    Once `stop` is set, a git process that runs or begins is ended.
    """

    def __init__(self, folder: Path, limits: FetchLimits, stop: threading.Event) -> None:
        self.folder, self.limits, self.stop = folder, limits, stop
        self.until = time.monotonic() + limits.seconds
        self.git("init", "--quiet", "--bare", "--template=")

    def _go_on(self, left: int) -> None:
        """Raises GitFailed at a stop, or when the time or the bytes are used up."""
        if self.stop.is_set() or time.monotonic() > self.until:
            raise GitFailed("stopped" if self.stop.is_set() else self._late)
        if left < 0:
            raise GitFailed(f"more than {self.limits.bytes >> 20} MB")

    @property
    def _late(self) -> str:
        return f"no complete answer within {self.limits.seconds:g} s"

    def git(self, *words: str, protocols: str = "none") -> bytes:
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
                    self._go_on(0)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(max(0.0, min(self.until - time.monotonic(), TICK_S)))
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


class FetchedRepository(BoundedGit):
    """A learner's repository at one commit."""

    def __init__(self, repository: Repository, folder: Path, limits: FetchLimits, stop: threading.Event) -> None:
        super().__init__(folder, limits, stop)
        self.ref = f"refs/heads/{repository.branch}" if repository.branch else "HEAD"
        local = os.path.isabs(repository.url)
        self.protocols = "file" if local else "https:ssh:git"
        origin = str(self._contained(Path(repository.url))) if local else repository.url
        self.git("config", "remote.origin.url", origin)

    def tip(self) -> str:
        """Returns the id of the commit that the branch is at, as the server says; "" where there is none."""
        words = self.git("ls-remote", "--quiet", "--", "origin", self.ref, protocols=self.protocols).split()
        return words[0].decode("ascii", "replace") if words else ""

    def fetch(self) -> tuple[str, str]:
        """Fetches that commit without its history, and no file that is larger than any notebook.

        Returns its id, and its date as its author's machine had it, ISO 8601.
        """
        words = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--refmap=")
        limit = f"--filter=blob:limit={MAX_BYTES + 1}"
        self.git("fetch", *words, limit, "--", "origin", f"+{self.ref}:{COMMIT}", protocols=self.protocols)
        shown = self.git("log", "-1", "--no-show-signature", "--format=%H %cI", f"{COMMIT}^{{commit}}")
        commit, _, committed = shown.decode().strip().partition(" ")
        return commit, committed if committed[:4].isdecimal() else ""  # its author may have written no date

    def read(self, places: list[str]) -> tuple[str, str, bytes] | None:
        """Returns path, id and bytes of the first of these files that the commit has. Raises FileRefused."""
        found = {}
        for entry in filter(None, self.git("ls-tree", "-z", "--full-tree", COMMIT, "--", *places).split(b"\0")):
            about, _, name = entry.partition(b"\t")
            found[name.decode("utf-8", "replace")] = about.decode().split()
        path = next((place for place in places if place in found), None)
        if path is None:
            return None
        mode, _, blob = found[path]
        if mode not in PLAIN:
            what = {"120000": "a link", "040000": "a folder", "160000": "a submodule"}.get(mode, "no file")
            raise FileRefused(f"{path} is {what}. Commit the notebook itself.")
        content = self._content(blob, MAX_BYTES)
        if content is None:
            raise FileRefused(f"{path} is larger than {MAX_BYTES >> 20} MB. Clear its outputs.")
        if content.startswith(LFS):
            raise FileRefused(f"{path} is stored in Git LFS. Commit the notebook itself.")
        return path, blob, content

    def read_beside(self, notebook: str, most: int) -> dict[str, tuple[str, bytes | None]]:
        """Returns id and bytes of the learner's own files beside a notebook and below, by their paths from there.

        One that all of them together are too large with, by `most` bytes, has None instead of its bytes.
        """
        folder, _, own_name = notebook.rpartition("/")
        listed = self.git("ls-tree", "-r", "-z", "--full-tree", COMMIT, "--", f"{folder}/").split(b"\0")
        found: dict[str, tuple[str, bytes | None]] = {}
        for entry in filter(None, listed):
            about, _, path = entry.partition(b"\t")
            mode, _, blob = about.decode().split()
            name = path.decode("utf-8", "replace").removeprefix(f"{folder}/")
            if mode in PLAIN and name != own_name and can_be_own(name) and len(found) <= MAX_FILES:
                content = self._content(blob, most)
                found[name] = blob, content
                most -= len(content or b"")
        return found

    def _content(self, blob: str, most: int) -> bytes | None:
        """The bytes of a file; None where it has more than `most`."""
        try:
            size = int(self.git("cat-file", "-s", blob))
        except GitFailed:  # left out by the server, as it is larger than asked for
            return None
        return self.git("cat-file", "blob", blob) if size <= most else None

    def _contained(self, repository: Path) -> Path:
        """Returns a copy of the folder that git reads in a local repository. Raises GitFailed where it leads out.

        git would follow that with the rights of the one who collects, to a neighbour's work or to any file. A copy is
        checked and read, since the owner may change the repository between a check and a reading.
        """
        copy = self.folder / "local"
        try:
            folder = _open_folder(repository)
        except (FileNotFoundError, NotADirectoryError):
            raise GitFailed(f"{repository} does not appear to be a git repository") from None
        try:
            names = os.listdir(folder)
            if ".git" in names and not stat.S_ISDIR(os.lstat(".git", dir_fd=folder).st_mode):
                raise GitFailed("its .git is a link or a file that leads to another repository. Clone it")
            if ".git" not in names and "HEAD" not in names:
                raise GitFailed(f"{repository} does not appear to be a git repository")
            inside = os.open(".git" if ".git" in names else ".", FOLDER, dir_fd=folder)
            try:
                self._copy(inside, copy)
            finally:
                os.close(inside)
        finally:
            os.close(folder)
        for name, instead in LEADING_OUT.items():
            if os.path.lexists(copy / name):
                raise GitFailed(f"its {name} leads to another repository. Instead, {instead}")
        for path in copy.rglob("*"):
            if path.is_symlink() and not path.resolve().is_relative_to(copy.resolve()):
                raise GitFailed(f"its {path.relative_to(copy)} is a link that leads out of the repository")
        for config in (copy / "config", copy / "config.worktree"):
            if config.exists():
                listed = self.git("config", "--file", str(config), "--includes", "--name-only", "--list")
                if FETCHES.search(listed.decode("utf-8", "replace")):
                    raise GitFailed(
                        "it is a partial clone, which fetches missing files from elsewhere. Clone all of it"
                    )
        return copy

    def _copy(self, opened: int, to: Path) -> None:
        """Copies the folder that is opened; links are copied as links."""
        left = self.limits.bytes
        for inside, folders, names, place in os.fwalk(dir_fd=opened):
            if inside == "." and "hooks" in folders:
                folders.remove("hooks")  # never run, and often links to what a person shares among repositories
            (to / inside).mkdir()
            for name in (*folders, *names):
                kind = os.lstat(name, dir_fd=place).st_mode
                if stat.S_ISLNK(kind):
                    (to / inside / name).symlink_to(os.readlink(name, dir_fd=place))
                elif stat.S_ISREG(kind):
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
                    with open(file, "rb") as source, (to / inside / name).open("wb") as target:
                        while piece := source.read(1 << 20):
                            left -= target.write(piece)
                            self._go_on(left)
            self._go_on(left)
