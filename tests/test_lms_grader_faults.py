"""A fault of the grader is never a learner's zero: no surface stores a grade then, and each gives the reason."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import stock
from conftest import COURSES, Grader
from fill import fill, write
from grader_fault import FAULTS, LESSON, broken

from grader.course import Course

RIGHT = {exercise.id: exercise.reference for exercise in Course(COURSES / "small").lesson(LESSON).exercises}


@pytest.fixture(scope="module")
def before(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small course, released; one learner is graded and stored, the other has only handed in."""
    root = stock.configured(built("small"), tmp_path_factory.mktemp("faults") / "course")
    for words in (("generate_assignment", LESSON, "--force"), ("autograde", LESSON)):
        hand_in(root, "stored", {})
        done = stock.nbgrader(root, *words)
        assert done.returncode == 0, done.stderr[-3000:]
    hand_in(root, "stored", RIGHT)
    hand_in(root, "new", RIGHT)
    return root


def hand_in(root: Path, learner: str, answers: dict[str, str]) -> None:
    notebook = fill(root / "exercises" / LESSON / f"{LESSON}.ipynb", answers)
    write(notebook, root / "submitted" / learner / LESSON / f"{LESSON}.ipynb")


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def course(before: Path, tmp_path: Path, fault: str) -> Path:
    """The same after the grader broke."""
    root = shutil.copytree(before, tmp_path / "course")
    text = root / "solutions" / f"{LESSON}.py"
    text.write_text(broken(text.read_text(), fault))
    return root


def test_nbgraders_command_stores_nothing(course: Path, before: Path, fault: str) -> None:
    done = stock.nbgrader(course, "autograde", LESSON, "--force")
    assert done.returncode == 1
    assert FAULTS[fault].said in done.stderr
    assert stock.rows(course) == stock.rows(before), "neither a new row nor a changed one"
    assert not list((course / "build" / "autograded").glob("new/*/*"))
    assert stock.nbgrader(course, "export").returncode == 0
    with (course / "grades.csv").open() as file:
        assert {row["student_id"] for row in csv.DictReader(file)} == {"stored"}


def test_our_command_stores_nothing_and_says_so(course: Path, before: Path, fault: str, grader: Grader) -> None:
    kept = [path for path in (course / "build" / "autograded").rglob("*") if path.is_file()]
    words = ("grade", course / "submitted", "--gradebook", "--json", course / "results.json")
    done = grader("--course", course, *words)
    assert done.returncode == 1
    assert "Stored in the gradebook: 0." in done.stdout
    assert "Not graded, or only in part: new/01_small, stored/01_small. The reasons are above." in done.stderr
    assert FAULTS[fault].said in done.stdout
    assert stock.rows(course) == stock.rows(before)
    assert [path for path in (course / "build" / "autograded").rglob("*") if path.is_file()] == kept
    for result in json.loads((course / "results.json").read_text())["results"]:
        failed = [check["id"] for check in result["checks"] if check["status"] == "error"]
        assert result["fault"] == "grader" or failed == ["small-total-values"]


def test_a_notebook_that_cannot_be_written_is_not_collected_as_a_missing_one(
    built: Callable[[str], Path], grader: Grader, tmp_path: Path
) -> None:
    """A learner's folder without its notebook would be graded as one that holds nothing: with a zero."""
    for learner, size in (("large", 40_000), ("small", 100)):
        place = tmp_path / learner / "exercises" / LESSON / f"{LESSON}.ipynb"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"cells": [], "metadata": {"x": "x" * size}, "nbformat": 4, "nbformat_minor": 5}))
        for words in (("init", "-q"), ("add", "."), ("-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qmx")):
            subprocess.run(["git", *words], cwd=tmp_path / learner, check=True)
    (tmp_path / "repos.csv").write_text("large,large\nsmall,small\n")
    # Git's own processes set their own limit; ours may write no file of more than 8 KB, as on a full disk.
    script = 'ulimit -S -f 8; exec "$@"'
    command = [sys.executable, "-m", "grader", "--course", built("small"), "collect", "repos.csv", "--to", "here"]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *map(str, command)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "File too large" in done.stdout
    assert sorted(path.name for path in (tmp_path / "here").glob("*/*")) == [LESSON]
    done = grader("--course", built("small"), "grade", tmp_path / "here", "--json", tmp_path / "results.json")
    assert [one["learner"] for one in json.loads((tmp_path / "results.json").read_text())["results"]] == ["small"]
