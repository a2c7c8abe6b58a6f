"""Points and faults as learners see them: full marks are full marks, and a grader's fault is no zero."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import fill
import pytest
from rich.console import Console

from grader.core import points
from grader.core.result import CheckResult, Result, grader_fault
from grader.course import Course, Exercise
from grader.learning import progress
from grader.learning.course_map import GRADED, STATE, Tile, read_state
from grader.learning.progress import ExerciseProgress, LessonProgress
from grader.learning.result_view import view
from grader.learning.watch import TRIES, GradeRequest, Watch
from grader.learning.watch_screen import mark_of, screen, verdict_lines

LESSON = "01_small"
TENTHS = (0.1, 0.2, 0.3)  # their sum in binary is 0.6000000000000001


def check(exercise: str, number: int, worth: float, status: str = "passed", message: str = "") -> CheckResult:
    earned = worth if status == "passed" else 0.0
    return CheckResult(f"{exercise}-{number}", exercise, f"Check {number}.", status, earned, worth, message)


def result(exercise: str, *statuses: str) -> Result:
    """A check worth a tenth, one worth two tenths, one worth three."""
    checks = [check(exercise, i, worth, status) for i, (worth, status) in enumerate(zip(TENTHS, statuses, strict=True))]
    return Result("you", LESSON, tuple(checks), 0.6)


class Tenths:
    """Stands for an exercise with checks worth 0.1, 0.2 and 0.3 points, added up as floats."""

    points = 0.1 + 0.2 + 0.3


@pytest.fixture
def course(built: Callable[[str], Path], tmp_path: Path) -> Course:
    """A course whose first exercise, `small-double`, is worth 0.1 + 0.2 + 0.3 points; its answer is in work/."""
    root = tmp_path / "course"
    shutil.copytree(built("small"), root, ignore=shutil.ignore_patterns("work"))
    course = Course(root)
    answer = {"small-double": course.lesson(LESSON).exercise("small-double").reference}
    text = root / "exercises" / LESSON / f"{LESSON}.ipynb"
    fill.write(fill.fill(text, answer), root / "work" / LESSON / text.name)
    return course


@pytest.fixture
def watch(course: Course, monkeypatch: pytest.MonkeyPatch) -> Watch:
    double = Exercise.points
    worth = lambda exercise: Tenths.points if exercise.id == "small-double" else double.fget(exercise)
    monkeypatch.setattr(Exercise, "points", property(worth))
    return Watch(course)


def request(watch: Watch) -> GradeRequest:
    found = watch.next_grading()
    assert found is not None
    assert found.exercise == "small-double"
    return found


def shown(watch: Watch) -> str:
    console = Console(width=80, height=24)
    with console.capture() as capture:
        console.print(screen(watch, console))
    return capture.get()


def test_tenths_that_add_up_are_full_marks_in_progress_and_on_the_map() -> None:
    assert Tenths.points > 0.6, "or this test shows nothing"
    step = ExerciseProgress(Tenths(), 0.6)  # type: ignore[arg-type]
    assert step.done
    lesson = LessonProgress(LESSON, "Small", (step, step))
    assert (lesson.earned, lesson.points, lesson.next) == (1.2, 1.2, None)
    assert Tile(LESSON, "Small", "One", "small.ipynb", 0.6, Tenths.points).status == "✓ 0.6 of 0.6 points"


def test_tenths_that_add_up_show_a_tick_in_watch(watch: Watch) -> None:
    exercise, full = watch.at_hand, result("small-double", *["passed"] * 3)
    asked = request(watch)
    assert watch.replied(asked, full)
    assert mark_of(watch, exercise)[0] == "✓"
    assert verdict_lines(watch, asked, full) == f"✓ {LESSON} · Double: 0.6 of 0.6 points"
    row = next(line for line in shown(watch).splitlines() if "1 Double" in line)
    assert row.split() == ["✓", "1", "Double", "0.6/0.6"], "the next one is at hand"
    assert watch.lessons[0].steps[0].done
    assert next(step for step in watch.lessons[0].steps if not step.done).exercise.id != "small-double"


def test_tenths_that_add_up_show_a_tick_in_the_notebook() -> None:
    seen = view(result("small-double", *["passed"] * 3), [], [], [], public_only=False)
    assert seen.plain().splitlines() == ["✓ small-double: 0.6 of 0.6", "0.6 of 0.6 points."]


def test_the_state_file_is_read_once_for_each_verdict(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read_text = Path.read_text
    count = lambda path, *args, **more: (reads.append(path.name), read_text(path, *args, **more))[1]
    monkeypatch.setattr(Path, "read_text", count)
    assert watch.replied(request(watch), result("small-double", *["passed"] * 3))
    assert reads.count(STATE) <= 1
    assert read_state(GRADED, watch.course.root)[LESSON]["small-double"] == [0.6, Tenths.points]


FAULTS = {
    "the notebook": grader_fault("you", LESSON, "a process ended"),
    "a check": result("small-double", "passed", "error", "passed"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_graders_fault_is_no_zero_in_watch(watch: Watch, fault: Result) -> None:
    for _ in range(TRIES):
        assert not watch.replied(request(watch), fault)
    assert watch.next_grading() is None, "until the next save"
    assert watch.message.startswith("The grader itself failed: ")
    assert watch.message.endswith("Save the notebook to try again.")
    page = shown(watch)
    row = next(line for line in page.splitlines() if "1 Double" in line)
    assert row.split() == ["▸", "!", "1", "Double", "–/0.6"]
    assert "Not graded: the grader is at fault, not your answer." in page
    assert not (watch.course.root / "work" / STATE).exists(), "and nothing is stored"
    watch.saved(LESSON)
    assert watch.replied(request(watch), result("small-double", *["passed"] * 3))


def test_a_graders_fault_is_no_zero_in_the_notebook() -> None:
    lost = view(grader_fault("you", LESSON, "a process ended"), [], [], [], public_only=False)
    assert lost.plain() == "Not graded: The grader itself failed: a process ended."
    good = check("small-mean", 0, 3.0)
    broken = check("small-double", 1, 3.0, "error", "The check itself is at fault: no.")
    for public_only, earned, total in ((False, "– of 3", "3 of 3 points."), (True, "– of 1 check", "1 of 1 checks in")):
        seen = view(Result("you", LESSON, (good, broken), 6.0), [], [], [], public_only)
        lines = seen.plain().splitlines()
        assert lines[0] == f"! small-double: {earned}, not graded"
        assert lines[-1].startswith(total)
        assert lines[-1].endswith("Not graded: 1 exercise; a check or the grader is at fault, not your answer.")
        assert "not graded" in seen.html()


def test_what_the_grader_failed_at_leaves_earlier_points(course: Course) -> None:
    progress.note(course, result("small-double", *["passed"] * 3))
    progress.note(course, FAULTS["the notebook"])
    progress.note(course, FAULTS["a check"])
    kept = json.loads((course.root / "work" / STATE).read_text())["graded"][LESSON]
    assert points.is_full(kept["small-double"][0], 0.6)
