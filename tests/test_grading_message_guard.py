"""What is said of a hidden check: whatever a learner's process replies, its words and its inputs are not in there."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grader.checks import devices
from grader.checks.verbs import AnswerName, ProbeSource
from grader.course import Course
from grader.grading.message_guard import NOT_SHOWN, SHOWN, MessageGuard, guard
from grader.grading.session import CheckRunner
from grader.program.codec import encode

devices.start(8)
ROOT = Path(__file__).parents[1]
COURSES = {name: ROOT / "tests" / "courses" / name for name in ("guarded", "vocabulary", "small")} | {"own": ROOT}
LESSONS = [("guarded", "01_guarded"), ("vocabulary", "01_vocabulary"), ("small", "01_small")] + [
    ("own", lesson) for lesson in ("01_arrays", "03_jit", "05_vmap", "07_randomness", "18_data_parallel")
]
CANARY, NUMBER = "seen-0.25", 987654321987654321
MESH = Mesh(np.array(jax.devices()), (CANARY,))
VALUES: list[Any] = [
    CANARY,
    [CANARY],
    (CANARY, 1),
    {CANARY: 1, "b": 2},
    {1: {"a": (CANARY,)}},
    NUMBER,
    (NUMBER, NUMBER),
    NUMBER / 1e18,
    [NUMBER / 1e18] * 3,
    np.full((2, 3), NUMBER / 1e18),
    np.float64(NUMBER / 1e18),
    np.zeros((0, NUMBER), "f"),
    P(CANARY),
    NamedSharding(MESH, P(CANARY)),
    jax.ShapeDtypeStruct((8, NUMBER), "float32"),
]
REPLIES = [{"status": "ok", "value": value} for value in VALUES] + [
    {"status": "raised", "kind": CANARY, "text": CANARY, "source": CANARY, "line": 7},
    {"status": "unsendable", "kind": CANARY},
    {"status": "unattempted", "kind": CANARY},
    {"status": CANARY},
    {"status": "ok", "value": {"blob": np.zeros(3, np.uint8), "donated": (CANARY,), "results": CANARY}},
]


class Liar:
    """A worker and an executor that reply one and the same to everything."""

    def __init__(self, reply: dict[str, Any], room: CheckRunner) -> None:
        self.classes = {name: kind for name, kind in room.setup.items() if hasattr(kind, "_fields")}
        self.reply, self.asked, self.seconds = encode(reply), 0, 0.0

    def ask(self, question: AnswerName | ProbeSource, payload: bytes) -> bytes:
        self.asked += 1
        return self.reply

    def load(self, payload: bytes) -> bytes:
        return encode({"status": "refused", "text": CANARY})

    export, run_program = ask, load

    def drop(self) -> None:
        pass


@pytest.mark.parametrize(("course", "lesson"), LESSONS)
def test_no_reply_finds_its_way_into_the_message_of_a_hidden_check(course: str, lesson: str) -> None:
    room = CheckRunner(Course(COURSES[course]).lesson(lesson))
    for exercise in room.lesson.exercises:
        for check in (check for check in exercise.checks if check.hidden):
            for reply in REPLIES:
                result = room.run(check, exercise, Liar(reply, room), "seed")  # type: ignore[arg-type]
                said = f"{check.id} on {reply}: {result.message}"
                assert CANARY not in result.message, said
                assert str(NUMBER)[:13] not in result.message.replace(",", ""), said
                assert result.status != "error", said


def shown(value: Any, told: Any = ()) -> Any:
    return MessageGuard(frozenset({"d", "rows"}), [told])(value)


def test_short_facts_are_shown() -> None:
    for value in (None, True, 7, -(10**9), "seven rows", ("d", 3), P("d"), np.dtype("float32"), "ValueError"):
        assert shown(value, ["d", "rows", "ValueError", 7]) is value
    assert shown(0.123456789) == 0.123
    assert shown(np.float32(2.5)) == 2.5
    assert shown(jax.numpy.asarray(3)) == 3
    assert shown(np.zeros((2, 3), "f")) == "float32[2,3]"


def test_words_of_another_process_and_long_numbers_are_not_shown() -> None:
    for value, told in (
        ("x", "x"), ("it says x!", ("a", {"b": ["x"]})), (P("q"), P("q")), ((1, "q"), [(1, "q")]), ("k", {"k": 1}),
        (10**12, ()), (f"bytes: {10**12}", ()), ("y" * 201, ()), (list(range(99)), ()), ("mesh q", MESH_Q),
        ("z", ["other"] * 1_001),
    ):  # fmt: skip
        assert shown(value, told) == NOT_SHOWN, value


MESH_Q = NamedSharding(Mesh(np.array(jax.devices()), ("q",)), P())


def test_only_messages_are_guarded() -> None:
    """Anything else in a check means what it says."""
    source = """
name = f"{word}_kept"
require(False, f"{word!r:>4} {word:>4}" + ("a" if yes else f"{word}") + other, kind=word)
compare(1, 2, label=f"with {word}")
compare(f"{word}", 2, 1e-3, 1e-3, word)
"""
    said = []
    names = {"word": "w", "yes": 0, "other": "o", SHOWN: lambda value: f"<{value}>"}
    names |= dict.fromkeys(("require", "compare"), lambda *given, **named: said.append((given[1:], named)))
    exec(compile(guard(ast.parse(source)), "check", "exec"), names)
    assert names["name"] == "w_kept"
    assert said == [
        (("'<w>'  <w><w><o>",), {"kind": "w"}),
        ((2,), {"label": "with <w>"}),
        ((2, 1e-3, 1e-3, "<w>"), {}),
    ]
