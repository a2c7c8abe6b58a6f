"""What a check computes itself has limits: a reply of an odd shape must not take the grader's time and memory."""

from __future__ import annotations

import resource
import signal
from typing import Any

import numpy as np
import pytest

from grader.core.faults import Fault
from grader.grading.judging_limits import limited
from grader.sandbox import wire


def endless() -> None:
    while True:
        pass


def test_a_check_that_computes_for_ever_ends() -> None:
    with pytest.raises(Fault, match=r"judging it takes more than 0\.2 s of processor time") as ended, limited(0.2):
        endless()
    assert ended.value.kind == "flooded"
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_arrays_that_grow_by_broadcasting_are_refused() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    column, row = np.zeros((1 << 14, 1)), np.zeros(1 << 14)
    with pytest.raises(MemoryError), limited(memory=1 << 30):
        column - row
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_stop_waits_for_the_end_of_an_exchange() -> None:
    """Else half a reply would be read as that to the next question."""
    names: dict[str, Any] = {"__name__": wire.__name__}
    text = "def exchange(done):\n    for _ in range(10**6):\n        pass\n    done.append(1)\n"
    exec(text, names)
    done: list[int] = []

    def ask() -> None:
        with limited(0.01):
            names["exchange"](done)
            endless()

    with pytest.raises(Fault):
        ask()
    assert done
