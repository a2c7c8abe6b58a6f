"""Simulated CPU devices: how many, and threads enough that they cannot wait for each other for ever."""

from __future__ import annotations

import os

import jax

# A device that has reached a collective holds its thread until the others have come. XLA starts one thread for each
# device, and parts of a matrix product wait in line for the same ones: training loops that do not wait for results
# locked up in most runs on two busy cores (jaxlib 0.10.2, which ends the process after 40 s), with 10 threads for
# 8 devices too; with 16, 24 or 64 in none of 200 loops. tests/test_program_cpu_devices.py locks up without this.
THREADS = 3
THREADS_IN_ALL = "PJRT_NPROC"  # XLA's own name, read when the CPU backend is made


def simulate(devices: int) -> None:
    """Have `devices` CPU devices. Raises RuntimeError where JAX has made its CPU backend, so counted them, before."""
    os.environ.setdefault(THREADS_IN_ALL, str(max(os.cpu_count() or 1, THREADS * devices)))
    jax.config.update("jax_num_cpu_devices", devices)
