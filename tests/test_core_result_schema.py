"""Every surface that emits results emits them in one schema, which docs/results.md explains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import pytest
from conftest import ROOT, Grader
from stock import configured, nbgrader

from grader.core.final_grade import Grade
from grader.core.layout import EXAMINER
from grader.core.result import SCHEMA, CheckResult, Result, document
from grader.course import Course
from grader.grading.pool import Pool
from grader.lms import gradescope
from grader.lms.feedback_page import VERDICT

LESSON = "01_small"
CONTRACT = json.loads(SCHEMA.read_text(encoding="utf-8"))


def valid(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These results, held against the schema."""
    jsonschema.validate({"version": 1, "results": results}, CONTRACT)
    return results


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small course with two learners: one has an exercise right and one wrong, the other's file is no notebook."""
    root = configured(built("small"), tmp_path_factory.mktemp("schema") / "course")
    exercises = Course(root).lesson(LESSON).exercises
    answers = {exercises[0].id: exercises[0].reference, exercises[1].id: exercises[1].wrong[0].source}
    notebook = json.loads((root / "exercises" / LESSON / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = answers.get(cell["metadata"].get("nbgrader", {}).get("grade_id"), cell["source"])
    for place in ("submitted/one", "work"):
        (root / place / LESSON).mkdir(parents=True)
        (root / place / LESSON / f"{LESSON}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    (root / "submitted/two" / LESSON).mkdir(parents=True)
    (root / "submitted/two" / LESSON / f"{LESSON}.ipynb").write_text("no notebook", encoding="utf-8")
    return root


def test_the_schema_lists_what_a_result_has() -> None:
    check, result = CONTRACT["$defs"]["check"], CONTRACT["$defs"]["result"]
    assert set(check["required"]) == {field.name for field in fields(CheckResult)} - {"kind", "where", "first"}
    optional = {"submitted", "grade"}
    assert set(result["required"]) == {"score"} | {field.name for field in fields(Result)} - optional
    assert set(result["properties"]) == {*result["required"], *optional, "changes"}
    grade = CONTRACT["$defs"]["grade"]
    assert (
        set(grade["required"]) == set(grade["properties"]) == {"score"} | {f.name for f in fields(Grade)} - {"person"}
    )


def test_a_document_in_another_form_is_refused() -> None:
    one = Result("you", LESSON).to_json()
    for wrong in ({"platform": None}, {"extra": 1}, {"fault": "learner"}, {"score": "3"}):
        with pytest.raises(jsonschema.ValidationError):
            valid([{**one, **wrong}])


def test_grade_and_its_changes(course: Path, grader: Grader, tmp_path: Path) -> None:
    words = ("grade", course / "submitted", "--explain-changes", "--json", tmp_path / "r.json")
    grader("--course", course, *words)
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, CONTRACT)
    one, two = found["results"]
    assert (one["fault"], two["fault"]) == (None, "submission")
    assert {check["status"] for check in one["checks"]} >= {"passed", "failed", "not attempted"}


def test_check(course: Path, grader: Grader, tmp_path: Path) -> None:
    grader("--course", course, "check", LESSON, "--json", tmp_path / "r.json")
    [result] = valid(json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"])
    assert result["learner"] == "you"


def test_a_notebook_run_without_the_course(course: Path, tmp_path: Path) -> None:
    path = course / "work" / LESSON / f"{LESSON}.ipynb"
    command = [sys.executable, "-m", "grader.checks", str(path), "--json", str(tmp_path / "r.json")]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    [result] = valid(json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"])
    assert {check["status"] for check in result["checks"] if check["hidden"]} == {"skipped"}


def test_what_watch_is_sent(course: Path) -> None:
    opening = {"home": str(course), "secret": "public"}
    path = course / "work" / LESSON / f"{LESSON}.ipynb"
    with Pool(EXAMINER, opening, 1, ["jax"]) as pool:
        news: list[Any] = []
        [reply] = pool.map(
            [{"path": str(path), "learner": "you", "lesson": LESSON, "news": True}], on_news=lambda i, n: news.append(n)
        )
    [result] = valid([reply])
    valid([{**result, "checks": checks} for checks in news])
    assert len(news) == len(Course(course).lesson(LESSON).exercises)


def test_nbgraders_notebooks(course: Path) -> None:
    assert nbgrader(course, "generate_assignment", LESSON, "--force").returncode == 0
    assert nbgrader(course, "autograde", LESSON).returncode == 0
    path = course / "build" / "autograded" / "one" / LESSON / f"{LESSON}.ipynb"
    verdict = nbformat.read(path, as_version=4).metadata[VERDICT]
    empty = json.loads(document([Result("one", LESSON)]))["results"][0]
    valid([{**empty, "checks": verdict["checks"], "notes": verdict["notes"], "problem": verdict["problem"]}])


def test_gradescopes_run(course: Path, tmp_path: Path) -> None:
    root = tmp_path / "autograder"
    (root / "source").mkdir(parents=True)
    shutil.copytree(course, root / "source" / "course", ignore=shutil.ignore_patterns("build", "work", "submitted"))
    shutil.copytree(course / "submitted" / "one" / LESSON, root / "submission")
    (root / "source" / "autograder.json").write_text(json.dumps({"lesson": LESSON, "allow_unsandboxed": True}))
    [result] = valid([gradescope.examine(root).to_json()])
    assert result["score"] > 0
