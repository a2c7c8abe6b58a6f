"""What git ignores: results in all their forms, wherever they lie, and nothing that a lesson ships."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from grader.core.layout import PACKAGE

IGNORE = {
    "checkout": ROOT / ".gitignore",
    "overlay": PACKAGE / "course" / "templates" / "gitignore",
    "bundle": PACKAGE / "lms" / "for_learners" / "gitignore",
}
RESULTS = """
    results.json results-05_vmap.json grades.csv canvas.csv class.html junit.xml summary.md gradescope.json
    classroom.txt annotations.txt out/results.json out/grades.csv out/class.html
""".split()


@pytest.mark.parametrize("kind", IGNORE)
def test_no_result_is_committed_by_accident(tmp_path: Path, kind: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_bytes(IGNORE[kind].read_bytes())
    shipped = {"checkout": "solutions exercises", "overlay": "solutions", "bundle": "exercises"}[kind].split()
    theirs = [f"{folder}/05_vmap/data/results.csv" for folder in shipped]
    also = ["submitted/one/05_vmap/05_vmap.ipynb", "exchange/x", "gradebook.db", "gradebook.db-wal", ".secret"]
    private = [*RESULTS, *(also if kind != "bundle" else [])]
    for name in (*private, *theirs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    words = ["git", "ls-files", "--others", "--exclude-standard"]
    left = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(left) == sorted([".gitignore", *theirs])


def test_no_tracked_file_is_ignored() -> None:
    words = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


def test_no_file_of_the_package_is_ignored() -> None:
    words = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "grader"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in found if "__pycache__" not in name] == []
