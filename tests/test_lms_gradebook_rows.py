"""The gradebook holds the same rows whether nbgrader's command graded or ours, whatever was handed in."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import odd
import pytest
import stock
from conftest import COURSES, Grader
from fill import fill, write

from grader.course import Course
from grader.reports.forms import FORMS, STATES_ITS_POINTS
from grader.reports.terminal import AUTOMATIC_ONLY

LESSON = "01_by_hand"
[EXERCISE] = Course(COURSES / "by_hand").lesson(LESSON).exercises
WHOLE_NUMBERS = "def half(x):\n    return x // 2\n"
DATES = {"all_right": "2026-01-01 12:00:00 UTC", "partly": "2026-01-03 12:00:00 UTC", "untouched": "yesterday"}
SECRET = "drawn from the course's secret"
Two = tuple[Path, Path]


def notebook(course: Path, answer: str = EXERCISE.reference) -> dict[str, object]:
    return fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {EXERCISE.id: answer})


def hand_in(course: Path) -> None:
    """Everybody's submission."""
    submitted = course / "submitted"
    answers = {"all_right": EXERCISE.reference, "partly": WHOLE_NUMBERS, "untouched": EXERCISE.stub}
    for learner, answer in answers.items():
        write(notebook(course, answer), submitted / learner / LESSON / f"{LESSON}.ipynb")
        (submitted / learner / LESSON / "timestamp.txt").write_text(DATES[learner])
    for learner, edit in odd.EDITED.items():
        edited = notebook(course)
        edit(edited)
        place = submitted / learner / LESSON / f"{LESSON}.ipynb"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(edited))
    for make in odd.UNREADABLE:
        place = submitted / make.__name__ / LESSON / f"{LESSON}.ipynb"
        place.parent.mkdir(parents=True)
        make(place)
    (submitted / "no_json" / LESSON / "timestamp.txt").write_text("2026-01-01 12:00:00 UTC")
    (course / ".secret").write_text(SECRET)
    beside = submitted / "partly" / LESSON
    (beside / "data.txt").write_text("my own data")
    (beside / "link.txt").symlink_to("../../../.secret")
    (beside / "deeper").mkdir()
    (beside / "deeper" / "timestamp.txt").symlink_to(course / ".secret")
    (beside / "solutions").symlink_to(course / "solutions")


def by_nbgrader(course: Path) -> None:
    done = stock.nbgrader(course, "autograde", LESSON)
    assert done.returncode == 0, done.stderr[-3000:]


def by_us(course: Path, grader: Grader) -> None:
    done = grader("--course", course, "grade", course / "submitted", "--gradebook")
    assert done.returncode == 1, "some could not be graded"
    assert "not in the gradebook" not in done.stderr


@pytest.fixture(scope="module")
def both(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Two:
    """Two copies of a course with a deadline and its class, graded by nbgrader's command and by ours."""
    from nbgrader.api import Gradebook

    course = stock.configured(built("by_hand"), tmp_path_factory.mktemp("rows") / "nbgraders")
    with (course / "nbgrader_config.py").open("a") as config:
        config.write("c.LateSubmissionPlugin.penalty_method = 'zero'\n")
    done = stock.nbgrader(course, "generate_assignment", LESSON, "--force")
    assert done.returncode == 0, done.stderr[-3000:]
    with Gradebook(f"sqlite:///{course}/gradebook.db", "jaxercise") as book:
        book.update_or_create_assignment(LESSON, duedate="2026-01-02 12:00:00 UTC")
    ours = shutil.copytree(course, course.parent / "ours")
    for one in (course, ours):
        hand_in(one)
    by_nbgrader(course)
    by_us(ours, grader)
    return course, ours


@pytest.fixture(scope="module")
def first(both: Two) -> tuple[stock.Rows, stock.Rows]:
    """Their rows after the first grading."""
    return stock.rows(both[0]), stock.rows(both[1])


def points(rows: stock.Rows) -> dict[object, dict[object, tuple[object, ...]]]:
    """By learner and cell: points by the grader, by a person, extra ones, and whether a person is waited for."""
    found: dict[object, dict[object, tuple[object, ...]]] = {}
    for learner, _, cell, *said in rows["grade"]:
        found.setdefault(learner, {})[cell] = tuple(said)
    return found


def test_both_ways_store_the_same_rows(first: tuple[stock.Rows, stock.Rows]) -> None:
    assert first[0] == first[1]


def test_every_check_has_its_verdict_and_only_a_task_waits_for_a_person(
    first: tuple[stock.Rows, stock.Rows],
) -> None:
    def said(example: float, values: float, essay: float | None = None) -> dict[object, tuple[object, ...]]:
        cells = {"hand-half-example": example, "hand-half-values": values, "hand-essay": essay}
        return {cell: (score, None, None, int(score is None)) for cell, score in cells.items()}

    expected = {
        "all_right": said(1, 2),
        "partly": said(1, 0),
        "untouched": said(0, 0),
        **{learner: said(1, 2) for learner in odd.EDITED},
        "all_deleted": said(0, 0),
        **{make.__name__: said(0, 0, essay=0) for make in odd.UNREADABLE},
    }
    assert points(first[0]) == expected


def test_who_is_late_pays_and_what_is_no_date_is_none(first: tuple[stock.Rows, stock.Rows]) -> None:
    told = {learner: (timestamp, penalty) for learner, _, timestamp, penalty in first[0]["notebook"]}
    assert told["all_right"] == ("2026-01-01 12:00:00.000000", None)
    assert told["partly"] == ("2026-01-03 12:00:00.000000", 1)
    assert told["untouched"] == (None, None)


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_is_copied_through_a_link(both: Two, first: object, which: int) -> None:
    autograded = both[which] / "build" / "autograded"
    copied = {str(path.relative_to(autograded / "partly" / LESSON)) for path in (autograded / "partly").rglob("*.*")}
    assert copied == {"timestamp.txt", "data.txt", f"{LESSON}.ipynb"}
    assert {path.name for path in (autograded / "a_linked_folder").rglob("*.*")} == {f"{LESSON}.ipynb"}
    for path in autograded.rglob("*.*"):
        assert SECRET not in path.read_text()


def test_what_cannot_be_read_says_why_at_each_check(both: Two, first: object) -> None:
    for make, reason in odd.UNREADABLE.items():
        place = both[0] / "build" / "autograded" / make.__name__ / LESSON / f"{LESSON}.ipynb"
        cells = json.loads(place.read_text())["cells"]
        said = [cell["outputs"][0]["evalue"] for cell in cells if odd.told(cell).get("grade")]
        assert len(said) == 2, make.__name__
        assert all(text.startswith(reason) for text in said), said


def test_deleted_cells_are_back_in_their_places_once(both: Two, first: object) -> None:
    for learner in odd.EDITED:
        place = both[0] / "build" / "autograded" / learner / LESSON / f"{LESSON}.ipynb"
        cells = json.loads(place.read_text())["cells"]
        told = [odd.told(cell) for cell in cells]
        graded = [one["grade_id"] for one in told if one.get("grade") or one.get("task")]
        assert graded == ["hand-half-example", "hand-half-values", "hand-essay"], learner
        assert [one["points"] for one in told if one.get("grade")] == [1, 2]
        assert not any("100.0" in "".join(cell["source"]) for cell in cells)
    assert any("see ? !" in "".join(cell["source"]) and "a.png" in cell["attachments"] for cell in cells)


def give(course: Path) -> None:
    """What a person gives in Formgrader: points beside those of a check, extra ones, comments, points for tasks."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db", "jaxercise") as book:
        for learner, cell, score in (
            ("partly", "hand-half-values", 1.5), ("partly", "hand-essay", 2), ("all_right", "hand-essay", 3),
            ("untouched", "hand-half-example", 1),
        ):  # fmt: skip
            grade = book.find_grade(cell, LESSON, LESSON, learner)
            grade.manual_score, grade.extra_credit, grade.needs_manual_grade = score, 0.5, False
        book.find_comment("hand-half", LESSON, LESSON, "partly").manual_comment = "Nearly."
        book.db.commit()


def test_a_resubmission_keeps_what_a_person_gave_and_asks_to_look_again(
    both: Two, first: object, grader: Grader
) -> None:
    for course in both:
        give(course)
        for learner in ("partly", "no_json"):
            place = course / "submitted" / learner / LESSON
            write(notebook(course), place / f"{LESSON}.ipynb")
            (place / "timestamp.txt").write_text("2026-01-02 11:00:00 UTC" if learner == "no_json" else "2026-01-04")
    by_nbgrader(both[0])
    by_us(both[1], grader)
    rows = stock.rows(both[0])
    assert rows == stock.rows(both[1])
    assert points(rows)["partly"] == {
        "hand-half-example": (1, None, None, 0),
        "hand-half-values": (2, 1.5, 0.5, 1),
        "hand-essay": (None, 2, 0.5, 0),
    }
    assert points(rows)["no_json"] == points(rows)["checks_deleted"], "a task waits again"
    assert points(rows)["untouched"]["hand-half-example"] == (0, 1, 0.5, 0), (
        "nobody has to look again at what is as it was"
    )
    assert points(rows)["all_right"]["hand-essay"] == (None, 3, 0.5, 0)
    assert ("partly", LESSON, "hand-half", None, "Nearly.") in rows["comment"]
    assert [penalty for learner, *_, penalty in rows["notebook"] if learner == "partly"] == [5.5]


def test_reports_have_a_persons_points_or_state_that_they_have_not(
    both: Two, first: object, grader: Grader, tmp_path: Path
) -> None:
    """`nbgrader export` writes other points than the grader's as soon as a person has graded."""
    course = shutil.copytree(both[1], tmp_path / "course", symlinks=True)
    give(course)
    (course / "results.json").unlink(missing_ok=True)
    assert grader("--course", course, "grade", course / "submitted", "--json", course / "results.json").returncode in (
        0,
        1,
    )
    done = stock.nbgrader(course, "export", "--to", "final.csv")
    assert done.returncode == 0, done.stderr

    def scores(text: str) -> dict[str, tuple[float, float]]:
        rows = csv.DictReader(io.StringIO(text))
        return {row["student_id"]: (float(row["raw_score"]), float(row["max_score"])) for row in rows}

    final = scores((course / "final.csv").read_text())
    for form in FORMS:
        one = ["--learner", "partly"] if form in ("gradescope", "github-classroom") else []
        report = grader("report", course / "results.json", "--as", form, *one, cwd=tmp_path)
        stated = (
            report.stdout[:2_500].replace("&#39;", "'").replace("\\", "")
            if form in STATES_ITS_POINTS
            else report.stderr
        )
        assert AUTOMATIC_ONLY.replace("`", "") in stated.replace("`", ""), form
        if form == "csv":
            assert scores(report.stdout)["partly"] != final["partly"]
    report = grader("--course", course, "report", course / "results.json", "--as", "csv")
    assert scores(report.stdout) == final


def test_a_lesson_that_changed_since_its_release_is_refused(both: Two, grader: Grader, tmp_path: Path) -> None:
    course = shutil.copytree(both[0], tmp_path / "course", symlinks=True)
    text = course / "solutions" / f"{LESSON}.py"
    text.write_text(text.read_text().replace('name="values" points=2', 'name="many" points=2'))
    said = (
        "01_by_hand has changed since it was released (hand-half-many, hand-half-values), and the gradebook contains "
        "the earlier version. Run: nbgrader generate_assignment 01_by_hand"
    )
    theirs = stock.nbgrader(course, "autograde", LESSON, "--force")
    assert (theirs.returncode, said in theirs.stderr) == (1, True)
    mine = grader("--course", course, "grade", course / "submitted", "--gradebook")
    assert (mine.returncode, mine.stderr.strip()) == (2, said)
    assert stock.rows(course) == stock.rows(both[0])
