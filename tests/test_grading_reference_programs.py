"""The programs of a lesson's own answers are run from executables of ours, and nothing else ever is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import COURSES, handed_in

from grader.checks import devices
from grader.core.notebook import Submission
from grader.core.result import Result
from grader.course import Course, Exercise
from grader.grading.cache import ReferenceCache, ReferenceNote
from grader.grading.examiner import Examiner
from grader.grading.executors import OPERATIONS, CompileCache, ExecutorPrograms, ReferencePrograms
from grader.program.codec import decode, encode
from grader.program.endpoints import identity
from grader.sandbox.process import Process, Zygote

devices.start(8)
LESSON = Course(COURSES / "small").lesson("01_small")
MEAN = LESSON.exercise("small-mean")
OTHER_WORDS = "def loss(numbers):\n    # another name, on another line\n\n    return (numbers**2).mean()\n"
UNKNOWN = "def loss(x):\n    return jnp.sum(x * x * 3.0) / x.size / 3.0\n"


@pytest.fixture
def examiner(zygote: Zygote, tmp_path: Path) -> Iterator[Examiner]:
    one = Examiner(LESSON, zygote, "secret", tmp_path)
    yield one
    one.close()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many programs went to executors of learners' own, and how many to the known ones."""
    counted = {"ExecutorPrograms": 0, "ReferencePrograms": 0}
    plain = ExecutorPrograms.load

    def load(self: ExecutorPrograms, payload: bytes, seconds: float) -> bytes:
        counted[type(self).__name__] += 1
        return plain(self, payload, seconds)

    monkeypatch.setattr(ExecutorPrograms, "load", load)
    return counted


def submission(source: str, exercise: Exercise = MEAN) -> Submission:
    cells = [(exercise.id, source), *((check.id, "") for check in exercise.checks)]
    return handed_in(cells, LESSON.id)


def points(result: Result, exercise: Exercise = MEAN) -> float:
    return sum(check.points for check in result.checks if check.exercise == exercise.id)


def test_a_known_program_in_other_words_is_run_on_an_executable_of_ours(
    examiner: Examiner, loads: dict[str, int]
) -> None:
    examiner.note(MEAN)
    before = loads["ReferencePrograms"]
    assert before > 0
    assert points(examiner.grade(submission(OTHER_WORDS))) == MEAN.points
    assert loads == {"ExecutorPrograms": 0, "ReferencePrograms": before}


def test_an_unknown_program_goes_to_an_executor_of_the_learners_own(examiner: Examiner, loads: dict[str, int]) -> None:
    examiner.note(MEAN)
    before = loads["ReferencePrograms"]
    assert points(examiner.grade(submission(UNKNOWN))) == MEAN.points
    assert loads == {"ExecutorPrograms": 1, "ReferencePrograms": before}
    assert points(examiner.grade(submission(UNKNOWN))) == MEAN.points
    assert loads["ExecutorPrograms"] == 2  # a learner's program is never known, however often it comes


def test_only_the_whole_of_what_is_loaded_makes_a_program_known(zygote: Zygote, examiner: Examiner) -> None:
    """A bit elsewhere in it, another donation, shape or mesh: another program."""
    examiner.note(MEAN)
    payload = sorted(examiner.known.payloads)[0]
    asked = decode(payload)
    blob = asked["blob"].copy()
    blob[len(blob) // 2] ^= 1
    for change in ({"blob": blob}, {"donated": (0,)}, {"parameters": ()}):
        assert encode(asked | change) not in examiner.known.payloads
    assert encode(asked) in examiner.known.payloads


def test_what_was_found_out_is_found_again_by_the_next_run(
    zygote: Zygote, tmp_path: Path, loads: dict[str, int]
) -> None:
    first = Examiner(LESSON, zygote, "secret", tmp_path)
    wrong = first.grade(submission(MEAN.wrong[0].source))
    assert [check.misconception for check in wrong.checks if check.status == "failed"] == [MEAN.wrong[0].because] * 2
    first.close()
    asked: list[str] = []
    second = Examiner(LESSON, zygote, "secret", tmp_path)
    second.rehearse = lambda exercise, source, seed, reuse=False: asked.append(seed) or iter(())  # type: ignore
    note = second.note(MEAN)
    assert note.read
    assert note.programs == second.known.payloads == first.known.payloads
    assert note.outlines["0"]
    assert not asked
    second.close()


@pytest.mark.parametrize("spoilt", ["", "{", "[]", '{"edition": 1}', "null"])
def test_notes_that_cannot_be_read_count_for_nothing(tmp_path: Path, spoilt: str) -> None:
    notes = ReferenceCache(LESSON, tmp_path)
    notes.write(MEAN, ReferenceNote(True, {b"program"}, {"0": [("id", "failed", "values", "")]}))
    assert ReferenceCache(LESSON, tmp_path).of(MEAN).read
    (tmp_path / f"{MEAN.id}.json").write_text(spoilt)
    assert ReferenceCache(LESSON, tmp_path).of(MEAN) == ReferenceNote()


def test_notes_of_another_edition_count_for_nothing(tmp_path: Path) -> None:
    ReferenceCache(LESSON, tmp_path).write(MEAN, ReferenceNote(True))
    path = tmp_path / f"{MEAN.id}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"edition": "older"}))
    assert not ReferenceCache(LESSON, tmp_path).of(MEAN).read


def test_two_examiners_notes_are_joined(tmp_path: Path) -> None:
    one, other = ReferenceCache(LESSON, tmp_path), ReferenceCache(LESSON, tmp_path)
    one.write(MEAN, ReferenceNote(True, {b"a"}, {"0": [("x",), ("y",)]}))
    other.write(MEAN, ReferenceNote(False, {b"b"}, {"0": [("x",)], "1": [("z",)]}))
    assert ReferenceCache(LESSON, tmp_path).of(MEAN) == ReferenceNote(
        True, {b"a", b"b"}, {"0": [("x",), ("y",)], "1": [("z",)]}
    )


def operate(examiner: Examiner) -> None:
    """Put an answer of our own to the test that runs operation by operation."""
    list(examiner.rehearse(MEAN, "def loss(x):\n    return jnp.sin(jnp.asarray(x)).mean()\n", "any"))
    examiner.compiled.share(examiner.own_names)


def test_compiled_code_is_kept_by_our_own_answers_and_by_nobody_else(examiner: Examiner) -> None:
    own, shared = examiner.compiled.folder, examiner.compiled.for_learners.folder
    assert own is not None
    assert shared is not None
    cell = "import jax\njax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
    cell += f"jax.jit(lambda x: jnp.tan(x) + {os.getpid()})(jnp.ones(17))\n"
    assert not list(own.iterdir())
    operate(examiner)
    examiner.grade(submission(cell + UNKNOWN))
    kept = [set(own.iterdir()), set(shared.iterdir())]
    assert all(kept)
    examiner.grade(submission(cell + UNKNOWN.replace("3.0", "7.0")))
    assert [set(own.iterdir()), set(shared.iterdir())] == kept


def test_learners_processes_see_single_operations_and_no_answer(examiner: Examiner) -> None:
    """An answer's compiled code is the answer in another language."""
    operate(examiner)
    examiner.note(MEAN)
    own, shared = examiner.compiled.folder, examiner.compiled.for_learners.folder
    assert own is not None
    assert shared is not None
    names = {path.name.partition("-")[0].removeprefix("jit_") for path in shared.iterdir()}
    assert names
    assert names <= OPERATIONS
    assert "jit_call" in {path.name.partition("-")[0] for path in own.iterdir()}
    look = "import os\nfound = os.listdir(jax.config.jax_compilation_cache_dir)\nraise ValueError(len(found))\n"
    result = examiner.grade(submission(f"import jax\n{look}"))
    assert f"raised ValueError on line 4: {len(list(shared.iterdir()))}" in result.checks[2].message


def test_a_name_that_an_answer_binds_is_no_operation(tmp_path: Path) -> None:
    own = CompileCache.of_our_own(tmp_path, "01")
    assert own.folder is not None
    for name in ("add", "exp", "scan", "call", "einsum"):
        (own.folder / f"jit_{name}-0a1b-cache").write_bytes(b"code")
    shared = own.for_learners.folder
    assert shared is not None
    own.share({"exp", "call"})
    assert [path.name for path in shared.iterdir()] == ["jit_add-0a1b-cache"]


def test_an_executor_that_ends_is_the_programs_doing(examiner: Examiner, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Process.exchange

    def ended(self: Process, *frames: bytes, **limits: Any) -> bytes:
        if decode(frames[0])["do"] == "load":
            os.kill(self.pid, signal.SIGKILL)
        return exchange(self, *frames, **limits)

    examiner.note(MEAN)
    monkeypatch.setattr(Process, "exchange", ended)
    result = examiner.grade(submission(UNKNOWN))
    [check] = [check for check in result.checks if check.status == "crashed"]
    assert check.message == "The program of your answer ended the process in which it ran, so it could not be graded."


def test_a_known_executor_that_was_ended_is_started_again(zygote: Zygote, tmp_path: Path) -> None:
    known, source = ReferencePrograms(zygote, CompileCache()), Examiner(LESSON, zygote, "secret", tmp_path)
    source.note(MEAN)
    payload = sorted(source.known.payloads)[0]
    source.close()
    assert decode(known.load(payload, 5.0))["status"] == "ok"
    known.drop()
    assert decode(known.load(payload, 5.0))["status"] == "ok"
    x = np.array([1, 3, 5, 7, 9, 11], "f")
    reply = decode(known.run(identity(payload), encode([x]), 5.0))
    assert np.isclose(reply["value"][0], (x**2).mean())
    known.drop()
