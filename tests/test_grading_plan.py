"""The plan of a submission: which cells run in which order, and where each exercise is judged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from conftest import COURSES, handed_in

from grader.core.notebook import read_submission
from grader.core.symbols import cell_names, plain_python
from grader.course import Course
from grader.grading.plan import JudgeExercise, plan

LESSON = Course(COURSES / "guarded").lesson("01_guarded")
STUB = LESSON.exercise("guard-tally").stub
TALLY = "def tally(counts, start):\n    return start + sum(counts.values())"
Cells = list[tuple[str | None, str]]


def binds(source: str) -> frozenset[str] | None:
    try:
        return cell_names(plain_python(source)).binds
    except SyntaxError:
        return None


def planned(cells: Cells) -> tuple[list[str], list[str]]:
    """The steps that concern guard-tally, as words, and the notes about them."""
    steps, notes = plan(handed_in(cells, LESSON.id), LESSON, binds)
    words = []
    for step in steps:
        if isinstance(step, JudgeExercise):
            state = " missing" * step.missing or " untouched" * step.untouched
            words += [f"judge{state}"] if step.exercise.id == "guard-tally" else []
        else:
            words.append(step.label + " answers" * ("guard-tally" in step.answers) + " setup" * step.setup)
    return words, [note for note in notes if "guard-tally" in note or "setup" in note]


ANSWER, CHECK, HIDDEN = "guard-tally", "guard-tally-example", "guard-tally-values"
RELEASED: Cells = [
    ("setup", LESSON.setup),
    (ANSWER, STUB),
    (CHECK, "check"),
    (HIDDEN, "hidden"),
    ("grade", "grade()"),
]


def released(**changes: Cells) -> Cells:
    """The released cells, with others in the place of some: by the last word of an id, "answer" for the answer's."""
    found: Cells = []
    for cell in RELEASED:
        found += changes.get((cell[0] or "").split("-")[-1].replace("tally", "answer"), [cell])
    return found


PLANS: dict[str, tuple[Cells, list[str]]] = {
    "as it was released": (RELEASED, ["guard-tally", "judge untouched"]),
    "answered": (released(answer=[(ANSWER, TALLY)]), ["guard-tally answers", "judge"]),
    "a helper between answer and check": (
        released(answer=[(ANSWER, TALLY), (None, "x = 1")]),
        ["guard-tally answers", "code cell 3", "judge"],
    ),
    "a helper below a copy of the check": (
        released(answer=[(ANSWER, TALLY), (CHECK, "copy"), (None, "x = 1")]),
        ["guard-tally answers", "code cell 4", "judge"],
    ),
    "below the stub": (
        released(answer=[(ANSWER, STUB), (None, TALLY)]),
        ["guard-tally", "code cell 3 answers", "judge"],
    ),
    "above the stub": (
        released(answer=[(None, TALLY), (ANSWER, STUB)]),
        ["code cell 2", "guard-tally", "judge untouched"],
    ),
    "below its checks": (
        released(grade=[(None, TALLY), (None, "x = 1"), ("grade", "")]),
        ["guard-tally", "code cell 5 answers", "code cell 6", "judge"],
    ),
    "retyped": (released(answer=[(None, TALLY)]), ["code cell 2 answers", "judge"]),
    "deleted": (released(answer=[]), ["judge missing"]),
    "two pieces": (
        released(answer=[(ANSWER, "x = 1"), (ANSWER, TALLY)]),
        ["guard-tally answers", "guard-tally answers", "judge"],
    ),
    "two pieces that are Python together": (
        released(answer=[(ANSWER, TALLY.splitlines()[0]), (ANSWER, TALLY.splitlines()[1])]),
        ["guard-tally answers", "judge"],
    ),
    "three pieces that are Python together": (
        released(answer=[(ANSWER, text) for text in ("tally = (", "sum", ")")]),
        ["guard-tally answers", "judge"],
    ),
    "a broken attempt above the answer": (
        released(answer=[(ANSWER, "def tally(counts, start):\n    return sum(counts"), (ANSWER, TALLY)]),
        ["guard-tally answers", "guard-tally answers", "judge"],
    ),
    "a broken attempt below the answer": (
        released(answer=[(ANSWER, TALLY), (ANSWER, "def tally(counts, start):\n    return sum(counts")]),
        ["guard-tally answers", "guard-tally answers", "judge"],
    ),
    "a stub beside the answer": (released(answer=[(ANSWER, TALLY), (ANSWER, STUB)]), ["guard-tally answers", "judge"]),
    "a copy below the checks": (
        released(answer=[(ANSWER, TALLY)], grade=[(ANSWER, "tally = None")]),
        ["guard-tally answers", "judge", "guard-tally answers"],
    ),
    "no checks": (
        released(answer=[(ANSWER, TALLY), (None, "x = 1")], example=[], values=[]),
        ["guard-tally answers", "code cell 3", "judge"],
    ),
    "no ids, the check known by its text": (
        [(None, TALLY), (None, "x = 1"), (None, LESSON.exercise(ANSWER).checks[0].source), (None, "y = 1")],
        ["code cell 1 answers", "code cell 2", "judge", "code cell 4"],
    ),
    "an emptied answer cell": (
        released(answer=[(ANSWER, " "), (None, TALLY)]),
        ["guard-tally", "code cell 3 answers", "judge"],
    ),
    "the setup with more": (
        released(setup=[("setup", f"{LESSON.setup}\nimport math")], answer=[(ANSWER, TALLY)]),
        ["code cell 1 setup", "guard-tally answers", "judge"],
    ),
    "all in the setup's cell": (
        [("setup", f"{LESSON.setup}\n{TALLY}")],
        ["code cell 1 answers setup", "judge"],
    ),
    "the setup with a draft above the stub": (
        released(setup=[("setup", f"{LESSON.setup}\n{TALLY}")]),
        ["code cell 1 setup", "guard-tally", "judge untouched"],
    ),
    "the setup below a cell": (
        released(setup=[(None, "np = 1"), ("setup", LESSON.setup)], answer=[(ANSWER, TALLY)]),
        ["code cell 1", "code cell 2 setup", "guard-tally answers", "judge"],
    ),
    "the setup from another system": (
        released(setup=[("setup", LESSON.setup.replace("\n", " \r\n"))], answer=[(ANSWER, TALLY)]),
        ["guard-tally answers", "judge"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_where_cells_run_and_exercises_are_judged(name: str) -> None:
    cells, words = PLANS[name]
    assert planned(cells)[0] == words


NOTES = {
    "as it was released": [],
    "below the stub": [
        "The answer cell of guard-tally is as it was released. The definition in code cell 3 was graded instead."
    ],
    "above the stub": [
        "The answer cell of guard-tally is as it was released. It replaces the definition in your code cell 2, which "
        "is above it. Move that definition into the answer cell."
    ],
    "below its checks": [
        "The answer cell of guard-tally is as it was released. The definition in code cell 5 was graded instead.",
        "The answer of guard-tally is below its checks, and was graded there. In a notebook that runs from top to "
        "bottom it comes too late. Move it above them.",
    ],
    "deleted": ["The answer cell of guard-tally is missing from the notebook."],
    "two pieces": ["The answer of guard-tally is in 2 cells. All were run, in order."],
    "a helper below a copy of the check": [
        "The check guard-tally-example occurs 2 times in the notebook. The last one counts."
    ],
    "the setup with more": [
        "Your code cell 1 is a changed setup. The setup of the course was run, and then what yours adds or changes."
    ],
    "the setup from another system": [],
}


@pytest.mark.parametrize("name", NOTES)
def test_what_was_done_is_noted(name: str) -> None:
    notes = [note for note in planned(PLANS[name][0])[1] if "Check cells are missing" not in note]
    assert notes == NOTES[name]


def test_a_missing_setup_is_noted_unless_a_cell_has_its_text() -> None:
    note = "The setup cell is missing from the notebook. That of the course was run first."
    assert note in planned(released(setup=[]))[1]
    assert note not in planned(RELEASED)[1]
    assert note not in planned([(None, f"{LESSON.setup}\n{TALLY}")])[1]


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_an_answer_whose_cell_is_no_code_is_named(kind: str) -> None:
    submission = replace(handed_in(released(answer=[]), LESSON.id), not_code=frozenset({ANSWER, "text"}))
    steps, notes = plan(submission, LESSON, binds)
    assert "The answer cell of guard-tally is not a code cell." in notes
    assert [step.exercise.id for step in steps if isinstance(step, JudgeExercise) and step.not_code] == [ANSWER]
    told = {"cell_type": kind, "metadata": {"nbgrader": {"grade_id": ANSWER}}, "source": TALLY}
    assert read_submission(json.dumps({"cells": [told]}).encode(), "you", LESSON.id).not_code == {ANSWER}


def test_cells_that_run_elsewhere_are_counted() -> None:
    cells = released(answer=[(ANSWER, TALLY)], grade=[(None, "x = Out[5]")])
    steps, _ = plan(handed_in(cells, LESSON.id), LESSON, binds)
    passed = [step.passed for step in steps if not isinstance(step, JudgeExercise)]
    assert passed == [(LESSON.setup,), ("check", "hidden")]


def test_texts_are_read_only_where_an_answer_is_not_in_its_place() -> None:
    read: list[str] = []
    cells = [
        ("setup", LESSON.setup),
        *((exercise.id, exercise.reference) for exercise in LESSON.exercises),
        (None, "x"),
    ]
    plan(handed_in(cells, LESSON.id), LESSON, lambda source: read.append(source) or ())
    assert read == []


SMALL = Course(COURSES / "small").lesson("01_small")  # its second and third exercise both ask for a `loss`


@pytest.mark.parametrize(
    ("answered", "judged"),
    [
        ("mean", {"small-mean": ["small-mean"], "small-total": []}),
        ("total", {"small-mean": [], "small-total": ["small-total"]}),
        ("mean retyped", {"small-mean": ["code cell 2"], "small-total": []}),
        ("total retyped", {"small-mean": [], "small-total": ["code cell 4"]}),
    ],
)
def test_a_name_that_two_exercises_ask_for_is_matched_where_it_is(answered: str, judged: dict[str, list[str]]) -> None:
    cells: Cells = []
    for exercise in SMALL.exercises[1:]:
        cells.append((exercise.id, exercise.stub))
        if exercise.id == f"small-{answered.split()[0]}":
            cells[-1:] = [(exercise.id, exercise.reference)] if answered.split()[0] == answered else [
                cells[-1], (None, exercise.reference)]  # fmt: skip
        cells.append((exercise.checks[0].id, "check"))
    steps, _ = plan(handed_in(cells, SMALL.id), SMALL, binds)
    labels = {
        name: [s.label for s in steps if not isinstance(s, JudgeExercise) and name in s.answers] for name in judged
    }
    untouched = {s.exercise.id for s in steps if isinstance(s, JudgeExercise) and s.untouched}
    assert labels == judged
    assert {name for name in judged if not judged[name]} == untouched & judged.keys()
