"""Files that learners submit beside the notebook: read within bounds, there in every route, and part of the seed."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from conftest import COURSES, Grader
from fill import fill, write
from stock import nbgrader
from test_lms_collect import git

from grader.cli import follow
from grader.core import own_files
from grader.course import Course, CourseError, build
from grader.lms import bundle, gradescope
from grader.lms.object_store import SubmissionStore

LESSON = "01_small"
ALLOWED = f"own_files_mb = {{ {LESSON} = 0.001 }}\n"  # 1,000 bytes
# Uses a table and a module of the learner's own, and is right if it cannot change them.
ANSWER = """
import helper
TABLE = open("tables/factor.csv").read()
def double(x):
    try:
        open("tables/factor.csv", "a").write("0")
    except OSError:
        return helper.times(x, float(TABLE))
"""
OWN = {"helper.py": "def times(x, factor):\n    return factor * x\n", "tables/factor.csv": "2.0"}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small course, which ships one file and allows learners' own."""
    root = tmp_path_factory.mktemp("own") / "course"
    shutil.copytree(COURSES / "small", root, ignore=shutil.ignore_patterns("build", "exercises"))
    (root / "course.toml").write_text(ALLOWED + (root / "course.toml").read_text())
    (root / "solutions" / LESSON).mkdir()
    (root / "solutions" / LESSON / "scale.csv").write_text("2.0")
    (root / "nbgrader_config.py").write_text(
        "from pathlib import Path\nfrom grader.lms.nbgrader_settings import configure\n"
        "c = get_config()\nconfigure(c, Path(__file__).parent)\n"
    )
    build.build(Course(root))
    return root


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def submit(course: Path, folder: Path, files: dict[str, str] = OWN, answer: str = ANSWER) -> Path:
    """Lay out a right notebook, and files beside it, in this folder; returns the notebook's path."""
    right = {exercise.id: exercise.reference for exercise in Course(course).lesson(LESSON).exercises}
    path = folder / f"{LESSON}.ipynb"
    write(fill(course / "exercises" / LESSON / f"{LESSON}.ipynb", {**right, "small-double": answer}), path)
    lay(folder, files)
    return path


def results(course: Path, grader: Grader, submitted: Path | str, *words: str) -> dict[str, dict[str, Any]]:
    out = course / "build" / "results.json"
    done = grader("--course", course, "grade", submitted, "--json", out, "--allow-unsandboxed", *words)
    assert out.exists(), done.stdout + done.stderr
    found = {one["learner"]: one for one in json.loads(out.read_text())["results"]}
    out.unlink()
    return found


# Reading them.


def test_what_can_be_own_is_read_and_nothing_else(tmp_path: Path) -> None:
    lay(tmp_path, {"a b.csv": "1", "sub/é.txt": "2", "x.ipynb": "", "timestamp.txt": "", ".hidden": "", "X.IPYNB": ""})
    lay(tmp_path, {"__pycache__/m.pyc": "", ".ipynb_checkpoints/c.txt": "", "scale.csv": "2.0"})
    read = own_files.read(tmp_path, 100, {"scale.csv": b"2.0", "course/data.csv": b""})
    assert read.contents == {"a b.csv": b"1", "sub/é.txt": b"2"}
    assert read.remarks == ()
    assert own_files.read(tmp_path, 0, {}) == own_files.NO_FILES


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    lay(tmp_path, {"big.bin": "x" * 101, "course": "", "good.txt": "good", "scale.csv": "mine", "\x1b[2J": ""})
    (tmp_path / "link.txt").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    read = own_files.read(tmp_path, 100, {"scale.csv": b"2.0", "course/data.csv": b""})
    assert read.contents == {"good.txt": b"good"}
    assert read.remarks == (
        "\\x1b[2J was not used: its path has more than 200 characters or 4 parts, or unprintable characters.",
        "big.bin was not used: the files beside the notebook have more than 0.0001 MB.",
        "course was not used: a file or folder of the course has this name.",
        "link.txt was not used: it is a link or not a regular file.",
        "pipe was not used: it is a link or not a regular file.",
        "The same is true of 1 more file.",
    )


def test_a_linked_folder_is_not_followed_and_numbers_are_bounded(tmp_path: Path) -> None:
    lay(tmp_path / "real", {"secret.txt": "x"})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "alias").symlink_to(tmp_path / "here")
    assert own_files.read(tmp_path / "here", 100, {}).contents == {}
    lay(tmp_path / "here", {f"{number:04}.txt": "" for number in range(1_500)})
    read = own_files.read(tmp_path / "here", 100, {})
    assert len(read.contents) == own_files.MAX_FILES
    assert "more than 100 files are beside the notebook" in read.remarks[0]
    assert own_files.read(tmp_path / "alias", 100, {}) == own_files.NO_FILES
    lay(tmp_path / "deep", {"a/b/c/d.txt": "", "a/b/c/d/e.txt": ""})
    read = own_files.read(tmp_path / "deep", 100, {})
    assert list(read.contents) == ["a/b/c/d.txt"]
    assert read.remarks[0].startswith("a/b/c/d/e.txt was not used: its path has more than")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("own_files_mb = { 99_none = 1 }", "`own_files_mb` names `99_none`, which is no lesson"),
        (f"own_files_mb = {{ {LESSON} = 21 }}", "`own_files_mb` gives each lesson a number of MB, from 0 to 20"),
        (f"own_files_mb = {{ {LESSON} = true }}", "`own_files_mb` gives each lesson a number of MB"),
        ("own_files_mb = 5", "`own_files_mb` gives each lesson a number of MB"),
    ],
)
def test_a_wrong_setting_is_told(course: Path, tmp_path: Path, table: str, said: str) -> None:
    text = (course / "course.toml").read_text().replace(ALLOWED, f"{table}\n")
    (tmp_path / "course.toml").write_text(text)
    with pytest.raises(CourseError) as problem:
        Course(tmp_path)
    assert said in str(problem.value)


def test_an_overlay_sets_it_for_lessons_of_the_course_below(course: Path, tmp_path: Path) -> None:
    for setting, size in (("", 1_000), (f"own_files_mb = {{ {LESSON} = 0 }}\n", 0)):
        (tmp_path / "course.toml").write_text(f'extends = "{course}"\n{setting}')
        assert Course(tmp_path).lesson(LESSON).own_files_bytes == size


# Every route.


def test_a_class_is_graded_with_them_and_a_change_is_another_submission(
    course: Path, grader: Grader, tmp_path: Path
) -> None:
    submit(course, tmp_path / "with" / LESSON)
    submit(course, tmp_path / "without" / LESSON, {})
    shutil.copytree(tmp_path / "with", tmp_path / "big")
    lay(tmp_path / "big" / LESSON, {"tables/factor.csv": "2.0" + " " * 1_000})
    found = results(course, grader, tmp_path)
    assert {name: one["score"] for name, one in found.items()} == {"with": 9.0, "without": 6.0, "big": 6.0}
    assert found["with"]["notes"] == []
    assert "the files submitted beside it" in str(found["without"]["checks"]), found["without"]
    assert any(note.startswith("tables/factor.csv was not used: ") for note in found["big"]["notes"])
    assert results(course, grader, tmp_path) == found, "cached"

    lay(tmp_path / "with" / LESSON, {"tables/factor.csv": "3.0"})
    changed = results(course, grader, tmp_path, "--explain-changes")
    assert changed["with"]["score"] == 6.0
    since = {reason for check in changed["with"]["changes"]["checks"] for reason in check["since"]}
    assert since == {"the files beside the notebook"}
    assert changed["without"] == {**found["without"], "changes": None}


def test_where_the_lesson_allows_none_there_are_none(course: Path, grader: Grader, tmp_path: Path) -> None:
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "course.toml").write_text(f'extends = "{course}"\nown_files_mb = {{ {LESSON} = 0 }}\n')
    submit(course, tmp_path / "class" / "one" / LESSON)
    found = results(tmp_path / "overlay", grader, tmp_path / "class")
    assert found["one"]["score"] == 6.0
    assert "the grader has only the notebook, the course's files" in str(found["one"]).lower()


def test_no_learner_sees_those_of_another(course: Path, grader: Grader, tmp_path: Path) -> None:
    looks = "import os\nassert any('more.txt' in names for _, _, names in os.walk('/tmp')) is {}\n" + ANSWER
    submit(course, tmp_path / "one" / LESSON, answer=looks.format(False))
    submit(course, tmp_path / "two" / LESSON, {**OWN, "more.txt": ""}, looks.format(True))
    found = results(course, grader, tmp_path, "--jobs", "1")
    assert {name: one["score"] for name, one in found.items()} == {"one": 9.0, "two": 9.0}, found


def test_a_cluster_gets_them(course: Path, grader: Grader, tmp_path: Path) -> None:
    submit(course, tmp_path / "one" / LESSON, {**OWN, "big.bin": "x" * 2_000})
    found = results(course, grader, tmp_path, "--on", "local:1", "--force")
    assert found["one"]["score"] == 9.0
    assert found["one"]["notes"][0].startswith("big.bin was not used: ")


def test_check_finds_them_beside_a_learners_own_copy(course: Path, grader: Grader) -> None:
    assert grader("--course", course, "lab", "--no-open").returncode == 0
    submit(course, course / "work" / LESSON)
    done = grader("--course", course, "check", LESSON)
    assert "9 of 9 points" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("zipped", [False, True])
def test_gradescope_grades_with_them(course: Path, tmp_path: Path, zipped: bool) -> None:
    bundle.write_zip(gradescope.files(Course(course), LESSON, allow_unsandboxed=True), tmp_path / "autograder.zip")
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        archive.extractall(tmp_path / "source")
    there = tmp_path / "submission" / "home"
    submit(course, there, {**OWN, "big.bin": "x" * 2_000}).rename(there / "renamed.ipynb")
    if zipped:
        shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path / "submission")
        shutil.rmtree(tmp_path / "submission")
        (tmp_path / "submission").mkdir()
        (tmp_path / "all.zip").rename(tmp_path / "submission" / "all.zip")
    result = gradescope.examine(tmp_path)
    assert result.score == 9.0, result
    assert result.notes[0].startswith("big.bin was not used: ")


def test_nbgrader_grades_with_them(course: Path) -> None:
    assert nbgrader(course, "generate_assignment", LESSON, "--force").returncode == 0
    submit(course, course / "submitted" / "one" / LESSON)
    assert nbgrader(course, "autograde", LESSON).returncode == 0
    assert nbgrader(course, "export", "--to", "grades.csv").returncode == 0
    assert ",9.0,0.0,9.0,9.0" in (course / "grades.csv").read_text()


def test_they_are_collected_from_repositories(course: Path, grader: Grader, tmp_path: Path) -> None:
    repository, to = tmp_path / "one", tmp_path / "to"
    submit(course, repository / "work" / LESSON, {**OWN, "big.bin": "x" * (30 << 20), "old/gone.txt": ""})
    (repository / "work" / LESSON / "link.txt").symlink_to("/etc/passwd")
    git(repository, "init", "-q", "-b", "main")
    (tmp_path / "list.csv").write_text("one,one\n")

    def collect() -> str:
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "--allow-empty", "-m", "work")
        done = grader("--course", course, "collect", tmp_path / "list.csv", "--to", to)
        assert done.returncode == 0, done.stdout + done.stderr
        record = json.loads((to / "collected.json").read_text())["learners"]["one"]
        return str(record["notebooks"][LESSON]["state"])

    assert collect() == "new"
    there = to / "one" / LESSON
    found = results(course, grader, to)
    assert found["one"]["score"] == 9.0
    assert found["one"]["notes"][0].startswith("big.bin was not used: ")
    assert (there / "big.bin").stat().st_blocks == 0
    assert not (there / "link.txt").exists()
    assert collect() == "unchanged"
    (repository / "work" / LESSON / "old" / "gone.txt").unlink()
    (repository / "work" / LESSON / "big.bin").unlink()
    assert collect() == "changed"
    names = {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()}
    assert names == {f"{LESSON}.ipynb", "timestamp.txt", *OWN}
    assert not (there / "old").exists()


def test_they_are_copied_from_an_object_store(course: Path, grader: Grader, tmp_path: Path) -> None:
    submit(course, tmp_path / "one" / LESSON, {**OWN, "big.bin": "x" * 2_000, "other.ipynb": "", ".hidden": ""})
    url = f"file://{tmp_path}"
    assert results(course, grader, url)["one"]["score"] == 9.0
    store = SubmissionStore(url, Course(course))
    assert store.fetch() == [f"one/{LESSON}/other.ipynb"]
    assert (store.folder / "one" / LESSON / "big.bin").stat().st_blocks == 0
    fsspec.filesystem("file").rm(f"{tmp_path}/one/{LESSON}", recursive=True)
    store.fetch()
    assert not (store.folder / "one").exists()


def test_a_file_and_a_folder_of_one_name_cost_nobody_else_anything(course: Path, tmp_path: Path) -> None:
    memory, url = fsspec.filesystem("memory"), f"/clash-{tmp_path.name}"
    try:
        for name in ("ann", "bob"):
            memory.pipe({f"{url}/{name}/{LESSON}/{LESSON}.ipynb": b"{}", f"{url}/{name}/{LESSON}/a": b"file"})
        store = SubmissionStore(f"memory:/{url}", Course(course))
        store.fetch()
        (store.folder / "ann" / LESSON / "a").unlink()
        lay(store.folder / "ann" / LESSON / "a", {"b": "an older copy"})
        memory.pipe(f"{url}/ann/{LESSON}/a", b"another")
        assert store.fetch() == [f"ann/{LESSON}/a"]
        assert (store.folder / "bob" / LESSON / "a").read_bytes() == b"file"
    finally:
        memory.rm(url, recursive=True)
    assert not own_files.can_be_own("x" * 251)
    assert own_files.can_be_own("x" * 250)


def test_a_zip_with_a_file_and_a_folder_of_one_name_is_graded(course: Path, tmp_path: Path) -> None:
    bundle.write_zip(gradescope.files(Course(course), LESSON, allow_unsandboxed=True), tmp_path / "autograder.zip")
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        archive.extractall(tmp_path / "source")
    notebook = submit(course, tmp_path / "notebook")
    (tmp_path / "submission").mkdir()
    with zipfile.ZipFile(tmp_path / "submission" / "all.zip", "w") as archive:
        archive.write(notebook, notebook.name)
        for name, text in {**OWN, "a": "", "a/b": ""}.items():
            archive.writestr(name, text)
    assert gradescope.examine(tmp_path).score == 9.0


def test_a_queue_notices_that_one_has_changed(course: Path, tmp_path: Path) -> None:
    path = submit(course, tmp_path / "one" / LESSON)
    follower = follow.Follower(Course(course), tmp_path, None, None, {})
    for name in (path, *(path.parent / one for one in OWN)):
        os.utime(name, (1_000, 1_000))
    [(_, before)] = follower.waiting().items()
    os.utime(path.parent / "helper.py", (2_000, 2_000))
    [(_, after)] = follower.waiting().items()
    assert after != before
