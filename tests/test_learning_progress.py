"""`grader progress`: what `grader check` has seen, by exercise, and what comes next."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import fill
import pytest
from conftest import Grader

from grader.course import Course

LESSON = "01_small"
WRONG = "def loss(x):\n    return x.sum()\n"


def answer(course: Path, **answers: str) -> None:
    """Write answers into the learner's own notebook: double, mean, total."""
    own = course / "work" / LESSON / f"{LESSON}.ipynb"
    fill.write(fill.fill(own, {f"small-{name}": source for name, source in answers.items()}), own)


def right(course: Path) -> dict[str, str]:
    return {e.id.removeprefix("small-"): e.reference for e in Course(course).lesson(LESSON).exercises}


def told(course: Path, grader: Grader) -> tuple[str, str, str]:
    """The lesson's row, the sum, and what comes next."""
    done = grader("--course", course, "progress")
    assert (done.returncode, done.stderr) == (0, "")
    _, row, total, following = (" ".join(line.split()) for line in done.stdout.splitlines())
    return row, total.partition(".")[0], following


def test_from_nothing_to_everything(course: Path, grader: Grader) -> None:
    assert told(course, grader) == (
        f"{LESSON} 0/9 ○ ○ ○",
        "0 of 9 points",
        f"Next: Double, in work/{LESSON}/{LESSON}.ipynb.",
    )
    answer(course, double=right(course)["double"], mean=WRONG)
    assert grader("--course", course, "check", LESSON).returncode == 1
    row, _, following = told(course, grader)
    assert row == f"{LESSON} 3/9 ✓ ○ ○"
    assert following.startswith("Next: A loss, in ")
    answer(course, **right(course))
    assert grader("--course", course, "check", LESSON).returncode == 0
    assert told(course, grader) == (f"{LESSON} 9/9 ✓ ✓ ✓", "9 of 9 points", "All exercises are done.")
    answer(course, mean=WRONG)  # what was once done stays done
    assert grader("--course", course, "check", LESSON).returncode == 1
    assert told(course, grader)[0] == f"{LESSON} 9/9 ✓ ✓ ✓"


@pytest.mark.parametrize(
    "content",
    [
        *(None, "", "[1]", '{"version": 1, "graded": {"01_small": {"small-double": "all"}}}', os.mkfifo),
        f'{{"version": 1, "graded": {{"01_small": {{"small-double": [1{"0" * 400}, 3]}}}}}}',
        '{"version": 1, "graded": {"01_small": {"small-double": [NaN, 3]}}}',
        '{"version": 1, "graded": {"01_small": {"small-double": [-3, 3]}}}',
    ],
    ids=["none", "empty", "list", "word", "pipe", "digits", "nan", "negative"],
)
def test_a_file_that_is_gone_or_says_nothing_costs_the_memory_alone(
    course: Path, grader: Grader, content: str | Callable[[Path], None] | None
) -> None:
    state = course / "work" / ".jaxercise.json"
    if callable(content):
        content(state)
    elif content is not None:
        state.write_text(content)
    assert told(course, grader)[0] == f"{LESSON} 0/9 ○ ○ ○"


def test_points_that_an_exercise_no_longer_has_are_not_counted(course: Path, grader: Grader) -> None:
    earned = {"small-double": [300, 300], "small-mean": [1, 3], "small-gone": [5, 5]}
    state = course / "work" / ".jaxercise.json"
    state.write_text(json.dumps({"version": 1, "graded": {LESSON: earned}, "predictions": {"one": {"choice": "A"}}}))
    assert told(course, grader)[0] == f"{LESSON} 4/9 ✓ ◐ ○"
    answer(course, **right(course))
    assert grader("--course", course, "check", LESSON).returncode == 0
    assert json.loads(state.read_text())["predictions"] == {"one": {"choice": "A"}}
