"""`devices.start` decides what a notebook runs on, and says it; no test has an accelerator."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

# Accelerators as JAX would list them: they are looked at, and never run on.
STAND_IN = """
from types import SimpleNamespace
from grader.checks import devices

devices._accelerators = lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")] * {count}
devices.start(8)
devices.start(8)  # a cell that is run again

import jax

print(len(jax.devices()), jax.config.values["jax_platforms"], devices.mesh((8,), ("d",)).size)
"""


def said(count: int, **environment: str) -> list[str]:
    around = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN.format(count=count)], env=around | environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_fewer_accelerators_than_asked_for_are_left_alone() -> None:
    """The whole notebook then runs on simulated devices: an exported program is for one kind of device."""
    assert said(1) == ["8 x simulated CPU devices, because there are only 1 x NVIDIA H200", "8 cpu 8"]


def test_accelerators_are_taken_where_there_are_enough() -> None:
    assert said(8)[-1] == "8 None 8"


def test_a_machine_with_neither_simulates() -> None:
    assert said(0) == ["8 x simulated CPU devices", "8 None 8"]


def test_nothing_is_looked_for_where_cpus_were_asked_for() -> None:
    """As in grading, unless an accelerator was asked for there."""
    assert said(1, JAX_PLATFORMS="cpu") == ["8 cpu 8"]


def test_fewer_accelerators_can_stay_the_default_devices() -> None:
    """Then meshes are simulated, and JAX is not restricted to CPUs."""
    script = STAND_IN.format(count=1).replace("devices.start(8)", "devices.start(8, keep=True)")
    around = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=around, capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    assert first.endswith("and 8 x simulated CPU devices for meshes")
    assert last == "8 None 8"


@pytest.mark.parametrize(
    ("count", "end"), [(8, "8 x TPU v5 lite\n"), (1, "Restart the kernel and run this cell first.")]
)
def test_accelerators_are_taken_after_jax_has_started(count: int, end: str) -> None:
    """As on a TPU runtime where a cell above has listed the devices. One accelerator is not enough."""
    script = f"""
import jax
from types import SimpleNamespace
from grader.checks import devices

jax.devices()
found = [SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")] * {count}
devices._accelerators = lambda: found
devices.describe = lambda: f"{{len(found)}} x {{found[0].device_kind}}"
try:
    devices.start(8)
except devices.TooLate as problem:
    print(problem)
"""
    around = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=around, capture_output=True, text=True, check=True)
    assert end in done.stdout
    assert ("already started" in done.stdout) == (count < 8)
