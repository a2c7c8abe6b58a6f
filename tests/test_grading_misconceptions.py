"""Which misconception is named: the record of an answer, its resemblance to the course's wrong answers, and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from grader.core.result import CheckResult
from grader.course import Exercise
from grader.course.exercises import Check, Variant
from grader.grading.cache import ReferenceNote
from grader.grading.examiner import name_misconception
from grader.grading.resemblance import MAX_CHARACTERS, Resemblance, features

STUB = "def total(x, w):\n    # YOUR CODE HERE\n    raise NotImplementedError()\n"
REFERENCE = "def total(x, w):\n    return jnp.sum(x * w) / jnp.sum(w)\n"
MEAN = "def total(x, w):\n    return jnp.mean(x * w)\n"
ADDS = "def total(x, w):\n    whole = 0\n    for a, b in zip(x, w):\n        whole += a * b\n"
LOOP = f"{ADDS}    return whole / jnp.sum(w)\n"
COUNT = "def total(x, w):\n    return jnp.sum(x * w) / jnp.sum(w > 0)\n"
BECAUSE = {MEAN: "Takes the mean.", LOOP: "Loops.", COUNT: "Counts the weights."}
EXERCISE = Exercise(
    id="small-total", title="Total", names=("total",), stub=STUB, reference=REFERENCE, line=1,
    checks=tuple(
        Check(f"small-total-{name}", "small-total", title, "", 1.0, name != "example", False, 1)
        for name, title in (("example", "The example."), ("values", "Right for any weights."))
    ),
    wrong=tuple(Variant(source, because, 1) for source, because in BECAUSE.items()),
    right=(Variant("def total(x, w):\n    return x @ w / w.sum()\n", None, 1),),
)  # fmt: skip
Record = tuple[str, str, str]  # kind, place, first difference


def failed(*found: Record | None) -> list[CheckResult]:
    """The results of all checks, which failed with these differences, or passed."""
    results = []
    for check, one in zip(EXERCISE.checks, found, strict=True):
        kind, where, first = one or ("", "", "")
        status = "failed" if one else "passed"
        ended = {"status": status, "points": 0.0, "max_points": 1.0, "hidden": check.hidden}
        results.append(CheckResult(check.id, check.exercise, check.title, **ended, kind=kind, where=where, first=first))
    return results


VALUES = ("values", "the result", "(0,) 3.25+0j")
OTHERS = ("values", "the result", "(0,) 1.75+0j")
SENTENCE = ("property", "property", "The total is not right.")
RAISED = ("raised", "TypeError", "")
NAN = ("values", "the result", "() nan+0j")


def named(
    source: str, results: list[CheckResult], records: dict[str, list[CheckResult]], exercise: Exercise = EXERCISE
) -> tuple[str | None, str]:
    """The misconception that is named, with its clue, where the wrong answers have these records."""
    rehearse = lambda exercise, source, seed: iter(records.get(source, failed(OTHERS, OTHERS)))
    told = name_misconception(exercise, results, "seed", ReferenceNote(), rehearse, source)
    assert {one.misconception for one in told if one.status != "failed"} <= {None}
    said = [(one.misconception, one.clue) for one in told if one.status == "failed"]
    assert len({because for because, _ in said}) == 1
    assert all(one.title.rstrip(".") in one.clue for one in told if one.misconception)
    return said[-1]


def test_the_only_one_with_the_same_record_is_named_with_what_points_to_it() -> None:
    source = "def total(x, w):\n    product = x * w\n    return product.mean()\n"
    because, clue = named(source, failed(None, VALUES), {MEAN: failed(None, VALUES)})
    assert because == "Takes the mean."
    assert clue == 'It would explain why "Right for any weights" fails (see line 3 of the answer).'


def test_a_line_that_right_answers_have_too_is_not_shown() -> None:
    """The second `2 *` is the mistake, and the first one is counted as the second, since later lines are read first."""
    right = "def total(x, w):\n    s = 2 * w\n    return x + s\n"
    wrong = "def total(x, w):\n    s = 2 * w\n    return 2 * x + s\n"
    known = replace(EXERCISE, reference=right, right=(), wrong=(Variant(wrong, "Doubles x.", 1),))
    because, clue = named(wrong, failed(None, VALUES), {wrong: failed(None, VALUES)}, known)
    assert because == "Doubles x."
    assert clue == 'It would explain why "Right for any weights" fails.'


@pytest.mark.parametrize("source", ["", "def total(x, w:\n", f"{'x' * MAX_CHARACTERS} = 1\n"])
def test_a_record_counts_where_no_tree_can_be_read(source: str) -> None:
    because, clue = named(source, failed(None, SENTENCE), {MEAN: failed(None, SENTENCE)})
    assert because == "Takes the mean."
    assert clue == 'It would explain why "Right for any weights" fails.'


def test_no_other_record_names_anything_however_alike_the_answers_are() -> None:
    assert named(MEAN, failed(None, VALUES), {MEAN: failed(None, OTHERS)}) == (None, "")
    assert named(MEAN, failed(VALUES, VALUES), {MEAN: failed(None, VALUES)}) == (None, "")


def test_a_tie_is_named_where_the_answer_is_much_more_similar_to_one() -> None:
    tie = {MEAN: failed(None, SENTENCE), LOOP: failed(None, SENTENCE)}
    assert named(MEAN.replace("jnp.mean(x * w)", "(x * w).mean()"), failed(None, SENTENCE), tie)[0] == "Takes the mean."
    assert named(LOOP.replace("whole", "s"), failed(None, SENTENCE), tie)[0] == "Loops."
    assert named(COUNT, failed(None, SENTENCE), tie)[0] is None
    assert named(f"{ADDS}    return jnp.mean(whole)\n", failed(None, SENTENCE), tie)[0] is None


def test_wrong_answers_with_one_misconception_are_no_tie() -> None:
    variants = tuple(replace(one, because="Takes the mean.") for one in EXERCISE.wrong[:2])
    tie = {MEAN: failed(None, SENTENCE), LOOP: failed(None, SENTENCE)}
    exercise = replace(EXERCISE, wrong=(*variants, EXERCISE.wrong[2]))
    assert named(REFERENCE, failed(None, SENTENCE), tie, exercise)[0] == "Takes the mean."


def test_a_sentence_of_a_checks_names_no_mistake_that_the_answer_does_not_make() -> None:
    """Many mistakes lead to one sentence; a wrong number of some digits has one cause."""
    record = {MEAN: failed(None, SENTENCE)}
    assert named(COUNT, failed(None, SENTENCE), record)[0] is None
    assert named(COUNT, failed(None, VALUES), {MEAN: failed(None, VALUES)})[0] == "Takes the mean."


def test_measured_numbers_in_a_sentence_need_not_agree() -> None:
    counted = lambda number: failed(None, ("property", "property", f"The program has {number} operations."))
    records = {LOOP: counted("1,234.5"), MEAN: counted(56)}
    assert named(LOOP.replace("whole", "s"), counted(7), {LOOP: counted(8)})[0] == "Loops."
    assert named(COUNT, counted(7), {LOOP: counted(8)})[0] is None
    assert named(LOOP, counted("1,234.5"), records)[0] == "Loops."
    assert named(MEAN, counted(56), records)[0] == "Takes the mean."
    assert named(LOOP, failed(None, VALUES), {LOOP: failed(None, OTHERS)})[0] is None


@pytest.mark.parametrize("little", [RAISED, NAN])
def test_exceptions_and_nans_name_a_mistake_that_the_answer_makes_too(little: Record) -> None:
    records = {MEAN: failed(little, little), LOOP: failed(little, little)}
    alike = "def total(x, w):\n    product = x * w\n    return jnp.mean(product)\n"
    assert named(alike, failed(little, little), records)[0] == "Takes the mean."
    assert named(REFERENCE, failed(little, little), records)[0] is None
    assert named("", failed(little, little), records)[0] is None
    other = ("raised", "ValueError", "")
    assert named(alike, failed(other, other), records)[0] is None


def test_what_is_run_again() -> None:
    """Of the wrong answers only those that may be named, and under the learner's seed only those that fail alike."""
    ran: Counter[tuple[str, str]] = Counter()

    def rehearse(exercise: Exercise, source: str, seed: str) -> Iterator[CheckResult]:
        ran[BECAUSE[source], seed] += 1
        return iter(failed(None, VALUES) if source == MEAN else failed(OTHERS, None))

    note = ReferenceNote()
    for _ in range(2):
        name_misconception(EXERCISE, failed(None, VALUES), "seed", note, rehearse, MEAN)
    assert ran == {(one, "any seed"): 1 for one in BECAUSE.values()} | {("Takes the mean.", "seed"): 2}
    ran.clear()
    name_misconception(EXERCISE, failed(RAISED, RAISED), "seed", ReferenceNote(), rehearse, REFERENCE)
    assert not ran


def test_names_of_locals_docstrings_annotations_and_formatting_leave_no_trace() -> None:
    plain = features("def total(x, w):\n    s = x * w\n    return jnp.sum(s)\n", STUB)
    other = 'def total(x: "f32", w) -> float:\n    """Sums."""\n    p = (x *\n         w)\n    return jnp.sum(p)  #\n'
    assert plain.keys() == features(other, STUB).keys()
    assert plain.keys() != features("def total(x, w):\n    s = x + w\n    return jnp.sum(s)\n", STUB).keys()


def test_long_names_do_not_fill_the_memory() -> None:
    """Features of hundreds of answers are kept, and each argument of a call repeats the call's name."""
    found = features(f"{'f' * 9_000}({','.join('1' * 2_500)})\n{'y' * 3_000} = 1 {'< 2 ' * 400}", STUB)
    assert len(found) > 1_000
    assert sum(map(len, found)) < 1_000_000


@pytest.mark.parametrize(
    "source",
    [
        "(" * 9_000 + ")" * 9_000,
        "-" * 19_000 + "1",
        "x = a" + ".b" * 9_000,
        "x = f" + "()" * 9_000,
        "x = " + "1+" * 9_000 + "1",
        "x = " + "[" * 90 + "]" * 90,
        "x = " + "lambda: " * 2_000 + "1",
        "\n".join(f"{' ' * depth}if x:" for depth in range(150)) + "\n" + " " * 150 + "x",
        "x = 0x" + "f" * 19_000,
        "x = '" + "\\ud800" * 3_000 + "'",
        "x = '\\d'",
        "x = 1\0",
        "return await yield",
    ],
    ids=lambda source: source[:12],
)  # fmt: skip
def test_hostile_text_is_read_or_left_alone(source: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(Resemblance(EXERCISE, source).scores) == 3
    assert not any(capfd.readouterr())
