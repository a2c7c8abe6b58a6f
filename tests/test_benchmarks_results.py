"""benchmarks/RESULTS.md: a new measurement replaces its own section and leaves the others unchanged."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from grader.course import Course


def test_a_part_is_written_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    results = importlib.import_module("benchmarks.results")
    path = tmp_path / "RESULTS.md"
    for title, line in (("First", "1 s"), ("Second", "2 s"), ("Third", "3 s"), ("Second", "### 4 s\n\nmore")):
        results.put(title, [line], path)
    assert path.read_text() == "# Benchmarks\n\n## First\n\n1 s\n\n## Second\n\n### 4 s\n\nmore\n\n## Third\n\n3 s\n"


def test_the_parts_that_are_kept_come_out_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    results = importlib.import_module("benchmarks.results")
    kept = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    path = tmp_path / "RESULTS.md"
    path.write_text(kept, encoding="utf-8")
    results.put("New", ["5 s"], path)
    assert path.read_text(encoding="utf-8") == f"{kept}\n## New\n\n5 s\n"


def test_the_floor_scores_every_notebook(course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time means something only if the forks have run the cells and the checks."""
    monkeypatch.syspath_prepend(str(ROOT))
    classroom = importlib.import_module("benchmarks.classroom")
    lesson = Course(course).lesson("01_small")
    classroom.make(Course(course), lesson.id, tmp_path, 4)  # the first four have everything right
    command = [sys.executable, "-m", "benchmarks.floor", str(tmp_path), lesson.id]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"4 notebooks, {4 * lesson.points:g} points\n", done.stderr
