"""What a check computes itself has limits: a reply of an odd shape must not take the grader's time and memory."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Grader
from fill import fill, write

from grader.core.faults import Fault
from grader.course import Course
from grader.course.build import build
from grader.grading.judging_limits import limited
from grader.grading.session import TOO_LARGE_TO_PASS_ON
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


AGAIN = '''# %% hidden="small-double" name="again" points=1
"""Doubles what it has returned."""
first = ask(double, np.array([0.123456], "f"))
compare(ask(double, first), np.array([0.493824], "f"))
'''
# Text that is twice as long when the grader writes it again: what comes from the answer may be sent, and not sent back.
LARGE = """
import json, struct
import grader.program.endpoints as sides

encode = sides.encode

def wide(data, classes=None):
    if data.get("value") != "large":
        return encode(data, classes)
    value = ["dict", [["status", "ok"], ["value", "\\u597d" * 2_500_000]]]
    text = json.dumps({"value": value, "sizes": []}, ensure_ascii=False).encode()
    return struct.pack("<I", len(text)) + text

sides.encode = wide

def double(x):
    return "large"
"""


def test_an_answer_that_a_check_cannot_pass_on_fails_and_is_no_fault_of_the_check(
    built: Callable[[str], Path], grader: Grader, tmp_path: Path
) -> None:
    course = shutil.copytree(built("small"), tmp_path / "course")
    text = course / "solutions" / "01_small.py"
    text.write_text(
        text.read_text().replace('# %% [markdown] why="small-double"', AGAIN + '# %% [markdown] why="small-double"')
    )
    build(Course(course))
    notebook = fill(course / "exercises" / "01_small" / "01_small.ipynb", {"small-double": LARGE})
    write(notebook, tmp_path / "class" / "eve" / "01_small" / "01_small.ipynb")
    done = grader("--course", course, "grade", tmp_path / "class", "--json", tmp_path / "r.json", "--allow-unsandboxed")
    [result] = json.loads((tmp_path / "r.json").read_text())["results"]
    checks = {check["id"]: check for check in result["checks"]}
    again = checks["small-double-again"]
    assert (again["status"], again["message"]) == ("failed", TOO_LARGE_TO_PASS_ON), done.stdout + done.stderr
    assert result["score"] == 0.0
