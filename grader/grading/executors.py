"""Executors and the programs loaded in them; those of a lesson's own answers are known and loaded once for all."""

from __future__ import annotations

from grader.checks.outcomes import CheckBroken
from grader.core.faults import Fault
from grader.core.layout import EXECUTOR
from grader.grading.compile_cache import CompileCache
from grader.program.codec import encode
from grader.program.endpoints import identity
from grader.sandbox.process import Process, Zygote

BEGIN_S = 20.0  # four times as long on an accelerator


def start(zygote: Zygote, entry: str, compiled: CompileCache) -> Process:
    """Fork a worker or an executor. Raises `CheckBroken` where it cannot be forked, or does not begin: that is nobody's
    answer yet."""
    folders = [str(compiled.folder)] if compiled.folder is not None else []
    readable, writable = ([], folders) if compiled.write else (folders, [])
    try:
        process = zygote.fork(entry, readable=readable, writable=writable)
    except OSError as problem:
        raise CheckBroken(str(problem)) from None
    try:
        process.exchange(encode({"do": "begin", **compiled.terms}), seconds=BEGIN_S)
    except Fault as fault:
        process.kill()
        raise CheckBroken(f"a process to run answers in did not start: {fault.message}") from None
    return process


class ExecutorPrograms:
    """The programs of one notebook, in an executor that is forked when first needed."""

    def __init__(self, zygote: Zygote, compiled: CompileCache) -> None:
        self.zygote, self.compiled = zygote, compiled
        self._executor: Process | None = None

    def load(self, payload: bytes, seconds: float) -> bytes:
        """Load a program; the reply tells its facts."""
        return self._exchange(encode({"do": "load"}), payload, seconds=seconds)

    def run(self, program: str, payload: bytes, seconds: float) -> bytes:
        """Run a loaded program, named by its identity."""
        return self._exchange(encode({"do": "run", "program": program}), payload, seconds=seconds)

    def _exchange(self, *frames: bytes, seconds: float) -> bytes:
        if self._executor is None:
            self._executor = start(self.zygote, EXECUTOR, self.compiled)
        try:
            return self._executor.exchange(*frames, seconds=seconds)
        except Fault as fault:
            self.drop()
            raise Fault("broken", fault.message) if fault.kind == "crashed" else fault from None

    def drop(self) -> None:
        """End the executor; the next program starts another."""
        if self._executor is not None:
            self._executor.kill()
        self._executor = None


class ReferencePrograms(ExecutorPrograms):
    """The programs of a lesson's own answers, in an executor that never loads any other.

    A learner's program is one of them only when everything that was handed over to be loaded is the same, byte for
    byte: the exported program with its abstract arrays, trees of devices and kept arguments, the parameters' shapes
    and shardings that the check asked for, donation and mesh. Then it is that program, whoever wrote it.
    """

    def __init__(self, zygote: Zygote, compiled: CompileCache) -> None:
        super().__init__(zygote, compiled)
        self.payloads: set[bytes] = set()
        self.news: set[bytes] = set()
        self._replies: dict[bytes, tuple[Process, bytes]] = {}

    def load(self, payload: bytes, seconds: float) -> bytes:
        """Load a program of the course's own; from then on it is known."""
        if payload not in self.payloads:
            self.payloads.add(payload)
            self.news.add(payload)
        loaded_by, reply = self._replies.get(payload, (None, b""))
        if loaded_by is None or loaded_by is not self._executor:
            reply = super().load(payload, seconds)
            assert self._executor is not None
            self._replies[payload] = self._executor, reply
        return reply


class ProgramRouter:
    """Where one notebook's programs go: to the known ones, or to an executor of its own."""

    def __init__(self, own: ExecutorPrograms, known: ReferencePrograms | None) -> None:
        self.own, self.known = own, known
        self._places: dict[str, ExecutorPrograms] = {}

    def load(self, payload: bytes, seconds: float) -> bytes:
        """Load a program where it belongs."""
        place = self.known if self.known is not None and payload in self.known.payloads else self.own
        self._places[identity(payload)] = place
        return place.load(payload, seconds)

    def run(self, program: str, payload: bytes, seconds: float) -> bytes:
        """Run a program where it was loaded."""
        return self._places[program].run(program, payload, seconds)
