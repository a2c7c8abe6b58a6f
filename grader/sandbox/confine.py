"""Ladder of confinement: the best rung that this machine gives, found by trying, and how a process enters it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader.sandbox import confine_files as files
from grader.sandbox import confine_kernel as kernel
from grader.sandbox import confine_restrictions as restrictions
from grader.sandbox.accelerators import CPU, Platform

# From the best to the least; `docs/confinement.md` says what each keeps out.
LEVELS = ("full", "namespaces", "landlock", "limits")
TRIAL_S = 60.0
_NAMESPACES = kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_MOUNTS  # that of processes: `kernel.fork`
# A user of its own for each process, as root can give it: numbers that no system hands out (first, how many), or where
# a container has fewer, ones that it hardly does.
_USERS = (range(1_900_000_000, 1_904_194_304), range(40_000, 60_000))


class ConfinementRefused(Exception):
    """No rung holds, not even that of limits alone; the text says why."""


@dataclass(frozen=True)
class Rung:
    """One way to confine. `namespaces`: "" for none, "root" where root makes them, "user" within a user namespace.
    `users`: numbers that processes get users of their own from; None where they stay who they are."""

    level: str
    namespaces: str = ""
    users: range | None = None

    @property
    def landlock(self) -> bool:
        return self.level in ("full", "landlock")

    @property
    def seccomp(self) -> bool:
        return self.level != "limits"


@dataclass(frozen=True)
class Confinement:
    """The rung that was found, and why the levels above it were refused.

    `same_user`: why a process on it is the same user as we are, "" where it is not, or that matters little. `visible`:
    paths that it sees. `others`: processes that count for its user. `accelerator`: files of one that it is let to.
    """

    rung: Rung
    refused: dict[str, str] = field(default_factory=dict)
    same_user: str = ""
    visible: tuple[str, ...] = ()
    others: int = 0
    accelerator: Platform = CPU

    @property
    def level(self) -> str:
        """One of LEVELS."""
        return self.rung.level


def rungs(at_most: str = "full") -> list[Rung]:
    """All ways that are worth a try here, the best first."""
    if not kernel.LINUX:
        return [Rung("limits")]
    users = _USERS if os.geteuid() == 0 else ()
    found = []
    for level in LEVELS[LEVELS.index(at_most) :]:
        namespaces = ("root", "user") if level in ("full", "namespaces") else ("", "")
        found += [*(Rung(level, namespaces[0], numbers) for numbers in users), Rung(level, namespaces[1])]
    return found


def settle(at_most: str, trial: Callable[[], None], scratch: Path, accelerator: Platform = CPU) -> Confinement:
    """Try each rung in a process of its own, and take the first on which `trial` runs to its end."""
    refused = dict.fromkeys(LEVELS[: LEVELS.index(at_most)], "not tried, as was asked")
    if not kernel.LINUX:
        refused = dict.fromkeys(LEVELS[:-1], "it takes Linux")
    visible = files.outermost((*files.visible(), *accelerator.shown))
    restrictions.libseccomp_available()  # imported once, before the forks
    for rung in rungs(at_most):
        of_its_own = bool(rung.users or rung.namespaces)
        others = 0 if of_its_own else restrictions.own_processes()
        confinement = Confinement(rung, refused, "", visible, others, accelerator)
        reason = _try(confinement, trial, scratch)
        if reason is None:
            why = refused.pop(rung.level, "only root can change that")
            return replace(confinement, same_user="" if of_its_own else why)
        refused[rung.level] = reason
    raise ConfinementRefused(refused["limits"])


def _try(confinement: Confinement, trial: Callable[[], None], scratch: Path) -> str | None:
    """Why `trial` does not run confined like this, or None when it does."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    read, write = os.pipe()

    def child() -> None:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 2)  # XLA says a lot when it ends
        try:
            enter(confinement, folder)
            for path in confinement.visible:
                os.stat(path)  # another user may not get to an interpreter that lies in somebody's home
            trial()
            text = "ok"
        except OSError as problem:
            text = f"{problem.filename or 'trial'}: {problem.strerror or problem}"
        except BaseException as problem:
            text = "".join(traceback.format_exception_only(problem)).strip()
        os.write(write, text.encode())
        signal.pause()

    try:
        pid = kernel.fork(confinement.rung.namespaces, child)
    except OSError as problem:
        os.close(read)
        return f"{problem.filename}: {problem.strerror}"
    finally:
        os.close(write)
    said = os.read(read, 4096).decode() if select.select([read], [], [], TRIAL_S)[0] else "the trial does not end"
    os.close(read)
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return "a confined process cannot be ended"
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return None if said == "ok" else said or "the trial ended without a word"


def enter(confinement: Confinement, folder: Path, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> None:
    """Confine this process for ever and go to its scratch folder: `folder` where it gets no root of its own.

    The process is single-threaded and just forked by `kernel.fork`. `readable` and `writable` are further folders that
    it sees; a process that writes to one of ours stays the user that it is. Raises OSError for what is refused.
    """
    rung = confinement.rung
    if kernel.LINUX:
        restrictions.first_to_go()
    user = None
    if rung.users and not writable:
        # Outside, this process has another number than in a namespace of its own.
        user = rung.users[int(os.readlink("/proc/self")) % len(rung.users)]
    if rung.namespaces:
        kernel.call("unshare", _NAMESPACES)
        socket.sethostname("sandbox")
        if confinement.accelerator.files:
            kernel.loopback_up()  # devices that compute together find each other over it, within one process too
        shown = (*confinement.visible, *readable)
        files.make_root(shown, writable, os.geteuid() if user is None else user, confinement.accelerator.files)
    else:
        os.chdir(folder)
        if user is not None:
            os.chown(folder, user, user)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if kernel.LINUX:
        kernel.drop_capabilities()
        kernel.prctl(kernel.END_WITH_PARENT, signal.SIGKILL)
        kernel.prctl(kernel.DUMPABLE, 0)
        kernel.prctl(kernel.NO_NEW_PRIVILEGES)
    accelerated = bool(confinement.accelerator.files)
    restrictions.limit_resources(confinement.others, accelerated)
    if rung.landlock:
        _enter_landlock(confinement, str(folder), readable, writable)
    if rung.seccomp:
        if not rung.namespaces:
            kernel.prctl(kernel.ADOPT_ORPHANS)
        scoped = rung.landlock and restrictions.landlock_abi() >= 6
        restrictions.refuse_calls(not rung.namespaces, scoped, accelerated)


def _enter_landlock(confinement: Confinement, folder: str, readable: Sequence[str], writable: Sequence[str]) -> None:
    accelerator = confinement.accelerator.files
    devices = [*(f"/dev/{name}" for name in files.DEVICES), *accelerator]
    if accelerator:
        writable = [*writable, "/proc/self"]  # a driver names its threads there, and gives up where it cannot
    if confinement.rung.namespaces:  # its network is its own
        restrictions.restrict_files(1, ["/"], [files.HOME, *writable, *devices], network=bool(accelerator))
        return
    seen = [*confinement.visible, *readable, "/proc/self", *files.PROCESSORS, *devices]
    restrictions.restrict_files(restrictions.LANDLOCK_ENOUGH, seen, [folder, "/dev/null", *writable, *accelerator])
