"""Simulated devices: a loop that does not wait for its results comes to its end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

# XLA ends a process whose collective has waited for 40 s; here after 10, so that a failure is not a long wait.
IMPATIENT = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=5 --xla_cpu_collective_call_terminate_timeout_seconds=10"
)

RUNS_AHEAD = """
from grader.checks import devices

devices.start(8)
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = devices.mesh((8,), ("data",))
split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())


def loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


@jax.jit
def step(params, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, x))


data = np.random.default_rng(0).standard_normal((1536, 64), np.float32)
for place in (whole, split):
    params = jax.device_put([jnp.ones((64, 256)), jnp.ones((256, 256)), jnp.ones((256, 16))], place)
    for i in 40 * list(range(0, 1536, 256)):
        params = step(params, jax.device_put(data[i : i + 256], split))
    print(np.isfinite(params[0]).all(), params[0].sharding.is_equivalent_to(place, 2))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": IMPATIENT}


def test_a_training_loop_may_run_ahead_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    command = [sys.executable, "-c", RUNS_AHEAD]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    said = ["8 x simulated CPU devices", "True True", "True True"]
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr[-2000:]


def test_who_says_how_many_threads_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_NPROC", "12")
    tells = "import os; from grader.checks import devices; devices.start(2); print(os.environ['PJRT_NPROC'])"
    done = subprocess.run(
        [sys.executable, "-c", tells], env=environment(), capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "12"
