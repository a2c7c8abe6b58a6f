"""The proof refuses a check that inspects a program and does not judge what that program computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Grader

from grader.checks import verbs
from grader.prove.dummy_programs import falsified
from grader.prove.hollow_values import hollow_values

LESSON = "01_inspected"
ACCEPTED = {"example", "run", "derived", "called", "told-later"}
# Each check, and what stands on the line of each program that it leaves unjudged.
REFUSED = {
    "unrun": ["made = program("],
    "uninspected": ["program("],
    "outputs": ["require(program("],
    "another-shape": ["few, many = program("],
    "another-program": ["require(program("],
    "another-check": ["require(program("],
    "known": ["made = program("],
    "ignored": ["made = program("],
    "shape-of-result": ["made = program("],
    "each-other": ["few, many = program("],
    "told": ["made = program("],
}
SENTENCE = re.compile(
    r"inspect-powers: inspect-powers-([\w-]+) in 01_inspected passes although its program on line (\d+) returns wrong "
    r"results\. In the same check, run it on values drawn from `inputs`, and compare its results with a reference\."
)
HOLLOW = re.compile(
    r"inspect-powers: inspect-powers-([\w-]+) in 01_inspected passes although every float is NaN in all that the "
    r"answer returns\. Compare the values with a reference, or require that they are there and finite\."
)


def test_a_check_that_does_not_judge_what_it_inspects_is_refused(built: Callable[[str], Path], grader: Grader) -> None:
    course = built("inspected")
    lines = (course / "solutions" / f"{LESSON}.py").read_text().splitlines()
    done = grader("--course", course, "prove", "--no-mutants")
    assert done.returncode == 1, done.stdout + done.stderr
    problems = " ".join(done.stdout.partition("✗")[2].split())
    found: dict[str, list[str]] = {}
    for check, line in SENTENCE.findall(problems):
        found.setdefault(check, []).append(lines[int(line) - 1])
    assert found.keys() == REFUSED.keys()
    for check, beginnings in REFUSED.items():
        assert [text.startswith(start) for text, start in zip(found[check], beginnings, strict=True)] == [True]
    assert len(SENTENCE.findall(problems)) + len(HOLLOW.findall(problems)) == done.stdout.count("✗"), done.stdout
    assert HOLLOW.findall(problems) == ["ignored", "shape-of-result", "each-other"]
    names = set(re.findall(r'^# %% (?:check|hidden)="\S+" name="([\w-]+)"', "\n".join(lines), re.MULTILINE))
    assert names == ACCEPTED | REFUSED.keys()


@pytest.mark.parametrize(
    "value",
    [
        np.array([0, -0.5, 3.4e38, np.nan, np.inf, -np.inf, 1e-40], np.float32),
        np.array([0, 127, -128, -1], np.int8),
        np.array([0, 2**32 - 1], np.uint32),
        np.array([True, False]),
        np.array([0, -1j, 1 + 1j], np.complex64),
        np.float32(-1),
        np.zeros((0, 3), np.float16),
    ],
    ids=lambda value: str(value.dtype),
)
def test_falsified_results_differ_in_every_element(value: np.ndarray) -> None:
    for array in (value, jnp.asarray(value)):
        wrong = falsified(array)
        assert (wrong.shape, wrong.dtype) == (value.shape, value.dtype)
        assert (np.asarray(wrong) != np.asarray(value)).all()


def test_falsified_bfloat16_keys_and_plain_data() -> None:
    halves = jnp.arange(4, dtype=jnp.bfloat16)
    assert (falsified(halves) != halves).all()
    assert falsified(halves).dtype == halves.dtype
    assert falsified(np.asarray(halves)).dtype == halves.dtype
    key = jax.random.key(3)
    assert falsified(key).dtype == key.dtype
    assert falsified(key) != key
    assert falsified("text") == "text"


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("nan", {"a": [1.5], "b": (3, "c")}, "{'a': [nan], 'b': (3, 'c')}"),
        ("nan", np.ones(2, "f"), "array([nan, nan], dtype=float32)"),
        ("zero", [1.5, jnp.ones(1), 3], "[0.0, Array([0.], dtype=float32), 3]"),
        ("inf", [jnp.ones(1), np.arange(2)], "[Array([inf], dtype=float32), array([0, 1])]"),
        ("inf", np.float16(2), "array(inf, dtype=float16)"),
        ("empty", ["a"], "[]"),
        ("empty", np.ones((2, 3), "i4"), "array([], dtype=int32)"),
    ],
)
def test_hollow_values_have_the_structure_of_the_others(kind: str, value: object, wanted: str) -> None:
    with hollow_values(kind) as changed:
        assert repr(verbs._returned("`f`", value)) == wanted
    assert changed
    assert verbs._returned("`f`", value) is value


def test_a_program_returns_no_empty_values() -> None:
    """A check may run it for one of its results alone."""
    with hollow_values("empty") as changed:
        assert verbs._returned(verbs.PROGRAM, [1]) == [1]
    assert changed == []
