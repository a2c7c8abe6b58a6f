"""What an answer could learn in one grading is of no use in the next, and no message tells it in the first place."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import COURSES, handed_in

from grader.checks import devices
from grader.core.notebook import read_submission
from grader.core.result import CheckResult, Result
from grader.course import Check, Course, Exercise
from grader.grading.examiner import Examiner
from grader.grading.session import CheckRunner
from grader.grading.worker_pair import CellOutcome, WorkerPair
from grader.program.codec import decode
from grader.sandbox.process import Process, Zygote

devices.start(8)
LESSON = Course(COURSES / "small").lesson("01_small")
Told = Callable[..., tuple[dict[str, Any], list[str]]]
# Right, and keeps what it is asked; the next answer tells all that was kept, in a public check or while it is defined.
SPY = """\
seen = []
def double(x):
    seen.append(np.asarray(x).tobytes().hex())
    return 2 * x
"""
TELLS = "def loss(x):\n    raise type('Seen', (Exception,), {})(seen)\n"
EXAMPLE = np.array([1, 2], np.float32).tobytes().hex()  # the input of its public check
# Hard-codes the replies to all that was seen.
REPLAYS = """\
replies = {known!r}
def double(x):
    return 2 * x if np.asarray(x).tobytes().hex() in replies else x
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every input that `double` of a learner's is asked for, as seen on the wire."""
    seen: list[str] = []
    exchange = Process.exchange

    def recorded(self: Process, *frames: bytes, **limits: Any) -> bytes:
        if decode(frames[0]).get("answer") == "double":
            seen.append(np.asarray(decode(frames[1])["args"][0]).tobytes().hex())
        return exchange(self, *frames, **limits)

    monkeypatch.setattr(Process, "exchange", recorded)
    return seen


@pytest.fixture
def grade(zygote: Zygote, asked: list[str]) -> Callable[..., tuple[Result, list[str]]]:
    """Grade a notebook with this first answer: its result, and the inputs that the answer met."""

    def graded(
        double: str, learner: str = "one", salt: str = "salt", mean: str = TELLS, **also: Any
    ) -> tuple[Result, list[str]]:
        examiner = Examiner(LESSON, zygote, salt)
        for exercise in LESSON.exercises:
            examiner.note(exercise)
        asked.clear()
        cells: list[tuple[str | None, str]] = []
        for exercise, source in zip(LESSON.exercises, (double, mean, LESSON.exercises[2].reference), strict=True):
            cells += [(exercise.id, source), *((check.id, "") for check in exercise.checks)]
        result = examiner.grade(handed_in(cells, LESSON.id, learner, **also))
        examiner.close()
        return result, list(asked)

    return graded


def statuses(result: Result) -> dict[str, str]:
    return {check.id.removeprefix("small-"): check.status for check in result.checks}


def test_an_answer_learnt_in_one_grading_is_no_answer_in_the_next(grade: Told) -> None:
    result, inputs = grade(SPY)
    assert statuses(result)["double-values"] == "passed"
    assert len(inputs) == 5  # the example twice, then three that are drawn
    result, others = grade(REPLAYS.format(known=inputs))
    assert statuses(result)["double-example"] == "passed"  # the same for all
    assert statuses(result)["double-values"] == "failed"
    assert set(inputs) & set(others) == {inputs[0]}


def test_inputs_depend_on_every_character_the_learner_and_the_secret(grade: Told) -> None:
    first = grade(SPY)[1]
    assert grade(SPY)[1] == first  # a regrade of the same file is fair
    for changed in ({"double": SPY + " \n"}, {"learner": "two"}, {"salt": "other"}):
        assert set(grade(**{"double": SPY} | changed)[1]) & set(first) == {first[0]}, changed


# The same code in every one of these, so the same answer could hard-code what another one of them was asked.
@pytest.mark.parametrize("also", [{"metadata": {"title": "again"}}, {"nbformat": 4}, {"outputs": [1]}])
def test_inputs_depend_on_what_is_no_code_too(grade: Told, also: dict[str, Any]) -> None:
    first = grade(SPY)[1]
    assert set(grade(SPY, **also)[1]) & set(first) == {first[0]}


def test_a_cell_does_not_learn_how_much_prose_stands_before_it() -> None:
    """A resubmission of the same code could find its own number of prose cells, and look up what to answer by it."""
    code, prose = {"cell_type": "code", "source": "x = 1"}, {"cell_type": "markdown", "source": "Again."}
    files = [json.dumps({"cells": cells}).encode() for cells in ([code, code], [prose, code, 7, prose, code])]
    plain, wordy = (read_submission(file, "one", LESSON.id) for file in files)
    assert plain.cells == wordy.cells
    assert [cell.number for cell in wordy.cells] == [1, 2]
    assert plain.seed("salt") != wordy.seed("salt")


@pytest.mark.parametrize(
    ("mean", "says"),
    [
        (TELLS, f"raised Seen: ['{EXAMPLE}']"),
        ("def loss(x):\n    return np.float32(int(seen[1][:6], 16))\n", "raised IndexError: list index out of range"),
        ("raise KeyError(str(seen))\n", f"raised KeyError on line 1: \"['{EXAMPLE}']\"\nraise KeyError(str(seen))\n"),
    ],
)
def test_no_message_tells_what_a_hidden_check_asked(grade: Told, mean: str, says: str) -> None:
    result, inputs = grade(SPY, mean=mean)
    told = "\n".join([*(check.message for check in result.checks), *result.notes])
    assert statuses(result)["mean-example"] == "failed"
    assert says in told
    assert len({*inputs}) == 4
    for hidden in {*inputs} - {EXAMPLE}:
        assert hidden not in told
        assert str(int(hidden[:6], 16)) not in told


def test_a_public_check_still_says_all_that_it_can(grade: Told) -> None:
    """Also where it is below hidden checks: it runs in a process that none of them has asked anything."""
    result, _ = grade(SPY, mean="def loss(x):\n    raise ValueError('the axis is ' + str(x.shape))\n")
    [example] = [check for check in result.checks if check.id == "small-mean-example"]
    assert example.message.startswith("`loss` raised ValueError: the axis is (2,)\nIn line 2 of your cell: raise")
    result, _ = grade(SPY, mean="def loss(x):\n    return (x**2).sum()\n")
    [example] = [check for check in result.checks if check.id == "small-mean-example"]
    assert "10" in example.message
    assert "5" in example.message


def test_a_syntax_error_is_told_whole(grade: Told) -> None:
    result, _ = grade(SPY, mean="def loss(x):\n    return (x\n")
    [example] = [check for check in result.checks if check.id == "small-mean-example"]
    assert "has a syntax error on line 2: '(' was never closed\nreturn (x" in example.message


# Raises a text of its own at every call, so a message shows in which run of a check it was made.
UNIQUE = "import os\ndef {0}(x):\n    raise ValueError(os.urandom(8).hex())\n"


# Leaves the kernel's counter of inodes where the first hidden input says: one of PLACES, each so many inodes wide.
PLACES, WIDTH = 64, 4096
INODES = f"""\
import os
def place():
    for _ in range({WIDTH} // 32):
        ends = os.pipe()
        number = os.fstat(ends[0]).st_ino
        os.close(ends[0]), os.close(ends[1])
    return number // {WIDTH} % {PLACES}
"""
SENDS = f"""\
if len(seen) > 1:
    while place() != int(seen[1][:2], 16) % {PLACES}:
        pass
def loss(x):
    raise ValueError(f"at {{place()}}")
"""


def test_no_message_tells_what_a_hidden_check_left_in_the_kernel(grade: Told) -> None:
    """Not even through what is counted for all processes. A few of them agree by chance."""
    agree = 0
    for salt in "abcde":
        result, inputs = grade(INODES + SPY, salt=salt, mean=SENDS)
        [example] = [check for check in result.checks if check.id == "small-mean-example"]
        [told] = re.findall(r"at (\d+)", example.message)
        agree += (int(told) - int(inputs[1][:2], 16)) % PLACES < 2
    assert agree < 3


@pytest.mark.parametrize("order", range(8))
def test_no_public_check_that_counts_runs_after_a_hidden_one(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """Whatever the order of the cells: nothing that a process has learnt of a hidden check reaches a public message."""
    runs: list[tuple[CheckResult, int]] = []  # with the process that was asked
    told: list[str] = []  # when a cell ran whose outcome counts: before the first hidden check, or not
    run, run_cell = CheckRunner.run, WorkerPair.run_cell

    def running(self: CheckRunner, check: Check, exercise: Exercise, isolated: WorkerPair, seed: str) -> CheckResult:
        result = run(self, check, exercise, isolated, seed)
        if isolated is not examiner._own:
            runs.append((result, isolated.worker.pid))
        return result

    def run_cell_of_learner(self: WorkerPair, *cell: Any) -> CellOutcome:
        if self is not examiner._own:
            told.append("late" if any(result.hidden for result, _ in runs) else "early")
        return run_cell(self, *cell)

    monkeypatch.setattr(CheckRunner, "run", running)
    monkeypatch.setattr(WorkerPair, "run_cell", run_cell_of_learner)
    examiner = Examiner(LESSON, zygote, "salt")
    cells: list[tuple[str | None, str]] = [(None, "raise KeyError"), (None, "np = None")]
    for exercise in LESSON.exercises:
        cells.append((exercise.id, UNIQUE.format(exercise.names[0])))
        cells += [(check.id, "") for check in exercise.checks]
    random.Random(order).shuffle(cells)
    result = examiner.grade(handed_in(cells[order % 3 :], LESSON.id))  # in some, cells are missing
    examiner.close()

    first = next(place for place, (found, _) in enumerate(runs) if found.hidden)
    asked = {pid for found, pid in runs if found.hidden}
    assert set(told) == {"early"}
    for check in result.checks:
        if not check.hidden and check.status == "failed":
            [place] = [i for i, (found, _) in enumerate(runs) if found.message == check.message]
            assert place < first
            assert runs[place][1] not in asked
    assert all(found.hidden for found, _ in runs[first:]), "the public ones run once"
