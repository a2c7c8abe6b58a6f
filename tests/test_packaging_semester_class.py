"""docs/semester.md with a class of 300: submissions are missing, late, unreadable, renamed, links, or repeated."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import stock
from conftest import COURSES, Grader
from fill import fill, write

from grader.course import Course

LESSON = "01_by_hand"
[EXERCISE] = Course(COURSES / "by_hand").lesson(LESSON).exercises
CLASS = [f"learner-{n:03}" for n in range(300)]
MISSING, UNREADABLE, RENAMED, LINKED, LATE, WRONG = (set(CLASS[n : n + 10]) for n in range(0, 60, 10))
TWICE = set(CLASS[50:55])  # of WRONG: they submit a right answer later, in time
EXTENDED = CLASS[40]  # of LATE
WHOLE_NUMBERS = "def half(x):\n    return x // 2\n"
Walk = dict[str, subprocess.CompletedProcess[str]]


def submit(course: Path, learner: str, answer: str, time: str = "2026-01-01 12:00:00 UTC") -> Path:
    path = course / "submitted" / learner / LESSON / f"{LESSON}.ipynb"
    write(fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {EXERCISE.id: answer}), path)
    (path.parent / "timestamp.txt").write_text(time)
    return path


def submit_class(course: Path) -> None:
    elsewhere = submit(course, "elsewhere", EXERCISE.reference).rename(course / "elsewhere.ipynb")
    shutil.rmtree(course / "submitted" / "elsewhere")
    for n, learner in enumerate(CLASS):
        if learner in MISSING:
            continue
        answer = WHOLE_NUMBERS if learner in WRONG else EXERCISE.reference
        path = submit(
            course, learner, answer, "2026-01-03 13:00:00 UTC" if learner in LATE else "2026-01-01 12:00:00 UTC"
        )
        if learner in UNREADABLE:
            path.write_bytes([b"", b"{", b"\xff\xfe{}", b"[]", b'{"cells": 3}'][n % 5])
        elif learner in RENAMED:
            path.rename(path.with_name("my homework (1).ipynb"))
        elif learner in LINKED:
            path.unlink()
            path.symlink_to(elsewhere)


@pytest.fixture(scope="module")
def walked(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Walk]:
    """The course after a semester, and what each command printed."""
    course = stock.configured(built("by_hand"), tmp_path_factory.mktemp("class") / "course")
    people = [f"{name},First {n},Last {n},{name}@example.org" for n, name in enumerate(CLASS)]
    (course / "roster.csv").write_text("\n".join(["id,first_name,last_name,email", *people]))
    (course / "extensions.csv").write_text(f"learner,lesson,due\n{EXTENDED},{LESSON},2026-01-09T12:00Z\n")
    with (course / "course.toml").open("a") as outline:
        outline.write(f"\n[deadlines]\n{LESSON} = 2026-01-02T12:00:00Z\n\n[late]\npercent_per_day = 10\n")
        outline.write('roster = "roster.csv"\nextensions = "extensions.csv"\n')
    done: Walk = {}
    done["roster"] = stock.nbgrader(course, "db", "student", "import", "roster.csv")
    done["release"] = stock.nbgrader(course, "generate_assignment", LESSON, "--force")
    submit_class(course)
    grade = ("grade", "submitted", "--lesson", LESSON, "--gradebook", "--json")
    done["grade"] = grader(*grade, "results.json", cwd=course)
    for learner in TWICE:
        submit(course, learner, EXERCISE.reference, "2026-01-02 11:00:00 UTC")
    done["regrade"] = grader(*grade, "results2.json", "--explain-changes", cwd=course)
    done["feedback"] = stock.nbgrader(course, "generate_feedback", LESSON)
    done["export"] = stock.nbgrader(course, "export", "--to", "grades.csv")
    for form, name in (("csv", "final.csv"), ("canvas", "canvas.csv"), ("html", "class.html"), ("junit", "junit.xml")):
        done[form] = grader("report", "results2.json", "--as", form, "--out", name, cwd=course)
    return course, done


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


@pytest.mark.thorough
def test_each_step_ends_as_documented(walked: tuple[Path, Walk]) -> None:
    _, done = walked
    for name, step in done.items():
        expected = 1 if name in ("grade", "regrade") else 0  # 30 notebooks cannot be graded
        assert step.returncode == expected, f"{name}: {step.stdout[-1500:]}{step.stderr[-1500:]}"
        assert "Traceback" not in step.stdout + step.stderr, name
    for learner in (*UNREADABLE, *RENAMED, *LINKED):
        assert f"{learner}/{LESSON}" in done["grade"].stderr
    same = set(CLASS) - MISSING - UNREADABLE - RENAMED - LINKED - TWICE
    assert f"{len(same)} of them were graded before" in done["regrade"].stdout
    assert all(learner in done["regrade"].stdout for learner in TWICE)
    assert f"missing {len(MISSING)} of {len(CLASS)} learners" in done["csv"].stderr
    assert f"extended 1: {EXTENDED}" in done["csv"].stderr


@pytest.mark.thorough
def test_each_learner_has_one_grade_and_the_exports_agree(walked: tuple[Path, Walk]) -> None:
    course, _ = walked
    theirs, ours = rows(course / "grades.csv"), rows(course / "final.csv")
    assert set(theirs) == set(ours) == set(CLASS)
    columns = ("raw_score", "late_submission_penalty", "score", "max_score")
    for learner in CLASS:
        numbers = [float(ours[learner][name]) for name in columns]
        assert numbers == [float(theirs[learner][name]) for name in columns], learner
        unread = learner in MISSING | UNREADABLE | RENAMED | LINKED
        raw = 0.0 if unread else 1.0 if learner in WRONG - TWICE else 3.0
        late = 0.2 if learner in LATE - {EXTENDED} else 0.0
        assert numbers[:3] == pytest.approx([raw, raw * late, raw * (1 - late)]), learner
    pages = {path.parts[-3] for path in (course / "build" / "feedback").glob(f"*/{LESSON}/{LESSON}.html")}
    assert pages == set(CLASS) - MISSING
    results = json.loads((course / "results2.json").read_text())["results"]
    assert [one["learner"] for one in results] == sorted(set(CLASS) - MISSING)
    assert (course / "class.html").read_text().count("missing") >= len(MISSING)


@pytest.mark.thorough
def test_learners_are_removed_from_a_large_class(walked: tuple[Path, Walk], grader: Grader) -> None:
    """Last, since it changes the course."""
    course, _ = walked
    assert "and 298 more" in grader("personal-data", cwd=course).stdout
    for learner in (min(LINKED), min(TWICE)):
        done = grader("personal-data", "--learner", learner, "--remove", "--yes", cwd=course)
        assert done.returncode == 0, done.stdout + done.stderr
        everything = [path for path in course.rglob("*") if learner in str(path) or path.is_file()]
        assert not [path for path in everything if learner in str(path) or learner.encode() in path.read_bytes()]
    assert (course / "elsewhere.ipynb").is_file(), "what a link leads to is not the learner's"
    assert len(list((course / "submitted").iterdir())) == len(CLASS) - len(MISSING) - 2
