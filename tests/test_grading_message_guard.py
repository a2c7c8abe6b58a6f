"""What is said of a hidden check: whatever a learner's process replies, its words and its inputs are not in there."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import handed_in
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

from grader.checks import devices
from grader.checks.outcomes import CheckFailed
from grader.checks.verbs import AnswerName, ProbeSource
from grader.core.result import CheckResult
from grader.course import Check, Course, Exercise
from grader.grading.examiner import Examiner
from grader.grading.message_guard import NOT_SHOWN, SHOWN, MessageGuard, guard
from grader.grading.session import CheckRunner
from grader.grading.worker_pair import WorkerPair
from grader.program.codec import decode, encode
from grader.reports import terminal
from grader.reports.forms import FORMS
from grader.sandbox.process import Process, Zygote

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
    return MessageGuard("'d', 'rows'", [told])(value)


def test_short_facts_are_shown() -> None:
    for value in (None, True, 7, -9_999, "seven rows", ("d", 3), P("d"), np.dtype("float32"), "ValueError"):
        assert shown(value, ["d", "rows", "ValueError", 7]) == value
    assert shown(0.123456789) == 0.123
    assert shown((0.123456789, [np.float32(2.5)])) == (0.123, [2.5])
    assert shown(np.float32(2.5)) == 2.5
    assert shown(jax.numpy.asarray(3)) == 3
    assert shown(np.zeros((2, 3), "f")) == "float32[2,3]"


def test_a_sentence_of_the_checks_is_shown_however_long() -> None:
    said = "The starts brake each other, all 12 of them: " + "the norm that is clipped is that of all of them. " * 9
    assert MessageGuard(f"for said in ({said!r},): require(False, said)", ["other"])(said) == said
    assert shown(said) == NOT_SHOWN


def test_of_a_large_number_one_digit_is_shown() -> None:
    told = [31_000, 20_000]
    shown = lambda value: MessageGuard("", [told])(value)
    assert [shown(n) for n in (31_000, 4_194_304, -(10**9) - 1)] == [
        "over 30,000",
        "over 4,000,000",
        "below -1,000,000,000",
    ]
    assert f"{shown(31_000):>9,.1f} {shown(10**13):d} {shown((20_000,))}" == f"over 30,000 {NOT_SHOWN} (over 20,000,)"


@pytest.mark.parametrize(
    "told",
    [
        31_000,
        31_000.0,
        np.float32(31_000),
        [{"a": (31_000,)}],
        {31_000: 1},
        np.array([1, 31_000]),
        jax.numpy.full(2, 31_000),
        np.zeros((31_000, 2), "f"),
        np.zeros((310, 100), bool),
        jax.ShapeDtypeStruct((31_000,), "float32"),
    ],
    ids=repr,
)
def test_a_number_of_the_checks_own_is_exact_and_one_that_was_told_is_not(told: Any) -> None:
    assert shown(31_000, told) == "over 30,000"
    for number in (31_001, -999_999):
        assert shown(number, told) == number


def test_digits_of_exact_numbers_count_twice() -> None:
    text = MessageGuard("", []).message(" ".join(["123456"] * 20))
    assert text.split(" (")[0] == " ".join(["123456"] * 8), "as many digits in all as of short ones"


def test_a_shape_that_could_hold_a_message_is_not_shown() -> None:
    for shape in ((31_000, 300, 37, 0), (1, 2, 3, 4, 5), (1_025,)):
        assert shown(np.zeros(shape, "int8")) == "int8 of a different shape"


def test_words_of_another_process_and_long_numbers_are_not_shown() -> None:
    for value, told in (
        ("x", "x"), ("it says x!", ("a", {"b": ["x"]})), (P("q"), P("q")), ("k", {"k": 1}), ("1, 2, 3, 4, 5", ()),
        (10**12, ()), (f"bytes: {10**4}", ()), ("y" * 201, ()), (list(range(99)), ()), ("mesh q", MESH_Q),
        ("z", ["other"] * 1_001),
    ):  # fmt: skip
        assert shown(value, told) == NOT_SHOWN, value
    assert shown((1, "q"), [(1, "q")]) == (1, NOT_SHOWN)


def test_a_whole_message_has_no_word_but_the_courses_and_the_graders() -> None:
    guarded = MessageGuard("require(got == 3, 'Every row has a label.')", [])
    kept = "Every row has shape (3, 1e-05); expected float32[2,3]. `got` raised ValueError."
    assert guarded.message(kept) == kept
    assert guarded.message("Every canary-0.25 row, deadbeef 0xdeadbeef") == (
        f"Every {NOT_SHOWN}-0.25 row, {NOT_SHOWN} {NOT_SHOWN}"
    )
    assert (
        guarded.message("LABEL of the result['w-one'] is 0", "the result['w-one']")
        == "LABEL of the result['w-one'] is 0"
    )
    numbers = guarded.message(",".join(str(n) for n in range(100, 140))).split(",")
    assert numbers == [str(n) for n in range(100, 116)] + [NOT_SHOWN] * 24


SETUP = """
def read(folder, a):
    if not folder:
        raise ValueError(f"There are {len(folder)} traces in a {a.shape}; there should be one.")
    raise ValueError("rows of a kind")
"""


def raised(text: str, kind: str = "TypeError") -> str:
    failed = CheckFailed("", kind="raised", where=kind, hidden_message=f"`f` raised {kind}.", raised=text)
    return MessageGuard(f"{SETUP}\nask(f)", [text]).failure(failed)


@pytest.mark.parametrize(
    "text",
    [
        "'NoneType' object is not callable",
        "'jaxlib._jax.ArrayImpl' object is not iterable",
        "'tuple' object does not support item assignment",
        "object of type 'DynamicJaxprTracer' has no len()",
        "unsupported operand type(s) for +: 'int' and 'NoneType'",
        "unsupported operand type(s) for ** or pow(): 'list' and 'int'",
        "cannot unpack non-iterable NoneType object",
        "not enough values to unpack (expected 2, got 1)",
        "list index out of range",
        "There are 0 traces in a (3, 4); there should be one.",
        "rows of a kind",
    ],
)
def test_a_hidden_check_quotes_python_and_the_courses_own_functions(text: str) -> None:
    assert raised(text) == f"`f` raised TypeError: {text.rstrip('.')}."


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        f"'{CANARY}' object is not callable",
        "'SeenTracer' object is not callable",
        "'int' object is not seenatall",
        f"'NoneType' object is not callable {CANARY}",
        f"There are {CANARY} traces in a (3, 4); there should be one.",
        "There are 12345 traces in a (3, 4); there should be one.",
        "rows rows of a kind",
        "module 'jax' has no attribute 'gard'",
    ],
)
def test_it_quotes_nothing_else(text: str) -> None:
    assert raised(text) == "`f` raised TypeError."


def test_the_words_of_a_case_are_guarded() -> None:
    source = 'with case(f"for {n} rows of {word}"):\n    compare(ask(f, n), 3)\nwith case("for one"):\n    pass'
    text = ast.unparse(guard(ast.parse(source)))
    assert text.splitlines()[0] == f"with case(f'for {{{SHOWN}(n)}} rows of {{{SHOWN}(word)}}'):"
    assert "case('for one')" in text


CASES = """\'\'\'Right for every n.\'\'\'
from grader.checks import case
for n, word in ((3, "rows"), (40_000, "-".join(["de", "ad"]))):
    with case(f"when n is {n:,} in {word}"):
        JUDGED
"""
RUNS = {
    "require(ask(affine, n) == 3 * (n == 3), 'Not three.')": ("failed", "When n is 40,000 in (not shown): Not three."),
    "compare(ask(affine, n), 4)": ("failed", "When n is 3 in rows: The result is not right."),
    "one, two = ask(affine, n)": (
        "failed", "When n is 3 in rows: `affine` returned an int, which this check cannot judge (TypeError).",
    ),
    "assert ask(affine, n) == 4": ("failed", "When n is 3 in rows: Your answer does not meet this condition."),
}  # fmt: skip


@pytest.mark.parametrize("judged", RUNS)
def test_a_hidden_failure_names_the_case(judged: str) -> None:
    room = CheckRunner(Course(COURSES["guarded"]).lesson("01_guarded"))
    exercise = room.lesson.exercises[0]
    check = replace(exercise.checks[1], source=CASES.replace("JUDGED", judged))
    reply = {"status": "ok", "value": 3, "text": "de-ad"}
    told = room.run(check, exercise, Liar(reply, room), "seed")  # type: ignore[arg-type]
    assert (told.status, told.message) == RUNS[judged]


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


RAISED = ("kind", "text", "source", "line", "bound")  # fields of a reply that tells an exception
FIELDS = (*RAISED, "status", "value", "binds", "needs", "restored", "facts", "outputs", CANARY)
LIES: dict[str, Any] = {
    "text": CANARY, "number": NUMBER, "names": [CANARY], "keys": {CANARY: NUMBER}, "array": np.zeros((0, NUMBER), "f"),
}  # fmt: skip
# The first exercise is right, and its hidden checks ask; from then on the notebook's processes say what they like.
CELLS = {
    "double": "def double(x):\n    return 2 * x\n",
    "mean": "def loss(x):\n    return other(x)\n",
    "total": "def loss(x):\n    return x + 1\n",
}


def lie(reply: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """A reply in which one field is a lie; an exception where only that has such a field."""
    raised = {"status": "raised", "kind": "ValueError", "text": "", "source": "", "line": 1, "bound": []}
    return {**reply, **(raised if field in RAISED else {}), field: value}


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    zygote = Zygote.start([])
    one = Examiner(Course(COURSES["small"]).lesson("01_small"), zygote, "secret")
    yield one
    one.close()
    zygote.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("field", FIELDS)
def test_no_surface_shows_a_word_of_a_process_that_knows_hidden_inputs(
    examiner: Examiner, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    knows: set[Process] = set()
    exchange, run, lied = Process.exchange, CheckRunner.run, []

    def noted(self: CheckRunner, check: Check, exercise: Exercise, isolated: WorkerPair, *more: str) -> CheckResult:
        result = run(self, check, exercise, isolated, *more)
        if check.hidden and isolated.known is not None and isolated._worker is not None:
            knows.add(isolated._worker)
        return result

    def lying(self: Process, *frames: bytes, **limits: Any) -> bytes:
        reply = exchange(self, *frames, **limits)
        if self not in knows:
            return reply
        lied.append(decode(frames[0])["do"])
        return encode(lie(decode(reply), field, value))

    monkeypatch.setattr(CheckRunner, "run", noted)
    monkeypatch.setattr(Process, "exchange", lying)
    cells: list[tuple[str | None, str]] = []
    for exercise in examiner.lesson.exercises:
        cells.append((exercise.id, CELLS[exercise.id.removeprefix("small-")]))
        cells += [(check.id, "") for check in exercise.checks]
        cells.append((None, "other = 1 / 0"))
    for value in LIES.values():
        lied.clear()
        result = examiner.grade(handed_in(cells, "01_small"))
        assert "run" in lied, "nothing was told"
        for form, render in FORMS.items():
            told = render([result])
            assert CANARY not in told, (form, value)
            assert not re.search(str(NUMBER)[:6], re.sub(r"[,.]", "", told)), (form, value)
        shown = Console(file=io.StringIO(), width=200)
        terminal.show([result], shown)
        assert CANARY not in shown.file.getvalue()  # type: ignore[attr-defined]
