"""Compiled code that is kept for later processes: all of it for our own, and single operations for learners'."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from grader.program.endpoints import begin
from grader.sandbox.accelerators import ON_CPUS, Hardware

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
    """A folder of code compiled for devices of `machine`. Only processes of the course's own answers write to one."""

    folder: Path | None = None
    write: bool = False
    machine: Hardware = ON_CPUS

    @classmethod
    def of_our_own(cls, build: Path, place: str, machine: Hardware = ON_CPUS) -> CompileCache:
        """The folder of one lesson's own answers, or of another `place`, for this JAX on this machine."""
        described: tuple[str, ...] = (jax.__version__, platform.machine(), _processor())
        if not machine.platform.is_cpu:
            described = (*described, machine.edition)
        folder = build / "compiled" / hashlib.sha256(repr(described).encode()).hexdigest()[:16] / place / "own"
        return _made(cls(folder, write=True, machine=machine))

    @property
    def for_learners(self) -> CompileCache:
        """The folder beside it that learners' processes read, which holds nothing but single operations."""
        folder = self.folder and self.folder.with_name("operations")
        return _made(CompileCache(folder, machine=self.machine)) if folder else CompileCache(machine=self.machine)

    def share(self, own_names: Set[str]) -> None:
        """Let learners' processes have what our own compiled of single operations.

        What is compiled of an answer is the answer in another language, so a name that a text of the course's binds
        counts as no operation.
        """
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
        """What a process has to be told when it begins (`grader.program.endpoints.begin`)."""
        told = {"devices": DEVICES, "compiled": self.folder and str(self.folder), "write": self.write}
        return {**told, "accelerator": "" if self.machine.platform.is_cpu else self.machine.platform.device}

    def begin(self) -> None:
        """Have this process begin like the others."""
        begin(**self.terms)


def _made(compiled: CompileCache) -> CompileCache:
    """Another user's process reaches a folder of ours through a mount only: what lies above is closed to others."""
    assert compiled.folder is not None
    try:
        compiled.folder.mkdir(parents=True, exist_ok=True)
        compiled.folder.parents[2].chmod(0o700)
    except OSError:
        return replace(compiled, folder=None)
    return compiled


def _processor() -> str:
    """Compiled code fits one kind of processor: its model and features, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
