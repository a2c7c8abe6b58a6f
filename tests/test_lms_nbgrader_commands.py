"""nbgrader's own commands, one after the other: from the release of a lesson to the feedback that its learner gets."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import stock
from conftest import COURSES
from fill import fill, write

from grader.course import Course

LESSON = "01_by_hand"
[EXERCISE] = Course(COURSES / "by_hand").lesson(LESSON).exercises
DOWNLOADED = f"homework_one_attempt_2026-01-01-10-00-00_{LESSON}.ipynb"
NAMES = r".*_(?P<student_id>\w+)_attempt_(?P<timestamp>[0-9\-]+)_(?P<file_id>\w+)"


@pytest.fixture(scope="module")
def course(built: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = stock.configured(built("by_hand"), tmp_path_factory.mktemp("commands") / "course")
    with (root / "nbgrader_config.py").open("a") as config:
        config.write(f"c.Exchange.root = {str(root.parent / 'exchange')!r}\n")
        config.write(f"c.Exchange.cache = {str(root.parent / 'cache')!r}\n")
        config.write(f"c.FileNameCollectorPlugin.named_regexp = {NAMES!r}\n")
    return root


def run(course: Path, *words: str) -> str:
    """What the command said; it has to end well."""
    done = stock.nbgrader(course, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def answered(course: Path, place: Path, source: str = EXERCISE.reference) -> Path:
    return write(fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {EXERCISE.id: source}), place)


def test_from_release_to_feedback(course: Path) -> None:
    released = (course / "exercises" / LESSON / f"{LESSON}.ipynb").read_bytes()
    run(course, "generate_assignment", LESSON, "--force")
    assert (course / "exercises" / LESSON / f"{LESSON}.ipynb").read_bytes() == released
    run(course, "release_assignment", LESSON)
    exchange = course.parent / "exchange" / "jaxercise"
    assert (exchange / "outbound" / LESSON / f"{LESSON}.ipynb").read_bytes() == released

    answered(course, course / "work" / LESSON / f"{LESSON}.ipynb")
    run(course, "submit", LESSON)
    run(course, "collect", LESSON)
    [collected] = (course / "submitted").iterdir()
    answered(course, course / "downloaded" / LESSON / "archive" / DOWNLOADED, EXERCISE.stub)
    run(course, "zip_collect", LESSON, "--force")
    assert {path.name for path in (course / "submitted").iterdir()} == {collected.name, "one"}

    run(course, "autograde", LESSON)
    run(course, "generate_feedback", LESSON)
    run(course, "release_feedback", LESSON, "--student", collected.name)
    [page] = (exchange / "feedback").iterdir()
    assert page.read_text() == (course / "build" / "feedback" / collected.name / LESSON / f"{LESSON}.html").read_text()

    run(course, "export")
    with (course / "grades.csv").open() as file:
        scores = {row["student_id"]: (row["score"], row["max_score"]) for row in csv.DictReader(file)}
    assert scores == {collected.name: ("3.0", "6.0"), "one": ("0.0", "6.0")}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (EXERCISE.reference, "Success! Your notebook passes all the tests."),
        ("def half(x):\n    return x - 2\n", "1 of 2 values differs. The one at [0] of the result is 0; expected 1."),
        (EXERCISE.stub, "Not attempted yet: `half` still raises NotImplementedError."),
    ],
)
def test_validate_says_what_the_public_checks_say(course: Path, answer: str, said: str) -> None:
    mine = answered(course, course / "mine" / f"{LESSON}.ipynb", answer)
    text = run(course, "validate", str(mine))
    assert said in re.sub(r"\s+", " ", text)
    assert "Traceback" not in text
    assert "HAVE CHANGED" not in text
