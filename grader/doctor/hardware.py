"""Devices that JAX finds, simulated devices that fit, and memory."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from grader.doctor.finding import BackgroundProbe, Finding
from grader.doctor.installation import accelerators

CHOOSING = ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")  # variables that say which devices there are
ASKED_FOR = 8  # by lessons
GPU_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # asking what there is shall not take it all
PROBE = """
import json, jax
from grader.program.environment import simulate
simulate({count})
found = [[one.platform, one.device_kind] for one in jax.devices()]
print(json.dumps({{"found": found, "simulated": len(jax.devices("cpu"))}}))
"""

# Measured on two cores with jax 0.10.2. A process with 8 simulated devices and one small program held 0.24 GB in 61
# threads; 64 devices 0.33 GB and 397; 256 devices 0.61 GB and 1,037. The kernels of the lessons that take most, at
# their highest: lesson 18 held 0.97 GB, lesson 11 0.81 GB, lesson 16 0.45 GB. JupyterLab itself and a browser come on
# top, and so does grading: two examiners with their workers and executors held 0.58 GB of their own (lesson 05).
BASE_GB, DEVICE_GB, DEVICE_THREADS = 0.25, 0.003, 6
LESSON_GB, WISHED_GB = 1.0, 2.0
MOST_TRIED = 256


def probe() -> BackgroundProbe:
    """Ask JAX for its devices, real and simulated ones."""
    return BackgroundProbe("-c", PROBE.format(count=ASKED_FOR), environment=GPU_MEMORY)


def devices(asked: BackgroundProbe, repair: str, environment: Mapping[str, str] = os.environ) -> Finding:
    """What JAX found when it was `asked`. `repair` is the command that installs what is pinned."""
    printed, complaint = asked.answer()
    try:
        told = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        mend = next((f"unset {name}" for name in CHOOSING if environment.get(name)), repair)
        text = f"JAX does not start: {complaint or 'it ended without a word'}"
        return Finding("stops", f"{text.rstrip('.')}. No lesson runs without it.", mend)
    real = [kind for platform, kind in told["found"] if platform != "cpu"]
    plugins = accelerators()
    if plugins and not real:
        return _unseen(plugins, complaint, environment)
    simulated = f"{told['simulated']} simulated CPU devices start, as many as lessons ask for ({fitting()} would fit)."
    if real:
        kinds = ", ".join(f"{real.count(kind)} x {kind}" for kind in dict.fromkeys(real))
        return Finding("fine", f"Devices: {kinds}; {simulated}")
    return Finding("fine", f"Devices: {simulated} No GPU or TPU is here, and none is needed.")


def _unseen(plugins: list[str], complaint: str, environment: Mapping[str, str]) -> Finding:
    """JAX was installed for an accelerator and does not see it."""
    named = ", ".join(plugins)
    chosen = environment.get("JAX_PLATFORMS", "")
    if chosen:
        text = f"JAX was installed with {named}, and JAX_PLATFORMS={chosen} keeps it on the CPU: lessons run there."
        return Finding("costs", text, "unset JAX_PLATFORMS")
    why = f" It says: {complaint}" if complaint else ""
    text = f"JAX was installed with {named} and sees no such device: lessons run on the CPU.{why}"
    if any("cuda" in name for name in plugins):
        text += "\nWhere `nvidia-smi` does not list the GPU either, its driver is missing. Or go without:"
    return Finding("costs", text, f"{sys.executable} -m pip uninstall -y {' '.join(plugins)}")


def memory() -> Finding:
    """Free memory, against what lessons were measured to take."""
    total, free = available_gb()
    there = f"{free:.1f} of {total:.1f} GB of memory are free"
    if free >= WISHED_GB:
        return Finding("fine", f"Memory: {there}; a lesson takes up to {LESSON_GB:.0f} GB, grading half as much.")
    text = f"{there}; a lesson takes up to {LESSON_GB:.0f} GB, and grading half as much beside it."
    text += "\nA kernel that dies without a word has run out of it: shut down kernels that you do not need"
    text += "\n(JupyterLab: Kernel > Shut Down All Kernels), close other programs, or see who takes most:"
    mend = "ps -axo rss,pid,comm | sort -rn | head"
    return Finding("costs", text, mend)


def available_gb(cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """Returns total and available memory in GB; in a container no more than it may use."""
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    older = cgroup / "memory"  # where cgroups are of version 1
    for limit_file, used_file in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (older / "memory.limit_in_bytes", older / "memory.usage_in_bytes"),
    ):
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and limit < total:
            taken = (used or 0) - _cached(limit_file.parent / "memory.stat")
            total, free = limit, max(0, min(free, limit - taken))
    return total / 1e9, free / 1e9


def _cached(stat: Path) -> int:
    """Bytes of files kept in memory until it is needed: counted as used, and free to be had."""
    try:
        lines = dict(line.split() for line in stat.read_text().splitlines())
        return int(lines.get("total_inactive_file", lines.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def fitting() -> int:
    """Returns how many simulated devices memory and the limit of threads allow, up to `MOST_TRIED`."""
    by_memory = (available_gb()[1] - BASE_GB) / DEVICE_GB
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    by_threads = most / DEVICE_THREADS if 0 < most < 1_000_000 else MOST_TRIED
    return max(1, int(min(by_memory, by_threads, MOST_TRIED)))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
