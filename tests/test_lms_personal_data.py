"""Learners' data in a course folder: git ignores it, a command lists it, and removes one learner's or all of it."""

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

from grader.core.layout import PACKAGE
from grader.course import Course
from grader.lms.personal_data import without

LESSON = "01_by_hand"
[EXERCISE] = Course(COURSES / "by_hand").lesson(LESSON).exercises
ANN, BOB = "ann.arden-1", "bob-42"
# Names in answers of theirs that occur nowhere else.
MARKS = {ANN: "zyxwv_of_ann", BOB: "zyxwv_of_bob"}
CONFIG = "c.Exchange.root = str(Path(__file__).resolve().parent / 'exchange')\n"


def answer(learner: str) -> str:
    mark = MARKS[learner]
    return f"def half(x):\n    {mark} = x / 2\n    if {mark} is None:\n        raise ValueError\n    return un_{mark}\n"


@pytest.fixture(scope="module")
def class_of_two(built: Callable[[str], Path], grader: Grader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder after a grading session of two learners: every kind of data that the commands store."""
    course = stock.configured(built("by_hand"), tmp_path_factory.mktemp("privacy") / "course")
    with (course / "nbgrader_config.py").open("a") as config:
        config.write(CONFIG)
    with (course / "course.toml").open("a") as outline:
        outline.write(
            f"\n[deadlines]\n{LESSON} = 2026-01-02T12:00:00Z\n"
            '\n[late]\nroster = "roster.csv"\nextensions = "extensions.csv"\n'
        )
    (course / "roster.csv").write_text(
        f'id,first_name,last_name,email\n{ANN},Ann,"Arden",ann@example.org\n{BOB},Bob,Berg,bob@example.org\n'
    )
    (course / "extensions.csv").write_text(
        f"learner,lesson,due\n{ANN},{LESSON},2026-01-03T12:00Z\n{BOB},{LESSON},2026-01-03T12:00Z\n"
    )
    for step in (("generate_assignment", LESSON, "--force"), ("db", "student", "import", "roster.csv")):
        assert stock.nbgrader(course, *step).returncode == 0
    for learner in (ANN, BOB):
        folder = course / "submitted" / learner / LESSON
        write(
            fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {EXERCISE.id: answer(learner)}),
            folder / f"{LESSON}.ipynb",
        )
        (folder / "timestamp.txt").write_text("2026-01-01 12:00:00 UTC")
        (folder / "submission_secret.txt").write_text(f"secret of {learner}")
        inbound = course / "exchange" / "jaxercise" / "inbound" / f"{learner}+{LESSON}+2026-01-01 12:00:00 UTC+abc"
        shutil.copytree(folder, inbound)
    (course / "submitted" / "collected.json").write_text(
        json.dumps({"version": 1, "learners": {ANN: {"source": "x"}, BOB: {"source": "y"}}})
    )
    for command in (
        ("grade", "submitted", "--gradebook", "--json", "results.json"),
        ("grade", f"file://{course}/submitted", "--json", "elsewhere.json"),
        ("report", "results.json", "--as", "csv", "--out", "grades.csv"),
        ("report", "results.json", "--as", "html", "--out", "class.html"),
        ("report", "results.json", "--as", "junit", "--out", "out/junit.xml"),
        ("similar", "submitted"),
    ):
        done = grader(*command, cwd=course)
        assert done.returncode == 0, done.stdout + done.stderr
    for step in (("generate_feedback", LESSON), ("release_feedback", LESSON)):
        done = stock.nbgrader(course, *step)
        assert done.returncode == 0, done.stderr[-2000:]
    (course / ".nbgrader.log").write_text(f"[INFO] Graded {ANN}\n[INFO] Graded {BOB}\n")
    assert sorted(found(course, ANN)) != []
    return course


@pytest.fixture
def copy(class_of_two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(class_of_two, tmp_path / "course"))


def found(folder: Path, *texts: str) -> set[str]:
    """The files whose path or bytes contain one of the texts, SQLite's files included."""
    wanted = [text.encode() for text in texts]
    places = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
    return {
        str(path.relative_to(folder))
        for path, content in places.items()
        if any(one in content or one in str(path.relative_to(folder)).encode() for one in wanted)
    }


@pytest.mark.thorough
def test_the_list_names_every_place(copy: Path, grader: Grader) -> None:
    done = grader("personal-data", cwd=copy)
    assert done.returncode == 0, done.stderr
    for place in (
        "submitted", "build/autograded", "build/feedback", "build/graded", "build/stored", "build/submissions",
        "exchange/jaxercise/inbound", "exchange/jaxercise/feedback", "results.json", "elsewhere.json", "grades.csv",
        "class.html", "out/junit.xml", "roster.csv", "extensions.csv", ".nbgrader.log", "gradebook.db",
        "submitted/collected.json",
    ):  # fmt: skip
        assert place in done.stdout, place
    assert "does not reach the LMS, git history, backups" in " ".join(done.stdout.split())
    assert BOB not in grader("personal-data", "--learner", ANN, cwd=copy).stdout
    assert found(copy, ANN) >= {"submitted/" + ANN}, "a list removes nothing"


@pytest.mark.thorough
def test_nothing_of_a_removed_learner_is_left_and_the_other_stays(copy: Path, grader: Grader) -> None:
    before = found(copy, BOB, MARKS[BOB])
    done = grader("personal-data", "--learner", ANN, "--remove", "--yes", cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found(copy, ANN, MARKS[ANN], "Arden", "ann@example.org") == set()
    # Reports without rows are removed whole, as the list of places states.
    gone = {"class.html", "out/junit.xml", "gradebook.db-wal"}
    assert before - found(copy, BOB, MARKS[BOB]) <= gone
    assert [row["id"] for row in csv.DictReader((copy / "roster.csv").read_text().splitlines())] == [BOB]
    # The course still works: the other's grade is there, and nothing is graded or stored again.
    again = grader("grade", "submitted", "--gradebook", cwd=copy)
    assert again.returncode == 0, again.stderr
    assert "Already there and unchanged: 1." in again.stdout
    assert grader("personal-data", "--learner", ANN, cwd=copy).returncode == 2


@pytest.mark.thorough
def test_all_learners_are_removed_after_a_question(copy: Path, grader: Grader) -> None:
    refused = grader("personal-data", "--remove", "--all", cwd=copy)
    assert refused.returncode == 1
    assert "Nothing was removed." in refused.stderr
    assert found(copy, ANN)
    done = grader("personal-data", "--remove", "--all", "--yes", cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found(copy, ANN, BOB, *MARKS.values(), "Arden", "bob@example.org") == set()
    assert "There is no data of learners here." in grader("personal-data", cwd=copy).stdout


@pytest.mark.thorough
def test_what_cannot_be_removed_is_named(copy: Path, grader: Grader) -> None:
    (copy / "letter.txt").write_text(f"Dear {ANN}, ...")
    done = grader("personal-data", "--learner", ANN, "--remove", "--yes", cwd=copy)
    assert done.returncode == 1
    assert f"letter.txt still contains {ANN}." in done.stderr
    assert found(copy, ANN) == {"letter.txt"}
    for words in (("--remove",), ("--all",), ("--learner", "nobody"), ("--remove", "--all", "--learner", BOB)):
        assert grader("personal-data", *words, cwd=copy).returncode == 2


@pytest.mark.thorough
def test_links_are_removed_and_not_followed(copy: Path, grader: Grader, tmp_path: Path) -> None:
    (outside := tmp_path / "outside").mkdir()
    (outside / "kept.txt").write_text("kept")
    shutil.rmtree(copy / "submitted" / ANN)
    (copy / "submitted" / ANN).symlink_to(outside)
    assert grader("personal-data", "--learner", ANN, "--remove", "--yes", cwd=copy).returncode == 0
    assert (outside / "kept.txt").exists()
    assert not (copy / "submitted" / ANN).is_symlink()


def test_other_rows_of_a_table_stay_as_they_are(tmp_path: Path) -> None:
    table = tmp_path / "repos.csv"
    table.write_bytes(b'ann,https://x/ann\r\n"bob","a ""quoted""\nname"\r\nanna,https://x/anna')
    assert without(table, {"ann"}) == b'"bob","a ""quoted""\nname"\r\nanna,https://x/anna'
    assert without(table, {"bob"}) == b"ann,https://x/ann\r\nanna,https://x/anna"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["checkout", "overlay", "bundle"])
def test_git_ignores_what_the_commands_write(copy: Path, grader: Grader, kind: str) -> None:
    """The folder's files that git would add are those of the course, whichever kind of folder it is."""
    ignore = {
        "checkout": COURSES.parents[1] / ".gitignore",
        "overlay": PACKAGE / "course" / "templates" / "gitignore",
        "bundle": PACKAGE / "lms" / "for_learners" / "gitignore",
    }[kind]
    shutil.copy(ignore, copy / ".gitignore")
    (copy / "elsewhere.json").unlink()
    subprocess.run(["git", "init", "-q", copy], check=True)
    words = ["git", "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=copy, capture_output=True, text=True, check=True).stdout.splitlines()
    assert not {name for name in listed if name in found(copy, ANN, BOB)}
    quiet = grader("report", "results.json", "--as", "csv", "--out", "week1.csv", cwd=copy)
    assert "git does not ignore" not in quiet.stderr
    for command in (
        ("report", "results.json", "--as", "json", "--out", "week1.json"),
        ("grade", "submitted", "--json", "week2.json"),
        ("similar", "submitted", "--html", "page.txt"),
    ):
        told = grader(*command, cwd=copy)
        assert told.stderr.count(f"git does not ignore {copy / command[-1]}") == 1, told.stderr
