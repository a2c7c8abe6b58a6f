"""Explanations of errors are shown before JAX's text on every surface, and JAX still raises each of these errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import ROOT
from fill import fill, write

from grader.checks.outcomes import CAUSES, LINES, PLACE, WIDTH, Cause, CheckFailed, explained
from grader.checks.verbs import ask

LESSON = "01_small"
# Texts of later versions of JAX, beside that of the one here.
LATER = {
    "IndexError: Array slice indices must have static": "Array slice indices must have static start/stop/step to be "
    "used with NumPy indexing syntax. Got slice(None, JitTracer(int32[]), None) at position 0."
}
DECIDES = """\
def double(x):
    @jax.jit
    def twice(x):
        if x.sum() > 0:
            return 2 * x
        return x + x

    return twice(x)
"""
NO_PAIR = "def loss(x):\n    return jax.lax.scan(lambda total, x: total + x**2, 0.0, x)[0] / x.size\n"
LEAKS = """\
kept = []


def loss(x):
    jax.vmap(lambda one: kept.append(one**2))(x)
    return jnp.sum(kept[-1])
"""
# By exercise: an answer, the kind of its error, and the line that raised.
RAISING = {
    "small-double": (DECIDES, "TracerBoolConversionError", "In line 4 of your cell: if x.sum() > 0:"),
    "small-mean": (NO_PAIR, "TypeError", "In line 2 of your cell: return jax.lax.scan("),
    "small-total": (LEAKS, "UnexpectedTracerError", "In line 6 of your cell: return jnp.sum(kept[-1])"),
}
BEGINNINGS = {
    "small-double": "`if`, `while` or `and` needs a value",
    "small-mean": "The body of `lax.scan` must return a pair",
    "small-total": "A tracer leaked through a list",
}


def line(cause: Cause) -> str:
    """As the table has it."""
    return f"{cause.kind}: {cause.piece}".strip()


@pytest.fixture(scope="module")
def raised() -> dict[str, list[str]]:
    """By the table's lines: the kind of error that a program raised, and its text."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, str(ROOT / "tests" / "provoked.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("cause", CAUSES, ids=line)
def test_a_program_of_jax_provokes_each_cause(cause: Cause, raised: dict[str, list[str]]) -> None:
    kind, text = (cause.kind, LATER[line(cause)]) if line(cause) in LATER else raised[line(cause)]
    assert kind == cause.kind
    assert cause.piece in text
    assert explained(kind, text) is cause, "a line above it takes this error for its own"
    assert cause.beyond(text).startswith(kind)
    if cause.piece:
        assert cause.beyond(text).count(cause.piece) < text.count(cause.piece), "the sentence says as much"


def test_what_is_provoked_stands_in_the_table(raised: dict[str, list[str]]) -> None:
    assert set(raised) | set(LATER) == {line(cause) for cause in CAUSES}


@pytest.mark.parametrize("sentence", sorted({cause.sentence for cause in CAUSES}))
def test_an_explanation_is_short_and_fits_below_a_title(sentence: str) -> None:
    assert sentence[0].isupper() or sentence.startswith("`"), "it begins as a sentence"
    assert sentence.endswith((".", "?"))
    assert sentence.count(". ") <= 1, "two sentences at most"
    failed = CheckFailed(
        f"{sentence}\n{PLACE}3 of your cell: {'x + ' * 40}",
        kind="raised",
        details=("Kind: text. " * 40, "Kind: more. " * 40),
    )
    head, below, left_out = failed.glance("A title that goes on and on, " * 5)
    assert len(head) + len(below) <= LINES
    assert " ".join(below).replace("   ", " ").strip().startswith(sentence)
    assert any(one.startswith(f"  {PLACE}3 of your cell") for one in below)
    assert left_out, "the rest is in a fold"


def test_short_details_stand_whole_below_the_place() -> None:
    details = "TypeError: add got (2,) and (3,).", "TypeError: … (2,) and (3,)."
    failed = CheckFailed(f"Short.\n{PLACE}3 of your cell: x", kind="raised", details=details)
    below = ["  Short.", "  In line 3 of your cell: x", f"  {details[0]}"]
    assert failed.glance("Title.") == (["✗ Title."], below, 0)
    assert str(failed) == f"{failed.message}\n{details[1]}"


@pytest.fixture(scope="module")
def notebook(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner's notebook, `one`, that raises three errors of JAX's."""
    filled = fill(built("small") / "exercises" / LESSON / f"{LESSON}.ipynb", {k: v[0] for k, v in RAISING.items()})
    return write(filled, tmp_path_factory.mktemp("submitted") / "one" / LESSON / f"{LESSON}.ipynb")


def graded(grader: Any, root: Path, folder: Path) -> dict[str, dict[str, Any]]:
    done = grader("--course", root, "grade", folder, "--json", folder / "results.json")
    assert done.returncode == 0, done.stderr
    [result] = json.loads((folder / "results.json").read_text())["results"]
    return {check["id"]: check for check in result["checks"]}


def test_a_result_says_it_first_then_where_then_as_much_of_jax_as_keeps_it_short(
    grader: Any, built: Any, notebook: Path
) -> None:
    checks = graded(grader, built("small"), notebook.parents[2])
    for exercise, (_, kind, place) in RAISING.items():
        example, hidden = (check for check in checks.values() if check["exercise"] == exercise)
        first, second, third = example["message"].splitlines()
        assert first.startswith(BEGINNINGS[exercise])
        assert second.startswith(place)
        assert third.startswith(f"{kind}: ")
        shown = [piece for one in (first, second, third) for piece in textwrap.wrap(one, WIDTH)]
        assert len(shown) <= LINES, shown
        name = "double" if exercise == "small-double" else "loss"
        assert hidden["message"] == f"`{name}` raised {kind}: {first}", "no line and no text of JAX's"


def test_a_check_of_ones_own_notebook_says_it_too(grader: Any, built: Any, notebook: Path) -> None:
    done = grader("--course", built("small"), "check", notebook)
    for beginning in BEGINNINGS.values():
        assert done.stdout.count(beginning) == 2, "in the example, and in the hidden check"
    command = [sys.executable, "-m", "grader.checks", str(notebook)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    plain = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    for exercise, (_, kind, place) in RAISING.items():
        _, _, after = plain.stdout.partition(f"✗ {exercise}-example")
        first, second, third = after.splitlines()[1:4]
        assert first.startswith(f"    {BEGINNINGS[exercise]}")
        assert second.startswith(f"    {place}")
        assert third.startswith(f"    {kind}: ")


CELL = "table = jax.jit(lambda x: x[x > 0])(jnp.ones(3))\ndef double(x):\n    return 2 * x\n"
OWN = "def {}(x):\n    raise type('TracerBool' + str(x.shape), (Exception,), {{}})('Pred must be a scalar')\n"
CHOSEN = "def {}(x):\n    raise TypeError(f'Pred must be a scalar, got {{x}} of shape')\n"


def test_a_learner_chooses_no_word_of_a_hidden_message(grader: Any, built: Any, tmp_path: Path) -> None:
    answers = {"small-double": CHOSEN.format("double"), "small-mean": OWN.format("loss"), "small-total": NO_PAIR}
    filled = fill(built("small") / "exercises" / LESSON / f"{LESSON}.ipynb", answers)
    write(filled, tmp_path / "one" / LESSON / f"{LESSON}.ipynb")
    checks = graded(grader, built("small"), tmp_path)
    cause = explained("TypeError", "Pred must be a scalar")
    assert cause is not None
    assert checks["small-double-values"]["message"] == f"`double` raised TypeError: {cause.sentence}"
    assert checks["small-mean-program"]["message"] == "`loss` raised an exception class of its own."
    assert checks["small-double-example"]["message"].endswith("TypeError: … got [1. 2.] of shape")


def test_an_error_that_we_have_no_words_for_is_quoted_in_public_checks(grader: Any, built: Any, tmp_path: Path) -> None:
    """A cell that raises while it runs says it in our words too."""
    odd = "def loss(x):\n    return jnp.summ(x.no_such_thing)\n"
    filled = fill(built("small") / "exercises" / LESSON / f"{LESSON}.ipynb", {"small-double": CELL, "small-mean": odd})
    write(filled, tmp_path / "one" / LESSON / f"{LESSON}.ipynb")
    checks = graded(grader, built("small"), tmp_path)
    place = "In line 2 of your cell: return jnp.summ(x.no_such_thing)"
    assert checks["small-mean-program"]["message"] == "`loss` raised AttributeError."
    said = "`loss` raised AttributeError: module 'jax.numpy' has no attribute 'summ'. Did you mean: 'sum'?"
    assert checks["small-mean-example"]["message"] == f"{said}\n{place}"
    begin = "Your answer cell raised NonConcreteBooleanIndexError on line 1: The number of entries under a mask"
    assert checks["small-double-example"]["message"].startswith(begin)


def test_a_result_that_is_no_data_is_named() -> None:
    def donated() -> jax.Array:
        array = jax.numpy.zeros(2)
        array.delete()
        return array

    for answer, message in (
        (
            donated,
            "Your answer returned a `donated array`. Do not donate an array that is used again.",
        ),
        (
            lambda: np.ma.array([1.0]),
            "Your answer returned a `MaskedArray`. Return arrays, numbers, strings or containers of them.",
        ),
    ):
        with pytest.raises(CheckFailed) as failed:
            ask(answer)
        assert failed.value.message.endswith(message)


def test_an_error_in_a_callback_is_named_without_its_traceback() -> None:
    def host(x: Any) -> Any:
        raise ValueError("a row twice")

    def answer(x: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), "float32"), x)

    for called in (answer, jax.jit(answer)):
        with pytest.raises(CheckFailed) as failed:
            ask(called, np.float32(1))
        assert "raised JaxRuntimeError: A callback raised ValueError: a row twice" in failed.value.message
        assert "Traceback" not in failed.value.message


def test_a_failed_computation_counts_before_what_is_no_data() -> None:
    def fetch(x: Any) -> Any:
        raise ValueError("padding")

    def answer(x: Any) -> Any:
        return object(), jax.jit(lambda x: jax.pure_callback(fetch, jax.ShapeDtypeStruct((), "float32"), x))(x)

    with pytest.raises(CheckFailed) as failed:
        ask(answer, np.float32(1))
    assert "A callback raised ValueError: padding" in failed.value.message
