"""Accelerators to grade on: which kinds there are, what each needs of this machine, and how many are here."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LOOK_S = 180.0  # a driver's first start can take a minute
# What a driver asks besides its device files; only these go from our environment into the graders' processes.
PASSED_ON = """
    LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES XLA_PYTHON_CLIENT_MEM_FRACTION HIP_VISIBLE_DEVICES
    ROCR_VISIBLE_DEVICES
""".split()
_LOOK = """
import json, jax
found = jax.devices()
print(json.dumps({"count": len(found), "kind": found[0].device_kind, "device": found[0].platform}))
"""


class Absent(Exception):
    """There is no such accelerator to grade on; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Platform:
    """A kind of devices. `jax` is what JAX is told to use, `device` what it calls such a device, `package` what to
    install; `made_by` stands before the devices' own name. Patterns: `files` are device files, which are written to,
    `shown` what a driver reads beside them, `libraries` what it consists of, looked for where the loader looks."""

    name: str = "cpu"
    jax: str = "cpu"
    device: str = "cpu"
    package: str = ""
    made_by: str = ""
    files: Sequence[str] = ()
    shown: Sequence[str] = ()
    libraries: Sequence[str] = ()

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


CPU = Platform()
# For CUDA: device files as NVIDIA's container tools list them, without the display's. Its driver also reads these parts
# of /sys and /proc, and opens the file of tools; docs/accelerators.md has more.
PLATFORMS = {
    "cpu": CPU,
    "cuda": Platform(
        "cuda", "cuda,cpu", "gpu", "jax[cuda12]", "NVIDIA",
        files="""
            /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-caps/* /dev/dxg
        """.split(),
        shown="""
            /proc/driver/nvidia /proc/driver/nvidia-uvm /sys/bus/pci /sys/devices /sys/module/nvidia
            /sys/module/nvidia_uvm /usr/lib/wsl
        """.split(),
        libraries=("libcuda.so*", "libnvidia-*.so*"),
    ),
    "rocm": Platform(
        "rocm", "rocm,cpu", "gpu", "jax[rocm7-local]", "AMD",
        files=("/dev/kfd", "/dev/dri/renderD*"),
        shown=("/sys/bus/pci", "/sys/devices", "/sys/class/kfd", "/sys/class/drm", "/sys/module/amdgpu", "/opt/rocm*"),
        libraries=("libamdhip64.so*", "libhsa-runtime64.so*"),
    ),
}  # fmt: skip
NAMES = (*PLATFORMS, "tpu")


def needs(platform: Platform) -> Platform:
    """Returns the platform with the files that are here in place of patterns: what a process on it is let to."""
    files = tuple(sorted({path for pattern in platform.files for path in glob.glob(pattern)}))
    shown = {path for pattern in platform.shown for path in glob.glob(pattern)}
    # The loader looks in its list (/etc/ld.so.conf), LD_LIBRARY_PATH, and on NixOS in a place of that.
    places = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/run/opengl-driver/lib", "/usr/local/nvidia/lib64"]
    for listing in sorted(glob.glob("/etc/ld.so.conf.d/*.conf")):
        lines = Path(listing).read_text(errors="replace").splitlines()
        places += [line.strip() for line in lines if line.startswith("/")]
    shown |= {place for place in places if place and any(glob.glob(f"{place}/{name}") for name in platform.libraries)}
    return replace(platform, files=files, shown=tuple(sorted(shown)))


def environment(platform: Platform) -> dict[str, str]:
    """What JAX is told in the environment. Memory is taken as it is needed: several processes share a device."""
    told = {"JAX_PLATFORMS": platform.jax}
    if not platform.is_cpu:
        told |= {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        told["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return told


@dataclass(frozen=True)
class Hardware:
    """The devices that a run grades on; `count` is 0 for CPU devices, which are simulated, as many as are wanted."""

    platform: Platform = CPU
    count: int = 0
    kind: str = ""

    def __str__(self) -> str:
        """Such as `1 NVIDIA H200`."""
        maker = self.platform.made_by
        return f"{self.count} {self.kind if self.kind.startswith(maker) else f'{maker} {self.kind}'}"

    @property
    def edition(self) -> str:
        """What makes a verdict found on it another one than one found on CPUs."""
        return "cpu" if self.platform.is_cpu else f"{self.platform.name}, {self}"


ON_CPUS = Hardware()


def leave_alone() -> None:
    """Keep JAX, not imported yet, from loading accelerators' plugins though it is to use CPUs: that writes to stderr
    where a driver is missing, and no variable stops it."""
    for name in ("cuda12", "cuda13", "rocm60", "rocm7"):
        sys.modules.setdefault(f"jax_{name}_plugin", None)  # type: ignore[arg-type]
        nothing = types.ModuleType(f"jax_plugins.xla_{name}")
        nothing.__dict__["initialize"] = lambda: None
        sys.modules.setdefault(nothing.__name__, nothing)


def look(name: str) -> Hardware:
    """The devices of a platform, counted in a process of its own, which gives their memory back. Raises `Absent`."""
    if name == "tpu":
        raise Absent(
            "Nothing was graded. Only one process at a time can use a TPU, but grading takes several processes. "
            "Lessons run on it. Grade without --platform."
        )
    platform = PLATFORMS[name]
    if platform.is_cpu:
        return ON_CPUS
    missing = (
        f"Nothing was graded: JAX finds no {name} device on this machine. It needs the driver and, in this environment,"
        f" `pip install '{platform.package}'` (docs/accelerators.md). Without --platform, the CPU is used."
    )
    command, around = [sys.executable, "-c", _LOOK], {**os.environ, **environment(platform)}
    try:
        ran = subprocess.run(command, env=around, capture_output=True, text=True, timeout=LOOK_S, check=False)
        told = json.loads(ran.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise Absent(missing) from None
    if told["device"] != platform.device:  # JAX goes on with the next in its list, and says nothing
        raise Absent(missing)
    return Hardware(platform, told["count"], told["kind"])
