"""The course itself: nothing built is stale, every lesson runs, every exercise stands its test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

from grader.course import Course
from grader.course.build import lesson_path, stale
from grader.prove.proof import prove

COURSE = Course(ROOT)


def test_built_notebooks_are_fresh() -> None:
    assert stale(COURSE) == [], "run `make build` and commit"


def test_the_example_class_is_fresh() -> None:
    done = subprocess.run([sys.executable, "examples/make.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("lesson", COURSE.text_ids)
def test_a_lesson_runs_top_to_bottom(lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the network, with a deprecated name as an error, without a warning; logs that it asks for are fine."""
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning:__main__")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAXERCISE_DIGITS", "embedded")
    (tmp_path / "course.toml").touch()  # what it keeps lies below, in work/
    notebook = nbformat.read(lesson_path(COURSE, lesson), as_version=4)
    # Python's own way to name the module of a warning misses notebook cells, so the filter is set inside as well.
    strict = "import warnings\nwarnings.filterwarnings('error', category=DeprecationWarning, module='__main__')"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(strict))
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr" and "Warning" in output.text] == []
    for output in outputs:
        if "image/png" in output.get("data", {}):
            alt = output.metadata.get("image/png", {}).get("alt", "")
            assert len(alt.split()) >= 15, f"a figure without words for who does not see it: {alt!r}"


@pytest.mark.parametrize("lesson", COURSE.lesson_ids)
def test_every_exercise_stands_its_test(lesson: str) -> None:
    proof = prove(COURSE, (lesson,), jobs=1)
    assert proof.problems == ()
    assert proof.rows
