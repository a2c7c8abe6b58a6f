"""An exercise whose check connects processes: judged where a worker has a loopback, skipped at no cost elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import Grader
from fill import fill, write

from grader.course import Course

LESSON = "01_pair"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")
@pytest.mark.parametrize("level", ["full", "landlock"])
def test_a_check_that_connects_processes(built, grader: Grader, tmp_path: Path, level: str) -> None:
    """Without loopback it gives its points, with the reason, but not to an answer that is missing."""
    course = built("connected")
    exercise = Course(course).lesson(LESSON).exercises[0]
    answers = {"right": exercise.reference, "wrong": exercise.wrong[1].source, "stub": None}
    for learner, text in answers.items():
        path = tmp_path / "submitted" / learner / LESSON / f"{LESSON}.ipynb"
        write(fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {"pair-index": text} if text else {}), path)
    out = tmp_path / "results.json"
    words = ("grade", tmp_path / "submitted", "--json", out, "--force", "--allow-unsandboxed")
    done = grader("--course", course, *words, GRADER_CONFINE_AT_MOST=level)
    results = {one["learner"]: one for one in json.loads(out.read_text())["results"]}
    assert results, done.stdout + done.stderr
    if {one["confinement"] for one in results.values()} != {level}:
        pytest.skip(f"this machine refuses {level}")
    last = {learner: one["checks"][-1] for learner, one in results.items()}
    assert last["stub"]["status"] == "not attempted"
    assert level == "landlock" or last["right"]["message"] == "", last["right"]
    assert {one["max_score"] for one in results.values()} == {3.0}
    if level == "full":
        assert {learner: one["score"] for learner, one in results.items()} == {"right": 3, "wrong": 1, "stub": 0}
    else:
        assert {learner: one["status"] for learner, one in last.items() if learner != "stub"} == {
            "right": "skipped",
            "wrong": "skipped",
        }
        assert "no loopback" in last["right"]["message"]
        assert {learner: one["score"] for learner, one in results.items()} == {"right": 3, "wrong": 3, "stub": 0}
