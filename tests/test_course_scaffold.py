"""`grader new exercise`: an instructor's own folder from nothing to grades, and the course below untouched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest
from conftest import COURSES, Grader
from fill import fill, write
from test_lms_nbgrader_autograde import nbgrader

from grader.course import Course, CourseError, scaffold
from grader.course.scaffold import ScaffoldError
from grader.grading.batch import without_secret

SMALL = "01_small"
TEXT = f"solutions/{SMALL}.py"
MADE = [".gitignore", ".secret", "README.md", "course.toml", "nbgrader_config.py", TEXT]
# What an author writes in place of each `FILL IN: ...`, in the order of the skeleton.
WRITTEN = (
    "Three times", "Triple an array.", "float32[n] to float32[n].", "`[1, 2]` gives `[3, 6]`.", "Values.", "Style.",
    "What is three times x?", "The setup has SCALE.", "Multiply.", "Three times x, float32[n].", None,
    "Triples one and two.", None, None, "Triples any array.", None,
    "Three times x is x plus x plus x.", "And four times?", "Doubles.", None, "Adds three.", None, "Cubes.", None, None,
)  # fmt: skip
CODE = {
    "return x  # FILL IN: the answer, in": "return 3 * x",
    "FILL IN: the input of the example": "",
    "compare(ask(triple, x), x)": 'compare(ask(triple, x), np.array([3, 6], "f"))',
    "return x  # FILL IN: the result in": "return x * np.float32(3)",
    "return x  # FILL IN: the answer by": "return x + x + x",
}
WRONG = ("return 2 * x", "return x + 3", "return x**3")


def fill_in(path: Path) -> None:
    """Write the exercise as its author would: prose for prose, code for code."""
    wrong = iter(WRONG)
    said = iter(WRITTEN)
    lines = []
    for line in path.read_text().split("\n"):
        for start, code in CODE.items():
            if start in line:
                line = re.sub(r"(return x  # FILL IN|compare\(.*# FILL IN|  # FILL IN).*", code, line)
                next(said)
        if "FILL IN: that answer" in line:
            line = re.sub(r"return x .*", next(wrong), line)
            next(said)
        line = re.sub(r"FILL IN: [^*\"]+?(?=\"|$| \*\*)", lambda found: next(said) or "", line)
        lines.append(line)
    assert next(said, "all said") == "all said"
    path.write_text("\n".join(lines))


def tree(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("public") / "small"
    return shutil.copytree(COURSES / "small", root, ignore=shutil.ignore_patterns("build", "exercises"))


@pytest.fixture
def course(small: Path) -> Course:
    return Course(small)


def begun(grader: Grader, small: Path, to: Path) -> subprocess.CompletedProcess[str]:
    return grader("--course", small, "new", "exercise", "small-triple", "--lesson", SMALL, "--to", to)


def test_from_nothing_to_grades(grader: Grader, small: Path, tmp_path: Path) -> None:
    below, mine = tree(small), tmp_path / "my-class"
    done = begun(grader, small, mine)
    assert done.returncode == 0, done.stderr
    said = "Created {}, an overlay over {}: .secret, course.toml, .gitignore, nbgrader_config.py, README.md."
    assert done.stdout.splitlines()[0] == said.format(mine, small)
    assert done.stdout.splitlines()[1] == f"{mine}/{TEXT}:1: the skeleton of small-triple."
    assert sorted(tree(mine)) == MADE
    assert stat.S_IMODE((mine / ".secret").stat().st_mode) == 0o600

    unfilled = grader("build", cwd=mine)
    assert unfilled.returncode == 2
    left = unfilled.stderr.splitlines()
    assert len(left) == (mine / TEXT).read_text().count("FILL IN") == len(WRITTEN)
    assert {re.sub(r":\d+: still to write: .*", "", line) for line in left} == {TEXT}
    assert (
        left[0] == f"{TEXT}:2: still to write: what it is about, in a few words. Write it in place of `FILL IN: ...`."
    )

    fill_in(mine / TEXT)
    outline = mine / "course.toml"
    outline.write_text('without = ["small-mean", "small-total"]\n' + outline.read_text())
    built = grader("build", cwd=mine)
    assert built.returncode == 0, built.stderr
    proved = grader("prove", cwd=mine)
    assert proved.returncode == 0, proved.stdout
    row = next(line for line in proved.stdout.splitlines() if "small-triple" in line)
    assert row.split()[:6] == ["small-triple", "1", "3", "3", "3", "0"], "right, wrong, caught, named, tied"

    grades(grader, mine)
    assert tree(small) == below


def grades(grader: Grader, mine: Path) -> None:
    """nbgrader's commands and ours in an overlay, on a class of two."""
    released = mine / "exercises" / SMALL / f"{SMALL}.ipynb"
    own = {exercise.id: exercise.reference for exercise in Course(mine).lesson(SMALL).exercises}
    write(fill(released, own), mine / "submitted" / "all_right" / SMALL / f"{SMALL}.ipynb")
    partly = {"small-triple": "def triple(x):\n    return 2 * x\n"}
    write(fill(released, partly), mine / "submitted" / "partly" / SMALL / f"{SMALL}.ipynb")
    done = nbgrader(mine, "generate_assignment", SMALL, "--force")
    assert done.returncode == 0, done.stderr[-2000:]
    assert without_secret(Course(mine)) is None
    (mine / ".secret").write_text("\n")
    done = grader("grade", "submitted", "--gradebook", "--json", "results.json", cwd=mine)
    assert done.returncode == 0, done.stderr
    assert f"There is no secret in {mine}/.secret, so learners can compute" in done.stderr
    results = {one["learner"]: one for one in json.loads((mine / "results.json").read_text())["results"]}
    assert [(name, one["score"], one["max_score"]) for name, one in results.items()] == [
        ("all_right", 6, 6),
        ("partly", 0, 6),
    ]
    assert [c["misconception"] for c in results["partly"]["checks"] if c["exercise"] == "small-triple"] == [
        "Doubles."
    ] * 2
    with contextlib.closing(sqlite3.connect(mine / "gradebook.db")) as database, database:
        [(stored,)] = database.execute("select sum(auto_score) from grade").fetchall()
    assert stored == 6


def test_a_second_exercise_goes_below_the_first_and_keeps_it(course: Course, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    scaffold.make_overlay(mine, course)
    secret = (mine / ".secret").read_text()
    assert len(secret) == 65
    assert scaffold.add_exercise(Course(mine), "small-triple", SMALL) == (mine / TEXT, 1)
    first = (mine / TEXT).read_text()
    assert scaffold.add_exercise(Course(mine), "small-other", SMALL) == (mine / TEXT, first.count("\n") + 3)
    assert (mine / TEXT).read_text().startswith(first)
    assert scaffold.make_overlay(mine, course) == []
    assert (mine / ".secret").read_text() == secret
    with pytest.raises(CourseError) as caught:
        Course(mine).lesson(SMALL)
    assert {problem.message.partition(":")[0] for problem in caught.value.problems} == {"still to write"}
    assert len(caught.value.problems) == 2 * len(WRITTEN)


def test_a_course_may_be_written_into_when_it_is_named(grader: Grader, small: Path, tmp_path: Path) -> None:
    root = shutil.copytree(small, tmp_path / "small")
    done = grader("new", "exercise", "small-triple", "--lesson", SMALL, "--to", ".", cwd=root)
    assert done.returncode == 0, done.stderr
    before = (small / TEXT).read_text()
    assert (root / TEXT).read_text().startswith(before)
    assert sorted(tree(root)) == sorted(tree(small))
    assert without_secret(Course(root)) is None


def test_a_lesson_that_nobody_wrote_gets_its_title_and_setup(course: Course, tmp_path: Path) -> None:
    scaffold.make_overlay(tmp_path / "mine", course)
    outline = tmp_path / "mine" / "course.toml"
    outline.write_text(outline.read_text() + '[[lesson]]\nid = "40_own"\ntitle = "Own"\npart = "V"\n')
    path, line = scaffold.add_exercise(Course(tmp_path / "mine"), "own-lambda", "40_own")
    lines = path.read_text().split("\n")
    assert lines[1] == "# # 40 · Exercises: Own"
    assert lines[line - 1].startswith('# %% [markdown] task="own-lambda"')
    assert "def own_lambda(x):" in lines  # `lambda` is no name for a function
    with pytest.raises(CourseError) as caught:
        Course(tmp_path / "mine").lesson("40_own")
    assert {problem.message.partition(":")[0] for problem in caught.value.problems} == {"still to write"}


def test_what_setup_has_not_is_imported_by_the_checks(course: Course, tmp_path: Path) -> None:
    scaffold.make_overlay(tmp_path / "mine", course)
    path = shutil.copytree(course.root, tmp_path / "bare") / TEXT
    path.write_text(path.read_text().replace("inputs, program, require", "require").replace("import numpy as np\n", ""))
    outline = tmp_path / "mine" / "course.toml"
    outline.write_text(re.sub('extends = ".*"', 'extends = "../bare"', outline.read_text()))
    text = scaffold.add_exercise(Course(tmp_path / "mine"), "small-triple", SMALL)[0].read_text()
    assert '."""\nimport numpy as np\nx = ' in text
    assert (
        '."""\nfrom grader.checks import inputs\nfrom grader.checks import program\nimport numpy as np\n\n\ndef' in text
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["small-double"], "01_small already has an exercise small-double. Choose another id."),
        (["Triple"], "Triple is not a valid id of an exercise. Use lowercase letters and hyphens, as in"),
        (["small-triple", "--lesson", "02_big"], "There is no lesson 02_big. Choose one of 01_small, or add it to"),
        (["small-triple", "--to", "{small}/mine"], "{small}/mine is inside of {small}, so it would be published"),
        (["small-triple", "--to", "/proc/mine"], "/proc/mine cannot be created: No such file or directory. Choose"),
        (["small-triple", "--to", ""], "The course in {small} is not your own folder. Choose one with --to, such as"),
    ],
    ids=["taken", "no id", "no lesson", "inside", "unwritable", "nowhere"],
)  # fmt: skip
def test_what_cannot_be_is_said(grader: Grader, small: Path, tmp_path: Path, words: list[str], said: str) -> None:
    below = tree(small)
    given = [word.format(small=small) for word in words]
    lesson = [] if "--lesson" in given else ["--lesson", SMALL]
    if "--to" not in given:
        given += ["--to", str(tmp_path / "mine")]
    elif given[-1] == "":
        given = given[:-2]
    done = grader("--course", small, "new", "exercise", *given, *lesson)
    assert done.returncode == 2, done.stdout
    assert said.format(small=small) in done.stderr
    assert tree(small) == below


def test_an_overlay_over_an_overlay_is_refused(course: Course, tmp_path: Path) -> None:
    scaffold.make_overlay(tmp_path / "mine", course)
    with pytest.raises(ScaffoldError, match=f"is an overlay itself. Run this in {course.root}, which it extends."):
        scaffold.make_overlay(tmp_path / "other", Course(tmp_path / "mine"))
    assert not (tmp_path / "other").exists()


def test_what_is_there_is_kept(course: Course, tmp_path: Path) -> None:
    """A fresh clone with a README and a secret that came from elsewhere."""
    for name in ("README.md", ".secret"):
        (tmp_path / name).write_text("mine\n")
    assert scaffold.make_overlay(tmp_path, course) == ["course.toml", ".gitignore", "nbgrader_config.py"]
    assert (tmp_path / "README.md").read_text() == (tmp_path / ".secret").read_text() == "mine\n"


def test_git_takes_neither_the_secret_nor_learners_data(course: Course, tmp_path: Path) -> None:
    scaffold.make_overlay(tmp_path, course)
    scaffold.add_exercise(Course(tmp_path), "small-triple", SMALL)
    for name in ("gradebook.db", "gradebook.db-wal", "submitted/one/x.ipynb", "build/graded/x", "exercises/x/x.ipynb"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    seen = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.split()
    assert sorted(seen) == [name for name in MADE if name != ".secret"]
