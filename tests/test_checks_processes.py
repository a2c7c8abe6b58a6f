"""Processes that compute together, in a kernel and in a confined worker, and what happens where they cannot."""

from __future__ import annotations

import numpy as np
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
