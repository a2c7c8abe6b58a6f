"""Stock nbgrader commands on a course of ours: the same grades as ours, nothing hidden in what learners get back."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Grader
from fill import fill, write
from stock import nbgrader

from grader.course import Course

LESSON = "01_small"
RIGHT = {exercise.id: exercise.reference for exercise in Course(ROOT / "tests/courses/small").lesson(LESSON).exercises}
MEAN_SUMS = "def loss(x):\n    return (x**2).sum()\n"
ANSWERS = {
    "all_right": RIGHT,
    "partly": {"small-double": RIGHT["small-double"], "small-mean": MEAN_SUMS},
    "untouched": {},
    "loops": {**RIGHT, "small-double": "while True:\n    pass\n"},
    "exits": {**RIGHT, "small-double": "import os\nos._exit(0)\n"},
    "warns": {**RIGHT, "small-mean": "import warnings\nwarnings.warn('mine')\nprint('loss')\n" + RIGHT["small-mean"]},
    "forges": {"small-double": "import IPython\nIPython.get_ipython()\n2.0\ndef double(x):\n    return x\n"},
    "deletes_checks": RIGHT,
}


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small course as an instructor has it: configured, released, handed in, graded, with feedback."""
    root = shutil.copytree(built("small"), tmp_path_factory.mktemp("nbgrader") / "course")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    for learner, answers in ANSWERS.items():
        notebook = fill(root / "exercises" / LESSON / f"{LESSON}.ipynb", answers)
        if learner == "deletes_checks":
            notebook["cells"] = [c for c in notebook["cells"] if not c["metadata"].get("nbgrader", {}).get("grade")]
        write(notebook, root / "submitted" / learner / LESSON / f"{LESSON}.ipynb")
    before = (root / "exercises" / LESSON / f"{LESSON}.ipynb").read_bytes()
    for words in (("generate_assignment", LESSON, "--force"), ("autograde", LESSON), ("generate_feedback", LESSON)):
        done = nbgrader(root, *words)
        assert done.returncode == 0, done.stderr[-3000:]
    assert (root / "exercises" / LESSON / f"{LESSON}.ipynb").read_bytes() == before
    return root


@pytest.fixture(scope="module")
def ours(course: Path, grader: Grader) -> dict[str, dict[str, float]]:
    """Points of each check by learner, as `grader grade` gives them."""
    done = grader("--course", course, "grade", course / "submitted", "--force", "--json", course / "ours.json")
    assert done.returncode == 0, done.stderr
    results = json.loads((course / "ours.json").read_text())["results"]
    return {one["learner"]: {check["id"]: check["points"] for check in one["checks"]} for one in results}


def test_the_database_holds_our_points(course: Path, ours: dict[str, dict[str, float]]) -> None:
    query = """
        select student.id, base_cell.name, grade.auto_score, grade.needs_manual_grade from grade
        join base_cell on base_cell.id = grade.cell_id
        join submitted_notebook on submitted_notebook.id = grade.notebook_id
        join submitted_assignment on submitted_assignment.id = submitted_notebook.assignment_id
        join student on student.id = submitted_assignment.student_id
    """
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as database, database:
        rows = database.execute(query).fetchall()
    stored: dict[str, dict[str, float]] = {}
    for learner, cell, score, manual in rows:
        assert not manual, "a verdict, never left to a person"
        stored.setdefault(learner, {})[cell] = score
    assert stored == ours
    assert sum(stored["all_right"].values()) == 9
    assert sum(stored["untouched"].values()) == 0
    assert sum(stored["forges"].values()) == 0
    assert sum(stored["warns"].values()) == sum(stored["deletes_checks"].values()) == 9
    assert sum(stored["loops"].values()) == sum(stored["exits"].values()) == 6


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda course: (course / "nbgrader_config.py").unlink(), "There is no nbgrader_config.py in"),
        (lambda course: (course / "gradebook.db").unlink(), "01_small is not in the gradebook yet. Release it first:"),
        (lambda course: (course / "gradebook.db").write_text("no database" * 100), "cannot be used: file is not a"),
        (lambda course: (course / "submitted").rename(course / "elsewhere"), "nbgrader grades the folder"),
    ],
)
def test_grades_that_cannot_be_stored_are_refused_at_once(
    course: Path, grader: Grader, tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoilt = shutil.copytree(course, tmp_path / "course")
    spoil(spoilt)
    place = next(path for name in ("submitted", "elsewhere") if (path := spoilt / name).exists())
    done = grader("--course", spoilt, "grade", place, "--gradebook")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not done.stdout


def test_its_export_has_the_same_totals(course: Path, ours: dict[str, dict[str, float]]) -> None:
    assert nbgrader(course, "export").returncode == 0
    with (course / "grades.csv").open() as file:
        exported = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert exported == {learner: sum(checks.values()) for learner, checks in ours.items()}


def test_feedback_says_what_we_say_and_nothing_hidden(course: Path) -> None:
    pages = {path.parts[-3]: path.read_text() for path in (course / "build" / "feedback").glob("*/*/*.html")}
    assert set(pages) == set(ANSWERS)
    assert "Sums where a mean is asked for." in pages["partly"]
    assert "Not attempted yet" in pages["untouched"]
    assert "did not end: stopped after 2 s of processor time" in pages["loops"]
    for page in pages.values():
        assert "Becomes a program that is right for any array" in page, "a hidden check's title may be shown"
        for hidden in ("inputs.rng", "made.run", "normal(size", "require("):
            assert hidden not in page
    for notebook in (course / "build" / "autograded").glob("*/*/*.ipynb"):
        assert "inputs.rng" not in notebook.read_text()


def test_a_second_run_takes_what_was_graded(course: Path) -> None:
    done = nbgrader(course, "autograde", LESSON, "--force")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Grading " not in done.stderr.replace("Autograding", "")


def test_one_learner_alone_can_be_graded(course: Path) -> None:
    shutil.rmtree(course / "build" / "graded")
    done = nbgrader(course, "autograde", LESSON, "--student", "partly", "--force")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Grading 1 notebooks" in done.stderr
