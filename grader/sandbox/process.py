"""Client of the zygote, on the trusted side: start it, fork processes from it, exchange frames with them, end them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
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
from typing import ClassVar

import psutil

from grader.core.faults import Fault
from grader.core.layout import SOURCE
from grader.sandbox.accelerators import CPU, Platform
from grader.sandbox.accelerators import environment as told
from grader.sandbox.confine import LEVELS
from grader.sandbox.confine_restrictions import ACCELERATED_MEMORY, MEMORY, OOM_SCORE, TCP_BUFFER
from grader.sandbox.wire import Expired, receive, send, silent

START_S = 120.0
WALL_FACTOR = 4.0
ACCELERATED_FACTOR = 4.0  # to compile for an accelerator, on many threads, takes the processor longer
IN_LINE_FACTOR = 10.0  # however long the line
REPLY_LIMIT = 256 << 20
DEFAULT_SOCKET = 208 << 10  # bytes that Linux lets a socket hold, where it does not tell
AT_MOST = "GRADER_CONFINE_AT_MOST"  # in our environment: no rung above this level is tried, as if it were refused
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = os.path.isdir("/proc/self/task")


@dataclass(frozen=True)
class ConfinementReport:
    """How a zygote confines learners' processes: a level of `confine.LEVELS`, why each level above it is refused, why
    they run as the same user as the grader ("" where they do not), whether they use an accelerator, and whether
    processes that a worker starts can connect to each other."""

    level: str
    refused: dict[str, str]
    same_user: str = ""
    accelerated: bool = False
    loopback: bool = False


class Zygote:
    """A client of a zygote: starts one, or takes over the control socket that a forked examiner was given."""

    early: ClassVar[Zygote | None] = None  # launched for CPUs before it was known what it is to import

    def __init__(
        self, control: socket.socket, process: subprocess.Popen[bytes] | None = None, folder: Path | None = None
    ) -> None:
        self.control, self.process, self.folder = control, process, folder

    @classmethod
    def launch(cls, platform: Platform = CPU) -> Zygote:
        """Returns a zygote that has just begun to import JAX. `start` makes it ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Everything that is forked from it has its folder in this one, which the zygote removes if we are killed.
        folder = Path(tempfile.mkdtemp(prefix="grader-"))
        folder.chmod(0o711)
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"MPLBACKEND": "Agg", "MPLCONFIGDIR": tempfile.gettempdir(), "TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.Popen(
            [sys.executable, "-m", "grader.sandbox.zygote", str(theirs.fileno()), str(folder)],
            pass_fds=[theirs.fileno()],
            env=environment | told(platform),
            cwd="/",
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is the client's to handle
        )
        theirs.close()
        return cls(ours, process, folder)

    @classmethod
    def start(cls, modules: list[str], platform: Platform = CPU, count: int = 1, hidden: Sequence[str] = ()) -> Zygote:
        """Start a zygote that has imported `modules` besides JAX. Takes about a second and a half.

        All that is forked from it runs on `platform`; of an accelerator, `count` devices have to work together.
        `hidden` are folders that learners' processes do not see, although they lie in one of the system's.

        Raises:
            Fault: it ended; of kind "refused" where it ended by itself, so that another would too.
            OSError: it was ended from outside, or takes too long.
        """
        early, cls.early = (cls.early, None) if platform.is_cpu else (None, cls.early)
        zygote = early or cls.launch(platform)
        assert zygote.process is not None
        zygote.control.settimeout(START_S)
        try:
            at_most = os.environ.get(AT_MOST, LEVELS[0])
            if at_most not in LEVELS:
                raise ValueError(f"{AT_MOST} is {at_most!r}; it is one of {', '.join(LEVELS)}")
            opening = {"preload": modules, "at_most": at_most, "platform": asdict(platform), "count": count}
            opening["hidden"] = list(hidden)
            zygote.control.send(json.dumps(opening).encode())
            zygote.confined  # noqa: B018  # returns once the zygote is ready
        except (Fault, ConnectionError) as problem:  # it has closed its end, so it has ended or will soon
            zygote.stop()
            if zygote.process.returncode > 0:
                reason = f"the process from which all others are forked ended with status {zygote.process.returncode}"
                raise Fault("refused", reason) from problem
            raise
        except BaseException:
            zygote.stop(0.5)
            raise
        return zygote

    @functools.cached_property
    def confined(self) -> ConfinementReport:
        """How the workers and executors that are forked from it are confined."""
        self.control.send(json.dumps({}).encode())
        found = self.control.recv(1 << 16)
        if not found:
            raise Fault("crashed", "the process from which all others are forked did not start")
        return ConfinementReport(**json.loads(found))

    def fork(
        self, entry: str, *, control: bool = False, patient: bool = False,
        readable: Sequence[str] = (), writable: Sequence[str] = (), data: str = "",
    ) -> Process:  # fmt: skip
        """Fork a process that runs `entry` in an empty folder of its own.

        Args:
            entry: `module:function`, one of those in `grader.core.layout`.
            control: whether it gets a control socket, so that it can fork processes too.
            patient: whether it, and what it forks, leaves the processors to all that are not.
            readable, writable: folders that a confined one sees besides what every one sees.
            data: a readable folder, to each of whose entries there is a link in its own.

        Raises:
            OSError: there is no zygote, or it cannot fork.
        """
        ours, theirs = socket.socketpair()
        request = {"entry": entry, "control": control, "patient": patient, "data": data}
        request |= {"readable": [*readable, *([data] if data else [])], "writable": writable}
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], [theirs.fileno()])
            reply = json.loads(self.control.recv(1 << 16) or b"null")
            if reply is None:
                raise ConnectionError("the process from which all others are forked has ended")
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

    in_line = 0.0  # seconds that all those which were asked something have stood in line for a processor meanwhile

    def __init__(self, pid: int, stream: socket.socket, folder: Path | None, accelerated: bool = False) -> None:
        self.pid, self.stream, self.folder, self.accelerated = pid, stream, folder, accelerated
        self.ended = False

    def exchange(self, *frames: bytes, seconds: float, most: int = REPLY_LIMIT, beside: Process | None = None) -> bytes:
        """Send frames, receive one of at most `most` bytes. `beside` is the other process of the same submission: what
        both use counts.

        Each question opens with a number that nobody can guess, and its reply with the same one: else what a process
        says without being asked would be taken for the answer to another question. Raises `Fault` after `seconds` of
        its processor time, or four times that on the clock; or where it broke that rule.
        """
        if not silent(self.stream):
            raise Fault("crashed", "the process ended, or sent an unrequested message")
        pids = [self.pid, *([beside.pid] if beside is not None and not beside.ended else [])]
        family, turn = ProcessTree(*pids, own_network=self.folder is None and not self.accelerated), os.urandom(16)
        budget = _budget(family, seconds, self.accelerated)
        try:
            for frame in (turn, *frames):
                send(self.stream, frame, budget)
            if receive(self.stream, REPLY_LIMIT, budget) != turn:
                raise Fault("crashed", "the process answered a different request")
            return receive(self.stream, most, budget)
        finally:
            if family.first_stood is not None:  # it took long enough to be looked at
                Process.in_line += family.stood()

    def finish(self, seconds: float = 5.0) -> None:
        """Close the stream, which a process of ours takes as its end, and kill what is left of it after a while."""
        self.stream.close()
        self._wait(seconds)
        self.kill()

    def end(self, seconds: float = 5.0) -> None:
        """Kill it, and wait until the kernel has freed what it and its child processes held."""
        self.kill()
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while psutil.pid_exists(self.pid) and time.monotonic() < end:
            time.sleep(0.01)

    def kill(self) -> None:
        """End the process and every process in its group; remove its scratch folder."""
        if self.ended:
            return  # its number may be another's by now
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


def _budget(family: ProcessTree, seconds: float, accelerated: bool) -> Expired:
    """Expires on processor time: a slow compile on a busy machine costs nobody points. The clock backs it up, and
    stands still while the process stands in line for a processor, as it may beside one that starts a hundred.

    What the processes started counts with them, and so does their memory together. The more of that they use, the
    sooner the kernel ends them when it has none left: each alone may be smaller than the next submission's.
    """
    seconds *= ACCELERATED_FACTOR if accelerated else 1
    wall, most = seconds * WALL_FACTOR, ACCELERATED_MEMORY if accelerated else MEMORY
    began = time.monotonic()

    def expired() -> Fault | None:
        members = family.members()  # found once, as each thread of each process is asked for its child processes
        if family.seconds(members) > seconds:
            return Fault("timeout", f"stopped after {seconds:g} s of processor time")
        used = family.memory(most, members)
        family.offer(used / most, members)
        if used > most:
            return Fault("memory", f"used more than {most >> 30} GiB of memory")
        passed = time.monotonic() - began
        if passed - family.stood() > wall or passed > wall * IN_LINE_FACTOR:
            return Fault("timeout", f"stopped after {wall:g} s")
        return None

    return expired


class ProcessTree:
    """Processor time and memory that processes and everything that they started use together.

    To make one costs little: the descendants are looked for when one asks. `own_network` states whether each
    of the processes has, with its descendants, a network of its own.
    """

    def __init__(self, *pids: int, own_network: bool = False) -> None:
        self.pids, self.own_network = pids, own_network
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS if _PROC else 0.0
        self._before = {pid: _times(pid)[0] for pid in pids}
        self.first_stood: dict[str, int] | None = None

    def members(self) -> list[int]:
        """Process ids; none when all have ended."""
        found, todo = [], [*self.pids]
        for pid in todo:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    todo += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
                found.append(pid)
        return found

    def seconds(self, members: Sequence[int] | None = None) -> float:
        """Processor time since this was made: of those that are there, and of those that they have waited for.

        Here and below, `members` are those that `members()` has just found; without them, they are looked for.
        """
        used = 0.0
        for pid in (self.members() if members is None else members) if _PROC else self.pids:
            now, started = _times(pid)
            before = self._before.setdefault(pid, now if started < self._began else 0.0)
            used += max(0.0, now - before)
        return used

    def stood(self) -> float:
        """Seconds since the first call that a thread of the first process stood in line for a processor: that one
        which stood longest. 0 where the system does not tell."""
        now: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self.pids[0]}/task"):
                fields = _read(f"/proc/{self.pids[0]}/task/{thread}/schedstat").split()
                now[thread] = int(fields[1]) if fields else 0
        if self.first_stood is None:
            self.first_stood = now
        return max((stood - self.first_stood.get(thread, 0) for thread, stood in now.items()), default=0) / 1e9

    def memory(self, enough: int, members: Sequence[int] | None = None) -> int:
        """Resident bytes, page tables, and what their sockets may hold. What forks share is counted for each of them,
        unless that makes more than `enough`: then once, which takes longer to find out. 0 where there is no /proc."""
        members = (self.members() if members is None else members) if _PROC else []
        in_sockets = sum(map(_in_sockets, self.pids)) if self.own_network and _PROC else 0
        counted = sum(map(_resident, members)) + in_sockets
        return counted if counted <= enough else sum(map(_share, members)) + in_sockets

    def offer(self, share: float, members: Sequence[int]) -> None:
        """Have the kernel end one of these when memory runs out, and the sooner the larger a `share` they use of what
        they may. Only root may say so of processes that, like confined ones, let nobody look at them."""
        score = str(OOM_SCORE + round((1000 - OOM_SCORE) * min(share, 1.0)))
        for pid in members if _PROC else []:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write(score)


def _read(path: str) -> str:
    """The whole of a small file; empty when it cannot be read, as when its process has just ended."""
    try:  # a hundred of these files are read in each turn of waiting, so neither a context manager nor a file object
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(number, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(number)


def _times(pid: int) -> tuple[float, float]:
    """Seconds of processor time, children that were waited for among them, and when it started, in ticks."""
    if _PROC:
        # The name, in brackets, may hold anything. After it, the times are fields 11 to 14, the start is field 19.
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (sum(map(int, fields[11:15])) / _TICKS, float(fields[19])) if fields else (0.0, 0.0)
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system, 0.0
    return 0.0, 0.0


def _resident(pid: int) -> int:
    return _kilobytes("VmRSS|VmPTE", _read(f"/proc/{pid}/status"))


def _kilobytes(names: str, text: str) -> int:
    """The sum of these fields of a file in /proc, in bytes."""
    return 1024 * sum(map(int, re.findall(rf"^(?:{names}):\s+(\d+) kB", text, re.MULTILINE)))


def _in_sockets(pid: int) -> int:
    """The most that all sockets of a process's network may hold together: the kernel counts it for no process."""
    text = _read(f"/proc/{pid}/net/sockstat")
    found, tcp = (re.search(pattern, text, re.MULTILINE) for pattern in (r"^sockets: used (\d+)", r"^TCP: inuse (\d+)"))
    each = _read("/proc/sys/net/core/wmem_default").strip()
    held = int(found[1]) * (int(each) if each.isdecimal() else DEFAULT_SOCKET) if found else 0
    return held + (int(tcp[1]) * 2 * TCP_BUFFER if tcp else 0)  # one buffer for each direction


def _share(pid: int) -> int:
    share = _kilobytes("Pss", _read(f"/proc/{pid}/smaps_rollup"))
    return share + _kilobytes("VmPTE", _read(f"/proc/{pid}/status")) if share else _resident(pid)
