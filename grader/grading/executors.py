"""Executors, the programs loaded in them, and compiled code that is kept for later processes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.checks.outcomes import CheckBroken
from grader.core.faults import Fault, ZygoteEnded
from grader.core.layout import EXECUTOR
from grader.grading.cache import compiler_fingerprint
from grader.program.codec import encode
from grader.sandbox.accelerators import ON_CPUS, Hardware
from grader.sandbox.process import Process, Zygote
from grader.sandbox.wire import silent

BEGIN_S = 20.0  # four times as long on an accelerator
# A process may be ended from outside: by a person, by the kernel when memory runs out. So what ends one is asked again,
# once, of a fresh process, and is the answer's doing only where that one ends too.
ATTEMPTS = 2
DEVICES = 8
# What JAX compiles when an answer runs operation by operation, named as it names them: elementwise functions,
# reductions, shapes, random bits. None of them takes a function or anything else of an answer's into its code, as
# loops, branches and einsum do.
OPERATIONS = frozenset(
    """
    abs add bitwise_and bitwise_not bitwise_or ceil clamp clip copy cos cosh div divide eq equal erf exp exp2 expm1 fill
    floor floor_divide ge greater greater_equal gt integer_pow isfinite isinf isnan le less less_equal log log1p
    logaddexp logical_and logical_not logical_or logistic lt matmul max maximum min minimum mod mul multiply ne neg
    negative not_equal pow power reciprocal relu rem remainder round rsqrt select_n sigmoid sign sin sinh
    softmax sqrt square sub subtract tan tanh true_divide where _where
    _argmax _argmin _mean _reduce_all _reduce_any _reduce_max _reduce_min _reduce_prod _reduce_sum _std _var argmax
    argmin cumsum reduce_max reduce_min reduce_sum
    atleast_1d atleast_2d bitcast_convert_type broadcast_in_dim broadcast_to concatenate convert_element_type
    dynamic_slice expand_dims flip full_like iota moveaxis _multi_slice _pad pad ravel reshape rev slice split squeeze
    stack transpose
    _normal _normal_real _randint _threefry_fold_in _threefry_seed _threefry_split _uniform random_bits random_seed
    random_split random_unwrap random_wrap threefry2x32
    """.split()
)
_ENTRY = re.compile(r"jit_(\w+)-[0-9a-f]+-cache")


@dataclass(frozen=True)
class CompileCache:
    """A folder of code compiled for devices of `machine`.

    Only processes of the course's own answers write to one; learners' processes get single operations.
    """

    folder: Path | None = None
    write: bool = False
    machine: Hardware = ON_CPUS

    @classmethod
    def of_our_own(cls, build: Path, place: str, machine: Hardware = ON_CPUS) -> CompileCache:
        """The folder of one lesson's own answers, or of another `place`, for this JAX on this machine."""
        folder = build / "compiled" / compiler_fingerprint(machine.edition) / place / "own"
        return cls(_made(folder), write=True, machine=machine)

    @property
    def for_learners(self) -> CompileCache:
        """The folder beside it that learners' processes read, which holds nothing but single operations."""
        return CompileCache(self.folder and _made(self.folder.with_name("operations")), machine=self.machine)

    def share(self, own_names: Set[str]) -> None:
        """Let learners' processes have what our own compiled of single operations. What is compiled of an answer is the
        answer in another language, so a name that a text of the course's binds counts as no operation."""
        shared = self.for_learners.folder
        if self.folder is None or shared is None:
            return
        for path in self.folder.iterdir():
            named = _ENTRY.fullmatch(path.name)
            if named and named[1] in OPERATIONS - own_names:
                with contextlib.suppress(OSError):
                    os.link(path, shared / path.name)

    @property
    def terms(self) -> dict[str, Any]:
        """The arguments of `grader.program.endpoints.begin` for a process."""
        accelerator = "" if self.machine.platform.is_cpu else self.machine.platform.device
        folder = self.folder and str(self.folder)
        return {"devices": DEVICES, "compiled": folder, "write": self.write, "accelerator": accelerator}


def _made(folder: Path) -> Path | None:
    """Another user's process reaches a folder of ours through a mount only: what lies above is closed to others."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.parents[2].chmod(0o700)
    except OSError:
        return None
    return folder


def start(zygote: Zygote, entry: str, compiled: CompileCache, data: str = "") -> Process:
    """Fork a worker or an executor. It finds all that is in the folder `data` in its own, to be read only.

    Raises:
        CheckBroken: it does not start, twice: no answer is at fault yet.
        ZygoteEnded: there is nothing to fork from.
    """
    folders = [str(compiled.folder)] if compiled.folder is not None else []
    readable, writable = ([], folders) if compiled.write else (folders, [])
    for attempt in range(ATTEMPTS):
        try:
            process = zygote.fork(entry, readable=readable, writable=writable, data=data)
        except ConnectionError as problem:
            raise ZygoteEnded(str(problem)) from None
        except OSError as problem:
            raise CheckBroken(str(problem)) from None
        try:
            process.exchange(encode({"do": "begin", **compiled.terms}), seconds=BEGIN_S)
            return process
        except Fault as fault:
            process.kill()
            if attempt == ATTEMPTS - 1:
                raise CheckBroken(f"a process for answers did not start: {fault.message}") from None
    raise AssertionError


class ExecutorPrograms:
    """The programs of one notebook, in an executor that is forked when first needed."""

    def __init__(self, zygote: Zygote, compiled: CompileCache) -> None:
        self.zygote, self.compiled = zygote, compiled
        self.executor: Process | None = None
        self.beside: Callable[[], Process | None] = lambda: None  # the worker of the same notebook, if there is one

    def load(self, payload: bytes, seconds: float) -> bytes:
        """Load a program; the reply tells its facts."""
        return self._exchange(encode({"do": "load"}), payload, seconds=seconds)

    def run(self, program: str, payload: bytes, seconds: float) -> bytes:
        """Run a loaded program, named by its identity."""
        return self._exchange(encode({"do": "run", "program": program}), payload, seconds=seconds)

    def _exchange(self, *frames: bytes, seconds: float) -> bytes:
        if self.executor is None:
            self.executor = start(self.zygote, EXECUTOR, self.compiled)
        try:
            return self.executor.exchange(*frames, seconds=seconds, beside=self.beside())
        except Fault as fault:
            self.drop()
            raise Fault("broken", fault.message) if fault.kind == "crashed" else fault from None

    def drop(self) -> None:
        """End the executor; the next program starts another."""
        if self.executor is not None:
            self.executor.kill()
        self.executor = None


class ReferencePrograms(ExecutorPrograms):
    """The programs of a lesson's own answers, loaded once for all in an executor that never loads any other.

    A learner's program is one of them only when all that was handed over to be loaded is the same, byte for byte:
    exported program, shapes and shardings that the check asked for, donation, mesh. Then it is that program, whoever
    wrote it.
    """

    def __init__(self, zygote: Zygote, compiled: CompileCache) -> None:
        super().__init__(zygote, compiled)
        self.payloads: set[bytes] = set()
        self.news: set[bytes] = set()
        self._replies: dict[bytes, tuple[Process, bytes]] = {}

    def load(self, payload: bytes, seconds: float) -> bytes:
        """Load a program of the course's own; from then on it is known."""
        if self.executor is not None and not silent(self.executor.stream):
            self.drop()  # ended from outside since the last notebook: programs of the course's own end nothing
        self.news |= {payload} - self.payloads
        self.payloads.add(payload)
        loaded_by, reply = self._replies.get(payload, (None, b""))
        if loaded_by is None or loaded_by is not self.executor:
            reply = super().load(payload, seconds)
            assert self.executor is not None
            self._replies[payload] = self.executor, reply
        return reply
