"""What `make test` takes for unchanged: a lesson that passed, until it, a check, our code or a package changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import unchanged
from conftest import COURSES
from unchanged import Record

from grader.course import Course
from grader.grading import cache

LESSON = "01_small"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Of a test that has passed; our own code is a copy."""
    monkeypatch.delenv("CI", raising=False)
    shutil.copytree(COURSES / "small", tmp_path / "course", ignore=shutil.ignore_patterns("build"))
    shutil.copytree(unchanged.PACKAGE, tmp_path / "grader", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(unchanged, "PACKAGE", tmp_path / "grader")
    made = Record(Course(tmp_path / "course"), LESSON, "runs")
    assert not made.holds
    made.write()
    assert made.holds
    return made


def test_it_is_of_one_test_of_one_lesson(record: Record) -> None:
    assert not Record(record.course, LESSON, "stands").holds
    (record.course.root / "solutions" / "02_other.py").write_text("another lesson")
    assert record.holds
    assert not Record(record.course, "02_other", "runs").holds


@pytest.mark.parametrize(
    "path",
    ["solutions/01_small.py", "exercises/01_small/01_small.ipynb", "course.toml", "../grader/prove/mutants.py"],
)
def test_a_change_ends_it(record: Record, path: str) -> None:
    file = record.course.root / path
    before = file.read_bytes()
    file.write_bytes(before + b"\n")
    assert not record.holds
    file.write_bytes(before)
    assert record.holds


def test_a_changed_check_ends_it(record: Record) -> None:
    file = record.course.root / "solutions" / "01_small.py"
    text = file.read_text()
    check = record.course.lesson(LESSON).exercises[0].checks[-1]
    assert check.hidden
    file.write_text(text.replace(check.source.strip().splitlines()[-1], "pass"))
    assert file.read_text() != text
    assert not record.holds


def test_another_version_of_a_package_ends_it(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    now = cache.environment_fingerprint()
    monkeypatch.setattr(cache, "environment_fingerprint", lambda: {**now, "jax": "0.0.1"})
    assert not record.holds


@pytest.mark.parametrize(("value", "trusted"), [("true", False), ("1", False), ("false", True), ("", True)])
def test_continuous_integration_trusts_no_earlier_run(
    record: Record, monkeypatch: pytest.MonkeyPatch, value: str, trusted: bool
) -> None:
    monkeypatch.setenv("CI", value)
    assert record.holds is trusted
