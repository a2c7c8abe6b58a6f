"""Processes that compute together, in a kernel and in a confined worker, and what happens where they cannot."""

from __future__ import annotations

import time

import numpy as np
import psutil
import pytest

from grader.checks import processes, verbs
from grader.checks.outcomes import Skipped


def total(rows):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("d")), rows)
    summed = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, PartitionSpec()))(spread)
    return {"sum": summed, "shape": spread.shape, "process": jax.process_index(), "devices": jax.local_device_count()}


def fails(rows):
    raise ValueError("no rows today")


STUCK = """
def stuck(first):
    import time

    while first:
        time.sleep(0.1)
    raise ValueError("no rows today")
"""
DRAWS = """
def draws():
    import os
    import random

    return os.getpid(), os.getppid(), float(np.random.random()), random.random(), os.environ.get("FOR_A_TEST")
"""


def test_two_processes_compute_one_sum() -> None:
    results = processes.run(total, [(np.ones((4, 2), np.float32),), (np.full((4, 2), 3, np.float32),)])
    assert [result["process"] for result in results] == [0, 1]
    for result in results:
        np.testing.assert_array_equal(result["sum"], [16, 16])
        assert result["shape"] == (8, 2)
        assert result["devices"] == 4


def test_one_process_needs_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_free_port", lambda: pytest.fail("asked for a port"))
    [result] = processes.run(total, [(np.ones((2, 2), np.float32),)], devices=2)
    np.testing.assert_array_equal(result["sum"], [2, 2])


def test_a_failure_names_the_process_and_does_not_wait_for_the_other() -> None:
    with pytest.raises(RuntimeError, match=r"process [01] failed: ValueError: no rows today"):
        processes.run(fails, [(1,), (2,)], seconds=30)


def test_a_failure_below_jit_is_named_without_jaxs_notice() -> None:
    with pytest.raises(RuntimeError, match=r"process 0 failed: TypeError: cannot reshape array of shape \(3,\)"):
        processes.run(
            "def traced(rows):\n    return jax.jit(lambda x: x.reshape(5, 7))(rows)\n", [(np.ones(3),)], devices=1
        )


def test_processes_are_forked_from_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share nothing random, and find the environment as it is when they start."""
    (first, server, *drawn, _), (second, same, *others, _) = processes.run(DRAWS, [()]) + processes.run(DRAWS, [()])
    assert first != second
    assert server == same
    assert not set(drawn) & set(others)
    monkeypatch.setenv("FOR_A_TEST", "set")
    [(_, another, *_, found)] = processes.run(DRAWS, [()])
    assert found == "set"
    assert another != server
    assert not psutil.pid_exists(server)


def test_what_is_stuck_ends_with_a_failure_and_the_next_call_works() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="process 1 failed: ValueError: no rows today"):
            processes.run(STUCK, [(True,), (False,)], devices=1)
    [(_, server, *_)] = processes.run(DRAWS, [()], devices=1)
    assert psutil.Process(server).children() == []
    with pytest.raises(RuntimeError, match="have not finished after 1 s"):
        processes.run(STUCK, [(True,)], devices=1, seconds=1)
    assert psutil.Process(server).children() == []
    psutil.Process(server).kill()
    while psutil.Process(server).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    [(_, another, *_)] = processes.run(DRAWS, [()], devices=1)
    assert another != server


def test_without_loopback_a_check_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.need_loopback()
    monkeypatch.setattr(verbs.InProcessBackend, "loopback", False)
    with pytest.raises(Skipped, match="no loopback"):
        processes.need_loopback()


def untouched(rows):
    raise NotImplementedError


def test_a_stub_ends_as_it_does_when_it_is_called() -> None:
    with pytest.raises(NotImplementedError):
        processes.run(untouched, [(1,)], devices=1)
