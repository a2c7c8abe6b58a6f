"""What `compare` and `require` say, word for word: a learner reads it aloud to understand what is wrong."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from grader.checks import CheckFailed, case, compare, devices, require
from grader.checks.compare import stumbled
from grader.program.codec import DTYPES

devices.start(8)
F = np.float32


class Point(NamedTuple):
    x: Any
    y: Any


def failure(got: Any, want: Any, **how: Any) -> CheckFailed:
    with pytest.raises(CheckFailed) as failed:
        compare(got, want, **how)
    return failed.value


def f(*values: float) -> np.ndarray:
    return np.array(values, F)


KEYS = jax.random.split(jax.random.key(0), 3)
# got, want: the kind of difference, and what is said
SAID: dict[str, tuple[Any, Any, str, str]] = {
    "array for a number": (1.5, F(1.5), "type", "The result is a float; expected an array float32[]."),
    "number for an array": (f(1), 1.0, "type", "The result is an array float32[1]; expected a float."),
    "None": (None, f(1, 2), "type", "The result is None; expected an array float32[2]."),
    "bool for an int": (True, 1, "type", "The result is a bool; expected an int."),
    "list for a tuple": ([1], (1,), "structure", "The result is a list; expected a tuple."),
    "tuple for a named tuple": ((1, 2), Point(1, 2), "structure", "The result is a tuple; expected a Point."),
    "array for a tuple": (f(1), (1,), "structure", "The result is an array float32[1]; expected a tuple."),
    "too few": ((1,), (1, 2), "structure", "The result has 1 item; expected 2."),
    "too many": ([1, 2], [], "structure", "The result has 2 items; expected 0."),
    "other keys": (
        {"a": 1, "c": 2}, {"a": 1, "b": 2}, "structure", "The result has the keys 'a', 'c'; expected 'a', 'b'.",
    ),
    "no keys": ({}, {3: 1}, "structure", "The result has no keys; expected 3."),
    "shape": (f(1), f(1, 2), "shape", "The result has shape (1,); expected (2,)."),
    "shape of a scalar": (f(1), F(1), "shape", "The result has shape (1,); expected ()."),
    "dtype": (f(1).astype("f2"), f(1), "dtype", "The result has dtype float16; expected float32."),
    "key for numbers": (KEYS[0], np.uint32(1), "dtype", "The result has dtype key<fry>; expected uint32."),
    "one value": (F(3), F(4), "values", "The result is 3; expected 4."),
    "all values": (
        f(3, 5), f(4, 4), "values",
        "2 of 2 values differ. The first, at [0] of the result, is 3; expected 4.",
    ),
    "one of many": (
        f(4, 5), f(4, 4), "values",
        "1 of 2 values differs. The one at [1] of the result is 5; expected 4.",
    ),
    "two axes": (
        f(1, 2, 3, 4).reshape(2, 2), f(1, 2, 9, 9).reshape(2, 2), "values",
        "2 of 4 values differ. The first, at [1, 0] of the result, is 3; expected 9.",
    ),
    "ints": (
        np.array([7, 2]), np.array([1, 2]), "values",
        "1 of 2 values differs. The one at [0] of the result is 7; expected 1.",
    ),
    "bools": (np.array([True]), np.array([False]), "values", "The result at [0] is True; expected False."),
    "complex": (np.complex64(1j), np.complex64(1), "values", "The result is 1j; expected (1+0j)."),
    "NaN": (f(np.nan, 1), f(1, 1), "values", "1 of 2 values differs. The one at [0] of the result is nan; expected 1."),
    "infinite": (f(np.inf), f(-np.inf), "values", "The result at [0] is inf; expected -inf."),
    "a hair's breadth": (F(1.00000012), F(1), "values", "The result is 1.00000012; expected 1."),
    "another key": (KEYS[0], KEYS[1], "values", "The result is not the expected key."),
    "other keys of PRNG": (
        KEYS, KEYS[jnp.array([0, 2, 1])], "values",
        "2 of 3 keys of the result differ; the first is at [1].",
    ),
    "float": (0.5, 0.25, "values", "The result is 0.5; expected 0.25."),
    "int": (3, 4, "values", "The result is 3; expected 4."),
    "text": ("mean", "sum", "values", "The result is 'mean'; expected 'sum'."),
    "spec": (P("a"), P(None, "a"), "values", "The result is P('a',); expected P(None, 'a')."),
    "a dtype": (np.dtype("float16"), np.dtype("float32"), "values", "The result is float16; expected float32."),
    "deep": (
        {"layers": [{"w": f(1)}, {"w": f(1)}]}, {"layers": [{"w": f(1)}, {"w": f(1, 2)}]}, "shape",
        "The result['layers'][1]['w'] has shape (1,); expected (2,).",
    ),
    "in a named tuple": (
        (Point(1, f(1)),), (Point(1, f(2)),), "values",
        "The result[0].y at [0] is 1; expected 2.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_said(name: str) -> None:
    got, want, kind, said = SAID[name]
    failed = failure(got, want, **({"rtol": 0, "atol": 0} if name == "a hair's breadth" else {}))
    assert failed.message == said
    assert failed.kind == kind
    assert failed.where[1:] in said
    assert failed.where.startswith("the result")
    assert str(failed) == said


def test_a_label_takes_the_place_of_the_result() -> None:
    assert failure(f(1), f(2, 3), label="log2(8)").message == "log2(8) has shape (1,); expected (2,)."
    assert (
        failure(f(1), f(2, 3), label="the gradient of w").message == "The gradient of w has shape (1,); expected (2,)."
    )


def test_a_label_that_ends_in_a_comma_loses_it_before_a_path() -> None:
    label = "the way of steps 1 and 2, under jit,"
    assert failure([f(1)], [f(2, 3)], label=label).message.startswith(
        "The way of steps 1 and 2, under jit[0] has shape"
    )
    assert failure(f(1), f(2, 3), label=label).message.startswith("The way of steps 1 and 2, under jit, has shape")


@pytest.mark.parametrize(
    ("label", "begin"),
    [
        ("the bars in the trace, by their begin", "The bars in the trace, by their begin have"),
        ("the first three rows", "The first three rows have"),
        ("the loss", "The loss has"),
        ("the axis of rows", "The axis of rows has"),
        ("the last bias after the steps", "The last bias after the steps has"),
        ("what `f` returns", "What `f` returns has"),
        ("after two steps (params, values)", "After two steps (params, values) has"),
        ("log2(xs)", "log2(xs) has"),
    ],
)
def test_the_verb_goes_with_the_label(label: str, begin: str) -> None:
    failed = failure([1, 2], [1], label=label)
    assert failed.message == failed.hidden_message == f"{begin} 2 items; expected 1."
    if begin.endswith("have"):
        assert failure(f(1), f(1, 2), label=label).message.startswith(f"{begin} shape (1,)")
        assert failure([1], (1,), label=label).message.startswith(f"{begin.removesuffix('have')}are a list")


def test_a_case_begins_the_message_and_is_part_of_what_a_failure_is_recognised_by() -> None:
    with pytest.raises(CheckFailed) as told, case("with two devices"), case("when a row is empty"):
        compare(f(1, 2), f(1, 3))
    failed, plain = told.value, failure(f(1, 2), f(1, 3))
    begin = "With two devices: When a row is empty: "
    assert (failed.message, failed.hidden_message) == (begin + plain.message, begin + plain.hidden_message)
    assert (failed.kind, failed.where, failed.first) == (plain.kind, plain.where, begin + plain.first)
    with pytest.raises(CheckFailed, match=r"^With `n=0`: Not finite\.$"), case("with `n=0`"):
        require(False, "Not finite.")
    with case("when all is well"):
        compare(1, 1)


def test_a_check_that_stumbles_in_a_case_names_it() -> None:
    with pytest.raises(ZeroDivisionError) as caught, case("for 8 rows"), case("when n is 0"):
        _ = 1 / 0
    failed = stumbled(caught.value)
    assert failed.message.startswith("For 8 rows: When n is 0: ")
    assert failed.message.endswith(", which this check cannot judge (ZeroDivisionError: division by zero).")
    assert failed.hidden_message.endswith(", which this check cannot judge (ZeroDivisionError).")


HIDDEN = {
    "one value": "Values of the result, float32[], are not right.",
    "one of many": "Values of the result, float32[2], are not right.",
    "NaN": "Values of the result, float32[2], are not right (some are not finite).",
    "infinite": "Values of the result, float32[1], are not right (some are not finite).",
    "in a named tuple": "Values of the result[0].y, float32[1], are not right.",
    "another key": "Values of the result, key<fry>[], are not right.",
    "float": "The result is not right.",
    "text": "The result is not right.",
    "other keys": "The keys of the result are not right.",
    "shape": "The result has shape (1,); expected (2,).",
    "dtype": "The result has dtype float16; expected float32.",
    "array for a number": "The result is a float; expected an array float32[].",
    "too few": "The result has 1 item; expected 2.",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_hidden_check_says(name: str) -> None:
    got, want, *_ = SAID[name]
    assert failure(got, want).hidden_message == HIDDEN[name]


def test_a_hidden_message_never_holds_a_value() -> None:
    """Whatever the kind of a value: none of these shows in a hidden message, neither as it came nor as wanted."""
    came, wanted = 7315, 8426
    pairs: list[tuple[Any, Any]] = [
        (came, wanted), (float(came), float(wanted)), (str(came), str(wanted)), (F(came), F(wanted)),
        (np.full(3, came), np.full(3, wanted)), (np.full(3, came + 1j), np.full(3, wanted + 1j)),
        ({came: 1}, {wanted: 1}), ({"a": came}, {"a": wanted}), ([came, 1], [wanted, 1]), ({came: 1}, [wanted]),
        (str(came), wanted), (came, str(wanted)), (F(came), wanted), (P(str(came)), P(str(wanted))),
        (Point(came, 1), Point(wanted, 1)),
    ]  # fmt: skip
    for got, want in pairs:
        failed = failure(got, want)
        assert not re.search("7315|8426|31[5]|42[6]", failed.hidden_message), failed.hidden_message


def test_endless_values_are_cut() -> None:
    for got, want in (("x" * 10**6, "y"), ({"k" * 10**6: 1}, {}), (dict.fromkeys(range(10**5), 0), {"a": 0})):
        assert len(failure(got, want).message) < 500


# What counts as the same.

SAME: list[tuple[Any, Any]] = [
    (None, None), (True, True), ("a", "a"), (3, 3), (0.1 + 0.2, 0.3), (float("nan"), float("nan")), (1j, 1j),
    ((), ()), ({}, {}), ([1, (2,)], [1, (2,)]), ({"b": 1, "a": 2}, {"a": 2, "b": 1}), (Point(1, 2), Point(1, 2)),
    (f(1, np.nan), f(1, np.nan)), (f(np.inf), f(np.inf)), (jnp.ones(3), np.ones(3, F)), (np.ones(3, F), jnp.ones(3)),
    (F(1), np.ones((), F)), (np.zeros((0, 3)), np.zeros((0, 3))), (f(1.00001), f(1)), (KEYS, KEYS), (KEYS[0], KEYS[0]),
    (P("a"), P("a")), (np.dtype("int8"), np.dtype("int8")), (np.array(["a"]), np.array(["a"])),
    (jnp.asarray(1.0), F(1)),
]  # fmt: skip


@pytest.mark.parametrize(("got", "want"), SAME, ids=lambda value: repr(value)[:25])
def test_what_is_the_same_passes(got: Any, want: Any) -> None:
    compare(got, want)


@pytest.mark.parametrize("dtype", sorted(DTYPES - {"float4_e2m1fn", "float8_e8m0fnu"}))
def test_every_dtype_can_be_right_and_wrong(dtype: str) -> None:
    ones = np.ones(3).astype(jnp.dtype(dtype))
    compare(ones, ones.copy())
    other = np.zeros(3).astype(jnp.dtype(dtype))
    failed = failure(other, ones)
    assert failed.message.startswith("3 of 3 values differ. The first, at [0] of the result, is ")
    assert failed.hidden_message == f"Values of the result, {dtype}[3], are not right."


TOLERANCES = [
    ("float64", 1e-8, 1e-6),
    ("float32", 5e-5, 5e-4),
    ("float16", 5e-3, 5e-2),
    ("bfloat16", 2e-2, 2e-1),
    ("complex64", 5e-5, 5e-4),
]


@pytest.mark.parametrize(("dtype", "near", "far"), TOLERANCES)
def test_the_tolerance_follows_the_dtype(dtype: str, near: float, far: float) -> None:
    want = np.full(3, 100).astype(jnp.dtype(dtype))
    compare((want * (1 + near)).astype(want.dtype), want)
    assert failure((want * (1 + far)).astype(want.dtype), want).kind == "values"


def test_bfloat16_is_judged_by_its_few_bits() -> None:
    """A sum of squares in bfloat16, in another order: some units in the third digit."""
    x = jnp.linspace(0, 1, 300).astype("bfloat16")
    compare(jnp.sum(x[::-1] ** 2), jnp.sum(x**2))
    compare(x * jnp.bfloat16(1.01), x)


def test_given_tolerances_count_and_zero_is_one() -> None:
    compare(f(1.4), f(1), rtol=0.5)
    compare(f(0.4), f(0), atol=0.5)
    compare(1.4, 1.0, rtol=0.5)
    for got, want in ((F(1) + np.finfo(F).eps, F(1)), (1.0 + 1e-15, 1.0)):
        compare(got, want)
        assert failure(got, want, rtol=0, atol=0).kind == "values"


def test_misconceptions_are_told_apart_by_the_first_difference() -> None:
    """The same place and value, and only they, give the same `first`."""
    first = [failure(f(*got), f(0, 0)).first for got in ((1, 2), (1, 3), (2, 2), (0, 2))]
    assert first[0] == first[1]
    assert len(set(first)) == 3


def test_mistakes_with_the_same_first_value_differ_in_the_last() -> None:
    one, other, close = (failure(f(*got), f(0, 0, 0)).first for got in ((1, 4, 2), (1, 4, 4), (1, 4, 2.001)))
    assert one == close  # rounding does not count
    assert one != other
    assert failure(f(1, np.nan), f(0, 0)).first == "(0,) 1+0j"  # no share of what is not finite


def test_require_says_its_sentence_hidden_or_not() -> None:
    require(True, "never said")
    require(np.bool_(True), "never said")
    with pytest.raises(CheckFailed) as failed:
        require(jnp.ones(()) > 2, "The program gathers everything.", kind="memory")
    assert failed.value.message == failed.value.hidden_message == "The program gathers everything."
    assert (failed.value.kind, failed.value.where) == ("memory", "memory")
