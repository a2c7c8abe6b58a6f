"""Files that a lesson ships beside its notebook: released by every route, and there when the notebook is graded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import COURSES, Grader
from fill import fill, write
from stock import nbgrader

from grader.course import Course, CourseError, build, workspace
from grader.course.tree import MAX_DATA_FILES
from grader.lms import bundle, gradescope

LESSON = "01_small"
READS = 'SCALE = float(open("scale.csv").read())\nassert open("more/one.txt").read() == "one"'
# Reads the files at the top of the notebook and in a call, and is right if it cannot write to them.
ANSWER = """
import glob, os
MINE = [open(name).read() for name in sorted(glob.glob("*.csv"))]
def double(x):
    try:
        open("scale.csv", "a").write("0")
    except OSError:
        return float(MINE[0]) * x + (open("scale.csv").read() != "2.0")
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small course, whose setup reads two files."""
    root = tmp_path_factory.mktemp("data") / "course"
    shutil.copytree(COURSES / "small", root, ignore=shutil.ignore_patterns("build", "exercises"))
    text = root / "solutions" / f"{LESSON}.py"
    text.write_text(text.read_text().replace("SCALE = 2.0", READS))
    (root / "solutions" / LESSON / "more").mkdir(parents=True)
    (root / "solutions" / LESSON / "scale.csv").write_text("2.0")
    (root / "solutions" / LESSON / "more" / "one.txt").write_text("one")
    (root / "nbgrader_config.py").write_text(
        "from pathlib import Path\nfrom grader.lms.nbgrader_settings import configure\n"
        "c = get_config()\nconfigure(c, Path(__file__).parent)\n"
    )
    build.build(Course(root))
    return root


def there(folder: Path) -> bool:
    return (folder / "scale.csv").read_text() == "2.0" and (folder / "more" / "one.txt").read_text() == "one"


def submit(course: Path, submitted: Path, *learners: str) -> None:
    right = {exercise.id: exercise.reference for exercise in Course(course).lesson(LESSON).exercises}
    for learner in learners:
        path = submitted / learner / LESSON / f"{LESSON}.ipynb"
        write(fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {**right, "small-double": ANSWER}), path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines more than by limits")
@pytest.mark.parametrize("level", ["full", "landlock"])
def test_they_are_there_to_be_read_when_a_class_is_graded(
    course: Path, grader: Grader, tmp_path: Path, level: str
) -> None:
    submit(course, tmp_path / "submitted", "one", "two")
    out = tmp_path / "results.json"
    words = ("grade", tmp_path / "submitted", "--json", out, "--force", "--allow-unsandboxed")
    done = grader("--course", course, *words, GRADER_CONFINE_AT_MOST=level)
    results = json.loads(out.read_text())["results"]
    assert [one["score"] for one in results] == [9.0, 9.0], done.stdout + done.stderr
    if {one["confinement"] for one in results} != {level}:
        pytest.skip(f"this machine refuses {level}")


def test_lab_lays_them_out_and_check_and_reset_and_answers_have_them(course: Path, grader: Grader) -> None:
    assert grader("--course", course, "lab", "--no-open").returncode == 0
    own = course / "work" / LESSON
    assert there(own)
    submit(course, course / "build" / "tmp", "one")
    shutil.copy(course / "build" / "tmp" / "one" / LESSON / f"{LESSON}.ipynb", own)
    (own / "scale.csv").write_text("3.0, a learner's own numbers")
    done = grader("--course", course, "check", LESSON)
    assert "9 of 9 points" in done.stdout, done.stdout + done.stderr
    assert grader("--course", course, "lab", "--no-open").returncode == 0
    assert there(own)
    [kept] = (course / "work" / "earlier").glob("*scale*.csv")
    assert "a learner's own" in kept.read_text(), "nothing of a learner's is lost"
    path, _ = workspace.answers(Course(course), LESSON)
    assert there(path.parent)


def test_bundles_release_and_gradescopes_zip_have_them(course: Path, tmp_path: Path) -> None:
    bundle.write_folder(bundle.files(Course(course)), tmp_path / "bundle")
    assert there(tmp_path / "bundle" / "exercises" / LESSON)
    assert there(course / "exercises" / LESSON)
    assert there(course / "build" / "source" / LESSON)
    bundle.write_zip(gradescope.files(Course(course), LESSON), tmp_path / "autograder.zip")
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        archive.extractall(tmp_path / "source")
    assert Course(tmp_path / "source" / "course").lesson(LESSON).data == Course(course).lesson(LESSON).data


def test_the_checks_run_beside_them_in_a_kernel(course: Path, tmp_path: Path) -> None:
    bundle.write_folder(bundle.files(Course(course)), tmp_path)
    command = [sys.executable, "-m", "grader.checks", LESSON]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "NameError" not in done.stdout + done.stderr
    assert "FileNotFoundError" not in done.stdout + done.stderr


def test_nbgrader_releases_and_grades_with_them(course: Path) -> None:
    (course / "build" / "source" / LESSON / "old.csv").write_text("no longer shipped")
    shutil.rmtree(course / "exercises" / LESSON)
    assert nbgrader(course, "generate_assignment", LESSON).returncode == 0
    assert there(course / "exercises" / LESSON)
    assert not (course / "exercises" / LESSON / "old.csv").exists()
    submit(course, course / "submitted", "one")
    assert nbgrader(course, "autograde", LESSON).returncode == 0
    assert nbgrader(course, "export", "--to", "grades.csv").returncode == 0
    assert ",9.0,0.0,9.0,9.0" in (course / "grades.csv").read_text()


def test_an_overlays_files_come_over_those_below(course: Path, tmp_path: Path) -> None:
    (tmp_path / "course.toml").write_text(f'extends = "{course}"\n')
    (tmp_path / "solutions" / LESSON).mkdir(parents=True)
    (tmp_path / "solutions" / LESSON / "scale.csv").write_text("2")
    assert Course(tmp_path).lesson(LESSON).data == {"scale.csv": b"2", "more/one.txt": b"one"}
    build.build(Course(tmp_path))
    assert (tmp_path / "exercises" / LESSON / "scale.csv").read_text() == "2"
    (tmp_path / "solutions" / LESSON / "scale.csv").write_text("3")
    assert tmp_path / "exercises" / LESSON / "scale.csv" in build.stale(Course(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("page.html", "x", "`page.html` cannot be released beside a notebook"),
        ("other.ipynb", "x", "`other.ipynb` cannot be released beside a notebook"),
        ("a b.csv", "x", "`a b.csv` cannot be released beside a notebook"),
        ("large.bin", "0" * (21 << 20), "a lesson's files are at most 100, and 20 MB in all"),
        ("link.csv", None, "`link.csv` is a link or no file"),
    ],
)
def test_what_cannot_be_shipped_is_refused_with_its_place(
    course: Path, tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    (tmp_path / "course.toml").write_text(f'extends = "{course}"\n')
    path = tmp_path / "solutions" / LESSON / name
    path.parent.mkdir(parents=True)
    if content is None:
        path.symlink_to("/etc/passwd")
    else:
        path.write_text(content)
    with pytest.raises(CourseError, match=said):
        Course(tmp_path).lesson(LESSON)


def test_too_many_files_and_files_of_no_lesson_are_refused(course: Path, tmp_path: Path) -> None:
    (tmp_path / "course.toml").write_text(f'extends = "{course}"\n')
    folder = tmp_path / "solutions" / LESSON
    folder.mkdir(parents=True)
    for number in range(MAX_DATA_FILES + 1):
        (folder / f"{number}.csv").write_text("x")
    with pytest.raises(CourseError, match="at most 100"):
        Course(tmp_path).lesson(LESSON)
    folder.rename(tmp_path / "solutions" / "01_smal")
    with pytest.raises(CourseError, match="lists no lesson `01_smal`"):
        Course(tmp_path)
