"""The samples under docs/samples/: what the command writes today, of four notebooks of the example class."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import ROOT, Grader

from grader.core import result as results_json
from grader.reports import html
from grader.reports.forms import FORMS

SAMPLES = ROOT / "docs" / "samples"
LEARNERS = ("all-right", "endless-loop", "misconceptions", "partly-right")
NAMES = {
    "json": "results.json",
    "junit": "junit.xml",
    "html": "class.html",
    "csv": "grades.csv",
    "canvas": "canvas.csv",
    "gradescope": "gradescope.json",
    "github-summary": "summary.md",
    "github-annotations": "annotations.txt",
    "github-classroom": "classroom.txt",
}


def test_every_form_has_a_sample() -> None:
    assert set(NAMES) == set(FORMS)
    assert set(NAMES.values()) == {path.name for path in SAMPLES.iterdir()}
    text = (ROOT / "docs" / "reports.md").read_text()
    for name in NAMES.values():
        assert f"(samples/{name})" in text


def test_the_results_are_what_grading_gives(grader: Grader, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for learner in LEARNERS:
        shutil.copytree(ROOT / "examples" / "submitted" / learner / "05_vmap", tmp_path / "class" / learner / "05_vmap")
    done = grader("grade", tmp_path / "class", "--json", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "results.json").read_text())
    assert datetime.fromisoformat(seen.pop("written")).tzinfo is not None
    for result, seconds in zip(seen["results"], (1.3, 6.6, 1.6, 1.5), strict=True):
        # What differs from machine to machine.
        result["duration_s"], result["confinement"] = seconds, "full"
    path = SAMPLES / NAMES["json"]
    if request.config.getoption("--update-goldens"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(seen, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == seen


@pytest.mark.parametrize("form", NAMES)
def test_each_sample_is_what_the_command_writes(
    grader: Grader, tmp_path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    one = ["--learner", "partly-right"] if form in ("gradescope", "github-classroom") else []
    done = grader("report", SAMPLES / NAMES["json"], "--as", form, *one, "--out", tmp_path / "sample", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "sample").read_text(encoding="utf-8")
    path = SAMPLES / NAMES[form]
    if request.config.getoption("--update-goldens"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_the_samples_hold_what_readers_come_for() -> None:
    results = results_json.read_document(SAMPLES / NAMES["json"])
    assert {check.status for result in results for check in result.checks} >= {"passed", "failed", "timeout"}
    assert html.LessonResults("05_vmap", results).misconceptions


# Of each element, what the schema of Jenkins' xUnit plugin (junit-10.xsd, which pytest's own tests use too) lets it
# hold: attributes that it must have, ones that it may have, elements in it.
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url", "version"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    **{tag: (set(), {"type", "message"}, set()) for tag in ("skipped", "error", "failure")},
}


def strays(element: ElementTree.Element) -> list[Any]:
    must, may, holds = SCHEMA[element.tag]
    own = set(element.attrib)
    wrong: list[Any] = [(element.tag, name) for name in (must - own) | (own - must - may)]
    wrong += [(element.tag, child.tag) for child in element if child.tag not in holds]
    return wrong + [found for child in element if child.tag in holds for found in strays(child)]


def test_junit_keeps_to_the_common_schema() -> None:
    root = ElementTree.fromstring((SAMPLES / NAMES["junit"]).read_text(encoding="utf-8"))
    assert root.tag == "testsuites"
    assert not strays(root)
    assert strays(ElementTree.fromstring("<testsuites><testcase id='1'/></testsuites>")), "it can tell"
