"""A grader that fails is no verdict: in a terminal, in exports and in `watch` nobody gains or loses points by it.

tests/test_lms_grader_faults.py and tests/test_lms_gradescope.py do the same for nbgrader, the gradebook and Gradescope.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT, Grader
from stock import configured

from grader.core.result import SCHEMA
from grader.course import Course

LESSON = "01_small"
SETUP = "SCALE = 2.0\n"
# What the course's setup does in the examiner, which runs it too: it raises, or it takes the process along.
FAILURES = {"raises": 'raise RuntimeError("the setup is at fault")\n', "dies": "import os\n\nos._exit(3)\n"}


@pytest.fixture(scope="module", params=FAILURES)
def course(
    request: pytest.FixtureRequest, built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The small course, in which the examiner fails at every notebook; one learner has the right answers."""
    root = configured(built("small"), tmp_path_factory.mktemp("fault") / "course")
    answers = {exercise.id: exercise.reference for exercise in Course(root).lesson(LESSON).exercises}
    released = json.loads((root / "exercises" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    for cell in released["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = answers.get(name, cell["source"])
    for place in (root / "submitted" / "one" / LESSON, root / "work" / LESSON):
        place.mkdir(parents=True)
        (place / f"{LESSON}.ipynb").write_text(json.dumps(released), encoding="utf-8")
    text = root / "solutions" / f"{LESSON}.py"
    source = text.read_text(encoding="utf-8")
    assert SETUP in source
    text.write_text(source.replace(SETUP, SETUP + FAILURES[request.param]), encoding="utf-8")
    return root


def document(path: Path) -> dict[str, Any]:
    """The results in a file, held against the schema."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(found, json.loads(SCHEMA.read_text(encoding="utf-8")))
    return found


def test_a_graded_class_says_so_and_every_export_leaves_the_grade_open(
    course: Path, grader: Grader, tmp_path: Path
) -> None:
    done = grader("--course", course, "grade", course / "submitted", "--json", tmp_path / "r.json")
    assert done.returncode == 1, done.stdout
    assert "Not graded, or only in part: one/01_small" in done.stderr
    [result] = document(tmp_path / "r.json")["results"]
    assert (result["fault"], result["checks"]) == ("grader", [])
    assert result["problem"].startswith("The grader itself failed")
    exports = {}
    for form in ("csv", "canvas", "gradescope", "github-classroom", "junit"):
        shown = grader("--course", course, "report", tmp_path / "r.json", "--as", form)
        assert shown.returncode == 0, shown.stderr
        exports[form] = shown.stdout
    [row] = csv.DictReader(io.StringIO(exports["csv"]))
    assert (row["raw_score"], row["score"]) == ("", "")
    assert list(csv.DictReader(io.StringIO(exports["canvas"])))[-1][LESSON] == ""
    assert {"score", "tests"} & json.loads(exports["gradescope"]).keys() == set()
    assert "<error" in exports["junit"]


def test_a_grader_that_cannot_start_says_so_once(built: Callable[[str], Path], grader: Grader, tmp_path: Path) -> None:
    """Here the course's setup imports a module that ends the process in which it is imported."""
    root = configured(built("small"), tmp_path / "course")
    text = root / "solutions" / f"{LESSON}.py"
    text.write_text(text.read_text().replace("import jax\n", "import unittest.__main__\n\nimport jax\n", 1))
    handed_in = root / "submitted" / "one" / LESSON
    shutil.copytree(root / "exercises" / LESSON, handed_in)
    done = grader("--course", root, "grade", root / "submitted")
    assert done.returncode == 2, done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith("The grader cannot start: the process from which all others are forked ended with status")
    assert done.stderr.count("FAILED (errors=") == 1


def test_a_cached_fault_is_not_a_grade(course: Path, grader: Grader, tmp_path: Path) -> None:
    """It is graded again each time: what failed may have been fixed."""
    for _ in range(2):
        done = grader("--course", course, "grade", course / "submitted", "--json", tmp_path / "r.json")
        assert "have not changed" not in done.stdout


def test_ones_own_notebook_loses_nothing_that_it_had(course: Path, grader: Grader, tmp_path: Path) -> None:
    state = course / "work" / ".jaxercise.json"
    before = {"version": 1, "graded": {LESSON: {"small-double": [3.0, 3.0]}}}
    state.write_text(json.dumps(before), encoding="utf-8")
    done = grader("--course", course, "check", LESSON, "--json", tmp_path / "r.json")
    assert done.returncode == 1
    assert "The grader itself failed" in done.stdout
    assert document(tmp_path / "r.json")["results"][0]["fault"] == "grader"
    assert json.loads(state.read_text(encoding="utf-8")) == before


def test_watch_says_it_and_shows_no_points(course: Path) -> None:
    command = [sys.executable, "-m", "grader", "--course", str(course), "watch"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        said = []
        for line in running.stdout:
            said.append(line)
            if "The grader itself failed" in line:
                break
        running.terminate()
    assert "Save the notebook to try again" in said[-1]
    assert not any(" of " in line and "points" in line for line in said)
