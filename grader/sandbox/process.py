"""Client of the zygote, on the trusted side: start it, fork processes from it, exchange frames with them, end them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from grader.core.faults import Fault
from grader.core.layout import SOURCE
from grader.sandbox.accelerators import CPU, Platform
from grader.sandbox.accelerators import environment as told
from grader.sandbox.confine import LEVELS
from grader.sandbox.confine_restrictions import ACCELERATED_MEMORY, MEMORY
from grader.sandbox.process_tree import ProcessTree
from grader.sandbox.wire import receive, send, silent

START_S = 120.0
WALL_FACTOR = 4.0
ACCELERATED_FACTOR = 4.0  # to compile for an accelerator, on many threads, takes the processor longer
IN_LINE_FACTOR = 10.0  # however long the line
REPLY_LIMIT = 256 << 20
AT_MOST = "GRADER_CONFINE_AT_MOST"  # in our environment: no rung above this level is tried, as if it were refused


@dataclass(frozen=True)
class ConfinementReport:
    """How a zygote confines learners' processes: a level of `confine.LEVELS`, why each level above it is refused, why
    they run as the same user as the grader ("" where they do not), and whether they use an accelerator."""

    level: str
    refused: dict[str, str]
    same_user: str = ""
    accelerated: bool = False


class Zygote:
    """A client of a zygote: starts one, or takes over the control socket that a forked examiner was given."""

    def __init__(
        self, control: socket.socket, process: subprocess.Popen[bytes] | None = None, folder: Path | None = None
    ) -> None:
        self.control, self.process, self.folder = control, process, folder
        self._confined: ConfinementReport | None = None

    @classmethod
    def start(cls, modules: list[str], platform: Platform = CPU, count: int = 1) -> Zygote:
        """Start a zygote that has imported `modules` besides JAX, Flax and Optax. Takes about two seconds.

        All that is forked from it runs on `platform`; of an accelerator, `count` devices have to work together.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Everything that is forked from it has its folder in this one, which the zygote removes if we are killed.
        folder = Path(tempfile.mkdtemp(prefix="grader-"))
        folder.chmod(0o711)
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {**told(platform), "MPLBACKEND": "Agg", "MPLCONFIGDIR": tempfile.gettempdir()}
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.Popen(
            [sys.executable, "-m", "grader.sandbox.zygote", str(theirs.fileno()), str(folder)],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is the client's to handle
        )
        theirs.close()
        zygote = cls(ours, process, folder)
        ours.settimeout(START_S)
        try:
            at_most = os.environ.get(AT_MOST, LEVELS[0])
            if at_most not in LEVELS:
                raise ValueError(f"{AT_MOST} is {at_most!r}; it is one of {', '.join(LEVELS)}")
            opening = {"preload": modules, "at_most": at_most, "platform": asdict(platform), "count": count}
            ours.send(json.dumps(opening).encode())
            zygote.confined  # noqa: B018  # returns once the zygote is ready
        except BaseException:
            zygote.stop(0.5)
            raise
        return zygote

    @property
    def confined(self) -> ConfinementReport:
        """How the workers and executors that are forked from it are confined."""
        if self._confined is None:
            self.control.send(json.dumps({}).encode())
            found = self.control.recv(1 << 16)
            if not found:
                raise Fault("crashed", "the process that all others are forked from did not start")
            self._confined = ConfinementReport(**json.loads(found))
        return self._confined

    def fork(
        self, entry: str, *, control: bool = False, patient: bool = False,
        readable: Sequence[str] = (), writable: Sequence[str] = (),
    ) -> Process:  # fmt: skip
        """Fork a process that runs `entry` in an empty folder of its own.

        Args:
            entry: `module:function`, one of those in `grader.core.layout`.
            control: whether it gets a control socket, so that it can fork processes too.
            patient: whether it, and what it forks, leaves the processors to all that are not.
            readable, writable: folders that a confined one sees besides what every one sees.

        Raises:
            OSError: there is no zygote, or it cannot fork.
        """
        ours, theirs = socket.socketpair()
        request = {"entry": entry, "control": control, "patient": patient}
        request |= {"readable": list(readable), "writable": list(writable)}
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], [theirs.fileno()])
            reply = json.loads(self.control.recv(1 << 16) or b"null")
            if reply is None:
                raise ConnectionError("the process that all others are forked from has ended")
            if "refused" in reply:
                raise OSError(reply["refused"])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        folder = Path(reply["folder"]) if reply["folder"] else None
        return Process(reply["pid"], ours, folder, not control and self.confined.accelerated)

    def stop(self, seconds: float = 5.0) -> None:
        """Let the zygote end, with every process forked from it that has not ended before."""
        self.control.close()
        if self.process is not None:
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.folder is not None:
            remove(self.folder)


class Process:
    """One forked process, its stream, and its scratch folder (None where that is in its own memory)."""

    def __init__(self, pid: int, stream: socket.socket, folder: Path | None, accelerated: bool = False) -> None:
        self.pid, self.stream, self.folder, self.accelerated = pid, stream, folder, accelerated
        self.ended = False

    def exchange(self, *frames: bytes, seconds: float, most: int = REPLY_LIMIT) -> bytes:
        """Send frames, receive one of at most `most` bytes.

        Each question opens with a number that nobody can guess, and its reply with the same one: else what a process
        says without being asked would be taken for the answer to another question.

        Raises:
            Fault: after `seconds` of its processor time, or four times that on the clock; or it broke that rule.
        """
        if not self.waits:
            raise Fault("crashed", "the process ended, or spoke without being asked")
        budget, turn = _Budget(self.pid, seconds, self.accelerated), os.urandom(16)
        for frame in (turn, *frames):
            send(self.stream, frame, budget)
        if receive(self.stream, REPLY_LIMIT, budget) != turn:
            raise Fault("crashed", "the process answered what it was not asked")
        return receive(self.stream, most, budget)

    @property
    def waits(self) -> bool:
        """Whether it is there and has said nothing since its last reply."""
        return silent(self.stream)

    def finish(self, seconds: float = 5.0) -> None:
        """Close the stream, which a process of ours takes as its end, and kill what is left of it after a while."""
        self.stream.close()
        end = time.monotonic() + seconds
        while psutil.pid_exists(self.pid) and time.monotonic() < end:
            time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """End the process and every process in its group; remove its scratch folder."""
        if self.ended:
            return
        self.ended = True
        for target in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                target(self.pid, signal.SIGKILL)
        self.stream.close()
        if self.folder is not None:
            remove(self.folder)


def remove(folder: Path) -> None:
    """Remove a folder with all that a process may have left in it, folders that it closed to itself too."""
    shutil.rmtree(folder, ignore_errors=True)
    for place, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(os.path.join(place, name)):
                os.chmod(os.path.join(place, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


class _Budget:
    """Expires on processor time: a slow compile on a busy machine costs nobody points. The clock backs it up, and
    stands still while the process stands in line for a processor, as it may beside one that starts a hundred.

    What the process started counts with it, and so does their memory together.
    """

    def __init__(self, pid: int, seconds: float, accelerated: bool = False) -> None:
        self.seconds = seconds * (ACCELERATED_FACTOR if accelerated else 1)
        self.wall = self.seconds * WALL_FACTOR
        self.memory = ACCELERATED_MEMORY if accelerated else MEMORY
        self.began = time.monotonic()
        self.family = ProcessTree(pid)

    def __call__(self) -> Fault | None:
        if self.family.seconds() > self.seconds:
            return Fault("timeout", f"stopped after {self.seconds:g} s of computing")
        if self.family.memory(self.memory) > self.memory:
            return Fault("memory", f"used more than {self.memory >> 30} GiB of memory")
        passed = time.monotonic() - self.began
        if passed - self.family.stood() > self.wall or passed > self.wall * IN_LINE_FACTOR:
            return Fault("timeout", f"stopped after {self.wall:g} s")
        return None
