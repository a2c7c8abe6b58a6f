"""docs/semester.md to the letter: its commands, in their order, in a fresh copy of the course."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import desk
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "semester.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
LATE = {"misconceptions": 0.2, "partly-right": 0.1}  # after the resubmission


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The course after all commands, and what they printed on stderr. A line that fails ends it."""
    course = desk.copy_course(tmp_path_factory.mktemp("semester"))
    script = "\n".join(["set -e", *BLOCKS])
    activated = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = desk.environment(course) | {"PATH": activated}
    done = subprocess.run(
        ["bash", "-c", script], cwd=course, env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return course, done.stderr


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def numbers(row: dict[str, str]) -> list[float]:
    return [float(row[name]) for name in ("raw_score", "late_submission_penalty", "score", "max_score")]


def test_a_reader_finds_the_page_and_its_links() -> None:
    assert "(semester.md)" in (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", PAGE) if "://" not in target]
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
    assert len(BLOCKS) >= 8


@pytest.mark.thorough
def test_the_exports_agree(followed: tuple[Path, str]) -> None:
    course, said = followed
    theirs, mine, merged = (rows(course / f"{name}.csv") for name in ("grades", "final", "merged"))
    assert set(theirs) == set(mine) == set(merged)
    for learner, row in theirs.items():
        assert numbers(mine[learner]) == numbers(row) == numbers(merged[learner]), learner
        assert [mine[learner][name] for name in ("duedate", "timestamp")] == [row["duedate"], row["timestamp"]]
        raw, penalty, score, _ = numbers(row)
        assert penalty == pytest.approx(raw * LATE.get(learner, 0))
        assert score == pytest.approx(raw - penalty)
    assert "missing 1 of 9 learners: not-there." in said
    assert "extended 1: with-helpers." in said
    assert "in more than one result: the newest counts." in said
    everything = json.loads((course / "results-all.json").read_text(encoding="utf-8"))["results"]
    assert {one["learner"]: one["grade"]["score"] for one in everything} == {n: numbers(r)[2] for n, r in mine.items()}


@pytest.mark.thorough
def test_the_resubmission_counts(followed: tuple[Path, str]) -> None:
    course, _ = followed
    before, now = (rows(course / f"{name}.csv")["partly-right"] for name in ("first", "final"))
    assert numbers(before)[1] == 0
    assert numbers(now)[0] == 21 > numbers(before)[0]
    pages = {path.parts[-3] for path in (course / "build" / "feedback").glob("*/05_vmap/05_vmap.html")}
    assert len(pages) == 8
