"""A regrade after something changed says which scores changed and why: `grader grade --explain-changes`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, Grader
from fill import fill, write

from grader.core.result import CheckResult, Result
from grader.course import Course
from grader.course.build import exercises_path
from grader.grading.batch import Entry
from grader.grading.cache import ResultCache, environment_fingerprint
from grader.grading.regrade import CHANCE, Change, PreviousGrades

LESSON = "01_small"
RIGHT = {exercise.id: exercise.reference for exercise in Course(ROOT / "tests/courses/small").lesson(LESSON).exercises}


def hand_in(root: Path, learner: str, answers: dict[str, str]) -> Path:
    notebook = fill(exercises_path(Course(root), LESSON), answers)
    return write(notebook, root / "submitted" / learner / LESSON / f"{LESSON}.ipynb")


@pytest.fixture
def root(built: Callable[[str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(built("small"), tmp_path / "course", ignore=shutil.ignore_patterns("graded"))


def test_a_regrade_says_whose_points_changed_where_and_why(root: Path, grader: Grader) -> None:
    """By the real command: a check's points and another's text, a notebook, somebody new."""

    def grade(*words: str) -> tuple[str, dict[str, dict[str, object]]]:
        file = root / "results.json"
        done = grader("--course", root, "grade", root / "submitted", "--json", file, "--explain-changes", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout, {result["learner"]: result for result in json.loads(file.read_text())["results"]}

    hand_in(root, "all_right", RIGHT)
    hand_in(root, "doubles_two", {**RIGHT, "small-double": "def double(x):\n    return x * x\n"})
    hand_in(root, "untouched", {})
    said, results = grade()
    assert "Since the last grading: 0 with changed points, 0 with the same points; 3 graded for the first time." in said
    assert {result["changes"] for result in results.values()} == {None}
    solutions = root / "solutions" / f"{LESSON}.py"
    text = solutions.read_text()
    changed = text.replace('name="values" points=2', 'name="values" points=3', 1)
    solutions.write_text(changed)
    hand_in(root, "all_right", {**RIGHT, "small-mean": "def loss(x):\n    return (x**2).sum()\n"})
    hand_in(root, "new", RIGHT)
    said, results = grade()
    lines = said.splitlines()
    points = "the check's points (from 2 to 3)"
    cells = "other cells of the notebook, which determine the inputs of hidden checks"
    assert "all_right  01_small  9 of 9 points before, 7 of 10 now" in said
    assert f"  small-double-values: 2 (passed) before, 3 (passed) now. Changed since: {points}; {cells}." in lines
    for check, points_before in (("example", 1), ("program", 2)):
        why = "Changed since: the answer in the notebook."
        assert f"  small-mean-{check}: {points_before} (passed) before, 0 (failed) now. {why}" in lines
    assert f"  small-double-values: 0 (failed) before, 0 (failed) now. Changed since: {points}." in lines
    assert "Since the last grading: 3 with changed points, 0 with the same points; 1 graded for the first time." in said
    assert results["new"]["changes"] is None
    told = results["doubles_two"]["changes"]
    assert isinstance(told, dict)
    assert told["score_before"] == results["doubles_two"]["score"] == 6
    assert told["checks"] == [
        {
            "id": "small-double-values", "exercise": "small-double", "points_before": 0.0, "points": 0.0,
            "status_before": "failed", "status": "failed", "since": [points],
        }
    ]  # fmt: skip
    said, _ = grade("--force")
    assert "Since the last grading: 0 with changed points, 4 with the same points." in said


def result(*points: float, **about: str) -> Result:
    """Points of the checks of the first exercise."""
    names = ("small-double-example", "small-double-values")
    checks = (
        CheckResult(name, "small-double", "t", "passed" if got else "failed", got, 2.0, hidden=name.endswith("values"))
        for name, got in zip(names, points, strict=False)
    )
    return Result("one", LESSON, tuple(checks), max_score=4.0, confinement=about.get("confinement", "full"))


class Regrade:
    """One learner's lesson, graded, and graded again after something changed."""

    def __init__(self, root: Path) -> None:
        self.root, self.entry = root, Entry(hand_in(root, "one", RIGHT), "one", LESSON)

    def ledger(self) -> ResultCache:
        secret = self.root / ".secret"
        return ResultCache(
            Course(self.root), secret.read_text() if secret.exists() else "public", environment_fingerprint()
        )

    def keep(self, was: Result) -> None:
        self.ledger().keep(was, self.entry.path.read_bytes())

    def change(self, now: Result) -> Change | None:
        [*changes], _ = PreviousGrades(Course(self.root), [self.entry], environment_fingerprint()).changes(
            {self.entry: now}
        )
        return changes[0] if changes else None

    def why(self, now: Result) -> tuple[str, ...]:
        """What is told of the one check that differs."""
        change = self.change(now)
        assert change is not None
        [check] = change.checks
        return check.since


@pytest.fixture
def regrade(root: Path) -> Regrade:
    regrade = Regrade(root)
    regrade.keep(result(2, 0))
    return regrade


def edit(before: str, after: str) -> Callable[[Regrade], object]:
    def change(regrade: Regrade) -> None:
        path = regrade.root / "solutions" / f"{LESSON}.py"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))

    return change


def answers(exercise: str, more: str) -> Callable[[Regrade], object]:
    return lambda regrade: hand_in(regrade.root, "one", {**RIGHT, exercise: RIGHT[exercise] + more})


INPUTS = "which determine the inputs of hidden checks"
CHANGES: dict[str, tuple[Callable[[Regrade], object], tuple[str, ...]]] = {
    "nothing": (lambda regrade: None, (CHANCE,)),
    "no code": (
        lambda regrade: regrade.entry.path.write_text(regrade.entry.path.read_text() + " "),
        ("the notebook file apart from its code cells, which determines the inputs of hidden checks",),
    ),
    "its answer": (answers("small-double", "# x\n"), ("the answer in the notebook",)),
    "another answer": (answers("small-mean", "# x\n"), (f"other cells of the notebook, {INPUTS}",)),
    "secret": (
        lambda regrade: (regrade.root / ".secret").write_text("new"),
        ("the course's secret, which determines the inputs of hidden checks",),
    ),
    "check": (edit("size=5).astype", "size=6).astype"), ("the check's text",)),
    "another check": (edit("np.array([1, 2]", "np.array([1, 3]"), (CHANCE,)),
    "task": (edit("Double an array.", "Double all."), ("the task's text",)),
    "answer of the course": (edit("timeout=2", "timeout=3"), ("the course's answer",)),
    "known answers": (edit("return x + 2", "return x + 3"), ("the known right and wrong answers",)),
    "setup": (edit("SCALE = 2.0", "SCALE = 2.0  # two"), ("the lesson's setup",)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_is_told_and_nothing_else(regrade: Regrade, what: str) -> None:
    change, said = CHANGES[what]
    change(regrade)
    assert regrade.why(result(2, 2)) == said


def test_what_grades_is_told_with_its_version(regrade: Regrade, monkeypatch: pytest.MonkeyPatch) -> None:
    was = environment_fingerprint()["jax"]
    now = {**environment_fingerprint(), "jax": "9.9", "the grader": "other"}
    monkeypatch.setattr("test_grading_regrade.environment_fingerprint", lambda: now)
    assert regrade.why(result(2, 2)) == ("the grader", f"jax (from {was} to 9.9)")


def test_what_was_reached_before_and_now(regrade: Regrade) -> None:
    change = regrade.change(result(2, 2))
    assert change is not None
    assert (change.before.score, change.now.score, change.now.problem) == (2, 4, None)
    assert regrade.change(result(2, 0)) is None
    assert regrade.why(result(2)) == ("the check was removed",)
    assert regrade.why(result(2, 2, confinement="landlock")) == ("the confinement (from full to landlock)",)
    regrade.keep(result(2))
    assert regrade.why(result(2, 2)) == ("the check is new",)
    hidden = replace(result(2, 2), checks=tuple(replace(check, hidden=True) for check in result(1, 2).checks))
    regrade.keep(result(2, 2))
    assert regrade.why(hidden) == ("the check is now hidden",)


def test_what_cannot_be_graded_now_is_told_with_its_reason(regrade: Regrade) -> None:
    change = regrade.change(Result("one", LESSON, problem="The file is empty.", fault="submission"))
    assert change is not None
    assert (change.before.score, change.now.score, change.checks) == (2, 0, ())
    assert change.now.problem == "The file is empty."


def test_a_result_that_somebody_else_wrote_is_no_last_time(regrade: Regrade) -> None:
    """Nor is one learner's another's; and what an older edition decided is told, but is no grade."""
    [path] = (regrade.root / "build" / "graded").glob("*/*.json")
    kept = json.loads(path.read_text())
    for forged in (
        {**kept, "result": {**kept["result"], "checks": []}},
        {**kept, "parts": {**kept["parts"], "around": "mine"}},
        {**kept, "parts": {**kept["parts"], "secret": "mine"}},
    ):
        path.write_text(json.dumps(forged))
        assert regrade.ledger().earlier("one", LESSON) is None
    path.write_text(json.dumps(kept))
    shutil.copy(path, regrade.ledger()._path("two", LESSON))
    assert regrade.ledger().earlier("two", LESSON) is None
    newer = ResultCache(Course(regrade.root), "public", "newer")
    assert newer.find("one", LESSON, regrade.entry.path.read_bytes()) is None
    assert newer.earlier("one", LESSON) is not None
    (regrade.root / "build" / "graded" / ".key").unlink()
    assert regrade.ledger().earlier("one", LESSON) is None
